"""The checks of the group ``sample``: whole answers, and data versions. Each case is a correct and a wrong trace."""

from collections.abc import Callable

import pytest

from replicated_namesrv.chaos.checks import judge
from replicated_namesrv.chaos.checks.whole_answers import ANSWERS, VERSIONS, check_answers, check_versions
from replicated_namesrv.chaos.sample_group import ABSENT, OF_REGISTRATION, QUESTIONS, RIGHT, UNORDERED, WRITABLE, text_of
from replicated_namesrv.verify import Verdict
from tests.chaos.traces import NODES, Script
from tests.support.places import assert_same_names

ROUTE, ORDERED = "route of sample-unit", "route of sample-order"
SAMPLE = "sample/0"
Case = Callable[[Script], Script]


def registered(mode: str = "cp", *, until: float = 13_000) -> Script:
    """The broker registers at all nodes, and again with a new version. The order configuration is written."""
    script = Script(mode).busy("c1", 0, 13_000).truth(1_000, SAMPLE, "starting", timeout_ms=3_000)
    for number, at in enumerate((1_100, 2_100), 1):
        for node in NODES:
            script.op(at, at + 10, SAMPLE, "register-copy", SAMPLE, str(number), node=node)
    script.truth(1_120, SAMPLE, "serving", timeout_ms=3_000)
    for node in NODES:
        script.op(1_200, 1_210, "probe", "order-conf", "sample-order", "sample:3", node=node)
    return script


def asks(script: Script, at: float, question: str, answer: str, node: str = "n1") -> Script:
    return script.op(at, at + 5, "probe", "answer", question, answer, node=node)


def queries(script: Script, at: float, version: str | None, node: str = "n1") -> Script:
    return script.op(at, at + 5, SAMPLE, "version", SAMPLE, version, node=node)


def gave_up(script: Script) -> Script:
    """The broker gets no answer to its queries, and closes its connections."""
    for node in NODES:
        script.op(2_250, 2_300, SAMPLE, "version", SAMPLE, node=node, outcome="indeterminate")
    return script.truth(2_300, SAMPLE, "exposed", timeout_ms=3_000)


GOOD_ANSWERS: dict[str, Case] = {
    "whole": lambda run: asks(run, 2_200, ROUTE, RIGHT[ROUTE]),
    "before the registration": lambda run: asks(asks(run, 1_050, ROUTE, ABSENT[ROUTE]), 2_200, ROUTE, RIGHT[ROUTE]),
    "before the order is written": lambda run: asks(asks(run, 1_150, ORDERED, UNORDERED[ORDERED]), 2_200, ROUTE, RIGHT[ROUTE]),
    "after the broker was exposed": lambda run: asks(asks(gave_up(run), 2_400, WRITABLE, "0"), 2_200, ROUTE, RIGHT[ROUTE]),
    "an unknown question": lambda run: asks(asks(run, 2_200, "what next", "?"), 2_200, ROUTE, RIGHT[ROUTE]),
    "to a registration": lambda run: asks(run, 2_200, OF_REGISTRATION, RIGHT[OF_REGISTRATION]),
}
BAD_ANSWERS: dict[str, Case] = {
    "a wrong field": lambda run: asks(run, 2_200, ROUTE, RIGHT[ROUTE].replace('"east"', "null")),
    "a wrong field before the registration": lambda run: asks(run, 1_050, ROUTE, RIGHT[ROUTE].replace('"east"', "null")),
    "the broker is missing": lambda run: asks(run, 2_200, ROUTE, ABSENT[ROUTE]),
    "the order is missing": lambda run: asks(run, 2_200, ORDERED, UNORDERED[ORDERED]),
    "another namespace has the key": lambda run: asks(run, 2_200, "key of another namespace", text_of("sample:3")),
    "one topic too few": lambda run: asks(run, 2_200, WRITABLE, text_of(int(RIGHT[WRITABLE]) - 1)),
    "no order in the answer to a registration": lambda run: asks(run, 2_200, OF_REGISTRATION, UNORDERED[OF_REGISTRATION]),
}
GOOD_VERSIONS: dict[str, Case] = {
    "the last": lambda run: queries(run, 2_200, "2"),
    "while it registers": lambda run: queries(queries(run, 2_102, "1"), 2_103, "2"),
    "before the registration": lambda run: queries(queries(run, 1_050, None), 2_200, "2"),
    "after the broker was exposed": lambda run: queries(queries(gave_up(run), 2_400, None), 2_200, "2"),
}
BAD_VERSIONS: dict[str, Case] = {
    "the one before": lambda run: queries(run, 2_200, "1"),
    "one that was never registered": lambda run: queries(run, 2_200, "3"),
    "a contradiction": lambda run: queries(run, 2_200, "2, changed"),
    "none": lambda run: queries(run, 2_200, None),
}


@pytest.mark.parametrize("mode", ["ap", "cp"])
@pytest.mark.parametrize("case", GOOD_ANSWERS)
def test_right_answers_are_not_blamed(case: str, mode: str) -> None:
    found = check_answers(GOOD_ANSWERS[case](registered(mode)).story)
    assert found.verdict is Verdict.VALID, found.findings


@pytest.mark.parametrize("mode", ["ap", "cp"])
@pytest.mark.parametrize("case", BAD_ANSWERS)
def test_wrong_answers_are_found(case: str, mode: str) -> None:
    found = check_answers(BAD_ANSWERS[case](registered(mode)).story)
    assert (found.verdict, found.count) == (Verdict.VIOLATED, 1), found.findings


@pytest.mark.parametrize("mode", ["ap", "cp"])
@pytest.mark.parametrize("case", GOOD_VERSIONS)
def test_right_versions_are_not_blamed(case: str, mode: str) -> None:
    found = check_versions(GOOD_VERSIONS[case](registered(mode)).story)
    assert found.verdict is Verdict.VALID, found.findings


@pytest.mark.parametrize("mode", ["ap", "cp"])
@pytest.mark.parametrize("case", BAD_VERSIONS)
def test_wrong_versions_are_found(case: str, mode: str) -> None:
    found = check_versions(BAD_VERSIONS[case](registered(mode)).story)
    assert (found.verdict, found.count) == (Verdict.VIOLATED, 1), found.findings


def test_a_registration_at_another_node_counts_in_a_cluster_only() -> None:
    def at_one_node(mode: str) -> Script:
        script = registered(mode).op(2_300, 2_310, SAMPLE, "register-copy", SAMPLE, "3", node="n2")
        return queries(script, 2_400, "2", node="n1")

    assert check_versions(at_one_node("ap").story).verdict is Verdict.VALID
    assert check_versions(at_one_node("cp").story).verdict is Verdict.VIOLATED


def test_an_independent_node_that_lost_its_disk_has_no_order() -> None:
    lost = registered("ap").fault(3_000, 5_000, variant=None, name="join-empty", node="n1")
    asks(asks(lost, 6_000, ORDERED, UNORDERED[ORDERED]), 2_200, ROUTE, RIGHT[ROUTE])
    assert check_answers(lost.story).verdict is Verdict.VALID
    assert check_answers(asks(lost, 6_000, ORDERED, UNORDERED[ORDERED], node="n2").story).verdict is Verdict.VIOLATED


def test_a_missing_broker_is_not_blamed_on_a_slow_machine_and_a_wrong_field_is() -> None:
    missing, wrong = BAD_ANSWERS["the broker is missing"], BAD_ANSWERS["a wrong field"]
    assert check_answers(missing(registered()).slowed(9.0).story).verdict is Verdict.UNKNOWN
    assert check_answers(wrong(registered()).slowed(9.0).story).verdict is Verdict.VIOLATED


def test_a_broker_that_the_node_shows_before_and_after_is_not_missing_because_of_slowness() -> None:
    script = asks(registered().slowed(9.0), 2_200, ORDERED, RIGHT[ORDERED])
    script = asks(asks(script, 2_210, ROUTE, ABSENT[ROUTE]), 2_220, "brokers", RIGHT["brokers"])
    assert check_answers(script.story).verdict is Verdict.VIOLATED


def test_a_run_that_asked_nothing_is_ignored_and_one_without_the_group_has_no_such_checks() -> None:
    assert check_answers(Script().story).idle
    assert check_versions(Script().story).idle
    assert {ANSWERS, VERSIONS} <= {check.name for check in judge(Script().story, "cp").checks}
    older = Script().story
    older.has_sample = False
    assert not {ANSWERS, VERSIONS} & {check.name for check in judge(older, "cp").checks}


def test_each_question_has_a_right_answer() -> None:
    assert_same_names([*QUESTIONS, OF_REGISTRATION], "QUESTIONS of chaos/sample_group.py", RIGHT, "RIGHT of this file")
    assert all(RIGHT[question] != answer for question, answer in UNORDERED.items())

"""The check of brokers that take the place of a dead master. Each case is a correct and a wrong trace."""

import pytest

from replicated_namesrv.chaos.checks import judge
from replicated_namesrv.chaos.checks.story import Story
from replicated_namesrv.chaos.checks.takeovers import TAKEOVERS, check_takeovers
from replicated_namesrv.verify import Verdict
from tests.chaos.test_checks import with_renewals
from tests.chaos.traces import NODES, Script

OLD, NEW = "heir1/0", "heir1/1"
SENT, TAKES = 4_000, 5_000


def taken(*, sent: float = SENT, outcome: str = "indeterminate") -> Script:
    """The master registers at n1, its request to n3 has no answer, and its slave takes its place."""
    script = Script().busy("c1", 0, 13_000)
    script.op(sent, sent + 10, OLD, "register-copy", OLD, "1", node="n1")
    script.op(sent, 7_000, OLD, "register-copy", OLD, "1", node="n3", outcome=outcome)
    for node in NODES:
        script.op(TAKES, TAKES + 20, NEW, "register-copy", OLD, "1", node=node)
    return script


def asked(script: Script, at: float, *listed: str) -> Script:
    return script.op(at, at + 5, "probe", "roles", "heir1", "6", node="n1", members=[(name, 0) for name in listed])


@pytest.mark.parametrize(
    ("at", "listed", "verdict"),
    [
        (6_000, [NEW], Verdict.VALID),
        (6_000, [], Verdict.VALID),
        (6_000, [OLD], Verdict.VIOLATED),
        (6_000, [NEW, OLD], Verdict.VIOLATED),
    ],
)
def test_the_former_master_is_not_listed(at: float, listed: list[str], verdict: Verdict) -> None:
    found = check_takeovers(with_renewals(asked(taken(), at, *listed)))
    assert found.verdict is verdict, found.findings


def test_while_the_place_is_taken_both_may_be_listed() -> None:
    script = asked(asked(taken(), TAKES - 100, OLD), TAKES + 10, OLD)
    assert check_takeovers(with_renewals(asked(script, 6_000, NEW))).verdict is Verdict.VALID


@pytest.mark.parametrize(("sent", "outcome"), [(TAKES - 100, "indeterminate"), (TAKES - 100, "ok")])
def test_a_registration_that_a_node_may_have_received_later_may_take_the_place_back(sent: float, outcome: str) -> None:
    assert check_takeovers(with_renewals(asked(taken(sent=sent, outcome=outcome), 6_000, OLD))).verdict is Verdict.UNKNOWN


def test_a_fault_of_the_link_may_delay_the_registration() -> None:
    script = asked(taken(), 6_000, OLD).fault(3_000, 8_000, [f"{OLD}>n3"])
    assert check_takeovers(with_renewals(script)).verdict is Verdict.UNKNOWN


def test_only_runs_with_such_groups_have_this_check() -> None:
    story = Script().story
    assert TAKEOVERS not in {check.name for check in judge(story, "cp").checks}
    workload = {**story.manifest["scenario"]["workload"], "heirs": 1}
    with_heirs = Story(story.trace, {**story.manifest, "scenario": {**story.manifest["scenario"], "workload": workload}})
    assert TAKEOVERS in {check.name for check in judge(with_heirs, "cp").checks}

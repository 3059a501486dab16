"""The check that the answers of a node agree.

The groups g1 and g3 are in the zone south, g2 and g4 in north; no other group has a zone.
"""

import pytest

from replicated_namesrv.chaos.checks.agreeing_answers import check_agreement
from replicated_namesrv.chaos.checks.story import CheckResult
from replicated_namesrv.chaos.clients import LIST_IS_DISABLED
from replicated_namesrv.chaos.records import Truth
from replicated_namesrv.chaos.workload import zone_of
from replicated_namesrv.verify import Verdict
from tests.chaos.traces import MS, Script

G1, G2, G3, CHURN = ("g1/0", 1), ("g2/0", 2), ("g3/0", 3), ("churn/0", 4)
Members = list[tuple[str, int]]


def asked(
    zoned: Members, before: Members, after: Members, *, state: str = "serving", all_brokers: Members | None = None
) -> CheckResult:
    script = Script()
    for name, _ in (G1, G2, G3):
        script.truth(1_000, name, state)
    script.op(2_000, 2_005, "probe", "route", "t", members=before)
    script.op(2_010, 2_015, "probe", "zone-route", "t", "south", members=zoned)
    script.op(2_016, 2_018, "probe", "cluster", "cluster", members=before if all_brokers is None else all_brokers)
    return check_agreement(script.op(2_020, 2_025, "probe", "route", "t", members=after).story)


def test_zones() -> None:
    assert [zone_of(broker) for broker in ("g1/0", "g2/0", "g3/0", "churn/0", "gone/0")] == [
        "south",
        "north",
        "south",
        None,
        None,
    ]


@pytest.mark.parametrize(
    ("zoned", "before", "after"),
    [
        ([G1, G3], [G1, G2, G3, CHURN], [G1, G2, G3, CHURN]),
        ([G1], [G1, G2], [G1, G2, G3]),  # g3 registered after the question
        ([G1], [G1, G3], [G1, ("g3/0", 5)]),  # g3 registered again, and may have been away in between
        ([], [G2, CHURN], [G2, CHURN]),
    ],
)
def test_the_part_of_the_route_in_the_zone_is_right(zoned: Members, before: Members, after: Members) -> None:
    found = asked(zoned, before, after)
    assert found.verdict is Verdict.VALID, found.findings


@pytest.mark.parametrize("zoned", [[G1, G2, G3], [G1, G3, CHURN], [G1], [], [G1, ("g3/0", 2)]])
def test_another_answer_is_wrong(zoned: Members) -> None:
    route = [G1, G2, G3, CHURN]
    found = asked(zoned, route, route)
    assert (found.verdict, found.count) == (Verdict.VIOLATED, 1), found.findings


def test_a_broker_that_a_node_may_drop_is_not_judged() -> None:
    route = [G1, G3]
    assert asked([G1], route, route, state="exposed").verdict is Verdict.VALID


def test_without_questions_nothing_is_judged() -> None:
    assert check_agreement(Script().story).idle


@pytest.mark.parametrize(
    ("listed", "verdict"), [([G1, G2, G3], Verdict.VALID), ([G1, G3], Verdict.VIOLATED), ([], Verdict.VIOLATED)]
)
def test_the_list_of_all_brokers_has_those_of_the_routes(listed: Members, verdict: Verdict) -> None:
    route = [G1, G2, G3]
    assert asked([G1, G3], route, route, all_brokers=listed).verdict is verdict


@pytest.mark.parametrize(("at", "verdict"), [(12_200, Verdict.VIOLATED), (2_000, Verdict.VALID)])
def test_at_the_end_the_list_of_all_brokers_has_those_of_all_routes(at: float, verdict: Verdict) -> None:
    """A route that was read two seconds earlier counts only at the end, when nothing changes. The list lacks g3."""
    script = Script()
    for name, _ in (G1, G2, G3):
        script.truth(1_000, name, "serving")
    for time in (at, at + 300):
        script.op(time, time + 5, "probe", "route", "u", members=[G1])
        script.op(time + 2_000 * (time > at), time + 2_005 * (time > at) + 6, "probe", "route", "t", members=[G3])
    script.op(at + 100, at + 110, "probe", "cluster", "cluster", members=[G1, G2])
    assert check_agreement(script.story).verdict is verdict


@pytest.mark.parametrize(
    ("kind", "key", "value", "listed", "verdict"),
    [
        ("topic-list", "topics", None, ["t", "u"], Verdict.VALID),
        ("topic-list", "topics", None, ["u"], Verdict.VIOLATED),
        ("topic-list", "topics", LIST_IS_DISABLED, [], Verdict.UNKNOWN),
        ("member-group", "g1", None, ["g1/0"], Verdict.VALID),
        ("member-group", "g1", None, ["g1/1"], Verdict.VIOLATED),
        ("member-group", "g3", None, [], Verdict.VALID),  # no route shows g3
    ],
)
def test_topic_lists_and_member_groups_have_what_the_routes_show(
    kind: str, key: str, value: str | None, listed: list[str], verdict: Verdict
) -> None:
    script = Script()
    for name, _ in (G1, G2):
        script.truth(1_000, name, "serving")
    for at in (2_000, 2_020):
        script.op(at, at + 5, "probe", "route", "t", members=[G1, G2])
    script.op(2_010, 2_015, "probe", kind, key, value, members=[(name, 0) for name in listed])
    assert check_agreement(script.story).verdict is verdict


@pytest.mark.parametrize(("topics", "verdict"), [(["new"], Verdict.VALID), (["old"], Verdict.VIOLATED)])
def test_topic_lists_have_the_topics_that_come_and_go(topics: list[str], verdict: Verdict) -> None:
    script = Script()
    script.records.append(Truth(1_000 * MS, "fickle/0", 1, "serving", True, "7", ["new"], 1_000))
    for at in (2_000, 2_020):
        script.op(at, at + 5, "probe", "topic", "new", "7").op(at, at + 5, "probe", "topic", "old", None)
    script.op(2_010, 2_015, "probe", "topic-list", "topics", members=[(topic, 0) for topic in topics])
    assert check_agreement(script.story).verdict is verdict


@pytest.mark.parametrize(
    ("deleted", "outcome", "verdict"),
    [
        (1_500, "ok", Verdict.VIOLATED),
        (1_500, "indeterminate", Verdict.VALID),  # the topic may have been created late, and deleted again
        (2_017, "ok", Verdict.VALID),  # the topic may have been created and deleted between the two questions
        (None, "ok", Verdict.VALID),
    ],
)
def test_the_list_of_topics_has_no_topic_that_was_deleted(deleted: float | None, outcome: str, verdict: Verdict) -> None:
    script = Script()
    script.records.append(Truth(1_000 * MS, "fickle/0", 1, "serving", True, "7", ["new"], 1_000))
    if deleted is not None:
        script.op(deleted, deleted + 2, "mqadmin", "delete-topic", "old", outcome=outcome)
    for time in (2_000, 2_020):
        script.op(time, time + 5, "probe", "topic", "new", "7").op(time, time + 5, "probe", "topic", "old", None)
    script.op(2_010, 2_015, "probe", "topic-list", "topics", members=[("new", 0), ("old", 0)])
    assert check_agreement(script.story).verdict is verdict


@pytest.mark.parametrize(
    ("listed", "held", "wrong"),
    [([G1, G2], [("k", "v")], 0), ([G1], [("k", "v")], 1), ([G1, G2], [("k", "u")], 1), ([G1, G2], [], 1)],
)
def test_at_the_end_the_tables_of_the_admin_port_have_what_clients_read(
    listed: Members, held: list[tuple[str, str]], wrong: int
) -> None:
    script = Script().op(11_000, 11_010, "c1", "put", "k", "v")
    for name, _ in (G1, G2):
        script.truth(1_000, name, "serving")
    for at in (12_100, 12_400):
        script.op(at, at + 5, "probe", "route", "t", members=[G1, G2])
    script.op(12_100, 12_105, "probe", "get", "k", "v").saw(12_200, "n1", listed, 5).saw_kv(12_200, "n1", held, 5)
    found = check_agreement(script.saw(11_500, "n1", [], 4).saw_kv(11_005, "n1", [], 4).story)
    assert (found.verdict, found.count) == (Verdict.VIOLATED if wrong else Verdict.VALID, wrong), found.findings

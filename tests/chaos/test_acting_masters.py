"""The checks of the group with an acting master: which answers are right at any moment, and which notifications must arrive."""

from collections.abc import Callable

import pytest

from replicated_namesrv.chaos.checks import judge
from replicated_namesrv.chaos.checks.acting_masters import ACTING, NOTIFICATIONS, check_acting, check_notifications
from replicated_namesrv.chaos.checks.story import CheckResult
from replicated_namesrv.chaos.records import Member
from replicated_namesrv.verify import Verdict
from tests.chaos.traces import NODES, Script

MASTER, SLAVE, ACTING_SLAVE = ("deputy/0", 0), ("deputy/1", 1), ("deputy/1", 0)
LEAVES, RETURNS = 1_500.0, 2_200.0
AWAY, BACK = 1_800.0, 2_400.0
END = 13_500.0
"""After the end of the last phase that is judged."""
Case = Callable[[Script], Script]


def sends(script: Script, at: float, broker: str, kind: str = "register", *nodes: str, outcome: str = "ok") -> Script:
    for node in nodes or NODES:
        script.op(at, at + 10, broker, f"{kind}-copy", broker, "1", node=node, outcome=outcome)
    return script


def lists(script: Script, at: float, *ids: tuple[str, int], perm: str | None = "6", node: str = "n1") -> Script:
    return script.op(at, at + 5, "probe", "roles", "deputy", perm if ids else None, node=node, members=ids)


def hears(script: Script, at: float, *least: tuple[str, int], offline: str | None = None, broker: str = "deputy/1") -> Script:
    return script.op(at, at, broker, "notified", "deputy", offline, members=least)


def left_and_returned(mode: str = "cp") -> Script:
    """The master leaves and returns before the first fault. The time-out is five seconds."""
    script = Script(mode).busy("c1", 0, 13_000)
    for broker in ("deputy/0", "deputy/1"):
        script.truth(1_000, broker, "starting", timeout_ms=5_000)
        sends(script, 1_100, broker).truth(1_120, broker, "serving", timeout_ms=5_000)
    script.truth(LEAVES, "deputy/0", "stopping", timeout_ms=5_000)
    sends(script, LEAVES, "deputy/0", "unregister").truth(LEAVES + 20, "deputy/0", "stopped", timeout_ms=5_000)
    script.truth(RETURNS, "deputy/0", "starting", life=2, timeout_ms=5_000)
    return sends(script, RETURNS, "deputy/0").truth(RETURNS + 20, "deputy/0", "serving", life=2, timeout_ms=5_000)


GOOD: dict[str, Case] = {
    "before": lambda run: lists(run, 1_300, MASTER, SLAVE),
    "while the master is away": lambda run: lists(run, AWAY, ACTING_SLAVE, perm="4"),
    "after": lambda run: lists(run, BACK, MASTER, SLAVE),
    "while the master leaves": lambda run: lists(lists(run, LEAVES + 2, MASTER, SLAVE), AWAY, ACTING_SLAVE, perm="4"),
    "nothing before the first registration": lambda run: lists(lists(run, 1_050), BACK, MASTER, SLAVE),
    "a delayed copy lists the master again": lambda run: lists(
        lists(sends(run, 1_400, "deputy/0", "register", "n2", outcome="indeterminate"), AWAY, MASTER, SLAVE, node="n2"),
        BACK,
        MASTER,
        SLAVE,
    ),
    "the slave was dead": lambda run: lists(
        lists(run.truth(2_300, "deputy/1", "dead", timeout_ms=5_000), BACK, MASTER), 1_300, MASTER, SLAVE
    ),
}
BAD: dict[str, Case] = {
    "the slave does not act": lambda run: lists(run, AWAY, SLAVE, perm="4"),
    "the acting master is writable": lambda run: lists(run, AWAY, ACTING_SLAVE),
    "the master stays listed": lambda run: lists(run, AWAY, MASTER, SLAVE),
    "nobody acts": lambda run: lists(run, AWAY),
    "the slave still acts": lambda run: lists(run, BACK, MASTER, ("deputy/1", 0)),
    "the master is not writable": lambda run: lists(run, BACK, MASTER, SLAVE, perm="4"),
    "the slave is missing": lambda run: lists(run, BACK, MASTER),
    "the master is missing": lambda run: lists(run, BACK, ACTING_SLAVE, perm="4"),
}


@pytest.mark.parametrize("mode", ["ap", "cp"])
@pytest.mark.parametrize("case", GOOD)
def test_right_answers_are_not_blamed(case: str, mode: str) -> None:
    found = check_acting(GOOD[case](left_and_returned(mode)).story)
    assert found.verdict is Verdict.VALID, found.findings


@pytest.mark.parametrize("mode", ["ap", "cp"])
@pytest.mark.parametrize("case", BAD)
def test_wrong_answers_are_found(case: str, mode: str) -> None:
    found = check_acting(BAD[case](left_and_returned(mode)).story)
    assert (found.verdict, found.count) == (Verdict.VIOLATED, 1), found.findings


@pytest.mark.parametrize(("node", "verdict"), [("n1", Verdict.VIOLATED), ("n2", Verdict.VALID)])
def test_an_independent_node_is_judged_by_what_it_received(node: str, verdict: Verdict) -> None:
    script = (
        Script("ap").truth(1_000, "deputy/0", "serving", timeout_ms=5_000).truth(1_000, "deputy/1", "serving", timeout_ms=5_000)
    )
    sends(sends(script, 1_100, "deputy/0"), 1_100, "deputy/1")
    sends(script, LEAVES, "deputy/0", "unregister", "n1").truth(LEAVES, "deputy/0", "stopping", timeout_ms=5_000)
    assert check_acting(lists(script, AWAY, MASTER, SLAVE, node=node).story).verdict is verdict


def told_of_both(run: Script) -> Script:
    return hears(hears(run, LEAVES + 8, SLAVE, offline="deputy/0"), RETURNS + 8, MASTER)


NOTIFIED: dict[str, Case] = {
    "of both": told_of_both,
    "later than the answer": lambda run: hears(hears(run, LEAVES + 300, SLAVE, offline="deputy/0"), RETURNS + 300, MASTER),
    "by each node": lambda run: told_of_both(told_of_both(run)),
    "of the departure when the run ends": lambda run: hears(told_of_both(run), END, SLAVE, offline="deputy/0"),
}
NOT_NOTIFIED: dict[str, Case] = {
    "of the departure": lambda run: hears(run, RETURNS + 8, MASTER),
    "of a broker that does not exist": lambda run: hears(told_of_both(run), BACK, ("deputy/2", 2)),
    "of a departed broker that does not exist": lambda run: hears(told_of_both(run), BACK, MASTER, offline="127.0.0.1:1"),
    "of a wrong id": lambda run: hears(told_of_both(run), BACK, ("deputy/1", 0)),
    "that the slave is the first while the master is there": lambda run: hears(told_of_both(run), 9_000, SLAVE),
}


@pytest.mark.parametrize("mode", ["ap", "cp"])
@pytest.mark.parametrize("case", NOTIFIED)
def test_notifications_are_right(case: str, mode: str) -> None:
    found = check_notifications(NOTIFIED[case](left_and_returned(mode)).story)
    assert (found.verdict, found.looked_at) == (Verdict.VALID, 2), found.findings


@pytest.mark.parametrize("mode", ["ap", "cp"])
@pytest.mark.parametrize("case", NOT_NOTIFIED)
def test_a_missing_or_wrong_notification_is_found(case: str, mode: str) -> None:
    found = check_notifications(NOT_NOTIFIED[case](left_and_returned(mode)).story)
    assert (found.verdict, found.count) == (Verdict.VIOLATED, 1), found.findings


def test_a_notification_need_not_arrive_during_a_fault() -> None:
    script = left_and_returned().fault(1_550, 1_600, ["n1>n2"])
    found = check_notifications(script.story)
    assert (found.verdict, found.looked_at) == (Verdict.UNKNOWN, 0)
    assert found.left_out == {"notifications near a fault": 2}


def test_a_slow_machine_makes_a_missing_notification_unknown() -> None:
    """The harness stalls, so the clients ask nothing for two seconds."""
    script = left_and_returned()
    script.records = [one for one in script.records if not 4_000e6 < one.time_ns < 7_000e6 or one.record == "phase"]
    assert check_notifications(script.story).verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(("heard", "verdict"), [(RETURNS + 2_300, Verdict.VIOLATED), (RETURNS + 1_500, Verdict.UNKNOWN)])
def test_a_notification_that_is_much_too_late_is_found_on_a_slow_machine_too(heard: float, verdict: Verdict) -> None:
    """The slowdown is 1.1 times its limit, so a notification may take 2.2 s instead of 1 s."""
    script = hears(hears(left_and_returned(), LEAVES + 15, SLAVE, offline="deputy/0"), heard, MASTER)
    assert check_notifications(script.slowed(3.3).story).verdict is verdict


def of(script: Script, name: str) -> CheckResult:
    (found,) = (check for check in judge(script.story, script.mode).checks if check.name == name)
    return found


def test_a_run_that_asked_nothing_is_not_judged() -> None:
    """Runs of earlier versions do not have these questions."""
    silent = Script()
    assert of(silent, ACTING).idle
    assert of(silent, NOTIFICATIONS).idle
    asked = lists(Script(), AWAY, MASTER)
    assert (of(asked, NOTIFICATIONS).verdict, of(asked, NOTIFICATIONS).due) == (Verdict.UNKNOWN, True)


def test_a_member_of_a_notification_is_a_name_with_its_id() -> None:
    (op,) = (op for op in hears(Script(), 1_000, SLAVE, offline="deputy/0").story.ops if op.kind == "notified")
    assert (op.members, op.value) == ((Member("deputy/1", "1"),), "deputy/0")

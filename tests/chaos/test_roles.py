"""The check of role switches: which answers about the pair are right, at any moment of a run."""

from collections.abc import Callable

import pytest

from replicated_namesrv.chaos.checks import judge
from replicated_namesrv.chaos.checks.role_switches import ROLES, check_roles
from replicated_namesrv.chaos.checks.story import CheckResult
from replicated_namesrv.verify import Verdict
from tests.chaos.traces import NODES, Script


def registers(script: Script, at: float, broker: str, broker_id: int, *nodes: str, outcome: str = "ok") -> Script:
    """A registration of ``broker`` under ``broker_id`` at these nodes."""
    for node in nodes or NODES:
        script.op(at, at + 10, broker, "register-copy", f"pair/{broker_id}", "1", node=node, outcome=outcome)
    return script


def lists(script: Script, at: float, node: str, *ids: tuple[str, int], perm: str = "6") -> Script:
    """An answer about the pair."""
    return script.op(at, at + 5, "probe", "roles", "pair", perm if ids else None, node=node, members=ids)


def switched(mode: str = "cp") -> Script:
    """Broker 0 becomes slave 2, then broker 1 becomes master. The time-out is five seconds."""
    script = Script(mode).busy("c1", 0, 13_000)
    script.truth(1_000, "pair/0", "serving", timeout_ms=5_000)
    for broker_id in (0, 1):
        registers(script, 1_100, f"pair/{broker_id}", broker_id)
    registers(script, 4_000, "pair/0", 2)
    return registers(script, 4_100, "pair/1", 0)


BEFORE, BETWEEN, AFTER = 3_000.0, 4_050.0, 4_500.0
MASTER, SLAVE = ("pair/0", 0), ("pair/1", 1)
OLD_MASTER, NEW_MASTER = ("pair/0", 2), ("pair/1", 0)


def told(script: Script, at: float, master: str | None, slave: str = "pair/1") -> Script:
    """The answer of the first node to a registration of the slave names this master."""
    return script.op(at, at + 5, slave, "master", slave, master)


Case = Callable[[Script], Script]
GOOD: dict[str, Case] = {
    "before": lambda run: lists(run, BEFORE, "n1", MASTER, SLAVE),
    "between the two switches": lambda run: lists(run, BETWEEN, "n1", OLD_MASTER, SLAVE),
    "while a switch is under way": lambda run: lists(lists(run, 4_002, "n1", MASTER, SLAVE), 4_002, "n2", OLD_MASTER, SLAVE),
    "the slave is told its master": lambda run: lists(told(run, BEFORE, "pair/0"), BEFORE, "n1", MASTER, SLAVE),
    "the slave is told its new master": lambda run: lists(
        told(run, AFTER, "pair/1", "pair/0"), AFTER, "n1", OLD_MASTER, NEW_MASTER
    ),
    "there may be no master between the switches": lambda run: lists(told(run, BETWEEN, None), BETWEEN, "n1", OLD_MASTER, SLAVE),
    "after": lambda run: lists(run, AFTER, "n3", OLD_MASTER, NEW_MASTER),
    "a delayed copy moves the broker back": lambda run: lists(
        registers(run, 3_500, "pair/0", 0, "n2", outcome="indeterminate"), AFTER, "n2", MASTER
    ),
    "the broker was dead": lambda run: lists(run.truth(4_300, "pair/0", "dead", timeout_ms=5_000), AFTER, "n1", OLD_MASTER),
}
BAD: dict[str, Case] = {
    "still master after its switch": lambda run: lists(run, BETWEEN, "n2", MASTER, SLAVE),
    "still slave after its switch": lambda run: lists(run, AFTER, "n2", OLD_MASTER, SLAVE),
    "under both ids": lambda run: lists(run, AFTER, "n1", OLD_MASTER, ("pair/0", 3), NEW_MASTER),
    "under an id that it never had": lambda run: lists(run, AFTER, "n1", ("pair/0", 1), NEW_MASTER),
    "not listed": lambda run: lists(run, AFTER, "n1", NEW_MASTER),
    "no longer writable": lambda run: lists(run, AFTER, "n1", OLD_MASTER, NEW_MASTER, perm="4"),
    "the slave is told no master": lambda run: lists(told(run, BEFORE, None), BEFORE, "n1", MASTER, SLAVE),
    "the new slave is told no master": lambda run: lists(told(run, AFTER, None, "pair/0"), AFTER, "n1", OLD_MASTER, NEW_MASTER),
    "the slave is told its own name": lambda run: lists(told(run, BEFORE, "pair/1"), BEFORE, "n1", MASTER, SLAVE),
    "the slave is told the old master": lambda run: lists(
        told(run, AFTER, "pair/0", "pair/0"), AFTER, "n1", OLD_MASTER, NEW_MASTER
    ),
}


@pytest.mark.parametrize("mode", ["ap", "cp"])
@pytest.mark.parametrize("case", GOOD)
def test_right_answers_are_not_blamed(case: str, mode: str) -> None:
    found = check_roles(GOOD[case](switched(mode)).story)
    assert found.verdict is Verdict.VALID, found.findings


@pytest.mark.parametrize("mode", ["ap", "cp"])
@pytest.mark.parametrize("case", BAD)
def test_wrong_answers_are_found(case: str, mode: str) -> None:
    found = check_roles(BAD[case](switched(mode)).story)
    assert (found.verdict, found.count) == (Verdict.VIOLATED, 1), found.findings


def partly_switched(mode: str) -> Script:
    """Only n1 received the switch of broker 0."""
    script = Script(mode)
    script.truth(1_000, "pair/0", "serving", timeout_ms=5_000)
    registers(registers(script, 1_100, "pair/0", 0), 1_100, "pair/1", 1)
    return lists(registers(script, 4_000, "pair/0", 2, "n1"), AFTER, "n2", MASTER, SLAVE)


def test_an_independent_node_is_judged_by_what_it_received() -> None:
    assert check_roles(partly_switched("ap").story).verdict is Verdict.VALID
    assert check_roles(partly_switched("cp").story).verdict is Verdict.VIOLATED


@pytest.mark.parametrize(("at", "link"), [(AFTER, "pair/0>n1"), (9_500.0, "pair/1>n1")])
def test_an_independent_node_may_drop_a_broker_that_is_cut_off_or_late(at: float, link: str) -> None:
    script = lists(switched("ap").fault(3_500, 6_000, [link]), at, "n1", NEW_MASTER)
    assert check_roles(script.story).verdict is Verdict.VALID


def test_questions_without_any_answer_are_unknown() -> None:
    found = of(switched().op(AFTER, AFTER + 5, "probe", "roles", "pair", outcome="indeterminate"))
    assert (found.verdict, found.due) == (Verdict.UNKNOWN, True)


def of(script: Script) -> CheckResult:
    (found,) = (check for check in judge(script.story, script.mode).checks if check.name == ROLES)
    return found


def test_a_run_that_asked_nothing_is_not_judged() -> None:
    """Runs of earlier versions do not have these questions."""
    assert of(switched()).idle
    assert not of(GOOD["after"](switched())).idle


@pytest.mark.parametrize(("dropped", "verdict"), [(True, Verdict.UNKNOWN), (False, Verdict.VIOLATED)])
def test_slowness_explains_a_missing_master_only_if_a_node_reported_its_removal(dropped: bool, verdict: Verdict) -> None:
    script = BAD["the slave is told no master"](switched()).slowed(4.0)
    assert check_roles((script.dropped(BEFORE - 100, "pair/0") if dropped else script).story).verdict is verdict

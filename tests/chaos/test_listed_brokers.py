"""The check of the lists of brokers (106 and 901) against registrations. Each case is a correct and a wrong list."""

import pytest

from replicated_namesrv.chaos.checks.listed_brokers import check_lists
from replicated_namesrv.chaos.checks.story import CheckResult
from replicated_namesrv.verify import Verdict
from tests.chaos.traces import NODES, Script

LEAVES = 2_000


def left(mode: str = "cp") -> Script:
    """g1 and g2 register. Later g2 unregisters at all nodes."""
    script = Script(mode).busy("c1", 0, 13_000)
    for broker in ("g1/0", "g2/0"):
        script.truth(1_000, broker, "starting", timeout_ms=5_000)
        for node in NODES:
            script.op(1_100, 1_110, broker, "register-copy", broker, "1", node=node)
        script.truth(1_120, broker, "serving", timeout_ms=5_000)
    script.truth(LEAVES, "g2/0", "stopping", timeout_ms=5_000)
    for node in NODES:
        script.op(LEAVES, LEAVES + 10, "g2/0", "unregister-copy", "g2/0", "1", node=node)
    return script.truth(LEAVES + 20, "g2/0", "stopped", timeout_ms=5_000)


def asked(script: Script, at: float, *listed: str, kind: str = "cluster", key: str = "cluster", node: str = "n1") -> CheckResult:
    return check_lists(script.op(at, at + 5, "probe", kind, key, node=node, members=[(name, 0) for name in listed]).story)


@pytest.mark.parametrize("mode", ["ap", "cp"])
@pytest.mark.parametrize(
    ("at", "listed"),
    [
        (1_500, ["g1/0", "g2/0"]),
        (2_200, ["g1/0"]),
        (LEAVES + 2, ["g1/0"]),
        (LEAVES + 2, ["g1/0", "g2/0"]),
        (1_500, ["g1/0", "g2/0", "g3/0"]),
    ],
)
def test_right_lists_are_not_blamed(at: float, listed: list[str], mode: str) -> None:
    found = asked(left(mode), at, *listed)
    assert found.verdict is Verdict.VALID, found.findings


@pytest.mark.parametrize("mode", ["ap", "cp"])
@pytest.mark.parametrize(("at", "listed"), [(1_500, ["g1/0"]), (2_200, ["g1/0", "g2/0"]), (2_200, [])])
def test_wrong_lists_are_found(at: float, listed: list[str], mode: str) -> None:
    found = asked(left(mode), at, *listed)
    assert (found.verdict, found.count) == (Verdict.VIOLATED, 1), found.findings


@pytest.mark.parametrize(("listed", "verdict"), [(["g1/0"], Verdict.VALID), ([], Verdict.VIOLATED)])
def test_the_members_of_a_group_are_judged(listed: list[str], verdict: Verdict) -> None:
    assert asked(left(), 1_500, *listed, kind="member-group", key="g1").verdict is verdict


def test_another_node_may_still_list_a_broker_in_ap() -> None:
    def at_one_node(mode: str) -> Script:
        script = left(mode)
        return script.op(2_300, 2_310, "g1/0", "unregister-copy", "g1/0", "1", node="n2")

    assert asked(at_one_node("ap"), 2_400, "g1/0").verdict is Verdict.VALID
    assert asked(at_one_node("cp"), 2_400, "g1/0").verdict is Verdict.VIOLATED


def test_a_missing_broker_is_not_blamed_on_a_slow_machine() -> None:
    assert asked(left().slowed(9.0), 1_500).verdict is Verdict.UNKNOWN
    assert asked(left().slowed(9.0), 2_200, "g1/0", "g2/0").verdict is Verdict.VIOLATED

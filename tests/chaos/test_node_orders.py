"""The check that independent nodes keep the changes that they acknowledged to mqadmin. Each case is a correct and a wrong
trace."""

import pytest

from replicated_namesrv.chaos.checks.node_promises import check_node_orders
from replicated_namesrv.verify import Verdict
from tests.chaos.traces import Script


def registered(at: float) -> Script:
    """A broker with a time-out of 1 s registers at the first node, for the second time at ``at``."""
    script = Script("ap").truth(900, "g1/0", "starting").truth(950, "g1/0", "serving")
    script.op(910, 950, "g1/0", "register-copy", "g1/0", "1")
    return script.op(at, at + 10, "g1/0", "register-copy", "g1/0", "1")


CASES: dict[str, tuple[Script, Script]] = {
    "a node answers what mqadmin changed there": (
        registered(1500)
        .op(1600, 1610, "mqadmin", "write-perm", "g1/0", "4")
        .op(1700, 1710, "probe", "perm", "g1/0", "4")
        .op(1700, 1710, "probe", "perm", "g1/0", "6", node="n2"),
        registered(1500).op(1600, 1610, "mqadmin", "write-perm", "g1/0", "4").op(1700, 1710, "probe", "perm", "g1/0", "6"),
    ),
    "unless the broker registered anew, or may have been dropped": (
        registered(1500)
        .op(1520, 1530, "mqadmin", "delete-topic", "t-old")
        .op(1540, 1550, "probe", "topic", "t-old", None)
        .op(1600, 1610, "mqadmin", "write-perm", "g1/0", "4")
        .op(2620, 2630, "probe", "perm", "g1/0", "6")
        .op(2650, 2660, "g1/0", "register-copy", "g1/0", "2")
        .op(2700, 2710, "probe", "perm", "g1/0", "6"),
        registered(1500)
        .op(1600, 1610, "mqadmin", "write-perm", "g1/0", "4")
        .op(2000, 2010, "g1/0", "register-copy", "g1/0", "1")
        .op(2100, 2110, "probe", "perm", "g1/0", "6"),
    ),
    "unless an earlier order without an answer may arrive late": (
        registered(1500)
        .op(1540, 1550, "mqadmin", "write-perm", "g1/0", "6", outcome="indeterminate")
        .op(1600, 1610, "mqadmin", "write-perm", "g1/0", "4")
        .op(1700, 1710, "probe", "perm", "g1/0", "6")
        .op(1700, 1710, "probe", "perm", "g1/0", "6", node="n2")
        .op(1520, 1530, "mqadmin", "delete-topic", "t-old")
        .op(1540, 1550, "probe", "topic", "t-old", None),
        registered(1500)
        .op(1540, 1550, "mqadmin", "write-perm", "g1/0", "6")
        .op(1600, 1610, "mqadmin", "write-perm", "g1/0", "4")
        .op(1700, 1710, "probe", "perm", "g1/0", "6"),
    ),
    "a deleted topic stays away, unless a registration with it may be late": (
        Script("ap")
        .op(1000, 1010, "g1/0", "register-copy", "g1/0", "1")
        .op(1100, 1110, "mqadmin", "delete-topic", "t-old")
        .op(1200, 1210, "probe", "topic", "t-old", None)
        .op(1300, 1310, "mqadmin", "delete-topic", "t")
        .op(1350, 1360, "g1/0", "register-copy", "g1/0", "1")
        .op(1400, 1410, "probe", "topic", "t", "1"),
        Script("ap")
        .op(1000, 1010, "g1/0", "register-copy", "g1/0", "1")
        .op(1300, 1310, "mqadmin", "delete-topic", "t")
        .op(1400, 1410, "probe", "topic", "t", "1"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_bad_trace_is_found_and_the_good_one_is_not(case: str) -> None:
    good, bad = (check_node_orders(script.story) for script in CASES[case])
    assert (good.verdict, good.count) == (Verdict.VALID, 0), good.findings
    assert (bad.verdict, bad.count) == (Verdict.VIOLATED, 1), bad.findings


def test_answers_after_which_a_registration_may_have_undone_the_change_are_counted() -> None:
    good, _ = (check_node_orders(script.story) for script in CASES["unless the broker registered anew, or may have been dropped"])
    assert (good.looked_at, sum(good.left_out.values())) == (1, 2)

"""Requests must be answered while nothing is wrong. Each case is a correct and a wrong trace."""

import pytest

from replicated_namesrv.chaos.checks.quiet_requests import check_quiet_requests
from replicated_namesrv.verify import Verdict
from tests.chaos.test_checks import with_renewals
from tests.chaos.traces import Script


def failing(at: float, *, outcome: str = "indeterminate", node: str = "n1") -> Script:
    """A route look-up at ``at`` fails."""
    return Script().busy("c1", 1000, 2500).op(at, at + 5, "c2", "route", "t", outcome=outcome, node=node)


CASES: dict[str, tuple[Script, Script]] = {
    "every request is answered": (Script().busy("c1", 1000, 2500), failing(1200)),
    "a refusal is no answer": (Script().busy("c1", 1000, 2500), failing(1200, outcome="fail")),
    "unless there is a fault": (failing(4000).fault(3000, 8000), failing(2900).fault(3000, 8000)),
    "unless a fault ended shortly before": (failing(12_100).fault(3000, 9500), failing(12_600).fault(3000, 9500)),
    "unless the nodes may not have recovered yet": (failing(11_900).fault(3000, 8000), failing(11_900)),
    "unless there is an election": (failing(1900).elected(2500, "n2"), failing(1900).elected(3500, "n2")),
    "the first report of a leader is no election": (Script().busy("c1", 1000, 2500), failing(1200).elected(500, "n1")),
    "unless nodes are still starting": (failing(900), failing(1100)),
    "unless the node is no member": (failing(1200, node="n4"), failing(1200, node="n3")),
    "unless the run ended before": (
        Script().busy("c1", 1000, 2500).op(1200, None, "c2", "route", "t"),
        Script().busy("c1", 1000, 2500).op(1200, 1300, "c2", "route", "t", outcome="indeterminate"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_bad_trace_is_found_and_the_good_one_is_not(case: str) -> None:
    good, bad = (check_quiet_requests(with_renewals(script)) for script in CASES[case])
    assert (good.verdict, good.count) == (Verdict.VALID, 0), good.findings
    assert (bad.verdict, bad.count) == (Verdict.VIOLATED, 1), bad.findings


def test_a_run_without_a_quiet_time_is_unknown() -> None:
    assert check_quiet_requests(Script().fault(0, 13_000).busy("c1", 1000, 2500).story).verdict is Verdict.UNKNOWN

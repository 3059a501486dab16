"""Times are not judged where the machine, and not the cluster, may have been slow. Other violations are judged there, too."""

import dataclasses

import pytest

from replicated_namesrv.chaos.checks.fence import check_fence
from replicated_namesrv.chaos.checks.final import check_resurrection
from replicated_namesrv.chaos.checks.linear import check_registration
from replicated_namesrv.chaos.checks.node_promises import check_node_registrations
from replicated_namesrv.chaos.checks.timing import check_availability, check_convergence
from replicated_namesrv.chaos.records import Phase
from replicated_namesrv.verify import Verdict
from tests.chaos.test_checks import BOTH, at_one_node, everywhere, with_renewals, without_majority
from tests.chaos.traces import Script


def test_a_look_without_answer_is_no_divergence_on_a_busy_machine() -> None:
    """A single look without an answer, at the end or long after the nodes had agreed, is not divergence. Lasting silence is."""
    agreed = everywhere(everywhere(Script().fault(3000, 8000), 1000, BOTH), 9000, BOTH)
    for script in (agreed.saw(12_500, "n2", None), everywhere(Script(), 1000, BOTH).saw(10_500, "n2", None)):
        found = check_convergence(with_renewals(script))
        assert found.verdict is Verdict.UNKNOWN
        assert "busy machine" in found.findings[0]
    assert check_convergence(with_renewals(agreed.saw(9_500, "n2", None))).verdict is Verdict.VIOLATED


def test_times_are_not_judged_where_the_harness_stood_still() -> None:
    """If nothing was recorded for some seconds, no verdict on the cluster is possible."""
    bad = Script().busy("c1", 1000, 3000).busy("c1", 9500, 12000)
    assert check_availability(bad.story).verdict is Verdict.UNKNOWN


def test_a_run_in_which_little_is_asked_is_no_harness_that_stood_still() -> None:
    """While no client is served, all clients except the sender wait. If the sender sends once in two seconds, there is a record
    only every two seconds."""
    script = Script().busy("c1", 1000, 3000).busy("c1", 9500, 12000)
    for at in range(0, 13_000, 2_000):
        script.elected(at, "n1")
    assert check_availability(script.story).verdict is Verdict.UNKNOWN
    story = script.story
    story.manifest["scenario"]["workload"]["sends_per_s"] = 0.5
    assert check_availability(story).verdict is Verdict.VIOLATED


@pytest.mark.parametrize("next_phase", ["steady", "heal"])
def test_times_are_not_judged_where_other_load_took_the_cores(next_phase: str) -> None:
    script = Script().busy("c1", 1000, 3000).busy("c1", 9500, 12000)
    assert check_availability(with_renewals(script)).verdict is Verdict.VIOLATED
    script.records = [
        dataclasses.replace(record, slowdown=4.5 if record.phase == next_phase else 1.2) if isinstance(record, Phase) else record
        for record in script.records
    ]
    found = check_availability(with_renewals(script))
    assert found.verdict is Verdict.UNKNOWN
    assert "waited 3.5 times as long" in found.findings[0]


@pytest.mark.parametrize(("begin", "verdict"), [(6600, Verdict.UNKNOWN), (6800, Verdict.VIOLATED)])
def test_a_fence_that_is_much_too_late_is_found_on_a_busy_machine_too(begin: float, verdict: Verdict) -> None:
    """The slowdown is 1.1 times its limit, so the slack of 1 s is 2.2 s."""
    script = (
        without_majority().op(begin, begin + 10, "c1", "route", "t", members=[]).op(9000, 9010, "c1", "route", "t", members=[])
    )
    for at in range(0, 13_000, 100):  # otherwise the harness seems to stall
        script.op(at, at + 1, "c2", "route", "idle", node="n2", members=[])
    assert check_fence(script.slowed(3.3).story).verdict is verdict


def test_an_old_registration_is_held_against_a_node_on_a_busy_machine_too() -> None:
    """Nothing is recorded for seconds here. A broker that is not listed may have been too slow, but load does not explain an
    older version."""
    missing = at_one_node(1500, 7).op(1520, 1600, "c1", "route", "t", members=BOTH[1:])
    assert check_node_registrations(missing.story).verdict is Verdict.UNKNOWN
    old = at_one_node(1500, 7).op(1520, 1600, "c1", "route", "t", members=BOTH)
    assert check_node_registrations(old.story).verdict is Verdict.VIOLATED


def test_times_are_not_judged_where_clients_hardly_got_through_before_any_fault() -> None:
    script = Script().busy("c1", 1000, 2000).busy("pinned-n1", 1000, 3000, every=400)
    assert check_availability(with_renewals(script)).verdict is Verdict.VIOLATED, "nobody asks at a known pace"
    story = script.story
    story.kinds["pinned-n1"] = "pinned"
    story.manifest["scenario"]["workload"]["lookups_per_s"] = 10.0
    assert story.pace == pytest.approx(0.25)
    found = check_availability(story)
    assert found.verdict is Verdict.UNKNOWN
    assert "25% of the operations" in found.findings[0]


@pytest.mark.parametrize("answered", [True, False])
def test_an_earlier_registration_may_arrive_at_a_paused_node_after_its_broker_left(answered: bool) -> None:
    """The third node does not run while the broker sends two versions, and reads both after the broker left."""
    script = Script().fault(800, 2800, name="pause", node="n3")
    script.truth(900, "g2/0", "starting", version=2).op(910, 950, "g2/0", "register", "g2/0", "2")
    script.truth(950, "g2/0", "serving", version=2)
    script.op(910, 1900, "g2/0", "register-copy", "g2/0", "2", node="n3", outcome="indeterminate")
    script.op(2000, 2050, "g2/0", "register", "g2/0", "3").truth(2050, "g2/0", "serving", version=3)
    if answered:
        script.op(2000, 3500, "g2/0", "register-copy", "g2/0", "3", node="n3")
    script.truth(3000, "g2/0", "stopping", version=3).op(3000, 3050, "g2/0", "unregister", "g2/0", "3")
    late = script.op(3200, 3210, "c1", "route", "t", members=[("g2/0", 3 if answered else 2)]).story
    for check in (check_registration, check_resurrection):
        assert check(late).verdict is not Verdict.VIOLATED, check(late).findings


def test_an_earlier_registration_does_not_replace_a_newer_one_while_its_broker_lives() -> None:
    script = Script().truth(900, "g2/0", "starting", version=2).op(910, 950, "g2/0", "register", "g2/0", "2")
    script.op(910, 1900, "g2/0", "register-copy", "g2/0", "2", node="n3", outcome="indeterminate")
    script.op(2000, 2050, "g2/0", "register", "g2/0", "3").op(2200, 2210, "c1", "route", "t", members=[("g2/0", 2)])
    script.truth(3000, "g2/0", "stopping", version=3).op(3000, 3050, "g2/0", "unregister", "g2/0", "3")
    assert check_registration(script.story).verdict is Verdict.VIOLATED

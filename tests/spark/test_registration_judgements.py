"""Registrations and look-ups become histories. Runs written by hand contain the cases that are easily judged wrong."""

import pytest

from replicated_namesrv.spark.histories import Distance, KeyJudgement
from replicated_namesrv.spark.registration_judgements import LATE_MAX, together
from tests.spark.judged_runs import CLOCK_UNCERTAINTY_NS, UNIT_MS, UNIT_S, Tables, Values
from tests.spark.told_runs import TOLD

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

WHOLE = ("all", "all", "all")


def whole(found: Values, run: str, metric: str) -> float | None:
    assert run in TOLD
    return found.get((run, metric), {}).get(WHOLE)


@pytest.mark.parametrize(
    ("run", "legal"),
    [
        ("seen", True),
        ("missing though alive", False),
        ("removed after its death", True),
        ("removed and back", False),
        ("brought back by a late copy", True),
        ("a copy of an overtaken version", False),
        ("a copy that was answered", False),
        ("an old version", False),
        ("one of two is old", False),
        ("registered in vain", False),
        ("unregistered", True),
        ("unregistered and back", False),
    ],
)
def test_what_a_correct_cluster_may_answer_is_no_violation(found: Values, run: str, legal: bool) -> None:
    assert whole(found, run, "route_linearizable_keys") == legal
    during = whole(found, run, "route_anomalous_reads")
    assert during is None or (during == 0) == legal
    assert (whole(found, run, "route_delta_max") == 0) == legal


@pytest.mark.parametrize("run", ["too many late copies", "exposed once", "a group of two"])
def test_brokers_of_which_not_every_change_is_known_are_not_judged(found: Values, tables: Tables, run: str) -> None:
    assert whole(found, run, "route_linearizable_keys") is None
    assert whole(found, run, "route_fresh_reads") is None
    assert whole(found, run, "yield") == 1, "the look-up itself was answered"
    assert not [row for row in tables["judged_registrations"] if row["run"] == run]
    assert LATE_MAX == 6


def test_a_look_up_is_as_stale_as_its_stalest_broker(found: Values) -> None:
    assert whole(found, "an old version", "route_versions_behind_max") == 2
    assert whole(found, "an old version", "route_staleness_max") == (20 - 13) * UNIT_MS, "since the first version it missed"
    assert whole(found, "one of two is old", "route_versions_behind_max") == 2, "of both brokers together"
    assert whole(found, "one of two is old", "route_versions_behind_mean") == 1.5
    assert whole(found, "one of two is old", "route_staleness_max") == (30 - 13) * UNIT_MS
    assert whole(found, "one of two is old", "route_fresh_reads") == 0


def test_what_nobody_wrote_has_no_age(found: Values) -> None:
    for run in ("registered in vain", "one of two is nobody's"):
        assert whole(found, run, "route_fresh_reads") == 0
        assert whole(found, run, "route_anomalous_reads") == 1
        assert whole(found, run, "route_versions_behind_max") is None
        assert whole(found, run, "route_staleness_max") is None, "not the age of the broker that was fresh"
        assert whole(found, run, "route_delta_max") is None
    assert whole(found, "a value that nobody wrote", "staleness_max") is None
    assert whole(found, "a value that nobody wrote", "window_max") == 0, "it is older than nothing"
    assert whole(found, "a value that nobody wrote", "fresh_reads") == 0


def test_what_was_removed_and_is_back_at_the_end_is_counted(found: Values) -> None:
    assert whole(found, "unregistered and back", "route_lost_writes") == 1
    assert whole(found, "unregistered and back", "route_resurrected") == 1
    assert whole(found, "unregistered", "route_resurrected") is None, "nothing was read at the end"


def test_a_removal_after_death_is_no_lost_write_and_makes_nobody_stale(found: Values) -> None:
    assert whole(found, "removed after its death", "route_fresh_reads") == 1
    assert whole(found, "removed after its death", "route_versions_behind_max") == 0


def test_judgements_of_no_distance_stay_so_together() -> None:
    parts = [KeyJudgement([], [], Distance(delta, 3, 1, 5, [5])) for delta in (None, 7)]
    assert together(parts).distance == Distance(None, 6, 2, 5, [5, 5])


def test_a_silent_node_loses_what_it_was_known_to_answer(found: Values) -> None:
    assert whole(found, "a silent node", "divergence_area_possible") == 0, "of n1 nothing is known when n0 changes"
    assert whole(found, "a silent node", "episodes_uncertain") == 0
    back = "a silent node that comes back"
    assert whole(found, back, "episodes") == 1
    assert whole(found, back, "divergence_area") == pytest.approx((58 - 51) * UNIT_S), "not since it fell silent"
    assert whole(found, back, "divergence_area_possible") == pytest.approx((61 - 51) * UNIT_S), "until the next look"


def test_a_difference_between_two_looks_is_possible_and_not_certain(found: Values) -> None:
    """The last look at n0 before its change was asked at 27 and answered at 28; the next one, at 30, shows the change. A look at
    n1, asked at 30 and answered at 31, does not show its change yet. The next one, at 33 or 35, does."""
    short, longer = "a short difference", "a longer difference"
    assert [whole(found, short, name) for name in ("episodes", "episodes_uncertain")] == [0, 1]
    assert whole(found, short, "divergence_area") == whole(found, short, "divergence_max") == 0
    assert whole(found, short, "divergence_area_possible") == pytest.approx((33 - 27) * UNIT_S)
    assert [whole(found, longer, name) for name in ("episodes", "episodes_uncertain")] == [1, 0]
    assert whole(found, longer, "divergence_area") == pytest.approx((32 - 30) * UNIT_S)
    assert whole(found, longer, "divergence_area_possible") == pytest.approx((35 - 27) * UNIT_S)
    assert whole(found, "nothing observed", "divergence_area") is None


def test_convergence_counts_from_the_repair_for_runs_whose_nodes_differed(found: Values) -> None:
    for run in ("a longer difference", "a short difference"):
        assert whole(found, run, "convergence") is None, (
            "nodes did not differ since the fault, which is no convergence in no time"
        )
        assert whole(found, run, "not_converged") is None
    assert whole(found, "a difference to the end", "convergence") is None
    assert whole(found, "a difference to the end", "not_converged") == 1
    again = "a difference after agreement"
    assert whole(found, again, "convergence") == pytest.approx((94 - 70) * UNIT_S), "not at the first agreement"
    assert whole(found, again, "agreement") == pytest.approx((97 - 70) * UNIT_S)
    repaired = "a difference and a late repair"
    assert whole(found, repaired, "convergence") == pytest.approx((94 - 85) * UNIT_S), "links were repaired after the phase began"


def test_the_probe_pauses_and_is_not_unavailable(found: Values) -> None:
    run = "a probe that pauses"
    assert whole(found, run, "pinned_unavailable_longest") == pytest.approx(10 * UNIT_S)
    assert whole(found, run, "failover_unavailable_longest") is None
    assert whole(found, run, "probe_yield") == 1


def test_without_a_final_read_nothing_is_lost(found: Values) -> None:
    for run in ("no final read", "a final read that failed"):
        assert whole(found, run, "lost_writes") is None, "no figure, rather than none lost or one lost"
    assert whole(found, "a final read of one key", "lost_writes") == 0
    assert whole(found, "a lost write", "lost_writes") == 1
    assert whole(found, "a lost write", "resurrected") == 0
    assert whole(found, "a write of unknown outcome", "lost_writes") == 0
    assert whole(found, "a deleted key that is back", "resurrected") == 1


def test_the_count_says_how_many_keys_a_loss_stands_on(tables: Tables) -> None:
    counts = {r["run"]: r["count"] for r in tables["per_run"] if (r["metric"], r["level"]) == ("lost_writes", "all")}
    assert counts["a final read of one key"] == 1, "two were written"
    assert "no final read" not in counts


def test_staleness_counts_from_the_first_unseen_acknowledged_write(found: Values) -> None:
    assert whole(found, "two missed writes", "staleness_max") == (33 - 16) * UNIT_MS
    assert whole(found, "two missed writes", "versions_behind_max") == 2
    assert whole(found, "two missed writes", "window_max") == (33 - 16) * UNIT_MS


def test_what_was_written_while_the_cluster_started_may_be_read(found: Values) -> None:
    assert whole(found, "written while the cluster started", "anomalous_reads") == 0
    assert whole(found, "written while the cluster started", "linearizable_keys") == 1
    assert whole(found, "written while the cluster started", "window_max") is None, "the write itself is of no judged phase"


def test_detection_is_for_good(found: Values) -> None:
    again = "dropped, listed and dropped again"
    assert whole(found, again, "detection_median") == pytest.approx((80 - 40) * UNIT_S)
    assert whole(found, again, "undetected") == 0.5, "n0 lists the broker to the end"
    assert whole(found, again, "detection_p90") is None, "n0 takes longer than was observed"
    run = "a mistake that death made right"
    assert whole(found, run, "mistakes") == 2
    assert whole(found, run, "mistake_duration") is None, "it was listed again in another life"
    assert whole(found, run, "mistake_recurrence") is None, "between the two it was dead"


def test_where_the_observer_stood_still_nobody_knows_who_led(found: Values) -> None:
    assert whole(found, "an observer that stood still", "leaderless") == 0
    assert whole(found, "an observer that stood still", "double_leaders") == 0


def test_the_uncertainty_of_clocks_stands_beside_what_compares_them(tables: Tables) -> None:
    rows = [row for row in tables["per_run"] if row["run"] in ("two missed writes", "an old version")]
    codes = ("window", "fresh", "staleness", "versions_behind", "delta", "conflict", "gamma")
    for row in rows:
        compares = row["metric"].removeprefix("route_").startswith(codes)
        assert row["clock_uncertainty_ms"] == (2 * CLOCK_UNCERTAINTY_NS / 1e6 if compares else None), row
    assert any(row["clock_uncertainty_ms"] for row in rows)

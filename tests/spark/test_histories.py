"""Judgements of single keys against their definitions, on thousands of small histories."""

import pytest

from replicated_namesrv.spark.histories import judge
from replicated_namesrv.spark.judgements import verdict
from replicated_namesrv.verify.attribution import NEVER, KeyEvent
from tests.spark.oracles import broken_guarantees, delta, doubled, gammas, linearizable, merged, missed, random_history, unique

SEEDS = range(1500)


def get(op: int, value: str | None, start: int, end: int, client: str = "r", final: bool = False) -> KeyEvent:
    return KeyEvent(op, client, "get", value, start, end, "ok", final)


def put(op: int, value: str, start: int, end: float, client: str = "w") -> KeyEvent:
    return KeyEvent(op, client, "put", value, start, end, "ok" if end < NEVER else "indeterminate", False)


def delete(op: int, start: int, end: int) -> KeyEvent:
    return KeyEvent(op, "w", "delete", None, start, end, "ok", False)


@pytest.mark.parametrize("seed", range(0, SEEDS.stop, 100))
def test_staleness_and_sessions_are_what_they_mean(seed: int) -> None:
    for one in range(seed, seed + 100):
        events = random_history(one)
        by_op = {event.op: event for event in events}
        for read in judge(events).reads:
            event, behind = by_op[read.op], missed(by_op[read.op], events)
            assert read.versions_behind == len(behind), f"seed {one}, operation {read.op}"
            assert read.fresh == (not behind)
            if behind:
                assert read.age_ns == event.start_ns - min(write.end_ns for write in behind)
            found = (read.read_your_writes, read.monotonic_reads, read.monotonic_writes, read.writes_follow_reads)
            assert found == broken_guarantees(event, events), f"seed {one}, operation {read.op}"


@pytest.mark.parametrize("deletes", [False, True])
def test_verdicts_anomalies_and_distances_are_what_they_mean(deletes: bool) -> None:
    """M1, M2, M7, M8: by all orders, by graphs, by trying every shift and every widening."""
    scored = 0
    for seed in range(400):
        events = random_history(seed, deletes)
        legal = linearizable(events)
        assert (verdict(events) == "valid") == legal, f"seed {seed}"
        judgement = judge(events, atomic=legal)
        anomalous = set() if legal else {read.op for read in merged(events)[1]}
        assert {read.op for read in judgement.reads if read.anomalous} == anomalous, f"seed {seed}"
        pairs, scores, early = gammas(events, legal)
        distance = judgement.distance
        assert (distance.pairs, distance.conflicts) == (pairs, len(scores)), f"seed {seed}"
        assert distance.gammas_ns == sorted(scores + early), f"seed {seed}"
        assert distance.gamma_max_ns == max([*scores, *early], default=0)
        assert distance.delta_ns == delta(events, legal), f"seed {seed}"
        scored += bool(scores)
    assert scored > 40


def test_with_deletes_distances_are_upper_bounds() -> None:
    """The shift or widening that was found is enough. Reads of "absent" need no more than the writes to which they were
    attributed."""
    moved = 0
    for seed in range(700):
        events = random_history(seed, deletes=True)
        distance = judge(events, atomic=linearizable(events)).distance
        assert len(unique(events)) == len([e for e in events if e.kind != "get" or e.outcome == "ok"])
        if distance.gamma_max_ns:
            assert linearizable(doubled(events, wider=distance.gamma_max_ns)), f"seed {seed}"
            if distance.delta_ns:
                moved += 1
                assert linearizable(doubled(events, reads_earlier=distance.delta_ns)), f"seed {seed}"
    assert moved > 50


def test_without_an_anomaly_means_linearizable() -> None:
    violated = 0
    for seed in SEEDS:
        events = random_history(seed)
        judgement = judge(events)
        legal = linearizable(events)
        violated += not legal
        assert (not any(read.anomalous for read in judgement.reads)) == legal, f"seed {seed}"
        assert (judgement.distance.conflicts == 0 and judgement.distance.gamma_max_ns == 0) == legal, f"seed {seed}"
        assert (judgement.distance.delta_ns == 0) == legal, f"seed {seed}"
    assert SEEDS.stop // 10 < violated < SEEDS.stop * 9 // 10


def test_delta_and_gamma_are_just_enough() -> None:
    """Moving reads by Delta, or widening by Gamma, makes the history atomic; a little less does not."""
    shifted = 0
    for seed in SEEDS:
        events = random_history(seed)
        distance = judge(events).distance
        if distance.gamma_max_ns == 0:
            continue
        assert linearizable(doubled(events, wider=distance.gamma_max_ns)), f"seed {seed}"
        assert not linearizable(doubled(events, wider=distance.gamma_max_ns - 1)), f"seed {seed}"
        if distance.delta_ns:
            shifted += 1
            assert linearizable(doubled(events, reads_earlier=distance.delta_ns)), f"seed {seed}"
            assert not linearizable(doubled(events, reads_earlier=distance.delta_ns - 0.5)), f"seed {seed}"
    assert shifted > 50


def test_with_deletes_no_legal_history_is_blamed() -> None:
    for seed in SEEDS:
        events = random_history(seed, deletes=True)
        if linearizable(events):
            judgement = judge(events, atomic=True)
            assert all(read.fresh and not read.anomalous and not read.monotonic_reads for read in judgement.reads), f"seed {seed}"
            assert judgement.distance.delta_ns == judgement.distance.gamma_max_ns == 0, f"seed {seed}"
        else:
            assert any(read.anomalous for read in judge(events).reads), f"seed {seed}"


def test_lost_and_resurrected() -> None:
    events = [put(1, "a", 0, 1), put(2, "b", 2, 3), get(3, "a", 10, 11, final=True)]
    assert [(read.lost, read.resurrected) for read in judge(events).reads] == [(True, False)]
    events = [put(1, "a", 0, 1), delete(2, 2, 3), get(3, "a", 10, 11, final=True)]
    assert [(read.lost, read.resurrected) for read in judge(events).reads] == [(True, True)]
    events = [put(1, "a", 0, 1), put(2, "b", 2, NEVER), get(3, "a", 10, 11, final=True)]
    assert [(read.lost, read.resurrected) for read in judge(events).reads] == [(False, False)]


def test_staleness_counts_from_the_first_unseen_write() -> None:
    events = [put(1, "a", 0, 1), put(2, "b", 2, 3), put(3, "c", 20, 21), get(4, "a", 23, 24)]
    (read,) = judge(events).reads
    assert (read.versions_behind, read.age_ns) == (2, 20)


def test_window_ends_with_the_last_old_read() -> None:
    events = [put(1, "a", 0, 1), put(2, "b", 2, 3), get(3, "a", 5, 6), get(4, "a", 9, 10), get(5, "b", 12, 13)]
    assert {window.op: (window.window_ns, window.reads_after) for window in judge(events).windows} == {1: (0, 3), 2: (6, 3)}


def test_a_value_nobody_wrote_is_an_anomaly_without_a_distance() -> None:
    judgement = judge([put(1, "a", 0, 1), get(2, "z", 5, 6)])
    assert [(read.anomalous, read.versions_behind, read.fresh) for read in judgement.reads] == [(True, None, False)]
    assert judgement.distance.delta_ns is None

"""Divergence over time against its definition at every moment."""

import random
from itertools import pairwise

import pytest

from replicated_namesrv.verify.divergence import (
    STALL_NS,
    Divergence,
    DivergenceSegment,
    Known,
    Look,
    NodeAnswer,
    convergence_ns,
    divergence_of,
    known_answers,
    segments_of,
)
from tests.spark.oracles import divergence_at, random_changes, resolved_divergence_at


def test_an_answer_is_known_until_the_next_look_and_not_across_a_stall_or_silence() -> None:
    late = 3 + 2 * STALL_NS
    looks = [Look(1, 1, "a"), Look(2, 2, "a"), Look(3, 3, "b"), Look(late, late, "b"), Look(late + 4, late + 9, None)]
    after_silence = Look(late + 12, late + 15, "b")
    expected = [Known(1, 3, "a"), Known(3, 3, "b"), Known(late, late + 4, "b"), Known(late + 12, late + 15, "b")]
    assert list(known_answers(reversed([*looks, after_silence]))) == expected


def test_divergence_of_a_run_counts_what_is_resolved() -> None:
    segments = [
        DivergenceSegment(0, 10**9, 0.5, 2, 0.0),
        DivergenceSegment(10**9, 3 * 10**9, 0.9, 3, 0.4),
        DivergenceSegment(3 * 10**9, 4 * 10**9, 0.2, 3, 0.2),
    ]
    assert divergence_of(segments) == Divergence(3.0, 0.4)
    assert divergence_of([]) == Divergence(0.0, 0.0)


def test_segments_are_what_divergence_means_at_every_moment() -> None:
    diverged = 0
    for seed in range(2000):
        changes = random_changes(seed)
        found = {
            moment: (segment.divergence, segment.nodes_known)
            for segment in segments_of(changes)
            for moment in range(segment.start_ns, segment.end_ns)
        }
        expected = {moment: value for moment in range(80) if (value := divergence_at(changes, moment)) is not None}
        assert found == expected, f"seed {seed}"
        diverged += any(value for value, _ in found.values())
    assert diverged > 1000


def test_short_differences_of_one_member_are_not_resolved() -> None:
    fewer = 0
    for seed in range(400):
        changes = random_changes(seed)
        for segment in segments_of(changes, 4):
            expected = resolved_divergence_at(changes, segment.start_ns, 4)
            assert segment.resolved == pytest.approx(expected), f"seed {seed}"
            assert segment.resolved == pytest.approx(resolved_divergence_at(changes, segment.end_ns - 1, 4)), f"seed {seed}"
            fewer += 0 < segment.resolved < segment.divergence
    assert fewer > 50


def test_neighbours_of_equal_divergence_are_one_segment() -> None:
    a, b = frozenset("a"), frozenset("b")
    changes = [NodeAnswer("n1", 0, 5, a), NodeAnswer("n1", 5, 9, b), NodeAnswer("n2", 0, 9, frozenset("c"))]
    assert len(list(segments_of(changes))) == 1


def test_convergence_is_when_the_nodes_agree_for_good_and_as_many_answer_as_had_differed() -> None:
    """M15, as the figures of chaos runs and of the analysis have it, against its definition at every moment."""
    outcomes = {"none": 0, "seen": 0, "unseen": 0}
    for seed in range(600):
        rng = random.Random(seed)
        bounds, heal_ns = sorted(rng.sample(range(60), rng.randint(2, 8))), rng.randrange(10, 40)
        segments = [
            DivergenceSegment(start, end, 1.0, rng.randint(2, 3), rng.choice((0.0, 0.0, 0.5)))
            for start, end in pairwise(bounds)
            if rng.random() < 0.9
        ]
        values = {at: (one.resolved, one.nodes_known) for one in segments for at in range(one.start_ns, one.end_ns)}
        apart = [at for at, (resolved, _) in values.items() if resolved > 0 and at >= heal_ns]
        expected: int | None = 0
        if apart:
            most = max((known for at, (_, known) in values.items() if at > max(apart)), default=0)
            expected = max(apart) + 1 - heal_ns if most >= values[max(apart)][1] else None
        assert convergence_ns(reversed(segments), heal_ns) == expected, f"seed {seed}"
        outcomes["unseen" if expected is None else "seen" if expected else "none"] += 1
    assert min(outcomes.values()) > 100, outcomes

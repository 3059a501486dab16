"""Estimates from times that were not seen to end, compared with what is known by other means."""

import random
from collections import Counter

import numpy as np
import pytest

from replicated_namesrv.spark.survival import GRID_MS, Survival, cells, reached_ms, turnbull

MS = 1_000_000


def test_without_censoring_it_is_the_share_of_the_events() -> None:
    assert Survival((time, True) for time in (1, 2, 2, 4)).steps == [(1, 0.75), (2, 0.25), (4, 0.0)]
    assert Survival([(1, True), (2, False), (3, True)]).steps == [(1, 1 - 1 / 3), (3, 0.0)]
    assert Survival([(1, True), (5, False), (5, False), (5, False)]).quantile(0.5) is None, "three had not happened when it ended"
    assert Survival([]).quantile(0.5) is None


def test_a_cell_holds_the_moment() -> None:
    for after_ns, until_ns in ((0, 1), (0, 3 * MS), (5 * MS, 5 * MS + 1), (7 * MS, 90 * MS), (10**12, 10**12 + 1)):
        first, after = cells(after_ns, until_ns)
        assert first < after
        assert GRID_MS[first] <= after_ns / 1e6
        assert after == len(GRID_MS) or until_ns / 1e6 <= GRID_MS[after]
    assert cells(5 * MS, None)[1] == len(GRID_MS)


def test_events_that_are_only_bracketed_give_the_distribution() -> None:
    """Events with a known median, looked for at random moments; a tenth is not seen to end."""
    chooser = random.Random(1)
    spans: Counter[tuple[int, int]] = Counter()
    for _ in range(4_000):
        event_ms = 100 * 2 ** chooser.gauss(0, 1)
        looks = sorted(chooser.uniform(0, 500) for _ in range(chooser.randint(2, 12)))
        before = max((look for look in looks if look < event_ms), default=0.0)
        after = next((look for look in looks if look >= event_ms), None)
        spans[cells(int(before * MS), None if after is None else int(after * MS))] += 1
    shares = turnbull(spans)
    assert shares.sum() == pytest.approx(1)
    assert shares.min() >= 0
    for share, true_ms in ((0.25, 100 * 2**-0.674), (0.5, 100.0), (0.75, 100 * 2**0.674)):
        found = reached_ms(shares, share)
        assert found is not None
        assert found == pytest.approx(true_ms, rel=0.25)


def test_resamples_of_the_same_numbers_give_the_same_estimate() -> None:
    spans = {(0, 3): 5, (1, 8): 4, (6, 9): 3, (7, len(GRID_MS)): 2}
    whole = turnbull(spans)
    weights = np.array([list(spans.values()), [0, 0, 3, 2]], np.float64)
    drawn = turnbull(spans, weights)
    assert np.cumsum(drawn[0])[[3, 8, 9]] == pytest.approx(np.cumsum(whole)[[3, 8, 9]], abs=0.02)
    assert reached_ms(drawn[1], 0.99) == GRID_MS[9], "all of these are seen within the ninth cell"
    assert reached_ms(turnbull({(0, 2): 98, (5, len(GRID_MS)): 2}), 0.99) is None, "two of a hundred are not seen to end"

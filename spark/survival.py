"""Estimates from censored observations: times whose end was not observed. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

Reals = NDArray[np.float64]


class Survival:
    """Kaplan and Meier's estimate (1958). Each time has a flag: True if the event was observed then, False if it came later."""

    def __init__(self, times: Iterable[tuple[float, bool]]) -> None:
        seen, left = Counter[float](), 0
        ends: Counter[float] = Counter()
        for time, is_event in times:
            seen[time] += is_event
            ends[time] += 1
            left += 1
        self.steps: list[tuple[float, float]] = []
        """Times of events, each with the share of the sample in which the event comes later."""
        share = 1.0
        for time in sorted(ends):
            if seen[time]:
                share *= 1 - seen[time] / left
                self.steps.append((time, share))
            left -= ends[time]

    def quantile(self, at: float) -> float | None:
        """The shortest time after which the event has occurred for the share ``at``. None: the observation ended before."""
        return next((time for time, share in self.steps if share <= 1 - at + 1e-12), None)


GRID_MS = np.array([0.0, *(2.0 ** (step / 8) for step in range(-32, 137))])
"""Ends of the cells into which ages are sorted: steps of 9 % from 0.06 ms to two minutes."""
ROUNDS = 500
"""Maximum number of rounds of expectation and maximization."""

Spans = Mapping[tuple[int, int], float]
"""Number of observations by the cells that may contain the event: the first cell, and the cell after the last."""


def cells(after_ns: int, until_ns: int | None) -> tuple[int, int]:
    """The cells that may contain an event in (after_ns, until_ns]: the first cell, and the cell after the last. ``until_ns``
    None: no end was seen."""
    first = int(np.searchsorted(GRID_MS, after_ns / 1e6, side="right")) - 1
    if until_ns is None:
        return min(first, len(GRID_MS) - 1), len(GRID_MS)
    return min(first, len(GRID_MS) - 1), max(first + 1, min(int(np.searchsorted(GRID_MS, until_ns / 1e6)), len(GRID_MS)))


def turnbull(spans: Spans, weights: Reals | None = None) -> Reals:
    """Turnbull's estimate (1976) of the distribution of interval-censored events: the share in each cell. The last cell has no
    end.

    ``weights``: for each resample a row with the numbers of the observations. The result then has these rows, too."""
    places = np.array(list(spans), np.int64).reshape(-1, 2)
    number = np.atleast_2d(np.array(list(spans.values()), np.float64) if weights is None else weights)
    first, after = places[:, 0], places[:, 1]
    total = number.sum(axis=1, keepdims=True)
    begins, ends = _Sums(first), _Sums(after)
    # Where the estimate is not unique, this start makes the events as late as they can be.
    shares = np.zeros((len(number), len(GRID_MS)))
    shares[:, np.unique(after - 1)] = 1 / len(np.unique(after))
    for _ in range(ROUNDS):
        before = np.concatenate((np.zeros((len(shares), 1)), np.cumsum(shares, axis=1)), axis=1)
        inside = np.maximum(before[:, after] - before[:, first], 1e-12)
        following = shares * np.maximum(begins.spread(number / inside, ends), 0) / total
        done = np.abs(following - shares).max() < 1e-6
        shares = following
        if done:
            break
    shares = shares / shares.sum(axis=1, keepdims=True)
    found: Reals = shares if weights is not None else shares[0]
    return found


class _Sums:
    """Sums of the values of observations by the cell in which they begin or end."""

    def __init__(self, cell_of: NDArray[np.int64]) -> None:
        self._order = np.argsort(cell_of, kind="stable")
        ordered = cell_of[self._order]
        self._starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
        self._cells = ordered[self._starts]

    def _by_cell(self, values: Reals) -> Reals:
        sums = np.zeros((len(values), len(GRID_MS) + 1))
        sums[:, self._cells] = np.add.reduceat(values[:, self._order], self._starts, axis=1)
        return sums

    def spread(self, values: Reals, ends: "_Sums") -> Reals:
        """For each cell the sum of the values of the observations that contain it. ``self`` has the first cell of each
        observation, ``ends`` the cell after its last."""
        found: Reals = np.cumsum(self._by_cell(values) - ends._by_cell(values), axis=1)[:, :-1]
        return found


def reached_ms(shares: Reals, at: float) -> float | None:
    """The end of the first cell by which the share ``at`` is reached. None: it is reached in the last cell, which has no end."""
    place = int(np.searchsorted(np.cumsum(shares), at - 1e-9))
    return float(GRID_MS[place + 1]) if place + 1 < len(GRID_MS) else None

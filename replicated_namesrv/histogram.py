"""A histogram of observations: counts per bucket and the sum. It depends on no metrics library and reads no clock."""

from bisect import bisect_left
from collections.abc import Sequence


class Histogram:
    """Counts of values by upper bound. An observation costs a binary search and two additions."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        """``bounds``: ascending upper bounds; one more bucket counts greater values."""
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum: float = 0

    def observe(self, value: float, count: int = 1) -> None:
        """Count ``count`` observations of ``value``."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.sum += value * count

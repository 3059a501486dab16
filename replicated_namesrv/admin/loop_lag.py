"""The delay of the event loop, which is a lower bound of the delay of every connection.

A timer asks to be called every ``INTERVAL_S`` and records how much later it was called. Every stall of the loop is visible
here. Causes are, for example, a large registration, a garbage collection, or a machine without free CPU time.
"""

import asyncio
import logging
import time

from replicated_namesrv.histogram import Histogram
from replicated_namesrv.server.server_metrics import LATENCY_BOUNDS_NS

log = logging.getLogger(__name__)

INTERVAL_S = 0.05
WARN_LAG_S = 0.5
WINDOW_S = 10.0
"""Minimum time that ``recent_max_s`` covers; it covers at most twice as much."""


class LoopLag:
    """Samples the running loop between ``start`` and ``stop``."""

    def __init__(self) -> None:
        self.histogram = Histogram(LATENCY_BOUNDS_NS)
        """All samples, in nanoseconds."""
        self._window_began = time.monotonic()
        self._window_max_s = 0.0
        self._previous_window_max_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    @property
    def recent_max_s(self) -> float:
        """Largest lag in seconds within the last ``WINDOW_S``, or up to twice that time."""
        return max(self._window_max_s, self._previous_window_max_s)

    def start(self) -> None:
        """Begin to sample; called on the loop to be watched."""
        self._expect(asyncio.get_running_loop())

    def stop(self) -> None:
        """End sampling."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expect(self, loop: asyncio.AbstractEventLoop) -> None:
        # time.monotonic, because the loop's own time stays the same within one turn
        self._due = time.monotonic() + INTERVAL_S
        self._timer = loop.call_later(INTERVAL_S, self._sample, loop)

    def _sample(self, loop: asyncio.AbstractEventLoop) -> None:
        now = time.monotonic()
        self.note(max(0.0, now - self._due), now)
        self._expect(loop)

    def note(self, lag_s: float, now: float) -> None:
        """Count one sample."""
        if now - self._window_began >= WINDOW_S:
            self._previous_window_max_s, self._window_max_s, self._window_began = self._window_max_s, 0.0, now
        self._window_max_s = max(self._window_max_s, lag_s)
        self.histogram.observe(int(lag_s * 1e9))
        if lag_s >= WARN_LAG_S:
            log.warning("event loop stalled", extra={"lag_ms": int(lag_s * 1000)})

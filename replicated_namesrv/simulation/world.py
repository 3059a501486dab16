"""Virtual time, seeded randomness and the trace, which make a run a function of its seed.

A simulation uses no real clock, string hash, order of a set, shared randomness or transcendental function. Each
consumer of randomness has its own named stream, so removing a fault from the schedule does not change the clients' choices.
"""

import hashlib
import heapq
from collections.abc import Callable
from random import Random

MS = 1_000_000
"""Nanoseconds in a millisecond."""
SECOND = 1_000_000_000
"""Nanoseconds in a second."""

_BATCH = 2_048


def exponential(rng: Random) -> float:
    """Exponentially distributed with mean 1, by comparing uniform numbers (von Neumann, 1951).

    ``Random.expovariate`` uses a logarithm, whose last bit differs between machines.
    """
    whole = 0
    while True:
        first = rng.random()
        last, falls = first, 0
        while (drawn := rng.random()) < last:
            last, falls = drawn, falls + 1
        if falls % 2 == 0:
            return whole + first
        whole += 1


class Trace:
    """Digest of all events and, on request, a readable account of them."""

    def __init__(self, readable: bool) -> None:
        self.readable = readable
        self.lines: list[str] = []
        """The trace if ``readable`` is set: for each event, its time in seconds and its text."""
        self._events: list[tuple[int | str, ...]] = []
        self._hash = hashlib.blake2b(digest_size=16)

    def event(self, *facts: int | str) -> None:
        """Add an event to the digest."""
        self._events.append(facts)
        if len(self._events) >= _BATCH:
            self._flush()

    def _flush(self) -> None:
        self._hash.update(repr(self._events).encode())
        self._events.clear()

    def digest(self) -> str:
        """Equal for two runs if and only if they had the same events."""
        self._flush()
        return self._hash.hexdigest()


class World:
    """The event queue. Time is whole nanoseconds since the start. Events at equal times run in the order of their creation."""

    def __init__(self, seed: int, readable: bool = False) -> None:
        self.seed = seed
        self.now_ns = 0
        self.events = 0
        self.trace = Trace(readable)
        self._queue: list[tuple[int, int, Callable[..., None], tuple[object, ...]]] = []
        self._sequence = 0

    def random(self, stream: str) -> Random:
        """A random stream that depends only on the seed and the stream's name."""
        return Random(f"{self.seed}/{stream}")

    def after(self, delay_ns: int, call: Callable[..., None], *arguments: object) -> None:
        """Call after ``delay_ns``."""
        self._sequence += 1
        heapq.heappush(self._queue, (self.now_ns + delay_ns, self._sequence, call, arguments))

    def run_until(self, end_ns: int, stop: Callable[[], bool] | None = None) -> None:
        """Run all events before ``end_ns``, or until ``stop`` returns true. The time is then ``end_ns``, or that of the last
        event.
        """
        queue = self._queue
        while queue and queue[0][0] < end_ns:
            self.now_ns, _, call, arguments = heapq.heappop(queue)
            self.events += 1
            call(*arguments)
            if stop is not None and stop():
                return
        self.now_ns = end_ns

    def note(self, text: str) -> None:
        """Add a line to the readable account."""
        if self.trace.readable:
            self.trace.lines.append(f"{self.now_ns / SECOND:10.6f}  {text}")

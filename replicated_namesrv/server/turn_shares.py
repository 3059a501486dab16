"""TurnShares: how much of the event loop's time the requests of one address can use.

All connections of an address share ``SHARE_NS``. When it is used up, the address's further frames and late answers wait, in
order. They wait for ``PAUSE_S`` if other addresses have connections, otherwise for the next turn of the loop. So a turn has time
for other addresses, for peers and for timers, however many connections and requests one host has. One host also leaves a part of
the processor to others, which keeps their waits short: a process that always runs is not preferred when a message arrives for it.
A host that is alone can use the whole processor.

An address that needed at least ``LIGHT_PART`` times as long to use ``SHARE_NS`` uses little of the processor. It never waits.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from time import perf_counter_ns

SHARE_NS = 1_000_000
"""Time of one address before it waits. A request that has begun is finished. A read of another host waits for some four turns of
replicated nodes."""
LIGHT_PART = 4
"""An address that uses at most this part (a quarter) of the processor does not wait."""
PAUSE_S = 0.001
"""A timer of uvloop takes one to two of its milliseconds. So one host gets a third to a half of a processor."""


class Share:
    """The share of one address."""

    __slots__ = ("connections", "is_used_up", "name", "since_ns", "spent_ns", "waiting")

    def __init__(self, name: str, since_ns: int = 0) -> None:
        self.name = name
        """The address, or what else its connections have in common."""
        self.connections = 0
        """Open connections of the address."""
        self.since_ns = since_ns
        """When ``spent_ns`` was 0."""
        self.spent_ns = 0
        self.is_used_up = False
        """Whether frames and answers have to wait."""
        self.waiting: deque[Callable[[], None]] = deque()
        """Work for later. Each item spends its own time."""


class TurnShares:
    """The shares of all addresses that have connections. Connections of a trusted proxy have one each: many hosts use it."""

    def __init__(self, now_ns: Callable[[], int] = perf_counter_ns) -> None:
        self._now_ns = now_ns
        self._shares: dict[str, Share] = {}
        self._used_up: list[Share] = []

    def enter(self, name: str) -> Share:
        """The share of a new connection."""
        share = self._shares.get(name)
        if share is None:
            share = self._shares[name] = Share(name, self._now_ns())
        share.connections += 1
        return share

    def leave(self, share: Share) -> None:
        """A connection has ended."""
        share.connections -= 1
        if not share.connections:
            del self._shares[share.name]

    def spend(self, share: Share, spent_ns: int) -> None:
        """Count this time."""
        share.spent_ns += spent_ns
        if share.spent_ns >= SHARE_NS and not share.is_used_up:
            now_ns = self._now_ns()
            if now_ns - share.since_ns < LIGHT_PART * share.spent_ns:
                self._use_up(share)
            else:
                share.spent_ns, share.since_ns = 0, now_ns

    def left_ns(self, share: Share) -> int:
        """What is left of the share."""
        return SHARE_NS - share.spent_ns

    def wait(self, share: Share, work: Callable[[], None]) -> None:
        """Do ``work`` later."""
        share.waiting.append(work)
        if not share.is_used_up:
            self._use_up(share)

    def run(self, share: Share, work: Callable[[], None]) -> None:
        """Do ``work`` now, or later if the share is used up."""
        if share.is_used_up:
            self.wait(share, lambda: self._timed(share, work))
        else:
            self._timed(share, work)

    def _timed(self, share: Share, work: Callable[[], None]) -> None:
        started_ns = self._now_ns()
        try:
            work()
        finally:
            self.spend(share, self._now_ns() - started_ns)

    def _use_up(self, share: Share) -> None:
        share.is_used_up = True
        if not self._used_up:
            loop = asyncio.get_running_loop()
            if len(self._shares) > 1:
                loop.call_later(PAUSE_S, self._turn)
            else:
                loop.call_soon(self._turn)
        self._used_up.append(share)

    def _turn(self) -> None:
        """Each address that waits continues, as far as its share goes."""
        used_up, self._used_up = self._used_up, []
        now_ns = self._now_ns()
        for share in used_up:
            share.spent_ns, share.since_ns = 0, now_ns
            share.is_used_up = False
        try:
            for share in used_up:
                while share.waiting and not share.is_used_up:
                    share.waiting.popleft()()
        finally:  # also after an error of one item
            for share in used_up:
                if share.waiting and not share.is_used_up:
                    self._use_up(share)

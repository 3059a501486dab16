"""TurnShares: how much of the event loop's time one address can use.

All work for an address counts as its debt. The debt shrinks by a quarter of the time that passes. When it reaches ``SHARE_NS``,
further frames, HTTP requests, registrations and answers that are not ready at once wait, in order, until the debt is paid. So
while other addresses cause work, one address uses at most about a quarter of the loop, even with many connections and requests:
after a millisecond of work it waits for three to four ms. The rest of the time is for other addresses, for peers and for timers.
Because the address waits, the process also sleeps from time to time. The kernel's scheduler wakes such a process sooner than one
that always runs, so requests of other hosts wait for a shorter time.

An address is alone if no other one waits, and none has connected or caused work for ``ALONE_AFTER_NS``. It can use the whole
processor: its debts are forgotten, and after ``ALONE_NS`` of work it only waits for the next turn, in which peers and timers come
first.

    work                                                      its time is
    frames, HTTP requests, late answers, registrations        measured
    reads of up to 1 KiB, the sending of a late answer        estimated (``FEW_NS``, ``DEFERRED_NS``)
    bytes received and sent, in the kernel                    estimated (``connection.NS_PER_BYTE``)
    a command on all nodes of a cluster                       estimated (``consensus.CommandProposer``)

Work that has begun is not interrupted. A registration whose evaluation takes 100 ms is evaluated in slices, and then the address
waits for up to 400 ms. An address waits for at most ``LIGHT_PART`` times ``DEBT_MAX_NS``. Then one waiting item is processed,
even if the address still has a debt. Without this rule, an address with a stream (``/v1/watch``) could wait for ever, because a
stream never waits and increases the debt all the time. A debt outlives the connections of its address.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from time import perf_counter_ns

SHARE_NS = 1_000_000
"""Time that an address may use before it waits. A request that has begun is not interrupted. On replicated nodes, a read of
another host waits for about four turns of the event loop, each of up to this time."""
ALONE_NS = 4_000_000
"""Time that an address may use in one turn while it is alone. 400 connections with one query each need less time. The wait for
the next turn costs as much as one query."""
ALONE_AFTER_NS = 1_000_000_000
"""An address is alone after this time without work for another address. An address can use the whole processor only until another
address sends a request. So only this one request can find the processor fully used."""
LIGHT_PART = 4
"""An address that uses at most this part of the loop's time (a quarter) does not wait."""
DEBT_MAX_NS = 500_000_000
"""A larger debt is reduced to this, so that no address waits for more than 2 s: several brokers may share one address."""
PAUSE_MIN_S = 0.001
"""Minimum pause, because timers of uvloop are not more accurate."""


class Share:
    """The share of one address."""

    __slots__ = ("connections", "debt_ns", "is_used_up", "name", "since_ns", "turn_ns", "waiting", "waits_since_ns")

    def __init__(self, name: str, since_ns: int = 0) -> None:
        self.name = name
        """The address, or another name for what its connections have in common."""
        self.connections = 0
        """Open connections of the address."""
        self.debt_ns = 0
        """Debt at ``since_ns`` plus the time spent since then."""
        self.since_ns = since_ns
        self.is_used_up = False
        """True while frames and answers of the address have to wait."""
        self.turn_ns = 0
        """The time that the address spent in this turn while it was alone. It is moved here from ``debt_ns`` each time the debt
        reaches ``SHARE_NS``."""
        self.waits_since_ns = since_ns
        """When the oldest waiting work began to wait, or when waiting work was last done."""
        self.waiting: deque[Callable[[], object]] = deque()
        """Work for later. Each item charges its time to the share."""


class TurnShares:
    """The shares of all addresses that have connections or debts. Each connection of a trusted proxy has a share of its own,
    because many hosts use the proxy."""

    def __init__(self, now_ns: Callable[[], int] = perf_counter_ns) -> None:
        self._now_ns = now_ns
        self._shares: dict[str, Share] = {}
        self._latest: Share | None = None
        """The share that spent time last."""
        self._has_others = False
        """Whether another address has connected or spent time since this was last checked."""
        self._others_until_ns = now_ns()
        """Time until which no address counts as alone."""
        self._used_up = 0
        """Number of addresses that have to wait."""

    def enter(self, name: str) -> Share:
        """The share of a new connection."""
        share = self._shares.get(name)
        if share is None:
            share = self._shares[name] = Share(name, self._now_ns())
            self._has_others = True
        share.connections += 1
        return share

    def leave(self, share: Share) -> None:
        """A connection has ended."""
        share.connections -= 1
        if not share.connections and not share.is_used_up:
            # the debt must outlive the connection, or the next connection of the address would start without it
            if share.debt_ns:
                pause_s = max(share.debt_ns * LIGHT_PART / 1e9, PAUSE_MIN_S)
                asyncio.get_running_loop().call_later(pause_s, self._forget_unused, share)
            else:
                self._forget_unused(share)

    def _forget_unused(self, share: Share) -> None:
        """Forget an address without connections, unless it waits. If an address has a newer share, late work of its former share
        does not remove the newer one.
        """
        if not share.connections and not share.is_used_up and self._shares.get(share.name) is share:
            del self._shares[share.name]

    def spend(self, share: Share, spent_ns: int) -> None:
        """Charge this time to the share. Called for each read of a connection."""
        if share is not self._latest:
            self._latest = share
            self._has_others = True
        share.debt_ns += spent_ns
        if share.debt_ns >= SHARE_NS and (spent_ns >= SHARE_NS or not share.is_used_up):
            self._reached(share, spent_ns)

    def _reached(self, share: Share, spent_ns: int) -> None:
        """The debt has reached the share. Reduce it by the time that has passed. If it is still too large, the address waits. An
        address that is alone waits only if it used ``ALONE_NS`` in one turn of the event loop."""
        share.debt_ns -= spent_ns
        self._settle(share)
        share.debt_ns = min(share.debt_ns + spent_ns, DEBT_MAX_NS)
        if share.debt_ns < SHARE_NS or share.is_used_up:
            return
        if self._is_alone(share, share.since_ns):
            if not share.turn_ns:
                asyncio.get_running_loop().call_soon(self._turned, share)
            share.turn_ns += share.debt_ns
            share.debt_ns = 0
            if share.turn_ns < ALONE_NS:
                return
        self._use_up(share)

    def _turned(self, share: Share) -> None:
        share.turn_ns = 0

    def left_ns(self, share: Share) -> int:
        """Time until the address has to wait."""
        limit_ns = ALONE_NS - share.turn_ns if self._is_alone(share, self._now_ns()) else SHARE_NS
        return limit_ns - share.debt_ns

    def wait(self, share: Share, work: Callable[[], object]) -> None:
        """Do ``work`` later. ``work`` returns True if it only schedules work for a later turn. Then the other waiting items are
        not done in this turn and wait again."""
        if not share.waiting:
            share.waits_since_ns = self._now_ns()
        share.waiting.append(work)
        if not share.is_used_up:
            self._use_up(share)

    def run(self, share: Share, work: Callable[[], None]) -> None:
        """Do ``work`` now, or later if the share is used up."""
        if share.is_used_up:
            self.later(share, work)
        else:
            self._timed(share, work)

    def later(self, share: Share, work: Callable[[], None]) -> None:
        """Do ``work`` in a later turn."""
        self.wait(share, lambda: self._timed(share, work))

    def _timed(self, share: Share, work: Callable[[], None]) -> None:
        started_ns = self._now_ns()
        try:
            work()
        finally:
            self.spend(share, self._now_ns() - started_ns)

    def _settle(self, share: Share) -> None:
        """Reduce the debt by the part that the time until now has paid."""
        now_ns = self._now_ns()
        share.debt_ns = min(max(share.debt_ns - (now_ns - share.since_ns) // LIGHT_PART, 0), DEBT_MAX_NS)
        share.since_ns = now_ns

    def _is_alone(self, share: Share, now_ns: int) -> bool:
        if self._has_others:
            self._has_others = False
            self._others_until_ns = now_ns + ALONE_AFTER_NS
        return len(self._shares) < 2 or (now_ns >= self._others_until_ns and not self._others_wait(share))

    def _others_wait(self, share: Share) -> bool:
        return self._used_up > share.is_used_up

    def _use_up(self, share: Share) -> None:
        if not share.is_used_up:
            share.is_used_up = True
            self._used_up += 1
        loop = asyncio.get_running_loop()
        now_ns = self._now_ns()
        if self._is_alone(share, now_ns):
            loop.call_soon(self._due, share)
            return
        pause_ns = share.debt_ns * LIGHT_PART
        # the other addresses may stop sending before this debt is paid; the pause then ends with their time
        if not self._others_wait(share):
            pause_ns = min(pause_ns, self._others_until_ns - now_ns)
        loop.call_later(max(pause_ns / 1e9, PAUSE_MIN_S), self._due, share)

    def _due(self, share: Share) -> None:
        """If the debt of the address is paid, do its waiting work until its share is used up again."""
        self._settle(share)
        is_late = bool(share.waiting) and share.since_ns - share.waits_since_ns >= LIGHT_PART * DEBT_MAX_NS
        if self._is_alone(share, share.since_ns):
            share.debt_ns = 0
        elif share.debt_ns > SHARE_NS // LIGHT_PART and not is_late:
            self._use_up(share)
            return
        share.is_used_up = False
        self._used_up -= 1
        share.waits_since_ns = share.since_ns
        try:
            while share.waiting and not share.is_used_up:
                if share.waiting.popleft()() or is_late:
                    break
        finally:  # runs even if an item raises an exception
            if not share.is_used_up:
                if share.waiting:
                    self._use_up(share)
                else:
                    self._forget_unused(share)

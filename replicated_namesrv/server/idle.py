"""Idle connections: one coarse timer for all of them instead of one timer each.

A connection records the tick of its last read or write (one assignment) and is in the slot of the earliest tick at which it could
be idle. When that tick comes, the connection is either idle or moves to the slot of its last activity. So each connection is
checked about once per idle time, independent of its traffic. It is never closed early, unless one turn of the event loop takes
longer than ``TURN_S``. It is closed at most ``TURN_S`` and two ticks late. (The Java server's ``IdleStateHandler`` ALL_IDLE is
exact to the millisecond, but no client depends on that.) Only slots with connections use memory: an idle time can be 68 years.

Time in which this process did not run (SIGSTOP, a suspended machine) does not count, except ``TICKS_PER_ADVANCE_MAX`` ticks.
"""

from math import ceil
from typing import Protocol

TICKS_PER_IDLE_TIME = 100
TICK_MAX_S = 1.0
TURN_S = 0.1
"""Maximum time by which ``tick`` is late when a connection records it: a due tick waits for the end of the loop's turn."""
TICKS_PER_ADVANCE_MAX = 10
"""Maximum number of ticks that one call counts. More ticks have passed only if the process stalled."""


class Idler(Protocol):
    """The part of a member that the wheel uses."""

    last_active_tick: int
    """Value of ``IdleWheel.tick`` at the last read or write."""
    idle_slot: int
    """The tick whose slot this connection is in; only the wheel changes it."""


class IdleWheel:
    """Watches members for ``idle_s`` seconds without activity; ``now_s`` is the clock's reading at construction."""

    def __init__(self, idle_s: float, now_s: float) -> None:
        self.tick_s = min(TICK_MAX_S, idle_s / TICKS_PER_IDLE_TIME)
        self.tick = 0
        """Number of the current tick. Members copy it when they are active."""
        # + 1, because the activity can be at any point of its tick
        self._idle_ticks = round(idle_s / self.tick_s) + 1 + ceil(TURN_S / self.tick_s)
        self._slots: dict[int, set[Idler]] = {}
        """Members by the tick at which they are checked."""
        self._started_s = now_s

    def add(self, member: Idler) -> None:
        """Watch ``member``, active now."""
        member.last_active_tick = self.tick
        self._place(member, self.tick + self._idle_ticks)

    def discard(self, member: Idler) -> None:
        """Stop watching ``member``."""
        slot = self._slots.get(member.idle_slot)
        if slot is not None:
            slot.discard(member)
            if not slot:
                del self._slots[member.idle_slot]

    def advance(self, now_s: float) -> list[Idler]:
        """Advance to ``now_s``. Returns the members that became idle; they are no longer watched."""
        target = int((now_s - self._started_s) / self.tick_s)
        idle: list[Idler] = []
        missed = target - self.tick - TICKS_PER_ADVANCE_MAX
        if missed > 0:
            self._started_s += missed * self.tick_s
            target -= missed
        while self.tick < target:
            self.tick += 1
            for member in self._slots.pop(self.tick, ()):
                check_at = member.last_active_tick + self._idle_ticks
                if check_at <= self.tick:
                    idle.append(member)
                else:
                    self._place(member, check_at)
        return idle

    def _place(self, member: Idler, tick: int) -> None:
        member.idle_slot = tick
        self._slots.setdefault(tick, set()).add(member)

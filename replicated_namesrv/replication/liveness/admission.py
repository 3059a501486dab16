"""Admission: of the copies of one registration that all nodes receive, the leader lets one through. Pure; the caller gives time.

A broker registers with every node, so each change arrives as often as there are nodes. Whoever finds that a registration would
change something asks the leader before proposing it. The first to ask is let through. While its copy is under way, equal ones
(same broker, same content) wait. What ends the wait is any outcome of that copy:

    outcome of the copy that was let through                the others
    applied: accepted, refused or ignored                   look again; most find a renewal, or the same refusal
    not proposed, rejected, or its outcome is unknown       the next one is let through
    its node is silent, or GRANT_MS have passed             the next one is let through

One that asks after the commit but has looked before it looks again too.

A node counts once: if it asks again, for the same copy or one over another connection, its new question takes the place of the
old one, which may have nobody waiting for it any more.

This only spares work. Who is let through wrongly, after a change of leader or because the first has died, proposes a
registration that changes nothing when it is applied.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from replicated_namesrv.replication.liveness.leader_messages import GRANTED, LOOK_AGAIN, Key
from replicated_namesrv.replication.marks import Mark

GRANT_MS = 5_000.0
"""So long others wait for the one who was let through, if its node is heard."""


class Asker(NamedTuple):
    """Who waits for a decision."""

    node: str
    session: int
    number: int


class Decided(NamedTuple):
    asker: Asker
    verdict: int


@dataclass(slots=True)
class _Passing:
    asker: Asker
    since_ms: float
    waiting: dict[str, Asker] = field(default_factory=dict)
    """By node, who came first first."""


class Admission:
    """One leader's. ``marks`` are the state machine's."""

    def __init__(self, marks: dict[Key, Mark]) -> None:
        self._marks = marks
        self._passing: dict[tuple[Key, str], _Passing] = {}

    def ask(self, asker: Asker, key: Key, content: str, serial: int, now_ms: float) -> int | None:
        """GRANTED, LOOK_AGAIN, or None: wait. ``serial``: what the asker had applied when it looked. Asking again is harmless."""
        mark = self._marks.get(key)
        if mark is not None and mark.content == content and mark.serial > serial:
            return LOOK_AGAIN
        passing = self._passing.get((key, content))
        if passing is None:
            self._passing[key, content] = _Passing(asker, now_ms)
            return GRANTED
        if passing.asker.node == asker.node:
            passing.asker = asker
            return GRANTED
        passing.waiting[asker.node] = asker
        return None

    def applied(self, key: Key, content: str) -> list[Decided]:
        """A registration was applied, with whatever outcome: who waited for it may look again."""
        passing = self._passing.pop((key, content), None)
        return [] if passing is None else [Decided(asker, LOOK_AGAIN) for asker in passing.waiting.values()]

    def withdraw(self, asker: Asker, key: Key, content: str, now_ms: float) -> list[Decided]:
        """``asker`` will not propose its copy, or does not know its outcome: who is let through instead."""
        passing = self._passing.get((key, content))
        if passing is None:
            return []
        if passing.asker == asker:
            return self._pass_on((key, content), passing, now_ms)
        if passing.waiting.get(asker.node) == asker:
            del passing.waiting[asker.node]
        return []

    def overdue(self, silent_nodes: Collection[str], now_ms: float) -> list[Decided]:
        """Who is let through because the one before has not come through in time, or its node is silent."""
        found = []
        for slot, passing in list(self._passing.items()):
            if now_ms - passing.since_ms >= GRANT_MS or passing.asker.node in silent_nodes:
                found += self._pass_on(slot, passing, now_ms)
        return found

    def _pass_on(self, slot: tuple[Key, str], passing: _Passing, now_ms: float) -> list[Decided]:
        if not passing.waiting:
            del self._passing[slot]
            return []
        passing.asker, passing.since_ms = passing.waiting.pop(next(iter(passing.waiting))), now_ms
        return [Decided(passing.asker, GRANTED)]

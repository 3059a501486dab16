"""At-most-once application: the record of the proposals of each origin that have been applied. Part of the replicated state.

An origin is one boot of one incarnation of a node; it numbers its proposals upwards. For each node the table has the newest
origin, its floor (every lower number is decided and never proposed again), the first number that was not applied, and the applied
numbers above it. A node has at most ``RaftConfig.pending_proposals_max`` numbers between floor and newest, so the table has at
most this number of entries for each node.
"""

import hashlib
from collections.abc import Iterable
from typing import NamedTuple


class Origin(NamedTuple):
    node: str
    incarnation: int
    boot: int
    """How often the data directory has been opened; it ascends within an incarnation."""


class Session:
    """The applied numbers of one origin."""

    __slots__ = ("above", "floor", "next", "origin")

    def __init__(self, origin: Origin, floor: int = 0, following: int = 0, above: Iterable[int] = ()) -> None:
        self.origin, self.floor, self.next, self.above = origin, floor, following, set(above)

    def raise_floor(self, floor: int) -> None:
        self.floor = floor
        if floor > self.next:
            self.next = floor
            self.above = {n for n in self.above if n >= floor}
            self._advance()

    def take(self, number: int) -> bool:
        """Whether ``number`` may be applied now. If so, it counts as applied."""
        if number == self.next:
            self.next += 1
            if self.above:
                self._advance()
            return True
        if number < self.next or number in self.above:
            return False
        self.above.add(number)
        return True

    def _advance(self) -> None:
        while self.next in self.above:
            self.above.remove(self.next)
            self.next += 1

    def applied(self, number: int) -> bool:
        """Whether ``number`` was applied, for one that is not below the floor."""
        return number < self.next or number in self.above


class Sessions:
    """The table of all sessions. Nodes that have applied the log up to the same index have equal tables."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}

    def session(self, origin: Origin, floor: int, voter: int | None) -> Session | None:
        """The session in which to apply a group of ``origin``. None: it is refused, because its boot is older or its incarnation
        is not that of the member (``voter``)."""
        current = self._sessions.get(origin.node)
        if current is None or current.origin != origin:
            if origin.incarnation != voter:
                return None
            if current is not None and current.origin.incarnation == origin.incarnation and current.origin.boot > origin.boot:
                return None
            current = self._sessions[origin.node] = Session(origin, floor, floor)
        if floor > current.floor:
            current.raise_floor(floor)
        return current

    def newest(self, node: str) -> Session | None:
        """The session of the newest origin of ``node``."""
        return self._sessions.get(node)

    def dump(self) -> list[list[object]]:
        """JSON-able, sorted: equal tables give equal dumps."""
        return [[*s.origin, s.floor, s.next, sorted(s.above)] for _, s in sorted(self._sessions.items())]

    def load(self, dump: list[list[object]]) -> None:
        """Replace the table. Raises ValueError or TypeError for input that ``dump`` did not create."""
        sessions: dict[str, Session] = {}
        for row in dump:
            node, incarnation, boot, floor, following, above = row
            if not isinstance(node, str) or not isinstance(above, list):
                raise TypeError("malformed session")
            for number in (incarnation, boot, floor, following, *above):
                if not isinstance(number, int):
                    raise TypeError("malformed session number")
            sessions[node] = Session(Origin(node, incarnation, boot), floor, following, above)  # type: ignore[arg-type]  # the loop above checked the numbers
        self._sessions = sessions

    def digest(self) -> bytes:
        return hashlib.blake2b(repr(self.dump()).encode(), digest_size=16).digest()

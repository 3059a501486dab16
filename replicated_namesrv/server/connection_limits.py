"""Bounds on what connections may make the server hold, and who has to go when a bound is reached.

Two things make a server hold memory for a peer: a frame that has not arrived completely, and answers that the peer does not
read. Both are *held bytes*. Their sum over all connections is bounded; beyond the bound the connection that has held bytes
for the longest is closed, because honest peers hold bytes for milliseconds. A frame that takes longer than
``frame_timeout_s`` ends its connection, too, however little it holds.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from replicated_namesrv.settings import Settings

DEFAULT_HIGH_WATER_BYTES = 262_144


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds, all taken from settings at start."""

    connections: int
    frame_timeout_s: float
    """A frame (or TLS handshake, or PROXY header) once begun is complete within this or its connection is closed."""
    held_bytes: int
    pending_per_connection: int
    """Requests of one connection that may be unanswered at once; it is read no further until fewer are."""
    high_water_bytes: int
    """Unsent bytes at which a connection is read no further."""
    low_water_bytes: int
    """Unsent bytes at which it is read again."""

    @classmethod
    def of(cls, settings: Settings) -> "Limits":
        """The limits that ``settings`` ask for."""
        high = settings.write_buffer_high_water_mark or DEFAULT_HIGH_WATER_BYTES
        return cls(
            connections=settings.max_connections,
            frame_timeout_s=settings.frame_timeout_millis / 1000,
            held_bytes=settings.max_held_bytes,
            pending_per_connection=settings.max_pending_per_connection,
            high_water_bytes=high,
            low_water_bytes=min(settings.write_buffer_low_water_mark or high // 4, high),
        )


class Holder(Protocol):
    """A connection, as far as the accounts need it."""

    def close_at_limit(self, name: str) -> None:
        """Close at once; ``name`` is the limit that was hit."""


class HeldBytes:
    """Who holds how many bytes, and since when a frame is incomplete."""

    def __init__(self, limits: Limits) -> None:
        self.total = 0
        self._limits = limits
        self._bytes: dict[Holder, int] = {}
        self._incomplete_since_s: dict[Holder, float] = {}

    def hold(self, holder: Holder, count: int) -> None:
        """``holder`` holds ``count`` bytes in all from now on; 0: none. May close connections, ``holder`` among them."""
        before = self._bytes.get(holder, 0)
        self.total += count - before
        if count:
            self._bytes[holder] = count
        elif before:
            del self._bytes[holder]
        while self.total > self._limits.held_bytes and self._bytes:
            oldest = next(iter(self._bytes))
            self.total -= self._bytes.pop(oldest)
            oldest.close_at_limit("heldBytes")

    def begin(self, holder: Holder, now_s: float) -> None:
        """A frame of ``holder`` has begun to arrive."""
        self._incomplete_since_s.pop(holder, None)
        self._incomplete_since_s[holder] = now_s

    def end(self, holder: Holder) -> None:
        """``holder`` waits for no bytes."""
        self._incomplete_since_s.pop(holder, None)

    def forget(self, holder: Holder) -> None:
        """``holder`` is gone."""
        self.total -= self._bytes.pop(holder, 0)
        self._incomplete_since_s.pop(holder, None)

    def overdue(self, now_s: float) -> Iterator[Holder]:
        """Those whose frame is incomplete for too long; each is given once."""
        while self._incomplete_since_s:
            holder, since_s = next(iter(self._incomplete_since_s.items()))
            if now_s - since_s < self._limits.frame_timeout_s:
                return
            del self._incomplete_since_s[holder]
            yield holder

"""Bounds on the memory used by connections, and the choice of the connection to close at a bound.

The server needs memory for a peer in two cases: a frame that has not arrived completely, and answers that the peer does not
read. Both are *held bytes*. Their sum over all connections is bounded. Beyond the bound the connection that has held bytes for
the longest is closed, because honest peers hold bytes for milliseconds. A frame that takes longer than ``frame_timeout_s``
also ends its connection, even if it holds few bytes.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import Protocol

from replicated_namesrv.settings import Settings

DEFAULT_HIGH_WATER_BYTES = 262_144
KEPT_FOR_OTHER_ADDRESSES = 256
"""Part of maxConnections, at most an eighth, that one address cannot use if maxConnectionsPerAddress is not set. So one host
leaves room for other hosts."""
HANDSHAKES_PER_SECOND = 100
"""TLS handshakes that one address may begin in a second. A handshake costs the event loop about a millisecond."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds, all taken from settings at the start."""

    connections: int
    connections_per_address: int
    proxies: tuple[IPv4Network | IPv6Network, ...]
    """Networks whose PROXY headers are trusted. The limits per address do not apply to their connections."""
    frame_timeout_s: float
    """Time limit from the first byte of a frame, TLS handshake or PROXY header to its last byte. At the limit the connection is
    closed."""
    held_bytes: int
    pending_per_connection: int
    """Maximum number of unanswered requests on one connection. At the limit the connection is not read until an answer is
    sent."""
    high_water_bytes: int
    """Number of unsent bytes at which the connection is no longer read."""
    low_water_bytes: int
    """Number of unsent bytes at which the connection is read again."""

    def at_most(self, connections: int) -> "Limits":
        """These limits with fewer connections, of which one address may not take all."""
        fewer = min(connections, self.connections)
        per_address = min(self.connections_per_address, fewer - min(KEPT_FOR_OTHER_ADDRESSES, fewer // 8))
        return replace(self, connections=fewer, connections_per_address=per_address)

    @classmethod
    def of(cls, settings: Settings) -> "Limits":
        """The limits in ``settings``."""
        high = settings.write_buffer_high_water_mark or DEFAULT_HIGH_WATER_BYTES
        kept = min(KEPT_FOR_OTHER_ADDRESSES, settings.max_connections // 8)
        return cls(
            connections=settings.max_connections,
            connections_per_address=settings.max_connections_per_address or settings.max_connections - kept,
            proxies=settings.proxies,
            frame_timeout_s=settings.frame_timeout_millis / 1000,
            held_bytes=settings.max_held_bytes,
            pending_per_connection=settings.max_pending_per_connection,
            high_water_bytes=high,
            low_water_bytes=min(settings.write_buffer_low_water_mark or high // 4, high),
        )


class Sources:
    """Open connections of each address, and the TLS handshakes that it began in this second."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._connections: dict[str, int] = {}
        self._handshakes: dict[str, int] = {}
        self._second = 0

    def admit(self, address: str) -> bool:
        """Count a connection of ``address``, unless there are too many."""
        open_now = self._connections.get(address, 0)
        if open_now >= self._limits.connections_per_address and not self.is_proxy(address):
            return False
        self._connections[address] = open_now + 1
        return True

    def leave(self, address: str) -> None:
        """An admitted connection has ended."""
        self._connections[address] -= 1
        if not self._connections[address]:
            del self._connections[address]

    def may_handshake(self, address: str, now_s: float) -> bool:
        """Count a TLS handshake that ``address`` begins. False: it began too many in this second. A proxy has no limit."""
        if int(now_s) != self._second:
            self._second = int(now_s)
            self._handshakes.clear()
        self._handshakes[address] = begun = self._handshakes.get(address, 0) + 1
        return begun <= HANDSHAKES_PER_SECOND or self.is_proxy(address)

    def is_proxy(self, address: str) -> bool:
        """Whether PROXY headers from this address are trusted."""
        if not self._limits.proxies:
            return False
        try:
            found = ip_address(address.partition("%")[0])
        except ValueError:
            return False
        plain = getattr(found, "ipv4_mapped", None) or found
        return any(plain in network for network in self._limits.proxies)


class Holder(Protocol):
    """The part of a connection that the account of held bytes uses."""

    def close_at_limit(self, name: str) -> None:
        """Close at once. ``name``: the limit that was reached."""


class HeldBytes:
    """The held bytes of all connections, and for each connection since when a frame has been incomplete."""

    def __init__(self, bytes_max: int, frame_timeout_s: float) -> None:
        self.total = 0
        self._bytes_max, self._frame_timeout_s = bytes_max, frame_timeout_s
        self._bytes: dict[Holder, int] = {}
        self._incomplete_since_s: dict[Holder, float] = {}

    def hold(self, holder: Holder, count: int) -> None:
        """``holder`` holds ``count`` bytes from now on. May close connections, also ``holder`` itself."""
        before = self._bytes.get(holder, 0)
        self.total += count - before
        if count:
            self._bytes[holder] = count
        elif before:
            del self._bytes[holder]
        while self.total > self._bytes_max and self._bytes:
            oldest = next(iter(self._bytes))
            self.total -= self._bytes.pop(oldest)
            oldest.close_at_limit("heldBytes")

    def begin(self, holder: Holder, now_s: float) -> None:
        """A frame of ``holder`` has begun to arrive."""
        self._incomplete_since_s.pop(holder, None)
        self._incomplete_since_s[holder] = now_s

    def end(self, holder: Holder) -> None:
        """``holder`` no longer waits for bytes."""
        self._incomplete_since_s.pop(holder, None)

    def forget(self, holder: Holder) -> None:
        """``holder`` has ended."""
        self.total -= self._bytes.pop(holder, 0)
        self._incomplete_since_s.pop(holder, None)

    def overdue(self, now_s: float) -> Iterator[Holder]:
        """Connections whose frame has been incomplete for too long; each is returned once."""
        while self._incomplete_since_s:
            holder, since_s = next(iter(self._incomplete_since_s.items()))
            if now_s - since_s < self._frame_timeout_s:
                return
            del self._incomplete_since_s[holder]
            yield holder

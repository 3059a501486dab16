"""HttpConnections: the open connections of an HTTP port, and limits on the answers that their clients do not read.

aiohttp waits without a time limit until a client has read its answer, and closing a connection waits, too. Therefore:

- A connection is aborted if its client reads no byte of an answer for ``UNREAD_TIMEOUT_S``.
- If all unread answers together use more than ``UNREAD_BYTES_MAX``, the connection with the oldest unread answer is aborted. An
  answer counts completely, and ``COPIES`` times, until its last byte is read. A connection with up to
  ``SMALL_BYTES`` does not count.
  Unread answers on the remoting port have a limit of their own (``maxHeldBytes``), so that clients of one port do not cause
  connections of the other one to be closed.

A connection counts towards the limits on connections until its socket is closed, not only until aiohttp has ended it.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from math import inf
from time import monotonic

from replicated_namesrv.server.connection_limits import HeldBytes

log = logging.getLogger(__name__)

UNREAD_TIMEOUT_S = 60.0
"""A client that reads no byte of an answer for this long is disconnected. It is longer than the time limit of a watcher."""
UNREAD_BYTES_MAX = 256 << 20
"""Maximum memory for unread answers of all connections: at least four pages, even if JSON escapes each of their characters."""
COPIES = 2
"""aiohttp keeps an answer until it is written, and the transport keeps a copy with the header."""
LIMIT = "unreadAnswers"
"""Name of both limits in the metric."""
CHECK_EVERY_S = 1.0
SMALL_BYTES = 64 << 10
"""Unread bytes at which asyncio asks the writer to pause. Smaller answers leave the process in the same turn of the loop, unless
the client does not read."""


class HttpConnection:
    """One open connection, and the bytes that its client has not read. Implements ``connection_limits.Holder``."""

    def __init__(self, owner: "HttpConnections", transports: tuple[asyncio.Transport, ...], host: str) -> None:
        """``transports``: that of the socket, and with TLS the one above it, which can have unsent bytes, too."""
        self.host = host
        self._owner, self._transports = owner, transports
        self._unread = 0
        self._written = 0
        self._waiting = deque[tuple[int, int]]()
        """The writes of which a byte is unread: the value of ``_written`` after each, and its size."""
        self._kept = 0
        """Sum of these sizes."""
        self._read_at_s = 0.0
        """Latest time at which the client had no unread bytes or was seen to have read some."""

    def look(self) -> None:
        """Count the unread bytes, before and after each write and from time to time. Abort the connection at a limit."""
        unread, now_s = sum(transport.get_write_buffer_size() for transport in self._transports), self._owner.now_s()
        if unread < self._unread or not self._unread:
            self._read_at_s = now_s
        self._unread = unread
        while self._waiting and self._waiting[0][0] <= self._written - unread:
            self._kept -= self._waiting.popleft()[1]
        self._owner.held.hold(self, COPIES * self._kept if self._kept > SMALL_BYTES else 0)
        if unread and now_s - self._read_at_s >= self._owner.timeout_s:
            self.close_at_limit(LIMIT)

    def wrote(self, size: int) -> None:
        """``size`` bytes were written to the transport."""
        self._written += size
        self._kept += size
        self._waiting.append((self._written, size))
        self.look()

    def close_at_limit(self, name: str) -> None:
        self._owner.on_limit(LIMIT)
        log.warning("connection closed: its client does not read the answer", extra={"peer": self.host, "bytes": self._unread})
        self._transports[0].abort()


class HttpConnections:
    """All open connections of one port."""

    def __init__(
        self,
        on_limit: Callable[[str], None],
        timeout_s: float = UNREAD_TIMEOUT_S,
        bytes_max: int = UNREAD_BYTES_MAX,
        now_s: Callable[[], float] = monotonic,
    ) -> None:
        """``on_limit`` counts a connection that was closed at the limit of this name."""
        self.on_limit, self.timeout_s, self.now_s = on_limit, timeout_s, now_s
        self.held = HeldBytes(bytes_max, inf)
        self._open: dict[HttpConnection, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def hosts(self) -> list[str]:
        """The source address of each connection."""
        return [connection.host for connection in self._open]

    def enter(self, transports: tuple[asyncio.Transport, ...], host: str) -> HttpConnection:
        """A connection was opened."""
        connection = HttpConnection(self, transports, host)
        self._open[connection] = None
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(CHECK_EVERY_S, self._look_at_all)
        return connection

    def leave(self, connection: HttpConnection) -> None:
        """The socket of a connection was closed."""
        self._open.pop(connection, None)
        self.held.forget(connection)
        if not self._open:
            self.stop()

    def _look_at_all(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(CHECK_EVERY_S, self._look_at_all)
        for connection in tuple(self._open):
            connection.look()

    def stop(self) -> None:
        """Stop checking the connections. The loop continues to write what is left, until the process ends."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

"""HostLookUp: the IP addresses of a host name. A name whose look-up hangs delays no other name.

uvloop looks up all names of the process in two threads, and asyncio in those of ``asyncio.to_thread``. A resolver that gets no
answer occupies its thread for many seconds. So each look-up here has a daemon thread of its own. An object has at most one
look-up in progress, and a user has a fixed number of objects, so the number of threads is limited.
"""

import asyncio
import socket
import threading
from contextlib import suppress

from replicated_namesrv.address_list import is_numeric

KNOWN_AFTER_SECONDS = 0.2
"""If a look-up takes longer, the last known addresses are used."""


class LookUpError(OSError):
    """The look-up of a name has not ended in time, or could not begin."""


def resolved(host: str) -> list[str]:
    """The IP addresses of ``host`` in the order in which to try them. Raises OSError, or ValueError if ``host`` cannot be a
    name."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class HostLookUp:
    """Looks up one name at a time, and keeps the last addresses."""

    def __init__(self) -> None:
        self._running: asyncio.Future[list[str]] | None = None
        self._host = ""
        """The name that is being looked up, or was looked up last."""
        self._began_at = 0.0
        self._known: tuple[str, list[str]] = "", []
        """A name, and the addresses that its last successful look-up found."""
        self.problem = ""
        """Why the last call of ``addresses`` returned earlier addresses. Empty: it did not."""

    @property
    def is_running(self) -> bool:
        """Whether a look-up is in progress."""
        return self._running is not None

    async def addresses(self, host: str, wait_seconds: float | None) -> list[str]:
        """The addresses of ``host``. If a look-up fails or takes longer than ``KNOWN_AFTER_SECONDS``, the last known ones.

        ``wait_seconds``: how long to wait if no address is known; None: until the look-up ends. It continues after this time, and
        a later call waits for the same look-up. Raises OSError, or ValueError if ``host`` cannot be a name."""
        self.problem = ""
        if is_numeric(host):
            return [host]
        name, known = self._known
        if name != host or not known:  # the empty name is not known, either
            return await self._looked_up(host, wait_seconds)
        try:
            age = asyncio.get_running_loop().time() - self._began_at if self.is_running else 0.0
            return await self._looked_up(host, max(0.0, KNOWN_AFTER_SECONDS - age))
        except (OSError, ValueError) as error:
            self.problem = str(error)
            return known

    async def _looked_up(self, host: str, wait_seconds: float | None) -> list[str]:
        if self._running is not None and self._host != host:
            await asyncio.wait([self._running], timeout=wait_seconds)
        running = self._begin(host) if self._running is None else self._running
        if self._host == host:
            await asyncio.wait([running], timeout=wait_seconds)
            if running.done():
                return running.result()
        age = asyncio.get_running_loop().time() - self._began_at
        raise LookUpError(f"the look-up of {self._host} has not ended for {age:.1f} s; check the resolver, or give IP addresses")

    def _begin(self, host: str) -> "asyncio.Future[list[str]]":
        loop = asyncio.get_running_loop()
        running: asyncio.Future[list[str]] = loop.create_future()

        def run() -> None:
            found: list[str] | Exception
            try:
                found = resolved(host) or LookUpError(f"{host} has no address")
            except Exception as error:
                found = error
            with suppress(RuntimeError):  # the loop is closed, so nobody waits any more
                loop.call_soon_threadsafe(self._ended, running, found)

        try:
            threading.Thread(target=run, name="look-up", daemon=True).start()
        except RuntimeError as error:  # the process has too many threads
            raise LookUpError(f"{host} cannot be looked up: {error}") from None
        self._running, self._host, self._began_at = running, host, loop.time()
        return running

    def _ended(self, running: "asyncio.Future[list[str]]", found: list[str] | Exception) -> None:
        self._running = None
        if isinstance(found, Exception):
            running.set_exception(found)
            running.exception()  # perhaps nobody waits, and asyncio logs an exception that is never retrieved
        else:
            self._known = self._host, found
            running.set_result(found)

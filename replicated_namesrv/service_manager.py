"""Notifies the service manager through systemd's protocol (sd_notify), which other managers also implement.

Messages are lines of ``NAME=value``, sent to the datagram socket in NOTIFY_SOCKET. Without it nothing is sent. The messages are
READY when brokers and clients are served, RELOADING and READY around a reload, STOPPING, STATUS as text, and WATCHDOG as often as
WATCHDOG_USEC requires. The event loop itself sends the watchdog message, so its absence means that the loop stalls. The message
does not depend on other nodes, because a lost majority must not cause healthy nodes to be killed. A failing notification never
fails the caller. Source: sd_notify(3), sd_watchdog_enabled(3).
"""

import asyncio
import logging
import os
import socket
import time
from collections.abc import MutableMapping

log = logging.getLogger(__name__)


class ServiceManager:
    """The manager of this process, if it has one."""

    def __init__(self, environment: MutableMapping[str, str] | None = None) -> None:
        """Removes the variables from ``environment``, so that child processes do not send messages in this one's name."""
        given = os.environ if environment is None else environment
        self._address = given.pop("NOTIFY_SOCKET", "")
        period, pid = given.pop("WATCHDOG_USEC", ""), given.pop("WATCHDOG_PID", "")
        is_meant = pid in ("", str(os.getpid()))
        self._watchdog_s = int(period) / 1e6 / 2 if period.isdigit() and int(period) > 0 and is_meant else None
        self._timer: asyncio.TimerHandle | None = None

    def ready(self, status: str) -> None:
        """Report that the start, or a reload, is complete."""
        self._tell(f"READY=1\nSTATUS={status}")

    def status(self, status: str) -> None:
        """Report a status text."""
        self._tell(f"STATUS={status}")

    def reloading(self) -> None:
        """Report that a reload begins; ``ready`` ends it."""
        self._tell(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """Report that the stop begins."""
        self._tell("STOPPING=1")
        if self._timer is not None:
            self._timer.cancel()

    def watch(self) -> None:
        """Send watchdog messages from the running event loop from now on."""
        if self._watchdog_s is not None and self._address:
            self._tell("WATCHDOG=1")
            self._timer = asyncio.get_running_loop().call_later(self._watchdog_s, self.watch)

    def _tell(self, message: str) -> None:
        if not self._address:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
                channel.setblocking(False)
                channel.connect(address)
                channel.send(message.encode())
        except OSError as error:
            log.warning("the service manager could not be notified", extra={"text": message, "cause": str(error)})

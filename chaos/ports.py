"""Ports for the processes of a run that no concurrent run uses."""

import fcntl
import random
import socket
from typing import ClassVar

from replicated_namesrv import provision
from replicated_namesrv.child_process import ProcessError

PORT_FIRST, PORT_END = 25_000, 28_000
"""Below the range that Linux uses for outgoing connections, so a port stays free while its process is down."""


class Ports:
    """Reserves ports of 127.0.0.1 for one run.

    Each port is reserved by a lock on its byte of one file. The kernel releases the lock when the process ends.
    """

    _file: ClassVar[int | None] = None
    """Descriptor that stays open while this process runs. Closing it would release all its locks."""

    def __init__(self, count: int, rng: random.Random) -> None:
        """Raises ProcessError if there are not enough ports, ProvisionError if the lock file in the cache folder cannot be
        written.
        """
        if Ports._file is None:
            Ports._file = provision.open_in_cache("chaos-ports.lock")
        self.numbers: list[int] = []
        for port in rng.sample(range(PORT_FIRST, PORT_END), PORT_END - PORT_FIRST):
            if len(self.numbers) == count:
                break
            if self._lock(port, fcntl.LOCK_EX | fcntl.LOCK_NB):
                if _is_free(port):
                    self.numbers.append(port)
                else:
                    self._lock(port, fcntl.LOCK_UN)
        if len(self.numbers) < count:
            found = len(self.numbers)
            self.release()
            raise ProcessError(f"{count} free ports are needed of {PORT_FIRST} to {PORT_END}, {found} are there; end other runs")

    def release(self) -> None:
        """Release the ports."""
        for port in self.numbers:
            self._lock(port, fcntl.LOCK_UN)
        self.numbers = []

    @staticmethod
    def _lock(port: int, operation: int) -> bool:
        assert Ports._file is not None
        try:
            fcntl.lockf(Ports._file, operation, 1, port)
        except OSError:
            return False
        return True


def _is_free(port: int) -> bool:
    with socket.socket() as attempt:
        attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            attempt.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True

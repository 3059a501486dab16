"""Ports for the processes of a run that no concurrent run uses."""

import fcntl
import random
import socket
from collections.abc import Sequence
from typing import ClassVar

from replicated_namesrv import provision
from replicated_namesrv.child_process import ProcessError

PORT_FIRST, PORT_END = 25_000, 28_000
"""First port, and end, of the range of ports. The range is below the one that Linux uses for outgoing connections, so a port
stays free while its process is down."""


class Ports:
    """Reserves ports of 127.0.0.1 for one run.

    Each port is reserved by a lock on its byte of one file. The kernel releases the lock when the process ends.
    """

    _file: ClassVar[int | None] = None
    """Descriptor of the lock file. It stays open while this process runs, because closing it would release all locks of the
    process."""
    _held: ClassVar[set[int]] = set()
    """Ports that this process has reserved. They are noted here because locks of one process do not exclude each other."""

    def __init__(self, count: int, rng: random.Random, offsets: Sequence[int] = (0,)) -> None:
        """``offsets``: further ports that are reserved for each of ``numbers``, as distances from this number. Raises
        ProcessError if there are not enough ports, ProvisionError if the lock file in the cache folder cannot be written.
        """
        if Ports._file is None:
            Ports._file = provision.open_in_cache("chaos-ports.lock")
        self.numbers: list[int] = []
        self._reserved: set[int] = set()
        for port in rng.sample(range(PORT_FIRST, PORT_END), PORT_END - PORT_FIRST):
            if len(self.numbers) == count:
                break
            if self._reserve({port + offset for offset in offsets}):
                self.numbers.append(port)
        if len(self.numbers) < count:
            found = len(self.numbers)
            self.release()
            further = [offset for offset in offsets if offset]
            beside = f" with free ports at the distances {', '.join(map(str, further))}" if further else ""
            raise ProcessError(
                f"{count} free ports from {PORT_FIRST} to {PORT_END - 1}{beside} are needed; {found} were found; end other runs"
            )

    def release(self) -> None:
        """Release the ports."""
        self._unlock(self._reserved)
        self.numbers, self._reserved = [], set()

    def _reserve(self, group: set[int]) -> bool:
        """Reserve all these ports or none."""
        if group & Ports._held:
            return False
        if not all(self._lock(port, fcntl.LOCK_EX | fcntl.LOCK_NB) and is_free(port) for port in group):
            self._unlock(group)
            return False
        Ports._held |= group
        self._reserved |= group
        return True

    def _unlock(self, group: set[int]) -> None:
        for port in group:
            self._lock(port, fcntl.LOCK_UN)
        Ports._held -= group

    @staticmethod
    def _lock(port: int, operation: int) -> bool:
        assert Ports._file is not None
        try:
            fcntl.lockf(Ports._file, operation, 1, port)
        except OSError:
            return False
        return True


def is_free(port: int) -> bool:
    """Whether no process listens on this port of 127.0.0.1."""
    with socket.socket() as attempt:
        attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            attempt.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True

"""Ports of this machine for the processes of a run, which runs of other processes at the same time do not use."""

import fcntl
import random
import socket
from typing import ClassVar

from replicated_namesrv import provision
from replicated_namesrv.child_process import ProcessError

PORT_FIRST, PORT_END = 25_000, 28_000
"""Below the range from which Linux gives ports to outgoing connections: a port stays ours while its owner is down."""


class Ports:
    """Ports of 127.0.0.1 for one run.

    Runs of other processes at the same time get others: each port is held by a lock on its byte of one file, which the kernel
    lets go when the process ends.
    """

    _file: ClassVar[int | None] = None
    """Descriptor, open as long as this process lives: closing it would end all its locks."""

    def __init__(self, count: int, rng: random.Random) -> None:
        """Raises ProcessError: there are not so many; ProvisionError: the cache folder, where the lock is, cannot be written."""
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
        """Let others have them."""
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

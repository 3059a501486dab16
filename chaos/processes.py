"""Child processes that cannot outlive this one.

Each runs in a process group of its own, so that Ctrl-C reaches only the harness, which then ends its children in order; signals
go to the whole group, so that a command may be a script that starts the program. Against a harness that is killed without a
chance to act, the kernel ends each child, paused ones too (but not what a script started without ``exec``).
"""

import asyncio
import contextlib
import fcntl
import os
import random
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple

from replicated_namesrv import provision
from replicated_namesrv.errors import NamesrvError
from replicated_namesrv.orphans import die_with

OUTSIDE_SIGNALS = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
"""Ended by one of these, a process was ended by somebody, an operator or the kernel that ran out of memory."""
SHELL_SIGNALLED = 128
"""A shell whose program was ended by a signal exits with this and the signal's number."""
STOP_TIMEOUT_S = 10.0
"""How long a child may take to stop by itself before it is killed."""
PORT_FIRST, PORT_END = 25_000, 28_000
"""Below the range from which Linux gives ports to outgoing connections: a port stays ours while its owner is down."""


class ProcessError(NamesrvError):
    """A process did not start or ended too early; the text says which and where its output is."""


class Ended(NamedTuple):
    """A process that ended though nobody here had told it to."""

    by_itself: bool
    """False: in order (exit status 0), or by a signal that others send."""
    how: str
    """``exit status 1``, ``SIGSEGV``."""


class ChildProcess:
    """One program, started as often as needed with the same command; its output is appended to one file."""

    def __init__(self, name: str, command: Sequence[str], log_file: Path, environment: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.log_file = log_file
        self._command = list(command)
        self._environment = {**os.environ, **(environment or {})}
        self._process: asyncio.subprocess.Process | None = None
        self.paused = False
        self._told_to_end = False

    @property
    def pid(self) -> int | None:
        """Of the process that runs; None while none does."""
        return self._process.pid if self.running and self._process is not None else None

    @property
    def running(self) -> bool:
        """Started and not ended; a paused process counts as running."""
        return self._process is not None and self._process.returncode is None

    @property
    def state(self) -> str:
        """running, paused or dead."""
        return "dead" if not self.running else "paused" if self.paused else "running"

    @property
    def ended(self) -> Ended | None:
        """How it ended, if it was started and ended unasked."""
        code = self._process.returncode if self._process is not None else None
        if code is None or self._told_to_end:
            return None
        number = -code if code < 0 else code - SHELL_SIGNALLED
        if number <= 0:
            return Ended(code > 0, f"exit status {code}")
        names = {one.value: one.name for one in signal.Signals}
        return Ended(number not in OUTSIDE_SIGNALS, names.get(number, f"signal {number}"))

    async def start(self) -> None:
        """Raises ProcessError."""
        assert not self.running, f"{self.name} runs already"
        try:
            self.log_file.parent.mkdir(parents=True, exist_ok=True)
            with self.log_file.open("ab") as log:
                self._process = await asyncio.create_subprocess_exec(
                    *self._command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=self._environment,
                    process_group=0,
                    preexec_fn=die_with(os.getpid()),
                )
        except OSError as cause:
            raise ProcessError(f"{self.name} cannot be started: {cause}") from cause
        self.paused = self._told_to_end = False

    def check(self) -> None:
        """Raises ProcessError with the end of its output, if it has ended."""
        if not self.running:
            code = self._process.returncode if self._process is not None else None
            raise ProcessError(f"{self.name} ended (exit status {code}), see {self.log_file}: {' | '.join(self.last_lines())}")

    def last_lines(self, count: int = 3) -> list[str]:
        """The end of its output."""
        with contextlib.suppress(OSError), self.log_file.open("rb") as log:
            log.seek(max(0, self.log_file.stat().st_size - 4096))
            return [line[:300] for line in log.read().decode(errors="replace").splitlines()[-count:]]
        return []

    def pause(self) -> None:
        """SIGSTOP: nothing of it runs, its sockets stay open."""
        self._signal(signal.SIGSTOP)
        self.paused = True

    def resume(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)
        self.paused = False

    async def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self._told_to_end = True
        self._signal(signal.SIGKILL)
        if self._process is not None:
            await self._process.wait()
        self.paused = False

    async def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """SIGTERM, and SIGKILL if it is still there after ``timeout_s``."""
        if self._process is None:
            return
        self._told_to_end = True
        self._signal(signal.SIGTERM)
        if self.paused:
            self.resume()
        try:
            async with asyncio.timeout(timeout_s):
                await self._process.wait()
                while self._group_lives():  # noqa: ASYNC110 - nobody tells of what is no child of this process
                    await asyncio.sleep(0.02)
        except TimeoutError:
            await self.kill()

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and (self._process.returncode is None or self._group_lives()):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def _group_lives(self) -> bool:
        """Whether anybody of the group is left, as when a script ends before the program that it started."""
        assert self._process is not None
        try:
            os.killpg(self._process.pid, 0)
        except OSError:
            return False
        return True


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

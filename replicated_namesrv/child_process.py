"""Child processes that cannot outlive this one, and the command line that runs a name server as a child.

Each child has its own process group, so Ctrl-C in a terminal reaches only the parent, which then ends its children in order.
Signals go to the whole group, so a command may be a script that starts the program. If the parent is killed, the kernel ends
each child, also a paused one (Linux only, and not a program that a script started without ``exec``).
"""

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from replicated_namesrv.errors import NamesrvError
from replicated_namesrv.time_limit import ends_within

SERVE = (sys.executable, "-m", "replicated_namesrv", "serve")
"""The program that runs a node. Another program may accept the same options."""
EXIT_ORPHANED = 125
OUTSIDE_SIGNALS = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
"""Signals that an operator sends, and those that the kernel sends for lack of memory."""
SHELL_SIGNALLED = 128
"""The shell's exit status for a program ended by a signal is this plus the signal's number."""
STOP_TIMEOUT_S = 15.0
"""How long a child may take to stop before it is killed."""
LOG_LINE_CHARACTERS = 300
_PR_SET_PDEATHSIG = 1


class ProcessError(NamesrvError):
    """A child process did not start, ended too early or does not serve. The text names it and the file with its output."""


class UnexpectedExit(NamedTuple):
    """How a child ended that its parent did not stop."""

    by_itself: bool
    """False: the process ended normally (exit status 0), or by a signal that other processes send."""
    how: str
    """For example ``exit status 1`` or ``SIGSEGV``."""


class ChildProcess:
    """One program, started as often as needed with the same command. Its output is appended to one file."""

    def __init__(self, name: str, command: Sequence[str], log_file: Path, environment: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.log_file = log_file
        self._command = list(command)
        self._environment = {**os.environ, **(environment or {})}
        self._process: asyncio.subprocess.Process | None = None
        self.paused = False
        self._told_to_end = False
        self._log_from = 0  # where the output of the latest process begins

    @property
    def pid(self) -> int | None:
        """Process id; None while it does not run."""
        return self._process.pid if self.running and self._process is not None else None

    @property
    def running(self) -> bool:
        """Whether it is started and has not ended. A paused process counts as running."""
        return self._process is not None and self._process.returncode is None

    @property
    def state(self) -> str:
        """running, paused or dead."""
        return "dead" if not self.running else "paused" if self.paused else "running"

    @property
    def exit_code(self) -> int | None:
        """Exit code of the latest process; negative for a signal. None before the first start and while it runs."""
        return self._process.returncode if self._process is not None else None

    @property
    def ended(self) -> UnexpectedExit | None:
        """How it ended, if it was started and not stopped by this process."""
        code = self.exit_code
        if code is None or self._told_to_end:
            return None
        number = -code if code < 0 else code - SHELL_SIGNALLED
        names = {one.value: one.name for one in signal.Signals}
        if number not in names:  # this includes exit statuses above 128 that no signal explains, such as 255
            return UnexpectedExit(code > 0, f"exit status {code}")
        return UnexpectedExit(number not in OUTSIDE_SIGNALS, names[number])

    async def start(self) -> None:
        """Run the program. Raises ProcessError."""
        assert not self.running, f"{self.name} runs already"
        try:
            self.log_file.parent.mkdir(parents=True, exist_ok=True)
            with self.log_file.open("ab") as log:
                self._log_from = log.tell()
                self._process = await asyncio.create_subprocess_exec(*self._command, env=self._environment, **_spawn_options(log))
        except OSError as cause:
            raise ProcessError(f"{self.name} cannot be started: {cause}; check {self.log_file.parent}") from cause
        self.paused = self._told_to_end = False

    def check(self) -> None:
        """Raise ProcessError with the end of its output if it has ended."""
        if not self.running:
            words = " | ".join(self.last_lines())
            raise ProcessError(f"{self.name} ended (exit status {self.exit_code}), see {self.log_file}: {words}")

    def last_lines(self, count: int = 3) -> list[str]:
        """The last lines of the latest process's output; long lines are cut."""
        with contextlib.suppress(OSError), self.log_file.open("rb") as log:
            log.seek(max(self._log_from, self.log_file.stat().st_size - 8192))
            lines = log.read().decode(errors="replace").splitlines()[-count:]
            return [line if len(line) <= LOG_LINE_CHARACTERS else line[:LOG_LINE_CHARACTERS] + " …" for line in lines]
        return []

    async def wait(self) -> int:
        """Wait for the end of the latest process and return its exit code."""
        assert self._process is not None
        return await self._process.wait()

    def pause(self) -> None:
        """SIGSTOP: it does not run, but its sockets stay open."""
        self._signal(signal.SIGSTOP)
        self.paused = True

    def resume(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)
        self.paused = False

    def terminate(self) -> None:
        """Send SIGTERM. ``stop`` also waits for the end."""
        self._told_to_end = True
        self._signal(signal.SIGTERM)

    async def kill(self) -> None:
        """Send SIGKILL and wait for the end."""
        self._told_to_end = True
        self._signal(signal.SIGKILL)
        if self._process is not None:
            await self._process.wait()
        self.paused = False

    async def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> bool:
        """Send SIGTERM, and SIGKILL after ``timeout_s``. Returns whether SIGTERM sufficed."""
        if self._process is None:
            return True
        self.terminate()
        if self.paused:
            self.resume()
        if await ends_within(timeout_s, self._ended(self._process)):
            return True
        await self.kill()
        return False

    async def _ended(self, process: asyncio.subprocess.Process) -> None:
        """Wait until the process and everything that it started have ended."""
        await process.wait()
        while self._group_lives():  # noqa: ASYNC110 - no event signals the end of a grandchild
            await asyncio.sleep(0.02)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and (self._process.returncode is None or self._group_lives()):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def _group_lives(self) -> bool:
        """Whether any process of the group is left, as when a script ends before the program that it started."""
        assert self._process is not None
        try:
            os.killpg(self._process.pid, 0)
        except OSError:
            return False
        return True


def start_process(command: Sequence[str], log_file: Path) -> "subprocess.Popen[bytes]":
    """Start the program for a caller without an event loop, which stops the process itself."""
    log_file.parent.mkdir(parents=True, exist_ok=True)
    with log_file.open("ab") as log:
        return subprocess.Popen(command, **_spawn_options(log))


def _spawn_options(log: BinaryIO) -> dict[str, Any]:
    return {
        "stdin": subprocess.DEVNULL,
        "stdout": log,
        "stderr": log,
        "process_group": 0,
        "preexec_fn": die_with(os.getpid()),
    }


def die_with(parent_pid: int) -> Callable[[], None]:
    """A function for a child of ``parent_pid`` to call between fork and exec. It makes the kernel kill the child, paused or
    not, when the parent ends.

    No-op on systems other than Linux. The kernel treats the end of the forking thread as the end of the parent."""
    if not sys.platform.startswith("linux"):
        return lambda: None
    prctl = ctypes.CDLL(None).prctl  # looked up here, before the fork, because little is allowed between fork and exec

    def set_death_signal() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent_pid:  # the parent ended before the kernel was asked to kill this child
            os._exit(EXIT_ORPHANED)

    return set_death_signal


def serve_command(
    node_id: str,
    listen: str,
    admin: str,
    data_dir: Path,
    mode: str,
    settings: Iterable[str] = (),
    program: Sequence[str] = SERVE,
) -> list[str]:
    """The command line of ``namesrv serve``. Addresses are ``host:port``; ``settings`` are ``NAME=VALUE``."""
    return [
        *program,
        *("--node-id", node_id, "--listen", listen, "--admin", admin),
        *("--data-dir", str(data_dir), "--mode", mode),
        *(word for setting in settings for word in ("--set", setting)),
    ]

"""Child processes that cannot outlive this one, and the command line that runs a name server as one.

Each child runs in a process group of its own, so that Ctrl-C in a terminal reaches only the parent, which then ends its children
in order. Signals go to the whole group, so that a command may be a script that starts the program. If the parent is killed and
cannot end anything itself, the kernel ends each child, a paused one too (Linux; not what a script started without ``exec``).
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

SERVE = (sys.executable, "-m", "replicated_namesrv", "serve")
"""What runs a node; another program may take the same options."""
EXIT_ORPHANED = 125
OUTSIDE_SIGNALS = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
"""A process that one of these ended was ended by an operator, or by the kernel for lack of memory."""
SHELL_SIGNALLED = 128
"""A shell whose program was ended by a signal exits with this and the signal's number."""
STOP_TIMEOUT_S = 15.0
"""How long a child may take to stop by itself before it is killed."""
LOG_LINE_CHARACTERS = 300
_PR_SET_PDEATHSIG = 1


class ProcessError(NamesrvError):
    """A child process did not start, ended too early or does not serve; the text says which and where its output is."""


class UnexpectedExit(NamedTuple):
    """How a process ended that this one had not told to end."""

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
    def exit_code(self) -> int | None:
        """Of the latest process; negative: the signal that ended it. None before the first start and while it runs."""
        return self._process.returncode if self._process is not None else None

    @property
    def ended(self) -> UnexpectedExit | None:
        """How it ended, if it was started and was not told to end."""
        code = self.exit_code
        if code is None or self._told_to_end:
            return None
        number = -code if code < 0 else code - SHELL_SIGNALLED
        names = {one.value: one.name for one in signal.Signals}
        if number not in names:  # also exit statuses above 128 that no signal explains, such as 255
            return UnexpectedExit(code > 0, f"exit status {code}")
        return UnexpectedExit(number not in OUTSIDE_SIGNALS, names[number])

    async def start(self) -> None:
        """Run the program. Raises ProcessError."""
        assert not self.running, f"{self.name} runs already"
        try:
            self.log_file.parent.mkdir(parents=True, exist_ok=True)
            with self.log_file.open("ab") as log:
                self._process = await asyncio.create_subprocess_exec(*self._command, env=self._environment, **_spawn_options(log))
        except OSError as cause:
            raise ProcessError(f"{self.name} cannot be started: {cause}; check {self.log_file.parent}") from cause
        self.paused = self._told_to_end = False

    def check(self) -> None:
        """Raises ProcessError with the end of its output, if it has ended."""
        if not self.running:
            words = " | ".join(self.last_lines())
            raise ProcessError(f"{self.name} ended (exit status {self.exit_code}), see {self.log_file}: {words}")

    def last_lines(self, count: int = 3) -> list[str]:
        """The end of its output; long lines are cut."""
        with contextlib.suppress(OSError), self.log_file.open("rb") as log:
            log.seek(max(0, self.log_file.stat().st_size - 8192))
            lines = log.read().decode(errors="replace").splitlines()[-count:]
            return [line if len(line) <= LOG_LINE_CHARACTERS else line[:LOG_LINE_CHARACTERS] + " …" for line in lines]
        return []

    async def wait(self) -> int:
        """Exit code of the latest process, once it has ended."""
        assert self._process is not None
        return await self._process.wait()

    def pause(self) -> None:
        """SIGSTOP: nothing of it runs, its sockets stay open."""
        self._signal(signal.SIGSTOP)
        self.paused = True

    def resume(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)
        self.paused = False

    def terminate(self) -> None:
        """SIGTERM; ``stop`` also waits for the end."""
        self._told_to_end = True
        self._signal(signal.SIGTERM)

    async def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self._told_to_end = True
        self._signal(signal.SIGKILL)
        if self._process is not None:
            await self._process.wait()
        self.paused = False

    async def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> bool:
        """SIGTERM, and SIGKILL if it is still there after ``timeout_s``; whether it stopped by itself."""
        if self._process is None:
            return True
        self.terminate()
        if self.paused:
            self.resume()
        try:
            async with asyncio.timeout(timeout_s):
                await self._process.wait()
                while self._group_lives():  # noqa: ASYNC110 - nothing notifies of a process that is no child of this one
                    await asyncio.sleep(0.02)
        except TimeoutError:
            await self.kill()
            return False
        return True

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and (self._process.returncode is None or self._group_lives()):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def _group_lives(self) -> bool:
        """Whether a process of the group is left, as when a script ends before the program that it started."""
        assert self._process is not None
        try:
            os.killpg(self._process.pid, 0)
        except OSError:
            return False
        return True


def start_process(command: Sequence[str], log_file: Path) -> "subprocess.Popen[bytes]":
    """The same for a caller without an event loop, which ends the process itself."""
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
    """What a child of ``parent_pid`` does between fork and exec, so that the kernel kills it, paused or not, when that process is
    gone. Has no effect on other systems than Linux. The death of the thread that forks counts as the parent's."""
    if not sys.platform.startswith("linux"):
        return lambda: None
    prctl = ctypes.CDLL(None).prctl  # looked up here: after the fork as little as possible may happen

    def set_death_signal() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent_pid:  # the parent died before the line above
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

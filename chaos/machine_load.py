"""How much other load slows the processes of a run, from the scheduler's statistics (Linux, ``/proc/PID/schedstat``).

The slowdown of a process is the time in which it ran or waited for a core, divided by the time in which it ran. Without other
load it is near 1, and it does not depend on how fast the cores are. A promise about time is judged only if the slowdown is small.
"""

import os
from collections.abc import Callable, Iterable
from pathlib import Path


class MachineLoad:
    """The slowdown of this process and some others since the last ``take``."""

    def __init__(self, pids: Callable[[], Iterable[int]]) -> None:
        """``pids``: the other processes that run now."""
        self._pids = pids
        self._last: dict[int, tuple[int, int]] = {}
        self._ran_ns = self._waited_ns = 0

    def sample(self) -> None:
        """Add the times since the last sample. The times of a process that has ended since then are lost."""
        now = {pid: found for pid in (os.getpid(), *self._pids()) if (found := _schedstat(pid)) is not None}
        for pid, (ran_ns, waited_ns) in now.items():
            before_ran_ns, before_waited_ns = self._last.get(pid, (0, 0))
            # the times of a thread that has ended are no longer in the sum
            self._ran_ns += max(ran_ns - before_ran_ns, 0)
            self._waited_ns += max(waited_ns - before_waited_ns, 0)
        self._last = now

    def take(self) -> float | None:
        """The slowdown since the last call. None: the system does not report it."""
        self.sample()
        ran_ns, waited_ns, self._ran_ns, self._waited_ns = self._ran_ns, self._waited_ns, 0, 0
        return round((ran_ns + waited_ns) / ran_ns, 2) if ran_ns > 0 else None


def _schedstat(pid: int) -> tuple[int, int] | None:
    """(nanoseconds run, nanoseconds waited for a core) of all threads of a process. The first thread of a JVM does no work."""
    ran_ns = waited_ns = 0
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return None
    for thread in threads:
        try:
            ran, waited, _ = (thread / "schedstat").read_text(encoding="ascii").split()
        except (OSError, ValueError):
            continue
        ran_ns, waited_ns = ran_ns + int(ran), waited_ns + int(waited)
    return (ran_ns, waited_ns) if ran_ns else None

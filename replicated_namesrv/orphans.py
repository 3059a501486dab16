"""No orphans: a child process that ends with its parent, also with one that is killed and can end nothing itself (Linux)."""

import ctypes
import os
import signal
import sys
from collections.abc import Callable

EXIT_ORPHANED = 125
_PR_SET_PDEATHSIG = 1


def die_with(parent_pid: int) -> Callable[[], None]:
    """What a child of ``parent_pid`` has to do between fork and exec, so that the kernel kills it, paused or not, when that
    process is gone. Nothing on other systems than Linux. The death of the thread that forks counts as the parent's."""
    if not sys.platform.startswith("linux"):
        return lambda: None
    prctl = ctypes.CDLL(None).prctl  # looked up here: after the fork as little as possible may happen

    def set_death_signal() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent_pid:  # the parent died before the line above
            os._exit(EXIT_ORPHANED)

    return set_death_signal

"""Processes of jobs that tests start: waiting for them, and finding those that are left."""

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PATIENCE_S = 300.0


def wait_for(condition: Callable[[], Any], said: Callable[[], str]) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while not (value := condition()):
        assert time.monotonic() < deadline, said()
        time.sleep(0.1)
    return value


def processes_of(folder: Path) -> list[str]:
    """Command lines of processes that name ``folder``, in them or in their environment."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            with contextlib.suppress(OSError):
                if str(folder).encode() in (process / "cmdline").read_bytes() + (process / "environ").read_bytes():
                    found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found

"""Waiting for a condition: the only way in which a test lets time pass."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
PAUSE_S = 0.02
"""Pause between two looks at a condition."""


def wait_until(condition: Callable[[], T], what: str, timeout_s: float = 30) -> T:
    """The first true value of ``condition``. An OSError counts as false. After ``timeout_s`` an AssertionError that names
    ``what``."""
    deadline = time.monotonic() + timeout_s
    last: object = None
    while time.monotonic() < deadline:
        try:
            value = condition()
            if value:
                return value
            last = value
        except OSError as error:
            last = error
        time.sleep(PAUSE_S)
    raise AssertionError(f"waited {timeout_s} s in vain for {what}; last seen: {last!r}")


def is_alive(pid: int) -> bool:
    """Whether the process runs (a zombie does not). It need not be a child of this one."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def until(condition: Callable[[], T], what: str, timeout_s: float = 30) -> T:
    """``wait_until`` for a condition of this event loop, which continues to run."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() >= deadline:
            raise AssertionError(f"waited {timeout_s} s in vain for {what}; last seen: {value!r}")
        await asyncio.sleep(PAUSE_S)
    return value

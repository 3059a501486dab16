"""The work of a call, counted instead of timed."""

import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import replicated_namesrv

_OURS = str(Path(replicated_namesrv.__file__).parent)


class Work(NamedTuple):
    """The cost of a call."""

    lines: int
    hashes: int
    bytes: int


class Name(str):
    """A text that counts how often it is hashed."""

    __slots__ = ()
    hashed = 0

    def __hash__(self) -> int:
        Name.hashed += 1
        return str.__hash__(self)

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return str.__ne__(self, other)


def work_of(call: Callable[[], Any]) -> Work:
    """Run ``call`` once, and return its cost."""
    tracemalloc.start()
    held, _ = tracemalloc.get_traced_memory()
    try:
        lines, hashes = operations_of(call)
    finally:
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return Work(lines, hashes, most - held)


def operations_of(call: Callable[[], Any]) -> tuple[int, int]:
    """Run ``call`` once, and return the executed lines of our code and the hashed names. It is faster than ``work_of``."""
    lines = 0

    def line(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return line

    def entered(frame: FrameType, event: str, argument: object) -> Any:
        return line if frame.f_code.co_filename.startswith(_OURS) else None

    before = sys.gettrace()
    hashed = Name.hashed
    sys.settrace(entered)
    try:
        call()
    finally:
        sys.settrace(before)
    return lines, Name.hashed - hashed

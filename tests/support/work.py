"""How much work a call does, counted and not timed.

Three counts, since none sees everything:

- lines of the program's own code (what loops in Python cost);
- hashes of ``Name``, a text that counts them (what dictionaries and sets do for each name, loops in C included);
- the most bytes that were held at a time beyond those before (copies, joined bytes, JSON).

None of them sees a loop in C that allocates nothing and hashes no name: a sum of numbers, a copy of one dictionary into another
that has its size already. Such loops take some 10 ns for each entry.
"""

import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import replicated_namesrv

_OURS = str(Path(replicated_namesrv.__file__).parent)


class Work(NamedTuple):
    """What a call cost."""

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
    """Run ``call`` once."""
    lines = 0

    def line(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return line

    def entered(frame: FrameType, event: str, argument: object) -> Any:
        return line if frame.f_code.co_filename.startswith(_OURS) else None

    before = sys.gettrace()
    hashed = Name.hashed
    tracemalloc.start()
    held, _ = tracemalloc.get_traced_memory()
    sys.settrace(entered)
    try:
        call()
    finally:
        sys.settrace(before)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return Work(lines, Name.hashed - hashed, most - held)

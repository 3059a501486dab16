"""Coverage-guided fuzzing: an input that reaches new lines of the product is kept and mutated further.

Without a dependency: ``sys.settrace`` on the product's files says which lines ran. As it costs several times the parser, only a
share of the inputs is traced. Everything follows from the seed.
"""

import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import CodeType, FrameType
from typing import Any

from tests.fuzz.targets import Target

CORPUS = Path(__file__).parent / "corpus"
TRACED_SHARE = 0.1
INPUT_BYTES_MAX = 4_096
POPULATION_MAX = 500
CPU_SECONDS_MAX = 2.0
"""Limit for one input."""
GROWTH_KIB_MAX = 256 << 10
"""Limit for the process, over all inputs of a target."""
NUMBERS = tuple(
    value.to_bytes(size, "little" if little else "big")
    for size in (1, 2, 4, 8)
    for little in (False, True)
    for value in (0, 1, (1 << 8 * size) - 1, 1 << 8 * size - 1)
)
TOKENS = (
    *(b"{", b"}", b"[", b"]", b'"', b":", b",", b"\\u", b"\\", b"null", b"true", b"-1", b"1e999", b"9" * 30, b"9" * 5_000),
    *(b"\x00", b"\xff", b"\xed\xa0\x80", b"\r\n", b"\n", b" ", b"=", b"[" * 300, b'{"a":' * 100, b"PROXY TCP4 ", b"\x80" * 20),
)


class FuzzError(AssertionError):
    """A defect, with the command that repeats it."""


def corpus_of(name: str) -> list[bytes]:
    """The kept inputs of a target."""
    files = sorted((CORPUS / name).glob("*.hex"))
    return [bytes.fromhex(file.read_text()) for file in files]


def mutated(data: bytes, rng: Random, others: list[bytes]) -> bytes:
    """``data`` after one to four changes."""
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(found) + 1)
        kind = rng.randrange(8)
        if kind == 0 and found:
            found[at % len(found)] ^= 1 << rng.randrange(8)
        elif kind == 1 and found:
            found[at % len(found)] = rng.randrange(256)
        elif kind == 2:
            del found[at : at + rng.choice((1, 2, 4, 16))]
        elif kind == 3:
            found[at:at] = rng.choice(TOKENS)
        elif kind == 4:
            number = rng.choice(NUMBERS)
            found[at : at + len(number)] = number
        elif kind == 5:
            found[at:at] = found[at : at + rng.randrange(1, 64)]
        elif kind == 6:
            other = rng.choice(others)
            start = rng.randrange(len(other) + 1)
            found[at:] = other[start:]
        else:
            del found[at:]
    return bytes(found[:INPUT_BYTES_MAX])


class Coverage:
    """The lines of the product that were reached."""

    def __init__(self) -> None:
        self._seen: set[tuple[CodeType, int]] = set()
        self._is_ours: dict[str, bool] = {}

    def reaches_more(self, act: Callable[[], None]) -> bool:
        """Run ``act``. Returns whether it reached a line for the first time."""
        before = len(self._seen)
        sys.settrace(self._call)
        try:
            act()
        finally:
            sys.settrace(None)
        return len(self._seen) > before

    def _call(self, frame: FrameType, event: str, argument: Any) -> Any:
        file = frame.f_code.co_filename
        ours = self._is_ours.get(file)
        if ours is None:
            ours = self._is_ours[file] = "replicated_namesrv" in file
        return self._line if ours else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        self._seen.add((frame.f_code, frame.f_lineno))
        return self._line


def attempt(name: str, target: Target, data: bytes, how: str) -> None:
    """Give ``data`` to the parser. Raises FuzzError if the oracle is violated."""
    began = time.process_time()
    try:
        target.run(data)
    except target.errors:
        pass
    except Exception as error:
        shown = data.hex() if len(data) <= 600 else f"{data[:300].hex()}… ({len(data)} bytes)"
        raise FuzzError(f"{name}: {type(error).__name__}: {error}\n  input (hex): {shown}\n  repeat: {how}") from error
    if time.process_time() - began > CPU_SECONDS_MAX:
        raise FuzzError(f"{name}: {len(data)} bytes took more than {CPU_SECONDS_MAX} s of CPU\n  {data.hex()}\n  repeat: {how}")


def fuzz(name: str, target: Target, seed: int, count: int) -> int:
    """Try ``count`` inputs; how many were kept for new lines. Raises FuzzError."""
    how = f"python -m tests.fuzz --target {name} --seed {seed} --inputs-per-target {count}"
    rng, coverage = Random(f"{seed}/{name}"), Coverage()
    memory_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    population = corpus_of(name)
    assert population, f"{CORPUS / name} has no inputs"
    for data in population:
        coverage.reaches_more(lambda data=data: attempt(name, target, data, how))  # type: ignore[misc]  # mypy infers no type for a default of a lambda
    kept = 0
    for _ in range(count - len(population)):
        data = mutated(rng.choice(population), rng, population)
        if target.repair is not None and rng.random() < 0.7:
            data = target.repair(data)
        if rng.random() >= TRACED_SHARE:
            attempt(name, target, data, how)
        elif coverage.reaches_more(lambda data=data: attempt(name, target, data, how)):  # type: ignore[misc]  # mypy infers no type for a default of a lambda
            kept += 1
            if len(population) < POPULATION_MAX:
                population.append(data)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory_before
    if grown > GROWTH_KIB_MAX:
        raise FuzzError(f"{name}: the process grew by {grown} KiB\n  repeat: {how}")
    return kept

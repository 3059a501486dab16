"""A simulated world without randomness: every draw has a given result, so a transcript depends on its script alone."""

from collections.abc import Callable, Iterator
from itertools import count
from random import Random
from typing import TypeVar

from replicated_namesrv.simulation.world import World

T = TypeVar("T")
MIDDLE = 0.5


class Steady(Random):
    """A deterministic random source: ``random`` returns ``share``, numbers are consecutive, and the first of several choices
    is taken.
    """

    def __init__(self, share: Callable[[], float], numbers: Iterator[int]) -> None:
        super().__init__(0)
        self._share, self._numbers = share, numbers

    def random(self) -> float:
        return self._share()

    def getrandbits(self, k: int) -> int:
        return (1 << (k - 1)) + 2 * next(self._numbers)

    def choice(self, seq: T) -> object:  # type: ignore[override]  # narrower than typeshed's SupportsLenAndGetItem
        return seq[0]  # type: ignore[index]  # T is any sequence

    def randint(self, a: int, b: int) -> int:
        return a

    def randbytes(self, n: int) -> bytes:
        return bytes(n)


class SteadyWorld(World):
    """``shares``: node -> where in its range the node's election time-out lies, from 0 to 1."""

    def __init__(self) -> None:
        super().__init__(0)
        self.shares: dict[str, float] = {}
        self._numbers = count(1)

    def random(self, stream: str) -> Random:
        first, _, rest = stream.partition("/")
        if rest.endswith("service"):
            return Random(next(self._numbers))  # sessions of a name server must differ from boot to boot
        return Steady(lambda: self.shares.get(first, MIDDLE), self._numbers)

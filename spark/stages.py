"""Stages that run side by side: each begins once what it is made of is there.

A stage is mostly planning, which takes one core, and small jobs, which do not fill two; so several are made at once, each by a
thread with its own connection to the JVM. Where one fails, or the caller is interrupted, none begins any more, and those that
had begun have ended before that is told: what they wrote can be removed then and does not come back.

A stage names the stages that it is made of as values of Python, so a type checker follows what is made of what, and a stage
cannot be made of one that is declared after it: there are no cycles.
"""

import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from graphlib import TopologicalSorter
from typing import Any, Generic, TypeVar, overload

from pyspark.sql import DataFrame

THREADS = 4
CANCEL_S = 30.0
"""Longest wait for cancelled stages to end."""
_CANCEL_AGAIN_S = 0.2

_T = TypeVar("_T")
_A = TypeVar("_A")
_B = TypeVar("_B")
_C = TypeVar("_C")
_D = TypeVar("_D")


class Stage(Generic[_T]):
    """Something that is made of the values of other stages."""

    def __init__(self, name: str, make: Callable[..., _T], of: tuple["Stage[Any]", ...] = ()) -> None:
        self.name, self.of = name, of
        self._make = make
        self._value: _T
        self._is_made = False

    @property
    def value(self) -> _T:
        """What was made. Raises RuntimeError before that."""
        if not self._is_made:
            raise RuntimeError(f"stage {self.name} has not been made")
        return self._value

    def make(self) -> None:
        """Make it of what it is made of, which has been made."""
        self._value = self._make(*(stage.value for stage in self.of))
        self._is_made = True


def given(value: _T) -> Stage[_T]:
    """A stage that is made already."""
    stage = Stage("given", lambda: value)
    stage.make()
    return stage


Finish = Callable[[str, DataFrame], _T]
"""Has the table of a stage computed, which it is told with the stage's name; what it returns is the stage's value."""


class Stages:
    """Stages that are declared one after the other and then made side by side."""

    def __init__(self, done: Callable[[str], None], cancel: Callable[[], None]) -> None:
        """``done`` is called with the name of each stage that is made, by the calling thread; ``cancel`` ends jobs that run."""
        self._done, self._cancel = done, cancel
        self._stages: list[Stage[Any]] = []

    @overload
    def add(self, name: str, finish: Finish[_T], make: Callable[[], DataFrame], /) -> Stage[_T]: ...
    @overload
    def add(self, name: str, finish: Finish[_T], make: Callable[[_A], DataFrame], a: Stage[_A], /) -> Stage[_T]: ...
    @overload
    def add(
        self, name: str, finish: Finish[_T], make: Callable[[_A, _B], DataFrame], a: Stage[_A], b: Stage[_B], /
    ) -> Stage[_T]: ...
    @overload
    def add(
        self,
        name: str,
        finish: Finish[_T],
        make: Callable[[_A, _B, _C], DataFrame],
        a: Stage[_A],
        b: Stage[_B],
        c: Stage[_C],
        /,
    ) -> Stage[_T]: ...
    @overload
    def add(
        self,
        name: str,
        finish: Finish[_T],
        make: Callable[[_A, _B, _C, _D], DataFrame],
        a: Stage[_A],
        b: Stage[_B],
        c: Stage[_C],
        d: Stage[_D],
        /,
    ) -> Stage[_T]: ...
    def add(self, name: str, finish: Finish[_T], make: Callable[..., DataFrame], /, *of: Stage[Any]) -> Stage[_T]:
        """Declare what ``finish`` gives for the table that ``make`` makes of the values of these stages."""
        stage = Stage(name, lambda *values: finish(name, make(*values)), of)
        self._stages.append(stage)
        return stage

    def run(self) -> None:
        """Make all of them. Of stages that are ready the one that was declared first goes first."""
        own = set(self._stages)
        sorter = TopologicalSorter({stage: [of for of in stage.of if of in own] for stage in self._stages})
        sorter.prepare()
        pool = ThreadPoolExecutor(THREADS, "stage")
        running: dict[Future[None], Stage[Any]] = {}
        try:
            while sorter.is_active():
                for stage in sorted(sorter.get_ready(), key=self._stages.index):
                    running[pool.submit(stage.make)] = stage
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    stage = running.pop(future)
                    future.result()
                    self._done(stage.name)
                    sorter.done(stage)
        except BaseException:
            pool.shutdown(wait=False)
            begun = [future for future in running if not future.cancel()]
            until = time.monotonic() + CANCEL_S
            while wait(begun, _CANCEL_AGAIN_S).not_done and time.monotonic() < until:
                self._cancel()
            raise
        pool.shutdown()

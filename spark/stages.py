"""Runs stages side by side: each begins when its inputs are complete.

A stage is mostly planning, which uses one core, and small jobs, which do not use two. So several stages run at once, each in a
thread with its own connection to the JVM. If a stage fails or the caller is interrupted, no further stage begins, and the
error is raised after the running ones have ended. Their files can then be removed without being written again.

A stage names its inputs as Python values. So a type checker checks the connections, and a stage cannot depend on one that is
declared later: there are no cycles.
"""

import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from graphlib import TopologicalSorter
from typing import Any, Generic, TypeVar, overload

from pyspark.sql import DataFrame

THREADS = 4
CANCEL_S = 30.0
"""Time limit for cancelled stages to end."""
_CANCEL_AGAIN_S = 0.2

_T = TypeVar("_T")
_A = TypeVar("_A")
_B = TypeVar("_B")
_C = TypeVar("_C")
_D = TypeVar("_D")


class Stage(Generic[_T]):
    """A value that is computed from the values of other stages."""

    def __init__(self, name: str, make: Callable[..., _T], of: tuple["Stage[Any]", ...] = ()) -> None:
        self.name, self.of = name, of
        self._make = make
        self._value: _T
        self._is_made = False

    @property
    def value(self) -> _T:
        """The computed value. Raises RuntimeError if it is not computed yet."""
        if not self._is_made:
            raise RuntimeError(f"stage {self.name} has not been made")
        return self._value

    def make(self) -> None:
        """Compute the value. All inputs must be complete."""
        self._value = self._make(*(stage.value for stage in self.of))
        self._is_made = True


def given(value: _T) -> Stage[_T]:
    """A stage with a given value."""
    stage = Stage("given", lambda: value)
    stage.make()
    return stage


Finish = Callable[[str, DataFrame], _T]
"""Computes the table of a stage with this name. The result is the stage's value."""


class Stages:
    """Stages that are declared in order and then run side by side."""

    def __init__(self, done: Callable[[str], None], cancel: Callable[[], None]) -> None:
        """``done`` is called by the calling thread with the name of each completed stage; ``cancel`` ends running jobs."""
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
        """Declare a stage: ``finish`` of the table that ``make`` computes from the values of these stages."""
        stage = Stage(name, lambda *values: finish(name, make(*values)), of)
        self._stages.append(stage)
        return stage

    def run(self) -> None:
        """Run all stages. Of the ready stages the one declared first goes first."""
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

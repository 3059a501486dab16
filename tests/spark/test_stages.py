"""Stages side by side: order, concurrency, and that none begins after a failure or an interruption."""

import math
from threading import Barrier, Event
from typing import Any

import pytest

from replicated_namesrv.spark.stages import THREADS, Stages, given

LONG_S = 60.0


def made_of(*tables: Any) -> Any:
    return tables


def nothing(*_: Any) -> None:
    """Reports nothing."""


def test_a_stage_is_made_of_those_that_it_names() -> None:
    told: list[str] = []

    def named(name: str, table: Any) -> tuple[str, Any]:
        return name, table

    stages = Stages(told.append, nothing)
    right = stages.add("right", named, made_of)
    left = stages.add("left", named, made_of, given("g"))
    both = stages.add("both", named, made_of, left, right)
    last = stages.add("last", named, made_of, both, given("g"))
    with pytest.raises(RuntimeError, match="last has not been made"):
        _ = last.value
    stages.run()
    assert both.value == ("both", (("left", ("g",)), ("right", ())))
    assert last.value == ("last", (both.value, "g"))
    assert sorted(told) == ["both", "last", "left", "right"]
    assert told.index("both") > max(told.index("left"), told.index("right"))
    assert told[-1] == "last"


def test_stages_that_need_not_wait_for_each_other_run_at_once() -> None:
    together = Barrier(THREADS, timeout=LONG_S)
    stages = Stages(nothing, nothing)
    for number in range(THREADS):
        stages.add(str(number), lambda name, table: together.wait(), made_of)
    stages.run()


class _Failure(BaseException):
    """Like an interruption, not an Exception."""


@pytest.mark.parametrize("failure", [ValueError, _Failure])
def test_a_failure_is_told_once_what_had_begun_has_ended(failure: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replicated_namesrv.spark.stages.CANCEL_S", math.inf)  # those that never began are not waited for
    began, cancelled = Event(), Event()
    ended: list[str] = []

    def finish(name: str, table: Any) -> None:
        if name == "fails":
            assert began.wait(LONG_S)
            raise failure(name)
        began.set()
        assert cancelled.wait(LONG_S), "the job is ended before the failure is told"
        ended.append(name)

    stages = Stages(nothing, cancelled.set)
    runs, fails = stages.add("runs", finish, made_of), stages.add("fails", finish, made_of)
    stages.add("never", finish, made_of, runs)
    stages.add("after it", finish, made_of, fails)
    with pytest.raises(failure, match="fails"):
        stages.run()
    assert ended == ["runs"]


def test_an_interruption_of_the_caller_ends_what_had_begun() -> None:
    cancelled = Event()
    ended: list[str] = []

    def finish(name: str, table: Any) -> None:
        if name != "quick":
            assert cancelled.wait(LONG_S)
            ended.append(name)

    def interrupted(name: str) -> None:
        raise KeyboardInterrupt(name)

    stages = Stages(interrupted, cancelled.set)
    quick, runs = stages.add("quick", finish, made_of), stages.add("runs", finish, made_of)
    stages.add("never", finish, made_of, quick, runs)
    with pytest.raises(KeyboardInterrupt, match="quick"):
        stages.run()
    assert ended in ([], ["runs"]), "it may not have begun"

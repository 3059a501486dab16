"""Stages beside each other: order, what runs at once, and that nothing goes on after a failure or an interruption."""

import math
from threading import Barrier, Event
from typing import Any

import pytest

from replicated_namesrv.spark.stages import THREADS, Stage, run

LONG_S = 60.0


def made_of(*tables: Any) -> Any:
    return tables


def nothing(*_: Any) -> None:
    """Nobody is told."""


def test_a_stage_is_made_of_those_that_it_names() -> None:
    told: list[str] = []
    stages = {
        "last": Stage(made_of, ("both", "given")),
        "both": Stage(made_of, ("left", "right")),
        "left": Stage(made_of, ("given",)),
        "right": Stage(made_of, ()),
    }
    made = run(stages, {"given": "g"}, lambda name, table: (name, table), told.append, nothing)
    left, right = ("left", ("g",)), ("right", ())
    both = ("both", (left, right))
    assert made == {"left": left, "right": right, "both": both, "last": ("last", (both, "g"))}
    assert sorted(told) == sorted(stages)
    assert told.index("both") > max(told.index("left"), told.index("right"))


def test_stages_that_need_not_wait_for_each_other_run_at_once() -> None:
    together = Barrier(THREADS, timeout=LONG_S)
    stages = {str(number): Stage(made_of, ()) for number in range(THREADS)}
    run(stages, {}, lambda name, table: together.wait(), nothing, nothing)


class _Failure(BaseException):
    """As an interruption is: no Exception."""


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

    stages = {
        "runs": Stage(made_of, ()), "fails": Stage(made_of, ()), "never": Stage(made_of, ("runs",)),
        "after it": Stage(made_of, ("fails",)),
    }  # fmt: skip
    with pytest.raises(failure, match="fails"):
        run(stages, {}, finish, nothing, cancelled.set)
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

    stages = {"quick": Stage(made_of, ()), "runs": Stage(made_of, ()), "never": Stage(made_of, ("quick", "runs"))}
    with pytest.raises(KeyboardInterrupt, match="quick"):
        run(stages, {}, finish, interrupted, cancelled.set)
    assert ended in ([], ["runs"]), "it may not have begun"

"""Stages that run side by side: each begins once what it is made of is there.

A stage is mostly planning, which takes one core, and small jobs, which do not fill two; so several are made at once, each by a
thread with its own connection to the JVM. Where one fails, or the caller is interrupted, none begins any more, and those that
had begun have ended before that is told: what they wrote can be removed then and does not come back.
"""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from graphlib import TopologicalSorter
from typing import Any, NamedTuple

from pyspark.sql import DataFrame

THREADS = 4
CANCEL_S = 30.0
"""Longest wait for cancelled stages to end."""
_CANCEL_AGAIN_S = 0.2


class Stage(NamedTuple):
    """A table made of others, which are given or stages themselves."""

    make: Callable[..., DataFrame]
    of: tuple[str, ...]


Finish = Callable[[str, DataFrame], Any]
"""Has a table computed; what it gives is what later stages are made of."""


def run(
    stages: Mapping[str, Stage], given: Mapping[str, Any], finish: Finish, done: Callable[[str], None], cancel: Callable[[], None]
) -> dict[str, Any]:
    """What ``finish`` gave for each stage, by name. Of stages that are ready the one that stands first goes first.

    ``done`` is told each one that is finished, by the calling thread; ``cancel`` ends jobs that are running.
    """
    sorter = TopologicalSorter({name: [of for of in stage.of if of in stages] for name, stage in stages.items()})
    sorter.prepare()
    made: dict[str, Any] = dict(given)
    pool = ThreadPoolExecutor(THREADS, "stage")
    running: dict[Future[Any], str] = {}

    def work(name: str) -> Any:
        stage = stages[name]
        return finish(name, stage.make(*[made[of] for of in stage.of]))

    try:
        while sorter.is_active():
            for name in sorted(sorter.get_ready(), key=list(stages).index):
                running[pool.submit(work, name)] = name
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                name = running.pop(future)
                made[name] = future.result()
                done(name)
                sorter.done(name)
    except BaseException:
        pool.shutdown(wait=False)
        begun = [future for future in running if not future.cancel()]
        until = time.monotonic() + CANCEL_S
        while wait(begun, _CANCEL_AGAIN_S).not_done and time.monotonic() < until:
            cancel()
        raise
    pool.shutdown()
    return {name: made[name] for name in stages}

"""Runs many seeds on all cores, reduces a failing run, and prints it as a readable trace."""

import os
import signal
import time
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import replace
from itertools import islice
from multiprocessing import active_children

from replicated_namesrv.simulation.simulation import RunResult, Scenario
from replicated_namesrv.simulation.subjects import run

TICK_S = 0.1
"""Time between two calls of the tick, in which the caller looks whether Ctrl-C was pressed."""
_SHRINK_RUNS = 60
_EVENTS_SHOWN = 45
"""Maximum number of trace lines that are shown, not counting messages."""
_MESSAGES_S = 0.05
"""Messages are printed only for this time before the violation."""
_MESSAGES_SHOWN = 40


def cores() -> int:
    """Processes that can run at the same time."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_all(
    scenarios: Iterable[Scenario], processes: int, tick: Callable[[], None] = lambda: None
) -> Generator[RunResult, None, None]:
    """Results as they arrive. Few scenarios are in flight, so an early end costs little. ``tick`` is called every
    TICK_S. If it raises KeyboardInterrupt, the runs in progress are stopped."""
    left = iter(scenarios)
    others = set(active_children())
    with ProcessPoolExecutor(processes, initializer=_ignore_interrupts) as pool:
        flying: set[Future[RunResult]] = set()
        try:
            while True:
                flying |= {pool.submit(run, scenario) for scenario in islice(left, 2 * processes - len(flying))}
                if not flying:
                    return
                done, flying = wait(flying, TICK_S, FIRST_COMPLETED)
                for future in done:
                    yield future.result()
                tick()
        except (GeneratorExit, KeyboardInterrupt):  # stop at once, because the results of the runs in progress are not needed
            for child in set(active_children()) - others:
                child.kill()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _ignore_interrupts() -> None:
    """Ctrl-C reaches all processes of a terminal; only the first process handles it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class Shrinker:
    """Makes a failing run smaller (less time, fewer faults, fewer clients) as long as it still breaks the same invariant."""

    def __init__(self, failing: RunResult, seconds: float, tell: Callable[[str], None]) -> None:
        self._best, self._tell = failing, tell
        self._runs, self._until = _SHRINK_RUNS, time.monotonic() + seconds

    def shrink(self) -> RunResult:
        """The smallest failing run found."""
        self._shorter()
        self._fewer_faults()
        for clients in (1, 2, 3):
            if self._try(replace(self._best.scenario, clients=clients)):
                break
        self._shorter()
        return self._best

    def _try(self, scenario: Scenario) -> bool:
        if self._runs <= 0 or time.monotonic() > self._until:
            return False
        self._runs -= 1
        result = run(scenario)
        if result.violation != self._best.violation:
            return False
        self._best = result
        self._tell(f"still fails with {len(result.faults)} faults in {scenario.duration_s:g} s")
        return True

    def _shorter(self) -> None:
        scenario = self._best.scenario
        end = min(scenario.duration_s, round(self._best.violated_at_s + 0.05, 2))
        for share in (0.25, 0.5, 1.0):
            if end * share < scenario.duration_s and self._try(replace(scenario, duration_s=round(end * share, 2))):
                return

    def _fewer_faults(self) -> None:
        kept = [fault.number for fault in self._best.faults]
        size = len(kept)
        while size >= 1:
            at = 0
            while at < len(kept):
                rest = kept[:at] + kept[at + size :]
                if self._try(replace(self._best.scenario, faults=tuple(rest))):
                    kept = rest
                else:
                    at += size
            size //= 2


def explain(result: RunResult) -> str:
    """The readable account of a failing run: its faults, the events before the violation, and the command to repeat it."""
    scenario = result.scenario
    failure = run(scenario, readable=True)
    before = [
        (at, line) for at, line in ((float(line[:10]), line) for line in failure.lines) if at <= failure.violated_at_s + 1e-6
    ]
    events = [line for _, line in before if " > " not in line]
    messages = [line for at, line in before if " > " in line and at > failure.violated_at_s - _MESSAGES_S]
    story = sorted(events[-_EVENTS_SHOWN:] + messages[-_MESSAGES_SHOWN:])
    parts = [
        f"seed {scenario.seed}, {scenario.nodes} nodes: {failure.violation} at {failure.violated_at_s:.3f} s",
        f"  {failure.text.replace(chr(10), chr(10) + '  ')}",
        f"faults: {'; '.join(fault.describe() for fault in failure.faults) or 'none'}",
        "events before the violation (virtual seconds; a > b is a message that arrived):",
        *(f"  {line}" for line in story),
        f"repeat: {scenario.command()}",
    ]
    return "\n".join(parts)

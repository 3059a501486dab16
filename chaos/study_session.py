"""Makes the runs of a study one after the other, or several at a time, and keeps its ledger."""

import asyncio
import contextlib
import gzip
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

from replicated_namesrv.chaos.records import MANIFEST_FILE, PACKED_TRACE_FILE, TRACE_FILE, Phase
from replicated_namesrv.chaos.run_report import HISTORY_FILE, TIMELINE_FILE, VERDICT_FILE, read_verdict
from replicated_namesrv.chaos.study_ledger import (
    FAILED,
    REPEATS_MAX,
    StudyLedger,
    discard_interrupted,
    exclusive,
    file_sha256,
    is_done,
    new_attempt,
    next_run,
)
from replicated_namesrv.chaos.study_plan import KEPT_BYTES, WHOLE_BYTES, StudyPlan, StudyRun
from replicated_namesrv.child_process import ChildProcess
from replicated_namesrv.errors import SettingError

LIMIT_FACTOR, LIMIT_S = 6.0, 240.0
"""An attempt is stopped when it has taken LIMIT_FACTOR times its expected length, plus LIMIT_S. This leaves time for a busy
machine and for the first download of a foreign name server."""
OUTPUT_FILE = "output.txt"
OF_FRESH_READS = (
    *("linearizable KV", "linearizable registration", "session guarantees", "revisions never go back", "no resurrection"),
    *("write permissions", "settings are kept", "lists of brokers", "whole answers"),
)
"""Checks of promises that stale reads do not make."""
FAILURES_MAX = 4
"""A study stops after this many failed attempts in a row, because then the runs are not the cause. It is more than the attempts
of one run."""
ROOM_BYTES = 500_000_000
"""Free disk space below which no run is started. The nodes of a run need a part of it."""


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """How the runs are made."""

    jobs: int = 1
    hours: float | None = None
    """No run is started that would probably end later than this. None: no limit."""
    keep_traces: bool = False
    """Keep the whole folder of each run, for ``namesrv analyze`` and ``namesrv chaos check``."""
    elsewhere: frozenset[str] = frozenset()
    """Keys of runs whose results exist elsewhere."""


@dataclass(slots=True)
class SessionEnd:
    """Why the session ended, and what is left."""

    made: int
    left: int
    counts: dict[str, int] = field(default_factory=dict)
    """Runs of the study that are done, by verdict."""
    violated: tuple[str, ...] = ()
    """Keys of the runs that broke a promise of their mode and read level."""

    @property
    def complete(self) -> bool:
        """Whether every run of the study is done."""
        return self.left == 0


class StudySession:
    """Runs of one study in one folder."""

    def __init__(self, folder: Path, plan: StudyPlan, options: SessionOptions, say: Callable[[str], None]) -> None:
        self._folder, self._plan, self._options, self._say = folder, plan, options, say
        self._ledger = StudyLedger(folder)
        self._began = time.monotonic()
        self._running: dict[asyncio.Task[None], StudyRun] = {}
        self._made = 0
        self._failures = 0
        """Failed attempts since the last one that did not fail."""

    def run(self) -> SessionEnd:
        """Make the runs that are due. Raises KeyboardInterrupt, SettingError, StorageError. The ledger then has every attempt
        that ended.
        """
        with exclusive(self._folder):
            left = len(self._plan.runs) - len(self._done())
            self._say(f"study {self._plan.name}: {left} of {len(self._plan.runs)} runs are left")
            interrupted = discard_interrupted(self._folder, self._ledger.entries)
            if interrupted:
                self._say(f"interrupted attempts, removed: {interrupted}")
            try:
                asyncio.run(self._make_all())
            except asyncio.CancelledError:
                raise KeyboardInterrupt from None
        done = self._done()
        broken = tuple(key for key, entry in self._ledger.results().items() if entry.get("violated"))
        return SessionEnd(self._made, len(self._plan.runs) - len(done), _counted(done), broken)

    def _done(self) -> dict[str, str]:
        """The verdicts of the runs that are done."""
        own = {key: str(entry["verdict"]) for key, entry in self._ledger.results().items()}
        return dict.fromkeys(self._options.elsewhere, "published") | own

    async def _make_all(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:  # if nohup made this process ignore the signal, go on ignoring it
                asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        try:
            while True:
                while len(self._running) < self._options.jobs and (run := self._next()) is not None:
                    self._running[asyncio.create_task(self._attempt(run))] = run
                if not self._running:
                    return
                done, _ = await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    del self._running[task]
                    await task
        finally:
            for task in self._running:
                task.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)

    def _next(self) -> StudyRun | None:
        attempts = self._ledger.attempts()
        running = {run.key for run in self._running.values()}
        run = next_run(self._plan, attempts, running, set(self._options.elsewhere))
        hours = self._options.hours
        if run is not None and hours is not None:
            spent_s = time.monotonic() - self._began
            if spent_s + self._expected_s(run) > 3600 * hours:
                return None
        if run is not None and shutil.disk_usage(self._folder).free < ROOM_BYTES:
            raise SettingError(f"{self._folder}: less than {ROOM_BYTES // 10**6} MB are free; make room, then resume")
        return run

    def _expected_s(self, run: StudyRun) -> float:
        """The mean length of this study's attempts of the same arm and size; without such attempts, that of the plan."""
        same = [entry["took_s"] for entry in self._ledger.entries if (entry["arm"], entry["nodes"]) == (run.arm, run.block[1])]
        return mean(same[-20:]) if same else self._plan.expected_s(run)

    async def _attempt(self, run: StudyRun) -> None:
        number = len(self._ledger.attempts().get(run.key, ())) + 1
        folder = new_attempt(self._folder, run, number)
        command = [sys.executable, "-m", "replicated_namesrv.chaos.study_worker", str(self._folder), run.key, str(folder)]
        child = ChildProcess(f"run {run.key}", command, folder / OUTPUT_FILE)
        load1, began, started = os.getloadavg()[0], time.monotonic(), time.time()
        try:
            await child.start()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LIMIT_FACTOR * self._plan.expected_s(run) + LIMIT_S):
                    await child.wait()
            took_s = time.monotonic() - began
            code = "time-out" if child.running else f"exit status {child.exit_code}"
        finally:
            await child.stop()
        made = _made(folder)
        verdict = None if made is None else read_verdict(made)
        entry = {
            **_about(run),
            "attempt": number,
            "verdict": FAILED if verdict is None or not verdict["complete"] else verdict["verdict"],
            "reason": f"{code}: {' | '.join(child.last_lines(1))}"[:500] if verdict is None else unkept_promises(verdict),
            "folder": str(folder.relative_to(self._folder)),
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started)),
            "took_s": round(took_s, 1),
            "load1": round(load1, 2),
            "jobs": self._options.jobs,
        }
        if made is not None and verdict is not None:
            entry |= _evidence(made, verdict)
            _tidy(folder, made, keep=self._options.keep_traces, logs=verdict["verdict"] != "valid")
        self._ledger.append(entry)
        self._made += 1
        self._report(run, entry)
        self._failures = 0 if entry["verdict"] != FAILED else self._failures + 1
        if self._failures >= FAILURES_MAX:
            raise SettingError(
                f"{FAILURES_MAX} attempts in a row failed, the last with {entry['reason']}; correct it, then resume"
            )

    def _report(self, run: StudyRun, entry: dict[str, Any]) -> None:
        attempts, total = self._ledger.attempts(), len(self._plan.runs)
        done = self._done()
        again = "" if is_done(attempts[run.key]) else f", will be repeated ({REPEATS_MAX + 1 - entry['attempt']} attempts left)"
        left = [other for other in self._plan.runs if other.key not in done]
        left_s = sum(map(self._expected_s, left)) / self._options.jobs
        slow = f", slowdown {entry['slowdown']:g}" if entry.get("slowdown") else ""
        outcome = f"{entry['verdict']}{again}, {entry['took_s']:.0f} s, load {entry['load1']:g}{slow}"
        self._say(f"{len(done)} of {total}: {run.key}: {outcome}; {described_time(left_s)} left for {len(left)} runs")


def run_folder(study: Path, entry: Mapping[str, Any]) -> Path:
    """The folder of the run of an attempt. Raises SettingError."""
    made = _made(study / entry["folder"])
    if made is None:
        raise SettingError(f"{study / entry['folder']}: contains no run, but the ledger names it; restore it")
    return made


def _made(attempt: Path) -> Path | None:
    """The folder that a run left in the folder of an attempt."""
    return next((path.parent for path in sorted(attempt.glob(f"*/*/{MANIFEST_FILE}"))), None)


def _about(run: StudyRun) -> dict[str, Any]:
    scenario, nodes, seed, cut, _ = run.block
    return {
        "run": run.key, "arm": run.arm, "scenario": scenario, "nodes": nodes, "seed": seed, "cut": cut,
        "levels": list(run.levels),
    }  # fmt: skip  # items grouped by line


def unkept_promises(verdict: Mapping[str, Any]) -> str | None:
    """The promised checks that are not valid, with their verdicts. None: the run is valid."""
    if verdict["verdict"] == "valid":
        return None
    names = [f"{one['check']}: {one['verdict']}" for one in verdict["checks"] if one["promised"] and one["verdict"] != "valid"]
    return "; ".join(names)[:500]


def broken_promises(verdict: Mapping[str, Any]) -> list[str]:
    """The checks whose promise the run broke. Stale reads do not promise what ``OF_FRESH_READS`` test."""
    not_promised = OF_FRESH_READS if verdict["read_consistency"] == "stale" else ()
    found = [one["check"] for one in verdict["checks"] if one["promised"] and one["verdict"] == "violated"]
    return [check for check in found if check not in not_promised]


def run_slowdown(trace: Path) -> float | None:
    """The greatest slowdown of a judged phase. None: the trace records no slowdown."""
    begin = b'{"record":"%b"' % Phase.record.encode()
    phases = [json.loads(line) for line in trace.read_bytes().splitlines() if line.startswith(begin)]
    # the record of a phase describes the phase before it, and start-up is not judged
    judged = [row for row in phases if row["phase"] not in ("settle", "steady")]
    return max((row["slowdown"] for row in judged if row.get("slowdown")), default=None)


def _evidence(made: Path, verdict: dict[str, Any]) -> dict[str, Any]:
    """Fields that identify the records of a run, and the load of the machine."""
    return {
        "id": verdict["run"],
        "manifest_sha256": file_sha256(made / MANIFEST_FILE),
        "trace_sha256": file_sha256(made / TRACE_FILE),
        "source_sha256": verdict["source_sha256"],
        "commit": verdict["commit"],
        "violated": broken_promises(verdict),
        "slowdown": run_slowdown(made / TRACE_FILE),
        "stall_s": verdict["figures"]["harness_stall_s"],
        "figures": verdict["figures"],
    }


def _tidy(folder: Path, made: Path, *, keep: bool, logs: bool) -> None:
    """Unless ``keep``, compress the trace and remove everything else but manifest and verdict. ``logs``: keep the logs, too."""
    (folder / "latest").unlink(missing_ok=True)
    if keep:
        return
    with (made / TRACE_FILE).open("rb") as trace, gzip.GzipFile(made / PACKED_TRACE_FILE, "wb", mtime=0) as packed:
        shutil.copyfileobj(trace, packed)
    kept = {MANIFEST_FILE, VERDICT_FILE, PACKED_TRACE_FILE, *(["logs"] if logs else [])}
    for path in (*made.iterdir(), *([] if logs else [folder / OUTPUT_FILE])):
        if path.name in kept:
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()
    assert {TRACE_FILE, HISTORY_FILE, TIMELINE_FILE}.isdisjoint(kept)


def _counted(verdicts: dict[str, str]) -> dict[str, int]:
    found = list(verdicts.values())
    return {verdict: found.count(verdict) for verdict in sorted(set(found))}


def described_time(seconds: float) -> str:
    """A length of time in words."""
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{seconds / 3600:.1f} h"


def outlook(plan: StudyPlan, left: Sequence[StudyRun], jobs: int, *, keep_traces: bool) -> dict[str, Any]:
    """How much a study costs: runs, time, disk space."""
    hours = {run.key: plan.expected_s(run) / 3600 / jobs for run in left}
    waves = [[run for block in wave for run in block if run.key in hours] for wave in plan.waves]
    return {
        "study": plan.name,
        "title": plan.title,
        "runs": len(plan.runs),
        "left": len(left),
        "hours": round(sum(hours.values()), 2),
        "disk_mb": round(len(left) * (WHOLE_BYTES if keep_traces else KEPT_BYTES) / 1e6),
        "arms": {arm.name: round(sum(hours[run.key] for run in left if run.arm == arm.name), 2) for arm in plan.arm},
        "waves": [
            {"seed": wave[0].block[2], "runs": len(wave), "hours": round(sum(hours[run.key] for run in wave), 2)}
            for wave in waves
            if wave
        ],
    }

"""The ledger of a study: one line of JSON for each attempt of a run, appended and synced when the attempt has ended.

The folder of a study contains ``plan.toml`` (a copy), ``ledger.jsonl``, and the folder of each attempt in ``attempts/``. An
attempt without a line was interrupted: its folder is removed, and the run is made again. A torn last line counts as no line.
"""

import csv
import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from replicated_namesrv.chaos.study_plan import StudyPlan, StudyRun, load_study, plan_sha256
from replicated_namesrv.errors import SettingError, StorageError
from replicated_namesrv.files import write_atomically

PLAN_FILE, LEDGER_FILE, ATTEMPTS = "plan.toml", "ledger.jsonl", "attempts"
NAME_FILE = "name.txt"
REPEATS_MAX = 2
"""How often a run is repeated if it failed."""
FAILED = "failed"
"""Verdict of an attempt that made no complete trace. Every other attempt counts, also if its verdict is unknown: if runs were
repeated because of their results, the figures would lack the worst runs."""

Entry = Mapping[str, Any]
"""One line of the ledger."""


class StudyLedger:
    """The attempts of a study so far."""

    def __init__(self, folder: Path) -> None:
        """Raises StorageError if the ledger cannot be read."""
        self._path = folder / LEDGER_FILE
        self.entries: list[Entry] = []
        try:
            content = self._path.read_bytes() if self._path.exists() else b""
        except OSError as cause:
            raise StorageError(f"{self._path}: cannot be read ({cause.strerror}); make it readable") from cause
        whole = content[: content.rfind(b"\n") + 1]
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                self.entries.append(json.loads(line))
            except ValueError as cause:
                raise StorageError(f"{self._path}:{number}: not JSON; restore the line or remove it") from cause
        self._torn = len(content) - len(whole)

    def append(self, entry: Entry) -> None:
        """Add a line and sync it. Raises StorageError."""
        try:
            with self._path.open("ab") as file:
                if self._torn:
                    file.truncate(file.tell() - self._torn)
                    self._torn = 0
                file.write(json.dumps(entry).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as cause:
            raise StorageError(f"{self._path}: cannot be written ({cause.strerror}); make room, then resume") from cause
        self.entries.append(entry)

    def attempts(self) -> dict[str, list[Entry]]:
        """The attempts of each run, in their order."""
        found: dict[str, list[Entry]] = {}
        for entry in self.entries:
            found.setdefault(entry["run"], []).append(entry)
        return found

    def results(self) -> dict[str, Entry]:
        """The attempt that counts for each run that is done: the last one."""
        return {run: found[-1] for run, found in self.attempts().items() if is_done(found)}


def is_done(attempts: Sequence[Entry]) -> bool:
    """Whether a run needs no further attempt."""
    return bool(attempts) and (attempts[-1]["verdict"] != FAILED or len(attempts) > REPEATS_MAX)


def next_run(plan: StudyPlan, attempts: Mapping[str, Sequence[Entry]], running: set[str], elsewhere: set[str]) -> StudyRun | None:
    """The run to start now. None: every run is done or running.

    Within a block, runs without an attempt come first, then the repetitions. ``elsewhere``: runs whose results exist elsewhere.
    """
    for wave in plan.waves:
        for block in wave:
            free = [run for run in block if run.key not in running and run.key not in elsewhere]
            due = [run for run in free if not is_done(attempts.get(run.key, ()))]
            if due:
                return min(due, key=lambda run: len(attempts.get(run.key, ())))
    return None


def create(folder: Path, plan_path: Path) -> StudyPlan:
    """Create the folder of a new study, or open it again if it has the same plan. Raises SettingError, StorageError."""
    kept = folder / PLAN_FILE
    if kept.exists():
        if plan_sha256(kept) != plan_sha256(plan_path):
            raise SettingError(
                f"--out {folder}: has the runs of another plan; name another folder, or 'namesrv study resume {folder}'"
            )
        return open_study(folder)
    if folder.exists() and any(folder.iterdir()):
        raise SettingError(f"--out {folder}: is not empty and is not the folder of a study; name another folder")
    plan = load_study(plan_path)
    write_atomically(folder / NAME_FILE, plan.name.encode())
    for name in plan.scenarios:
        if name.endswith(".toml"):
            write_atomically(folder / name, (plan_path.parent / name).read_bytes())
    write_atomically(kept, plan_path.read_bytes())
    return plan


def open_study(folder: Path) -> StudyPlan:
    """The plan of an existing study. Raises SettingError."""
    if not (folder / PLAN_FILE).exists():
        raise SettingError(f"{folder}: contains no {PLAN_FILE}; give the folder of a study (option --out of 'namesrv study run')")
    try:
        name = (folder / NAME_FILE).read_text(encoding="utf-8").strip()
    except OSError as cause:
        raise SettingError(f"{folder / NAME_FILE}: cannot be read ({cause.strerror}); restore it") from cause
    return load_study(folder / PLAN_FILE, name)


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Allow only one process to add runs to a study. The kernel releases the lock when the process ends. Raises SettingError."""
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SettingError(f"{folder}: another process runs this study; wait for its end or stop it") from None
        yield


def discard_interrupted(folder: Path, entries: Sequence[Entry]) -> int:
    """Remove the folders of attempts that have no line in the ledger. Returns their number."""
    known = {entry["folder"] for entry in entries}
    left = [path for path in sorted((folder / ATTEMPTS).glob("*")) if f"{ATTEMPTS}/{path.name}" not in known]
    for path in left:
        shutil.rmtree(path, ignore_errors=True)
    return len(left)


def new_attempt(folder: Path, run: StudyRun, number: int) -> Path:
    """The new, empty folder of an attempt."""
    made = folder / ATTEMPTS / (run.key if number == 1 else f"{run.key}.{number}")
    assert re.fullmatch(r"[\w.+-]+", made.name), made.name
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)
    return made


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


RUNS_TABLE = "runs.csv"
"""The published table of runs. Its columns include ``run``."""


def published_runs(folder: Path, plan: StudyPlan) -> frozenset[str]:
    """The keys of the runs of a plan whose results are published in ``folder``. Raises SettingError."""
    path = folder / plan.name / RUNS_TABLE
    try:
        with path.open(newline="", encoding="utf-8") as lines:
            return frozenset(row["run"] for row in csv.DictReader(lines))
    except OSError as cause:
        raise SettingError(
            f"--published {folder}: {path} cannot be read ({cause.strerror}); name the folder of the page"
        ) from cause

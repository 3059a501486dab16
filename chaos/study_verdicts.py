"""Judges the runs of a study again, from their compressed traces."""

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from replicated_namesrv.chaos.run_report import VERDICT_FILE, judged_story, load_story
from replicated_namesrv.files import write_atomically

PROCESSES = 2


def judge_again(folders: Sequence[Path], say: Callable[[str], None]) -> None:
    """Judge the runs in these folders with the present checks, and replace their verdict.json. Raises TraceError, or StorageError
    if a file cannot be written."""
    say(f"judging {len(folders)} runs again")
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        for number, _ in enumerate(pool.map(_judge_again, folders, chunksize=4), 1):
            if number % 20 == 0:
                say(f"judged {number} of {len(folders)} runs")


def _judge_again(folder: Path) -> None:
    _, verdict = judged_story(folder, load_story(folder))
    write_atomically(folder / VERDICT_FILE, json.dumps(verdict, indent=1).encode())

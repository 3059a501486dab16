"""Two analyses into one folder: the second ends at once, without a JVM; a lock ends with its process, however that ends."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from replicated_namesrv.cli.main import main
from replicated_namesrv.spark.generate import generate
from replicated_namesrv.spark.output_lock import LOCK, output_lock

HOLDER = """
import sys, pathlib
from replicated_namesrv.spark.output_lock import output_lock
with output_lock(pathlib.Path(sys.argv[1]), sys.argv[1]):
    print("has it", flush=True)
    sys.stdin.read()
"""


@contextmanager
def another_process_in(folder: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", HOLDER, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "has it\n"
        yield process


def test_the_second_analysis_into_a_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    generate(10_000, 3, 1, tmp_path / "traces", lambda _: None)
    out = tmp_path / "out"
    with another_process_in(out) as holder:
        (out / "tables").mkdir()  # the first analysis creates this folder, too, and it is empty at first
        assert main(["analyze", str(tmp_path / "traces"), "--out", str(out)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"namesrv analyze: --out {out}: another analysis (process {holder.pid} on ")
        assert line.endswith("wait until it has ended, or choose another --out")
        assert sorted(path.name for path in out.iterdir()) == [LOCK, "tables"], "the first one's folders are left alone"
        holder.communicate()
    assert not (out / LOCK).exists()


def test_a_killed_analysis_keeps_nobody_out(tmp_path: Path) -> None:
    with another_process_in(tmp_path) as holder:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    with output_lock(tmp_path, "out"):
        assert (tmp_path / LOCK).read_text().startswith(f"process {os.getpid()} on ")
    assert not list(tmp_path.iterdir())


def test_processes_that_take_turns_are_never_in_the_folder_together(tmp_path: Path) -> None:
    """Each process makes the folder, works in it and removes it, as failing analyses do. Meanwhile the others try to."""
    script = """
import os, pathlib, sys
from replicated_namesrv.spark.output_lock import BusyError, output_lock
folder, turns = pathlib.Path(sys.argv[1]), 0
while turns < 200:
    try:
        with output_lock(folder, "out"):
            os.close(os.open(folder / "mine", os.O_CREAT | os.O_EXCL))
            (folder / "mine").unlink()
            turns += 1
        folder.rmdir()
    except BusyError:
        pass
    except OSError as error:
        if pathlib.Path(error.filename) != folder:  # another one has taken it, or removed it
            raise
"""
    command = [sys.executable, "-c", script, str(tmp_path / "out")]
    racing = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    assert [(process.communicate()[1], process.returncode) for process in racing] == [("", 0)] * 3

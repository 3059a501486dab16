"""Progress of long commands."""

import io
import re

import pytest

from replicated_namesrv.cli.command_progress import CommandProgress
from tests.support.waiting import wait_until


def test_a_long_stage_is_reported_again(capsys: pytest.CaptureFixture[str]) -> None:
    printed: list[str] = []

    def lines() -> list[str]:
        printed.extend(capsys.readouterr().err.splitlines())
        return printed

    with CommandProgress(silent_max_s=0.01) as say:
        wait_until(lambda: any("still running: starting" in line for line in lines()), "a line before the first stage")
        say("ingesting 2 runs")
        wait_until(lambda: any("still running: ingesting 2 runs" in line for line in lines()), "a line about the stage")
    assert "ingesting 2 runs" in printed
    assert re.fullmatch(r"\d+ s, still running: starting", printed[0])


def test_a_line_has_the_elapsed_time_once(capsys: pytest.CaptureFixture[str]) -> None:
    printed: list[str] = []

    def lines() -> list[str]:
        printed.extend(capsys.readouterr().err.splitlines())
        return printed

    with CommandProgress(lambda seconds, line: f"{seconds:.1f} s  {line}", silent_max_s=0.01, form_has_seconds=True):
        wait_until(lambda: len(lines()) > 0, "a line before the first stage")
    assert re.fullmatch(r"\d+\.\d s  still running: starting", printed[0])


class ClosedPipe(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_a_closed_stderr_does_not_end_the_work_and_a_closed_stdout_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", ClosedPipe())
    with CommandProgress(silent_max_s=0.01) as say:
        say("a line that nobody reads")
    with pytest.raises(BrokenPipeError), CommandProgress(stream=ClosedPipe()) as say:
        say("a line that nobody reads")

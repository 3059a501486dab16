"""``namesrv analyze``: its progress lines."""

import re

import pytest

from replicated_namesrv.cli.analyze import _Progress
from tests.support.waiting import wait_until


def test_a_long_stage_is_reported_again(capsys: pytest.CaptureFixture[str]) -> None:
    printed: list[str] = []

    def lines() -> list[str]:
        printed.extend(capsys.readouterr().err.splitlines())
        return printed

    with _Progress(period_s=0.01) as say:
        wait_until(lambda: any("at work: starting" in line for line in lines()), "a line before the first stage")
        say("ingesting 2 runs")
        wait_until(lambda: any("at work: ingesting 2 runs" in line for line in lines()), "a line about the stage")
    assert "ingesting 2 runs" in printed
    assert re.fullmatch(r" *\d+ s  at work: starting", printed[0])

"""Ctrl-C ends a campaign at once, with a summary of the seeds that had ended."""

import re
import signal
import subprocess
import sys

import pytest

from tests.support.nodes import clean_environment, command

DEADLINE_S = 60


def test_ctrl_c_ends_a_campaign_with_a_summary() -> None:
    arguments = command("simulate", "--seeds", "0:100000", "--duration-s", "2", "--processes", "2", "--json")
    with subprocess.Popen(
        arguments,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=clean_environment(),
        text=True,
        start_new_session=True,
    ) as campaign:
        assert campaign.stdout is not None
        campaign.stdout.readline()  # a first seed has ended
        campaign.send_signal(signal.SIGINT)
        rest, errors = campaign.communicate(timeout=DEADLINE_S)
    assert campaign.returncode == 130, errors
    assert '"summary": true' in rest
    assert "stopped after" in errors
    assert "Traceback" not in errors


@pytest.mark.slow
def test_ctrl_c_before_a_first_seed_has_ended_does_not_report_success() -> None:
    arguments = command("simulate", "--seeds", "0:2", "--duration-s", "3600", "--processes", "1")
    with subprocess.Popen(
        arguments,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=clean_environment(),
        text=True,
        start_new_session=True,
    ) as campaign:
        assert campaign.stderr is not None
        progress = campaign.stderr.readline()
        campaign.send_signal(signal.SIGINT)
        told, errors = campaign.communicate(timeout=DEADLINE_S)
    assert campaign.returncode == 130, errors
    assert re.match(r"\d+ s: 0/2 seeds, 0 failed, ", progress)
    assert re.fullmatch(r"0 seeds, 0 virtual seconds in [\d.]+ s: nothing checked\n", told)


INTERRUPTED_IN_A_CALLBACK = """
import gc, signal, sys
from replicated_namesrv.cli.main import main

class Terminal:
    isatty = sys.stderr.isatty
    flush = sys.stderr.flush

    def write(self, text, write=sys.stderr.write):
        if "0/2 seeds" in text and not gc.callbacks:
            gc.callbacks.append(lambda phase, info: phase == "start" and signal.raise_signal(signal.SIGINT))
            gc.collect()
            gc.callbacks.clear()
        return write(text)

sys.stderr = Terminal()
sys.exit(main(["simulate", "--seeds", "0:2", "--duration-s", "3600", "--processes", "1"]))
"""


@pytest.mark.slow
def test_ctrl_c_in_a_callback_of_the_garbage_collector_ends_a_campaign() -> None:
    """Python drops an error that is raised there."""
    arguments = [sys.executable, "-c", INTERRUPTED_IN_A_CALLBACK]
    done = subprocess.run(
        arguments,
        capture_output=True,
        env=clean_environment(),
        text=True,
        timeout=DEADLINE_S,
        start_new_session=True,
        check=False,
    )
    assert done.returncode == 130, done.stderr
    assert "stopped after 0 of 2 seeds" in done.stderr
    assert "nothing checked" in done.stdout

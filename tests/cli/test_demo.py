"""``namesrv demo``: the summary follows from the look-ups, and the demonstration runs on real processes."""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from replicated_namesrv.chaos import demonstration
from replicated_namesrv.chaos.demonstration import ANY, Demonstration, LookUp
from replicated_namesrv.chaos.demonstration_brokers import SimulatedBroker
from replicated_namesrv.cli.demo import answer_text, facts, report, summary
from tests.support import provision
from tests.support.json_outputs import check_output
from tests.support.nodes import running_command


def story_of(*looks: LookUp) -> Demonstration:
    """A cut from 2 s to 8 s, with a change from 4.0 to 4.5 s and an end after 10 s."""
    return Demonstration("ap", "n1", False, list(looks), cut_s=2.0, change_begun_s=4.0, changed_s=4.5, healed_s=8.0, end_s=10.0)


def test_an_answer_is_outdated_if_it_was_asked_after_a_client_had_the_change() -> None:
    before, old, new = LookUp("n1", 4.4, 4.6, 8), LookUp("n1", 4.6, 4.7, 8), LookUp("n1", 4.6, 4.7, 16)
    gone, silent = LookUp("n1", 4.6, 4.7, 0), LookUp("n1", 4.6, 4.7, None)
    story = story_of(before, old, new, gone, silent)
    assert story.outdated() == [old, gone]
    assert [answer_text(look, story) for look in story.looks] == [
        "8 queues",
        "8 queues, OUTDATED",
        "16 queues",
        "no route, OUTDATED",
        "no answer",
    ]


def test_times_of_the_summary() -> None:
    looks = [LookUp("n1", 3.0, 3.1, 8), LookUp("n1", 3.5, 3.6, None, refused=True), LookUp("n1", 7.0, 7.1, 8)]
    looks += [LookUp("n1", 8.1, 8.2, 8), LookUp("n1", 8.4, 8.5, 16), LookUp("n1", 9.0, 9.1, 16)]
    looks += [LookUp(ANY, at, at + 0.1, 16) for at in (1.0, 3.0, 5.0, 7.0, 9.0)]
    found = facts(story_of(*looks))
    assert found["outdatedAnswers"] == 2
    assert found["lastOutdatedAfterChange_s"] == 3.7
    assert found["changeVisibleAfter_s"] == 0.5
    assert found["longestGapOfCutNodesClient_s"] == 4.0
    assert found["longestGapOfClientWithAllAddresses_s"] == 2.0
    assert found["nodesAgreeAfterCut_s"] == 0.5
    story = story_of(*looks)
    assert "outdated answers to later queries" in summary([story])
    assert "The node was paused" not in summary([story])
    story.paused = True
    assert "The node was paused" in summary([story]), "without it the reader looks for outdated answers in AP"


def test_nodes_never_agree_if_one_never_has_the_change() -> None:
    assert facts(story_of(LookUp("n1", 8.4, 8.5, 16), LookUp("n2", 8.4, 8.5, 8)))["nodesAgreeAfterCut_s"] is None


def test_a_demo_that_is_cut_short_names_the_modes_it_did_not_show(capsys: pytest.CaptureFixture[str]) -> None:
    shown = [story_of(LookUp("n1", 8.4, 8.5, 16))]
    assert report(shown, ("cp", "ap"), "stopped by a signal", as_json=False) == 2
    out, err = capsys.readouterr()
    assert "outdated answers to later queries" in out
    assert err == "namesrv demo: stopped by a signal; not shown to the end: AP\n"
    assert report(shown, ("cp", "ap"), "n1 ended", as_json=True) == 2
    assert capsys.readouterr() == ("", "namesrv demo: n1 ended; not shown to the end: AP\n")
    assert report(shown, ("ap",), "stopped by a signal", as_json=True) == 0, "every mode was shown"
    out, err = capsys.readouterr()
    assert [one["mode"] for one in json.loads(out)["summary"]] == ["ap"]
    assert err == ""


def test_ctrl_c_ends_the_demo_with_a_line(tmp_path: Path) -> None:
    errors = tmp_path / "errors"
    with running_command("demo", "--pause", "--simulated", stderr=errors) as running:
        running.wait_line("starting 3 name servers for each mode")
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(timeout=120) == 2
    assert errors.read_text() == "namesrv demo: stopped by a signal; not shown to the end: CP and AP\n"


class ShownError(Exception):
    """Ends a demonstration that has started."""


class Audience:
    """A stage that ends the demonstration when it begins to show a mode."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def begin(self, mode: str) -> None:
        raise ShownError(mode)

    def row(self, story: Demonstration, second: int, latest: dict[str, LookUp]) -> None:
        raise AssertionError("no mode was begun")

    def say(self, text: str) -> None:
        self.events.append(text)


@pytest.mark.slow
async def test_ports_that_others_take_meanwhile_are_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as thief:

        class Late(SimulatedBroker):
            """The first broker is launched after the choice of ports. A process then takes the port of a name server."""

            async def launch(self, name_servers: Sequence[str]) -> None:
                await super().launch(name_servers)
                if not thief.getsockname()[1]:
                    host, _, port = name_servers[0].rpartition(":")
                    thief.bind((host, int(port)))
                    thief.listen()

        monkeypatch.setattr(demonstration, "SimulatedBroker", Late)
        audience = Audience()
        with pytest.raises(ShownError, match="ap"):
            await demonstration.Play(("ap",), tmp_path, None, None, audience).run()
        taken = thief.getsockname()[1]
    assert audience.events == [f"another process took port {taken} meanwhile; starting again on other ports"]


def demo(*options: str) -> tuple[dict[str, Any], str]:
    """The summary of one mode, and what was shown."""
    command = [sys.executable, "-m", "replicated_namesrv", "demo", "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    check_output(("demo", "--json"), done.stdout)
    (found,) = json.loads(done.stdout)["summary"]
    return found, done.stderr


@pytest.mark.slow
def test_the_demo_on_real_processes() -> None:
    found, shown = demo("--mode", "cp", "--pause", "--simulated")
    assert found["cutBy"] == "pause"
    assert found["brokers"] == "simulated"
    assert found["outdatedAnswers"] == 0, "an answer of a CP node missed a change that another answer had"
    assert found["longestGapOfCutNodesClient_s"] > 5, "the leader was not cut off"
    assert "asks any" in shown


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_demo_with_brokers_of_rocketmq() -> None:
    provision.require_rocketmq_jars("5.3.3")
    found, shown = demo("--mode", "ap")
    assert (found["cutBy"], found["brokers"]) == ("toxiproxy", "rocketmq")
    assert found["outdatedAnswers"] > 0, "the node that no broker reached answered with the change"
    assert found["nodesAgreeAfterCut_s"] is not None, shown
    assert "no route, OUTDATED" in shown, "the brokers' time-out of 10 s did not end within the cut"

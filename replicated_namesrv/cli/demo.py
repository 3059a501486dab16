"""``namesrv demo``: shows on real processes what clients see in CP and in AP while one node is cut off."""

import argparse
import asyncio
import json
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from replicated_namesrv import provision
from replicated_namesrv.cli.command_progress import CommandProgress
from replicated_namesrv.errors import NamesrvError

if TYPE_CHECKING:
    from replicated_namesrv.chaos.demonstration import Demonstration, LookUp
    from replicated_namesrv.chaos.demonstration_brokers import RealBrokers

HELP = "show what clients see in CP and in AP while one node is cut off (about a minute)"

EXIT_UNKNOWN = 2
COLUMN = 21
BROKERS_OF = {True: "brokers of RocketMQ 5.3.3", False: "simulated brokers"}

_EXAMPLES = """\
Three name servers for each mode, two brokers and four clients run on this machine. One node, in CP the leader, is cut off for
twelve seconds. In that time the number of queues of a topic is changed. Each second one line shows what each client got last.

With Java 17 and Maven, the brokers are those of RocketMQ 5.3.3; the first run fetches them (80 MB). Otherwise, and with
--simulated, they are simulated.
With Toxiproxy or Go, Toxiproxy cuts the network. Otherwise, and with --pause, the node's process is paused.

examples:
  namesrv demo                    both modes, one after the other
  namesrv demo --mode ap          independent nodes only, as RocketMQ's own name servers
  namesrv demo --json | jq .summary

exit codes: 0 the demo ran; 2 it could not run, or was stopped (a line names the modes that were not shown to the end)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXAMPLES
    parser.add_argument("--mode", choices=("both", "cp", "ap"), default="both", help="which mode to show (default: both)")
    parser.add_argument("--simulated", action="store_true", help="simulate the brokers, even where RocketMQ's can run")
    parser.add_argument("--pause", action="store_true", help="pause the node's process, do not use Toxiproxy")
    parser.add_argument("--json", action="store_true", help="print one JSON document at the end")


def run(arguments: argparse.Namespace) -> int:
    modes = ("cp", "ap") if arguments.mode == "both" else (arguments.mode,)
    stories: list[Demonstration] = []
    stopped = None
    try:
        with CommandProgress(stream=sys.stderr if arguments.json else sys.stdout) as progress:
            try:
                from replicated_namesrv.chaos import demonstration  # noqa: F401 -- fails here if toxiproxy-python is missing
            except ImportError as missing:
                print(f"namesrv demo: {missing.name} is not installed: pip install 'replicated-namesrv[chaos]'", file=sys.stderr)
                return EXIT_UNKNOWN
            show = _Show(progress)
            toxiproxy = None if arguments.pause else _toxiproxy(show)
            real = None if arguments.simulated else _real_brokers(show)
            with tempfile.TemporaryDirectory(prefix="namesrv-demo-") as folder:
                asyncio.run(_play(modes, Path(folder), toxiproxy, real, show, stories))
    except (NamesrvError, provision.ProvisionError, asyncio.CancelledError, KeyboardInterrupt) as error:
        stopped = str(error) or "stopped by a signal"
    return report(stories, modes, stopped, arguments.json)


def report(stories: "list[Demonstration]", modes: Sequence[str], stopped: str | None, as_json: bool) -> int:
    """Print the result. ``stopped``: why the demonstration ended early; then ``stories`` has only the modes before that.
    A stop after the last mode does not count."""
    if len(stories) == len(modes):
        stopped = None
    if as_json and stopped is None:
        print(json.dumps({"summary": [facts(story) for story in stories], "stories": [asdict(story) for story in stories]}))
    elif stories and not as_json:
        print("\n" + summary(stories), flush=True)
    if stopped is None:
        return 0
    lacking = " and ".join(mode.upper() for mode in modes[len(stories) :])
    print(f"namesrv demo: {stopped}; not shown to the end: {lacking}", file=sys.stderr)
    return EXIT_UNKNOWN


def _toxiproxy(show: "_Show") -> Path | None:
    """Toxiproxy, built with Go if it is not installed. None: Go is not installed either, or the build failed."""
    if provision.find_toxiproxy() is None and provision.find_go() is None:
        show.say("neither Toxiproxy nor Go is installed, so the node's process is paused in place of a network cut")
        return None
    try:
        return provision.toxiproxy_server(show.say)
    except provision.ProvisionError as error:
        show.say(f"{error}; the node's process is paused in place of a network cut")
        return None


def _real_brokers(show: "_Show") -> "RealBrokers | None":
    from replicated_namesrv.chaos.demonstration_brokers import real_brokers

    try:
        return real_brokers(show.say)
    except provision.ProvisionError as error:
        show.say(f"the brokers are simulated, not RocketMQ's: {error}")
        return None


async def _play(
    modes: Sequence[str],
    folder: Path,
    toxiproxy: Path | None,
    real: "RealBrokers | None",
    show: "_Show",
    stories: "list[Demonstration]",
) -> None:
    """Add to ``stories`` each mode that was shown to its end, even if a signal or an error ends the demonstration."""
    from replicated_namesrv.chaos.demonstration import NODES, Play

    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    show.say(f"starting {len(NODES)} name servers for each mode, and two {BROKERS_OF[real is not None]}")
    play = Play(modes, folder, toxiproxy, real, show)
    try:
        await play.run()
    finally:
        stories += play.stories


class _Show:
    """Prints a demonstration while it runs: events, and one line a second."""

    def __init__(self, print_line: Callable[[str], None]) -> None:
        self._print = print_line
        self._has_header = False

    def begin(self, mode: str) -> None:
        """Announce a mode."""
        self._has_header = False
        nodes = "replicated nodes" if mode == "cp" else "independent nodes, as RocketMQ's own name servers"
        self._print(f"\n{mode.upper()}, {nodes}")

    def say(self, text: str) -> None:
        """Print an event."""
        self._print(f"        {text}")

    def row(self, story: "Demonstration", second: int, latest: "dict[str, LookUp]") -> None:
        """Print what each client got last."""
        from replicated_namesrv.chaos.demonstration import ANY

        names = sorted(set(latest) - {ANY})
        if not self._has_header:
            self._has_header = True
            leader = story.cut_node if story.mode == "cp" else ""
            titles = [f"asks {name}{', the leader' if name == leader else ''}" for name in names]
            self._print("        " + "".join(f"{title:<{COLUMN}}" for title in [*titles, "asks any"]).rstrip())
        cells = [answer_text(latest.get(name), story) for name in [*names, ANY]]
        self._print(f"{second:4d} s  " + "".join(f"{cell:<{COLUMN}}" for cell in cells).rstrip())


def answer_text(look: "LookUp | None", story: "Demonstration") -> str:
    """The text of one cell of the table."""
    if look is None:
        return "-"
    if look.queues is None:
        return "refused" if look.refused else "no answer"
    text = f"{look.queues} queues" if look.queues else "no route"
    return f"{text}, OUTDATED" if look.is_outdated(story.changed_s) else text


def facts(story: "Demonstration") -> dict[str, Any]:
    """The figures of one mode. Times in seconds; null: it did not happen."""
    from replicated_namesrv.chaos.demonstration import ANY

    outdated = story.outdated()
    visible = story.changed_s - story.change_begun_s if story.changed_s and story.change_begun_s else None
    agreed = story.agreed_after_heal_s()
    return {
        "mode": story.mode,
        "cutNode": story.cut_node,
        "cutBy": "pause" if story.paused else "toxiproxy",
        "brokers": "rocketmq" if story.real_brokers else "simulated",
        "outdatedAnswers": len(outdated),
        "lastOutdatedAfterChange_s": round(outdated[-1].answered_s - story.changed_s, 1)
        if outdated and story.changed_s
        else None,
        "changeVisibleAfter_s": None if visible is None else round(visible, 1),
        "longestGapOfCutNodesClient_s": round(story.longest_gap_s(story.cut_node), 1),
        "longestGapOfClientWithAllAddresses_s": round(story.longest_gap_s(ANY), 1),
        "nodesAgreeAfterCut_s": None if agreed is None else round(agreed, 1),
    }


_LINES = {
    "changeVisibleAfter_s": "time until the first client has the change, s",
    "outdatedAnswers": "outdated answers to later queries",
    "lastOutdatedAfterChange_s": "  last outdated answer, s after a client had the change",
    "longestGapOfCutNodesClient_s": "client of the cut node: longest time without answer, s",
    "longestGapOfClientWithAllAddresses_s": "client with all addresses: longest time without answer, s",
    "nodesAgreeAfterCut_s": "time until all nodes agree after the cut, s",
}


def summary(stories: "list[Demonstration]") -> str:
    """A table with one column for each mode, and sentences that explain it."""
    columns = [facts(story) for story in stories]
    lines = [f"{'':<58}" + "".join(f"{one['mode'].upper():>8}" for one in columns)]
    for key, text in _LINES.items():
        cells = ["-" if one[key] is None else str(one[key]) for one in columns]
        lines.append(f"{text:<58}" + "".join(f"{cell:>8}" for cell in cells))
    lines += ["", "CP: a node without a majority refuses; its clients use another address. No answer is outdated."]
    lines += ["AP: every node answers from its own state; a node that brokers do not reach returns outdated routes, then none."]
    if any(story.paused for story in stories):
        lines += [
            "The node was paused and answered no request. With Toxiproxy or Go, the demo cuts the network instead: then clients"
        ]
        lines += ["reach the node, and in AP it gives outdated answers."]
    every, timeout = ("1 s", "10 s") if any(story.real_brokers for story in stories) else ("3 s", "9 s")
    lines += [f"The {BROKERS_OF[stories[0].real_brokers]} sent heartbeats every {every}; their time-out was {timeout}."]
    lines += ["RocketMQ's defaults are 30 s and 120 s, so outdated routes last longer there."]
    return "\n".join(lines)

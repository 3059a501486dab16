"""``namesrv chaos``: injects faults into a real cluster through Toxiproxy and judges what clients saw (``chaos/DESIGN.md``)."""

import argparse
import contextlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from replicated_namesrv.cli.command_progress import CommandProgress
from replicated_namesrv.cli.main import is_reported
from replicated_namesrv.cli.operator_script import words_of
from replicated_namesrv.errors import NamesrvError, SettingError
from replicated_namesrv.provision import ProvisionError

if TYPE_CHECKING:
    from replicated_namesrv.chaos.run import RunPlan
    from replicated_namesrv.chaos.suite import Done

HELP = "inject faults into a real cluster, in either mode, and check what its clients got"

EXIT_UNKNOWN = 2
EXTRA_MODULES = ("toxiproxy", "requests")
"""Modules of the extra ``chaos``."""
SOAK_HOURS, HOURS_MAX = 8, 10_000
EXIT_OF = {"valid": 0, "violated": 1, "unknown": EXIT_UNKNOWN}
_EXAMPLES = """\
examples:
  namesrv chaos list                                      the scenarios that come with the product
  namesrv chaos run isolate-leader --mode cp --seed 7     one run, about 20 s
  namesrv chaos run mine.toml --nodes 5                   a scenario of your own (copy one and change it)
  namesrv chaos run isolate-leader --mode java:5.5.0      RocketMQ's own name server, judged by AP's promises
  namesrv chaos compare isolate-leader trickle            AP beside CP under the same schedule
  namesrv chaos compare trickle --modes java:5.5.0,ap     RocketMQ's own name server beside ours
  namesrv chaos suite smoke                               nine scenarios, some minutes
  namesrv chaos suite full --nodes 3                      everything; resumes where it was stopped
  namesrv chaos check runs/latest                         judge a recorded run again
  namesrv chaos sabotage                                  add defects to the product: does the smoke suite find them?
  namesrv chaos results runs/full                         a Markdown page of a suite's results
  namesrv chaos history runs/latest                       its history for another linearizability checker

A run starts real nodes and a real Toxiproxy server, uses them, and injects faults. It leaves manifest, trace, history, logs, a
timeline (timeline.html) and verdict.json in runs/SUITE/TIME-SEED-SCENARIO-MODE-NODES; runs/latest links to the newest.

Exit 0: all promises of the mode were kept. 1: at least one was broken. 2: unknown (too few operations, or the run failed).
"""

_MODES = "ap, cp, or a foreign name server with its version: java:5.5.0 (RocketMQ's own), rust:1.0.0 (rocketmq-rust)"
_EXIT_OF_ALL = "Exit 1 if a promise was broken in any run, else 2 if any run is unknown, else 0."
_ABOUT_RUN = (
    "Start a cluster that brokers and clients use, inject the faults of the scenario, end them, and check what clients got. "
    "Exit 0: all promises of the mode were kept; 1: at least one was broken; 2: unknown."
)
_ABOUT_FILES = (
    "Your own scenario is a TOML file with the fields of the shipped ones (chaos/scenarios; copy one): faults, timing, "
    "workload, promises. docs/chaos.md shows step by step how to write one. Errors in it are reported before anything starts."
)
_ABOUT_SUITES = (
    "smoke: nine scenarios, two of them only in CP. full: all scenarios in both modes, three seeds with 3 nodes and one with 5; "
    "runs that have a verdict are not repeated. soak: random faults with new seeds until the time is over. "
    f"{_EXIT_OF_ALL}"
)
_ABOUT_SABOTAGE = (
    "Make one-line defects in a copy of the product, one at a time, and run scenarios of the smoke suite on it until a check "
    "finds the defect. Print a Markdown table of the defects with the scenario and the checks that found each. A check counts "
    "only if it holds in a run without the defect. Runs in --out that have a verdict are judged again and not repeated. "
    "Runs that are unknown, because the machine was too busy, are repeated. "
    "Exit 0: the required share was found; 1: less; 2: unknown, or the command line is wrong."
)
SHARE_OF_SMOKE, SHARE_OF_FULL = 85.0, 100.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.epilog = _EXAMPLES
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    about = "List the scenarios that come with the product, one per line."
    listing = commands.add_parser("list", help="the scenarios, one per line", description=about)
    one = commands.add_parser("run", help="run one scenario in one mode", description=_ABOUT_RUN, epilog=_ABOUT_FILES)
    one.add_argument("scenario", help="a name from 'namesrv chaos list', or a .toml file")
    one.add_argument("--mode", default="cp", help=f"{_MODES} (default cp)")
    one.add_argument(
        "--read-consistency", choices=("linearizable", "lease", "stale"), help="read level of CP (default linearizable)"
    )
    one.add_argument("--judge-as", choices=("ap", "cp"), help="mode whose promises are checked (default: the run's mode)")
    compare = commands.add_parser(
        "compare",
        help="run scenarios in several modes and set the figures side by side",
        description="Run each scenario in each mode with one schedule, print the figures side by side, and write a page and a "
        f"figure next to the runs. {_EXIT_OF_ALL}",
        epilog=_ABOUT_FILES,
    )
    compare.add_argument("scenario", nargs="+", help="names from 'namesrv chaos list', or .toml files")
    compare.add_argument("--modes", default="ap,cp", help=f"comma-separated list of {_MODES} (default ap,cp)")
    for command in (one, compare):
        command.add_argument("--nodes", type=int, choices=(1, 3, 5), help="size of the cluster (default: the scenario's, else 3)")
        command.add_argument("--seed", type=int, default=1, help="seed of all random choices (default 1)")
        command.add_argument("--duration-s", type=float, metavar="S", help="how long the faults last (default: the scenario's)")
        command.add_argument(
            "--variant",
            choices=("silent", "held"),
            help="how links are cut: silent drops the bytes, held delays them until the fault ends (default: silent for even "
            "seeds, held for odd ones)",
        )
        command.add_argument(
            "--enforce-access",
            action="store_true",
            help="nodes enforce roles; brokers and clients sign with access keys",
        )
        command.add_argument(
            "--metrics-s", type=float, metavar="S", help="record the metrics of each node every S seconds (default: never)"
        )
    suite = commands.add_parser("suite", help="run a suite of scenarios: smoke, full or soak", description=_ABOUT_SUITES)
    suite.add_argument("suite", choices=("smoke", "full", "soak"))
    suite.add_argument("--modes", default="ap,cp", help=f"comma-separated list of {_MODES} (default ap,cp)")
    suite.add_argument("--nodes", type=int, choices=(3, 5), action="append", help="full: only this size; repeatable")
    suite.add_argument("--seed", type=int, help="full: only this seed; soak: the first one (default 1000)")
    suite.add_argument("--hours", type=float, help=f"soak: how long (default {SOAK_HOURS})")
    sabotage = commands.add_parser(
        "sabotage", help="add defects to a copy of the product, and see whether the suites find them", description=_ABOUT_SABOTAGE
    )
    sabotage.add_argument("--list", action="store_true", help="list the defects, and run nothing")
    sabotage.add_argument("--only", action="append", metavar="NAME", help="only this defect; repeatable")
    extent = sabotage.add_mutually_exclusive_group()
    extent.add_argument(
        "--full", action="store_true", help="after the smoke suite, also run the scenarios of the full suite (three nodes)"
    )
    extent.add_argument(
        "--targeted", action="store_true", help="for each defect, only the scenarios that are likely to find it, with one seed"
    )
    sabotage.add_argument("--runs", type=int, metavar="N", help="at most N runs for each defect, the most promising ones first")
    sabotage.add_argument(
        "--share",
        type=float,
        metavar="PERCENT",
        help=f"share of the defects that must be found for exit 0 (default {SHARE_OF_SMOKE:g}, with --full {SHARE_OF_FULL:g})",
    )
    sabotage.add_argument("--out", type=Path, default=Path("runs"), metavar="DIR", help="folder for the runs (default: runs)")
    for command in (one, compare, suite):
        command.add_argument("--out", type=Path, default=Path("runs"), metavar="DIR", help="folder for the runs (default: runs)")
        command.add_argument(
            "--node-command",
            metavar="COMMAND",
            help="command that runs a node instead of 'namesrv serve'; it gets the same options",
        )
    about = "Judge a recorded run again, and write its verdict and timeline anew."
    check = commands.add_parser("check", help="judge a recorded run again", description=about)
    check.add_argument("run", type=Path, help="folder of the run")
    check.add_argument("--judge-as", choices=("ap", "cp"), help="mode whose promises are checked (default: as it was run)")
    about = "Print a run's history, one operation per line, for another linearizability checker."
    exported = commands.add_parser("history", help="print a run's history", description=about)
    exported.add_argument("run", type=Path, help="folder of the run")
    about = "Print a Markdown page of all runs in folders."
    results = commands.add_parser("results", help="print a Markdown page of results", description=about)
    results.add_argument("runs", type=Path, nargs="+", help="folders of suites, as in runs/full")
    results.add_argument(
        "--summary",
        action="store_true",
        help="a page for a CI job: one line for each run, and its time line as a Mermaid diagram",
    )
    for command in (listing, one, compare, suite, sabotage, check):
        command.add_argument("--json", action="store_true", help="print JSON instead of text")


def run(arguments: argparse.Namespace) -> int:
    """Run the command. The exit code is 1 only if a judged promise was broken; see the examples."""
    try:
        with CommandProgress(lambda seconds, line: f"{seconds:7.1f} s  {line}", form_has_seconds=True) as arguments.say:
            return _COMMANDS[arguments.command](arguments)
    except (NamesrvError, ProvisionError) as error:
        _tell(f"namesrv chaos {arguments.command}: {error}")
    except ModuleNotFoundError as missing:
        known = (missing.name or "").partition(".")[0] in EXTRA_MODULES
        advice = f"{missing.name} is not installed: pip install 'replicated-namesrv[chaos]'"
        _tell(f"namesrv chaos {arguments.command}: {advice}" if known else traceback.format_exc())
    except Exception as error:  # catch everything: an internal error must not look like a verdict
        if is_reported(error):
            raise
        _tell(traceback.format_exc())
    return EXIT_UNKNOWN


def _tell(text: str) -> None:
    """Print to stderr and ignore a closed pipe."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def _print(text: str, end: str = "\n") -> None:
    """Print to stdout. If the reader closed the pipe, the exit code is still that of the verdict."""
    try:
        print(text, end=end, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _list(arguments: argparse.Namespace) -> int:
    from replicated_namesrv.chaos.scenario import available, load

    scenarios = [load(name) for name in available()]
    if arguments.json:
        print(json.dumps([scenario.as_json() for scenario in scenarios]))
        return 0
    width = max(len(scenario.name) for scenario in scenarios)
    for scenario in scenarios:
        marks = [mark for mark in ("smoke" if scenario.smoke else "", scenario.complaint) if mark]
        print(f"{scenario.name:<{width}}  {scenario.title}" + (f" [{', '.join(marks)}]" if marks else ""))
    return 0


def _plan(arguments: argparse.Namespace, name: str, mode: str, suite: str) -> "RunPlan":
    from replicated_namesrv.chaos.run import RunPlan
    from replicated_namesrv.chaos.run_modes import foreign
    from replicated_namesrv.chaos.scenario import load

    scenario = load(name)
    if foreign(mode) is not None and arguments.node_command is not None:
        raise SettingError(f"--node-command: {mode} has its own command; leave it out")
    if foreign(mode) is not None and arguments.enforce_access:
        raise SettingError(f"--enforce-access: {mode} has no roles; leave it out")
    if foreign(mode) is not None and arguments.metrics_s is not None:
        raise SettingError(f"--metrics-s: {mode} has no metrics; leave it out")
    if arguments.metrics_s is not None and not 0.1 <= arguments.metrics_s <= 60:
        raise SettingError(f"--metrics-s {arguments.metrics_s:g}: give 0.1 to 60")
    if arguments.duration_s is not None and not 0.5 <= arguments.duration_s <= 3600:
        raise SettingError(f"--duration-s {arguments.duration_s:g}: give 0.5 to 3600")
    return RunPlan(
        scenario=scenario,
        mode=mode,
        nodes=arguments.nodes or scenario.nodes or 3,
        seed=arguments.seed,
        suite=suite,
        read_consistency=getattr(arguments, "read_consistency", None) or "linearizable",
        variant=arguments.variant,
        duration_s=arguments.duration_s,
        judged_as=getattr(arguments, "judge_as", None),
        enforces_access=arguments.enforce_access,
        metrics_s=arguments.metrics_s,
    )


def _execute(plan: "RunPlan", arguments: argparse.Namespace, say: Callable[[str], None]) -> "Done":
    import dataclasses

    from replicated_namesrv.chaos.suite import execute

    if arguments.node_command is not None:
        plan = dataclasses.replace(
            plan, node_command=words_of("--node-command", arguments.node_command, "the command that runs a node is expected")
        )
    return execute(plan, arguments.out, say)


def _run(arguments: argparse.Namespace) -> int:
    from replicated_namesrv.chaos.run_modes import shown
    from replicated_namesrv.chaos.run_report import described

    if arguments.mode != "cp" and arguments.read_consistency is not None:
        nodes = f"{shown(arguments.mode)} nodes"
        given = f"--read-consistency {arguments.read_consistency}"
        raise SettingError(f"{given}: {nodes} have no read levels; leave it out, or use --mode cp")
    done = _execute(_plan(arguments, arguments.scenario, arguments.mode, "single"), arguments, arguments.say)
    if arguments.json:
        _print(json.dumps({**done.verdict, "folder": str(done.folder)}))
    else:
        _print(f"{described(done.judgement)}\n{done.folder}")
    return EXIT_OF[done.judgement.verdict]


def _compare(arguments: argparse.Namespace) -> int:
    from dataclasses import replace

    from replicated_namesrv.chaos.comparison_page import write_comparison
    from replicated_namesrv.chaos.run_modes import foreign
    from replicated_namesrv.chaos.run_report import comparison

    modes, verdicts, say, compared = _modes(arguments.modes), [], arguments.say, []
    by_remoting = any(foreign(mode) is not None for mode in modes)
    for name in arguments.scenario:
        plans = [replace(_plan(arguments, name, mode, "compare"), looks_by_remoting=by_remoting) for mode in modes]
        found = {plan.mode: _execute(plan, arguments, say) for plan in plans}
        verdicts += [done.judgement.verdict for done in found.values()]
        heading = f"{plans[0].scenario.name}, seed {arguments.seed}"
        page = write_comparison(heading, {mode: done.folder for mode, done in found.items()})
        compared.append({"scenario": name, **{mode: done.verdict for mode, done in found.items()}, "page": str(page)})
        if not arguments.json:
            text = comparison(heading, {mode: done.verdict for mode, done in found.items()})
            _print(f"{text}\n{page}", end="\n\n")
    if arguments.json:
        _print(json.dumps(compared))
    return _worst(verdicts)


def _modes(text: str) -> list[str]:
    """The modes of a comma-separated list. Raises SettingError."""
    from replicated_namesrv.chaos.run_modes import foreign

    modes = text.split(",")
    for mode in modes:
        foreign(mode)
    twice = next((mode for mode in modes if modes.count(mode) > 1), None)
    if twice is not None:
        raise SettingError(f"--modes {text}: {twice} is given twice; give each mode once")
    return modes


def _worst(verdicts: Iterable[str]) -> int:
    found = set(verdicts)
    return 1 if "violated" in found else EXIT_UNKNOWN if "unknown" in found else 0


def _suite(arguments: argparse.Namespace) -> int:
    from replicated_namesrv.chaos import suite
    from replicated_namesrv.chaos.run_report import described, read_verdict
    from replicated_namesrv.chaos.toxiproxy_client import ToxiproxyError
    from replicated_namesrv.child_process import ProcessError

    _check_suite(arguments)
    if arguments.node_command is not None and any(mode not in suite.MODES for mode in _modes(arguments.modes)):
        raise SettingError(f"--node-command: {arguments.modes} has a mode with its own command; leave it out")
    say = arguments.say
    done: dict[str, Path] = suite.finished(arguments.out, "full") if arguments.suite == "full" else {}
    until = time.monotonic() + (arguments.hours or SOAK_HOURS) * 3600
    verdicts: list[dict[str, Any]] = []
    for number, plan in enumerate(_plans(arguments), 1):
        if arguments.suite == "soak" and time.monotonic() > until:
            break
        if plan.name in done:
            say(f"run {number}, {plan.name}: done before, {done[plan.name]}")
            verdicts.append(read_verdict(done[plan.name]) or {})
            continue
        say(f"run {number}, {plan.name}")
        try:
            finished = _execute(plan, arguments, lambda text: say(f"  {text}"))
        except (ProcessError, ToxiproxyError) as error:  # only this run failed; continue with the next one
            say(f"  {error}")
            verdicts.append({"verdict": "unknown"})
            continue
        verdicts.append(finished.verdict)
        if arguments.json:
            _print(json.dumps({**finished.verdict, "folder": str(finished.folder)}))
        else:
            _print(f"{plan.name}: {described(finished.judgement).strip()}")
    if not verdicts:
        raise SettingError(f"--seed {arguments.seed}: {arguments.suite} has no run with this seed and size; leave --seed out")
    counts = {verdict: sum(one["verdict"] == verdict for one in verdicts) for verdict in EXIT_OF}
    if arguments.json:
        _print(json.dumps({"summary": True, "suite": arguments.suite, "runs": len(verdicts), **counts}))
    else:
        _print(f"{len(verdicts)} runs: " + ", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    return _worst(one["verdict"] for one in verdicts)


_OPTIONS_OF_SUITE = {"smoke": (), "full": ("nodes", "seed"), "soak": ("seed", "hours")}


def _check_suite(arguments: argparse.Namespace) -> None:
    """Raise SettingError for an option that the suite would ignore or a value out of range."""
    for name in ("nodes", "seed", "hours"):
        if getattr(arguments, name) is not None and name not in _OPTIONS_OF_SUITE[arguments.suite]:
            knows = [suite for suite, options in _OPTIONS_OF_SUITE.items() if name in options]
            raise SettingError(f"--{name}: {arguments.suite} has its own; leave it out, or run {' or '.join(knows)}")
    if arguments.hours is not None and not 0 < arguments.hours <= HOURS_MAX:
        raise SettingError(f"--hours {arguments.hours:g}: give more than 0 and at most {HOURS_MAX}")


def _plans(arguments: argparse.Namespace) -> "Iterable[RunPlan]":
    from replicated_namesrv.chaos import suite

    modes = _modes(arguments.modes)
    match arguments.suite:
        case "smoke":
            return suite.smoke_plans(modes)
        case "full":
            plans = suite.full_plans(arguments.nodes or (3, 5), modes)
            return [plan for plan in plans if arguments.seed in (None, plan.seed)]
    return suite.soak_plans(1000 if arguments.seed is None else arguments.seed, modes)


def _sabotage(arguments: argparse.Namespace) -> int:
    from replicated_namesrv.chaos import sabotage

    share = (SHARE_OF_FULL if arguments.full else SHARE_OF_SMOKE) if arguments.share is None else arguments.share
    if not 0 < share <= 100:
        raise SettingError(f"--share {share:g}: give more than 0 and at most 100")
    if arguments.runs is not None and arguments.runs < 1:
        raise SettingError(f"--runs {arguments.runs}: give at least 1")
    chosen = sabotage.chosen(arguments.only)
    if arguments.list:
        for one in chosen:
            _print(json.dumps(one._asdict()) if arguments.json else f"{one.name}: {one.mode.upper()}, {one.breaks} ({one.file})")
        return 0
    say = arguments.say
    saboteur, results = sabotage.Saboteur(arguments.out, say), []
    for number, one in enumerate(chosen, 1):
        say(f"sabotage {number} of {len(chosen)}, {one.name}: {one.breaks}")
        every = sabotage.targeted_plans(one) if arguments.targeted else sabotage.plans(one, full=arguments.full)
        results.append(saboteur.tried(one, every[: arguments.runs]))
        say(f"  {results[-1].found.value}")
    summary = sabotage.SabotageSummary.of(results)
    if arguments.json:
        _print(json.dumps({"sabotages": [sabotage.as_json(one) for one in results], **summary._asdict(), "share_asked": share}))
    else:
        _print(sabotage.table(results))
        _print(f"\n{summary.caught} of {len(results)} caught, {summary.missed} missed, {summary.unknown} unknown")
    return EXIT_OF[summary.verdict(share)]


def _check(arguments: argparse.Namespace) -> int:
    from replicated_namesrv.chaos.run_report import conclude, described

    judgement, verdict = conclude(arguments.run, arguments.judge_as)
    _print(json.dumps(verdict) if arguments.json else described(judgement))
    return EXIT_OF[judgement.verdict]


def _history(arguments: argparse.Namespace) -> int:
    from replicated_namesrv.chaos.run_report import history, load_story
    from replicated_namesrv.verify.operation_history import format_operation

    for operation in history(load_story(arguments.run)):
        print(format_operation(operation))
    return 0


def _results(arguments: argparse.Namespace) -> int:
    from replicated_namesrv.chaos.run_report import read_verdict, results_page

    folders = [folder for runs in arguments.runs for folder in _folders(runs)]
    found = {folder: verdict for folder in folders if (verdict := read_verdict(folder)) is not None}
    unmade = [folder for folder in folders if folder not in found and (folder / "logs").is_dir()] if arguments.summary else []
    if not found and not unmade:
        raise SettingError(f"no verdict.json in any folder of {', '.join(map(str, arguments.runs))}")
    if arguments.summary:
        from replicated_namesrv.chaos.job_summary import job_summary

        print(job_summary(found, unmade), end="")
        return 0
    print(results_page(list(found.values())), end="")
    return 0


def _folders(runs: Path) -> list[Path]:
    """Raises SettingError."""
    try:
        return sorted(runs.iterdir())
    except OSError as cause:
        raise SettingError(f"{runs}: {cause.strerror}; give the folder of a suite, such as runs/full") from None


_COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "list": _list,
    "run": _run,
    "compare": _compare,
    "suite": _suite,
    "sabotage": _sabotage,
    "check": _check,
    "history": _history,
    "results": _results,
}

"""``namesrv study``: makes the runs of a study, continues it, and publishes its results (``chaos/studies``, ``docs/results``)."""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from replicated_namesrv.cli.command_progress import CommandProgress
from replicated_namesrv.errors import NamesrvError, SettingError
from replicated_namesrv.provision import ProvisionError

if TYPE_CHECKING:
    from replicated_namesrv.chaos.study_ledger import StudyLedger
    from replicated_namesrv.chaos.study_plan import StudyPlan
    from replicated_namesrv.spark.study_data import PlanFacts

HELP = "compare name servers in a planned series of runs, and publish the results"

EXIT_VIOLATED, EXIT_UNKNOWN = 1, 2
HOURS_MAX = 10_000
FOLDER = "runs/studies"
PUBLISHED = "docs/results"
MAIN_STUDY = "primary"
_EXAMPLES = """\
examples:
  namesrv study plan primary                           the runs of a study, how long they take, and how much disk they need
  namesrv study run primary --hours 1                  begin it, and stop after an hour
  namesrv study resume runs/studies/primary            continue where it stopped
  namesrv study publish runs/studies/primary           write docs/results anew
  namesrv study publish FOLDER --judge-again           the same, after changes of the checks

A plan is a TOML file (chaos/studies; copy one). A study has a folder with its plan, its ledger (ledger.jsonl, one line for each
attempt of a run) and the compressed trace of each run. It can be stopped at any time, also by kill -9. Then only the runs in
progress are made again. A run counts whatever its verdict is. Only a run that made no complete trace is repeated, at most twice.
After four such attempts in a row, the study stops.

Exit 0: done, or stopped by --hours. 1: a run broke a promise of its mode. 2: wrong usage, or nothing to publish.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.epilog = _EXAMPLES
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    about = "Print how many runs a study has, how long they take, and how much disk space they need. Run nothing."
    plan = commands.add_parser("plan", help="what a study would do", description=about)
    about = "Make the runs of a study in a random order. Each block has one run of each arm."
    begin = commands.add_parser("run", help="make the runs of a study", description=about)
    for command in (plan, begin):
        command.add_argument("plan", metavar="PLAN", help="a plan that comes with the product (primary), or a .toml file")
    about = "Continue a study where it stopped. Runs in progress at that time are made again."
    resume = commands.add_parser("resume", help="continue a study", description=about)
    about = (
        "Compute the figures of a study from its traces, add them to the published ones, and write the page. "
        "Without FOLDER, write the page again from the published figures."
    )
    publish = commands.add_parser("publish", help="write the results", description=about)
    begin.add_argument("--out", type=Path, metavar="DIR", help=f"folder of the study (default: {FOLDER}/PLAN)")
    resume.add_argument("folder", type=Path, metavar="FOLDER", help="folder of the study")
    publish.add_argument("folder", type=Path, nargs="?", metavar="FOLDER", help="folder of the study")
    publish.add_argument(
        "--to", type=Path, default=Path(PUBLISHED), metavar="DIR", help=f"folder of the page and its data (default: {PUBLISHED})"
    )
    publish.add_argument(
        "--judge-again", action="store_true", help="first judge each run again with the present checks (3 s of one core each)"
    )
    for command in (begin, resume):
        command.add_argument("--hours", type=float, metavar="H", help="start no run that would end later (default: no limit)")
        command.add_argument("--dry-run", action="store_true", help="print what would be done, as 'namesrv study plan' does")
    for command in (plan, begin, resume):
        command.add_argument("--jobs", type=int, choices=(1, 2), default=1, help="runs at the same time (default 1)")
        command.add_argument(
            "--keep-traces",
            action="store_true",
            help="keep the whole folder of each run, for 'namesrv analyze' and 'namesrv chaos check'",
        )
        command.add_argument(
            "--published",
            type=Path,
            metavar="DIR",
            help=f"leave out the runs whose results are published in DIR (for example {PUBLISHED})",
        )
    for command in (plan, begin, resume, publish):
        command.add_argument("--json", action="store_true", help="print JSON instead of text")


def run(arguments: argparse.Namespace) -> int:
    """Run the command; exit code as in the examples."""
    try:
        with CommandProgress(lambda seconds, line: f"{seconds:7.0f} s  {line}", silent_max_s=30.0, form_has_seconds=True) as say:
            return _COMMANDS[arguments.command](arguments, say)
    except (NamesrvError, ProvisionError) as error:
        print(f"namesrv study {arguments.command}: {error}", file=sys.stderr)
    except ModuleNotFoundError as missing:
        extra = "chaos" if arguments.command != "publish" else "chaos,spark"
        advice = f"{missing.name} is not installed: pip install 'replicated-namesrv[{extra}]'"
        print(f"namesrv study {arguments.command}: {advice}", file=sys.stderr)
    return EXIT_UNKNOWN


def _plan(arguments: argparse.Namespace, say: Callable[[str], None]) -> int:
    from replicated_namesrv.chaos.study_plan import load_study, study_file

    return _outlook(arguments, load_study(study_file(arguments.plan)), ())


def _outlook(arguments: argparse.Namespace, plan: "StudyPlan", done: Sequence[str]) -> int:
    from replicated_namesrv.chaos.study_plan import remaining
    from replicated_namesrv.chaos.study_session import described_time, outlook

    found = outlook(
        plan, remaining(plan, [*done, *_elsewhere(arguments, plan)]), arguments.jobs, keep_traces=arguments.keep_traces
    )
    if arguments.json:
        print(json.dumps(found))
        return 0
    print(f"{found['title']}\n{found['left']} of {found['runs']} runs are left:")
    print(f"  time      {described_time(3600 * found['hours'])} on a quiet machine with two cores, {arguments.jobs} at a time")
    print(f"  disk      {found['disk_mb']} MB")
    for arm, hours in found["arms"].items():
        print(f"  {arm:<17} {described_time(3600 * hours)}")
    hours = 0.0
    for wave in found["waves"]:
        hours += wave["hours"]
        print(f"  wave of seed {wave['seed']}: {wave['runs']} runs, done after {described_time(3600 * hours)}")
    return 0


def _elsewhere(arguments: argparse.Namespace, plan: "StudyPlan") -> frozenset[str]:
    """The runs whose results are published."""
    if arguments.published is None:
        return frozenset()
    from replicated_namesrv.chaos.study_ledger import published_runs

    return published_runs(arguments.published, plan)


def _run(arguments: argparse.Namespace, say: Callable[[str], None]) -> int:
    from replicated_namesrv.chaos.study_ledger import create
    from replicated_namesrv.chaos.study_plan import load_study, study_file

    path = study_file(arguments.plan)
    folder = arguments.out or Path(FOLDER) / path.stem
    _check_hours(arguments)
    if arguments.dry_run:
        return _outlook(arguments, load_study(path), ())
    return _make(arguments, folder, create(folder, path), say)


def _resume(arguments: argparse.Namespace, say: Callable[[str], None]) -> int:
    from replicated_namesrv.chaos.study_ledger import StudyLedger, open_study

    plan = open_study(arguments.folder)
    _check_hours(arguments)
    if arguments.dry_run:
        return _outlook(arguments, plan, list(StudyLedger(arguments.folder).results()))
    return _make(arguments, arguments.folder, plan, say)


def _check_hours(arguments: argparse.Namespace) -> None:
    if arguments.hours is not None and not 0 < arguments.hours <= HOURS_MAX:
        raise SettingError(f"--hours {arguments.hours:g}: give more than 0 and at most {HOURS_MAX}")


def _make(arguments: argparse.Namespace, folder: Path, plan: "StudyPlan", say: Callable[[str], None]) -> int:
    from replicated_namesrv.chaos.study_session import SessionOptions, StudySession

    options = SessionOptions(arguments.jobs, arguments.hours, arguments.keep_traces, _elsewhere(arguments, plan))
    try:
        end = StudySession(folder, plan, options, say).run()
    except KeyboardInterrupt:
        say(f"interrupted; continue with: namesrv study resume {folder}")
        raise
    if arguments.json:
        print(json.dumps({"study": plan.name, "folder": str(folder), "made": end.made, "left": end.left, "verdicts": end.counts}))
    else:
        counted = ", ".join(f"{count} {verdict}" for verdict, count in end.counts.items()) or "none"
        print(f"{end.made} attempts made. Runs that are done: {counted}. {end.left} runs are left.")
        print(f"next: namesrv study {'publish' if end.complete else 'resume'} {folder}")
        if end.violated:
            named = ", ".join(end.violated[:3])
            print(f"{len(end.violated)} runs broke a promise ('violated' in the ledger says which), for example {named}")
    return EXIT_VIOLATED if end.violated else 0


def _publish(arguments: argparse.Namespace, say: Callable[[str], None]) -> int:
    from replicated_namesrv.chaos.study_ledger import PLAN_FILE, StudyLedger, open_study
    from replicated_namesrv.chaos.study_plan import available_studies, load_study, plan_sha256, study_file

    if arguments.folder is None and arguments.judge_again:
        raise SettingError("--judge-again: needs the runs; give the folder of the study")
    if arguments.folder is None:
        plan, added = load_study(study_file(MAIN_STUDY)), 0
    else:
        plan = open_study(arguments.folder)
        ours = available_studies().get(plan.name)
        if ours is not None and plan_sha256(arguments.folder / PLAN_FILE) == plan_sha256(ours):
            plan = load_study(ours)  # its texts may be newer
        elif plan.name == MAIN_STUDY:
            raise SettingError(f"{arguments.folder}: has another plan than {MAIN_STUDY}; publish it with --to another folder")
        added = _add_results(arguments, plan, StudyLedger(arguments.folder), say)
    from replicated_namesrv.spark.study_data import read_data
    from replicated_namesrv.spark.study_page import write_page

    data = read_data(arguments.to / plan.name, plan_facts(plan))
    page = write_page(arguments.to, data)
    if arguments.json:
        found = {"study": plan.name, "page": str(page), "added": added, "done": len(data.runs), "runs": len(plan.runs)}
        print(json.dumps(found))
    else:
        print(f"{page}: {len(data.runs)} of {len(plan.runs)} runs, {added} from {arguments.folder or 'no new folder'}")
    return 0


def _add_results(arguments: argparse.Namespace, plan: "StudyPlan", ledger: "StudyLedger", say: Callable[[str], None]) -> int:
    """Add the runs of a study's folder to the published data. Returns their number."""
    from replicated_namesrv.chaos.run_report import read_verdict
    from replicated_namesrv.chaos.study_session import broken_promises, run_folder, unkept_promises
    from replicated_namesrv.chaos.study_verdicts import judge_again
    from replicated_namesrv.spark.study_data import rows_of, rows_without_result, write_data
    from replicated_namesrv.spark.study_results import StudyTrace, results

    done = ledger.results()
    if not done:
        raise SettingError(f"{arguments.folder}: no run is done yet; continue with 'namesrv study resume {arguments.folder}'")
    failed = [entry for entry in done.values() if "trace_sha256" not in entry]
    folders = {one["run"]: run_folder(arguments.folder, one) for one in done.values() if "trace_sha256" in one}
    if arguments.judge_again:
        judge_again(list(folders.values()), say)
    traces = []
    for run_key, folder in folders.items():
        entry, verdict = dict(done[run_key]), read_verdict(folder)
        if verdict is not None:
            reason, violated = unkept_promises(verdict), broken_promises(verdict)
            entry |= {"verdict": verdict["verdict"], "reason": reason, "violated": violated}
        traces.append(StudyTrace(entry, folder))
    runs, figures = rows_of(traces, results(arguments.folder, traces, say))
    write_data(arguments.to / plan.name, [*runs, *rows_without_result(failed)], figures)
    return len(done)


def plan_facts(plan: "StudyPlan") -> "PlanFacts":
    """What the page of a study says about its plan."""
    from replicated_namesrv.spark.study_data import PlanFacts

    return PlanFacts(
        plan.name,
        plan.title,
        plan.question,
        plan.timers,
        tuple(arm.name for arm in plan.arm),
        tuple(arm.mode for arm in plan.arm),
        tuple(plan.loaded),
        tuple((factor.name, tuple(level.name for level in factor.level)) for factor in plan.factor),
        frozenset(run.key for run in plan.runs),
    )


_COMMANDS: dict[str, Callable[[argparse.Namespace, Callable[[str], None]], int]] = {
    "plan": _plan,
    "run": _run,
    "resume": _resume,
    "publish": _publish,
}

"""``namesrv simulate``: runs the Raft core in the simulator under seeded faults (``replicated_namesrv.simulation``)."""

import argparse
import contextlib
import json
import signal
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

from replicated_namesrv.cli.command_progress import CommandProgress
from replicated_namesrv.errors import SettingError
from replicated_namesrv.raft.raft_config import Defences
from replicated_namesrv.replication.liveness.defences import LivenessDefences
from replicated_namesrv.simulation.campaign import Shrinker, cores, explain, run_all
from replicated_namesrv.simulation.simulation import RunResult, Scenario

HELP = "run the Raft core under seeded faults in virtual time and check that no acknowledged write is lost"

_EXAMPLES = """\
  namesrv simulate --seeds 0:500                 500 runs of three nodes, each half a minute of faults
  namesrv simulate --seeds 0:5000 --nodes 5      for a whole night
  namesrv simulate --seeds 0:20 --off pre_vote   is this defence needed? violations are expected
  namesrv simulate --seeds 0:20 --plain          unmodified PySyncObj in the same simulator
  namesrv simulate --seeds 0:50 --application routes   name servers and their brokers on top of the core
  namesrv simulate --seeds 17:18                 one run again; the same seed gives the same trace digest anywhere

The seed determines all random choices: settings, clients, faults, delays, and the part of a file that survives a power loss.
The invariants of Raft are checked after every event. At the end the states of the nodes must be equal and the clients' histories
linearizable. With --application routes there are also brokers: a live registered broker must stay in the routes, and a dead one
must leave them. A failing run is reduced and printed with the command that repeats it.

Exit 0: no violation. 1: an invariant was broken. 2: wrong usage. 130: Ctrl-C, after a summary of the seeds that had ended.
"""


PROGRESS_S = 1.4
"""Minimum time between two lines of progress when the output is not a terminal."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.epilog = "examples:\n" + _EXAMPLES
    parser.add_argument("--seeds", default="0:20", metavar="FROM:TO", help="seeds to run, TO excluded (default 0:20)")
    parser.add_argument("--nodes", type=int, choices=(1, 3, 5), default=3, help="nodes of the cluster (default 3)")
    parser.add_argument(
        "--spares", type=int, choices=range(5), default=0, metavar="N",
        help="machines that an operator adds as members, promotes and removes (default 0: the members do not change)",
    )  # fmt: skip  # items grouped by line
    parser.add_argument("--duration-s", type=float, default=30.0, metavar="S", help="virtual seconds of faults (default 30)")
    parser.add_argument("--off", metavar="DEFENCE", help="switch off one defence; an unknown name prints the list of all")
    parser.add_argument(
        "--application", choices=("registers", "routes"), default="registers", help="what runs on the core (default registers)"
    )
    parser.add_argument("--plain", action="store_true", help="plain PySyncObj instead of our core")
    parser.add_argument("--clients", type=int, metavar="N", help="clients, or brokers (default: drawn from the seed)")
    parser.add_argument("--faults", metavar="N,N", help="only these faults of the schedule, by number; 'none' for none")
    parser.add_argument("--processes", type=int, default=0, metavar="N", help="processes (default: one for each core)")
    parser.add_argument("--stop-after", type=int, default=0, metavar="N", help="stop at the N-th failing seed (default: never)")
    parser.add_argument("--no-shrink", action="store_true", help="do not make the first failing run smaller")
    parser.add_argument("--trace", action="store_true", help="print each run in full, with its messages")
    parser.add_argument("--json", action="store_true", help="one JSON object per run, then a summary object")


def run(arguments: argparse.Namespace) -> int:
    """Run the campaign; exit code as in the examples."""
    try:
        scenarios = _scenarios(arguments)
    except SettingError as error:
        print(f"namesrv simulate: {error}", file=sys.stderr)
        return 2
    if arguments.trace:
        return _run_readable(scenarios)
    report = _Report(arguments, len(scenarios))
    try:
        with _interrupts() as check:

            def tick() -> None:
                report.progress()
                check()

            processes = min(arguments.processes or cores(), len(scenarios))
            with contextlib.closing(run_all(scenarios, processes, tick)) as results:
                for result in results:
                    report.add(result)
                    if arguments.stop_after and len(report.failures) >= arguments.stop_after:
                        break
            check()
    except KeyboardInterrupt:
        print(f"\nnamesrv simulate: stopped after {report.done} of {len(scenarios)} seeds", file=sys.stderr, flush=True)
        report.finish(shrink=False)
        raise
    return report.finish()


@contextlib.contextmanager
def _interrupts() -> Iterator[Callable[[], None]]:
    """A function that raises KeyboardInterrupt if Ctrl-C was pressed.

    The signal handler does not raise at the first Ctrl-C: Python drops an error that is raised in a callback of the garbage
    collector, and the executor must not be interrupted while it starts a process."""
    seen = False

    def interrupt(number: int, frame: object) -> None:
        nonlocal seen
        if seen:
            raise KeyboardInterrupt
        seen = True

    def check() -> None:
        if seen:
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():  # only the main thread may handle signals
        yield check
        return
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)


def _scenarios(arguments: argparse.Namespace) -> list[Scenario]:
    first, _, last = arguments.seeds.partition(":")
    if not (first.isdecimal() and last.isdecimal()) or int(first) >= int(last):
        raise SettingError(f"--seeds {arguments.seeds!r}: expected FROM:TO with FROM < TO, for example 0:20")
    if not 0 < arguments.duration_s <= 3600:
        raise SettingError(f"--duration-s {arguments.duration_s:g}: expected more than 0 and at most 3600")
    if arguments.clients is not None and not 0 < arguments.clients <= 64:
        raise SettingError(f"--clients {arguments.clients}: expected 1 to 64")
    if arguments.off is not None:
        if arguments.plain:
            raise SettingError("--off and --plain exclude each other: plain PySyncObj has none of the defences")
        try:
            if arguments.application != "routes" or arguments.off not in LivenessDefences.names():
                Defences.without(arguments.off)
        except ValueError as error:
            raise SettingError(f"--off: {error}") from None
    if arguments.spares and (arguments.plain or arguments.application != "registers" or arguments.nodes == 1):
        raise SettingError("--spares needs 3 or 5 nodes and --application registers: only these members can change")
    if arguments.plain and arguments.application != "registers":
        raise SettingError("--plain and --application routes exclude each other: the liveness of brokers needs the guard")
    faults = None
    if arguments.faults is not None:
        numbers = [] if arguments.faults == "none" else arguments.faults.split(",")
        if not all(number.isdecimal() for number in numbers):
            raise SettingError(f"--faults {arguments.faults!r}: expected numbers separated by commas, or none")
        faults = tuple(int(number) for number in numbers)
    subject = "plain" if arguments.plain else "raft"
    return [
        Scenario(
            seed,
            arguments.nodes,
            arguments.duration_s,
            subject,
            arguments.off,
            arguments.clients,
            faults,
            arguments.application,
            arguments.spares,
        )
        for seed in range(int(first), int(last))
    ]


def _run_readable(scenarios: list[Scenario]) -> int:
    """Print each run in full, messages included."""
    from replicated_namesrv.simulation.subjects import run as run_one

    worst = 0
    for scenario in scenarios:
        result = run_one(scenario, readable=True)
        print("\n".join(result.lines))
        print(f"seed {scenario.seed}: {result.violation or 'no violation'}, trace digest {result.digest}")
        worst = max(worst, 1 if result.violation else 0)
    return worst


class _Report:
    """Prints progress as runs end, and the summary."""

    def __init__(self, arguments: argparse.Namespace, total: int) -> None:
        self._json, self._shrink, self._total = arguments.json, not arguments.no_shrink, total
        self._started = time.monotonic()
        self._reported_at = self._started
        self.done = 0
        self._virtual_s = 0.0
        self._catch_ups: list[float] = []
        self._counts: Counter[str] = Counter()
        self._tolerated: Counter[str] = Counter()
        self.failures: list[RunResult] = []

    def add(self, result: RunResult) -> None:
        """One more run has ended."""
        self.done += 1
        self._virtual_s += result.virtual_s
        self._counts.update(result.counts)
        for name, count in result.counts.items():
            if name.startswith("tolerated ") and count:
                self._tolerated[name.removeprefix("tolerated ")] += 1
        if result.violation is None:
            self._catch_ups.append(result.catch_up_s)
        else:
            self.failures.append(result)
        if self._json:
            print(json.dumps(_as_json(result)), flush=True)
        elif result.violation is not None:
            self._clear()
            first = result.text.split("\n")[0]
            print(f"seed {result.scenario.seed}: {result.violation} at {result.violated_at_s:.3f} s: {first}", flush=True)
        self.progress()

    def progress(self) -> None:
        """Show the progress of the campaign, if it was not shown lately."""
        now = time.monotonic()
        terminal = sys.stderr.isatty()
        if now - self._reported_at > (0.5 if terminal else PROGRESS_S):
            self._reported_at = now
            taken_s = now - self._started
            rate = self._virtual_s / taken_s
            counts = f"{self.done}/{self._total} seeds, {len(self.failures)} failed"
            text = f"{taken_s:.0f} s: {counts}, {rate:.0f} virtual seconds a second"
            print(f"\r{text}\x1b[K" if terminal else text, end="" if terminal else "\n", file=sys.stderr, flush=True)

    def _clear(self) -> None:
        if sys.stderr.isatty():
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def finish(self, *, shrink: bool = True) -> int:
        """Print the summary, and a failing run made smaller if ``shrink``. Returns the exit code."""
        self._clear()
        self.failures.sort(key=lambda result: result.scenario.seed)
        wall_s = time.monotonic() - self._started
        names = Counter(str(result.violation) for result in self.failures)
        if self._json:
            print(json.dumps(self._summary(names, wall_s)))
        else:
            print(f"{self.done} seeds, {self._virtual_s:.0f} virtual seconds in {wall_s:.1f} s: {self._outcome(names)}")
            if self._catch_ups:
                print(
                    f"catch-up after the last heal: median {statistics.median(self._catch_ups):.2f} s, "
                    f"longest {max(self._catch_ups):.2f} s"
                )
            for name, seeds in sorted(self._tolerated.items()):
                print(f"tolerated: {name} was broken {self._counts[f'tolerated {name}']} times, in {seeds} seeds")
            if self._counts:
                print(f"seen: {_listed(self._counts)}")
            if self.failures and self._shrink and shrink:
                self._explain_first()
        return 1 if self.failures else 0

    def _outcome(self, names: Counter[str]) -> str:
        if self.failures:
            return f"{len(self.failures)} failed ({_listed(names)})"
        return "no violation" if self.done else "nothing checked"

    def _summary(self, names: Counter[str], wall_s: float) -> dict[str, object]:
        return {
            "summary": True,
            "seeds": self.done,
            "failed_seeds": [result.scenario.seed for result in self.failures],
            "violations": dict(names),
            "virtual_s": round(self._virtual_s, 3),
            "wall_s": round(wall_s, 3),
            "catch_up_s_max": max(self._catch_ups, default=None),
            "counts": dict(self._counts),
        }

    def _explain_first(self) -> None:
        first = min(self.failures, key=lambda result: (result.virtual_s, result.scenario.seed))
        with CommandProgress(lambda seconds, line: f"making seed {first.scenario.seed} smaller: {line}") as say:
            smallest = Shrinker(first, 90.0, say).shrink()
        print(f"\n{explain(smallest)}")
        print(f"in full: {first.scenario.command()}")


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))


def _as_json(result: RunResult) -> dict[str, object]:
    return {
        "seed": result.scenario.seed,
        "nodes": result.scenario.nodes,
        "violation": result.violation,
        "text": result.text,
        "at_s": round(result.violated_at_s, 6) if result.violation else None,
        "trace_digest": result.digest,
        "catch_up_s": round(result.catch_up_s, 3),
        "virtual_s": round(result.virtual_s, 3),
        "wall_s": round(result.wall_s, 3),
        "repeat": result.scenario.command(),
        "counts": result.counts,
    }

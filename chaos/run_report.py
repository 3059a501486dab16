"""Output of a finished run: verdict.json, history.jsonl, timeline.html, and reports and tables as text."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from replicated_namesrv.chaos.checks import RunJudgement, judge
from replicated_namesrv.chaos.checks.linear import kv_history
from replicated_namesrv.chaos.checks.registration_history import registrations
from replicated_namesrv.chaos.checks.story import Story
from replicated_namesrv.chaos.records import MANIFEST_FILE, SCHEMA_VERSION, RecordedTrace, TraceError, read_trace, trace_path
from replicated_namesrv.chaos.run_modes import OWN, promises_of, shown
from replicated_namesrv.chaos.timeline_page import render
from replicated_namesrv.files import write_atomically
from replicated_namesrv.verify import Operation, write_history

VERDICT_FILE, HISTORY_FILE, TIMELINE_FILE = "verdict.json", "history.jsonl", "timeline.html"
Verdicts = Mapping[str, Any]

_COMPARED = (
    ("nodes certainly answered differently", "diverged_s", "s"),
    ("largest difference (1 - Jaccard)", "divergence_max", ""),
    ("KV reads, stale", "stale_kv_reads", ""),
    ("route look-ups", "lookups", ""),
    ("  refused or unanswered", "lookups_refused", ""),
    ("  showing a replaced registration", "stale_routes", ""),
    ("  lacking a live broker", "lookups_missing", ""),
    ("  listing a broker that is gone", "lookups_ghost", ""),
    ("KV writes of unknown outcome", "writes_unknown", ""),
    ("silent death until removed, mean", "silent_removed_s", "s"),
    ("removals of live brokers, cut off or not", "live_removed", ""),
    ("sends to a broker that is gone or read-only", "misrouted", ""),
    ("messages doubled: queues that several consumers would read", "queues_doubled", "%"),
    ("messages waiting: queues that no consumer would read", "queues_orphaned", "%"),
    ("longest wait for a success", "longest_gap_s", "s"),
    ("all equal after the last fault", "convergence_s", "s"),
    ("elections", "elections", ""),
)


_LOST = (
    ("acknowledged registrations lost at the end", "acknowledged registrations at the end"),
    ("acknowledged KV writes lost at the end", "acknowledged KV writes at the end"),
    ("deleted, and back again", "no resurrection"),
)
"""Rows of a comparison that count a check's findings."""


def load_story(folder: Path) -> Story:
    """Load the record of a run. Raises TraceError."""
    try:
        manifest = json.loads((folder / MANIFEST_FILE).read_bytes())
    except (OSError, ValueError) as cause:
        raise TraceError(f"{folder / MANIFEST_FILE}: cannot be read ({cause}); give the folder of a run") from cause
    trace = read_trace(trace_path(folder))
    with _as_trace_error(folder):
        if manifest["schema"] != SCHEMA_VERSION:
            raise TraceError(
                f"{folder / MANIFEST_FILE}: schema version {manifest['schema']}, but this release reads only version "
                f"{SCHEMA_VERSION}; use the release that recorded the run"
            )
        return Story(trace, manifest)


@contextmanager
def _as_trace_error(folder: Path) -> Iterator[None]:
    """Raise TraceError for files that parse but are inconsistent, for example after a change by hand."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, StopIteration) as cause:
        raise TraceError(
            f"{folder}: manifest or trace has wrong content ({type(cause).__name__}: {cause}); if changed by hand, restore it"
        ) from cause


def conclude(folder: Path, judged_as: str | None = None) -> tuple[RunJudgement, dict[str, Any]]:
    """Judge the run in ``folder`` and write all result files. Raises TraceError, StorageError."""
    story = load_story(folder)
    judgement, verdict = judged_story(folder, story, judged_as)
    with _as_trace_error(folder):
        picture = render(story, judgement).encode()
    write_history(folder / HISTORY_FILE, history(story))
    write_atomically(folder / TIMELINE_FILE, picture)
    write_atomically(folder / VERDICT_FILE, json.dumps(verdict, indent=1).encode())
    return judgement, verdict


def judged_story(folder: Path, story: Story, judged_as: str | None = None) -> tuple[RunJudgement, dict[str, Any]]:
    """Judge a run that was loaded from ``folder``: the judgement, and the content of verdict.json. Raises TraceError."""
    with _as_trace_error(folder):
        judgement = judge(story, judged_as or story.manifest["judged_as"])
        verdict = {
            **_naming(story.manifest),
            "complete": judgement.complete,
            "trace": _counts(story.trace),
            **judgement.as_json(),
        }
    return judgement, verdict


def _counts(trace: RecordedTrace) -> dict[str, int]:
    return {"records": len(trace.records), "torn": trace.torn, "corrupt": len(trace.corrupt)}


def history(story: Story) -> list[Operation]:
    """The operations that the linearizability checker judges, by start time."""
    return sorted(kv_history(story) + registrations(story).history, key=lambda operation: operation.start_ns)


def _naming(manifest: Mapping[str, Any]) -> dict[str, Any]:
    names = ("schema", "run", "suite", "seed", "mode", "read_consistency", "cut")
    found = {name: manifest[name] for name in names}
    versions = {name: manifest["versions"].get(name) for name in ("product", "commit", "source_sha256")}
    return {**found, "scenario": manifest["scenario"]["name"], "nodes": len(manifest["nodes"]), **versions}


def read_verdict(folder: Path) -> dict[str, Any] | None:
    """verdict.json of a run. None: missing or invalid."""
    try:
        found = json.loads((folder / VERDICT_FILE).read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and {"verdict", "checks", "figures", "scenario", "mode"} <= found.keys() else None


def described(judgement: RunJudgement) -> str:
    """The judgement as text: the checks that do not hold, with the findings of promised ones, and a summary."""
    lines = []
    for check in judgement.checks:
        promised = judgement.promised(check)
        if check.verdict == "valid" or check.idle:
            continue
        label = check.verdict.upper() if promised else f"{check.verdict} (not promised)"
        lines.append(f"  {label}: {check.name}" + (f", {check.count} times" if check.count > 1 else ""))
        if promised:
            lines += [f"    {line}" for finding in check.findings for line in finding.splitlines()]
    judging = [check for check in judgement.checks if not check.idle]
    held = sum(check.verdict == "valid" for check in judging)
    lines.append(f"{judgement.verdict}: {held} of {len(judging)} checks hold, judged as {judgement.judged_as}")
    lines += [f"  nothing to judge: {check.name}" for check in judgement.checks if check.idle]
    return "\n".join(lines)


def comparison(heading: str, verdicts: Mapping[str, Verdicts]) -> str:
    """The modes side by side, as text. ``verdicts``: by mode, in the order of the columns."""
    rows = [(heading, [shown(mode) for mode in verdicts]), *comparison_rows(verdicts.values())]
    lines = [f"{label:<42} " + " ".join(f"{cell:>12}" for cell in cells) for label, cells in rows]
    lines += [f"{shown(mode)} does not hold: {', '.join(broken(verdict)) or 'none'}" for mode, verdict in verdicts.items()]
    return "\n".join(lines)


def comparison_rows(verdicts: Iterable[Verdicts]) -> list[tuple[str, list[str]]]:
    """The rows of a comparison: a label, and a cell for each verdict."""
    found = list(verdicts)
    rows = [("verdict", [str(verdict["verdict"]) for verdict in found]), ("promises kept", [_kept(verdict) for verdict in found])]
    rows += [(label, [_figure(verdict["figures"], name, unit) for verdict in found]) for label, name, unit in _COMPARED]
    return rows + [(label, [_wrong(verdict, name) for verdict in found]) for label, name in _LOST]


def _kept(verdict: Verdicts) -> str:
    """``N of M``: M promised checks had something to judge, and N of these are valid."""
    judged = [check for check in verdict["checks"] if check["promised"] and not _idle(check)]
    return f"{sum(check['verdict'] == 'valid' for check in judged)} of {len(judged)}"


def _wrong(verdict: Verdicts, name: str) -> str:
    check = next(check for check in verdict["checks"] if check["check"] == name)
    return "unknown" if check["verdict"] == "unknown" else str(check["wrong"])


def broken(verdict: Verdicts) -> list[str]:
    """The checks that are violated, including those that the mode does not promise."""
    return [check["check"] for check in verdict["checks"] if check["verdict"] == "violated"]


def _figure(figures: Verdicts, name: str, unit: str) -> str:
    """A figure of one run. If the nodes never differed, ``convergence_s`` does not apply, and the cell is "-"."""
    if name == "convergence_s" and figures[name] is None and not figures["diverged_s"]:
        return "-"
    return _shown(figures[name], unit)


def _shown(value: Any, unit: str) -> str:
    if value is None:
        return "never"
    return f"{value:.1%}" if unit == "%" else f"{value:g} {unit}".strip()


def results_page(verdicts: Sequence[Verdicts]) -> str:
    """A Markdown page of many runs: violations in CP, and a row for each scenario and cluster size."""
    modes = [*OWN, *sorted({verdict["mode"] for verdict in verdicts} - {*OWN})]
    groups: dict[tuple[str, int], dict[str, list[Verdicts]]] = {}
    for verdict in verdicts:
        group = groups.setdefault((verdict["scenario"], verdict["nodes"]), {mode: [] for mode in modes})
        group[verdict["mode"]].append(verdict)
    lines = [
        _PAGE_HEAD.format(modes=" / ".join(map(shown, modes))),
        *_page_summary(verdicts, modes),
        "",
        "| " + " | ".join(_PAGE_COLUMNS) + " |",
        "|" + "---|" * len(_PAGE_COLUMNS),
    ]
    for (scenario, nodes), by_mode in sorted(groups.items()):
        seeds = sorted({verdict["seed"] for found in by_mode.values() for verdict in found})
        cells = [_means(by_mode, name) for name in _PAGE_FIGURES]
        outcome = ", ".join(sorted({verdict["verdict"] for verdict in by_mode["cp"]})) or "not run"
        lines.append(f"| {scenario} | {nodes} | {' '.join(map(str, seeds))} | {outcome} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _page_summary(verdicts: Sequence[Verdicts], modes: Sequence[str]) -> Iterable[str]:
    for mode in modes:
        counts = [verdict["verdict"] for verdict in verdicts if verdict["mode"] == mode]
        described = ", ".join(f"{counts.count(outcome)} {outcome}" for outcome in ("valid", "violated", "unknown"))
        yield f"- {shown(mode)}: {len(counts)} runs, judged by the promises of {promises_of(mode).upper()}: {described}."
    stalls = sorted(verdict["figures"]["harness_stall_s"] for verdict in verdicts)
    yield (
        f"- Load of the machine: in half of the runs, the harness stalled for at most {stalls[len(stalls) // 2]:.2f} s. "
        f"The longest stall was {stalls[-1]:.2f} s."
    )
    for verdict in verdicts:
        wrong = [check for check in verdict["checks"] if check["promised"] and check["verdict"] != "valid" and not _idle(check)]
        if wrong:
            what = "; ".join(f"{check['check']}: {check['verdict']}" for check in wrong)
            yield f"- {verdict['scenario']}, {verdict['mode']}, {verdict['nodes']} nodes, seed {verdict['seed']}: {what}."


def _idle(check: Mapping[str, Any]) -> bool:
    """``CheckResult.idle`` for a check in verdict.json."""
    return not check.get("due", True) and check["looked_at"] == 0


_PAGE_HEAD = """\
# What chaos runs showed

This page compares AP and CP, scenario by scenario. `namesrv chaos results DIR…` writes it from the verdicts of `namesrv chaos
suite full` ([faults](chaos.md), [checks](chaos-checks.md)). A cell has the values of {modes}: means over the seeds.

- *diverged*: time in which the answers of the nodes prove that their registrations differed (M14 of [the
  analysis](../spark/DESIGN.md)).
- *stale KV reads*: reads that returned a value which an acknowledged write had replaced before.
- *look-ups lacking*: look-ups that lacked a living broker with an acknowledged registration and a link to a majority.
- *look-ups gone*: look-ups that listed a dead or unregistered broker, most of them before its time-out had passed.
- *refused*: look-ups without an answer, mostly of clients that are cut off or know only one node.
- *gap*: the longest time that a client with several nodes waited for a success, while it could reach a node that can serve it.
- *equal after*: time from the end of the last fault until the last certain difference ended; "-": nodes did not differ, or their
  agreement was not seen.

Over all runs:
"""
_PAGE_COLUMNS = (
    *("scenario", "nodes", "seeds", "CP verdict", "diverged, s", "stale KV reads", "look-ups lacking", "look-ups gone"),
    *("refused", "gap, s", "equal after, s"),
)
_PAGE_FIGURES = (
    "diverged_s",
    "stale_kv_reads",
    "lookups_missing",
    "lookups_ghost",
    "lookups_refused",
    "longest_gap_s",
    "convergence_s",
)


def _means(by_mode: Mapping[str, Sequence[Verdicts]], name: str) -> str:
    """For each mode, the mean of a figure over the seeds that have it."""
    means = []
    for verdicts in by_mode.values():
        values = [value for verdict in verdicts if (value := verdict["figures"][name]) is not None]
        means.append(f"{sum(values) / len(values):.3g}" if values else "-")
    return " / ".join(means)

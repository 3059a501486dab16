"""The summary of a CI job in Markdown: a line for each run, and the time line of each as a Mermaid diagram.

GitHub and GitLab draw Mermaid in job summaries and comments; they show no SVG there. A time line has the faults, the leaders and
the state of each node. timeline.html in the folder of the run has everything.
"""

import html
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from replicated_namesrv.chaos.checks.story import Story
from replicated_namesrv.chaos.run_modes import shown
from replicated_namesrv.chaos.run_report import Verdicts, load_story
from replicated_namesrv.chaos.timeline_page import described_fault, fault_spans, node_rows

BARS_MAX = 60
"""Maximum number of bars in one row. A diagram with many more takes long to draw."""
MARKS = {"no answer": "crit, ", "fenced or not ready": "active, "}
HEAD = """\
| scenario | mode | verdict | broken or unknown promises | longest gap, s | look-ups lacking | stale KV reads |
|---|---|---|---|---|---|---|
"""


def job_summary(runs: Mapping[Path, Verdicts], unmade: Sequence[Path] = ()) -> str:
    """The summary as Markdown. ``runs``: verdicts by the folders of the runs. ``unmade``: folders of runs that recorded nothing,
    for example because a node did not start. Raises TraceError."""
    counts = {name: sum(verdict["verdict"] == name for verdict in runs.values()) for name in ("valid", "violated", "unknown")}
    counts["unknown"] += len(unmade)
    title = ", ".join(f"{count} {name}" for name, count in counts.items())
    lines = "".join(_line(verdict) for verdict in runs.values())
    lines += "".join(
        f"| {folder.name.partition('-')[2]} | | **unknown** | not made: see the job's log | | | |\n" for folder in unmade
    )
    return f"## {len(runs) + len(unmade)} runs: {title}\n\n{HEAD}{lines}\n" + "\n".join(
        _details(folder, verdict) for folder, verdict in runs.items()
    )


def _line(verdict: Verdicts) -> str:
    wrong = [
        f"{check['check']}: {check['verdict']}"
        for check in verdict["checks"]
        if check["promised"] and check["verdict"] != "valid" and (check["due"] or check["looked_at"])
    ]
    figures = verdict["figures"]
    cells = (
        verdict["scenario"],
        shown(verdict["mode"]),
        verdict["verdict"] if verdict["verdict"] == "valid" else f"**{verdict['verdict']}**",
        "; ".join(wrong) or "-",
        f"{figures['longest_gap_s']:.3g}",
        figures["lookups_missing"],
        figures["stale_kv_reads"],
    )
    return f"| {' | '.join(map(str, cells))} |\n"


def _details(folder: Path, verdict: Verdicts) -> str:
    name = html.escape(f"{verdict['scenario']}, {verdict['mode']}, seed {verdict['seed']}: {verdict['verdict']}")
    diagram = "\n".join(_gantt(load_story(folder)))
    return f"<details><summary>{name}</summary>\n\n```mermaid\n{diagram}\n```\n\n</details>\n"


def _gantt(story: Story) -> Iterator[str]:
    """Lines of the diagram. Times are milliseconds since the run began."""
    end_ns = max(record.time_ns for record in story.trace.records)

    def bar(text: str, mark: str, start_ns: int, until_ns: int) -> str:
        start, end = (max(0, time_ns - story.origin_ns) // 1_000_000 for time_ns in (start_ns, until_ns))
        return f"    {_plain(text)} :{mark}{start}, {max(start + 1, end)}"

    yield "gantt"
    yield "    dateFormat x"
    yield "    axisFormat %M:%S"
    faults = list(fault_spans(story, end_ns))
    if faults:
        yield "    section faults"
    for fault, start_ns, until_ns in faults:
        yield bar(described_fault(fault), "crit, ", start_ns, until_ns)
    for label, bars in node_rows(story, end_ns):
        yield f"    section {label}"
        for found in bars[:BARS_MAX]:
            text = found.text.partition(" leads")[0].split()[-1] if label == "leader" else found.colour
            yield bar(text, MARKS.get(found.colour, ""), found.start_ns, found.end_ns)


def _plain(text: str) -> str:
    """The text without characters that end a text in Mermaid."""
    return "".join(" " if character in ":;#\n" else character for character in text)

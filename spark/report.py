"""The report: one page that opens offline, every figure also as SVG and PNG, every table also as CSV."""

import csv
import html
import io
from typing import Any

from replicated_namesrv.spark.analysis import Results
from replicated_namesrv.spark.figures import Figure, draw
from replicated_namesrv.spark.metrics import CATALOGUE
from replicated_namesrv.spark.schemas import PAIRED, PER_RUN, SUMMARY
from replicated_namesrv.spark.storage import Storage

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
th, td { padding: .25rem .7rem; border-bottom: 1px solid #8884; text-align: left; }
td.number { text-align: right; white-space: nowrap; }
tr.better-ap td:nth-child(3), tr.better-cp td:nth-child(4) { font-weight: 600; }
figure { margin: 2rem 0; } figure svg { width: 100%; height: auto; background: white; }
figcaption, .note { color: #777; font-size: .9rem; }
"""


def write_report(storage: Storage, results: Results, out: str) -> None:
    """Write ``report/`` below ``out``: index.html, figures, tables."""
    folder = f"{out.rstrip('/')}/report"
    figures = draw(results)
    for figure in figures:
        storage.write_text(f"{folder}/figures/{figure.name}.svg", figure.svg)
        storage.write_bytes(f"{folder}/figures/{figure.name}.png", figure.png)
    for name, rows, schema in (
        ("summary", results.summary, SUMMARY), ("paired", results.paired, PAIRED), ("per_run", results.per_run, PER_RUN),
    ):  # fmt: skip
        storage.write_text(f"{folder}/tables/{name}.csv", _csv(rows, schema.names))
    storage.write_text(f"{folder}/index.html", page(results, figures))


def _csv(rows: list[dict[str, Any]], names: list[str]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def page(results: Results, figures: list[Figure]) -> str:
    """The whole page."""
    parts = [
        "<!doctype html><html lang='en'><meta charset='utf-8'><title>AP and CP compared</title>",
        f"<style>{_STYLE}</style><body><h1>How consistent and how available: AP and CP compared</h1>",
        _what_was_run(results),
        "<h2>In one table</h2>",
        "<p class='note'>Means over runs, with bootstrap intervals at 95 %; all phases, sides and scenarios together. "
        "With one run there is no interval. Bold: the better of the two where their intervals do not meet.</p>",
        _comparison(results),
    ]
    for figure in figures:
        parts.append(
            f"<figure id='{figure.name}'><h2>{html.escape(figure.title)}</h2>{figure.svg}"
            f"<figcaption>{html.escape(figure.caption)}</figcaption></figure>"
        )
    parts += [
        "<h2>During the fault, by scenario</h2>",
        _by_scenario(results),
        "<h2>Runs</h2>",
        _runs(results),
        "</body></html>\n",
    ]
    return "\n".join(parts)


def _what_was_run(results: Results) -> str:
    modes: dict[str, int] = {}
    for run in results.runs:
        modes[run["mode"]] = modes.get(run["mode"], 0) + 1
    scenarios = sorted({run["scenario"] for run in results.runs})
    seeds = sorted({run["seed"] for run in results.runs})
    lines = sum(entry.records for entry in results.ingested)
    lost = sum(entry.torn + entry.corrupt for entry in results.ingested)
    counted = ", ".join(f"{count} {mode.upper()}" for mode, count in sorted(modes.items()))
    return (
        f"<p>{len(results.runs)} runs ({counted}) of {len(scenarios)} scenario{'s' * (len(scenarios) != 1)} with "
        f"{len(seeds)} seed{'s' * (len(seeds) != 1)}; {lines:,} records, {lost} lines left out as torn or corrupt. AP: each node "
        "keeps its own list of brokers. CP: all nodes agree through Raft before they answer.</p>"
    )


def _whole(results: Results) -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (row["metric"], row["mode"]): row
        for row in results.summary
        if row["scenario"] == row["level"] == row["phase"] == row["side"] == "all"
    }


def _comparison(results: Results) -> str:
    rows = _whole(results)
    lines = ["<table><tr><th></th><th>measure</th><th>AP</th><th>CP</th><th>unit</th></tr>"]
    for metric, about in CATALOGUE.items():
        ap, cp = rows.get((metric, "ap")), rows.get((metric, "cp"))
        if ap or cp:
            lines.append(
                f"<tr class='{_better(ap, cp, about.less_is_better)}'><td>{about.code}</td><td>{html.escape(about.title)}</td>"
                f"<td class='number'>{_cell(ap)}</td><td class='number'>{_cell(cp)}</td><td>{about.unit}</td></tr>"
            )
    return "\n".join([*lines, "</table>"])


def _better(ap: dict[str, Any] | None, cp: dict[str, Any] | None, less_is_better: bool) -> str:
    if ap is None or cp is None or ap["runs"] < 2 or cp["runs"] < 2:
        return ""
    if ap["high"] < cp["low"]:
        return "better-ap" if less_is_better else "better-cp"
    if cp["high"] < ap["low"]:
        return "better-cp" if less_is_better else "better-ap"
    return ""


def _cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return "-"
    text = f"{row['mean']:.4g}"
    return text if row["runs"] < 2 else f"{text} <span class='note'>[{row['low']:.3g}, {row['high']:.3g}]</span>"


_SCENARIO_METRICS = ("fresh_reads", "equal_probes", "harvest", "ghosts", "yield_in_time", "unavailable_longest")


def _by_scenario(results: Results) -> str:
    rows = {
        (row["scenario"], row["mode"], row["metric"]): row
        for row in results.summary
        if row["phase"] == "fault" and row["level"] == row["side"] == "all" and row["scenario"] != "all"
    }
    names = "".join(f"<th>{metric}</th>" for metric in _SCENARIO_METRICS)
    lines = [f"<table><tr><th>scenario</th><th>mode</th>{names}</tr>"]
    for scenario, mode in sorted({(scenario, mode) for scenario, mode, _ in rows}):
        cells = "".join(f"<td class='number'>{_cell(rows.get((scenario, mode, metric)))}</td>" for metric in _SCENARIO_METRICS)
        lines.append(f"<tr><td>{html.escape(scenario)}</td><td>{mode.upper()}</td>{cells}</tr>")
    return "\n".join([*lines, "</table>"])


def _runs(results: Results) -> str:
    known = {entry.run: entry for entry in results.ingested}
    lines = [
        "<table><tr><th>run</th><th>scenario</th><th>mode</th><th>nodes</th><th>seed</th><th>records</th><th>left out</th></tr>"
    ]
    for run in sorted(results.runs, key=lambda run: str(run["run"])):
        entry = known[run["run"]]
        lines.append(
            f"<tr><td>{html.escape(run['run'])}</td><td>{html.escape(run['scenario'])}</td><td>{run['mode'].upper()}</td><td>{run['nodes']}</td>"
            f"<td>{run['seed']}</td><td class='number'>{entry.records:,}</td>"
            f"<td class='number'>{entry.torn + entry.corrupt}</td></tr>"
        )
    return "\n".join([*lines, "</table>"])

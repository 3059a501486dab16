"""The report: one page that opens offline, with every figure as SVG and PNG and every table as CSV and Parquet."""

import csv
import html
import io
import json
import os
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.types import StructType

from replicated_namesrv.spark.analysis import Results
from replicated_namesrv.spark.charts import Figure, draw, own_levels
from replicated_namesrv.spark.consistability import CLASSES
from replicated_namesrv.spark.run_figures import CATALOGUE
from replicated_namesrv.spark.schemas import CONSISTABILITY, PAIRED, PER_RUN, RUNS, SUMMARY, T_VISIBILITY, arrow
from replicated_namesrv.spark.storage import SparkStorage, local_path
from replicated_namesrv.spark.summary import PRIMARY

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .88rem; }
th, td { padding: .25rem .7rem; border-bottom: 1px solid #8884; text-align: left; vertical-align: top; }
th.section { padding-top: 1rem; font-size: 1rem; }
td.number { text-align: right; white-space: nowrap; }
td.better { font-weight: 700; }
figure { margin: 2.5rem 0; } figure svg { width: 100%; height: auto; background: white; border-radius: 4px; }
figcaption, .note { color: #777; font-size: .9rem; }
td .note { font-weight: 400; font-size: .8rem; }
"""


def write_report(storage: SparkStorage, results: Results, out: str) -> None:
    """Write ``report/`` below ``out``: index.html, figures, tables. It is renamed into place, so that it is complete or
    absent.
    """
    final = f"{out.rstrip('/')}/report"
    folder = f"{final}.new"
    storage.delete(folder)
    try:
        _write(storage, results, folder)
        storage.delete(final)
        storage.rename(folder, final)
    finally:
        storage.discard(folder)


def _write(storage: SparkStorage, results: Results, folder: str) -> None:
    figures = draw(results)
    for figure in figures:
        storage.write_text(f"{folder}/figures/{figure.name}.svg", figure.svg)
        storage.write_bytes(f"{folder}/figures/{figure.name}.png", figure.png)
    for name, rows, schema in _tables(results):
        storage.write_text(f"{folder}/tables/{name}.csv", _csv(rows, schema.names))
        storage.write_bytes(f"{folder}/tables/{name}.parquet", _parquet(rows, schema))
    storage.write_text(f"{folder}/index.html", page(results, figures, _links(storage, results, folder)))


def _tables(results: Results) -> list[tuple[str, list[dict[str, Any]], pa.Schema]]:
    declared: list[tuple[str, list[dict[str, Any]], StructType]] = [
        ("runs", results.runs, RUNS), ("summary", results.summary, SUMMARY), ("paired", results.paired, PAIRED),
        ("per_run", results.per_run, PER_RUN), ("t_visibility", results.t_visibility, T_VISIBILITY),
        ("consistability", results.consistability, CONSISTABILITY),
    ]  # fmt: skip  # items grouped by line
    found = [(name, rows, arrow(schema)) for name, rows, schema in declared]
    curves = (
        ("curve_divergence", results.divergence), ("curve_windows", results.windows), ("curve_visibility", results.visibility),
        ("curve_latencies", results.latencies), ("curve_pair_standings", results.pair_standings),
        ("curve_pair_latencies", results.pair_latencies),
    )  # fmt: skip  # items grouped by line
    return found + [(name, rows, pa.Table.from_pylist(rows).schema) for name, rows in curves if rows]


def _csv(rows: list[dict[str, Any]], names: Sequence[str]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: f"{v:.9g}" if isinstance(v, float) else v for name, v in row.items()} for row in rows)
    return text.getvalue()


def _parquet(rows: list[dict[str, Any]], schema: pa.Schema) -> bytes:
    content = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), content, compression="zstd")
    return content.getvalue()


def _links(storage: SparkStorage, results: Results, folder: str) -> dict[str, tuple[str, str]]:
    """For each run a link to its folder (relative if both are on this machine), and its verdict."""
    found = {}
    for run, place in results.folders.items():
        here, there = local_path(folder), local_path(place)
        link = place if here is None or there is None else os.path.relpath(there, os.path.realpath(here))
        verdict = "-"
        if storage.exists(f"{place}/verdict.json"):
            try:
                verdict = str(json.loads(storage.read_text(f"{place}/verdict.json")).get("verdict", "-"))
            except (ValueError, AttributeError):
                verdict = "verdict.json is not a JSON object"
        found[run] = (link, verdict)
    return found


def page(results: Results, figures: list[Figure], links: dict[str, tuple[str, str]]) -> str:
    """Render the whole page."""
    parts = [
        "<!doctype html><html lang='en'><meta charset='utf-8'><meta name='viewport' content='width=device-width'>"
        "<title>AP and CP compared</title>",
        f"<style>{_STYLE}</style><body><h1>How consistent and how available: AP and CP compared</h1>",
        _what_was_run(results),
        _contents(figures),
        "<h2 id='comparison'>In one table</h2>",
        "<p class='note'>Mean over the runs and, in brackets, its 95 % interval. Over several scenarios the interval is got by "
        "drawing scenarios anew (cluster bootstrap), within one by drawing runs. With fewer than five of them there is no "
        "interval, and the values of single runs are shown. All scenarios, phases and sides together; reads at the level that "
        "the mode answers at unless asked for another. A star marks the five primary figures, which were named in advance. Bold: "
        "the better of the two, if the difference of paired runs is not chance (sign test, 5 %; figures without a star are "
        "corrected for their number after Holm). A dash: nothing to measure. "
        "<a href='#words'>What the words mean</a> stands below; M-numbers are those of the definitions in spark/DESIGN.md.</p>",
        _comparison(results),
        "<h2 id='t-visibility'>How long until a write is seen by nearly all reads</h2>",
        _t_visibility(results),
        "<h2 id='levels'>What each read level gives and costs</h2>",
        _levels(results),
    ]
    for figure in figures:
        parts.append(
            f"<figure id='{figure.name}'><h2>{html.escape(figure.title)}</h2>"
            f"<div role='img' aria-label='{html.escape(figure.title)}'>{figure.svg}</div>"
            f"<figcaption>{html.escape(figure.caption)} <a href='figures/{figure.name}.svg'>SVG</a>, "
            f"<a href='figures/{figure.name}.png'>PNG</a></figcaption></figure>"
        )
    tables = ", ".join(f"<a href='tables/{name}.csv'>{name}</a>" for name, _, _ in _tables(results))
    parts += [
        "<h2 id='by-scenario'>While the fault lasted, scenario by scenario</h2>",
        "<p class='note'>Means over the runs of the scenario, in percent but for the last column.</p>",
        _by_scenario(results),
        "<h2 id='consistability'>What a reader can count on while the fault lasts (consistability, M9)</h2>",
        _consistability(results),
        "<h2 id='words'>What the words mean</h2>",
        _words(),
        "<h2 id='runs'>Runs</h2>",
        f"<p class='note'>Every figure of this page, and more by level, phase and side, as CSV (and Parquet beside "
        f"it): {tables}. "
        "A run's name leads to its timeline.</p>",
        _runs(results, links),
        "</body></html>\n",
    ]
    return "\n".join(parts)


def _contents(figures: list[Figure]) -> str:
    places = [
        ("comparison", "AP and CP in one table"), ("t-visibility", "Until a write is seen"), ("levels", "Read levels"),
        *((figure.name, figure.title) for figure in figures), ("by-scenario", "Scenario by scenario"),
        ("consistability", "Consistability"),
        ("words", "What the words mean"), ("runs", "Runs and tables"),
    ]  # fmt: skip  # items grouped by line
    links = " · ".join(f"<a href='#{name}'>{html.escape(title)}</a>" for name, title in places)
    return f"<p class='note'>On this page: {links}.</p>"


_WORDS = {
    "acknowledged": "the name service had said that the write or registration is done",
    "linearizable": "there is an order of all operations, each at one moment between its call and its answer, that explains "
    "every answer: clients cannot distinguish the cluster from a single machine",
    "inconsistency window": "for how long after a write was acknowledged something older was still read",
    "fresh": "an answer that shows the last write acknowledged before it was asked for, or a newer one",
    "Delta": "by how much all reads would have to be dated back for the history to be linearizable: how stale it was, in time",
    "Gamma": "by how much all operations would have to be stretched for the history to be linearizable",
    "probe": "the same question to all nodes at about the same time",
    "harvest, ghosts": "how many of the brokers that an answer should hold it holds; brokers in it that are dead",
    "yield": "how many of the questions got an answer, and got it before the client's deadline",
    "divergence": "Jaccard distance of the brokers that two nodes list: 0 the same, 1 none in common; the greatest of all pairs",
    "certain, possible": "a node is looked at from time to time, so when its answer changed is known only to be between two "
    "looks. Certain is the least divergence that the answers permit, possible the greatest",
    "convergence": "time from the repair of the last link until the last certain difference ended; for runs whose nodes differed",
    "fail-over, pinned": "a client that asks the next node if one does not answer; a client that knows one node only. The probe "
    "asks all nodes every few seconds and is not counted in times without a success",
    "side": "during a fault, the nodes that still reach most of the others, or those that are cut off",
    "own read level": "what a node answers at unless a request names another level: local in AP, linearizable in CP",
}


def _words() -> str:
    return "<dl>" + "".join(f"<dt><b>{word}</b></dt><dd>{meaning}</dd>" for word, meaning in _WORDS.items()) + "</dl>"


def _what_was_run(results: Results) -> str:
    modes: dict[str, int] = {}
    for run in results.runs:
        modes[run["mode"]] = modes.get(run["mode"], 0) + 1
    scenarios = sorted({run["scenario"] for run in results.runs})
    seeds, sizes = sorted({run["seed"] for run in results.runs}), sorted({run["nodes"] for run in results.runs})
    lines = sum(entry.records for entry in results.ingested)
    lost = sum(entry.torn + entry.corrupt for entry in results.ingested)
    counted = ", ".join(f"{count} {mode.upper()}" for mode, count in sorted(modes.items()))
    return (
        f"<p>{len(results.runs)} runs ({counted}) of {len(scenarios)} scenario{'s' * (len(scenarios) != 1)}, with "
        f"{' and '.join(map(str, sizes))} name servers and {len(seeds)} seed{'s' * (len(seeds) != 1)}; {lines:,} records, "
        f"{lost} lines left out as torn or corrupt. Each run starts real name servers, brokers and clients, breaks "
        f"something for some "
        "seconds and heals it: <b>steady</b> before, <b>fault</b>, <b>heal</b> after it.</p>"
        "<p><b>AP</b>: each name server keeps the list of brokers that registered with it, as Apache RocketMQ's do. "
        "<b>CP</b>: the name servers agree on one list through Raft, and a node that cannot reach a majority does not answer "
        "unless it is asked to without one.</p>"
    )


def _whole(results: Results) -> dict[tuple[str, str], dict[str, Any]]:
    """Over all scenarios, phases and sides; at the mode's own read level if the figure has levels."""
    own, found = own_levels(results), {}
    for row in sorted(results.summary, key=lambda row: row["level"] == own[row["mode"]]):
        if row["scenario"] == row["phase"] == row["side"] == "all" and row["level"] in ("all", own[row["mode"]]):
            found[row["metric"], row["mode"]] = row
    return found


_SECTIONS = {
    "M1": "What the key-value store's clients saw", "route_M1": "What look-ups of registrations saw",
    "M3": "Whether nodes answer alike", "M11": "Whether answers are complete and true", "M12": "Whether there is an answer",
    "M14": "How nodes differ (bounds: certain and possible)",
    "M16": "How well failures are detected", "M17": "How long nothing works", "M18": "Who leads",
    "M20": "Latency, all phases", "M21": "What it does to a client that keeps routes",
}  # fmt: skip  # items grouped by line


def _comparison(results: Results) -> str:
    rows, chances = _whole(results), _chances(results)
    lines = ["<div class='wide'><table><tr><th></th><th>measure</th><th>AP</th><th>CP</th><th>unit</th><th>runs</th></tr>"]
    told = set()
    for metric, about in CATALOGUE.items():
        section = ("route_" if metric.startswith("route_") and about.code != "M20" else "") + about.code
        ap, cp = rows.get((metric, "ap")), rows.get((metric, "cp"))
        if not (ap or cp):
            continue
        if section in _SECTIONS and section not in told:
            told.add(section)
            lines.append(f"<tr><th class='section' colspan='6'>{_SECTIONS[section]}</th></tr>")
        better = _better(ap, cp, about.less_is_better) if chances.get(metric, 1.0) < SIGNIFICANT else ""
        cells = "".join(
            f"<td class='number{' better' * (better == mode)}'>{_cell(row)}</td>" for mode, row in (("ap", ap), ("cp", cp))
        )
        runs = " / ".join(str(row["runs"]) if row else "-" for row in (ap, cp))
        uncertainty = max((row["clock_uncertainty_ms"] or 0 for row in (ap, cp) if row), default=0)
        unit = _unit(metric) + (f" (clocks ± {uncertainty:g} ms)" if uncertainty else "")
        lines.append(
            f"<tr><td>{about.code}</td><td>{html.escape(about.title)}{' ★' * (metric in PRIMARY)}</td>{cells}<td>{unit}</td>"
            f"<td class='number'>{runs}</td></tr>"
        )
    return "\n".join([*lines, "</table></div>"])


def _better(ap: dict[str, Any] | None, cp: dict[str, Any] | None, less_is_better: bool) -> str:
    if ap is None or cp is None:
        return ""
    return "ap" if (ap["mean"] < cp["mean"]) == less_is_better else "cp"


SIGNIFICANT = 0.05
"""Probability below which a difference is taken for real."""


def _chances(results: Results) -> dict[str, float]:
    """For each figure the adjusted probability that AP and CP differ by chance, at the modes' own levels if it has levels."""
    rows = [row for row in results.paired if row["scenario"] == row["phase"] == row["side"] == "all"]
    rows.sort(key=lambda row: str(row["level"] == "own"))
    return {row["metric"]: row["chance_adjusted"] for row in rows if row["chance_adjusted"] is not None}


def _number(value: float) -> str:
    if value == 0:
        return "0"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return "-"
    percent = row["unit"] == "share"
    factor = 100 if percent else 1
    text = _number(factor * row["mean"]) + " %" * percent
    if row["low"] is not None:
        return f"{text} <span class='note'>[{_number(factor * row['low'])}, {_number(factor * row['high'])}]</span>"
    points = [_number(factor * float(point)) for point in (row.get("points") or "").split()]
    return text if len(points) < 2 else f"{text} <span class='note'>({', '.join(points)})</span>"


def _t_visibility(results: Results) -> str:
    rows: dict[tuple[str, str, str], dict[float, dict[str, Any]]] = {}
    for row in results.t_visibility:
        if row["mode"] == "cp" or row["level"] == own_levels(results)[row["mode"]]:
            rows.setdefault((row["about"], row["mode"], row["level"]), {})[row["share"]] = row
    clocks = _clocks([row for by_share in rows.values() for row in by_share.values()])
    lines = [
        "<p class='note'>The age from which on all reads see at least this share of the writes, to 9 %. When a write became "
        "visible "
        "is known only to be between two reads, or after the last one (Turnbull's estimate); a dash: later than was observed. "
        f"In brackets the 95 % interval.{clocks}</p><div class='wide'>"
        "<table><tr><th>of</th><th>mode, read level</th><th>99 %</th><th>99.9 %</th><th>writes</th><th>runs</th></tr>"
    ]
    for (about, mode, level), found in sorted(rows.items()):
        cells = "".join(f"<td class='number'>{_age(found[share])}</td>" for share in sorted(found))
        one = next(iter(found.values()))
        lines.append(
            f"<tr><td>{about}</td><td>{mode.upper()}, {level}</td>{cells}<td class='number'>{one['writes']:,}</td>"
            f"<td class='number'>{one['runs']}</td></tr>"
        )
    return "\n".join([*lines, "</table></div>"])


def _age(row: dict[str, Any]) -> str:
    def text(age: float | None) -> str:
        return "-" if age is None else f"{age:.3g} ms" if age < 1000 else f"{age / 1000:.3g} s"

    if row["low_ms"] is None:
        return text(row["age_ms"])
    return f"{text(row['age_ms'])} <span class='note'>[{text(row['low_ms'])}, {text(row['high_ms'])}]</span>"


_LEVEL_METRICS = (
    "route_latency_median", "route_latency_p99", "failover_yield_in_time", "route_fresh_reads", "route_staleness_max",
    "route_linearizable_keys",
)  # fmt: skip  # items grouped by line


def _levels(results: Results) -> str:
    rows = {
        (row["mode"], row["level"], row["metric"]): row
        for row in results.summary
        if row["scenario"] == row["phase"] == row["side"] == "all" and row["level"] != "all"
    }
    own = own_levels(results)
    groups = sorted({(mode, level) for mode, level, metric in rows if metric in _LEVEL_METRICS})
    groups = [(mode, level) for mode, level in groups if mode == "cp" or level == own[mode]]
    names = "".join(f"<th>{html.escape(CATALOGUE[name].title)} ({_unit(name)})</th>" for name in _LEVEL_METRICS)
    clocks = _clocks([row for (_, _, metric), row in rows.items() if metric in _LEVEL_METRICS])
    lines = [
        "<p class='note'>Look-ups of routes. A request may name a level other than the node's own: linearizable asks "
        "a majority, lease "
        "trusts the leader's lease, stale answers at once from what the node knows. AP nodes know no levels."
        f"{clocks}</p><div class='wide'><table><tr><th>mode, level</th>{names}</tr>"
    ]
    for mode, level in groups:
        cells = "".join(f"<td class='number'>{_cell(rows.get((mode, level, name)))}</td>" for name in _LEVEL_METRICS)
        lines.append(f"<tr><td>{mode.upper()}, {level}</td>{cells}</tr>")
    return "\n".join([*lines, "</table></div>"])


def _clocks(rows: Sequence[dict[str, Any]]) -> str:
    """The clock error for the figures of M4 to M9; empty if all nodes read one clock."""
    uncertainty_ms = max((row["clock_uncertainty_ms"] or 0 for row in rows), default=0)
    return f" Times of two nodes are known to &plusmn; {uncertainty_ms:g} ms of each other." if uncertainty_ms else ""


def _unit(metric: str) -> str:
    return "%" if CATALOGUE[metric].unit == "share" else CATALOGUE[metric].unit


_SCENARIO_METRICS = {
    "fresh_reads": "KV reads that are fresh", "anomalous_reads": "KV reads that no order explains",
    "route_fresh_reads": "look-ups that are fresh", "equal_probes": "probes answered alike by all",
    "harvest": "right brokers in the answer", "ghosts": "dead brokers in the answer",
    "failover_yield_in_time": "answered in time, fail-over clients", "pinned_yield_in_time": "answered in time, pinned clients",
    "failover_unavailable_longest": "longest time without a success, fail-over clients (s)",
}  # fmt: skip  # items grouped by line


def _by_scenario(results: Results) -> str:
    own = own_levels(results)
    rows: dict[tuple[str, str, str], dict[str, Any]] = {}
    for row in sorted(results.summary, key=lambda row: row["level"] == own[row["mode"]]):
        if row["phase"] == "fault" and row["side"] == "all" and row["level"] in ("all", own[row["mode"]]):
            rows[row["scenario"], row["mode"], row["metric"]] = row
    names = "".join(f"<th>{title}</th>" for title in _SCENARIO_METRICS.values())
    clocks = _clocks([row for (_, _, metric), row in rows.items() if metric in _SCENARIO_METRICS]).strip()
    lines = [f"<p class='note'>{clocks}</p>"] if clocks else []
    lines.append(f"<div class='wide'><table><tr><th>scenario</th><th>mode</th>{names}</tr>")
    for scenario in sorted({run["scenario"] for run in results.runs}):
        for mode in sorted(own):
            found = [rows.get((scenario, mode, metric)) for metric in _SCENARIO_METRICS]
            if any(found):
                cells = "".join(f"<td class='number'>{_cell(row)}</td>" for row in found)
                lines.append(f"<tr><td>{html.escape(scenario)}</td><td>{mode.upper()}</td>{cells}</tr>")
    return "\n".join([*lines, "</table></div>"])


_CLASSES = {
    "linearizable": "linearizable: in one order with all reads before", "regular": "regular: no acknowledged write missed",
    "session": "no session guarantee broken", "one version": "at most 1 version behind", "one second": "at most 1 s behind",
    "eventual": "something that was written", "answered": "any answer",
}  # fmt: skip  # items grouped by line


def _consistability(results: Results) -> str:
    own = own_levels(results)
    found: dict[tuple[bool, str, str, str], dict[str, dict[str, Any]]] = {}
    for row in results.consistability:
        if row["phase"] == "fault" and row["side"] == "all" and row["level"] == own[row["mode"]]:
            found.setdefault((row["scenario"] != "all", row["scenario"], row["about"], row["mode"]), {})[row["class"]] = row
    names = "".join(f"<th>{_CLASSES[name]}</th>" for name in CLASSES)
    lines = [
        "<p class='note'>Probability that a read, begun while the fault lasts, is answered and the answer is in the class: mean "
        "over the runs and its 95 % interval, in percent. A read that got no answer is in no class. Reads at the level that "
        f"the mode answers at unless asked for another.{_clocks(results.consistability)}</p><div class='wide'>"
        f"<table><tr><th>fault</th><th>reads of</th><th>mode</th>{names}<th>reads</th><th>runs</th></tr>"
    ]
    for (_, scenario, about, mode), classes in sorted(found.items()):
        cells = "".join(f"<td class='number'>{_probability(classes[name])}</td>" for name in CLASSES)
        one = classes["answered"]
        fault = "all of them" if scenario == "all" else html.escape(scenario)
        lines.append(
            f"<tr><td>{fault}</td><td>{about}</td><td>{mode.upper()}</td>{cells}<td class='number'>{one['asked']:,}</td>"
            f"<td class='number'>{one['runs']}</td></tr>"
        )
    return "\n".join([*lines, "</table></div>"])


def _probability(row: dict[str, Any]) -> str:
    return _cell({"unit": "share", "mean": row["probability"], "low": row["low"], "high": row["high"], "runs": row["runs"]})


def _runs(results: Results, links: dict[str, tuple[str, str]]) -> str:
    known = {entry.run: entry for entry in results.ingested}
    lines = [
        "<div class='wide'><table><tr><th>run</th><th>scenario</th><th>mode</th><th>nodes</th><th>seed</th><th>verdict</th>"
        "<th>records</th><th>lines left out</th></tr>"
    ]
    for run in sorted(results.runs, key=lambda run: (run["scenario"], run["mode"], str(run["run"]))):
        entry = known[run["run"]]
        folder, verdict = links.get(run["run"], ("", "-"))
        place = html.escape(quote(folder, safe="/:.-_~"))
        name, said = html.escape(run["run"]), html.escape(verdict)
        if folder:
            name = f"<a href='{place}/timeline.html'>{name}</a>"
            said = f"<a href='{place}/verdict.json'>{said}</a>" if verdict != "-" else said
        lines.append(
            f"<tr><td>{name}</td><td>{html.escape(run['scenario'])}</td><td>{run['mode'].upper()}</td><td>{run['nodes']}</td>"
            f"<td>{run['seed']}</td><td>{said}</td><td class='number'>{entry.records:,}</td>"
            f"<td class='number'>{entry.torn + entry.corrupt}</td></tr>"
        )
    return "\n".join([*lines, "</table></div>"])

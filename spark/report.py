"""The report: one page that opens offline, with every figure as SVG and PNG and every table as CSV and Parquet."""

import csv
import html
import io
import json
import os
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.types import StructType

from replicated_namesrv.chaos.run_modes import FOREIGN, OWN, foreign
from replicated_namesrv.chaos.run_modes import shown as mode_name
from replicated_namesrv.spark.analysis import Results
from replicated_namesrv.spark.charts import Figure, draw, own_levels
from replicated_namesrv.spark.consistability import CLASSES
from replicated_namesrv.spark.run_figures import CATALOGUE
from replicated_namesrv.spark.schemas import CONSISTABILITY, PAIRED, PER_RUN, RUNS, SUMMARY, T_VISIBILITY, arrow
from replicated_namesrv.spark.storage import SparkStorage, local_path
from replicated_namesrv.spark.summary import PRIMARY

_STYLE = """
:root { color-scheme: light dark; --back: #fff; --text: #1a1a1a; --faint: #555; --line: #ccc; --mark: #fff3c4; }
@media (prefers-color-scheme: dark) {
  :root { --back: #151515; --text: #eee; --faint: #b5b5b5; --line: #444; --mark: #4a3f12; }
}
body { font: 16px/1.5 system-ui, sans-serif; max-width: 64rem; margin: 0 auto; padding: 1rem; background: var(--back);
  color: var(--text); overflow-wrap: break-word; }
a { color: #0645ad; } @media (prefers-color-scheme: dark) { a { color: #8ab4f8; } }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .88rem; }
caption { text-align: left; color: var(--faint); padding: .25rem 0; }
th, td { padding: .25rem .7rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
th.section { padding-top: 1rem; font-size: 1rem; }
td.number { text-align: right; white-space: nowrap; }
td.better { font-weight: 700; } th[scope=row] { font-weight: 400; }
th button, td button { font: inherit; color: inherit; background: none; border: 0; padding: 0; text-align: inherit;
  cursor: pointer; }
td button { text-decoration: underline dotted; }
th button::after { content: " \\2195"; } th[aria-sort=ascending] button::after { content: " \\2191"; }
th[aria-sort=descending] button::after { content: " \\2193"; }
input[type=search] { font: inherit; width: 100%; max-width: 24rem; box-sizing: border-box; }
figure { margin: 2.5rem 0; } figure svg { width: 100%; height: auto; background: white; border-radius: 4px; }
figcaption, .note { color: var(--faint); font-size: .9rem; }
td .note { font-weight: 400; font-size: .8rem; }
#drill { background: var(--mark); padding: .5rem 1rem; position: sticky; bottom: 0; max-height: 40vh; overflow: auto; }
 #drill[hidden] { display: none; }
nav { columns: 14rem; } nav ul { margin: 0; padding-left: 1.2rem; }
@media (max-width: 40rem) {
  body { padding: .6rem; } h1 { font-size: 1.4rem; } th, td { padding: .2rem .4rem; } figure { margin: 1.5rem 0; }
  td.number { white-space: normal; } figure > div { overflow-x: auto; } figure svg { min-width: 36rem; }
}
"""

_SCRIPT = """
const shown = text => text.replace(/[,%]/g, "").trim();
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  heads.forEach((head, place) => head.querySelector("button")?.addEventListener("click", () => {
    const up = head.getAttribute("aria-sort") !== "ascending";
    heads.forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const value = row => shown(row.cells[place].textContent), number = text => parseFloat(text);
    const order = (a, b) => isNaN(number(a)) || isNaN(number(b)) ? a.localeCompare(b) : number(a) - number(b);
    [...body.rows].sort((a, b) => (up ? 1 : -1) * order(value(a), value(b))).forEach(row => body.append(row));
  }));
}
for (const field of document.querySelectorAll("input[data-filters]")) {
  const body = document.getElementById(field.dataset.filters).tBodies[0];
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\\s+/);
    for (const row of body.rows) row.hidden = !words.every(word => row.textContent.toLowerCase().includes(word));
  });
}
const data = JSON.parse(document.getElementById("values").textContent), drill = document.getElementById("drill");
const element = (name, text) => Object.assign(document.createElement(name), {textContent: text});
for (const button of document.querySelectorAll("button[data-cell]")) button.addEventListener("click", () => {
  const values = data.values[button.dataset.cell] || [], list = document.createElement("ul");
  for (const [run, value] of values) {
    const item = element("li", value + "  "), place = data.runs[run].timeline;
    const name = element(place ? "a" : "span", data.runs[run].name);
    if (place) name.href = place;
    item.append(name); list.append(item);
  }
  drill.replaceChildren(element("h3", button.title), list);
  drill.hidden = false; drill.focus({preventScroll: true});
});
"""


def write_report(storage: SparkStorage, results: Results, out: str) -> None:
    """Write ``report/`` below ``out``: index.html, figures, tables. The folder is renamed into place, so that it is either
    complete or absent.
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
    """For each run a link to its folder (relative if both are on this machine), and the verdict of the run."""
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
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'><title>AP and CP compared</title>",
        f"<style>{_STYLE}</style></head><body><header><h1>How consistent and how available: AP and CP compared</h1>",
        _what_was_run(results),
        "</header>",
        _contents(figures),
        "<main>",
        "<h2 id='comparison'>In one table</h2>",
        "<p class='note'>Mean over the runs and, in brackets, its 95 % interval (bootstrap: for several scenarios, scenarios "
        "are resampled; for one scenario, runs). With fewer than five of them there is no interval, and the values of single "
        "runs are shown. All scenarios, phases and sides together; reads at the default level of the mode. A star marks the five "
        "primary figures, which were named in advance. Bold: the better of the two, if the difference of paired runs is not "
        "random (sign test, 5 %; figures without a star are corrected for their number after Holm). Select a value to see its "
        "runs. A dash: nothing to measure. The terms are explained <a href='#words'>below</a>; M-numbers are those of the "
        "definitions in spark/DESIGN.md.</p>",
        _comparison(results),
        "<h2 id='t-visibility'>How long until a write is seen by nearly all reads</h2>",
        _t_visibility(results),
        "<h2 id='levels'>Freshness and cost of each read level</h2>",
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
        "<p class='note'>Means over the runs of the scenario, in percent, except in the last column.</p>",
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
        "<section id='drill' tabindex='-1' aria-live='polite' aria-label='Runs behind a cell' hidden></section>",
        "</main><footer class='note'><p>Made by <code>namesrv analyze</code>. spark/DESIGN.md of the project has the "
        "definitions.</p></footer>",
        _values(results, links),
        f"<script>{_SCRIPT}</script></body></html>\n",
    ]
    return "\n".join(parts)


def _contents(figures: list[Figure]) -> str:
    places = [
        ("comparison", "AP and CP in one table"), ("t-visibility", "Until a write is seen"), ("levels", "Read levels"),
        *((figure.name, figure.title) for figure in figures), ("by-scenario", "Scenario by scenario"),
        ("consistability", "Consistability"),
        ("words", "What the words mean"), ("runs", "Runs and tables"),
    ]  # fmt: skip  # items grouped by line
    links = "".join(f"<li><a href='#{name}'>{html.escape(title)}</a></li>" for name, title in places)
    return f"<nav aria-label='On this page'><ul>{links}</ul></nav>"


_WORDS = {
    "acknowledged": "the name service has answered the write or registration with success",
    "linearizable": "there is an order of all operations, each at one moment between its call and its answer, that explains "
    "every answer: clients cannot distinguish the cluster from a single machine",
    "inconsistency window": "time after the acknowledgement of a write in which an older value was still read",
    "fresh": "an answer that shows the last write acknowledged before the request, or a newer one",
    "Delta": "the least time by which all reads must begin earlier to make the history linearizable: its staleness in time",
    "Gamma": "the least time by which operations must be longer to make the history linearizable",
    "probe": "the same question to all nodes at about the same time",
    "harvest, ghosts": "share of the brokers that should be in an answer and are in it; brokers in an answer that are dead",
    "yield": "share of the requests that were answered, and of those that were answered before the client's deadline",
    "divergence": "Jaccard distance of the brokers that two nodes list: 0 the same, 1 none in common; the greatest of all pairs",
    "certain, possible": "a node is observed at intervals, so its answer changed at an unknown time between two observations. "
    "Certain is the least divergence that the answers permit, possible the greatest",
    "convergence": "time from the repair of the last link until the last certain difference ended; for runs whose nodes differed",
    "fail-over, pinned": "a client that asks the next node if one does not answer; a client that knows one node only. The probe "
    "asks all nodes every few seconds and is not counted in times without a success",
    "side": "during a fault, the nodes that still reach most of the others, or those that are cut off",
    "own read level": "the level of answers to requests that name no level: local in AP, linearizable in CP",
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
    counted = ", ".join(f"{count} {mode_name(mode)}" for mode, count in sorted(modes.items()))
    return (
        f"<p>{len(results.runs)} runs ({counted}) of {len(scenarios)} scenario{'s' * (len(scenarios) != 1)}, with "
        f"{' and '.join(map(str, sizes))} name servers and {len(seeds)} seed{'s' * (len(seeds) != 1)}; {lines:,} records, "
        f"{lost} lines left out as torn or corrupt. Each run starts real name servers, brokers and clients, and injects a fault "
        "for some seconds. Its phases are <b>steady</b> before the fault, <b>fault</b>, and <b>heal</b> after it.</p>"
        "<p><b>AP</b>: each name server keeps the list of brokers that registered with it, as Apache RocketMQ's do. "
        "<b>CP</b>: the name servers agree on one list through Raft, and a node that cannot reach a majority only answers "
        "requests for stale answers."
        f"{''.join(map(_about_foreign, modes))}</p>"
    )


def _about_foreign(mode: str) -> str:
    """A sentence about a foreign name server; no text for our modes."""
    other = foreign(mode)
    if other is None:
        return ""
    about = FOREIGN[other.product]
    return f" <b>{mode}</b>: {about} {other.version}; its name servers do not communicate with each other, as in AP."


def _whole(results: Results) -> dict[tuple[str, str], dict[str, Any]]:
    """Rows over all scenarios, phases and sides. If a figure has levels, the row is for the mode's own read level."""
    own, found = own_levels(results), {}
    for row in sorted(results.summary, key=lambda row: row["level"] == own[row["mode"]]):
        if row["scenario"] == row["phase"] == row["side"] == "all" and row["level"] in ("all", own[row["mode"]]):
            found[row["metric"], row["mode"]] = row
    return found


_SECTIONS = {
    "M1": "What clients of the key-value store read", "route_M1": "What look-ups of registrations saw",
    "M3": "Whether nodes give the same answers", "M11": "Whether answers are complete and true",
    "M12": "Whether there is an answer",
    "M14": "How nodes differ (bounds: certain and possible)",
    "M16": "How well failures are detected", "M17": "Times without a success", "M18": "Leadership",
    "M20": "Latency, all phases", "M21": "What it does to a client that keeps routes",
}  # fmt: skip  # items grouped by line


def _table(name: str, caption: str, columns: Sequence[str], rows: Iterable[str], sortable: bool = True) -> str:
    """An HTML table with its own scroll bar. ``rows`` are whole rows as HTML, and ``columns`` are headings as HTML."""
    heads = "".join(f"<th scope='col'>{f'<button type=button>{title}</button>' if sortable else title}</th>" for title in columns)
    kind = " class='sortable'" * sortable
    search = f"<p><label>Filter <input type='search' data-filters='table-{name}'></label></p>" if sortable else ""
    return "\n".join(
        [
            f"{search}<div class='wide' tabindex='0' role='region' aria-label='{html.escape(caption)}'>"
            f"<table{kind} id='table-{name}'><caption>{html.escape(caption)}</caption><thead><tr>{heads}</tr></thead><tbody>",
            *rows, "</tbody></table></div>",
        ]
    )  # fmt: skip  # items grouped by line


def _drilled(row: dict[str, Any] | None) -> str:
    """The cell of a figure. It shows the values of single runs when the user selects it."""
    if row is None:
        return "-"
    where = "" if row["scenario"] == "all" else f" in {row['scenario']}"
    about = f"{CATALOGUE[row['metric']].title}, {mode_name(row['mode'])}{where}"
    name = html.escape(_cell_name(row))
    return f"<button type='button' data-cell='{name}' title='{html.escape(about)}'>{_cell(row)}</button>"


def _cell_name(row: dict[str, Any]) -> str:
    return "|".join(str(row[name]) for name in ("scenario", "mode", "metric", "level", "phase"))


def _values(results: Results, links: dict[str, tuple[str, str]]) -> str:
    """The values of single runs behind the cells, as JSON, which the page's script shows."""
    own = own_levels(results)
    names = [run["run"] for run in results.runs]
    places = {name: place for place, name in enumerate(names)}
    values: dict[str, list[tuple[int, str]]] = {}
    for row in results.per_run:
        is_shown = row["side"] == "all" and row["level"] in ("all", own[row["mode"]])
        if is_shown and (row["phase"] == "all" or (row["phase"] == "fault" and row["metric"] in _SCENARIO_METRICS)):
            percent = CATALOGUE[row["metric"]].unit == "share"
            text = _number(row["value"] * (100 if percent else 1)) + " %" * percent
            for scenario in {row["scenario"], "all"} if row["phase"] == "all" else {row["scenario"]}:
                values.setdefault(_cell_name({**row, "scenario": scenario}), []).append((places[row["run"]], text))
    runs = [{"name": name, "timeline": f"{_place(links[name][0])}/timeline.html" if name in links else ""} for name in names]
    content = json.dumps({"runs": runs, "values": values}, separators=(",", ":")).replace("<", "\\u003c")
    return f"<script type='application/json' id='values'>{content}</script>"


def _place(folder: str) -> str:
    return quote(folder, safe="/:.-_~")


def _comparison(results: Results) -> str:
    rows, chances = _whole(results), _chances(results)
    modes = [*OWN, *sorted({run["mode"] for run in results.runs} - {*OWN})]
    lines: list[str] = []
    told = set()
    for metric, about in CATALOGUE.items():
        section = ("route_" if metric.startswith("route_") and about.code != "M20" else "") + about.code
        cells_of = {mode: rows.get((metric, mode)) for mode in modes}
        if not any(cells_of.values()):
            continue
        if section in _SECTIONS and section not in told:
            told.add(section)
            lines.append(f"<tr><th class='section' colspan='{4 + len(modes)}' scope='colgroup'>{_SECTIONS[section]}</th></tr>")
        better = _better(cells_of["ap"], cells_of["cp"], about.less_is_better) if chances.get(metric, 1.0) < SIGNIFICANT else ""
        cells = "".join(
            f"<td class='number{' better' * (better == mode)}'>{_drilled(row)}</td>" for mode, row in cells_of.items()
        )
        runs = " / ".join(str(row["runs"]) if row else "-" for row in cells_of.values())
        uncertainty = max((row["clock_uncertainty_ms"] or 0 for row in cells_of.values() if row), default=0)
        unit = _unit(metric) + (f" (clocks ± {uncertainty:g} ms)" if uncertainty else "")
        lines.append(
            f"<tr><td>{about.code}</td><th scope='row'>{html.escape(about.title)}{' ★' * (metric in PRIMARY)}</th>{cells}"
            f"<td>{unit}</td><td class='number'>{runs}</td></tr>"
        )
    columns = ("", "measure", *map(mode_name, modes), "unit", "runs")
    return _table(
        "comparison",
        f"{', '.join(map(mode_name, modes[:-1]))} and {mode_name(modes[-1])} over all runs",
        columns,
        lines,
        sortable=False,
    )


def _better(ap: dict[str, Any] | None, cp: dict[str, Any] | None, less_is_better: bool) -> str:
    if ap is None or cp is None:
        return ""
    return "ap" if (ap["mean"] < cp["mean"]) == less_is_better else "cp"


SIGNIFICANT = 0.05
"""A difference counts as real if the probability of chance is lower than this."""


def _chances(results: Results) -> dict[str, float]:
    """For each figure the adjusted probability that AP and CP differ by chance, at the modes' own levels if the figure has
    levels.
    """
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
        "<p class='note'>The age, in steps of 9 %, from which on all reads see at least this share of the writes. When a write "
        "became visible is known only to be between two reads, or after the last one (Turnbull's estimate); a dash: not reached "
        "within the observed time. "
        f"In brackets the 95 % interval.{clocks}</p>"
    ]
    body = []
    for (about, mode, level), found in sorted(rows.items()):
        cells = "".join(f"<td class='number'>{_age(found[share])}</td>" for share in sorted(found))
        one = next(iter(found.values()))
        body.append(
            f"<tr><th scope='row'>{about}</th><td>{mode_name(mode)}, {level}</td>{cells}<td class='number'>{one['writes']:,}</td>"
            f"<td class='number'>{one['runs']}</td></tr>"
        )
    columns = ("of", "mode, read level", "99 %", "99.9 %", "writes", "runs")
    return "\n".join([*lines, _table("t-visibility", "Age from which on all reads see a write", columns, body, sortable=False)])


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
    names = [f"{html.escape(CATALOGUE[name].title)} ({_unit(name)})" for name in _LEVEL_METRICS]
    clocks = _clocks([row for (_, _, metric), row in rows.items() if metric in _LEVEL_METRICS])
    lines = [
        "<p class='note'>Look-ups of routes. A request may name another level than the node's own: linearizable asks a "
        "majority, lease relies on the leader's lease, stale answers at once from the node's own state. AP nodes have no levels."
        f"{clocks}</p>"
    ]
    body = []
    for mode, level in groups:
        cells = "".join(f"<td class='number'>{_cell(rows.get((mode, level, name)))}</td>" for name in _LEVEL_METRICS)
        body.append(f"<tr><th scope='row'>{mode_name(mode)}, {level}</th>{cells}</tr>")
    return "\n".join([*lines, _table("levels", "Look-ups by read level", ("mode, level", *names), body, sortable=False)])


def _clocks(rows: Sequence[dict[str, Any]]) -> str:
    """The clock error for the figures of M4 to M9; empty if all nodes read the same clock."""
    uncertainty_ms = max((row["clock_uncertainty_ms"] or 0 for row in rows), default=0)
    return f" Times of two nodes are known to &plusmn; {uncertainty_ms:g} ms of each other." if uncertainty_ms else ""


def _unit(metric: str) -> str:
    return "%" if CATALOGUE[metric].unit == "share" else CATALOGUE[metric].unit


_SCENARIO_METRICS = {
    "fresh_reads": "KV reads that are fresh", "anomalous_reads": "KV reads that no order explains",
    "route_fresh_reads": "look-ups that are fresh", "equal_probes": "probes answered alike by all",
    "harvest": "right brokers in the answer", "ghosts": "dead brokers in the answer",
    "failover_yield_in_time": "answered in time, fail-over clients", "pinned_yield_in_time": "answered in time, pinned clients",
    "failover_unavailable_longest": "longest time without a successful request, fail-over clients (s)",
}  # fmt: skip  # items grouped by line


def _by_scenario(results: Results) -> str:
    own = own_levels(results)
    rows: dict[tuple[str, str, str], dict[str, Any]] = {}
    for row in sorted(results.summary, key=lambda row: row["level"] == own[row["mode"]]):
        if row["phase"] == "fault" and row["side"] == "all" and row["level"] in ("all", own[row["mode"]]):
            rows[row["scenario"], row["mode"], row["metric"]] = row
    names = _SCENARIO_METRICS.values()
    clocks = _clocks([row for (_, _, metric), row in rows.items() if metric in _SCENARIO_METRICS]).strip()
    lines = [f"<p class='note'>{clocks}</p>"] if clocks else []
    body = []
    for scenario in sorted({run["scenario"] for run in results.runs}):
        for mode in sorted(own):
            found = [rows.get((scenario, mode, metric)) for metric in _SCENARIO_METRICS]
            if any(found):
                cells = "".join(f"<td class='number'>{_drilled(row)}</td>" for row in found)
                body.append(f"<tr><th scope='row'>{html.escape(scenario)}</th><td>{mode_name(mode)}</td>{cells}</tr>")
    return "\n".join([*lines, _table("scenarios", "Figures during the fault, by scenario", ("scenario", "mode", *names), body)])


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
    lines = [
        "<p class='note'>Probability that a read, begun while the fault lasts, is answered and the answer is in the class: mean "
        "over the runs and its 95 % interval, in percent. A read that got no answer is in no class. Reads at the default "
        f"level of the mode.{_clocks(results.consistability)}</p>"
    ]
    body = []
    for (_, scenario, about, mode), classes in sorted(found.items()):
        cells = "".join(f"<td class='number'>{_probability(classes[name])}</td>" for name in CLASSES)
        one = classes["answered"]
        fault = "all of them" if scenario == "all" else html.escape(scenario)
        body.append(
            f"<tr><th scope='row'>{fault}</th><td>{about}</td><td>{mode_name(mode)}</td>{cells}"
            f"<td class='number'>{one['asked']:,}</td><td class='number'>{one['runs']}</td></tr>"
        )
    columns = ("fault", "reads of", "mode", *(_CLASSES[name] for name in CLASSES), "reads", "runs")
    return "\n".join([*lines, _table("consistability", "Probability of each class of consistency, by fault", columns, body)])


def _probability(row: dict[str, Any]) -> str:
    return _cell({"unit": "share", "mean": row["probability"], "low": row["low"], "high": row["high"], "runs": row["runs"]})


def _runs(results: Results, links: dict[str, tuple[str, str]]) -> str:
    known = {entry.run: entry for entry in results.ingested}
    body = []
    for run in sorted(results.runs, key=lambda run: (run["scenario"], run["mode"], str(run["run"]))):
        entry = known[run["run"]]
        folder, verdict = links.get(run["run"], ("", "-"))
        place = html.escape(_place(folder))
        name, said = html.escape(run["run"]), html.escape(verdict)
        if folder:
            name = f"<a href='{place}/timeline.html'>{name}</a>"
            said = f"<a href='{place}/verdict.json'>{said}</a>" if verdict != "-" else said
        body.append(
            f"<tr><th scope='row'>{name}</th><td>{html.escape(run['scenario'])}</td><td>{mode_name(run['mode'])}</td>"
            f"<td>{run['nodes']}</td><td>{run['seed']}</td><td>{said}</td><td class='number'>{entry.records:,}</td>"
            f"<td class='number'>{entry.torn + entry.corrupt}</td></tr>"
        )
    columns = ("run", "scenario", "mode", "nodes", "seed", "verdict", "records", "lines left out")
    return _table("runs", "All runs; a name leads to the time line of the run", columns, body)

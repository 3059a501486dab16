"""timeline.html: a picture of a run in one file. It needs no other file and opens offline.

The rows are, from top to bottom: leaders; state of each node; true state of each broker; operations by client; operations and
broker requests by target node. Faults shade all rows. Every mark has a tooltip. If the picture is wider than the screen, it
scrolls while the row names stay in place. Marks that would cover each other are merged into one that names the first few, so the
page of a run of an hour stays small enough.
"""

import html
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby, pairwise
from typing import NamedTuple

from replicated_namesrv.chaos.checks import RunJudgement
from replicated_namesrv.chaos.checks.story import NEVER_NS, Op, Story
from replicated_namesrv.chaos.records import FaultRecord

LABEL, ROW, PAD = 130, 18, 3
WIDTH, WIDTH_MAX, SECOND_PX = 1270, 16_000, 25
"""Minimum and maximum width of the picture without the row names, and width of a second, in pixels. The minimum fits a common
screen. Long runs are wider, so that one second stays visible. The maximum is the width that browsers can draw."""
TICKS_S = (1, 2, 6, 12, 60, 120, 600)
"""Candidates for the distance between ticks. Every fifth tick has a label."""
LABEL_PX_MIN, LISTED_MAX = 50, 5
KEY = {
    "operations": {"ok": "#2a9d5c", "fail": "#e0a020", "indeterminate": "#c8322d"},
    "leader": {"n1": "#3b6fb6", "n2": "#7b4fa3", "n3": "#1f9c9c", "n4": "#a3704f", "n5": "#4d4d8f"},
    "nodes": {"answers": "#bfe3cd", "fenced or not ready": "#f2cf83", "no answer": "#e2938f"},
    "brokers": {"alive": "#bfe3cd", "may be dropped": "#e9d8a6", "left": "#e4e4e4", "dead": "#8a8a8a"},
}
COLOURS = {name: colour for names in KEY.values() for name, colour in names.items()}
_ABOVE = ("indeterminate", "fail", "ok")
"""Order in which operations at the same time are drawn: later ones in this list cover earlier ones."""
_STATES = {"serving": "alive", "safe": "alive", "starting": "may be dropped", "exposed": "may be dropped"}
_STATES |= {"dead": "dead", "silent": "dead"}
_OP_MIN_PX = 1.5
ANNOUNCED = ("register", "unregister")
SECOND_NS = 1_000_000_000


class Bar(NamedTuple):
    """A stretch of a row."""

    start_ns: int
    end_ns: int
    colour: str
    text: str


def render(story: Story, judgement: RunJudgement) -> str:
    """Render the whole page."""
    begin, end = story.origin_ns, max(record.time_ns for record in story.trace.records)
    rows = list(_rows(story, end))
    height = ROW * (len(rows) + 3)
    width = min(WIDTH_MAX, max(WIDTH, SECOND_PX * (end - begin) // SECOND_NS))
    scale = width / max(1, end - begin)

    def x(time_ns: int) -> float:
        return (min(time_ns, end) - begin) * scale

    names = [f'<text x="4" y="{(number + 2) * ROW - 5}">{html.escape(label)}</text>' for number, (label, _) in enumerate(rows, 1)]
    parts = [*_fault_shades(story, x, height, end)]
    for number, (_, bars) in enumerate(rows, 1):
        parts += _marks(bars, x, (number + 1) * ROW + PAD)
    parts += _phase_marks(story, x, height)
    parts += _seconds(story, x, end)
    return _page(story, judgement, _svg(LABEL, height, names), _svg(width, height, parts))


def _svg(width: int, height: int, parts: Iterable[str]) -> str:
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return "\n".join([f'<svg {size} font-size="11">', *parts, "</svg>"])


def _marks(bars: Iterable[Bar], x: Callable[[int], float], top: int) -> Iterator[str]:
    """Merge neighbours of one colour that would cover each other."""

    def spot(bar: Bar) -> tuple[str, object]:
        return bar.colour, int(x(bar.start_ns)) if x(bar.end_ns) - x(bar.start_ns) < _OP_MIN_PX else bar

    for _, found in groupby(bars, spot):
        same = list(found)
        texts = [bar.text for bar in same[:LISTED_MAX]] + [f"and {len(same) - LISTED_MAX} more"] * (len(same) > LISTED_MAX)
        left, right = x(same[0].start_ns), max(x(bar.end_ns) for bar in same)
        yield (
            f'<rect x="{left:.1f}" y="{top}" width="{max(_OP_MIN_PX, right - left):.1f}" height="{ROW - 2 * PAD}" '
            f'fill="{COLOURS[same[0].colour]}"><title>{html.escape(chr(10).join(texts))}</title></rect>'
        )


def _rows(story: Story, end_ns: int) -> Iterator[tuple[str, list[Bar]]]:
    if story.mode == "cp":
        yield "leader", list(_leader_bars(story, end_ns))
    for node in story.nodes:
        yield node, list(_node_bars(story, node, end_ns))
    for broker in sorted(story.lives):
        yield broker, list(_broker_bars(story, broker, end_ns))
    clients: dict[str, list[Op]] = {}
    for op in story.ops:
        if op.client in story.kinds:
            clients.setdefault(op.client, []).append(op)
    for client, ops in sorted(clients.items()):
        yield client, _op_bars(story, ops, end_ns)
    for node in story.nodes:  # a broker's registration is shown as its requests to single nodes (register-copy)
        yield f"at {node}", _op_bars(story, [op for op in story.ops if op.node == node and op.kind not in ANNOUNCED], end_ns)


def _op_bars(story: Story, ops: Iterable[Op], end_ns: int) -> list[Bar]:
    bars = [Bar(op.start_ns, min(op.end_ns, end_ns), op.outcome, _op_text(story, op)) for op in ops]
    return sorted(bars, key=lambda bar: (_ABOVE.index(bar.colour), bar.start_ns))


def _op_text(story: Story, op: Op) -> str:
    took = "no end" if op.end_ns == NEVER_NS else f"{(op.end_ns - op.start_ns) / 1e6:.1f} ms"
    said = f" = {op.value}" if op.value is not None else ""
    listed = f" -> {', '.join(f'{name} ({version})' for name, version in op.members) or 'no route'}" if op.kind == "route" else ""
    what = f"{op.client} {op.kind} {op.key}{said}{listed if op.ok else ''}"
    return f"{story.ms(op.start_ns)} {what} at {op.node}: {op.outcome}, {took}"


def _leader_bars(story: Story, end_ns: int) -> Iterator[Bar]:
    for number, node in enumerate(story.nodes):
        seen = [one for one in story.statuses if one.node == node]
        for one, after in pairwise([*seen, None]):
            if one is not None and one.role == "leader":
                until_ns = end_ns if after is None else after.time_ns
                colour = f"n{number % 5 + 1}"
                yield Bar(one.time_ns, until_ns, colour, f"{story.ms(one.time_ns)} {node} leads term {one.term}")


def _node_bars(story: Story, node: str, end_ns: int) -> Iterator[Bar]:
    seen = [one for one in story.statuses if one.node == node]
    for number, one in enumerate(seen):
        until = seen[number + 1].time_ns if number + 1 < len(seen) else end_ns
        colour = "no answer" if not one.answered else "fenced or not ready" if one.fenced or not one.ready else "answers"
        standing = f"{one.role}, term {one.term}" if one.role else "independent"
        text = f"{story.ms(one.time_ns)} {node}: {one.process}, {standing}, revision {one.revision}"
        yield Bar(one.asked_ns, until, colour, text)


def _broker_bars(story: Story, broker: str, end_ns: int) -> Iterator[Bar]:
    lives = story.lives[broker]
    for number, life in enumerate(lives):
        until = lives[number + 1].start_ns if number + 1 < len(lives) else end_ns
        yield Bar(life.start_ns, until, _STATES.get(life.state, "left"), f"{story.ms(life.start_ns)} {broker}: {life.state}")


def fault_spans(story: Story, end_ns: int) -> Iterator[tuple[FaultRecord, int, int]]:
    """Each fault with its beginning and end."""
    started: dict[int, FaultRecord] = {}
    for record in story.trace.records:
        if not isinstance(record, FaultRecord):
            continue
        if record.edge == "start":
            started[record.fault] = record
            continue
        begin = started.pop(record.fault, record)
        yield begin, begin.began_ns, record.time_ns
    for record in started.values():
        yield record, record.began_ns, end_ns


def described_fault(fault: FaultRecord) -> str:
    """A fault in words."""
    what = f"{fault.name} ({fault.variant})" if fault.variant else fault.name
    return f"{what} of {', '.join(fault.nodes)}"


def node_rows(story: Story, end_ns: int) -> Iterator[tuple[str, list[Bar]]]:
    """The rows of leaders and nodes. Neighbouring stretches of the same state are one."""
    rows = ((node, _node_bars(story, node, end_ns)) for node in story.nodes)
    for label, bars in (("leader", _leader_bars(story, end_ns)), *rows):
        merged: list[Bar] = []
        for bar in bars:
            if merged and merged[-1].colour == bar.colour:
                merged[-1] = merged[-1]._replace(end_ns=bar.end_ns)
            else:
                merged.append(bar)
        if merged:
            yield label, merged


def _fault_shades(story: Story, x: Callable[[int], float], height: int, end_ns: int) -> Iterable[str]:
    for fault, begin_ns, until_ns in fault_spans(story, end_ns):
        yield _shade(fault, x(begin_ns), x(until_ns), height)


def _shade(fault: FaultRecord, left: float, right: float, height: int) -> str:
    title = html.escape(described_fault(fault))
    return (
        f'<rect x="{left:.1f}" y="{ROW}" width="{max(1.0, right - left):.1f}" height="{height - ROW}" fill="#f6c9c4" '
        f'opacity="0.5">'
        f'<title>{title}</title></rect><text x="{left + 3:.1f}" y="{ROW + 13}" fill="#8c1d18">{title}</text>'
    )


def _seconds(story: Story, x: Callable[[int], float], end_ns: int) -> Iterable[str]:
    second_px = x(story.origin_ns + SECOND_NS) - x(story.origin_ns)
    tick_s = next((tick_s for tick_s in TICKS_S if 5 * tick_s * second_px >= LABEL_PX_MIN), TICKS_S[-1])
    for second in range(0, (end_ns - story.origin_ns) // SECOND_NS + 1, tick_s):
        at = x(story.origin_ns + second * SECOND_NS)
        yield f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{ROW - 5}" y2="{ROW}" stroke="#999"/>'
        if second % (5 * tick_s) == 0:
            anchor = "middle" if second else "start"
            yield f'<text x="{at:.1f}" y="11" text-anchor="{anchor}" fill="#666">{second} s</text>'


def _phase_marks(story: Story, x: Callable[[int], float], height: int) -> Iterable[str]:
    for name, span in story.phases.items():
        left = x(span.start_ns)
        yield f'<line x1="{left:.1f}" x2="{left:.1f}" y1="0" y2="{height}" stroke="#999" stroke-dasharray="3 3"/>'
        if x(span.end_ns) - left > 8 * len(name):
            yield f'<text x="{left + 3:.1f}" y="{height - 4}" fill="#666">{name}</text>'


def _page(story: Story, judgement: RunJudgement, names: str, picture: str) -> str:
    manifest = story.manifest
    scenario = manifest["scenario"]
    title = f"{scenario['name']}, {manifest['mode']}, {len(story.nodes)} nodes, seed {manifest['seed']}: {judgement.verdict}"
    checks = "".join(
        f'<tr class="{check.verdict}"><td>{html.escape(check.name)}</td>'
        f"<td>{'promised' if judgement.promised(check) else ''}</td>"
        f"<td>{check.verdict}</td><td>{check.looked_at}</td><td>{check.count or ''}</td>"
        f"<td><pre>{html.escape(chr(10).join(check.findings))}</pre></td></tr>"
        for check in judgement.checks
    )
    figures = "".join(f"<tr><td>{name}</td><td>{value}</td></tr>" for name, value in judgement.figures.as_json().items())
    shown = {**KEY, "leader": {name: KEY["leader"][name] for name in story.nodes if story.mode == "cp" and name in KEY["leader"]}}
    key = "".join(
        f"<strong>{what}:</strong> "
        + " ".join(f'<span style="background:{colour}">&nbsp;&nbsp;&nbsp;</span> {name}' for name, colour in names.items())
        + " &emsp;"
        for what, names in shown.items()
        if names
    )
    return f"""<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>
<style>body{{font:14px sans-serif;margin:1.5em}} td,th{{padding:2px 10px;text-align:left;vertical-align:top}} pre{{margin:0}}
tr.violated td:nth-child(3){{color:#c8322d;font-weight:bold}} tr.unknown td:nth-child(3){{color:#b07800;font-weight:bold}}
.picture{{display:flex;width:max-content;max-width:100%;border:1px solid #ccc;background:#fff}}
.picture svg{{flex:none;display:block}}
.picture div{{overflow-x:auto}} td:nth-child(-n+5){{white-space:nowrap}}</style>
<h1>{html.escape(title)}</h1><p>{html.escape(scenario["title"])}. Judged as {judgement.judged_as}.</p>
<div class="picture">{names}<div>{picture}</div></div><p>{key}</p>
<h2>Checks</h2><table><tr><th>check</th><th></th><th>verdict</th><th>looked at</th><th>wrong</th><th>findings</th></tr>
{checks}</table><h2>Figures</h2><table>{figures}</table></html>
"""

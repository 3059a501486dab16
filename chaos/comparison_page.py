"""The page of a comparison: one table and one figure for the runs of a scenario in several modes.

The figure has four rows for each mode: when nodes answered differently, and which look-ups lacked a live broker, listed a dead
one, or were refused or unanswered. All modes share one time axis, with zero where the faults begin.
"""

import html
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from replicated_namesrv.chaos.checks.figures import wrong_lookups
from replicated_namesrv.chaos.checks.story import Story
from replicated_namesrv.chaos.checks.timing import divergence_segments
from replicated_namesrv.chaos.run_modes import shown
from replicated_namesrv.chaos.run_report import TIMELINE_FILE, broken, comparison_rows, load_story, read_verdict
from replicated_namesrv.files import write_atomically

LABEL, ROW, PAD, WIDTH = 300, 18, 3, 900
SECOND_NS = 1_000_000_000
ROWS = {
    "differ": ("nodes answer differently", "#7b4fa3"),
    "missing": ("look-ups lacking a live broker", "#c8322d"),
    "ghost": ("look-ups listing a dead broker", "#8a8a8a"),
    "refused": ("look-ups refused or unanswered", "#e0a020"),
}
"""The rows of each mode: from the key to the name and the colour."""
_TICK_PX = 1.5


def write_comparison(heading: str, folders: Mapping[str, Path]) -> Path:
    """Write the page and the figure next to the runs. ``folders``: the folder of each mode's run. Returns the page.

    Raises TraceError, StorageError."""
    stories = {mode: load_story(folder) for mode, folder in folders.items()}
    first = next(iter(folders.values()))
    name = first.name.partition("-")[0] + "-" + heading.partition(",")[0] + "-compared"
    picture = figure(stories)
    write_atomically(first.parent / f"{name}.svg", picture.encode())
    page = first.parent / f"{name}.html"
    write_atomically(page, _page(heading, folders, picture).encode())
    return page


def figure(stories: Mapping[str, Story]) -> str:
    """The figure as an SVG document."""
    starts = {mode: _fault_begin(story) for mode, story in stories.items()}
    spans = [(story.judged.start_ns - starts[mode], story.judged.end_ns - starts[mode]) for mode, story in stories.items()]
    least, most = min(low for low, _ in spans), max(high for _, high in spans)

    def x(relative_ns: int) -> float:
        return LABEL + WIDTH * (relative_ns - least) / max(1, most - least)

    lanes = len(ROWS) + 1
    height = ROW * (lanes * len(stories) + 2)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LABEL + WIDTH + 10} {height}" width="{LABEL + WIDTH + 10}" '
        f'height="{height}" font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="#fff"/>',
        *_seconds(least, most, x),
    ]
    for number, (mode, story) in enumerate(stories.items()):
        parts += _lane(mode, story, ROW * (1 + number * lanes), _relative(x, starts[mode]))
    return "\n".join([*parts, "</svg>"])


def _relative(x: Callable[[int], float], start_ns: int) -> Callable[[int], float]:
    return lambda time_ns: x(time_ns - start_ns)


def _fault_begin(story: Story) -> int:
    return story.phases["fault"].start_ns if "fault" in story.phases else story.judged.start_ns


def _lane(mode: str, story: Story, top: int, x: Callable[[int], float]) -> Iterator[str]:
    yield f'<text x="4" y="{top + ROW - 5}" font-weight="bold">{html.escape(shown(mode))}</text>'
    for fault, until_ns in story.faults:
        left, right = x(fault.began_ns), x(min(until_ns, story.judged.end_ns))
        name = html.escape(f"{fault.name} of {', '.join(fault.nodes)}")
        yield (
            f'<rect x="{left:.1f}" y="{top}" width="{max(1.0, right - left):.1f}" height="{ROW * (len(ROWS) + 1)}" '
            f'fill="#f6c9c4" opacity="0.5"><title>{name}</title></rect>'
            f'<text x="{left + 3:.1f}" y="{top + ROW - 5}" fill="#8c1d18">{name}</text>'
        )
    tops = {key: top + ROW * (number + 1) for number, key in enumerate(ROWS)}
    for key, (name, _) in ROWS.items():
        yield f'<text x="16" y="{tops[key] + ROW - 5}">{name}</text>'
    for segment in divergence_segments(story):
        if segment.certain > 0:
            said = f"{story.ms(segment.start_ns)}: distance {segment.certain:.2f}"
            yield _mark("differ", x(segment.start_ns), x(segment.end_ns), tops["differ"], said)
    for op, wrong in wrong_lookups(story):
        left = x(op.start_ns)
        said = f"{story.ms(op.start_ns)}: {op.client} looks up {op.key} at {op.node}"
        yield _mark(wrong, left, min(x(min(op.end_ns, story.judged.end_ns)), left + _TICK_PX), tops[wrong], said)


def _mark(key: str, left: float, right: float, top: int, said: str) -> str:
    return (
        f'<rect x="{left:.1f}" y="{top + PAD}" width="{max(_TICK_PX, right - left):.1f}" height="{ROW - 2 * PAD}" '
        f'fill="{ROWS[key][1]}"><title>{html.escape(said)}</title></rect>'
    )


def _seconds(least: int, most: int, x: Callable[[int], float]) -> Iterable[str]:
    step = max(1, (most - least) // SECOND_NS // 12)
    for second in range(-(-least // SECOND_NS), most // SECOND_NS + 1, step):
        at = x(second * SECOND_NS)
        yield f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{ROW - 5}" y2="{ROW}" stroke="#999"/>'
        yield f'<text x="{at:.1f}" y="11" text-anchor="middle" fill="#666">{second} s</text>'


def _page(heading: str, folders: Mapping[str, Path], picture: str) -> str:
    verdicts = {mode: read_verdict(folder) or {} for mode, folder in folders.items()}
    head = "".join(
        f'<th><a href="{html.escape(os.path.join(folder.name, TIMELINE_FILE))}">{html.escape(shown(mode))}</a></th>'
        for mode, folder in folders.items()
    )
    rows = "".join(
        f"<tr><td>{html.escape(label)}</td>{''.join(f'<td>{html.escape(cell)}</td>' for cell in cells)}</tr>"
        for label, cells in comparison_rows(verdicts.values())
    )
    missed = "".join(f"<td>{html.escape(', '.join(broken(verdict)) or 'none')}</td>" for verdict in verdicts.values())
    title = html.escape(heading)
    return f"""<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>body{{font:14px sans-serif;margin:1.5em}} td,th{{padding:2px 10px;text-align:left;vertical-align:top}}
td:nth-child(n+2){{max-width:16em}} svg{{border:1px solid #ccc;max-width:100%}}</style>
<h1>{title}</h1><table><tr><th></th>{head}</tr>{rows}<tr><td>does not hold, promised or not</td>{missed}</tr></table>
<p>Zero is the beginning of the faults. Columns link to the timelines of the runs.</p>{picture}</html>
"""

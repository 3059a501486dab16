"""Each node's answers over time, how far they differ, and when they agree again (M14, M15). Pure.

The definitions are those of ``verify.divergence``. The input is ``looks``, in which most consecutive looks with the same
answer are one row; ``states`` joins the rest.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from replicated_namesrv.spark.run_records import RunRecords
from replicated_namesrv.spark.truth import REGISTRATIONS
from replicated_namesrv.verify.divergence import (
    DivergenceSegment,
    Look,
    NodeAnswer,
    convergence_of,
    known_answers,
    segments_of,
)

Row = dict[str, Any]


def states(records: RunRecords) -> list[Row]:
    """Rows of STATES: the node answered ``members`` from ``from_ns`` until ``until_ns``. Spans without an answer are left out."""
    seen: defaultdict[tuple[str, str], list[Look[str]]] = defaultdict(list)
    names = ("key", "node", "asked_ns", "from_ns", "last_asked_ns", "last_ns", "members")
    for key, node, *look in zip(*(records.looks[name].to_pylist() for name in names), strict=True):
        seen[key, node].append(Look(*look))
    return [
        {
            "key": key, "node": node, "from_ns": known.from_ns, "until_ns": known.until_ns, "members": known.answer,
            "last_asked_ns": known.last_asked_ns, "follows": known.follows,
        }
        for (key, node), looks in sorted(seen.items())
        for known in known_answers(looks)
    ]  # fmt: skip  # items grouped by line


def segments(records: RunRecords, state_rows: Iterable[Row]) -> list[DivergenceSegment]:
    """Spans of time with constant divergence of registrations.

    KV entries are observed, too, but not compared."""
    decoded: dict[str, frozenset[str]] = {}
    answers = []
    for row in state_rows:
        if row["key"] == REGISTRATIONS:
            state = decoded.get(row["members"])
            if state is None:
                members = records.members(row["members"])
                state = decoded[row["members"]] = frozenset(f"{name}@{version}" for name, version in members)
            answers.append(NodeAnswer(row["node"], row["from_ns"], row["until_ns"], state, row["last_asked_ns"], row["follows"]))
    return list(segments_of(answers))


def episodes(found: Sequence[DivergenceSegment]) -> list[Row]:
    """Rows of EPISODES: maximal spans with certain divergence and, with ``certain`` false, spans in which divergence is possible
    but never certain. ``ended`` is false if the observation ended before the span did."""
    certain = _spans(found, [segment.certain for segment in found], True)
    possible = _spans(found, [segment.possible for segment in found], False)
    return certain + possible


def _spans(found: Sequence[DivergenceSegment], measures: Sequence[float], certain: bool) -> list[Row]:
    """Maximal spans with a measure above zero."""
    groups: list[list[int]] = []
    for place, measure in enumerate(measures):
        if measure > 0:
            follows = groups and groups[-1][-1] == place - 1 and found[place - 1].end_ns == found[place].start_ns
            if follows:
                groups[-1].append(place)
            else:
                groups.append([place])
    rows = []
    for group in groups:
        last = group[-1]
        if certain or not any(found[place].certain > 0 for place in group):
            rows.append(
                {
                    "start_ns": found[group[0]].start_ns, "end_ns": found[last].end_ns,
                    "area_s": sum(measures[place] * (found[place].end_ns - found[place].start_ns) / 1e9 for place in group),
                    "divergence_max": max(measures[place] for place in group), "certain": certain,
                    "ended": last + 1 < len(found) and found[last + 1].start_ns == found[last].end_ns,
                }
            )  # fmt: skip  # items grouped by line
    return rows


def convergence(records: RunRecords, found: Sequence[DivergenceSegment]) -> list[Row]:
    """Rows of CONVERGENCE: M15, at most one row. There is none if nodes never differed for certain, or if nothing was
    repaired.
    """
    fault, repaired_ns = records.timeline.span("fault") or records.timeline.span("heal"), records.timeline.repaired_ns
    if fault is None or repaired_ns is None:
        return []
    converged = convergence_of(found, fault.start_ns, repaired_ns)
    return [] if converged is None else [converged._asdict()]

"""Consistability (M9, Aiyer et al. 2008): "class c with probability p while fault f lasts".

A read is in a class if it was answered as the class requires. A read without an answer is in no class, so the probability
combines consistency and availability. A second figure counts answered reads only. Each read is judged separately. Classes from
strong to weak:

- ``linearizable``: it can be merged into its write together with all reads that ended before it (M2);
- ``regular``: it returns the last acknowledged write or a concurrent one (Lamport 1986), which is staleness of k = 0;
- ``session``: it breaks no session guarantee of its client (M10);
- ``one version``: it is behind by at most one acknowledged version, k <= 1 (M6);
- ``one second``: the first write that it misses had been acknowledged for at most that long, t <= 1 s (M5);
- ``eventual``: it returns a written value, however old;
- ``answered``: it returns anything at all.

Linearizable implies regular, regular implies ``one version`` and ``one second``; each class implies the last two.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any

from replicated_namesrv.spark.client_operations import ClientOperation
from replicated_namesrv.spark.curves import KV, ROUTES
from replicated_namesrv.spark.run_figures import ALL, GUARANTEES
from replicated_namesrv.spark.summary import interval

CLASSES = ("linearizable", "regular", "session", "one version", "one second", "eventual", "answered")
SECOND_NS = 1_000_000_000


Row = dict[str, Any]


def held(judged: Iterable[Row], routes: Iterable[Row], done: Sequence[ClientOperation]) -> list[Row]:
    """Rows of HELD: the number of reads of judged keys before ``final`` in each class, by read level, phase and side, and over
    all phases and sides."""
    counts: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    for rows, kind, about in ((judged, "get", KV), (routes, "route", ROUTES)):
        keys: set[tuple[str, str]] = set()
        reads: dict[int, Row] = {}
        for row in rows:
            if row["what"] == "key":
                keys.add((row["key"], row["level"]))
            elif row["what"] == "read":
                reads[row["op"]] = row
        for op in done:
            if op.kind == kind and op.phase not in (None, "final") and (op.key, op.level) in keys:
                classes = _classes(reads.get(op.op))
                for phase, side in product((str(op.phase), ALL), (op.side, ALL)):
                    counts[about, op.level, phase, side].update(["asked", *classes])
    return [
        {
            "about": about, "level": level, "phase": phase, "side": side, "asked": found["asked"], "answered": found["answered"],
            "class": name, "held": found[name],
        }
        for (about, level, phase, side), found in counts.items()
        for name in CLASSES
    ]  # fmt: skip  # items grouped by line


def _classes(read: Row | None) -> list[str]:
    """The classes of consistency that an answer meets. None: there was no answer."""
    if read is None:
        return []
    behind, fresh = read["versions_behind"], read["fresh"]
    known = behind is not None
    is_in = {
        "linearizable": not read["anomalous"], "regular": fresh,
        "session": known and not any(read[guarantee] for guarantee in GUARANTEES), "one version": known and behind <= 1,
        "one second": known and (fresh or (read["age_ns"] is not None and read["age_ns"] <= SECOND_NS)), "eventual": known,
        "answered": True,
    }  # fmt: skip  # items grouped by line
    return [name for name, holds in is_in.items() if holds]


def consistability(rows: Iterable[dict[str, Any]], runs: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of CONSISTABILITY from those of HELD: means over runs with intervals, by scenario and over all scenarios."""
    about_run = {run["run"]: run for run in runs}
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        run = about_run[row["run"]]
        for scenario in (run["scenario"], ALL):
            same = (row[name] for name in ("about", "level", "phase", "side", "class"))
            groups[run["mode"], scenario, *same].append(row)
    found = []
    for group, members in sorted(groups.items(), key=lambda item: (*item[0][:-1], CLASSES.index(item[0][-1]))):
        mode, scenario, about, level, phase, side, name = group
        members.sort(key=lambda row: str(row["run"]))
        shares = [row["held"] / row["asked"] for row in members]
        answered = [row for row in members if row["answered"]]
        low, high = interval(shares, [about_run[row["run"]]["scenario"] for row in members], "share")
        found.append(
            {
                "mode": mode, "scenario": scenario, "about": about, "level": level, "phase": phase, "side": side, "class": name,
                "probability": sum(shares) / len(shares), "low": low, "high": high,
                "of_answered": sum(row["held"] / row["answered"] for row in answered) / len(answered) if answered else None,
                "whole_runs": sum(row["held"] == row["answered"] for row in answered) / len(answered) if answered else None,
                "runs": len(members), "asked": sum(row["asked"] for row in members),
                "clock_uncertainty_ms": 2 * max(about_run[row["run"]]["clock_uncertainty_ns"] for row in members) / 1e6,
            }
        )  # fmt: skip  # items grouped by line
    return found

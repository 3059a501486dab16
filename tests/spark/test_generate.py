"""Generated traces contain what their truth.json says, counted line by line in plain Python."""

import json
from bisect import bisect_left, bisect_right
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest

from replicated_namesrv.spark.generate import GenerateError, generate

Looks = list[tuple[int, int, str]]
"""Question and arrival of the answers of a node without silence between, and their members."""


def counted(folder: Path) -> dict[str, int]:
    """The truth of a trace, from its lines alone."""
    found = dict.fromkeys(("observations", "reads", "writes", "stale_reads_judged", "lost_writes"), 0)
    phase, written = "", list[str]()
    asked = {}
    series: defaultdict[str, list[Looks]] = defaultdict(lambda: [[]])
    for line in (folder / "trace.jsonl").read_text().splitlines():
        row = json.loads(line)
        match row["record"]:
            case "phase":
                phase = row["phase"]
            case "observe":
                found["observations"] += 1
                if row["answered"]:
                    series[row["node"]][-1].append((row["asked_ns"], row["time_ns"], json.dumps(row["members"])))
                else:
                    series[row["node"]].append([])
            case "invoke":
                asked[row["op"]] = row["kind"]
                if row["kind"] == "put":
                    written.append(row["value"])
                    found["writes"] += 1
            case "complete" if asked[row["op"]] == "get":
                stale = row["value"] != written[-1]
                found["reads"] += phase != "final"
                found["stale_reads_judged"] += stale and phase not in ("settle", "final")
                found["lost_writes"] += stale and phase == "final"
    every = [looks for own in series.values() for looks in own if looks]
    changes = {
        moment for looks in every for one, other in pairwise(looks) if one[2] != other[2] for moment in (*one[:2], *other[:2])
    }
    ends = {moment for looks in every for moment in (looks[0][1], looks[-1][0])}
    certain, possible = list[tuple[int, int]](), list[tuple[int, int]]()
    for at, until in pairwise(sorted(changes | ends)):
        known = [states for looks in every if (states := standing(looks, at))]
        sure = {next(iter(states)) for states in known if len(states) == 1}
        for spans, apart in ((certain, len(sure) > 1), (possible, len(known) > 1 and len(set().union(*known)) > 1)):
            if apart:
                begin = spans.pop()[0] if spans and spans[-1][1] == at else at
                spans.append((begin, until))
    lengths = {"divergent_ns": certain, "possible_ns": possible}
    alone = [one for one in possible if not any(one[0] <= start < one[1] for start, _ in certain)]
    episodes = {"episodes": len(certain), "episodes_uncertain": len(alone)}
    return {**found, **episodes, **{name: sum(end - start for start, end in spans) for name, spans in lengths.items()}}


def standing(looks: Looks, moment: int) -> set[str]:
    """The possible answers of the node at a moment. Empty: it is not known."""
    if not looks[0][1] <= moment < looks[-1][0]:
        return set()
    first = max(bisect_right(looks, moment, key=lambda look: look[1]) - 1, 0)
    last = bisect_left(looks, moment + 1, key=lambda look: look[0]) - 1
    return {state for one, other in pairwise(looks[first : last + 2]) for state in (one[2], other[2])}


@pytest.mark.parametrize(("rows", "nodes", "seed"), [(10_000, 3, 1), (10_001, 5, 2), (12_345, 5, 3)])
def test_the_truth_of_a_trace_is_what_its_lines_say(tmp_path: Path, rows: int, nodes: int, seed: int) -> None:
    folders = generate(rows, nodes, seed, tmp_path, print)
    assert len(folders) == 2
    for folder in folders:
        assert json.loads((folder / "truth.json").read_text()) == counted(folder), folder.name
    assert sum(counted(folder)["observations"] for folder in folders) == rows


def test_the_same_seed_makes_the_same_trace(tmp_path: Path) -> None:
    traces = [generate(10_000, 3, 9, tmp_path / name, print)[0] / "trace.jsonl" for name in ("a", "b")]
    assert traces[0].read_bytes() == traces[1].read_bytes()
    with pytest.raises(GenerateError, match="exists already"):
        generate(10_000, 3, 9, tmp_path / "a", print)

"""Generated traces contain what their truth.json says, counted line by line in plain Python."""

import json
from pathlib import Path

import pytest

from replicated_namesrv.spark.generate import GenerateError, generate


def counted(folder: Path) -> dict[str, int]:
    """The truth of a trace, from its lines alone."""
    manifest = json.loads((folder / "manifest.json").read_text())
    resolution_ns = 2 * manifest["observe_interval_ms"] * 1_000_000
    found = dict.fromkeys(("observations", "reads", "writes", "stale_reads_judged", "lost_writes"), 0)
    phase, since, known, written, lengths = "", None, dict[str, str](), list[str](), list[int]()
    asked = {}
    for line in (folder / "trace.jsonl").read_text().splitlines():
        row = json.loads(line)
        match row["record"]:
            case "phase":
                phase = row["phase"]
            case "observe":
                found["observations"] += 1
                at = row["time_ns"] if row["answered"] else row["asked_ns"]
                known.pop(row["node"], None)
                if row["answered"]:
                    known[row["node"]] = json.dumps(row["members"])
                apart = len(set(known.values())) > 1
                if apart and since is None:
                    since = at
                elif not apart and since is not None:
                    lengths.append(at - since)
                    since = None
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
    assert since is None, "every episode is seen to end"
    real = [length for length in lengths if length > resolution_ns]
    return {**found, "episodes": len(real), "episodes_below_resolution": len(lengths) - len(real), "divergent_ns": sum(real)}


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

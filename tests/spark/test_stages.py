"""Stages in Spark against plain Python, on a thousand small random runs at once."""

import json
import random
from collections import defaultdict
from itertools import pairwise
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from replicated_namesrv.spark import leaders, metrics, observations, operations, timeline, truth
from replicated_namesrv.spark.divergence import Change
from replicated_namesrv.spark.schemas import CORRUPT, RECORDS, RUNS
from tests.spark.oracles import divergence_at

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

RUN_COUNT = 1000
_STORED = StructType([*RECORDS.fields, StructField("mode", StringType()), StructField(CORRUPT, StringType())])
BROKERS = ("a/0", "b/0", "c/0")


def looks(chooser: random.Random) -> list[dict[str, Any]]:
    """Looks at three nodes in turn; some are not answered."""
    rows = []
    for look in range(chooser.randint(3, 25)):
        at = 10 + 3 * look
        answered = chooser.random() < 0.8
        members = [{"name": name, "version": str(chooser.randint(1, 2))} for name in chooser.sample("ab", chooser.randint(0, 2))]
        rows.append(
            {
                "record": "observe", "time_ns": at, "asked_ns": at - 1, "node": f"n{look % 3}", "key": "brokers",
                "answered": answered,
                "members": json.dumps(sorted(members, key=lambda m: m["name"])) if answered else None,
            }
        )  # fmt: skip
    return rows


def known_states(rows: list[dict[str, Any]]) -> list[Change]:
    """What each node is known to answer: from an answer to the next look at it, nothing from an unanswered question on."""
    changes = []
    for node in ("n0", "n1", "n2"):
        mine = [row for row in rows if row["record"] == "observe" and row["node"] == node]
        moments = [(row["time_ns"] if row["answered"] else row["asked_ns"]) for row in mine]
        for row, start, end in zip(mine, moments, moments[1:], strict=False):
            if row["answered"]:
                names = frozenset(f"{m['name']}@{m['version']}" for m in json.loads(row["members"]))
                changes.append(Change(node, start, end, names))
    return changes


def facts(chooser: random.Random) -> list[dict[str, Any]]:
    """Lives of three brokers."""
    rows = []
    for broker in BROKERS:
        now = 0
        for life in range(chooser.randint(1, 2)):
            for state in ("starting", "serving", chooser.choice(("dead", "silent", "stopping"))):
                now += chooser.randint(3, 25)
                rows.append(
                    {
                        "record": "truth", "time_ns": now, "broker": broker, "life": life, "state": state,
                        "topics": ["t"] if chooser.random() < 0.8 else ["u"], "timeout_ms": 1,
                    }
                )  # fmt: skip
    return rows


def asked(chooser: random.Random) -> list[dict[str, Any]]:
    """Route look-ups and gets; some are never completed."""
    rows = []
    for op in range(chooser.randint(1, 8)):
        start = chooser.randint(12, 88)
        kind = chooser.choice(("route", "get"))
        rows.append(
            {
                "record": "invoke",
                "time_ns": start,
                "op": op,
                "client": "c",
                "kind": kind,
                "key": "t",
                "node": "n0",
                "probe": op % 2,
            }
        )
        if chooser.random() < 0.85:
            names = [{"name": name, "version": "1"} for name in chooser.sample(BROKERS, chooser.randint(0, 3))]
            rows.append(
                {
                    "record": "complete", "time_ns": start + chooser.randint(1, 15), "op": op, "node": "n0",
                    "outcome": chooser.choice(("ok", "ok", "ok", "fail", "indeterminate")),
                    "members": json.dumps(names) if kind == "route" else None, "value": chooser.choice((None, "v")),
                }
            )  # fmt: skip
    return rows


def standings(chooser: random.Random) -> list[dict[str, Any]]:
    return [
        {
            "record": "status", "time_ns": 10 + 4 * number, "node": f"n{number % 2}", "answered": chooser.random() < 0.8,
            "role": chooser.choice(("leader", "follower")),
        }
        for number in range(chooser.randint(2, 15))
    ]  # fmt: skip


PHASES = [("settle", 0), ("steady", 10), ("fault", 40), ("heal", 60), ("final", 95), ("end", 200)]


@pytest.fixture(scope="module")
def drawn() -> dict[str, list[dict[str, Any]]]:
    found = {}
    for seed in range(RUN_COUNT):
        chooser = random.Random(seed)
        marks = [{"record": "phase", "phase": phase, "time_ns": at} for phase, at in PHASES]
        sides = [{"record": "fault", "time_ns": 40, "edge": "start", "sides": [["n1", "n2"], ["n0"]]}]
        sides.append({"record": "fault", "time_ns": 60, "edge": "end", "sides": [["n0", "n1", "n2"]]})
        found[f"run-{seed}"] = [*marks, *sides, *looks(chooser), *facts(chooser), *asked(chooser), *standings(chooser)]
    return found


@pytest.fixture(scope="module")
def records(spark: SparkSession, drawn: dict[str, list[dict[str, Any]]]) -> DataFrame:
    rows = [{"run": run, "mode": "ap", **row} for run, mine in drawn.items() for row in mine]
    return spark.createDataFrame(rows, _STORED).repartition(4).cache()


@pytest.fixture(scope="module")
def runs(spark: SparkSession, drawn: dict[str, list[dict[str, Any]]]) -> DataFrame:
    same = {"mode": "ap", "scenario": "s", "suite": "", "seed": 1, "nodes": 3, "read_consistency": "local", "judged_as": "ap"}
    limits = {"observe_interval_ms": 0, "deadline_ms": 0, "fault_s": 0.0, "clock_uncertainty_ns": 0}
    return spark.createDataFrame([{"run": run, **same, **limits} for run in drawn], RUNS)


def by_run(table: DataFrame) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in table.collect():
        found[row["run"]].append(row.asDict())
    return found


def test_segments_and_episodes(records: DataFrame, runs: DataFrame, drawn: dict[str, list[dict[str, Any]]]) -> None:
    segments = observations.segments(observations.states(records), runs).cache()
    found = by_run(segments)
    episodes = by_run(observations.episodes(segments))
    diverged = 0
    for run, rows in drawn.items():
        changes = known_states(rows)
        expected = {moment: value for moment in range(120) if (value := divergence_at(changes, moment)) is not None}
        values = {
            moment: (segment["divergence"], segment["nodes_known"])
            for segment in found[run]
            for moment in range(segment["start_ns"], segment["end_ns"])
        }
        assert values == expected, run
        apart = {moment for moment, (value, _) in expected.items() if value > 0}
        assert {m for e in episodes[run] for m in range(e["start_ns"], e["end_ns"])} == apart, run
        assert len(episodes[run]) == len([moment for moment in apart if moment - 1 not in apart]), run
        area = sum(value for value, _ in expected.values()) / 1e9
        assert sum(episode["area_s"] for episode in episodes[run]) == pytest.approx(area), run
        diverged += bool(apart)
    assert diverged > RUN_COUNT // 2


def serves_at(rows: list[dict[str, Any]], broker: str, moment: int) -> str | None:
    """must, may or None: what broker is to topic t at this moment."""
    mine = [row for row in rows if row["record"] == "truth" and row["broker"] == broker]
    now = [number for number, row in enumerate(mine) if row["time_ns"] <= moment]
    if not now:
        return None
    state, before = mine[now[-1]], mine[now[-1] - 1] if now[-1] else None
    old = before is not None and "t" in before["topics"]
    if state["state"] in truth.SERVING:
        return "must" if "t" in state["topics"] else None
    return "may" if state["state"] in truth.BETWEEN and ("t" in state["topics"] or old) else None


def changing(rows: list[dict[str, Any]], op: dict[str, Any]) -> set[str]:
    """Brokers that began to serve during the look-up and had the topic just before: their old answer may still be right."""
    found = set()
    for broker in BROKERS:
        mine = [row for row in rows if row["record"] == "truth" and row["broker"] == broker]
        for before, row in pairwise(mine):
            if row["state"] in truth.SERVING and op["start_ns"] <= row["time_ns"] < op["end_ns"] and "t" in before["topics"]:
                found.add(broker)
    return found


def test_look_ups_against_truth(records: DataFrame, runs: DataFrame, drawn: dict[str, list[dict[str, Any]]]) -> None:
    spans = timeline.phases(records)
    done = operations.operations(records, runs, spans, timeline.sides(records, runs)).cache()
    found = by_run(truth.look_ups(done, truth.truth_spans(records)))
    answered = by_run(done)
    compared = 0
    for run, rows in drawn.items():
        expected = {}
        for op in answered[run]:
            assert op["side"] == ("minority" if 40 <= op["start_ns"] < 60 else "whole"), run
            assert op["phase"] == [phase for phase, at in PHASES if at <= op["start_ns"]][-1]
            if op["kind"] != "route" or op["outcome"] != "ok" or op["phase"] == "final":
                continue
            names = {member["name"] for member in json.loads(op["members"])}
            moments = range(op["start_ns"], op["end_ns"])
            must = {b for b in BROKERS if all(serves_at(rows, b, moment) == "must" for moment in moments)}
            may = {b for b in BROKERS if any(serves_at(rows, b, moment) for moment in moments)}
            expected[op["op"]] = (len(must), len(names & must), len(names), len(names - may - changing(rows, op)))
        assert {row["op"]: (row["must"], row["found"], row["answered"], row["ghosts"]) for row in found[run]} == expected, run
        compared += len(expected)
    assert compared > RUN_COUNT


def test_yield_and_probes(records: DataFrame, runs: DataFrame, drawn: dict[str, list[dict[str, Any]]]) -> None:
    done = operations.operations(records, runs, timeline.phases(records), timeline.sides(records, runs)).cache()
    figures = by_run(
        metrics.of_operations(done, runs).where("level = 'all' and phase = 'all' and side = 'all' and metric = 'yield'")
    )
    for run, rows in drawn.items():
        outcomes = {row["op"]: row["outcome"] for row in rows if row["record"] == "complete"}
        ops = [row["op"] for row in rows if row["record"] == "invoke"]
        good = sum(outcomes.get(op) == "ok" for op in ops)
        assert [(row["value"], row["count"]) for row in figures[run]] == [(pytest.approx(good / len(ops)), len(ops))], run


def test_leaders(records: DataFrame, drawn: dict[str, list[dict[str, Any]]]) -> None:
    found = by_run(leaders.leader_spans(records))
    for run, rows in drawn.items():
        samples = [row for row in rows if row["record"] == "status"]
        expected = {}
        last = max(row["time_ns"] for row in samples)
        for moment in range(10, last):
            count = 0
            for node in ("n0", "n1"):
                mine = [row for row in samples if row["node"] == node and row["time_ns"] <= moment]
                later = [row for row in samples if row["node"] == node and row["time_ns"] > moment]
                count += bool(mine and later and mine[-1]["role"] == "leader" and mine[-1]["answered"])
            expected[moment] = count
        values = {moment: span["leaders"] for span in found[run] for moment in range(span["start_ns"], span["end_ns"])}
        assert values == expected, run

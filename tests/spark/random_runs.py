"""Small random runs as a recorder writes them: few records of every kind and short times, so that all coincidences occur."""

import json
import random
from typing import Any

UNIT_NS = 100_000_000
NODES = ("n0", "n1", "n2")
INTERVAL, DEADLINE = 2, 8
"""Units between two looks at a node; deadline of an operation."""
STANDSTILL, SAMPLE_HOLDS = 30, 15
"""How long an observation, and a sample of a node's standing, is valid at most: 3 s, 1.5 s."""
FINAL = 110

Row = dict[str, Any]


def random_run(seed: int) -> list[Row]:
    """The records of one run, times in units."""
    chooser = random.Random(seed)
    faulty = chooser.random() < 0.9
    marks = {"settle": 0, "steady": 10, **({"fault": 40, "heal": 70} if faulty else {}), "final": FINAL, "end": 200}
    rows: list[Row] = [{"record": "phase", "phase": phase, "time_ns": at} for phase, at in marks.items()]
    parts = [_looks, _lives, _drops, _values, _registrations, _sends]
    for part in [*parts, *([_faults] if faulty else []), *([_standings] if seed % 2 else [])]:
        if chooser.random() < 0.85:
            rows += part(chooser)
    numbers: dict[int, int] = {}
    for row in sorted((row for row in rows if row["record"] == "invoke"), key=lambda row: int(row["time_ns"])):
        numbers[row["op"]] = len(numbers) + 1
    for row in rows:
        if "op" in row:
            row["op"] = numbers[row["op"]]
    chooser.shuffle(rows)
    return sorted(rows, key=lambda row: int(row["time_ns"]))


def own_level(seed: int) -> str:
    """The level of reads that name none."""
    return "linearizable" if seed % 2 else "local"


def _faults(chooser: random.Random) -> list[Row]:
    """Faults, one after the other. Each edge lists the nodes that can still communicate."""
    rows, whole = [], [list(NODES)]
    moments = sorted(chooser.sample(range(40, 71), chooser.choice((2, 2, 3, 4))))
    for number, at in enumerate(moments):
        nodes = list(NODES)
        chooser.shuffle(nodes)
        sides = chooser.choice((whole, [nodes[:2], nodes[2:]], [nodes[:2], nodes[2:]], [[node] for node in nodes]))
        last = number == len(moments) - 1
        edge = "end" if last or chooser.random() < 0.3 else "start"
        voters = chooser.choice((None, whole, whole, [nodes[:2]], [nodes[:2], nodes]))
        rows.append({"record": "fault", "time_ns": at, "edge": edge, "sides": whole if last else sides, "voters": voters})
    return rows


def _looks(chooser: random.Random) -> list[Row]:
    """Looks at the nodes in turn. The nodes list registrations a/0, a/1 (one group) and b/0."""
    rows, members = [], dict.fromkeys(NODES, "[]")
    at = chooser.choice((1, 10))
    pace, changes = chooser.choice((3, 1)), chooser.choice((0.5, 0.1))
    agree, together = chooser.choice((FINAL, chooser.randint(45, 100))), _members(chooser, ["a/0", "b/0"], 2)
    for look in range(chooser.randint(3, 40 if pace > 1 else 90)):
        node, answered = NODES[look % 3], chooser.random() < 0.9
        at += chooser.choice((1, *[pace] * 8, STANDSTILL + 2 if chooser.random() < 0.2 else 2))
        if at >= agree:
            members[node] = together
        elif chooser.random() < changes:
            names = chooser.sample(("a/0", "a/1", "b/0"), chooser.randint(0, 3))
            members[node] = _members(chooser, names, 2)
        same = {"record": "observe", "time_ns": at, "asked_ns": at - 1, "node": node, "key": "brokers"}
        rows.append({**same, "answered": answered, "members": members[node] if answered else None})
    return rows


def _members(chooser: random.Random, names: list[str], versions: int) -> str:
    return json.dumps([{"name": name, "version": str(chooser.randint(1, versions))} for name in sorted(names)])


def _lives(chooser: random.Random) -> list[Row]:
    """Brokers that are observed, looked up and dropped, but not judged by M1 to M10: they never register on record."""
    rows: list[Row] = []
    for broker in ("a/0", "a/1", "b/0"):
        now = 0
        for life in range(1, chooser.randint(1, 3)):
            alive = ("serving", *chooser.choice(((), (), ("exposed",), ("exposed", "safe"))))
            for state in ("starting", *alive, *chooser.choice((("dead",), ("silent",), ("stopping", "stopped")))):
                now += chooser.randint(2, 20)
                topics = ["t"] if chooser.random() < 0.8 else ["u"]
                rows.append(_truth(now, broker, life, state, topics, None))
    return rows


def _truth(at: int, broker: str, life: int, state: str, topics: list[str], version: str | None) -> Row:
    return {
        "record": "truth", "time_ns": at, "broker": broker, "life": life, "state": state, "topics": topics, "version": version,
        "writable": True, "timeout_ms": 1,
    }  # fmt: skip  # items grouped by line


def _drops(chooser: random.Random) -> list[Row]:
    moments = sorted(chooser.sample(range(5, FINAL), chooser.randint(0, 14)))
    return [
        {
            "record": "expiry",
            "time_ns": at,
            "node": chooser.choice(NODES),
            "broker": chooser.choice(("a/0", "a/0", "b/0")),
            "cause": "expired",
        }
        for at in moments
    ]


def _values(chooser: random.Random) -> list[Row]:
    """Operations on two keys: one key is only put, the other is also deleted."""
    rows: list[Row] = []
    op, written = 1000, dict[str, list[str | None]](k=[None], x=[None])
    for client in range(chooser.randint(1, 3)):
        now = chooser.choice((2, 8, 12, 30, 60))
        for _ in range(chooser.randint(1, 5)):
            op += 1
            start, now = now + 1, now + 1 + chooser.randint(1, 12)
            key = chooser.choice("kkx")
            kind = chooser.choice(("put", "put", "get", "get", "get", "delete" if key == "x" else "put"))
            if kind != "get":
                written[key].append(str(op) if kind == "put" else None)
            rows += _operation(chooser, op, f"c{client}", kind, key, start, now, str(op) if kind == "put" else None)
            now += chooser.choice((0, 0, 3, 20))
    for key in "kx" if chooser.random() < 0.9 else "":
        op += 1
        rows += _operation(chooser, op, "final", "get", key, FINAL + 10, FINAL + chooser.randint(12, 30), None)
    for row in rows:
        if row["record"] == "complete" and row.pop("kind") == "get" and row["outcome"] == "ok":
            row["value"] = chooser.choice([*written[row["key"]], *written[row["key"]], "nobody's"][-8:])
        row.pop("key" if row["record"] == "complete" else "", None)
    return rows


def _operation(
    chooser: random.Random, op: int, client: str, kind: str, key: str, start: int, end: int, value: str | None
) -> list[Row]:
    """An invocation and, in most cases, its completion. The caller removes ``kind`` and ``key`` from the completion."""
    read = kind in ("get", "route")
    node = chooser.choice((None, *NODES))
    topics = None if kind in ("put", "delete", "get", "route") else ["t", "u"] if chooser.random() < 0.3 else ["t"]
    rows: list[Row] = [
        {
            "record": "invoke", "time_ns": start, "op": op, "client": client, "kind": kind, "key": key, "value": value,
            "node": node, "level": chooser.choice((None, None, "stale")) if read else None,
            "probe": chooser.choice((None, 1, 2)) if read else None, "topics": topics,
        }
    ]  # fmt: skip  # items grouped by line
    if chooser.random() < 0.92:
        outcome = chooser.choice(("ok", "ok", "ok", "ok", "fail", "indeterminate"))
        rows.append(
            {
                "record": "complete", "time_ns": end, "op": op, "outcome": outcome,
                "node": node or chooser.choice((*NODES, None)), "kind": kind, "key": key,
            }
        )  # fmt: skip  # items grouped by line
    return rows


def _registrations(chooser: random.Random) -> list[Row]:
    """Brokers d/0 and e/0, which are judged, and the pair p/0, p/1, which is not; and look-ups of topics t and u."""
    rows: list[Row] = []
    op, written = 2000, {name: ["1"] for name in ("d/0", "e/0", "p/0", "p/1")}
    for broker in ("d/0", "e/0", *(("p/0", "p/1") if chooser.random() < 0.2 else ())):
        now = 1
        for life in range(1, chooser.randint(2, 3)):
            rows.append(_truth(now, broker, life, "starting", ["t"], None))
            for _ in range(chooser.randint(1, 3)):
                op, start, now = op + 1, now + 1, now + 1 + chooser.randint(1, 9)
                written[broker].append(str(op))
                rows += _operation(chooser, op, broker, "register", broker, start, now, str(op))
                if chooser.random() < 0.3:
                    op += 1
                    rows += _operation(chooser, op, broker, "register-copy", broker, start + 1, now, written[broker][-1])
                now += chooser.choice((0, 5, 25))
            state = chooser.choice(("serving", "serving", "serving", "exposed")) if chooser.random() < 0.4 else "serving"
            rows.append(_truth(now, broker, life, state, ["t"], written[broker][-1]))
            now += chooser.randint(1, 20)
            end = chooser.choice(("serving", "dead", "silent", "stopping"))
            if end == "serving":
                break
            rows.append(_truth(now, broker, life, end, chooser.choice((["t"], ["t", "u"])), written[broker][-1]))
            if end == "stopping":
                op, start, now = op + 1, now + 1, now + chooser.randint(2, 9)
                rows += _operation(chooser, op, broker, "unregister", broker, start, now, None)
            now += chooser.randint(1, 10)
    for client in range(chooser.randint(1, 2)):
        now = chooser.choice((5, 12, 30))
        for _ in range(chooser.randint(1, 4)):
            op, start, now = op + 1, now + 1, now + chooser.randint(2, 20)
            rows += _operation(chooser, op, f"r{client}", "route", chooser.choice("tttu"), start, now, None)
            now += chooser.choice((0, 0, 10, 30))
    if chooser.random() < 0.9:
        rows += _operation(chooser, op + 1, "final", "route", "t", FINAL + 12, FINAL + 20, None)
    for row in rows:
        if row["record"] == "complete":
            row.pop("key")
            if row.pop("kind") == "route":
                seen = [name for name in ("a/0", "a/1", "d/0", "e/0", "p/0") if chooser.random() < 0.6]
                versions = {name: chooser.choice(written.get(name, ["1"])[-3:]) for name in seen}
                row["members"] = json.dumps([{"name": name, "version": version} for name, version in versions.items()])
    return rows


def _sends(chooser: random.Random) -> list[Row]:
    return [
        {
            "record": "send", "time_ns": chooser.randint(5, 130), "client": "s", "topic": "t",
            "broker": chooser.choice((None, "a/0", "b/0")), "reachable": chooser.random() < 0.7,
        }
        for _ in range(chooser.randint(1, 6))
    ]  # fmt: skip  # items grouped by line


def _standings(chooser: random.Random) -> list[Row]:
    """Status samples of two nodes. Sometimes a node has no sample for a long time."""
    rows: list[Row] = []
    at = 10
    for number in range(chooser.randint(2, 15)):
        at += chooser.choice((1, 4, 4, 4, SAMPLE_HOLDS))
        role = chooser.choice(("leader", "follower"))
        answered = chooser.random() < 0.8
        same = {"record": "status", "time_ns": at, "node": f"n{number % 2}"}
        rows.append({**same, "answered": answered, "role": role if answered else None})
    return [*rows, *({"record": "election", "time_ns": 20, "node": "n1", "term": chooser.randint(1, 3)} for _ in range(2))]

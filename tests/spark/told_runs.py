"""Runs written by hand, each with one case that is easily judged wrong. They are judged together with the random ones."""

import json

from tests.spark.random_runs import FINAL, Row

PHASES: list[Row] = [
    {"record": "phase", "phase": phase, "time_ns": at}
    for phase, at in (("settle", 0), ("steady", 10), ("fault", 40), ("heal", 70), ("final", FINAL), ("end", 200))
]
NUMBERS = iter(range(1, 10_000))


def did(
    kind: str,
    key: str,
    start: int,
    end: int,
    said: str | dict[str, str] | None = None,
    outcome: str = "ok",
    client: str = "c",
    probe: int | None = None,
) -> list[Row]:
    """An operation. ``said``: the value written, read, or answered for brokers (their versions by name)."""
    op = next(NUMBERS)
    broker = kind in ("register", "unregister", "register-copy")
    asked = {"record": "invoke", "time_ns": start, "op": op, "client": client, "kind": kind, "key": key, "node": "n0"}
    told: Row = {"record": "complete", "time_ns": end, "op": op, "outcome": outcome, "node": "n0"}
    if isinstance(said, dict):
        told["members"] = json.dumps([{"name": name, "version": version} for name, version in said.items()])
    written = said if kind in ("put", "register", "register-copy") else None
    told["value"] = said if kind == "get" else None
    return [{**asked, "value": written, "level": None, "probe": probe, "topics": ["t"] if broker else None}, told]


def was(broker: str, at: int, state: str, version: str | None = None, life: int = 1) -> Row:
    """The state of a broker of topic t."""
    same = {"record": "truth", "time_ns": at, "broker": broker, "life": life, "state": state, "version": version}
    return {**same, "topics": ["t"], "writable": True, "timeout_ms": 1}


def seen(node: str, at: int, *members: str, answered: bool = True) -> Row:
    """A look at a node: members as name@version."""
    pairs = [member.split("@") for member in members]
    told = json.dumps([{"name": name, "version": version} for name, version in pairs]) if answered else None
    same = {"record": "observe", "time_ns": at, "asked_ns": at - 1, "node": node, "key": "brokers"}
    return {**same, "answered": answered, "members": told}


def looked(*changes: tuple[str, int, tuple[str, ...] | None], until: int = 100) -> list[Row]:
    """Looks at n0 and n1 in turn from 10 on. A change gives its node's answer from then on; None: no answer."""
    rows = []
    answers: dict[str, tuple[str, ...] | None] = {"n0": ("a/0@1",), "n1": ("a/0@1",)}
    for at in range(10, until):
        answers.update({node: answer for node, moment, answer in changes if moment == at})
        node = f"n{at % 2}"
        answer = answers[node]
        rows.append(seen(node, at, *(answer or ()), answered=answer is not None))
    return rows


OLD, NEW = ("a/0@1",), ("a/0@2",)

LIVING = [*did("register", "d/0", 1, 2, "1", client="d/0"), was("d/0", 2, "serving", "1")]
"""A broker that registered while the cluster started."""
DYING = [*LIVING, was("d/0", 30, "dead", "1")]

TOLD: dict[str, list[Row]] = {
    # Observations
    "a silent node": looked(("n1", 30, None), ("n0", 31, NEW)),
    "a silent node that comes back": looked(("n1", 30, None), ("n0", 31, NEW), ("n1", 51, OLD), ("n1", 61, NEW)),
    "a short difference": looked(("n0", 30, NEW), ("n1", 33, NEW)),
    "a longer difference": looked(("n0", 30, NEW), ("n1", 35, NEW)),
    "a difference to the end": looked(("n0", 30, NEW)),
    "a difference after agreement": looked(("n0", 60, NEW), ("n1", 75, NEW), ("n0", 90, OLD), ("n1", 97, OLD), until=108),
    "a difference and a late repair": [
        *looked(("n0", 60, NEW), ("n1", 75, NEW), ("n0", 90, OLD), ("n1", 97, OLD)),
        {"record": "fault", "time_ns": 45, "edge": "start", "sides": [["n0"], ["n1", "n2"]]},
        {"record": "fault", "time_ns": 85, "edge": "end", "sides": [["n0", "n1", "n2"]]},
    ],
    "nothing observed": [],
    "a probe that pauses": [
        *(row for at in range(11, 110, 10) for row in did("get", "k", at - 1, at)),
        *(row for at in (12, 100) for row in did("get", "k", at, at + 1, probe=at)),
    ],
    # Quiescent reads
    "no final read": [*did("put", "k", 12, 13, "1"), *did("put", "k", 14, 15, "2"), *did("get", "k", 16, 17, "1")],
    "a final read that failed": [*did("put", "k", 12, 13, "1"), *did("get", "k", FINAL + 1, FINAL + 2, None, "fail")],
    "a final read of one key": [
        *did("put", "k", 12, 13, "1"), *did("put", "x", 14, 15, "2"), *did("get", "k", FINAL + 1, FINAL + 2, "1"),
    ],
    "a lost write": [
        *did("put", "k", 12, 13, "1"), *did("put", "k", 14, 15, "2"), *did("get", "k", FINAL + 1, FINAL + 2, "1"),
    ],
    "a write of unknown outcome": [
        *did("put", "k", 12, 13, "1"), *did("put", "k", 14, 15, "2", "indeterminate"),
        *did("get", "k", FINAL + 1, FINAL + 2, "1"),
    ],
    "a deleted key that is back": [
        *did("put", "k", 12, 13, "1"), *did("delete", "k", 14, 15), *did("get", "k", FINAL + 1, FINAL + 2, "1"),
    ],
    # Staleness
    "two missed writes": [
        *did("put", "k", 12, 13, "1"), *did("put", "k", 15, 16, "2"), *did("put", "k", 30, 31, "3"),
        *did("get", "k", 33, 34, "1"),
    ],
    "written while the cluster started": [*did("put", "k", 2, 3, "1"), *did("get", "k", 15, 16, "1")],
    "a value that nobody wrote": [*did("put", "k", 12, 13, "1"), *did("get", "k", 30, 31, "2")],
    # Registrations
    "seen": [*LIVING, *did("route", "t", 20, 21, {"d/0": "1"})],
    "missing though alive": [*LIVING, *did("route", "t", 20, 21, {})],
    "removed after its death": [*DYING, *did("route", "t", 35, 36, {"d/0": "1"}), *did("route", "t", 50, 51, {})],
    "removed and back": [*DYING, *did("route", "t", 50, 51, {}), *did("route", "t", 60, 61, {"d/0": "1"})],
    "brought back by a late copy": [
        *DYING, *did("register-copy", "d/0", 29, 45, "1", "indeterminate", "d/0"), *did("route", "t", 50, 51, {}),
        *did("route", "t", 60, 61, {"d/0": "1"}), *did("route", "t", 65, 66, {}),
    ],
    "a copy of an overtaken version": [
        *LIVING, *did("register-copy", "d/0", 10, 45, "1", "indeterminate", "d/0"), *did("register", "d/0", 12, 13, "2"),
        was("d/0", 30, "dead", "2"), *did("route", "t", 50, 51, {}), *did("route", "t", 60, 61, {"d/0": "1"}),
    ],
    "a copy that was answered": [
        *DYING, *did("register-copy", "d/0", 20, 21, "1", "ok", "d/0"), *did("route", "t", 50, 51, {}),
        *did("route", "t", 60, 61, {"d/0": "1"}),
    ],
    "too many late copies": [
        *DYING, *(row for at in range(15, 22) for row in did("register-copy", "d/0", at, 45, "1", "indeterminate", "d/0")),
        *did("route", "t", 50, 51, {}),
    ],
    "exposed once": [*LIVING, was("d/0", 20, "exposed", "1"), was("d/0", 22, "safe", "1"), *did("route", "t", 25, 26, {})],
    "a group of two": [
        *LIVING, *did("register", "d/1", 1, 2, "1", client="d/1"), was("d/1", 2, "serving", "1"), *did("route", "t", 25, 26, {}),
    ],
    "an old version": [
        *LIVING, *did("register", "d/0", 12, 13, "2"), *did("register", "d/0", 14, 16, "3"),
        *did("route", "t", 20, 21, {"d/0": "1"}),
    ],
    "one of two is old": [
        *LIVING, *did("register", "e/0", 3, 4, "7", client="e/0"), was("e/0", 4, "serving", "7"),
        *did("register", "d/0", 12, 13, "2"), *did("register", "e/0", 14, 16, "8"),
        *did("route", "t", 20, 21, {"d/0": "1", "e/0": "8"}),
        *did("route", "t", 30, 31, {"d/0": "1", "e/0": "7"}),
    ],
    "registered in vain": [*LIVING, *did("register", "d/0", 12, 13, "2", "fail"), *did("route", "t", 20, 21, {"d/0": "2"})],
    "one of two is nobody's": [
        *LIVING, *did("register", "e/0", 3, 4, "7", "indeterminate", "e/0"), was("e/0", 4, "serving", "7"),
        *did("route", "t", 20, 21, {"d/0": "1", "e/0": "9"}),
    ],
    "unregistered": [
        *LIVING, was("d/0", 18, "stopping", "1"), *did("unregister", "d/0", 19, 20), *did("route", "t", 25, 26, {}),
    ],
    "unregistered and back": [
        *LIVING, was("d/0", 18, "stopping", "1"), *did("unregister", "d/0", 19, 20),
        *did("route", "t", FINAL + 1, FINAL + 2, {"d/0": "1"}),
    ],
    # Failure detection
    "dropped, listed and dropped again": [
        was("a/0", 12, "serving"), was("a/0", 40, "dead"), *looked(("n1", 50, ()), ("n1", 60, OLD), ("n1", 80, ())),
        *({"record": "expiry", "time_ns": at, "node": "n1", "broker": "a/0", "cause": "expired"} for at in (50, 80)),
    ],
    "a mistake that death made right": [
        was("a/0", 12, "serving"), was("a/0", 40, "dead"), was("a/0", 60, "starting", life=2), was("a/0", 62, "serving", life=2),
        *looked(("n1", 30, ()), ("n1", 64, OLD)),
        {"record": "expiry", "time_ns": 30, "node": "n1", "broker": "a/0", "cause": "expired"},
        {"record": "expiry", "time_ns": 90, "node": "n1", "broker": "a/0", "cause": "expired"},
    ],
    # Leaders
    "an observer that stood still": [
        {"record": "status", "time_ns": at, "node": node, "answered": True, "role": "leader" if node == "n0" else "follower"}
        for at in (12, 20, 60, 68) for node in ("n0", "n1")
    ],
}  # fmt: skip  # items grouped by line


def told_run(name: str) -> list[Row]:
    return sorted([*PHASES, *TOLD[name]], key=lambda row: int(row["time_ns"]))

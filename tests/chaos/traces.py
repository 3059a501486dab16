"""Traces for the checkers, written by hand or generated at random. Times are milliseconds after the start."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from replicated_namesrv.chaos.checks.story import READS, Story
from replicated_namesrv.chaos.records import (
    Complete,
    Election,
    End,
    ExpiryRecord,
    FaultRecord,
    Header,
    Invoke,
    Member,
    Observe,
    Phase,
    RecordedTrace,
    Status,
    TraceRecord,
    Truth,
)
from replicated_namesrv.chaos.scenario import ChaosScenario

NODES = ("n1", "n2", "n3")
PHASES = {"settle": 0, "steady": 1_000, "fault": 3_000, "heal": 8_000, "final": 12_000, "end": 13_000}
BROKERS = {
    "g1/0": ["t"],
    "g2/0": ["t"],
    "g3/0": ["t"],
    "g4/0": ["t-fickle"],
    "pair/0": ["t"],
    "deputy/0": [],
    "deputy/1": [],
    "sample/0": [],
}
MS = 1_000_000


class Script:
    """A run written line by line. ``story`` is its form for the checkers."""

    def __init__(self, mode: str = "cp") -> None:
        self.mode = mode
        self.records: list[TraceRecord] = [Phase(at * MS, phase) for phase, at in PHASES.items()]
        self._op = 0

    def op(
        self,
        begin: float,
        end: float | None,
        client: str,
        kind: str,
        key: str,
        value: str | None = None,
        *,
        outcome: str | None = None,
        node: str = "n1",
        members: Sequence[tuple[str, int | str]] | None = None,
        probe: int | None = None,
        level: str | None = None,
    ) -> "Script":
        """One operation; ``end`` None: its client did not learn the outcome. For reads ``value`` or ``members`` is the answer."""
        self._op += 1
        read = kind in READS
        topics = BROKERS.get(key) if kind.startswith(("register", "unregister")) else None
        self.records.append(Invoke(_ns(begin), self._op, client, kind, key, None if read else value, None, level, probe, topics))
        if end is not None:
            answer = None if members is None else [Member(name, str(version)) for name, version in members]
            self.records.append(Complete(_ns(end), self._op, outcome or "ok", node, value if read else None, answer, None))
        return self

    def at_the_end(self, kind: str, key: str, value: str | None = None, *, members: Sequence[tuple[str, int]] = ()) -> "Script":
        """Every node is asked once more in ``final``, and answers the same."""
        for node in NODES:
            self.op(12_100, 12_110, "probe", kind, key, value, node=node, members=members if kind == "route" else None)
        return self

    def saw_kv(self, at: float, node: str, members: Sequence[tuple[str, str]], revision: int) -> "Script":
        """An observation of KV entries."""
        listed = [Member(*member) for member in members]
        self.records.append(Observe(_ns(at), _ns(at) - MS, node, "kv", True, listed, revision, "change"))
        return self

    def truth(self, at: float, broker: str, state: str, *, life: int = 1, version: int = 1, timeout_ms: int = 1_000) -> "Script":
        self.records.append(Truth(_ns(at), broker, life, state, True, str(version), BROKERS[broker], timeout_ms))
        return self

    def saw(self, at: float, node: str, members: Sequence[tuple[str, int]] | None, revision: int | None = None) -> "Script":
        """An observation of registrations; None: no answer."""
        listed = None if members is None else [Member(name, str(version)) for name, version in members]
        self.records.append(Observe(_ns(at), _ns(at) - MS, node, "brokers", members is not None, listed, revision, "change"))
        return self

    def stands(self, at: float, node: str, index: int, digest: str) -> "Script":
        self.records.append(
            Status(
                _ns(at), _ns(at), node, "running", True, True, "follower", 1, "n1", index, index, digest, index, False, "change"
            )
        )
        return self

    def fault(
        self,
        begin: float,
        end: float,
        links: Iterable[str] = (),
        sides: Sequence[Sequence[str]] = (NODES,),
        variant: str | None = "silent",
        *,
        name: str = "isolate",
        node: str = "n1",
    ) -> "Script":
        shown = [list(side) for side in sides]
        self.records.append(FaultRecord(_ns(begin), 1, "start", _ns(begin), name, variant, [node], list(links), shown))
        self.records.append(FaultRecord(_ns(end), 1, "end", _ns(end), name, variant, [node], list(links), [list(NODES)]))
        return self

    def plus(self, *records: TraceRecord) -> "Script":
        self.records += records
        return self

    def elected(self, at: float, node: str) -> "Script":
        self.records.append(Election(_ns(at), node, 2))
        return self

    def dropped(self, at: float, broker: str, node: str = "n1", revision: int = 5, cause: str = "expired") -> "Script":
        self.records.append(ExpiryRecord(_ns(at), node, broker, cause, revision))
        return self

    def slowed(self, slowdown: float) -> "Script":
        """Other load slowed the processes of the run in each phase."""
        self.records = [replace(one, slowdown=slowdown) if isinstance(one, Phase) else one for one in self.records]
        return self

    def busy(self, client: str, begin: float, end: float, every: float = 100.0) -> "Script":
        """A client that looks up a topic without brokers, over and over, and gets its answer at once."""
        at = begin
        while at < end:
            self.op(at, at + 1, client, "route", "idle", members=[])
            at += every
        return self

    @property
    def story(self) -> Story:
        records = sorted(self.records, key=lambda record: record.time_ns)
        whole = [Header(0, 1, "by hand", 0), *records, End(20_000 * MS, len(records) + 1)]
        written = {one.key for one in records if isinstance(one, Invoke) and one.kind in ("put", "delete")}
        return Story(RecordedTrace(whole, 0, []), manifest(self.mode) | {"kv_keys": sorted(written)})


def _ns(at_ms: float) -> int:
    return int(at_ms * MS)


def manifest(mode: str) -> dict[str, Any]:
    """The fields of a manifest that the checkers use."""
    kinds = {"c1": "failover", "c2": "failover", "probe": "probe"}
    return {
        "mode": mode,
        "judged_as": mode,
        "observe_interval_ms": 250,
        "sets_settings": True,
        "kv_keys": [],
        "topics": ["t"],
        "settings": ["scanNotActiveBrokerInterval=500"],
        "nodes": [{"node": node} for node in NODES],
        "clients": [{"client": client, "kind": kind, "node": None} for client, kind in kinds.items()],
        "brokers": [{"broker": broker, "topics": topics, "timeout_ms": 1_000} for broker, topics in BROKERS.items()],
        "scenario": ChaosScenario("by hand", "by hand").as_json(),
    }


def random_kv(rng: random.Random, operations: int) -> Script:
    """Clients of a correct register: every operation takes effect between its start and its end. Each client has one operation at
    a time."""
    script, effects = Script(), []
    free = {f"c{number}": 1_000.0 for number in (1, 2, 3)}
    for number in range(operations):
        client = rng.choice(sorted(free))
        begin = free[client] + rng.uniform(0, 20)
        end = free[client] = begin + rng.uniform(1, 60)
        kind = rng.choice(("put", "put", "get", "get", "delete"))
        effects.append((rng.uniform(begin, end), begin, end, client, kind, f"v{number}"))
    held: str | None = None
    answered = []
    for _, begin, end, client, kind, value in sorted(effects):
        held = value if kind == "put" else None if kind == "delete" else held
        answered.append((begin, end, client, kind, held))
    for begin, end, client, kind, value_or_answer in sorted(answered):
        script.op(begin, end, client, kind, "k", value_or_answer)
    return script

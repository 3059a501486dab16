"""Generates synthetic traces with figures that are known by construction.

Nodes are observed in turn, at fixed intervals. In both modes brokers re-register at random times. In ``ap`` a change reaches one
node at once and each other node after a random number of observations. In ``cp`` it reaches all nodes at the same moment, and
during the fault the minority does not answer. While the trace is written, code that is independent of the analysis computes the
expected figures exactly, in whole nanoseconds. They are stored in ``truth.json`` beside the trace.
"""

import json
import random
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TextIO

from replicated_namesrv.chaos.records import (
    MANIFEST_FILE,
    SCHEMA_VERSION,
    TRACE_FILE,
    End,
    FaultRecord,
    Header,
    Phase,
    TraceRecord,
    encode,
)
from replicated_namesrv.errors import NamesrvError

Fields = ParamSpec("Fields")

ROWS_MIN, ROWS_MAX = 10_000, 1_000_000_000
ASKED_NS = 1_000
"""Duration of one observation."""
LOOK_NS = 1_000_000
"""Time between two observations. Each node is observed every ``nodes * LOOK_NS`` nanoseconds."""
CHANGE_EVERY = 500
"""Average number of observations between two changes."""
QUIET_LOOKS = 3 * CHANGE_EVERY
"""Number of observations without changes at the end, so that the end of every episode is observed."""
BROKERS = 3
_LINES = 20_000


class GenerateError(NamesrvError):
    """A trace that cannot be generated. The text names the argument and the remedy."""


@dataclass(slots=True)
class _Known:
    """Sums that are updated while a trace is written."""

    observations: int = 0
    episodes: int = 0
    episodes_uncertain: int = 0
    divergent_ns: int = 0
    possible_ns: int = 0
    reads: int = 0
    stale_reads_judged: int = 0
    """Number of stale reads after ``settle`` and before ``final``."""
    writes: int = 0
    lost_writes: int = 0


def generate(rows: int, nodes: int, seed: int, out: Path, say: Callable[[str], None]) -> list[Path]:
    """Write one run of each mode, ``rows`` observations in both together. Raises GenerateError."""
    if not ROWS_MIN <= rows <= ROWS_MAX:
        raise GenerateError(f"--rows {rows}: {ROWS_MIN} to {ROWS_MAX} is expected")
    if nodes not in (3, 5):
        raise GenerateError(f"--nodes {nodes}: 3 or 5 is expected")
    folders = []
    for mode, count in (("ap", rows - rows // 2), ("cp", rows // 2)):
        folder = out / f"generated-{mode}-{seed}-{rows}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            raise GenerateError(f"{folder}: exists already; remove it or choose another --out") from None
        say(f"{folder}: {count:,} observations")
        _Generator(mode, count, nodes, seed, folder).write(say)
        folders.append(folder)
    return folders


class _Generator:
    def __init__(self, mode: str, rows: int, nodes: int, seed: int, folder: Path) -> None:
        self._mode, self._rows, self._folder, self._seed = mode, rows, folder, seed
        self._nodes = [f"n{number}" for number in range(1, nodes + 1)]
        self._chooser = random.Random(f"{mode} {seed}")
        self._known = _Known()
        self._now_ns = 1_000_000_000
        self._op = 0

    def write(self, say: Callable[[str], None]) -> None:
        run = self._folder.name
        self._write_json(MANIFEST_FILE, self._manifest(run))
        with (self._folder / TRACE_FILE).open("w", encoding="ascii", buffering=1 << 20) as trace:
            trace.write(self._record(Header, SCHEMA_VERSION, run, 0))
            trace.write(self._record(Phase, "settle"))
            self._looks(trace, say)
            self._final(trace)
            trace.write(self._record(Phase, "end"))
            trace.write(self._record(End, 0))
        self._write_json("truth.json", asdict(self._known))

    def _manifest(self, run: str) -> dict[str, Any]:
        return {
            "schema": SCHEMA_VERSION, "run": run, "suite": "generated", "seed": self._seed, "mode": self._mode,
            "scenario": {"name": "generated", "timing": {"fault_s": self._rows * LOOK_NS / 3e9}},
            "read_consistency": "linearizable" if self._mode == "cp" else "local", "judged_as": self._mode,
            "nodes": [{"node": node, "listen": "", "admin": ""} for node in self._nodes], "clients": [], "brokers": [],
            "topics": [], "kv_keys": [], "observe_interval_ms": len(self._nodes) * LOOK_NS // 1_000_000, "deadline_ms": 1000,
            "clock": {"source": "generated", "offsets": {}}, "versions": {}, "machine": {}, "started_wall_ns": 0,
        }  # fmt: skip  # items grouped by line

    def _write_json(self, name: str, value: Any) -> None:
        (self._folder / name).write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")

    def _record(self, kind: Callable[Concatenate[int, Fields], TraceRecord], *fields: Fields.args, **more: Fields.kwargs) -> str:
        """One encoded record, 1 us after the previous one."""
        self._now_ns += 1_000
        return encode(kind(self._now_ns, *fields, **more)).decode()

    def _looks(self, trace: TextIO, say: Callable[[str], None]) -> None:
        marks = {self._rows // 50: "steady", self._rows // 3: "fault", 2 * self._rows // 3: "heal"}
        minority = self._nodes[-(len(self._nodes) // 2) :]
        world = _World(self._mode, len(self._nodes), self._chooser)
        lines: list[str] = []
        told = time.monotonic()
        for look in range(self._rows):
            if look in marks:
                trace.writelines(lines)
                lines.clear()
                trace.write(self._record(Phase, marks[look]))
                if marks[look] in ("fault", "heal"):
                    trace.write(self._fault("start" if marks[look] == "fault" else "end", minority))
            self._now_ns += LOOK_NS
            number = look % len(self._nodes)
            cut = self._mode == "cp" and self._rows // 3 <= look < 2 * self._rows // 3 and self._nodes[number] in minority
            world.step(look, changes=look < self._rows - QUIET_LOOKS)
            lines.append(self._look(world, number, cut))
            if look % 1000 == 500:
                self._operations(lines, world, look)
            if len(lines) >= _LINES:
                trace.writelines(lines)
                lines.clear()
                if time.monotonic() - told > 2:
                    told = time.monotonic()
                    say(f"  {100 * look // self._rows} %")
        trace.writelines(lines)
        self._known.observations = self._rows
        certain, possible = world.apart()
        self._known.episodes, self._known.divergent_ns = len(certain), sum(end - start for start, end in certain)
        self._known.possible_ns = sum(end - start for start, end in possible)
        starts = [start for start, _ in certain]
        self._known.episodes_uncertain = sum(bisect_left(starts, start) == bisect_left(starts, end) for start, end in possible)

    def _look(self, world: "_World", number: int, cut: bool) -> str:
        now, node = self._now_ns, self._nodes[number]
        if cut:
            world.silent(number, now - ASKED_NS)
            return (
                f'{{"record":"observe","time_ns":{now},"asked_ns":{now - ASKED_NS},"node":"{node}","key":"brokers",'
                '"answered":false,"members":null,"revision":null,"reason":"cover"}\n'
            )
        version, members = world.seen(number, now)
        return (
            f'{{"record":"observe","time_ns":{now},"asked_ns":{now - ASKED_NS},"node":"{node}","key":"brokers","answered":true,'
            f'"members":[{members}],"revision":{version},"reason":"cover"}}\n'
        )

    def _fault(self, edge: str, minority: list[str]) -> str:
        majority = [node for node in self._nodes if node not in minority]
        sides = [majority, minority] if edge == "start" else [self._nodes]
        return self._record(FaultRecord, 0, edge, self._now_ns, "isolate", "held", minority, [], sides, [])

    def _operations(self, lines: list[str], world: "_World", look: int) -> None:
        """A put and a get. The get returns the value of that put; in AP every third get returns the previous value."""
        known = self._known
        known.writes += 1
        self._pair(lines, "put", f"v{known.writes}", "ok")
        stale = self._mode == "ap" and known.writes % 3 == 0
        known.reads += 1
        known.stale_reads_judged += stale and look >= self._rows // 50
        self._pair(lines, "get", f"v{known.writes - stale}", "ok")

    def _pair(self, lines: list[str], kind: str, value: str, outcome: str) -> None:
        self._op += 1
        self._now_ns += 2_000
        written = f'"{value}"' if kind == "put" else "null"
        lines.append(
            f'{{"record":"invoke","time_ns":{self._now_ns - 1_000},"op":{self._op},"client":"c1","kind":"{kind}","key":"k",'
            f'"value":{written},"node":"n1","level":null,"probe":null,"topics":null}}\n'
        )
        returned = f'"{value}"' if kind == "get" else "null"
        lines.append(
            f'{{"record":"complete","time_ns":{self._now_ns},"op":{self._op},"outcome":"{outcome}","node":"n1","value":{returned},'
            '"members":null,"error":null}\n'
        )

    def _final(self, trace: TextIO) -> None:
        """One read at the end. In AP this read misses the last write."""
        trace.write(self._record(Phase, "final"))
        lost = self._mode == "ap" and self._known.writes > 1
        self._known.lost_writes = int(lost)
        lines: list[str] = []
        self._pair(lines, "get", f"v{self._known.writes - lost}", "ok")
        trace.writelines(lines)


class _World:
    """The version at each node, and the versions that the looks show."""

    def __init__(self, mode: str, nodes: int, chooser: random.Random) -> None:
        self._mode, self._nodes, self._chooser = mode, nodes, chooser
        self._version = 0
        self._held = [0] * nodes
        self._arrivals: dict[int, list[int]] = {}
        self._seen: list[int | None] = [None] * nodes
        self._texts = {0: _members(0)}
        self._next = chooser.randrange(1, 2 * CHANGE_EVERY)
        self._is_apart = False
        self._series: list[list[list[_Shown]]] = [[] for _ in range(nodes)]
        """For each node, sequences of the versions that it showed one after the other without silence in between."""

    def step(self, look: int, changes: bool) -> None:
        """Apply the changes that are due before this observation.

        Changes do not overlap: the next change starts only after all nodes were observed with the previous one. So each episode
        belongs to one change, and at least two nodes differ during the whole episode."""
        for node in self._arrivals.pop(look, ()):
            self._held[node] = self._version
        if not changes or look < self._next or self._arrivals or self._is_apart:
            return
        self._next = look + self._chooser.randrange(1, 2 * CHANGE_EVERY)
        self._version += 1
        self._texts = {version: self._texts[version] for version in {*self._held, *(v for v in self._seen if v is not None)}}
        self._texts[self._version] = _members(self._version)
        if self._mode == "cp":
            self._held = [self._version] * self._nodes
            return
        first, *others = self._chooser.sample(range(self._nodes), self._nodes)
        self._held[first] = self._version
        for node in others:
            self._arrivals.setdefault(look + self._chooser.randrange(1, CHANGE_EVERY), []).append(node)

    def seen(self, node: int, now_ns: int) -> tuple[int, str]:
        """A look at a node that answers: its version and its members as JSON text."""
        version = self._held[node]
        self._note(node, version, now_ns)
        return version, self._texts[version]

    def silent(self, node: int, asked_ns: int) -> None:
        """A look at a node that does not answer."""
        self._note(node, None, asked_ns)

    def _note(self, node: int, version: int | None, at_ns: int) -> None:
        series = self._series[node]
        if version is None:
            if series and series[-1]:
                series.append([])
        elif not series or not series[-1] or series[-1][-1].version != version:
            series[-1:] = [[*(series[-1] if series else []), _Shown(version, at_ns, at_ns - ASKED_NS)]]
        else:
            series[-1][-1].last_asked_ns = at_ns - ASKED_NS
        self._seen[node] = version
        self._is_apart = len({seen for seen in self._seen if seen is not None}) > 1

    def apart(self) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """When the nodes certainly differed, and when they possibly differed.

        Between the question of the last look at a version and the answer of the first look at the next version, the node may have
        either version."""
        edges: list[tuple[int, int, int, int]] = []
        for node, found in enumerate(self._series):
            for series in filter(None, found):
                first_ns, last_ns = series[0].first_ns, series[-1].last_asked_ns
                for place, shown in enumerate(series):
                    start_ns = max(first_ns, series[place - 1].last_asked_ns) if place else first_ns
                    end_ns = min(last_ns, series[place + 1].first_ns) if place + 1 < len(series) else last_ns
                    if start_ns < end_ns:
                        edges += [(start_ns, 1, node, shown.version), (end_ns, 0, node, shown.version)]
        edges.sort()
        may_be: defaultdict[int, list[int]] = defaultdict(list)
        certain: list[tuple[int, int]] = []
        possible: list[tuple[int, int]] = []
        for place, (at_ns, begins, node, version) in enumerate(edges[:-1]):
            (may_be[node].append if begins else may_be[node].remove)(version)
            next_ns = edges[place + 1][0]
            known = [versions for versions in may_be.values() if versions]
            if next_ns > at_ns and len(known) > 1:
                if len({versions[0] for versions in known if len(versions) == 1}) > 1:
                    _extend(certain, at_ns, next_ns)
                if len({version for versions in known for version in versions}) > 1:
                    _extend(possible, at_ns, next_ns)
        return certain, possible


@dataclass(slots=True)
class _Shown:
    """A version that a node showed at successive looks."""

    version: int
    first_ns: int
    last_asked_ns: int


def _extend(spans: list[tuple[int, int]], start_ns: int, end_ns: int) -> None:
    """Add a span. If it begins where the last one ends, both become one span."""
    if spans and spans[-1][1] == start_ns:
        start_ns = spans.pop()[0]
    spans.append((start_ns, end_ns))


def _members(version: int) -> str:
    return ",".join(f'{{"name":"broker-{number}/0","version":"{version}"}}' for number in range(BROKERS))

"""Records elections and expiries from ``/v1/watch`` of each node, and whether the reports of changes are complete.

A stream that ends is resumed where it ended. If the node no longer has the following events, the stream starts with the next
event.

Each change of the state is one event with the next revision. A ``watched`` operation with the key ``changes`` has the number of
events of a part of a stream, and the revisions before and at its end. At the end of the run there are two more for each node:
``kv`` and ``brokers`` have what the last event about each KV key, and about each broker, says. An empty version means that the
key was deleted, or that the broker was removed. Otherwise the version is the value or the time of the data version, after "=".
"""

import asyncio
import contextlib
import json
from collections.abc import Iterable
from typing import Any

import aiohttp

from replicated_namesrv.chaos.clients import NAMESPACE
from replicated_namesrv.chaos.process_cluster import ProcessCluster
from replicated_namesrv.chaos.recorder import OK, Ended, Recorder
from replicated_namesrv.chaos.records import Election, ExpiryRecord, Member

PAUSE_S = 0.2
SILENCE_S = 30.0
"""Time-out of a stream without any bytes. It is longer than the pause between two keep-alives."""
_CAUSES = {"broker-expired": "expired", "broker-lost": "lost"}
WATCHED = "watched"
CHANGES, KV, BROKERS = "changes", "kv", "brokers"
"""Keys of the ``watched`` operations."""
_LISTED, _REMOVED = ("broker-registered", "broker-changed"), (*_CAUSES, "broker-unregistered")


class _Seen:
    """The events of one node, since the beginning of a part of its stream that has to be complete."""

    def __init__(self) -> None:
        self.after: int | None = None
        """The revision before the first event. None: no event was seen."""
        self.last = self.count = 0
        self.kv: dict[str, str] = {}
        self._brokers: dict[str, tuple[str, str]] = {}
        """Name and version of each broker, by address. A broker that registers under another name replaces its registration."""
        self._names: set[str] = set()

    def note(self, kind: str, data: dict[str, Any]) -> None:
        """Count an event, and apply what it says."""
        revision = data["revision"]
        if self.after is None:
            self.after = revision - 1
        self.last, self.count = revision, self.count + 1
        if kind in ("kv-put", "kv-deleted") and data["namespace"] == NAMESPACE:
            self.kv[data["key"]] = f"={data['value']}" if kind == "kv-put" else ""
        gone = data["brokers"] if kind in _REMOVED else data.get("replaced", ())
        self._names |= {_name(broker) for broker in (*gone, *data.get("brokers", ()))}
        for broker in gone:
            self._brokers.pop(broker["brokerAddr"], None)
        for broker in data["brokers"] if kind in _LISTED else ():
            self._brokers[broker["brokerAddr"]] = _name(broker), f"={broker['dataVersion']['timestamp']}"

    @property
    def brokers(self) -> dict[str, str]:
        """What the events said about each broker that they named."""
        return dict.fromkeys(self._names, "") | dict(self._brokers.values())


def _name(broker: dict[str, Any]) -> str:
    return f"{broker['brokerName']}/{broker['brokerId']}"


class EventWatcher:
    """Follows all nodes of a cluster until it is cancelled."""

    def __init__(self, cluster: ProcessCluster, recorder: Recorder) -> None:
        self._cluster, self._recorder = cluster, recorder
        self._led: set[int] = set()
        self._seen = {node: _Seen() for node in cluster.nodes}

    async def run(self) -> None:
        """Run until cancelled."""
        await asyncio.gather(*(self._follow(node) for node in self._cluster.nodes))

    def report(self, nodes: Iterable[str]) -> None:
        """Record what the events of these nodes said, at the end of the run."""
        for node in nodes:
            self._end_part(node)
            for key, said in ((KV, self._seen[node].kv), (BROKERS, self._seen[node].brokers)):
                self._record(node, key, sorted(Member(*one) for one in said.items()))

    def _end_part(self, node: str) -> None:
        """Record how many events the part of the stream had, and begin a new one that continues it."""
        seen = self._seen[node]
        if seen.after is not None and seen.count:
            members = [Member("after", str(seen.after)), Member("to", str(seen.last))]
            self._record(node, CHANGES, members, str(seen.count))
            seen.after, seen.count = seen.last, 0

    def _record(self, node: str, key: str, members: list[Member], value: str | None = None) -> None:
        number = self._recorder.invoke("watcher", WATCHED, key, node=node)
        self._recorder.complete(number, Ended(OK, node, value, members))

    def _forget(self, node: str) -> None:
        """The next events do not continue the last ones."""
        self._end_part(node)
        self._seen[node] = _Seen()

    async def _follow(self, node: str) -> None:
        position: str | None = None
        while True:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError, ValueError):
                position = await self._stream(node, position)
            await asyncio.sleep(PAUSE_S)

    async def _stream(self, node: str, position: str | None) -> str | None:
        """Read one stream to its end. Returns the id of the last event."""
        headers = {"Last-Event-ID": position} if position else {}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=1, sock_read=SILENCE_S)
        url = f"http://{self._cluster.nodes[node].admin}/v1/watch"
        async with self._cluster.session.get(url, headers=headers, timeout=timeout) as answer:
            if answer.status == 410:
                self._forget(node)
                return None
            if answer.status != 200:
                return position
            kind = ""
            try:
                async for line in answer.content:
                    name, _, value = line.decode().rstrip("\n").partition(": ")
                    if name == "id":
                        position = value
                    elif name == "event":
                        kind = value
                    elif name == "data":
                        self._note(node, kind, json.loads(value))
            except (aiohttp.ClientError, TimeoutError):
                return position
        return position

    def _note(self, node: str, kind: str, data: dict[str, Any]) -> None:
        now_ns = self._recorder.now_ns()
        if kind == "restored":
            self._forget(node)
        elif "revision" in data and kind not in ("hello", "end"):
            self._seen[node].note(kind, data)
        if kind in ("leader", "hello") and data.get("leader") == node and data["term"] not in self._led:
            self._led.add(data["term"])
            self._recorder.write(Election(now_ns, node, data["term"]))
        for broker in data.get("brokers", ()) if kind in _CAUSES else ():
            self._recorder.write(ExpiryRecord(now_ns, node, _name(broker), _CAUSES[kind], data["revision"]))

"""Records elections and expiries from ``/v1/watch`` of each node.

A stream that ends is resumed where it ended. If the node no longer has the following events, the stream starts with the next
event.
"""

import asyncio
import contextlib
import json
from typing import Any

import aiohttp

from replicated_namesrv.chaos.process_cluster import ProcessCluster
from replicated_namesrv.chaos.recorder import Recorder
from replicated_namesrv.chaos.records import Election, ExpiryRecord

PAUSE_S = 0.2
SILENCE_S = 30.0
"""Time-out of a stream without any bytes. It is longer than the pause between two keep-alives."""
_CAUSES = {"broker-expired": "expired", "broker-lost": "lost"}


class EventWatcher:
    """Follows all nodes of a cluster until it is cancelled."""

    def __init__(self, cluster: ProcessCluster, recorder: Recorder) -> None:
        self._cluster, self._recorder = cluster, recorder
        self._led: set[int] = set()

    async def run(self) -> None:
        """Run until cancelled."""
        await asyncio.gather(*(self._follow(node) for node in self._cluster.nodes))

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
        if kind in ("leader", "hello") and data.get("leader") == node and data["term"] not in self._led:
            self._led.add(data["term"])
            self._recorder.write(Election(now_ns, node, data["term"]))
        for broker in data.get("brokers", ()) if kind in _CAUSES else ():
            name = f"{broker['brokerName']}/{broker['brokerId']}"
            self._recorder.write(ExpiryRecord(now_ns, node, name, _CAUSES[kind], data["revision"]))

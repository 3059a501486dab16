"""Looks at every node repeatedly: its answers for brokers and KV, and its status.

Changes are recorded at once. While nothing changes, one record per second (``cover``) shows that the node was observed. A node
that does not answer in time, or is known to be dead or paused, is recorded as silent: from the moment of the question its answer
is unknown.
"""

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Any

from replicated_namesrv.chaos.node_looks import NodeLooks
from replicated_namesrv.chaos.process_cluster import ProcessCluster
from replicated_namesrv.chaos.recorder import Recorder
from replicated_namesrv.chaos.records import Observe, Status

COVER_NS = 1_000_000_000


class ClusterObserver:
    """Looks at all nodes of a cluster until it is stopped."""

    def __init__(self, cluster: ProcessCluster, looks: NodeLooks, recorder: Recorder, interval_ms: int) -> None:
        self._cluster, self._looks, self._recorder, self._interval_ms = cluster, looks, recorder, interval_ms
        self._last: dict[tuple[str, str], tuple[int, object]] = {}
        self._edge: dict[str, asyncio.Event] = {name: asyncio.Event() for name in cluster.nodes}
        self._edge_due: dict[str, bool] = dict.fromkeys(cluster.nodes, False)

    async def run(self) -> None:
        """Run until cancelled."""
        await asyncio.gather(*(self._watch(name) for name in self._cluster.nodes))

    async def _watch(self, node: str) -> None:
        while True:
            edge, self._edge_due[node] = self._edge_due[node], False
            await self._look(node, edge=edge)
            with contextlib.suppress(TimeoutError):
                # not asyncio.wait_for: in Python 3.11 it loses a cancellation that arrives together with the result
                async with asyncio.timeout(self._interval_ms / 1000):
                    await self._edge[node].wait()
                self._edge[node].clear()

    def at_edge(self) -> None:
        """Look at every node after a fault began or ended, and record the answer even if it is unchanged."""
        for name, edge in self._edge.items():
            self._edge_due[name] = True
            edge.set()

    def agree(self, nodes: Iterable[str]) -> bool:
        """Whether the latest looks found the same registrations on all these nodes."""
        states = [self._last.get((node, "brokers"), (0, None))[1] for node in nodes]
        return states[0] is not None and all(state == states[0] for state in states)

    def shows(self, nodes: Iterable[str], brokers: Iterable[str]) -> bool:
        """Whether the latest look at each of these nodes found all these brokers."""
        expected = set(brokers)
        looks = [self._last.get((node, "brokers"), (0, None))[1] for node in nodes]
        return all(isinstance(look, list) and expected <= {member.name for member in look} for look in looks)

    async def _look(self, node: str, *, edge: bool) -> None:
        await asyncio.gather(
            self._look_at_status(node, edge), self._look_at(node, "brokers", edge), self._look_at(node, "kv", edge)
        )

    async def _look_at(self, node: str, key: str, edge: bool) -> None:
        asked_ns = self._recorder.now_ns()
        look = await self._looks.look(node, key)
        members = None if look is None else look.members
        reason = self._reason(node, key, members, edge)
        if reason is not None:
            revision = None if look is None else look.revision
            now_ns = self._recorder.now_ns()
            self._recorder.write(Observe(now_ns, asked_ns, node, key, look is not None, members, revision, reason))

    def _reason(self, node: str, key: str, state: object, edge: bool) -> str | None:
        now_ns = self._recorder.now_ns()
        written_ns, before = self._last.get((node, key), (0, self))
        reason = "edge" if edge else "change" if state != before else "cover" if now_ns - written_ns >= COVER_NS else None
        self._last[node, key] = (written_ns if reason is None else now_ns, state)
        return reason

    async def _look_at_status(self, node: str, edge: bool) -> None:
        asked_ns = self._recorder.now_ns()
        answer = await self._cluster.status(node)
        process = self._cluster.nodes[node].process.state
        standing: dict[str, Any] = (answer or {}).get("replication") or {}
        seen: dict[str, Any] = {
            "process": process,
            "answered": answer is not None,
            "ready": None if answer is None else answer["ready"],
            "role": standing.get("role"),
            "term": standing.get("term"),
            "leader": standing.get("leader"),
            "commit_index": standing.get("commitIndex"),
            "applied_index": standing.get("appliedIndex"),
            "digest": standing.get("digest"),
            "revision": None if answer is None else answer["revision"],
            "fenced": standing.get("fenced"),
        }
        reason = self._reason(node, "status", seen, edge)
        if reason is not None:
            self._recorder.write(Status(self._recorder.now_ns(), asked_ns, node, **seen, reason=reason))

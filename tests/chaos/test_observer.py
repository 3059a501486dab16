"""The observer stops when it is cancelled, also at the moment when an answer arrives."""

import asyncio
import random
from pathlib import Path

from replicated_namesrv.chaos.node_looks import VALUE_CHARACTERS, AdminLooks, NodeTable, kv_members
from replicated_namesrv.chaos.observer import ClusterObserver
from replicated_namesrv.chaos.process_cluster import ProcessCluster
from replicated_namesrv.chaos.recorder import Recorder
from replicated_namesrv.chaos.records import Member, TraceWriter
from replicated_namesrv.child_process import ChildProcess


class _OneBroker:
    """n1 lists one broker, and no other node answers."""

    name = "by hand"

    async def look(self, node: str, key: str) -> NodeTable | None:
        return NodeTable([Member("a/0", "1")], None) if node == "n1" else None


async def test_it_knows_which_brokers_the_latest_looks_showed(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "trace.jsonl")
    observer = ClusterObserver(
        ProcessCluster(tmp_path, 2, "ap", [], [], random.Random(1), None), _OneBroker(), Recorder(writer), 1
    )
    assert not observer.shows(["n1"], ["a/0"]), "nothing was seen yet"
    for node in ("n1", "n2"):
        await observer._look_at(node, "brokers", edge=False)
    assert observer.shows(["n1"], ["a/0"])
    assert not observer.shows(["n1"], ["a/0", "b/0"])
    assert not observer.shows(["n1", "n2"], ["a/0"]), "n2 did not answer"
    writer.close()


def test_long_values_are_cut() -> None:
    short, long = "x" * VALUE_CHARACTERS, "x" * (VALUE_CHARACTERS + 1)
    told = kv_members({"entries": [{"key": "a", "value": short}, {"key": "b", "value": long}]})
    assert told == [Member("a", short), Member("b", f"{short} … (201 characters)")]


async def test_a_run_that_is_broken_off_at_the_edge_of_a_fault_ends(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "trace.jsonl")
    made = ProcessCluster(tmp_path, 3, "cp", [], [], random.Random(1), tmp_path / "unused")
    async with made as cluster:
        for name, node in cluster.nodes.items():
            node.process = ChildProcess(name, ["unused"], tmp_path / "log")  # never started: a dead node
        observer = ClusterObserver(cluster, AdminLooks(cluster), Recorder(writer), interval_ms=600_000)
        task = asyncio.create_task(observer.run())
        for _ in range(100):  # turns of the loop, until it has looked at each node in three ways and waits
            await asyncio.sleep(0)
        assert writer.count == 9
        observer.at_edge()
        task.cancel()
        done, _ = await asyncio.wait([task], timeout=60)
        assert done, "it goes on"
        assert task.cancelled()
    writer.close()

"""A node whose snapshot was altered loads it, and what the verdict says about its end."""

import random
from pathlib import Path

import pytest

from replicated_namesrv.chaos.checks.crashes import CAUSED, check_crashes
from replicated_namesrv.chaos.checks.order import check_same_state
from replicated_namesrv.chaos.process_cluster import ProcessCluster
from replicated_namesrv.chaos.records import FaultRecord, Member, Observe
from replicated_namesrv.chaos.wrong_state import KEY, NAMESPACE, alter, snapshots
from replicated_namesrv.child_process import ProcessError
from replicated_namesrv.client.queries import put_kv_request
from replicated_namesrv.verify import Verdict
from tests.chaos.traces import MS, NODES, Script
from tests.support.replicated_processes import eventually


async def test_a_node_loads_the_altered_snapshot(tmp_path: Path, rng: random.Random) -> None:
    async with ProcessCluster(tmp_path, 1, "cp", ["snapshotEntries=100"], [], rng, None) as cluster:
        await cluster.start()
        node = cluster.nodes["n1"]

        async def has_snapshot() -> bool:
            for number in range(10):
                assert await cluster.ask("n1", put_kv_request("own", "key", str(number)), 5.0) is not None
            return bool(snapshots(node.data_dir))

        await eventually(has_snapshot, "a snapshot")
        await node.process.stop()
        alter(node.data_dir)
        await node.process.start()
        await cluster.wait_ready("n1")
        answer = await cluster.get_json("n1", "/v1/kv?limit=1000")
        assert answer is not None
        assert {(entry["namespace"], entry["key"]) for entry in answer["entries"]} == {("own", "key"), (NAMESPACE, KEY)}


def test_a_node_without_a_snapshot_cannot_be_altered(tmp_path: Path) -> None:
    with pytest.raises(ProcessError, match="has no snapshot that can be altered"):
        alter(tmp_path)
    (tmp_path / "raft").mkdir()
    (tmp_path / "raft" / "snapshot-1").write_bytes(b"another format")
    with pytest.raises(ProcessError, match="has no snapshot that can be altered"):
        alter(tmp_path)


def wrong_state(*ends: tuple[int, str, str]) -> Script:
    """n2 has a wrong state from 3000 to 8000. ``ends``: number of the fault that caused the end of a node, the node, and how it
    ended, each at 5000."""
    script = Script()
    edges = [(3000, 1, "start", "wrong-state", "n2"), *((5000, one, "start", how, node) for one, node, how in ends)]
    for time, number, edge, name, node in (*edges, (8000, 1, "end", "wrong-state", "n2")):
        record = FaultRecord(time * MS, number, edge, time * MS, name, None, [node], [], [list(NODES)])
        script.records.append(record)
    return script


MISMATCH = "crash: digest mismatch"


@pytest.mark.parametrize(
    ("ends", "verdict", "caused"),
    [
        ([(1, "n2", MISMATCH)], Verdict.VALID, 1),
        ([], Verdict.UNKNOWN, 0),
        ([(0, "n2", MISMATCH)], Verdict.VIOLATED, 0),
        ([(1, "n2", "crash: SIGSEGV")], Verdict.VIOLATED, 0),
        ([(1, "n2", MISMATCH), (0, "n3", MISMATCH)], Verdict.VIOLATED, 1),
        ([(1, "n3", MISMATCH)], Verdict.VIOLATED, 0),
    ],
)
def test_only_the_end_of_this_node_for_this_reason_is_caused(
    ends: list[tuple[int, str, str]], verdict: Verdict, caused: int
) -> None:
    found = check_crashes(wrong_state(*ends).story)
    assert found.verdict is verdict, found
    assert found.left_out == ({CAUSED: caused} if caused else {})


@pytest.mark.parametrize(
    ("node", "time", "verdict"),
    [("n2", 4000, Verdict.VALID), ("n3", 4000, Verdict.VIOLATED), ("n2", 2000, Verdict.VIOLATED), ("n2", 9000, Verdict.VIOLATED)],
)
def test_only_answers_of_this_node_during_the_fault_may_differ(node: str, time: int, verdict: Verdict) -> None:
    script = wrong_state((1, "n2", MISMATCH))
    for name, at, value in (("n1", time, "right"), (node, time + 10, "wrong")):
        look = Observe(at * MS, at * MS, name, "kv", True, [Member("key", value)], 7, "change")
        script.records.append(look)
    assert check_same_state(script.story).verdict is verdict

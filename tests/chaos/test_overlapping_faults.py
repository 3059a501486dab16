"""Overlapping faults: a node stays dead or paused until the last fault that keeps it so has ended; ends may overlap, too."""

import random
from pathlib import Path

import pytest

from replicated_namesrv.chaos.process_cluster import ClusterNode
from replicated_namesrv.chaos.process_holds import Hold, ProcessHolds
from replicated_namesrv.chaos.records import FaultRecord, Observe, Status, Truth, read_trace
from replicated_namesrv.child_process import ChildProcess, ProcessError
from replicated_namesrv.cli.main import main
from tests.chaos.traces import MS, NODES, Script


def test_the_strongest_hold_in_force_decides() -> None:
    holds = ProcessHolds()
    assert holds.state("n1") == "running"
    holds.add(1, "n1", Hold.PAUSED)
    holds.add(2, "n1", Hold.DEAD)
    assert (holds.state("n1"), holds.state("n2")) == ("dead", "running")
    holds.remove(2, "n1")
    assert holds.state("n1") == "paused"
    holds.remove(2, "n1")
    holds.remove(1, "n1")
    assert holds.state("n1") == "running"


@pytest.mark.parametrize("faults", range(20))
def test_no_end_revives_a_node_that_another_fault_holds(faults: int, rng: random.Random) -> None:
    holds, active = ProcessHolds(), dict[int, Hold]()
    for _ in range(50):
        if active and rng.random() < 0.5:
            ended = rng.choice(list(active))
            del active[ended]
            holds.remove(ended, "n1")
        else:
            number = len(active) + 100 * faults + rng.randrange(10**6)
            active[number] = rng.choice(list(Hold))
            holds.add(number, "n1", active[number])
        expected = "running" if not active else "dead" if Hold.DEAD in active.values() else "paused"
        assert holds.state("n1") == expected


SCENARIO = """
title = "One node is paused twice and killed once, at overlapping times"

[[fault]]
kind = "pause"
target = "n1"
at_s = 0.0
for_s = 1.5

[[fault]]
kind = "pause"
target = "n1"
at_s = 0.5
for_s = 3.0

[[fault]]
kind = "kill"
target = "n2"
at_s = 0.5
for_s = 1.0

[[fault]]
kind = "restart"
target = "n2"
at_s = 1.0

[timing]
steady_s = 1
fault_s = 4
"""


@pytest.mark.slow
def test_processes_do_what_the_record_says(tmp_path: Path) -> None:
    scenario = tmp_path / "overlap.toml"
    scenario.write_text(SCENARIO, encoding="utf-8")
    main(["chaos", "run", str(scenario), "--mode", "ap", "--out", str(tmp_path / "runs")])
    records = read_trace(tmp_path / "runs" / "latest" / "trace.jsonl").records
    edges = {(one.fault, one.edge): one for one in records if isinstance(one, FaultRecord)}
    states = [one for one in records if isinstance(one, Status)]

    def seen(node: str, start: tuple[int, str], end: tuple[int, str]) -> set[str]:
        between = (edges[start].time_ns, edges[end].began_ns)
        return {one.process for one in states if one.node == node and between[0] < one.asked_ns and one.time_ns < between[1]}

    died_ns = next(one.time_ns for one in records if isinstance(one, Truth) and one.broker == "closed/0" and one.state == "dead")
    looks = [one for one in records if isinstance(one, Observe) and one.key == "brokers" and one.time_ns < died_ns]
    listed = {one.node for one in looks if "closed/0" in {member.name for member in one.members or ()}}
    assert listed == {"n1", "n2", "n3"}, "each node was seen to list a broker that dies when the clients begin"
    assert seen("n1", (1, "end"), (2, "end")) == {"paused"}, "the second pause is still in force"
    assert ["n1"] in edges[1, "end"].sides
    assert seen("n2", (4, "end"), (3, "end")) == {"dead"}, "a restart does not start a node that another fault keeps dead"
    assert "running" in {one.process for one in states if one.node == "n1" and one.time_ns > edges[2, "end"].time_ns}


def node_with(folder: Path, output: str, always_stores: bool = True) -> ClusterNode:
    node = ClusterNode("n1", [1, 2, 3], folder / "data", folder / "n1.log", always_stores)
    node.log_file.write_text(output, encoding="utf-8")
    node.process = ChildProcess("n1", ["true"], node.log_file)
    return node


def test_a_disk_that_is_elsewhere_cannot_be_lost(tmp_path: Path) -> None:
    with pytest.raises(ProcessError, match=r"n1 keeps no data in .*, so it cannot lose its disk.*--data-dir"):
        node_with(tmp_path, "").wipe()
    node_with(tmp_path, "", always_stores=False).wipe()
    (tmp_path / "data" / "raft").mkdir(parents=True)
    node_with(tmp_path, "").wipe()
    assert not (tmp_path / "data").exists()


def test_a_node_that_stops_on_a_digest_mismatch_is_reported_as_that(tmp_path: Path) -> None:
    lines = "ERROR the state after entry 7 differs from that of a majority: move the data directory away\nstopped\n"
    assert node_with(tmp_path, lines).stop_reason() == "digest mismatch"
    assert node_with(tmp_path, "ERROR no space left on device\n").stop_reason() is None


async def test_an_exit_status_is_called_a_signal_only_if_it_is_one(tmp_path: Path) -> None:
    for status, by_itself, how in ((255, True, "exit status 255"), (139, True, "SIGSEGV"), (143, False, "SIGTERM")):
        process = ChildProcess("n1", ["sh", "-c", f"exit {status}"], tmp_path / "log")
        await process.start()
        await process.wait()
        assert process.ended == (by_itself, how)


def test_the_end_of_a_fault_that_takes_long_may_have_restored_the_majority() -> None:
    """The cut of the first node begins to end at 5000 and has ended at 9000. Meanwhile the third node is killed and started."""
    links, sides = ["n1>n2", "n1>n3", "n2>n1", "n3>n1"], [["n1"], ["n2", "n3"]]
    script = Script()
    for time, number, edge, began, name, node, cut, left in (
        (3000, 1, "start", 2900, "isolate", "n1", links, sides),
        (4900, 2, "start", 4800, "kill", "n3", [], [["n1"], ["n2"], ["n3"]]),
        (8000, 2, "end", 7900, "kill", "n3", [], [list(NODES)]),
        (9000, 1, "end", 5000, "isolate", "n1", links, [list(NODES)]),
    ):
        script.records.append(FaultRecord(time * MS, number, edge, began * MS, name, "held", [node], cut, left))
    spans = {node: [(span.start_ns // MS, span.end_ns // MS) for span in script.story.without_majority(node)] for node in NODES}
    assert spans == {"n1": [(3000, 5000)], "n2": [(4900, 5000)], "n3": []}

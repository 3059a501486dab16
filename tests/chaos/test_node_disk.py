"""Disks that lose unsynced bytes: which bytes remain, and that real nodes start again with them."""

import dataclasses
import os
import random
import threading
from pathlib import Path

from replicated_namesrv.chaos import node_disk
from replicated_namesrv.chaos.node_disk import DiskFault, has_disk, lose_unsynced, with_disk
from replicated_namesrv.chaos.process_cluster import ProcessCluster
from replicated_namesrv.chaos.run import RunPlan, check_fits, has_disks
from replicated_namesrv.chaos.scenario import FaultKind, FaultSpec, load
from replicated_namesrv.child_process import SERVE


def test_a_file_keeps_what_was_synced_last(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for name in ("grown", "complete", "never"):
        (data / name).write_bytes(b"0123456789")
    grown, complete = ((data / name).stat().st_ino for name in ("grown", "complete"))
    (tmp_path / "synced").write_text(f"{grown} 3\n{complete} 2\n{grown} 7\n{complete} 10\n")
    lose_unsynced(data, tmp_path / "synced")
    assert {path.name: path.read_bytes() for path in data.iterdir()} == {
        "grown": b"0123456",
        "complete": b"0123456789",
        "never": b"",
    }


def test_no_sync_ends_while_the_disk_hangs(tmp_path: Path) -> None:
    synced, ended = tmp_path / "data" / "n1.synced", threading.Event()
    DiskFault.HANGS.begin(synced)
    report = os.open(synced, os.O_WRONLY | os.O_CREAT)
    sync = node_disk._watched(lambda descriptor: ended.set(), report, 0, DiskFault.HANGS.file(synced))
    thread = threading.Thread(target=sync, args=(report,))
    thread.start()
    assert not ended.wait(0.3)
    DiskFault.HANGS.end(synced)
    thread.join()
    assert ended.is_set()
    os.close(report)


def test_a_full_disk_has_no_free_space(tmp_path: Path) -> None:
    synced = tmp_path / "n1.synced"
    statvfs = node_disk._filled(os.statvfs, DiskFault.FULL.file(synced))
    before = statvfs(tmp_path)
    DiskFault.FULL.begin(synced)
    full = statvfs(tmp_path)
    assert (full.f_bavail, full.f_bfree, full.f_frsize, full.f_blocks) == (0, 0, before.f_frsize, before.f_blocks)
    DiskFault.FULL.end(synced)
    assert before.f_bavail > 0
    assert statvfs(tmp_path).f_bavail > 0


async def test_a_node_reports_its_syncs_and_starts_again_after_a_power_loss(tmp_path: Path, rng: random.Random) -> None:
    async with ProcessCluster(tmp_path, 1, "cp", [], [], rng, None, sync_ms=1) as cluster:
        await cluster.start()
        node = cluster.nodes["n1"]
        await node.process.kill()
        lengths = {path: path.stat().st_size for path in node.data_dir.rglob("*") if path.is_file()}
        for path in lengths:
            with path.open("ab") as file:
                file.write(b"not synced")
        node.lose_unsynced()
        kept = {path: path.stat().st_size for path in lengths}
        assert all(kept[path] <= length for path, length in lengths.items())
        assert max(length for path, length in kept.items() if path.name.startswith("log")) > 0
        await node.process.start()
        await cluster.wait_ready("n1")


def test_only_our_own_nodes_have_such_disks(tmp_path: Path) -> None:
    """Runs of other commands are made, too: their power losses are kills."""
    assert has_disk(with_disk(SERVE, tmp_path, 5)) is False, "it has one already"
    plain = load("no-fault")
    lossy = dataclasses.replace(plain, fault=(FaultSpec(FaultKind.POWER_LOSS, "all"),))
    slow = dataclasses.replace(plain, sync_ms=5)
    hanging, full = (dataclasses.replace(plain, fault=(FaultSpec(k),)) for k in (FaultKind.DISK_HANGS, FaultKind.DISK_FULL))
    for scenario, mode, command, expected in (
        (plain, "cp", SERVE, False),
        (lossy, "cp", SERVE, True),
        (slow, "ap", SERVE, True),
        (hanging, "cp", SERVE, True),
        (full, "ap", SERVE, True),
        (lossy, "cp", ("./serve",), False),
        (lossy, "java:5.3.3", SERVE, False),
    ):
        plan = RunPlan(scenario, mode, 3, 1, node_command=command)
        check_fits(plan)
        assert has_disks(plan) is expected

"""A disk that is nearly full: growth is refused before it is proposed, and everything else continues."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from replicated_namesrv.files import DISK_LOOK_S, Ballast, DiskReserve
from replicated_namesrv.raft.file_storage import BALLAST
from tests.security.attacked import MODES, AttackedNode, attacked, started, started_cluster, write_cluster_files
from tests.support.nodes import run_command
from tests.support.waiting import wait_until

MORE_THAN_ANY_DISK = 1 << 60


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_below_the_reserve_growth_is_refused_and_the_rest_goes_on(tmp_path: Path, mode: str) -> None:
    with attacked(tmp_path, mode) as node:
        assert node.http("/v1/kv/n/old", "PUT", b"v" * 1000).status == 200
        node.stop()
    with node.file.open("a") as file:
        file.write(f"diskReserveBytes={MORE_THAN_ANY_DISK}\n")
    with started(tmp_path, node.file, node.port) as full:
        for _ in range(40):
            refused = full.http("/v1/kv/n/new", "PUT", b"v" * 100_000)
            assert (refused.status, "the disk is nearly full" in refused.json["error"]) == (413, True)
        assert full.http("/v1/kv").json["entries"] == [{"namespace": "n", "key": "old", "value": "v" * 1000}]
        assert full.http("/v1/kv/n/old", "PUT", b"w" * 999).json["changed"] is True, "it adds nothing"
        assert full.http("/v1/kv/n/old", "DELETE").json["changed"] is True
        assert full.http("/readyz").status == 200
        assert 'namesrv_limits_hit_total{limit="diskReserveBytes"} 40.0' in full.http("/metrics").text
        wait_until(lambda: "disk below diskReserveBytes" in full.log, "the log says so")
        full.stop()


def test_room_is_what_is_free_beyond_the_reserve_and_a_copy(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    now_s, free = [0.0], [1000]
    disk = DiskReserve(tmp_path / "missing", 100, lambda: 50, lambda folder: free[0], lambda: now_s[0])
    assert (disk.room(), disk.warning) == (850, None)
    free[0] = 120
    assert disk.room() == 850, "looked up ten times a second at most"
    now_s[0] += DISK_LOOK_S
    assert (disk.room(), "120 bytes are free" in (disk.warning or "")) == (0, True)
    free[0] = 170
    now_s[0] += DISK_LOOK_S
    assert (disk.room(), disk.warning) == (20, None)
    assert [record.message for record in caplog.records] == [
        "disk below diskReserveBytes: requests that add data are refused",
        "disk has room again",
    ]
    assert DiskReserve(tmp_path / "missing", 0, lambda: 0).room() > 0


DISK_BYTES, RESERVE_BYTES = 48 << 20, 8 << 20
VALUE = b"v" * 1_000_000


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[list[Path]]:
    """Three small disks."""
    with contextlib.ExitStack() as stack:
        folders = []
        for number in range(3):
            folder = tmp_path / f"disk{number}"
            folder.mkdir()
            command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
            try:
                done = subprocess.run(command, capture_output=True, text=True, check=False)
            except FileNotFoundError:
                pytest.skip("there is no mount command")
            if done.returncode != 0:
                pytest.skip(f"no disks can be mounted here: {done.stderr.strip()}")
            stack.callback(subprocess.run, ["umount", "-l", str(folder)], check=True)
            folders.append(folder)
        yield folders


def fill(folder: Path) -> None:
    """Leave no byte free."""
    with (folder / "filler").open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


def put(node: AttackedNode, key: str, value: bytes = VALUE) -> int:
    return node.http(f"/v1/kv/n/{key}", "PUT", value).status


def deleted(node: AttackedNode, key: str) -> bool:
    answer = node.http(f"/v1/kv/n/{key}", "DELETE")
    return answer.status == 200 and answer.json["changed"] is True


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_full_disks_end_no_node_and_prevent_no_start(tmp_path: Path, disks: list[Path], mode: str) -> None:
    """The audit: about 40 writes of 1 MB ended two of three nodes, and then none started any more."""
    folders = [tmp_path / f"n{number + 1}" for number in range(3)]
    files = write_cluster_files(folders, [disk / "data" for disk in disks], mode, f"diskReserveBytes={RESERVE_BYTES}")
    with started_cluster(files) as nodes:
        told = [put(nodes[number % 3], f"k{number}") for number in range(60)]
        assert set(told) == {200, 413}, told
        assert [put(nodes[0], "k0") for _ in range(60)] == [413] * 60 or mode == "ap", "the log would grow, though not the state"
        for node in nodes:
            wait_until(lambda node=node: "warning: disk: " in node.http("/readyz").text, "readiness says so")  # type: ignore[misc]  # a default binds
            assert node.http("/readyz").status == 200
            assert "namesrv_disk_short 1.0" in node.http("/metrics").text
            assert "disk below diskReserveBytes" in node.log
            assert node.http("/v1/kv?limit=1").json["total"] >= 1
            assert node.is_running()
        for disk in disks:
            fill(disk)
        for key in ("k0", "k1", "k2"):
            assert deleted(nodes[int(key[1:])], key), key
        for node in nodes:
            node.stop()
    for disk in disks:
        fill(disk)
    with started_cluster(files) as nodes:
        for node in nodes:
            assert node.http("/readyz").status == 200
            wait_until(lambda node=node: "remedy" in node.log and "free" in node.log, "bytes and remedy")  # type: ignore[misc]  # a default binds
        assert put(nodes[0], "more") == 413
        held = [(entry["key"], number) for number, node in enumerate(nodes) for entry in node.http("/v1/kv").json["entries"]]
        for key, number in held if mode == "ap" else held[: len(held) // 3]:
            assert deleted(nodes[number], key), (key, number, nodes[number].log[-3000:])
        for disk in disks:
            (disk / "filler").unlink()
        for node in nodes:
            wait_until(lambda node=node: node.http("/readyz").text == "ok\n", "room again, nothing disarmed")  # type: ignore[misc]  # a default binds
            # what was deleted is on the disk until a snapshot has replaced the log
            wait_until(lambda node=node: put(node, "again") == 200, "room for a value")  # type: ignore[misc]  # a default binds
            assert node.is_running()


@pytest.mark.slow
def test_one_full_disk_does_not_fill_those_of_a_cluster(tmp_path: Path, disks: list[Path]) -> None:
    """Without this rule, the third node would accept writes that fill the two small disks. Two nodes would stop, and with them
    the service."""
    folders = [tmp_path / f"n{number + 1}" for number in range(3)]
    data = [tmp_path / "large", *(disk / "data" for disk in disks[1:])]
    files = write_cluster_files(folders, data, "cp", f"diskReserveBytes={RESERVE_BYTES}")
    with started_cluster(files) as nodes:
        told = [put(nodes[0], f"k{number}") for number in range(40)]
        assert set(told) == {200, 413}, told
        assert "the disk of n" in nodes[0].http("/readyz").text
        for disk in disks[1:]:
            fill(disk)
        assert deleted(nodes[0], "k0")
        assert put(nodes[0], "more") == 413
        assert all(node.is_running() for node in nodes)


@pytest.mark.slow
def test_a_start_without_any_room_names_path_bytes_and_remedy(tmp_path: Path, disks: list[Path]) -> None:
    files = write_cluster_files([tmp_path / "n1"], [disks[0] / "data"], "cp")
    with started_cluster(files) as nodes:
        nodes[0].stop()
    (disks[0] / "data" / "raft" / BALLAST).unlink()
    fill(disks[0])
    done = run_command("serve", "-c", str(files[0][0]))
    assert done.returncode != 0
    assert f"the disk of {disks[0] / 'data' / 'raft'}" in done.stderr
    assert "0 bytes are free; make room on it, then repeat" in done.stderr


def test_ballast_is_given_up_in_steps(tmp_path: Path) -> None:
    ballast = Ballast(tmp_path / "ballast")
    assert not ballast.give_up(1)
    ballast.fill(1_000_000)
    assert (tmp_path / "ballast").stat().st_blocks * 512 >= 1_000_000
    assert ballast.give_up(1)
    assert 0 < (tmp_path / "ballast").stat().st_size < 1_000_000
    assert ballast.give_up(1_000_000)
    assert not ballast.give_up(1)

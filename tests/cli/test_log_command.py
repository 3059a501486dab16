"""``namesrv log inspect``: sound, torn and damaged logs of a node that really ran, none of them touched."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from replicated_namesrv.cli.log import described
from replicated_namesrv.raft.file_storage import FileStorage
from replicated_namesrv.raft.inspection import UntouchedStorage, inspect
from replicated_namesrv.raft.raft_config import RaftConfig
from replicated_namesrv.raft.snapshots import PREFIX
from replicated_namesrv.replication.cluster_restore import encode
from replicated_namesrv.replication.command_kinds import PIECE
from replicated_namesrv.routes.commands import PutKVConfig
from tests.support.operated import operated, run
from tests.support.waiting import until

KEYS = 30


@pytest.fixture
async def data(tmp_path: Path) -> Path:
    """The data directory of a node that wrote KEYS entries and stopped."""
    async with operated(tmp_path, 1) as cluster:
        for number in range(KEYS):
            outcome = cluster.nodes[0].service.propose(PutKVConfig("N", f"k{number}", "v" * 50), None)
            assert isinstance(outcome, asyncio.Future)
            await outcome
    return tmp_path / "n1" / "raft"


def log_file(data: Path) -> Path:
    return max(path for path in data.iterdir() if path.name.startswith("log-"))


def contents(data: Path) -> dict[str, tuple[bytes, int]]:
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in data.iterdir()}


async def inspected(data: Path, *more: str) -> tuple[int, dict[str, Any]]:
    """Exit code and document. Checks that the directory is unchanged."""
    before = contents(data)
    done = await run("log", "inspect", str(data), "--json", *more)
    assert contents(data) == before
    found: dict[str, Any] = json.loads(done.out)
    return done.code, found


async def test_a_sound_log_is_shown_whole(data: Path) -> None:
    code, found = await inspected(data, "--entries")
    assert (code, found["damage"], found["tornTail"]) == (0, [], None)
    assert found["identity"]["node"] == "n1"
    assert found["identity"]["state"] == "member"
    keys = [c["key"] for entry in found["entries"] for c in entry.get("commands", ()) if c["command"] == "PutKVConfig"]
    assert keys == [f"k{number}" for number in range(KEYS)]
    assert [entry["index"] for entry in found["entries"]] == list(range(1, found["lastIndex"] + 1))
    assert found["terms"][-1]["votedFor"] == "n1"
    (segment,) = found["segments"]
    assert segment["readableBytes"] == segment["bytes"] == log_file(data).stat().st_size
    part = (await inspected(data, "--entries", "3:5"))[1]["entries"]
    assert part == [entry for entry in found["entries"] if 3 <= entry["index"] <= 5]
    text = await run("log", "inspect", str(data.parent), "--entries", "5:")
    assert text.code == 0
    assert "\nsound\n" in text.out
    assert '"key": "k9"' in text.out


async def test_a_torn_tail_is_no_damage(data: Path) -> None:
    file = log_file(data)
    with file.open("ab") as log:
        log.write(b"\xa5\x5a\x00")
    code, found = await inspected(data)
    assert (code, found["damage"]) == (0, [])
    assert (
        found["tornTail"]
        == f"{file.name}: incomplete record at offset {file.stat().st_size - 3}; the 3 bytes from there on are torn"
    )


async def test_damage_is_named_with_file_and_offset(data: Path) -> None:
    file = log_file(data)
    whole = bytearray(file.read_bytes())
    offset = next(e["offset"] for e in (await inspected(data, "--entries"))[1]["entries"] if e["index"] == 10)
    whole[offset + 40] ^= 1
    file.write_bytes(whole)
    code, found = await inspected(data)
    assert code == 1
    assert f"{file.name}: record" in found["damage"][0]
    assert f"at offset {offset} is damaged" in found["damage"][0]
    assert found["segments"][0]["readableBytes"] == offset
    text = await run("log", "inspect", str(data))
    assert "damage: " in text.out
    (data / "identity").write_bytes(b"{}\n1\n")
    code, found = await inspected(data)
    assert code == 1
    assert any("identity: the checksum does not match" in problem for problem in found["damage"])


async def test_snapshots_are_checked_to_their_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = RaftConfig(compact_entries=20, compact_margin_entries=5, lease_reads=True)
    monkeypatch.setattr("replicated_namesrv.replication.replicated_node.RaftConfig", lambda **settings: small)
    async with operated(tmp_path, 1) as cluster:
        for number in range(60):
            outcome = cluster.nodes[0].service.propose(PutKVConfig("N", f"k{number}", "v" * 50), None)
            assert isinstance(outcome, asyncio.Future)
            await outcome
        data = tmp_path / "n1" / "raft"
        await until(lambda: any(path.name.startswith(PREFIX) for path in data.iterdir()), "a snapshot")
    code, found = await inspected(data)
    assert (code, found["damage"]) == (0, [])
    assert found["snapshots"]
    assert all(snapshot["lastIndex"] > 0 and snapshot["problem"] is None for snapshot in found["snapshots"])
    for snapshot in found["snapshots"]:
        file = data / snapshot["name"]
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    code, found = await inspected(data)
    assert code == 1
    assert all(f"{snapshot['name']}: offset" in "\n".join(found["damage"]) for snapshot in found["snapshots"])


async def test_what_is_no_data_directory_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        done = await run("log", "inspect", str(folder))
        assert done.code == 2
        assert "give the dataDir of a node with mode=cp" in done.err
    assert (await run("log", "inspect", str(tmp_path), "--entries", "x")).code == 1
    done = await run("log", "--help")
    assert "exit codes:" in done.out


def test_commands_are_shown_in_words_whatever_they_are() -> None:
    assert described(encode(PIECE, "r", 3, b"abc")) == {"kind": "restore-piece", "restore": "r", "piece": 3, "bytes": 3}
    assert described(b"\x01nonsense")["kind"] == "unreadable"


def steps(storage: FileStorage | UntouchedStorage) -> Iterator[object]:
    storage.append("a", b"12345")
    yield storage.list_names(), storage.read("a"), storage.size("a")
    storage.append("b", b"x")
    storage.append("a", b"67")
    yield storage.read("a", 2, 3), storage.size("a")
    storage.rename("b", "c")
    yield storage.list_names(), storage.read("a")
    storage.remove("a")
    storage.remove("never")
    yield storage.list_names()
    storage.append("a", b"new")
    yield storage.read("a"), storage.read("old", 1)


def test_the_storage_that_touches_nothing_behaves_like_the_real_one(tmp_path: Path) -> None:
    results = []
    for name, kind in (("real", FileStorage), ("untouched", UntouchedStorage)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "old").write_bytes(b"old")
        results.append(list(steps(kind(tmp_path / name))))
    assert results[0] == results[1]
    assert [path.name for path in (tmp_path / "untouched").iterdir()] == ["old"]
    with pytest.raises(FileNotFoundError):
        inspect(tmp_path / "untouched")

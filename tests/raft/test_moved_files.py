"""Files that are moved, deleted or unreadable while a node runs or starts: nothing is acknowledged that its directory lacks."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from replicated_namesrv.raft import file_storage
from replicated_namesrv.raft.file_storage import BALLAST, LOCK, FileStorage
from replicated_namesrv.raft.interfaces import Committed, Indeterminate
from replicated_namesrv.raft.raft_config import RaftConfig
from tests.raft.test_service import running
from tests.support.waiting import until


def test_a_storage_stays_in_the_directory_that_it_has_locked(tmp_path: Path) -> None:
    there, moved = tmp_path / "raft", tmp_path / "moved"
    storage = FileStorage(there)
    for name in ("log", "old", "removed"):
        storage.append(name, b"a")
    there.rename(moved)
    there.mkdir()
    storage.append("log", b"b")
    storage.append("new", b"c")
    storage.rename("old", "renamed")
    storage.remove("removed")
    storage.sync(["log", "new", "renamed"], directory=True)
    storage.fill_ballast()
    assert storage.read("log") == (moved / "log").read_bytes() == b"ab"
    assert storage.size("new") == 1
    assert sorted(path.name for path in moved.iterdir()) == sorted([*storage.list_names(), LOCK, BALLAST])
    assert not list(there.iterdir())
    storage.close()


async def test_a_node_whose_directory_is_replaced_loses_nothing(tmp_path: Path) -> None:
    """In an earlier version, the node created files in the new directory, and synced some there and some in the old one. After a
    restart in either directory, acknowledged entries were missing."""
    config = RaftConfig(compact_entries=20, compact_margin_entries=3, segment_bytes=400)
    async with running(tmp_path, 1, config) as group:
        service = await group.leader()
        (tmp_path / "n1").rename(tmp_path / "moved")
        (tmp_path / "n1").mkdir()
        for number in range(100):
            assert isinstance(await service.propose(b"%d=x" % number), Committed)
        await until(lambda: service.node.taking.taken, "a snapshot")
        assert not list((tmp_path / "n1").iterdir())
        await group.stop("n1")
        (tmp_path / "n1").rmdir()
        (tmp_path / "moved").rename(tmp_path / "n1")
        await group.start("n1")
        await group.leader()
        assert len(group.machines["n1"].values) == 100


@pytest.mark.parametrize("lost", ["the log", "the directory"])
async def test_a_node_stops_when_its_log_is_missing(tmp_path: Path, lost: str) -> None:
    """In an earlier version, a sync skipped a missing file, and the entry was acknowledged."""
    async with running(tmp_path, 1) as group:
        service = await group.leader()
        assert isinstance(await service.propose(b"a=1"), Committed)
        if lost == "the log":
            for path in (tmp_path / "n1").glob("log-*"):
                path.unlink()
        else:
            shutil.rmtree(tmp_path / "n1")
        assert isinstance(await service.propose(b"b=1"), Indeterminate)
        assert isinstance(service.node.failed, FileNotFoundError)
        assert f"{tmp_path}/n1/log-" in str(service.node.failed)
        assert "is missing: it was moved or deleted" in str(service.node.failed)


@pytest.mark.parametrize("change", ["removed", "renamed"])
def test_a_sync_skips_a_file_that_the_owner_removed(tmp_path: Path, change: str) -> None:
    storage = FileStorage(tmp_path)
    storage.append("received", b"a")
    if change == "removed":
        storage.remove("received")
    else:
        storage.rename("received", "snapshot")
    storage.sync(["received"], directory=True)
    storage.close()


def failing_open(error: int) -> Callable[..., Any]:
    """``open`` of a file of which no byte can be read."""

    class Unreadable:
        def __enter__(self) -> "Unreadable":
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def seek(self, offset: int) -> None:
            pass

        def read(self, size: int) -> bytes:
            raise OSError(error, "Input/output error")

    return lambda *_, **__: Unreadable()


async def test_an_unreadable_file_is_named_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path, 1) as group:
        await group.leader()
        await group.stop("n1")
        with monkeypatch.context() as patched:
            patched.setattr(file_storage, "open", failing_open(errno.EIO), raising=False)
            with pytest.raises(OSError, match=f"{tmp_path}/n1/identity cannot be read .Input/output error.; repair the disk"):
                await group.start("n1")
        group.services.clear()


def test_errors_name_the_file_and_its_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator with several nodes on one machine has to know which disk failed."""
    storage = FileStorage(tmp_path)
    with pytest.raises(FileNotFoundError, match=f"{tmp_path}/absent cannot be opened .No such file"):
        storage.read("absent")
    with pytest.raises(FileNotFoundError, match=f"{tmp_path}/absent cannot be renamed to other .No such file"):
        storage.rename("absent", "other")

    def fails(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", fails)
        with pytest.raises(OSError, match=f"{tmp_path}/log-1 cannot be written .Input/output error"):
            storage.append("log-1", b"x")
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fails)
        with pytest.raises(OSError, match=f"{tmp_path} could not be synced .Input/output error"):
            storage.sync([], True)
    storage.close()

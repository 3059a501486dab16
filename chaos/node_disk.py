"""The disk of one of our nodes in a scenario with faults of disks.

``python -m replicated_namesrv.chaos.node_disk SYNCED SYNC_MS serve …`` runs ``namesrv serve …``. Each sync of a file takes
SYNC_MS longer. When it has ended, the inode and the length that was synced are appended to the file SYNCED. A ``DiskFault`` is in
force while a file next to SYNCED exists.

After a power loss, a file has the bytes that were synced. Bytes that were only written are lost. A killed process does not lose
them, because they are in the page cache of the system. So the run kills the node and then cuts its files (``lose_unsynced``). Our
nodes only append to files, or write a new file and rename it. The names of files are kept, synced or not.
"""

import os
import runpy
import sys
import threading
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

HANG_LOOK_S = 0.01


class DiskFault(StrEnum):
    """A fault of a node's disk that begins and ends while the node runs."""

    HANGS = "hangs"
    """No sync ends."""
    FULL = "full"
    """The file system reports no free space. Data that the node writes is still stored."""

    def file(self, synced: Path) -> Path:
        """The file whose existence puts the fault in force. ``synced``: the argument SYNCED of the node."""
        return synced.with_suffix(f".{self}")

    def begin(self, synced: Path) -> None:
        synced.parent.mkdir(parents=True, exist_ok=True)  # nodes of other commands may store nothing there
        self.file(synced).touch()

    def end(self, synced: Path) -> None:
        self.file(synced).unlink(missing_ok=True)


PACKAGE = __package__.partition(".")[0] if __package__ else "replicated_namesrv"
OWN_COMMAND = ("-m", PACKAGE, "serve")
"""The end of a command that runs one of our nodes."""


def with_disk(command: Sequence[str], synced: Path, sync_ms: int) -> list[str]:
    """``command``, which ends with OWN_COMMAND, with such a disk."""
    assert has_disk(command)
    return [*command[:-2], f"{PACKAGE}.chaos.node_disk", str(synced), str(sync_ms), "serve"]


def has_disk(command: Sequence[str]) -> bool:
    """Whether ``command`` can run with such a disk."""
    return tuple(command[-len(OWN_COMMAND) :]) == OWN_COMMAND


def lose_unsynced(data_dir: Path, synced: Path) -> None:
    """Cut each file in ``data_dir`` to the length that was synced. The node must be dead."""
    lines = synced.read_text(encoding="ascii").splitlines() if synced.exists() else []
    lengths = {int(inode): int(length) for inode, length in map(str.split, lines)}
    for path in data_dir.rglob("*"):
        found = path.lstat()
        kept = lengths.get(found.st_ino, 0)
        if path.is_file() and not path.is_symlink() and found.st_size > kept:
            os.truncate(path, kept)


def _watched(sync: Callable[[int], None], report: int, sync_ms: int, hangs: Path) -> Callable[[int], None]:
    never = threading.Event()

    def watched(descriptor: int) -> None:
        found = os.fstat(descriptor)
        never.wait(sync_ms / 1000)
        while hangs.exists():
            never.wait(HANG_LOOK_S)
        sync(descriptor)
        os.write(report, f"{found.st_ino} {found.st_size}\n".encode())

    return watched


def _filled(statvfs: Callable[[Any], os.statvfs_result], full: Path) -> Callable[[Any], os.statvfs_result]:
    def filled(path: Any) -> os.statvfs_result:
        found = statvfs(path)
        if not full.exists():
            return found
        values = list(found)
        values[3] = values[4] = 0  # f_bfree and f_bavail
        return os.statvfs_result(values)

    return filled


def main(arguments: Sequence[str]) -> None:
    """Run the node in this process."""
    synced, sync_ms, *rest = arguments
    Path(synced).parent.mkdir(parents=True, exist_ok=True)
    report, hangs = os.open(synced, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), DiskFault.HANGS.file(Path(synced))
    os.fsync = _watched(os.fsync, report, int(sync_ms), hangs)  # type: ignore[assignment]  # only called with a descriptor
    os.fdatasync = _watched(os.fdatasync, report, int(sync_ms), hangs)  # type: ignore[assignment]  # as above
    os.statvfs = _filled(os.statvfs, DiskFault.FULL.file(Path(synced)))  # type: ignore[assignment]  # it has one parameter, too
    sys.argv = [PACKAGE, *rest]
    runpy.run_module(PACKAGE, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])

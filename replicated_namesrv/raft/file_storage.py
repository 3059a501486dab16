"""Storage in a real directory.

Each file is appended to through one descriptor that stays open. A lock keeps a second process out. ``sync`` runs in other threads
while the owner continues to append. It opens each file anew: the owner may close its descriptor meanwhile.

All names are relative to the descriptor of the directory that the lock covers. So if the directory is moved while the process
runs, the process continues in the moved one, and another directory at the old path stays untouched.

A failed ``sync`` stops the node, so it must not fail merely because connections use all descriptors. ``_Spares`` holds some in
reserve, and releases one when a file cannot be opened for lack of descriptors.

On a full disk a node must be able to start, to delete and to vote. Therefore the file ``ballast`` holds space that is given up
for the log and the identity, never for snapshots. When no ballast is left, the error names the path, the bytes needed and the
remedy.
"""

import contextlib
import errno
import fcntl
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from replicated_namesrv.files import NO_SPACE, Ballast, no_space_text
from replicated_namesrv.raft.raft_errors import IdentityError

LOCK, BALLAST = "lock", "ballast"
NEEDS_BALLAST = ("log", "identity")
"""Name prefixes of the files that may use the ballast."""
SEGMENT_BYTES, MARGIN_BYTES = 16 << 20, 4 << 20
"""Size of a segment, and a margin. The ballast is as large as both together, because a start may rewrite the last segment of the
log; but it takes at most an eighth of the disk."""
UNREADABLE = (
    "repair the disk and start the node again. If the file stays unreadable and the other nodes are well, give the node an empty "
    "data directory: it returns without a vote, copies the state and is then promoted"
)
MISSING = (
    "it was moved or deleted while the node was running. Put it back and start the node again. If it is lost and the other nodes "
    "are well, move the whole data directory away first: the node returns without a vote, copies the state and is then promoted"
)
SPARES: Final = 8
"""Number of files that can be opened at the same time even when the process has no descriptors left."""


def make_durably(directory: Path) -> None:
    """Create ``directory`` and its missing parents, and sync all parents.

    Otherwise a power loss may remove a new data directory with everything that was synced in it. Parents that exist are synced,
    too: something else may have created them just now, or a process that was killed before it synced them. A parent that exists
    and cannot be opened or synced is skipped.
    """
    for path in reversed([directory, *directory.parents][:-1]):
        is_new = not path.exists()
        if is_new:
            path.mkdir(exist_ok=True, mode=0o700)
        try:
            _sync_directory(path.parent)
        except OSError:
            if is_new:
                raise


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lock_directory(descriptor: int) -> None:
    """Lock a directory until its descriptor is closed. The lock file alone can be deleted while a process uses the directory.
    Raises BlockingIOError if another process has the lock. On file systems without locks on directories, only the lock file
    protects."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        return


class _Spares:
    """Spare descriptors for the time when no others are available. Used from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._null = os.open(os.devnull, os.O_RDONLY)
        self._kept = [os.dup(self._null) for _ in range(SPARES)]

    def open(self, name: str, flags: int, directory: int) -> int:
        """Open a file of ``directory``, which also works without free descriptors. Close the result with ``close``."""
        while True:
            try:
                return os.open(name, flags, 0o600, dir_fd=directory)
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE) or not self._give_up_one():
                    raise

    def close(self, descriptor: int) -> None:
        """Close the descriptor. If a spare was used, turn this descriptor into a spare with ``dup2``. If it were closed and
        opened again, another part of the process could take the free descriptor in between."""
        with self._lock:
            if len(self._kept) < SPARES:
                os.dup2(self._null, descriptor, inheritable=False)
                self._kept.append(descriptor)
                return
        os.close(descriptor)

    def _give_up_one(self) -> bool:
        with self._lock:
            if not self._kept:
                return False
            os.close(self._kept.pop())
            return True

    def close_all(self) -> None:
        """Close all spares, when the storage closes."""
        while self._give_up_one():
            pass
        os.close(self._null)


class FileStorage:
    """``Storage`` on the files of one directory, which is created if missing. IdentityError if another process uses it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        make_durably(directory)
        self._descriptors: dict[str, int] = {}
        self._spares = _Spares()
        self._directory_descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        self._lock = os.open(LOCK, os.O_RDWR | os.O_CREAT, 0o600, dir_fd=self._directory_descriptor)
        opened = Path(f"/proc/self/fd/{self._directory_descriptor}")
        self._ballast = Ballast((opened if opened.exists() else directory) / BALLAST)
        disk = os.fstatvfs(self._directory_descriptor)
        self._share = disk.f_blocks * disk.f_frsize // 16
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            lock_directory(self._directory_descriptor)
        except OSError:
            os.close(self._lock)
            os.close(self._directory_descriptor)
            self._spares.close_all()
            raise IdentityError(f"{directory} is used by another process; give each node a directory of its own") from None
        with os.scandir(self._directory_descriptor) as entries:
            self._names = {entry.name for entry in entries if entry.is_file()} - {LOCK, BALLAST}
        """The files. Only this object changes them, so a list of them needs no descriptor. A name is added after its file, and
        discarded before it, because ``sync`` looks for names without files."""

    @property
    def segment_bytes_max(self) -> int:
        """Largest segment of the log for which the ballast has room for a copy."""
        return max(1 << 20, min(SEGMENT_BYTES, self._share))

    def fill_ballast(self) -> None:
        """Refill the ballast after it was given up, if the disk has space."""
        self._ballast.fill(min(SEGMENT_BYTES, self._share) + min(MARGIN_BYTES, self._share))

    def list_names(self) -> list[str]:
        return sorted(self._names)

    def size(self, name: str) -> int:
        return os.stat(name, dir_fd=self._directory_descriptor).st_size

    def read(self, name: str, offset: int = 0, size: int | None = None) -> bytes:
        try:
            descriptor = self._spares.open(name, os.O_RDONLY, self._directory_descriptor)
        except OSError as error:
            raise self._named(error, name, "cannot be opened") from None
        try:
            with open(descriptor, "rb", closefd=False) as file:
                file.seek(offset)
                return file.read(-1 if size is None else size)
        except OSError as error:
            raise self._named(error, name, "cannot be read", f"; {UNREADABLE}" * (error.errno == errno.EIO)) from None
        finally:
            self._spares.close(descriptor)

    def _named(self, error: OSError, name: str, problem: str, remedy: str = "") -> OSError:
        """The same error with a text that names the file and its directory."""
        return OSError(error.errno, f"{self._directory / name} {problem} ({error.strerror}){remedy}")

    def _open(self, name: str) -> int:
        descriptor = self._descriptors.get(name)
        if descriptor is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            descriptor = self._descriptors[name] = self._spares.open(name, flags, self._directory_descriptor)
            self._names.add(name)
        return descriptor

    def append(self, name: str, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._open(name), view) :]
            except OSError as error:
                if error.errno not in NO_SPACE:
                    raise self._named(error, name, "cannot be written") from None
                if not (name.startswith(NEEDS_BALLAST) and self._ballast.give_up(len(view))):
                    raise OSError(error.errno, no_space_text(self._directory / name, len(view))) from None

    def rename(self, old: str, new: str) -> None:
        self._names.discard(old)
        try:
            os.rename(old, new, src_dir_fd=self._directory_descriptor, dst_dir_fd=self._directory_descriptor)
        except OSError as error:
            self._names.add(old)
            raise self._named(error, old, f"cannot be renamed to {new}") from None
        self._names.add(new)
        self._forget(new)
        if old in self._descriptors:
            self._descriptors[new] = self._descriptors.pop(old)

    def remove(self, name: str) -> None:
        self._forget(name)
        self._names.discard(name)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._directory_descriptor)

    def _forget(self, name: str) -> None:
        descriptor = self._descriptors.pop(name, None)
        if descriptor is not None:
            self._spares.close(descriptor)

    def sync(self, names: Sequence[str], directory: bool) -> None:
        for name in names:
            descriptor = self._open_to_sync(name)
            if descriptor is None:
                continue
            try:
                os.fdatasync(descriptor)
            except OSError as error:
                raise self._named(error, name, "could not be synced") from None
            finally:
                self._spares.close(descriptor)
        if directory:
            try:
                os.fsync(self._directory_descriptor)
            except OSError as error:
                raise self._named(error, "", "could not be synced") from None

    def _open_to_sync(self, name: str) -> int | None:
        """None: the owner has removed or renamed the file. FileNotFoundError if somebody else did."""
        for _ in range(2):  # the owner can remove the file and write another one of this name between the two checks
            try:
                return self._spares.open(name, os.O_RDONLY, self._directory_descriptor)
            except FileNotFoundError:
                if name not in self._names:
                    return None
        raise FileNotFoundError(errno.ENOENT, f"{self._directory / name} is missing: {MISSING}")

    def close(self) -> None:
        for name in list(self._descriptors):
            self._forget(name)
        os.close(self._directory_descriptor)
        os.close(self._lock)
        self._spares.close_all()

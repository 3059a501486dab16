"""Atomic file replacement: after a crash a file has its old content or its new content.

The content is written to a temporary file beside the target, synced and renamed, and the folder is synced. A full disk leaves
the old file unchanged. The new file has the permissions of the old one. Writers of one path take turns: the temporary file has
a fixed name, so that a crash leaves at most one.

``FileWriter`` is for files that are rewritten as a whole at each change of something in memory.
"""

import asyncio
import contextlib
import errno
import fcntl
import logging
import os
import stat
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from replicated_namesrv.errors import OutcomeUnknownError, StorageError

Change = TypeVar("Change")
Done = TypeVar("Done")

log = logging.getLogger(__name__)
DISK_LOOK_S = 0.1
"""Interval at which the free space is measured again. A node writes a few megabytes in this time."""
UNKNOWN_ROOM_BYTES = 1 << 40
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
BALLAST_STEP_BYTES, BALLAST_LEAVES_BYTES = 256 << 10, 64 << 10
"""Minimum number of bytes that one release frees; minimum number left free on the disk when the ballast is filled."""

_turns: dict[Path, threading.Lock] = {}
"""Locks by path. A process writes few paths."""


def write_atomically(
    path: Path, content: bytes | Sequence[bytes], *, backup: bool = False, ballast: "Ballast | None" = None
) -> None:
    """Replace the content of ``path``. Folders are created.

    ``content``: the whole, or its parts. ``backup``: keep the old content as ``<path>.bak``. ``ballast``: space to release when
    the disk is full.

    Raises StorageError: the old content is still in place. Raises OutcomeUnknownError: the new content is in place, but the
    folder could not be synced, so the old content may return after a power loss.
    """
    with _turns.setdefault(path.absolute(), threading.Lock()):
        _replace(path, [content] if isinstance(content, bytes) else content, backup, ballast)
        try:
            sync_folder(path.parent)
        except OSError as cause:
            raise OutcomeUnknownError(
                f"{path}: written, but its folder could not be synced ({cause.strerror}): after a power loss the old content may "
                "be back; repeat the change"
            ) from cause


def _replace(path: Path, parts: Sequence[bytes], backup: bool, ballast: "Ballast | None") -> None:
    aside = path.with_name(path.name + ".new")
    saved_aside = path.with_name(path.name + ".bak.new")
    try:
        create_folder(path.parent)
        mode = _mode(path)
        saved = path.with_name(path.name + ".bak")
        while not _is_written(aside, parts, mode, saved, ballast):
            pass
        if backup and path.exists():
            _save_old(path, saved_aside, mode)
            os.replace(saved_aside, saved)
        os.replace(aside, path)
    except OSError as cause:
        for leftover in (aside, saved_aside):
            with contextlib.suppress(OSError):
                leftover.unlink(missing_ok=True)
        why = cause.strerror if cause.errno not in NO_SPACE else no_space_text(path, sum(map(len, parts)))
        raise StorageError(f"{path}: could not be written ({why}); the old content is unchanged") from cause


def _is_written(path: Path, parts: Sequence[bytes], mode: int | None, saved: Path, ballast: "Ballast | None") -> bool:
    """Write the file. False: the disk is full, and space was released for another try (the ballast, or else the old content in
    ``saved``). Raises OSError.
    """
    try:
        _write_synced(path, parts, mode)
    except OSError as error:
        if error.errno not in NO_SPACE or ballast is None:
            raise
        if not ballast.give_up(sum(map(len, parts))):
            if not saved.exists():
                raise
            saved.unlink()  # the write did not replace the old content, so its saved copy is not needed
        return False
    return True


def _save_old(path: Path, saved: Path, mode: int | None) -> None:
    """Keep the old content under another name: as a hard link, which takes no space, or as a copy if no link can be made."""
    saved.unlink(missing_ok=True)
    try:
        if path.is_symlink():
            raise OSError(errno.EMLINK, "a link is not the content")
        os.link(path, saved)
    except OSError:
        _write_synced(saved, [path.read_bytes()], mode)


def no_space_text(path: Path, wanted: int) -> str:
    """Which disk is full, by how much, and what to do."""
    try:
        free = f"{free_bytes(path.parent)} bytes are free"
    except OSError:
        free = "how much is free is unknown"
    return f"no space left on the disk of {path.parent}: {wanted} bytes are needed and {free}; make room on it, then repeat"


def why_unwritable(path: Path) -> str | None:
    """Why ``write_atomically`` cannot replace or create ``path``, as far as can be checked. None: no reason found."""
    if path.exists() and not path.is_file():
        return f"{path} is not a regular file"
    folder = path.parent
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir():
        return f"{folder} is not a folder"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"{folder} is not writable for this user"
    return None


def hold_folder(folder: Path, *, alone: bool = False) -> int | None:
    """A descriptor that marks ``folder`` as used by this process until it is closed. None: the folder does not exist, or cannot
    be marked. ``alone``: no other process may use the folder. Raises StorageError if one does."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if alone and isinstance(error, BlockingIOError):
            raise StorageError(f"{folder} is used by another process; give each node a folder of its own (dataDir)") from None
        return None
    return descriptor


def is_held(folder: Path) -> bool:
    """Whether a process uses ``folder`` (``hold_folder``). Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def free_bytes(folder: Path) -> int:
    """Free bytes on the disk of ``folder``, which need not exist yet. Raises OSError."""
    while not folder.exists():
        folder = folder.parent
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


class Ballast:
    """Disk space reserved by a file. It is released for writes that must succeed on a full disk: deletions, and a start."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def fill(self, size: int) -> None:
        """Reserve ``size`` bytes, or as many as the disk has room for. If the file cannot be written, it keeps its size."""
        with contextlib.suppress(OSError):
            held = self._path.stat().st_size if self._path.exists() else 0
            if held > size:
                os.truncate(self._path, size)
            size = min(size, held + free_bytes(self._path.parent) - BALLAST_LEAVES_BYTES)
            if held >= size:
                return
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, size)
            finally:
                os.close(descriptor)

    def give_up(self, wanted: int) -> bool:
        """Release at least ``wanted`` bytes, or all. Returns False if nothing is left."""
        try:
            held = self._path.stat().st_size
            if held:
                os.truncate(self._path, max(0, held - max(wanted, BALLAST_STEP_BYTES)))
        except OSError:
            return False
        return held > 0


class DiskReserve:
    """The bytes that may still be written. ``reserve`` bytes of the disk stay free, and ``beside()`` bytes for a second copy of
    the stored data, which is needed while the data is rewritten.

    A line is logged when no byte may be written any more, and when there is room again.
    """

    def __init__(
        self,
        folder: Path,
        reserve: int,
        beside: Callable[[], int],
        free: Callable[[Path], int] = free_bytes,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._reserve, self._beside, self._free, self._now_s = folder, reserve, beside, free, now_s
        self._looked_s: float | None = None
        self.free_bytes: int | None = None
        """Free bytes at the last measurement; None: unknown."""
        self.is_short = False
        """True while nothing may be added, according to the last measurement."""

    @property
    def _needed(self) -> int:
        return self._reserve + self._beside()

    @property
    def warning(self) -> str | None:
        """A warning for operators; None if there is room."""
        if not self.is_short:
            return None
        return (
            f"{self.free_bytes} bytes are free on the disk of {self._folder}, {self._needed} must stay free "
            "(diskReserveBytes and a copy of the state): requests that add data are refused until there is more"
        )

    def room(self) -> int:
        """Bytes that may be added."""
        now_s = self._now_s()
        if self._looked_s is None or now_s - self._looked_s >= DISK_LOOK_S:
            self._looked_s = now_s
            self._look()
        return UNKNOWN_ROOM_BYTES if self.free_bytes is None else max(0, self.free_bytes - self._needed)

    def _look(self) -> None:
        try:
            self.free_bytes = self._free(self._folder)
        except OSError as error:  # if the free space is unknown, a write that does not fit fails by itself
            log.warning("free disk space unknown", extra={"folder": str(self._folder), "cause": str(error)})
            self.free_bytes = None
        is_short = self.free_bytes is not None and self.free_bytes <= self._needed
        if is_short != self.is_short:
            self.is_short = is_short
            facts = {"folder": str(self._folder), "free": self.free_bytes, "needed": self._needed}
            if is_short:
                remedy = "make room on the disk, delete what is not needed, or lower diskReserveBytes"
                log.warning("disk below diskReserveBytes: requests that add data are refused", extra={**facts, "remedy": remedy})
            else:
                log.warning("disk has room again", extra=facts)


def create_folder(folder: Path) -> None:
    """Create a folder and its parents, each durable before the next."""
    if not folder.is_dir():
        create_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def _mode(path: Path) -> int | None:
    """Permissions of the file to replace; None for a new file. A file with a secret must not become readable by others.

    Raises OSError also for a device or a pipe, which must not be replaced by a file."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is not a regular file")
    return stat.S_IMODE(mode)


def _write_synced(path: Path, parts: Sequence[bytes], mode: int | None) -> None:
    with open(path, "wb", opener=lambda name, flags: os.open(name, flags, 0o666 if mode is None else 0o600)) as file:
        if mode is not None:
            os.fchmod(file.fileno(), mode)
        file.writelines(parts)
        file.flush()
        os.fsync(file.fileno())


def give_to_owner(folder: Path, *written: Path) -> None:
    """Make the owner of ``folder`` the owner of what root wrote, so that the user of the node can change it. Raises OSError."""
    if os.geteuid() == 0:
        owner = folder.stat()
        for path in written:
            os.chown(path, owner.st_uid, owner.st_gid)


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class FileWriter(Generic[Change, Done]):
    """Changes of a file's content: first to disk, then to memory, then the answer, in the order of arrival.

    There is one write at a time. It is built from all that was in memory when it began, so no change overwrites another.
    Changes that wait while the disk is busy are written together, so a slow disk costs one round for all of them. A change
    that the disk refuses is not applied. Runs on the event loop; the write itself runs in a thread.
    """

    def __init__(self, build: Callable[[Sequence[Change]], Callable[[], None]], apply: Callable[[Change], Done]) -> None:
        """``build(changes)`` returns a function that writes the file with these changes. The function runs in a thread and may
        raise StorageError or OutcomeUnknownError. ``apply(change)`` applies a change in memory after the change is on disk."""
        self._build, self._apply = build, apply
        self._waiting: list[tuple[Change, asyncio.Future[Done]]] = []
        self._task: asyncio.Task[None] | None = None

    def submit(self, change: Change) -> "asyncio.Future[Done]":
        """The result of ``apply`` after the change is on disk, or the error of the write."""
        answer: asyncio.Future[Done] = asyncio.get_running_loop().create_future()
        self._waiting.append((change, answer))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._write_all())
        return answer

    async def drain(self) -> None:
        """Wait until no write is pending."""
        while self._task is not None:
            await asyncio.wait([self._task])

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                await self._write(batch)
        finally:
            self._task = None

    async def _write(self, batch: "list[tuple[Change, asyncio.Future[Done]]]") -> None:
        try:
            await asyncio.to_thread(self._build([change for change, _ in batch]))
        except Exception as error:  # catch everything: any error goes to the waiting callers, and the next batch is still written
            if len(batch) > 1:  # one change may be the cause, so write each change alone: then no change fails because of another
                for each in batch:
                    await self._write([each])
            elif not batch[0][1].done():
                batch[0][1].set_exception(error)
            return
        for change, answer in batch:
            result = self._apply(change)
            if not answer.done():
                answer.set_result(result)

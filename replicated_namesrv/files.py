"""Files that survive a crash whole: the old content or the new, never a mixture.

Content is written beside the target, synced, renamed over it, and the folder is synced. A disk that fills up half-way leaves
the old file as it was. The new file has the permissions of the old one. Writers of one path take turns: the file beside the
target has a fixed name, so that a crash leaves at most one.

``FileWriter`` is for files that are rewritten as a whole at each change of something in memory.
"""

import asyncio
import contextlib
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
DISK_LOOK_S = 1.0
UNKNOWN_ROOM_BYTES = 1 << 40

_turns: dict[Path, threading.Lock] = {}
"""By path that was written. A process writes few paths."""


def write_atomically(path: Path, content: bytes, *, backup: bool = False) -> None:
    """Replace the content of ``path``; folders are created. ``backup``: keep what was there as ``<path>.bak``.

    Raises StorageError: the old content is still in place. OutcomeUnknownError: the new content is in place, but the folder could
    not be synced, so that a power loss may bring the old content back.
    """
    with _turns.setdefault(path.absolute(), threading.Lock()):
        _replace(path, content, backup)
        try:
            _sync_folder(path.parent)
        except OSError as cause:
            raise OutcomeUnknownError(
                f"{path}: written, but its folder could not be synced ({cause.strerror}): after a power loss the old content may "
                "be back; repeat the change"
            ) from cause


def _replace(path: Path, content: bytes, backup: bool) -> None:
    aside = path.with_name(path.name + ".new")
    saved_aside = path.with_name(path.name + ".bak.new")
    try:
        _create_folder(path.parent)
        mode = _mode(path)
        _write_synced(aside, content, mode)
        if backup and path.exists():
            _write_synced(saved_aside, path.read_bytes(), mode)
            os.replace(saved_aside, path.with_name(path.name + ".bak"))
        os.replace(aside, path)
    except OSError as cause:
        for leftover in (aside, saved_aside):
            with contextlib.suppress(OSError):
                leftover.unlink(missing_ok=True)
        raise StorageError(f"{path}: could not be written ({cause.strerror}); the old content is unchanged") from cause


def why_unwritable(path: Path) -> str | None:
    """Why ``write_atomically`` could not replace or create ``path``, as far as can be seen beforehand; None: it could."""
    folder = path.parent
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir():
        return f"{folder} is no folder"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"{folder} is not writable for this user"
    return None


def free_bytes(folder: Path) -> int:
    """Bytes that may still be written on the disk of ``folder``, which need not exist yet. Raises OSError."""
    while not folder.exists():
        folder = folder.parent
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


class DiskReserve:
    """How much may still be written so that ``reserve`` bytes of the disk stay free, looked up once a second at most.

    Logged when it becomes nothing and when there is room again.
    """

    def __init__(
        self, folder: Path, reserve: int, free: Callable[[Path], int] = free_bytes, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder, self._reserve, self._free, self._now_s = folder, reserve, free, now_s
        self._looked_s: float | None = None
        self._free_bytes = 0
        self._is_short = False

    def room(self, beside: int) -> int:
        """Bytes that may be written, if ``beside`` bytes more must fit: a copy of what is stored, while it is written anew."""
        now_s = self._now_s()
        if self._looked_s is None or now_s - self._looked_s >= DISK_LOOK_S:
            self._looked_s = now_s
            try:
                self._free_bytes = self._free(self._folder)
            except OSError as error:  # nothing is known: what cannot be written is refused when it is
                log.warning("free disk space unknown", extra={"folder": str(self._folder), "cause": str(error)})
                self._free_bytes = self._reserve + beside + UNKNOWN_ROOM_BYTES
        room = max(0, self._free_bytes - self._reserve - beside)
        if (room == 0) != self._is_short:
            self._is_short = room == 0
            text = "disk below diskReserveBytes: refusing what adds to the state" if room == 0 else "disk has room again"
            log.warning(text, extra={"folder": str(self._folder), "free": self._free_bytes, "needed": self._reserve + beside})
        return room


def _create_folder(folder: Path) -> None:
    """With the folders above it, each durable before the next."""
    if not folder.is_dir():
        _create_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        _sync_folder(folder.parent)


def _mode(path: Path) -> int | None:
    """Permissions of a file that is to be replaced, None for a new one. A secret in it must not become readable for others."""
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        return None


def _write_synced(path: Path, content: bytes, mode: int | None) -> None:
    with open(path, "wb", opener=lambda name, flags: os.open(name, flags, 0o666 if mode is None else 0o600)) as file:
        if mode is not None:
            os.fchmod(file.fileno(), mode)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class FileWriter(Generic[Change, Done]):
    """Changes of what one file holds: on disk first, then in memory, then answered, in the order in which they came.

    There is one write at a time, and it is built from all that was in memory when it began, so that no change is lost to another.
    Changes that wait while the disk is busy go out together with the next write: a slow disk costs a round and not a round for
    each. A change that the disk refuses has not happened. Runs on the event loop; the write itself in a thread.
    """

    def __init__(self, build: Callable[[Sequence[Change]], Callable[[], None]], apply: Callable[[Change], Done]) -> None:
        """``build(changes)`` returns what writes the file as it is after them, to be called in a thread, where it may raise
        StorageError or OutcomeUnknownError. ``apply(change)`` makes a change in memory once it is on disk."""
        self._build, self._apply = build, apply
        self._waiting: list[tuple[Change, asyncio.Future[Done]]] = []
        self._task: asyncio.Task[None] | None = None

    def submit(self, change: Change) -> "asyncio.Future[Done]":
        """The result of ``apply`` once the change is on disk, or the error of the write."""
        answer: asyncio.Future[Done] = asyncio.get_running_loop().create_future()
        self._waiting.append((change, answer))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._write_all())
        return answer

    async def drain(self) -> None:
        """Wait until nothing is being written."""
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
        except Exception as error:  # whatever it is belongs to those who wait, and the next batch gets its turn
            if len(batch) > 1:  # one of them may be the reason: none fails because of another
                for each in batch:
                    await self._write([each])
            elif not batch[0][1].done():
                batch[0][1].set_exception(error)
            return
        for change, answer in batch:
            result = self._apply(change)
            if not answer.done():
                answer.set_result(result)

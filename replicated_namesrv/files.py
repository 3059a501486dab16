"""Files that survive a crash whole: the old content or the new, never a mixture.

Content is written beside the target, synced, renamed over it, and the folder is synced. A disk that fills up half-way leaves
the old file as it was.
"""

import contextlib
import os
from pathlib import Path

from replicated_namesrv.errors import StorageError


def write_atomically(path: Path, content: bytes, *, backup: bool = False) -> None:
    """Replace the content of ``path``; folders are created. ``backup``: keep what was there as ``<path>.bak``.

    Raises StorageError; the old content is then still in place.
    """
    aside = path.with_name(path.name + ".new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write_synced(aside, content)
        if backup and path.exists():
            saved = path.with_name(path.name + ".bak")
            saved_aside = path.with_name(path.name + ".bak.new")
            _write_synced(saved_aside, path.read_bytes())
            os.replace(saved_aside, saved)
        os.replace(aside, path)
        _sync_folder(path.parent)
    except OSError as cause:
        for leftover in (aside, path.with_name(path.name + ".bak.new")):
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


def _write_synced(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

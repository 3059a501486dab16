"""A lock that lets only one analysis write into a folder. Two would remove and rename each other's tables.

It is a kernel lock on the file ``analysis.lock`` in the folder, so it ends with its process. The process removes the file,
unless it is killed; a file without a lock has no meaning. Folders that are not mounted on this machine (HDFS, object stores)
and file systems without locks are not protected.
"""

import contextlib
import errno
import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from replicated_namesrv.errors import NamesrvError

LOCK = "analysis.lock"
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
"""Errors of file systems that do not support locks."""


class BusyError(NamesrvError):
    """Another analysis writes into the folder. The text names the folder and, if it is known, that analysis."""


@contextmanager
def output_lock(folder: Path, called: str) -> Iterator[None]:
    """Hold the lock of ``folder``, which is created if necessary. ``called``: the folder as the user named it. Raises BusyError,
    OSError.
    """
    place = folder / LOCK
    descriptor = _taken(place, called)
    try:
        text = f"process {os.getpid()} on {socket.gethostname()} since {time.strftime('%Y-%m-%d %H:%M:%S')}\n"
        with contextlib.suppress(OSError):  # a full disk is not an error here; it is reported when the analysis writes
            os.ftruncate(descriptor, os.pwrite(descriptor, text.encode(), 0))
        yield
    finally:
        with contextlib.suppress(OSError):
            place.unlink()
        os.close(descriptor)


def _taken(place: Path, called: str) -> int:
    """An open file at ``place`` that only this process has locked."""
    while True:
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(place, os.O_RDWR | os.O_CREAT, 0o644)
        except FileNotFoundError:
            continue  # another process had created the folder and has just removed it
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 200, 0).decode("utf-8", "replace").strip()
            os.close(descriptor)
            raise BusyError(
                f"--out {called}: another analysis{f' ({holder})' if holder else ''} is writing there; wait until it has ended, "
                "or choose another --out"
            ) from None
        except OSError as cause:
            if cause.errno not in _NO_LOCKS:
                os.close(descriptor)
                raise
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), os.stat(place)):
                return descriptor
        os.close(descriptor)  # the file is not at ``place`` any more, because the previous owner removed it: try again

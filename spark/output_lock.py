"""One analysis at a time writes into a folder: two would remove and rename each other's tables.

The lock is one of the kernel on a file ``analysis.lock`` inside the folder, so it ends with its process, however that ends; the
file goes with it, or lies there without meaning if the process was killed. Folders that this machine has not mounted (HDFS,
object stores) and file systems without locks know no such thing: there nobody is kept from writing twice.
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
"""What a file system says that has no locks."""


class BusyError(NamesrvError):
    """Another analysis writes into the folder; the text says which."""


@contextmanager
def output_lock(folder: Path, called: str) -> Iterator[None]:
    """Nobody else who asks for ``folder`` has it meanwhile; it is made if need be. ``called`` is how the user named it.

    Raises BusyError, OSError.
    """
    place = folder / LOCK
    descriptor = _taken(place, called)
    try:
        text = f"process {os.getpid()} on {socket.gethostname()} since {time.strftime('%Y-%m-%d %H:%M:%S')}\n"
        with contextlib.suppress(OSError):  # a full disk is told where it matters
            os.ftruncate(descriptor, os.pwrite(descriptor, text.encode(), 0))
        yield
    finally:
        with contextlib.suppress(OSError):
            place.unlink()
        os.close(descriptor)


def _taken(place: Path, called: str) -> int:
    """An open file that this process alone has locked, and that still lies at ``place``."""
    while True:
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(place, os.O_RDWR | os.O_CREAT, 0o644)
        except FileNotFoundError:
            continue  # another one, which had made the folder, has just removed it
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
        os.close(descriptor)  # the one that had it has removed the file

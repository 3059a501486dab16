"""AuditLog: JSON lines about changes, refusals and reloads, in files that are rotated.

Requests without permission have a file of their own, because everyone can cause them: they never displace a line about a change.
A thread writes, so that a slow disk does not delay requests. Lines that it cannot write are counted and dropped. Before the
next line that it can write, it writes a line ``audit-gap`` with their number.
"""

import contextlib
import json
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from replicated_namesrv.errors import StorageError

log = logging.getLogger(__name__)

FILE_BYTES_MAX = 16 << 20
OLD_FILES_MAX = 4
"""Number of old files that are kept (``audit.log.1`` is the newest). A file and its old ones together take at most about five
times ``FILE_BYTES_MAX``."""
WAITING_MAX = 10_000
"""Maximum number of lines that wait for the disk. Further ones are lost and counted."""
STOP_TIMEOUT_S = 5.0
ONLY_OWNER = 0o600
REFUSALS = ("refused", "observed")
"""Events of requests without permission."""
GAP = "audit-gap"
"""Event of a line that describes a gap in the log."""


class AuditLog:
    """The audit log of one node: ``path``, and ``refusals_path`` for requests without permission."""

    def __init__(self, path: Path, node: str, wall_clock_s: Callable[[], float] = time.time) -> None:
        self.path = path
        self.refusals_path = path.with_name(f"{path.stem}-refusals{path.suffix}")
        self.lost = 0
        """Number of lines that could not be written."""
        self._told = 0
        """How many of the lost lines the ``audit-gap`` lines have reported so far."""
        self._node, self._wall_clock_s = node, wall_clock_s
        self._waiting: queue.Queue[tuple[RotatedFile, bytes] | None] = queue.Queue(WAITING_MAX)
        self._thread: threading.Thread | None = None
        self._main, self._refusals = RotatedFile(self.path), RotatedFile(self.refusals_path)

    def start(self) -> None:
        """Open the file. Raises StorageError."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._main.open()
            self._refusals.open()
        except OSError as cause:
            raise StorageError(f"auditLog={self.path}: {cause.strerror}; give a file that this user can write, or off") from None
        self._thread = threading.Thread(target=self._run, name="audit-log", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Write the lines that wait, for at most twice ``STOP_TIMEOUT_S``. Idempotent."""
        if self._thread is not None:
            with contextlib.suppress(queue.Full):
                self._waiting.put(None, timeout=STOP_TIMEOUT_S)
            self._thread.join(STOP_TIMEOUT_S)
            self._thread = None

    def write(self, event: str, **facts: object) -> None:
        """Add a line. Facts that are None are left out."""
        try:
            self._waiting.put_nowait((self._refusals if event in REFUSALS else self._main, self._line(event, facts)))
        except queue.Full:
            self.lost += 1

    def _line(self, event: str, facts: Mapping[str, object]) -> bytes:
        moment = datetime.fromtimestamp(self._wall_clock_s(), UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        known = {name: value for name, value in facts.items() if value is not None}
        return json.dumps({"time": moment, "node": self._node, "event": event, **known}, separators=(",", ":")).encode() + b"\n"

    def _run(self) -> None:
        is_ending = False
        while not is_ending and (waiting := self._waiting.get()) is not None:
            lines = {waiting[0]: [waiting[1]]}
            for _ in range(WAITING_MAX):
                if self._waiting.empty():
                    break
                if (more := self._waiting.get()) is None:
                    is_ending = True
                    break
                lines.setdefault(more[0], []).append(more[1])
            for file, found in lines.items():
                lost = self.lost
                gap = file is self._main and lost > self._told
                if gap:
                    found.insert(0, self._line(GAP, {"reason": "lines could not be written", "lines": lost - self._told}))
                if file.write(found):
                    self.lost += len(found) - gap
                elif gap:
                    self._told = lost
        self._main.close()
        self._refusals.close()


class RotatedFile:
    """A log file and the older files that it was rotated to. Used by one thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BinaryIO | None = None
        self._is_failing = False

    def open(self) -> BinaryIO:
        """Open the file. If its last line was cut off, write a line end first. Raises OSError."""
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, ONLY_OWNER)
        self._file = open(descriptor, "ab")  # noqa: SIM115 - it stays open
        size = self._file.tell()
        # the file ends within a line: a process was killed while it wrote
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            self._file.write(b"\n")
        return self._file

    def write(self, lines: list[bytes]) -> int:
        """Write lines. Returns the number of lines that could not be written."""
        try:
            file = self._file or self.open()
            if file.tell() >= FILE_BYTES_MAX:
                file = self._rotate(file)
            file.write(b"".join(lines))
            file.flush()
        except OSError as error:
            broken, self._file = self._file, None
            if broken is not None:
                with contextlib.suppress(OSError):  # OSError: closing writes what is buffered, which can fail
                    broken.close()
            if not self._is_failing:
                self._is_failing = True
                log.error("the audit log cannot be written", extra={"file": str(self.path), "cause": error.strerror})
            return len(lines)
        self._is_failing = False
        return 0

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _rotate(self, file: BinaryIO) -> BinaryIO:
        file.close()
        self._file = None
        for number in range(OLD_FILES_MAX - 1, 0, -1):
            old = self._numbered(number)
            if old.exists():
                old.replace(self._numbered(number + 1))
        self.path.replace(self._numbered(1))
        return self.open()

    def _numbered(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")

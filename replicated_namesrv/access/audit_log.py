"""AuditLog: JSON lines about changes, refusals and reloads, in a file that is rotated.

A thread writes, so that a slow disk does not delay requests. Lines that it cannot write are counted, never waited for.
"""

import contextlib
import json
import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from replicated_namesrv.errors import StorageError

log = logging.getLogger(__name__)

FILE_BYTES_MAX = 16 << 20
OLD_FILES_MAX = 4
"""The log and its old files (``audit.log.1`` is the newest) have at most five times ``FILE_BYTES_MAX``."""
WAITING_MAX = 10_000
"""Lines that may wait for the disk. Further ones are lost and counted."""
STOP_TIMEOUT_S = 5.0
ONLY_OWNER = 0o600


class AuditLog:
    """One log file."""

    def __init__(self, path: Path, node: str, wall_clock_s: Callable[[], float] = time.time) -> None:
        self.path = path
        self.lost = 0
        """Lines that were not written."""
        self._node, self._wall_clock_s = node, wall_clock_s
        self._waiting: queue.Queue[bytes | None] = queue.Queue(WAITING_MAX)
        self._thread: threading.Thread | None = None
        self._file: BinaryIO | None = None
        self._is_failing = False

    def start(self) -> None:
        """Open the file. Raises StorageError."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._open()
        except OSError as cause:
            raise StorageError(f"auditLog={self.path}: {cause.strerror}; give a file that this user can write, or off") from None
        self._thread = threading.Thread(target=self._run, name="audit-log", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Write what waits, for at most ``STOP_TIMEOUT_S``. Idempotent."""
        if self._thread is not None:
            with contextlib.suppress(queue.Full):
                self._waiting.put(None, timeout=STOP_TIMEOUT_S)
            self._thread.join(STOP_TIMEOUT_S)
            self._thread = None

    def write(self, event: str, **facts: object) -> None:
        """Add a line. Facts that are None are left out."""
        moment = datetime.fromtimestamp(self._wall_clock_s(), UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        known = {name: value for name, value in facts.items() if value is not None}
        line = json.dumps({"time": moment, "node": self._node, "event": event, **known}, separators=(",", ":"))
        try:
            self._waiting.put_nowait(line.encode() + b"\n")
        except queue.Full:
            self.lost += 1

    def _run(self) -> None:
        while (line := self._waiting.get()) is not None:
            lines = [line]
            while len(lines) < WAITING_MAX and not self._waiting.empty():
                if (line := self._waiting.get()) is None:
                    self._waiting.put(None)
                    break
                lines.append(line)
            self._write(lines)
        if self._file is not None:
            self._file.close()

    def _write(self, lines: list[bytes]) -> None:
        try:
            file = self._file or self._open()
            if file.tell() >= FILE_BYTES_MAX:
                file = self._rotate(file)
            file.write(b"".join(lines))
            file.flush()
            self._is_failing = False
        except OSError as error:
            self.lost += len(lines)
            broken, self._file = self._file, None
            if broken is not None:
                with contextlib.suppress(OSError):  # closing writes what is buffered
                    broken.close()
            if not self._is_failing:
                self._is_failing = True
                log.error("the audit log cannot be written", extra={"file": str(self.path), "cause": error.strerror})

    def _open(self) -> BinaryIO:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, ONLY_OWNER)
        self._file = open(descriptor, "ab")  # noqa: SIM115 - it stays open
        return self._file

    def _rotate(self, file: BinaryIO) -> BinaryIO:
        file.close()
        self._file = None
        for number in range(OLD_FILES_MAX - 1, 0, -1):
            old = self._numbered(number)
            if old.exists():
                old.replace(self._numbered(number + 1))
        self.path.replace(self._numbered(1))
        return self._open()

    def _numbered(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")

"""Files wherever Spark can reach them: a thin layer over Hadoop's file system; a folder may be local, HDFS or an object store.

Only what is small passes through here: manifests, names, sizes. Records are read by Spark itself.
"""

import json
import time
from typing import Any, NamedTuple

from pyspark.sql import SparkSession

from replicated_namesrv.spark.session import on_own_connection

_TEXT_BYTES_MAX = 16 << 20
_CANCEL_S = 30.0
"""Longest wait for cancelled jobs to end."""


class Entry(NamedTuple):
    """A file or folder."""

    path: str
    is_folder: bool
    size_bytes: int
    modified_ms: int


class Storage:
    """File system calls by path or URI; each raises OSError with the path where it fails."""

    def __init__(self, spark: SparkSession) -> None:
        self._context = spark.sparkContext
        self._jvm: Any = self._context._jvm
        self._configuration: Any = self._context._jsc.hadoopConfiguration()

    def _at(self, path: str) -> tuple[Any, Any]:
        place = self._jvm.org.apache.hadoop.fs.Path(path)
        return place.getFileSystem(self._configuration), place

    def exists(self, path: str) -> bool:
        """Whether there is a file or folder."""
        system, place = self._at(path)
        return bool(system.exists(place))

    def entry(self, path: str) -> Entry:
        """What lies at ``path``."""
        system, place = self._at(path)
        return _entry(system.getFileStatus(place))

    def list(self, path: str) -> list[Entry]:
        """What a folder holds, by name; empty if there is no such folder."""
        system, place = self._at(path)
        if not system.exists(place):
            return []
        return sorted(_entry(status) for status in system.listStatus(place))

    def read_text(self, path: str) -> str:
        """A small text file. Raises ValueError for one of more than 16 MiB."""
        system, place = self._at(path)
        if system.getFileStatus(place).getLen() > _TEXT_BYTES_MAX:
            raise ValueError(f"{path}: longer than {_TEXT_BYTES_MAX} bytes")
        stream = system.open(place)
        try:
            return bytes(stream.readAllBytes()).decode("utf-8")
        finally:
            stream.close()

    def first_line(self, path: str) -> str:
        """Up to 64 KiB of a file's first line, without its end."""
        system, place = self._at(path)
        stream = system.open(place)
        try:
            return bytes(stream.readNBytes(1 << 16)).split(b"\n", 1)[0].decode("utf-8", "replace")
        finally:
            stream.close()

    def ends_with_line_feed(self, path: str) -> bool:
        """Whether the last byte is a line feed: if not, the last line is torn."""
        system, place = self._at(path)
        size = system.getFileStatus(place).getLen()
        if size == 0:
            return False
        stream = system.open(place)
        try:
            stream.seek(size - 1)
            return bytes(stream.readNBytes(1)) == b"\n"
        finally:
            stream.close()

    def write_text(self, path: str, text: str) -> None:
        """``write_bytes`` of UTF-8."""
        self.write_bytes(path, text.encode("utf-8"))

    def write_bytes(self, path: str, content: bytes) -> None:
        """Write aside, then rename, so that a reader sees the old file or the new one."""
        system, place = self._at(path)
        aside = self._jvm.org.apache.hadoop.fs.Path(path + ".new")
        stream = system.create(aside, True)
        try:
            stream.write(bytearray(content))
        finally:
            stream.close()
        system.delete(place, False)
        system.rename(aside, place)

    def write_json(self, path: str, value: Any) -> None:
        """``write_text`` of indented JSON."""
        self.write_text(path, json.dumps(value, indent=1, sort_keys=True) + "\n")

    def make_folder(self, path: str) -> None:
        """Make a folder and those above it; nothing happens if it is there."""
        system, place = self._at(path)
        if not system.mkdirs(place):
            raise OSError(f"{path}: cannot be made")

    def rename(self, source: str, target: str) -> None:
        """Move a file or folder; the target's parent is made."""
        system, place = self._at(source)
        goal = self._jvm.org.apache.hadoop.fs.Path(target)
        system.mkdirs(goal.getParent())
        if not system.rename(place, goal):
            raise OSError(f"{source}: cannot be renamed to {target}")

    def delete(self, path: str) -> None:
        """Remove a file or folder with all in it; nothing happens if there is none."""
        system, place = self._at(path)
        system.delete(place, True)

    def discard(self, path: str) -> None:
        """Remove a folder that jobs may be writing to: they are cancelled first. Also after an interruption."""

        def cancel_and_delete() -> None:
            self._context.cancelAllJobs()
            tracker, deadline = self._context.statusTracker(), time.monotonic() + _CANCEL_S
            while tracker.getActiveJobsIds() and time.monotonic() < deadline:
                time.sleep(0.05)
            self.delete(path)

        on_own_connection(cancel_and_delete)


def _entry(status: Any) -> Entry:
    return Entry(status.getPath().toString(), status.isDirectory(), status.getLen(), status.getModificationTime())

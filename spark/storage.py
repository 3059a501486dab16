"""Files wherever Spark can reach them: a thin layer over Hadoop's file system; a folder may be local, HDFS or an object store.

Only what is small passes through here: manifests, names, sizes. Records are read by Spark itself.
"""

import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from replicated_namesrv.spark.session import on_own_connection

_TEXT_BYTES_MAX = 16 << 20
_LINE_BYTES_MAX = 1 << 16
_CANCEL_S = 30.0
"""Longest wait for cancelled jobs to end."""


class FolderEntry(NamedTuple):
    """A file or folder."""

    path: str
    is_folder: bool
    size_bytes: int
    modified_ms: int


class Files(Protocol):
    """What finding runs asks of a file system. Each call raises OSError, which names the path."""

    def exists(self, path: str) -> bool:
        """Whether there is a file or folder."""

    def entry(self, path: str) -> FolderEntry:
        """What lies at ``path``; its own path is absolute."""

    def list(self, path: str) -> list[FolderEntry]:
        """What a folder holds, by name; empty if there is no such folder."""

    def read_text(self, path: str) -> str:
        """A small text file. Raises ValueError for one of more than 16 MiB."""

    def first_line(self, path: str) -> str:
        """Up to 64 KiB of a file's first line, without its end."""

    def ends_with_line_feed(self, path: str) -> bool:
        """Whether the last byte is a line feed: if not, the last line is torn."""


class LocalFiles:
    """Files of this machine, without Spark."""

    def exists(self, path: str) -> bool:
        """As in Files."""
        return os.path.lexists(path)

    def entry(self, path: str) -> FolderEntry:
        """As in Files; symbolic links are followed, so that one folder has one path."""
        place = os.path.realpath(path)
        with _named(path):
            status = os.stat(place)
        return FolderEntry(place, os.path.isdir(place), status.st_size, status.st_mtime_ns // 1_000_000)

    def list(self, path: str) -> list[FolderEntry]:
        """As in Files; a link that is called ``latest``, which suites set beside their runs, is left out, and so is what vanishes
        meanwhile: an analysis may be writing its results beside the runs."""
        found = []
        with _named(path):
            names = sorted(os.listdir(path)) if os.path.isdir(path) else []
        for name in names:
            place = os.path.join(path, name)
            if name == "latest" and os.path.islink(place):
                continue
            try:
                entry = self.entry(place)
            except OSError:
                if os.path.exists(place):
                    raise
            else:
                found.append(entry._replace(path=place) if name.endswith(".jsonl") else entry)
        return found

    def read_text(self, path: str) -> str:
        """As in Files."""
        with _named(path), open(path, "rb") as file:
            content = file.read(_TEXT_BYTES_MAX + 1)
        return _text(content)

    def first_line(self, path: str) -> str:
        """As in Files."""
        with _named(path), open(path, "rb") as file:
            return file.readline(_LINE_BYTES_MAX).rstrip(b"\n").decode("utf-8", "replace")

    def ends_with_line_feed(self, path: str) -> bool:
        """As in Files."""
        with _named(path), open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - 1, 0))
            return file.read() == b"\n"


def local_path(path: str) -> str | None:
    """The path that a path or URI names on this machine; None if it lies elsewhere."""
    if path.startswith("file:"):
        return unquote(urlsplit(path).path)
    return None if "://" in path else path


def _text(content: bytes) -> str:
    if len(content) > _TEXT_BYTES_MAX:
        raise ValueError(f"longer than {_TEXT_BYTES_MAX >> 20} MiB")
    return content.decode("utf-8")


@contextmanager
def _named(path: str) -> Iterator[None]:
    """What fails says so as OSError, with the path."""
    try:
        yield
    except Py4JJavaError as cause:
        said = str(cause)
        if "OutOfMemoryError" in said:
            raise
        # An error occurred while calling o1.open.\n: java.io.IOException: why\n\tat …
        reason = next((line[2:] for line in said.splitlines() if line.startswith(": ")), "cannot be used")
        raise OSError(f"{path}: {reason.split(': ', 1)[-1]}") from None
    except OSError as cause:
        if cause.strerror is None or isinstance(cause, ConnectionError):  # the latter is of the JVM, not of the path
            raise
        raise OSError(f"{path}: {cause.strerror}") from None


class SparkStorage:
    """File system calls by path or URI, as in Files and more; each raises OSError with the path where it fails."""

    def __init__(self, spark: SparkSession) -> None:
        self._context = spark.sparkContext
        self._jvm: Any = self._context._jvm
        self._configuration: Any = self._context._jsc.hadoopConfiguration()

    def _at(self, path: str) -> tuple[Any, Any]:
        place = self._jvm.org.apache.hadoop.fs.Path(path)
        return place.getFileSystem(self._configuration), place

    def qualified(self, path: str) -> str:
        """The path as a URI with its scheme and, where there is one, its host."""
        system, place = self._at(path)
        return str(system.makeQualified(place).toString())

    def exists(self, path: str) -> bool:
        """As in Files."""
        with _named(path):
            system, place = self._at(path)
            return bool(system.exists(place))

    def entry(self, path: str) -> FolderEntry:
        """As in Files."""
        with _named(path):
            system, place = self._at(path)
            return _entry(system.getFileStatus(place))

    def list(self, path: str) -> list[FolderEntry]:
        """As in Files."""
        with _named(path):
            system, place = self._at(path)
            if not system.exists(place):
                return []
            return sorted(_entry(status) for status in system.listStatus(place))

    def read_text(self, path: str) -> str:
        """As in Files."""
        with _named(path), self._opened(path) as stream:
            return _text(bytes(stream.readNBytes(_TEXT_BYTES_MAX + 1)))

    def first_line(self, path: str) -> str:
        """As in Files."""
        with _named(path), self._opened(path) as stream:
            return bytes(stream.readNBytes(_LINE_BYTES_MAX)).split(b"\n", 1)[0].decode("utf-8", "replace")

    def ends_with_line_feed(self, path: str) -> bool:
        """As in Files."""
        size = self.entry(path).size_bytes
        if size == 0:
            return False
        with _named(path), self._opened(path) as stream:
            stream.seek(size - 1)
            return bytes(stream.readNBytes(1)) == b"\n"

    @contextmanager
    def _opened(self, path: str) -> Iterator[Any]:
        system, place = self._at(path)
        stream = system.open(place)
        try:
            yield stream
        finally:
            stream.close()

    def write_text(self, path: str, text: str) -> None:
        """``write_bytes`` of UTF-8."""
        self.write_bytes(path, text.encode("utf-8"))

    def write_bytes(self, path: str, content: bytes) -> None:
        """Write aside, then rename, so that a reader sees the old file or the new one."""
        with _named(path):
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
        with _named(path):
            system, place = self._at(path)
            if not system.mkdirs(place):
                raise OSError(f"{path}: cannot be made")

    def rename(self, source: str, target: str) -> None:
        """Move a file or folder; the target's parent is made."""
        with _named(target):
            system, place = self._at(source)
            goal = self._jvm.org.apache.hadoop.fs.Path(target)
            system.mkdirs(goal.getParent())
            if not system.rename(place, goal):
                raise OSError(f"{source}: cannot be renamed to {target}")

    def delete(self, path: str) -> None:
        """Remove a file or folder with all in it; nothing happens if there is none."""
        with _named(path):
            system, place = self._at(path)
            system.delete(place, True)

    def discard(self, path: str) -> None:
        """Remove a folder that jobs may be writing to: they are cancelled first. Also after an interruption, and if the JVM
        has died, as far as the folder is on this machine."""

        def cancel_and_delete() -> None:
            self._context.cancelAllJobs()
            tracker, deadline = self._context.statusTracker(), time.monotonic() + _CANCEL_S
            while tracker.getActiveJobsIds() and time.monotonic() < deadline:
                time.sleep(0.05)
            self.delete(path)
            while self.exists(path) and time.monotonic() < deadline:  # a Python worker of a cancelled job was still at it
                time.sleep(0.05)
                self.delete(path)

        on_own_connection(cancel_and_delete)
        here = local_path(path)
        if here is not None:
            shutil.rmtree(here, ignore_errors=True)


def _entry(status: Any) -> FolderEntry:
    return FolderEntry(status.getPath().toString(), status.isDirectory(), status.getLen(), status.getModificationTime())

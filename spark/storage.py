"""File operations through Hadoop's file system, or without Spark. A folder may be local, on HDFS, or in an object store.

Only small content passes through here: manifests, first lines of traces, results and reports. Workers or Spark read the traces.
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
"""Time limit for the end of cancelled jobs."""


class FolderEntry(NamedTuple):
    """A file or folder."""

    path: str
    is_folder: bool
    size_bytes: int
    modified_ms: int


class Files(Protocol):
    """The file operations needed to find runs. Each call raises OSError with the path on failure."""

    def exists(self, path: str) -> bool:
        """Whether there is a file or folder."""

    def entry(self, path: str) -> FolderEntry:
        """The entry at ``path``, with its absolute path."""

    def list(self, path: str) -> list[FolderEntry]:
        """The entries of a folder, by name; empty if there is no such folder."""

    def read_text(self, path: str) -> str:
        """A small text file. Raises ValueError if it is longer than 16 MiB."""

    def first_line(self, path: str) -> str:
        """Up to 64 KiB of a file's first line, without its end."""

    def ends_with_line_feed(self, path: str) -> bool:
        """Whether the last byte is a line feed: if not, the last line is torn."""


class LocalFiles:
    """Files of this machine, without Spark."""

    def exists(self, path: str) -> bool:
        return os.path.lexists(path)

    def entry(self, path: str) -> FolderEntry:
        """Symbolic links are followed, so that each folder has only one path."""
        place = os.path.realpath(path)
        with _named(path):
            status = os.stat(place)
        return FolderEntry(place, os.path.isdir(place), status.st_size, status.st_mtime_ns // 1_000_000)

    def list(self, path: str) -> list[FolderEntry]:
        """Leaves out the link ``latest``, which suites create beside their runs. Also leaves out entries that vanish during the
        call, because an analysis may be writing its results beside the runs."""
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
        with _named(path), open(path, "rb") as file:
            content = file.read(_TEXT_BYTES_MAX + 1)
        return _text(content)

    def first_line(self, path: str) -> str:
        with _named(path), open(path, "rb") as file:
            return file.readline(_LINE_BYTES_MAX).rstrip(b"\n").decode("utf-8", "replace")

    def ends_with_line_feed(self, path: str) -> bool:
        with _named(path), open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - 1, 0))
            return file.read() == b"\n"


def local_path(path: str) -> str | None:
    """The path on this machine for a path or URI; None if this names a file elsewhere."""
    if path.startswith("file:"):
        return unquote(urlsplit(path).path)
    return None if "://" in path else path


def _text(content: bytes) -> str:
    if len(content) > _TEXT_BYTES_MAX:
        raise ValueError(f"longer than {_TEXT_BYTES_MAX >> 20} MiB")
    return content.decode("utf-8")


@contextmanager
def _named(path: str) -> Iterator[None]:
    """Raise failures as OSError with the path."""
    try:
        yield
    except Py4JJavaError as cause:
        said = str(cause)
        if "OutOfMemoryError" in said:
            raise
        # the text is: An error occurred while calling o1.open.\n: java.io.IOException: why\n\tat …
        reason = next((line[2:] for line in said.splitlines() if line.startswith(": ")), "cannot be used")
        raise OSError(f"{path}: {reason.split(': ', 1)[-1]}") from None
    except OSError as cause:
        if cause.strerror is None or isinstance(cause, ConnectionError):  # a ConnectionError concerns the JVM, not the path
            raise
        raise OSError(f"{path}: {cause.strerror}") from None


class SparkStorage:
    """File system calls by path or URI. Implements the protocol ``Files`` and has further calls. Each raises OSError with the
    path on failure."""

    def __init__(self, spark: SparkSession) -> None:
        self._context = spark.sparkContext
        self._jvm: Any = self._context._jvm
        self._configuration: Any = self._context._jsc.hadoopConfiguration()

    def _at(self, path: str) -> tuple[Any, Any]:
        place = self._jvm.org.apache.hadoop.fs.Path(path)
        return place.getFileSystem(self._configuration), place

    def qualified(self, path: str) -> str:
        """The path as a URI with its scheme and, if there is one, its host."""
        system, place = self._at(path)
        return str(system.makeQualified(place).toString())

    def exists(self, path: str) -> bool:
        with _named(path):
            system, place = self._at(path)
            return bool(system.exists(place))

    def entry(self, path: str) -> FolderEntry:
        with _named(path):
            system, place = self._at(path)
            return _entry(system.getFileStatus(place))

    def list(self, path: str) -> list[FolderEntry]:
        with _named(path):
            system, place = self._at(path)
            if not system.exists(place):
                return []
            return sorted(_entry(status) for status in system.listStatus(place))

    def read_text(self, path: str) -> str:
        with _named(path), self._opened(path) as stream:
            return _text(bytes(stream.readNBytes(_TEXT_BYTES_MAX + 1)))

    def first_line(self, path: str) -> str:
        with _named(path), self._opened(path) as stream:
            return bytes(stream.readNBytes(_LINE_BYTES_MAX)).split(b"\n", 1)[0].decode("utf-8", "replace")

    def ends_with_line_feed(self, path: str) -> bool:
        size = self.entry(path).size_bytes
        if size == 0:
            return False
        with _named(path), self._opened(path) as stream:
            stream.seek(size - 1)
            return bytes(stream.readNBytes(1)) == b"\n"

    def read_bytes(self, path: str) -> bytes:
        """A whole file."""
        with _named(path), self._opened(path) as stream:
            return bytes(stream.readAllBytes())

    @contextmanager
    def _opened(self, path: str) -> Iterator[Any]:
        system, place = self._at(path)
        stream = system.open(place)
        try:
            yield stream
        finally:
            stream.close()

    def write_text(self, path: str, text: str) -> None:
        """Write text as UTF-8 (``write_bytes``)."""
        self.write_bytes(path, text.encode("utf-8"))

    def write_bytes(self, path: str, content: bytes) -> None:
        """Write to a temporary file, remove the old file and rename the new one, so that no reader sees a part of a file."""
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
        """Write indented JSON (``write_text``)."""
        self.write_text(path, json.dumps(value, indent=1, sort_keys=True) + "\n")

    def make_folder(self, path: str) -> None:
        """Create a folder and its parents. A no-op if the folder exists."""
        with _named(path):
            system, place = self._at(path)
            if not system.mkdirs(place):
                raise OSError(f"{path}: the folder cannot be created; choose another one")

    def rename(self, source: str, target: str) -> None:
        """Move a file or folder; the target's parent is created."""
        with _named(target):
            system, place = self._at(source)
            goal = self._jvm.org.apache.hadoop.fs.Path(target)
            system.mkdirs(goal.getParent())
            if not system.rename(place, goal):
                raise OSError(f"{source}: cannot be renamed to {target}")

    def delete(self, path: str) -> None:
        """Remove a file or folder with its content. A no-op if nothing is there."""
        with _named(path):
            system, place = self._at(path)
            system.delete(place, True)

    def discard(self, path: str) -> None:
        """Cancel all jobs and remove a folder to which they may be writing.

        Works also after an interruption and, for a folder on this machine, after the JVM has died."""

        def cancel_and_delete() -> None:
            self._context.cancelAllJobs()
            tracker, deadline = self._context.statusTracker(), time.monotonic() + _CANCEL_S
            while tracker.getActiveJobsIds() and time.monotonic() < deadline:
                time.sleep(0.05)
            self.delete(path)
            # the first attempt can fail, because a Python worker of a cancelled job is still writing
            while self.exists(path) and time.monotonic() < deadline:
                time.sleep(0.05)
                self.delete(path)

        on_own_connection(cancel_and_delete)
        here = local_path(path)
        if here is not None:
            shutil.rmtree(here, ignore_errors=True)


def _entry(status: Any) -> FolderEntry:
    return FolderEntry(status.getPath().toString(), status.isDirectory(), status.getLen(), status.getModificationTime())

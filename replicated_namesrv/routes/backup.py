"""Backup files: the whole state at one revision, in a form that can be checked without a node.

A file is lines of JSON: a head with the kind and origin of the file, the lines of a snapshot of the routes, and an end with
the number of bytes before it and their SHA-256. Missing, added or changed bytes are detected. The head has the format version
of the file; the snapshot's own head has that of the snapshot.
"""

import json
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any, NamedTuple

FORMAT = "replicated-namesrv-backup"
VERSION = 1
HEAD_BYTES_MAX = 64 << 10
BYTES_PER_STATE_BYTE = 16
"""Maximum number of bytes in a file for each counted byte of the state (``sizes.py``). A byte of a text takes at most 6 bytes in
JSON (a control character). The name of a namespace with one entry is written twice. ``sizes.ENTRY_BYTES`` is counted for each
object; its numbers and punctuation take less than 6 times as many bytes. The rest of the factor covers the name of the namespace,
broker or cluster, which each line repeats."""


def bytes_max(state_bytes: int) -> int:
    """Maximum number of bytes in a backup of a state that counts ``state_bytes``."""
    return 2 * HEAD_BYTES_MAX + BYTES_PER_STATE_BYTE * state_bytes


class BackupError(Exception):
    """The bytes are not a backup, or are a damaged one."""


def encode(origin: Mapping[str, Any], snapshot: Iterator[bytes]) -> Iterator[bytes]:
    """The parts of a file; ``origin`` (revision, node, …) goes into its head."""
    checksum, size = sha256(), 0
    head = json.dumps({"format": FORMAT, "version": VERSION, **origin}).encode() + b"\n"
    for part in _with(head, snapshot):
        checksum.update(part)
        size += len(part)
        yield part
    yield json.dumps({"end": FORMAT, "bytes": size, "sha256": checksum.hexdigest()}).encode() + b"\n"


def _with(head: bytes, snapshot: Iterator[bytes]) -> Iterator[bytes]:
    yield head
    yield from snapshot


class Head(NamedTuple):
    """The origin of a backup."""

    revision: int
    fields: dict[str, Any]


class BackupReader:
    """Checks a file as its bytes arrive, cut anywhere, and returns the snapshot in it."""

    def __init__(self) -> None:
        self.head: Head | None = None
        self._checksum, self._size = sha256(), 0
        self._rest = bytearray()
        """Bytes that may be the end of the file. They contain no line feed, except as their last byte."""

    def feed(self, data: bytes) -> bytes:
        """Bytes that are known to belong to the snapshot. Raises BackupError."""
        if self.head is None:
            self._rest += data
            line, newline, rest = bytes(self._rest).partition(b"\n")
            if len(line) > HEAD_BYTES_MAX:
                raise BackupError(f"this is not a backup: the first line has more than {HEAD_BYTES_MAX} bytes")
            if not newline:
                return b""
            self.head = _head(line)
            self._count(line + newline)
            self._rest, data = bytearray(), rest
        if not data:
            return b""
        # the last line waits until more bytes come, because it may be the end
        cut = data.rfind(b"\n", 0, len(data) - 1) + 1
        if not cut and not self._rest.endswith(b"\n"):
            self._rest += data
            return b""
        ready = bytes(self._rest) + data[:cut]
        self._rest = bytearray(data[cut:])
        self._count(ready)
        return ready

    def finish(self) -> Head:
        """Check the end of the file, and return its head. Call it after the last byte. Raises BackupError if the file is cut off
        or damaged."""
        try:
            end = json.loads(bytes(self._rest))
            declared = end["bytes"], end["sha256"]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise BackupError("the backup is cut off: its last line is missing") from None
        if self.head is None or not self._rest.endswith(b"\n") or declared != (self._size, self._checksum.hexdigest()):
            raise BackupError("the backup is damaged: its checksum does not match")
        return self.head

    def _count(self, data: bytes) -> None:
        self._checksum.update(data)
        self._size += len(data)


def _head(line: bytes) -> Head:
    try:
        fields = json.loads(line)
        if fields["format"] != FORMAT or type(fields["version"]) is not int or type(fields["revision"]) is not int:
            raise ValueError(fields["format"])
        version, revision = fields["version"], fields["revision"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise BackupError("this is not a backup made by 'namesrv backup'") from None
    if version != VERSION:
        raise BackupError(f"the backup has format version {version}, this program reads {VERSION}: use the release that made it")
    return Head(revision, fields)

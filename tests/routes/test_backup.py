"""Backup files: cut anywhere they give the same snapshot, and every kind of damage is reported."""

import json
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicated_namesrv.routes.backup import HEAD_BYTES_MAX, BackupError, BackupReader, encode
from tests.routes.test_snapshot import populated

ORIGIN = {"revision": 3, "mode": "cp", "clusterId": "c", "nodeId": "n1"}


def sealed(head: bytes, rest: bytes = b'["x"]\n') -> bytes:
    """A file with a right checksum."""
    whole = head + b"\n" + rest
    return whole + json.dumps({"end": "x", "bytes": len(whole), "sha256": sha256(whole).hexdigest()}).encode() + b"\n"


def read(parts: list[bytes]) -> bytes:
    reader = BackupReader()
    found = b"".join([reader.feed(part) for part in parts])
    reader.finish()
    return found


@given(st.data())
def test_the_bytes_may_be_cut_anywhere(data: st.DataObject) -> None:
    snapshot = b"".join(populated().snapshot())
    whole = b"".join(encode(ORIGIN, iter([snapshot])))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=12)))
    assert read([whole[start:end] for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]) == snapshot
    assert read([whole[position : position + 1] for position in range(len(whole))]) == snapshot


@pytest.mark.parametrize(
    "change",
    [{"revision": "3"}, {"revision": True}, {"revision": 1e400}, {"revision": float("nan")}, {"version": True}, {"format": []}],
)
def test_heads_of_wrong_types_are_refused(change: dict[str, object]) -> None:
    head = {"format": "replicated-namesrv-backup", "version": 1, **ORIGIN}
    assert read([sealed(json.dumps(head).encode())]) == b'["x"]\n'
    with pytest.raises(BackupError):
        read([sealed(json.dumps({**head, **change}).encode())])


@pytest.mark.parametrize("head", [b"", b"[]", b"7", b"[" * 50_000, b"{" + b" " * HEAD_BYTES_MAX + b"}"])
def test_other_first_lines_are_refused(head: bytes) -> None:
    with pytest.raises(BackupError, match="not a backup"):
        read([sealed(head)])


@pytest.mark.parametrize("end", [b"", b"7\n", b"[]\n", b'{"bytes":1}\n', b"[" * 100_000 + b"\n"])
def test_other_last_lines_are_refused(end: bytes) -> None:
    head = json.dumps({"format": "replicated-namesrv-backup", "version": 1, **ORIGIN}).encode() + b"\n"
    with pytest.raises(BackupError, match="cut off"):
        read([head + b'["x"]\n' + end])

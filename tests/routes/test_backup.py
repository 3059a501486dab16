"""Backup files: read in pieces of any size, they give the same snapshot, and every kind of damage is reported."""

import json
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicated_namesrv.routes.backup import HEAD_BYTES_MAX, BackupError, BackupReader, bytes_max, encode
from replicated_namesrv.routes.commands import Command, PutKVConfig
from replicated_namesrv.routes.state import RouteInfoManager
from replicated_namesrv.settings import Settings
from tests.routes.test_snapshot import populated
from tests.support.routes import mapping, queues, register

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


CONTROL, ODD = "\x01", "\x01\ud800"
"""A character of one byte that JSON writes as six. With a lone surrogate, every other character is escaped, too."""
LONG = CONTROL * 1_000


def name(number: int, text: str) -> str:
    return f"{number:02}" + text


@pytest.mark.parametrize(
    "commands",
    [
        pytest.param([PutKVConfig("n", name(i, ""), CONTROL * 60_000) for i in range(8)], id="values"),
        pytest.param([PutKVConfig("n", name(i, ""), "\U0001f600" * 30_000 + ODD) for i in range(8)], id="characters of 12 bytes"),
        pytest.param([PutKVConfig(LONG, name(i, ""), CONTROL * 33_000) for i in range(8)], id="a namespace in each line"),
        pytest.param([PutKVConfig(LONG, name(i, ""), CONTROL * (66_000 if i % 2 else 1)) for i in range(16)], id="short lines"),
        pytest.param([PutKVConfig(name(i, LONG), "", "") for i in range(90)], id="namespaces"),
        pytest.param([register(f"{i}", 1 << 62, f"{i}", cluster="", timeout_ms=1 << 30) for i in range(90)], id="numbers"),
        pytest.param([register(name(i, LONG), 0, name(i, LONG), cluster=LONG) for i in range(90)], id="names"),
        pytest.param(
            [register("b", 0, "a", topics={f"{i}": queues(nums=(1 << 31) - 1 - i) for i in range(9_000)})], id="queue settings"
        ),
        pytest.param(
            [register(LONG, 0, "a", mappings={name(i, LONG): mapping(name(i, LONG), LONG) for i in range(90)})], id="mappings"
        ),
        pytest.param([register("b", 0, "a", filters=tuple(f"{i}" for i in range(900)))], id="filter servers"),
    ],
)
def test_a_backup_of_a_full_state_is_within_the_bound_of_a_restore(commands: list[Command]) -> None:
    """The state has ``maxStateBytes`` bytes and is the longest of its kind when written."""
    state = RouteInfoManager()
    for command in commands:
        state.apply(command, 1 << 60)
    assert state.sizes.total
    state.begin_anew(10**18)
    size = sum(map(len, encode(ORIGIN, state.snapshot())))
    assert size - 2_000 <= bytes_max(state.sizes.total) - bytes_max(0), "the constant part is for the first line"
    assert size * Settings().max_state_bytes // state.sizes.total < bytes_max(Settings().max_state_bytes)

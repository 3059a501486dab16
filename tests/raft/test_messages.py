"""The wire encoding is exact and strict: unknown bytes are refused."""

import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicated_namesrv.raft import raft_messages
from replicated_namesrv.raft.payloads import NO_OP, pack_entries, pack_group, unpack_entries, unpack_groups
from replicated_namesrv.raft.raft_errors import MalformedError
from replicated_namesrv.raft.raft_messages import Greeting, Message, decode, encode
from replicated_namesrv.raft.sessions import Origin

numbers = st.integers(0, 2**64 - 1)
FIELDS: dict[type, st.SearchStrategy[object]] = {int: numbers, bool: st.booleans(), bytes: st.binary(max_size=100)}


def kinds() -> list[type]:
    return [k for k in typing.get_args(Message) if k is not Greeting]


@st.composite
def any_message(draw: st.DrawFn) -> Message:
    kind = draw(st.sampled_from([*kinds(), Greeting]))
    if kind is Greeting:
        founders = draw(st.dictionaries(st.text(max_size=20), numbers, max_size=5))
        return Greeting(
            draw(numbers), draw(st.integers(0, 2)), tuple(founders.items()), draw(numbers), draw(st.integers(0, 2**32 - 1))
        )
    return typing.cast(Message, kind(*(draw(FIELDS[hint]) for hint in typing.get_type_hints(kind).values())))


@given(any_message())
def test_what_is_encoded_comes_back(message: Message) -> None:
    decoded = decode(encode(message))
    assert decoded == message
    assert type(decoded) is type(message)


@given(st.binary(max_size=200))
def test_garbage_is_malformed_or_a_message_that_encodes_to_it(data: bytes) -> None:
    try:
        message = decode(data)
    except MalformedError:
        return
    assert encode(message) == data


@given(any_message(), st.data())
def test_cut_messages_are_malformed_or_exact(message: Message, data: st.DataObject) -> None:
    whole = encode(message)
    part = whole[: data.draw(st.integers(0, len(whole) - 1))]
    try:
        decoded = decode(part)
    except MalformedError:
        return
    assert encode(decoded) == part


def test_every_kind_has_a_code_of_its_own() -> None:
    codes = [encode(kind(*(hint() for hint in typing.get_type_hints(kind).values())))[0] for kind in kinds()]
    assert len(set(codes)) == len(codes) == len(raft_messages._KINDS)


@given(st.lists(st.tuples(numbers, st.binary(max_size=50)), max_size=10), numbers, st.text(max_size=30))
def test_groups_come_back(proposals: list[tuple[int, bytes]], floor: int, node: str) -> None:
    origin = Origin(node, 7, 3)
    data = pack_group(origin, floor, proposals)
    assert unpack_groups(data + data) == [(origin, floor, proposals)] * 2


@given(st.binary(max_size=100))
def test_garbage_groups_and_entries_are_malformed(data: bytes) -> None:
    for unpack in (unpack_groups, lambda raw: unpack_entries(raw, 1)):
        try:
            unpack(data)
        except MalformedError:
            continue


def test_library_entry_types_never_pass() -> None:
    """PySyncObj would unpickle membership (2) and version (3) entries."""
    for payload in (b"\x02x", b"\x03x", b"", b"\x00\x07"):
        with pytest.raises(MalformedError):
            unpack_entries(pack_entries([(payload, 1, 1)]), 1)
    assert unpack_entries(pack_entries([(NO_OP, 5, 2)]), 5) == [(NO_OP, 5, 2)]

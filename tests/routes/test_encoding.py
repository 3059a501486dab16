"""Commands as bytes: exact round trip, clear refusal."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicated_namesrv.model import QueueData
from replicated_namesrv.routes.commands import Command, PutKVConfig
from replicated_namesrv.routes.encoding import COMMAND_FORMAT, RouteFormatError, decode_command, dump, encode_command, load
from replicated_namesrv.routes.state import RouteInfoManager
from tests.routes.strategies import commands
from tests.support.routes import mapping, queues, register

TEXT = st.text(st.characters())
"""Any code points, lone surrogates and line breaks included."""


@given(commands, st.integers(0, 2**53))
def test_every_command_comes_back(command: Command, time_ms: int) -> None:
    assert decode_command(encode_command(command, time_ms)) == (command, time_ms)


@given(TEXT, TEXT, st.none() | TEXT)
def test_any_text_comes_back_and_can_be_digested(namespace: str, key: str, value: str | None) -> None:
    command = PutKVConfig(namespace, key, value)
    assert decode_command(encode_command(command, 1)) == (command, 1)
    state, twin = RouteInfoManager(), RouteInfoManager()
    state.apply(command, 1)
    state.apply(register(namespace, 0, key, topics=[namespace, key, "T"]), 2)
    twin.restore(state.snapshot())
    assert twin.digest() == state.digest()
    assert twin.kv_get(namespace, key) == value


def test_order_of_topics_and_extreme_numbers_come_back() -> None:
    greatest = 2**63 - 1
    topics = {f"t{i}": QueueData(-(2**31), 2**31 - 1, i % 3, 0) for i in (3, 1, 2, 0)}
    command = register("b", greatest, "m:1", version=-greatest - 1, timeout_ms=greatest, topics=topics)
    command_with_mapping = register("b", 0, "m:1", mappings={"T": mapping("T", "b", epoch=greatest)})
    for given_command in (command, command_with_mapping):
        decoded, _ = decode_command(encode_command(given_command, 1))
        assert decoded == given_command
    decoded, _ = decode_command(encode_command(command, 1))
    assert list(getattr(decoded, "topics")) == ["t3", "t1", "t2", "t0"]  # noqa: B009 - of one class of the union


def test_equal_queues_are_written_once() -> None:
    names = [f"topic-{i}" for i in range(1000)]
    plain = sum(len(name) + 3 for name in names)
    assert len(encode_command(register("b", 0, "m:1", topics=names), 1)) < plain + 200
    varied = {name: queues(nums=i % 7) for i, name in enumerate(names)}
    assert len(encode_command(register("b", 0, "m:1", topics=varied), 1)) < plain + 2 * len(names) + 300


@pytest.mark.parametrize("data", [b"", bytes((COMMAND_FORMAT + 1,)) + b"[]", b"\0[]", b"[]"])
def test_another_format_is_named(data: bytes) -> None:
    with pytest.raises(RouteFormatError, match=f"only {COMMAND_FORMAT}"):
        decode_command(data)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[",
        "[]",
        "{}",
        "7",
        "[999,1]",
        "[216,1]",
        "[103,1,2]",
        '[216,"now","T",null]',
        "[104,1,[[1]]]",
        '[217,1,"T",[["b",[6]]]]',
    ],
)
def test_what_is_no_command_is_refused(text: str) -> None:
    with pytest.raises(RouteFormatError, match="cannot be decoded"):
        decode_command(bytes((COMMAND_FORMAT,)) + text.encode())


def test_a_lack_of_memory_is_no_malformed_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """orjson reports it as a JSONDecodeError. As a result of a command it would be a refusal on this node alone."""

    def without_memory(_: bytes) -> object:
        raise orjson.JSONDecodeError("Not enough memory to allocate buffer for parsing", "", 0)

    line = dump(["kv", "ns", [["memory", "value"]]])
    assert load(line)[2] == [["memory", "value"]]
    with pytest.raises(orjson.JSONDecodeError):
        load(line[:-1] + b"memory")
    monkeypatch.setattr("replicated_namesrv.routes.encoding.orjson.loads", without_memory)
    with pytest.raises(MemoryError):
        load(line)
    with pytest.raises(MemoryError):
        decode_command(encode_command(PutKVConfig("ns", "k", "v"), 1))

"""Cutting long lines of a snapshot: the state is the same, the lines are short, and each byte is looked at about once."""

from random import Random

import pytest

from replicated_namesrv.routes import cutting
from replicated_namesrv.routes.commands import PutKVConfig
from replicated_namesrv.routes.cutting import LineCutter
from replicated_namesrv.routes.state import RouteInfoManager
from tests.routes.sequences import random_command
from tests.support.routes import mapping, register

TEXTS = ("v", "],[", '"', "\\", '\\"],["', "\n", "\u20ac", "\ud800", "[[", "]]", '["end",3]')


def state_of(seed: int) -> RouteInfoManager:
    """Texts that look like what lines are cut at."""
    rng, state = Random(seed), RouteInfoManager()
    for time_ms in range(60):
        state.apply(random_command(rng), time_ms)
    for number in range(60):
        texts = ["".join(rng.choices(TEXTS, k=rng.randrange(5))) for _ in range(3)]
        state.apply(PutKVConfig(rng.choice(("n", '"[],\\')), texts[0] + str(number % 20), rng.choice((None, texts[1]))), 1)
        topics = [f"{texts[2]}{each}" for each in range(4)]
        state.apply(
            register("b", 0, "b:1", version=number, topics=topics, mappings={topic: mapping(topic, "b") for topic in topics}), 1
        )
    return state


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("size", [1, 13, 500, 10**6])
def test_the_snapshot_is_the_same(monkeypatch: pytest.MonkeyPatch, seed: int, size: int) -> None:
    monkeypatch.setattr(cutting, "LINE_BYTES", Random(seed).choice((1, 40, 300)))
    state = state_of(seed)
    data = b"".join(state.snapshot())
    cutter, given = LineCutter(), []
    for start in range(0, len(data), size):
        given += cutter.feed(data[start : start + size])
    assert cutter.finish() == b""
    assert all(line.endswith(b"\n") for line in given)
    assert len(given) > data.count(b"\n")
    twin = RouteInfoManager()
    twin.restore(given)
    assert b"".join(twin.snapshot()) == data
    assert twin.digest() == state.digest()


def test_lines_become_short() -> None:
    state = RouteInfoManager()
    for number in range(300):
        state.apply(PutKVConfig("n", f"k{number}", "v" * 10_000), 1)
    data = b"".join(state.snapshot())
    cutter, given = LineCutter(), []
    for start in range(0, len(data), 65_536):
        given += cutter.feed(data[start : start + 65_536])
    assert max(map(len, given)) < cutting.LINE_BYTES + 11_000


@pytest.mark.parametrize(
    "data", [b'["kv","n",[["a","b"],["c"', b'["kv","n', b'["live",[[[[[[', b'["kv","n",[]]]]]]\nx', b"no snapshot", b'"\\']
)
def test_what_is_cut_off_or_none_is_given_out_as_it_is(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(cutting, "LINE_BYTES", 8)
    cutter = LineCutter()
    given = b"".join(cutter.feed(data)) + cutter.finish()
    assert given.replace(b']]\n["kv","n",[', b",") == data


def test_each_byte_is_looked_at_about_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at = 0
    plain = cutting._TOKEN

    class Counting:
        def finditer(self, buffer: bytearray, start: int) -> object:
            nonlocal looked_at
            looked_at += len(buffer) - start
            return plain.finditer(buffer, start)

    monkeypatch.setattr(cutting, "_TOKEN", Counting())
    state = RouteInfoManager()
    for number in range(500):
        state.apply(PutKVConfig("n", f"k{number}", "v" * 5_000), 1)
    data = b"".join(state.snapshot())
    cutter = LineCutter()
    for start in range(0, len(data), 4_096):
        cutter.feed(data[start : start + 4_096])
    assert looked_at < 3 * len(data)

"""The writer of kvConfig.json: content, and short turns whatever the size of the KV config."""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any

import orjson
import pytest

from replicated_namesrv.compat import kv_file
from replicated_namesrv.compat.kv_file import PART_CHARACTERS, KVTable, read_kv_file, write_kv_file
from replicated_namesrv.compat.kv_writer import KVCommand, KVWriter
from replicated_namesrv.routes.commands import DeleteKVConfig, PutKVConfig
from replicated_namesrv.routes.results import Result
from replicated_namesrv.routes.state import RouteInfoManager
from tests.support.work import Work, work_of


def content_of(table: KVTable) -> bytes:
    """The file's content as RocketMQ writes it: in one piece."""
    persisted = {name: {key: value for key, value in held.items() if value is not None} for name, held in table.items()}
    return orjson.dumps({"configTable": persisted})


@pytest.mark.parametrize("seed", range(20))
def test_parts_and_changes_give_the_content_of_the_changed_table(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = Random(seed)
    monkeypatch.setattr(kv_file, "PART_CHARACTERS", rng.choice((1, 20, 1_000)))
    state = RouteInfoManager()

    def random_command() -> KVCommand:
        names = rng.choice("abc"), rng.choice(("", "k", 'q"\\\n', "\u20ac"))
        return PutKVConfig(*names, rng.choice(("v" * 9, "", None, '"'))) if rng.random() < 0.7 else DeleteKVConfig(*names)

    async def run() -> None:
        writer = KVWriter(tmp_path / "kvConfig.json", state.kv_table, lambda command: state.apply(command, 1).result)
        for _ in range(10):
            await asyncio.gather(*(writer.submit(random_command()) for _ in range(rng.randrange(5))))
            table: KVTable = {name: dict(held) for name, held in state.kv_table().items()}
            if writer._path.exists():
                content, expected = writer._path.read_bytes(), content_of(table)
                assert (len(content), orjson.loads(content)) == (len(expected), orjson.loads(expected)), f"seed {seed}"

    asyncio.run(run())


def test_an_empty_table_is_a_file_that_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    tables: list[KVTable] = [{}, {"n": {}}, {"n": {"k": None}, "m": {"k": "v"}}]
    for table in tables:
        assert write_kv_file(path, table) == len(path.read_bytes())
        assert path.read_bytes() == content_of(table)
        assert read_kv_file(path) == orjson.loads(content_of(table))["configTable"]


def begin(writer: KVWriter, writes: list[Callable[[], None]]) -> None:
    writes.append(writer._build_file([PutKVConfig("n", "k", "v")]))


def test_no_turn_of_the_event_loop_and_no_encoding_grows_with_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python runs no other thread during an encoding."""
    encode: Callable[[Any], bytes] = orjson.dumps
    longest: list[int] = []
    turns: list[Work] = []
    for count in (2_000, 4_000):
        sizes: list[int] = []

        def measured(value: Any, sizes: list[int] = sizes) -> bytes:
            encoded = encode(value)
            sizes.append(len(encoded))
            return encoded

        monkeypatch.setattr(orjson, "dumps", measured)
        entries: dict[str, str | None] = {f"k{number}": "v" * 1_000 for number in range(count)}
        views = {"n": MappingProxyType(entries)}
        writer = KVWriter(tmp_path / f"{count}.json", partial(dict, views), lambda command: Result())
        writes: list[Callable[[], None]] = []
        turns.append(work_of(partial(begin, writer, writes)))
        writes[0]()
        assert len(sizes) > count * 1_000 / PART_CHARACTERS
        assert read_kv_file(tmp_path / f"{count}.json") == {"n": entries | {"k": "v"}}
        longest.append(max(sizes))
    assert max(longest) < 2 * PART_CHARACTERS
    one, twice = turns
    assert twice.lines <= one.lines
    assert twice.bytes <= one.bytes + 500

"""Snapshots: a restored state equals the original, and changes do not affect a snapshot that is being taken."""

import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from itertools import count, islice
from random import Random
from typing import Any

import pytest

from replicated_namesrv.routes import shared_dict
from replicated_namesrv.routes import snapshot as snapshot_module
from replicated_namesrv.routes.commands import (
    ChangeWritePerm,
    Command,
    DeleteKVConfig,
    DeleteTopic,
    PutKVConfig,
    RegisterTopic,
    UpdateSettings,
)
from replicated_namesrv.routes.encoding import RouteFormatError, dump
from replicated_namesrv.routes.snapshot import CLUSTER_CHARACTERS, PART_BYTES_MAX, SLICE, SLICE_CHARACTERS, SnapshotReader
from replicated_namesrv.routes.state import RouteInfoManager, RouteSettings
from tests.routes.conftest import NextSettings
from tests.routes.sequences import random_command
from tests.support.routes import mapping, queues, register, unregister
from tests.support.work import work_of


def populated() -> RouteInfoManager:
    """A state with something in every table."""
    state = RouteInfoManager(RouteSettings(support_acting_master=True))
    history: list[Command] = [
        register("z", 0, "z:1", filters=("f:1",), zone="zone", timeout_ms=10_000),
        register("b", 0, "m:1", topics={"V": queues(4), "T": queues(7, topic_sys_flag=1)}, mappings={"T": mapping("T", "b")}),
        register("b", 1, "s:1", cluster="D", acting_master=True),
        register("alone", 0, "x:1", topics=["T"]),
        PutKVConfig("n", "k", "\u20ac\n"),
        PutKVConfig("n", "none", None),
        PutKVConfig("empty", "k", "v"),
        DeleteKVConfig("empty", "k"),
        DeleteTopic("U", None),
        UpdateSettings({"order_message_enable": True}),
    ]
    for time_ms, command in enumerate(history):
        state.apply(command, time_ms)
    return state


def restored(chunks: list[bytes]) -> RouteInfoManager:
    """A state made from a snapshot."""
    state = RouteInfoManager()
    state.restore(chunks)
    return state


@pytest.mark.parametrize("cut", [1, 100, 10**6])
def test_restoring_gives_the_same_state_however_the_bytes_are_cut(cut: int) -> None:
    state = populated()
    data = b"".join(state.snapshot())
    twin = restored([data[i : i + cut] for i in range(0, len(data), cut)])
    assert b"".join(twin.snapshot()) == data
    assert twin.digest() == state.digest()
    assert (twin.revision, twin.settings) == (state.revision, state.settings)
    assert list(twin.topic_revisions.items()) == list(state.topic_revisions.items())
    assert twin.registrations() == state.registrations()
    assert twin.cluster_info() == state.cluster_info()
    assert [twin.route(topic) for topic in ("T", "V")] == [state.route(topic) for topic in ("T", "V")]
    assert [twin.group_generation(name) for name in "bz"] == [state.group_generation(name) for name in "bz"]


def test_a_restored_state_goes_on_as_the_original() -> None:
    state = populated()
    twin = restored(list(state.snapshot()))
    for command in (
        register("b", 0, "m:1"),
        register("b", 0, "n:1"),
        unregister("z", 0, "z:1"),
        ChangeWritePerm("b", writable=True),
    ):
        assert twin.apply(command, 99) == state.apply(command, 99)
        assert twin.digest() == state.digest()
    assert b"".join(twin.snapshot()) == b"".join(state.snapshot())


def test_a_later_setting_is_in_a_snapshot_only_while_it_is_not_the_default(
    later_settings: type[NextSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert list(RouteInfoManager(later_settings()).snapshot()) == list(RouteInfoManager().snapshot())
    state = RouteInfoManager(later_settings(third_later=False))
    with pytest.raises(RouteFormatError, match="third_later"):
        restored(list(state.snapshot()))
    monkeypatch.setattr(snapshot_module, "RouteSettings", later_settings)
    twin = restored(list(state.snapshot()))
    assert (twin.settings, twin.digest()) == (state.settings, state.digest())


def test_topic_revisions_stay_the_same_object() -> None:
    state = RouteInfoManager()
    state.apply(register("b", 0, "m:1", topics=["gone", "U"]), 1)
    seen = state.topic_revisions
    state.restore(populated().snapshot())
    assert state.topic_revisions is seen
    assert set(seen) == set(state.all_topics())


CHANGES: list[Callable[[], Command]] = [
    lambda: register("b", 0, "m:1", version=2, topics={"T": queues(4), "New": queues()}),
    lambda: register("b", 7, "late:1"),
    lambda: register("new", 0, "n:1"),
    lambda: unregister("z", 0, "z:1"),
    lambda: DeleteTopic("T", None),
    lambda: RegisterTopic("V", (("z", queues()),)),
    lambda: ChangeWritePerm("b", writable=False),
    lambda: PutKVConfig("n", "k", "other"),
    lambda: PutKVConfig("new", "k", "v"),
    lambda: DeleteKVConfig("n", "k"),
    lambda: register("b", 0, "m:1", version=3, topics=["T", "V"], mappings={"T": mapping("T", "b", epoch=9)}),
    lambda: UpdateSettings({"enable_topic_list": False}),
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_snapshot_under_way_does_not_see_changes(change: Callable[[], Command]) -> None:
    state = populated()
    expected = b"".join(state.snapshot())
    lines = state.snapshot()
    first = next(lines)
    assert state.apply(change(), 50).result.changed
    assert b"".join([first, *lines]) == expected


def test_all_changes_while_a_snapshot_is_taken_line_by_line() -> None:
    state = populated()
    expected = b"".join(state.snapshot())
    taken = []
    changes = iter(CHANGES)
    for line in state.snapshot():
        taken.append(line)
        change = next(changes, None)
        if change is not None:
            state.apply(change(), 50)
    assert b"".join(taken) == expected


@pytest.mark.parametrize("copy_factor", [1, shared_dict.COPY_FACTOR])
@pytest.mark.parametrize("seed", range(25))
def test_snapshots_do_not_see_random_commands(seed: int, copy_factor: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """``copy_factor`` 1: single changes are stored beside the entries also in small groups."""
    monkeypatch.setattr(snapshot_module, "SLICE", 2)
    monkeypatch.setattr(shared_dict, "COPY_FACTOR", copy_factor)
    rng, state, time_ms = Random(seed), RouteInfoManager(), count()
    for _ in range(150):
        state.apply(random_command(rng), next(time_ms))
    under_way: list[tuple[Iterator[bytes], list[bytes], list[bytes]]] = []
    for _ in range(200):
        if rng.random() < 0.1:
            under_way.append((state.snapshot(), [], list(deepcopy(state).snapshot())))
        for lines, taken, expected in under_way:
            taken += islice(lines, rng.randrange(4))
            assert taken == expected[: len(taken)], seed
        if under_way and rng.random() < 0.05:
            del under_way[rng.randrange(len(under_way))]
        state.apply(random_command(rng), next(time_ms))
    for lines, taken, expected in under_way:
        assert [*taken, *lines] == expected, seed
    twin = restored(list(state.snapshot()))
    assert twin.digest() == state.digest(), seed
    assert list(twin.snapshot()) == list(state.snapshot()), seed


def test_no_line_holds_more_than_a_slice() -> None:
    state = RouteInfoManager()
    state.apply(register("b", 0, "m:1", topics=[f"topic-{i}" for i in range(2 * SLICE + 1)]), 1)
    for i in range(SLICE + 1):
        state.apply(PutKVConfig("n", f"k{i}", "v"), 2)
    lines = list(state.snapshot())
    assert sum(line.startswith(b'["topics"') for line in lines) == 3
    assert sum(line.startswith(b'["queues"') for line in lines) == 3
    assert sum(line.startswith(b'["kv"') for line in lines) == 2
    assert b"".join(restored(lines).snapshot()) == b"".join(lines)


ODD_TEXTS = ["x" * 20_000, "\u20ac" * 20_000, "\x00" * 20_000, "\ud800" * 20_000, "\U0001f600" * 20_000, "", "k"]


def test_lines_are_bounded_in_bytes_and_no_part_is_longer_than_a_block() -> None:
    """This holds for all kinds of texts. An entry that is too long for a line has its own line, in parts."""
    state = RouteInfoManager()
    for position, text in enumerate(ODD_TEXTS * 20):
        state.apply(PutKVConfig("n", f"{position}", text), 1)
    state.apply(PutKVConfig("n", "longer than a part", "\x00" * 500_000), 1)
    for position, text in enumerate(ODD_TEXTS):
        topics = {f"{position}{number}{text}": queues() for number in range(12)}
        infos = {f"{number}{text}": mapping(f"{number}{text}", f"b{position}") for number in range(12)}
        addr = f"m:{position}{text[:3000]}"
        state.apply(register(f"b{position}", 0, addr, topics=topics, mappings=infos, ha=text, filters=(text,)), 2)
        state.apply(register(f"{text[:900]}{position}", 0, f"other:{position}", cluster=f"C{position}{text[:4000]}"), 2)
    parts = list(state.snapshot())
    assert max(map(len, parts)) <= PART_BYTES_MAX
    lines = b"".join(parts).splitlines(keepends=True)
    long = [line for line in lines if len(line) > PART_BYTES_MAX]
    assert len(long) == 1, [line[:80] for line in long]
    assert b"longer than a part" in long[0]
    assert b"".join(restored(parts).snapshot()) == b"".join(parts)


def test_names_of_a_cluster_are_bounded_in_a_line_and_keep_their_order() -> None:
    """A refused registration leaves its name in the list of a cluster."""
    state = RouteInfoManager()
    for number in range(1_500):
        text = "\x01" * 1_000 if number < 1_200 else ""
        state.apply(register(f"{text}{number}", 0, "x:1", topics=["T"], cluster="C" if number % 2 else f"C{number}"), 1)
    parts = list(state.snapshot())
    lines = b"".join(parts).splitlines()
    assert max(map(len, lines)) < 6 * (CLUSTER_CHARACTERS + SLICE_CHARACTERS)
    assert sum(line.startswith(b'["listed","C",') for line in lines) == 1
    twin = restored(parts)
    assert twin.digest() == state.digest()
    assert twin.sizes == state.sizes
    assert b"".join(twin.snapshot()) == b"".join(parts)


def as_earlier_versions_wrote(state: RouteInfoManager) -> list[bytes]:
    """The same state in lines of 5,000 entries each, however long."""
    merged: list[list[Any]] = []
    for line in b"".join(state.snapshot()).splitlines():
        kind, *fields = json.loads(line)
        before = merged[-1] if merged else [None]
        if kind == before[0] and kind in ("topics", "clusters", "live", "mappings", "kv") and fields[:-1] == before[1:-1]:
            before[-1] += fields[-1]
        elif kind == before[0] == "topics":
            before[1] += fields[0]
            before[2] += fields[1]
        else:
            merged.append([kind, *fields])
    merged[-1] = ["end", len(merged) - 1]
    return [dump(line) + b"\n" for line in merged]


def test_lines_that_earlier_versions_wrote_are_read_however_long() -> None:
    state = RouteInfoManager()
    for position in range(300):
        state.apply(PutKVConfig("n", f"k{position}", "v" * 20_000), 1)
        state.apply(register(f"b{position}", 0, f"m:{position}", topics=[f"topic-{position}-{each}" for each in range(9)]), 1)
    lines = as_earlier_versions_wrote(state)
    assert max(map(len, lines)) > 5 * PART_BYTES_MAX
    data = b"".join(lines)
    for cut in (1 << 16, 999_983, len(data)):
        twin = restored([data[start : start + cut] for start in range(0, len(data), cut)])
        assert twin.digest() == state.digest()
        assert b"".join(twin.snapshot()) == b"".join(state.snapshot())


def test_reading_costs_the_same_for_each_byte_of_a_line() -> None:
    """A long line that arrives in many parts is joined once, at its end. No earlier part copies the parts before it."""
    state = RouteInfoManager()
    state.apply(PutKVConfig("n", "k", "v" * 400_000), 1)
    data = b"".join(state.snapshot())
    reader = SnapshotReader()
    parts = [data[start : start + 1_000] for start in range(0, len(data), 1_000)]
    allocated = [work_of(partial(reader.feed, part)).bytes for part in parts]
    reader.finish()
    long = [size for size, part in zip(allocated, parts, strict=True) if b"\n" not in part]
    assert len(long) > 390
    assert max(long) < 20_000


def damaged() -> dict[str, list[bytes]]:
    """Data that is not a valid snapshot, by what is wrong with it."""
    lines = list(populated().snapshot())
    return {
        "nothing": [],
        "no end": lines[:-1],
        "cut off": [*lines[:-1], lines[-1][:-1]],
        "a line missing": [*lines[:3], *lines[4:]],
        "no head": lines[1:],
        "two heads": [lines[0], *lines],
        "goes on": [*lines, lines[1]],
        "not JSON": [lines[0], b"{\n", *lines[1:]],
        "unknown kind": [lines[0], b'["other"]\n', *lines[1:]],
        "unknown topic": [lines[0], b'["group","g","C",null,false,1]\n["queues",[99],[[6,8,0,8]],0]\n', *lines[1:]],
        "queues without topics": [*lines[:3], b'["queues",[0,1],[[6,8,0,8],[4,8,0,8]],[0]]\n', *lines[3:]],
        "queues without group": [lines[0], b'["queues",[],[],[]]\n', *lines[1:]],
        "newer format": [lines[0].replace(b'["head",1,', b'["head",2,'), *lines[1:]],
    }


@pytest.mark.parametrize("what", sorted(damaged()))
def test_damaged_bytes_are_refused_and_change_nothing(what: str) -> None:
    state = populated()
    before = state.digest()
    with pytest.raises(RouteFormatError, match="snapshot"):
        state.restore(damaged()[what])
    assert state.digest() == before


def test_a_reader_takes_the_bytes_in_parts() -> None:
    source = populated()
    reader = SnapshotReader()
    for line in source.snapshot():
        reader.feed(line)
    state = RouteInfoManager()
    state.adopt(reader)
    assert state.digest() == source.digest()

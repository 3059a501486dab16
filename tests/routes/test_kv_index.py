"""The KV config is in order after any sequence of puts, deletes, restores and queries."""

from random import Random

import pytest

from replicated_namesrv.routes.commands import DeleteKVConfig, PutKVConfig
from replicated_namesrv.routes.kv_index import BLOCK_MAX, SortedNames, entry_of, name_of
from replicated_namesrv.routes.snapshot import SnapshotReader
from replicated_namesrv.routes.state import RouteInfoManager

NAMESPACES = ("a", "a|b", "a%7Cb", "a%b", "A", "a!", "", "é")
KEYS = ("", "k", "b|k", "%", "K", "|", "ü", "\0")


def content(state: RouteInfoManager, namespace: str) -> dict[str, str | None] | None:
    """A copy of a namespace; None: it never existed."""
    view = state.kv_view(namespace)
    return None if view is None else dict(view)


def test_a_name_says_which_entry_it_is_of() -> None:
    entries = [(namespace, key) for namespace in NAMESPACES for key in KEYS]
    names = [name_of(*entry) for entry in entries]
    assert [entry_of(name) for name in names] == entries
    assert len(set(names)) == len(entries)
    assert name_of("ORDER_TOPIC_CONFIG", "orders") == "ORDER_TOPIC_CONFIG|orders"


@pytest.mark.parametrize("seed", range(5))
def test_sorted_names_are_a_sorted_set(seed: int) -> None:
    chance, names, expected = Random(seed), SortedNames(), set[str]()
    for step in range(20_000):
        name = str(chance.randrange(6 * BLOCK_MAX))
        if chance.random() < (0.9 if step < 12_000 else 0.2):
            names.add(name)
            expected.add(name)
        else:
            names.discard(name)
            expected.discard(name)
        if step % 1_000 == 0:
            start, end, count = str(chance.random() * 10)[:2], chance.choice((None, "5", "77")), chance.randint(1, 5_000)
            within = [each for each in sorted(expected) if each >= start and (end is None or each < end)]
            assert names.between(start, end, count) == within[:count], f"seed {seed}"
            assert len(names) == len(expected)


def copied(state: RouteInfoManager) -> SnapshotReader:
    reader = SnapshotReader()
    for chunk in state.snapshot():
        reader.feed(chunk)
    return reader


@pytest.mark.parametrize("seed", range(10))
def test_pages_show_every_entry_once_and_a_revision_stands_for_a_namespace(seed: int) -> None:
    chance, state = Random(seed), RouteInfoManager()
    seen: dict[tuple[str, int], dict[str, str | None] | None] = {}
    for _ in range(1_500):
        namespace, key = chance.choice(NAMESPACES), chance.choice(KEYS)
        if chance.random() < 0.6:
            state.apply(PutKVConfig(namespace, key, chance.choice((None, "1", "2"))), 0)
        else:
            state.apply(DeleteKVConfig(namespace, key), 0)
        if chance.random() < 0.02:
            state.adopt(copied(state))
        if chance.random() < 0.01:
            state.begin_anew(state.revision + 1_000)
        for each in NAMESPACES:
            known = seen.setdefault((each, state.kv_revision(each)), content(state, each))
            assert known == content(state, each), f"seed {seed}: one revision stands for one content"
        if state.advance_kv_index(chance.randint(1, 20)):
            only = chance.choice((None, *NAMESPACES))
            limit, names = chance.randint(1, 9), list[str]()
            while part := state.kv_index.page(names[-1] if names else "", limit, only):
                names += part
            wanted = [(n, k) for n, table in state.kv_table().items() for k in table if only in (None, n)]
            assert names == sorted(name_of(*entry) for entry in wanted), f"seed {seed}"
            assert state.kv_index.count(only) == len(wanted)
    assert state.advance_kv_index(1 << 30) or state.advance_kv_index(1), "it comes to an end"

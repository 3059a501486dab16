"""Everything that can be created can be removed: after random commands all is removed, and every table is empty."""

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from replicated_namesrv.routes.broker_group import BrokerGroup
from replicated_namesrv.routes.commands import BrokerRemoval, Command, DeleteKVConfig, UnregisterBrokers
from replicated_namesrv.routes.digest import digest
from replicated_namesrv.routes.holders import Holders
from replicated_namesrv.routes.shared_dict import SharedDict
from replicated_namesrv.routes.state import RouteInfoManager
from replicated_namesrv.routes.sums import entry_hash
from replicated_namesrv.routes.tables import Tables
from tests.routes.sequences import random_command
from tests.support.routes import measured, register, unregister

NO_STATE = {
    "settings",
    "settings_revision",
    "revision",
    "next_revision",
    "kv_revision",
    "changed",
    "effects",
    "ended",
    "moved",
    "_touched",
    "_interned",
    "topic_names_changes",
    "listing_changes",
    "kv_index",
}
"""Settings and revisions are not emptied. The other fields concern only the last command, or are remembered up to a bound.
``kv_index`` is derived and has a test of its own, which compares it with the table."""
SEEDS = range(40)


def removals(state: RouteInfoManager) -> Iterator[Command]:
    """Requests of a user that remove everything, whatever cluster they name."""
    for each in state.registrations():
        yield UnregisterBrokers((BrokerRemoval("none", each.broker_addr, each.broker_name, each.broker_id, None),))
    tables = state._tables
    for name in list(tables.groups):  # a refused registration leaves a group without members
        yield unregister(name, 0, "nobody:1", cluster="none")
    for name in list(tables.mappings):  # mappings of names that have no broker
        yield register(name, 0, "late:1")
        yield unregister(name, 0, "late:1")
    for namespace, entries in state.kv_table().items():
        for key in list(entries):
            yield DeleteKVConfig(namespace, key)


def fields(value: Any) -> Any:
    """A table or group as plain values, without values that last for one command only."""
    if isinstance(value, Tables):
        return {name: fields(each) for name, each in vars(value).items() if name not in NO_STATE}
    if isinstance(value, BrokerGroup):
        names = [name for name in BrokerGroup.__slots__ if name != "shown"]
        kinds = {queue_data: (kind.count, kind.sum) for queue_data, kind in value.kinds.items()}
        return {name: fields(getattr(value, name)) for name in names if name != "kinds"} | {"kinds": kinds}
    if isinstance(value, Holders):
        return {
            topic: [held.broker_name if isinstance(held, BrokerGroup) else held for held in value.of(topic)] for topic in value
        }
    if isinstance(value, (dict, SharedDict)):
        return {key: fields(each) for key, each in value.items()}
    return value


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_left_when_all_is_removed(seed: int) -> None:
    rng, state = Random(seed), RouteInfoManager()
    for time_ms in range(rng.randrange(20, 200)):
        state.apply(random_command(rng), time_ms)
        if rng.random() < 0.1:
            list(state.snapshot())
        if rng.random() < 0.3:
            state.digest()
        for each in state.registrations():
            state.put_memo(each, "a memo of the server")
            assert state.memo(each.cluster_name, each.broker_addr)
        assert len(state._tables.memos) == state.broker_count, f"seed {seed}"
    namespaces = list(state.kv_table())
    for command in removals(state):
        state.apply(command, 1_000)
    tables = state._tables
    tables.count_groups()
    left, empty = fields(tables), fields(Tables(tables.settings))
    empty["kv"] = {namespace: {} for namespace in namespaces}  # they stay known, as in Java
    known = sum(entry_hash("namespace", namespace) for namespace in namespaces)
    assert left.pop("kv_sum") == known % (2**127 - 1)
    del empty["kv_sum"]
    sizes = left.pop("sizes")
    del empty["sizes"]
    assert sizes == measured(tables), f"seed {seed}"
    assert sizes.brokers == sizes.mapped == {}, f"seed {seed}"
    assert left == empty, f"seed {seed}"


@pytest.mark.parametrize("seed", SEEDS)
def test_sums_and_indexes_are_those_of_a_state_that_was_read_anew(seed: int) -> None:
    rng, state = Random(seed), RouteInfoManager()
    for time_ms in range(200):
        state.apply(random_command(rng), time_ms)
        if rng.random() < 0.1:
            state.digest()
        if rng.random() < 0.05:
            lines = list(state.snapshot())
            if rng.random() < 0.5:
                state.restore(lines)
    twin = RouteInfoManager()
    twin.restore(state.snapshot())
    for each in (state, twin):
        each._tables.count_groups()
    ours, anew = fields(state._tables), fields(twin._tables)
    assert ours == anew, f"seed {seed}"
    assert digest(state._tables) == digest(twin._tables)

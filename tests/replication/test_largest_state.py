"""With the largest state that the limits allow, every command, digest and step of a snapshot takes a bounded number of
operations.
"""

from typing import Any

import pytest

from benchmarks.state import FILTERS, KV_BYTES, LONG, NAMESPACE_BYTES, ORDER, STATE_BYTES, Measurement, State
from replicated_namesrv.model import TOPICS_MAX
from replicated_namesrv.replication import route_machine
from replicated_namesrv.replication.cluster_restore import RestorableMachine
from replicated_namesrv.replication.command_kinds import COMMAND_KINDS, RESTORE_MARK
from replicated_namesrv.replication.route_machine import UNREGISTERED_MAX
from replicated_namesrv.routes import encoding, quotas, snapshot
from replicated_namesrv.routes.commands import Command
from replicated_namesrv.routes.encoding import load
from replicated_namesrv.settings import Settings
from tests.routes.test_costs import OPERATIONS_MAX
from tests.support.work import Name, operations_of

MIB = 1 << 20
BYTES_PART = 0.25
"""The state reaches all limits on numbers, and this part of the limits on bytes. More bytes make more lines of a snapshot, and
more commands of a restore, but not longer ones. ``python -m benchmarks.state`` reaches all."""


def named(value: Any) -> Any:
    """JSON whose texts count how often they are hashed."""
    if isinstance(value, str):
        return Name(value)
    if isinstance(value, list):
        return [named(each) for each in value]
    if isinstance(value, dict):
        return {Name(key): named(each) for key, each in value.items()}
    return value


def numbers_and_limits(state: State) -> dict[str, tuple[int, int]]:
    """For each bound on numbers: the number in the state, and the limit."""
    routes = state.routes.state
    tables = routes._tables
    groups = tables.groups
    return {
        "broker names": (len(groups), quotas.BROKER_NAMES_MAX),
        "brokers": (routes.broker_count, quotas.BROKERS_MAX),
        "brokers of one name": (len(groups["family"].members), quotas.MEMBERS_MAX),
        "clusters": (len(tables.cluster_names), quotas.CLUSTERS_MAX),
        "clusters of one name": (len(tables.clusters_of["spread"]), quotas.CLUSTERS_OF_NAME_MAX),
        "topics": (len(tables.topic_revisions), quotas.ALL_TOPICS_MAX),
        "topics of the measured broker": (len(groups["big"].topics), TOPICS_MAX),
        "topics of a broker alone": (len(groups["own"].topics), TOPICS_MAX),
        "mappings": (len(tables.mappings["big"]), quotas.MAPPINGS_MAX),
        "queue settings": (len(groups["settings"].kinds), quotas.QUEUE_SETTINGS_MAX),
        "filter servers": (max(len(each.filter_servers) for each in routes.registrations()), FILTERS),
        "namespaces": (len(routes.kv_table()), quotas.KV_NAMESPACES_MAX),
        "keys": (len(routes.kv_table()["keys"]), quotas.KV_KEYS_MAX),
        "unregistrations": (len(state.routes._unregistered), UNREGISTERED_MAX),
    }


def bytes_and_limits(state: State) -> dict[str, tuple[int, int]]:
    """For each bound on bytes: the bytes in the state, and the part of the limit."""
    sizes, of = state.routes.state.sizes, state.contents.of_bytes
    return {
        "state": (sizes.total, of(STATE_BYTES)),
        "KV": (sizes.kv, of(KV_BYTES)),
        "namespace": (sizes.namespaces[LONG[0]], of(NAMESPACE_BYTES)),
        ORDER: (sizes.order_topics, of(quotas.ORDER_TOPICS_BYTES_MAX)),
    }


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_step_takes_few_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    defaults = Settings()
    assert (defaults.max_state_bytes, defaults.max_kv_bytes) == (STATE_BYTES, KV_BYTES)
    assert defaults.max_kv_namespace_bytes == NAMESPACE_BYTES
    for module in (encoding, route_machine, snapshot):
        monkeypatch.setattr(module, "load", lambda data: named(load(data)))
    state = State(1.0, BYTES_PART)
    numbers = numbers_and_limits(state)
    assert {name for name, (number, limit) in numbers.items() if number != limit} == set(), numbers
    sizes = bytes_and_limits(state)
    assert {name for name, (size, limit) in sizes.items() if not limit - 4 * MIB <= size <= limit} == set(), sizes

    kinds, commands = set[tuple[int, int]](), set[type]()
    apply, decode = RestorableMachine.apply, encoding.decode_command

    def apply_and_note(machine: RestorableMachine, data: bytes) -> Any:
        head = load(data[1 : data.index(b"\n")])
        kinds.add((data[0], head[1] if data[0] == RESTORE_MARK else head[0]))
        return apply(machine, data)

    def decode_and_note(data: bytes) -> tuple[Command, int]:
        command, time_ms = decode(data)
        commands.add(type(command))
        return command, time_ms

    monkeypatch.setattr(RestorableMachine, "apply", apply_and_note)
    monkeypatch.setattr(route_machine, "decode_command", decode_and_note)
    measurement = Measurement(state, lambda call: sum(operations_of(call)))
    measurement.commands(1)
    measurement.snapshot()
    monkeypatch.setattr(snapshot, "load", load)  # a backup is checked: its texts must be of the type that the parser returns
    measurement.restore()
    measurement.expiries()
    most = measurement.most
    missing = [kind.name for key, kind in COMMAND_KINDS.items() if key not in kinds]
    assert not missing, f"measure these commands of command_kinds.py in benchmarks/state.py, too: {missing}"
    missing = [kind.__name__ for kind in Command.__args__ if kind not in commands]
    assert not missing, f"measure these commands of routes/commands.py in benchmarks/state.py, too: {missing}"
    assert {name: costs for name, costs in most.items() if sum(costs) > OPERATIONS_MAX} == {}, "turn and digest"

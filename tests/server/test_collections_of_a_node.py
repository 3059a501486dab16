"""What clients create and remove again leaves nothing in the memory of a node, in either mode.

The test does not know the caches, indexes and memos of a node. It looks into every object of the program that the node refers to,
counts the items of all collections, and repeats the traffic with new names. A collection may not grow with the number of
repetitions, unless it is listed with its bound.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any

import pytest

from replicated_namesrv.server.server import RemotingServer
from tests.support.remoting_server import Peer, broker_fields, live_server, topic_table
from tests.support.replicated_cluster import live_cluster
from tests.support.waiting import wait_until

FEW, MANY = 10, 40
"""Repetitions before the first count, and between the two counts."""
BOUNDED = {
    "GenerationCache.young": "routeCacheBytes; the answers are outdated, so no request gets them",
    "GenerationCache._old": "routeCacheBytes",
    "GenerationCache._sizes": "routeCacheBytes",
    "History._changes": "HISTORY_BYTES_MAX",
    "Change._fields": "HISTORY_BYTES_MAX",
    "RouteStateMachine._unregistered": "UNREGISTERED_MAX",
    "Log._entries": "compaction",
    "Log._buffer": "compaction",
    "Digests._by_index": "REMEMBERED_INDEXES",
    "Proposals._expiry": "the time limit of a proposal",
    "Silence._heap": "STALE_MAX",
    "LeaderRole._registered_lately": "LATELY_MS",
}
"""Collections that may grow, each with its bound."""


def fields_of(value: object) -> Iterator[tuple[str, Any]]:
    """Attributes of an object, whether it has slots or a dictionary."""
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, name):
                yield name, getattr(value, name)
    yield from getattr(value, "__dict__", {}).items()


def sizes_of(root: object) -> Counter[str]:
    """The number of items of every collection that ``root`` refers to, added up by class and attribute."""
    sizes, seen, waiting = Counter[str](), {id(root)}, [("", root)]
    while waiting:
        place, value = waiting.pop()
        inside: list[tuple[str, Any]] = []
        if isinstance(value, (dict, list, set, deque, tuple, frozenset)):
            if not isinstance(value, (tuple, frozenset)):
                sizes[place] += len(value)
            inside = [(place, item) for item in (value.values() if isinstance(value, dict) else value)]
        elif type(value).__module__.startswith("replicated_namesrv"):
            inside = [(f"{type(value).__name__}.{name}", item) for name, item in fields_of(value)]
        elif isinstance(value, MethodType):
            inside = [(place, value.__self__)]
        elif isinstance(value, partial):
            inside = [(place, item) for item in (value.func, *value.args, *value.keywords.values())]
        elif isinstance(value, FunctionType):
            inside = [(place, cell.cell_contents) for cell in value.__closure__ or ()]
        for where, item in inside:
            if id(item) not in seen and not isinstance(item, (str, bytes, int, float, type(None))):
                seen.add(id(item))
                waiting.append((where, item))
    return sizes


Do = Callable[[Callable[[], Any]], Any]


@contextmanager
def independent(folder: Path) -> Iterator[tuple[RemotingServer, Do]]:
    with live_server(folder) as thread:
        yield thread.server, thread.do


@contextmanager
def replicated(folder: Path) -> Iterator[tuple[RemotingServer, Do]]:
    with live_cluster(folder, connectionLossGraceMs="100") as cluster:
        yield cluster.leader().server, cluster.do


def ok(peer: Peer, code: int, fields: Mapping[str, str], body: bytes = b"") -> None:
    assert peer.call(code, dict(fields), body).code == 0, (code, fields)


def live_and_die(peer: Peer, broker: Peer, name: str, leaves: bool) -> None:
    """A master and a slave of a new name come with new topics, are asked for in every way, and go."""
    topics, zone = (f"T-{name}", f"U-{name}"), f"zone-{name}"
    master = broker_fields(name, f"{name}:1", clusterName=f"C-{name}", zoneName=zone)
    slave = broker_fields(name, f"{name}:2", 1, clusterName=f"C-{name}", zoneName=zone)
    for counter in (1, 1, 2, 2):
        for fields in (master, slave):
            ok(broker, 103, fields, topic_table(*topics, counter=counter))
    ok(broker, 904, {"clusterName": f"C-{name}", "brokerName": name, "brokerAddr": f"{name}:1", "brokerId": "0"})
    for topic in topics * 2:
        ok(peer, 105, {"topic": topic})
        ok(peer, 105, {"topic": topic, "acceptStandardJsonOnly": "true"})
    for code, more in ((106, {}), (206, {}), (224, {"cluster": f"C-{name}"}), (205, {"brokerName": name})):
        ok(peer, code, more)
    ok(peer, 327, {"brokerName": name})
    for key in ("k", "l"):
        ok(peer, 100, {"namespace": "N", "key": f"{key}-{name}", "value": name})
        ok(peer, 101, {"namespace": "N", "key": f"{key}-{name}"})
        ok(peer, 102, {"namespace": "N", "key": f"{key}-{name}"})
    ok(peer, 216, {"topic": topics[0]})
    if leaves:
        for fields in (slave, master):
            ok(broker, 104, fields)
    broker.close()


@pytest.mark.slow
@pytest.mark.parametrize("serving", [independent, replicated])
def test_nothing_stays_of_what_is_gone(serving: Any, tmp_path: Path) -> None:
    with serving(tmp_path) as (server, do):
        state = server._service.state
        counts: list[Counter[str]] = []
        for repetitions in (FEW, MANY):
            first = FEW * len(counts)
            for number in range(first, first + repetitions):
                with Peer(server.port) as peer, Peer(server.port) as broker:
                    live_and_die(peer, broker, f"b{number}", leaves=number % 2 == 0)
            wait_until(lambda: do(lambda: state.broker_count) == 0, "all brokers are gone")
            wait_until(lambda: do(lambda: len(server.connections)) == 0, "all connections are closed")
            counts.append(do(lambda: sizes_of(server)))
        few, both = counts
        grown = {where: (few[where], both[where]) for where in both if both[where] - few[where] >= MANY // 2}
        assert {where: numbers for where, numbers in grown.items() if where not in BOUNDED} == {}

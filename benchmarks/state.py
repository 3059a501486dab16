"""Longest turn of each command, digest and snapshot step of the replicated state, at the largest size that the limits allow.

    python -m benchmarks.state [--topics 60000] [--groups 300] [--topics-each 2000] [--kv-mib 64] [--rounds 5] [--lines] [--json]

One broker has ``--topics`` topics (which a second broker shares), 10,000 static topic mappings and a slave. ``--groups`` groups
have ``--topics-each`` of these topics. Other brokers have the other topics, up to the limit on all topics. The KV config has
``--kv-mib`` MiB in entries of 1 KiB, and 9,000 emptied namespaces; 10,000 unregistrations are remembered. Each command is applied
in its log encoding ``--rounds`` times, each time followed by a digest; the longest time counts. A turn must stay well below an
election time-out (300 ms). Times are processor time, which can still double on a busy machine. ``--lines`` counts executed lines
of Python instead, which are comparable between machines.
"""

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType
from typing import Any

from replicated_namesrv.model import TOPICS_MAX, DataVersion, QueueData, TopicQueueMappingInfo
from replicated_namesrv.process import tune_garbage_collection
from replicated_namesrv.replication.cluster_restore import RestorableMachine
from replicated_namesrv.replication.route_machine import RouteStateMachine, encode_expire, encode_lead
from replicated_namesrv.routes.commands import (
    BrokerRemoval,
    ChangeWritePerm,
    Command,
    DeleteKVConfig,
    DeleteTopic,
    PutKVConfig,
    RegisterBroker,
    RegisterTopic,
    UnregisterBrokers,
    UpdateSettings,
)
from replicated_namesrv.routes.quotas import ALL_TOPICS_MAX, MAPPINGS_MAX
from replicated_namesrv.routes.state import RouteSettings
from tests.support.log_entries import encoded

EMPTIED, UNREGISTERED = 9_000, 10_000
KV_BYTES = 1 << 10


def lines_of(call: Callable[[], object]) -> int:
    """Number of Python lines that ``call`` executes."""
    count = 0

    def line(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return line

    sys.settrace(line)
    try:
        call()
    finally:
        sys.settrace(None)
    return count


def ms_of(call: Callable[[], object]) -> float:
    """Processor time that ``call`` takes."""
    began = time.thread_time()
    call()
    return (time.thread_time() - began) * 1000


def registration(
    name: str, address: str, topics: dict[str, QueueData], version: int = 1, broker_id: int = 0, **others: Any
) -> RegisterBroker:
    fields: dict[str, Any] = {"zone_name": None, "mappings": {}, "filters": None, **others}
    data_version = DataVersion(version, 0, version)
    head = ("C", name, address, broker_id, "", fields["zone_name"], None, None, data_version)
    return RegisterBroker(*head, topics, fields["mappings"], fields["filters"])


def removal(name: str, address: str, broker_id: int = 0) -> UnregisterBrokers:
    return UnregisterBrokers((BrokerRemoval("C", address, name, broker_id, None),))


class State:
    """The state machine at full size, and the commands to measure."""

    def __init__(self, topics: int, groups: int, topics_each: int, kv_mib: int) -> None:
        self.routes = RouteStateMachine()
        self.machine = RestorableMachine(self.routes)
        self.machine.apply(encode_lead(RouteSettings(), 1, 1))
        self.topics = {f"topic-{number:07}": QueueData(6, 8, 0, 8 + number % 3) for number in range(topics)}
        self.changed = dict.fromkeys(self.topics, QueueData(6, 4, 0, 4))
        self.mappings = {
            topic: TopicQueueMappingInfo("big", ((0, 0), (1, 1)), False, 1, "__global__", topic, 2)
            for topic in list(self.topics)[:MAPPINGS_MAX]
        }
        self.others: dict[str, QueueData] = {}
        self.own = {f"own-{number:07}": QueueData(6, 8, 0, 8) for number in range(topics)}
        room = ALL_TOPICS_MAX - topics
        for start in range(topics, room, topics):
            numbers = range(start, min(start + topics, room))
            self.others = {f"topic-{number:07}": QueueData(6, 8, 0, 8 + number % 3) for number in numbers}
            self.apply(registration(f"part{start}", f"part{start}:1", self.others))
        self.apply(registration("twin", "twin:1", self.topics))
        shared = {topic: QueueData(6, 8, 0, 8) for topic in list(self.topics)[:topics_each]}
        for number in range(groups):
            self.apply(registration(f"g{number}", f"g{number}:1", shared))
        for number in range(UNREGISTERED):
            self.apply(registration("gone", f"gone{number}:1", {"x": QueueData(6, 8, 0, 8), "y": QueueData(6, 8, 0, 8)}))
            self.apply(removal("gone", f"gone{number}:1"))
        for number in range(EMPTIED):
            self.apply(PutKVConfig(f"emptied-{number}", "k", "v"))
            self.apply(DeleteKVConfig(f"emptied-{number}", "k"))
        for number in range((kv_mib << 20) // KV_BYTES):
            self.apply(PutKVConfig("ORDER_TOPIC_CONFIG", f"topic-{number:07}", "v" * KV_BYTES))
        self.machine.digest()

    def encoded(self, command: Command) -> bytes:
        """The command in its log encoding."""
        return encoded(self.routes, command, 1)

    def apply(self, command: Command) -> None:
        """One command."""
        self.machine.apply(self.encoded(command))

    def steps(self, rounds: int) -> Iterator[tuple[str, Command]]:
        """Commands by name; each round restores what it changed."""
        big, queues, drop = dict(self.topics), QueueData(6, 8, 0, 8), "delete_topic_with_broker_registration"
        order = "ORDER_TOPIC_CONFIG"
        for number in range(rounds):
            yield "103 first, topics of another broker", registration("big", "big:1", big)
            yield "103 unchanged", registration("big", "big:1", big)
            yield "103 one topic changed, whole table", registration("big", "big:1", big | {"topic-0000001": queues}, 2)
            yield "103 all topics changed", registration("big", "big:1", self.changed, 3)
            yield "103 10,000 mappings", registration("big", "big:1", self.changed, 4, mappings=self.mappings)
            yield "103 slave", registration("big", "big:2", {}, 3, 1)
            yield "103 slave, other zone", registration("big", "big:2", {}, 3, 1, zone_name=f"z{number}")
            yield "103 slave, filter server", registration("big", "big:2", {}, 3, 1, filters=(f"f{number}:1",))
            yield "103 small broker, first", registration("small", "small:1", {"topic-0000001": queues, "s": queues})
            yield "205 wipe", ChangeWritePerm("big", writable=False)
            yield "327 add", ChangeWritePerm("big", writable=True)
            yield "205 wipe, small broker", ChangeWritePerm("small", writable=False)
            yield "217 topic", RegisterTopic("topic-0000002", (("big", queues), ("small", queues)))
            yield "216 topic of all brokers", DeleteTopic(f"topic-{number:07}", None)
            yield "100 KV, 1 MiB", PutKVConfig(order, "k", f"{number}" * (1 << 20))
            yield "100 KV, small", PutKVConfig(order, "topic-0000001", f"v{number}")
            yield "102 KV", DeleteKVConfig(order, "k")
            yield "318 setting", UpdateSettings({"order_message_enable": number % 2 == 0})
            yield "104 small broker", removal("small", "small:1")
            yield "104 slave", removal("big", "big:2", 1)
            yield "104 large broker, mappings", removal("big", "big:1")
            yield "103 first, topics of its own", registration("own", "own:1", self.own)
            yield "104 large broker, topics of its own", removal("own", "own:1")
            yield "318 topics are dropped", UpdateSettings({drop: True})
            yield "103 first, topics of another broker", registration("big", "big:1", big)
            yield "103 all topics replaced", registration("big", "big:1", self.others, 2)
            yield "104 large broker", removal("big", "big:1")
            yield "318 topics are not dropped", UpdateSettings({drop: False})

    def expire(self) -> bytes:
        """The expiry of the large broker."""
        held = self.routes.state.registration("C", "big:1")
        assert held is not None
        fenced = UnregisterBrokers((BrokerRemoval("C", "big:1", "big", 0, held.epoch),))
        return encode_expire(fenced, 1, 1, self.routes.serial, is_lost=True)


def measured(state: State, rounds: int, cost: Callable[[Callable[[], object]], float]) -> dict[str, tuple[float, float]]:
    """For each step the greatest cost of applying it plus the digest."""
    most: dict[str, tuple[float, float]] = {}

    def note(name: str, *costs: float) -> None:
        before = most.get(name, (0.0, 0.0))
        most[name] = max(before[0], costs[0]), max(before[1], costs[1] if len(costs) > 1 else 0.0)

    def apply(name: str, data: bytes) -> None:
        note(name, cost(lambda: state.machine.apply(data)), cost(state.machine.digest))

    for name, command in state.steps(rounds):
        apply(name, state.encoded(command))
    state.apply(registration("big", "big:1", state.topics))
    chunks: list[bytes] = []
    taken: list[Iterator[bytes]] = []
    note("snapshot, begin", cost(lambda: taken.append(state.machine.snapshot())))
    apply("216 while a snapshot is taken", state.encoded(DeleteTopic("topic-0000100", None)))
    while not chunks or not chunks[-1].startswith(b'["end"'):
        note("snapshot, step", cost(lambda: chunks.append(next(taken[0]))))
    apply("expiry of the large broker", state.expire())
    restoration = state.machine.restore()
    for chunk in chunks:
        note("restoration, step", cost(partial(restoration.feed, chunk)))
    note("restoration, end, digest", cost(restoration.finish), cost(state.machine.digest))
    return most


def main() -> None:
    """Print one line per command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.state", description=__doc__.splitlines()[0])
    parser.add_argument("--topics", type=int, default=TOPICS_MAX)
    parser.add_argument("--groups", type=int, default=300)
    parser.add_argument("--topics-each", type=int, default=2_000)
    parser.add_argument("--kv-mib", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--lines", action="store_true", help="count lines of the program instead of milliseconds")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    gc.disable()
    state = State(options.topics, options.groups, options.topics_each, options.kv_mib)
    gc.enable()
    tune_garbage_collection()
    found = measured(state, options.rounds, lines_of if options.lines else ms_of)
    unit = "lines" if options.lines else "ms"
    if options.json:
        print(
            json.dumps({"unit": unit, "most": {name: {"turn": turn, "digest": after} for name, (turn, after) in found.items()}})
        )
        return
    print(f"{'longest':42}{'turn, ' + unit:>14}{'digest after':>14}")
    for name, (turn, after) in found.items():
        print(f"{name:42}{turn:14.1f}{after:14.1f}")


if __name__ == "__main__":
    main()

"""Longest turn of each command, digest and snapshot step of the replicated state, at the largest size that the limits allow.

    python -m benchmarks.state [--part 1.0] [--rounds 5] [--lines] [--json]

``Contents`` lists what the state contains: as many objects of each kind as allowed, and as many bytes. With ``--part 0.1`` it
contains a tenth of that. Each command is applied in its log encoding ``--rounds`` times, each time followed by a digest; the
longest time counts. A turn must stay well below an election time-out (300 ms). Times are processor time, which can still double
on a busy machine. ``--lines`` counts executed lines of Python instead, which are comparable between machines.
"""

import argparse
import asyncio
import gc
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain, repeat
from typing import Any

from replicated_namesrv.model import TOPICS_MAX, ChangeOrigin, DataVersion, QueueData, TopicQueueMappingInfo
from replicated_namesrv.process import tune_garbage_collection
from replicated_namesrv.replication import cluster_restore
from replicated_namesrv.replication.cluster_restore import RestorableMachine
from replicated_namesrv.replication.command_kinds import ABANDON, BEGIN, FINISH, PIECE
from replicated_namesrv.replication.liveness.removals import EXPIRED_BROKERS_MAX, EXPIRED_TOPICS_MAX
from replicated_namesrv.replication.liveness.silence import RECORDED_PER_COMMAND
from replicated_namesrv.replication.route_machine import (
    UNREGISTERED_MAX,
    ProposalResult,
    RouteStateMachine,
    Suspect,
    encode_attributed,
    encode_expire,
    encode_lead,
    encode_operation,
    encode_suspect,
)
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
from replicated_namesrv.routes.quotas import (
    ALL_TOPICS_MAX,
    BROKER_NAMES_MAX,
    BROKERS_MAX,
    CLUSTERS_MAX,
    CLUSTERS_OF_NAME_MAX,
    KV_KEYS_MAX,
    KV_NAMESPACES_MAX,
    MAPPED_QUEUES_MAX,
    MAPPINGS_MAX,
    MEMBERS_MAX,
    NAME_BYTES_MAX,
    ORDER_TOPICS_BYTES_MAX,
    QUEUE_SETTINGS_MAX,
    TOPIC_BROKERS_MAX,
    VALUE_BYTES_MAX,
)
from replicated_namesrv.routes.state import RouteSettings
from tests.support.log_entries import encoded
from tests.support.work import operations_of

FILTERS = 1_000
LARGE_GROUPS, TOPICS_OF_LARGE_GROUP = 300, 2_000
ORDER = "ORDER_TOPIC_CONFIG"
STATE_BYTES, KV_BYTES, NAMESPACE_BYTES = 1 << 30, 256 << 20, 128 << 20
"""The default values of maxStateBytes, maxKvBytes and maxKvNamespaceBytes."""
WIDE_BYTES, WIDE_SPARED = FILTERS * (NAME_BYTES_MAX + 64), 8
"""Bytes of the filter servers of a broker that has them. Number of such brokers that are left out because ``big`` comes later."""
LONG = ("long-1", "long-2")
"""Namespaces with values of the maximum length."""
ORDER_BYTES = 1_500
Q = QueueData(6, 8, 0, 8)


def lines_of(call: Callable[[], object]) -> int:
    """Number of lines of our code that ``call`` executes."""
    return operations_of(call)[0]


def ms_of(call: Callable[[], object]) -> float:
    """Processor time that ``call`` takes."""
    began = time.thread_time()
    call()
    return (time.thread_time() - began) * 1000


def registration(
    name: str, address: str, topics: dict[str, QueueData], version: int = 1, broker_id: int = 0, **others: Any
) -> RegisterBroker:
    fields: dict[str, Any] = {"zone_name": None, "mappings": {}, "filters": None, "cluster": "C0", **others}
    data_version = DataVersion(version, 0, version)
    head = (fields["cluster"], name, address, broker_id, "", fields["zone_name"], None, None, data_version)
    return RegisterBroker(*head, topics, fields["mappings"], fields["filters"])


def removal(name: str, address: str, broker_id: int = 0) -> UnregisterBrokers:
    return UnregisterBrokers((BrokerRemoval("C0", address, name, broker_id, None),))


def topic(number: int) -> str:
    return f"topic-{number:07}"


class Contents:
    """The commands that fill a state up to its limits, or to a part of them.

    - ``own`` has as many topics as one broker name may have. ``twin`` has as many others, and the measured broker ``big`` has the
      same ones as ``twin``, with all allowed static topic mappings and a slave. Further brokers have the rest of all topics.
    - ``settings`` has as many different queue settings as allowed, ``family`` as many members, ``spread`` as many clusters.
    - All other brokers have the topic ``common`` and one more. 300 of them have 2,000 topics of ``twin``. The last ones have
      filter servers with names of the maximum length, until the bytes of the state reach their limit.
    - There are as many broker names, brokers, clusters, namespaces and remembered unregistrations as allowed. Broker names
      without a broker are those of refused registrations. Silence is recorded for all small brokers.
    - One namespace has as many keys as allowed; ORDER_TOPIC_CONFIG and two others have as many bytes.
    """

    def __init__(self, part: float, bytes_part: float) -> None:
        """``part`` of the limits on numbers, ``bytes_part`` of those on bytes."""
        self.part, self.bytes_part = part, bytes_part
        self.topics = {topic(number): QueueData(6, 8, 0, 8 + number % 3) for number in range(self.of(TOPICS_MAX))}
        self.own = {f"own-{number:07}": Q for number in range(self.of(TOPICS_MAX))}
        rest = self.of(ALL_TOPICS_MAX) - len(self.topics) - len(self.own) - len(("common", "s"))
        self.others = []
        for start in range(0, rest, len(self.own)):
            numbers = range(start, min(start + len(self.own), rest))
            self.others.append({f"other-{number:07}": QueueData(6, 8, 0, 8 + number % 3) for number in numbers})
        pairs = tuple((queue, queue) for queue in range(MAPPED_QUEUES_MAX // MAPPINGS_MAX))
        self.mappings = {
            name: TopicQueueMappingInfo("big", pairs, False, 1, "__global__", name, len(pairs))
            for name in list(self.topics)[: self.of(MAPPINGS_MAX)]
        }

    def of(self, limit: int) -> int:
        """The part of a limit on a number."""
        return int(limit * self.part)

    def of_bytes(self, limit: int) -> int:
        """The part of a limit on bytes."""
        return int(limit * self.bytes_part)

    def brokers(self) -> Iterator[Command]:
        """The brokers that have a name of their own in the list above."""
        yield registration("own", "own:1", self.own)
        yield registration("twin", "twin:1", self.topics)
        for number, topics in enumerate(self.others):
            yield registration(f"others-{number}", f"others-{number}:1", topics)
        different = {topic(number): QueueData(6, number, 0, 8) for number in range(self.of(QUEUE_SETTINGS_MAX))}
        yield registration("settings", "settings:1", different)
        for number in range(self.of(MEMBERS_MAX)):
            yield registration("family", f"family:{number}", {"common": Q, topic(0): Q}, broker_id=number)
        for number in range(CLUSTERS_OF_NAME_MAX):
            yield registration("spread", f"spread:{number}", {}, broker_id=number, cluster=f"C{number}")
        for number in range(self.of(UNREGISTERED_MAX)):
            yield registration("gone", f"gone:{number}", {"common": Q, topic(0): Q})
            yield removal("gone", f"gone:{number}")

    def small(self, number: int) -> RegisterBroker:
        """A small broker, or one of those with 2,000 topics."""
        topics = {"common": Q, topic(number % len(self.topics)): Q}
        if number < self.of(LARGE_GROUPS):
            topics |= {topic(each): Q for each in range(self.of(TOPICS_OF_LARGE_GROUP))}
        return registration(f"s{number}", f"s:{number}", topics, cluster=f"C{number % self.of(CLUSTERS_MAX)}")

    def wide(self, number: int) -> RegisterBroker:
        """A small broker with filter servers, of 1 MiB in all."""
        names = tuple(f"{number}-{each}-".ljust(NAME_BYTES_MAX, "f") for each in range(FILTERS))
        return replace(self.small(number), filter_servers=names, data_version=DataVersion(2, 0, 2))

    def entries(self) -> Iterator[Command]:
        """Entries of the KV config, without those of the last two namespaces."""
        for number in range(self.of(KV_NAMESPACES_MAX) - len(("keys", ORDER, *LONG))):
            yield PutKVConfig(f"emptied-{number}", "k", "v")
            yield DeleteKVConfig(f"emptied-{number}", "k")
        for number in range(self.of(KV_KEYS_MAX)):
            yield PutKVConfig("keys", f"key-{number:07}", "v")
        for number in range(self.of_bytes(ORDER_TOPICS_BYTES_MAX - VALUE_BYTES_MAX) // ORDER_BYTES):
            yield PutKVConfig(ORDER, topic(number), "v" * (ORDER_BYTES - 100))


class State:
    """The state machine at its full size, and the commands to measure."""

    def __init__(self, part: float, bytes_part: float) -> None:
        self.contents = contents = Contents(part, bytes_part)
        self.changed = dict.fromkeys(contents.topics, QueueData(6, 4, 0, 4))
        self.routes = RouteStateMachine()
        self.machine = RestorableMachine(self.routes)
        self.machine.apply(encode_lead(RouteSettings(), 1, 1))
        for command in (*contents.brokers(), *contents.entries()):
            self.apply(command)
        self.smalls = contents.of(BROKERS_MAX) - self.routes.state.broker_count - len(("big", "its slave", "small"))
        for number in range(self.smalls):
            self.apply(contents.small(number))
        sizes = self.routes.state.sizes
        for name in LONG:
            room = min(contents.of_bytes(NAMESPACE_BYTES), contents.of_bytes(KV_BYTES) - sizes.kv) - 2 * VALUE_BYTES_MAX
            for number in range(room // (VALUE_BYTES_MAX + 100)):
                self.apply(PutKVConfig(name, f"key-{number}", "v" * VALUE_BYTES_MAX))
        for number in range(
            self.smalls - (contents.of_bytes(STATE_BYTES) - sizes.total) // WIDE_BYTES + WIDE_SPARED, self.smalls
        ):
            self.apply(contents.wide(number))
        for start in range(0, self.smalls, RECORDED_PER_COMMAND):
            self.machine.apply(self.suspect(range(start, min(start + RECORDED_PER_COMMAND, self.smalls)), 1))
        self.apply(self.big())
        self.apply(registration("big", "big:2", {}, 1, 1))
        self.apply(self.one())
        for number in range(contents.of(BROKER_NAMES_MAX) - len(self.routes.state._tables.groups)):
            # a first registration of exactly one topic is refused
            self.apply(registration(f"refused-{number}", f"refused:{number}", {"common": Q}))
        self.machine.digest()

    def encoded(self, command: Command) -> bytes:
        """The command in its log encoding."""
        return encoded(self.routes, command, 1)

    def apply(self, command: Command) -> None:
        """One command."""
        self.machine.apply(self.encoded(command))

    def big(self, version: int = 1) -> RegisterBroker:
        """The measured broker, with all its topics and mappings. Each version has other mappings."""
        mappings = {name: info._replace(epoch=version) for name, info in self.contents.mappings.items()}
        return registration("big", "big:1", self.contents.topics, version, mappings=mappings)

    def one(self) -> RegisterBroker:
        """A broker with two topics."""
        return registration("small", "small:1", {topic(1): Q, "s": Q})

    def suspect(self, numbers: range, share: int) -> bytes:
        """The silence of small brokers."""
        suspects = []
        for number in numbers:
            key = (f"C{number % self.contents.of(CLUSTERS_MAX)}", f"s:{number}")
            held = self.routes.state.registration(*key)
            assert held is not None
            suspects.append(Suspect(key, held.epoch, share))
        return encode_suspect(suspects, 1, self.routes.led_term, self.routes.serial)

    def expire(self, *brokers: tuple[str, str, str]) -> bytes:
        """The expiry of brokers: cluster, address and name of each."""
        removals = []
        for cluster, address, name in brokers:
            held = self.routes.state.registration(cluster, address)
            assert held is not None
            removals.append(BrokerRemoval(cluster, address, name, held.broker_id, held.epoch))
        return encode_expire(UnregisterBrokers(tuple(removals)), 1, self.routes.led_term, self.routes.serial, is_lost=True)

    def expire_small(self, numbers: range) -> bytes:
        """The expiry of small brokers."""
        clusters = self.contents.of(CLUSTERS_MAX)
        return self.expire(*((f"C{number % clusters}", f"s:{number}", f"s{number}") for number in numbers))

    def steps(self, rounds: int) -> Iterator[tuple[str, Command]]:
        """Commands by name; each round restores what it changed."""
        contents, drop = self.contents, "delete_topic_with_broker_registration"
        big = contents.topics
        for number in range(rounds):
            yield "104 large broker, topics of its own", removal("own", "own:1")
            yield "103 first, topics of its own", registration("own", "own:1", contents.own)
            yield "104 slave", removal("big", "big:2", 1)
            yield "104 large broker, mappings", removal("big", "big:1")
            yield "103 first, topics of another broker", registration("big", "big:1", big)
            yield "103 unchanged", registration("big", "big:1", big)
            yield "103 one topic changed, whole table", registration("big", "big:1", big | {topic(1): Q}, 2)
            yield "103 all topics changed", registration("big", "big:1", self.changed, 3)
            mapped = registration("big", "big:1", self.changed, 4, mappings=contents.mappings)
            yield "103 10,000 mappings", mapped
            yield "103 slave", registration("big", "big:2", {}, 3, 1)
            yield "103 slave, other zone", registration("big", "big:2", {}, 3, 1, zone_name=f"z{number}")
            yield "103 slave, filter server", registration("big", "big:2", {}, 3, 1, filters=(f"f{number}:1",))
            yield "103 other cluster", replace(mapped, cluster_name=f"C{1 + number}", broker_addr="big:3", broker_id=3)
            yield "104 other cluster", UnregisterBrokers((BrokerRemoval(f"C{1 + number}", "big:3", "big", 3, None),))
            yield "205 wipe", ChangeWritePerm("big", writable=False)
            yield "327 add", ChangeWritePerm("big", writable=True)
            yield "205 wipe, different settings", ChangeWritePerm("settings", writable=False)
            yield "327 add, different settings", ChangeWritePerm("settings", writable=True)
            yield "104 member of a large group", removal("family", "family:0")
            yield "103 member of a large group", registration("family", "family:0", {"common": Q, topic(0): Q})
            yield "104 small broker", removal("small", "small:1")
            yield "103 small broker, first", self.one()
            yield "205 wipe, small broker", ChangeWritePerm("small", writable=False)
            yield "327 add, small broker", ChangeWritePerm("small", writable=True)
            names = [f"s{each}" for each in range(min(contents.of(TOPIC_BROKERS_MAX), self.smalls))]
            yield "217 topic of many brokers", RegisterTopic("s", tuple((name, QueueData(6, 4, 0, 4)) for name in names))
            yield "216 topic of many brokers", DeleteTopic("s", None)
            yield "216 topic of one cluster", DeleteTopic("common", "C7")
            if number == rounds - 1:
                yield "216 topic of all brokers", DeleteTopic("common", None)
            yield "100 KV, 1 MiB", PutKVConfig(ORDER, "k", f"{number % 10}" * (VALUE_BYTES_MAX - 100))
            yield "100 KV, small", PutKVConfig(ORDER, topic(1), f"v{number}")
            yield "102 KV", DeleteKVConfig(ORDER, "k")
            yield "102 KV of many keys", DeleteKVConfig("keys", "key-0000001")
            yield "100 KV of many keys", PutKVConfig("keys", "key-0000001", "v")
            yield "318 setting", UpdateSettings({"order_message_enable": number % 2 == 0})
            yield "318 topics are dropped", UpdateSettings({drop: True})
            yield "103 all topics replaced", registration("big", "big:1", contents.others[0], 5)
            yield "103 all topics replaced", registration("big", "big:1", self.changed, 6)
            yield "318 topics are not dropped", UpdateSettings({drop: False})
            yield "103 all topics changed, 10,000 mappings", self.big(7)


class Measurement:
    """For each step, the greatest cost of applying it, and the greatest cost of the digest after it."""

    def __init__(self, state: State, cost: Callable[[Callable[[], object]], float]) -> None:
        self.most: dict[str, tuple[float, float]] = {}
        self._state, self._cost = state, cost

    def _note(self, name: str, *costs: float) -> None:
        before = self.most.get(name, (0.0, 0.0))
        self.most[name] = max(before[0], costs[0]), max(before[1], costs[1] if len(costs) > 1 else 0.0)

    def _apply(self, name: str, data: bytes, machine: RestorableMachine | None = None) -> ProposalResult:
        on, results = machine or self._state.machine, list[ProposalResult]()
        self._note(name, self._cost(lambda: results.append(on.apply(data))), self._cost(on.digest))
        return results[0]

    def commands(self, rounds: int) -> None:
        """All commands except the steps of a restore, and except expiries, after which the state is smaller."""
        state, routes = self._state, self._state.routes
        for name, command in state.steps(rounds):
            self._apply(name, state.encoded(command))
        self._apply("LEAD", encode_lead(RouteSettings(), 2, routes.led_term + 1))
        self._apply("OPERATION", encode_operation("drain", "n1", 2))
        origin = ChangeOrigin("tools", "10.0.0.9", "n2")
        self._apply("ATTRIBUTED, KV", encode_attributed(state.encoded(PutKVConfig(ORDER, topic(2), "w")), origin))
        recorded = range(min(RECORDED_PER_COMMAND, state.smalls))
        self._apply("SUSPECT, more silence", state.suspect(recorded, 2))
        self._apply("SUSPECT, contact", state.suspect(recorded, 0))
        self._apply("SUSPECT, silence", state.suspect(recorded, 1))

    def snapshot(self) -> None:
        """Steps of a snapshot, and of loading it on another node."""
        chunks: list[bytes] = []
        taken: list[Iterator[bytes]] = []
        restoration = RestorableMachine(RouteStateMachine()).restore()
        self._note("snapshot, begin", self._cost(lambda: taken.append(self._state.machine.snapshot())))
        self._apply("216 while a snapshot is taken", self._state.encoded(DeleteTopic(topic(100), None)))
        while not chunks or not chunks[0].startswith(b'["end"'):
            chunks.clear()
            self._note("snapshot, step", self._cost(lambda: chunks.append(next(taken[0]))))
            self._note("load of a snapshot, step", self._cost(lambda: restoration.feed(chunks[0])))
        self._note("load of a snapshot, end", self._cost(restoration.finish))

    def restore(self) -> None:
        """The commands of a restore."""
        fresh = RestorableMachine(RouteStateMachine())
        fresh.apply(cluster_restore.encode(BEGIN, "left"))
        fresh.apply(cluster_restore.encode(PIECE, "left", 0, next(self._state.routes.state.snapshot())))
        self._apply("restore, ABANDON", cluster_restore.encode(ABANDON, "left"), fresh)
        fresh.apply(encode_lead(RouteSettings(), 1, 1))
        kinds = chain(["restore, BEGIN"], repeat("restore, PIECE"))

        async def propose(data: bytes) -> ProposalResult:
            is_last = cluster_restore.decode(data)[0] == FINISH
            return self._apply("restore, FINISH" if is_last else next(kinds), data, fresh)

        result = asyncio.run(cluster_restore.restore(propose, self._state.routes.state.snapshot()))
        assert not result.code, result

    def expiries(self) -> None:
        """As many brokers, and as many topics, as one command may expire."""
        state = self._state
        of = state.contents.of
        large = of(EXPIRED_TOPICS_MAX) // max(1, of(TOPICS_OF_LARGE_GROUP))
        self._apply("EXPIRE, brokers with many topics", state.expire_small(range(large)))
        first = of(LARGE_GROUPS)
        self._apply("EXPIRE, many brokers", state.expire_small(range(first, min(first + EXPIRED_BROKERS_MAX, state.smalls))))
        self._apply("EXPIRE, the large broker", state.expire(("C0", "big:2", "big"), ("C0", "big:1", "big")))


def main() -> None:
    """Print one line per command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.state", description=__doc__.splitlines()[0])
    parser.add_argument("--part", type=float, default=1.0, help="part of the limits, from 0.02 to 1 (default 1)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--lines", action="store_true", help="count lines of the program instead of milliseconds")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not 0.02 <= options.part <= 1:
        parser.error(f"--part {options.part}: use a number from 0.02 to 1")
    gc.disable()
    state = State(options.part, options.part)
    gc.enable()
    tune_garbage_collection()
    measurement = Measurement(state, lines_of if options.lines else ms_of)
    measurement.commands(options.rounds)
    measurement.snapshot()
    measurement.restore()
    measurement.expiries()
    found = measurement.most
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

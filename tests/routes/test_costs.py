"""The cost of commands, digests and snapshots depends on the command and the group that it names, not on the size of the
state.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from itertools import count, islice
from typing import NamedTuple

import pytest

from replicated_namesrv.model import TOPICS_MAX, QueueData, TopicQueueMappingInfo
from replicated_namesrv.replication.route_machine import RouteStateMachine, encode_expire, encode_lead
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
from replicated_namesrv.routes.quotas import (
    ALL_TOPICS_MAX,
    BROKER_NAMES_MAX,
    MAPPINGS_MAX,
    QUEUE_SETTINGS_MAX,
    TOPIC_BROKERS_MAX,
)
from replicated_namesrv.routes.snapshot import SnapshotReader
from replicated_namesrv.routes.state import RouteInfoManager, RouteSettings
from tests.support.log_entries import encoded
from tests.support.routes import queues, register, unregister
from tests.support.work import Name, Work, work_of

SIZE = 750
"""A size such that it and its double lie between the sizes at which dictionaries grow."""
FEW = 300
"""As SIZE, for states that are prepared often."""
LINES_SLACK, HASHES_SLACK = 12, 12
"""Tolerance, because the branches differ a little in cost."""
BYTES_SLACK = 3_000


def own_mapping(topic: str, name: str, epoch: int = 1) -> TopicQueueMappingInfo:
    return TopicQueueMappingInfo(name, ((0, 0),), False, epoch, "__global__", topic, 4)


def kept(size: int) -> Iterator[Command]:
    """Commands that fill every table, all but the groups ``small`` and ``other``."""
    topics: dict[str, QueueData] = {Name(f"topic-{number}"): QueueData(6, 8, 0, 8 + number % 3) for number in range(size)}
    mappings: dict[str, TopicQueueMappingInfo] = {topic: own_mapping(topic, "big") for topic in topics}
    yield register("big", 0, "big:1", topics=topics, mappings=mappings)
    yield register("big", 1, "big:2")
    for number in range(size // 10):
        yield register(f"g{number}", 0, f"g{number}:1", cluster=f"C{number}", topics=["shared", f"own-{number}"])
        yield PutKVConfig(Name(f"namespace-{number}"), Name("k"), "v")
        yield PutKVConfig(Name(f"empty-{number}"), Name("k"), "v")
        yield DeleteKVConfig(f"empty-{number}", "k")
    for number in range(size):
        yield PutKVConfig(Name("n"), Name(f"key-{number}"), "value" * 20)
        yield PutKVConfig(Name("ORDER_TOPIC_CONFIG"), Name(f"topic-{number}"), "b:8")


def small() -> Iterator[Command]:
    """Two small groups; one of their topics is the large group's, too."""
    yield register("small", 0, "small:1", topics=["s1", "s2", "topic-7"], mappings={"s1": own_mapping("s1", "small")})
    yield register("small", 1, "small:2")
    yield register("other", 0, "other:1", topics=["s1", "o1"])


def filled(size: int) -> RouteInfoManager:
    state = RouteInfoManager(RouteSettings(order_message_enable=True))
    for commands in (kept(size), small()):
        for time_ms, command in enumerate(commands):
            state.apply(command, time_ms)
    state.digest()
    return state


NOT_THE_GROUPS: dict[str, Callable[[], Command]] = {
    "first registration": lambda: register("new", 0, "new:1", topics=["x", "topic-9"]),
    "other content": lambda: register("small", 0, "small:1", version=2, topics={"s1": queues(4), "s9": queues()}),
    "other addresses": lambda: register("small", 0, "small:3", version=2, topics=["s1", "s2"]),
    "unchanged": lambda: register("small", 0, "small:1", topics=["s1", "s2", "topic-7"]),
    "refused": lambda: register("small", 5, "small:5", zone="z", topics=["s1"]),
    "mappings": lambda: register("small", 0, "small:1", version=2, topics=["s1"], mappings={"s1": own_mapping("s1", "small", 2)}),
    "a mapping of another name": lambda: register(
        "small", 0, "small:1", version=2, topics=["s1"], mappings={"s1": own_mapping("s1", "nobody")}
    ),
    "slave": lambda: register("small", 2, "small:9"),
    "renamed": lambda: register("new", 0, "small:1", topics=["s1", "s2"]),
    "slave leaves": lambda: unregister("small", 1, "small:2"),
    "last leaves": lambda: unregister("other", 0, "other:1"),
    "nobody leaves": lambda: unregister("small", 0, "nobody:1"),
    "wiped": lambda: ChangeWritePerm("small", writable=False),
    "topic registered": lambda: RegisterTopic("s7", (("small", queues()), ("other", queues()))),
    "topic changed": lambda: RegisterTopic("s1", (("small", queues(4)),)),
    "topic deleted": lambda: DeleteTopic("s1", None),
    "topic deleted in a cluster": lambda: DeleteTopic("s1", "C"),
    "kv new": lambda: PutKVConfig("n", "new", "v"),
    "kv replaced": lambda: PutKVConfig("n", "key-5", "w"),
    "kv of a topic": lambda: PutKVConfig("ORDER_TOPIC_CONFIG", "s1", "w"),
    "kv deleted": lambda: DeleteKVConfig("n", "key-5"),
    "namespace": lambda: PutKVConfig("another", "k", "v"),
    "settings unchanged": lambda: UpdateSettings({"order_message_enable": True}),
}


def not_in(measured: Collection[type]) -> str:
    """Names of the commands that are not measured."""
    return ", ".join(kind.__name__ for kind in Command.__args__ if kind not in measured)


def test_every_kind_of_command_is_measured() -> None:
    measured = {type(make()) for make in NOT_THE_GROUPS.values()}
    missing = not_in(measured)
    assert not missing, f"enter an example of {missing} in NOT_THE_GROUPS of tests/routes/test_costs.py"


def assert_alike(name: str, one: Work, twice: Work) -> None:
    assert twice.lines <= one.lines + LINES_SLACK, (name, one, twice)
    assert twice.hashes <= one.hashes + HASHES_SLACK, (name, one, twice)
    assert twice.bytes <= one.bytes + BYTES_SLACK, (name, one, twice)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(NOT_THE_GROUPS))
def test_a_command_and_its_digest_cost_nothing_of_what_is_stored_beside(name: str) -> None:
    works = []
    for size in (SIZE, 2 * SIZE):
        state = filled(size)
        command = NOT_THE_GROUPS[name]()

        def step(state: RouteInfoManager = state, command: Command = command) -> None:
            state.apply(command, 9)
            state.last_topics(1_000)
            state.digest()

        works.append(work_of(step))
    assert_alike(name, *works)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(NOT_THE_GROUPS))
def test_a_log_entry_and_the_digest_of_a_node_cost_nothing_of_what_is_stored_beside(name: str) -> None:
    works = []
    for size in (SIZE, 2 * SIZE):
        machine = RouteStateMachine()
        serial = count()
        machine.apply(encode_lead(RouteSettings(order_message_enable=True), 1, 1))
        for commands in (kept(size), small()):
            for command in commands:
                machine.apply(encoded(machine, command, next(serial)))
        for number in range(size // 10):  # unregistrations that are remembered
            machine.apply(encoded(machine, register(f"gone{number}", 0, f"gone{number}:1"), 2))
            machine.apply(encoded(machine, unregister(f"gone{number}", 0, f"gone{number}:1"), 2))
        machine.digest()
        data = encoded(machine, NOT_THE_GROUPS[name](), 9)

        def step(machine: RouteStateMachine = machine, data: bytes = data) -> None:
            machine.apply(data)
            machine.digest()

        works.append(work_of(step))
    assert_alike(name, *works)


WHOLE_GROUP: dict[str, Callable[[], Command]] = {
    "wiped": lambda: ChangeWritePerm("big", writable=False),
    "last but one leaves": lambda: unregister("big", 1, "big:2"),
    "zone": lambda: register("big", 1, "big:2", zone="z"),
    "filter servers": lambda: register("big", 1, "big:2", filters=("f:1",)),
    "settings": lambda: UpdateSettings({"enable_topic_list": False}),
}


@pytest.mark.parametrize("name", [*sorted(WHOLE_GROUP), "all leave"])
def test_a_command_on_a_whole_group_takes_no_step_of_python_for_each_topic(name: str) -> None:
    works = []
    for size in (SIZE, 2 * SIZE):
        state = filled(size)
        if name == "all leave":
            state.apply(unregister("big", 1, "big:2"), 8)
            command: Command = unregister("big", 0, "big:1")
        else:
            command = WHOLE_GROUP[name]()

        def step(state: RouteInfoManager = state, command: Command = command) -> None:
            assert state.apply(command, 9).result.changed
            state.digest()

        works.append(work_of(step))
    one, twice = works
    assert twice.lines <= one.lines + LINES_SLACK, works
    assert twice.hashes - one.hashes <= 10 * SIZE, works
    assert twice.bytes - one.bytes <= 150 * SIZE, works


def shared(size: int, names: str) -> RouteInfoManager:
    """Brokers of these names with the same topics and mappings of their own."""
    state = RouteInfoManager()
    topics: dict[str, QueueData] = {Name(f"topic-{number}"): queues(4 + number % 3) for number in range(size)}
    for name in names:
        mappings: dict[str, TopicQueueMappingInfo] = {topic: own_mapping(topic, name) for topic in topics}
        state.apply(register(name, 0, f"{name}:1", topics=topics, mappings=mappings), 1)
    state.digest()
    return state


@pytest.mark.parametrize("names", ["ab", "abc"])
def test_a_broker_whose_topics_others_serve_leaves_without_a_step_for_each_topic(names: str) -> None:
    works = []
    for size in (SIZE, 2 * SIZE):
        state = shared(size, names)

        def step(state: RouteInfoManager = state) -> None:
            assert state.apply(unregister("a", 0, "a:1"), 9).result.changed
            state.digest()

        works.append(work_of(step))
    one, twice = works
    assert twice.lines <= one.lines + LINES_SLACK, works
    assert twice.hashes - one.hashes <= 25 * SIZE, works


@pytest.mark.parametrize("names", ["ab", "abc"])
def test_a_broker_that_joins_in_serving_topics_takes_no_step_of_python_for_each(names: str) -> None:
    others, name = names[:-1], names[-1]
    works = []
    for size in (SIZE, 2 * SIZE):
        state = shared(size, others)
        topics = {topic: queues() for topic in state.all_topics()}

        def step(state: RouteInfoManager = state, topics: dict[str, QueueData] = topics) -> None:
            state.apply(register(name, 0, f"{name}:1", topics=topics), 9)
            state.digest()

        works.append(work_of(step))
    one, twice = works
    assert twice.lines - one.lines <= LINES_SLACK, works
    assert twice.hashes - one.hashes <= 20 * SIZE, works


def test_settings_that_the_broker_does_not_have_are_not_compared_topic_by_topic() -> None:
    works = []
    for size in (FEW, 2 * FEW):
        state = RouteInfoManager()
        state.apply(big(many(size)), 1)
        works.append(work_of(partial(state.apply, big(many(size, 4), 2), 9)))
        assert state.topic_queues("topic-1") == {"big": many(size, 4)["topic-1"]}
    one, twice = works
    assert twice.hashes - one.hashes <= 4 * FEW + HASHES_SLACK, works


def test_a_topic_of_many_brokers_goes_in_few_steps_for_each_of_them() -> None:
    works = []
    for size in (SIZE, 2 * SIZE):
        state = RouteInfoManager()
        for number in range(size):
            state.apply(register(f"g{number}", 0, f"g{number}:1", topics=["s", f"own-{number}"]), 1)
        state.digest()
        works.append(work_of(partial(state.apply, DeleteTopic("s", None), 9)))
        assert "s" not in state.topic_revisions
    one, twice = works
    assert twice.lines - one.lines <= 40 * SIZE, works


def test_a_member_of_a_large_group_leaves_without_a_step_for_each_topic() -> None:
    """The topics belong to the name, so the other members do not matter."""
    works = []
    for size in (SIZE, 2 * SIZE):
        topics: dict[str, QueueData] = {Name(f"topic-{number}"): queues() for number in range(size)}
        state = RouteInfoManager(RouteSettings(notify_min_broker_id_changed=True, support_acting_master=True))
        for broker_id in range(size // 10):
            state.apply(register("a", broker_id, f"a:{broker_id}", topics=topics, acting_master=True), 1)
        state.digest()

        def step(state: RouteInfoManager = state) -> None:
            assert state.apply(unregister("a", 0, "a:0"), 9).result.changed
            state.digest()

        works.append(work_of(step))
    one, twice = works
    assert twice.lines - one.lines <= 4 * SIZE // 10, works
    assert twice.hashes - one.hashes <= 10 * SIZE, works


@pytest.mark.slow
def test_steps_of_a_snapshot_and_of_reading_it_do_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_module, "SLICE", 100)
    most: list[tuple[Work, Work, Work]] = []
    for size in (2 * SIZE, 4 * SIZE):
        state = filled(size)
        lines = state.snapshot()
        taken: list[bytes] = []
        steps = []
        while len(taken) < 1 or not taken[-1].startswith(b'["end"'):
            steps.append(work_of(partial(take, lines, taken)))
        reader = SnapshotReader()
        reads = [work_of(partial(reader.feed, line)) for line in taken]
        most.append((maximum(steps), maximum(reads), work_of(reader.finish)))
    for one, twice in zip(*most, strict=True):
        assert twice.lines <= one.lines + LINES_SLACK, most
        assert twice.hashes <= one.hashes + HASHES_SLACK, most


def entries_of_one_name(size: int) -> RouteInfoManager:
    """A state whose KV entries and static topic mappings belong to one namespace and one broker."""
    state = RouteInfoManager()
    mappings = {f"topic-{number}": own_mapping(f"topic-{number}", "b") for number in range(size)}
    state.apply(register("b", 0, "b:1", mappings=mappings), 1)
    assert len(state._tables.mappings["b"]) == size
    for number in range(size):
        state.apply(PutKVConfig("n", f"key-{number}", "v"), 1)
    return state


def test_the_beginning_of_a_snapshot_copies_no_entries_and_mappings() -> None:
    works = [work_of(entries_of_one_name(size).snapshot) for size in (SIZE, 40 * SIZE)]
    assert_alike("beginning of a snapshot", *works)


def ended(state: RouteInfoManager, lines: Iterator[bytes]) -> None:
    assert list(lines)


def dropped(state: RouteInfoManager, lines: Iterator[bytes]) -> None:
    """Read only the first lines. After that, only the caller's frame refers to the other lines, and this frame ends."""
    list(islice(lines, 5))


@pytest.mark.parametrize("end", [ended, dropped, lambda state, lines: None])
def test_the_first_change_after_a_snapshot_copies_nothing(
    end: Callable[[RouteInfoManager, Iterator[bytes]], None],
) -> None:
    works = []
    for size in (SIZE, 2 * SIZE):
        state = shared(size, "abcd")
        lasting = state.snapshot()
        end(state, state.snapshot())
        next(lasting)
        del lasting
        works.append(work_of(partial(state.apply, DeleteTopic("topic-1", None), 9)))
        assert "topic-1" not in state.topic_revisions
    assert_alike("after a snapshot", *works)


class Large(NamedTuple):
    """Numbers of entries in the state that a snapshot reads."""

    named: int
    """Topics and mappings of the broker ``big``, and keys of the namespace ``n``."""
    beside: int
    """Topics of each other broker, and keys of another namespace."""

    def state(self) -> RouteInfoManager:
        """A state in which all brokers have the topic ``common``."""
        state = RouteInfoManager()
        for name in ("x", "big", "y", "z"):
            count, prefix = (self.named, "topic") if name == "big" else (self.beside, "other")
            topics = {**many(count, prefix=prefix), "common": queues()}
            mappings = {topic: own_mapping(topic, name) for topic in topics}
            state.apply(register(name, 0, f"{name}:1", topics=topics, mappings=mappings), 1)
        state.apply(register("big", 1, "big:2"), 1)
        for namespace, count in (("n", self.named), ("beside", self.beside)):
            for number in range(count):
                state.apply(PutKVConfig(namespace, f"key-{number}", "v"), 1)
        state.digest()
        return state


FEW_ENTRIES: dict[str, Callable[[], Command]] = {
    "103 first": lambda: register("new", 0, "new:1", topics=["common", "topic-1"]),
    "103 a topic changed": lambda: register("big", 0, "big:1", version=2, topics={"topic-1": queues(4)}),
    "103 a topic added": lambda: register("big", 0, "big:1", version=2, topics={"added": queues(4)}),
    "103 a mapping changed": lambda: register(
        "big", 0, "big:1", version=2, topics={"topic-1": queues(4)}, mappings={"topic-1": own_mapping("topic-1", "big", 2)}
    ),
    "216": lambda: DeleteTopic("common", None),
    "216 in a cluster": lambda: DeleteTopic("common", "C"),
    "217 changed": lambda: RegisterTopic("common", tuple((name, queues(4)) for name in ("x", "big", "y", "z"))),
    "217 added": lambda: RegisterTopic("added", tuple((name, queues(4)) for name in ("x", "big", "y", "z"))),
    "100 changed": lambda: PutKVConfig("n", "key-1", "w"),
    "100 added": lambda: PutKVConfig("n", "added", "w"),
    "102": lambda: DeleteKVConfig("n", "key-1"),
}
"""Commands that change few entries of large dictionaries."""
ONE_GROUP: dict[str, Callable[[], Command]] = {
    "103 all changed": lambda: register("big", 0, "big:1", version=2, topics=many(FEW, 4)),
    "103 other name": lambda: register("new", 0, "big:2"),
    "104": lambda: unregister("big", 0, "big:1"),
    "205": lambda: ChangeWritePerm("big", writable=False),
    "318": lambda: UpdateSettings({"enable_topic_list": False}),
}
"""Commands that change all entries of ``big``, or no entry of any broker."""


def works_during_a_snapshot(sizes: Iterable[Large], command: Command, earlier: int) -> Iterator[Work]:
    """The cost of ``command`` while ``earlier`` snapshots are read, which began before and after other changes."""
    for size in sizes:
        state = size.state()
        lines = []
        for number in range(earlier):
            lines.append(state.snapshot())
            next(lines[-1])
            state.apply(RegisterTopic("between", tuple((name, queues(number + 1)) for name in ("x", "big", "y", "z"))), 2)
            state.apply(PutKVConfig("n", "between", f"{number}"), 2)
            state.apply(PutKVConfig("beside", "between", f"{number}"), 2)
        state.digest()
        expected = list(state.snapshot())
        lines.append(state.snapshot())

        def step(state: RouteInfoManager = state) -> None:
            assert state.apply(command, 9).result.changed
            state.digest()

        yield work_of(step)
        assert list(lines[-1]) == expected


@pytest.mark.parametrize("earlier", [0, 2])
@pytest.mark.parametrize("name", FEW_ENTRIES)
def test_a_command_during_a_snapshot_copies_no_more_than_it_changes(name: str, earlier: int) -> None:
    sizes = (Large(FEW, FEW), Large(2 * FEW, 2 * FEW))
    assert_alike(name, *works_during_a_snapshot(sizes, FEW_ENTRIES[name](), earlier))


@pytest.mark.parametrize("name", ONE_GROUP)
def test_a_command_on_a_group_during_a_snapshot_copies_no_other_group(name: str) -> None:
    one, twice = works_during_a_snapshot((Large(FEW, FEW), Large(FEW, 2 * FEW)), ONE_GROUP[name](), 0)
    assert twice.lines <= one.lines + LINES_SLACK, (one, twice)
    assert twice.bytes <= one.bytes + BYTES_SLACK, (one, twice)


def test_every_kind_of_command_is_measured_during_a_snapshot() -> None:
    missing = not_in({type(make()) for make in (FEW_ENTRIES | ONE_GROUP).values()})
    assert not missing, f"enter an example of {missing} in FEW_ENTRIES or ONE_GROUP of tests/routes/test_costs.py"


def take(lines: Iterator[bytes], taken: list[bytes]) -> None:
    taken.append(next(lines))


def maximum(works: list[Work]) -> Work:
    return Work(*map(max, zip(*works, strict=True)))


def test_a_route_costs_its_own_mappings_and_brokers() -> None:
    works = []
    for size in (SIZE, 2 * SIZE):
        state = filled(size)
        foreign: dict[str, TopicQueueMappingInfo] = {
            Name(f"foreign-{number}"): own_mapping(f"foreign-{number}", f"nobody-{number}") for number in range(size)
        }  # of a log that an earlier version wrote
        state.apply(register("small", 0, "small:1", version=2, topics=["s1"], mappings=foreign), 9)
        works.append(work_of(partial(state.route, "s1")))
    assert_alike("route", *works)


def test_expiries_cost_what_they_remove() -> None:
    works = []
    for size in (SIZE, 2 * SIZE):
        machine = RouteStateMachine()
        machine.apply(encode_lead(RouteSettings(), 1, 1))
        for number in range(size // 5):
            machine.apply(encoded(machine, register(f"g{number}", 0, f"g{number}:1", cluster=f"C{number}"), 1))
        held = machine.state.registration("C7", "g7:1")
        assert held is not None
        machine.digest()
        data = encode_expire(unregister("g7", 0, "g7:1", cluster="C7", epoch=held.epoch), 9, 1, machine.serial, is_lost=True)

        def step(machine: RouteStateMachine = machine, data: bytes = data) -> None:
            assert machine.apply(data).result.changed
            machine.digest()

        works.append(work_of(step))
    assert_alike("expiry", *works)


class Turn(NamedTuple):
    """A command whose cost grows with the topics or mappings of a broker, or with all topics."""

    limit: int
    """The greatest number of these topics or mappings."""
    prepare: Callable[[int], Iterable[Command]]
    command: Callable[[int], Command]


def many(count: int, queue_nums: int = 8, prefix: str = "topic") -> dict[str, QueueData]:
    return {Name(f"{prefix}-{number}"): QueueData(6, 8, 0, queue_nums + number % 3) for number in range(count)}


def mapped(count: int) -> dict[str, TopicQueueMappingInfo]:
    return {Name(f"topic-{number}"): own_mapping(f"topic-{number}", "big") for number in range(count)}


def big(topics: dict[str, QueueData], version: int = 1, mappings: dict[str, TopicQueueMappingInfo] | None = None) -> Command:
    return register("big", 0, "big:1", version=version, topics=topics, mappings=mappings or {})


def twin(topics: dict[str, QueueData]) -> Command:
    return register("twin", 0, "twin:1", topics=topics)


def leaving(count: int) -> Command:
    return unregister("big", 0, "big:1")


def settings(count: int) -> dict[str, QueueData]:
    """Topics, each with other queue settings."""
    return {Name(f"topic-{number}"): QueueData(6, number, 0, 8) for number in range(count)}


def sharing(count: int) -> list[Command]:
    """Brokers of different names that have one topic in common."""
    return [register(f"g{number}", 0, f"g{number}:1", topics=["common", f"own-{number}"]) for number in range(count)]


def routed(count: int) -> Command:
    return RegisterTopic("common", tuple((f"g{number}", queues(4)) for number in range(count)))


DROPS = UpdateSettings({"delete_topic_with_broker_registration": True})
OPERATIONS_MAX = 950_000
"""Executed lines of Python and hashed names. It takes about 0.1 s on a quiet machine, a third of the shortest election."""
AT_LIMITS: dict[str, Turn] = {
    "103 first": Turn(TOPICS_MAX, lambda n: [], lambda n: big(many(n))),
    "103 first, topics of another broker": Turn(TOPICS_MAX, lambda n: [twin(many(n))], lambda n: big(many(n))),
    "103 all changed": Turn(TOPICS_MAX, lambda n: [twin(many(n)), big(many(n))], lambda n: big(many(n, 4), 2)),
    "103 all replaced": Turn(
        TOPICS_MAX, lambda n: [DROPS, twin(many(n)), big(many(n)), big(many(n), 2)], lambda n: big(many(n, 8, "other"), 3)
    ),
    "103 mappings": Turn(MAPPINGS_MAX, lambda n: [big(many(9))], lambda n: big(many(9), 2, mapped(n))),
    "205": Turn(TOPICS_MAX, lambda n: [twin(many(n)), big(many(n))], lambda n: ChangeWritePerm("big", writable=False)),
    "104": Turn(TOPICS_MAX, lambda n: [twin(many(n)), big(many(n))], leaving),
    "104 mappings": Turn(MAPPINGS_MAX, lambda n: [twin(many(n)), big(many(n), 1, mapped(n))], leaving),
    "103 first, different settings": Turn(QUEUE_SETTINGS_MAX, lambda n: [], lambda n: big(settings(n))),
    "205 different settings": Turn(
        QUEUE_SETTINGS_MAX, lambda n: [big(settings(n))], lambda n: ChangeWritePerm("big", writable=False)
    ),
    "216": Turn(BROKER_NAMES_MAX, sharing, lambda n: DeleteTopic("common", None)),
    "217": Turn(TOPIC_BROKERS_MAX, sharing, routed),
    "318": Turn(ALL_TOPICS_MAX, lambda n: [big(many(n))], lambda n: UpdateSettings({"enable_topic_list": False})),
}


def operations_at_limit(turn: Turn) -> int:
    """The cost grows evenly, so two small sizes show the cost at the limit."""
    works = []
    for size in (SIZE, 2 * SIZE):
        state = RouteInfoManager()
        for time_ms, command in enumerate(turn.prepare(size)):
            assert state.apply(command, time_ms).result.changed
        state.digest()
        last = turn.command(size)

        def step(state: RouteInfoManager = state, command: Command = last) -> None:
            assert state.apply(command, 9).result.changed
            state.digest()

        works.append(work_of(step))
    one, twice = works
    return (twice.lines - one.lines + twice.hashes - one.hashes) * turn.limit // SIZE


SAME_AT_EVERY_SIZE = {PutKVConfig, DeleteKVConfig}
"""Commands whose cost does not grow with the state (NOT_THE_GROUPS)."""


def test_every_kind_of_command_is_measured_at_the_limits() -> None:
    missing = not_in({type(turn.command(1)) for turn in AT_LIMITS.values()} | SAME_AT_EVERY_SIZE)
    assert not missing, (
        f"enter an example of {missing} in AT_LIMITS of tests/routes/test_costs.py, or the command in SAME_AT_EVERY_SIZE there "
        "if its cost does not grow with the state"
    )


@pytest.mark.parametrize("name", AT_LIMITS)
def test_a_command_at_the_limits_takes_few_operations(name: str) -> None:
    assert operations_at_limit(AT_LIMITS[name]) <= OPERATIONS_MAX


def test_a_broker_with_all_topics_and_mappings_leaves_in_few_operations() -> None:
    assert operations_at_limit(AT_LIMITS["104"]) + operations_at_limit(AT_LIMITS["104 mappings"]) <= OPERATIONS_MAX

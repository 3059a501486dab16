"""Random commands from a seed, and everything that queries show of the resulting state.

Python's own generator, not hypothesis: the same seed gives the same commands in every version, so that the results of a version
can be recorded.
"""

from collections.abc import Iterator, Mapping
from hashlib import blake2b
from random import Random

from replicated_namesrv.model import QueueData, TopicQueueMappingInfo
from replicated_namesrv.routes.commands import (
    BrokerRemoval,
    ChangeWritePerm,
    Command,
    DeleteKVConfig,
    DeleteTopic,
    PutKVConfig,
    RegisterTopic,
    UnregisterBrokers,
    UpdateSettings,
)
from replicated_namesrv.routes.state import RouteInfoManager, RouteSettings
from replicated_namesrv.routes.tables import LATER_SETTINGS, split_settings
from tests.support.routes import register

NAMES = ("a", "b", "c")
GHOSTS = ("ghost", "b")
CLUSTERS = ("C", "C", "D")
ADDRS = ("x:1", "y:1", "z:1", "u:1")
TOPICS = tuple(f"t{number}" for number in range(8))
NAMESPACES = ("ORDER_TOPIC_CONFIG", "n", "m")
FLAGS = sorted(set(RouteSettings.__dataclass_fields__) - set(LATER_SETTINGS))
"""The settings of version 0.1.0. Later ones are left out, because outcomes were recorded without them."""


def random_queues(rng: Random) -> QueueData:
    """Queue settings, drawn from a few different ones."""
    return QueueData(rng.choice((6, 6, 7, 4, 2)), rng.choice((4, 8)), rng.choice((0, 0, 1, 2, 3)), rng.choice((4, 8)))


def random_command(rng: Random) -> Command:
    """Any command, from few names."""
    kind = rng.randrange(16)
    if kind < 7:
        count = rng.choice((0, 1, 2, 5, 8))
        topics = None if rng.random() < 0.1 else {topic: random_queues(rng) for topic in rng.sample(TOPICS, count)}
        name = rng.choice(NAMES)
        mappings = {
            topic: TopicQueueMappingInfo(
                rng.choice((name, name, *GHOSTS)), ((0, rng.randrange(3)),), False, rng.randrange(3), "__global__", topic, 4
            )
            for topic in rng.sample(TOPICS, rng.choice((0, 0, 1, 3)))
        }
        return register(
            name,
            rng.choice((0, 0, 1, 1, 2, -1)),
            rng.choice(ADDRS),
            version=rng.randrange(1, 4),
            state_version=rng.choice((0, 0, 1)),
            topics=topics,
            cluster=rng.choice(CLUSTERS),
            ha=rng.choice(("h:1", "h:2")),
            acting_master=rng.choice((None, False, True)),
            zone=rng.choice((None, None, "z")),
            timeout_ms=rng.choice((None, 10_000)),
            filters=rng.choice((None, (), ("f:1",))),
            mappings=mappings,
        )
    if kind < 10:
        removals = tuple(
            BrokerRemoval(
                rng.choice(CLUSTERS),
                rng.choice(ADDRS),
                rng.choice((*NAMES, "ghost")),
                rng.randrange(3),
                rng.choice((None, None, rng.randrange(1, 60))),
            )
            for _ in range(rng.choice((1, 1, 3)))
        )
        return UnregisterBrokers(removals)
    if kind == 10:
        entries = tuple((rng.choice((*NAMES, "none")), random_queues(rng)) for _ in range(rng.randrange(4)))
        return RegisterTopic(rng.choice((*TOPICS, "new")), entries)
    if kind == 11:
        return DeleteTopic(rng.choice(TOPICS), rng.choice((None, "", "C", "D", "none")))
    if kind == 12:
        return ChangeWritePerm(rng.choice(NAMES), rng.random() < 0.5)
    if kind == 13:
        return PutKVConfig(rng.choice(NAMESPACES), rng.choice(TOPICS), rng.choice((None, "v", "w\n\u20ac")))
    if kind == 14:
        return DeleteKVConfig(rng.choice(NAMESPACES), rng.choice(TOPICS))
    return UpdateSettings({rng.choice(FLAGS): rng.random() < 0.5})


def seen(state: RouteInfoManager) -> Iterator[object]:
    """Everything that queries show, in the order in which they show it."""
    yield state.revision
    yield list(state.topic_revisions.items())
    for topic in state.all_topics():
        yield topic, state.route(topic)
    yield [state.cluster_info(), state.system_topics(), state.registrations()]
    yield [state.unit_topics(), state.has_unit_sub_topics(), state.has_unit_sub_un_unit_topics()]
    yield [(name, state.group_generation(name), state.member_group(name)) for name in (*NAMES, "ghost")]
    yield [(cluster, state.topics_by_cluster(cluster)) for cluster in CLUSTERS]
    views = {namespace: state.kv_view(namespace) for namespace in NAMESPACES}
    yield [(namespace, None if view is None else dict(view)) for namespace, view in views.items()]
    yield ReleasedSettings(split_settings(state.settings)[0])


class ReleasedSettings:
    """The settings of version 0.1.0, with the ``repr`` of ``RouteSettings`` in that version."""

    def __init__(self, values: Mapping[str, bool]) -> None:
        self._values = values

    def __repr__(self) -> str:
        return f"RouteSettings({', '.join(f'{name}={value}' for name, value in self._values.items())})"


NAMES_WHEN_RECORDED = {"TopicRouteData(": "TopicRoute(", "TopicList(": "SystemTopics("}
"""Classes that were renamed since outcomes were recorded: a recorded hash covers their names."""


def shown(value: object) -> str:
    """``repr``, with the class names of the recording."""
    text = repr(value)
    for name, recorded in NAMES_WHEN_RECORDED.items():
        text = text.replace(name, recorded)
    return text


def fingerprint(seed: int, count: int, compares_content: bool) -> str:
    """Hash of the answers of ``count`` random commands, and of everything that queries show after each."""
    rng, state = Random(seed), RouteInfoManager()
    state.compares_content = compares_content
    total = blake2b(digest_size=12)
    for time_ms in range(count):
        total.update(shown(state.apply(random_command(rng), time_ms)).encode())
        for part in seen(state):
            total.update(shown(part).encode())
    return total.hexdigest()

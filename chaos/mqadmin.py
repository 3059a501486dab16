"""A simulated user of mqadmin: removes and restores a broker's write permission, deletes topics that were dropped, and changes
settings.

As in mqadmin, every request goes to each name server of the list: ``WIPE_WRITE_PERM_OF_BROKER`` (205),
``ADD_WRITE_PERM_OF_BROKER`` (327), ``DELETE_TOPIC_IN_NAMESRV`` (216) for a topic whose broker has registered without it, and
``UPDATE_NAMESRV_CONFIG`` (318) for three settings that no other part of the run uses. Two are a node's own settings, and one is
shared by CP nodes. The shared one decides whether nodes answer ``GET_ALL_TOPIC_LIST_FROM_NAMESERVER`` (206), so its effect is
read, too.

Each request is an operation of its own, because a delayed copy looks like a new request. A request of unknown outcome may take
effect at any later time. The broker whose permission changes does not register changes, because that would restore the
permission. A topic name is never reused. So the correct state is always known. The probe, which partitions do not affect, reads
the state that each node has.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator

from replicated_namesrv.chaos.clients import Client
from replicated_namesrv.chaos.recorded_brokers import CLUSTER_NAME, ChaosBroker
from replicated_namesrv.chaos.recorder import OK, Ended
from replicated_namesrv.chaos.records import READ_ONLY, READ_WRITE
from replicated_namesrv.client.queries import change_write_perm_request, delete_topic_request, update_config_request

OWN_SETTING, OTHER_SETTING, SHARED_SETTING = (
    "unRegisterBrokerQueueCapacity",
    "defaultThreadPoolQueueCapacity",
    "enableAllTopicList",
)
SETTINGS = {SHARED_SETTING: "true", OWN_SETTING: "3000", OTHER_SETTING: "10000"}
"""The settings that are changed, in this order, with their defaults. Two own settings show that the change of one keeps the
other."""
FIRST_VALUE = 20_001
"""The first value of the own settings, far above what a run needs. Each value is given once."""


class Mqadmin:
    """The loops of the simulated user, and its reads at the end of the run."""

    def __init__(self, client: Client, probe: Client, locked: ChaosBroker, fickle: ChaosBroker, *, sets: bool) -> None:
        """``locked``: the broker whose permission changes. ``fickle``: the broker whose topics change. ``sets``: whether settings
        are changed."""
        self.sets = sets
        self._values = self._new_values()
        self._client, self._probe, self._locked, self._fickle = client, probe, locked, fickle
        self._topics = (f"{fickle.topics[0]}-{number}" for number in itertools.count(1))
        self._dropped: str | None = None
        """A topic that its broker no longer registers and that is not deleted yet; None: there is none."""
        self.deleted: list[str] = []
        self.writing = True

    async def change_perm(self) -> None:
        """Toggle the permission at every node, then ask each node."""
        broker = self._locked
        if self.writing:
            writable = not broker.writable
            if writable:  # the change may take effect now, so producers may send to the broker
                broker.set_writable(True)
            request = change_write_perm_request(broker.agent.identity.broker_name, writable=writable)
            perm = READ_WRITE if writable else READ_ONLY
            told = await asyncio.gather(
                *(self._client.order("write-perm", broker.name, perm, request, node) for node in self._client.nodes)
            )
            if not writable and any(ended.outcome == OK for ended in told):
                broker.set_writable(False)
        await asyncio.gather(*(self._perm(broker.name, node=node) for node in self._probe.nodes))

    async def replace_topic(self) -> None:
        """Create a topic in place of the last one. Delete the old topic after the broker has registered without it."""
        broker = self._fickle
        if self.writing and self._dropped is None:
            self._dropped = broker.topics[1] if len(broker.topics) > 1 else None
            await broker.replace_topic(self._dropped, next(self._topics))
        topic = self._dropped
        if self.writing and topic is not None and broker.is_acknowledged:
            request = delete_topic_request(topic, CLUSTER_NAME)
            told = await asyncio.gather(
                *(self._client.order("delete-topic", topic, None, request, node) for node in self._client.nodes)
            )
            if any(ended.outcome == OK for ended in told):
                self.deleted.append(topic)
            self._dropped = None
        await self._look_at_topics()

    @staticmethod
    def _new_values() -> Iterator[tuple[str, str]]:
        for number in itertools.count(FIRST_VALUE):
            yield SHARED_SETTING, "false" if number % 2 else "true"
            yield OWN_SETTING, str(number)
            yield OTHER_SETTING, str(number)

    async def change_setting(self) -> None:
        """Change one of the settings at every node, then ask each node for all of them."""
        key, value = next(self._values)
        if self.writing:
            request = update_config_request(f"{key}={value}\n")
            await asyncio.gather(*(self._client.order("set-config", key, value, request, node) for node in self._client.nodes))
        reads = [(read, key) for key in SETTINGS for read in self._reads_of(key)]
        await asyncio.gather(*(read(key, node=node) for read, key in reads for node in self._probe.nodes))

    def _reads_of(self, key: str) -> list[Callable[..., Awaitable[Ended]]]:
        return [self._probe.config, *([self._probe.lists_topics] if key == SHARED_SETTING else [])]

    def questions(self) -> list[tuple[Callable[..., Awaitable[Ended]], str]]:
        """The reads on each node at the end, each with its key."""
        topics = [*self.deleted, *self._fickle.topics[1:]]
        found: list[tuple[Callable[..., Awaitable[Ended]], str]] = [(self._perm, self._locked.name)]
        found += [(self._probe.topic, topic) for topic in topics]
        return [*found, *((read, key) for key in SETTINGS for read in self._reads_of(key))] if self.sets else found

    async def _perm(self, broker: str, *, node: str) -> Ended:
        return await self._probe.perm(broker, self._locked.topics[0], node=node)

    async def _look_at_topics(self) -> None:
        """Ask each node for the newest topic, for the topic that was deleted last, and for one deleted topic at random."""
        asked = {*self._fickle.topics[1:], *self.deleted[-1:], *([self._probe.rng.choice(self.deleted)] if self.deleted else ())}
        await asyncio.gather(*(self._probe.topic(topic, node=node) for topic in sorted(asked) for node in self._probe.nodes))

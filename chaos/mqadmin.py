"""Somebody with mqadmin: takes the write permission of a broker away and gives it back, and deletes topics that were dropped.

As mqadmin does, every order goes to each name server of the list: codes 205 and 327 for the permission; 216 for a topic, once its
broker has registered without it. Each request is an operation of its own, for nobody can tell a copy that was held up from a new
order: one of unknown outcome may take effect at any later time. The broker whose permission changes registers nothing new
meanwhile, since that would give the permission back, and a topic's name is never used again; so what is true is known
throughout. What nodes answer is asked by the probe, which partitions do not cut off.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable

from replicated_namesrv.chaos.clients import Client
from replicated_namesrv.chaos.recorded_brokers import CLUSTER_NAME, ChaosBroker
from replicated_namesrv.chaos.recorder import OK, Ended
from replicated_namesrv.chaos.records import READ_ONLY, READ_WRITE
from replicated_namesrv.client.queries import change_write_perm_request, delete_topic_request


class Mqadmin:
    """Two loops of the workload, and what they have to be asked about at the end."""

    def __init__(self, client: Client, probe: Client, locked: ChaosBroker, fickle: ChaosBroker) -> None:
        """``locked``: whose permission changes; ``fickle``: whose topics come and go."""
        self._client, self._probe, self._locked, self._fickle = client, probe, locked, fickle
        self._topics = (f"{fickle.topics[0]}-{number}" for number in itertools.count(1))
        self._dropped: str | None = None
        """Its broker has it no more; name servers have yet to be told."""
        self.deleted: list[str] = []
        self.writing = True

    async def change_perm(self) -> None:
        """The other permission, at every node; then what each answers."""
        broker = self._locked
        if self.writing:
            writable = not broker.writable
            if writable:  # from now on it may be sent to
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
        """A new topic in place of the last; the last is deleted once the broker has registered without it."""
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

    def questions(self) -> list[tuple[Callable[..., Awaitable[Ended]], str]]:
        """What to ask each node at the end: a question, and the key that it is about."""
        topics = [*self.deleted, *self._fickle.topics[1:]]
        return [(self._perm, self._locked.name), *((self._probe.topic, topic) for topic in topics)]

    async def _perm(self, broker: str, *, node: str) -> Ended:
        return await self._probe.perm(broker, self._locked.topics[0], node=node)

    async def _look_at_topics(self) -> None:
        """The newest topic, the one deleted last, and one deleted at any time."""
        asked = {*self._fickle.topics[1:], *self.deleted[-1:], *([self._probe.rng.choice(self.deleted)] if self.deleted else ())}
        await asyncio.gather(*(self._probe.topic(topic, node=node) for topic in sorted(asked) for node in self._probe.nodes))

"""Digest of the whole state, cheap enough to be compared between nodes every second at millions of queue entries.

Queue entries are summed up per group: the entry of ``topic`` with ``queue_data`` counts as hash(topic) * hash(queue_data) modulo
the prime 2^127 - 1. A sum does not depend on the order of its terms and can be corrected by the terms that changed. Two
tables that differ give equal sums only if sum of hash(topic) * (hash(old) - hash(new)) over the differing topics vanishes,
which for hashes without relation to each other has a probability of about 2^-127. This finds nodes that diverged; it is no
defence against someone who constructs collisions.

Everything else of a group is small and hashed anew when its generation moved. A digest therefore costs the queue entries that
changed since the last one (all of a group once a quarter of it changed), a pass over the topics' revisions if any command was
applied, and a hash over as many bytes as there are groups.
"""

import json
from hashlib import blake2b
from operator import mul
from typing import Any

from xxhash import xxh3_128_intdigest

from replicated_namesrv.model import QueueData, TopicQueueMappingInfo
from replicated_namesrv.routes.tables import BrokerGroup, Tables

PRIME = 2**127 - 1
SPARE_TOPICS = 10_000


class _TopicHashes(dict[str, int]):
    def __missing__(self, topic: str) -> int:
        value = self[topic] = xxh3_128_intdigest(topic.encode("utf-8", "surrogatepass"), 1)
        return value


class _QueueDataHashes(dict[QueueData, int]):
    def __missing__(self, queue_data: QueueData) -> int:
        value = self[queue_data] = xxh3_128_intdigest(_canonical(queue_data), 2)
        return value


class Digester:
    """Digests of one ``Tables``, with what is remembered from the last."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._topics = _TopicHashes()
        self._queue_datas = _QueueDataHashes()
        self._groups: dict[str, tuple[int, bytes]] = {}
        self._mappings: dict[str, tuple[dict[str, TopicQueueMappingInfo], bytes]] = {}
        self._kv: tuple[int, bytes] | None = None
        self._of_revision: tuple[int, bytes] | None = None

    def advance(self, max_entries: int) -> bool:
        """Do at most about ``max_entries`` queue entries' worth of work; True once ``digest`` has no such work left."""
        for group in self._tables.groups.values():
            if group.digest_sum is not None and not group.digest_pending:
                continue
            if max_entries <= 0:
                return False
            max_entries -= len(group.topics) if group.digest_sum is None else len(group.digest_pending)
            self._sum(group)
        return True

    def digest(self) -> bytes:
        """16 bytes, equal on equal states, whatever the process."""
        tables = self._tables
        if self._of_revision is not None and self._of_revision[0] == tables.revision:
            return self._of_revision[1]
        self._forget_gone()
        revisions = sum(map(mul, map(self._topics.__getitem__, tables.topic_revisions), tables.topic_revisions.values())) % PRIME
        total = blake2b(digest_size=16)
        total.update(_canonical([tables.revision, tables.settings_revision, _settings(tables), revisions]))
        total.update(_canonical([[cluster, sorted(names)] for cluster, names in sorted(tables.cluster_names.items())]))
        for name in sorted(tables.groups):
            total.update(self._group_digest(tables.groups[name]))
        for name in sorted(tables.mappings):
            total.update(self._mappings_digest(name))
        total.update(self._kv_digest())
        self._of_revision = (tables.revision, total.digest())
        return self._of_revision[1]

    def _group_digest(self, group: BrokerGroup) -> bytes:
        known = self._groups.get(group.broker_name)
        if known is not None and known[0] == group.generation:
            return known[1]
        members = [group.members[broker_id] for broker_id in sorted(group.members)]
        head = [group.broker_name, group.cluster, group.zone_name, group.enable_acting_master, group.generation]
        value = _hash([*head, members, len(group.topics), self._sum(group)])
        self._groups[group.broker_name] = (group.generation, value)
        return value

    def _mappings_digest(self, broker_name: str) -> bytes:
        infos = self._tables.mappings[broker_name]  # replaced when changed, never changed in place
        known = self._mappings.get(broker_name)
        if known is not None and known[0] is infos:
            return known[1]
        value = _hash([broker_name, sorted(infos.items())])
        self._mappings[broker_name] = (infos, value)
        return value

    def _kv_digest(self) -> bytes:
        tables = self._tables
        if self._kv is None or self._kv[0] != tables.kv_revision:
            entries = [[namespace, sorted(tables.kv[namespace].items())] for namespace in sorted(tables.kv)]
            self._kv = (tables.kv_revision, _hash(entries))
        return self._kv[1]

    def _sum(self, group: BrokerGroup) -> int:
        topics, queue_datas = self._topics, self._queue_datas
        total = group.digest_sum
        if total is None:
            entries = group.topics
            total = sum(map(mul, map(topics.__getitem__, entries), map(queue_datas.__getitem__, entries.values())))
        else:
            for topic, old in group.digest_pending.items():
                new = group.topics.get(topic)
                before = 0 if old is None else queue_datas[old]
                after = 0 if new is None else queue_datas[new]
                total += topics[topic] * (after - before)
        group.digest_sum, group.digest_pending = total % PRIME, {}
        return group.digest_sum

    def _forget_gone(self) -> None:
        tables = self._tables
        if len(self._topics) > 2 * len(tables.topic_queues) + SPARE_TOPICS:
            self._topics.clear()
        if len(self._queue_datas) > SPARE_TOPICS:
            self._queue_datas.clear()
        if len(self._groups) > len(tables.groups):
            self._groups = {name: known for name, known in self._groups.items() if name in tables.groups}
        if len(self._mappings) > len(tables.mappings):
            self._mappings = {name: known for name, known in self._mappings.items() if name in tables.mappings}


def _settings(tables: Tables) -> list[bool]:
    settings = tables.settings
    return [getattr(settings, name) for name in sorted(settings.__dataclass_fields__)]


def _canonical(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _hash(value: Any) -> bytes:
    return blake2b(_canonical(value), digest_size=16).digest()

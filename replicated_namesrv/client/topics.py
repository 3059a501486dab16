"""A broker's topics, and the registration bodies made from them.

``TopicTable`` is immutable. Hundreds of brokers with the same topics share one table and its encoded form; a change gives one
broker its own table. The system topics and their queues are those of ``TopicConfigManager`` in 4.9.8 and 5.3.3.
"""

import struct
import zlib
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from replicated_namesrv.client.broker_requests import BrokerVersion, data_version_json, sync_topic
from replicated_namesrv.model import DataVersion, TopicQueueMappingInfo
from replicated_namesrv.wire.fastjson_writer import quote

_LENGTH = struct.Struct(">i")

PERM_INHERIT, PERM_READ_WRITE = 1, 6


class TopicConfig(NamedTuple):
    """One topic of one broker (``TopicConfig.java``)."""

    topic_name: str
    read_queue_nums: int = 8
    write_queue_nums: int = 8
    perm: int = PERM_READ_WRITE
    order: bool = False
    topic_sys_flag: int = 0


def system_topics(cluster_name: str, broker_name: str, version: BrokerVersion) -> tuple[TopicConfig, ...]:
    """The topics that every broker has from the start."""
    topics = [
        TopicConfig("SELF_TEST_TOPIC", 1, 1),
        TopicConfig("TBW102", 8, 8, PERM_READ_WRITE | PERM_INHERIT),
        TopicConfig("BenchmarkTest", 1024, 1024),
        TopicConfig(cluster_name, 16, 16, PERM_READ_WRITE | PERM_INHERIT),
        TopicConfig(broker_name, 1, 1, PERM_READ_WRITE | PERM_INHERIT),
        TopicConfig("OFFSET_MOVED_EVENT", 1, 1),
        TopicConfig("SCHEDULE_TOPIC_XXXX", 18, 18),
        TopicConfig(f"{cluster_name}_REPLY_TOPIC", 1, 1),
    ]
    if version is BrokerVersion.V5_3:
        topics += [
            TopicConfig(f"rmq_sys_REVIVE_LOG_{cluster_name}", 8, 8),
            TopicConfig(sync_topic(broker_name), 1, 1, PERM_INHERIT),
            TopicConfig("RMQ_SYS_TRANS_HALF_TOPIC", 1, 1),
            TopicConfig("RMQ_SYS_TRANS_OP_HALF_TOPIC", 1, 1),
            TopicConfig("rmq_sys_wheel_timer", 1, 1),
        ]
    return tuple(topics)


class TopicTable:
    """Topics by name, and their entries, encoded on first use."""

    def __init__(self, configs: Iterable[TopicConfig]) -> None:
        self.configs = {config.topic_name: config for config in configs}
        self._entries: dict[BrokerVersion, bytes] = {}

    def entries(self, version: BrokerVersion) -> bytes:
        """Members of ``topicConfigTable``, separated by commas."""
        found = self._entries.get(version)
        if found is None:
            found = ",".join(_entry(config, version) for config in self.configs.values()).encode()
            self._entries[version] = found
        return found


class RegistrationExtras(NamedTuple):
    """What a registration contains besides topics. A compressed registration leaves it out."""

    filter_servers: tuple[str, ...] = ()
    mappings: tuple[TopicQueueMappingInfo, ...] = ()
    """Static mappings, by topic. 4.9 has none."""


class BrokerTopics:
    """All topics of one broker: its own system topics and a table that it may share with others. Immutable."""

    def __init__(self, system: TopicTable, user: TopicTable, extras: RegistrationExtras = RegistrationExtras()) -> None:  # noqa: B008 - immutable
        self.system = system
        self.user = user
        self.extras = extras

    def __len__(self) -> int:
        return len(self.system.configs) + len(self.user.configs)

    def __iter__(self) -> Iterator[TopicConfig]:
        yield from self.system.configs.values()
        yield from self.user.configs.values()

    def put(self, configs: Iterable[TopicConfig]) -> "BrokerTopics":
        """A copy with ``configs`` added or replaced."""
        system, user = dict(self.system.configs), dict(self.user.configs)
        for config in configs:
            (system if config.topic_name in system else user)[config.topic_name] = config
        return self._with(system, user)

    def delete(self, names: Iterable[str]) -> "BrokerTopics":
        """A copy without these topics; system topics stay."""
        gone = set(names)
        return self._with(self.system.configs, {name: config for name, config in self.user.configs.items() if name not in gone})

    def with_order(self, ordered: Collection[str], *, reset_others: bool) -> "BrokerTopics":
        """A copy with ``order`` set for the topics of the order configuration; the same object if there is no change.

        ``reset_others``: remove the flag from all other topics, as 4.9 does (``updateOrderTopicConfig``).
        """
        changed = [
            config._replace(order=config.topic_name in ordered)
            for config in self
            if (config.topic_name in ordered and not config.order)
            or (reset_others and config.order and config.topic_name not in ordered)
        ]
        return self.put(changed) if changed else self

    def _with(self, system: dict[str, TopicConfig], user: dict[str, TopicConfig]) -> "BrokerTopics":
        return BrokerTopics(
            self.system if system == self.system.configs else TopicTable(system.values()),
            self.user if user == self.user.configs else TopicTable(user.values()),
            self.extras,
        )

    def encode(self, version: BrokerVersion, data_version: DataVersion, now_ms: int, *, compressed: bool) -> bytes:
        """Body of ``REGISTER_BROKER`` (103). ``now_ms``: a 5.3 broker puts it into each registration as the version of its
        static mappings.
        """
        if compressed:
            return self._deflated(version, data_version)
        tables = [table.entries(version) for table in (self.system, self.user) if table.configs]
        filters = ",".join(map(quote, self.extras.filter_servers))
        head = (
            f'{{"filterServerList":[{filters}],"topicConfigSerializeWrapper":'
            f'{{"dataVersion":{data_version_json(data_version, version)},'
        )
        tail = ""
        if version is BrokerVersion.V5_3:
            head += f'"mappingDataVersion":{data_version_json(DataVersion(0, 0, now_ms), version)},'
            mappings = ",".join(map(_mapping, self.extras.mappings))
            tail = f',"topicQueueMappingDetailMap":{{}},"topicQueueMappingInfoMap":{{{mappings}}}'
        head += '"topicConfigTable":{'
        return b"".join((head.encode(), b",".join(tables), f"}}{tail}}}}}".encode()))

    def _deflated(self, version: BrokerVersion, data_version: DataVersion) -> bytes:
        """``RegisterBrokerBody.encode(true)``: length-prefixed pieces in one zlib stream of level 9."""
        pieces = [_piece(data_version_json(data_version, version)), _LENGTH.pack(len(self))]
        attributes = " {}" if version is BrokerVersion.V5_3 else ""
        for name, read_queue_nums, write_queue_nums, perm, _, _ in self:
            pieces.append(_piece(f"{name} {read_queue_nums} {write_queue_nums} {perm} SINGLE_TAG{attributes}"))
        pieces.append(_piece("[]"))
        if version is BrokerVersion.V5_3:
            pieces.append(_LENGTH.pack(0))
        return zlib.compress(b"".join(pieces), 9)


def _entry(config: TopicConfig, version: BrokerVersion) -> str:
    name, read_queue_nums, write_queue_nums, perm, order, topic_sys_flag = config
    quoted = quote(name)
    attributes = '"attributes":{},' if version is BrokerVersion.V5_3 else ""
    return (
        f'{quoted}:{{{attributes}"order":{"true" if order else "false"},"perm":{perm},"readQueueNums":{read_queue_nums},'
        f'"topicFilterType":"SINGLE_TAG","topicName":{quoted},"topicSysFlag":{topic_sys_flag},"writeQueueNums":{write_queue_nums}}}'
    )


def _mapping(info: TopicQueueMappingInfo) -> str:
    ids = ",".join(f"{here}:{there}" for here, there in info.curr_id_map)
    return (
        f'{quote(info.topic)}:{{"bname":{quote(info.bname)},"currIdMap":{{{ids}}},"dirty":{"true" if info.dirty else "false"},'
        f'"epoch":{info.epoch},"scope":{quote(info.scope)},"topic":{quote(info.topic)},"totalQueues":{info.total_queues}}}'
    )


def _piece(text: str) -> bytes:
    data = text.encode()
    return _LENGTH.pack(len(data)) + data

"""The size of the state in bytes, updated by every change.

The size of a stored object is the number of bytes of its text in UTF-8, plus ``ENTRY_BYTES``, approximately its overhead in
Python. A topic counts once for each broker name that has it. The sizes depend on the state only. So they are equal on all nodes,
and snapshots do not contain them. The cost of an update depends on what the command changes.
"""

from collections.abc import Collection, Iterable
from json.encoder import encode_basestring_ascii

from replicated_namesrv.model import TopicQueueMappingInfo
from replicated_namesrv.routes.broker_group import BrokerGroup, Registration

ENTRY_BYTES = 64
ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"
"""The namespace whose entries are in every answer to a registration."""
QUEUE_BYTES = 16
"""Size that is assumed for one queue of a static topic mapping."""


def text_bytes(text: str | None) -> int:
    """Length in UTF-8; 0 for None."""
    if text is None:
        return 0
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def names_bytes(names: Collection[str]) -> int:
    """Bytes of entries that consist only of a name."""
    return ENTRY_BYTES * len(names) + text_bytes("".join(names))


def registration_bytes(registration: Registration | None) -> int:
    """Size of a registered broker; 0 for None."""
    if registration is None:
        return 0
    texts = (registration.cluster_name, registration.broker_addr, registration.broker_name, registration.ha_server_addr)
    return ENTRY_BYTES + text_bytes("".join(texts)) + names_bytes(registration.filter_servers)


def group_bytes(broker_name: str, cluster: str, zone_name: str | None) -> int:
    """Size of a broker group without its members and topics."""
    return ENTRY_BYTES + text_bytes(broker_name) + text_bytes(cluster) + text_bytes(zone_name)


def mapping_bytes(topic: str, info: TopicQueueMappingInfo | None) -> int:
    """Size of a static topic mapping; 0 for None."""
    if info is None:
        return 0
    return ENTRY_BYTES + text_bytes(topic + info.bname + info.scope + info.topic) + QUEUE_BYTES * len(info.curr_id_map)


def kv_bytes(key: str, value: str | None) -> int:
    """An entry of the KV config."""
    return ENTRY_BYTES + text_bytes(key) + text_bytes(value)


def encoded_bytes(key: str, value: str | None) -> int:
    """Upper bound of an entry's bytes as JSON, in which a character may take 12 bytes."""
    texts = (key, value or "")
    return sum(len(encode_basestring_ascii(text)) + 5 * text.count("\x7f") for text in texts) + 2


class Sizes:
    """Bytes by owner. Methods are called for each addition (``sign`` 1) or removal (-1)."""

    __slots__ = ("brokers", "kv", "mapped", "namespaces", "order_topics", "total")

    def __init__(self) -> None:
        self.total = 0
        """Size of everything, including the clusters' lists of names."""
        self.kv = 0
        """Size of all namespaces."""
        self.brokers: dict[str, int] = {}
        """Size by brokerName: group, registrations, topics and static topic mappings."""
        self.mapped: dict[str, int] = {}
        """The part of ``brokers`` that belongs to static topic mappings."""
        self.namespaces: dict[str, int] = {}
        self.order_topics = 0
        """Size of the namespace ORDER_TOPIC_CONFIG when encoded (``encoded_bytes``)."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sizes) and all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    __hash__ = None  # type: ignore[assignment]  # it is mutable, so it must not be a key

    def __repr__(self) -> str:
        return f"Sizes(total={self.total}, kv={self.kv}, brokers={self.brokers}, namespaces={self.namespaces})"

    def group(self, group: BrokerGroup, sign: int) -> None:
        """A broker group itself, with its present cluster and zone."""
        self._of_broker(group.broker_name, sign * group_bytes(group.broker_name, group.cluster, group.zone_name))

    def topics(self, broker_name: str, topics: Collection[str], sign: int) -> None:
        """Topics of a group."""
        self._of_broker(broker_name, sign * names_bytes(topics))

    def topic_gone(self, broker_names: Iterable[str], topic: str) -> None:
        """Remove one topic from several groups."""
        size = names_bytes((topic,))
        for broker_name in broker_names:
            self._of_broker(broker_name, -size)

    def registration(self, registration: Registration, sign: int) -> None:
        """A registered broker."""
        self._of_broker(registration.broker_name, sign * registration_bytes(registration))

    def mappings(self, broker_name: str, topics: Iterable[str], infos: Iterable[TopicQueueMappingInfo], sign: int) -> None:
        """Static topic mappings that are stored under one broker name."""
        more = sign * sum(map(mapping_bytes, topics, infos))
        self.mapped[broker_name] = self.mapped.get(broker_name, 0) + more
        self._of_broker(broker_name, more)

    def mappings_gone(self, broker_name: str) -> None:
        """Remove all static topic mappings of a broker name, at a constant cost."""
        self._of_broker(broker_name, -self.mapped.pop(broker_name, 0))

    def cluster(self, name: str, sign: int) -> None:
        """A cluster, or a name in the list of one."""
        self.total += sign * (ENTRY_BYTES + text_bytes(name))

    def namespace(self, namespace: str) -> None:
        """A new namespace of the KV config. Namespaces are never removed."""
        self._of_namespace(namespace, kv_bytes(namespace, None))

    def entry(self, namespace: str, key: str, value: str | None, sign: int) -> None:
        """An entry of the KV config."""
        self._of_namespace(namespace, sign * kv_bytes(key, value))
        if namespace == ORDER_TOPIC_CONFIG:
            self.order_topics += sign * encoded_bytes(key, value)

    def _of_broker(self, broker_name: str, more: int) -> None:
        self.total += more
        size = self.brokers.get(broker_name, 0) + more
        if size:
            self.brokers[broker_name] = size
        else:
            self.brokers.pop(broker_name, None)

    def _of_namespace(self, namespace: str, more: int) -> None:
        self.total += more
        self.kv += more
        self.namespaces[namespace] = self.namespaces.get(namespace, 0) + more

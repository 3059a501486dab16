"""Immutable, comparable values that brokers announce, the route state machine stores, and answers contain.

``wire``, ``routes`` and ``client`` share this module. ``wire`` and ``routes`` do not import each other. Every type is a tuple,
so that equal values hash and encode equally on every node. Decoders intern most values. So 300 brokers with the same 10,000
topics have 10,000 references each instead of three million objects, and unchanged values are found by identity.

Field names are RocketMQ's, written as Python writes names (``readQueueNums`` is ``read_queue_nums``).
"""

from typing import NamedTuple

MASTER_ID = 0
"""brokerId of a master (``MixAll.MASTER_ID``)."""
PERM_READ, PERM_WRITE = 4, 2
"""Bits of ``QueueData.perm`` (``PermName.java``)."""
TOPICS_MAX = 60_000
"""Maximum number of topics of one broker name, and of topics or static topic mappings in one registration. Every node applies a
command on all of them in one turn of the event loop. This turn has to end well before the shortest election time-out of 300
ms."""


class ChangeOrigin(NamedTuple):
    """The cause of a change, for audit logs: the caller and the node."""

    identity: str
    """Name of the caller's identity in the access file."""
    address: str
    """Host from which the request came."""
    node: str
    """The node that received the request."""

    @property
    def is_checked(self) -> bool:
        """Whether ``check`` may refuse."""
        return False

    def check(self) -> None:
        """Call it right before the change is proposed, because the request may have waited. Raises NoPermissionError."""


class DataVersion(NamedTuple):
    """Version of a broker's topic table (``DataVersion.java``): equal only when all three numbers are."""

    counter: int
    state_version: int
    timestamp: int
    """Milliseconds since 1970 on the broker's clock."""


class QueueData(NamedTuple):
    """One broker group's queues of one topic (``QueueData.java`` without ``brokerName``, which is the key)."""

    perm: int
    """Bits of ``PermName``: 8 priority, 4 read, 2 write, 1 inherit."""
    read_queue_nums: int
    topic_sys_flag: int
    write_queue_nums: int


class TopicQueueMappingInfo(NamedTuple):
    """Static topic mapping of one broker (``TopicQueueMappingInfo.java``)."""

    bname: str
    curr_id_map: tuple[tuple[int, int], ...]
    """Pairs (global queue id, local queue id) in ascending order."""
    dirty: bool
    epoch: int
    scope: str
    topic: str
    total_queues: int


class BrokerData(NamedTuple):
    """A broker group and its addresses (``BrokerData.java``)."""

    cluster: str
    broker_name: str
    broker_addrs: tuple[tuple[int, str], ...]
    """Pairs (brokerId, address) in ascending order of the ids."""
    zone_name: str | None
    enable_acting_master: bool

    @property
    def master_addr(self) -> str | None:
        """Address of brokerId 0, under which an acting master is also shown."""
        return dict(self.broker_addrs).get(MASTER_ID)


class TopicRouteData(NamedTuple):
    """A topic's brokers and queues (``TopicRouteData.java``)."""

    order_topic_conf: str | None
    """The topic's entry in the KV namespace ORDER_TOPIC_CONFIG, if orderMessageEnable is set."""
    queue_datas: tuple[tuple[str, QueueData], ...]
    """Pairs (brokerName, queues), sorted by name."""
    broker_datas: tuple[BrokerData, ...]
    """Broker groups, sorted by name."""
    filter_server_table: tuple[tuple[str, tuple[str, ...]], ...]
    """Pairs (broker address, addresses of its filter servers)."""
    topic_queue_mapping_by_broker: tuple[tuple[str, TopicQueueMappingInfo], ...] | None
    """Pairs (brokerName, mapping), sorted by name; None if there are none."""


class ClusterInfo(NamedTuple):
    """All groups, and the names of the groups of each cluster (``ClusterInfo.java``)."""

    broker_addr_table: tuple[BrokerData, ...]
    """Broker groups, sorted by name."""
    cluster_addr_table: tuple[tuple[str, tuple[str, ...]], ...]
    """Pairs (cluster, names of its brokers)."""


class TopicList(NamedTuple):
    """A list of topics (``TopicList.java``)."""

    topic_list: tuple[str, ...]
    broker_addr: str | None
    """``GET_SYSTEM_TOPIC_LIST_FROM_NS`` (304): address of a broker that has more system topics."""

"""A broker group with its members and topics, which ``tables.py`` keeps and changes."""

from collections import Counter
from collections.abc import Sequence
from operator import mul
from typing import NamedTuple

from replicated_namesrv.model import BrokerData, DataVersion, QueueData
from replicated_namesrv.routes.shared_dict import SharedDict
from replicated_namesrv.routes.sums import PRIME, entry_hash, queue_hash, topic_hashes


class Registration(NamedTuple):
    """One registration of a broker (``BrokerLiveInfo.java`` without the facts that differ between nodes)."""

    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: int
    epoch: int
    """Revision at which this registration began. Later registrations of a broker have greater epochs. The epoch stays the same
    while the same address is registered under the same cluster, name and id, with any content. The registration ends when it
    is removed, or when the address, cluster, name or id changes. A command begins at most one registration, so registrations have
    different epochs. Exception: after ``RouteInfoManager.begin_anew`` all registrations have the same epoch."""
    data_version: DataVersion
    heartbeat_timeout_ms: int
    ha_server_addr: str
    filter_servers: tuple[str, ...]
    since_ms: int
    """Time of the command that began this registration."""


class TopicCount:
    """The topics of a group that have the same queue settings: how many, and the sum of their hashes."""

    __slots__ = ("count", "sum")

    def __init__(self) -> None:
        self.count = self.sum = 0


class Shown(NamedTuple):
    """The group as the routes of all its topics show it."""

    plain: BrokerData
    acting: BrokerData
    """The group with an acting master. If the group has no master and enables an acting master, the address of the least id has
    the id of a master, 0. Otherwise this is equal to ``plain``."""
    filter_servers: tuple[tuple[str, tuple[str, ...]], ...]


class BrokerGroup:
    """The brokers of one name and their topics (``BrokerData.java`` and this name's part of topicQueueTable)."""

    __slots__ = (
        "broker_name",
        "cluster",
        "counted",
        "enable_acting_master",
        "generation",
        "is_overridden",
        "is_summed",
        "kinds",
        "members",
        "shown",
        "stale",
        "topics",
        "topics_sum",
        "zone_name",
    )

    def __init__(self, broker_name: str, cluster: str, is_summed: bool = True) -> None:
        """``is_summed``: whether each change updates the sums over topics. If not, ``hash`` recomputes ``topics_sum``."""
        self.is_summed = is_summed
        self.stale = False
        """Whether ``topics_sum`` is outdated."""
        self.broker_name = broker_name
        self.cluster = cluster
        """Cluster of the first registration. It does not change afterwards (``BrokerData.cluster``)."""
        self.zone_name: str | None = None
        self.enable_acting_master = False
        self.members: dict[int, Registration] = {}
        self.topics = SharedDict[QueueData]()
        self.kinds: dict[QueueData, TopicCount] = {}
        """The distinct values of ``topics``, each with the number of topics that have it."""
        self.topics_sum = 0
        """Sum over ``topics``: the topic's hash times the hash of its queue settings."""
        self.is_overridden = False
        """Whether queue settings of this group were changed by ``WIPE_WRITE_PERM_OF_BROKER`` (205), ``ADD_WRITE_PERM_OF_BROKER``
        (327) or ``REGISTER_TOPIC_IN_NAMESRV`` (217). The master resets this when it registers more than one topic under a new
        data version."""
        self.generation = 0
        self.counted = 0
        """The hash of this group that is counted in ``Tables.groups_sum``."""
        self.shown: tuple[int, Shown] | None = None
        """Cache: a generation, and the part of routes that this group gave at that generation. Not part of the state."""

    def count(self, values: Sequence[QueueData], hashes: Sequence[int], sign: int) -> None:
        """Add (``sign`` 1) or remove (-1) these topics in the counts and sums. The arguments are their queue settings and hashes;
        the hashes are not needed if ``is_summed`` is false."""
        totals: dict[QueueData, tuple[int, int]]
        if values and values.count(values[0]) == len(values):
            totals = {values[0]: (len(values), sum(hashes))}
        else:
            counts, sums = Counter(values), dict.fromkeys(values, 0)
            for topic_hash, queue_data in zip(hashes, values, strict=self.is_summed):
                sums[queue_data] += topic_hash
            totals = {queue_data: (count, sums[queue_data]) for queue_data, count in counts.items()}
        self.stale = not self.is_summed
        for queue_data, (count, hash_sum) in totals.items():
            kind = self.kinds.get(queue_data)
            if kind is None:
                kind = self.kinds[queue_data] = TopicCount()
            kind.count += sign * count
            kind.sum = (kind.sum + sign * hash_sum) % PRIME
            self.topics_sum = (self.topics_sum + sign * hash_sum * queue_hash(queue_data)) % PRIME
            if not kind.count:
                del self.kinds[queue_data]

    def clear(self) -> None:
        """Remove all topics, without a step for each."""
        self.topics.clear()
        self.kinds = {}
        self.topics_sum, self.stale = 0, False

    def hash(self) -> int:
        """Hash of the group without its members, which ``Tables.live_sum`` includes."""
        if self.stale:
            self.topics_sum = sum(map(mul, topic_hashes(list(self.topics)), map(queue_hash, self.topics.values()))) % PRIME
            self.stale = False
        head = [self.broker_name, self.cluster, self.zone_name, self.enable_acting_master, self.generation]
        if self.is_overridden:  # left out while it is False, because version 0.1 does not know this field
            head.append(True)
        return entry_hash("group", *head, len(self.topics), f"{self.topics_sum:x}")

    def member_at(self, broker_addr: str) -> Registration | None:
        """The member with this address; an address is a member at most once."""
        return next((member for member in self.members.values() if member.broker_addr == broker_addr), None)

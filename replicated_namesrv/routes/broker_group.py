"""A broker group with its members and topics, which ``tables.py`` keeps and changes."""

from collections.abc import Sequence
from typing import NamedTuple

from replicated_namesrv.model import BrokerData, DataVersion, QueueData
from replicated_namesrv.routes.sums import PRIME, entry_hash, queue_hash


class Registration(NamedTuple):
    """One life of a registered broker (``BrokerLiveInfo.java`` without what each node knows for itself)."""

    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: int
    epoch: int
    """Revision at which this life began: unique and ascending. It lasts while the same address stays registered under the same
    cluster, name and id, whatever else it announces, and ends with its removal or a change of one of these."""
    data_version: DataVersion
    heartbeat_timeout_ms: int
    ha_server_addr: str
    filter_servers: tuple[str, ...]
    since_ms: int
    """Stamped time of the command that began this life."""


class TopicCount:
    """The topics of a group that have the same queue settings: how many, and the sum of their hashes."""

    __slots__ = ("count", "sum")

    def __init__(self) -> None:
        self.count = self.sum = 0


class Shown(NamedTuple):
    """What routes show of a group; the same for every topic."""

    plain: BrokerData
    acting: BrokerData
    """The least id appears as 0 where no master is and the group allows it."""
    filter_servers: tuple[tuple[str, tuple[str, ...]], ...]


class BrokerGroup:
    """The brokers of one name and what they serve (``BrokerData.java`` and this name's part of topicQueueTable)."""

    __slots__ = (
        "broker_name",
        "cluster",
        "counted",
        "enable_acting_master",
        "generation",
        "kinds",
        "members",
        "shared",
        "shown",
        "topics",
        "topics_sum",
        "zone_name",
    )

    def __init__(self, broker_name: str, cluster: str) -> None:
        self.broker_name = broker_name
        self.cluster = cluster
        """Of the first registration; stays (``BrokerData.cluster``)."""
        self.zone_name: str | None = None
        self.enable_acting_master = False
        self.members: dict[int, Registration] = {}
        self.topics: dict[str, QueueData] = {}
        self.kinds: dict[QueueData, TopicCount] = {}
        """Exactly the values of ``topics``."""
        self.topics_sum = 0
        """Over ``topics``: hash of the topic times hash of its queue settings."""
        self.generation = 0
        self.counted = 0
        """Hash with which this group is part of ``Tables.groups_sum``."""
        self.shown: tuple[int, Shown] | None = None
        """Generation and what routes showed of this group then: derived, no part of the state."""
        self.shared = False
        """A snapshot still reads ``topics``: copy before changing."""

    def own(self) -> dict[str, QueueData]:
        """``topics``, no longer shared with a snapshot."""
        if self.shared:
            self.topics = self.topics.copy()
            self.shared = False
        return self.topics

    def count(self, hashes: Sequence[int], values: Sequence[QueueData], sign: int) -> None:
        """Add (``sign`` 1) or take away (-1) the queue settings ``values`` of the topics with these hashes in the sums."""
        totals: dict[QueueData, list[int]] = {}
        if len(set(values)) == 1:
            totals[values[0]] = [len(values), sum(hashes)]
        else:
            for topic_hash, queue_data in zip(hashes, values, strict=True):
                total = totals.get(queue_data)
                if total is None:
                    totals[queue_data] = [1, topic_hash]
                else:
                    total[0] += 1
                    total[1] += topic_hash
        for queue_data, (count, hash_sum) in totals.items():
            kind = self.kinds.get(queue_data)
            if kind is None:
                kind = self.kinds[queue_data] = TopicCount()
            kind.count += sign * count
            kind.sum = (kind.sum + sign * hash_sum) % PRIME
            self.topics_sum = (self.topics_sum + sign * hash_sum * queue_hash(queue_data)) % PRIME
            if not kind.count:
                del self.kinds[queue_data]

    def hash(self) -> int:
        """Of everything but the members, which are counted in ``Tables.live_sum``."""
        head = [self.broker_name, self.cluster, self.zone_name, self.enable_acting_master, self.generation]
        return entry_hash("group", *head, len(self.topics), f"{self.topics_sum:x}")

    def member_at(self, broker_addr: str) -> Registration | None:
        """The member with this address; an address is a member at most once."""
        return next((member for member in self.members.values() if member.broker_addr == broker_addr), None)

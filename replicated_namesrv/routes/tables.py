"""The tables of RouteInfoManager and the few ways in which they may be changed.

RocketMQ's six tables (``RouteInfoManager.java``), arranged so that what belongs to a broker group lies together::

    topicQueueTable             topic_queues    topic -> brokerName -> QueueData,  and  groups[brokerName].topics
    brokerAddrTable             groups          brokerName -> BrokerGroup
    clusterAddrTable            cluster_names   cluster -> names, in the order in which they came
    brokerLiveTable             live            (cluster, address) -> Registration
    filterServerTable           filter_servers of each Registration
    topicQueueMappingInfoTable  mappings        brokerName -> topic -> TopicQueueMappingInfo

A queue entry is reachable from its topic and from its group, so that neither "what does this group still lack" nor "drop all
of this group" ever walks over the topics of others; both sides hold the same interned value.

**Invariant: registrations and members correspond one to one.** ``group.members[id]`` is the very Registration that ``live``
holds under its key. Java keeps the two tables apart and lets them drift, which leaves live entries that no scan removes and
addresses in groups that no expiry reaches. Here whatever ends one ends the other.

Every change goes through a method of this class, which stamps the revision in progress on what a reader or a later command
may depend on: ``topic_revisions`` for answers of route queries, ``BrokerGroup.generation`` for registrations of the group.
Dictionaries are shared with a snapshot being taken until they are changed: ``own`` makes a group's copy at that moment.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import NamedTuple

from replicated_namesrv.model import DataVersion, QueueData, TopicQueueMappingInfo
from replicated_namesrv.routes.kv_index import KVIndex
from replicated_namesrv.routes.results import BrokerRemoved, Effect
from replicated_namesrv.routes.sizes import Sizes

DEFAULT_BROKER_CHANNEL_EXPIRED_TIME_MS = 120_000
PERM_READ, PERM_WRITE = 4, 2
INTERNED_LIMIT = 65_536
PENDING_SHARE = 4
"""Once a quarter of a group's topics changed, its part of the digest is taken anew instead of being corrected."""


@dataclass(frozen=True, slots=True)
class RouteSettings:
    """Flags that change what is stored or answered (``NamesrvConfig.java``); part of the state, changed by UpdateSettings."""

    delete_topic_with_broker_registration: bool = False
    support_acting_master: bool = False
    order_message_enable: bool = False
    enable_topic_list: bool = True
    enable_all_topic_list: bool = True
    notify_min_broker_id_changed: bool = False
    return_order_topic_config_to_broker: bool = True


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


class BrokerGroup:
    """The brokers of one name and what they serve (``BrokerData.java`` and this name's part of topicQueueTable)."""

    __slots__ = (
        "broker_name",
        "cluster",
        "digest_pending",
        "digest_sum",
        "enable_acting_master",
        "generation",
        "members",
        "shared",
        "shown",
        "topics",
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
        self.generation = 0
        self.shown: tuple[int, object] | None = None
        """Generation and what routes showed of this group then (see queries.py): derived, no part of the state."""
        self.shared = False
        """A snapshot still reads ``topics``: copy before changing."""
        self.digest_sum: int | None = None
        """Sum over ``topics`` as of the last digest, None if it has to be taken anew (see digest.py)."""
        self.digest_pending: dict[str, QueueData | None] = {}
        """Topics changed since then, with the value that ``digest_sum`` still counts."""

    def own(self) -> dict[str, QueueData]:
        """``topics``, no longer shared with a snapshot."""
        if self.shared:
            self.topics = self.topics.copy()
            self.shared = False
        return self.topics

    def note(self, topic: str, old: QueueData | None) -> None:
        """Remember for the digest that ``topic`` is about to change from ``old``."""
        if self.digest_sum is not None:
            self.digest_pending.setdefault(topic, old)

    def member_at(self, broker_addr: str) -> Registration | None:
        """The member with this address; an address is a member at most once."""
        return next((member for member in self.members.values() if member.broker_addr == broker_addr), None)


class Tables:
    """All state, and the primitive changes that keep its parts consistent."""

    def __init__(self, settings: RouteSettings) -> None:
        self.settings = settings
        self.settings_revision = 0
        self.revision = 0
        self.next_revision = 1
        self.changed = False
        self.effects: list[Effect] = []
        self.ended: list[Registration] = []
        self.moved: list[tuple[int, Iterable[str]]] = []
        """Topics whose routes the command in progress moved: how many, and their names."""
        self.topic_queues: dict[str, dict[str, QueueData]] = {}
        self.topic_revisions: dict[str, int] = {}
        self.groups: dict[str, BrokerGroup] = {}
        self.cluster_names: dict[str, dict[str, None]] = {}
        self.live: dict[tuple[str, str], Registration] = {}
        self.mappings: dict[str, dict[str, TopicQueueMappingInfo]] = {}
        self.kv: dict[str, dict[str, str | None]] = {}
        self.kv_revision = 0
        """Revision of the last change of ``kv`` since this process holds it."""
        self.sizes = Sizes()
        """Of all that is held; every change below tells it."""
        self.kv_index = KVIndex(self.kv)
        self._interned: dict[QueueData, QueueData] = {}

    # -- the command in progress

    def begin(self) -> None:
        """Start a command: what it changes will carry ``next_revision``."""
        self.changed = False
        self.effects = []
        self.ended = []
        self.moved = []
        self.next_revision = self.revision + 1

    def end(self) -> bool:
        """Finish a command; True if it changed anything, and then the revision has moved.

        Whoever is registered nowhere any more is told to the outside; a life that went over into another is not.
        """
        if self.changed:
            self.revision = self.next_revision
        for gone in self.ended:
            if (gone.cluster_name, gone.broker_addr) not in self.live:
                self.effects.append(BrokerRemoved(gone.cluster_name, gone.broker_addr, gone.broker_name, gone.epoch))
        return self.changed

    def begin_anew(self, revision: int) -> None:
        """Stamp everything with ``revision``."""
        self.revision = self.settings_revision = self.kv_revision = revision
        self.kv_index.begin(revision)
        self.topic_revisions.update(dict.fromkeys(self.topic_revisions, revision))
        for group in self.groups.values():
            group.generation = revision
            for broker_id, member in group.members.items():
                anew = member._replace(epoch=revision)
                group.members[broker_id] = self.live[member.cluster_name, member.broker_addr] = anew

    # -- groups and clusters

    def touch(self, group: BrokerGroup) -> None:
        """Something that a registration of this group depends on changes."""
        group.generation = self.next_revision
        self.changed = True

    def touch_routes(self, group: BrokerGroup) -> None:
        """Something that every route through this group shows changes."""
        self.touch(group)
        self.moved.append((len(group.topics), group.topics))
        self.topic_revisions.update(dict.fromkeys(group.topics, self.next_revision))

    def touch_topics(self, topics: Collection[str]) -> None:
        """Routes of these topics change; those without a route entry have no revision."""
        known = self.topic_revisions
        self.moved.append((len(topics), topics))
        known.update((topic, self.next_revision) for topic in topics if topic in known)
        self.changed = True

    def list_in_cluster(self, cluster: str, group: BrokerGroup) -> None:
        """Name the group in clusterAddrTable."""
        if cluster not in self.cluster_names:
            self.cluster_names[cluster] = {}
            self.sizes.cluster(cluster, 1)
        names = self.cluster_names[cluster]
        if group.broker_name not in names:
            names[group.broker_name] = None
            self.sizes.cluster(group.broker_name, 1)
            self.touch(group)

    def unlist_from_cluster(self, cluster: str, broker_name: str) -> None:
        """Remove a name from a cluster, and the cluster if it was the last."""
        names = self.cluster_names.get(cluster)
        if names is not None and broker_name in names:
            del names[broker_name]
            self.sizes.cluster(broker_name, -1)
            self.changed = True
            if not names:
                del self.cluster_names[cluster]
                self.sizes.cluster(cluster, -1)

    def create_group(self, broker_name: str, cluster: str) -> BrokerGroup:
        """A new, empty group."""
        group = self.groups[broker_name] = BrokerGroup(broker_name, cluster)
        self.sizes.group(group, 1)
        self.touch(group)
        return group

    def describe_group(self, group: BrokerGroup, enable_acting_master: bool, zone_name: str | None) -> None:
        """Set what routes show of a group beside its members."""
        self.sizes.group(group, -1)
        group.enable_acting_master, group.zone_name = enable_acting_master, zone_name
        self.sizes.group(group, 1)
        self.touch_routes(group)

    def drop_group(self, group: BrokerGroup) -> None:
        """Remove a group without members, its queue entries and its static topic mappings."""
        self._unlink_topics(group, group.topics)
        del self.groups[group.broker_name]
        self.sizes.group(group, -1)
        gone = self.mappings.pop(group.broker_name, None)
        if gone:
            for topic, info in gone.items():
                self.sizes.mapping(topic, info, -1)
            self.touch_topics(gone)
        self.changed = True

    # -- registrations

    def put_registration(self, group: BrokerGroup, registration: Registration) -> None:
        """Store a registration as member and as live entry."""
        key = registration.cluster_name, registration.broker_addr
        if key in self.live:
            self.sizes.registration(self.live[key], -1)
        self.sizes.registration(registration, 1)
        self.live[key] = registration
        group.members[registration.broker_id] = registration
        self.touch(group)

    def end_registration(self, registration: Registration) -> BrokerGroup:
        """Remove a registration from both tables; the group stays, even empty."""
        self.ended.append(registration)
        group = self.groups[registration.broker_name]
        del self.live[registration.cluster_name, registration.broker_addr]
        del group.members[registration.broker_id]
        self.sizes.registration(registration, -1)
        self.touch_routes(group)
        return group

    # -- queue entries

    def interned(self, queue_data: QueueData) -> QueueData:
        """The one instance of this value."""
        return self._interned.setdefault(queue_data, queue_data)

    def put_topics(self, group: BrokerGroup, entries: Collection[tuple[str, QueueData]]) -> None:
        """Create or replace queue entries; only those that differ may be given."""
        self.moved.append((len(entries), map(itemgetter(0), entries)))
        name, topics, interned = group.broker_name, group.own(), self._interned
        self.sizes.topics(name, [topic for topic, _ in entries if topic not in topics], 1)
        revision, revisions, queues = self.next_revision, self.topic_revisions, self.topic_queues
        pending = group.digest_pending if group.digest_sum is not None else None
        for topic, given in entries:
            queue_data = interned.setdefault(given, given)
            if pending is not None:
                pending.setdefault(topic, topics.get(topic))
            topics[topic] = queue_data
            by_name = queues.get(topic)
            if by_name is None:
                queues[topic] = {name: queue_data}
            else:
                by_name[name] = queue_data
            revisions[topic] = revision
        if len(interned) > INTERNED_LIMIT:
            interned.clear()
        self._bound_pending(group)
        self.touch(group)

    def drop_topics(self, group: BrokerGroup, topics: Collection[str]) -> None:
        """Remove this group's queue entries of ``topics``, which it has; topics left without any vanish."""
        own = group.own()
        for topic in topics:
            group.note(topic, own.pop(topic))
        self._unlink_topics(group, topics)
        self._bound_pending(group)
        self.touch(group)

    def _unlink_topics(self, group: BrokerGroup, topics: Collection[str]) -> None:
        name, queues, revisions = group.broker_name, self.topic_queues, self.topic_revisions
        self.sizes.topics(name, topics, -1)
        self.moved.append((len(topics), topics))
        revisions.update(dict.fromkeys(topics, self.next_revision))
        for topic in topics:
            by_name = queues[topic]
            del by_name[name]
            if not by_name:
                del queues[topic], revisions[topic]

    @staticmethod
    def _bound_pending(group: BrokerGroup) -> None:
        if PENDING_SHARE * len(group.digest_pending) > len(group.topics):
            group.digest_sum = None
            group.digest_pending = {}

    # -- the rest

    def put_mappings(self, group: BrokerGroup, mappings: Mapping[str, TopicQueueMappingInfo]) -> None:
        """Store static topic mappings under the broker name inside each; ``group`` announced them."""
        changed: dict[str, dict[str, TopicQueueMappingInfo]] = {}
        for topic, info in mappings.items():
            held = self.mappings.get(info.bname, {}).get(topic)
            if held != info:
                changed.setdefault(info.bname, {})[topic] = info
                self.sizes.mapping(topic, info, 1)
                if held is not None:
                    self.sizes.mapping(topic, held, -1)
        for broker_name, infos in changed.items():
            self.mappings[broker_name] = self.mappings.get(broker_name, {}) | infos  # a snapshot may read the old one
            self.touch_topics(infos)
            self.touch(group)

    def change_settings(self, values: Mapping[str, bool]) -> None:
        """Set flags by name; names that do not exist are ignored, as code 318 ignores unknown keys."""
        known = {name: bool(value) for name, value in values.items() if name in RouteSettings.__dataclass_fields__}
        changed = replace(self.settings, **known)
        if changed != self.settings:
            self.settings = changed
            self.settings_revision = self.next_revision
            self.touch_topics(list(self.topic_revisions))

"""The tables of RouteInfoManager and the operations that change them.

RocketMQ has six tables (``RouteInfoManager.java``). Here, the data of each broker group is stored together::

    topicQueueTable             groups[brokerName].topics, and  topic_groups  topic -> groups
    brokerAddrTable             groups          brokerName -> BrokerGroup
    clusterAddrTable            cluster_names   cluster -> names, in the order in which they came
    brokerLiveTable             live            (cluster, address) -> Registration
    filterServerTable           filter_servers of each Registration
    topicQueueMappingInfoTable  mappings[bname], and  topic_mappings  topic -> TopicQueueMappingInfo of each name

A queue entry belongs to its group, and its group is reachable from its topic. Therefore adding a group's missing entries does not
visit the topics of other groups, and dropping a group does not either. Static topic mappings are arranged in the same way.

**Invariant: the cost of a command depends on what it names, not on the size of the state.** The cost of a command that concerns a
whole group (its addresses, its write permission, its removal) depends on the topics of this group. A change of a setting concerns
all topics. The topics are changed by operations on whole dictionaries, without a step of Python for each topic. For the digest
each table has a sum that every change updates (sums.py).

**Invariant: registrations and members correspond one to one.** ``group.members[id]`` is the very Registration that ``live`` holds
under its key. In Java these are two tables that can diverge: some live entries are never removed, and some addresses in groups
never expire. Here both are removed together.

Every change goes through a method of this class. The method records the revision in progress wherever a reader or a later command
may depend on the changed data: in ``topic_revisions`` for answers to route queries, and in ``BrokerGroup.generation`` for
registrations of the group. Topics, static topic mappings and KV entries are shared with a snapshot until it has written them
(shared_dict.py).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import compress, repeat
from operator import attrgetter, is_not, not_

from replicated_namesrv.model import QueueData, TopicQueueMappingInfo
from replicated_namesrv.routes.broker_group import BrokerGroup, Registration, TopicCount
from replicated_namesrv.routes.holders import Holders
from replicated_namesrv.routes.kv_index import KVIndex
from replicated_namesrv.routes.results import BrokerRemoved, Effect
from replicated_namesrv.routes.shared_dict import SharedDict
from replicated_namesrv.routes.sizes import Sizes
from replicated_namesrv.routes.sums import PRIME, entry_hash, entry_hashes, queue_hash, text_hash, topic_hashes

DEFAULT_BROKER_CHANNEL_EXPIRED_TIME_MS = 120_000
INTERNED_LIMIT = 65_536


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


LATER_SETTINGS: tuple[str, ...] = ()
"""Fields of ``RouteSettings`` that were added after version 0.1.0. Nodes of that version do not know them. So digests and
snapshots omit such a field while it has its default."""


def split_settings(settings: RouteSettings) -> tuple[dict[str, bool], dict[str, bool]]:
    """The fields of version 0.1.0, and the later fields whose value is not the default. Each by name, in the order of
    declaration."""
    released, later = {}, {}
    for field in fields(settings):
        value = getattr(settings, field.name)
        if field.name not in LATER_SETTINGS:
            released[field.name] = value
        elif value != field.default:
            later[field.name] = value
    return released, later


class Tables:
    """All state, and the primitive changes that keep its parts consistent."""

    def __init__(self, settings: RouteSettings, keeps_sums: bool = True) -> None:
        """``keeps_sums``: whether each change updates the sums over topics, or a digest recomputes those of changed groups."""
        self.settings = settings
        self.keeps_sums = keeps_sums
        self.settings_revision = 0
        self.revision = 0
        self.next_revision = 1
        self.changed = False
        self.compares_content = True
        """Whether a master's registration replaces queue settings that differ, although its data version is the stored one.
        False: the rule of version 0.1. Not part of the state."""
        self.effects: list[Effect] = []
        self.ended: list[Registration] = []
        self.moved: list[tuple[int, Iterable[str]]] = []
        """Topics whose routes the current command changed: their number and their names."""
        self._touched: dict[str, BrokerGroup] = {}
        """Groups whose topics all get the current revision at the end of the command."""
        self.topic_groups: Holders[BrokerGroup] = Holders(attrgetter("broker_name"))
        self.topic_revisions: dict[str, int] = {}
        """Revision of each topic: exactly the topics in ``topic_groups``, in their order of creation."""
        self.topic_names_changes = 0
        """How often a topic was added or removed. Not part of the state: the number shows whether copies of the names are still
        valid."""
        self.listing_changes = 0
        """How often a broker group, its members or the list of a cluster changed. Not part of the state."""
        self.revisions_sum = 0
        """Sum over ``topic_revisions``; not updated without ``keeps_sums``."""
        self.groups: dict[str, BrokerGroup] = {}
        self.groups_sum = 0
        """Sum over ``groups``, each with the hash with which it was last counted. The groups in ``uncounted`` have changed since
        then."""
        self.uncounted: dict[str, None] = {}
        self.cluster_names: dict[str, dict[str, None]] = {}
        self.clusters_of: dict[str, dict[str, None]] = {}
        """The inverse of ``cluster_names``: broker name -> the clusters that list it."""
        self.clusters_sum = 0
        self.live: dict[tuple[str, str], Registration] = {}
        self.live_sum = 0
        self.clusters_at: dict[str, tuple[str, ...]] = {}
        """For each address in ``live``: its clusters."""
        self.memos: dict[tuple[str, str], object] = {}
        """Memos of the server about entries of ``live``, dropped with them. Not part of the state."""
        self.mappings: dict[str, SharedDict[TopicQueueMappingInfo]] = {}
        self.mapping_sums: dict[str, int] = {}
        """Sum of the mappings of each broker name."""
        self.mappings_sum = 0
        """Sum over ``mapping_sums``."""
        self.topic_mappings: Holders[TopicQueueMappingInfo] = Holders(attrgetter("bname"))
        self.kv: dict[str, SharedDict[str | None]] = {}
        self.kv_revision = 0
        """Revision of the last change of ``kv`` in this process."""
        self.sizes = Sizes()
        """Sizes of everything stored. Each method that changes the state updates them."""
        self.kv_index = KVIndex(self.kv)
        self.kv_sum = 0
        """Sum over the namespaces and their entries."""
        self._interned: dict[QueueData, QueueData] = {}

    # -- the command in progress

    def begin(self, compares_content: bool = True) -> None:
        """Start a command: its changes get ``next_revision``."""
        self.compares_content = compares_content
        self.changed = False
        self.effects = []
        self.ended = []
        self.moved = []
        self._touched = {}
        self.next_revision = self.revision + 1

    def end(self) -> bool:
        """End a command. True if it changed anything; then the revision has increased.

        Adds the effect ``BrokerRemoved`` for each registration that ended, if its cluster and address are not registered again.
        """
        for name, group in self._touched.items():
            if self.groups.get(name) is group:
                self._stamp(group.topics.whole())
        if self.changed:
            self.revision = self.next_revision
        for gone in self.ended:
            if (gone.cluster_name, gone.broker_addr) not in self.live:
                self.effects.append(BrokerRemoved(gone.cluster_name, gone.broker_addr, gone.broker_name, gone.epoch))
        return self.changed

    def begin_anew(self, revision: int, is_stamped: bool = False) -> None:
        """Stamp everything with ``revision``. ``is_stamped``: topics, groups and registrations have it already."""
        self.revision = self.settings_revision = self.kv_revision = revision
        self.kv_index.begin(revision)
        if is_stamped:
            return
        self._stamp_all(revision)
        self.uncounted.update(dict.fromkeys(self.groups))
        for group in self.groups.values():
            group.generation = revision
            for broker_id, member in group.members.items():
                anew = member._replace(epoch=revision)
                group.members[broker_id] = self.live[member.cluster_name, member.broker_addr] = anew
        self.live_sum = sum(map(_live_hash, self.live.values())) % PRIME

    def count_groups(self, topics_max: int | None = None) -> bool:
        """Update ``groups_sum``. The cost depends on the number of groups that changed since the last call. Without
        ``keeps_sums`` it also depends on the topics of these groups. Stops after about ``topics_max`` topics. True if no group is
        left."""
        topics = 0
        while self.uncounted and (topics_max is None or topics < topics_max):
            group = self.groups[self.uncounted.popitem()[0]]
            topics += len(group.topics) if group.stale else 1
            counted, group.counted = group.counted, group.hash()
            self.groups_sum = (self.groups_sum + group.counted - counted) % PRIME
        return not self.uncounted

    # -- groups and clusters

    def touch(self, group: BrokerGroup) -> None:
        """Record a change of a value on which the outcome of a registration of this group depends."""
        group.generation = self.next_revision
        self.uncounted[group.broker_name] = None
        self.changed = True

    def touch_routes(self, group: BrokerGroup) -> None:
        """Record a change of a value that the routes of all topics of this group show."""
        self.touch(group)
        self.listing_changes += 1
        self.moved.append((len(group.topics), group.topics.whole()))
        self._touched[group.broker_name] = group

    def touch_topics(self, topics: Collection[str]) -> None:
        """Record a change of the routes of these topics. Topics without a route entry have no revision, so they are left out."""
        self.moved.append((len(topics), topics))
        self._stamp(list(filter(self.topic_revisions.__contains__, topics)))
        self.changed = True

    def _stamp(self, topics: Collection[str]) -> None:
        """Give these topics, each once, the current revision."""
        revisions = self.topic_revisions
        if self.keeps_sums:
            self.revisions_sum += self.next_revision * len(topics) - sum(map(revisions.get, topics, repeat(0)))
        count = len(revisions)
        revisions.update(zip(topics, repeat(self.next_revision), strict=False))  # takes half the time of dict.fromkeys
        self.topic_names_changes += len(revisions) != count

    def load_revisions(self, topics: Sequence[str], revisions: Sequence[int]) -> None:
        """Give these revisions to topics that have none; their queue entries follow."""
        self.topic_revisions.update(zip(topics, revisions, strict=True))
        self.revisions_sum += sum(revisions)

    def _stamp_all(self, revision: int) -> None:
        self.topic_revisions.update(zip(self.topic_revisions, repeat(revision), strict=False))
        self.revisions_sum = revision * len(self.topic_revisions)

    def list_in_cluster(self, cluster: str, group: BrokerGroup) -> None:
        """List the group in clusterAddrTable."""
        if group.broker_name not in self.cluster_names.get(cluster, {}):
            self.load_cluster(cluster, group.broker_name)
            self.touch(group)

    def load_cluster(self, cluster: str, broker_name: str) -> None:
        """Add ``broker_name``, which is not listed yet, to ``cluster``."""
        if cluster not in self.cluster_names:
            self.cluster_names[cluster] = {}
            self.sizes.cluster(cluster, 1)
        self.cluster_names[cluster][broker_name] = None
        self.listing_changes += 1
        self.sizes.cluster(broker_name, 1)
        self.clusters_of.setdefault(broker_name, {})[cluster] = None
        self.clusters_sum = (self.clusters_sum + entry_hash("cluster", cluster, broker_name)) % PRIME

    def unlist_from_cluster(self, cluster: str, broker_name: str) -> None:
        """Remove a name from a cluster, and the cluster too if this was its last name."""
        names = self.cluster_names.get(cluster)
        if names is None or broker_name not in names:
            return
        del names[broker_name], self.clusters_of[broker_name][cluster]
        self.listing_changes += 1
        self.sizes.cluster(broker_name, -1)
        if not names:
            del self.cluster_names[cluster]
            self.sizes.cluster(cluster, -1)
        if not self.clusters_of[broker_name]:
            del self.clusters_of[broker_name]
        self.clusters_sum = (self.clusters_sum - entry_hash("cluster", cluster, broker_name)) % PRIME
        self.changed = True

    def create_group(self, broker_name: str, cluster: str) -> BrokerGroup:
        """A new, empty group."""
        group = self.groups[broker_name] = BrokerGroup(broker_name, cluster, self.keeps_sums)
        self.sizes.group(group, 1)
        self.touch(group)
        self.listing_changes += 1
        return group

    def describe_group(self, group: BrokerGroup, enable_acting_master: bool, zone_name: str | None) -> None:
        """Set the values of a group that routes show besides its members."""
        self.sizes.group(group, -1)
        group.enable_acting_master, group.zone_name = enable_acting_master, zone_name
        self.sizes.group(group, 1)
        self.touch_routes(group)

    def override(self, group: BrokerGroup, is_overridden: bool) -> None:
        """Set ``BrokerGroup.is_overridden``. True: a request changed queue settings of the group. False: its master registered
        topics under a new data version."""
        if self.compares_content and group.is_overridden != is_overridden:
            group.is_overridden = is_overridden
            self.touch(group)

    def override_all(self) -> None:
        """Mark every group as overridden. No route changes."""
        unmarked = [group for group in self.groups.values() if not group.is_overridden]
        for group in unmarked:
            group.is_overridden = True
            self.uncounted[group.broker_name] = None

    def drop_group(self, group: BrokerGroup) -> None:
        """Remove a group without members, its queue entries and its static topic mappings."""
        self._unlink_topics(group, group.topics.whole())
        del self.groups[group.broker_name]
        self.listing_changes += 1
        self.sizes.group(group, -1)
        self.groups_sum = (self.groups_sum - group.counted) % PRIME
        self.uncounted.pop(group.broker_name, None)
        mappings = self.mappings.pop(group.broker_name, None)
        if mappings:
            gone = mappings.whole()
            self.sizes.mappings_gone(group.broker_name)
            self.mappings_sum = (self.mappings_sum - self.mapping_sums.pop(group.broker_name)) % PRIME
            self.topic_mappings.unlink(group.broker_name, gone, gone.values())
            self.touch_topics(gone)
        self.changed = True

    # -- registrations

    def put_registration(self, group: BrokerGroup, registration: Registration) -> None:
        """Store a registration as member and as live entry."""
        self.load_registration(group, registration)
        self.touch(group)

    def load_registration(self, group: BrokerGroup, registration: Registration) -> None:
        """``put_registration`` without marking a change."""
        key = registration.cluster_name, registration.broker_addr
        replaced = self.live.get(key)
        if replaced is not None:
            self.sizes.registration(replaced, -1)
        else:
            self.clusters_at[key[1]] = (*self.clusters_at.get(key[1], ()), key[0])
        self.sizes.registration(registration, 1)
        before = 0 if replaced is None else _live_hash(replaced)
        self.live_sum = (self.live_sum + _live_hash(registration) - before) % PRIME
        self.live[key] = group.members[registration.broker_id] = registration

    def end_registration(self, registration: Registration) -> BrokerGroup:
        """Remove a registration from both tables. The group stays, even if it is empty."""
        self.ended.append(registration)
        group = self.groups[registration.broker_name]
        key = registration.cluster_name, registration.broker_addr
        del self.live[key]
        clusters = tuple(cluster for cluster in self.clusters_at.pop(key[1]) if cluster != key[0])
        if clusters:
            self.clusters_at[key[1]] = clusters
        self.memos.pop(key, None)
        del group.members[registration.broker_id]
        self.live_sum = (self.live_sum - _live_hash(registration)) % PRIME
        self.sizes.registration(registration, -1)
        self.touch_routes(group)
        return group

    # -- queue entries

    def put_topics(self, group: BrokerGroup, entries: Mapping[str, QueueData]) -> None:
        """Create or replace queue entries. The caller passes only entries that differ from the stored ones."""
        topics = list(entries)
        self.moved.append((len(topics), topics))
        self.load_topics(group, topics, topic_hashes(topics) if group.is_summed else (), list(entries.values()))
        if group.broker_name not in self._touched:
            self._stamp(topics)
        self.touch(group)

    def load_topics(
        self, group: BrokerGroup, topics: Sequence[str], hashes: Sequence[int], queue_datas: Sequence[QueueData]
    ) -> None:
        """``put_topics`` without marking a change. ``hashes`` are those of ``topics``, or empty if sums are not kept."""
        if not topics:
            return
        stored, interned = group.topics.near(len(topics)), self._interned
        first = queue_datas[0]
        if queue_datas.count(first) == len(topics):  # the usual case: all are equal, and no step for each topic is needed
            values = [interned.setdefault(first, first)] * len(topics)
            entries = dict.fromkeys(topics, values[0])
        else:
            values = list(map(interned.setdefault, queue_datas, queue_datas))
            entries = dict(zip(topics, values, strict=True))
        if len(interned) > INTERNED_LIMIT:
            interned.clear()
        new: Collection[str] = topics
        if stored:
            before = list(map(stored.get, topics))
            is_known = list(map(is_not, before, repeat(None)))
            new = list(compress(topics, map(not_, is_known)))
            group.count(list(filter(None, before)), list(compress(hashes, is_known)) if new else hashes, -1)
        group.count(values, hashes, 1)
        group.topics.update(entries)
        if new:
            self.sizes.topics(group.broker_name, new, 1)
            self.topic_groups.link(dict.fromkeys(new, group))

    def change_queue_datas(self, group: BrokerGroup, after: Mapping[QueueData, QueueData]) -> None:
        """Replace queue settings of the group. ``after`` has the new settings by the old ones, and contains no settings both as a
        key and as a value."""
        own = group.topics.own()
        topics: Collection[str] = own
        if after.keys() >= group.kinds.keys():
            own.update(zip(own, list(map(after.__getitem__, own.values())), strict=True))
        else:
            is_changed = list(map(after.__contains__, own.values()))
            topics = list(compress(own, is_changed))
            own.update(zip(topics, map(after.__getitem__, compress(own.values(), is_changed)), strict=True))
        group.stale = not group.is_summed
        for old, new in after.items():
            kind = group.kinds.pop(old)
            into = group.kinds.setdefault(new, TopicCount())
            into.count, into.sum = into.count + kind.count, (into.sum + kind.sum) % PRIME
            group.topics_sum = (group.topics_sum + kind.sum * (queue_hash(new) - queue_hash(old))) % PRIME
        self.moved.append((len(topics), topics))
        self._stamp(topics)
        self.touch(group)

    def drop_topics(self, group: BrokerGroup, topics: Collection[str]) -> None:
        """Remove this group's queue entries of ``topics``, which it has. Topics without any entry left are removed."""
        if len(topics) == len(group.topics):
            group.clear()
        else:
            group.count(group.topics.remove(topics), topic_hashes(list(topics)) if group.is_summed else (), -1)
        self._unlink_topics(group, topics)
        self.touch(group)

    def drop_topic(self, groups: Collection[BrokerGroup], topic: str) -> None:
        """Remove the queue entries of one topic of these groups, which have it. Costs some steps for each group."""
        hashes = topic_hashes((topic,)) if self.keeps_sums else ()
        for group in groups:
            group.count(group.topics.remove((topic,)), hashes, -1)
            self.touch(group)
        names = [group.broker_name for group in groups]
        self.sizes.topic_gone(names, topic)
        self.moved.append((1, (topic,)))
        if self.topic_groups.leave(topic, names):
            self.revisions_sum -= self.topic_revisions.pop(topic)
            self.topic_names_changes += 1
        else:
            self._stamp((topic,))

    def _unlink_topics(self, group: BrokerGroup, topics: Collection[str]) -> None:
        self.sizes.topics(group.broker_name, topics, -1)
        self.moved.append((len(topics), topics))
        gone = self.topic_groups.unlink(group.broker_name, topics, repeat(group))
        # a topic that this command created may not have a revision yet
        self.revisions_sum -= sum(map(self.topic_revisions.pop, gone, repeat(0)))
        self.topic_names_changes += bool(gone)
        if not gone:
            self._stamp(topics)
        elif len(gone) < len(topics):
            self._stamp(list(filter(self.topic_revisions.__contains__, topics)))

    # -- static topic mappings

    def mappings_of(self, broker_name: str) -> Mapping[str, TopicQueueMappingInfo]:
        """The static topic mappings of a broker name, by topic."""
        return self.mappings.get(broker_name) or {}

    def put_mappings(self, group: BrokerGroup, mappings: Mapping[str, TopicQueueMappingInfo]) -> None:
        """Store static topic mappings under the broker name inside each; ``group`` announced them.

        Brokers announce only their own (``quotas.with_own_mappings``). Commands of earlier versions may contain mappings of other
        brokers. Each of these is stored under the broker name inside it, and is removed with the broker of that name.
        """
        changed: dict[str, dict[str, TopicQueueMappingInfo]] = {}
        for topic, info in mappings.items():
            if self.mappings_of(info.bname).get(topic) != info:
                changed.setdefault(info.bname, {})[topic] = info
        for broker_name, infos in changed.items():
            self.load_mappings(broker_name, infos)
            self.touch_topics(infos)
            self.touch(group)

    def load_mappings(self, broker_name: str, infos: Mapping[str, TopicQueueMappingInfo]) -> None:
        """``put_mappings`` for one name without marking a change."""
        held = self.mappings.get(broker_name)
        if held is None:
            held = self.mappings[broker_name] = SharedDict()
        replaced = list(filter(held.__contains__, infos))
        self.sizes.mappings(broker_name, replaced, list(map(held.__getitem__, replaced)), -1)
        self.sizes.mappings(broker_name, infos, infos.values(), 1)
        difference = sum(entry_hashes("mapping", infos, map(list, infos.values())))
        difference -= sum(entry_hashes("mapping", replaced, map(list, map(held.__getitem__, replaced))))
        held.update(infos)
        self.mapping_sums[broker_name] = (self.mapping_sums.get(broker_name, 0) + difference) % PRIME
        self.mappings_sum = (self.mappings_sum + difference) % PRIME
        self.topic_mappings.link(infos)

    # -- the rest

    def entries_of(self, namespace: str) -> Mapping[str, str | None]:
        """The KV entries of a namespace; empty if it does not exist."""
        return self.kv.get(namespace) or {}

    def put_kv(self, namespace: str, entries: Mapping[str, str | None]) -> None:
        """Store entries of the KV config, and their namespace if it is new."""
        self.put_namespace(namespace)
        held = self.kv[namespace]
        replaced = list(filter(held.__contains__, entries))
        for key in replaced:
            self.sizes.entry(namespace, key, held[key], -1)
        for key, value in entries.items():
            self.sizes.entry(namespace, key, value, 1)
        before = _kv_hashes(namespace, replaced, map(held.__getitem__, replaced))
        self.kv_sum = (self.kv_sum + _kv_hashes(namespace, entries, entries.values()) - before) % PRIME
        held.update(entries)

    def delete_kv(self, namespace: str, key: str) -> None:
        """Remove an existing entry. The namespace stays."""
        (value,) = self.kv[namespace].remove((key,))
        self.sizes.entry(namespace, key, value, -1)
        self.kv_sum = (self.kv_sum - _kv_hashes(namespace, (key,), (value,))) % PRIME

    def put_namespace(self, namespace: str) -> None:
        """Create a namespace."""
        if namespace not in self.kv:
            self.kv[namespace] = SharedDict()
            self.sizes.namespace(namespace)
            self.kv_sum = (self.kv_sum + entry_hash("namespace", namespace)) % PRIME

    def change_settings(self, values: Mapping[str, bool]) -> None:
        """Set flags by name. Unknown names are ignored, as in ``UPDATE_NAMESRV_CONFIG`` (318)."""
        known = {name: bool(value) for name, value in values.items() if name in RouteSettings.__dataclass_fields__}
        changed = replace(self.settings, **known)
        if changed != self.settings:
            self.settings = changed
            self.settings_revision = self.next_revision
            self.moved.append((len(self.topic_revisions), self.topic_revisions))
            self._stamp_all(self.next_revision)
            self.changed = True


def _live_hash(registration: Registration) -> int:
    *head, data_version, timeout_ms, ha_server_addr, filter_servers, since_ms = registration
    return entry_hash("live", *head, list(data_version), timeout_ms, ha_server_addr, filter_servers, since_ms)


def _kv_hashes(namespace: str, keys: Iterable[str], values: Iterable[str | None]) -> int:
    return sum(entry_hashes("kv", repeat(namespace), keys, map(text_hash, values)))

"""RouteInfoManager: the routes, brokers and KV config of a name service as a deterministic state machine.

``apply`` is the only way to change the state. Applying the same commands with the same times to equal states gives equal
results, effects, digests and snapshots on every machine: nothing here reads a clock, uses randomness or depends on hash order,
and no command is applied only in part. Semantics are RocketMQ 5.3.3's (``RouteInfoManager.java``); routes/DESIGN.md lists where
and why they differ.

A command that changes something increases ``revision`` by one, and a restore by more. ``topic_revisions[topic]`` is the revision
of the last change that may affect the topic's route. While it is the same, an encoded answer is valid. While
``group_generation(name)`` is the same, a registration that was a no-op is still a no-op.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from types import MappingProxyType
from typing import Any

from replicated_namesrv.model import ClusterInfo, QueueData, TopicList, TopicRouteData
from replicated_namesrv.routes import lookups, quotas
from replicated_namesrv.routes.broker_group import Registration
from replicated_namesrv.routes.commands import (
    ChangeWritePerm,
    Command,
    DeleteKVConfig,
    DeleteTopic,
    PutKVConfig,
    RegisterBroker,
    RegisterTopic,
    UnregisterBrokers,
    UpdateSettings,
)
from replicated_namesrv.routes.digest import DIGEST_VERSION, digest
from replicated_namesrv.routes.kv import delete_kv_config, put_kv_config
from replicated_namesrv.routes.kv_index import KVIndex
from replicated_namesrv.routes.quotas import Additions, Need, check_whole
from replicated_namesrv.routes.registration import register_broker, register_topic, result_of, unchanged_result
from replicated_namesrv.routes.removal import change_write_perm, delete_topic, unregister_brokers
from replicated_namesrv.routes.results import Applied, Result
from replicated_namesrv.routes.sizes import ENTRY_BYTES, Sizes, kv_bytes
from replicated_namesrv.routes.snapshot import SnapshotReader, snapshot
from replicated_namesrv.routes.tables import RouteSettings, Tables
from replicated_namesrv.steps import Steps, finish

__all__ = [
    "DIGEST_VERSION",
    "RouteInfoManager",
    "RouteSettings",
]

TOPICS_PER_LISTING = 8
"""Removing a broker name from the list of a cluster costs about as much as removing this many topics."""
TOPICS_PER_QUEUE_DATA, TOPICS_PER_HOLDER = 30, 4
"""Setting one topic for a broker name, and removing it from one, costs about as much as changing this many topics of one name."""


class RouteInfoManager:
    """The state and its changes. Not thread-safe; it is used in one event loop."""

    def __init__(self, settings: RouteSettings = RouteSettings(), keeps_sums: bool = True) -> None:  # noqa: B008 - frozen
        """``keeps_sums``: False if digests are rare. Then changes cost less, and the cost of a digest grows with the topics of
        all groups that changed since the last digest; ``advance_digest`` computes it in parts."""
        self._tables = Tables(settings, keeps_sums)
        self.compares_content = True
        """Whether registrations are applied by rule 11 of routes/DESIGN.md. False: by the rule of version 0.1, which may still
        run, so snapshots have its form. It is not part of the state, so the owner of a replicated state derives it from the
        log."""
        self._digested: tuple[int, bytes] | None = None
        """The last digest and the revision at which it was computed; None: there is none."""
        self.topic_revisions: Mapping[str, int] = self._tables.topic_revisions
        """Exactly the topics that have a route entry, with the revision of the last change that may affect their route. The
        same object for the life of the manager; read only."""

    # -- changes

    def apply(self, command: Command, time_ms: int) -> Applied:
        """Apply one command at ``time_ms`` (milliseconds since 1970, assigned by the component that orders commands). Never
        raises.
        """
        tables = self._tables
        tables.begin(self.compares_content)
        result = _HANDLERS[type(command)](tables, command, time_ms)
        if tables.end():
            result = replace(result, changed=True)
        return Applied(result, tuple(tables.effects))

    def override_all(self) -> None:
        """Treat all groups as overridden. Called when ``compares_content`` becomes true, or when the state comes from a backup:
        version 0.1 did not record which groups the requests 205, 327 and 217 had changed."""
        self._tables.override_all()
        self._digested = None

    def check_numbers(self) -> None:
        """Raise LimitError if there is more of anything than a cluster may have (quotas.py)."""
        check_whole(self._tables)

    def topics_concerned(self, command: Command) -> int:
        """Estimated cost of applying ``command``, as a number of topics. The topics in a registration do not count, because the
        length of the command limits them."""
        match command:
            case UpdateSettings():
                return len(self.topic_revisions)
            case ChangeWritePerm():
                return self.topic_count(command.broker_name)
            case RegisterBroker():
                held = self.registration(command.cluster_name, command.broker_addr)
                topics = self.topic_count(command.broker_name)
                if held is not None and held.broker_name != command.broker_name:  # the broker has another name now
                    topics += self.removal_topics(held.broker_name)
                return topics
            case UnregisterBrokers():
                return sum(map(self.removal_topics, {removal.broker_name for removal in command.removals}))
            case RegisterTopic():
                return TOPICS_PER_QUEUE_DATA * len(command.queue_datas)
            case DeleteTopic():
                return TOPICS_PER_HOLDER * self._tables.topic_groups.count(command.topic)
        return 0

    def removal_topics(self, broker_name: str) -> int:
        """Estimated cost of removing a broker of this name, as a number of topics."""
        listed = self._tables.clusters_of.get(broker_name, ())
        return self.topic_count(broker_name) + TOPICS_PER_LISTING * len(listed)

    def last_ended(self) -> list[Registration]:
        """Registrations that the last command ended without a replacement."""
        tables = self._tables
        return [gone for gone in tables.ended if (gone.cluster_name, gone.broker_addr) not in tables.live]

    def last_topics(self, count_max: int) -> tuple[str, ...] | None:
        """Topics whose routes the last command changed, each once, in no order. None if they are more than ``count_max``. Call
        it once per command."""
        moved = self._tables.moved
        if sum(count for count, _ in moved) > 4 * count_max:  # the sum may count some topics more than once
            return None
        parts = [names for count, names in moved if count]
        topics = tuple(parts[0] if len(parts) == 1 else set(chain.from_iterable(parts)))
        return topics if len(topics) <= count_max else None

    # -- the whole

    def digest(self) -> bytes:
        """16 bytes that are equal for equal states. Different states have different digests, except that some differences between
        revisions of topics do not show (``digest.py``). The cost depends on the groups that changed since the last digest.

        Comparable between processes of the same ``DIGEST_VERSION``."""
        tables = self._tables
        if self._digested is None or self._digested[0] != tables.revision:
            self._digested = tables.revision, digest(tables)
        return self._digested[1]

    def advance_digest(self, topics_max: int) -> bool:
        """Do a part of the work for ``digest``: about ``topics_max`` topics, or one group if it has more. True if it is
        complete."""
        return self._tables.count_groups(topics_max)

    def snapshot(self) -> Iterator[bytes]:
        """The state at the time of this call, as JSON lines. Each line takes a few milliseconds. The state may change while the
        lines are consumed."""
        return snapshot(self._tables, is_new=self.compares_content)

    def restore(self, chunks: Iterable[bytes]) -> None:
        """Become the state of a snapshot, whose bytes may be cut anywhere. Raises RouteFormatError; the state is then
        unchanged.
        """
        reader = SnapshotReader()
        for chunk in chunks:
            reader.feed(chunk)
        self.adopt(reader)

    def adopt(self, reader: SnapshotReader) -> None:
        """Become the state that ``reader`` received in parts. Raises RouteFormatError; the state is then unchanged."""
        tables = reader.finish()
        revisions, restored = self._tables.topic_revisions, tables.topic_revisions
        revisions.clear()
        revisions.update(restored)
        tables.topic_revisions = revisions
        tables.topic_names_changes = self._tables.topic_names_changes + 1
        tables.listing_changes = self._tables.listing_changes + 1
        tables.kv_index.begin(tables.revision)
        self._tables = tables
        self._digested = None

    def begin_anew(self, revision: int, is_stamped: bool = False) -> None:
        """Treat everything as changed at ``revision``, and every registration as begun at it. This invalidates everything cached
        at earlier revisions, also by other processes. ``is_stamped``: the reader of the state has already given everything this
        revision (``SnapshotReader``).

        The version that wrote the backup may not have recorded overrides. Therefore every group counts as overridden."""
        self._tables.begin_anew(revision, is_stamped)
        if self.compares_content:
            self.override_all()

    # -- versions

    @property
    def revision(self) -> int:
        """Number of the state. A command that changes it adds one, a restore more."""
        return self._tables.revision

    @property
    def sizes(self) -> Sizes:
        """The size of the state in bytes; read only. It depends on the state only: equal states have equal sizes."""
        return self._tables.sizes

    @property
    def settings(self) -> RouteSettings:
        """Flags in force."""
        return self._tables.settings

    def group_generation(self, broker_name: str) -> int:
        """A number that changes whenever the outcome of registering a member of this group may change. 0: there is no such group.

        Let registration R be applied at generation g and change nothing. While the generation is g, applying R again changes
        nothing and gives an equal result. Argument: the branches and comparisons of R depend on

        1. the group: its flag, zone, members and their live entries, queue entries; each changes only in methods of Tables that
           stamp ``generation`` with the revision in progress. A group that was dropped and created again starts from a later
           revision, so its generation differs from every earlier one;
        2. whether the cluster lists the name: adding stamps the group, and removal happens only together with the group;
        3. the live entry of R's own cluster and address. If R was accepted, it is a member of this group, and so part of 1. If
           R was refused, this entry is not read before the refusal, which depends on 1 and on R alone;
        4. static topic mappings. An accepted R with another data version than the live entry, or with a free id, would have
           changed the live entry. R changed nothing, so neither is the case. Then mappings are compared only if R is of a master.
           The mappings of a name change only with a registration of this name, which stamps the group, or with the removal of the
           group;
        5. settings, whose revision is part of the value.
        """
        group = self._tables.groups.get(broker_name)
        return 0 if group is None else max(group.generation, self._tables.settings_revision)

    def memo(self, cluster_name: str, broker_addr: str) -> object | None:
        """The object that ``put_memo`` stored for this registered broker. None: there is none."""
        return self._tables.memos.get((cluster_name, broker_addr))

    def put_memo(self, registration: Registration, memo: object) -> None:
        """Store an object of the server for this registration until the registration ends. The object is not part of the state,
        and a restored state has none."""
        self._tables.memos[registration.cluster_name, registration.broker_addr] = memo

    # -- queries

    def route(self, topic: str) -> TopicRouteData | None:
        """The route of a topic (``GET_ROUTEINFO_BY_TOPIC``, 105). None: no broker serves the topic."""
        return lookups.pickup_topic_route_data(self._tables, topic)

    def cluster_info(self) -> ClusterInfo:
        """All groups and clusters (``GET_BROKER_CLUSTER_INFO``, 106)."""
        return lookups.cluster_info(self._tables)

    @property
    def listing_changes(self) -> int:
        """A number that changes whenever ``cluster_info`` does. Other nodes may have other numbers."""
        return self._tables.listing_changes

    def member_group(self, broker_name: str) -> tuple[tuple[int, str], ...]:
        """Pairs (brokerId, address) of a group (``GET_BROKER_MEMBER_GROUP``, 901). Empty for an unknown name."""
        group = self._tables.groups.get(broker_name)
        return () if group is None else lookups.broker_data(group).broker_addrs

    def topic_queues(self, topic: str) -> Mapping[str, QueueData] | None:
        """Queue entries of a topic by brokerName; None if no broker serves it."""
        groups = self._tables.topic_groups.of(topic)
        return {group.broker_name: group.topics[topic] for group in groups} if groups else None

    def topic_count(self, broker_name: str) -> int:
        """Topics that have a queue entry of this broker name."""
        group = self._tables.groups.get(broker_name)
        return 0 if group is None else len(group.topics)

    def all_topics(self) -> list[str]:
        """All topics, in order of creation (``GET_ALL_TOPIC_LIST_FROM_NAMESERVER``, 206)."""
        return list(self._tables.topic_revisions)

    @property
    def topic_names_changes(self) -> int:
        """A number that changes whenever ``all_topics`` does. Other nodes may have other numbers."""
        return self._tables.topic_names_changes

    def topics_by_cluster(self, cluster: str) -> list[str]:
        """The topics of all broker names that are listed in a cluster (``GET_TOPICS_BY_CLUSTER``, 224)."""
        return finish(self.topics_by_cluster_steps(cluster))

    def topics_by_cluster_steps(self, cluster: str) -> Steps[list[str]]:
        """``topics_by_cluster`` in steps, between which the state may change."""
        return lookups.topics_by_cluster(self._tables, cluster)

    def system_topics(self) -> TopicList:
        """All cluster and broker names, and the address of a broker (``GET_SYSTEM_TOPIC_LIST_FROM_NS``, 304)."""
        return lookups.system_topics(self._tables)

    def unit_topics(self) -> list[str]:
        """The topics with the unit flag (``GET_UNIT_TOPIC_LIST``, 311)."""
        return finish(self.unit_topics_steps())

    def unit_topics_steps(self) -> Steps[list[str]]:
        """``unit_topics`` in steps, between which the state may change."""
        return lookups.unit_topics(self._tables)

    def has_unit_sub_topics(self) -> list[str]:
        """The topics with the flag of unit subscriptions (``GET_HAS_UNIT_SUB_TOPIC_LIST``, 312)."""
        return finish(self.has_unit_sub_topics_steps())

    def has_unit_sub_topics_steps(self) -> Steps[list[str]]:
        """``has_unit_sub_topics`` in steps, between which the state may change."""
        return lookups.has_unit_sub_topics(self._tables)

    def has_unit_sub_un_unit_topics(self) -> list[str]:
        """The topics with the flag of unit subscriptions and without the unit flag (``GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST``,
        313)."""
        return finish(self.has_unit_sub_un_unit_topics_steps())

    def has_unit_sub_un_unit_topics_steps(self) -> Steps[list[str]]:
        """``has_unit_sub_un_unit_topics`` in steps, between which the state may change."""
        return lookups.has_unit_sub_un_unit_topics(self._tables)

    def kv_get(self, namespace: str, key: str) -> str | None:
        """The value of a key (``GET_KV_CONFIG``, 101). None: there is none."""
        return self._tables.entries_of(namespace).get(key)

    def kv_view(self, namespace: str) -> Mapping[str, str | None] | None:
        """A namespace as a view for reading only (``GET_KVLIST_BY_NAMESPACE``, 219); None if it never existed."""
        entries = self._tables.kv.get(namespace)
        return None if entries is None else MappingProxyType(entries)

    def kv_text_bytes(self, namespace: str) -> int:
        """Bytes of the keys and values of a namespace."""
        entries = self._tables.entries_of(namespace)
        return self.sizes.namespaces.get(namespace, 0) - kv_bytes(namespace, None) - ENTRY_BYTES * len(entries)

    def kv_revision(self, namespace: str) -> int:
        """Changes whenever the namespace changes. Values derived at the same revision are still valid."""
        return self._tables.kv_index.revision(namespace)

    def advance_kv_index(self, entries_max: int) -> bool:
        """Do a part of the work for ``kv_index``, about ``entries_max`` entries. True if it is complete."""
        return self._tables.kv_index.advance(entries_max)

    @property
    def kv_index(self) -> KVIndex:
        """The entries of the KV config in order. ``advance_kv_index`` must have returned True in the same turn of the loop."""
        return self._tables.kv_index

    def kv_table(self) -> Mapping[str, Mapping[str, str | None]]:
        """The whole KV config, as read-only views. Use them before the next change of the KV config."""
        return {namespace: MappingProxyType(entries) for namespace, entries in self._tables.kv.items()}

    def registration(self, cluster_name: str, broker_addr: str) -> Registration | None:
        """The live entry of one broker."""
        return self._tables.live.get((cluster_name, broker_addr))

    def member(self, broker_name: str, broker_id: int) -> Registration | None:
        """The broker that has this name and id."""
        group = self._tables.groups.get(broker_name)
        return None if group is None else group.members.get(broker_id)

    def member_at(self, broker_name: str, broker_addr: str) -> Registration | None:
        """The broker that has this name and address, in any cluster."""
        group = self._tables.groups.get(broker_name)
        return None if group is None else group.member_at(broker_addr)

    def registrations_at(self, broker_addr: str) -> list[Registration]:
        """The live entries of this address, in all clusters."""
        tables = self._tables
        return [tables.live[cluster, broker_addr] for cluster in tables.clusters_at.get(broker_addr, ())]

    def is_registered(self, command: RegisterBroker) -> bool:
        """Whether the broker is registered under this name and id, with any content."""
        held = self._tables.live.get((command.cluster_name, command.broker_addr))
        return held is not None and (held.broker_name, held.broker_id) == (command.broker_name, command.broker_id)

    def unchanged_result(self, command: RegisterBroker) -> Result | None:
        """The answer of applying ``command`` now if it would be a no-op without effects; else None. An answer without an epoch is
        a refusal."""
        self._tables.compares_content = self.compares_content
        return unchanged_result(self._tables, command)

    def needs(self, command: Command) -> list[Need | Additions]:
        """The bytes and objects that ``command`` would add to each bound. ``apply`` does not check them. Raises LimitError for a
        string in it that is too long."""
        new = quotas.new_topics(self._tables, command)
        quotas.check_texts(self._tables, command, new)
        return quotas.needs(self._tables, command, new)

    def registrations(self) -> list[Registration]:
        """All live entries, in the order in which they began."""
        return list(self._tables.live.values())

    def registrations_by_broker(self) -> dict[tuple[str, str], Registration]:
        """All live entries, by cluster and address. A copy, which takes a single step."""
        return dict(self._tables.live)

    def contents(self) -> dict[str, int]:
        """The number of brokers, topics and KV entries, without those that are 0."""
        found = {
            "brokers": len(self._tables.live),
            "topics": len(self._tables.topic_revisions),
            "KV entries": sum(map(len, self._tables.kv.values())),
        }
        return {name: count for name, count in found.items() if count}

    @property
    def broker_count(self) -> int:
        """Number of live entries."""
        return len(self._tables.live)

    def renewal_result(self, cluster_name: str, broker_addr: str) -> Result | None:
        """The answer to an unchanged registration; None if the broker is not registered."""
        registration = self._tables.live.get((cluster_name, broker_addr))
        return None if registration is None else result_of(self._tables, registration)


def _update_settings(tables: Tables, command: UpdateSettings, time_ms: int) -> Result:
    tables.change_settings(command.values)
    return Result()


_HANDLERS: dict[type, Callable[[Tables, Any, int], Result]] = {
    RegisterBroker: register_broker,
    UnregisterBrokers: lambda tables, command, time_ms: unregister_brokers(tables, command),
    RegisterTopic: lambda tables, command, time_ms: register_topic(tables, command),
    DeleteTopic: lambda tables, command, time_ms: delete_topic(tables, command),
    ChangeWritePerm: lambda tables, command, time_ms: change_write_perm(tables, command),
    PutKVConfig: lambda tables, command, time_ms: put_kv_config(tables, command),
    DeleteKVConfig: lambda tables, command, time_ms: delete_kv_config(tables, command),
    UpdateSettings: _update_settings,
}

"""Limits on the state: the length of each text, the number of bytes, and the number of objects of each kind.

CP nodes check them before a command is proposed, AP nodes before it is applied. ``apply`` itself never checks them: a command
in the log is applied even if it exceeds the present limits. So nodes and versions may have different limits and still get the
same state. For the same reason a state may exceed its limits, if an earlier version or another setting allowed it. Commands that
add nothing are still accepted then: brokers stay registered, and everything can be removed.

``Quotas`` is the only place that grants bytes and numbers of objects. Each command has *needs*: for each bound, the amount in use
and the amount that the command adds. Grants of commands that are not applied yet count as used. Limits outside the state,
such as free disk space, are checked in the same way.

Numbers of objects are limited so that the work of a command is bounded by its size and the topics that it concerns. For objects,
the needs contain the names of the new objects, not only their number. So an object counts once, even if several commands in
progress add it: brokers that return at the same time often have the same topics. Each node knows only its own grants. So the
state can reach the bound times the number of nodes that admit commands. These are all members, observers included; usually there
are at most ``RESTORED_FACTOR``."""

from collections import Counter
from collections.abc import Callable, Collection, Container, Hashable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from replicated_namesrv.errors import LimitError
from replicated_namesrv.model import MASTER_ID, PERM_WRITE, TOPICS_MAX, QueueData
from replicated_namesrv.routes import sizes
from replicated_namesrv.routes.broker_group import BrokerGroup, Registration
from replicated_namesrv.routes.commands import (
    ChangeWritePerm,
    Command,
    DeleteKVConfig,
    DeleteTopic,
    PutKVConfig,
    RegisterBroker,
    RegisterTopic,
    UnregisterBrokers,
)
from replicated_namesrv.routes.sizes import Sizes, text_bytes
from replicated_namesrv.routes.tables import Tables

NAME_BYTES_MAX = 1_024
"""Maximum length of cluster, broker and zone names, addresses, topics, namespaces and keys. Host names are at most 253 bytes
long, RocketMQ's topics 127."""
VALUE_BYTES_MAX = 1 << 20
SETTING_CHARACTERS_MAX = 64 << 10
"""Maximum length of the value of one setting, also over HTTP. ``UPDATE_NAMESRV_CONFIG`` (318) cannot carry more."""
SHOWN_CHARACTERS = 60

STATE, KV, NAMESPACE, BROKER = "maxStateBytes", "maxKvBytes", "maxKvNamespaceBytes", "maxBrokerBytes"
"""Limits on bytes, named by their settings."""
ORDER_TOPICS = "orderTopicConfigBytes"
"""Limit on the encoded bytes of the namespace ORDER_TOPIC_CONFIG. It is not a setting."""
ORDER_TOPICS_BYTES_MAX = 15 << 20
"""Maximum value of this limit: every answer to a registration contains the namespace, and RocketMQ reads frames of up to 16
MiB."""
COMMAND = "commandBytes"
"""Limit on the encoded bytes of one command. It is not a setting."""
COMMAND_BYTES_MAX = 16 << 20
"""Value of this limit, and maximum length of the commands that Raft accepts. The command of a KV entry with the longest value has
6 MiB. Only registrations can be longer."""
DISK = "diskReserveBytes"
"""Limit on the bytes that commands add to the disk: the free space, less ``diskReserveBytes`` and a copy of the state."""


class Need(NamedTuple):
    """The bytes that a command adds to one bound."""

    bound: str
    of: str
    """The namespace or broker name; empty if there is only one bound of this kind."""
    used: int
    more: int


class ObjectKind(NamedTuple):
    """Objects of which there is a maximum number."""

    bound: str
    """Name of the bound in metrics."""
    what: str
    remedy: str
    owner: str = "brokerName"
    """Kind of the name in ``Additions.of``."""


class Additions(NamedTuple):
    """The objects that a command adds to one table."""

    kind: ObjectKind
    of: str
    """The broker name or namespace; empty if there is only one table of this kind."""
    kept: int
    """Number of objects in the table that the command leaves there."""
    table: Container[Hashable]
    added: Collection[Hashable]
    """The objects. Some of them may be in the table already. They are included, because they may be removed from the table before
    the command is applied. Queue settings may occur more than once, because they are compared only if it matters: comparing
    those of 1,000 topics costs as much as all other checks of a registration."""
    most: int

    def distinct(self) -> "Additions":
        """The same with each object once."""
        return self if self.kind is not QUEUE_SETTINGS else self._replace(added=set(self.added))


def new_topics(tables: Tables, command: Command) -> Collection[str]:
    """The topics in a registration that the broker's group does not have yet."""
    if not isinstance(command, RegisterBroker) or not command.topics:
        return ()
    group = tables.groups.get(command.broker_name)
    if group is None:
        return command.topics
    known = group.topics.near(len(command.topics))
    if command.topics.keys() <= known.keys():
        return ()
    return [topic for topic in command.topics if topic not in known]


def check_texts(tables: Tables, command: Command, new: Collection[str]) -> None:
    """Raise LimitError for the first text that is too long. A removal may contain every stored text, even a longer one. A
    registration may likewise contain long topics that its broker name already has. ``new``: ``new_topics``."""
    for field, text in _texts(tables, command, new):
        limit = VALUE_BYTES_MAX if field == "value" else NAME_BYTES_MAX
        if len(text) * 4 > limit and text_bytes(text) > limit:
            raise _too_long(field, text, limit)


def _too_long(field: str, text: str, limit: int) -> LimitError:
    begins = f"{text[:SHOWN_CHARACTERS]}…"
    return LimitError(field, f"{field} has {text_bytes(text)} bytes, at most {limit} are allowed; it begins with {begins!r}")


def _texts(tables: Tables, command: Command, new: Collection[str]) -> Iterator[tuple[str, str]]:
    """Every text of a command, by the name of its field."""
    match command:
        case RegisterBroker():
            yield from _registration_texts(command, new)
        case PutKVConfig():
            yield "namespace", command.namespace
            yield "key", command.key
            yield "value", command.value or ""
        case DeleteKVConfig():
            if command.key not in tables.entries_of(command.namespace):
                yield "namespace", command.namespace
                yield "key", command.key
        case RegisterTopic():
            yield "topic", command.topic
            for broker_name, _ in command.queue_datas:
                if broker_name not in tables.groups:
                    yield "brokerName", broker_name
        case DeleteTopic():
            if command.topic not in tables.topic_revisions:
                yield "topic", command.topic
            if command.cluster_name and command.cluster_name not in tables.cluster_names:
                yield "clusterName", command.cluster_name
        case ChangeWritePerm():
            if command.broker_name not in tables.groups:
                yield "brokerName", command.broker_name
        case UnregisterBrokers():
            for removal in command.removals:
                if (removal.cluster_name, removal.broker_addr) not in tables.live:
                    yield "clusterName", removal.cluster_name
                    yield "brokerAddr", removal.broker_addr
                if removal.broker_name not in tables.groups:
                    yield "brokerName", removal.broker_name


def _registration_texts(command: RegisterBroker, new: Collection[str]) -> Iterator[tuple[str, str]]:
    yield "clusterName", command.cluster_name
    yield "brokerName", command.broker_name
    yield "brokerAddr", command.broker_addr
    yield "haServerAddr", command.ha_server_addr
    yield "zoneName", command.zone_name or ""
    for server in command.filter_servers or ():
        yield "filterServerList", server
    if new and max(map(len, new)) * 4 > NAME_BYTES_MAX:
        for topic in new:
            yield "topic", topic
    for topic, info in command.topic_queue_mapping_infos.items():
        yield "topic", topic
        yield "bname", info.bname
        yield "scope", info.scope
        yield "topic", info.topic


def byte_needs(tables: Tables, command: Command, new: Collection[str]) -> list[Need]:
    """Upper bounds of what applying ``command`` now would add, if it adds anything. ``new``: ``new_topics``."""
    match command:
        case PutKVConfig():
            return _kv_needs(tables, command)
        case RegisterBroker():
            more, listed = _registration_growth(tables, command, new)
            return _broker_needs(tables, {command.broker_name: more}, listed)
        case RegisterTopic():
            size, topic = sizes.names_bytes((command.topic,)), command.topic
            known = {name for name, _ in command.queue_datas if name in tables.groups and topic in tables.groups[name].topics}
            # names without a group count, too: a request in progress may create the group
            return _broker_needs(tables, {name: size for name, _ in command.queue_datas if name not in known}, 0)
    return []


def _kv_needs(tables: Tables, command: PutKVConfig) -> list[Need]:
    entries = tables.kv.get(command.namespace)
    more = sizes.kv_bytes(command.key, command.value)
    if entries is None:
        more += sizes.kv_bytes(command.namespace, None)
    elif command.key in entries:
        more -= sizes.kv_bytes(command.key, entries[command.key])
    held = tables.sizes
    uses = ((NAMESPACE, command.namespace, held.namespaces.get(command.namespace, 0)), (KV, "", held.kv), (STATE, "", held.total))
    found = [Need(*use, more) for use in uses] if more > 0 else []
    if command.namespace == sizes.ORDER_TOPIC_CONFIG:
        more = sizes.encoded_bytes(command.key, command.value)
        if entries is not None and command.key in entries:
            more -= sizes.encoded_bytes(command.key, entries[command.key])
        found += [Need(ORDER_TOPICS, "", held.order_topics, more)] if more > 0 else []
    return found


def _broker_needs(tables: Tables, growth: Mapping[str, int], listed: int) -> list[Need]:
    held = tables.sizes
    found = [Need(BROKER, name, held.brokers.get(name, 0), more) for name, more in growth.items() if more > 0]
    more = sum(growth.values()) + listed
    return [*found, Need(STATE, "", held.total, more)] if more > 0 else found


def _registration_growth(tables: Tables, command: RegisterBroker, new: Collection[str]) -> tuple[int, int]:
    """Upper bound of what a registration adds to its broker name and to the clusters' lists. A part of it may be refused, so
    bytes that one part would free are not counted as room for another part."""
    group = tables.groups.get(command.broker_name)
    more = 0
    if group is None:
        more = sizes.group_bytes(command.broker_name, command.cluster_name, command.zone_name)
    elif group.zone_name != command.zone_name:
        more = max(0, sizes.text_bytes(command.zone_name) - sizes.text_bytes(group.zone_name))
    more += max(0, _member_growth(tables, command, group))
    takes = _may_take_topics(command)
    if new and takes:
        topics, known = command.topics or {}, {} if group is None else group.topics
        drops = tables.settings.delete_topic_with_broker_registration and not command.topic_queue_mapping_infos
        freed = sizes.names_bytes([topic for topic in known if topic not in topics]) if drops else 0
        more += max(0, sizes.names_bytes(new) - freed)
    for topic, info in command.topic_queue_mapping_infos.items() if takes else ():
        more += max(0, sizes.mapping_bytes(topic, info) - sizes.mapping_bytes(topic, tables.mappings_of(info.bname).get(topic)))
    names = tables.cluster_names.get(command.cluster_name)
    listed = 0 if names is not None else sizes.names_bytes((command.cluster_name,))
    if names is None or command.broker_name not in names:
        listed += sizes.names_bytes((command.broker_name,))
    return more, listed


def _may_take_topics(command: RegisterBroker) -> bool:
    """Whether the topics of this broker may be stored. The topics of a master are stored. The topics of a slave are stored only
    if the slave sends ``enableActingMaster`` and has the least id of its group when the command is applied. The second condition
    is not known yet, so it is not checked here."""
    return command.broker_id == MASTER_ID or command.enable_acting_master is not None


def _member_growth(tables: Tables, command: RegisterBroker, group: BrokerGroup | None) -> int:
    """Bytes of the registered broker, less those of the registrations that it replaces."""
    held = tables.live.get((command.cluster_name, command.broker_addr))
    if (
        held is not None
        and held.broker_name == command.broker_name
        and held.ha_server_addr == command.ha_server_addr
        and command.filter_servers in (None, held.filter_servers)
    ):
        return 0  # the usual case: it replaces itself, with the same texts
    replaced = {held} if held is not None and held.broker_name == command.broker_name else set()
    if group is not None and command.broker_id in group.members:
        replaced.add(group.members[command.broker_id])
    servers = command.filter_servers
    if servers is None:
        servers = held.filter_servers if held is not None else ()
    names = command.cluster_name, command.broker_addr, command.broker_name
    registration = Registration(*names, command.broker_id, 0, command.data_version, 0, command.ha_server_addr, servers, 0)
    return sizes.registration_bytes(registration) - sum(map(sizes.registration_bytes, replaced))


LOGGED_BYTES_FREE = 64 << 10
"""A value of this length may replace another one while the disk is nearly full: compaction keeps up with such writes."""


def logged_bytes(command: Command, growth: int) -> int:
    """Bytes that a command adds to a disk with a log: the bytes that it adds to the state, or the bytes of the value that it
    writes if these are more."""
    written = len(command.value or "") - LOGGED_BYTES_FREE if isinstance(command, PutKVConfig) else 0
    return max(growth, written)


class PendingNeeds:
    """The needs granted to commands that are not applied yet."""

    def __init__(self) -> None:
        self.bytes: dict[tuple[str, str], int] = {}
        self.objects: dict[tuple[str, str], Counter[Hashable]] = {}
        """For each bound and broker name: the objects, each with the number of commands that add it."""

    def add(self, need: Need | Additions) -> None:
        """Count one need of a command."""
        if isinstance(need, Need):
            self.bytes[need.bound, need.of] = self.bytes.get((need.bound, need.of), 0) + need.more
        else:
            self.objects.setdefault((need.kind.bound, need.of), Counter()).update(iter(need.added))

    def remove(self, need: Need | Additions) -> None:
        """Undo ``add``."""
        if isinstance(need, Need):
            place = need.bound, need.of
            self.bytes[place] -= need.more
            if not self.bytes[place]:
                del self.bytes[place]
            return
        place = need.kind.bound, need.of
        counted = self.objects[place]
        for key in need.added:
            counted[key] -= 1
            if not counted[key]:
                del counted[key]
        if not counted:
            del self.objects[place]


class Grant:
    """Room for one command. It counts as used from the first ``hold`` until each ``hold`` has had its ``release``."""

    def __init__(self, pending: PendingNeeds, needs: list[Need | Additions]) -> None:
        self._pending, self._needs = pending, needs
        self._holders = 0

    def hold(self) -> None:
        """Count the room as used from now on. Call it once for each attempt that may apply the command."""
        if not self._holders:
            self._needs = [need.distinct() if isinstance(need, Additions) else need for need in self._needs]
            for need in self._needs:
                self._pending.add(need)
        self._holders += 1

    def release(self) -> None:
        """End the attempt of one ``hold``. After the last one, the room no longer counts as used."""
        self._holders -= 1
        if not self._holders:
            for need in self._needs:
                self._pending.remove(need)


class Quotas:
    """Decides for each command whether there is room for it."""

    def __init__(self, limits: Mapping[str, Callable[[], int]], check: Callable[[Command], Iterable[Need | Additions]]) -> None:
        """``limits``: bytes by bound. ``check``: the needs of a command; it raises LimitError for a text that is too long."""
        self.limits: dict[str, Callable[[], int]] = {ORDER_TOPICS: lambda: ORDER_TOPICS_BYTES_MAX, **limits}
        self.sources = [check]
        self.refused: Counter[str] = Counter()
        """Number of refused commands, by limit."""
        self._pending = PendingNeeds()
        self._disk_bytes: Callable[[Command, int], int] = lambda command, growth: 0

    def keep_disk_reserve(self, room: Callable[[], int], disk_bytes: Callable[[Command, int], int]) -> None:
        """Refuse commands that add more bytes to this node's disk than ``room()``. ``disk_bytes(command, growth)``: the bytes
        that a command adds to the disk if it adds ``growth`` bytes to the state."""
        self.limits[DISK] = room
        self._disk_bytes = disk_bytes

    def check(self, command: Command) -> Grant:
        """Room for ``command``, not held yet. Raises LimitError if a string is too long or there is no room."""
        try:
            found = [need for source in self.sources for need in source(command)]
            growth = sum(need.more for need in found if isinstance(need, Need) and need.bound == STATE)
            more = self._disk_bytes(command, growth)
            if more > 0:
                found.append(Need(DISK, "", 0, more))
            for need in found:
                if isinstance(need, Need):
                    self._check_bytes(need, self._pending.bytes.get((need.bound, need.of), 0))
                else:
                    _check_number(need, self._pending.objects.get((need.kind.bound, need.of), {}))
        except LimitError as error:
            self.refused[error.limit] += 1
            raise
        return Grant(self._pending, found)

    def check_settings(self, values: Mapping[str, str]) -> None:
        """Raise LimitError for a value of ``UPDATE_NAMESRV_CONFIG`` (318) that is too long."""
        for name, text in values.items():
            if len(text) > SETTING_CHARACTERS_MAX:
                self.refused["setting"] += 1
                shown, most = f"{name!r:.{SHOWN_CHARACTERS}}", SETTING_CHARACTERS_MAX
                raise LimitError("setting", f"setting {shown} has {len(text)} characters, at most {most} are allowed")

    def check_command(self, size: int) -> None:
        """Raise LimitError for an encoded command that the log cannot take."""
        if size > COMMAND_BYTES_MAX:
            self.refused[COMMAND] += 1
            told = f"register fewer or shorter topics, or {_SPREAD}"
            raise LimitError(
                COMMAND, f"{COMMAND} is {COMMAND_BYTES_MAX}: in the log this request would have {size} bytes; {told}"
            )

    def check_whole(self, held: Sizes) -> None:
        """Raise LimitError if a state of these sizes, which is to replace an empty one, is too large. The limit on order topics
        is not checked here: a cluster above it works, so its backup must be restorable."""
        self.check_part(held)
        whole = [Need(KV, "", 0, held.kv)]
        whole += [Need(NAMESPACE, name, 0, size) for name, size in held.namespaces.items()]
        whole += [Need(BROKER, name, 0, size) for name, size in held.brokers.items()]
        for need in whole:
            self._check_bytes(need, 0)

    def check_part(self, held: Sizes) -> None:
        """Raise LimitError if the part that has been read of such a state is too large already."""
        self._check_bytes(Need(STATE, "", 0, held.total), 0)

    def used(self, held: Sizes) -> dict[str, int]:
        """Bytes in use, by bound; the largest if there are several of one kind."""
        return {
            STATE: held.total,
            KV: held.kv,
            NAMESPACE: max(held.namespaces.values(), default=0),
            BROKER: max(held.brokers.values(), default=0),
            ORDER_TOPICS: held.order_topics,
        }

    def _check_bytes(self, need: Need, pending: int) -> None:
        limit, used = self.limits[need.bound](), need.used + pending
        if used + need.more > limit and need.bound == DISK:
            told = "the disk is nearly full: make room on it, remove what is not needed, or lower diskReserveBytes"
            raise LimitError(DISK, f"{DISK}: {limit} bytes may be added, {used} are pending and this adds {need.more}; {told}")
        if used + need.more > limit:
            kind = {NAMESPACE: " of namespace ", BROKER: " of broker "}.get(need.bound)
            of = f"{kind}{need.of!r:.{SHOWN_CHARACTERS}}" if kind else ""
            more = f", or raise {need.bound}" if need.bound != ORDER_TOPICS else " in the namespace ORDER_TOPIC_CONFIG"
            raise LimitError(
                need.bound,
                f"{need.bound} is {limit}: {used} bytes{of} are in use and this adds {need.more}; remove what is not needed"
                f"{more}",
            )


# Numbers of objects

KV_NAMESPACES_MAX = 10_000
"""Maximum number of namespaces. An emptied namespace continues to exist, as in Java: queries by namespace and answers to
registrations distinguish it from one that never existed. So only the number can be limited. Real clusters have one namespace."""
KV_KEYS_MAX = 100_000
"""Maximum number of keys in one namespace. The answer to ``GET_KVLIST_BY_NAMESPACE`` (219) contains all of them, and each answer
to a registration contains all of ORDER_TOPIC_CONFIG. Each key costs 0.2 to 1 us in the turn that encodes them. Backups may have
more, because an earlier version did not limit them."""
QUEUE_SETTINGS_MAX = 10_000
"""Maximum number of different queue settings (permission, queue numbers, flags) among the topics of one broker name. A change of
the name's write permission costs a step of Python for each setting. Real brokers have a few dozen settings."""
MEMBERS_MAX = 1_000
"""Maximum number of brokers of one name. Every route through this name shows all of them. Real groups have up to ten."""
CLUSTERS_MAX = 1_000
"""Maximum number of cluster names. When the last broker of a name is removed, the name is removed from each cluster that lists
it. Real deployments have a few clusters.
"""
CLUSTERS_OF_NAME_MAX = 10
"""Maximum number of clusters that list one broker name. Each cluster costs some 3 us when the last broker of the name is removed.
Real broker names are in one cluster."""
BROKER_NAMES_MAX = 20_000
"""Maximum number of broker names, including names without a registered broker: a refused registration creates its name, as in
Java."""
BROKERS_MAX = 20_000
"""Maximum number of registered brokers, the same as the default maximum of connections. A snapshot begins with a line that has an
item for each."""
ALL_TOPICS_MAX = 300_000
"""Maximum number of different topics of all brokers. A change of a shared setting visits all of them, at 0.1 to 0.2 us each."""
MAPPINGS_MAX = 10_000
"""Maximum number of static topic mappings of one broker name, and in one registration. Each costs every node some 10 us when the
command is applied, 0.1 s in all."""
MAPPED_QUEUES_MAX = 100_000
"""Maximum number of queues in the static topic mappings, at about 1 us each."""
TOPIC_BROKERS_MAX = 1_000
"""Maximum number of broker names in one ``REGISTER_TOPIC_IN_NAMESRV`` (217). Each costs every node some 30 us."""
RESTORED_FACTOR = 7
"""A state to be restored may have this many times the maximum number of each kind of object. A cluster can have that many: each
node counts only its own grants, and up to 7 voters admit commands at the same time. With observers it could have more."""

_GONE, _LESS = "unregister those that are gone", "delete those that are not needed"
_SPREAD = "spread the topics over more broker names"
KV_NAMESPACES = ObjectKind("kvNamespaces", "KV namespaces", "use one of those that exist")
KV_KEYS = ObjectKind("kvKeysOfNamespace", "keys", f"{_LESS}, or use another namespace", "namespace")
CLUSTERS = ObjectKind("clusters", "clusters", _GONE)
BROKER_NAMES = ObjectKind("brokerNames", "broker names", _GONE)
BROKERS = ObjectKind("brokers", "brokers", _GONE)
CLUSTERS_OF_NAME = ObjectKind("clustersOfName", "clusters", f"{_GONE}, or use another brokerName")
MEMBERS = ObjectKind("brokersOfName", "brokers", f"{_GONE}, or use another brokerName")
ALL_TOPICS = ObjectKind("topics", "different topics", _LESS)
TOPICS = ObjectKind("topicsOfName", "topics", f"{_LESS}, or {_SPREAD}")
MAPPINGS = ObjectKind("mappingsOfName", "static topic mappings", _SPREAD)
QUEUE_SETTINGS = ObjectKind(
    "queueSettingsOfName",
    "different combinations of perm, readQueueNums, writeQueueNums and topicSysFlag",
    "use the same for more topics",
)


def with_own_mappings(command: RegisterBroker) -> RegisterBroker:
    """The registration without static topic mappings of other broker names.

    RocketMQ's brokers announce no such mappings ("Note asset brokerName equal entry.getValue().getBname()",
    ``RouteInfoManager.java``). The removal of the broker that announced such a mapping would not remove it.
    """
    infos, name = command.topic_queue_mapping_infos, command.broker_name
    own = {topic: info for topic, info in infos.items() if info.bname == name}
    return command if len(own) == len(infos) else replace(command, topic_queue_mapping_infos=own)


def needs(tables: Tables, command: Command, new: Collection[str]) -> list[Need | Additions]:
    """The needs of ``command``: the bytes and objects that it would add. Raises LimitError if it has too many objects by itself.
    ``new``: ``new_topics``."""
    return [*additions(tables, command, new), *byte_needs(tables, command, new)]


def additions(tables: Tables, command: Command, new: Collection[str]) -> Iterator[Additions]:
    """The objects that ``command`` adds. Objects that exist already are included. Exception: of topics and mappings, which may be
    many, only new ones are included."""
    if isinstance(command, PutKVConfig):
        yield Additions(KV_NAMESPACES, "", len(tables.kv), tables.kv, (command.namespace,), KV_NAMESPACES_MAX)
        entries = tables.entries_of(command.namespace)
        yield Additions(KV_KEYS, command.namespace, len(entries), entries, (command.key,), KV_KEYS_MAX)
    if isinstance(command, RegisterBroker):
        yield from _registered(tables, command)
        yield from _announced(tables, command, new)
    if isinstance(command, RegisterTopic):
        if len(command.queue_datas) > TOPIC_BROKERS_MAX:
            count = len(command.queue_datas)
            raise LimitError(
                "brokersOfTopic", f"the route names {count} brokers, at most {TOPIC_BROKERS_MAX} are allowed; use more requests"
            )
        for name, queue_data in dict(command.queue_datas).items():  # a request in progress may create an unknown name
            group = tables.groups.get(name)
            is_known = group is not None and command.topic in group.topics
            topics = {command.topic: queue_data}
            yield from _grown(tables, name, topics, {queue_data}, () if is_known else (command.topic,))


def _registered(tables: Tables, command: RegisterBroker) -> Iterator[Additions]:
    """The names and the broker of a registration."""
    cluster, name = command.cluster_name, command.broker_name
    group = tables.groups.get(name)
    members: Collection[int] = () if group is None else group.members
    yield Additions(CLUSTERS, "", len(tables.cluster_names), tables.cluster_names, (cluster,), CLUSTERS_MAX)
    yield Additions(BROKER_NAMES, "", len(tables.groups), tables.groups, (name,), BROKER_NAMES_MAX)
    yield Additions(BROKERS, "", len(tables.live), tables.live, ((cluster, command.broker_addr),), BROKERS_MAX)
    listed = tables.clusters_of.get(name, {})
    yield Additions(CLUSTERS_OF_NAME, name, len(listed), listed, (cluster,), CLUSTERS_OF_NAME_MAX)
    yield Additions(MEMBERS, name, len(members), members, (command.broker_id,), MEMBERS_MAX)


def _announced(tables: Tables, command: RegisterBroker, new: Collection[str]) -> Iterator[Additions]:
    """The topics and static topic mappings of a registration."""
    infos, name = command.topic_queue_mapping_infos, command.broker_name
    queues = sum(len(info.curr_id_map) for info in infos.values()) if infos else 0
    if len(infos) > MAPPINGS_MAX or queues > MAPPED_QUEUES_MAX:
        raise LimitError(
            "mappings",
            f"the registration has {len(infos)} static topic mappings with {queues} queues, at most {MAPPINGS_MAX} with "
            f"{MAPPED_QUEUES_MAX} are allowed; {_SPREAD}",
        )
    if not _may_take_topics(command):
        return
    mapped = tables.mappings_of(name)
    if added := [topic for topic in infos if topic not in mapped]:
        yield Additions(MAPPINGS, name, len(mapped), mapped, added, MAPPINGS_MAX)
    drops = tables.settings.delete_topic_with_broker_registration and not infos
    topics = command.topics or {}
    settings: Collection[QueueData] = topics.values()
    if command.broker_id != MASTER_ID and command.enable_acting_master:  # a slave that acts as master may not be written to
        settings = {setting._replace(perm=setting.perm & ~PERM_WRITE) for setting in set(settings)}
    yield from _grown(tables, name, topics, settings, new, drops)


def _grown(
    tables: Tables,
    name: str,
    topics: Mapping[str, QueueData],
    settings: Collection[QueueData],
    new: Collection[str],
    drops: bool = False,
) -> Iterator[Additions]:
    """The topics and their settings that a broker name gets. ``new``: the topics that it does not have. ``drops``: it loses those
    that are not in ``topics``."""
    group = tables.groups.get(name)
    known: Mapping[str, QueueData] = {} if group is None else group.topics
    kinds: Collection[QueueData] = () if group is None else group.kinds
    if topics:
        yield Additions(QUEUE_SETTINGS, name, len(kinds), kinds, settings, QUEUE_SETTINGS_MAX)
    if new:
        yield Additions(TOPICS, name, len(topics) - len(new) if drops else len(known), known, new, TOPICS_MAX)
    held = tables.topic_revisions
    if first := [topic for topic in new if topic not in held]:
        yield Additions(ALL_TOPICS, "", len(held), held, first, ALL_TOPICS_MAX)


def _check_number(need: Additions, pending: Mapping[Hashable, int]) -> None:
    """Raise LimitError if the command would give the table too many objects. ``pending``: objects that commands in progress add
    to the same table. Some of these commands have just been applied, so their objects may be in the table already."""
    if need.kept + len(pending) + len(need.added) <= need.most:
        return
    more = sum(key not in pending and key not in need.table for key in need.distinct().added)
    count = need.kept + sum(key not in need.table for key in pending) + more
    if more and count > need.most:
        kind = need.kind
        whose = f"{kind.owner} {need.of:.{SHOWN_CHARACTERS}} would have" if need.of else "there would be"
        raise LimitError(kind.bound, f"{whose} {count} {kind.what}, at most {need.most} are allowed; {kind.remedy}")


def check_whole(tables: Tables) -> None:
    """Raise LimitError if a state, which is to replace an empty one, has more of anything than all nodes of a cluster may add."""
    for what, count, most in _counts(tables):
        if count > most:
            raise LimitError(what, f"{count} {what}, at most {most} are allowed; take out those that are not needed")


def _counts(tables: Tables) -> Iterator[tuple[str, int, int]]:
    """Kinds of objects, with their present and maximum numbers. It is not known which mappings came in one registration, so the
    bound of a registration is applied to each mapping alone."""
    many = RESTORED_FACTOR
    yield "KV namespaces", len(tables.kv), many * KV_NAMESPACES_MAX
    yield "clusters", len(tables.cluster_names), many * CLUSTERS_MAX
    yield "broker names", len(tables.groups), many * BROKER_NAMES_MAX
    yield "brokers", len(tables.live), many * BROKERS_MAX
    yield "different topics", len(tables.topic_revisions), many * ALL_TOPICS_MAX
    for group in tables.groups.values():
        yield f"brokers of brokerName {group.broker_name:.{SHOWN_CHARACTERS}}", len(group.members), many * MEMBERS_MAX
        kinds = f"combinations of queue settings of brokerName {group.broker_name:.{SHOWN_CHARACTERS}}"
        yield kinds, len(group.kinds), many * QUEUE_SETTINGS_MAX
        yield f"topics of brokerName {group.broker_name:.{SHOWN_CHARACTERS}}", len(group.topics), many * TOPICS_MAX
    for name, listed in tables.clusters_of.items():
        yield f"clusters of brokerName {name:.{SHOWN_CHARACTERS}}", len(listed), many * CLUSTERS_OF_NAME_MAX
    for name, infos in tables.mappings.items():
        yield f"static topic mappings of brokerName {name:.{SHOWN_CHARACTERS}}", len(infos), many * MAPPINGS_MAX
        queues = max((len(info.curr_id_map) for info in infos.values()), default=0)
        yield f"queues in a static topic mapping of brokerName {name:.{SHOWN_CHARACTERS}}", queues, MAPPED_QUEUES_MAX

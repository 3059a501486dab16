"""Limits on the state: the length of each text, the number of bytes, and the number of objects of each kind.

CP nodes check them before a command is proposed, AP nodes before it is applied. ``apply`` itself never checks them: a command
in the log is applied whatever the present limits are. So limits may differ between nodes and versions without different
states. For the same reason a state may exceed its limits, if an earlier version or another setting allowed it. Commands that
add nothing are still accepted then: brokers stay registered, and everything can be removed.

``Quotas`` is the only place that grants bytes. Each command has *needs*: the bound to which it adds, the bytes in use and the
bytes that it adds. Granted bytes of commands that are not applied yet count as used. Other bounds, such as disk
space, can add needs.

``refusal`` limits counts, so that the work of a command is bounded by its size and the topics that it concerns. If several nodes
admit commands at the same time, a bound may be exceeded by the number of these commands.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from replicated_namesrv.errors import LimitError
from replicated_namesrv.model import MASTER_ID, TOPICS_MAX
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
from replicated_namesrv.routes.results import Result
from replicated_namesrv.routes.sizes import Sizes, text_bytes
from replicated_namesrv.routes.tables import Tables

NAME_BYTES_MAX = 1_024
"""Cluster, broker and zone names, addresses, topics, namespaces, keys. Host names have 253 at most, RocketMQ's topics 127."""
VALUE_BYTES_MAX = 1 << 20
SETTING_CHARACTERS_MAX = 64 << 10
"""Value of one setting, also over HTTP; code 318 cannot carry more."""
SHOWN_CHARACTERS = 60

STATE, KV, NAMESPACE, BROKER = "maxStateBytes", "maxKvBytes", "maxKvNamespaceBytes", "maxBrokerBytes"
"""Limits on bytes, named by their settings."""
ORDER_TOPICS = "orderTopicConfigBytes"
"""Limit on the encoded bytes of the namespace ORDER_TOPIC_CONFIG. It is no setting."""
ORDER_TOPICS_BYTES_MAX = 15 << 20
"""Every answer to a registration contains the namespace, and RocketMQ reads frames of up to 16 MiB."""
DISK = "diskReserveBytes"
"""Limit on the bytes that a command may add while its disk has less free space than this."""


class Need(NamedTuple):
    """The bytes that a command adds to one bound."""

    bound: str
    of: str
    """The namespace or broker name; empty if there is only one bound of this kind."""
    used: int
    more: int


def new_topics(tables: Tables, command: Command) -> Collection[str]:
    """The topics of a registration that its broker name does not have."""
    if not isinstance(command, RegisterBroker) or not command.topics:
        return ()
    group = tables.groups.get(command.broker_name)
    if group is None:
        return command.topics
    if command.topics.keys() <= group.topics.keys():
        return ()
    return [topic for topic in command.topics if topic not in group.topics]


def check_texts(tables: Tables, command: Command, new: Collection[str]) -> None:
    """Raise LimitError for the first text that is too long. Removals may name everything that exists, and registrations every
    topic that their broker name has. ``new``: ``new_topics``."""
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
            if command.key not in tables.kv.get(command.namespace, {}):
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


def needs(tables: Tables, command: Command, new: Collection[str]) -> list[Need]:
    """Upper bounds of what applying ``command`` now would add, if it adds anything. ``new``: ``new_topics``."""
    match command:
        case PutKVConfig():
            return _kv_needs(tables, command)
        case RegisterBroker():
            more, listed = _registration_growth(tables, command, new)
            return _broker_needs(tables, {command.broker_name: more}, listed)
        case RegisterTopic():
            size = sizes.names_bytes((command.topic,))
            groups = [tables.groups[name] for name, _ in command.queue_datas if name in tables.groups]
            return _broker_needs(tables, {group.broker_name: size for group in groups if command.topic not in group.topics}, 0)
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
    more = sizes.group_bytes(command.broker_name, command.cluster_name if group is None else group.cluster, command.zone_name)
    if group is not None:
        more = max(0, more - sizes.group_bytes(group.broker_name, group.cluster, group.zone_name))
    more += max(0, _member_growth(tables, command, group))
    takes = _takes_topics(command, group)
    if new and takes:
        topics, known = command.topics or {}, {} if group is None else group.topics
        drops = tables.settings.delete_topic_with_broker_registration and not command.topic_queue_mapping_infos
        freed = sizes.names_bytes([topic for topic in known if topic not in topics]) if drops else 0
        more += max(0, sizes.names_bytes(new) - freed)
    for topic, info in command.topic_queue_mapping_infos.items() if takes else ():
        more += max(
            0, sizes.mapping_bytes(topic, info) - sizes.mapping_bytes(topic, tables.mappings.get(info.bname, {}).get(topic))
        )
    names = tables.cluster_names.get(command.cluster_name)
    listed = 0 if names is not None else sizes.names_bytes((command.cluster_name,))
    if names is None or command.broker_name not in names:
        listed += sizes.names_bytes((command.broker_name,))
    return more, listed


def _takes_topics(command: RegisterBroker, group: BrokerGroup | None) -> bool:
    """Whether topics of this broker are stored: those of a master, and of a slave with the least id that may act as one."""
    if command.broker_id == MASTER_ID:
        return True
    others = [] if group is None else [i for i, member in group.members.items() if member.broker_addr != command.broker_addr]
    return command.enable_acting_master is not None and command.broker_id <= min(others, default=command.broker_id)


def _member_growth(tables: Tables, command: RegisterBroker, group: BrokerGroup | None) -> int:
    """Bytes of the registered broker, less those of the registrations that it replaces."""
    held = tables.live.get((command.cluster_name, command.broker_addr))
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
    """Bytes that a command adds to a disk with a log: those that it adds to the state, or, if that is more, those of the value
    that it writes."""
    written = len(command.value or "") - LOGGED_BYTES_FREE if isinstance(command, PutKVConfig) else 0
    return max(growth, written)


class Grant:
    """Bytes granted to one command that is not applied yet."""

    def __init__(self, pending: dict[tuple[str, str], int], granted: list[Need]) -> None:
        self._pending, self._granted = pending, granted
        for need in granted:
            place = need.bound, need.of
            pending[place] = pending.get(place, 0) + need.more

    def release(self) -> None:
        """The command was applied, or never will be. Idempotent."""
        granted, self._granted = self._granted, []
        for need in granted:
            place = need.bound, need.of
            self._pending[place] -= need.more
            if not self._pending[place]:
                del self._pending[place]


class Quotas:
    """Decides for each command whether there is room for it."""

    def __init__(self, limits: Mapping[str, Callable[[], int]], check: Callable[[Command], Iterable[Need]]) -> None:
        """``limits``: bytes by bound. ``check``: the needs of a command; it raises LimitError for a text that is too long."""
        self.limits: dict[str, Callable[[], int]] = {ORDER_TOPICS: lambda: ORDER_TOPICS_BYTES_MAX, **limits}
        self.sources = [check]
        self.refused: dict[str, int] = {}
        """Commands refused, by limit."""
        self._pending: dict[tuple[str, str], int] = {}
        self._disk_bytes: Callable[[Command, int], int] = lambda command, growth: 0

    def keep_disk_reserve(self, room: Callable[[], int], disk_bytes: Callable[[Command, int], int]) -> None:
        """Refuse commands that add more bytes to this node's disk than ``room()``. ``disk_bytes(command, growth)``: the bytes
        that a command adds to the disk if it adds ``growth`` bytes to the state."""
        self.limits[DISK] = room
        self._disk_bytes = disk_bytes

    def grant(self, command: Command) -> Grant:
        """Room for ``command``, until it is released. Raises LimitError if a string is too long or there is no room."""
        try:
            found = [need for source in self.sources for need in source(command)]
            more = self._disk_bytes(command, sum(need.more for need in found if need.bound == STATE))
            if more > 0:
                found.append(Need(DISK, "", 0, more))
            for need in found:
                self._check(need, self._pending.get((need.bound, need.of), 0))
        except LimitError as error:
            self.refused[error.limit] = self.refused.get(error.limit, 0) + 1
            raise
        return Grant(self._pending, found)

    def check_settings(self, values: Mapping[str, str]) -> None:
        """Raise LimitError for a value of ``UPDATE_NAMESRV_CONFIG`` (318) that is too long."""
        for name, text in values.items():
            if len(text) > SETTING_CHARACTERS_MAX:
                self.refused["setting"] = self.refused.get("setting", 0) + 1
                shown, most = f"{name!r:.{SHOWN_CHARACTERS}}", SETTING_CHARACTERS_MAX
                raise LimitError("setting", f"setting {shown} has {len(text)} characters, at most {most} are allowed")

    def check_whole(self, held: Sizes) -> None:
        """Raise LimitError if a state of these sizes, which is to replace an empty one, is too large. There is no limit for order
        topics: a cluster that has more works, and its backup can be restored."""
        whole = [Need(STATE, "", 0, held.total), Need(KV, "", 0, held.kv)]
        whole += [Need(NAMESPACE, name, 0, size) for name, size in held.namespaces.items()]
        whole += [Need(BROKER, name, 0, size) for name, size in held.brokers.items()]
        for need in whole:
            self._check(need, 0)

    def used(self, held: Sizes) -> dict[str, int]:
        """Bytes in use, by bound; the largest if there are several of one kind."""
        return {
            STATE: held.total,
            KV: held.kv,
            NAMESPACE: max(held.namespaces.values(), default=0),
            BROKER: max(held.brokers.values(), default=0),
            ORDER_TOPICS: held.order_topics,
        }

    def _check(self, need: Need, pending: int) -> None:
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


# Counts

KV_NAMESPACES_MAX = 10_000
"""Maximum of namespaces. An emptied namespace continues to exist, as in Java: queries by namespace and answers to
registrations distinguish it from one that never existed. So only the number can be limited. Real clusters have one."""
QUEUE_SETTINGS_MAX = 10_000
"""Maximum of different queue settings (permission, queue numbers, flags) among the topics of one broker name. A change of its
write permission costs a step of Python for each. Real brokers have a few dozen."""
MEMBERS_MAX = 1_000
"""Maximum of brokers of one name. Every route through it shows them. Real groups have up to ten."""
CLUSTERS_MAX = 1_000
"""Maximum of cluster names. When the last broker of a name is removed, the name is removed from each cluster that lists it.
Real ones: a few.
"""
BROKER_NAMES_MAX = 20_000
"""Maximum of broker names, including those without a registered broker: a refused registration creates its name, as in Java."""
BROKERS_MAX = 20_000
"""Registered brokers, as many as connections by default. A snapshot begins with a line that has an item for each."""
ALL_TOPICS_MAX = 300_000
"""Different topics of all brokers. A change of a shared setting visits all of them, at 0.1 to 0.2 us each."""
MAPPINGS_MAX = 10_000
"""Maximum of static topic mappings of one broker name, and in one registration. Each costs every node some 10 us when the
command is applied, 0.1 s in all."""
MAPPED_QUEUES_MAX = 100_000
"""Maximum of queues in them, at about 1 us each."""
SYSTEM_ERROR = 1


def with_own_mappings(command: RegisterBroker) -> RegisterBroker:
    """The registration without static topic mappings of other broker names.

    RocketMQ's brokers announce none ("Note asset brokerName equal entry.getValue().getBname()", ``RouteInfoManager.java``),
    and they would not be removed with the broker that announced them.
    """
    infos, name = command.topic_queue_mapping_infos, command.broker_name
    own = {topic: info for topic, info in infos.items() if info.bname == name}
    return command if len(own) == len(infos) else replace(command, topic_queue_mapping_infos=own)


def refusal(tables: Tables, command: Command) -> Result | None:
    """Why ``command`` must not be proposed. None: it may."""
    if isinstance(command, PutKVConfig) and command.namespace not in tables.kv and len(tables.kv) >= KV_NAMESPACES_MAX:
        return _refused(f"the KV config has {len(tables.kv)} namespaces, {KV_NAMESPACES_MAX} are allowed; use one of them")
    if isinstance(command, RegisterBroker):
        return _refused_registration(tables, command) or _refused_topics(tables, command)
    if isinstance(command, RegisterTopic):
        names = [name for name, _ in command.queue_datas if name in tables.groups]
        return next(filter(None, (_refused_growth(tables, name, (command.topic,)) for name in names)), None)
    return None


def _refused_topics(tables: Tables, command: RegisterBroker) -> Result | None:
    """Why the topics and static topic mappings of a registration are refused. None: they are not."""
    group, name = tables.groups.get(command.broker_name), command.broker_name
    if not _takes_topics(command, group):
        return None
    infos, mapped = command.topic_queue_mapping_infos, tables.mappings.get(name, {})
    if len(mapped) + len(infos) > MAPPINGS_MAX:
        new = len(infos.keys() - mapped.keys())
        count = len(mapped) + new
        if new and count > MAPPINGS_MAX:
            return _refused(
                f"brokerName {name} would have {count} static topic mappings, {MAPPINGS_MAX} are allowed; "
                "spread the topics over more broker names"
            )
    drops = tables.settings.delete_topic_with_broker_registration and not infos
    return _refused_growth(tables, name, command.topics or {}, drops)


def _refused_growth(tables: Tables, name: str, topics: Collection[str], drops: bool = False) -> Result | None:
    """Why a broker name may not have these topics besides its own, or with ``drops`` instead of its own; None if none is new."""
    group = tables.groups.get(name)
    known = {} if group is None else group.topics
    if len(known) + len(topics) > TOPICS_MAX:
        new = len(set(topics) - known.keys())
        count = len(topics) if drops else len(known) + new
        if new and count > TOPICS_MAX:
            return _refused(
                f"brokerName {name} would have {count} topics, {TOPICS_MAX} are allowed; delete those that are not needed, or "
                "spread the topics over more broker names"
            )
    held = tables.topic_revisions
    if len(held) + len(topics) > ALL_TOPICS_MAX:
        new = len(set(topics) - held.keys())
        if new and len(held) + new > ALL_TOPICS_MAX:
            return _refused(
                f"there would be {len(held) + new} different topics, {ALL_TOPICS_MAX} are allowed; "
                "delete those that are not needed"
            )
    return None


def _refused_registration(tables: Tables, command: RegisterBroker) -> Result | None:
    for what, table, key, most in (
        ("clusters", tables.cluster_names, command.cluster_name, CLUSTERS_MAX),
        ("broker names", tables.groups, command.broker_name, BROKER_NAMES_MAX),
        ("brokers", tables.live, (command.cluster_name, command.broker_addr), BROKERS_MAX),
    ):
        if len(table) >= most and key not in table:
            return _refused(f"{len(table)} {what} are registered, {most} are allowed; unregister those that are gone")
    infos = command.topic_queue_mapping_infos
    queues = sum(len(info.curr_id_map) for info in infos.values()) if infos else 0
    if len(infos) > MAPPINGS_MAX or queues > MAPPED_QUEUES_MAX:
        return _refused(
            f"the registration has {len(infos)} static topic mappings with {queues} queues, {MAPPINGS_MAX} with "
            f"{MAPPED_QUEUES_MAX} are allowed; spread the topics over more broker names"
        )
    group = tables.groups.get(command.broker_name)
    if group is not None and command.broker_id not in group.members and len(group.members) >= MEMBERS_MAX:
        return _refused(
            f"brokerName {command.broker_name} has {len(group.members)} brokers, {MEMBERS_MAX} are allowed; "
            "unregister those that are gone, or use another brokerName"
        )
    kinds = {} if group is None else group.kinds
    if command.topics and len(command.topics) + len(kinds) > QUEUE_SETTINGS_MAX:
        count = len(kinds.keys() | set(command.topics.values()))
        if count > QUEUE_SETTINGS_MAX:
            return _refused(
                f"the topics of brokerName {command.broker_name} would have {count} different combinations of perm, "
                f"readQueueNums, writeQueueNums and topicSysFlag, {QUEUE_SETTINGS_MAX} are allowed; use the same for more topics"
            )
    return None


def check_whole(tables: Tables) -> None:
    """Raise LimitError if a state, which is to replace an empty one, has more of anything than commands could add."""
    for what, count, most in _counts(tables):
        if count > most:
            raise LimitError(what, f"{count} {what}, {most} are allowed; take out those that are not needed")


def _counts(tables: Tables) -> Iterator[tuple[str, int, int]]:
    """Kinds of objects, with their present and maximum numbers. It is not known which mappings came in one registration, so the
    bound of a registration is applied to each mapping alone."""
    yield "KV namespaces", len(tables.kv), KV_NAMESPACES_MAX
    yield "clusters", len(tables.cluster_names), CLUSTERS_MAX
    yield "broker names", len(tables.groups), BROKER_NAMES_MAX
    yield "brokers", len(tables.live), BROKERS_MAX
    yield "different topics", len(tables.topic_revisions), ALL_TOPICS_MAX
    for group in tables.groups.values():
        yield f"brokers of brokerName {group.broker_name:.{SHOWN_CHARACTERS}}", len(group.members), MEMBERS_MAX
        kinds = f"combinations of queue settings of brokerName {group.broker_name:.{SHOWN_CHARACTERS}}"
        yield kinds, len(group.kinds), QUEUE_SETTINGS_MAX
        yield f"topics of brokerName {group.broker_name:.{SHOWN_CHARACTERS}}", len(group.topics), TOPICS_MAX
    for name, infos in tables.mappings.items():
        yield f"static topic mappings of brokerName {name:.{SHOWN_CHARACTERS}}", len(infos), MAPPINGS_MAX
        queues = max((len(info.curr_id_map) for info in infos.values()), default=0)
        yield f"queues in a static topic mapping of brokerName {name:.{SHOWN_CHARACTERS}}", queues, MAPPED_QUEUES_MAX


def _refused(remark: str) -> Result:
    return Result(code=SYSTEM_ERROR, remark=remark)

"""What is refused before it is proposed, so that no command costs more than its size and the topics that it concerns.

Not part of ``apply``: what is in the log is applied alike by every version. Commands that several nodes let through at the same
time may exceed a bound by as many.
"""

from collections.abc import Iterator
from dataclasses import replace

from replicated_namesrv.errors import LimitError
from replicated_namesrv.routes.commands import Command, PutKVConfig, RegisterBroker
from replicated_namesrv.routes.results import Result
from replicated_namesrv.routes.tables import Tables

KV_NAMESPACES_MAX = 10_000
"""A namespace that was emptied stays known, as in Java: queries by namespace and the answers to registrations tell one that was
emptied from one that never was. So nothing but their number can be bounded. Real clusters have one."""
QUEUE_SETTINGS_MAX = 10_000
"""Different queue settings (permission, queue numbers, flags) among the topics of one broker name. A change of its write
permission costs a step of Python for each. Real brokers have a few dozen."""
MEMBERS_MAX = 1_000
"""Brokers of one name, which every route through it shows. Real groups have up to ten."""
CLUSTERS_MAX = 1_000
"""Names of clusters. The last broker of a name that goes takes the name out of each cluster that lists it. Real ones: a few."""
BROKER_NAMES_MAX = 20_000
"""Those that nobody is registered under included: a refused registration makes its name known, as in Java."""
BROKERS_MAX = 20_000
"""Registered brokers, as many as connections by default. A snapshot begins with a line that has an item for each."""
MAPPINGS_MAX = 10_000
"""Static topic mappings in one registration. Each costs all nodes some 10 us when the command is applied, 0.1 s in all."""
MAPPED_QUEUES_MAX = 100_000
"""Queues in them, at about 1 us each."""
SHOWN_CHARACTERS = 60
SYSTEM_ERROR = 1


def with_own_mappings(command: RegisterBroker) -> RegisterBroker:
    """The registration without static topic mappings of other broker names.

    RocketMQ's brokers announce none ("Note asset brokerName equal entry.getValue().getBname()", ``RouteInfoManager.java``), and
    none would go with the broker that announced it.
    """
    infos, name = command.topic_queue_mapping_infos, command.broker_name
    own = {topic: info for topic, info in infos.items() if info.bname == name}
    return command if len(own) == len(infos) else replace(command, topic_queue_mapping_infos=own)


def refusal(tables: Tables, command: Command) -> Result | None:
    """Why ``command`` must not be proposed; None: it may."""
    if isinstance(command, PutKVConfig) and command.namespace not in tables.kv and len(tables.kv) >= KV_NAMESPACES_MAX:
        return _refused(f"the KV config has {len(tables.kv)} namespaces, {KV_NAMESPACES_MAX} are allowed; use one of them")
    if isinstance(command, RegisterBroker):
        return _refused_registration(tables, command)
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
    """Raises LimitError if a state, to be put in the place of an empty one, has more of anything than commands could add."""
    for what, count, most in _counts(tables):
        if count > most:
            raise LimitError(what, f"{count} {what}, {most} are allowed; take out those that are not needed")


def _counts(tables: Tables) -> Iterator[tuple[str, int, int]]:
    """What there is, how many there are, and how many may be. Registrations of mappings are not known, so only a single mapping
    can be held against their bound."""
    yield "KV namespaces", len(tables.kv), KV_NAMESPACES_MAX
    yield "clusters", len(tables.cluster_names), CLUSTERS_MAX
    yield "broker names", len(tables.groups), BROKER_NAMES_MAX
    yield "brokers", len(tables.live), BROKERS_MAX
    for group in tables.groups.values():
        yield f"brokers of brokerName {group.broker_name:.{SHOWN_CHARACTERS}}", len(group.members), MEMBERS_MAX
        kinds = f"combinations of queue settings of brokerName {group.broker_name:.{SHOWN_CHARACTERS}}"
        yield kinds, len(group.kinds), QUEUE_SETTINGS_MAX
    for name, infos in tables.mappings.items():
        queues = max((len(info.curr_id_map) for info in infos.values()), default=0)
        yield f"queues in a static topic mapping of brokerName {name:.{SHOWN_CHARACTERS}}", queues, MAPPED_QUEUES_MAX


def _refused(remark: str) -> Result:
    return Result(code=SYSTEM_ERROR, remark=remark)

"""Registration of brokers and topics (``RouteInfoManager.registerBroker`` and ``registerTopic`` of 5.3.3).

The steps and their order are Java's, because the effects of a refused registration are visible in later answers. Topics are
compared at the speed of dictionary views: a registration that brings nothing new costs no Python work per topic.

The queue settings of topics that the group does not have yet are stored. The table gives the outcome for the other topics if
their queue settings in the registration differ from the stored ones:

    data version  sender  queue settings changed by 205, 327 or 217 since  outcome                 test
    is new        any     -                                                stored                  test_a_new_version_replaces
    is stored     master  no                                               stored                  test_batches_of_one_version
    is stored     master  yes                                              not stored, as in Java  test_a_wiped_permission_stays
    is stored     slave   -                                                not stored, as in Java  test_an_acting_slave_adds_only

"Since" counts from the last time that the master registered more than one topic under a new version. A registration of a single
topic does not count, because it leaves the other topics as they are. In the second row, Java does not store the topics. We store
them, because brokers of 5.3.4 to 5.5.0 with ``enableSplitRegistration`` send their topics in batches of one version (RocketMQ
issue 10425).
"""

from collections.abc import Mapping
from itertools import filterfalse

from replicated_namesrv.model import MASTER_ID, PERM_WRITE, QueueData
from replicated_namesrv.routes.broker_group import BrokerGroup, Registration
from replicated_namesrv.routes.commands import RegisterBroker, RegisterTopic
from replicated_namesrv.routes.removal import settle_group
from replicated_namesrv.routes.results import NotifyMinBrokerIdChange, Result
from replicated_namesrv.routes.tables import (
    DEFAULT_BROKER_CHANNEL_EXPIRED_TIME_MS,
    Tables,
)

SYSTEM_ERROR = 1
COMPARED_AT_ONCE = 64
"""Topics compared in one step. Mostly, few topics of a registration differ from the stored ones."""


def register_broker(tables: Tables, command: RegisterBroker, time_ms: int) -> Result:
    """``REGISTER_BROKER`` (103). The result is that of ``RegisterBrokerResult``, or code 1 if Java returns null."""
    previous = tables.live.get((command.cluster_name, command.broker_addr))
    group, register_first = _enter_group(tables, command)
    members = group.members
    min_id_before = min(members, default=0)
    _leave_other_ids(tables, group, command)
    if _is_fenced(tables, group, command):
        return Result()
    if command.broker_id not in members:
        refusal = _refusal(command)
        if refusal is not None:
            return refusal
        register_first = True
    version_changed = previous is None or previous.data_version != command.data_version
    registration = _put_live(tables, group, command, previous, time_ms)
    is_prime_slave = (
        command.enable_acting_master is not None and command.broker_id != MASTER_ID and command.broker_id == min(members)
    )
    if command.topics is not None and (command.broker_id == MASTER_ID or is_prime_slave):
        is_new = register_first or version_changed
        if is_new and command.broker_id == MASTER_ID and len(command.topics) > 1:
            tables.override(group, False)
        _take_topics(tables, group, command, is_new or _compares(tables, group, command), is_prime_slave)
    if command.broker_id < min_id_before and tables.settings.notify_min_broker_id_changed:
        tables.effects.append(_min_id_dropped(group, registration))
    return result_of(tables, registration)


def unchanged_result(tables: Tables, command: RegisterBroker) -> Result | None:
    """The answer of applying ``command`` now if that would be a no-op; else None.

    It follows ``register_broker`` step by step. An answer without an epoch is a refusal.
    """
    group = tables.groups.get(command.broker_name)
    if group is None or group.broker_name not in tables.cluster_names.get(command.cluster_name, {}):
        return None
    if (group.enable_acting_master, group.zone_name) != (bool(command.enable_acting_master), command.zone_name):
        return None
    member = group.member_at(command.broker_addr)
    if member is not None and member.broker_id != command.broker_id:
        return None
    if _is_fenced(tables, group, command):
        return Result()
    holder = group.members.get(command.broker_id)
    if holder is None:
        return _refusal(command)
    if tables.live.get((command.cluster_name, command.broker_addr)) is not holder or not _says_what_is_held(holder, command):
        return None
    return result_of(tables, holder) if _brings_no_topics(tables, group, command) else None


def _refusal(command: RegisterBroker) -> Result | None:
    """How a registration under a free id is refused. None: it is accepted."""
    if command.topics is None:  # Java: null pointer, logged and answered with 0
        return Result()
    if len(command.topics) == 1:
        return Result(code=SYSTEM_ERROR, remark="register broker failed")
    return None


def _says_what_is_held(held: Registration, command: RegisterBroker) -> bool:
    timeout_ms = command.heartbeat_timeout_ms
    return (
        held.data_version == command.data_version
        and held.heartbeat_timeout_ms == (DEFAULT_BROKER_CHANNEL_EXPIRED_TIME_MS if timeout_ms is None else timeout_ms)
        and held.ha_server_addr == command.ha_server_addr
        and command.filter_servers in (None, held.filter_servers)
    )


def _brings_no_topics(tables: Tables, group: BrokerGroup, command: RegisterBroker) -> bool:
    """Whether a member that registers with the stored data version neither adds, changes nor drops topics. Topics are dropped
    only if the setting ``deleteTopicWithBrokerRegistration`` is on."""
    is_prime_slave = command.enable_acting_master is not None and command.broker_id == min(group.members)
    topics = command.topics
    if topics is None or not (command.broker_id == MASTER_ID or is_prime_slave):
        return True
    if not topics.keys() <= group.topics.near(len(topics)).keys():
        return False
    if _compares(tables, group, command) and not _is_stored(tables, group, command):
        return False
    drops = tables.settings.delete_topic_with_broker_registration and not command.topic_queue_mapping_infos
    return not drops or len(topics) == len(group.topics)


def _compares(tables: Tables, group: BrokerGroup, command: RegisterBroker) -> bool:
    """Whether differing topics and mappings are stored even if the data version is the stored one."""
    return tables.compares_content and command.broker_id == MASTER_ID and not group.is_overridden


def _is_stored(tables: Tables, group: BrokerGroup, command: RegisterBroker) -> bool:
    """Whether the group has these topics and mappings with the same content."""
    topics = command.topics
    assert topics is not None
    if _differing(topics, group.topics.near(len(topics)), group.kinds):
        return False
    mappings = command.topic_queue_mapping_infos
    return all(tables.mappings_of(info.bname).get(topic) == info for topic, info in mappings.items())


def result_of(tables: Tables, registration: Registration) -> Result:
    """The answer to this broker's registration: its epoch and, for a slave, its live master in the same cluster."""
    if registration.broker_id != MASTER_ID:
        master = tables.groups[registration.broker_name].members.get(MASTER_ID)
        if master is not None and master.cluster_name == registration.cluster_name:
            return Result(master_addr=master.broker_addr, ha_server_addr=master.ha_server_addr, epoch=registration.epoch)
    return Result(epoch=registration.epoch)


def register_topic(tables: Tables, command: RegisterTopic) -> Result:
    """``REGISTER_TOPIC_IN_NAMESRV`` (217): a new topic is stored as a whole or not at all; for a known topic, the entries before
    the first unknown broker are stored. Entries that replace other entries are overrides.
    """
    accepted: dict[str, QueueData] = {}
    for broker_name, queue_data in command.queue_datas:
        if broker_name not in tables.groups:
            if command.topic not in tables.topic_groups:
                return Result()
            break
        accepted[broker_name] = queue_data
    for broker_name, queue_data in accepted.items():
        group = tables.groups[broker_name]
        held = group.topics.get(command.topic)
        if held is not None and held != queue_data:
            tables.override(group, True)
        if held != queue_data:
            tables.put_topics(group, {command.topic: queue_data})
    return Result()


def _enter_group(tables: Tables, command: RegisterBroker) -> tuple[BrokerGroup, bool]:
    """Steps that even a refused registration takes: cluster, group, acting-master flag and zone. True: the group is new."""
    group = tables.groups.get(command.broker_name)
    is_new = group is None
    if group is None:
        group = tables.create_group(command.broker_name, command.cluster_name)
    tables.list_in_cluster(command.cluster_name, group)
    enable_acting_master = bool(command.enable_acting_master)
    if group.enable_acting_master != enable_acting_master or group.zone_name != command.zone_name:
        tables.describe_group(group, enable_acting_master, command.zone_name)
    return group, is_new


def _leave_other_ids(tables: Tables, group: BrokerGroup, command: RegisterBroker) -> None:
    """Remove this address from other ids: a slave that returns as master must not stay listed as slave."""
    member = group.member_at(command.broker_addr)
    if member is not None and member.broker_id != command.broker_id:
        tables.end_registration(member)


def _is_fenced(tables: Tables, group: BrokerGroup, command: RegisterBroker) -> bool:
    """Whether the id belongs to another address with a newer stateVersion (the sender is a deposed master that is still
    alive).
    """
    holder = group.members.get(command.broker_id)
    if holder is None or holder.broker_addr == command.broker_addr or holder.cluster_name != command.cluster_name:
        return False
    return holder.data_version.state_version > command.data_version.state_version


def _put_live(
    tables: Tables, group: BrokerGroup, command: RegisterBroker, previous: Registration | None, time_ms: int
) -> Registration:
    """Make the broker a member and store its live entry. Earlier owners of the id or the address are no longer registered."""
    key = (command.cluster_name, command.broker_addr)
    current = group.members.get(command.broker_id)
    same_life = current is not None and (current.cluster_name, current.broker_addr) == key
    filter_servers = command.filter_servers
    if filter_servers is None:
        filter_servers = previous.filter_servers if previous is not None else ()
    timeout_ms = command.heartbeat_timeout_ms
    registration = Registration(
        *key,
        command.broker_name,
        command.broker_id,
        current.epoch if current is not None and same_life else tables.next_revision,
        command.data_version,
        DEFAULT_BROKER_CHANNEL_EXPIRED_TIME_MS if timeout_ms is None else timeout_ms,
        command.ha_server_addr,
        filter_servers,
        current.since_ms if current is not None and same_life else time_ms,
    )
    if registration == current:
        return current
    if not same_life:
        _end_predecessors(tables, key, current)
    tables.put_registration(group, registration)
    if current is None or current.filter_servers != filter_servers:  # else no route changed, or ``end_registration`` marked it
        tables.touch_routes(group)
    return registration


def _end_predecessors(tables: Tables, key: tuple[str, str], holder: Registration | None) -> None:
    """End the registration of the id's previous owner, and that of this address under another name."""
    if holder is not None:
        tables.end_registration(holder)
    renamed = tables.live.get(key)
    if renamed is not None:
        settle_group(tables, tables.end_registration(renamed), None)


def _take_topics(tables: Tables, group: BrokerGroup, command: RegisterBroker, take_all: bool, is_prime_slave: bool) -> None:
    """Store queue entries and mappings of a master or prime slave. Without ``take_all`` only missing entries are added."""
    topics = command.topics
    assert topics is not None
    if is_prime_slave and group.enable_acting_master:
        topics = _without_write_perm(topics)
    stored = group.topics.near(len(topics))
    if tables.settings.delete_topic_with_broker_registration and not command.topic_queue_mapping_infos:
        gone = list(filterfalse(topics.__contains__, group.topics))
        if gone:
            tables.drop_topics(group, gone)
            stored = group.topics.near(len(topics))
    if take_all:
        if not stored and topics:
            tables.put_topics(group, topics)
        elif differing := _differing(topics, stored, group.kinds):
            tables.put_topics(group, differing)
        tables.put_mappings(group, command.topic_queue_mapping_infos)
    elif not topics.keys() <= stored.keys():
        tables.put_topics(group, {topic: topics[topic] for topic in filterfalse(stored.__contains__, topics)})


def _differing(
    topics: Mapping[str, QueueData], stored: Mapping[str, QueueData], kinds: Mapping[QueueData, object]
) -> Mapping[str, QueueData]:
    """The part of ``topics`` whose stored queue settings differ or are missing. ``kinds``: the distinct values of ``stored``."""
    if kinds.keys().isdisjoint(topics.values()):  # all have new settings; stops at the first that does not
        return topics
    names, after, before = list(topics), list(topics.values()), list(map(stored.get, topics))
    parts = [slice(start, start + COMPARED_AT_ONCE) for start in range(0, len(names), COMPARED_AT_ONCE)]
    return {
        topic: queue_data
        for part in parts
        if after[part] != before[part]
        for topic, queue_data, held in zip(names[part], after[part], before[part], strict=True)
        if queue_data != held
    }


def _without_write_perm(topics: Mapping[str, QueueData]) -> Mapping[str, QueueData]:
    stripped = {queue_data: queue_data._replace(perm=queue_data.perm & ~PERM_WRITE) for queue_data in set(topics.values())}
    return {topic: stripped[queue_data] for topic, queue_data in topics.items()}


def _min_id_dropped(group: BrokerGroup, registration: Registration) -> NotifyMinBrokerIdChange:
    """The new member has the least id: notify the others, or itself if it is alone (``chooseBrokerAddrsToNotify``)."""
    least = group.members[min(group.members)]
    others = tuple(group.members[i].broker_addr for i in sorted(group.members) if i != least.broker_id)
    return NotifyMinBrokerIdChange(
        others or (least.broker_addr,), least.broker_id, least.broker_addr, None, registration.ha_server_addr
    )

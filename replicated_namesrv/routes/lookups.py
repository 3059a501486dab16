"""Queries of the tables: answers are plain tuples, copied from the state, in an order that is equal for equal states.

RocketMQ answers in hash order. Here members are ordered by id; queue entries, groups and clusters by name; topics by creation,
which a snapshot preserves.
"""

from collections.abc import Callable
from itertools import chain, islice

from replicated_namesrv.model import MASTER_ID, PERM_WRITE, BrokerData, ClusterInfo, QueueData, TopicList, TopicRouteData
from replicated_namesrv.routes.broker_group import BrokerGroup, Shown
from replicated_namesrv.routes.sizes import ORDER_TOPIC_CONFIG
from replicated_namesrv.routes.tables import Tables
from replicated_namesrv.steps import Steps

SYNC_BROKER_MEMBER_GROUP_PREFIX = "rmq_sys_SYNC_BROKER_MEMBER_"
UNIT_FLAG, UNIT_SUB_FLAG = 1, 2
TOPICS_PER_STEP = 4_096
"""Number of topics that a list visits in one step: about a millisecond of work."""
GROUPS_PER_STEP = 256


def pickup_topic_route_data(tables: Tables, topic: str) -> TopicRouteData | None:
    """The route of a topic (``GET_ROUTEINFO_BY_TOPIC``, 105; ``pickupTopicRouteData``). None: no broker serves the topic.

    A group appears with its acting master (``Shown.acting``) if ``supportActingMaster`` is on and the topic is not writable in
    this group. The topics of ``SYNC_BROKER_MEMBER_GROUP_PREFIX`` are excepted.
    """
    groups = tables.topic_groups.of(topic)
    if not groups:
        return None
    acting = tables.settings.support_acting_master and not topic.startswith(SYNC_BROKER_MEMBER_GROUP_PREFIX)
    queue_datas: list[tuple[str, QueueData]] = []
    broker_datas: list[BrokerData] = []
    filter_servers: dict[str, tuple[str, ...]] = {}
    for group in groups:
        queue_data, shown = group.topics[topic], shown_of(group)
        queue_datas.append((group.broker_name, queue_data))
        broker_datas.append(shown.acting if acting and not queue_data.perm & PERM_WRITE else shown.plain)
        if shown.filter_servers:
            filter_servers.update(shown.filter_servers)
    mappings = tuple([(info.bname, info) for info in tables.topic_mappings.of(topic)])
    order_topic_conf = None
    if tables.settings.order_message_enable:
        order_topic_conf = tables.entries_of(ORDER_TOPIC_CONFIG).get(topic)
    return TopicRouteData(
        order_topic_conf,
        tuple(queue_datas),
        tuple(broker_datas),
        tuple(sorted(filter_servers.items())),
        mappings or None,
    )


def shown_of(group: BrokerGroup) -> Shown:
    """The group as routes show it. It is computed once for each generation of the group, because the routes of thousands of
    topics show the same groups."""
    if group.shown is not None and group.shown[0] == group.generation:
        return group.shown[1]
    members = group.members
    addrs = [(i, members[i].broker_addr) for i in sorted(members)]
    plain = BrokerData(group.cluster, group.broker_name, tuple(addrs), group.zone_name, group.enable_acting_master)
    acting = plain
    if group.enable_acting_master and addrs and MASTER_ID not in members:
        acting = plain._replace(broker_addrs=tuple(sorted([(MASTER_ID, addrs[0][1]), *addrs[1:]])))
    filter_servers = tuple(
        (member.broker_addr, member.filter_servers)
        for member in members.values()
        if member.filter_servers and member.cluster_name == group.cluster
    )
    shown = Shown(plain, acting, filter_servers)
    group.shown = (group.generation, shown)
    return shown


def broker_data(group: BrokerGroup) -> BrokerData:
    """A group with its real addresses."""
    return shown_of(group).plain


def cluster_info(tables: Tables) -> ClusterInfo:
    """``GET_BROKER_CLUSTER_INFO`` (106, ``getAllClusterInfo``)."""
    return ClusterInfo(
        tuple(broker_data(tables.groups[name]) for name in sorted(tables.groups)),
        tuple((cluster, tuple(sorted(tables.cluster_names[cluster]))) for cluster in sorted(tables.cluster_names)),
    )


def topics_by_cluster(tables: Tables, cluster: str) -> Steps[list[str]]:
    """``GET_TOPICS_BY_CLUSTER`` (224): topics of all broker names listed in the cluster, each once. The result is that of the
    state at the first step, even if the state changes between the steps."""
    names = sorted(tables.cluster_names.get(cluster, ()))
    views = [group.topics.share() for name in names if (group := tables.groups.get(name)) is not None]
    count, topics = len(tables.topic_revisions), dict[str, None]()
    try:
        for view in views:
            if len(topics) == count:
                break
            rest = iter(view.content())
            while part := dict.fromkeys(islice(rest, TOPICS_PER_STEP)):
                topics.update(part)
                yield
    finally:
        for view in views:
            view.release()
    return list(topics)


def system_topics(tables: Tables) -> TopicList:
    """``GET_SYSTEM_TOPIC_LIST_FROM_NS`` (304): all cluster and broker names, and the address of a broker. Clients ask this broker
    for its own system topics."""
    names: dict[str, None] = {}
    for cluster in sorted(tables.cluster_names):
        names[cluster] = None
        names.update(dict.fromkeys(sorted(tables.cluster_names[cluster])))
    groups = (tables.groups[name] for name in sorted(tables.groups))
    broker_addr = next((group.members[min(group.members)].broker_addr for group in groups if group.members), None)
    return TopicList(tuple(names), broker_addr)


def unit_topics(tables: Tables) -> Steps[list[str]]:
    """``GET_UNIT_TOPIC_LIST`` (311)."""
    return _topics_by_flag(tables, lambda flag: bool(flag & UNIT_FLAG))


def has_unit_sub_topics(tables: Tables) -> Steps[list[str]]:
    """``GET_HAS_UNIT_SUB_TOPIC_LIST`` (312)."""
    return _topics_by_flag(tables, lambda flag: bool(flag & UNIT_SUB_FLAG))


def has_unit_sub_un_unit_topics(tables: Tables) -> Steps[list[str]]:
    """``GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST`` (313)."""
    return _topics_by_flag(tables, lambda flag: flag & (UNIT_FLAG | UNIT_SUB_FLAG) == UNIT_SUB_FLAG)


def _topics_by_flag(tables: Tables, judge: Callable[[int], bool]) -> Steps[list[str]]:
    """Topics selected by the queue entry of their first broker name. Java uses an arbitrary one. The result is
    that of the state at the first step, even if the state changes between the steps."""
    kinds = [group.kinds for group in tables.groups.values()]
    is_quick = sum(map(len, kinds)) <= len(tables.topic_revisions)
    if is_quick and not any(judge(kind.topic_sys_flag) for kind in chain.from_iterable(kinds)):
        return []  # the usual case: no topic has to be visited
    topics = list(tables.topic_revisions)
    views = [group.topics.share() for group in map(tables.groups.__getitem__, sorted(tables.groups))]
    judged: dict[str, QueueData] = {}
    try:
        for number, view in enumerate(views):
            if len(judged) == len(topics):
                break
            rest = iter(view.content().items())
            while part := list(islice(rest, TOPICS_PER_STEP)):
                judged.update((topic, queue_data) for topic, queue_data in part if topic not in judged)
                if len(part) == TOPICS_PER_STEP or number % GROUPS_PER_STEP == 0:
                    yield
    finally:
        for view in views:
            view.release()
    found = list[str]()
    for start in range(0, len(topics), TOPICS_PER_STEP):
        found += [topic for topic in topics[start : start + TOPICS_PER_STEP] if judge(judged[topic].topic_sys_flag)]
        yield
    return found

"""Removal of brokers, topics and write permissions (``unRegisterBroker``, ``deleteTopic``, ``operateWritePermOfBroker``).

A removal with an epoch ends only the registration with this epoch. If that registration has ended and the broker has registered
again, its registration has another epoch, and the removal is a no-op.
"""

from replicated_namesrv.model import MASTER_ID, PERM_READ, PERM_WRITE, QueueData
from replicated_namesrv.routes.broker_group import BrokerGroup, Registration
from replicated_namesrv.routes.commands import BrokerRemoval, ChangeWritePerm, DeleteTopic, UnregisterBrokers
from replicated_namesrv.routes.results import NotifyMinBrokerIdChange, Result
from replicated_namesrv.routes.tables import Tables


def unregister_brokers(tables: Tables, command: UnregisterBrokers) -> Result:
    """Apply a batch of removals. Notifications depend on the state after the last of them."""
    offline_addrs: dict[str, str] = {}
    for removal in command.removals:
        group = tables.groups.get(removal.broker_name)
        if group is None:
            if tables.compares_content:  # a command of version 0.1 may have left the name listed
                _unlist(tables, removal.broker_name)
            continue
        member = _find_member(tables, group, removal)
        if member is not None:
            if member.broker_id == min(group.members):
                offline_addrs[group.broker_name] = member.broker_addr
            tables.end_registration(member)
            settle_group(tables, group, None if member.cluster_name == removal.cluster_name else removal.cluster_name)
        elif removal.epoch is None:  # as in Java, which cleans up every group that a request names
            settle_group(tables, group, removal.cluster_name)
    if tables.settings.notify_min_broker_id_changed:
        for broker_name, offline_addr in offline_addrs.items():
            group = tables.groups.get(broker_name)
            if group is not None and group.enable_acting_master:
                tables.effects.append(_min_id_left(group, offline_addr))
    return Result()


def settle_group(tables: Tables, group: BrokerGroup, cluster_name: str | None) -> None:
    """Bring a group into a valid state after a removal. A group without members is dropped. A group that has members but no
    master loses its write permission if it enables an acting master.

    A dropped group's name is removed from every cluster that lists it. Java removes it only from ``cluster_name``, the one that
    the request names, so a name can stay listed for ever. Version 0.1 does this, too, unless ``cluster_name`` is None.
    """
    if not group.members:
        tables.drop_group(group)
        if cluster_name is None or tables.compares_content:
            _unlist(tables, group.broker_name)
        else:
            tables.unlist_from_cluster(cluster_name, group.broker_name)
    elif group.enable_acting_master and min(group.members) > MASTER_ID:
        _change_perm(tables, group, writable=False)


def _unlist(tables: Tables, broker_name: str) -> None:
    for cluster in list(tables.clusters_of.get(broker_name, ())):
        tables.unlist_from_cluster(cluster, broker_name)


def delete_topic(tables: Tables, command: DeleteTopic) -> Result:
    """``DELETE_TOPIC_IN_NAMESRV`` (216): in all groups, or in those listed in a cluster. Static topic mappings stay, as in
    Java.
    """
    groups = tables.topic_groups.of(command.topic)
    if command.cluster_name:
        listed = tables.cluster_names.get(command.cluster_name, {})
        groups = tuple(group for group in groups if group.broker_name in listed)
    if groups:
        tables.drop_topic(groups, command.topic)
    return Result()


def change_write_perm(tables: Tables, command: ChangeWritePerm) -> Result:
    """``WIPE_WRITE_PERM_OF_BROKER`` (205) and ``ADD_WRITE_PERM_OF_BROKER`` (327). Counts the topics with a queue entry of this
    name, changed or not.
    """
    group = tables.groups.get(command.broker_name)
    if group is None:
        return Result(count=0)
    if _change_perm(tables, group, command.writable):
        tables.override(group, True)
    return Result(count=len(group.topics))


def _find_member(tables: Tables, group: BrokerGroup, removal: BrokerRemoval) -> Registration | None:
    """The member to remove. Without an epoch it is the member with this address, with any id and cluster. With an epoch it is
    the registration of this cluster and address, if it has this epoch."""
    if removal.epoch is None:
        return group.member_at(removal.broker_addr)
    registration = tables.live.get((removal.cluster_name, removal.broker_addr))
    if registration is None or registration.epoch != removal.epoch or registration.broker_name != group.broker_name:
        return None
    return registration


def _change_perm(tables: Tables, group: BrokerGroup, writable: bool) -> bool:
    """True if a topic has another permission now."""
    after: dict[QueueData, QueueData] = {}
    for queue_data in group.kinds:
        perm = PERM_READ | PERM_WRITE if writable else queue_data.perm & ~PERM_WRITE
        if perm != queue_data.perm:
            after[queue_data] = queue_data._replace(perm=perm)
    if after:
        tables.change_queue_datas(group, after)
    return bool(after)


def _min_id_left(group: BrokerGroup, offline_broker_addr: str) -> NotifyMinBrokerIdChange:
    """The removed member had the least id: notify all that remain."""
    ids = sorted(group.members)
    recipients = tuple(group.members[i].broker_addr for i in ids)
    return NotifyMinBrokerIdChange(recipients, ids[0], recipients[0], offline_broker_addr, None)

"""Commands for the route state machine, short to write."""

from collections.abc import Iterable, Mapping

from replicated_namesrv.model import DataVersion, QueueData, TopicQueueMappingInfo
from replicated_namesrv.routes.commands import BrokerRemoval, Command, RegisterBroker, UnregisterBrokers
from replicated_namesrv.routes.quotas import Grant, Quotas
from replicated_namesrv.routes.sizes import Sizes
from replicated_namesrv.routes.tables import Tables

READ_WRITE = 6


def queues(perm: int = READ_WRITE, nums: int = 8, topic_sys_flag: int = 0) -> QueueData:
    """Queues of one topic on one broker."""
    return QueueData(perm, nums, topic_sys_flag, nums)


def granted(admission: Quotas, command: Command) -> Grant:
    """Room for ``command``, held once. Raises LimitError if there is none."""
    grant = admission.check(command)
    grant.hold()
    return grant


def register(
    name: str,
    broker_id: int,
    addr: str,
    *,
    version: int = 1,
    state_version: int = 0,
    topics: Iterable[str] | Mapping[str, QueueData] | None = ("T", "U"),
    cluster: str = "C",
    ha: str = "h:1",
    acting_master: bool | None = None,
    zone: str | None = None,
    timeout_ms: int | None = None,
    filters: tuple[str, ...] | None = (),
    mappings: Mapping[str, TopicQueueMappingInfo] | None = None,
) -> RegisterBroker:
    """REGISTER_BROKER (103); ``topics`` given as names have eight queues and may be read and written."""
    if topics is not None and not isinstance(topics, Mapping):
        topics = dict.fromkeys(topics, queues())
    data_version = DataVersion(0, state_version, version)
    return RegisterBroker(
        cluster, name, addr, broker_id, ha, zone, timeout_ms, acting_master, data_version, topics, mappings or {}, filters
    )


def unregister(name: str, broker_id: int, addr: str, *, cluster: str = "C", epoch: int | None = None) -> UnregisterBrokers:
    """UNREGISTER_BROKER (104) for one broker."""
    return UnregisterBrokers((BrokerRemoval(cluster, addr, name, broker_id, epoch),))


def mapping(topic: str, bname: str, epoch: int = 1) -> TopicQueueMappingInfo:
    """A static topic mapping."""
    return TopicQueueMappingInfo(bname, ((0, 0), (3, 1)), False, epoch, "__global__", topic, 4)


def measured(tables: Tables) -> Sizes:
    """The sizes of ``tables``, computed from their content."""
    sizes = Sizes()
    for group in tables.groups.values():
        sizes.group(group, 1)
        sizes.topics(group.broker_name, group.topics, 1)
    for registration in tables.live.values():
        sizes.registration(registration, 1)
    for broker_name, infos in tables.mappings.items():
        sizes.mappings(broker_name, infos, infos.values(), 1)
    for cluster, names in tables.cluster_names.items():
        for name in (cluster, *names):
            sizes.cluster(name, 1)
    for namespace, entries in tables.kv.items():
        sizes.namespace(namespace)
        for key, value in entries.items():
            sizes.entry(namespace, key, value, 1)
    return sizes

"""Random commands with few different names, so that they often concern the same objects."""

from hypothesis import strategies as st

from replicated_namesrv.model import DataVersion, QueueData, TopicQueueMappingInfo
from replicated_namesrv.routes.commands import (
    BrokerRemoval,
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
from replicated_namesrv.routes.state import RouteSettings

NAMES = ("a", "b", "b", "b")
CLUSTERS = ("C", "C", "C", "D")
ADDRS = ("x:1", "y:1", "z:1")
TOPICS = ("T", "U", "V", "rmq_sys_SYNC_BROKER_MEMBER_b")

names = st.sampled_from(NAMES)
clusters = st.sampled_from(CLUSTERS)
addrs = st.sampled_from(ADDRS)
topic_names = st.sampled_from(TOPICS)
queue_datas = st.builds(QueueData, st.sampled_from((6, 7, 4, 1)), st.just(8), st.integers(0, 3), st.sampled_from((4, 8)))
data_versions = st.builds(DataVersion, st.just(0), st.integers(0, 1), st.integers(1, 2))
topic_tables = (
    st.none() | st.dictionaries(topic_names, queue_datas, max_size=1) | st.dictionaries(topic_names, queue_datas, min_size=2)
)
mapping_infos = st.builds(
    TopicQueueMappingInfo,
    names,
    st.just(((0, 0),)),
    st.just(False),
    st.integers(1, 2),
    st.just("__global__"),
    topic_names,
    st.just(4),
)
registrations = st.builds(
    RegisterBroker,
    cluster_name=clusters,
    broker_name=names,
    broker_addr=addrs,
    broker_id=st.sampled_from((0, 0, 1, 1, 2, -1)),
    ha_server_addr=st.sampled_from(("h:1", "h:2")),
    zone_name=st.sampled_from((None, None, "z")),
    heartbeat_timeout_ms=st.sampled_from((None, 120_000, 10_000)),
    enable_acting_master=st.sampled_from((None, False, True)),
    data_version=data_versions,
    topics=topic_tables,
    topic_queue_mapping_infos=st.dictionaries(topic_names, mapping_infos, max_size=1),
    filter_servers=st.sampled_from((None, (), ("f:1",))),
)
removals = st.builds(BrokerRemoval, clusters, addrs, names, st.integers(0, 2), st.none() | st.integers(1, 30))
register_topics = st.builds(RegisterTopic, topic_names, st.lists(st.tuples(names, queue_datas), max_size=3).map(tuple))
namespaces = st.sampled_from(("ORDER_TOPIC_CONFIG", "n"))
settings_values = st.dictionaries(st.sampled_from(sorted(RouteSettings.__dataclass_fields__)), st.booleans(), max_size=3)

commands: st.SearchStrategy[Command] = st.one_of(
    registrations,
    registrations,
    registrations,
    st.lists(removals, min_size=1, max_size=3).map(lambda batch: UnregisterBrokers(tuple(batch))),
    register_topics,
    st.builds(DeleteTopic, topic_names, st.sampled_from((None, "", "C", "D", "none"))),
    st.builds(ChangeWritePerm, names, st.booleans()),
    st.builds(PutKVConfig, namespaces, topic_names, st.sampled_from((None, "v", "w"))),
    st.builds(DeleteKVConfig, namespaces, topic_names),
    st.builds(UpdateSettings, settings_values),
)

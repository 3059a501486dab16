"""The group ``sample``: its broker registers everything that a registration can contain, so every answer about it is known.

Its cluster has no other broker, its topics have no other group, and nothing changes them. So the part of an answer that is about
this group is one of a few texts: ``RIGHT`` if the broker is registered, ``ABSENT`` if it is not. ``QUESTIONS`` has the requests.

The broker does not register in each round. Like RocketMQ's brokers with ``forceRegister=false``, it asks first whether its data
version is stored (``QUERY_DATA_VERSION``, 322). One more topic of the broker changes repeatedly, so that the broker's data
version changes.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import orjson

from replicated_namesrv.client.answer_bodies import decode_kv_table, decode_member_group
from replicated_namesrv.client.broker_requests import BrokerIdentity, member_group_request
from replicated_namesrv.client.queries import (
    ORDER_TOPIC_CONFIG,
    RefusedError,
    change_write_perm_request,
    cluster_info_request,
    delete_topic_request,
    get_kv_request,
    list_kv_request,
    put_kv_request,
    read_cluster_info,
    read_kv,
    read_kv_table,
    read_route,
    read_topics,
    read_write_perm_count,
    route_request,
    topic_list_request,
    topics_of_cluster_request,
)
from replicated_namesrv.client.remoting import RemotingCommand
from replicated_namesrv.client.topics import RegistrationExtras, TopicConfig
from replicated_namesrv.model import BrokerData, QueueData, TopicQueueMappingInfo, TopicRouteData
from replicated_namesrv.wire.codes import RequestCode, ResponseCode

ANSWER = "answer"
"""The kind of operation that records an answer."""
GROUP, CLUSTER, ZONE = "sample", "samples", "east"
BROKER = f"{GROUP}/0"
ADDRESS, HA_ADDRESS = "127.0.2.1:10911", "127.0.2.1:10912"
IDENTITY = BrokerIdentity(CLUSTER, GROUP, 0, ADDRESS, HA_ADDRESS)
CHANGING = "sample-version"
"""The topic that changes."""
ORDERED, UNIT, SUBSCRIBED, BOTH, MAPPED = "sample-order", "sample-unit", "sample-sub", "sample-unit-sub", "sample-mapped"
CONFIGS = (
    TopicConfig(ORDERED, 5, 3, order=True),
    TopicConfig(UNIT, 2, 4, topic_sys_flag=1),
    TopicConfig(SUBSCRIBED, 2, 2, topic_sys_flag=2),
    TopicConfig(BOTH, 2, 2, topic_sys_flag=3),
    TopicConfig(MAPPED, 1, 1),
)
MAPPING = TopicQueueMappingInfo(GROUP, ((0, 1), (2, 3)), False, 7, "__global__", MAPPED, 4)
EXTRAS = RegistrationExtras(("127.0.2.1:30911", "127.0.2.1:30912"), (MAPPING,))
SETTINGS = ("orderMessageEnable=true",)
"""Settings of the nodes: routes contain the order configuration."""
ORDER = f"{GROUP}:3"
"""The order configuration of ORDERED, a KV entry."""
ORDER_REQUEST = put_kv_request(ORDER_TOPIC_CONFIG, ORDERED, ORDER)
SYSTEM = (GROUP, "SELF_TEST_TOPIC")
"""Further topics of the broker."""
WRITABLE = "topics that became writable"
OF_REGISTRATION = "what the answer to a registration contains"
OTHER_NAMESPACE = "sample"
NOTHING = "nothing"


VAIN_REQUEST = delete_topic_request(UNIT, "chaos")
"""A deletion in a cluster in which the topic does not exist."""


class Question(NamedTuple):
    """A request, and how to read the part of its answer that is about the group."""

    request: RemotingCommand
    read: Callable[[RemotingCommand], object]


def text_of(value: object) -> str:
    """The text of a part of an answer in the trace."""
    return orjson.dumps(value, default=list, option=orjson.OPT_NON_STR_KEYS).decode()


def _own(names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if name.startswith(GROUP))


def _route(response: RemotingCommand) -> object:
    route = read_route(response)
    return NOTHING if route is None else _plain(route)


def _plain(value: object) -> object:
    """``value`` with named tuples as tables, so that its text has the names of all fields."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: _plain(part) for name, part in value._asdict().items()}
    return [_plain(part) for part in value] if isinstance(value, tuple | list) else value


def _standard_route(response: RemotingCommand) -> object:
    """The route, if its body is standard JSON."""
    if response.code == ResponseCode.SUCCESS:
        try:
            orjson.loads(response.body)
        except orjson.JSONDecodeError:
            return "a body that is not standard JSON"
    return _route(response)


def _brokers(response: RemotingCommand) -> object:
    return [_plain(data) for data in read_cluster_info(response).broker_addr_table if data.broker_name == GROUP]


def _clusters(response: RemotingCommand) -> object:
    return [_plain(entry) for entry in read_cluster_info(response).cluster_addr_table if CLUSTER in entry or GROUP in entry[1]]


def _topics(response: RemotingCommand) -> object:
    return _own(read_topics(response).topic_list)


def _members(response: RemotingCommand) -> object:
    if response.code != ResponseCode.SUCCESS:
        raise RefusedError(response.code, response.remark)
    return sorted(decode_member_group(response.body).items())


def of_registration(response: RemotingCommand) -> str:
    """The answer to a registration of the broker: it has no master, and gets the order configurations."""
    fields = {name: value for name, value in (response.ext_fields or {}).items() if value}
    return text_of([fields, decode_kv_table(response.body) if response.body else {}])


def _with(request: RemotingCommand, **fields: str) -> RemotingCommand:
    return request._replace(ext_fields={**(request.ext_fields or {}), **fields})


def _route_of(config: TopicConfig, order: str | None = None) -> TopicRouteData:
    return TopicRouteData(
        order,
        ((GROUP, QueueData(config.perm, config.read_queue_nums, config.topic_sys_flag, config.write_queue_nums)),),
        (BrokerData(CLUSTER, GROUP, ((0, ADDRESS),), ZONE, False),),
        ((ADDRESS, EXTRAS.filter_servers),),
        ((GROUP, MAPPING),) if config.topic_name == MAPPED else None,
    )


_ROUTES = {f"route of {config.topic_name}": Question(route_request(config.topic_name), _route) for config in CONFIGS}
QUESTIONS: Mapping[str, Question] = {
    **_ROUTES,
    "standard route": Question(_with(route_request(MAPPED), acceptStandardJsonOnly="true"), _standard_route),
    "route in its zone": Question(_with(route_request(UNIT), __ZONE_NAME=ZONE, __ZONE_MODE="true"), _route),
    "route with a zone and no zone mode": Question(_with(route_request(UNIT), __ZONE_NAME="west", __ZONE_MODE="false"), _route),
    "route of no topic": Question(route_request("sample-none"), _route),
    "brokers": Question(cluster_info_request(), _brokers),
    "clusters": Question(cluster_info_request(), _clusters),
    "members": Question(member_group_request(IDENTITY), _members),
    "topics of the cluster": Question(
        topics_of_cluster_request(CLUSTER), lambda response: sorted(read_topics(response).topic_list)
    ),
    "system topics": Question(topic_list_request(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS), _topics),
    "unit topics": Question(topic_list_request(RequestCode.GET_UNIT_TOPIC_LIST), _topics),
    "topics with unit subscriptions": Question(topic_list_request(RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST), _topics),
    "other topics with unit subscriptions": Question(topic_list_request(RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST), _topics),
    WRITABLE: Question(change_write_perm_request(GROUP, writable=True), read_write_perm_count),
    "order configuration": Question(get_kv_request(ORDER_TOPIC_CONFIG, ORDERED), lambda response: read_kv(response) or NOTHING),
    "order configurations": Question(list_kv_request(ORDER_TOPIC_CONFIG), lambda response: read_kv_table(response) or NOTHING),
    "key of another namespace": Question(get_kv_request(OTHER_NAMESPACE, ORDERED), lambda response: read_kv(response) or NOTHING),
}
"""The requests, by what they ask for."""
_NUMBER = len(CONFIGS) + len(SYSTEM) + 1
RIGHT: Mapping[str, str] = {
    question: text_of(_plain(answer))
    for question, answer in {
        **{f"route of {config.topic_name}": _route_of(config) for config in CONFIGS},
        f"route of {ORDERED}": _route_of(CONFIGS[0], ORDER),
        "standard route": _route_of(CONFIGS[4]),
        "route in its zone": _route_of(CONFIGS[1]),
        "route with a zone and no zone mode": _route_of(CONFIGS[1]),
        "route of no topic": NOTHING,
        "brokers": [BrokerData(CLUSTER, GROUP, ((0, ADDRESS),), ZONE, False)],
        "clusters": [(CLUSTER, (GROUP,))],
        "members": [(0, ADDRESS)],
        "topics of the cluster": sorted([*SYSTEM, CHANGING, *(config.topic_name for config in CONFIGS)]),
        "system topics": [GROUP, CLUSTER],
        "unit topics": sorted([UNIT, BOTH]),
        "topics with unit subscriptions": sorted([SUBSCRIBED, BOTH]),
        "other topics with unit subscriptions": [SUBSCRIBED],
        WRITABLE: _NUMBER,
        "order configuration": ORDER,
        "order configurations": {ORDERED: ORDER},
        "key of another namespace": NOTHING,
        OF_REGISTRATION: [{}, {ORDERED: ORDER}],
    }.items()
}
"""The right answers while the broker is registered and the order configuration is written."""
UNORDERED: Mapping[str, str] = {
    f"route of {ORDERED}": text_of(_plain(_route_of(CONFIGS[0]))),
    "order configuration": text_of(NOTHING),
    "order configurations": text_of(NOTHING),
    OF_REGISTRATION: text_of([{}, {}]),
}
"""Right answers while the order configuration is not written."""
ABSENT: Mapping[str, str] = {
    **{question: text_of(NOTHING if "route" in question else []) for question in RIGHT},
    WRITABLE: text_of(0),
}
"""Right answers while the broker is not registered. Some never occur, because the answer does not depend on the broker."""

"""Decodes the answers of name servers to values. Lists are sorted, so equal contents compare equal.

Their order has no meaning: Java's comes from hash maps, ours from tables. Only the filter servers of a broker keep their order.
Both JSON dialects are decoded. A body without the expected shape raises BodyError with the name of the member.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import orjson

from replicated_namesrv.errors import BodyError
from replicated_namesrv.model import (
    PERM_WRITE,
    BrokerData,
    ClusterInfo,
    DataVersion,
    QueueData,
    TopicList,
    TopicQueueMappingInfo,
    TopicRouteData,
)
from replicated_namesrv.steps import finish
from replicated_namesrv.wire.fastjson import MalformedJsonError, decode_utf8, parse_steps


class WriteQueues(NamedTuple):
    """One broker group to which a producer may send a topic."""

    broker_name: str
    master_addr: str
    write_queue_nums: int


def decode_route(body: bytes) -> TopicRouteData:
    """Body of a ``GET_ROUTEINFO_BY_TOPIC`` (105) answer."""
    route = _object(body)
    queues = (
        (
            _text(entry, "brokerName"),
            QueueData(
                perm=_integer(entry, "perm"),
                read_queue_nums=_integer(entry, "readQueueNums"),
                topic_sys_flag=_integer(entry, "topicSysFlag", 0),
                write_queue_nums=_integer(entry, "writeQueueNums"),
            ),
        )
        for entry in _list(route, "queueDatas")
    )
    filters, mappings = _mapping(route, "filterServerTable"), _mapping(route, "topicQueueMappingByBroker")
    return TopicRouteData(
        broker_datas=_broker_datas(_list(route, "brokerDatas")),
        queue_datas=tuple(sorted(queues)),
        order_topic_conf=_optional_text(route, "orderTopicConf"),
        filter_server_table=tuple(sorted((str(addr), _texts(servers, "filterServerTable")) for addr, servers in filters.items())),
        topic_queue_mapping_by_broker=tuple(sorted((str(name), _mapping_info(info)) for name, info in mappings.items())) or None,
    )


def decode_cluster_info(body: bytes) -> ClusterInfo:
    """Body of a ``GET_BROKER_CLUSTER_INFO`` (106) answer."""
    info = _object(body)
    clusters = [(str(name), _texts(names, "clusterAddrTable")) for name, names in _mapping(info, "clusterAddrTable").items()]
    return ClusterInfo(
        broker_addr_table=_broker_datas(_mapping(info, "brokerAddrTable").values()),
        cluster_addr_table=tuple(sorted((name, tuple(sorted(names))) for name, names in clusters)),
    )


def decode_topic_list(body: bytes) -> TopicList:
    """Body of an answer that lists topics: 206, 224, 304, 311 to 313 (``RequestCode``)."""
    answer = _object(body)
    return TopicList(tuple(sorted(_texts(answer.get("topicList"), "topicList"))), _optional_text(answer, "brokerAddr"))


def decode_kv_table(body: bytes) -> dict[str, str]:
    """Body of a ``GET_KVLIST_BY_NAMESPACE`` (219) answer, and of a registration's answer."""
    return {str(key): str(value) for key, value in sorted(_mapping(_object(body), "table").items())}


def decode_member_group(body: bytes) -> dict[int, str]:
    """Body of a ``GET_BROKER_MEMBER_GROUP`` (901) answer: addresses by brokerId."""
    group = _object(body).get("brokerMemberGroup")
    return _addresses(group) if isinstance(group, dict) else {}


def decode_data_version(body: bytes) -> DataVersion:
    """Body of a ``QUERY_DATA_VERSION`` (322) answer."""
    answer = _object(body)
    return DataVersion(
        counter=_integer(answer, "counter", 0),
        state_version=_integer(answer, "stateVersion", 0),
        timestamp=_integer(answer, "timestamp", 0),
    )


def write_queues(route: TopicRouteData) -> tuple[WriteQueues, ...]:
    """Queues to which a producer sends: the writable queues of groups with a master (``topicRouteData2TopicPublishInfo``).

    A non-empty ``order_topic_conf`` alone determines groups and counts. Raises BodyError if it is malformed.
    """
    masters = {data.broker_name: data.master_addr for data in route.broker_datas}
    if route.order_topic_conf:
        counts = []
        for part in route.order_topic_conf.split(";"):
            name, _, count = part.partition(":")
            counts.append((name, _whole(count, "orderTopicConf")))
    else:
        counts = [(name, queues.write_queue_nums) for name, queues in route.queue_datas if queues.perm & PERM_WRITE]
    return tuple(WriteQueues(name, master, count) for name, count in counts if (master := masters.get(name)) is not None)


def _object(body: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        try:
            value = finish(parse_steps(decode_utf8(body)))
        except MalformedJsonError as error:
            raise BodyError(f"answer body is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise BodyError(f"answer body is {type(value).__name__}, expected a JSON object")
    return value


def _broker_datas(entries: Iterable[Any]) -> tuple[BrokerData, ...]:
    return tuple(sorted(map(_broker_data, entries), key=lambda data: (data.broker_name, data.cluster, data.broker_addrs)))


def _broker_data(entry: Any) -> BrokerData:
    if not isinstance(entry, dict):
        raise BodyError(f"a broker entry is {type(entry).__name__}, expected an object")
    return BrokerData(
        broker_name=_text(entry, "brokerName"),
        cluster=_text(entry, "cluster"),
        broker_addrs=tuple(sorted(_addresses(entry).items())),
        enable_acting_master=bool(entry.get("enableActingMaster", False)),
        zone_name=_optional_text(entry, "zoneName"),
    )


def _addresses(entry: Mapping[str, Any]) -> dict[int, str]:
    return {_whole(key, "brokerAddrs"): str(addr) for key, addr in _mapping(entry, "brokerAddrs").items()}


def _mapping_info(entry: Any) -> TopicQueueMappingInfo:
    ids = _mapping(entry, "currIdMap").items()
    return TopicQueueMappingInfo(
        bname=_text(entry, "bname"),
        curr_id_map=tuple(sorted((_whole(here, "currIdMap"), _whole(there, "currIdMap")) for here, there in ids)),
        dirty=bool(entry.get("dirty", False)),
        epoch=_integer(entry, "epoch", 0),
        scope=_text(entry, "scope"),
        topic=_text(entry, "topic"),
        total_queues=_integer(entry, "totalQueues", 0),
    )


def _list(entry: Mapping[str, Any], member: str) -> list[Any]:
    value = entry.get(member)
    if value is None:
        return []
    if not isinstance(value, list):
        raise BodyError(f"member {member!r} is {type(value).__name__}, expected an array")
    return value


def _mapping(entry: Any, member: str) -> dict[Any, Any]:
    value = entry.get(member) if isinstance(entry, dict) else None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BodyError(f"member {member!r} is {type(value).__name__}, expected an object")
    return value


def _text(entry: Mapping[str, Any], member: str) -> str:
    value = entry.get(member)
    return "" if value is None else str(value)


def _optional_text(entry: Mapping[str, Any], member: str) -> str | None:
    value = entry.get(member)
    if value is not None and not isinstance(value, str):
        raise BodyError(f"member {member!r} is {type(value).__name__}, expected a string")
    return value


def _texts(value: Any, member: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise BodyError(f"member {member!r} holds {type(value).__name__}, expected an array of strings")
    return tuple(str(item) for item in value)


def _integer(entry: Mapping[str, Any], member: str, default: int | None = None) -> int:
    return _whole(entry.get(member, default), member)


def _whole(value: Any, member: str) -> int:
    try:
        return int(value)
    except (TypeError, ValueError) as error:
        raise BodyError(f"member {member!r} has {value!r} where an integer is expected") from error

"""Builders of requests to name servers, and decoders of the answers.

Each ``…_request`` builds the command for one code; each ``read_…`` turns an answer into a value. It returns None if the server
answered that it does not have the value, and raises RefusedError for every other code. So a caller sends the request as it likes
(one server, all of them, over a connection of its own) and reads the answer the same way.
"""

from replicated_namesrv.client.answer_bodies import (
    decode_cluster_info,
    decode_kv_table,
    decode_route,
    decode_topic_list,
)
from replicated_namesrv.client.remoting import RemotingCommand
from replicated_namesrv.errors import BodyError, NamesrvError
from replicated_namesrv.model import ClusterInfo, TopicList, TopicRouteData
from replicated_namesrv.wire.codes import RequestCode, ResponseCode

ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"
"""KV namespace of order configurations: topic to ``broker:queues;…``."""


class RefusedError(NamesrvError):
    """A server refused a request. ``code`` and ``remark`` are those of its answer."""

    def __init__(self, code: int, remark: str | None) -> None:
        super().__init__(f"answered code {code}{_name(code)}: {remark or 'no remark'}")
        self.code = code
        self.remark = remark


def _name(code: int) -> str:
    return f" ({ResponseCode(code).name})" if code in ResponseCode.__members__.values() else ""


def _check(response: RemotingCommand) -> RemotingCommand:
    if response.code != ResponseCode.SUCCESS:
        raise RefusedError(response.code, response.remark)
    return response


def route_request(topic: str) -> RemotingCommand:
    """``GET_ROUTEINFO_BY_TOPIC`` (105): the route of a topic."""
    return RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})


def read_route(response: RemotingCommand) -> TopicRouteData | None:
    """None: the server has no route of the topic."""
    if response.code == ResponseCode.TOPIC_NOT_EXIST:
        return None
    return decode_route(_check(response).body)


def cluster_info_request() -> RemotingCommand:
    """``GET_BROKER_CLUSTER_INFO`` (106): all groups and clusters."""
    return RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO)


def read_cluster_info(response: RemotingCommand) -> ClusterInfo:
    """All groups and clusters."""
    return decode_cluster_info(_check(response).body)


def topics_request() -> RemotingCommand:
    """``GET_ALL_TOPIC_LIST_FROM_NAMESERVER`` (206): all topics."""
    return RemotingCommand(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)


def topics_of_cluster_request(cluster: str) -> RemotingCommand:
    """``GET_TOPICS_BY_CLUSTER`` (224): topics of one cluster's brokers."""
    return RemotingCommand(RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": cluster})


def topic_list_request(code: RequestCode) -> RemotingCommand:
    """``GET_SYSTEM_TOPIC_LIST_FROM_NS`` (304), or one of the requests for unit topics (311 to 313)."""
    return RemotingCommand(code)


def read_topics(response: RemotingCommand) -> TopicList:
    """Any list of topics."""
    return decode_topic_list(_check(response).body)


def delete_topic_request(topic: str, cluster: str | None) -> RemotingCommand:
    """``DELETE_TOPIC_IN_NAMESRV`` (216). Without ``cluster`` the topic is deleted entirely."""
    fields = {"topic": topic} if cluster is None else {"topic": topic, "clusterName": cluster}
    return RemotingCommand(RequestCode.DELETE_TOPIC_IN_NAMESRV, fields)


def change_write_perm_request(broker_name: str, *, writable: bool) -> RemotingCommand:
    """``ADD_WRITE_PERM_OF_BROKER`` (327) if ``writable``, else ``WIPE_WRITE_PERM_OF_BROKER`` (205)."""
    code = RequestCode.ADD_WRITE_PERM_OF_BROKER if writable else RequestCode.WIPE_WRITE_PERM_OF_BROKER
    return RemotingCommand(code, {"brokerName": broker_name})


def read_write_perm_count(response: RemotingCommand) -> int:
    """Number of topics that have queues of the broker."""
    fields = _check(response).ext_fields or {}
    text = fields.get("addTopicCount", fields.get("wipeTopicCount", "0"))
    if not text.isascii() or not text.isdigit():
        raise BodyError(f"the name server answered {text!r} as the number of topics, which is not a number")
    return int(text)


def put_kv_request(namespace: str, key: str, value: str) -> RemotingCommand:
    """``PUT_KV_CONFIG`` (100)."""
    return RemotingCommand(RequestCode.PUT_KV_CONFIG, {"namespace": namespace, "key": key, "value": value})


def get_kv_request(namespace: str, key: str) -> RemotingCommand:
    """``GET_KV_CONFIG`` (101)."""
    return RemotingCommand(RequestCode.GET_KV_CONFIG, {"namespace": namespace, "key": key})


def read_kv(response: RemotingCommand) -> str | None:
    """None: there is no such key."""
    if response.code == ResponseCode.QUERY_NOT_FOUND:
        return None
    return (_check(response).ext_fields or {}).get("value")


def delete_kv_request(namespace: str, key: str) -> RemotingCommand:
    """``DELETE_KV_CONFIG`` (102)."""
    return RemotingCommand(RequestCode.DELETE_KV_CONFIG, {"namespace": namespace, "key": key})


def list_kv_request(namespace: str) -> RemotingCommand:
    """``GET_KVLIST_BY_NAMESPACE`` (219)."""
    return RemotingCommand(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": namespace})


def read_kv_table(response: RemotingCommand) -> dict[str, str] | None:
    """None: the namespace never existed."""
    if response.code == ResponseCode.QUERY_NOT_FOUND:
        return None
    return decode_kv_table(_check(response).body)


def read_config(response: RemotingCommand) -> dict[str, str]:
    """The settings in force, by RocketMQ's names. Lines are ``key=value`` without escapes."""
    lines = _check(response).body.decode(errors="replace").split("\n")
    return {key: value for key, separator, value in (line.partition("=") for line in lines) if separator}


def config_request() -> RemotingCommand:
    """``GET_NAMESRV_CONFIG`` (319): the settings in force."""
    return RemotingCommand(RequestCode.GET_NAMESRV_CONFIG)


def update_config_request(text: str) -> RemotingCommand:
    """``UPDATE_NAMESRV_CONFIG`` (318); ``text`` is properties text."""
    return RemotingCommand(RequestCode.UPDATE_NAMESRV_CONFIG, body=text.encode())


def read_done(response: RemotingCommand) -> None:
    """Check an answer that has no content except its code."""
    _check(response)

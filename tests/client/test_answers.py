"""Answers as values: both JSON dialects, any order, members that peers leave out, and bodies that are wrong."""

import pytest

from replicated_namesrv.client.answer_bodies import (
    WriteQueues,
    decode_cluster_info,
    decode_data_version,
    decode_kv_table,
    decode_member_group,
    decode_route,
    decode_topic_list,
    write_queues,
)
from replicated_namesrv.client.queries import RefusedError, read_config, read_kv, read_route, read_write_perm_count
from replicated_namesrv.client.remoting import RemotingCommand
from replicated_namesrv.errors import BodyError
from replicated_namesrv.model import BrokerData, DataVersion, QueueData, TopicQueueMappingInfo, TopicRouteData

STANDARD = (
    b'{"brokerDatas":[{"brokerAddrs":{"0":"10.0.0.1:10911","2":"10.0.0.2:10911"},"brokerName":"b","cluster":"C",'
    b'"enableActingMaster":true,"zoneName":"z"},{"brokerAddrs":{"1":"10.0.0.3:10911"},"brokerName":"a","cluster":"C",'
    b'"enableActingMaster":false}],"filterServerTable":{"10.0.0.1:10911":["f:1"]},"orderTopicConf":"b:4","queueDatas":['
    b'{"brokerName":"b","perm":6,"readQueueNums":8,"topicSysFlag":1,"writeQueueNums":4},'
    b'{"brokerName":"a","perm":4,"readQueueNums":2,"topicSysFlag":0,"writeQueueNums":2}],'
    b'"topicQueueMappingByBroker":{"b":{"bname":"b","currIdMap":{"3":1,"0":0},"dirty":false,"epoch":7,"scope":"__global__",'
    b'"topic":"T","totalQueues":4}}}'
)
UNQUOTED = STANDARD.replace(b'"0":', b"0:").replace(b'"1":', b"1:").replace(b'"2":', b"2:").replace(b'"3":', b"3:")


@pytest.mark.parametrize("body", [STANDARD, UNQUOTED])
def test_route_in_both_dialects(body: bytes) -> None:
    assert decode_route(body) == TopicRouteData(
        broker_datas=(
            BrokerData("C", "a", ((1, "10.0.0.3:10911"),), None, False),
            BrokerData("C", "b", ((0, "10.0.0.1:10911"), (2, "10.0.0.2:10911")), "z", True),
        ),
        queue_datas=(("a", QueueData(4, 2, 0, 2)), ("b", QueueData(6, 8, 1, 4))),
        order_topic_conf="b:4",
        filter_server_table=(("10.0.0.1:10911", ("f:1",)),),
        topic_queue_mapping_by_broker=(("b", TopicQueueMappingInfo("b", ((0, 0), (3, 1)), False, 7, "__global__", "T", 4)),),
    )


def test_answers_of_a_48_server_lack_members() -> None:
    body = b'{"brokerDatas":[{"brokerAddrs":{0:"a:1"},"brokerName":"b","cluster":"C"}],"filterServerTable":{},"queueDatas":[]}'
    assert decode_route(body).broker_datas == (BrokerData("C", "b", ((0, "a:1"),), None, False),)


def test_where_a_producer_sends() -> None:
    """A producer sends to the writable queues of groups with a master. If there is an order configuration, it alone decides."""
    route = decode_route(STANDARD)
    assert write_queues(route) == (WriteQueues("b", "10.0.0.1:10911", 4),)
    assert write_queues(route._replace(order_topic_conf=None)) == (WriteQueues("b", "10.0.0.1:10911", 4),)
    assert write_queues(route._replace(order_topic_conf="a:9;b:2")) == (WriteQueues("b", "10.0.0.1:10911", 2),)
    with pytest.raises(BodyError, match="orderTopicConf"):
        write_queues(route._replace(order_topic_conf="b"))
    read_only = tuple((name, queues._replace(perm=4)) for name, queues in route.queue_datas)
    assert write_queues(route._replace(order_topic_conf=None, queue_datas=read_only)) == ()


def test_lists_tables_versions() -> None:
    info = decode_cluster_info(
        b'{"brokerAddrTable":{"b":{"brokerAddrs":{0:"x:1"},"brokerName":"b","cluster":"C"}},"clusterAddrTable":{"C":["c","b"]}}'
    )
    assert info.cluster_addr_table == (("C", ("b", "c")),)
    assert info.broker_addr_table[0].master_addr == "x:1"
    assert decode_topic_list(b'{"brokerAddr":"x:1","topicList":["b","a"]}') == (("a", "b"), "x:1")
    assert decode_kv_table(b'{"table":{}}') == {}
    assert decode_member_group(b'{"brokerMemberGroup":{"brokerAddrs":{0:"a:1",10:"b:1"},"brokerName":"b"}}') == {
        0: "a:1",
        10: "b:1",
    }
    assert decode_member_group(b"{}") == {}
    assert decode_data_version(b'{"counter":1,"timestamp":5}') == DataVersion(1, 0, 5)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b"\xff{}",
        b'{"brokerDatas":{}}',
        b'{"brokerDatas":[7]}',
        b'{"queueDatas":[{"brokerName":"b"}]}',
        b'{"brokerDatas":[{"brokerAddrs":{"x":"a:1"},"brokerName":"b"}]}',
        b'{"topicQueueMappingByBroker":[]}',
        b'{"topicQueueMappingByBroker":{"b":{"currIdMap":{"x":1}}}}',
        b'{"filterServerTable":{"a":7}}',
        b'{"orderTopicConf":7}',
    ],
)
def test_a_wrong_body_is_an_error_and_never_a_crash(body: bytes) -> None:
    with pytest.raises(BodyError):
        decode_route(body)


def test_refusals_carry_code_and_remark() -> None:
    assert read_route(RemotingCommand(17)) is None
    assert read_kv(RemotingCommand(22)) is None
    with pytest.raises(RefusedError, match=r"code 1 \(SYSTEM_ERROR\): disable") as caught:
        read_route(RemotingCommand(1, remark="disable"))
    assert (caught.value.code, caught.value.remark) == (1, "disable")
    with pytest.raises(RefusedError, match="code 9999: no remark"):
        read_route(RemotingCommand(9999))


def test_counts_and_settings() -> None:
    assert read_write_perm_count(RemotingCommand(0, {"wipeTopicCount": "12"})) == 12
    assert read_write_perm_count(RemotingCommand(0, {"addTopicCount": "3"})) == 3
    assert read_config(RemotingCommand(0, body=b"a=b=c\nempty=\n\nno separator\n")) == {"a": "b=c", "empty": ""}

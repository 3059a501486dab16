"""Bodies of answers, compared with those of the Java servers; and bodies of requests, which are decoded."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicated_namesrv.errors import BodyError
from replicated_namesrv.model import BrokerData, ClusterInfo, DataVersion, QueueData, TopicQueueMappingInfo, TopicRouteData
from replicated_namesrv.steps import finish
from replicated_namesrv.wire import bodies
from replicated_namesrv.wire.fastjson import loads
from replicated_namesrv.wire.fastjson_writer import quote
from tests.wire.data import recorded_answers, recorded_frames


def broker(value: dict[str, Any]) -> BrokerData:
    addrs = tuple(sorted((int(key), addr) for key, addr in value["brokerAddrs"].items()))
    return BrokerData(value["cluster"], value["brokerName"], addrs, value.get("zoneName"), value["enableActingMaster"])


def mapping(value: dict[str, Any]) -> TopicQueueMappingInfo:
    ids = tuple(sorted((int(key), local) for key, local in value["currIdMap"].items()))
    return TopicQueueMappingInfo(
        value["bname"], ids, value["dirty"], int(value["epoch"]), value["scope"], value["topic"], value["totalQueues"]
    )


def route(value: dict[str, Any]) -> TopicRouteData:
    queues = [
        (q["brokerName"], QueueData(q["perm"], q["readQueueNums"], q["topicSysFlag"], q["writeQueueNums"]))
        for q in value["queueDatas"]
    ]
    mappings = value.get("topicQueueMappingByBroker")
    return TopicRouteData(
        value.get("orderTopicConf"),
        tuple(queues),
        tuple(map(broker, value["brokerDatas"])),
        tuple((addr, tuple(servers)) for addr, servers in value["filterServerTable"].items()),
        None if mappings is None else tuple((name, mapping(info)) for name, info in mappings.items()),
    )


def encode_again(text: str) -> bytes | None:
    """A recorded body read with orjson's help and encoded by the encoder for its kind; None: not of a kind we encode."""
    value = loads(text.encode())
    assert isinstance(value, dict)
    if "brokerDatas" in value:
        return bodies.encode_topic_route_data(route(value), standard='"brokerAddrs":{"' in text)
    if "brokerAddrTable" in value:
        clusters = tuple((name, tuple(names)) for name, names in value["clusterAddrTable"].items())
        return bodies.encode_cluster_info(ClusterInfo(tuple(map(broker, value["brokerAddrTable"].values())), clusters))
    if "brokerMemberGroup" in value:
        group = value["brokerMemberGroup"]
        addrs = sorted((int(key), addr) for key, addr in group["brokerAddrs"].items())
        return bodies.encode_broker_member_group(group.get("cluster"), group.get("brokerName"), addrs)
    if "topicList" in value:
        return bodies.encode_topic_list(value["topicList"], value.get("brokerAddr"))
    if "table" in value:
        return bodies.encode_kv_table(value["table"])
    if "timestamp" in value:
        return bodies.encode_data_version(DataVersion(value["counter"], value["stateVersion"], value["timestamp"]))
    return None


def recorded_bodies() -> set[str]:
    texts = {body for _, body in recorded_answers() if body.startswith("{")}
    for recorded in recorded_frames():
        if not recorded.from_client and recorded.name.startswith("5.3.3") and recorded.body.startswith(b"{"):
            texts.add(recorded.body.decode())
    return texts


@pytest.mark.parametrize("text", sorted(recorded_bodies()), ids=lambda text: text[:40])
def test_recorded_bodies_are_written_byte_for_byte(text: str) -> None:
    assert encode_again(text) == text.encode()


def test_all_kinds_of_bodies_were_recorded() -> None:
    members: set[str] = set()
    for text in recorded_bodies():
        value = loads(text.encode())
        assert isinstance(value, dict)
        members |= value.keys()
    assert {"brokerDatas", "brokerAddrTable", "brokerMemberGroup", "topicList", "table", "counter", "orderTopicConf"} <= members


QUEUES = (("b", QueueData(6, 8, 0, 8)),)


def test_both_dialects_of_a_route() -> None:
    info = TopicQueueMappingInfo("b", ((0, 0), (3, 1)), True, 2**53, "__global__", "t/é", 4)
    data = BrokerData("C/é", "b", ((0, "a:1"), (2, "c:1"), (10, "d:1"), (100000, "e:1")), "z", True)
    whole = TopicRouteData("b:8", QUEUES, (data,), (("a:1", ("f:1", "f:2")),), (("b", info),))
    assert bodies.encode_topic_route_data(whole, False).decode() == (
        '{"brokerDatas":[{"brokerAddrs":{0:"a:1",100000:"e:1",2:"c:1",10:"d:1"},"brokerName":"b","cluster":"C/é",'
        '"enableActingMaster":true,"zoneName":"z"}],"filterServerTable":{"a:1":["f:1","f:2"]},"orderTopicConf":"b:8",'
        '"queueDatas":[{"brokerName":"b","perm":6,"readQueueNums":8,"topicSysFlag":0,"writeQueueNums":8}],'
        '"topicQueueMappingByBroker":{"b":{"bname":"b","currIdMap":{0:0,3:1},"dirty":true,"epoch":9007199254740992,'
        '"scope":"__global__","topic":"t/é","totalQueues":4}}}'
    )
    assert bodies.encode_topic_route_data(whole, True).decode() == (
        '{"brokerDatas":[{"brokerAddrs":{"0":"a:1","2":"c:1","10":"d:1","100000":"e:1"},"brokerName":"b",'
        '"cluster":"C\\/\\u00E9","enableActingMaster":true,"zoneName":"z"}],"filterServerTable":{"a:1":["f:1","f:2"]},'
        '"orderTopicConf":"b:8","queueDatas":[{"brokerName":"b","perm":6,"readQueueNums":8,"topicSysFlag":0,'
        '"writeQueueNums":8}],"topicQueueMappingByBroker":{"b":{"bname":"b","currIdMap":{"0":0,"3":1},"dirty":true,'
        '"epoch":"9007199254740992","scope":"__global__","topic":"t\\/\\u00E9","totalQueues":4}}}'
    )


NAMES = st.text(st.characters(codec="utf-8"), max_size=6)
ADDRS = st.dictionaries(st.integers(0, 2**40), NAMES, max_size=20).map(lambda table: tuple(sorted(table.items())))
BROKERS = st.builds(BrokerData, NAMES, NAMES, ADDRS, st.none() | NAMES, st.booleans())
COUNTS = st.integers(-(2**31), 2**31 - 1)
ROUTES = st.builds(
    TopicRouteData,
    st.none() | NAMES,
    st.lists(st.tuples(NAMES, st.builds(QueueData, COUNTS, COUNTS, COUNTS, COUNTS)), max_size=3).map(tuple),
    st.lists(BROKERS, max_size=3).map(tuple),
    st.dictionaries(NAMES, st.lists(NAMES, max_size=2).map(tuple), max_size=3).map(lambda table: tuple(sorted(table.items()))),
    st.none(),
)


@given(ROUTES, st.booleans())
def test_a_route_can_be_read_again(value: TopicRouteData, standard: bool) -> None:
    text = bodies.encode_topic_route_data(value, standard)
    if standard:
        assert text.isascii()
        assert json.loads(text)
    decoded = loads(text)
    assert isinstance(decoded, dict)
    assert route(decoded) == value


@pytest.mark.parametrize(
    "character", ["x", '"', "\\", "/", "\n", "\x00", "\x1f", "\x7f", "\x9f", "\u00b7", "\u2028", "\u20ac", "\U0001f600"]
)
def test_long_lists_and_tables_are_written_like_their_items(character: str) -> None:
    """orjson usually writes long lists and tables. It escapes some characters in another way than ``quote``."""
    texts = [f"t{number}" for number in range(300)]
    texts[7] = f"a{character}b"
    assert bodies.encode_topic_list(texts) == f'{{"topicList":[{",".join(map(quote, texts))}]}}'.encode()
    table: dict[str, str | None] = dict(zip(texts, reversed(texts), strict=True))
    pairs = [f"{quote(key)}:{quote(value)}" for key, value in zip(texts, reversed(texts), strict=True)]
    assert bodies.encode_kv_table(table) == f'{{"table":{{{",".join(pairs)}}}}}'.encode()
    table[texts[0]] = None
    assert bodies.encode_kv_table(table) == f'{{"table":{{{",".join(pairs[1:])}}}}}'.encode()


def test_absent_and_empty() -> None:
    assert bodies.encode_topic_list([]) == b'{"topicList":[]}'
    assert bodies.encode_topic_list(("a", "b/é"), "x:1") == '{"brokerAddr":"x:1","topicList":["a","b/é"]}'.encode()
    assert bodies.encode_kv_table({"a": None, "b": '"'}) == b'{"table":{"b":"\\""}}'
    assert bodies.encode_broker_member_group(None, None, ()) == b'{"brokerMemberGroup":{"brokerAddrs":{}}}'
    assert bodies.encode_cluster_info(ClusterInfo((), ())) == b'{"brokerAddrTable":{},"clusterAddrTable":{}}'


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('{"counter":3,"stateVersion":0,"timestamp":5}', DataVersion(3, 0, 5)),
        ('{"counter":3,"timestamp":5}', DataVersion(3, 0, 5)),
        ("{counter:'3',timestamp:5}", DataVersion(3, 0, 5)),
        ("{}", None),
        ("null", None),
    ],
)
def test_data_versions_are_read(text: str, version: DataVersion | None) -> None:
    assert bodies.decode_data_version(text.encode()) == version


@given(st.builds(DataVersion, *[st.integers(-(2**63), 2**63 - 1)] * 3))
def test_a_data_version_can_be_read_again(version: DataVersion) -> None:
    assert bodies.decode_data_version(bodies.encode_data_version(version)) == version


def test_queue_datas_are_read() -> None:
    queues = '{"brokerName":"b","perm":6,"readQueueNums":4,"writeQueueNums":"4"}'
    text = f'{{"brokerDatas":[],"filterServerTable":{{}},"queueDatas":[{queues}]}}'
    assert bodies.decode_queue_datas(text.encode()) == (("b", QueueData(6, 4, 0, 4)),)
    assert bodies.decode_queue_datas(b"{}") == bodies.decode_queue_datas(b'{"queueDatas":null}') == ()


@pytest.mark.parametrize("body", [b"null", b"[]", b'""', b"\xff", b'{"queueDatas":"\xff"}'])
def test_what_reads_as_nothing_in_java_is_nothing(body: bytes) -> None:
    assert bodies.decode_data_version(body) is None
    assert bodies.decode_queue_datas(body) == ()


@pytest.mark.parametrize("decode", [bodies.decode_data_version, bodies.decode_queue_datas])
@pytest.mark.parametrize(
    "body",
    [
        b"nonsense",
        b"",
        b"1",
        b"[1]",
        b"[" * 5000,
        b'{"queueDatas":[{}],"timestamp":"x"}',
        b'{"queueDatas":5,"counter":[]}',
        b'{"x":"%b"}' % (b"x" * bodies.MAX_BODY_BYTES),
    ],
    ids=lambda body: body[:40].decode(),
)
def test_what_cannot_be_read_is_an_error(decode: Callable[[bytes], object], body: bytes) -> None:
    with pytest.raises(BodyError, match="Failed to decode"):
        decode(body)


@pytest.mark.parametrize("decode", [bodies.decode_data_version, bodies.decode_queue_datas])
@given(body=st.binary(max_size=40))
def test_any_bytes_are_a_value_or_an_error(decode: Callable[[bytes], object], body: bytes) -> None:
    try:
        decode(body)
    except BodyError:
        return


@given(
    st.dictionaries(
        st.text(st.sampled_from('a/\x01\x7f"é😀'), max_size=3),
        st.none() | st.text(st.sampled_from('a/\x01\x7f"é😀'), max_size=20),
    )
)
def test_a_kv_table_in_steps_equals_one_at_once(table: dict[str, str | None]) -> None:
    for characters in (1, 5, bodies.CHARACTERS_PER_STEP):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(bodies, "CHARACTERS_PER_STEP", characters)
            text = bodies.Text()
            finish(bodies.kv_table_steps(table, text))
            assert text.encoded() == bodies.encode_kv_table(table)


def test_a_kv_table_in_steps_shows_one_state() -> None:
    table: dict[str, str | None] = {f"k{number}": "v" * bodies.CHARACTERS_PER_STEP for number in range(9)}
    expected, text = bodies.encode_kv_table(table), bodies.Text()
    for _ in bodies.kv_table_steps(table, text):
        table.clear()
    assert text.encoded() == expected

"""Bodies other than registrations: the bodies of a name server's answers, and the two small ones that it reads.

Encoders write the values of ``model`` in the order of their members. If Java's order is defined, the bytes equal Java's for the
same content. Object members are ordered by name. Maps with whole-number keys have the order of a Java HashMap in the default
dialect, and ascending order in the standard one. Small KV tables are in the order of a HashMap, other maps in the given order.
Only ``GET_ROUTEINFO_BY_TOPIC`` (105) has a standard dialect. All other bodies are in the default one, with whole-number keys
unquoted, which all clients can read.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final, TypeVar, cast

from replicated_namesrv.errors import BodyError
from replicated_namesrv.model import BrokerData, ClusterInfo, DataVersion, QueueData, TopicQueueMappingInfo, TopicRouteData
from replicated_namesrv.steps import Steps, finish
from replicated_namesrv.wire.fastjson import MalformedJsonError, decode_utf8, loads, members, to_int, to_list, to_object, to_text
from replicated_namesrv.wire.fastjson_writer import dump_alike, hash_order, integer, quote, quote_standard
from replicated_namesrv.wire.registration_values import data_version_of, interned

MAX_HASH_ORDERED: Final = 256
"""Larger text tables keep the given order. Java's order is not specified, and computing it costs a step per character."""
MAX_BODY_BYTES: Final = 262_144
"""Maximum size of a body that is decoded here in one step."""
MAX_QUOTED: Final = 16_384
"""Maximum number of cached names. Names longer than ``MAX_QUOTED_CHARACTERS`` are not cached."""
MAX_QUOTED_CHARACTERS: Final = 256

_QUEUE_DATA_MEMBERS = frozenset(("brokerName", "perm", "readQueueNums", "topicSysFlag", "writeQueueNums"))
_ROUTE_MEMBERS = frozenset(("brokerDatas", "filterServerTable", "orderTopicConf", "queueDatas", "topicQueueMappingByBroker"))
K = TypeVar("K")
T = TypeVar("T")
V = TypeVar("V")

ITEMS_PER_STEP: Final = 256
QUEUES_PER_STEP: Final = 1_024
"""Number of brokers or queue entries, and of queues of a static topic mapping, that are encoded in one step."""
NAMES_PER_STEP: Final = 2_048
"""Number of broker names of a cluster that are encoded in one step."""
CHARACTERS_PER_STEP: Final = 16_384
"""Number of characters of KV entries that are encoded in one step: a millisecond if every character is escaped."""

_SMALL_HASH = 12
"""With at most this many entries a Java HashMap returns Long keys from 0 to 15 in ascending order."""

Addrs = Sequence[tuple[int, str]]
"""Pairs (brokerId, address) in ascending order of the ids."""


class _Quoted(dict[str, str]):
    """Cache of quoted names, because names recur."""

    def __init__(self, standard: bool) -> None:
        self._quote = quote_standard if standard else quote

    def __missing__(self, text: str) -> str:
        quoted = self._quote(text)
        if len(text) <= MAX_QUOTED_CHARACTERS:
            if len(self) >= MAX_QUOTED:
                self.clear()
            self[text] = quoted
        return quoted


_DEFAULT, _STANDARD = _Quoted(False), _Quoted(True)

_FRAGMENTS_MAX: Final = 16_384
"""Maximum number of encoded broker groups and queue entries in the cache of each dialect. The cache is emptied when it is
full."""
_FRAGMENT_CHARACTERS_MAX: Final = 1_024
"""Longer groups and queue entries are not cached."""
_broker_fragments: tuple[dict[BrokerData, str], dict[BrokerData, str]] = ({}, {})
_queue_fragments: tuple[dict[tuple[str, QueueData], str], dict[tuple[str, QueueData], str]] = ({}, {})


class Text:
    """A body while it is written."""

    def __init__(self, check_length: Callable[[int], None] = lambda characters: None) -> None:
        """``check_length`` raises an error if the body has too many characters."""
        self._parts: list[str] = []
        self._size, self._check_length = 0, check_length

    def add(self, part: str) -> None:
        """Append a part. Raises the error of ``check_length``."""
        self._size += len(part)
        self._check_length(self._size)
        self._parts.append(part)

    def add_all(self, values: Iterable[T], encode: Callable[[Sequence[T]], str], at_once: int = ITEMS_PER_STEP) -> Steps[None]:
        """Append the values, separated by commas. ``encode`` writes some of them, separated by commas."""
        rest, before = iter(values), ""
        while some := list(islice(rest, at_once)):
            self.add(before + encode(some))
            before = ","
            yield

    def encoded(self) -> bytes:
        return "".join(self._parts).encode()


def encode_topic_route_data(route: TopicRouteData, standard: bool) -> bytes:
    """Body of ``GET_ROUTEINFO_BY_TOPIC`` (105), in one step."""
    text = Text()
    finish(topic_route_data_steps(route, standard, text))
    return text.encoded()


def topic_route_data_steps(route: TopicRouteData, standard: bool, text: Text) -> Steps[None]:
    """Write the body of ``GET_ROUTEINFO_BY_TOPIC`` (105). ``standard``: all keys quoted, ASCII only, for peers since 4.9.4 and
    those that request it. Raises the errors of ``text``.
    """
    quoted = _STANDARD if standard else _DEFAULT
    known_brokers, known_queues = _broker_fragments[standard], _queue_fragments[standard]

    def brokers(some: Sequence[BrokerData]) -> str:
        return ",".join([known_brokers.get(data) or _broker_fragment(data, standard) for data in some])

    def queues(some: Sequence[tuple[str, QueueData]]) -> str:
        return ",".join([known_queues.get(entry) or _queue_fragment(entry, standard) for entry in some])

    def filters(some: Sequence[tuple[str, Sequence[str]]]) -> str:
        return ",".join([f"{quoted[addr]}:{_texts(servers, quoted)}" for addr, servers in some])

    order = "" if route.order_topic_conf is None else f'"orderTopicConf":{quoted[route.order_topic_conf]},'
    rest = route.filter_server_table or route.topic_queue_mapping_by_broker is not None
    if not rest and len(route.broker_datas) <= ITEMS_PER_STEP:  # the usual case, in a third of the time
        body = f'{{"brokerDatas":[{brokers(route.broker_datas)}],"filterServerTable":{{}},{order}"queueDatas":['
        text.add(f"{body}{queues(route.queue_datas)}]}}")
        return
    text.add('{"brokerDatas":[')
    yield from text.add_all(route.broker_datas, brokers)
    text.add('],"filterServerTable":{')
    yield from text.add_all(route.filter_server_table, filters, 1)
    text.add(f'}},{order}"queueDatas":[')
    yield from text.add_all(route.queue_datas, queues)
    text.add("]")
    if route.topic_queue_mapping_by_broker is not None:
        text.add(',"topicQueueMappingByBroker":{')
        for number, (name, info) in enumerate(route.topic_queue_mapping_by_broker):
            text.add(f'{"," if number else ""}{quoted[name]}:{{"bname":{quoted[info.bname]},"currIdMap":{{')
            yield from text.add_all(*_curr_ids(info, standard), QUEUES_PER_STEP)
            text.add(f"}},{_mapping_rest(info, standard, quoted)}")
        text.add("}")
    text.add("}")


def encode_cluster_info(info: ClusterInfo) -> bytes:
    """Body of ``GET_BROKER_CLUSTER_INFO`` (106), in one step."""
    text = Text()
    finish(cluster_info_steps(info, text))
    return text.encoded()


def cluster_info_steps(info: ClusterInfo, text: Text) -> Steps[None]:
    """Write the body of ``GET_BROKER_CLUSTER_INFO`` (106). Raises the errors of ``text``."""
    quoted = _DEFAULT

    def brokers(some: Sequence[BrokerData]) -> str:
        return ",".join([f"{quoted[data.broker_name]}:{_broker_data(data, False, quoted)}" for data in some])

    text.add('{"brokerAddrTable":{')
    yield from text.add_all(info.broker_addr_table, brokers)
    text.add('},"clusterAddrTable":{')
    for number, (cluster, names) in enumerate(info.cluster_addr_table):
        text.add(f"{',' if number else ''}{quoted[cluster]}:[")
        yield from text.add_all(names, lambda some: ",".join([quoted[name] for name in some]), NAMES_PER_STEP)
        text.add("]")
    text.add("}}")


def encode_broker_member_group(cluster: str | None, broker_name: str | None, broker_addrs: Addrs) -> bytes:
    """Body of ``GET_BROKER_MEMBER_GROUP`` (901). Names that are None are left out."""
    quoted = _DEFAULT
    name = "" if broker_name is None else f',"brokerName":{quoted[broker_name]}'
    group = "" if cluster is None else f',"cluster":{quoted[cluster]}'
    return f'{{"brokerMemberGroup":{{"brokerAddrs":{_addrs(broker_addrs, False, quoted)}{name}{group}}}}}'.encode()


def encode_topic_list(
    topics: Sequence[str], broker_addr: str | None = None, check_length: Callable[[int], None] = lambda characters: None
) -> bytes:
    """Body of an answer that lists topics: 206, 224, 304, 311 to 313 (``RequestCode``). ``check_length`` raises an error if the
    list has too many characters. For a list that is too long for a frame, it is called before most of the list is encoded."""
    addr = "" if broker_addr is None else f'"brokerAddr":{quote(broker_addr)},'
    listed = dump_alike(topics)
    if listed is None:
        text = Text(check_length)
        finish(text.add_all(topics, lambda some: ",".join(map(quote, some)), ITEMS_PER_STEP))
        listed = b"[%b]" % text.encoded()
    return b'{%b"topicList":%b}' % (addr.encode(), listed)


def encode_kv_table(table: Mapping[str, str | None]) -> bytes:
    """Body of ``GET_KVLIST_BY_NAMESPACE`` (219) and ``REGISTER_BROKER`` (103) answers (``KVTable.java``); null values are left
    out.
    """
    is_small = len(table) <= MAX_HASH_ORDERED
    if is_small or None in table.values():
        keys: Iterable[str] = hash_order(table) if is_small else table
        entries = {key: value for key in keys if (value := table[key]) is not None}
    else:
        entries = cast("dict[str, str]", dict(table))  # takes a tenth of the time
    written = (
        dump_alike(entries) or f"{{{','.join([f'{quote(key)}:{quote(value)}' for key, value in entries.items()])}}}".encode()
    )
    return b'{"table":%b}' % written


def kv_table_steps(table: Mapping[str, str | None], text: Text) -> Steps[None]:
    """Write the body of ``GET_KVLIST_BY_NAMESPACE`` (219), which equals that of ``encode_kv_table``, as the table is at the first
    step. Raises the errors of ``text``."""
    entries = dict(table)
    text.add('{"table":{')
    some: dict[str, str] = {}
    size, before = 0, ""
    for key in hash_order(entries) if len(entries) <= MAX_HASH_ORDERED else entries:
        value = entries[key]
        if value is None:
            continue
        if size + len(key) + len(value) > CHARACTERS_PER_STEP and some:
            text.add(before + _kv_entries(some))
            before, some, size = ",", {}, 0
            yield
        if len(value) <= CHARACTERS_PER_STEP:
            some[key] = value
            size += len(key) + len(value)
            continue
        text.add(f'{before}{quote(key)}:"')
        before = ","
        for start in range(0, len(value), CHARACTERS_PER_STEP):
            text.add(quote(value[start : start + CHARACTERS_PER_STEP])[1:-1])
            yield
        text.add('"')
    text.add((before + _kv_entries(some) if some else "") + "}}")


def _kv_entries(entries: dict[str, str]) -> str:
    written = dump_alike(entries)
    if written is not None:
        return written[1:-1].decode()
    return ",".join([f"{quote(key)}:{quote(value)}" for key, value in entries.items()])


def encode_data_version(data_version: DataVersion) -> bytes:
    """Body of ``QUERY_DATA_VERSION`` (322)."""
    counter, state_version, timestamp = data_version
    return b'{"counter":%d,"stateVersion":%d,"timestamp":%d}' % (counter, state_version, timestamp)


def decode_data_version(body: bytes) -> DataVersion | None:
    """Decode the request body of ``QUERY_DATA_VERSION`` (322). Raises BodyError.

    None for a null body and for a version without a timestamp. Java then uses the present time, so such a version never equals a
    stored one."""
    try:
        return data_version_of(_loads_if_text(body))
    except MalformedJsonError as error:
        raise BodyError(f"Failed to decode DataVersion: {error}") from None


def decode_queue_datas(body: bytes) -> tuple[tuple[str, QueueData], ...]:
    """Decode ``queueDatas`` of a TopicRouteData, the only part that ``REGISTER_TOPIC_IN_NAMESRV`` (217) uses, as pairs
    (brokerName, queues).

    Empty for a null body. Raises BodyError.
    """
    try:
        route = to_object(_loads_if_text(body), "body")
        if route is None:
            return ()
        items = to_list(members(route, _ROUTE_MEMBERS).get("queueDatas"), "queueDatas") or []
        return tuple([_queue_data_of(item) for item in items])
    except MalformedJsonError as error:
        raise BodyError(f"Failed to decode TopicRouteData: {error}") from None


def _loads_if_text(body: bytes) -> object:
    """The value of a JSON body. None if it is not UTF-8, as in fastjson (``IOUtils.decodeUTF8``)."""
    if len(body) > MAX_BODY_BYTES:
        raise MalformedJsonError(f"{len(body)} bytes are more than {MAX_BODY_BYTES}")
    try:
        decode_utf8(body)
    except MalformedJsonError:
        return None
    return loads(body)


def _queue_data_of(value: object) -> tuple[str, QueueData]:
    entry = to_object(value, "queueDatas")
    given = {} if entry is None else members(entry, _QUEUE_DATA_MEMBERS)
    name = to_text(given.get("brokerName"))
    if name is None:
        raise MalformedJsonError("a queueData has no brokerName")
    numbers = [to_int(given.get(member), member) for member in ("perm", "readQueueNums", "topicSysFlag", "writeQueueNums")]
    return name, interned(QueueData(*numbers))


def _broker_fragment(data: BrokerData, standard: bool) -> str:
    """Encode one group of a route and cache it, because the routes of all topics of the group contain it."""
    fragment = _broker_data(data, standard, _STANDARD if standard else _DEFAULT)
    _remember(_broker_fragments[standard], data, fragment)
    return fragment


def _queue_fragment(entry: tuple[str, QueueData], standard: bool) -> str:
    """Encode one queue entry of a route and cache it."""
    name, data = entry
    fragment = (
        f'{{"brokerName":{(_STANDARD if standard else _DEFAULT)[name]},"perm":{data.perm},"readQueueNums":{data.read_queue_nums},'
        f'"topicSysFlag":{data.topic_sys_flag},"writeQueueNums":{data.write_queue_nums}}}'
    )
    _remember(_queue_fragments[standard], entry, fragment)
    return fragment


def _remember(known: dict[K, str], key: K, fragment: str) -> None:
    if len(fragment) <= _FRAGMENT_CHARACTERS_MAX:
        if len(known) >= _FRAGMENTS_MAX:
            known.clear()
        known[key] = fragment


def _broker_data(data: BrokerData, standard: bool, quoted: _Quoted) -> str:
    addrs = data.broker_addrs
    if len(addrs) == 1:
        broker_id, addr = addrs[0]
        table = f'{{"{broker_id}":{quoted[addr]}}}' if standard else f"{{{broker_id}:{quoted[addr]}}}"
    else:
        table = _addrs(addrs, standard, quoted)
    zone = "" if data.zone_name is None else f',"zoneName":{quoted[data.zone_name]}'
    acting = "true" if data.enable_acting_master else "false"
    return (
        f'{{"brokerAddrs":{table},"brokerName":{quoted[data.broker_name]},"cluster":{quoted[data.cluster]},'
        f'"enableActingMaster":{acting}{zone}}}'
    )


def _addrs(addrs: Addrs, standard: bool, quoted: _Quoted) -> str:
    if standard:
        pairs = [f'"{broker_id}":{quoted[addr]}' for broker_id, addr in addrs]
    else:
        pairs = [f"{broker_id}:{quoted[addr]}" for broker_id, addr in _in_hash_order(addrs)]
    return f"{{{','.join(pairs)}}}"


def _in_hash_order(pairs: Sequence[tuple[int, V]]) -> Sequence[tuple[int, V]]:
    if len(pairs) <= _SMALL_HASH and (not pairs or (pairs[0][0] >= 0 and pairs[-1][0] < 16)):
        return pairs
    table = dict(pairs)
    return [(key, table[key]) for key in hash_order(table)]


def _curr_ids(info: TopicQueueMappingInfo, standard: bool) -> tuple[Iterable[tuple[int, int]], Callable[[Any], str]]:
    """The members of ``currIdMap`` in order, and their encoder."""
    if standard:
        return info.curr_id_map, lambda some: ",".join([f'"{global_id}":{local_id}' for global_id, local_id in some])
    ordered = _in_hash_order(info.curr_id_map)
    return ordered, lambda some: ",".join([f"{global_id}:{local_id}" for global_id, local_id in some])


def _mapping_rest(info: TopicQueueMappingInfo, standard: bool, quoted: _Quoted) -> str:
    """The members of a static topic mapping after ``currIdMap``."""
    return (
        f'"dirty":{"true" if info.dirty else "false"},"epoch":{integer(info.epoch, standard)},"scope":{quoted[info.scope]},'
        f'"topic":{quoted[info.topic]},"totalQueues":{info.total_queues}}}'
    )


def _texts(texts: Sequence[str], quoted: _Quoted) -> str:
    return f"[{','.join([quoted[text] for text in texts])}]"

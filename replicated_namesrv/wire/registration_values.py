"""Common parts of all registration decoders: the result, and interned values made from JSON with Java's defaults.

Equal topic names are one object in this process, and so are equal QueueData. So thousands of brokers with the same topics cost
only references, and comparing a registration with the stored one compares identities.
"""

from collections.abc import Generator
from sys import intern
from typing import Final, NamedTuple

from replicated_namesrv.model import TOPICS_MAX, DataVersion, QueueData, TopicQueueMappingInfo
from replicated_namesrv.wire.fastjson import (
    INT_MAX,
    INT_MIN,
    MalformedJsonError,
    members,
    to_bool,
    to_int,
    to_list,
    to_long,
    to_map,
    to_object,
    to_text,
)

SLICE_WORK: Final = 20_000
"""Maximum sum of ``work_of`` for the objects decoded between two yields: about 1000 topics or 3 ms."""
DEFAULT_QUEUE_NUMS: Final = 16
DEFAULT_PERM: Final = 6
GLOBAL_SCOPE: Final = "__global__"
MAX_FILTER_SERVERS: Final = 1000
"""Maximum number of filter servers of one broker. Real brokers have a few, and none since 5.0."""
MAX_MAPPED_QUEUES: Final = 16_384
"""Maximum number of entries in the currIdMap of one mapping."""
MAX_INTERNED: Final = 65_536

_TOPIC_MEMBERS = frozenset(
    ("attributes", "order", "perm", "readQueueNums", "topicFilterType", "topicName", "topicSysFlag", "writeQueueNums")
)
_DATA_VERSION_MEMBERS = frozenset(("counter", "stateVersion", "timestamp"))
_MAPPING_MEMBERS = frozenset(("bname", "currIdMap", "dirty", "epoch", "scope", "topic", "totalQueues"))
_queue_datas: dict[QueueData, QueueData] = {}


class RegisterBrokerBody(NamedTuple):
    """The content of a registration, without its header fields."""

    data_version: DataVersion | None
    """The data version. None: the body has none, or null. Java then uses the present time as its timestamp."""
    topics: dict[str, QueueData] | None
    """Queues by ``topicName``. None: the table was null; a broker with a free id is not registered (answer 0)."""
    topic_queue_mapping_infos: dict[str, TopicQueueMappingInfo]
    """Mappings by their key in the body, which is the topic."""
    filter_servers: tuple[str, ...] | None
    """Addresses of filter servers. None: keep the stored ones. Empty: remove the stored ones."""


def work_of(value: object, parts: int) -> int:
    """The work for an object with ``parts`` characters or items."""
    return 12 + parts + (len(value) if type(value) is dict else 0)


def check_count(what: str, count: int, limit: int) -> None:
    """Raises MalformedJsonError for more than ``limit`` of ``what``."""
    if count > limit:
        raise MalformedJsonError(f"{count} {what} are more than {limit}")


def interned(queue_data: QueueData) -> QueueData:
    """The single object for this value."""
    known = _queue_datas.setdefault(queue_data, queue_data)
    if len(_queue_datas) > MAX_INTERNED:
        _queue_datas.clear()
    return known


def topic_of(value: object) -> tuple[str, QueueData]:
    """Name and queues of one TopicConfig with Java's defaults. Raises MalformedJsonError, also if the name is missing."""
    config = to_object(value, "topic config")
    if config is None:
        raise MalformedJsonError("a topic config is null; leave it out")
    given = members(config, _TOPIC_MEMBERS)
    name = given.get("topicName")
    if type(name) is not str:
        name = to_text(name)
        if name is None:
            raise MalformedJsonError("a topic config has no topicName")
    queue_data = QueueData(
        _int(given, "perm", DEFAULT_PERM),
        _int(given, "readQueueNums", DEFAULT_QUEUE_NUMS),
        _int(given, "topicSysFlag", 0),
        _int(given, "writeQueueNums", DEFAULT_QUEUE_NUMS),
    )
    return intern(name), interned(queue_data)


def _int(given: dict[str, object], name: str, default: int) -> int:
    value = given.get(name)
    if type(value) is int and INT_MIN <= value <= INT_MAX:
        return value
    return to_int(value, name, default)


def data_version_of(value: object) -> DataVersion | None:
    """A DataVersion. None for null and if the timestamp is missing: Java then uses the present time."""
    version = to_object(value, "dataVersion")
    if version is None:
        return None
    given = members(version, _DATA_VERSION_MEMBERS)
    counter = to_long(given.get("counter"), "counter")
    state_version = to_long(given.get("stateVersion"), "stateVersion")
    if given.get("timestamp") is None:
        return None
    return DataVersion(counter, state_version, to_long(given["timestamp"], "timestamp"))


def mapping_info_of(value: object) -> TopicQueueMappingInfo:
    """A TopicQueueMappingInfo with Java's defaults. Raises MalformedJsonError, also without a bname."""
    mapping = to_object(value, "topic queue mapping")
    if mapping is None:
        raise MalformedJsonError("a topic queue mapping is null; leave it out")
    given = members(mapping, _MAPPING_MEMBERS)
    bname = to_text(given.get("bname"))
    if bname is None:
        raise MalformedJsonError("a topic queue mapping has no bname")
    ids = to_map(given.get("currIdMap"), "currIdMap") or {}
    check_count("queues in a topic queue mapping", len(ids), MAX_MAPPED_QUEUES)
    pairs = {to_int(key, "key of currIdMap"): to_int(local, "value of currIdMap") for key, local in ids.items()}
    return TopicQueueMappingInfo(
        intern(bname),
        tuple(sorted(pairs.items())),
        to_bool(given.get("dirty"), "dirty"),
        to_long(given.get("epoch"), "epoch"),
        to_text(given.get("scope", GLOBAL_SCOPE)) or "",
        intern(to_text(given.get("topic")) or ""),
        to_int(given.get("totalQueues"), "totalQueues"),
    )


def mapping_infos_of(value: object) -> Generator[None, None, dict[str, TopicQueueMappingInfo]]:
    """A map of TopicQueueMappingInfo by topic, in slices; null is empty."""
    infos: dict[str, TopicQueueMappingInfo] = {}
    given = to_map(value, "topicQueueMappingInfoMap") or {}
    check_count("topic queue mappings", len(given), TOPICS_MAX)
    work = 0
    for topic, value_of_topic in given.items():
        infos[intern(topic)] = info = mapping_info_of(value_of_topic)
        work += work_of(value_of_topic, len(info.curr_id_map))
        if work > SLICE_WORK:
            work = 0
            yield
    return infos


def filter_servers_of(value: object) -> tuple[str, ...] | None:
    """A list of strings without its nulls; None for null."""
    servers = to_list(value, "filterServerList")
    if servers is None:
        return None
    check_count("filter servers", len(servers), MAX_FILTER_SERVERS)
    return tuple([server for server in map(to_text, servers) if server is not None])

"""Decoding of registrations (``REGISTER_BROKER`` (103), ``RegisterBrokerBody.java``), the largest and most frequent bodies.

There are three decoders: the *canonical* one for exactly the bytes that 4.9 and 5.x brokers write, the *general* one for all
JSON that fastjson accepts, and one for the *compressed* form (``registration_compressed``). If two of them accept a body,
their values are equal.

The canonical decoder splits a body instead of parsing it. A body has three parts, each checked completely: the text before the
topic table (one strict pattern), the table, and the text after it. The table is cut into parts of whole topics, which are
looked up in a cache: mostly, few topics of a registration have changed. A topic that is changed, added or removed mostly
changes few parts (``_CUT``). An unknown part is cut at ``}``. With 5.x that gives two pieces for each topic, a head up to its
attributes and a tail with all relevant fields; with 4.9 it gives one. Tails are looked up in a second cache, whose value also
names the head that belongs to the tail. Brokers with the same topics in another order share it. A piece that does not have
exactly the expected form (a bracket inside a name, an escape, a blank, another order) makes the whole body non-canonical. A
property test compares the canonical decoder with the general one.

Decoding is a generator that yields after every few milliseconds of work and returns the result, so that a server can serve
others between the slices of a large body::

    steps = decode_register_body(body, header.version, compressed)
    body = finish(steps)                      # in one go, or: next(steps) until StopIteration, whose value is the result

Inflated bytes, bytes of one text, nesting, members and topics are bounded. The caches that all bodies share are bounded, too, and
results do not depend on them.

Deviations from RocketMQ 5.3.3: a topic without ``topicName`` is an error, not an incomplete registration. A zlib stream is
recognised even if the header does not announce it, as with 5.x brokers. A topic line may have 5 or more fields in every
version.
"""

import re
from collections.abc import Callable, Generator
from operator import itemgetter
from sys import intern
from typing import Final

from replicated_namesrv.errors import BodyError
from replicated_namesrv.model import TOPICS_MAX, DataVersion, QueueData, TopicQueueMappingInfo
from replicated_namesrv.steps import Steps
from replicated_namesrv.wire.codes import V3_0_11
from replicated_namesrv.wire.fastjson import (
    MAX_BYTES_AT_ONCE,
    MalformedJsonError,
    decode_utf8,
    loads,
    members,
    parse_steps,
    to_map,
    to_object,
)
from replicated_namesrv.wire.registration_compressed import decode_compressed
from replicated_namesrv.wire.registration_values import (
    SLICE_WORK,
    RegisterBrokerBody,
    check_count,
    data_version_of,
    filter_servers_of,
    interned,
    mapping_infos_of,
    topic_of,
    work_of,
)

__all__ = ["MAX_INFLATED_BYTES", "RegisterBrokerBody", "decode_register_body"]

MAX_INFLATED_BYTES: Final = 64 << 20
"""Default limit on the inflated size of a compressed body."""
MAX_MEMBERS: Final = 1_500_000
"""Maximum number of keys, items and closing brackets in a non-canonical body: 100,000 topics have about a million."""

_ZLIB_FIRST_BYTE = 0x78
_BODY_MEMBERS = frozenset(("filterServerList", "topicConfigSerializeWrapper"))
_WRAPPER_MEMBERS = frozenset(
    ("dataVersion", "mappingDataVersion", "topicConfigTable", "topicQueueMappingDetailMap", "topicQueueMappingInfoMap")
)


def decode_register_body(
    body: bytes, version: int, compressed: bool, max_inflated_bytes: int = MAX_INFLATED_BYTES
) -> Steps[RegisterBrokerBody]:
    """Decode the body of a registration in slices: yields None between them and returns a RegisterBrokerBody.

    ``version`` and ``compressed`` are those of the header. An empty body means no body. Raises BodyError.
    """
    if version < 0:
        raise BodyError(f"version {version} is negative; send an ordinal of MQVersion")
    if not body:
        return RegisterBrokerBody(DataVersion(0, 0, 0), {}, {}, () if version >= V3_0_11 else None)
    try:
        if version < V3_0_11:
            return (yield from _decode_wrapper((yield from _read(body)), None))
        if compressed or body[0] == _ZLIB_FIRST_BYTE:
            return (yield from decode_compressed(body, version, max_inflated_bytes))
        decoded = yield from decode_canonical(body)
        if decoded is None:
            decoded = yield from decode_general(body)
        return decoded
    except MalformedJsonError as error:
        raise BodyError(f"Failed to decode RegisterBrokerBody: {error}") from None


def decode_general(body: bytes) -> Steps[RegisterBrokerBody]:
    """The general decoder, for any JSON body. Raises MalformedJsonError."""
    value = to_object((yield from _read(body)), "body")
    if value is None:
        raise MalformedJsonError("the body is null")
    given = members(value, _BODY_MEMBERS)
    filter_servers = filter_servers_of(given.get("filterServerList", []))
    return (yield from _decode_wrapper(given.get("topicConfigSerializeWrapper", {}), filter_servers))


def _read(body: bytes) -> Generator[None, None, object]:
    """JSON of any size: small texts in one step, large ones in slices."""
    if len(body) <= MAX_BYTES_AT_ONCE:
        try:
            return loads(body)
        except MalformedJsonError:
            pass
    yield
    text = decode_utf8(body)
    yield
    return (yield from parse_steps(text, MAX_MEMBERS))


def _decode_wrapper(value: object, filter_servers: tuple[str, ...] | None) -> Steps[RegisterBrokerBody]:
    """A TopicConfigSerializeWrapper, which is the whole body before 3.0.11."""
    wrapper = to_object(value, "topicConfigSerializeWrapper")
    if wrapper is None:
        return RegisterBrokerBody(None, None, {}, filter_servers)
    given = members(wrapper, _WRAPPER_MEMBERS)
    table = to_map(given.get("topicConfigTable", {}), "topicConfigTable")
    topics: dict[str, QueueData] | None = None
    if table is not None:
        check_count("topics", len(table), TOPICS_MAX)
        topics = {}
        work = 0
        for key in list(table):
            # Entries are removed one by one, so that the memory of a large table is also freed in slices.
            config = table.pop(key)
            name, queue_data = topic_of(config)
            topics[name] = queue_data
            work += work_of(config, len(name))
            if work > SLICE_WORK:
                work = 0
                yield
    mappings = yield from mapping_infos_of(given.get("topicQueueMappingInfoMap"))
    return RegisterBrokerBody(data_version_of(given.get("dataVersion")), topics, mappings, filter_servers)


# The canonical decoder

MAX_REMEMBERED: Final = 65_536
"""Maximum number of pieces in the cache, about 500 bytes each. The cache is emptied when it is full."""
MAX_REMEMBERED_BYTES: Final = 512
"""A longer tail is not cached."""
PART_BYTES: Final = 8_192
"""Least length of a part of a table, except the last one. Parts end at ``_CUT``, mostly soon after this number of bytes."""
MAX_PARTS_BYTES: Final = 16 << 20
"""Maximum total of the parts in their cache, in bytes. The cache is emptied when it is full."""
SLICE_BYTES: Final = 200_000
"""Number of bytes of a table that are decoded between two yields: about 2 ms if no piece is cached."""
MAX_TOPIC_BYTES: Final = 400_000
"""A table with a longer topic is not canonical."""

_LONG = rb"(0|[1-9][0-9]{0,17})"
_VERSION = rb'\{"counter":' + _LONG + rb',(?:"stateVersion":' + _LONG + rb',)?"timestamp":' + _LONG + rb"\}"
_BEFORE_TABLE = re.compile(
    rb'\{"filterServerList":(\[(?:"[^"\\]{0,255}+"(?:,"[^"\\]{0,255}+"){0,999})?\]),"topicConfigSerializeWrapper":\{"dataVersion":'
    + _VERSION
    + rb',(?:"mappingDataVersion":'
    + _VERSION
    + rb',)?"topicConfigTable":\{'
)
_BEFORE_MAPPINGS = b'},"topicQueueMappingDetailMap":{},"topicQueueMappingInfoMap":'
_INT = rb"(0|-?[1-9][0-9]{0,8})"
_SHAPE = re.compile(
    rb',"order":(?:true|false),"perm":' + _INT + rb',"readQueueNums":' + _INT + rb',"topicFilterType":"(?:SINGLE_TAG|MULTI_TAG)",'
    rb'"topicName":"","topicSysFlag":' + _INT + rb',"writeQueueNums":' + _INT
)
_ATTRIBUTES = re.compile(rb'(?:"[^"\\]*+":"[^"\\]*+"(?:,"[^"\\]*+":"[^"\\]*+")*)?')
_END_OF_TOPIC = re.compile(rb"[0-9]\},")
_CUT = re.compile(rb'[0-9]\},(?="[^"\\]{0,255}[048cgkoswCGKOSW_]":)')
"""The preferred end of a part: a topic before one whose name ends with one of these characters, about every fourth. So if a topic
is added or removed, the cuts after it are mostly the same again within a few parts."""

Topic = tuple[str, QueueData]
Known = tuple[bytes, Topic]
_parts: dict[bytes, list[Topic]] = {}
"""Cache: from a part of a table to its topics."""
_parts_bytes = 0
_known: dict[bytes, Known] = {}
"""Cache: from the tail of a topic (4.9: its whole text) to its head without attributes and its value."""
_shapes: dict[tuple[bytes, bytes], QueueData] = {}
"""Cache: from the text around the name in a tail to the queues."""
_head_of = itemgetter(0)
_topic_of = itemgetter(1)


def without_meaning(body: bytes | memoryview) -> tuple[int, int]:
    """(start, end) of bytes in a canonical body that may change without a change of meaning; (0, 0) if there are none.

    5.x brokers change ``mappingDataVersion`` at each registration. A name server reads this member and never uses it.
    """
    before = _BEFORE_TABLE.match(body)
    return (0, 0) if before is None or before.start(5) < 0 else (before.start(5), before.end(7))


def decode_canonical(body: bytes) -> Generator[None, None, RegisterBrokerBody | None]:
    """Decode in slices. None if the body is not canonical. Raises MalformedJsonError if it is canonical with an invalid value."""
    before = _BEFORE_TABLE.match(body)
    if before is None:
        return None
    start = before.end()
    end = body.rfind(_BEFORE_MAPPINGS, start - 1)
    if end >= 0:
        mappings = yield from _mappings(body[end + len(_BEFORE_MAPPINGS) :])
        if mappings is None:
            return None
    elif body.endswith(b"}}}"):
        end, mappings = len(body) - 3, {}
    else:
        return None
    topics: dict[str, QueueData] = {}
    yields_at = start + SLICE_BYTES
    while start < end:
        limit = start + PART_BYTES + MAX_TOPIC_BYTES
        cut = _CUT.search(body, min(start + PART_BYTES, end), min(start + 2 * PART_BYTES, end))
        if cut is None:
            cut = _END_OF_TOPIC.search(body, min(start + PART_BYTES, end), min(limit, end))
        if cut is None and limit < end:
            return None
        part_end = end if cut is None else cut.start() + 2
        part = _topics_of(body[start:part_end])
        if part is None:
            return None
        topics.update(part)
        start = part_end + 1
        if yields_at <= start < end:
            yields_at = start + SLICE_BYTES
            yield
    filter_servers, counter, state_version, timestamp = before.group(1, 2, 3, 4)
    return RegisterBrokerBody(
        DataVersion(int(counter), int(state_version or 0), int(timestamp)),
        topics,
        mappings,
        () if filter_servers == b"[]" else filter_servers_of(loads(filter_servers)),
    )


def _mappings(rest: bytes) -> Generator[None, None, dict[str, TopicQueueMappingInfo] | None]:
    """The last member and the two brackets that close the body."""
    if rest == b"{}}}":
        return {}
    if not rest.endswith(b"}}}") or b"/" in rest:
        # A slash may begin a comment, which would hide the brackets.
        return None
    try:
        return (yield from mapping_infos_of(loads(rest[:-2])))
    except MalformedJsonError:
        return None


def _topics_of(part: bytes) -> list[Topic] | None:
    """The topics of a part of the table, from the quote of a key to the bracket that ends a topic. None: not canonical."""
    global _parts_bytes
    known = _parts.get(part)
    if known is None:
        known = _decode_part(part)
        if known is None:
            return None
        if len(part) <= 3 * PART_BYTES:
            if _parts_bytes + len(part) > MAX_PARTS_BYTES:
                _parts.clear()
                _parts_bytes = 0
            _parts[part] = known
            _parts_bytes += len(part)
    return known


def _decode_part(part: bytes) -> list[Topic] | None:
    pieces = part.split(b"}")
    if pieces.pop():
        return None
    pieces[0] = b"," + pieces[0]
    if len(pieces) > 1 and pieces[1].startswith(b',"order":'):
        heads, tails = pieces[0::2], pieces[1::2]
        known = _look_up(tails, _understand)
        if known is None or len(heads) != len(tails):
            return None
        if list(map(_head_of, known)) != heads and not _heads_fit(heads, known):
            return None
    else:
        known = _look_up(pieces, _understand_whole)
        if known is None:
            return None
    return list(map(_topic_of, known))


def _look_up(pieces: list[bytes], understand: Callable[[list[bytes]], list[Known] | None]) -> list[Known] | None:
    """The cached value of each piece, after decoding new ones. None: one of them is not canonical."""
    found = list(map(_known.get, pieces))
    if not all(found):  # faster than a search for None, and no value is empty
        new = [index for index, known in enumerate(found) if known is None]
        understood = understand([pieces[index] for index in new])
        if understood is None:
            return None
        if len(_known) + len(new) > MAX_REMEMBERED:
            _known.clear()
        for index, known in zip(new, understood, strict=True):
            found[index] = known
            piece = pieces[index]
            if len(piece) <= MAX_REMEMBERED_BYTES:
                _known[piece] = known
    return found  # type: ignore[return-value]  # every None was filled in


def _understand(tails: list[bytes]) -> list[Known] | None:
    """Decode tails of the 5.x form, from ``,"order":`` on."""
    understood: list[Known] = []
    for tail in tails:
        before, _, rest = tail.partition(b'"topicName":"')
        name, _, after = rest.partition(b'"')
        queue_data = _shapes.get((before, after)) or _understand_shape(before, after)
        if queue_data is None or b"\\" in name:
            return None
        try:
            topic = intern(name.decode())
        except UnicodeDecodeError:
            return None
        understood.append((b',"%b":{"attributes":{' % name, (topic, queue_data)))
    return understood


def _understand_whole(pieces: list[bytes]) -> list[Known] | None:
    """Decode topics of the 4.9 form. Each piece is split into the head and the tail of the 5.x form."""
    cuts = [piece.partition(b'":{"order":') for piece in pieces]
    understood = _understand([b',"order":' + rest for _, _, rest in cuts])
    if understood is None:
        return None
    heads = [key + b'":{"attributes":{' for key, _, _ in cuts]
    return understood if list(map(_head_of, understood)) == heads else None


def _understand_shape(before: bytes, after: bytes) -> QueueData | None:
    match = _SHAPE.fullmatch(b'%b"topicName":"",%b' % (before, after.removeprefix(b",")))
    if match is None:
        return None
    perm, read_queue_nums, topic_sys_flag, write_queue_nums = map(int, match.groups())
    queue_data = interned(QueueData(perm, read_queue_nums, topic_sys_flag, write_queue_nums))
    if len(_shapes) >= MAX_REMEMBERED:
        _shapes.clear()
    _shapes[before, after] = queue_data
    return queue_data


def _heads_fit(heads: list[bytes], known: list[Known]) -> bool:
    """Whether each head is the head of its topic, with or without attributes."""
    for head, (plain, _) in zip(heads, known, strict=True):
        if head != plain:
            if not head.startswith(plain) or _ATTRIBUTES.fullmatch(head, len(plain)) is None:
                return False
            try:
                head.decode()
            except UnicodeDecodeError:
                return False
    return True

"""The canonical way through a registration: the very bytes that 4.9 and 5.x brokers write, at the speed of cutting them up.

A body has three parts, each checked completely: what stands before the topic table (one strict pattern), the table, and what
follows it. The table is cut at ``}``. With 5.x that gives two pieces for each topic, a head up to its attributes and a tail with
everything of interest, with 4.9 one. Tails are looked up in a table of those already understood; the value found says which
head belongs to it. Pieces that are not exactly of the expected form, whatever the reason (a bracket inside a name, an escape, a
blank, another order), make the whole body non-canonical. Nothing is guessed: what is accepted here means the same to the general
reader, and a property test holds the two against each other.
"""

import re
from collections.abc import Callable, Generator
from operator import itemgetter
from sys import intern
from typing import Final

from replicated_namesrv.model import DataVersion, QueueData, TopicQueueMappingInfo
from replicated_namesrv.wire.fastjson import MalformedJsonError, loads
from replicated_namesrv.wire.registration_values import RegisterBrokerBody, filter_servers_of, interned, mapping_infos_of

MAX_REMEMBERED: Final = 65_536
"""Pieces that are remembered; about 500 bytes each, all forgotten at once when there are more."""
MAX_REMEMBERED_BYTES: Final = 512
"""A longer tail is understood anew each time."""
SLICE_BYTES: Final = 200_000
"""Bytes of a table decoded between two yields: about 2 ms where nothing was seen before."""
MAX_TOPIC_BYTES: Final = 400_000
"""A longer topic is not canonical."""

_LONG = rb"(0|[1-9][0-9]{0,17})"
_VERSION = rb'\{"counter":' + _LONG + rb',(?:"stateVersion":' + _LONG + rb',)?"timestamp":' + _LONG + rb"\}"
_BEFORE_TABLE = re.compile(
    rb'\{"filterServerList":(\[(?:"[^"\\]{0,255}+"(?:,"[^"\\]{0,255}+"){0,999}+)?\]),"topicConfigSerializeWrapper":\{"dataVersion":'
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
_ATTRIBUTES = re.compile(rb'(?:"[^"\\]*+":"[^"\\]*+"(?:,"[^"\\]*+":"[^"\\]*+")*+)?')
_END_OF_TOPIC = re.compile(rb"[0-9]\},")

Topic = tuple[str, QueueData]
Known = tuple[bytes, Topic]
_known: dict[bytes, Known] = {}
"""Tail (4.9: all) of a topic -> the head it has without attributes, the topic."""
_shapes: dict[tuple[bytes, bytes], QueueData] = {}
"""What surrounds the name in a tail -> the queues."""
_head_of = itemgetter(0)
_topic_of = itemgetter(1)


def without_meaning(body: bytes | memoryview) -> tuple[int, int]:
    """(start, end) of bytes that a canonical body may change without meaning anything else; (0, 0) where there are none.

    5.x brokers stamp ``mappingDataVersion`` anew each time they register. A name server reads it and never uses it.
    """
    before = _BEFORE_TABLE.match(body)
    return (0, 0) if before is None or before.start(5) < 0 else (before.start(5), before.end(7))


def decode_canonical(body: bytes) -> Generator[None, None, RegisterBrokerBody | None]:
    """Decode in slices; None if the body is not canonical. Raises MalformedJsonError where it is, but holds no good value."""
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
    while start < end:
        limit = start + SLICE_BYTES + MAX_TOPIC_BYTES
        cut = _END_OF_TOPIC.search(body, min(start + SLICE_BYTES, end), min(limit, end))
        if cut is None and limit < end:
            return None
        slice_end = end if cut is None else cut.start() + 2
        if not _decode_table(body[start:slice_end], topics):
            return None
        start = slice_end + 1
        if start < end:
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


def _decode_table(table: bytes, topics: dict[str, QueueData]) -> bool:
    """Add the topics of a part of the table, from the quote of a key to the bracket that ends a topic. False: not canonical."""
    pieces = table.split(b"}")
    if pieces.pop():
        return False
    pieces[0] = b"," + pieces[0]
    if len(pieces) > 1 and pieces[1].startswith(b',"order":'):
        heads, tails = pieces[0::2], pieces[1::2]
        known = _look_up(tails, _understand)
        if known is None or len(heads) != len(tails):
            return False
        if list(map(_head_of, known)) != heads and not _heads_fit(heads, known):
            return False
    else:
        known = _look_up(pieces, _understand_whole)
        if known is None:
            return False
    topics.update(map(_topic_of, known))
    return True


def _look_up(pieces: list[bytes], understand: Callable[[list[bytes]], list[Known] | None]) -> list[Known] | None:
    """What is known of each piece, after understanding and remembering the new ones. None: one of them is not canonical."""
    found = list(map(_known.get, pieces))
    if None in found:
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
    """Tails of the 5.x form, from ``,"order":`` on."""
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
    """Topics of the 4.9 form: each piece is cut into the head and the tail that the 5.x form would have."""
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
    """Whether each head is that of its topic, with attributes or without."""
    for head, (plain, _) in zip(heads, known, strict=True):
        if head != plain:
            if not head.startswith(plain) or _ATTRIBUTES.fullmatch(head, len(plain)) is None:
                return False
            try:
                head.decode()
            except UnicodeDecodeError:
                return False
    return True

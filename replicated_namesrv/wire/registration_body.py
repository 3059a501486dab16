"""Decoding of registrations (code 103, ``RegisterBrokerBody.java``): the largest and most frequent bodies a name server gets.

There are three ways through: the *canonical* one for the very bytes that 4.9 and 5.x brokers write (``registration_canonical``),
the *general* one for anything fastjson takes, and the *compressed* form (``registration_compressed``). Where two of them take a
body they give equal values.

Decoding is a generator that yields after every few milliseconds of work and returns the result, so that a server can serve
others between the slices of a large body::

    steps = decode_register_body(body, header.version, compressed)
    body = finish(steps)                      # at one go, or: next(steps) until StopIteration, whose value is the result

Sizes are bounded: inflated bytes, bytes of one text, nesting, members, topics. What is remembered between bodies is bounded and
invisible: results never depend on it.

Deviations from RocketMQ 5.3.3, towards a clear error or towards peers that Java turns away: a topic without ``topicName`` is an
error instead of a half-done registration; a zlib stream is recognised even if the header does not announce it, as 5.x brokers
forget to; a topic line may have 5 or more fields whatever the version.
"""

from collections.abc import Generator
from typing import Final

from replicated_namesrv.errors import BodyError
from replicated_namesrv.model import DataVersion, QueueData
from replicated_namesrv.wire.codes import V3_0_11
from replicated_namesrv.wire.fastjson import MAX_BYTES_AT_ONCE, MalformedJsonError, decode_utf8, loads, parse_steps
from replicated_namesrv.wire.fastjson_values import members, to_map, to_object
from replicated_namesrv.wire.registration_canonical import decode_canonical
from replicated_namesrv.wire.registration_compressed import decode_compressed
from replicated_namesrv.wire.registration_values import (
    MAX_TOPICS,
    SLICE_WORK,
    RegisterBrokerBody,
    check_count,
    data_version_of,
    filter_servers_of,
    mapping_infos_of,
    topic_of,
    work_of,
)

__all__ = ["MAX_INFLATED_BYTES", "RegisterBrokerBody", "Steps", "decode_register_body"]

MAX_INFLATED_BYTES: Final = 64 << 20
"""Default limit of what a compressed body may inflate to."""
MAX_MEMBERS: Final = 1_500_000
"""Keys, items and closing brackets of a body that is not canonical: 100,000 topics have about a million."""

_ZLIB_FIRST_BYTE = 0x78
_BODY_MEMBERS = frozenset(("filterServerList", "topicConfigSerializeWrapper"))
_WRAPPER_MEMBERS = frozenset(
    ("dataVersion", "mappingDataVersion", "topicConfigTable", "topicQueueMappingDetailMap", "topicQueueMappingInfoMap")
)

Steps = Generator[None, None, RegisterBrokerBody]


def decode_register_body(body: bytes, version: int, compressed: bool, max_inflated_bytes: int = MAX_INFLATED_BYTES) -> Steps:
    """Decode the body of a registration in slices: yields None between them, returns a RegisterBrokerBody.

    ``version`` and ``compressed`` are the header's; an empty body means no body. Raises BodyError.
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


def decode_general(body: bytes) -> Steps:
    """The general way, for any JSON body. Raises MalformedJsonError."""
    value = to_object((yield from _read(body)), "body")
    if value is None:
        raise MalformedJsonError("the body is null")
    given = members(value, _BODY_MEMBERS)
    filter_servers = filter_servers_of(given.get("filterServerList", []))
    return (yield from _decode_wrapper(given.get("topicConfigSerializeWrapper", {}), filter_servers))


def _read(body: bytes) -> Generator[None, None, object]:
    """JSON of any size: small texts at one go, large ones in slices."""
    if len(body) <= MAX_BYTES_AT_ONCE:
        try:
            return loads(body)
        except MalformedJsonError:
            pass
    yield
    text = decode_utf8(body)
    yield
    return (yield from parse_steps(text, MAX_MEMBERS))


def _decode_wrapper(value: object, filter_servers: tuple[str, ...] | None) -> Steps:
    """A TopicConfigSerializeWrapper, which is all there is before 3.0.11."""
    wrapper = to_object(value, "topicConfigSerializeWrapper")
    if wrapper is None:
        return RegisterBrokerBody(None, None, {}, filter_servers)
    given = members(wrapper, _WRAPPER_MEMBERS)
    table = to_map(given.get("topicConfigTable", {}), "topicConfigTable")
    topics: dict[str, QueueData] | None = None
    if table is not None:
        check_count("topics", len(table), MAX_TOPICS)
        topics = {}
        work = 0
        for key in list(table):
            # Taken out, so that the memory of a large table is freed slice by slice too.
            config = table.pop(key)
            name, queue_data = topic_of(config)
            topics[name] = queue_data
            work += work_of(config, len(name))
            if work > SLICE_WORK:
                work = 0
                yield
    mappings = yield from mapping_infos_of(given.get("topicQueueMappingInfoMap"))
    return RegisterBrokerBody(data_version_of(given.get("dataVersion")), topics, mappings, filter_servers)

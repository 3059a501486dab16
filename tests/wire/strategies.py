"""Registrations as brokers write them, and damaged ones."""

import json
from typing import Any

from hypothesis import strategies as st

from replicated_namesrv.wire.fastjson_writer import dumps

NAMES = st.text(st.sampled_from('abAB01_%-|é😀{}[]:,"\\/\n '), min_size=1, max_size=8)
"""Topic names with all characters that could confuse a decoder that cuts at brackets."""
PLAIN_NAMES = st.text(st.sampled_from("abcAB01_%-|é"), min_size=1, max_size=8)
SMALL = st.integers(0, 1100)
LONG = st.integers(0, 10**18 - 1)


def _bool(value: bool) -> str:
    return "true" if value else "false"


@st.composite
def topic_entry(draw: st.DrawFn, names: st.SearchStrategy[str], with_attributes: bool) -> str:
    """One member of topicConfigTable as fastjson writes it."""
    name = dumps(draw(names))
    attributes = ""
    if with_attributes:
        attributes = f'"attributes":{dumps(draw(st.dictionaries(names, names, max_size=2)))},'
    kind = draw(st.sampled_from(["SINGLE_TAG", "MULTI_TAG"]))
    return (
        f'{name}:{{{attributes}"order":{_bool(draw(st.booleans()))},"perm":{draw(SMALL)},"readQueueNums":{draw(SMALL)},'
        f'"topicFilterType":"{kind}","topicName":{name},"topicSysFlag":{draw(SMALL)},"writeQueueNums":{draw(SMALL)}}}'
    )


@st.composite
def registration(draw: st.DrawFn, names: st.SearchStrategy[str]) -> str:
    """A whole body as a 5.x or 4.9 broker writes it."""
    new = draw(st.booleans())
    topics = ",".join(draw(st.lists(topic_entry(names, new), max_size=6)))
    servers = json.dumps(draw(st.lists(PLAIN_NAMES, max_size=2)), separators=(",", ":"), ensure_ascii=False)
    version = f'"counter":{draw(LONG)},{_state_version(draw) if new else ""}"timestamp":{draw(LONG)}'
    mapping_version = '"mappingDataVersion":{"counter":0,"stateVersion":0,"timestamp":1},' if new else ""
    mappings = ""
    if new:
        infos = draw(st.dictionaries(names, mapping_info(names), max_size=2))
        body = ",".join(f"{dumps(topic)}:{info}" for topic, info in infos.items())
        mappings = f',"topicQueueMappingDetailMap":{{}},"topicQueueMappingInfoMap":{{{body}}}'
    return (
        f'{{"filterServerList":{servers},"topicConfigSerializeWrapper":{{"dataVersion":{{{version}}},{mapping_version}'
        f'"topicConfigTable":{{{topics}}}{mappings}}}}}'
    )


def _state_version(draw: st.DrawFn) -> str:
    return f'"stateVersion":{draw(LONG)},'


@st.composite
def mapping_info(draw: st.DrawFn, names: st.SearchStrategy[str]) -> str:
    """A TopicQueueMappingInfo as fastjson writes it: bare whole-number keys."""
    value: dict[str, Any] = {
        "bname": draw(names),
        "currIdMap": draw(st.dictionaries(SMALL, SMALL, max_size=3)),
        "dirty": draw(st.booleans()),
        "epoch": draw(LONG),
        "scope": "__global__",
        "topic": draw(names),
        "totalQueues": draw(SMALL),
    }
    return dumps(value)


FRAGMENTS = [
    *map(str.encode, "\"'\\{}[],: 01-."), b"\xff", b"\xc3\xa9", b"null", b"true", b"//", b"/*", b"*/", b"},",
    b'},"', b"}}", b"}}}",
    b'"attributes":{},', b'"topicName":"x",', b'"order":false,', b'"topicConfigTable":{},', b'"topicQueueMappingInfoMap":{}',
    b'"x":{"attributes":{},"order":', b'{"a":"b"}', b'"perm":"4",',
]  # fmt: skip  # items grouped by line


@st.composite
def damaged(draw: st.DrawFn, bodies: st.SearchStrategy[str]) -> bytes:
    """A body with a few things inserted, cut out, repeated or exchanged."""
    body = bytearray(draw(bodies).encode())
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(body)))
        action = draw(st.sampled_from(["insert", "cut", "repeat", "replace"]))
        if action == "insert":
            body[at:at] = draw(st.sampled_from(FRAGMENTS))
        elif action == "cut":
            del body[at : at + draw(st.integers(1, 40))]
        elif action == "repeat":
            body[at:at] = body[at : at + draw(st.integers(1, 250))]
        else:
            body[at : at + 1] = draw(st.sampled_from(FRAGMENTS))
    return bytes(body)

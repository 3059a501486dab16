"""Headers in both encodings: recorded ones byte for byte, the forms that fastjson accepts, and the position of the opaque."""

import json
import re
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from replicated_namesrv.errors import FrameError
from replicated_namesrv.wire.frame import frame, next_frame
from replicated_namesrv.wire.header import (
    BINARY_OPAQUE,
    JSON,
    MAX_HEADER_FIELDS,
    ROCKETMQ,
    RemotingHeader,
    answer_frame,
    answer_parts,
    command_frame,
    decode_header,
    decode_json_header,
    encode_header,
    opaque_bytes,
    opaque_is_certain,
)
from tests.wire.data import RecordedFrame, lines, recorded_answers, recorded_frames

INT32 = st.integers(-(2**31), 2**31 - 1)
INT16 = st.integers(-(2**15), 2**15 - 1)
TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
EXACT_TEXT = TEXT.filter(lambda text: text != "")


def headers(kind: int) -> st.SearchStrategy[RemotingHeader]:
    """Headers that the encoding can carry: in binary neither empty texts nor an empty map."""
    texts = EXACT_TEXT if kind == ROCKETMQ else TEXT
    small = INT16 if kind == ROCKETMQ else INT32
    fields = st.dictionaries(texts, texts, max_size=5, min_size=1 if kind == ROCKETMQ else 0)
    return st.builds(
        RemotingHeader,
        code=small,
        flag=INT32,
        language=st.integers(0, 13),
        opaque=INT32,
        version=small,
        remark=st.none() | texts,
        ext_fields=st.none() | fields,
        serialize_type=st.just(kind),
    )


@pytest.mark.parametrize("recorded", recorded_frames(), ids=lambda recorded: recorded.name)
def test_recorded_headers_are_read_and_written_byte_for_byte(recorded: RecordedFrame) -> None:
    bounds = next_frame(recorded.whole, 0, len(recorded.whole))
    assert bounds == (recorded.serialize_type, 8, 8 + len(recorded.header), len(recorded.whole))
    header = decode_header(recorded.header, recorded.serialize_type)
    expected = recorded.decoded
    assert (header.code, header.flag, header.opaque, header.version) == tuple(
        expected[member] for member in ("code", "flag", "opaque", "version")
    )
    assert header.remark == expected.get("remark")
    assert header.ext_fields == expected.get("extFields")
    assert encode_header(header) == recorded.header
    assert command_frame(header, recorded.body) == recorded.whole


def test_answers_are_written_as_the_java_server_writes_them() -> None:
    for text, body in recorded_answers():
        given = json.loads(text)
        parts = answer_parts(given["code"], given.get("remark"), given.get("extFields"), body.encode())
        whole = answer_frame(parts, opaque_bytes(given["opaque"], JSON))
        assert whole == frame(text.encode(), body.encode())


@pytest.mark.parametrize(
    ("header", "text"),
    [
        (
            RemotingHeader(105, 0, 9, 7, 479, None, {"topic": "A"}, ROCKETMQ),
            "00690901df0000000700000000000000000000000c0005746f7069630000000141",
        ),
        (RemotingHeader(17, 1, 0, 7, 479, "é", None, ROCKETMQ), "00110001df000000070000000100000002c3a900000000"),
        (
            RemotingHeader(0, 1, 0, 7, 479, None, {"changed": "true"}, ROCKETMQ),
            "00000001df00000007000000010000000000000011" + "00076368616e6765640000000474727565",
        ),
        (
            RemotingHeader(0, 1, 0, 7, 479, None, {"changed": "true"}),
            b'{"code":0,"extFields":{"changed":"true"},"flag":1,"language":"JAVA","opaque":7,'
            b'"serializeTypeCurrentRPC":"JSON","version":479}'.hex(),
        ),
    ],
)
def test_vectors_of_the_java_codec(header: RemotingHeader, text: str) -> None:
    assert encode_header(header).hex() == text
    assert decode_header(bytes.fromhex(text), header.serialize_type) == header


@pytest.mark.slow
@given(headers(JSON) | headers(ROCKETMQ))
def test_a_header_survives_writing_and_reading(header: RemotingHeader) -> None:
    assert decode_header(encode_header(header), header.serialize_type) == header


@pytest.mark.parametrize("row", lines("fastjson_headers.jsonl"), ids=lambda row: row["header"])
def test_json_headers_mean_what_they_mean_to_fastjson(row: dict[str, Any]) -> None:
    """Each row was given to fastjson 1.2.83 and RemotingCommand of 5.3.3; null: it fails and the connection is closed."""
    data = row["header"].encode("latin-1")
    if row["java"] is None:
        with pytest.raises(FrameError):
            decode_json_header(data)
        return
    header = decode_json_header(data)
    members = ("code", "flag", "language", "opaque", "remark", "version")
    assert {**{name: getattr(header, name) for name in members}, "ext": header.ext_fields} == row["java"]


@pytest.mark.parametrize(
    "text",
    [
        '{"code":1;"flag":2}',
        '{"code":+1}',
        '{"extFields":{"a":new Date(1)}}',
        '{"extFields":{"a":Set[1]}}',
        '{"code":1e999999999}',
        '{"extFields":{"a":1E99999999999999999999}}',
        '{"code":12345678901.5}',
    ],
)
def test_what_fastjson_takes_by_accident_is_refused(text: str) -> None:
    with pytest.raises(FrameError):
        decode_json_header(text.encode())


@pytest.mark.parametrize(
    "text",
    [
        "00690001df0000000500000000000000000000038461",  # map longer than the header
        "00690001df",
        "",
        "00690001df0000000500000000ffffffff00000000",  # negative remark
        "00690001df00000005000000000000000000000007000161000000086262626262626262",  # value longer than the map
        "00690001df00000005000000000000000000000008ffff00000001000000",  # negative key
        "00690001df00000005000000000000000000000007000178000000",  # map cut off
    ],
)
def test_malformed_binary_headers_are_refused(text: str) -> None:
    with pytest.raises(FrameError):
        decode_header(bytes.fromhex(text), ROCKETMQ)


def test_binary_headers_as_lenient_as_java() -> None:
    base = "00696301df0000000500000000"
    unknown_language_no_map = bytes.fromhex(base + "00000000" + "ffffffff")
    assert decode_header(unknown_language_no_map, ROCKETMQ) == RemotingHeader(105, 0, None, 5, 479, None, None, ROCKETMQ)
    null_key_and_value = bytes.fromhex(base + "00000000" + "0000000d" + "000000000000" + "00016100000000" + "ee")
    assert decode_header(null_key_and_value, ROCKETMQ).ext_fields == {}
    broken_text = bytes.fromhex(base + "00000001ff" + "00000000")
    assert decode_header(broken_text, ROCKETMQ).remark == "\ufffd"


def test_what_does_not_fit_into_a_binary_header_is_refused() -> None:
    with pytest.raises(FrameError, match="does not fit"):
        encode_header(RemotingHeader(40_000, serialize_type=ROCKETMQ))


@given(st.binary(max_size=60), st.integers(0, 1))
def test_any_bytes_are_a_header_or_an_error(data: bytes, kind: int) -> None:
    try:
        header = decode_header(data, kind)
    except FrameError:
        return
    header.remark and header.remark.encode()
    for key, value in (header.ext_fields or {}).items():
        key.encode()
        value.encode()


@given(st.data())
def test_any_changed_header_is_a_header_or_an_error(data: st.DataObject) -> None:
    text = bytearray(encode_header(data.draw(headers(data.draw(st.integers(0, 1))))))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text)))
        text[at : at + data.draw(st.integers(0, 2))] = data.draw(
            st.sampled_from([*b"\"'\\,:{}[]019eE.-/*n", 0, 255]).map(lambda b: [b])
        )
    for kind in (JSON, ROCKETMQ):
        try:
            decode_header(bytes(text), kind)
        except FrameError:
            continue


@pytest.mark.parametrize(
    "data",
    [
        b'{"extFields":{' + b",".join(b'"%d":""' % n for n in range(MAX_HEADER_FIELDS + 1)) + b"}}",
        b'{"extFields":{' + b",".join(b"k%d:1" % n for n in range(300_000)) + b"}}",
        b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"x":' + b'{"a":' * 100_000,
        b'{"extFields":{"a":' + b"[" * 500 + b"]" * 500 + b"}}",
        b'{"code":' + b"9" * 1_000_000 + b"}",
        b"{%b}" % b",".join(b'"%d":"%b"' % (n, rb"\x41" * 1000) for n in range(60)),
    ],
    ids=["fields", "bare fields", "arrays", "objects", "text of arrays", "digits", "escapes"],
)
def test_hostile_json_headers_are_refused(data: bytes) -> None:
    with pytest.raises(FrameError):
        decode_json_header(data)


def test_long_values_are_no_reason_to_refuse() -> None:
    fields = {"value": "b:8;" * 100_000, "digits": "9" * 100_000}
    header = RemotingHeader(100, ext_fields=fields, version=479)
    assert decode_json_header(encode_header(header)) == header
    assert decode_json_header(b'{"extFields":{"a":%b}}' % (b"7" * 5000)).ext_fields == {"a": "7" * 5000}


def test_a_million_binary_fields_are_refused() -> None:
    fields = b"\x00\x01a\x00\x00\x00\x01b" * 1_000_000
    data = bytes.fromhex("00690001df000000050000000000000000") + len(fields).to_bytes(4) + fields
    with pytest.raises(FrameError, match=f"more than {MAX_HEADER_FIELDS}"):
        decode_header(data, ROCKETMQ)


# -- the opaque

NUMBER = re.compile(rb'"opaque":(-?(?:0|[1-9][0-9]*))(?=[,}])')


def cut_opaque(header: bytes) -> tuple[bytes, bytes] | None:
    """The bytes before and after the first number that could be the opaque."""
    match = NUMBER.search(header)
    return match and (header[: match.start(1)], header[match.end(1) :])


@given(headers(JSON))
def test_the_opaque_of_a_written_header_is_certain(header: RemotingHeader) -> None:
    text = encode_header(header)
    cut = cut_opaque(text)
    assert cut is not None
    assert b"%b%d%b" % (cut[0], header.opaque, cut[1]) == text
    assert opaque_is_certain(*cut)


@given(headers(ROCKETMQ))
def test_the_opaque_of_a_binary_header_has_its_place(header: RemotingHeader) -> None:
    text = bytearray(encode_header(header))
    assert text[BINARY_OPAQUE] == opaque_bytes(header.opaque, ROCKETMQ)
    text[BINARY_OPAQUE] = opaque_bytes(42, ROCKETMQ)
    assert decode_header(text, ROCKETMQ) == header._replace(opaque=42)


@pytest.mark.parametrize(
    "text",
    [
        '{"code":105,"extFields":{"topic":"A","opaque":5},"flag":0}',
        '{"code":105,"Opaque":5,"x":{"opaque":5,"y":1}}',
        "{'code':105,'remark':',\"opaque\":5,','Opaque':5}",
        '{"extFields":{"topic":"}","opaque":5,"u":"{"}}',
        '{"opaque":5,"extFields":{"topic":"A"},"opaque":6}',
        '{"opaque":5,"extFields":{"topic":"A"},"opaque":5}',
        '{"code":105,/*"opaque":5,*/"Opaque":5}',
        '{"opaque":5,"x":',
    ],
)
def test_an_uncertain_opaque_is_recognised(text: str) -> None:
    cut = cut_opaque(text.encode())
    assert cut is None or not opaque_is_certain(*cut)


@given(headers(JSON), st.data())
def test_what_was_proven_certain_holds_for_every_number(header: RemotingHeader, data: st.DataObject) -> None:
    text = bytearray(encode_header(header))
    for _ in range(data.draw(st.integers(0, 2))):
        at = data.draw(st.integers(0, len(text)))
        text[at:at] = data.draw(st.sampled_from([b"'", b'"', b"{", b"}", b",", b'"opaque":5,', b'"Opaque":1,', b"/*", b"*/"]))
    cut = cut_opaque(bytes(text))
    assume(cut is not None and opaque_is_certain(*cut))
    assert cut is not None
    first, second = data.draw(INT32), data.draw(INT32)
    one, two = (decode_json_header(b"%b%d%b" % (cut[0], number, cut[1])) for number in (first, second))
    assert (one.opaque, two.opaque) == (first, second)
    assert one._replace(opaque=0) == two._replace(opaque=0)


@given(headers(JSON) | headers(ROCKETMQ), st.binary(max_size=20))
def test_prepared_answers_are_whole_frames(header: RemotingHeader, body: bytes) -> None:
    parts = answer_parts(abs(header.code) % 2000, header.remark, header.ext_fields, body, header.serialize_type)
    whole = answer_frame(parts, opaque_bytes(header.opaque, header.serialize_type))
    bounds = next_frame(whole, 0, len(whole))
    assert bounds is not None
    answer = decode_header(whole[bounds.header_start : bounds.body_start], bounds.serialize_type)
    assert (answer.opaque, answer.flag, answer.language, answer.version) == (header.opaque, 1, 0, 479)
    assert (answer.remark, answer.ext_fields) == (header.remark, header.ext_fields)
    assert whole[bounds.body_start :] == body

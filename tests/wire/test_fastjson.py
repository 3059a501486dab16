"""fastjson's dialect: reading in both ways, limits, the two ways of writing, hash order."""

import json
import re
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicated_namesrv.steps import finish
from replicated_namesrv.wire import fastjson
from replicated_namesrv.wire.fastjson import (
    MAX_BYTES_AT_ONCE,
    MAX_COMMENTS,
    MAX_DEPTH,
    MAX_ESCAPES,
    MAX_SPELLED_CHARACTERS,
    MalformedJsonError,
    decode_utf8,
    loads,
    members,
    parse_steps,
    to_bool,
    to_int,
    to_long,
    to_text,
)
from replicated_namesrv.wire.fastjson_writer import dumps, hash_order, quote, quote_standard
from tests.wire.data import DATA, recorded_frames

TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
SCALARS = st.none() | st.booleans() | st.integers(-(10**18) + 1, 10**18 - 1) | TEXT
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4), max_leaves=20
)


def read(text: str) -> Any:
    """Read with our own parser only."""
    return finish(parse_steps(text))


@given(VALUES)
def test_plain_json_is_read_as_any_reader_reads_it(value: Any) -> None:
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False, indent=1)):
        assert read(text) == value
        assert loads(text.encode()) == value
    assert read(orjson.dumps(value).decode()) == value


@given(VALUES, st.booleans())
def test_what_is_written_is_read_again(value: Any, standard: bool) -> None:
    text = dumps(value, standard)
    assert not standard or text.isascii()
    assert _big_as_int(read(text)) == _without_none(value)


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(member) for key, member in value.items() if member is not None}
    return [_without_none(item) for item in value] if isinstance(value, list) else _big_as_int(value)


def _big_as_int(value: Any) -> Any:
    """The standard dialect writes great numbers as text, so all numbers are compared as text."""
    if isinstance(value, dict):
        return {key: _big_as_int(member) for key, member in value.items()}
    if isinstance(value, list):
        return [_big_as_int(item) for item in value]
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{a:1,'b':2,\"c\":3}", {"a": 1, "b": 2, "c": 3}),
        ("{0:0,-3:1,00:5}", {"0": 0, "-3": 1, "00": 5}),
        ("{,,'a':[,1,,2,],,}", {"a": [1, 2]}),
        ("/*x*/{/**/a/**/:/**/1//y\n}//z", {"a": 1}),
        ("\ufeff[true,false,null,undefined,NaN]", [True, False, None, None, None]),
        (
            "[007,-0,1L,2S,3B,1.50,2F,1e5,123456789012345678,1234567890123456789]",
            ["007", "-0", 1, 2, 3, "1.50", 2, "1e5", 123456789012345678, "1234567890123456789"],
        ),
        (r"""["\x41\v\0\7\F\/\'\"\\", '"', "'"]""", ["A\v\0\7\f/'\"\\", '"', "'"]),
        (r'["\ud83d\ude00","\ud83d","\ude00x"]', ["😀", "?", "?x"]),
        ('{"raw\n\t\x01":"\n"}', {"raw\n\t\x01": "\n"}),
        ("{a:1,a:2}", {"a": 2}),
        ("{_a$1:1,é:2}", {"_a$1": 1, "é": 2}),
    ],
)
def test_what_fastjson_takes_besides_json(text: str, value: Any) -> None:
    assert read(text) == value
    assert loads(text.encode()) == value


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "{", "[", "{a", "{a:", "{a:1", "[1", "{a:1]", "[1}", "{a 1}", "[1 2]", "{a:1 b:2}", "1 2", "{}{}",
        "tru", "nulls", "-", "1.2.3", "1e", '"', '"\\', '"\\u12"', '"\\q"', "'\"", "/*", "[/*]",
        "x'41'", "Set[1]", "new Date(1)", "{{}:1}",
        "{:1}", "+1", ".5", "{[]:1}",
    ],
)  # fmt: skip  # items grouped by line
def test_what_is_no_value(text: str) -> None:
    with pytest.raises(MalformedJsonError):
        read(text)
    with pytest.raises(MalformedJsonError):
        loads(text.encode())


@given(st.lists(st.sampled_from([*"{}[]:,\"'\\/* \n019-.eEL aunlt\ufeffé", r"\ud83d"]), max_size=20).map("".join))
def test_any_text_is_a_value_or_an_error(text: str) -> None:
    try:
        value = read(text)
    except MalformedJsonError:
        return
    dumps(value).encode()


def test_bytes_that_are_no_utf8() -> None:
    for data in (b"\xff", b'"\xed\xa0\x80"', b'{"a":"\xc3"}'):
        with pytest.raises(MalformedJsonError):
            loads(data)
    with pytest.raises(MalformedJsonError, match="byte 1"):
        decode_utf8(b"a\xff")


def test_depth_is_limited_without_recursion() -> None:
    assert read("[" * MAX_DEPTH + "]" * MAX_DEPTH) is not None
    for text in ("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), "[" * 1_000_000, '{"a":' * 1_000_000):
        with pytest.raises(MalformedJsonError, match="nested deeper"):
            read(text)


def test_work_is_limited() -> None:
    with pytest.raises(MalformedJsonError, match="more than 1000"):
        finish(parse_steps("[" + "1," * 2000 + "]", 1000))
    with pytest.raises(MalformedJsonError, match="are more than"):
        loads(b" " * (MAX_BYTES_AT_ONCE + 1))
    with pytest.raises(MalformedJsonError, match="members"):
        loads(b"[" + b"01," * 100_000 + b"]")


def test_escapes_need_no_memory_beside_the_text() -> None:
    assert read('"' + "\\n" * MAX_ESCAPES + '"') == "\n" * MAX_ESCAPES
    assert read("'" + "\\'" * MAX_ESCAPES + "'") == "'" * MAX_ESCAPES


@pytest.mark.parametrize(
    ("text", "least"),
    [
        ("[" + ",".join(f"{{a:{n}}}" for n in range(10_000)) + "]", 8),
        ("[" + ",".join(["[]"] * 20_000) + "]", 12),
        ("[" + ",".join(['"' + r"\n" * MAX_ESCAPES + '"'] * 12) + "]", 12),
        ("[" + ",".join(["/**/" * MAX_COMMENTS + "1"] * 60) + "]", 12),
    ],
    ids=["objects", "arrays", "escapes", "comments"],
)
def test_a_large_text_is_read_in_slices(text: str, least: int) -> None:
    steps = parse_steps(text)
    slices = 1
    while next(steps, "done") is None:
        slices += 1
    assert slices >= least


@pytest.mark.parametrize(
    "text",
    [
        '{"a":"' + r"\n" * (MAX_ESCAPES + 1) + '"}',
        "{'" + r"\n" * (MAX_ESCAPES + 1) + "':1}",
        '{"a":' + "//\n" * (MAX_COMMENTS + 1) + "1}",
        '{"a":' + "/**/" * (MAX_COMMENTS + 1) + "1}",
    ],
    ids=["string", "key", "line comments", "comments"],
)
def test_what_is_read_in_one_step_is_bounded(text: str) -> None:
    with pytest.raises(MalformedJsonError):
        finish(parse_steps(text))
    finish(parse_steps(text.replace(r"\n", "", 1).replace("//\n", "", 1).replace("/**/", "", 1)))


@pytest.mark.parametrize("inner", ["*x", "x", "*"])
def test_no_pattern_reads_a_comment(inner: str) -> None:
    """A comment may be as long as a frame, and is read in one step. Searching its end costs a few per cent of matching it."""
    comment = "/*" + inner * 1_000 + "*/"
    assert finish(parse_steps(f"[{comment}1]")) == [1]
    for name, pattern in vars(fastjson).items():
        if isinstance(pattern, re.Pattern):
            found = pattern.match(comment)
            assert found is None or found.end() < len(comment), name


def test_a_long_name_is_not_compared_with_other_spellings() -> None:
    """An object of 10,000 names is taken in one step, so the work for one name is bounded."""

    class Unread(str):
        __slots__ = ()

        def lower(self) -> str:
            raise AssertionError(f"read all {len(self)} characters")

    spelled = "topic" + "_" * (MAX_SPELLED_CHARACTERS - 9) + "Name"
    assert members({Unread("_" * 1_000_000): 1, spelled: 2}, frozenset(("topicName",))) == {"topicName": 2}


def test_escapes_are_those_of_fastjson() -> None:
    """Each character of the basic plane between two letters, as fastjson 1.2.83 writes it; others by the rule of §3.1."""
    recorded = json.loads((DATA / "fastjson_escapes.json").read_text())
    for code in [*range(0xD800), *range(0xE000, 0x10000)]:
        char = chr(code)
        default = recorded["default"].get(str(code), char)
        standard = recorded["standard"].get(str(code), char) if code < 0x7F else f"\\u{code:04X}"
        assert quote(f"a{char}b") == f'"a{default}b"'
        assert quote_standard(f"a{char}b") == f'"a{standard}b"'
    assert quote("x😀y") == '"x😀y"'
    assert quote_standard("x😀y") == '"x\\uD83D\\uDE00y"'


def test_numbers_beyond_doubles() -> None:
    assert (
        dumps([9007199254740991, 9007199254740992, -9007199254740992], True)
        == '[9007199254740991,"9007199254740992","-9007199254740992"]'
    )
    assert dumps([9007199254740993]) == "[9007199254740993]"
    assert dumps({0: "a", 10: None, "b": 1}) == '{0:"a","b":1}'
    assert dumps({0: "a", 10: "b"}, True) == '{"0":"a","10":"b"}'


@pytest.mark.parametrize(
    ("keys", "ordered"),
    [
        ([0, 2, 10, 100000], [0, 100000, 2, 10]),
        ([], []),
    ],
)
def test_hash_order_is_that_of_java(keys: list[Any], ordered: list[Any]) -> None:
    assert hash_order(keys) == ordered


def test_hash_order_of_texts_is_that_of_recorded_header_fields() -> None:
    """Java wrote them from a HashMap. The order of keys that share a place is unknown, so the recorded order is given."""
    compared = 0
    for recorded in recorded_frames():
        fields = list(recorded.decoded.get("extFields", ()))
        assert hash_order(fields) == fields
        compared += len(fields) > 3
    assert compared > 20


def test_hash_order_of_many_keys_follows_the_growth_of_the_table() -> None:
    assert hash_order(range(12)) == list(range(12))
    assert hash_order([40, *range(12)]) == [*range(8), 40, *range(8, 12)]


@pytest.mark.parametrize(
    ("value", "number"),
    [(5, 5), ("5", 5), (None, 9), ("", 9), ("null", 9), (True, 1), ("1,000", 1000), ("12.0", 12), (1.9, 1), ("-7", -7)],
)
def test_numbers_from_what_stands_there(value: Any, number: int) -> None:
    assert to_int(value, "x", 9) == number
    assert to_long(value, "x", 9) == number


@pytest.mark.parametrize("value", ["x", "1e2", " 1", "12.5", [], {}, 2**31, -(2**31) - 1, "2147483648", 1e300])
def test_what_is_no_int(value: Any) -> None:
    with pytest.raises(MalformedJsonError, match="x "):
        to_int(value, "x")


def test_booleans_and_texts() -> None:
    assert [to_bool(value, "x") for value in (None, True, 1, 0, "true", "FALSE", "Y", "", 2)] == [
        False,
        True,
        True,
        False,
        True,
        False,
        True,
        False,
        False,
    ]
    with pytest.raises(MalformedJsonError):
        to_bool("x", "x")
    assert [to_text(value) for value in (None, "a", 5, True, [1, None], {"b": 1, "a": "/"})] == [
        None,
        "a",
        "5",
        "true",
        "[1,null]",
        '{"a":"/","b":1}',
    ]
    with pytest.raises(MalformedJsonError, match="nested deeper"):
        to_text(read("[" * 100 + "]" * 100))

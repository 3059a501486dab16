"""java.util.Properties as Java reads them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicated_namesrv.errors import BodyError
from replicated_namesrv.wire.properties import dump_properties, load_properties, store_properties, string_to_properties


@pytest.mark.parametrize(
    ("text", "properties"),
    [
        ("", {}),
        ("a=1\nb=2\n", {"a": "1", "b": "2"}),
        ("a=1\rb=2\r\nc=3", {"a": "1", "b": "2", "c": "3"}),
        ("# x=1\n  ! y=2\n\n \t\f\na=#b", {"a": "#b"}),
        ("a = b \nc\t:\td\ne f\ng", {"a": "b ", "c": "d", "e": "f", "g": ""}),
        ("a==b\nc:=d\ne = = f", {"a": "=b", "c": "=d", "e": "= f"}),
        ("=v\n:", {"": ""}),
        ("a=1\\\n   2\\\n\n3=4", {"a": "12", "3": "4"}),
        ("a=x\\\\\nb=y", {"a": "x\\", "b": "y"}),
        ("a\\ b\\:c\\=d = v", {"a b:c=d": "v"}),
        ("a=\\t\\n\\r\\f\\q\\u0041\\u00e9", {"a": "\t\n\r\fqAé"}),
        ("a=\\ud83d\\ude00 \\ude00\\ud83d", {"a": "\U0001f600 ??"}),
        ("a=1\na=2", {"a": "2"}),
        ("a=b\\", {"a": "b"}),
        ("#c\\\na=1", {"a": "1"}),
        ("a=1\\\n#no comment", {"a": "1#no comment"}),
    ],
)
def test_texts(text: str, properties: dict[str, str]) -> None:
    assert load_properties(text.encode()) == properties


@pytest.mark.parametrize("text", ["a=\\u12", "a=\\u12g4", "\\u=1", "a=\\uuuu"])
def test_a_malformed_escape_is_an_error(text: str) -> None:
    with pytest.raises(BodyError, match="string2Properties error"):
        string_to_properties(text.encode())


def test_what_is_not_ascii_is_garbled_as_by_java() -> None:
    assert string_to_properties("a=é".encode()) == {"a": "Ã©"}
    assert string_to_properties(b"a=\xff") == {"a": "ï¿½"}
    assert load_properties(b"a=\xe9") == {"a": "é"}


@given(
    st.dictionaries(st.text(st.sampled_from("abc.XY09_"), min_size=1), st.text(st.sampled_from("abc =:#!09,;é")).map(str.strip))
)
def test_what_is_written_is_read_again(properties: dict[str, str]) -> None:
    # Text that begins with a separator is read as one: it is written without escapes, as in RocketMQ.
    plain = {key: value.lstrip("=: ") for key, value in properties.items()}
    assert load_properties(dump_properties(plain).encode("iso-8859-1")) == plain


@given(st.binary(max_size=60))
def test_any_bytes_are_properties_or_an_error(data: bytes) -> None:
    try:
        string_to_properties(data)
    except BodyError:
        return


def test_long_lines_and_many_backslashes() -> None:
    assert load_properties(b"\\" * 100_001 + b"\n" + b"a" * 100_000) == {"\\" * 50_000 + "a" * 100_000: ""}
    assert len(load_properties(b"a=\\\n" * 50_000)) == 1


TEXTS = st.text(st.characters(codec="utf-8")) | st.text("\\ \t\n\r\f=:#!u0041a\u00e4\U0001f600", max_size=8)


@given(st.dictionaries(TEXTS, TEXTS, max_size=5))
def test_what_is_stored_is_what_is_read(properties: dict[str, str]) -> None:
    stored = store_properties(properties)
    assert load_properties(stored) == properties
    assert list(load_properties(stored)) == list(properties)


def test_plain_values_are_stored_as_they_always_were() -> None:
    plain = {"listenPort": "9876", "nameServerAddresses": "a:9876;b:9876", "x.y": "key=value a b #c"}
    assert store_properties(plain).decode() == dump_properties(plain)

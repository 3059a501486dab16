"""The two ways in which RocketMQ writes JSON with fastjson 1.2.83, byte for byte.

*Default*: whole-number keys without quotes, text in UTF-8 as it is, only quotes, backslashes, control characters and the two
line separators escaped. *Standard* (``BrowserCompatible``, ``QuoteFieldNames``, ``MapSortField``): all keys quoted, ``/`` as
``\\/``, everything beyond ASCII as ``\\uXXXX``, whole numbers beyond ±(2^53 - 1) as text. Neither writes any whitespace: the Go
client cuts addresses out of the text and would keep it.

Members have the order of the given mappings. Members whose value is None are left out. ``hash_order`` is the order of Java's
HashMap.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import orjson

_GREATEST_SAFE = 2**53 - 1

_SHORT_ESCAPES = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\", "/": "\\/"}
_ESCAPED = re.compile('[\x00-\x1f"\\\\\x7f-\x9f\u2028\u2029]')
_ESCAPED_STANDARD = re.compile('[\x00-\x1f"\\\\/]|[^\x00-\x7e]')

_WRITTEN_DIFFERENTLY = (b"\\u00", b"\x7f", b"\xc2", b"\xe2")
"""Bytes of every character that orjson and fastjson write differently: fastjson escapes more characters, and writes the escapes
with capital digits. Some other characters have these bytes, too."""

HashKey = TypeVar("HashKey", int, str)


def quote(text: str) -> str:
    """``text`` as a JSON string of the default dialect."""
    if _ESCAPED.search(text) is None:
        return f'"{text}"'
    return f'"{text.translate(_ESCAPES)}"'


def dump_alike(value: Sequence[str] | dict[str, str]) -> bytes | None:
    """Texts as JSON of the default dialect, made by orjson in a tenth of the time. None: fastjson may write them differently."""
    written = orjson.dumps(value)
    return None if any(part in written for part in _WRITTEN_DIFFERENTLY) else written


def quote_standard(text: str) -> str:
    """``text`` as a JSON string of the standard dialect: ASCII only."""
    if _ESCAPED_STANDARD.search(text) is None:
        return f'"{text}"'
    return f'"{_ESCAPED_STANDARD.sub(lambda match: _escape(match[0]), text)}"'


def _escape(char: str) -> str:
    short = _SHORT_ESCAPES.get(char)
    if short is not None:
        return short
    code = ord(char)
    if code > 0xFFFF:
        code -= 0x10000
        return f"\\u{0xD800 + (code >> 10):04X}\\u{0xDC00 + (code & 0x3FF):04X}"
    return f"\\u{code:04X}"


_ESCAPES = {code: _escape(chr(code)) for code in (*range(0x20), 0x22, 0x5C, *range(0x7F, 0xA0), 0x2028, 0x2029)}
"""The characters that the default dialect escapes. ``translate`` with this table is the fastest method, even if every
character of the text has to be escaped."""


def dumps(value: object, standard: bool = False) -> str:
    """Text of a JSON value: None, bool, int, float, str, sequences, mappings with str or int keys. Raises TypeError on others.

    For small values of unknown shape; bodies have writers of their own.
    """
    if value is None:
        return "null"
    if isinstance(value, str):
        return quote_standard(value) if standard else quote(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return integer(value, standard)
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, Mapping):
        texts = (f"{_key(key, standard)}:{dumps(member, standard)}" for key, member in value.items() if member is not None)
        return "{" + ",".join(texts) + "}"
    if isinstance(value, Sequence):
        return "[" + ",".join([dumps(item, standard) for item in value]) + "]"
    raise TypeError(f"{type(value).__name__} has no JSON form")


def integer(value: int, standard: bool) -> str:
    """A Java ``long``. The standard dialect writes numbers that a double cannot represent as text."""
    return f'"{value}"' if standard and not -_GREATEST_SAFE <= value <= _GREATEST_SAFE else str(value)


def _key(key: object, standard: bool) -> str:
    if isinstance(key, int):
        return f'"{key}"' if standard else str(key)
    if not isinstance(key, str):
        raise TypeError(f"{type(key).__name__} is not a JSON key")
    return quote_standard(key) if standard else quote(key)


def hash_order(keys: Iterable[HashKey], capacity: int = 16) -> list[HashKey]:
    """``keys`` in the order in which a Java HashMap of initial ``capacity`` returns them after insertion in the given order.

    int stands for Long or Integer (both hash alike if non-negative and below 2^31). Text costs one step per character, so this
    is for small maps only.
    """
    ordered = list(keys)
    while len(ordered) * 4 > capacity * 3:
        capacity *= 2
    mask = capacity - 1
    return sorted(ordered, key=lambda key: _bucket(key, mask))


def _bucket(key: int | str, mask: int) -> int:
    if isinstance(key, int):
        hashed = (key ^ key >> 32) & 0xFFFFFFFF
    else:
        hashed = 0
        units = key.encode("utf-16-be", "surrogatepass")
        for index in range(0, len(units), 2):
            hashed = hashed * 31 + (units[index] << 8 | units[index + 1]) & 0xFFFFFFFF
    return (hashed ^ hashed >> 16) & mask

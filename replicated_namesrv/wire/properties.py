"""java.util.Properties text, as code 318 carries it and ``-c`` files contain it (``MixAll.string2Properties``).

Read as Java's ``Properties.load(InputStream)`` reads: ISO-8859-1, ``#`` and ``!`` comments, continued lines, ``=``, ``:`` or a
blank between key and value, backslash escapes. So text beyond ASCII comes out garbled, from us as from Java; written as
``\\uXXXX`` it does not. Writing is RocketMQ's own way, which escapes nothing.
"""

import re
from collections.abc import Mapping
from typing import Final

from replicated_namesrv.errors import BodyError

MAX_BODY_BYTES: Final = 65_536
"""What a server should read of them in one request: it takes one step. RocketMQ has about fifty."""

_LINE_END = re.compile(r"\r\n|\n|\r")
_BLANKS = " \t\f"
_KEY = re.compile(r"((?:[^\\=: \t\f]|\\(?s:.))*+)[ \t\f]*+(?:[=:][ \t\f]*+)?")
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|(?s:.)|$)")
_SIMPLE_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "": ""}


def load_properties(data: bytes) -> dict[str, str]:
    """Keys and values in order of appearance, a later duplicate wins. Raises BodyError on a malformed ``\\uXXXX``."""
    properties: dict[str, str] = {}
    for line in _logical_lines(data.decode("iso-8859-1")):
        match = _KEY.match(line)
        if match is None:
            raise AssertionError("the pattern of a key matches every line")
        properties[_unescape(match[1])] = _unescape(line[match.end() :])
    return properties


def string_to_properties(body: bytes) -> dict[str, str]:
    """The properties in a request body: UTF-8 there, but read byte by byte, which garbles what is not ASCII.

    Raises BodyError ("string2Properties error").
    """
    try:
        return load_properties(body.decode("utf-8", "replace").encode("utf-8"))
    except BodyError as error:
        raise BodyError(f"string2Properties error: {error}") from None


def dump_properties(properties: Mapping[str, str]) -> str:
    """``key=value`` lines in the given order, nothing escaped (``MixAll.properties2String``)."""
    return "".join([f"{key}={value}\n" for key, value in properties.items()])


def _logical_lines(text: str) -> list[str]:
    """Lines without comments and leading blanks, continued ones joined."""
    lines: list[str] = []
    parts: list[str] = []
    for natural in _LINE_END.split(text):
        line = natural.lstrip(_BLANKS)
        if not parts and (not line or line[0] in "#!"):
            continue
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2 == 1:
            parts.append(line[:-1])
            continue
        lines.append("".join([*parts, line]))
        parts = []
    if parts:
        lines.append("".join(parts))
    return lines


def _unescape(text: str) -> str:
    return _ESCAPE.sub(_unescaped, text) if "\\" in text else text


def _unescaped(match: re.Match[str]) -> str:
    escape = match[1]
    if len(escape) == 5:
        return chr(int(escape[1:], 16))
    if escape == "u":
        raise BodyError(r"malformed \uxxxx escape: give four hexadecimal digits, or \\ for a backslash")
    return _SIMPLE_ESCAPES.get(escape, escape)

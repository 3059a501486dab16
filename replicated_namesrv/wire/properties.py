"""java.util.Properties text of ``UPDATE_NAMESRV_CONFIG`` (318) and of ``-c`` files (``MixAll.string2Properties``). It is read
as by Java's ``Properties.load(InputStream)``: ISO-8859-1, ``#`` and ``!`` comments, continued lines, ``=``, ``:`` or a
blank between key and value, backslash escapes. So text beyond ASCII is garbled, as in Java, unless it is written as
``\\uXXXX``. A lone surrogate becomes ``?``, as Java writes it, so that all text can be encoded. There are two writers:
RocketMQ's own, without escapes, for people (``dump_properties``), and one for files, whose text is read back unchanged
(``store_properties``).
"""

import re
from collections.abc import Mapping
from typing import Final

from replicated_namesrv.errors import BodyError

MAX_BODY_BYTES: Final = 65_536
"""Maximum size of the properties in one request, because they are decoded in one step. RocketMQ's have about fifty lines."""

_LINE_END = re.compile(r"\r\n|\n|\r")
_BLANKS = " \t\f"
_KEY = re.compile(r"((?:[^\\=: \t\f]++|\\(?s:.))*)[ \t\f]*+(?:[=:][ \t\f]*+)?")
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|(?s:.)|$)")
_SPECIAL = re.compile(r"[^ -\[\]-~]")
_SPECIAL_IN_KEY = re.compile(r"[^!-9;<>-\[\]-~]")
_LETTERS = {"\t": "t", "\n": "n", "\r": "r", "\f": "f"}
_SIMPLE_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "": ""}


def load_properties(data: bytes) -> dict[str, str]:
    """Keys and values in order of appearance. Of duplicate keys the last one counts. Raises BodyError on a malformed
    ``\\uXXXX``."""
    properties: dict[str, str] = {}
    for line in _logical_lines(data.decode("iso-8859-1")):
        match = _KEY.match(line)
        if match is None:
            raise AssertionError("the pattern of a key matches every line")
        properties[_unescape(match[1])] = _unescape(line[match.end() :])
    return properties


def string_to_properties(body: bytes) -> dict[str, str]:
    """The properties in a request body. It is UTF-8 but read byte by byte, so text beyond ASCII is garbled.

    Raises BodyError ("string2Properties error").
    """
    try:
        return load_properties(body.decode("utf-8", "replace").encode("utf-8"))
    except BodyError as error:
        raise BodyError(f"string2Properties error: {error}") from None


def dump_properties(properties: Mapping[str, str]) -> str:
    """``key=value`` lines in the given order, without escapes (``MixAll.properties2String``)."""
    return "".join([f"{key}={value}\n" for key, value in properties.items()])


def store_properties(properties: Mapping[str, str]) -> bytes:
    """``key=value`` lines in the given order, escaped so that ``load_properties`` returns the same."""
    return "".join([f"{_escaped(key, True)}={_escaped(value, False)}\n" for key, value in properties.items()]).encode("ascii")


def _escaped(text: str, is_key: bool) -> str:
    escaped = (_SPECIAL_IN_KEY if is_key else _SPECIAL).sub(_escape, text)
    return f"\\{escaped}" if escaped.startswith(("#", "!") if is_key else " ") else escaped


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    if character in "\\=: ":
        return f"\\{character}"
    if character in _LETTERS:
        return f"\\{_LETTERS[character]}"
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))


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
    if "\\" not in text:
        return text
    plain = _ESCAPE.sub(_unescaped, text)
    # Two escapes make one character beyond the first 65,536, as in Java, where a text consists of UTF-16 units.
    if plain.isascii():
        return plain
    return plain.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass").encode("utf-8", "replace").decode()


def _unescaped(match: re.Match[str]) -> str:
    escape = match[1]
    if len(escape) == 5:
        return chr(int(escape[1:], 16))
    if escape == "u":
        raise BodyError(r"malformed \uxxxx escape: give four hexadecimal digits, or \\ for a backslash")
    return _SIMPLE_ESCAPES.get(escape, escape)

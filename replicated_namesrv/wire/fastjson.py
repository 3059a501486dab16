"""Reader of what fastjson 1 takes for JSON, which is more than JSON: peers rely on it and so do we.

Taken besides JSON: keys without quotes or in single quotes, strings in single quotes, whole numbers as keys (``{0:"a"}``, as
fastjson itself writes maps with integer keys), surplus commas, ``/* */`` and ``//`` comments, a byte order mark, raw control
characters and ``\\x41 \\v \\0`` in strings, leading zeros and ``1L``-like suffixes of numbers, ``undefined`` and ``NaN`` (null).
Not taken: what fastjson accepts by accident or for Java alone: object keys, ``Set[…]``, ``new Date(…)``, ``x'…'``, any character
in place of a comma. ``@type`` and ``$ref`` are keys like any other.

The reader keeps its own stack, so depth costs no recursion; depth, digits and work are bounded, and ``parse_steps`` can be
driven in slices. Keys always come out as text, a later duplicate wins, whole numbers of up to 18 digits as int, every other
number as ``NumberText``. A lone surrogate becomes ``?``, as Java writes it, so that all text can be encoded.

``loads`` lets orjson read what is plain JSON; only numbers differ then: those with a fraction, or beyond 64 bits, are float.
"""

import re
from collections.abc import Generator
from typing import Final, TypeVar

import orjson

MAX_BYTES_AT_ONCE: Final = 1 << 20
MAX_MEMBERS_AT_ONCE: Final = 20_000
MAX_DEPTH: Final = 1000
"""Objects and arrays within each other; more is an error (Java's stack would end at a few thousand)."""
SLICE_WORK: Final = 60_000
"""Characters read between two yields of ``parse_steps``, each member counted as 20 more: about 3 ms."""
MAX_ESCAPES: Final = 50_000
"""Escapes in one string, and comments in a row: they are read in one step."""

Result = TypeVar("Result")


class MalformedJsonError(ValueError):
    """Text that fastjson would not take either, or that exceeds a limit."""


class NumberText(str):
    """A number that is no whole number of up to 18 digits, by its text."""

    __slots__ = ()


_WS = r"[ \t\r\n\f\x08]*+"
# Groups: text, whole number, word, opening bracket.
_SCALAR = r'(?:"([^"\\]*+)"|(0|-?[1-9][0-9]{0,17})(?![0-9.eELSBFD])|(true|false|null)(?![\w$])|([{\[]))'
_KEY = r'(?:"([^"\\]*+)"|([A-Za-z_$][A-Za-z0-9_$]*+|-?[0-9]++))'
_FIRST_MEMBER = re.compile(f"{_WS}{_KEY}{_WS}:{_WS}{_SCALAR}")
_NEXT_MEMBER = re.compile(f"{_WS},{_WS}{_KEY}{_WS}:{_WS}{_SCALAR}")
_FIRST_ITEM = re.compile(rf"{_WS}{_SCALAR}")
_NEXT_ITEM = re.compile(rf"{_WS},{_WS}{_SCALAR}")
_TIMES = f"{{0,{MAX_ESCAPES}}}+"
_BLANK = re.compile(r"(?:[ \t\r\n\f\x08]++|//[^\n]*+\n?|/\*(?s:.*?)\*/)" + _TIMES)
_BLANK_OR_COMMA = re.compile(r"(?:[ \t\r\n\f\x08,]++|//[^\n]*+\n?|/\*(?s:.*?)\*/)" + _TIMES)
_STRING = {
    '"': re.compile(r'"([^"\\]*+(?:\\(?s:.)[^"\\]*+)' + _TIMES + r')"'),
    "'": re.compile(r"'([^'\\]*+(?:\\(?s:.)[^'\\]*+)" + _TIMES + r")'"),
}
_NUMBER = re.compile(r"(-?[0-9]++)(\.[0-9]*+)?([eE][+-]?[0-9]++)?[LSBFD]?(?![\w$.])")
_WORD = re.compile(r"[A-Za-z]++(?![\w$])")
_BARE_KEY = re.compile(r"[A-Za-z_$\u0080-\U0010ffff][\w$\u0080-\U0010ffff]*+|-?[0-9]++")
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|x[0-9A-Fa-f]{2}|(?s:.))")
_SURROGATE = re.compile("[\ud800-\udfff]")

_WORDS: dict[str, bool | None] = {"true": True, "false": False, "null": None, "undefined": None, "NaN": None}
_SIMPLE_ESCAPES = dict(zip("01234567btnvfFr\"'/\\", "\0\1\2\3\4\5\6\7\b\t\n\v\f\f\r\"'/\\", strict=True))


def loads(data: bytes | bytearray | memoryview) -> object:
    """The value of one JSON text in UTF-8, read at one go; for texts of moderate size.

    Raises MalformedJsonError, also for more than ``MAX_BYTES_AT_ONCE`` bytes or, where it is no plain JSON, more than
    ``MAX_MEMBERS_AT_ONCE`` members.
    """
    if len(data) > MAX_BYTES_AT_ONCE:
        raise MalformedJsonError(f"{len(data)} bytes are more than {MAX_BYTES_AT_ONCE}")
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return finish(parse_steps(decode_utf8(data), MAX_MEMBERS_AT_ONCE))


def decode_utf8(data: bytes | bytearray | memoryview) -> str:
    """``data`` as text; MalformedJsonError where it is not UTF-8 (which reads as nothing in RocketMQ 5.x)."""
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise MalformedJsonError(f"not UTF-8: {error.reason} at byte {error.start}") from None


def finish(steps: Generator[None, None, Result]) -> Result:
    """Run a sliced computation to its end at one go."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: Result = stop.value
            return result


def parse_steps(text: str, max_members: int | None = None) -> Generator[None, None, object]:
    """Read one JSON text, yielding after every ``SLICE_WORK``; returns its value.

    Raises MalformedJsonError, also when there are more than ``max_members`` keys, items and closing brackets.
    """
    root: list[object] = []
    stack: list[dict[str, object] | list[object]] = []
    container: dict[str, object] | list[object] = root
    first = True
    steps = 0
    position = 1 if text.startswith("\ufeff") else 0
    due = SLICE_WORK
    while container is not root or not root:
        steps += 1
        if position + 20 * steps > due:
            due = position + 20 * steps + SLICE_WORK
            yield
        if steps == max_members:
            raise MalformedJsonError(f"more than {max_members} members")
        key = ""
        if type(container) is dict:
            match = (_FIRST_MEMBER if first else _NEXT_MEMBER).match(text, position)
        else:
            match = (_FIRST_ITEM if first else _NEXT_ITEM).match(text, position)
        if match is not None:
            value, position, opened = _plain(match)
            if type(container) is dict:
                key = match[1] if match[1] is not None else match[2]
        else:
            if container is not root:
                position, closed = _separate(text, position, first, "}" if type(container) is dict else "]")
                if closed:
                    container = stack.pop()
                    first = False
                    continue
                if type(container) is dict:
                    key, position = _read_key(text, position)
            value, position, opened = _read_value(text, _blank(text, position))
        if type(container) is dict:
            container[key] = value
        else:
            container.append(value)  # type: ignore[union-attr]  # not a dict, so a list
        first = False
        if opened:
            stack.append(container)
            if len(stack) > MAX_DEPTH:
                raise MalformedJsonError(f"objects and arrays nested deeper than {MAX_DEPTH}")
            container = value  # type: ignore[assignment]  # an opened value is a dict or a list
            first = True
    if _blank(text, position) != len(text):
        raise _error(text, position, "something after the end of the value")
    return root[0]


def _plain(match: re.Match[str]) -> tuple[object, int, bool]:
    """Value of a match of one of the quick patterns, the position behind it and whether it opens a container."""
    kind = match.lastindex
    token = match[kind or 0]
    last_text = match.re.groups - 3
    if kind == last_text:
        return token, match.end(), False
    if kind == last_text + 1:
        return int(token), match.end(), False
    if kind == last_text + 2:
        return _WORDS[token], match.end(), False
    return {} if token == "{" else [], match.end(), True


def _separate(text: str, position: int, first: bool, close: str) -> tuple[int, bool]:
    """Skip to the next member or past the closing bracket; between members there must be a comma, or several."""
    start = _blank(text, position)
    end = _skip(_BLANK_OR_COMMA, text, start)
    if text.startswith(close, end):
        return end + 1, True
    if end >= len(text):
        raise _error(text, end, f"ends before {close!r}")
    if not first and not text.startswith(",", start):
        raise _error(text, end, f"neither ',' nor {close!r}")
    return end, False


def _read_key(text: str, position: int) -> tuple[str, int]:
    char = text[position]
    if char in _STRING:
        key, position = _read_string(text, position)
    else:
        match = _BARE_KEY.match(text, position)
        if match is None:
            raise _error(text, position, "no key")
        key, position = _without_surrogates(match[0]), match.end()
    position = _blank(text, position)
    if not text.startswith(":", position):
        raise _error(text, position, "no ':' after a key")
    return key, position + 1


def _read_value(text: str, position: int) -> tuple[object, int, bool]:
    char = text[position : position + 1]
    if char == "{":
        return {}, position + 1, True
    if char == "[":
        return [], position + 1, True
    if char and char in _STRING:
        value, position = _read_string(text, position)
        return value, position, False
    number = _NUMBER.match(text, position)
    if number is not None:
        return _number(number), number.end(), False
    word = _WORD.match(text, position)
    if word is None or word[0] not in _WORDS:
        raise _error(text, position, "no value")
    return _WORDS[word[0]], word.end(), False


def _number(match: re.Match[str]) -> int | NumberText:
    whole, fraction, exponent = match[1], match[2], match[3]
    if fraction is None and exponent is None:
        digits = whole.removeprefix("-")
        if len(digits) <= 18 and (digits == "0" or digits[0] != "0") and whole != "-0":
            return int(whole)
        return NumberText(whole)
    return NumberText(whole + (fraction or "") + (exponent or ""))


def _read_string(text: str, position: int) -> tuple[str, int]:
    match = _STRING[text[position]].match(text, position)
    if match is None:
        raise _error(text, position, f"a string without an end, or with more than {MAX_ESCAPES} escapes")
    value = match[1]
    if "\\" in value:
        try:
            value = _ESCAPE.sub(_unescape, value)
        except KeyError as error:
            raise _error(text, position, f"a string with the escape \\{error.args[0]}") from None
        value = _without_surrogates(value)
    return value, match.end()


def _unescape(match: re.Match[str]) -> str:
    escape = match[1]
    return chr(int(escape[1:], 16)) if len(escape) > 1 else _SIMPLE_ESCAPES[escape]


def _without_surrogates(text: str) -> str:
    if _SURROGATE.search(text) is None:
        return text
    joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return _SURROGATE.sub("?", joined)


def _blank(text: str, position: int) -> int:
    return _skip(_BLANK, text, position)


def _skip(pattern: re.Pattern[str], text: str, position: int) -> int:
    match = pattern.match(text, position)
    return position if match is None else match.end()


def _error(text: str, position: int, what: str) -> MalformedJsonError:
    return MalformedJsonError(f"{what} at character {position}: {text[position : position + 20]!r}")

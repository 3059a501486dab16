"""Reader of the JSON dialect of fastjson 1, on which brokers and clients rely. In addition to JSON it accepts:

- keys without quotes or in single quotes, and strings in single quotes;
- whole numbers as keys (``{0:"a"}``), as fastjson itself writes maps with integer keys;
- surplus commas, ``/* */`` and ``//`` comments, and a byte order mark;
- raw control characters and ``\\x41 \\v \\0`` in strings;
- leading zeros and ``1L``-like suffixes of numbers, ``undefined`` and ``NaN`` (null).

It does not accept what fastjson accepts by accident or for Java only: object keys, ``Set[…]``, ``new Date(…)``, ``x'…'``, and any
character in place of a comma. ``@type`` and ``$ref`` are keys like any other.

The reader has its own stack and does not recurse. Depth, digits and work are bounded, and ``parse_steps`` runs in slices. Keys
are returned as text; of duplicate keys the last one counts. Whole numbers of up to 18 digits without leading zeros become int
(not ``-0``), all other numbers ``NumberText``. A lone surrogate becomes ``?``, as Java writes it, so that all text can be
encoded.

``loads`` uses orjson for plain JSON. Then numbers with a fraction or an exponent, or beyond 64 bits, are float, and other whole
numbers are int.

``to_int``, ``to_long`` and so on convert a value as fastjson 1 does for a field of the Java type in their name
(``TypeUtils.castTo…``), both in headers and in bodies. A value that does not fit raises ``MalformedJsonError`` with the member's
name; null keeps the member's default.
"""

import re
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from typing import Final

import orjson

from replicated_namesrv.steps import Steps, finish
from replicated_namesrv.wire.fastjson_writer import dumps, hash_order, quote

MAX_BYTES_AT_ONCE: Final = 1 << 20
MAX_MEMBERS_AT_ONCE: Final = 20_000
MAX_DEPTH: Final = 1000
"""Maximum depth of nested objects and arrays. A deeper text is an error (Java's stack would overflow at a few thousand)."""
SLICE_WORK: Final = 60_000
"""Characters read between two yields of ``parse_steps``, where each member counts as 20 characters. Takes about 3 ms."""
MAX_ESCAPES: Final = 50_000
"""Maximum number of escapes in one string, because they are read in one step."""
MAX_COMMENTS: Final = 5_000
"""Maximum number of consecutive comments, because they are read in one step."""


class MalformedJsonError(ValueError):
    """Text that this reader does not accept, or that exceeds a limit."""


class NumberText(str):
    """The text of a number that is not a whole number of up to 18 digits."""

    __slots__ = ()


_WS = r"[ \t\r\n\f\x08]*+"
# Groups of the match: text, whole number, word, opening bracket.
_SCALAR = r'(?:"([^"\\]*+)"|(0|-?[1-9][0-9]{0,17})(?![0-9.eELSBFD])|(true|false|null)(?![\w$])|([{\[]))'
_KEY = r'(?:"([^"\\]*+)"|([A-Za-z_$][A-Za-z0-9_$]*+|-?[0-9]++))'
_FIRST_MEMBER = re.compile(f"{_WS}{_KEY}{_WS}:{_WS}{_SCALAR}")
_NEXT_MEMBER = re.compile(f"{_WS},{_WS}{_KEY}{_WS}:{_WS}{_SCALAR}")
_FIRST_ITEM = re.compile(rf"{_WS}{_SCALAR}")
_NEXT_ITEM = re.compile(rf"{_WS},{_WS}{_SCALAR}")
_TIMES = f"{{0,{MAX_ESCAPES}}}"
_BLANK = re.compile(_WS)
_BLANK_OR_COMMA = re.compile(r"[ \t\r\n\f\x08,]*+")
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
    """The value of one JSON text in UTF-8, read in one step; for texts of moderate size.

    Raises MalformedJsonError, also for more than ``MAX_BYTES_AT_ONCE`` bytes. A text that is not plain JSON may have at most
    ``MAX_MEMBERS_AT_ONCE`` members.
    """
    if len(data) > MAX_BYTES_AT_ONCE:
        raise MalformedJsonError(f"{len(data)} bytes are more than {MAX_BYTES_AT_ONCE}")
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return finish(parse_steps(decode_utf8(data), MAX_MEMBERS_AT_ONCE))


def decode_utf8(data: bytes | bytearray | memoryview) -> str:
    """``data`` as text. Raises MalformedJsonError if it is not UTF-8 (RocketMQ 5.x reads such data as null)."""
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise MalformedJsonError(f"not UTF-8: {error.reason} at byte {error.start}") from None


def parse_steps(text: str, max_members: int | None = None) -> Steps[object]:
    """Read one JSON text, yielding after every ``SLICE_WORK``; returns its value.

    Raises MalformedJsonError, also when there are ``max_members`` or more keys, items and closing brackets, the root included.
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
        raise _error(text, position, "text after the end of the value")
    return root[0]


def _plain(match: re.Match[str]) -> tuple[object, int, bool]:
    """Value of a match of a quick pattern, the position after it, and whether it opens a container."""
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
    """Skip what ``pattern`` matches, and comments. Their ends are searched with ``find``: a pattern needs ten times as long, for
    a comment of 15 MiB 0.2 s."""
    position = _end(pattern, text, position)
    for _ in range(MAX_COMMENTS):
        if text.startswith("//", position):
            end = text.find("\n", position)
            position = len(text) if end < 0 else end + 1
        elif text.startswith("/*", position) and (end := text.find("*/", position + 2)) >= 0:
            position = end + 2
        else:
            break
        position = _end(pattern, text, position)
    return position


def _end(pattern: re.Pattern[str], text: str, position: int) -> int:
    match = pattern.match(text, position)
    return position if match is None else match.end()


def _error(text: str, position: int, what: str) -> MalformedJsonError:
    return MalformedJsonError(f"{what} at character {position}: {text[position : position + 20]!r}")


# Java's types

INT_MIN: Final = -(2**31)
INT_MAX: Final = 2**31 - 1
LONG_MIN: Final = -(2**63)
LONG_MAX: Final = 2**63 - 1
MAX_NUMBER_CHARACTERS: Final = 400
"""Maximum length of a number with a fraction or an exponent, or in quotes."""
MAX_TEXT_DEPTH: Final = 64
"""Maximum depth of an object or array that stands in the place of a string."""
MAX_TEXT_MEMBERS: Final = 256
"""Maximum number of members that are sorted in Java's hash order. It applies to an object that stands in the place of a
string."""
MAX_TEXT_VALUES: Final = 5000
"""Maximum number of values within an object or array that stands in the place of a string."""
MAX_OBJECT_MEMBERS: Final = 10_000
"""Maximum number of members of an object in which some names may be spelled differently."""
MAX_SPELLED_CHARACTERS: Final = 256
"""A longer name of a member is no other spelling of a name."""

_INTEGER = re.compile(r"[+-]?[0-9]{1,40}")
_SAFE_DIGITS = 15
"""A number with a fraction is truncated if it has at most this many digits before the point. Of a greater number, only a fraction
of zeros is accepted."""
_ZERO_FRACTION = re.compile(r"\.0*$")


def to_int(value: object, name: str, default: int = 0) -> int:
    """A Java ``int``: numbers and their text, true and false as 1 and 0."""
    return _to_integer(value, name, default, INT_MIN, INT_MAX)


def to_long(value: object, name: str, default: int = 0) -> int:
    """A Java ``long``."""
    return _to_integer(value, name, default, LONG_MIN, LONG_MAX)


def _to_integer(value: object, name: str, default: int, smallest: int, greatest: int) -> int:
    if type(value) is int:
        number = value
    elif value is None or value == "" or value in ("null", "NULL"):
        return default
    elif isinstance(value, bool):
        return int(value)
    elif isinstance(value, str):
        number = _integer_of(value, name)
    elif isinstance(value, float) and abs(value) < 2**53:
        number = int(value)
    else:
        raise MalformedJsonError(f"{name} is not a number: {value!r:.60}")
    if not smallest <= number <= greatest:
        raise MalformedJsonError(f"{name} {number} is not between {smallest} and {greatest}")
    return number


def _integer_of(text: str, name: str) -> int:
    if type(text) is NumberText and not text.lstrip("-").isdigit():
        number = _decimal(text)
        if number.adjusted() < _SAFE_DIGITS:
            return int(number)
    digits = _ZERO_FRACTION.sub("", text.replace(",", "")) if len(text) <= MAX_NUMBER_CHARACTERS else ""
    if _INTEGER.fullmatch(digits) is None:
        raise MalformedJsonError(f"{name} is not a number: {text[:60]!r}")
    return int(digits)


def to_bool(value: object, name: str, default: bool = False) -> bool:
    """A Java ``boolean``: true, false, numbers (1 is true), and the words and letters that fastjson accepts as truth values."""
    if value is None or isinstance(value, bool):
        return default if value is None else value
    if isinstance(value, NumberText):
        return to_int(value, name) == 1
    if isinstance(value, str):
        word = value.lower()
        if word in ("", "null"):
            return default
        if word in ("true", "1", "y", "t"):
            return True
        if word in ("false", "0", "n", "f"):
            return False
    elif isinstance(value, int | float):
        return int(value) == 1
    raise MalformedJsonError(f"{name} is not a boolean: {value!r:.60}")


def to_text(value: object) -> str | None:
    """A Java ``String``: text itself, any other value as fastjson writes it; null is None."""
    if value is None or type(value) is str:
        return value
    if isinstance(value, NumberText):
        return value[:] if value.lstrip("-").isdigit() else str(_decimal(value))
    return _nested_text(value, 0, iter(range(MAX_TEXT_VALUES)))


def _nested_text(value: object, depth: int, left: Iterator[int]) -> str:
    """``JSONObject.toString``: default dialect, members in hash order, null members left out."""
    if depth > MAX_TEXT_DEPTH:
        raise MalformedJsonError(f"objects and arrays nested deeper than {MAX_TEXT_DEPTH} in the place of a string")
    if next(left, None) is None:
        raise MalformedJsonError(f"more than {MAX_TEXT_VALUES} values in the place of a string")
    if isinstance(value, dict):
        keys = hash_order(value) if len(value) <= MAX_TEXT_MEMBERS else list(value)
        pairs = [f"{quote(key)}:{_nested_text(value[key], depth + 1, left)}" for key in keys if value[key] is not None]
        return f"{{{','.join(pairs)}}}"
    if isinstance(value, list):
        return f"[{','.join([_nested_text(item, depth + 1, left) for item in value])}]"
    if isinstance(value, NumberText):
        return to_text(value) or ""
    return dumps(value)


def _decimal(text: str) -> Decimal:
    if len(text) > MAX_NUMBER_CHARACTERS:
        raise MalformedJsonError(f"a number of {len(text)} characters, more than {MAX_NUMBER_CHARACTERS}")
    try:
        return Decimal(text)
    except InvalidOperation:
        raise MalformedJsonError(f"the number {text[:60]} is beyond any limit") from None


def to_object(value: object, name: str) -> dict[str, object] | None:
    """A Java bean: a JSON object. None for null, and for an empty text or array, which fastjson reads as null."""
    if value is None or value in ("", []):
        return None
    if type(value) is not dict:
        raise MalformedJsonError(f"{name} is not a JSON object: {value!r:.60}")
    return value


def to_map(value: object, name: str) -> dict[str, object] | None:
    """A Java Map: a JSON object; None for null."""
    if value in ("", []):
        raise MalformedJsonError(f"{name} is not a JSON object: {value!r}")
    return to_object(value, name)


def to_list(value: object, name: str) -> list[object] | None:
    """A JSON array; None for null and for the empty text."""
    if value is None or value == "":
        return None
    if type(value) is not list:
        raise MalformedJsonError(f"{name} is not a JSON array: {value!r:.60}")
    return value


def members(value: dict[str, object], names: frozenset[str]) -> dict[str, object]:
    """The members of a bean by exact name, or ignoring case, ``_`` and ``-`` (``JavaBeanDeserializer.smartMatch``).

    If a member is given in two spellings, the first counts; if it is given twice in one spelling, the last counts.
    """
    if names.issuperset(value):
        return value
    if len(value) > MAX_OBJECT_MEMBERS:
        raise MalformedJsonError(f"an object of {len(value)} members, more than {MAX_OBJECT_MEMBERS}")
    found: dict[str, object] = {}
    spelled: dict[str, str] = {}
    by_plain_name = {name.lower(): name for name in names}
    for key, member in value.items():
        name = key if key in names else None
        if name is None and len(key) <= MAX_SPELLED_CHARACTERS:
            name = by_plain_name.get(key.lower().replace("_", "").replace("-", ""))
        if name is not None and spelled.setdefault(name, key) == key:
            found[name] = member
    return found

"""What fastjson 1 makes of a JSON value where Java declares a type (``TypeUtils.castTo…``): one rule for headers and bodies.

A value that does not fit raises ``MalformedJsonError`` with the member's name; null keeps the member's default.
"""

import re
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from typing import Final

from replicated_namesrv.wire.fastjson import MalformedJsonError, NumberText
from replicated_namesrv.wire.fastjson_writer import dumps, hash_order, quote

INT_MIN: Final = -(2**31)
INT_MAX: Final = 2**31 - 1
LONG_MIN: Final = -(2**63)
LONG_MAX: Final = 2**63 - 1
MAX_NUMBER_CHARACTERS: Final = 400
"""Of a number with a fraction or an exponent, or one within quotes."""
MAX_TEXT_DEPTH: Final = 64
"""Nesting of a value that is taken where text belongs."""
MAX_TEXT_MEMBERS: Final = 256
"""Members of such a value that are put into Java's hash order."""
MAX_TEXT_VALUES: Final = 5000
"""Values within such a value."""
MAX_OBJECT_MEMBERS: Final = 10_000
"""Members of an object of which some may be spelled in other ways."""

_INTEGER = re.compile(r"[+-]?[0-9]{1,40}")
_SAFE_DIGITS = 15
"""A number with a fraction and fewer digits before it is taken without it; a greater one is an error."""
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
        raise MalformedJsonError(f"{name} is no number: {value!r:.60}")
    if not smallest <= number <= greatest:
        raise MalformedJsonError(f"{name} {number} is not within {smallest} and {greatest}")
    return number


def _integer_of(text: str, name: str) -> int:
    if type(text) is NumberText and not text.lstrip("-").isdigit():
        number = _decimal(text)
        if number.adjusted() < _SAFE_DIGITS:
            return int(number)
    digits = _ZERO_FRACTION.sub("", text.replace(",", "")) if len(text) <= MAX_NUMBER_CHARACTERS else ""
    if _INTEGER.fullmatch(digits) is None:
        raise MalformedJsonError(f"{name} is no number: {text[:60]!r}")
    return int(digits)


def to_bool(value: object, name: str, default: bool = False) -> bool:
    """A Java ``boolean``: true, false, numbers (1 is true), and the words and letters fastjson knows."""
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
    raise MalformedJsonError(f"{name} is no boolean: {value!r:.60}")


def to_text(value: object) -> str | None:
    """A Java ``String``: text itself, anything else as fastjson writes it; null stays None."""
    if value is None or type(value) is str:
        return value
    if isinstance(value, NumberText):
        return value[:] if value.lstrip("-").isdigit() else str(_decimal(value))
    return _nested_text(value, 0, iter(range(MAX_TEXT_VALUES)))


def _nested_text(value: object, depth: int, left: Iterator[int]) -> str:
    """``JSONObject.toString``: default dialect, members in hash order, null members left out."""
    if depth > MAX_TEXT_DEPTH:
        raise MalformedJsonError(f"objects and arrays nested deeper than {MAX_TEXT_DEPTH} where text belongs")
    if next(left, None) is None:
        raise MalformedJsonError(f"more than {MAX_TEXT_VALUES} values where text belongs")
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
    """A Java bean: a JSON object; None for null, and for the empty text and array, which fastjson takes for null."""
    if value is None or value in ("", []):
        return None
    if type(value) is not dict:
        raise MalformedJsonError(f"{name} is no JSON object: {value!r:.60}")
    return value


def to_map(value: object, name: str) -> dict[str, object] | None:
    """A Java Map: a JSON object; None for null."""
    if value in ("", []):
        raise MalformedJsonError(f"{name} is no JSON object: {value!r}")
    return to_object(value, name)


def to_list(value: object, name: str) -> list[object] | None:
    """A JSON array; None for null and for the empty text."""
    if value is None or value == "":
        return None
    if type(value) is not list:
        raise MalformedJsonError(f"{name} is no JSON array: {value!r:.60}")
    return value


def members(value: dict[str, object], names: frozenset[str]) -> dict[str, object]:
    """The members of a bean: by exact name or ignoring case, ``_`` and ``-`` (``JavaBeanDeserializer.smartMatch``).

    Of two spellings of one member the first counts, of one spelling the last.
    """
    if names.issuperset(value):
        return value
    if len(value) > MAX_OBJECT_MEMBERS:
        raise MalformedJsonError(f"an object of {len(value)} members, more than {MAX_OBJECT_MEMBERS}")
    found: dict[str, object] = {}
    spelled: dict[str, str] = {}
    by_plain_name = {name.lower(): name for name in names}
    for key, member in value.items():
        name = key if key in names else by_plain_name.get(key.lower().replace("_", "").replace("-", ""))
        if name is not None and spelled.setdefault(name, key) == key:
            found[name] = member
    return found

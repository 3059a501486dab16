"""A strict reader of EDN, the format of Jepsen's histories. It returns plain Python values and evaluates nothing.

Nil, booleans, numbers, strings, characters, keywords, symbols, lists, vectors, sets and maps are read. A tag (``#inst``,
``#jepsen.history.Op``) is ignored and its value kept. We do not use a package, because those that read EDN bring a parser
generator and call a function for each tag. A history has a few kinds of literals, but may have a gigabyte of them.
"""

import re
from typing import Any

DEPTH_MAX = 32

_TOKEN = re.compile(
    r"""[\s,]*(?:;[^\n]*[\s,]*)*(?P<token>
      \#\{ | \#_ | [\[\](){}]
    | "(?P<string>(?:[^"\\]|\\.)*)"
    | \\(?P<character>newline|space|tab|return|formfeed|backspace|u[0-9a-fA-F]{4}|.)
    | (?P<symbolic>\#\#-?\w+)
    | \#(?P<tag>[^\s,\[\](){}"\#;]+)
    | (?P<atom>[^\s,\[\](){}"\#;\\][^\s,\[\](){}";]*)
    )""",
    re.VERBOSE | re.DOTALL,
)
_CLOSES = {"[": "]", "(": ")", "{": "}", "#{": "}"}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", '"': '"', "b": "\b", "f": "\f"}
_CHARACTERS = {"newline": "\n", "space": " ", "tab": "\t", "return": "\r", "formfeed": "\f", "backspace": "\b"}
_INTEGER = re.compile(r"[+-]?\d+N?")
_REAL = re.compile(r"[+-]?\d+(\.\d*)?([eE][+-]?\d+)?M?")


class Keyword(str):
    """The keyword ``:name``. Its text has no colon."""

    __slots__ = ()


class EdnError(ValueError):
    """Text that is not EDN. The message names the problem and, for some problems, the number of the character."""


class UnfinishedError(EdnError):
    """Text that ends within a value."""


class _EdnReader:
    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0

    def token(self) -> re.Match[str] | None:
        """The next token; None at the end."""
        found = _TOKEN.match(self._text, self._at)
        if found is None:
            rest = re.sub(r";[^\n]*", "", self._text[self._at :]).strip(" \t\r\n,")
            if rest.startswith('"'):
                raise UnfinishedError(f"the string at character {self._at + 1} is not closed")
            if rest:
                raise EdnError(f"{rest[:20]!r} at character {self._at + 1} is not EDN")
            return None
        self._at = found.end()
        return found

    def value(self, found: re.Match[str] | None, depth: int = 0) -> Any:
        """The value that begins with the token ``found``."""
        if found is None:
            raise UnfinishedError("it ends within a value")
        if depth > DEPTH_MAX:
            raise EdnError(f"it is nested deeper than {DEPTH_MAX}")
        token = found["token"]
        if token in _CLOSES:
            return self._collection(token, depth)
        if found["tag"] is not None:
            return self.value(self.token(), depth + 1)
        if found["string"] is not None:
            return _unescaped(found["string"])
        if found["character"] is not None:
            return _CHARACTERS.get(found["character"]) or (
                chr(int(found["character"][1:], 16)) if len(found["character"]) > 1 else found["character"]
            )
        if found["symbolic"] is not None:
            return found["symbolic"]
        if found["atom"] is not None:
            return _atom(found["atom"])
        problem = "cannot follow a tag or another #_" if token == "#_" else "has no opening bracket"
        raise EdnError(f"{token} at character {self._at} {problem}")

    def _collection(self, opened: str, depth: int) -> Any:
        items: list[Any] = []
        while True:
            found = self.token()
            if found is None:
                raise UnfinishedError(f"{opened} is not closed")
            if found["token"] == _CLOSES[opened]:
                break
            if found["token"] == "#_":
                self.value(self.token(), depth + 1)
                continue
            items.append(self.value(found, depth + 1))
        if opened != "{":
            return items
        if len(items) % 2:
            raise EdnError("a map has a key without a value")
        keys = [key if isinstance(key, str | int | float | bool) or key is None else repr(key) for key in items[::2]]
        return dict(zip(keys, items[1::2], strict=True))


def _unescaped(text: str) -> str:
    def one(match: re.Match[str]) -> str:
        if match[1].startswith("u"):
            return chr(int(match[1][1:], 16))
        if match[1] not in _ESCAPES:
            raise EdnError(f"\\{match[1]} is not an escape of a string")
        return _ESCAPES[match[1]]

    return re.sub(r"\\(u[0-9a-fA-F]{4}|.)", one, text, flags=re.DOTALL)


def _atom(text: str) -> Any:
    if text.startswith(":"):
        return Keyword(text[1:])
    if text in ("nil", "true", "false"):
        return {"nil": None, "true": True, "false": False}[text]
    if _INTEGER.fullmatch(text):
        if len(text) > 100:
            raise EdnError(f"a number of {len(text)} digits")
        return int(text.rstrip("N"))
    if _REAL.fullmatch(text):
        return float(text.rstrip("M"))
    return text


def read(text: str) -> Any:
    """Read the only value in ``text``. Raises EdnError."""
    reader = _EdnReader(text)
    value = reader.value(reader.token())
    if reader.token() is not None:
        raise EdnError("more than one value; one operation a line is expected")
    return value

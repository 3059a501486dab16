"""kvConfig.json: RocketMQ's file of the KV config, in its format but written atomically.

Source: ``KVConfigManager`` and ``KVConfigSerializeWrapper``.
"""

from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path

import orjson

from replicated_namesrv.errors import StorageError
from replicated_namesrv.files import Ballast, write_atomically

KVTable = dict[str, dict[str, str | None]]
"""From namespace to key to value. None is a stored null, which is never written to the file."""

Table = Mapping[str, Mapping[str, str | None]]
NO_CHANGES: Table = {}
PART_CHARACTERS = 256 << 10
"""Size at which a part of the file ends. The entry that reaches this size is still in the part, so a part is longer by at most
one entry."""
ENTRY_CHARACTERS = 6
"""Characters that each entry needs besides key and value: quotes, colon and comma."""

_REMEDY = "restore it from its .bak or move it away to start with an empty KV config"


def read_kv_file(path: Path, remedy: str = _REMEDY) -> KVTable:
    """Read the table. A missing or empty file is an empty table. Raises StorageError for a file that cannot be used; the text
    ends with ``remedy``."""
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as cause:
        raise StorageError(f"{path}: cannot be read ({cause.strerror}); {remedy}") from cause
    if not content.strip():
        return {}
    try:
        document = orjson.loads(content)
    except orjson.JSONDecodeError as cause:
        raise StorageError(f"{path}: not JSON ({cause}); {remedy}") from None
    table = document.get("configTable") if isinstance(document, dict) else None
    if not isinstance(table, dict) or not all(isinstance(entries, dict) for entries in table.values()):
        raise StorageError(f'{path}: not a JSON object of the form {{"configTable":{{namespace:{{key:value}}}}}}; {remedy}')
    return {namespace: {key: _text(value) for key, value in entries.items()} for namespace, entries in table.items()}


def _text(value: object) -> str | None:
    """A value as fastjson reads it into a String: text as it is, null as null, anything else as its JSON."""
    return value if value is None or isinstance(value, str) else orjson.dumps(value).decode()


def write_kv_file(path: Path, table: Table, ballast: Ballast | None = None, changes: Table = NO_CHANGES) -> int:
    """Replace the file and keep the old content as ``.bak``. ``changes`` replace entries of ``table``; None: the entry is not
    persisted. Returns the number of bytes written. Raises StorageError: the old file is in place."""
    parts = list(kv_file_parts(table, changes))
    write_atomically(path, parts, backup=True, ballast=ballast)
    return sum(map(len, parts))


def kv_file_parts(table: Table, changes: Table = NO_CHANGES) -> Iterator[bytes]:
    """The content. While a part is encoded, no other thread of the process runs, so the parts are short."""
    begin = b'{"configTable":{'
    for namespace in chain(table, (name for name in changes if name not in table)):
        yield begin + orjson.dumps(namespace) + b":{"
        begin, comma = b"},", b""
        for part in _slices(table.get(namespace, {}), changes.get(namespace, {})):
            yield comma + orjson.dumps(part)[1:-1]
            comma = b","
    yield b"}}}" if begin == b"}," else begin + b"}}"


def _slices(held: Mapping[str, str | None], changed: Mapping[str, str | None]) -> Iterator[dict[str, str]]:
    new = ((key, value) for key, value in changed.items() if key not in held)
    part: dict[str, str] = {}
    size = 0
    for key, value in chain(((key, changed.get(key, value)) for key, value in held.items()), new):
        if value is not None:
            part[key] = value
            size += len(key) + len(value) + ENTRY_CHARACTERS
        if size >= PART_CHARACTERS:
            yield part
            part, size = {}, 0
    if part:
        yield part

"""kvConfig.json: RocketMQ's file of the KV config, in its format but written atomically.

Source: ``KVConfigManager`` and ``KVConfigSerializeWrapper``.
"""

from collections.abc import Mapping
from pathlib import Path

import orjson

from replicated_namesrv.errors import StorageError
from replicated_namesrv.files import Ballast, write_atomically

KVTable = dict[str, dict[str, str | None]]
"""namespace to key to value; None is a stored null, which is never persisted."""

_REMEDY = "restore it from its .bak or move it away to start with an empty KV config"


def read_kv_file(path: Path) -> KVTable:
    """Read the table. A missing or empty file is an empty table. Raises StorageError for a file that cannot be used."""
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as cause:
        raise StorageError(f"{path}: cannot be read ({cause.strerror}); {_REMEDY}") from cause
    if not content.strip():
        return {}
    try:
        document = orjson.loads(content)
    except orjson.JSONDecodeError as cause:
        raise StorageError(f"{path}: not JSON ({cause}); {_REMEDY}") from None
    table = document.get("configTable") if isinstance(document, dict) else None
    if not isinstance(table, dict) or not all(isinstance(entries, dict) for entries in table.values()):
        raise StorageError(f'{path}: not a JSON object of the form {{"configTable":{{namespace:{{key:value}}}}}}; {_REMEDY}')
    return {namespace: {key: _text(value) for key, value in entries.items()} for namespace, entries in table.items()}


def _text(value: object) -> str | None:
    """A value as fastjson reads it into a String: text as it is, null as null, anything else as its JSON."""
    return value if value is None or isinstance(value, str) else orjson.dumps(value).decode()


def write_kv_file(path: Path, table: Mapping[str, Mapping[str, str | None]], ballast: Ballast | None = None) -> int:
    """Replace the file and keep the old content as ``.bak``. Returns the number of bytes written. Raises StorageError: the old
    file is in place."""
    persisted = {
        namespace: {key: value for key, value in entries.items() if value is not None} for namespace, entries in table.items()
    }
    content = orjson.dumps({"configTable": persisted})
    write_atomically(path, content, backup=True, ballast=ballast)
    return len(content)

"""Writes of the KV config in AP mode: first to disk, then to memory, then the answer (``files.FileWriter``).

The thread that writes reads the table itself, not a copy, because the table does not change before the write ends. The thread
encodes short parts, so the event loop runs between them.

If the disk refuses a write, file and table are unchanged. Each change rewrites the whole file, so even a deletion needs disk
space. ``kvConfig.json.ballast`` reserves slightly more space than the file has. It is released when the disk is full.
"""

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from replicated_namesrv.compat.kv_file import KVTable, Table, write_kv_file
from replicated_namesrv.files import Ballast, FileWriter
from replicated_namesrv.routes.commands import DeleteKVConfig, PutKVConfig
from replicated_namesrv.routes.results import Result

BALLAST_MARGIN_BYTES = 64 << 10
KVCommand = PutKVConfig | DeleteKVConfig
"""The commands that are written to kvConfig.json. ``IndependentNode`` applies all other commands at once."""


class KVWriter(FileWriter[KVCommand, Result]):
    """Persists KV commands and then applies them, in the order of arrival."""

    def __init__(self, path: Path, table: Callable[[], Table], apply: Callable[[KVCommand], Result]) -> None:
        """``table`` returns views of the table. The table changes only in ``apply``."""
        super().__init__(self._build_file, apply)
        self._path = path
        self._table = table
        self._ballast = Ballast(path.with_name(path.name + ".ballast"))

    def _build_file(self, commands: Sequence[KVCommand]) -> Callable[[], None]:
        table, changes = self._table(), KVTable()
        for command in commands:
            if isinstance(command, PutKVConfig):
                changes.setdefault(command.namespace, {})[command.key] = command.value
            elif command.namespace in table or command.namespace in changes:
                changes.setdefault(command.namespace, {})[command.key] = None
        return partial(self._write_file, table, changes)

    def _write_file(self, table: Table, changes: Table) -> None:
        self._ballast.fill(write_kv_file(self._path, table, self._ballast, changes) + BALLAST_MARGIN_BYTES)

    def fill_ballast(self) -> None:
        """Reserve as much space as the file has, unless the disk has no room for it."""
        with contextlib.suppress(OSError):
            self._ballast.fill(self._path.stat().st_size + BALLAST_MARGIN_BYTES)

"""Writes of the KV config in AP mode: first to disk, then to memory, then the answer (``files.FileWriter``).

If the disk refuses a write, file and table are unchanged. The file is rewritten at each change, so even a deletion needs room
for it: ``kvConfig.json.ballast`` reserves as much and is released when the disk is full.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from replicated_namesrv.compat.kv_file import KVTable, write_kv_file
from replicated_namesrv.files import Ballast, FileWriter
from replicated_namesrv.routes.commands import DeleteKVConfig, PutKVConfig
from replicated_namesrv.routes.results import Result

BALLAST_MARGIN_BYTES = 64 << 10
KVCommand = PutKVConfig | DeleteKVConfig


class KVWriter(FileWriter[KVCommand, Result]):
    """Persists KV commands and then applies them, in the order of arrival."""

    def __init__(
        self, path: Path, table: Callable[[], Mapping[str, Mapping[str, str | None]]], apply: Callable[[KVCommand], Result]
    ) -> None:
        super().__init__(self._build_file, apply)
        self._path = path
        self._table = table
        self._ballast = Ballast(path.with_name(path.name + ".ballast"))

    def _build_file(self, commands: Sequence[KVCommand]) -> Callable[[], None]:
        table: KVTable = {namespace: dict(entries) for namespace, entries in self._table().items()}
        for command in commands:
            _change(table, command)
        return partial(self._write_file, table)

    def _write_file(self, table: KVTable) -> None:
        self._ballast.fill(write_kv_file(self._path, table, self._ballast) + BALLAST_MARGIN_BYTES)

    def fill_ballast(self) -> None:
        """Reserve as much space as the file has, unless the disk has no room for it."""
        with contextlib.suppress(OSError):
            self._ballast.fill(self._path.stat().st_size + BALLAST_MARGIN_BYTES)


def _change(table: KVTable, command: KVCommand) -> None:
    if isinstance(command, PutKVConfig):
        table.setdefault(command.namespace, {})[command.key] = command.value
    else:
        table.get(command.namespace, {}).pop(command.key, None)

"""Writes of the KV config in AP mode: on disk first, then in memory, then answered.

A write that the disk refuses has surely not happened: the file and the table are as they were. Writes that wait while the
disk is busy go out together with the next one, so a slow disk costs a round and not a round for each.
"""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

from replicated_namesrv.compat.kv_file import KVTable, write_kv_file
from replicated_namesrv.routes.commands import DeleteKVConfig, PutKVConfig
from replicated_namesrv.routes.results import Result

KVCommand = PutKVConfig | DeleteKVConfig


class KVWriter:
    """Persists KV commands and then applies them, in the order in which they came."""

    def __init__(
        self, path: Path, table: Callable[[], Mapping[str, Mapping[str, str | None]]], apply: Callable[[KVCommand], Result]
    ) -> None:
        self._path = path
        self._table = table
        self._apply = apply
        self._waiting: list[tuple[KVCommand, asyncio.Future[Result]]] = []
        self._task: asyncio.Task[None] | None = None

    def submit(self, command: KVCommand) -> asyncio.Future[Result]:
        """The result once the command is on disk and applied; StorageError if the disk refused it."""
        answer: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((command, answer))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._write_all())
        return answer

    async def drain(self) -> None:
        """Wait until nothing is being written."""
        while self._task is not None:
            await asyncio.wait([self._task])

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                await self._write(batch)
        finally:
            self._task = None

    async def _write(self, batch: list[tuple[KVCommand, asyncio.Future[Result]]]) -> None:
        table: KVTable = {namespace: dict(entries) for namespace, entries in self._table().items()}
        for command, _ in batch:
            _change(table, command)
        try:
            await asyncio.to_thread(write_kv_file, self._path, table)
        except Exception as error:  # whatever it is belongs to those who wait, and the next batch gets its turn
            for _, answer in batch:
                if not answer.done():
                    answer.set_exception(error)
            return
        for command, answer in batch:
            result = self._apply(command)
            if not answer.done():
                answer.set_result(result)


def _change(table: KVTable, command: KVCommand) -> None:
    if isinstance(command, PutKVConfig):
        table.setdefault(command.namespace, {})[command.key] = command.value
    else:
        table.get(command.namespace, {}).pop(command.key, None)

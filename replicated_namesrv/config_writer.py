"""ConfigWriter: run-time changes of this node's settings (code 318, ``POST /v1/config``), in AP and CP alike.

A change is on disk, in the file of ``configStorePath``, before it is in force. The file is written as a whole, so changes go
through one queue (``files.FileWriter``): each is built on all those before it.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from replicated_namesrv.files import FileWriter, write_atomically
from replicated_namesrv.settings import ROWS, Settings

Done = TypeVar("Done")


class ConfigWriter(FileWriter[Mapping[str, str], Done]):
    """Persists changes, each given as texts by outside name, and then puts them in force by ``apply``, which has to call
    ``settings.update``. The caller has checked them against the black list."""

    def __init__(self, settings: Settings, apply: Callable[[Mapping[str, str]], Done]) -> None:
        super().__init__(self._build_file, apply)
        self._settings = settings

    def _build_file(self, changes: Sequence[Mapping[str, str]]) -> Callable[[], None]:
        settings = self._settings
        candidate = dataclasses.replace(settings, extra=dict(settings.extra), origins=dict(settings.origins))
        for values in changes:
            candidate.update(values)
        text = candidate.file_text().encode()
        return partial(write_atomically, Path(settings.config_store_path), text, backup=True)


def describe_written(settings: Settings, values: Mapping[str, str]) -> str:
    """Of the ``values`` that were submitted and written: which are in force and which wait for a restart. Empty: all were passed
    over, as names that do not exist and malformed values are."""
    in_force: list[str] = []
    waiting: list[str] = []
    for key, text in values.items():
        row = ROWS.get(key)
        if row is None:
            if settings.extra.get(key) == text:
                waiting.append(key)
            continue
        try:
            is_taken = row.parse(text) == settings.get(row)
        except ValueError:
            continue
        if is_taken:
            (in_force if row.live else waiting).append(key)
    told = [(in_force, "in force on this node"), (waiting, "written for the next start of this node")]
    return "; ".join(f"{', '.join(keys)} {what}" for keys, what in told if keys)

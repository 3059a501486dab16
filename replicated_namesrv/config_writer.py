"""Run-time changes of settings (code 318, ``POST /v1/config``), in AP and CP alike.

    check          both modes         refuse keys of the black list and malformed bounds (``refused_update``)
    this node's    both modes         write the file, then put in force (``ConfigWriter``)
    shared         AP                 as this node's own
    shared         CP                 through the log (``replication/config_updates.py``)

A change is on disk, in the file of ``configStorePath``, before it is in force. The file is written as a whole, so changes go
through one queue (``files.FileWriter``): each is built on all those before it.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from replicated_namesrv.files import FileWriter, write_atomically
from replicated_namesrv.routes.quotas import Quotas
from replicated_namesrv.routes.results import Result
from replicated_namesrv.routes.state import RouteSettings
from replicated_namesrv.settings import ROWS, Settings

Done = TypeVar("Done")
NO_PERMISSION = 16
SHARED_ROWS = {row.attribute: row for row in ROWS.values() if row.replicated}
"""Settings that answers depend on: part of the state, by attribute."""


def route_settings(settings: Settings) -> RouteSettings:
    """The shared settings as this node's configuration has them."""
    values: dict[str, Any] = {attribute: getattr(settings, attribute) for attribute in SHARED_ROWS}
    return RouteSettings(**values)


def refused_update(settings: Settings, quotas: Quotas, values: Mapping[str, str]) -> Result | None:
    """Why none of ``values`` may be changed; None: they may. Raises LimitError."""
    if not settings.black_list.isdisjoint(values):
        return Result(code=NO_PERMISSION, remark="Can not update config in black list.")
    quotas.check_settings(values)
    return None


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

"""The KV entries and shared settings of backups and kvConfig.json files, which ``namesrv switch`` compares."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from replicated_namesrv.cli.backup import check_file, state_in
from replicated_namesrv.cli.kv_import import entries_of, is_backup
from replicated_namesrv.errors import NamesrvError
from replicated_namesrv.routes.state import RouteSettings
from replicated_namesrv.settings import ROWS

SHOWN_MAX, VALUE_CHARACTERS_MAX = 20, 60
SHARED = {row.name: row for row in ROWS.values() if row.replicated}

Key = tuple[str, str]
Table = dict[Key, str]


class DisagreementError(NamesrvError):
    """The command was refused: data would be lost, the backup is of another cluster, or the directory is in use."""


class Side(NamedTuple):
    """The content of one file."""

    name: str
    table: Table
    settings: dict[str, bool] | None
    """Shared settings in the file. None: such a file contains no settings (kvConfig.json)."""


def side_of(file: Path) -> Side:
    """Raises StorageError."""
    table = {(namespace, key): value for namespace, key, value in entries_of(file)}
    if not is_backup(file):
        return Side(str(file), table, None)
    check_file(file)
    return Side(str(file), table, shown_settings(state_in(file).settings))


def shown_settings(settings: RouteSettings) -> dict[str, bool]:
    return {name: bool(getattr(settings, row.attribute)) for name, row in SHARED.items()}


def entries_in(table: Mapping[str, Mapping[str, str | None]]) -> Table:
    return {(name, key): value for name, entries in table.items() for key, value in entries.items() if value is not None}


def disagreements(sides: list[Side], winner: Side, is_chosen: bool) -> list[dict[str, Any]]:
    """Keys and shared settings that are not the same in all files. Raises DisagreementError if no winner was named."""
    found = conflicts_of(sides, winner)
    if found and not is_chosen:
        raise DisagreementError(
            f"nothing was changed: {listed(found)}; make the nodes equal while they run ('namesrv diff' compares them, "
            "'namesrv kv' changes them) and take the backups again, or name with --prefer FILE the one whose values are kept"
        )
    return found


def conflicts_of(sides: list[Side], winner: Side) -> list[dict[str, Any]]:
    """The entries that differ, each with the value of every file, None where it is missing."""
    found: list[dict[str, Any]] = []
    for namespace, key in sorted({key for side in sides for key in side.table}):
        values = {side.name: side.table.get((namespace, key)) for side in sides}
        if len(set(values.values())) > 1:
            found.append({"namespace": namespace, "key": key, "values": values, "winner": winner.name})
    having = [side for side in sides if side.settings is not None]
    for name in SHARED if having else ():
        shown = {side.name: (side.settings or {})[name] for side in having}
        if len(set(shown.values())) > 1:
            found.append({"setting": name, "values": shown, "winner": winner.name})
    return found


def conflict_text(conflict: Mapping[str, Any]) -> str:
    values = dict(conflict["values"])
    won = values.pop(conflict["winner"], None)
    lost = ", ".join(f"{name} had {_value(value)}" for name, value in values.items() if value != won)
    return f"{_name(conflict)}: {conflict['winner']} wins with {_value(won)}; {lost}"


def _value(value: object) -> str:
    if value is None:
        return "no such key"
    text = str(value)
    return repr(text if len(text) <= VALUE_CHARACTERS_MAX else text[:VALUE_CHARACTERS_MAX] + "…")


def _name(conflict: Mapping[str, Any]) -> str:
    return f"setting {conflict['setting']}" if "setting" in conflict else f"key {conflict['namespace']}/{conflict['key']}"


def listed(conflicts: list[dict[str, Any]]) -> str:
    names = ", ".join(map(_name, conflicts[:SHOWN_MAX]))
    more = f" and {len(conflicts) - SHOWN_MAX} more" if len(conflicts) > SHOWN_MAX else ""
    return f"the files disagree about {names}{more}"


def missing_names(table: Table, sides: list[Side]) -> list[str]:
    """Names of the entries that none of the files has with the same value."""
    known = {item for side in sides for item in side.table.items()}
    return [f"{namespace}/{key}" for (namespace, key), value in sorted(table.items()) if ((namespace, key), value) not in known]

"""Read the settings of a node from flags, environment, run-time changes and properties files.

Precedence: flag over environment (``NAMESRV_LISTEN_PORT``) over what was changed at run time (``RUN_TIME_FILE``) over file
over default. A node does not start with an invalid setting: the message names key, value and remedy. Two exceptions keep files
written for the Java server usable: an unknown key in the file only causes a warning unless it looks like a misspelt setting of
ours, and a malformed value of a RocketMQ setting is ignored with a warning, as ``MixAll.properties2Object`` does. A line of
``RUN_TIME_FILE`` that no run-time change can have written is also ignored with a warning, because no accepted change may
prevent a start.
"""

import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from replicated_namesrv.errors import BodyError, SettingError
from replicated_namesrv.settings import OWN, ROWS, Row, Settings, Value, may_be_secret
from replicated_namesrv.settings_checks import check
from replicated_namesrv.wire.properties import load_properties

ENVIRONMENT_PREFIX = "NAMESRV_"
_FOREIGN_ENVIRONMENT = ("NAMESRV_ADDR", "NAMESRV_PORT", "NAMESRV_SERVICE_")
"""Beginnings of variables that are not settings. The first is RocketMQ's own client variable; Kubernetes sets the others for a
service with the name namesrv."""
_OPERATORS_VARIABLES = ("NAMESRV_ADMIN", "NAMESRV_ADMIN_CA", "NAMESRV_ADMIN_CERT", "NAMESRV_ADMIN_KEY")
"""Variables that only commands read."""


def environment_name(row: Row) -> str:
    """``listenPort`` to ``NAMESRV_LISTEN_PORT``."""
    return ENVIRONMENT_PREFIX + row.attribute.upper()


def _assigned(key: str, text: str) -> str:
    """``key=text`` of an unknown key, for messages. A text that may be a secret is left out."""
    return f"{key}=…" if may_be_secret(key) else f"{key}={text}"


def _nearest(key: str) -> str:
    found = difflib.get_close_matches(key, ROWS, n=1, cutoff=0.8)
    return f"; did you mean {found[0]}?" if found else ""


def _parse(row: Row, text: str, source: str) -> Value:
    try:
        return row.parse_strictly(text)
    except ValueError as cause:
        raise SettingError(f"{row.name}={text} ({source}): {cause}") from None


def _from_file(path: str, taken: dict[str, Value], origins: dict[str, str], warnings: list[str]) -> dict[str, str]:
    extra: dict[str, str] = {}
    for key, text in load_properties(Path(path).read_bytes()).items():
        row = ROWS.get(key)
        if row is None:
            near = difflib.get_close_matches(key, [r.name for r in ROWS.values() if r.group == OWN], n=1, cutoff=0.8)
            if near:
                raise SettingError(f"{_assigned(key, text)} ({path}): unknown setting; did you mean {near[0]}?")
            shown = "it has no effect" if may_be_secret(key) else "it is shown but has no effect"
            warnings.append(f"{_assigned(key, text)} ({path}): not a setting of this name server; {shown}")
            extra[key] = text
            continue
        try:
            taken[row.attribute] = row.parse(text)
            origins[row.attribute] = f"file {path}"
            if not row.is_plain(text):
                warnings.append(f"{key}={text} ({path}): neither true nor false; it counts as false")
        except ValueError:
            if row.group == OWN:
                _parse(row, text, path)
            warnings.append(f"{key}={text} ({path}): malformed; the default {row.show(row.default)} is used")
    return extra


def _optional(path: Path, name: str, remedy: str) -> dict[str, str]:
    """The properties in a file that may be absent. Raises SettingError, with ``name`` and ``remedy``, if it cannot be read."""
    try:
        return load_properties(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, BodyError) as cause:
        reason = cause.strerror if isinstance(cause, OSError) else str(cause)
        raise SettingError(f"{name}: {reason}; {remedy}") from cause


def _from_run_time_file(
    path: Path, extra: dict[str, str], taken: dict[str, Value], origins: dict[str, str], warnings: list[str]
) -> dict[str, str]:
    """The run-time changes; flags and environment override them. Raises SettingError if the file cannot be read."""
    changes: dict[str, str] = {}
    remedy = "make it readable, correct it, or remove it to undo the changes made at run time"
    for key, text in _optional(path, str(path), remedy).items():
        row = ROWS.get(key)
        if row is None and key in extra:
            extra[key] = changes[key] = text
            continue
        try:
            if row is None or not row.live:
                raise ValueError("it cannot change at run time")
            value = row.parse_change(text)
        except ValueError as cause:
            warnings.append(f"{_assigned(key, text)} ({path}): ignored; {cause}")
            continue
        changes[key] = text
        if origins.get(row.attribute, "file ").startswith("file "):
            taken[row.attribute], origins[row.attribute] = value, f"file {path}"
    return changes


def _from_tls_file(taken: dict[str, Value], origins: dict[str, str]) -> None:
    """``TlsHelper.extractTlsConfigFromFile``; flags and environment override it."""
    path = str(taken.get("tls_config_file", Settings.__dataclass_fields__["tls_config_file"].default))
    if not path:
        return
    remedy = "make it readable, correct it, or name another file"
    for key, text in _optional(Path(path), f"tls.config.file={path}", remedy).items():
        row = ROWS.get(key)
        if row is None or not key.startswith("tls.") or row.attribute in ("tls_server_mode", "tls_config_file"):
            continue
        if not origins.get(row.attribute, "file").startswith("file"):
            continue
        taken[row.attribute] = _parse(row, text, str(path))
        origins[row.attribute] = f"file {path}"


def _from_environment(environment: Mapping[str, str], taken: dict[str, Value], origins: dict[str, str]) -> None:
    by_variable = {environment_name(row): row for row in ROWS.values()}
    for variable, text in environment.items():
        if not variable.startswith(ENVIRONMENT_PREFIX):
            continue
        row = by_variable.get(variable)
        if row is None:
            if variable.startswith(_FOREIGN_ENVIRONMENT) or variable in _OPERATORS_VARIABLES:
                continue
            near = difflib.get_close_matches(variable, by_variable, n=1, cutoff=0.8)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise SettingError(f"{_assigned(variable, text)}: unknown setting in the environment{hint}; unset it")
        taken[row.attribute] = _parse(row, text, variable)
        origins[row.attribute] = f"environment {variable}"


def load_settings(
    file: str | None = None, flags: Mapping[str, str] | None = None, environment: Mapping[str, str] | None = None
) -> Settings:
    """Settings from flags (name in the properties file to text) over environment over run-time changes over the properties
    ``file``.

    Raises SettingError (unknown, malformed or contradictory), OSError (the file cannot be read), BodyError (it is not a
    properties text).
    """
    taken: dict[str, Value] = {}
    origins: dict[str, str] = {}
    warnings: list[str] = []
    extra: dict[str, str] = {}
    if file is not None:
        extra = _from_file(file, taken, origins, warnings)
        taken["config_store_path"] = file
    _from_environment(os.environ if environment is None else environment, taken, origins)
    for key, text in (flags or {}).items():
        row = ROWS.get(key)
        if row is None:
            raise SettingError(
                f"{_assigned(key, text)}: unknown setting{_nearest(key)}; 'namesrv serve --help' names the page that lists them"
            )
        taken[row.attribute] = _parse(row, text, "flag")
        origins[row.attribute] = "flag"
    _from_tls_file(taken, origins)
    run_time_file = Settings(data_dir=str(taken.get("data_dir", ""))).run_time_file
    if file is not None and Path(file).resolve() == run_time_file.resolve():
        raise SettingError(f"-c {file}: run-time changes are written to this file; give the settings in another one")
    run_time = _from_run_time_file(run_time_file, extra, taken, origins, warnings)
    values: dict[str, Any] = dict(taken)  # values by attribute, already parsed
    result = Settings(**values, extra=extra, origins=origins, run_time=run_time, warnings=warnings)
    check(result)
    return result

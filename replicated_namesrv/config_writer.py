"""Run-time changes of settings (``UPDATE_NAMESRV_CONFIG`` (318), ``POST /v1/config``), in AP and CP.

A change is checked first (``checked_update``). A setting of this node is then written to the file and put in force
(``ConfigWriter``), and so is a shared setting in AP. In CP a shared setting goes through the log
(``replication/config_updates.py``).

Anyone who reaches the remoting port can send code 318. Each key of a request is decided by the first row that matches. A refused
key refuses the whole request. The tests are in tests/security/test_settings_changes.py:

    key                       value            outcome           reason                      test
    control character in either                refused, code 1   could become another line   test_line_injection_is_refused
    on the black list         any              refused, code 16  as in Java                  test_line_injection_is_refused
    unknown, in the -c file   any              taken             as in Java; has no effect   test_only_changes_are_written
    unknown                   any              ignored           as in Java, but logged      test_what_318_does_not_take_is_logged
    known                     malformed or     ignored           as in Java, but logged      test_what_318_does_not_take_is_logged
                              out of range
    read at the start only    valid            refused, code 16  could break the next start  test_start_only_settings_are_refused
    live                      valid            taken                                         test_only_changes_are_written

A value that is longer than ``quotas.SETTING_CHARACTERS_MAX`` refuses the whole request too (LimitError). It can come over HTTP
only, because a request with code 318 has at most 64 KiB.

HTTP and the command line refuse the keys and values that 318 ignores: there a person typed them, so the cause is a typing error.

A change is on disk, in ``Settings.run_time_file``, before it takes effect. The file contains only run-time changes. At the
start it overrides the file given with -c, which is never written. The file is written as a whole, so changes go through one
queue (``files.FileWriter``), and each includes all earlier ones.
"""

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from replicated_namesrv.errors import StorageError
from replicated_namesrv.files import FileWriter, write_atomically
from replicated_namesrv.routes.quotas import Quotas
from replicated_namesrv.routes.results import Result
from replicated_namesrv.routes.state import RouteSettings
from replicated_namesrv.settings import ROWS, Settings, has_control_character
from replicated_namesrv.wire.properties import load_properties, store_properties

log = logging.getLogger(__name__)

Done = TypeVar("Done")
MALFORMED, NO_PERMISSION = 1, 16
SHARED_ROWS = {row.attribute: row for row in ROWS.values() if row.replicated}
"""Shared settings by attribute. They are part of the replicated state, because answers depend on them."""
_SHOWN_CHARACTERS, _SHOWN_KEYS = 80, 10


def route_settings(settings: Settings) -> RouteSettings:
    """The shared settings of this node's configuration."""
    values: dict[str, Any] = {attribute: getattr(settings, attribute) for attribute in SHARED_ROWS}
    return RouteSettings(**values)


def checked_update(settings: Settings, quotas: Quotas, values: Mapping[str, str]) -> Result | dict[str, str]:
    """The entries of ``values`` to apply, or the reason why the whole request is refused. Raises LimitError."""
    for key, text in values.items():
        if has_control_character(key) or has_control_character(text):
            return Result(code=MALFORMED, remark=f"{key[:_SHOWN_CHARACTERS]!r}: leave control characters out of key and value")
    if not settings.black_list.isdisjoint(values):
        return Result(code=NO_PERMISSION, remark="Can not update config in black list.")
    quotas.check_settings(values)
    taken = {key: text for key, text in values.items() if _is_taken(settings, key, text)}
    for key in taken:
        if key in ROWS and not ROWS[key].live:
            remedy = "set it by flag, environment or the file of -c and restart the node"
            return Result(code=NO_PERMISSION, remark=f"{key} is read at the start only: {remedy}")
    passed_over = [f"{key}={text}"[:_SHOWN_CHARACTERS] for key, text in values.items() if key not in taken]
    if passed_over:
        shown = passed_over[:_SHOWN_KEYS]
        log.warning("settings ignored: unknown key or invalid value", extra={"count": len(passed_over), "settings": shown})
    return taken


def _is_taken(settings: Settings, key: str, text: str) -> bool:
    row = ROWS.get(key)
    if row is None:
        return key in settings.extra
    try:
        row.parse_change(text)
    except ValueError:
        return False
    return True


class ConfigWriter(FileWriter[Mapping[str, str], Done]):
    """Persists changes (name in the properties file to text), then calls ``apply``, which must call ``settings.change``. The
    changes come from ``checked_update``."""

    def __init__(self, settings: Settings, apply: Callable[[Mapping[str, str]], Done]) -> None:
        super().__init__(self._build_file, apply)
        self._settings = settings

    def _build_file(self, changes: Sequence[Mapping[str, str]]) -> Callable[[], None]:
        settings = self._settings
        candidate = dataclasses.replace(settings, extra=dict(settings.extra), run_time=dict(settings.run_time))
        for values in changes:
            candidate.change(values)
        if candidate.run_time == settings.run_time:
            return lambda: None
        content = store_properties(candidate.run_time)
        read_back = load_properties(content)
        if read_back != candidate.run_time:
            altered = sorted(key for key, text in candidate.run_time.items() if read_back.get(key) != text)
            raise StorageError(
                f"{settings.run_time_file}: the value of {', '.join(altered)[:_SHOWN_CHARACTERS]} would be altered when the file "
                "is read back; nothing was changed; give another value"
            )
        return partial(write_atomically, settings.run_time_file, content, backup=True)


def describe_written(settings: Settings, values: Mapping[str, str]) -> str:
    """The ``values`` that were written and are in force, as text. Empty: none."""
    written = [key for key, text in values.items() if key in ROWS and ROWS[key].parse(text) == settings.get(ROWS[key])]
    return f"{', '.join(written)} in force on this node" if written else ""

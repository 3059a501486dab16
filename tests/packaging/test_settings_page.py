"""Every setting has a row on docs/settings.md, its bounds, and an effect."""

import dataclasses
import re

from replicated_namesrv.routes.tables import LATER_SETTINGS, RouteSettings
from replicated_namesrv.settings import _RUN_TIME_RANGES, OWN, ROWS
from replicated_namesrv.settings_checks import _AT_LEAST
from tests.packaging.settings_page import CHART_SCHEMA, GROUPS, PAGE, chart_schema, page
from tests.packaging.tree import ROOT, tracked_files

PRODUCT = ("replicated_namesrv", "compat", "chaos", "spark")
NO_EFFECT = "Accepted"
"""First word of the meaning of each RocketMQ setting that has no effect here."""


def test_every_setting_has_a_group_and_a_meaning() -> None:
    wrong = [
        f"{row.name}: group {row.group!r} is not in GROUPS of settings_page.py"
        for row in ROWS.values()
        if row.group not in GROUPS
    ]
    wrong += [
        f"{row.name}: the meaning has to be a sentence, it is {row.meaning!r}"
        for row in ROWS.values()
        if not row.meaning.endswith((".", ")"))
    ]
    assert not wrong, "\n".join(wrong)


def test_settings_page_is_the_table_of_settings() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "stale: run .venv/bin/python -m tests.packaging.settings_page and commit docs/settings.md"
    )


def test_chart_accepts_the_settings_of_the_table_only() -> None:
    assert CHART_SCHEMA.read_text(encoding="utf-8") == chart_schema(), (
        f"stale: run .venv/bin/python -m tests.packaging.settings_page and commit {CHART_SCHEMA.name}"
    )


def test_every_number_has_bounds() -> None:
    numbers = [row for row in ROWS.values() if row.kind is int]
    missing = [
        f"{row.name}: enter {row.attribute} in _AT_LEAST of settings_checks.py"
        for row in numbers
        if row.group == OWN and row.attribute not in _AT_LEAST
    ]
    missing += [
        f"{row.name} can change at run time: enter {row.attribute} in _RUN_TIME_RANGES of settings.py"
        for row in numbers
        if row.live and row.attribute not in _RUN_TIME_RANGES
    ]
    assert not missing, "\n".join(missing)


def test_replicated_settings_are_part_of_the_state() -> None:
    replicated = {row.attribute for row in ROWS.values() if row.replicated}
    stored = {field.name for field in dataclasses.fields(RouteSettings)}
    wrong = [f"{name} is replicated, but RouteSettings in routes/tables.py has no such field" for name in replicated - stored]
    wrong += [f"RouteSettings has {name}: declare it with replicated=True in settings.py" for name in stored - replicated]
    assert not wrong, "\n".join(wrong)


SETTINGS_OF_0_1 = {
    *("delete_topic_with_broker_registration", "support_acting_master", "order_message_enable", "enable_topic_list"),
    *("enable_all_topic_list", "notify_min_broker_id_changed", "return_order_topic_config_to_broker"),
}
"""The fields of ``RouteSettings`` in version 0.1.0. Do not add a field: enter it in LATER_SETTINGS of routes/tables.py."""


def test_nodes_of_version_0_1_compute_the_digest_of_the_default_settings() -> None:
    stored = {field.name for field in dataclasses.fields(RouteSettings)}
    wrong = [
        f"RouteSettings has {name}, which nodes of version 0.1.0 do not know: add the name to LATER_SETTINGS in "
        "routes/tables.py, so that digest and snapshot omit the field while it has its default"
        for name in sorted(stored - SETTINGS_OF_0_1 - set(LATER_SETTINGS))
    ]
    wrong += [
        f"LATER_SETTINGS in routes/tables.py has {name}, but digests and snapshots of version 0.1.0 contain it: remove the name"
        for name in sorted(SETTINGS_OF_0_1 & set(LATER_SETTINGS))
    ]
    wrong += [f"LATER_SETTINGS has {name}, but RouteSettings has no such field" for name in sorted(set(LATER_SETTINGS) - stored)]
    wrong += [
        f"RouteSettings has no {name}, which nodes of version 0.1.0 have: digests would differ from theirs"
        for name in sorted(SETTINGS_OF_0_1 - stored)
    ]
    assert not wrong, "\n".join(wrong)


def test_every_setting_is_read() -> None:
    declared = "replicated_namesrv/settings.py"
    texts = {
        path.as_posix(): (ROOT / path).read_text(encoding="utf-8")
        for path in tracked_files()
        if path.suffix == ".py" and path.parts[0] in PRODUCT
    }
    own = texts.pop(declared)
    words = set(re.findall(r"\w+", "\n".join(texts.values())))
    words |= set(re.findall(r"(?:\bself\.|\bsettings\.|\.get\(\")(\w+)", own))
    unread = [
        f"no module reads {row.attribute}: use it, or begin its meaning in settings.py with '{NO_EFFECT}, no effect'"
        for row in ROWS.values()
        if row.attribute not in words and not row.meaning.startswith(NO_EFFECT)
    ]
    assert not unread, "\n".join(unread)

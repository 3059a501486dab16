"""Every setting is documented, with the default and the meaning that the code has."""

from replicated_namesrv.settings import ROWS
from tests.packaging.settings_page import GROUPS, PAGE, page


def test_every_setting_has_a_group_and_a_meaning() -> None:
    assert not [row.name for row in ROWS.values() if row.group not in GROUPS or not row.meaning.endswith((".", ")"))]


def test_settings_page_is_the_table_of_settings() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "stale: run python -m tests.packaging.settings_page and commit docs/settings.md"
    )

"""The page of results agrees with the tables in its folder, and shows figures that exist."""

import importlib.util
import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "results"

spec = importlib.util.spec_from_file_location("refresh", FOLDER / "refresh.py")
assert spec is not None
assert spec.loader is not None
refresh = importlib.util.module_from_spec(spec)
spec.loader.exec_module(refresh)


def test_numbers_of_the_page_are_those_of_the_tables() -> None:
    page = (FOLDER / "README.md").read_text("utf-8")
    assert page == refresh.page(), "the page was changed by hand: change README.template.md and run docs/results/refresh.py"
    assert "{{" not in page
    links = re.findall(r"\]\((?!http|#)([^)#]+)\)", page)
    assert len(links) > 10
    assert [link for link in links if not (FOLDER / link).exists()] == []


@pytest.mark.parametrize("question", ["ap fresh_read", "ap fresh_reads in nowhere", "visible ap KV 98", "how", "ap"])
def test_what_the_tables_do_not_have_is_refused(question: str) -> None:
    with pytest.raises(refresh.PageError):
        refresh.Numbers().answer(question)


def test_a_report_that_is_none_changes_nothing(tmp_path: Path) -> None:
    before = (FOLDER / "README.md").read_bytes()
    assert "is not a report" in (refresh.main([str(tmp_path)]) or "")
    assert (FOLDER / "README.md").read_bytes() == before

"""The pages in docs/results are those that ``namesrv study publish`` writes from the data beside them."""

import re
from pathlib import Path

import pytest

from replicated_namesrv.chaos.study_plan import load_study, study_file
from replicated_namesrv.cli.study import plan_facts
from replicated_namesrv.spark.study_data import read_data
from replicated_namesrv.spark.study_page import MAIN_PAGE, MAIN_STUDY, MESSAGES, READ_LEVELS, RECOVERY, page
from replicated_namesrv.spark.study_results import FIGURES
from tests.support.places import assert_listed, assert_same_names

FOLDER = Path(__file__).parents[2] / "docs" / "results"
PAGES = [path.name for path in sorted(FOLDER.glob("*.md"))]


@pytest.mark.parametrize("name", PAGES)
def test_the_page_says_what_the_data_say(name: str) -> None:
    study = MAIN_STUDY if name == MAIN_PAGE else Path(name).stem
    data = read_data(FOLDER / study, plan_facts(load_study(study_file(study))))
    others = [Path(other).stem for other in PAGES if other not in (MAIN_PAGE, name)]
    text = (FOLDER / name).read_text("utf-8")
    assert text == page(data, others), f"write the page of {study} again with 'namesrv study publish'"
    links = re.findall(r"\]\((?!http|#)([^)#]+)\)", text)
    assert len(links) > 5
    broken = [link for link in links if not (FOLDER / link).exists()]
    assert not broken, f"docs/results/{name} links to files that do not exist: {', '.join(broken)}"
    pictures = {path.name for path in (FOLDER / study).glob("*.svg")}
    linked = {Path(link).name for link in links if link.endswith(".svg")}
    assert_same_names(pictures, f"docs/results/{study}", linked, f"the pictures on {name}")


def test_columns_of_the_page_are_figures_of_the_studies() -> None:
    for name, columns in (("READ_LEVELS", READ_LEVELS), ("RECOVERY", RECOVERY), ("MESSAGES", MESSAGES)):
        figures = [figure.column for figure in FIGURES]
        assert_listed(columns, f"{name} of spark/study_page.py", figures, "FIGURES of spark/study_results.py")


def test_there_is_a_page_of_the_main_study() -> None:
    assert MAIN_PAGE in PAGES

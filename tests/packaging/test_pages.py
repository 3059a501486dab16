"""The targets of relative links in pages, the headings that links name, and the files that CONTRIBUTING.md names exist."""

import re
from functools import cache
from pathlib import Path

import pytest

from tests.packaging.tree import LINKED, ROOT, tracked_files
from tests.support.places import assert_same_names

PAGES = [
    path for path in tracked_files() if path.suffix == ".md" and path.parts[:2] not in [("replicated_namesrv", n) for n in LINKED]
]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
NAMED_FILE = re.compile(r"`((?:replicated_namesrv|tests|chaos|spark|docs|compat|benchmarks)/[\w/.-]+)`")
PLACEHOLDER = "NAME."


def text_of(page: Path) -> str:
    """A page without its code blocks."""
    return re.sub(r"^```.*?^```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


@cache
def anchors(page: Path) -> set[str]:
    """Headings as GitHub makes them into anchors."""
    headings = re.findall(r"^#+ (.*)$", text_of(page), re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", re.sub(r"[`*]|\]\([^)]*\)|\[", "", heading).lower()).replace(" ", "-") for heading in headings
    }


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    wrong = []
    for link in LINK.findall(text_of(page)):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (ROOT / page).parent / name if name else ROOT / page
        if not target.exists():
            wrong.append(f"{page} links to {link}: no such file")
        elif anchor and anchor not in anchors(target.resolve().relative_to(ROOT)):
            wrong.append(f"{page} links to {link}: no such heading")
    assert not wrong, "\n".join(wrong)


def test_files_that_the_page_for_contributors_names_exist() -> None:
    named = NAMED_FILE.findall(text_of(Path("CONTRIBUTING.md")))
    assert len(named) > 20
    wrong = [
        f"CONTRIBUTING.md names {name}, which does not exist"
        for name in named
        if PLACEHOLDER not in name and not (ROOT / name).exists()
    ]
    assert not wrong, "\n".join(wrong)


def test_the_site_shows_every_page() -> None:
    """A quick check. ``./namesrv docs`` also checks links and headings as the site has them."""
    navigation = (ROOT / "deploy" / "site" / "mkdocs.yml").read_text(encoding="utf-8")
    shown = set(re.findall(r"^ +- [^:]+: (\S+\.md)$", navigation, re.MULTILINE))
    pages = {page.as_posix() for page in PAGES if not page.name.endswith(".template.md")}
    assert_same_names(shown, "the navigation of deploy/site/mkdocs.yml", pages, "the repository")

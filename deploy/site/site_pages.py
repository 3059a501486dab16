"""A hook of mkdocs: the site has the pages of the whole repository, under their paths in it, so that links between them work.

mkdocs itself takes pages from one folder only. A link to a file that is not a page, such as a module, becomes its text.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    *("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "deploy/README.md", "tests/golden/README.md"),
    *("SECURITY.md", "deploy/ci/README.md"),
    *("chaos/DESIGN.md", "spark/DESIGN.md"),
)
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
FENCED = re.compile(r"^(```.*?^```)", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"^(?: {3}| {7}(?! )|  (?=(?:[-*]|\d+\.) ))(?=\S)", re.MULTILINE)


def _paths() -> list[str]:
    kinds = (".md", ".png", ".svg")
    docs = [path for path in (ROOT / "docs").rglob("*") if path.suffix in kinds and not path.name.endswith(".template.md")]
    design = [path for path in (ROOT / "replicated_namesrv").glob("*/DESIGN.md") if not path.parent.is_symlink()]
    return [*PAGES, *(path.relative_to(ROOT).as_posix() for path in (*docs, *design))]


def on_files(files: Files, config: Any) -> Files:
    """The files of the theme, and those of the repository in place of the docs folder."""
    docs = config["docs_dir"]
    kept = [file for file in files if not (file.abs_src_path or "").startswith(docs)]
    own = [File.generated(config, path, abs_src_path=str(ROOT / path)) for path in _paths()]
    return Files([*kept, *own])


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Content of lists with the indentation that Python-Markdown expects; no links to files that are not on the site."""
    folder = posixpath.dirname(page.file.src_uri)

    def link(found: "re.Match[str]") -> str:
        text, target = found[1], found[2]
        path = posixpath.normpath(posixpath.join(folder, target))
        on_site = "://" in target or files.get_file_from_path(path) is not None
        return found[0] if on_site else text

    parts = FENCED.split(markdown)  # every second one is a code block
    parts[::2] = [INDENTED.sub(_indented, LINK.sub(link, part)) for part in parts[::2]]
    return "".join(parts)


def _indented(found: "re.Match[str]") -> str:
    return "        " if len(found[0]) == 7 else "    "

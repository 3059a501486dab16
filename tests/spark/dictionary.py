"""The tables of an analysis as docs/tables.md describes them."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "tables.md"


def described() -> dict[str, str]:
    """Names of tables, each with the text below its heading."""
    text = PAGE.read_text("utf-8")
    parts = re.split(r"^\*\*(\w+)\*\*|(?<=\. )\*\*(\w+)\*\*|(?<= and )\*\*(\w+)\*\*", text, flags=re.MULTILINE)
    names = [next(filter(None, parts[at : at + 3])) for at in range(1, len(parts), 4)]
    return dict(zip(names, parts[4::4], strict=True))


def missing(table: str, columns: list[str]) -> list[str]:
    """Columns of a table that the page does not describe."""
    said = described()[table]
    if table == "judged":
        said = described()["judged_registrations"]
    return [column for column in columns if not re.search(rf"\b{column}\b", said)]

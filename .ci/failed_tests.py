"""Prints the tests that failed in the last run of pytest, one on each line."""

import json
from pathlib import Path

RECORD = Path(__file__).parents[1] / ".pytest_cache" / "v" / "cache" / "lastfailed"


def without_group(test: str) -> str:
    """The name without the group that pytest-xdist adds to it after an @."""
    return test[: test.rfind("@")] if test.rfind("@") > test.rfind("]") else test


if RECORD.exists():
    print("\n".join(map(without_group, json.loads(RECORD.read_text(encoding="utf-8")))), end="")

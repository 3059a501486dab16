"""Prints the tests that failed in the last run of pytest, one on each line."""

import json
from pathlib import Path

RECORD = Path(__file__).parents[1] / ".pytest_cache" / "v" / "cache" / "lastfailed"

if RECORD.exists():
    print("\n".join(json.loads(RECORD.read_text(encoding="utf-8"))), end="")

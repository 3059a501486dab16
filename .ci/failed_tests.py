"""Prints the tests that failed in the last run of pytest, one on each line."""

import json
from pathlib import Path

record = Path(__file__).parents[1] / ".pytest_cache" / "v" / "cache" / "lastfailed"
if record.exists():
    print("\n".join(json.loads(record.read_text(encoding="utf-8"))), end="")

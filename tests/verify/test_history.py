"""Histories on disk: written operations are read back, and errors name the problem."""

import json
import random
from pathlib import Path

import pytest

from replicated_namesrv.verify import HistoryError, read_history, write_history
from tests.verify.histories import generate

RECORD = {"client": "c", "op": "read", "key": "k", "value": None, "start_ns": 1, "end_ns": 2, "outcome": "ok"}


def test_round_trip(tmp_path: Path) -> None:
    operations = generate(random.Random(3), 200, 5, registration=True)
    path = tmp_path / "history.jsonl"
    write_history(path, operations)
    assert read_history(path) == operations


def test_indeterminate_needs_no_end_and_empty_lines_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text("\n" + json.dumps(RECORD | {"outcome": "indeterminate", "end_ns": None, "node": "ignored"}) + "\n\n")
    (operation,) = read_history(path)
    assert operation.end_ns is None


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON"),
        ("[]", "list where an object"),
        (json.dumps({**RECORD, "client": 3}), "client is 3"),
        (json.dumps({key: value for key, value in RECORD.items() if key != "value"}), "value is missing"),
        (json.dumps({**RECORD, "outcome": "maybe"}), "outcome is 'maybe'; expected ok, fail or indeterminate"),
        (json.dumps({**RECORD, "start_ns": 1.5}), "start_ns is 1.5"),
        (json.dumps({**RECORD, "start_ns": True}), "start_ns is True"),
        (json.dumps({**RECORD, "end_ns": None}), "end_ns is None"),
        (json.dumps({**RECORD, "end_ns": 0}), "end_ns 0 is before start_ns 1"),
        (json.dumps({**RECORD, "end_ns": 0, "outcome": "indeterminate"}), "end_ns 0 is before start_ns 1"),
        (json.dumps({**RECORD, "value": "x" * (1 << 20)}), "longer than"),
    ],
)
def test_bad_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text(json.dumps(RECORD) + "\n" + line + "\n")
    with pytest.raises(HistoryError, match=message) as raised:
        read_history(path)
    assert str(raised.value).startswith(f"{path}:2: ")


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match=r"absent\.jsonl: cannot be read"):
        read_history(tmp_path / "absent.jsonl")
    with pytest.raises(HistoryError, match="cannot be written"):
        write_history(tmp_path / "no" / "such", [])

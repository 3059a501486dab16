"""Our linearizability checker and Porcupine judge the same histories alike."""

from pathlib import Path

import pytest

from tests.chaos.porcupine_verdicts import built, compared, generated
from tests.support.provision import go


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_porcupine_agrees_on_correct_and_corrupted_runs(tmp_path: Path) -> None:
    go()
    paths = list(generated(tmp_path, range(2)))
    found = compared(built(tmp_path), paths)
    assert found.differing == []
    assert found.keys["valid"] > 0 < found.keys["violated"]
    assert found.keys["unknown"] == 0


def test_a_difference_is_named(tmp_path: Path) -> None:
    """The other program calls every key valid."""
    (path,) = (path for path in generated(tmp_path, [0]) if path.stem == "0-value_lost")
    program = tmp_path / "program"
    program.write_text(f'#!/bin/sh\necho \'{{"file": "{path}", "keys": {{"k1": "valid", "k2": "valid"}}}}\'\n')
    program.chmod(0o755)
    found = compared(program, [path])
    assert [line.partition(": ")[2].partition(": ")[2] for line in found.differing] == ["Porcupine valid, ours violated"]

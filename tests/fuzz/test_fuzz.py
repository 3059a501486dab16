"""Fuzzing of every parser: 12,000 inputs each, 204,000 in all. Longer: ``python -m tests.fuzz --inputs 10000000``."""

import pytest

from tests.fuzz.engine import CORPUS, FuzzError, fuzz
from tests.fuzz.targets import TARGETS, Target

INPUTS = 12_000


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_parser(name: str, seed: int) -> None:
    fuzz(name, TARGETS[name], seed, INPUTS)


def test_each_target_has_a_corpus() -> None:
    assert {folder.name for folder in CORPUS.iterdir()} == set(TARGETS)


@pytest.mark.parametrize("name", TARGETS)
def test_a_defect_is_found_and_its_command_is_shown(name: str) -> None:
    """The engine sees an error that the target does not document."""
    target = TARGETS[name]
    with pytest.raises(FuzzError, match=rf"repeat: python -m tests\.fuzz --target {name} --seed 7 --inputs-per-target 500"):
        fuzz(name, Target(target.run, ()), 7, 500)

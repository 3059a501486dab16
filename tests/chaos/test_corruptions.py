"""Runs of a true cluster are valid; with one thing changed that no correct cluster can have said they never are."""

import random

import pytest

from replicated_namesrv.chaos.checks import CHECKS, judge
from replicated_namesrv.chaos.checks.crashes import check_crashes
from replicated_namesrv.chaos.checks.story import Story
from replicated_namesrv.chaos.checks.timing import check_enough
from replicated_namesrv.verify import Verdict
from tests.chaos.corruptions import FOUND_BY, Corruption, corrupted
from tests.chaos.true_runs import TrueRun

SEEDS = range(3)


def true_run(seed: int) -> Story:
    return TrueRun(random.Random(seed)).script.story


def verdicts(story: Story) -> dict[str, Verdict]:
    return {found.name: found.verdict for found in (check(story) for check in CHECKS)}


@pytest.mark.parametrize("seed", range(10))
def test_true_runs_are_valid_by_every_check(seed: int) -> None:
    """None has nothing to judge, either."""
    judgement = judge(true_run(seed), "cp")
    assert [check for check in judgement.checks if check.verdict is not Verdict.VALID] == [], f"seed {seed}"
    assert min(check.looked_at for check in judgement.checks) > 0


@pytest.mark.parametrize("corruption", FOUND_BY, ids=lambda corruption: corruption.__name__)
def test_whatever_is_corrupted_is_found(corruption: Corruption) -> None:
    for seed in SEEDS:
        rng, story = random.Random(seed), true_run(seed)
        for attempt in range(2):
            changes = corruption(story, rng)
            assert changes, f"seed {seed}: the run has no place for it"
            found = verdicts(corrupted(story, changes))
            missed = [name for name in FOUND_BY[corruption] if found[name] is not Verdict.VIOLATED]
            assert not missed, f"seed {seed}, attempt {attempt}: {changes}"


def test_every_check_finds_something() -> None:
    """But for those that judge the run itself."""
    named = {name for names in FOUND_BY.values() for name in names}
    story = true_run(0)
    assert named == {check(story).name for check in CHECKS if check not in (check_enough, check_crashes)}

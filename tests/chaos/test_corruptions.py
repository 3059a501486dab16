"""Runs of a correct cluster are valid. After one change to an answer that no correct cluster can have given, they are not."""

import random
from collections.abc import Callable
from functools import cache

import pytest

from replicated_namesrv.chaos.checks import CHECKS, judge
from replicated_namesrv.chaos.checks.acting_masters import ACTING, NOTIFICATIONS
from replicated_namesrv.chaos.checks.agreeing_answers import AGREEMENT
from replicated_namesrv.chaos.checks.crashes import check_crashes
from replicated_namesrv.chaos.checks.listed_brokers import LISTS
from replicated_namesrv.chaos.checks.order import LEADERS
from replicated_namesrv.chaos.checks.role_switches import ROLES
from replicated_namesrv.chaos.checks.story import CheckResult, Story
from replicated_namesrv.chaos.checks.timing import check_enough
from replicated_namesrv.chaos.checks.whole_answers import ANSWERS, VERSIONS
from replicated_namesrv.verify import Verdict
from tests.chaos.corruptions import FOUND_BY, FOUND_BY_OF_NODES, Corruption, corrupted
from tests.chaos.true_runs import TrueNodes, TrueRun

SEEDS = range(3)
CORRUPTIONS = [("cp", corruption) for corruption in FOUND_BY] + [("ap", corruption) for corruption in FOUND_BY_OF_NODES]


ELSEWHERE = {ROLES, ACTING, NOTIFICATIONS, AGREEMENT, LISTS, ANSWERS, VERSIONS, LEADERS}
"""Checks that other tests corrupt: test_roles.py, test_acting_masters.py, test_agreeing_answers.py, test_listed_brokers.py,
test_whole_answers.py, test_durability.py."""


@cache
def true_run(seed: int, mode: str = "cp") -> Story:
    return (TrueRun if mode == "cp" else TrueNodes)(random.Random(seed)).script.story


@cache
def check_named(name: str) -> Callable[[Story], CheckResult]:
    """The check whose result has this name."""
    return next(check for check in CHECKS if check(true_run(0)).name == name)


@pytest.mark.parametrize("mode", ["ap", "cp"])
@pytest.mark.parametrize("seed", range(10))
def test_true_runs_are_valid_by_every_check(seed: int, mode: str) -> None:
    """Every check that the mode promises also has something to judge."""
    judgement = judge(true_run(seed, mode), mode)
    promised = [check for check in judgement.checks if judgement.promised(check) and check.name not in ELSEWHERE]
    assert [check for check in promised if check.verdict is not Verdict.VALID] == [], f"seed {seed}"
    assert min(check.looked_at for check in promised) > 0


@pytest.mark.parametrize(("mode", "corruption"), CORRUPTIONS, ids=[f"{mode}-{one.__name__}" for mode, one in CORRUPTIONS])
def test_whatever_is_corrupted_is_found(mode: str, corruption: Corruption) -> None:
    expected = (FOUND_BY if mode == "cp" else FOUND_BY_OF_NODES)[corruption]
    for seed in SEEDS:
        rng, story = random.Random(seed), true_run(seed, mode)
        for attempt in range(2):
            changes = corruption(story, rng)
            assert changes, f"seed {seed}: the run has no place for it"
            changed = corrupted(story, changes)
            missed = [name for name in expected if check_named(name)(changed).verdict is not Verdict.VIOLATED]
            assert not missed, f"seed {seed}, attempt {attempt}: {changes}"


@pytest.mark.parametrize("mode", ["ap", "cp"])
def test_every_check_finds_something(mode: str) -> None:
    """Every check that the mode promises, except those that judge the run itself."""
    named = {name for names in (FOUND_BY if mode == "cp" else FOUND_BY_OF_NODES).values() for name in names}
    judgement = judge(true_run(0, mode), mode)
    itself = [check(true_run(0, mode)).name for check in (check_enough, check_crashes)]
    others = {check.name for check in judgement.checks if judgement.promised(check)}
    assert named == others.difference(itself, ELSEWHERE)

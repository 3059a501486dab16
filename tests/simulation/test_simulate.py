"""The shipped core in the simulated world: some seeds always, many when there is time; equal seeds give equal traces.

Repeat a failing seed with ``namesrv simulate --seeds N:N+1 --nodes 3 --duration-s S``; the failure prints the command.
"""

import os
import random
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from replicated_namesrv.cli.main import main
from replicated_namesrv.raft.raft_config import Defences
from replicated_namesrv.simulation.campaign import cores, run_all
from replicated_namesrv.simulation.simulation import RunResult, Scenario
from replicated_namesrv.simulation.subjects import run

FIXED_SEEDS = 100
FRESH_SEEDS = 30
MEMBER_SEEDS = 8


def judge(results: list[RunResult]) -> None:
    """Fail for a violation, with the commands that repeat the failed runs."""
    failed = [f"{result.violation}: {result.text}\n  {result.scenario.command()}" for result in results if result.violation]
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize("nodes", [1, 3, pytest.param(5, marks=pytest.mark.slow)])
def test_a_few_seeds(nodes: int) -> None:
    judge([run(Scenario(seed, nodes, duration_s=10.0)) for seed in range(2)])


@pytest.mark.slow
def test_a_node_that_lost_its_disk_and_its_greeting_is_found() -> None:
    """A peer continued to send messages to the old incarnation, because the greeting of the new one had been lost."""
    judge([run(Scenario(144053115))])


def test_a_process_on_a_copied_directory_may_stop_for_entries_that_the_original_acknowledged() -> None:
    """The process got an append that was sent to the original, whose log was longer."""
    judge([run(Scenario(23326, duration_s=10.0))])


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_fixed_seeds() -> None:
    scenarios = [Scenario(seed, nodes=5 if seed % 5 == 4 else 3) for seed in range(FIXED_SEEDS)]
    results = list(run_all(scenarios, cores()))
    judge(results)
    assert sum(result.counts["snapshots installed"] for result in results) > 60, "the world has become too kind"
    assert sum(result.counts["truncations"] for result in results) >= 130, "the world has become too kind"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_seeds_in_which_the_members_change() -> None:
    """Three founders and four spares, so up to seven voters."""
    results = list(run_all([Scenario(seed, duration_s=10.0, spares=4) for seed in range(MEMBER_SEEDS)], cores()))
    judge(results)
    for action in ("add", "remove", "promote", "move", "describe"):
        assert sum(result.counts.get(f"{action} Committed", 0) for result in results) > MEMBER_SEEDS / 2, action


def fresh_seed() -> int:
    """A different seed for every commit, so that a repeated run is equal; a random one without a commit or git."""
    commit = ""
    if git := shutil.which("git"):
        command = [git, "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
        commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return 10_000 + (int(commit[:12], 16) if commit else random.SystemRandom().getrandbits(48)) % 1_000_000_000


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_fresh_seeds() -> None:
    first = fresh_seed()
    print(f"fresh seeds: namesrv simulate --seeds {first}:{first + FRESH_SEEDS} --nodes 3 --duration-s 30")
    judge(list(run_all([Scenario(first + number) for number in range(FRESH_SEEDS)], cores())))


def digest_of(seed: int, hash_seed: str, subject: str) -> str:
    """Trace digest of a run in a process of its own."""
    code = (
        "from replicated_namesrv.simulation.simulation import Scenario; from replicated_namesrv.simulation.subjects import run; "
        f"print(run(Scenario({seed}, duration_s=8.0, subject={subject!r})).digest)"
    )
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=120)
    return ran.stdout.strip()


@pytest.mark.slow
@pytest.mark.parametrize("subject", ["raft", "plain"])
def test_equal_seeds_give_equal_traces_whatever_the_hash_seed(subject: str) -> None:
    digests = {digest_of(3, hash_seed, subject) for hash_seed in ("0", "1", "4711")}
    assert len(digests) == 1
    assert digest_of(4, "0", subject) not in digests


def test_telling_the_story_changes_nothing() -> None:
    scenario = Scenario(2, duration_s=6.0)
    quiet, told = run(scenario), run(scenario, readable=True)
    assert quiet.digest == told.digest
    assert told.lines


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_failing_run_is_made_smaller_and_can_be_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--plain", "--seeds", "0:1", "--duration-s", "10"]) == 1
    out = capsys.readouterr().out
    assert "linearizability" in out
    command = next(line for line in out.splitlines() if line.startswith("repeat: "))
    assert main(command.removeprefix("repeat: namesrv ").split()) == 1, "the printed command repeats the violation"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--seeds", "5:5"],
        ["--seeds", "x"],
        ["--duration-s", "0"],
        ["--off", "nonsense"],
        ["--off", "pre_vote", "--plain"],
        ["--clients", "0"],
        ["--faults", "1,x"],
    ],
)
def test_wrong_usage_is_explained(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", *arguments]) == 2
    assert capsys.readouterr().err.startswith("namesrv simulate: --")


def test_an_unknown_defence_lists_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    main(["simulate", "--off", "nonsense"])
    err = capsys.readouterr().err
    assert all(name in err for name in Defences.__dataclass_fields__)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("defence", "seed"),
    [
        ("pre_vote", 0),
        ("stickiness", 0),
        ("check_quorum", 10),
        ("idempotent_append", 3),
        ("durable_acks", 85),
        ("read_index", 12),
        ("read_term_commit", 0),
        ("at_most_once", 0),
        ("incarnations", 32),
        ("tail_rewrite", 84),
        ("promotion_rounds", 47),
        ("inflight_bound", 55),
        ("encoded_bound", 75),
    ],
)
def test_the_world_is_unkind_enough_to_need_this_defence(defence: str, seed: int) -> None:
    """``seed`` is tried first, because it found the missing defence when the list was made. The effect of a seed changes with the
    code, so one of a hundred seeds must find it."""
    if run(Scenario(seed, off=defence)).violation:
        return
    for result in run_all((Scenario(other, off=defence) for other in range(100)), cores()):
        if result.violation:
            return
    pytest.fail(f"no seed of 0:100 needs {defence}: namesrv simulate --seeds 0:100 --off {defence}")


@pytest.mark.slow
def test_the_world_is_unkind_enough_for_the_only_voter_of_a_cluster_with_observers() -> None:
    """The disk of the voter is rolled back. Observers and learners remember more, so the voter must not serve before they have
    introduced themselves."""
    scenarios = [Scenario(seed, nodes=1, spares=2) for seed in (900_062, 900_066, *range(900_050, 900_100))]
    judge([run(scenarios[0]), run(scenarios[1])])
    assert any(run(replace(scenario, off="introduced_first")).violation and not run(scenario).violation for scenario in scenarios)

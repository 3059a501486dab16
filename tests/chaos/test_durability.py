"""The checks of votes and of durable writes. Each case is a correct and a wrong trace."""

from dataclasses import replace

import pytest

from replicated_namesrv.chaos.checks import judge
from replicated_namesrv.chaos.checks.durability import DURABLE, check_durability, has_slow_disks
from replicated_namesrv.chaos.checks.order import check_leaders
from replicated_namesrv.chaos.checks.story import Story
from replicated_namesrv.chaos.records import Election, Status
from replicated_namesrv.child_process import SERVE
from replicated_namesrv.verify import Verdict
from tests.chaos.traces import MS, Script


def slow(script: Script, sync_ms: int = 100) -> Story:
    """The story of a run with slow disks."""
    story = script.story
    scenario = {**story.manifest["scenario"], "sync_ms": sync_ms}
    return Story(story.trace, {**story.manifest, "scenario": scenario, "node_command": list(SERVE)})


def stood(script: Script, at: float, node: str, term: int, leader: str | None = "n1", role: str = "follower") -> Script:
    script.stands(at, node, 1, "a")
    status = script.records[-1]
    assert isinstance(status, Status)
    script.records[-1] = replace(status, term=term, leader=leader, role=role)
    return script


def elected(script: Script, at: float, node: str, term: int) -> Script:
    script.records.append(Election(int(at * MS), node, term))
    return script


@pytest.mark.parametrize("mode", ["ap", "cp"])
@pytest.mark.parametrize(("took", "verdict"), [(101, Verdict.VALID), (60, Verdict.VIOLATED)])
@pytest.mark.parametrize("kind", ["put", "delete"])
def test_a_write_is_acknowledged_after_a_sync(kind: str, took: float, verdict: Verdict, mode: str) -> None:
    assert check_durability(slow(Script(mode).op(2_000, 2_000 + took, "c1", kind, "k", "v"))).verdict is verdict


@pytest.mark.parametrize(("mode", "verdict"), [("cp", Verdict.VIOLATED), ("ap", Verdict.UNKNOWN)])
def test_only_a_cluster_writes_registrations_to_its_disks(mode: str, verdict: Verdict) -> None:
    assert check_durability(slow(Script(mode).op(2_000, 2_010, "g1/0", "register", "g1/0", "1"))).verdict is verdict


def test_a_write_without_an_acknowledgement_and_a_read_may_be_quick() -> None:
    script = Script().op(2_000, 2_200, "c1", "put", "k", "v").op(2_000, 2_001, "c1", "get", "k", "v")
    script.op(2_000, 2_001, "c1", "put", "k", "w", outcome="fail")
    assert check_durability(slow(script)).verdict is Verdict.VALID


@pytest.mark.parametrize(("at", "verdict"), [(2_210, Verdict.VALID), (2_150, Verdict.VIOLATED)])
def test_a_leader_has_waited_for_two_syncs(at: float, verdict: Verdict) -> None:
    script = stood(stood(Script(), 1_500, "n2", 1), 2_000, "n2", 1)
    stood(stood(script, 2_100, "n3", 1), 2_120, "n2", 2, None, "candidate")
    assert check_durability(slow(elected(script, at, "n2", 2))).verdict is verdict


def test_without_slow_disks_there_is_no_such_check() -> None:
    assert not has_slow_disks(Script().story)
    assert DURABLE not in {check.name for check in judge(Script().story, "cp").checks}
    foreign = slow(Script())
    assert has_slow_disks(foreign)
    assert not has_slow_disks(Story(foreign.trace, {**foreign.manifest, "node_command": ["other", "serve"]}))


@pytest.mark.parametrize(
    ("term", "leader", "role", "verdict"),
    [
        (2, "n2", "follower", Verdict.VALID),
        (2, None, "follower", Verdict.VALID),
        (3, "n3", "follower", Verdict.VALID),
        (2, "n3", "follower", Verdict.VIOLATED),
        (2, "n3", "leader", Verdict.VIOLATED),
        (3, "n2", "leader", Verdict.VIOLATED),
    ],
)
def test_each_term_has_one_leader(term: int, leader: str | None, role: str, verdict: Verdict) -> None:
    script = elected(stood(Script(), 2_000, "n1", 2, "n2"), 2_000, "n2", 2)
    assert check_leaders(stood(script, 2_100, "n3", term, leader, role).story).verdict is verdict

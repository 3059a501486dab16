"""A run asks for each kind of operation and for each look that its checks need; otherwise its verdict is unknown."""

import pytest

from replicated_namesrv.chaos.checks.order import check_same_state
from replicated_namesrv.chaos.checks.real_time import kv_reads
from replicated_namesrv.chaos.checks.story import Story
from replicated_namesrv.chaos.checks.timing import check_enough
from replicated_namesrv.chaos.clients import DROPPED_KEY, KEPT_KEY
from replicated_namesrv.chaos.records import Invoke, Observe, Status
from replicated_namesrv.chaos.scenario import WorkloadSpec
from replicated_namesrv.chaos.workload import Cast
from replicated_namesrv.verify import Verdict
from tests.chaos.traces import NODES, Script
from tests.support.places import assert_same_names

ASKS = ("route", "roles", "kv-list")


def whole(mode: str = "cp") -> Script:
    """A run with all that it asks."""
    script = Script(mode).busy("c1", 1_000, 12_500, every=50).saw(2_000, "n1", []).saw_kv(2_000, "n1", [], 1)
    script.op(2_000, 2_010, "probe", "roles", "pair", members=[]).op(2_000, 2_010, "probe", "kv-list", "chaos", members=[])
    return script.stands(2_000, "n1", 1, "a")


def story_of(script: Script) -> Story:
    story = script.story
    return Story(story.trace, {**story.manifest, "asks": list(ASKS)})


@pytest.mark.parametrize("mode", ["ap", "cp"])
def test_a_whole_run_is_enough(mode: str) -> None:
    found = check_enough(story_of(whole(mode)))
    assert found.verdict is Verdict.VALID, found.findings


@pytest.mark.parametrize("kind", ["roles", "kv-list"])
def test_a_kind_that_was_not_asked_makes_the_run_unknown(kind: str) -> None:
    script = whole()
    gone = {one.op for one in script.records if isinstance(one, Invoke) and one.kind == kind}
    script.records = [one for one in script.records if getattr(one, "op", None) not in gone]
    found = check_enough(story_of(script))
    assert (found.verdict, found.findings) == (Verdict.UNKNOWN, (f"no operation {kind} succeeded",))


@pytest.mark.parametrize("key", ["brokers", "kv"])
def test_a_table_that_was_not_looked_at_makes_the_run_unknown(key: str) -> None:
    script = whole()
    script.records = [one for one in script.records if not (isinstance(one, Observe) and one.key == key)]
    found = check_enough(story_of(script))
    assert (found.verdict, found.findings) == (Verdict.UNKNOWN, (f"no node answered the observer: {key}",))


@pytest.mark.parametrize(("mode", "verdict"), [("cp", Verdict.UNKNOWN), ("ap", Verdict.VALID)])
def test_only_nodes_of_a_cluster_have_digests(mode: str, verdict: Verdict) -> None:
    script = whole(mode)
    script.records = [one for one in script.records if not isinstance(one, Status)]
    assert check_enough(story_of(script)).verdict is verdict


def test_the_workload_asks_for_what_it_has() -> None:
    everything = set(Cast(WorkloadSpec(), NODES).asks())
    few = set(Cast(WorkloadSpec(pair=False, deputy=False, churn=False, zones=False, mqadmin=False, sample=False), NODES).asks())
    optional = {
        *("roles", "master", "unregister-copy", "zone-route", "cluster", "topic-list", "kv-list"),
        *("write-perm", "perm", "delete-topic", "topic", "set-config", "config", "answer", "version", "order-conf"),
    }
    assert_same_names(everything - few, "asks() of chaos/workload.py for the optional parts", optional, "this test")


@pytest.mark.parametrize(("digest", "verdict"), [("b", Verdict.VALID), ("a", Verdict.VIOLATED)])
def test_states_of_different_revisions_have_different_digests(digest: str, verdict: Verdict) -> None:
    script = Script().stands(2_000, "n1", 1, "a").stands(2_100, "n2", 1, "a").stands(3_000, "n1", 2, digest)
    assert check_same_state(script.story).verdict is verdict


def test_a_list_of_kv_entries_reads_every_key() -> None:
    script = Script().op(1_000, 1_010, "w", "put", "k", "v").op(1_000, 1_010, "w", "put", "other", "v")
    story = script.op(2_000, 2_010, "probe", "kv-list", "chaos", members=[("k", 1)]).story
    assert {(op.kind, op.key, op.value) for op in kv_reads(story)} == {
        *(("get", "k", "1"), ("get", "other", None), ("get", KEPT_KEY, None), ("get", DROPPED_KEY, None)),
    }

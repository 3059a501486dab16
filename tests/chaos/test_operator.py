"""The operator of a run: which nodes are members, which brokers may be dropped while members change, and what is judged."""

import random
from pathlib import Path
from types import SimpleNamespace

import aiohttp
import pytest

from replicated_namesrv.chaos.checks import judge
from replicated_namesrv.chaos.checks.fence import check_fence
from replicated_namesrv.chaos.checks.operator_actions import check_operator
from replicated_namesrv.chaos.checks.story import Story
from replicated_namesrv.chaos.checks.timing import check_availability
from replicated_namesrv.chaos.effects import Effect, Link
from replicated_namesrv.chaos.fault_plans import RunMembers, exposed, plan
from replicated_namesrv.chaos.process_cluster import ProcessCluster
from replicated_namesrv.chaos.records import FaultRecord, Status, majority_side
from replicated_namesrv.chaos.scenario import FaultKind, FaultSpec, WorkloadSpec, available, load
from replicated_namesrv.chaos.suite import SMOKE_SEED, smoke_plans
from replicated_namesrv.chaos.workload import Cast
from replicated_namesrv.verify import Verdict
from tests.chaos.traces import MS, Script

TOPOLOGY = Cast(WorkloadSpec(), ("n1", "n2", "n3", "n4"), spares=1).topology()


def test_spares_are_no_targets_before_they_are_added() -> None:
    def targets(target: str, members: tuple[str, ...] | None, seed: int = 0) -> tuple[str, ...]:
        spec = FaultSpec(FaultKind.KILL, target)
        return plan(spec, TOPOLOGY, "n1", Effect.HELD, random.Random(seed), members).nodes

    assert all(targets("random", None, seed) != ("n4",) for seed in range(20))
    assert {targets("follower", ("n1", "n4"), seed) for seed in range(5)} == {("n4",)}
    assert targets("all", None) == ("n1", "n2", "n3")
    assert targets("spare", None) == ("n4",), "the one that will be added"
    assert targets("spare", ("n1", "n2", "n3", "n4")) == ("n4",)


def test_an_isolated_node_is_also_cut_off_from_spares() -> None:
    cut = plan(FaultSpec(FaultKind.ISOLATE, "n1", scope="peers"), TOPOLOGY, "n2", Effect.HELD, random.Random(0)).links
    assert {str(link) for link in cut} == {f"{a}>{b}" for other in ("n2", "n3", "n4") for a, b in (("n1", other), (other, "n1"))}


def test_a_majority_counts_voters_before_and_after_a_change() -> None:
    before, after = ("n1", "n2", "n3"), ("n1", "n2", "n3", "n4")
    parts = [["n1", "n2"], ["n3"], ["n4"]]
    assert majority_side(parts, [before]) == ["n1", "n2"]
    assert not majority_side(parts, [before, after])
    assert majority_side([["n3", "n4"], ["n1", "n2"]], [before]) == ["n1", "n2"], "n4 is an observer"


def test_a_link_to_an_observer_alone_does_not_keep_a_broker() -> None:
    voters = ("n1", "n2", "n3")
    cut = {Link("g1/0", node) for node in voters}
    with_observer = RunMembers((*voters, "n4"), (voters,))
    assert exposed(TOPOLOGY, cut, (), with_observer) == {"g1/0"}
    assert not exposed(TOPOLOGY, cut, (), RunMembers.of((*voters, "n4")))
    changing = RunMembers((*voters, "n4"), (voters, (*voters, "n4")))
    assert exposed(TOPOLOGY, cut, (), changing) == {"g1/0"}, "the change may not have been made yet"


def story(script: Script, kind: str = "remove-node") -> Story:
    made = script.busy("c1", 0, 12_900).story
    scenario = made.manifest["scenario"] | {"fault": [{"kind": kind}]}
    return Story(made.trace, dict(made.manifest) | {"scenario": scenario})


def status(at: int, node: str, role: str, leader: str) -> Status:
    return Status(at * MS, (at - 5) * MS, node, "running", True, True, role, 2, leader, 9, 9, None, 9, False, "change")


def addition(
    listed: str = "n1 n2 n3 n4", roles: str = "leader voter voter observer", struck_at: int = 7000, ready_at: int = 5050
) -> Script:
    """The operator adds the observer n4, which is struck by a fault later."""
    script = Script().op(4000, 5000, "operator", "members", "add n4", "add n4 127.0.0.1:4 --observer")
    voters, nodes = [["n1", "n2", "n3"]], ["n1", "n2", "n3", "n4"]
    for edge, at in (("start", 4000), ("end", 5000)):
        script.records.append(FaultRecord(at * MS, 1, edge, at * MS, "add-node", None, ["n4"], [], [nodes], [], voters))
    for edge, at in (("start", struck_at), ("end", struck_at + 500)):
        script.records.append(FaultRecord(at * MS, 2, edge, at * MS, "pause", None, ["n4"], [], [nodes], [], voters))
    script.plus(status(ready_at, "n4", "observer", "n1"))
    for at in (5500, 6100, 6400):
        script.op(at, at + 10, "operator", "address-list", "n1", "n1 n2 n3" if at < 6400 else listed)
    rows = list(zip(nodes, roles.split(), strict=True))
    return script.op(12_500, 12_510, "operator", "member-list", "n1", " ".join(nodes), members=rows)


def removal(outcome: str = "ok", left: str = "n1 n2") -> Script:
    """The operator removes n3, and then every member is asked for its list."""
    script = Script().op(4000, 5000, "operator", "members", "remove n3", "remove n3", outcome=outcome)
    for edge, at, voters in (("start", 4000, [["n1", "n2", "n3"], ["n1", "n2"]]), ("end", 5000, [["n1", "n2"]])):
        sides = [["n1", "n2", "n3"]] if edge == "start" else [["n1", "n2"]]
        script.records.append(FaultRecord(at * MS, 1, edge, at * MS, "remove-node", None, ["n3"], [], sides, [], voters))
    for node in ("n1", "n2"):
        script.op(12_500, 12_510, "operator", "member-list", node, left, node=node)
    return script


@pytest.mark.parametrize(
    ("bad", "kind", "finding"),
    [
        (removal("fail"), "remove-node", "'remove n3' did not succeed"),
        (removal("indeterminate"), "remove-node", "'remove n3' did not succeed"),
        (removal(left="n1 n2 n3"), "remove-node", "n1 knows the members n1 n2 n3 at the end"),
        (removal().op(7000, 7010, "pinned-n3", "get", "k", node="n3"), "remove-node", "n3, which was removed"),
        (
            Script().op(4000, 5000, "operator", "drain", "n2").op(5100, 5110, "c2", "route", "t", node="n2", members=[]),
            "drain",
            "n2, which was removed or drained, answered route of c2",
        ),
        (
            Script().op(4000, 5000, "operator", "drain", "n2").op(5100, 5110, "operator", "address-list", "n1", "n1 n2 n3"),
            "drain",
            "the address list of n1 contains n2",
        ),
        (removal().plus(status(6000, "n3", "removed", "n3")), "remove-node", "6.000 s: n3 was removed while it led"),
        (
            Script().op(4000, 5000, "operator", "drain", "n2").plus(status(5100, "n2", "leader", "n2")),
            "drain",
            "5.100 s: n2 leads although it was drained",
        ),
        (addition(listed="n1 n2 n3"), "add-node", "n4 was added and serves, and no address list contains it"),
        (addition(roles="leader voter voter voter"), "add-node", "n1 knows n4 as voter at the end"),
    ],
)
def test_what_the_operator_did_is_judged(bad: Script, kind: str, finding: str) -> None:
    found = check_operator(story(bad, kind))
    assert found.verdict is Verdict.VIOLATED
    assert finding in found.findings[0]


def test_a_good_run_of_the_operator_is_valid_and_ends_with_fewer_nodes() -> None:
    refused = removal().op(7000, 7010, "pinned-n3", "get", "k", node="n3", outcome="fail")
    good = story(refused)
    found = check_operator(good)
    assert (found.verdict, found.looked_at) == (Verdict.VALID, 4)
    assert good.final_nodes == ["n1", "n2"]
    assert check_fence(good).looked_at == 0, "a removed node is not one without a majority"
    assert check_availability(good).verdict is Verdict.VALID
    restarted = Script().op(4000, 5000, "operator", "drain", "n2").op(5500, 6000, "operator", "restart", "n2", node="n2")
    assert check_operator(story(restarted.op(6100, 6110, "c2", "get", "k", node="n2"), "drain")).verdict is Verdict.VALID


def test_leaders_may_learn_and_added_nodes_may_fail_before_they_are_listed() -> None:
    follows = removal().plus(status(4500, "n3", "leader", "n3"), status(6000, "n3", "removed", "n2"))
    assert check_operator(story(follows)).verdict is Verdict.VALID
    drained = Script().op(4000, 5000, "operator", "drain", "n2").op(5500, 6000, "operator", "restart", "n2", node="n2")
    leads = drained.plus(
        status(4900, "n2", "leader", "n2"), status(5002, "n2", "leader", "n2"), status(6500, "n2", "leader", "n2")
    )
    assert check_operator(story(leads, "drain")).verdict is Verdict.VALID
    for good in (addition(), addition(listed="n1 n2 n3", struck_at=6050), addition(listed="n1 n2 n3", ready_at=5500)):
        assert check_operator(story(good, "add-node")).verdict is Verdict.VALID


def test_a_run_whose_operator_did_nothing_is_unknown() -> None:
    silent = check_operator(story(Script()))
    assert silent.verdict is Verdict.UNKNOWN
    assert silent.due
    assert "operator's commands" not in {check.name for check in judge(Script().story, "cp").checks}


def test_scenarios_with_an_operator_leave_the_seeds_of_the_others() -> None:
    names = [one for one in available() if load(one).smoke and not load(one).has_operator]
    assert [plan.seed for plan in smoke_plans(["cp"]) if plan.scenario.name in names] == [
        SMOKE_SEED + number for number in range(len(names))
    ]


@pytest.mark.slow
async def test_a_slow_answer_to_the_first_change_of_members_is_asked_again(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    cluster = ProcessCluster(tmp_path, 1, "cp", [], [], random.Random(1), None, spares=1)
    posted = []

    async def first_is_late(_: aiohttp.ClientSession, __: SimpleNamespace, request: aiohttp.TraceRequestStartParams) -> None:
        if request.method == "POST":
            posted.append(request.url.path)
            if len(posted) == 1:
                raise TimeoutError

    watched = aiohttp.TraceConfig()
    watched.on_request_start.append(first_is_late)
    async with cluster:
        await cluster.session.close()
        cluster.session = aiohttp.ClientSession(trace_configs=[watched], trust_env=False)
        await cluster.start()
        assert await cluster.leader() == "n1"
    assert posted == ["/v1/members/n1/move"] * 2

"""Plans of faults: they contain exactly the links that their name says, for every leader. Sides and exposure follow from the
links."""

import random

import pytest

from replicated_namesrv.chaos.effects import Effect, Link, Stream
from replicated_namesrv.chaos.fault_plans import Topology, expand, exposed, plan, sides
from replicated_namesrv.chaos.links import Impairment, Strength, wanted
from replicated_namesrv.chaos.scenario import FaultKind, FaultSpec, WorkloadSpec
from replicated_namesrv.chaos.workload import Cast
from replicated_namesrv.errors import SettingError

NODES = ("n1", "n2", "n3")


def topology(nodes: tuple[str, ...] = NODES) -> Topology:
    return Cast(WorkloadSpec(), nodes).topology()


def cut(spec: FaultSpec, leader: str | None = "n2", nodes: tuple[str, ...] = NODES, seed: int = 1) -> set[str]:
    return {str(link) for link in plan(spec, topology(nodes), leader, Effect.SILENT, random.Random(seed)).links}


def streams(spec: FaultSpec) -> dict[str, Stream]:
    return {str(link): found for link, found in plan(spec, topology(), "n2", Effect.SILENT, random.Random(1)).links.items()}


def test_isolating_peers_cuts_both_directions_and_nobody_else() -> None:
    assert cut(FaultSpec(FaultKind.ISOLATE, "leader", scope="peers")) == {"n2>n1", "n2>n3", "n1>n2", "n3>n2"}


def test_isolating_a_site_keeps_its_own_brokers_and_clients() -> None:
    there = topology()
    found = cut(FaultSpec(FaultKind.ISOLATE, "leader", scope="sites"))
    at_home = {name for name, node in there.homes.items() if node == "n2"}
    assert not {f"{name}>n2" for name in at_home} & found
    assert {f"{name}>n1" for name in at_home if Link(name, "n1") in there.links} <= found
    assert not [link for link in found if link.startswith("probe")]


@pytest.mark.parametrize(
    ("spec", "links"),
    [
        (FaultSpec(FaultKind.ONE_WAY, "leader", direction="out", scope="peers"), {"n2>n1", "n2>n3"}),
        (FaultSpec(FaultKind.ONE_WAY, "leader", direction="in", scope="peers"), {"n1>n2", "n3>n2"}),
        (FaultSpec(FaultKind.ACKS), {"n1>n2", "n3>n2"}),
        (FaultSpec(FaultKind.ONE_WAY, "n3", scope="peers"), {"n3>n1", "n3>n2"}),
    ],
)
def test_one_way_faults_cut_one_way(spec: FaultSpec, links: set[str]) -> None:
    assert cut(spec) == links


@pytest.mark.parametrize(
    ("direction", "peers", "there", "here"),
    [
        ("out", {"n2>n1", "n2>n3"}, Stream.UPSTREAM, Stream.DOWNSTREAM),
        ("in", {"n1>n2", "n3>n2"}, Stream.DOWNSTREAM, Stream.UPSTREAM),
    ],
)
def test_one_way_faults_of_sites_cut_all_that_goes_in_their_direction(
    direction: str, peers: set[str], there: Stream, here: Stream
) -> None:
    """The fault cuts the stream ``there`` of links from the site to other nodes, and the stream ``here`` of links from elsewhere
    to the site's node."""
    found, whole = streams(FaultSpec(FaultKind.ONE_WAY, direction=direction)), streams(FaultSpec(FaultKind.ISOLATE))
    assert {link for link in found if link.startswith("n")} == peers
    outside = {link: stream for link, stream in found.items() if not link.startswith("n")}
    assert set(outside) == {link for link in whole if not link.startswith("n")}
    assert outside["g2/0>n1"] is there
    assert outside["g1/0>n2"] is here
    assert all(stream is (here if link.endswith(">n2") else there) for link, stream in outside.items())
    assert set(whole.values()) == {Stream.BOTH}


def test_degraded_links_and_those_of_brokers_and_clients_have_directions() -> None:
    into = streams(FaultSpec(FaultKind.DEGRADE, "n1", effect="slow", direction="in"))
    assert {link for link in into if link.startswith("n")} == {"n2>n1", "n3>n1"}
    assert into["g1/0>n1"] is Stream.UPSTREAM
    every = {f"{a}>{b}": Stream.BOTH for a in NODES for b in NODES if a != b}
    assert streams(FaultSpec(FaultKind.DEGRADE, "all", effect="slow", scope="peers", direction="out")) == every
    for kind in (FaultKind.CUT_BROKERS, FaultKind.CUT_CLIENTS):
        assert set(streams(FaultSpec(kind, "n1", direction="in")).values()) == {Stream.DOWNSTREAM}
        assert set(streams(FaultSpec(kind, "n1", direction="out")).values()) == {Stream.UPSTREAM}
        assert set(streams(FaultSpec(kind, "n1")).values()) == {Stream.BOTH}


@pytest.mark.parametrize("seed", range(20))
def test_halves_leave_a_majority_and_a_bridge_leaves_one_node_with_all(seed: int) -> None:
    nodes = ("n1", "n2", "n3", "n4", "n5")
    halves = {Link(*link.split(">")) for link in cut(FaultSpec(FaultKind.HALVES, scope="peers"), None, nodes, seed)}
    assert [len(side) for side in sides(nodes, halves, ())] == [3, 2]
    bridge = {Link(*link.split(">")) for link in cut(FaultSpec(FaultKind.BRIDGE, scope="peers"), None, nodes, seed)}
    assert [len(side) for side in sides(nodes, bridge, ())] == [5]
    assert len(bridge) == 8


def test_brokers_are_cut_from_one_all_but_one_or_all_nodes() -> None:
    brokers = topology().brokers
    one = cut(FaultSpec(FaultKind.CUT_BROKERS, "n1", nodes="one"))
    assert one == {f"{broker}>n1" for broker in brokers}
    rest = cut(FaultSpec(FaultKind.CUT_BROKERS, "n1", nodes="all-but-one"))
    assert rest == {f"{broker}>{node}" for broker in brokers for node in ("n2", "n3")}
    assert len(cut(FaultSpec(FaultKind.CUT_BROKERS, nodes="all", brokers="one"))) == 3


def test_where_nobody_leads_the_seed_draws_the_leader() -> None:
    drawn = {plan(FaultSpec(FaultKind.KILL), topology(), None, Effect.HELD, random.Random(seed)).nodes for seed in range(20)}
    assert drawn == {("n1",), ("n2",), ("n3",)}


def test_a_follower_never_leads_and_a_node_that_is_not_there_is_refused() -> None:
    for seed in range(20):
        assert plan(FaultSpec(FaultKind.KILL, "follower"), topology(), "n2", Effect.HELD, random.Random(seed)).nodes != ("n2",)
    with pytest.raises(SettingError, match="target = 'n9'"):
        cut(FaultSpec(FaultKind.KILL, "n9"))


@pytest.mark.parametrize("seed", range(50))
def test_random_faults_repeat_with_their_seed_and_end_in_time(seed: int) -> None:
    first, second = (expand([FaultSpec(FaultKind.RANDOM)], 8.0, random.Random(seed)) for _ in range(2))
    assert first == second
    assert 2 <= len(first) <= 4
    assert all(spec.for_s is not None and spec.at_s + spec.for_s <= 8.0 for spec in first)


def test_sides_are_who_can_talk_both_ways() -> None:
    assert sides(NODES, (), ()) == [["n1", "n2", "n3"]]
    assert sides(NODES, {Link("n1", "n2")}, ()) == [["n1", "n2", "n3"]]
    assert sides(NODES, {Link("n1", "n2"), Link("n3", "n1")}, ()) == [["n2", "n3"], ["n1"]]
    assert sides(NODES, (), ("n2",)) == [["n1", "n3"], ["n2"]]


def test_a_broker_is_exposed_only_without_a_link_to_the_majority() -> None:
    there = topology()
    to = {node: {Link("g1/0", node)} for node in NODES}
    assert not exposed(there, to["n1"] | to["n2"], ())
    assert exposed(there, to["n1"] | to["n2"] | to["n3"], ()) == {"g1/0"}
    assert exposed(there, to["n1"] | to["n2"], ("n3",)) == {"g1/0"}
    assert not exposed(there, to["n1"] | to["n2"], ("n1", "n2")), "without a majority nobody can be dropped"
    alone = {Link("n3", "n1"), Link("n3", "n2"), Link("n1", "n3"), Link("n2", "n3")}
    assert exposed(there, to["n1"] | to["n2"] | alone, ()) == {"g1/0"}
    assert exposed(there, to["n2"] | {Link("n1", "n2")}, ()) == {"g1/0"}, (
        "a side held together by n3: n2 may lead and not hear n1"
    )


def test_what_bears_on_a_link_adds_up_and_the_cut_wins() -> None:
    slow, held, off = (Impairment(effect) for effect in (Effect.SLOW, Effect.HELD, Effect.REFUSED))
    toxics, enabled = wanted([held, slow], one_way=True)
    assert set(toxics) == {"latency_upstream", "bandwidth_upstream"}
    assert enabled
    assert toxics["bandwidth_upstream"].attributes == {"rate": 0}
    trickle = Impairment(Effect.TRICKLE, strength=Strength(rate_kb_s=5))
    assert wanted([held, trickle], one_way=True)[0]["bandwidth_upstream"].attributes == {"rate": 0}
    halves = [Impairment(Effect.HELD, Stream.UPSTREAM), Impairment(Effect.TRICKLE, Stream.DOWNSTREAM)]
    assert {name: toxic.attributes["rate"] for name, toxic in wanted(halves, one_way=False)[0].items()} == {
        "bandwidth_upstream": 0,
        "bandwidth_downstream": 2,
    }
    assert set(wanted([Impairment(Effect.RESET, Stream.UPSTREAM)], one_way=False)[0]) == {
        *("reset_peer_upstream", "reset_peer_downstream"),
    }
    assert wanted([off, slow], one_way=False)[1] is False
    assert wanted([], one_way=True) == ({}, True)

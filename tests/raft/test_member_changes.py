"""The table in ``member_changes.py``: each row with a cluster in which it decides."""

import re
from collections.abc import Callable

import pytest

from replicated_namesrv.raft.interfaces import Committed, Outcome
from replicated_namesrv.raft.member_changes import ROWS, MemberChange, Refusal
from replicated_namesrv.raft.members import VOTERS_MAX
from replicated_namesrv.raft.raft_messages import MEMBERS_PROTOCOL, MemberHint
from replicated_namesrv.raft.raft_node import RaftNode
from tests.raft.test_defences import commit
from tests.raft.test_lost_memory import old_version
from tests.raft.test_members import add, grow, make, remove
from tests.support.raft_world import Disk, World


def cluster(size: int = 3) -> tuple[World, RaftNode]:
    world = World(size)
    world.start_all()
    leader = world.elect()
    commit(world, leader, b"a")
    world.run(0.5)
    return world, leader


def followers(world: World) -> list[str]:
    return [host.name for host in world.hosts.values() if host.node is not world.leader]


def refusal(node: RaftNode, change: MemberChange) -> Refusal:
    found = node.member_changes.refusal(change)
    assert found is not None
    return found


def row_m1() -> Refusal:
    world, leader = cluster()
    other = world.hosts[followers(world)[0]].node
    assert other is not None
    found = refusal(other, add("n4"))
    assert leader.node_id in found.reason
    return found


def row_m2() -> Refusal:
    world, leader = cluster()
    world.isolate(leader.node_id)
    leader.transfer_leadership(None, lambda _: None)
    found = refusal(leader, add("n4"))
    assert "is being transferred" in found.reason
    return found


def row_m3() -> Refusal:
    world, leader = cluster()
    old = followers(world)[0]
    greeting = leader.membership._greetings[old]
    leader.membership._greetings[old] = greeting._replace(versions=(MEMBERS_PROTOCOL - 1) << 16)
    found = refusal(leader, add("n4"))
    assert f"before {old} is upgraded" in found.reason
    return found


def row_m4() -> Refusal:
    world, leader = cluster()
    grow(world, "n4", observer=True)
    assert "promote it, or choose another name" in refusal(world.elect(), add("n4")).reason
    return refusal(leader, add(followers(world)[0]))


def row_m5() -> Refusal:
    _, leader = cluster()
    found = refusal(leader, remove("n9"))
    assert found.reason == "n9 is not a member: it was removed already, or never was one; the members are n1, n2, n3"
    return found


def row_m6() -> Refusal:
    _, leader = cluster()
    taken = refusal(leader, MemberChange("add", "n4", ("host-n2", 9_000)))
    assert "host-n2:9000 is the address of n2; give another one, or remove or move n2 first" in taken.reason
    world, leader = cluster()
    make(world, MemberChange("add", "n4", ("127.0.0.1", 9_000), observer=True))
    renamed = refusal(leader, MemberChange("add", "n5", ("localhost", 9_000)))
    assert "localhost:9000 is the address of n4" in renamed.reason
    assert leader.member_changes.refusal(MemberChange("add", "n5", ("localhost", 9_001))) is None
    return taken


def row_m7() -> Refusal:
    world, leader = cluster()
    found = refusal(leader, MemberChange("promote", followers(world)[0]))
    assert "is a voter" in found.reason
    return found


def row_m8() -> Refusal:
    world, _ = cluster()
    grow(world, "n4", observer=True)
    world.isolate("n4")
    for number in range(600):
        world.propose(world.elect().node_id, b"%d" % number)
        world.run(0.01)
    found = refusal(world.elect(), MemberChange("promote", "n4"))
    lag = re.search(r"n4 lags (\d+) entries behind the leader; wait until it lags at most (\d+)", found.reason)
    assert lag is not None
    assert int(lag[1]) >= 600 > int(lag[2])
    return found


def row_m9() -> Refusal:
    _, leader = cluster(1)
    return refusal(leader, remove("n1"))


def row_m10() -> Refusal:
    """Two of three voters are up. Without one of them no majority of the rest would answer."""
    world, leader = cluster()
    dead, alive = followers(world)
    world.hosts[dead].crash()
    world.run(1)
    found = refusal(leader, remove(alive))
    assert f"{dead} does not answer" in found.reason
    make(world, remove(dead))
    return found


def row_m11() -> Refusal:
    _, leader = cluster()
    return refusal(leader, remove(leader.node_id))


CASES: dict[str, Callable[[], Refusal]] = {
    name.removeprefix("row_").upper(): case for name, case in globals().copy().items() if name.startswith("row_m")
}


def test_every_row_has_a_test() -> None:
    assert tuple(CASES) == ROWS


def test_a_full_log_takes_no_changes_of_members() -> None:
    """Seed 310336 with four spares: the disk of the leader hung, and changes of members made the log longer than its bound."""
    world, leader = cluster()
    assert leader.member_changes.refusal(remove(followers(world)[0])) is None
    leader.log.entries_max = len(leader.log)
    found = refusal(leader, remove(followers(world)[0]))
    assert (found.row, "the log of this node is full" in found.reason) == ("M2", True)


def test_an_observer_that_does_not_answer_is_not_promoted() -> None:
    """Its connection stays open, and it has the whole log."""
    world, leader = cluster()
    grow(world, "n4", observer=True)
    promotion = MemberChange("promote", "n4")
    assert leader.member_changes.refusal(promotion) is None
    world.isolate("n4")
    world.run((leader.config.election_min_ms + 50) / 1000)
    found = refusal(leader, promotion)
    assert (found.row, "n4 does not answer" in found.reason) == ("M8", True)


@pytest.mark.parametrize("row", ROWS)
def test_row(row: str) -> None:
    assert CASES[row]().row == row


def test_a_voter_that_check_quorum_does_not_count_does_not_answer() -> None:
    world, leader = cluster()
    dead, alive = followers(world)
    world.hosts[dead].crash()
    world.run((leader.config.election_min_ms + 50) / 1000)
    assert refusal(leader, remove(alive)).row == "M10"


def test_a_voter_whose_connection_was_closed_does_not_answer() -> None:
    """It may have lost its disk: then an entry that needs it would be committed by nobody, and no node could be elected."""
    world, leader = cluster()
    cut_off, restarting = followers(world)
    world.isolate(cut_off)
    assert leader.member_changes.refusal(remove(cut_off)) is None
    host = world.hosts[restarting]
    host.crash()
    assert refusal(leader, remove(cut_off)).row == "M10"
    host.disk = Disk()
    world.run(0.02)
    host.start()
    assert leader.followers.is_connected(restarting)
    assert refusal(leader, remove(cut_off)).row == "M10", "its new process has answered nothing"


def test_a_voter_that_reconnects_with_its_disk_answers_again() -> None:
    world, leader = cluster()
    cut_off, restarting = followers(world)
    world.isolate(cut_off)
    world.hosts[restarting].crash()
    world.hosts[restarting].start()
    assert refusal(leader, remove(cut_off)).row == "M10"
    world.run_until(lambda: world.leader is not None and world.leader.member_changes.refusal(remove(cut_off)) is None)
    make(world, remove(cut_off))


def test_a_move_that_leaves_no_quorum_until_the_moved_voter_restarts_is_refused() -> None:
    """The members close their connections to a moved voter at once."""
    world, leader = cluster()
    dead, alive = followers(world)
    for name in (alive, leader.node_id):
        assert leader.member_changes.refusal(MemberChange("move", name, ("elsewhere", 1))) is None
    world.hosts[dead].crash()
    world.run((leader.config.election_min_ms + 50) / 1000)
    for name in (alive, leader.node_id):
        found = refusal(leader, MemberChange("move", name, ("elsewhere", 1)))
        assert found.row == "M10"
        assert f"until {name} is started at its new address, 2 of 3 voters would be needed, and {dead} does not" in found.reason
    assert leader.member_changes.refusal(MemberChange("move", dead, ("elsewhere", 1))) is None
    _, leader = cluster(2)
    assert leader.member_changes.refusal(MemberChange("move", leader.node_id, ("elsewhere", 1))) is None


def test_more_voters_than_allowed_are_refused() -> None:
    _, leader = cluster(VOTERS_MAX)
    assert leader.member_changes.refusal(add("n9", observer=True)) is None
    found = refusal(leader, add("n9"))
    assert (found.row, "the most allowed" in found.reason) == ("M6", True)


def test_malformed_members_are_refused() -> None:
    _, leader = cluster()
    assert refusal(leader, MemberChange("add", "n" * 201, ("h", 1))).row == "M6"
    assert refusal(leader, MemberChange("add", "n4", ("h", 1 << 16))).row == "M6"


def test_connected_members_of_protocol_0_prevent_changes() -> None:
    """Version 0.1.0 speaks protocol 0. A node that has not greeted does not prevent a change."""
    world = World(3)
    old_version(world, "n3")
    world.start_all()
    leader = world.elect()
    if leader.node_id == "n3":
        leader.transfer_leadership("n1", lambda _: None)
        world.run_until(lambda: world.hosts["n1"].node is world.leader)
        leader = world.elect()
    world.run_until(lambda: leader.membership.greeted_protocol("n3") == 0)
    world.run(0.5)
    found = refusal(leader, add("n4"))
    assert (found.row, "before n3 is upgraded" in found.reason) == ("M3", True)


def test_a_member_of_protocol_0_that_was_away_is_sent_no_hints() -> None:
    """Version 0.1.0 cannot read a hint, and closes the connection."""
    world = World(3)
    old_version(world, "n3")
    world.start_all()
    commit(world, world.elect(), b"a")
    for host in world.hosts.values():
        host.crash()
    world.hosts["n1"].start()
    world.hosts["n2"].start()
    world.elect()
    make(world, add("n4", observer=True))
    world.hosts["n3"].start()
    world.run(1)
    sent = world.keep(MemberHint, target="n3")
    for node in world.nodes[:2]:
        assert not node.configuration.is_static
        assert node.membership.greeted_protocol("n3") == 0
        world.disconnect(node.node_id, "n3")
        world.connect(node.node_id, "n3")
    world.run(1)
    assert sent == []


def test_no_member_is_recorded_without_an_address() -> None:
    """A node that joined a cluster without MEMBERS entries can lead it, and knows only the addresses in its ``join``."""
    _, leader = cluster()
    leader.member_changes._addresses = {name: ("host", 9_000) for name in ("n1", "n2", "n3") if name != "n2"}
    found = refusal(leader, add("n4"))
    assert (found.row, "does not know the address of n2; transfer leadership" in found.reason) == ("M6", True)


@pytest.mark.parametrize("address", [("0.0.0.0", 9_000), ("::", 9_000), ("host-n4", 0)])
def test_addresses_to_which_no_node_can_connect_are_refused(address: tuple[str, int]) -> None:
    _, leader = cluster()
    for change in (MemberChange("add", "n4", address), MemberChange("move", "n2", address)):
        found = refusal(leader, change)
        assert (found.row, "give another one" in found.reason) == ("M6", True)
    leader.member_changes._addresses = {**leader.member_changes._addresses, "n2": address}
    found = refusal(leader, add("n5"))
    assert found.row == "M6"
    assert f"no other node reaches n2 at {address[0]}:{address[1]}, the address that {leader.node_id}" in found.reason
    assert leader.member_changes.refusal(MemberChange("move", "n2", ("host-n2", 9_000))) is None


def test_a_member_that_moves_loses_its_description() -> None:
    """It may describe the machine that the member leaves."""
    world, leader = cluster()
    name = next(n for n in world.names if n != leader.node_id)
    for change, details in (
        (MemberChange("describe", name, details="of the old machine"), "of the old machine"),
        (MemberChange("move", name, ("10.0.0.9", 1)), ""),
    ):
        outcomes: list[Outcome] = []
        leader.change_member(change, outcomes.append)
        world.run_until(lambda: bool(outcomes))  # noqa: B023 - called within this turn of the loop
        assert isinstance(outcomes[0], Committed), outcomes
        assert leader.member_table[name].details == details

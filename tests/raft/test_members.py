"""Members that are added, removed, promoted and replaced (``members.py``, ``configuration.py``, ``member_changes.py``).

Every test with ``defended`` runs twice: with the defence the rule is kept, without it the damage is visible.
"""

import json
from functools import partial
from itertools import combinations

import pytest

from replicated_namesrv.raft.configuration import Configuration
from replicated_namesrv.raft.interfaces import Committed, Indeterminate, Outcome, ReadOutcome, ReadReady, Rejected
from replicated_namesrv.raft.member_changes import MemberChange
from replicated_namesrv.raft.members import (
    MEMBERS_ENTRY,
    VACANT,
    Kind,
    Members,
    RaftMember,
    pack_members,
    places_changed,
    quorum_of,
    rows_of,
    unpack_members,
)
from replicated_namesrv.raft.payloads import pack_entries, pack_join, unpack_entries
from replicated_namesrv.raft.raft_config import RaftConfig
from replicated_namesrv.raft.raft_errors import IdentityError, InvariantError, MalformedError
from replicated_namesrv.raft.raft_messages import Append, MemberHint, Message
from replicated_namesrv.raft.raft_node import RaftNode
from tests.raft.test_defences import both, commit, hand_over, world_with
from tests.support.raft_world import Disk, Host, World


def decide(world: World, change: MemberChange) -> Outcome:
    """The answer of the present leader."""
    outcomes: list[Outcome] = []
    leader = world.elect()
    leader.change_member(change, outcomes.append)
    leader.tick()
    world.run_until(lambda: outcomes)
    return outcomes[0]


def ask(world: World, change: MemberChange) -> Outcome:
    """Ask the leader until the change is decided. If the leader hands leadership over, ask the next leader."""
    for _ in range(50):
        outcome = decide(world, change)
        if not isinstance(outcome, Rejected) or not ("repeat the request" in outcome.reason or "leads" in outcome.reason):
            return outcome
        world.run(0.2)
    raise AssertionError("not decided")


def make(world: World, change: MemberChange) -> None:
    outcome = ask(world, change)
    assert isinstance(outcome, Committed), outcome


def add(name: str, *, observer: bool = False) -> MemberChange:
    return MemberChange("add", name, (f"host-{name}", 9_000), observer=observer)


def remove(name: str) -> MemberChange:
    return MemberChange("remove", name)


def grow(world: World, name: str, *, observer: bool = False) -> RaftNode:
    """Add a member and wait until it is a voter, or an observer if requested."""
    host = world.new_host(name)
    host.start()
    make(world, add(name, observer=observer))
    wait_for(world, host, "observer" if observer else "voter")
    assert host.node is not None
    return host.node


def wait_for(world: World, host: Host, kind: str) -> None:
    """Every node knows that the process on ``host`` is of this kind."""

    def is_reached() -> bool:
        if host.node is None:
            return False
        wanted = (Kind[kind.upper()], host.node.incarnation)
        return all(node.member_table.get(host.name, RaftMember())[:2] == wanted for node in members_of(world))

    world.run_until(is_reached)


def members_of(world: World) -> list[RaftNode]:
    """Members that run. No node has stopped by itself."""
    assert [node.failed for node in world.nodes if node.stopped] == []
    return [node for node in world.nodes if node.role != "removed"]


def equal(world: World) -> None:
    """All members have applied the same."""
    world.run_until(lambda: len({(n.applied_index, n.state_digest()) for n in members_of(world)}) == 1)


def voters_in(world: World) -> list[str]:
    return sorted(name for name, member in world.elect().member_table.items() if member.votes)


# The argument


def configurations(places: int) -> list[Members]:
    """Every configuration of this many places, each occupied or vacant."""
    names = [f"n{number}" for number in range(places)]
    return [
        {name: RaftMember(Kind.VOTER, VACANT if name in vacant else 7) for name in names}
        for count in range(places)
        for vacant in combinations(names, count)
    ]


def quorums(members: Members) -> list[frozenset[str]]:
    occupied = [name for name, member in members.items() if member.incarnation]
    return [frozenset(chosen) for chosen in combinations(occupied, quorum_of(members))]


def successors(members: Members) -> list[Members]:
    """The configurations after each change that a leader may write."""
    after: list[Members] = [{**members, "new": RaftMember(Kind.VOTER, 7)}]
    for name, member in members.items():
        after.append({**members, name: member._replace(incarnation=VACANT if member.incarnation else 8)})
        if len(members) > 1:
            after.append({known: kept for known, kept in members.items() if known != name})
    return after


@pytest.mark.parametrize("places", range(1, 8))
def test_quorums_of_consecutive_configurations_intersect(places: int) -> None:
    compared = 0
    for before in configurations(places):
        for after in successors(before):
            assert places_changed(before, after) <= 1
            for old in quorums(before):
                for new in quorums(after):
                    compared += 1
                    assert any(before[name].incarnation == after[name].incarnation for name in old & new)
    assert compared or places == 1


def test_two_places_at_once_are_refused() -> None:
    """Two additions at once: quorums of one of two and of three of four need not intersect. A node that receives this stops."""
    configuration = Configuration({"a": 1, "b": 2}, in_log=True)
    two_more = {**configuration.members, "c": RaftMember(Kind.VOTER, 3), "d": RaftMember(Kind.VOTER, 4)}
    with pytest.raises(InvariantError, match="more than one place at a time"):
        configuration.added(9, pack_members(two_more))


@pytest.mark.parametrize("in_log", [True, False])
def test_configuration_row_c4(in_log: bool) -> None:
    """Members are in force in the log, a cut takes them back, and vacancies and joins change them."""
    configuration = Configuration({"a": 1, "b": 2}, in_log)
    learner = {**configuration.members, "c": RaftMember(Kind.LEARNER, VACANT, "host", 9)}
    configuration.added(5, pack_members(learner))
    assert (configuration.quorum, sorted(configuration.latest)) == (2, ["a", "b"])
    configuration.apply(5, learner)
    assert configuration.members == configuration.applied_members == learner
    assert not configuration.is_static
    promotion = configuration.next_change("c", 3)
    assert promotion is not None
    configuration.added(6, promotion)
    assert configuration.latest == ({"a": 1, "b": 2, "c": 3} if in_log else {"a": 1, "b": 2})
    configuration.cut(6)
    assert configuration.latest == {"a": 1, "b": 2}
    configuration.added(6, promotion)
    configuration.apply(6, unpack_members(promotion))
    assert configuration.quorum == 2
    configuration.added(7, pack_join("c", VACANT))
    assert configuration.latest["c"] == (VACANT if in_log else 3)
    assert configuration.members["c"].host == "host"
    configuration.replace({"a": 1}, None)
    assert configuration.is_static
    assert configuration.latest == {"a": 1}


def test_what_is_encoded_comes_back() -> None:
    members = {"n1": RaftMember(Kind.VOTER, 5, "::1", 9_000, '{"zone":"ä"}'), "n2": RaftMember(Kind.OBSERVER)}
    payload = pack_members(members)
    assert unpack_members(payload) == members
    assert unpack_entries(pack_entries([(payload, 4, 1)]), 4, 0, 1) == [(payload, 4, 1)]


@pytest.mark.parametrize(
    "text",
    [
        "{}", "[1]", '[["n1",1,5,"h",9]]', '[["n1",4,5,"h",9,""]]', '[["n1",1,-5,"h",9,""]]', '[["n1",true,5,"h",9,""]]',
        '[["n1",1,5,"h",70000,""]]', '[["",1,5,"h",9,""]]', '[["n1",1,5,"h",9,""],["n1",1,5,"h",9,""]]', "[" * 100_000,
        json.dumps([["n1", 1, 5, "h" * 256, 9, ""]]), json.dumps([[f"n{n}", 1, 5, "h", 9, ""] for n in range(65)]),
    ],
)  # fmt: skip  # items grouped by line
def test_malformed_members_are_refused(text: str) -> None:
    payload = MEMBERS_ENTRY + text.encode()
    with pytest.raises(MalformedError):
        unpack_members(payload)
    with pytest.raises(MalformedError):
        unpack_entries(pack_entries([(payload, 4, 1)]), 4, 0, 1)


# Growing and shrinking


def test_a_cluster_grows_from_one_to_five_and_shrinks_to_one() -> None:
    world = World(1)
    world.start_all()
    commit(world, world.elect(), b"first")
    for name in ("n2", "n3", "n4", "n5"):
        grow(world, name)
        commit(world, world.elect(), name.encode())
    equal(world)
    assert voters_in(world) == ["n1", "n2", "n3", "n4", "n5"]
    assert {node.context.quorum for node in world.nodes} == {3}
    for host in list(world.hosts.values())[:4]:
        make(world, remove(host.name))
        commit(world, world.elect(), b"without " + host.name.encode())
    last = world.hosts["n5"]
    assert voters_in(world) == ["n5"]
    assert last.machine.commands == [b"first", b"n2", b"n3", b"n4", b"n5", *(b"without n%d" % n for n in range(1, 5))]
    last.crash()
    last.start()
    world.run_until(lambda: last.machine.commands[-1:] == [b"without n4"])


def test_a_new_node_receives_a_snapshot_with_the_members() -> None:
    world = World(3, RaftConfig(compact_entries=20, compact_margin_entries=0))
    world.start_all()
    make(world, MemberChange("move", "n3", ("elsewhere", 1)))
    for number in range(60):
        commit(world, world.elect(), b"%d" % number)
    newcomer = grow(world, "n4")
    assert newcomer.receiving.installed == 1
    assert newcomer.member_table["n3"].host == "elsewhere"
    equal(world)
    for name in ("n1", "n2", "n3"):
        world.hosts[name].crash()
    restarted = world.hosts["n1"].start()
    assert restarted.members == ["n1", "n2", "n3", "n4"], "the snapshot has the members"
    assert restarted.context.quorum == 3


def test_the_first_change_takes_over_the_configured_addresses() -> None:
    world = World(3)
    world.start_all()
    assert all(not member.host for member in world.elect().member_table.values())
    grow(world, "n4", observer=True)
    assert {name: member.host for name, member in world.elect().member_table.items()} == {
        f"n{n}": f"host-n{n}" for n in range(1, 5)
    }


def test_a_static_cluster_keeps_its_files_and_its_check_of_the_configuration() -> None:
    world = World(3, RaftConfig(compact_entries=20, compact_margin_entries=0))
    world.start_all()
    for number in range(40):
        commit(world, world.elect(), b"%d" % number)
    host = world.hosts["n1"]
    world.run_until(lambda: host.node is not None and host.node.snapshots.current is not None)
    assert json.loads(host.disk.read("identity").split(b"\n")[0])["version"] == 1
    current = host.node.snapshots.current if host.node else None
    assert current is not None
    assert current.version == host.disk.read(current.name)[8] == 1
    host.crash()
    world.names.append("n4")
    with pytest.raises(IdentityError, match="members"):
        host.start()


def test_after_the_first_change_the_configuration_only_says_where_to_look() -> None:
    world = World(3)
    world.start_all()
    grow(world, "n4")
    host = world.hosts["n1"]
    host.crash()
    assert json.loads(host.disk.read("identity").split(b"\n")[0])["version"] == 2, "older programs do not open it"
    world.names[:] = ["n1", "n2"]
    node = host.start()
    world.run_until(lambda: node.applied_index == world.elect().applied_index)
    assert node.members == ["n1", "n2", "n3", "n4"]


def test_a_dead_node_is_replaced() -> None:
    world = World(3)
    world.start_all()
    commit(world, world.elect(), b"a")
    dead = next(host for host in world.hosts.values() if host.node is not world.leader)
    dead.crash()
    grow(world, "n4")
    make(world, remove(dead.name))
    commit(world, world.elect(), b"b")
    assert voters_in(world) == sorted({"n1", "n2", "n3", "n4"} - {dead.name})
    another = next(host for host in world.hosts.values() if host.node is not None and host.node is not world.leader)
    another.crash()
    commit(world, world.elect(), b"c")


def test_a_learner_that_was_never_started_stops_nothing() -> None:
    world = World(3)
    world.start_all()
    make(world, add("n4"))
    commit(world, world.elect(), b"a")
    assert world.elect().context.quorum == 2
    make(world, remove("n4"))


def test_a_name_returns_with_another_disk() -> None:
    world = World(3)
    world.start_all()
    first = grow(world, "n4").incarnation
    make(world, remove("n4"))
    host = world.hosts["n4"]
    host.crash()
    host.disk = Disk()
    host.start()
    make(world, add("n4"))
    wait_for(world, host, "voter")
    assert host.node is not None
    assert host.node.incarnation != first


def test_a_voter_added_later_may_lose_its_disk() -> None:
    """The voter's place becomes vacant, and its new incarnation joins, as after every loss of a disk."""
    world = World(3)
    world.start_all()
    grow(world, "n4")
    grow(world, "n5")
    host = world.hosts["n4"]
    host.crash()
    host.disk = Disk()
    host.start()
    wait_for(world, host, "voter")
    assert world.elect().member_table["n4"].host == "host-n4"


# Removed nodes


def test_a_removed_node_learns_of_it_and_keeps_its_disk() -> None:
    world = World(3)
    world.start_all()
    commit(world, world.elect(), b"a")
    gone = next(host for host in world.hosts.values() if host.node is not world.leader)
    make(world, remove(gone.name))
    world.run_until(lambda: gone.node is not None and gone.node.role == "removed")
    assert gone.node is not None
    assert gone.machine.commands == [b"a"]
    outcome = world.propose(gone.name, b"b")
    assert isinstance(outcome[0], Rejected)
    assert "was removed from the cluster by entry" in outcome[0].reason
    read = world.read(gone.name)
    world.run_until(lambda: read)
    assert isinstance(read[0], Rejected)
    world.run(12)
    assert all(gone.name not in node.peers for node in members_of(world))
    files = gone.disk.list_names()
    gone.crash()
    node = gone.start()
    assert node.role == "removed"
    assert node.status()["removed_at"]
    assert set(files) <= set(gone.disk.list_names())


def test_a_node_that_never_hears_of_its_removal_disturbs_nobody() -> None:
    world = World(3)
    world.start_all()
    leader = world.elect()
    gone = next(host for host in world.hosts.values() if host.node is not leader)
    world.isolate(gone.name)
    make(world, remove(gone.name))
    world.run(12)
    world.heal()
    term = leader.term
    world.run(5)
    assert gone.node is not None
    assert gone.node.role == "follower"
    assert gone.node.term == term, "pre-votes raise no term"
    assert (leader.role, leader.term) == ("leader", term)
    read = world.read(gone.name)
    world.run_until(lambda: read)
    assert isinstance(read[0], Rejected)


def test_removing_the_leader_hands_leadership_over_first() -> None:
    world = World(3)
    world.start_all()
    leader = world.elect()
    outcomes: list[Outcome] = []
    leader.change_member(remove(leader.node_id), outcomes.append)
    assert isinstance(outcomes[0], Rejected)
    assert "transfers leadership" in outcomes[0].reason
    world.run_until(lambda: world.leader is not None and world.leader is not leader)
    make(world, remove(leader.node_id))
    world.run_until(lambda: leader.role == "removed")
    commit(world, world.elect(), b"a")


# Observers


def test_an_observer_reads_and_proposes_and_does_not_vote() -> None:
    world = World(3)
    world.start_all()
    observer = grow(world, "n4", observer=True)
    assert observer.role == "observer"
    commit(world, observer, b"from the observer")
    read = world.read("n4")
    world.run_until(lambda: read)
    assert isinstance(read[0], ReadReady)
    for name in ("n1", "n2", "n3"):
        if world.hosts[name].node is not world.leader:
            world.isolate(name)
    outcome = world.propose("n4", b"without a majority", 1_000)
    world.run_until(lambda: outcome)
    assert not isinstance(outcome[0], Committed), "its acknowledgement does not count"
    assert world.leader is None


def test_an_observer_that_loses_its_disk_returns() -> None:
    world = World(3)
    world.start_all()
    grow(world, "n4", observer=True)
    host = world.hosts["n4"]
    host.crash()
    commit(world, world.elect(), b"losing an observer costs nobody anything")
    host.disk = Disk()
    host.start()
    wait_for(world, host, "observer")
    assert host.node is not None
    commit(world, host.node, b"again")


def test_an_observer_is_promoted() -> None:
    world = World(3)
    world.start_all()
    grow(world, "n4", observer=True)
    make(world, MemberChange("promote", "n4"))
    wait_for(world, world.hosts["n4"], "voter")


def test_observers_of_a_single_voter() -> None:
    """The voter commits alone, when the entry is on its disk. The observers follow."""
    world = World(1)
    world.start_all()
    grow(world, "n2", observer=True)
    commit(world, world.elect(), b"a")
    world.hosts["n2"].crash()
    commit(world, world.elect(), b"b")
    equal(world)


# Defences


def lost_with_the_leader(world: World, leader: RaftNode, change: MemberChange, receivers: set[str]) -> list[Outcome]:
    """Ask ``leader``, whose entries reach only ``receivers`` from now on."""
    outcomes: list[Outcome] = []

    def drop(source: str, target: str, message: Message) -> bool:
        return isinstance(message, Append) and bool(message.entries) and source == leader.node_id and target not in receivers

    world.drop = drop
    leader.change_member(change, outcomes.append)
    leader.tick()
    return outcomes


@both
def test_removal_committed_first(defended: bool) -> None:
    """The leader removes n2, and is lost before this is committed. n2 must not be the only one that has the entry: it would not
    campaign, and would grant its vote to no other node."""
    world = world_with("removal_committed_first", defended)
    leader = world.elect()
    commit(world, leader, b"a")
    gone, kept = (node.node_id for node in world.nodes if node is not leader)
    lost_with_the_leader(world, leader, remove(gone), {gone})
    world.run(0.1)
    world.hosts[leader.node_id].crash()
    world.drop = lambda source, target, message: False
    world.run(10)
    assert (world.leader is not None) == defended
    assert kept in world.hosts


@both
def test_leader_stays(defended: bool) -> None:
    """A leader that removed itself would continue to count itself: entries would be committed with too few acknowledgements."""
    world = world_with("leader_stays", defended)
    leader = world.elect()
    commit(world, leader, b"a")
    stays, late = (node for node in world.nodes if node is not leader)
    outcomes = lost_with_the_leader(world, leader, remove(leader.node_id), {stays.node_id})
    world.run(0.2)
    if defended:
        assert isinstance(outcomes[0], Rejected)
    else:
        assert leader.node_id not in leader.configuration.latest
        assert leader.commit_index > late.last_index, "committed by one of the two voters, and by a node without a vote"


def cut_between(world: World, some: set[str], others: set[str]) -> None:
    world.cut |= {(a, b) for a in some for b in others} | {(b, a) for a in some for b in others}


@both
def test_own_term_first(defended: bool) -> None:
    """The schedule of Ongaro's correction of 2015. The leader of four nodes, n1, adds the vote of n5, and no other node receives
    this. The next leader removes n1 before it has committed an entry of its own term. Then n1, n5 and a third node that lacks the
    removal could elect one of them."""
    world = world_with("own_term_first", defended, 1)
    for name in ("n2", "n3", "n4"):
        grow(world, name)
    equal(world)
    while world.elect().node_id != "n1":
        hand_over(world, world.elect(), world.hosts["n1"].node or world.elect())
        world.run(1)
    first = world.elect()
    world.new_host("n5").start()
    make(world, add("n5"))
    world.run_until(lambda: first.followers.progress["n5"].match == first.last_index)
    # The promotion of n5 reaches n5 only.
    cut_between(world, {"n1", "n5"}, {"n2", "n3", "n4"})
    first.core.propose(first.configuration.next_change("n5", first.followers.progress["n5"].incarnation) or b"")
    first.tick()
    voters = [world.hosts[name].node for name in ("n2", "n3", "n4")]
    late = {"n2", "n3", "n4"}  # no new leader commits anything before we choose who receives it
    world.drop = lambda source, target, message: isinstance(message, Append) and bool(message.entries) and target in late
    world.run_until(lambda: any(node is not None and node.role == "leader" for node in voters))
    second = next(node for node in voters if node is not None and node.role == "leader")
    one, other = sorted({"n2", "n3", "n4"} - {second.node_id})
    late = {other}
    world.run(0.1)
    outcomes: list[Outcome] = []
    second.change_member(remove("n1"), outcomes.append)
    second.tick()
    world.run(0.1)
    if defended:
        assert "has not committed an entry of its own term" in str(outcomes[0])
        return
    assert isinstance(outcomes[0], Committed)
    world.cut.clear()
    cut_between(world, {"n1", "n5", other}, {second.node_id, one})
    world.drop = lambda source, target, message: False
    world.run_until(lambda: world.leader is not None and world.leader.term > second.term)
    wrong = world.elect()
    assert wrong.node_id in ("n1", "n5")
    assert wrong.term_at(outcomes[0].log_index) != second.term, "it leads without an entry that was committed"


@both
def test_durable_leadership(defended: bool) -> None:
    """The only voter leads before its vote is on disk, because it needs no other vote. It changes the members, and its power
    fails before the sync ends. Then it leads the same term again, with another entry at the same index."""
    world = world_with("durable_leadership", defended, 1)
    observer = grow(world, "n2", observer=True)
    commit(world, world.elect(), b"a")
    equal(world)
    host = world.hosts["n1"]
    host.crash()
    host.sync_delay = 3.0
    first = host.start()
    world.run_until(lambda: first.role == "leader")
    term, last = first.term, observer.last_index
    outcomes: list[Outcome] = []
    first.change_member(add("n4", observer=True), outcomes.append)
    first.tick()
    reads = world.read("n2")
    world.run(0.3)
    assert first.log.vote_number > first.log.durable_number
    assert not outcomes
    assert (observer.term, observer.last_index) == ((term - 1, last) if defended else (term, last + 2))
    host.crash(power=True)
    host.sync_delay = 0.001
    second = host.start()
    world.run_until(lambda: second.role == "leader")
    assert second.term == term
    commit(world, second, b"W")
    world.run(0.3)
    assert (world.hosts["n2"].machine.commands == [b"a", b"W"]) == defended
    assert ("n4" in observer.member_table) == (not defended), "no leader has committed this change"
    if defended:
        world.run_until(lambda: reads)
        assert isinstance(reads[0], ReadReady)
        equal(world)


def test_observers_do_not_extend_the_lease() -> None:
    """The leader of three voters and two observers loses contact with the voters. A large command keeps it from stepping down
    for a while. The observers continue to answer, and the others elect a leader."""
    world = World(3, RaftConfig(lease_reads=True))
    world.start_all()
    for name in ("n4", "n5"):
        grow(world, name, observer=True)
    leader = world.elect()
    commit(world, leader, b"a")
    world.run_until(leader.lease_valid)
    voters = {"n1", "n2", "n3"} - {leader.node_id}
    cut_between(world, voters, {leader.node_id})
    leader.propose(bytes(5_000_000), lambda outcome: None)
    leader.tick()
    world.run_until(lambda: any(node.role == "leader" and node is not leader for node in world.nodes))
    second = next(node for node in world.nodes if node.role == "leader" and node is not leader)
    commit(world, second, b"X")
    assert leader.role == "leader", "the large command is not applied yet"
    reads: list[ReadOutcome] = []
    leader.lease_read(reads.append)
    assert not leader.lease_valid()
    assert not reads, "a linearizable read would miss an acknowledged command"


@both
def test_single_change(defended: bool) -> None:
    """A leader writes no other change before it has applied its previous one: quorums two changes apart need not intersect."""
    world = world_with("single_change", defended)
    leader = world.elect()
    commit(world, leader, b"a")
    lost_with_the_leader(world, leader, add("n4", observer=True), set())
    outcomes: list[Outcome] = []
    leader.change_member(add("n5", observer=True), outcomes.append)
    assert bool(outcomes) == defended
    if defended:
        assert "is not committed yet" in str(outcomes[0])


# Nodes that were away


def test_a_node_that_was_away_finds_members_that_it_does_not_know() -> None:
    """All nodes that a returning member knows have been replaced. Another member sends it a hint with the present members."""
    world = World(3)
    world.start_all()
    commit(world, world.elect(), b"a")
    away = next(host for host in world.hosts.values() if host.node is not world.leader)
    away.crash()
    for name in ("n4", "n5"):
        grow(world, name)
    for name in sorted({"n1", "n2", "n3"} - {away.name}):
        make(world, remove(name))
        world.hosts[name].crash()
    node = away.start()
    world.run_until(lambda: node.applied_index == world.elect().applied_index)
    commit(world, node, b"b")
    assert node.members == sorted({away.name, "n4", "n5"})


def test_a_member_that_was_cut_off_lets_in_members_that_it_does_not_know() -> None:
    """A member was cut off until all members that it knew were gone. It and two members that it does not know are the
    majority."""
    world = World(3)
    world.start_all()
    commit(world, world.elect(), b"a")
    world.run(0.5)
    assert not any(node.group.accepts_strangers for node in world.nodes)
    away = next(host for host in world.hosts.values() if host.node is not world.leader)
    for name in ("n4", "n5"):
        world.new_host(name)
    world.isolate(away.name)
    for name in ("n4", "n5"):
        world.hosts[name].start()
        make(world, add(name))
        world.run_until(partial(is_voter, world, name))
    term = world.elect().term
    for name in world.hosts:
        world.disconnect(name, away.name)
        world.disconnect(away.name, name)
    for name in sorted({"n1", "n2", "n3"} - {away.name}):
        world.hosts[name].crash()
    world.heal()

    def is_elected() -> bool:
        dial(world)
        return world.leader is not None and world.leader.term > term

    world.run_until(is_elected)
    assert away.node is not None
    node = away.node
    world.run_until(lambda: "n5" in node.members)
    commit(world, node, b"b")


@both
def test_lasting_leader(defended: bool) -> None:
    """A node was away while n4 was added, which leads now. It is configured with n4, but all hints about the members are lost
    until it has a leader. It must not drop this leader as a stranger."""
    world = world_with("lasting_leader", defended)
    make(world, MemberChange("move", "n3", ("elsewhere", 1)))
    equal(world)
    away, other = world.hosts["n3"], world.hosts["n1"].node
    while world.elect() is away.node:
        assert away.node is not None
        assert other is not None
        hand_over(world, away.node, other)
        world.run(1)
    away.crash()
    newest = grow(world, "n4")
    while world.elect() is not newest:
        world.elect().transfer_leadership("n4", lambda is_done: None)
        world.run(1)
    world.names.append("n4")
    world.drop = lambda source, target, message: target == "n3" and isinstance(message, MemberHint)
    node = away.start()
    world.run(1)
    world.drop = lambda source, target, message: False
    assert ("n4" in node.peers) == defended
    outcome = world.propose("n3", b"proposed at a node that was away", 2_000)
    wakeups = 0
    end = world.time + 1
    while world.time < end:
        wakeups += node.next_wakeup() <= world.time
        world.step()
    assert wakeups < 500, "it waits for events, not for a time that has passed"
    world.run_until(lambda: outcome)
    assert isinstance(outcome[0], Committed) == defended
    if defended:
        equal(world)


def is_voter(world: World, name: str) -> bool:
    return world.elect().member_table.get(name, RaftMember(Kind.LEARNER)).votes


def dial(world: World) -> None:
    """Connect each node with its peers as the transport does: row H8 of the handshake refuses strangers."""
    for source in world.nodes:
        for target in world.nodes:
            knows = source.node_id in target.peers or target.group.accepts_strangers
            if target.node_id in source.peers and knows:
                world.connect(source.node_id, target.node_id)


def test_a_founder_that_joins_returns_with_its_disk_and_with_an_empty_one() -> None:
    """The configuration that operators need after the first change of members, also for a cluster of one."""
    world = World(1)
    world.start_all()
    for name in ("n2", "n3"):
        grow(world, name)
    host = world.hosts["n1"]
    host.joins = True
    world.names[:] = ["n2", "n3"]
    for disk in (host.disk, Disk()):
        host.crash()
        host.disk = disk
        host.start()
        wait_for(world, host, "voter")
        commit(world, world.elect(), b"a")
        equal(world)
    assert voters_in(world) == ["n1", "n2", "n3"]


def test_a_hint_of_a_node_that_knows_less_has_no_effect() -> None:
    world = World(3)
    world.start_all()
    leader = world.elect()
    hint = MemberHint(1, leader.incarnation, leader.applied_index, pack_members({"n9": RaftMember()}))
    leader.on_message("n9", hint)
    leader.tick()
    assert "n9" not in leader.peers
    leader.on_message("n9", hint._replace(members=MEMBERS_ENTRY + b"[1]"))
    assert leader.refusals["message"] == 1


# Changes that are not committed


def test_an_uncommitted_change_is_rolled_back() -> None:
    world = World(3)
    world.start_all()
    leader = world.elect()
    commit(world, leader, b"a")
    world.isolate(leader.node_id)
    outcomes: list[Outcome] = []
    leader.change_member(add("n4", observer=True), outcomes.append)
    leader.tick()
    assert "n4" in leader.configuration.members
    assert rows_of(leader.member_table) != rows_of(leader.configuration.members)
    world.run_until(lambda: any(node.role == "leader" for node in world.nodes if node is not leader))
    world.heal()
    world.run_until(lambda: "n4" not in leader.configuration.members)
    assert isinstance(outcomes[0], Indeterminate)
    world.run(0.2)
    assert "n4" not in leader.peers
    assert len(members_of(world)) == 3
    commit(world, world.elect(), b"b")

"""Directed tests: processes that a peer contests, and nodes whose disk is rolled back, while one peer remembers more than
another."""

from functools import partial

from replicated_namesrv.raft.membership import CONTACT_SECONDS
from replicated_namesrv.raft.raft_config import RaftConfig
from replicated_namesrv.raft.raft_messages import Append, Introduction, Message, TimeoutNow, VoteReply
from replicated_namesrv.raft.raft_node import RaftNode
from replicated_namesrv.raft.standing import Standing
from tests.raft.test_defences import both, commit, hand_over, world_with
from tests.raft.test_lost_memory import Copied, image_of, others, settle
from tests.support.extreme_messages import Facts, plausible
from tests.support.raft_world import Host, World


def put_back_to_before_a_commit(world: World, leader: RaftNode, back: Host, third: Host, afterwards_s: float = 0.0) -> None:
    """``leader`` and ``back`` commit X while ``third`` is isolated. ``afterwards_s`` later, ``back`` stops and has the disk from
    before. In half a second the leader learns from an introduction how many records are on the disk."""
    world.isolate(third.name)
    world.run(1)
    image = image_of(back.disk)
    commit(world, leader, b"X")
    world.run(afterwards_s)
    back.crash()
    back.disk = image


@both
def test_contested_silence(defended: bool) -> None:
    """A disk is rolled back, and its node restarts at once. The leader, which remembers more, contests the new process until the
    former one has been silent for an election time. Meanwhile the third node, which the leader cannot reach, asks for a vote. The
    node is silent, and gives up its vote as soon as it learns what the leader remembers."""
    also_off = ("introduced_first",) if defended else ("introduced_first", "remembered_data")  # it would wait, too
    world = world_with("contested_silence", defended, also_off=also_off)
    leader = world.elect()
    back, third = others(world, leader)
    commit(world, leader, b"old")
    settle(world)
    put_back_to_before_a_commit(world, leader, back, third)
    world.cut = {(leader.node_id, third.name), (third.name, leader.node_id)}
    node = back.start()
    world.run(5)
    lost = [h for h in (back, third) if h.node is not None and h.node.commit_index > 3 and b"X" not in h.machine.commands]
    leaders = [n for n in world.nodes if n.role == "leader" and n is not leader]
    assert bool(lost or leaders) == (not defended)
    if defended:
        assert node.counters["rejoined"] == 1
        world.heal()
        settle(world)
        assert third.machine.commands == [b"old", b"X"]


@both
def test_a_copy_that_a_peer_hears_alone_is_silent_if_another_peer_contests_it(defended: bool) -> None:
    """The leader has contact with both processes, and the third node only with the copy. The leader and the third node cannot
    reach each other."""
    world = world_with("contested_silence", defended, also_off=("remembered_data",))
    leader = world.elect()
    host, third = others(world, leader)
    commit(world, leader, b"old")
    settle(world)
    world.isolate(third.name)
    world.run(1)
    image = image_of(host.disk)
    commit(world, leader, b"X")
    world.cut = {(leader.node_id, third.name), (third.name, leader.node_id)}
    copy = Copied(world, host.name, image)
    transmit, deliver = world.transmit, world._deliver

    def from_copy_alone(source: Host, target: str, message: Message) -> None:
        if target != third.name or source is not host:
            transmit(source, target, message)

    def to_copy_alone(source: str, target: str, message: Message) -> None:
        if (source, target) != (third.name, host.name):
            deliver(source, target, message)
        elif (source, target) not in world.cut:
            copy.node.on_message(source, message)
            copy.node.tick()

    world.transmit, world._deliver = from_copy_alone, to_copy_alone  # type: ignore[method-assign]  # of this world alone
    start = world.time
    copy.ticking(world, lambda: world.time - start > 5)
    assert third.node is not None
    assert ("leader" in (third.node.role, copy.node.role)) == (not defended)


@both
def test_a_process_that_goes_back_with_its_memory_rejoins(defended: bool) -> None:
    """A virtual machine is reset to a snapshot with memory: disk and process of a node are rolled back together, and the node is
    the same process. The image is taken from the same node in a second world, which is equal to the first."""

    def until_image() -> tuple[World, RaftNode, Host, Host]:
        world = world_with("regressions", defended)
        leader = world.elect()
        back, third = others(world, leader)
        commit(world, leader, b"old")
        settle(world)
        return world, leader, back, third

    world, leader, back, third = until_image()
    image = until_image()[2]
    assert image.node is not None
    commit(world, leader, b"known to all")
    settle(world)
    world.isolate(third.name)
    commit(world, leader, b"X")
    for peer in world.names:
        world.disconnect(back.name, peer)
        world.disconnect(peer, back.name)
    world.hosts[leader.node_id].crash()
    back.node, back.life = None, back.life + 1
    image.world, world.hosts[back.name] = world, image
    world.heal()
    for peer in (third.name, leader.node_id):
        image.node.on_disconnected(peer)
    world.connect(image.name, third.name)
    world.connect(third.name, image.name)
    image.wake()
    world.run(10)
    assert (world.leader is None) == defended
    assert image.node.counters["rejoined"] == int(defended)
    if defended:
        assert any("this disk was rolled back" in note for note in image.node.notes)
        world.hosts[leader.node_id].start()
        world.elect()
        settle(world)
        assert image.machine.commands == third.machine.commands == [b"old", b"known to all", b"X"]


@both
def test_remembered_data(defended: bool) -> None:
    """The leader contests a process whose disk was rolled back, and is lost before it can report a regression."""
    world = world_with("remembered_data", defended)
    leader = world.elect()
    back, third = others(world, leader)
    commit(world, leader, b"old")
    settle(world)
    put_back_to_before_a_commit(world, leader, back, third)
    node = back.start()
    world.run_until(lambda: node.counters["rejoined" if defended else "contested"] > 0)
    world.hosts[leader.node_id].crash()
    world.heal()
    world.run(10)
    assert (world.leader is None) == defended
    if not defended:
        assert b"X" not in third.machine.commands, "an acknowledged command is gone"
        return
    world.hosts[leader.node_id].start()
    world.elect()
    settle(world)
    assert third.machine.commands == [b"old", b"X"]


@both
def test_introduced_first(defended: bool) -> None:
    """A disk is rolled back. Before the leader, which remembers more, can answer, a late `TimeoutNow` makes the third node
    campaign. A forced vote does not wait until contact with a leader has ended. But it waits until the voter's peers could
    answer."""
    world = world_with("introduced_first", defended)
    leader = world.elect()
    back, third = others(world, leader)
    commit(world, leader, b"old")
    settle(world)
    world.run(1)
    late: list[TimeoutNow] = []
    transmit, slow_s = world.transmit, 0.0

    def delayed(source: Host, target: str, message: Message) -> None:
        if isinstance(message, TimeoutNow):
            late.append(message)
        elif slow_s and {source.name, target} == {leader.node_id, back.name}:
            world.later(slow_s, lambda: transmit(source, target, message))
        else:
            transmit(source, target, message)

    world.transmit = delayed  # type: ignore[method-assign]  # of this world alone
    ended: list[bool] = []
    leader.transfer_leadership(third.name, ended.append)
    world.run_until(lambda: ended == [False])
    put_back_to_before_a_commit(world, leader, back, third)
    world.cut = {(leader.node_id, third.name), (third.name, leader.node_id)}
    slow_s = 0.06
    node = back.start()
    world.run(0.015)
    assert third.node is not None
    third.node.on_message(leader.node_id, late[0])
    third.node.tick()
    world.run(0.25)
    assert (third.node.role == "leader") == (not defended), "it lacks an acknowledged command"
    assert node.counters["rejoined"] == int(defended)
    if defended:
        world.heal()
        settle(world)
        assert third.machine.commands == [b"old", b"X"]


def went_back_beside_two_leaders(world: World) -> tuple[RaftNode, Host, Host]:
    """A leader is deposed without noticing. A follower votes for the next leader, acknowledges command X, and its disk is rolled
    back to a time before both. Then the deposed leader reaches it at once, and the next leader, which remembers more, 0.2 s
    later. Returns (deposed leader, follower, next leader)."""
    deposed = world.elect()
    commit(world, deposed, b"old")
    settle(world)
    back, third = others(world, deposed)
    image = image_of(back.disk)
    assert third.node is not None
    world.isolate(deposed.node_id)
    hand_over(world, deposed, third.node)
    world.run_until(lambda: third.node is not None and third.node.role == "leader")
    commit(world, third.node, b"X")
    back.crash()
    back.disk = image
    to_next = {(back.name, third.name), (third.name, back.name)}
    world.cut -= {(back.name, deposed.node_id), (deposed.node_id, back.name)}
    world.cut |= to_next
    node = back.start()
    world.later(0.2, lambda: world.cut.difference_update(to_next))
    world.run_until(lambda: node.leader_id == deposed.node_id)
    return deposed, back, third


def all_are_well(world: World) -> None:
    """The disk that was rolled back has a new incarnation, and no acknowledged command is lost."""
    world.heal()
    world.run(3)
    world.elect()
    settle(world)
    assert sum(node.counters["rejoined"] for node in world.nodes) == 1
    assert {tuple(host.machine.commands[:2]) for host in world.hosts.values()} == {(b"old", b"X")}
    assert not any(node.stopped for node in world.nodes)


@both
def test_no_acknowledgement_before_introductions(defended: bool) -> None:
    world = world_with("introduced_first", defended)
    deposed, _, _ = went_back_beside_two_leaders(world)
    outcome = world.propose(deposed.node_id, b"Y")
    world.run(0.19)
    assert bool(outcome) == (not defended), "X and Y are committed at the same place"
    if defended:
        all_are_well(world)


@both
def test_no_confirmation_of_reads_before_introductions(defended: bool) -> None:
    world = world_with("introduced_first", defended, lease_reads=True)
    deposed, _, _ = went_back_beside_two_leaders(world)
    lease_began_at = deposed.replication.quorum_acknowledged_at()
    reads = world.read(deposed.node_id)
    world.run(0.19)
    is_renewed = deposed.replication.quorum_acknowledged_at() > lease_began_at
    assert is_renewed == bool(reads) == (not defended), "X was acknowledged before, and is not there"
    if defended:
        all_are_well(world)


@both
def test_no_campaign_before_introductions(defended: bool) -> None:
    """The deposed leader transfers leadership. The follower would lead the term of the leader for which it voted."""
    world = world_with("introduced_first", defended)
    deposed, back, third = went_back_beside_two_leaders(world)
    assert back.node is not None
    assert third.node is not None
    hand_over(world, deposed, back.node)
    world.run(0.1)
    assert (back.node.role == "leader" and back.node.term == third.node.term) == (not defended), "two leaders in one term"
    if defended:
        assert back.node.role == "follower"
        all_are_well(world)


def three_nodes() -> tuple[World, RaftNode, Host, Host]:
    """A cluster with a committed command: the leader, and the machines of the others."""
    world = World(3)
    world.start_all()
    leader = world.elect()
    commit(world, leader, b"a")
    second, third = others(world, leader)
    return world, leader, second, third


def test_acknowledgements_wait_for_introductions_only() -> None:
    """The silence ends when all peers have accepted the new process: long before the minimum election time."""
    world, leader, back, third = three_nodes()
    back.crash()
    world.run(1)
    node, started = back.start(), world.time
    assert node.membership.is_silent
    world.run_until(lambda: not node.membership.is_silent)
    third.crash()
    commit(world, leader, b"b")
    assert world.time - started < 0.1
    assert leader.role == "leader"


@both
def test_earlier_reports(defended: bool) -> None:
    """A disk is rolled back. The leader, which remembers more, reaches the node, but the node does not reach the leader. So the
    leader's reports are about the earlier process. Then the leader is lost, and the third node accepts the new process."""
    world = world_with("earlier_reports", defended)
    leader = world.elect()
    back, third = others(world, leader)
    commit(world, leader, b"a")
    settle(world)
    put_back_to_before_a_commit(world, leader, back, third, afterwards_s=0.5)
    world.cut = {(leader.node_id, third.name), (third.name, leader.node_id), (back.name, leader.node_id)}
    node = back.start()
    world.run(0.1)
    world.hosts[leader.node_id].crash()
    world.run(5)
    assert any(other.role == "leader" for other in world.nodes) == (not defended), "without X"
    assert node.counters["rejoined"] == int(defended)


def test_forged_reports_to_an_earlier_process_do_not_count() -> None:
    """Without a secret, any process on the machine can send introductions, but it does not know the nonce of the receiver's
    process. After such a report two of three nodes gave up their votes, and no leader could be elected any more."""
    for authenticated in (False, True):
        world = World(3, RaftConfig(authenticated_peers=authenticated))
        world.start_all()
        leader = world.elect()
        commit(world, leader, b"a")
        settle(world)
        node, peer = (host.node for host in others(world, leader))
        assert node is not None
        assert peer is not None
        facts = Facts(peer.incarnation, node.incarnation, node.term, 2, node.term, 2, {}, sender_process=1, receiver_process=1)
        forged = plausible(Introduction, facts)
        assert isinstance(forged, Introduction)
        node.on_message(peer.node_id, forged._replace(remembered_number=255))
        world.run(1)
        assert node.counters["rejoined"] == int(authenticated)
        assert node.membership.own_standings[peer.node_id] is Standing.ACCEPTED


def test_the_silence_begins_when_peers_can_connect() -> None:
    """A disk is rolled back, and opening it takes longer than the minimum election time. Then the third node, which lacks command
    X, reaches the node first, and the leader, which remembers more, 0.1 s later."""
    world, leader, back, third = three_nodes()
    settle(world)
    put_back_to_before_a_commit(world, leader, back, third)
    to_leader = {(leader.node_id, back.name), (back.name, leader.node_id)}
    world.cut = {(leader.node_id, third.name), (third.name, leader.node_id)} | to_leader
    node = back.start(opening_s=0.5)
    world.later(0.1, lambda: world.cut.difference_update(to_leader))
    world.run(1)
    world.heal()
    settle(world)
    assert node.counters["rejoined"] == 1
    assert [host.machine.commands for host in world.hosts.values()] == [[b"a", b"X"]] * 3


def test_the_silence_lasts_longer_for_a_peer_with_contact() -> None:
    """Nothing that the leader sends arrives. It may be that it cannot connect yet, or that it still refuses the new process."""
    world, leader, back, _ = three_nodes()
    back.crash()
    world.run(1)
    world.cut = {(leader.node_id, back.name)}
    node, started = back.start(), world.time
    world.run_until(lambda: not node.membership.is_silent)
    assert CONTACT_SECONDS <= world.time - started <= CONTACT_SECONDS + 0.1


def test_acknowledgements_do_not_wait_for_a_peer_that_is_down() -> None:
    """Two of three nodes, of which one restarts, elect a leader and commit. Nodes without peers to wait for are not silent."""
    world, _, back, third = three_nodes()
    third.crash()
    back.crash()
    node, started = back.start(), world.time
    world.run_until(lambda: not node.membership.is_silent)
    assert world.time - started >= world.config.election_min_ms / 1000
    commit(world, world.elect(), b"b")
    alone = World(1)
    assert not alone.hosts["n1"].start().membership.is_silent


def test_a_vote_is_remembered() -> None:
    """A peer votes, and its disk is rolled back to a time before this vote. The disk lacks a term, so the candidate for which the
    peer voted detects this."""
    world = world_with("regressions", True, 5)
    leader = world.elect()
    candidate, voter = [n for n in world.nodes if n is not leader][:2]
    world.isolate(candidate.node_id)
    hand_over(world, leader, candidate)
    assert candidate.memories.memory(voter.node_id, voter.incarnation).term < candidate.term
    candidate.on_message(voter.node_id, VoteReply(voter.incarnation, candidate.incarnation, candidate.term))
    assert candidate.memories.memory(voter.node_id, voter.incarnation).term == candidate.term


def test_a_leader_remembers_what_was_acknowledged_in_an_earlier_term() -> None:
    """The leader leads a new term, in which no follower has acknowledged anything. Then the disk of a follower is rolled back to
    a time before a command that it acknowledged in the earlier term. The last introduction of the follower came before this
    command."""
    world = world_with("regressions", True)
    leader = world.elect()
    commit(world, leader, b"old")
    settle(world)
    back, third = others(world, leader)
    assert third.node is not None
    introduced = world.keep(Introduction, source=back.name, target=leader.node_id)
    world.run_until(lambda: introduced)
    world.run(0.01)  # the next introduction is due later than the commit
    world.isolate(third.name)
    image = image_of(back.disk)
    commit(world, leader, b"X")
    back.crash()
    world.cut.clear()
    # The third node campaigns and lacks the command, so the leader is elected again, in a term in which nobody answers appends.
    world.drop = lambda source, target, message: source == leader.node_id and isinstance(message, Append)
    term = leader.term
    hand_over(world, leader, third.node)
    world.run_until(lambda: leader.role == "leader" and leader.term > term)
    back.disk = image
    node = back.start()
    world.run_until(lambda: node.counters["rejoined"] or node.membership.own_standings.get(leader.node_id) is Standing.ACCEPTED)
    assert node.counters["rejoined"] == 1
    world.hosts[leader.node_id].crash()
    world.drop = lambda source, target, message: False
    world.run(5)
    assert world.leader is None, "it would lack an acknowledged command"
    world.hosts[leader.node_id].start()
    world.elect()
    settle(world)
    assert back.machine.commands == third.machine.commands == [b"old", b"X"]


def test_a_leader_that_rejoins_leads_no_more_at_once() -> None:
    """Otherwise a node without a vote would write entries as leader."""
    world = world_with("regressions", True)
    leader = world.elect()
    term = leader.term
    leader.rejoin("for this test")
    assert (leader.core.is_leader, leader.term) == (False, term + 1)


def test_late_copies_do_not_make_a_node_look_as_if_it_was_reset() -> None:
    """A peer restarts and receives nothing from the node. Late copies of an introduction of its earlier process, and of an older
    one of the new process, reach the node. Then the node's introduction from before these copies arrives, after a newer one."""
    world, _, peer, host = three_nodes()
    assert host.node is not None
    node, to_node, to_peer = host.node, (peer.name, host.name), (host.name, peer.name)
    lost: dict[tuple[str, str], list[Introduction]] = {to_node: [], to_peer: []}
    lossy = {to_node}

    def drop(source: str, target: str, message: Message) -> bool:
        if isinstance(message, Introduction) and (source, target) in lost:
            lost[source, target].append(message)
        return (source, target) in lossy and isinstance(message, Introduction)

    world.drop = drop
    world.run_until(lambda: lost[to_node] and lost[to_peer])
    earlier = lost[to_node].pop()
    lossy, under_way = {to_peer}, lost[to_peer][-1]
    peer.crash()
    restarted = peer.start()
    world.run_until(lambda: host.name in restarted.membership._greetings)
    restarted.on_message(host.name, under_way)
    sent = len(lost[to_node])
    world.run_until(lambda: len(lost[to_node]) > sent + 3)
    world.run(0.1)
    before = lost[to_peer][-1]
    assert before.echo_process == restarted.membership.process
    for late in (earlier, lost[to_node][sent]):
        node.on_message(peer.name, late)
    lossy = {to_node}
    world.run_until(lambda: restarted.membership.standing_now(host.name) is Standing.ACCEPTED)
    restarted.on_message(host.name, before)
    assert restarted.membership.standing_now(host.name) is Standing.ACCEPTED
    lossy = set()
    world.run(2)
    assert node.counters["rejoined"] == 0


def test_a_node_echoes_the_newest_number_though_its_peer_has_rejoined() -> None:
    """A peer rejoins as another incarnation. A late introduction of its first incarnation arrives, with a lower number than those
    of the second one. If the node then echoed the lower number, the peer would take it for a machine that was reset."""
    world, leader, back, _ = three_nodes()
    assert back.node is not None
    kept = world.keep(Introduction, back.name, leader.node_id)
    world.run(1)
    late = kept[-1]._replace(sequence=kept[-1].sequence + 1)
    back.node.rejoin("for this test")
    world.run(3)
    leader.on_message(back.name, late)
    world.run(3)
    assert back.node.membership.standing_now(leader.node_id) is Standing.ACCEPTED
    assert sum(node.counters["rejoined"] for node in world.nodes) == 1


def test_a_node_echoes_the_newest_number_though_a_copy_introduced_itself_in_between() -> None:
    """A copy of a data directory was in use, and the node that owns the directory has rejoined. Late introductions of the copy
    and then of the node's first incarnation arrive. If the node's peer then echoed the lower number of the first incarnation in a
    newer introduction, the node would take the peer for a machine that was reset, and the peer would give up its vote, too."""
    world, leader, back, _ = three_nodes()
    assert back.node is not None
    kept = world.keep(Introduction, back.name, leader.node_id)
    world.run(1)
    late = kept[-1]._replace(sequence=kept[-1].sequence + 1)  # it was still under way
    of_copy = late._replace(process=late.process + 1, boot=late.boot + 1, sequence=1, echo_process=0, echo_sequence=0)
    back.node.rejoin("for this test")
    world.run(3)
    for introduction in (of_copy, late):
        leader.on_message(back.name, introduction)  # the leader answers at once
    world.run(3)
    assert back.node.membership.standing_now(leader.node_id) is Standing.ACCEPTED
    assert sum(node.counters["rejoined"] for node in world.nodes) == 1


def is_reached(world: World, at: float) -> bool:
    return world.time >= at


def test_a_contested_process_stays_silent_when_the_peer_connects_again() -> None:
    """The leader has contact with two processes of one node, and its connection to them is established again and again. It must
    not withdraw its objection meanwhile, because the third node may know only the copy."""
    world, leader, host, third = three_nodes()
    world.cut = {(third.name, host.name), (host.name, third.name)}
    copy = Copied(world, host.name, image_of(host.disk))
    copy.ticking(world, lambda: copy.node.membership.is_contested)
    settled_at = world.time + 0.5
    copy.ticking(world, lambda: world.time >= settled_at)
    end = world.time + 1
    contested: list[bool] = []

    def deliver(source: str, target: str, message: Message) -> None:
        to_both(source, target, message)
        contested.append(copy.node.membership.is_contested)

    to_both, world._deliver = world._deliver, deliver  # type: ignore[method-assign]  # of this world alone
    while world.time < end:
        world.disconnect(leader.node_id, host.name)
        world.connect(leader.node_id, host.name)
        copy.ticking(world, partial(is_reached, world, world.time + 0.05))
    assert all(contested)

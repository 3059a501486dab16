"""Every proposal and read gets exactly one true outcome on nodes in every state, and no node spins while it waits."""

import pytest

from replicated_namesrv.raft.interfaces import Committed, Indeterminate, Outcome, Rejected
from replicated_namesrv.raft.payloads import pack_group
from replicated_namesrv.raft.raft_config import RaftConfig
from replicated_namesrv.raft.raft_messages import Forward, ForwardReply, Greeting, Message, ReadReply
from replicated_namesrv.raft.raft_node import RaftNode
from tests.support.raft_world import World


def followers_of(world: World, leader: RaftNode) -> list[RaftNode]:
    return [n for n in world.nodes if n is not leader]


def settled(world: World) -> RaftNode:
    leader = world.elect()
    world.run_until(lambda: all(n.leader_id == leader.node_id for n in world.nodes))
    return leader


def test_a_read_asked_of_a_leader_that_is_lost_ends_in_time_and_without_spinning() -> None:
    """The leader took the request and is gone, and no other can be elected."""
    world = World()
    world.start_all()
    leader = settled(world)
    follower = followers_of(world, leader)[0]
    world.drop = lambda source, target, message: isinstance(message, ReadReply)
    read = world.read(follower.node_id)
    world.run(0.02)
    assert not read
    for name in world.names:
        world.isolate(name)
    follower.core.observe_term(leader.node_id, follower.term + 1)
    assert follower.leader_id is None
    world.run(0.2)
    follower.tick()
    assert follower.next_wakeup() > world.time, "it would spin"
    world.run(3)
    assert len(read) == 1
    assert isinstance(read[0], Rejected)


def test_proposals_and_reads_of_a_node_without_a_cluster_end_in_time() -> None:
    """The node is blank, and its peers never connect."""
    world = World()
    node = world.hosts["n1"].start()
    proposed, read = world.propose("n1", b"x", 500), world.read("n1")
    world.run(3)
    assert isinstance(proposed[0], Rejected)
    assert isinstance(read[0], Rejected)
    assert node.proposals.count == node.reads.count == 0


@pytest.mark.parametrize("restarted", [False, True], ids=["deposed", "restarted"])
def test_a_repeated_forward_is_not_refused_as_if_it_had_never_been_taken(restarted: bool) -> None:
    """The first copy was appended and committed. Its answer was lost, because no message reaches the follower."""
    world = World(config=RaftConfig(proposal_timeout_ms=3_000))
    world.start_all()
    leader = settled(world)
    origin, other = followers_of(world, leader)
    forwards: list[Forward] = []

    def to_origin_nothing(source: str, target: str, message: Message) -> bool:
        if isinstance(message, Forward) and source == origin.node_id:
            forwards.append(message)
        return target == origin.node_id

    world.drop = to_origin_nothing
    outcome = world.propose(origin.node_id, b"once")
    origin.tick()
    world.run_until(lambda: world.hosts[other.node_id].machine.commands == [b"once"])
    old = world.hosts[leader.node_id]
    done: list[bool] = []
    leader.transfer_leadership(other.node_id, done.append)
    world.run_until(lambda: done and leader.leader_id == other.node_id)
    if restarted:
        old.crash()
        leader = old.start()
        world.run_until(lambda: leader.leader_id == other.node_id)
    world.drop = lambda source, target, message: target == origin.node_id and not isinstance(message, ForwardReply | Greeting)
    leader.on_message(origin.node_id, forwards[0])
    world.run_until(lambda: outcome, 10)
    assert not isinstance(outcome[0], Rejected), "it was committed and applied"
    assert isinstance(outcome[0], Indeterminate)


def test_a_forward_must_hold_one_group_of_its_sender() -> None:
    """A group of another origin would take numbers of that origin's proposals, which would then never be applied."""
    world = World()
    world.start_all()
    leader = settled(world)
    sender, other = followers_of(world, leader)
    own, foreign = (pack_group(node.proposals.origin, 0, [(0, b"forged")]) for node in (sender, other))
    for sequence, groups in enumerate((foreign, own + own, own + foreign, b"")):
        before = leader.refusals["message"]
        header = sender.incarnation, leader.incarnation, leader.term
        leader.on_message(sender.node_id, Forward(*header, sequence, groups))
        assert leader.refusals["message"] == before + 1, groups
    world.run(1)
    assert not any(host.machine.commands for host in world.hosts.values())


def test_a_group_of_one_commits_under_a_load_that_never_pauses() -> None:
    """Proposals arrive during every sync: those synced before must not wait for a moment without new ones."""
    world = World(1)
    world.start_all()
    world.elect()
    first = world.propose("n1", b"first")
    asked = [first]

    def ask_again() -> None:
        asked.append(world.propose("n1", b"more"))
        world.hosts["n1"].wake()
        if world.time < 1.0:
            world.later(0.0004, ask_again)

    ask_again()
    world.run(0.3)
    assert first
    assert isinstance(first[0], Committed)
    world.run_until(lambda: world.time > 1.5)
    assert all(isinstance(outcome[0], Committed) for outcome in asked)


def test_a_hand_over_that_ends_with_the_loss_of_the_majority_has_failed() -> None:
    """Dissertation, 3.10. The leader steps down, but there is no new one."""
    world = World()
    world.start_all()
    leader = settled(world)
    done: list[bool] = []
    for peer in followers_of(world, leader):
        world.disconnect(leader.node_id, peer.node_id)
    world.isolate(leader.node_id)
    world.run(0.2)
    world.propose(leader.node_id, b"keeps the target behind")
    leader.tick()
    leader.transfer_leadership(followers_of(world, leader)[0].node_id, done.append)
    world.run_until(lambda: done)
    assert done == [False]


def test_forwarded_proposals_do_not_starve() -> None:
    """The leader's own callers always have more proposals than there is room for. A forwarded proposal must be appended, too."""
    world = World(config=RaftConfig(uncommitted_bytes_max=1_000))
    world.start_all()
    leader = settled(world)
    follower = followers_of(world, leader)[0]

    def again(outcome: Outcome) -> None:
        if isinstance(outcome, Committed):
            leader.propose(b"own" * 100, again)

    for _ in range(20):
        leader.propose(b"own" * 100, again)
    outcomes = world.propose(follower.node_id, b"forwarded")
    world.run(1)
    assert [type(outcome) for outcome in outcomes] == [Committed]


def without_a_connection_to_the_leader() -> tuple[World, str, str]:
    """A follower has no connection to the leader, and receives its messages. Returns the names of the follower and the leader."""
    world = World()
    world.start_all()
    leader = settled(world)
    follower = followers_of(world, leader)[0].node_id
    world.run(1)
    world.disconnect(follower, leader.node_id)
    return world, follower, leader.node_id


def test_a_proposal_without_a_connection_to_the_leader_is_certainly_not_applied() -> None:
    """What the follower does not send cannot be applied."""
    world, follower, _ = without_a_connection_to_the_leader()
    rejected = world.propose(follower, b"x", 200)
    world.run(0.3)
    assert isinstance(rejected[0], Rejected)


def test_a_proposal_is_forwarded_as_soon_as_there_is_a_connection() -> None:
    """Not only when a forward that was sent without a connection counts as lost."""
    world, follower, leader = without_a_connection_to_the_leader()
    outcomes = world.propose(follower, b"x")
    world.run(0.02)
    world.connect(follower, leader)
    connected_at = world.time
    world.run_until(lambda: outcomes)
    assert isinstance(outcomes[0], Committed)
    assert world.time - connected_at < 0.1

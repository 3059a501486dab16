"""A cluster with one voter, perhaps with observers: it commits without any other node."""

from collections.abc import Sequence

from replicated_namesrv.raft.interfaces import Committed, Outcome, ReadReady
from replicated_namesrv.raft.membership import CONTACT_SECONDS
from replicated_namesrv.raft.raft_config import RaftConfig
from tests.raft.test_defences import both, commit, hand_over, world_with
from tests.raft.test_lost_memory import image_of
from tests.raft.test_members import add, equal, grow, make, remove
from tests.support.raft_world import World


@both
def test_durable_campaign(defended: bool) -> None:
    """The only voter writes on a slow disk. An observer that was a voter, and has campaigned, sends it a higher term. The voter
    must not win its own election before its log is on disk: its leader would commit the whole log at once."""
    world = world_with("durable_campaign", defended, 1, also_off=("durable_vote_first",))
    former = grow(world, "n2")
    leader = world.elect()
    world.drop = lambda source, target, message: source == "n2"
    hand_over(world, leader, former)
    former.tick()
    world.run(0.05)
    assert former.term > leader.term
    world.hosts["n2"].crash()
    world.drop = lambda source, target, message: False
    outcomes: list[Outcome] = []
    leader.change_member(remove("n2"), outcomes.append)
    leader.tick()
    world.run_until(lambda: outcomes)
    world.run(12)
    make(world, add("n2", observer=True))
    host, term = world.hosts["n1"], leader.term
    host.sync_delay = 1.0
    world.propose("n1", b"a")
    leader.tick()
    last, outcomes = leader.last_index, world.propose("n1", b"b")
    world.run_until(lambda: leader.last_index > last)
    world.hosts["n2"].start()
    world.run_until(lambda: outcomes)
    assert isinstance(outcomes[0], Committed)
    assert leader.term > term, "it was deposed while it wrote, and has won again"
    is_on_disk = leader.durable_index >= outcomes[0].log_index
    host.crash(power=True)
    host.sync_delay = 0.001
    host.start()
    commit(world, world.elect(), b"c")
    assert host.machine.commands == ([b"a", b"b", b"c"] if defended else [b"a", b"c"])
    assert is_on_disk == defended


@both
def test_the_only_voter_waits_for_what_an_observer_remembers(defended: bool) -> None:
    """The disk of the only voter is rolled back, and opening it takes longer than the election time. The observer, which
    remembers more, introduces itself some milliseconds after the node has begun to listen."""
    world = world_with("introduced_first", defended, 1)
    commit(world, world.elect(), b"old")
    grow(world, "n2", observer=True)
    world.run(1)
    host = world.hosts["n1"]
    image = image_of(host.disk)
    commit(world, world.elect(), b"X")
    world.run(1)
    host.crash()
    host.disk = image
    node = host.start(opening_s=1.0)
    outcomes, reads = world.propose("n1", b"Y"), world.read("n1")
    world.run_until(lambda: node.stopped)
    assert "the disk of the only voter was rolled back" in str(node.failed)
    served = isinstance(outcomes[0], Committed) and isinstance(reads[0], ReadReady)
    assert served == (not defended), "X was acknowledged before, and is not there"


def test_the_only_voter_waits_a_limited_time_for_an_observer() -> None:
    """Two faults: nothing that the observer sends arrives, although it is connected; or the observer is down."""
    world = World(1)
    world.start_all()
    commit(world, world.elect(), b"a")
    grow(world, "n2", observer=True)
    for fault, limit_s in (("mute", CONTACT_SECONDS), ("down", world.config.election_min_ms / 1000)):
        world.hosts["n1"].crash()
        if fault == "down":
            world.hosts["n2"].crash()
        world.cut = {("n2", "n1")}
        node, started = world.hosts["n1"].start(), world.time
        world.run_until(lambda: world.hosts["n1"].node is world.leader)
        assert limit_s <= world.time - started <= limit_s + world.config.election_max_ms / 1000
        commit(world, node, b"b")


def test_the_only_voter_that_is_left_serves_although_states_differed() -> None:
    """Two voters differ, so both refuse everything. The operator removes one of them."""
    world = World(1)
    world.start_all()
    commit(world, world.elect(), b"a")
    wrong = grow(world, "n2")
    leader = world.elect()
    assert leader.node_id == "n1"
    world.hosts["n2"].machine.commands.append(b"bit flip")
    world.run_until(lambda: leader.writes_refused and leader.reads_refused)
    make(world, remove("n2"))
    world.run_until(lambda: wrong.role == "removed")
    world.run_until(lambda: leader.writes_refused is None and leader.reads_refused is None, 5)
    commit(world, leader, b"b")
    assert world.hosts["n1"].machine.commands == [b"a", b"b"]


def test_the_only_voter_that_is_left_without_peers_serves_although_states_differed() -> None:
    """As above, but the only voter compares its state only after the removed node is not a peer any more."""
    world = World(1, RaftConfig(leaving_ms=1))
    world.start_all()
    commit(world, world.elect(), b"a")
    grow(world, "n2")
    leader = world.elect()
    world.hosts["n2"].machine.commands.append(b"bit flip")
    world.run_until(lambda: leader.writes_refused)
    make(world, remove("n2"))
    world.run_until(lambda: not leader.peers)
    world.run_until(lambda: leader.writes_refused is None, 5)
    commit(world, leader, b"b")


def test_an_observer_whose_state_differs_stops_and_fences_nobody() -> None:
    world = World(1)
    world.start_all()
    commit(world, world.elect(), b"a")
    wrong = grow(world, "n2", observer=True)
    equal(world)
    world.hosts["n2"].machine.commands.append(b"bit flip")
    commit(world, world.elect(), b"b")
    world.run_until(lambda: wrong.stopped)
    assert "differs from that of a majority" in str(wrong.failed)
    assert world.elect().writes_refused is None


def test_the_only_voter_does_not_spin_while_its_log_is_synced() -> None:
    """A snapshot ends while a sync of the log is in progress. The core learns of the snapshot after this sync."""
    world = World(1, RaftConfig(compact_entries=20, compact_margin_entries=0))
    world.start_all()
    node, host = world.elect(), world.hosts["n1"]
    request = host.request_sync

    def slow_log(token: int, names: Sequence[str], directory: bool) -> None:
        host.sync_delay = 1.0 if any(name.startswith("log-") for name in names) else 0.001
        request(token, names, directory)

    while not node.taking.running:
        commit(world, node, b"a")
    host.request_sync = slow_log  # type: ignore[method-assign]  # of this world alone
    outcomes = world.propose("n1", b"b")
    node.tick()
    world.run_until(lambda: node.taking.taken)
    steps, start = 0, world.time
    while not outcomes:
        world.step()
        steps += 1
    assert world.time - start > 0.5
    assert steps < 100
    assert node.first_index > 1

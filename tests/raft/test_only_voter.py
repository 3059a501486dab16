"""A cluster with one voter, perhaps with observers: it commits without any other node."""

from replicated_namesrv.raft.interfaces import Committed, Outcome
from tests.raft.test_defences import both, commit, hand_over, world_with
from tests.raft.test_members import add, grow, make, remove


@both
def test_durable_campaign(defended: bool) -> None:
    """The only voter writes on a slow disk. An observer that was a voter, and has campaigned, sends it a higher term. The voter
    must not win its own election before its log is on disk: its leader would commit the whole log at once."""
    world = world_with("durable_campaign", defended, 1)
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
    outcomes = world.propose("n1", b"b")
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

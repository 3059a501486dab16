"""The address at which a node reaches a member: the newest of those that its log and a hint name."""

from replicated_namesrv.raft.member_changes import MemberChange
from replicated_namesrv.raft.raft_messages import Append, AppendReply, Message
from tests.raft.test_lost_memory import others, settle
from tests.raft.test_members import equal, make
from tests.support.raft_world import World


def test_an_address_in_the_log_counts_if_it_is_newer_than_a_hint() -> None:
    """A member moves. The leader, which has not applied this entry, is lost after it sent a hint to a node that returns. This
    node has the entry in its log, and cannot apply it without the member that moved."""
    world = World(3)
    world.start_all()
    make(world, MemberChange("move", "n1", ("first", 1)))
    equal(world)
    settle(world)
    leader = world.elect()
    back, moved = others(world, leader)
    before = leader.last_index + 1

    def is_lost(source: str, target: str, message: Message) -> bool:
        if isinstance(message, AppendReply):
            return message.log_index > (before - 1 if source == back.name else before)
        return isinstance(message, Append) and target == back.name and message.commit_index >= before

    world.drop = is_lost
    leader.propose(b"X", lambda outcome: None)
    leader.tick()
    leader.change_member(MemberChange("move", moved.name, ("second", 1)), lambda outcome: None)
    leader.tick()
    world.run_until(lambda: leader.applied_index == before)
    world.run_until(lambda: all(host.node and host.node.durable_index == before + 1 for host in (back, moved)))
    back.crash()
    node = back.start()
    world.drop = lambda source, target, message: isinstance(message, Append)
    world.run_until(lambda: node.group.hint[0] == before)
    world.hosts[leader.node_id].crash()

    def is_unreachable(source: str, target: str, message: Message) -> bool:
        member = node.group.member(moved.name)
        return (source, target) == (back.name, moved.name) and (member is None or member.host != "second")

    world.drop = is_unreachable
    world.run_until(lambda: world.leader is not None and world.leader.applied_index > before + 1)

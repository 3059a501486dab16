"""The identity file shows by its format that a MEMBERS entry is in the log, so that an older program does not start there."""

import json

from replicated_namesrv.raft.identity import IDENTITY, MEMBERS_VERSION, VERSION
from replicated_namesrv.raft.interfaces import Outcome
from tests.raft.test_members import add
from tests.support.raft_world import Host, World


def format_of(host: Host) -> int:
    """The format of the file that survives a loss of power."""
    return int(json.loads(bytes(host.disk.durable[IDENTITY].synced).split(b"\n")[0])["version"])


def test_an_entry_in_the_log_marks_the_file_before_it_is_durable() -> None:
    """The entry counts for votes at once. If the node went back to a program without such entries, it would count by the
    configuration before the entry."""
    world = World()
    world.start_all()
    leader = world.elect()
    world.run(1)
    follower = next(host for host in world.hosts.values() if host.node is not leader)
    assert follower.node is not None
    assert format_of(follower) == VERSION
    outcomes: list[Outcome] = []
    leader.change_member(add("n4", observer=True), outcomes.append)
    world.run_until(lambda: follower.node is not None and "n4" in follower.node.configuration.members)
    assert follower.node.applied_index < follower.node.log.last_index
    assert follower.node.log.durable_index < follower.node.log.last_index
    assert format_of(follower) == MEMBERS_VERSION

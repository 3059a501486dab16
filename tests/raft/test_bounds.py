"""The memory that a node reports: every size has a bound, and each can be seen to grow."""

from collections import deque

import pytest

from replicated_namesrv.raft.interfaces import Committed
from replicated_namesrv.raft.memory_bounds import exceeded
from replicated_namesrv.raft.raft_config import RaftConfig
from tests.support.raft_world import World

NAMES = {
    "arrived_forwards_bytes",
    "confirmations_asked",
    "confirmations_noted",
    "digests",
    "encoded_bytes",
    "forwards",
    "held_messages",
    "inflight_bytes",
    "inflight_messages",
    "log_buffer_bytes",
    "log_entries",
    "pending_proposals",
    "pending_proposals_bytes",
    "pending_reads",
    "pending_syncs",
    "queued_proposals",
    "read_askers",
    "read_batches",
    "reads_in_flight",
    "placed_proposals",
}


def test_every_size_is_seen_above_nothing_and_within_its_bound() -> None:
    """Without this test, a size that is always 0 by mistake would not be noticed."""
    config = RaftConfig(
        compact_entries=30, compact_margin_entries=5, entry_bytes_max=1, digest_interval_entries=8, uncommitted_bytes_max=2_000
    )
    world = World(3, config)
    world.start_all()
    leader = world.elect()
    world.run_until(lambda: all(node.leader_id == leader.node_id for node in world.nodes))
    seen: dict[str, int] = {}

    def look() -> None:
        for node in world.nodes:
            sizes = node.memory()
            assert set(sizes) == NAMES
            assert not exceeded(sizes)
            for name, (size, bound) in sizes.items():
                assert bound > 0
                seen[name] = max(seen.get(name, 0), size)

    for number in range(40):
        for node in world.nodes:
            world.propose(node.node_id, b"%0200d" % number)
            world.read(node.node_id)
            look()
        for _ in range(20):
            world.step()
            look()
    assert {name for name, size in seen.items() if size == 0} == set()


def test_sizes_beyond_their_bound_are_named() -> None:
    assert exceeded({"a": (1, 1), "b": (2, 1)}) == {"b": (2, 1)}


def test_proposals_that_no_leader_takes_leave_nothing_behind() -> None:
    """There is no leader for hours, and callers continue to send requests."""
    world = World(3, RaftConfig(proposal_timeout_ms=200, pending_proposals_max=500))
    node = world.hosts["n1"].start()
    for number in range(5_000):
        world.propose("n1", b"%d" % number)
        world.run(0.005)
        assert not exceeded(node.memory())
    world.run(1)
    assert node.memory()["queued_proposals"][0] == 0


class FullMemory(deque[int]):
    """A queue for which there is no memory the first time."""

    had_room = False

    def append(self, number: int) -> None:
        if not self.had_room:
            self.had_room = True
            raise MemoryError
        super().append(number)


def test_a_proposal_without_memory_leaves_nothing_behind() -> None:
    """Its number stayed undecided for ever, and after ``pending_proposals_max`` further ones every proposal was rejected."""
    world = World(3, RaftConfig(pending_proposals_max=500))
    world.start_all()
    leader = world.elect()
    leader.proposals._queue = FullMemory(leader.proposals._queue)
    with pytest.raises(MemoryError):
        leader.propose(b"lost", lambda outcome: pytest.fail(f"the caller has got the error already: {outcome}"))
    assert leader.proposals.count == 0
    for number in range(600):
        ended = world.propose(leader.node_id, b"%d" % number)
        world.run_until(lambda: bool(ended))  # noqa: B023 - called within this turn of the loop
        assert isinstance(ended[0], Committed)

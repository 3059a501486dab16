"""From the leader to its followers under steady writes, cut links and slow links: what is sent, how often, and what is kept.

Every schedule continues during writes, because replication must not depend on pauses between writes.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from replicated_namesrv.raft.interfaces import Committed, Outcome
from replicated_namesrv.raft.memory_bounds import exceeded
from replicated_namesrv.raft.raft_config import Defences, RaftConfig
from replicated_namesrv.raft.raft_messages import Append, AppendReply, Message, SnapshotAck, SnapshotChunk, decode, encode
from replicated_namesrv.raft.raft_node import RaftNode
from replicated_namesrv.raft.replication import ENCODED_BYTES_MAX
from tests.raft.test_lost_memory import lagging_behind_snapshot
from tests.support.raft_world import Disk, Host, World

both = pytest.mark.parametrize("defended", [True, False], ids=["with", "without"])
SMALL: dict[str, Any] = {"compact_entries": 30, "compact_margin_entries": 5, "entry_bytes_max": 1, "snapshot_slice_bytes": 64}
"""Snapshots after a few entries, of many chunks."""


def world_of(size: int = 3, without: str | None = None, **config: Any) -> World:
    defences = Defences() if without is None else Defences.without(without)
    world = World(size, RaftConfig(defences=defences, **config))
    world.start_all()
    return world


def commit(world: World, leader: RaftNode, count: int) -> None:
    outcomes = [world.propose(leader.node_id, b"%0100d" % number) for number in range(count)]
    world.run_until(lambda: all(outcomes))
    assert all(isinstance(outcome[0], Committed) for outcome in outcomes)


class Writes:
    """Writes at the leader at a fixed interval, until it is stopped."""

    def __init__(self, world: World, leader: RaftNode, pause_seconds: float) -> None:
        self._world, self._leader, self._pause = world, leader, pause_seconds
        self.stopped = False
        self.count = 0
        self._write()

    def _write(self) -> None:
        if not self.stopped:
            self.count += 1
            self._world.propose(self._leader.node_id, b"%0100d" % self.count)
            self._world.hosts[self._leader.node_id].wake()
            self._world.later(self._pause, self._write)


def slow_links(world: World, name: str, seconds: float) -> Callable[[float], None]:
    """Delay messages from and to ``name`` by this time one way. Returns a function that changes the delay."""
    delays = [seconds]
    transmit = world.transmit

    def slow(source: Host, target: str, message: Message) -> None:
        usual = world.delay
        if name in (source.name, target):
            world.delay = delays[0]
        try:
            transmit(source, target, message)
        finally:
            world.delay = usual

    world.transmit = slow  # type: ignore[method-assign]  # of this world alone
    return lambda changed: delays.__setitem__(0, changed)


def with_learner(without: str | None, one_way_seconds: float) -> tuple[World, RaftNode, RaftNode, Callable[[float], None]]:
    """Three nodes, one of which has lost its disk and has a slow link; a write every 5 ms."""
    world = world_of(without=without)
    leader = world.elect()
    commit(world, leader, 10)
    lost = next(host for host in world.hosts.values() if host.node is not leader)
    lost.crash()
    lost.disk = Disk()
    set_delay = slow_links(world, lost.name, one_way_seconds)
    Writes(world, leader, 0.005)
    return world, leader, lost.start(), set_delay


# Learners


@both
def test_a_learner_is_promoted_while_writes_go_on(defended: bool) -> None:
    """Dissertation, 4.2.1. The learner never has everything that is committed at this moment, because four more writes are always
    on the way."""
    world, leader, learner, _ = with_learner(None if defended else "promotion_rounds", 0.010)
    if defended:
        world.run_until(lambda: leader.voters[learner.node_id] == learner.incarnation, 2)
        world.run_until(lambda: learner.role == "follower", 1)
    else:
        world.run(5)
        assert learner.role == "learner"


@pytest.mark.slow
def test_a_learner_that_falls_behind_is_not_promoted() -> None:
    """Dissertation, 4.2.1. An answer takes longer than an election, so the learner could neither vote nor acknowledge in time."""
    world, leader, learner, set_delay = with_learner(None, 0.350)
    world.run(8)
    assert learner.last_index > 1_000, "it does receive what is written"
    assert learner.role == "learner"
    assert leader.role == "leader"
    set_delay(0.002)
    world.run_until(lambda: learner.role == "follower", 2)


# Followers that do not answer


def deaf_leader(world: World, leader: RaftNode, name: str) -> Counter[str]:
    """No message of ``name`` reaches the leader; counts the messages sent to it."""
    sent: Counter[str] = Counter()

    def drop(source: str, target: str, message: Message) -> bool:
        if target == name and source == leader.node_id and isinstance(message, SnapshotChunk | Append):
            sent["messages"] += 1
            sent["bytes"] += len(message.data if isinstance(message, SnapshotChunk) else message.entries)
        return (source, target) == (name, leader.node_id)

    world.drop = drop
    return sent


def behind_a_snapshot(world: World, entries: int = 120) -> tuple[RaftNode, RaftNode]:
    """Leader, and a follower that is cut off and needs a snapshot."""
    leader = world.elect()
    lagging = next(node for node in world.nodes if node is not leader)
    world.isolate(lagging.node_id)
    for _ in range(0, entries, 20):
        commit(world, leader, 20)
    world.run_until(lambda: leader.log.base_index > lagging.last_index)
    return leader, lagging


@pytest.mark.slow
@pytest.mark.parametrize("needs_snapshot", [True, False], ids=["snapshot", "entries"])
def test_what_is_kept_for_a_mute_follower_does_not_grow(needs_snapshot: bool) -> None:
    """A one-way cut of half a minute. The follower is sent heartbeats, so that it does not campaign, and one window of data."""
    world = world_of(**SMALL, inflight_messages_max=8)
    leader, lagging = behind_a_snapshot(world) if needs_snapshot else (world.elect(), None)
    if lagging is None:
        lagging = next(node for node in world.nodes if node is not leader)
    sent = deaf_leader(world, leader, lagging.node_id)
    world.heal()
    writes = Writes(world, leader, 0.050)
    term, progress = leader.term, leader.followers.progress[lagging.node_id]
    world.run(15)
    kept, messages, size = len(progress.inflight), sent["messages"], sent["bytes"]
    world.run(15)
    assert len(progress.inflight) == kept <= 8 + 64
    assert sent["messages"] - messages >= 15 * 15, "heartbeats flow"
    assert sent["bytes"] - size < 10 * 64, "and little else"
    assert (leader.role, leader.term) == ("leader", term)
    world.drop = lambda source, target, message: False
    writes.stopped = True
    world.run_until(lambda: lagging.applied_index == leader.applied_index, 3)


def test_without_the_bound_unanswered_messages_are_remembered_for_ever() -> None:
    """The schedule of the test above. Without the defence the list itself exceeds its bound, which the simulator's invariant
    checks, too."""
    world = world_of(without="inflight_bound", **SMALL, inflight_messages_max=8)
    leader, lagging = behind_a_snapshot(world)
    deaf_leader(world, leader, lagging.node_id)
    world.heal()
    world.run(8)
    kept = len(leader.followers.progress[lagging.node_id].inflight)
    assert kept > 8 + 64
    assert exceeded(leader.memory()) == {"inflight_messages": (kept, 8 + 64)}


@pytest.mark.slow
@pytest.mark.parametrize("kind", [SnapshotChunk, Append])
def test_what_is_lost_again_and_again_is_sent_less_and_less_often(kind: type) -> None:
    """Heartbeats and their answers arrive, but data never does. In the end it is sent once in 16 heartbeats."""
    check_what_is_lost(kind, None, 60)


def test_without_back_off_what_is_lost_is_sent_with_every_heartbeat() -> None:
    with pytest.raises(AssertionError, match="sent again"):
        check_what_is_lost(Append, "resend_backoff", 10)


@both
def test_conflicts_without_effect_are_answered_with_the_next_heartbeat(defended: bool) -> None:
    """A follower answers every probe with the same conflict."""
    world = world_of(without=None if defended else "resend_backoff")
    leader = world.elect()
    commit(world, leader, 10)
    name = next(node for node in world.nodes if node is not leader).node_id
    probes, transmit = 0, world.transmit

    def always_in_conflict(source: Host, target: str, message: Message) -> None:
        nonlocal probes
        probes += target == name and isinstance(message, Append)
        if source.name == name and isinstance(message, AppendReply):
            message = message._replace(success=False)
        transmit(source, target, message)

    world.transmit = always_in_conflict  # type: ignore[method-assign]  # of this world alone
    world.run(5)
    assert leader.role == "leader"
    heartbeats = 5 / leader.context.heartbeat_seconds
    assert heartbeats * 0.8 < probes
    assert (probes < heartbeats * 1.2) == defended
    world.transmit = transmit  # type: ignore[method-assign]  # of this world alone
    commit(world, leader, 10)
    follower = world.hosts[name].node
    world.run_until(lambda: follower is not None and follower.applied_index == leader.applied_index)


def check_what_is_lost(kind: type, without: str | None, seconds: float) -> None:
    """Drop all data that goes to one follower for this time. Afterwards it arrives again."""
    world = world_of(without=without, **SMALL, inflight_messages_max=8)
    leader, lagging = behind_a_snapshot(world) if kind is SnapshotChunk else (world.elect(), None)
    if lagging is None:
        lagging = next(node for node in world.nodes if node is not leader)
    first = Counter[int]()

    def drop(source: str, target: str, message: Message) -> bool:
        match message:
            case SnapshotChunk():
                place, data = message.offset, message.data
            case Append():
                place, data = message.previous_index, message.entries
            case _:
                return False
        if target != lagging.node_id or not data:
            return False
        first[place] += 1
        return True

    world.drop = drop
    world.heal()
    Writes(world, leader, 0.050)
    term = leader.term
    world.run(seconds / 2)
    before = first.total()
    world.run(seconds / 2)
    assert 10 < max(first.values()) <= 5 + seconds / 0.75, "sent again too often, or too seldom"
    assert first.total() - before <= 8 * (1 + seconds / 2 / 0.75)
    assert (leader.role, leader.term) == ("leader", term)
    world.drop = lambda source, target, message: False
    world.run_until(lambda: lagging.applied_index >= leader.applied_index - 2, 3)


def test_acknowledgements_after_a_long_silence_renew_the_lease() -> None:
    """Only the newest unanswered heartbeats are remembered. Their answers must still count."""
    world = world_of(lease_reads=True)
    leader = world.elect()
    world.drop = lambda source, target, message: target == leader.node_id and isinstance(message, AppendReply)
    world.run(0.25)
    assert all(len(progress.inflight) > 3 for progress in leader.followers.progress.values())
    world.drop = lambda source, target, message: False
    world.run_until(leader.lease_valid, 0.1)


# Snapshots under steady writes


@pytest.mark.slow
@both
def test_one_snapshot_is_enough_while_writes_go_on(defended: bool) -> None:
    """While the snapshot travels, more is written than a compaction keeps: the log behind the snapshot must stay."""
    settings = SMALL | {"snapshot_slice_bytes": 512, "inflight_messages_max": 1}
    world = world_of(without=None if defended else "transfer_log", **settings)
    leader, lagging = behind_a_snapshot(world)
    slow_links(world, lagging.node_id, 0.010)
    Writes(world, leader, 0.004)
    taken = leader.taking.taken
    world.heal()
    world.run(4)
    installed = lagging.receiving.installed
    assert leader.taking.taken > taken + 3
    if defended:
        assert installed == 1
        assert leader.last_index - lagging.last_index < 20
        world.run_until(lambda: leader.last_index - leader.first_index <= world.config.compact_entries, 2)
    else:
        assert installed > 1


def test_chunks_do_not_wait_for_round_trips() -> None:
    """A snapshot of a hundred chunks over a link with a round trip of 20 ms."""
    world = world_of(**SMALL)
    leader, lagging = behind_a_snapshot(world)
    slow_links(world, lagging.node_id, 0.010)
    assert leader.snapshots.current is not None
    chunks = leader.snapshots.current.size // 64
    assert chunks > 100
    world.heal()
    began = world.time
    world.run_until(lambda: lagging.receiving.installed, 20)
    assert world.time - began < chunks * 0.020 / 4


def test_a_snapshot_in_flight_is_bounded_in_bytes_and_messages() -> None:
    world = world_of(**SMALL, snapshot_window_bytes=1_000, inflight_messages_max=12)
    leader, lagging = behind_a_snapshot(world)
    slow_links(world, lagging.node_id, 0.010)
    progress = leader.followers.progress[lagging.node_id]
    most = [0, 0]

    def watch() -> bool:
        if progress.snapshot is not None:
            most[0] = max(most[0], progress.inflight.bytes)
            most[1] = max(most[1], progress.inflight.with_data)
        return lagging.receiving.installed > 0

    world.heal()
    world.run_until(watch)
    assert 12 * 64 == most[0] <= 1_000
    assert most[1] == 12


@pytest.mark.parametrize("lost", [2, 7, 30])
def test_a_lost_chunk_is_sent_again_and_nothing_else_changes(lost: int) -> None:
    """The follower ignores chunks after the gap, and reports the offset of the gap."""
    world = world_of(**SMALL)
    leader, lagging = behind_a_snapshot(world)
    seen = Counter[int]()

    def drop(source: str, target: str, message: Message) -> bool:
        if not isinstance(message, SnapshotChunk) or not message.data:
            return False
        seen[message.offset] += 1
        return seen.total() == lost

    world.drop = drop
    world.heal()
    world.run_until(lambda: lagging.receiving.installed, 3)
    world.run_until(lambda: lagging.applied_index == leader.applied_index, 3)
    assert max(seen.values()) == 2


def test_a_dead_follower_cannot_keep_the_log() -> None:
    """The follower answers the first chunks of its snapshot and then stops answering, but its connection stays open."""
    world = world_of(**SMALL, transfer_silence_ms=2_000, inflight_messages_max=4)
    leader, lagging = behind_a_snapshot(world)
    progress = leader.followers.progress[lagging.node_id]
    world.heal()
    world.run_until(lambda: progress.transfer is not None and progress.transfer.acknowledged > 0)
    kept_from = progress.kept_from
    assert kept_from is not None
    world.drop = lambda source, target, message: source == lagging.node_id
    Writes(world, leader, 0.010)
    world.run(1.5)
    assert leader.first_index <= kept_from
    assert leader.last_index - kept_from > 3 * world.config.compact_entries
    world.run(1.5)
    assert leader.last_index - leader.first_index <= 2 * world.config.compact_entries
    assert leader.counters["transfers_given_up"] == 1
    world.run(5)
    assert leader.counters["transfers_given_up"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("bound", [{"transfer_log_entries_max": 100}, {"transfer_log_bytes_max": 20_000}])
def test_a_transfer_that_is_too_slow_for_the_writes_is_given_up(bound: dict[str, int]) -> None:
    """The log stays within its bound. When writes pause, the follower catches up."""
    world = world_of(**SMALL | {"snapshot_slice_bytes": 1_024, "inflight_messages_max": 1} | bound)
    leader, lagging = behind_a_snapshot(world)
    slow_links(world, lagging.node_id, 0.020)
    writes = Writes(world, leader, 0.004)
    world.heal()
    longest = 0
    for _ in range(200):
        world.run(0.02)
        longest = max(longest, leader.last_index - leader.first_index)
    assert leader.counters["transfers_given_up"] > 0
    assert longest < 300
    writes.stopped = True
    world.run_until(lambda: lagging.applied_index == leader.applied_index, 60)


@pytest.mark.slow
def test_a_kept_log_does_not_cause_one_snapshot_after_the_other() -> None:
    """PySyncObj wants a snapshot at every tick while the log is long."""
    world = world_of(**SMALL, inflight_messages_max=1)
    leader, lagging = behind_a_snapshot(world)
    slow_links(world, lagging.node_id, 0.050)
    Writes(world, leader, 0.004)
    world.heal()
    world.run(1)
    assert leader.followers.progress[lagging.node_id].kept_from is not None
    before, from_index = leader.taking.taken, leader.last_index
    world.run(4)
    entries = leader.last_index - from_index
    assert leader.last_index - leader.first_index > 500
    assert leader.taking.taken - before <= 1 + entries / (world.config.compact_entries - world.config.compact_margin_entries)


# Encoded entries


@pytest.mark.slow
@both
def test_encoded_entries_are_bounded_in_bytes_and_released(defended: bool) -> None:
    """Sixteen large commands, one message each."""
    world = world_of(without=None if defended else "encoded_bound")
    leader = world.elect()
    encoded, most = leader.replication._encoded, 0
    for _ in range(16):
        outcome = world.propose(leader.node_id, b"x" * 3_000_000)
        while not outcome:
            world.step()
            most = max(most, encoded.bytes)
    world.run(0.2)
    if not defended:
        assert encoded.bytes > 10 * 3_000_000
        assert "encoded_bytes" in exceeded(leader.memory())
        return
    assert 3_000_000 <= most <= 3_000_000 + ENCODED_BYTES_MAX
    assert not encoded
    assert leader.memory()["encoded_bytes"][0] == 0


def test_a_deposed_leader_releases_encoded_entries() -> None:
    world = world_of()
    leader = world.elect()
    commit(world, leader, 3)
    assert leader.replication._encoded
    world.isolate(leader.node_id)
    world.run_until(lambda: leader.role != "leader")
    assert not leader.replication._encoded


def test_followers_in_step_share_one_encoding() -> None:
    """Encoded once, though sent to four."""
    world = world_of(5)
    leader = world.elect()
    world.run(0.5)
    sent = set[int]()
    kept = list[bytes]()

    def watch(source: str, target: str, message: Message) -> bool:
        if isinstance(message, Append) and message.entries:
            kept.append(message.entries)  # so that no identity is used twice
            sent.add(id(message.entries))
        return False

    world.drop = watch
    commit(world, leader, 1)
    assert len(kept) == 4
    assert len(sent) == 1


def test_an_acknowledgement_of_an_older_connection_moves_no_transfer() -> None:
    """A late acknowledgement may name an offset that the follower no longer has."""
    world = world_of(**SMALL)
    leader, lagging = behind_a_snapshot(world)
    progress = leader.followers.progress[lagging.node_id]
    world.heal()
    world.run_until(lambda: progress.transfer is not None and progress.transfer.acknowledged > 640)
    world.disconnect(leader.node_id, lagging.node_id)
    world.connect(leader.node_id, lagging.node_id)
    transfer = progress.transfer
    assert transfer is not None
    offset = transfer.acknowledged
    index = transfer.snapshot.last_index
    late = SnapshotAck(lagging.incarnation, leader.incarnation, leader.term, progress.floor, index, offset + 6_400)
    leader.on_message(lagging.node_id, late)
    assert transfer.acknowledged == offset


def share_uplinks(world: World, bytes_per_second: float) -> None:
    """A node's messages share one line of this speed, one after the other."""
    free = dict.fromkeys(world.names, 0.0)

    def queued(source: Host, target: str, message: Message) -> None:
        if (source.name, target) not in world.links:
            return
        frame = encode(message)
        free[source.name] = max(world.time, free[source.name]) + len(frame) / bytes_per_second
        deliver = world._deliver
        world.later(free[source.name] - world.time + world.delay, lambda: deliver(source.name, target, decode(frame)))

    world.transmit = queued  # type: ignore[method-assign]  # of this world alone


def test_full_windows_on_a_slow_line_depose_no_leader() -> None:
    """On a link of 100 Mbit/s, two full windows take longer than an election time. Answers arrive continuously, but each one is
    older than an election time."""
    world = world_of()
    share_uplinks(world, 100e6 / 8)
    leader = world.elect()
    term = leader.term
    outcomes: list[Outcome] = []
    proposed = 0
    while len(outcomes) < 1_500:
        while proposed < len(outcomes) + 600:
            proposed += 1
            leader.propose(b"%016000d" % proposed, outcomes.append)
        leader.tick()
        world.run(0.02)
    assert (leader.role, leader.term) == ("leader", term)
    assert all(isinstance(outcome, Committed) for outcome in outcomes)


def test_proposals_of_a_follower_that_applies_nothing_are_not_kept() -> None:
    """The follower proposes, and the leader commits, but the snapshot that the follower needs is lost again and again. The
    follower forgets the log positions of its proposals after they have ended."""
    world, leader, lagging = lagging_behind_snapshot()
    world.drop = lambda source, target, message: isinstance(message, SnapshotChunk) and bool(message.data)
    world.heal()
    world.run(1)
    node, ended = lagging.node, list[Outcome]()
    assert node is not None
    for _ in range(600):
        node.propose(b"x", ended.append, 500)
        world.run(0.01)
    assert leader.commit_index > 600, "they are committed"
    assert len(ended) > 500
    assert len(node.proposals.placed) < 300
    assert not exceeded(node.memory())

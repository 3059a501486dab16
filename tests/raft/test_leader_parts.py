"""Parts of a leader, and of a follower that receives entries, built without a node and without PySyncObj."""

from dataclasses import dataclass, field

import pytest

from replicated_namesrv.raft.appending import Appending
from replicated_namesrv.raft.compaction import Compaction
from replicated_namesrv.raft.configuration import Configuration
from replicated_namesrv.raft.entry_log import Entry
from replicated_namesrv.raft.followers import Followers
from replicated_namesrv.raft.identity import MEMBER, Identity
from replicated_namesrv.raft.interfaces import Committed, Outcome, Rejected
from replicated_namesrv.raft.member_changes import MemberChange, MemberChanges
from replicated_namesrv.raft.membership import Membership
from replicated_namesrv.raft.outbox import Outbox
from replicated_namesrv.raft.payloads import NO_OP, pack_entries
from replicated_namesrv.raft.progress import PROBE, REPLICATE, SNAPSHOT
from replicated_namesrv.raft.promotion import Promotion
from replicated_namesrv.raft.proposals import Proposals
from replicated_namesrv.raft.raft_messages import PROTOCOL, Append, AppendReply, Greeting, Introduction, Message, SnapshotChunk
from replicated_namesrv.raft.replication import Replication
from replicated_namesrv.raft.sessions import Origin, Sessions
from replicated_namesrv.raft.snapshot_receiving import SnapshotReceiving
from replicated_namesrv.raft.snapshot_sending import SnapshotSending
from replicated_namesrv.raft.snapshot_taking import SnapshotTaking
from replicated_namesrv.raft.snapshots import SnapshotStore
from replicated_namesrv.raft.standing import PeerMemories, Standing
from tests.raft.test_parts import TERM, Bench, Core
from tests.support.raft_world import Machine

FOUNDERS = {"a": 1, "b": 1, "c": 1}


@dataclass
class LogCore(Core):
    """A core that appends proposals to the log of its bench."""

    bench: "LeaderBench | None" = field(default=None, repr=False)

    def propose(self, payload: bytes) -> int:
        assert self.bench is not None
        log = self.bench.log
        log.add(payload, log.last_index + 1, self.term)
        return log.last_index

    def acknowledged(self, peer: str, index: int) -> None:
        self.calls.append(("acknowledged", peer, index))

    def follower_contact(self, peer: str) -> None:
        self.calls.append(("follower_contact", peer))

    def forget(self, peer: str) -> None:
        self.calls.append(("forget", peer))

    def force_compaction(self) -> None:
        self.calls.append(("force_compaction",))

    def leader_contact_without_entries(self, peer: str, term: int) -> None:
        self.calls.append(("leader_contact_without_entries", peer, term))

    def install_snapshot(self, peer: str, term: int, previous: tuple[int, int], last: tuple[int, int]) -> None:
        self.calls.append(("install_snapshot", peer, last))

    def append(
        self, peer: str, term: int, commit_index: int, previous_index: int, previous_term: int, entries: list[Entry]
    ) -> None:
        self.calls.append(("append", previous_index, [index for _, index, _ in entries]))


class LeaderBench(Bench):
    """The parts of node a, which leads, has entries 1 and 2 on its disk, and is connected to b and c."""

    def __init__(self) -> None:
        super().__init__()
        self.core: LogCore = LogCore(is_leader=True, bench=self)
        self.outbox = Outbox(lambda peer, message: self.sent.append((peer, message)), self.group, self.log, self.core)
        for index in (1, 2):
            self.log.add(NO_OP, index, TERM)
        self.sync()
        self.core.commit_index = self.core.applied_index = 2
        context, core, log = self.context, self.core, self.log
        self.configuration = Configuration(FOUNDERS, True)
        self.memories = PeerMemories(context.peers, self.configuration)
        self.followers = Followers(context.peers, core, log, self.memories, self.config)
        self.machine, self.sessions = Machine(), Sessions()
        self.snapshots = SnapshotStore(self.host.disk, "test")
        self.taking = SnapshotTaking(
            context, log, self.host.disk, self.syncs, self.machine, self.sessions, self.configuration, self.snapshots,
            self.followers.snapshots_in_use,
        )  # fmt: skip  # items grouped by line
        self.compaction = Compaction(context, core, log, self.followers, self.snapshots, self.taking, self.stall)
        self.promotion = Promotion(context, core, log, self.configuration, self.stall)
        sending = SnapshotSending(
            context, core, self.followers, self.outbox, self.compaction, self.snapshots, self.host.disk, lambda peer: 1
        )
        self.replication = Replication(
            context, core, log, self.followers, self.group, self.outbox, self.leadership, self.compaction, sending,
            self.promotion, self.configuration.takes_vote_of,
        )  # fmt: skip  # items grouped by line
        for peer in context.peers:
            self.followers.new_incarnation(peer, 1)
            self.followers.connected(peer)
        self.replication.lead()
        core.calls.clear()

    def sync(self) -> None:
        self.log.begin_sync()
        self.log.complete_sync()

    def follow(self) -> None:
        """b answers a probe: its log ends where the leader's log ends."""
        self.replication.heartbeat()
        probe = next(message for peer, message in self.take_sent() if peer == "b" and isinstance(message, Append))
        self.replication.on_append_reply("b", AppendReply(1, 1, TERM, probe.sequence, True, 2))


@pytest.fixture
def leader() -> LeaderBench:
    return LeaderBench()


def test_replication_sends_entries_and_reports_durable_matches(leader: LeaderBench) -> None:
    """Raft 5.3. The leader's own disk is slower than b, so the core may count b only up to the leader's durable index."""
    assert leader.followers.progress["b"].state == PROBE
    leader.follow()
    assert leader.followers.progress["b"].state == REPLICATE
    leader.core.propose(NO_OP)
    leader.replication.tick()
    (append,) = [message for peer, message in leader.take_sent() if peer == "b" and isinstance(message, Append)]
    assert append.previous_index == 2
    leader.core.calls.clear()
    leader.replication.on_append_reply("b", AppendReply(1, 1, TERM, append.sequence, True, 3))
    assert ("acknowledged", "b", 3) not in leader.core.calls
    leader.sync()
    leader.replication.on_log_synced()
    assert ("acknowledged", "b", 3) in leader.core.calls


def test_follower_skips_entries_that_it_has(leader: LeaderBench) -> None:
    """Raft 5.3: a repeated append cuts nothing."""
    leader.core.is_leader = False
    appending = Appending(leader.context, leader.core, leader.log, leader.elections(), leader.leadership, leader.outbox)
    entries = pack_entries([(NO_OP, 2, TERM), (NO_OP, 3, TERM)])
    appending.on_append("b", Append(1, 1, TERM, 1, 1, TERM, 2, 0, entries))
    assert leader.core.calls[-1] == ("append", 2, [3])


def test_proposal_ends_when_its_entry_is_applied(leader: LeaderBench) -> None:
    proposals = Proposals(
        leader.context, Origin("a", 1, 1), leader.core, leader.log, leader.group, leader.configuration, leader.outbox,
        leader.leadership, leader.sessions, leader.machine, lambda: True, lambda: None, lambda peer, incarnation: 1,
        lambda peer: True,
    )  # fmt: skip  # items grouped by line
    leader.leadership.recognise("a", TERM)
    outcomes: list[Outcome] = []
    proposals.propose(b"x", outcomes.append, 1_000)
    proposals.tick(leader.world.time)
    ((payload, index, _),) = leader.log.entries(3, 1)
    for _ in range(2):  # a copy of the entry is not applied
        proposals.apply(index, payload)
    assert outcomes == [Committed(1, 3, TERM)]
    assert leader.machine.commands == [b"x"]


def finish_syncs(bench: Bench) -> None:
    """The disk has done what was requested."""
    for token in list(bench.syncs._pending):
        if (then := bench.syncs.completed(token)) is not None:
            then()


def test_snapshot_is_taken_sent_and_received(leader: LeaderBench) -> None:
    """The receiver writes the file, restores the state in steps, and installs it with the next message of the leader."""
    leader.machine.commands = [b"x"]
    leader.taking.begin(*leader.log.entries(1, 2))
    while leader.taking.running and not leader.taking.is_done:
        leader.taking.tick()
        finish_syncs(leader)
    leader.follow()
    leader.followers.progress["b"].become_snapshot()
    leader.replication.heartbeat()
    (chunk,) = [message for peer, message in leader.take_sent() if peer == "b" and isinstance(message, SnapshotChunk)]
    assert leader.followers.progress["b"].state == SNAPSHOT

    bench, core, machine, installed = Bench(), LogCore(commit_index=0), Machine(), list[int]()
    receiving = SnapshotReceiving(
        bench.context, core, bench.log, bench.host.disk, bench.syncs, machine, Sessions(), Configuration(FOUNDERS, True),
        SnapshotStore(bench.host.disk, "test"), bench.elections(), bench.outbox, lambda index, members: None, installed.append,
    )  # fmt: skip  # items grouped by line
    receiving.on_chunk("a", chunk)
    finish_syncs(bench)
    while receiving.wants_tick:
        receiving.tick()
    finish_syncs(bench)
    assert installed == []
    receiving.on_chunk("a", chunk._replace(sequence=chunk.sequence + 1, data=b"", offset=chunk.total))
    assert installed == [2]
    assert core.calls[-1] == ("install_snapshot", "a", (2, TERM))
    assert machine.commands == [b"x"]


def test_changes_of_members_wait_for_a_leader_and_the_first_commit(leader: LeaderBench) -> None:
    changes = MemberChanges(
        leader.context, leader.core, leader.log, leader.configuration, leader.followers, leader.leadership, leader.promotion,
        leader.transfer(), lambda peer: 2, {name: (name, 1) for name in FOUNDERS},
    )  # fmt: skip  # items grouped by line
    outcomes: list[Outcome] = []
    change = MemberChange("add", "d", ("d", 1), observer=True)
    leader.core.is_leader = False
    changes.request(change, outcomes.append)
    assert isinstance(outcomes.pop(), Rejected)
    leader.core.is_leader = True
    assert changes.refusal(change) is not None, "no voter has answered yet"
    leader.follow()
    assert changes.refusal(change) is None
    changes.request(change, outcomes.append)
    leader.core.commit_index = 3
    changes.applied(3)
    assert outcomes == [Committed(None, 3, TERM)]


def test_membership_accepts_a_process_that_echoes_its_introduction(leader: LeaderBench) -> None:
    """A greeting alone may be a late copy. The peer is accepted when its introduction answers one of ours."""
    sent: list[Message] = []
    leader.host.send = lambda peer, message: sent.append(message)  # type: ignore[method-assign]  # of this host alone
    identity = Identity(leader.host.disk, "a", "test", sorted(FOUNDERS), 1)
    identity.state, identity.founders = MEMBER, FOUNDERS
    membership = Membership(
        leader.context, identity, leader.configuration, leader.log, leader.followers, leader.memories, lambda: None,
        lambda reason: None, lambda: TERM, lambda: 0,
    )  # fmt: skip  # items grouped by line
    membership.on_greeting("b", Greeting(1, MEMBER, tuple(FOUNDERS.items()), 1, PROTOCOL << 16 | 1))
    (ours,) = [message for message in sent if isinstance(message, Introduction)]
    theirs = Introduction(1, 1, 7, 1, 1, 0, 0, 1, TERM, 2, 1, 1, 1, Standing.PENDING, 0, 0, 0)
    membership.on_introduction("b", theirs)
    assert membership.known == {}
    membership.on_introduction("b", theirs._replace(sequence=2, echo_process=ours.process, echo_sequence=ours.sequence + 1))
    assert membership.known == {"b": 1}
    settled = []
    again = theirs._replace(echo_process=ours.process, standing=Standing.ACCEPTED)
    for sequence, process, standing in (
        (3, 7, Standing.ACCEPTED), (4, 7, Standing.ACCEPTED), (5, 7, Standing.ACCEPTED),
        (6, 7, Standing.CONTESTED), (7, 7, Standing.ACCEPTED), (8, 7, Standing.ACCEPTED), (9, 8, Standing.ACCEPTED),
    ):  # fmt: skip  # items grouped by line
        echo = membership._sent["b"][-1]
        membership.on_introduction("b", again._replace(sequence=sequence, process=process, echo_sequence=echo, standing=standing))
        settled.append(membership.is_settled)
    assert settled == [False, True, True, False, False, True, False], "the service ticks after the others"

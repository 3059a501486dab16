"""Parts of a node, each built alone: their decisions and their messages, without the other parts."""

from dataclasses import dataclass, field

import pytest

from replicated_namesrv.raft.configuration import Configuration
from replicated_namesrv.raft.digests import REMEMBERED_INDEXES, Digests
from replicated_namesrv.raft.elections import Elections
from replicated_namesrv.raft.entry_log import Log
from replicated_namesrv.raft.interfaces import ReadOutcome, ReadReady, Rejected
from replicated_namesrv.raft.leadership import Leadership
from replicated_namesrv.raft.node_context import NodeContext
from replicated_namesrv.raft.outbox import Outbox
from replicated_namesrv.raft.raft_config import RaftConfig
from replicated_namesrv.raft.raft_errors import InvariantError
from replicated_namesrv.raft.raft_messages import (
    AppendReply,
    DigestReport,
    HigherTerm,
    Message,
    PreVote,
    PreVoteReply,
    ReadAck,
    ReadProbe,
    TimeoutNow,
    VoteReply,
)
from replicated_namesrv.raft.read_index import ReadIndex
from replicated_namesrv.raft.stall import Stall
from replicated_namesrv.raft.standing import PeerMemories
from replicated_namesrv.raft.syncs import Syncs
from replicated_namesrv.raft.transfer_leadership import LeadershipTransfer
from tests.support.raft_world import Disk, Host, World

TERM = 5


@dataclass
class Core:
    """A consensus core that has the state it is given, and records its calls."""

    term: int = TERM
    is_leader: bool = False
    commit_index: int = 1
    applied_index: int = 1
    calls: list[tuple[object, ...]] = field(default_factory=list)

    def start_election(self) -> None:
        self.calls.append(("start_election",))

    def vote_request(self, peer: str, term: int, last_index: int, last_term: int) -> None:
        self.calls.append(("vote_request", peer, term))

    def vote_granted(self, peer: str, term: int) -> None:
        self.calls.append(("vote_granted", peer, term))

    def observe_term(self, peer: str, term: int) -> None:
        self.calls.append(("observe_term", peer, term))

    def transfer_leadership(self, peer: str) -> None:
        self.calls.append(("transfer_leadership", peer))

    def step_down(self) -> None:
        self.calls.append(("step_down",))


class Group:
    """Nodes a, b and c; all incarnations are 1 and vote. Implements ``Voters``, ``Addresses`` and ``Targets``."""

    is_voter = may_propose = True
    is_silent = False
    incarnation = 1
    caught_up = True

    def __init__(self) -> None:
        self.known = {"b": 1, "c": 1}

    def counts(self, peer: str, incarnation: int) -> bool:
        return incarnation == 1

    def counts_now(self, peer: str) -> bool:
        return True

    def may_send(self, peer: str, kind: type[Message]) -> bool:
        return True

    def furthest_voter(self) -> str | None:
        return "c"

    def has_all(self, peer: str) -> bool:
        return self.caught_up


class Bench:
    """The objects that any part of node a needs."""

    def __init__(self, config: RaftConfig | None = None) -> None:
        self.world = World()
        self.host = Host(self.world, "a")
        self.config = config or RaftConfig()
        self.context = NodeContext("a", ["a", "b", "c"], "test", self.host, self.config)
        self.core, self.group, self.log = Core(), Group(), Log(Disk())
        self.sent: list[tuple[str, Message]] = []
        self.outbox = Outbox(lambda peer, message: self.sent.append((peer, message)), self.group, self.log, self.core)
        self.leadership = Leadership(self.config, self.world.time)
        self.syncs = Syncs(self.host)
        self.stall = Stall(self.context, self.syncs)

    def elections(self) -> Elections:
        memories = PeerMemories(self.context.peers, Configuration({}, True))
        terms: list[int] = []
        return Elections(
            self.context, self.core, self.log, self.group, memories, self.outbox, self.leadership, self.stall, terms.append
        )

    def transfer(self) -> LeadershipTransfer:
        return LeadershipTransfer(self.context, self.core, self.group, self.group, self.outbox, self.leadership, self.stall)

    def reads(self) -> ReadIndex:
        return ReadIndex(
            self.context, self.core, self.log, self.group, self.outbox, self.leadership, lambda peer: None, lambda: 0.0,
            lambda: None, 0,
        )  # fmt: skip  # items grouped by line

    def take_sent(self) -> list[tuple[str, Message]]:
        sent = self.sent[:]
        self.sent.clear()
        return sent


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_outbox_holds_promises_until_they_are_durable(bench: Bench) -> None:
    vote = VoteReply(1, 1, TERM)
    bench.outbox.send_when_durable(bench.log.durable_number, "b", vote)
    assert bench.take_sent() == [("b", vote)]
    bench.outbox.send_when_durable(bench.log.durable_number + 1, "b", vote)
    bench.outbox.release()
    assert bench.take_sent() == []
    bench.log.durable_number += 1
    bench.outbox.release()
    assert bench.take_sent() == [("b", vote)]
    assert bench.outbox.held == 0


def test_outbox_sends_the_newest_acknowledgement_and_drops_those_of_another_term(bench: Bench) -> None:
    number = bench.log.durable_number + 1
    older, newer = (AppendReply(1, 1, TERM, sequence, True, sequence) for sequence in (1, 2))
    for message in (older, newer, VoteReply(1, 1, TERM - 1)):
        bench.outbox.send_when_durable(number, "b", message)
    bench.log.durable_number = number
    bench.outbox.release()
    assert bench.take_sent() == [("b", newer)]


def test_outbox_sends_what_has_waited_to_the_incarnation_of_now(bench: Bench) -> None:
    bench.outbox.send_when_durable(bench.log.durable_number + 1, "b", VoteReply(1, 1, TERM))
    bench.group.known["b"] = 9
    bench.log.durable_number += 1
    bench.outbox.release()
    assert bench.take_sent() == [("b", VoteReply(1, 9, TERM))]
    bench.group.known.clear()
    bench.outbox.send("b", HigherTerm(*bench.outbox.address("b"), TERM))
    assert bench.take_sent() == []


def test_pre_vote_comes_before_a_campaign(bench: Bench) -> None:
    """Dissertation, 9.6."""
    elections = bench.elections()
    bench.world.time = bench.leadership.election_deadline
    elections.tick(bench.world.time)
    assert [type(message) for _, message in bench.take_sent()] == [PreVote, PreVote]
    assert bench.core.calls == []
    elections.on_pre_vote_reply("b", PreVoteReply(1, 1, TERM + 1, True))
    assert bench.core.calls == [("start_election",)]


def test_no_vote_within_the_least_election_time_of_contact(bench: Bench) -> None:
    """Dissertation, 4.2.3."""
    elections = bench.elections()
    elections.leader_contact("b")
    elections.on_pre_vote("c", PreVote(1, 1, TERM + 1, 10, TERM))
    bench.world.time += bench.config.election_min_ms / 1000
    elections.on_pre_vote("c", PreVote(1, 1, TERM + 1, 10, TERM))
    assert [message.granted for _, message in bench.take_sent() if isinstance(message, PreVoteReply)] == [False, True]


def test_two_leaders_of_one_term_stop_the_node(bench: Bench) -> None:
    bench.core.is_leader = True
    with pytest.raises(InvariantError, match="b leads in term 5 as this node does"):
        bench.elections().accept_leader("b", TERM)


def test_grace_for_a_large_command_extends_the_election_timeout(bench: Bench) -> None:
    leadership, config = bench.leadership, bench.config
    leadership.restart_timer(0.0, 0.0)
    assert leadership.election_deadline == config.election_min_ms / 1000
    size = config.election_grace_bytes_per_second
    assert leadership.is_large(size)
    assert not leadership.is_large(config.append_bytes_max)
    leadership.extend_election_timeout(size, 0.0)
    assert leadership.election_deadline == config.election_min_ms / 1000 + 1.0
    leadership.extend_election_timeout(size, 0.0)
    assert leadership.election_deadline == config.election_min_ms / 1000 + 1.0
    assert leadership.quorum_timeout(0.0, 1) == config.election_min_ms / 1000 + 1.0
    assert leadership.quorum_timeout(2.0, 1) == config.election_min_ms / 1000


def test_lease_is_shortened_by_the_drift_of_clocks_and_ends_with_a_transfer(bench: Bench) -> None:
    """Dissertation, 6.4.1."""
    leadership, config = bench.leadership, bench.config
    lease = config.election_min_ms / 1000 * (1 - 2 * config.clock_drift_max)
    leadership.renew_lease(TERM, 1.0)
    assert leadership.lease_holds(TERM, 1.0 + lease - 1e-6)
    assert not leadership.lease_holds(TERM, 1.0 + lease)
    assert not leadership.lease_holds(TERM + 1, 1.0)
    assert not leadership.lease_ended(TERM)
    leadership.end_lease(TERM)
    assert leadership.lease_ended(TERM)


def test_transfer_waits_until_the_target_has_the_log(bench: Bench) -> None:
    """Dissertation, 3.10."""
    ended: list[bool] = []
    bench.core.is_leader, bench.group.caught_up = True, False
    transfer = bench.transfer()
    transfer.start(None, ended.append)
    assert transfer.target == "c"
    assert bench.core.calls == []
    bench.group.caught_up = True
    transfer.tick(bench.world.time)
    assert bench.core.calls == [("transfer_leadership", "c")]
    transfer.send_timeout_now("c", TERM)
    assert bench.take_sent() == [("c", TimeoutNow(1, 1, TERM))]
    assert bench.leadership.lease_ended(TERM)
    bench.core.term += 1
    transfer.on_stepped_down()
    assert ended == [True]


def test_transfer_that_takes_too_long_has_failed(bench: Bench) -> None:
    ended: list[bool] = []
    bench.core.is_leader, bench.group.caught_up = True, False
    transfer = bench.transfer()
    transfer.start("b", ended.append)
    transfer.tick(transfer.next_wakeup())
    assert ended == [False]
    assert not transfer.running


def test_leader_on_a_stalled_disk_hands_over_and_then_steps_down(bench: Bench) -> None:
    bench.core.is_leader, bench.group.caught_up = True, False
    transfer = bench.transfer()
    bench.stall.stalled = True
    transfer.tick_stall()
    assert transfer.running
    transfer.tick(transfer.next_wakeup())
    transfer.tick_stall()
    assert bench.core.calls == [("step_down",)]


def leader_asks(bench: Bench) -> tuple[ReadIndex, list[ReadOutcome], ReadProbe]:
    """A leader with a committed entry of its term asks for a read: the reads, the outcomes and the message to the others."""
    bench.core.is_leader = True
    bench.log.add(b"\x01", 1, TERM)
    reads, outcomes = bench.reads(), list[ReadOutcome]()
    reads.ask(outcomes.append)
    reads.tick(bench.world.time)
    probe = bench.take_sent()[0][1]
    assert isinstance(probe, ReadProbe)
    return reads, outcomes, probe


def test_read_is_ready_when_a_majority_has_confirmed_the_leader(bench: Bench) -> None:
    """Dissertation, 6.4."""
    reads, outcomes, probe = leader_asks(bench)
    assert outcomes == []
    reads.on_ack("b", ReadAck(1, 1, TERM, probe.sequence))
    reads.tick(bench.world.time)
    assert outcomes == [ReadReady(1, TERM)]
    assert reads.count == 0, "room for the next reads"


def test_confirmations_of_another_term_do_not_count(bench: Bench) -> None:
    """An acknowledgement counts for the leader's present term only."""
    reads, outcomes, probe = leader_asks(bench)
    for term, count in ((TERM - 1, 0), (TERM + 1, 0), (TERM, 1)):
        reads.on_ack("b", ReadAck(1, 1, term, probe.sequence))
        reads.tick(bench.world.time)
        assert len(outcomes) == count


def test_read_is_rejected_when_its_time_is_up(bench: Bench) -> None:
    reads, outcomes = bench.reads(), list[ReadOutcome]()
    reads.ask(outcomes.append)
    reads.tick(bench.world.time)
    reads.tick(reads.next_wakeup())
    assert isinstance(outcomes[0], Rejected)
    assert reads.count == 0, "room for the next reads"


def test_state_that_differs_from_a_majority_stops_the_node(bench: Bench) -> None:
    digests = Digests(bench.context, bench.core, bench.group, bench.outbox, lambda peer: 1, lambda: b"ours")
    digests.report(1)
    assert {type(message) for _, message in bench.take_sent()} == {DigestReport}
    digests.on_report("b", DigestReport(1, 1, 1, b"other"))
    assert digests.dissent is not None
    assert digests.mismatches == 1
    with pytest.raises(InvariantError, match="differs from that of a majority"):
        digests.on_report("c", DigestReport(1, 1, 1, b"other"))


def test_digest_of_a_node_that_is_no_voter_any_more_does_not_count(bench: Bench) -> None:
    digests = Digests(bench.context, bench.core, bench.group, bench.outbox, lambda peer: 1, lambda: b"ours")
    bench.core.applied_index = 9
    digests.on_report("b", DigestReport(1, 1, 1, b"other"))
    bench.context.set_voters(frozenset("ac"))
    digests.report(1)
    assert digests.dissent is None
    digests.on_report("c", DigestReport(1, 1, 1, b"other"))
    assert digests.dissent is not None
    bench.context.set_voters(frozenset("a"))
    digests.report(1)
    assert digests.dissent is None


def test_lagging_nodes_answer_a_digest_once(bench: Bench) -> None:
    """Two of five nodes lag behind at the same entry and receive the digests of the others."""
    digests = Digests(bench.context, bench.core, bench.group, bench.outbox, lambda peer: 1, lambda: b"ours")
    for log_index in range(10, 10 + 2 * REMEMBERED_INDEXES):
        digests.on_report("c", DigestReport(1, 1, log_index, b"newer"))
    bench.core.applied_index = 5
    digests.on_report("b", DigestReport(1, 1, 5, b"ours"))
    assert [peer for peer, _ in bench.take_sent()] == ["b", "c"], "the first report is answered"
    digests.on_report("b", DigestReport(1, 1, 5, b"ours"))
    assert not bench.take_sent(), "an answer to our report has no answer"
    digests.forget()
    digests.on_report("b", DigestReport(1, 1, 5, b"ours"))
    assert bench.take_sent(), "a snapshot has replaced the state that was reported"


def test_digest_of_a_state_that_a_snapshot_replaced_is_not_compared(bench: Bench) -> None:
    digests = Digests(bench.context, bench.core, bench.group, bench.outbox, lambda peer: 1, lambda: b"ours")
    digests.report(1)
    bench.core.applied_index = 9
    digests.forget()
    for peer in ("b", "c"):
        digests.on_report(peer, DigestReport(1, 1, 1, b"other"))
    assert digests.dissent is None
    assert digests.compared == 0


def test_sync_is_stalled_when_it_takes_too_long(bench: Bench) -> None:
    bench.syncs.request(["log"], False, lambda: None)
    bench.stall.log_sync_began(bench.world.time)
    limit = bench.config.sync_stall_ms / 1000
    while bench.world.time < limit:
        assert not bench.stall.stalled
        bench.world.time += limit / 8
        bench.stall.tick(bench.world.time)
    assert bench.stall.stalled
    assert "has not finished a sync" in (bench.stall.problem(bench.world.time) or "")

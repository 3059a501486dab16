"""Elections: the timer, pre-vote, stickiness and the hand-over of leadership. PySyncObj counts the votes and takes the roles.

- The timer runs from the last sign of life of the current leader; a random share spreads candidates.
- Pre-vote (dissertation, 9.6): a node raises its term only after a majority said it could win, so one that was cut off does not
  depose a leader when it returns.
- Stickiness (4.2.3): nobody votes, or answers a pre-vote with yes, within the minimum election time of hearing a leader, and a
  leader for none while it leads. The lease rests on this; so does the boot silence: a restarted node cannot know when it last
  heard a leader, and votes for nobody for one minimum election time.
- A large command is received, written and applied in one piece, by the leader and by everybody else. As soon as one is seen
  coming, the timer (and the leader's patience with its majority) is extended by the time that may take: an election would only
  have the next leader do the same. Votes are not affected, and so neither is the lease.
- Hand-over (3.10): proposals wait, the target catches up, the lease ends, TimeoutNow is sent; the target campaigns at once and
  its forced vote requests pass stickiness.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from replicated_namesrv.raft.messages import HigherTerm, PreVote, PreVoteReply, TimeoutNow, Vote, VoteReply
from replicated_namesrv.raft.standing import Memory

if TYPE_CHECKING:
    from replicated_namesrv.raft.node import RaftNode

NEVER = float("-inf")


class Elections:
    def __init__(self, node: "RaftNode") -> None:
        self._node = node
        config = node.config
        self._min = config.election_min_ms / 1000
        self._spread = (config.election_max_ms - config.election_min_ms) / 1000
        self._max = config.election_max_ms / 1000
        now = node.environment.now()
        self.leader_heard_at = now if node.defences.boot_silence else NEVER
        self._forgiven_until, self._grace = NEVER, 0.0
        self._large_entry = 0, 0
        """(index, size) of the newest entry that cannot be worked on in slices."""
        self.deadline = 0.0
        self.restart_timer(now)
        self._pre_votes: tuple[int, set[str]] | None = None
        self._votes: tuple[int, set[str]] = (0, set())
        self._forced = False
        self.transfer_peer: str | None = None
        self._transfer_done: Callable[[bool], None] | None = None
        self._transfer_deadline, self._transfer_term = 0.0, 0
        self._transfer_sent = False
        self.lease_ended_term = 0
        """Term in which this leader handed over: no more lease reads in it."""

    def restart_timer(self, now: float) -> None:
        self.deadline = now + self._min + self._spread * self._node.environment.rng.random() + self.forgiven(now)

    def forgive(self, size: int, log_index: int = 0) -> None:
        """``size`` bytes are under way, in one piece if they are many: whoever works on them may be silent meanwhile.
        ``log_index``: where they are in the log."""
        config = self._node.config
        if size <= config.append_bytes_max:
            return
        if log_index:
            self._large_entry = log_index, size
        now = self._node.environment.now()
        before = self.forgiven(now)
        seconds = min(size / config.forgiven_bytes_per_second, config.forgiven_ms_max / 1000)
        if seconds > before:
            self._grace, self._forgiven_until = seconds, now + seconds
            self.deadline += seconds - before

    def forgiven(self, now: float) -> float:
        """Seconds from now on in which silence proves nothing."""
        return max(0.0, self._forgiven_until - now)

    def patience(self, now: float) -> float:
        """How long a leader may have heard nothing of a majority: longer until the usual time has passed since silence was
        forgiven, and while a large command is not committed."""
        if now >= self._forgiven_until + self._min and self._large_entry[0] <= self._node.core.commit_index:
            return self._min
        return self._min + self._grace

    def heard_leader(self, peer: str) -> None:
        """A message of the current term's leader arrived."""
        now = self._node.environment.now()
        self.leader_heard_at = now
        self._pre_votes = None
        if self._large_entry[0] > self._node.core.commit_index:
            self.forgive(self._large_entry[1])  # at any moment the leader may begin to apply it
        self.restart_timer(now)
        self._node.set_leader(peer)

    @property
    def sticks_to_leader(self) -> bool:
        node = self._node
        if not node.defences.stickiness:
            return False
        return node.core.is_leader or node.environment.now() - self.leader_heard_at < self._min

    def tick(self, now: float) -> None:
        node = self._node
        if node.core.is_leader:
            self._advance_transfer(now)
        elif now >= self.deadline:
            self.restart_timer(now)
            if node.membership.is_voter and not node.stall.stalled:
                self._start(now)

    def next_wakeup(self) -> float:
        if self._node.core.is_leader:
            return self._transfer_deadline if self.transfer_peer else float("inf")
        return self.deadline

    def _start(self, now: float) -> None:
        node = self._node
        if node.quorum == 1 or not node.defences.pre_vote:
            self._campaign(False)
            return
        node.counters["pre_votes"] += 1
        self._pre_votes = node.core.term + 1, {node.node_id}
        for peer in node.peers:
            node.send(peer, PreVote, node.core.term + 1, node.log.last_index, node.log.last_term)

    def _campaign(self, forced: bool) -> None:
        self._pre_votes = None
        self._forced = forced
        self._node.core.start_election()
        self._forced = False
        self.restart_timer(self._node.environment.now())

    # Voting

    @property
    def _grants_votes(self) -> bool:
        """Learners grant votes, too: a join may be in the candidate's log and not in ours (dissertation, 4.1). The candidate
        decides from its own log whom it counts."""
        return self._node.membership.is_voter or self._node.defences.changes_in_log

    def on_pre_vote(self, peer: str, message: PreVote) -> None:
        node = self._node
        ours = node.log.last_term, node.log.last_index
        granted = (
            self._grants_votes
            and message.term > node.core.term
            and not self.sticks_to_leader
            and not node.stall.stalled  # a vote could not leave
            and (message.last_term, message.last_index) >= ours
        )
        node.send(peer, PreVoteReply, message.term if granted else node.core.term, granted)

    def on_pre_vote_reply(self, peer: str, message: PreVoteReply) -> None:
        node = self._node
        if not message.granted:
            node.core.observe_term(peer, message.term)
        elif (
            self._pre_votes
            and message.term == self._pre_votes[0] == node.core.term + 1
            and not node.core.is_leader
            and node.membership.counts(peer, message.source)
        ):
            self._pre_votes[1].add(peer)
            if len(self._pre_votes[1]) >= node.quorum:
                self._campaign(False)

    def on_vote(self, peer: str, message: Vote) -> None:
        node = self._node
        if not self._grants_votes:
            return
        if message.term < node.core.term:
            node.send(peer, HigherTerm, node.core.term)
        elif not self.sticks_to_leader or message.forced:
            node.core.vote_request(peer, message.term, message.last_index, message.last_term)

    def vote_granted(self, peer: str, term: int) -> None:
        """PySyncObj votes for ``peer``: the answer leaves once the vote is on disk."""
        node = self._node
        self.restart_timer(node.environment.now())
        node.send_when_durable(node.log.number, peer, VoteReply, term)

    def vote_requested(self, peer: str, term: int, last_index: int, last_term: int) -> None:
        """PySyncObj campaigns: the request leaves once the vote for itself is on disk."""
        node = self._node
        node.send_when_durable(node.log.vote_number, peer, Vote, term, last_index, last_term, self._forced)

    def on_vote_reply(self, peer: str, message: VoteReply) -> None:
        node = self._node
        if node.defences.current_votes and message.term != node.core.term:
            return
        if not node.membership.counts(peer, message.source):
            return
        node.membership.remember(peer, message.source, Memory(0, message.term, 0))
        if node.defences.distinct_votes:
            if self._votes[0] != message.term:
                self._votes = message.term, set()
            if peer in self._votes[1]:
                return
            self._votes[1].add(peer)
        node.core.vote_granted(peer, message.term)

    def on_higher_term(self, peer: str, message: HigherTerm) -> None:
        self._node.core.observe_term(peer, message.term)

    # Hand-over

    @property
    def transferring(self) -> bool:
        return self.transfer_peer is not None

    def transfer(self, peer: str | None, done: Callable[[bool], None]) -> None:
        node = self._node
        if not node.core.is_leader or self.transferring or not node.peers:
            done(False)
            return
        if peer is None:
            peer = node.replication.furthest_voter()
        if peer is None or peer not in node.peers or not node.membership.counts_now(peer):
            done(False)
            return
        self.transfer_peer, self._transfer_done, self._transfer_sent = peer, done, False
        self._transfer_deadline, self._transfer_term = node.environment.now() + self._max, node.core.term
        self._advance_transfer(node.environment.now())

    def _advance_transfer(self, now: float) -> None:
        if self.transfer_peer is None:
            return
        if now >= self._transfer_deadline:
            self.end_transfer(False)
        elif not self._transfer_sent and self._node.replication.has_all(self.transfer_peer):
            self._node.core.transfer_leadership(self.transfer_peer)

    def timeout_now_due(self, peer: str, term: int) -> None:
        """PySyncObj hands over: the lease ends before the message leaves."""
        node = self._node
        self._transfer_sent = True
        if node.defences.transfer_ends_lease:
            self.lease_ended_term = term
        node.send(peer, TimeoutNow, term)

    def led_no_longer(self) -> None:
        """This leader has stepped down: for somebody in a newer term, or for lack of a majority in its own."""
        self.end_transfer(self._node.core.term > self._transfer_term)

    def end_transfer(self, successful: bool) -> None:
        done, self._transfer_done, self.transfer_peer = self._transfer_done, None, None
        if done:
            done(successful)

    def on_timeout_now(self, peer: str, message: TimeoutNow) -> None:
        node = self._node
        may_campaign = node.membership.is_voter and not node.core.is_leader and not node.stall.stalled
        if message.term == node.core.term and peer == node.leader_id and may_campaign:
            self._campaign(True)

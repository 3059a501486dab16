"""Elections: pre-vote, stickiness, and the requests and answers for votes. PySyncObj counts the votes and decides the roles.

- The timer runs from the last contact with the current leader; a random part makes it unlikely that two nodes campaign at the
  same time (``leadership.py``).
- Pre-vote (dissertation, 9.6): a node raises its term only after a majority said it could win, so one that was cut off does
  not depose a leader when it returns.
- Stickiness (4.2.3): a node grants no vote or pre-vote within the minimum election time after contact with a leader. A leader
  grants none while it leads. The lease depends on this. A restarted node does not know when it last had contact with a leader,
  so it grants no vote for one minimum election time (boot silence).
- A node whose last term or vote is not on disk does not campaign: it could not send its requests. With each campaign it would
  raise its term, and its answers would spoil the pre-votes of nodes whose disks work.
- A leader that transfers leadership (3.10, ``transfer_leadership.py``) sends TimeoutNow. The node that receives it
  campaigns at once, and its forced vote requests override stickiness.
"""

from collections.abc import Callable
from typing import Protocol

from replicated_namesrv.raft.entry_log import Log
from replicated_namesrv.raft.interfaces import FOREVER, RaftState, Voters
from replicated_namesrv.raft.leadership import Leadership
from replicated_namesrv.raft.measurements import TIMEOUT, TRANSFER
from replicated_namesrv.raft.message_bounds import TERM_STEP_MAX
from replicated_namesrv.raft.node_context import NodeContext
from replicated_namesrv.raft.outbox import Outbox
from replicated_namesrv.raft.raft_errors import InvariantError
from replicated_namesrv.raft.raft_messages import HigherTerm, PreVote, PreVoteReply, TimeoutNow, Vote, VoteReply
from replicated_namesrv.raft.stall import Stall
from replicated_namesrv.raft.standing import Memory, PeerMemories

REPEAT_ELECTIONS = 4
"""Messages with refused terms are one series while the pauses between them are at most this number of maximum election times. A
candidate sends one message in each election time."""
PATIENCE_ELECTIONS = 10
"""A node that has a leader raises its term by one step after a peer has sent refused terms for this number of maximum election
times (6 s in all by default)."""


class ElectionCore(RaftState, Protocol):
    """The methods of the consensus core that elections need."""

    def start_election(self) -> None: ...

    def vote_request(self, peer: str, term: int, last_index: int, last_term: int) -> None: ...

    def vote_granted(self, peer: str, term: int) -> None: ...

    def observe_term(self, peer: str, term: int) -> None: ...


class Elections:
    """The campaigns of one node, and its answers to the campaigns of others."""

    def __init__(
        self,
        context: NodeContext,
        core: ElectionCore,
        log: Log,
        voters: Voters,
        memories: PeerMemories,
        outbox: Outbox,
        leadership: Leadership,
        stall: Stall,
        new_leader: Callable[[int], None],
    ) -> None:
        """``new_leader``: called with the term when its leader becomes known."""
        self._context, self._defences, self._now = context, context.defences, context.now
        self._core, self._log, self._voters, self._memories = core, log, voters, memories
        self._outbox, self._leadership, self._stall = outbox, leadership, stall
        self._new_leader = new_leader
        self._pre_votes: tuple[int, set[str]] | None = None
        self._votes: tuple[int, set[str]] = (0, set())
        self._forced = False
        self._refused_terms: dict[str, tuple[float, float]] = {}
        """For each peer: when it sent the first and the last message of a series of refused terms (``approach_term``)."""
        self.restart_timer(self._now())

    def restart_timer(self, now: float) -> None:
        """Campaign after a random election time from now."""
        self._leadership.restart_timer(now, self._context.environment.jitter.random())

    # The leader

    def accept_leader(self, peer: str, term: int) -> bool:
        """Whether to follow ``peer``, which sends as leader of ``term``. A peer of an older term is sent our term."""
        if term < self._core.term:
            self._outbox.send(peer, HigherTerm(*self._outbox.address(peer), self._core.term))
            return False
        if term == self._core.term and self._core.is_leader:
            raise InvariantError(f"{peer} leads in term {term} as this node does")
        return True

    def leader_contact(self, peer: str) -> None:
        """A message of the current term's leader arrived."""
        now = self._now()
        self._pre_votes = None
        self._leadership.contact(now, self._core.commit_index)
        self.restart_timer(now)
        self.recognise_leader(peer)

    def recognise_leader(self, leader: str) -> None:
        """``leader`` is the leader of the current term."""
        term = self._core.term
        if self._leadership.recognise(leader, term):
            self._new_leader(term)

    @property
    def sticks_to_leader(self) -> bool:
        """Whether this node grants no votes now (dissertation, 4.2.3)."""
        if not self._defences.stickiness:
            return False
        return self._core.is_leader or self._leadership.in_contact(self._now())

    def tick(self, now: float) -> None:
        """Campaign if the election time-out has passed. Must not be called on a leader."""
        if now >= self._leadership.election_deadline and not self._waits_for_disk:
            self.restart_timer(now)
            is_able = self._voters.is_voter and not self._stall.stalled and not self._waits_for_peers
            if is_able and not (self._has_unsynced_vote and self._defences.durable_vote_first):
                self._start(now)

    def next_wakeup(self) -> float:
        return FOREVER if self._waits_for_disk else self._leadership.election_deadline

    @property
    def _waits_for_disk(self) -> bool:
        """Whether this node is the only voter, and a part of its log is not on disk. In a cluster of one, PySyncObj's leader
        commits its whole log at once when it is elected."""
        return self._context.is_alone and self._defences.durable_campaign and self._log.is_unsynced

    @property
    def _waits_for_peers(self) -> bool:
        """Whether this node is the only voter, and an observer or learner may remember more of its disk. A candidate that needs
        other votes may pre-vote, because its vote requests are not sent (``Membership.may_send``). The only voter would lead,
        commit and confirm reads without any message."""
        return self._context.is_alone and self._voters.is_silent

    @property
    def _has_unsynced_vote(self) -> bool:
        """Whether the last term or vote of this node is not on disk."""
        return self._log.vote_number > self._log.durable_number

    def _start(self, now: float) -> None:
        if self._context.quorum == 1 or not self._defences.pre_vote:
            self._campaign(False)
            return
        self._context.counters["pre_votes"] += 1
        self._pre_votes = self._core.term + 1, {self._context.node_id}
        for peer in self._context.voting_peers:
            self._outbox.send(
                peer, PreVote(*self._outbox.address(peer), self._core.term + 1, self._log.last_index, self._log.last_term)
            )

    def _campaign(self, forced: bool) -> None:
        if self._waits_for_disk:
            return
        self._pre_votes = None
        self._forced = forced
        self._context.measurements.elections[TRANSFER if forced else TIMEOUT] += 1
        self._core.start_election()
        self._forced = False
        self.restart_timer(self._now())

    # Voting

    @property
    def _grants_votes(self) -> bool:
        """Whether this node may grant votes. Learners do, too: a join may be in the candidate's log and not in ours
        (dissertation, 4.1). The candidate decides by its own log which votes count."""
        return self._voters.is_voter or self._defences.changes_in_log

    def on_pre_vote(self, peer: str, message: PreVote) -> None:
        ours = self._log.last_term, self._log.last_index
        granted = (
            self._grants_votes
            and message.term > self._core.term
            and not self.sticks_to_leader
            and not self._stall.stalled  # while the disk is stalled, a vote could not be sent
            and (message.last_term, message.last_index) >= ours
        )
        self._outbox.send(peer, PreVoteReply(*self._outbox.address(peer), message.term if granted else self._core.term, granted))

    def on_pre_vote_reply(self, peer: str, message: PreVoteReply) -> None:
        if not message.granted:
            self._core.observe_term(peer, message.term)
        elif (
            self._pre_votes
            and message.term == self._pre_votes[0] == self._core.term + 1
            and not self._core.is_leader
            and self._voters.counts(peer, message.source)
        ):
            self._pre_votes[1].add(peer)
            if len(self._pre_votes[1]) >= self._context.quorum:
                self._campaign(False)

    def on_vote(self, peer: str, message: Vote) -> None:
        if not self._grants_votes:
            return
        if message.term < self._core.term:
            self._outbox.send(peer, HigherTerm(*self._outbox.address(peer), self._core.term))
        elif not self.sticks_to_leader or (message.forced and not self._voters.is_silent):
            self._core.vote_request(peer, message.term, message.last_index, message.last_term)

    def vote_granted(self, peer: str, term: int) -> None:
        """PySyncObj votes for ``peer``: send the answer when the vote is on disk."""
        self.restart_timer(self._now())
        self._outbox.send_when_durable(self._log.number, peer, VoteReply(*self._outbox.address(peer), term))

    def vote_requested(self, peer: str, term: int, last_index: int, last_term: int) -> None:
        """PySyncObj campaigns: send the request when the vote for itself is on disk."""
        self._outbox.send_when_durable(
            self._log.vote_number, peer, Vote(*self._outbox.address(peer), term, last_index, last_term, self._forced)
        )

    def on_vote_reply(self, peer: str, message: VoteReply) -> None:
        if self._defences.current_votes and message.term != self._core.term:
            return
        if not self._voters.counts(peer, message.source):
            return
        self._memories.remember(peer, message.source, Memory(0, message.term, 0))
        if self._defences.distinct_votes:
            if self._votes[0] != message.term:
                self._votes = message.term, set()
            if peer in self._votes[1]:
                return
            self._votes[1].add(peer)
        self._core.vote_granted(peer, message.term)

    def on_higher_term(self, peer: str, message: HigherTerm) -> None:
        self._core.observe_term(peer, message.term)

    def approach_term(self, peer: str) -> None:
        """``peer`` has a term that is too far away to be adopted (``message_bounds.py``). If it continues to send such terms,
        raise the term of this node by one step."""
        now, longest = self._now(), self._context.config.election_max_ms / 1000
        since, last = self._refused_terms.get(peer, (now, now))
        if now - last > REPEAT_ELECTIONS * longest:
            since = now
        self._refused_terms[peer] = since, now
        if now - since >= (PATIENCE_ELECTIONS if self.sticks_to_leader else 1) * longest:
            del self._refused_terms[peer]
            self._core.observe_term(peer, self._core.term + TERM_STEP_MAX)

    def on_timeout_now(self, peer: str, message: TimeoutNow) -> None:
        is_able = self._voters.is_voter and not self._voters.is_silent and not self._stall.stalled
        may_campaign = is_able and not self._core.is_leader
        leader = self._leadership.leader_of(self._core.term)
        if message.term == self._core.term and peer == leader and may_campaign:
            self._campaign(True)

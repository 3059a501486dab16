"""Leadership transfer (dissertation, 3.10): on request, and when the leader's disk is stalled (``stall.py``).

Proposals wait, the target catches up, the lease ends, TimeoutNow is sent. The target campaigns at once, and its forced vote
requests pass stickiness (``elections.py``). A transfer that has not ended within the maximum election time has failed.
"""

from collections.abc import Callable
from typing import Protocol

from replicated_namesrv.raft.interfaces import FOREVER, RaftState, Voters
from replicated_namesrv.raft.leadership import Leadership
from replicated_namesrv.raft.node_context import NodeContext
from replicated_namesrv.raft.outbox import Outbox
from replicated_namesrv.raft.raft_messages import TimeoutNow
from replicated_namesrv.raft.stall import Stall


class TransferCore(RaftState, Protocol):
    """The methods of the consensus core that a transfer needs."""

    def transfer_leadership(self, peer: str) -> None: ...

    def step_down(self) -> None: ...


class Targets(Protocol):
    """The methods of replication that a transfer needs."""

    def furthest_voter(self) -> str | None:
        """The connected voter with the longest log, as far as known. Voters that have answered lately are preferred."""

    def has_all(self, peer: str) -> bool:
        """Whether ``peer`` is known to have the whole log."""


class LeadershipTransfer:
    """Transfers leadership, one transfer at a time."""

    def __init__(
        self,
        context: NodeContext,
        core: TransferCore,
        voters: Voters,
        targets: Targets,
        outbox: Outbox,
        leadership: Leadership,
        stall: Stall,
    ) -> None:
        self._context, self._defences, self._now = context, context.defences, context.now
        self._core, self._voters, self._targets = core, voters, targets
        self._outbox, self._leadership, self._stall = outbox, leadership, stall
        self._limit = context.config.election_max_ms / 1000
        self.target: str | None = None
        """The designated leader while a transfer is in progress, otherwise None."""
        self._done: Callable[[bool], None] | None = None
        self._deadline, self._term = 0.0, 0
        self._sent = False
        self._stall_transfer_tried = self._stall_transfer_failed = False
        """Whether this leader has tried a transfer because its disk stalled, and whether this transfer failed."""

    @property
    def running(self) -> bool:
        return self.target is not None

    def start(self, peer: str | None, done: Callable[[bool], None]) -> None:
        """Transfer leadership to ``peer`` (None: the voter with the longest log). ``done(True)`` when another node leads,
        ``done(False)`` if not.
        """
        if not self._core.is_leader or self.running or self._context.is_alone:
            done(False)
            return
        if peer is None:
            peer = self._targets.furthest_voter()
        if peer is None or peer not in self._context.voting_peers or not self._voters.counts_now(peer):
            done(False)
            return
        self.target, self._done, self._sent = peer, done, False
        self._deadline, self._term = self._now() + self._limit, self._core.term
        self.tick(self._now())

    def tick(self, now: float) -> None:
        """Send TimeoutNow once the target has the whole log; give up when the time is over."""
        if self.target is None:
            return
        if now >= self._deadline:
            self._end(False)
        elif not self._sent and self._targets.has_all(self.target):
            self._core.transfer_leadership(self.target)

    def next_wakeup(self) -> float:
        return self._deadline if self.target else FOREVER

    def send_timeout_now(self, peer: str, term: int) -> None:
        """PySyncObj transfers leadership: end the lease before the message is sent."""
        self._sent = True
        if self._defences.transfer_ends_lease:
            self._leadership.end_lease(term)
        self._outbox.send(peer, TimeoutNow(*self._outbox.address(peer), term))

    def on_stepped_down(self) -> None:
        """This leader has stepped down: for another in a newer term, or for lack of a majority in its own."""
        self._end(self._core.term > self._term)

    def stop(self) -> None:
        """The node stops."""
        self._end(False)

    def _end(self, successful: bool) -> None:
        done, self._done, self.target = self._done, None, None
        if done:
            done(successful)

    # A stalled disk

    def tick_stall(self) -> None:
        """On a stalled disk a leader transfers leadership, and steps down if that fails."""
        if not self._stall.stalled or not self._core.is_leader:
            self._stall_transfer_tried = self._stall_transfer_failed = False
        elif not self._context.is_alone and not self.running:
            if not self._stall_transfer_tried:
                self._stall_transfer_tried = True
                self.start(None, self._stall_transfer_ended)
            if self._stall_transfer_failed:
                self._context.counters["stepped_down"] += 1
                self._core.step_down()

    def _stall_transfer_ended(self, successful: bool) -> None:
        self._stall_transfer_failed = not successful

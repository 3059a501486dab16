"""Promotion of learners to voters: which learner keeps up, and which configuration change is proposed next.

Whether a learner keeps up is measured in rounds (dissertation, 4.2.1; ``progress.Rounds``). Changes are made one at a time, and
only after an entry of the leader's term is committed (4.1; the second condition is Ongaro's correction of 2015, "bug in
single-server membership changes"). This holds for all changes of the configuration, also for changes that an operator requests
(``member_changes.py``).
"""

from typing import Protocol

from replicated_namesrv.raft.configuration import Configuration
from replicated_namesrv.raft.entry_log import Log
from replicated_namesrv.raft.interfaces import RaftState
from replicated_namesrv.raft.node_context import NodeContext
from replicated_namesrv.raft.progress import Progress
from replicated_namesrv.raft.stall import Stall


class PromotionCore(RaftState, Protocol):
    """The methods of the consensus core that a promotion needs."""

    def propose(self, payload: bytes) -> int:
        """Append an entry. Returns its index."""


class Promotion:
    """Decides, on the leader, when a learner is promoted."""

    def __init__(self, context: NodeContext, core: PromotionCore, log: Log, configuration: Configuration, stall: Stall) -> None:
        self._defences, self._now = context.defences, context.now
        self._core, self._log, self._configuration, self._stall = core, log, configuration, stall
        self._round_seconds = context.config.election_max_ms / 1000
        self._changing = 0
        """Index of the newest change of the configuration that this node proposed."""

    def lead(self) -> None:
        """This node became leader of a new term."""
        self._changing = 0

    def consider(self, learner: Progress) -> None:
        """If ``learner`` keeps up, propose the next configuration change that leads to its vote."""
        if self._configuration.is_unfinished(learner.peer, learner.incarnation) and self._keeps_up(learner):
            self._promote(learner)

    def _keeps_up(self, progress: Progress) -> bool:
        if not self._defences.promotion_rounds:
            return progress.match >= self._core.commit_index
        now, last = self._now(), self._log.last_index
        return progress.rounds.kept_up(now, last, progress.match, progress.acknowledged_at, self._round_seconds)

    def _promote(self, progress: Progress) -> None:
        if progress.connected and self.obstacle() is None:
            change = self._configuration.next_change(progress.peer, progress.incarnation)
            if change is not None:
                self.write(change)

    def obstacle(self) -> str | None:
        """Why this leader may not change the configuration now, None if it may."""
        newest = max(self._changing, self._configuration.last_change)
        if self._defences.single_change and newest > self._core.applied_index:
            return f"the change before it, entry {newest}, is not committed yet"
        if self._defences.own_term_first and self._log.term_at(self._core.commit_index) != self._core.term:
            return "this leader has not committed an entry of its own term yet"
        if self._stall.stalled:
            return "the disk of this node does not answer"
        return "the log of this node is full, because its disk or its snapshots lag" if self._log.is_full else None

    def write(self, change: bytes) -> int:
        """Append the entry of a change for which there is no ``obstacle``. Returns its index."""
        self._changing = self._core.propose(change)
        return self._changing

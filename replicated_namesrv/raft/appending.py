"""Handles AppendEntries on a follower (Raft, 5.3).

Before PySyncObj sees the message, this module drops from it the entries that the log already has: those at or below the commit
index, and then those with the same term. Only a term conflict after these entries cuts the log. The answer is sent when the
entries and the term are on disk.
"""

from typing import Protocol

from replicated_namesrv.raft.elections import Elections
from replicated_namesrv.raft.entry_log import Entry, Log
from replicated_namesrv.raft.interfaces import RaftState
from replicated_namesrv.raft.leadership import Leadership
from replicated_namesrv.raft.node_context import NodeContext
from replicated_namesrv.raft.outbox import Outbox
from replicated_namesrv.raft.payloads import unpack_entries
from replicated_namesrv.raft.raft_errors import AcknowledgedLossError, InvariantError
from replicated_namesrv.raft.raft_messages import Append, AppendReply


class AppendCore(RaftState, Protocol):
    """The methods of the consensus core that a follower needs."""

    def append(
        self, peer: str, term: int, commit_index: int, previous_index: int, previous_term: int, entries: list[Entry]
    ) -> None: ...


class Appending:
    """Appends the leader's entries."""

    def __init__(
        self,
        context: NodeContext,
        core: AppendCore,
        log: Log,
        elections: Elections,
        leadership: Leadership,
        outbox: Outbox,
    ) -> None:
        self._context, self._defences = context, context.defences
        self._core, self._log, self._elections = core, log, elections
        self._leadership, self._outbox = leadership, outbox
        self._answering: tuple[int, int, int, bool] | None = None
        """The append that PySyncObj is processing: term, sequence, previous index, whether it has entries."""

    def on_append(self, peer: str, message: Append) -> bool:
        """Returns whether it leaves work for the node's ``tick``. A heartbeat that changes neither log nor commit index leaves
        none."""
        core, log = self._core, self._log
        before = core.term, core.commit_index, log.last_index
        if not self._elections.accept_leader(peer, message.term):
            return True
        if message.entries and log.is_full:
            self._context.counters["appends_refused"] += 1
            if message.term == core.term:
                self._elections.leader_contact(peer)
            return True  # no answer is sent, so the leader's window fills up and the leader stops sending
        entries = unpack_entries(message.entries, message.previous_index + 1, message.previous_term, message.term)
        if self._leadership.is_large(len(message.entries)):
            last = message.previous_index + len(entries)
            self._leadership.extend_election_timeout(len(message.entries), self._context.now(), last)
        with_entries = bool(entries)
        previous_index, previous_term, commit_index = message.previous_index, message.previous_term, message.commit_index
        if message.acknowledged > log.last_index and self._defences.acknowledged_check:
            raise AcknowledgedLossError(
                f"this node acknowledged entries up to {message.acknowledged} but its log ends at {log.last_index}: "
                "the disk has lost synced data, or another process runs on a copy of this data directory. "
                "Stop the other process. If there is none, replace the disk, move the data directory away and start again: "
                "the node returns without a vote, copies the state and is then promoted"
            )
        if self._defences.idempotent_append:
            previous_index, previous_term, entries = self._skip_known(peer, previous_index, previous_term, entries)
            if log.term_at(previous_index) == previous_term:
                log.keep_tail = not entries
                commit_index = min(commit_index, previous_index + len(entries))
        self._answering = message.term, message.sequence, previous_index, with_entries
        try:
            core.append(peer, message.term, commit_index, previous_index, previous_term, entries)
        finally:
            log.keep_tail = False
            self._answering = None
        self._elections.leader_contact(peer)
        return with_entries or before != (core.term, core.commit_index, log.last_index)

    def _skip_known(
        self, peer: str, previous_index: int, previous_term: int, entries: list[Entry]
    ) -> tuple[int, int, list[Entry]]:
        """Remove the leading entries that are already in this log."""
        log, commit = self._log, self._core.commit_index
        if previous_index <= commit:
            self._check_committed(peer, previous_index, previous_term)
        if previous_index < commit:
            for _, index, term in entries[: commit - previous_index]:
                self._check_committed(peer, index, term)
            entries = entries[commit - previous_index :]
            previous_index, previous_term = commit, log.term_at(commit) or 0
        if log.term_at(previous_index) == previous_term:
            known = 0
            for _, index, term in entries:
                if log.term_at(index) != term:
                    break
                known += 1
            if known:
                previous_index, previous_term = entries[known - 1][1:]
                entries = entries[known:]
        return previous_index, previous_term, entries

    def _check_committed(self, peer: str, index: int, term: int) -> None:
        """Check that our committed entry at ``index`` has ``term``, the term that ``peer`` sends for it. Raises InvariantError if
        not."""
        ours = self._log.term_at(index)
        if ours not in (None, term):
            raise InvariantError(f"{peer} sends entry {index} of term {term}; committed here is term {ours}")

    def answered(self, peer: str, success: bool, next_index: int) -> None:
        """PySyncObj answered an append: send the answer when it is durable."""
        log = self._log
        if self._answering is None or self._answering[1] == 0:
            return
        term, sequence, previous_index, with_entries = self._answering
        if not success:
            self._outbox.send_when_durable(
                log.vote_number,
                peer,
                AppendReply(*self._outbox.address(peer), term, sequence, False, self._conflict_hint(previous_index)),
            )
            return
        match = next_index - 1
        if not self._defences.durable_acks or (match <= log.durable_index and log.vote_number <= log.durable_number):
            self._outbox.send(peer, AppendReply(*self._outbox.address(peer), term, sequence, True, match))
        elif not with_entries and log.vote_number <= log.durable_number:
            self._outbox.send(peer, AppendReply(*self._outbox.address(peer), term, sequence, True, min(match, log.durable_index)))
        else:
            self._outbox.send_when_durable(
                log.number, peer, AppendReply(*self._outbox.address(peer), term, sequence, True, match)
            )

    def _conflict_hint(self, previous_index: int) -> int:
        """The index that the leader should try next: after our log, or the first one of the term that conflicts."""
        log = self._log
        hint = log.last_index + 1 if log.term_at(previous_index) is None else log.first_of_term(previous_index)
        return max(self._core.commit_index + 1, min(hint, previous_index))

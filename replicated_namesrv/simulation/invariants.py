"""Invariants that are checked after every event. Each check looks only at changes since the last one.

- Election safety: at most one leader in a term, and it has the votes of a majority of distinct nodes in that term.
- Log matching: two entries of equal index and term have equal payload and follow entries of equal term (by induction, equal
  logs up to there).
- State-machine safety: all nodes commit the same entry at an index.
- Leader completeness: a new leader has every entry that was committed in an earlier term.
- No node cuts a committed entry from its log.
- A deposed leader steps down within two election time-outs, unless it is paused.
- The commit index and the term of a running process never decrease.
- The only voter commits nothing that is not on its disk, except the no-op of its own election.
- The memory that a node uses for its peers, its disk and its callers stays within its bounds (``raft/memory_bounds.py``).
- A leader exists whenever there can be one (``LeaderWatch``).
- Within a bound after the last fault, each node has caught up and each learner is promoted, while writes go on (``Simulation``).
- A proposal that ended as committed was applied by its own entry (``RegisterApplication``).
- Every request ends exactly once and in time (``Ledger``), and no process spins (``Machine``).
- No node floods another one with messages (``Network``).

The first violation ends the run.
"""

import zlib
from collections.abc import Callable, Collection
from typing import NamedTuple

from replicated_namesrv.raft.interfaces import Observer
from replicated_namesrv.raft.members import MEMBERS_ENTRY, RaftMember, places, unpack_members
from replicated_namesrv.raft.memory_bounds import exceeded
from replicated_namesrv.raft.payloads import JOIN, NO_OP, unpack_join
from replicated_namesrv.simulation.process_views import MachineView, RaftView
from replicated_namesrv.simulation.world import World


class Violation(NamedTuple):
    """An invariant was broken."""

    name: str
    text: str
    """Node and details."""
    at_ns: int
    """Time of the detection. For a history, which is checked at the end: the end of the operations that prove the violation."""


class _Watched:
    """The observations of one running process."""

    def __init__(self, base: int) -> None:
        self.base = base
        """Index of ``terms[0]``."""
        self.terms: list[int] = []
        self.term = 0
        self.commit_index = 0
        self.role = ""
        self.led_since_ns = 0
        """When the process last became leader. A late vote can elect a leader of an old term."""

    def last(self) -> int:
        return self.base + len(self.terms) - 1


class _Committed:
    __slots__ = ("checksum", "in_term", "payload", "term")

    def __init__(self, term: int, payload: bytes, in_term: int) -> None:
        self.term, self.payload, self.checksum, self.in_term = term, payload, zlib.crc32(payload), in_term


class Invariants:
    """Watches all machines of a world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._watched: dict[str, _Watched] = {}
        self._leaders: dict[int, str] = {}
        self._newest = (0, 0)
        """The highest term that has a leader, and the time since which it has one."""
        self.single_node = False
        """Whether the cluster has one node."""
        self.quorum = 0
        """Number of votes that a leader needs; 0: not checked."""
        self._votes: dict[tuple[int, str], set[str]] = {}
        """The nodes that voted for each candidate, by (term, candidate)."""
        self.founders: frozenset[str] = frozenset()
        """Names of the first members."""
        self.members: dict[str, RaftMember] | None = None
        """The members of the newest committed configuration, by name; None before an entry of members is committed."""
        self._members_at = 0
        self.voters_of: Callable[[str], tuple[Collection[str], int] | None] | None = None
        """The voters, and their quorum, by the newest configuration in the log of a node, if it is known. None: the members do
        not change."""
        self.joined: dict[str, int] = {}
        """For each node: the incarnation in its newest committed JOIN entry; 0 if that entry made its place vacant."""
        self._joined_at: dict[str, int] = {}
        self.on_join: Callable[[str, str], None] = lambda name, joined: None
        """Called with ``name``, the first node that knows a join of ``joined`` to be committed."""
        self.deposed_ns = 0
        """Maximum time for which a deposed leader may continue; 0: not checked."""
        self._entries: dict[tuple[int, int], tuple[int, int]] = {}
        """(index, term) -> (checksum of the payload, term of the previous entry)."""
        self.committed: dict[int, _Committed] = {}
        self.highest_committed = 0
        self.elections = 0
        self.truncations = 0
        self.restores = 0
        self.violation: Violation | None = None
        self.tolerated: dict[str, int] = {}
        """Invariants whose violations are counted here and do not end the run."""

    def violated(self, name: str, text: str, at_ns: int | None = None) -> None:
        """Record the violation; only the first counts. ``at_ns`` None: now."""
        if name in self.tolerated:
            self.tolerated[name] += 1
        elif self.violation is None:
            self.violation = Violation(name, text, self._world.now_ns if at_ns is None else at_ns)
            self._world.note(f"VIOLATION of {name}: {text.splitlines()[0]}")
            self._world.trace.event(self._world.now_ns, "violation", name)

    def note(self, text: str) -> None:
        """Add a line to the readable account."""
        self._world.note(text)

    def observer(self, machine: MachineView) -> Observer:
        """The observer for a new process on ``machine``."""
        return _MachineObserver(self, machine)

    def started(self, machine: MachineView) -> None:
        """A process has recovered: check its whole log."""
        raft = machine.raft
        assert raft is not None
        watched = self._watched[machine.name] = _Watched(raft.first_index)
        watched.term, watched.commit_index = raft.term, 0
        self.check(machine)

    def ended(self, machine: MachineView) -> None:
        """The process is gone."""
        self._watched.pop(machine.name, None)

    def check(self, machine: MachineView) -> None:
        """Check what the last turn of ``machine`` has changed."""
        raft, watched = machine.raft, self._watched.get(machine.name)
        if raft is None or watched is None or raft.failed is not None:
            return
        term, role, commit_index, last_index = raft.term, raft.role, raft.commit_index, raft.last_index
        if last_index != watched.last() or term != watched.term:
            self._check_log(machine.name, raft, watched)
        if term < watched.term:
            self.violated("term", f"{machine.name} went from term {watched.term} back to {term}")
        watched.term = term
        if commit_index != watched.commit_index:
            self._check_commit(machine.name, raft, watched)
        if role != watched.role:
            self._check_role(machine.name, machine.speaks_as, raft, watched)
        if role == "leader" and term < self._newest[0]:
            self._check_deposed(machine, term, watched.led_since_ns)
        if beyond := exceeded(raft.memory()):
            self.violated("bounded memory", f"{machine.name} uses more memory than its bounds allow, (size, bound): {beyond}")
        if raft.applied_index > commit_index:
            self.violated("apply", f"{machine.name} applied {raft.applied_index} beyond its commit index {commit_index}")
        self._world.trace.event(self._world.now_ns, machine.name, term, commit_index, last_index)

    def _check_log(self, name: str, raft: RaftView, watched: _Watched) -> None:
        if raft.first_index > watched.last() + 1 or raft.last_index < watched.last():
            if raft.first_index <= watched.last() + 1:
                self._check_cut(name, watched, max(raft.last_index + 1, watched.base))
            # the log was cut, or replaced by a snapshot, so check all of it again
            watched.base, watched.terms = raft.first_index, []
        if raft.first_index > watched.base:
            del watched.terms[: raft.first_index - watched.base]
            watched.base = raft.first_index
        same = watched.last()
        while same >= watched.base and raft.term_at(same) != watched.terms[same - watched.base]:
            same -= 1
        if same < watched.last():
            self._check_cut(name, watched, same + 1)
            del watched.terms[same + 1 - watched.base :]
        for index in range(watched.last() + 1, raft.last_index + 1):
            term, payload = raft.term_at(index), raft.entry_at(index)
            if term is None:
                self.violated("log", f"{name} has no entry {index} though its log goes on to {raft.last_index}")
                return
            if payload is not None and index > watched.base:
                self._check_entry(name, index, term, zlib.crc32(payload), watched.terms[-1])
            watched.terms.append(term)

    def _check_entry(self, name: str, index: int, term: int, checksum: int, previous_term: int) -> None:
        known = self._entries.setdefault((index, term), (checksum, previous_term))
        if known != (checksum, previous_term):
            self.violated("log matching", f"{name} has another entry {index} of term {term} than a node had before")

    def _check_commit(self, name: str, raft: RaftView, watched: _Watched) -> None:
        if raft.commit_index < watched.commit_index:
            self.violated("commit index", f"{name} went from commit index {watched.commit_index} back to {raft.commit_index}")
        if raft.commit_index > raft.last_index:
            self.violated("commit index", f"{name} has commit index {raft.commit_index} beyond its last {raft.last_index}")
            return
        committed = raft.commit_index
        if committed > raft.durable_index and self._is_alone(name):
            # The only voter commits its no-op when it appends it. Nothing is sent or acknowledged before that entry is on disk.
            if raft.role == "leader" and (committed > raft.durable_index + 1 or raft.entry_at(committed) != NO_OP):
                self.violated("durable commit", f"{name}, the only voter, commits {committed}; on disk is {raft.durable_index}")
            committed = max(watched.commit_index, min(committed, raft.durable_index))
        for index in range(max(watched.commit_index, raft.first_index) + 1, committed + 1):
            term, payload = raft.term_at(index), raft.entry_at(index)
            if term is None or payload is None:
                continue
            self._commit(name, index, term, payload, raft.term)
        watched.commit_index = committed

    def _is_alone(self, name: str) -> bool:
        """Whether a node is the only voter."""
        known = self.voters_of(name) if self.voters_of is not None else None
        return self.single_node if known is None else known[1] == 1

    def _commit(self, name: str, index: int, term: int, payload: bytes, in_term: int) -> None:
        known = self.committed.get(index)
        if known is None:
            self.committed[index] = _Committed(term, payload, in_term)
            self.highest_committed = max(self.highest_committed, index)
            if payload[:2] == JOIN:
                node, incarnation = unpack_join(payload)
                if index > self._joined_at.get(node, 0):
                    self.joined[node], self._joined_at[node] = incarnation, index
                    if incarnation:
                        self.on_join(name, node)
                if self.members is not None and index > self._members_at and node in self.members:
                    self.members[node] = self.members[node]._replace(incarnation=incarnation)
            elif payload[:2] == MEMBERS_ENTRY and index > self._members_at:
                self._check_members(name, index, unpack_members(payload))
        elif (known.term, known.checksum) != (term, zlib.crc32(payload)):
            self.violated(
                "state-machine safety",
                f"{name} commits at {index} an entry of term {term}, but the entry committed there is of term {known.term}"
                + (" with another payload" if known.term == term else ""),
            )

    def _check_members(self, name: str, index: int, members: dict[str, RaftMember]) -> None:
        before = self.founders if self.members is None else places(self.members)
        if len(before ^ places(members)) > 1:
            self.violated("one change at a time", f"{name} commits at {index} {sorted(places(members))} after {sorted(before)}")
        self.members, self._members_at = members, index

    def member_names(self) -> Collection[str]:
        """Names of the members by the newest committed configuration."""
        return self.founders if self.members is None else self.members

    def _check_role(self, name: str, speaks_as: str, raft: RaftView, watched: _Watched) -> None:
        if raft.role == "leader":
            self.elections += 1
            watched.led_since_ns = self._world.now_ns
            self._world.note(f"{name} leads term {raft.term} (log to {raft.last_index}, committed to {raft.commit_index})")
            if raft.term > self._newest[0]:
                self._newest = raft.term, self._world.now_ns
            self.led(name, raft.term, speaks_as)
            self._check_complete(name, raft)
        elif watched.role == "leader":
            self._world.note(f"{name} has stepped down (term {raft.term})")
        watched.role = raft.role

    def watch_joins(self, watch: Callable[[str, str], None]) -> None:
        """Call ``watch`` as described at ``on_join``."""
        self.on_join = watch

    def voted(self, name: str, candidate: str, term: int) -> None:
        """``name`` votes for ``candidate`` in ``term``."""
        self._votes.setdefault((term, candidate), set()).add(name)

    def led(self, name: str, term: int, candidate: str | None = None) -> None:
        """``name`` became leader of ``term``, possibly for less than a turn. ``candidate``: the name that received the votes, if
        it is not ``name``.
        """
        votes = self._votes.get((term, candidate or name), set()) | {candidate or name}  # a node that is alone requests no vote
        if self.voters_of is not None:
            voters, quorum = self.voters_of(name) or ({candidate or name}, 0)
            if (candidate or name) not in voters or len(votes & set(voters)) < quorum:
                text = f"{name} leads term {term} with the votes of {sorted(votes)}, {quorum} of {sorted(voters)} are needed"
                self.violated("votes", text)
        elif len(votes) < self.quorum:
            self.violated("votes", f"{name} leads term {term} with the votes of {sorted(votes)}, {self.quorum} are needed")
        other = self._leaders.setdefault(term, name)
        if other != name:
            self.violated("election safety", f"{name} leads term {term}, which {other} led already")

    def _check_complete(self, name: str, raft: RaftView) -> None:
        for index in range(self.highest_committed, raft.first_index, -1):
            committed = self.committed.get(index)
            if committed is not None and committed.in_term < raft.term and raft.term_at(index) != committed.term:
                self.violated(
                    "leader completeness",
                    f"{name} leads term {raft.term} without entry {index} of term {committed.term}, committed by term "
                    f"{committed.in_term} (it has {raft.term_at(index) or 'nothing'} there)",
                )
                return

    def _check_deposed(self, machine: MachineView, term: int, led_since_ns: int) -> None:
        newest, newest_since_ns = self._newest
        since_ns = max(newest_since_ns, machine.ran_since_ns, led_since_ns)
        if self.deposed_ns and self._world.now_ns - since_ns > self.deposed_ns:
            late_s = (self._world.now_ns - newest_since_ns) / 1e9
            self.violated("deposed leader", f"{machine.name} still leads term {term}, {late_s:.2f} s after term {newest} began")

    def _check_cut(self, name: str, watched: _Watched, index: int) -> None:
        """``name`` has cut ``index`` and all later entries from its log: check that none of them was committed."""
        self.truncations += 1
        self._world.note(f"{name} cuts its log from {index} on")
        for cut in range(index, watched.last() + 1):
            committed = self.committed.get(cut)
            if committed is not None and committed.term == watched.terms[cut - watched.base]:
                self.violated("no truncation", f"{name} cut entry {cut} of term {committed.term}, which was committed")
                return

    def truncated(self, name: str, index: int) -> None:
        """``name`` reports that it cuts its log. Only this call sees a cut that is repaired in the same turn."""
        watched = self._watched.get(name)
        if watched is not None and watched.base <= index <= watched.last():
            self._check_cut(name, watched, index)
            del watched.terms[index - watched.base :]

    def forgot(self, name: str, index: int) -> None:
        """``name`` reports that it gave up its incarnation and cuts its log. This is as if it had lost its disk, so it may cut
        committed entries."""
        watched = self._watched.get(name)
        if watched is not None and watched.base <= index <= watched.last():
            self.truncations += 1
            self._world.note(f"{name} forgets its log from {index} on")
            del watched.terms[index - watched.base :]


class _MachineObserver(Observer):
    """Reports of one process."""

    def __init__(self, invariants: Invariants, machine: MachineView) -> None:
        self._invariants, self._machine, self._life = invariants, machine, machine.life
        self._speaks_as = machine.speaks_as

    def _alive(self) -> bool:
        return self._machine.life is self._life

    def role_changed(self, role: str, term: int) -> None:
        if role == "leader" and self._alive():
            self._invariants.led(self._machine.name, term, self._speaks_as)

    def voted(self, candidate: str, term: int) -> None:
        if self._alive():
            self._invariants.voted(self._speaks_as, candidate, term)

    def truncated(self, index: int, commit_index: int) -> None:
        if self._alive():
            self._invariants.truncated(self._machine.name, index)

    def forgot(self, index: int) -> None:
        if self._alive():
            self._invariants.forgot(self._machine.name, index)

    def restored(self, index: int) -> None:
        if self._alive():
            self._invariants.restores += 1
            self._invariants.note(f"{self._machine.name} takes a snapshot that ends at {index}")

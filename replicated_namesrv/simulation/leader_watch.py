"""Checks during faults that a leader exists within a bound whenever a majority of voters can communicate.

A set of machines can elect if all of this holds without interruption for the bound:
- They are a majority, each is a voter of the committed configuration, and one of them has every committed entry.
- Each is up and not paused. Its disk is neither full, failing, hung nor slow, and was never rolled back to an older image. Its
  process has run for ``SILENCE_NS``: a new process may have to wait for introductions before it votes (``raft/membership.py``).
- Each pair is connected both ways. No message between them is lost, delayed or late. No late message that may delay an election
  is in flight anywhere (``may_delay_election``).

Then at least once within the bound, there must be a leader that a majority follows and can answer, or an entry must be
committed. A leader whose log has waited for its disk for longer than it may (``raft/stall.py``) does not count, unless it is
the only voter.

The watch looks at the cluster at short intervals. Cuts, new connections, pauses and restarts between two looks count, too. The
watch uses no randomness and schedules no event, so it does not change the trace.
"""

from collections.abc import Collection
from itertools import combinations

from replicated_namesrv.raft.members import quorum_of
from replicated_namesrv.raft.membership import CONTACT_SECONDS
from replicated_namesrv.raft.raft_messages import (
    Append,
    AppendReply,
    ApplicationData,
    Confirmation,
    ConfirmationRequest,
    DigestReport,
    Forward,
    ForwardReply,
    HigherTerm,
    ReadAck,
    ReadProbe,
    ReadReply,
    ReadRequest,
    SnapshotAck,
    SnapshotChunk,
    TimeoutNow,
    Vote,
    VoteReply,
)
from replicated_namesrv.raft.raft_node import RaftNode
from replicated_namesrv.simulation.invariants import Invariants
from replicated_namesrv.simulation.machine import Machine
from replicated_namesrv.simulation.network import Network
from replicated_namesrv.simulation.world import MS, SECOND

SILENCE_NS = int(1.25 * CONTACT_SECONDS * SECOND)
"""Longest wait of a new process for introductions, by a clock that is slower than true time by the largest drift of the runs."""
_WITHOUT_EFFECT = (
    ApplicationData, Confirmation, ConfirmationRequest, DigestReport, Forward, ForwardReply, ReadReply, ReadRequest,
)  # fmt: skip  # items grouped by line
"""Messages that have no effect on elections."""
_OF_ONE_TERM = (Append, AppendReply, HigherTerm, ReadAck, ReadProbe, SnapshotAck, SnapshotChunk, TimeoutNow, Vote, VoteReply)
"""Messages that have no effect on elections at a node with a higher term."""
LOOK_NS = 30 * MS
"""Time between two checks; neither a multiple nor a divisor of the periods in which links flap."""


STALLED_FACTOR = 1.5
"""A leader may lead for this many times ``sync_stall_ms`` while its disk does not finish a sync: it transfers leadership, or
steps down after an election time."""


class LeaderWatch:
    """Looks at all machines of a run. ``bound_ns``: time within which a majority that can elect must have a leader."""

    def __init__(
        self, machines: list[Machine], network: Network, invariants: Invariants, bound_ns: int, members_change: bool = False
    ) -> None:
        self._members_change = members_change
        self._machines, self._network, self._invariants, self._bound_ns = machines, network, invariants, bound_ns
        self._majority = len(machines) // 2 + 1
        self._steady: dict[tuple[str, ...], tuple[object, int]] = {}
        """For each machine without a fault, each machine that has everything committed ("complete"), and each link without a
        fault: an object that changes with every restart or reconnection, and the time since which it has been the same."""
        self._lives: dict[str, tuple[object, int]] = {}
        """For each machine: its process, and since when this process has been seen."""
        self._now_ns = 0
        self._committed = 0
        self._progress_ns = 0
        """Time at which a leader last existed, or an entry was last committed."""
        self._judged_ns = 0
        """End of the last period that was counted in ``judged``."""
        self.judged = 0
        """Number of separate periods of ``bound_ns`` in which a majority could elect."""

    def look(self, now_ns: int) -> None:
        """Check the present state. To be called often."""
        self._now_ns = now_ns
        highest = self._invariants.highest_committed
        if highest > self._committed or self._is_led():
            self._committed, self._progress_ns = highest, now_ns
        since_ns = self._able_since(now_ns)
        if since_ns is None:
            return
        if now_ns - max(since_ns, self._judged_ns) >= self._bound_ns:
            self.judged += 1
            self._judged_ns = now_ns
        waited_ns = now_ns - max(since_ns, self._progress_ns)
        if waited_ns > self._bound_ns:
            self._invariants.violated(
                "liveness", f"for {waited_ns / SECOND:.2f} s a majority could elect a leader, but there was none and no commit"
            )

    def may_delay_election(self, target: str, message: object) -> bool:
        """Whether a late message to ``target`` may delay an election. It may count as contact with a leader, raise a term, start
        or win an election, or change which process is accepted. Most kinds have no such effect at a node with a higher term."""
        if isinstance(message, _WITHOUT_EFFECT):
            return False
        machine = next((machine for machine in self._machines if machine.name == target), None)
        if isinstance(message, _OF_ONE_TERM) and machine is not None and machine.raft is not None:
            return message.term >= machine.raft.term
        return True

    def voters(self) -> list[Machine]:
        """Machines whose process may vote by the committed configuration."""
        return [
            machine
            for machine in self._machines
            if machine.raft is not None and machine.raft.incarnation == self._voting_incarnation(machine.name)
        ]

    def _voting_incarnation(self, name: str) -> int | None:
        """The incarnation of ``name`` that may vote by the committed configuration; None if there is none."""
        members = self._invariants.members
        if members is not None:
            return members[name].incarnation if name in members and members[name].votes else None
        return self._invariants.joined.get(name, self._founder(name))

    def suffices(self, names: Collection[str]) -> bool:
        """Whether these machines are enough to elect. If the members change, the machines must be a quorum of the committed
        configuration. They must also be a quorum of the newest configuration in each of their logs, because each of them may have
        to lead."""
        if not self._members_change:
            return len(names) >= self._majority
        found = [m.raft for m in self._machines if m.name in names and isinstance(m.raft, RaftNode)]
        known = [self._invariants.members] if self._invariants.members is not None else []
        for members in [*known, *(node.configuration.members for node in found if node.configuration.members)]:
            counted = sum(
                members[node.node_id].votes and members[node.node_id].incarnation == node.incarnation
                for node in found
                if node.node_id in members
            )
            if counted < quorum_of(members):
                return False
        return len(found) >= 1

    def has(self, machine: Machine, index: int) -> bool:
        """Whether the log of ``machine`` has the entry that was committed at ``index``."""
        raft, committed = machine.raft, self._invariants.committed.get(index)
        if raft is None or committed is None:
            return index == 0
        return raft.last_index >= index and raft.term_at(index) == committed.term

    def _founder(self, name: str) -> int | None:
        for machine in self._machines:
            founders = getattr(machine.raft, "founders", None)
            if founders:
                return int(founders[name]) if name in founders else None
        return None

    def _is_led(self) -> bool:
        """Whether there is a leader that a majority follows and can answer. A leader without contact has to step down."""
        for leader in self._machines:
            if leader.raft is None or leader.raft.role != "leader" or self._is_stalled(leader):
                continue
            following = sum(
                machine.raft.leader_id == leader.name and machine.raft.term == leader.raft.term
                for machine in self._machines
                if machine.raft is not None and not self._is_cut(leader.name, machine.name)
            )
            needed = self._majority
            if self._members_change and isinstance(leader.raft, RaftNode):
                needed = leader.raft.context.quorum
            if following >= needed:
                return True
        return False

    def _is_stalled(self, leader: Machine) -> bool:
        """Whether the leader should have stepped down because its disk does not finish a sync of the log. Time in which the
        process was paused does not count."""
        if not isinstance(leader.raft, RaftNode) or leader.raft.context.quorum == 1:
            return False
        limit_ns = STALLED_FACTOR * leader.raft.config.sync_stall_ms * MS
        return leader.raft.unsynced_seconds * SECOND > limit_ns and self._now_ns - leader.ran_since_ns > limit_ns

    def _is_cut(self, one: str, other: str) -> bool:
        return self._network.is_cut((one, other)) or self._network.is_cut((other, one))

    def _able_since(self, now_ns: int) -> int | None:
        """Since when a majority has been able to elect. None: no majority is able to."""
        self._note_what_is_steady(now_ns)
        able = [machine.name for machine in self._machines if (machine.name,) in self._steady]
        since: list[int] = []
        sizes = range(1, len(able) + 1) if self._members_change else (self._majority,)
        for names in (names for size in sizes for names in combinations(able, size)):
            if self._members_change and not self.suffices(names):
                continue
            complete = [self._steady[name, "complete"][1] for name in names if (name, "complete") in self._steady]
            needed = [(name,) for name in names] + [(one, other) for one in names for other in names if one != other]
            if complete and all(what in self._steady for what in needed):
                since.append(max(min(complete), *(self._steady[what][1] for what in needed)))
        return max(min(since), self._network.last_repeat_ns) if since else None

    def _note_what_is_steady(self, now_ns: int) -> None:
        present: dict[tuple[str, ...], object] = {}
        for machine in self._machines:
            if machine.name not in self._lives or self._lives[machine.name][0] is not machine.life:
                self._lives[machine.name] = machine.life, now_ns
        for machine in self.voters():
            disk = machine.disk
            if machine.boots > 1 and now_ns < self._lives[machine.name][1] + SILENCE_NS:
                continue
            if machine.pauses or machine.restored or machine.name in self._network.copies:
                continue
            if disk.full or disk.failing or disk.hung or disk.slow_ms:
                continue
            assert machine.raft is not None
            present[machine.name,] = (machine.life, machine.ran_since_ns, machine.raft.incarnation)
            if self.has(machine, self._invariants.highest_committed):
                present[machine.name, "complete"] = True
        for link in self._network.links:
            connection = self._network.undisturbed(link)
            if connection is not None:
                present[link] = connection
        for gone in self._steady.keys() - present.keys():
            del self._steady[gone]
        for key, what in present.items():
            known = self._steady.get(key)
            if known is None or known[0] != what:
                self._steady[key] = (what, now_ns)

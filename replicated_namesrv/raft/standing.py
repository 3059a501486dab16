"""Decides which process may represent an incarnation of a peer.

A restarted process may. A process that lost data may not, and a second process may not either.

An incarnation is one data directory. Raft relies on its acknowledgements and votes. So a directory that was rolled back to an
older image (restored volume, virtual machine reset to a snapshot) must not vote any more, and of two processes on copies of one
directory neither may vote. Every process introduces itself with a nonce and with the content of its disk. Every node remembers,
per incarnation of a peer, the most advanced content of its disk (records, term, last entry). This memory is volatile: a
regression that only a lost node could have noticed is not detected (DESIGN.md, "Rolled-back disks"). A process that any peer
contests sends only greetings, hints of members and introductions, to all peers. A process whose disk lacks data that a peer
remembers rejoins by itself, whatever its standing (``membership.py``).

``IncarnationRecord.judge`` decides by the first row that matches:

| row | process        | its memory             | another one lately | standing  | why                                         |
|-----|----------------|------------------------|--------------------|-----------|---------------------------------------------|
| S1 | any, not fresh | any                    | any                | PENDING   | may be a late copy: must echo our number    |
| S7 | current, back  | any                    | any                | REGRESSED | its machine was reset, memory included      |
| S2 | current        | any                    | no                 | ACCEPTED  | it still runs                               |
| S3 | current        | any                    | yes                | CONTESTED | two processes on copies of one directory    |
| S4 | other          | lacks, or boot repeats | yes                | CONTESTED | a copy of an older directory was started    |
| S5 | other          | lacks, or boot repeats | no                 | REGRESSED | the directory was rolled back: rejoin       |
| S6 | other          | whole, later boot      | any                | ACCEPTED  | a restart; if the old process runs on: S3.  |
|    |                |                        |                    |           | Or the first process that this node meets   |

"Fresh": it echoes a number that we have sent since we first received its introduction. "Current": the process that was accepted
last. "Memory" is what was on the disk when the process started: records in the log, term, last entry. "Lacks": an earlier process
of the incarnation had more. "Lately" is within the contest time (``election_max_ms``). The first process of an incarnation that
this node meets counts as another one with a later boot. Its memory is compared too, because votes and acknowledgements of the
incarnation may already be remembered.

The introductions of a process have ascending sequence numbers, and each echoes the newest number of ours that the process has
received. Both only rise. A process went *back* if it sends a sequence number again that it has already used, together with a
newer echo than before, or a newer sequence number with an older echo. A late copy of an introduction has its old echo, and is
dropped.

A node has one incarnation at a time. A process that was accepted by the table above is then compared with the known
incarnation of its node (``PeerMemories.judge_beside``):

| row | known incarnation | its last contact                         | standing  | why                                          |
|-----|-------------------|------------------------------------------|-----------|----------------------------------------------|
| I1  | none, or the same | any                                      | ACCEPTED  |                                              |
| I2  | another           | not within the contest time              | ACCEPTED  | a disk was replaced, or a node rejoined      |
| I3  | another           | after the first contact of the new one   | CONTESTED | two directories are in use                   |
| I4  | another           | before that, within the contest time     | PENDING   | it may be gone: wait for the contest time    |

A new incarnation has to introduce itself at least once per contest time. After a longer silence its next contact counts as its
first. The known incarnation stays accepted in I3 and I4.

The tests have the names of the rows: ``tests/raft/test_standing.py``.
"""

from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

from replicated_namesrv.raft.configuration import Configuration
from replicated_namesrv.raft.interfaces import NEVER
from replicated_namesrv.raft.raft_messages import Introduction

PROCESSES_MAX = 8
"""Maximum number of processes remembered per incarnation. If there are more, the process with the oldest contact is forgotten and
has to echo again."""
INCARNATIONS_MAX = 8
"""Maximum number of incarnations remembered per peer, besides the incarnations that vote. If there are more, the incarnation with
the oldest contact is forgotten."""
ROWS = ("S1", "S2", "S3", "S4", "S5", "S6", "S7", "I1", "I2", "I3", "I4")


class Standing(IntEnum):
    """A node's judgement of a process of a peer."""

    PENDING = 0
    """The process has not echoed one of our numbers yet, so it may have ended long ago."""
    ACCEPTED = 1
    """The process represents its incarnation."""
    CONTESTED = 2
    """Another process uses the same node name. Both are ignored until one of them is silent."""
    REGRESSED = 3
    """The process's disk or memory lacks data that its incarnation had. It has to rejoin as a new incarnation."""


class Memory(NamedTuple):
    """The data that must be on the disk of an incarnation after any restart."""

    number: int
    """Number of records in the log. The log is one stream (entry_log.py), so this number never decreases."""
    term: int
    """The term never decreases, nor does the last acknowledged entry within a term."""
    acknowledged: int

    def merged(self, other: "Memory") -> "Memory":
        """The maximum of both. Entries acknowledged in an earlier term may have been cut in a later one."""
        return Memory(max(self.number, other.number), *max((self.term, self.acknowledged), (other.term, other.acknowledged)))

    def missing_in(self, opened: "Memory") -> bool:
        """Whether a disk lacks some of this data. ``opened``: the disk's content when it was opened. Its field ``acknowledged``
        is the index of the last entry on the disk."""
        return opened.number < self.number or opened[1:] < self[1:]


NOTHING = Memory(0, 0, 0)


class _Process:
    """Facts about one process of a peer."""

    __slots__ = ("challenge", "echoed", "fresh_at", "sequence", "went_back")

    def __init__(self, challenge: int) -> None:
        self.challenge = challenge
        """A number of ours. The process is alive if it echoes this number or a later one."""
        self.fresh_at = NEVER
        self.sequence = self.echoed = 0
        """The greatest sequence number of its introductions, and the greatest number of ours that they echoed."""
        self.went_back = False


class IncarnationRecord:
    """A node's memory of one incarnation of a peer."""

    def __init__(self) -> None:
        self.memory = NOTHING
        self.boot = 0
        self.standing = Standing.PENDING
        """Standing of the process that introduced itself last."""
        self.current = 0
        """The process that was accepted last, 0 for none."""
        self._processes: dict[int, _Process] = {}

    def note(self, memory: Memory) -> None:
        """The incarnation has shown that this content is on its disk."""
        self.memory = self.memory.merged(memory)

    def judge(
        self,
        said: Introduction,
        own_process: int,
        next_sequence: int,
        now: float,
        contest_s: float,
        *,
        regressions: bool = True,
        single_process: bool = True,
    ) -> Standing | None:
        """The standing of the process that sent ``said``; None if ``said`` is a late or repeated copy.

        ``own_process``, ``next_sequence``: our process, and the number of our next introduction. ``contest_s``: seconds in
        which contact with another process counts as recent. ``regressions``, ``single_process``: the defences of these names.
        """
        process = self._processes.get(said.process)
        if process is None:
            if len(self._processes) >= PROCESSES_MAX:
                del self._processes[min(self._processes, key=lambda number: self._processes[number].fresh_at)]
            process = self._processes[said.process] = _Process(next_sequence)
        if said.sequence <= process.sequence:
            is_current = said.process == self.current and said.echo_process == own_process
            process.went_back |= regressions and is_current and said.echo_sequence > process.echoed
            return Standing.REGRESSED if process.went_back else None  # S7
        if said.echo_process != own_process or said.echo_sequence < process.challenge:
            return Standing.PENDING  # S1. The sequence number may be wrong, so it is not stored.
        process.went_back |= regressions and said.process == self.current and said.echo_sequence < process.echoed
        if process.went_back:
            return Standing.REGRESSED  # S7
        process.sequence, process.echoed = said.sequence, max(process.echoed, said.echo_sequence)
        process.fresh_at = now
        contested = single_process and any(
            now - other.fresh_at < contest_s for number, other in self._processes.items() if number != said.process
        )
        if said.process == self.current:
            if contested:
                return Standing.CONTESTED  # S3
        else:
            opened = Memory(said.opened_number, said.opened_term, said.opened_index)
            repeated = single_process and self.current != 0 and said.boot <= self.boot
            if repeated or (regressions and self.memory.missing_in(opened)):
                return Standing.CONTESTED if contested else Standing.REGRESSED  # S4, S5
            # Earlier processes have to echo again to show that they are alive, because old messages of theirs may still arrive.
            for number, other in self._processes.items():
                if number != said.process:
                    other.challenge, other.fresh_at = next_sequence, NEVER
        self.current, self.boot = said.process, max(self.boot, said.boot)
        self.note(Memory(said.durable_number, said.opened_term, 0))
        return Standing.ACCEPTED  # S2, S6

    @property
    def last_contact_at(self) -> float:
        """When the current process last introduced itself."""
        process = self._processes.get(self.current)
        return NEVER if process is None else process.fresh_at


class _Newcomer(NamedTuple):
    """An incarnation of a peer other than the known one."""

    incarnation: int
    first_contact_at: float
    last_contact_at: float


class PeerMemories:
    """A node's memory of its peers: for each, records of the incarnations with which it had contact."""

    def __init__(self, peers: Iterable[str], configuration: Configuration) -> None:
        """The records of incarnations that vote according to ``configuration`` are kept."""
        self._configuration = configuration
        self._by_peer: dict[str, dict[int, IncarnationRecord]] = {peer: {} for peer in peers}
        self._newcomers: dict[str, _Newcomer] = {}

    def add(self, peer: str) -> None:
        """There is a new peer. The memory of a peer that is removed stays, because its directory may return."""
        self._by_peer.setdefault(peer, {})

    def record(self, peer: str, incarnation: int) -> IncarnationRecord:
        """The record of ``incarnation``, created if there is none."""
        records = self._by_peer[peer]
        record = records.pop(incarnation, None) or IncarnationRecord()
        records[incarnation] = record  # the most recently used record is last
        if len(records) > INCARNATIONS_MAX:
            voting = self._configuration.applied.get(peer), self._configuration.latest.get(peer), incarnation
            others = [number for number in records if number not in voting]
            if len(others) >= INCARNATIONS_MAX:
                del records[others[0]]
        return record

    def memory(self, peer: str, incarnation: int) -> Memory:
        """The data that must be on the disk of this incarnation of ``peer``."""
        return self.record(peer, incarnation).memory

    def remember(self, peer: str, incarnation: int, memory: Memory) -> None:
        """Remember that this is on the disk of ``peer``."""
        self.record(peer, incarnation).note(memory)

    def judge_beside(
        self, peer: str, incarnation: int, known: int, now: float, contest_s: float, *, single_process: bool = True
    ) -> Standing:
        """The standing of an accepted process in relation to the ``known`` incarnation of ``peer`` (0: none)."""
        if known in (0, incarnation) or not single_process:
            return Standing.ACCEPTED  # I1
        newcomer = self._newcomers.get(peer)
        if newcomer is None or newcomer.incarnation != incarnation or now - newcomer.last_contact_at >= contest_s:
            newcomer = _Newcomer(incarnation, now, now)
        self._newcomers[peer] = newcomer._replace(last_contact_at=now)
        last_contact_at = self.record(peer, known).last_contact_at
        if now - last_contact_at >= contest_s:
            return Standing.ACCEPTED  # I2
        if last_contact_at > newcomer.first_contact_at:
            return Standing.CONTESTED  # I3
        return Standing.PENDING  # I4

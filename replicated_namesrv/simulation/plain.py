"""Unmodified PySyncObj in the same simulator, for comparison with our core.

Its consensus code is unchanged. Its clock is the machine's, its random election times come from the seed, and its nodes are
ordered as ours are. A command goes to the register directly instead of through pickle.

In its favour:

- Links never lose or repeat a message within a connection, as with TCP.
- Its journal, which it never syncs, loses nothing in a power loss.
- The log is never compacted, because a compaction interrupted by a kill loses acknowledged entries.
- Reads count only on a node that regards itself as the leader.

Some violations are counted but do not end a run, so that worse ones can be found. Followers cut committed entries and decrease
their commit index, even without any fault. Some proposals never end. A leader that was cut off continues for half a minute.
Returning nodes depose the leader.
"""

import logging
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from replicated_namesrv.raft.interfaces import (
    FOREVER,
    Committed,
    Indeterminate,
    Outcome,
    ReadOutcome,
    ReadReady,
    Rejected,
    Work,
)
from replicated_namesrv.raft.memory_bounds import Bounded
from replicated_namesrv.raft.pysyncobj_core import PlainSyncObj
from replicated_namesrv.raft.raft_messages import Message
from replicated_namesrv.simulation.application import Application, RegisterApplication, RegisterStateMachine
from replicated_namesrv.simulation.fault_schedule import LONG
from replicated_namesrv.simulation.machine import Machine, ProcessLife
from replicated_namesrv.simulation.simulation import Simulation
from replicated_namesrv.simulation.world import MS, SECOND

_COUNTED = ("no truncation", "commit index", "apply", "every proposal ends", "deposed leader", "no disruption")
_NEVER_NS = 1 << 62
_TICK_S = 0.05
_ELECTION_MAX_MS = 1_400
_SURELY_NOT = ("QUEUE_FULL", "MISSING_LEADER", "DISCARDED", "NOT_LEADER", "REQUEST_DENIED")


class PlainJournal:
    """Duck type of pysyncobj's journal. It lives as long as the machine's disk."""

    def __init__(self) -> None:
        self.entries: list[tuple[bytes, int, int]] = []
        self._meta: dict[str, Any] = {}
        self.cut: Callable[[int], None] = lambda index: None

    def add(self, command: bytes, idx: int, term: int) -> None:
        self.entries.append((command, idx, term))

    def clear(self) -> None:
        self.entries.clear()

    def deleteEntriesFrom(self, entryFrom: int) -> None:  # noqa: N802, N803 - the name is PySyncObj's
        if entryFrom < len(self.entries):
            self.cut(self.entries[entryFrom][1])
            del self.entries[entryFrom:]

    def deleteEntriesTo(self, entryTo: int) -> None:  # noqa: N802, N803 - the name is PySyncObj's
        del self.entries[:entryTo]

    def __getitem__(self, item: Any) -> Any:
        return self.entries[item]

    def __len__(self) -> int:
        return len(self.entries)

    def setRaftCommitIndex(self, raftCommitIndex: int) -> None:  # noqa: N802, N803 - the name is PySyncObj's
        self._meta["commit"] = raftCommitIndex

    def getRaftCommitIndex(self) -> int:  # noqa: N802 - the name is PySyncObj's
        return int(self._meta.get("commit", 1))

    def setCurrentTerm(self, term: int, votedForNodeId: str | None) -> None:  # noqa: N802, N803 - the name is PySyncObj's
        self._meta["term"], self._meta["vote"] = term, votedForNodeId

    def getCurrentTerm(self) -> int:  # noqa: N802 - the name is PySyncObj's
        return int(self._meta.get("term", 0))

    def getVotedForNodeId(self) -> str | None:  # noqa: N802 - the name is PySyncObj's
        vote: str | None = self._meta.get("vote")
        return vote

    def onOneSecondTimer(self) -> None:  # noqa: N802 - the name is PySyncObj's
        pass

    def _destroy(self) -> None:
        pass


class PlainNode:
    """One PySyncObj process: ``Process``, ``RaftView`` and the calls of clients."""

    failed: BaseException | None = None
    stopped = False
    incarnation = 0
    first_index = 1

    def __init__(
        self,
        name: str,
        members: Sequence[str],
        life: ProcessLife,
        rng: Random,
        journal: PlainJournal,
        state: RegisterStateMachine,
    ) -> None:
        self._life, self._journal, self._state = life, journal, state
        self._sync_obj = PlainSyncObj(name, list(members), journal, life.now, rng.random, life.send, self._apply)

    def _apply(self, command: bytes) -> object:
        return self._state.apply(command), self._sync_obj.raftLastApplied + 1

    @property
    def role(self) -> str:
        return self._sync_obj.role

    @property
    def term(self) -> int:
        return self._sync_obj.raftCurrentTerm

    @property
    def leader_id(self) -> str | None:
        return self._sync_obj.leader_id

    @property
    def commit_index(self) -> int:
        return self._sync_obj.raftCommitIndex

    @property
    def applied_index(self) -> int:
        return self._sync_obj.raftLastApplied

    @property
    def last_index(self) -> int:
        return int(self._journal.entries[-1][1])

    durable_index = last_index

    def _entry(self, index: int) -> tuple[bytes, int, int] | None:
        at = index - self._journal.entries[0][1]
        return self._journal.entries[at] if 0 <= at < len(self._journal.entries) else None

    def term_at(self, index: int) -> int | None:
        entry = self._entry(index)
        return None if entry is None else entry[2]

    def entry_at(self, index: int) -> bytes | None:
        entry = self._entry(index)
        return None if entry is None else entry[0]

    def memory(self) -> dict[str, Bounded]:
        return {}

    def on_connected(self, peer: str) -> None:
        self._sync_obj.connected(peer)

    def on_disconnected(self, peer: str) -> None:
        self._sync_obj.disconnected(peer)

    def on_message(self, peer: str, message: Message) -> Work:
        self._sync_obj.received(peer, message)
        return Work.TICK

    def on_synced(self, token: int) -> None:
        pass

    def on_sync_failed(self, token: int, error: BaseException) -> None:
        pass

    def tick(self) -> None:
        self._sync_obj.tick()

    def tick_reads(self) -> None:
        pass

    def next_wakeup(self) -> float:
        return self._life.now() + _TICK_S

    def next_read_wakeup(self) -> float:
        return FOREVER

    def stop(self) -> None:
        self.stopped = True

    def propose(self, command: bytes, done: Callable[[Outcome], None], timeout_ms: int | None = None) -> None:
        def ended(result: Any, reason: str) -> None:
            if reason == "SUCCESS":
                position, index = result
                done(Committed(position, index, self.term_at(index) or 0))
            else:
                done((Rejected if reason in _SURELY_NOT else Indeterminate)(reason))

        self._sync_obj.propose(command, ended)

    def read_index(self, done: Callable[[ReadOutcome], None]) -> None:
        if self.role == "leader" and self._sync_obj.isReady():
            done(ReadReady(self.applied_index, self.term))
        else:
            done(Rejected("not the leader"))

    lease_read = read_index


def build_plain(simulation: Simulation) -> Application:
    """Plain PySyncObj, with registers on top."""
    # PySyncObj's warnings are not shown, because they are counted here
    logging.getLogger("pysyncobj").setLevel(logging.CRITICAL + 1)
    simulation.invariants.tolerated.update(dict.fromkeys(_COUNTED, 0))
    simulation.invariants.deposed_ns = 2 * _ELECTION_MAX_MS * MS
    simulation.nemesis.spared = frozenset(("loss", "repeats", "echoes", "no_memory", "burst", "split_votes", LONG))
    journals = {name: PlainJournal() for name in simulation.names}

    def boot(machine: Machine, state: RegisterStateMachine) -> tuple[PlainNode, PlainNode, PlainNode]:
        assert machine.life is not None
        journal = journals[machine.name]
        journal.cut = lambda index: machine.observer.truncated(index, 0)
        node = PlainNode(machine.name, simulation.names, machine.life, machine.life.rng, journal, state)
        return node, node, node

    rng = simulation.world.random("load")
    application = RegisterApplication(
        simulation.world,
        simulation.invariants,
        simulation.ledger,
        boot,
        clients=simulation.scenario.clients or rng.choice((2, 4, 8)),
        catch_up_ns=5 * _ELECTION_MAX_MS * MS,
        drain_ns=30 * SECOND,
        proposal_limit_ns=_NEVER_NS,
        read_limit_ns=_NEVER_NS,
        lease_share=0.0,
        ballast=0,
        slice_bytes=4_096,
    )
    application.machines = simulation.machines
    application.must_read = lambda machine: machine.raft is not None and machine.raft.role == "leader"
    return application

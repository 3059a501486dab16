"""The parts of a process and of its machine that the simulator uses."""

from collections.abc import Mapping
from typing import Protocol

from replicated_namesrv.raft.interfaces import Work
from replicated_namesrv.raft.memory_bounds import Bounded
from replicated_namesrv.raft.raft_messages import Message


class RaftView(Protocol):
    """The part of a process that the invariants read. ``RaftNode`` implements it, and an adapter implements it for plain
    PySyncObj."""

    @property
    def role(self) -> str: ...

    @property
    def term(self) -> int: ...

    @property
    def leader_id(self) -> str | None: ...

    @property
    def commit_index(self) -> int: ...

    @property
    def applied_index(self) -> int: ...

    @property
    def first_index(self) -> int: ...

    @property
    def last_index(self) -> int: ...

    @property
    def durable_index(self) -> int: ...

    @property
    def incarnation(self) -> int: ...

    @property
    def failed(self) -> BaseException | None: ...

    @property
    def stopped(self) -> bool: ...

    def term_at(self, index: int) -> int | None: ...

    def entry_at(self, index: int) -> bytes | None: ...

    def memory(self) -> Mapping[str, Bounded]:
        """Memory used for its peers, its disk and its callers, each with its bound."""


class Process(Protocol):
    """The process on a machine: a ``RaftNode``, or an object around one."""

    def on_connected(self, peer: str) -> None: ...

    def on_disconnected(self, peer: str) -> None: ...

    def on_message(self, peer: str, message: Message) -> Work: ...

    def on_synced(self, token: int) -> None: ...

    def on_sync_failed(self, token: int, error: BaseException) -> None: ...

    def tick(self) -> None: ...

    def tick_reads(self) -> None: ...

    def next_wakeup(self) -> float: ...

    def next_read_wakeup(self) -> float: ...

    def stop(self) -> None: ...


class MachineView(Protocol):
    """The part of a machine that the invariants read."""

    @property
    def name(self) -> str: ...

    @property
    def speaks_as(self) -> str:
        """Name in the cluster. A process on a copy of a machine's directory uses that machine's name."""

    @property
    def raft(self) -> RaftView | None: ...

    @property
    def life(self) -> object:
        """A different object for each process that was started."""

    @property
    def ran_since_ns(self) -> int:
        """Since when the process has run without a pause."""

"""Consensus: the interface between the parts of a node and Raft.

``Consensus`` is the interface. ``RaftConsensus`` implements it. Only ``RaftConsensus`` uses ``RaftService``, and it observes the
Raft node of the service. Each event of Raft has one callback, which the owner sets before ``start``. ``CommandProposer`` proposes
commands.

**Command versions.** A node that does not know a command stops (``UnknownCommandError``). So a command of a newer version may be
proposed only when every member can apply it:

    version of the command                        the proposal is
    <= newest version of a command applied here   accepted: a member that could not apply it has stopped already
    <= version named in every member's greeting   accepted
    otherwise                                     rejected, certainly not applied: upgrade every member first

The newest version applied is part of the state (``RouteStateMachine.command_version``) and survives restarts. Otherwise a
restarted node could propose commands that the cluster already uses only after a greeting from every other member.
"""

import asyncio
import logging
from asyncio import Future
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from replicated_namesrv.errors import OutcomeUnknownError, SettingError, StorageError, UnavailableError
from replicated_namesrv.model import ChangeOrigin
from replicated_namesrv.raft.identity import group_of
from replicated_namesrv.raft.interfaces import NEVER, Committed, Observer, Outcome, ReadOutcome, ReadReady, Rejected, StateMachine
from replicated_namesrv.raft.member_changes import MemberChange
from replicated_namesrv.raft.members import Members
from replicated_namesrv.raft.raft_config import RaftConfig
from replicated_namesrv.raft.raft_errors import RaftError
from replicated_namesrv.raft.raft_node import RaftNode
from replicated_namesrv.raft.raft_service import RaftService
from replicated_namesrv.raft.transport import PeerTransport, TransportSettings
from replicated_namesrv.replication.command_kinds import ORIGIN_VERSION, version_of
from replicated_namesrv.replication.raft_metrics import measurements
from replicated_namesrv.replication.route_machine import ProposalResult, RouteStateMachine, encode_attributed
from replicated_namesrv.replication.tasks import Budget, Tasks
from replicated_namesrv.routes.quotas import Grant, Quotas
from replicated_namesrv.service import Connection, Measurement
from replicated_namesrv.time_limit import ends_within

log = logging.getLogger(__name__)

NO_MAJORITY = "this node reaches no leader that has a majority"
HAND_OVER_TIMEOUT_S = 2.0
"""Maximum time for which a stopping leader waits for its successor. Raft ends an unfinished transfer after twice
electionTimeoutMs. So this limit ends the wait only if electionTimeoutMs is above 1,000."""
STARTING = "this node is starting, and reads its log"
CATCH_UP_PAUSE_S = 0.5
"""Pause after a rejected read index, before a node that has not caught up requests the next one. Without the pause, a node whose
requests are rejected at once would repeat them without end."""
MEMBER_CHANGE_WAIT_S, MEMBER_CHANGE_PAUSE_S = 2.0, 0.05
"""For how long a change of a member is repeated while its refusal is temporary, and the pause between two attempts."""


class Consensus(Protocol):
    """The methods of Raft that a node's parts use."""

    def propose(self, command: bytes, version: int, timeout_ms: int | None = None) -> "Future[Outcome]":
        """Apply ``command`` once on every node and return the outcome; the Future never fails. ``version``: the command version
        that it needs, 1 for commands that all versions apply. ``timeout_ms`` None: the time limit of all requests."""

    def read_index(self) -> "Future[ReadOutcome]":
        """Completes when the local state includes everything acknowledged before this call. All parts that need to know of a
        confirmation are notified before the caller."""

    @property
    def confirmed_ms(self) -> float:
        """The latest time, by ``now_ms``, for which heartbeats confirm the same as a read index that was requested then. Minus
        infinity if there is none."""

    def lease_valid(self) -> bool:
        """Whether the local state may be read now without asking other nodes."""

    def tell(self, peer: str, data: bytes) -> None:
        """Send to another node; may be lost."""

    @property
    def command_version(self) -> int:
        """The newest version of commands that may be proposed now."""

    @property
    def led_term(self) -> int | None:
        """The current term if this node leads it."""

    @property
    def term(self) -> int:
        """The current term."""

    @property
    def leader(self) -> str | None:
        """The leader of the current term, if known."""

    @property
    def removed(self) -> str | None:
        """Why this node does not serve, if it was removed from the cluster."""


class RaftDriver(Protocol):
    """The methods of ``RaftService`` that ``RaftConsensus`` uses. The simulator implements them, too."""

    node: RaftNode
    """The node. ``start`` creates it; before that, the attribute does not exist."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def propose(self, command: bytes, timeout_ms: int | None = None, version: int = 0) -> "Future[Outcome]": ...

    def read_index(self) -> "Future[ReadOutcome]": ...

    def lease_valid(self) -> bool: ...

    def disk_is_short(self, short: bool) -> None: ...

    def transfer_leadership(self, peer: str | None) -> Future[bool]: ...

    def change_member(self, change: MemberChange) -> Future[Outcome]: ...

    def tell(self, peer: str, data: bytes) -> None: ...

    def status(self) -> dict[str, object]: ...

    def contacts(self) -> dict[str, object]: ...


RaftFactory = Callable[[RouteStateMachine, RaftConfig, Observer], RaftDriver]


def raft_on_sockets(
    transport: TransportSettings,
    folder: Path,
    machine: StateMachine,
    advertised: Mapping[str, tuple[str, int]] | None = None,
    joins: bool = False,
    dial: Mapping[str, tuple[str, int]] | None = None,
) -> RaftFactory:
    """Raft with real sockets and files. ``machine`` is the replicated state machine. ``advertised``, ``joins``, ``dial``: as for
    ``RaftService``."""
    return lambda routes, config, observer: RaftService(
        transport, folder, machine, config, observer, advertised=advertised, joins=joins, dial=dial
    )


def _rejected() -> "Future[Any]":
    """The outcome of a request while the log is being opened, which can take seconds."""
    outcome: Future[Any] = asyncio.get_running_loop().create_future()
    outcome.set_result(Rejected(STARTING, None))
    return outcome


async def confirm(consensus: Consensus) -> None:
    """Wait until this node has applied everything acknowledged before. Raises UnavailableError."""
    outcome = await consensus.read_index()
    if not isinstance(outcome, ReadReady):
        raise UnavailableError(outcome.reason)


class RaftConsensus(Observer):
    """Raft on one node, on the node's event loop."""

    def __init__(
        self,
        node_id: str,
        members: Sequence[str],
        raft: RaftFactory,
        machine: RouteStateMachine,
        config: RaftConfig,
        now_ms: Callable[[], float],
    ) -> None:
        """``members``: names of the members; the owner keeps this list current (``on_members``). ``now_ms``: a clock that never
        stops."""
        self._node_id, self._members, self._machine = node_id, members, machine
        self._now_ms = now_ms
        self.on_confirmed: Callable[[float], None] = lambda asked_ms: None
        """Called when a majority has confirmed a read index that was requested at this time."""
        self.on_leading: Callable[[int], None] = lambda term: None
        """Called when this node leads the term, in a later turn of the loop."""
        self.on_leader: Callable[[str | None, int], None] = lambda leader, term: None
        """Called when the leader known to this node has changed; None: unknown."""
        self.on_applied: Callable[[int], None] = lambda term: None
        """Called when an entry of that term was applied."""
        self.on_restored: Callable[[], None] = lambda: None
        """Called when the state was replaced by a snapshot."""
        self.on_members: Callable[[], None] = lambda: None
        """Called when the members have changed."""
        self.on_message: Callable[[str, bytes], None] = lambda peer, data: None
        """Called when a message that another node sent with ``tell`` has arrived."""
        self.waits_for: str | None = None
        """Why this node has not caught up with a majority since its start; None: it has, or it has not tried yet."""
        self.on_failed: Callable[[str], None] = lambda reason: None
        """Called when Raft has stopped permanently."""
        self._confirmed_at = self._confirmed_ms = NEVER
        """The newest confirmation by heartbeats: its time by Raft's clock, and by ``now_ms``."""
        self._raft = raft(machine, config, self)

    # Callers

    def propose(self, command: bytes, version: int, timeout_ms: int | None = None) -> "Future[Outcome]":
        if self._node is None:
            return _rejected()
        return self._raft.propose(command, timeout_ms, version if version > self._machine.command_version else 0)

    def read_index(self) -> "Future[ReadOutcome]":
        question = _rejected() if self._node is None else self._raft.read_index()
        question.add_done_callback(partial(self._answered, self._now_ms()))
        return question

    def _answered(self, asked_ms: float, answer: "Future[ReadOutcome]") -> None:
        if not answer.cancelled() and isinstance(answer.result(), ReadReady):
            self.on_confirmed(asked_ms)

    @property
    def confirmed_ms(self) -> float:
        confirmed_at = NEVER if self._node is None else self._node.confirmed_at
        if confirmed_at > self._confirmed_at:  # converted once, because rounding must not make the same time look newer
            self._confirmed_at = confirmed_at
            self._confirmed_ms = self._now_ms() - (self._raft.node.context.now() - confirmed_at) * 1000
        return self._confirmed_ms if confirmed_at == self._confirmed_at else NEVER

    def lease_valid(self) -> bool:
        return self._raft.lease_valid()

    def tell(self, peer: str, data: bytes) -> None:
        self._raft.tell(peer, data)

    @property
    def command_version(self) -> int:
        node = self._node
        return self._machine.command_version if node is None else max(self._machine.command_version, node.command_version)

    @property
    def states_differ(self) -> bool:
        """Whether no majority has one state, so that nothing can be written."""
        node = self._node
        return node is not None and bool(node.digests.mismatch_index)

    @property
    def led_term(self) -> int | None:
        node = self._node
        return node.term if node is not None and node.core.is_leader else None

    @property
    def term(self) -> int:
        return self._raft.node.term

    @property
    def leader(self) -> str | None:
        return self._raft.node.leader_id

    # Start and stop

    async def start(self) -> None:
        """Open the log and join. Raises StorageError."""
        try:
            await self._raft.start()
        except (RaftError, OSError, ValueError) as error:
            raise StorageError(f"cannot take part in the cluster: {error}") from error

    def waiting(self, reason: str) -> None:
        self._wait_because(reason, logging.WARNING)

    def _wait_because(self, reason: str, level: int) -> None:
        if reason != self.waits_for:
            self.waits_for = reason
            log.log(level, "not caught up with a majority yet: %s", reason)

    async def catch_up(self) -> float:
        """Wait until this node has caught up with a majority, which a read index confirms. Returns the time, by ``now_ms``, at
        which this node requested that read index. Raises StorageError."""
        while True:
            asked_ms = self._now_ms()
            outcome = await self._raft.read_index()
            if isinstance(outcome, ReadReady):
                self.waits_for = None
                return asked_ms
            if self._raft.node.failed is not None:
                raise StorageError(f"cannot take part in the cluster: {self._raft.node.failed}")
            self._wait_because(outcome.reason, logging.INFO if self.removed is None else logging.ERROR)
            await asyncio.sleep(CATCH_UP_PAUSE_S)

    async def hand_over(self) -> None:
        """Before a stop: if this node leads other nodes, transfer leadership to one of them, which saves the wait for an
        election.
        """
        node = self._node
        if node is not None and node.core.is_leader and len(self._members) > 1:
            await ends_within(HAND_OVER_TIMEOUT_S, self._transfer())

    async def _transfer(self) -> None:
        await self._raft.transfer_leadership(None)

    async def stop(self) -> None:
        """Stop Raft on this node, which stays a member of the cluster. Idempotent."""
        await self._raft.stop()

    def transfer_leadership(self, to: str | None) -> Future[None]:
        """Transfer leadership to ``to``, or to the node with the longest log. Raises SettingError; fails with
        UnavailableError.
        """
        if self._node is None:
            raise UnavailableError(STARTING)
        if self.led_term is None:
            known = f"{self.leader} is" if self.leader else "no leader is known"
            raise SettingError(f"{self._node_id} is not the leader, {known}; ask the leader")
        others = [member for member in self._members if member != self._node_id]
        if not others:
            raise SettingError(f"{self._node_id} is the only node of this cluster; add another one first")
        if to is not None and to not in others:
            raise SettingError(f"{to} is not another node of this cluster; give one of {', '.join(others)}")
        return asyncio.ensure_future(self._transfer_leadership(to))

    async def _transfer_leadership(self, to: str | None) -> None:
        if not await self._raft.transfer_leadership(to):
            text = f"{to}: it does not vote, does not answer," if to else "another node: no other voter answers,"
            raise UnavailableError(f"leadership was not transferred to {text} or lags too far behind the leader")

    def change_member(self, change: MemberChange) -> Future[None]:
        """Change a member through the leader. While the leader commits the change before this one, or hands leadership over, the
        change waits, at most MEMBER_CHANGE_WAIT_S. Fails with SettingError (refused; the message has the remedy),
        UnavailableError (repeat the request, perhaps at another node), or OutcomeUnknownError."""
        return asyncio.ensure_future(self._change_member(change))

    async def _change_member(self, change: MemberChange) -> None:
        ends_at = asyncio.get_running_loop().time() + MEMBER_CHANGE_WAIT_S
        while True:
            outcome = await (_rejected() if self._node is None else self._raft.change_member(change))
            is_passing = isinstance(outcome, Rejected) and outcome.is_passing
            if not is_passing or asyncio.get_running_loop().time() >= ends_at:
                break
            await asyncio.sleep(MEMBER_CHANGE_PAUSE_S)
        if isinstance(outcome, Rejected):
            raise (UnavailableError if is_passing or outcome.leader != self._node_id else SettingError)(outcome.reason)
        if not isinstance(outcome, Committed):
            raise OutcomeUnknownError(outcome.reason)

    @property
    def removed(self) -> str | None:
        """Why this node does not serve, if it was removed from the cluster."""
        return None if self._node is None else self._node.group.removed

    @property
    def group_id(self) -> str:
        """Identifies the cluster that this data directory belongs to. Two clusters of the same name have different ids. Empty
        while it is unknown."""
        return "" if self._node is None else group_of(self._node.identity.founders)

    @property
    def applied_members(self) -> tuple[int, dict[str, str]]:
        """The index of the last applied entry, and the members as applied: kind and address by name."""
        node = self._raft.node
        members = node.configuration.applied_members
        return node.applied_index, {name: f"{m.kind.name.lower()} {m.host}:{m.port}" for name, m in members.items()}

    @property
    def voters(self) -> Collection[str]:
        """Names of the voters, as applied; none while the log is being opened."""
        return () if self._node is None else self._node.configuration.applied_voters

    @property
    def logged_members(self) -> Members | None:
        """The members as applied, if they are in the log. None: they never changed, and are only in the settings."""
        configuration = self._raft.node.configuration
        return None if configuration.is_static else configuration.applied_members

    @property
    def member_names(self) -> list[str]:
        """Names of the members, as applied."""
        return self._raft.node.members

    # For operators

    @property
    def _node(self) -> RaftNode | None:
        return getattr(self._raft, "node", None)

    @property
    def unsynced_ms(self) -> float:
        """Age of the oldest write to the log that is not on the disk."""
        node = self._node
        return 0.0 if node is None else node.unsynced_seconds * 1000

    def disk_is_short(self, short: bool) -> None:
        """Whether the disk of the log is nearly full."""
        self._raft.disk_is_short(short)

    @property
    def peer_refusals(self) -> Mapping[str, int]:
        """Number of refused connections and messages of peers since the start, by the kind of refusal."""
        node, transport = self._node, getattr(self._raft, "transport", None)
        connections = transport.refusals if isinstance(transport, PeerTransport) else {}
        return connections if node is None else {**connections, **node.refusals}

    @property
    def disk_problem(self) -> str | None:
        """The problem of the log's disk, if a sync does not end."""
        node = self._node
        return None if node is None else node.disk_problem

    def standing(self) -> dict[str, object] | None:
        """JSON-able status of this node in its cluster; None before its start."""
        node = self._node
        if node is None:
            return None
        voters = len(node.context.voters)
        return {
            "members": self._members,
            "role": node.role,
            "leader": node.leader_id,
            "term": node.term,
            "commitIndex": node.commit_index,
            "appliedIndex": node.applied_index,
            "lastIndex": node.last_index,
            "quorum": node.context.quorum,
            "mayFail": (voters - 1) // 2,
            "removedBecause": node.group.removed,
        }

    def measurements(self) -> Iterator[Measurement]:
        """Metrics of Raft; none before its start."""
        return iter(()) if self._node is None else measurements(self._node)

    def raft_status(self) -> dict[str, object]:
        """JSON-able details of Raft and its transport."""
        return self._raft.status()

    def contacts(self) -> dict[str, object]:
        """The part of ``raft_status`` about the connections with the peers. It costs little."""
        return self._raft.contacts()

    # Observer

    def role_changed(self, role: str, term: int) -> None:
        if role == "leader":
            asyncio.get_running_loop().call_soon(self._leads, term)

    def _leads(self, term: int) -> None:
        if self.led_term == term:
            self.on_leading(term)

    def leader_changed(self, leader: str | None, term: int) -> None:
        log.info("leader", extra={"leader": leader, "term": term})
        self.on_leader(leader, term)

    def applied(self, index: int, term: int, payload: bytes) -> None:
        self.on_applied(term)

    def restored(self, index: int) -> None:
        self.on_restored()

    def refused(self, peer: str, reason: str) -> None:
        log.warning("%s", reason, extra={"peer": peer})

    def members_changed(self) -> None:
        self.on_members()

    def received(self, peer: str, data: bytes) -> None:
        self.on_message(peer, data)

    def failed(self, error: BaseException) -> None:
        log.error("this node stops: %s", error)
        self.on_failed(str(error))


HEAVY_TOPICS = 5_000
"""A command that concerns more topics than this (some 5 ms if all change) is heavy. The next heavy command of this node waits
until Raft has an outcome for the one before it. Many heavy commands in one entry would keep all nodes busy for longer than an
election takes."""
HEAVY_BYTES = 256 << 10
"""A command with more bytes than this is heavy, too: heartbeats would have to wait behind several such commands that the
leader sends to all followers."""


NS_PER_TOPIC, NS_PER_COMMAND_BYTE = 500, 40
"""Estimated time that one node needs for each topic, and for each byte, of a command. A registration that changes 20,000 topics
is a command of 320 KB: a node applies it in 14 ms, and needs some milliseconds to receive and to write it."""


class CommandProposer:
    """The proposals of one node, on its event loop. Each command has the version that its kind needs (``command_kinds.py``)."""

    def __init__(
        self,
        consensus: Consensus,
        tasks: Tasks,
        budget_ms: int,
        is_fenced: Callable[[], bool],
        quotas: Quotas,
        node_count: int = 1,
    ) -> None:
        """``budget_ms``: time limit of a proposal, including the wait for heavy ones before it. ``node_count``: nodes that apply
        each command."""
        self._node_count, self._quotas = node_count, quotas
        self._consensus, self._tasks, self._budget_ms, self._is_fenced = consensus, tasks, budget_ms, is_fenced
        self._waiting: dict[Future[Outcome], Future[Outcome]] = {}
        """For each proposal without an outcome: the Future of its caller, and the Future of Raft."""
        self._queued: dict[Budget, None] = {}
        """Heavy commands that wait for the one before them."""
        self._heavy = asyncio.Lock()
        """Locked while Raft has a heavy command."""

    async def propose(
        self,
        data: bytes,
        timeout_ms: int | None = None,
        topics: int = 0,
        origin: ChangeOrigin | None = None,
        connection: Connection | None = None,
        grant: Grant | None = None,
    ) -> ProposalResult:
        """Propose a command and return its result. Raises LimitError, UnavailableError or NoPermissionError if the command is
        certainly not applied. Raises OutcomeUnknownError if it may be applied later. The call ends at the latest when this node
        fences itself. Raft may commit the command after the call has ended or was cancelled. Therefore ``grant`` counts as used,
        and the next heavy command waits, until Raft has an outcome.

        ``timeout_ms`` None: the time limit of all requests. ``topics``: number of topics that the command concerns. ``origin`` is
        in the log if every member knows such commands. Its permission is checked again right before the proposal. The estimated
        time that all nodes need for the command is charged to ``connection``, because one address may send commands to every
        node."""
        if origin is not None and self._consensus.command_version >= ORIGIN_VERSION:
            data = encode_attributed(data, origin)
        self._quotas.check_command(len(data))
        if connection is not None and not self._is_fenced():
            connection.charge(self._node_count * (topics * NS_PER_TOPIC + len(data) * NS_PER_COMMAND_BYTE))
        if topics <= HEAVY_TOPICS and len(data) <= HEAVY_BYTES:
            return await self._answer(self._begin(data, timeout_ms, origin, grant))
        budget = Budget((timeout_ms or self._budget_ms) / 1000)
        self._queued[budget] = None
        try:
            async with budget:
                await self._heavy.acquire()
        finally:
            self._queued.pop(budget, None)
        try:
            proposed = self._begin(data, timeout_ms, origin, grant)
        except BaseException:
            self._heavy.release()
            raise
        proposed.add_done_callback(lambda _: self._heavy.release())
        return await self._answer(proposed)

    def _begin(self, data: bytes, timeout_ms: int | None, origin: ChangeOrigin | None, grant: Grant | None) -> "Future[Outcome]":
        """Give a command to Raft. The Future completes when Raft has an outcome: only Raft completes it."""
        if self._is_fenced():
            raise UnavailableError(self._consensus.removed or NO_MAJORITY)
        if origin is not None:
            origin.check()
        proposed = self._consensus.propose(data, version_of(data), timeout_ms)
        if grant is not None:
            grant.hold()
            proposed.add_done_callback(lambda _: grant.release())
        return proposed

    async def _answer(self, proposed: "Future[Outcome]") -> ProposalResult:
        """The result of a proposal, for a caller that may be cancelled or give up before there is an outcome."""
        waiting: Future[Outcome] = asyncio.get_running_loop().create_future()

        def ended(proposed: "Future[Outcome]") -> None:
            if not waiting.done():
                waiting.set_result(proposed.result())

        proposed.add_done_callback(ended)
        self._waiting[waiting] = proposed
        try:
            outcome = await waiting
        finally:
            self._waiting.pop(waiting, None)
        if isinstance(outcome, Committed):
            assert isinstance(outcome.result, ProposalResult), outcome.result
            return outcome.result
        if isinstance(outcome, Rejected):
            raise UnavailableError(outcome.reason)
        raise OutcomeUnknownError(outcome.reason)

    def decide(self, data: bytes) -> "Future[ProposalResult | None]":
        """Propose a command of the leader itself, even while this node is fenced. None: it was not accepted, or its outcome is
        unknown."""
        return self._tasks.keep(self._decide(data))

    async def _decide(self, data: bytes) -> ProposalResult | None:
        outcome = await self._consensus.propose(data, version_of(data))
        return outcome.result if isinstance(outcome, Committed) and isinstance(outcome.result, ProposalResult) else None

    def give_up(self, reason: str) -> None:
        """Answer all callers now: with OutcomeUnknownError, or with UnavailableError if the command waits for a heavy one."""
        for waiting, proposed in list(self._waiting.items()):
            if not waiting.done() and not proposed.done():
                waiting.set_exception(OutcomeUnknownError(reason))
        for budget in self._queued:
            budget.use_up(reason)

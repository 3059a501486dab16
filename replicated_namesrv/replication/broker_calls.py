"""BrokerCalls: what brokers ask of this node, and what becomes of it.

A registration that changes nothing here is a renewal: accepted by the leader, it is answered and leaves no trace in the log. If
not, the leader is asked whether a copy of it is under way or was applied already; then this node catches up and looks again.
Only who is let through proposes. So one change that n nodes receive is one entry of the log.

A registration that is refused whatever the state of its sender (a deposed master, a single topic of an unknown broker) is a
linearizable read.

The order in which one connection said things is kept where it matters: code 104 waits for the registrations that came before it
over its connection.
"""

import asyncio
import logging
from asyncio import Future
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Protocol

from replicated_namesrv.errors import NamesrvError, OutcomeUnknownError, UnavailableError
from replicated_namesrv.model import DataVersion
from replicated_namesrv.raft.interfaces import ReadOutcome, ReadReady
from replicated_namesrv.replication.consensus import Consensus, confirm
from replicated_namesrv.replication.liveness.leader_messages import GRANTED, LATE, REMOVING
from replicated_namesrv.replication.liveness.leader_role import ACCEPTED
from replicated_namesrv.replication.liveness.leases import Registered, Sign
from replicated_namesrv.replication.marks import Key
from replicated_namesrv.replication.route_machine import (
    NO_REGISTRATION,
    Ignored,
    Opened,
    ProposalResult,
    RouteStateMachine,
    content_of,
    encode_register,
)
from replicated_namesrv.replication.tasks import Budget, Tasks
from replicated_namesrv.routes.commands import BrokerRemoval, RegisterBroker, UnregisterBrokers
from replicated_namesrv.routes.results import BrokerRemoved, Result
from replicated_namesrv.service import CloseReason, Connection, DataVersionAnswer

log = logging.getLogger(__name__)

REMOVING_PAUSE_S = 0.02
REGISTRATION_S = 20.0
"""So long a registration may take while this node is not fenced: when all brokers return at once there is a queue. A broker of
RocketMQ 5.3 waits 24 s, one of 4.9 6 s."""
STALL_MS = 300.0
"""A process that did not run for this long may find connections that were opened meanwhile, without its knowing when."""
BACKLOG_MS = 1_000.0
"""Connections accepted so long after a stall may have been opened during it."""


class Liveness(Protocol):
    """What is needed of ``BrokerLiveness``."""

    @property
    def leader_time_ms(self) -> int:
        """The leader's clock, milliseconds since 1970."""

    def attach(self, key: Key, epoch: int, connection_id: int, sign: Sign) -> None:
        """The broker made contact over this connection."""

    def detach(self, connection_id: int, is_loss: bool) -> bool:
        """The connection is gone; whether a broker was attached to it."""

    def report_soon(self) -> None:
        """Something changed that the leader should know."""

    def brokers_of(self, connection_id: int) -> list[Key]:
        """Brokers attached to this connection."""

    def registered_over(self, key: Key, connection_id: int) -> Registered | None:
        """What this connection registered or renewed last for the broker."""

    def came_back(self, key: Key, registered: Registered) -> bool:
        """Whether the same life of the broker has attached here over another connection since."""

    def removed(self, key: Key, epoch: int) -> list[int]:
        """A registration ended; the connections that it was attached to here."""

    def renew(self, key: Key, epoch: int, generation: int) -> "Future[int]":
        """ACCEPTED, DIFFERS or REMOVING, by the leader's word."""

    def may_register(self, key: Key, content: str, serial: int) -> "tuple[int, Future[int]]":
        """The number of the question, and GRANTED or LOOK_AGAIN, by the leader's word."""

    def withdraw(self, number: int, key: Key, content: str) -> None:
        """The registration of this question will not be applied, for all that is known here."""

    def remove(self, removal: BrokerRemoval, registered: Registered | None) -> "Future[int]":
        """REMOVED or LATE, by the leader's word."""


class BrokerCalls:
    """Of one node, on its loop. ``propose(command, timeout_ms, topics)`` raises UnavailableError and OutcomeUnknownError."""

    def __init__(
        self,
        machine: RouteStateMachine,
        liveness: Liveness,
        propose: Callable[[bytes, int, int], Awaitable[ProposalResult]],
        consensus: Consensus,
        tasks: Tasks,
        is_leaving: Callable[[], bool],
        budget_s: float,
        monotonic_ms: Callable[[], float],
    ) -> None:
        """``is_leaving``: this node stops or serves nobody, so that connections end by its own doing."""
        self._machine, self._liveness = machine, liveness
        self._propose, self._consensus, self._tasks = propose, consensus, tasks
        self._is_leaving, self._budget_s = is_leaving, budget_s
        self._monotonic_ms = monotonic_ms
        self._opened: dict[int, Opened] = {}
        """Open connections."""
        self._of_stall: dict[int, int] = {}
        """Connections that may have been opened during a stall: the revision before it."""
        self._ran_ms = monotonic_ms()
        """When this process was last seen running, and the revision that it had."""
        self._ran_revision = 0
        self._stalled: tuple[int, float] | None = None
        """Revision before the stall, and until when connections may be of that time."""
        self._late: dict[int, str] = {}
        """Content of the last late copy, by connection."""
        self._refused: dict[tuple[int, Key], int] = {}
        """Renewals that have to be registered after all, by connection: the revision when they were received."""
        self._carriers: dict[int, Connection] = {}
        """Connections that brokers are or were attached to."""
        self._pending: dict[tuple[int, Key], Future[Any]] = {}
        """Registrations under way, by connection."""
        self._ended: dict[int, bool] = {}
        """Connections that ended while registrations of theirs were under way: whether that was a loss."""

    # Connections

    def opened(self, connection: Connection) -> None:
        """The server accepted this connection: find out between which revisions of the cluster this connection was opened."""
        connection_id = connection.connection_id
        self.tick()
        least = connection.opened_revision
        if self._stalled is not None:
            least = self._of_stall[connection_id] = min(least, self._stalled[0])
        self._opened[connection_id] = Opened(least, None)

        def confirmed(outcome: "Future[ReadOutcome]") -> None:
            if not outcome.cancelled() and isinstance(outcome.result(), ReadReady) and connection_id in self._opened:
                self._opened[connection_id] = Opened(least, self._machine.state.revision)

        self._consensus.read_index().add_done_callback(confirmed)

    def tick(self) -> None:
        """Call it several times in STALL_MS. The kernel goes on opening connections while this process does not run, and they
        are accepted once it does: what was committed meanwhile may have been committed before or after that. Who wakes has much
        to do and may stand still again before it has accepted them all."""
        now = self._monotonic_ms()
        if now - self._ran_ms > STALL_MS:
            before = self._ran_revision if self._stalled is None else self._stalled[0]
            self._stalled = (before, now + BACKLOG_MS)
        elif self._stalled is not None and now > self._stalled[1]:
            self._stalled = None
        self._ran_ms, self._ran_revision = now, self._machine.state.revision

    def lost(self, connection: Connection, reason: CloseReason) -> None:
        """The connection ended."""
        connection_id = connection.connection_id
        self._opened.pop(connection_id, None)
        self._of_stall.pop(connection_id, None)
        self._carriers.pop(connection_id, None)
        self._late.pop(connection_id, None)
        for slot in [slot for slot in self._refused if slot[0] == connection_id]:
            del self._refused[slot]
        is_loss = reason is not CloseReason.OURS and not self._is_leaving()
        if any(pending == connection_id for pending, _ in self._pending):
            self._ended[connection_id] = is_loss
        if self._liveness.detach(connection_id, is_loss):
            self._liveness.report_soon()

    def removed(self, effect: BrokerRemoved, is_expired: bool) -> None:
        """A registration ended. A broker that expired may not know: its connections are closed, as RocketMQ does, unless they
        carry others."""
        for connection_id in self._liveness.removed((effect.cluster_name, effect.broker_addr), effect.epoch):
            connection = self._carriers.get(connection_id)
            if is_expired and connection is not None and not self._liveness.brokers_of(connection_id):
                connection.close(CloseReason.OURS)

    def _attach(self, key: Key, epoch: int, connection: Connection, sign: Sign) -> None:
        connection_id = connection.connection_id
        if connection_id in self._ended:  # it ended while the registration was under way
            self._liveness.attach(key, epoch, connection_id, sign)
            self._liveness.detach(connection_id, self._ended[connection_id])
        elif connection_id in self._opened:
            self._carriers[connection_id] = connection
            self._liveness.attach(key, epoch, connection_id, sign)

    # Registrations

    def register(self, registration: RegisterBroker, connection: Connection) -> "Result | Future[Result]":
        """A registration: a renewal if it changes nothing, else through the log."""
        key = (registration.cluster_name, registration.broker_addr)
        slot = (connection.connection_id, key)
        opened = self._opened.get(connection.connection_id, Opened(connection.opened_revision, None))
        received = self._refused.pop(slot, self._machine.state.revision)
        task = self._tasks.keep(self._register(registration, connection, received, opened))
        self._pending[slot] = task

        def ended(done: "Future[Result]") -> None:
            if self._pending.get(slot) is done:
                del self._pending[slot]
                if not any(connection_id == slot[0] for connection_id, _ in self._pending):
                    self._ended.pop(slot[0], None)

        task.add_done_callback(ended)
        return task

    async def _register(self, registration: RegisterBroker, connection: Connection, received: int, opened: Opened) -> Result:
        key = (registration.cluster_name, registration.broker_addr)
        content, asked = "", None
        try:
            async with Budget(REGISTRATION_S):
                while True:
                    serial = self._machine.serial
                    unchanged = self._machine.state.unchanged_result(registration)
                    if unchanged is not None and await self._is_confirmed(registration, unchanged, connection):
                        return unchanged
                    content = content or content_of(registration)
                    asked, decision = self._liveness.may_register(key, content, serial)
                    if await decision == GRANTED:
                        break
                    asked = None
                    await confirm(self._consensus)
            if connection.connection_id not in self._opened:
                raise UnavailableError("its connection has ended meanwhile")
            data = encode_register(registration, self._liveness.leader_time_ms, received, opened, content)
            topics = self._machine.state.topics_concerned(registration)
            applied = await self._propose(data, int(REGISTRATION_S * 1000), topics)
        except NamesrvError:  # copies of it that other nodes received go on without this one
            if asked is not None:
                self._liveness.withdraw(asked, key, content)
            raise
        if applied.ignored is Ignored.LATE_COPY and connection.connection_id in self._opened:
            if self._late.get(connection.connection_id) == content:
                connection.close(CloseReason.OURS)  # whoever repeats it means it: over a new connection it is taken
            self._late[connection.connection_id] = content
        return self._registered(registration, connection, applied)

    async def _is_confirmed(self, registration: RegisterBroker, unchanged: Result, connection: Connection) -> bool:
        """Whether the leader agrees that nothing changes."""
        state = self._machine.state
        if unchanged.epoch is None:  # refused, whoever asks
            await confirm(self._consensus)
            return state.unchanged_result(registration) == unchanged
        key = (registration.cluster_name, registration.broker_addr)
        generation = state.group_generation(registration.broker_name)
        return await self._renew(key, unchanged.epoch, generation, connection) == ACCEPTED

    def _registered(self, registration: RegisterBroker, connection: Connection, applied: ProposalResult) -> Result:
        key = (registration.cluster_name, registration.broker_addr)
        if applied.ignored in (Ignored.DOUBTFUL, Ignored.UNREGISTERED):
            # Judged by revisions as this node saw them, and it may have lagged: over a new connection the broker says again
            # what it means.
            log.info("registration not taken: %s", applied.ignored, extra={"peer": connection.peer, "broker": key[1]})
            connection.close(CloseReason.OURS)
            raise UnavailableError(str(applied.ignored))
        held = self._machine.state.registration(*key)
        if held is not None and held.epoch == applied.result.epoch:
            self._attach(key, held.epoch, connection, Sign.REGISTRATION if applied.ignored is None else Sign.OVERTAKEN)
            self._liveness.report_soon()
        return applied.result

    def renew_unchanged(
        self, cluster_name: str, broker_addr: str, connection: Connection
    ) -> "Result | Future[Result | None] | None":
        """A registration that changes nothing, as the server knows; None, at once or later: it has to be registered."""
        registration = self._machine.state.registration(cluster_name, broker_addr)
        if registration is None:
            return None
        result = self._machine.state.renewal_result(cluster_name, broker_addr)
        assert result is not None, "it is registered"
        generation = self._machine.state.group_generation(registration.broker_name)
        received = self._machine.state.revision
        key = (cluster_name, broker_addr)
        self._attach(key, registration.epoch, connection, Sign.REGISTRATION)  # now: it may be removed before the task begins
        return self._tasks.keep(self._renew_unchanged(key, result, generation, received, connection))

    async def _renew_unchanged(
        self, key: Key, result: Result, generation: int, received: int, connection: Connection
    ) -> Result | None:
        assert result.epoch is not None, "of a registration"
        async with Budget(REGISTRATION_S):
            if await self._liveness.renew(key, result.epoch, generation) == ACCEPTED:
                return result
        if connection.connection_id in self._opened:
            self._refused[connection.connection_id, key] = received
        return None

    async def _renew(self, key: Key, epoch: int, generation: int, connection: Connection, sign: Sign = Sign.REGISTRATION) -> int:
        """Call it in the turn in which the registration was looked at."""
        self._attach(key, epoch, connection, sign)
        return await self._liveness.renew(key, epoch, generation)

    def heartbeat(self, cluster_name: str, broker_addr: str, connection: Connection) -> None:
        """Code 904: a sign of life; the leader is told with the next report."""
        registration = self._machine.state.registration(cluster_name, broker_addr)
        if registration is not None:
            self._attach((cluster_name, broker_addr), registration.epoch, connection, Sign.ALIVE)

    async def query_data_version(self, key: Key, data_version: DataVersion | None, connection: Connection) -> DataVersionAnswer:
        """Code 322: a linearizable read that renews; while a removal is proposed it waits for the outcome."""
        state = self._machine.state
        async with Budget(self._budget_s):
            while True:
                await confirm(self._consensus)
                registration = state.registration(*key)
                if registration is None:
                    return DataVersionAnswer(True, None)
                sign = Sign.ALIVE if data_version in (None, registration.data_version) else Sign.OVERTAKEN
                verdict = await self._renew(key, registration.epoch, 0, connection, sign)
                current = state.registration(*key)
                if verdict == ACCEPTED and current is not None:
                    return DataVersionAnswer(data_version != current.data_version, current.data_version)
                if verdict == REMOVING:
                    await asyncio.sleep(REMOVING_PAUSE_S)

    # Removals

    def unregister(self, command: UnregisterBrokers, connection: Connection | None) -> "Future[Result]":
        """Code 104, answered once it is applied here."""
        received = []
        for removal in command.removals:
            received.append((removal, self._registered_over((removal.cluster_name, removal.broker_addr), connection)))
        return self._tasks.keep(self._unregister(received, connection))

    def _registered_over(self, key: Key, connection: Connection | None) -> Registered | None:
        return None if connection is None else self._liveness.registered_over(key, connection.connection_id)

    async def _unregister(self, received: list[tuple[BrokerRemoval, Registered | None]], connection: Connection | None) -> Result:
        async with Budget(self._budget_s, OutcomeUnknownError):
            for removal, registered in received:
                key = (removal.cluster_name, removal.broker_addr)
                if connection is not None and (pending := self._pending.get((connection.connection_id, key))) is not None:
                    await asyncio.wait((pending,))
                    registered = self._registered_over(key, connection) or registered
                    if registered is None and (pending.cancelled() or pending.exception() is not None):
                        raise self._not_taken(removal, connection, "its registration before this was not taken")
                if registered is not None:
                    removal = replace(removal, epoch=registered.epoch)
                    if self._liveness.came_back(key, registered):
                        continue
                    if registered.sign is Sign.OVERTAKEN:
                        raise self._not_taken(removal, connection, "another data version than its connection told of is in force")
                else:  # what was acknowledged before counts, wherever
                    await confirm(self._consensus)
                    registration = self._machine.state.registration(*key)
                    removal = replace(removal, epoch=NO_REGISTRATION if registration is None else registration.epoch)
                if (registered is None or registered.sign is Sign.ALIVE) and self._may_be_older(connection, key):
                    raise self._not_taken(removal, connection, "it may have registered after this connection was opened")
                if await self._liveness.remove(removal, registered) == LATE:
                    raise self._not_taken(removal, connection, "it has a newer connection to another node")
                await self._removed_here()
        return Result()

    def _may_be_older(self, connection: Connection | None, key: Key) -> bool:
        """Whether the connection was opened while this process stood still, and maybe before what is registered now."""
        least = None if connection is None else self._of_stall.get(connection.connection_id)
        mark = self._machine.marks.get(key)
        return least is not None and mark is not None and mark.version_revision > least

    @staticmethod
    def _not_taken(removal: BrokerRemoval, connection: Connection | None, why: str) -> UnavailableError:
        """Of an earlier process, or of one that reconnected elsewhere: who leaves says so over its newer connections too."""
        if connection is not None:
            connection.close(CloseReason.OURS)
        return UnavailableError(f"{removal.broker_addr} is not removed: {why}")

    async def _removed_here(self) -> None:
        try:
            await confirm(self._consensus)
        except UnavailableError as error:
            raise OutcomeUnknownError(str(error)) from None

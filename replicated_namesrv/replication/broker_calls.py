"""BrokerCalls: requests of brokers to this node, and their outcomes.

A registration that is a no-op on this node is a renewal: if the leader accepts it, it is answered and not written to the log.
If it would change something, or the leader refuses the renewal, this node asks the leader whether a copy of it is in progress or
was already applied. If so, this node catches up and checks again. If not, the leader admits this copy, and this node proposes it.
So one change that n nodes receive is one entry of the log. A change may have to wait. Therefore its arrival already counts as a
contact, like a ``BROKER_HEARTBEAT`` (904), if the broker is registered with this name and id.

The rules of the state refuse some registrations, which then change nothing. Examples: a former master registers with an older
stateVersion than the present master has; an unknown broker registers with a single topic. Such a registration is not written to
the log. It is answered after a read index is confirmed, like a linearizable read. ``UNREGISTER_BROKER`` (104) waits for the
registrations that came before it over its connection.

    row  UNREGISTER_BROKER over a connection                           removes
    D1   whose last registration of the broker has ended               nothing; success. A later registration may be in force
    D2   whose last registration of the broker is in force             the broker, if the leader agrees (``departures.py``)
    D3   without any registration of the broker                        the registration in force, if the leader agrees
    D4   whose first registration of the broker is in progress, and    nothing; the connection is closed
         then fails
    D5   opened more than 1 s before another one of the broker         nothing; the connection is detached and closed
"""

import asyncio
import logging
from asyncio import Future
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import replace
from typing import Any, TypeVar

from replicated_namesrv.errors import NamesrvError, OutcomeUnknownError, UnavailableError
from replicated_namesrv.model import ChangeOrigin, DataVersion
from replicated_namesrv.replication.consensus import Consensus, confirm
from replicated_namesrv.replication.liveness.attachments import ROUND_MS, Attachments, Conversations
from replicated_namesrv.replication.liveness.copies import LateCopies
from replicated_namesrv.replication.liveness.defences import LivenessDefences
from replicated_namesrv.replication.liveness.leader_client import LeaderClient
from replicated_namesrv.replication.liveness.leader_messages import GRANTED, LATE, REMOVING
from replicated_namesrv.replication.liveness.renewals import ACCEPTED
from replicated_namesrv.replication.marks import Key
from replicated_namesrv.replication.route_machine import (
    NO_REGISTRATION,
    Ignored,
    ProposalResult,
    RouteStateMachine,
    content_of,
    encode_register,
)
from replicated_namesrv.replication.tasks import Budget, Tasks
from replicated_namesrv.routes.commands import BrokerRemoval, RegisterBroker, UnregisterBrokers
from replicated_namesrv.routes.quotas import Grant
from replicated_namesrv.routes.results import BrokerRemoved, Result
from replicated_namesrv.service import PATIENCE_MS, CloseReason, Connection, DataVersionAnswer, origin_of

log = logging.getLogger(__name__)
T = TypeVar("T")

REMOVING_PAUSE_S = 0.02
REGISTRATION_S = 20.0
"""Time limit of a registration while this node is not fenced. The limit is long because registrations queue when all brokers
return at once. A broker of RocketMQ 5.3 waits 24 s for the answer, a broker of 4.9 waits 6 s."""


class BrokerCalls:
    """The broker requests of one node, on its loop. ``propose(command, timeout_ms, topics, origin, connection, grant)`` raises
    UnavailableError, OutcomeUnknownError, LimitError and NoPermissionError.
    """

    def __init__(
        self,
        machine: RouteStateMachine,
        attachments: Attachments,
        leader: LeaderClient,
        propose: Callable[[bytes, int, int, ChangeOrigin | None, Connection, Grant | None], Awaitable[ProposalResult]],
        consensus: Consensus,
        tasks: Tasks,
        is_leaving: Callable[[], bool],
        budget_s: float,
        monotonic_ms: Callable[[], float],
        late_copy_ms: float,
        defences: LivenessDefences,
    ) -> None:
        """``is_leaving``: this node stops or is fenced, so it closes the connections itself."""
        self._machine, self._attachments, self._leader = machine, attachments, leader
        self._propose, self._consensus, self._tasks = propose, consensus, tasks
        self._is_leaving, self._budget_s = is_leaving, budget_s
        self._monotonic_ms = monotonic_ms
        self._conversations = Conversations(monotonic_ms())
        self._late_copies = LateCopies(late_copy_ms)
        self._defences = defences
        self._carriers: dict[int, Connection] = {}
        """Connections to which brokers are or were attached."""
        self._pending: dict[tuple[int, Key], set[Future[Result]]] = {}
        """Registrations in progress, by connection and broker. One connection may have several of one broker."""

    # Connections

    def opened(self, connection: Connection) -> None:
        """The server accepted this connection."""
        self._conversations.opened(connection.connection_id, self._monotonic_ms())

    def tick(self, silent_ms: float) -> None:
        """Call it several times per ``attachments.STALL_MS``, so that it detects stalls of this process. ``silent_ms``:
        ``ReadBarrier.silent_ms``."""
        now_ms = self._monotonic_ms()
        self._conversations.tick(now_ms)
        if silent_ms >= PATIENCE_MS:
            self._conversations.reads_wait(now_ms)

    def lost(self, connection: Connection, reason: CloseReason) -> None:
        """The connection ended."""
        connection_id = connection.connection_id
        is_acknowledged = reason is not CloseReason.UNACKNOWLEDGED or not self._defences.acknowledged_answers
        is_peaceful = self._conversations.closed(connection_id, is_acknowledged, self._monotonic_ms())
        self._carriers.pop(connection_id, None)
        by_peer = reason in (CloseReason.PEER, CloseReason.UNACKNOWLEDGED) and not self._is_leaving()
        self._lose(connection_id, by_peer and (is_peaceful or not self._defences.peace))

    def _lose(self, connection_id: int, in_peace: bool) -> None:
        if self._attachments.lose(connection_id, in_peace):
            self._leader.report_soon()

    def removed(self, effect: BrokerRemoved, is_expired: bool) -> None:
        """A registration ended. An expired broker may not know that it was removed. So its connections are closed, as in
        RocketMQ, unless other brokers use them."""
        key = (effect.cluster_name, effect.broker_addr)
        self._late_copies.forget(key)
        for connection_id in self._attachments.remove(key, effect.epoch):
            connection = self._carriers.get(connection_id)
            if is_expired and connection is not None and not self._attachments.brokers_of(connection_id):
                connection.close(CloseReason.OURS)

    def _attach(self, key: Key, epoch: int, connection: Connection, registers: bool) -> None:
        connection_id = connection.connection_id
        opened_ms = self._conversations.opened_ms(connection_id)
        self._attachments.attach(key, epoch, connection_id, opened_ms or 0.0, self._monotonic_ms(), registers)
        if opened_ms is not None:
            self._carriers[connection_id] = connection
        else:  # the connection ended while the request was in progress
            self._lose(connection_id, False)

    def _converse(self, connection: Connection | None, work: "Coroutine[Any, Any, T]") -> "Future[T]":
        """Run ``work``, which handles a request of this connection, and record when the request arrived and when it was
        answered."""
        task = self._tasks.keep(work)
        if connection is not None:
            asked_ms, connection_id = self._monotonic_ms(), connection.connection_id
            self._conversations.asked(connection_id)
            task.add_done_callback(lambda _: self._conversations.answered(connection_id, asked_ms, self._monotonic_ms()))
        return task

    # Registrations

    def register(
        self, registration: RegisterBroker, connection: Connection, grant: Grant | None = None, received: int | None = None
    ) -> "Future[Result]":
        """Register a broker: as a renewal if the registration is a no-op, otherwise through the log. ``grant``: the room for what
        the registration adds to the state (``quotas.py``). ``received``: the revision at which the registration was received;
        None: it was received now."""
        key = (registration.cluster_name, registration.broker_addr)
        slot = (connection.connection_id, key)
        received = self._machine.state.revision if received is None else received
        # the caller is read now: when the task begins, the connection may already process its next request
        origin = origin_of(connection)
        task = self._converse(connection, self._register(registration, connection, received, origin, grant))
        pending = self._pending.setdefault(slot, set())
        pending.add(task)

        def ended(done: "Future[Result]") -> None:
            pending.discard(done)
            if not pending and self._pending.get(slot) is pending:
                del self._pending[slot]

        task.add_done_callback(ended)
        return task

    async def _register(
        self,
        registration: RegisterBroker,
        connection: Connection,
        received: int,
        origin: ChangeOrigin | None,
        grant: Grant | None,
    ) -> Result:
        key, received_ms = (registration.cluster_name, registration.broker_addr), self._monotonic_ms()
        content, asked = "", None
        try:
            async with Budget(REGISTRATION_S):
                while True:
                    serial = self._machine.serial
                    if origin is not None:
                        origin.check()
                    unchanged = self._machine.state.unchanged_result(registration)
                    if unchanged is not None and await self._is_confirmed(registration, unchanged, connection):
                        self._late_copies.forget(key)
                        return unchanged
                    # the change may wait, or be refused; the leader has to know of the connection before that
                    self.change_arrived(registration, connection)
                    content = content or content_of(registration)
                    asked, decision = self._leader.may_register(key, content, serial)
                    if await decision == GRANTED:
                        break
                    asked = None
                    await confirm(self._consensus)
            if not self._conversations.is_open(connection.connection_id):
                raise UnavailableError("the broker's connection has ended")
            version = registration.data_version
            is_meant = self._late_copies.is_repeated(key, version, received_ms) or not self._defences.repeated_versions
            if origin is not None and origin.is_checked:  # the permission must be checked against the newest registrations
                await confirm(self._consensus)
            time_ms, replaces = self._leader.leader_time_ms, received if is_meant else 0
            data = encode_register(registration, time_ms, received, replaces, content)
            topics = self._machine.state.topics_concerned(registration)
            applied = await self._propose(data, int(REGISTRATION_S * 1000), topics, origin, connection, grant)
        except NamesrvError:  # this copy ends; copies at other nodes continue
            if asked is not None:
                self._leader.withdraw(asked, key, content)
            raise
        if applied.ignored is Ignored.LATE_COPY:
            if self._machine.state.registration(*key) is not None:
                self._late_copies.had_no_effect(key, version, received_ms)
                self.heartbeat(*key, connection)
            # the epoch is removed, so that the server does not treat the next copy as a renewal
            return replace(applied.result, epoch=None)
        self._late_copies.forget(key)
        return self._registered(registration, connection, applied)

    async def _is_confirmed(self, registration: RegisterBroker, unchanged: Result, connection: Connection) -> bool:
        """Whether the leader confirms that the registration is a no-op."""
        state = self._machine.state
        if unchanged.epoch is None:  # the rules of the state refuse it
            await confirm(self._consensus)
            return state.unchanged_result(registration) == unchanged
        key = (registration.cluster_name, registration.broker_addr)
        generation = state.group_generation(registration.broker_name)
        return await self._renew(key, unchanged.epoch, generation, connection) == ACCEPTED

    def _registered(self, registration: RegisterBroker, connection: Connection, applied: ProposalResult) -> Result:
        key = (registration.cluster_name, registration.broker_addr)
        if applied.ignored in (Ignored.UNREGISTERED, Ignored.TAKEN_OVER):
            log.info("registration not accepted: %s", applied.ignored, extra={"peer": connection.peer, "broker": key[1]})
            connection.close(CloseReason.OURS)
            raise UnavailableError(str(applied.ignored))
        held = self._machine.state.registration(*key)
        if held is not None and held.epoch == applied.result.epoch:
            self._attach(key, held.epoch, connection, True)
            self._leader.report_soon()
        return applied.result

    def renew_unchanged(
        self, cluster_name: str, broker_addr: str, connection: Connection
    ) -> "Result | Future[Result | int] | None":
        """Renew a registration that the server has recognised as a no-op. The Future returns the answer if the leader accepts the
        renewal. If the leader refuses it, the Future returns the revision at which the registration was received, and the caller
        has to register the broker. Returns None, without a Future, if the broker is not registered; then, too, the caller has to
        register it."""
        registration = self._machine.state.registration(cluster_name, broker_addr)
        if registration is None:
            return None
        result = self._machine.state.renewal_result(cluster_name, broker_addr)
        assert result is not None, "it is registered"
        generation = self._machine.state.group_generation(registration.broker_name)
        received = self._machine.state.revision
        key = (cluster_name, broker_addr)
        # attach now, because the broker may be removed before the task begins
        self._attach(key, registration.epoch, connection, True)
        return self._converse(connection, self._renew_unchanged(key, result, generation, received, connection))

    async def _renew_unchanged(
        self, key: Key, result: Result, generation: int, received: int, connection: Connection
    ) -> Result | int:
        assert result.epoch is not None, "the result of a registration has an epoch"
        async with Budget(REGISTRATION_S):
            if await self._leader.renew(key, result.epoch, generation) == ACCEPTED:
                self._late_copies.forget(key)
                return result
        return received

    async def _renew(self, key: Key, epoch: int, generation: int, connection: Connection, registers: bool = True) -> int:
        """Renew. Call it in the turn in which the registration was compared with the state."""
        self._attach(key, epoch, connection, registers)
        return await self._leader.renew(key, epoch, generation)

    def change_arrived(self, registration: RegisterBroker, connection: Connection) -> None:
        """Renew the present registration of a broker that changes its content. The outcome of the change does not matter."""
        if self._machine.state.is_registered(registration):
            self.heartbeat(registration.cluster_name, registration.broker_addr, connection)

    def heartbeat(self, cluster_name: str, broker_addr: str, connection: Connection) -> None:
        """``BROKER_HEARTBEAT`` (904): a contact, which the leader learns with the next report."""
        registration = self._machine.state.registration(cluster_name, broker_addr)
        if registration is not None:
            self._attach((cluster_name, broker_addr), registration.epoch, connection, False)

    def query_data_version(
        self, key: Key, data_version: DataVersion | None, connection: Connection
    ) -> "Future[DataVersionAnswer]":
        """``QUERY_DATA_VERSION`` (322): a linearizable read that also renews the registration. If a removal of the broker is
        proposed, the read waits for the outcome."""
        origin = origin_of(connection)
        return self._converse(connection, self._query_data_version(key, data_version, connection, origin))

    async def _query_data_version(
        self, key: Key, data_version: DataVersion | None, connection: Connection, origin: ChangeOrigin | None
    ) -> DataVersionAnswer:
        state = self._machine.state
        async with Budget(self._budget_s):
            while True:
                await confirm(self._consensus)
                if origin is not None:
                    origin.check()
                registration = state.registration(*key)
                if registration is None:
                    return DataVersionAnswer(True, None)
                verdict = await self._renew(key, registration.epoch, 0, connection, registers=False)
                current = state.registration(*key)
                if verdict == ACCEPTED and current is not None:
                    return DataVersionAnswer(data_version != current.data_version, current.data_version)
                if verdict == REMOVING:
                    await asyncio.sleep(REMOVING_PAUSE_S)

    # Removals

    def unregister(self, command: UnregisterBrokers, connection: Connection | None) -> "Future[Result]":
        """``UNREGISTER_BROKER`` (104), answered when it is applied here."""
        meant = map(self._meant, command.removals)
        received = [
            (removal, self._registered_epoch(removal, connection), self._earlier(removal, connection)) for removal in meant
        ]
        opened_ms = None if connection is None else self._conversations.opened_ms(connection.connection_id) or 0.0
        return self._converse(connection, self._unregister(received, connection, opened_ms, origin_of(connection)))

    async def _unregister(
        self,
        received: "Iterable[tuple[BrokerRemoval, int | None, frozenset[Future[Result]]]]",
        connection: Connection | None,
        opened_ms: float | None,
        origin: ChangeOrigin | None,
    ) -> Result:
        async with Budget(self._budget_s, OutcomeUnknownError):
            for removal, epoch, earlier in received:
                if earlier:
                    await asyncio.wait(earlier)
                    epoch = self._registered_epoch(removal, connection) or epoch
                    if epoch is None and any(done.cancelled() or done.exception() is not None for done in earlier):
                        raise self._not_taken(removal, connection, "an earlier registration over this connection failed")
                # the decision must take into account every registration that any node has acknowledged before
                await confirm(self._consensus)
                removal = self._meant(removal)
                key = (removal.cluster_name, removal.broker_addr)
                registration = self._machine.state.registration(*key)
                if epoch is not None and (registration is None or registration.epoch != epoch):
                    continue
                removal = replace(removal, epoch=NO_REGISTRATION if registration is None else registration.epoch)
                if origin is not None:
                    origin.check()
                if self._is_late(key, opened_ms) or await self._leader.remove(removal, opened_ms, origin) == LATE:
                    if connection is not None:
                        self._attachments.detach(key, connection.connection_id)
                        self._leader.report_soon()
                    raise self._not_taken(removal, connection, "it has a newer connection")
                await self._removed_here()
        return Result()

    def _meant(self, removal: BrokerRemoval) -> BrokerRemoval:
        """The removal, with the cluster in which the broker of this name and address is registered. As in Java, the request may
        name another cluster."""
        member = self._machine.state.member_at(removal.broker_name, removal.broker_addr)
        return removal if member is None else replace(removal, cluster_name=member.cluster_name)

    def _is_late(self, key: Key, opened_ms: float | None) -> bool:
        """Whether this node has a newer connection of the broker, of which the leader may not know yet."""
        newest_ms = self._attachments.newest_opened_ms(key)
        if not self._defences.newest_connection or opened_ms is None or newest_ms is None:
            return False
        return newest_ms > opened_ms + ROUND_MS

    def _earlier(self, removal: BrokerRemoval, connection: Connection | None) -> "frozenset[Future[Result]]":
        """The registrations of this broker that are in progress over this connection."""
        if connection is None:
            return frozenset()
        return frozenset(self._pending.get((connection.connection_id, (removal.cluster_name, removal.broker_addr)), ()))

    def _registered_epoch(self, removal: BrokerRemoval, connection: Connection | None) -> int | None:
        key = (removal.cluster_name, removal.broker_addr)
        return None if connection is None else self._attachments.registered_epoch(key, connection.connection_id)

    @staticmethod
    def _not_taken(removal: BrokerRemoval, connection: Connection | None, why: str) -> UnavailableError:
        """Close the connection instead of answering, because the answer code 0 would mean that the broker is removed."""
        if connection is not None:
            connection.close(CloseReason.OURS)
        return UnavailableError(f"{removal.broker_addr} is not removed: {why}")

    async def _removed_here(self) -> None:
        try:
            await confirm(self._consensus)
        except UnavailableError as error:
            raise OutcomeUnknownError(str(error)) from None

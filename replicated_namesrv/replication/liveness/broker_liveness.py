"""BrokerLiveness: the one component that knows which brokers live.

It holds what this node knows of its own brokers (``attachments.py``), tells it to the leader and asks the leader
(``leader_client.py``), and while this node leads it decides (``leader_role.py``). Messages between nodes arrive here.

    from brokers (broker_calls.py)           attach, detach, lose, renew, may_register, withdraw, remove
    from the log (applied_commands.py)       registered, removed, lead_applied, restored
    from consensus                           leads, leader_changed, received
    to consensus                             tell, read_index, and commands through ``decide``
"""

import asyncio
import logging
from asyncio import Future
from collections.abc import Callable, Sequence
from random import Random

from replicated_namesrv.raft.raft_errors import MalformedError
from replicated_namesrv.replication.consensus import Consensus
from replicated_namesrv.replication.liveness.attachments import ROUND_MS, Attachments
from replicated_namesrv.replication.liveness.defences import LivenessDefences
from replicated_namesrv.replication.liveness.leader_client import LeaderClient
from replicated_namesrv.replication.liveness.leader_messages import (
    LATE,
    Decision,
    Inquiry,
    Key,
    Message,
    NodeReport,
    ReportAnswer,
    decode,
    encode,
    is_obsolete,
)
from replicated_namesrv.replication.liveness.leader_role import Decide, LeaderRole
from replicated_namesrv.replication.route_machine import RouteStateMachine
from replicated_namesrv.routes.commands import BrokerRemoval
from replicated_namesrv.routes.state import RouteSettings

log = logging.getLogger(__name__)


class BrokerLiveness:
    """Of one node, on its event loop."""

    def __init__(
        self,
        node_id: str,
        members: Sequence[str],
        machine: RouteStateMachine,
        consensus: Consensus,
        decide: Decide,
        initial_settings: Callable[[], RouteSettings],
        grace_ms: float,
        running_ms: Callable[[], float],
        monotonic_ms: Callable[[], float],
        wall_ms: Callable[[], int],
        rng: Random,
        defences: LivenessDefences,
    ) -> None:
        """``decide``, ``initial_settings``: as of ``LeaderRole``. ``running_ms``: time in which this process ran;
        ``monotonic_ms``: of any clock that never goes back; ``wall_ms``: milliseconds since 1970."""
        self.attachments = Attachments()
        self.role: LeaderRole | None = None
        """While this node leads."""
        self._node_id, self._members, self._machine, self._consensus = node_id, members, machine, consensus
        self._decide, self._initial_settings, self._grace_ms = decide, initial_settings, grace_ms
        self._running_ms, self._monotonic_ms, self._wall_ms, self._defences = running_ms, monotonic_ms, wall_ms, defences
        self._client = LeaderClient(machine, self.attachments, consensus, self._send, running_ms, monotonic_ms, rng)
        self._counts = [0, 0]
        """``expired_count`` and ``lost_count`` of the terms that this node led before."""
        self._encoded: tuple[Message | None, bytes] = (None, b"")
        """The last message that was sent, in case others are to have it too."""

    # What can be asked

    @property
    def is_leading(self) -> bool:
        """Whether this node decides about brokers."""
        return self.role is not None

    @property
    def leader_time_ms(self) -> int:
        """The leader's clock, milliseconds since 1970, as far as it was told; never before what the log knows."""
        return self._client.leader_time_ms

    @property
    def expired_count(self) -> int:
        """Brokers that this node, leading, removed because nobody heard them."""
        return self._counts[0] + (self.role.removals.expired_count if self.role else 0)

    @property
    def lost_count(self) -> int:
        """Brokers that this node, leading, removed because every node that had them had lost them."""
        return self._counts[1] + (self.role.removals.lost_count if self.role else 0)

    def age_ms(self, key: Key) -> float | None:
        """Milliseconds since the last contact: with any node if this one leads, else with this one; None: there was none."""
        now_ms, contact_ms = self._running_ms(), self.attachments.contact_ms(key)
        ages = [None if contact_ms is None else now_ms - contact_ms]
        if self.role is not None and self.role.silence is not None:
            ages.append(self.role.silence.age_ms(key, now_ms))
        return min((age_ms for age_ms in ages if age_ms is not None), default=None)

    def brokers_of(self, connection_id: int) -> list[Key]:
        """Brokers attached to this connection."""
        return self.attachments.brokers_of(connection_id)

    def registered_epoch(self, key: Key, connection_id: int) -> int | None:
        """What this connection registered last for the broker, be it still in force or not."""
        return self.attachments.registered_epoch(key, connection_id)

    # From brokers

    def attach(self, key: Key, epoch: int, connection_id: int, opened_ms: float, registers: bool) -> None:
        """The broker made contact over this connection, opened at ``opened_ms``; ``registers``: by a registration in force."""
        self.attachments.attach(key, epoch, connection_id, opened_ms, self._running_ms(), registers)

    def detach(self, key: Key, connection_id: int) -> None:
        """The process at the other end says that the broker leaves."""
        self.attachments.detach(key, connection_id)
        self._client.report_soon()

    def lose(self, connection_id: int, in_peace: bool) -> None:
        """The connection is gone; ``in_peace``: the broker closed it, and not because of us."""
        if self.attachments.lose(connection_id, in_peace):
            self._client.report_soon()

    def report_soon(self) -> None:
        """Something changed that the leader should know."""
        self._client.report_soon()

    def renew(self, key: Key, epoch: int, generation: int) -> "Future[int]":
        """ACCEPTED, DIFFERS or REMOVING, by the leader's word. The caller gives up by cancelling."""
        return self._client.renew(key, epoch, generation)

    def may_register(self, key: Key, content: str, serial: int) -> "tuple[int, Future[int]]":
        """The number of the question, and GRANTED or LOOK_AGAIN. A caller that gives up, or that is let through and then does not
        see its registration applied, has to call ``withdraw``."""
        return self._client.may_register(key, content, serial)

    def withdraw(self, number: int, key: Key, content: str) -> None:
        """The registration of this question will not be proposed, or its proposal failed, or the outcome is unknown: copies of it
        shall not wait for it."""
        self._client.withdraw(number, key, content)

    def remove(self, removal: BrokerRemoval, opened_ms: float | None) -> "Future[int]":
        """Code 104; REMOVED or LATE. ``opened_ms``: when its connection was opened; None: it came over none. The caller gives
        up by cancelling; the broker may be removed nevertheless."""
        newest_ms = self.attachments.newest_opened_ms((removal.cluster_name, removal.broker_addr)) or 0.0
        if self._defences.newest_connection and opened_ms is not None and newest_ms > opened_ms + ROUND_MS:
            late: Future[int] = asyncio.get_running_loop().create_future()
            late.set_result(LATE)
            return late
        return self._client.remove(removal, opened_ms)

    # From the log

    def registered(self, key: Key, epoch: int | None, content: str) -> None:
        """A registration was applied, in an earlier turn. ``epoch``: of what it registered; a contact, unless that has been
        removed since."""
        held = self._machine.state.registration(*key)
        if held is None or held.epoch != epoch:
            epoch = None
        if self.role is not None:
            self.role.registered(key, epoch, content)

    def removed(self, key: Key, epoch: int) -> list[int]:
        """A registration ended; the connections that it was attached to here."""
        if self.role is not None:
            self.role.removed(key)
        return self.attachments.remove(key, epoch)

    def lead_applied(self, term: int) -> None:
        """A leader's LEAD was applied."""
        if self.role is not None and self.role.term == term:
            self.role.lead_applied()

    def restored(self) -> None:
        """The state was replaced by a snapshot: what is no longer registered is forgotten."""
        for key, epoch in self.attachments.known():
            registration = self._machine.state.registration(*key)
            if registration is None or registration.epoch > epoch:
                self.attachments.remove(key, epoch)

    # From consensus

    def leads(self, term: int) -> None:
        """This node leads ``term`` from now on."""
        self._step_down()
        self.role = LeaderRole(
            term,
            self._node_id,
            self._members,
            self._machine,
            self._consensus,
            self._decide,
            self._initial_settings,
            self._send,
            self._grace_ms,
            self._running_ms,
            self._monotonic_ms,
            self._wall_ms,
            asyncio.get_running_loop().call_later,
            self._defences,
        )

    def _step_down(self) -> None:
        if self.role is not None:
            self._counts = [self.expired_count, self.lost_count]
            self.role = None

    def leader_changed(self, leader: str | None) -> None:
        """This node believes in another leader; None: it knows none."""
        if leader is not None:
            asyncio.get_running_loop().call_soon(self._client.report_soon)

    def received(self, peer: str, data: bytes) -> None:
        """What ``tell`` of another node sent. Takes effect in a later turn: a node's entry points are not called back."""
        if is_obsolete(data):
            return
        try:
            message = decode(data)
        except MalformedError as error:
            self._dropped(peer, error)
            return
        asyncio.get_running_loop().call_soon(self._take, peer, message)

    def _dropped(self, peer: str, error: MalformedError) -> None:
        log.warning("message dropped: %s", error, extra={"peer": peer})

    def _take(self, peer: str, message: Message) -> None:
        match message:
            case NodeReport():
                if self.role is not None:
                    self.role.on_report(peer, message)
            case Inquiry():
                if self.role is not None:
                    try:
                        self.role.on_inquiry(peer, message)
                    except MalformedError as error:
                        self._dropped(peer, error)
            case ReportAnswer():
                self._client.on_answer(message)
            case Decision():
                self._client.on_decision(message)

    def _send(self, peer: str, message: Message) -> None:
        if peer == self._node_id:
            asyncio.get_running_loop().call_soon(self._take, peer, message)
        else:
            if self._encoded[0] is not message:
                self._encoded = (message, encode(message))
            self._consensus.tell(peer, self._encoded[1])

    # Time

    def tick(self) -> None:
        """Call it every TICK_S."""
        self._client.tick()
        if self.role is not None:
            if self.role.is_over:
                self._step_down()
            else:
                self.role.tick()

    def fail(self, reason: str) -> None:
        """The leader cannot be reached: everybody who waits is told so."""
        self._client.fail(reason)

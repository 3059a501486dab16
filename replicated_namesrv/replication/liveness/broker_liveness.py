"""BrokerLiveness: decides which brokers are alive.

It combines this node's connections (``attachments.py``), the node's side of the messages with the leader
(``leader_client.py``) and, while this node leads, the leader's side (``leader_role.py``). Messages between nodes and events of
the log arrive here.
"""

import asyncio
import logging
import math

from replicated_namesrv.raft.raft_errors import MalformedError
from replicated_namesrv.replication.liveness.attachments import Attachments
from replicated_namesrv.replication.liveness.leader_client import LeaderClient
from replicated_namesrv.replication.liveness.leader_messages import (
    Decision,
    Inquiry,
    Message,
    NodeReport,
    ReportAnswer,
    decode,
    encode,
    is_obsolete,
)
from replicated_namesrv.replication.liveness.leader_role import LeaderRole
from replicated_namesrv.replication.liveness.liveness_context import LivenessContext
from replicated_namesrv.replication.marks import Key

log = logging.getLogger(__name__)


class BrokerLiveness:
    """The liveness of brokers on one node, on its event loop."""

    def __init__(self, node: LivenessContext) -> None:
        self._node = node
        self.attachments = Attachments()
        self.client = LeaderClient(node, self.attachments, self._send)
        self.role: LeaderRole | None = None
        """The leader's part of liveness; None while this node does not lead."""
        self._members: set[str] | None = None
        """The members when they last changed. None: the log has not been read, and the configuration may name other nodes."""
        self._removed_ms = -math.inf
        """When this node last applied the removal of a node from the cluster."""
        self._expired = self._lost = 0
        """``expired_count`` and ``lost_count``, summed over the terms that this node led before."""
        self._encoded: tuple[Message | None, bytes] = (None, b"")
        """Cache of the encoded last message, which may be sent to several nodes."""

    @property
    def expired_count(self) -> int:
        """Brokers that this node, as leader, removed because they made no contact within their time-out."""
        return self._expired + (self.role.removals.expired_count if self.role else 0)

    @property
    def lost_count(self) -> int:
        """Brokers that this node, as leader, removed because they had closed their connections to all nodes."""
        return self._lost + (self.role.removals.lost_count if self.role else 0)

    def age_ms(self, key: Key) -> float | None:
        """Milliseconds since the last contact: with any node if this one leads, else with this one. None: there was none."""
        contact_ms = self.attachments.contact_ms(key)
        ages = [None if contact_ms is None else self._node.monotonic_ms() - contact_ms]
        if self.role is not None and self.role.silence is not None:
            ages.append(self.role.silence.age_ms(key, self._node.running_ms()))
        return min((age_ms for age_ms in ages if age_ms is not None), default=None)

    # From the log

    def registered(self, key: Key, epoch: int | None, content: str) -> None:
        """Process a registration, which was applied in an earlier turn of the loop. It counts as a contact, unless it has been
        removed since. ``epoch``: the epoch of the registration."""
        held = self._node.machine.state.registration(*key)
        if self.role is not None:
            self.role.registered(key, epoch if held is not None and held.epoch == epoch else None, content)

    def backup_restored(self, epoch: int) -> None:
        """Process a backup, which replaced the state in an earlier turn of the loop. Its brokers are registered with this
        epoch."""
        if self.role is not None:
            self.role.restored(epoch)

    def removed(self, key: Key, epoch: int) -> None:
        """The registration with this epoch ended."""
        if self.role is not None:
            self.role.removed(key, epoch)

    def lead_applied(self, term: int) -> None:
        """A leader's LEAD was applied."""
        if self.role is not None and self.role.term.number == term:
            self.role.lead_applied()

    def restored(self) -> None:
        """The state was replaced by a snapshot: forget the brokers that are not in it. A broker that has a later epoch in it may
        have changed its id. Then its connections continue to count (N2 in ``departures.py``)."""
        for key, epoch in self.attachments.known():
            if self._node.machine.state.registration(*key) is None:
                self.attachments.remove(key, epoch)

    # From consensus

    def leads(self, term: int) -> None:
        """This node leads ``term`` from now on."""
        self._step_down()
        self.role = LeaderRole(term, self._node, self._send, asyncio.get_running_loop().call_later, self._removed_ms)

    def _step_down(self) -> None:
        self._expired, self._lost, self.role = self.expired_count, self.lost_count, None

    def leader_changed(self, leader: str | None) -> None:
        """The leader known to this node has changed. None: unknown."""
        if leader is not None:
            asyncio.get_running_loop().call_soon(self.client.report_soon)

    def members_changed(self) -> None:
        """Members of the cluster were added or removed."""
        now_ms, before, self._members = self._node.running_ms(), self._members, set(self._node.members)
        if before is not None and before - self._members:
            self._removed_ms = now_ms
        if self.role is not None:
            self.role.departures.set_members(self._node.members, now_ms, self._removed_ms)

    def received(self, peer: str, data: bytes) -> None:
        """A message of another node's ``tell``. It takes effect in a later turn, because Raft's entry points must not be called
        from inside this callback.
        """
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
            case ReportAnswer():
                self.client.on_answer(message)
            case Decision():
                self.client.on_decision(message)
            case NodeReport() if self.role is not None:
                self.role.on_report(peer, message)
            case Inquiry() if self.role is not None:
                try:
                    self.role.on_inquiry(peer, message)
                except MalformedError as error:
                    self._dropped(peer, error)

    def _send(self, peer: str, message: Message) -> None:
        if peer == self._node.node_id:
            asyncio.get_running_loop().call_soon(self._take, peer, message)
        else:
            if self._encoded[0] is not message:
                self._encoded = (message, encode(message))
            self._node.consensus.tell(peer, self._encoded[1])

    # Time

    def tick(self) -> None:
        """Send the reports and questions that are due. If this node leads, also do the leader's periodic work. Call it every
        TICK_S."""
        self.client.tick()
        if self.role is not None:
            if self.role.term.is_over:
                self._step_down()
            else:
                self.role.tick()

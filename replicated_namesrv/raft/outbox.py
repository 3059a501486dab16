"""Sends messages to the accepted process of a peer, at once or when the records that they depend on are durable.

A vote, a vote request and an acknowledgement are promises about the disk. They wait here until the log is durable up to the
record that they depend on. If the term has changed by then, they are dropped. Greetings and introductions, which decide about
acceptance, are sent by ``membership.py``.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

from replicated_namesrv.raft.raft_messages import AppendReply, Message, PeerMessage, Vote, VoteReply

HELD_MAX = 1_024
"""Maximum number of messages that wait for the disk. At this number, only the newest message of each kind to each peer is kept,
because it includes the older ones. A few hundred are usual; more messages mean that the disk does not answer."""

DurableMessage = Vote | VoteReply | AppendReply
"""Messages that may have to wait for the disk."""


class Addresses(Protocol):
    """Incarnations of sender and receivers."""

    @property
    def incarnation(self) -> int:
        """Incarnation of this node."""

    @property
    def known(self) -> Mapping[str, int]:
        """Peer -> incarnation whose process was accepted."""

    def may_send(self, peer: str, kind: type[Message]) -> bool:
        """Whether ``peer`` has accepted this process and understands messages of ``kind``."""


class DurableLog(Protocol):
    """The durable part of the log."""

    durable_number: int
    """Number of the last durable record."""


class CurrentTerm(Protocol):
    @property
    def term(self) -> int: ...


class Outbox:
    """Sends for one node."""

    def __init__(
        self,
        send: Callable[[str, Message], None],
        addresses: Addresses,
        log: DurableLog,
        core: CurrentTerm,
        durable_acks: bool = True,
    ) -> None:
        """``durable_acks`` False: no message waits for the disk (``Defences.durable_acks``)."""
        self._send, self._addresses, self._log, self._core = send, addresses, log, core
        self._durable_acks = durable_acks
        self._held: list[tuple[int, str, DurableMessage]] = []

    @property
    def held(self) -> int:
        """Number of messages that wait for the disk."""
        return len(self._held)

    def address(self, peer: str) -> tuple[int, int]:
        """Source and destination, the first two fields of every message to ``peer``. Destination 0: no process of ``peer`` is
        accepted yet; it would drop the message."""
        return self._addresses.incarnation, self._addresses.known.get(peer, 0)

    def reaches(self, peer: str, kind: type[PeerMessage]) -> bool:
        """Whether the process of ``peer`` and this process have accepted each other, so that messages of ``kind`` are sent."""
        return peer in self._addresses.known and self._addresses.may_send(peer, kind)

    def send(self, peer: str, message: PeerMessage) -> None:
        """Send to the process of ``peer`` if it and this process have accepted each other; otherwise drop the message."""
        if self.reaches(peer, type(message)):
            self._send(peer, message)

    def send_when_durable(self, number: int, peer: str, message: DurableMessage) -> None:
        """Send when the log is durable up to record ``number``, if the message's term is still the current one."""
        if number <= self._log.durable_number or not self._durable_acks:
            self.send(peer, message)
        else:
            if len(self._held) >= HELD_MAX:
                self._held = list(
                    {(p, type(m), isinstance(m, AppendReply) and m.success): (n, p, m) for n, p, m in self._held}.values()
                )
            self._held.append((number, peer, message))

    def release(self) -> None:
        """The log was synced: send the messages that are durable now. An acknowledgement includes all older acknowledgements to
        the same peer.
        """
        if not self._held:
            return
        held, self._held = self._held, []
        newest: dict[str, AppendReply] = {}
        for number, peer, message in held:
            if number > self._log.durable_number:
                self._held.append((number, peer, message))
            elif message.term != self._core.term:
                continue
            elif isinstance(message, AppendReply) and message.success:
                newest[peer] = message
            else:
                self._send_anew(peer, message)
        for peer, reply in newest.items():
            self._send_anew(peer, reply)

    def _send_anew(self, peer: str, message: DurableMessage) -> None:
        """Send waiting messages to the process of ``peer`` that is accepted now."""
        source, destination = self.address(peer)
        self.send(peer, message._replace(source=source, destination=destination))

    def drop_held(self) -> None:
        """This node continues as another incarnation: drop the waiting messages, which its earlier incarnation promised."""
        self._held.clear()

"""What leaves a node: messages to the accepted process of a peer, at once or when what they claim is durable.

A vote, a vote request and an acknowledgement are promises about the disk, so they wait here until the log is durable up to the
record that they rest on. One of a former term is dropped then. Greetings and introductions, which decide who is accepted, do
not come this way (``membership.py``).
"""

from collections.abc import Callable, Mapping
from typing import Protocol

from replicated_namesrv.raft.raft_messages import AppendReply, Message, PeerMessage, Vote, VoteReply

HELD_MAX = 1_024
"""Messages that wait for the disk. At this number only the newest of each kind to each peer stay, which cover the others: a few
hundred are usual at most, more mean that the disk does not answer."""

DurableMessage = Vote | VoteReply | AppendReply
"""What may have to wait for the disk."""


class Addresses(Protocol):
    """Which incarnations talk to each other."""

    @property
    def incarnation(self) -> int:
        """Of this node."""

    @property
    def known(self) -> Mapping[str, int]:
        """Peer -> incarnation whose process was accepted."""

    def may_send(self, peer: str, kind: type[Message]) -> bool:
        """Whether ``peer`` has accepted this process and understands messages of ``kind``."""


class DurableLog(Protocol):
    """How much of the log is on disk."""

    durable_number: int
    """Number of the last record that is."""


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
        """``durable_acks`` False: nothing waits for the disk (``Defences.durable_acks``)."""
        self._send, self._addresses, self._log, self._core = send, addresses, log, core
        self._durable_acks = durable_acks
        self._held: list[tuple[int, str, DurableMessage]] = []

    @property
    def held(self) -> int:
        """Messages that wait for the disk."""
        return len(self._held)

    def address(self, peer: str) -> tuple[int, int]:
        """Source and destination of a message to ``peer``: the first two fields of each. Destination 0: it would be lost."""
        return self._addresses.incarnation, self._addresses.known.get(peer, 0)

    def send(self, peer: str, message: PeerMessage) -> None:
        """Send to the process of ``peer`` that we have accepted and that has accepted us; without one it is lost."""
        if peer in self._addresses.known and self._addresses.may_send(peer, type(message)):
            self._send(peer, message)

    def send_when_durable(self, number: int, peer: str, message: DurableMessage) -> None:
        """Send once the log is durable up to record ``number``, if the term is still that of the message."""
        if number <= self._log.durable_number or not self._durable_acks:
            self.send(peer, message)
        else:
            if len(self._held) >= HELD_MAX:
                self._held = list(
                    {(p, type(m), isinstance(m, AppendReply) and m.success): (n, p, m) for n, p, m in self._held}.values()
                )
            self._held.append((number, peer, message))

    def release(self) -> None:
        """The log was synced: send what has become true. An acknowledgement covers the older ones to the same peer."""
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
        """Send what has waited: to the process of ``peer`` that is accepted now."""
        source, destination = self.address(peer)
        self.send(peer, message._replace(source=source, destination=destination))

    def drop_held(self) -> None:
        """This node goes on as another incarnation: what waits was promised by the former one."""
        self._held.clear()

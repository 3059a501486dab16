"""NodeAddresses: where brokers, clients and administrators reach each node of the cluster, and whether it serves.

Every node sends the others its addresses, its zone, and whether it serves, once a second and at once after a change. A node
from which no message came for ``SILENCE_MS`` counts as not serving. Messages may be lost, and only the peers' transport
authenticates them. So an address is only passed on to clients that ask for the list. Nothing in the cluster depends on it.
"""

from collections.abc import Callable, Sequence

from replicated_namesrv.address_list import is_entry, is_zone
from replicated_namesrv.service import NodeAddress

KIND = 7
"""First byte of the message. No message of ``leader_messages.py`` begins with it, and earlier versions drop the message."""
REPEAT_MS, SILENCE_MS = 1_000.0, 3_500.0
ADDRESS_BYTES_MAX, ZONE_BYTES_MAX = 300, 100
MARK = b"\0"
"""Byte between address, zone and admin address."""
_SERVING, _DRAINED = 1, 2


class NodeAddresses:
    """Sends one node's address to the other nodes, and keeps the addresses that they send."""

    def __init__(
        self, node_id: str, members: Sequence[str], send: Callable[[str, bytes], None], now_ms: Callable[[], float]
    ) -> None:
        """``send``: to one other node."""
        self._node_id, self._members = node_id, members
        self._send, self._now_ms = send, now_ms
        self.own: Callable[[], NodeAddress] = lambda: NodeAddress(node_id, "", serves=False, drained=False)
        self._known: dict[str, tuple[NodeAddress, float]] = {}
        self._sent = b""
        self._send_at_ms = 0.0

    def tick(self) -> None:
        """Send this node's address if it is due, and forget nodes that are no members."""
        for gone in self._known.keys() - set(self._members):
            del self._known[gone]
        own = self.own()
        texts = own.address[:ADDRESS_BYTES_MAX], own.zone[:ZONE_BYTES_MAX], own.admin[:ADDRESS_BYTES_MAX]
        message = bytes((KIND, own.serves * _SERVING | own.drained * _DRAINED)) + MARK.join(text.encode() for text in texts)
        if message == self._sent and self._now_ms() < self._send_at_ms:
            return
        self._sent, self._send_at_ms = message, self._now_ms() + REPEAT_MS
        for member in self._members:
            if member != self._node_id:
                self._send(member, message)

    def received(self, peer: str, data: bytes) -> bool:
        """Process ``data`` if it is such a message. Returns whether it is."""
        if data[:1] != bytes((KIND,)):
            return False
        address, zone, admin, *_ = [*data[2:].split(MARK, 2), b"", b""]
        is_short = len(address) <= ADDRESS_BYTES_MAX and len(zone) <= ZONE_BYTES_MAX and len(admin) <= ADDRESS_BYTES_MAX
        if len(data) >= 2 and is_short:
            texts = [text.decode(errors="replace") for text in (address, zone, admin)]
            found = NodeAddress(peer, texts[0], bool(data[1] & _SERVING), bool(data[1] & _DRAINED), *texts[1:])
            if all(not each or is_entry(each) for each in (found.address, found.admin)) and is_zone(found.zone):
                self._known[peer] = found, self._now_ms()
        return True

    def recent(self) -> list[NodeAddress]:
        """This node, and the members from which a message came lately."""
        now_ms = self._now_ms()
        return [found for found, heard_ms in self._known.values() if now_ms - heard_ms < SILENCE_MS] + [self.own()]

    def all(self) -> list[NodeAddress]:
        """All members in their order. The address is empty if no message arrived since the start."""
        return [self._of(member) for member in self._members]

    def _of(self, member: str) -> NodeAddress:
        if member == self._node_id:
            return self.own()
        known = self._known.get(member)
        if known is None:
            return NodeAddress(member, "", serves=False, drained=False)
        found, heard_ms = known
        return found if self._now_ms() - heard_ms < SILENCE_MS else found._replace(serves=False)

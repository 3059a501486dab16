"""Attachments: which brokers are attached to which connections of this node. Pure; time is an argument.

A broker is attached to each connection over which it made contact, until that ends. What the node tells the leader
(``ReportEntry``):

    connections of this registration                                    state           test
    at least one is open                                                HELD            test_open_connection
    the last one was closed by the broker, in peace                     LOST            test_closed_in_peace
    the last one was closed by this side, or not in peace               RELEASED        test_closed_by_us
    there was none in this process                                      no entry        test_never_attached

*In peace* means that the broker did not give the connection up because of us (``conversations.py``).
"""

from dataclasses import dataclass, field

from replicated_namesrv.replication.liveness.leader_messages import AGE_MAX, HELD, LOST, RELEASED, ReportEntry
from replicated_namesrv.replication.marks import Key

ROUND_MS = 1_000.0
"""A broker that starts has connected to all nodes that it reaches within this time."""
REGISTERED_MAX = 1_000
"""Registrations of one connection that are remembered after they ended: the newest. A 104 for an older one is taken as if its
connection had never registered the broker."""


@dataclass(slots=True)
class _Broker:
    epoch: int
    contact_ms: float = 0.0
    connections: dict[int, float] = field(default_factory=dict)
    """Open ones, and when they were opened."""
    ended: int = RELEASED


class Attachments:
    """What one node knows. ``changed`` collects the brokers that the leader has to hear of."""

    def __init__(self) -> None:
        self._brokers: dict[Key, _Broker] = {}
        self._registered: dict[int, dict[Key, int]] = {}
        """By open connection: the epochs that it registered last, in force or not; the newest is the last."""
        self._carried: dict[int, dict[Key, None]] = {}
        """By open connection: the brokers attached to it, in an order that does not depend on hashes."""
        self.changed: dict[Key, None] = {}

    def attach(self, key: Key, epoch: int, connection_id: int, opened_ms: float, now_ms: float, registers: bool) -> None:
        """The broker made contact over this connection, opened at ``opened_ms`` by a clock that never stops.
        ``registers``: by a registration of what is in force; a heartbeat may be of an earlier process."""
        broker = self._brokers.get(key)
        if broker is not None and epoch < broker.epoch:
            return
        if broker is None or epoch > broker.epoch:
            if broker is not None:
                self.remove(key, broker.epoch)
            broker = self._brokers[key] = _Broker(epoch)
        broker.contact_ms = now_ms
        broker.connections[connection_id] = opened_ms
        self._carried.setdefault(connection_id, {})[key] = None
        if registers:
            registered = self._registered.setdefault(connection_id, {})
            registered.pop(key, None)
            registered[key] = epoch
            if len(registered) > REGISTERED_MAX:
                del registered[next(iter(registered))]
        self.changed[key] = None

    def detach(self, key: Key, connection_id: int) -> None:
        """The process at the other end says that the broker leaves; the connection may carry others."""
        broker = self._brokers.get(key)
        if broker is not None and broker.connections.pop(connection_id, None) is not None:
            self._carried[connection_id].pop(key, None)
            self._ended(key, broker, LOST)

    def lose(self, connection_id: int, in_peace: bool) -> bool:
        """The connection is gone. ``in_peace``: the broker closed it, and not because of us. Whether a broker was attached."""
        self._registered.pop(connection_id, None)
        keys = self._carried.pop(connection_id, ())
        for key in keys:
            broker = self._brokers[key]
            del broker.connections[connection_id]
            self._ended(key, broker, LOST if in_peace else RELEASED)
        return bool(keys)

    def _ended(self, key: Key, broker: _Broker, how: int) -> None:
        if not broker.connections:
            broker.ended = how
            self.changed[key] = None

    def remove(self, key: Key, epoch: int) -> list[int]:
        """The registration with this epoch ended; returns the connections that it was attached to."""
        broker = self._brokers.get(key)
        if broker is None or broker.epoch > epoch:
            return []
        del self._brokers[key]
        self.changed.pop(key, None)
        for connection_id in broker.connections:
            self._carried[connection_id].pop(key, None)
        return list(broker.connections)

    def registered_epoch(self, key: Key, connection_id: int) -> int | None:
        """What this connection registered last for the broker, be it still in force or not."""
        return self._registered.get(connection_id, {}).get(key)

    def newest_opened_ms(self, key: Key) -> float | None:
        """When the newest connection of the broker was opened; None: there is none."""
        broker = self._brokers.get(key)
        return max(broker.connections.values()) if broker is not None and broker.connections else None

    def brokers_of(self, connection_id: int) -> list[Key]:
        """Brokers attached to this connection."""
        return list(self._carried.get(connection_id, ()))

    def contact_ms(self, key: Key) -> float | None:
        """When the broker made contact with this node last."""
        broker = self._brokers.get(key)
        return None if broker is None else broker.contact_ms

    def entry(self, key: Key, clock_ms: float) -> ReportEntry | None:
        """How this node stands to the broker. ``clock_ms``: now, by the clock of ``opened_ms``."""
        broker = self._brokers.get(key)
        if broker is None:
            return None
        if not broker.connections:
            return ReportEntry(key, broker.ended, False, broker.epoch, 0, AGE_MAX)
        return ReportEntry(key, HELD, False, broker.epoch, 0, max(0, int(clock_ms - max(broker.connections.values()))))

    def everything(self, clock_ms: float) -> list[ReportEntry]:
        """The whole list."""
        entries = (self.entry(key, clock_ms) for key in self._brokers)
        return [entry for entry in entries if entry is not None]

    def known(self) -> list[tuple[Key, int]]:
        """Brokers and their epochs."""
        return [(key, broker.epoch) for key, broker in self._brokers.items()]

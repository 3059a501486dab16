"""Attachments: which brokers are attached to which connections of this node, and how connections end. Pure; time is an argument.

A broker is attached to each connection over which it made contact, until that ends. What the node reports to the leader
(``ReportEntry``):

    row  connections of this registration                               state           test
    A1   at least one is open                                           HELD            test_open_connection
    A2   the last one was closed by the broker, in peace                LOST            test_closed_in_peace
    A3   the last one was closed by this side, or not in peace          RELEASED        test_closed_by_us
    A4   there was none in this process                                 no entry        test_never_attached

*In peace* means that the broker did not give the connection up because of us. A broker closes a connection over which an answer
did not come within ``PATIENCE_MS``. It returns in its next round. So the node remembers of each open connection which requests
are unanswered and how long answers took:

    row  the broker closes the connection                               in peace        test
    C1   while a request on it is unanswered                            no              test_unanswered_request
    C2   within PATIENCE_MS after an answer that took over SLOW_MS      no              test_slow_answer
    C3   within PATIENCE_MS after this process stalled for SLOW_MS      no              test_stalled_process
    C4   at any other time                                              yes             test_closed_in_peace

The node knows when a connection was opened, except after a stall: the kernel goes on opening connections, and they are accepted
afterwards. Those that are accepted within ``BACKLOG_MS`` count as opened when the stall began (test_opened_during_a_stall).
"""

from dataclasses import dataclass, field

from replicated_namesrv.replication.liveness.leader_messages import AGE_MAX, HELD, LOST, RELEASED, ReportEntry
from replicated_namesrv.replication.marks import Key

ROUND_MS = 1_000.0
"""A broker that starts has connected to all nodes that it reaches within this time."""
REGISTERED_MAX = 1_000
"""Registrations of one connection that are remembered after they ended: the newest. A 104 for an older one is taken as if its
connection had never registered the broker."""
SLOW_MS = 1_000.0
"""An answer that takes longer may have been given up, and a process that did not run for so long was slow for everybody."""
PATIENCE_MS = 3_000.0
"""How long RocketMQ's brokers wait for an answer before they close the connection."""
STALL_MS = 300.0
"""A process that did not run for this long finds connections of which it does not know when they were opened."""
BACKLOG_MS = 1_000.0
"""Connections accepted so long after a stall may have been opened during it."""


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


@dataclass(slots=True)
class _Conversation:
    opened_ms: float
    unanswered: int = 0
    doubtful_until_ms: float = 0.0


class Conversations:
    """Of one node. ``now_ms`` is the time of a clock that never stops."""

    def __init__(self, now_ms: float) -> None:
        self._open: dict[int, _Conversation] = {}
        self._ran_ms = now_ms
        """When this process was last seen running."""
        self._stalled_from_ms = 0.0
        self._backlog_until_ms = self._slow_until_ms = now_ms

    def tick(self, now_ms: float) -> None:
        """Call it several times in STALL_MS. Who wakes has much to do and may stand still again before it has accepted all that
        waits: that is one stall."""
        stalled_ms = now_ms - self._ran_ms
        if stalled_ms > STALL_MS:
            if now_ms - stalled_ms > self._backlog_until_ms:
                self._stalled_from_ms = self._ran_ms
            self._backlog_until_ms = now_ms + BACKLOG_MS
            if stalled_ms > SLOW_MS:
                self._slow_until_ms = now_ms + PATIENCE_MS
        self._ran_ms = now_ms

    def opened(self, connection_id: int, now_ms: float) -> None:
        """The node accepted this connection."""
        self.tick(now_ms)
        is_backlog = now_ms <= self._backlog_until_ms and self._stalled_from_ms > 0
        self._open[connection_id] = _Conversation(self._stalled_from_ms if is_backlog else now_ms)

    def closed(self, connection_id: int, now_ms: float) -> bool:
        """The connection is gone. Whether in peace, if it was the peer that closed it."""
        self.tick(now_ms)
        talk = self._open.pop(connection_id, None)
        return talk is not None and not talk.unanswered and now_ms > max(talk.doubtful_until_ms, self._slow_until_ms)

    def is_open(self, connection_id: int) -> bool:
        return connection_id in self._open

    def opened_ms(self, connection_id: int) -> float | None:
        """When it was opened at the latest; None: it is gone."""
        talk = self._open.get(connection_id)
        return None if talk is None else talk.opened_ms

    def asked(self, connection_id: int) -> None:
        """A request came over this connection; ``answered`` follows once for each."""
        if connection_id in self._open:
            self._open[connection_id].unanswered += 1

    def answered(self, connection_id: int, asked_ms: float, now_ms: float) -> None:
        """A request that came at ``asked_ms`` was answered."""
        talk = self._open.get(connection_id)
        if talk is not None:
            talk.unanswered -= 1
            if now_ms - asked_ms > SLOW_MS:
                talk.doubtful_until_ms = now_ms + PATIENCE_MS

"""Attachments: which brokers are attached to which connections of this node, and how connections end. Pure; time is an argument.

A broker is attached to each connection over which it made contact, until the connection ends. The node reports to the leader
(``ReportEntry``):

    row  connections of this registration                               state           test
    A1   at least one is open                                           HELD            test_open_connection
    A2   the one that ended last ended with a clean close, and no       LOST            test_closed_in_peace
         newer one ended in another way
    A3   the one that ended last, or a newer one, ended in another way  RELEASED        test_closed_by_us,
                                                                                        test_an_older_one_is_closed_last
    A4   there was none in this process                                 no entry        test_never_attached

A *clean close* is evidence that the broker left: the broker closed the connection, and this node gave it no reason to do so. The
end of an idle connection is no clean close: this node closes it, and the broker's time-out may be longer than
``serverChannelMaxIdleTimeSeconds``. A connection that a late ``UNREGISTER_BROKER`` (104) detached counts as closed cleanly. A
broker also closes a connection if an answer takes longer than the request's time limit (``PATIENCE_MS`` or more), but then it
returns with its next registrations. Therefore the node records for each open connection which requests of ``broker_calls.py`` are
unanswered, and how long their answers took. It does not record other requests: they wait that long only while no read index is
confirmed, and row C4 covers this. The server knows further reasons for which a broker closes a connection (row C5,
``CloseReason.UNACKNOWLEDGED``): a request is incomplete, unanswered or was dropped; an answer waited in a queue; the broker's
host has not acknowledged all bytes of the answers, because the network loses them; or the node has asked the broker to leave
(GO_AWAY).

    row  the broker closes the connection                               clean           test
    C1   while a request on it is unanswered                            no              test_unanswered_request
    C2   within PATIENCE_MS after an answer that took over SLOW_MS      no              test_slow_answer
    C3   within PATIENCE_MS after this process stalled for SLOW_MS      no              test_stalled_process
    C4   within PATIENCE_MS after this node had no confirmed read       no              test_unanswered_queries
         index for PATIENCE_MS
    C5   with the reason UNACKNOWLEDGED                                 no              test_unacknowledged_answer
    C6   at any other time                                              yes             test_closed_in_peace

The node knows when a connection was opened, except after a stall: during the stall the kernel opens connections, which the node
accepts afterwards. Connections that it accepts within ``BACKLOG_MS`` after the stall count as opened when the stall began
(test_opened_during_a_stall).
"""

import math
from dataclasses import dataclass, field

from replicated_namesrv.replication.liveness.leader_messages import AGE_MAX, HELD, LOST, RELEASED, ReportEntry
from replicated_namesrv.replication.marks import Key
from replicated_namesrv.service import PATIENCE_MS, SLOW_MS

ROUND_MS = 1_000.0
"""A starting broker has connected to all reachable nodes within this time."""
CONTACT_MS = 1_000.0
"""A contact that is older than this when it is reported does not count, because the leader would count it from the arrival of the
report."""
CONNECTIONS_MAX = 16
"""Maximum number of connections of one broker that are remembered. If there are more, connections over which the broker has
registered take precedence, then newer connections. A real broker uses one connection."""
REGISTERED_MAX = 1_000
"""Maximum number of registrations, in force or ended, that are remembered for one connection. The newest are kept. An
``UNREGISTER_BROKER`` (104) for an older one is handled as if its connection had never registered the broker."""
REGISTERED_TOTAL_MAX = 200_000
"""Maximum number of registrations, in force or ended, that are remembered for all connections together. At this number, each new
registration over a connection replaces the oldest one over the same connection. The first registration over a connection is
remembered even then."""
RETURN_MS = 120_000.0
"""A broker whose connection was released is expected to return within this time after its last contact before the release. Later,
reports do not give the age of the released connection."""
STALL_MS = 300.0
"""After a stall of this length there are connections whose opening times are unknown."""
BACKLOG_MS = 1_000.0
"""Connections accepted within this time after a stall may have been opened during the stall."""


@dataclass(slots=True)
class _Broker:
    epoch: int
    contact_ms: float = 0.0
    connections: dict[int, float] = field(default_factory=dict)
    """Open connections with their opening times."""
    ended: int = RELEASED
    released_ms: float = -math.inf
    """Opening time of the newest connection that has ended, except by a clean close."""
    returns_until_ms: float = -math.inf
    """``released_ms`` counts until this time."""


class Attachments:
    """The attachments of one node. ``changed`` collects the brokers to report to the leader."""

    def __init__(self) -> None:
        self._brokers: dict[Key, _Broker] = {}
        self._registered: dict[int, dict[int, int]] = {}
        """For each open connection: the epochs of its last registrations, in force or not. They are stored by the hash of the
        key, because a key can be 2 KB long. The newest is last."""
        self._registered_total = 0
        self._carried: dict[int, dict[Key, None]] = {}
        """For each open connection: the brokers attached to it, in an order that does not depend on hashes."""
        self.changed: dict[Key, None] = {}

    def attach(self, key: Key, epoch: int, connection_id: int, opened_ms: float, now_ms: float, registers: bool) -> None:
        """Record that the broker made contact over this connection. ``opened_ms``: when the connection was opened, by a clock
        that never stops. ``registers``: the contact was a registration that is in force. A heartbeat proves less, because it may
        come from an earlier process."""
        broker = self._brokers.get(key)
        if broker is not None and epoch < broker.epoch:
            return
        if broker is None:
            broker = self._brokers[key] = _Broker(epoch)
        # the connections with an earlier epoch stay attached: the broker may have changed its id, and may still use them
        broker.epoch, broker.contact_ms = epoch, now_ms
        broker.connections[connection_id] = opened_ms
        self._carried.setdefault(connection_id, {})[key] = None
        if registers:
            self._register(hash(key), epoch, self._registered.setdefault(connection_id, {}))
        if len(broker.connections) > CONNECTIONS_MAX:
            opened = broker.connections
            least = min(opened, key=lambda each: (self.registered_epoch(key, each) is not None, opened[each]))
            del broker.connections[least], self._carried[least][key]
        self.changed[key] = None

    def _register(self, key_hash: int, epoch: int, registered: dict[int, int]) -> None:
        is_full = len(registered) >= REGISTERED_MAX or (registered and self._registered_total >= REGISTERED_TOTAL_MAX)
        if registered.pop(key_hash, None) is None:
            if is_full:
                del registered[next(iter(registered))]
            else:
                self._registered_total += 1
        registered[key_hash] = epoch

    def detach(self, key: Key, connection_id: int) -> None:
        """The broker unregistered over this connection, which may carry other brokers."""
        broker = self._brokers.get(key)
        opened_ms = None if broker is None else broker.connections.pop(connection_id, None)
        if broker is not None and opened_ms is not None:
            self._carried[connection_id].pop(key, None)
            self._ended(key, broker, LOST, opened_ms)

    def lose(self, connection_id: int, in_peace: bool) -> bool:
        """Detach all brokers from a connection that has ended. ``in_peace``: it ended with a clean close. Returns whether a
        broker was attached.
        """
        self._registered_total -= len(self._registered.pop(connection_id, ()))
        keys = self._carried.pop(connection_id, ())
        for key in keys:
            broker = self._brokers[key]
            opened_ms = broker.connections.pop(connection_id)
            if not in_peace:
                broker.released_ms = max(broker.released_ms, opened_ms)
                broker.returns_until_ms = broker.contact_ms + RETURN_MS
            self._ended(key, broker, LOST if in_peace else RELEASED, opened_ms)
        return bool(keys)

    def _ended(self, key: Key, broker: _Broker, how: int, opened_ms: float) -> None:
        if not broker.connections:
            broker.ended = RELEASED if opened_ms < broker.released_ms else how
            self.changed[key] = None

    def remove(self, key: Key, epoch: int) -> list[int]:
        """The registration with this epoch ended. Returns the connections to which it was attached."""
        broker = self._brokers.get(key)
        if broker is None or broker.epoch > epoch:
            return []
        del self._brokers[key]
        self.changed.pop(key, None)
        for connection_id in broker.connections:
            self._carried[connection_id].pop(key, None)
        return list(broker.connections)

    def registered_epoch(self, key: Key, connection_id: int) -> int | None:
        """The epoch of the last registration of the broker over this connection, whether or not it is still in force."""
        return self._registered.get(connection_id, {}).get(hash(key))

    def newest_opened_ms(self, key: Key) -> float | None:
        """When the newest connection of the broker was opened; None: there is none."""
        broker = self._brokers.get(key)
        return max(broker.connections.values()) if broker is not None and broker.connections else None

    def brokers_of(self, connection_id: int) -> list[Key]:
        """Brokers attached to this connection."""
        return list(self._carried.get(connection_id, ()))

    def contact_ms(self, key: Key) -> float | None:
        """When the broker last made contact with this node."""
        broker = self._brokers.get(key)
        return None if broker is None else broker.contact_ms

    def old_contacts(self, clock_ms: float) -> list[Key]:
        """The attached brokers among ``changed`` whose last contact is older than CONTACT_MS. They are reported in a list,
        because an entry of a list is not a contact."""
        brokers = ((key, self._brokers.get(key)) for key in self.changed)
        return [key for key, broker in brokers if broker and broker.connections and clock_ms - broker.contact_ms > CONTACT_MS]

    def entry(self, key: Key, clock_ms: float) -> ReportEntry | None:
        """This node's entry for the broker. ``clock_ms``: now, by the clock of ``opened_ms``."""
        broker = self._brokers.get(key)
        if broker is None:
            return None
        state = HELD if broker.connections else broker.ended
        times = list(broker.connections.values())
        if state != LOST and clock_ms <= broker.returns_until_ms:
            times.append(broker.released_ms)
        age_ms = max(0, int(clock_ms - max(times))) if times else AGE_MAX
        return ReportEntry(key, state, False, broker.epoch, 0, age_ms)

    def known(self) -> list[tuple[Key, int]]:
        """Brokers and their epochs."""
        return [(key, broker.epoch) for key, broker in self._brokers.items()]


@dataclass(slots=True)
class _Conversation:
    opened_ms: float
    unanswered: int = 0
    doubtful_until_ms: float = 0.0


class Conversations:
    """The open connections of one node, with their unanswered requests. ``now_ms`` is the time of a clock that never stops."""

    def __init__(self, now_ms: float) -> None:
        self._open: dict[int, _Conversation] = {}
        self._ran_ms = now_ms
        """The last time at which this process is known to have run."""
        self._stalled_from_ms = 0.0
        self._backlog_until_ms = self._slow_until_ms = -math.inf

    def tick(self, now_ms: float) -> None:
        """Detect a stall of this process from the time since the last call. Call it several times in STALL_MS.

        A process that wakes may stall again before it has accepted all waiting connections. Both stalls count as one."""
        stalled_ms = now_ms - self._ran_ms
        if stalled_ms > STALL_MS:
            if now_ms - stalled_ms > self._backlog_until_ms:
                self._stalled_from_ms = self._ran_ms
            self._backlog_until_ms = now_ms + BACKLOG_MS
            if stalled_ms > SLOW_MS:
                self._slow_until_ms = now_ms + PATIENCE_MS
        self._ran_ms = now_ms

    def reads_wait(self, now_ms: float) -> None:
        """This node has had no confirmed read index for PATIENCE_MS."""
        self._slow_until_ms = now_ms + PATIENCE_MS

    def opened(self, connection_id: int, now_ms: float) -> None:
        """The node accepted this connection."""
        self.tick(now_ms)
        is_backlog = now_ms <= self._backlog_until_ms
        self._open[connection_id] = _Conversation(self._stalled_from_ms if is_backlog else now_ms)

    def closed(self, connection_id: int, is_acknowledged: bool, now_ms: float) -> bool:
        """Drop a connection that has ended. Returns False if the broker may have had a reason to end it (C1 to C5). A close is
        clean if two conditions are true: the result is True, and the peer closed the connection. ``is_acknowledged``: the peer's
        host has acknowledged all answers."""
        self.tick(now_ms)
        talk = self._open.pop(connection_id, None)
        if talk is None or talk.unanswered or not is_acknowledged:
            return False
        return now_ms > max(talk.doubtful_until_ms, self._slow_until_ms)

    def is_open(self, connection_id: int) -> bool:
        return connection_id in self._open

    def opened_ms(self, connection_id: int) -> float | None:
        """The time at which the node accepted the connection. For a connection that waited during a stall, the start of the
        stall. None: the connection has ended."""
        talk = self._open.get(connection_id)
        return None if talk is None else talk.opened_ms

    def asked(self, connection_id: int) -> None:
        """A request arrived over this connection; ``answered`` must be called one time for each request."""
        if connection_id in self._open:
            self._open[connection_id].unanswered += 1

    def answered(self, connection_id: int, asked_ms: float, now_ms: float) -> None:
        """A request that arrived at ``asked_ms`` was answered."""
        talk = self._open.get(connection_id)
        if talk is not None:
            talk.unanswered -= 1
            if now_ms - asked_ms > SLOW_MS:
                talk.doubtful_until_ms = now_ms + PATIENCE_MS

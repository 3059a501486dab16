"""Leases: who hears which broker, and what the leader concludes. Pure; the caller gives the time, in milliseconds that count
only while this process runs (``running_clock.py``).

``Attachments`` is what a node knows for itself: its connections' brokers, and when each broker was last heard anywhere as
far as it was told. ``LeaseTable`` is the leader's view over all nodes. Its rules:

- A broker is *silent* when nobody has heard it for its time-out. It is *gone* when at least one node lost its connection, none
  holds one, and ``connectionLossGraceMs`` have passed since: a restart of the connection is not a death.
- A connection that this side closed, or that ended with its node, says nothing: its broker stays until it is silent.
- A node that the leader cannot hear holds whatever it held when it was last heard, and if this leader never had its list,
  everything; for one broker time-out counted from when it was last heard, and one and a half from when anybody is known to have
  heard the broker: who lives is heard at least twice in a time-out, and nodes that are restarted in turn keep no dead one.
- A removal of code 104 is *late* if after its own connection registered last another connection of the broker came to some
  node that had one already. A broker has one to each node, so it was restarted or has reconnected, and if it is leaving now, it
  says so over that connection too. If its own connection came less than ROUND_MS before that one, both are of one process, which
  was restarted and is leaving.
- A new leader decides nothing before a majority has told it everything. It starts from the newest age any of them knows; a
  broker of which none knows anything gets a full time-out from then on, once: the ages are told to all nodes, so the next
  leader goes on from there and changes of leader do not keep a dead broker alive.
- While nobody led for longer than an election takes, nobody could be heard, and the nodes closed their connections. That time is
  no silence, and a connection that was lost in it, or soon after by who had asked in it and waited in vain, says nothing. So a
  cluster that was without a majority for long comes back with its living brokers; a dead one is silent once leaders have not
  heard it for its time-out.
- Ages grow stale: what an earlier leader accepted after it had told them is known to the nodes that it heard, as long as their
  processes live. Two majorities share a node, so the ages that the last leader told to any of a majority hold if none of it
  began its process after that. If there is no such majority nothing is known: every broker and every silent node counts as heard
  when the lists were there. A process that began after that may follow one that held a broker: for a time-out the broker does not
  count as lost before this process has held it too.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from replicated_namesrv.replication.liveness.leader_messages import (
    AGE_MAX,
    HELD,
    KNOWN,
    LOST,
    RELEASED,
    Key,
    NodeReport,
    ReportEntry,
)

NODE_SILENCE_MS = 1_000.0
"""A node that has not reported for this long cannot be heard."""
ROUND_MS = 1_000.0
"""A broker that starts has registered with every node that it reaches within this time."""
OUTAGE_MIN_MS = 1_500.0
"""Longer than an election. Until then requests wait for the next leader."""
PATIENCE_MS = 3_000.0
"""How long RocketMQ's brokers wait for an answer before they close the connection."""
MEMORY_WAIT_MS = 250.0
"""How long a new leader looks for a majority that knows how old the ages are, once a majority has told everything."""


@dataclass(slots=True)
class _Broker:
    heard_ms: float
    epoch: int = 0
    connections: dict[int, int] = field(default_factory=dict)
    """Connection id to its place in the order in which connections came."""
    ended: int = KNOWN
    lost_ms: float = 0.0
    had_connection: bool = False
    """In this life, here."""
    reattached_ms: float | None = None
    """When the newest connection came that was not the first: a broker has one, so it lost the other or is another process."""


class Sign(Enum):
    """What came over a connection."""

    REGISTRATION = "registration"
    """Of what is in force now."""
    OVERTAKEN = "overtaken"
    """Of another data version than the one in force."""
    ALIVE = "alive"
    """A heartbeat, or a question about the data version in force."""


class Registered(NamedTuple):
    """What a connection registered or renewed last for a broker."""

    sign: Sign
    """OVERTAKEN: that is all that is known of its process, which may be an earlier one."""
    epoch: int
    at_ms: float
    order: int
    """Place among all attachments of this process."""
    came_ms: float
    """When this connection came."""

    @property
    def speaks_until_ms(self) -> float:
        """Connections that came to other nodes later than this may be another process's: a broker that starts comes to all nodes
        in one round."""
        return max(self.at_ms, self.came_ms + ROUND_MS)


class Attachments:
    """What one node knows. ``changed`` collects what the leader has to be told."""

    def __init__(self) -> None:
        self._brokers: dict[Key, _Broker] = {}
        self._registered: dict[int, dict[Key, Registered]] = {}
        """By connection, as long as it is open, whatever became of the broker."""
        self._order = 0
        self.changed: dict[Key, None] = {}

    def attach(self, key: Key, epoch: int, connection_id: int, now_ms: float, sign: Sign = Sign.REGISTRATION) -> None:
        """A sign of life came over this connection. One that is no registration of what is in force may come from an earlier
        process: what this connection registered before with another epoch stays what it registered last."""
        broker = self._broker(key, now_ms)
        if epoch < broker.epoch:
            return
        if epoch > broker.epoch:
            broker.epoch, broker.ended, broker.had_connection, broker.reattached_ms = epoch, KNOWN, False, None
            broker.connections.clear()
        self._order += 1
        of_connection = self._registered.setdefault(connection_id, {})
        before = of_connection.get(key)
        came_ms = now_ms if before is None else before.came_ms
        if connection_id not in broker.connections:
            broker.connections[connection_id] = self._order
            if broker.had_connection:
                broker.reattached_ms = now_ms
            broker.had_connection = True
        broker.heard_ms = max(broker.heard_ms, now_ms)
        broker.ended = HELD
        if sign is Sign.REGISTRATION or before is None or (before.sign is Sign.ALIVE and sign is Sign.OVERTAKEN):
            of_connection[key] = Registered(sign, epoch, now_ms, self._order, came_ms)
        elif before.epoch == epoch:
            of_connection[key] = Registered(before.sign, epoch, now_ms, self._order, came_ms)
        self.changed[key] = None

    def learn(self, key: Key, heard_ms: float) -> None:
        """The broker was heard at that time, somewhere."""
        broker = self._broker(key, heard_ms)
        broker.heard_ms = max(broker.heard_ms, heard_ms)

    def lose(self, connection_id: int, is_loss: bool, now_ms: float) -> list[Key]:
        """The connection is gone; ``is_loss``: by the peer's doing. Returns the brokers that were attached to it."""
        keys = self.brokers_of(connection_id)
        self._registered.pop(connection_id, None)
        for key in keys:
            broker = self._brokers[key]
            del broker.connections[connection_id]
            if not broker.connections:
                broker.ended, broker.lost_ms = (LOST if is_loss else RELEASED), now_ms
                self.changed[key] = None
        return keys

    def remove(self, key: Key, epoch: int) -> list[int]:
        """The registration with this epoch ended; returns the connections that it was attached to."""
        broker = self._brokers.get(key)
        if broker is None or broker.epoch > epoch:
            return []
        del self._brokers[key]
        self.changed.pop(key, None)
        return list(broker.connections)

    def registered_over(self, key: Key, connection_id: int) -> Registered | None:
        """What this connection registered or renewed last for the broker, be it still in force or not."""
        return self._registered.get(connection_id, {}).get(key)

    def came_back(self, key: Key, registered: Registered) -> bool:
        """Whether the same life of the broker has attached here over another connection since."""
        broker = self._brokers.get(key)
        return broker is not None and any(order > registered.order for order in broker.connections.values())

    def age_ms(self, key: Key, now_ms: float) -> float | None:
        """Since the newest sign of life known here."""
        broker = self._brokers.get(key)
        return None if broker is None else max(0.0, now_ms - broker.heard_ms)

    def brokers_of(self, connection_id: int) -> list[Key]:
        """Brokers attached to this connection."""
        keys = self._registered.get(connection_id, ())
        return [key for key in keys if (broker := self._brokers.get(key)) is not None and connection_id in broker.connections]

    def entry(self, key: Key, now_ms: float) -> ReportEntry | None:
        """How this node stands to the broker."""
        broker = self._brokers.get(key)
        if broker is None:
            return None
        state = HELD if broker.connections else broker.ended
        lost_ms = int(now_ms - broker.lost_ms) if state in (LOST, RELEASED) else 0
        reattached_ms = AGE_MAX if broker.reattached_ms is None else max(0, int(now_ms - broker.reattached_ms))
        age_ms = max(0, int(now_ms - broker.heard_ms))
        return ReportEntry(key, state, False, broker.epoch, 0, age_ms, max(0, lost_ms), reattached_ms)

    def everything(self, now_ms: float) -> list[ReportEntry]:
        """The whole list."""
        entries = (self.entry(key, now_ms) for key in self._brokers)
        return [entry for entry in entries if entry is not None]

    def _broker(self, key: Key, now_ms: float) -> _Broker:
        broker = self._brokers.get(key)
        if broker is None:
            broker = self._brokers[key] = _Broker(now_ms)
        return broker


class Lease(NamedTuple):
    """A registration as the leader has to watch it."""

    key: Key
    epoch: int
    timeout_ms: int


class DueRemoval(NamedTuple):
    """A removal that the leader should propose."""

    key: Key
    epoch: int
    is_lost: bool
    """True: every node that had it has lost it; False: nobody heard it within its time-out."""


@dataclass(slots=True)
class _Record:
    state: int
    epoch: int
    heard_ms: float
    lost_ms: float
    reattached_ms: float | None


@dataclass(slots=True)
class _Node:
    heard_ms: float | None = None
    session: int | None = None
    sequence: int = 0
    is_complete: bool = False
    """Its whole list has arrived, and every change since."""
    records: dict[Key, _Record] = field(default_factory=dict)
    memory: "_Memory | None" = None
    """Of its process that told everything first."""


class _Memory(NamedTuple):
    """How far back a node's process remembers, by the leader's clock."""

    told_term: int
    told_ms: float
    """When the leader of that term told it all ages last, at the earliest."""
    began_ms: float
    """When it began, at the latest."""
    confirmed_ms: float
    """When an earlier leader served it last; minus infinity: none has."""


class LeaseTable:
    """The leader's view. A new one for every term led."""

    def __init__(self, members: Sequence[str], own: str, grace_ms: float, now_ms: float) -> None:
        self._nodes = {member: _Node() for member in members}
        self._quorum = len(members) // 2 + 1
        self._own = own
        self._grace_ms = grace_ms
        self._since_ms = now_ms
        self._granted_ms: float | None = None
        """When a majority had told everything: from then on runs the time of brokers that none knew."""
        self._unknown_epoch: int | None = None
        """Nobody knows when registrations up to this epoch were heard last; 0: it is known; None: not decided yet."""
        self._predecessor: tuple[int, int] | None = None
        self._told_ms = -math.inf
        """When the last leader told all ages last: what a process that began later held before, nobody knows."""
        self._accepted: dict[Key, tuple[int, float]] = {}
        """Epoch and time of the last registration or renewal that this leader took, whatever nodes tell later: what a list says
        may be from before."""
        self._led_until_ms = math.inf
        """When the last leader served anybody last, if that was before an outage."""
        self._credited: dict[Key, float] = {}
        """When brokers were heard last, moved on by an outage."""
        self._node_ages: dict[str, float] = {}
        """When nodes were last heard, as earlier leaders told."""

    @property
    def is_ready(self) -> bool:
        """Whether a majority has sent its whole list, and what it is worth is known."""
        return self._granted_ms is not None and self._unknown_epoch is not None

    def report(self, node: str, report: NodeReport, now_ms: float) -> bool:
        """Take a node's report; False: something before it is missing, the whole list is needed."""
        known = self._nodes[node]
        if known.session != report.session:
            self._restarted(known)
            known.session, known.is_complete = report.session, False
        elif report.sequence <= known.sequence:
            return True
        if not report.is_full and (not known.is_complete or report.sequence != known.sequence + 1):
            known.heard_ms = now_ms
            known.is_complete = False
            return False
        known.sequence, known.heard_ms = report.sequence, now_ms
        if report.is_full:
            self._replace(known, report.entries, now_ms)
            known.is_complete = True
            if known.memory is None:
                confirmed_ms = -math.inf if report.confirmed_ms == AGE_MAX else now_ms - report.confirmed_ms
                told_ms, began_ms = self._since_ms - report.told_ms, now_ms - report.running_ms
                known.memory = _Memory(report.told_term, told_ms, began_ms, confirmed_ms)
        else:
            for entry in report.entries:
                known.records[entry.key] = _record(entry, now_ms)
        if self._granted_ms is None and sum(n.is_complete for n in self._nodes.values()) >= self._quorum:
            self._granted_ms = now_ms
        self._decide(now_ms)
        return True

    def succeed(self, term: int, newest_epoch: int, now_ms: float) -> None:
        """This leader's LEAD is applied: it is the next after that of ``term``, and no leader before has heard registrations
        with later epochs than ``newest_epoch``."""
        self._predecessor = (term, newest_epoch)
        self._decide(now_ms)

    def _decide(self, now_ms: float) -> None:
        """Whether a majority knows what earlier leaders heard; nodes that may know are waited for a moment."""
        if self._granted_ms is None or self._predecessor is None or self._unknown_epoch is not None:
            return
        term, newest_epoch = self._predecessor
        memories = [node.memory for node in self._nodes.values() if node.memory is not None]
        self._told_ms = max((memory.told_ms for memory in memories if memory.told_term == term), default=-math.inf)
        if sum(memory.began_ms <= self._told_ms for memory in memories) >= self._quorum:
            self._unknown_epoch = 0
        elif now_ms - self._granted_ms >= MEMORY_WAIT_MS:
            self._unknown_epoch = newest_epoch
        else:
            return
        self._credit(max(memory.confirmed_ms for memory in memories), self._granted_ms)

    def _credit(self, led_until_ms: float, granted_ms: float) -> None:
        """Nobody led from ``led_until_ms`` until the lists were there."""
        outage_ms = granted_ms - led_until_ms
        if not OUTAGE_MIN_MS < outage_ms < math.inf:
            return
        self._led_until_ms = led_until_ms
        for node in self._nodes.values():
            for key, record in node.records.items():
                heard_ms = min(record.heard_ms + outage_ms, granted_ms)
                self._credited[key] = max(self._credited.get(key, heard_ms), heard_ms)

    def _restarted(self, node: _Node) -> None:
        """What ended with a process is no loss: it counts as heard when its node last was."""
        for record in node.records.values():
            if record.state == HELD:
                record.state = RELEASED
                record.heard_ms = max(record.heard_ms, node.heard_ms or record.heard_ms)

    def _replace(self, node: _Node, entries: Iterable[ReportEntry], now_ms: float) -> None:
        before, node.records = node.records, {entry.key: _record(entry, now_ms) for entry in entries}
        for entry_key, record in before.items():
            now = node.records.get(entry_key)
            if record.state == RELEASED and (now is None or now.state == KNOWN) and (now is None or now.epoch <= record.epoch):
                record.heard_ms = max(record.heard_ms, now.heard_ms if now else record.heard_ms)
                node.records[entry_key] = record
        for key, record in list(node.records.items()):
            if key[0] == "":  # ages of nodes, told by an earlier leader
                del node.records[key]
                self._node_ages[key[1]] = max(self._node_ages.get(key[1], record.heard_ms), record.heard_ms)

    def heard(self, key: Key, epoch: int, now_ms: float) -> None:
        """A renewal was accepted or a registration applied."""
        self._accepted[key] = (epoch, now_ms)

    def _meet(self, lease: Lease, now_ms: float) -> None:
        """A registration of this leader's time has been applied, though ``heard`` may not have been called yet. What is known of
        the broker is of an earlier life."""
        if not self._is_older(lease) and self._accepted.get(lease.key, (0, 0.0))[0] != lease.epoch:
            self._accepted[lease.key] = (lease.epoch, now_ms)

    def came_back(self, key: Key, epoch: int, node: str, registered_ms: float) -> bool:
        """Whether since then another connection of this life of the broker came to a node, but for ``node``, that had one."""
        records = (other.records.get(key) for name, other in self._nodes.items() if name != node)
        return any(
            record is not None
            and (record.epoch, record.state) == (epoch, HELD)
            and record.reattached_ms is not None
            and record.reattached_ms > registered_ms
            for record in records
        )

    def forget(self, key: Key) -> None:
        """The registration ended."""
        self._accepted.pop(key, None)
        self._credited.pop(key, None)
        for node in self._nodes.values():
            node.records.pop(key, None)

    def due(self, leases: Iterable[Lease], now_ms: float) -> list[DueRemoval]:
        """Removals to propose now; nothing before the table is ready."""
        if not self.is_ready:
            return []
        silent_nodes = {name: self._nodes[name] for name in self.silent_nodes(now_ms)}
        found = []
        for lease in leases:
            self._meet(lease, now_ms)
            verdict = self._verdict(lease, silent_nodes, now_ms)
            if verdict is not None:
                found.append(DueRemoval(lease.key, lease.epoch, verdict))
        return found

    def silent_nodes(self, now_ms: float) -> list[str]:
        """Nodes that cannot be heard."""
        return [name for name, node in self._nodes.items() if self._is_silent(name, node, now_ms)]

    def _is_silent(self, name: str, node: _Node, now_ms: float) -> bool:
        return name != self._own and (node.heard_ms is None or not node.is_complete or now_ms - node.heard_ms > NODE_SILENCE_MS)

    def _last_heard(self, name: str, node: _Node) -> float:
        told = self._since_ms if self._unknown_epoch else self._node_ages.get(name, self._since_ms)
        return told if node.heard_ms is None else max(told, node.heard_ms)

    def _is_unknown(self, lease: Lease) -> bool:
        """Whether it may have been heard before by a node that has not said since."""
        if not self._unknown_epoch or lease.epoch > self._unknown_epoch:
            return False
        return not all(_has_said(node, lease) for node in self._nodes.values())

    def _may_be_held(self, lease: Lease, now_ms: float) -> bool:
        """Whether a process that ended held it, for all that is known, and one that began since is yet to hear it."""
        assert self._granted_ms is not None
        if not self._is_older(lease) or now_ms > self._granted_ms + lease.timeout_ms:
            return False
        nodes = self._nodes.values()
        return any(n.memory is not None and n.memory.began_ms > self._told_ms and not _has_said(n, lease) for n in nodes)

    def _is_older(self, lease: Lease) -> bool:
        """Than this leader."""
        return self._predecessor is not None and lease.epoch <= self._predecessor[1]

    def _credited_ms(self, lease: Lease) -> float:
        """What an outage made of when it was heard last; minus infinity: there was none, or it registered since."""
        return self._credited.get(lease.key, -math.inf) if self._is_older(lease) else -math.inf

    def newest_ms(self, lease: Lease) -> float:
        """When the broker was last heard by anybody."""
        return self._look(lease)[0]

    def _look(self, lease: Lease) -> tuple[float, bool]:
        """When the broker was last heard by anybody, and whether some node holds a connection of it."""
        newest = self._granted_ms if self._is_unknown(lease) else None
        credited_ms = self._credited_ms(lease)
        if credited_ms > (-math.inf if newest is None else newest):
            newest = credited_ms
        epoch, accepted_ms = self._accepted.get(lease.key, (0, 0.0))
        if epoch == lease.epoch and (newest is None or accepted_ms > newest):
            newest = accepted_ms
        is_held = False
        for node in self._nodes.values():
            record = node.records.get(lease.key)
            if record is not None and (record.epoch == lease.epoch or record.state == KNOWN):
                is_held = is_held or record.state == HELD
                if newest is None or record.heard_ms > newest:
                    newest = record.heard_ms
        if newest is None:
            assert self._granted_ms is not None
            newest = self._granted_ms
        return newest, is_held

    def _verdict(self, lease: Lease, silent_nodes: dict[str, _Node], now_ms: float) -> bool | None:
        """True: gone, False: silent, None: alive as far as can be known."""
        heard_ms, is_held = self._look(lease)
        last_ms, protected = heard_ms, is_held
        for name, node in silent_nodes.items():
            record = node.records.get(lease.key)
            if node.is_complete and (record is None or record.state not in (HELD, RELEASED)):
                continue
            last_ms = max(last_ms, self._last_heard(name, node))
            protected = True
        if now_ms > min(last_ms, heard_ms + lease.timeout_ms / 2) + lease.timeout_ms:
            return False
        if protected or not self._is_gone(lease, now_ms) or self._may_be_held(lease, now_ms):
            return None
        return True

    def _is_gone(self, lease: Lease, now_ms: float) -> bool:
        assert self._granted_ms is not None
        lost_ms: float | None = None
        for node in self._nodes.values():
            record = node.records.get(lease.key)
            if record is None or record.epoch != lease.epoch or record.state == KNOWN:
                continue
            if record.state == HELD:
                return False
            if record.state == RELEASED or self._led_until_ms <= record.lost_ms <= self._granted_ms + PATIENCE_MS:
                if now_ms <= max(record.heard_ms, self._credited_ms(lease)) + lease.timeout_ms:
                    return False
                continue
            lost_ms = record.lost_ms if lost_ms is None else max(lost_ms, record.lost_ms)
        return lost_ms is not None and now_ms >= lost_ms + self._grace_ms

    def ages(self, leases: Iterable[Lease], now_ms: float) -> list[tuple[Key, int]]:
        """What a successor has to know: ages of brokers, and of nodes that cannot be heard."""
        if not self.is_ready:
            return []
        found = []
        for lease in leases:
            self._meet(lease, now_ms)
            found.append((lease.key, max(0, int(now_ms - self.newest_ms(lease)))))
        for name, node in self._nodes.items():
            age_ms = 0 if name == self._own else max(0, int(now_ms - self._last_heard(name, node)))
            found.append((("", name), age_ms))
        return found


def _has_said(node: _Node, lease: Lease) -> bool:
    """Whether the process holds or held a connection of it."""
    record = node.records.get(lease.key)
    return record is not None and record.epoch == lease.epoch and record.state != KNOWN


def _record(entry: ReportEntry, now_ms: float) -> _Record:
    reattached_ms = None if entry.reattached_ms == AGE_MAX else now_ms - entry.reattached_ms
    return _Record(entry.state, entry.epoch, now_ms - entry.age_ms, now_ms - entry.lost_ms, reattached_ms)

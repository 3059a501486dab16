"""Decides whether a broker has left, from the nodes' reports about their connections to it. Pure; time is an argument.

``Departures`` belongs to one term of one leader. Every node sends the leader its whole list of brokers, and then each change of
it. A node is *reporting* if its list is complete and its last report is at most ``NODE_SILENCE_MS`` old. The leader's own node
needs only a complete list, and its last report may be older. A list may come in parts. It is complete when its last part, and
every report since its first part, have arrived. Until then the node is not reporting, and the entries of its earlier reports stay
stored.

**Gone.** A broker that left is removed before its time-out (T). For each node the table gives the time after which the broker can
no longer be using that node. The broker is gone when the last of these times has passed, if at least one node reports that the
broker closed its connection. Otherwise ``silence.py`` decides.

    row  node           entry in its list for this registration         time                         test
    N1   not reporting  -                                               T after its last report      test_unheard_node
    N2   reporting      attached, perhaps with an earlier epoch         never                        test_attached,
                                                                                                     test_attached_with_an_earlier_...
    N3   reporting      lost: the last one ended with a clean close     the grace period             test_closed_by_the_broker
    N4   reporting      released: the last one ended in another way,    T                            test_released, test_released_
                        perhaps with an earlier epoch                                                with_an_earlier_epoch
    N5   reporting      none, and its process ran when the              at once                      test_never_attached
                        broker registered
    N6   reporting      none, and its process is younger                T after its process began    test_young_process
    N7   removed from   any                                             T after the removal          test_removed_node
         the cluster
    N8   any            any, and a registration of the broker is        never                        test_unreported_registration
                        unreported

Rows N2 and N4: a broker that changes its id gets another epoch. Its connections to other nodes keep the earlier epoch until
copies of the new registration reach these nodes. Therefore an attached or released connection with an earlier epoch counts. A
lost connection with an earlier epoch counts like no entry. Rows N1, N4 and N6: the broker may return to this node with its next
registrations. Row N7: the node closes its connections, and their brokers use other nodes from their next registrations on. Rows
N3 and N4 count from the time at which the leader received the entry. The grace period is ``connectionLossGraceMs``.
``attachments.py`` defines a clean close.

A registration that keeps the epoch is *unreported* until a node reports a connection of the broker that has not ended with a
clean close, but for at most UNREPORTED_MS after the leader has applied the registration. The broker may be a new process, and the
reports may be about an earlier one. A registration that gets a new epoch is not unreported: a lost connection with an earlier
epoch counts like no entry anyway.

**UNREGISTER_BROKER (104).** A broker sends it over each of its connections. If a broker restarts, a late request of the old
process must not remove the new process. The epoch does not distinguish the processes: it is the same if both registered the same
content. Their connections distinguish them. A connection counts while it is attached. A released connection counts for T, because
a live broker returns within this time.

    row  lists                                newest connection that counts    outcome                    test
    U1   the list of a node that reported     -                                wait                       test_104_waits_for_lists
         in the last second has not arrived
    U5   arrived, and a registration of       -                                wait                       test_104_waits_for_an_
         the broker is unreported                                                                         unreported_registration
    U2   a node has not reported for a        its last report counts like      as below                   test_104_without_a_node,
         second                               any other, if it sent a list       test_a_node_that_became_unheard_...
    U3   arrived                              opened more than ROUND_MS        late: detach only the      test_late_104,
                                              after the request's own          request's connection       test_104_after_a_release
    U4   arrived                              any other                        remove the broker          test_104

A broker's process connects to all nodes within ROUND_MS after its start (``attachments.py``). Ages of connections, and
rows N5 and N6, use clocks that continue while a process stalls (``clock_ms``). Time-outs count only time in which the leader ran.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from replicated_namesrv.replication.liveness.defences import LivenessDefences
from replicated_namesrv.replication.liveness.leader_messages import (
    AGE_MAX,
    ALONE,
    HELD,
    LOST,
    MORE,
    RELEASED,
    NodeReport,
    ReportEntry,
)
from replicated_namesrv.replication.liveness.silence import LOOKS_PER_TURN, Lease
from replicated_namesrv.replication.marks import Key

NODE_SILENCE_MS = 1_000.0
"""Time without a report after which a node counts as not reporting. Nodes report four times within this time."""
UNREPORTED_MS = 1_000.0
"""Time to wait for the report of the node that received a registration. If this node fails, the report never arrives."""
LOOK_AGAIN_MS = 1_000.0
"""Interval between checks of a broker that closed a connection. Such a broker is also checked whenever it closes another one."""


@dataclass(slots=True)
class _Word:
    """The last report of a node about one registration."""

    state: int
    epoch: int
    told_ms: float
    opened_ms: float
    """Opening time of the broker's newest connection at this node, which may have ended, on the leader's ``clock_ms``."""


@dataclass(slots=True)
class _Node:
    heard_ms: float
    """The time of its last report, or of the beginning of the term or of its addition to the cluster if that is later."""
    session: int | None = None
    sequence: int = 0
    is_complete: bool = False
    """Whether the node's whole list has arrived, and every change since then."""
    began_ms: float = 0.0
    """Start of the node's process."""
    began_clock_ms: float = 0.0
    """The same on the leader's ``clock_ms``. It is not earlier than the real start, however long the leader was paused."""
    words: dict[Key, _Word] = field(default_factory=dict)
    arriving: dict[Key, _Word] | None = None
    """The parts of a whole list that have arrived, and every change since its first part. When the last part arrives, this
    dictionary becomes ``words``. None: no list is arriving."""


class Departures:
    """The reports of the nodes, as one leader knows them."""

    def __init__(
        self,
        members: Sequence[str],
        own: str,
        grace_ms: float,
        now_ms: float,
        defences: LivenessDefences,
        removed_ms: float = -math.inf,
    ) -> None:
        """``removed_ms``: when a node was last removed from the cluster."""
        self._nodes = {member: _Node(now_ms) for member in members}
        self._removed_ms = removed_ms
        self._own, self._grace_ms, self._defences = own, grace_ms, defences
        self._first_epoch = math.inf
        """Registrations with this epoch or a later one began in this term."""
        self._registered_ms: dict[Key, tuple[int, float]] = {}
        """For the registrations that began in this term: their epochs, and the times (``clock_ms``) at which they began."""
        self._restored = (0, 0.0)
        """The epoch of all registrations that were restored from a backup, and the time (``clock_ms``) at which they began."""
        self._unreported: dict[Key, float] = {}
        """Brokers with an unreported registration, and the time at which it was applied."""
        self._looks: dict[Key, float] = {}
        """Brokers that closed a connection, each with the time of its next check."""

    def report(self, node: str, report: NodeReport, now_ms: float, clock_ms: float) -> bool:
        """Process a node's report. False: an earlier one is missing, so the whole list is needed."""
        known = self._nodes.get(node)
        if known is None:
            return True  # the node was removed from the cluster
        if known.session != report.session:
            known.session, known.is_complete, known.sequence, known.arriving = report.session, False, 0, None
            known.began_ms, known.began_clock_ms = now_ms - report.running_ms, clock_ms - report.running_ms
        elif report.sequence <= known.sequence:
            return True
        known.heard_ms = now_ms
        if not (report.is_full or (_continues(known, report) and report.sequence == known.sequence + 1)):
            known.is_complete, known.arriving = False, None
            return False
        known.sequence = report.sequence
        if report.is_full:
            known.is_complete, known.arriving = False, {}
        words = known.words if known.arriving is None else known.arriving
        for entry in report.entries:
            words[entry.key] = _word(entry, now_ms, clock_ms)
            if entry.state == LOST:
                self._looks[entry.key] = now_ms
            else:
                self._unreported.pop(entry.key, None)
        if report.is_listed and report.part != MORE:
            known.words, known.is_complete, known.arriving = words, True, None
            self._looks = dict.fromkeys(self._looks, now_ms)
            self._looks.update((key, now_ms) for key, word in words.items() if word.state == LOST)
        return True

    def set_members(self, members: Sequence[str], now_ms: float, removed_ms: float) -> None:
        """The members have changed. A new member counts as if it had reported now, because brokers may use it before its first
        report arrives. The reports of a removed member are dropped, because it serves no broker. ``removed_ms``: when a node was
        last removed from the cluster."""
        self._removed_ms = removed_ms
        for name in self._nodes.keys() - set(members):
            del self._nodes[name]
        for name in members:
            if name not in self._nodes:
                self._nodes[name] = _Node(now_ms)

    def lead_applied(self, revision: int) -> None:
        """The LEAD command with which this leader began its term was applied at this revision."""
        self._first_epoch = revision + 1

    def registered(self, key: Key, epoch: int, now_ms: float, clock_ms: float) -> None:
        """A registration was applied in this term. Another node may have applied it before, and may have reported that the broker
        closed its connection."""
        if any((word := node.words.get(key)) is not None and word.state == LOST for node in self._nodes.values()):
            self._looks[key] = now_ms
        if epoch >= self._first_epoch and self._registered_ms.get(key, self._restored)[0] != epoch:
            self._registered_ms[key] = (epoch, clock_ms)
        else:
            self._unreported[key] = now_ms

    def restored(self, epoch: int, clock_ms: float) -> None:
        """A backup has replaced the state in this term. All its registrations have this epoch."""
        if epoch >= self._first_epoch:
            self._restored = (epoch, clock_ms)

    def forget(self, key: Key, epoch: int) -> None:
        """The registration with this epoch ended. A report about a later one stays: its node has applied that one already."""
        self._registered_ms.pop(key, None)
        self._unreported.pop(key, None)
        self._looks.pop(key, None)
        for node in self._nodes.values():
            for words in (node.words, node.arriving or {}):
                word = words.get(key)
                if word is not None and word.epoch <= epoch:
                    del words[key]

    def unheard(self, now_ms: float) -> list[str]:
        """Nodes that are not reporting."""
        return [name for name, node in self._nodes.items() if not self._is_heard(name, node, now_ms)]

    def _is_heard(self, name: str, node: _Node, now_ms: float) -> bool:
        if name == self._own:
            return node.is_complete
        return node.is_complete and now_ms - node.heard_ms <= NODE_SILENCE_MS

    def awaits_report(self, key: Key, now_ms: float) -> bool:
        """Whether a registration of the broker is unreported."""
        return self._defences.reports_awaited and now_ms - self._unreported.get(key, -math.inf) <= UNREPORTED_MS

    # Gone

    def gone(self, lease_of: Callable[[Key], Lease | None], now_ms: float) -> Iterator[Lease]:
        """Registrations whose brokers have left. At most LOOKS_PER_TURN brokers that are due are checked. ``lease_of``: the
        registration as it is in the state."""
        for key in list(islice((key for key, look_ms in self._looks.items() if look_ms <= now_ms), LOOKS_PER_TURN)):
            lease = lease_of(key)
            words = (node.words.get(key) for node in self._nodes.values())
            if lease is None or not any(word is not None and word.state == LOST for word in words):
                del self._looks[key]
                continue
            left_ms = math.inf if self.awaits_report(key, now_ms) else self._left_ms(lease, now_ms)
            self._looks[key] = min(left_ms, now_ms + LOOK_AGAIN_MS)
            if left_ms <= now_ms:
                yield lease

    def _left_ms(self, lease: Lease, now_ms: float) -> float:
        """Time after which the broker can no longer be using any node. Infinity: it is attached to a node, or no node reports
        that it closed its connection."""
        has_left, defences = False, self._defences
        last_ms = self._wait(defences.removed_nodes, self._removed_ms, lease)
        for name, node in self._nodes.items():
            word = node.words.get(lease.key)
            if word is not None and word.epoch != lease.epoch and (word.state == LOST or not defences.earlier_epochs):
                word = None
            if not self._is_heard(name, node, now_ms):
                moment_ms = self._wait(defences.unheard_nodes, node.heard_ms, lease)
            elif word is not None and word.state == HELD:
                moment_ms = math.inf
            elif word is not None and word.state == LOST:
                moment_ms = word.told_ms + self._grace_ms
                has_left = True
            elif word is not None and word.state == RELEASED:
                moment_ms = self._wait(defences.released_nodes, word.told_ms, lease)
            elif node.began_clock_ms <= self._registered_at_ms(lease):
                moment_ms = -math.inf
            else:
                moment_ms = self._wait(defences.young_nodes, node.began_ms, lease)
            last_ms = max(last_ms, moment_ms)
        return last_ms if has_left else math.inf

    @staticmethod
    def _wait(waits: bool, from_ms: float, lease: Lease) -> float:
        return from_ms + lease.timeout_ms if waits else -math.inf

    def _registered_at_ms(self, lease: Lease) -> float:
        """When the registration began, a time of ``clock_ms``. -infinity: before this term."""
        epoch, registered_ms = self._registered_ms.get(lease.key, self._restored)
        return registered_ms if epoch == lease.epoch else -math.inf

    # UNREGISTER_BROKER (104)

    def can_judge(self, now_ms: float) -> bool:
        """Whether the lists of all nodes have arrived, except of other nodes that have not reported for a second."""
        return not self._defences.all_lists or all(
            node.is_complete or (name != self._own and now_ms - node.heard_ms > NODE_SILENCE_MS)
            for name, node in self._nodes.items()
        )

    def is_late(self, lease: Lease, since_ms: float, now_ms: float) -> bool:
        """Whether an ``UNREGISTER_BROKER`` (104) is late (U3): a connection of this registration was opened after ``since_ms``, a
        time of ``clock_ms``, and still counts."""
        words = (node.words.get(lease.key) for node in self._nodes.values())
        return self._defences.newest_connection and any(
            word is not None and word.epoch == lease.epoch and word.opened_ms > since_ms and self._counts(word, lease, now_ms)
            for word in words
        )

    def _counts(self, word: _Word, lease: Lease, now_ms: float) -> bool:
        if word.state == RELEASED:
            return self._defences.released_connection and now_ms < word.told_ms + lease.timeout_ms
        return word.state == HELD


def _continues(node: _Node, report: NodeReport) -> bool:
    """Whether a report that does not begin a whole list can be used. It can be the next part of a list that is arriving, or a
    change of a complete list."""
    return node.arriving is not None or (node.is_complete and report.part == ALONE)


def _word(entry: ReportEntry, now_ms: float, clock_ms: float) -> _Word:
    opened_ms = -math.inf if entry.opened_ms == AGE_MAX else clock_ms - entry.opened_ms
    return _Word(entry.state, entry.epoch, now_ms, opened_ms)

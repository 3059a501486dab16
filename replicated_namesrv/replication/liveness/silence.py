"""Silence: how long each broker has had no contact with the leader, and the recording of this in the log.

``Silence`` is pure and belongs to one term of one leader. Its times are milliseconds in which the leader's process ran
(``RunningClock``), so a pause of the leader counts as at most one second of silence. LEAD is the first command of a new leader,
and SUSPECT the command that records silence.

    row  what the leader knows of the registration    silent since                              test
    B1   its last contact: an accepted renewal, or    that moment                               test_contact_ends_silence
         its last registration applied after LEAD
    B2   no contact since this leader's LEAD          LEAD minus the recorded suspicion         test_successor_continues

T is the broker's time-out. The suspicion is part of the replicated state: the recorded silence of the broker, in whole thirds
of T. Row B2 subtracts these thirds.

    row  silent for      recorded suspicion     outcome                                         test
    S1   less than T/3   any                    nothing                                         test_short_silence
    S2   T/3 to 2T/3     0                      SUSPECT with 1                                  test_first_third
    S3   2T/3 to T       0 or 1                 SUSPECT with 2                                  test_second_third
    S4   T/3 to T        at least these thirds  nothing                                         test_recorded_silence
    S5   at least T      any                    remove it as silent, unless a contact is        test_time_out, and
                                                being recorded                                  test_removal_waits_for_contact

Therefore:

- Time without a leader does not count towards any broker's time-out.
- At each change of leader, less than T/3 of a broker's silence is lost.
- A broker that makes contact within a third of its time-out causes no log entry.

``Suspicions`` has at most one SUSPECT command in progress. Events that occur during this time wait for the next command. For each
broker at most one event waits. If another event occurs for this broker, the table gives the event that waits afterwards:

    row  waiting      new event                          then waiting   test
    W1   silence      an accepted renewal                nothing        test_silence_before_an_accepted_renewal_is_not_recorded
    W2   silence      a contact of a suspected broker    the contact    test_a_removal_does_not_overtake_a_contact
    W3   a contact    silence                            the contact    test_a_removal_does_not_overtake_a_contact

A broker is *suspected* if the state says so, or if a SUSPECT for it was proposed and its outcome is not known. Renewals of a
suspected broker are acknowledged after the command that clears it is applied: then no later leader counts the silence before it.

A SUSPECT names its term, and the number of commands that the leader had applied. It has no effect in another term, nor after a
registration or a clearing of the broker. So a SUSPECT with an unknown outcome has no effect after the broker was cleared.
Contacts with an unknown outcome are proposed again (test_a_heartbeat_is_recorded_again).

While a member of the cluster runs version 0.1, silence is not recorded. As soon as every member knows SUSPECT, the leader
proposes one, even if it names no broker. From then on the command version is part of the state (``consensus.py``).
"""

from asyncio import Future
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import NamedTuple

from replicated_namesrv.replication.command_kinds import SUSPICION_VERSION
from replicated_namesrv.replication.liveness.liveness_context import Term
from replicated_namesrv.replication.marks import Key
from replicated_namesrv.replication.route_machine import ProposalResult, Suspect, encode_suspect
from replicated_namesrv.routes.broker_group import Registration

SHARES = 3
"""Number of equal parts of a time-out in which silence is recorded. With the default time-out of 120 s, a third is 40 s.
RocketMQ's brokers register every 30 s by default, so they are not suspected; with the longest period, 60 s, they are."""
RETRY_MS = 100.0
"""Silence that is due is returned again after this pause until it is recorded."""
STALE_MAX = 1_000
"""The heap is rebuilt when its void elements exceed the live ones by this number."""
LOOKS_PER_TURN = 2_000
"""Maximum number of brokers checked in one turn, which takes some milliseconds. The other brokers follow in the next turns. A
broker whose registration a new leader reads counts as checked. Ten turns a second are enough for 20,000 brokers with a time-out
of 3 s."""
RECORDED_PER_COMMAND = 500
"""Number of brokers in one command. Such a command takes a node 3 to 6 ms in one step."""


class Lease(NamedTuple):
    """The facts that the leader needs to measure the silence of a registration."""

    key: Key
    epoch: int
    timeout_ms: int
    suspicion: int
    """Recorded silence in thirds of the time-out."""

    @property
    def third_ms(self) -> float:
        """A third of the time-out. A requested time-out of 0 or less counts as 1 ms."""
        return max(1, self.timeout_ms) / SHARES


class Due(NamedTuple):
    """Silence that has to be recorded."""

    lease: Lease
    share: int
    """Silence to be recorded, in thirds of the time-out."""


@dataclass(slots=True)
class _Watched:
    lease: Lease
    since_ms: float
    look_ms: float = 0.0
    """Time of the broker's next check. An element of the heap with another time is void."""


class Silence:
    """The silence of all brokers, for one leader. It costs one heap operation for each broker in each third of the broker's
    time-out. The number of renewals does not matter."""

    def __init__(self, registered: dict[Key, Registration], now_ms: float) -> None:
        """Measure the silence of all these brokers. It begins at the recorded suspicion and continues from now on. ``due`` reads
        the registrations, so that a leader with many brokers does this in several turns."""
        self._watched: dict[Key, _Watched] = {}
        self._heap: list[tuple[float, Key]] = []
        self._silent: dict[Key, None] = {}
        """Brokers whose time-out has passed, in the order in which it passed."""
        self._unread = registered
        """Brokers of ``registered`` whose registrations were not read yet."""
        self._begun_ms = now_ms

    def _read(self, lease_of: Callable[[Key], Lease | None], now_ms: float) -> int:
        """Read the registrations of some unread brokers, and return their number. If such a broker has another registration by
        now for which ``contact`` was not called yet, its silence begins now."""
        read = 0
        while self._unread and read < LOOKS_PER_TURN:
            read += 1
            key, registration = self._unread.popitem()
            lease = lease_of(key)
            if lease is None:
                continue
            if lease.epoch == registration.epoch:
                self._continue(lease, self._begun_ms)
            else:
                self._watch(lease, now_ms)
        return read

    def _continue(self, lease: Lease, begun_ms: float) -> None:
        """Measure silence from this moment on, in addition to the recorded silence."""
        self._watched[lease.key] = watched = _Watched(lease, begun_ms - lease.suspicion * lease.third_ms)
        self._look_at(watched, begun_ms + lease.third_ms)

    def contact(self, lease: Lease, now_ms: float) -> None:
        """The leader has accepted a renewal of this registration, or has applied the registration."""
        watched = self._watched.get(lease.key)
        if watched is not None and watched.lease.timeout_ms == lease.timeout_ms and lease.key not in self._silent:
            watched.lease, watched.since_ms = lease, now_ms
        else:
            self._watch(lease, now_ms)

    def _watch(self, lease: Lease, now_ms: float) -> None:
        self._silent.pop(lease.key, None)
        self._unread.pop(lease.key, None)
        self._watched[lease.key] = watched = _Watched(lease, now_ms)
        self._look_at(watched, now_ms + lease.third_ms)

    def watches(self, key: Key) -> bool:
        """Whether the silence of this broker is measured."""
        return key in self._watched or key in self._unread

    def forget(self, key: Key) -> None:
        """The registration ended."""
        self._watched.pop(key, None)
        self._silent.pop(key, None)
        self._unread.pop(key, None)

    def age_ms(self, key: Key, now_ms: float) -> float | None:
        """Milliseconds for which the broker has been silent. Until its registration is read, they do not include the recorded
        suspicion. None: the broker is not registered."""
        watched = self._watched.get(key)
        if watched is None:
            return now_ms - self._begun_ms if key in self._unread else None
        return now_ms - watched.since_ms

    def due(self, lease_of: Callable[[Key], Lease | None], now_ms: float, can_record: bool = True) -> list[Due]:
        """The silence to record now. ``lease_of``: the registration as it is in the state. ``can_record`` False: nothing is
        returned, and each broker is checked again after another third of its time-out."""
        found, looks = [], self._read(lease_of, now_ms)
        while self._heap and self._heap[0][0] <= now_ms and looks < LOOKS_PER_TURN:
            looks += 1
            look_ms, key = heappop(self._heap)
            watched = self._watched.get(key)
            if watched is None or watched.look_ms != look_ms or not self._is_current(watched, lease_of, now_ms):
                continue
            lease = watched.lease
            share = min(SHARES, int((now_ms - watched.since_ms) / lease.third_ms))
            if share == SHARES:
                self._silent[key] = None
            elif share > lease.suspicion and can_record:
                found.append(Due(lease, share))
                self._look_at(watched, now_ms + RETRY_MS)
            else:
                self._look_at(watched, max(watched.since_ms + (share + 1) * lease.third_ms, now_ms + 1))
        return found

    def silent(self, lease_of: Callable[[Key], Lease | None], now_ms: float) -> Iterator[Lease]:
        """Brokers whose time-out has passed, in the order in which it passed, at most LOOKS_PER_TURN. A broker stays in the list
        until it makes contact or its registration ends."""
        for key in list(islice(self._silent, LOOKS_PER_TURN)):
            watched = self._watched[key]
            if self._is_current(watched, lease_of, now_ms):
                yield watched.lease

    def _is_current(self, watched: _Watched, lease_of: Callable[[Key], Lease | None], now_ms: float) -> bool:
        """Refresh the lease. False: the registration has ended, or a new one has begun for which ``contact`` was not called
        yet."""
        key, before = watched.lease.key, watched.lease
        lease = lease_of(key)
        if lease is None:
            self.forget(key)
        elif (lease.epoch, lease.timeout_ms) != (before.epoch, before.timeout_ms):
            self._watch(lease, now_ms)
        else:
            watched.lease = lease
            return True
        return False

    def _look_at(self, watched: _Watched, look_ms: float) -> None:
        watched.look_ms = look_ms
        heappush(self._heap, (look_ms, watched.lease.key))
        if len(self._heap) > 2 * len(self._watched) + STALE_MAX:
            self._heap = [(each.look_ms, key) for key, each in self._watched.items() if key not in self._silent]
            heapify(self._heap)


class Suspicions:
    """Proposes the SUSPECT commands of one leader in one term, and knows which brokers are suspected."""

    def __init__(self, term: Term, on_recorded: Callable[[list[Suspect]], None]) -> None:
        """``on_recorded``: called with the contacts that were recorded."""
        self._term, self._machine, self._on_recorded = term, term.node.machine, on_recorded
        self._wanted: dict[Key, Suspect] = {}
        self._flying: dict[Key, Suspect] | None = None
        """The content of the command in progress."""
        self._doubtful: set[Key] = set()
        """Brokers for which a SUSPECT of this leader has an unknown outcome. They may still become suspected."""

    def is_suspected(self, key: Key) -> bool:
        """Whether a renewal has to be recorded."""
        return key in self._machine.suspected or key in self._doubtful

    @property
    def can_record(self) -> bool:
        """Whether every member knows SUSPECT."""
        return self._term.node.consensus.command_version >= SUSPICION_VERSION

    def record(self, key: Key, epoch: int, share: int) -> None:
        """Record this many thirds of silence, or with 0 a contact. A contact that waits is not replaced by silence. ``flush``
        must follow."""
        wanted = self._wanted.get(key)
        if share and wanted is not None and not wanted.share:
            return
        flying = None if self._flying is None else self._flying.get(key)
        suspect = Suspect(key, epoch, share)
        if flying != suspect:
            self._wanted[key] = suspect

    def made_contact(self, key: Key) -> None:
        """Drop silence that waits to be recorded, because a contact came after it."""
        wanted = self._wanted.get(key)
        if wanted is not None and wanted.share:
            del self._wanted[key]

    def is_clearing(self, key: Key, epoch: int) -> bool:
        """Whether a contact waits to be recorded, or is being recorded."""
        contact = Suspect(key, epoch, 0)
        return self._wanted.get(key) == contact or (self._flying is not None and self._flying.get(key) == contact)

    def forget(self, key: Key) -> None:
        """The registration ended."""
        self._wanted.pop(key, None)
        self._doubtful.discard(key)

    def flush(self) -> None:
        """Propose the waiting records, if no command is in progress. Call it regularly."""
        is_first = self._machine.command_version < SUSPICION_VERSION
        if self._flying is not None or not self.can_record or not (self._wanted or is_first):
            return
        self._flying = batch = {key: self._wanted.pop(key) for key in list(self._wanted)[:RECORDED_PER_COMMAND]}
        self._doubtful.update(key for key, suspect in batch.items() if suspect.share)
        data = encode_suspect(batch.values(), self._term.time_ms(), self._term.number, self._machine.serial)

        def ended(outcome: "Future[ProposalResult | None]") -> None:
            self._flying = None
            if outcome.cancelled() or self._term.is_over:
                return
            contacts = [suspect for suspect in batch.values() if not suspect.share]
            # propose contacts again, because the broker may not repeat its heartbeat; silence becomes due again by itself
            if outcome.result() is None:
                for contact in contacts:
                    self.record(*contact)
                return
            self._doubtful.difference_update(batch)
            self._on_recorded(contacts)
            self.flush()

        self._term.node.decide(data).add_done_callback(ended)

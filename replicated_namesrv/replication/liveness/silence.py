"""Silence: how long the leader has had no contact with each broker, and what follows from that. Pure; time is an argument.

``Silence`` belongs to one term of one leader. Its times are milliseconds in which the leader's process ran (``RunningClock``: one
step counts at most a second), so a leader that was paused accuses nobody.

Since when is a broker silent?

    what the leader knows of the registration     silent since                                      test
    accepted a renewal, or applied it itself      that moment                                       test_contact_ends_silence
    it was there when this leader began           its beginning less the recorded suspicion         test_successor_continues

What follows? T is the broker's time-out, the suspicion is part of the replicated state: thirds of T that are recorded.

    silent for            recorded suspicion      outcome                                           test
    less than T/3         any                     nothing                                           test_short_silence
    T/3 to 2T/3           0                       SUSPECT with 1                                    test_first_third
    2T/3 to T             0 or 1                  SUSPECT with 2                                    test_second_third
    T/3 to T              as much or more         nothing                                           test_recorded_silence
    at least T            any                     remove it as silent, unless a contact is on its   test_time_out, and
                                                  way to the log (``suspicions.py``)                test_removal_waits_for_contact

Hence time without a leader counts for nobody, a successor loses less than a third of what has passed, and a broker that makes
contact within a third of its time-out is never written about.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import NamedTuple

from replicated_namesrv.replication.marks import Key

SHARES = 3
"""Silence is recorded in thirds: RocketMQ's brokers register four times, or twice, in their time-out. A share of SHARES is all
of it."""
RETRY_MS = 100.0
"""What has to be recorded stays due until it is done, and is named again after this pause."""
STALE_MAX = 1_000
"""The heap is built anew when it has so many more void elements than live ones."""
LOOKS_PER_TURN = 2_000
"""Brokers that are looked at in one turn; the others follow in the next turns. So many take some milliseconds. Ten
turns a second are enough for 20,000 brokers with a time-out of 3 s."""


class Lease(NamedTuple):
    """A registration as the leader has to watch it."""

    key: Key
    epoch: int
    timeout_ms: int
    suspicion: int
    """Thirds of the time-out for which the broker is known to be silent."""

    @property
    def third_ms(self) -> float:
        """A third of the time-out. A broker may ask for one of 0 or less: it counts as 1 ms."""
        return max(1, self.timeout_ms) / SHARES


class Due(NamedTuple):
    """Silence that has to be recorded."""

    lease: Lease
    share: int
    """Thirds of the time-out."""


@dataclass(slots=True)
class _Watched:
    lease: Lease
    since_ms: float
    look_ms: float = 0.0
    """When it is looked at next; an element of the heap with another time is void. Infinity: it is silent, and in no heap."""


class Silence:
    """Of all brokers, for one leader. Costs a heap operation per broker and third of its time-out, whatever is renewed
    between."""

    def __init__(self, leases: Iterable[Lease], now_ms: float) -> None:
        """``leases``: what is registered when this leader begins."""
        self._watched: dict[Key, _Watched] = {}
        self._heap: list[tuple[float, Key]] = []
        self._silent: dict[Key, None] = {}
        """Brokers whose time-out has passed, the first first."""
        for lease in leases:
            third_ms = lease.third_ms
            since_ms = now_ms - lease.suspicion * third_ms
            self._watched[lease.key] = _Watched(lease, since_ms, now_ms + third_ms)
            self._heap.append((now_ms + third_ms, lease.key))
        heapify(self._heap)

    def contact(self, lease: Lease, now_ms: float) -> None:
        """The leader has accepted a renewal of this registration, or applied it."""
        watched = self._watched.get(lease.key)
        if watched is not None and watched.lease.timeout_ms == lease.timeout_ms and lease.key not in self._silent:
            watched.lease, watched.since_ms = lease, now_ms
        else:
            self._watch(lease, now_ms)

    def _watch(self, lease: Lease, now_ms: float) -> None:
        self._silent.pop(lease.key, None)
        self._watched[lease.key] = watched = _Watched(lease, now_ms)
        self._look_at(watched, now_ms + lease.third_ms)

    def forget(self, key: Key) -> None:
        """The registration ended."""
        self._watched.pop(key, None)
        self._silent.pop(key, None)

    def age_ms(self, key: Key, now_ms: float) -> float | None:
        """For how long the broker is silent; None: it is not registered."""
        watched = self._watched.get(key)
        return None if watched is None else max(0.0, now_ms - watched.since_ms)

    def due(self, lease_of: Callable[[Key], Lease | None], now_ms: float, can_record: bool = True) -> list[Due]:
        """What has to be recorded now. ``lease_of``: the registration as it is in the state. ``can_record`` False: look again a
        third later at what would have to be recorded."""
        found, looks = [], 0
        while self._heap and self._heap[0][0] <= now_ms and looks < LOOKS_PER_TURN:
            looks += 1
            look_ms, key = heappop(self._heap)
            watched = self._watched.get(key)
            if watched is None or watched.look_ms != look_ms or not self._is_current(watched, lease_of, now_ms):
                continue
            lease = watched.lease
            share = min(SHARES, int((now_ms - watched.since_ms) / lease.third_ms))
            if share == SHARES:
                watched.look_ms = math.inf
                self._silent[key] = None
            elif share > lease.suspicion and can_record:
                found.append(Due(lease, share))
                self._look_at(watched, now_ms + RETRY_MS)
            else:
                self._look_at(watched, max(watched.since_ms + (share + 1) * lease.third_ms, now_ms + 1))
        return found

    def silent(self, lease_of: Callable[[Key], Lease | None], now_ms: float) -> Iterator[Lease]:
        """Brokers whose time-out has passed, the first first; they stay among them until a contact or the end."""
        for key in list(islice(self._silent, LOOKS_PER_TURN)):
            watched = self._watched[key]
            if self._is_current(watched, lease_of, now_ms):
                yield watched.lease

    def _is_current(self, watched: _Watched, lease_of: Callable[[Key], Lease | None], now_ms: float) -> bool:
        """Take the lease as it is now; False: it has ended, or began anew, which ``contact`` has not been told yet."""
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

"""Removals: what the leader proposes to remove, and which renewals it refuses meanwhile.

A removal names the leader's term and is void in another. A proposal whose outcome is unknown is repeated until it is known; as
long as it is not, renewals of that registration are refused and go through the log as registrations, behind the removal.
"""

import logging
from asyncio import Future
from collections.abc import Callable, Sequence

from replicated_namesrv.replication.liveness.silence import Lease
from replicated_namesrv.replication.marks import Key
from replicated_namesrv.replication.route_machine import ProposalResult, RouteStateMachine, encode_expire, encode_unregister
from replicated_namesrv.routes.commands import BrokerRemoval, UnregisterBrokers

log = logging.getLogger(__name__)

REMOVALS_PER_COMMAND = 4
"""Every node applies a command in one go."""
REMOVED_TOPICS_MAX = 200_000
"""Of the brokers whose removal is under way at a time, unless one alone has more; so many take about 40 ms."""
LARGE_TOPICS = 20_000
"""A broker with more is removed alone by code 104; the next one waits for a tick."""


class Removals:
    """Of one term of one leader."""

    def __init__(
        self,
        term: int,
        machine: RouteStateMachine,
        propose: "Callable[[bytes], Future[ProposalResult | None]]",
        time_ms: Callable[[], int],
        is_over: Callable[[], bool],
    ) -> None:
        self.expired_count = self.lost_count = 0
        self._term, self._machine, self._is_over = term, machine, is_over
        self._propose, self._time_ms = propose, time_ms
        self._lives: set[tuple[Key, int]] = set()
        """Registrations whose removal is proposed: key and epoch."""
        self._large: set[tuple[Key, int]] = set()
        """The one with many topics that a code 104 removes now: one at a time, so that no entry holds many."""
        self._again: list[Callable[[], None]] = []
        """Proposals without an outcome."""

    def is_removing(self, key: Key, epoch: int) -> bool:
        """Whether a removal of this registration is proposed."""
        return (key, epoch) in self._lives

    def tick(self) -> None:
        """Repeat what has no outcome."""
        again, self._again = self._again, []
        for propose in again:
            propose()

    def expire(self, gone: Sequence[Lease], silent: Sequence[Lease]) -> None:
        """Remove the first of those brokers; the others have to be named again."""
        if len(self._lives) >= REMOVALS_PER_COMMAND:
            return
        due = {(lease.key, lease.epoch): is_gone for leases, is_gone in ((gone, True), (silent, False)) for lease in leases}
        batch = self._first([life for life in due if life not in self._lives])
        for is_gone in (True, False):
            if lives := [life for life in batch if due[life] == is_gone]:
                self._expire(lives, is_gone)

    def _first(self, due: list[tuple[Key, int]]) -> list[tuple[Key, int]]:
        """Those to be removed by one command, with regard to the topics of those that are being removed."""
        state = self._machine.state

        def topics_of(key: Key) -> int:
            held = state.registration(*key)
            return 0 if held is None else state.topic_count(held.broker_name)

        topics = sum(topics_of(key) for key, _ in self._lives)
        for position, (key, _) in enumerate(due[:REMOVALS_PER_COMMAND]):
            topics += topics_of(key)
            if topics > REMOVED_TOPICS_MAX and (position or self._lives):
                return due[:position]
        return due[:REMOVALS_PER_COMMAND]

    def _expire(self, lives: list[tuple[Key, int]], is_gone: bool) -> None:
        removals = []
        for key, epoch in lives:
            registration = self._machine.state.registration(*key)
            assert registration is not None, "leases are made of registrations"
            removals.append(BrokerRemoval(*key, registration.broker_name, registration.broker_id, epoch))
        self._lives.update(lives)
        log.warning("removing brokers", extra={"lost" if is_gone else "silent": [key[1] for key, _ in lives]})
        data = encode_expire(UnregisterBrokers(tuple(removals)), self._time_ms(), self._term, self._machine.serial, is_gone)

        def ended() -> None:
            count = sum(self._is_ended(key, epoch) for key, epoch in lives)
            self.lost_count += count if is_gone else 0
            self.expired_count += 0 if is_gone else count
            self._lives.difference_update(lives)

        self._decide(lambda: data, lambda applied: ended())

    def _is_ended(self, key: Key, epoch: int) -> bool:
        registration = self._machine.state.registration(*key)
        return registration is None or registration.epoch != epoch

    def unregister(self, removal: BrokerRemoval, done: Callable[[bool], None]) -> None:
        """Code 104; ``done(is_removed)`` once it is known."""
        assert removal.epoch is not None, "a node names what it removes"
        life = ((removal.cluster_name, removal.broker_addr), removal.epoch)
        command = UnregisterBrokers((removal,))
        self._lives.add(life)

        def data() -> bytes | None:
            if self._machine.state.topics_concerned(command) > LARGE_TOPICS:
                if self._large:
                    return None
                self._large.add(life)
            return encode_unregister(command, self._time_ms(), self._term)

        def ended(applied: ProposalResult) -> None:
            self._lives.discard(life)
            done(applied.ignored is None)

        self._decide(data, ended, lambda: self._large.discard(life))

    def _decide(
        self,
        data: Callable[[], bytes | None],
        done: Callable[[ProposalResult], None],
        tried: Callable[[], None] = lambda: None,
    ) -> None:
        """Propose until the outcome is known. ``data`` None: later. ``tried``: a proposal has ended."""

        def propose() -> None:
            command = data()
            if command is None:
                self._again.append(propose)
            else:
                self._propose(command).add_done_callback(ended)

        def ended(outcome: "Future[ProposalResult | None]") -> None:
            tried()
            if outcome.cancelled() or self._is_over():
                return
            applied = outcome.result()
            if applied is None:
                self._again.append(propose)
            else:
                done(applied)

        propose()

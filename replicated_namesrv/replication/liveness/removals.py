"""Removals: the leader's proposals to remove brokers, and the renewals that it refuses because of them.

A removal names the leader's term and has no effect in another term. A proposal with an unknown outcome is repeated until the
outcome is known. Until then, renewals of that registration are refused. The nodes that received these renewals then propose
registrations, which come after the removal in the log.
"""

import logging
from asyncio import Future
from collections import Counter
from collections.abc import Callable, Iterable

from replicated_namesrv.model import ChangeOrigin
from replicated_namesrv.replication.command_kinds import ORIGIN_VERSION
from replicated_namesrv.replication.liveness.liveness_context import Term
from replicated_namesrv.replication.liveness.silence import Lease
from replicated_namesrv.replication.marks import Key
from replicated_namesrv.replication.route_machine import ProposalResult, encode_attributed, encode_expire, encode_unregister
from replicated_namesrv.routes.commands import BrokerRemoval, UnregisterBrokers

log = logging.getLogger(__name__)

EXPIRED_BROKERS_MAX, EXPIRED_TOPICS_MAX = 200, 20_000
"""Maximum number of brokers that expire in one command, and of the topics of their groups. A single broker may have more topics.
The next command follows when these brokers are removed. A command that reaches either maximum costs a node 7 to 20 ms in one
step."""
LARGE_TOPICS = 20_000
"""A broker with more topics is removed alone by ``UNREGISTER_BROKER`` (104); the next such broker waits for a tick."""


class Removals:
    """The removals of one term of one leader."""

    def __init__(self, term: Term, on_expired: Callable[[], None]) -> None:
        """``on_expired``: called when all brokers of the command have expired and the next ones may be removed."""
        self.expired_count = self.lost_count = 0
        self._term, self._machine, self._on_expired = term, term.node.machine, on_expired
        self._expiring = 0
        """Number of EXPIRE commands in progress."""
        self._lives: Counter[tuple[Key, int]] = Counter()
        """Registrations whose removal is proposed, as key and epoch, each with the number of its removals without an outcome. An
        expiry and ``UNREGISTER_BROKER`` (104) can be in progress at the same time."""
        self._large: set[tuple[Key, int]] = set()
        """The broker with many topics that is being unregistered. There is at most one, so that no log entry removes several of
        them."""
        self._again: list[Callable[[], None]] = []
        """Functions that repeat the proposals whose outcome is unknown."""

    def is_removing(self, key: Key, epoch: int) -> bool:
        """Whether a removal of this registration is proposed."""
        return (key, epoch) in self._lives

    def tick(self) -> None:
        """Repeat proposals without an outcome."""
        again, self._again = self._again, []
        for propose in again:
            propose()

    def expire(self, due: Iterable[tuple[Lease, bool]]) -> None:
        """Remove the first of these brokers, unless others are expiring now. The bool of each is True if the broker has left, and
        False if it is only silent."""
        if self._expiring:
            return
        gone, silent = list[BrokerRemoval](), list[BrokerRemoval]()
        topics = 0
        for lease, is_gone in due:
            registration = self._machine.state.registration(*lease.key)
            assert registration is not None, "silence is measured only for registered brokers"
            if (lease.key, lease.epoch) in self._lives:
                continue
            topics += self._machine.state.removal_topics(registration.broker_name)
            count = len(gone) + len(silent)
            if count == EXPIRED_BROKERS_MAX or (count and topics > EXPIRED_TOPICS_MAX):
                break
            self._lives[lease.key, lease.epoch] += 1
            removal = BrokerRemoval(*lease.key, registration.broker_name, registration.broker_id, lease.epoch)
            (gone if is_gone else silent).append(removal)
        for removals, is_gone in ((gone, True), (silent, False)):
            if removals:
                self._expire(tuple(removals), is_gone)

    def _expire(self, removals: tuple[BrokerRemoval, ...], is_gone: bool) -> None:
        self._expiring += 1
        log.warning("removing brokers", extra={"lost" if is_gone else "silent": [removal.broker_addr for removal in removals]})
        term, command = self._term, UnregisterBrokers(removals)
        data = encode_expire(command, term.time_ms(), term.number, self._machine.serial, is_gone)

        def ended(applied: ProposalResult) -> None:
            self._expiring -= 1
            lives = [((r.cluster_name, r.broker_addr), r.epoch or 0) for r in removals]
            for life in lives:
                self._removal_ended(life)
            count = sum(self._is_ended(*life) for life in lives)
            self.lost_count += count if is_gone else 0
            self.expired_count += 0 if is_gone else count
            # If a broker is still registered, the log has a registration of it before this removal. That registration counts as a
            # contact only in a later turn. Until then, the broker would be proposed for removal again.
            if count == len(lives):
                self._on_expired()

        self._decide(lambda: data, ended)

    def _removal_ended(self, life: tuple[Key, int]) -> None:
        self._lives[life] -= 1
        if not self._lives[life]:
            del self._lives[life]

    def _is_ended(self, key: Key, epoch: int) -> bool:
        registration = self._machine.state.registration(*key)
        return registration is None or registration.epoch != epoch

    def unregister(self, removal: BrokerRemoval, origin: ChangeOrigin | None, done: Callable[[bool], None]) -> None:
        """``UNREGISTER_BROKER`` (104) of ``origin``; ``done(is_removed)`` is called when the outcome is known."""
        assert removal.epoch is not None, "the epoch is set by the node that asks"
        life = ((removal.cluster_name, removal.broker_addr), removal.epoch)
        command = UnregisterBrokers((removal,))
        self._lives[life] += 1

        def data() -> bytes | None:
            if self._machine.state.topics_concerned(command) > LARGE_TOPICS:
                if self._large:
                    return None
                self._large.add(life)
            data = encode_unregister(command, self._term.time_ms(), self._term.number)
            knows = self._term.node.consensus.command_version >= ORIGIN_VERSION
            return encode_attributed(data, origin) if origin is not None and knows else data

        def ended(applied: ProposalResult) -> None:
            self._removal_ended(life)
            done(applied.ignored is None)

        self._decide(data, ended, lambda: self._large.discard(life))

    def _decide(
        self,
        data: Callable[[], bytes | None],
        done: Callable[[ProposalResult], None],
        tried: Callable[[], None] = lambda: None,
    ) -> None:
        """Propose until the outcome is known. ``data()`` returns None if it is too early to propose. ``tried``: called whenever a
        proposal has ended."""

        def propose() -> None:
            command = data()
            if command is None:
                self._again.append(propose)
            else:
                self._term.node.decide(command).add_done_callback(ended)

        def ended(outcome: "Future[ProposalResult | None]") -> None:
            tried()
            if outcome.cancelled() or self._term.is_over:
                return
            applied = outcome.result()
            if applied is None:
                self._again.append(propose)
            else:
                done(applied)

        propose()

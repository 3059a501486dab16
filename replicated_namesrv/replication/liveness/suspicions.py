"""Suspicions: what the leader records of silence and contact, through the log.

One SUSPECT command is under way at a time; what comes meanwhile shares the next. What waits is replaced by what is known later:

    waits         then comes                          waits           test
    silence       an accepted renewal                 nothing         test_silence_before_an_accepted_renewal_is_not_recorded
    silence       a contact of a suspected broker     the contact     test_a_removal_does_not_overtake_a_contact
    a contact     silence of the same registration    the contact     test_a_removal_does_not_overtake_a_contact

While a contact waits or is under way, its broker is not removed as silent. A broker is *suspected* if the state says so,
or if a SUSPECT for it was proposed and its outcome is not known. Renewals of a suspected broker are acknowledged after the
command that clears it is applied: then no later leader counts the silence before it.

A SUSPECT names its term, and the number of commands that the leader had applied. It has no effect in another term, nor behind a
registration or a clearing of the broker. So one whose outcome is unknown has no effect once the broker was cleared. Contacts
whose outcome is unknown are proposed again with the next ``flush`` (test_a_heartbeat_is_recorded_again).

While a member of the cluster runs version 0.1 nothing is recorded. The first command of all, without brokers, is proposed as soon
as every member knows it; from then on the version is part of the state (``consensus.py``).
"""

from asyncio import Future
from collections.abc import Callable

from replicated_namesrv.replication.command_kinds import SUSPICION_VERSION
from replicated_namesrv.replication.consensus import Consensus
from replicated_namesrv.replication.marks import Key
from replicated_namesrv.replication.route_machine import ProposalResult, RouteStateMachine, Suspect, encode_suspect

RECORDED_PER_COMMAND = 500
"""Brokers in one command: 3 to 6 ms for a node, in one go."""


class Suspicions:
    """Of one term of one leader."""

    def __init__(
        self,
        term: int,
        machine: RouteStateMachine,
        consensus: Consensus,
        propose: "Callable[[bytes], Future[ProposalResult | None]]",
        time_ms: Callable[[], int],
        on_recorded: Callable[[list[Suspect]], None],
    ) -> None:
        """``on_recorded``: these contacts were recorded."""
        self._term, self._machine, self._consensus = term, machine, consensus
        self._propose, self._time_ms, self._on_recorded = propose, time_ms, on_recorded
        self._wanted: dict[Key, Suspect] = {}
        self._flying: dict[Key, Suspect] | None = None
        """What the command under way records."""
        self._doubtful: set[Key] = set()
        """Brokers that a SUSPECT of this leader may make suspected yet."""

    def is_suspected(self, key: Key) -> bool:
        """Whether a renewal has to be recorded."""
        return key in self._machine.suspected or key in self._doubtful

    @property
    def can_record(self) -> bool:
        """Whether every member knows SUSPECT."""
        return self._consensus.command_version >= SUSPICION_VERSION

    def record(self, key: Key, epoch: int, share: int) -> None:
        """So many thirds of silence; 0: contact, which silence does not take the place of. ``flush`` has to follow."""
        wanted = self._wanted.get(key)
        if share and wanted is not None and not wanted.share and wanted.epoch == epoch:
            return
        flying = None if self._flying is None else self._flying.get(key)
        suspect = Suspect(key, epoch, share)
        if flying != suspect:
            self._wanted[key] = suspect

    def made_contact(self, key: Key) -> None:
        """Drop silence that waits to be recorded: it was before a contact."""
        wanted = self._wanted.get(key)
        if wanted is not None and wanted.share:
            del self._wanted[key]

    def is_clearing(self, key: Key, epoch: int) -> bool:
        """Whether a contact waits to be recorded, or is under way."""
        contact = Suspect(key, epoch, 0)
        return self._wanted.get(key) == contact or (self._flying is not None and self._flying.get(key) == contact)

    def forget(self, key: Key) -> None:
        """The registration ended."""
        self._wanted.pop(key, None)
        self._doubtful.discard(key)

    def flush(self) -> None:
        """Propose what is to be recorded, if no command is under way. Call it from time to time."""
        is_first = self._machine.command_version < SUSPICION_VERSION
        if self._flying is not None or not (self._wanted or is_first):
            return
        if not self.can_record:
            self._wanted.clear()
            return
        self._flying = batch = {key: self._wanted.pop(key) for key in list(self._wanted)[:RECORDED_PER_COMMAND]}
        self._doubtful.update(key for key, suspect in batch.items() if suspect.share)
        data = encode_suspect(batch.values(), self._time_ms(), self._term, self._machine.serial)

        def ended(outcome: "Future[ProposalResult | None]") -> None:
            self._flying = None
            if outcome.cancelled() or self._consensus.led_term != self._term:
                return
            contacts = {key: suspect for key, suspect in batch.items() if not suspect.share}
            if outcome.result() is None:  # silence is named again; nobody may repeat a heartbeat
                self._wanted = contacts | self._wanted
                return
            self._doubtful.difference_update(batch)
            self._on_recorded(list(contacts.values()))
            self.flush()

        self._propose(data).add_done_callback(ended)

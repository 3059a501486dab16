"""Copies of registrations: which one is proposed, and which one is late. Pure; time is an argument.

**Admission.** A broker registers with every node, so each change arrives as often as there are nodes. A node that finds that a
registration would change something asks the leader before proposing it. The first copy is admitted. Equal copies (same broker,
same content) wait for the outcome of the admitted copy:

    row  outcome of the admitted copy                           copies that wait
    P1   applied: accepted, refused or ignored                  their nodes compare them with the state again
    P2   not proposed, rejected, or its outcome is unknown      the next one is admitted
    P3   its node is silent, or GRANT_MS have passed            the next one is admitted

After P1 most copies are renewals, or get the same refusal. A node may have compared its copy with an older state, and ask only
after the admitted copy was applied. Then it compares again, too. For each registration a node has at most one question in the
queue: a new question replaces the old one. Admission only saves work. A wrongly admitted copy is harmless: applying it is a
no-op.

**Late copies.** A registration may have an older data version than the stored one. Either a newer registration overtook it, or
the broker really has the older version, as after a restore from a backup. A late copy arrives at a node only one time. A broker
that has the older version sends it again in each round of registrations, and rounds are at least 10 s apart. A broker may split a
round into several registrations of one version. If a renewal of the stored version comes between two late copies, the record of
the first copy is cleared.

    row  data version    this node got the version before   outcome                             test
    L1   not older       -                                  taken                               test_newer_version_is_taken
    L2   older           no                                 no effect, answered, remembered;    test_late_copy_has_no_effect
                                                            a contact like a heartbeat
    L3   older           less than lateCopyMs ago           no effect, answered; a contact      test_burst_of_copies
    L4   older           at least lateCopyMs ago            taken                               test_repeated_version_is_taken

A data version is *older* than another one if its ``stateVersion`` is smaller. If these are equal, counter and timestamp decide:
the data version is older if it differs from the other one, and its counter and its timestamp are at most the other's
(``route_machine.is_older``). A broker that lost its disk counts from zero with a newer timestamp, so its version is not older. A
copy with another broker id may be older, too. Whether a version is older is decided when the command is applied. The node that
received the registration only says whether it was repeated.

**Same data version, other content.** If this node received the registration before the stored content was registered, it has no
effect, because it may be an older one that was delayed. Otherwise it is taken. A node cannot detect a delay that occurred before
it received the registration. A registration that was delayed in this way is taken, and the next round of the broker repairs the
routes (``test_machine.py``).
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from replicated_namesrv.model import DataVersion
from replicated_namesrv.replication.liveness.leader_messages import GRANTED, LOOK_AGAIN
from replicated_namesrv.replication.marks import Key, Mark

GRANT_MS = 5_000.0
"""Maximum time for which other nodes wait for the admitted copy, while its node is in contact."""


class Asker(NamedTuple):
    """A node that waits for a decision."""

    node: str
    session: int
    number: int


class Decided(NamedTuple):
    asker: Asker
    verdict: int


@dataclass(slots=True)
class _Passing:
    asker: Asker
    since_ms: float
    waiting: dict[str, Asker] = field(default_factory=dict)
    """The nodes that wait, in order of arrival."""


class Admission:
    """The admission of one leader."""

    def __init__(self, mark_of: Callable[[Key], Mark | None]) -> None:
        """``mark_of``: the mark of a broker in the state machine."""
        self._mark_of = mark_of
        self._passing: dict[tuple[Key, str], _Passing] = {}

    def ask(self, asker: Asker, key: Key, content: str, serial: int, now_ms: float) -> int | None:
        """GRANTED, LOOK_AGAIN, or None: wait. ``serial``: number of commands that the asker had applied when it compared.
        Asking again is harmless.
        """
        mark = self._mark_of(key)
        if mark is not None and mark.content == content and mark.serial > serial:
            return LOOK_AGAIN
        passing = self._passing.get((key, content))
        if passing is None:
            self._passing[key, content] = _Passing(asker, now_ms)
            return GRANTED
        if passing.asker.node == asker.node:
            passing.asker = asker
            return GRANTED
        passing.waiting[asker.node] = asker
        return None

    def applied(self, key: Key, content: str) -> list[Decided]:
        """A registration was applied, with any outcome: nodes that wait for it compare their copies again."""
        passing = self._passing.pop((key, content), None)
        return [] if passing is None else [Decided(asker, LOOK_AGAIN) for asker in passing.waiting.values()]

    def withdraw(self, asker: Asker, key: Key, content: str, now_ms: float) -> list[Decided]:
        """``asker`` will not propose its copy, or does not know its outcome. Returns the asker whose copy is admitted instead."""
        passing = self._passing.get((key, content))
        if passing is None:
            return []
        if passing.asker == asker:
            return self._pass_on((key, content), passing, now_ms)
        if passing.waiting.get(asker.node) == asker:
            del passing.waiting[asker.node]
        return []

    def overdue(self, silent_nodes: Collection[str], now_ms: float) -> list[Decided]:
        """Copies that are admitted because the previous one was not applied in time, or its node is silent."""
        found = []
        for slot, passing in list(self._passing.items()):
            if now_ms - passing.since_ms >= GRANT_MS or passing.asker.node in silent_nodes:
                found += self._pass_on(slot, passing, now_ms)
        return found

    def _pass_on(self, slot: tuple[Key, str], passing: _Passing, now_ms: float) -> list[Decided]:
        if not passing.waiting:
            del self._passing[slot]
            return []
        passing.asker, passing.since_ms = passing.waiting.pop(next(iter(passing.waiting))), now_ms
        return [Decided(passing.asker, GRANTED)]


class LateCopies:
    """One node's record of registrations that had no effect: one for each broker."""

    def __init__(self, repeat_ms: float) -> None:
        """``repeat_ms``: the setting ``lateCopyMs``."""
        self._repeat_ms = repeat_ms
        self._seen: dict[Key, tuple[DataVersion, float]] = {}
        """For each broker: the version of its last late copy, and when this version first came."""

    def is_repeated(self, key: Key, version: DataVersion, now_ms: float) -> bool:
        """Whether the broker repeats registrations of this older version."""
        seen = self._seen.get(key)
        return seen is not None and seen[0] == version and now_ms - seen[1] >= self._repeat_ms

    def had_no_effect(self, key: Key, version: DataVersion, received_ms: float) -> None:
        """A registration was older than the stored one."""
        seen = self._seen.get(key)
        if seen is None or seen[0] != version:
            self._seen[key] = (version, received_ms)

    def forget(self, key: Key) -> None:
        """A registration of the broker was accepted or renewed, or its registration ended."""
        self._seen.pop(key, None)

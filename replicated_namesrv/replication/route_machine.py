"""RouteStateMachine: applies commands in log order, by RocketMQ's rules and the additional rules of a replicated log.

Each rule is decided here, from state and command alone, so that all nodes decide alike:

- A registration with an older data version than the stored one is a *late copy* and has no effect, unless the node that received
  it found that the broker repeats it (``liveness/copies.py``). A repeated registration contains the revision at which the node
  received it. It replaces a newer stored version only if that version was committed at this revision or before.
- A registration with the stored data version but other content is a late copy if it was received before the stored content was
  registered. Otherwise its content is newer: a broker may split a registration into several with the same data version.
- A registration contains the revision at which it was received. If the broker was unregistered after that, it does not bring the
  broker back. If another address took over its name and id after that, it does not take them back.
- Removals are proposed by the leader alone and contain its term. A new leader's first command is LEAD; a removal that comes after
  another leader's LEAD is void. So once a leader has applied its own LEAD it knows every removal that can still happen.
- A removal by ``UNREGISTER_BROKER`` (104) contains the epoch of the registration to remove. If its sender knew of no
  registration, the removal contains ``NO_REGISTRATION`` and removes no broker. It has no effect if the address is registered by
  now, in any cluster. Otherwise it settles the group (``settle_group``): a group without members is dropped, and a group with
  members but without master becomes read-only if its brokers have ``enableActingMaster``.
- An expiry contains, besides the epoch, the number of commands that the leader had applied (``serial``). A registration or a
  cleared suspicion after that number keeps the broker, even with the same epoch.
- SUSPECT records for how many thirds of its time-out the leader has had no contact with a broker (``liveness/silence.py``). It
  names term, epoch and serial as an expiry does. The suspicion of a broker is cleared by a registration that is not ignored, and
  by SUSPECT with 0 thirds.
- ATTRIBUTED wraps a command and names the caller who caused it. The caller has no effect on the state.
- OPERATION records in the audit log of every node that an operation on the cluster was requested. It has no effect on the state.
- The time of a command is the leader's clock, as last reported to the proposer. A time before that of a previous command is
  ignored.

A command of a newer format stops the node (UnknownCommandError): guessing would make the states differ.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from enum import StrEnum
from hashlib import blake2b
from itertools import chain
from typing import Any, NamedTuple

from replicated_namesrv.model import ChangeOrigin, DataVersion
from replicated_namesrv.raft.raft_errors import UnknownCommandError
from replicated_namesrv.replication.command_kinds import (
    ATTRIBUTED,
    BASE_VERSION,
    COMMAND_KINDS,
    ENVELOPE_FORMAT,
    EXPIRE,
    LEAD,
    OPERATION,
    PLAIN,
    REGISTER,
    SUSPECT,
    SUSPICION_VERSION,
    UNREGISTER,
)
from replicated_namesrv.replication.marks import (
    Key,
    Mark,
    MarksOfBackup,
    OwnLineReader,
    Suspicion,
    marks_table,
    own_line,
    suspected_table,
    tables_of,
    unregistered_table,
)
from replicated_namesrv.routes.broker_group import Registration
from replicated_namesrv.routes.commands import BrokerRemoval, Command, RegisterBroker, UnregisterBrokers, UpdateSettings
from replicated_namesrv.routes.encoding import RouteFormatError, decode_command, dump, encode_command, load
from replicated_namesrv.routes.history import EXPIRED, LOST, UNREGISTERED, History
from replicated_namesrv.routes.results import BrokerRemoved, Effect, Result
from replicated_namesrv.routes.sizes import names_bytes
from replicated_namesrv.routes.snapshot import SnapshotReader
from replicated_namesrv.routes.state import RouteInfoManager, RouteSettings
from replicated_namesrv.routes.tables import LATER_SETTINGS

UNREGISTERED_MAX = 10_000
"""Maximum number of unregistrations that are remembered; the newest are kept. A registration that was received before its
broker's unregistration has an effect if this unregistration is no longer remembered."""
NO_REGISTRATION = 0
"""Epoch in a removal whose sender knew of no registration. Real epochs start at 1."""


class Ignored(StrEnum):
    """Why a command with new content had no effect."""

    LATE_COPY = "newer content of the broker is stored"
    UNREGISTERED = "it was received before the broker was unregistered"
    TAKEN_OVER = "it was received before another address took over its name and id"
    OTHER_TERM = "another leader has taken over"


class ProposalResult(NamedTuple):
    """The result that a proposer receives."""

    result: Result
    ignored: Ignored | None = None
    leftover: str | None = None
    """Only if the start of a restore was refused: the other restore, whose pieces this node still has."""


class Suspect(NamedTuple):
    """One broker's entry of SUSPECT."""

    key: Key
    epoch: int
    share: int
    """Recorded silence in thirds of the time-out. 0: the broker made contact."""


def is_older(one: DataVersion, other: DataVersion) -> bool:
    """Whether a broker with version ``other`` must have had ``one`` before.

    A broker that lost its disk counts from zero with a newer timestamp. A broker whose clock was set back continues to count. In
    both cases neither version is older than the other."""
    if one.state_version != other.state_version:
        return one.state_version < other.state_version
    return one != other and one.counter <= other.counter and one.timestamp <= other.timestamp


def content_of(registration: RegisterBroker) -> str:
    """A hash that is equal for all copies of one registration, on all nodes."""
    return blake2b(encode_command(registration, 0), digest_size=16).hexdigest()


def encode_plain(command: Command, time_ms: int) -> bytes:
    """A command whose outcome depends only on its place in the log. ``time_ms``, here and below: the leader's clock."""
    return _encode([PLAIN], command, time_ms)


def encode_register(registration: RegisterBroker, time_ms: int, received: int, replaces: int, content: str) -> bytes:
    """A registration. ``received``: revision of the receiving node when the registration arrived. ``replaces``: the registration
    may replace a newer data version that was committed at this revision or before; 0: it may replace none. The 0 after
    ``replaces`` is an argument that only version 0.1 reads."""
    return _encode([REGISTER, received, replaces, 0, content], registration, time_ms)


def encode_unregister(command: UnregisterBrokers, time_ms: int, term: int) -> bytes:
    """``UNREGISTER_BROKER`` (104), by the leader of ``term``."""
    return _encode([UNREGISTER, term], command, time_ms)


def encode_expire(command: UnregisterBrokers, time_ms: int, term: int, serial: int, is_lost: bool) -> bytes:
    """The removal of silent brokers, or of brokers that closed their connections (``is_lost``), by the leader of ``term``, which
    had applied ``serial`` commands."""
    return _encode([EXPIRE, term, serial, int(is_lost)], command, time_ms)


def encode_suspect(suspects: Iterable[Suspect], time_ms: int, term: int, serial: int) -> bytes:
    """SUSPECT: the recorded silence of brokers, or their contact, by the leader of ``term``, which had applied ``serial``
    commands."""
    rows = [[*suspect.key, suspect.epoch, suspect.share] for suspect in suspects]
    return _encode([SUSPECT, term, serial, rows], UpdateSettings({}), time_ms)


def encode_lead(settings: RouteSettings, time_ms: int, term: int) -> bytes:
    """The first command of the leader of ``term``. The first such command in a new cluster sets the settings, except
    ``LATER_SETTINGS``, because nodes of version 0.1.0 ignore these."""
    values = {name: value for name, value in asdict(settings).items() if name not in LATER_SETTINGS}
    return _encode([LEAD, term], UpdateSettings(values), time_ms)


def encode_operation(request: str, target: str, time_ms: int) -> bytes:
    """OPERATION: a caller has requested the operation ``request`` on ``target``. It is proposed before the operation is
    executed."""
    return _encode([OPERATION, request, target], UpdateSettings({}), time_ms)


def encode_attributed(command: bytes, origin: ChangeOrigin) -> bytes:
    """``command``, an encoded one, with the caller who caused it."""
    head, _, rest = command[1:].partition(b"\n")
    return bytes((ENVELOPE_FORMAT,)) + dump([ATTRIBUTED, *origin, load(head)]) + b"\n" + rest


def _encode(head: list[object], command: Command, time_ms: int) -> bytes:
    return bytes((ENVELOPE_FORMAT,)) + dump(head) + b"\n" + encode_command(command, time_ms)


class RouteStateMachine:
    """Implements ``raft.interfaces.StateMachine``."""

    def __init__(self) -> None:
        self.state = RouteInfoManager(RouteSettings())
        self.history = History()
        self.marks = marks_table()
        self.serial = 0
        """Number of commands applied so far."""
        self.led_term = 0
        """Term of the newest LEAD in the log."""
        self.time_ms = 0
        """The newest time in a command."""
        self.command_version = BASE_VERSION
        """The newest version of an applied command. Every node of the cluster applies commands up to this version, or has
        stopped."""
        self._know_version(BASE_VERSION)
        self._unregistered = unregistered_table()
        """Broker to the revision at which it was unregistered, oldest first."""
        self._counted_sum, self._unregistered_bytes = self._unregistered.sum, 0
        self.suspected = suspected_table()
        """Registered brokers with recorded silence."""
        self.effects: list[Effect] = []
        """Effects of the commands that were applied since the owner last took the effects."""
        self.expired: dict[Key, int] = {}
        """Epochs of the brokers that an expiry removed, since the owner last took them."""
        self.on_registered: Callable[[Key, int | None, str], None] = lambda key, epoch, content: None
        """Called for every applied registration, with any outcome, with the hash of its content. The epoch is None if the
        registration was refused or ignored. Also called in replay."""
        self.on_backup: Callable[[int], None] = lambda epoch: None
        """Called when a backup has become the state, with the epoch of all its registrations. Also called in replay."""
        self.on_suspected: Callable[[list[Key]], None] = lambda keys: None
        """Called with the brokers whose suspicion has changed."""
        self.on_changed: Callable[[Command, str, ChangeOrigin | None], None] | None = None
        """Called with each command that changed the state, the reason for which it removed brokers, and the caller who caused it.
        Also called in replay."""
        self.on_operation: Callable[[str, str, ChangeOrigin | None], None] = lambda request, target, origin: None
        """Called with each OPERATION: request, target, and the caller who sent it. Also called in replay."""
        self.on_restore: Callable[[str, str, ChangeOrigin | None], None] = lambda step, restore_id, origin: None
        """Called with each accepted step of a restore except its pieces (``cluster_restore.py``). Also called in replay."""
        self.on_replaced: Callable[[], None] = lambda: None
        """Called when a snapshot has replaced the state."""
        self._origin: ChangeOrigin | None = None
        """The origin of the command that is being applied."""
        self.on_settings: Callable[[], None] = lambda: None
        self.on_lead: Callable[[int], None] = lambda term: None
        """Called with the term of every valid LEAD."""

    def apply(self, data: bytes) -> ProposalResult:
        """Apply one command of the log. Raises UnknownCommandError."""
        if not data or data[0] != ENVELOPE_FORMAT:
            found = data[0] if data else "none"
            raise UnknownCommandError(
                f"the log contains a command of format {found}, this version knows {ENVELOPE_FORMAT}: "
                "install the version that the other nodes run"
            )
        try:
            head, _, rest = data[1:].partition(b"\n")
            kind, *arguments = load(head)
            command, time_ms = decode_command(rest)
            handler, count = _HANDLERS[kind]
            if len(arguments) != count:
                raise ValueError(f"kind {kind} with {len(arguments)} arguments")
        except (RouteFormatError, ValueError, KeyError, TypeError) as error:
            raise UnknownCommandError(
                f"a command in the log is not known to this version ({error}): install the version that the other nodes run"
            ) from error
        self.serial += 1
        self.time_ms = max(self.time_ms, time_ms)
        version = max(self.command_version, COMMAND_KINDS[ENVELOPE_FORMAT, kind].since)
        if version >= SUSPICION_VERSION > self.command_version:
            self.state.override_all()
        self._know_version(version)
        return handler(self, command, *arguments)

    def _know_version(self, command_version: int) -> None:
        self.command_version = command_version
        self.state.compares_content = command_version >= SUSPICION_VERSION

    def _apply(self, command: Command, removal: str = UNREGISTERED) -> Result:
        applied = self.state.apply(command, self.time_ms)
        if applied.result.changed:
            self.history.note(self.state, command, self.time_ms, removal)
            if self.on_changed is not None:
                self.on_changed(command, removal, self._origin)
        for effect in applied.effects:
            if isinstance(effect, BrokerRemoved):
                self.marks.take((effect.cluster_name, effect.broker_addr))
                self._clear((effect.cluster_name, effect.broker_addr))
        self.effects.extend(applied.effects)
        return applied.result

    def _attributed(self, command: Command, identity: str, address: str, node: str, head: list[Any]) -> ProposalResult:
        kind, *arguments = head
        handler, count = _HANDLERS.get(kind, (None, 0)) if isinstance(kind, int) else (None, 0)
        if handler is None or kind == ATTRIBUTED or len(arguments) != count:
            raise UnknownCommandError(
                f"a command in the log is not known to this version (kind {kind} with {len(arguments)} arguments): "
                "install the version that the other nodes run"
            )
        self.command_version = max(self.command_version, COMMAND_KINDS[ENVELOPE_FORMAT, kind].since)
        self._origin = ChangeOrigin(identity, address, node)
        try:
            return handler(self, command, *arguments)
        finally:
            self._origin = None

    def _operation(self, command: Command, request: str, target: str) -> ProposalResult:
        self.on_operation(request, target, self._origin)
        return ProposalResult(Result())

    def _plain(self, command: Command) -> ProposalResult:
        result = self._apply(command)
        if isinstance(command, UpdateSettings):
            self.on_settings()
        return ProposalResult(result)

    def _lead(self, command: Command, term: int) -> ProposalResult:
        if term <= self.led_term:
            return ProposalResult(Result(), Ignored.OTHER_TERM)
        before, self.led_term = self.led_term, term
        applied = ProposalResult(Result()) if before else self._plain(command)
        self.on_lead(term)
        return applied

    def _register(self, command: Command, received: int, replaces: int, unused: int | None, content: str) -> ProposalResult:
        """Apply a registration, and call ``on_registered`` for every outcome, because nodes with a copy of it wait for it."""
        assert isinstance(command, RegisterBroker)
        applied = self._judge(command, received, replaces, content)
        epoch = applied.result.epoch if applied.ignored is None else None
        self.on_registered((command.cluster_name, command.broker_addr), epoch, content)
        return applied

    def _judge(self, command: RegisterBroker, received: int, replaces: int, content: str) -> ProposalResult:
        key = (command.cluster_name, command.broker_addr)
        before = self.state.registration(*key)
        mark = self.marks.get(key)
        if before is None and self._unregistered.get(key, -1) > received:
            return ProposalResult(Result(), Ignored.UNREGISTERED)
        if self._is_taken_over(command, received):
            return ProposalResult(Result(), Ignored.TAKEN_OVER)
        if before is not None and mark is not None and self._is_late_copy(command, before, mark, received, replaces):
            return ProposalResult(self.state.renewal_result(*key) or Result(), Ignored.LATE_COPY)
        result = self._apply(command)
        after = self.state.registration(*key)
        if after is not None:
            same = before is not None and mark is not None and before.data_version == after.data_version
            same = same and before is not None and before.epoch == after.epoch
            same = same and not (result.changed and self.state.compares_content)
            revision = mark.version_revision if same and mark is not None else self.state.revision
            self.marks.put(key, Mark(revision, self.serial, content))
            self._unregistered.take(key)
            self._clear(key)
        return ProposalResult(result)

    def _is_taken_over(self, command: RegisterBroker, received: int) -> bool:
        """Whether another address took over the name and id after this registration was received. Then this registration is late,
        and applying it would remove a live broker. Version 0.1 does not check this."""
        holder = self.state.member(command.broker_name, command.broker_id)
        if self.command_version < SUSPICION_VERSION or holder is None or holder.broker_addr == command.broker_addr:
            return False
        return holder.epoch > received

    def _is_late_copy(self, command: RegisterBroker, held: Registration, mark: Mark, received: int, replaces: int) -> bool:
        if command.data_version != held.data_version:
            return mark.version_revision > replaces and self._is_overtaken(command, held)
        if not self.state.compares_content or mark.version_revision <= received:
            return False
        return self.state.unchanged_result(command) is None

    def _is_overtaken(self, command: RegisterBroker, held: Registration) -> bool:
        """Whether the stored version is newer. The broker id in the copy does not matter, because a broker that changed its id
        continues its counter. A node of release 0.1 compares data versions only if both copies have the same broker id. All
        nodes keep to this until a command of ``SUSPICION_VERSION`` is applied."""
        if self.command_version < SUSPICION_VERSION and command.broker_id != held.broker_id:
            return False
        return is_older(command.data_version, held.data_version)

    def _unregister(self, command: Command, term: int) -> ProposalResult:
        assert isinstance(command, UnregisterBrokers)
        if term != self.led_term:
            return ProposalResult(Result(), Ignored.OTHER_TERM)
        removals = []
        for removal in command.removals:
            registered = self.state.registration(removal.cluster_name, removal.broker_addr)
            if removal.epoch == NO_REGISTRATION:
                if registered is not None or self._is_member(removal):
                    continue
                removal = replace(removal, epoch=None)
            removals.append(removal)
        known = [r for r in removals if self.state.registration(r.cluster_name, r.broker_addr) is not None]
        result = self._apply(UnregisterBrokers(tuple(removals))) if removals else Result()
        for removal in known:
            self._note_unregistered(removal)
        return ProposalResult(result)

    def _is_member(self, removal: BrokerRemoval) -> bool:
        """Whether a removal whose sender knew of no registration would end a registration in another cluster. Version 0.1 does
        not check this."""
        is_checked = self.command_version >= SUSPICION_VERSION
        return is_checked and self.state.member_at(removal.broker_name, removal.broker_addr) is not None

    @property
    def unregistered_bytes(self) -> int:
        """The remembered unregistrations, counted like the state (``sizes``), which does not include them."""
        if self._counted_sum != self._unregistered.sum:
            self._counted_sum = self._unregistered.sum
            self._unregistered_bytes = sum(names_bytes(key) for key in self._unregistered)
        return self._unregistered_bytes

    def _note_unregistered(self, removal: BrokerRemoval) -> None:
        key = (removal.cluster_name, removal.broker_addr)
        if self.state.registration(*key) is None:
            self._unregistered.put(key, self.state.revision)
            if len(self._unregistered) > UNREGISTERED_MAX:
                self._unregistered.take(next(iter(self._unregistered)))

    def _expire(self, command: Command, term: int, serial: int, is_lost: int) -> ProposalResult:
        assert isinstance(command, UnregisterBrokers)
        if term != self.led_term:
            return ProposalResult(Result(), Ignored.OTHER_TERM)
        due = tuple(r for r in command.removals if self._last_sign(r) <= serial)
        if not due:
            return ProposalResult(Result())
        result = self._apply(UnregisterBrokers(due), LOST if is_lost else EXPIRED)
        for removal in due:
            key = (removal.cluster_name, removal.broker_addr)
            if removal.epoch is not None and self.state.registration(*key) is None:
                self.expired[key] = removal.epoch
        return ProposalResult(result)

    def _last_sign(self, removal: BrokerRemoval) -> int:
        mark = self.marks.get((removal.cluster_name, removal.broker_addr))
        return 0 if mark is None else mark.serial

    def _suspect(self, command: Command, term: int, serial: int, rows: list[tuple[str, str, int, int]]) -> ProposalResult:
        if term != self.led_term:
            return ProposalResult(Result(), Ignored.OTHER_TERM)
        changed = []
        for cluster_name, broker_addr, epoch, share in rows:
            key = (cluster_name, broker_addr)
            registration, mark = self.state.registration(*key), self.marks.get(key)
            if registration is None or mark is None or registration.epoch != epoch:
                continue
            known = self.suspected.get(key)
            if not share:
                self.suspected.take(key)
                self.marks.put(key, mark._replace(serial=self.serial))
            elif mark.serial <= serial and (known is None or share > known.share):
                self.suspected.put(key, Suspicion(share, self.time_ms if known is None else known.since_ms))
            if (known is None) != (key not in self.suspected):
                changed.append(key)
        if changed:
            self.on_suspected(changed)
        return ProposalResult(Result())

    def _clear(self, key: Key) -> None:
        if key in self.suspected:
            self.suspected.take(key)
            self.on_suspected([key])

    # The state as a whole

    def _numbers(self) -> list[int]:
        """The numbers of the first line. A command version above BASE_VERSION is the last number. BASE_VERSION itself is left
        out, because older nodes may still read the snapshots and compare the digests."""
        newer = [self.command_version] if self.command_version > BASE_VERSION else []
        return [self.serial, self.time_ms, self.led_term, *newer]

    def digest(self) -> bytes:
        """The digest of the state. Two nodes have equal digests if their states are equal. Different states have different
        digests, except that some differences between revisions of topics do not show (``routes/digest.py``)."""
        numbers, sums = self._numbers(), [self.marks.sum, self._unregistered.sum, self.suspected.sum]
        own = [*numbers[:3], *(f"{one:x}" for one in sums[: tables_of(numbers)]), *numbers[3:]]
        return self.state.digest() + blake2b(dump(own), digest_size=16).digest()

    def snapshot(self) -> Iterator[bytes]:
        """Our own first line, then the lines of the routes."""
        own = own_line(self._numbers(), (self.marks, self._unregistered, self.suspected))
        return chain(own, self.state.snapshot())

    def restore(self) -> "Restoring":
        """Begin to build another state."""
        return Restoring(self)

    def become(self, own: OwnLineReader, reader: SnapshotReader) -> None:
        """Replace the state by the one that was read."""
        self.state.adopt(reader)
        self.serial, self.time_ms, self.led_term, *newer = own.numbers
        self._know_version(newer[0] if newer else BASE_VERSION)
        self.marks, self._unregistered, self.suspected = own.marks, own.unregistered, own.suspected
        self.history.restart(self.state.revision, self.time_ms)
        self.effects.clear()
        self.expired.clear()
        self.on_replaced()
        self.on_settings()

    def mark_of_backup(self, revision: int) -> Mark:
        """The mark that all brokers of a backup get if the next command replaces the state by the backup, at ``revision``."""
        return Mark(revision, self.serial + 1, "")

    def take_over(self, reader: SnapshotReader, revisions_skipped: int, marks: MarksOfBackup) -> None:
        """Become the state of a backup: every broker in it counts as having registered just now. Only a state without brokers may
        be replaced, so the present state has no marks. ``marks``: the marks of brokers that were made while the pieces arrived.
        Raises RouteFormatError; the state is then unchanged."""
        before = self.state.revision
        self.state.adopt(reader)
        revision = max(before, self.state.revision) + revisions_skipped
        self.state.begin_anew(revision, is_stamped=reader.begun == revision)
        self.marks = marks.complete(reader.brokers, self.mark_of_backup(revision))
        self.serial += 1
        self.history.restart(revision, self.time_ms)
        self.suspected = suspected_table()
        self.on_backup(revision)
        self.on_settings()


class Restoring:
    """A state being read, chunk by chunk."""

    def __init__(self, machine: RouteStateMachine) -> None:
        self._machine = machine
        self._own = OwnLineReader()
        self._reader = SnapshotReader(trusted=True)

    def feed(self, chunk: bytes) -> None:
        """Take the next part of the snapshot."""
        if not self._own.complete:
            chunk = self._own.feed(chunk)
        if chunk:
            self._reader.feed(chunk)

    def finish(self) -> None:
        """Replace the state by the one that was read."""
        assert self._own.complete, "a snapshot has at least our own line"
        self._machine.become(self._own, self._reader)


_HANDLERS: dict[int, tuple[Callable[..., ProposalResult], int]] = {
    PLAIN: (RouteStateMachine._plain, 0),
    REGISTER: (RouteStateMachine._register, 4),
    UNREGISTER: (RouteStateMachine._unregister, 1),
    EXPIRE: (RouteStateMachine._expire, 3),
    LEAD: (RouteStateMachine._lead, 1),
    SUSPECT: (RouteStateMachine._suspect, 3),
    ATTRIBUTED: (RouteStateMachine._attributed, 4),
    OPERATION: (RouteStateMachine._operation, 2),
}
"""For each kind of command: the function that applies it, and the number of arguments besides the command."""

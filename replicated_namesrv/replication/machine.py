"""RouteStateMachine: commands in envelopes, applied in log order, with what a log adds to RocketMQ's rules.

Each rule is decided here, from state and command alone, so that all nodes decide alike:

- A registration with an older data version than the stored one is a *late copy* if its connection was open, by the
  revision noted at its opening, before the stored version was committed: it changes nothing.
- A registration received (by the revision noted then) before the broker was unregistered does not bring the broker back.
- A removal of code 104 names the epoch it is meant for; one that saw no registration removes none that came since.
- An expiry names, besides the epoch, the last sign of life in the log that the leader knew (``serial``): a registration that
  was already under way in the log saves the broker, though it keeps its epoch.
- The time stamped on a command counts only as far as it does not go back.

A command of a newer format stops the node (UnknownCommandError): guessing would make nodes differ.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from hashlib import blake2b
from typing import NamedTuple

from replicated_namesrv.raft.interfaces import UnknownCommandError
from replicated_namesrv.routes.commands import BrokerRemoval, Command, RegisterBroker, UnregisterBrokers, UpdateSettings
from replicated_namesrv.routes.encoding import RouteFormatError, decode_command, dump, encode_command, load
from replicated_namesrv.routes.history import EXPIRED, LOST, UNREGISTERED, History
from replicated_namesrv.routes.results import BrokerRemoved, Effect, Result
from replicated_namesrv.routes.snapshot import SnapshotReader
from replicated_namesrv.routes.state import RouteInfoManager, RouteSettings

ENVELOPE_FORMAT = 1
PLAIN, REGISTER, UNREGISTER, EXPIRE, INITIAL_SETTINGS = range(5)
UNREGISTERED_MAX = 10_000
"""Unregistrations remembered; a copy that is later than this many others is not recognised."""
NO_REGISTRATION = 0
"""Epoch in a removal that saw no registration: real epochs start at 1."""
Key = tuple[str, str]


class Applied(NamedTuple):
    """What a proposer learns."""

    result: Result
    ignored: str | None = None
    """Why a registration changed nothing though it says something else; None: it was taken."""


class Mark(NamedTuple):
    """What is known of a registered broker beyond its registration."""

    version_revision: int
    """Revision that committed its present data version."""
    serial: int
    """Number of the last registration of it in the log, changed or not."""


def encode_envelope(kind: int, command: Command, time_ms: int, first: int = 0, second: int = 0) -> bytes:
    """``first`` and ``second``: revisions at receipt and at the connection's opening (REGISTER); the serial, and whether it was
    the loss of connections (EXPIRE)."""
    return bytes((ENVELOPE_FORMAT,)) + dump([kind, first, second]) + b"\n" + encode_command(command, time_ms)


class RouteStateMachine:
    """Implements ``raft.interfaces.StateMachine``."""

    def __init__(self) -> None:
        self.state = RouteInfoManager(RouteSettings())
        self.history = History()
        self.marks: dict[Key, Mark] = {}
        self.serial = 0
        """Commands applied so far."""
        self.is_initialised = False
        """Whether the settings in force were chosen by the cluster's first leader, and are not just defaults."""
        self._time_ms = 0
        self._unregistered: OrderedDict[Key, int] = OrderedDict()
        """Broker to the revision at which it was unregistered, oldest first."""
        self.effects: list[Effect] = []
        """Of the commands applied since the owner took them."""
        self.on_registered: Callable[[Key], None] = lambda key: None
        """Told of every registration applied, here and now (also in replay)."""
        self.on_settings: Callable[[], None] = lambda: None

    def apply(self, data: bytes) -> Applied:
        """See ``raft.interfaces.StateMachine``. Raises UnknownCommandError."""
        if not data or data[0] != ENVELOPE_FORMAT:
            found = data[0] if data else "none"
            raise UnknownCommandError(
                f"the log holds a command of format {found}, this version knows {ENVELOPE_FORMAT}: "
                "install the version that the other nodes run"
            )
        try:
            head, _, rest = data[1:].partition(b"\n")
            kind, first, second = load(head)
            command, time_ms = decode_command(rest)
            handler = _HANDLERS[kind]
        except (RouteFormatError, ValueError, KeyError, TypeError) as error:
            raise UnknownCommandError(f"a command in the log is not known to this version: {error}") from error
        self.serial += 1
        self._time_ms = max(self._time_ms, time_ms)
        return handler(self, command, first, second)

    def _apply(self, command: Command, removal: str = UNREGISTERED) -> Result:
        applied = self.state.apply(command, self._time_ms)
        if applied.result.changed:
            self.history.note(self.state, command, self._time_ms, removal)
        for effect in applied.effects:
            if isinstance(effect, BrokerRemoved):
                self.marks.pop((effect.cluster_name, effect.broker_addr), None)
        self.effects.extend(applied.effects)
        return applied.result

    def _plain(self, command: Command, first: int, second: int) -> Applied:
        result = self._apply(command)
        if isinstance(command, UpdateSettings):
            self.on_settings()
        return Applied(result)

    def _initial_settings(self, command: Command, first: int, second: int) -> Applied:
        if self.is_initialised:
            return Applied(Result())
        self.is_initialised = True
        return self._plain(command, first, second)

    def _register(self, command: Command, received: int, opened: int) -> Applied:
        assert isinstance(command, RegisterBroker)
        key = (command.cluster_name, command.broker_addr)
        before = self.state.registration(*key)
        mark = self.marks.get(key)
        if before is None and self._unregistered.get(key, -1) > received:
            return Applied(Result(), "it was received before the broker was unregistered")
        if before is not None and mark is not None and opened < mark.version_revision and before.broker_id == command.broker_id:
            ours, stored = command.data_version, before.data_version
            if (ours.state_version, ours.counter, ours.timestamp) < (stored.state_version, stored.counter, stored.timestamp):
                return Applied(self.state.renewal_result(*key) or Result(), "a newer data version was committed meanwhile")
        result = self._apply(command)
        after = self.state.registration(*key)
        if after is not None:
            same = before is not None and mark is not None and before.data_version == after.data_version
            same = same and before is not None and before.epoch == after.epoch
            revision = mark.version_revision if same and mark is not None else self.state.revision
            self.marks[key] = Mark(revision, self.serial)
            self._unregistered.pop(key, None)
            self.on_registered(key)
        return Applied(result)

    def _unregister(self, command: Command, first: int, second: int) -> Applied:
        assert isinstance(command, UnregisterBrokers)
        removals = []
        for removal in command.removals:
            registered = self.state.registration(removal.cluster_name, removal.broker_addr)
            if removal.epoch == NO_REGISTRATION:
                if registered is not None:
                    continue
                removal = replace(removal, epoch=None)
            removals.append(removal)
        known = [r for r in removals if self.state.registration(r.cluster_name, r.broker_addr) is not None]
        result = self._apply(UnregisterBrokers(tuple(removals))) if removals else Result()
        for removal in known:
            self._note_unregistered(removal)
        return Applied(result)

    def _note_unregistered(self, removal: BrokerRemoval) -> None:
        key = (removal.cluster_name, removal.broker_addr)
        if self.state.registration(*key) is None:
            self._unregistered[key] = self.state.revision
            self._unregistered.move_to_end(key)
            if len(self._unregistered) > UNREGISTERED_MAX:
                self._unregistered.popitem(last=False)

    def _expire(self, command: Command, serial: int, is_lost: int) -> Applied:
        assert isinstance(command, UnregisterBrokers)
        due = tuple(r for r in command.removals if self._last_sign(r) <= serial)
        return Applied(self._apply(UnregisterBrokers(due), LOST if is_lost else EXPIRED) if due else Result())

    def _last_sign(self, removal: BrokerRemoval) -> int:
        mark = self.marks.get((removal.cluster_name, removal.broker_addr))
        return 0 if mark is None else mark.serial

    # The whole

    def _own(self) -> bytes:
        marks = [[*key, *mark] for key, mark in sorted(self.marks.items())]
        unregistered = [[*key, revision] for key, revision in self._unregistered.items()]
        return dump([self.serial, self._time_ms, self.is_initialised, marks, unregistered]) + b"\n"

    def digest(self) -> bytes:
        """See ``raft.interfaces.StateMachine``."""
        return self.state.digest() + blake2b(self._own(), digest_size=16).digest()

    def snapshot(self) -> Iterator[bytes]:
        """Our own line, then those of the routes."""
        own, routes = self._own(), self.state.snapshot()

        def lines() -> Iterator[bytes]:
            yield own
            yield from routes

        return lines()

    def restore(self) -> "Restoring":
        """See ``raft.interfaces.StateMachine``."""
        return Restoring(self)

    def become(self, own: bytes, reader: SnapshotReader) -> None:
        """Take over what was read."""
        self.serial, self._time_ms, self.is_initialised, marks, unregistered = load(own)
        self.state.adopt(reader)
        self.history.restart(self.state.revision)
        self.marks = {(cluster, address): Mark(*mark) for cluster, address, *mark in marks}
        self._unregistered = OrderedDict(((cluster, address), revision) for cluster, address, revision in unregistered)
        self.effects.clear()
        self.on_settings()


class Restoring:
    """A state being read, chunk by chunk."""

    def __init__(self, machine: RouteStateMachine) -> None:
        self._machine = machine
        self._own = b""
        self._reader: SnapshotReader | None = None

    def feed(self, chunk: bytes) -> None:
        """See ``raft.interfaces.Restoration``."""
        if self._reader is None:
            self._own += chunk
            own, newline, rest = self._own.partition(b"\n")
            if not newline:
                return
            self._own, self._reader, chunk = own, SnapshotReader(), rest
        if chunk:
            self._reader.feed(chunk)

    def finish(self) -> None:
        """See ``raft.interfaces.Restoration``."""
        assert self._reader is not None, "a snapshot has at least our own line"
        self._machine.become(self._own, self._reader)


_HANDLERS: dict[int, Callable[[RouteStateMachine, Command, int, int], Applied]] = {
    PLAIN: RouteStateMachine._plain,
    REGISTER: RouteStateMachine._register,
    UNREGISTER: RouteStateMachine._unregister,
    EXPIRE: RouteStateMachine._expire,
    INITIAL_SETTINGS: RouteStateMachine._initial_settings,
}


def settings_command(settings: RouteSettings) -> UpdateSettings:
    """All flags as a command."""
    return UpdateSettings(asdict(settings))

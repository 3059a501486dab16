"""History: the changes by revision, for watchers.

Every command that changes the state is one change with one revision. So a watcher that has seen revision r needs exactly the
changes after r, and a change is sent as a whole or not at all. The description of a change depends only on the command, the state
after it and the command's time. So nodes that apply the same commands send the same bytes, and a watcher may continue at another
node.

The history is bounded in bytes. A request for changes before ``oldest`` raises an error. So a watcher notices that it missed
changes.
"""

import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from json.encoder import encode_basestring_ascii
from operator import attrgetter
from typing import Any, cast

import orjson

from replicated_namesrv.routes.broker_group import Registration
from replicated_namesrv.routes.commands import (
    ChangeWritePerm,
    Command,
    DeleteKVConfig,
    DeleteTopic,
    PutKVConfig,
    RegisterBroker,
    RegisterTopic,
    UnregisterBrokers,
    UpdateSettings,
)
from replicated_namesrv.routes.encoding import dump
from replicated_namesrv.routes.state import RouteInfoManager

HISTORY_BYTES_MAX = 16 << 20
UNREGISTERED, EXPIRED, LOST = "broker-unregistered", "broker-expired", "broker-lost"
"""Kinds of removal: the broker sent ``UNREGISTER_BROKER`` (104); it had no contact within its time-out; its connections ended."""
REMOVALS = (UNREGISTERED, EXPIRED, LOST)
REGISTERED, CHANGED, GROUP_CHANGED = "broker-registered", "broker-changed", "broker-group-changed"
"""REGISTERED: a registration with a new epoch. CHANGED: a registration whose content changed and whose epoch did not.
GROUP_CHANGED: a refused registration that nevertheless changed its group, as in Java."""
RESTORED = "restored"
"""The whole state was replaced, by a backup, by another node's snapshot, or by kvConfig.json: watchers have to read everything
again."""
TOPICS_LISTED_MAX = 1_000
_CHANGE_OVERHEAD_BYTES = 250
"""Approximate memory that Python needs for a change besides its text."""
_text = json.JSONEncoder(separators=(",", ":")).encode


class Change:
    """One change. Its text is made on first use, because most changes are dropped unread."""

    __slots__ = ("_data", "_fields", "kind", "revision", "size_bytes")

    def __init__(self, revision: int, kind: str, time_ms: int, fields: dict[str, Any]) -> None:
        """``fields``: immutable values. Tuples of names are sorted later, when the text is made."""
        self.revision, self.kind = revision, kind
        self.size_bytes = _CHANGE_OVERHEAD_BYTES + _bytes(fields)
        """Approximate memory use of the change, before and after its text is made. It is equal on all nodes."""
        self._fields = {"revision": revision, "kind": kind, "timeMs": time_ms, **fields}
        self._data = ""

    @property
    def data(self) -> str:
        """A JSON object on one line, ASCII."""
        if not self._data:
            self._data, self._fields = _text(self.fields), {}
        return self._data

    @property
    def fields(self) -> dict[str, Any]:
        """The object of ``data``. Do not change its values."""
        if self._data:
            return cast(dict[str, Any], orjson.loads(self._data))
        return {name: sorted(value) if isinstance(value, tuple) else value for name, value in self._fields.items()}


def _bytes(value: object) -> int:
    """Approximate memory of a value, or of its text if that is larger."""
    match value:
        case str():
            return _bytes_of_text(value) + 1
        case tuple():
            return _bytes_of_text("".join(value)) + 3 * len(value)
        case dict():
            return sum(len(name) + 4 + _bytes(each) for name, each in value.items())
        case list():
            return sum(map(_bytes, value))
    return 8


def _bytes_of_text(value: str) -> int:
    """Approximate memory of a text, as JSON or as Python stores it, whichever is more. JSON escapes a character with up to 12
    bytes. Python stores every character of a text with 4 bytes if one character needs 4."""
    if value.isascii():  # takes a tenth of the time of the other branch; ``dump`` does not escape DEL
        return len(dump(value)) + 5 * value.count("\x7f")
    return max(len(encode_basestring_ascii(value)), 4 * len(value))


class CompactedError(Exception):
    """The requested changes are no longer kept; ``oldest`` is the least revision after which all changes are available."""

    def __init__(self, asked: int, oldest: int) -> None:
        super().__init__(f"changes after revision {asked} are no longer kept, only those after {oldest}")
        self.oldest = oldest


class History:
    """The latest changes. ``listeners`` are called after each change and have to be quick."""

    def __init__(self, bytes_max: int = HISTORY_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self._changes: list[Change] = []
        self._first = 0
        """Index of the oldest valid change. Earlier elements are removed from time to time."""
        self._bytes = 0
        self.oldest = 0
        self.newest = 0
        self.replaced_at = 0
        """Revision of the last RESTORED; 0: there was none. A watcher whose position is before this revision has read the state
        that was replaced. It does not need the changes up to RESTORED, so it continues from ``replaced_at - 1``."""
        self.listeners: set[Callable[[], None]] = set()
        self.counts: Counter[str] = Counter()
        """Number of changes by kind."""
        self.removed: Counter[str] = Counter()
        """Number of brokers removed, by kind of removal."""

    def note(self, state: RouteInfoManager, command: Command, time_ms: int, removal: str = UNREGISTERED) -> None:
        """Record the change made by ``command``, which has just been applied to ``state``. ``removal``: why the command removed
        brokers, if it removed any."""
        kind, fields = describe(state, command, removal)
        self.add(state.revision, kind, time_ms, fields)

    def add(self, revision: int, kind: str, time_ms: int, fields: dict[str, Any]) -> None:
        """Append a change."""
        change = Change(revision, kind, time_ms, fields)
        self._changes.append(change)
        self.counts[kind] += 1
        if kind in REMOVALS:
            self.removed[kind] += len(fields["brokers"])
        self._bytes += change.size_bytes
        self.newest = revision
        while self._bytes > self.bytes_max and self._first < len(self._changes) - 1:
            dropped = self._changes[self._first]
            self._bytes -= dropped.size_bytes
            self.oldest = dropped.revision
            self._first += 1
        if 2 * self._first > len(self._changes):
            del self._changes[: self._first]
            self._first = 0
        self._tell()

    def restart(self, revision: int, time_ms: int = 0) -> None:
        """The state was replaced as a whole and is at ``revision``. The replacement is recorded as one change, because its single
        changes are unknown.
        """
        self._changes, self._first, self._bytes = [], 0, 0
        self.oldest, self.replaced_at = max(0, revision - 1), revision
        self.add(revision, RESTORED, time_ms, {})

    def after(self, revision: int, bytes_max: int) -> list[Change]:
        """The first changes after ``revision``, of about ``bytes_max`` bytes in all, but at least one change if there is any.
        Raises CompactedError."""
        if revision < self.oldest:
            raise CompactedError(revision, self.oldest)
        position = bisect_right(self._changes, revision, lo=self._first, key=attrgetter("revision"))
        found: list[Change] = []
        while position < len(self._changes) and bytes_max > 0:
            found.append(self._changes[position])
            bytes_max -= found[-1].size_bytes
            position += 1
        return found

    def _tell(self) -> None:
        for listener in tuple(self.listeners):
            listener()


def describe(state: RouteInfoManager, command: Command, removal: str) -> tuple[str, dict[str, Any]]:
    """Kind and fields of the change that the last command made to ``state``."""
    match command:
        case RegisterBroker():
            return _registration(state, command)
        case UnregisterBrokers():
            return removal, {"brokers": [_broker(gone) for gone in state.last_ended()], "topics": _topics(state)}
        case RegisterTopic():
            return "topic-registered", {"topics": [command.topic]}
        case DeleteTopic():
            return "topic-deleted", {"topics": [command.topic], "clusterName": command.cluster_name}
        case ChangeWritePerm():
            kind = "write-perm-added" if command.writable else "write-perm-wiped"
            return kind, {"brokerName": command.broker_name, "topics": _topics(state)}
        case PutKVConfig():
            return "kv-put", {"namespace": command.namespace, "key": command.key, "value": command.value}
        case DeleteKVConfig():
            return "kv-deleted", {"namespace": command.namespace, "key": command.key}
        case UpdateSettings():
            return "settings-changed", {"settings": {_camel(name): value for name, value in command.values.items()}}


def _registration(state: RouteInfoManager, command: RegisterBroker) -> tuple[str, dict[str, Any]]:
    """Kind and fields of the change that a registration made. GROUP_CHANGED: the registration was refused. Then its address is
    not registered, or is registered under another name or id."""
    registration = state.registration(command.cluster_name, command.broker_addr)
    fields: dict[str, Any] = {"topics": _topics(state), "replaced": [_broker(gone) for gone in state.last_ended()]}
    announced = (command.broker_name, command.broker_id)
    if registration is None or (registration.broker_name, registration.broker_id) != announced:
        return GROUP_CHANGED, {"brokerName": command.broker_name, **fields}
    version = registration.data_version
    broker = _broker(registration) | {
        "dataVersion": {"counter": version.counter, "stateVersion": version.state_version, "timestamp": version.timestamp}
    }
    return REGISTERED if registration.epoch == state.revision else CHANGED, {"brokers": [broker], **fields}


def _broker(registration: Registration) -> dict[str, Any]:
    return {
        "clusterName": registration.cluster_name,
        "brokerName": registration.broker_name,
        "brokerId": registration.broker_id,
        "brokerAddr": registration.broker_addr,
        "epoch": registration.epoch,
    }


def _topics(state: RouteInfoManager) -> tuple[str, ...] | None:
    """Topics whose routes changed. None: too many to list, read all again."""
    return state.last_topics(TOPICS_LISTED_MAX)


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)

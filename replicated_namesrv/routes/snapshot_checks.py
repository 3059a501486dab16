"""Checks of a snapshot from outside the cluster: types, ranges, and valid references.

A backup is a file that people can edit, and they can compute a new checksum, too. A wrong value in it would stop every node of a
cluster, at once or days later. So each line is checked before it is used. After these checks, all queries, digests, snapshots and
removals work on the restored state.
"""

from collections.abc import Callable, Iterable
from typing import Any

REVISION_MAX = 4 * 10**18
"""Maximum revision in a backup. Revisions, epochs and generations have 64 bits in messages. A restored state continues to count
from its revision, so this maximum is less than half of the 64-bit range."""
INT_MIN, INT_MAX = -(1 << 31), (1 << 31) - 1
LONG_MIN, LONG_MAX = -(1 << 63), (1 << 63) - 1
NAMES_CHARACTERS_MAX = 10_000
"""Maximum length of a registration's cluster, broker name and address together, because every heartbeat contains them."""
TEXT_CHARACTERS_MAX = 16 << 20
"""Maximum length of a text in a backup: version 0.1.0 stored texts of requests of up to 16 MiB."""
SHOWN_CHARACTERS = 60


def _refuse(field: str, value: object, wanted: str) -> ValueError:
    shown = repr(value)
    return ValueError(
        f"{field} is {shown if len(shown) <= SHOWN_CHARACTERS else shown[:SHOWN_CHARACTERS] + '…'}: expected {wanted}"
    )


def _text(field: str, value: object) -> str:
    if type(value) is not str:
        raise _refuse(field, value, "a text")
    if len(value) > TEXT_CHARACTERS_MAX:
        raise ValueError(f"{field} has {len(value):,} characters: at most {TEXT_CHARACTERS_MAX:,} are expected")
    return value


def _name(field: str, value: object) -> str:
    if not _text(field, value):
        raise _refuse(field, value, "a text that is not empty")
    return str(value)


def _bool(field: str, value: object) -> None:
    if type(value) is not bool:
        raise _refuse(field, value, "true or false")


def _number(field: str, value: object, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise _refuse(field, value, f"a whole number from {least} to {most}")
    return value


def _list(field: str, value: object, length: int | None = None) -> list[Any]:
    if type(value) is not list or length not in (None, len(value)):
        raise _refuse(field, value, "a list" if length is None else f"a list of {length}")
    return value


def _texts(field: str, values: object) -> list[str]:
    found = _list(field, values)
    if not set(map(type, found)) <= {str}:
        raise _refuse(f"an item of {field}", next(value for value in found if type(value) is not str), "a text")
    _text(f"an item of {field}", max(found, key=len, default=""))
    return found


def _numbers(field: str, values: object, least: int, most: int) -> list[int]:
    found = _list(field, values)
    if found and (set(map(type, found)) != {int} or min(found) < least or max(found) > most):
        for value in found:
            _number(f"an item of {field}", value, least, most)
    return found


def _add(known: set[Any], values: Iterable[Any], field: str) -> None:
    """Raise ValueError if one of ``values`` is already known or occurs twice."""
    for value in values:
        if value in known:
            raise _refuse(field, value, "a value that has not occurred before")
        known.add(value)


class SnapshotChecks:
    """Checks the lines of one snapshot in order. An error calls a field by its name on the wire, if it has one."""

    def __init__(self) -> None:
        self._revision = 0
        self._topics: set[str] = set()
        self._members: dict[str, set[object]] = {}
        """For each group: the ids and addresses of its members."""
        self._served: set[int] = set()
        """Numbers of the topics of the group that is being read."""
        self._clusters: dict[str, set[str]] = {}
        """For each cluster: the broker names in it."""
        self._live: set[tuple[str, str]] = set()
        self._mappings: set[tuple[str, str]] = set()
        self._kv: dict[str, set[str]] = {}

    def line(self, kind: object, fields: list[Any]) -> None:
        """Check one line of a snapshot. Raises ValueError, which names the wrong field."""
        if type(kind) is not str or kind not in _CHECKS:
            raise _refuse("the kind of the line", kind, "one of " + ", ".join(_CHECKS))
        check, count = _CHECKS[kind]
        if len(fields) != count:
            raise ValueError(f"a line of kind {kind} has {len(fields)} fields: expected {count}")
        check(self, *fields)

    def _head(self, version: object, revision: object, settings_revision: object, settings: object) -> None:
        self._revision = _number("revision", revision, 0, REVISION_MAX)
        _number("settings revision", settings_revision, 0, self._revision)
        if type(settings) is not dict:
            raise _refuse("settings", settings, "an object")
        for name, value in settings.items():
            _bool(f"setting {name:.{SHOWN_CHARACTERS}}", value)

    def _topic(self, topics: object, revisions: object) -> None:
        names = _texts("topics", topics)
        if len(_numbers("topic revisions", revisions, 0, self._revision)) != len(names):
            raise ValueError("there are not as many topic revisions as topics")
        _add(self._topics, names, "a topic")

    def _group(self, name: object, cluster: object, zone_name: object, acting: object, generation: object) -> None:
        if _text("brokerName", name) in self._members:
            raise _refuse("brokerName", name, "a value that has not occurred before")
        _text("cluster of a broker name", cluster)
        if zone_name is not None:
            _text("zoneName", zone_name)
        _bool("enableActingMaster", acting)
        _number("generation of a broker name", generation, 0, self._revision)
        self._members[str(name)] = set()
        self._served = set()

    def _overridden(self) -> None:
        if not self._members:
            raise ValueError("an override is outside of a group")

    def _queues(self, numbers: object, table: object, queue_numbers: object) -> None:
        if not self._members:
            raise ValueError("queues are outside of a group")
        found = _numbers("topic numbers", numbers, 0, len(self._topics) - 1)
        _add(self._served, found, "a topic of a broker name")
        kinds = _list("queue settings", table)
        for kind in kinds:
            _numbers("queue settings", _list("queue settings", kind, 4), INT_MIN, INT_MAX)
        if type(queue_numbers) is list:
            if len(_numbers("numbers of queue settings", queue_numbers, 0, len(kinds) - 1)) != len(found):
                raise ValueError("there are not as many numbers of queue settings as topic numbers")
        else:
            _number("number of queue settings", queue_numbers, 0, len(kinds) - 1)

    def _cluster(self, clusters: object) -> None:
        for entry in _list("clusters", clusters):
            cluster, names = _list("a cluster", entry, 2)
            if _name("clusterName", cluster) in self._clusters:
                raise _refuse("clusterName", cluster, "a value that has not occurred before")
            self._clusters[cluster] = set()
            self._listed(cluster, names)

    def _listed(self, cluster: object, names: object) -> None:
        if _text("clusterName", cluster) not in self._clusters:
            raise _refuse("clusterName", cluster, "a value from a line of kind clusters")
        if not _texts("broker names of a cluster", names):
            raise _refuse("broker names of a cluster", names, "a list that is not empty")
        _add(self._clusters[str(cluster)], _texts("broker names of a cluster", names), "a broker name of a cluster")

    def _registration(self, registrations: object) -> None:
        for entry in _list("registrations", registrations):
            cluster, address, name, broker_id, epoch, version, timeout, ha_address, servers, since = _list(
                "a registration", entry, 10
            )
            names = _name("clusterName", cluster), _text("brokerAddr", address), _text("brokerName", name)
            if sum(map(len, names)) > NAMES_CHARACTERS_MAX:
                raise ValueError(f"clusterName, brokerAddr and brokerName have more than {NAMES_CHARACTERS_MAX} characters")
            if name not in self._members:
                raise _refuse("brokerName", name, "a name that has a line of kind group")
            _add(self._live, [(cluster, address)], "clusterName and brokerAddr of a registration")
            _number("brokerId", broker_id, LONG_MIN, LONG_MAX)
            _add(self._members[name], [broker_id, address], f"brokerId or brokerAddr at {name:.{SHOWN_CHARACTERS}}")
            _number("epoch", epoch, 0, self._revision)
            _numbers("dataVersion", _list("dataVersion", version, 3), LONG_MIN, LONG_MAX)
            _number("heartbeatTimeoutMillis", timeout, LONG_MIN, LONG_MAX)
            _text("haServerAddr", ha_address)
            _texts("filter servers", servers)
            _number("time of the first registration", since, LONG_MIN, LONG_MAX)

    def _mapping(self, broker_name: object, infos: object) -> None:
        name = _text("brokerName of mappings", broker_name)
        if not _list("mappings", infos):
            raise _refuse("mappings", infos, "a list that is not empty")
        for entry in _list("mappings", infos):
            topic, fields = _list("a mapping", entry, 2)
            _add(self._mappings, [(name, _text("topic of a mapping", topic))], "broker name and topic of a mapping")
            bname, pairs, dirty, epoch, scope, own_topic, total = _list("a mapping", fields, 7)
            if _text("bname", bname) != name:
                raise _refuse("bname", bname, "the broker name of the line")
            pairs = [
                _numbers("currIdMap", _list("a pair of currIdMap", pair, 2), INT_MIN, INT_MAX)
                for pair in _list("currIdMap", pairs)
            ]
            _add(set(), [pair[0] for pair in pairs], "a key of currIdMap")
            _bool("dirty", dirty)
            _number("epoch of a mapping", epoch, LONG_MIN, LONG_MAX)
            _text("scope", scope)
            _text("topic in a mapping", own_topic)
            _number("totalQueues", total, INT_MIN, INT_MAX)

    def _namespace(self, namespace: object) -> None:
        if _text("namespace", namespace) in self._kv:
            raise _refuse("namespace", namespace, "a value that has not occurred before")
        self._kv[str(namespace)] = set()

    def _entries(self, namespace: object, entries: object) -> None:
        if _text("namespace", namespace) not in self._kv:
            raise _refuse("namespace", namespace, "a name that has a line of kind namespace")
        for entry in _list("KV entries", entries):
            key, value = _list("a KV entry", entry, 2)
            _add(self._kv[str(namespace)], [_text("key", key)], "key")
            if value is not None:
                _text("value", value)


_CHECKS: dict[str, tuple[Callable[..., None], int]] = {
    "head": (SnapshotChecks._head, 4),
    "topics": (SnapshotChecks._topic, 2),
    "group": (SnapshotChecks._group, 5),
    "overridden": (SnapshotChecks._overridden, 0),
    "queues": (SnapshotChecks._queues, 3),
    "clusters": (SnapshotChecks._cluster, 1),
    "listed": (SnapshotChecks._listed, 2),
    "live": (SnapshotChecks._registration, 1),
    "mappings": (SnapshotChecks._mapping, 2),
    "namespace": (SnapshotChecks._namespace, 1),
    "kv": (SnapshotChecks._entries, 2),
}

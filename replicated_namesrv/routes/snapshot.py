"""Snapshots: the whole state as JSON lines, written from a view that later changes do not affect.

Taking the view copies the small tables. The view shares topics, static topic mappings and KV entries with the state until they
are written to the snapshot, or the snapshot is dropped (shared_dict.py). So the lines can be produced a few at a time, over
seconds, while commands are applied. Topics are numbered once and referred to by number. A line has at most SLICE entries, and at
most SLICE_CHARACTERS of text unless one entry alone has more, so it takes a few milliseconds to write or to read. Lines are
returned in parts of at most PART_BYTES_MAX.

A snapshot contains everything on which an answer, a digest or a later command may depend, including the order of objects that
answers list. So restoring it and taking another one gives the same bytes, and a restored node behaves exactly like one that was
not restored.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, count, islice
from typing import Any, NamedTuple, TypeVar

from replicated_namesrv.model import DataVersion, QueueData, TopicQueueMappingInfo
from replicated_namesrv.routes.broker_group import BrokerGroup, Registration
from replicated_namesrv.routes.encoding import (
    RouteFormatError,
    dump,
    load,
    mapping_fields,
    mapping_of,
    number_queue_datas,
    queue_datas_of,
)
from replicated_namesrv.routes.shared_dict import SharedDict, SharedView
from replicated_namesrv.routes.sizes import Sizes
from replicated_namesrv.routes.snapshot_checks import SnapshotChecks
from replicated_namesrv.routes.sums import topic_hashes
from replicated_namesrv.routes.tables import RouteSettings, Tables, split_settings

SNAPSHOT_FORMAT = 1
SLICE = 5_000
SLICE_CHARACTERS = 64 << 10
"""Number of characters in one line. An escaped character takes at most 12 bytes."""
CLUSTER_CHARACTERS = 512 << 10
"""Maximum length of the names of one cluster that are written into one line."""
PART_BYTES_MAX = 1 << 20
LINE_BYTES_MAX = 1 << 30
"""Maximum length of a line that is read. Earlier versions wrote lines of any length, so the limit is as large as a machine's
memory permits."""
BACKUP_LINE_BYTES_MAX = 64 << 20
"""The same for a backup. All nodes read its lines in the same turn, so that no leader may be heard meanwhile. Version 0.1.0 did
not read longer lines either."""
T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


class _GroupHead(NamedTuple):
    fields: list[Any]
    is_overridden: bool


def _views(heads: Iterable[K], owners: Iterable[SharedDict[V]]) -> deque[tuple[K, SharedView[V]]]:
    """The present content of dictionaries, for ``_contents``."""
    return deque(zip(heads, map(SharedDict.share, owners), strict=True))


def _contents(views: deque[tuple[K, SharedView[V]]]) -> Iterator[tuple[K, dict[str, V]]]:
    """Every head with its content, which must not be read after the next one was requested."""
    while views:
        head, view = views.popleft()
        yield head, view.content()
        view.release()


def snapshot(tables: Tables, is_new: bool = True) -> Iterator[bytes]:
    """Lines of the state as of this call, even if the iterator is consumed later. ``is_new``: False if version 0.1 may have to
    read the lines, because it does not know the kinds ``listed`` and ``overridden``.
    """
    groups = _views(map(_head_of, tables.groups.values()), (group.topics for group in tables.groups.values()))
    released, later = split_settings(tables.settings)
    header = [SNAPSHOT_FORMAT, tables.revision, tables.settings_revision, {**released, **later}]
    lines = chain(
        [["head", *header]],
        _topic_lines(dict(tables.topic_revisions), groups, is_new),
        _cluster_lines({cluster: list(names) for cluster, names in tables.cluster_names.items()}, is_new),
        _live_lines(list(tables.live.values())),
        _mapping_lines(_views(tables.mappings, tables.mappings.values())),
        _kv_lines(_views(tables.kv, tables.kv.values())),
    )
    return _encoded(lines)


def _head_of(group: BrokerGroup) -> _GroupHead:
    fields = [group.broker_name, group.cluster, group.zone_name, group.enable_acting_master, group.generation]
    return _GroupHead(fields, group.is_overridden)


def _encoded(lines: Iterable[list[Any]]) -> Iterator[bytes]:
    number = 0
    for line in lines:
        number += 1
        yield from in_parts(dump(line) + b"\n")
    yield dump(["end", number]) + b"\n"


def in_parts(line: bytes) -> Iterator[bytes]:
    """``line``, cut so that no part has more than PART_BYTES_MAX."""
    return (line[start : start + PART_BYTES_MAX] for start in range(0, len(line), PART_BYTES_MAX))


def _slices(
    values: Iterable[T], characters: Callable[[T], int] | None = None, characters_max: int | None = None
) -> Iterator[list[T]]:
    """Split ``values`` into slices. ``characters`` returns the text length of one value; None: all are short. ``characters_max``
    None: SLICE_CHARACTERS."""
    iterator, most = iter(values), SLICE_CHARACTERS if characters_max is None else characters_max
    while part := list(islice(iterator, SLICE)):
        lengths = [] if characters is None else list(map(characters, part))
        if sum(lengths) <= most:
            yield part
            continue
        start = size = 0
        for position, length in enumerate(lengths):
            if size + length > most and position > start:
                yield part[start:position]
                start, size = position, 0
            size += length
        yield part[start:]


def _item_slices(table: Mapping[str, V], characters: Callable[[str], int] | None = None) -> Iterator[tuple[list[str], list[V]]]:
    """Keys and values separately: pairs would be enough objects to start the garbage collector, which then visits the whole
    state.
    """
    values = iter(table.values())
    for names in _slices(table, characters):
        yield names, list(islice(values, len(names)))


def _topic_lines(
    revisions: Mapping[str, int], groups: deque[tuple[_GroupHead, SharedView[QueueData]]], is_new: bool
) -> Iterator[list[Any]]:
    numbers: dict[str, int] = {}
    for names, values in _item_slices(revisions, len):
        numbers.update(zip(names, count(len(numbers)), strict=False))
        yield ["topics", names, values]
    for head, topics in _contents(groups):
        yield ["group", *head.fields]
        if head.is_overridden and is_new:
            yield ["overridden"]
        for names, queue_datas in _item_slices(topics):
            table, queue_numbers = number_queue_datas(queue_datas)
            yield ["queues", list(map(numbers.__getitem__, names)), table, queue_numbers]


def _cluster_lines(clusters: Mapping[str, list[str]], is_new: bool) -> Iterator[list[Any]]:
    """Names of a cluster that do not fit into its line follow in lines of kind ``listed``. Version 0.1 refuses this kind, and
    would read a second line of kind ``clusters`` as the complete list of a cluster. So without ``is_new`` all names of a cluster
    are in its line."""
    line: list[Any] = []
    size = 0
    for cluster, names in clusters.items():
        parts = _slices(names, len, CLUSTER_CHARACTERS) if is_new else iter([names])
        first = next(parts)
        more = len(cluster) + sum(map(len, first)) + 4 * len(first)
        if line and (len(line) == SLICE or size + more > SLICE_CHARACTERS):
            yield ["clusters", line]
            line, size = [], 0
        line.append([cluster, first])
        size += more
        for part in parts:
            if line:
                yield ["clusters", line]
                line, size = [], 0
            yield ["listed", cluster, part]
    if line or not clusters:
        yield ["clusters", line]


def _live_lines(registrations: list[Registration]) -> Iterator[list[Any]]:
    for part in _slices(registrations, _characters_of_registration):
        yield ["live", [list(registration) for registration in part]]


def _characters_of_registration(registration: Registration) -> int:
    texts = (registration.cluster_name, registration.broker_addr, registration.broker_name, registration.ha_server_addr)
    return sum(map(len, texts)) + sum(map(len, registration.filter_servers)) + 8 * len(registration.filter_servers)


def _characters_of_mapping(item: tuple[str, TopicQueueMappingInfo]) -> int:
    topic, info = item
    return len(topic) + len(info.bname) + len(info.scope) + len(info.topic) + 4 * len(info.curr_id_map)


def _mapping_lines(mappings: deque[tuple[str, SharedView[TopicQueueMappingInfo]]]) -> Iterator[list[Any]]:
    for broker_name, infos in _contents(mappings):
        for part in _slices(infos.items(), _characters_of_mapping):
            yield ["mappings", broker_name, [[topic, mapping_fields(info)] for topic, info in part]]


def _kv_lines(kv: deque[tuple[str, SharedView[str | None]]]) -> Iterator[list[Any]]:
    for namespace, entries in _contents(kv):
        yield ["namespace", namespace]
        for part in _slices(entries.items(), lambda entry: len(entry[0]) + len(entry[1] or "")):
            yield ["kv", namespace, [list(entry) for entry in part]]


class SnapshotReader:
    """Builds a state from the bytes of a snapshot, fed in arbitrary pieces. The work per byte is constant."""

    def __init__(self, trusted: bool = False, anew: Callable[[int], int] | None = None, is_overridden: bool = False) -> None:
        """``trusted``: only this cluster's own nodes can have written it, so values are not checked (SnapshotChecks).
        ``anew(revision of the snapshot)`` returns the revision that ``RouteInfoManager.begin_anew`` will probably give to all
        objects. Each object gets this revision when it is read, so ``begin_anew`` has little left to do.
        ``is_overridden``: all groups count as overridden."""
        self._anew, self._is_overridden = anew, is_overridden
        self.begun: int | None = None
        """The revision that everything gets in place of its own; None: everything keeps its own."""
        self._tables = Tables(RouteSettings())
        self._checks = None if trusted else SnapshotChecks()
        self._topics: list[str] = []
        self._hashes: list[int] = []
        """The hashes of the topics in ``_topics``."""
        self._group: BrokerGroup | None = None
        self._line_bytes_max = LINE_BYTES_MAX if trusted else BACKUP_LINE_BYTES_MAX
        self._rest: list[bytes] = []
        """The parts of a line whose end has not arrived."""
        self._rest_bytes = 0
        self._lines = 0
        self._complete = False

    @property
    def sizes(self) -> Sizes:
        """The size of what has been read so far; read only."""
        return self._tables.sizes

    @property
    def brokers(self) -> Mapping[tuple[str, str], Registration]:
        """The registrations that have been read so far, by cluster and address; read only."""
        return self._tables.live

    def feed(self, data: bytes) -> None:
        """Process the next bytes. Raises RouteFormatError with the line and its problem."""
        start = 0
        while (end := data.find(b"\n", start)) >= 0:
            line = data[start:end]
            if self._rest:
                line = b"".join([*self._rest, line])
                self._rest, self._rest_bytes = [], 0
            self._check_length(len(line))
            self._line(line)
            start = end + 1
        if start < len(data):
            self._rest.append(data[start:])
            self._rest_bytes += len(data) - start
            self._check_length(self._rest_bytes)

    def _check_length(self, line_bytes: int) -> None:
        if line_bytes > self._line_bytes_max:
            raise RouteFormatError(
                f"snapshot cannot be read: line {self._lines + 1} has more than {self._line_bytes_max} bytes, the most allowed"
            )

    def _line(self, line: bytes) -> None:
        if self._complete:
            raise RouteFormatError("snapshot continues after its end")
        try:
            kind, *fields = load(line)
            if kind == "end":
                self._end(*fields)
            elif (self._lines == 0) != (kind == "head"):
                raise RouteFormatError("snapshot does not begin with its head")
            else:
                if self._checks is not None:
                    self._checks.line(kind, fields)
                getattr(self, _READERS[kind])(*fields)
        except (ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
            reason = str(error) if type(error) is ValueError else repr(error)
            raise RouteFormatError(f"snapshot cannot be read: line {self._lines + 1}: {reason}") from error
        self._lines += 1

    def finish(self) -> Tables:
        """The tables, after all bytes were processed. Raises RouteFormatError if something is missing."""
        if not self._complete or self._rest:
            raise RouteFormatError("snapshot is cut off")
        if self._checks is not None and len(self._tables.topic_groups) != len(self._tables.topic_revisions):
            raise RouteFormatError("snapshot has topics that no broker serves")
        self._tables.count_groups()
        return self._tables

    def _end(self, count: int) -> None:
        if type(count) is not int or count != self._lines:
            raise RouteFormatError(f"snapshot has {self._lines} lines, but its end says {count}")
        self._complete = True

    def _head(self, version: int, revision: int, settings_revision: int, settings: dict[str, bool]) -> None:
        if type(version) is not int or version != SNAPSHOT_FORMAT:
            raise RouteFormatError(
                f"snapshot format {version} is not supported here, only {SNAPSHOT_FORMAT}: use a release that supports it"
            )
        self._tables.settings = RouteSettings(**settings)
        self._tables.revision, self._tables.settings_revision = revision, settings_revision
        if self._anew is not None:
            self.begun = self._anew(revision)

    def _topic(self, topics: list[str], revisions: list[int]) -> None:
        self._topics += topics
        self._hashes += topic_hashes(topics)
        self._tables.load_revisions(topics, revisions if self.begun is None else [self.begun] * len(topics))

    def _group_head(self, name: str, cluster: str, zone_name: str | None, enable_acting_master: bool, generation: int) -> None:
        self._tables.count_groups()  # the previous group is complete
        group = self._tables.groups[name] = self._group = BrokerGroup(name, cluster)
        group.zone_name, group.enable_acting_master = zone_name, enable_acting_master
        group.is_overridden = self._is_overridden
        group.generation = generation if self.begun is None else self.begun
        self._tables.sizes.group(group, 1)
        self._tables.uncounted[name] = None

    def _overridden(self) -> None:
        if self._group is None:
            raise RouteFormatError("snapshot has an override outside of a group")
        self._group.is_overridden = True

    def _queues(self, numbers: list[int], table: list[list[int]], queue_numbers: list[int] | int) -> None:
        group = self._group
        if group is None:
            raise RouteFormatError("snapshot has queues outside of a group")
        if not isinstance(queue_numbers, int) and len(queue_numbers) != len(numbers):
            raise RouteFormatError("snapshot has queues without topic or topics without queues")
        topics, hashes = list(map(self._topics.__getitem__, numbers)), list(map(self._hashes.__getitem__, numbers))
        self._tables.load_topics(group, topics, hashes, list(islice(queue_datas_of(table, queue_numbers), len(numbers))))

    def _clusters(self, clusters: list[tuple[str, list[str]]]) -> None:
        for cluster, names in clusters:
            for name in names:
                self._tables.load_cluster(cluster, name)

    def _listed(self, cluster: str, names: list[str]) -> None:
        self._clusters([(cluster, names)])

    def _live(self, registrations: list[list[Any]]) -> None:
        for fields in registrations:
            registration = Registration(*fields)
            registration = registration._replace(
                epoch=registration.epoch if self.begun is None else self.begun,
                data_version=DataVersion(*registration.data_version),
                filter_servers=tuple(registration.filter_servers),
            )
            self._tables.load_registration(self._tables.groups[registration.broker_name], registration)

    def _mappings(self, broker_name: str, infos: list[tuple[str, list[Any]]]) -> None:
        self._tables.load_mappings(broker_name, {topic: mapping_of(fields) for topic, fields in infos})

    def _namespace(self, namespace: str) -> None:
        self._tables.put_namespace(namespace)

    def _kv(self, namespace: str, entries: list[tuple[str, str | None]]) -> None:
        if namespace not in self._tables.kv:
            raise RouteFormatError("snapshot has KV entries outside of a namespace")
        self._tables.put_kv(namespace, dict(entries))


_READERS = {
    "head": "_head",
    "topics": "_topic",
    "group": "_group_head",
    "overridden": "_overridden",
    "queues": "_queues",
    "clusters": "_clusters",
    "listed": "_listed",
    "live": "_live",
    "mappings": "_mappings",
    "namespace": "_namespace",
    "kv": "_kv",
}

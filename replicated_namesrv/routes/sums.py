"""Incremental sums of hashes, from which digests of tables are computed. Each change updates the sum.

A table counts as the sum of the hashes of its entries, modulo the prime 2^127 - 1. A sum does not depend on the order of its
terms. The cost of a change depends on the changed entries, not on the size of the table. Tables that differ have equal sums with
a probability of about 2^-127 if their hashes are independent. This detects diverged nodes. It is not a defence against
constructed collisions.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any, Generic, TypeVar

import orjson
from xxhash import xxh3_128_intdigest

from replicated_namesrv.model import QueueData
from replicated_namesrv.routes.encoding import dump

PRIME = 2**127 - 1
REMEMBERED_MAX = 10_000
"""Maximum number of hashes that ``queue_hash`` caches. When the cache is full, it is cleared."""
_TOPIC_SEED, _QUEUES_SEED, _ENTRY_SEED = 1, 2, 3
K = TypeVar("K")
V = TypeVar("V")


def topic_hashes(topics: Sequence[str]) -> list[int]:
    """The hash of each topic."""
    try:
        return list(map(xxh3_128_intdigest, map(str.encode, topics), repeat(_TOPIC_SEED)))
    except UnicodeEncodeError:
        return [xxh3_128_intdigest(topic.encode("utf-8", "surrogatepass"), _TOPIC_SEED) for topic in topics]


class _QueueHashes(dict[QueueData, int]):
    def __missing__(self, queue_data: QueueData) -> int:
        if len(self) >= REMEMBERED_MAX:
            self.clear()
        value = self[queue_data] = xxh3_128_intdigest(dump(list(queue_data)), _QUEUES_SEED)
        return value


queue_hash: Callable[[QueueData], int] = _QueueHashes().__getitem__
"""Hash of the queue settings of a topic."""


def entry_hash(table: str, *fields: Any) -> int:
    """Hash of an entry of ``table``; ``fields`` are JSON values."""
    return xxh3_128_intdigest(dump([table, *fields]), _ENTRY_SEED)


def entry_hashes(table: str, *columns: Iterable[Any]) -> list[int]:
    """``entry_hash`` of many entries, given field by field."""
    rows = list(zip(repeat(table), *columns, strict=False))
    try:
        return list(map(xxh3_128_intdigest, map(orjson.dumps, rows), repeat(_ENTRY_SEED)))
    except TypeError:  # orjson refuses some texts
        return [xxh3_128_intdigest(dump(row), _ENTRY_SEED) for row in rows]


def text_hash(text: str | None) -> str:
    """A fixed-length replacement of a long text among the fields of an entry. For None it is the empty string, which replaces no
    text."""
    return "" if text is None else f"{xxh3_128_intdigest(text.encode('utf-8', 'surrogatepass'), _ENTRY_SEED):032x}"


class SummedTable(OrderedDict[K, V], Generic[K, V]):
    """A dictionary with the sum of its entries. Only ``put`` and ``take`` change it."""

    def __init__(self, hash_of: Callable[[K, V], int], entries: Iterable[tuple[K, V]] = ()) -> None:
        """``hash_of(key, value)``: hash of an entry."""
        super().__init__()
        self._hash_of = hash_of
        self.sum = 0
        for key, value in entries:
            self.put(key, value)

    def put(self, key: K, value: V) -> None:
        """Store an entry as the newest."""
        self.take(key)
        self[key] = value
        self.sum = (self.sum + self._hash_of(key, value)) % PRIME

    def put_all(self, entries: Mapping[K, V], hashes: Iterable[int]) -> None:
        """Store entries with these hashes as the newest."""
        for key in filter(self.__contains__, entries):
            self.take(key)
        self.update(entries)
        self.sum = (self.sum + sum(hashes)) % PRIME

    def take(self, key: K) -> None:
        """Remove the entry, if there is one."""
        if key in self:
            self.sum = (self.sum - self._hash_of(key, self.pop(key))) % PRIME

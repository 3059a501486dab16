"""KVIndex: the KV config in order, for reading it page by page, and the last change of each namespace.

It is derived from the table and not part of the state. It is built on first use, in slices, and then updated. The cost of a
put, a delete or a page does not depend on the number of entries.
"""

from bisect import bisect_left
from collections.abc import Mapping

SEPARATOR = "|"
_AFTER_SEPARATOR = chr(ord(SEPARATOR) + 1)
BLOCK_MAX = 1_000
"""Maximum number of keys in a block. A full block is split. So an insertion moves at most this many pointers."""


def name_of(namespace: str, key: str) -> str:
    """``namespace|key``, the sort key of entries. ``|`` and ``%`` in the namespace are escaped, so that different entries have
    different names."""
    return f"{_quoted(namespace)}{SEPARATOR}{key}"


def entry_of(name: str) -> tuple[str, str]:
    """Inverse of ``name_of``."""
    namespace, _, key = name.partition(SEPARATOR)
    return namespace.replace("%7C", SEPARATOR).replace("%25", "%"), key


def _quoted(namespace: str) -> str:
    return namespace.replace("%", "%25").replace(SEPARATOR, "%7C")


class SortedNames:
    """A set of strings in order."""

    def __init__(self) -> None:
        self._blocks: list[list[str]] = []
        self._lasts: list[str] = []
        """The last name in each block."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, name: str) -> None:
        """Add a name. No-op if it exists."""
        blocks, lasts = self._blocks, self._lasts
        if not blocks:
            blocks.append([name])
            lasts.append(name)
            self._count = 1
            return
        number = min(bisect_left(lasts, name), len(blocks) - 1)
        block = blocks[number]
        position = bisect_left(block, name)
        if position < len(block) and block[position] == name:
            return
        block.insert(position, name)
        self._count += 1
        if len(block) > BLOCK_MAX:
            half = len(block) // 2
            blocks[number : number + 1] = [block[:half], block[half:]]
            lasts[number : number + 1] = [block[half - 1], block[-1]]
        else:
            lasts[number] = block[-1]

    def discard(self, name: str) -> None:
        """Remove a name. No-op if it does not exist."""
        number = bisect_left(self._lasts, name)
        if number == len(self._blocks):
            return
        block = self._blocks[number]
        position = bisect_left(block, name)
        if block[position] != name:
            return
        del block[position]
        self._count -= 1
        if block:
            self._lasts[number] = block[-1]
        else:
            del self._blocks[number], self._lasts[number]

    def between(self, start: str, end: str | None, count_max: int) -> list[str]:
        """The first names from ``start`` on and less than ``end``, at most ``count_max``."""
        found: list[str] = []
        number = bisect_left(self._lasts, start)
        while number < len(self._blocks) and len(found) < count_max:
            block = self._blocks[number]
            first = bisect_left(block, start)
            last = len(block) if end is None else bisect_left(block, end)
            found += block[first : min(last, first + count_max - len(found))]
            if last < len(block):
                break
            number += 1
        return found


class KVIndex:
    """The index of one KV table. ``moved`` must be called for every change of the table."""

    def __init__(self, kv: Mapping[str, Mapping[str, str | None]]) -> None:
        self._kv = kv
        self._names: SortedNames | None = None
        """The keys in order; None: the order was never requested."""
        self._namespaces: list[str] = []
        """Namespaces that are still to be sorted."""
        self._keys: tuple[str, list[str]] = ("", [])
        """The namespace that is being sorted, and its remaining keys."""
        self._revisions: dict[str, int] = {}
        self._base_revision = 0

    def moved(self, namespace: str, key: str, revision: int) -> None:
        """The entry was put or deleted at ``revision``."""
        self._revisions[namespace] = revision
        if self._names is None:
            return
        if key in self._kv.get(namespace, ()):
            self._names.add(name_of(namespace, key))
        else:
            self._names.discard(name_of(namespace, key))

    def begin(self, revision: int) -> None:
        """Every entry of the table counts as changed at ``revision``."""
        self._revisions.clear()
        self._base_revision = revision

    def revision(self, namespace: str) -> int:
        """Revision of the namespace's last change, as far as this process knows. While it is the same, the content is the
        same.
        """
        return self._revisions.get(namespace, self._base_revision)

    def advance(self, entries_max: int) -> bool:
        """Sort about this many more entries. True: all are sorted, and ``page`` may be called."""
        if self._names is None:
            self._names, self._namespaces = SortedNames(), list(self._kv)
        while entries_max > 0:
            namespace, keys = self._keys
            if not keys:
                if not self._namespaces:
                    return True
                namespace = self._namespaces.pop()
                keys = list(self._kv.get(namespace, ()))
                self._keys = (namespace, keys)
                entries_max -= 1
            part = keys[-entries_max:] if entries_max else []
            del keys[len(keys) - len(part) :]
            present = self._kv.get(namespace, {})
            for key in part:
                if key in present:  # left out if the key has been deleted since
                    self._names.add(name_of(namespace, key))
            entries_max -= len(part)
        return False

    def count(self, namespace: str | None = None) -> int:
        """Number of entries of one namespace or of all. ``advance`` must have returned True."""
        assert self._names is not None, "advance comes first"
        return len(self._names) if namespace is None else len(self._kv.get(namespace, ()))

    def page(self, after: str, count_max: int, namespace: str | None = None) -> list[str]:
        """Names (``name_of``) greater than ``after``, in order, of one namespace or of all. ``advance`` must have returned
        True.
        """
        assert self._names is not None, "advance comes first"
        start = after + "\0" if after else ""  # start with the least text that is greater than ``after``
        if namespace is None:
            return self._names.between(start, None, count_max)
        quoted = _quoted(namespace)
        return self._names.between(max(start, quoted + SEPARATOR), quoted + _AFTER_SEPARATOR, count_max)

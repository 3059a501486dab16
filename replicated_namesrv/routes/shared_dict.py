"""SharedDict: a dictionary that changes while snapshots and lists read its earlier content.

While the dictionary is read, its entries stay as they are, and changes are stored beside them. So the cost of a change
depends only on the entries that it changes. The changes are moved to the entries after the last reader has finished.
"""

from collections.abc import Collection, ItemsView, Iterator, Mapping, ValuesView
from typing import Generic, TypeVar

V = TypeVar("V")
COPY_FACTOR = 16
"""Storing one change beside the entries takes about as long as copying this many entries. If at least one in this many entries
changes at once, they are copied."""


class SharedDict(Mapping[str, V]):
    """Entries in the order of their insertion, as in ``dict``. Iterating costs a copy if there are changes beside the entries.
    Looking up, adding, replacing and removing an entry never does."""

    __slots__ = ("_changes", "_entries", "_readers")

    def __init__(self) -> None:
        self._entries: dict[str, V] = {}
        self._readers = 0
        """Number of views that read ``_entries``. While it is not 0, ``_entries`` does not change."""
        self._changes: _Changes[V] | None = None
        """Changes that are not in ``_entries``."""

    # -- looking up

    def __getitem__(self, key: str) -> V:
        changes = self._changes
        if changes is None:
            return self._entries[key]
        if key in changes.put:
            return changes.put[key]
        if key in changes.removed:
            raise KeyError(key)
        return self._entries[key]

    def __contains__(self, key: object) -> bool:
        changes = self._changes
        if changes is None:
            return key in self._entries
        return key in changes.put or (key in self._entries and key not in changes.removed)

    def __len__(self) -> int:
        return len(self._entries) if self._changes is None else self._changes.length

    def near(self, count: int) -> Mapping[str, V]:
        """The present content for ``count`` look-ups: a plain dictionary, unless copying would cost more than the look-ups. Read
        only, and only until the next change."""
        return self if self._changes is not None and count * COPY_FACTOR < len(self) else self.whole()

    # -- iterating

    def whole(self) -> dict[str, V]:
        """The present content as a plain dictionary; read only, and only until the next change."""
        self.settle()
        if self._changes is not None:
            self._separate()
        return self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self.whole())

    def values(self) -> ValuesView[V]:
        return self.whole().values()

    def items(self) -> ItemsView[str, V]:
        return self.whole().items()

    # -- changing

    def update(self, entries: Mapping[str, V]) -> None:
        """Add or replace entries."""
        if (own := self._to_change(len(entries))) is not None:
            own.update(entries)
            return
        changes = self._beside()
        changes.length += len(entries) - sum(map(self.__contains__, entries))
        changes.put.update(entries)

    def remove(self, keys: Collection[str]) -> list[V]:
        """Remove entries, which exist. Returns their values."""
        if (own := self._to_change(len(keys))) is not None:
            return list(map(own.pop, keys))
        values = list(map(self.__getitem__, keys))
        changes = self._beside()
        for key in keys:
            changes.put.pop(key, None)
            if key in self._entries:
                changes.removed[key] = None
        changes.length -= len(keys)
        return values

    def own(self) -> dict[str, V]:
        """The content as a plain dictionary, of which any part may be changed until the next call of another method."""
        self.settle()
        if self._readers or self._changes is not None:
            self._separate()
        return self._entries

    def clear(self) -> None:
        """Remove everything, at a constant cost."""
        self._entries, self._changes, self._readers = {}, None, 0

    def _to_change(self, count: int) -> dict[str, V] | None:
        """The dictionary in which to change ``count`` entries. None: the changes must be stored beside it."""
        if self._changes is None and not self._readers:  # the usual case, in few steps
            return self._entries
        self.settle()
        return None if self._readers and count * COPY_FACTOR < len(self._entries) else self.own()

    def _beside(self) -> "_Changes[V]":
        if self._changes is None:
            self._changes = _Changes(len(self._entries))
        return self._changes

    def _separate(self) -> None:
        """Continue with a copy. The views keep the old entries."""
        entries, changes = self._entries.copy(), self._changes
        if changes is not None:
            changes.make(entries)
        self._entries, self._changes, self._readers = entries, None, 0

    # -- reading an earlier content

    def share(self) -> "SharedView[V]":
        """The present content, which can be read while this dictionary changes."""
        self.settle()
        self._readers += 1
        return SharedView(self, self._entries, None if self._changes is None else self._changes.copy())

    def leave(self, entries: Mapping[str, V]) -> None:
        """A view ends reading ``entries``."""
        if entries is self._entries:
            self._readers -= 1

    def settle(self) -> None:
        """If no view is left, move the changes to the entries."""
        if self._changes is not None and not self._readers:
            self._changes.make(self._entries)
            self._changes = None


class _Changes(Generic[V]):
    """Changes of entries that must stay as they are."""

    __slots__ = ("length", "put", "removed")

    def __init__(self, length: int) -> None:
        self.put: dict[str, V] = {}
        """New entries, and entries with a new value."""
        self.removed: dict[str, None] = {}
        """Keys of entries that were removed. A key that is also in ``put`` was added again later, behind all others."""
        self.length = length
        """Number of entries after the changes."""

    def copy(self) -> "_Changes[V]":
        """A copy, which costs as much as the changes."""
        twin = _Changes[V](self.length)
        twin.put, twin.removed = self.put.copy(), self.removed.copy()
        return twin

    def make(self, entries: dict[str, V]) -> None:
        """Change ``entries``."""
        for key in self.removed:
            del entries[key]
        entries.update(self.put)


class SharedView(Generic[V]):
    """The content of a SharedDict when ``share`` was called."""

    __slots__ = ("_changes", "_entries", "_owner")

    def __init__(self, owner: SharedDict[V], entries: dict[str, V], changes: _Changes[V] | None) -> None:
        self._owner: SharedDict[V] | None = owner
        self._entries, self._changes = entries, changes

    def content(self) -> dict[str, V]:
        """The entries; read only, and only until ``release``. Costs a copy if this dictionary had changed while an earlier view
        was read."""
        if self._changes is None:
            return self._entries
        entries = self._entries.copy()
        self._changes.make(entries)
        return entries

    def release(self) -> None:
        """End reading."""
        owner = self._owner
        if owner is not None:
            self._leave()
            owner.settle()

    def _leave(self) -> None:
        owner, self._owner = self._owner, None
        if owner is not None:
            owner.leave(self._entries)

    def __del__(self) -> None:
        """End reading without moving the changes, because the garbage collector may call this in the middle of a change."""
        self._leave()

"""A map topic -> name -> value, efficient for changes of many topics at once.

In a large cluster with large brokers, most topics have a value of only one name. Such a topic is stored with the value itself
instead of a dictionary of one entry. Then dictionary operations link or unlink all topics of a name at once. They need no
Python loop, and no object for each topic.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, compress, repeat
from operator import is_, not_, or_
from typing import Generic, TypeVar, cast

V = TypeVar("V")
"""Type of the values. It must not be a dictionary."""


class Holders(Generic[V]):
    """An index: for each topic, the names that have the topic (broker names), and one value for each name."""

    def __init__(self, name_of: Callable[[V], str]) -> None:
        """``name_of(value)``: the name to which the value belongs."""
        self._name_of = name_of
        self._by_topic: dict[str, V | dict[str, V]] = {}
        """For each topic: its only value, or a dictionary of the values of several names."""

    def __len__(self) -> int:
        return len(self._by_topic)

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_topic)

    def __contains__(self, topic: str) -> bool:
        return topic in self._by_topic

    def of(self, topic: str) -> tuple[V, ...]:
        """Values of a topic, by name ascending; empty if there are none. The cost is the number of values."""
        held = self._by_topic.get(topic)
        if held is None:
            return ()
        if type(held) is dict:
            return tuple(map(held.__getitem__, sorted(held)))
        return (cast("V", held),)

    def count(self, topic: str) -> int:
        """Number of the values of a topic."""
        held = self._by_topic.get(topic)
        return len(held) if type(held) is dict else int(held is not None)

    def link(self, entries: Mapping[str, V]) -> None:
        """Store the values, all of one name, replacing earlier ones."""
        by_topic, topics, values = self._by_topic, list(entries), list(entries.values())
        held = list(map(by_topic.get, topics))
        is_fresh = list(map(is_, held, repeat(None)))
        if all(is_fresh):
            by_topic.update(entries)
            return
        by_topic.update(zip(compress(topics, is_fresh), compress(values, is_fresh), strict=True))
        name, is_shared = self._name_of(values[0]), list(map(is_, map(type, held), repeat(dict)))
        shared = cast("Iterable[dict[str, V]]", compress(held, is_shared))
        _exhaust(map(dict.__setitem__, shared, repeat(name), compress(values, is_shared)))
        is_single = list(map(not_, map(or_, is_fresh, is_shared)))
        if any(is_single):
            singles = cast("list[V]", list(compress(held, is_single)))
            self._pair(name, list(compress(topics, is_single)), list(compress(values, is_single)), singles)

    def _pair(self, name: str, topics: Sequence[str], values: Sequence[V], singles: Sequence[V]) -> None:
        """Set the values of ``name`` for topics that have one value each. A value that belongs to ``name`` is replaced; otherwise
        the topic then has two values."""
        by_topic, name_of, value = self._by_topic, self._name_of, values[0]
        holders = dict(zip(map(id, singles), singles, strict=True))
        pairs = {key: {name_of(single): single, name: value} for key, single in holders.items()}
        if all(map(is_, values, repeat(value))) and all(map((2).__eq__, map(len, pairs.values()))):
            # A group is one object for all its topics, so Python needs one step for each group instead of one for each topic.
            by_topic.update(zip(topics, map(dict.copy, map(pairs.__getitem__, map(id, singles))), strict=True))
            return
        for topic, value, single, holder in zip(topics, values, singles, map(name_of, singles), strict=True):
            by_topic[topic] = value if holder == name else {holder: single, name: value}

    def unlink(self, name: str, topics: Collection[str], values: Iterable[V]) -> list[str]:
        """Remove the values, which belong to ``name``. Returns the topics that have no value left."""
        by_topic = self._by_topic
        held = list(map(by_topic.__getitem__, topics))
        is_alone = list(map(is_, held, values))
        alone = list(compress(topics, is_alone))
        _exhaust(map(by_topic.__delitem__, alone))
        if len(alone) < len(topics):
            is_left = list(map(not_, is_alone))
            left, several = compress(topics, is_left), cast("list[dict[str, V]]", list(compress(held, is_left)))
            _exhaust(map(dict.__delitem__, several, repeat(name)))
            is_single = list(map((1).__eq__, map(len, several)))
            values_left = chain.from_iterable(map(dict.values, compress(several, is_single)))
            by_topic.update(zip(compress(left, is_single), values_left, strict=True))
        return alone

    def leave(self, topic: str, names: Iterable[str]) -> bool:
        """Remove the values of these names from one topic; True if it has no value left. The cost is the number of names."""
        held = self._by_topic[topic]
        if type(held) is dict:
            _exhaust(map(held.__delitem__, names))
            if len(held) == 1:
                (self._by_topic[topic],) = held.values()
            if held:
                return False
        del self._by_topic[topic]
        return True


def _exhaust(steps: Iterable[object]) -> None:
    deque(steps, maxlen=0)

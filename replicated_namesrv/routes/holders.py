"""Which names hold something of a topic: topic -> name -> value, made for changes of many topics at once.

Most topics of a large cluster with large brokers are held by one name. Such a topic has the value itself instead of a
dictionary of one entry. Then linking or unlinking all topics of a name is done by dictionaries alone, without a step of
Python for each topic, and costs no object for each.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import compress, filterfalse
from operator import is_
from typing import Generic, TypeVar, cast

V = TypeVar("V")


class Shared(dict[str, V], Generic[V]):
    """Values of a topic that several names hold, by name."""


class Holders(Generic[V]):
    """Topics with what each of their names holds."""

    def __init__(self, name_of: Callable[[V], str]) -> None:
        """``name_of(value)``: the name that holds it."""
        self._name_of = name_of
        self._by_topic: dict[str, V | Shared[V]] = {}

    def __len__(self) -> int:
        return len(self._by_topic)

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_topic)

    def __contains__(self, topic: str) -> bool:
        return topic in self._by_topic

    def of(self, topic: str) -> tuple[V, ...]:
        """Values of a topic, by name ascending; empty if nobody holds it. Costs the holders of this topic."""
        held = self._by_topic.get(topic)
        if held is None:
            return ()
        if isinstance(held, Shared):
            return tuple(map(held.__getitem__, sorted(held)))
        return (held,)

    def link(self, entries: Mapping[str, V]) -> None:
        """Store the values, all of one name, in the place of those that it had."""
        by_topic, name_of = self._by_topic, self._name_of
        known = list(filter(by_topic.__contains__, entries))
        if known:
            fresh = list(filterfalse(by_topic.__contains__, entries))
            by_topic.update(zip(fresh, map(entries.__getitem__, fresh), strict=True))
        else:
            by_topic.update(entries)
        name = name_of(entries[known[0]]) if known else ""
        for topic in known:
            held, value = by_topic[topic], entries[topic]
            if isinstance(held, Shared):
                held[name] = value
            elif name_of(held) == name:
                by_topic[topic] = value
            else:
                by_topic[topic] = Shared({name_of(held): held, name: value})

    def unlink(self, name: str, topics: Collection[str], values: Iterable[V]) -> list[str]:
        """Remove the values, which are those that ``name`` holds. Topics that nobody holds any more."""
        by_topic = self._by_topic
        alone = list(compress(topics, map(is_, map(by_topic.__getitem__, topics), values)))
        deque(map(by_topic.__delitem__, alone), maxlen=0)
        if len(alone) < len(topics):
            for topic in filter(by_topic.__contains__, topics):
                held = cast("Shared[V]", by_topic[topic])
                del held[name]
                if len(held) == 1:
                    by_topic[topic] = next(iter(held.values()))
        return alone

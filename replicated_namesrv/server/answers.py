"""Route answers: encoded once, and found again by the bytes of the request.

Two bounded caches, each with half of ``routeCacheBytes``:

*Bodies*, by (topic, dialect): the JSON of a route until its topic's revision moves. Whoever asks shares the one body.

*Prepared answers*, by everything in a request frame except its opaque. Two frames that differ in nothing but the number that
was once proven to be the opaque (``wire.header.opaque_is_certain``) ask the same, so the second is answered without being
decoded: the prepared header around its opaque and the shared body. An answer is a function of the frame and the topic's
revision alone, so it holds while ``state.topic_revisions`` gives the revision it was made at. This also holds for
"no such topic" (no revision). What depends on anything else (time, per-request consistency, other environments) is never
remembered.

The length field is part of the key: it says how many digits the opaque has, and it makes frame and answer lengths constants.

A cache of two generations approximates least-recently-used without any work on a hit: what is used moves from the old
generation to the young one; when the young one is full the old one is dropped and they change places.
"""

from collections.abc import Callable, Hashable
from struct import Struct
from typing import Generic, NamedTuple, TypeVar

from replicated_namesrv.routes.state import RouteInfoManager
from replicated_namesrv.server.metrics import ServerMetrics
from replicated_namesrv.wire.frame import FRAME_PREFIX_BYTES, frame_prefix
from replicated_namesrv.wire.header import ROCKETMQ, AnswerParts, opaque_is_certain

PIECES_PER_WRITE = 256
"""Pieces of answers that are collected before they are written: 64 prepared answers."""
ENTRY_OVERHEAD_BYTES = 600
"""What the objects of one cache entry take beside their payload, measured generously."""
MARK = b'"opaque":'
MARK_BYTES = len(MARK)
BINARY_OPAQUE = FRAME_PREFIX_BYTES + 5
LENGTH = Struct(">i")

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class GenerationCache(Generic[K, V]):
    """At most ``limit_bytes`` of entries; those not used for longest go first, roughly."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.evictions = 0
        self.young: dict[K, V] = {}
        """Look here first; on a miss call ``find_old``."""
        self._old: dict[K, V] = {}
        self._sizes: dict[K, int] = {}
        self._young_bytes = 0
        self._old_bytes = 0

    @property
    def size_bytes(self) -> int:
        """What the entries take, as given to ``put``."""
        return self._young_bytes + self._old_bytes

    def find_old(self, key: K) -> V | None:
        """The value of a key that is not in ``young``; a used one becomes young again."""
        value = self._old.pop(key, None)
        if value is not None:
            size = self._sizes.pop(key)
            self._old_bytes -= size
            self.put(key, value, size)
        return value

    def put(self, key: K, value: V, size_bytes: int) -> None:
        """Store a value; one that is larger than half of the limit is not stored."""
        self.drop(key)
        half = self.limit_bytes // 2
        if size_bytes > half:
            return
        if self._young_bytes + size_bytes > half:
            self._turn()
        self.young[key] = value
        self._sizes[key] = size_bytes
        self._young_bytes += size_bytes

    def drop(self, key: K) -> None:
        """Forget a key."""
        if self.young.pop(key, None) is not None:
            self._young_bytes -= self._sizes.pop(key)
        elif self._old.pop(key, None) is not None:
            self._old_bytes -= self._sizes.pop(key)

    def _turn(self) -> None:
        self.evictions += len(self._old)
        for key in self._old:
            del self._sizes[key]
        self._old, self._old_bytes = self.young, self._young_bytes
        self.young, self._young_bytes = {}, 0


class Body(NamedTuple):
    """An encoded route."""

    revision: int
    data: bytes


class Prepared(NamedTuple):
    """An answer that lacks only its opaque, and when it holds."""

    topic: str
    revision: int | None
    """None: the topic has no route."""
    before: bytes
    """Frame prefix and header before the opaque."""
    after: bytes
    """Header after the opaque."""
    body: bytes


class RouteAnswers:
    """Both caches over one state."""

    def __init__(self, state: RouteInfoManager, limit_bytes: int, metrics: ServerMetrics) -> None:
        self._revisions = state.topic_revisions
        self._metrics = metrics
        self._bodies: GenerationCache[tuple[str, Hashable], Body] = GenerationCache(limit_bytes // 2)
        self._prepared: GenerationCache[tuple[bytes, bytes], Prepared] = GenerationCache(limit_bytes // 2)

    def body(self, topic: str, variant: Hashable, encode: Callable[[], bytes]) -> bytes:
        """The encoded route of ``topic``, which has one, in a variant (dialect, zone); ``encode`` makes it if it is not at hand."""
        key = (topic, variant)
        revision = self._revisions[topic]
        found = self._bodies.young.get(key) or self._bodies.find_old(key)
        if found is not None and found.revision == revision:
            return found.data
        data = encode()
        self._bodies.put(key, Body(revision, data), len(data) + len(topic) + ENTRY_OVERHEAD_BYTES)
        self._count()
        return data

    def remember(self, data: bytes, start: int, end: int, topic: str, parts: AnswerParts) -> None:
        """Prepare ``parts`` for frames equal to ``data[start:end]`` but for the opaque, if its place is certain."""
        cut = cut_frame(data, start, end)
        if cut is None:
            return
        key, opaque = cut
        if parts.serialize_type != ROCKETMQ and not opaque_is_certain(key[0][FRAME_PREFIX_BYTES:], key[1]):
            return
        header_bytes = len(parts.before) + len(opaque) + len(parts.after)
        prefix = frame_prefix(header_bytes, len(parts.body), parts.serialize_type)
        entry = Prepared(topic, self._revisions.get(topic), prefix + parts.before, parts.after, parts.body)
        size = 2 * (end - start) + header_bytes + len(parts.body) + ENTRY_OVERHEAD_BYTES
        self._prepared.put(key, entry, size)
        self._count()

    def answer(self, data: bytes, start: int, pieces: list[bytes]) -> int:
        """Answer frames from ``start`` on as long as each has a prepared answer that holds: append pieces of answer frames, give
        the position of the first frame that was not answered. Stops at ``PIECES_PER_WRITE``."""
        size = len(data)
        find, unpack = data.find, LENGTH.unpack_from
        young, revisions = self._prepared.young, self._revisions.get
        hits = misses = 0
        while size - start > BINARY_OPAQUE + 4 and len(pieces) < PIECES_PER_WRITE:
            end = start + 4 + unpack(data, start)[0]
            if end > size:
                break
            if data[start + 4]:
                opening = start + BINARY_OPAQUE
                closing = opening + 4
                opaque = data[opening:closing]
            else:
                opening = find(MARK, start, end) + MARK_BYTES
                closing = find(b",", opening, end)
                opaque = data[opening:closing]
                if not opaque.isdigit() or (opaque[0] == 48 and closing - opening > 1):
                    break
            key = (data[start:opening], data[closing:end])
            found = young.get(key)
            if found is None:
                found = self._prepared.find_old(key)
                if found is None:
                    break
            topic, revision, before, after, body = found
            if revisions(topic) != revision:
                break
            pieces += (before, opaque, after, body)
            hits += 1
            if revision is None:
                misses += 1
            start = end
        self._metrics.fast_path_hits += hits
        self._metrics.fast_path_misses += misses
        self._metrics.answered += hits
        return start

    def _count(self) -> None:
        self._metrics.answer_cache_bytes = self._bodies.size_bytes + self._prepared.size_bytes
        self._metrics.answer_cache_evictions = self._bodies.evictions + self._prepared.evictions


def cut_frame(data: bytes, start: int, end: int) -> tuple[tuple[bytes, bytes], bytes] | None:
    """The frame without its opaque, (before, after), and the opaque as it stands there; None if it has not the usual form.

    The same cut as ``RouteAnswers.answer`` makes.
    """
    if data[start + 4]:
        opening, closing = start + BINARY_OPAQUE, start + BINARY_OPAQUE + 4
    else:
        opening = data.find(MARK, start, end) + MARK_BYTES
        closing = data.find(b",", opening, end)
        digits = data[opening:closing]
        if opening < start + MARK_BYTES or not digits.isdigit() or len(digits) > 9 or (digits[0] == 48 and len(digits) > 1):
            return None
    return (data[start:opening], data[closing:end]), data[opening:closing]

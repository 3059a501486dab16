"""Cache of encoded route answers, found by the bytes of the request.

Two bounded caches, each with half of ``routeCacheBytes``:

*Bodies*, by topic and form of the JSON (RocketMQ's, standard, or filtered by zone): the JSON of a route while its topic's
revision is the same. All requests share one body.

*Prepared answers*, by everything in a request frame except its opaque. If two frames differ only in the number that was proven to
be the opaque (``wire.header.opaque_is_certain``), they are equal requests. So the second is answered without decoding: the answer
is the prepared header with the new opaque, and the shared body.

- An answer depends only on the frame and the topic's revision, so it is valid while ``state.topic_revisions`` has the revision at
  which it was made. "No such topic" is an answer, too; it has no revision. Answers that depend on anything else (time,
  per-request consistency, other environments) are never cached.
- The length field of the two frames must be equal. Then their opaques have the same number of digits, so the lengths in the
  prepared answer are correct.
- An answer is looked up by the bytes before the opaque (which include the topic in Java's requests). Then the bytes after it are
  compared. If several requests have the same bytes before the opaque, the first is stored under these, and the others under the
  bytes before and after it.

A cache of two generations approximates least-recently-used without work on a hit. A used entry of the old generation moves to the
young one. When the young generation is full, the old one is dropped, and the young one becomes the old one.
"""

from collections.abc import Callable, Hashable
from struct import Struct
from typing import Generic, NamedTuple, TypeVar

from replicated_namesrv.routes.state import RouteInfoManager
from replicated_namesrv.server.server_metrics import ServerMetrics
from replicated_namesrv.settings import Settings
from replicated_namesrv.wire.frame import FRAME_PREFIX_BYTES, frame_prefix
from replicated_namesrv.wire.header import AnswerParts, opaque_is_certain

HITS_PER_CALL = 64
"""Maximum number of prepared answers per call."""
PIECES_PER_WRITE = 192
"""Number of pieces at which the answers are written. Each prepared answer has three pieces."""
ENTRY_OVERHEAD_BYTES = 600
"""Estimate of the memory of one cache entry besides its payload."""
LARGE_ANSWER_BYTES = 65_536
"""A larger answer is written at once, so that back-pressure counts its bytes before the next answer is made."""
HEAD_MAX_BYTES = 1024
"""No answer is prepared for a request whose opaque begins after this position."""
REQUEST_MAX_BYTES = 4096
"""No answer is prepared for a longer request, because the look-up would copy and hash all of it."""
MARK = b'"opaque":'
MARK_BYTES = len(MARK)
BINARY_OPAQUE = FRAME_PREFIX_BYTES + 5
LEAST_BYTES = BINARY_OPAQUE + 4
DIGITS_MAX = 9
"""No answer is prepared for an opaque with more digits, because it may not be an int32."""
LENGTH_AT = Struct(">i").unpack_from

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class GenerationCache(Generic[K, V]):
    """At most ``limit_bytes`` of entries; approximately the least recently used ones are evicted."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.evictions = 0
        self.young: dict[K, V] = {}
        """The recently used entries. Callers look here first, because this is faster than ``find``."""
        self._old: dict[K, V] = {}
        self._sizes: dict[K, int] = {}
        self._young_bytes = 0
        self._old_bytes = 0

    @property
    def size_bytes(self) -> int:
        """Size of the entries, as given to ``put``."""
        return self._young_bytes + self._old_bytes

    def find(self, key: K) -> V | None:
        """The value of a key, which moves to the young generation."""
        value = self.young.get(key)
        if value is None:
            value = self._old.pop(key, None)
            if value is not None:
                size = self._sizes.pop(key)
                self._old_bytes -= size
                self.put(key, value, size)
        return value

    def put(self, key: K, value: V, size_bytes: int) -> None:
        """Store a value, unless it is larger than half of the limit."""
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
        """Remove a key."""
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


Prepared = tuple[str, int | None, int, int, bytes, int, bytes, bytes]
"""An answer without its opaque, and its validity. It is a plain tuple, which is unpacked faster than a named one:

- topic
- revision of the topic; None: the topic has no route
- request frame: bytes before the opaque, bytes of the opaque, bytes after it, length
- answer frame: bytes before the opaque, bytes after it with the body
"""


class RouteAnswers:
    """The caches of encoded routes and of prepared answers, over one state."""

    def __init__(self, state: RouteInfoManager, settings: Settings, metrics: ServerMetrics) -> None:
        self.is_off = False
        """While True, prepared answers are not used."""
        self.is_ready: Callable[[], bool] = lambda: True
        """Whether prepared answers may be used; False while needWaitForService delays route queries."""
        self._revisions = state.topic_revisions
        self._settings = settings
        self._metrics = metrics
        limit_bytes = settings.route_cache_bytes
        self._bodies: GenerationCache[tuple[str, Hashable], Body] = GenerationCache(limit_bytes // 2)
        self._prepared: GenerationCache[bytes | tuple[bytes, bytes], Prepared] = GenerationCache(limit_bytes // 2)

    def find_body(self, topic: str, variant: Hashable) -> bytes | None:
        """The encoded route of ``topic``, which must have a route, in a variant (dialect, zone). None: it is not cached."""
        found = self._bodies.find((topic, variant))
        return found.data if found is not None and found.revision == self._revisions[topic] else None

    def put_body(self, topic: str, variant: Hashable, revision: int, data: bytes) -> None:
        """Store the encoded route of ``topic`` as it was when the topic had this revision."""
        self._bodies.put((topic, variant), Body(revision, data), len(data) + len(topic) + ENTRY_OVERHEAD_BYTES)
        self._count()

    def remember(self, data: bytes, start: int, end: int, topic: str, parts: AnswerParts) -> None:
        """Store ``parts`` for frames equal to ``data[start:end]`` except for the opaque, if its place is certain."""
        cut = cut_frame(data, start, end) if end - start <= REQUEST_MAX_BYTES else None
        if cut is None:
            return
        head, digits, tail = cut
        if not data[start + 4] and not opaque_is_certain(head[FRAME_PREFIX_BYTES:], tail):
            return
        header_bytes = len(parts.before) + digits + len(parts.after)
        before = frame_prefix(header_bytes, len(parts.body), parts.serialize_type) + parts.before
        after = parts.after + parts.body
        entry = (topic, self._revisions.get(topic), len(head), digits, tail, len(tail), before, after)
        holder = self._prepared.find(head)
        key = head if holder is None or holder[4] == tail else (head, tail)
        self._prepared.put(key, entry, 2 * len(head) + len(tail) + len(before) + len(after) + ENTRY_OVERHEAD_BYTES)
        self._count()

    def answer(self, connection: object, data: bytes, start: int, pieces: list[bytes]) -> int:
        """Answer frames from ``start`` on while each has a valid prepared answer: append pieces of answer frames and return the
        position of the first frame without one. Stops after ``HITS_PER_CALL`` answers, or after one large answer. Ignores
        ``connection``."""
        if self.is_off or (self._settings.need_wait_for_service and not self.is_ready()):
            return start
        size = len(data)
        young, revisions = self._prepared.young, self._revisions
        hits = misses = 0
        while start < size and hits < HITS_PER_CALL:
            opening = data.find(MARK, start, start + HEAD_MAX_BYTES) + MARK_BYTES
            head = data[start:opening]
            found = young.get(head)
            if found is not None:
                topic, revision, head_bytes, digits, tail, tail_bytes, before, after = found
                closing = opening + digits
                if not data.startswith(tail, closing):
                    closing = data.find(b",", opening, opening + DIGITS_MAX + 1)
                    found = young.get((head, data[closing : start + 4 + LENGTH_AT(data, start)[0]]))
                    if found is not None:
                        topic, revision, head_bytes, digits, tail, tail_bytes, before, after = found
            if found is None:
                found = self._find(data, start)
                if found is None:
                    break
                topic, revision, head_bytes, digits, tail, tail_bytes, before, after = found
                opening = start + head_bytes
                closing = opening + digits
            opaque = data[opening:closing]
            if revisions.get(topic) != revision:
                break
            if (not opaque.isdigit() or opaque[0] == 48) and not data[start + 4]:
                break
            pieces += (before, opaque, after)
            hits += 1
            if revision is None:
                misses += 1
            start = closing + tail_bytes
            if len(after) > LARGE_ANSWER_BYTES:
                break
        self._metrics.fast_path_hits += hits
        if misses:
            self._metrics.fast_path_misses += misses
        return start

    def _find(self, data: bytes, start: int) -> Prepared | None:
        """The prepared answer of the frame at ``start``, found by (head) or (head, tail). ``answer`` itself first tries the usual
        case."""
        if len(data) - start < LEAST_BYTES:
            return None
        end = start + 4 + LENGTH_AT(data, start)[0]
        if not start + LEAST_BYTES <= end <= min(len(data), start + REQUEST_MAX_BYTES):
            return None
        cut = cut_frame(data, start, end)
        if cut is None:
            return None
        head, _, tail = cut
        found = self._prepared.find(head)
        if found is not None and found[4] == tail:
            return found
        return self._prepared.find((head, tail))

    def _count(self) -> None:
        self._metrics.answer_cache_bytes = self._bodies.size_bytes + self._prepared.size_bytes
        self._metrics.answer_cache_evictions = self._bodies.evictions + self._prepared.evictions


def cut_frame(data: bytes, start: int, end: int) -> tuple[bytes, int, bytes] | None:
    """The frame around its opaque: (head, bytes of the opaque, tail). None if the frame does not have the usual form.

    The length field is part of the head, so a head determines the number of digits after it.
    """
    if data[start + 4]:
        opening, digits = start + BINARY_OPAQUE, 4
    else:
        opening = data.find(MARK, start, min(end, start + HEAD_MAX_BYTES)) + MARK_BYTES
        opaque = data[opening : data.find(b",", opening, end)]
        digits = len(opaque)
        if opening < start + MARK_BYTES or not opaque.isdigit() or digits > DIGITS_MAX or opaque[0] == 48:
            return None
    return data[start:opening], digits, data[opening + digits : end]

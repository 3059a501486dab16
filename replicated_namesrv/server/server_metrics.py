"""Counters of the remoting server: plain integers that are cheap on the hot path.

This module does not depend on a metrics library. A request costs one addition. The admin side reads the attributes when it
is scraped. All numbers only increase, except gauges.
"""

from replicated_namesrv.histogram import Histogram

LATENCY_BOUNDS_NS = tuple(
    int(seconds * 1e9) for seconds in (25e-6, 50e-6, 1e-4, 25e-5, 5e-4, 1e-3, 25e-4, 5e-3, 1e-2, 25e-3, 5e-2, 0.1, 0.25, 1.0, 5.0)
)
"""Upper bounds of the latency buckets in nanoseconds. One more bucket counts latencies above the last bound."""


class ServerMetrics:
    """Counts since the process started."""

    __slots__ = (
        "answer_cache_bytes",
        "answer_cache_evictions",
        "answered",
        "bytes_in",
        "bytes_out",
        "connections_accepted",
        "connections_closed",
        "connections_open",
        "fast_path_hits",
        "fast_path_misses",
        "fast_path_observed",
        "held_bytes",
        "latency",
        "limits_hit",
        "pending_requests",
        "pushes",
        "reads",
        "reads_at_once",
        "registration_memo_hits",
        "registration_memo_misses",
        "requests",
        "tls_failures",
        "tls_handshakes",
        "tls_reload_failures",
        "tls_reloads",
        "unexpected_errors",
    )

    def __init__(self) -> None:
        self.requests: dict[tuple[int, int | None], int] = {}
        """Number of requests by (request code, response code). Response code None: the request was oneway, or the connection was
        closed without an answer. Fast-path requests are not included: see ``request_counts``."""
        self.answered = 0
        """Number of requests of the general path that were answered in the turn of the loop in which they arrived."""
        self.fast_path_hits = 0
        """Number of route queries answered with a prepared answer."""
        self.fast_path_observed = 0
        """Number of fast-path hits that are counted in ``latency``."""
        self.fast_path_misses = 0
        """Number of fast-path hits that were answered with "no such topic" (code 17)."""
        self.latency = Histogram(LATENCY_BOUNDS_NS)
        """Nanoseconds from the read that completed a request's frame until its answer was passed to the connection. If several
        requests came in one read and were answered together, each counts with the time of all of them."""
        self.connections_accepted = 0
        self.connections_open = 0
        """Gauge: connections that are open now."""
        self.connections_closed: dict[str, int] = {}
        """Number of closed connections by ``CloseReason``."""
        self.bytes_in = 0
        self.bytes_out = 0
        """Payload bytes passed to connections, before TLS."""
        self.limits_hit: dict[str, int] = {}
        """Number of times that a limit was reached, by the name of the limit."""
        self.pending_requests = 0
        """Gauge: requests that were accepted and not yet answered."""
        self.held_bytes = 0
        """Gauge: bytes held for incomplete frames and for peers that do not read."""
        self.tls_handshakes = 0
        self.tls_failures = 0
        self.tls_reloads = 0
        self.tls_reload_failures = 0
        self.answer_cache_bytes = 0
        """Gauge: size of the cache of answers."""
        self.answer_cache_evictions = 0
        self.registration_memo_hits = 0
        self.registration_memo_misses = 0
        self.pushes: dict[str, int] = {}
        """Number of pushes (``NOTIFY_MIN_BROKER_ID_CHANGE``, 905) by outcome: sent, failed, dropped."""
        self.reads: dict[str, int] = {}
        """Number of reads answered, by the level of the answer (``service.ReadLevel``, ``local`` on an independent node).
        Fast-path reads are included only if ``reads_at_once`` is not set: see ``read_counts``."""
        self.reads_at_once = ""
        """The level of all fast-path answers, if they always have the same level; else empty."""
        self.unexpected_errors: dict[str, int] = {}
        """Number of unexpected exceptions by class name. Each of these requests was answered with code 1."""

    def count_request(self, code: int, response_code: int | None) -> None:
        """Count a request of the general path that has ended."""
        key = (code, response_code)
        self.requests[key] = self.requests.get(key, 0) + 1

    def observe_fast_path(self, elapsed_ns: int) -> None:
        """Add a latency that counts for all fast-path requests since the last call."""
        self.latency.observe(elapsed_ns, self.fast_path_hits - self.fast_path_observed)
        self.fast_path_observed = self.fast_path_hits

    def request_counts(self) -> dict[tuple[int, int | None], int]:
        """The counts in ``requests`` plus those of the fast path."""
        counts = dict(self.requests)
        for code, count in ((0, self.fast_path_hits - self.fast_path_misses), (17, self.fast_path_misses)):
            if count:
                counts[105, code] = counts.get((105, code), 0) + count
        return counts

    def count_reads(self, level: str, count: int = 1) -> None:
        """Count reads answered at this level."""
        self.reads[level] = self.reads.get(level, 0) + count

    def read_counts(self) -> dict[str, int]:
        """The counts in ``reads`` plus those of the fast path."""
        counts = dict(self.reads)
        if self.reads_at_once:
            counts[self.reads_at_once] = counts.get(self.reads_at_once, 0) + self.fast_path_hits
        return counts

    def hit_limit(self, name: str) -> None:
        """A limit caused a refusal or closed a connection."""
        self.limits_hit[name] = self.limits_hit.get(name, 0) + 1

"""Counters of the remoting server: plain integers that the hot path can afford, read by whoever exports them.

Nothing here knows of a metrics library. The admin layer reads the attributes when it is scraped; between two scrapes a
request costs an addition. All numbers only grow, except those that ``Gauges`` names.
"""

from bisect import bisect_left

LATENCY_BOUNDS_NS = tuple(
    int(seconds * 1e9) for seconds in (25e-6, 50e-6, 1e-4, 25e-5, 5e-4, 1e-3, 25e-4, 5e-3, 1e-2, 25e-3, 5e-2, 0.1, 0.25, 1.0, 5.0)
)
"""Upper bounds of the latency buckets in nanoseconds; one more bucket counts what is beyond."""


class Histogram:
    """Counts per latency bucket and the sum, nanoseconds."""

    __slots__ = ("counts", "sum_ns")

    def __init__(self) -> None:
        self.counts = [0] * (len(LATENCY_BOUNDS_NS) + 1)
        self.sum_ns = 0

    def observe(self, elapsed_ns: int, count: int = 1) -> None:
        """Count ``count`` requests that took ``elapsed_ns`` each."""
        self.counts[bisect_left(LATENCY_BOUNDS_NS, elapsed_ns)] += count
        self.sum_ns += elapsed_ns * count


class ServerMetrics:
    """What the server counted since the process started."""

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
        "general_path_requests",
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
        """(request code, response code) to count; response code None: oneway, or closed without an answer. Requests
        answered on the fast path are not in it: see ``request_counts``."""
        self.answered = 0
        """Requests of the general path answered in the turn of the loop in which they came."""
        self.fast_path_hits = 0
        """Route queries answered from a prepared answer."""
        self.fast_path_observed = 0
        """Of these, how many ``latency`` has."""
        self.fast_path_misses = 0
        """Those among them that were answered with "no such topic" (code 17)."""
        self.general_path_requests = 0
        self.latency = Histogram()
        """From the read that completed a request's frame until its answer was handed to the connection. Requests that came
        in one read and were answered together are counted with the time that all of them took."""
        self.connections_accepted = 0
        self.connections_open = 0
        """Gauge."""
        self.connections_closed: dict[str, int] = {}
        """By ``CloseReason``."""
        self.bytes_in = 0
        self.bytes_out = 0
        """Payload bytes handed to connections, before TLS."""
        self.limits_hit: dict[str, int] = {}
        """By name of the limit."""
        self.pending_requests = 0
        """Gauge: accepted, not yet answered."""
        self.held_bytes = 0
        """Gauge: bytes held for incomplete frames and for peers that do not read."""
        self.tls_handshakes = 0
        self.tls_failures = 0
        self.tls_reloads = 0
        self.tls_reload_failures = 0
        self.answer_cache_bytes = 0
        """Gauge."""
        self.answer_cache_evictions = 0
        self.registration_memo_hits = 0
        self.registration_memo_misses = 0
        self.pushes: dict[str, int] = {}
        """Code 905 by outcome: sent, failed, dropped."""
        self.reads: dict[str, int] = {}
        """Reads answered, by the level they got (``service.ReadLevel``, ``local`` on an independent node). Those of the fast path
        are in it only where ``reads_at_once`` is not set: see ``read_counts``."""
        self.reads_at_once = ""
        """Level of every answer of the fast path, where that is always the same."""
        self.unexpected_errors: dict[str, int] = {}
        """Exceptions that nobody expected, by class name; each answered with code 1."""

    def count_request(self, code: int, response_code: int | None) -> None:
        """One request of the general path came to its end."""
        key = (code, response_code)
        self.requests[key] = self.requests.get(key, 0) + 1

    def observe_fast_path(self, elapsed_ns: int) -> None:
        """A sample: stands for all requests of the fast path since the last one."""
        self.latency.observe(elapsed_ns, self.fast_path_hits - self.fast_path_observed)
        self.fast_path_observed = self.fast_path_hits

    def request_counts(self) -> dict[tuple[int, int | None], int]:
        """``requests`` with the fast path's added."""
        counts = dict(self.requests)
        for code, count in ((0, self.fast_path_hits - self.fast_path_misses), (17, self.fast_path_misses)):
            if count:
                counts[105, code] = counts.get((105, code), 0) + count
        return counts

    def count_reads(self, level: str, count: int = 1) -> None:
        """Reads that were answered at this level."""
        self.reads[level] = self.reads.get(level, 0) + count

    def read_counts(self) -> dict[str, int]:
        """``reads`` with the fast path's added."""
        counts = dict(self.reads)
        if self.reads_at_once:
            counts[self.reads_at_once] = counts.get(self.reads_at_once, 0) + self.fast_path_hits
        return counts

    def hit_limit(self, name: str) -> None:
        """A limit refused or closed something."""
        self.limits_hit[name] = self.limits_hit.get(name, 0) + 1

"""Prometheus metrics, computed at scrape time from the node's counters.

Counting a request costs the server one addition. Names, labels and families are only built here during a scrape, from a few
hundred numbers at most. ``METRICS`` is the catalogue: name, type, labels, meaning.
"""

from collections.abc import Iterator, Mapping
from time import monotonic
from typing import NamedTuple

from aiohttp import web
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder

from replicated_namesrv import __version__
from replicated_namesrv.admin.certificates import Certificates
from replicated_namesrv.admin.context import AdminContext
from replicated_namesrv.admin.watch import Watchers
from replicated_namesrv.histogram import Histogram
from replicated_namesrv.routes.history import REMOVALS
from replicated_namesrv.service import UNKNOWN_AGE
from replicated_namesrv.wire.codes import RequestCode, ResponseCode

PREFIX = "namesrv_"


class Declared(NamedTuple):
    """One line of the catalogue; counters get ``_total`` appended."""

    kind: type[CounterMetricFamily] | type[GaugeMetricFamily] | type[HistogramMetricFamily]
    meaning: str
    labels: tuple[str, ...] = ()


COUNTER, GAUGE, HISTOGRAM = CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

OF_REPLICATION: dict[str, Declared] = {
    "fences": Declared(COUNTER, "Number of times that the node fenced itself."),
    "renewals": Declared(
        COUNTER,
        "Renewals that brokers sent to this node, by the leader's answer. failed: no leader answered; differs: the leader has "
        "another state; removing: the leader has proposed to remove the broker. After differs or removing, a "
        "registration goes through the log, and a query of the data version (322) is sent to the leader again.",
        ("outcome",),
    ),
    "raft_role": Declared(
        GAUGE,
        "1 for the role that the node has: leader, candidate, follower, learner, observer or removed.",
        ("role",),
    ),
    "raft_term": Declared(GAUGE, "Current term."),
    "raft_has_leader": Declared(GAUGE, "1 while the node knows the leader of its term."),
    "raft_leader_changes": Declared(COUNTER, "Number of times that the node learned of a new leader."),
    "raft_elections": Declared(
        COUNTER,
        "Elections in which this node was a candidate, by cause. timeout: no contact with a leader; transfer: the leader "
        "transferred leadership.",
        ("cause",),
    ),
    "raft_elections_won": Declared(COUNTER, "Elections that this node won."),
    "raft_pre_votes": Declared(
        COUNTER, "Pre-votes: election time-outs after which this node asked the others whether it could win an election."
    ),
    "raft_step_downs": Declared(
        COUNTER,
        "Number of times that this node stepped down, by cause. newer_term: another node is leader or candidate in a newer term; "
        "no_majority: too few nodes answered, or its own disk hung.",
        ("cause",),
    ),
    "raft_lease_valid": Declared(GAUGE, "1 while the node is leader and may answer reads without asking a majority."),
    "raft_lease_renewals": Declared(COUNTER, "Number of times that a read renewed the leader's lease."),
    "raft_read_index_batch_size": Declared(
        HISTOGRAM,
        "Number of reads that one confirmation serves. The leader asks the other nodes for it, a follower asks the leader. "
        "The count of the histogram is the number of confirmations that were asked for. If answers to heartbeats "
        "confirm a read, it asks for no confirmation, and is not included.",
    ),
    "raft_reads_pending": Declared(GAUGE, "Reads that wait for a confirmed index."),
    "raft_commit_index": Declared(GAUGE, "Index of the newest log entry that the node knows to be committed."),
    "raft_applied_index": Declared(GAUGE, "Index of the newest log entry that is applied to the state."),
    "raft_last_index": Declared(GAUGE, "Index of the newest log entry."),
    "raft_durable_index": Declared(GAUGE, "Index of the newest log entry that is on this node's disk."),
    "raft_log_bytes": Declared(GAUGE, "Size of the log files."),
    "raft_proposals": Declared(COUNTER, "Proposals made at this node, by outcome: committed, rejected, unknown.", ("outcome",)),
    "raft_proposals_pending": Declared(GAUGE, "Proposals of this node that have no outcome yet."),
    "raft_fsync_duration_seconds": Declared(HISTOGRAM, "Duration of a sync of the log."),
    "raft_commit_duration_seconds": Declared(HISTOGRAM, "Time from a proposal at this node until it is applied here."),
    "raft_disk_stalls": Declared(COUNTER, "Number of times that a sync took so long that the disk counted as failed."),
    "raft_snapshot_bytes": Declared(GAUGE, "Size of the newest snapshot; 0: there is none."),
    "raft_snapshot_duration_seconds": Declared(HISTOGRAM, "Time to take and write a snapshot of the node's state."),
    "raft_snapshots_installed": Declared(COUNTER, "Number of times that a snapshot from the leader replaced the state."),
    "raft_snapshots_failed": Declared(COUNTER, "Snapshots that could not be written or read."),
    "raft_digests_compared": Declared(COUNTER, "Comparisons of this node's digest with those of other nodes."),
    "raft_digest_mismatches": Declared(COUNTER, "Comparisons in which the digests differed."),
    "raft_digest_dissent": Declared(GAUGE, "1 while digests differ and no digest has a majority: no write is accepted."),
    "raft_peer_connected": Declared(GAUGE, "1 while the connection from this node to the peer is open.", ("peer",)),
    "raft_peer_match_index": Declared(
        GAUGE, "On the leader: index of the newest entry that the follower has on disk.", ("peer",)
    ),
    "raft_peer_lag_entries": Declared(
        GAUGE, "On the leader: number of entries that the follower does not have on disk yet.", ("peer",)
    ),
    "raft_peer_last_contact_seconds": Declared(
        GAUGE,
        "On the leader: age of the newest message that the follower has answered. On a follower: time since the last message "
        "from the leader; other peers have no sample.",
        ("peer",),
    ),
}
"""Metrics that exist with ``mode=cp`` only; in AP they have no samples."""

METRICS: dict[str, Declared] = {
    "info": Declared(GAUGE, "Always 1. The labels give version, mode and node id.", ("version", "mode", "node_id")),
    "uptime_seconds": Declared(GAUGE, "Seconds since the node was started."),
    "ready": Declared(GAUGE, "1 while the node listens on the RocketMQ port."),
    "fenced": Declared(
        GAUGE, "1 while the node is fenced: it has received no confirmed read index for fenceAfterMs, or was removed (mode=cp)."
    ),
    "answers_stale": Declared(
        GAUGE, "1 while the node gives stale answers because it has no majority (noQuorumPolicy=serve-stale)."
    ),
    "staleness_seconds": Declared(
        GAUGE,
        "Age of the state in seconds: it contains every change that was acknowledged at least this long ago. -1: unknown "
        "(mode=ap, or starting).",
    ),
    "unsynced_seconds": Declared(GAUGE, "Age of the oldest write that is not on disk yet; 0: none (mode=cp)."),
    "requests": Declared(
        COUNTER,
        "Requests, by response code. A request counts when its answer is ready. none: it ended without an answer, or is oneway. "
        "mode=cp: a route query with a cached answer that the node cannot confirm does not count; its connection is closed.",
        ("request", "outcome"),
    ),
    "request_duration_seconds": Declared(
        HISTOGRAM, "Time from the last byte of a request to the hand-over of its answer to the connection."
    ),
    "requests_pending": Declared(GAUGE, "Requests accepted and not yet answered."),
    "reads": Declared(COUNTER, "Reads answered on the RocketMQ port, by the read level of the answer.", ("level",)),
    "fast_path_requests": Declared(COUNTER, "Route queries answered from the cache of encoded answers."),
    "connections": Declared(GAUGE, "Open connections on the RocketMQ port."),
    "connections_accepted": Declared(COUNTER, "Connections accepted on the RocketMQ port."),
    "connections_closed": Declared(COUNTER, "Connections on the RocketMQ port that ended, by reason.", ("reason",)),
    "received_bytes": Declared(COUNTER, "Bytes received on the RocketMQ port, before decryption."),
    "sent_bytes": Declared(COUNTER, "Bytes sent on the RocketMQ port, before encryption."),
    "held_bytes": Declared(GAUGE, "Bytes in memory for incomplete requests and unread answers."),
    "limits_hit": Declared(COUNTER, "Refused requests and closed connections, by the limit that was reached.", ("limit",)),
    "tls_handshakes": Declared(COUNTER, "TLS handshakes, by outcome.", ("outcome",)),
    "tls_reloads": Declared(COUNTER, "Reloads of private key and certificate, by outcome.", ("outcome",)),
    "route_cache_bytes": Declared(GAUGE, "Bytes of encoded route answers in memory; limited by routeCacheBytes."),
    "route_cache_evictions": Declared(COUNTER, "Encoded route answers evicted to make room."),
    "registrations_unchanged": Declared(COUNTER, "Registrations that were recognised as unchanged and not decoded."),
    "registrations_decoded": Declared(COUNTER, "Registrations that were decoded."),
    "pushes": Declared(COUNTER, "Pushes of NOTIFY_MIN_BROKER_ID_CHANGE (905) to brokers, by outcome.", ("outcome",)),
    "unexpected_errors": Declared(COUNTER, "Unexpected errors, by class. Each is in the log.", ("error",)),
    "brokers": Declared(GAUGE, "Registered brokers."),
    "broker_groups": Declared(GAUGE, "Registered broker names."),
    "clusters": Declared(GAUGE, "Broker clusters."),
    "topics": Declared(GAUGE, "Topics with a route."),
    "kv_entries": Declared(GAUGE, "Entries of the KV config, over all namespaces."),
    "bounded_bytes": Declared(GAUGE, "Bytes in use, by the setting that limits them.", ("limit",)),
    "bounded_bytes_limit": Declared(GAUGE, "Limit of namesrv_bounded_bytes, by the setting.", ("limit",)),
    "disk_free_bytes": Declared(GAUGE, "Free bytes on the disk to which the node writes its state."),
    "disk_short": Declared(GAUGE, "1 while writes that add data are refused for lack of disk space (diskReserveBytes)."),
    "revision": Declared(GAUGE, "Revision of the state. Each change increases it by one."),
    "brokers_expired": Declared(COUNTER, "Brokers removed because they made no contact within their time-out."),
    "brokers_suspected": Declared(GAUGE, "Brokers without contact for a third of their time-out or more (mode=cp)."),
    "brokers_lost": Declared(COUNTER, "Brokers removed because their connections ended."),
    "changes": Declared(
        COUNTER, "Changes of the state since the node began to serve, by kind of the event in /v1/watch.", ("kind",)
    ),
    "broker_removals": Declared(
        COUNTER, "Brokers removed since the node began to serve, by cause: unregistered, expired or lost.", ("cause",)
    ),
    "certificate_expiry_timestamp_seconds": Declared(
        GAUGE,
        "Earliest expiry of all certificates in the file, by port: remoting, admin, peer. 0: the file cannot be read. No "
        "sample if the port has no file in the settings.",
        ("port",),
    ),
    "loop_lag_seconds": Declared(HISTOGRAM, "Delays of the event loop."),
    "loop_lag_recent_max_seconds": Declared(GAUGE, "Largest delay of the event loop in the last 10 to 20 seconds."),
    "peer_refusals": Declared(
        COUNTER,
        "Connections and messages from peers that were refused, by reason. connection: closed because of an error of the peer, "
        "or because too many were not authenticated; frame: closed because of a wrong MAC; certificate: this node's TLS files "
        "could not be loaded; term: a message with an impossibly high term; message: a message that no node sends.",
        ("what",),
    ),
    "admin_connections_refused": Declared(COUNTER, "Connections to the admin port that were closed because there were too many."),
    "access_refusals": Declared(
        COUNTER,
        "Requests without permission, by request and outcome: refused or observed (accessPolicy). With observe, only the "
        "first read of a connection counts.",
        ("request", "outcome"),
    ),
    "access_reloads": Declared(COUNTER, "Reloads of the access file, by outcome.", ("outcome",)),
    "audit_lines_lost": Declared(COUNTER, "Lines that the audit log could not write."),
    "watchers": Declared(GAUGE, "Open streams of /v1/watch."),
    "watchers_too_slow": Declared(COUNTER, "Streams of /v1/watch that were closed because the watcher read too slowly."),
    **OF_REPLICATION,
}
"""Every metric of this module. Process metrics (``process_resident_memory_bytes``, ``process_cpu_seconds_total``, …) come from
prometheus_client."""


LOOK_UP_OUTCOMES = ("SUCCESS", "TOPIC_NOT_EXIST", "SYSTEM_ERROR", "SYSTEM_BUSY", "NONE")
"""Outcomes of route queries that have a sample from the start. Prometheus does not see the first increase of a series that did
not exist before, so the first errors would be missing in the objective for look-ups (docs/slo.md)."""


def family(name: str) -> Metric:
    """An empty metric family, as declared in the catalogue."""
    declared = METRICS.get(name)
    if declared is None:
        raise LookupError(f"metric {name}: declare it in METRICS or OF_REPLICATION of admin/exposition.py")
    return declared.kind(PREFIX + name, declared.meaning, labels=declared.labels)


def _single(name: str, value: float) -> Metric:
    metric = family(name)
    metric.add_metric((), value)  # type: ignore[attr-defined]  # of the subclass
    return metric


def _by_label(name: str, values: Mapping[str, float]) -> Metric:
    metric = family(name)
    for label, value in values.items():
        metric.add_metric((label,), value)  # type: ignore[attr-defined]  # of the subclass
    return metric


def _buckets(histogram: Histogram, unit: float) -> list[tuple[str, int]]:
    below, buckets = 0, []
    for bound, count in zip((*histogram.bounds, None), histogram.counts, strict=True):
        below += count
        buckets.append(("+Inf" if bound is None else f"{bound / unit:g}", below))
    return buckets


def _histogram(name: str, histogram: Histogram, unit: float = 1e9) -> Metric:
    """A histogram metric. ``unit``: the values are divided by this, for example by 1e9 for nanoseconds."""
    metric = family(name)
    metric.add_metric((), _buckets(histogram, unit), histogram.sum / unit)  # type: ignore[attr-defined]  # of the subclass
    return metric


def request_name(code: int) -> str:
    """RocketMQ's name of a request code. All unknown codes share one name, so that clients cannot invent label values."""
    try:
        return RequestCode(code).name
    except ValueError:
        return "UNKNOWN"


def outcome_name(code: int | None) -> str:
    """RocketMQ's name of a response code; NONE if there was no answer."""
    if code is None:
        return "NONE"
    try:
        return ResponseCode(code).name
    except ValueError:
        return "OTHER"


class NodeCollector:
    """Turns a node's counters into metric families. The admin server counts in ``admin_connections_refused``."""

    def __init__(self, context: AdminContext, watchers: Watchers) -> None:
        self._context, self._watchers = context, watchers
        self._certificates = Certificates(context.settings)
        self.admin_connections_refused = 0

    def describe(self) -> Iterator[Metric]:
        """Names only, so that registering the collector does not collect samples."""
        return (family(name) for name in METRICS)

    def collect(self) -> Iterator[Metric]:
        """All families of the catalogue."""
        yield from self._node()
        yield from self._requests()
        yield from self._connections()
        yield from self._state()
        yield from self._replication()

    def _node(self) -> Iterator[Metric]:
        context = self._context
        info = family("info")
        info.add_metric((__version__, context.settings.mode, context.settings.node_id), 1)  # type: ignore[attr-defined]  # of the subclass
        yield info
        yield _single("uptime_seconds", monotonic() - context.started_monotonic_s)
        yield _single("ready", int(context.remoting.is_listening))
        service = context.service
        yield _single("fenced", int(service.fenced))
        yield _single("answers_stale", int(service.answers_stale))
        yield _single("staleness_seconds", service.staleness_ms / 1000 if service.staleness_ms != UNKNOWN_AGE else UNKNOWN_AGE)
        yield _single("unsynced_seconds", service.unsynced_ms / 1000)
        yield _histogram("loop_lag_seconds", context.loop_lag.histogram)
        yield _single("loop_lag_recent_max_seconds", context.loop_lag.recent_max_s)
        yield _by_label("peer_refusals", service.peer_refusals)
        yield _single("admin_connections_refused", self.admin_connections_refused)
        yield from self._access()
        yield _single("watchers", self._watchers.count)
        yield _single("watchers_too_slow", self._watchers.too_slow_count)

    def _access(self) -> Iterator[Metric]:
        access = self._context.access
        refusals = family("access_refusals")
        for key, count in ({} if access is None else access.refusals).items():
            refusals.add_metric(key, count)  # type: ignore[attr-defined]  # of the subclass
        yield refusals
        done, failed = (0, 0) if access is None else (access.reloads, access.reload_failures)
        yield _by_label("access_reloads", {"done": done, "failed": failed})
        yield _single("audit_lines_lost", 0 if access is None or access.audit is None else access.audit.lost)

    def _requests(self) -> Iterator[Metric]:
        metrics = self._context.remoting.metrics
        by_name = {(RequestCode.GET_ROUTEINFO_BY_TOPIC.name, outcome): 0 for outcome in LOOK_UP_OUTCOMES}
        for (code, response_code), count in metrics.request_counts().items():
            key = request_name(code), outcome_name(response_code)
            by_name[key] = by_name.get(key, 0) + count
        requests = family("requests")
        for key, count in by_name.items():
            requests.add_metric(key, count)  # type: ignore[attr-defined]  # of the subclass
        yield requests
        yield _histogram("request_duration_seconds", metrics.latency)
        yield _single("requests_pending", metrics.pending_requests)
        yield _by_label("reads", metrics.read_counts())
        yield _single("fast_path_requests", metrics.fast_path_hits)
        yield _single("registrations_unchanged", metrics.registration_memo_hits)
        yield _single("registrations_decoded", metrics.registration_memo_misses)
        yield _single("route_cache_bytes", metrics.answer_cache_bytes)
        yield _single("route_cache_evictions", metrics.answer_cache_evictions)
        yield _by_label("pushes", metrics.pushes)
        yield _by_label("unexpected_errors", metrics.unexpected_errors)
        yield _by_label("limits_hit", {**metrics.limits_hit, **self._context.service.quotas.refused})

    def _connections(self) -> Iterator[Metric]:
        metrics = self._context.remoting.metrics
        yield _single("connections", metrics.connections_open)
        yield _single("connections_accepted", metrics.connections_accepted)
        yield _by_label("connections_closed", metrics.connections_closed)
        yield _single("received_bytes", metrics.bytes_in)
        yield _single("sent_bytes", metrics.bytes_out)
        yield _single("held_bytes", metrics.held_bytes)
        yield _by_label("tls_handshakes", {"done": metrics.tls_handshakes, "failed": metrics.tls_failures})
        yield _by_label("tls_reloads", {"done": metrics.tls_reloads, "failed": metrics.tls_reload_failures})
        yield _by_label("certificate_expiry_timestamp_seconds", self._certificates.expiries())

    def _state(self) -> Iterator[Metric]:
        service = self._context.service
        state = service.state
        registrations = state.registrations()
        yield _single("brokers", len(registrations))
        yield _single("broker_groups", len({registration.broker_name for registration in registrations}))
        yield _single("clusters", len({registration.cluster_name for registration in registrations}))
        yield _single("topics", len(state.topic_revisions))
        yield _single("kv_entries", sum(map(len, state.kv_table().values())))
        quotas = service.quotas
        used = quotas.used(state.sizes)
        yield _by_label("bounded_bytes", used)
        yield _by_label("bounded_bytes_limit", {bound: limit() for bound, limit in quotas.limits.items() if bound in used})
        if service.disk_free_bytes is not None:
            yield _single("disk_free_bytes", service.disk_free_bytes)
        yield _single("disk_short", int(service.disk_warning is not None))
        yield _single("revision", state.revision)
        yield _single("brokers_expired", service.expired_count)
        yield _single("brokers_suspected", len(service.suspected_since()))
        yield _single("brokers_lost", service.lost_count)
        yield _by_label("changes", service.history.counts)
        removed = {kind.removeprefix("broker-"): service.history.removed[kind] for kind in REMOVALS}
        yield _by_label("broker_removals", removed)

    def _replication(self) -> Iterator[Metric]:
        families = {name: family(name) for name in OF_REPLICATION}
        for name, value, labels in self._context.service.measurements():
            if isinstance(value, Histogram):
                families[name].add_metric(labels, _buckets(value, 1), value.sum)  # type: ignore[attr-defined]  # of the subclass
            else:
                families[name].add_metric(labels, value)  # type: ignore[attr-defined]  # of the subclass
        yield from families.values()


class Exposition:
    """Renders all metrics in the format that the scraper asks for."""

    def __init__(self, context: AdminContext, watchers: Watchers) -> None:
        self.collector = NodeCollector(context, watchers)
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self.collector)
        ProcessCollector(registry=self._registry)

    def render(self, accept: str) -> tuple[bytes, str]:
        """(body, content type) for an Accept header."""
        encoder, content_type = choose_encoder(accept)
        return encoder(self._registry), content_type


EXPOSITION = web.AppKey("exposition", Exposition)

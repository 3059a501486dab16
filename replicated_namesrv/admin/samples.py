"""Samples: the node's metrics over the last 24 hours, for charts. ``GET /v1/samples``.

Two rings of fixed size: one hour at ``FINE_STEP_S`` and 24 hours at ``COARSE_STEP_S`` (means). The values are taken from the
metrics that ``/metrics`` shows: counters as rates, histograms as quantiles of the values since the previous sample.
"""

import asyncio
import math
import resource
from array import array
from collections.abc import Callable, Iterable, Mapping
from time import monotonic
from typing import NamedTuple

from aiohttp import web
from prometheus_client.core import Metric

from replicated_namesrv.admin.responses import json_response
from replicated_namesrv.errors import BodyError

FINE_STEP_S, FINE_COUNT = 2.0, 1_800
COARSE_STEP_S, COARSE_COUNT = 60.0, 1_440
SERIES_MAX = 64
"""Maximum number of series; further ones are not recorded. All series together use at most 1.7 MB."""
QUANTILES = (0.5, 0.99)
GAUGES = {
    "namesrv_connections": "connections",
    "namesrv_brokers": "brokers",
    "namesrv_topics": "topics",
    "namesrv_requests_pending": "pending",
    "namesrv_loop_lag_recent_max_seconds": "loopLagMax",
    "namesrv_raft_term": "term",
    "namesrv_raft_commit_index": "commitIndex",
    "namesrv_raft_applied_index": "appliedIndex",
}
"""Gauges that are recorded: for each metric, its series."""
COUNTERS = {
    "namesrv_limits_hit": "rejections",
    "namesrv_raft_elections": "elections",
    "namesrv_raft_leader_changes": "leaderChanges",
}
"""Counters that are recorded as a rate per second, summed over their labels: for each metric, its series."""
HISTOGRAMS = {
    "namesrv_request_duration_seconds": "latency",
    "namesrv_loop_lag_seconds": "loopLag",
    "namesrv_raft_commit_duration_seconds": "commit",
    "namesrv_raft_fsync_duration_seconds": "fsync",
}
"""Histograms that are recorded as quantiles: for each metric, the first part of the series' name. The second part is the
quantile."""
REQUESTS = "namesrv_requests"
"""The counter of requests. It is recorded as a rate per second in the series ``request:NAME``."""


class Ring:
    """The latest values of each series, one slot for each step of time."""

    def __init__(self, step_s: float, count: int) -> None:
        self.step_s, self.count = step_s, count
        self.series: dict[str, array[float]] = {}
        self.newest = -1
        """Number of the newest slot, in steps since 1970."""

    def put(self, slot: int, values: Mapping[str, float]) -> None:
        """Write the values of ``slot``. Slots that were left out, and series without a value, become NaN.

        A slot before the newest one means that the clock was set back: the slots after it are dropped."""
        if slot < self.newest:
            dropped = range(max(slot + 1, self.newest - self.count + 1), self.newest + 1)
            for values_of in self.series.values():
                for late in dropped:
                    values_of[late % self.count] = math.nan
            self.newest = slot
        first = max(self.newest + 1, slot - self.count + 1)
        for skipped in range(first, slot + 1):
            for values_of in self.series.values():
                values_of[skipped % self.count] = math.nan
        self.newest = max(self.newest, slot)
        for name, value in values.items():
            if name not in self.series:
                if len(self.series) >= SERIES_MAX:
                    continue
                self.series[name] = array("d", [math.nan]) * self.count
            self.series[name][slot % self.count] = value

    def slots(self, since_ms: int) -> range:
        """Slots after ``since_ms`` that may have values; all of them if ``since_ms`` is in the future."""
        after = int(since_ms / 1000 / self.step_s)
        if after > self.newest:  # the clock was set back after ``since_ms``
            after = 0
        return range(max(self.newest - self.count + 1, after + 1), self.newest + 1)


class _Before(NamedTuple):
    at_s: float
    counters: dict[str, float]
    buckets: dict[str, list[tuple[float, float]]]


class Samples:
    """Samples the metrics of ``collect`` between ``start`` and ``stop``."""

    def __init__(self, collect: Callable[[], Iterable[Metric]], wall_s: Callable[[], float]) -> None:
        self._collect, self._wall_s = collect, wall_s
        self.fine, self.coarse = Ring(FINE_STEP_S, FINE_COUNT), Ring(COARSE_STEP_S, COARSE_COUNT)
        self._before: _Before | None = None
        self._minute: dict[str, tuple[float, int]] = {}
        self._minute_slot = -1
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to sample; called on the node's loop."""
        self._timer = asyncio.get_running_loop().call_later(FINE_STEP_S, self._tick)

    def stop(self) -> None:
        """End sampling."""
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        self.start()
        self.sample()

    def sample(self) -> None:
        """Record the present values."""
        values = self._values()
        wall_s = self._wall_s()
        self.fine.put(int(wall_s / FINE_STEP_S), values)
        slot = int(wall_s / COARSE_STEP_S)
        if slot != self._minute_slot:
            self._minute, self._minute_slot = {}, slot
        for name, value in values.items():
            total, count = self._minute.get(name, (0.0, 0))
            self._minute[name] = (total + value, count + 1)
        self.coarse.put(slot, {name: total / count for name, (total, count) in self._minute.items()})

    def _values(self) -> dict[str, float]:
        now = _Before(monotonic(), {"cpu": _cpu_s()}, {})
        values: dict[str, float] = {"memory": _resident_bytes()}
        for metric in self._collect():
            if metric.name in GAUGES:
                values[GAUGES[metric.name]] = sum(sample.value for sample in metric.samples)
            elif metric.name in COUNTERS:
                now.counters[COUNTERS[metric.name]] = sum(s.value for s in metric.samples if s.name.endswith("_total"))
            elif metric.name == REQUESTS:
                for sample in metric.samples:
                    key = f"request:{sample.labels['request']}"
                    now.counters[key] = now.counters.get(key, 0.0) + sample.value
            elif metric.name in HISTOGRAMS:
                now.buckets[HISTOGRAMS[metric.name]] = [
                    (float(sample.labels["le"]), sample.value) for sample in metric.samples if sample.name.endswith("_bucket")
                ]
        before, self._before = self._before, now
        if before is not None:
            elapsed_s = max(now.at_s - before.at_s, 1e-3)
            for name, count in now.counters.items():
                values[name] = max(0.0, count - before.counters.get(name, 0.0)) / elapsed_s
            for name, buckets in now.buckets.items():
                for quantile, value in _quantiles(before.buckets.get(name, []), buckets):
                    values[f"{name}:{quantile:g}"] = value
        return values


def _quantiles(before: list[tuple[float, float]], now: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """(quantile, upper bound of its bucket) of the values counted since ``before``; empty if there were none. Values beyond the
    last bound count as this bound."""
    earlier = dict(before)
    counted = [(bound, total - earlier.get(bound, 0.0)) for bound, total in now]
    if not counted or counted[-1][1] <= 0:
        return []
    last = max((bound for bound, _ in counted if bound != math.inf), default=0.0)
    found = []
    for quantile in QUANTILES:
        bound = next(bound for bound, below in counted if below >= quantile * counted[-1][1])
        found.append((quantile, min(bound, last)))
    return found


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _resident_bytes() -> float:
    """Resident memory of this process; 0 if the system does not report it."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return float(int(file.read().split()[1]) * resource.getpagesize())
    except (OSError, ValueError, IndexError):
        return 0.0


SAMPLES = web.AppKey("samples", Samples)


async def samples(request: web.Request) -> web.Response:
    """``GET /v1/samples``: ``?span=hour`` (default) or ``day``. ``?since=`` (milliseconds since 1970) selects newer values."""
    span, since = request.query.get("span", "hour"), request.query.get("since", "0")
    if span not in ("hour", "day"):
        raise BodyError(f"span={span[:40]}: give hour or day")
    if not since.isascii() or not since.isdigit() or len(since) > 15:
        raise BodyError(f"since={since[:40]}: give milliseconds since 1970")
    recorded = request.app[SAMPLES]
    ring = recorded.fine if span == "hour" else recorded.coarse
    times, series = await values_since(ring, int(since))
    return json_response({"stepMs": int(ring.step_s * 1000), "timesMs": times, "series": series})


async def values_since(ring: Ring, since_ms: int) -> tuple[list[int], dict[str, list[float | None]]]:
    """The times of the slots after ``since_ms``, and the values of each series. Building them yields to other tasks, so they are
    copied first: the next sample takes the place of the oldest one."""
    slots, copied = ring.slots(since_ms), {name: values[:] for name, values in ring.series.items()}
    series = {}
    for name, values in copied.items():
        series[name] = [_shown(values[slot % ring.count]) for slot in slots]
        await asyncio.sleep(0)
    return [int(slot * ring.step_s * 1000) for slot in slots], series


def _shown(value: float) -> float | None:
    return None if math.isnan(value) else float(f"{value:.5g}")

"""Figures of single runs. Each row of the table ``PER_RUN`` (``schemas.py``) is one figure. Pure.

Figures of operations are computed per phase, side of the partition (majority, minority) and read level; ``all`` stands for all
values of one of these. Other figures, such as divergence, are computed for the whole run only.
``CATALOGUE`` names every figure with its number in DESIGN.md, its unit, and whether less is better.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple, TypeVar

from replicated_namesrv.spark.client_operations import ACCESS, ASKED, EACH, FAILOVER, PINNED, PROBE, ClientOperation
from replicated_namesrv.spark.survival import Survival
from replicated_namesrv.verify.divergence import DivergenceSegment

ALL = "all"


class Metric(NamedTuple):
    """The definition of a figure."""

    code: str
    title: str
    unit: str
    less_is_better: bool


_OF_HISTORIES = {
    "linearizable_keys": Metric("M1", "keys whose history is linearizable", "share", False),
    "unknown_keys": Metric("M1", "keys whose check exceeded its limits", "share", True),
    "anomalous_reads": Metric("M2", "reads that no order of the writes explains", "share", True),
    "window_median": Metric("M4", "inconsistency window of a write, median", "ms", True),
    "window_p99": Metric("M4", "inconsistency window of a write, 99th percentile", "ms", True),
    "window_max": Metric("M4", "inconsistency window of a write, longest", "ms", True),
    "fresh_reads": Metric("M5", "reads that see the last acknowledged write or a newer one", "share", False),
    "staleness_max": Metric("M5", "longest time that a read lagged behind an acknowledged write", "ms", True),
    "versions_behind_mean": Metric("M6", "acknowledged versions that a read had missed, mean", "versions", True),
    "versions_behind_max": Metric("M6", "acknowledged versions that a read had missed, most", "versions", True),
    "delta_max": Metric("M7", "largest Delta of a key", "ms", True),
    "conflict_share": Metric("M8", "pairs of writes in conflict (each comes before the other)", "share", True),
    "gamma_median": Metric("M8", "Gamma of conflicting pairs of writes, median", "ms", True),
    "gamma_p99": Metric("M8", "Gamma of conflicting pairs of writes, 99th percentile", "ms", True),
    "gamma_max": Metric("M8", "largest Gamma of a pair of writes", "ms", True),
    "read_your_writes": Metric("M10", "reads that miss what their client had written", "reads", True),
    "monotonic_reads": Metric("M10", "reads of an older value than their client had read before", "reads", True),
    "monotonic_writes": Metric("M10", "reads that show a writer's writes out of order", "reads", True),
    "writes_follow_reads": Metric("M10", "reads that show an effect without its cause", "reads", True),
    "lost_writes": Metric("M19", "keys per run whose final reads miss an acknowledged write", "keys", True),
    "resurrected": Metric(
        "M19", "keys per run whose final reads show a value that an acknowledged delete had removed", "keys", True
    ),
}
"""Figures of both kinds of history: the key-value store and the registrations. Delta (M7) and Gamma (M8) are the least shift and
the least widening of operations that make a history atomic (DESIGN.md)."""

_REQUESTS = {
    FAILOVER: "requests of fail-over clients", PINNED: "requests of pinned clients",
    EACH: "writes to each node", PROBE: "requests of the probe",
}  # fmt: skip  # items grouped by line

ROUTES = "route_"
"""Prefix of the names of figures of registration histories. In these histories a key is a topic, a read is a look-up, and a write
is a registration."""

NOT_OF_ROUTES = ("read_your_writes", "writes_follow_reads")
"""Brokers that register do not look up routes, so these guarantees cannot be violated."""


def _of_routes(metric: Metric) -> Metric:
    title = metric.title
    for kv, route in (
        ("keys", "topics"), ("key", "topic"), ("final reads", "final look-ups"), ("reads", "look-ups"), ("read ", "look-up "),
        ("writer", "broker"), ("writes", "registrations"), ("write", "registration"), ("delete ", "unregistration "),
    ):  # fmt: skip  # items grouped by line
        title = title.replace(kv, route)
    unit = {"keys": "topics", "reads": "look-ups"}.get(metric.unit, metric.unit)
    return metric._replace(title=title, unit=unit)


CATALOGUE = {
    **_OF_HISTORIES,
    **{ROUTES + name: _of_routes(metric) for name, metric in _OF_HISTORIES.items() if name not in NOT_OF_ROUTES},
    "equal_probes": Metric("M3", "probes to which all nodes that answered gave the same answer", "share", False),
    "harvest": Metric("M11", "share of the serving brokers that the answer contained", "share", False),
    "yield": Metric("M12", "operations that were answered", "share", False),
    "yield_in_time": Metric("M12", "operations that were answered within their deadline", "share", False),
    **{
        f"{access}_{name}": Metric("M12", f"{requests} that were {title}", "share", False)
        for name, title in (("yield", "answered"), ("yield_in_time", "answered within their deadline"))
        for access, requests in _REQUESTS.items()
    },
    "ghosts": Metric("M13", "brokers in an answer that were dead", "share", True),
    "divergence_area": Metric("M14", "certain divergence of the nodes' answers, integrated over time", "s", True),
    "divergence_area_possible": Metric("M14", "possible divergence, integrated over time", "s", True),
    "divergence_share": Metric("M14", "time in which the nodes' answers certainly differed", "share", True),
    "divergence_share_possible": Metric("M14", "time in which the nodes' answers possibly differed", "share", True),
    "divergence_max": Metric("M14", "greatest certain divergence", "Jaccard distance", True),
    "episodes": Metric("M14", "episodes of certain divergence", "episodes", True),
    "episodes_uncertain": Metric("M14", "episodes in which nodes possibly differed, and never for certain", "episodes", True),
    "convergence": Metric("M15", "from the repair of the last link until the last certain difference ended", "s", True),
    "agreement": Metric("M15", "from the repair of the last link until the nodes certainly agreed", "s", True),
    "not_converged": Metric(
        "M15", "share of the runs with a certain difference whose nodes still differed at the end", "share", True
    ),
    "detection_median": Metric("M16", "from a broker's death until a node drops it for good, median", "s", True),
    "detection_p90": Metric("M16", "from a broker's death until a node drops it for good, 90th percentile", "s", True),
    "undetected": Metric("M16", "deaths that a node had not noticed when the observation ended", "share", True),
    "mistakes": Metric("M16", "drops of brokers that were alive", "drops", True),
    "mistakes_exposed": Metric("M16", "mistaken drops of brokers that no majority could reach", "drops", True),
    "mistake_duration": Metric("M16", "from a mistaken drop until the broker is listed again, mean", "s", True),
    "mistake_recurrence": Metric("M16", "between two mistakes of a node about one broker, mean", "s", False),
    **{
        f"{access}_{name}": Metric("M17", f"{title}, for the worst {worst} of a run", "s", True)
        for access, worst in ((FAILOVER, "fail-over client"), (PINNED, "node and kind of operation of the pinned clients"))
        for name, title in (
            ("unavailable_longest", "longest time without a successful request"),
            ("unavailable_total", "time in gaps longer than an operation's deadline"),
        )
    },
    "leaderless": Metric("M18", "time in which no node considered itself leader", "s", True),
    "double_leaders": Metric(
        "M18", "time in which several nodes considered themselves leader, times the number of extra leaders", "s", True
    ),
    "elections": Metric("M18", "terms in which a leader was elected", "terms", True),
    "put_latency_median": Metric("M20", "latency of answered puts, median", "ms", True),
    "put_latency_p99": Metric("M20", "latency of answered puts, 99th percentile", "ms", True),
    "get_latency_median": Metric("M20", "latency of answered gets, median", "ms", True),
    "get_latency_p99": Metric("M20", "latency of answered gets, 99th percentile", "ms", True),
    "route_latency_median": Metric("M20", "latency of answered look-ups, median", "ms", True),
    "route_latency_p99": Metric("M20", "latency of answered look-ups, 99th percentile", "ms", True),
    "misrouted": Metric("M21", "messages sent to a broker that was dead or closed to writes", "share", True),
    "unrouted": Metric("M21", "messages for which the client knew no broker", "share", True),
}
"""All figures. M5's t-visibility and M9's consistability have tables of their own."""

CLOCK_SENSITIVE = ("M4", "M5", "M6", "M7", "M8")
"""Figures that compare times of two nodes. The report gives the uncertainty of the clocks with each."""

NS_PER_MS, NS_PER_S = 1e6, 1e9

Row = dict[str, Any]
Place = tuple[str, str, str]
"""Level, phase and side of a group of items; ``all`` stands for all of them."""
_T = TypeVar("_T")
Values = dict[str, float | None]


class Grouped(dict[Place, list[_T]]):
    """Items grouped by level, phase and side, and also over all values of each of these."""

    def add(self, place: Place, thing: _T) -> None:
        """Add ``thing`` to each of its groups."""
        for group in product(*((own,) if own == ALL else (own, ALL) for own in place)):
            self.setdefault(group, []).append(thing)  # type: ignore[arg-type]  # product of three is a triple

    def figures(self, values: Callable[[list[_T]], Values], count: Callable[[list[_T]], int] = len) -> Iterator[Row]:
        """The figures of each group, one row each. Groups without a value are left out."""
        for (level, phase, side), things in self.items():
            counted = count(things)
            for metric, value in values(things).items():
                if value is not None:
                    yield {
                        "level": level, "phase": phase, "side": side, "metric": metric, "value": float(value), "count": counted,
                    }  # fmt: skip  # items grouped by line


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _greatest(values: Iterable[float], times: float) -> float | None:
    found = max(values, default=None)
    return None if found is None else found * times


def quantile(values: Sequence[float], at: float) -> float | None:
    """Quantile of sorted values, interpolated linearly; None if there are no values."""
    if not values:
        return None
    place = (len(values) - 1) * at
    low = int(place)
    return values[low] + (place - low) * (values[min(low + 1, len(values) - 1)] - values[low])


def _quantile_ms(values: Sequence[float], at: float) -> float | None:
    found = quantile(values, at)
    return None if found is None else found / NS_PER_MS


GUARANTEES = ("read_your_writes", "monotonic_reads", "monotonic_writes", "writes_follow_reads")


def of_histories(rows: Iterable[Row], done: dict[int, ClientOperation], prefix: str = "") -> Iterator[Row]:
    """M1, M2, M4 to M8, M10 and M19, from rows of JUDGED. ``prefix`` ROUTES: reads are look-ups."""
    during, final, windows, keys = Grouped[Row](), Grouped[Row](), Grouped[int](), Grouped[Row]()
    for row in rows:
        if row["what"] == "key":
            keys.add((row["level"], ALL, ALL), row)
            continue
        op = done.get(row["op"])
        if op is None or op.phase is None:
            continue
        if row["what"] == "write":
            if row["reads_after"] > 0:  # the window belongs to the phase in which the write began
                windows.add((row["level"], op.phase, op.side), row["window_ns"])
        elif op.phase == "final":
            final.add((row["level"], ALL, ALL), row)
        else:
            during.add((row["level"], op.phase, op.side), row)

    def of_reads(found: list[Row]) -> Values:
        behind = [row["versions_behind"] for row in found if row["versions_behind"] is not None]
        lags = [0 if row["fresh"] else row["age_ns"] for row in found]
        values: Values = {
            "anomalous_reads": _mean([row["anomalous"] for row in found]),
            "fresh_reads": _mean([row["fresh"] for row in found]),
            "staleness_max": _greatest((lag for lag in lags if lag is not None), 1 / NS_PER_MS),
            "versions_behind_mean": _mean(behind), "versions_behind_max": _greatest(behind, 1),
        }  # fmt: skip  # items grouped by line
        for guarantee in GUARANTEES:
            if not prefix or guarantee not in NOT_OF_ROUTES:
                values[guarantee] = sum(row[guarantee] for row in found)
        return values

    def at_the_end(found: list[Row]) -> Values:
        lost, back = ({row["key"] for row in found if row[name]} for name in ("lost", "resurrected"))
        return {"lost_writes": len(lost), "resurrected": len(back)}

    def of_writes(found: list[int]) -> Values:
        found = sorted(found)
        return {
            "window_median": _quantile_ms(found, 0.5), "window_p99": _quantile_ms(found, 0.99),
            "window_max": found[-1] / NS_PER_MS,
        }  # fmt: skip  # items grouped by line

    yield from _prefixed(prefix, during.figures(of_reads))
    yield from _prefixed(prefix, final.figures(at_the_end))
    yield from _prefixed(prefix, windows.figures(of_writes))
    yield from _prefixed(prefix, keys.figures(_of_keys, lambda found: sum(row["operations"] for row in found)))


def _of_keys(found: list[Row]) -> Values:
    """Figures of whole keys. The history of a key at a level has all writes of the key, and the reads at this level."""
    scores = sorted(score for row in found for score in row["gammas_ns"])
    pairs = sum(row["pairs"] for row in found)
    return {
        "linearizable_keys": _mean([row["verdict"] == "valid" for row in found]),
        "unknown_keys": _mean([row["verdict"] == "unknown" for row in found]),
        "delta_max": _greatest((row["delta_ns"] for row in found if row["delta_ns"] is not None), 1 / NS_PER_MS),
        "conflict_share": sum(row["conflicts"] for row in found) / pairs if pairs else None,
        "gamma_max": _greatest((row["gamma_max_ns"] for row in found), 1 / NS_PER_MS),
        "gamma_median": _quantile_ms(scores, 0.5), "gamma_p99": _quantile_ms(scores, 0.99),
    }  # fmt: skip  # items grouped by line


def _prefixed(prefix: str, rows: Iterable[Row]) -> Iterator[Row]:
    return ({**row, "metric": prefix + row["metric"]} for row in rows)


def of_probes(probes: Iterable[Row]) -> Iterator[Row]:
    """M3, the equality of answers to one probe."""
    groups = Grouped[bool]()
    for row in probes:
        if row["phase"] != "final":
            groups.add((row["level"], row["phase"], ALL), row["equal"])
    return groups.figures(lambda found: {"equal_probes": _mean(found)})


def of_look_ups(look_ups: Iterable[Row]) -> Iterator[Row]:
    """Rows of M11 and M13."""
    groups = Grouped[Row]()
    for row in look_ups:
        groups.add((row["level"], row["phase"], row["side"]), row)

    def values(found: list[Row]) -> Values:
        return {
            "harvest": _mean([row["found"] / row["must"] for row in found if row["must"]]),
            "ghosts": _mean([row["ghosts"] / row["answered"] for row in found if row["answered"]]),
        }

    return groups.figures(values)


def of_operations(done: Iterable[ClientOperation], deadline_ms: int) -> Iterator[Row]:
    """Rows of M12 for all clients and for each kind of client, and of M20 for each kind of operation."""
    groups, by_access = Grouped[ClientOperation](), defaultdict[str, Grouped[ClientOperation]](Grouped)
    for op in done:
        if op.kind in ASKED and op.phase not in (None, "final"):
            place = op.level, str(op.phase), op.side
            groups.add(place, op)
            if op.access in ACCESS:
                by_access[op.access].add(place, op)

    def yields(found: list[ClientOperation]) -> Values:
        in_time = [op.ok and op.end_ns is not None and op.end_ns - op.start_ns <= deadline_ms * NS_PER_MS for op in found]
        # runs that were imported have no deadline
        return {"yield": _mean([op.ok for op in found]), "yield_in_time": _mean(in_time) if deadline_ms > 0 else None}

    def latencies(found: list[ClientOperation]) -> Values:
        took: defaultdict[str, list[int]] = defaultdict(list)
        for op in found:
            if op.ok and op.end_ns is not None:
                took[op.kind].append(op.end_ns - op.start_ns)
        values: Values = {}
        for kind in ("put", "get", "route"):
            own = sorted(took[kind])
            values[f"{kind}_latency_median"] = _quantile_ms(own, 0.5)
            values[f"{kind}_latency_p99"] = _quantile_ms(own, 0.99)
        return values

    yield from groups.figures(lambda found: {**yields(found), **latencies(found)})
    for access, own in sorted(by_access.items()):
        yield from _prefixed(f"{access}_", own.figures(yields))


def of_gaps(gaps: Iterable[Row], deadline_ms: int) -> Iterator[Row]:
    """Rows of M17: for the worst client that fails over, and for the worst kind and node of clients that know one node."""
    by_access: defaultdict[str, Grouped[Row]] = defaultdict(Grouped)
    for row in gaps:
        if row["kind"] in (*ASKED, ALL) and row["access"] in (FAILOVER, PINNED):
            by_access[row["access"]].add((row["level"], row["phase"], row["side"]), row)

    def values(found: list[Row]) -> Values:
        totals: defaultdict[tuple[str, str, str], int] = defaultdict(int)
        for row in found:
            gap_ns = row["gap_ns"]
            totals[row["level"], row["kind"], row["entity"]] += gap_ns if gap_ns > deadline_ms * NS_PER_MS else 0
        return {
            "unavailable_longest": max(row["gap_ns"] for row in found) / NS_PER_S,
            "unavailable_total": max(totals.values()) / NS_PER_S if deadline_ms > 0 else None,
        }

    for access, own in sorted(by_access.items()):
        yield from _prefixed(f"{access}_", own.figures(values))


def _whole(count: int, **values: float | None) -> Iterator[Row]:
    """Figures of a whole run."""
    groups = Grouped[int]()
    groups.add((ALL, ALL, ALL), count)
    return groups.figures(lambda found: values, lambda found: count)


def of_divergence(segments: Sequence[DivergenceSegment], episodes: Sequence[Row], convergence: Sequence[Row]) -> Iterator[Row]:
    """Rows of M14 and M15 of registrations."""
    if segments:
        lengths = [(one, (one.end_ns - one.start_ns) / NS_PER_S) for one in segments]
        observed = sum(length for _, length in lengths)
        yield from _whole(
            len(segments),
            divergence_area=sum(one.certain * length for one, length in lengths),
            divergence_area_possible=sum(one.possible * length for one, length in lengths),
            divergence_share=sum(length for one, length in lengths if one.certain > 0) / observed,
            divergence_share_possible=sum(length for one, length in lengths if one.possible > 0) / observed,
            divergence_max=max(one.certain for one in segments),
            episodes=sum(row["certain"] for row in episodes),
            episodes_uncertain=sum(not row["certain"] for row in episodes),
        )
    for row in convergence:
        after_ns, agreed_ns = row["after_ns"], row["agreed_ns"]
        yield from _whole(
            1,
            convergence=None if after_ns is None else after_ns / NS_PER_S,
            agreement=None if agreed_ns is None else agreed_ns / NS_PER_S,
            not_converged=float(after_ns is None),
        )


def of_detections(detections: Sequence[Row], mistakes: Sequence[Row]) -> Iterator[Row]:
    """Rows of M16. A run without mistakes counts as 0 mistakes. Times of detection are Kaplan-Meier estimates: if the node did
    not drop the broker during the observation, its time is longer than the observation."""
    if detections:
        ends = [(row["detected_ns"], row["observed_ns"]) for row in detections]
        known = Survival((observed if detected is None else detected, detected is not None) for detected, observed in ends)
        times = {name: known.quantile(at) for name, at in (("detection_median", 0.5), ("detection_p90", 0.9))}
        yield from _whole(
            len(detections), **{name: None if ns is None else ns / NS_PER_S for name, ns in times.items()},
            undetected=_mean([row["detected_ns"] is None for row in detections]),
        )  # fmt: skip  # items grouped by line
    lasted, apart = (_mean([row[name] for row in mistakes if row[name] is not None]) for name in ("mistake_ns", "recurrence_ns"))
    yield from _whole(
        len(mistakes),
        mistakes=len(mistakes), mistakes_exposed=sum(row["exposed"] for row in mistakes),
        mistake_duration=None if lasted is None else lasted / NS_PER_S,
        mistake_recurrence=None if apart is None else apart / NS_PER_S,
    )  # fmt: skip  # items grouped by line


def of_leaders(leader_spans: Sequence[Row], elections: Sequence[Row]) -> Iterator[Row]:
    """Rows of M18."""
    if leader_spans:
        spans = [(row["leaders"], (row["end_ns"] - row["start_ns"]) / NS_PER_S) for row in leader_spans]
        yield from _whole(
            len(spans),
            leaderless=sum(length for leaders, length in spans if leaders == 0),
            double_leaders=sum(length * (leaders - 1) for leaders, length in spans if leaders > 1),
        )
    if elections:
        yield from _whole(len(elections), elections=len({row["term"] for row in elections}))


def of_sends(sends: Iterable[tuple[str | None, Row]]) -> Iterator[Row]:
    """Rows of M21. ``sends``: the sends, each with its phase."""
    groups = Grouped[Row]()
    for phase, row in sends:
        if phase not in (None, "final"):
            groups.add((ALL, str(phase), ALL), row)

    def values(found: list[Row]) -> Values:
        return {
            "misrouted": _mean([not row["reachable"] for row in found if row["broker"] is not None]),
            "unrouted": _mean([row["broker"] is None for row in found]),
        }

    return groups.figures(values)


_SENSITIVE = frozenset(name for name, metric in CATALOGUE.items() if metric.code in CLOCK_SENSITIVE)


def per_run(rows: Iterable[Row], run: Row) -> list[Row]:
    """Rows of PER_RUN: the rows of all figures, completed with the columns of their run."""
    about = {name: run[name] for name in ("run", "mode", "scenario", "seed", "nodes", "fault_s")}
    uncertain_ms = 2 * run["clock_uncertainty_ns"] / NS_PER_MS  # twice, because each of the two clocks may be off by this much
    return [{**row, **about, "clock_uncertainty_ms": uncertain_ms if row["metric"] in _SENSITIVE else None} for row in rows]

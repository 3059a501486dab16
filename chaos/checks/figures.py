"""Summary figures of one run. ``namesrv analyze`` computes the figures of many runs."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from replicated_namesrv.chaos.checks.consumers import sharing
from replicated_namesrv.chaos.checks.final import GONE
from replicated_namesrv.chaos.checks.order import stale_kv_reads
from replicated_namesrv.chaos.checks.seen_removals import removals
from replicated_namesrv.chaos.checks.story import ALIVE, Op, Story
from replicated_namesrv.chaos.checks.timing import convergence_s, divergence_segments, longest_gap
from replicated_namesrv.chaos.records import READER_SUFFIX, Election, Send
from replicated_namesrv.verify.divergence import divergence_of


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of one run. Times are in seconds, shares are fractions of 1."""

    operations: int
    diverged_s: float
    """Time during which answering nodes certainly listed different registrations (M14)."""
    divergence_max: float
    """Greatest certain Jaccard distance between two nodes that answered."""
    stale_kv_reads: int
    """Number of gets whose value an acknowledged write had certainly replaced before."""
    stale_routes: int
    """Number of look-ups that returned an older registration than one that was acknowledged before the look-up began."""
    lookups: int
    lookups_refused: int
    """Number of look-ups without an answer, for any reason."""
    lookups_missing: int
    """Number of answers without a broker that was alive, acknowledged, and reachable from a majority."""
    lookups_ghost: int
    """Number of answers with a broker that was dead or had unregistered."""
    writes_unknown: int
    """Number of KV writes whose outcome is unknown to the client."""
    longest_gap_s: float
    """Longest time without a success for a client that fails over."""
    convergence_s: float | None
    """Time from the repair of the last link until the last certain difference ended. None: nodes did not differ, or the end of
    the difference was not seen."""
    sends: int
    misrouted: int
    """Number of sends to a broker that was gone or had no write permission."""
    elections: int
    queues_doubled: float
    """Share of queues that several consumers would read at the same time, if each consumer asked another node (``consumers``)."""
    queues_orphaned: float
    """Share of queues that no consumer would read, if each consumer asked another node."""
    harness_stall_s: float
    silent_removed_s: float | None
    """Mean time until a node no longer listed a broker that had died silently. None: no node removed such a broker."""
    live_removed: int
    """Number of removals of living brokers, counted once per node. It includes brokers that were cut off."""
    diverged_possible_s: float = 0.0
    """Time during which answering nodes possibly listed different registrations. Between two looks the moment of a change is
    unknown."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def figures(story: Story) -> Figures:
    """Compute all figures."""
    lookups = [op for op in story.of_kind("route") if story.judged.start_ns <= op.start_ns < story.judged.end_ns]
    answered = [op for op in lookups if op.ok]
    diverged = divergence_of(divergence_segments(story))
    removed = removals(story)
    sends = [record for record in story.trace.records if isinstance(record, Send)]
    clients = [name for name, kind in story.kinds.items() if kind == "failover" and not name.endswith(READER_SUFFIX)]
    ops_of = {client: [op for op in story.ops if op.client == client] for client in clients}
    gaps = [longest_gap(story, client, ops) for client, ops in ops_of.items() if ops]
    newest, shared = _Newest(story), sharing(story)
    return Figures(
        operations=sum(1 for _ in story.of_kind("put", "get", "delete")) + len(lookups),
        diverged_s=round(diverged.seconds, 3),
        divergence_max=round(diverged.greatest, 3),
        stale_kv_reads=stale_kv_reads(story),
        stale_routes=sum(newest.is_stale(op) for op in answered),
        lookups=len(lookups),
        lookups_refused=len(lookups) - len(answered),
        lookups_missing=sum(newest.lacks(op) for op in answered),
        lookups_ghost=sum(_lists_gone(story, op) for op in answered),
        writes_unknown=sum(op.outcome == "indeterminate" for op in story.of_kind("put", "delete")),
        longest_gap_s=round(max((gap.length_ns / 1e9 for gap in gaps), default=0.0), 3),
        convergence_s=None if (converged := convergence_s(story)) is None else round(converged, 3),
        sends=len(sends),
        misrouted=sum(send.broker is not None and not send.reachable for send in sends),
        elections=sum(isinstance(record, Election) for record in story.trace.records),
        queues_doubled=round(shared.doubled / max(1, shared.queues), 4),
        queues_orphaned=round(shared.orphaned / max(1, shared.queues), 4),
        harness_stall_s=round(story.stalled_s, 3),
        silent_removed_s=_mean(removed.silent_s),
        live_removed=removed.live,
        diverged_possible_s=round(diverged.possible_seconds, 3),
    )


def _mean(values: Sequence[float]) -> float | None:
    return round(sum(values) / len(values), 3) if values else None


def wrong_lookups(story: Story) -> Iterator[tuple[Op, str]]:
    """Look-ups of the judged part whose answers were wrong, each with the kind of error: refused, missing (lacks a live broker),
    ghost (lists a dead one).
    """
    newest = _Newest(story)
    for op in story.of_kind("route"):
        if not story.judged.start_ns <= op.start_ns < story.judged.end_ns:
            continue
        if not op.ok:
            yield op, "refused"
            continue
        if newest.lacks(op):
            yield op, "missing"
        if _lists_gone(story, op):
            yield op, "ghost"


def _lists_gone(story: Story, op: Op) -> bool:
    lives = (story.life_at(member.name, op.start_ns) for member in op.members)
    return any(life is not None and life.state in GONE for life in lives)


class _Newest:
    """Acknowledged registrations of each broker and topic, for comparison with look-ups."""

    def __init__(self, story: Story) -> None:
        self._story = story
        self._acknowledged: dict[str, dict[str, list[tuple[int, int]]]] = {}
        for op in story.of_kind("register"):
            if op.ok and op.value is not None and not op.key.startswith("pair/"):
                for topic in op.topics:
                    self._acknowledged.setdefault(topic, {}).setdefault(op.key, []).append((op.end_ns, int(op.value)))

    def is_stale(self, op: Op) -> bool:
        by_broker = self._acknowledged.get(op.key, {})
        return any(
            int(member.version) < max((v for end_ns, v in by_broker.get(member.name, ()) if end_ns < op.start_ns), default=0)
            for member in op.members
        )

    def lacks(self, op: Op) -> bool:
        listed = {member.name for member in op.members}
        for broker, registrations in self._acknowledged.get(op.key, {}).items():
            if broker in listed or registrations[0][0] > op.start_ns:
                continue
            begin, end = self._story.life_at(broker, op.start_ns), self._story.life_at(broker, op.end_ns)
            if begin is not None and begin is end and begin.state in ALIVE and begin.state not in ("starting", "exposed"):
                return True
        return False

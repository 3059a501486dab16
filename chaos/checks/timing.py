"""Checks of durations: convergence after the last fault, answers for clients that reach a majority, and enough operations.

The limits are a scenario's promises. They are seconds, far above the product's usual times, so that a busy machine does not
violate them.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from replicated_namesrv.chaos.checks.story import (
    NEVER_NS,
    CheckResult,
    Connectivity,
    Op,
    Promise,
    Span,
    Story,
    result,
    unjudged,
    unless_stalled,
)
from replicated_namesrv.chaos.effects import Link
from replicated_namesrv.chaos.records import FaultRecord, Member, Observe, RecordedTrace, majority_side
from replicated_namesrv.verify import Verdict
from replicated_namesrv.verify.divergence import (
    Convergence,
    DivergenceSegment,
    Look,
    NodeAnswer,
    convergence_of,
    known_answers,
    segments_of,
)

BRIEF_NS = 3_000_000_000
"""Time of several looks with a time-out of one second each. A shorter silence may be an effect of the machine."""


POLL_NS = 1_500_000_000
"""Longest pause between two polls of a client that caches routes."""


def check_convergence(story: Story) -> CheckResult:
    """Within ``converge_s`` after the heal the nodes agree on all registrations and each node answers. Both remain true until the
    end."""
    limit_s = float(story.manifest["scenario"]["promises"]["converge_s"])
    if "final" not in story.phases or not story.observations:
        return result("convergence", Promise.BOTH, 0, [])
    converged, answering_s = convergence(story), all_answer_s(story)
    wrong = []
    if converged is not None and converged.after_ns is None:
        wrong.append("at the end of the run nodes still answered differently")
    elif converged is not None and converged.after_ns is not None and converged.after_ns > limit_s * 1e9:
        took_s = converged.after_ns / 1e9
        wrong.append(f"all nodes answered the same only {took_s:.2f} s after the last repair; {limit_s:g} s are promised")
    if not wrong and (answering_s is None or answering_s > limit_s):
        silence = "at the end of the run a node did not answer"
        if answering_s is not None:
            silence = f"every node answered only {answering_s:.2f} s after the last fault; {limit_s:g} s are promised"
        wrong.append(silence)
        if (patient_s := all_answer_s(story, BRIEF_NS)) is not None and patient_s <= limit_s:
            why = f"but for silence of less than {BRIEF_NS / 1e9:g} s, as of a busy machine, all nodes answered in time"
            return unjudged(result("convergence", Promise.BOTH, len(story.observations), wrong), why)
    last_kv = _last_kv(story)
    if story.mode == "cp" and len(set(last_kv.values())) > 1:
        wrong.append("at the end of the run nodes still answered different KV entries")
    asked = {one.node for one in story.observations if one.key == "kv" and one.node in story.final_nodes}
    if not wrong and (unread := sorted(asked - last_kv.keys())):
        why = f"at the end of the run {', '.join(unread)} did not answer which KV entries there are"
        return CheckResult("convergence", Promise.BOTH, Verdict.UNKNOWN, len(story.observations), (why,))
    return unless_stalled(story, result("convergence", Promise.BOTH, len(story.observations), wrong))


def convergence(story: Story) -> Convergence | None:
    """Convergence of registrations (M15). None: the run has no ``heal``, or its nodes never differed for certain."""
    if "heal" not in story.phases:
        return None
    heal_ns = story.phases["heal"].start_ns
    ends = [record.time_ns for record in story.trace.records if isinstance(record, FaultRecord) and record.edge == "end"]
    begin_ns = story.phases["fault"].start_ns if "fault" in story.phases else heal_ns
    return convergence_of(divergence_segments(story), begin_ns, max(ends, default=heal_ns))


def convergence_s(story: Story) -> float | None:
    """From the repair of the last link to the end of the last certain difference. None: nodes did not differ, or the end of the
    difference was not seen.
    """
    converged = convergence(story)
    return None if converged is None or converged.after_ns is None else converged.after_ns / 1e9


def divergence_segments(story: Story) -> list[DivergenceSegment]:
    """The divergence of registrations over the whole run (M14), between the nodes that are members at the end."""
    looks: dict[str, list[Look[frozenset[str]]]] = {node: [] for node in story.final_nodes}
    for one in story.observations:
        at_ns = _looked_ns(one)
        if one.key == "brokers" and one.node in looks:
            members = frozenset(f"{name}@{version}" for name, version in one.members or ())
            looks[one.node].append(Look(one.asked_ns, at_ns, one.asked_ns, at_ns, members if one.answered else None))
    return list(segments_of(NodeAnswer(node, *known) for node, seen in looks.items() for known in known_answers(seen)))


def all_answer_s(story: Story, patience_ns: int = 0) -> float | None:
    """From the heal until every node answers and continues to answer. None: a node never does so.

    A node's silence of less than ``patience_ns`` is ignored."""
    answers = dict.fromkeys(story.final_nodes, False)
    since_ns: int | None = None
    asked = [one for one in story.observations if one.key == "brokers" and one.node in answers]
    seen = _patiently(asked, patience_ns, story.judged.end_ns)
    for one in sorted(seen, key=_looked_ns):
        time_ns = _looked_ns(one)
        if time_ns > story.judged.end_ns:
            break
        answers[one.node] = one.answered
        since_ns = (since_ns if since_ns is not None else time_ns) if all(answers.values()) else None
    return None if since_ns is None else max(0.0, (since_ns - story.phases["heal"].start_ns) / 1e9)


def _looked_ns(one: Observe) -> int:
    """Time of an answer, or of a question without one."""
    return one.time_ns if one.answered else one.asked_ns


def _last_kv(story: Story) -> dict[str, tuple[Member, ...]]:
    """Each node's last answer to a question asked in ``final`` and after the end of the last write."""
    ends = [op.end_ns for op in story.of_kind("put", "delete") if op.end_ns != NEVER_NS]
    quiet_ns = max(story.phases["final"].start_ns, *ends, 0)
    seen = [one for one in story.observations if one.key == "kv" and one.answered and one.asked_ns >= quiet_ns]
    in_time = [one for one in seen if one.time_ns <= story.judged.end_ns and one.node in story.final_nodes]
    return {one.node: tuple(one.members or ()) for one in in_time}


def _patiently(seen: Sequence[Observe], patience_ns: int, end_ns: int) -> list[Observe]:
    """The observations without silence of less than ``patience_ns``."""
    found: list[Observe] = []
    silent: dict[str, list[Observe]] = {}
    for one in seen:
        if not one.answered:
            silent.setdefault(one.node, []).append(one)
            continue
        found += _unless_brief(silent.pop(one.node, []), one.time_ns, patience_ns)
        found.append(one)
    for looks in silent.values():
        found += _unless_brief(looks, end_ns, patience_ns)
    return found


def _unless_brief(looks: list[Observe], until_ns: int, patience_ns: int) -> list[Observe]:
    return looks if looks and until_ns - looks[0].asked_ns >= patience_ns else []


def check_availability(story: Story) -> CheckResult:
    """No client that reaches a side with a majority (AP: any live node) waits longer than ``gap_s`` for a success.

    This limit is for three nodes. A client tries silent nodes in turn, so each further founder may add one time-out. A client
    that caches routes asks only once in ``POLL_NS``.
    """
    scenario = story.manifest["scenario"]
    timeout_s = float(scenario["workload"]["operation_timeout_ms"]) / 1000
    limit_s = float(scenario["promises"]["gap_s"]) + timeout_s * max(0, len(story.founders) - 3)
    wrong, looked_at = [], 0
    for client, ops in _by_client(story).items():
        looked_at += len(ops)
        gap = longest_gap(story, client, ops)
        allowed_s = limit_s + (POLL_NS / 1e9 if story.kinds[client] == "cache" else 0)
        took_s = gap.length_ns / 1e9
        if took_s > allowed_s:
            wrong.append(
                f"{client} had no success for {took_s:.2f} s from {story.ms(gap.start_ns)}; {allowed_s:g} s are promised"
            )
    return unless_stalled(story, result("availability", Promise.BOTH, looked_at, wrong))


def _by_client(story: Story) -> dict[str, list[Op]]:
    found: dict[str, list[Op]] = {name: [] for name, kind in story.kinds.items() if kind in ("failover", "cache")}
    for op in story.of_kind("get", "put", "delete", "route"):
        if op.client in found:
            found[op.client].append(op)
    return {client: ops for client, ops in found.items() if ops}


def _waits_for_named_nodes(story: Story, ops: Sequence[Op]) -> list[Span]:
    """The KV writes of a client that a node did not answer within the client's time-out."""
    if not story.writes_to_all:
        return []
    timeout_ns = story.manifest["scenario"]["workload"]["operation_timeout_ms"] * 1_000_000
    writes = (op for op in ops if op.outcome == "indeterminate" and op.kind in ("put", "delete"))
    unanswered = ((op, op.start_ns + timeout_ns) for op in writes)
    starts = sorted(op.start_ns for op in ops)
    return [
        Span(op.start_ns, until_ns)
        for op, until_ns in unanswered
        if bisect_left(starts, until_ns) == bisect_right(starts, op.start_ns)  # the client began nothing else meanwhile
    ]


class Gap(NamedTuple):
    """A time without a success of a client."""

    start_ns: int
    length_ns: int


def longest_gap(story: Story, client: str, ops: Sequence[Op]) -> Gap:
    """The longest time without a success in which ``client`` could reach a node that can serve it.

    A KV write that goes to every name server in turn ends at the first node that does not answer, as in RocketMQ's client. The
    client chose to wait for this node, so this time does not count."""
    longest = Gap(0, 0)
    ends = sorted(op.end_ns for op in ops if op.ok)
    waits = _waits_for_named_nodes(story, ops)
    for span in served_spans(story, client):
        marks = [span.start_ns, *(end for end in ends if span.start_ns < end < span.end_ns), span.end_ns]
        for before, after in pairwise(marks):
            waited_ns = sum(max(0, min(wait.end_ns, after) - max(wait.start_ns, before)) for wait in waits)
            longest = max(longest, Gap(before, after - before - waited_ns), key=lambda gap: gap.length_ns)
    return longest


def served_spans(story: Story, client: str) -> list[Span]:
    """Spans in which ``client`` had an intact link to a side that can serve. Neighbouring spans are joined. Writers pause in
    ``final``.
    """
    begin, end = story.judged.start_ns, story.phases.get("final", story.judged).start_ns
    spans: list[Span] = []
    ends = [standing.start_ns for standing in story.standings[1:]] + [NEVER_NS]
    for standing, until_ns in zip(story.standings, ends, strict=True):
        start_ns, end_ns = max(standing.start_ns, begin), min(until_ns, end)
        if start_ns >= end_ns or not _served(story, standing, client):
            continue
        if spans and spans[-1].end_ns == start_ns:
            spans[-1] = Span(spans[-1].start_ns, end_ns)
        else:
            spans.append(Span(start_ns, end_ns))
    return spans


def _served(story: Story, standing: Connectivity, client: str) -> bool:
    if story.mode == "ap":
        serving = [node for side in standing.sides for node in side]
    else:
        first = majority_side(standing.sides, standing.voters)
        serving = [node for node in first if all(node in voters for voters in standing.voters)]
    return any(Link(client, node) not in standing.broken for node in serving)


def broken_off(trace: RecordedTrace) -> Iterator[str]:
    """The reasons why the trace is not that of a complete run; none if it is complete."""
    if trace.torn:
        yield "the last line is torn: the harness was killed while it wrote it"
    if trace.corrupt:
        yield f"{len(trace.corrupt)} corrupt lines, the first: {trace.corrupt[0]}"
    if not trace.complete and not trace.corrupt:
        yield "the trace ends before the run did"


def check_enough(story: Story) -> CheckResult:
    """The run ended normally and had enough successful operations before, during and after the faults, and at least one of each
    kind in the manifest's ``asks``; otherwise unknown."""
    promises = story.manifest["scenario"]["promises"]
    least = {
        "steady": promises["operations_min"],
        "fault": promises["operations_during_min"],
        "heal": promises["operations_min"],
    }
    wrong = list(broken_off(story.trace))
    counted = 0
    for phase, needed in least.items():
        span = story.phases.get(phase, Span(0, 0))
        succeeded = sum(
            op.ok and span.start_ns <= op.end_ns < span.end_ns for op in story.of_kind("get", "put", "delete", "route")
        )
        counted += succeeded
        if succeeded < needed:
            wrong.append(f"{succeeded} operations succeeded in phase {phase}; {needed} are needed to judge")
    answered = {op.kind for op in story.ops if op.ok}
    wrong += [f"no operation {kind} succeeded" for kind in story.manifest.get("asks", ()) if kind not in answered]
    wrong += [f"no node answered the observer: {what}" for what in _unseen(story)]
    verdict = Verdict.UNKNOWN if wrong else Verdict.VALID
    return CheckResult("enough to judge", Promise.BOTH, verdict, counted, tuple(wrong), len(wrong))


def _unseen(story: Story) -> Iterator[str]:
    """The observations that the run must have and lacks. Older traces do not say what they ask."""
    if not story.manifest.get("asks"):
        return
    yield from (key for key in ("brokers", "kv") if not any(one.key == key and one.answered for one in story.observations))
    if story.mode == "cp" and not any(one.answered and one.digest is not None for one in story.statuses):
        yield "digests"

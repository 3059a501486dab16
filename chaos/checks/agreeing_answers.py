"""The check that a node's answers to different queries agree: its routes, the routes for one zone, and the list of all brokers
(``GET_BROKER_CLUSTER_INFO``, 106).

The probe asks a node for the route of a topic, for the part of the route in a zone, for all brokers, and for the route again. At
the end of the run it asks for all brokers between two reads of all routes. A
broker that both routes show with the same registration was listed all the time. So the list of all brokers must contain it, and
the part of the route in its zone must show it with this registration. This part must not show a broker of another zone, or of
none: the groups g1, g2 and so on are in the zones of ``ZONES`` in turn, and the other groups are in no zone.
"""

from collections import defaultdict
from collections.abc import Sequence

from replicated_namesrv.chaos.checks.story import KEPT, NEVER_NS, CheckResult, Op, Promise, Story, result
from replicated_namesrv.chaos.workload import zone_of

AGREEMENT = "answers agree"
NEAR_NS = 1_000_000_000
"""Longest time between two routes of which a broker that both show was listed in between."""


def check_agreement(story: Story) -> CheckResult:
    """The brokers of a zone, and the list of all brokers, are those that the routes show."""
    routes: defaultdict[str | None, list[Op]] = defaultdict(list)
    for op in story.of_kind("route"):
        if op.ok and op.client == "probe":
            routes[op.node].append(op)
    asked = list(story.of_kind("zone-route", "cluster"))
    wrong: list[str] = []
    looked_at = 0
    for read in (op for op in asked if op.ok):
        always = _always(story, read, routes[read.node])
        if read.kind == "cluster":
            what, listed = "all brokers", {member.name for member in read.members}
            lacking = {name for name, _ in always} - listed
        else:
            what, listed = f"{read.key} in zone {read.value}", {member.name for member in read.members}
            always = {member for member in always if zone_of(member[0]) == read.value}
            lacking = {name for name, _ in always - {tuple(member) for member in read.members}}
            looked_at += len(listed)
            if others := sorted(name for name in listed if zone_of(name) != read.value):
                wrong.append(f"{story.ms(read.start_ns)}: {read.node} answers {what} with {', '.join(others)}")
        looked_at += len(always)
        if lacking:
            wrong.append(f"{story.ms(read.start_ns)}: {read.node} answers {what} without {', '.join(sorted(lacking))}")
    return result(AGREEMENT, Promise.BOTH, looked_at, wrong, due=bool(asked))


def _always(story: Story, read: Op, routes: Sequence[Op]) -> set[tuple[str, ...]]:
    """The brokers, with their registrations, that the same node listed before and after ``read`` in the same route. For a list of
    all brokers, any route counts that was read just before and after it, or at the end of the run."""
    found: set[tuple[str, ...]] = set()
    final_ns = story.phases["final"].start_ns if "final" in story.phases else NEVER_NS
    for topic in {op.key for op in routes} if read.kind == "cluster" else {read.key}:
        mine = [op for op in routes if op.key == topic]
        before = max((op for op in mine if op.end_ns < read.start_ns), key=lambda op: op.end_ns, default=None)
        after = min((op for op in mine if op.start_ns > read.end_ns), key=lambda op: op.start_ns, default=None)
        if before is None or after is None or (before.start_ns < final_ns and after.end_ns - before.start_ns > NEAR_NS):
            continue
        both = {tuple(member) for member in before.members} & {tuple(member) for member in after.members}
        found |= {member for member in both if _stayed(story, member[0], before, after)}
    return found


def _stayed(story: Story, broker: str, before: Op, after: Op) -> bool:
    """Whether the broker did not leave in between. A node may drop it for a moment if it was exposed."""
    first = story.life_at(broker, before.start_ns)
    states = [life.state for life in story.lives[broker] if before.start_ns < life.start_ns < after.end_ns]
    return first is not None and all(state in KEPT for state in (first.state, *states))

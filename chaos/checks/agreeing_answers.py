"""The check that a node's answers to different queries agree.

The probe asks a node for the route of a topic, then in other ways, and then for the route again. At the end of the run it asks in
other ways between two reads of all routes. A broker that both routes show with the same registration was listed all the time.

| query                                              | its answer must contain                                  |
|----------------------------------------------------|----------------------------------------------------------|
| the part of the route in a zone                    | the brokers of the zone, and no others                   |
| ``GET_BROKER_CLUSTER_INFO`` (106)                  | the brokers                                              |
| ``GET_ALL_TOPIC_LIST_FROM_NAMESERVER`` (206)       | the topics of the routes that show such a broker         |
| ``GET_BROKER_MEMBER_GROUP`` (901)                  | the brokers of the group                                 |

The groups g1, g2 and so on are in the zones of ``ZONES`` in turn, and the other groups are in no zone.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from replicated_namesrv.chaos.checks.story import KEPT, NEVER_NS, CheckResult, Op, Promise, Story, result
from replicated_namesrv.chaos.clients import LIST_IS_DISABLED
from replicated_namesrv.chaos.records import Member
from replicated_namesrv.chaos.workload import zone_of

AGREEMENT = "answers agree"
NEAR_NS = 1_000_000_000
"""Longest time between two routes of which a broker that both show was listed in between."""


def check_agreement(story: Story) -> CheckResult:
    """The answers of a node to other queries contain what its routes show."""
    routes: defaultdict[str | None, defaultdict[str, list[Op]]] = defaultdict(lambda: defaultdict(list))
    for op in story.of_kind("route", "topic"):
        if op.ok and op.client == "probe":
            routes[op.node][op.key].append(_as_route(op))
    asked = list(story.of_kind("zone-route", "cluster", "topic-list", "member-group"))
    wrong: list[str] = []
    looked_at = 0
    for read in (op for op in asked if op.ok and op.value != LIST_IS_DISABLED):
        always, listed = _always(story, read, routes[read.node]), {member.name for member in read.members}
        if read.kind == "cluster":
            what, lacking = "all brokers", {name for _, name, _ in always} - listed
        elif read.kind == "topic-list":
            what, lacking = "all topics", {topic for topic, _, _ in always} - listed
        elif read.kind == "member-group":
            what = f"the members of {read.key}"
            lacking = {name for _, name, _ in always if name.startswith(f"{read.key}/")} - listed
        else:
            what = f"{read.key} in zone {read.value}"
            shown = {tuple(member) for member in read.members}
            always = {one for one in always if zone_of(one[1]) == read.value}
            lacking = {name for _, name, version in always if (name, version) not in shown}
            looked_at += len(listed)
            if others := sorted(name for name in listed if zone_of(name) != read.value):
                wrong.append(f"{story.ms(read.start_ns)}: {read.node} answers {what} with {', '.join(others)}")
        looked_at += len(always)
        if lacking:
            wrong.append(f"{story.ms(read.start_ns)}: {read.node} answers {what} without {', '.join(sorted(lacking))}")
    return result(AGREEMENT, Promise.BOTH, looked_at, wrong, due=bool(asked))


def _as_route(op: Op) -> Op:
    """A ``topic`` is a route with only the broker ``fickle``, or an empty one."""
    if op.kind == "route":
        return op
    return op._replace(members=() if op.value is None else (Member("fickle/0", op.value),))


def _always(story: Story, read: Op, routes: Mapping[str, Sequence[Op]]) -> set[tuple[str, str, str]]:
    """The (topic, broker, registration) that the same node listed before and after ``read`` in the same route. For the part of a
    route in a zone, only this route counts. Each of the two routes was read just before or after ``read``, or at the end of the
    run."""
    found: set[tuple[str, str, str]] = set()
    final_ns = story.phases["final"].start_ns if "final" in story.phases else NEVER_NS
    for topic in [read.key] if read.kind == "zone-route" else routes:
        mine = routes.get(topic, ())
        before = max((op for op in mine if op.end_ns < read.start_ns), key=lambda op: op.end_ns, default=None)
        after = min((op for op in mine if op.start_ns > read.end_ns), key=lambda op: op.start_ns, default=None)
        if before is None or after is None or (before.start_ns < final_ns and after.end_ns - before.start_ns > NEAR_NS):
            continue
        both = {tuple(member) for member in before.members} & {tuple(member) for member in after.members}
        found |= {(topic, name, version) for name, version in both if _stayed(story, name, before, after)}
    return found


def _stayed(story: Story, broker: str, before: Op, after: Op) -> bool:
    """Whether the broker did not leave in between. A node may drop it for a moment if it was exposed."""
    first = story.life_at(broker, before.start_ns)
    states = [life.state for life in story.lives[broker] if before.start_ns < life.start_ns < after.end_ns]
    return first is not None and all(state in KEPT for state in (first.state, *states))

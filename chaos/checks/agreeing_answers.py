"""The check that a node's answers to different queries agree.

The probe asks a node for the route of a topic, sends the queries below, and asks for the route again. At the end it sends 106 and
206 between two reads of all routes. A broker that both routes show with the same registration was listed all the time.

| query                                              | its answer must contain                                  |
|----------------------------------------------------|----------------------------------------------------------|
| the part of the route in a zone                    | the brokers of the zone, and no others                   |
| ``GET_BROKER_CLUSTER_INFO`` (106)                  | the brokers                                              |
| ``GET_ALL_TOPIC_LIST_FROM_NAMESERVER`` (206)       | the topics of the routes that show such a broker, and no |
|                                                    | topic that does not exist                                |
| ``GET_BROKER_MEMBER_GROUP`` (901)                  | the brokers of the group                                 |
| ``/v1/brokers``, at the end of the run             | the brokers                                              |
| ``/v1/kv``, at the end of the run                  | the KV entries that clients read                         |

The groups g1, g2 and so on are in the zones of ``ZONES`` in turn, and the other groups are in no zone.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from replicated_namesrv.chaos.checks.story import KEPT, NEVER_NS, CheckResult, Op, Promise, Story, result
from replicated_namesrv.chaos.clients import LIST_IS_DISABLED
from replicated_namesrv.chaos.records import Member, Observe
from replicated_namesrv.chaos.workload import zone_of

AGREEMENT = "answers agree"
NEAR_NS = 1_000_000_000
"""Maximum time for two reads of a route and the query between them, before the end of the run. Slower ones are not judged."""


def check_agreement(story: Story) -> CheckResult:
    """The answers of a node to other queries contain what its routes show."""
    routes: defaultdict[str | None, defaultdict[str, list[Op]]] = defaultdict(lambda: defaultdict(list))
    for op in story.of_kind("route", "topic"):
        if op.ok and op.client == "probe":
            routes[op.node][op.key].append(_as_route(op))
    asked = list(story.of_kind("zone-route", "cluster", "topic-list", "member-group"))
    looked_at, wrong = _wrong_looks(story, routes)
    for read in (op for op in asked if op.ok and op.value != LIST_IS_DISABLED):
        always, listed = _always(story, read, routes[read.node]), {member.name for member in read.members}
        if read.kind == "cluster":
            what, lacking = "all brokers", {name for _, name, _ in always} - listed
        elif read.kind == "topic-list":
            what, lacking = "all topics", {topic for topic, _, _ in always} - listed
            gone = _gone(story, read)
            looked_at += len(gone)
            if left := sorted(gone & listed):
                wrong.append(f"{story.ms(read.start_ns)}: {read.node} answers {what} with {', '.join(left)}, which do not exist")
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


def _wrong_looks(story: Story, routes: Mapping[str | None, Mapping[str, Sequence[Op]]]) -> tuple[int, list[str]]:
    """(brokers and keys judged, findings) for the tables at the admin port, at the end of the run, when no client writes."""
    looked_at, wrong = 0, list[str]()
    if "final" not in story.phases:
        return 0, wrong
    final_ns = max(
        [story.phases["final"].start_ns, *(op.end_ns for op in story.of_kind("put", "delete") if op.end_ns != NEVER_NS)]
    )
    gets = [op for op in story.of_kind("get") if op.ok and op.start_ns > final_ns]
    for look in (one for one in story.observations if one.answered and one.asked_ns > final_ns):
        shown = dict(look.members or ())
        when = f"{story.ms(look.time_ns)}: {look.node} shows at /v1/{look.key}"
        if look.key == "kv":
            mine = {op.key: op.value for op in gets if op.node == look.node}
            looked_at += len(mine)
            wrong += [f"{when} another value of {key} than it answers" for key, value in mine.items() if shown.get(key) != value]
        elif story.mode == "cp" or story.reports_removals:
            always = {name for _, name, _ in _always(story, _as_read(look), routes[look.node])} if look.node in routes else set()
            looked_at += len(always)
            if lacking := sorted(always - shown.keys()):
                wrong.append(f"{when} no {', '.join(lacking)}")
    return looked_at, wrong


def _as_read(look: Observe) -> Op:
    return Op(0, "observer", "brokers", "brokers", None, None, (), look.asked_ns, look.time_ns, "ok", look.node, None, ())


def _gone(story: Story, read: Op) -> set[str]:
    """The topics that had been deleted, and did not exist on the same node before and after ``read``. No topic is created again,
    so they did not exist in between."""
    deletions: defaultdict[str, list[Op]] = defaultdict(list)
    for op in story.of_kind("delete-topic"):
        deletions[op.key].append(op)
    absent = [op for op in story.of_kind("topic") if op.ok and op.node == read.node and op.value is None]
    after = {op.key for op in absent if op.start_ns > read.end_ns}
    before = [op for op in absent if op.end_ns < read.start_ns and op.key in after]
    return {op.key for op in before if deletions[op.key] and all(one.ok and one.end_ns < op.end_ns for one in deletions[op.key])}


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
    """Whether the broker did not leave in between. A node may drop it for a moment if it was exposed, or if a registration of its
    process under another id was held on its way and arrived in between: the next registration replaces it again."""
    copies = [op for op in story.of_kind("register-copy") if op.start_ns < after.end_ns]
    processes = {op.client for op in copies if op.key == broker}
    held = [op for op in copies if op.client in processes and op.key != broker and op.outcome == "indeterminate"]
    settled = [op for op in copies if op.client in processes and op.key == broker and op.ok and op.end_ns < before.start_ns]
    # over one link, requests arrive in order: a later answer from the same node shows that the earlier copy has arrived, or never
    # will
    if any(all(op.node != copy.node or op.start_ns < copy.end_ns for op in settled) for copy in held):
        return False
    first = story.life_at(broker, before.start_ns)
    states = [life.state for life in story.lives[broker] if before.start_ns < life.start_ns < after.end_ns]
    return first is not None and all(state in KEPT for state in (first.state, *states))

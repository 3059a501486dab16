"""Linearizability of KV entries and of broker registrations, by the one checker (``replicated_namesrv.verify``).

A registration is a write of its version to one component of each of its topics, an unregistration a write of absence; a route
look-up reads all components. A clean stop and a death are told apart: after a death the cluster removes the broker by itself at a
time that nobody is told, so that removal is an indeterminate unregistration from the death on. What is not modelled:

- brokers that were ever *exposed*: a correct cluster may drop them and take them back at any time;
- the pair: two brokers write the one version of their group;
- requests of a life's last version whose outcome is unknown may still arrive after its end and bring it back for a moment:
  each is an indeterminate registration, and its removal an indeterminate unregistration. Beyond LATE_MAX of them the broker
  is left out.

Late copies of versions that were overtaken are not in the model: the product promises that they change nothing.
"""

from collections import defaultdict
from collections.abc import Iterator

from replicated_namesrv.chaos.checks.story import NEVER_NS, CheckResult, Op, Promise, Story
from replicated_namesrv.verify import HistoryVerdict, Limits, Operation, Outcome, Verdict, check_history

KV, REGISTRATION = "linearizable KV", "linearizable registration"
LATE_MAX = 6
LIMITS = Limits(steps=1_500_000, configurations=100_000)


def check_kv(story: Story) -> CheckResult:
    """Every key of the KV config."""
    return _judge(KV, check_history(kv_history(story), LIMITS))


def check_registration(story: Story) -> CheckResult:
    """Every topic."""
    return _judge(REGISTRATION, check_history(registration_history(story), LIMITS))


def _judge(name: str, verdict: HistoryVerdict) -> CheckResult:
    bad = [key.describe() for key in verdict.keys if key.verdict is not Verdict.VALID]
    found = verdict.verdict if verdict.operations else Verdict.UNKNOWN
    return CheckResult(name, Promise.CP, found, verdict.operations, tuple(bad), len(bad))


def kv_history(story: Story) -> list[Operation]:
    """puts, gets and deletes for the checker."""
    return [_operation(op, op.kind, op.key, op.value) for op in story.of_kind("put", "get", "delete")]


def _operation(op: Op, kind: str, key: str, value: object) -> Operation:
    end_ns = None if op.end_ns == NEVER_NS else op.end_ns
    return Operation(op.client, kind, key, value, op.start_ns, end_ns, Outcome(op.outcome))  # type: ignore[arg-type]


def registration_history(story: Story) -> list[Operation]:
    """Registrations, unregistrations and look-ups by topic, of brokers whose every change is accounted for."""
    late = late_copies(story)
    modelled = {broker["broker"] for broker in story.manifest["brokers"]} - story.ever("exposed")
    modelled = {broker for broker in modelled if not broker.startswith("pair/") and len(late[broker]) <= LATE_MAX}
    history: list[Operation] = []
    for op in story.of_kind("register", "unregister", "route"):
        if op.kind == "route":
            value = [[member.name, member.version] for member in op.members if member.name in modelled]
            history.append(_operation(op, "route", op.key, value))
        elif op.key in modelled:
            said: object = [op.key, op.value] if op.kind == "register" else op.key
            history += [_operation(op, op.kind, topic, said) for topic in op.topics]
    for broker in modelled:
        topics = next(one["topics"] for one in story.manifest["brokers"] if one["broker"] == broker)
        history += [removal for topic in topics for removal in _removals(story, broker, topic)]
        for copy in late[broker]:
            for topic in topics:
                history.append(_open(copy.start_ns, "register", topic, [broker, copy.value]))
                history.append(_open(copy.start_ns, "unregister", topic, broker))
    return history


def _removals(story: Story, broker: str, topic: str) -> Iterator[Operation]:
    for life in story.lives.get(broker, ()):
        if life.state in ("dead", "silent"):
            yield _open(life.start_ns, "unregister", topic, broker)


def _open(start_ns: int, kind: str, topic: str, value: object) -> Operation:
    return Operation("the cluster", kind, topic, value, start_ns, None, Outcome.INDETERMINATE)  # type: ignore[arg-type]


def late_copies(story: Story) -> defaultdict[str, list[Op]]:
    """By broker: registrations of unknown outcome that the broker's life ended with."""
    last: dict[tuple[str, int], str | None] = {}
    for broker, lives in story.lives.items():
        for life in lives:
            if life.state in ("stopping", "dead", "silent"):
                last[broker, life.life] = life.version
    found: defaultdict[str, list[Op]] = defaultdict(list)
    for op in story.ops:
        if op.kind == "register-copy" and op.outcome == "indeterminate":
            life_then = story.life_at(op.key, op.start_ns)
            if life_then is not None and last.get((op.key, life_then.life), "") == op.value:
                found[op.key].append(op)
    return found

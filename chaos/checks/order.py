"""What clients see never goes back: session guarantees, revisions, and one state for one revision."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from replicated_namesrv.chaos.checks.real_time import kv_writes, overtaken, read_writes, written_once
from replicated_namesrv.chaos.checks.story import CheckResult, Op, Promise, Story, result


def check_sessions(story: Story) -> CheckResult:
    """Each client reads its own writes, and never older than what it read before; and whoever saw a write never reads what was
    older to its writer: what that one wrote before (monotonic writes), or had read (writes follow reads; Terry et al., 1994).

    A KV value is older than another if its write had ended, or somebody had read it, before the other's began; versions of a
    broker are numbered.
    """
    wrong: list[str] = []
    looked_at = 0
    writes = read_writes(story)
    source = {key: written_once(found) for key, found in writes.items()}
    by_client: defaultdict[str, list[Op]] = defaultdict(list)
    for op in story.of_kind("put", "delete", "get", "route"):
        if op.ok and op.client != "probe":
            by_client[op.client].append(op)
    for client, ops in by_client.items():
        looked_at += len(ops)
        wrong += _broken_kv(story, client, [op for op in ops if op.kind != "route"], source, writes)
        wrong += _broken_routes(story, client, [op for op in ops if op.kind == "route"])
    return result("session guarantees", Promise.CP, looked_at, wrong)


def _broken_kv(
    story: Story, client: str, ops: Sequence[Op], source: Mapping[str, Mapping[str | None, Op]], writes: Mapping[str, list[Op]]
) -> Iterable[str]:
    seen: dict[str, Op] = {}
    for op in ops:
        known = seen.get(op.key)
        if op.kind == "get" and op.value is None and known is not None and known.kind == "put":
            deletes = [write for write in writes[op.key] if write.kind == "delete" and write.start_ns < op.end_ns]
            if all(write.ok and write.end_ns < known.start_ns for write in deletes):
                yield f"{story.ms(op.start_ns)}: {client} finds {op.key} absent after it knew {known.value}"
            continue
        write = op if op.kind != "get" else source.get(op.key, {}).get(op.value)
        if write is None:
            continue
        if op.kind == "get" and known is not None and write.end_ns < known.start_ns:
            yield f"{story.ms(op.start_ns)}: {client} reads {op.key} = {op.value} after it knew {known.value or 'it deleted'}"
        elif known is None or known.start_ns < write.start_ns:
            seen[op.key] = write


def _broken_routes(story: Story, client: str, ops: Sequence[Op]) -> Iterable[str]:
    newest: dict[tuple[str, str], int] = {}
    for op in ops:
        for member in op.members:
            version, key = int(member.version), (op.key, member.name)
            if version < newest.get(key, 0):
                yield (
                    f"{story.ms(op.start_ns)}: {client} is told registration {version} of {member.name} by {op.node} "
                    f"after it knew {newest[key]}"
                )
            newest[key] = max(version, newest.get(key, 0))


def check_revisions(story: Story) -> CheckResult:
    """An answer that was asked for after another had come has no lower revision, whichever nodes gave them."""
    answered = [one for one in story.observations if one.answered and one.revision is not None]
    by_end = sorted(answered, key=lambda one: one.time_ns)
    wrong, place, highest = [], 0, 0
    for one in sorted(answered, key=lambda one: one.asked_ns):
        while place < len(by_end) and by_end[place].time_ns < one.asked_ns:
            highest = max(highest, by_end[place].revision or 0)
            place += 1
        if (one.revision or 0) < highest:
            wrong.append(f"{story.ms(one.time_ns)}: {one.node} answers revision {one.revision} after {highest} had been answered")
    return result("revisions never go back", Promise.CP, len(answered), wrong)


def check_same_state(story: Story) -> CheckResult:
    """Nodes that stand at the same index or revision have the same state."""
    seen: dict[tuple[str, int], tuple[str, object]] = {}
    wrong, looked_at = [], 0
    facts: list[tuple[int, str, tuple[str, int], object]] = [
        (one.time_ns, one.node, ("digest at index", one.applied_index), one.digest)
        for one in story.statuses
        if one.applied_index is not None and one.digest is not None
    ]
    facts += [
        (one.time_ns, one.node, (f"{one.key} at revision", one.revision), tuple(one.members or ()))
        for one in story.observations
        if one.revision is not None
    ]
    for time_ns, node, place, state in sorted(facts, key=lambda fact: fact[0]):
        looked_at += 1
        other, before = seen.setdefault(place, (node, state))
        if before != state:
            wrong.append(f"{story.ms(time_ns)}: {node} and {other} differ in {place[0]} {place[1]}")
    return result("one state for one revision", Promise.CP, looked_at, wrong)


def stale_kv_reads(story: Story) -> int:
    """gets that returned what an acknowledged write had surely replaced before they began."""
    writes = kv_writes(story)
    return sum(overtaken(op, writes.get(op.key, ())) for op in story.of_kind("get") if op.ok)

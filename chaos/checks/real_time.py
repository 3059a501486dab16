"""Conclusions from real time alone. A write that ended before another began is older. If a value was read, its write had taken
effect by then, even if the writing client got its answer later, or none."""

from collections import Counter, defaultdict
from collections.abc import Iterable

from replicated_namesrv.chaos.checks.story import NEVER_NS, Op, Story
from replicated_namesrv.chaos.clients import DROPPED_KEY, KEPT_KEY


def kv_reads(story: Story) -> list[Op]:
    """The gets, and the answers of ``GET_KVLIST_BY_NAMESPACE`` (219) as one get of each key, with any outcome and level."""
    found = [op for op in story.ops if op.kind == "get"]
    keys = [*story.manifest["kv_keys"], KEPT_KEY, DROPPED_KEY]
    for op in story.of_kind("kv-list"):
        if op.ok:
            held = {member.name: member.version for member in op.members}
            found += [op._replace(kind="get", key=key, value=held.get(key), members=()) for key in keys]
    return found


def kv_writes(story: Story) -> dict[str, list[Op]]:
    """The puts and deletes that may have happened, by key."""
    found: defaultdict[str, list[Op]] = defaultdict(list)
    for op in story.of_kind("put", "delete"):
        if op.outcome != "fail":
            found[op.key].append(op)
    return found


def read_writes(story: Story) -> dict[str, list[Op]]:
    """Like ``kv_writes``, but a put of a unique value ends no later than the first get that saw it."""
    seen_ns: dict[tuple[str, str | None], int] = {}
    for read in story.of_kind("get"):
        if read.ok:
            seen_ns[read.key, read.value] = min(read.end_ns, seen_ns.get((read.key, read.value), NEVER_NS))
    found = kv_writes(story)
    for key, writes in found.items():
        times = Counter(write.value for write in writes)
        for place, write in enumerate(writes):
            first_ns = seen_ns.get((key, write.value), NEVER_NS)
            if write.kind == "put" and times[write.value] == 1 and write.start_ns < first_ns < write.end_ns:
                writes[place] = write._replace(end_ns=first_ns, outcome="ok")
    return found


def written_once(writes: Iterable[Op]) -> dict[str | None, Op]:
    """The puts of one key that certainly happened, by value. Values that were written twice are left out."""
    puts = [write for write in writes if write.kind == "put"]
    times = Counter(put.value for put in puts)
    return {put.value: put for put in puts if put.ok and times[put.value] == 1}


def overtaken(read: Op, writes: Iterable[Op]) -> bool:
    """Whether the value that ``read`` returned (None: absent) was certainly replaced before the read began.

    This is certain if a newer write had ended before the read began, and every write of the read's value had ended before that
    newer write began. A value that was never written counts as replaced, too. Absence can also come from the initial state."""
    begun = [write for write in writes if write.start_ns < read.end_ns]
    sources = [write.end_ns if write.ok else NEVER_NS for write in begun if _written(write) == read.value]
    if read.value is None:
        sources.append(0)
    newer = [write.start_ns for write in begun if write.ok and write.end_ns < read.start_ns and _written(write) != read.value]
    latest_ns = max(newer, default=-1)
    return all(latest_ns > source_ns for source_ns in sources)


def _written(write: Op) -> str | None:
    return None if write.kind == "delete" else write.value

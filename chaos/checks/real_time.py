"""What follows from real time alone: a write that ended before another began is older than it."""

from collections import defaultdict
from collections.abc import Iterable

from replicated_namesrv.chaos.checks.story import NEVER_NS, Op, Story


def kv_writes(story: Story) -> dict[str, list[Op]]:
    """puts and deletes that may have happened, by key."""
    found: defaultdict[str, list[Op]] = defaultdict(list)
    for op in story.of_kind("put", "delete"):
        if op.outcome != "fail":
            found[op.key].append(op)
    return found


def overtaken(read: Op, writes: Iterable[Op]) -> bool:
    """Whether what ``read`` returned (None: absent) surely was there no more when it began: every write that it can come from had
    ended before another began that had ended by then. So is a value that nobody wrote; absence comes from the beginning, too."""
    begun = [write for write in writes if write.start_ns < read.end_ns]
    sources = [write.end_ns if write.ok else NEVER_NS for write in begun if _written(write) == read.value]
    if read.value is None:
        sources.append(0)
    newer = [write.start_ns for write in begun if write.ok and write.end_ns < read.start_ns and _written(write) != read.value]
    latest_ns = max(newer, default=-1)
    return all(latest_ns > source_ns for source_ns in sources)


def _written(write: Op) -> str | None:
    return None if write.kind == "delete" else write.value

"""The check that nothing is acknowledged, and no leader elected, before the disks have synced it.

It needs a scenario with slow disks (``sync_ms``). A sync that makes a write durable begins after the request of the write. So the
answer arrives no earlier than a sync after the request. A candidate sends its requests for votes after its own vote is on disk,
and a voter answers after its vote is on disk. So a node becomes leader no earlier than two syncs after it was seen in an earlier
term. These are lower limits, so a slow machine cannot violate them.
"""

from collections.abc import Iterator

from replicated_namesrv.chaos.checks.registration_history import has_slave
from replicated_namesrv.chaos.checks.story import CheckResult, Promise, Story, result
from replicated_namesrv.chaos.node_disk import has_disk
from replicated_namesrv.chaos.records import Election

DURABLE = "writes and votes are durable"
EARLY_NS = 5_000_000
"""A timed wait may end too early by up to this much."""


def has_slow_disks(story: Story) -> bool:
    """Whether each sync of a node takes longer in this run."""
    return bool(story.manifest["scenario"].get("sync_ms")) and has_disk(story.manifest.get("node_command", ()))


def check_durability(story: Story) -> CheckResult:
    """No KV write, and in CP no registration with new content, is acknowledged within the time of a sync. In CP no leader is
    elected within the time of two syncs."""
    sync_ns = int(story.manifest["scenario"]["sync_ms"]) * 1_000_000 - EARLY_NS
    kinds = ("put", "delete", "register") if story.mode == "cp" else ("put", "delete")
    writes = [op for op in story.of_kind(*kinds) if op.ok and (op.kind != "register" or not has_slave(op.key))]
    wrong = [
        f"{story.ms(op.start_ns)}: {op.node} acknowledged {op.kind} {op.key} after {_ms(op.end_ns - op.start_ns)}, "
        f"before a sync of {_ms(sync_ns + EARLY_NS)}"
        for op in writes
        if op.end_ns - op.start_ns < sync_ns
    ]
    elected = list(_elections(story))
    for election, before_ns in elected:
        if election.time_ns - before_ns < 2 * sync_ns:
            took = _ms(election.time_ns - before_ns)
            wrong.append(f"{story.ms(election.time_ns)}: {election.node} leads term {election.term} {took} after an earlier term")
    return result(DURABLE, Promise.BOTH, len(writes) + len(elected), wrong)


def _elections(story: Story) -> Iterator[tuple[Election, int]]:
    """Each election with the last time at which the new leader certainly had an earlier term."""
    for record in story.trace.records:
        if not isinstance(record, Election):
            continue
        before = [
            one.asked_ns
            for one in story.statuses
            if one.node == record.node and one.term is not None and one.term < record.term and one.asked_ns < record.time_ns
        ]
        if before:
            yield record, max(before)


def _ms(length_ns: int) -> str:
    return f"{length_ns / 1e6:.0f} ms"

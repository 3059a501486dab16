"""The checks of the group ``sample``, about which everything is known.

Every answer about this group is one of a few (``sample_group.py``). So these checks judge every field of an answer, and requests
that other checks do not judge.
"""

from collections import defaultdict
from collections.abc import Iterable

from replicated_namesrv.chaos.checks.listed_brokers import changes_of, must_be_listed
from replicated_namesrv.chaos.checks.node_promises import lost_disks
from replicated_namesrv.chaos.checks.real_time import overtaken
from replicated_namesrv.chaos.checks.story import NEVER_NS, CheckResult, Op, Promise, Story, result, unless_stalled
from replicated_namesrv.chaos.recorded_brokers import VERSION
from replicated_namesrv.chaos.sample_group import ABSENT, ANSWER, BROKER, RIGHT, UNORDERED

ANSWERS, VERSIONS = "whole answers", "data versions"
NEAR_NS = 2_000_000_000
"""Maximum time of the three successive reads of a node that ``_shown`` compares."""


def check_answers(story: Story) -> CheckResult:
    """No node gives an answer about the group ``sample`` that is wrong in any field, or lacks what the node must have."""
    asked = [op for op in story.of_kind(ANSWER) if op.key in RIGHT]
    changes, orders = changes_of(story, BROKER), list(story.of_kind("order-conf"))
    wrong: list[str] = []
    missing: list[str] = []
    looked_at = left_out = 0
    shown = _shown(asked)
    for read in (op for op in asked if op.ok):
        lacks: str | None = None
        if read.value == UNORDERED.get(read.key):
            lacks = "the order configuration, which it had" if _is_ordered(story, orders, read) else ""
        elif read.value == ABSENT.get(read.key) != RIGHT[read.key]:
            lacks = "the broker, which had registered" if must_be_listed(story, BROKER, changes, read) else ""
        elif read.value != RIGHT[read.key]:
            wrong.append(f"{story.ms(read.start_ns)}: {read.node} answers {read.key}: {read.value} instead of {RIGHT[read.key]}")
        looked_at += lacks != ""
        left_out += lacks == ""
        if lacks:
            found = wrong if read.op in shown else missing
            found.append(f"{story.ms(read.start_ns)}: {read.node} answers {read.key} without {lacks}")
    exempt = {"answers without what the node need not have": left_out}
    judged = result(ANSWERS, Promise.BOTH, looked_at, [*wrong, *missing], exempt, due=bool(asked))
    return judged if wrong else unless_stalled(story, judged)  # only a missing broker can be an effect of slowness


def _shown(asked: Iterable[Op]) -> set[int]:
    """The reads just before and after which the same node answered another question as if the broker were registered. So slowness
    is no excuse if such a read lacks the broker."""
    by_node: defaultdict[str | None, list[Op]] = defaultdict(list)
    for op in sorted(asked, key=lambda op: op.start_ns):
        if op.ok and RIGHT[op.key] != ABSENT.get(op.key, RIGHT[op.key]):
            by_node[op.node].append(op)
    return {
        read.op
        for reads in by_node.values()
        for before, read, after in zip(reads, reads[1:], reads[2:], strict=False)
        if before.value == RIGHT[before.key] and after.value == RIGHT[after.key] and after.end_ns - before.start_ns < NEAR_NS
    }


def _is_ordered(story: Story, orders: list[Op], read: Op) -> bool:
    """Whether the node must have the order configuration, which is written once."""
    written = [op for op in orders if op.ok and op.end_ns < read.start_ns and (story.mode == "cp" or op.node == read.node)]
    lost = [disk.time_ns for disk in lost_disks(story) if story.mode == "ap" and read.node in disk.nodes]
    return any(all(op.start_ns > lost_ns for lost_ns in lost) for op in written)


def check_versions(story: Story) -> CheckResult:
    """The answer to ``QUERY_DATA_VERSION`` (322) names the version of the broker that is stored, and whether the broker asked for
    another one."""
    asked = [op for op in story.of_kind(VERSION) if op.ok]
    wrong: list[str] = []
    missing: list[str] = []
    looked_at = left_out = 0
    changes = {broker: changes_of(story, broker) for broker in {op.key for op in asked}}
    for read in asked:
        mine = [op for op in story.copies_of(read.key) if op.outcome != "fail" and (story.mode == "cp" or op.node == read.node)]
        when = f"{story.ms(read.start_ns)}: {read.node}"
        if read.value is None:
            must = must_be_listed(story, read.key, changes[read.key], read)
            looked_at += must is True
            left_out += must is not True
            if must:
                missing.append(f"{when} does not know {read.key}, which had registered")
            continue
        looked_at += 1
        if overtaken(read, [op if op.ok else op._replace(end_ns=NEVER_NS) for op in mine]):
            wrong.append(f"{when} answers that it has version {read.value} of {read.key}, which is not the last one")
    exempt = {"answers of a node that need not know the broker": left_out}
    judged = result(VERSIONS, Promise.BOTH, looked_at, [*wrong, *missing], exempt, due=bool(asked))
    return judged if wrong else unless_stalled(story, judged)  # only a missing broker can be an effect of slowness

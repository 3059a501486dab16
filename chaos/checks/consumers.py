"""The effect of different routes on message consumption: which consumer would read which queue if each asked another node.

Each consumer of a group computes its share of a topic's queues from its own route (``AllocateMessageQueueAveragely``). With
equal routes every queue belongs to one consumer. With different routes some queues belong to two consumers, which both receive
their messages, and some to none, whose messages wait.
"""

from collections import Counter, defaultdict
from typing import NamedTuple

from replicated_namesrv.chaos.checks.story import Op, Story

QUEUES_PER_BROKER = 4
"""Number of queues that producers ask for by default (``DefaultMQProducer.defaultTopicQueueNums``)."""


class Sharing(NamedTuple):
    """Queue counts over all probes. Each probe's queues are shared among one consumer per node that was asked."""

    queues: int
    doubled: int
    """Number of queues assigned to several consumers."""
    orphaned: int
    """Number of queues assigned to no consumer, although at least one node lists the broker."""


def sharing(story: Story) -> Sharing:
    """The sharing, summed over all probes of routes. A consumer whose node did not answer uses the answer of another node."""
    probes: defaultdict[int, list[Op]] = defaultdict(list)
    for op in story.of_kind("route"):
        if op.probe is not None and story.judged.start_ns <= op.start_ns < story.judged.end_ns:
            probes[op.probe].append(op)
    found = Counter({"queues": 0, "doubled": 0, "orphaned": 0})
    for answers in probes.values():
        views = [_queues(op) for op in sorted(answers, key=lambda op: op.node or "") if op.ok]
        if views:
            found.update(_shared([*views, *views[:1] * (len(answers) - len(views))]))
    return Sharing(**found)


def _queues(op: Op) -> list[tuple[str, int]]:
    masters = sorted(member.name for member in op.members if member.name.endswith("/0"))
    return [(master, queue) for master in masters for queue in range(QUEUES_PER_BROKER)]


def _shared(views: list[list[tuple[str, int]]]) -> Counter[str]:
    taken = Counter(queue for place, view in enumerate(views) for queue in allocated(view, place, len(views)))
    listed = {queue for view in views for queue in view}
    doubled = sum(count > 1 for count in taken.values())
    return Counter({"queues": len(listed), "doubled": doubled, "orphaned": len(listed - taken.keys())})


def allocated(queues: list[tuple[str, int]], place: int, consumers: int) -> list[tuple[str, int]]:
    """The queues of the consumer at ``place`` among ``consumers``: equal shares; if there is a remainder, the first consumers get
    one queue more.
    """
    size, longer = divmod(len(queues), consumers)
    start = place * size + min(place, longer)
    return queues[start : start + size + (place < longer)]

"""What different views do to messages: who would read which queue, if a consumer asked each node.

The consumers of a group share the queues of a topic among themselves, each by itself and by the route that it was given
(``AllocateMessageQueueAveragely``): with equal routes every queue is one consumer's. Where routes differ, queues become two
consumers', who both get their messages, or nobody's, whose messages wait.
"""

from collections import Counter, defaultdict
from typing import NamedTuple

from replicated_namesrv.chaos.checks.story import Op, Story

QUEUES_PER_BROKER = 4
"""As many as producers ask for by default (``DefaultMQProducer.defaultTopicQueueNums``)."""


class Sharing(NamedTuple):
    """Queues over all probes, each shared among a consumer per node."""

    queues: int
    doubled: int
    """Taken by several consumers."""
    orphaned: int
    """Taken by none, though some node lists the broker."""


def sharing(story: Story) -> Sharing:
    """Of every probe of a route; a consumer whose node did not answer has moved on to one that did."""
    probes: defaultdict[int, list[Op]] = defaultdict(list)
    for op in story.of_kind("route"):
        if op.probe is not None and story.judged.start_ns <= op.start_ns < story.judged.end_ns:
            probes[op.probe].append(op)
    found = Counter({"queues": 0, "doubled": 0, "orphaned": 0})
    for answers in probes.values():
        views = [_queues(op) for op in sorted(answers, key=lambda op: op.node or "") if op.ok]
        if views:
            found.update(_shared([*views, *views[:1] * (len(story.nodes) - len(views))]))
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
    """What the consumer at ``place`` among ``consumers`` takes: all take equally many, the first ones one more if need be."""
    size, longer = divmod(len(queues), consumers)
    start = place * size + min(place, longer)
    return queues[start : start + size + (place < longer)]

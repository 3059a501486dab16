"""Leadership over time (metric M18): how many nodes consider themselves leader, from samples of every node's status. Pure."""

from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

SAMPLE_HOLDS_NS = 1_500_000_000
"""Time for which a sample is valid, unless the node has a newer one. Nodes are sampled at least once a second."""

Row = dict[str, Any]


def leader_spans(samples: Iterable[Row]) -> list[Row]:
    """Rows of LEADER_SPANS from records ``status`` by time: the number of nodes that considered themselves leader.

    The spans reach from the first sample that names a role to the last one. If no node has a valid sample because the observer
    stalled, there is no span."""
    of_node: defaultdict[str, list[Row]] = defaultdict(list)
    for sample in samples:
        of_node[sample["node"]].append(sample)
    steps: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0])
    bounds: list[int] = []
    for mine in of_node.values():
        for place, sample in enumerate(mine):
            at_ns = sample["time_ns"]
            next_ns = mine[place + 1]["time_ns"] if place + 1 < len(mine) else at_ns
            until_ns = min(next_ns, at_ns + SAMPLE_HOLDS_NS)
            leads = int(sample["role"] == "leader" and bool(sample["answered"]))
            for moment, sign in ((at_ns, 1), (until_ns, -1)):
                steps[moment][0] += sign
                steps[moment][1] += sign * leads
            if sample["role"] is not None:
                bounds += [at_ns, until_ns]
    rows, known, leaders = [], 0, 0
    first_ns, last_ns = min(bounds, default=0), max(bounds, default=0)
    for start_ns, end_ns in pairwise(sorted(steps)):
        known, leaders = known + steps[start_ns][0], leaders + steps[start_ns][1]
        if start_ns >= first_ns and end_ns <= last_ns and known > 0:
            rows.append({"start_ns": start_ns, "end_ns": end_ns, "leaders": leaders})
    return rows

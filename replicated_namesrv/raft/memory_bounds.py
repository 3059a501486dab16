"""Sizes that peers, network and disk can make grow: the current size and the bound of each.

The simulator checks them after every turn of every node. Bounds follow from ``RaftConfig`` and from constants of the parts;
each part states its own in ``memory``. The content of the state machine is not included.
"""

from collections.abc import Mapping

Bounded = tuple[int, int]
"""(size, bound): a count or a number of bytes, and its maximum."""


def exceeded(sizes: Mapping[str, Bounded]) -> dict[str, Bounded]:
    """The sizes beyond their bounds."""
    return {name: pair for name, pair in sizes.items() if pair[0] > pair[1]}

"""Sizes that must stay bounded, whatever peers, network and disk do: what each part holds now, and its stated bound.

The simulator checks them after every turn of every node. Bounds follow from ``RaftConfig`` and from constants of the parts; each
part states its own in ``memory``. What is registered in the state machine is no part of this.
"""

from collections.abc import Mapping

Bounded = tuple[int, int]
"""(size, bound): a count or bytes, and the most that it may ever be."""


def exceeded(sizes: Mapping[str, Bounded]) -> dict[str, Bounded]:
    """Those beyond their bound."""
    return {name: pair for name, pair in sizes.items() if pair[0] > pair[1]}

"""Sizes that must stay bounded, whatever peers, network and disk do: what each part holds now, and its stated bound.

The simulator checks them after every turn of every node. Bounds follow from ``RaftConfig`` and from constants of the parts; each
part states its own in ``memory``. What is registered in the state machine is no part of this.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from replicated_namesrv.raft.node import RaftNode

Bounded = tuple[int, int]
"""(size, bound): a count or bytes, and the most that it may ever be."""


def memory_of(node: "RaftNode") -> dict[str, Bounded]:
    """Every bounded size of ``node`` by name. Costs a few microseconds, whatever the sizes are."""
    return {
        **node.memory_of_guard(),
        **node.replication.memory(),
        **node.proposals.memory(),
        **node.reads.memory(),
        **node.digests.memory(),
    }


def exceeded(sizes: Mapping[str, Bounded]) -> dict[str, Bounded]:
    """Those beyond their bound."""
    return {name: pair for name, pair in sizes.items() if pair[0] > pair[1]}

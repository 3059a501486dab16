"""Merges the time lines of several nodes into one without duplicates. Pure.

    entry of another node          in the result                      test
    requested; the node was        shown, with ``node``               test_entries_about_a_node_itself_name_it
      fenced, serves, or stalled
    leader                         the first entry of each leader     test_a_leader_that_several_nodes_saw_is_one_entry
                                   and term
    peer-lost, peer-back           joined with the entry of another   test_a_loss_that_several_nodes_saw_is_one_entry
                                   observer about the same peer, if
                                   the times are at most JOIN_MS
                                   apart
    other kinds, or malformed      left out: in CP this node has the  test_other_entries_are_left_out
                                   same, in AP they concern one node

An entry about a peer has its observers in ``seenBy``.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

LEADER = "leader"
PEER_KINDS = PEER_LOST, PEER_BACK = "peer-lost", "peer-back"
REQUESTED = "requested"
NODE_KINDS = (REQUESTED, "fenced", "unfenced", "serving", "not-serving", "stalled")
"""Kinds of entries about the node that wrote them."""
SHARED_KINDS = (*NODE_KINDS, LEADER, *PEER_KINDS)
"""Kinds that are requested from the other nodes."""
JOIN_MS = 15_000
"""Maximum time between two observations of the same loss. Observers notice a closed connection at once and a silent one after 2 s
by default, their clocks can differ, and a peer that returns is dialled within some seconds."""

Entry = dict[str, Any]


def merged(own: Iterable[Entry], others: Mapping[str, Sequence[object]]) -> list[Entry]:
    """All entries, the newest first. ``others``: by node, the entries of its time line, from the network."""
    entries = [*own, *(_named(entry, node) for node, given in others.items() for entry in given if _is_shared(entry))]
    result, leaders, losses = list[Entry](), set[tuple[object, object]](), dict[tuple[object, object], Entry]()
    for entry in sorted(entries, key=lambda entry: entry["timeMs"]):
        if entry["kind"] == LEADER and entry.get("leader"):
            leader = (entry["leader"], entry.get("term"))
            if leader in leaders:
                continue
            leaders.add(leader)
        elif entry["kind"] in PEER_KINDS:
            about = (entry["kind"], entry["peer"])
            joined = losses.get(about)
            if joined is not None and _is_same(joined, entry):
                joined["seenBy"] = sorted({*joined["seenBy"], *entry["seenBy"]})
                joined["sinceMs"] = max(joined["sinceMs"], entry["sinceMs"])
                continue
            losses[about] = entry = dict(entry)
        result.append(entry)
    return result[::-1]


def _is_shared(entry: object) -> bool:
    """Whether an answer of another node is an entry to show. Any program can listen at its address."""
    if not isinstance(entry, dict) or not isinstance(entry.get("timeMs"), int):
        return False
    kind = entry.get("kind")
    if kind in PEER_KINDS:
        return isinstance(entry.get("peer"), str) and isinstance(entry.get("sinceMs"), int)
    return kind in NODE_KINDS or (kind == LEADER and isinstance(entry.get("leader"), str) and isinstance(entry.get("term"), int))


def _named(entry: Any, node: str) -> Entry:
    named: Entry = {**entry, "number": f"{node} {entry.get('number')}"}
    if named["kind"] in PEER_KINDS:
        return {**named, "seenBy": [node]}
    return named if named["kind"] == LEADER else {**named, "node": node}


def _is_same(joined: Entry, entry: Entry) -> bool:
    return entry["timeMs"] - joined["timeMs"] <= JOIN_MS and set(joined["seenBy"]).isdisjoint(entry["seenBy"])

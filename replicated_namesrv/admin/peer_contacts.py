"""The contact with each peer according to Raft, and PeerWatch: when a peer was lost and came back. Pure.

PeerWatch looks at the contacts at regular intervals. A look is late if the node was paused before it. A late look has no
result, because bytes that arrived during the pause may not be read yet.

    look          contact now              before       result     test
    late          any                      any          none       test_paused_node_blames_no_peer
    in time       no connection            in contact   lost       test_peer_is_lost_and_comes_back[closed]
    in time       open, silent too long    in contact   lost       test_peer_is_lost_and_comes_back[silent]
    in time       no connection, or open   lost         none       test_peer_is_lost_and_comes_back
                  and silent too long
    in time       no connection, or open   unknown      none       test_peer_without_a_first_contact_is_not_lost
                  and silent too long
    in time       open, bytes arrive       lost         back       test_peer_is_lost_and_comes_back
    in time       open, bytes arrive       otherwise    none       test_peer_is_lost_and_comes_back
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from replicated_namesrv.admin.other_nodes import TIMEOUT_S

SILENT_HEARTBEATS = 40
"""A peer is silent if its connection is open and nothing has arrived over it for this many heartbeats: 2 s by default. Two peers
exchange messages at least every fourth heartbeat, even if both are followers (`membership.py`)."""
CLOSED = "its connection ended"
SILENT = "nothing arrives over its open connection"


def peers_of(raft: Mapping[str, Any], silent_ms: int) -> dict[str, dict[str, Any]]:
    """The facts that this node's Raft knows about the other nodes, by node id. ``silentMs`` is None if the node has no connection
    to this one. A node of protocol 0 (version 0.1) is never ``silent``: it sends nothing to another node if both are
    followers."""
    found = {}
    for name, facts in raft.get("transport", {}).get("peers", {}).items():
        age_ms = None if facts["silent_s"] is None else int(1000 * facts["silent_s"])
        is_silent = age_ms is not None and age_ms > silent_ms and raft["peers"].get(name, {}).get("protocol", 0) > 0
        found[name] = {"connected": facts["connected"], "error": facts["error"], "silentMs": age_ms, "silent": is_silent}
    for name, facts in raft.get("followers", {}).items():
        found.setdefault(name, {}).update(matchIndex=facts["match_index"], state=facts["state"])
    return found


def contact_of(peer: Mapping[str, Any], failing_ms: int | None) -> tuple[bool, int | None]:
    """For a node whose admin port does not answer: whether bytes over its Raft connection prove that it runs; and for how long it
    has been silent, or None if it is not silent. Bytes are a proof only if they arrived after the first request without an
    answer."""
    age_ms = peer.get("silentMs")
    if age_ms is None or peer["silent"]:
        return False, age_ms
    return failing_ms is not None and age_ms + 1000 * TIMEOUT_S < failing_ms, None


class PeerChange(NamedTuple):
    """A peer was lost or came back."""

    peer: str
    contact_ms: int
    """The last contact before the loss, on the wall clock."""
    why: str | None
    """Why the peer counts as lost; None: it came back."""


class PeerWatch:
    """Compares what is known about the peers with the previous look."""

    def __init__(self) -> None:
        self._contact_ms: dict[str, int] = {}
        """Last contact with each peer, on the wall clock. After a loss it keeps its value until the peer comes back."""
        self._lost: set[str] = set()

    def look(self, peers: Mapping[str, Mapping[str, Any]], is_late: bool, wall_ms: int) -> list[PeerChange]:
        """The losses and returns since the last look. ``peers``: from ``peers_of``. ``is_late``: this node was paused since
        then."""
        self._contact_ms = {peer: at_ms for peer, at_ms in self._contact_ms.items() if peer in peers}
        self._lost.intersection_update(peers)
        return [] if is_late else [change for peer, facts in peers.items() for change in self._judge(peer, facts, wall_ms)]

    def _judge(self, peer: str, facts: Mapping[str, Any], wall_ms: int) -> list[PeerChange]:
        silent_ms, contact_ms = facts.get("silentMs"), self._contact_ms.get(peer)
        why = CLOSED if silent_ms is None else SILENT if facts["silent"] else None
        if why is None:
            self._contact_ms[peer] = wall_ms - int(silent_ms or 0)
            if peer in self._lost and contact_ms is not None:
                self._lost.discard(peer)
                return [PeerChange(peer, contact_ms, None)]
        elif contact_ms is not None and peer not in self._lost:
            self._lost.add(peer)
            return [PeerChange(peer, contact_ms, why)]
        return []

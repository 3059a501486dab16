"""The members of a cluster in the form of ``/v1/members``."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from replicated_namesrv.raft.members import Kind
from replicated_namesrv.replication.member_descriptions import Description, described
from replicated_namesrv.replication.peer_settings import known_members
from replicated_namesrv.service import NodeAddress
from replicated_namesrv.settings import Settings


def members_of(
    settings: Settings,
    standing: Mapping[str, Any] | None,
    raft_status: Callable[[], Mapping[str, Any]],
    addresses: Sequence[NodeAddress],
) -> list[dict[str, object]]:
    """One row for each member. Fields that only the leader knows are None on another node."""
    peers = known_members(settings)
    raft = {} if standing is None else raft_status()
    kinds, descriptions = {}, dict[str, Description]()
    for name, kind, _, host, port, details in raft.get("member_rows") or ():
        kinds[name], descriptions[name] = Kind(kind), described(details)
        if host:
            peers[name] = host, port
    followers, voters, leader = raft.get("followers") or {}, raft.get("voters") or {}, raft.get("leader")
    rows = []
    for found in addresses:
        name, is_self = found.node_id, found.node_id == settings.node_id
        progress = followers.get(name)
        match = raft.get("last_index") if is_self else None if progress is None else progress["match_index"]
        host, port = peers.get(name, ("", 0))
        told = descriptions.get(name, Description())
        if found.address:  # it has reported its values itself, which may be newer than the log
            told = Description(found.address, found.admin, found.zone)
        rows.append(
            {
                "nodeId": name,
                "peerAddress": f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
                "address": told.address or None,
                "adminAddress": told.admin or None,
                "serves": found.serves,
                "drained": found.drained,
                "zone": told.zone or None,
                "role": "observer" if kinds.get(name) is Kind.OBSERVER else _role(name, leader, is_self, raft, progress, voters),
                "connected": True if is_self else None if progress is None else progress["connected"],
                "incarnation": voters.get(name) or None,
                "matchIndex": match,
                "lag": None if match is None else max(0, int(raft["last_index"]) - int(match)),
            }
        )
    return rows


def _role(
    name: str,
    leader: str | None,
    is_self: bool,
    raft: Mapping[str, Any],
    progress: Mapping[str, Any] | None,
    voters: Mapping[str, int],
) -> str:
    """leader, voter or learner. If this node does not lead, it knows only whether another node's place (``raft/members.py``) is
    vacant (learner) or not (voter)."""
    if name == leader:
        return "leader"
    votes = (
        progress["votes"]
        if progress is not None
        else voters.get(name) == raft.get("incarnation")
        if is_self
        else voters.get(name)
    )
    return "voter" if votes else "learner"

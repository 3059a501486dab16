"""The description of each member in the log: where brokers, clients and administrators reach it, and its zone.

Every node reports these values to the others once a second (``node_addresses.py``). The leader writes those that differ from the
log into it, one member at a time. So they are known after a restart, and of members that are down. A cluster whose members never
changed has no members in its log, and gets no descriptions: an earlier version could not read its log any more.
"""

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from replicated_namesrv.raft.member_changes import MemberChange
from replicated_namesrv.raft.members import RaftMember
from replicated_namesrv.service import NodeAddress

CHECK_MS = 1_000.0
RETRY_MS = 5_000.0
"""Pause after a description that was not written, for example because a change of an operator is in progress."""


class Description(NamedTuple):
    """The text of a member in the log, as JSON list."""

    address: str = ""
    """host:port for brokers and clients; empty: not known."""
    admin: str = ""
    """host:port for administrators; empty: none that other machines reach, or not known."""
    zone: str = ""


def described(details: str) -> Description:
    """The reverse of ``details_of``. A text that is none gives an empty description."""
    try:
        values = json.loads(details)
    except (ValueError, RecursionError):
        return Description()
    if not isinstance(values, list) or [type(value) for value in values] != [str, str, str]:
        return Description()
    return Description(*values)


def details_of(node: NodeAddress) -> str:
    """The text in the log for a node."""
    return json.dumps(Description(node.address, node.admin, node.zone))


class MemberDescriptions:
    """Decides on a leader which description is written next."""

    def __init__(self) -> None:
        self._due_ms = 0.0
        self._is_writing = False

    def is_due(self, now_ms: float) -> bool:
        """Whether it is time to compare. Then the next time is later."""
        if now_ms < self._due_ms or self._is_writing:
            return False
        self._due_ms = now_ms + CHECK_MS
        return True

    def begun(self) -> None:
        """A change is being written. Until it has ended, none is due."""
        self._is_writing = True

    def ended(self, now_ms: float, is_written: bool) -> None:
        """The change was written, or it failed."""
        self._is_writing = False
        self._due_ms = now_ms + (CHECK_MS if is_written else RETRY_MS)

    @staticmethod
    def next_change(members: Mapping[str, RaftMember], nodes: Sequence[NodeAddress]) -> MemberChange | None:
        """The change for the first member that reports other values than those in ``members``, which are in the log. None:
        there is none. ``nodes``: the nodes that reported lately. An older report may be older than the description."""
        for node in nodes:
            member, details = members.get(node.node_id), details_of(node)
            if member is not None and node.address and member.details != details:
                return MemberChange("describe", node.node_id, details=details)
        return None

"""The members of a cluster as state in the log, and the encoding of the entry that contains them.

A MEMBERS entry contains every member after one change, in the order of the names: JSON rows of name, kind, incarnation, host,
port, details. Only voters have a place: a quorum is a majority of the places, vacant or not.
"""

import json
from collections.abc import Mapping
from enum import IntEnum
from ipaddress import ip_address
from typing import NamedTuple

from replicated_namesrv.raft.raft_errors import MalformedError

VACANT = 0
"""Used instead of an incarnation if a place is vacant, or if the incarnation of a learner or observer is not in the log yet."""
MEMBERS_MAX = 64
"""Maximum number of members of a cluster. Every node has two connections with each other member."""
VOTERS_MAX = 7
"""Maximum number of voters of a cluster. Each commit waits for a majority of them."""
NAME_BYTES_MAX, HOST_BYTES_MAX, DETAILS_BYTES_MAX = 200, 255, 2_048
MEMBERS_ENTRY = b"\x00\x02"


class Kind(IntEnum):
    """The kind of a member. Every kind receives the log."""

    VOTER = 1
    LEARNER = 2
    """The member becomes a voter when it keeps up."""
    OBSERVER = 3
    """The member does not vote until it is promoted."""


class RaftMember(NamedTuple):
    kind: Kind = Kind.VOTER
    incarnation: int = VACANT
    host: str = ""
    """Address at which the other members reach this one. The host is empty for a member of a static cluster, whose address is in
    the configuration."""
    port: int = 0
    details: str = ""
    """A text that the user of this package defines."""

    @property
    def votes(self) -> bool:
        return self.kind is Kind.VOTER


Members = Mapping[str, RaftMember]


def founding_members(founders: Mapping[str, int]) -> dict[str, RaftMember]:
    """The members of a cluster without a MEMBERS entry."""
    return {name: RaftMember(Kind.VOTER, incarnation) for name, incarnation in founders.items()}


def places(members: Members) -> frozenset[str]:
    """Names of the voters, vacant places included."""
    return frozenset(name for name, member in members.items() if member.votes)


def quorum_of(members: Members) -> int:
    """How many voters are a majority of the places."""
    return len(places(members)) // 2 + 1


def places_changed(before: Members, after: Members) -> int:
    """How many places a change adds or removes. More than one: quorums before and after it need not share a voter."""
    return len(places(before) ^ places(after))


def rows_of(members: Members) -> list[list[object]]:
    """JSON-able, sorted: equal members give equal rows."""
    return [[name, int(m.kind), m.incarnation, m.host, m.port, m.details] for name, m in sorted(members.items())]


def members_of(rows: object) -> dict[str, RaftMember]:
    """The reverse of ``rows_of``. Raises ValueError for anything else."""
    if not isinstance(rows, list) or len(rows) > MEMBERS_MAX:
        raise ValueError("members are a list of rows")
    members: dict[str, RaftMember] = {}
    for row in rows:
        if not isinstance(row, list) or len(row) != 6 or [type(value) for value in row] != [str, int, int, str, int, str]:
            raise ValueError("a member is name, kind, incarnation, host, port and details")
        name, kind, incarnation, host, port, details = row
        member = RaftMember(Kind(kind), incarnation, host, port, details)
        if (problem := problem_of(name, member)) is not None or name in members:
            raise ValueError(problem or f"{name} is given twice")
        members[name] = member
    return members


def problem_of(name: str, member: RaftMember) -> str | None:
    """Why ``member`` cannot be a member, None if it can."""
    for what, text, most in (
        ("name", name, NAME_BYTES_MAX),
        ("host", member.host, HOST_BYTES_MAX),
        ("details", member.details, DETAILS_BYTES_MAX),
    ):
        if len(text.encode(errors="surrogatepass")) > most:
            return f"the {what} of a member has at most {most} bytes"
    if not name or not 0 <= member.port < 1 << 16 or not 0 <= member.incarnation < 1 << 64:
        return "a member has a name, a port below 65536 and an incarnation of 64 bits"
    return None


def is_for_listening(host: str, port: int) -> bool:
    """Whether a node can listen at this address, but no other node can connect to it: a wildcard, or port 0."""
    try:
        return (port == 0 and host != "") or ip_address(host).is_unspecified
    except ValueError:
        return False


def pack_members(members: Members) -> bytes:
    """A MEMBERS entry."""
    return MEMBERS_ENTRY + json.dumps(rows_of(members), separators=(",", ":")).encode()


def unpack_members(payload: bytes) -> dict[str, RaftMember]:
    """The members of a MEMBERS entry. Raises MalformedError."""
    try:
        return members_of(json.loads(payload[len(MEMBERS_ENTRY) :]))
    except (ValueError, RecursionError) as error:
        raise MalformedError(f"an entry of members is malformed: {error}") from None

"""The configuration of a group: its members, and the incarnation that votes for each place. Each voter has one place.

A promotion of a node that lost its disk takes two entries, a vacancy and a join, one after the other. Members are added, removed
and promoted by MEMBERS entries (``members.py``). Each change is in force on a node from the moment it is in that node's log, as
in single-server membership changes (dissertation, 4.1). A quorum before a change and one after it share a voter that is the same
incarnation in both. A join that replaced one incarnation by another at once would not have this property.

For a change that is in the log but not applied yet, the first row that matches says from when it is in force:

| row | change  | place before | in force     | why                                                                       |
|-----|---------|--------------|--------------|---------------------------------------------------------------------------|
| C1  | vacancy | any          | in the log   | each quorum after it is a quorum before it, too                           |
| C2  | join    | vacant       | in the log   | each quorum after it shares a voter with each quorum before it            |
| C3  | join    | occupied     | when applied | versions before protocol 1 write it; quorums may share no such voter       |
| C4  | members | any          | in the log   | it adds or removes at most one place (``DESIGN.md``, "Membership changes") |

Tests: ``tests/raft/test_lost_memory.py::test_configuration_by_rows``, ``tests/raft/test_members.py``. Transcripts:
``tests/golden/raft/lost_disk.txt``, ``join_of_an_older_version.txt``.
"""

from collections.abc import Callable, Mapping

from replicated_namesrv.raft.members import (
    MEMBERS_ENTRY,
    VACANT,
    Kind,
    Members,
    RaftMember,
    founding_members,
    pack_members,
    places,
    places_changed,
    quorum_of,
    unpack_members,
)
from replicated_namesrv.raft.payloads import JOIN, pack_join, unpack_join
from replicated_namesrv.raft.raft_errors import InvariantError

Change = tuple[str, int] | dict[str, RaftMember]
"""(node, incarnation) of a vacancy or join, or all members."""


def change_in(payload: bytes) -> Change | None:
    """The change of the configuration in an entry, None if it has none. Raises MalformedError."""
    if payload[:2] == JOIN:
        return unpack_join(payload)
    return unpack_members(payload) if payload[:2] == MEMBERS_ENTRY else None


class Configuration:
    """The members, as applied and as of the last entry of the log.

    The applied members belong to the replicated state. The members as of the last entry decide which votes and acknowledgements
    count.
    """

    def __init__(self, voters: Mapping[str, int], in_log: bool) -> None:
        """``voters``: the founders. ``in_log`` False: a change is in force only after it is applied
        (``Defences.changes_in_log``)."""
        self._in_log = in_log
        self.on_change: Callable[[], None] = lambda: None
        """Called after the applied or the latest configuration has changed."""
        self._waiting: list[tuple[int, Change]] = []
        """Changes in the log that are not applied yet, as (index, change), in ascending order."""
        self.is_static = True
        """True while no MEMBERS entry has been applied: the members are the founders, and their addresses are in the settings."""
        self.applied_members: Members = founding_members(voters)
        self.members: Members
        """The members of the latest configuration."""
        self.applied: dict[str, int]
        """The incarnation of every member, by node, according to the applied entries."""
        self.applied_voters: dict[str, int]
        """The incarnation of every voter, by node, according to the applied entries."""
        self.latest: dict[str, int]
        """The incarnation of every voter, by node, according to the latest configuration in the log."""
        self.quorum: int
        """Number of voters that are a majority in the latest configuration."""
        self._update()

    @property
    def has_members_entry(self) -> bool:
        """Whether a MEMBERS entry is in the log, or was in a part that a snapshot replaced."""
        return not self.is_static or any(isinstance(change, dict) for _, change in self._waiting)

    @property
    def last_change(self) -> int:
        """Index of the newest change in the log that is not applied, 0 if there is none."""
        return self._waiting[-1][0] if self._waiting else 0

    def replace(self, voters: Mapping[str, int], members: Members | None = None) -> None:
        """Replace all members: the founders have become known, or a snapshot was restored. Changes that were not applied are
        forgotten. ``members`` None: no MEMBERS entry was applied, and all voters are founders."""
        self.is_static = members is None
        self.applied_members = founding_members(voters) if members is None else dict(members)
        self._waiting.clear()
        self._update()

    def added(self, index: int, payload: bytes) -> None:
        """An entry was appended to the log."""
        change = change_in(payload) if payload[:2] in (JOIN, MEMBERS_ENTRY) else None
        if change is not None:
            self._waiting.append((index, change))
            self._update()

    def cut(self, index: int) -> None:
        """The log was cut; ``index`` is the first entry removed."""
        if self._waiting:
            self._waiting = [change for change in self._waiting if change[0] < index]
            self._update()

    def apply(self, index: int, change: Change) -> None:
        """The change at ``index`` was applied."""
        self.applied_members = _changed(self.applied_members, change)
        self.is_static = self.is_static and not isinstance(change, dict)
        self._waiting = [waiting for waiting in self._waiting if waiting[0] > index]
        self._update()

    def _update(self) -> None:
        self.applied = {name: member.incarnation for name, member in self.applied_members.items()}
        self.applied_voters = {name: member.incarnation for name, member in self.applied_members.items() if member.votes}
        members = self.applied_members
        if self._in_log:
            for index, change in self._waiting:
                members = self._with_unapplied(members, index, change)
        self.members = members
        self.latest = {name: member.incarnation for name, member in members.items() if member.votes}
        self.quorum = quorum_of(members)
        self.on_change()

    def _with_unapplied(self, members: Members, index: int, change: Change) -> Members:
        if isinstance(change, dict):  # C4
            if places_changed(members, change) > 1:
                raise InvariantError(
                    f"entry {index} changes the voters from {sorted(places(members))} to {sorted(places(change))}: "
                    "more than one place at a time"
                )
            return change
        node, incarnation = change
        vacant = node in members and members[node].incarnation == VACANT
        return _changed(members, change) if incarnation == VACANT or vacant else members  # C1, C2; otherwise C3

    # The entries that a leader proposes

    def takes_vote_of(self, node: str) -> bool:
        """Whether a change in the log that is not applied takes the vote of ``node``."""
        return node not in self.latest and node in self.applied_members and self.applied_members[node].votes

    def is_unfinished(self, node: str, incarnation: int) -> bool:
        """Whether the log needs another entry for this incarnation of ``node`` once the node keeps up."""
        member = self.members.get(node)
        return member is not None and (member.incarnation != incarnation or member.kind is Kind.LEARNER)

    def next_change(self, node: str, incarnation: int) -> bytes | None:
        """The next entry that a member that keeps up needs: for a voter a vacancy or a join, for a learner its change to a voter,
        for an observer its incarnation. None: there is nothing to write."""
        member = self.members.get(node)
        if member is None or not self.is_unfinished(node, incarnation):
            return None
        if member.votes:
            return pack_join(node, incarnation if member.incarnation == VACANT or not self._in_log else VACANT)
        kind = Kind.VOTER if member.kind is Kind.LEARNER else member.kind
        return self.with_member(node, member._replace(kind=kind, incarnation=incarnation))

    def with_member(self, node: str, member: RaftMember | None) -> bytes:
        """The MEMBERS entry that changes ``node`` to ``member``, or removes it if ``member`` is None."""
        members = {name: known for name, known in self.members.items() if name != node}
        return pack_members(members if member is None else {**members, node: member})


def _changed(members: Members, change: Change) -> Members:
    if isinstance(change, dict):
        return change
    node, incarnation = change
    return {**members, node: members[node]._replace(incarnation=incarnation)} if node in members else members

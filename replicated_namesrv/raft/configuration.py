"""The configuration of a group: which incarnation votes for each node.

A promotion takes two entries, a vacancy and a join, one after the other. Each is in force on a node from the moment it is in
that node's log, as in single-server membership changes (dissertation, 4.1): quorums of before and after either change share a
voter that is the same incarnation in both. A join that replaced one incarnation by another at once would not have this property.

A change that is in the log and not applied is in force by the first row that matches:

| row | change  | place before | in force     | why                                                                       |
|-----|---------|--------------|--------------|---------------------------------------------------------------------------|
| C1  | vacancy | any          | in the log   | each quorum after it is a quorum before it, too                           |
| C2  | join    | vacant       | in the log   | each quorum after it shares a voter with each quorum before it            |
| C3  | join    | occupied     | when applied | versions before protocol 1 write it; quorums may share no such voter       |

Test: ``tests/raft/test_lost_memory.py::test_configuration_by_rows``. Transcripts: ``tests/golden/raft/lost_disk.txt``,
``join_of_an_older_version.txt``.
"""

from replicated_namesrv.raft.payloads import JOIN, pack_join, unpack_join

VACANT = 0
"""Replaces the incarnation of a node whose place in the configuration is vacant."""


class Configuration:
    """Which incarnation votes for each node: as applied, and as of the last entry of the log.

    ``applied`` belongs to the replicated state. ``latest`` decides which votes and acknowledgements count.
    """

    def __init__(self, voters: dict[str, int], in_log: bool) -> None:
        """``in_log`` False: all changes are in force when they are applied (``Defences.changes_in_log``)."""
        self.applied, self._in_log = dict(voters), in_log
        self._waiting: list[tuple[int, str, int]] = []
        """(index, node, incarnation) of changes in the log that are not applied, ascending."""
        self.latest = dict(voters)

    @property
    def last_change(self) -> int:
        """Index of the newest change in the log that is not applied, 0 if there is none."""
        return self._waiting[-1][0] if self._waiting else 0

    def replace(self, voters: dict[str, int]) -> None:
        """The founders are known, or a snapshot was restored: there are no changes in the log after it."""
        self.applied = dict(voters)
        self._waiting.clear()
        self._update()

    def added(self, index: int, payload: bytes) -> None:
        """An entry was appended to the log."""
        if payload[:2] == JOIN:
            self._waiting.append((index, *unpack_join(payload)))
            self._update()

    def cut(self, index: int) -> None:
        """The log was cut; ``index`` is the first entry removed."""
        if self._waiting:
            self._waiting = [change for change in self._waiting if change[0] < index]
            self._update()

    def apply(self, index: int, node: str, incarnation: int) -> None:
        """The change at ``index`` was applied."""
        self.applied[node] = incarnation
        self._waiting = [change for change in self._waiting if change[0] > index]
        self._update()

    def _update(self) -> None:
        latest = dict(self.applied)
        if self._in_log:
            for _, node, incarnation in self._waiting:
                if incarnation == VACANT or latest.get(node) == VACANT:  # C1, C2; otherwise C3
                    latest[node] = incarnation
        self.latest = latest

    def next_change(self, node: str, incarnation: int) -> bytes | None:
        """The next entry on the way to a vote of ``incarnation`` for ``node``; None if it votes already."""
        place = self.latest.get(node)
        if place == incarnation:
            return None
        return pack_join(node, incarnation if place == VACANT or not self._in_log else VACANT)

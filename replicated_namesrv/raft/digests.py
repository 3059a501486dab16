"""Comparison of states: every node sends the others a digest of its state at certain indexes, and digests of equal indexes
must be equal.

The indexes are the multiples of ``digest_interval_entries`` and, when idle, the last applied one. If a majority of the voters
agrees on a digest and ours differs, this node stops: its state is wrong. If ours differs from a peer's and no majority agrees on
any, it is unknown which is right, and no node takes proposals or confirms reads until a majority has agreed again. A single voter
is a majority: an operator who removes all other voters decides which state is right. Digests are compared only between nodes of
one ``RaftConfig.digest_version``.
"""

from collections.abc import Callable

from replicated_namesrv.raft.interfaces import RaftState, Voters
from replicated_namesrv.raft.memory_bounds import Bounded
from replicated_namesrv.raft.node_context import NodeContext
from replicated_namesrv.raft.outbox import Outbox
from replicated_namesrv.raft.raft_errors import InvariantError
from replicated_namesrv.raft.raft_messages import DigestReport

REMEMBERED_INDEXES = 16


class Digests:
    def __init__(
        self,
        context: NodeContext,
        core: RaftState,
        voters: Voters,
        outbox: Outbox,
        digest_version: Callable[[str], int],
        state_digest: Callable[[], bytes],
    ) -> None:
        """``digest_version``: that of a peer. ``state_digest``: digest of the whole replicated state now."""
        self._context, self._config, self._defences = context, context.config, context.defences
        self._core, self._voters, self._outbox = core, voters, outbox
        self._digest_version, self._state_digest = digest_version, state_digest
        self._interval_entries = self._config.digest_interval_entries
        self._interval = self._config.digest_interval_ms / 1000
        self._by_index: dict[int, dict[str, bytes]] = {}
        self._reported_index = 0
        self._due_at = context.now() + self._interval
        self.mismatch_index = 0
        """Newest index at which digests differed without a majority; 0 if there is none."""
        self.compared = 0
        self.mismatches = 0

    @property
    def dissent(self) -> str | None:
        """Why it is unknown which state is right, None if it is known."""
        index = self.mismatch_index
        return f"the nodes' states differ at entry {index} and no majority agrees" if index else None

    def tick(self, now: float) -> None:
        if now < self._due_at:
            return
        self._due_at = now + self._interval
        applied = self._core.applied_index
        if applied >= self._core.commit_index and self._voters.is_voter:
            self.report(applied)

    def next_wakeup(self) -> float:
        return self._due_at

    def report(self, log_index: int) -> None:
        """Send the digest of the state to all peers, and compare it with theirs. The entry at ``log_index`` was applied just
        now."""
        if not (self._context.peers or self.mismatch_index) or not self._defences.digest_check:
            return
        reports = self._by_index.get(log_index, {})
        digest = reports.get(self._context.node_id) if self._reported_index == log_index else None
        if digest is None or log_index % self._interval_entries:
            digest = self._state_digest()
        self._reported_index = log_index
        for peer in filter(self._compares, self._context.peers):
            self._outbox.send(peer, DigestReport(*self._outbox.address(peer), log_index, digest))
        self._note(self._context.node_id, log_index, digest)

    def _compares(self, peer: str) -> bool:
        """Whether digests of ``peer`` have the same meaning as ours. If not, ours is not sent, because versions before
        protocol 1 compare every digest."""
        return self._digest_version(peer) == self._config.digest_version

    def on_report(self, peer: str, message: DigestReport) -> None:
        if not self._voters.counts(peer, message.source):
            return
        if not self._compares(peer):
            return
        self._note(peer, message.log_index, message.digest)
        # Answer once for each index. ``_by_index`` does not show whether an answer was sent: it drops the digests of a lagging
        # node as soon as 16 newer indexes are known. Two such nodes would answer each other without end.
        if message.log_index == self._core.applied_index and message.log_index != self._reported_index:
            self.report(message.log_index)

    def _note(self, name: str, log_index: int, digest: bytes) -> None:
        reports = self._by_index.setdefault(log_index, {})
        reports[name] = digest
        if len(self._by_index) > REMEMBERED_INDEXES:
            del self._by_index[min(self._by_index)]
        ours = reports.get(self._context.node_id)
        values = [value for member, value in reports.items() if member in self._context.voters]
        if ours is None or not values:
            return
        self.compared += len(reports) > 1
        self.mismatches += len({ours, *values}) > 1
        largest = max(values, key=values.count)
        if values.count(largest) >= self._context.quorum:
            if ours != largest:
                raise InvariantError(
                    f"the state after entry {log_index} differs from that of a majority: "
                    "move the data directory away; the node returns without a vote, copies the state and is then promoted"
                )
            if log_index >= self.mismatch_index:
                self.mismatch_index = 0
        elif values.count(ours) < len(values):
            self.mismatch_index = max(self.mismatch_index, log_index)

    def forget(self) -> None:
        """Our state was replaced by a snapshot."""
        for reports in self._by_index.values():
            reports.pop(self._context.node_id, None)
        self._reported_index = 0

    def memory(self) -> dict[str, Bounded]:
        """The memory used here, and its bounds."""
        return {"digests": (len(self._by_index), REMEMBERED_INDEXES)}

"""HeartbeatConfirmations: how old the state of this node is, from heartbeats and without rounds of ``ReadIndex``.

Every node has to notice within a time limit that it has lost contact with a majority, even if nobody reads. A read index confirms
the contact, but each one costs a round of messages. Heartbeats are exchanged anyway, and confirm the same:

- The *leader* has led, and no other node has led a later term, until the newest time of which a majority has answered heartbeats
  (``Replication.quorum_acknowledged_at``). Everything acknowledged before that time is applied here as soon as the commit index
  is.
- A *follower* sends a ConfirmationRequest with its answer to an append. The leader notes its commit index. When a majority has
  answered heartbeats that were sent after the request arrived, the leader sends the noted index with the next heartbeat. When the
  follower has applied that index, its state has everything acknowledged before it sent the request.

As for a read index (dissertation, 6.4), the leader must have committed an entry of its own term before it notes an index. A
confirmation is a fact about the past, so late and repeated messages do no harm. All times are times of the node's own clock.
"""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from replicated_namesrv.raft.interfaces import NEVER, RaftState
from replicated_namesrv.raft.leadership import Leadership
from replicated_namesrv.raft.members import MEMBERS_MAX
from replicated_namesrv.raft.memory_bounds import Bounded
from replicated_namesrv.raft.node_context import NodeContext
from replicated_namesrv.raft.outbox import Outbox
from replicated_namesrv.raft.raft_messages import Confirmation, ConfirmationRequest

REQUEST_HEARTBEATS = 1.5
"""Heartbeats after which a follower sends the next request. Without writes, it sends one with every second answer."""
IN_FLIGHT_MAX = 16
"""Maximum number of requests of one follower without a confirmation; then the oldest is forgotten. They cover at least
1.2 s (default heartbeat), so that long round trips do not prevent confirmations."""


class Noted(NamedTuple):
    """A follower's request that waits for heartbeats."""

    sequence: int
    arrived_at: float
    log_index: int


class HeartbeatConfirmations:
    """The confirmations of one node and, on a leader, the requests of the other nodes."""

    def __init__(
        self,
        context: NodeContext,
        core: RaftState,
        outbox: Outbox,
        leadership: Leadership,
        quorum_acknowledged_at: Callable[[], float],
        is_term_committed: Callable[[], bool],
        refused: Callable[[], str | None],
        first_sequence: int,
    ) -> None:
        """``quorum_acknowledged_at``: a majority has acknowledged what this leader sent at that time or later.
        ``is_term_committed``: whether an entry of the leader's own term is committed. ``refused``: why no state is confirmed now,
        or None. ``first_sequence``: requests have greater numbers."""
        self._context, self._core, self._outbox, self._leadership = context, core, outbox, leadership
        self._quorum_acknowledged_at, self._is_term_committed = quorum_acknowledged_at, is_term_committed
        self._refused = refused
        self._request_seconds = REQUEST_HEARTBEATS * context.heartbeat_seconds
        self._sequence = first_sequence
        self._noted: dict[str, deque[Noted]] = {}
        """On a leader: the requests that each peer has sent in this term, oldest first."""
        self._asked: deque[tuple[int, float]] = deque(maxlen=IN_FLIGHT_MAX)
        """On a follower: number and time of each request to ``_leader`` without a confirmation, oldest first."""
        self._leader: str | None = None
        self._confirmed: deque[tuple[int, float]] = deque(maxlen=IN_FLIGHT_MAX)
        """On a follower: (index, time). When the index is applied, the state is confirmed for that time."""
        self._asked_at = NEVER
        self._confirmed_at = NEVER

    def confirmed_at(self) -> float:
        """The latest time for which the state here is known to include everything acknowledged before it. NEVER while reads are
        refused, and on the only voter, which needs no other node."""
        core = self._core
        if self._refused() is not None:
            return NEVER
        if core.is_leader:
            is_complete = core.applied_index >= core.commit_index and self._context.quorum > 1 and self._is_term_committed()
            return self._quorum_acknowledged_at() if is_complete else NEVER
        while self._confirmed and self._confirmed[0][0] <= core.applied_index:
            self._confirmed_at = max(self._confirmed_at, self._confirmed.popleft()[1])
        return self._confirmed_at

    def connection_changed(self, peer: str) -> None:
        """A connection with ``peer`` was opened or closed. If the machine of either node was reset with its memory, requests are
        numbered twice, so forget those that were sent before."""
        self._noted.pop(peer, None)
        if peer == self._leader:
            self._asked.clear()

    # Follower

    def request(self, now: float) -> None:
        """This node is answering an append: send a request in the same packet if it is due."""
        if now < self._asked_at + self._request_seconds:
            return
        leader = self._leadership.leader_of(self._core.term)
        if leader is None or leader == self._context.node_id:
            return
        if leader != self._leader:
            self._leader = leader
            self._asked.clear()
        self._sequence += 1
        self._asked_at = now
        self._asked.append((self._sequence, now))
        self._outbox.send(leader, ConfirmationRequest(*self._outbox.address(leader), self._sequence))

    def on_confirmation(self, message: Confirmation) -> None:
        if not any(sequence == message.sequence for sequence, _ in self._asked):
            return  # repeated, or older than one that has arrived
        while True:
            sequence, asked_at = self._asked.popleft()
            if sequence == message.sequence:
                self._confirmed.append((message.log_index, asked_at))
                return

    # Leader

    def on_request(self, peer: str, message: ConfirmationRequest) -> None:
        core = self._core
        if core.is_leader and self._is_term_committed():
            noted = self._noted.setdefault(peer, deque(maxlen=IN_FLIGHT_MAX))
            noted.append(Noted(message.sequence, self._context.now(), core.commit_index))

    def confirm(self) -> None:
        """Heartbeats were sent: send confirmations in the same packets."""
        if not self._noted or self._refused() is not None:
            return
        confirmed_until = self._quorum_acknowledged_at() if self._context.quorum > 1 else self._context.now()
        for peer, noted in list(self._noted.items()):
            newest = None
            while noted and noted[0].arrived_at < confirmed_until:
                newest = noted.popleft()
            if newest is not None:
                self._outbox.send(peer, Confirmation(*self._outbox.address(peer), newest.sequence, newest.log_index))
            if not noted:
                del self._noted[peer]

    def on_stepped_down(self) -> None:
        """This node has lost leadership: forget the requests, which the followers repeat."""
        self._noted.clear()

    def memory(self) -> dict[str, Bounded]:
        """The memory used here, and its bounds."""
        return {
            "confirmations_noted": (sum(map(len, self._noted.values())), MEMBERS_MAX * IN_FLIGHT_MAX),
            "confirmations_asked": (len(self._asked) + len(self._confirmed), 2 * IN_FLIGHT_MAX),
        }

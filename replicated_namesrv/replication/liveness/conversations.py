"""Conversations: whether brokers close their connections in peace, or give them up because of this node. Pure; time is an
argument.

A broker closes a connection over which an answer did not come within ``PATIENCE_MS``. It returns in its next round. So the node
remembers of each open connection which requests are unanswered and how long answers took:

    the broker closes the connection                                    in peace        test
    while a request on it is unanswered                                 no              test_unanswered_request
    within PATIENCE_MS after an answer that took longer than SLOW_MS    no              test_slow_answer
    within PATIENCE_MS after this process stood still for SLOW_MS       no              test_stalled_process
    at any other time                                                   yes             test_closed_in_peace

The node knows when a connection was opened, except after a stall: the kernel goes on opening connections, and they are accepted
afterwards. Those that are accepted within ``BACKLOG_MS`` count as opened when the stall began (test_opened_during_a_stall).
"""

from dataclasses import dataclass

SLOW_MS = 1_000.0
"""An answer that takes longer may have been given up, and a process that did not run for so long was slow for everybody."""
PATIENCE_MS = 3_000.0
"""How long RocketMQ's brokers wait for an answer before they close the connection."""
STALL_MS = 300.0
"""A process that did not run for this long finds connections of which it does not know when they were opened."""
BACKLOG_MS = 1_000.0
"""Connections accepted so long after a stall may have been opened during it."""


@dataclass(slots=True)
class _Conversation:
    opened_ms: float
    unanswered: int = 0
    doubtful_until_ms: float = 0.0


class Conversations:
    """Of one node. ``now_ms`` is the time of a clock that never stops."""

    def __init__(self, now_ms: float) -> None:
        self._open: dict[int, _Conversation] = {}
        self._ran_ms = now_ms
        """When this process was last seen running."""
        self._stalled_from_ms = 0.0
        self._backlog_until_ms = self._slow_until_ms = now_ms

    def tick(self, now_ms: float) -> None:
        """Call it several times in STALL_MS. Who wakes has much to do and may stand still again before it has accepted all that
        waits: that is one stall."""
        stalled_ms = now_ms - self._ran_ms
        if stalled_ms > STALL_MS:
            if now_ms - stalled_ms > self._backlog_until_ms:
                self._stalled_from_ms = self._ran_ms
            self._backlog_until_ms = now_ms + BACKLOG_MS
            if stalled_ms > SLOW_MS:
                self._slow_until_ms = now_ms + PATIENCE_MS
        self._ran_ms = now_ms

    def opened(self, connection_id: int, now_ms: float) -> None:
        """The node accepted this connection."""
        self.tick(now_ms)
        is_backlog = now_ms <= self._backlog_until_ms and self._stalled_from_ms > 0
        self._open[connection_id] = _Conversation(self._stalled_from_ms if is_backlog else now_ms)

    def closed(self, connection_id: int, now_ms: float) -> bool:
        """The connection is gone. Whether in peace, if it was the peer that closed it."""
        self.tick(now_ms)
        talk = self._open.pop(connection_id, None)
        return talk is not None and not talk.unanswered and now_ms > max(talk.doubtful_until_ms, self._slow_until_ms)

    def is_open(self, connection_id: int) -> bool:
        return connection_id in self._open

    def opened_ms(self, connection_id: int) -> float | None:
        """When it was opened at the latest; None: it is gone."""
        talk = self._open.get(connection_id)
        return None if talk is None else talk.opened_ms

    def asked(self, connection_id: int) -> None:
        """A request came over this connection; ``answered`` follows once for each."""
        if connection_id in self._open:
            self._open[connection_id].unanswered += 1

    def answered(self, connection_id: int, asked_ms: float, now_ms: float) -> None:
        """A request that came at ``asked_ms`` was answered."""
        talk = self._open.get(connection_id)
        if talk is not None:
            talk.unanswered -= 1
            if now_ms - asked_ms > SLOW_MS:
                talk.doubtful_until_ms = now_ms + PATIENCE_MS

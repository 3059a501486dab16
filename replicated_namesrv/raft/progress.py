"""A leader's knowledge of one follower, and its transitions. No IO and no clock: times and sequence numbers are arguments.

    state      the leader sends                            it ends
    PROBE      one empty append per heartbeat              in REPLICATE, when an answer shows where both logs meet
    REPLICATE  entries, as far as the window allows        in PROBE, when an answer shows that entries were lost
    SNAPSHOT   chunks, as far as the window allows         in PROBE, when the follower has what the snapshot covers

A new connection returns to PROBE, or continues the snapshot. SNAPSHOT begins when the log lacks the next entry. Memory is
bounded: the window bounds messages with data, and only the newest unanswered messages are remembered. Lost data is sent again
only after an answer has shown that it is missing. While nothing new is acknowledged, each retry waits longer (``Backoff``);
heartbeats continue. (Compare etcd-io/raft, ``tracker/progress.go``.)
"""

from collections import deque

from replicated_namesrv.raft.interfaces import NEVER
from replicated_namesrv.raft.raft_config import Defences
from replicated_namesrv.raft.snapshots import Snapshot

PROBE, REPLICATE, SNAPSHOT = "probe", "replicate", "snapshot"
HEARTBEATS_REMEMBERED_MAX = 64
"""Number of unanswered messages without data that are remembered per follower: the heartbeats of about 3 s. They are needed for
the lease. Answers to older messages are useless for it."""
PAUSE_HEARTBEATS_MAX = 16
"""Longest back-off before data is sent again: 0.8 s with the default heartbeat. So a follower that recovers waits for little more
than an election time."""

ROUNDS_MIN = 10
"""Number of rounds as in the dissertation. A learner that receives half of what is written doubles its lag in each round. By the
tenth round, even the shortest first round has grown longer than an election time. If nothing is written, ten rounds take half a
second with the default heartbeat."""


class Inflight:
    """Messages sent to one follower and not acknowledged.

    Two acknowledgements are tracked separately. The answer to a message shows that the follower was alive after the message was
    sent. The acknowledgement of its data shows that the follower has the data on disk. A follower with a hanging disk answers
    heartbeats, but must not be sent more data.
    """

    __slots__ = ("_sent", "_window", "bytes")

    def __init__(self, messages_max: int, is_bounded: bool = True) -> None:
        """``messages_max``: messages with data that the window takes. ``is_bounded``: the defence ``inflight_bound``."""
        remembered = messages_max + HEARTBEATS_REMEMBERED_MAX if is_bounded else None
        self._sent: deque[tuple[int, float]] = deque(maxlen=remembered)
        """(sequence, when sent) of unanswered messages. If there are too many, the oldest are forgotten."""
        self._window: deque[tuple[int, int]] = deque()
        """(end, bytes) of data that is not acknowledged. The end is the last index of entries, or the offset after a chunk."""
        self.bytes = 0

    def __len__(self) -> int:
        return max(len(self._sent), len(self._window))

    @property
    def with_data(self) -> int:
        """Messages whose data is not acknowledged."""
        return len(self._window)

    def add(self, sequence: int, sent_at: float, size: int, end: int) -> None:
        """A message with ``size`` bytes of data up to ``end`` was sent."""
        self._sent.append((sequence, sent_at))
        if size:
            self._window.append((end, size))
            self.bytes += size

    def answered(self, sequence: int) -> float:
        """Message ``sequence`` was answered. Returns when it was sent, ``NEVER`` if that is not remembered."""
        sent, found = self._sent, NEVER
        while sent and sent[0][0] <= sequence:
            number, sent_at = sent.popleft()
            if number == sequence:
                found = sent_at
        return found

    def acknowledged(self, end: int) -> None:
        """The follower has all data up to ``end``."""
        window = self._window
        while window and window[0][0] <= end:
            self.bytes -= window.popleft()[1]

    def lost(self) -> None:
        """Messages in flight were lost."""
        self._window.clear()
        self.bytes = 0


class Backoff:
    """Heartbeats to wait before lost data is sent again: 0, then 1, 2, 4 … while nothing new is acknowledged."""

    __slots__ = ("_failures", "_pause_max", "pause")

    def __init__(self, is_on: bool = True) -> None:
        """``is_on``: the defence ``resend_backoff``."""
        self._failures = self.pause = 0
        self._pause_max = PAUSE_HEARTBEATS_MAX if is_on else 0

    def failed(self) -> None:
        """Data was lost."""
        self.pause = min(1 << (self._failures - 1), self._pause_max) if self._failures else 0
        self._failures = min(self._failures + 1, PAUSE_HEARTBEATS_MAX)

    def reset(self) -> None:
        """Something new was acknowledged, or there is a new connection."""
        self._failures = self.pause = 0

    def heartbeat(self) -> None:
        """A heartbeat is due."""
        if self.pause:
            self.pause -= 1


class Transfer:
    """A snapshot transfer to one follower: chunks in order, as many in flight as the window allows, restarted at a gap."""

    __slots__ = ("_failed_at", "_furthest", "_is_in_vain", "_newest", "acknowledged", "is_answered", "sent", "snapshot")

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.acknowledged = self._furthest = 0
        """``acknowledged``: offset up to which the follower has the file, by its last report. ``_furthest``: the highest offset
        that it ever reported."""
        self._failed_at = 0
        """Value of ``_furthest`` when data was last found to be lost."""
        self._is_in_vain = False
        """True if no new data arrived between the last two losses: the follower may be unable to store data."""
        self.resume()

    def resume(self) -> None:
        """Continue over a new connection: chunks in flight are lost. One chunk is sent first, and its answer gives the offset."""
        self.sent = self.acknowledged
        self.is_answered = False
        self._newest = 0
        """Sequence number of the newest chunk with data."""

    def room(self, window_bytes: int) -> bool:
        """Whether another chunk may be sent. Before the first answer, and after repeated losses, only one is in flight."""
        window = window_bytes if self.is_answered and not self._is_in_vain else 1
        return self.sent < self.snapshot.size and self.sent - self.acknowledged < window

    def chunk_sent(self, sequence: int, size: int) -> None:
        """``size`` bytes from ``sent`` on were sent."""
        self.sent += size
        if size:
            self._newest = sequence

    def answered(self, sequence: int, offset: int, inflight: Inflight, backoff: Backoff) -> None:
        """The follower had the file up to ``offset`` when it received message ``sequence``."""
        self.is_answered = True
        if offset > self._furthest:
            self._furthest = offset
            backoff.reset()
        if offset > self.acknowledged:
            self.acknowledged = offset
            self._is_in_vain = False
            self.sent = max(self.sent, offset)
            inflight.acknowledged(offset)
        if sequence >= self._newest and offset < self.sent:
            # everything that was sent has been received or is lost
            self._is_in_vain = self._furthest <= self._failed_at
            self._failed_at = self._furthest
            self.acknowledged = self.sent = offset
            inflight.lost()
            backoff.failed()


class Rounds:
    """Whether a learner keeps up (dissertation, 4.2.1).

    A round replicates the entries that the log has at its start. A learner keeps up if round ``ROUNDS_MIN`` or a later one takes
    less than an election time. The first rounds may be long, because they send everything, or short, if the log is almost empty.
    For a learner that falls behind, each round is longer than the previous round. An answer to a message of the round is also
    required, so a silent learner never keeps up.
    """

    __slots__ = ("_count", "_end", "_started_at")

    def __init__(self) -> None:
        self._end: int | None = None
        self._started_at = 0.0
        self._count = 0

    def reset(self) -> None:
        """Start again with the next call of ``kept_up``."""
        self._end, self._count = None, 0

    def kept_up(self, now: float, last_index: int, match: int, acknowledged_at: float, limit_seconds: float) -> bool:
        """Whether the tenth round or a later one ends now and took less than ``limit_seconds``. ``acknowledged_at``: when the
        newest message that the learner has answered was sent."""
        if self._end is None:
            self._end, self._started_at = last_index, now
            return False
        if match < self._end or acknowledged_at < self._started_at:
            return False
        took = now - self._started_at
        self._end, self._started_at = last_index, now
        self._count += 1
        return self._count >= ROUNDS_MIN and took < limit_seconds


class Progress:
    """A leader's knowledge of one follower."""

    __slots__ = (
        "acknowledged_at",
        "backoff",
        "commit_sent",
        "connected",
        "defences",
        "delivered",
        "floor",
        "has_answered",
        "incarnation",
        "inflight",
        "kept_at",
        "kept_bytes",
        "kept_from",
        "match",
        "messages_max",
        "next",
        "peer",
        "probe_sent",
        "rounds",
        "state",
        "transfer",
    )

    def __init__(self, peer: str, messages_max: int, defences: Defences = Defences()) -> None:  # noqa: B008 - frozen
        """``messages_max``: messages with data that the window takes."""
        self.peer, self.messages_max, self.defences = peer, messages_max, defences
        self.connected = False
        self.incarnation = 0
        self.backoff, self.rounds = Backoff(defences.resend_backoff), Rounds()
        self.transfer: Transfer | None = None
        self.kept_from: int | None = None
        """Entries after this index are kept for the follower while it receives a snapshot and then these entries; None: none are
        kept."""
        self.reset(1, 0)

    @property
    def snapshot(self) -> Snapshot | None:
        """The snapshot that is being sent."""
        return self.transfer.snapshot if self.transfer is not None else None

    @property
    def inflight_bytes(self) -> int:
        """Bytes of entries or chunks that are not answered."""
        return self.inflight.bytes

    # Transitions

    def reset(self, following: int, sequence: int) -> None:
        """Forget everything, for a new term or another incarnation. The first index to try is ``following``. Answers to
        ``sequence`` and older are stale."""
        self.match, self.delivered = 0, 0
        self.acknowledged_at = NEVER
        """When this node sent the newest message that the follower has acknowledged."""
        self.has_answered = False
        """Whether the follower has answered a message that was sent over the present connection."""
        self.drop_log()
        self.backoff.reset()
        self.become_probe(following, sequence)

    def become_probe(self, following: int, sequence: int) -> None:
        """Find out whether the logs match before ``following``."""
        self.state, self.next, self.floor = PROBE, following, sequence
        self.inflight = Inflight(self.messages_max, self.defences.inflight_bound)
        self.commit_sent = 0
        self.probe_sent = False
        self.transfer = None
        self.rounds.reset()

    def become_replicate(self, sequence: int) -> None:
        """The logs match: stream entries. Later conflicts count only for messages sent after ``sequence``."""
        self.state, self.probe_sent, self.floor = REPLICATE, False, sequence

    def become_snapshot(self) -> None:
        """The log lacks the next entry."""
        self.state, self.transfer = SNAPSHOT, None
        self.inflight.lost()

    def reconnected(self, following: int, sequence: int) -> None:
        """A connection was established or lost: messages in flight are lost."""
        transfer = self.transfer
        self.become_probe(following, sequence)
        self.backoff.reset()
        self.has_answered = False
        if transfer is not None:
            transfer.resume()
            self.state, self.transfer = SNAPSHOT, transfer

    def entries_lost(self, following: int, sequence: int) -> None:
        """An answer shows that the follower lacks entries before those that it was sent, or has different ones."""
        is_repeated = self.state == PROBE and following >= self.next and self.defences.resend_backoff
        if self.state == REPLICATE:
            self.backoff.failed()
        self.become_probe(following, sequence)
        self.probe_sent = is_repeated  # the next probe would be equal: send it with the next heartbeat

    # Answers

    def acknowledge(self, sequence: int) -> float:
        """Message ``sequence`` was answered. Returns when it was sent, ``NEVER`` if it was answered before or is not
        remembered.
        """
        sent_at = self.inflight.answered(sequence)
        if sent_at > self.acknowledged_at:
            self.acknowledged_at = sent_at
            self.has_answered = True
        return sent_at

    def matched(self, log_index: int) -> None:
        """The follower has everything up to ``log_index`` on disk."""
        if log_index > self.match:
            self.match = log_index
            self.backoff.reset()
            if self.state == REPLICATE:
                self.inflight.acknowledged(log_index)
            if self.kept_from is not None:
                self.kept_from = max(self.kept_from, log_index)
        self.next = max(self.next, self.match + 1)

    # The log after a snapshot that is being sent

    def keep_log(self, log_index: int, now: float, written_bytes: int) -> None:
        """Keep the entries after ``log_index``. ``written_bytes``: bytes written to the log so far."""
        self.kept_from, self.kept_at, self.kept_bytes = log_index, now, written_bytes

    def drop_log(self) -> None:
        """The kept entries may be dropped."""
        self.kept_from, self.kept_at, self.kept_bytes = None, NEVER, 0

    def silent_seconds(self, now: float) -> float:
        """How long the follower for which the log is kept has not answered."""
        return now - max(self.kept_at, self.acknowledged_at)

"""ReadBarrier: when this node may answer, how fresh its state is, and when it is fenced.

A linearizable read waits for a read index that was requested after the read came. All reads that come in the same turn of the
event loop share one request, so a read costs little. Reads that come later wait for the next request. The node sends the next
request when the previous one is answered, or, if links are slow, PIPELINE_MS after the previous one. Every node answers reads in
this way, not only the leader. A stale read is answered at once with its age.

In the tables the first row that matches decides. *Level* is the read level that the request names, and *default* is the setting
``readConsistency``. The outcome *stale* is an answer with the age of the state. If the state is older than ``maxStalenessMs``,
the outcome is StaleReadError instead. Each row has one test with its name in ``tests/replication/test_read_barrier.py``. A
comment with the name of the row marks its branch in this module. The tables do not hold for a node that was removed from the
cluster: it answers no read, and stays fenced until it is a member again.

A read arrives:

    row  caught up  fenced  level   default  policy       outcome                reason
    R1   no         -       -       -        -            UnavailableError       the state may be of any age
    R2   yes        -       lease,  -        -            lease                  no other node can have confirmed a newer write
                            held
    R3   yes        -       stale   -        -            stale                  the request asks for it
    R4   yes        -       none    stale    -            stale                  the setting asks for it
    R5   yes        yes     none    other    serve-stale  stale                  the policy: an old answer rather than none
    R6   yes        yes     other   other    -            UnavailableError       no read index is confirmed
    R7   yes        no      other   other    -            waits (below)

A read waits:

    row  event                                        level  policy       outcome           reason
    W1   turn of the loop ends, lease holds, and no   -      -            lease             the lease is checked once, after all
         read that waits asked for more than a lease                                        of these reads arrived
    W2   index confirmed                              -      -            linearizable      it was requested after the read
    W3   index rejected                               -      -            UnavailableError  later reads request another index
    W4   fence                                        -      fence        UnavailableError  no read index is confirmed
    W5   fence                                        none   serve-stale  stale             as R5
    W6   fence                                        named  serve-stale  UnavailableError  as R6

A tick comes, or there is a *confirmation*. There are two kinds: a read index that this node requested is answered, or heartbeats
confirm the state for a time (``raft/heartbeat_confirmations.py``). The next tick notices a confirmation by heartbeats. Such a
confirmation does not count if the confirmed time is more than ``fenceAfterMs`` ago. *Silence* is the time in which this process
ran since the last confirmation, or since the time that heartbeats confirmed. *Index waits* means: a confirmed read index is not
processed yet.

    row  caught up  fenced  event         silence          outcome   reason
    F1   no         -       tick          -                none      it does not serve yet
    F2   yes        no      tick          <= fenceAfterMs  none      an election takes less
    F3   yes        no      tick, index   > fenceAfterMs   none      the confirmation is processed in a later turn
                            waits
    F4   yes        no      tick          > fenceAfterMs   fence     clients and brokers move to a node with a majority
    F5   -          yes     tick          -                none      it is fenced already
    F6   -          yes     confirmation  -                unfence   the node reaches a leader with a majority
    F7   -          no      confirmation  -                none      silence counts from now

A process may be stopped, and a machine may sleep. Therefore two times are measured differently. Both come from ``now_ms``, a
clock that continues while the process does not run:

- The *age* of the state counts all time since the last confirmed read index was requested, because the state includes everything
  acknowledged before that. The lease uses such a clock, too, so a node that wakes does not answer by a lease that ended while it
  slept.
- *Silence* counts only time in which this process could have had contact with a majority: at most STEP_MAX_MS between two
  ticks. A node that wakes has almost the full ``fenceAfterMs`` to reach a majority; until then its reads wait.
"""

import asyncio
import logging
from asyncio import Future
from collections.abc import Callable
from functools import partial

from replicated_namesrv.errors import StaleReadError, UnavailableError
from replicated_namesrv.raft.interfaces import ReadOutcome, ReadReady, Rejected
from replicated_namesrv.raft.read_index import IN_FLIGHT_MAX, PIPELINE_SECONDS
from replicated_namesrv.replication.consensus import NO_MAJORITY, Consensus
from replicated_namesrv.service import UNKNOWN_AGE, Freshness, ReadLevel

log = logging.getLogger(__name__)

COLLECTING_MAX_MS = 1.0
"""While reads come in every turn of the loop, a request for an index is delayed by this time, so that several reads share it."""
PIPELINE_MS = 1000 * PIPELINE_SECONDS
"""Time after which the next request is sent although the last one is not answered."""
PROBE_AFTER_MS = 200.0
"""A majority is asked when the state has become this old, even without reads. Usually, heartbeats confirm it before that."""
STEP_MAX_MS = 250.0
"""At most this much of the time between two ticks counts as time in which the process ran."""
LINEARIZABLE, LEASE, STALE = ReadLevel.LINEARIZABLE, ReadLevel.LEASE, ReadLevel.STALE


class ReadBarrier:
    """The reads of one node, on its event loop."""

    def __init__(
        self,
        consensus: Consensus,
        default: ReadLevel,
        fence_after_ms: int,
        serves_stale: bool,
        now_ms: Callable[[], float],
        change: Callable[[bool], None],
    ) -> None:
        """``serves_stale``: noQuorumPolicy. ``now_ms``: a clock that never stops. ``change(False)`` is called at the fence,
        ``change(True)`` after it."""
        self._consensus, self._default, self._fence_after_ms = consensus, default, fence_after_ms
        self.serves_stale, self._now_ms, self._change = serves_stale, now_ms, change
        self.fenced = False
        self._removed: str | None = None
        """Why this node answers no reads, not even stale ones: it was removed from the cluster. None: it was not removed."""
        self._collecting: Future[Freshness] | None = None
        """The result for the reads whose index is not requested yet; None: there are no such reads."""
        self._collecting_since_ms = 0.0
        self._others_came = False
        self._needs_index = False
        """Whether one of the waiting reads needs more than a lease."""
        self._in_flight = 0
        """Number of requests for an index without an answer. On fast links there is only one at a time, so that more reads share
        a request."""
        self._asked_ms = 0.0
        """When the last request was sent."""
        self._answer_ms = 0.0
        """How long the last answer took."""
        self._waiting: dict[Future[Freshness], Future[ReadOutcome] | None] = {}
        """Reads without an answer, with the request for each of them."""
        self._is_live = False
        self._fresh_ms = 0.0
        """When the last confirmed index had been requested."""
        self._ticked_ms = now_ms()
        """The time until which silence was counted."""
        self._silent_ms = 0.0
        """Time that the process has run without a confirmation."""
        self._is_probing = False

    @property
    def staleness_ms(self) -> int:
        """Age of the state; UNKNOWN_AGE before this node has caught up for the first time."""
        return int(self._now_ms() - self._fresh_ms) if self._is_live else UNKNOWN_AGE

    @property
    def answers_stale(self) -> bool:
        """Whether requests that name no level get stale answers because there is no majority."""
        return self.fenced and self.serves_stale

    # Reads

    def barrier(self, level: ReadLevel | None, max_staleness_ms: int | None) -> Freshness | Future[Freshness]:
        """Wait until the state is fresh enough for ``level`` (None: the configured default). Raises UnavailableError,
        StaleReadError."""
        shared = self._collecting
        if shared is not None and level is None and max_staleness_ms is None and self._default is not STALE:
            # R7: this read joins the waiting reads, which passed the checks in this turn of the loop
            self._others_came = True
            return shared
        if self._removed is not None:
            raise UnavailableError(self._removed)
        if not self._is_live:  # R1
            raise UnavailableError("this node has not caught up with a majority since its start")
        wanted = level or self._default
        if level is LEASE and self._consensus.lease_valid():  # R2
            return self._leased()
        if wanted is STALE:  # R3, R4
            return self._stale(max_staleness_ms)
        if self.fenced:
            if level is None and self.serves_stale:  # R5
                return self._stale(max_staleness_ms)
            raise UnavailableError(NO_MAJORITY)  # R6
        return self._wait(wanted, level, max_staleness_ms)  # R7

    def _wait(self, wanted: ReadLevel, level: ReadLevel | None, max_staleness_ms: int | None) -> Future[Freshness]:
        shared = self._collecting
        if shared is None:
            loop = asyncio.get_running_loop()
            shared = self._collecting = loop.create_future()
            self._waiting[shared] = None
            if not self._in_flight:
                self._collecting_since_ms = self._now_ms()
                loop.call_soon(self._ask)
            elif self._answer_ms > PIPELINE_MS and self._in_flight < IN_FLIGHT_MAX:
                wait_ms = self._asked_ms + PIPELINE_MS - self._now_ms()
                loop.call_later(max(0.0, wait_ms) / 1000, self._ask_beside, shared)
        else:
            self._others_came = True
        # ``barrier`` lets later reads of the default level join this one, and does not record what they need
        if wanted is LINEARIZABLE or self._default is not LEASE:
            self._needs_index = True
        if self.serves_stale and (level is not None or max_staleness_ms is not None):
            return self._judged(shared, level, max_staleness_ms)
        return shared

    def _ask_beside(self, shared: Future[Freshness]) -> None:
        """Request an index for ``shared`` although the last request is not answered yet."""
        if self._collecting is shared and self._in_flight:
            self._others_came = False
            self._ask()

    def _ask(self) -> None:
        """Answer all waiting reads by the lease, or request one index for them. If the last turn of the loop brought further
        reads, wait for the next turn."""
        shared = self._collecting
        if shared is not None and not self._needs_index and self._consensus.lease_valid():  # W1
            self._collecting = None
            del self._waiting[shared]
            if not shared.done():
                shared.set_result(self._leased())
            return
        if self._others_came and self._now_ms() - self._collecting_since_ms < COLLECTING_MAX_MS:
            self._others_came = False
            asyncio.get_running_loop().call_soon(self._ask)
            return
        self._collecting, self._needs_index = None, False
        if shared is not None and not shared.done():
            self._in_flight += 1
            asked_ms = self._asked_ms = self._now_ms()
            question = self._waiting[shared] = self._consensus.read_index()
            question.add_done_callback(partial(self._answered, shared, asked_ms))

    def _answered(self, shared: Future[Freshness], asked_ms: float, answer: "Future[ReadOutcome]") -> None:
        self._waiting.pop(shared, None)
        self._in_flight -= 1
        now_ms = self._now_ms()
        self._answer_ms = now_ms - asked_ms
        if self._collecting is not None:
            self._collecting_since_ms = now_ms
            asyncio.get_running_loop().call_soon(self._ask)
        outcome = Rejected("this node stops") if answer.cancelled() else answer.result()
        if shared.done():
            return
        if isinstance(outcome, ReadReady):  # W2
            shared.set_result(Freshness(LINEARIZABLE, outcome.term, self._consensus.leader or "", 0))
        else:  # W3
            fail(shared, outcome.reason)

    def _leased(self) -> Freshness:
        return Freshness(LEASE, self._consensus.term, self._consensus.leader or "", 0)

    def _stale(self, max_staleness_ms: int | None) -> Freshness:
        age_ms = self.staleness_ms
        if max_staleness_ms is not None and age_ms > max_staleness_ms:
            raise StaleReadError(
                f"maxStalenessMs={max_staleness_ms}: the state here is {age_ms} ms old; allow more, ask for "
                "readConsistency=linearizable or ask another node"
            )
        return Freshness(STALE, self._consensus.term, self._consensus.leader or "", age_ms)

    def _judged(self, shared: Future[Freshness], level: ReadLevel | None, max_staleness_ms: int | None) -> Future[Freshness]:
        """The result of ``shared`` for one request. If this node fences itself meanwhile, ``shared`` may become stale, which some
        requests do not accept."""
        own: Future[Freshness] = asyncio.get_running_loop().create_future()

        def judge(done: Future[Freshness]) -> None:
            if own.done():
                return
            error = UnavailableError(NO_MAJORITY) if done.cancelled() else done.exception()
            try:
                if error is not None:
                    raise error
                freshness = done.result()
                if freshness.level is STALE:
                    if level is not None:  # W6
                        raise UnavailableError(NO_MAJORITY)
                    freshness = self._stale(max_staleness_ms)  # W5, with a bound
                own.set_result(freshness)
            except Exception as found:
                own.set_exception(found)
                own.exception()

        shared.add_done_callback(judge)
        return own

    # Fence

    @property
    def silent_ms(self) -> float:
        """Milliseconds in which this process ran since a read index was last confirmed. 0 until the node has caught up."""
        return self._silent_ms if self._is_live else 0.0

    def caught_up(self, asked_ms: float) -> None:
        """The state includes everything acknowledged before ``asked_ms``: from now on this node may serve."""
        self._is_live = True
        self.confirmed(asked_ms)

    def tick(self) -> None:
        """Count silence, request a read index if the state is old, and fence this node if it is silent for too long. Call it
        about ten times a second."""
        now = self._now_ms()
        self._silent_ms += min(now - self._ticked_ms, STEP_MAX_MS)
        self._ticked_ms = now
        if not self._is_live:  # F1
            return
        confirmed_ms = self._consensus.confirmed_ms
        if confirmed_ms > self._fresh_ms:
            self._confirmed_by_heartbeats(confirmed_ms)
        elif now - self._fresh_ms >= PROBE_AFTER_MS and not self._is_probing:
            self._is_probing = True
            self._consensus.read_index().add_done_callback(self._probed)
        if self.fenced:  # F5
            return
        if self._silent_ms <= self._fence_after_ms:  # F2
            return
        if any(map(is_ready, self._waiting.values())):  # F3
            return
        self._fence()  # F4

    def _confirmed_by_heartbeats(self, confirmed_ms: float) -> None:
        """The state includes everything acknowledged before ``confirmed_ms``. That may be long ago, if applying took long, so
        silence counts from then."""
        self._fresh_ms = confirmed_ms
        silent_ms = self._ticked_ms - confirmed_ms
        if silent_ms <= self._fence_after_ms:
            self._silent_ms = min(self._silent_ms, silent_ms)
            self._unfence()

    def _probed(self, answer: "Future[ReadOutcome]") -> None:
        self._is_probing = False

    def confirmed(self, asked_ms: float) -> None:
        """A read index is confirmed, for a read or for another purpose. ``asked_ms``: when it was requested on this node."""
        self._fresh_ms = max(self._fresh_ms, asked_ms)
        self._silent_ms, self._ticked_ms = 0.0, self._now_ms()  # F7
        self._unfence()

    def _unfence(self) -> None:
        if self.fenced and self._removed is None:  # F6
            self.fenced = False
            log.warning("serving again: a read index was confirmed")
            self._change(True)

    def set_removed(self, reason: str | None) -> None:
        """Stop serving, because this node was removed from the cluster; None: it is a member (again)."""
        if reason is not None and self._removed is None:
            log.error("stopped serving: %s", reason)
            self._removed = reason
            if not self.fenced:
                self._close()
        self._removed = reason

    def _fence(self) -> None:
        policy = "giving stale answers" if self.serves_stale else "stopped serving"
        log.error("no majority has confirmed this node for %d ms: %s", self._fence_after_ms, policy)
        self._close()

    def _close(self) -> None:
        self.fenced = True
        waiting, self._waiting, self._collecting = self._waiting, {}, None
        for shared in waiting:
            if shared.done():
                continue
            if self.serves_stale and self._removed is None:  # W5
                shared.set_result(self._stale(None))
            else:  # W4
                fail(shared, self._removed or NO_MAJORITY)
        self._change(False)


def is_ready(question: "Future[ReadOutcome] | None") -> bool:
    """Whether an index is confirmed but not processed yet."""
    return question is not None and question.done() and not question.cancelled() and isinstance(question.result(), ReadReady)


def fail(future: Future[Freshness], reason: str) -> None:
    """Raise UnavailableError in the reads that wait for ``future``. There may be none."""
    future.set_exception(UnavailableError(reason))
    future.exception()

"""Prepared answers for reads that must be confirmed first (CP): all waiting route queries share one barrier.

A query is looked up when it arrives, and the result is kept until the barrier completes. If the state's revision is then
unchanged, the answer is valid and is written. If the barrier is complete at once, the answer is sent at once. If the state
cannot be confirmed in time, the connection is closed, so that its client uses another name server.

If the revision has changed, the query is looked up again. This is done within the processor time that its address may use
(``turn_shares.py``) and in slices, because one barrier can complete thousands of queries. If this look-up finds no prepared
answer, the query is decoded and handled like any other request."""

from asyncio import Future
from functools import partial
from time import perf_counter_ns

from replicated_namesrv.errors import NamesrvError
from replicated_namesrv.server.connection import RemotingConnection
from replicated_namesrv.server.dispatch import RequestDispatcher
from replicated_namesrv.server.route_answers import LARGE_ANSWER_BYTES, RouteAnswers
from replicated_namesrv.server.server_metrics import ServerMetrics
from replicated_namesrv.server.turn_shares import SHARE_NS, TurnShares
from replicated_namesrv.service import Freshness, FreshState, ReadLevel
from replicated_namesrv.wire.frame import next_frame

PIECES_MAX = 2_048
"""Maximum number of answer pieces that are prepared for one read of a connection. Further queries of this read are looked up one
by one."""


class _Batch:
    """The queries that wait for one barrier."""

    __slots__ = ("barrier", "hits", "misses", "revision", "since_ns", "waiting")

    def __init__(self, barrier: Future[Freshness], revision: int) -> None:
        self.barrier = barrier
        self.revision = revision
        """Revision of the state at the first look-up. Revisions never decrease. So if the revision is the same at the end, the
        state did not change in between.
        """
        self.waiting: list[tuple[RemotingConnection, bytes, list[bytes]]] = []
        """Waiting connections, each with its queries and the pieces of their answers."""
        self.hits = self.misses = 0
        """Number of queries with prepared answers, and how many of these answers are "no such topic". They count as answered when
        the barrier completes, because counters must not decrease, and the queries may be answered in another way."""
        self.since_ns = perf_counter_ns()


class ConfirmedAnswers:
    """``RouteAnswers`` behind the barrier of a service."""

    def __init__(self, service: FreshState, dispatcher: RequestDispatcher, metrics: ServerMetrics, shares: TurnShares) -> None:
        self._barrier = service.barrier
        self._state = service.state
        self._dispatcher = dispatcher
        self._answers: RouteAnswers = dispatcher.answers
        self._metrics = metrics
        self._shares = shares
        self._batch: _Batch | None = None

    def answer(self, connection: RemotingConnection, data: bytes, start: int, pieces: list[bytes]) -> int:
        """Like ``RouteAnswers.answer``. The returned position is also behind the queries that wait for the barrier:
        ``connection`` gets their answers later."""
        metrics = self._metrics
        hits, misses = metrics.fast_path_hits, metrics.fast_path_misses
        found: list[bytes] = []
        end, previous, size = self._answers.answer(None, data, start, found), start, len(data)
        if end == start:
            return start
        while previous != end < size and len(found) < PIECES_MAX and len(found[-1]) <= LARGE_ANSWER_BYTES:
            previous, end = end, self._answers.answer(None, data, end, found)
        try:
            outcome = self._barrier(None, None)
        except NamesrvError:
            metrics.fast_path_hits, metrics.fast_path_misses = hits, misses
            connection.give_up()
            return end
        batch = self._batch
        if batch is None or batch.barrier is not outcome:
            if not isinstance(outcome, Future):
                pieces += found
                metrics.count_reads(outcome.level, metrics.fast_path_hits - hits)
                return end
            batch = self._batch = _Batch(outcome, self._state.revision)
            outcome.add_done_callback(partial(self._confirmed, batch))
        batch.hits += metrics.fast_path_hits - hits
        batch.misses += metrics.fast_path_misses - misses
        metrics.fast_path_hits, metrics.fast_path_misses = hits, misses  # within a turn of the loop, nobody reads them in between
        batch.waiting.append((connection, data if start == 0 and end == size else data[start:end], found))
        connection.defer()
        return end

    def _confirmed(self, batch: _Batch, outcome: Future[Freshness]) -> None:
        metrics = self._metrics
        if outcome.cancelled() or outcome.exception() is not None:
            for connection, _, _ in batch.waiting:
                connection.give_up()
                connection.finish(None)
            return
        level = outcome.result().level
        if batch.revision != self._state.revision or self._answers.is_off:
            for connection, data, _ in batch.waiting:
                work = partial(self._look_up_again, connection, data, level, batch.since_ns, 0, [])
                self._shares.run(connection.share, work)
            return
        metrics.fast_path_hits += batch.hits
        metrics.fast_path_misses += batch.misses
        metrics.fast_path_observed += batch.hits
        metrics.latency.observe(perf_counter_ns() - batch.since_ns, batch.hits)
        metrics.count_reads(level, batch.hits)
        for connection, _, found in batch.waiting:
            connection.finish(b"".join(found))

    def _look_up_again(
        self, connection: RemotingConnection, data: bytes, level: ReadLevel, since_ns: int, position: int, pieces: list[bytes]
    ) -> None:
        """Answer the queries from ``position`` by the current state, after the answers in ``pieces``. Queries without a prepared
        answer take the general path. After ``SHARE_NS`` the rest waits for a later turn."""
        metrics = self._metrics
        hits_before = metrics.fast_path_hits
        until_ns = perf_counter_ns() + SHARE_NS
        size = len(data)
        while position < size and not connection.is_closing:
            end = self._answers.answer(connection, data, position, pieces)
            if end == position:
                bounds = next_frame(data, position, size)
                assert bounds is not None, "only whole frames have prepared answers"
                answer = self._dispatcher.request(connection, data, position, bounds)
                if answer is not None:
                    pieces.append(answer)
                end = bounds.end
            position = end
            if perf_counter_ns() >= until_ns:
                break
        hits = metrics.fast_path_hits - hits_before
        if hits:
            metrics.latency.observe(perf_counter_ns() - since_ns, hits)
            metrics.fast_path_observed += hits
            metrics.count_reads(level, hits)
        if position < size and not connection.is_closing:
            work = partial(self._look_up_again, connection, data, level, since_ns, position, pieces)
            self._shares.later(connection.share, work)
        else:
            connection.finish(b"".join(pieces) if pieces else None)

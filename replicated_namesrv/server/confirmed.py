"""Prepared answers where a read must first be confirmed (CP): one barrier for all route queries of one read.

What the barrier gives at once (a lease that holds) costs nothing more. Otherwise the queries wait together, are looked up again
in the turn in which the barrier completes, and leave in one write. A query whose answer has moved meanwhile takes the general
way. If the state cannot be confirmed in time the connection is closed, so that its clients turn to another name server.
"""

from asyncio import Future
from functools import partial
from time import perf_counter_ns

from replicated_namesrv.errors import NamesrvError
from replicated_namesrv.server.answers import RouteAnswers
from replicated_namesrv.server.connection import RemotingConnection
from replicated_namesrv.server.dispatch import RequestDispatcher
from replicated_namesrv.server.metrics import ServerMetrics
from replicated_namesrv.service import CloseReason, Freshness, NameService
from replicated_namesrv.wire.frame import next_frame


class ConfirmedAnswers:
    """``RouteAnswers`` behind the barrier of a service."""

    def __init__(self, service: NameService, dispatcher: RequestDispatcher, metrics: ServerMetrics) -> None:
        self._service = service
        self._dispatcher = dispatcher
        self._answers: RouteAnswers = dispatcher.answers
        self._metrics = metrics

    def answer(self, connection: RemotingConnection, data: bytes, start: int, pieces: list[bytes]) -> int:
        """As ``RouteAnswers.answer``; queries that have to wait count as answered: ``connection`` gets their answers later."""
        end = self._answers.end_of_prepared(data, start)
        if end == start:
            return start
        try:
            outcome = self._service.barrier(None, None)
        except NamesrvError:
            connection.close(CloseReason.OURS)
            return end
        if not isinstance(outcome, Future):
            return self._answers.answer(connection, data, start, pieces)
        connection.defer()
        outcome.add_done_callback(partial(self._confirmed, connection, data[start:end], perf_counter_ns()))
        return end

    def _confirmed(self, connection: RemotingConnection, data: bytes, started_ns: int, outcome: Future[Freshness]) -> None:
        if outcome.cancelled() or outcome.exception() is not None:
            connection.close(CloseReason.OURS)
            connection.finish(None)
            return
        pieces: list[bytes] = []
        position, size, hits_before = 0, len(data), self._metrics.fast_path_hits
        while position < size and not connection.is_closing:
            answered = self._answers.answer(connection, data, position, pieces)
            if answered > position:
                position = answered
                continue
            bounds = next_frame(data, position, size)
            assert bounds is not None, "only whole frames have prepared answers"
            answer = self._dispatcher.request(connection, data, position, bounds)
            position = bounds.end
            if answer is not None:
                pieces.append(answer)
        hits = self._metrics.fast_path_hits - hits_before
        if hits:
            self._metrics.latency.observe(perf_counter_ns() - started_ns, hits)
            self._metrics.fast_path_observed += hits
        connection.finish(b"".join(pieces) if pieces else None)

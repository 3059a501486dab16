"""Turns a request frame into an answer frame: handlers, waiting requests, errors (``NettyRemotingAbstract``).

A handler returns an ``Answer`` or a ``Deferred`` one. Everything else is the same for all codes. Responses are dropped. Oneway
requests are executed and not answered. Unknown codes get an error. An exception of a handler is answered with the code of the
exception, or with 1. If too many requests wait, further ones are answered with code 2.

If a request fails because state or outcome cannot be confirmed, the connection is closed instead. A client uses another name
server only when its connection breaks, and stays connected to one that answers with an error code. With
``noQuorumPolicy=serve-stale`` such a request gets an error code, except a route query that names no level.
"""

import time
from asyncio import CancelledError, Future
from collections.abc import Callable
from functools import partial
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Protocol

from replicated_namesrv.errors import NamesrvError, OutcomeUnknownError, StorageError, UnavailableError
from replicated_namesrv.server.change_handlers import Changes, ChangeService
from replicated_namesrv.server.connection import RemotingConnection
from replicated_namesrv.server.long_answers import LongAnswers
from replicated_namesrv.server.operator_requests import OPERATOR_CODES, Note, noted
from replicated_namesrv.server.problems import Problems
from replicated_namesrv.server.query_handlers import Queries, QueryService
from replicated_namesrv.server.registrations import Registrations, RegistrationService
from replicated_namesrv.server.request import OVERLOAD, Answer, AnswerTooLargeError, Deferred, Outcome, Request
from replicated_namesrv.server.route_answers import RouteAnswers
from replicated_namesrv.server.server_metrics import ServerMetrics
from replicated_namesrv.server.turn_shares import TurnShares
from replicated_namesrv.service import SLOW_MS
from replicated_namesrv.settings import Settings
from replicated_namesrv.tracing import Tracing
from replicated_namesrv.wire.codes import V5_3_1, RequestCode, ResponseCode
from replicated_namesrv.wire.frame import FRAME_PREFIX_BYTES, MAX_TOTAL, FrameBounds
from replicated_namesrv.wire.header import answer_frame, answer_parts, decode_header, opaque_bytes

if TYPE_CHECKING:
    from replicated_namesrv.server.access_guard import AccessGuard
    from replicated_namesrv.server.cluster_test import ClusterTestRoutes

GO_AWAY = Answer(ResponseCode.GO_AWAY.value, "please go away")
SLOW_NS = int(SLOW_MS * 1e6)
OPAQUE_BYTES_MAX = 11
"""Maximum length of an opaque in JSON: a sign and ten digits."""
ROUTE_QUERY = RequestCode.GET_ROUTEINFO_BY_TOPIC.value
UPDATE_CONFIG = RequestCode.UPDATE_NAMESRV_CONFIG.value

Handler = Callable[[Request], Outcome]


class DispatchedService(QueryService, RegistrationService, ChangeService, Protocol):
    """The part of a node that executes requests."""

    @property
    def confirms_reads(self) -> bool:
        """Whether reads wait until other nodes confirm that this state is fresh. If not, requests never fail for lack of a
        majority.
        """


class RequestDispatcher:
    """The handlers of one service, by request code."""

    def __init__(
        self,
        settings: Settings,
        service: DispatchedService,
        metrics: ServerMetrics,
        problems: Problems,
        shares: TurnShares,
        now_s: Callable[[], float] = time.monotonic,
        guard: "AccessGuard | None" = None,
    ) -> None:
        """``guard`` None: every request is allowed."""
        self._guard = guard
        self._is_going_away = False
        self._closes_unconfirmed = service.confirms_reads and settings.no_quorum_policy == "fence"
        """Whether an unconfirmed request closes its connection: an answer with an error code would keep the client here."""
        self._settings = settings
        self._metrics = metrics
        self._problems = problems
        self._shares = shares
        self._pending_route_queries = 0
        self._pending_others = 0
        self._other = self._other_environment()
        self.answers = RouteAnswers(service.state, settings, metrics)
        self._long = LongAnswers(shares)
        self._queries = Queries(settings, service, self.answers, self._long, metrics, now_s, self._other)
        self.answers.is_ready = self._queries.is_ready
        self.registrations = Registrations(settings, service, metrics, shares, problems)
        changes = Changes(settings, service)
        self._handlers: dict[int, Handler] = {
            **self._queries.handlers(),
            **changes.handlers(),
            RequestCode.REGISTER_BROKER.value: self.registrations.register,
        }

    def trace(self, tracing: Tracing) -> None:
        """From now on record spans of requests."""
        # Imported here because a node without traces needs none of it.
        from replicated_namesrv.server.traced_requests import TracedHandler

        self._handlers = {code: TracedHandler(tracing, code, handler) for code, handler in self._handlers.items()}

    def note_operators(self, note: Note) -> None:
        """From now on call ``note`` for each request of an operator."""
        self._handlers |= {code: noted(code, self._handlers[code], note) for code in OPERATOR_CODES}

    @property
    def is_going_away(self) -> bool:
        """Whether newer clients are asked to use another node (GO_AWAY)."""
        return self._is_going_away

    def started(self) -> None:
        """The server listens from now on (needWaitForService counts from here)."""
        self._queries.started()

    def send_clients_away(self) -> None:
        """From now on answer GO_AWAY to clients that understand it."""
        self._is_going_away = True
        self.answers.is_off = True

    def request(self, connection: RemotingConnection, data: bytes | memoryview, start: int, bounds: FrameBounds) -> bytes | None:
        header = decode_header(data[bounds.header_start : bounds.body_start], bounds.serialize_type)
        if header.is_response:
            return None  # this response belongs to no request that we sent
        request = Request(connection, header, data, start, bounds)
        outcome = self._outcome(request)
        if outcome is None:
            self._metrics.count_request(header.code, None)
            return None
        if isinstance(outcome, Deferred):
            self._defer(request, outcome)
            return None
        frame = self._complete(request, outcome)
        self._metrics.answered += frame is not None
        return frame

    def _outcome(self, request: Request) -> Outcome | None:
        """The outcome of a request. None: the connection is closed instead."""
        header = request.header
        if self._is_going_away and header.version > V5_3_1:
            return GO_AWAY
        handler = self._handlers.get(header.code)
        if handler is None:
            return Answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED.value, f" request type {header.code} not supported")
        if self._is_overloaded(header.code):
            return OVERLOAD
        try:
            refused = None if self._guard is None else self._guard.refuse(request)
            return handler(request) if refused is None else refused
        except Exception as error:  # catch everything: an exception of a handler must not end the process
            return self._failed(request, error)
        finally:
            request.connection.origin = None  # by now the service has stored the origin, if it needs the origin

    def _is_overloaded(self, code: int) -> bool:
        if code == ROUTE_QUERY:
            if self._pending_route_queries < self._settings.client_request_thread_pool_queue_capacity:
                return False
            self._metrics.hit_limit("clientRequestThreadPoolQueueCapacity")
            return True
        if self._pending_others < self._settings.default_thread_pool_queue_capacity:
            return False
        self._metrics.hit_limit("defaultThreadPoolQueueCapacity")
        return True

    def _failed(self, request: Request, error: BaseException) -> Answer | None:
        if isinstance(error, UnavailableError | OutcomeUnknownError) and (
            self._closes_unconfirmed or (request.header.code == ROUTE_QUERY and "readConsistency" not in request.fields)
        ):
            request.connection.give_up()
            return None
        if isinstance(error, StorageError):
            self._problems.report("storage", "a change was refused: it could not be written to disk", why=str(error))
        if isinstance(error, AnswerTooLargeError):
            self._metrics.hit_limit("answerBytes")
        if isinstance(error, NamesrvError):
            return Answer(error.response_code, str(error))
        name = type(error).__name__
        self._metrics.unexpected_errors[name] = self._metrics.unexpected_errors.get(name, 0) + 1
        self._problems.report(
            name, "a request failed unexpectedly", error=error, peer=request.connection.peer, code=request.header.code
        )
        return Answer(ResponseCode.SYSTEM_ERROR.value, f"{name}: {error}")

    def _complete(self, request: Request, answer: Answer) -> bytes | None:
        """Frame of the answer, None for a oneway request."""
        header = request.header
        if self._guard is not None:
            self._guard.done(request, answer.code)
        if header.is_oneway:
            self._metrics.count_request(header.code, None)
            return None
        parts = answer_parts(answer.code, answer.remark, answer.ext_fields, answer.body, header.serialize_type)
        size = FRAME_PREFIX_BYTES + len(parts.before) + OPAQUE_BYTES_MAX + len(parts.after) + len(parts.body)
        if size > MAX_TOTAL:  # no peer reads so large a frame
            self._metrics.hit_limit("answerBytes")
            answer = Answer(ResponseCode.SYSTEM_ERROR.value, str(AnswerTooLargeError(header.code, str(size))))
            parts = answer_parts(answer.code, answer.remark, None, b"", header.serialize_type)
        self._metrics.count_request(header.code, answer.code)
        if request.lasting_topic is not None and isinstance(request.data, bytes):
            self.answers.remember(request.data, request.start, request.bounds.end, request.lasting_topic, parts)
        return answer_frame(parts, opaque_bytes(header.opaque, header.serialize_type))

    # -- answers that come later ------------------------------------------------------------------------------------------

    def _defer(self, request: Request, deferred: Deferred) -> None:
        self._count_pending(request, 1)
        request.keep_frame_only()
        request.connection.defer()
        deferred.future.add_done_callback(partial(self._ready, request, deferred.convert, perf_counter_ns()))

    def _ready(self, request: Request, convert: Callable[[Any], Outcome], started_ns: int, future: Future[Any]) -> None:
        """Send an answer within the share of the request's address, because one barrier can complete thousands of requests of an
        address at once.
        """
        self._shares.run(request.connection.share, partial(self._done, request, convert, started_ns, future))

    def _done(self, request: Request, convert: Callable[[Any], Outcome], started_ns: int, future: Future[Any]) -> None:
        # the outcome of an update of settings is always recorded; other answers are not built if the connection is lost
        is_lost = request.connection.is_closing and request.header.code != UPDATE_CONFIG
        answer: Outcome | None
        try:
            result = future.result()
            answer = None if is_lost else convert(result)
        except CancelledError:
            answer = None
        except Exception as error:
            answer = self._failed(request, error)
        if isinstance(answer, Deferred):
            answer.future.add_done_callback(partial(self._ready, request, answer.convert, started_ns))
            return
        self._count_pending(request, -1)
        frame = None
        if answer is None:
            self._metrics.count_request(request.header.code, None)
        else:
            frame = self._complete(request, answer)
            elapsed_ns = perf_counter_ns() - started_ns
            self._metrics.latency.observe(elapsed_ns)
            if elapsed_ns > SLOW_NS:
                request.connection.answered_late()
        request.connection.finish(frame)

    def _count_pending(self, request: Request, change: int) -> None:
        if request.header.code == ROUTE_QUERY:
            self._pending_route_queries += change
        else:
            self._pending_others += change

    def connection_lost(self, connection: RemotingConnection) -> None:
        """Drop the waiting requests of a connection that has ended."""
        self.registrations.queue.drop(connection)

    async def stop(self) -> None:
        """Drop all unfinished requests."""
        self.registrations.queue.stop()
        self._long.stop()
        if self._other is not None:
            await self._other.close()

    def _other_environment(self) -> "ClusterTestRoutes | None":
        if not self._settings.cluster_test:
            return None
        # imported here, because few nodes need an HTTP client
        from replicated_namesrv.server.cluster_test import ClusterTestRoutes

        return ClusterTestRoutes(self._settings, self._problems)

"""TracedHandler: a request handler that makes a span for each traced request. Exists only with ``traceEndpoint``."""

from asyncio import Future
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from replicated_namesrv.server.request import Answer, Deferred, Outcome, Request
from replicated_namesrv.tracing import REQUEST_SPAN, Tracing
from replicated_namesrv.wire.codes import RequestCode

if TYPE_CHECKING:
    from replicated_namesrv.tracing import Span


class TracedHandler:
    """Handles the requests of one code and records a span of each."""

    def __init__(self, tracing: Tracing, code: int, handle: Callable[[Request], Outcome]) -> None:
        self._tracing, self._code, self._handle = tracing, code, handle
        self._name = RequestCode(code).name

    def __call__(self, request: Request) -> Outcome:
        if not self._tracing.is_due():
            return self._handle(request)
        span = self._tracing.tracer.start_span(self._name)
        span.set_attribute("rocketmq.request.code", self._code)
        token = REQUEST_SPAN.set(span)
        try:
            outcome = self._handle(request)
        except Exception as error:
            _failed(span, error)
            raise
        finally:
            REQUEST_SPAN.reset(token)
        if isinstance(outcome, Deferred):
            outcome.future.add_done_callback(partial(_ended, span))
        else:
            _answered(span, outcome)
        return outcome


def _answered(span: "Span", answer: Answer) -> None:
    span.set_attribute("rocketmq.response.code", answer.code)
    span.end()


def _failed(span: "Span", error: BaseException) -> None:
    span.set_attribute("error.type", type(error).__name__)
    span.end()


def _ended(span: "Span", future: Future[Any]) -> None:
    if future.cancelled():
        span.set_attribute("error.type", "CancelledError")
        span.end()
    elif (error := future.exception()) is not None:
        _failed(span, error)
    else:
        span.end()

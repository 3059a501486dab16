"""Tracing: OpenTelemetry spans of requests and of the proposals that they cause, exported over OTLP/HTTP.

    request     from the handler's call until its answer
      proposal  from the proposal to Raft until its outcome
        commit  until a majority had the entry on disk, and this node began to apply it
        apply   the state machine's work on this node

Without ``traceEndpoint`` nothing of this is built: no wrapper is in the path of a request, and OpenTelemetry is not imported.
Finished spans wait in a queue of ``QUEUE_SPANS`` for a thread that exports them. When the queue is full, the oldest spans are
dropped. If a collector fails or hangs, only spans are lost.
"""

import asyncio
import logging
import threading
import time
from contextvars import ContextVar
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from replicated_namesrv.errors import SettingError
from replicated_namesrv.settings import Settings
from replicated_namesrv.time_limit import ends_within

if TYPE_CHECKING:
    from opentelemetry.trace import Span as Span  # exported for the modules that make spans
    from opentelemetry.trace import Tracer

QUEUE_SPANS, BATCH_SPANS = 2048, 512
EXPORT_DELAY_MS, EXPORT_TIMEOUT_S = 1000, 5
STOP_S = 2.0
"""Maximum time for which a stopping node waits for the last export."""

PROBLEM_EVERY_S = 60.0
"""Minimum interval of log lines about a collector that does not answer."""

REQUEST_SPAN: "ContextVar[Span | None]" = ContextVar("request_span", default=None)
"""The span of the request that the current code handles. Tasks and callbacks that this code creates inherit the span."""


class Seldom(logging.Filter):
    """Drops the exporter's log records, except one in ``PROBLEM_EVERY_S``."""

    def __init__(self) -> None:
        super().__init__()
        self._next_s = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        if time.monotonic() < self._next_s:
            return False
        self._next_s = time.monotonic() + PROBLEM_EVERY_S
        return True


_SELDOM = Seldom()


def check_endpoint(endpoint: str) -> None:
    """Raises SettingError if ``endpoint`` is not a URL of a collector."""
    url = urlsplit(endpoint)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise SettingError(f"traceEndpoint={endpoint}: give a URL, such as http://127.0.0.1:4318/v1/traces")


class Tracing:
    """The tracer of one node."""

    def __init__(self, endpoint: str, one_in: int, node_id: str) -> None:
        """Trace one in ``one_in`` requests. Raises SettingError."""
        check_endpoint(endpoint)
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError as error:
            remedy = "install replicated-namesrv[traces], or remove the setting"
            raise SettingError(f"traceEndpoint={endpoint}: OpenTelemetry is not installed ({error.name}); {remedy}") from None
        resource = Resource.create({"service.name": "namesrv", "service.instance.id": node_id})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        logging.getLogger(OTLPSpanExporter.__module__).addFilter(_SELDOM)
        self._exporter = OTLPSpanExporter(endpoint=endpoint, timeout=EXPORT_TIMEOUT_S)
        processor = BatchSpanProcessor(
            self._exporter,
            max_queue_size=QUEUE_SPANS,
            max_export_batch_size=BATCH_SPANS,
            schedule_delay_millis=EXPORT_DELAY_MS,
        )
        self._provider.add_span_processor(processor)
        self.tracer: Tracer = self._provider.get_tracer("replicated_namesrv")
        self._one_in, self._count = one_in, -1

    @classmethod
    def of(cls, settings: Settings) -> "Tracing | None":
        """The tracing that the settings ask for; None: none. Raises SettingError."""
        if not settings.trace_endpoint:
            return None
        return cls(settings.trace_endpoint, settings.trace_one_in, settings.node_id)

    def is_due(self) -> bool:
        """Whether the request that arrives now is traced."""
        self._count += 1
        return self._count % self._one_in == 0

    def child(self, parent: "Span", name: str, start_ns: int | None = None) -> "Span":
        """A new span below ``parent``. ``start_ns``: Unix time; None: now."""
        from opentelemetry.trace import set_span_in_context

        return self.tracer.start_span(name, set_span_in_context(parent), start_time=start_ns or time.time_ns())

    async def stop(self) -> None:
        """Export the spans that wait, for at most ``STOP_S``."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def shut_down() -> None:
            self._provider.shutdown()
            try:
                loop.call_soon_threadsafe(done.set)
            except RuntimeError:
                return  # the loop is closed, because the stop does not wait longer than ``STOP_S``

        threading.Thread(target=shut_down, name="trace-stop", daemon=True).start()
        if not await ends_within(STOP_S, done.wait()):
            # Shutting the exporter down ends its retries.
            self._exporter.shutdown()  # type: ignore[no-untyped-call]  # OpenTelemetry declares no types there

"""Traces: spans of real requests, received by a real HTTP collector over OTLP; and that a bad collector disturbs nothing."""

import gzip
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from replicated_namesrv.client.queries import get_kv_request, put_kv_request, read_done, read_kv
from replicated_namesrv.client.remoting import RemotingClient
from replicated_namesrv.errors import SettingError
from replicated_namesrv.settings_sources import load_settings
from replicated_namesrv.tracing import BATCH_SPANS, QUEUE_SPANS, Tracing
from tests.support.operated import Operated, operated

OTHER_END_S = 20.0


class Collector(ThreadingHTTPServer):
    """Keeps what is exported to ``/v1/traces``. ``hangs``: it answers no request until it is closed."""

    daemon_threads = True

    def __init__(self, *, hangs: bool = False) -> None:
        super().__init__(("127.0.0.1", 0), Received)
        self.exports: list[ExportTraceServiceRequest] = []
        self.hangs, self.asked, self.closed = hangs, threading.Event(), threading.Event()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1/traces"

    @property
    def spans(self) -> list[Span]:
        return [
            span
            for export in self.exports
            for resource in export.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


class Received(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.set()
        if self.server.hangs:
            self.server.closed.wait(OTHER_END_S)
            return
        assert self.path == "/v1/traces"
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.server.exports.append(ExportTraceServiceRequest.FromString(body))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@contextmanager
def collecting(*, hangs: bool = False) -> Iterator[Collector]:
    with Collector(hangs=hangs) as collector:
        thread = threading.Thread(target=collector.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield collector
        finally:
            collector.closed.set()
            collector.shutdown()
            thread.join()


async def put_and_get(cluster: Operated, gets: int = 1) -> None:
    client = RemotingClient()
    try:
        read_done(await client.request(cluster.namesrv, put_kv_request("N", "k", "v")))
        for _ in range(gets):
            assert read_kv(await client.request(cluster.namesrv, get_kv_request("N", "k"))) == "v"
    finally:
        await client.close()


async def test_request_proposal_commit_and_apply_arrive_at_a_collector(tmp_path: Path) -> None:
    with collecting() as collector:
        async with operated(tmp_path, 1, traceEndpoint=collector.endpoint, traceOneIn="1") as cluster:
            await put_and_get(cluster)
        spans = collector.spans
    (resource,) = {str(found.resource) for export in collector.exports for found in export.resource_spans}
    assert "n1" in resource
    (request,) = (span for span in spans if span.name == "PUT_KV_CONFIG")
    trace = {span.name: span for span in spans if span.trace_id == request.trace_id}
    assert set(trace) == {"PUT_KV_CONFIG", "proposal", "commit", "apply"}
    proposal, commit, apply = trace["proposal"], trace["commit"], trace["apply"]
    assert not request.parent_span_id
    assert proposal.parent_span_id == request.span_id
    assert commit.parent_span_id == apply.parent_span_id == proposal.span_id
    assert request.start_time_unix_nano <= proposal.start_time_unix_nano <= commit.start_time_unix_nano
    assert commit.start_time_unix_nano < commit.end_time_unix_nano == apply.start_time_unix_nano <= apply.end_time_unix_nano
    assert apply.end_time_unix_nano <= proposal.end_time_unix_nano
    attributes = {one.key: one.value for one in proposal.attributes}
    assert attributes["raft.outcome"].string_value == "committed"
    assert attributes["raft.log_index"].int_value > 0
    assert [span.name for span in spans].count("GET_KV_CONFIG") == 1, "a read has a trace of one span"


async def test_one_in_n_requests_is_traced_also_by_an_independent_node(tmp_path: Path) -> None:
    with collecting() as collector:
        async with operated(tmp_path, 1, "ap", traceEndpoint=collector.endpoint, traceOneIn="4") as cluster:
            await put_and_get(cluster, 15)
        assert len(collector.spans) == 4


@pytest.mark.parametrize("hangs", [True, False])
async def test_a_collector_that_hangs_or_is_gone_disturbs_nothing(hangs: bool, tmp_path: Path) -> None:
    with collecting(hangs=hangs) as collector:
        endpoint = collector.endpoint if hangs else "http://127.0.0.1:1/v1/traces"
        async with operated(tmp_path, 1, "ap", traceEndpoint=endpoint, traceOneIn="1") as cluster:
            tracing = cluster.nodes[0].tracing
            assert tracing is not None
            for _ in range(QUEUE_SPANS + BATCH_SPANS + 1):  # more than the queue has room for
                tracing.tracer.start_span("many").end()
            await put_and_get(cluster)
            if hangs:
                assert collector.asked.wait(OTHER_END_S), "the node exports"
            stops_at = time.monotonic()
        assert time.monotonic() - stops_at < OTHER_END_S / 2


@pytest.mark.parametrize("endpoint", ["127.0.0.1:4318", "http://", "file:///x"])
def test_a_wrong_endpoint_is_refused_by_name(endpoint: str) -> None:
    with pytest.raises(SettingError, match=f"traceEndpoint={endpoint}: give a URL"):
        Tracing(endpoint, 1, "n1")


def test_without_the_package_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(SettingError, match=r"install replicated-namesrv\[traces\], or remove the setting"):
        Tracing("http://127.0.0.1:4318/v1/traces", 1, "n1")


@pytest.mark.slow
def test_without_the_setting_nothing_of_it_is_loaded() -> None:
    assert Tracing.of(load_settings(None, {}, {})) is None
    code = (
        "import sys, replicated_namesrv.process as p, replicated_namesrv.settings_sources as s;"
        "import replicated_namesrv.replication.replicated_node; p.ServingNode(s.load_settings(None, {'mode': 'ap'}, {}));"
        "print([m for m in sys.modules if 'opentelemetry' in m or 'traced_requests' in m])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"

"""Watching a node over real connections."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from aiohttp import web

from replicated_namesrv.access.roles import Role
from replicated_namesrv.admin import access as access_module
from replicated_namesrv.admin import watch as watch_module
from replicated_namesrv.admin.access import Access
from replicated_namesrv.admin.watch import WATCHERS_MAX, Watchers
from replicated_namesrv.process import ServingNode
from replicated_namesrv.replication.replicated_node import ReplicatedNode
from replicated_namesrv.replication.route_machine import RouteStateMachine, encode_plain
from replicated_namesrv.routes.commands import PutKVConfig
from tests.access.files import token_line, write_access_file
from tests.support.authority import Authority
from tests.support.events import watching
from tests.support.nodes import http, running_node
from tests.support.operated import operated, run
from tests.support.waiting import until


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[tuple[ServingNode, int]]:
    async with running_node(tmp_path) as started:
        yield started


async def put(node: ServingNode, value: str) -> int:
    """Write one entry. Returns the revision after it."""
    outcome = node.service.propose(PutKVConfig("n", "k", value), None)
    if isinstance(outcome, asyncio.Future):
        await outcome
    return node.service.state.revision


async def test_changes_arrive_and_a_watcher_goes_on_where_it_was(node: tuple[ServingNode, int]) -> None:
    started, port = node
    async with watching(port) as stream:
        hello = await stream.next()
        assert (hello.kind, hello.data["from"], hello.data["oldest"], hello.data["mode"]) == ("hello", 0, 0, "ap")
        for number in range(1, 4):
            assert await put(started, f"v{number}") == number
            event = await stream.next()
            assert (event.kind, event.data["revision"], event.data["value"]) == ("kv-put", number, f"v{number}")
            assert event.id is not None
            assert event.id.partition("@")[0] == str(number)
    second = f"2@{started.service.history_id}"
    for query, last_event_id in ((f"?from={second}", None), ("?from=0", second)):
        async with watching(port, query, last_event_id) as stream:
            assert (await stream.next()).data["from"] == 2
            assert (await stream.next()).data["revision"] == 3


async def test_without_a_position_it_begins_now_and_hello_says_where(node: tuple[ServingNode, int]) -> None:
    started, port = node
    await put(started, "before")
    async with watching(port) as stream:
        hello = await stream.next()
    assert hello.id is not None
    await put(started, "while nobody watched")
    async with watching(port, last_event_id=hello.id) as stream:
        await stream.next()
        assert (await stream.next()).data["value"] == "while nobody watched"


async def test_a_revision_that_is_gone_is_an_error_that_names_the_oldest(tmp_path: Path) -> None:
    async with running_node(tmp_path, watchHistoryBytes="2000") as (started, port):
        for number in range(50):
            await put(started, str(number))
        history_id = started.service.history_id
        answer = await http(port, f"/v1/watch?from=3@{history_id}")
        assert answer.status == 410
        oldest = answer.json["oldest"]
        assert f"only those after {oldest}@{history_id}" in answer.json["error"]
        assert "/v1/topics" in answer.json["remedy"]
        async with watching(port, f"?from={oldest}@{history_id}") as stream:
            await stream.next()
            assert [(await stream.next()).data["revision"] for _ in range(50 - oldest)] == list(range(oldest + 1, 51))
        answer = await http(port, f"/v1/watch?from=51@{history_id}")
        assert (answer.status, answer.json["revision"], answer.json["watchFrom"]) == (410, 50, f"50@{history_id}")


async def test_an_earlier_life_of_an_independent_node_is_recognised(tmp_path: Path) -> None:
    async with running_node(tmp_path) as (started, port):
        await put(started, "one")
        async with watching(port, "?from=0") as stream:
            await stream.next()
            seen = (await stream.next()).id
    async with running_node(tmp_path) as (started, port):
        assert started.service.state.revision == 1, "read back from kvConfig.json"
        answer = await http(port, "/v1/watch", headers={"Last-Event-ID": str(seen)})
        assert answer.status == 410
        assert "earlier process" in answer.json["error"]
        answer = await http(port, "/v1/watch?from=1")
        assert (answer.status, "does not name the process" in answer.json["error"]) == (410, True)
        for path in ("topics", "brokers", "clusters", "kv", "kv-namespaces"):
            position = (await http(port, f"/v1/{path}")).json["watchFrom"]
            assert position == answer.json["watchFrom"] == f"1@{started.service.history_id}"
        await put(started, "two")
        async with watching(port, f"?from={position}") as stream:
            await stream.next()
            assert (await stream.next()).data["value"] == "two"


@pytest.mark.parametrize("position", ["x", "-1", "1.5", "9" * 19, "@"])
async def test_a_position_that_is_none_is_refused(node: tuple[ServingNode, int], position: str) -> None:
    answer = await http(node[1], f"/v1/watch?from={position}")
    assert answer.status == 400
    assert "is not a revision" in answer.json["error"]


async def test_a_stopping_node_says_so(tmp_path: Path) -> None:
    async with running_node(tmp_path) as (_, port):
        context = watching(port)
        stream = await context.__aenter__()
        await stream.next()
    end = await stream.next()
    assert (end.kind, end.data["reason"]) == ("end", "stopping")
    assert await stream.ended()
    await context.__aexit__(None, None, None)


async def test_who_does_not_read_is_let_go_and_told_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_module, "WRITE_TIMEOUT_S", 2.0)  # also the time in which the watcher has to begin to read the rest
    async with running_node(tmp_path, watchHistoryBytes="1000000") as (started, port):
        with socket.socket() as idle:
            idle.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            idle.connect(("127.0.0.1", port))
            idle.sendall(b"GET /v1/watch?from=0 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            await until(lambda: started.service.history.listeners, "the watcher")
            written = 0
            while started.service.history.listeners:
                await put(started, f"{written}".zfill(200_000))
                written += 1
            metrics = (await http(port, "/metrics")).text
            assert "namesrv_watchers_too_slow_total 1.0" in metrics
            idle.settimeout(60)
            received = b""
            while chunk := await asyncio.to_thread(idle.recv, 1 << 16):
                received += chunk
        assert b"event: end" in received[-600:]
        assert b'"reason": "compacted"' in received[-600:] or b'"reason": "slow"' in received[-600:]


async def test_watchers_are_limited(node: tuple[ServingNode, int], monkeypatch: pytest.MonkeyPatch) -> None:
    assert WATCHERS_MAX == 128
    _, port = node
    monkeypatch.setattr(watch_module, "WATCHERS_MAX", 1)
    async with watching(port) as stream:
        await stream.next()
        answer = await http(port, "/v1/watch")
        assert answer.status == 503
        assert "1 watchers already" in answer.json["error"]


async def test_watchers_of_one_host_leave_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0 < watch_module.ADDRESS_WATCHERS_MAX < WATCHERS_MAX
    monkeypatch.setattr(watch_module, "ADDRESS_WATCHERS_MAX", 1)
    async with running_node(tmp_path, adminListen="0.0.0.0:0") as (_, port), watching(port) as stream:
        await stream.next()
        refused = await http(port, "/v1/watch")
        assert (refused.status, "this host has 1 watchers already" in refused.json["error"]) == (503, True)
        with socket.create_connection(("127.0.0.1", port), 60, ("127.0.0.2", 0)) as other:
            other.sendall(b"GET /v1/watch HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert (await asyncio.to_thread(other.recv, 12)) == b"HTTP/1.1 200"


async def test_watching_is_documented_as_it_is() -> None:
    text = " ".join((Path(__file__).parents[2] / "docs" / "admin-http.md").read_text().split())
    assert f"At most {WATCHERS_MAX} watchers" in text
    assert f"at most {watch_module.ADDRESS_WATCHERS_MAX} of them from one address" in text
    assert f"reads nothing for {watch_module.WRITE_TIMEOUT_S:g} s" in text
    assert f"After {watch_module.KEEP_ALIVE_S:g} s without an event, a comment" in text


async def test_an_open_watcher_is_told_that_a_backup_took_the_place_of_the_state(tmp_path: Path) -> None:
    file = tmp_path / "backup"
    async with operated(tmp_path / "old", 1) as old:
        for number in range(5):
            await put(old.nodes[0], str(number))
        assert (await run("backup", str(file), "-a", old.admin)).code == 0
    async with operated(tmp_path / "new", 1) as new, watching(new.admin_ports[0]) as stream:
        assert (await stream.next()).kind == "hello"
        answer = await http(new.admin_ports[0], "/v1/restore", "POST", file.read_bytes())
        assert answer.status == 200, answer.body
        event = await stream.until("restored")
        assert event.data["revision"] == answer.json["revision"] == new.nodes[0].service.state.revision
        assert event.id == str(event.data["revision"])
        after = await put(new.nodes[0], "later")
        assert (await stream.next()).data["revision"] == after
        assert "namesrv_watchers_too_slow_total 0.0" in (await http(new.admin_ports[0], "/metrics")).text


async def test_an_open_watcher_is_told_that_a_snapshot_took_the_place_of_the_state(tmp_path: Path) -> None:
    """Raft installs a snapshot on a node that lagged far. Its changes cannot be reported one by one."""
    ahead = RouteStateMachine()
    for number in range(9):
        ahead.apply(encode_plain(PutKVConfig("n", "k", str(number)), 7))
    async with operated(tmp_path, 1) as cluster, watching(cluster.admin_ports[0]) as stream:
        service = cluster.nodes[0].service
        assert isinstance(service, ReplicatedNode)
        assert (await stream.next()).kind == "hello"
        await put(cluster.nodes[0], "seen")
        assert (await stream.until("kv-put")).data["revision"] == 1
        installing = service._machine.restore()
        for chunk in ahead.snapshot():
            installing.feed(chunk)
        installing.finish()
        event = await stream.next()
        assert (event.id, event.kind, event.data["revision"]) == ("9", "restored", 9)
        assert await put(cluster.nodes[0], "later") == 10
        assert (await stream.next()).data["revision"] == 10
        async with watching(cluster.admin_ports[0], "?from=9") as second:
            await second.next()
            assert (await second.next()).data["revision"] == 10
        assert (await http(cluster.admin_ports[0], "/v1/watch?from=1")).status == 410


async def test_a_node_that_may_lag_denies_no_revision_before_it_has_asked_a_majority(tmp_path: Path) -> None:
    """This holds also with readConsistency=stale, with which the node answers other views from its own state."""
    async with operated(tmp_path, readConsistency="stale", fenceAfterMs="700") as cluster:
        leader = await cluster.elected()
        port = next(port for node, port in zip(cluster.nodes, cluster.admin_ports, strict=True) if node is not leader)
        for number in range(5):
            revision = await put(leader, str(number))
            async with watching(port, f"?from={revision}") as stream:
                assert (await stream.next()).data["from"] == revision
        answer = await http(port, f"/v1/watch?from={revision + 1}")
        assert (answer.status, answer.json["revision"]) == (410, revision)
        for node in cluster.nodes:
            if node.admin is not None and node.admin.address is not None and node.admin.address[1] != port:
                await node.stop()
        answer = await http(port, f"/v1/watch?from={revision + 1}")
        assert answer.status == 503, "the others may have gone on without it"
        assert (await http(port, f"/v1/watch?from={revision + 1}")).json["outcome"] == "not done"
        async with watching(port, f"?from={revision}") as stream:
            assert (await stream.next()).kind == "hello", "what it has, it tells"


async def test_a_stream_ends_when_its_caller_may_not_watch_any_more(tmp_path: Path) -> None:
    """A reload of the access file ends it at once, and no later event is sent."""
    names = {"kept": "a long token that is kept", "revoked": "a long token that is revoked"}
    parts = {name: f'[identities.{name}]\nroles = ["read"]\ntokens = ["{token_line(token)}"]\n' for name, token in names.items()}
    path = write_access_file(tmp_path, parts["kept"] + parts["revoked"])
    async with (
        running_node(tmp_path, accessPolicy="enforce", accessFile=str(path)) as (started, port),
        watching(port, token=names["kept"]) as kept,
        watching(port, token=names["revoked"]) as revoked,
    ):
        await put(started, "before")
        assert (await revoked.until("kv-put")).data["value"] == "before"
        path.write_text(parts["kept"])
        assert started.access is not None
        access = started.access
        await until(lambda: access.reloads == 1, "the file is reloaded")
        await put(started, "after")
        end = await revoked.next()
        assert (end.kind, end.data["reason"]) == ("end", "refused")
        assert end.data["error"].startswith("wrong token; ")
        assert await revoked.ended()
        assert [(await kept.until("kv-put")).data["value"] for _ in range(2)] == ["before", "after"]
        assert access.refusals == {("GET /v1/watch", "refused"): 1}


OLD_TOKEN, NEW_TOKEN = "the first token of this port", "another token of this port"


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(OLD_TOKEN)
    return path


def wrong_tokens(caplog: pytest.LogCaptureFixture) -> int:
    return sum(record.getMessage() == "refused: wrong token" for record in caplog.records)


async def test_a_changed_token_ends_a_stream_at_its_next_check(
    tmp_path: Path, token_file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watch_module, "CHECK_EVERY_S", 0.0)
    async with (
        running_node(tmp_path, adminTokenFile=str(token_file)) as (started, port),
        watching(port, token=OLD_TOKEN) as stream,
    ):
        await stream.until("hello")
        await asyncio.to_thread(token_file.write_text, NEW_TOKEN)
        await put(started, "another value")
        assert (await stream.next()).data["reason"] == "refused"
        assert await stream.ended()
    assert wrong_tokens(caplog) == 1


async def test_events_between_two_checks_do_not_read_the_token_file(
    tmp_path: Path, token_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert watch_module.CHECK_EVERY_S == 1.0
    monkeypatch.setattr(watch_module, "CHECK_EVERY_S", 3600.0)
    reads: list[str] = []

    def counted(path: str) -> bytes:
        reads.append(path)
        return read_token(path)

    read_token = access_module.read_token
    async with running_node(tmp_path, adminTokenFile=str(token_file)) as (started, port):
        monkeypatch.setattr(access_module, "read_token", counted)
        async with watching(port, token=OLD_TOKEN) as stream:
            await stream.until("hello")
            for number in range(20):
                await put(started, str(number))
                assert (await stream.next()).data["value"] == str(number)
    assert reads == [str(token_file)] * 2, "the request, and the first check of the stream"


async def test_what_is_only_observed_is_recorded_once_for_a_stream(
    tmp_path: Path, token_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "CHECK_EVERY_S", 0.0)
    flags = {
        "accessPolicy": "observe",
        "accessFile": str(write_access_file(tmp_path, f'[identities.a]\nroles = []\ntokens = ["{token_line(OLD_TOKEN)}"]\n')),
        "adminTokenFile": str(token_file),
    }
    async with running_node(tmp_path, **flags) as (started, port), watching(port, token=OLD_TOKEN) as stream:
        await stream.until("hello")
        for number in range(5):
            await put(started, str(number))
            assert (await stream.next()).data["value"] == str(number)
        assert started.access is not None
        assert started.access.refusals == {("GET /v1/watch", "observed"): 1}
        await asyncio.to_thread(token_file.write_text, NEW_TOKEN)
        await put(started, "another value")
        assert (await stream.next()).data["reason"] == "refused", "as with open"


async def test_a_watcher_with_a_certificate_that_left_is_not_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A watcher that has disconnected has no certificate any more, so earlier versions treated it as an anonymous caller."""
    monkeypatch.setattr(watch_module, "CHECK_EVERY_S", 0.0)
    authority = Authority(tmp_path)
    server, client = authority.files("localhost"), authority.files("ops", prefix="ops-")
    flags = {
        "adminTlsCertPath": str(server.certificate),
        "adminTlsKeyPath": str(server.key),
        "adminTlsTrustCertPath": str(authority.path),
        "accessPolicy": "enforce",
        "accessFile": str(write_access_file(tmp_path, '[identities.ops]\nroles = ["read"]\ncertificates = ["CN=ops"]')),
    }
    context = ssl.create_default_context(cafile=str(authority.path))
    context.load_cert_chain(client.certificate, client.key)
    checked: list[web.Request] = []
    check_again = Access.check_again

    def seen(access: Access, request: web.Request, allowed: frozenset[Role], by_table: Callable[[web.Request], None]) -> None:
        checked.append(request)
        check_again(access, request, allowed, by_table)

    monkeypatch.setattr(Access, "check_again", seen)
    async with running_node(tmp_path, **flags) as (started, port):
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost")
        writer.write(f"GET /v1/watch HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n".encode())
        await until(lambda: checked, "the first check")
        writer.close()
        await until(lambda: checked[0].transport is None, "the node has noticed that the caller left")
        await put(started, "value")
        await until(lambda: not started.service.history.listeners, "the stream has ended")
        assert started.access is not None
        assert started.access.refusals == {}
    assert not [record for record in caplog.records if record.exc_info or "refused" in record.getMessage()], caplog.text


@pytest.mark.parametrize(("error", "too_slow"), [(ConnectionResetError, 0), (TimeoutError, 1)])
async def test_a_refused_watcher_that_left_or_reads_too_slowly_is_no_unexpected_error(
    tmp_path: Path,
    token_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: type[OSError],
    too_slow: int,
) -> None:
    monkeypatch.setattr(watch_module, "CHECK_EVERY_S", 0.0)
    send = Watchers._send

    async def failing(watchers: Watchers, response: web.StreamResponse, text: str) -> None:
        if '"refused"' in text:
            raise error
        await send(watchers, response, text)

    monkeypatch.setattr(Watchers, "_send", failing)
    async with running_node(tmp_path, adminTokenFile=str(token_file)) as (started, port):
        async with watching(port, token=OLD_TOKEN) as stream:
            await stream.until("hello")
            await asyncio.to_thread(token_file.write_text, NEW_TOKEN)
            await put(started, "another value")
            await until(lambda: not started.service.history.listeners, "the stream has ended")
        assert f"namesrv_watchers_too_slow_total {too_slow:.1f}" in (await http(port, "/metrics")).text
    assert not [record for record in caplog.records if record.exc_info], caplog.text

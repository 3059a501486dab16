"""The admin port: the rights of each caller, and attacks by a hostile caller."""

import asyncio
import socket
import zlib
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from urllib.parse import quote

import pytest

from tests.security.attacked import MODES, AttackedNode, attacked
from tests.support.nodes import DEADLINE_S, http, run_command

TOKEN = "a-secret-of-some-length"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
COMPRESSED_BYTES = 1_000_000
LOG_BYTES_MAX = 10_000


@pytest.fixture(scope="module", params=MODES)
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedNode]:
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "token").write_text(TOKEN)
    with attacked(folder, request.param, f"adminTokenFile={folder / 'token'}") as running:
        yield running


@pytest.fixture(scope="module")
def open_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedNode]:
    with attacked(tmp_path_factory.mktemp("open"), "ap") as running:
        yield running


def test_loopback_needs_the_token(node: AttackedNode) -> None:
    """Any local user, and anyone behind a proxy on this machine, comes from loopback."""
    assert node.http("/v1/kv/n/k", "PUT", b"v").status == 401
    for path in ("/v1/status", "/v1/kv", "/v1/config", "/v1/backup", "/v1/watch"):
        assert node.http(path).status == 401, path
    assert node.http("/v1/kv/n/k", "PUT", b"v", BEARER).status == 200
    assert node.http("/v1/kv", headers=BEARER).json["entries"][0]["value"] == "v"
    assert node.http("/readyz").status == 200


def test_commands_read_the_token_from_its_file(node: AttackedNode) -> None:
    refused = run_command("status", "-a", f"127.0.0.1:{node.admin_port}")
    assert (refused.returncode != 0, "--token-file" in refused.stdout + refused.stderr) == (True, True)
    allowed = run_command("status", "-a", f"127.0.0.1:{node.admin_port}", "--token-file", str(node.folder / "token"))
    assert allowed.returncode == 0, allowed.stdout + allowed.stderr


def test_views_cannot_be_read_by_dns_rebinding(open_node: AttackedNode) -> None:
    for path in ("/v1/status", "/v1/topics", "/v1/kv", "/v1/config"):
        assert open_node.http(path, headers={"Host": "evil.example:9886"}).status == 403, path
        assert open_node.http(path, headers={"Host": f"localhost:{open_node.admin_port}"}).status == 200, path


def test_compressed_bodies_are_neither_inflated_nor_drained(node: AttackedNode) -> None:
    """In an earlier version, six requests of 1 MB, each of which inflates to hundreds of MB, stopped the event loop for
    seconds."""
    packer = zlib.compressobj(1)
    head, repeated = packer.compress(b""), packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    body = head + repeated * (COMPRESSED_BYTES // len(repeated))

    async def attack(path: str, method: str) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", node.admin_port)
        fields = f"Host: 127.0.0.1\r\nConnection: close\r\nContent-Encoding: deflate\r\nContent-Length: {len(body)}"
        head = f"{method} {path} HTTP/1.1\r\n{fields}\r\n\r\n"
        try:
            writer.write(head.encode() + body)
            answer = await reader.read()
            assert not answer or b"415" in answer.split(b"\r\n")[0]
        except ConnectionError:
            pass  # closed before all of it came
        finally:
            writer.close()

    async def probes() -> list[float]:
        attacks = asyncio.gather(*(attack(*kind) for kind in (("/livez", "GET"), ("/v1/kv/n/k", "PUT")) for _ in range(3)))
        took_s = []
        while not attacks.done():
            began_s = monotonic()
            assert (await http(node.admin_port, "/livez")).status == 200
            took_s.append(monotonic() - began_s)
        await asyncio.wait_for(attacks, DEADLINE_S)
        return took_s

    began_cpu_s = cpu_s(node)
    asyncio.run(probes())
    assert cpu_s(node) - began_cpu_s < 1, "inflating them takes six seconds and more"


def cpu_s(node: AttackedNode) -> float:
    """CPU seconds of the node so far: unlike latency, this time does not depend on other work of the machine."""
    with open(f"/proc/{node.command.process.pid}/stat", encoding="ascii") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


@pytest.mark.slow
def test_names_and_hosts_of_members_have_no_control_characters(tmp_path: Path) -> None:
    """In an earlier version such a name was accepted, and such a host ended the task that connects to it."""
    with attacked(tmp_path, "cp") as member:
        for name in ("a\nb", "a\0b", "a\x1b[2J", "a\x7fb", "a\u202eb", "a\u200bb", "a b", "a,b", "a=b", ".", ".."):
            answer = member.http(f"/v1/members/{quote(name, safe='').replace('.', '%2E')}/add?address=h:1&observer=true", "POST")
            wanted = "give a name of at most 200 characters, without blanks"
            assert (answer.status, wanted in answer.json["error"]) == (400, True), (name, answer.text)
        for address in ("a\0b:1", "a\nb:1", f"h:{'1' * 5000}", "h:\u00b2", f"{'x' * 64}:1"):
            for action in ("add", "move"):
                answer = member.http(f"/v1/members/n4/{action}?address={quote(address)}", "POST")
                assert (answer.status, "not HOST:PORT" in answer.json["error"]) == (400, True), (address, answer.text)
        assert [row["nodeId"] for row in member.http("/v1/members").json["members"]] == ["n1"]
        assert "Traceback" not in member.log


def test_bodies_have_limits_by_path(node: AttackedNode) -> None:
    assert node.http("/v1/config", "POST", b" " * 270_000, BEARER).status == 413
    assert node.http("/v1/kv/n/large", "PUT", b"v" * 70_000, BEARER).status == 200


def test_malformed_requests_do_not_fill_the_log(node: AttackedNode) -> None:
    async def attack() -> None:
        for number in range(200):
            reader, writer = await asyncio.open_connection("127.0.0.1", node.admin_port)
            writer.write(b"GET /livez HTTP/1.1\r\nX Bad %d: \x00\r\n\r\n" % number)
            await reader.read()
            writer.close()

    before = len(node.log)
    asyncio.run(attack())
    assert node.http("/livez").status == 200
    written = node.log[before:]
    assert "Traceback" not in written
    assert len(written) < LOG_BYTES_MAX


@pytest.mark.slow
def test_bytes_that_are_no_text_and_bodies_that_end_early_leave_no_tracebacks(open_node: AttackedNode) -> None:
    """In an earlier version, each of these requests added a traceback to the log."""
    head = b"PUT /v1/kv/n/k HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    requests = {
        b"GET /v1/status HTTP/1.1\r\nHost: \xff\r\n\r\n": b"HTTP/1.1 403",
        head + b"Content-Length: 100\r\n\r\nv": b"",
        head + b"Transfer-Encoding: chunked\r\n\r\nnone\r\n": b"HTTP/1.",
    }
    for request, answer in requests.items():
        with socket.create_connection(("127.0.0.1", open_node.admin_port), DEADLINE_S) as peer:
            peer.sendall(request)
            if answer:
                assert peer.recv(1000).startswith(answer), request
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", open_node.admin_port), DEADLINE_S) as peer:
            peer.sendall(head + b"Expect: 100-continue\r\nContent-Length: 3\r\n\r\nabc")
            peer.shutdown(socket.SHUT_WR)
    assert open_node.http("/livez").status == 200
    open_node.stop()
    assert "Traceback" not in open_node.log

"""Roles at the admin port: by token, certificate and address, and beside adminTokenFile.

tests/security/test_role_matrix.py sends every request by every role."""

import asyncio
import json
import ssl
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from replicated_namesrv.access.roles import ADMINS, OPERATORS, READERS, Role
from replicated_namesrv.admin.paths import HTTP_ROLES, ROUTES
from replicated_namesrv.replication.consensus import HEAVY_BYTES
from replicated_namesrv.replication.replicated_node import ReplicatedNode
from tests.access.files import token_line, write_access_file
from tests.support.authority import Authority
from tests.support.nodes import http, running_node, status_of
from tests.support.places import assert_listed, assert_same_names
from tests.support.ports import free_port
from tests.support.waiting import until

TOKENS = {role: f"a long token of {role}" for role in Role}
FILE = "".join(
    f'[identities.{role}]\nroles = ["{role}"]\ntokens = ["{token_line(token)}"]\n'
    + ('brokers = ["*"]\n' if role is Role.BROKER else "")
    for role, token in TOKENS.items()
)
OPEN = {"/", "/console/{file:.+}", "/livez", "/readyz", "/metrics", "/rocketmq/nsaddr", "/rocketmq/nsaddr-{unit}"}
"""Paths without access control, for browsers, balancers, Prometheus, and brokers that fetch the address list."""
REFUSED = (401, 403)


def bearer(role: Role | None) -> dict[str, str]:
    return {} if role is None else {"Authorization": f"Bearer {TOKENS[role]}"}


def requests() -> list[tuple[str, str]]:
    """Method and path of every route."""
    return [(route.method, route.path) for route in ROUTES]


def test_every_path_has_roles_or_is_open_on_purpose() -> None:
    """This test fails for a new path without a role."""
    assert all(isinstance(route, web.RouteDef) for route in ROUTES)
    missing = [
        f"{method} {path} has no roles: register it with _view, _secret_view or _change in admin/paths.py, or add it to OPEN here"
        for method, path in requests()
        if (method, path) not in HTTP_ROLES and path not in OPEN
    ]
    assert not missing, "\n".join(missing)
    without = {path for method, path in requests() if (method, path) not in HTTP_ROLES}
    assert_listed(OPEN, "OPEN of this file", without, "the paths without roles")
    both = OPEN & {path for _, path in HTTP_ROLES}
    assert not both, f"these have roles, and are in OPEN of this file: {', '.join(sorted(both))}"


def test_changes_need_the_roles_of_the_page() -> None:
    changes = {key: roles for key, roles in HTTP_ROLES.items() if key[0] != "GET"}
    others = [f"{method} {path}" for (method, path), roles in changes.items() if roles not in (OPERATORS, ADMINS)]
    assert not others, f"changes with other roles than OPERATORS and ADMINS in admin/paths.py: {', '.join(others)}"
    admins = {key for key, roles in HTTP_ROLES.items() if roles == ADMINS}
    operations = {("POST", "/v1/restore"), ("POST", "/v1/leader/transfer"), ("POST", "/v1/drain"), ("DELETE", "/v1/drain")}
    operations.add(("POST", "/v1/members/{node}/{action}"))
    page = "what this test and docs/security.md ('What each role may send') leave to admins"
    assert_same_names(
        map(" ".join, admins), "the paths with the roles ADMINS", map(" ".join, [("GET", "/v1/backup"), *operations]), page
    )
    other = [path for (method, path), roles in HTTP_ROLES.items() if method == "GET" and roles not in (READERS, ADMINS)]
    assert not other, f"GET requests with other roles than READERS and ADMINS in admin/paths.py: {', '.join(other)}"


@pytest.mark.parametrize("query", ["add?address=h:1&observer=yes", "remove?observer=true", "move?address=h:1&observer=false"])
async def test_an_observer_that_is_no_boolean_or_not_added_is_refused(tmp_path: Path, query: str) -> None:
    async with running_node(tmp_path) as (_, port):
        answer = await http(port, f"/v1/members/n4/{query}", "POST")
    assert (answer.status, "observer=" in answer.json["error"]) == (400, True)


async def test_the_admin_token_keeps_working_and_a_wrong_one_does_not(tmp_path: Path) -> None:
    path, token = write_access_file(tmp_path, FILE), tmp_path / "token"
    token.write_text("the-token-of-the-admin-port\n")
    flags = {"accessPolicy": "enforce", "accessFile": str(path), "adminTokenFile": str(token)}
    async with running_node(tmp_path, **flags) as (_, port):
        right = {"Authorization": "Bearer the-token-of-the-admin-port"}
        assert await status_of(port, "GET", "/v1/backup", right) == 200
        assert (await http(port, "/v1/status", headers=bearer(Role.READ))).status == 200
        answer = await http(port, "/v1/status", headers={"Authorization": "Bearer something-else-of-some-length"})
        assert (answer.status, answer.json["error"]) == (401, "wrong token")
        answer = await http(port, "/v1/kv/n/k", "DELETE", headers=bearer(Role.READ))
        assert (answer.status, answer.json["error"]) == (
            403,
            "no permission: it needs the role admin or operator, and read has read",
        )


async def test_loopback_is_a_network_like_any_other_and_not_for_web_pages(tmp_path: Path) -> None:
    path = write_access_file(tmp_path, '[identities.local]\nroles = ["operator"]\nnetworks = ["127.0.0.0/8"]')
    async with running_node(tmp_path, accessPolicy="enforce", accessFile=str(path)) as (_, port):
        assert (await http(port, "/v1/kv/n/k", "PUT", b"v")).status == 200
        for headers in (
            {"Host": "evil.example"},
            {"Origin": "http://evil.example"},
            {"X-Forwarded-For": "10.0.0.1"},
            {"x-forwarded-host": "name-server"},
            {"VIA": "1.1 proxy"},
        ):
            assert (await http(port, "/v1/kv/n/k", "PUT", b"v", headers)).status in REFUSED, headers


async def test_observe_accepts_what_open_accepts_and_nothing_else(tmp_path: Path) -> None:
    local = '[identities.local]\nroles = ["admin"]\nnetworks = ["127.0.0.0/8"]\n'
    path, token = write_access_file(tmp_path, FILE), tmp_path / "token"
    token.write_text("the-token-of-the-admin-port\n")
    async with running_node(tmp_path, accessPolicy="observe", accessFile=str(path)) as (node, port):
        assert (await http(port, "/v1/kv/n/k", "PUT", b"v")).status == 200, "from this machine, as with open"
        assert node.access is not None
        assert (await http(port, "/v1/kv/n/k", "PUT", b"v", bearer(Role.READ))).status == 200, "its token does not count yet"
        assert node.access.refusals == {("PUT /v1/kv/{namespace}/{key}", "observed"): 2}
        assert (await http(port, "/v1/kv/n/k", "PUT", b"v", {"Authorization": "Bearer something-else"})).status == 401
        status = (await http(port, "/v1/status")).json["access"]
        assert (status["policy"], status["sha256"]) == ("observe", node.access.rules.digest)
    path.write_text(local + FILE)
    async with running_node(tmp_path, accessPolicy="observe", accessFile=str(path), adminTokenFile=str(token)) as (_, port):
        for role in (None, Role.OPERATOR, Role.ADMIN):
            for method, view in (("PUT", "/v1/kv/n/k"), ("GET", "/v1/kv"), ("GET", "/v1/backup"), ("GET", "/v1/watch")):
                assert await status_of(port, method, view, bearer(role)) == 401, (role, view, "as with open")
        assert (
            await http(port, "/v1/kv/n/k", "PUT", b"v", {"Authorization": "Bearer the-token-of-the-admin-port"})
        ).status == 200
    lines = [json.loads(line) for line in (tmp_path / "audit-refusals.log").read_text().splitlines()]
    assert next(line["request"] for line in lines if line["event"] == "observed") == "PUT /v1/kv/{namespace}/{key}"


async def test_a_client_certificate_has_the_roles_of_its_identity(tmp_path: Path) -> None:
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "stranger")
    path = write_access_file(tmp_path, '[identities.ops]\nroles = ["operator"]\ncertificates = ["CN=ops"]')
    server = authority.files("localhost")
    flags = {
        "adminTlsCertPath": str(server.certificate),
        "adminTlsKeyPath": str(server.key),
        "adminTlsTrustCertPath": str(authority.path),
    }
    async with running_node(tmp_path, accessPolicy="enforce", accessFile=str(path), **flags) as (_, port):

        def context(client: Authority | None, name: str = "ops") -> ssl.SSLContext:
            context = ssl.create_default_context(cafile=str(authority.path))
            if client is not None:
                files = client.files(name, prefix=f"{name}-")
                context.load_cert_chain(files.certificate, files.key)
            return context

        assert await status_of(port, "PUT", "/v1/kv/n/k", {}, context(authority)) == 200
        assert await status_of(port, "PUT", "/v1/kv/n/k", {"Origin": "https://evil.example"}, context(authority)) == 403
        assert await status_of(port, "PUT", "/v1/kv/n/k", {}, context(authority, "other")) == 401
        assert await status_of(port, "PUT", "/v1/kv/n/k", {}, context(None)) == 401
        assert await status_of(port, "GET", "/livez", {}, context(None)) == 200
        with pytest.raises((OSError, IndexError)):
            await status_of(port, "PUT", "/v1/kv/n/k", {}, context(stranger))


@pytest.mark.parametrize("how", ["token", "certificate", "adminTokenFile"])
async def test_what_was_revoked_is_refused_at_the_next_request_of_an_open_connection(tmp_path: Path, how: str) -> None:
    authority, token = Authority(tmp_path), tmp_path / "token"
    server, client = authority.files("localhost"), authority.files("ops", prefix="ops-")
    identity = '[identities.ops]\nroles = ["operator"]\n'
    path = write_access_file(tmp_path, identity + f'certificates = ["CN=ops"]\ntokens = ["{token_line("a token of ops")}"]')
    token.write_text("the-token-of-the-admin-port")
    flags = {
        "adminTlsCertPath": str(server.certificate),
        "adminTlsKeyPath": str(server.key),
        "adminTlsTrustCertPath": str(authority.path),
        "adminTokenFile": str(token),
    }
    context = ssl.create_default_context(cafile=str(authority.path))
    if how == "certificate":
        context.load_cert_chain(client.certificate, client.key)
    given = {"token": "a token of ops", "adminTokenFile": "the-token-of-the-admin-port"}
    headers = {"Authorization": f"Bearer {given[how]}"} if how in given else {}
    opened: list[object] = []
    trace = aiohttp.TraceConfig()

    async def count(*facts: object) -> None:
        opened.append(facts)

    trace.on_connection_create_end.append(count)
    async with (
        running_node(tmp_path, accessPolicy="enforce", accessFile=str(path), **flags) as (node, port),
        aiohttp.ClientSession(trace_configs=[trace]) as session,
    ):
        url = f"https://localhost:{port}/v1/kv/n/k"

        async def status() -> int:
            async with session.put(url, data=b"v", headers=headers, ssl=context) as response:
                await response.read()
                return response.status

        assert [await status(), await status()] == [200, 200]
        token.write_text("a-new-token-of-the-admin-port")
        path.write_text("# nobody\n")
        assert node.access is not None
        access = node.access
        await until(lambda: access.reloads == 1, "the file is reloaded")
        assert await status() == 401
    assert len(opened) == 1


async def test_tokens_are_not_sent_to_addresses_changed_at_run_time(tmp_path: Path) -> None:
    """If a caller may change settings, it cannot direct an administrator's token to another host. With the open policy, any
    caller may change settings by code 318."""
    token, heads = tmp_path / "token", list[bytes]()
    token.write_text("the-token-of-the-admin-port")
    right = {"Authorization": "Bearer the-token-of-the-admin-port"}

    async def receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.close()

    host = await asyncio.start_server(receive, "127.0.0.1", 0)
    async with host:
        own, listed = free_port(10), f"127.0.0.1:{host.sockets[0].getsockname()[1] - 10}"
        flags = {"listenPort": str(own), "adminListen": f"127.0.0.1:{own + 10}", "adminTokenFile": str(token)}
        for name, is_sent, given in (("configured", True, {"nameServerAddresses": listed}), ("changed", False, {})):
            if not given:
                async with running_node(tmp_path / name, **flags) as (_, port):
                    change = f'{{"nameServerAddresses": "{listed}"}}'.encode()
                    assert (await http(port, "/v1/config", "POST", change, right)).status == 403
                (tmp_path / name).mkdir(exist_ok=True)
                (tmp_path / name / "runtime.properties").write_text(f"nameServerAddresses={listed}\n")  # by 0.1.0
            heads.clear()
            async with running_node(tmp_path / name, **flags, **given) as (_, port):
                assert (await http(port, "/v1/cluster", headers=right)).status == 200
                await until(lambda: heads, "the other address is asked")
            assert all((b"the-token" in head) == is_sent for head in heads), name


async def test_a_change_that_waited_is_checked_again_before_it_is_proposed(tmp_path: Path) -> None:
    path = write_access_file(tmp_path, FILE)
    flags = {"mode": "cp", "nodeId": "n1", "peers": f"n1=127.0.0.1:{free_port()}", "fenceAfterMs": "20000"}
    async with running_node(tmp_path, accessPolicy="enforce", accessFile=str(path), **flags) as (node, port):
        assert isinstance(node.service, ReplicatedNode)
        assert node.access is not None
        access, lock = node.access, node.service.proposer._heavy
        await lock.acquire()
        waiting = asyncio.create_task(http(port, "/v1/kv/n/k", "PUT", b"v" * (HEAVY_BYTES + 1), bearer(Role.OPERATOR)))
        await until(lambda: lock._waiters, "the change waits for another one")
        path.write_text(
            FILE.replace(f'[identities.{Role.OPERATOR}]\nroles = ["{Role.OPERATOR}"]', '[identities.x]\nroles = ["read"]')
        )
        await until(lambda: access.reloads == 1, "the file is reloaded")
        lock.release()
        answer = await waiting
        assert (answer.status, answer.json["outcome"]) == (403, "not done")
        assert "the access file changed while the request waited" in answer.json["error"]
        assert node.service.state.kv_view("n") is None
        assert access.refusals == {("PUT /v1/kv/{namespace}/{key}", "refused"): 1}

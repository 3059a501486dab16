"""Pages that show all nodes, with HTTPS on the admin ports and enforced roles."""

import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from replicated_namesrv.process import ServingNode
from replicated_namesrv.raft.peer_tls import TlsFiles
from tests.access.files import token_line, write_access_file
from tests.support.authority import Authority
from tests.support.nodes import independent_flags, running_node
from tests.support.waiting import until

ACCESS = f"""[identities.tools]
roles = ["admin"]
certificates = ["CN=tools"]
tokens = ["{token_line("a long token of tools")}"]

[identities.nodes]
roles = ["read"]
certificates = ["CN=n1", "CN=n2", "CN=n3"]
"""
NODES = ("n1", "n2", "n3")


@asynccontextmanager
async def enforcing(folder: Path, files: dict[str, TlsFiles]) -> AsyncIterator[tuple[list[ServingNode], int]]:
    """Three nodes with these files and an authority of client certificates, and the admin port of the first one."""
    access = write_access_file(folder, ACCESS)
    async with AsyncExitStack() as stack:
        nodes, ports = [], []
        for flags in independent_flags(*NODES):
            own = files[flags["nodeId"]]
            tls = {
                "adminTlsKeyPath": str(own.key),
                "adminTlsCertPath": str(own.certificate),
                "adminTlsTrustCertPath": str(own.authority),
            }
            data = folder / f"data-{flags['nodeId']}"
            started = running_node(data, accessPolicy="enforce", accessFile=str(access), **flags, **tls)
            node, port = await stack.enter_async_context(started)
            nodes.append(node)
            ports.append(port)
        yield nodes, ports[0]


async def get(port: int, path: str, context: ssl.SSLContext, **headers: str) -> Any:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"https://localhost:{port}{path}", ssl=context, headers=headers) as answer,
    ):
        assert answer.status == 200, await answer.text()
        return await answer.json()


async def all_answer(port: int, context: ssl.SSLContext, **headers: str) -> bool:
    for _ in range(100):  # an answer waits only 0.25 s for the other nodes
        found = await get(port, "/v1/cluster", context, **headers)
        if all(node["answers"] for node in found["nodes"]):
            return True
    return False


def of_nodes(authority: Authority, trusted: Path, prefix: str = "") -> dict[str, TlsFiles]:
    """A certificate for each node."""
    return {name: authority.files(name, 10, trusted, prefix, ("localhost", "127.0.0.1")) for name in NODES}


async def test_nodes_read_from_each_other_for_a_caller_with_a_certificate(tmp_path: Path) -> None:
    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    trusted = tmp_path / "ca.pem"
    trusted.write_bytes(old.path.read_bytes())
    tools = old.files("tools")
    context = ssl.create_default_context(cafile=str(old.path))
    context.load_verify_locations(new.path)
    context.load_cert_chain(tools.certificate, tools.key)
    async with enforcing(tmp_path, of_nodes(old, trusted)) as (nodes, port):
        assert await all_answer(port, context)
        differences = await get(port, "/v1/differences", context)
        assert (differences["nodes"], differences["notCompared"], differences["kvNotCompared"]) == ([*NODES], [], [])
        assert (await get(port, "/v1/timeline?nodes=all", context))["notAsked"] == []
        assert (await get(port, "/v1/nodes/n2/status", context))["nodeId"] == "n2"

        metrics = [node.remoting.metrics for node in nodes]
        trusted.write_bytes(old.path.read_bytes() + new.path.read_bytes())
        await until(lambda: all(each.tls_reloads for each in metrics), "both authorities")
        of_nodes(new, trusted)
        await until(lambda: all(each.tls_reloads > 1 for each in metrics), "the certificates of the new authority")
        assert (await get(port, "/v1/nodes/n2/status", context))["nodeId"] == "n2"


@pytest.mark.parametrize("trust", ["clients only", "nodes too"])
async def test_nodes_whose_certificates_another_authority_signed_pass_tokens_on(tmp_path: Path, trust: str) -> None:
    """Such a node presents no certificate, because the other nodes would refuse it."""
    servers, clients = Authority(tmp_path, "servers"), Authority(tmp_path, "clients")
    files = of_nodes(servers, clients.path if trust == "clients only" else servers.path)
    for each in files.values():
        each.certificate.write_bytes(each.certificate.read_bytes() + servers.path.read_bytes())
    context = ssl.create_default_context(cafile=str(servers.path))
    async with enforcing(tmp_path, files) as (_, port):
        assert await all_answer(port, context, Authorization="Bearer a long token of tools")

"""Access rules over real connections, from loopback and from this machine's other address."""

import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from replicated_namesrv.address_list import advertised_host
from replicated_namesrv.admin.access import read_token
from replicated_namesrv.errors import SettingError
from replicated_namesrv.process import ServingNode
from tests.support.nodes import http, running_node

TOKEN = "a-secret-of-some-length"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
SECRET_VIEWS = ("/v1/kv", "/v1/kv-namespaces", "/v1/config", "/v1/backup", "/v1/watch")
CHANGE = ("/v1/kv/n/k", "PUT", b"v")


@pytest.fixture
async def open_node(tmp_path: Path) -> AsyncIterator[tuple[ServingNode, int]]:
    async with running_node(tmp_path, adminListen="0.0.0.0:0") as node:
        yield node


@pytest.fixture
async def guarded_node(tmp_path: Path) -> AsyncIterator[tuple[ServingNode, int]]:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\nsecond line\n")
    async with running_node(tmp_path, adminListen="0.0.0.0:0", adminTokenFile=str(file)) as node:
        yield node


@pytest.fixture
def outside() -> str:
    """An address of this machine that is not loopback. A connection to this address has this address as its source, too."""
    host = advertised_host("0.0.0.0")
    if host.startswith("127."):
        pytest.skip("this machine has no address but loopback; give it one (any interface that is up)")
    return host


async def test_changes_from_loopback_need_no_token(open_node: tuple[ServingNode, int]) -> None:
    assert (await http(open_node[1], *CHANGE)).status == 200
    assert (await http(open_node[1], *CHANGE, headers={"Host": f"localhost:{open_node[1]}"})).status == 200


async def test_changes_from_elsewhere_are_refused(open_node: tuple[ServingNode, int], outside: str) -> None:
    answer = await http(open_node[1], *CHANGE, host=outside)
    assert (answer.status, answer.json["outcome"]) == (403, "not done")
    assert "adminTokenFile" in answer.json["remedy"]
    assert (await http(open_node[1], "/v1/kv")).json["entries"] == []


async def test_without_a_token_file_views_from_elsewhere_are_open_but_for_secret_ones(
    open_node: tuple[ServingNode, int], outside: str
) -> None:
    assert (await http(open_node[1], "/v1/topics", host=outside)).status == 200
    for path in SECRET_VIEWS:
        assert (await http(open_node[1], path, host=outside)).status == 403


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/metrics", "/rocketmq/nsaddr", "/"])
async def test_health_metrics_and_address_lists_are_always_open(
    guarded_node: tuple[ServingNode, int], outside: str, path: str
) -> None:
    assert (await http(guarded_node[1], path, host=outside)).status == 200


async def test_with_a_token_file_views_from_elsewhere_need_the_token(guarded_node: tuple[ServingNode, int], outside: str) -> None:
    answer = await http(guarded_node[1], "/v1/status", host=outside)
    assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, 'Bearer realm="replicated-namesrv"')
    assert (await http(guarded_node[1], "/v1/status", host=outside, headers=BEARER)).status == 200


async def test_changes_from_elsewhere_with_the_token(guarded_node: tuple[ServingNode, int], outside: str) -> None:
    assert (await http(guarded_node[1], *CHANGE, host=outside, headers=BEARER)).status == 200
    assert (await http(guarded_node[1], *CHANGE, host=outside)).status == 401


@pytest.mark.parametrize(
    "value", ["Bearer wrong-secret-of-length", f"Basic {TOKEN}", "Bearer", f"Bearer {TOKEN}x", "Bearer second line"]
)
async def test_a_wrong_token_is_refused_even_from_loopback(guarded_node: tuple[ServingNode, int], value: str) -> None:
    assert (await http(guarded_node[1], *CHANGE, headers={"Authorization": value})).status == 401


async def test_a_new_token_needs_no_restart(guarded_node: tuple[ServingNode, int], tmp_path: Path) -> None:
    (tmp_path / "token").write_text("another-secret-of-length")
    assert (await http(guarded_node[1], *CHANGE, headers=BEARER)).status == 401
    assert (await http(guarded_node[1], *CHANGE, headers={"Authorization": "Bearer another-secret-of-length"})).status == 200
    (tmp_path / "token").unlink()
    assert (await http(guarded_node[1], *CHANGE, headers=BEARER)).status == 401


@pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded", "X-Real-IP"])
async def test_what_a_proxy_forwards_is_not_from_loopback(open_node: tuple[ServingNode, int], header: str) -> None:
    assert (await http(open_node[1], *CHANGE, headers={header: "203.0.113.9"})).status == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://["},
        {"Host": "evil.example:9886", "Origin": "http://evil.example:9886"},
        {"Host": "evil.example"},
    ],
)
async def test_web_pages_cannot_make_a_local_browser_change_anything(
    open_node: tuple[ServingNode, int], headers: dict[str, str]
) -> None:
    answer = await http(open_node[1], *CHANGE, headers=headers)
    assert (answer.status, answer.json["outcome"]) == (403, "not done")


async def test_the_console_itself_may(open_node: tuple[ServingNode, int]) -> None:
    assert (await http(open_node[1], *CHANGE, headers={"Origin": f"http://127.0.0.1:{open_node[1]}"})).status == 200


@pytest.mark.parametrize("content", ["", "short", "x" * 5000, "\nsecond line is not it, however long"])
def test_token_that_is_no_secret_stops_the_start(tmp_path: Path, content: str) -> None:
    file = tmp_path / "token"
    file.write_text(content)
    with pytest.raises(SettingError, match=r"adminTokenFile=.*16 to 4096"):
        read_token(str(file))


async def test_ipv6_loopback_is_loopback(tmp_path: Path) -> None:
    try:
        with socket.socket(socket.AF_INET6) as attempt:
            attempt.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6 loopback; enable it (net.ipv6.conf.lo.disable_ipv6=0)")
    async with running_node(tmp_path, adminListen="[::1]:0") as (_, port):
        assert (await http(port, *CHANGE, host="::1", headers={"Host": f"[::1]:{port}"})).status == 200

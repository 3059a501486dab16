"""The admin port of a real node, asked over real connections."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote

import pytest

from replicated_namesrv.admin.http_changes import BODY_BYTES_MAX
from replicated_namesrv.admin.open_paths import CONSOLE_FILES
from replicated_namesrv.client.queries import config_request, read_config
from replicated_namesrv.client.remoting import RemotingClient
from replicated_namesrv.errors import SettingError, StorageError
from replicated_namesrv.model import DataVersion, QueueData
from replicated_namesrv.process import ServingNode, StartError
from replicated_namesrv.routes.commands import Command, RegisterBroker
from replicated_namesrv.settings_sources import load_settings
from tests.support.nodes import ask_cluster_info, http, running_node


def registration(name: str, topics: dict[str, QueueData], broker_id: int = 0, cluster: str = "C") -> RegisterBroker:
    """A broker's registration."""
    return RegisterBroker(
        cluster_name=cluster,
        broker_name=name,
        broker_addr=f"10.0.0.{broker_id}:{sum(name.encode())}",
        broker_id=broker_id,
        ha_server_addr="",
        zone_name=None,
        heartbeat_timeout_ms=None,
        enable_acting_master=False,
        data_version=DataVersion(1, 2, 3),
        topics=topics,
        topic_queue_mapping_infos={},
        filter_servers=None,
    )


def propose(node: ServingNode, command: Command) -> None:
    """Apply a command that an independent node applies at once."""
    node.service.propose(command, None)


QUEUES = QueueData(6, 4, 0, 8)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[tuple[ServingNode, int]]:
    async with running_node(tmp_path, nodeId="first") as started:
        yield started


async def test_ready_node_says_so_in_three_ways(node: tuple[ServingNode, int]) -> None:
    _, port = node
    assert (await http(port, "/livez")).text == "ok\n"
    assert ((answer := await http(port, "/readyz")).status, answer.text) == (200, "ok\n")
    assert (await http(port, "/readyz?verbose")).text == "[+] disk: ok\n[+] service: ok\n[+] remoting: ok\n"
    answer = await http(port, "/readyz", headers={"Accept": "application/json"})
    assert answer.json["ready"] is True
    assert [layer["name"] for layer in answer.json["layers"]] == ["disk", "service", "remoting"]


async def test_fenced_node_is_live_but_not_ready(node: tuple[ServingNode, int]) -> None:
    started, port = node
    started.remoting.fence()
    assert (await http(port, "/livez")).status == 200
    assert ((answer := await http(port, "/readyz")).status, answer.text) == (503, "not ready: remoting: not listening\n")
    answer = await http(port, "/readyz?format=json")
    assert (answer.status, answer.json["failedLayer"]) == (503, "remoting")
    status = (await http(port, "/v1/status")).json
    assert (status["ready"], status["failedLayer"], status["listen"]) == (False, "remoting", None)
    await started.remoting.unfence()
    assert (await http(port, "/readyz")).status == 200


async def test_status_tells_what_runs_and_what_it_holds(node: tuple[ServingNode, int]) -> None:
    started, port = node
    propose(started, registration("broker-a", {"T1": QUEUES, "T2": QUEUES}))
    assert await ask_cluster_info(started.remoting.port) == 0
    status = (await http(port, "/v1/status")).json
    assert (status["nodeId"], status["mode"], status["ready"]) == ("first", "ap", True)
    assert status["counts"] == {"clusters": 1, "brokerNames": 1, "brokers": 1, "topics": 2, "kvEntries": 0}
    assert status["listen"] == f"127.0.0.1:{started.remoting.port}"
    assert status["requests"] == 1


async def test_route_is_what_brokers_registered(node: tuple[ServingNode, int]) -> None:
    started, port = node
    propose(started, registration("broker-a", {"T/1 ä": QUEUES, "T2": QUEUES}))
    answer = (await http(port, "/v1/routes/T%2F1%20%C3%A4")).json
    assert answer["topic"] == "T/1 ä"
    assert answer["queueDatas"] == [
        {"brokerName": "broker-a", "perm": 6, "readQueueNums": 4, "writeQueueNums": 8, "topicSysFlag": 0}
    ]
    assert [broker["brokerName"] for broker in answer["brokerDatas"]] == ["broker-a"]
    answer = await http(port, "/v1/routes/None")
    assert (answer.status, set(answer.json)) == (404, {"error", "remedy", "outcome"})


async def test_topics_come_in_pages_that_miss_and_repeat_nothing(node: tuple[ServingNode, int]) -> None:
    started, port = node
    topics = {f"T{i:03d}": QUEUES for i in range(25)}
    propose(started, registration("broker-a", topics))
    propose(started, registration("broker-b", {"T000": QUEUES, "T001": QUEUES}))
    seen, after = [], ""
    while True:
        page = (await http(port, f"/v1/topics?limit=10&after={after}")).json
        assert page["total"] == 25
        seen += page["topics"]
        if page["next"] is None:
            break
        after = page["next"]
    assert [row["topic"] for row in seen] == sorted(topics)
    assert seen[0] == {**seen[0], "brokerNameCount": 2, "readQueueNums": 8, "writeQueueNums": 16}
    found = (await http(port, "/v1/topics?q=t01")).json
    assert [row["topic"] for row in found["topics"]] == [f"T01{i}" for i in range(10)]


@pytest.mark.parametrize("limit", ["0", "1001", "-1", "x", "9" * 50, "", "000000001" + "0" * 6])
async def test_bad_page_size_names_the_bounds(node: tuple[ServingNode, int], limit: str) -> None:
    answer = await http(node[1], f"/v1/topics?limit={limit}")
    assert answer.status == 400
    assert "give 1 to 1000" in answer.json["error"]


async def test_brokers_are_sorted_by_cluster_name_and_id(node: tuple[ServingNode, int]) -> None:
    started, port = node
    for name, broker_id, cluster in (("b", 10, "C"), ("b", 9, "C"), ("a", 0, "C"), ("z", 0, "B")):
        propose(started, registration(name, {"T1": QUEUES, "T2": QUEUES}, broker_id, cluster))
    answer = (await http(port, "/v1/brokers")).json
    assert [(b["clusterName"], b["brokerName"], b["brokerId"]) for b in answer["brokers"]] == [
        ("B", "z", 0),
        ("C", "a", 0),
        ("C", "b", 9),
        ("C", "b", 10),
    ]
    assert answer["brokers"][0]["topicCount"] == 2
    assert answer["brokers"][0]["heartbeatAgeMs"] is None
    first = (await http(port, "/v1/brokers?limit=3")).json
    last = (await http(port, f"/v1/brokers?limit=3&after={first['next']}")).json
    assert [b["brokerId"] for b in last["brokers"]] == [10]


async def test_a_setting_with_a_line_separator_is_shown_whole(tmp_path: Path) -> None:
    """Only a line feed ends a line of the answer to ``GET_NAMESRV_CONFIG`` (319)."""
    async with running_node(tmp_path, productEnvName="a\u2028b\u2029c") as (started, port):
        assert (await http(port, "/v1/config")).json["productEnvName"] == "a\u2028b\u2029c"
        rows = (await http(port, "/v1/settings")).json["settings"]
        assert [row["value"] for row in rows if row["name"] == "productEnvName"] == ["a\u2028b\u2029c"]
        client = RemotingClient()
        answer = await client.request(f"127.0.0.1:{started.remoting.port}", config_request())
        assert read_config(answer)["productEnvName"] == "a\u2028b\u2029c"
        await client.close()


@pytest.mark.parametrize("name", ["", "a{b}", "a\nb", "a/b", "a%2Fb", "|", "\u2028"])
async def test_entries_with_any_name_can_be_written_and_removed(node: tuple[ServingNode, int], name: str) -> None:
    started, port = node
    path = f"/v1/kv/{quote(name, safe='')}/{quote(name, safe='')}"
    assert (await http(port, path, "PUT", b"v")).status == 200
    assert started.service.state.kv_get(name, name) == "v"
    assert (await http(port, path, "DELETE")).status == 200
    assert started.service.state.kv_get(name, name) is None


@pytest.mark.parametrize("name", ["a{b}", "a\nb", "a/b", "a%2Fb", "|", "\u2028"])
async def test_topics_with_any_name_can_be_shown_and_removed(node: tuple[ServingNode, int], name: str) -> None:
    started, port = node
    propose(started, registration("b", {name: QUEUES, "T2": QUEUES}))
    assert (await http(port, f"/v1/routes/{quote(name, safe='')}")).json["topic"] == name
    assert (await http(port, f"/v1/topics/{quote(name, safe='')}", "DELETE")).json["changed"]


async def test_digest_moves_with_the_state_and_is_equal_for_equal_states(tmp_path: Path) -> None:
    async with running_node(tmp_path / "1") as (one, one_port), running_node(tmp_path / "2") as (other, other_port):
        empty = (await http(one_port, "/v1/digest")).json
        command = registration("broker-a", {"T1": QUEUES, "T2": QUEUES})
        for each in (one, other):
            each.service.state.apply(command, 1_700_000_000_000)
        first, second = [(await http(port, "/v1/digest")).json for port in (one_port, other_port)]
        assert first["digest"] == second["digest"] != empty["digest"]
        assert first["revision"] == second["revision"] == 1


async def test_kv_is_written_read_and_deleted(node: tuple[ServingNode, int], tmp_path: Path) -> None:
    port = node[1]
    answer = await http(port, "/v1/kv/ORDER_TOPIC_CONFIG/orders%2Fnew", "PUT", "broker-a:4;größer".encode())
    assert (answer.status, answer.json["changed"]) == (200, True)
    entry = {"namespace": "ORDER_TOPIC_CONFIG", "key": "orders/new", "value": "broker-a:4;größer"}
    assert (await http(port, "/v1/kv")).json["entries"] == [entry]
    assert (await http(port, "/v1/kv?namespace=other")).json["entries"] == []
    assert "orders/new" in (tmp_path / "kvConfig.json").read_text()
    assert (await http(port, "/v1/kv/ORDER_TOPIC_CONFIG/orders%2Fnew", "DELETE")).json["changed"] is True
    assert (await http(port, "/v1/kv")).json["entries"] == []


async def test_topic_is_forgotten(node: tuple[ServingNode, int]) -> None:
    started, port = node
    propose(started, registration("broker-a", {"T1": QUEUES, "T2": QUEUES}))
    assert (await http(port, "/v1/topics/T1", "DELETE")).json["changed"] is True
    assert (await http(port, "/v1/routes/T1")).status == 404
    assert (await http(port, "/v1/routes/T2")).status == 200


async def test_setting_is_changed_and_written_down(node: tuple[ServingNode, int], tmp_path: Path) -> None:
    started, port = node
    answer = await http(port, "/v1/config", "POST", b'{"orderMessageEnable": true, "waitSecondsForService": 7}')
    assert (answer.status, answer.json["changed"]) == (200, True)
    assert answer.json["inForceAfterRestart"] == []
    assert started.service.state.settings.order_message_enable is True
    assert (await http(port, "/v1/config")).json["waitSecondsForService"] == "7"
    assert "orderMessageEnable=true" in (tmp_path / "runtime.properties").read_text()
    refused = await http(port, "/v1/config", "POST", b'{"kvConfigPath": "/etc/passwd"}')
    assert (refused.status, refused.json["outcome"]) == (403, "not done")


async def test_misspelt_setting_and_bad_value_are_told(node: tuple[ServingNode, int]) -> None:
    answer = await http(node[1], "/v1/config", "POST", b'{"orderMessageEnabled": true}')
    assert (answer.status, answer.json["error"]) == (
        400,
        "unknown setting 'orderMessageEnabled'; did you mean orderMessageEnable?",
    )
    for name, value, remedy in (
        ("waitSecondsForService", "soon", "a whole number"),
        ("orderMessageEnable", "yes", "true or false"),
    ):
        answer = await http(node[1], "/v1/config", "POST", f'{{"{name}": "{value}"}}'.encode())
        assert (answer.status, answer.json["outcome"]) == (400, "not done")
        assert answer.json["error"] == f"{name}={value}: not a value of this setting; give {remedy}"


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"a": null}', b'{"a": [1]}', b"\xff"])
async def test_bad_config_body_changes_nothing(node: tuple[ServingNode, int], body: bytes) -> None:
    before = (await http(node[1], "/v1/config")).json
    answer = await http(node[1], "/v1/config", "POST", body)
    assert (answer.status, answer.json["outcome"]) == (400, "not done")
    assert (await http(node[1], "/v1/config")).json == before


async def test_value_that_is_not_text_is_refused(node: tuple[ServingNode, int]) -> None:
    answer = await http(node[1], "/v1/kv/n/k", "PUT", b"\xff\xfe")
    assert (answer.status, answer.json["outcome"]) == (400, "not done")


async def test_too_large_a_body_is_refused(node: tuple[ServingNode, int]) -> None:
    answer = await http(node[1], "/v1/kv/n/k", "PUT", b"x" * (BODY_BYTES_MAX + 1))
    assert answer.status == 413
    assert (await http(node[1], "/v1/kv")).json["entries"] == []


async def test_full_disk_is_told_and_nothing_is_stored(node: tuple[ServingNode, int], tmp_path: Path) -> None:
    (tmp_path / "kvConfig.json").mkdir()  # a folder cannot be replaced by a file
    answer = await http(node[1], "/v1/kv/n/k", "PUT", b"v")
    assert (answer.status, answer.json["outcome"]) == (507, "not done")
    assert (await http(node[1], "/v1/kv")).json["entries"] == []


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/nowhere", 404), ("POST", "/v1/topics", 405), ("GET", "/console/../app.py", 404)]
)
async def test_wrong_paths_get_json_errors(node: tuple[ServingNode, int], method: str, path: str, status: int) -> None:
    answer = await http(node[1], path, method)
    assert (answer.status, set(answer.json)) == (status, {"error", "remedy", "outcome"})


async def test_address_list_for_brokers_and_clients(tmp_path: Path) -> None:
    async with running_node(tmp_path) as (started, port):
        assert (await http(port, "/rocketmq/nsaddr")).text == f"127.0.0.1:{started.remoting.port}\n"
        assert (await http(port, "/rocketmq/nsaddr-unit1?nofix=1")).status == 404
    lists = {"nameServerAddresses": " a:1; b:2 ;", "unitNameServerAddresses": "unit1=c:3;d:4, unit2=e:5"}
    async with running_node(tmp_path, **lists) as (_, port):
        answer = await http(port, "/rocketmq/nsaddr")
        assert (answer.text, answer.headers["Content-Type"]) == ("a:1;b:2\n", "text/plain; charset=utf-8")
        assert (await http(port, "/rocketmq/nsaddr-unit1?nofix=1")).text == "c:3;d:4\n"
        assert (await http(port, "/rocketmq/nsaddr-unit2")).text == "e:5\n"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("nameServerAddresses", "a:1;b"),
        ("nameServerAddresses", "a:99999"),
        ("unitNameServerAddresses", "a:1"),
        ("adminTokenFile", "/none"),
    ],
)
async def test_settings_of_the_admin_side_are_checked_at_the_start(tmp_path: Path, name: str, value: str) -> None:
    with pytest.raises(SettingError, match=name):
        ServingNode(load_settings(flags={name: value, "dataDir": str(tmp_path)}, environment={}))


async def test_console_is_served_and_needs_nothing_from_elsewhere(node: tuple[ServingNode, int]) -> None:
    page = await http(node[1], "/")
    assert (page.status, page.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    policy = page.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'self' 'sha256-")
    assert "unsafe" not in policy
    assert "*" not in policy
    assert len(CONSOLE_FILES) > 10
    for file in CONSOLE_FILES:
        answer = await http(node[1], f"/console/{file}")
        assert answer.status == 200
        if not file.startswith("vendor/") and file != "icon.svg":
            assert "http://" not in answer.text
            assert "https://" not in answer.text
    for name in re.findall(r'(?:href|src)="console/([^"]+)"', page.text):
        assert name in CONSOLE_FILES
    assert (await http(node[1], "/console/vendor/LICENSES.txt")).status == 404


async def test_port_in_use_is_told_with_a_remedy_and_nothing_stays_open(tmp_path: Path) -> None:
    async with running_node(tmp_path / "1") as (first, port):
        for taken in ({"adminListen": f"127.0.0.1:{port}"}, {"listenPort": str(first.remoting.port)}):
            flags = {
                "bindAddress": "127.0.0.1",
                "listenPort": "0",
                "adminListen": "127.0.0.1:0",
                "dataDir": str(tmp_path / "2"),
                **taken,
            }
            second = ServingNode(load_settings(flags=flags, environment={}))
            with pytest.raises(StartError, match=r"in use.*--"):
                await second.start()
            assert second.admin is not None
            assert second.admin.address is None
            assert not second.remoting.is_listening


async def test_damaged_kv_file_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "kvConfig.json").write_text("{")
    with pytest.raises(StartError, match=r"kvConfig\.json") as raised:
        async with running_node(tmp_path):
            pass
    assert isinstance(raised.value.__cause__, StorageError)


async def test_stop_leaves_no_task_behind(tmp_path: Path) -> None:
    async with running_node(tmp_path) as (_, port):
        await http(port, "/v1/status")
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_rows_belong_to_the_revision_that_is_told_though_the_state_moves_on(
    node: tuple[ServingNode, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replicated_namesrv.admin.paging.SLICE_S", 0.0)
    started, port = node
    for number in range(1, 41):
        propose(started, registration("b" * number, {"T1": QUEUES, "T2": QUEUES}))
    revision, told = started.service.state.revision, asyncio.create_task(http(port, "/v1/brokers"))
    number = 41
    while not told.done():
        propose(started, registration("b" * number, {"T1": QUEUES, "T2": QUEUES}))
        number += 1
        await asyncio.sleep(0)
    answer = (await told).json
    assert started.service.state.revision > answer["revision"] > revision
    assert answer["revision"] - revision == answer["total"] - 40


async def test_every_name_can_be_in_a_path(node: tuple[ServingNode, int]) -> None:
    """Every client of the RocketMQ port can store such names, and operators have to be able to delete them."""
    started, port = node
    for name in ("a\nb", "{a}", "a/b", "..", "a\u2028b"):
        path = quote(name, safe="")
        propose(started, registration(name, {name: QUEUES, "T": QUEUES}))
        assert (await http(port, f"/v1/kv/{path}/{path}", "PUT", b"v")).json["changed"] is True, name
        assert (await http(port, f"/v1/routes/{path}")).json["topic"] == name
        assert (await http(port, f"/v1/brokers/{path}/write-permission?writable=false", "POST")).json["changed"] is True, name
        assert (await http(port, f"/v1/kv/{path}/{path}", "DELETE")).json["changed"] is True, name
        assert (await http(port, f"/v1/topics/{path}", "DELETE")).json["changed"] is True, name
    assert (await http(port, "/v1/kv")).json["entries"] == []
    assert [row["topic"] for row in (await http(port, "/v1/topics")).json["topics"]] == ["T"]

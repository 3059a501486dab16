"""The commands that ask name servers, run as a user runs them, against nodes that listen on real sockets."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from replicated_namesrv.cli.main import main
from replicated_namesrv.client.broker_requests import BrokerIdentity, BrokerVersion, register_request
from replicated_namesrv.client.remoting import RemotingClient, RemotingCommand
from replicated_namesrv.client.topics import BrokerTopics, TopicConfig, TopicTable
from replicated_namesrv.model import DataVersion
from replicated_namesrv.wire.codes import RequestCode
from tests.support.client_peers import Behaviour, scripted_server
from tests.support.json_outputs import check_output
from tests.support.nodes import running_command, running_node
from tests.support.waiting import wait_until

DEADLINE_S = 60.0


@dataclass(frozen=True)
class Said:
    """The output and exit code of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Namesrv = Callable[..., Said]


@pytest.fixture
def namesrv(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Namesrv:
    """Runs ``namesrv`` with these arguments."""
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)

    def run(*arguments: str) -> Said:
        capsys.readouterr()
        try:
            code = main(arguments)
        except SystemExit as ended:  # argparse
            code = int(ended.code or 0)
        captured = capsys.readouterr()
        check_output(arguments, captured.out)
        return Said(code, captured.out, captured.err)

    return run


@pytest.fixture(scope="module")
def listening(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[list[str], list[str]]]:
    """Two independent nodes and a listener that never answers, in an event loop of their own. Returns the addresses of all three,
    and the admin addresses of the nodes."""
    started, addresses, admins, end = threading.Event(), [], [], asyncio.Event()
    loops = []

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        async with AsyncExitStack() as stack:
            for name in ("one", "two"):
                node, admin_port = await stack.enter_async_context(running_node(tmp_path_factory.mktemp(name)))
                addresses.append(node.listen_address)
                admins.append(f"127.0.0.1:{admin_port}")
            mute = await stack.enter_async_context(scripted_server(Behaviour.HANG))
            addresses.append(mute.address)
            started.set()
            await end.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert started.wait(DEADLINE_S)
    yield addresses, admins
    loops[0].call_soon_threadsafe(end.set)
    thread.join(DEADLINE_S)


@pytest.fixture(scope="module")
def servers(listening: tuple[list[str], list[str]]) -> list[str]:
    return listening[0]


@pytest.fixture
def admin(listening: tuple[list[str], list[str]], monkeypatch: pytest.MonkeyPatch) -> str:
    """The nodes' admin addresses, which commands find in the environment."""
    joined = ";".join(listening[1])
    monkeypatch.setenv("NAMESRV_ADMIN", joined)
    return joined


@pytest.fixture
def one(servers: list[str]) -> str:
    return servers[0]


@pytest.fixture
def both(servers: list[str]) -> str:
    return ";".join(servers[:2])


async def _register(server: str, request: RemotingCommand) -> RemotingClient:
    client = RemotingClient()
    assert (await client.request(server, request)).code == 0
    return client


class Registered:
    """A broker whose connection stays open until the end of the block."""

    def __init__(self, server: str, name: str, topics: dict[str, int], broker_id: int = 0, version: int = 0) -> None:
        table = BrokerTopics(TopicTable([]), TopicTable(TopicConfig(topic, queues, queues) for topic, queues in topics.items()))
        body = table.encode(BrokerVersion.V5_3, DataVersion(version, 0, version), 0, compressed=False)
        self._identity = BrokerIdentity(
            "C-" + name, name, broker_id, f"{name}:{10911 + broker_id}", f"{name}:{10921 + broker_id}"
        )
        self._server = server
        self._request = register_request(
            self._identity,
            BrokerVersion.V5_3,
            body,
            compressed=False,
            oneway=False,
            enable_acting_master=True,
            heartbeat_timeout_ms=None,
            zone_name="z1",
        )

    def __enter__(self) -> "Registered":
        self._loop = asyncio.new_event_loop()
        self._client = self._loop.run_until_complete(_register(self._server, self._request))
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.run_until_complete(self._client.close())
        self._loop.close()


def test_route(namesrv: Namesrv, one: str) -> None:
    with Registered(one, "r", {"RouteT": 3, "Other": 1}), Registered(one, "r", {"RouteT": 3, "Other": 1}, broker_id=2):
        said = namesrv("route", "RouteT", "-n", one)
        assert said.code == 0
        for part in ("RouteT", "r:10911", "master", "r:10913", "slave", "C-r", "z1", "RW-"):
            assert part in said.out
        answer = namesrv("route", "RouteT", "-n", one, "--json").json
        assert (answer["found"], answer["nameServer"]) == (True, one)
        assert answer["brokers"] == [
            {
                "brokerName": "r",
                "cluster": "C-r",
                "brokerAddrs": {"0": "r:10911", "2": "r:10913"},
                "enableActingMaster": True,
                "zoneName": "z1",
            }
        ]
        assert answer["queues"] == [{"brokerName": "r", "perm": 6, "readQueueNums": 3, "writeQueueNums": 3, "topicSysFlag": 0}]
    missing = namesrv("route", "NoSuchTopic", "-n", one)
    assert (missing.code, missing.out) == (1, f"{one} has no route for topic NoSuchTopic\n")
    assert namesrv("route", "NoSuchTopic", "-n", one, "--json").json["found"] is False


def test_topics(namesrv: Namesrv, one: str, both: str) -> None:
    with Registered(one, "t", {"TopicB": 1, "TopicA": 1}):
        everything = namesrv("topics", "-n", one)
        assert everything.code == 0
        assert [line for line in everything.out.splitlines() if line.startswith("Topic")] == ["TopicA", "TopicB"]
        assert namesrv("topics", "--cluster", "C-t", "-n", one).out == "TopicA\nTopicB\n"
        assert namesrv("topics", "--cluster", "nowhere", "-n", one, "--json").json["topics"] == []
        assert "C-t" in namesrv("topics", "--system", "-n", one).out
        for flag in ("--unit", "--unit-sub", "--unit-sub-ununit"):
            assert namesrv("topics", flag, "-n", one).code == 0
        deleted = namesrv("topics", "delete", "TopicA", "--cluster", "C-t", "-n", both)
        assert (deleted.code, deleted.out.count("done")) == (0, 2)
        assert namesrv("topics", "--cluster", "C-t", "-n", one).out == "TopicB\n"


def test_brokers_and_clusters(namesrv: Namesrv, one: str) -> None:
    with Registered(one, "b", {"X": 1, "Y": 1}):
        said = namesrv("brokers", "-n", one)
        assert said.code == 0
        assert "b:10911" in said.out
        assert "z1" in said.out
        assert namesrv("brokers", "--cluster", "C-b", "-n", one).code == 0
        assert namesrv("brokers", "--cluster", "nowhere", "-n", one).code == 1
        wiped = namesrv("brokers", "wipe-write", "b", "-n", one, "--json")
        assert (wiped.code, wiped.json[0]["value"]) == (0, "2 topics")
        assert namesrv("route", "X", "-n", one, "--json").json["queues"][0]["perm"] == 4
        assert namesrv("brokers", "add-write", "b", "-n", one).code == 0
        assert namesrv("route", "X", "-n", one, "--json").json["queues"][0]["perm"] == 6
        assert namesrv("clusters", "-n", one, "--json").json["clusters"]["C-b"] == ["b"]
        assert "C-b" in namesrv("clusters", "-n", one).out


def test_kv(namesrv: Namesrv, one: str, both: str, servers: list[str]) -> None:
    assert namesrv("kv", "put", "NS", "key", "value;with:signs", "-n", both).code == 0
    for server in servers[:2]:
        got = namesrv("kv", "get", "NS", "key", "-n", server)
        assert (got.code, got.out) == (0, "value;with:signs\n")
    assert namesrv("kv", "list", "NS", "-n", one).out == "key=value;with:signs\n"
    assert namesrv("kv", "delete", "NS", "key", "-n", both).code == 0
    gone = namesrv("kv", "get", "NS", "key", "-n", one)
    assert (gone.code, gone.out) == (1, "")
    assert "no key key in namespace NS" in gone.err
    assert namesrv("kv", "list", "NS", "-n", one).code == 0, "an emptied namespace is there"
    assert namesrv("kv", "list", "nowhere", "-n", one).code == 1


def test_a_write_that_some_servers_did_not_get_is_reported_server_by_server(
    namesrv: Namesrv, one: str, servers: list[str]
) -> None:
    mute = servers[2]
    said = namesrv("kv", "put", "NS", "k", "v", "-n", f"{one};127.0.0.1:1;{mute}", "--timeout-ms", "1500", "--json")
    assert said.code == 1
    assert {row["nameServer"]: row["outcome"] for row in said.json} == {one: "done", "127.0.0.1:1": "not done", mute: "unknown"}
    assert namesrv("kv", "put", "NS", "k", "v", "-n", "127.0.0.1:1").code == 2


def test_config(namesrv: Namesrv, one: str, both: str, servers: list[str]) -> None:
    assert namesrv("config", "set", "orderMessageEnable=true", "-n", one).code == 0
    said = namesrv("config", "get", "orderMessageEnable", "listenPort", "-n", both)
    assert said.code == 0
    lines = [line.split() for line in said.out.splitlines()]
    assert ["orderMessageEnable", "true", servers[0]] in lines
    assert ["orderMessageEnable", "false", servers[1]] in lines
    assert namesrv("config", "get", "orderMessageEnable", "-n", one, "--json").json["nameServers"] == {
        one: {"orderMessageEnable": "true"}
    }
    assert namesrv("config", "get", "noSuchSetting", "-n", one).code == 1
    refused = namesrv("config", "set", "kvConfigPath=/x", "-n", both, "--json")
    assert refused.code == 1
    assert {row["outcome"] for row in refused.json} == {"refused"}
    assert namesrv("config", "set", "orderMessageEnable=false", "-n", one).code == 0


@pytest.mark.usefixtures("admin")
def test_diff_finds_every_kind_of_difference(namesrv: Namesrv, both: str, servers: list[str]) -> None:
    one, two, _ = servers
    with Registered(one, "d", {"Same": 1, "Wide": 8}), Registered(two, "d", {"Same": 1, "Wide": 4}):
        assert namesrv("kv", "put", "DIFF", "k", "1", "-n", one).code == 0
        assert namesrv("kv", "put", "DIFF", "both", "x", "-n", both).code == 0
        assert namesrv("config", "set", "orderMessageEnable=true", "-n", two).code == 0
        with Registered(one, "only", {"Lonely": 1, "Lonely2": 1}):
            said = namesrv("diff", "-n", both, "--json")
            assert said.code == 1
            answer = said.json
            assert set(answer["brokers"]) == {"only"}
            assert answer["brokers"]["only"][two] is None
            assert {"Wide", "Lonely", "Lonely2"} == set(answer["topics"])
            assert answer["topics"]["Wide"][one]["queues"][0]["writeQueueNums"] == 8
            assert answer["topics"]["Wide"][two]["queues"][0]["writeQueueNums"] == 4
            assert answer["topics"]["Lonely"][two] is None
            assert [row for row in answer["keys"] if row["namespace"] == "DIFF"] == [
                {"namespace": "DIFF", "key": "k", "values": {one: "1", two: None}}
            ]
            assert answer["settings"] == {"orderMessageEnable": {one: "false", two: "true"}}
            assert answer["namespacesUnknown"] == {}
            assert (answer["equal"], answer["unreachable"], set(answer["compared"])) == (False, {}, {one, two})
            assert "… and 2 more topics" in namesrv("diff", "-n", both, "--limit", "1").out
            text = namesrv("diff", "-n", both)
            assert text.code == 1
            for part in (
                "broker only",
                "not registered",
                "topic Wide",
                "no route",
                "key DIFF/k",
                "setting orderMessageEnable",
                "1 brokers, 3 topics, ",
                " 1 settings differ",
            ):
                assert part in text.out
    assert namesrv("config", "set", "orderMessageEnable=false", "-n", two).code == 0
    assert namesrv("kv", "delete", "DIFF", "k", "-n", one).code == 0


def test_diff_of_servers_whose_admin_ports_do_not_answer(namesrv: Namesrv, both: str, servers: list[str]) -> None:
    assert namesrv("kv", "put", "HIDDEN", "k", "1", "-n", servers[0]).code == 0
    done = namesrv("diff", "-n", both, "-a", "127.0.0.1:1", "--json")
    said = done.json
    assert (done.code, said["equal"]) == (2, False)
    assert (said["keys"], list(said["namespacesUnknown"])) == ([], ["127.0.0.1:1"])
    text = namesrv("diff", "-n", both, "-a", "127.0.0.1:1")
    assert text.code == 2
    assert "equal in everything that was compared: " in text.out
    assert "KV namespaces unknown: 127.0.0.1:1: no answer" in text.out
    assert namesrv("diff", "-n", both, "--json").json["equal"] is False, "the ports plus 10 are no admin ports"
    said = namesrv("diff", "-n", both, "-a", "127.0.0.1:1", "--namespace", "HIDDEN", "--json").json
    assert [row["namespace"] for row in said["keys"]] == ["HIDDEN"]
    assert namesrv("kv", "put", "ORDER_TOPIC_CONFIG", "t", "a:1", "-n", servers[0]).code == 0
    said = namesrv("diff", "-n", both, "-a", "127.0.0.1:1", "--json").json
    assert [row["namespace"] for row in said["keys"]] == ["ORDER_TOPIC_CONFIG"]
    for namespace, key in (("HIDDEN", "k"), ("ORDER_TOPIC_CONFIG", "t")):
        assert namesrv("kv", "delete", namespace, key, "-n", servers[0]).code == 0


def test_diff_of_independent_nodes_needs_the_admin_ports_of_all(
    namesrv: Namesrv, both: str, servers: list[str], admin: str
) -> None:
    """A namespace of the other node would be overlooked."""
    ports = admin.split(";")
    assert namesrv("kv", "put", "ELSEWHERE", "k", "1", "-n", servers[1]).code == 0
    done = namesrv("diff", "-n", both, "-a", ports[0], "--json")
    assert (done.code > 0, done.json["equal"], "ELSEWHERE" in [row["namespace"] for row in done.json["keys"]]) == (
        True,
        False,
        False,
    )
    assert "1 admin ports were given for 2 independent nodes" in done.json["namespacesUnknown"]["--admin"]
    assert namesrv("diff", "-n", both, "-a", ";".join(ports[:2])).code == 1
    assert namesrv("kv", "delete", "ELSEWHERE", "k", "-n", servers[1]).code == 0


@pytest.mark.usefixtures("admin")
def test_diff_of_equal_servers_and_of_servers_that_are_away(namesrv: Namesrv, both: str, one: str, servers: list[str]) -> None:
    with Registered(servers[0], "e", {"E1": 2, "E2": 2}), Registered(servers[1], "e", {"E2": 2, "E1": 2}):
        for row in namesrv("diff", "-n", both, "--json").json["keys"]:
            assert namesrv("kv", "delete", row["namespace"], row["key"], "-n", both).code == 0
        wait_until(lambda: namesrv("diff", "-n", both).code == 0, "brokers of other tests to be gone")
        assert namesrv("diff", "-n", both, "--json").json["equal"] is True
        away = namesrv("diff", "-n", f"{both};127.0.0.1:1", "--json")
        assert away.code == 2
        assert list(away.json["unreachable"]) == ["127.0.0.1:1"]
        assert (away.json["equal"], away.json["topics"], away.json["brokers"]) == (False, {}, {})
        text = namesrv("diff", "-n", f"{both};127.0.0.1:1")
        assert "not compared: 127.0.0.1:1" in text.out
        mute = namesrv("diff", "-n", f"{one};{servers[2]}", "--timeout-ms", "100")
        assert mute.code == 2
        assert f"only {one} answered" in mute.out


@pytest.mark.parametrize(
    "command", [("route", "T"), ("topics",), ("brokers",), ("clusters",), ("kv", "get", "n", "k"), ("config", "get"), ("diff",)]
)
def test_nobody_answers(namesrv: Namesrv, command: tuple[str, ...]) -> None:
    said = namesrv(*command, "-n", "127.0.0.1:1;127.0.0.1:2")
    assert said.code == 2
    assert "127.0.0.1:1" in said.out + said.err
    assert "127.0.0.1:2" in said.out + said.err
    assert "Traceback" not in said.out + said.err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("route",), "TOPIC"),
        (("route", "T", "-n", "nonsense"), "'nonsense' is not host:port"),
        (("route", "T", "--timeout-ms", "0"), "less than 1"),
        (("diff", "-n", "127.0.0.1:1;127.0.0.1:1"), "give two or more"),
        (("topics", "delete"), "needs a TOPIC"),
        (("topics", "list", "T"), "'list' takes none"),
        (("topics", "--unit", "--cluster", "C"), "leave out --cluster"),
        (("brokers", "wipe-write"), "need a broker NAME"),
        (("kv", "put", "ns", "key"), "NAMESPACE KEY VALUE"),
        (("kv", "list", "ns", "key"), "needs NAMESPACE"),
        (("config", "set"), "KEY=VALUE"),
        (("config", "set", "key"), "'key'"),
        (("config", "set", "orderMessageEnable=true", "orderMessageEnable=false"), "'orderMessageEnable' more than once"),
        (("config", "get", "key=value"), "config set key=value"),
        (("broker", "--version", "4.9", "--heartbeat", "904"), "--version 5.3"),
        (("broker", "--version", "4.9", "--zone", "z"), "--zone z"),
        (("broker", "--topics", "-1"), "--topics -1 is negative"),
        (("broker", "--brokers", "20000"), "ports"),
        (("broker", "--duration-s", "0"), "above 0"),
        (("broker", "--duration-s", "nan"), "above 0"),
        (("route", "\udcff"), "not UTF-8"),
    ],
)
def test_wrong_usage_is_said_and_not_done(namesrv: Namesrv, arguments: tuple[str, ...], text: str) -> None:
    said = namesrv(*arguments)
    assert said.code == 2
    assert text in said.err


def test_addresses_from_the_environment(namesrv: Namesrv, one: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", one)
    assert namesrv("clusters", "--json").json["nameServer"] == one
    monkeypatch.setenv("NAMESRV_ADDR", "nonsense")
    said = namesrv("clusters")
    assert said.code == 2
    assert "'nonsense'" in said.err


@pytest.mark.parametrize("command", ["route", "topics", "brokers", "clusters", "kv", "config", "diff", "broker"])
def test_help_teaches_by_examples(namesrv: Namesrv, command: str) -> None:
    said = namesrv(command, "--help")
    assert said.code == 0
    assert said.out.count(f"namesrv {command}") >= 2
    assert "exit codes" in said.out


def test_broker_agents_run_and_leave(namesrv: Namesrv, both: str) -> None:
    said = namesrv("broker", "-n", both, "--brokers", "2", "--replicas", "2", "--duration-s", "0.2", "--port", "20911")
    assert said.code == 0, said.err
    assert "8 of 8 registrations" in said.out
    assert "broker-0" not in namesrv("brokers", "-n", both).out, "they unregistered"


def test_broker_agents_report_as_json(namesrv: Namesrv, one: str) -> None:
    said = namesrv("broker", "-n", f"{one};127.0.0.1:1", "--version", "4.9", "--json", "--duration-s", "0.2", "--compressed")
    assert said.code == 1
    events = [json.loads(line) for line in said.out.splitlines()]
    register = RequestCode.REGISTER_BROKER
    assert {(event["event"], event["nameServer"]) for event in events if event.get("code") == register} == {
        ("invoked", one),
        ("done", one),
        ("invoked", "127.0.0.1:1"),
        ("not sent", "127.0.0.1:1"),
    }
    assert events[-1]["event"] == "end"
    assert (events[-1]["registered"], events[-1]["expected"]) == (1, 2)


def test_broker_agents_without_any_name_server(namesrv: Namesrv) -> None:
    said = namesrv("broker", "-n", "127.0.0.1:1", "--duration-s", "0.2")
    assert said.code == 2
    assert "no name server of 127.0.0.1:1" in said.err


def test_broker_agents_unregister_when_they_are_told_to_end(namesrv: Namesrv, one: str, tmp_path: Path) -> None:
    with running_command("broker", "-n", one, "--name-prefix", "signalled-", "--json", stderr=tmp_path / "err") as running:
        running.wait_line('"done"')
        assert "signalled-0" in namesrv("brokers", "-n", one).out
        running.process.terminate()
        assert running.process.wait(DEADLINE_S) == 0
    assert "signalled-0" not in namesrv("brokers", "-n", one).out

"""Access control of the remoting port, over TLS and in plain text. tests/security/test_role_matrix.py sends every code."""

import asyncio
import json
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from replicated_namesrv.access.access_control import AccessControl
from replicated_namesrv.access.roles import BROKERS, OPERATORS, REQUEST_ROLES, Role
from replicated_namesrv.access.signatures import signature_of
from replicated_namesrv.compat.independent_node import IndependentNode
from replicated_namesrv.compat.live_table import BrokerKey
from replicated_namesrv.errors import SettingError
from replicated_namesrv.raft.interfaces import ReadOutcome
from replicated_namesrv.replication.consensus import HEAVY_BYTES
from replicated_namesrv.replication.peer_settings import transport_settings
from replicated_namesrv.replication.replicated_node import ReplicatedNode
from replicated_namesrv.routes.state import RouteInfoManager
from replicated_namesrv.server.server import RemotingServer
from replicated_namesrv.settings import Settings
from replicated_namesrv.settings_sources import load_settings
from replicated_namesrv.wire.codes import RequestCode
from tests.access.files import write_access_file
from tests.support.authority import Authority
from tests.support.nodes import run_command
from tests.support.ports import free_port
from tests.support.remoting_server import Peer, ServerThread, broker_fields, live_server, raw_frame, request, topic_table
from tests.support.waiting import wait_until

NO_PERMISSION = 16
SECRET = "secret of the tools"
FILE = f"""
[anonymous]
roles = []
[identities.reader]
roles = ["read"]
certificates = ["CN=reader"]
[identities.broker-a]
roles = ["broker"]
brokers = ["broker-a"]
certificates = ["CN=broker-a"]
[identities.tools]
roles = ["operator"]
certificates = ["DNS:operator"]
access_keys = {{ toolsKey = ["{SECRET}"] }}
[identities.chief]
roles = ["admin"]
certificates = ["CN=admin"]
"""
ROUTE_BODY = b'{"queueDatas":[{"brokerName":"broker-a","perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}'


def tls_flags(authority: Authority, access_file: Path, policy: str = "enforce") -> dict[str, str]:
    server = authority.files("localhost")
    return {
        "tls__test__mode__enable": "false",
        "tls__server__certPath": str(server.certificate),
        "tls__server__keyPath": str(server.key),
        "tls__server__trustCertPath": str(authority.path),
        "tls__server__authClient": "true",
        "tls__server__need__client__auth": "optional",
        "accessPolicy": policy,
        "accessFile": str(access_file),
    }


class World:
    """A server and the certificates of its callers."""

    def __init__(self, server: ServerThread, authority: Authority, folder: Path) -> None:
        self.server, self.authority, self.folder = server, authority, folder

    def context(self, name: str | None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.authority.path))
        if name is not None:
            files = self.authority.files(name, prefix="client-")
            context.load_cert_chain(files.certificate, files.key)
        return context

    def peer(self, name: str | None) -> Peer:
        return Peer(self.server.port, self.context(name))

    def audit(self) -> list[dict[str, object]]:
        """Lines of both files."""
        return [json.loads(line) for path in self.folder.glob("audit*.log") for line in path.read_text().splitlines()]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    authority = Authority(tmp_path)
    with live_server(tmp_path, **tls_flags(authority, write_access_file(tmp_path, FILE))) as server:
        yield World(server, authority, tmp_path)


def signed(fields: dict[str, str], body: bytes = b"", secret: str = SECRET, key: str = "toolsKey") -> dict[str, str]:
    fields = {**fields, "AccessKey": key}
    return {**fields, "Signature": signature_of(fields, body, secret.encode())}


def replicated(settings: Settings) -> ReplicatedNode:
    return ReplicatedNode(settings, transport_settings(settings))


def put_fields(number: int) -> dict[str, str]:
    return {"namespace": "n", "key": "k", "value": str(number)}


def without_roles(codes: Iterable[int], roles: Mapping[int, frozenset[Role]] = REQUEST_ROLES) -> list[str]:
    """The remedy for codes that no role may send."""
    return [
        f"request code {code} ({RequestCode(code).name}) has no roles: add it to REQUEST_ROLES in access/roles.py, and to "
        "'What each role may send' in docs/security.md"
        for code in codes
        if code not in roles
    ]


def test_every_handled_code_has_roles() -> None:
    """This test fails for a new request code without a role."""
    settings = load_settings(None, {}, {})
    handled = RemotingServer(settings, IndependentNode(settings)).dispatcher._handlers.keys()
    assert not without_roles(handled), "\n".join(without_roles(handled))
    assert not REQUEST_ROLES.keys() - handled, "REQUEST_ROLES has codes without a handler; remove them"
    assert "request code 105 (GET_ROUTEINFO_BY_TOPIC) has no roles: add it to REQUEST_ROLES" in without_roles({105}, {})[0]


def test_nobody_takes_over_the_name_of_another_broker(world: World) -> None:
    state = world.server.service.state
    victim = broker_fields("broker-b", "10.0.0.2:10911")
    attack = broker_fields("broker-b", "10.6.6.6:10911")
    with world.peer("admin") as chief:
        assert chief.call(103, victim, topic_table("T", "U")).code == 0
        for caller in (None, "reader", "broker-a", "operator"):
            with world.peer(caller) as peer:
                for code in (103, 104, 322):
                    claimed = {**victim, "brokerName": "broker-a"}
                    for fields in (attack, victim, claimed, {**claimed, "clusterName": "another"}):
                        answer = peer.call(code, fields, topic_table("T", "U") if code == 103 else b"")
                        assert answer.code == NO_PERMISSION, (caller, code, fields)
        registered = state.registration(victim["clusterName"], "10.0.0.2:10911")
        assert registered is not None
        assert registered.broker_name == "broker-b"
    names = ("REGISTER_BROKER", "UNREGISTER_BROKER", "QUERY_DATA_VERSION")
    wanted = {(identity, name, "broker-b") for identity in ("anonymous", "reader", "broker-a", "tools") for name in names}

    def refused() -> set[tuple[object, ...]]:
        return {(line["identity"], line["request"], line["target"]) for line in world.audit() if line["event"] == "refused"}

    wait_until(lambda: wanted <= refused(), "the lines are written")


def test_a_broker_registers_renews_and_leaves_under_its_own_name(world: World) -> None:
    own = broker_fields("broker-a", "10.0.0.1:10911")
    with world.peer("broker-a") as broker:
        assert [broker.call(code, own, topic_table("T", "U") if code == 103 else b"").code for code in (103, 322, 105, 106, 901)][
            :2
        ] == [
            0,
            0,
        ]
        assert broker.call(105, {"topic": "T"}).code == 0
        assert broker.call(217, {"topic": "U"}, ROUTE_BODY).code == 0
        assert broker.call(104, own).code == 0


QUEUES = '"perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4'
MAPPING = (
    '"topicQueueMappingInfoMap":{"T":{"bname":"broker-b","currIdMap":{"0":0},"dirty":false,"epoch":9,"scope":"s","topic":"T",'
    '"totalQueues":1}}'
)


def header_of(code: int, flag: int, *fields: tuple[str, str]) -> bytes:
    """A header in which a field may occur twice."""
    texts = ",".join(f'"{name}":"{value}"' for name, value in fields)
    return f'{{"code":{code},"extFields":{{{texts}}},"flag":{flag},"language":"JAVA","opaque":1,"version":479}}'.encode()


def test_a_new_broker_is_not_compared_with_all_brokers(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """When all brokers of a large cluster returned, each of them was compared with all that were there already."""

    def registrations(state: RouteInfoManager) -> None:
        raise AssertionError("visited all brokers")

    own = broker_fields("broker-a", "10.0.0.1:10911")
    with world.peer("broker-a") as broker:
        monkeypatch.setattr(RouteInfoManager, "registrations", registrations)
        for code in (103, 322, 104, 904):
            answer = broker.call(code, own, topic_table("T", "U") if code == 103 else b"")
            assert answer.code == 0, answer.header.remark


def test_a_broker_can_name_another_one_nowhere_in_a_request(world: World) -> None:
    """The test names the other broker in the body, twice in the header, in the other header encoding, in a response, in a oneway
    request, or by address alone."""
    state = world.server.service.state
    service = world.server.service
    assert isinstance(service, IndependentNode)
    victim = broker_fields("broker-b", "10.0.0.2:10911")
    own = broker_fields("broker-a", "10.0.0.1:10911")
    table = topic_table("T", "U")
    twice = (("brokerName", "broker-a"), ("brokerName", "broker-b"))
    others = tuple((name, value) for name, value in victim.items() if name != "brokerName")
    mapped = table.replace(b'"topicQueueMappingInfoMap":{}', MAPPING.encode())
    assert mapped != table
    attacks = [
        request(103, own, mapped),
        request(103, victim, table, serialize_type=1),
        *(request(103, victim, table, flag=flag) for flag in (1, 2, 3)),
        *(raw_frame(header_of(103, 0, *others, *names), table) for names in (twice, twice[::-1])),
        *(raw_frame(header_of(104, 0, *others, *names)) for names in (twice, twice[::-1])),
        *(request(code, {**victim, "brokerName": "broker-a"}, body) for code, body in ((103, table), (104, b""), (322, b""))),
        request(104, {name: value for name, value in victim.items() if name != "brokerName"}),
        *(
            request(217, {"topic": "T"}, f'{{"queueDatas":[{{"brokerName":"broker-a",{QUEUES}}},{{{name},{QUEUES}}}]}}'.encode())
            for name in ('"brokerName":"broker-b"', '"BrokerName":"broker-b"', '"brokerName":"broker-a","brokerName":"broker-b"')
        ),
        *(request(904, {**victim, **changed}, flag=2) for changed in ({}, {"brokerName": "broker-a"}, {"clusterName": "c"})),
    ]
    with world.peer("admin") as chief:
        assert chief.call(103, victim, table).code == 0

        def facts() -> tuple[object, ...]:
            queues = [(state.topic_queues(topic) or {}).get("broker-b") for topic in ("T", "U")]
            route = state.route("T")
            assert route is not None
            live = service.live._attachments[BrokerKey("C", "10.0.0.2:10911")]
            return queues, state.member("broker-b", 0), route.topic_queue_mapping_by_broker, live.connection, live.last_update_ms

        before = world.server.do(facts)
        for attack in attacks:
            with world.peer("broker-a") as peer:
                peer.send(attack)
                peer.send(request(106, opaque=99))
                while (answer := peer.receive()) is not None and answer.header.opaque != 99:
                    pass
            assert world.server.do(facts) == before, attack


def test_a_heartbeat_for_another_broker_does_not_count(world: World) -> None:
    victim = broker_fields("broker-b", "10.0.0.2:10911")
    beats: list[str] = []
    service = world.server.service
    world.server.do(lambda: setattr(service, "heartbeat", lambda cluster, address, connection: beats.append(address)))
    with world.peer("admin") as chief, world.peer("broker-a") as broker:
        assert chief.call(103, victim, topic_table("T", "U")).code == 0
        for peer in (broker, chief):
            peer.send(request(904, victim, flag=2))
            peer.call(106)
        assert beats == ["10.0.0.2:10911"]


def test_a_signature_counts_over_tls_alone(world: World) -> None:
    put = {"namespace": "n", "key": "k", "value": "v"}
    with world.peer(None) as peer:
        assert peer.call(100, put).code == NO_PERMISSION
        assert peer.call(100, signed(put)).code == 0
        wrong = peer.call(100, signed(put, secret="another secret"))
        assert wrong.code == NO_PERMISSION
        assert "access key toolsKey unknown or wrongly signed" in str(wrong.header.remark)
        assert peer.call(100, put).code == NO_PERMISSION, "a change needs a signature of its own"
    with Peer(world.server.port) as plain:
        answer = plain.call(100, signed(put))
        assert answer.code == NO_PERMISSION
        assert "access key toolsKey without TLS" in str(answer.header.remark)


def test_the_secret_of_an_access_key_is_replaced_without_an_interruption(world: World) -> None:
    path, access = world.folder / "access.toml", world.server.access
    assert access is not None
    put = put_fields(1)
    with world.peer(None) as peer:
        for secrets, codes in (
            (f'"{SECRET}"', (0, NO_PERMISSION)),
            (f'"{SECRET}", "the new secret"', (0, 0)),
            ('"the new secret"', (NO_PERMISSION, 0)),
        ):
            before = access.reloads
            path.write_text(FILE.replace(f'"{SECRET}"', secrets) + f"# {secrets}\n")
            wait_until(lambda before=before: access.reloads > before, "the file is reloaded")  # type: ignore[misc]  # called at once
            assert tuple(peer.call(100, signed(put, secret=each)).code for each in (SECRET, "the new secret")) == codes


def test_a_signature_counts_in_plain_text_by_a_setting(tmp_path: Path) -> None:
    path = write_access_file(tmp_path, FILE)
    flags = {"accessPolicy": "enforce", "accessFile": str(path), "accessKeysInPlainText": "true"}
    with live_server(tmp_path, **flags) as server, Peer(server.port) as plain:
        assert plain.call(100, signed({"namespace": "n", "key": "k", "value": "v"})).code == 0


def test_prepared_answers_are_for_connections_that_may_read(world: World) -> None:
    with world.peer("admin") as chief, world.peer(None) as stranger, world.peer("reader") as reader:
        assert chief.call(103, broker_fields(), topic_table("T", "U")).code == 0
        assert reader.call(105, {"topic": "T"}).code == 0
        reader.send(b"".join(request(105, {"topic": "T"}, opaque=n) for n in range(1, 50)))
        assert {answer.code for answer in reader.answers(49)} == {0}
        hits = world.server.metrics.fast_path_hits
        assert hits > 0
        for _ in range(3):
            assert stranger.call(105, {"topic": "T"}).code == NO_PERMISSION
        stranger.send(b"".join(request(105, {"topic": "T"}, opaque=n) for n in range(1, 50)))
        assert {answer.code for answer in stranger.answers(49)} == {NO_PERMISSION}
        assert world.server.metrics.fast_path_hits == hits
        assert stranger.call(105, signed({"topic": "T"})).code == 0
        assert stranger.call(105, {"topic": "T"}).code == 0, "it is the same process"


def test_a_changed_file_counts_on_open_connections(world: World) -> None:
    path = world.folder / "access.toml"
    access = world.server.access
    assert access is not None
    with world.peer("admin") as chief, world.peer("reader") as reader:
        assert chief.call(103, broker_fields(), topic_table("T", "U")).code == 0
        assert [reader.call(105, {"topic": "T"}).code for _ in range(3)] == [0, 0, 0]
        path.write_text("not toml [")
        wait_until(lambda: access.problem is not None, "the invalid file is seen")
        assert reader.call(105, {"topic": "T"}).code == 0, "the old rules stay in force"
        path.write_text(FILE.replace("CN=reader", "CN=nobody"))
        wait_until(lambda: access.reloads == 1, "the file is reloaded")
        assert reader.call(105, {"topic": "T"}).code == NO_PERMISSION

    def events() -> list[object]:
        return [line["event"] for line in world.audit() if line["event"] in ("started", "reload-failed", "reloaded")]

    wait_until(lambda: events() == ["started", "reload-failed", "reloaded"], "the lines are written")


def test_a_role_that_is_taken_away_counts_from_a_request_of_a_pipeline_on(world: World) -> None:
    """Route queries, and changes by a signature, in one stream of frames: first all are allowed, then all are refused."""
    path, access = world.folder / "access.toml", world.server.access
    assert access is not None
    with world.peer("admin") as chief:
        assert chief.call(103, broker_fields(), topic_table("T", "U")).code == 0
        without_reader = FILE.replace("CN=reader", "CN=nobody")
        cases: tuple[tuple[str | None, str, Callable[[int], bytes]], ...] = (
            ("reader", without_reader, lambda n: request(105, {"topic": "T"}, opaque=n)),
            (None, without_reader.replace(SECRET, "another secret"), lambda n: request(100, signed(put_fields(n)), opaque=n)),
        )
        for name, kept, frame in cases:
            reloads = access.reloads
            with world.peer(name) as peer:
                codes: list[int] = []
                for turn in range(1, 5_000):
                    peer.send(b"".join(frame(n) for n in range(len(codes), len(codes) + 100)))
                    if turn == 3:
                        path.write_text(kept)
                    answers = peer.answers(100)  # a refusal is answered at once, a change when it is on disk
                    codes += [answer.code for answer in sorted(answers, key=lambda answer: answer.header.opaque)]
                    if codes[-1] == NO_PERMISSION and turn > 3:
                        break
            allowed = codes.count(0)
            assert allowed >= 200
            assert codes == [0] * allowed + [NO_PERMISSION] * (len(codes) - allowed)
            assert access.reloads > reloads
    table = world.server.service.state.kv_view("n")
    assert table is not None
    assert table["k"] == str(allowed - 1), "the last change that was answered with 0 is the last one that was executed"


def test_each_request_of_a_pipeline_has_its_own_caller(tmp_path: Path) -> None:
    """Two operators over one connection, as behind a proxy: the second request arrives before the first one is answered."""
    other = '[identities.other]\nroles = ["operator"]\naccess_keys = { other = ["secret of the other"] }\n'
    flags = {
        "accessPolicy": "enforce",
        "accessFile": str(write_access_file(tmp_path, FILE + other)),
        "accessKeysInPlainText": "true",
        "mode": "cp",
        "nodeId": "n1",
        "peers": f"n1=127.0.0.1:{free_port()}",
    }
    body = b"returnOrderTopicConfigToBroker=false"

    def line() -> dict[str, object] | None:
        lines = [json.loads(line) for line in (tmp_path / "audit.log").read_text().splitlines()]
        return next((line for line in lines if line["event"] == "request"), None)

    with live_server(tmp_path, replicated, **flags) as server, Peer(server.port) as peer:
        wait_until(lambda: peer.call(100, signed(put_fields(0))).code == 0, "the node leads")
        theirs = signed(put_fields(1), secret="secret of the other", key="other")
        peer.send(request(318, signed({}, body), body, opaque=1) + request(100, theirs, opaque=2))
        assert {answer.code for answer in peer.answers(2)} == {0}
        assert wait_until(line, "the line is written")["identity"] == "tools"  # type: ignore[index]  # it is not None


def test_a_request_that_waited_is_checked_again_before_it_is_proposed(tmp_path: Path) -> None:
    """The access file and the registrations of that moment decide. The requests wait for a large command, or for the leader."""
    authority, path = Authority(tmp_path), write_access_file(tmp_path, FILE)
    flags = {**tls_flags(authority, path), "mode": "cp", "nodeId": "n1", "fenceAfterMs": "20000"}
    flags["peers"] = f"n1=127.0.0.1:{free_port()}"
    own, victim = broker_fields("broker-a", "10.0.0.1:10911"), broker_fields("broker-b", "10.0.0.2:10911")
    claimed = {**victim, "brokerName": "broker-a"}
    large = topic_table(*(f"{number:0100}" for number in range(HEAVY_BYTES // 100)))
    value = {"namespace": "n", "key": "k", "value": "v" * (HEAVY_BYTES + 1)}
    with live_server(tmp_path, replicated, **flags) as server:
        world, service, access = World(server, authority, tmp_path), server.service, server.access
        assert isinstance(service, ReplicatedNode)
        assert access is not None
        lock, ask, gates = service.proposer._heavy, service.consensus.read_index, list[asyncio.Future[None]]()

        def ask_later() -> "asyncio.Future[ReadOutcome]":
            gate = asyncio.get_running_loop().create_future()
            gates.append(gate)

            async def asked() -> ReadOutcome:
                await gate
                return await ask()

            return asyncio.ensure_future(asked())

        def rewrite(old: str, new: str) -> None:
            before = access.reloads
            path.write_text(path.read_text().replace(old, new))
            wait_until(lambda: access.reloads > before, "the file is reloaded")

        with world.peer("admin") as chief, world.peer("broker-a") as broker, world.peer(None) as tools:
            wait_until(lambda: chief.call(100, put_fields(0)).code == 0, "the node leads")
            assert broker.call(103, own, topic_table("T", "U")).code == 0
            server.wait_for(lock.acquire())
            tools.send(request(100, signed(value)))
            broker.send(request(103, claimed, large))
            wait_until(lambda: len(lock._waiters or ()) == 2, "both wait")
            assert chief.call(103, victim, topic_table("T", "U")).code == 0
            rewrite(SECRET, "another secret")
            server.do(lock.release)
            for peer in (tools, broker):
                answer = peer.answers(1)[0]
                assert (answer.code, "while the request waited" in str(answer.header.remark)) == (NO_PERMISSION, True)
            held = service.state.registration("C", "10.0.0.2:10911")
            assert held is not None
            assert (held.broker_name, service.state.kv_view("n")) == ("broker-b", {"k": "0"})
            server.do(lambda: setattr(service.broker_calls, "_consensus", SimpleNamespace(read_index=ask_later)))
            broker.send(request(322, own, opaque=1) + request(104, own, opaque=2))
            wait_until(lambda: len(gates) == 2, "both wait")
            rewrite('brokers = ["broker-a"]', 'brokers = ["broker-c"]')
            for gate in gates:
                server.do(partial(gate.set_result, None))
            assert [answer.code for answer in broker.answers(2)] == [NO_PERMISSION] * 2
            assert service.state.registration("C", "10.0.0.1:10911") is not None

        def waited() -> list[object]:
            return [line["request"] for line in world.audit() if line.get("hadWaited")]

        wanted = ["PUT_KV_CONFIG", "REGISTER_BROKER", "QUERY_DATA_VERSION", "UNREGISTER_BROKER"]
        wait_until(lambda: sorted(map(str, waited())) == sorted(wanted), "the refusals have lines")


def test_a_oneway_change_of_settings_gets_a_line(tmp_path: Path) -> None:
    def requests() -> list[object]:
        lines = [json.loads(line) for line in (tmp_path / "audit.log").read_text().splitlines()]
        return [(line["request"], line["target"]) for line in lines if line["event"] == "request"]

    body = b"orderMessageEnable=false\nenableTopicList=true"
    with live_server(tmp_path, accessPolicy="observe") as server, Peer(server.port) as peer:
        for flag in (2, 0):
            peer.send(request(RequestCode.UPDATE_NAMESRV_CONFIG, {}, body, flag=flag))
        peer.receive()
        wait_until(
            lambda: requests() == [("UPDATE_NAMESRV_CONFIG", "enableTopicList, orderMessageEnable")] * 2, "the lines are written"
        )


def test_observe_allows_everything_and_records_it(tmp_path: Path) -> None:
    with live_server(tmp_path, accessPolicy="observe") as server, Peer(server.port) as peer:
        assert peer.call(103, broker_fields(), topic_table("T", "U")).code == 0
        assert [peer.call(105, {"topic": "T"}).code for _ in range(5)] == [0] * 5
        assert server.metrics.fast_path_hits > 0
        assert server.access is not None
        assert server.access.refusals == {("REGISTER_BROKER", "observed"): 1, ("GET_ROUTEINFO_BY_TOPIC", "observed"): 1}
        log = tmp_path / "audit-refusals.log"
        wait_until(lambda: len(log.read_text().splitlines()) == 2, "the lines are written")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(line["event"], line["request"], line["address"]) for line in lines] == [
        ("observed", "REGISTER_BROKER", "127.0.0.1"),
        ("observed", "GET_ROUTEINFO_BY_TOPIC", "127.0.0.1"),
    ]
    assert log.stat().st_mode & 0o777 == 0o600


def test_the_source_network_counts_by_a_trusted_proxy_header_alone(tmp_path: Path) -> None:
    path = write_access_file(tmp_path, '[identities.office]\nroles = ["read"]\nnetworks = ["10.9.8.0/24"]')
    header = b"PROXY TCP4 10.9.8.7 1.1.1.1 4711 9876\r\n"
    flags = {"accessPolicy": "enforce", "accessFile": str(path)}
    with live_server(tmp_path, **flags, proxyProtocolFrom="127.0.0.1") as server, Peer(server.port, first=header) as peer:
        assert peer.call(206).code == 0
    with live_server(tmp_path, **flags) as server, Peer(server.port, first=header) as peer:
        assert peer.call(206).code == NO_PERMISSION


def test_our_commands_present_a_certificate(world: World) -> None:
    authority = world.authority
    files = authority.files("reader", prefix="command-")
    at = ("-n", f"127.0.0.1:{world.server.port}", "--tls-ca", str(authority.path))
    assert run_command("clusters", *at, "--tls-cert", str(files.certificate), "--tls-key", str(files.key)).returncode == 0
    refused = run_command("clusters", *at)
    assert refused.returncode != 0
    assert "no permission" in refused.stdout + refused.stderr
    wrong = run_command("clusters", *at, "--tls-cert", str(files.key))
    assert "cannot be used" in wrong.stderr


def test_open_has_no_part_in_the_path_of_a_query(tmp_path: Path) -> None:
    with live_server(tmp_path) as server:
        assert server.access is None
        assert getattr(server.server.prepared, "__self__", None) is server.server.dispatcher.answers
        assert server.server.dispatcher._guard is None
        assert not (tmp_path / "audit.log").exists()


def test_enforce_needs_a_file_that_is_valid(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"accessPolicy=enforce .* and accessFile= .*: every request would be refused"):
        load_settings(None, {"accessPolicy": "enforce"}, {})
    settings = load_settings(None, {"accessPolicy": "enforce", "accessFile": str(write_access_file(tmp_path, "["))}, {})
    with pytest.raises(SettingError, match=r"access file .*: not TOML"):
        AccessControl.of(settings)


def test_groups_of_the_table_are_what_the_page_says() -> None:
    wanted = {"BROKERS": (BROKERS, {103, 104, 322, 904}), "OPERATORS": (OPERATORS, {100, 102, 205, 216, 318, 327})}
    for name, (group, codes) in wanted.items():
        found = {code for code, roles in REQUEST_ROLES.items() if roles == group}
        told = [
            f"request code {int(code)} has the roles {name} in access/roles.py: add it to this test" for code in found - codes
        ]
        told += [
            f"request code {code} does not have the roles {name} in access/roles.py: give it these" for code in codes - found
        ]
        assert not told, "\n".join(sorted(told))

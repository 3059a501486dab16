"""Every request code and HTTP path, by every role, at every node of a cluster and at an independent node: no bypass.

The codes come from the dispatcher and the paths from the admin port, so a new one is tested here, too. The roles that may send a
code come from docs/security.md."""

import asyncio
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest

from replicated_namesrv.access.roles import Role
from replicated_namesrv.access.signatures import signature_of
from replicated_namesrv.admin.paths import HTTP_ROLES, ROUTES
from replicated_namesrv.compat.independent_node import IndependentNode
from replicated_namesrv.server.server import RemotingServer
from replicated_namesrv.settings_sources import load_settings
from replicated_namesrv.wire.codes import RequestCode
from tests.access.files import token_line, write_access_file
from tests.security.attacked import AttackedNode, started_cluster, write_cluster_files
from tests.support.nodes import status_of
from tests.support.remoting_server import Peer, broker_fields, request, topic_table
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

NO_PERMISSION, NOT_SUPPORTED = 16, 3
CALLERS = (None, *Role)
"""A caller without credentials, and one of each role."""
OWN_NAMES = {"broker": "broker-a", "victim": "broker-v"}
"""Identities with the role broker, and their names."""
IDENTITIES = (*Role, "victim")


def secret_of(identity: str) -> str:
    return f"a long secret of {identity}"


FILE = "".join(
    f'[identities.{name}]\nroles = ["{"broker" if name in OWN_NAMES else name}"]\n'
    f'access_keys = {{ key-{name} = ["{secret_of(name)}"] }}\ntokens = ["{token_line(secret_of(name))}"]\n'
    + (f'brokers = ["{OWN_NAMES[name]}"]\n' if name in OWN_NAMES else "")
    for name in IDENTITIES
)
FOREVER = "3600000"
STORED = broker_fields("broker-b", "10.0.0.2:10911", clusterName="c", heartbeatTimeoutMillis=FOREVER)
FIELDS = {**STORED, "topic": "T", "namespace": "n", "key": "k", "value": "another", "cluster": "c"}
"""Fields of all requests. Each change would have an effect. The role broker does not have this broker name."""
BODIES = {
    RequestCode.REGISTER_BROKER: topic_table("T", "U", "V", counter=2),
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: b'{"queueDatas":[{"brokerName":"broker-b","perm":6,"readQueueNums":4,'
    b'"topicSysFlag":0,"writeQueueNums":4}]}',
    RequestCode.UPDATE_NAMESRV_CONFIG: b"enableTopicList=true",
}
Nodes = Mapping[str, AttackedNode]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Three nodes of a cluster by node id, and an independent node."""
    folder = tmp_path_factory.mktemp("matrix")
    settings = (
        *("accessPolicy=enforce", f"accessFile={write_access_file(folder, FILE)}", "accessKeysInPlainText=true"),
        *("tls.server.mode=disabled", "fenceAfterMs=20000"),
    )
    folders = [folder / name for name in ("n1", "n2", "n3", "independent")]
    with ExitStack() as stack:
        files = write_cluster_files(folders[:3], [each / "data" for each in folders[:3]], "cp", *settings)
        started = stack.enter_context(started_cluster(files))
        alone = write_cluster_files(folders[3:], [folders[3] / "data"], "ap", *settings)
        started += stack.enter_context(started_cluster(alone))
        yield dict(zip(("n1", "n2", "n3", "independent"), started, strict=True))


def bearer(identity: str | None) -> dict[str, str]:
    return {} if identity is None else {"Authorization": f"Bearer {secret_of(identity)}"}


def signed(identity: str | None, fields: Mapping[str, str], body: bytes = b"") -> dict[str, str]:
    if identity is None:
        return dict(fields)
    known = {**fields, "AccessKey": f"key-{identity}"}
    return {**known, "Signature": signature_of(known, body, secret_of(identity).encode())}


def ask(peer: Peer, identity: str | None, code: int, fields: Mapping[str, str], body: bytes = b"") -> int:
    return peer.call(code, signed(identity, fields, body), body).code


def done(node: AttackedNode, identity: str, code: int, fields: Mapping[str, str], body: bytes = b"") -> Peer:
    """Repeat a request until it is executed, because an election may be under way. Returns the connection over which it was
    executed."""
    peer = Peer(node.port)

    def attempt() -> bool:
        nonlocal peer
        peer.send(request(code, signed(identity, fields, body), body))
        if (answer := peer.receive()) is None:
            peer = Peer(node.port)
        assert answer is None or answer.code != NO_PERMISSION, (node.folder.name, identity, code)
        return answer is not None and answer.code == 0

    wait_until(attempt, f"{node.folder.name} executes code {code}", 60)
    return peer


def digest(node: AttackedNode) -> str:
    answers: list[str] = []

    def look() -> bool:
        answer = node.http("/v1/digest", headers=bearer(Role.READ))
        answers.append(answer.json.get("digest", ""))
        return answer.status == 200

    wait_until(look, f"{node.folder.name} confirms its state", 60)
    return answers[-1]


def leader_of(nodes: Nodes) -> str:
    """Node id of the leader."""
    found: list[str] = []

    def look() -> bool:
        found[:] = [str(nodes["n1"].http("/v1/status", headers=bearer(Role.READ)).json["replication"]["leader"] or "")]
        return found[0] in nodes

    wait_until(look, "there is a leader")
    return found[0]


@cache
def dispatched() -> Sequence[int]:
    """Every code with a handler."""
    settings = load_settings(None, {}, {})
    return sorted(RemotingServer(settings, IndependentNode(settings)).dispatcher._handlers)


def numbers_in(cell: str) -> set[int]:
    """``101, 105 to 107``."""
    found: set[int] = set()
    for first, last in re.findall(r"\b(\d{3,})(?: to (\d{3,}))?\b", cell):
        found |= set(range(int(first), int(last or first) + 1))
    return found


@cache
def page() -> Mapping[Role, set[int]]:
    """The codes that each role may send, according to docs/security.md. The role broker may send its codes only for its own
    names."""
    text = Path(__file__).parents[2].joinpath("docs/security.md").read_text()
    table = text.partition("| role | RocketMQ port | admin port |")[2].partition("\n\n")[0]
    cells = {found[1]: found[2] for found in re.finditer(r"^\| `(\w+)` \| ([^|]*) \|", table, re.MULTILINE)}
    reads = numbers_in(cells["read"])
    return {
        Role.READ: reads,
        Role.BROKER: reads | numbers_in(cells["broker"]),
        Role.OPERATOR: reads | numbers_in(cells["operator"]),
        Role.ADMIN: set(dispatched()),
    }


def may_send(role: Role | None, code: int) -> bool:
    """Whether a role may send ``FIELDS``."""
    return role is not None and code in page()[role] and not (role is Role.BROKER and code not in page()[Role.READ])


EXAMPLES = {
    "namespace": "n",
    "key": "k",
    "topic": "T",
    "brokerName": "broker-b",
    "node": "n2",
    "view": "status",
    "action": "promote",
    "file": "main.js",
    "unit": "u",
}
"""Values of the variable parts of paths."""


def example(path: str) -> str:
    """A path that a pattern matches."""
    path = re.sub(r"\{(\w+)(?::[^}]*)?\}", lambda part: EXAMPLES[part[1]], path)
    return path + ("?withinSeconds=1" if path == "/v1/drain" else "")


def test_every_code_is_in_the_page_and_every_role_of_it_is_dispatched() -> None:
    """This test fails for a new code without a role."""
    listed = page()[Role.READ] | page()[Role.BROKER] | page()[Role.OPERATOR]
    missing = [f"request code {code} ({RequestCode(code).name}) is not in it" for code in set(dispatched()) - listed]
    missing += [f"request code {code} is in it, and has no handler" for code in listed - set(dispatched())]
    assert not missing, "correct the table 'What each role may send' in docs/security.md:\n" + "\n".join(missing)
    assert len(dispatched()) > 20


def test_no_node_executes_what_a_role_may_not_send(nodes: Nodes) -> None:
    """The test sends every code, two-way and oneway, and every path. Then it checks that requests that a role may send are not
    refused."""
    leader = leader_of(nodes)
    wrong: list[str] = []
    with ExitStack() as kept:
        for name in (leader, "independent"):
            kept.enter_context(
                done(nodes[name], Role.ADMIN, 103, STORED, topic_table("T", "U"))
            )  # it stays while it is connected
            kept.enter_context(done(nodes[name], Role.ADMIN, 100, {"namespace": "n", "key": "k", "value": "v"}))
        for name, node in nodes.items():
            before = digest(node)
            for role in CALLERS:
                wrong += not_refused(node, role)
                wrong += asyncio.run(not_refused_over_http(node.admin_port, role))
                if digest(node) != before:
                    wrong.append(f"{name}: a request of {role} changed the state")
                    before = digest(node)
    for node in nodes.values():
        for role in Role:
            wrong += refused(node, role)
    for node in nodes.values():
        wrong += [each for role in Role for each in asyncio.run(refused_over_http(node.admin_port, role))]
    assert not wrong, "\n".join(wrong)


def not_refused(node: AttackedNode, role: Role | None) -> Iterator[str]:
    """Requests that ``role`` may not send, and that were answered otherwise."""
    with Peer(node.port) as peer:
        for code in dispatched():
            if may_send(role, code):
                continue
            body = BODIES.get(RequestCode(code), b"")
            peer.send(request(code, signed(role, FIELDS, body), body, flag=2))
            answered = ask(peer, role, code, FIELDS, body)
            if answered != NO_PERMISSION:
                yield f"{node.folder.name}: {RequestCode(code).name} of {role}: {answered}"
        unknown = [code for code in range(-2, 1100) if code not in dispatched()]
        peer.send(b"".join(request(code, signed(role, FIELDS), opaque=code + 2) for code in unknown))
        yield from (
            f"{node.folder.name}: code {answer.header.opaque - 2} of {role}: {answer.code}"
            for answer in peer.answers(len(unknown))
            if answer.code != NOT_SUPPORTED
        )


def refused(node: AttackedNode, role: Role) -> Iterator[str]:
    """Requests that ``role`` may send, and that were refused."""
    own = {"brokerName": "broker-a", "brokerAddr": "10.0.0.1:10911"} if role is Role.BROKER else {}
    for code in sorted(page()[role]):
        body = BODIES.get(RequestCode(code), b"").replace(b"broker-b", own.get("brokerName", "broker-b").encode())
        with Peer(node.port) as peer:
            peer.send(request(code, signed(role, {**FIELDS, **own}, body), body))
            answer = peer.receive()
        if answer is not None and answer.code in (NO_PERMISSION, NOT_SUPPORTED):
            yield f"{node.folder.name}: {RequestCode(code).name} of {role} was refused: {answer.code}"


async def not_refused_over_http(port: int, role: Role | None) -> list[str]:
    """The HTTP requests without permission that were not refused. HEAD is tried for each GET."""
    found = []
    for route in ROUTES:
        allowed = HTTP_ROLES.get((route.method, route.path))
        if allowed is None or role in allowed:
            continue
        for method in (route.method, *(("HEAD",) if route.method == "GET" else ())):
            status = await status_of(port, method, example(route.path), bearer(role))
            if status != (401 if role is None else 403) and not (method == "HEAD" and status == 405):
                found.append(f"{port}: {method} {route.path} of {role}: {status}")
    return found


async def refused_over_http(port: int, role: Role) -> list[str]:
    found = []
    for route in ROUTES:
        if role in HTTP_ROLES.get((route.method, route.path), {role}):
            status = await status_of(port, route.method, example(route.path), bearer(role))
            if status in (401, 403, 405):
                found.append(f"{port}: {route.method} {route.path} of {role} was refused: {status}")
    return found


def lines(node: AttackedNode, event: str) -> list[dict[str, object]]:
    """Lines of the audit log. The last one may be half written."""
    name = "audit-refusals.log" if event == "refused" else "audit.log"
    whole = (node.folder / "data" / name).read_bytes().rpartition(b"\n")[0]
    return [line for line in map(json.loads, whole.splitlines()) if line["event"] == event]


VICTIM = broker_fields("broker-v", "10.0.1.2:10911", heartbeatTimeoutMillis=FOREVER)
ATTACK = broker_fields("broker-v", "10.6.6.6:10911", heartbeatTimeoutMillis=FOREVER)
UNDER_ITS_OWN_NAME = {**VICTIM, "brokerName": "broker-a"}
TABLE = topic_table("Victims", "More")
REQUESTS = {103: "REGISTER_BROKER", 104: "UNREGISTER_BROKER", 322: "QUERY_DATA_VERSION", 904: "BROKER_HEARTBEAT"}


def test_no_role_takes_over_a_broker_through_any_node(nodes: Nodes) -> None:
    """The attacks use the victim's name with another address, its name and address, and its address with the caller's own name.
    Each node records them."""
    with ExitStack() as kept:
        for name in (leader_of(nodes), "independent"):
            kept.enter_context(done(nodes[name], "victim", 103, VICTIM, TABLE))
        for node in nodes.values():
            before = digest(node)
            for role in (None, Role.READ, Role.BROKER, Role.OPERATOR):
                name = role or "anonymous"

                def is_recorded(node: AttackedNode = node, role: Role | None = role, name: str = name) -> bool:
                    """Repeat the attacks until each one has a line, because the number of lines in each period is limited."""
                    with Peer(node.port) as peer:
                        for code in REQUESTS:
                            for fields in (ATTACK, VICTIM, UNDER_ITS_OWN_NAME):
                                answered = ask(peer, role, code, fields, TABLE if code == 103 else b"")
                                assert answered == NO_PERMISSION, (node.folder.name, role, code, fields)
                    found = {(line["identity"], line["request"], line.get("brokerName")) for line in lines(node, "refused")}
                    return {
                        (name, request, target) for request in REQUESTS.values() for target in ("broker-v", "broker-a")
                    } <= found

                wait_until(is_recorded, f"{node.folder.name} records the attacks of {name}", 60)
            assert digest(node) == before


def test_every_node_of_a_cluster_records_who_changed_what_and_over_which_node(nodes: Nodes) -> None:
    cluster = {name: node for name, node in nodes.items() if name != "independent"}
    leader = leader_of(nodes)
    follower = next(name for name in cluster if name != leader)
    victim = {**VICTIM, "brokerAddr": "10.0.1.3:10911"}
    steps: tuple[tuple[str, int, dict[str, str], bytes], ...] = (
        *(("victim", 103, victim, TABLE), (Role.OPERATOR, 100, {"namespace": "recorded", "key": "k", "value": "v"}, b"")),
        (Role.OPERATOR, 318, {}, b"returnOrderTopicConfigToBroker=false"),
        *(("victim", 104, victim, b""), (Role.ADMIN, 103, {**victim, "brokerAddr": "10.6.6.6:10911"}, TABLE)),
    )
    with ExitStack() as kept:
        for identity, code, fields, body in steps:
            kept.enter_context(done(nodes[follower], identity, code, fields, body))
    wanted = [
        *(("REGISTER_BROKER", "victim"), ("PUT_KV_CONFIG", Role.OPERATOR), ("UPDATE_NAMESRV_CONFIG", Role.OPERATOR)),
        *(("broker-unregistered", "victim"), ("REGISTER_BROKER", Role.ADMIN)),
    ]

    def has_all(node: AttackedNode) -> bool:
        found = [(line["change"], line["identity"]) for line in lines(node, "change") if line.get("receivedBy") == follower]
        return [each for each in found if each in wanted][-len(wanted) :] == wanted

    for name, node in cluster.items():
        wait_until(lambda node=node: has_all(node), f"{name} records the changes")  # type: ignore[misc]  # called at once

"""The takeover of a broker's name, tried as each role, through the leader and a follower of a cluster that enforces roles."""

import asyncio
import json
from pathlib import Path

import pytest

from replicated_namesrv.access.signatures import signature_of
from tests.access.files import write_access_file
from tests.support.remoting_server import Peer, broker_fields, topic_table
from tests.support.replicated_processes import ReplicatedProcesses, eventually

NO_PERMISSION = 16
SECRETS = {name: f"secret of {name}" for name in ("reader", "broker-a", "broker-b", "operator")}
ROLES = {"reader": "read", "broker-a": "broker", "broker-b": "broker", "operator": "operator"}
LOCAL = '[identities.local]\nroles = ["read"]\nnetworks = ["127.0.0.0/8"]\n'
"""For the probes of the test. So a caller without a signature has the role read."""
FILE = LOCAL + "".join(
    f'[identities.{name}]\nroles = ["{ROLES[name]}"]\naccess_keys = {{ key-{name} = ["{secret}"] }}\n'
    + (f'brokers = ["{name}"]\n' if ROLES[name] == "broker" else "")
    for name, secret in SECRETS.items()
)
VICTIM = broker_fields("broker-b", "10.0.0.2:10911")
ATTACK = broker_fields("broker-b", "10.6.6.6:10911")
TABLE = topic_table("T", "U")


def signed(name: str | None, fields: dict[str, str], body: bytes) -> dict[str, str]:
    if name is None:
        return fields
    fields = {**fields, "AccessKey": f"key-{name}"}
    return {**fields, "Signature": signature_of(fields, body, SECRETS[name].encode())}


def call(port: int, name: str | None, code: int, fields: dict[str, str], body: bytes = b"") -> int:
    with Peer(port) as peer:
        return peer.call(code, signed(name, fields, body), body).code


def lines(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "audit.log").read_text().splitlines()]


@pytest.mark.slow
async def test_no_role_takes_over_through_any_node_and_every_node_records_who_changed_what(tmp_path: Path) -> None:
    settings = (
        *("accessPolicy=enforce", f"accessFile={write_access_file(tmp_path, FILE)}", "accessKeysInPlainText=true"),
        "tls.server.mode=disabled",
    )
    cluster = ReplicatedProcesses(tmp_path / "nodes", 3, settings)
    try:
        await cluster.start()
        leader = await cluster.leader()
        follower = cluster.others(leader)[0]
        ports = {name: cluster.nodes[name].plan.listen[1] for name in cluster.names}

        async def ask(node: str, name: str | None, code: int, fields: dict[str, str], body: bytes = b"") -> int:
            return await asyncio.to_thread(call, ports[node], name, code, fields, body)

        with Peer(ports[follower]) as broker:
            registered = await asyncio.to_thread(broker.call, 103, signed("broker-b", VICTIM, TABLE), TABLE)
            assert registered.code == 0
            for node in (leader, follower):
                for name in (None, "reader", "broker-a", "operator"):
                    for code in (103, 104, 322):
                        for fields in (ATTACK, VICTIM, {**VICTIM, "brokerName": "broker-a"}):
                            body = TABLE if code == 103 else b""
                            assert await ask(node, name, code, fields, body) == NO_PERMISSION, (node, name, code, fields)
                assert await ask(node, "reader", 105, {"topic": "T"}) == 0
            for code, fields in ((205, {"brokerName": "broker-b"}), (216, {"topic": "T"}), (100, {"namespace": "n", "key": "k"})):
                for name in (None, "reader", "broker-a"):
                    assert await ask(follower, name, code, fields) == NO_PERMISSION
            assert await ask(follower, "operator", 100, {"namespace": "n", "key": "k", "value": "v"}) == 0
            assert await ask(follower, "operator", 318, {}, b"returnOrderTopicConfigToBroker=false") == 0
            gone = await asyncio.to_thread(broker.call, 104, signed("broker-b", VICTIM, b""))
            assert gone.code == 0

        wanted = [
            ("REGISTER_BROKER", "broker-b", follower),
            ("PUT_KV_CONFIG", "operator", follower),
            ("UPDATE_NAMESRV_CONFIG", "operator", follower),
            ("broker-unregistered", "broker-b", follower),
        ]

        async def is_recorded(node: str) -> bool:
            changes = [line for line in lines(cluster.folder / node) if line["event"] == "change" and "identity" in line]
            return [(line["change"], line["identity"], line["receivedBy"]) for line in changes] == wanted

        for node in cluster.names:
            await eventually(lambda node=node: is_recorded(node), f"{node} records the changes and their callers")  # type: ignore[misc]  # bound at once
        for node in (leader, follower):
            refused = {(line["identity"], line["request"]) for line in lines(cluster.folder / node) if line["event"] == "refused"}
            for name in ("local", "reader", "broker-a", "operator"):
                assert {(name, "REGISTER_BROKER"), (name, "UNREGISTER_BROKER"), (name, "QUERY_DATA_VERSION")} <= refused
    finally:
        await cluster.close()

"""The audit logs of the nodes of a cluster: operations, restores, members, and gaps through a snapshot."""

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from replicated_namesrv.access.roles import Role
from replicated_namesrv.process import ServingNode
from replicated_namesrv.raft.raft_config import RaftConfig
from replicated_namesrv.replication import replicated_node
from replicated_namesrv.routes import backup
from replicated_namesrv.routes.commands import PutKVConfig
from replicated_namesrv.routes.state import RouteInfoManager, RouteSettings
from replicated_namesrv.settings import Settings
from replicated_namesrv.settings_sources import load_settings
from tests.access.files import token_line, write_access_file
from tests.support.nodes import HttpAnswer, http
from tests.support.ports import free_port, free_ports
from tests.support.waiting import until

TOKENS = {role: f"a long token of {role}" for role in (Role.OPERATOR, Role.ADMIN)}
FILE = "".join(f'[identities.{role}]\nroles = ["{role}"]\ntokens = ["{token_line(token)}"]\n' for role, token in TOKENS.items())
NAMES = ("n1", "n2", "n3")


def lines(folder: Path, *events: str) -> list[dict[str, Any]]:
    """Whole lines of an audit log."""
    whole = (folder / "audit.log").read_bytes().rpartition(b"\n")[0]
    return [line for line in map(json.loads, whole.splitlines()) if line["event"] in events]


class AuditedCluster:
    """Three nodes with access control."""

    def __init__(self, folder: Path, peers: str, stack: AsyncExitStack) -> None:
        self.folder, self._peers, self._stack = folder, peers, stack
        self._access_file = write_access_file(folder, FILE)
        self.nodes: dict[str, ServingNode] = {}

    def node_of(self, name: str) -> ServingNode:
        flags = {
            "bindAddress": "127.0.0.1",
            "listenPort": "0",
            "adminListen": "127.0.0.1:0",
            "mode": "cp",
            "nodeId": name,
            "dataDir": str(self.folder / name),
            "peers": self._peers,
            "accessPolicy": "enforce",
            "accessFile": str(self._access_file),
            "fenceAfterMs": "20000",
        }
        return ServingNode(load_settings(flags=flags, environment={}))

    async def start(self, *names: str) -> None:
        self.nodes |= {name: self.node_of(name) for name in names}
        await asyncio.gather(*(self.nodes[name].start() for name in names))
        for name in names:
            self._stack.push_async_callback(self.nodes[name].stop)

    async def request(self, name: str, method: str, path: str, body: bytes = b"", role: Role = Role.ADMIN) -> HttpAnswer:
        admin = self.nodes[name].admin
        assert admin is not None
        assert admin.address is not None
        return await http(admin.address[1], path, method, body, {"Authorization": f"Bearer {TOKENS[role]}"})

    async def change(self, name: str | None, method: str, path: str, body: bytes = b"", role: Role = Role.ADMIN) -> str:
        """Send a request to a node (None: the leader) until it is done, because an election may be under way. A change of the
        members with an unknown outcome may have been made. Returns the node that did it."""
        for attempt in range(200):
            node = name or await self.leader()
            if (answer := await self.request(node, method, path, body, role)).status == 200:
                return node
            if attempt and ("is a member already" in answer.text or "is not a member" in answer.text):
                return node
            assert answer.status in (503, 504) or "not the leader" in answer.text, answer.text
        raise AssertionError(answer.text)

    async def leader(self) -> str:
        def known() -> str:
            status = self.nodes["n1"].service.replication_status()
            return str((status or {}).get("leader") or "")

        return await until(known, "there is a leader")

    async def recorded(self, what: str, is_there: Callable[[Path], bool]) -> None:
        for name in NAMES:
            await until(partial(is_there, self.folder / name), f"{name} records {what}")


@asynccontextmanager
async def audited_cluster(folder: Path, peers: str) -> AsyncIterator[AuditedCluster]:
    async with AsyncExitStack() as stack:
        yield AuditedCluster(folder, peers, stack)


@pytest.fixture
def peers() -> str:
    return ",".join(f"{name}=127.0.0.1:{port}" for name, port in zip(NAMES, free_ports(3), strict=True))


def a_backup() -> bytes:
    state = RouteInfoManager(RouteSettings())
    state.apply(PutKVConfig("restored", "k", "v"), 1)
    return b"".join(backup.encode({"revision": state.revision}, state.snapshot()))


def callers(folder: Path, event: str) -> list[tuple[str, str, str]]:
    return [
        (line.get("change") or line["request"], line["identity"], line["receivedBy"])
        for line in lines(folder, event)
        if "identity" in line
    ]


async def test_every_node_records_restores_operations_and_members_with_their_callers(tmp_path: Path, peers: str) -> None:
    async with audited_cluster(tmp_path, peers) as cluster:
        await cluster.start(*NAMES)
        leader = await cluster.leader()
        follower, other = (name for name in NAMES if name != leader)
        await cluster.change(follower, "POST", "/v1/restore", a_backup())
        steps = [(step, Role.ADMIN, follower) for step in ("restore-begin", "restore-finish")]
        await cluster.recorded("the restore", lambda folder: callers(folder, "change") == steps)
        await cluster.change(other, "POST", "/v1/drain?withinSeconds=1")
        await cluster.change(other, "DELETE", "/v1/drain")
        former = await cluster.change(None, "POST", f"/v1/leader/transfer?to={other}")
        wanted = [
            ("POST /v1/drain", Role.ADMIN, other),
            ("DELETE /v1/drain", Role.ADMIN, other),
            ("POST /v1/leader/transfer", Role.ADMIN, former),
        ]
        await cluster.recorded("the operations", lambda folder: all(each in callers(folder, "requested") for each in wanted))
        path = f"/v1/members/n4/add?address=127.0.0.1:{free_port()}&observer=true"
        await cluster.change(None, "POST", path)
        await cluster.recorded("n4", lambda folder: any("n4" in line["members"] for line in lines(folder, "members")))
        await cluster.change(None, "POST", "/v1/members/n4/remove")
        await cluster.recorded("its removal", lambda folder: "n4" not in lines(folder, "members")[-1]["members"])
        for name in NAMES:
            found = [each[:2] for each in callers(tmp_path / name, "requested")]
            assert ("POST /v1/members/n4/add", Role.ADMIN) in found
            assert ("POST /v1/members/n4/remove", Role.ADMIN) in found
    before = {name: lines(tmp_path / name, "change", "requested", "members", "audit-gap") for name in NAMES}
    async with audited_cluster(tmp_path, peers) as cluster:  # the nodes read their logs again
        await cluster.start(*NAMES)
        await cluster.change("n1", "PUT", "/v1/kv/n/last", b"v", Role.OPERATOR)
        await cluster.recorded("the last change", lambda folder: lines(folder, "change")[-1].get("key") == "last")
        for name in NAMES:
            found = (await cluster.request(name, "GET", "/v1/timeline?q=kv-put")).json["entries"]
            assert [(entry["key"], entry["by"], entry["over"]) for entry in found] == [("last", Role.OPERATOR, "n1")]
    for name in NAMES:
        assert lines(tmp_path / name, "change", "requested", "members", "audit-gap")[:-1] == before[name]


@pytest.mark.slow
async def test_a_gap_through_a_snapshot_is_recorded_with_the_nodes_to_ask(
    tmp_path: Path, peers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = replicated_node.raft_config

    def compacting_early(settings: Settings, budget_ms: int) -> RaftConfig:
        small = {"compact_entries": 40, "compact_margin_entries": 5, "transfer_log_entries_max": 40, "segment_bytes": 4096}
        return dataclasses.replace(shipped(settings, budget_ms), **small)  # type: ignore[arg-type]  # all of them are numbers

    monkeypatch.setattr(replicated_node, "raft_config", compacting_early)
    async with audited_cluster(tmp_path, peers) as cluster:
        await cluster.start(*NAMES)
        await cluster.change("n1", "PUT", "/v1/kv/n/first", b"v", Role.OPERATOR)
        await cluster.recorded("the first change", lambda folder: bool(lines(folder, "change")))
        await cluster.nodes["n3"].stop()
        for number in range(150):
            await cluster.change("n1", "PUT", f"/v1/kv/n/{number}", b"v", Role.OPERATOR)
        await cluster.start("n3")
        await until(lambda: lines(tmp_path / "n3", "audit-gap"), "n3 records its gap")
        await cluster.change("n1", "PUT", "/v1/kv/n/last", b"v", Role.OPERATOR)
        await cluster.recorded("the last change", lambda folder: lines(folder, "change")[-1].get("key") == "last")
    gaps = lines(tmp_path / "n3", "audit-gap")
    assert all(gap["askNodes"] == ["n1", "n2"] and "snapshot" in gap["reason"] for gap in gaps)
    complete = [line["revision"] for line in lines(tmp_path / "n1", "change")]
    assert complete == list(range(complete[0], complete[-1] + 1))
    recorded = {line["revision"] for line in lines(tmp_path / "n3", "change")}
    missing = {revision for gap in gaps for revision in range(gap["fromRevision"], gap["toRevision"] + 1)}
    assert recorded | missing == set(complete)
    assert len(missing) > 50
    assert not recorded & missing
    async with audited_cluster(tmp_path, peers) as cluster:
        await cluster.start(*NAMES)
        await cluster.change("n1", "PUT", "/v1/kv/n/later", b"v", Role.OPERATOR)
        await cluster.recorded("a later change", lambda folder: lines(folder, "change")[-1].get("key") == "later")
    assert lines(tmp_path / "n3", "audit-gap") == gaps, "it is recorded once"

"""``namesrv drain`` and ``members list``, and the address list that follows both, on nodes with brokers and clients."""

import asyncio
import json
import random
import re
from functools import partial
from pathlib import Path

import pytest

from replicated_namesrv.admin.open_paths import listed
from replicated_namesrv.client.nameservers import NameServers
from replicated_namesrv.client.queries import read_topics, topics_request
from replicated_namesrv.client.remoting import RemotingClient
from replicated_namesrv.process import ServingNode
from replicated_namesrv.replication.node_addresses import NodeAddresses
from replicated_namesrv.replication.replicated_node import ReplicatedNode
from replicated_namesrv.service import NodeAddress
from tests.support.authority import Authority
from tests.support.nodes import http, running_command
from tests.support.operated import Operated, operated, run
from tests.support.replicated_processes import eventually
from tests.support.waiting import until

WITHIN_S = "2"


class Client:
    """Asks for topics without pause, as clients with a list of name servers do."""

    def __init__(self, addresses: str) -> None:
        self._remoting = RemotingClient()
        self._servers = NameServers(addresses.split(";"), self._remoting, rng=random.Random(), attempts=2)
        self.answered: dict[str, int] = {}
        self.failures: list[Exception] = []

    async def run(self) -> None:
        try:
            while True:
                try:
                    address, response = await self._servers.query(topics_request())
                    read_topics(response)
                    self.answered[address] = self.answered.get(address, 0) + 1
                except Exception as error:
                    self.failures.append(error)
                await asyncio.sleep(0.01)
        finally:
            await self._remoting.close()


async def lists(cluster: Operated) -> list[set[str]]:
    """The address list of each node."""
    return [set((await http(port, "/rocketmq/nsaddr")).text.strip().split(";")) for port in cluster.admin_ports]


async def lists_become(cluster: Operated, wanted: set[str]) -> None:
    async def look() -> bool:
        return all(found == wanted for found in await lists(cluster))

    await eventually(look, f"the address list {wanted}")


def has_brokers(node: ServingNode, count: int) -> bool:
    return node.service.state.broker_count == count


async def test_clients_of_a_drained_node_use_the_others(tmp_path: Path) -> None:
    async with operated(tmp_path) as cluster:
        addresses = {node.listen_address for node in cluster.nodes}
        await lists_become(cluster, addresses)
        arguments = ("broker", "--brokers", "2", "--topics", "2", "-n", cluster.namesrv)
        clients = [Client(cluster.namesrv) for _ in range(12)]
        running = [asyncio.ensure_future(client.run()) for client in clients]
        with running_command(*arguments, stderr=tmp_path / "broker.err"):
            for node in cluster.nodes:
                await until(partial(has_brokers, node, 2), "the brokers")
            leader = await cluster.elected()
            port = cluster.admin_ports[cluster.nodes.index(leader)]
            await until(lambda: any(leader.listen_address in client.answered for client in clients), "clients at the leader")
            done = await run("drain", "-a", f"127.0.0.1:{port}", "--within", WITHIN_S, "--json")
            assert done.code == 0, done
            told = json.loads(done.out)
            assert told["moved"] >= 2
            assert told["cut"] == 0
            assert set(told["othersServing"]) == addresses - {leader.listen_address}
            assert leader.remoting.metrics.connections_open == 0
            await lists_become(cluster, addresses - {leader.listen_address})
            assert cluster.status(leader)["role"] != "leader"
            readiness = await http(port, "/readyz?verbose")
            assert readiness.status == 503
            assert "drained" in readiness.text
            table = await run("members", "list", "-a", cluster.admin)
            assert table.code == 0, table
            assert "drained" in table.out
            others = [node for node in cluster.nodes if node is not leader]
            assert all(has_brokers(node, 2) for node in others)
            assert not [failure for client in clients for failure in client.failures]
            assert (await run("drain", "--undo", "-a", f"127.0.0.1:{port}")).code == 0
            await lists_become(cluster, addresses)
            assert (await http(port, "/readyz")).status == 200
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        assert not [failure for client in clients for failure in client.failures]
        others[0].remoting.fence()
        await lists_become(cluster, addresses - {others[0].listen_address})


async def test_the_node_of_a_properties_file_is_drained_over_https(tmp_path: Path) -> None:
    """As the systemd unit does it: the certificate has neither the address nor the name of this machine."""
    authority = Authority(tmp_path)
    files, stranger = authority.files("node.example"), authority.files("other.example")
    tls = {"adminTlsCertPath": str(files.certificate), "adminTlsKeyPath": str(files.key)}
    async with operated(tmp_path, 3, "cp", **tls) as cluster:
        await cluster.elected()
        config = tmp_path / "namesrv.properties"
        port = cluster.admin_ports[0]

        def write(certificate: Path, listen: str = f"0.0.0.0:{port}") -> None:
            config.write_text(f"adminListen={listen}\nadminTlsCertPath={certificate}\nadminTlsKeyPath={files.key}\n")

        write(stranger.certificate)
        refused = await run("drain", "-c", str(config), "--within", WITHIN_S)
        assert refused.code == 2
        assert "the certificate of the node was not accepted" in refused.err, (
            "another certificate of the same authority is not trusted"
        )
        write(files.certificate)

        async def is_drained() -> bool:
            done = await run("drain", "-c", str(config), "--within", WITHIN_S)
            assert done.code == 0 or "no other node" in done.err, done
            return f"127.0.0.1:{port} is drained" in done.out

        await eventually(is_drained, "the drain, for which another node has to serve")
        assert (await run("drain", "--undo", "-c", str(config))).code == 0
        config.write_text("adminListen=off\n")
        off = await run("drain", "-c", str(config))
        assert (off.code, "it cannot be drained" in off.err) == (1, True)
        write(config)
        wrong = await run("drain", "-c", str(config))
        assert (wrong.code, "give a certificate in PEM" in wrong.err) == (1, True)


async def test_members_with_addresses_roles_and_progress(tmp_path: Path) -> None:
    async with operated(tmp_path) as cluster:
        leader = await cluster.elected()
        assert (await http(cluster.admin_ports[0], "/v1/kv/N/k", "PUT", b"v")).status == 200
        await lists_become(cluster, {node.listen_address for node in cluster.nodes})
        done = await run("members", "list", "-a", cluster.admin, "--json")
        assert done.code == 0, done
        told = json.loads(done.out)
        assert (told["nodeId"], told["leader"]) == (leader.settings.node_id, leader.settings.node_id)
        assert [row["nodeId"] for row in told["members"]] == ["n1", "n2", "n3"]
        assert sorted(row["role"] for row in told["members"]) == ["leader", "voter", "voter"]
        for row, node in zip(told["members"], cluster.nodes, strict=True):
            assert row["address"] == node.listen_address
            assert f"{row['nodeId']}={row['peerAddress']}" in node.settings.peers
            assert (row["serves"], row["drained"]) == (True, False)
            assert row["matchIndex"] > 0
        follower = next(port for node, port in zip(cluster.nodes, cluster.admin_ports, strict=True) if node is not leader)
        table = await run("members", "list", "-a", f"127.0.0.1:{follower}")
        assert (table.code, "did not answer" in table.out) == (0, False), "the leader has told the others where its admin port is"
        assert leader.admin is not None
        await leader.admin.stop()
        table = await run("members", "list", "-a", f"127.0.0.1:{follower}")
        assert table.code == 0, table
        assert f"the leader {leader.settings.node_id} did not answer" in table.out


async def test_a_node_that_knows_no_other_yet_waits_for_an_address_message(tmp_path: Path) -> None:
    async with operated(tmp_path) as cluster:
        addresses = {node.listen_address for node in cluster.nodes}
        await lists_become(cluster, addresses)
        node = cluster.nodes[0]
        assert isinstance(node.service, ReplicatedNode)
        node.service._addresses._known.clear()  # as after a restart
        done = await run("drain", "-a", f"127.0.0.1:{cluster.admin_ports[0]}", "--within", WITHIN_S, "--json")
        assert done.code == 0, done
        assert set(json.loads(done.out)["othersServing"]) & (addresses - {node.listen_address})


async def test_the_only_node_is_not_drained_by_mistake(tmp_path: Path) -> None:
    async with operated(tmp_path, 1) as cluster:
        refused = await run("drain", "-a", cluster.admin)
        assert refused.code == 1
        assert "no other node of the cluster serves" in refused.err
        assert cluster.nodes[0].remoting.is_listening
        assert (await run("drain", "-a", cluster.admin, "--force", "--within", "1")).code == 0
        assert not cluster.nodes[0].remoting.is_listening
        assert await lists(cluster) == [{cluster.nodes[0].listen_address}], "an empty list helps nobody"


async def test_a_drained_node_does_not_become_leader_by_the_drain_of_another(tmp_path: Path) -> None:
    """A drained node will be restarted soon. Among equal logs, a transfer without a target chooses the last name, here n3."""
    async with operated(tmp_path) as cluster:
        await lists_become(cluster, {node.listen_address for node in cluster.nodes})
        if (await cluster.elected()) is cluster.named("n3"):
            moved = await run("leader", "transfer", "n1", "-a", cluster.admin)
            assert moved.code == 0, moved
        leader = await cluster.elected()
        other = next(node for node in cluster.nodes if node not in (leader, cluster.named("n3")))
        for node in (cluster.named("n3"), leader):
            port = cluster.admin_ports[cluster.nodes.index(node)]
            done = await run("drain", "-a", f"127.0.0.1:{port}", "--within", "1")
            assert done.code == 0, done
        assert (await cluster.elected()) is other


async def test_nodes_that_are_drained_at_the_same_time_continue_to_serve(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with operated(tmp_path) as cluster:
        await lists_become(cluster, {node.listen_address for node in cluster.nodes})
        drains = [run("drain", "-a", f"127.0.0.1:{port}", "--within", "1") for port in cluster.admin_ports]
        done = await asyncio.gather(*drains)
        assert any(node.remoting.is_listening for node in cluster.nodes), done
        assert any(each.code for each in done), done
        said = "".join(each.err for each in done) + capsys.readouterr().err  # commands that run at the same time share stderr
        assert "are being drained, too; drain one node after the other" in said, done


async def test_a_drain_that_another_one_or_undo_ends_says_so(tmp_path: Path) -> None:
    async with operated(tmp_path, 1) as cluster:
        node = cluster.nodes[0]
        for *ends, serves in (["--undo", True], ["--force", "--within", "1", False]):
            long = asyncio.ensure_future(run("drain", "-a", cluster.admin, "--force", "--within", "20"))
            await until(lambda: node.is_drained, "the drain")
            assert (await run("drain", "-a", cluster.admin, *map(str, ends))).code == 0
            ended = await long
            assert ended.code == 1, ended
            assert "this drain was ended by a later drain, or by 'namesrv drain --undo'" in ended.err
            assert node.remoting.is_listening is serves


async def test_a_drain_that_is_undone_while_leadership_is_transferred_closes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with operated(tmp_path) as cluster:
        leader = await cluster.elected()
        begun, goes_on = asyncio.Event(), asyncio.Event()
        transfer = leader.service.transfer_leadership

        async def slowly(to: str | None) -> None:
            begun.set()
            await goes_on.wait()
            await transfer(to)

        # a transfer takes long if the successor lags or answers late, which cannot be arranged at a certain moment
        monkeypatch.setattr(leader.service, "transfer_leadership", slowly)
        admin = f"127.0.0.1:{cluster.admin_ports[cluster.nodes.index(leader)]}"
        drain = asyncio.ensure_future(run("drain", "-a", admin, "--within", "1"))
        await begun.wait()
        assert (await run("drain", "--undo", "-a", admin)).code == 0
        goes_on.set()
        assert (await drain).code == 1
        assert leader.remoting.is_listening


async def test_an_independent_node_is_drained_and_has_no_members(tmp_path: Path) -> None:
    async with operated(tmp_path, 1, "ap", nameServerAddresses="127.0.0.1:1") as nodes:
        done = await run("drain", "-a", nodes.admin, "--within", "1")
        assert done.code == 0, done
        assert not nodes.nodes[0].remoting.is_listening
        refused = await run("members", "list", "-a", nodes.admin)
        assert refused.code == 1
        assert "independent node" in refused.err
    assert (await run("drain", "-a", "127.0.0.1:1;127.0.0.1:2")).code == 2


async def test_a_list_has_the_nodes_of_the_zone_until_none_of_them_serves(tmp_path: Path) -> None:
    async with operated(tmp_path, 3, zones=("east", "west", "west"), zoneAwareAddresses="true") as cluster:
        east, *west = (node.listen_address for node in cluster.nodes)

        async def become(*wanted: set[str]) -> None:
            async def look() -> bool:
                return await lists(cluster) == list(wanted)

            await eventually(look, f"the address lists {wanted}")

        await become({east}, set(west), set(west))

        async def zones_are_shown() -> bool:
            shown = await run("members", "list", "-a", cluster.admin, "--json")
            zones = {row["nodeId"]: row["zone"] for row in json.loads(shown.out)["members"]}
            return zones == {"n1": "east", "n2": "west", "n3": "west"}

        await eventually(zones_are_shown, "the zones of the members")
        assert re.search(r"n1 +\w+ +east ", (await run("members", "list", "-a", cluster.admin)).out)
        assert (await run("drain", "-a", f"127.0.0.1:{cluster.admin_ports[0]}", "--within", "1")).code == 0
        await become(set(west), set(west), set(west))


def node(name: str, *, serves: bool = True, zone: str = "") -> NodeAddress:
    return NodeAddress(name, f"{name}:9876", serves, False, zone)


@pytest.mark.parametrize(
    ("configured", "knows", "zone", "wanted"),
    [
        ("", True, "east", ["a:9876"]),
        ("", True, "west", ["c:9876"]),
        ("", True, "south", ["a:9876", "c:9876"]),
        ("", False, "east", ["a:9876", "b:9876", "c:9876"]),
        ("a:9876;c:9876", True, "east", ["a:9876", "c:9876"]),
    ],
)
def test_zones_in_an_address_list(configured: str, knows: bool, zone: str, wanted: list[str]) -> None:
    nodes = [node("a", zone="east"), node("b", serves=False, zone="west"), node("c", zone="west")]
    assert listed(configured, "a:9876", nodes, knows, zone) == wanted


def test_a_message_of_another_node_has_its_zone_and_a_limit() -> None:
    sent: list[bytes] = []
    here, there = (NodeAddresses(name, ("n1", "n2"), lambda peer, data: sent.append(data), lambda: 0.0) for name in ("n1", "n2"))
    there.own = lambda: NodeAddress("n2", "10.0.0.2:9876", serves=True, drained=False, zone="west", admin="10.0.0.2:9886")
    there.tick()
    assert here.received("n1", b"x") is False
    assert here.received("n2", sent[0])
    assert here.all()[1] == there.own()
    assert here.received("n2", sent[0] + b"w" * 300), "it is dropped"
    assert here.all()[1] == there.own()


@pytest.mark.parametrize(
    ("configured", "knows", "wanted"),
    [
        ("", False, ["a:9876", "b:9876"]),
        ("", True, ["a:9876"]),
        ("a:9876;b:9876;java:9876", False, ["a:9876", "b:9876", "java:9876"]),
        ("a:9876;b:9876;java:9876", True, ["a:9876", "java:9876"]),
        ("b:9876", True, ["b:9876"]),
    ],
)
def test_address_list_by_rows(configured: str, knows: bool, wanted: list[str]) -> None:
    assert listed(configured, "a:9876", [node("a"), node("b", serves=False)], knows) == wanted

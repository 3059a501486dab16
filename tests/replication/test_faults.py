"""Under all faults of nodes, links and disks of three processes, acknowledged writes stay and the nodes never disagree."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from replicated_namesrv.client.broker import BrokerAgent
from replicated_namesrv.client.remoting import RemotingClient
from tests.support.replicated_processes import ReplicatedProcesses, eventually, replicated_processes
from tests.support.replicated_traffic import agent, members_everywhere, traffic

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ReplicatedProcesses]:
    """Three nodes; each test repairs what it broke."""
    async with replicated_processes(tmp_path_factory.mktemp("cluster")) as processes:
        yield processes


async def strike(cluster: ReplicatedProcesses, fault: str, name: str) -> None:
    """Inject ``fault`` into a node."""
    match fault:
        case "killed":
            await cluster.kill(name)
        case "paused":
            cluster.pause(name)
        case "cut off":
            cluster.cut(name)
        case "full disk":
            cluster.fill_disk(name)


async def refuses(cluster: ReplicatedProcesses, name: str) -> bool:
    """Whether the node listens no longer."""
    try:
        _, writer = await asyncio.open_connection(*cluster.nodes[name].plan.listen)
    except ConnectionRefusedError:
        return True
    writer.close()
    return False


@pytest.mark.parametrize("fault", ["killed", "paused", "cut off", "full disk"])
@pytest.mark.parametrize("which", ["leader", "first follower", "second follower"])
async def test_one_node(cluster: ReplicatedProcesses, which: str, fault: str) -> None:
    async with traffic(cluster) as it:
        leader = await cluster.leader()
        name = leader if which == "leader" else cluster.others(leader)[which == "second follower"]
        await it.kill_ghost()
        await strike(cluster, fault, name)
        if fault == "full disk":
            assert await cluster.ended(name) != 0
        await cluster.leader(cluster.others(name))
        await it.progress()
        if fault == "cut off":
            await eventually(lambda: refuses(cluster, name), f"{name} fences itself")


async def test_two_of_three_killed(cluster: ReplicatedProcesses) -> None:
    async with traffic(cluster) as it:
        survivor = cluster.names[0]
        it.outage_expected = True
        await it.kill_ghost()
        await cluster.kill(*cluster.others(survivor))
        await eventually(lambda: refuses(cluster, survivor), "the survivor fences itself")
        status = await cluster.status(survivor)
        assert status["fenced"]
        acknowledged = len(it.written), len(it.registered)
        for name in cluster.others(survivor):
            assert (len(it.written), len(it.registered)) == acknowledged, "a single node of three acknowledged something"
            await cluster.start_node(name)
        await cluster.all_serve()
        await it.progress(0)
        it.outage_expected = False


async def test_all_killed_and_mass_reregistration(cluster: ReplicatedProcesses) -> None:
    """No registration is lost, so brokers that return all at once are still registered, and nothing changes."""
    brokers = [agent(f"mass-{number}", cluster.addresses, register_period_ms=3_000) for number in range(60)]
    client = RemotingClient()
    try:
        async with traffic(cluster) as it:
            await asyncio.gather(*(broker.start() for broker in brokers))
            await members_everywhere(client, cluster, "mass-59", {0: brokers[-1].identity.broker_addr})
            epochs = await mass_epochs(cluster, cluster.names[0])
            assert len(epochs) == 60
            it.outage_expected = True
            await it.kill_ghost()
            await cluster.kill(*cluster.names)
            await cluster.restore()
            it.outage_expected = False
            await eventually(lambda: all_registered(brokers, cluster), "every broker has registered anew")
            for name in cluster.names:
                assert await mass_epochs(cluster, name) == epochs
    finally:
        await asyncio.gather(*(broker.kill() for broker in brokers))
        await client.close()


async def mass_epochs(cluster: ReplicatedProcesses, name: str) -> dict[str, int]:
    """The epochs that a node has of the brokers of the mass registration."""
    rows = (await cluster.admin(name, "/v1/brokers?limit=1000"))["brokers"]
    return {row["brokerAddr"]: row["epoch"] for row in rows if row["brokerName"].startswith("mass-")}


async def all_registered(brokers: list[BrokerAgent], cluster: ReplicatedProcesses) -> bool:
    """Whether every node has answered every broker's last registration."""
    return all(broker.registered == set(cluster.addresses) for broker in brokers)


@pytest.mark.parametrize("which", ["leader", "follower"])
async def test_lost_disk(cluster: ReplicatedProcesses, which: str) -> None:
    async with traffic(cluster) as it:
        leader = await cluster.leader()
        name = leader if which == "leader" else cluster.others(leader)[0]
        await it.kill_ghost()
        await cluster.kill(name)
        cluster.lose_disk(name)
        await cluster.start_node(name)
        await cluster.all_serve()

        async def votes_again() -> bool:
            found = await cluster.status(await cluster.leader(cluster.others(name)))
            return bool(found["raft"]["followers"][name]["votes"])

        await eventually(votes_again, f"{name} votes again")
        other = next(peer for peer in cluster.others(name) if peer != leader)
        await cluster.kill(other)  # from now on no entry commits without the node that had lost its disk
        await it.progress()


async def test_wrong_secret(cluster: ReplicatedProcesses) -> None:
    async with traffic(cluster) as it:
        name = cluster.others(await cluster.leader())[0]
        await it.kill_ghost()
        await cluster.kill(name)
        cluster.write_secret(name, "a secret that nobody else has")
        await cluster.start_node(name)

        async def is_refused() -> bool:
            statuses = [await cluster.status(peer) for peer in cluster.others(name)]
            return all(status["raft"]["transport"]["refused"] for status in statuses)

        try:
            await eventually(is_refused, "the others refuse the stranger")
            await it.progress()
            assert await refuses(cluster, name), "a node that has not caught up serves nobody"
            assert (await cluster.status(name))["role"] != "leader"
        finally:
            await cluster.kill(name)
            cluster.write_secret(name, cluster.secret)

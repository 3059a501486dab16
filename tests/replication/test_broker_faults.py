"""Brokers that are cut off, move, change roles, or whose last requests arrive late, with three name server processes."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from replicated_namesrv.client.broker_requests import BrokerIdentity, BrokerVersion, unregister_request
from replicated_namesrv.client.remoting import RemotingClient
from replicated_namesrv.errors import NamesrvError
from replicated_namesrv.model import DataVersion
from tests.support.relay import Relay
from tests.support.replicated_processes import ReplicatedProcesses, replicated_processes
from tests.support.replicated_traffic import (
    CLUSTER,
    LONG_TIMEOUT_MS,
    agent,
    members,
    members_everywhere,
    now_ms,
    registration,
    traffic,
)

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
TIMEOUT_MS = 6_000
"""Time-out of the brokers whose removal is tested; they renew twice a second."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ReplicatedProcesses]:
    """Three nodes; each test repairs what it broke."""
    async with replicated_processes(tmp_path_factory.mktemp("cluster")) as processes:
        yield processes


@pytest_asyncio.fixture(loop_scope="module")
async def links(cluster: ReplicatedProcesses) -> AsyncIterator[list[dict[str, Relay]]]:
    """Three sets of links to the nodes, by node."""
    made = [{name: await Relay(cluster.nodes[name].plan.listen).start() for name in cluster.names} for _ in range(3)]
    yield made
    for link in made:
        for relay in link.values():
            await relay.close()


class Onlooker:
    """Looks at routes through every node, again and again: brokers that are cut off from one node must never be missing."""

    def __init__(self, cluster: ReplicatedProcesses, wanted: dict[str, dict[int, str]]) -> None:
        self._cluster, self._wanted = cluster, wanted
        self.looks = 0
        self.missed: list[str] = []

    async def run(self) -> None:
        """Look repeatedly until cancelled. A node without an answer does not count. After this process has stalled, routes do not
        count either, because its brokers were silent."""
        async with contextlib.AsyncExitStack() as stack:
            client = RemotingClient()
            stack.push_async_callback(client.abort)
            ran = time.monotonic()
            while True:
                ran, before = time.monotonic(), ran
                if ran - before > TIMEOUT_MS / 2000:
                    return
                for name, want in self._wanted.items():
                    for address in self._cluster.addresses:
                        with contextlib.suppress(NamesrvError):
                            found = await members(client, address, name)
                            self.looks += 1
                            if found != want:
                                self.missed.append(f"{name} is {found} at {address}")
                await asyncio.sleep(0.02)


async def test_brokers_cut_off(cluster: ReplicatedProcesses, links: list[dict[str, Relay]]) -> None:
    """A broker is cut off from a follower, another one from the leader: no route changes. A third broker is cut off from all
    nodes: it is removed and returns."""
    names = ["cut-from-follower", "cut-from-leader", "cut-from-all"]
    options: dict[str, Any] = {"register_period_ms": 500, "heartbeat_timeout_ms": TIMEOUT_MS}
    brokers = [
        agent(name, [link[node].address for node in cluster.names], **options) for name, link in zip(names, links, strict=True)
    ]
    client = RemotingClient()
    try:
        async with traffic(cluster) as it:
            await asyncio.gather(*(broker.start() for broker in brokers))
            want = {name: {0: broker.identity.broker_addr} for name, broker in zip(names, brokers, strict=True)}
            for name in names:
                await members_everywhere(client, cluster, name, want[name])
            onlooker = Onlooker(cluster, {name: want[name] for name in names[:2]})
            looking = asyncio.create_task(onlooker.run())
            leader = await cluster.leader()
            links[0][cluster.others(leader)[0]].hold()
            links[1][leader].hold()
            for relay in links[2].values():
                relay.hold()
            await it.kill_ghost()
            await members_everywhere(client, cluster, "cut-from-all", {})
            for name in names[:2]:
                await members_everywhere(client, cluster, name, want[name])
            assert it.looked_up
            for link in links:
                for relay in link.values():
                    relay.release()
            for name in names:
                await members_everywhere(client, cluster, name, want[name])
            looking.cancel()
            await asyncio.wait((looking,))
            assert onlooker.missed == []
            assert onlooker.looks
    finally:
        await asyncio.gather(*(broker.kill() for broker in brokers))
        await client.close()


async def test_new_address(cluster: ReplicatedProcesses) -> None:
    """A broker is killed and starts elsewhere under its name: from then on routes show only the new address."""
    old, new = agent("moving", cluster.addresses), agent("moving", cluster.addresses)
    client = RemotingClient()
    try:
        async with traffic(cluster) as it:
            await old.start()
            await members_everywhere(client, cluster, "moving", {0: old.identity.broker_addr})
            it.watch.dead.add(old.identity.broker_addr)
            await asyncio.gather(old.kill(), cluster.kill(await cluster.leader()))
            await new.start()
            await cluster.restore()
            await members_everywhere(client, cluster, "moving", {0: new.identity.broker_addr})
            await it.kill_ghost()
    finally:
        await new.kill()
        await client.close()


@pytest.mark.parametrize("version", list(BrokerVersion))
async def test_slave_becomes_master_during_an_election(cluster: ReplicatedProcesses, version: BrokerVersion) -> None:
    """4.9 reports this by a oneway registration, which cannot be refused or redirected."""
    group = f"group-{version.name}"
    master, slave = (agent(group, cluster.addresses, i, version=version, register_period_ms=60_000) for i in (0, 1))
    client = RemotingClient()
    try:
        async with traffic(cluster) as it:
            await master.start()
            await slave.start()
            addresses = {0: master.identity.broker_addr, 1: slave.identity.broker_addr}
            await members_everywhere(client, cluster, group, addresses)
            it.watch.dead.add(master.identity.broker_addr)
            await it.kill_ghost()
            leader = await cluster.leader()
            await asyncio.gather(master.kill(), cluster.kill(leader), slave.switch_role(0))
            await cluster.leader(cluster.others(leader))
            await cluster.restore()
            await members_everywhere(client, cluster, group, {0: slave.identity.broker_addr})
    finally:
        await slave.kill()
        await client.close()


async def test_stale_unregistration(cluster: ReplicatedProcesses, links: list[dict[str, Relay]]) -> None:
    """A broker unregisters from every node and is started again. One of its unregistrations arrives only after the start."""
    first, second = RemotingClient(), RemotingClient()
    identity = BrokerIdentity(CLUSTER, "returning", 0, "10.9.9.9:10911", "10.1.1.1:10912")
    want = {0: identity.broker_addr}
    slow, *rest = cluster.names
    goodbye = unregister_request(identity, BrokerVersion.V5_3)
    try:
        async with traffic(cluster) as it:
            await it.kill_ghost()
            register = registration(identity, DataVersion(1, 0, now_ms()), LONG_TIMEOUT_MS)
            for name in cluster.names:
                assert (await first.request(links[0][name].address, register)).code == 0
            await members_everywhere(second, cluster, "returning", want)
            links[0][slow].hold()
            late = asyncio.ensure_future(first.request(links[0][slow].address, goodbye, 60_000))
            for name in rest:
                assert (await first.request(links[0][name].address, goodbye)).code == 0
            await members_everywhere(second, cluster, "returning", {})
            again = registration(identity, DataVersion(2, 0, now_ms()), LONG_TIMEOUT_MS)
            for name in cluster.names:
                assert (await second.request(cluster.address(name), again)).code == 0
            await members_everywhere(second, cluster, "returning", want)
            links[0][slow].release()
            assert (await late).code == 0
            assert [await members(second, address, "returning") for address in cluster.addresses] == [want] * 3
    finally:
        await first.close()
        await second.close()


async def test_unregistration_through_another_node(cluster: ReplicatedProcesses) -> None:
    """The broker unregisters at another node over a connection that registered nothing: after the answer no route shows it."""
    client = RemotingClient()
    goodbyes = RemotingClient()
    try:
        async with traffic(cluster):
            for life in range(1, 21):
                identity = BrokerIdentity(CLUSTER, f"life-{life}", 0, f"10.8.8.{life}:10911", "10.1.1.1:10912")
                register = registration(identity, DataVersion(life, 0, now_ms()), LONG_TIMEOUT_MS)
                address = cluster.addresses[life % 3]
                assert (await client.request(address, register)).code == 0
                goodbye = unregister_request(identity, BrokerVersion.V5_3)
                assert (await goodbyes.request(cluster.addresses[(life + 1) % 3], goodbye)).code == 0
                assert await members(client, cluster.addresses[(life + 2) % 3], identity.broker_name) == {}
    finally:
        await client.close()
        await goodbyes.close()

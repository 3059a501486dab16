"""Three real processes of an earlier version are replaced one by one by this version: does a broker lose its registration?

``python -m tests.replication.upgrade --old FOLDER [--order leader-first]``; FOLDER is a checkout of the earlier version. Living
brokers register all the time, others have registered once. Every node is asked for its brokers again and again. At each stage one
broker dies, and has to be removed. At the end the nodes record silence."""

import argparse
import asyncio
import contextlib
import dataclasses
import sys
import tempfile
from pathlib import Path
from typing import Any

from replicated_namesrv import __version__
from replicated_namesrv.cli.children import NodePlan, PlannedNode
from replicated_namesrv.client.broker import BrokerAgent
from replicated_namesrv.client.broker_requests import BrokerIdentity
from replicated_namesrv.client.remoting import RemotingClient
from replicated_namesrv.model import DataVersion
from tests.replication.large_state import OtherVersion
from tests.support.replicated_processes import ReplicatedProcesses, eventually
from tests.support.replicated_traffic import CLUSTER, LONG_TIMEOUT_MS, agent, now_ms, registration

TIMEOUT_MS = 6_000
LIVING, ONCE = 6, 4
LOOKS = 500
"""Number of looks at each node, 50 ms apart: together longer than a time-out."""


class Onlooker:
    """Asks the nodes for their brokers."""

    def __init__(self, cluster: ReplicatedProcesses, wanted: set[str]) -> None:
        self._cluster, self.wanted = cluster, wanted
        self.looks = 0
        self.missed: list[str] = []

    async def shown(self, name: str) -> set[str]:
        """Addresses that a node shows."""
        found = await self._cluster.admin(name, "/v1/brokers?limit=1000")
        return {row["brokerAddr"] for row in found["brokers"]}

    async def look(self, times: int) -> None:
        """Returns after so many more looks."""
        least = self.looks + times

        async def have_looked() -> bool:
            return self.looks >= least

        await eventually(have_looked, f"{times} looks", 120)

    async def run(self, name: str) -> None:
        """Look repeatedly until cancelled. A node that does not answer is being replaced."""
        while True:
            with contextlib.suppress(OSError, ValueError, LookupError, EOFError):
                missing = self.wanted - await self.shown(name)
                self.looks += 1
                if missing:
                    self.missed.append(f"{name} does not show {sorted(missing)}")
            await asyncio.sleep(0.05)


async def replace(cluster: ReplicatedProcesses, name: str) -> None:
    """Stop a node cleanly, and start this version on its data."""
    plan = cluster.nodes[name].plan
    cluster.nodes[name].terminate()
    assert await cluster.ended(name) == 0, f"{name} did not stop in order"
    cluster.nodes[name] = PlannedNode(NodePlan(*(getattr(plan, field.name) for field in dataclasses.fields(NodePlan))))
    await cluster.start_node(name)
    await cluster.nodes[name].wait_serving(120)


async def die(cluster: ReplicatedProcesses, onlooker: Onlooker, broker: BrokerAgent) -> float:
    """Kill a broker. Returns the number of seconds until no node shows the broker."""
    address = broker.identity.broker_addr
    onlooker.wanted.discard(address)
    await broker.kill()
    began = asyncio.get_running_loop().time()

    async def is_gone() -> bool:
        return not any([address in await onlooker.shown(name) for name in cluster.names])

    await eventually(is_gone, f"{address} gone", 60)
    return asyncio.get_running_loop().time() - began


async def run(old: Path, order_of_leader: str, folder: Path) -> list[str]:
    """Run the whole schedule. Returns each time that a node did not show a living broker. ``old``: checkout of the earlier
    version. ``order_of_leader``: leader-first or leader-last."""
    cluster = ReplicatedProcesses(folder, 3)
    OtherVersion.checkout, cluster.plan_kind = str(old), OtherVersion
    options: dict[str, Any] = {"register_period_ms": 1_500, "heartbeat_timeout_ms": TIMEOUT_MS}
    brokers: list[BrokerAgent] = []
    client, looking = RemotingClient(), []
    try:
        await cluster.start()
        versions = {(await cluster.admin(name, "/v1/status"))["version"] for name in cluster.names}
        assert __version__ not in versions, f"the nodes run {versions}, so there is nothing to upgrade"
        brokers = [agent(f"living-{number}", cluster.addresses, **options) for number in range(LIVING)]
        await asyncio.gather(*(broker.start() for broker in brokers))
        once = [BrokerIdentity(CLUSTER, f"once-{n}", 0, f"10.9.9.{n}:10911", "10.1.1.1:10912") for n in range(ONCE)]
        for number, identity in enumerate(once):
            register = registration(identity, DataVersion(1, 0, now_ms()), LONG_TIMEOUT_MS)
            assert (await client.request(cluster.addresses[number % 3], register)).code == 0
        onlooker = Onlooker(cluster, {broker.identity.broker_addr for broker in brokers} | {one.broker_addr for one in once})

        async def is_everybody_shown() -> bool:
            return all([onlooker.wanted <= await onlooker.shown(name) for name in cluster.names])

        await eventually(is_everybody_shown, "all brokers everywhere")
        looking = [asyncio.ensure_future(onlooker.run(name)) for name in cluster.names]
        order = list(cluster.names)
        leader = await cluster.leader()
        order.remove(leader)
        order.insert(0 if order_of_leader == "leader-first" else 2, leader)
        for name in order:
            await replace(cluster, name)
            print(f"{name} is of this version, {await cluster.leader()} leads")
            await onlooker.look(LOOKS)
            print(f"  a dead broker was gone after {await die(cluster, onlooker, brokers.pop()):.1f} s; {onlooker.missed[:3]}")

        async def is_recorded() -> bool:
            status = [await cluster.status(name) for name in cluster.names]
            return all(one["raft"]["command_version_of_all"] >= 2 for one in status)

        await eventually(is_recorded, "the newer command version")
        await onlooker.look(LOOKS)
        await cluster.agree()
        print(f"{onlooker.looks} looks, {len(onlooker.missed)} misses: {onlooker.missed[:3]}")
        return onlooker.missed
    finally:
        for task in looking:
            task.cancel()
        await asyncio.gather(*(broker.kill() for broker in brokers))
        await client.close()
        await cluster.close()


def main() -> int:
    """Arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--old", required=True, help="checkout of an earlier version")
    parser.add_argument("--order", choices=("leader-first", "leader-last"), default="leader-last")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return min(len(asyncio.run(run(Path(arguments.old), arguments.order, Path(folder)))), 99)


if __name__ == "__main__":
    sys.exit(main())

"""Checks on three real processes that a KV config larger than one block of a snapshot is complete after restarts.

``python -m tests.replication.large_state --puts 13000 --keys 4900 --value-bytes 20000`` fills one namespace through all nodes,
restarts one node, then kills and restarts all of them, and compares their content with what was acknowledged. With ``--old
FOLDER``, a checkout of an earlier version, that version fills the data directories and this one is started on them; with
``--only-old`` that version has to open them itself. ``--empty-disk`` deletes the disk of one node before the end: it has to get
the state from the others.
"""

import argparse
import asyncio
import dataclasses
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from replicated_namesrv.child_process import ProcessError
from replicated_namesrv.cli.children import NodePlan, PlannedNode
from replicated_namesrv.client.queries import get_kv_request, put_kv_request, read_done, read_kv
from replicated_namesrv.client.remoting import RemotingClient
from replicated_namesrv.errors import NamesrvError
from tests.support.replicated_processes import ReplicatedProcesses, eventually

NAMESPACE = "LARGE"
CLIENTS = 12
TIMEOUT_MS = 15_000
ATTEMPTS_MAX = 50


_PROGRAM = "import sys, runpy; sys.path.insert(0, {!r}); runpy.run_module('replicated_namesrv', run_name='__main__')"


class OtherVersion(NodePlan):
    """The same node, run from another checkout."""

    checkout: ClassVar[str] = ""

    def command(self) -> list[str]:
        """The command line that runs this node."""
        python, _, _, *options = super().command()
        return [python, "-c", _PROGRAM.format(self.checkout), *options]


def run_as(cluster: ReplicatedProcesses, kind: type[NodePlan]) -> None:
    """Nodes that are started from now on run that version."""
    for name, node in cluster.nodes.items():
        plan = node.plan
        cluster.nodes[name] = PlannedNode(kind(*(getattr(plan, field.name) for field in dataclasses.fields(NodePlan))))


def value_of(number: int, size: int) -> str:
    """Text of ``size`` characters with the number of its put."""
    return f"{number:09d}".ljust(size, "x")


async def fill(addresses: Sequence[str], puts: int, keys: int, size: int) -> dict[str, set[int]]:
    """Put entries through all nodes; for each key the numbers that may be stored: the last acknowledged, and later ones of
    unknown outcome."""
    possible: dict[str, set[int]] = {f"key-{key:05d}": set() for key in range(keys)}
    locks = {key: asyncio.Lock() for key in possible}
    numbers = iter(range(puts))
    refused: dict[str, int] = {}

    async def put(position: int) -> None:
        client = RemotingClient()
        try:
            for number in numbers:
                key = f"key-{number % keys:05d}"
                async with locks[key]:
                    attempt, is_done = 0, False
                    while not is_done and attempt < ATTEMPTS_MAX:
                        address = addresses[(position + attempt) % len(addresses)]
                        request = put_kv_request(NAMESPACE, key, value_of(number, size))
                        try:
                            read_done(await client.request(address, request, TIMEOUT_MS))
                            possible[key], is_done = {number}, True
                        except NamesrvError as error:
                            if not error.definite:
                                possible[key].add(number)
                            why = f"{type(error).__name__}: {str(error)[:90]}"
                            refused[why] = refused.get(why, 0) + 1
                            attempt += 1
                            await asyncio.sleep(0.2)
        finally:
            await client.close()

    await asyncio.gather(*(put(position) for position in range(CLIENTS)))
    for why, count in sorted(refused.items()):
        print(f"  {count} times {why}")
    return possible


async def lost(address: str, possible: dict[str, set[int]], size: int) -> list[str]:
    """Keys whose acknowledged value the node does not have."""
    client = RemotingClient()
    missing = []
    try:
        for key, numbers in possible.items():
            value = read_kv(await client.request(address, get_kv_request(NAMESPACE, key), TIMEOUT_MS))
            if numbers and (value is None or value not in {value_of(number, size) for number in numbers}):
                missing.append(key)
    finally:
        await client.close()
    return missing


async def terms(cluster: ReplicatedProcesses) -> int:
    """The newest term."""
    return max([int((await cluster.status(name))["term"]) for name in cluster.names])


async def run(arguments: argparse.Namespace, folder: Path) -> int:
    """Run the whole schedule. Returns how many acknowledged keys were lost, or how many nodes did not start."""
    cluster = ReplicatedProcesses(folder, 3, arguments.settings)
    cluster.plan_kind = OtherVersion if arguments.old else NodePlan
    try:
        await cluster.start()
        before, began = await terms(cluster), time.monotonic()
        possible = await fill(cluster.addresses, arguments.puts, arguments.keys, arguments.value_bytes)
        held = sum(map(bool, possible.values()))
        print(f"filled {held} keys in {time.monotonic() - began:.0f} s, term {before} to {await terms(cluster)}")
        largest = 0
        for name in cluster.names:
            raft = (await cluster.status(name))["raft"]
            largest = max(largest, raft["snapshot_bytes"])
            print(f"  {name}: snapshots taken {raft['snapshots_taken']}, of {raft['snapshot_bytes']} bytes at the last")
        if largest < arguments.snapshot_bytes:
            raise AssertionError(f"the largest snapshot has {largest} bytes, not {arguments.snapshot_bytes}: put more entries")
        await cluster.kill(*cluster.names)
        if not arguments.only_old:
            run_as(cluster, NodePlan)
        began, failed = time.monotonic(), 0
        for name in cluster.names:
            await cluster.start_node(name)
        for name in cluster.names:
            try:
                await cluster.nodes[name].wait_serving(120)
            except ProcessError as error:
                failed += 1
                print(f"  {name} does not start: {error}; {cluster.nodes[name].last_lines(1)}")
        print(f"all killed and started again: {failed} of 3 failed, {time.monotonic() - began:.1f} s")
        if failed:
            return failed
        missing = [len(await lost(address, possible, arguments.value_bytes)) for address in cluster.addresses]
        print(f"lost: {missing} of {held} keys")
        if arguments.empty_disk:
            name = cluster.others(await cluster.leader())[0]
            await cluster.kill(name)
            cluster.lose_disk(name)
            began = time.monotonic()
            await cluster.start_node(name)
            await cluster.nodes[name].wait_serving(120)

            async def votes() -> bool:
                return bool((await cluster.status(name))["role"] == "follower")

            await eventually(votes, f"{name} is a voter again")
            missing.append(len(await lost(cluster.address(name), possible, arguments.value_bytes)))
            print(f"{name} came back with an empty disk in {time.monotonic() - began:.1f} s, lost: {missing[-1]}")
        await cluster.agree()
        return sum(missing)
    finally:
        await cluster.close()


def main() -> int:
    """Arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--puts", type=int, default=13_000)
    parser.add_argument("--keys", type=int, default=4_900)
    parser.add_argument("--value-bytes", type=int, default=20_000)
    parser.add_argument("--snapshot-bytes", type=int, default=0, help="fail if no node has taken a snapshot of this size")
    parser.add_argument("--old", help="checkout of an earlier version")
    parser.add_argument("--only-old", action="store_true")
    parser.add_argument("--empty-disk", action="store_true")
    parser.add_argument("--set", dest="settings", action="append", default=[])
    arguments = parser.parse_args()
    OtherVersion.checkout = arguments.old
    with tempfile.TemporaryDirectory() as folder:
        return min(asyncio.run(run(arguments, Path(folder))), 99)


if __name__ == "__main__":
    sys.exit(main())

"""Brokers with as many topics as allowed, on three real processes: does a command on all topics change the term?

``python -m tests.replication.large_brokers --topics 60000 --repeat 3`` registers two brokers with the same topics at all nodes,
and static topic mappings. It sends 8 times code 205 and 8 times code 327 at once and registers all topics with other queues. It
removes one broker by code 104, and the other by closing its connections. It prints the term after each step. With ``--old
FOLDER``, a checkout of an earlier version, that version takes the registrations, and this one is started on its data directories.
With ``--largest``, the cluster first restores the largest state that the limits allow (benchmarks/state.py; 10 GiB of memory). It
then has 20,000 more brokers, and these expire after the last step, because nobody renews them.
"""

import argparse
import asyncio
import os
import struct
import sys
import tempfile
import time
import zlib
from collections.abc import Awaitable, Iterable, Sequence
from pathlib import Path

from benchmarks.state import State, removal
from replicated_namesrv.cli.children import NodePlan, host_port
from replicated_namesrv.client.broker_requests import BrokerIdentity, BrokerVersion, register_request, unregister_request
from replicated_namesrv.client.queries import (
    change_write_perm_request,
    delete_topic_request,
    put_kv_request,
    read_done,
    read_write_perm_count,
    update_config_request,
)
from replicated_namesrv.client.remoting import RemotingClient, RemotingCommand
from replicated_namesrv.errors import NamesrvError
from replicated_namesrv.model import TOPICS_MAX
from replicated_namesrv.routes.backup import encode as encode_backup
from replicated_namesrv.routes.quotas import MAPPINGS_MAX
from tests.replication.large_state import OtherVersion, run_as, terms
from tests.support.replicated_processes import ReplicatedProcesses, eventually

TIMEOUT_MS = 60_000
AT_ONCE = 8
CLUSTER = "C0"
HEARTBEAT_TIMEOUT_MS = 40_000
"""Soon after a slow answer, a closed connection is not evidence that a broker left. Then the broker is removed after this time,
which is less than the limit of ``eventually``."""
_MAPPING = '{"bname":"%s","currIdMap":{"0":0,"1":1},"dirty":false,"epoch":1,"scope":"__global__","topic":"%s","totalQueues":2}'


def body_of(name: str, topics: int, version: int, mapped: range = range(0)) -> bytes:
    """A compressed registration: ``version`` changes the queues of all topics."""
    pieces: list[int | bytes] = [b'{"counter":%d,"timestamp":%d}' % (version, version), topics]
    pieces += [b"topic-%07d 8 %d 6 SINGLE_TAG {}" % (number, 4 + version) for number in range(topics)]
    pieces += [b"[]", len(mapped), *[(_MAPPING % (name, f"topic-{number:07d}")).encode() for number in mapped]]
    return zlib.compress(b"".join([_piece(piece) for piece in pieces]), 1)


def _piece(piece: int | bytes) -> bytes:
    return struct.pack(">i", piece) if isinstance(piece, int) else struct.pack(">i", len(piece)) + piece


class Brokers:
    """Two brokers' requests to all nodes, and the next term."""

    def __init__(self, cluster: ReplicatedProcesses, topics: int, rest: int = 0) -> None:
        """``rest``: number of other brokers in the cluster."""
        self.cluster, self.topics, self.rest = cluster, topics, rest
        self.changes = 0
        """Steps during or after which the term changed."""
        self._last_term = 0
        self._clients = {name: RemotingClient() for name in ("big", "twin", "admin")}

    async def step(self, what: str, *work: Awaitable[object]) -> Sequence[object]:
        """Do all the work at once, and print the change of the term and the time taken."""
        before, began = await self._settled_term(), time.monotonic()
        done = await asyncio.gather(*work, return_exceptions=True)
        took, after = time.monotonic() - began, await self._settled_term()
        if self._last_term and before != self._last_term:
            print(f"  before this step: term {self._last_term} to {before}", flush=True)
            self.changes += 1
        self._last_term = after
        failed = [f"{type(one).__name__}: {one}" for one in done if isinstance(one, BaseException)]
        self.changes += after != before
        print(f"  {what:48} {took:6.2f} s, term {before} to {after}{'; ' + failed[0] if failed else ''}", flush=True)
        if unexpected := [one for one in done if isinstance(one, BaseException) and not isinstance(one, NamesrvError)]:
            raise unexpected[0]
        return done

    async def _settled_term(self) -> int:
        """The term, when all nodes serve and have applied the same entries."""
        await self.cluster.all_serve()
        await self.cluster.agree()
        return await terms(self.cluster)

    def _identity(self, name: str) -> BrokerIdentity:
        return BrokerIdentity(CLUSTER, name, 0, f"{name}:10911", "")

    async def register(self, what: str, name: str, version: int, mapped: range = range(0)) -> None:
        """Register at all nodes, as brokers do."""
        # the nodes' connections go through relays in this loop, which must not stall
        body = await asyncio.to_thread(body_of, name, self.topics, version, mapped)
        request = register_request(
            self._identity(name),
            BrokerVersion.V5_3,
            body,
            compressed=True,
            oneway=False,
            enable_acting_master=False,
            heartbeat_timeout_ms=HEARTBEAT_TIMEOUT_MS,
            zone_name=None,
        )

        async def at(address: str) -> None:
            read_done(await self._clients[name].request(address, request, TIMEOUT_MS))

        await self.step(what, *map(at, self.cluster.addresses))

    async def fill(self) -> None:
        """Both brokers, and mappings of the first."""
        await self.register(f"103 {self.topics} topics, first", "big", 1)
        await self.register("103 the same topics of another broker", "twin", 1)
        await self.register(f"103 {MAPPINGS_MAX} mappings", "big", 2, range(MAPPINGS_MAX))

    async def change(self) -> None:
        """Change the write permission of all topics, with several commands at once."""
        addresses = self.cluster.addresses
        for writable in (False, True):
            request = change_write_perm_request("big", writable=writable)

            async def at(position: int, request: object = request) -> int:
                asked = self._clients["admin"].request(addresses[position % len(addresses)], request, TIMEOUT_MS)  # type: ignore[arg-type]  # a default in a closure
                return read_write_perm_count(await asked)

            counts = await self.step(f"{AT_ONCE} x {205 if not writable else 327} at once", *map(at, range(AT_ONCE)))
            if wrong := {count for count in counts if isinstance(count, int)} - {self.topics}:
                print(f"  the broker has {wrong} topics: it was not registered, or expired", flush=True)

    async def remove(self) -> None:
        """By code 104 at all nodes, and by a loss of all connections."""
        request = unregister_request(self._identity("twin"), BrokerVersion.V5_3)

        async def at(address: str) -> None:
            read_done(await self._clients["admin"].request(address, request, TIMEOUT_MS))

        await self.step("104 of one broker", *map(at, self.cluster.addresses))
        await self.step("connections of the other are lost", self._lose("big"))

    async def _lose(self, name: str) -> None:
        await self._clients[name].abort()

        async def is_gone() -> bool:
            counts = [(await self.cluster.admin(node, "/v1/status"))["counts"] for node in self.cluster.names]
            return all(count["brokers"] <= self.rest and (self.rest or not count["topics"]) for count in counts)

        await eventually(is_gone, "nothing is left of the brokers")

    async def use_the_rest(self) -> None:
        """Commands on what other brokers and clients have stored, and the expiry of all other brokers."""
        address, client = self.cluster.addresses[0], self._clients["admin"]

        async def ask(request: RemotingCommand) -> None:
            read_done(await client.request(address, request, TIMEOUT_MS))

        await self.step("216 of a topic of all brokers", ask(delete_topic_request("common", None)))
        await self.step("100 of 1 MiB", ask(put_kv_request("keys", "key-0000001", "w" * (1 << 20))))
        await self.step("318", ask(update_config_request("orderMessageEnable=true")))
        self.rest = 0
        await self.step("all other brokers expire", self._expire())

    async def _expire(self) -> None:
        async def is_gone() -> bool:
            return not (await self.cluster.admin(self.cluster.names[0], "/v1/status"))["counts"]["brokers"]

        await eventually(is_gone, "all brokers have expired", 300)

    async def close(self) -> None:
        """End all connections."""
        for client in self._clients.values():
            await client.close()


async def run(arguments: argparse.Namespace, folder: Path) -> int:
    """Run one round. Returns the number of steps after which the term had changed."""
    cluster = ReplicatedProcesses(folder, 3, arguments.settings)
    cluster.plan_kind = OtherVersion if arguments.old else NodePlan
    print(f"{arguments.topics} topics, load average {os.getloadavg()[0]:.1f}", flush=True)
    brokers: Brokers | None = None
    try:
        await cluster.start()
        brokers = Brokers(cluster, arguments.topics, await restore(cluster, folder) if arguments.largest else 0)
        await brokers.fill()
        if arguments.old:
            await brokers.change()
            await cluster.kill(*cluster.names)
            run_as(cluster, NodePlan)
            for name in cluster.names:
                await cluster.start_node(name)
            await cluster.all_serve()
            counts = [(await cluster.admin(name, "/v1/status"))["counts"] for name in cluster.names]
            print(f"  this version serves {counts}", flush=True)
            brokers.changes = 0
        await brokers.change()
        if not arguments.old:
            await brokers.register("103 all topics changed", "big", 9)
        await brokers.remove()
        if arguments.largest:
            await brokers.use_the_rest()
        await cluster.agree()
        return brokers.changes
    finally:
        if brokers is not None:
            await brokers.close()
        await cluster.close()


def write(path: Path, parts: Iterable[bytes]) -> None:
    """Write a file."""
    with path.open("wb") as file:
        file.writelines(parts)


async def restore(cluster: ReplicatedProcesses, folder: Path) -> int:
    """Restore the largest state, with room for the two brokers. Returns the number of its brokers."""
    largest = await asyncio.to_thread(State, 1.0, 1.0)
    for name, address, broker_id in (("big", "big:1", 0), ("big", "big:2", 1), ("twin", "twin:1", 0)):
        largest.apply(removal(name, address, broker_id))
    routes = largest.routes.state
    backup = folder / "largest.backup"
    await asyncio.to_thread(write, backup, encode_backup({"revision": routes.revision}, routes.snapshot()))
    began, command = time.monotonic(), [sys.executable, "-m", "replicated_namesrv", "restore", str(backup)]
    options = ["--admin", host_port(cluster.nodes[cluster.names[0]].plan.admin), "--timeout-ms", "900000"]
    ended = await asyncio.create_subprocess_exec(*command, *options)
    assert await ended.wait() == 0
    print(f"  restored {routes.broker_count} brokers in {time.monotonic() - began:.0f} s", flush=True)
    return routes.broker_count


def main() -> int:
    """Arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--topics", type=int, default=TOPICS_MAX)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--old", help="checkout of an earlier version")
    parser.add_argument("--largest", action="store_true", help="in a cluster with the largest state")
    parser.add_argument("--set", dest="settings", action="append", default=[])
    arguments = parser.parse_args()
    OtherVersion.checkout = arguments.old
    changes = []
    for _ in range(arguments.repeat):
        with tempfile.TemporaryDirectory() as folder:
            changes.append(asyncio.run(run(arguments, Path(folder))))
    print(f"steps after which the term was another one: {changes}; load average {os.getloadavg()[0]:.1f}")
    return min(sum(changes), 99)


if __name__ == "__main__":
    sys.exit(main())

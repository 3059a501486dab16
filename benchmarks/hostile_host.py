"""One hostile host next to real clients. Reported: the clients' p50 and p99 with and without each attack, role changes, restarts.

    python -m benchmarks.hostile_host [--seconds 10] [--only NAMES] [--mode cp]

Three nodes run as processes, as in production. The attackers have the address 127.0.0.2, the clients 127.0.0.1. So the limits for
one source see two hosts. In production attackers and clients have processors of their own. Therefore, as far as the kernel
permits, the attackers get only the processor time that the nodes leave, and the clients have priority, because a delay in the
client process is not a delay of a node.

Each client sends a request every few milliseconds and waits for its answer: route queries, renewals of its own broker, and small
KV writes, at all nodes in turn. Even without an attack a renewal waits for about 10 ms: the leader collects the renewals of this
time, and then asks a majority (``liveness/renewals.py``).
"""

import argparse
import asyncio
import contextlib
import os
import re
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import uvloop

from replicated_namesrv.client.broker_requests import BrokerIdentity, BrokerVersion, register_request
from replicated_namesrv.client.queries import put_kv_request, route_request, topics_request
from replicated_namesrv.client.remoting import RemotingClient, RemotingCommand, encode_command
from replicated_namesrv.errors import NamesrvError
from tests.replication.large_brokers import body_of
from tests.security.attacked import AttackedNode, started_cluster, write_cluster_files
from tests.support.nodes import http

HOSTILE = "127.0.0.2"
CLIENTS = 24
PAUSE_S = 0.02
TOPIC = "topic-0000001"
REGISTERED_TOPICS = 20_000
RECEIVE_BYTES = 1 << 16
NICENESS = 19
"""Niceness of the attackers' processes."""


class Ports(NamedTuple):
    """The ports of one node."""

    remoting: int
    peer: int
    admin: int


Attack = Callable[[Ports, int], Awaitable[None]]
"""Opens one connection, or a few, of an attacker. The int is the number of the attack task; tasks that run at the same time have
different numbers."""


async def connect(port: int, limit: int = RECEIVE_BYTES) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection of the hostile host."""
    return await asyncio.open_connection("127.0.0.1", port, local_addr=(HOSTILE, 0), limit=limit)


async def stay(port: int, sent: bytes = b"") -> None:
    """Send a few bytes and wait until the node closes the connection."""
    reader, writer = await connect(port)
    try:
        writer.write(sent)
        while await reader.read(RECEIVE_BYTES):
            pass
    finally:
        writer.close()


async def trickle(port: int, sent: bytes) -> None:
    """Send bytes of a body of a megabyte one at a time."""
    _, writer = await connect(port)
    try:
        writer.write(sent)
        while not writer.is_closing():
            writer.write(b"v")
            await writer.drain()
            await asyncio.sleep(0.2)
    finally:
        writer.close()


async def exchange(port: int, sent: Sequence[bytes]) -> None:
    """Send requests as fast as the node accepts them, and read all answers."""
    reader, writer = await connect(port)

    async def drop() -> None:
        while await reader.read(1 << 20):
            pass

    task = asyncio.ensure_future(drop())
    try:
        while not task.done():
            for one in sent:
                writer.write(one)
                await writer.drain()
    finally:
        task.cancel()
        writer.close()


async def never_read(port: int, sent: bytes) -> None:
    """Send requests until the node takes no more, and read no answer."""
    _, writer = await connect(port)
    writer.transport.pause_reading()  # type: ignore[attr-defined]  # a stream's transport can
    try:
        async with asyncio.timeout(5):
            while True:
                writer.write(sent)
                await writer.drain()
    finally:
        writer.transport.abort()


def frame(code: int, body_bytes: int) -> bytes:
    """The beginning of a frame whose body is missing."""
    header = b'{"code":%d,"language":"JAVA","version":399,"opaque":1,"flag":0}' % code
    return (4 + len(header) + body_bytes).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header


def registration(broker_name: str, address: str, topics: int, version: int) -> RemotingCommand:
    """A registration; if the version changes, each of its topics changes."""
    request = register_request(
        BrokerIdentity("DefaultCluster", broker_name, 0, address, ""),
        BrokerVersion.V4_9,
        body_of(broker_name, topics, version),
        compressed=True,
        oneway=False,
        enable_acting_master=False,
        heartbeat_timeout_ms=None,
        zone_name=None,
    )
    return request._replace(version=BrokerVersion.V5_3.remoting_version)


ROUTE_FLOOD = encode_command(route_request(TOPIC)._replace(opaque=7)) * 2_000
LIST_FLOOD = encode_command(topics_request()._replace(opaque=7)) * 100
MISS_FLOOD = b"".join(encode_command(route_request(f"none-{number}")._replace(opaque=7)) for number in range(2_000))
VIEWS = b"".join(
    b"GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" % path
    for path in (b"/metrics", b"/v1/status", b"/v1/topics?limit=1000", b"/v1/brokers", b"/v1/digest")
)


async def idle(ports: Ports, number: int) -> None:
    """Connections to all ports that send nothing."""
    await stay((ports.remoting, ports.admin, ports.peer)[number % 3])


async def slow(ports: Ports, number: int) -> None:
    """Requests, bodies and hellos that arrive a byte at a time, or incompletely."""
    kinds = (
        trickle(ports.admin, b"PUT /v1/kv/n/slow HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000000\r\n\r\n"),
        trickle(ports.admin, b"GET /v1/status HTTP/1.1\r\nX: "),
        trickle(ports.remoting, frame(103, 1 << 20)),
        trickle(ports.peer, (900).to_bytes(4, "little")),
    )
    for other in kinds[: number % 4] + kinds[number % 4 + 1 :]:
        other.close()
    await kinds[number % 4]


async def flood(ports: Ports, number: int) -> None:
    """Pipelines of queries, of topics that exist and of others."""
    await exchange(ports.remoting, (ROUTE_FLOOD, MISS_FLOOD) if number % 2 else (ROUTE_FLOOD, LIST_FLOOD))


async def unread(ports: Ports, number: int) -> None:
    """Pipelines whose answers are not read."""
    if number % 4 == 0:
        await never_read(ports.admin, VIEWS)
    else:
        await never_read(ports.remoting, LIST_FLOOD if number % 2 else ROUTE_FLOOD)


async def handshakes(ports: Ports, number: int) -> None:
    """TLS handshakes, one after the other."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    while True:
        with contextlib.suppress(OSError, EOFError):
            _, writer = await asyncio.open_connection("127.0.0.1", ports.remoting, local_addr=(HOSTILE, 0), ssl=context)
            writer.transport.abort()
        await asyncio.sleep(0)


async def connects(ports: Ports, number: int) -> None:
    """Connections that are closed at once."""
    _, writer = await connect((ports.remoting, ports.admin, ports.peer)[number % 3])
    writer.transport.abort()


async def views(ports: Ports, number: int) -> None:
    """The costly pages of the admin port."""
    await exchange(ports.admin, (VIEWS,))


async def registrations(ports: Ports, number: int) -> None:
    """Registrations that change many topics, and frames of 15 MB that never end."""
    if number % 2:
        _, writer = await connect(ports.remoting)
        try:
            writer.write(frame(103, 15 << 20))
            for _ in range(149):
                writer.write(bytes(100_000))
                await writer.drain()
            await asyncio.sleep(1)
        finally:
            writer.transport.abort()
        return
    broker = f"hostile-{number}", f"192.0.2.1:{10_000 + number}"
    both = [encode_command(registration(*broker, REGISTERED_TOPICS, version)) for version in (1, 2)]
    reader, writer = await connect(ports.remoting)
    try:
        while True:
            for one in both:
                writer.write(one)
                await reader.readexactly(4)
                await reader.read(RECEIVE_BYTES)
    finally:
        writer.close()


async def values(ports: Ports, number: int) -> None:
    """KV values of a megabyte, over the remoting port."""
    reader, writer = await connect(ports.remoting)
    header = {"namespace": f"hostile-{number}", "key": "k", "value": ""}
    try:
        while True:
            header["value"] = os.urandom(16).hex() + "v" * 1_000_000
            writer.write(encode_command(put_kv_request(**header)))
            await reader.readexactly(4)
            await reader.read(RECEIVE_BYTES)
    finally:
        writer.close()


ATTACKS: dict[str, tuple[Attack, int]] = {
    "idle": (idle, 400),
    "slow": (slow, 120),
    "flood": (flood, 16),
    "unread": (unread, 16),
    "handshakes": (handshakes, 8),
    "connects": (connects, 8),
    "views": (views, 4),
    "registrations": (registrations, 8),
    "values": (values, 6),
}
"""Each attack, and the number of its tasks that run at the same time on each node."""


async def repeat(attack: Attack, ports: Ports, number: int) -> None:
    """Attack without end."""
    while True:
        with contextlib.suppress(OSError, EOFError, TimeoutError):
            await attack(ports, number)
        await asyncio.sleep(0.02)


async def run_attacks(names: Sequence[str], targets: Sequence[Ports]) -> None:
    """All of these at once, until this process is killed."""
    tasks = []
    for name in names:
        attack, count = ATTACKS[name]
        tasks += [asyncio.ensure_future(repeat(attack, ports, number)) for ports in targets for number in range(count)]
    print("ready", flush=True)
    await asyncio.gather(*tasks)


def prefer(pid: int, niceness: int) -> None:
    """Set the niceness of the session of ``pid`` (Linux: autogroup), which determines its share of the processor; no-op if the
    kernel does not permit it."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(niceness))


@contextlib.contextmanager
def hostile_host(names: Sequence[str], targets: Sequence[Ports]) -> Iterator[None]:
    """The attackers, in a process for each attack. They are killed when the block ends."""
    ports = [",".join(map(str, each)) for each in targets]
    children = []
    try:
        for name in names:
            command = [sys.executable, "-m", "benchmarks.hostile_host", "--attack", name, "--ports", *ports]
            children.append(subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True))
            prefer(children[-1].pid, NICENESS)
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == b"ready\n"
        yield
        assert all(child.poll() is None for child in children), "attackers have ended"
    finally:
        for child in children:
            child.kill()
            child.communicate()


@dataclass
class Answers:
    """The answers that clients got."""

    latencies_ms: dict[str, list[float]] = field(default_factory=dict)
    failures: Counter[str] = field(default_factory=Counter)

    def line(self) -> str:
        """Requests, p50, p99 and maximum of each kind."""
        parts = []
        for kind, found in sorted(self.latencies_ms.items()):
            cuts = statistics.quantiles(found, n=100)
            parts.append(f"{kind} {len(found)}: {cuts[49]:6.1f} {cuts[98]:6.1f} {max(found):6.1f}")
        return " | ".join(parts) + (f" | failed: {dict(self.failures)}" if self.failures else "")


CLIENT_REGISTRATIONS = [registration(f"real-{number}", f"127.0.0.1:{10_911 + number}", 100, 1) for number in range(CLIENTS)]


def client_request(kind: str, client: int, number: int) -> RemotingCommand:
    """A request of a real client."""
    if kind == "route":
        return route_request(TOPIC)
    if kind == "renewal":
        return CLIENT_REGISTRATIONS[client]
    return put_kv_request("real", f"key-{number % 100}", str(number))


class Clients:
    """The real clients. Each keeps its connections over all phases, as RocketMQ's do."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._ports = ports
        self._connections = [RemotingClient() for _ in range(CLIENTS)]

    async def run(self, seconds: float) -> Answers:
        """Send requests for this time."""
        answers, until = Answers(), time.monotonic() + seconds
        await asyncio.gather(*(self._one(number, until, answers) for number in range(CLIENTS)))
        return answers

    async def _one(self, number: int, until: float, answers: Answers) -> None:
        kind, turn = ("route", "route", "route", "renewal", "write")[number % 5], number
        while time.monotonic() < until:
            turn += 1
            began = time.monotonic()
            address = f"127.0.0.1:{self._ports[turn % len(self._ports)]}"
            try:
                answer = await self._connections[number].request(address, client_request(kind, number, turn), 10_000)
                if answer.code:
                    answers.failures[f"{kind}: code {answer.code}"] += 1
            except NamesrvError as error:
                answers.failures[f"{kind}: {type(error).__name__}"] += 1
            answers.latencies_ms.setdefault(kind, []).append((time.monotonic() - began) * 1000)
            await asyncio.sleep(PAUSE_S)

    async def close(self) -> None:
        """Close all connections."""
        for each in self._connections:
            await each.close()


def ports_of(nodes: Sequence[AttackedNode]) -> list[Ports]:
    """The ports of all nodes."""
    return [Ports(node.port, node.port + 2, node.admin_port) for node in nodes]


async def limits_hit(port: int) -> Counter[str]:
    """How often each limit was reached, from the metrics at this admin port."""
    text = (await http(port, "/metrics")).text
    found = re.findall(r'^namesrv_limits_hit_total\{limit="(\w+)"\} ([0-9.]+)$', text, flags=re.MULTILINE)
    refused = re.findall(r"^namesrv_admin_connections_refused_total ([0-9.]+)$", text, flags=re.MULTILINE)
    return Counter({name: int(float(count)) for name, count in found} | {"admin": int(float(refused[0]))})


async def standing(nodes: Sequence[AttackedNode]) -> list[tuple[str, int]]:
    """Role and term of each node; AP nodes have none."""
    statuses = [(await http(node.admin_port, "/v1/status")).json["replication"] for node in nodes]
    return [("independent", 0) if status is None else (status["role"], status["term"]) for status in statuses]


class Report:
    """Prints a line for each phase."""

    def __init__(self, nodes: Sequence[AttackedNode], clients: Clients, seconds: float) -> None:
        self._nodes, self._clients, self._seconds = nodes, clients, seconds

    def _cpu_s(self) -> float:
        """CPU time of all nodes so far."""
        pids = [node.command.process.pid for node in self._nodes]
        fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split() for pid in pids]
        return sum(int(each[11]) + int(each[12]) for each in fields) / os.sysconf("SC_CLK_TCK")

    async def phase(self, name: str, attacks: Sequence[str]) -> None:
        """Measure the clients during these attacks."""
        before = await standing(self._nodes)
        with hostile_host(attacks, ports_of(self._nodes)):
            await self._clients.run(1)  # gives the attackers time to connect
            cpu_s = self._cpu_s()
            answers = await self._clients.run(self._seconds)
            spent_s = self._cpu_s() - cpu_s
        after = await standing(self._nodes)
        stalls = [(await http(node.admin_port, "/v1/status")).json["loopLagRecentMaxMs"] for node in self._nodes]
        changes = sum(old[0] != new[0] for old, new in zip(before, after, strict=True))
        print(
            f"{name:<14} {answers.line()} | role changes {changes}, elections {after[0][1] - before[0][1]}, "
            f"restarts {sum(not node.is_running() for node in self._nodes)} | CPU of the nodes {spent_s:.1f} s, "
            f"longest stall {max(stalls):.0f} ms, load {os.getloadavg()[0]:.0f}",
            flush=True,
        )


async def measure(nodes: Sequence[AttackedNode], seconds: float, names: Sequence[str], together: bool) -> None:
    """Without attack, each attack alone, and all at once."""
    clients = Clients([node.port for node in nodes])
    await clients.run(1)
    report = Report(nodes, clients, seconds)
    print(f"{'attack':<14} clients' requests: p50, p99, maximum in ms")
    await report.phase("none", ())
    for name in names:
        await report.phase(name, (name,))
    if together:
        await report.phase("all at once", list(ATTACKS))
        await report.phase("none again", ())
    print("limits hit:", dict(sum([await limits_hit(node.admin_port) for node in nodes], Counter())))
    await clients.close()


def run(mode: str, seconds: float, names: Sequence[str], together: bool) -> None:
    """Start the nodes and measure."""
    with tempfile.TemporaryDirectory(prefix="benchmark-hostile-") as folder:
        folders = [Path(folder) / f"n{number + 1}" for number in range(3)]
        files = write_cluster_files(folders, [each / "data" for each in folders], mode)
        with started_cluster(files) as nodes:
            uvloop.run(measure(nodes, seconds, names, together))


def main() -> int:
    """Measure, or attack."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10, help="length of one phase (default 10)")
    parser.add_argument("--only", default=",".join(ATTACKS) + ",all", help="attacks, separated by commas")
    parser.add_argument("--mode", choices=("ap", "cp"), default="cp")
    parser.add_argument("--attack", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--ports", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.attack:
        targets = [Ports(*map(int, each.split(","))) for each in arguments.ports]
        uvloop.run(run_attacks(arguments.attack, targets))
        return 0
    prefer(os.getpid(), -10)
    wanted = arguments.only.split(",")
    run(arguments.mode, arguments.seconds, [name for name in ATTACKS if name in wanted], "all" in wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Traffic in a cluster during a fault, and the checks afterwards.

``Traffic`` consists of clients, a living broker and a ghost. The clients have the whole address list. They look up a route, write
KV entries, and register brokers that register once and never again. The living broker registers with every node every second. The
ghost is a broker that dies on request. ``Watch`` looks at all nodes meanwhile. Together they detect

- whether every acknowledged KV entry and registration is there afterwards, on every node;
- whether a look-up missed the living broker or was answered with an error code, and for how long none was answered;
- whether the ghost came back after it was removed;
- whether two nodes ever answered different states for one revision, or led in the same term.
"""

import asyncio
import contextlib
import itertools
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from replicated_namesrv.client.broker import BrokerAgent, BrokerOptions
from replicated_namesrv.client.broker_requests import BrokerIdentity, BrokerVersion, register_request
from replicated_namesrv.client.nameservers import NameServers
from replicated_namesrv.client.queries import get_kv_request, put_kv_request, read_kv, read_route, route_request
from replicated_namesrv.client.remoting import DEFAULT_TIMEOUT_MS, RemotingClient, RemotingCommand
from replicated_namesrv.client.topics import BrokerTopics, TopicConfig, TopicTable
from replicated_namesrv.errors import NamesrvError
from replicated_namesrv.model import DataVersion
from tests.support.replicated_processes import ReplicatedProcesses, eventually

CLUSTER = "DefaultCluster"
GHOST_TIMEOUT_MS = 3_000
LONG_TIMEOUT_MS = 600_000
"""heartbeatTimeoutMillis of brokers that register once: no test lasts that long."""
CHECK_TIMEOUT_MS = 30_000
FAIL_OVER_LIMIT_S = 30.0
"""A client waits its own time-out (3 s) for a paused node, and an election takes half a second; the rest is for busy machines."""
_numbers = itertools.count(1)


def now_ms() -> int:
    """The wall clock, which gives the time stamps of data versions."""
    return int(time.time() * 1000)


def agent(name: str, addresses: list[str], broker_id: int = 0, broker_addr: str | None = None, **options: Any) -> BrokerAgent:
    """A broker with the topic ``topic_of(name)``."""
    number = next(_numbers)
    broker_addr = broker_addr or f"10.0.{number >> 8}.{number & 255}:10911"
    topics = BrokerTopics(TopicTable(()), TopicTable(topics_of(name)))
    return BrokerAgent(
        BrokerIdentity(CLUSTER, name, broker_id, broker_addr, "10.1.1.1:10912"),
        topics,
        addresses,
        options=BrokerOptions(**{"register_period_ms": 1_000, "register_timeout_ms": 3_000, "scan_interval_ms": 500, **options}),
        rng=random.Random(number),
        now_ms=now_ms,
    )


def topic_of(broker_name: str) -> str:
    """The topic that is looked up."""
    return f"topic-of-{broker_name}"


def topics_of(broker_name: str) -> tuple[TopicConfig, TopicConfig]:
    """The topic ``topic_of(broker_name)`` and another one: name servers treat a registration with a single topic as the update of
    a broker that is already registered."""
    return TopicConfig(topic_of(broker_name)), TopicConfig("TBW102")


def _only_address(answer: RemotingCommand) -> str | None:
    """The broker address of a route; None if it has none or several."""
    route = read_route(answer)
    addresses = [] if route is None else [address for data in route.broker_datas for _, address in data.broker_addrs]
    return addresses[0] if len(addresses) == 1 else None


async def members(client: RemotingClient, address: str, broker_name: str, timeout_ms: int = DEFAULT_TIMEOUT_MS) -> dict[int, str]:
    """Addresses of a broker group by id, as the node at ``address`` routes its topic."""
    route = read_route(await client.request(address, route_request(topic_of(broker_name)), timeout_ms))
    return {} if route is None else {i: a for data in route.broker_datas for i, a in data.broker_addrs}


async def members_everywhere(
    client: RemotingClient, cluster: ReplicatedProcesses, broker_name: str, want: dict[int, str]
) -> None:
    """Returns once every node routes the broker's topic to exactly ``want``."""

    async def look() -> bool:
        found = [await members(client, address, broker_name) for address in cluster.addresses]
        if any(one != want for one in found):
            raise ValueError(f"routes of {broker_name}: {found}")
        return True

    await eventually(look, f"{broker_name} at {want} everywhere")


class Watch:
    """Polls all nodes and collects in ``contradictions`` the answers that contradict agreement."""

    def __init__(self, cluster: ReplicatedProcesses) -> None:
        self._cluster = cluster
        self._states: dict[tuple[str, int], tuple[str, str]] = {}
        self._leaders: dict[int, str] = {}
        self.contradictions: list[str] = []
        self.compared = 0
        """Number of answers compared with another node's for the same revision or log index."""
        self._gone: dict[str, int] = {}
        """Address of a dead broker to a revision at which it was no longer registered."""
        self.dead: set[str] = set()
        """Addresses of brokers that will never register again."""

    async def run(self, name: str) -> None:
        """Poll one node for ever."""
        while True:
            for look in (self._status, self._digest, self._brokers):
                with contextlib.suppress(OSError, ValueError, LookupError, EOFError):
                    await look(name)
            await asyncio.sleep(0.2)

    async def _status(self, name: str) -> None:
        status = await self._cluster.status(name)
        self._compare("log index", status["appliedIndex"], status["digest"], name)
        if status["role"] == "leader":
            other = self._leaders.setdefault(status["term"], name)
            if other != name:
                self.contradictions.append(f"{other} and {name} both led term {status['term']}")

    async def _digest(self, name: str) -> None:
        found = await self._cluster.admin(name, "/v1/digest")
        self._compare("revision", found["revision"], found["digest"], name)

    async def _brokers(self, name: str) -> None:
        if not self.dead:
            return
        found = await self._cluster.admin(name, "/v1/brokers?limit=1000")
        revision, present = found["revision"], {row["brokerAddr"] for row in found["brokers"]}
        for address in self.dead:
            if address not in present:
                self._gone[address] = min(revision, self._gone.get(address, revision))
            elif revision > self._gone.get(address, revision):
                self.contradictions.append(f"{address}, gone at revision {self._gone[address]}, is back at {revision} on {name}")

    def _compare(self, what: str, number: int, digest: str, name: str) -> None:
        known = self._states.setdefault((what, number), (digest, name))
        if known[1] != name:
            self.compared += 1
        if known[0] != digest:
            self.contradictions.append(f"{what} {number}: {known[1]} has digest {known[0]}, {name} has {digest}")


class Traffic:
    """All users of the cluster during one test."""

    def __init__(self, cluster: ReplicatedProcesses) -> None:
        self.cluster = cluster
        self.watch = Watch(cluster)
        self.client = RemotingClient()
        run = next(_numbers)
        self.living = agent(f"living-{run}", cluster.addresses)
        self.ghost = agent(f"ghost-{run}", cluster.addresses, heartbeat_timeout_ms=GHOST_TIMEOUT_MS)
        self._run = run
        self.written: dict[str, str] = {}
        """Acknowledged KV entries of namespace ``faults``."""
        self.registered: dict[str, str] = {}
        """Acknowledged registrations that are never repeated: broker name to address."""
        self.looked_up = 0
        self.problems: list[str] = []
        self.longest_gap_s = 0.0
        """Longest time between two look-ups that were answered."""
        self.outage_expected = False
        """Whether there is no majority, so that no answers are expected."""
        self._clients: list[RemotingClient] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Register the brokers and begin."""
        await self.living.start()
        await self.ghost.start()
        for broker in (self.living, self.ghost):
            await members_everywhere(self.client, self.cluster, broker.identity.broker_name, {0: broker.identity.broker_addr})
        self._spawn(self._look_up())
        self._spawn(self._write())
        self._spawn(self._register())
        for name in self.cluster.names:
            self._spawn(self.watch.run(name))
        await self.progress()

    async def close(self) -> None:
        """Stop; the living broker unregisters."""
        for task in self._tasks:
            task.cancel()
        outcomes = await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.living.kill()
        await self.ghost.kill()
        for client in [self.client, *self._clients]:
            await client.abort()
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome

    async def progress(self, lookups: int = 20, writes: int = 10, registrations: int = 2) -> None:
        """Returns when this many more look-ups, writes and registrations have succeeded."""
        before = self.looked_up, len(self.written), len(self.registered)

        async def look() -> bool:
            counts = self.looked_up, len(self.written), len(self.registered)
            wanted = (lookups, writes, registrations)
            if any(now - then < want for now, then, want in zip(counts, before, wanted, strict=True)):
                raise ValueError(f"too little progress: look-ups, writes and registrations were {before} and are {counts}")
            return True

        await eventually(look, "progress")

    async def kill_ghost(self) -> None:
        """The ghost ends without unregistering and does not return."""
        self.watch.dead.add(self.ghost.identity.broker_addr)
        await self.ghost.kill()

    async def check(self) -> None:
        """Check everything that must be true when the cluster is whole again."""
        await self.progress()
        for task in self._tasks[:3]:
            task.cancel()
        await asyncio.gather(*self._tasks[:3], return_exceptions=True)
        if self.ghost.identity.broker_addr in self.watch.dead:
            await members_everywhere(self.client, self.cluster, self.ghost.identity.broker_name, {})
        await self.cluster.agree()
        await asyncio.gather(*(self._check_node(address) for address in self.cluster.addresses))
        assert not self.problems, self.problems
        assert self.longest_gap_s < FAIL_OVER_LIMIT_S, f"no node answered a look-up for {self.longest_gap_s:.1f} s"
        assert not self.watch.contradictions, self.watch.contradictions
        assert self.watch.compared, "no two answers could be compared"

    async def _check_node(self, address: str) -> None:
        """Check everything at the same time, because a node confirms concurrent reads together.

        A node that does not answer is asked again. On a busy machine it may lose its majority for a moment, and then it closes
        connections. A wrong answer fails at once.
        """
        living = {self.living.identity.broker_name: self.living.identity.broker_addr}
        await asyncio.gather(
            *(self._answered(address, partial(self._check_entry, address, *entry)) for entry in self.written.items()),
            *(self._answered(address, partial(self._check_broker, address, *one)) for one in (self.registered | living).items()),
        )

    async def _answered(self, address: str, check: Callable[[], Awaitable[bool]]) -> None:
        await eventually(check, f"an answer of {address}")

    async def _check_entry(self, address: str, key: str, value: str) -> bool:
        found = read_kv(await self.client.request(address, get_kv_request("faults", key), CHECK_TIMEOUT_MS))
        assert found == value, f"acknowledged {key}={value} is {found} at {address}"
        return True

    async def _check_broker(self, address: str, name: str, broker_addr: str) -> bool:
        found = await members(self.client, address, name, CHECK_TIMEOUT_MS)
        assert found == {0: broker_addr}, f"{name}, acknowledged at {broker_addr}, is {found} at {address}"
        return True

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.create_task(work))

    def _list(self, client: RemotingClient) -> NameServers:
        return NameServers(self.cluster.addresses, client, rng=random.Random(next(_numbers)))

    async def _look_up(self) -> None:
        servers = self._list(self.client)
        name, addr = self.living.identity.broker_name, self.living.identity.broker_addr
        last = time.monotonic()
        while True:
            try:
                answer = await servers.query(route_request(topic_of(name)))
                if answer.response.code != 0 or _only_address(answer.response) != addr:
                    self.problems.append(f"{answer.address} answered {answer.response}, {addr} was registered")
                self.looked_up += 1
                now = time.monotonic()
                if not self.outage_expected:
                    self.longest_gap_s = max(self.longest_gap_s, now - last)
                last = now
            except NamesrvError:
                pass  # no answer: the duration is measured
            await asyncio.sleep(0.02)

    async def _write(self) -> None:
        servers = self._list(self.client)
        numbers = itertools.count()
        while True:
            number = next(numbers)
            key, value = f"{self._run}-{number}", f"value {number}"
            with contextlib.suppress(NamesrvError):
                answer = await servers.submit(put_kv_request("faults", key, value))
                if answer.response.code == 0:
                    self.written[key] = value
                elif not self.outage_expected:
                    self.problems.append(f"{answer.address} answered a write with {answer.response}")
            await asyncio.sleep(0.03)

    async def _register(self) -> None:
        """Register brokers, each once and over a connection of its own that stays open. So the removal of a silent broker does
        not close another one's connection."""
        numbers = itertools.count()
        while True:
            number, client = next(numbers), RemotingClient()
            self._clients.append(client)
            identity = BrokerIdentity(CLUSTER, f"once-{self._run}-{number}", 0, f"10.{self._run}.2.{number}:10911", "10.1.1.1:1")
            request = registration(identity, DataVersion(1, 0, now_ms()), LONG_TIMEOUT_MS)
            with contextlib.suppress(NamesrvError):
                answer = await self._list(client).submit(request)
                if answer.response.code == 0:
                    self.registered[identity.broker_name] = identity.broker_addr
            await asyncio.sleep(0.2)


def registration(
    identity: BrokerIdentity, version: DataVersion, timeout_ms: int, topics: tuple[TopicConfig, ...] = ()
) -> RemotingCommand:
    """REGISTER_BROKER (103) with the broker's topics, or ``topics``."""
    table = BrokerTopics(TopicTable(()), TopicTable(topics or topics_of(identity.broker_name)))
    return register_request(
        identity,
        BrokerVersion.V5_3,
        table.encode(BrokerVersion.V5_3, version, version.timestamp, compressed=False),
        compressed=False,
        oneway=False,
        enable_acting_master=False,
        heartbeat_timeout_ms=timeout_ms,
        zone_name=None,
    )


@asynccontextmanager
async def traffic(cluster: ReplicatedProcesses) -> AsyncIterator[Traffic]:
    """Traffic in a healthy cluster; the block ends with ``check``, after which everything is stopped and the cluster whole."""
    await cluster.restore()
    it = Traffic(cluster)
    try:
        await it.start()
        yield it
        await cluster.restore()
        await it.check()
    finally:
        await cluster.restore()
        await it.close()

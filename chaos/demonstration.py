"""Shows what clients get while one name server is cut off: the same short experiment in CP and in AP, on real processes.

There are three name servers for each mode, two brokers and four clients. The brokers register with the name servers of both
modes, so they start only once. Three clients ask one name server each. The fourth client has all addresses, like a RocketMQ
client. While one node (in CP the leader) is cut off from its peers and from the brokers, the demonstration changes the number
of the topic's queues at the brokers. After a client has received this change, an answer to a later query is outdated if it does
not contain the change.
"""

import asyncio
import contextlib
import itertools
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from replicated_namesrv.chaos.demonstration_brokers import (
    PORTS,
    START_TIMEOUT_S,
    TOPIC,
    DemonstrationBroker,
    RealBroker,
    RealBrokers,
    SimulatedBroker,
)
from replicated_namesrv.chaos.effects import Effect, Link, Stream
from replicated_namesrv.chaos.ports import Ports, is_free
from replicated_namesrv.chaos.process_cluster import ProcessCluster
from replicated_namesrv.client.answer_bodies import write_queues
from replicated_namesrv.client.nameservers import NameServers
from replicated_namesrv.client.queries import RefusedError, read_route, route_request
from replicated_namesrv.client.remoting import RemotingClient
from replicated_namesrv.errors import NamesrvError

NODES = ("n1", "n2", "n3")
BROKERS = ("broker-a", "broker-b")
ANY = "any"
"""Name of the client that has all addresses."""
QUEUES_BEFORE, QUEUES_AFTER = 4, 8
"""Number of queues of each broker before and after the change."""
SETTINGS = ("scanNotActiveBrokerInterval=500",)
LOOK_INTERVAL_S = 0.25
LOOK_TIMEOUT_MS = 1_000
STEADY_S, BEFORE_CHANGE_S, AFTER_CHANGE_S, AGREED_S = 3.0, 3.0, 9.0, 1.5
AGREE_LIMIT_S = 20.0
"""The demonstration ends AGREED_S after all nodes have answered with the change, but no later than this after the cut ends."""
STARTS_MAX = 3
"""How often the processes are started if other processes take the ports that were chosen for them."""
CUT = 1
"""Number of the cut, which is the only fault."""


@dataclass(frozen=True, slots=True)
class LookUp:
    """One look-up of the topic's route. Times in seconds since the demonstration began."""

    client: str
    """The only node that the client asks, or ``ANY``."""
    asked_s: float
    answered_s: float
    queues: int | None
    """Number of queues that a producer would use; 0 without a route, None without an answer."""
    refused: bool = False
    """True if there was no answer: the connection was refused or closed, or the node answered that it does not serve."""

    def is_outdated(self, changed_s: float | None) -> bool:
        """Whether the look-up began after a client had got the change, and its answer does not have the change."""
        wanted = QUEUES_AFTER * len(BROKERS)
        return changed_s is not None and self.asked_s > changed_s and self.queues is not None and self.queues != wanted


@dataclass(slots=True)
class Demonstration:
    """The events in one mode."""

    mode: str
    cut_node: str
    paused: bool
    """Whether the node's process was paused instead of cut off, for lack of Toxiproxy."""
    looks: list[LookUp] = field(default_factory=list)
    cut_s: float | None = None
    changed_s: float | None = None
    """When a client first got an answer with the change of both brokers."""
    change_begun_s: float | None = None
    healed_s: float | None = None
    end_s: float = 0.0
    real_brokers: bool = False
    """Whether the brokers were processes of RocketMQ."""

    def outdated(self) -> list[LookUp]:
        """The outdated look-ups (``LookUp.is_outdated``)."""
        return [look for look in self.looks if look.is_outdated(self.changed_s)]

    def longest_gap_s(self, client: str) -> float:
        """The longest time without an answer to a client, from the beginning to the end."""
        answered = [
            0.0,
            *(look.answered_s for look in self.looks if look.client == client and look.queues is not None),
            self.end_s,
        ]
        return max(later - earlier for earlier, later in itertools.pairwise(answered))

    def agreed_after_heal_s(self) -> float | None:
        """Time from the end of the cut until each node answers with the change and continues to do so. None: this did not
        happen.
        """
        if self.healed_s is None:
            return None
        wanted, last_bad, good = QUEUES_AFTER * len(BROKERS), self.healed_s, set()
        for look in self.looks:
            if look.client == ANY or look.asked_s < self.healed_s:
                continue
            if look.queues == wanted:
                good.add((look.client, look.answered_s))
            else:
                last_bad = max(last_bad, look.answered_s)
        firsts = [min((at for name, at in good if name == node and at >= last_bad), default=None) for node in self.nodes()]
        known = [at for at in firsts if at is not None]
        return max(known) - self.healed_s if len(known) == len(firsts) else None

    def nodes(self) -> list[str]:
        """The nodes that were asked, in order."""
        return sorted({look.client for look in self.looks} - {ANY})


class Stage(Protocol):
    """Shows the demonstration while it runs."""

    def begin(self, mode: str) -> None:
        """The demonstration of this mode begins."""

    def row(self, story: Demonstration, second: int, latest: dict[str, LookUp]) -> None:
        """Called each second with this second and the latest look-up of each client."""

    def say(self, text: str) -> None:
        """An event."""


class Play:
    """The demonstration in each of ``modes``, one after the other."""

    def __init__(
        self, modes: Sequence[str], folder: Path, toxiproxy: Path | None, real: RealBrokers | None, stage: Stage
    ) -> None:
        """``real``: Java and the jars for RocketMQ's brokers; None: brokers are simulated."""
        self._modes, self._folder, self._toxiproxy, self._real, self._stage = modes, folder, toxiproxy, real, stage
        self.stories: list[Demonstration] = []
        """The modes that were shown to their end; also after ``run`` raised an error or was cancelled."""
        self._story: Demonstration
        self._began = 0.0
        self._latest: dict[str, LookUp] = {}
        self._has_begun = False
        """Whether the name servers and brokers of a start serve. After that the demonstration does not start again."""

    async def run(self) -> None:
        """Run the demonstration. Raises NamesrvError if a process does not start, or ends."""
        for start in range(1, STARTS_MAX + 1):
            chosen: set[int] = set()
            try:
                return await self._run_in(self._folder / str(start), chosen)
            except NamesrvError:  # now all processes of this start have ended
                taken = sorted(port for port in chosen if not is_free(port))
                if self._has_begun or not taken or start == STARTS_MAX:
                    raise
            self._stage.say(f"another process took port {taken[0]} meanwhile; starting again on other ports")

    async def _run_in(self, folder: Path, chosen: set[int]) -> None:
        """``run`` with the files in ``folder``. Adds the ports of the processes to ``chosen``."""
        rng = random.SystemRandom()
        outside = [Link(broker, node) for broker in BROKERS for node in NODES]
        ports = Ports(len(BROKERS), rng, PORTS)
        chosen |= {number + offset for number in ports.numbers for offset in PORTS}
        client = RemotingClient(connect_timeout_ms=LOOK_TIMEOUT_MS)
        brokers = [self._broker(name, port, folder, client) for name, port in zip(BROKERS, ports.numbers, strict=True)]
        try:
            async with contextlib.AsyncExitStack() as running:
                clusters = [
                    await running.enter_async_context(
                        ProcessCluster(folder / mode, len(NODES), mode, SETTINGS, outside, rng, self._toxiproxy)
                    )
                    for mode in self._modes
                ]
                chosen |= {port for cluster in clusters for port in cluster.port_numbers}
                try:
                    for name, broker in zip(BROKERS, brokers, strict=True):  # a JVM starts while the name servers do
                        await broker.launch([cluster.address(Link(name, node)) for cluster in clusters for node in NODES])
                    for cluster in clusters:
                        await cluster.start()
                    await asyncio.gather(*(broker.start(QUEUES_BEFORE) for broker in brokers))
                    self._has_begun = True
                    for mode, cluster in zip(self._modes, clusters, strict=True):
                        await self._play(mode, cluster, brokers)
                finally:
                    await asyncio.gather(*(broker.kill() for broker in brokers), client.close())
        finally:
            ports.release()

    def _broker(self, name: str, port: int, folder: Path, client: RemotingClient) -> DemonstrationBroker:
        if self._real is None:
            return SimulatedBroker(name, port)
        return RealBroker(name, port, folder / name, self._real, client)

    async def _play(self, mode: str, cluster: ProcessCluster, brokers: Sequence[DemonstrationBroker]) -> None:
        self._stage.begin(mode)
        if self.stories:
            await asyncio.gather(*(broker.change_queues(QUEUES_BEFORE) for broker in brokers))
        addresses = {name: [node.listen] for name, node in cluster.nodes.items()}
        addresses[ANY] = [node.listen for node in cluster.nodes.values()]
        clients = {name: RemotingClient(connect_timeout_ms=LOOK_TIMEOUT_MS) for name in addresses}
        servers = {
            name: NameServers(listed, clients[name], rng=random.Random(name), timeout_ms=LOOK_TIMEOUT_MS)
            for name, listed in addresses.items()
        }
        tasks: list[asyncio.Task[None]] = []
        self._latest = {}
        try:
            await asyncio.gather(*(self._until_registered(name, servers[name]) for name in NODES))
            leader = await cluster.leader() or NODES[0]
            story = Demonstration(mode, leader, self._toxiproxy is None, real_brokers=self._real is not None)
            self._story, self._began = story, time.monotonic()
            works = [*(self._look_forever(name, asked) for name, asked in servers.items()), self._print_forever()]
            tasks += [asyncio.create_task(work) for work in works]
            await self._acts(cluster, brokers)
            story.end_s = self._now_s()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.gather(*(client.close() for client in clients.values()))
        self.stories.append(story)

    async def _until_registered(self, name: str, servers: NameServers) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while (await self._look(name, servers)).queues != QUEUES_BEFORE * len(BROKERS):
            if time.monotonic() > deadline:
                raise NamesrvError(f"the brokers did not register with {name} within {START_TIMEOUT_S:.0f} s")
            await asyncio.sleep(LOOK_INTERVAL_S)

    async def _acts(self, cluster: ProcessCluster, brokers: Sequence[DemonstrationBroker]) -> None:
        story = self._story
        await asyncio.sleep(STEADY_S)
        await self._cut(cluster)
        story.cut_s = self._now_s()
        await asyncio.sleep(BEFORE_CHANGE_S)
        self._stage.say(f"the operator changes {TOPIC} from {QUEUES_BEFORE} to {QUEUES_AFTER} queues on each broker")
        story.change_begun_s = self._now_s()
        changing = asyncio.gather(*(broker.change_queues(QUEUES_AFTER) for broker in brokers))
        await asyncio.sleep(AFTER_CHANGE_S)
        await self._heal(cluster, story.cut_node)
        story.healed_s = self._now_s()
        await self._until_agreed()
        try:
            await changing
        except NamesrvError as error:
            self._stage.say(f"a broker did not confirm the change: {error}")
        for node, ended in cluster.ended():
            raise NamesrvError(f"{node.name} ended by itself ({ended.how}), see {node.log_file}")

    async def _cut(self, cluster: ProcessCluster) -> None:
        story, node = self._story, self._story.cut_node
        if self._toxiproxy is None:
            cluster.nodes[node].process.pause()
            self._stage.say(f"the process of {node} is paused")
            return
        links = {link: Stream.BOTH for link in cluster.links.all if node in (link.source, link.target)}
        await cluster.links.impair(
            CUT, links if story.mode == "cp" else {k: v for k, v in links.items() if k.source in BROKERS}, Effect.SILENT
        )
        peers = "the other name servers and " if story.mode == "cp" else ""
        self._stage.say(f"{node} is cut off from {peers}the brokers; clients still reach it")

    async def _heal(self, cluster: ProcessCluster, node: str) -> None:
        if self._toxiproxy is None:
            cluster.nodes[node].process.resume()
        else:
            await cluster.links.reset()
        self._stage.say(f"{node} is {'resumed' if self._toxiproxy is None else 'connected again'}")

    async def _until_agreed(self) -> None:
        story = self._story
        assert story.healed_s is not None
        limit_s = self._now_s() + AGREE_LIMIT_S
        while (took_s := story.agreed_after_heal_s()) is None or self._now_s() < story.healed_s + took_s + AGREED_S:
            if self._now_s() > limit_s:
                self._stage.say(
                    f"not every node answers with the change {AGREE_LIMIT_S:.0f} s after the cut ended; this mode ends here"
                )
                return
            await asyncio.sleep(LOOK_INTERVAL_S)

    def _now_s(self) -> float:
        return time.monotonic() - self._began

    async def _look_forever(self, name: str, servers: NameServers) -> None:
        while True:
            look = await self._look(name, servers)
            self._story.looks.append(look)
            if look.queues == QUEUES_AFTER * len(BROKERS) and self._story.changed_s is None:
                self._story.changed_s = look.answered_s
                self._stage.say("a client has got the change of both brokers")
            self._latest[name] = look
            await asyncio.sleep(LOOK_INTERVAL_S)

    async def _look(self, name: str, servers: NameServers) -> LookUp:
        asked_s = self._now_s()
        try:
            answer = await servers.query(route_request(TOPIC))
            route = read_route(answer.response)
        except NamesrvError as error:
            return LookUp(name, asked_s, self._now_s(), None, error.definite or isinstance(error, RefusedError))
        queues = sum(queues.write_queue_nums for queues in write_queues(route)) if route is not None else 0
        return LookUp(name, asked_s, self._now_s(), queues)

    async def _print_forever(self) -> None:
        second = 0
        while True:
            second += 1
            await asyncio.sleep(max(0.0, second - self._now_s()))
            self._stage.row(self._story, second, dict(self._latest))

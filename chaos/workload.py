"""The workload: all users of the cluster in a run, built from the scenario and the seed.

Brokers: groups g1 … serve topic-1 … during the whole run, and every topic has brokers on several sites. Other brokers are named
after what they do. The *pair* serves its own topic and switches roles. The slave of *deputy* acts as master while its master is
away: for a moment before the faults, and during them. The second broker of an *heir* takes the place of the first. *Churn*
repeatedly changes its topics, stops cleanly and returns. *Mortal* dies during the fault and returns after it. Two more die when
the clients begin, so that every run judges expiry. *Locked* loses its write permission and gets it back. *Fickle* creates and
drops topics. Two more send heartbeats and seldom register. Everything about *sample* is known (``sample_group.py``).

Clients: a pinned one for each node; some that fail over; one that caches routes and chooses a broker for each message; some that
read and write a few KV keys; one for each of the read levels lease and stale; mqadmin; and the probe, which asks all nodes at the
same time. The probe also asks for the brokers of one zone.
"""

import asyncio
import contextlib
import itertools
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from replicated_namesrv.chaos.clients import DROPPED_KEY, KEPT_KEY, Client, KvLoop, Probe, Sender, pace
from replicated_namesrv.chaos.effects import Link
from replicated_namesrv.chaos.fault_plans import Topology
from replicated_namesrv.chaos.mqadmin import Mqadmin
from replicated_namesrv.chaos.process_cluster import ProcessCluster
from replicated_namesrv.chaos.recorded_brokers import CLUSTER_NAME, DEPUTY, HEIR, PAIR, ChaosBroker, Clock
from replicated_namesrv.chaos.recorder import OK, Ended, Recorder
from replicated_namesrv.chaos.records import READER_SUFFIX
from replicated_namesrv.chaos.sample_group import BROKER as SAMPLE
from replicated_namesrv.chaos.sample_group import (
    CHANGING,
    CONFIGS,
    EXTRAS,
    IDENTITY,
    ORDER,
    ORDER_REQUEST,
    ORDERED,
    QUESTIONS,
    UNIT,
    VAIN_REQUEST,
    ZONE,
    of_registration,
)
from replicated_namesrv.chaos.scenario import WorkloadSpec
from replicated_namesrv.client.broker import BrokerAgent, BrokerOptions, Heartbeat
from replicated_namesrv.client.broker_requests import BrokerIdentity, BrokerVersion

PAIR_TOPIC, CHURN_TOPIC, MORTAL_TOPIC = "topic-pair", "topic-churn", "topic-mortal"
LOCKED_TOPIC, FICKLE_TOPIC = "topic-locked", "topic-fickle"
HEARTBEATS = {"beat/0": Heartbeat.BROKER_HEARTBEAT, "query/0": Heartbeat.QUERY_DATA_VERSION}
"""Brokers that send heartbeats. The time between two of their registrations exceeds their time-out, so only heartbeats keep them
registered."""
HEARTBEAT_TOPIC = "topic-beat"
DEPUTIES, DEPUTY_TOPIC = (f"{DEPUTY}/0", f"{DEPUTY}/1"), "topic-deputy"
"""The master, the slave that acts for it, and their topic. Only reads of ``roles`` ask for this topic, because an acting master
is listed under the id of another broker."""
DEPUTY_SETTINGS = ("supportActingMaster=true", "notifyMinBrokerIdChanged=true")
"""Settings of the nodes that the group ``deputy`` needs."""
ZONES = ("north", "south")
"""The zones of the groups g1, g2 and so on, in turn."""
RECONNECTING = "g2/0"
"""Before the faults, and after them, this broker registers over new connections and then closes the old ones."""
EARLY_DEATHS = {"mute/0": "topic-mute", "closed/0": "topic-closed"}
"""Brokers that die when the clients begin, and their topics; no other broker serves these topics. The first broker dies
silently."""
WEAK_LEVELS = ("lease", "stale")
CHURN_PERIOD_S = 1.2
LEAVES_AFTER_S = 0.9
"""Time from the last change of *churn* to its stop. By then every node that runs has received the change, but a slow follower has
not proposed it yet."""
ANNOUNCED_POLL_S = 0.02
RECONNECT_AFTER_S = 1.5
"""Time after the faults at which a broker reconnects. By then, all nodes have accepted a registration of it again."""
MQADMIN_PER_S = 1.0
SAMPLES_PER_S, SAMPLE_CHANGES_PER_S = 0.5, 0.7
ROLES_PER_S = 2.0
ZONES_PER_S = 1.0
_BROKER_PORT = 10_911
KNOWN: dict[str, Any] = {"constant": CONFIGS, "extras": EXTRAS, "read_answer": of_registration}
"""What the broker ``sample`` has in addition to other brokers."""


def zone_of(broker: str) -> str | None:
    """The zone of the group of a broker; None: the group is in no zone."""
    number = broker.partition("/")[0].removeprefix("g")
    return ZONES[int(number) % len(ZONES)] if number.isdigit() else None


class Cast:
    """Names of all participants, before anything runs."""

    def __init__(self, spec: WorkloadSpec, nodes: Sequence[str], spares: int = 0) -> None:
        """``spares``: the number of nodes at the end of ``nodes`` that start only when a fault adds them."""
        self._spec = spec
        self.nodes = tuple(nodes)
        self.spares = self.nodes[len(self.nodes) - spares :]
        self.topics = {f"topic-{number + 1}": number for number in range(spec.topics)}
        self.brokers: dict[str, list[str]] = {
            f"g{number + 1}/0": [topic for topic, place in self.topics.items() if (number - place) % spec.topics in (0, 1)]
            for number in range(spec.groups)
        }
        if spec.pair:
            self.brokers |= {"pair/0": [PAIR_TOPIC], "pair/1": [PAIR_TOPIC]}
        if spec.churn:
            self.brokers["churn/0"] = [CHURN_TOPIC, "topic-1"]
        if spec.mortal != "none":
            self.brokers["mortal/0"] = [MORTAL_TOPIC, "topic-1"]
        if spec.early_deaths:
            self.brokers |= {broker: [topic] for broker, topic in EARLY_DEATHS.items()}
        if spec.mqadmin:
            self.brokers |= {"locked/0": [LOCKED_TOPIC], "fickle/0": [FICKLE_TOPIC]}
        if spec.heartbeats:
            self.brokers |= {broker: [HEARTBEAT_TOPIC] for broker in HEARTBEATS}
        if spec.deputy:
            self.brokers |= {broker: [DEPUTY_TOPIC] for broker in DEPUTIES}
        self.heirs = [f"{HEIR}{number + 1}" for number in range(spec.heirs)]
        self.brokers |= {f"{group}/{broker_id}": [f"topic-{group}"] for group in self.heirs for broker_id in (0, 1)}
        if spec.sample:
            self.brokers[SAMPLE] = [CHANGING]
        self.clients = {f"pinned-{node}": "pinned" for node in nodes}
        self.clients |= {f"failover-{number + 1}": "failover" for number in range(spec.failover_clients)}
        self.clients |= {f"kv-{number + 1}": "failover" for number in range(spec.kv_clients)}
        self.clients |= {"sender": "cache", **{level + READER_SUFFIX: "failover" for level in WEAK_LEVELS}, "probe": "probe"}
        if spec.mqadmin:
            self.clients["mqadmin"] = "mqadmin"
        self.kv_keys = [f"key-{number + 1}" for number in range(spec.kv_keys)]

    def all_topics(self) -> list[str]:
        """Every topic that clients look up."""
        apart = {DEPUTY_TOPIC, CHANGING, *(f"topic-{group}" for group in self.heirs)}
        return sorted({topic for topics in self.brokers.values() for topic in topics} - apart)

    def asks(self) -> list[str]:
        """The kinds of operations of which every run must have at least one that succeeded."""
        found = ["route", "register-copy"]
        found += ["get", "put", "delete"] if self._spec.kv_clients else []
        found += ["unregister-copy"] if self._spec.churn or self._spec.deputy else []
        found += ["roles", "master"] if self._spec.pair or self._spec.deputy else []
        found += ["write-perm", "perm", "delete-topic", "topic", "set-config", "config"] if self._spec.mqadmin else []
        found += ["heartbeat"] if self._spec.heartbeats else []
        found += ["answer", "version", "order-conf"] if self._spec.sample else []
        return found + (["zone-route", "cluster", "topic-list", "kv-list"] if self._spec.zones and self._spec.groups else [])

    @property
    def listening(self) -> list[str]:
        """The brokers that name servers notify."""
        return [broker for broker in DEPUTIES if broker in self.brokers]

    def links(self) -> list[Link]:
        """Links of brokers and clients. A pinned client has one link."""
        found = [Link(broker, node) for broker in self.brokers for node in self.nodes]
        for client, kind in self.clients.items():
            found += [Link(client, node) for node in self.nodes if kind != "pinned" or client == f"pinned-{node}"]
        return found

    def topology(self) -> Topology:
        """The sites. Participants are assigned in turn; the probe belongs to no site."""
        homes = dict(zip(self.brokers, itertools.cycle(self.nodes), strict=False))
        others = [client for client, kind in self.clients.items() if kind not in ("pinned", "probe")]
        homes |= dict(zip(others, itertools.cycle(self.nodes), strict=False))
        homes |= {f"pinned-{node}": node for node in self.nodes}
        peers = [Link(a, b) for a in self.nodes for b in self.nodes if a != b]
        return Topology(self.nodes, homes, frozenset(self.brokers), (*peers, *self.links()), self.spares)


class Workload:
    """The participants at work."""

    def __init__(
        self,
        spec: WorkloadSpec,
        cast: Cast,
        cluster: ProcessCluster,
        recorder: Recorder,
        rng: random.Random,
        version: BrokerVersion = BrokerVersion.V5_3,
        *,
        sets: bool = True,
    ) -> None:
        """``version``: the version of the brokers. Brokers of 4.9 have a time-out of 120 s, which no setting changes. ``sets``:
        whether mqadmin changes settings of the nodes."""
        self._version = version
        self._spec, self._cast, self._recorder, self._rng = spec, cast, recorder, rng
        self._cluster = cluster
        self._tasks: set[asyncio.Task[Any]] = set()
        self._ended = asyncio.Event()
        self._changing = True
        self._dead: set[str] = set()
        self._agents: dict[str, BrokerAgent] = {}
        self.brokers = self._make_brokers()
        self.clients = {name: self._make_client(name, kind) for name, kind in cast.clients.items()}
        self._mqadmin: Mqadmin | None = None
        if spec.mqadmin:
            told = self.brokers["locked/0"], self.brokers["fickle/0"]
            self._mqadmin = Mqadmin(self.clients["mqadmin"], self.clients["probe"], *told, sets=sets)
        kv_clients = [self.clients[f"kv-{number + 1}"] for number in range(spec.kv_clients)]
        self._kv = [KvLoop(client, cast.kv_keys, to_all=spec.kv_writes == "all") for client in kv_clients]
        self._listed: Sequence[str]
        self.use_nodes(cluster.founders)

    def use_nodes(self, nodes: Sequence[str]) -> None:
        """Give brokers and clients another list of name servers."""
        self._listed = nodes
        for broker in self.brokers.values():
            broker.use_nodes(nodes)
        for client in self.clients.values():
            client.use_nodes(nodes)

    def _make_brokers(self) -> dict[str, ChaosBroker]:
        spec, clock, queues = self._spec, Clock(), itertools.count(1)
        options = BrokerOptions(
            version=self._version,
            register_period_ms=spec.register_period_ms,
            heartbeat_timeout_ms=spec.broker_timeout_ms if self._version is BrokerVersion.V5_3 else None,
            register_timeout_ms=spec.broker_timeout_ms // 2,
            scan_interval_ms=max(100, spec.register_period_ms // 2),
        )
        listening = dict(zip(self._cast.listening, self._cluster.broker_addresses, strict=True))
        found = {}
        for number, (name, topics) in enumerate(self._cast.brokers.items()):
            group, _, broker_id = name.partition("/")
            address = listening.get(name, f"127.0.1.{1 + number // 100}:{_BROKER_PORT + number}")
            identity = BrokerIdentity(CLUSTER_NAME, group, int(broker_id), address, address) if name != SAMPLE else IDENTITY
            servers = {node: self._cluster.address(Link(name, node)) for node in self._cast.nodes}
            rng = random.Random(self._rng.random())
            found[name] = ChaosBroker(
                identity,
                topics,
                servers,
                self._options(options, name),
                self._recorder,
                rng,
                clock,
                lambda: next(queues),
                lambda node: node not in self._dead,
                self._agents,
                self._cluster.access.brokers,
                **(KNOWN if name == SAMPLE else {}),
            )
        processes = {broker.agent.identity.broker_addr: broker.process for broker in found.values()}
        for broker in found.values():
            broker.processes = processes
        for group in (PAIR, DEPUTY):
            if f"{group}/1" in found:
                found[f"{group}/1"].follow(found[f"{group}/0"])
        return found

    def _options(self, options: BrokerOptions, broker: str) -> BrokerOptions:
        """The options of a broker, from the ``options`` of all."""
        if broker in HEARTBEATS:
            return self._with_heartbeats(options, HEARTBEATS[broker])
        if broker in DEPUTIES:
            period_ms = self._spec.register_period_ms
            return replace(options, heartbeat=Heartbeat.BROKER_HEARTBEAT, heartbeat_interval_ms=period_ms, listen=True)
        if broker == SAMPLE:
            return replace(options, force_register=False, zone_name=ZONE)
        return replace(options, zone_name=zone_of(broker)) if self._spec.zones else options

    def _with_heartbeats(self, options: BrokerOptions, heartbeat: Heartbeat) -> BrokerOptions:
        """``options`` of a broker that sends heartbeats as often as other brokers register. Brokers of 4.9 send none."""
        if self._version is not BrokerVersion.V5_3:
            return options
        spec = self._spec
        period_ms = spec.broker_timeout_ms + spec.register_period_ms
        return replace(options, heartbeat=heartbeat, heartbeat_interval_ms=spec.register_period_ms, register_period_ms=period_ms)

    def _make_client(self, name: str, kind: str) -> Client:
        nodes = [node for node in self._cast.nodes if kind != "pinned" or name == f"pinned-{node}"]
        rng = random.Random(self._rng.random())
        rng.shuffle(nodes)  # RocketMQ's clients shuffle their list in the same way
        addresses = {node: self._cluster.address(Link(name, node)) for node in nodes}
        return Client(name, kind, addresses, self._recorder, rng, self._spec.operation_timeout_ms, self._cluster.access.clients)

    def is_reachable(self, broker: str) -> bool:
        """Whether ``brokerName/0`` would accept a message now: it is the master, alive and writable."""
        return any(one.name == broker and one.alive and one.writable for one in self.brokers.values())

    def at_edge(self, exposed: set[str], dead: set[str]) -> None:
        """Links or nodes change. Only brokers in ``exposed`` may be dropped now; nodes in ``dead`` do not run."""
        self._dead = dead
        for name, broker in self.brokers.items():
            broker.set_cut(name in exposed)

    async def watch_own_pauses(self) -> None:
        """Record when the harness did not run for a third of the brokers' time-out."""
        loop, limit_s = asyncio.get_running_loop(), self._spec.broker_timeout_ms / 3000
        while True:
            before = loop.time()
            await asyncio.sleep(limit_s / 10)
            if loop.time() - before > limit_s:
                for broker in self.brokers.values():
                    broker.stood_still()

    async def start(self) -> None:
        """Start the brokers, except those that replace others. On return each broker has registered with all nodes that it could
        reach."""
        late = [f"{group}/1" for group in self._cast.heirs]
        await asyncio.gather(*(broker.start() for name, broker in self.brokers.items() if name not in late))

    def begin(self, steady_s: float) -> None:
        """Start all loops; they run until ``end``. ``steady_s``: time until the faults begin."""
        spec, topics = self._spec, self._cast.all_topics()
        for client in self.clients.values():
            level = client.name.removesuffix(READER_SUFFIX) if client.name.endswith(READER_SUFFIX) else None
            if client.kind in ("pinned", "failover") and not client.name.startswith("kv-"):
                self._spawn(self._pace(spec.lookups_per_s, client.rng, _Lookups(client, topics, level).once))
        for loop in self._kv:
            self._spawn(self._pace(spec.kv_per_s, self._rng, loop.once))
        for loop in self._kv[:1]:
            self._spawn(loop.write_once())
        sender = Sender(self.clients["sender"], topics, self._recorder, self.is_reachable)
        self._spawn(self._pace(1.0, self._rng, sender.poll))
        self._spawn(self._pace(spec.sends_per_s, self._rng, sender.send))
        self._spawn(self._pace(spec.probes_per_s, self._rng, Probe(self.clients["probe"], topics, self._cast.kv_keys).once))
        if spec.changes_per_s > 0:
            self._spawn(self._pace(spec.changes_per_s, self._rng, self._change_one))
        for broker in EARLY_DEATHS if spec.early_deaths else ():
            self._spawn(self.brokers[broker].die(silent=broker == "mute/0"))
        if spec.churn:
            self._spawn(self._churn(self.brokers["churn/0"]))
        if RECONNECTING in self.brokers:
            self._spawn(self._reconnect(steady_s / 4, 2))
        if spec.pair:
            self._spawn(self._pace(ROLES_PER_S, self._rng, partial(self._look_at_roles, PAIR, PAIR_TOPIC)))
        for group in self._cast.heirs:
            self._spawn(self._pace(ROLES_PER_S, self._rng, partial(self._look_at_roles, group, f"topic-{group}")))
        if spec.deputy:
            self._spawn(self._pace(ROLES_PER_S, self._rng, partial(self._look_at_roles, DEPUTY, DEPUTY_TOPIC)))
            self._spawn(self._leave_for_a_moment(self.brokers[DEPUTIES[0]], steady_s / 6))
        if spec.sample:
            self._spawn(self._write_order())
            self._spawn(self._pace(SAMPLE_CHANGES_PER_S, self._rng, self._change_sample))
            self._spawn(self._pace(SAMPLES_PER_S, self._rng, self._ask_about_sample))
        if spec.zones and spec.groups:
            self._spawn(self._pace(ZONES_PER_S, self._rng, self._look_in_other_ways))
        if self._mqadmin is not None:
            self._spawn(self._pace(MQADMIN_PER_S, self._rng, self._mqadmin.change_perm))
            self._spawn(self._pace(MQADMIN_PER_S, self._rng, self._mqadmin.replace_topic))
            if self._mqadmin.sets:
                self._spawn(self._pace(MQADMIN_PER_S, self._rng, self._mqadmin.change_setting))

    async def during_fault(self, fault_s: float) -> None:
        """Brokers' actions during the faults: two die, heirs take the place of others, a pair switches roles."""
        async with asyncio.TaskGroup() as group:
            if self._spec.deputy:
                group.create_task(self._lose_master(fault_s / 4))
            if self._spec.mortal != "none":
                group.create_task(self._die(fault_s / 4))
            for number, heir in enumerate(self._cast.heirs):
                group.create_task(self._inherit(heir, fault_s * (number + 1) / (len(self._cast.heirs) + 2)))
            if self._spec.pair:
                group.create_task(self._switch(fault_s / 3))

    async def _die(self, after_s: float) -> None:
        await asyncio.sleep(after_s)
        await self.brokers["mortal/0"].die(silent=self._spec.mortal == "silent")

    async def _switch(self, after_s: float) -> None:
        """A broker of 5.x registers as master with the controller's epoch. A name server then refuses late registrations of the
        earlier master. Versions before 5.0 have no epoch."""
        await asyncio.sleep(after_s)
        await self.brokers["pair/0"].switch_role(2)
        await self.brokers["pair/1"].switch_role(0, 1 if self._version is BrokerVersion.V5_3 else None)

    async def _inherit(self, group: str, after_s: float) -> None:
        """The master changes its topics and dies silently, and another broker takes its place. A slow node has not answered the
        change by then."""
        await asyncio.sleep(after_s)
        master = self.brokers[f"{group}/0"]
        change = asyncio.create_task(master.change())
        await asyncio.sleep(LEAVES_AFTER_S)
        await master.die(silent=True)
        await asyncio.gather(self.brokers[f"{group}/1"].start_as(0), change)

    async def _look_at_roles(self, group: str, topic: str) -> None:
        probe, pair = self.clients["probe"], [self.brokers[f"{group}/0"], self.brokers[f"{group}/1"]]
        processes = {broker.agent.identity.broker_addr: broker.process for broker in pair}
        await asyncio.gather(*(probe.roles(group, topic, processes, node=node) for node in self._listed))

    async def _leave_for_a_moment(self, master: ChaosBroker, moment_s: float) -> None:
        for act in (master.stop, master.start):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(moment_s):
                    await self._ended.wait()
                    return
            await act()

    async def _lose_master(self, after_s: float) -> None:
        await asyncio.sleep(after_s)
        master = self.brokers[DEPUTIES[0]]
        if master.alive and master.state != "starting":
            await master.die(silent=False)

    async def _look_in_other_ways(self) -> None:
        """Ask each node for the route of a topic, for the part in one zone, for all brokers, for all topics, for the members of a
        group, and for the route again. Also ask for all KV entries, and for the route with the level lease, because the client
        with this level asks only one node at a time."""
        probe, topic, zone = self.clients["probe"], self._rng.choice(list(self._cast.topics)), self._rng.choice(ZONES)
        groups = ["g1/0", "pair/0"] if self._spec.pair else ["g1/0"]
        group = self.brokers[self._rng.choice(groups)].agent.identity
        topics = [topic, PAIR_TOPIC] if group.broker_name == PAIR else [topic]

        async def look(node: str) -> None:
            for asked in topics:
                await probe.route(asked, node=node)
            await probe.zone_route(topic, zone, node=node)
            await probe.cluster("cluster", node=node)
            await probe.topic_list("topics", node=node)
            if self._version is BrokerVersion.V5_3:
                await probe.member_group(group, node=node)
            for asked in topics:
                await probe.route(asked, node=node)
            await probe.kv_list(node=node)
            await probe.route(topic, node=node, level="lease")

        await asyncio.gather(*(look(node) for node in self._listed))

    async def _write_order(self) -> None:
        """Write the order configuration to each node."""
        for node in self._cast.nodes[: len(self._cast.nodes) - len(self._cast.spares)]:
            while not self._ended.is_set():
                told = await self.clients["probe"].order("order-conf", ORDERED, ORDER, ORDER_REQUEST, node)
                if told.outcome == OK:
                    break
                await asyncio.sleep(0.1)

    async def _change_sample(self) -> None:
        if self._changing and self.brokers[SAMPLE].alive:
            await self.brokers[SAMPLE].change_later()

    async def _ask_about_sample(self) -> None:
        probe = self.clients["probe"]

        async def look(node: str) -> None:
            await probe.order("vain-delete", UNIT, None, VAIN_REQUEST, node)
            for question in QUESTIONS:
                if (await probe.answer(question, node=node)).outcome != OK:
                    return

        await asyncio.gather(*(look(node) for node in self._listed))

    async def calm(self) -> None:
        """After the faults: dead brokers return, and no broker changes its topics."""
        self._changing = False
        if self._mqadmin is not None:
            self._mqadmin.writing = False
        mortals = [self.brokers[name] for name in ("mortal/0", DEPUTIES[0], *EARLY_DEATHS) if name in self.brokers]
        await asyncio.gather(*(mortal.start() for mortal in mortals if mortal.state in ("stopped", "dead", "silent")))
        if RECONNECTING in self.brokers:
            self._spawn(self._reconnect(RECONNECT_AFTER_S, 1))

    async def end(self) -> None:
        """Stop the clients once their pending operations have ended. Brokers continue to renew."""
        for loop in self._kv:
            loop.writing = False
        tasks, self._tasks = self._tasks, set()
        self._ended.set()
        await asyncio.wait(tasks, timeout=len(self._listed) * self._spec.operation_timeout_ms / 1000)
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome
        churn = self.brokers.get("churn/0")
        if churn is not None and not churn.alive:
            await churn.start()

    def complain(self) -> None:
        """Raise the error of a failed task at once: it is a defect of the harness."""
        for task in self._tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error

    async def final_reads(self, longest_s: float, nodes: Sequence[str]) -> None:
        """Read every key and topic from each of ``nodes`` once more. A node without an answer is asked again."""
        probe = self.clients["probe"]
        keys = [*self._cast.kv_keys, KEPT_KEY, DROPPED_KEY] if self._kv else self._cast.kv_keys
        asked: list[tuple[Callable[..., Awaitable[Ended]], str]] = [(probe.get, key) for key in keys]
        looks: list[tuple[Callable[..., Awaitable[Ended]], str]] = [(probe.route, topic) for topic in self._cast.all_topics()]
        looks += self._mqadmin.questions() if self._mqadmin is not None else []
        asked += looks
        if self._spec.zones:  # these lists have to agree with the routes before and after them
            asked += [(probe.cluster, "cluster"), (probe.topic_list, "topics"), *looks]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(longest_s):
                for read, key in asked:
                    for node in nodes:
                        while (await read(key, node=node)).outcome != OK:  # noqa: ASYNC110 - each iteration is a request
                            await asyncio.sleep(0.1)

    async def close(self) -> None:
        """Stop everything. Brokers do not unregister, because nodes may no longer listen."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for broker in self.brokers.values():
            await broker.agent.kill()
            await broker.release()
        await asyncio.gather(*(client.close() for client in self.clients.values()))

    async def _reconnect(self, pause_s: float, times: int) -> None:
        for _ in range(times):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._ended.wait()
                    return
            await self.brokers[RECONNECTING].reconnect()

    async def _change_one(self) -> None:
        serving = [broker for name, broker in self.brokers.items() if name.startswith("g") and broker.alive]
        if self._changing and serving:
            await self._rng.choice(serving).change()

    async def _churn(self, broker: ChaosBroker) -> None:
        while not self._ended.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CHURN_PERIOD_S * self._rng.uniform(0.5, 1.5)):
                    await self._ended.wait()
            if broker.alive and (not self._changing or self._ended.is_set()):
                continue
            await (self._leave(broker) if broker.alive else broker.start())

    async def _leave(self, broker: ChaosBroker) -> None:
        """Change the broker's topics, and stop it soon after that. A slow node has not answered the change by then."""
        change = asyncio.create_task(broker.change())
        try:
            await asyncio.sleep(0)  # the task has to begin first
            # an earlier registration may still wait for its answers
            while not broker.is_announced and not change.done():  # noqa: ASYNC110 - no event is set when a request is sent
                await asyncio.sleep(ANNOUNCED_POLL_S)
            async with asyncio.timeout(LEAVES_AFTER_S):
                await self._ended.wait()
                await change
        except TimeoutError:
            await broker.stop()
            await change
        finally:
            change.cancel()

    async def _pace(self, per_s: float, rng: random.Random, action: Callable[[], Awaitable[object]]) -> None:
        await pace(per_s, rng, action, self._ended)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.add(asyncio.create_task(work))


class _Lookups:
    """Route look-ups of one client, topic after topic in random order."""

    def __init__(self, client: Client, topics: Sequence[str], level: str | None) -> None:
        self._client, self._topics, self._level = client, topics, level

    async def once(self) -> None:
        await self._client.route(self._client.rng.choice(self._topics), level=self._level)

"""Checks that the answers of three processes are linearizable while the processes are killed, stopped and cut off.

    python -m tests.replication.linearizability --operations 20000 --faults 20 --out history.jsonl

Clients put, get and delete KV entries and register, unregister and look up brokers, each operation through a node drawn at
random, each value written once. A fault is a node killed and started again, a node stopped for a while, a node cut off from its
peers while clients still reach it, or a cut of both directions between two nodes. The operations of all clients are written as
JSON lines, in the format of ``replicated_namesrv.verify.operation_history``, and judged.

An operation that was certainly never sent is a ``fail``. One that was sent and not answered with success is ``indeterminate``.
After a registration without an answer the client does not use the broker's name any more. Its connection is closed, so the
service may drop the broker later. In the history this is an indeterminate unregistration. Every other broker is kept alive by
oneway heartbeats (904) over connections to all nodes, as brokers do, so it must not vanish.

Exit codes: 0 linearizable, 1 not, 2 unknown or bad usage.
"""

import argparse
import asyncio
import contextlib
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from replicated_namesrv.client.broker_requests import BrokerIdentity, BrokerVersion, heartbeat_request, unregister_request
from replicated_namesrv.client.queries import (
    RefusedError,
    delete_kv_request,
    get_kv_request,
    put_kv_request,
    read_done,
    read_kv,
    read_route,
    route_request,
)
from replicated_namesrv.client.remoting import RemotingClient, RemotingCommand
from replicated_namesrv.client.topics import TopicConfig
from replicated_namesrv.errors import NamesrvError
from replicated_namesrv.model import DataVersion
from replicated_namesrv.verify import Operation, Outcome, Verdict, check_history, read_history, write_history
from replicated_namesrv.verify.operation_history import Json
from tests.support.replicated_processes import LIMIT_S, ReplicatedProcesses, replicated_processes
from tests.support.replicated_traffic import CLUSTER, LONG_TIMEOUT_MS, registration
from tests.support.waiting import until

NAMESPACE = "linearizability"
REQUEST_TIMEOUT_MS = 1_000
AVOID_S = 0.3
"""Time in which a client does not use a node that gave it no answer."""
KINDS = ("get", "put", "delete", "route", "register", "unregister")
WEIGHTS = (35, 20, 5, 22, 12, 6)
FAULTS = ("kill", "cut", "stop", "link")
HEARTBEAT_INTERVAL_S = 1.0


@dataclass
class Plan:
    """Parameters of a run."""

    operations: int = 20_000
    """Minimum number of operations that succeeded."""
    faults: int = 20
    clients: int = 8
    keys: int = 16
    topics: int = 8
    pause_s: float = 0.002
    """Pause of a client between two operations."""
    seed: int = 0
    read_consistency: str | None = None
    """Sent with every read. None: not sent, and reads are linearizable."""
    prefix: str = "key"
    """Prefix of all keys. None of them may be present when a history begins."""


@dataclass
class Run:
    """The result of a run."""

    operations: list[Operation] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    succeeded: int = 0

    def add(self, client: str, kind: str, key: str, value: Json, start_ns: int, outcome: Outcome) -> None:
        """Note an operation that ends now."""
        end_ns = None if outcome is Outcome.INDETERMINATE else time.monotonic_ns()
        self.operations.append(Operation(client, kind, key, value, start_ns, end_ns, outcome))
        self.succeeded += outcome is Outcome.OK


class Client:
    """One client: one operation at a time."""

    def __init__(self, name: str, addresses: Sequence[str], plan: Plan, run: Run) -> None:
        self.name, self._addresses, self._plan, self._run = name, addresses, plan, run
        self._rng = random.Random(f"{plan.seed} {name}")
        self.stopped = False
        self._client = RemotingClient(on_disconnect=self._disconnected)
        self._avoid: dict[str, float] = {}
        self._number = 0
        self._lives: Counter[str] = Counter()
        """Number of lives that have ended, by topic. Names of ended lives are not expected in routes."""
        self._alive: dict[str, BrokerIdentity] = {}
        """Brokers registered, by topic."""
        self._carriers: dict[str, set[str]] = {}
        """Nodes that received them over the present connection, by topic."""

    async def work(self) -> None:
        """Operate until stopped. Pending operations are completed; otherwise they would be missing in the history."""
        while not self.stopped:
            kind = self._rng.choices(KINDS, WEIGHTS)[0]
            if kind in ("get", "put", "delete"):
                await self._kv(kind, f"{self._plan.prefix}-{self._rng.randrange(self._plan.keys)}")
            else:
                await self._route(kind, f"{self._plan.prefix}-topic-{self._rng.randrange(self._plan.topics)}")
            await asyncio.sleep(self._plan.pause_s)

    async def hold_on(self) -> None:
        """Send heartbeats meanwhile."""
        while not self.stopped:
            await asyncio.gather(*(self._hold(*alive) for alive in list(self._alive.items())))
            await asyncio.sleep(HEARTBEAT_INTERVAL_S)

    async def close(self) -> None:
        """Drop all connections."""
        self._alive.clear()
        await self._client.abort()

    async def _hold(self, topic: str, identity: BrokerIdentity) -> None:
        request = heartbeat_request(identity, BrokerVersion.V5_3, None)
        for address in self._addresses:
            with contextlib.suppress(NamesrvError):
                await self._client.send_oneway(address, request, REQUEST_TIMEOUT_MS)
                if self._alive.get(topic) == identity:
                    self._carriers[topic].add(address)

    def _disconnected(self, address: str) -> None:
        """A broker that lost its last connection may be dropped, so it is no longer expected."""
        for topic, carriers in self._carriers.items():
            carriers.discard(address)
            if not carriers and topic in self._alive:
                member: Json = self._alive[topic].broker_name
                self._run.add(self.name, "unregister", topic, member, time.monotonic_ns(), Outcome.INDETERMINATE)
                self._give_up(topic)

    def _choose(self) -> str:
        now = time.monotonic()
        return self._rng.choice([one for one in self._addresses if self._avoid.get(one, 0) < now] or self._addresses)

    async def _ask(self, request: RemotingCommand, address: str | None = None, client: RemotingClient | None = None) -> Any:
        address = address or self._choose()
        try:
            return await (client or self._client).request(address, request, REQUEST_TIMEOUT_MS)
        except NamesrvError:
            self._avoid[address] = time.monotonic() + AVOID_S
            raise

    def _read(self, request: RemotingCommand) -> RemotingCommand:
        if self._plan.read_consistency is None:
            return request
        return request._replace(ext_fields={**(request.ext_fields or {}), "readConsistency": self._plan.read_consistency})

    async def _kv(self, kind: str, key: str) -> None:
        value: Json = None
        if kind == "put":
            self._number += 1
            value = f"{self.name}-{self._number}"
        start_ns = time.monotonic_ns()
        try:
            if kind == "get":
                value = read_kv(await self._ask(self._read(get_kv_request(NAMESPACE, key))))
            elif kind == "put":
                read_done(await self._ask(put_kv_request(NAMESPACE, key, str(value))))
            else:
                read_done(await self._ask(delete_kv_request(NAMESPACE, key)))
            outcome = Outcome.OK
        except NamesrvError as error:
            outcome = outcome_of(error)
        self._run.add(self.name, kind, key, value, start_ns, outcome)

    async def _route(self, kind: str, topic: str) -> None:
        start_ns = time.monotonic_ns()
        if kind == "route":
            value: Json = None
            try:
                route = read_route(await self._ask(self._read(route_request(topic))))
                value = [] if route is None else [[name, queues.read_queue_nums] for name, queues in route.queue_datas]
                outcome = Outcome.OK
            except NamesrvError as error:
                outcome = outcome_of(error)
            self._run.add(self.name, kind, topic, value, start_ns, outcome)
        elif kind == "register":
            await self._register(topic, start_ns)
        elif topic in self._alive:
            await self._unregister(topic, start_ns)

    async def _register(self, topic: str, start_ns: int) -> None:
        self._number += 1
        number, life = self._number, self._lives[topic]
        broker_name = f"{topic}-{self.name}-{life}"
        identity = BrokerIdentity(CLUSTER, broker_name, 0, f"{broker_name}:10911", "10.1.1.1:10912")
        topics = (TopicConfig(topic, number, number), TopicConfig("TBW102"))
        member: Json = [broker_name, number]
        request = registration(identity, DataVersion(number, 0, 1_700_000_000_000 + number), LONG_TIMEOUT_MS, topics)
        try:
            read_done(await self._ask(request))
            outcome = Outcome.OK
            self._alive[topic] = identity
            self._carriers[topic] = set()
        except NamesrvError as error:
            outcome = outcome_of(error)
        self._run.add(self.name, "register", topic, member, start_ns, outcome)
        if outcome is Outcome.OK:
            await self._hold(topic, identity)
        elif outcome is Outcome.INDETERMINATE:
            self._run.add(self.name, "unregister", topic, member, start_ns, outcome)
            self._give_up(topic)

    async def _unregister(self, topic: str, start_ns: int) -> None:
        """Unregister as a broker does, node by node over its connections, or over a new connection to any node. (A request over
        only one of several connections may count as a late request of an earlier life.)"""
        identity = self._alive[topic]
        request = unregister_request(identity, BrokerVersion.V5_3)
        fresh, sent = RemotingClient(), False
        try:
            if self._rng.random() < 0.5:
                read_done(await self._ask(request, client=fresh))
            else:
                for address in self._addresses:
                    read_done(await self._ask(request, address))
                    sent = True
            outcome = Outcome.OK
            self._alive.pop(topic, None)
        except NamesrvError as error:
            outcome = outcome_of(error) if not sent else Outcome.INDETERMINATE
        finally:
            await fresh.abort()
        self._run.add(self.name, "unregister", topic, identity.broker_name, start_ns, outcome)
        if outcome is Outcome.INDETERMINATE and topic in self._alive:
            self._give_up(topic)

    def _give_up(self, topic: str) -> None:
        self._alive.pop(topic, None)
        self._lives[topic] += 1


def outcome_of(error: NamesrvError) -> Outcome:
    """The outcome of an operation that ended with this error. A refusal does not prove that the operation was not done, because
    the test does not rely on the text of a refusal."""
    return Outcome.FAIL if error.definite and not isinstance(error, RefusedError) else Outcome.INDETERMINATE


async def do_fault(cluster: ReplicatedProcesses, rng: random.Random, run: Run) -> None:
    """Cause one fault, wait for some time, and end it."""
    kind = FAULTS[run.faults.total() % len(FAULTS)]
    name = await cluster.leader() if rng.random() < 0.5 else rng.choice(cluster.names)
    hold_s = rng.uniform(0.3, 2.0)
    least = run.succeeded + rng.randrange(100)
    run.faults[kind] += 1
    if kind == "kill":
        await cluster.kill(name)
        hold_s /= 2
    elif kind == "stop":
        cluster.pause(name)
    elif kind == "cut":
        cluster.cut(name)
    else:
        other = rng.choice(cluster.others(name))
        for pair in ((name, other), (other, name)):
            cluster.relays[pair].hold()
    end = time.monotonic() + hold_s
    await until(lambda: time.monotonic() >= end and run.succeeded >= least, "operations succeed meanwhile", LIMIT_S)
    await cluster.restore()


@asynccontextmanager
async def clients_at_work(cluster: ReplicatedProcesses, plan: Plan, run: Run) -> AsyncIterator[Callable[[], None]]:
    """All clients, operating during the block. Yields a function that raises the error of a client that has failed."""
    clients = [Client(f"c{number}", cluster.addresses, plan, run) for number in range(plan.clients)]
    tasks = [asyncio.create_task(work) for client in clients for work in (client.work(), client.hold_on())]

    def check() -> None:
        for task in tasks:
            if task.done():
                task.result()

    try:
        yield check
    finally:
        for client in clients:
            client.stopped = True
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        for client in clients:
            await client.close()
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome


async def perform(cluster: ReplicatedProcesses, plan: Plan, say: Any = lambda text: None) -> Run:
    """The whole run; returns when there were enough faults and operations and the nodes agree."""
    run, rng = Run(), random.Random(f"{plan.seed} faults")
    async with clients_at_work(cluster, plan, run) as check:
        while run.faults.total() < plan.faults or run.succeeded < plan.operations:
            if run.faults.total() < plan.faults:
                await do_fault(cluster, rng, run)
            await asyncio.sleep(0.5)
            check()
            say(f"{run.faults.total()} faults {dict(run.faults)}, {run.succeeded} operations succeeded of {len(run.operations)}")
    await cluster.agree()
    return run


async def _main(plan: Plan, out: Path, folder: Path) -> Run:
    async with replicated_processes(folder) as cluster:
        run = await perform(cluster, plan, lambda text: print(text, file=sys.stderr, flush=True))
    write_history(out, run.operations)
    return run


def main(arguments: Sequence[str]) -> int:
    """Run the command. Returns its exit code."""
    parser = argparse.ArgumentParser(prog="linearizability", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--operations", type=int, default=20_000, metavar="N", help="at least so many that succeed (20000)")
    parser.add_argument("--faults", type=int, default=20, metavar="N", help="nodes killed, stopped, cut off; links held (20)")
    parser.add_argument("--clients", type=int, default=8, metavar="N", help="one operation each at a time (8)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000), help="of all random choices")
    parser.add_argument("--read-consistency", choices=("linearizable", "lease", "stale"), help="sent with every read")
    parser.add_argument("--out", type=Path, default=Path("history.jsonl"), metavar="FILE", help="history (history.jsonl)")
    parser.add_argument("--check", type=Path, metavar="FILE", help="run nothing, judge this history")
    parser.add_argument("--json", action="store_true", help="print the verdict as JSON")
    given = parser.parse_args(arguments)
    found: dict[str, object] = {}
    try:
        if given.check is None:
            plan = Plan(given.operations, given.faults, given.clients, seed=given.seed, read_consistency=given.read_consistency)
            with tempfile.TemporaryDirectory() as folder:
                run = asyncio.run(_main(plan, given.out, Path(folder)))
            outcomes = Counter(str(operation.outcome) for operation in run.operations)
            found = {"seed": plan.seed, "faults": dict(run.faults), "outcomes": dict(outcomes), "history": str(given.out)}
        verdict = check_history(read_history(given.check or given.out))
    except NamesrvError as error:
        print(f"linearizability: {error}", file=sys.stderr)
        return 2
    if given.json:
        print(json.dumps({"verdict": verdict.verdict, "operations": verdict.operations, "keys": len(verdict.keys), **found}))
    else:
        print(verdict.describe(), *(f"{name}: {value}" for name, value in found.items()), sep="\n")
    return {Verdict.VALID: 0, Verdict.VIOLATED: 1}.get(verdict.verdict, 2)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Random conversations with RocketMQ's name server and with ours: answers, pushes and closed connections are compared.

    python -m tests.interop.fidelity --seeds 0:100        # exit 1 at the first difference, which is printed in few steps

A conversation is a list of steps drawn from a seed. Registrations, heartbeats and closes are those of five brokers, each with a
connection of its own and a port at which it receives pushes; all other requests come from one more connection. After each step
all questions are asked until both servers answer alike, because Java removes brokers in the background. A difference that stays
is shrunk: steps are left out while a difference remains. If the brokers of an earlier conversation cannot be removed, this is
reported as a difference with an empty list of steps.

Differences that docs/compatibility.md lists are not drawn: each broker name has addresses and a cluster of its own; no data
version is used twice; a registration is repeated unchanged only while it is in force, and a data version is asked for only then,
because Java keeps live entries of brokers that it no longer lists; a broker is unregistered with the id that it has.
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
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from replicated_namesrv.chaos.foreign_servers import prepare
from replicated_namesrv.chaos.run_modes import ForeignMode
from replicated_namesrv.child_process import SERVE, serve_command
from replicated_namesrv.client.push_receiver import PushListener
from replicated_namesrv.client.remoting import RemotingClient, RemotingCommand
from replicated_namesrv.errors import NamesrvError
from replicated_namesrv.wire import fastjson
from tests.interop.lab import Process, ask, wait_for
from tests.support.ports import free_port

TOPICS = ("T", "U", "V", "rmq_sys_SYNC_BROKER_MEMBER_b")
BROKERS = {"a": ("a1", "a2"), "b": ("b1", "b2", "b3")}
"""The brokers of each broker name."""
GROUP_OF = {broker: name for name, brokers in BROKERS.items() for broker in brokers}
CLUSTERS = {"a": "A", "b": "B"}
FLAGS = ("supportActingMaster", "deleteTopicWithBrokerRegistration", "orderMessageEnable")
SETTINGS = ("scanNotActiveBrokerInterval=200", "notifyMinBrokerIdChanged=true")
HOSTS = ("127.0.0.11", "127.0.0.12")
"""The hosts at which the brokers receive the pushes of Java's server, and of ours. In the requests to a server, the brokers
announce the host that belongs to this server. Answers are compared without the host."""
HOST = "HOST"
SETTLED_S, SETTLED_WHILE_SHRINKING_S = 30.0, 3.0
"""How long the servers may differ. The second, shorter time is for a difference that is being shrunk, because it is known to
stay."""
ANSWER_TIMEOUT_MS = 30_000
STEPS_MAX = 1_000
SILENT_MS = 300
"""Time-out of a broker that stays silent."""
OTHERS = "others"
"""The connection of requests that do not come from a broker."""

Answer = tuple[int, str | None, Any, Any]


class Step(NamedTuple):
    """One step. ``kind``: register, renew, silent, unregister, heartbeat, query, close, or request."""

    kind: str
    broker: str = ""
    fields: dict[str, str] = {}  # noqa: RUF012 - never changed
    body: str = ""
    code: int = 0


class Request(NamedTuple):
    """A request as it is sent over a connection, with HOST in place of the host."""

    connection: str
    code: int
    fields: dict[str, str]
    body: str = ""


@dataclass
class Server:
    """One server with its connections and what it pushed."""

    address: str
    host: str
    clients: dict[str, RemotingClient] = field(default_factory=dict)
    pushes: Counter[str] = field(default_factory=Counter)
    """The number of pushes by recipient and content."""
    listeners: list[PushListener] = field(default_factory=list)

    def client(self, connection: str) -> RemotingClient:
        return self.clients.setdefault(connection, RemotingClient())

    async def listen(self, ports: dict[str, int]) -> None:
        for broker, port in ports.items():
            listener = PushListener(partial(self._pushed, broker))
            self.listeners.append(listener)
            await listener.start(f"{self.host}:{port}")

    def _pushed(self, broker: str, _peer: str, command: RemotingCommand) -> None:
        fields = json.dumps(command.ext_fields or {}, sort_keys=True).replace(self.host, HOST)
        self.pushes[f"to {broker}: {command.code} {fields}"] += 1

    async def ask(self, request: Request) -> Answer:
        """The code, remark, fields and body of the answer, with lists in a common order. Raises NamesrvError."""
        fields = {name: value.replace(HOST, self.host) for name, value in request.fields.items()}
        command = RemotingCommand(request.code, fields, request.body.replace(HOST, self.host).encode())
        answer = await self.client(request.connection).request(self.address, command, ANSWER_TIMEOUT_MS)
        body = fastjson.loads(answer.body.replace(self.host.encode(), HOST.encode())) if answer.body else None
        named = {name: value.replace(self.host, HOST) for name, value in (answer.ext_fields or {}).items()}
        return answer.code, answer.remark, named or None, _normalized(body)

    async def close(self) -> None:
        for client in self.clients.values():
            await client.close()
        for listener in self.listeners:
            await listener.stop()


def _normalized(value: Any) -> Any:
    """The value with all its lists sorted, because Java answers in hash order."""
    if isinstance(value, dict):
        return {str(key): _normalized(item) for key, item in value.items()}
    if isinstance(value, list):
        return sorted((_normalized(item) for item in value), key=lambda item: json.dumps(item, sort_keys=True))
    return value


class Pair:
    """Java's server and ours, and the brokers that talk to both."""

    def __init__(self, theirs: Server, ours: Server, ports: dict[str, int]) -> None:
        self.theirs, self.ours, self._ports = theirs, ours, ports
        self.settled_s = SETTLED_S
        self._accepted: dict[str, Request] = {}
        """The last accepted registration of a broker."""

    def address(self, broker: str) -> str:
        """The address of a broker, with HOST in place of the host."""
        return f"{HOST}:{self._ports[broker]}"

    async def ask(self, request: Request) -> tuple[Answer, Answer]:
        """Send a request to both servers. Returns both answers. Raises NamesrvError."""
        theirs, ours = await asyncio.gather(self.theirs.ask(request), self.ours.ask(request))
        return theirs, ours

    async def ids(self) -> dict[str, str]:
        """By broker: the id under which Java lists it."""
        _, _, _, info = await self.theirs.ask(Request(OTHERS, 106, {}))
        listed = {
            addr: broker_id for group in info["brokerAddrTable"].values() for broker_id, addr in group["brokerAddrs"].items()
        }
        return {broker: listed[self.address(broker)] for broker in GROUP_OF if self.address(broker) in listed}

    async def do(self, step: Step) -> tuple[Answer, Answer] | None:
        """Take a step. Returns the answers; None if there is nothing to ask, or to do. Raises NamesrvError."""
        if step.kind == "close":
            for server in (self.theirs, self.ours):
                server.client(step.broker).disconnect(server.address)
            await self._gone(step.broker)
            return None
        request = await self._request(step)
        if request is None:
            return None
        answers = await self.ask(request)
        if step.kind == "register" and answers[0][0] == answers[1][0] == 0:
            self._accepted[step.broker] = request
        if step.kind == "silent":
            await self._gone(step.broker)
        return answers

    async def _request(self, step: Step) -> Request | None:
        broker = step.broker
        if step.kind == "request":
            return Request(OTHERS, step.code, step.fields, step.body)
        name = GROUP_OF[broker]
        place = {"brokerName": name, "brokerAddr": self.address(broker), "clusterName": CLUSTERS[name]}
        if step.kind in ("register", "silent"):
            more = {"heartbeatTimeoutMillis": str(SILENT_MS)} if step.kind == "silent" else {}
            return Request(broker, 103, {**place, **step.fields, **more}, step.body)
        ids = await self.ids()
        if step.kind == "heartbeat":
            return Request(broker, 904, place)
        if step.kind == "query":
            return Request(broker, 322, {**place, "brokerId": ids[broker]}, step.body) if broker in ids else None
        if step.kind == "unregister":
            self._accepted.pop(broker, None)
            return Request(broker, 104, {**place, "brokerId": ids[broker]}) if broker in ids else None
        last = self._accepted.get(broker)
        return last if last is not None and ids.get(broker) == last.fields["brokerId"] else None

    async def _gone(self, broker: str) -> None:
        """Wait until neither server lists the broker. If one continues to list it, the next comparison shows this."""
        self._accepted.pop(broker, None)
        deadline = time.monotonic() + self.settled_s
        while time.monotonic() < deadline:
            theirs, ours = await self.ask(Request(OTHERS, 106, {}))
            if not any(self.address(broker) in json.dumps(answer[3]) for answer in (theirs, ours)):
                return
            await asyncio.sleep(0.02)

    async def differences(self) -> dict[str, tuple[Any, Any]]:
        """The questions to which the servers give different answers, the pushes that only one sent, the connections that only one
        closed."""
        found: dict[str, tuple[Any, Any]] = {}
        found["clusters (106)"] = await self.ask(Request(OTHERS, 106, {}))
        found["topics (206)"] = await self.ask(Request(OTHERS, 206, {}))
        for topic in TOPICS:
            found[f"route of {topic} (105)"] = await self.ask(Request(OTHERS, 105, {"topic": topic}))
        for name, cluster in CLUSTERS.items():
            found[f"topics of {cluster} (224)"] = await self.ask(Request(OTHERS, 224, {"cluster": cluster}))
            fields = {"clusterName": cluster, "brokerName": name}
            found[f"members of {name} (901)"] = await self.ask(Request(OTHERS, 901, fields))
        for broker, broker_id in (await self.ids()).items():
            name = GROUP_OF[broker]
            place = {"brokerName": name, "brokerAddr": self.address(broker), "clusterName": CLUSTERS[name], "brokerId": broker_id}
            found[f"version of {broker} (322)"] = await self.ask(Request(OTHERS, 322, place, "{}"))
        pushed = self.theirs.pushes, self.ours.pushes
        found["pushes"] = dict(pushed[0] - pushed[1]), dict(pushed[1] - pushed[0])
        for broker in GROUP_OF:
            is_open = [server.client(broker).is_connected(server.address) for server in (self.theirs, self.ours)]
            found[f"connection of {broker}"] = tuple("open" if each else "closed" for each in is_open)  # type: ignore[assignment]  # two of them
        return {question: answers for question, answers in found.items() if answers[0] != answers[1]}

    async def settled_differences(self) -> dict[str, tuple[Any, Any]]:
        """The differences that remain after some time."""
        deadline = time.monotonic() + self.settled_s
        while found := await self.differences():
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(0.02)
        return found

    async def reset(self) -> dict[str, tuple[Any, Any]]:
        """Remove what an earlier conversation left. Returns the differences that remain nevertheless."""
        await self.ask(Request(OTHERS, 318, {}, "".join(f"{flag}=false\n" for flag in FLAGS)))
        for broker in GROUP_OF:
            await self.do(Step("close", broker))
        for topic in TOPICS:
            await self.ask(Request(OTHERS, 102, {"namespace": "ORDER_TOPIC_CONFIG", "key": topic}))
            await self.ask(Request(OTHERS, 216, {"topic": topic}))
        found = await self.settled_differences()
        for server in (self.theirs, self.ours):
            server.pushes.clear()
        return found


def conversation(seed: int, steps: int) -> list[Step]:
    """The steps of a seed."""
    draw = random.Random(seed)
    first = seed * STEPS_MAX
    return [_step(draw, number) for number in range(first + 1, first + steps + 1)]


def _step(draw: random.Random, number: int) -> Step:
    broker, topic = draw.choice(tuple(GROUP_OF)), draw.choice(TOPICS)
    kind = draw.randrange(20)
    if kind < 7:
        return _register(draw, "register", broker, number)
    if kind < 10:
        return Step(("renew", "heartbeat", "query")[kind - 7], broker, body=_version(draw, number - draw.randrange(3)))
    if kind < 12:
        return Step("unregister", broker)
    if kind == 12:
        return Step("close", broker)
    if kind == 13:
        return _register(draw, "silent", broker, number) if draw.random() < 0.5 else Step("close", broker)
    if kind == 14:
        return Step("request", code=216, fields={"topic": topic, **draw.choice(({}, {"clusterName": "A"}, {"clusterName": "B"}))})
    if kind == 15:
        return Step("request", code=draw.choice((205, 327)), fields={"brokerName": draw.choice(("a", "b", "unknown"))})
    if kind == 16:
        return Step("request", code=217, fields={"topic": topic}, body=_queue_datas(draw))
    if kind in (17, 18):
        place = {"namespace": draw.choice(("ORDER_TOPIC_CONFIG", "n")), "key": topic}
        code = draw.choice((100, 100, 101, 102))
        return Step("request", code=code, fields={**place, "value": f"a:{number}"} if code == 100 else place)
    return Step("request", code=318, body=f"{draw.choice(FLAGS)}={draw.choice(('true', 'false'))}\n")


def _version(draw: random.Random, number: int) -> str:
    return json.dumps({"counter": 0, "stateVersion": draw.choice((0, 0, 1)), "timestamp": max(number, 0)})


def _register(draw: random.Random, kind: str, broker: str, number: int) -> Step:
    fields = {"brokerId": draw.choice("0012"), "haServerAddr": draw.choice(("h:1", "h:2"))}
    fields |= draw.choice(({}, {"enableActingMaster": "true"}, {"enableActingMaster": "true"}, {"enableActingMaster": "false"}))
    fields |= draw.choice(({}, {}, {}, {"__ZONE_NAME": "z"}))
    topics = {}
    for topic in draw.sample(TOPICS, draw.choice((0, 1, 2, 2, 3, 4))):
        queues = {"readQueueNums": 8, "writeQueueNums": 8, "perm": draw.choice((6, 6, 7, 4)), "topicSysFlag": draw.randrange(2)}
        topics[topic] = {"topicName": topic, "topicFilterType": "SINGLE_TAG", "order": False, "attributes": {}, **queues}
    wrapper = {"dataVersion": json.loads(_version(draw, number)), "topicConfigTable": topics}
    body = {"filterServerList": draw.choice(([], [], ["f:1"])), "topicConfigSerializeWrapper": wrapper}
    return Step(kind, broker, fields, json.dumps(body))


def _queue_datas(draw: random.Random) -> str:
    names = draw.sample(("a", "b", "unknown"), draw.choice((1, 2)))
    rest = {"perm": draw.choice((4, 6)), "readQueueNums": 4, "writeQueueNums": 4, "topicSysFlag": 0}
    return json.dumps({"brokerDatas": [], "queueDatas": [{"brokerName": name, **rest} for name in names]})


class Difference(NamedTuple):
    """Steps after which the two servers differ."""

    steps: list[Step]
    found: dict[str, tuple[Any, Any]]

    def __str__(self) -> str:
        told = [f"{number}. {step}" for number, step in enumerate(self.steps, 1)]
        return "\n".join([*told, *(f"{what}\n  Java {java}\n  ours {ours}" for what, (java, ours) in self.found.items())])


async def first_difference(pair: Pair, steps: Sequence[Step]) -> Difference | None:
    """Take the steps up to the first that the two servers answer differently."""
    if found := await pair.reset():
        return Difference([], found)
    for number, step in enumerate(steps, 1):
        answers = await pair.do(step)
        found = await pair.settled_differences()
        if answers is not None and answers[0] != answers[1]:
            found["the step itself"] = answers
        if found:
            return Difference(list(steps[:number]), found)
    return None


async def shrunk(pair: Pair, difference: Difference, say: Callable[[str], None]) -> Difference:
    """The same difference with fewer steps. Halves, quarters and so on down to single steps are left out, as long as the
    difference stays."""
    pair.settled_s = SETTLED_WHILE_SHRINKING_S
    size = max(1, len(difference.steps) // 2)
    while True:
        place = 0
        while place < len(difference.steps):
            fewer = [*difference.steps[:place], *difference.steps[place + size :]]
            smaller = await first_difference(pair, fewer) if fewer else None
            if smaller is None:
                place += size
            else:
                difference = smaller
                say(f"{len(difference.steps)} steps")
        if size == 1:
            return difference
        size //= 2


@contextlib.contextmanager
def processes(folder: Path, version: str, program: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Both servers: the addresses of Java's and ours."""
    first = free_port(1, 2)
    theirs, ours = f"127.0.0.1:{first}", f"127.0.0.1:{first + 1}"
    launch = prepare(ForeignMode("java", version), SETTINGS, lambda text: None).launch(theirs, folder / "java", folder / "home")
    command = serve_command("ns", ours, f"127.0.0.1:{first + 2}", folder / "ns", "ap", SETTINGS, program)
    started = [Process("java-ns", launch.command, folder / "java", launch.environment), Process("ns", command, folder / "ns")]
    try:
        for address, process in zip((theirs, ours), started, strict=True):
            wait_for(partial(ask, address, 206), f"{process.name} serves (log: {process.log})")
        yield theirs, ours
    finally:
        for process in started:
            process.kill()


@contextlib.asynccontextmanager
async def servers(folder: Path, version: str = "5.3.3", program: Sequence[str] = SERVE) -> AsyncIterator[Pair]:
    """Both servers with their brokers, which are stopped when the block ends. ``program``: the program that runs our server."""
    with processes(folder, version, program) as addresses:
        first = free_port(*range(1, len(GROUP_OF)))
        ports = {broker: first + number for number, broker in enumerate(GROUP_OF)}
        theirs, ours = (Server(address, host) for address, host in zip(addresses, HOSTS, strict=True))
        try:
            for server in (theirs, ours):
                await server.listen(ports)
            yield Pair(theirs, ours, ports)
        finally:
            for server in (theirs, ours):
                await server.close()


async def fuzz(pair: Pair, seeds: range, steps: int, say: Callable[[str], None]) -> Difference | None:
    """The first difference in these conversations, shrunk. None: there is none."""
    began = time.monotonic()
    for seed in seeds:
        difference = await first_difference(pair, conversation(seed, steps))
        if difference is not None:
            say(f"seed {seed}: a difference after {len(difference.steps)} steps; shrinking")
            return await shrunk(pair, difference, say)
        pushes = pair.theirs.pushes.total()
        say(f"{time.monotonic() - began:6.1f} s  seed {seed}: {steps} steps, {pushes} pushes, no difference")
    return None


async def _fuzz(seeds: range, steps: int, version: str) -> Difference | None:
    with tempfile.TemporaryDirectory(prefix="fidelity-") as folder:
        async with servers(Path(folder), version) as pair:
            return await fuzz(pair, seeds, steps, lambda text: print(text, file=sys.stderr))


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.interop.fidelity", description=__doc__)
    parser.add_argument("--seeds", default="0:20", metavar="FROM:TO", help="seeds of the conversations (default 0:20)")
    parser.add_argument("--steps", type=int, default=60, metavar="N", help="steps of each (default 60)")
    parser.add_argument("--java", default="5.3.3", metavar="VERSION", help="version of RocketMQ's name server (default 5.3.3)")
    arguments = parser.parse_args()
    first, _, end = arguments.seeds.partition(":")
    seeds = range(int(first), int(end or int(first) + 1))
    try:
        found = asyncio.run(_fuzz(seeds, arguments.steps, arguments.java))
    except NamesrvError as error:
        print(error, file=sys.stderr)
        return 2
    print(found if found is not None else f"no difference in {len(seeds)} conversations of {arguments.steps} steps")
    return int(found is not None)


if __name__ == "__main__":
    sys.exit(main())

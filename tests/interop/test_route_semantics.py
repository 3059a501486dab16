"""Random registrations and removals given to RocketMQ's name server and to ours: after each, all answers are compared.

Each broker name has addresses and a cluster of its own, and a registration is repeated unchanged only where it is still in
force: outside of this the two differ on purpose (routes/DESIGN.md).
"""

import asyncio
import json
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest

from replicated_namesrv.client.remoting import RemotingClient, RemotingCommand
from replicated_namesrv.wire import fastjson
from tests.interop.lab import Lab

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TOPICS = ("T", "U", "V", "rmq_sys_SYNC_BROKER_MEMBER_b")
ADDRESSES = {"a": ("a:1", "a:2"), "b": ("b:1", "b:2", "b:3")}
CLUSTERS = {"a": "A", "b": "B"}
FLAGS = ("supportActingMaster", "deleteTopicWithBrokerRegistration", "orderMessageEnable")
SETTLED_S = 5.0
SEQUENCES, STEPS = 25, 60

Request = tuple[int, dict[str, str], bytes]
Answer = tuple[int, str | None, dict[str, str] | None, Any]


def normalized(value: Any) -> Any:
    """Java answers in hash order: lists sorted."""
    if isinstance(value, dict):
        return {str(key): normalized(item) for key, item in value.items()}
    if isinstance(value, list):
        return sorted((normalized(item) for item in value), key=lambda item: json.dumps(item, sort_keys=True))
    return value


class Pair:
    """The two servers, which get the same requests."""

    def __init__(self, client: RemotingClient, theirs: str, ours: str) -> None:
        self._client, self._addresses = client, (theirs, ours)

    async def ask(self, request: Request) -> tuple[Answer, Answer]:
        """Both answers: code, remark, fields, body."""
        code, fields, body = request
        theirs, ours = await asyncio.gather(
            *(self._client.request(address, RemotingCommand(code, fields, body)) for address in self._addresses)
        )
        return self._read(theirs), self._read(ours)

    @staticmethod
    def _read(answer: RemotingCommand) -> Answer:
        body = fastjson.loads(answer.body) if answer.body else None
        return answer.code, answer.remark, answer.ext_fields or None, normalized(body)

    async def differences(self) -> dict[str, tuple[Answer, Answer]]:
        """Questions that the two answer differently."""
        found: dict[str, tuple[Answer, Answer]] = {}
        found["clusters"] = await self.ask((106, {}, b""))
        ours = found["clusters"][1]
        found["topics"] = await self.ask((206, {}, b""))
        for topic in TOPICS:
            found[topic] = await self.ask((105, {"topic": topic}, b""))
        for name, cluster in CLUSTERS.items():
            found[f"topics of {cluster}"] = await self.ask((224, {"cluster": cluster}, b""))
            found[f"members of {name}"] = await self.ask((901, {"clusterName": cluster, "brokerName": name}, b""))
            for addr in members(ours[3], name).values():
                fields = {"brokerName": name, "brokerAddr": addr, "clusterName": cluster, "brokerId": "0"}
                found[f"version of {addr}"] = await self.ask((322, fields, b"{}"))
        return {question: answers for question, answers in found.items() if answers[0] != answers[1]}

    async def settled_differences(self) -> dict[str, tuple[Answer, Answer]]:
        """The remaining differences once Java, which removes brokers in the background, has had time."""
        deadline = time.monotonic() + SETTLED_S
        while found := await self.differences():
            if time.monotonic() > deadline:
                break
        return found


def members(cluster_info: Any, name: str) -> dict[str, str]:
    """Addresses of a group by id in a 106 answer."""
    addrs: dict[str, str] = cluster_info["brokerAddrTable"].get(name, {}).get("brokerAddrs", {})
    return addrs


class Sequence:
    """Random requests, from one seed."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self._version = 0
        self.accepted: dict[str, tuple[str, Request]] = {}
        """Last accepted registration by address: id and request."""

    def start(self) -> Iterator[Request]:
        """Remove everything that an earlier sequence left."""
        yield 318, {}, "".join(f"{flag}=false\n" for flag in FLAGS).encode()
        for name, addrs in ADDRESSES.items():
            for addr in addrs:
                yield 104, {"brokerName": name, "brokerAddr": addr, "clusterName": CLUSTERS[name], "brokerId": "0"}, b""
        for topic in TOPICS:
            yield 102, {"namespace": "ORDER_TOPIC_CONFIG", "key": topic}, b""

    def next(self, cluster_info: Any) -> Request:
        """The next request; ``cluster_info`` says who is registered."""
        draw = self._draw
        name = draw.choice("abb")
        addr, topic = draw.choice(ADDRESSES[name]), draw.choice(TOPICS)
        kind = draw.randrange(13)
        if kind < 7:
            return self._register(name, addr, members(cluster_info, name))
        if kind == 7:
            self.accepted.pop(addr, None)
            broker_id = str(draw.randrange(3))
            return 104, {"brokerName": name, "brokerAddr": addr, "clusterName": CLUSTERS[name], "brokerId": broker_id}, b""
        if kind == 8:
            return 216, {"topic": topic, **draw.choice(({}, {"clusterName": "A"}, {"clusterName": "B"}))}, b""
        if kind == 9:
            return draw.choice((205, 327)), {"brokerName": name}, b""
        if kind == 10:
            return 217, {"topic": topic}, self._queue_datas()
        if kind == 11:
            return draw.choice((100, 102)), {"namespace": "ORDER_TOPIC_CONFIG", "key": topic, "value": f"{name}:4"}, b""
        return 318, {}, f"{draw.choice(FLAGS)}={draw.choice(('true', 'false'))}\n".encode()

    def _register(self, name: str, addr: str, present: dict[str, str]) -> Request:
        draw = self._draw
        broker_id, again = self.accepted.get(addr, ("", None))
        if again is not None and present.get(broker_id) == addr and draw.random() < 0.5:
            return again
        self._version += 1
        fields = {"brokerName": name, "brokerAddr": addr, "clusterName": CLUSTERS[name], "brokerId": draw.choice("0012")}
        fields |= {"haServerAddr": draw.choice(("h:1", "h:2"))}
        fields |= draw.choice(
            ({}, {"enableActingMaster": "true"}, {"enableActingMaster": "true"}, {"enableActingMaster": "false"})
        )
        fields |= draw.choice(({}, {}, {}, {"__ZONE_NAME": "z"}))
        topics = {}
        for topic in draw.sample(TOPICS, draw.choice((0, 1, 2, 2, 3, 4))):
            queues = {
                "readQueueNums": 8,
                "writeQueueNums": 8,
                "perm": draw.choice((6, 6, 7, 4)),
                "topicSysFlag": draw.randrange(2),
            }
            topics[topic] = {"topicName": topic, "topicFilterType": "SINGLE_TAG", "order": False, "attributes": {}, **queues}
        version = {"counter": 0, "stateVersion": draw.choice((0, 0, 1)), "timestamp": self._version}
        body = {
            "filterServerList": draw.choice(([], [], ["f:1"])),
            "topicConfigSerializeWrapper": {"dataVersion": version, "topicConfigTable": topics},
        }
        return 103, fields, json.dumps(body).encode()

    def _queue_datas(self) -> bytes:
        names = self._draw.sample(("a", "b", "unknown"), self._draw.choice((1, 2)))
        rest = {"perm": self._draw.choice((4, 6)), "readQueueNums": 4, "writeQueueNums": 4, "topicSysFlag": 0}
        return json.dumps({"brokerDatas": [], "queueDatas": [{"brokerName": name, **rest} for name in names]}).encode()


async def first_difference(pair: Pair, seed: int) -> str:
    """Run one sequence. Returns the first difference, or an empty text."""
    sequence = Sequence(seed)
    for request in sequence.start():
        await pair.ask(request)
    assert not await pair.settled_differences()
    history: list[Request] = []
    for _ in range(STEPS):
        (theirs, _ours) = await pair.ask((106, {}, b""))
        request = sequence.next(theirs[3])
        history.append(request)
        answers = await pair.ask(request)
        if request[0] == 103 and answers[1][0] == 0:
            sequence.accepted[request[1]["brokerAddr"]] = (request[1]["brokerId"], request)
        found = await pair.settled_differences()
        if answers[0] != answers[1]:
            found["the request itself"] = answers
        if found:
            lines = [f"{question}\n  Java {each[0]}\n  ours {each[1]}" for question, each in found.items()]
            return "\n".join([f"sequence {seed}, last requests:", *map(repr, history[-8:]), *lines])
    return ""


async def test_every_answer_equals_javas(lab: Lab, seed: int) -> None:
    theirs, _ = lab.java_namesrv("5.3.3")
    ours, _ = lab.namesrv()
    client = RemotingClient()
    try:
        pair = Pair(client, theirs, ours)
        for number in range(SEQUENCES):
            difference = await first_difference(pair, seed * SEQUENCES + number)
            assert not difference, difference
    finally:
        await client.close()

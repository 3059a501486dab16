"""Bug reports as conversations of a few requests with RocketMQ's name server, an independent node and a replicated cluster.

A conversation returns what the server showed. docs/atlas/README.md has a row for each.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from replicated_namesrv.child_process import SERVE
from tests.interop.fidelity import HOSTS, Answer, Request, Server, processes
from tests.interop.lab import laboratory
from tests.support import provision

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
JAVA, AP, CP = "java:5.3.3", "ap", "cp"
FAR_MS, NEAR_MS = 2_524_608_000_000, 1_790_000_000_000
"""Times in the years 2050 and 2026."""


@asynccontextmanager
async def systems(folder: Path) -> AsyncIterator[dict[str, Server]]:
    """A server of each system."""
    jars = provision.require_rocketmq_jars("5.3.3")
    with (
        processes(folder, "5.3.3", SERVE) as (theirs, ours),
        laboratory(folder / "cp", str(provision.java()), {"5.3.3": jars}, {}, "cp") as lab,
    ):
        addresses = {JAVA: theirs, AP: ours, CP: lab.namesrvs("n1", "n2", "n3")[0][0]}
        async with AsyncExitStack() as stack:
            found = {name: Server(address, HOSTS[0]) for name, address in addresses.items()}
            for server in found.values():
                stack.push_async_callback(server.close)
            yield found


class Version(NamedTuple):
    """A data version."""

    counter: int
    timestamp_ms: int
    state: int = 0
    """The epoch of the master, with a controller."""


async def register(
    server: Server, broker: str, topics: dict[str, int], version: Version, cluster: str = "A", name: str = "", **more: str
) -> int:
    """One registration of a master, or of the broker that ``more`` describes: topics with their permissions. Returns the code
    of the answer."""
    configs = {
        topic: {"topicName": topic, "perm": perm, "readQueueNums": 8, "writeQueueNums": 8, "topicFilterType": "SINGLE_TAG"}
        for topic, perm in topics.items()
    }
    data_version = {"counter": version.counter, "stateVersion": version.state, "timestamp": version.timestamp_ms}
    wrapper = {"dataVersion": data_version, "topicConfigTable": configs}
    fields = {"brokerName": name or broker, "brokerAddr": f"{broker}:1", "clusterName": cluster, "brokerId": "0", **more}
    body = json.dumps({"filterServerList": [], "topicConfigSerializeWrapper": wrapper})
    return (await server.ask(Request(broker, 103, fields, body)))[0]


async def route(server: Server, topic: str) -> Any:
    """The body of the route; None: there is none."""
    return (await server.ask(Request("others", 105, {"topic": topic})))[3]


async def perms(server: Server, *topics: str) -> list[int | None]:
    """The permission of each topic; None: no route."""
    routes = [await route(server, topic) for topic in topics]
    return [one["queueDatas"][0]["perm"] if one else None for one in routes]


async def created_after_restart(server: Server) -> list[int | None]:
    """An empty server receives a new topic alone, and then the same data version with all topics."""
    await register(server, "created", {"New": 6}, Version(1, 5))
    await register(server, "created", {"Old1": 6, "Old2": 6, "New": 6}, Version(1, 5))
    return await perms(server, "Old1", "Old2", "New")


async def split(server: Server) -> list[int | None]:
    """All topics change under one data version and arrive in two registrations."""
    for version, perm in ((Version(1, 5), 6), (Version(2, 6), 4)):
        await register(server, "split", {"S1": perm, "S2": perm}, version)
        await register(server, "split", {"S3": perm, "S4": perm}, version)
    return await perms(server, "S1", "S2", "S3", "S4")


async def clock_jumped(server: Server) -> list[int | None]:
    """A broker's clock was in 2050 and is set back. Its next change has a lower timestamp."""
    await register(server, "clock", {"C1": 6, "C2": 6}, Version(7, FAR_MS))
    await register(server, "clock", {"C1": 4, "C2": 4}, Version(8, NEAR_MS))
    return await perms(server, "C1", "C2")


async def restored(server: Server) -> list[int | None]:
    """A broker was restored from a backup and registers an older data version."""
    await register(server, "restored", {"R1": 6, "R2": 6}, Version(7, 7))
    await register(server, "restored", {"R1": 4, "R2": 4}, Version(6, 6))
    return await perms(server, "R1", "R2")


async def one_name_in_two_clusters(server: Server) -> tuple[int, int, str, list[str]]:
    """Masters of two clusters have the same broker name: both answers, the listed master, and the clusters with the name."""
    first = await register(server, "first", {"One": 6, "Two": 6}, Version(1, 5), "A", "same")
    second = await register(server, "second", {"One": 6, "Two": 6}, Version(1, 6), "B", "same")
    group = (await route(server, "One"))["brokerDatas"][0]
    _, _, _, info = await server.ask(Request("others", 106, {}))
    listed = [cluster for cluster, names in info["clusterAddrTable"].items() if "same" in names]
    return first, second, f"{group['brokerAddrs']['0']} of {group['cluster']}", sorted(listed)


async def unregistered_without_id(server: Server) -> tuple[int, list[int | None], bool]:
    """UNREGISTER_BROKER (104) without brokerId: the answer, the route, and whether the live entry stays. RocketMQ answers before
    it removes the broker."""
    await register(server, "no-id", {"N1": 6, "N2": 6}, Version(1, 5))
    place = {"brokerName": "no-id", "brokerAddr": "no-id:1", "clusterName": "A"}
    answer: Answer = await server.ask(Request("no-id", 104, place))
    deadline_s, version = time.monotonic() + 2, None
    while time.monotonic() < deadline_s:
        _, _, _, version = await server.ask(Request("others", 322, {**place, "brokerId": "0"}, "{}"))
        if version is None:
            break
        await asyncio.sleep(0.05)
    return answer[0], await perms(server, "N1"), version is not None


async def masters(server: Server, topic: str) -> list[str]:
    """The addresses of the masters of a topic."""
    found = await route(server, topic)
    return [group["brokerAddrs"]["0"] for group in found["brokerDatas"] if "0" in group["brokerAddrs"]] if found else []


async def late_unregistration(server: Server) -> tuple[list[str], list[str]]:
    """A new master has registered under the name and id of the old one, which then unregisters. Returns the masters before and
    after.
    """
    await register(server, "old-master", {"L1": 6, "L2": 6}, Version(1, 5), name="late")
    await register(server, "new-master", {"L1": 6, "L2": 6}, Version(2, 6), name="late")
    before = await masters(server, "L1")
    place = {"brokerName": "late", "brokerAddr": "old-master:1", "clusterName": "A", "brokerId": "0"}
    await server.ask(Request("old-master", 104, place))
    return before, await masters(server, "L1")


async def deleted_on_the_broker(server: Server) -> list[int | None]:
    """A topic is deleted on its broker, which registers the change."""
    await register(server, "deleting", {"D1": 6, "D2": 6}, Version(1, 5))
    await register(server, "deleting", {"D2": 6}, Version(2, 6))
    return await perms(server, "D1", "D2")


async def renamed(server: Server) -> list[str]:
    """A broker registers under another name: the names at its address."""
    for number, name in enumerate(("name-1", "name-2"), 1):
        await register(server, "renamed", {"M1": 6, "M2": 6}, Version(number, number), name=name)
    _, _, _, info = await server.ask(Request("others", 106, {}))
    groups = info["brokerAddrTable"].values()
    return sorted(group["brokerName"] for group in groups if "renamed:1" in group["brokerAddrs"].values())


async def wiped(server: Server) -> list[list[int | None]]:
    """Write permission is taken from a broker (205): permissions then, after an unchanged registration, and after a change."""
    await register(server, "wiped", {"W1": 6, "W2": 6}, Version(1, 5))
    await server.ask(Request("others", 205, {"brokerName": "wiped"}))
    found = [await perms(server, "W1", "W2")]
    for version in (Version(1, 5), Version(2, 6)):
        await register(server, "wiped", {"W1": 6, "W2": 6}, version)
        found.append(await perms(server, "W1", "W2"))
    return found


async def without_an_id(server: Server) -> list[list[int | None]]:
    """A broker of a group registers with the id -1, because it has no role yet: permissions then, and after the next registration
    of the master."""
    acting = {"enableActingMaster": "true"}
    await register(server, "leader", {"I1": 6, "I2": 6}, Version(1, 5), name="ids", **acting)
    await register(server, "candidate", {"I1": 6, "I2": 6}, Version(1, 6), name="ids", brokerId="-1", **acting)
    found = [await perms(server, "I1", "I2")]
    await register(server, "leader", {"I1": 6, "I2": 6}, Version(1, 5), name="ids", **acting)
    return [*found, await perms(server, "I1", "I2")]


async def two_masters(server: Server) -> tuple[list[int], list[str]]:
    """The controller has chosen a new master, and the old one still registers: the answers, and the listed master."""
    codes = [
        await register(server, "epoch-1", {"E1": 6, "E2": 6}, Version(1, 5, 1), name="epochs"),
        await register(server, "epoch-2", {"E1": 6, "E2": 6}, Version(2, 6, 2), name="epochs"),
        await register(server, "epoch-1", {"E1": 6, "E2": 6}, Version(3, 7, 1), name="epochs"),
    ]
    return codes, await masters(server, "E1")


async def kv_without_key(server: Server) -> tuple[int, int, Any]:
    """An entry of ORDER_TOPIC_CONFIG without a key: the answer, and the answer and body of the list that a broker would get."""
    code, _, _, _ = await server.ask(Request("others", 100, {"namespace": "ORDER_TOPIC_CONFIG", "value": "broker-a:8"}))
    listed, _, _, table = await server.ask(Request("others", 219, {"namespace": "ORDER_TOPIC_CONFIG"}))
    return code, listed, table


SECOND = (0, 0, "second:1 of A", ["A", "B"])
CASES: dict[Callable[[Server], Awaitable[object]], tuple[object, ...]] = {
    created_after_restart: ([6, 6, 6], [6, 6, 6], [6, 6, 6]),
    split: ([4, 4, 6, 6], [4, 4, 4, 4], [4, 4, 4, 4]),
    clock_jumped: ([4, 4], [4, 4], [4, 4]),
    restored: ([4, 4], [4, 4], [6, 6]),
    one_name_in_two_clusters: (SECOND, SECOND, SECOND),
    late_unregistration: ((["new-master:1"], ["new-master:1"]),) * 3,
    deleted_on_the_broker: ([6, 6], [6, 6], [6, 6]),
    renamed: (["name-1", "name-2"], ["name-2"], ["name-2"]),
    wiped: ([[4, 4], [4, 4], [6, 6]],) * 3,
    without_an_id: ([[4, 4], [4, 4]], [[4, 4], [6, 6]], [[4, 4], [6, 6]]),
    two_masters: (([0, 0, 0], ["epoch-2:1"]),) * 3,
    kv_without_key: ((1, 22, None),) * 3,
    unregistered_without_id: ((0, [6], False), (0, [6], True), (0, [6], True)),
}
"""The results of Java, AP and CP."""


async def test_each_report_shows_what_the_atlas_says(tmp_path: Path) -> None:
    found: dict[str, tuple[object, ...]] = {}
    async with systems(tmp_path) as servers:
        for conversation in CASES:
            found[conversation.__name__] = tuple([await conversation(servers[name]) for name in (JAVA, AP, CP)])
    assert found == {conversation.__name__: seen for conversation, seen in CASES.items()}

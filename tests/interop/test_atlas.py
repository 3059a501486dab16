"""Bug reports as conversations of a few requests with RocketMQ's name server, an independent node and a replicated cluster.

A conversation returns what the server showed. docs/atlas/README.md has a row for each.
"""

import json
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
"""2050 and 2026."""


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


async def register(
    server: Server, broker: str, topics: dict[str, int], version: Version, cluster: str = "A", name: str = ""
) -> int:
    """One registration of a master: topics with their permissions. Returns the code of the answer."""
    configs = {
        topic: {"topicName": topic, "perm": perm, "readQueueNums": 8, "writeQueueNums": 8, "topicFilterType": "SINGLE_TAG"}
        for topic, perm in topics.items()
    }
    data_version = {"counter": version.counter, "stateVersion": 0, "timestamp": version.timestamp_ms}
    wrapper = {"dataVersion": data_version, "topicConfigTable": configs}
    fields = {"brokerName": name or broker, "brokerAddr": f"{broker}:1", "clusterName": cluster, "brokerId": "0"}
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
    """UNREGISTER_BROKER (104) without brokerId: the answer, the route, and whether the live entry is still there."""
    await register(server, "no-id", {"N1": 6, "N2": 6}, Version(1, 5))
    place = {"brokerName": "no-id", "brokerAddr": "no-id:1", "clusterName": "A"}
    answer: Answer = await server.ask(Request("no-id", 104, place))
    _, _, _, version = await server.ask(Request("others", 322, {**place, "brokerId": "0"}, "{}"))
    return answer[0], await perms(server, "N1"), version is not None


SECOND = (0, 0, "second:1 of A", ["A", "B"])
CASES: dict[Callable[[Server], Awaitable[object]], tuple[object, object, object]] = {
    created_after_restart: ([6, 6, 6], [6, 6, 6], [6, 6, 6]),
    split: ([4, 4, 6, 6], [4, 4, 4, 4], [4, 4, 4, 4]),
    clock_jumped: ([4, 4], [4, 4], [4, 4]),
    restored: ([4, 4], [4, 4], [6, 6]),
    one_name_in_two_clusters: (SECOND, SECOND, SECOND),
    unregistered_without_id: ((0, [6], False), (0, [6], True), (0, [6], True)),
}
"""What Java, AP and CP show."""


async def test_each_report_shows_what_the_atlas_says(tmp_path: Path) -> None:
    found: dict[str, tuple[object, ...]] = {}
    async with systems(tmp_path) as servers:
        for conversation in CASES:
            found[conversation.__name__] = tuple([await conversation(servers[name]) for name in (JAVA, AP, CP)])
    assert found == {conversation.__name__: seen for conversation, seen in CASES.items()}

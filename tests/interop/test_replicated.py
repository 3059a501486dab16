"""The same peers with a cluster of three nodes, also while its leader is killed, paused or cut off.

The tests of test_peers.py run here again in the other mode. The most important ones are part of every run, the others only if
ALL_INTEROP is set.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.interop.lab import ALL_INTEROP, VERSIONS, Driver, Lab, addresses_of, wait_for
from tests.interop.test_mqadmin import COMMANDS, VOLATILE_CONFIG, normalized
from tests.interop.test_peers import (  # noqa: F401 - collected here too
    consume,
    create_topic,
    registered,
    test_acting_master,
    test_address_list_over_http,
    test_master_and_slave,
    test_new_brokers_with_old_clients,
    test_producer_carries_on,
    three_nodes,
)
from tests.support.replicated_processes import ReplicatedProcesses, replicated_processes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ALWAYS = {"test_acting_master", "test_master_and_slave[4.9.7]", "test_mqadmin_answers_equal[5.3.3]"}
ALWAYS |= {"test_clients_while_the_leader_goes[5.3.3]"}
LOOKUP_TIMEOUT_MS = 1_000
"""Time-out of the client that looks up all the time (mqClientApiTimeout, 3 s by default): it waits so long for a paused node."""
GAP_MAX_MS = 2_000
ATTEMPTS = 3
"""Tries at each fault: on a busy machine, healthy processes stall for longer than the permitted gap."""


@pytest.fixture
def mode(request: pytest.FixtureRequest) -> str:
    """The mode of the name servers: CP."""
    if request.node.name not in ALWAYS and not ALL_INTEROP:
        pytest.skip("one of the longer half; set ALL_INTEROP=1")
    return "cp"


WRITES = {"updateTopic", "updateTopicPerm", "updateKvConfig", "deleteKvConfig", "wipeWritePerm", "addWritePerm", "deleteTopic"}
WRITES |= {"updateNamesrvConfig"}


def is_write(words: tuple[str, ...]) -> bool:
    """Whether a command changes something; it is then given to one node only."""
    return words[0] in WRITES or (words[0] == "updateOrderConf" and words[-1] != "get")


@pytest.mark.parametrize("version", VERSIONS)
def test_mqadmin_answers_equal(lab: Lab, version: str) -> None:
    """Every command is given to RocketMQ's own name server and to one of ours, in turn; each question to all."""
    theirs, _ = lab.java_namesrv(version)
    nodes, _, names = three_nodes(lab)
    broker, _ = lab.broker(version, "broker-a", f"{theirs};{names}")
    for address in (theirs, *nodes):
        wait_for(partial(addresses_of, address, "TBW102"), f"the broker is registered at {address}")
    driver = lab.driver(version)
    differences = []
    for number, words in enumerate(COMMANDS):
        asked = [nodes[number % 3]] if is_write(words) else nodes
        command = tuple(word.format(broker=broker) for word in words)
        expected = answer(driver, command, theirs)
        for address in asked:
            got = answer(driver, command, address)
            if isinstance(got, dict) and isinstance(expected, dict):  # ours has settings of its own
                got = {key: got.get(key) for key in expected}
            if got != expected:
                differences.append(f"{' '.join(command)} at node {nodes.index(address)}\n--- Java\n{expected}\n--- ours\n{got}")
    assert not differences, "\n\n".join(differences)


def answer(driver: Driver, command: tuple[str, ...], address: str) -> object:
    """The output of mqadmin, without the parts that may differ."""
    found = normalized(command, driver.admin(*command, "-n", address), address)
    if isinstance(found, dict):
        return {key: value for key, value in found.items() if key.strip() not in VOLATILE_CONFIG}
    return found


@asynccontextmanager
async def gone_for_a_while(cluster: ReplicatedProcesses, fault: str) -> AsyncIterator[None]:
    """The leader killed, paused or cut off during the block; afterwards the cluster is whole."""
    leader = await cluster.leader()
    try:
        match fault:
            case "killed":
                await cluster.kill(leader)
            case "paused":
                cluster.pause(leader)
            case "cut off":
                cluster.cut(leader)
        yield
    finally:
        await cluster.restore()


class Clients:
    """A producer, a consumer and clients that look up a route, all of which never stop.

    Each client chooses its name server at random. With this number of clients, at least one has almost always chosen the leader.
    """

    LOOKERS = tuple(f"l{number}" for number in range(6))

    def __init__(self, driver: Driver, names: str) -> None:
        self._driver = driver
        driver.call("sender-start", "s", names, "Always", "5")
        driver.call("receiver-start", "r", names, "always", "Always")
        for looker in self.LOOKERS:
            driver.call("looker-start", looker, names, "Always", "20", str(LOOKUP_TIMEOUT_MS))

    def counts(self) -> dict[str, int]:
        """Messages sent, messages received, look-ups answered to each."""
        received = int(self._driver.call("receiver-count", "r"))
        answered = {looker: self._driver.looker_state(looker)["answered"] for looker in self.LOOKERS}
        return {"sent": self._driver.sender_state("s")["sent"], "received": received, **answered}

    def longest_gap_ms(self) -> int:
        """The longest time without an answered look-up of any client since ``forget_gaps``."""
        gaps: list[int] = [self._driver.looker_state(looker)["longest_gap_ms"] for looker in self.LOOKERS]
        return max(gaps)

    def forget_gaps(self) -> None:
        """Count only gaps from now on."""
        for looker in self.LOOKERS:
            self._driver.call("looker-forget", looker)

    def progress(self, least: int = 100) -> None:
        """Wait until each has made progress."""
        before = self.counts()

        def all_got_on() -> bool:
            now = self.counts()
            if any(now[name] < before[name] + least for name in before):
                raise ValueError(f"{before} became {now}")
            return True

        wait_for(all_got_on, "progress of every client")

    def stop(self) -> dict[str, Any]:
        """Stop all clients. Returns the final counters of the sender."""
        state = self._driver.sender_state("s")
        for looker in self.LOOKERS:
            self._driver.call("looker-stop", looker)
        self._driver.call("receiver-stop", "r")
        self._driver.call("sender-stop", "s")
        return state


@pytest.mark.parametrize("version", VERSIONS)
async def test_clients_while_the_leader_goes(lab: Lab, version: str, tmp_path: Path) -> None:
    """No message fails, since its broker lives; look-ups are answered again within two seconds."""
    async with replicated_processes(tmp_path / "nodes") as cluster:
        nodes, names = cluster.addresses, ";".join(cluster.addresses)
        lab.broker(version, "broker-a", names)
        await asyncio.to_thread(wait_for, lambda: registered(nodes, "broker-a", 0), "the broker is registered everywhere", 90)
        driver = lab.driver(version)
        await asyncio.to_thread(create_topic, driver, names, nodes, "Always", "broker-a")
        clients = await asyncio.to_thread(Clients, driver, names)
        await asyncio.to_thread(clients.progress)
        for fault in ("killed", "paused", "cut off"):
            gaps = []
            for _ in range(ATTEMPTS):
                await asyncio.to_thread(clients.forget_gaps)
                async with gone_for_a_while(cluster, fault):
                    await asyncio.to_thread(clients.progress)
                gaps.append(await asyncio.to_thread(clients.longest_gap_ms))
                if gaps[-1] <= GAP_MAX_MS:
                    break
            print(f"leader {fault}: look-up gaps of {gaps} ms")
            assert gaps[-1] <= GAP_MAX_MS, f"leader {fault}: gaps of {gaps} ms"
        state = await asyncio.to_thread(clients.stop)
        assert state["failed"] == 0, state
        await asyncio.to_thread(wait_for, lambda: registered(nodes, "broker-a", 0, "Always"), "the broker is registered still")

"""The brokers of a demonstration: processes of Apache RocketMQ, or simulated brokers where RocketMQ cannot run.

Both kinds have one topic, register with the addresses that they are given, and change the number of the topic's queues on
request.
"""

import asyncio
import os
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from replicated_namesrv import provision
from replicated_namesrv.chaos.foreign_servers import JVM_FLAGS, LOGBACK
from replicated_namesrv.child_process import ChildProcess, ProcessError
from replicated_namesrv.client.broker import BrokerAgent, BrokerOptions
from replicated_namesrv.client.broker_requests import BrokerIdentity, BrokerVersion
from replicated_namesrv.client.remoting import RemotingClient, RemotingCommand
from replicated_namesrv.client.topics import BrokerTopics, TopicConfig, TopicTable, system_topics
from replicated_namesrv.errors import NamesrvError

TOPIC, CLUSTER = "orders", "DefaultCluster"
ROCKETMQ_VERSION = "5.3.3"
PORTS = (-2, 0, 1)
"""Offsets of the ports on which a RocketMQ broker listens: two below its port (VIP channel), its port, and one above
(replication)."""
REGISTER_PERIOD_MS, HEARTBEAT_TIMEOUT_MS = 3_000, 9_000
"""Register period and heartbeat time-out of simulated brokers. With RocketMQ's defaults, 30 s and 120 s, the demonstration would
take minutes."""
START_TIMEOUT_S = 120.0
_READ_AND_WRITE = 6
_UPDATE_AND_CREATE_TOPIC = 17
"""Request code of brokers for creating or changing a topic. Name servers do not know it."""
_CHANGE_TIMEOUT_MS = 30_000
_PROPERTIES = {
    "brokerClusterName": CLUSTER,
    "brokerIP1": "127.0.0.1",
    "brokerIP2": "127.0.0.1",
    "mappedFileSizeCommitLog": "16777216",
    "mappedFileSizeConsumeQueue": "600000",
    "diskMaxUsedSpaceRatio": "95",
    "timerWheelEnable": "false",
    "autoCreateTopicEnable": "false",
    # A broker with this setting sends a heartbeat each second, and its time-out is 10 s instead of 120 s.
    "enableSlaveActingMaster": "true",
    "skipPreOnline": "true",
    "registerNameServerPeriod": "10000",
    "registerBrokerTimeoutMills": "3000",
}


class DemonstrationBroker(Protocol):
    """One broker."""

    async def launch(self, name_servers: Sequence[str]) -> None:
        """Start the broker's process, if it has one. The name servers need not run yet. Raises NamesrvError."""

    async def start(self, queues: int) -> None:
        """Return when the broker serves and has the topic. The name servers must run. Raises NamesrvError if the broker does not
        start."""

    async def change_queues(self, queues: int) -> None:
        """Set the topic's number of queues, as an operator does. Raises NamesrvError."""

    async def kill(self) -> None:
        """End the broker without an unregistration."""


class RealBrokers(NamedTuple):
    """A Java runtime and the jars of RocketMQ's broker."""

    java: Path
    jars: Path


def real_brokers(say: Callable[[str], None]) -> RealBrokers:
    """Java and the jars of RocketMQ's broker, which are fetched through Maven once. Raises ProvisionError if something is
    missing."""
    java = provision.find_java()
    if java is None:
        raise provision.ProvisionError("there is no Java 17 or later (Debian: apt-get install openjdk-17-jre-headless)")
    jar = f"rocketmq-broker-{ROCKETMQ_VERSION}.jar"
    for found in sorted(provision.cache_dir().glob(f"rocketmq-*/{jar}")):
        return RealBrokers(java, found.parent)
    with provision.cached(f"rocketmq-broker-{ROCKETMQ_VERSION}", say) as (final, folder):
        if folder is not None:
            mvn = provision.find_maven()
            if mvn is None:
                raise provision.ProvisionError("there is no Maven to fetch its broker (Debian: apt-get install maven)")
            say(f"fetching the broker of RocketMQ {ROCKETMQ_VERSION} through Maven, once: 80 MB, some minutes")
            artifact = ("org.apache.rocketmq", "rocketmq-broker", ROCKETMQ_VERSION)
            os.replace(provision.fetch_jars([artifact], mvn, folder, say), final)
    return RealBrokers(java, final)


class RealBroker:
    """A process of RocketMQ's broker."""

    def __init__(self, name: str, port: int, home: Path, real: RealBrokers, client: RemotingClient) -> None:
        self._name, self._port, self._home, self._real, self._client = name, port, home, real, client
        self._address = f"127.0.0.1:{port}"
        self._process: ChildProcess | None = None

    async def launch(self, name_servers: Sequence[str]) -> None:
        logback = self._home / "conf" / "rmq.broker.logback.xml"
        logback.parent.mkdir(parents=True)
        logback.write_text(LOGBACK, encoding="utf-8")
        properties = {
            **_PROPERTIES,
            "brokerName": self._name,
            "listenPort": str(self._port),
            "haListenPort": str(self._port + 1),
            "storePathRootDir": str(self._home / "store"),
        }
        file = self._home / "broker.properties"
        file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()), encoding="utf-8")
        command = [
            *(str(self._real.java), *JVM_FLAGS, "-XX:MaxDirectMemorySize=256m", f"-Duser.home={self._home}"),
            *(f"-Drmq.logback.configurationFile={logback}", "-Drocketmq.broker.diskSpaceWarningLevelRatio=0.98"),
            *("-cp", f"{self._real.jars}/*", "org.apache.rocketmq.broker.BrokerStartup"),
            *("-c", str(file), "-n", ";".join(name_servers)),
        ]
        self._process = ChildProcess(self._name, command, self._home / "broker.log", {"ROCKETMQ_HOME": str(self._home)})
        await self._process.start()

    async def start(self, queues: int) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            self._process.check()
            try:
                return await self.change_queues(queues)
            except NamesrvError as error:
                if time.monotonic() > deadline:
                    raise ProcessError(f"{self._name} does not serve, see {self._process.log_file}: {error}") from error
            await asyncio.sleep(0.2)

    async def change_queues(self, queues: int) -> None:
        fields = {
            "topic": TOPIC,
            "defaultTopic": "TBW102",
            "readQueueNums": str(queues),
            "writeQueueNums": str(queues),
            "perm": str(_READ_AND_WRITE),
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
        }
        command = RemotingCommand(_UPDATE_AND_CREATE_TOPIC, fields)
        answer = await self._client.request(self._address, command, _CHANGE_TIMEOUT_MS)
        if answer.code != 0:
            raise ProcessError(f"{self._name} refused to change {TOPIC}: code {answer.code}, {answer.remark}")

    async def kill(self) -> None:
        if self._process is not None:
            await self._process.kill()


class SimulatedBroker:
    """A broker of ``namesrv broker`` in this process."""

    def __init__(self, name: str, port: int) -> None:
        self._identity = BrokerIdentity(CLUSTER, name, 0, f"127.0.0.1:{port}", f"127.0.0.1:{port + 1}")
        self._name_servers: Sequence[str] = ()
        self._agent: BrokerAgent | None = None

    async def launch(self, name_servers: Sequence[str]) -> None:
        self._name_servers = name_servers

    async def start(self, queues: int) -> None:
        system = TopicTable(system_topics(CLUSTER, self._identity.broker_name, BrokerVersion.V5_3))
        options = BrokerOptions(
            register_period_ms=REGISTER_PERIOD_MS,
            heartbeat_timeout_ms=HEARTBEAT_TIMEOUT_MS,
            register_timeout_ms=REGISTER_PERIOD_MS // 2,
            scan_interval_ms=REGISTER_PERIOD_MS // 3,
        )
        self._agent = BrokerAgent(
            self._identity,
            BrokerTopics(system, TopicTable([TopicConfig(TOPIC, queues, queues)])),
            list(self._name_servers),
            options=options,
            rng=random.Random(self._identity.broker_name),
            now_ms=lambda: time.time_ns() // 1_000_000,
        )
        await self._agent.start()

    async def change_queues(self, queues: int) -> None:
        assert self._agent is not None
        await self._agent.change_topics([TopicConfig(TOPIC, queues, queues)])

    async def kill(self) -> None:
        if self._agent is not None:
            await self._agent.kill()

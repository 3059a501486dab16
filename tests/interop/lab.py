"""Real RocketMQ processes together with ours: name servers, brokers, and one JVM with all clients."""

import contextlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from replicated_namesrv.child_process import serve_command
from tests.support import provision
from tests.support.ports import free_port

JVM_FLAGS = [
    *("--add-opens=java.base/sun.nio.ch=ALL-UNNAMED", "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED"),
    *("--add-opens=java.base/java.nio=ALL-UNNAMED", "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED"),
    *("--add-opens=java.base/java.lang=ALL-UNNAMED", "--add-opens=java.base/java.util=ALL-UNNAMED"),
    *("--add-exports=java.base/sun.security.x509=ALL-UNNAMED", "--add-opens=java.base/sun.security.x509=ALL-UNNAMED"),
    *("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto"),
]
ALL_INTEROP = bool(os.environ.get("ALL_INTEROP"))
"""Whether the tests that take longer run, too."""
VERSIONS = [*provision.ROCKETMQ_VERSIONS, *([provision.NEWEST_ROCKETMQ] if ALL_INTEROP else [])]
"""RocketMQ versions of the peers, in tests that run for several versions."""
OLD = "4.9.7"
LOGBACK = """<configuration>
<appender name="F" class="ch.qos.logback.core.FileAppender"><file>${user.home}/java.log</file>
<encoder><pattern>%d %p %t - %m%n</pattern></encoder></appender>
<root level="WARN"><appender-ref ref="F"/></root></configuration>"""


def wait_for(condition: Callable[[], Any], what: str, timeout_s: float = 180) -> Any:
    """The first true value of ``condition``. Raises AssertionError after ``timeout_s``, with a description of the condition."""
    deadline = time.monotonic() + timeout_s
    last: object = None
    while time.monotonic() < deadline:
        try:
            last = condition()
            if last:
                return last
        except (OSError, ValueError, KeyError) as error:
            last = error
        _pause()
    raise AssertionError(f"waited {timeout_s} s in vain until {what}; last seen: {last!r}")


def _pause() -> None:
    """Wait for the pause between two looks at a condition."""
    select.select([], [], [], 0.1)


def ask(
    address: str, code: int, fields: dict[str, str] | None = None, body: bytes = b"", version: int = 479
) -> tuple[dict[str, Any], bytes]:
    """One request over a connection of its own: (header, body) of the answer. Raises OSError if there is none."""
    host, _, port = address.rpartition(":")
    header = orjson.dumps(
        {"code": code, "extFields": fields or {}, "flag": 0, "language": "OTHER", "opaque": 1, "version": version}
    )
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body)
        stream = connection.makefile("rb")
        start = stream.read(8)
        total, length = struct.unpack(">II", start) if len(start) == 8 else (4, 0)
        rest = stream.read(total - 4)
        if len(start) + len(rest) != 4 + total:
            raise ConnectionError(f"{address} closed the connection before it answered")
    return orjson.loads(rest[: length & 0xFFFFFF]), rest[length & 0xFFFFFF :]


def route(address: str, topic: str) -> dict[str, Any] | None:
    """The route that the name server at ``address`` gives, None for a topic it does not know."""
    header, body = ask(address, 105, {"topic": topic})
    return orjson.loads(body) if header["code"] == 0 else None


def addresses_of(address: str, topic: str) -> dict[str, dict[str, str]]:
    """brokerName to {brokerId: address} of a route; empty if there is no route."""
    found = route(address, topic)
    return {broker["brokerName"]: broker["brokerAddrs"] for broker in found["brokerDatas"]} if found else {}


class Process:
    """One child process with its log."""

    def __init__(
        self, name: str, command: list[str], folder: Path, environment: dict[str, str] | None = None, **options: Any
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.name, self.folder = name, folder
        self.log = folder / "out.log"
        with self.log.open("ab") as log:
            self.child = subprocess.Popen(
                command, cwd=folder, env={**os.environ, **(environment or {})}, stderr=log, **{"stdout": log, **options}
            )

    def alive(self) -> bool:
        """Whether the process still runs."""
        return self.child.poll() is None

    def last_words(self) -> str:
        """Whether the process runs, and the last lines of its log, for error messages."""
        lines = self.log.read_text(errors="replace").splitlines()[-3:]
        return f"{self.name} {'runs' if self.alive() else 'has ended'}, {self.log}: " + " | ".join(lines)

    def kill(self) -> None:
        """Kill the process."""
        self.child.kill()
        self.child.wait()

    def stop(self, timeout_s: float = 40) -> None:
        """Ask the process to end, as an operator would."""
        if self.alive():
            self.child.send_signal(signal.SIGTERM)
            try:
                self.child.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self.kill()


class Driver(Process):
    """The JVM of clients; see Driver.java."""

    def call(self, *words: str) -> str:
        """The driver's answer. Raises AssertionError if the driver met an exception."""
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        self.child.stdin.write(("\t".join(words) + "\n").encode())
        self.child.stdin.flush()
        line: str = self.child.stdout.readline().decode().rstrip("\n")
        status, _, text = line.partition("\t")
        text = text.replace("\\\\", "\0").replace("\\n", "\n").replace("\\r", "\r").replace("\0", "\\")
        assert status == "ok", f"{words}: {text or 'the driver died'} (log: {self.log})"
        return text

    def admin(self, *words: str) -> str:
        """Output of one mqadmin command."""
        return self.call("admin", *words)

    def looker_state(self, name: str) -> dict[str, Any]:
        """Counters of a client that looks up a route all the time."""
        state: dict[str, Any] = json.loads(self.call("looker-state", name))
        return state

    def sender_state(self, name: str) -> dict[str, Any]:
        """Counters of a continuous sender."""
        state: dict[str, Any] = json.loads(self.call("sender-state", name))
        return state


class Lab:
    """The processes of one test, by kind."""

    def __init__(self, folder: Path, java: str, jars: dict[str, Path], classes: dict[str, Path], mode: str = "ap") -> None:
        """``mode``: of name servers started together."""
        self.folder, self._java, self._jars, self._classes, self._mode = folder, java, jars, classes, mode
        self.processes: list[Process] = []

    def close(self) -> None:
        """End everything that still runs."""
        for process in self.processes:
            if process.alive():
                process.kill()
            for stream in (process.child.stdin, process.child.stdout):
                if stream is not None:
                    stream.close()

    def _add(self, process: Process) -> Process:
        self.processes.append(process)
        return process

    def namesrv(self, name: str = "ns", settings: Mapping[str, str] | None = None) -> tuple[str, Process]:
        """Start one of our name servers. Returns (address, process) when it serves."""
        return self.namesrvs(name, settings=settings)[0]

    def namesrvs(self, *names: str, settings: Mapping[str, str] | None = None) -> list[tuple[str, Process]]:
        """Several name servers of ours, started together: (address, process) of each. All of them serve."""
        count = len(names)
        first = free_port(*(offset + number for offset in (0, 10, 20) for number in range(count) if offset + number))
        ports = {name: first + number for number, name in enumerate(names)}
        shared = dict(settings or {})
        if self._mode == "cp":
            shared["peers"] = ",".join(f"{name}=127.0.0.1:{port + 20}" for name, port in ports.items())
        started = [self._start_namesrv(name, port, shared) for name, port in ports.items()]
        try:
            for address, process in started:
                wait_for(partial(ask, address, 206), f"{process.name} serves on {address}")
        except AssertionError as error:
            raise AssertionError("\n".join([str(error), *(process.last_words() for _, process in started)])) from None
        return started

    def _start_namesrv(self, name: str, port: int, settings: Mapping[str, str]) -> tuple[str, Process]:
        folder = self.folder / f"{name}-{port}"
        own = [f"{key}={value}" for key, value in settings.items()]
        command = serve_command(name, f"127.0.0.1:{port}", f"127.0.0.1:{port + 10}", folder, self._mode, own)
        return f"127.0.0.1:{port}", self._add(Process(name, command, folder))

    def _java_command(self, version: str, home: Path, heap_mb: int, *system: str) -> list[str]:
        conf = home / "conf"
        conf.mkdir(parents=True, exist_ok=True)
        for role in ("namesrv", "broker", "tools"):
            (conf / f"logback_{role}.xml").write_text(LOGBACK)
            (conf / f"rmq.{role}.logback.xml").write_text(LOGBACK)
        return [
            *(self._java, f"-Xmx{heap_mb}m", f"-Xms{min(heap_mb, 128)}m", *JVM_FLAGS, *system),
            *(f"-Duser.home={home}", f"-Djava.io.tmpdir={home}"),  # a killed JVM leaves native libraries in the latter
            *("-cp", f"{self._classes[version]}:{self._jars[version]}/*"),
        ]

    def java_namesrv(self, version: str) -> tuple[str, Process]:
        """RocketMQ's own name server."""
        port = free_port()
        home = self.folder / f"java-ns-{port}"
        command = self.java_namesrv_command(version, home, port)
        process = self._add(Process("java-ns", command, home, {"ROCKETMQ_HOME": str(home)}))
        address = f"127.0.0.1:{port}"
        wait_for(lambda: ask(address, 206), f"the Java name server serves (log: {process.log})")
        return address, process

    def java_namesrv_command(self, version: str, home: Path, port: int) -> list[str]:
        """The command that runs RocketMQ's own name server in the folder ``home``, which is its ROCKETMQ_HOME."""
        logs = f"-Drmq.logback.configurationFile={home}/conf/rmq.namesrv.logback.xml"
        command = self._java_command(version, home, 256, logs)
        (home / "ns.properties").write_text(f"listenPort={port}\n")
        return [*command, "org.apache.rocketmq.namesrv.NamesrvStartup", "-c", str(home / "ns.properties")]

    def broker(
        self,
        version: str,
        name: str,
        name_servers: str,
        broker_id: int = 0,
        port: int = 0,
        system: tuple[str, ...] = (),
        properties: Mapping[str, str] | None = None,
    ) -> tuple[str, Process]:
        """A real broker; ``name_servers`` empty: it finds them itself. Started again on its port it finds its files."""
        port = port or free_port(-2, 1)
        home = self.folder / f"broker-{name}-{port}"
        all_properties = {
            "brokerClusterName": "DefaultCluster",
            "brokerName": name,
            "brokerId": str(broker_id),
            "listenPort": str(port),
            "brokerIP1": "127.0.0.1",
            "brokerIP2": "127.0.0.1",
            "storePathRootDir": str(home / "store"),
            "mappedFileSizeCommitLog": "16777216",
            "mappedFileSizeConsumeQueue": "600000",
            "diskMaxUsedSpaceRatio": "95",
            "brokerRole": "ASYNC_MASTER" if broker_id == 0 else "SLAVE",
            "flushDiskType": "ASYNC_FLUSH",
            "registerNameServerPeriod": "10000",
            "autoCreateTopicEnable": "true",
            "slaveReadEnable": "true",
            "haListenPort": str(port + 1),
            "fetchNamesrvAddrByAddressServer": "false",
            "enableControllerMode": "false",
            "timerWheelEnable": "false",
            "transientStorePoolEnable": "false",
            "warmMapedFileEnable": "false",
            # a busy test machine is not a reason for a broker to refuse messages
            "waitTimeMillsInSendQueue": "20000",
            "osPageCacheBusyTimeOutMills": "20000",
            **(properties or {}),
        }
        logs = f"-Drmq.logback.configurationFile={home}/conf/rmq.broker.logback.xml"
        full = "-Drocketmq.broker.diskSpaceWarningLevelRatio=0.98"
        command = self._java_command(version, home, 384, "-XX:MaxDirectMemorySize=512m", logs, full, *system)
        (home / "broker.properties").write_text("".join(f"{key}={value}\n" for key, value in all_properties.items()))
        command += ["org.apache.rocketmq.broker.BrokerStartup", "-c", str(home / "broker.properties")]
        command += ["-n", name_servers] if name_servers else []
        process = self._add(Process(f"broker {name}", command, home, {"ROCKETMQ_HOME": str(home)}))
        address = f"127.0.0.1:{port}"
        return address, process

    def driver(self, version: str, system: tuple[str, ...] = ()) -> Driver:
        """The JVM of clients of this version."""
        home = self.folder / f"driver-{version}-{len(self.processes)}"
        logs = f"-Drmq.logback.configurationFile={home}/conf/rmq.tools.logback.xml"
        client_log = "-Drocketmq.client.logUseSlf4j=false"
        command = [*self._java_command(version, home, 256, logs, client_log, *system), "Driver"]
        driver = Driver("driver", command, home, {"ROCKETMQ_HOME": str(home)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._add(driver)
        return driver


def compile_driver(jars: Path, folder: Path) -> Path:
    """Driver.java compiled against ``jars``. Raises CalledProcessError."""
    folder.mkdir(parents=True, exist_ok=True)
    source = Path(__file__).with_name("Driver.java")
    compiler = [str(provision.java()), "-jar", str(provision.compiler_jar(jars)), "-17", "-nowarn"]
    command = [*compiler, "-cp", ":".join(map(str, sorted(jars.glob("*.jar")))), "-d", str(folder), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    return folder


@contextlib.contextmanager
def laboratory(folder: Path, java: str, jars: dict[str, Path], classes: dict[str, Path], mode: str = "ap") -> Iterator[Lab]:
    """A Lab whose processes all end with the block."""
    lab = Lab(folder, java, jars, classes, mode)
    try:
        yield lab
    finally:
        lab.close()

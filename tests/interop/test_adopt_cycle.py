"""A Java cluster becomes AP, then CP, then Java again, while brokers and clients of two versions run: 20 swaps.

Runs only if ALL_INTEROP is set: five name servers and four more JVMs, for about eight minutes.
"""

import json
import os
import signal
import subprocess
import threading
import urllib.request
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from replicated_namesrv.child_process import serve_command, start_process
from tests.interop.lab import ALL_INTEROP, OLD, Driver, Lab, ask, compile_driver, laboratory, wait_for
from tests.interop.test_adopt import Plan, adopt, put, sends
from tests.interop.test_peers import create_topic, registered
from tests.support import provision
from tests.support.nodes import run_command
from tests.support.ports import free_ports
from tests.support.waiting import is_alive

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not ALL_INTEROP, reason="takes eight minutes; set ALL_INTEROP=1"),
]
SERVERS = 5
"""Five servers swapped four times are 20 swaps."""
NEW = provision.NEWEST_ROCKETMQ
TOPICS = {OLD: ("Old", "broker-old"), NEW: ("New", "broker-new")}
"""Topic and broker of each RocketMQ version."""
WAIT_S = "20"
"""Two registration periods of a broker."""
NOT_READY = 1
"""Code of the answer of a server that still waits for brokers (``needWaitForService``)."""


class RouteWatch:
    """Asks every server for every route, again and again, and counts the answers by kind."""

    def __init__(self, servers: list[str]) -> None:
        self._servers = servers
        self.counts: Counter[str] = Counter()
        self.missing: list[str] = []
        self._ends = threading.Event()
        self._threads = [threading.Thread(target=self._watch, args=(server,), daemon=True) for server in servers]

    def __enter__(self) -> "RouteWatch":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        for thread in self._threads:
            thread.join()

    def _watch(self, server: str) -> None:
        while not self._ends.wait(0.1):
            for topic, broker in TOPICS.values():
                self._look(server, topic, broker)

    def _look(self, server: str, topic: str, broker: str) -> None:
        try:
            header, body = ask(server, 105, {"topic": topic})
        except OSError:
            self.counts["no answer"] += 1  # its process is being replaced
            return
        if header["code"] == 0 and [row["brokerName"] for row in json.loads(body)["brokerDatas"]] == [broker]:
            self.counts["complete"] += 1
        elif header["code"] == NOT_READY:
            self.counts["refused"] += 1
        else:
            self.counts["missing"] += 1
            self.missing.append(f"{server} {topic}: {header} {body[:200]!r}")


class Cycle:
    """The servers, their plan, and the walks."""

    def __init__(self, plan: Plan, servers: list[str], folder: Path) -> None:
        self.servers, self.swapped = servers, list[str]()
        """``swapped``: the kind of server that each swap has led to."""
        self._plan, self._folder = plan, folder
        self._started: list[subprocess.Popen[bytes]] = []
        ports = [server.rpartition(":")[2] for server in servers]
        admin, peer = (dict(zip(ports, free_ports(SERVERS), strict=True)) for _ in range(2))
        self._admin = {port: f"127.0.0.1:{admin[port]}" for port in ports}
        peers = ",".join(f"n{port}=127.0.0.1:{peer[port]}" for port in ports)
        entries = self._read()
        for port, entry in entries.items():
            for mode, more in (("ap", []), ("cp", [f"peers={peers}"])):
                own = ["needWaitForService=true", f"waitSecondsForService={WAIT_S}", *more]
                listen, data = f"127.0.0.1:{port}", Path(entry["data"])
                entry[mode] = serve_command(f"n{port}", listen, self._admin[port], data, mode, own)
            entry["ours"] = entry["ap"]
        self._write(entries)

    def _read(self) -> dict[str, dict[str, Any]]:
        entries: dict[str, dict[str, Any]] = json.loads(self._plan.file.read_text())
        return entries

    def _write(self, entries: dict[str, dict[str, Any]]) -> None:
        self._plan.file.write_text(json.dumps(entries))

    def adopt_all(self, kind: str) -> None:
        """Swap each server with ``namesrv adopt``."""
        for server in self.servers:
            more = ("--only", server, "--namespace", "ORDER_TOPIC_CONFIG")
            (row,) = adopt(";".join(self.servers), *more, "--to", kind, "--swap", self._plan.command)["swapped"]
            assert row["to"] == kind, row
            self.swapped.append(kind)

    def switch_all(self, mode: str) -> None:
        """Switch all nodes as docs/switching.md says."""
        entries, backups = self._read(), list[str]()
        for port in entries if mode == "cp" else [*entries][:1]:
            backups.append(str(self._folder / f"{port}-before-{mode}"))
            succeed("backup", backups[-1], "-a", self._admin[port])
        for entry in entries.values():
            os.kill(entry["pid"], signal.SIGTERM)
        for port, entry in entries.items():
            wait_for(partial(has_ended, entry["pid"]), f"the node on {port} has ended")
            succeed("switch", "--to", mode, entry["data"], "--backup", *backups)
        for entry in entries.values():
            entry["ours"] = entry[mode]
            self._started.append(start_process(entry["ours"], Path(entry["log"])))
            entry["pid"] = self._started[-1].pid
            self.swapped.append(mode)
        self._write(entries)
        for admin in self._admin.values():
            wait_for(partial(is_ready, admin), f"{admin} is ready")
        if mode == "cp":
            succeed("restore", "--merge", backups[0], "-a", ";".join(self._admin.values()))
        for topic, broker in TOPICS.values():
            wait_for(partial(registered, self.servers, broker, 0, topic), f"{topic} is routed everywhere")
        succeed("diff", "-n", ";".join(self.servers), "-a", ";".join(self._admin.values()), "--timeout-ms", "5000")

    def end(self) -> None:
        """Kill what runs."""
        self._plan.end()
        for process in self._started:
            process.wait()


def succeed(*arguments: str) -> None:
    done = run_command(*arguments)
    assert done.returncode == 0, (arguments, done.stdout, done.stderr)


def has_ended(pid: int) -> bool:
    return not is_alive(pid)


def is_ready(admin: str) -> bool:
    """Whether the node is ready. Raises OSError if it does not answer or answers with an error."""
    with urllib.request.urlopen(f"http://{admin}/readyz", timeout=5) as answer:
        return bool(answer.status == 200)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """A laboratory with the jars of both versions."""
    jars = {version: provision.require_rocketmq_jars(version) for version in TOPICS}
    classes = {version: compile_driver(folder, tmp_path / f"classes-{version}") for version, folder in jars.items()}
    with laboratory(tmp_path, str(provision.java()), jars, classes) as it:
        yield it


def test_java_to_ap_to_cp_and_back(lab: Lab, tmp_path: Path) -> None:
    started = [lab.java_namesrv(NEW) for _ in range(SERVERS)]
    servers = [address for address, _ in started]
    names = ";".join(servers)
    for server in servers:
        put(server, "Carry", "broker-old:4")
    drivers: dict[str, Driver] = {}
    for version, (topic, broker) in TOPICS.items():
        lab.broker(version, broker, names, properties={"brokerClusterName": f"cluster-{broker}"})
        wait_for(partial(registered, servers, broker, 0), f"{broker} is registered")
        drivers[version] = driver = lab.driver(version)
        create_topic(driver, names, servers, topic, broker, cluster=f"cluster-{broker}")
        driver.call("receiver-start", "r", names, f"group-{topic}", topic)
        driver.call("sender-start", "s", names, topic, "20")
        wait_for(lambda driver=driver: sends(driver)[0] > 100, f"messages of {version} flow")  # type: ignore[misc]  # a default of a lambda
    start = tmp_path / "start"
    adopt(names, "--save", str(start))
    plan = Plan(lab, started, tmp_path, start, WAIT_S)
    cycle = Cycle(plan, servers, tmp_path)
    try:
        with RouteWatch(servers) as watch:
            cycle.adopt_all("ours")
            cycle.switch_all("cp")
            cycle.switch_all("ap")
            cycle.adopt_all("rocketmq")
        for server in servers:
            header, _ = ask(server, 101, {"namespace": "ORDER_TOPIC_CONFIG", "key": "Carry"})
            assert header["extFields"]["value"] == "broker-old:4"
        assert len(cycle.swapped) == 4 * SERVERS
        assert not watch.missing, watch.missing[:5]
        assert watch.counts["complete"] > 1_000, watch.counts
        for version, driver in drivers.items():
            state = json.loads(driver.call("sender-stop", "s"))
            assert state["failed"] == 0, (version, state)
            received = partial(driver.call, "receiver-count", "r")
            wait_for(lambda state=state, received=received: int(received()) == state["sent"], f"{version} receives all messages")  # type: ignore[misc]  # defaults of a lambda
    finally:
        cycle.end()

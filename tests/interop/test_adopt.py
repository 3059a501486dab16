"""``namesrv adopt``: RocketMQ's own name servers are replaced one at a time under load, and put back."""

import contextlib
import json
import os
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from replicated_namesrv.child_process import serve_command
from replicated_namesrv.client.queries import RefusedError
from tests.interop.lab import Driver, Lab, Process, addresses_of, ask, compile_driver, laboratory, wait_for
from tests.interop.test_peers import create_topic, registered
from tests.support import provision
from tests.support.nodes import run_command

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
VERSION = "5.3.3"
WAIT_S = "12"
"""A pause that is longer than the broker's registration period, 10 s."""


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """A laboratory with the jars of one version."""
    jars = provision.require_rocketmq_jars(VERSION)
    classes = compile_driver(jars, tmp_path / "classes")
    with laboratory(tmp_path, str(provision.java()), {VERSION: jars}, {VERSION: classes}) as it:
        yield it


class Plan:
    """The data of the swap script, by port."""

    def __init__(self, lab: Lab, servers: list[tuple[str, Process]], folder: Path, start: Path, wait_s: str = WAIT_S) -> None:
        self.file = folder / "plan.json"
        plan: dict[str, dict[str, Any]] = {}
        for address, process in servers:
            port = address.rpartition(":")[2]
            with (process.folder / "ns.properties").open("a") as properties:
                properties.write(f"needWaitForService=true\nwaitSecondsForService={wait_s}\n")
            data = folder / f"data-{port}"
            data.mkdir()
            for file in start.iterdir():
                (data / file.name).write_bytes(file.read_bytes())
            own = ["needWaitForService=true", f"waitSecondsForService={wait_s}"]
            plan[port] = {
                "pid": process.child.pid,
                "kind": "java",
                "java": process.child.args,
                "ours": serve_command(f"n{port}", address, f"127.0.0.1:{int(port) + 10}", data, "ap", own),
                "data": str(data),
                "folder": str(process.folder),
                "environment": {"ROCKETMQ_HOME": str(process.folder)},
                "log": str(folder / f"swapped-{port}.log"),
            }
        self.file.write_text(json.dumps(plan))
        self.command = shlex.join([sys.executable, str(Path(__file__).with_name("swap_server.py")), str(self.file), "{port}"])

    def end(self) -> None:
        """Kill what runs."""
        for server in json.loads(self.file.read_text()).values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(server["pid"], signal.SIGKILL)


def adopt(addresses: str, *more: str) -> dict[str, Any]:
    """The report of ``namesrv adopt``, which has to succeed."""
    done = run_command("adopt", "-n", addresses, "--timeout-ms", "5000", "--json", *more)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def put(address: str, key: str, value: str) -> None:
    header, _ = ask(address, 100, {"namespace": "ORDER_TOPIC_CONFIG", "key": key, "value": value})
    assert header["code"] == 0, RefusedError(header["code"], header.get("remark"))


def sends(driver: Driver) -> tuple[int, int]:
    state = driver.sender_state("s")
    return state["sent"], state["failed"]


def test_java_servers_are_replaced_under_load_and_put_back(lab: Lab, tmp_path: Path) -> None:
    servers = [lab.java_namesrv(VERSION) for _ in range(2)]
    nodes = [address for address, _ in servers]
    names = ";".join(nodes)
    for address in nodes:
        put(address, "Carry", "broker-a:4")
        assert ask(address, 318, body=b"orderMessageEnable=true")[0]["code"] == 0
    lab.broker(VERSION, "broker-a", names)
    wait_for(lambda: registered(nodes, "broker-a", 0), "the broker is registered")
    driver = lab.driver(VERSION)
    create_topic(driver, names, nodes, "Carry", "broker-a")
    driver.call("sender-start", "s", names, "Carry", "5")
    wait_for(lambda: sends(driver)[0] > 100, "messages flow")

    start = tmp_path / "start"
    report = adopt(names, "--save", str(start))
    assert set(report["servers"].values()) == {"rocketmq"}
    assert set(report["settings"]["orderMessageEnable"].values()) == {"true"}
    plan = Plan(lab, servers, tmp_path, start)
    try:
        for kind in ("ours", "rocketmq"):
            before = sends(driver)
            report = adopt(names, "--to", kind, "--swap", plan.command)
            assert [row["to"] for row in report["swapped"]] == [kind, kind]
            assert set(report["servers"].values()) == {kind}
            for address in nodes:
                assert set(addresses_of(address, "Carry")) == {"broker-a"}
                header, _ = ask(address, 101, {"namespace": "ORDER_TOPIC_CONFIG", "key": "Carry"})
                assert header["extFields"]["value"] == "broker-a:4"
            wait_for(lambda: sends(driver)[0] > before[0] + 100, "messages flow after the walk")  # noqa: B023 - called within this turn of the loop
            assert sends(driver)[1] == before[1], "no send failed"
        driver.call("sender-stop", "s")
    finally:
        plan.end()


def test_a_walk_does_not_begin_while_servers_differ(lab: Lab, tmp_path: Path) -> None:
    nodes = [lab.java_namesrv(VERSION)[0], lab.namesrv("ours")[0]]
    put(nodes[0], "only", "here")
    started = tmp_path / "started"
    one = ("adopt", "-n", ";".join(nodes), "--to", "ours")  # the second server is ours already
    done = run_command(*one, "--swap", f"touch {started}")
    assert done.returncode == 1
    assert "key ORDER_TOPIC_CONFIG/only" in done.stdout
    assert "was not swapped: the servers differ" in done.stderr
    assert not started.exists()
    done = run_command("adopt", "-n", ";".join(nodes), "--save", str(tmp_path / "start"))
    assert done.returncode == 1
    assert "nothing was saved" in done.stderr
    put(nodes[1], "only", "here")
    kinds = adopt(";".join(nodes))["servers"]
    assert kinds == {nodes[0]: "rocketmq", nodes[1]: "ours"}
    done = run_command(*one, "--swap", "true", "--within", "1")
    assert done.returncode == 1
    assert "still waiting for the server to be replaced (it is still rocketmq)" in done.stderr
    names = ";".join(nodes)
    unclear = run_command("adopt", "-n", names, "--swap", f"touch {started}")
    assert (unclear.returncode, "give --swap COMMAND together with --to ours or --to rocketmq" in unclear.stderr) == (2, True)
    skipped = run_command("adopt", "-n", names, "--only", nodes[1], "--to", "ours", "--swap", f"touch {started}")
    assert (skipped.returncode, f"{nodes[1]}: it is ours already" in skipped.stdout) == (0, True), skipped
    assert not started.exists()
    done = run_command(*one, "--swap", "false")
    assert done.returncode == 1
    assert "the command of --swap ended with 1" in done.stderr

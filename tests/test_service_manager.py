"""Messages to a service manager, received by a test socket."""

import asyncio
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from replicated_namesrv.service_manager import ServiceManager
from tests.support.nodes import http, running_command
from tests.support.ports import free_port
from tests.support.waiting import until

DEADLINE_S = 60.0


class Manager:
    """The manager's end."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.settimeout(DEADLINE_S)
        self.socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self.address = address

    def next(self) -> dict[str, str]:
        """The next message, by name."""
        return dict(line.split("=", 1) for line in self.socket.recv(4096).decode().splitlines())

    def until(self, name: str) -> dict[str, str]:
        """The next message with ``name``."""
        while name not in (message := self.next()):
            pass
        return message


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    address = str(tmp_path / "notify") if request.param == "path" else f"@namesrv-test-{os.getpid()}-{id(tmp_path)}"
    found = Manager(address)
    yield found
    found.socket.close()


async def test_messages_are_those_of_the_protocol(manager: Manager) -> None:
    environment = {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "2000", "WATCHDOG_PID": str(os.getpid()), "OTHER": "x"}
    told = ServiceManager(environment)
    assert environment == {"OTHER": "x"}, "children shall not speak for this process"
    told.ready("serving")
    assert manager.next() == {"READY": "1", "STATUS": "serving"}
    told.status("fenced")
    assert manager.next() == {"STATUS": "fenced"}
    told.reloading()
    message = manager.next()
    assert message["RELOADING"] == "1"
    assert int(message["MONOTONIC_USEC"]) > 0
    told.watch()
    for _ in range(3):
        assert await asyncio.to_thread(manager.next) == {"WATCHDOG": "1"}
    told.stopping()
    while (last := manager.next()) == {"WATCHDOG": "1"}:
        pass
    assert last == {"STOPPING": "1"}


async def test_without_a_manager_nothing_happens_and_a_deaf_one_harms_nobody(tmp_path: Path) -> None:
    for environment in ({}, {"WATCHDOG_USEC": "1000"}, {"NOTIFY_SOCKET": str(tmp_path / "nobody"), "WATCHDOG_USEC": "x"}):
        told = ServiceManager(environment)
        told.ready("serving")
        told.watch()
        told.stopping()


async def test_the_watchdog_of_another_process_is_not_ours(manager: Manager) -> None:
    told = ServiceManager({"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "1000", "WATCHDOG_PID": str(os.getpid() + 1)})
    told.watch()
    told.stopping()
    assert manager.next() == {"STOPPING": "1"}


async def test_a_node_tells_of_its_whole_life(tmp_path: Path) -> None:
    manager = Manager(str(tmp_path / "notify"))
    file, errors, port = tmp_path / "namesrv.properties", tmp_path / "err", free_port(10)
    file.write_text("waitSecondsForService=45\nmaxConnections=1000\n")
    arguments = ("serve", "-c", str(file), "--listen", f"127.0.0.1:{port}", "--data-dir", str(tmp_path / "data"))
    environment = {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "400000"}
    with running_command(*arguments, stderr=errors, environment=environment) as node:
        ready = await asyncio.to_thread(manager.until, "READY")
        assert ready["STATUS"] == f"serving on 127.0.0.1:{port}, node n1, mode=ap"
        assert "WATCHDOG" in await asyncio.to_thread(manager.until, "WATCHDOG")

        async def reload(text: str) -> dict[str, str]:
            file.write_text(text)
            node.process.send_signal(signal.SIGHUP)
            await asyncio.to_thread(manager.until, "RELOADING")
            await asyncio.to_thread(manager.until, "READY")
            config: dict[str, str] = (await http(port + 10, "/v1/config")).json
            return config

        config = await reload("waitSecondsForService=46\nmaxConnections=2000\n")
        assert (config["waitSecondsForService"], config["maxConnections"]) == ("46", "1000")
        await until(
            lambda: '"in_force_after_restart": ["maxConnections"]' in errors.read_text(), "the log names what has to wait"
        )
        config = await reload("waitSecondsForService=47\nreadConsistency=oops\n")
        assert config["waitSecondsForService"] == "46"
        await until(lambda: "the old ones stay" in errors.read_text(), "the log says that the old settings stay")
        node.process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(manager.until, "STOPPING")
        assert await asyncio.to_thread(node.process.wait, DEADLINE_S) == 0
    manager.socket.close()

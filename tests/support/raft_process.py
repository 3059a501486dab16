"""A Raft node in a process of its own, with a map as its state, and a client to ask it.

``python -m tests.support.raft_process CONFIG`` runs the node; CONFIG is JSON with node, cluster, addresses, listen, secret,
directory, port (of the client interface), config (RaftConfig fields). Client frames: length u32, then JSON; answers carry the id.
"""

import asyncio
import json
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any, cast

from replicated_namesrv.raft.interfaces import Committed, Indeterminate, ReadReady
from replicated_namesrv.raft.raft_config import RaftConfig
from replicated_namesrv.raft.raft_service import RaftService
from replicated_namesrv.raft.transport import TransportSettings
from tests.support.ports import free_ports

LENGTH = struct.Struct("<I")


WORK_SECONDS = 0.2


class MapMachine:
    """``key=value`` commands; the result is the number of commands applied. Keys ``work…`` take WORK_SECONDS to apply."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self.applied = 0
        self.sum = 0

    def apply(self, command: bytes) -> object:
        key, _, value = command.partition(b"=")
        self.values[key] = value
        if key.startswith(b"work"):
            ends_at = time.thread_time() + WORK_SECONDS
            while time.thread_time() < ends_at:
                pass
        self.applied += 1
        self.sum ^= int.from_bytes(blake2b(command, digest_size=8).digest(), "little")
        return self.applied

    def snapshot(self) -> Iterator[bytes]:
        return self._chunks(dict(self.values), b"%d %d" % (self.applied, self.sum))

    @staticmethod
    def _chunks(values: dict[bytes, bytes], head: bytes) -> Iterator[bytes]:
        yield head
        rows, size = [], 0
        for key, value in values.items():
            rows.append([key.decode("latin-1"), value.decode("latin-1")])
            size += len(key) + len(value)
            if size > 64 << 10:
                yield json.dumps(rows).encode()
                rows, size = [], 0
        yield json.dumps(rows).encode()

    def restore(self) -> "MapRestoration":
        return MapRestoration(self)

    def digest(self) -> bytes:
        return b"%d %d %d" % (self.applied, self.sum, len(self.values))


class MapRestoration:
    def __init__(self, machine: MapMachine) -> None:
        self.machine = machine
        self.values: dict[bytes, bytes] = {}
        self.head: list[int] | None = None

    def feed(self, chunk: bytes) -> None:
        if self.head is None:
            self.head = [int(n) for n in chunk.split()]
        else:
            self.values.update((k.encode("latin-1"), v.encode("latin-1")) for k, v in json.loads(chunk))

    def finish(self) -> None:
        assert self.head is not None
        self.machine.values = self.values
        self.machine.applied, self.machine.sum = self.head


class ClientInterface(asyncio.Protocol):
    """One client connection of the child process."""

    def __init__(self, service: RaftService, machine: MapMachine) -> None:
        self.service, self.machine = service, machine
        self.buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # the transport of uvloop is not derived from it

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while len(self.buffer) >= 4 and len(self.buffer) >= 4 + (length := LENGTH.unpack_from(self.buffer)[0]):
            request = json.loads(self.buffer[4 : 4 + length])
            self.buffer = self.buffer[4 + length :]
            self.handle(request)

    def answer(self, request: dict[str, Any], **fields: object) -> None:
        payload = json.dumps({"id": request["id"], **fields}).encode()
        self.transport.write(LENGTH.pack(len(payload)) + payload)

    def handle(self, request: dict[str, Any]) -> None:
        kind = request["do"]
        if kind == "status":
            self.answer(request, status=self.service.status(), digest=self.machine.digest().decode())
        elif kind == "propose":
            future = self.service.propose(request["command"].encode(), request.get("timeout_ms"))
            future.add_done_callback(lambda f: self.proposed(request, f.result()))
        elif kind == "read":
            self.service.read_index().add_done_callback(lambda f: self.read(request, f.result()))
        elif kind == "read_many":
            self.service.read_index().add_done_callback(lambda f: self.read_many(request, f.result()))
        elif kind == "transfer":
            self.service.transfer_leadership(request["peer"]).add_done_callback(lambda f: self.answer(request, ok=f.result()))

    def proposed(self, request: dict[str, Any], outcome: object) -> None:
        if isinstance(outcome, Committed):
            self.answer(request, ok=True, result=outcome.result)
        else:
            self.answer(request, ok=False, definite=not isinstance(outcome, Indeterminate), reason=str(outcome))

    def read(self, request: dict[str, Any], outcome: object) -> None:
        if isinstance(outcome, ReadReady):
            value = self.machine.values.get(request["key"].encode())
            self.answer(request, ok=True, value=None if value is None else value.decode())
        else:
            self.answer(request, ok=False, definite=True, reason=str(outcome))

    def read_many(self, request: dict[str, Any], outcome: object) -> None:
        values = [self.machine.values.get(key.encode()) for key in request["keys"]]
        self.answer(request, ok=isinstance(outcome, ReadReady), values=[v if v is None else v.decode() for v in values])


async def serve(settings: dict[str, Any]) -> None:
    machine = MapMachine()
    service = RaftService(
        TransportSettings(
            settings["node"],
            settings["cluster"],
            {name: (host, port) for name, (host, port) in settings["addresses"].items()},
            (settings["listen"][0], settings["listen"][1]),
            settings["secret"].encode() if settings.get("secret") else None,
        ),
        Path(settings["directory"]),
        machine,
        RaftConfig(**settings.get("config", {})),
    )
    await service.start()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: ClientInterface(service, machine), "127.0.0.1", settings["port"])
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    print("ready", flush=True)
    await stop.wait()
    server.close()
    await service.stop()


class Client:
    """A blocking client of one child."""

    def __init__(self, port: int, timeout: float = 10) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout)
        self._file = self._socket.makefile("rb")
        self._id = 0

    def ask(self, do: str, **fields: object) -> dict[str, Any]:
        self._id += 1
        payload = json.dumps({"id": self._id, "do": do, **fields}).encode()
        self._socket.sendall(LENGTH.pack(len(payload)) + payload)
        head = self._file.read(4)
        if len(head) < 4:
            raise ConnectionError("the node is gone")
        size: int = LENGTH.unpack(head)[0]
        body = self._file.read(size)
        if len(body) < size:
            raise ConnectionError("the node died while it answered")
        answer: dict[str, Any] = json.loads(body)
        return answer

    def close(self) -> None:
        self._file.close()
        self._socket.close()


class Child:
    """A node's process and its data directory."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.process: subprocess.Popen[bytes] | None = None
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.raft_process", json.dumps(self.settings)],
            stdout=subprocess.PIPE,
            stderr=self.errors,
            cwd=Path(__file__).parents[2],
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if line != b"ready\n":
            self.errors.seek(0)
            raise AssertionError(self.errors.read().decode())

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            assert self.process.stdout is not None
            self.process.stdout.close()
            self.process = None

    def close(self) -> None:
        """Kill the process; it is not started again."""
        self.kill()
        self.errors.close()

    def client(self, timeout: float = 10) -> Client:
        return Client(self.settings["port"], timeout)


def cluster(directory: Path, size: int = 3, **config: object) -> list[Child]:
    """Children that form a cluster, not started."""
    ports = free_ports(2 * size)
    names = [f"n{i + 1}" for i in range(size)]
    addresses = {name: ("127.0.0.1", port) for name, port in zip(names, ports, strict=False)}
    return [
        Child(
            {
                "node": name,
                "cluster": "test",
                "addresses": addresses,
                "listen": addresses[name],
                "secret": "a shared secret",
                "directory": str(directory / name),
                "port": ports[size + i],
                "config": config,
            }
        )
        for i, name in enumerate(names)
    ]


if __name__ == "__main__":
    import uvloop

    uvloop.run(serve(json.loads(sys.argv[1])))

"""A real remoting server over a real AP node, in a thread with a loop of its own, and peers that speak to it over sockets."""

import asyncio
import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from replicated_namesrv.access.access_control import AccessControl
from replicated_namesrv.compat.independent_node import IndependentNode
from replicated_namesrv.process import NodeService
from replicated_namesrv.server.server import RemotingServer
from replicated_namesrv.settings import Settings
from replicated_namesrv.settings_sources import load_settings
from replicated_namesrv.wire.frame import frame
from replicated_namesrv.wire.header import RemotingHeader, command_frame, decode_header

T = TypeVar("T")
TIMEOUT_S = 60.0


class ServerThread:
    """The running server; ``do`` runs something in its loop."""

    loop: asyncio.AbstractEventLoop
    service: NodeService
    server: RemotingServer
    access: AccessControl | None

    def __init__(self, settings: Settings, service_of: Callable[[Settings], NodeService]) -> None:
        self.settings = settings
        self._service_of = service_of
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._ready.wait(TIMEOUT_S)
        if self._error is not None:
            raise self._error
        self.metrics = self.server.metrics

    @property
    def port(self) -> int:
        return self.server.port

    def do(self, action: Callable[[], T]) -> T:
        """Result of ``action``, run in the server's loop."""

        async def run() -> T:
            return action()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(TIMEOUT_S * 3)

    def wait_for(self, action: Coroutine[Any, Any, T]) -> T:
        """Result of a coroutine, run in the server's loop."""
        return asyncio.run_coroutine_threadsafe(action, self.loop).result(TIMEOUT_S * 3)

    def stop(self) -> None:
        """Stop server and node, and end the loop."""
        self.loop.call_soon_threadsafe(self._ending.set)
        self._thread.join(TIMEOUT_S * 3)
        assert not self._thread.is_alive(), "the server's loop did not end"

    def _run(self) -> None:
        async def main() -> None:
            self.loop = asyncio.get_running_loop()
            self._ending = asyncio.Event()
            self.service = self._service_of(self.settings)
            self.access = AccessControl.of(self.settings)
            self.server = RemotingServer(self.settings, self.service, access=self.access)
            try:
                if self.access is not None:
                    await self.access.start()
                await self.service.start()
                await self.server.start()
            except BaseException as error:
                self._error = error
                return
            finally:
                self._ready.set()
            await self._ending.wait()
            await self.server.stop()
            await self.service.stop()
            if self.access is not None:
                await self.access.stop()

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main())


@contextmanager
def live_server(
    folder: Path, service_of: Callable[[Settings], NodeService] = IndependentNode, /, **flags: str
) -> Iterator[ServerThread]:
    """A started server on a port of the kernel's choice; ``flags`` by name in the properties file, with two underscores for each
    dot."""
    given = {name.replace("__", "."): value for name, value in flags.items()}
    defaults = {"bindAddress": "127.0.0.1", "listenPort": "0", "dataDir": str(folder)}
    thread = ServerThread(load_settings(None, {**defaults, **given}, {}), service_of)
    try:
        yield thread
    finally:
        thread.stop()


class Answer:
    """One frame that came back."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        word = int.from_bytes(data[4:8])
        self.serialize_type = word >> 24
        self.header_data = data[8 : 8 + (word & 0xFFFFFF)]
        self.header = decode_header(self.header_data, self.serialize_type)
        self.body = data[8 + len(self.header_data) :]

    @property
    def code(self) -> int:
        return self.header.code


class Peer:
    """A blocking client connection."""

    def __init__(self, port: int, tls: ssl.SSLContext | None = None, first: bytes = b"", source: str = "127.0.0.1") -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), TIMEOUT_S, (source, 0))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if first:
            self.socket.sendall(first)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname="localhost")
        self._received = bytearray()
        self._opaque = 0

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def receive(self, timeout_s: float = TIMEOUT_S) -> Answer | None:
        """The next frame; None: the server closed. Raises TimeoutError."""
        deadline = time.monotonic() + timeout_s
        while True:
            if len(self._received) >= 4:
                size = 4 + int.from_bytes(self._received[:4])
                if len(self._received) >= size:
                    data = bytes(self._received[:size])
                    del self._received[:size]
                    return Answer(data)
            self.socket.settimeout(max(deadline - time.monotonic(), 0.001))
            try:
                data = self.socket.recv(1 << 18)
            except (ConnectionError, ssl.SSLError):
                return None
            if not data:
                return None
            self._received += data

    def answers(self, count: int) -> list[Answer]:
        """The next ``count`` frames."""
        received: list[Answer] = []
        for _ in range(count):
            answer = self.receive()
            assert answer is not None, f"closed after {len(received)} of {count} answers"
            received.append(answer)
        return received

    def call(
        self, code: int, fields: dict[str, str] | None = None, body: bytes = b"", version: int = 479, serialize_type: int = 0
    ) -> Answer:
        """Send a request and take its answer."""
        self._opaque += 1
        self.send(request(code, fields, body, version=version, opaque=self._opaque, serialize_type=serialize_type))
        answer = self.answers(1)[0]
        assert answer.header.opaque == self._opaque
        return answer

    def is_closed(self, timeout_s: float = TIMEOUT_S) -> bool:
        """Whether the server closes within the time without sending anything more."""
        try:
            return self.receive(timeout_s) is None
        except TimeoutError:
            return False

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *exception: object) -> None:
        with contextlib.suppress(OSError):
            self.close()


def request(
    code: int,
    fields: dict[str, str] | None = None,
    body: bytes = b"",
    version: int = 479,
    opaque: int = 1,
    flag: int = 0,
    serialize_type: int = 0,
) -> bytes:
    """A request frame."""
    return command_frame(RemotingHeader(code, flag, 0, opaque, version, None, fields, serialize_type), body)


def raw_frame(header: bytes, body: bytes = b"", serialize_type: int = 0) -> bytes:
    """A frame with a header as given."""
    return frame(header, body, serialize_type)


def topic_table(*topics: str, counter: int = 1, mapping_stamp: int = 1) -> bytes:
    """Body of a registration of a 5.x broker with these topics, 8 queues each; brokers stamp the mappings anew each time."""
    entries = ",".join(
        f'"{topic}":{{"attributes":{{}},"order":false,"perm":6,"readQueueNums":8,"topicFilterType":"SINGLE_TAG",'
        f'"topicName":"{topic}","topicSysFlag":0,"writeQueueNums":8}}'
        for topic in topics
    )
    version = f'{{"counter":{counter},"stateVersion":0,"timestamp":1}}'
    mappings = f'{{"counter":0,"stateVersion":0,"timestamp":{mapping_stamp}}}'
    return (
        f'{{"filterServerList":[],"topicConfigSerializeWrapper":{{"dataVersion":{version},"mappingDataVersion":{mappings},'
        f'"topicConfigTable":{{{entries}}},"topicQueueMappingDetailMap":{{}},"topicQueueMappingInfoMap":{{}}}}}}'
    ).encode()


def broker_fields(broker_name: str = "b", broker_addr: str = "10.0.0.1:10911", broker_id: int = 0, **more: str) -> dict[str, str]:
    """extFields of a registration."""
    return {
        "clusterName": "C",
        "brokerName": broker_name,
        "brokerAddr": broker_addr,
        "brokerId": str(broker_id),
        "haServerAddr": "10.0.0.1:10912",
        "enableActingMaster": "false",
        **more,
    }


def rss_bytes(pid: int) -> int:
    """Resident memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) * 1024

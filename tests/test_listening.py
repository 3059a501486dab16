"""Addresses of this machine. A listener that is closed while connections are being accepted leaves none of them open."""

import asyncio
import contextlib
import gc
import socket
import threading

import pytest
import uvloop

from replicated_namesrv.listening import is_loopback, is_same_host, stop_listening
from replicated_namesrv.server.listener import Listener
from replicated_namesrv.settings import Settings


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        *(("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("::1%lo", True), ("::ffff:127.0.0.1", True)),
        *(("localhost", True), ("::ffff:192.0.2.1", False), ("192.0.2.1", False), ("::", False), ("localhost.example", False)),
    ],
)
def test_loopback_addresses(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        *(("localhost", "127.0.0.1", True), ("localhost", "::1", True), ("::ffff:192.0.2.1", "192.0.2.1", True)),
        *(("Host-a", "host-a", True), ("::1", "0:0:0:0:0:0:0:1", True)),
        *(("127.0.0.1", "127.0.0.2", False), ("127.0.0.1", "::1", False), ("localhost", "host-a", False)),
    ],
)
def test_hosts_are_compared_without_dns(one: str, other: str, expected: bool) -> None:
    assert is_same_host(one, other) is is_same_host(other, one) is expected


class Peer(asyncio.Protocol):
    """A connection that ends at once if it comes after the listener was closed."""

    def __init__(self, door: "Door") -> None:
        self.door = door

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or type(transport).__module__.startswith("uvloop")
        self.transport = transport
        self.door.open_now.add(self)
        if self.door.is_closed:
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.door.open_now.discard(self)


class Door:
    """A listener and its connections."""

    def __init__(self) -> None:
        self.is_closed = False
        self.open_now: set[Peer] = set()

    def close(self, server: asyncio.Server) -> None:
        self.is_closed = True
        stop_listening(server)
        for peer in list(self.open_now):
            peer.transport.close()


async def close_after(turns: int) -> None:
    """Close a listener so many turns of the loop after three clients have connected."""
    door = Door()
    server = await asyncio.get_running_loop().create_server(lambda: Peer(door), "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    with contextlib.ExitStack() as clients:
        for _ in range(3):
            client = clients.enter_context(socket.socket())
            client.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                client.connect(address)
        for _ in range(turns):
            await asyncio.sleep(0)
        door.close(server)
        await asyncio.sleep(0)
        with socket.socket() as late:
            assert late.connect_ex(address) != 0, "nobody listens any more"
        for _ in range(8):
            await asyncio.sleep(0)
        assert not door.open_now


both_loops = pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])


@both_loops
def test_what_is_accepted_while_the_listener_closes_is_handed_over(loop: object) -> None:
    """A socket that nobody closes is a warning of the garbage collector, and a warning fails the test."""
    gc.collect()
    gc.freeze()  # the collections below look at the objects of this test only, not at those of all modules
    try:
        for turns in range(6):
            with asyncio.Runner(loop_factory=loop) as runner:  # type: ignore[arg-type]  # both make a loop; uvloop's has no stub
                runner.run(close_after(turns))
            gc.collect()
    finally:
        gc.unfreeze()


async def close_while_opening(turns: int) -> None:
    """Close a listener so many turns of the loop after it began to open."""
    listener = Listener(Settings(listen="127.0.0.1:0"), asyncio.Protocol)
    opening = asyncio.ensure_future(listener.open())
    for _ in range(turns):
        await asyncio.sleep(0)
    listener.close()
    await opening
    await asyncio.sleep(0)
    try:
        assert not listener.is_open
        with socket.socket() as late:
            assert late.connect_ex(("127.0.0.1", listener.port)) != 0, "nobody listens"
        await asyncio.gather(listener.open(), listener.open())
        assert listener.is_open
    finally:  # uvloop does not end while a server is open
        listener.close()
        await asyncio.sleep(0)


@both_loops
def test_a_listener_that_is_closed_while_it_opens_stays_closed(loop: object) -> None:
    """In an earlier version, a node that fenced itself while ``namesrv drain --undo`` was executed listened during the fence. A
    second such request at the same time failed, because the port was in use."""
    for turns in range(1, 6):
        with asyncio.Runner(loop_factory=loop) as runner:  # type: ignore[arg-type]  # both make a loop; uvloop's has no stub
            runner.run(close_while_opening(turns))


async def reopen_while_the_name_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    real, asked, answer = socket.getaddrinfo, list[str](), threading.Event()

    def look_up(host: str, *more: object, **options: object) -> object:
        if host != "own.test":
            return real(host, *more, **options)  # type: ignore[arg-type]  # as the caller gives them
        asked.append(host)
        if len(asked) > 1:
            answer.wait(2)
        return real("127.0.0.1", *more, **options)  # type: ignore[arg-type]  # as above

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    listener = Listener(Settings(listen="own.test:0"), asyncio.Protocol)
    await listener.open()
    listener.close()
    turns = 0
    opening = asyncio.ensure_future(listener.open())
    try:
        while not opening.done():
            turns += 1
            await asyncio.sleep(0.01)
        await opening
        assert len(asked) == 2
        assert turns > 2, "the loop continues during the look-up"
    finally:  # uvloop does not end while a server is open
        answer.set()
        listener.close()
        await asyncio.sleep(0)


@both_loops
def test_a_listener_opens_again_although_its_name_hangs(loop: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an earlier version, the end of a fence looked up the name on the event loop, so the whole node waited."""
    with asyncio.Runner(loop_factory=loop) as runner:  # type: ignore[arg-type]  # both make a loop; uvloop's has no stub
        runner.run(reopen_while_the_name_hangs(monkeypatch))

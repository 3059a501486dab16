"""Peers that are configured by host name: what a resolver that hangs or fails can delay. Only the resolver is replaced."""

import asyncio
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from replicated_namesrv.raft import transport
from replicated_namesrv.raft.transport import TransportSettings
from tests.raft.test_service import running
from tests.raft.test_transport import SECRET, Peer, pair_of_settings, started
from tests.support.ports import free_ports
from tests.support.waiting import until


class Names:
    """The resolver of names that end with ``.test``: 127.0.0.1, a failure, or no answer until ``answer``."""

    def __init__(self) -> None:
        self.hanging: set[str] = set()
        self.unknown: set[str] = set()
        self.asked: Counter[str] = Counter()
        self.waiting: Counter[str] = Counter()
        """The look-ups in progress."""
        self._answers = threading.Event()
        self._real = socket.getaddrinfo

    def look_up(self, host: str, *more: object, **options: object) -> object:
        if not host.endswith(".test"):
            return self._real(host, *more, **options)  # type: ignore[arg-type]  # as the caller gives them
        self.asked[host] += 1
        if host in self.hanging:
            self.waiting[host] += 1
            self._answers.wait(60)
            self.waiting[host] -= 1
        if host in self.unknown:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return self._real("127.0.0.1", *more, **options)  # type: ignore[arg-type]  # as above

    def answer(self) -> None:
        """End all look-ups in progress; from now on none hangs."""
        self.hanging.clear()
        self._answers.set()


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[Names]:
    names = Names()
    monkeypatch.setattr(socket, "getaddrinfo", names.look_up)
    yield names
    names.answer()


def by_name(settings: TransportSettings) -> TransportSettings:
    """The same peers at ``a.test`` and so on; listening at an IP address."""
    return replace(settings, addresses={name: (f"{name}.test", port) for name, (_, port) in settings.addresses.items()})


async def test_a_majority_elects_although_the_name_of_the_third_node_hangs(tmp_path: Path, names: Names) -> None:
    """uvloop looks up names in two threads, and the loop of this test gets as many. In an earlier version, the third name
    occupied both, and there was no leader until the resolver gave up, 95 s later."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
    async with running(tmp_path) as group:
        group.addresses = {name: (f"{name}.test", port) for name, (_, port) in group.addresses.items()}
        await group.leader()
        for name in group.names:
            await group.stop(name)
        names.hanging |= {"n3.test"}
        for name in ("n1", "n2"):
            await group.start(name)
        try:
            await group.leader()
            assert names.waiting["n3.test"] == 2, "each of the two nodes looks up the third one's name once"
        finally:
            names.answer()


async def test_one_look_up_of_a_name_is_in_progress(names: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often the peer is dialled, and although its address changes."""
    monkeypatch.setattr(transport, "DIAL_SECONDS", 0.02)
    settings, _ = pair_of_settings()
    names.hanging |= {"b.test", "elsewhere.test"}
    async with started(by_name(settings)) as (a,):
        state = a.transport.peers["b"]
        await until(lambda: "look-up of b.test has not ended" in state.error, "the reason")
        port = settings.addresses["b"][1]
        for host in ("elsewhere.test", "b.test", "elsewhere.test"):
            a.transport.set_peers({"b": (host, port)})
            state.error = ""
            await until(lambda: "look-up of b.test has not ended" in state.error, "another attempt")
        a.transport.set_peers({})
        a.transport.set_peers({"b": ("elsewhere.test", port)})
        await until(lambda: "look-up of b.test has not ended" in a.transport.peers["b"].error, "an attempt after the removal")
        assert sum(names.asked.values()) == 1
        names.answer()
        await until(lambda: names.asked["elsewhere.test"], "the look-up of the present name")


@pytest.mark.parametrize("fault", ["hangs", "fails"])
async def test_the_last_known_address_is_dialled(names: Names, fault: str) -> None:
    first, second = pair_of_settings()
    async with started(by_name(first)) as (a,):
        async with started(second):
            await until(lambda: a.connected("b"), "a connection")
        (names.hanging if fault == "hangs" else names.unknown).add("b.test")
        await until(lambda: "(at its last known address: " in a.transport.peers["b"].error, "the reason")
        reason = "the look-up of b.test has not ended" if fault == "hangs" else "Name or service not known"
        assert reason in a.transport.peers["b"].error
        async with started(second):
            await until(lambda: a.connected("b"), "a connection at the last known address")
            assert not a.transport.peers["b"].error


async def test_addresses_are_not_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up: list[str] = []
    monkeypatch.setattr("replicated_namesrv.host_look_up.resolved", looked_up.append)
    async with started(*pair_of_settings()) as (a, b):
        await until(lambda: a.connected("b") and b.connected("a"), "both connections")
    assert not looked_up


async def test_every_address_of_a_name_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The peer listens at the second one only."""
    monkeypatch.setattr("replicated_namesrv.host_look_up.resolved", lambda host: ["127.0.0.2", "127.0.0.1"])
    first, second = pair_of_settings()
    async with started(by_name(first), second) as (a, _):
        await until(lambda: a.connected("b"), "a connection")


async def test_a_listening_address_can_be_a_name(names: Names) -> None:
    """Its look-up may take as long as it needs, because nothing works without it."""
    (port,) = free_ports(1)
    addresses = {"a": ("a.test", port)}
    names.hanging.add("a.test")
    peer = Peer(TransportSettings("a", "c", addresses, ("a.test", port), SECRET))
    start = asyncio.ensure_future(peer.transport.start())
    await until(lambda: names.waiting["a.test"], "the look-up")
    names.answer()
    await start
    assert peer.transport.port == port
    await peer.transport.stop()

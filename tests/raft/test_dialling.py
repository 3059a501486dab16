"""When a node dials its peers, and what it says if none answers."""

import asyncio
import socket
from dataclasses import replace

import pytest

from replicated_namesrv.raft.membership import CONTACT_SECONDS
from replicated_namesrv.raft.transport import DIAL_PAUSE_MIN_SECONDS, LIVE_SECONDS, PeerState
from tests.raft.test_transport import MESSAGE, Peer, both_connected, pair_of_settings, started
from tests.support.ports import free_ports
from tests.support.waiting import until


def test_a_peer_that_connects_is_dialled_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pause before the next attempt would be longer than the test."""

    async def scenario() -> None:
        first, second = pair_of_settings()
        async with started(first) as (a,):
            monkeypatch.setattr(a.transport._random, "random", lambda: 1e6)
            await until(lambda: bool(a.transport.peers["b"].error), "the first attempt has failed")
            async with started(second) as (b,):
                await both_connected(a, b)

    asyncio.run(scenario())


async def test_a_new_process_is_accepted_before_it_stops_waiting_for_introductions() -> None:
    """The machine of ``a`` lost its power, and its connection is still open at ``b``. While ``b`` considers this connection
    alive, ``b`` refuses the new process. In an earlier version the pauses between two attempts grew to 1.5 s, so the silence
    after the start ended before ``b`` could report what ``b`` remembers."""
    first, second = pair_of_settings()
    async with started(first, second) as (former, b):
        await both_connected(former, b)
        former.send("b")
        await until(lambda: b.received == [("a", MESSAGE)], "the last message")
        again = Peer(replace(first, listen=("127.0.0.1", free_ports(1)[0])))
        pauses: list[float] = []
        pause = again.transport._pause

        async def recorded(state: PeerState, seconds: float) -> None:
            pauses.append(seconds)
            await pause(state, seconds)

        again.transport._pause = recorded  # type: ignore[method-assign]  # the pauses are recorded
        began = asyncio.get_running_loop().time()
        await again.transport.start()
        try:
            await until(lambda: again.connected("b"), "the new process")
        finally:
            await again.transport.stop()
        assert asyncio.get_running_loop().time() - began > LIVE_SECONDS / 2, "it was refused at first"
        assert max(pauses) <= 1.5 * DIAL_PAUSE_MIN_SECONDS
        assert LIVE_SECONDS + max(pauses) < CONTACT_SECONDS


def test_a_peer_with_an_impossible_host_is_dialled_again_at_its_next_address() -> None:
    """The log of an older version can contain such a host. ``idna`` raises UnicodeError for it, not OSError."""

    async def scenario() -> None:
        settings_a, settings_b = pair_of_settings()
        wrong = replace(settings_a, addresses={**settings_a.addresses, "b": ("x" * 64, 1)})
        async with started(wrong, settings_b) as (a, _):
            await until(lambda: "UnicodeError" in a.transport.peers["b"].error, "the reason is known")
            a.transport.addresses["b"] = settings_b.listen  # not through set_peers, which would start a new task
            await until(lambda: a.connected("b"), "the next address is dialled")

    asyncio.run(scenario())


def test_a_port_that_is_no_peer_is_named_as_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replicated_namesrv.raft.transport.DIAL_SECONDS", 0.1)

    async def scenario() -> None:
        settings_a, _ = pair_of_settings()
        with socket.create_server(("127.0.0.1", 0)) as silent:
            wrong = replace(settings_a, addresses={**settings_a.addresses, "b": silent.getsockname()})
            async with started(wrong) as (a,):
                await until(lambda: "no peer answered" in a.transport.peers["b"].error, "the reason is known")

    asyncio.run(scenario())

"""The status of the transport says for how long nothing has arrived from a peer."""

import asyncio
from dataclasses import replace

from tests.raft.test_transport import Peer, both_connected, pair_of_settings, started
from tests.support.relay import Relay
from tests.support.waiting import until

SILENT_S = 0.3


def silent_s(peer: Peer, other: str) -> float | None:
    peers = peer.transport.status()["peers"]
    assert isinstance(peers, dict)
    found: float | None = peers[other]["silent_s"]
    return found


def test_a_cut_link_shows_as_silence_over_an_open_connection() -> None:
    async def scenario() -> None:
        ours, theirs = pair_of_settings()
        relay = await Relay(ours.listen).start()
        dialled = {**theirs.addresses, "a": ("127.0.0.1", relay.port)}
        async with started(ours, replace(theirs, addresses=dialled)) as (a, b):
            assert silent_s(a, "b") is None
            await both_connected(a, b)
            await until(lambda: silent_s(a, "b") is not None, "the peer's connection")
            relay.hold()
            b.send("a")
            await until(lambda: (silent_s(a, "b") or 0.0) > SILENT_S, "silence")
            assert b.connected("a")
            assert "b" in a.transport.accepted
            assert not a.received
            relay.release()
            await until(lambda: a.received, "the message")
            await until(lambda: (silent_s(a, "b") or 0.0) < SILENT_S, "the end of the silence")
            await relay.close()
            await until(lambda: silent_s(a, "b") is None, "the end of the connection")

    asyncio.run(scenario())

"""When a node dials its peers."""

import asyncio

import pytest

from tests.raft.test_transport import both_connected, pair_of_settings, started
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

"""The share of one address in a turn of the event loop."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from replicated_namesrv.server import route_answers, turn_shares
from replicated_namesrv.server.connection import RemotingConnection
from replicated_namesrv.server.turn_shares import SHARE_NS, TurnShares
from tests.support.remoting_server import Peer, live_server, request


async def next_turn() -> None:
    await asyncio.sleep(0)


async def until(condition: Callable[[], bool]) -> None:
    """Turns of the loop, until this is so."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.001)


async def test_work_runs_at_once_until_the_share_is_used_up() -> None:
    shares, done = TurnShares(), list[str]()
    hostile, other = shares.enter("h"), shares.enter("o")
    shares.run(hostile, lambda: done.append("first"))
    shares.spend(hostile, SHARE_NS)
    shares.run(hostile, lambda: done.append("later"))
    shares.run(other, lambda: done.append("other"))
    assert done == ["first", "other"]
    for _ in range(3):
        await next_turn()
    assert done == ["first", "other"], "it pauses for the other"
    await until(lambda: done == ["first", "other", "later"])


async def test_an_address_that_is_alone_does_not_pause() -> None:
    shares, done = TurnShares(), list[str]()
    share = shares.enter("h")
    shares.spend(share, SHARE_NS)
    shares.run(share, lambda: done.append("later"))
    await next_turn()
    assert done == ["later"]


async def test_an_address_that_uses_little_of_the_processor_never_waits() -> None:
    now_ns, waits = 0, 0
    shares = TurnShares(lambda: now_ns)
    light, heavy = shares.enter("light"), shares.enter("heavy")
    for _ in range(1_000):  # the first spends a fifth of the time, the second a half
        now_ns += SHARE_NS // 2
        shares.spend(light, SHARE_NS // 10)
        shares.spend(heavy, SHARE_NS // 4)
        assert not light.is_used_up
        if heavy.is_used_up:
            waits += 1
            shares._turn()
    assert waits > 100


async def test_one_long_request_uses_the_share_up() -> None:
    now_ns = 0
    shares = TurnShares(lambda: now_ns)
    share = shares.enter("h")
    now_ns += 500 * SHARE_NS
    shares.spend(share, 500 * SHARE_NS)
    assert share.is_used_up


async def test_a_turn_does_what_the_share_permits_in_order() -> None:
    shares, done = TurnShares(), list[int]()
    share = shares.enter("h")

    def work(number: int) -> Callable[[], None]:
        def run() -> None:
            done.append(number)
            shares.spend(share, SHARE_NS // 2)

        return run

    for number in range(5):
        shares.wait(share, work(number))
    for expected in ([0, 1], [0, 1, 2, 3], [0, 1, 2, 3, 4]):
        await next_turn()
        assert done == expected


async def test_an_error_of_one_item_does_not_stop_the_others() -> None:
    shares, done, errors = TurnShares(), list[str](), list[dict[str, Any]]()
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context))
    for address in "ab":
        share = shares.enter(address)
        shares.wait(share, lambda: done.remove("missing"))
        shares.wait(share, lambda address=address: done.append(address))  # type: ignore[misc]  # mypy infers no type for a default of a lambda
    await until(lambda: len(done) == 2)
    assert sorted(done) == ["a", "b"]
    assert len(errors) == 2


async def test_a_share_ends_with_the_last_connection_of_its_address() -> None:
    shares = TurnShares()
    first = shares.enter("h")
    assert shares.enter("h") is first
    shares.leave(first)
    assert shares.enter("h") is first
    shares.leave(first)
    shares.leave(first)
    assert shares.enter("h") is not first


def test_many_connections_of_one_address_share_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of 20 hostile connections once had 10 ms of each turn."""
    with live_server(tmp_path) as server:
        hostile = [Peer(server.port, source="127.0.0.2") for _ in range(20)]
        with Peer(server.port) as other:
            for peer in (*hostile, other):
                peer.call(206)
            monkeypatch.setattr(turn_shares, "SHARE_NS", 0)
            answer_request, asked = server.server.dispatcher.request, []

            def recorded(by: RemotingConnection, *frame: Any) -> bytes | None:
                asked.append(by.address)
                return answer_request(by, *frame)

            monkeypatch.setattr(server.server.dispatcher, "request", recorded)

            def send_all() -> None:
                for peer in hostile:
                    peer.send(b"".join(request(206, opaque=number) for number in range(20)))
                other.send(request(206))

            server.do(send_all)
            assert other.answers(1)
            for peer in hostile:
                assert len(peer.answers(20)) == 20
                peer.close()
            # one request of the hostile host for each turn; reading all sockets takes one or two
            assert asked.index("127.0.0.1") <= 3


def test_one_large_prepared_answer_is_written_before_the_next_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipeline of queries for a large route once made all its answers at once: 64 of them, or as many as one read has."""
    with live_server(tmp_path) as server, Peer(server.port) as peer:
        query = request(105, {"topic": "none"}, opaque=77)
        for _ in range(2):
            peer.send(query)
            peer.answers(1)

        def prepared() -> int:
            pieces: list[bytes] = []
            server.server.dispatcher.answers.answer(None, query * 50, 0, pieces)
            return len(pieces)

        assert server.do(prepared) == 3 * 50
        monkeypatch.setattr(route_answers, "LARGE_ANSWER_BYTES", 10)
        assert server.do(prepared) == 3

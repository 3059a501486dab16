"""The share of one address in a turn of the event loop."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import pytest

from benchmarks.hostile_host import registration
from replicated_namesrv.client.remoting import encode_command
from replicated_namesrv.server import registrations, route_answers, turn_shares
from replicated_namesrv.server.connection import RemotingConnection
from replicated_namesrv.server.registrations import Evaluation
from replicated_namesrv.server.request import Outcome, Request
from replicated_namesrv.server.turn_shares import ALONE_AFTER_NS, ALONE_NS, DEBT_MAX_NS, LIGHT_PART, SHARE_NS, Share, TurnShares
from tests.support.remoting_server import Peer, ServerThread, live_server, request
from tests.support.waiting import wait_until


async def next_turn() -> None:
    await asyncio.sleep(0)


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop run until the condition is true."""
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


async def test_an_address_that_is_alone_waits_for_the_next_turn_only() -> None:
    shares, done = TurnShares(), list[str]()
    share = shares.enter("h")
    shares.spend(share, ALONE_NS)
    shares.run(share, lambda: done.append("later"))
    assert not done
    await next_turn()
    assert done == ["later"]


async def test_an_address_that_is_alone_does_not_wait_in_each_turn() -> None:
    """If the address waited after each millisecond, a route query over 128 connections would cost four times as much."""
    shares = TurnShares()
    share = shares.enter("h")
    for _ in range(3):
        for _ in range(ALONE_NS // SHARE_NS - 1):
            shares.spend(share, SHARE_NS)
            assert not share.is_used_up
        await next_turn()


async def test_an_address_is_alone_while_the_others_have_nothing_to_do() -> None:
    now_ns = 0
    shares = TurnShares(lambda: now_ns)
    share, other = shares.enter("h"), shares.enter("o")

    def is_stopped() -> bool:
        shares.spend(share, SHARE_NS)
        return share.is_used_up

    assert is_stopped(), "the other one has just connected"
    now_ns = ALONE_AFTER_NS
    shares._due(share)
    assert not is_stopped()
    shares.spend(other, 1)
    assert is_stopped()
    shares._due(share)
    assert share.is_used_up
    now_ns += ALONE_AFTER_NS
    shares._due(share)
    assert not share.is_used_up, "its debt is forgotten"


async def test_an_address_is_not_alone_while_another_one_waits() -> None:
    """Of two addresses that wait for more than ``ALONE_AFTER_NS``, the first keeps its debt until it is paid."""
    now_ns = 0
    shares = TurnShares(lambda: now_ns)
    first, second = shares.enter("a"), shares.enter("b")
    for share in (first, second):
        shares.spend(share, DEBT_MAX_NS)
        assert share.is_used_up
    now_ns = DEBT_MAX_NS * (LIGHT_PART - 1)
    assert now_ns > ALONE_AFTER_NS
    shares._due(first)
    assert first.is_used_up, "three quarters of its debt are paid"
    now_ns = DEBT_MAX_NS * LIGHT_PART
    for share in (first, second):
        shares._due(share)
        assert not share.is_used_up


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
            now_ns += 4 * heavy.debt_ns
            shares._due(heavy)
            assert not heavy.is_used_up
    assert waits > 100


async def test_an_address_waits_for_three_to_four_times_as_long_as_its_work_took() -> None:
    now_ns = 0
    shares = TurnShares(lambda: now_ns)
    share = shares.enter("h")
    shares.enter("o")
    for work in (1, 100):
        now_ns += work * SHARE_NS
        shares.spend(share, work * SHARE_NS)
        waited = 0
        while share.is_used_up:
            now_ns += SHARE_NS // 10
            waited += SHARE_NS // 10
            shares._due(share)
        assert 3 * work * SHARE_NS <= waited + SHARE_NS
        assert waited <= 4 * work * SHARE_NS + SHARE_NS


async def test_work_while_an_address_waits_prolongs_the_wait_up_to_a_limit() -> None:
    now_ns = 0
    shares = TurnShares(lambda: now_ns)
    share, other = shares.enter("h"), shares.enter("o")
    shares.spend(share, SHARE_NS)
    shares.spend(share, 10 * DEBT_MAX_NS)
    now_ns = LIGHT_PART * DEBT_MAX_NS - LIGHT_PART * SHARE_NS
    shares.spend(other, 1)
    shares._due(share)
    assert share.is_used_up
    now_ns += 2 * LIGHT_PART * SHARE_NS
    shares._due(share)
    assert not share.is_used_up


async def test_a_debt_outlives_the_connections_of_its_address() -> None:
    shares, done = TurnShares(), list[str]()
    share = shares.enter("h")
    shares.enter("o")
    shares.spend(share, 20 * SHARE_NS)
    shares.wait(share, lambda: done.append("of a closed connection"))
    shares.leave(share)
    assert shares.enter("h") is share
    assert share.is_used_up
    shares.leave(share)
    await until(lambda: not share.is_used_up)
    assert done == ["of a closed connection"]
    assert shares.enter("h") is not share, "it is forgotten when it is paid"


async def test_a_small_debt_outlives_them_too() -> None:
    """Without this rule, an address that opens a new connection for each request would never wait."""
    shares = TurnShares()
    share = shares.enter("h")
    shares.enter("o")
    shares.spend(share, SHARE_NS // 2)
    shares.leave(share)
    assert shares.enter("h") is share


async def test_a_turn_does_what_the_share_permits_in_order() -> None:
    shares, done = TurnShares(lambda: 0), list[int]()
    share = shares.enter("h")
    part_ns = ALONE_NS // 2

    def work(number: int) -> Callable[[], None]:
        def run() -> None:
            done.append(number)
            shares.spend(share, part_ns)

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


async def test_an_item_that_admits_other_work_keeps_its_turn() -> None:
    """Otherwise later requests could use up the share before the admitted work begins."""
    shares, done = TurnShares(), list[str]()
    share, _ = shares.enter("h"), shares.enter("o")
    shares.spend(share, SHARE_NS)

    def admit() -> bool:
        done.append("admitted")
        asyncio.get_running_loop().call_soon(lambda: done.append("next turn" if share.is_used_up else "share is free"))
        return True

    shares.wait(share, admit)
    shares.wait(share, lambda: done.append("later"))
    await until(lambda: "later" in done)
    assert done == ["admitted", "next turn", "later"]


async def test_work_that_never_waits_delays_the_others_only_up_to_a_limit() -> None:
    now_ns, done = 0, list[str]()
    shares = TurnShares(lambda: now_ns)
    share, other = shares.enter("h"), shares.enter("o")
    shares.spend(share, SHARE_NS)
    for name in ("first", "second"):
        shares.wait(share, lambda name=name: done.append(name))  # type: ignore[misc]  # a default in a lambda
    for _ in range(19):
        shares.spend(share, DEBT_MAX_NS)
        shares.spend(other, 1)
        now_ns += LIGHT_PART * DEBT_MAX_NS // 10
        shares._due(share)
    assert done == ["first"], "after 3.8 s: one item in 2 s"


async def test_late_work_of_a_forgotten_share_leaves_the_next_one_alone() -> None:
    shares = TurnShares()
    former, _ = shares.enter("h"), shares.enter("o")
    shares.leave(former)
    share = shares.enter("h")
    assert share is not former
    shares.spend(former, SHARE_NS)
    await until(lambda: not former.is_used_up)
    assert shares.enter("h") is share
    shares.leave(share)
    shares.leave(share)


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
    """In an earlier version, each of 20 hostile connections had 10 ms of each turn."""
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
    """In an earlier version, all answers to a pipeline of queries for a large route were made at once: 64 answers, or one for
    each query in one read of the socket."""
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


def test_the_evaluation_of_a_registration_counts_for_its_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Earlier versions evaluated registrations for 4 ms of every turn, however many one host sent. Compressed, 20,000 topics are
    50 KB."""
    with live_server(tmp_path) as server, Peer(server.port), Peer(server.port, source="127.0.0.2") as hostile:
        queue, shares = server.server.dispatcher.registrations.queue, server.server.shares
        evaluate, spend, taken_ns, spent_ns = queue._advance, shares.spend, list[int](), list[int]()

        def evaluated(*arguments: Any) -> Any:
            started_ns = perf_counter_ns()
            try:
                return evaluate(*arguments)
            finally:
                taken_ns.append(perf_counter_ns() - started_ns)

        def spent(share: Share, work_ns: int) -> None:
            if share.name == "127.0.0.2":
                spent_ns.append(work_ns)
            spend(share, work_ns)

        monkeypatch.setattr(queue, "_advance", evaluated)
        monkeypatch.setattr(shares, "spend", spent)
        hostile.send(large_registration("hostile"))
        assert hostile.answers(1)[0].code == 0
        assert sum(spent_ns) >= sum(taken_ns) > SHARE_NS


def test_a_registration_does_not_begin_while_its_address_has_debts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with live_server(tmp_path) as server, Peer(server.port) as other, Peer(server.port, source="127.0.0.2") as hostile:
        shares, queue = server.server.shares, server.server.dispatcher.registrations.queue
        evaluate, due, in_debt = queue.evaluate, shares._due, list[Share]()

        def evaluated(by: Request, evaluation: Evaluation) -> Outcome:
            outcome = evaluate(by, evaluation)
            if by.connection.address == "127.0.0.2":
                shares.spend(by.connection.share, DEBT_MAX_NS)
                in_debt.append(by.connection.share)
            return outcome

        def paid(share: Share) -> None:
            if share not in in_debt:
                due(share)

        monkeypatch.setattr(registrations, "SMALL_BYTES", 0)  # none begins at once
        monkeypatch.setattr(queue, "evaluate", evaluated)
        monkeypatch.setattr(shares, "_due", paid)
        hostile.send(large_registration("hostile"))
        wait_until(lambda: in_debt and in_debt[0].waiting, "the registration to wait")
        other.send(large_registration("real"))
        wait_until(lambda: names(server) == {"real"}, "the other one not to wait")

        def pay() -> None:
            share = in_debt.pop()
            share.debt_ns = 0
            due(share)

        server.do(pay)
        assert other.answers(1)[0].code == hostile.answers(1)[0].code == 0
        assert names(server) == {"real", "hostile"}


def large_registration(name: str) -> bytes:
    """A registration of 20,000 topics."""
    return encode_command(registration(name, f"{name}:10911", 20_000, 1))


def names(server: ServerThread) -> set[str]:
    """Names of the registered brokers."""
    return {each.broker_name for each in server.service.state.registrations()}

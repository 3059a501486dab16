"""How an address list is used: a client keeps a server while it answers, and leaves it when it refuses, hangs or closes. A write
is never sent twice."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from replicated_namesrv.client.nameservers import ADDRESSES_MAX, NameServers, parse_addresses
from replicated_namesrv.client.remoting import RemotingClient, RemotingCommand
from replicated_namesrv.errors import OutcomeUnknownError, SettingError, UnavailableError
from replicated_namesrv.wire.codes import RequestCode, ResponseCode
from tests.support.client_peers import Behaviour, ScriptedServer, answer_to, scripted_server
from tests.support.waiting import until

ASK = RemotingCommand(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
SHORT_MS = 150
REFUSE = None


@asynccontextmanager
async def servers_that(
    *behaviours: Behaviour | None, attempts: int | None = None, timeout_ms: int = 5_000
) -> AsyncIterator[tuple[NameServers, list[ScriptedServer]]]:
    """Servers with these behaviours (None refuses) and a list that tries them in this order."""
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(scripted_server(behaviour or Behaviour.ANSWER)) for behaviour in behaviours]
        for server, behaviour in zip(servers, behaviours, strict=True):
            if behaviour is REFUSE:
                await server.refuse()
        client = RemotingClient()
        addresses = [server.address for server in servers]
        yield NameServers(addresses, client, rng=InOrder(), timeout_ms=timeout_ms, attempts=attempts), servers
        await client.close()


class InOrder(random.Random):
    """Does not shuffle lists, and chooses the first element."""

    def shuffle(self, x: object) -> None:
        pass

    def randrange(self, *_: object) -> int:
        return 0


def asked(servers: Sequence[ScriptedServer]) -> list[int]:
    return [len(server.requests) for server in servers]


def test_the_chosen_server_is_kept_while_its_connection_is_up() -> None:
    async def scenario() -> None:
        async with servers_that(*[Behaviour.ANSWER] * 3) as (names, servers):
            for _ in range(10):
                assert (await names.query(ASK)).address == servers[0].address
            assert asked(servers) == [10, 0, 0]
            assert names.chosen == servers[0].address

    asyncio.run(scenario())


@pytest.mark.parametrize("code", [1, 2, 17, 1500])
def test_an_error_code_is_an_answer_and_moves_nobody(code: int) -> None:
    """Measured with real clients of RocketMQ 4.9 and 5.x: after 8 of 8 such answers they stayed with the server."""

    async def scenario() -> None:
        async with servers_that(*[Behaviour.ANSWER] * 2) as (names, servers):
            servers[0].answer = lambda request: answer_to(request, code)
            for _ in range(8):
                address, response = await names.query(ASK)
                assert (address, response.code) == (servers[0].address, code)
            assert asked(servers) == [8, 0]

    asyncio.run(scenario())


BAD = [REFUSE, Behaviour.CLOSE_AT_ONCE, Behaviour.CLOSE_AFTER_REQUEST, Behaviour.GARBAGE, Behaviour.HANG]


@pytest.mark.parametrize("bad", BAD)
def test_one_call_passes_bad_servers_and_stays_with_the_good_one(bad: Behaviour | None) -> None:
    async def scenario() -> None:
        async with servers_that(bad, bad, Behaviour.ANSWER, timeout_ms=SHORT_MS if bad is Behaviour.HANG else 5_000) as (
            names,
            servers,
        ):
            for _ in range(3):
                assert (await names.query(ASK)).address == servers[2].address
            assert len(servers[2].requests) == 3
            assert all(server.accepted <= 1 for server in servers[:2]), "bad servers are not tried again by later calls"

    asyncio.run(scenario())


@pytest.mark.parametrize("bad", BAD)
def test_one_attempt_a_call_as_5x_clients_do(bad: Behaviour | None) -> None:
    async def scenario() -> None:
        timeout_ms = SHORT_MS if bad is Behaviour.HANG else 5_000
        async with servers_that(bad, Behaviour.ANSWER, attempts=1, timeout_ms=timeout_ms) as (names, servers):
            with pytest.raises((UnavailableError, OutcomeUnknownError)):
                await names.query(ASK)
            assert (await names.query(ASK)).address == servers[1].address
            assert (await names.query(ASK)).address == servers[1].address

    asyncio.run(scenario())


def test_a_lost_connection_moves_the_next_call_on_without_an_error() -> None:
    """So a fenced server causes no errors: it stops listening and closes idle connections."""

    async def scenario() -> None:
        async with servers_that(*[Behaviour.ANSWER] * 2) as (names, servers):
            await names.query(ASK)
            await servers[0].refuse()
            await until(lambda: not names.client.is_connected(servers[0].address), "the loss to be noticed")
            assert (await names.query(ASK)).address == servers[1].address
            await servers[0].listen()
            assert (await names.query(ASK)).address == servers[1].address, "it stays where it was answered"

    asyncio.run(scenario())


def test_nobody_answers() -> None:
    async def scenario() -> None:
        async with servers_that(REFUSE, REFUSE, REFUSE) as (names, servers):
            with pytest.raises(UnavailableError) as caught:
                await names.query(ASK)
            assert all(server.address in str(caught.value) for server in servers)
            assert caught.value.definite
        async with servers_that(REFUSE, Behaviour.CLOSE_AFTER_REQUEST) as (names, _):
            with pytest.raises(OutcomeUnknownError):
                await names.query(ASK)

    asyncio.run(scenario())


@pytest.mark.parametrize("bad", [Behaviour.CLOSE_AFTER_REQUEST, Behaviour.GARBAGE, Behaviour.HANG])
def test_a_write_that_may_have_been_applied_is_not_repeated(bad: Behaviour) -> None:
    async def scenario() -> None:
        timeout_ms = SHORT_MS if bad is Behaviour.HANG else 5_000
        async with servers_that(bad, Behaviour.ANSWER, timeout_ms=timeout_ms) as (names, servers):
            with pytest.raises(OutcomeUnknownError):
                await names.submit(ASK)
            assert asked(servers) == [1, 0]
            assert (await names.submit(ASK)).address == servers[1].address, "the next one goes elsewhere"

    asyncio.run(scenario())


def test_a_write_that_surely_did_not_arrive_goes_to_the_next() -> None:
    async def scenario() -> None:
        async with servers_that(REFUSE, Behaviour.ANSWER) as (names, servers):
            assert (await names.submit(ASK)).address == servers[1].address

    asyncio.run(scenario())


def test_all_are_asked_and_each_has_its_own_outcome() -> None:
    async def scenario() -> None:
        async with servers_that(Behaviour.ANSWER, REFUSE, Behaviour.CLOSE_AFTER_REQUEST) as (names, servers):
            servers[0].answer = lambda request: answer_to(request, ResponseCode.SYSTEM_ERROR.value, remark="disable")
            for outcomes in (await names.ask_all(ASK), await names.send_to_all(ASK)):
                by_address = {outcome.address: outcome for outcome in outcomes}
                assert [outcome.address for outcome in outcomes] == sorted(server.address for server in servers)
                assert by_address[servers[0].address].answer().remark == "disable"
                with pytest.raises(UnavailableError):
                    by_address[servers[1].address].answer()
                with pytest.raises(OutcomeUnknownError):
                    by_address[servers[2].address].answer()
            (only,) = await names.ask_all(ASK, [servers[0].address])
            assert only.address == servers[0].address

    asyncio.run(scenario())


def test_a_new_list_keeps_the_choice_only_if_it_is_in_it() -> None:
    async def scenario() -> None:
        async with servers_that(*[Behaviour.ANSWER] * 3) as (names, servers):
            first, second, third = (server.address for server in servers)
            await names.query(ASK)
            names.update_addresses([third, second, first])
            assert names.chosen == first, "the same members are no new list"
            names.update_addresses([second, first])
            assert (await names.query(ASK)).address == first
            names.update_addresses([second, third])
            assert names.chosen is None
            assert not names.client.is_connected(first)
            assert (await names.query(ASK)).address in (second, third)
            with pytest.raises(SettingError, match="empty"):
                names.update_addresses([])

    asyncio.run(scenario())


def test_a_server_that_leaves_the_list_while_it_answers_is_not_chosen() -> None:
    async def scenario() -> None:
        async with servers_that(*[Behaviour.ANSWER] * 3) as (names, servers):
            first, second, third = (server.address for server in servers)

            def answer(request: RemotingCommand) -> RemotingCommand:
                names.update_addresses([second, third])
                return answer_to(request)

            servers[0].answer = answer
            assert (await names.query(ASK)).address == first
            assert names.chosen is None
            assert (await names.query(ASK)).address in (second, third)

    asyncio.run(scenario())


def test_clients_spread_over_the_list(rng: random.Random) -> None:
    """Each server gets a third of 300 clients, within five standard deviations (100 ± 41; one is 8.2)."""
    client = RemotingClient()
    addresses = ["10.0.0.1:9876", "10.0.0.2:9876", "10.0.0.3:9876"]
    first = [next(iter(NameServers(addresses, client, rng=rng)._candidates())) for _ in range(300)]
    assert all(59 <= first.count(address) <= 141 for address in addresses)


def test_lists_are_read_in_both_forms() -> None:
    assert parse_addresses("b:1;a:2") == ("b:1", "a:2")
    assert parse_addresses(" a:1 , b:2;;a:1;") == ("a:1", "b:2")
    for text in ("", " ; ", "host"):
        with pytest.raises(SettingError):
            parse_addresses(text)
    many = ";".join(f"h{index}:1" for index in range(ADDRESSES_MAX + 1))
    with pytest.raises(SettingError, match=str(ADDRESSES_MAX)):
        parse_addresses(many)

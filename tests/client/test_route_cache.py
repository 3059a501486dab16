"""A client's routes: kept through failures and "no route", renewed by polling, bounded."""

import asyncio
import random

import pytest

from replicated_namesrv.client import route_cache
from replicated_namesrv.client.nameservers import NameServers
from replicated_namesrv.client.remoting import RemotingClient, RemotingCommand
from replicated_namesrv.client.route_cache import RouteCache, RouteUpdate
from replicated_namesrv.errors import UnavailableError
from tests.support.client_peers import ScriptedServer, answer_to, not_found, scripted_server
from tests.support.waiting import until


def routed_to(addr: str) -> bytes:
    return (
        f'{{"brokerDatas":[{{"brokerAddrs":{{0:"{addr}"}},"brokerName":"b","cluster":"C"}}],"filterServerTable":{{}},'
        f'"queueDatas":[{{"brokerName":"b","perm":6,"readQueueNums":8,"topicSysFlag":0,"writeQueueNums":8}}]}}'
    ).encode()


def answering(addr: str) -> object:
    def answer(request: RemotingCommand) -> RemotingCommand:
        return answer_to(request, body=routed_to(addr))

    return answer


def names_of(server: ScriptedServer, client: RemotingClient) -> NameServers:
    return NameServers([server.address], client, rng=random.Random(1))


def test_a_known_route_outlives_failures_and_absence() -> None:
    async def scenario() -> None:
        async with scripted_server(answer=lambda request: answer_to(request, body=routed_to("a:1"))) as server:
            client = RemotingClient()
            cache = RouteCache(names_of(server, client))
            route = await cache.route("T")
            assert route is not None
            assert await cache.route("T") is route
            assert len(server.requests) == 1, "what is held is not asked for"
            server.answer = not_found
            update = await cache.refresh("T")
            assert (update.route, update.changed, update.error) == (None, False, None)
            assert cache.known("T") is route
            await server.refuse()
            await until(lambda: not client.is_connected(server.address), "the loss to be noticed")
            update = await cache.refresh("T")
            assert isinstance(update.error, UnavailableError)
            assert cache.known("T") is route
            assert await cache.route("T") is route
            await client.close()

    asyncio.run(scenario())


def test_what_is_not_known_is_asked_for_each_time() -> None:
    async def scenario() -> None:
        async with scripted_server(answer=not_found) as server:
            client = RemotingClient()
            cache = RouteCache(names_of(server, client))
            assert await cache.route("T") is None
            assert await cache.route("T") is None
            assert len(server.requests) == 2
            server.answer = lambda request: answer_to(request, 1, remark="disable")
            with pytest.raises(Exception, match="disable"):
                await cache.route("T")
            await client.close()

    asyncio.run(scenario())


def test_polling_brings_what_changed() -> None:
    async def scenario() -> None:
        updates: list[RouteUpdate] = []
        async with scripted_server(answer=lambda request: answer_to(request, body=routed_to("a:1"))) as server:
            client = RemotingClient()
            cache = RouteCache(names_of(server, client), poll_interval_ms=10, observe=updates.append)
            await cache.route("T")
            await cache.route("U")
            cache.start_polling()
            await until(lambda: len(updates) >= 6, "two polls of two topics")
            assert [update.changed for update in updates[:3]] == [True, True, False]
            server.answer = lambda request: answer_to(request, body=routed_to("b:2"))

            def master(topic: str) -> str | None:
                route = cache.known(topic)
                assert route is not None
                return route.broker_datas[0].master_addr

            await until(lambda: master("T") == master("U") == "b:2", "the new route of both topics")
            await cache.stop_polling()
            await client.close()

    asyncio.run(scenario())


def test_topics_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route_cache, "TOPICS_MAX", 2)

    async def scenario() -> None:
        async with scripted_server(answer=lambda request: answer_to(request, body=routed_to("a:1"))) as server:
            client = RemotingClient()
            cache = RouteCache(names_of(server, client))
            for topic in ("A", "B", "A", "C"):
                await cache.route(topic)
            assert [topic for topic in "ABC" if cache.known(topic)] == ["A", "C"], "B was used least recently"
            await client.close()

    asyncio.run(scenario())

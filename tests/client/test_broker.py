"""Broker agents: their requests and the times of these, their reactions, and their end. Servers are scripted or nodes, sockets
always real."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from replicated_namesrv.client.broker import BrokerAgent, BrokerEvent, BrokerOptions, EventKind, Heartbeat
from replicated_namesrv.client.broker_requests import BrokerIdentity, BrokerVersion, sync_topic
from replicated_namesrv.client.queries import cluster_info_request, read_cluster_info, read_route, route_request
from replicated_namesrv.client.remoting import RemotingClient, RemotingCommand
from replicated_namesrv.client.topics import BrokerTopics, TopicConfig, TopicTable, system_topics
from replicated_namesrv.model import DataVersion, TopicRouteData
from replicated_namesrv.wire.codes import ONEWAY_FLAG, RequestCode
from tests.support.client_peers import Behaviour, answer_to, scripted_server
from tests.support.nodes import running_node
from tests.support.ports import free_ports
from tests.support.waiting import until

LONG_MS = 3_600_000
"""A period that is longer than any test."""
BOTH = pytest.mark.parametrize("version", list(BrokerVersion))

REGISTER, UNREGISTER, QUERY = RequestCode.REGISTER_BROKER, RequestCode.UNREGISTER_BROKER, RequestCode.QUERY_DATA_VERSION


class Clock:
    """A wall clock that a test moves; every reading is a millisecond later than the one before."""

    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def __call__(self) -> int:
        self.ms += 1
        return self.ms


def agent(
    servers: Iterable[str],
    options: BrokerOptions,
    *,
    broker_id: int = 0,
    port: int = 10911,
    name: str = "broker-a",
    topics: Iterable[TopicConfig] = (TopicConfig("T"),),
    observe: Callable[[BrokerEvent], None] | None = None,
    brokers: dict[str, BrokerAgent] | None = None,
) -> BrokerAgent:
    system = TopicTable(system_topics("C", name, options.version))
    return BrokerAgent(
        BrokerIdentity("C", name, broker_id, f"127.0.0.1:{port}", f"127.0.0.1:{port + 1}"),
        BrokerTopics(system, TopicTable(topics)),
        list(servers),
        options=options,
        rng=random.Random(1),
        now_ms=Clock(),
        observe=observe,
        brokers=brokers,
    )


@asynccontextmanager
async def running(broker: BrokerAgent) -> AsyncIterator[BrokerAgent]:
    await broker.start()
    try:
        yield broker
    finally:
        if broker.running:
            await broker.kill()
        await broker.release()


def table(request: RemotingCommand) -> dict[str, dict[str, object]]:
    entries: dict[str, dict[str, object]] = json.loads(request.body)["topicConfigSerializeWrapper"]["topicConfigTable"]
    return entries


def counter(request: RemotingCommand) -> int:
    number: int = json.loads(request.body)["topicConfigSerializeWrapper"]["dataVersion"]["counter"]
    return number


async def route_at(server: str, topic: str) -> TopicRouteData | None:
    client = RemotingClient()
    try:
        return read_route(await client.request(server, route_request(topic)))
    finally:
        await client.close()


async def addresses_at(server: str) -> dict[str, dict[int, str]]:
    """Broker addresses by name and id."""
    client = RemotingClient()
    try:
        info = read_cluster_info(await client.request(server, cluster_info_request()))
        return {data.broker_name: dict(data.broker_addrs) for data in info.broker_addr_table}
    finally:
        await client.close()


# --- against scripted servers: the requests


@BOTH
def test_life_of_a_broker(version: BrokerVersion) -> None:
    """Registers everything with every server at start, again every period, and unregisters from each at the end."""

    async def scenario() -> None:
        async with scripted_server() as one, scripted_server() as two:
            options = BrokerOptions(version=version, register_period_ms=20)
            async with running(agent([one.address, two.address], options)) as broker:
                assert (one.codes()[0], two.codes()[0]) == (REGISTER, REGISTER)
                assert broker.registered == {one.address, two.address}
                await until(lambda: min(one.codes().count(REGISTER), two.codes().count(REGISTER)) >= 3, "three rounds")
                await broker.stop()
                assert not broker.running
                assert not broker.registered
            for server in (one, two):
                assert set(server.codes()) == {REGISTER, UNREGISTER}
                assert server.codes()[-1] == UNREGISTER
                assert server.codes().count(UNREGISTER) == 1
                assert len({request.body for request in server.requests if request.code == REGISTER}) == (
                    1 if version is BrokerVersion.V4_9 else server.codes().count(REGISTER)
                ), "5.3 stamps each registration, 4.9 repeats it"
                assert all(counter(request) == 0 for request in server.requests if request.code == REGISTER)
                assert server.accepted == 1
            assert broker.counts[REGISTER, EventKind.REFUSED] == 0

    asyncio.run(scenario())


@BOTH
def test_events_say_what_became_of_each_request(version: BrokerVersion) -> None:
    async def scenario() -> None:
        events: list[BrokerEvent] = []
        async with (
            scripted_server() as good,
            scripted_server(Behaviour.CLOSE_AFTER_REQUEST) as bad,
            scripted_server() as refusing,
        ):
            refusing.answer = lambda request: answer_to(request, 1, remark="crc32 not match")
            options = BrokerOptions(version=version, register_period_ms=LONG_MS)
            async with running(agent([good.address, bad.address, refusing.address], options, observe=events.append)):
                pass
            ended = {event.address: event for event in events if event.kind not in (EventKind.INVOKED, EventKind.DISCONNECTED)}
            assert {address: event.kind for address, event in ended.items()} == {
                good.address: EventKind.DONE,
                bad.address: EventKind.UNKNOWN,
                refusing.address: EventKind.REFUSED,
            }
            assert "crc32 not match" in ended[refusing.address].detail
            invoked = {event.sequence: event for event in events if event.kind is EventKind.INVOKED}
            for event in ended.values():
                assert invoked[event.sequence]._replace(kind=event.kind, detail=event.detail, answer=event.answer) == event
                assert events.index(invoked[event.sequence]) < events.index(event)

    asyncio.run(scenario())


def test_a_broker_without_forced_registration_asks_first() -> None:
    """The broker sends 322 to every server. It sends 103 to all of them only if one answers "changed", fails or has another
    version."""

    async def scenario(options: BrokerOptions) -> None:
        async with scripted_server() as one, scripted_server() as two:
            changed = {"two": "false"}

            def answers(request: RemotingCommand) -> RemotingCommand:
                return answer_to(request, ext_fields={"changed": changed["two"]} if request.code == QUERY else None)

            one.answer = lambda request: answer_to(request, ext_fields={"changed": "false"} if request.code == QUERY else None)
            two.answer = answers
            async with running(agent([one.address, two.address], options)) as broker:
                assert one.codes() == [REGISTER], "the registration at start is always forced"
                await broker.register_round()
                assert one.codes() == two.codes() == [REGISTER, QUERY]
                changed["two"] = "true"
                await broker.register_round()
                assert one.codes() == two.codes() == [REGISTER, QUERY, QUERY, REGISTER]
                changed["two"] = "false"
                two.behaviour = Behaviour.CLOSE_AFTER_REQUEST
                await broker.register_round()
                assert one.codes()[-2:] == [QUERY, REGISTER]
            asked = json.loads(one.requests[1].body)
            assert asked["counter"] == 0
            assert ("stateVersion" in asked) == (options.version is BrokerVersion.V5_3)

    for version in BrokerVersion:
        asyncio.run(scenario(BrokerOptions(version=version, register_period_ms=LONG_MS, force_register=False)))
    lazy = BrokerOptions(BrokerVersion.V4_9, Heartbeat.QUERY_DATA_VERSION, register_period_ms=LONG_MS)
    asyncio.run(scenario(lazy))


@pytest.mark.parametrize("stored", [b'{"counter":9,"stateVersion":0,"timestamp":1}', b"not JSON"])
def test_a_stored_version_that_differs_or_is_unreadable_means_changed(stored: bytes) -> None:
    async def scenario() -> None:
        async with scripted_server() as server:
            server.answer = lambda request: answer_to(
                request, ext_fields={"changed": "false"}, body=stored if request.code == QUERY else b""
            )
            options = BrokerOptions(register_period_ms=LONG_MS, force_register=False)
            async with running(agent([server.address], options)) as broker:
                await broker.register_round()
                assert server.codes() == [REGISTER, QUERY, REGISTER]

    asyncio.run(scenario())


@pytest.mark.parametrize("heartbeat", [Heartbeat.QUERY_DATA_VERSION, Heartbeat.BROKER_HEARTBEAT])
def test_acting_master_mode_sends_heartbeats_and_asks_for_its_group(heartbeat: Heartbeat) -> None:
    async def scenario() -> None:
        async with scripted_server() as server:
            options = BrokerOptions(heartbeat=heartbeat, register_period_ms=LONG_MS, heartbeat_interval_ms=10)
            async with running(agent([server.address], options)):
                await until(lambda: server.codes().count(int(heartbeat)) >= 3, "heartbeats")
                poll = RequestCode.GET_ROUTEINFO_BY_TOPIC if heartbeat == "322" else RequestCode.GET_BROKER_MEMBER_GROUP
                await until(lambda: server.codes().count(poll) >= 3, "questions for the group")
            first = server.requests[0].ext_fields
            assert first is not None
            assert (first["enableActingMaster"], first["heartbeatTimeoutMillis"]) == ("true", "10000")
            beats = [request for request in server.requests if request.code == int(heartbeat)]
            assert all(request.flag == ONEWAY_FLAG for request in beats)
            asked = next(request for request in server.requests if request.code == poll)
            expected = {"topic": sync_topic("broker-a")} if heartbeat == "322" else {"clusterName": "C", "brokerName": "broker-a"}
            assert asked.ext_fields == expected

    asyncio.run(scenario())


@BOTH
def test_a_new_topic_is_registered_at_once_and_alone(version: BrokerVersion) -> None:
    async def scenario() -> None:
        async with scripted_server() as server:
            async with running(agent([server.address], BrokerOptions(version=version, register_period_ms=LONG_MS))) as broker:
                await broker.add_topic(TopicConfig("New", 4, 4))
                await broker.add_topic(TopicConfig("Auto", 4, 4), auto_created=True)
                await until(lambda: len(server.requests) == 3, "a oneway registration to arrive")
                await broker.register_round()
            first, alone, automatic, round_ = server.requests
            assert list(table(alone)) == ["New"]
            assert alone.flag == 0
            if version is BrokerVersion.V4_9:
                assert automatic.flag == ONEWAY_FLAG
                assert set(table(automatic)) == {*table(first), "New", "Auto"}
            else:
                assert automatic.flag == 0
                assert list(table(automatic)) == ["Auto"]
            assert set(table(round_)) == {*table(first), "New", "Auto"}
            assert [counter(request) for request in server.requests] == [0, 1, 2, 2]

    asyncio.run(scenario())


def test_changed_topics_are_one_new_version() -> None:
    async def scenario() -> None:
        async with scripted_server() as server:
            options = BrokerOptions(register_period_ms=LONG_MS)
            async with running(agent([server.address], options, topics=map(TopicConfig, "ABC"))) as broker:
                await broker.change_topics(put=[TopicConfig("A", 1, 1), TopicConfig("D")], delete=["B", "unknown"])
                assert (counter(server.requests[-1]), len(server.requests)) == (1, 2)
                entries = table(server.requests[-1])
                assert set(entries) >= {"A", "C", "D"}
                assert "B" not in entries
                assert entries["A"]["readQueueNums"] == 1
                await broker.change_topics(delete=["C"])
                assert len(server.requests) == 2, "a deletion waits for the next round"
                assert broker.data_version.counter == 2

    asyncio.run(scenario())


def test_changed_topics_can_wait_for_the_next_round() -> None:
    async def scenario() -> None:
        async with scripted_server() as server:
            options = BrokerOptions(register_period_ms=LONG_MS)
            async with running(agent([server.address], options)) as broker:
                await broker.change_topics([TopicConfig("New", 4, 4)], at_once=False)
                assert len(server.requests) == 1, "only the registration at the start"
                await broker.register_round()
            assert "New" in table(server.requests[1])
            assert counter(server.requests[1]) == counter(server.requests[0]) + 1

    asyncio.run(scenario())


@BOTH
def test_order_configuration_orders_topics_under_a_new_version(version: BrokerVersion) -> None:
    """``updateOrderTopicConfig``: 4.9 also takes the flag from topics that are no longer listed; 5.3 leaves them."""

    async def scenario() -> None:
        async with scripted_server() as server:
            body = {"now": b'{"table":{"T":"broker-a:8","elsewhere":"x:1"}}'}
            server.answer = lambda request: answer_to(request, ext_fields={}, body=body["now"])
            async with running(agent([server.address], BrokerOptions(version=version, register_period_ms=LONG_MS))) as broker:
                await broker.register_round()
                await broker.register_round()
                assert [counter(request) for request in server.requests] == [0, 1, 1]
                assert [table(request)["T"]["order"] for request in server.requests] == [False, True, True]
                body["now"] = b'{"table":{}}'
                await broker.register_round()
                await broker.register_round()
                last = server.requests[-1]
                assert (counter(last), table(last)["T"]["order"]) == ((2, False) if version is BrokerVersion.V4_9 else (1, True))

    asyncio.run(scenario())


@BOTH
def test_role_switch(version: BrokerVersion) -> None:
    async def scenario() -> None:
        async with scripted_server() as server:
            options = BrokerOptions(version=version, register_period_ms=LONG_MS)
            async with running(agent([server.address], options, broker_id=1)) as broker:
                await broker.switch_role(0, state_version=7)
                await until(lambda: len(server.requests) == 2, "the registration in the new role")
                fields = server.requests[1].ext_fields
                assert fields is not None
                assert (fields["brokerId"], fields["brokerAddr"]) == ("0", "127.0.0.1:10911")
                assert server.requests[1].flag == (ONEWAY_FLAG if version is BrokerVersion.V4_9 else 0)
                assert broker.data_version.state_version == 7

    asyncio.run(scenario())


def test_a_slave_takes_topics_and_version_from_the_master_it_is_told() -> None:
    async def scenario() -> None:
        async with scripted_server() as server:
            server.answer = lambda request: answer_to(
                request,
                ext_fields={"masterAddr": "127.0.0.1:10911", "haServerAddr": "127.0.0.1:10912"}
                if request.ext_fields and request.ext_fields.get("brokerId") == "1"
                else {},
            )
            brokers: dict[str, BrokerAgent] = {}
            options = BrokerOptions(register_period_ms=LONG_MS)
            master = agent([server.address], options, brokers=brokers)
            events: list[BrokerEvent] = []
            slave = agent([server.address], options, broker_id=1, port=10921, topics=(), brokers=brokers, observe=events.append)
            async with running(master), running(slave):
                answers = [event.answer for event in events if event.kind is EventKind.DONE]
                assert [answer and (answer.ext_fields or {})["masterAddr"] for answer in answers] == ["127.0.0.1:10911"]
                assert (slave.master_addr, slave.ha_server_addr) == ("127.0.0.1:10911", "127.0.0.1:10912")
                await master.add_topic(TopicConfig("New"))
                await slave.register_round()
                assert slave.data_version == master.data_version
                assert {"T", "New"} <= set(table(server.requests[-1]))
                assert master.master_addr is None

    asyncio.run(scenario())


def test_53_registers_only_where_its_scan_could_connect() -> None:
    """A server that returns is connected by the scan, without waiting for a round. It receives the registration in the next
    round."""

    async def scenario() -> None:
        async with scripted_server() as there, scripted_server() as away:
            await away.refuse()
            options = BrokerOptions(register_period_ms=LONG_MS, scan_interval_ms=20)
            async with running(agent([there.address, away.address], options)) as broker:
                assert broker.counts[REGISTER, EventKind.INVOKED] == 1
                assert list(broker.unavailable) == [away.address]
                assert "refused" in broker.unavailable[away.address]
                await away.listen()
                await until(lambda: away.accepted, "the scan to connect")
                assert not away.requests
                await until(lambda: away.address in broker._available, "the scan to end")
                await broker.register_round()
                assert away.codes() == [REGISTER]
                away.drop_connections()
                await until(lambda: away.accepted == 2, "the scan to connect again")

    asyncio.run(scenario())


def test_49_tries_every_server_in_every_round() -> None:
    async def scenario() -> None:
        async with scripted_server() as there, scripted_server() as away:
            await away.refuse()
            options = BrokerOptions(version=BrokerVersion.V4_9, register_period_ms=LONG_MS)
            async with running(agent([there.address, away.address], options)) as broker:
                assert broker.counts[REGISTER, EventKind.NOT_SENT] == 1
                await away.listen()
                await broker.register_round()
                assert away.codes() == [REGISTER]

    asyncio.run(scenario())


def test_one_silent_server_delays_the_round_but_not_for_ever() -> None:
    async def scenario() -> None:
        async with scripted_server() as good, scripted_server(Behaviour.HANG) as silent:
            options = BrokerOptions(register_period_ms=LONG_MS, register_timeout_ms=100)
            async with running(agent([good.address, silent.address], options)) as broker:
                assert good.codes() == [REGISTER]
                assert broker.registered == {good.address}
                assert broker.counts[REGISTER, EventKind.UNKNOWN] == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("silent", [False, True])
def test_death(silent: bool) -> None:
    """The broker does not unregister. Its connections end with the process, or stay open if the machine fails."""

    async def scenario() -> None:
        async with scripted_server() as server:
            options = BrokerOptions(register_period_ms=10, heartbeat=Heartbeat.BROKER_HEARTBEAT, heartbeat_interval_ms=10)
            async with running(agent([server.address], options)) as broker:
                await until(lambda: len(server.requests) > 3, "some life")
                await broker.kill(silent=silent)
                assert not broker.running
                await until(lambda: server.connections == int(silent), "the connections to end, or not")
                read = len(server.requests)
                await broker.start()
                await until(lambda: server.accepted == 2, "the next life's own connection")
                await broker.stop()
                assert UNREGISTER not in server.codes()[:read]
                assert server.codes()[-1] == UNREGISTER
                await until(lambda: server.connections == int(silent), "the second life's connection to end")
                await broker.release()
                await until(lambda: not server.connections, "the dead connection to be released")

    asyncio.run(scenario())


def test_the_dead_do_not_speak() -> None:
    """A change that waits for a slow round when the broker dies is never sent, not even by its next life."""

    async def scenario() -> None:
        async with scripted_server() as server:
            server.answer = lambda request: None
            broker = agent([server.address], BrokerOptions(register_period_ms=LONG_MS))
            starting = asyncio.create_task(broker.start())
            await until(lambda: server.requests, "the registration that is never answered")
            adding = asyncio.create_task(broker.add_topic(TopicConfig("Late")))
            await until(lambda: broker.data_version.counter, "the change to wait for the round")
            await broker.kill()
            await asyncio.gather(starting, adding)
            assert len(server.requests) == 1
            assert broker.counts[REGISTER, EventKind.UNKNOWN] == 1
            assert server.accepted == 1

    asyncio.run(scenario())


def test_connections_of_agents_are_their_own() -> None:
    async def scenario() -> None:
        async with scripted_server() as server:
            options = BrokerOptions(register_period_ms=LONG_MS)
            async with running(agent([server.address], options)), running(agent([server.address], options, port=10921, name="b")):
                assert server.connections == 2

    asyncio.run(scenario())


@BOTH
def test_a_reconnecting_broker_registers_before_its_old_connection_ends(version: BrokerVersion) -> None:
    async def scenario() -> None:
        async with scripted_server() as server:
            options = BrokerOptions(version=version, register_period_ms=LONG_MS)
            events: list[EventKind] = []
            async with running(agent([server.address], options, observe=lambda event: events.append(event.kind))) as broker:
                events.clear()
                await broker.reconnect()
                assert [request.code for request in server.requests] == [REGISTER] * 2
                assert events == [EventKind.INVOKED, EventKind.DONE, EventKind.DISCONNECTED]
                assert broker.registered == {server.address}
                await until(lambda: server.connections == 1, "only the new connection is open")

    asyncio.run(scenario())


# --- against a real node


@BOTH
@pytest.mark.parametrize("compressed", [False, True])
def test_a_node_routes_what_agents_register(version: BrokerVersion, compressed: bool, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with node(tmp_path) as server:
            options = BrokerOptions(version=version, register_period_ms=LONG_MS, compressed=compressed)
            brokers: dict[str, BrokerAgent] = {}
            master = agent([server], options, brokers=brokers)
            slave = agent([server], options, broker_id=1, port=10921, brokers=brokers)
            async with running(master), running(slave):
                assert slave.master_addr == "127.0.0.1:10911"
                assert await addresses_at(server) == {"broker-a": {0: "127.0.0.1:10911", 1: "127.0.0.1:10921"}}
                await master.add_topic(TopicConfig("New", 4, 2))
                route = await route_at(server, "New")
                assert route is not None
                ((name, queues),) = route.queue_datas
                assert (name, queues.read_queue_nums, queues.write_queue_nums, queues.perm) == ("broker-a", 4, 2, 6)
                await slave.stop()
                await until_gone(server, 1)
                await master.kill()
                await until_gone(server, 0)
                assert await route_at(server, "New") is None

    asyncio.run(scenario())


def test_a_node_and_agents_agree_that_nothing_changed(tmp_path: Path) -> None:
    """After the answer to 322 an agent does not register. After a change it registers again."""

    async def scenario() -> None:
        async with node(tmp_path) as server:
            for version in BrokerVersion:
                options = BrokerOptions(version=version, register_period_ms=LONG_MS, force_register=False)
                async with running(agent([server], options, name=f"broker-{version}")) as broker:
                    await broker.register_round()
                    assert broker.counts[REGISTER, EventKind.INVOKED] == 1
                    await broker.change_topics(delete=["T"])
                    await broker.register_round()
                    assert broker.counts[REGISTER, EventKind.DONE] == 2

    asyncio.run(scenario())


@pytest.mark.parametrize("heartbeat", [Heartbeat.QUERY_DATA_VERSION, Heartbeat.BROKER_HEARTBEAT])
def test_member_group_and_push_when_the_master_leaves(heartbeat: Heartbeat, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with node(tmp_path, notifyMinBrokerIdChanged="true", supportActingMaster="true") as server:
            options = BrokerOptions(heartbeat=heartbeat, register_period_ms=LONG_MS, heartbeat_interval_ms=20, listen=True)
            ports = free_ports(2)
            master = agent([server], options, port=ports[0])
            slave = agent([server], options, broker_id=1, port=ports[1])
            async with running(master), running(slave):
                expected = {0: f"127.0.0.1:{ports[0]}", 1: f"127.0.0.1:{ports[1]}"}
                await until(lambda: slave.member_group == expected, "the slave to learn of its group")
                await master.stop()
                await until(lambda: slave.pushes, "the push to the slave")
                assert slave.pushes[0]["minBrokerId"] == "1"
                assert slave.pushes[0]["offlineBrokerAddr"] == f"127.0.0.1:{ports[0]}"
                await until(lambda: slave.member_group == {1: f"127.0.0.1:{ports[1]}"}, "the slave to be alone")
                route = await route_at(server, "T")
                assert route is not None
                assert route.broker_datas[0].broker_addrs == ((0, f"127.0.0.1:{ports[1]}"),)
                assert route.queue_datas[0][1].perm == 4

    asyncio.run(scenario())


def test_the_order_configuration_of_a_node_reaches_the_agent(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with node(tmp_path) as server:
            client = RemotingClient()
            fields = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T", "value": "broker-a:8"}
            await client.request(server, RemotingCommand(RequestCode.PUT_KV_CONFIG, fields))
            await client.close()
            async with running(agent([server], BrokerOptions(register_period_ms=LONG_MS))) as broker:
                assert broker.topics.user.configs["T"].order
                assert broker.data_version == DataVersion(1, 0, broker.data_version.timestamp)

    asyncio.run(scenario())


def test_two_hundred_brokers_share_one_encoded_table(tmp_path: Path) -> None:
    """A node has routes for the topics of all brokers."""

    async def scenario() -> None:
        shared = TopicTable(TopicConfig(f"topic-{index}") for index in range(50))
        async with node(tmp_path) as server, AsyncExitStack() as stack:
            patient = BrokerOptions(register_timeout_ms=60_000)
            brokers = [agent([server], patient, port=10000 + index, name=f"b{index}") for index in range(200)]
            for broker in brokers:
                broker.topics = BrokerTopics(broker.topics.system, shared)
            await asyncio.gather(*(stack.enter_async_context(running(broker)) for broker in brokers))
            assert all(broker.registered == {server} for broker in brokers)
            assert all(broker.topics.user is shared for broker in brokers)
            assert shared.entries(BrokerVersion.V5_3) is shared.entries(BrokerVersion.V5_3)
            route = await route_at(server, "topic-49")
            assert route is not None
            assert len(route.queue_datas) == 200

    asyncio.run(scenario())


@asynccontextmanager
async def node(data_dir: Path, **flags: str) -> AsyncIterator[str]:
    """A real node; gives its address."""
    async with running_node(data_dir, **flags) as (running_here, _):
        yield running_here.listen_address


async def until_gone(server: str, broker_id: int) -> None:
    async with asyncio.timeout(20):
        while broker_id in (await addresses_at(server)).get("broker-a", {}):
            pass

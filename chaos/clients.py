"""The clients of a run. Each asks at its own rate over its own connections, and records questions and answers."""

import asyncio
import contextlib
import itertools
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence

from replicated_namesrv.chaos.recorder import FAIL, OK, Ended, Recorder, ended_by, route_members
from replicated_namesrv.chaos.records import Member, Send
from replicated_namesrv.chaos.sample_group import ANSWER, QUESTIONS, text_of
from replicated_namesrv.client.answer_bodies import decode_member_group
from replicated_namesrv.client.broker_requests import BrokerIdentity, member_group_request
from replicated_namesrv.client.credentials import NO_CREDENTIALS, Credentials
from replicated_namesrv.client.nameservers import NameServers
from replicated_namesrv.client.queries import (
    cluster_info_request,
    config_request,
    delete_kv_request,
    get_kv_request,
    list_kv_request,
    put_kv_request,
    read_cluster_info,
    read_config,
    read_done,
    read_kv,
    read_kv_table,
    read_route,
    read_topics,
    route_request,
    topics_request,
)
from replicated_namesrv.client.remoting import RemotingClient, RemotingCommand
from replicated_namesrv.client.route_cache import RouteCache
from replicated_namesrv.errors import NamesrvError
from replicated_namesrv.model import PERM_WRITE, TopicRouteData
from replicated_namesrv.wire.codes import ResponseCode

NAMESPACE = "chaos"
LIST_IS_DISABLED = "disabled"
"""The value of a ``topic-list`` of a node with ``enableAllTopicList=false``."""


class Client:
    """One client: a name, the nodes that it may ask, and a connection to each."""

    def __init__(
        self,
        name: str,
        kind: str,
        nodes: Mapping[str, str],
        recorder: Recorder,
        rng: random.Random,
        timeout_ms: int,
        credentials: Credentials = NO_CREDENTIALS,
    ) -> None:
        """``nodes``: the address at which the client dials each node that it may ask."""
        self.name, self.kind = name, kind
        self._addresses = dict(nodes)
        self.nodes = self._addresses
        """The nodes in the client's present list."""
        self._names = {address: node for node, address in nodes.items()}
        self._recorder, self.rng = recorder, rng
        self._remoting = RemotingClient(connect_timeout_ms=timeout_ms, credentials=credentials)
        self.servers = NameServers(list(nodes.values()), self._remoting, rng=rng, timeout_ms=timeout_ms)
        self._timeout_ms = timeout_ms

    @property
    def pinned(self) -> str | None:
        """The node of a client that asks only one node; None for other clients."""
        return next(iter(self._addresses)) if len(self._addresses) == 1 else None

    def use_nodes(self, nodes: Sequence[str]) -> None:
        """Use another list of name servers, in the client's own order. No effect on a client that asks only one node."""
        if self.pinned is None:
            self.nodes = {node: address for node, address in self._addresses.items() if node in nodes}
            self.servers.update_addresses(list(self.nodes.values()))

    async def close(self) -> None:
        """Close the client's connections."""
        await self._remoting.close()

    def node_at(self, address: str | None) -> str | None:
        """The node that the client dials at an address."""
        return None if address is None else self._names.get(address)

    async def route(self, topic: str, *, node: str | None = None, level: str | None = None, probe: int | None = None) -> Ended:
        """Look up a topic at ``node``, or at the node that the address list selects."""
        request = route_request(topic)
        if level is not None:
            request = request._replace(ext_fields={**(request.ext_fields or {}), "readConsistency": level})
        op = self._invoke("route", topic, node=node, level=level, probe=probe)

        def read(address: str, response: RemotingCommand) -> Ended:
            return Ended(OK, self._names[address], members=route_members(read_route(response)))

        return await self._ask(op, request, node, read)

    async def zone_route(self, topic: str, zone: str, *, node: str) -> Ended:
        """Look up a topic at ``node`` as a client that only uses brokers of ``zone`` does."""
        op = self._invoke("zone-route", topic, node=node)
        request = route_request(topic)
        fields = {**(request.ext_fields or {}), "__ZONE_NAME": zone, "__ZONE_MODE": "true"}

        def read(address: str, response: RemotingCommand) -> Ended:
            return Ended(OK, self._names[address], zone, route_members(read_route(response)))

        return await self._ask(op, request._replace(ext_fields=fields), node, read)

    async def cluster(self, key: str, *, node: str) -> Ended:
        """All brokers of ``node``. ``key``: the key of the operation."""
        op = self._invoke("cluster", key, node=node)

        def read(address: str, response: RemotingCommand) -> Ended:
            groups = read_cluster_info(response).broker_addr_table
            members = [Member(f"{group.broker_name}/{broker_id}", "") for group in groups for broker_id, _ in group.broker_addrs]
            return Ended(OK, self._names[address], members=sorted(members))

        return await self._ask(op, cluster_info_request(), node, read)

    async def topic_list(self, key: str, *, node: str) -> Ended:
        """All topics of ``node``. ``key``: the key of the operation. The value is ``LIST_IS_DISABLED`` if ``node`` does not list
        them because of a setting."""
        op = self._invoke("topic-list", key, node=node)

        def read(address: str, response: RemotingCommand) -> Ended:
            if _is_disabled(response):
                return Ended(OK, self._names[address], LIST_IS_DISABLED)
            topics = read_topics(response).topic_list
            return Ended(OK, self._names[address], members=sorted(Member(topic, "") for topic in topics))

        return await self._ask(op, topics_request(), node, read)

    async def member_group(self, identity: BrokerIdentity, *, node: str) -> Ended:
        """The members that ``node`` has of the group of a broker."""
        group = identity.broker_name
        op = self._invoke("member-group", group, node=node)

        def read(address: str, response: RemotingCommand) -> Ended:
            members = [Member(f"{group}/{broker_id}", "") for broker_id in decode_member_group(response.body)]
            return Ended(OK, self._names[address], members=sorted(members))

        return await self._ask(op, member_group_request(identity), node, read)

    async def kv_list(self, *, node: str) -> Ended:
        """All KV entries of ``node``."""
        op = self._invoke("kv-list", NAMESPACE, node=node)

        def read(address: str, response: RemotingCommand) -> Ended:
            entries = read_kv_table(response) or {}
            return Ended(OK, self._names[address], members=sorted(Member(key, value) for key, value in entries.items()))

        return await self._ask(op, list_kv_request(NAMESPACE), node, read)

    async def answer(self, question: str, *, node: str) -> Ended:
        """The answer of ``node`` to a question about the group ``sample``."""
        op = self._invoke(ANSWER, question, node=node)
        request, content = QUESTIONS[question]

        def read(address: str, response: RemotingCommand) -> Ended:
            return Ended(OK, self._names[address], text_of(content(response)))

        return await self._ask(op, request, node, read)

    async def get(self, key: str, *, node: str | None = None, probe: int | None = None) -> Ended:
        """Read a KV key."""
        op = self._invoke("get", key, node=node, probe=probe)

        def read(address: str, response: RemotingCommand) -> Ended:
            return Ended(OK, self._names[address], read_kv(response))

        return await self._ask(op, get_kv_request(NAMESPACE, key), node, read)

    async def write(self, kind: str, key: str, value: str | None) -> Ended:
        """put or delete a KV key. The request is not sent to a second node if the first may have executed it."""
        request = delete_kv_request(NAMESPACE, key) if value is None else put_kv_request(NAMESPACE, key, value)
        op = self._invoke(kind, key, value=value)
        try:
            address, response = await self.servers.submit(request)
        except NamesrvError as error:
            return self._end(op, ended_by(error))
        try:
            read_done(response)
        except NamesrvError as error:
            return self._end(op, ended_by(error, self._names[address]))
        return self._end(op, Ended(OK, self._names[address]))

    async def write_to_all(self, kind: str, key: str, value: str | None) -> None:
        """put or delete a KV key at each node in turn, as ``MQClientAPIImpl.putKVConfigValue`` does. The client stops at a node
        that does not answer, and continues after a refusal. Each request is an operation of its own."""
        request = delete_kv_request(NAMESPACE, key) if value is None else put_kv_request(NAMESPACE, key, value)
        for node, address in self.nodes.items():
            op = self._invoke(kind, key, value=value, node=node)
            try:
                response = await self._remoting.request(address, request, self._timeout_ms)
            except NamesrvError as error:
                self._end(op, ended_by(error, node))
                return
            try:
                read_done(response)
            except NamesrvError as error:
                self._end(op, ended_by(error, node))
            else:
                self._end(op, Ended(OK, node))

    async def order(self, kind: str, key: str, value: str | None, request: RemotingCommand, node: str) -> Ended:
        """Send a change to ``node``. It is recorded as a write of ``value``."""
        op = self._invoke(kind, key, value=value, node=node)

        def read(address: str, response: RemotingCommand) -> Ended:
            try:
                read_done(response)
            except NamesrvError as error:  # the refusal of a change determines its outcome; for a read it does not matter
                return ended_by(error, self._names[address])
            return Ended(OK, self._names[address])

        return await self._ask(op, request, node, read)

    async def perm(self, broker: str, topic: str, *, node: str) -> Ended:
        """The permission of ``broker`` (``brokerName/brokerId``) for one of its topics, from the answer of ``node``."""
        op = self._invoke("perm", broker, node=node)

        def read(address: str, response: RemotingCommand) -> Ended:
            route = read_route(response)
            perms = {} if route is None else {f"{name}/0": str(data.perm) for name, data in route.queue_datas}
            return Ended(OK, self._names[address], perms.get(broker))

        return await self._ask(op, route_request(topic), node, read)

    async def topic(self, topic: str, *, node: str) -> Ended:
        """The registration that ``node`` shows of a topic with a single broker."""
        op = self._invoke("topic", topic, node=node)

        def read(address: str, response: RemotingCommand) -> Ended:
            members = route_members(read_route(response))
            return Ended(OK, self._names[address], members[0].version if members else None)

        return await self._ask(op, route_request(topic), node, read)

    async def config(self, key: str, *, node: str) -> Ended:
        """A setting in force at ``node``."""
        op = self._invoke("config", key, node=node)

        def read(address: str, response: RemotingCommand) -> Ended:
            return Ended(OK, self._names[address], read_config(response).get(key))

        return await self._ask(op, config_request(), node, read)

    async def lists_topics(self, key: str, *, node: str) -> Ended:
        """The effect of the setting ``key``: whether ``node`` lists all topics (true), or refuses to (false)."""
        op = self._invoke("config", key, node=node)

        def read(address: str, response: RemotingCommand) -> Ended:
            is_disabled = _is_disabled(response)
            if not is_disabled:
                read_topics(response)
            return Ended(OK, self._names[address], "false" if is_disabled else "true")

        return await self._ask(op, topics_request(), node, read)

    async def roles(self, group: str, topic: str, processes: Mapping[str, str], *, node: str) -> Ended:
        """The brokers of a group, each with the broker id under which ``node`` lists it, and their permission for the topic.
        ``processes``: names of the brokers by address."""
        op = self._invoke("roles", group, node=node)

        def read(address: str, response: RemotingCommand) -> Ended:
            route = read_route(response)
            listed = [] if route is None else [data for data in route.broker_datas if data.broker_name == group]
            members = [
                Member(processes.get(addr, addr), str(broker_id)) for data in listed for broker_id, addr in data.broker_addrs
            ]
            perms = {} if route is None else {name: str(data.perm) for name, data in route.queue_datas}
            return Ended(OK, self._names[address], perms.get(group), sorted(members))

        return await self._ask(op, route_request(topic), node, read)

    def _invoke(self, kind: str, key: str, *, node: str | None = None, **more: object) -> int:
        return self._recorder.invoke(self.name, kind, key, node=node or self.pinned, **more)  # type: ignore[arg-type]  # the fields of one kind of operation

    async def _ask(
        self, op: int, request: RemotingCommand, node: str | None, read: Callable[[str, RemotingCommand], Ended]
    ) -> Ended:
        try:
            if node is None:
                address, response = await self.servers.query(request)
            else:
                address = self._addresses[node]
                response = await self._remoting.request(address, request, self._timeout_ms)
        except NamesrvError as error:
            return self._end(op, ended_by(error, node))
        try:
            return self._end(op, read(address, response))
        except NamesrvError as error:
            return self._end(op, Ended(FAIL, self._names[address], error=str(error)))

    def _end(self, op: int, ended: Ended) -> Ended:
        self._recorder.complete(op, ended)
        return ended


def _is_disabled(response: RemotingCommand) -> bool:
    return response.code == ResponseCode.SYSTEM_ERROR and response.remark == "disable"


async def pace(per_s: float, rng: random.Random, action: Callable[[], Awaitable[object]], ended: asyncio.Event) -> None:
    """Call ``action`` ``per_s`` times a second on average until ``ended``. Missed calls are not made up."""
    loop = asyncio.get_running_loop()
    while not ended.is_set():
        due = loop.time() + rng.uniform(0.5, 1.5) / per_s
        await action()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.001, due - loop.time())):
                await ended.wait()


KEPT_KEY, DROPPED_KEY = "kept", "dropped"
"""Keys that are written only before the faults. The first one is there at the end, the second one was deleted."""


class KvLoop:
    """Sends puts, gets and deletes for a few keys. No two puts have the same value."""

    def __init__(self, client: Client, keys: Sequence[str], *, to_all: bool) -> None:
        """``to_all``: each write goes to every node; otherwise to the node that the address list selects."""
        self._client, self._keys = client, keys
        self._write: Callable[[str, str, str | None], Awaitable[object]] = client.write_to_all if to_all else client.write
        self._values = itertools.count(1)
        self.writing = True

    async def write_once(self) -> None:
        """Write the two keys that nobody writes again. Final reads of them show whether a node kept its entries over a restart.
        Reads of other keys may not show it, because clients soon write them again."""
        await self._write("put", KEPT_KEY, f"{self._client.name}.{next(self._values)}")
        await self._write("put", DROPPED_KEY, f"{self._client.name}.{next(self._values)}")
        await self._write("delete", DROPPED_KEY, None)

    async def once(self) -> None:
        """Perform one operation."""
        client, key = self._client, self._client.rng.choice(self._keys)
        drawn = client.rng.random() if self.writing else 1.0
        if drawn < 0.4:
            await self._write("put", key, f"{client.name}.{next(self._values)}")
        elif drawn < 0.5:
            await self._write("delete", key, None)
        else:
            await client.get(key)


class Probe:
    """Sends each question to all nodes at the same time."""

    def __init__(self, client: Client, topics: Sequence[str], keys: Sequence[str]) -> None:
        self._client = client
        self._questions = itertools.cycle([("route", topic) for topic in topics] + [("get", key) for key in keys])
        self._numbers = itertools.count(1)

    async def once(self) -> None:
        """Send one question."""
        kind, key = next(self._questions)
        number = next(self._numbers)
        ask = self._client.route if kind == "route" else self._client.get
        await asyncio.gather(*(ask(key, node=node, probe=number) for node in self._client.nodes))


class Sender:
    """A client with a route cache. It records the broker to which it would send."""

    def __init__(self, client: Client, topics: Sequence[str], recorder: Recorder, reachable: Callable[[str], bool]) -> None:
        """``reachable``: whether a broker (``brokerName/brokerId``) really accepts messages."""
        self._client, self._topics, self._recorder, self._reachable = client, topics, recorder, reachable
        self._cache = RouteCache(client.servers)
        self._learned_ns: dict[str, int] = {}

    async def poll(self) -> None:
        """Refresh all routes in turn, as RocketMQ's clients do. Each refresh is recorded as a look-up."""
        for topic in self._topics:
            op = self._recorder.invoke(self._client.name, "route", topic)
            update = await self._cache.refresh(topic)
            if update.error is not None:
                self._recorder.complete(op, ended_by(update.error))
                continue
            node = self._client.node_at(update.address)
            self._recorder.complete(op, Ended(OK, node, members=route_members(update.route)))
            if update.route is not None:
                self._learned_ns[topic] = self._recorder.now_ns()

    async def send(self) -> None:
        """Pick a broker as a producer does: a master with write queues, all queues with equal probability."""
        topic = self._client.rng.choice(self._topics)
        targets = _writable(self._cache.known(topic))
        broker = self._client.rng.choice(targets) if targets else None
        reachable = broker is not None and self._reachable(broker)
        self._recorder.write(
            Send(self._recorder.now_ns(), self._client.name, topic, broker, self._learned_ns.get(topic), reachable)
        )


def _writable(route: TopicRouteData | None) -> list[str]:
    if route is None:
        return []
    writable = {name for name, data in route.queue_datas if data.write_queue_nums > 0 and data.perm & PERM_WRITE}
    return [
        f"{data.broker_name}/0" for data in route.broker_datas if data.master_addr is not None and data.broker_name in writable
    ]

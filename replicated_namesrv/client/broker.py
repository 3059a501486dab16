"""Simulated brokers (agents): they behave towards name servers as RocketMQ's brokers do, but store no messages.

Copied behaviour (``BrokerController``, ``BrokerOuterAPI``, ``SlaveSynchronize``; 4.9.8 and 5.3.3):

- A round registers with all servers in parallel and waits for every one of them, so a server that does not answer delays the next
  round by the time-out (6 s; 24 s in 5.3). The first round is at the start, the second at most 10 s later, and further ones at a
  fixed rate.
- 4.9 registers with every configured server, and opens a connection if there is none. 5.3 scans every 3 s for servers to which it
  can connect, and registers with these. So it connects to a returning server within 3 s, but registers there only in the next
  round.
- Without ``force_register`` a round first sends ``QUERY_DATA_VERSION`` (322) to every server. It registers only if an answer
  differs or a query fails.
- A 5.3 broker that sends heartbeats (``Heartbeat``) runs in acting-master mode: a oneway heartbeat every second, a time-out of
  10 s in its registration, and a query for its member group every second (``GET_ROUTEINFO_BY_TOPIC`` (105) for the SYNC topic, or
  ``GET_BROKER_MEMBER_GROUP`` (901)).
- The first answer of a round counts. From it a slave gets the master's address and HA address; then it copies the master's topics
  and version. Topics of the order configuration become ordered, which makes a new data version.
- A new topic is registered at once: alone and two-way, or, if a 4.9 broker created it automatically, oneway with all other
  topics.
- A clean stop unregisters from every server, one after the other.

Each agent has its own connections, because name servers identify brokers by them. All agents of a process share one event
loop. Agents with the same topics share one encoded table.
"""

import asyncio
import contextlib
import random
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, MutableMapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from replicated_namesrv.client.answer_bodies import decode_data_version, decode_kv_table, decode_member_group, decode_route
from replicated_namesrv.client.broker_requests import (
    BrokerIdentity,
    BrokerVersion,
    heartbeat_request,
    member_group_request,
    query_data_version_request,
    register_request,
    sync_topic,
    unregister_request,
)
from replicated_namesrv.client.credentials import NO_CREDENTIALS, Credentials
from replicated_namesrv.client.nameservers import NameServers
from replicated_namesrv.client.push_receiver import PushListener
from replicated_namesrv.client.queries import RefusedError, route_request
from replicated_namesrv.client.remoting import RemotingClient, RemotingCommand
from replicated_namesrv.client.topics import BrokerTopics, TopicConfig, TopicTable
from replicated_namesrv.errors import BodyError, NamesrvError
from replicated_namesrv.model import DataVersion
from replicated_namesrv.wire.codes import ONEWAY_FLAG, RequestCode, ResponseCode

FIRST_ROUND_DELAY_MS = 10_000
"""Maximum delay of the first periodic registration after the registration at the start."""
SCAN_INTERVAL_MS = 3_000
"""``connectTimeoutMillis``, which is also the pause between two scans for servers."""
MEMBER_GROUP_TIMEOUT_MS = 3_000
UNREGISTER_TIMEOUT_MS = 3_000
ACTING_MASTER_TIMEOUT_MS = 10_000
"""``brokerNotActiveTimeoutMillis``."""
PUSHES_KEPT = 1_000


class Heartbeat(StrEnum):
    """The kind of heartbeat that a broker sends between two registrations."""

    REGISTER = "register"
    """Registrations only, no heartbeats."""
    QUERY_DATA_VERSION = "322"
    """Heartbeats by ``QUERY_DATA_VERSION`` (322). 5.3: acting-master mode that works with old name servers. 4.9: the two-way
    query before each registration."""
    BROKER_HEARTBEAT = "904"
    """Heartbeats by ``BROKER_HEARTBEAT`` (904). 5.3: acting-master mode."""


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """The broker's configuration; times in milliseconds."""

    version: BrokerVersion = BrokerVersion.V5_3
    heartbeat: Heartbeat = Heartbeat.REGISTER
    register_period_ms: int = 30_000
    """``registerNameServerPeriod``; a real broker limits it to 10 to 60 s, this one does not."""
    heartbeat_interval_ms: int = 1_000
    heartbeat_timeout_ms: int | None = None
    """Value of heartbeatTimeoutMillis in registrations. None: 10,000 in acting-master mode, otherwise the field is not sent,
    which means 120,000.
    """
    force_register: bool = True
    compressed: bool = False
    """Whether registrations are deflated. 5.3 sends ``compressed=false`` even then, as the real broker does."""
    register_timeout_ms: int | None = None
    """Time-out for one server's answer. None: ``registerBrokerTimeoutMills`` of the version."""
    scan_interval_ms: int = SCAN_INTERVAL_MS
    """Interval at which a 5.3 broker looks for servers that it can connect to."""
    zone_name: str | None = None
    listen: bool = False
    """Whether to listen at the broker's address and record the notifications (``NOTIFY_MIN_BROKER_ID_CHANGE``, 905) that
    arrive."""

    @property
    def acting_master(self) -> bool:
        """``enableSlaveActingMaster``."""
        return self.version is BrokerVersion.V5_3 and self.heartbeat is not Heartbeat.REGISTER

    @property
    def asks_first(self) -> bool:
        """Whether rounds ask for data versions before they register."""
        return not self.force_register or (self.version is BrokerVersion.V4_9 and self.heartbeat is Heartbeat.QUERY_DATA_VERSION)

    @property
    def answer_timeout_ms(self) -> int:
        """Time-out for one server's answer, milliseconds."""
        return self.register_timeout_ms or self.version.register_timeout_ms

    @property
    def sent_timeout_ms(self) -> int | None:
        """heartbeatTimeoutMillis as sent."""
        if self.heartbeat_timeout_ms is not None:
            return self.heartbeat_timeout_ms
        return ACTING_MASTER_TIMEOUT_MS if self.acting_master else None


class EventKind(StrEnum):
    """Kinds of ``BrokerEvent``."""

    INVOKED = "invoked"
    """A request is about to be sent."""
    DONE = "done"
    """A request was answered with code 0, or a oneway request was passed to the connection."""
    REFUSED = "refused"
    """A request was answered with another code."""
    NOT_SENT = "not sent"
    """A request was certainly not received."""
    UNKNOWN = "unknown"
    """A request was sent and not answered, so it may have been applied."""
    DISCONNECTED = "disconnected"
    """A connection ended; ``code`` is 0."""
    PUSHED = "pushed"
    """A notification arrived; ``detail`` has its fields."""


class BrokerEvent(NamedTuple):
    """One observation of an agent. ``INVOKED`` and the event that ends it share ``sequence``."""

    kind: EventKind
    sequence: int
    """A number that is unique for this agent; later events have higher numbers."""
    identity: BrokerIdentity
    """The identity of the agent when the request was built."""
    address: str
    """Address of the name server; for a notification the address of the peer."""
    code: int
    oneway: bool
    data_version: DataVersion | None
    topics: int
    """Number of topics in a registration."""
    detail: str
    answer: RemotingCommand | None = None
    """The answer, if the request was answered with code 0."""


class _State(NamedTuple):
    """The state from which a request is built, and the connections that carry it."""

    client: RemotingClient
    identity: BrokerIdentity
    data_version: DataVersion
    topics: int


class BrokerAgent:
    """One broker. Create, ``await start()``, and end with ``stop`` or ``kill``; it can be started again."""

    def __init__(
        self,
        identity: BrokerIdentity,
        topics: BrokerTopics,
        name_servers: Sequence[str],
        *,
        options: BrokerOptions,
        rng: random.Random,
        now_ms: Callable[[], int],
        observe: Callable[[BrokerEvent], None] | None = None,
        brokers: MutableMapping[str, "BrokerAgent"] | None = None,
        credentials: Credentials = NO_CREDENTIALS,
    ) -> None:
        """``now_ms``: wall clock for data versions; waiting uses the event loop's clock. ``brokers``: running agents by
        address, maintained by the agents, so that a slave finds its master.
        """
        self.identity = identity
        self.options = options
        self.topics = topics
        self.name_servers = tuple(name_servers)
        self.data_version = DataVersion(counter=0, state_version=0, timestamp=now_ms())
        self.master_addr: str | None = None
        """Only for a slave: the address of its master according to the name servers."""
        self.ha_server_addr: str | None = None
        self.registered: set[str] = set()
        """Servers that acknowledged the last registration and whose connection has stayed open since."""
        self.unavailable: dict[str, str] = {}
        """5.3: the servers to which the last scan could not connect, each with the reason."""
        self.member_group: dict[int, str] = {}
        self.pushes: deque[dict[str, str]] = deque(maxlen=PUSHES_KEPT)
        self.counts: Counter[tuple[int, EventKind]] = Counter()
        """Number of events by (request code, kind), since the agent was created."""
        self._rng = rng
        self._now_ms = now_ms
        self._observe = observe
        self._brokers = brokers if brokers is not None else {}
        self._sequence = 0
        self._registering = asyncio.Lock()
        self._available: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._credentials = credentials
        self._client = self._new_client()
        self._abandoned: list[RemotingClient] = []
        self._group_servers = self._choose_servers()
        self._listener: PushListener | None = None

    def _new_client(self) -> RemotingClient:
        return RemotingClient(credentials=self._credentials, on_disconnect=self._disconnected)

    def _choose_servers(self) -> NameServers:
        attempts = 1 if self.options.version is BrokerVersion.V5_3 else None
        return NameServers(self.name_servers, self._client, rng=self._rng, timeout_ms=MEMBER_GROUP_TIMEOUT_MS, attempts=attempts)

    @property
    def running(self) -> bool:
        """Whether it was started, and neither stopped nor killed since."""
        return bool(self._tasks)

    async def start(self) -> None:
        """Listen if configured, register everywhere, and start the background tasks. Returns after the first round. Raises
        OSError if the broker's address cannot be listened on.
        """
        assert not self.running, "the agent runs already"
        if self.options.listen:
            self._listener = PushListener(self._pushed)
            await self._listener.start(self.identity.broker_addr)
        self._brokers[self.identity.broker_addr] = self
        if self.options.version is BrokerVersion.V5_3:
            await self._scan()
            interval_ms = self.options.scan_interval_ms
            self._spawn(self._every(interval_ms, interval_ms, self._scan))
        period_ms = self.options.register_period_ms
        self._spawn(self._every(min(FIRST_ROUND_DELAY_MS, period_ms), period_ms, self.register_round))
        if self.options.acting_master:
            interval_ms = self.options.heartbeat_interval_ms
            self._spawn(self._every(interval_ms, interval_ms, self.send_heartbeats))
            self._spawn(self._every(interval_ms, interval_ms, self._sync_member_group))
        await self.register()

    async def stop(self) -> None:
        """Stop as a broker does at shutdown: unregister from each server in turn, then close the connections."""
        await self._end_tasks()
        for address in self.name_servers:
            request = unregister_request(self.identity, self.options.version)
            await self._send(address, request, UNREGISTER_TIMEOUT_MS, self._state())
        await self._go()
        await self._client.close()
        self._renew_client()

    async def kill(self, *, silent: bool = False) -> None:
        """Stop without unregistering. The operating system closes the connections. With ``silent`` they stay open and unused
        until ``release``, as after a power or network failure of the machine."""
        await self._end_tasks()
        await self._go()
        if silent:
            self._abandoned.append(self._client)
        else:
            await self._client.abort()
        self._renew_client()

    async def release(self) -> None:
        """Close the connections that ``kill(silent=True)`` left open."""
        abandoned, self._abandoned = self._abandoned, []
        for client in abandoned:
            await client.abort()

    async def reconnect(self) -> None:
        """Register over new connections, and then close the old ones. Name servers may see the end of an old connection after the
        registration over the new one, for example when a firewall dropped the old one."""
        old, self._client = self._client, self._new_client()
        self._group_servers = self._choose_servers()
        if self.options.version is BrokerVersion.V5_3:
            await self._scan()
        await self.register()
        registered = set(self.registered)
        await old.close()
        self.registered = registered  # the old connections do not count any more

    def update_name_servers(self, addresses: Sequence[str]) -> None:
        """Use another list from the next round on (``updateNameServerAddressList``)."""
        self.name_servers = tuple(addresses)
        self._group_servers.update_addresses(self.name_servers)

    def _renew_client(self) -> None:
        self._client = self._new_client()
        self._group_servers = self._choose_servers()
        self._available = set()
        self.unavailable = {}
        self.registered = set()

    async def _go(self) -> None:
        if self._brokers.get(self.identity.broker_addr) is self:
            del self._brokers[self.identity.broker_addr]
        if self._listener is not None:
            await self._listener.stop()
            self._listener = None

    async def register(self, *, oneway: bool = False) -> None:
        """Register all topics with every server, without asking for data versions (``registerBrokerAll`` with forceRegister)."""
        async with self._registering:
            await self._register(self.topics, oneway=oneway)

    async def register_round(self) -> None:
        """One periodic round: a slave copies its master's topics, then the broker registers. With ``asks_first``, it registers
        only if any server needs it."""
        self._follow_master()
        async with self._registering:
            if not self.options.asks_first or await self._registration_needed():
                await self._register(self.topics, oneway=False)

    async def add_topic(self, config: TopicConfig, *, auto_created: bool = False) -> None:
        """Create or change one topic and register it at once.

        ``auto_created``: the broker created it for a message of an unknown topic; 4.9 then registers all topics oneway.
        """
        self._change(self.topics.put([config]))
        async with self._registering:
            if auto_created and self.options.version is BrokerVersion.V4_9:
                await self._register(self.topics, oneway=True)
            else:
                await self._register(BrokerTopics(TopicTable(()), TopicTable((config,))), oneway=False)

    async def change_topics(self, put: Iterable[TopicConfig] = (), delete: Iterable[str] = (), *, at_once: bool = True) -> None:
        """Change several topics under one new data version. Deletions alone, and changes that are not registered ``at_once``, are
        registered in the next round."""
        added = list(put)
        self._change(self.topics.delete(delete).put(added))
        if added and at_once:
            await self.register()

    async def switch_role(self, broker_id: int, state_version: int | None = None) -> None:
        """Become master (0) or slave with another id and the same address, and register at once: oneway in 4.9, as DLedger
        does.

        ``state_version``: the controller's epoch in 5.x; None keeps it.
        """
        self.identity = self.identity._replace(broker_id=broker_id)
        if state_version is not None:
            self.data_version = self.data_version._replace(state_version=state_version)
        await self.register(oneway=self.options.version is BrokerVersion.V4_9)

    def _change(self, topics: BrokerTopics) -> None:
        """Apply a change to the table under a new version (``DataVersion.nextVersion``)."""
        self.topics = topics
        version = self.data_version
        self.data_version = DataVersion(version.counter + 1, version.state_version, self._now_ms())

    def _follow_master(self) -> None:
        """``SlaveSynchronize.syncTopicConfig`` from the master that the name servers named, if it runs in this process."""
        master = self._brokers.get(self.master_addr) if self.master_addr else None
        if self.identity.broker_id != 0 and master is not None and master is not self:
            self.topics, self.data_version = master.topics, master.data_version

    def _targets(self) -> list[str]:
        if self.options.version is BrokerVersion.V4_9:
            return list(self.name_servers)
        return [address for address in self.name_servers if address in self._available]

    async def _register(self, topics: BrokerTopics, *, oneway: bool) -> None:
        if not self.running:
            return
        options, state = self.options, self._state(len(topics))
        now_ms = self._now_ms()
        request = register_request(
            self.identity,
            options.version,
            topics.encode(options.version, self.data_version, now_ms, compressed=options.compressed),
            compressed=options.compressed,
            oneway=oneway,
            enable_acting_master=options.acting_master,
            heartbeat_timeout_ms=options.sent_timeout_ms,
            zone_name=options.zone_name,
        )
        answers: list[RemotingCommand] = []

        async def one(address: str) -> None:
            response = await self._send(address, request, options.answer_timeout_ms, state)
            if response is not None:
                answers.append(response)
                self.registered.add(address)
            elif not oneway:
                self.registered.discard(address)

        await asyncio.gather(*(one(address) for address in self._targets()))
        if answers:
            self._take_answer(answers[0])

    def _take_answer(self, answer: RemotingCommand) -> None:
        """``handleRegisterBrokerResult`` for the first answer."""
        fields = answer.ext_fields or {}
        self.ha_server_addr = fields.get("haServerAddr", self.ha_server_addr)
        self.master_addr = fields.get("masterAddr")
        try:
            ordered = decode_kv_table(answer.body) if answer.body else None
        except BodyError:
            return
        if ordered is not None:
            topics = self.topics.with_order(ordered, reset_others=self.options.version is BrokerVersion.V4_9)
            if topics is not self.topics:
                self._change(topics)

    async def _registration_needed(self) -> bool:
        """``needRegister``: whether any server fails or has another version."""

        request = query_data_version_request(self.identity, self.options.version, self.data_version)
        state = self._state()

        async def changed(address: str) -> bool:
            response = await self._send(address, request, self.options.answer_timeout_ms, state)
            if response is None:
                return True
            if (response.ext_fields or {}).get("changed", "true") != "false":
                return True
            try:
                return bool(response.body) and not self._same_version(decode_data_version(response.body))
            except BodyError:
                return True

        return any(await asyncio.gather(*(changed(address) for address in self.name_servers)))

    def _same_version(self, stored: DataVersion) -> bool:
        mine = self.data_version
        if self.options.version is BrokerVersion.V4_9:
            return (mine.counter, mine.timestamp) == (stored.counter, stored.timestamp)
        return mine == stored

    async def send_heartbeats(self) -> None:
        """Send one oneway heartbeat to every connected server."""
        with_version = self.options.heartbeat is Heartbeat.QUERY_DATA_VERSION
        request = heartbeat_request(self.identity, self.options.version, self.data_version if with_version else None)
        timeout_ms, state = self.options.heartbeat_interval_ms, self._state()
        await asyncio.gather(*(self._send(address, request, timeout_ms, state) for address in self._targets()))

    async def _sync_member_group(self) -> None:
        compatible = self.options.heartbeat is Heartbeat.QUERY_DATA_VERSION
        topic = sync_topic(self.identity.broker_name)
        request = route_request(topic) if compatible else member_group_request(self.identity)
        with contextlib.suppress(NamesrvError):
            _, response = await self._group_servers.query(self.options.version.as_java(request))
            if response.code != ResponseCode.SUCCESS:
                return
            if compatible:
                groups = {data.broker_name: data for data in decode_route(response.body).broker_datas}
                group = groups.get(self.identity.broker_name)
                self.member_group = dict(group.broker_addrs) if group is not None else {}
            else:
                self.member_group = decode_member_group(response.body)

    async def _scan(self) -> None:
        """``scanAvailableNameSrv``."""

        async def problem(address: str) -> str | None:
            try:
                await self._client.connect(address)
            except NamesrvError as error:
                return str(error)
            return None

        servers = self.name_servers
        found = await asyncio.gather(*(problem(address) for address in servers))
        self.unavailable = {address: text for address, text in zip(servers, found, strict=True) if text is not None}
        self._available = set(servers) - set(self.unavailable)

    def _state(self, topics: int = 0) -> "_State":
        return _State(self._client, self.identity, self.data_version, topics)

    async def _send(self, address: str, request: RemotingCommand, timeout_ms: int, state: "_State") -> RemotingCommand | None:
        """Send, record the events, and return the answer if it was success. A oneway request returns None.

        ``state`` is the agent's state when the request was built. It may have changed since, or the agent may have restarted.
        """
        self._sequence += 1
        sequence, oneway = self._sequence, bool(request.flag & ONEWAY_FLAG)
        client, identity, version, topics = state

        def report(kind: EventKind, detail: str = "", answer: RemotingCommand | None = None) -> None:
            event = BrokerEvent(kind, sequence, identity, address, request.code, oneway, version, topics, detail, answer)
            self._report(event)

        report(EventKind.INVOKED)
        try:
            if oneway:
                await client.send_oneway(address, request, timeout_ms)
                report(EventKind.DONE)
                return None
            response = await client.request(address, request, timeout_ms)
        except NamesrvError as error:
            report(EventKind.NOT_SENT if error.definite else EventKind.UNKNOWN, str(error))
            return None
        except asyncio.CancelledError:
            report(EventKind.UNKNOWN, "the broker ended while it waited")
            raise
        if response.code != ResponseCode.SUCCESS:
            report(EventKind.REFUSED, str(RefusedError(response.code, response.remark)))
            return None
        report(EventKind.DONE, answer=response)
        return response

    def _report(self, event: BrokerEvent) -> None:
        self.counts[event.code, event.kind] += 1
        if self._observe is not None:
            self._observe(event)

    def _disconnected(self, address: str) -> None:
        self.registered.discard(address)
        self._sequence += 1
        self._report(BrokerEvent(EventKind.DISCONNECTED, self._sequence, self.identity, address, 0, False, None, 0, ""))

    def _pushed(self, peer: str, command: RemotingCommand) -> None:
        fields = dict(command.ext_fields or {})
        if command.code == RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE:
            self.pushes.append(fields)
        self._sequence += 1
        detail = " ".join(f"{name}={value}" for name, value in sorted(fields.items()))
        self._report(BrokerEvent(EventKind.PUSHED, self._sequence, self.identity, peer, command.code, True, None, 0, detail))

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(_complain)

    async def _every(self, first_ms: int, period_ms: int, action: Callable[[], Awaitable[None]]) -> None:
        """Call ``action`` at a fixed rate (``scheduleAtFixedRate``). A late call runs at once; calls never overlap."""
        loop = asyncio.get_running_loop()
        due = loop.time() + first_ms / 1000
        while True:
            await asyncio.sleep(max(0.0, due - loop.time()))
            await action()
            due += period_ms / 1000

    async def _end_tasks(self) -> None:
        tasks, self._tasks = self._tasks, set()
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome


def _complain(task: "asyncio.Task[None]") -> None:
    """Report a background task that failed. A failure is a defect, so it is reported at once, not when the agent stops."""
    if not task.cancelled() and (error := task.exception()) is not None:
        context = {"message": "a broker agent's background task failed", "exception": error, "task": task}
        task.get_loop().call_exception_handler(context)

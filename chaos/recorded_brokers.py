"""The brokers of a run, and the true state of each at any time.

Each registration of a broker's topics uses a new queue number, so that a route identifies the registration that it shows. A
change is one ``register`` operation, from the first request to the first acknowledgement in any round. In addition every
single request is a ``register-copy`` or ``unregister-copy`` operation, and each oneway heartbeat is a ``heartbeat`` operation. A
``hung-up`` operation records that a node closed a connection that a silent death had left open. A ``master`` operation records
the master that the answer to a slave's registration names. A ``version`` operation records which version of the broker a node has
stored, from the answer to ``QUERY_DATA_VERSION`` (322). A ``notified`` operation records that a name server has notified the
broker of a new smallest broker id in its group (``NOTIFY_MIN_BROKER_ID_CHANGE``, 905).
"""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from replicated_namesrv.chaos.recorder import FAIL, INDETERMINATE, OK, Ended, Recorder
from replicated_namesrv.chaos.records import Member, Truth
from replicated_namesrv.chaos.sample_group import ANSWER, OF_REGISTRATION
from replicated_namesrv.client.answer_bodies import decode_data_version
from replicated_namesrv.client.broker import BrokerAgent, BrokerEvent, BrokerOptions, EventKind
from replicated_namesrv.client.broker_requests import BrokerIdentity
from replicated_namesrv.client.credentials import NO_CREDENTIALS, Credentials
from replicated_namesrv.client.remoting import RemotingCommand
from replicated_namesrv.client.topics import BrokerTopics, RegistrationExtras, TopicConfig, TopicTable
from replicated_namesrv.model import DataVersion
from replicated_namesrv.wire.codes import RequestCode

CLUSTER_NAME = "chaos"
_OUTCOMES = {EventKind.DONE: OK, EventKind.REFUSED: FAIL, EventKind.NOT_SENT: FAIL, EventKind.UNKNOWN: INDETERMINATE}
_COPIES = {RequestCode.REGISTER_BROKER: "register-copy", RequestCode.UNREGISTER_BROKER: "unregister-copy"}
HEARTBEAT, HUNG_UP, MASTER, NOTIFIED, VERSION = "heartbeat", "hung-up", "master", "notified", "version"
PAIR, DEPUTY, HEIR = "pair", "deputy", "heir"
"""Groups of two brokers: one whose brokers switch roles, and one whose slave acts as master while the master is away. HEIR is the
beginning of the name of each group in which one broker takes the place of the other."""


class Clock:
    """Wall clock in milliseconds that never returns the same value twice, so that all data versions differ."""

    def __init__(self) -> None:
        self._last = 0

    def __call__(self) -> int:
        self._last = max(self._last + 1, time.time_ns() // 1_000_000)
        return self._last


class _Announcement(NamedTuple):
    """A ``register`` or ``unregister`` operation of a broker. ``op`` is 0 after its end."""

    op: int
    version: str | None


class ChaosBroker:
    """One broker: a simulated broker, the commands for it, and its true state."""

    def __init__(
        self,
        identity: BrokerIdentity,
        topics: Sequence[str],
        name_servers: Mapping[str, str],
        options: BrokerOptions,
        recorder: Recorder,
        rng: random.Random,
        clock: Clock,
        queues: Callable[[], int],
        running: Callable[[str], bool],
        brokers: dict[str, BrokerAgent],
        credentials: Credentials = NO_CREDENTIALS,
        constant: Sequence[TopicConfig] = (),
        extras: RegistrationExtras = RegistrationExtras(),  # noqa: B008 - immutable
        read_answer: Callable[[RemotingCommand], str] | None = None,
    ) -> None:
        """``name_servers``: the address at which the broker dials each node. ``queues`` gives unused numbers. ``running``:
        whether a node's process runs. If a node's process dies, the broker's connections to it end although neither side closed
        them. ``constant``: further topics, which do not change. ``read_answer``: gives the text of an answer to a registration,
        which is recorded as an ``answer``."""
        self.process = _name(identity)
        """The broker's name in the trace. It stays the same when the broker switches roles."""
        self.topics = list(topics)
        self.life = 0
        self.state = "stopped"
        self.writable = True
        self.version: str | None = None
        self.acknowledged: str | None = None
        """The version that was last acknowledged; None if there is none."""
        self._addresses = dict(name_servers)
        self._nodes = {address: node for node, address in name_servers.items()}
        self._recorder, self._queues, self._options, self._running = recorder, queues, options, running
        self._versions: dict[DataVersion, str] = {}
        self._open: dict[str, _Announcement] = {}
        self._copies: dict[int, int] = {}
        self._questions: dict[int, int] = {}
        """The open ``master`` and ``answer`` operations: their numbers, by the sequence number of the registration."""
        self._read_answer = read_answer
        self.processes: Mapping[str, str] = {}
        """The first names of the brokers of the run, by address."""
        self._held_by: set[str] = set()
        """Nodes that acknowledged a registration of this life over a connection that the broker has not closed since."""
        self._is_cut = False
        self._follows: ChaosBroker | None = None
        # Several topics, because a registration of a single topic counts as the change of one topic, which name servers refuse
        # from a new broker.
        system = TopicTable([*(TopicConfig(name, 1, 1) for name in (identity.broker_name, "SELF_TEST_TOPIC")), *constant])
        self.agent = BrokerAgent(
            identity,
            BrokerTopics(system, TopicTable(()), extras),
            list(name_servers.values()),
            options=options,
            rng=rng,
            now_ms=clock,
            observe=self._observed,
            brokers=brokers,
            credentials=credentials,
        )

    @property
    def name(self) -> str:
        """The present ``brokerName/brokerId``."""
        return _name(self.agent.identity)

    @property
    def alive(self) -> bool:
        """Whether a real broker would have a running process in this state."""
        return self.state in ("starting", "serving", "exposed", "safe")

    @property
    def is_acknowledged(self) -> bool:
        """Whether a node acknowledged the current version."""
        return self.version is not None and self.acknowledged == self.version

    @property
    def is_announced(self) -> bool:
        """Whether the broker has sent its current version to at least one node in this life."""
        return f"register {self.name} {self.life} {self.version}" in self._open

    def follow(self, master: "ChaosBroker") -> None:
        """Become the slave of ``master`` and register its topics."""
        self._follows = master

    def use_nodes(self, nodes: Sequence[str]) -> None:
        """Replace the list of name servers."""
        self.agent.update_name_servers([self._addresses[node] for node in nodes])

    async def start(self) -> None:
        """Begin a new life with topics of a new version."""
        self.life += 1
        self._held_by.clear()
        self._say("starting")
        self.set_cut(self._is_cut)
        if self._follows is None:
            await self._change()
        await self.agent.start()

    async def start_as(self, broker_id: int) -> None:
        """Begin the first life, with another broker id than that of the first name."""
        self.agent.identity = self.agent.identity._replace(broker_id=broker_id)
        await self.start()

    async def change(self) -> None:
        """Change the topics and register them."""
        await self._change()

    async def change_later(self) -> None:
        """Change the topics. The next round of registrations registers them."""
        await self._change(at_once=False)

    async def reconnect(self) -> None:
        """Register over new connections, then close the old ones."""
        self._held_by.clear()
        await self.agent.reconnect()
        if not self._held_by:
            self._expose()

    async def replace_topic(self, old: str | None, new: str) -> None:
        """Drop one of its topics and create another, in one registration."""
        self.topics = [*(topic for topic in self.topics if topic != old), new]
        await self._change([old] if old is not None else [])

    async def _change(self, dropped: Sequence[str] = (), *, at_once: bool = True) -> None:
        number = self._queues()
        self.version = str(number)
        changed = [TopicConfig(topic, number, number) for topic in self.topics]
        await self.agent.change_topics(changed, dropped, at_once=at_once)

    def set_writable(self, writable: bool) -> None:
        """Record that mqadmin changed its write permission."""
        self.writable = writable
        self._say(self.state)

    async def switch_role(self, broker_id: int, epoch: int | None = None) -> None:
        """Become master (0) or slave of its group. ``epoch``: the controller's number of this master; None: there is no
        controller, as in 4.9."""
        self._say("starting")
        await self.agent.switch_role(broker_id, epoch)
        self._say("serving")

    async def stop(self) -> None:
        """Stop cleanly."""
        self._say("stopping")
        await self.agent.stop()
        self._abandon()
        self._say("stopped")

    async def die(self, *, silent: bool) -> None:
        """Stop without unregistering. ``silent``: the broker's connections stay open."""
        self._say("silent" if silent else "dead")
        await self.agent.kill(silent=silent)
        self._abandon()

    async def release(self) -> None:
        """Close the connections that a silent death left open."""
        await self.agent.release()

    def set_cut(self, is_cut: bool) -> None:
        """Set whether the active faults leave the broker without a link to a majority. Without such a link, even a correct
        cluster may drop it.
        """
        self._is_cut = is_cut
        if is_cut:
            self._expose()

    def stood_still(self) -> None:
        """The harness stalled, so the broker was silent and may be dropped."""
        self._expose()

    def _expose(self) -> None:
        if self.alive and self.state != "exposed":
            self._say("exposed")

    def _gave_up(self, node: str) -> None:
        """The broker closed a connection after a time-out, as real brokers do. A broker that has closed all connections may be
        dropped as lost.
        """
        if node in self._held_by and self._running(node):
            self._held_by.discard(node)
            if not self._held_by:
                self._expose()

    def _say(self, state: str) -> None:
        self.state = state
        timeout_ms = self._options.sent_timeout_ms or 120_000
        version = self._follows.version if self._follows is not None else self.version
        self._recorder.write(
            Truth(self._recorder.now_ns(), self.name, self.life, state, self.writable, version, self.topics, timeout_ms)
        )

    def _observed(self, event: BrokerEvent) -> None:
        if event.kind is EventKind.DISCONNECTED:
            self._disconnected(self._nodes[event.address])
            return
        kind = _COPIES.get(RequestCode(event.code))
        if event.oneway and event.code in (RequestCode.BROKER_HEARTBEAT, RequestCode.QUERY_DATA_VERSION):
            self._heartbeat(event)
            return
        if event.kind is EventKind.PUSHED:
            self._notified(event)
            return
        if event.code == RequestCode.QUERY_DATA_VERSION:
            self._asked_version(event)
            return
        if kind is None:
            return
        if event.kind is EventKind.INVOKED:
            self._invoked(kind, event)
            return
        node, is_done, error = self._nodes[event.address], event.kind is EventKind.DONE, event.detail or None
        self._recorder.complete(self._copies.pop(event.sequence), Ended(_OUTCOMES[event.kind], node, error=error))
        if (question := self._questions.pop(event.sequence, None)) is not None:
            self._recorder.complete(question, Ended(_OUTCOMES[event.kind], node, self._answered(event), error=error))
        if is_done:
            self._held_by.add(self._nodes[event.address])
            self._acknowledged(kind, event)
        elif event.kind is EventKind.UNKNOWN:
            self._gave_up(self._nodes[event.address])

    def _answered(self, event: BrokerEvent) -> str | None:
        """The content of the answer to a registration. For a slave this is its master: the first name or, if no broker of the run
        has its address, the address. Masters with a slave use one address for requests and replication (HA). If the answer has
        another HA address, it is added."""
        if event.answer is None:
            return None
        if self._read_answer is not None:
            return self._read_answer(event.answer)
        fields = event.answer.ext_fields or {}
        address, ha_address = fields.get("masterAddr"), fields.get("haServerAddr")
        name = None if address is None else self.processes.get(address, address)
        return name if ha_address == address else f"{name} with the HA address {ha_address}"

    def _asked_version(self, event: BrokerEvent) -> None:
        node = self._nodes[event.address]
        if event.kind is EventKind.INVOKED:
            self._version_of(event.data_version)
            self._copies[event.sequence] = self._recorder.invoke(self.process, VERSION, _name(event.identity), node=node)
            return
        told = None if event.answer is None else self._stored_version(event.answer, event.data_version)
        ended = Ended(_OUTCOMES[event.kind], node, told, error=event.detail or None)
        self._recorder.complete(self._copies.pop(event.sequence), ended)
        if event.kind is EventKind.UNKNOWN:
            self._gave_up(node)

    def _stored_version(self, answer: RemotingCommand, asked: DataVersion | None) -> str | None:
        """The version of the broker that a node has stored. None: the node does not know the broker. An answer that contradicts
        itself gives a text that is no version."""
        is_changed = (answer.ext_fields or {}).get("changed") == "true"
        stored = decode_data_version(answer.body) if answer.body else None
        if stored is None:
            return None if is_changed else "unchanged, without a version"
        version = self._versions.get(stored, str(stored))
        return version if is_changed == (stored != asked) else f"{version}, {'changed' if is_changed else 'unchanged'}"

    def _notified(self, event: BrokerEvent) -> None:
        if event.code != RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE:
            return
        fields = dict(field.partition("=")[::2] for field in event.detail.split())
        names = {key: self.processes.get(fields[key], fields[key]) for key in fields if key.endswith("BrokerAddr")}
        least = [Member(names.get("minBrokerAddr", ""), fields.get("minBrokerId", ""))]
        number = self._recorder.invoke(self.process, NOTIFIED, event.identity.broker_name)
        self._recorder.complete(number, Ended(OK, value=names.get("offlineBrokerAddr"), members=least))

    def _heartbeat(self, event: BrokerEvent) -> None:
        if event.kind is EventKind.INVOKED:
            name, node = _name(event.identity), self._nodes[event.address]
            self._copies[event.sequence] = self._recorder.invoke(self.process, HEARTBEAT, name, node=node)
            return
        number = self._copies.pop(event.sequence)
        self._recorder.complete(number, Ended(_OUTCOMES[event.kind], self._nodes[event.address], error=event.detail or None))
        if event.kind is EventKind.UNKNOWN:
            self._gave_up(self._nodes[event.address])

    def _disconnected(self, node: str) -> None:
        if self.state == "silent":
            self._recorder.complete(self._recorder.invoke(self.process, HUNG_UP, self.name, node=node), Ended(OK, node))

    def _version_of(self, version: DataVersion | None) -> str | None:
        if version is None or (self._follows is None and self.version is None):
            return None
        if self._follows is not None:
            return self._follows._versions.get(version)
        return self._versions.setdefault(version, str(self.version))

    def _invoked(self, kind: str, event: BrokerEvent) -> None:
        name, version = _name(event.identity), self._version_of(event.data_version)
        node = self._nodes[event.address]
        announced = kind.removesuffix("-copy")
        self._announce(announced, name, version)
        self._copies[event.sequence] = self._recorder.invoke(
            self.process, kind, name, value=version, node=node, topics=list(self.topics)
        )
        if kind == "register-copy" and self._read_answer is not None:
            self._questions[event.sequence] = self._recorder.invoke(self.process, ANSWER, OF_REGISTRATION, node=node)
        elif kind == "register-copy" and event.identity.broker_id != 0:
            self._questions[event.sequence] = self._recorder.invoke(self.process, MASTER, name, node=node)

    def _announce(self, kind: str, name: str, version: str | None) -> None:
        """Begin an operation if this request is the first of a new version."""
        said = f"{kind} {name} {self.life} {version}"
        if said in self._open:
            return
        if kind == "register":  # the new registration replaces an earlier version that is not acknowledged
            self._abandon()
        op = self._recorder.invoke(name, kind, name, value=version, topics=list(self.topics))
        self._open[said] = _Announcement(op, version)

    def _acknowledged(self, kind: str, event: BrokerEvent) -> None:
        name, version = _name(event.identity), self._version_of(event.data_version)
        said = f"{kind.removesuffix('-copy')} {name} {self.life} {version}"
        announcement = self._open.get(said)
        if announcement is not None and announcement.op > 0:
            self._recorder.complete(announcement.op, Ended(OK, self._nodes[event.address]))
            self._open[said] = announcement._replace(op=0)
        if kind == "register-copy":
            self.acknowledged = version
        if kind == "register-copy" and self.state == "starting":
            self._say("serving")
        elif kind == "register-copy" and self.state == "exposed" and not self._is_cut:
            self._say("safe")

    def _abandon(self) -> None:
        """End the open operations with unknown outcome."""
        for said, announcement in self._open.items():
            if announcement.op > 0:
                self._recorder.complete(announcement.op, Ended(INDETERMINATE, error="never acknowledged"))
                self._open[said] = announcement._replace(op=0)


def _name(identity: BrokerIdentity) -> str:
    return f"{identity.broker_name}/{identity.broker_id}"

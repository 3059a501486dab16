"""ReplicatedNode: the NameService of CP mode.

Whatever changes the state goes through the log; Raft forwards it to the leader from any node. Reads wait for a read index: one
confirmation serves all that came before it was asked for. Registrations that change nothing and other signs of life
go to the leader as renewals (``signs.py``) and write nothing.

A node without a confirmable majority lets requests wait for ``fenceAfterMs`` and then fences itself (``reads.py``): its owner
stops listening and closes every connection, which is what moves RocketMQ's clients and brokers to another name server at once.
It returns by itself when a majority confirms again.
"""

import asyncio
import contextlib
import logging
import time
from asyncio import Future
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from random import Random, SystemRandom
from typing import Any, Protocol

from replicated_namesrv.config_writer import ConfigWriter, describe_written
from replicated_namesrv.errors import (
    LimitError,
    NamesrvError,
    OutcomeUnknownError,
    PartlyDoneError,
    SettingError,
    StorageError,
    UnavailableError,
)
from replicated_namesrv.model import DataVersion
from replicated_namesrv.raft.config import RaftConfig
from replicated_namesrv.raft.errors import RaftError
from replicated_namesrv.raft.interfaces import Committed, Observer, Outcome, ReadOutcome, ReadReady, Rejected
from replicated_namesrv.raft.node import RaftNode
from replicated_namesrv.raft.service import RaftService, boot_clock
from replicated_namesrv.raft.transport import TransportSettings
from replicated_namesrv.replication.machine import Applied, RouteStateMachine, encode_plain
from replicated_namesrv.replication.marks import Key
from replicated_namesrv.replication.reads import NO_MAJORITY, Reads
from replicated_namesrv.replication.registrations import Budget, Registrations
from replicated_namesrv.replication.restore import Leftovers, RestorableMachine, restore
from replicated_namesrv.replication.signs import TICK_S, SignsOfLife
from replicated_namesrv.routes.bounds import with_own_mappings
from replicated_namesrv.routes.commands import Command, RegisterBroker, UnregisterBrokers, UpdateSettings
from replicated_namesrv.routes.results import BrokerRemoved, Effect, Result
from replicated_namesrv.routes.state import DIGEST_VERSION, RouteInfoManager, RouteSettings
from replicated_namesrv.service import CloseReason, Connection, DataVersionAnswer, ReadLevel, quotas_of, within
from replicated_namesrv.settings import ROWS, Settings

log = logging.getLogger(__name__)

NO_PERMISSION = 16
APPLY_BYTES_MAX = 256 << 10
"""Applied in one go: some 30,000 topics' worth of registrations, 20 ms."""
BUDGET_MARGIN_MS = 500
"""What a request may take beyond fenceAfterMs before its connection is closed."""
HEAVY_TOPICS = 20_000
"""A command that concerns more topics (some 4 ms) is proposed when the one before it has been applied: many of them in one entry
would hold all nodes for longer than an election takes."""
HAND_OVER_TIMEOUT_S = 2.0
"""What the stop of a leader waits for its successor; Raft itself gives up earlier."""
_REPLICATED = {row.attribute: row for row in ROWS.values() if row.replicated}


class Raft(Protocol):
    """What is needed of ``RaftService``."""

    node: RaftNode

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def propose(self, command: bytes, timeout_ms: int | None = None) -> "Future[Outcome]": ...

    def read_index(self) -> "Future[ReadOutcome]": ...

    def lease_valid(self) -> bool: ...

    def transfer_leadership(self, peer: str | None) -> Future[bool]: ...

    def tell(self, peer: str, data: bytes) -> None: ...

    def status(self) -> dict[str, object]: ...


RaftFactory = Callable[[RouteStateMachine, RaftConfig, Observer], Raft]


class ReplicatedNode(Observer):
    """One node of the group."""

    mode = "cp"

    def __init__(
        self,
        settings: Settings,
        transport: TransportSettings,
        raft: RaftFactory | None = None,
        monotonic_s: Callable[[], float] | None = None,
        wall_s: Callable[[], float] = time.time,
        rng: Random | None = None,
    ) -> None:
        """``raft`` (None: real sockets and files), clocks and ``rng`` are given by the simulator. ``monotonic_s`` has to go on
        while the machine sleeps."""
        clock = monotonic_s or boot_clock()
        self._now_ms: Callable[[], float] = lambda: clock() * 1000
        self._settings = settings
        self._machine = RouteStateMachine()
        self._leftovers: Leftovers | None = None
        self.state: RouteInfoManager = self._machine.state
        self.quotas = quotas_of(settings, self.state)
        budget_ms = settings.fence_after_ms + BUDGET_MARGIN_MS
        config = RaftConfig(
            digest_version=DIGEST_VERSION,
            proposal_timeout_ms=budget_ms,
            read_timeout_ms=budget_ms,
            lease_reads=True,
            apply_bytes_max=APPLY_BYTES_MAX,
        )
        if raft is None:
            machine = RestorableMachine(self._machine)
            self._leftovers = Leftovers(machine, self._now_ms)
            self._raft: Raft = RaftService(transport, settings.data_path / "raft", machine, config, self)
        else:
            self._raft = raft(self._machine, config, self)
        self._members = sorted(transport.addresses)
        self.signs = SignsOfLife(
            settings.node_id,
            self._members,
            self._machine,
            self,
            settings.connection_loss_grace_ms,
            self._now_ms,
            lambda: int(wall_s() * 1000),
            rng or SystemRandom(),
        )
        self.registrations = Registrations(
            self._machine,
            self.signs,
            self._propose,
            self.read_index,
            lambda: self._stopping or self.fenced,
            budget_ms / 1000,
            self._now_ms,
        )
        self._machine.on_registered = self._registered
        self._machine.on_lead = self._led
        self._machine.on_settings = self._settings_applied
        self.reads = Reads(
            self,
            ReadLevel(settings.read_consistency),
            settings.fence_after_ms,
            settings.no_quorum_policy == "serve-stale",
            self._now_ms,
            self._change_serving,
        )
        self.barrier = self.reads.barrier
        self._perform: Callable[[tuple[Effect, ...]], None] = lambda effects: None
        self._on_serving: Callable[[bool], None] = lambda serving: None
        self._on_failure: Callable[[str], None] = lambda reason: None
        self._on_leader: Callable[[str | None, int], None] = lambda leader, term: None
        self.history = self._machine.history
        self.history.bytes_max = settings.watch_history_bytes
        self.history_id = ""
        self._is_live = False
        """Whether the log known at the start has been applied: what follows happens now."""
        self._config = ConfigWriter(settings, lambda values: Result(changed=bool(settings.update(values))))
        self._ticker: asyncio.TimerHandle | None = None
        self._proposed: dict[Future[Outcome], None] = {}
        self._budget_ms = budget_ms
        self._heavy = asyncio.Lock()
        """Held by the heavy command under way."""
        self._stopping = False

    # Group, as SignsOfLife needs it

    def tell(self, peer: str, data: bytes) -> None:
        """See ``RaftService``."""
        self._raft.tell(peer, data)

    def read_index(self) -> "Future[ReadOutcome]":
        """See ``RaftService``."""
        question = self._raft.read_index()
        question.add_done_callback(partial(self._heard, self._now_ms(), self.signs.now_ms))
        return question

    def _heard(self, asked_ms: float, asked_running_ms: float, answer: "Future[ReadOutcome]") -> None:
        if not answer.cancelled() and isinstance(answer.result(), ReadReady):
            self.reads.confirmed(asked_ms)
            self.signs.confirmed(asked_running_ms)

    def lease_valid(self) -> bool:
        """See ``RaftService``."""
        return self._raft.lease_valid()

    @property
    def fenced(self) -> bool:
        """Whether no majority confirms this node."""
        return self.reads.fenced

    @property
    def answers_stale(self) -> bool:
        """Whether it answers all the same, from what it knows."""
        return self.reads.answers_stale

    @property
    def unsynced_ms(self) -> float:
        """Age of the oldest write to the log that is not on the disk."""
        raft = getattr(self._raft, "node", None)
        return 0.0 if raft is None else raft.unsynced_seconds * 1000

    @property
    def disk_problem(self) -> str | None:
        """What is wrong with the disk of the log, if a sync does not end."""
        raft = getattr(self._raft, "node", None)
        return None if raft is None else raft.disk_problem

    @property
    def staleness_ms(self) -> int:
        """Age of the state."""
        return self.reads.staleness_ms

    def decide(self, data: bytes) -> "Future[Applied | None]":
        """See ``leading.Group``."""
        return self.registrations.keep(self._decide(data))

    async def _decide(self, data: bytes) -> Applied | None:
        outcome = await self._raft.propose(data)
        return outcome.result if isinstance(outcome, Committed) and isinstance(outcome.result, Applied) else None

    @property
    def initial_settings(self) -> RouteSettings:
        """This node's own."""
        values: dict[str, Any] = {attribute: getattr(self._settings, attribute) for attribute in _REPLICATED}
        return RouteSettings(**values)

    @property
    def led_term(self) -> int | None:
        """The present term if this node leads it."""
        node = self._raft.node
        return node.term if node.core.is_leader else None

    @property
    def term(self) -> int:
        """The present term."""
        return self._raft.node.term

    @property
    def leader(self) -> str | None:
        """The leader of the present term, if known."""
        return self._raft.node.leader_id

    # Observer

    def role_changed(self, role: str, term: int) -> None:
        """See ``raft.interfaces.Observer``."""
        if role == "leader":
            asyncio.get_running_loop().call_soon(self._lead, term)

    def leader_changed(self, leader: str | None, term: int) -> None:
        """See ``raft.interfaces.Observer``."""
        log.info("leader", extra={"leader": leader, "term": term})
        self._on_leader(leader, term)
        if leader is not None:
            asyncio.get_running_loop().call_soon(self.signs.report_soon)

    def applied(self, index: int, term: int, payload: bytes) -> None:
        """See ``raft.interfaces.Observer``: effects, but never those of a replay."""
        effects, self._machine.effects = self._machine.effects, []
        if not effects:
            return
        expired, self._machine.expired = self._machine.expired, {}
        for effect in effects:
            if isinstance(effect, BrokerRemoved):
                is_expired = expired.get((effect.cluster_name, effect.broker_addr)) == effect.epoch
                self.registrations.removed(effect, is_expired)
        if self._is_live:
            pushes = self.led_term == term
            self._perform(tuple(e for e in effects if pushes or isinstance(e, BrokerRemoved)))

    def restored(self, index: int) -> None:
        """See ``raft.interfaces.Observer``: what is no longer registered is forgotten."""
        for entry in self.signs.attachments.everything(self.signs.now_ms):
            registration = self.state.registration(*entry.key)
            if entry.key[0] and (registration is None or registration.epoch > entry.epoch):
                self.signs.attachments.remove(entry.key, entry.epoch)

    def received(self, peer: str, data: bytes) -> None:
        """See ``raft.interfaces.Observer``."""
        self.signs.received(peer, data)

    def failed(self, error: BaseException) -> None:
        """See ``raft.interfaces.Observer``."""
        log.error("this node stops: %s", error)
        self._on_failure(str(error))

    # Life

    def on_effects(self, perform: Callable[[tuple[Effect, ...]], None]) -> None:
        """See NameService."""
        self._perform = perform

    def on_serving(self, change: Callable[[bool], None]) -> None:
        """``change(False)``: serve nobody (fence); ``change(True)``: serve again."""
        self._on_serving = change

    def on_failure(self, stop: Callable[[str], None]) -> None:
        """``stop(reason)``: consensus has stopped for good, and with it this node has to."""
        self._on_failure = stop

    def on_leader(self, tell: Callable[[str | None, int], None]) -> None:
        """``tell(leader, term)`` at each change of the leader this node believes in, None: it knows none."""
        self._on_leader = tell

    async def start(self) -> None:
        """Open the log and wait until this node has caught up with a majority. Raises StorageError."""
        try:
            await self._raft.start()
        except (RaftError, OSError, ValueError) as error:
            raise StorageError(f"cannot take part in the cluster: {error}") from error
        self._tick()
        try:
            while True:
                asked_ms = self._now_ms()
                outcome = await self._raft.read_index()
                if isinstance(outcome, ReadReady):
                    break
                if self._raft.node.failed is not None:
                    raise StorageError(f"cannot take part in the cluster: {self._raft.node.failed}")
                log.info("not caught up with a majority yet: %s", outcome.reason)
        except (Exception, asyncio.CancelledError):  # not GeneratorExit, which allows no await
            await self.stop()
            raise
        self._is_live = True
        self.reads.caught_up(asked_ms)

    async def stop(self) -> None:
        """Leave the group; a leader hands over first, so that nobody waits for an election. Idempotent."""
        if not self._stopping:
            self._stopping = True
            await self._hand_over()
        if self._ticker is not None:
            self._ticker.cancel()
        self.signs.fail("this node stops")
        self.registrations.stop()
        await self._config.drain()
        await self._raft.stop()

    async def _hand_over(self) -> None:
        node = getattr(self._raft, "node", None)
        if node is not None and node.core.is_leader and len(self._members) > 1:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HAND_OVER_TIMEOUT_S):
                    await self._raft.transfer_leadership(None)

    def _tick(self) -> None:
        self._ticker = asyncio.get_running_loop().call_later(TICK_S, self._tick)
        self.signs.tick()
        self.registrations.tick()
        self.reads.tick()
        abandon = None if self._leftovers is None else self._leftovers.tick(self.led_term is not None)
        if abandon is not None:
            self.decide(abandon)

    def _change_serving(self, serving: bool) -> None:
        """The fence came (False) or went."""
        if not serving:
            self.signs.fail(NO_MAJORITY)
            for proposed in list(self._proposed):
                if not proposed.done():
                    proposed.set_exception(OutcomeUnknownError(NO_MAJORITY))
        if not self._stopping and not self.reads.serves_stale:
            self._on_serving(serving)

    def _lead(self, term: int) -> None:
        if self.led_term != term:
            return
        self.signs.lead(term)

    def _led(self, term: int, before: int) -> None:
        asyncio.get_running_loop().call_soon(self.signs.led, term, before)

    # Writes

    async def _propose(self, data: bytes, timeout_ms: int | None = None, topics: int = 0) -> Applied:
        """Through the log. Raises UnavailableError (surely not applied), OutcomeUnknownError, at the latest when the fence
        comes. ``timeout_ms`` None: that of all requests. ``topics``: so many the command concerns."""
        if topics <= HEAVY_TOPICS:
            return await self._log(data, timeout_ms)
        async with Budget((timeout_ms or self._budget_ms) / 1000):
            await self._heavy.acquire()
        try:
            return await self._log(data, timeout_ms)
        finally:
            self._heavy.release()

    async def _log(self, data: bytes, timeout_ms: int | None) -> Applied:
        if self.fenced:
            raise UnavailableError(NO_MAJORITY)
        proposed = self._raft.propose(data, timeout_ms)
        self._proposed[proposed] = None
        try:
            outcome = await proposed
        finally:
            self._proposed.pop(proposed, None)
        if isinstance(outcome, Committed):
            assert isinstance(outcome.result, Applied), outcome.result
            return outcome.result
        if isinstance(outcome, Rejected):
            raise UnavailableError(outcome.reason)
        raise OutcomeUnknownError(outcome.reason)

    def propose(self, command: Command, connection: Connection | None) -> Result | Future[Result]:
        """See NameService."""
        if isinstance(command, UnregisterBrokers):
            return within(self.quotas, command, lambda: self.registrations.unregister(command, connection))
        refused = self.state.refusal(command)
        if refused is not None:
            return refused
        return within(self.quotas, command, lambda: self.registrations.keep(self._plain(command)))

    async def _plain(self, command: Command) -> Result:
        topics = self.state.topics_concerned(command)
        return (await self._propose(encode_plain(command, self.signs.leader_time_ms), None, topics)).result

    # Brokers

    def connection_opened(self, connection: Connection) -> None:
        """See NameService."""
        self.registrations.opened(connection)

    def connection_lost(self, connection: Connection, reason: CloseReason) -> None:
        """See NameService."""
        self.registrations.lost(connection, reason)

    def register(self, registration: RegisterBroker, connection: Connection) -> Result | Future[Result]:
        """See NameService: a renewal if it changes nothing, else through the log."""
        registration = with_own_mappings(registration)
        refused = self.state.refusal(registration)
        try:
            if refused is None:
                return within(self.quotas, registration, lambda: self.registrations.register(registration, connection))
        except LimitError:
            self._refused(registration, connection)
            raise
        self._refused(registration, connection)
        return refused

    def _refused(self, registration: RegisterBroker, connection: Connection) -> None:
        """What it announces is not taken for lack of room, but the broker lives, and stays registered as it was."""
        if self.state.is_registered(registration):
            self.heartbeat(registration.cluster_name, registration.broker_addr, connection)

    def renew_unchanged(
        self, cluster_name: str, broker_addr: str, connection: Connection
    ) -> Result | Future[Result | None] | None:
        """See NameService."""
        return self.registrations.renew_unchanged(cluster_name, broker_addr, connection)

    def heartbeat(self, cluster_name: str, broker_addr: str, connection: Connection) -> None:
        """See NameService."""
        self.registrations.heartbeat(cluster_name, broker_addr, connection)

    def query_data_version(
        self, cluster_name: str, broker_addr: str, data_version: DataVersion | None, connection: Connection
    ) -> DataVersionAnswer | Future[DataVersionAnswer]:
        """See NameService: a linearizable read that renews; while this node serves stale answers, one of those."""
        key = (cluster_name, broker_addr)
        if self.fenced:
            if not self.reads.serves_stale:
                raise UnavailableError(NO_MAJORITY)
            registration = self.state.registration(*key)
            stored = None if registration is None else registration.data_version
            return DataVersionAnswer(stored is None or data_version != stored, stored)
        return self.registrations.keep(self.registrations.query_data_version(key, data_version, connection))

    def _registered(self, key: Key, epoch: int | None, content: str) -> None:
        """Told in a later turn, in replay only to a leader: nodes may wait for it already, but what is replayed is no sign of
        life."""
        if self._is_live or self.signs.leading is not None:
            asyncio.get_running_loop().call_soon(self.signs.registered, key, epoch if self._is_live else None, content)

    # Configuration

    def update_config(self, values: Mapping[str, str]) -> Result | Future[Result]:
        """Shared keys go through the log, for all nodes; the others here, into the file. Fails with PartlyDoneError
        if one of the two was done and the other was not, or may not have been."""
        if not self._settings.black_list.isdisjoint(values):
            return Result(code=NO_PERMISSION, remark="Can not update config in black list.")
        self.quotas.check_settings(values)
        return self.registrations.keep(self._update_config(dict(values)))

    async def _update_config(self, values: dict[str, str]) -> Result:
        """Local keys first: if the disk refuses them, nothing was done. Once they are written, the outcome of the shared ones
        decides between done and partly done."""
        shared = {key: text for key, text in values.items() if (row := ROWS.get(key)) is not None and row.replicated}
        local = {key: text for key, text in values.items() if key not in shared}
        if not values:
            return Result()
        command = UpdateSettings({ROWS[key].attribute: bool(ROWS[key].parse(text)) for key, text in shared.items()})
        if not local:
            return await self._plain(command)
        if not shared:
            return await self._config.submit(local)
        await self._confirm_majority()
        changed = (await self._config.submit(local)).changed
        try:
            return Result(changed=(await self._plain(command)).changed or changed)
        except NamesrvError as error:
            written = describe_written(self._settings, local)
            if not written:
                raise
            shared_now = "not changed" if error.definite else "changed or not, which is not known"
            raise PartlyDoneError(f"{written}; {', '.join(shared)} {shared_now}: {error}; repeat the request") from error

    async def _confirm_majority(self) -> None:
        """Raises UnavailableError: no majority confirms this node, so that a proposal would hardly be taken."""
        if self.fenced:
            raise UnavailableError(NO_MAJORITY)
        await self.registrations.confirm()

    def _settings_applied(self) -> None:
        """Show by code 319 what is in force."""
        flags = self.state.settings
        self._settings.update({row.name: row.show(getattr(flags, attribute)) for attribute, row in _REPLICATED.items()})

    def config_text(self) -> str:
        """See NameService."""
        return self._settings.text()

    # What the admin side asks for

    def restore(self, snapshot: AsyncIterator[bytes]) -> Future[Result]:
        """Put the snapshot in a backup in the place of a fresh cluster's state; a result with a code other than 0: refused."""
        return asyncio.ensure_future(restore(self._propose, snapshot))

    def transfer_leadership(self, to: str | None) -> Future[None]:
        """Hand over to ``to``, or to the node that is furthest. Raises SettingError; fails with UnavailableError."""
        if self.led_term is None:
            known = f"{self.leader} does" if self.leader else "nobody is known to"
            raise SettingError(f"{self._settings.node_id} does not lead, {known}; ask the leader")
        others = [member for member in self._members if member != self._settings.node_id]
        if to is not None and to not in others:
            raise SettingError(
                f"{to} is no other node of this cluster; give one of {', '.join(others) or 'none: it has one node'}"
            )
        return asyncio.ensure_future(self._transfer_leadership(to))

    async def _transfer_leadership(self, to: str | None) -> None:
        if not await self._raft.transfer_leadership(to):
            raise UnavailableError(f"the hand-over to {to or 'another node'} was given up: it does not follow closely enough")

    @property
    def expired_count(self) -> int:
        """Brokers this node, as leader, dropped because nobody heard them."""
        return self.signs.expired_count

    @property
    def lost_count(self) -> int:
        """Brokers this node, as leader, dropped because every node that had them lost them."""
        return self.signs.lost_count

    def heartbeat_age_ms(self, cluster_name: str, broker_addr: str) -> float | None:
        """Milliseconds since the newest sign of life that this node knows of."""
        return self.signs.attachments.age_ms((cluster_name, broker_addr), self.signs.now_ms)

    def replication_status(self) -> dict[str, object] | None:
        """JSON-able: how this node stands in its group."""
        raft = getattr(self._raft, "node", None)
        if raft is None:
            return None
        count = len(self._members)
        return {
            "members": self._members,
            "role": raft.role,
            "leader": raft.leader_id,
            "term": raft.term,
            "commitIndex": raft.commit_index,
            "appliedIndex": raft.applied_index,
            "lastIndex": raft.last_index,
            "quorum": count // 2 + 1,
            "mayFail": (count - 1) // 2,
            "fenced": self.fenced,
            "noQuorumPolicy": self._settings.no_quorum_policy,
            "confirmedMsAgo": self.reads.staleness_ms if self._is_live else None,
            "servesStale": self.reads.answers_stale,
            "digest": self._machine.digest().hex(),
            "raft": self._raft.status(),
        }

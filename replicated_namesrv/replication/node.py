"""ReplicatedNode: the NameService of CP mode.

Whatever changes the state goes through the log; Raft forwards it to the leader from any node. Reads wait for a read index: one
confirmation serves all that came before it was asked for. Registrations that change nothing and other signs of life
go to the leader as renewals (``signs.py``) and write nothing.

A node without a confirmable majority lets requests wait for ``fenceAfterMs`` and then fences itself: its owner stops listening
and closes every connection, which is what moves RocketMQ's clients and brokers to another name server at once. It returns
by itself when a majority confirms again.
"""

import asyncio
import dataclasses
import logging
import time
from asyncio import Future
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar

from replicated_namesrv.errors import NamesrvError, OutcomeUnknownError, StaleReadError, StorageError, UnavailableError
from replicated_namesrv.files import write_atomically
from replicated_namesrv.model import DataVersion
from replicated_namesrv.raft.config import RaftConfig
from replicated_namesrv.raft.interfaces import Committed, Observer, RaftError, ReadOutcome, ReadReady, Rejected
from replicated_namesrv.raft.service import RaftService
from replicated_namesrv.raft.transport import TransportSettings
from replicated_namesrv.replication.leases import Expiry
from replicated_namesrv.replication.machine import (
    EXPIRE,
    INITIAL_SETTINGS,
    NO_REGISTRATION,
    PLAIN,
    REGISTER,
    UNREGISTER,
    Applied,
    Key,
    RouteStateMachine,
    encode_envelope,
    settings_command,
)
from replicated_namesrv.replication.messages import REMOVING
from replicated_namesrv.replication.signs import ACCEPTED, TICK_S, SignsOfLife
from replicated_namesrv.routes.commands import BrokerRemoval, Command, RegisterBroker, UnregisterBrokers, UpdateSettings
from replicated_namesrv.routes.results import BrokerRemoved, Effect, Result
from replicated_namesrv.routes.state import RouteInfoManager, RouteSettings
from replicated_namesrv.service import CloseReason, Connection, DataVersionAnswer, Freshness, ReadLevel
from replicated_namesrv.settings import ROWS, Settings

log = logging.getLogger(__name__)
T = TypeVar("T")

NO_PERMISSION = 16
REMOVING_PAUSE_S = 0.02
BUDGET_MARGIN_MS = 500
"""What a request may take beyond fenceAfterMs before its connection is closed."""
_REPLICATED = {row.attribute: row for row in ROWS.values() if row.replicated}


class ReplicatedNode(Observer):
    """One node of the group."""

    mode = "cp"

    def __init__(self, settings: Settings, transport: TransportSettings) -> None:
        self._settings = settings
        self._machine = RouteStateMachine()
        self.state: RouteInfoManager = self._machine.state
        budget_ms = settings.fence_after_ms + BUDGET_MARGIN_MS
        self._budget_s = budget_ms / 1000
        config = RaftConfig(proposal_timeout_ms=budget_ms, read_timeout_ms=budget_ms, lease_reads=True)
        self._raft = RaftService(transport, settings.data_path / "raft", self._machine, config, self)
        self._members = sorted(transport.addresses)
        self.signs = SignsOfLife(
            settings.node_id,
            self._members,
            self._machine,
            self,
            self._expire,
            settings.connection_loss_grace_ms,
            lambda: time.monotonic() * 1000,
        )
        self._machine.on_registered = self._registered
        self._machine.on_settings = self._settings_applied
        self._default_level = ReadLevel(settings.read_consistency)
        self._perform: Callable[[tuple[Effect, ...]], None] = lambda effects: None
        self._on_serving: Callable[[bool], None] = lambda serving: None
        self._on_failure: Callable[[str], None] = lambda reason: None
        self._on_leader: Callable[[str | None, int], None] = lambda leader, term: None
        self.history = self._machine.history
        self.history.bytes_max = settings.watch_history_bytes
        self.history_id = ""
        self._shared: Future[Freshness] | None = None
        self._waiting: set[Future[Freshness]] = set()
        self._pending: dict[tuple[int, Key], Future[Any]] = {}
        """Registrations under way, by connection."""
        self._ended: dict[int, bool] = {}
        """Connections that ended while registrations of theirs were under way: whether that was a loss."""
        self._late: set[int] = set()
        """Connections over which a late copy came."""
        self._tasks: set[Future[Any]] = set()
        self._is_live = False
        """Whether the log known at the start has been applied: what follows happens now."""
        self.fenced = False
        self._confirmed_ms = 0.0
        self._probe_asked_ms: float | None = None
        self._ticker: asyncio.TimerHandle | None = None
        self._stopping = False

    # Group, as SignsOfLife needs it

    def tell(self, peer: str, data: bytes) -> None:
        """See ``RaftService``."""
        self._raft.tell(peer, data)

    def read_index(self) -> "Future[ReadOutcome]":
        """See ``RaftService``."""
        return self._raft.read_index()

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
        for effect in effects:
            if isinstance(effect, BrokerRemoved):
                self.signs.removed((effect.cluster_name, effect.broker_addr), effect.epoch)
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
            while not isinstance(outcome := await self._raft.read_index(), ReadReady):
                if self._raft.node.failed is not None:
                    raise StorageError(f"cannot take part in the cluster: {self._raft.node.failed}")
                log.info("not caught up with a majority yet: %s", outcome.reason)
        except BaseException:
            await self.stop()
            raise
        self._is_live = True
        self._confirmed_ms = self.signs.now_ms

    async def stop(self) -> None:
        """Leave the group. Idempotent."""
        self._stopping = True
        if self._ticker is not None:
            self._ticker.cancel()
        self.signs.fail_renewals("this node stops")
        for task in list(self._tasks):
            task.cancel()
        await self._raft.stop()

    def _tick(self) -> None:
        self._ticker = asyncio.get_running_loop().call_later(TICK_S, self._tick)
        now = self.signs.now_ms
        self.signs.tick()
        if self._probe_asked_ms is None:
            self._probe_asked_ms = now
            self._raft.read_index().add_done_callback(self._probed)
        if self._is_live and not self.fenced and now - self._confirmed_ms > self._settings.fence_after_ms:
            self._fence()

    def _probed(self, outcome: "Future[ReadOutcome]") -> None:
        asked, self._probe_asked_ms = self._probe_asked_ms, None
        if asked is not None and not outcome.cancelled() and isinstance(outcome.result(), ReadReady):
            self._confirmed_ms = max(self._confirmed_ms, asked)
            if self.fenced and not self._stopping:
                self.fenced = False
                log.warning("a majority confirms again: serving")
                if self._settings.no_quorum_policy == "fence":
                    self._on_serving(True)

    def _fence(self) -> None:
        self.fenced = True
        policy = self._settings.no_quorum_policy
        log.error("no majority has confirmed this node for %d ms: %s", self._settings.fence_after_ms, policy)
        reason = "no majority confirms this node"
        self.signs.fail_renewals(reason)
        waiting, self._waiting, self._shared = self._waiting, set(), None
        for future in waiting:
            if not future.done():
                if policy == "fence":
                    future.set_exception(UnavailableError(reason))
                else:
                    future.set_result(self._freshness(ReadLevel.STALE))
        if policy == "fence":
            self._on_serving(False)

    def _lead(self, term: int) -> None:
        if self.led_term != term:
            return
        self.signs.lead(term)
        if not self._machine.is_initialised:
            values: dict[str, Any] = {attribute: getattr(self._settings, attribute) for attribute in _REPLICATED}
            self._keep(self._propose(INITIAL_SETTINGS, settings_command(RouteSettings(**values))))

    # Reads

    def barrier(self, level: ReadLevel | None, max_staleness_ms: int | None) -> Freshness | Future[Freshness]:
        """See NameService. Raises UnavailableError, StaleReadError."""
        level = level or self._default_level
        if level is ReadLevel.LEASE and self._raft.lease_valid():
            return self._freshness(ReadLevel.LEASE)
        serves_stale = self.fenced and self._settings.no_quorum_policy == "serve-stale"
        if level is ReadLevel.STALE or serves_stale:
            freshness = self._freshness(ReadLevel.STALE)
            if max_staleness_ms is not None and freshness.staleness_ms > max_staleness_ms:
                raise StaleReadError(f"the state here is {freshness.staleness_ms} ms old, maxStalenessMs is {max_staleness_ms}")
            return freshness
        if self.fenced:
            raise UnavailableError("no majority confirms this node")
        if self._shared is None:
            loop = asyncio.get_running_loop()
            self._shared = loop.create_future()
            self._waiting.add(self._shared)
            loop.call_soon(self._ask)
        return self._shared

    def _ask(self) -> None:
        """Ask for one index on behalf of all that came so far; whoever comes later waits for the next."""
        shared, self._shared = self._shared, None
        if shared is None or shared.done():
            return
        asked_ms = self.signs.now_ms

        def answered(outcome: "Future[ReadOutcome]") -> None:
            self._waiting.discard(shared)
            if shared.done() or outcome.cancelled():
                return
            found = outcome.result()
            if isinstance(found, ReadReady):
                self._confirmed_ms = max(self._confirmed_ms, asked_ms)
                shared.set_result(Freshness(ReadLevel.LINEARIZABLE, found.term, self.leader or "", 0))
            else:
                shared.set_exception(UnavailableError(found.reason))

        self._raft.read_index().add_done_callback(answered)

    def _freshness(self, level: ReadLevel) -> Freshness:
        age_ms = 0 if level is not ReadLevel.STALE else int(self.signs.now_ms - self._confirmed_ms)
        return Freshness(level, self.term, self.leader or "", age_ms)

    # Writes

    async def _propose(self, kind: int, command: Command, first: int = 0, second: int = 0) -> Applied:
        """Through the log. Raises UnavailableError (surely not applied), OutcomeUnknownError."""
        if self.fenced:
            raise UnavailableError("no majority confirms this node")
        outcome = await self._raft.propose(encode_envelope(kind, command, int(time.time() * 1000), first, second))
        if isinstance(outcome, Committed):
            assert isinstance(outcome.result, Applied), outcome.result
            return outcome.result
        if isinstance(outcome, Rejected):
            raise UnavailableError(outcome.reason)
        raise OutcomeUnknownError(outcome.reason)

    def _keep(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _expire(self, batch: list[Expiry]) -> Future[bool]:
        removals: dict[bool, list[BrokerRemoval]] = {}
        for expiry in batch:
            registration = self.state.registration(*expiry.key)
            if registration is not None and registration.epoch == expiry.epoch:
                removal = BrokerRemoval(*expiry.key, registration.broker_name, registration.broker_id, expiry.epoch)
                removals.setdefault(expiry.is_lost, []).append(removal)
        return self._keep(self._expire_now(removals, self._machine.serial))

    async def _expire_now(self, removals: dict[bool, list[BrokerRemoval]], serial: int) -> bool:
        try:
            for is_lost, of_kind in removals.items():
                await self._propose(EXPIRE, UnregisterBrokers(tuple(of_kind)), serial, int(is_lost))
        except NamesrvError:
            return False
        return True

    def propose(self, command: Command, connection: Connection | None) -> Result | Future[Result]:
        """See NameService."""
        if isinstance(command, UnregisterBrokers):
            return self._keep(self._unregister(command, self._epochs_at_receipt(command), connection))
        return self._keep(self._plain(command))

    async def _plain(self, command: Command) -> Result:
        return (await self._propose(PLAIN, command)).result

    def _epochs_at_receipt(self, command: UnregisterBrokers) -> list[int]:
        found = (self.state.registration(r.cluster_name, r.broker_addr) for r in command.removals)
        return [NO_REGISTRATION if registration is None else registration.epoch for registration in found]

    async def _unregister(self, command: UnregisterBrokers, at_receipt: list[int], connection: Connection | None) -> Result:
        removals = []
        for removal, epoch in zip(command.removals, at_receipt, strict=True):
            if connection is not None:
                key = (removal.cluster_name, removal.broker_addr)
                pending = self._pending.get((connection.connection_id, key))
                if pending is not None:
                    await asyncio.wait((pending,))
                own = self.signs.attachments.epoch_over(key, connection.connection_id)
                epoch = epoch if own is None else own
            removals.append(dataclasses.replace(removal, epoch=epoch))
        return (await self._propose(UNREGISTER, UnregisterBrokers(tuple(removals)))).result

    # Registrations

    def register(self, registration: RegisterBroker, connection: Connection) -> Result | Future[Result]:
        """See NameService: a renewal if it changes nothing, else through the log."""
        key = (registration.cluster_name, registration.broker_addr)
        received = self.state.revision
        changes_nothing = self.state.changes_nothing(registration)
        task = self._keep(self._register(registration, connection, received, changes_nothing))
        slot = (connection.connection_id, key)
        self._pending[slot] = task

        def ended(done: Future[Result]) -> None:
            if self._pending.get(slot) is done:
                del self._pending[slot]
                if not any(connection_id == slot[0] for connection_id, _ in self._pending):
                    self._ended.pop(slot[0], None)

        task.add_done_callback(ended)
        return task

    async def _register(
        self, registration: RegisterBroker, connection: Connection, received: int, changes_nothing: bool
    ) -> Result:
        key = (registration.cluster_name, registration.broker_addr)
        if changes_nothing:
            result = await self._renew(key, connection, self.state.group_generation(registration.broker_name))
            if result is not None:
                return result
        applied = await self._propose(REGISTER, registration, received, connection.opened_revision)
        held = self.state.registration(*key)
        if held is not None and held.broker_name == registration.broker_name and held.broker_id == registration.broker_id:
            self._attach(key, held.epoch, connection)
        if applied.ignored is not None:
            self._ignored(registration, connection, applied.ignored, is_held=held is not None)
        return applied.result

    def _ignored(self, registration: RegisterBroker, connection: Connection, reason: str, is_held: bool) -> None:
        """A registration changed nothing because of when its connection opened or it arrived, as this node saw it. If the node
        lagged then, the judgement was wrong: closing the connection makes the broker say again, over a new one, what it means.
        """
        log.info("registration ignored: %s", reason, extra={"peer": connection.peer, "broker": registration.broker_addr})
        if not is_held:
            connection.close(CloseReason.OURS)
            raise UnavailableError(reason)
        if connection.connection_id in self._late:
            connection.close(CloseReason.OURS)
        self._late.add(connection.connection_id)

    def _attach(self, key: Key, epoch: int, connection: Connection) -> None:
        now, connection_id = self.signs.now_ms, connection.connection_id
        self.signs.attachments.attach(key, epoch, connection_id, now)
        if connection_id in self._ended:  # it ended while the registration was under way
            self.signs.attachments.lose(connection_id, self._ended[connection_id], now)
        self.signs.report_soon()

    def renew_unchanged(
        self, cluster_name: str, broker_addr: str, connection: Connection
    ) -> Result | Future[Result | None] | None:
        """See NameService."""
        key = (cluster_name, broker_addr)
        registration = self.state.registration(*key)
        if registration is None:
            return None
        return self._keep(self._renew(key, connection, self.state.group_generation(registration.broker_name)))

    async def _renew(self, key: Key, connection: Connection, generation: int) -> Result | None:
        """Ask the leader; None: it has to be registered."""
        registration = self.state.registration(*key)
        if registration is None:
            return None
        result = self.state.renewal_result(*key)
        self._attach(key, registration.epoch, connection)
        async with self._budget():
            verdict = await self.signs.renew(key, registration.epoch, generation)
        return result if verdict == ACCEPTED else None

    def _budget(self) -> "_Budget":
        return _Budget(self._budget_s)

    def heartbeat(self, cluster_name: str, broker_addr: str, connection: Connection) -> None:
        """See NameService."""
        registration = self.state.registration(cluster_name, broker_addr)
        if registration is not None:
            self._attach((cluster_name, broker_addr), registration.epoch, connection)

    def query_data_version(
        self, cluster_name: str, broker_addr: str, data_version: DataVersion | None, connection: Connection
    ) -> DataVersionAnswer | Future[DataVersionAnswer]:
        """See NameService: a linearizable read that renews."""
        return self._keep(self._query_data_version((cluster_name, broker_addr), data_version, connection))

    async def _query_data_version(self, key: Key, data_version: DataVersion | None, connection: Connection) -> DataVersionAnswer:
        async with self._budget():
            while True:
                freshness = self.barrier(ReadLevel.LINEARIZABLE, None)
                if isinstance(freshness, Future):
                    freshness = await asyncio.shield(freshness)
                registration = self.state.registration(*key)
                if registration is None:
                    return DataVersionAnswer(True, None)
                self._attach(key, registration.epoch, connection)
                if freshness.level is ReadLevel.STALE:
                    break
                verdict = await self.signs.renew(key, registration.epoch, 0)
                if verdict == ACCEPTED:
                    break
                if verdict == REMOVING:
                    await asyncio.sleep(REMOVING_PAUSE_S)
        current = self.state.registration(*key)
        if current is None:
            return DataVersionAnswer(True, None)
        return DataVersionAnswer(data_version != current.data_version, current.data_version)

    def connection_lost(self, connection: Connection, reason: CloseReason) -> None:
        """See NameService."""
        connection_id = connection.connection_id
        is_loss = reason is not CloseReason.OURS and not self._stopping and not self.fenced
        if any(pending == connection_id for pending, _ in self._pending):
            self._ended[connection_id] = is_loss
        self._late.discard(connection_id)
        if self.signs.attachments.lose(connection_id, is_loss, self.signs.now_ms) and not self._stopping:
            self.signs.report_soon()

    def _registered(self, key: Key) -> None:
        if self._is_live:
            self.signs.registered(key)

    # Configuration

    def update_config(self, values: Mapping[str, str]) -> Result | Future[Result]:
        """See NameService: replicated keys through the log, for all nodes; the others here, into the file."""
        if not self._settings.black_list.isdisjoint(values):
            return Result(code=NO_PERMISSION, remark="Can not update config in black list.")
        return self._keep(self._update_config(dict(values)))

    async def _update_config(self, values: dict[str, str]) -> Result:
        replicated: dict[str, bool] = {}
        local: dict[str, str] = {}
        for key, text in values.items():
            row = ROWS.get(key)
            if row is not None and row.replicated:
                replicated[row.attribute] = bool(row.parse(text))
            else:
                local[key] = text
        if replicated:
            await self._propose(PLAIN, UpdateSettings(replicated))
        if local:
            candidate = dataclasses.replace(self._settings, extra=dict(self._settings.extra))
            candidate.update(local)
            path = Path(self._settings.config_store_path)
            await asyncio.to_thread(write_atomically, path, candidate.text().encode(), backup=True)
            self._settings.update(local)
        return Result(changed=True)

    def _settings_applied(self) -> None:
        """Show by code 319 what is in force."""
        flags = self.state.settings
        self._settings.update({row.name: row.show(getattr(flags, attribute)) for attribute, row in _REPLICATED.items()})

    def config_text(self) -> str:
        """See NameService."""
        return self._settings.text()

    # What the admin side shows

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
            "confirmedMsAgo": int(self.signs.now_ms - self._confirmed_ms) if self._is_live else None,
            "digest": self._machine.digest().hex(),
            "raft": self._raft.status(),
        }


class _Budget:
    """``asyncio.timeout`` whose end is an UnavailableError."""

    def __init__(self, seconds: float) -> None:
        self._timeout = asyncio.timeout(seconds)

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(self, *failure: Any) -> None:
        try:
            await self._timeout.__aexit__(*failure)
        except TimeoutError:
            raise UnavailableError("the leader did not confirm it in time") from None

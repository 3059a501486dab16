"""IndependentNode: the service of AP mode.

Commands are applied at once (KV config and settings: once they are on disk), and only here. A broker is removed after its
time-out without contact, or when its connection to this node ends. A removal that this node decides (a closed connection, an
expiry) names the epoch of the registration to remove. So it is a no-op after a new registration.

Intended differences from Java:

- When a connection closes, all its brokers are removed, not only the first.
- An expiry closes the connection only if no other live broker shares it.
- After a stall of the event loop (a stopped or starved machine), the next scan for silent brokers is skipped, because their
  heartbeats may wait in the sockets.
"""

import asyncio
import logging
import os
import time
from asyncio import Future
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from uuid import uuid4

from replicated_namesrv.compat.kv_file import read_kv_file
from replicated_namesrv.compat.kv_writer import KVCommand, KVWriter
from replicated_namesrv.compat.live_table import DEFAULT_BROKER_CHANNEL_EXPIRED_TIME_MS, Attachment, BrokerKey, LiveTable
from replicated_namesrv.config_writer import SHARED_ROWS, ConfigWriter, checked_update, route_settings
from replicated_namesrv.errors import LimitError, SettingError, StaleReadError
from replicated_namesrv.files import DiskReserve, hold_folder
from replicated_namesrv.model import ChangeOrigin, DataVersion
from replicated_namesrv.routes.commands import (
    BrokerRemoval,
    Command,
    DeleteKVConfig,
    PutKVConfig,
    RegisterBroker,
    UnregisterBrokers,
    UpdateSettings,
)
from replicated_namesrv.routes.history import EXPIRED, LOST, UNREGISTERED, History
from replicated_namesrv.routes.quotas import with_own_mappings
from replicated_namesrv.routes.results import BrokerRemoved, Effect, Result
from replicated_namesrv.routes.state import RouteInfoManager
from replicated_namesrv.service import (
    UNKNOWN_AGE,
    AppliedChange,
    CloseReason,
    Connection,
    DataVersionAnswer,
    Freshness,
    LogEvents,
    Measurement,
    NodeAddress,
    ReadLevel,
    origin_of,
    quotas_of,
    within,
)
from replicated_namesrv.settings import Settings

log = logging.getLogger(__name__)

DISK_CHECK_S = 1.0
KV_DUMP_FIRST_S, KV_DUMP_INTERVAL_S = 60.0, 600.0
NO_RESTORE = "this is an independent node (mode=ap): take KV config and settings of the backup with 'namesrv restore --merge'"
REMOVALS_PER_TURN, TOPICS_PER_TURN = 100, 20_000
"""Maximum number of brokers that one turn of the loop removes, and maximum number of topics of their groups. A single broker may
have more topics. Removing one with 10,000 topics takes about 3 ms."""
DUMPED_PER_TURN, DUMPED_MAX = 100, 1_000
"""Number of KV entries that are written to the log in one turn of the loop: a few milliseconds; and maximum number in one dump,
because every client can write KV entries and the log must not fill the disk."""


class IndependentNode:
    """An independent name server with RocketMQ's semantics."""

    confirms_reads = False

    def __init__(
        self,
        settings: Settings,
        monotonic_ms: Callable[[], float] = lambda: time.monotonic() * 1000,
        wall_clock_ms: Callable[[], int] = lambda: int(time.time() * 1000),
        soon: Callable[[Callable[[], None]], object] = lambda work: asyncio.get_running_loop().call_soon(work),
    ) -> None:
        self._settings = settings
        self._monotonic_ms = monotonic_ms
        self._wall_clock_ms = wall_clock_ms
        self._soon = soon
        self.state = RouteInfoManager(route_settings(settings), keeps_sums=False)
        self.quotas = quotas_of(settings, self.state)
        folder = Path(settings.kv_config_path).parent
        self._disk = DiskReserve(folder, settings.disk_reserve_bytes, lambda: self.state.sizes.kv)
        self.quotas.keep_disk_reserve(self._disk.room, lambda command, growth: growth if isinstance(command, KVCommand) else 0)
        self.history = History(settings.watch_history_bytes)
        self.history_id = uuid4().hex[:12]
        self.live = LiveTable()
        self.expired_count = 0
        """Number of brokers removed after their time-out, since the start."""
        self.lost_count = 0
        """Number of brokers removed because their connection ended, since the start."""
        self._freshness = Freshness(ReadLevel.LOCAL, 0, "", UNKNOWN_AGE)
        self._perform: Callable[[tuple[Effect, ...]], None] = lambda effects: None
        self._kv = KVWriter(Path(settings.kv_config_path), self.state.kv_table, self._apply)
        self._config = ConfigWriter(settings, self._put_in_force)
        self._own_address: Callable[[], NodeAddress] = lambda: NodeAddress(settings.node_id, "", serves=False, drained=False)
        self._timers: list[asyncio.TimerHandle] = []
        self._held: int | None = None
        """Descriptor that marks the data directory as used, so that 'namesrv switch' refuses it."""
        self._last_scan_ms: float | None = None
        self._disk_was_short = True
        """Whether the disk was short of space at the last check. Initially True, because there may be no ballast yet."""
        self._stopping = False
        self._note: Callable[[AppliedChange], None] | None = None
        self._origins: dict[int, ChangeOrigin] = {}
        """Callers of the KV commands and settings that are being written, by ``id()`` of the change."""

    @property
    def fenced(self) -> bool:
        """Always false: an independent node needs no majority."""
        return False

    @property
    def answers_stale(self) -> bool:
        """Always false: AP answers have no freshness guarantee."""
        return False

    @property
    def peer_refusals(self) -> Mapping[str, int]:
        """Always empty: there are no other nodes."""
        return {}

    @property
    def unsynced_ms(self) -> float:
        """Always 0: the KV file is written before a change is answered."""
        return 0.0

    @property
    def disk_problem(self) -> str | None:
        """Always None: this node has no log."""
        return None

    @property
    def disk_warning(self) -> str | None:
        """A warning if disk space is short; None: there is enough."""
        return self._disk.warning

    @property
    def disk_free_bytes(self) -> int | None:
        """Bytes free on the disk of kvConfig.json."""
        return self._disk.free_bytes

    @property
    def staleness_ms(self) -> int:
        """Always unknown."""
        return UNKNOWN_AGE

    def suspected_since(self) -> dict[tuple[str, str], int]:
        """Not recorded in AP."""
        return {}

    def heartbeat_age_ms(self, cluster_name: str, broker_addr: str) -> float | None:
        """Milliseconds since the last contact with the broker; None if it is not registered here."""
        return self.live.age_ms(BrokerKey(cluster_name, broker_addr), self._monotonic_ms())

    def check_restore(self) -> None:
        """Raises SettingError: an independent node needs no restore, because brokers register again and the KV config can be
        imported."""
        raise SettingError(NO_RESTORE)

    async def announce(self, request: str, target: str | None, origin: ChangeOrigin | None) -> None:
        """No-op: there are no other nodes."""

    def restore(self, snapshot: Iterable[bytes], origin: ChangeOrigin | None = None) -> Future[Result]:
        """Raises SettingError."""
        raise SettingError(NO_RESTORE)

    def transfer_leadership(self, to: str | None) -> Future[None]:
        """Raises SettingError: there is no leader."""
        raise SettingError("this is an independent node (mode=ap): there is no leader; only a CP cluster has one")

    def change_member(self, action: str, name: str, address: tuple[str, int] | None, observer: bool) -> Future[None]:
        """Raises SettingError: there are no members."""
        raise SettingError("this is an independent node (mode=ap): it has no members; only a CP cluster has them")

    def measurements(self) -> Iterator[Measurement]:
        """Empty: these metrics are about replication."""
        return iter(())

    def on_own_address(self, own: Callable[[], NodeAddress]) -> None:
        """``own()`` returns where brokers and clients reach this node."""
        self._own_address = own

    def node_addresses(self) -> list[NodeAddress]:
        """Only this node: an independent node knows no other."""
        return [self._own_address()]

    def members(self) -> list[dict[str, object]]:
        """Raises SettingError."""
        raise SettingError("this is an independent node (mode=ap): it has no members; list the nodes with 'namesrv status -a'")

    def replication_status(self) -> dict[str, object] | None:
        """None: an independent node knows no other."""
        return None

    def contacts(self) -> Mapping[str, object]:
        """Empty: an independent node has no Raft."""
        return {}

    def on_effects(self, perform: Callable[[tuple[Effect, ...]], None]) -> None:
        """Register ``perform``, which is called with the effects of each command at once."""
        self._perform = perform

    def on_serving(self, change: Callable[[bool], None]) -> None:
        """No-op: an independent node always serves."""

    def on_failure(self, stop: Callable[[str], None]) -> None:
        """No-op: an independent node never stops because of a failure."""

    def on_leader(self, notify: Callable[[str | None, int], None]) -> None:
        """No-op: there is no leader."""

    def on_suspected(self, notify: Callable[[tuple[str, str], int | None], None]) -> None:
        """No-op: silence is not recorded."""

    async def start(self) -> None:
        """Load the KV config and start the scan for silent brokers. Raises StorageError if kvConfig.json cannot be used."""
        self._held = hold_folder(self._settings.data_path)
        path = Path(self._settings.kv_config_path)
        for namespace, entries in (await asyncio.to_thread(read_kv_file, path)).items():
            for key, value in entries.items():
                self._load(PutKVConfig(namespace, key, value))
            if not entries:  # a namespace without entries continues to exist
                self._load(PutKVConfig(namespace, "", None))
                self._load(DeleteKVConfig(namespace, ""))
        if self.state.revision:
            self.history.restart(self.state.revision, self._wall_clock_ms())
        self._every(self._settings.scan_not_active_broker_interval / 1000, self.scan_not_active_broker)
        self._check_disk()
        self._every(DISK_CHECK_S, self._check_disk)
        self._every(KV_DUMP_INTERVAL_S, self._dump_kv_config, first_s=KV_DUMP_FIRST_S)

    @property
    def waits_for(self) -> None:
        return None

    async def stop(self) -> None:
        """Stop the scan and finish pending writes."""
        self._stopping = True
        for timer in self._timers:
            timer.cancel()
        await self._kv.drain()
        await self._config.drain()
        if self._held is not None:
            os.close(self._held)
            self._held = None

    def barrier(self, level: ReadLevel | None, max_staleness_ms: int | None) -> Freshness | Future[Freshness]:
        """Return at once, for every level. Raises StaleReadError if ``max_staleness_ms`` is given."""
        if max_staleness_ms is not None:
            raise StaleReadError(
                f"maxStalenessMs={max_staleness_ms}: this node is independent (mode=ap) and does not know how old its state is; "
                "leave maxStalenessMs out or ask a node of mode=cp"
            )
        return self._freshness

    def on_change(self, note: Callable[[AppliedChange], None]) -> None:
        """``note`` is called with every change."""
        self._note = note

    def on_log_events(self, events: LogEvents) -> None:
        """No-op: there is no log."""

    @property
    def group_id(self) -> str:
        """Empty: there is no cluster."""
        return ""

    def propose(
        self, command: Command, connection: Connection | None, origin: ChangeOrigin | None = None
    ) -> Result | Future[Result]:
        """Apply the command at once. A KV command is applied after it has been written to disk."""
        origin = origin or origin_of(connection)
        if isinstance(command, KVCommand):
            return within(self.quotas, command, lambda grant: self._submit(command, origin))
        return within(self.quotas, command, lambda grant: self._apply(command, origin=origin))

    def _submit(self, command: KVCommand, origin: ChangeOrigin | None) -> Future[Result]:
        """Write and apply a KV command."""
        return self._written(command, origin, self._kv.submit(command))

    def _written(self, change: object, origin: ChangeOrigin | None, done: Future[Result]) -> Future[Result]:
        """Remember who caused a change until it is written and applied."""
        if origin is not None:
            self._origins[id(change)] = origin
            done.add_done_callback(lambda _: self._origins.pop(id(change), None))
        return done

    def register(
        self, registration: RegisterBroker, connection: Connection, received: int | None = None
    ) -> Result | Future[Result]:
        """Apply at once and attach the broker to ``connection``."""
        registration = with_own_mappings(registration)
        try:
            origin = origin_of(connection)
            result = within(self.quotas, registration, lambda grant: self._apply(registration, origin=origin))
            self._attach(BrokerKey(registration.cluster_name, registration.broker_addr), connection)
            return result
        except LimitError:
            self._refused(registration, connection)
            raise

    def _refused(self, registration: RegisterBroker, connection: Connection) -> None:
        """The change is refused for lack of room, but the broker's present registration is renewed."""
        if self.state.is_registered(registration):
            self._attach(BrokerKey(registration.cluster_name, registration.broker_addr), connection)

    def renew_unchanged(self, cluster_name: str, broker_addr: str, connection: Connection) -> Result | None:
        """Renew a registration that is a no-op, and attach the broker to ``connection``. None for an unknown broker."""
        registration = self.state.registration(cluster_name, broker_addr)
        if registration is None:
            return None
        self._attach(BrokerKey(cluster_name, broker_addr), connection)
        return self.state.renewal_result(cluster_name, broker_addr)

    def heartbeat(self, cluster_name: str, broker_addr: str, connection: Connection) -> None:
        """Count a ``BROKER_HEARTBEAT`` (904). An unknown broker is ignored."""
        self.live.touch(BrokerKey(cluster_name, broker_addr), self._monotonic_ms())

    def query_data_version(
        self, cluster_name: str, broker_addr: str, data_version: DataVersion | None, connection: Connection
    ) -> DataVersionAnswer | Future[DataVersionAnswer]:
        """Compare the data version, and count the request as a heartbeat (``QUERY_DATA_VERSION``, 322)."""
        registration = self.state.registration(cluster_name, broker_addr)
        if registration is None:
            return DataVersionAnswer(True, None)
        self.heartbeat(cluster_name, broker_addr, connection)
        return DataVersionAnswer(data_version != registration.data_version, registration.data_version)

    def connection_opened(self, connection: Connection) -> None:
        """No-op: AP uses a connection only after a broker has registered over it."""

    def connection_lost(self, connection: Connection, reason: CloseReason) -> None:
        """Remove the brokers whose last registration came over ``connection`` (``BrokerHousekeepingService``).

        If this node closed it, as in a drain, that is not evidence that the brokers left: they stay registered until their
        time-out.
        """
        brokers = self.live.brokers_of(connection)
        if brokers and not self._stopping and reason is not CloseReason.OURS:
            self._remove_lost(deque(brokers), connection)

    def _remove_lost(self, brokers: deque[BrokerKey], connection: Connection) -> None:
        """Remove the first of these brokers now, and the next ones in the next turn of the loop. A broker that registered over
        another connection stays."""
        if self._stopping:
            return
        lost, topics = list[BrokerKey](), 0
        while brokers and len(lost) < REMOVALS_PER_TURN and topics < TOPICS_PER_TURN:
            key = brokers.popleft()
            if self.live.is_attached(key, connection):
                lost.append(key)
                topics += self._removal_topics(key)
        if lost:
            addresses = [key.broker_addr for key in lost]
            log.info("connection lost: removing its brokers", extra={"peer": connection.peer, "brokers": addresses})
        self.lost_count += len(lost)
        self._remove(lost, LOST)
        if brokers:
            self._soon(lambda: self._remove_lost(brokers, connection))

    def scan_not_active_broker(self) -> None:
        """Remove brokers after their time-out without contact, and close their connections (``scanNotActiveBroker``)."""
        now = self._monotonic_ms()
        previous, self._last_scan_ms = self._last_scan_ms, now
        if previous is not None and now - previous > 2 * self._settings.scan_not_active_broker_interval:
            log.warning("event loop stalled; broker expiry deferred by one scan", extra={"pause_ms": int(now - previous)})
            return
        self._expire(now)

    def _expire(self, now_ms: float) -> None:
        """Remove a few silent brokers now, and the next few in the next turn of the loop."""
        silent, topics = list[tuple[BrokerKey, Attachment]](), 0
        for key, attachment in self.live.silent_since(now_ms):
            silent.append((key, attachment))
            topics += self._removal_topics(key)
            if len(silent) == REMOVALS_PER_TURN or topics >= TOPICS_PER_TURN:
                break
        if not silent:
            return
        log.warning(
            "brokers expired: no contact within their time-out", extra={"brokers": [key.broker_addr for key, _ in silent]}
        )
        self.expired_count += len(silent)
        self._remove([key for key, _ in silent], EXPIRED)
        for _, attachment in silent:
            if not self.live.brokers_of(attachment.connection):
                attachment.connection.close(CloseReason.OURS)
        self._soon(lambda: self._expire(now_ms))

    def _removal_topics(self, key: BrokerKey) -> int:
        registration = self.state.registration(*key)
        return 0 if registration is None else self.state.removal_topics(registration.broker_name)

    def update_config(self, values: Mapping[str, str], origin: ChangeOrigin | None = None) -> Result | Future[Result]:
        """Change settings, including shared ones. The file is written first: if the disk refuses, nothing changes
        (StorageError).
        """
        taken = checked_update(self._settings, self.quotas, values)
        return taken if isinstance(taken, Result) else self._written(taken, origin, self._config.submit(taken))

    def _put_in_force(self, values: Mapping[str, str]) -> Result:
        moved = self._settings.change(values)
        replicated = {attribute: bool(value) for attribute, value in moved.items() if attribute in SHARED_ROWS}
        if replicated:
            self._apply(UpdateSettings(replicated), origin=self._origins.get(id(values)))
        return Result(changed=bool(moved))

    def config_text(self) -> str:
        """The answer to ``GET_NAMESRV_CONFIG`` (319): sorted ``key=value`` lines."""
        return self._settings.text()

    def _load(self, command: Command) -> None:
        """Apply a change of an earlier process. Nobody requests it now, so it is in no history and in no audit log."""
        self.state.apply(command, self._wall_clock_ms())

    def _apply(self, command: Command, removal: str = UNREGISTERED, origin: ChangeOrigin | None = None) -> Result:
        now_ms = self._wall_clock_ms()
        applied = self.state.apply(command, now_ms)
        if applied.result.changed:
            self.history.note(self.state, command, now_ms, removal)
            if self._note is not None:
                origin = origin or self._origins.get(id(command))
                self._note(AppliedChange(command, removal, self.state.revision, origin))
        if applied.effects:
            for effect in applied.effects:
                if isinstance(effect, BrokerRemoved):
                    self.live.detach(BrokerKey(effect.cluster_name, effect.broker_addr))
            self._perform(applied.effects)
        return applied.result

    def _attach(self, key: BrokerKey, connection: Connection) -> None:
        registration = self.state.registration(key.cluster_name, key.broker_addr)
        if registration is not None:
            timeout_ms = registration.heartbeat_timeout_ms
            timeout_ms = DEFAULT_BROKER_CHANNEL_EXPIRED_TIME_MS if timeout_ms is None else timeout_ms
            self.live.attach(key, connection, self._monotonic_ms(), timeout_ms)

    def _remove(self, brokers: Iterable[BrokerKey], removal: str) -> None:
        removals = []
        for key in brokers:
            registration = self.state.registration(key.cluster_name, key.broker_addr)
            if registration is None:
                self.live.detach(key)
                continue
            removals.append(BrokerRemoval(*key, registration.broker_name, registration.broker_id, registration.epoch))
        if removals:
            self._apply(UnregisterBrokers(tuple(removals)), removal)

    def _every(self, interval_s: float, work: Callable[[], None], first_s: float | None = None) -> None:
        loop = asyncio.get_running_loop()
        position = len(self._timers)

        def run() -> None:
            self._timers[position] = loop.call_later(interval_s, run)
            work()

        self._timers.append(loop.call_later(interval_s if first_s is None else first_s, run))

    def _check_disk(self) -> None:
        if self._held is None:  # no file was written yet when the node started
            self._held = hold_folder(self._settings.data_path)
        self._disk.room()
        if self._disk.is_short != self._disk_was_short:
            self._disk_was_short = self._disk.is_short
            if not self._disk.is_short:
                asyncio.get_running_loop().run_in_executor(None, self._kv.fill_ballast)

    def _dump_kv_config(self) -> None:
        """Write the names in the KV config to the log, a few in each turn of the loop. The values may be secrets."""
        table = self.state.kv_table()
        keys_of = ((namespace, list(entries)) for namespace, entries in table.items())
        names = ((namespace, key) for namespace, keys in keys_of for key in keys)
        self._dump_some(islice(names, DUMPED_MAX), sum(map(len, table.values())) - DUMPED_MAX)

    def _dump_some(self, names: Iterator[tuple[str, str]], left_out: int) -> None:
        some = [] if self._stopping else list(islice(names, DUMPED_PER_TURN))
        for namespace, key in some:
            log.info("configTable", extra={"namespace": namespace, "key": key})
        if some:
            self._soon(lambda: self._dump_some(names, left_out))
        elif left_out > 0 and not self._stopping:
            log.info("configTable: further entries left out", extra={"left_out": left_out})

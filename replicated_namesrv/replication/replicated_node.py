"""ReplicatedNode: the service of CP mode, built from its parts.

    brokers, clients, operators
      reads          read_barrier.py       whether this node may answer, age of answers, fence
      brokers        broker_calls.py       REGISTER_BROKER, BROKER_HEARTBEAT, QUERY_DATA_VERSION, UNREGISTER_BROKER
      writes         consensus.py          proposals of commands
      settings       config_updates.py     shared settings: log; this node's: its file
      live brokers   liveness/             called by broker_calls and applied_commands
    consensus.py     the interface to Raft
    route_machine.py the replicated state; applied_commands.py performs the effects of commands

If a node receives no read index, it lets requests wait for ``fenceAfterMs`` and then fences itself. With ``noQuorumPolicy=fence``
the server then stops listening and closes every connection, so that RocketMQ's clients and brokers use another name server at
once. It serves again when the node receives a read index.
"""

import asyncio
import logging
import time
from asyncio import Future
from collections.abc import Callable, Iterable, Iterator, Mapping
from random import Random, SystemRandom

from replicated_namesrv.config_writer import checked_update, route_settings
from replicated_namesrv.errors import LimitError, NamesrvError, UnavailableError
from replicated_namesrv.files import DiskReserve
from replicated_namesrv.model import ChangeOrigin, DataVersion
from replicated_namesrv.raft.member_changes import MemberChange
from replicated_namesrv.raft.raft_config import RaftConfig
from replicated_namesrv.raft.raft_service import boot_clock
from replicated_namesrv.raft.transport import TransportSettings
from replicated_namesrv.replication.applied_commands import AppliedCommands
from replicated_namesrv.replication.broker_calls import BrokerCalls
from replicated_namesrv.replication.cluster_restore import Leftovers, RestorableMachine, restore
from replicated_namesrv.replication.command_kinds import OPERATION_VERSION, newest_version
from replicated_namesrv.replication.config_updates import ConfigUpdates
from replicated_namesrv.replication.consensus import (
    NO_MAJORITY,
    CommandProposer,
    RaftConsensus,
    RaftFactory,
    confirm,
    raft_on_sockets,
)
from replicated_namesrv.replication.disk_alarm import DiskAlarm
from replicated_namesrv.replication.leader_preference import LeaderPreference, check_elections, lease_margin, preferred_leaders
from replicated_namesrv.replication.liveness.broker_liveness import BrokerLiveness
from replicated_namesrv.replication.liveness.defences import LivenessDefences
from replicated_namesrv.replication.liveness.leader_client import TICK_S
from replicated_namesrv.replication.liveness.liveness_context import LivenessContext
from replicated_namesrv.replication.member_descriptions import MemberDescriptions
from replicated_namesrv.replication.member_list import members_of
from replicated_namesrv.replication.node_addresses import NodeAddresses
from replicated_namesrv.replication.peer_settings import known_members, parse_peers
from replicated_namesrv.replication.read_barrier import ReadBarrier
from replicated_namesrv.replication.route_machine import RouteStateMachine, encode_operation, encode_plain
from replicated_namesrv.replication.running_clock import RunningClock
from replicated_namesrv.replication.tasks import Tasks
from replicated_namesrv.replication.traced_raft import traced_raft
from replicated_namesrv.routes.commands import Command, RegisterBroker, UnregisterBrokers
from replicated_namesrv.routes.quotas import COMMAND_BYTES_MAX, Grant, logged_bytes, with_own_mappings
from replicated_namesrv.routes.results import Effect, Result
from replicated_namesrv.routes.state import DIGEST_VERSION, RouteInfoManager
from replicated_namesrv.service import (
    AppliedChange,
    CloseReason,
    Connection,
    DataVersionAnswer,
    LogEvents,
    Measurement,
    NodeAddress,
    ReadLevel,
    origin_of,
    quotas_of,
    within,
)
from replicated_namesrv.settings import Settings
from replicated_namesrv.tracing import Tracing

log = logging.getLogger(__name__)

APPLY_BYTES_MAX = 256 << 10
"""Maximum work applied in one step: registrations of some 30,000 topics, which take 20 ms."""
BUDGET_MARGIN_MS = 500
"""Time that a request may take in addition to fenceAfterMs before its connection is closed."""

KEPT_ENTRIES_PART = 10
"""After a snapshot, one in this many of ``snapshotEntries`` entries stays in the log, for followers that lag a little."""


def raft_config(settings: Settings, budget_ms: int) -> RaftConfig:
    """Raft's configuration from the settings. ``budget_ms``: time limit of a proposal and of a read. Raises SettingError."""
    check_elections(settings)
    return RaftConfig(
        digest_version=DIGEST_VERSION,
        command_version=newest_version(),
        command_bytes_max=COMMAND_BYTES_MAX,
        election_min_ms=settings.election_timeout_ms,
        election_max_ms=2 * settings.election_timeout_ms,
        heartbeat_ms=settings.peer_heartbeat_ms,
        compact_entries=settings.snapshot_entries,
        compact_margin_entries=settings.snapshot_entries // KEPT_ENTRIES_PART,
        clock_drift_max=lease_margin(settings.election_timeout_ms),
        proposal_timeout_ms=budget_ms,
        read_timeout_ms=budget_ms,
        lease_reads=True,
        apply_bytes_max=APPLY_BYTES_MAX,
    )


class ReplicatedNode:
    """One node of a CP cluster."""

    confirms_reads = True

    def __init__(
        self,
        settings: Settings,
        transport: TransportSettings,
        raft: RaftFactory | None = None,
        monotonic_s: Callable[[], float] | None = None,
        wall_s: Callable[[], float] = time.time,
        rng: Random | None = None,
        defences: LivenessDefences = LivenessDefences(),  # noqa: B008 - frozen
        tracing: Tracing | None = None,
    ) -> None:
        """The simulator gives ``raft``, clocks and ``rng``. ``monotonic_s`` has to continue while the machine sleeps."""
        clock = monotonic_s or boot_clock()

        def now_ms() -> float:
            return clock() * 1000

        running = RunningClock(now_ms())

        def running_ms() -> float:
            return running.read(now_ms()) if defences.running_time else now_ms()

        budget_ms = settings.fence_after_ms + BUDGET_MARGIN_MS
        members = sorted(known := known_members(settings))
        self._members = members
        """Names of the members. All parts have this list, and it is kept current."""
        self._settings, self._now_ms = settings, now_ms
        self._machine = RouteStateMachine()
        self.state: RouteInfoManager = self._machine.state
        self.history = self._machine.history
        self.history.bytes_max = settings.watch_history_bytes
        self.history_id = ""
        self.quotas = quotas_of(settings, self.state)
        self._leftovers: Leftovers | None = None
        self._disk = self._disk_alarm(members, now_ms) if raft is None else None
        if raft is None:
            restorable = RestorableMachine(self._machine)
            self._leftovers, dial = Leftovers(restorable, now_ms), parse_peers("peerDial", settings.peer_dial)
            place = transport, settings.data_path / "raft", restorable, known, bool(settings.join), dial
            raft = raft_on_sockets(*place) if tracing is None else traced_raft(*place, tracing)
        config = raft_config(settings, budget_ms)
        consensus = RaftConsensus(settings.node_id, members, raft, self._machine, config, now_ms)
        self.consensus = consensus
        self._tasks = Tasks()
        self.reads = ReadBarrier(
            consensus,
            ReadLevel(settings.read_consistency),
            settings.fence_after_ms,
            settings.no_quorum_policy == "serve-stale",
            now_ms,
            self._change_serving,
        )
        self.barrier = self.reads.barrier
        self.proposer = CommandProposer(consensus, self._tasks, budget_ms, lambda: self.reads.fenced, self.quotas, len(members))
        self.liveness = BrokerLiveness(
            LivenessContext(
                settings.node_id,
                members,
                self._machine,
                consensus,
                self.proposer.decide,
                lambda: route_settings(settings),
                settings.connection_loss_grace_ms,
                running_ms,
                now_ms,
                lambda: int(wall_s() * 1000),
                rng or SystemRandom(),
                defences,
            )
        )
        self.broker_calls = BrokerCalls(
            self._machine,
            self.liveness.attachments,
            self.liveness.client,
            self.proposer.propose,
            consensus,
            self._tasks,
            lambda: self._stopping or self.fenced,
            budget_ms / 1000,
            now_ms,
            settings.late_copy_ms,
            defences,
        )
        self._addresses = NodeAddresses(settings.node_id, members, lambda peer, data: self.consensus.tell(peer, data), now_ms)
        self._descriptions = MemberDescriptions()
        self._preference = LeaderPreference(settings.node_id, preferred_leaders(settings, members))
        self._applied = AppliedCommands(self._machine, self.liveness, self.broker_calls.removed, consensus)
        self._config = ConfigUpdates(settings, self._propose_plain, self._confirm_majority)
        self._machine.on_settings = lambda: self._config.show(self.state.settings)
        consensus.on_confirmed = self.reads.confirmed
        consensus.on_leading = self.liveness.leads
        consensus.on_leader = self._leader_changed
        consensus.on_applied = self._applied.applied
        consensus.on_restored = self.liveness.restored
        consensus.on_members = self._members_changed
        consensus.on_message = self._received
        self._on_serving: Callable[[bool], None] = lambda serving: None
        self._on_leader: Callable[[str | None, int], None] = lambda leader, term: None
        self.fence_count, self._stopping = 0, False
        self._ticker: asyncio.TimerHandle | None = None

    def _disk_alarm(self, members: list[str], now_ms: Callable[[], float]) -> DiskAlarm:
        settings = self._settings

        def state_bytes() -> int:
            return self.state.sizes.total + self._machine.unregistered_bytes

        disk = DiskReserve(settings.data_path, settings.disk_reserve_bytes, state_bytes)

        def send(data: bytes) -> None:
            for peer in members:
                if peer != settings.node_id:
                    self.consensus.tell(peer, data)

        alarm = DiskAlarm(
            disk, send, lambda short: self.consensus.disk_is_short(short), now_ms, lambda peer: peer in self.consensus.voters
        )
        self.quotas.keep_disk_reserve(alarm.room, logged_bytes)
        return alarm

    def _received(self, peer: str, data: bytes) -> None:
        if self._addresses.received(peer, data) or (self._disk is not None and self._disk.received(peer, data)):
            return
        self.liveness.received(peer, data)

    def _members_changed(self) -> None:
        self._members[:] = self.consensus.member_names
        self.liveness.members_changed()
        self.reads.set_removed(self.consensus.removed)

    def _leader_changed(self, leader: str | None, term: int) -> None:
        self._on_leader(leader, term)
        self.liveness.leader_changed(leader)

    # Start and stop

    def on_effects(self, perform: Callable[[tuple[Effect, ...]], None]) -> None:
        self._applied.perform = perform

    def on_serving(self, change: Callable[[bool], None]) -> None:
        """``change(False)``: stop serving (fence). ``change(True)``: serve again."""
        self._on_serving = change

    def on_failure(self, stop: Callable[[str], None]) -> None:
        """``stop(reason)`` is called when consensus has stopped permanently and this node has to stop, too."""
        self.consensus.on_failed = stop

    def on_leader(self, notify: Callable[[str | None, int], None]) -> None:
        """``notify(leader, term)`` is called at once and at each change of the known leader; None: unknown."""
        self._on_leader = notify
        notify(None, 0)

    async def start(self) -> None:
        """Open the log and wait until this node has caught up with a majority. Raises StorageError."""
        await self.consensus.start()
        self._members_changed()
        self._tick()
        try:
            asked_ms = await self.consensus.catch_up()
        # BaseException is not caught: it includes GeneratorExit, and a coroutine must not await while it handles GeneratorExit
        except (Exception, asyncio.CancelledError):
            await self.stop()
            raise
        self._applied.is_live = True
        self.history.counts.clear()  # counts of the changes in the log at the start
        self.history.removed.clear()
        self.reads.caught_up(asked_ms)
        self._warn_of_unknown_names()

    def _warn_of_unknown_names(self) -> None:
        """Settings may name nodes that will be added later, so unknown names are no error. They may be wrong, too."""
        dialled = parse_peers("peerDial", self._settings.peer_dial)
        for setting, names in (("peerDial", dialled), ("leaderPriority", self._preference.names)):
            if unknown := sorted(set(names) - set(self._members)):
                log.warning(
                    "%s names nodes that are not members: it applies to them once they are added; correct the names if they are "
                    "wrong",
                    setting,
                    extra={"nodes": ", ".join(unknown), "members": ", ".join(self._members)},
                )

    async def stop(self) -> None:
        """Stop this node, which stays a member of the cluster. A leader transfers leadership first, which saves the wait for an
        election. Idempotent."""
        if not self._stopping:
            self._stopping = True
            await self.consensus.hand_over()
        if self._ticker is not None:
            self._ticker.cancel()
        self.liveness.client.fail("this node stops")
        self._tasks.stop()
        await self._config.drain()
        await self.consensus.stop()

    def _tick(self) -> None:
        self._ticker = asyncio.get_running_loop().call_later(TICK_S, self._tick)
        self.liveness.tick()
        self.broker_calls.tick(self.reads.silent_ms)
        self.reads.tick()
        abandon = None if self._leftovers is None else self._leftovers.tick(self.led_term is not None)
        if abandon is not None:
            self.proposer.decide(abandon)
        if self._disk is not None:
            self._disk.tick()
            self._addresses.tick()
        self._prefer_leader()
        self._describe_members()

    def _describe_members(self) -> None:
        """If this node leads, write the addresses and zones into the log that members have reported and that are not there."""
        if self.led_term is None or not self._descriptions.is_due(self._now_ms()):
            return
        members = self.consensus.logged_members
        change = None if members is None else self._descriptions.next_change(members, self._addresses.recent())
        if change is not None:
            self._descriptions.begun()
            self._tasks.keep(self._describe(change))

    async def _describe(self, change: MemberChange) -> None:
        is_written = False
        try:
            await self.consensus.change_member(change)
            is_written = True
        except NamesrvError as error:
            log.info("the description of a member was not written", extra={"member": change.name, "cause": str(error)})
        finally:
            self._descriptions.ended(self._now_ms(), is_written)

    def _prefer_leader(self) -> None:
        term = self.led_term
        if not self._preference.is_due(term, self._now_ms()):
            return
        drained = {node.node_id for node in self._addresses.all() if node.drained}
        target = self._preference.target(self.consensus.raft_status(), drained)
        if target is not None:
            log.info("transferring leadership to a preferred node", extra={"to": target, "term": term})
            self._tasks.keep(self._transfer_to(target))

    async def _transfer_to(self, node: str) -> None:
        try:
            await self.consensus.transfer_leadership(node)
        except NamesrvError as error:
            log.info("leadership was not transferred", extra={"cause": str(error)})

    def _change_serving(self, serving: bool) -> None:
        """This node has fenced itself (False) or serves again."""
        if not serving:
            self.fence_count += 1
            self.liveness.client.fail(NO_MAJORITY)
            self.proposer.give_up(NO_MAJORITY)
        if not self._stopping and not self.reads.serves_stale:
            self._on_serving(serving)

    # Writes

    def on_change(self, note: Callable[[AppliedChange], None]) -> None:
        """``note`` is called with every change that this node applies, even when it reads its log again at the start."""
        self._machine.on_changed = lambda command, removal, origin: note(
            AppliedChange(command, removal, self.state.revision, origin)
        )

    def on_log_events(self, events: LogEvents) -> None:
        """``events`` gets everything else in the log that belongs in an audit log, even when this node reads its log again."""
        machine = self._machine
        machine.on_operation = lambda request, target, origin: events.requested(request, target, origin, machine.serial)
        machine.on_restore = lambda step, restore_id, origin: events.restore(step, restore_id, self.state.revision, origin)
        machine.on_replaced = lambda: events.replaced(self.state.revision)

        def members_applied() -> None:
            self._members_changed()
            events.members(*self.consensus.applied_members)

        self.consensus.on_members = members_applied

    async def announce(self, request: str, target: str | None, origin: ChangeOrigin | None) -> None:
        """Record an operation in the audit log of every node before it is executed. No-op while not every member knows such
        commands. A change of members is not recorded while the states of the nodes differ: nothing can be written then, but the
        removal of a member decides whose state is right. Raises UnavailableError, OutcomeUnknownError, NoPermissionError."""
        if origin is None or (self.consensus.states_differ and "/v1/members/" in request):
            return
        if self._applied.is_live and self.consensus.command_version >= OPERATION_VERSION:
            data = encode_operation(request, target or "", self.liveness.client.leader_time_ms)
            await self.proposer.propose(data, origin=origin)

    @property
    def group_id(self) -> str:
        """Identifies the cluster. Empty while it is unknown."""
        return self.consensus.group_id

    def propose(
        self, command: Command, connection: Connection | None, origin: ChangeOrigin | None = None
    ) -> Result | Future[Result]:
        origin = origin or origin_of(connection)
        if isinstance(command, UnregisterBrokers):
            return within(self.quotas, command, lambda grant: self.broker_calls.unregister(command, connection))
        return within(
            self.quotas, command, lambda grant: self._tasks.keep(self._propose_plain(command, origin, connection, grant))
        )

    async def _propose_plain(
        self,
        command: Command,
        origin: ChangeOrigin | None = None,
        connection: Connection | None = None,
        grant: Grant | None = None,
    ) -> Result:
        topics = self.state.topics_concerned(command)
        data = encode_plain(command, self.liveness.client.leader_time_ms)
        return (await self.proposer.propose(data, None, topics, origin, connection, grant)).result

    def update_config(self, values: Mapping[str, str], origin: ChangeOrigin | None = None) -> Result | Future[Result]:
        """Change shared keys through the log, for all nodes, and the other keys in this node's file. Fails with PartlyDoneError
        if one of the two changes was made and it is certain or possible that the other was not."""
        taken = checked_update(self._settings, self.quotas, values)
        return taken if isinstance(taken, Result) else self._tasks.keep(self._config.update(taken, origin))

    async def _confirm_majority(self) -> None:
        if self.fenced:
            raise UnavailableError(NO_MAJORITY)
        await confirm(self.consensus)

    def config_text(self) -> str:
        return self._settings.text()

    def check_restore(self) -> None:
        """No-op: whether the cluster is fresh is decided in the log."""

    def restore(self, snapshot: Iterable[bytes], origin: ChangeOrigin | None = None) -> Future[Result]:
        """Replace a fresh cluster's state by the snapshot of a backup. A result with a code other than 0: refused."""
        is_named = self._applied.is_live and self.consensus.command_version >= OPERATION_VERSION
        return asyncio.ensure_future(restore(self.proposer.propose, snapshot, origin, is_named))

    # Brokers

    def connection_opened(self, connection: Connection) -> None:
        self.broker_calls.opened(connection)

    def connection_lost(self, connection: Connection, reason: CloseReason) -> None:
        self.broker_calls.lost(connection, reason)

    def register(
        self, registration: RegisterBroker, connection: Connection, received: int | None = None
    ) -> Result | Future[Result]:
        """Register a broker: as a renewal if the registration is a no-op, otherwise through the log. ``received``: the revision
        at which it was received, if ``renew_unchanged`` has returned one."""
        registration = with_own_mappings(registration)
        try:
            return within(
                self.quotas, registration, lambda grant: self.broker_calls.register(registration, connection, grant, received)
            )
        except LimitError:
            self.broker_calls.change_arrived(registration, connection)
            raise

    def renew_unchanged(
        self, cluster_name: str, broker_addr: str, connection: Connection
    ) -> Result | Future[Result | int] | None:
        return self.broker_calls.renew_unchanged(cluster_name, broker_addr, connection)

    def heartbeat(self, cluster_name: str, broker_addr: str, connection: Connection) -> None:
        self.broker_calls.heartbeat(cluster_name, broker_addr, connection)

    def query_data_version(
        self, cluster_name: str, broker_addr: str, data_version: DataVersion | None, connection: Connection
    ) -> DataVersionAnswer | Future[DataVersionAnswer]:
        """A linearizable read that also renews the registration. While this node serves stale answers, it is a stale read."""
        key = (cluster_name, broker_addr)
        if self.fenced:
            self.barrier(None, None)  # raises an error if this node was removed
            if not self.reads.serves_stale:
                raise UnavailableError(NO_MAJORITY)
            registration = self.state.registration(*key)
            stored = None if registration is None else registration.data_version
            return DataVersionAnswer(stored is None or data_version != stored, stored)
        return self.broker_calls.query_data_version(key, data_version, connection)

    # Status and operations

    def on_own_address(self, own: Callable[[], NodeAddress]) -> None:
        """``own()`` is where brokers and clients reach this node."""
        self._addresses.own = own

    def node_addresses(self) -> list[NodeAddress]:
        """Where brokers and clients reach the nodes of the cluster, as far as this node knows."""
        return self._addresses.all()

    def members(self) -> list[dict[str, object]]:
        """JSON-able: the members, with the progress of each if this node leads."""
        return members_of(self._settings, self.consensus.standing(), self.consensus.raft_status, self._addresses.all())

    def change_member(self, action: str, name: str, address: tuple[str, int] | None, observer: bool) -> Future[None]:
        """Add, remove, promote or move a member. Fails with SettingError, UnavailableError or OutcomeUnknownError."""
        return self.consensus.change_member(MemberChange(action, name, address, observer))

    def transfer_leadership(self, to: str | None) -> Future[None]:
        """Transfer leadership to ``to``, or to the node with the longest log. Raises SettingError; fails with
        UnavailableError.
        """
        return self.consensus.transfer_leadership(to)

    @property
    def fenced(self) -> bool:
        """Whether this node is fenced: it receives no confirmed read index."""
        return self.reads.fenced

    @property
    def answers_stale(self) -> bool:
        """Whether this node gives stale answers because it receives no confirmed read index."""
        return self.reads.answers_stale

    @property
    def staleness_ms(self) -> int:
        """Age of the state."""
        return self.reads.staleness_ms

    @property
    def led_term(self) -> int | None:
        """The current term if this node leads it."""
        return self.consensus.led_term

    @property
    def unsynced_ms(self) -> float:
        """Age of the oldest write to the log that is not on the disk."""
        return self.consensus.unsynced_ms

    @property
    def peer_refusals(self) -> Mapping[str, int]:
        """Number of refused connections and messages of peers, by the kind of refusal."""
        return self.consensus.peer_refusals

    @property
    def disk_problem(self) -> str | None:
        """The problem of the log's disk, if a sync does not end."""
        return self.consensus.disk_problem

    @property
    def waits_for(self) -> str | None:
        return self.consensus.waits_for

    @property
    def disk_warning(self) -> str | None:
        """A warning if little of the disk is free, else None."""
        return None if self._disk is None else self._disk.warning

    @property
    def disk_free_bytes(self) -> int | None:
        """Bytes free on the disk of ``dataDir``."""
        return None if self._disk is None else self._disk.disk.free_bytes

    @property
    def expired_count(self) -> int:
        """Brokers that this node, as leader, removed after their time-out."""
        return self.liveness.expired_count

    @property
    def lost_count(self) -> int:
        """Brokers that this node, as leader, removed because they had closed their connections to all nodes."""
        return self.liveness.lost_count

    def heartbeat_age_ms(self, cluster_name: str, broker_addr: str) -> float | None:
        """Milliseconds since the broker's last contact. None: no contact is known. A leader knows the contacts with all nodes.
        Another node knows only the contacts with itself."""
        return self.liveness.age_ms((cluster_name, broker_addr))

    def suspected_since(self) -> dict[tuple[str, str], int]:
        """Brokers whose silence is recorded, and since when by the leader's clock."""
        return {key: known.since_ms for key, known in self._machine.suspected.items()}

    def on_suspected(self, notify: Callable[[tuple[str, str], int | None], None]) -> None:
        """``notify(broker, since_ms)`` when a broker begins to be suspected, and with None when the suspicion ends; never in
        replay."""

        def changed(keys: list[tuple[str, str]]) -> None:
            for key in keys if self._applied.is_live else ():
                known = self._machine.suspected.get(key)
                notify(key, None if known is None else known.since_ms)

        self._machine.on_suspected = changed

    def measurements(self) -> Iterator[Measurement]:
        """Metrics of this kind of node."""
        yield Measurement("fences", self.fence_count)
        for outcome, count in self.liveness.client.renewed.items():
            yield Measurement("renewals", count, (outcome,))
        yield from self.consensus.measurements()

    def replication_status(self) -> dict[str, object] | None:
        """JSON-able status of this node in its cluster."""
        standing = self.consensus.standing()
        if standing is None:
            return None
        return {
            **standing,
            "fenced": self.fenced,
            "noQuorumPolicy": self._settings.no_quorum_policy,
            "confirmedMsAgo": self.reads.staleness_ms if self._applied.is_live else None,
            "servesStale": self.reads.answers_stale,
            "digest": self._machine.digest().hex(),
            "raft": self.consensus.raft_status(),
        }

    def contacts(self) -> Mapping[str, object]:
        """JSON-able facts of Raft about the connections with the peers; empty before its start."""
        return {} if self.consensus.standing() is None else self.consensus.contacts()

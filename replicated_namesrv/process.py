"""A node: settings, service, remoting server and admin port, and its life from start to stop.

Order of the start; the stop has the reverse order:

1. Access control, loop lag sampler, health port and admin port: from here on the node reports why it does not serve yet.
2. The service: it loads the state and, in CP, finds a majority.
3. The remoting server: brokers and clients that can connect are served.

A failing start stops all started parts and prints the reason in one line. A stop has a time limit.
"""

import asyncio
import contextlib
import ctypes
import gc
import logging
import os
import signal
from asyncio import Future
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

from replicated_namesrv.access.access_control import AccessControl
from replicated_namesrv.access.identities import AccessRules
from replicated_namesrv.admin.app import AdminServer, HealthServer
from replicated_namesrv.admin.change_records import ChangeRecords, RecordedCluster
from replicated_namesrv.admin.context import AdminContext, AdminService, Drained
from replicated_namesrv.admin.health import Layer
from replicated_namesrv.admin.json_views import admin_address, advertised_address
from replicated_namesrv.admin.loop_lag import LoopLag
from replicated_namesrv.compat import IndependentNode
from replicated_namesrv.errors import NamesrvError, StorageError
from replicated_namesrv.files import create_folder, hold_folder, why_unwritable
from replicated_namesrv.server.server import RemotingServer, RemotingService
from replicated_namesrv.server.tls import CLIENT_AUTH
from replicated_namesrv.service import AppliedChange, LogEvents, NodeAddress
from replicated_namesrv.service_manager import ServiceManager
from replicated_namesrv.settings import ROWS, Settings
from replicated_namesrv.time_limit import ends_within
from replicated_namesrv.tracing import Tracing

log = logging.getLogger(__name__)

STOP_MARGIN_S = 10.0
"""Extra time for a stop, in addition to shutdownWaitTimeSeconds."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
OWN_MAPPING_BYTES = 1 << 20
"""A memory block larger than this gets a mapping of its own."""
KEPT_FREE_BYTES = 8 << 20
"""Free memory that the process keeps for smaller blocks."""
GC_THRESHOLDS = (5_000, 10, 2_000)
"""Thresholds of the garbage collector. The state is large, long-lived and free of cycles. So collections of all objects are rare:
with 300 brokers of 10,000 topics each, one stalls the loop for about 100 ms. With Python's own thresholds there were 26 of them
while these brokers registered. The two other kinds visit only new objects: at most some 10,000 (about 0.8 ms), and some 60,000
(about 12 ms). With thresholds of 50,000 and 20, these collections took 10 ms and 300 ms while many brokers were stored."""


class StartError(NamesrvError):
    """The node could not start. The text has the reason and the remedy."""


ADDRESS_SECONDS = 1.0
"""For this time, this node's own address is not searched again. The service asks for it ten times a second, and a search costs
system calls."""


class NodeService(RemotingService, AdminService, Protocol):
    """The part of a node's service that this module uses: the calls that server and admin need, and start and stop. Both kinds of
    nodes implement it.
    """

    @property
    def waits_for(self) -> str | None:
        """Why the service is still starting; None: it is not, or the reason is unknown."""

    @property
    def disk_problem(self) -> str | None:
        """The problem of the log's disk: a sync has not ended in time. None if there is no log."""

    def on_serving(self, change: Callable[[bool], None]) -> None:
        """``change(False)``: stop serving, the state can no longer be confirmed (fence). ``change(True)``: serve again."""

    def on_change(self, note: Callable[[AppliedChange], None]) -> None:
        """``note`` is called with every change that this node applies, even when it reads its log again at the start."""

    def on_log_events(self, events: LogEvents) -> None:
        """``events`` gets everything else in the log that belongs in an audit log. No-op in AP."""

    def on_failure(self, stop: Callable[[str], None]) -> None:
        """``stop(reason)`` is called when the service cannot continue and the process should end."""

    async def start(self) -> None:
        """Load the state. Returns when it can be served."""

    async def stop(self) -> None:
        """Idempotent."""


def service_of(settings: Settings, tracing: Tracing | None) -> NodeService:
    """The service for ``mode``. Raises SettingError."""
    if settings.mode == "cp":
        # Imported here because an independent node does not need the consensus code.
        from replicated_namesrv.replication.peer_settings import transport_settings
        from replicated_namesrv.replication.replicated_node import ReplicatedNode

        return ReplicatedNode(settings, transport_settings(settings), tracing=tracing)
    return IndependentNode(settings)


def unusable_credentials(settings: Settings, rules: AccessRules) -> list[str]:
    """Warnings about identities that this node cannot recognise, because of other settings."""
    found = []
    no_certificates = settings.tls_server_need_client_auth.lower() not in CLIENT_AUTH or not settings.tls_server_auth_client
    if no_certificates and any(identity.certificates for identity in rules.identities):
        found.append(
            "the access file has certificates, but brokers and clients are not asked for them: set tls.server.authClient=true, "
            "tls.server.trustCertPath and tls.server.need.client.auth=optional or require"
        )
    if settings.tls_server_mode == "disabled" and rules.has_access_keys and not settings.access_keys_in_plain_text:
        found.append("the access file has access keys, but they are accepted only over TLS, and tls.server.mode=disabled")
    return found


def shared_authority(settings: Settings) -> list[str]:
    """A warning if certificates alone admit nodes."""
    if settings.mode != "cp" or not settings.peer_tls_cert_path or settings.peer_secret_file:
        return []
    return [
        "peerSecretFile is not set: the peer port accepts every certificate that an authority in peerTlsTrustCertPath signed for "
        "the name of a node; set peerSecretFile, unless this authority signs certificates of nodes only"
    ]


def check_folder(settings: Settings) -> None:
    """Check that the node can write its files: kvConfig.json (AP), or the log (CP). Raises StartError.

    If an independent node cannot write into the default folder, there is only a warning: routes need no disk, and a node in a
    container without one can serve them.
    """
    is_ap = settings.mode == "ap"
    why = why_unwritable(Path(settings.kv_config_path) if is_ap else settings.data_path / "raft" / "lock")
    if why is None:
        return
    for attribute, name, value in (
        *((("kv_config_path", "kvConfigPath", settings.kv_config_path),) if is_ap else ()),
        ("data_dir", "dataDir", settings.data_dir or settings.data_path),
    ):
        if attribute in settings.origins or not is_ap:
            origin = settings.origins.get(attribute, "default")
            raise StartError(f"{name}={value} ({origin}): {why}; make it writable or name another folder")
    log.warning("changes of the KV config will be refused; name a folder with --data-dir (dataDir)", extra={"why": why})


def take_folder(settings: Settings) -> int | None:
    """A descriptor that keeps other nodes out of dataDir until it is closed: each would overwrite what the other one has
    acknowledged. None: the folder cannot be marked. Raises StorageError.

    Several independent nodes may share the default folder, with a warning, as RocketMQ's name servers do.
    """
    folder = settings.data_path
    is_ap, may_share = settings.mode == "ap", settings.mode == "ap" and "data_dir" not in settings.origins
    if is_ap and not may_share:
        with contextlib.suppress(OSError):  # an independent node that stores nothing can serve
            create_folder(folder)
    try:
        return hold_folder(folder, alone=True)
    except StorageError as error:
        if not may_share:
            raise
        log.warning("each node overwrites the KV config and settings that the other one has stored", extra={"why": str(error)})
        return None


class ServingNode:
    """One name server. Call ``start`` and ``stop`` once each."""

    def __init__(self, settings: Settings) -> None:
        """Raises SettingError."""
        self.settings = settings
        self.tracing = Tracing.of(settings)
        self.service = service_of(settings, self.tracing)
        self.access = AccessControl.of(settings)
        self._records: ChangeRecords | None = None
        if self.access is not None and self.access.audit is not None:
            self._records = ChangeRecords(self.access.audit, self._cluster if settings.mode == "cp" else None)
            self.service.on_log_events(self._records)
        if self.access is not None:
            self.service.on_change(self._applied)
        self.remoting = RemotingServer(settings, self.service, access=self.access)
        if self.tracing is not None:
            self.remoting.dispatcher.trace(self.tracing)
        self.failure: str | None = None
        """Why this node has to end; None while it can continue."""
        self.on_failure: Callable[[], None] = lambda: None
        self.on_serving_changed: Callable[[bool], None] = lambda serving: None
        self._changes: set[Future[None]] = set()
        self.service.on_serving(self._serve)
        self.service.on_failure(self._fail)
        self.loop_lag = LoopLag()
        self._service_started = False
        self._serving_wanted = False
        """Whether the remoting server should listen while the node is not fenced."""
        self._is_fenced = False
        self.is_drained = False
        """Whether an operator has drained this node."""
        self._address = self._admin_address = ""
        """The addresses for brokers and clients, and for administrators."""
        self._address_of: tuple[int, tuple[str, int] | None] | None = None
        """The remoting port and the bound admin address for which they were found."""
        self._address_until = 0.0
        """Time until which they are not searched again."""
        layers = [Layer("service", self._service_problem), Layer("remoting", self._remoting_problem)]
        layers.insert(0, Layer("disk", lambda: self.service.disk_problem, lambda: self.service.disk_warning))
        context = AdminContext(settings, self.service, self.remoting, layers, self.loop_lag, monotonic(), self, self.access)
        self.admin = AdminServer(context) if settings.admin_address is not None else None
        if self.admin is not None and self.access is None:
            self.remoting.dispatcher.note_operators(self.admin.note_request)
        self.health = HealthServer(context) if settings.health_address is not None else None
        self.service.on_own_address(lambda: self._own_address(context))
        self._undo: list[Callable[[], object]] = []
        self._has_folder = False

    def _applied(self, change: AppliedChange) -> None:
        if self._records is not None:
            self._records.note(change)
        if self.admin is not None and change.origin is not None:
            self.admin.note_cause(change.revision, change.origin)

    def _cluster(self) -> RecordedCluster | None:
        """None while it is unknown."""
        others = [node.node_id for node in self.service.node_addresses() if node.node_id != self.settings.node_id]
        return RecordedCluster(self.service.group_id, others) if self.service.group_id else None

    @property
    def listen_address(self) -> str:
        """host:port of the remoting server."""
        host = self.settings.listen_address[0]
        return f"[{host}]:{self.remoting.port}" if ":" in host else f"{host}:{self.remoting.port}"

    @property
    def description(self) -> str:
        """A short description of the node."""
        return f"serving on {self.listen_address}, node {self.settings.node_id}, mode={self.settings.mode}"

    def take(self, fresh: Settings) -> None:
        """Apply the settings in ``fresh`` that may change at run time, except shared settings. Shared settings change through
        ``UPDATE_NAMESRV_CONFIG`` (318), which 'namesrv config' sends."""
        differing = [row for row in ROWS.values() if not row.replicated and fresh.get(row) != self.settings.get(row)]
        self.settings.update({row.name: row.show(fresh.get(row)) for row in differing if row.live})
        self.settings.reread(fresh.run_time)
        changed, waiting = ([row.name for row in differing if row.live is live] for live in (True, False))
        log.info("settings read again", extra={"changed": changed, "in_force_after_restart": waiting})
        if self.access is not None:
            self.access.record("settings-reloaded", changed=changed, inForceAfterRestart=waiting)

    async def start(self) -> None:
        """Start everything, or stop what was started and raise StartError."""
        try:
            check_folder(self.settings)
            self._take_folder()
            if self.access is not None:
                await self.access.start()
                self._undo.append(self.access.stop)
            if self.tracing is not None:
                self._undo.append(self.tracing.stop)
            self.loop_lag.start()
            self._undo.append(self.loop_lag.stop)
            address = self.settings.health_address
            if self.health is not None and address is not None:
                await self.health.start(*address)
                self._undo.append(self.health.stop)
            address = self.settings.admin_address
            if self.admin is not None and address is not None:
                await self.admin.start(*address)
                self._undo.append(self.admin.stop)
            await self.service.start()
            self._undo.append(self.service.stop)
            if self.settings.mode == "cp":
                self._take_folder()  # now it exists
            if self._records is not None:
                self._records.started()
            self._service_started = True
            await self.remoting.start()
            self._undo.append(self.remoting.stop)
            self._serving_wanted = True
            if self._is_fenced or self.is_drained:
                self.remoting.fence()
        except NamesrvError as error:
            await self.stop()
            raise StartError(str(error)) from error
        except BaseException:
            await self.stop()
            raise

    def _take_folder(self) -> None:
        if not self._has_folder and (held := take_folder(self.settings)) is not None:
            self._has_folder = True
            self._undo.insert(0, lambda: os.close(held))  # after the service has stopped

    async def stop(self) -> None:
        """Stop what was started, last first, in at most ``shutdownWaitTimeSeconds`` plus ``STOP_MARGIN_S``."""
        self._serving_wanted = False
        if not await ends_within(self.settings.shutdown_wait_time_seconds + STOP_MARGIN_S, self._undo_start()):
            log.error("the stop took too long and was cut short")

    async def _undo_start(self) -> None:
        while self._undo:
            stopped = self._undo.pop()()
            if stopped is not None:
                await stopped  # type: ignore[misc]  # not None: a coroutine

    def _own_address(self, context: AdminContext) -> NodeAddress:
        now, bound = monotonic(), (self.remoting.port, None if self.admin is None else self.admin.address)
        if now >= self._address_until or bound != self._address_of:
            self._address, self._address_of = advertised_address(context), bound
            self._admin_address = admin_address(context, bound[1])
            self._address_until = now + ADDRESS_SECONDS
        serves = self.remoting.is_listening and not self.is_drained
        zone = self.settings.zone
        return NodeAddress(self.settings.node_id, self._address, serves, self.is_drained, zone, self._admin_address)

    def announce_drain(self) -> None:
        """Leave the address lists of all nodes. ``drain`` or ``resume`` has to follow."""
        self.is_drained = True

    async def drain(self, within_s: float) -> Drained | None:
        """Transfer leadership, close the connections of brokers and clients, and refuse new ones, until ``resume`` or a
        restart. None: ``resume`` or another drain ended this one."""
        self.is_drained = True
        if self.settings.mode == "cp" and self.remoting.is_listening:
            try:
                await self.service.transfer_leadership(self._successor())
            except NamesrvError as error:  # this node does not lead, or no other node can take over
                log.info("draining without a transfer of leadership", extra={"cause": str(error)})
            if not self.is_drained:  # ``resume`` ended this drain while leadership was being transferred
                return None
        done = await self.remoting.drain(within_s) if self._serving_wanted else (0, 0)
        if done is None:
            return None
        connections, cut = done
        log.info("drained", extra={"connections": connections, "cut": cut})
        return Drained(connections - cut, cut)

    def _successor(self) -> str | None:
        """The serving voter with the longest log: one that is drained will be restarted soon. None: any voter."""
        rows: list[dict[str, Any]] = self.service.members()
        serving = [row for row in rows if row["role"] == "voter" and row["serves"] and row["matchIndex"]]
        return max(serving, key=lambda row: int(row["matchIndex"]))["nodeId"] if serving else None

    async def resume(self) -> None:
        self.is_drained = False
        if self._serving_wanted and not self._is_fenced:
            await self.remoting.unfence()

    def _serve(self, serving: bool) -> None:
        self._is_fenced = not serving
        if not self._serving_wanted or self.is_drained:
            return
        if serving:
            task = asyncio.ensure_future(self.remoting.unfence())
            self._changes.add(task)
            task.add_done_callback(self._unfenced)
        else:
            self.remoting.fence()
            self.on_serving_changed(False)

    def _unfenced(self, task: Future[None]) -> None:
        self._changes.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(f"cannot listen again: {error}")
        elif self._is_fenced or self.is_drained or not self._serving_wanted:
            self.remoting.fence()
        else:
            self.on_serving_changed(True)

    def _fail(self, reason: str) -> None:
        self.failure = self.failure or reason
        self._serve(False)
        self.on_failure()

    async def _service_problem(self) -> str | None:
        if not self._service_started:
            return f"starting: {self.service.waits_for}" if self.service.waits_for else "starting"
        freshness = self.service.barrier(None, None)
        if isinstance(freshness, Future):
            await asyncio.shield(freshness)
        return None

    def _remoting_problem(self) -> str | None:
        if self.is_drained:
            return "drained: brokers and clients were disconnected; a restart or 'namesrv drain --undo' ends it"
        return None if self.remoting.is_listening else "not listening"


async def live(settings: Settings, report_started: Callable[[ServingNode], None], load: Callable[[], Settings]) -> None:
    """Start a node, call ``report_started``, and run until SIGTERM or SIGINT; then stop. A second signal ends the process at
    once.

    SIGHUP: ``load`` the settings again, and apply the settings that may change at run time. Raises SettingError or StartError.
    """
    manager = ServiceManager()
    node = ServingNode(settings)
    loop = asyncio.get_running_loop()
    stop_requested = asyncio.Event()

    def stop(number: signal.Signals) -> None:
        log.info("stopping", extra={"signal": number.name})
        for each in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(each)
        stop_requested.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    loop.add_signal_handler(signal.SIGHUP, _reload, node, load, manager)
    node.on_failure = stop_requested.set
    node.on_serving_changed = lambda serving: manager.status(node.description if serving else "not serving: no majority")
    manager.watch()
    for warning in (*settings.warnings, *shared_authority(settings)):
        log.warning(warning)
    for warning in () if node.access is None else unusable_credentials(settings, node.access.rules):
        log.warning(warning)
    if not await _started(node, stop_requested):
        return
    tune_garbage_collection()
    tune_allocation()
    report_started(node)
    manager.ready(node.description)
    log.info("access policy in force", extra={"policy": settings.access_policy, "file": settings.access_file or None})
    log.info("serving", extra={"address": node.listen_address, "mode": settings.mode, "node": settings.node_id})
    await stop_requested.wait()
    manager.stopping()
    await node.stop()
    if node.failure is not None:
        raise StartError(f"this node cannot continue: {node.failure}")
    log.info("stopped")


def _reload(node: ServingNode, load: Callable[[], Settings], manager: ServiceManager) -> None:
    """Reload the settings. If they are invalid, the node continues with the present ones."""
    manager.reloading()
    try:
        node.take(load())
    except (NamesrvError, OSError) as error:
        log.error("the settings could not be read again, the old ones stay", extra={"cause": str(error)})
        if node.access is not None:
            node.access.record("settings-reload-failed", why=str(error))
    manager.ready(node.description)


async def _started(node: ServingNode, stop_requested: asyncio.Event) -> bool:
    """Start ``node`` unless it is stopped first: a replicated node waits for a majority. Raises StartError."""
    start = asyncio.ensure_future(node.start())
    stop = asyncio.ensure_future(stop_requested.wait())
    await asyncio.wait((start, stop), return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    if start.done():
        await start
        return True
    start.cancel()
    await asyncio.gather(start, return_exceptions=True)
    if node.failure is not None:
        raise StartError(node.failure)
    return False


def tune_garbage_collection() -> None:
    """Exclude what the start created (modules, code) from later collections, and make collections rarer."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def tune_allocation() -> None:
    """Let the C library return large blocks to the system when they are freed, and grow them without copying.

    Otherwise glibc keeps large blocks after it has seen a few of them: after an attack with large frames, the process kept
    hundreds of megabytes. Other C libraries return them by default.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(M_MMAP_THRESHOLD, OWN_MAPPING_BYTES)
        libc.mallopt(M_TRIM_THRESHOLD, KEPT_FREE_BYTES)


def run(settings: Settings, report_started: Callable[[ServingNode], None], load: Callable[[], Settings]) -> None:
    """Run ``live`` on the fastest available event loop."""
    import uvloop  # imported here so that a command line error is reported without waiting for this import

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(live(settings, report_started, load))


__all__ = ["NodeService", "ServingNode", "StartError", "live", "run", "service_of"]

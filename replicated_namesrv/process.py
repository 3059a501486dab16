"""A node: settings, service, remoting server and admin HTTP, put together, and its life from start to stop.

Order of the start, and in reverse of the stop:

1. loop lag sampler and admin HTTP: from here on a node says why it does not serve yet;
2. the service: the state is loaded, in CP a majority found;
3. the remoting server: whoever can connect is served.

A start that fails takes down what was up and tells why in one line. A stop is bounded: whatever hangs, the process ends.
"""

import asyncio
import ctypes
import gc
import logging
import signal
from asyncio import Future
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Protocol

from replicated_namesrv.admin.app import AdminServer, HealthServer
from replicated_namesrv.admin.context import AdminContext, AdminService
from replicated_namesrv.admin.health import Layer
from replicated_namesrv.admin.loop_lag import LoopLag
from replicated_namesrv.compat import IndependentNode
from replicated_namesrv.errors import NamesrvError
from replicated_namesrv.files import why_unwritable
from replicated_namesrv.server.server import RemotingServer, RemotingService
from replicated_namesrv.service_manager import ServiceManager
from replicated_namesrv.settings import ROWS, Settings

log = logging.getLogger(__name__)

STOP_MARGIN_S = 10.0
"""What a stop may take beyond shutdownWaitTimeSeconds."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
OWN_MAPPING_BYTES = 1 << 20
"""A block of more has a mapping of its own."""
KEPT_FREE_BYTES = 8 << 20
"""Free memory that is kept for the blocks of fewer."""
GC_THRESHOLDS = (50_000, 20, 100)
"""Collections of young objects are rarer than Python's own thresholds ask for, and those of all objects rarer still: the
state is large, lives long and has no circles. Looking through that of 300 brokers with 10,000 topics each holds the loop for
about 100 ms, and with Python's thresholds it happened 26 times while they registered."""


class StartError(NamesrvError):
    """The node could not start; the text says why and what to do."""


class NodeService(RemotingService, AdminService, Protocol):
    """What keeps the state: all that server and admin need, and its life. Both kinds of nodes satisfy it structurally."""

    @property
    def disk_problem(self) -> str | None:
        """What is wrong with the disk of the log: a sync has not ended in time. None where there is no log."""

    def on_serving(self, change: Callable[[bool], None]) -> None:
        """``change(False)``: stop serving, the state can no longer be confirmed (fence); ``change(True)``: serve again."""

    def on_failure(self, stop: Callable[[str], None]) -> None:
        """``stop(reason)``: the service cannot go on, and the process should end."""

    async def start(self) -> None:
        """Load the state; returns when it can be served."""

    async def stop(self) -> None:
        """Idempotent."""


def service_of(settings: Settings) -> NodeService:
    """The service that ``mode`` asks for. Raises SettingError."""
    if settings.mode == "cp":
        # Imported here: an independent node needs nothing of consensus.
        from replicated_namesrv.replication.peer_settings import transport_settings
        from replicated_namesrv.replication.replicated_node import ReplicatedNode

        return ReplicatedNode(settings, transport_settings(settings))
    return IndependentNode(settings)


def check_kv_folder(settings: Settings) -> None:
    """Can an independent node write kvConfig.json? Raises StartError where it cannot and the folder was asked for.

    The default folder is only warned about: routes need no disk, and a node in a container without one serves them.
    """
    why = why_unwritable(Path(settings.kv_config_path)) if settings.mode == "ap" else None
    if why is None:
        return
    for attribute, name, value in (
        ("kv_config_path", "kvConfigPath", settings.kv_config_path),
        ("data_dir", "dataDir", settings.data_dir),
    ):
        if attribute in settings.origins:
            raise StartError(f"{name}={value} ({settings.origins[attribute]}): {why}; make it writable or name another folder")
    log.warning("changes of the KV config will be refused; name a folder with --data-dir (dataDir)", extra={"why": why})


class ServingNode:
    """One name server. ``start`` and ``stop`` once each."""

    def __init__(self, settings: Settings) -> None:
        """Raises SettingError."""
        self.settings = settings
        self.service = service_of(settings)
        self.remoting = RemotingServer(settings, self.service)
        self.failure: str | None = None
        """Why this node has to end, once it has to."""
        self.on_failure: Callable[[], None] = lambda: None
        self.on_serving_changed: Callable[[bool], None] = lambda serving: None
        self._changes: set[Future[None]] = set()
        self.service.on_serving(self._serve)
        self.service.on_failure(self._fail)
        self.loop_lag = LoopLag()
        self._service_started = False
        self._serving_wanted = False
        """Whether the remoting server listens but for a fence."""
        self._is_fenced = False
        layers = [Layer("service", self._service_problem), Layer("remoting", self._remoting_problem)]
        layers.insert(0, Layer("disk", lambda: self.service.disk_problem, lambda: self.service.disk_warning))
        context = AdminContext(settings, self.service, self.remoting, layers, self.loop_lag, started_monotonic_s=monotonic())
        self.admin = AdminServer(context) if settings.admin_address is not None else None
        self.health = HealthServer(context) if settings.health_address is not None else None
        self._undo: list[Callable[[], object]] = []

    @property
    def listen_address(self) -> str:
        """host:port of the remoting server."""
        host = self.settings.listen_address[0]
        return f"[{host}]:{self.remoting.port}" if ":" in host else f"{host}:{self.remoting.port}"

    @property
    def description(self) -> str:
        """The node in a few words."""
        return f"serving on {self.listen_address}, node {self.settings.node_id}, mode={self.settings.mode}"

    def take(self, fresh: Settings) -> None:
        """Put in force those of ``fresh`` that may change while the node runs. What nodes share is not for one of them to
        change: that goes through code 318, as 'namesrv config' sends it."""
        differing = [row for row in ROWS.values() if not row.replicated and fresh.get(row) != self.settings.get(row)]
        self.settings.update({row.name: row.show(fresh.get(row)) for row in differing if row.live})
        log.info(
            "settings read again",
            extra={
                "changed": [row.name for row in differing if row.live],
                "in_force_after_restart": [row.name for row in differing if not row.live],
            },
        )

    async def start(self) -> None:
        """Start everything, or raise StartError with nothing left running."""
        try:
            check_kv_folder(self.settings)
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
            self._service_started = True
            await self.remoting.start()
            self._undo.append(self.remoting.stop)
            self._serving_wanted = True
            if self._is_fenced:
                self.remoting.fence()
        except NamesrvError as error:
            await self.stop()
            raise StartError(str(error)) from error
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop what was started, last first; at most ``shutdownWaitTimeSeconds`` and ``STOP_MARGIN_S``."""
        self._serving_wanted = False
        try:
            async with asyncio.timeout(self.settings.shutdown_wait_time_seconds + STOP_MARGIN_S):
                while self._undo:
                    stopped = self._undo.pop()()
                    if stopped is not None:
                        await stopped  # type: ignore[misc]  # not None: a coroutine
        except TimeoutError:
            log.error("the stop took too long and was cut short")

    def _serve(self, serving: bool) -> None:
        self._is_fenced = not serving
        if not self._serving_wanted:
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
        elif self._is_fenced or not self._serving_wanted:
            self.remoting.fence()
        else:
            self.on_serving_changed(True)

    def _fail(self, reason: str) -> None:
        self.failure = self.failure or reason
        self._serve(False)
        self.on_failure()

    async def _service_problem(self) -> str | None:
        if not self._service_started:
            return "starting"
        freshness = self.service.barrier(None, None)
        if isinstance(freshness, Future):
            await asyncio.shield(freshness)
        return None

    def _remoting_problem(self) -> str | None:
        return None if self.remoting.is_listening else "not listening"


async def live(settings: Settings, report_started: Callable[[ServingNode], None], load: Callable[[], Settings]) -> None:
    """The whole life of a node: start, ``report_started``, until SIGTERM or SIGINT, stop. A second signal ends it at once.

    SIGHUP: ``load`` the settings anew and take those that may change while the node runs. Raises SettingError or StartError.
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
    for warning in settings.warnings:
        log.warning(warning)
    if not await _started(node, stop_requested):
        return
    tune_garbage_collection()
    tune_allocation()
    report_started(node)
    manager.ready(node.description)
    log.info("serving", extra={"address": node.listen_address, "mode": settings.mode, "node": settings.node_id})
    await stop_requested.wait()
    manager.stopping()
    await node.stop()
    if node.failure is not None:
        raise StartError(f"this node cannot go on: {node.failure}")
    log.info("stopped")


def _reload(node: ServingNode, load: Callable[[], Settings], manager: ServiceManager) -> None:
    """Whatever is wrong with the new settings, the node goes on with those it has."""
    manager.reloading()
    try:
        node.take(load())
    except (NamesrvError, OSError) as error:
        log.error("the settings could not be read again, the old ones stay", extra={"cause": str(error)})
    manager.ready(node.description)


async def _started(node: ServingNode, stop_requested: asyncio.Event) -> bool:
    """Start ``node`` unless it is told to stop first: without a majority a replicated one waits for it. Raises StartError."""
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
    """Take what the start left (modules, code) out of every collection to come and make collections rarer."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def tune_allocation() -> None:
    """Let the C library give large blocks back to the system when they are freed, and grow them without copying.

    Without this glibc keeps them once it has seen a few: after an attack with large frames hundreds of megabytes stayed. Other C
    libraries do so by themselves.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(M_MMAP_THRESHOLD, OWN_MAPPING_BYTES)
        libc.mallopt(M_TRIM_THRESHOLD, KEPT_FREE_BYTES)


def run(settings: Settings, report_started: Callable[[ServingNode], None], load: Callable[[], Settings]) -> None:
    """``live`` on the fastest event loop there is."""
    import uvloop  # here, so that a command line error does not wait for it

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(live(settings, report_started, load))


__all__ = ["NodeService", "ServingNode", "StartError", "live", "run", "service_of"]

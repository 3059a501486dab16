"""RemotingServer: the entry point of this package. It creates, starts and stops all other parts."""

import asyncio
import math
import resource
import time
from collections.abc import Callable
from typing import Protocol

from replicated_namesrv.access.access_control import AccessControl
from replicated_namesrv.routes.results import Effect
from replicated_namesrv.server.access_guard import AccessGuard
from replicated_namesrv.server.confirmed import ConfirmedAnswers
from replicated_namesrv.server.connection import RECEIVE_BUFFER_BYTES, Prepared, RemotingConnection, nothing_prepared
from replicated_namesrv.server.connection_limits import HeldBytes, Limits, Sources
from replicated_namesrv.server.dispatch import DispatchedService, RequestDispatcher
from replicated_namesrv.server.idle import IdleWheel
from replicated_namesrv.server.listener import Listener
from replicated_namesrv.server.problems import Problems
from replicated_namesrv.server.push_sender import Pushes
from replicated_namesrv.server.server_metrics import ServerMetrics
from replicated_namesrv.server.tls import TlsContexts
from replicated_namesrv.server.turn_shares import TurnShares
from replicated_namesrv.service import CloseReason, Connection, ReadLevel
from replicated_namesrv.settings import Settings

DRAIN_MAX_S = 5.0
"""Time limit for answering the requests in progress when the node stops; with enableShutdownGracefully, after
shutdownWaitTimeSeconds."""
DRAIN_STEP_S = 0.05
"""Pause between two groups of connections that are closed in a drain."""
DRAIN_PASS_S, DRAIN_PASSES_MAX = 1.0, 8
"""Duration and maximum number of the passes of a drain. A client of three nodes chooses the same node again with a probability of
one third, so after 8 passes one of 6,000 clients is left."""
FENCE_DRAIN_S = 0.2
"""Time limit for answering at a fence. Requests that are already confirmed need a few turns of the loop. Unconfirmed ones must
not keep their clients at this node for longer."""
FLUSH_MAX_S = 1.0
"""Time limit for sending the bytes already written. Then the remaining connections are cut."""
OTHER_FILES = 1_024
"""Descriptors reserved for other uses than connections: files, peers, pushes, the admin and health ports. If the process may have
fewer than 4,096 descriptors, a quarter of them is reserved."""


class RemotingService(DispatchedService, Protocol):
    """The part of a node that the server uses."""

    def connection_opened(self, connection: Connection) -> None:
        """The server accepted this connection; ``connection_lost`` follows once for each."""

    def connection_lost(self, connection: Connection, reason: CloseReason) -> None:
        """The server lost this connection. Brokers attached only to it are removed, if the reason permits."""

    def on_effects(self, perform: Callable[[tuple[Effect, ...]], None]) -> None:
        """Set the callback that performs effects (905 pushes …); called once, before the service starts."""


class RemotingServer:
    """Serves RocketMQ remoting for ``service``. ``metrics`` may be read at any time.

    The service must have been started before ``start`` and is stopped by its owner after ``stop``.
    """

    def __init__(
        self,
        settings: Settings,
        service: RemotingService,
        metrics: ServerMetrics | None = None,
        now_s: Callable[[], float] = time.monotonic,
        access: AccessControl | None = None,
    ) -> None:
        """``access`` None: every request is allowed."""
        self.metrics = metrics or ServerMetrics()
        self.settings = settings
        self.limits = Limits.of(settings)
        self.held = HeldBytes(self.limits.held_bytes, self.limits.frame_timeout_s)
        self.sources = Sources(self.limits)
        self.shares = TurnShares()
        self.now_s = now_s
        self.idle = IdleWheel(settings.server_channel_max_idle_time_seconds, now_s())
        self.problems = Problems(now_s)
        self.tls = TlsContexts(settings, self.metrics)
        self.receive_view = memoryview(bytearray(RECEIVE_BUFFER_BYTES))
        guard = None if access is None else AccessGuard(access, service.state)
        self._dispatcher = RequestDispatcher(settings, service, self.metrics, self.problems, self.shares, now_s, guard)
        self.prepared = self._prepared(service)
        self.connections: set[RemotingConnection] = set()
        if access is not None and guard is not None:
            guard.prepared, self.prepared = self.prepared, nothing_prepared
            access.on_reload.append(self._forget_reads)
        self._service = service
        self._listener = Listener(settings, self._new_connection)
        self._next_id = 0
        self._drain_number = 0
        """Number of drains begun or ended so far. A drain stops when the number has changed, because ``unfence`` ended it or
        another drain began."""
        self._ticker: asyncio.TimerHandle | None = None
        self._pushes = Pushes(settings, self.metrics, self.problems)
        self._gone = asyncio.Event()
        service.on_effects(self._pushes.perform)

    def _forget_reads(self) -> None:
        """Other access rules are in force: check the next read on each connection."""
        for connection in self.connections:
            connection.prepared = nothing_prepared

    def _prepared(self, service: RemotingService) -> Prepared:
        """The cache that answers repeated route queries: at once if no read waits, otherwise behind the barrier."""
        is_stale = self.settings.read_consistency == ReadLevel.STALE
        if is_stale or not service.confirms_reads:
            self.metrics.reads_at_once = ReadLevel.STALE if service.confirms_reads else ReadLevel.LOCAL
            return self._dispatcher.answers.answer
        return ConfirmedAnswers(service, self._dispatcher, self.metrics, self.shares).answer

    @property
    def dispatcher(self) -> RequestDispatcher:
        """The dispatcher that answers the requests."""
        return self._dispatcher

    @property
    def port(self) -> int:
        return self._listener.port

    @property
    def is_listening(self) -> bool:
        """Whether brokers and clients can connect: started, not stopped, not fenced."""
        return self._listener.is_open

    async def start(self) -> None:
        """Listen. Raises SettingError (port in use, address, TLS files)."""
        self._raise_file_limit()
        await self.tls.start()
        try:
            await self._listener.open()
        except BaseException:
            await self.tls.stop()
            raise
        self.dispatcher.started()
        self._tick()

    async def stop(self) -> None:
        """Stop listening, answer requests in progress within a time limit, close every connection. Idempotent.

        With enableShutdownGracefully, clients newer than 5.3.1 are answered GO_AWAY (code 1500) until none is left, for at
        most shutdownWaitTimeSeconds.
        """
        self._listener.close()
        if self.settings.enable_shutdown_gracefully:
            self._dispatcher.send_clients_away()
            await self._wait_until_gone(self.settings.shutdown_wait_time_seconds)
        self._drain_all()
        await self._wait_until_gone(DRAIN_MAX_S)
        for connection in list(self.connections):
            connection.close(CloseReason.OURS)
        await self._wait_until_gone(FLUSH_MAX_S)
        for connection in list(self.connections):
            connection.abort(CloseReason.OURS)
        await self._wait_until_gone(FLUSH_MAX_S)
        if self._ticker is not None:
            self._ticker.cancel()
        await self.dispatcher.stop()
        await self._pushes.stop()
        await self.tls.stop()

    def fence(self) -> None:
        """Stop serving: stop listening, answer confirmed and committed requests for a moment, close all connections.

        ``unfence`` ends the fence."""
        self._listener.close()
        fenced = list(self.connections)
        self._drain_all()

        def close() -> None:
            for connection in fenced:
                connection.close(CloseReason.OURS)

        def abort() -> None:
            for connection in fenced:
                connection.abort(CloseReason.OURS)

        loop = asyncio.get_running_loop()
        loop.call_later(FENCE_DRAIN_S, close)
        loop.call_later(FENCE_DRAIN_S + FLUSH_MAX_S, abort)

    async def drain(self, within_s: float) -> tuple[int, int] | None:
        """Close each connection when its requests are answered, in several passes, and stop listening in the last one.

        A client whose connection was closed chooses another name server for its next request. A 5.x client may choose this one
        again, and its request fails if nothing listens. So the node listens until the last pass, when few clients are left.
        Returns the number of connections, and how many of them were cut at the end of the time. None: ``unfence`` or another
        drain ended this one.
        """
        self._drain_number = this = self._drain_number + 1
        passes = max(1, min(DRAIN_PASSES_MAX, int(within_s / DRAIN_PASS_S)))
        closed = set[RemotingConnection]()
        for number in range(passes):
            if self._drain_number != this:
                return None
            if number == passes - 1:
                self._listener.close()
            waiting = list(self.connections)
            closed |= set(waiting)
            await self._drain_slowly(waiting, within_s / passes / 2)
            await asyncio.sleep(within_s / passes / 2) if number < passes - 1 else await self._wait_until_gone(within_s / passes)
        if self._drain_number != this:
            return None
        left = list(self.connections)
        for connection in left:
            connection.abort(CloseReason.OURS)
        return len(closed), len(left)

    async def _drain_slowly(self, waiting: list[RemotingConnection], within_s: float) -> None:
        """Close the waiting connections in groups, one group after the other, so that their clients do not all connect to the
        next node at once.
        """
        share = max(1, math.ceil(len(waiting) * DRAIN_STEP_S / within_s))
        for start in range(0, len(waiting), share):
            for connection in waiting[start : start + share]:
                connection.drain(CloseReason.OURS)
            await asyncio.sleep(DRAIN_STEP_S)

    async def unfence(self) -> None:
        """Listen again, and end a drain. Raises SettingError if another process has taken the port."""
        self._drain_number += 1
        await self._listener.open()

    # -- Host of the connections ------------------------------------------------------------------------------------------

    def opened(self, connection: RemotingConnection) -> bool:
        """Admit ``connection``. False: there are too many, or the server does not listen."""
        if len(self.connections) >= self.limits.connections or not self._listener.is_open:
            if self._listener.is_open:
                self.metrics.hit_limit("connections")
                self.problems.report("connections", "connection refused: maxConnections is reached", peer=connection.peer)
            return False
        if not self.sources.admit(connection.address):
            self.metrics.hit_limit("connectionsPerAddress")
            self.problems.report("address", "connection refused: maxConnectionsPerAddress is reached", peer=connection.peer)
            return False
        is_proxy = self.sources.is_proxy(connection.address)
        connection.share = self.shares.enter(connection.peer if is_proxy else connection.address)
        self._service.connection_opened(connection)
        self.connections.add(connection)
        self._gone.clear()
        self.idle.add(connection)
        self.metrics.connections_accepted += 1
        self.metrics.connections_open += 1
        return True

    def closed(self, connection: RemotingConnection, reason: CloseReason) -> None:
        self.connections.discard(connection)
        self.sources.leave(connection.address)
        self.shares.leave(connection.share)
        self.metrics.connections_open -= 1
        self.metrics.connections_closed[reason] = self.metrics.connections_closed.get(reason, 0) + 1
        if not self.connections:
            self._gone.set()
        self._dispatcher.connection_lost(connection)
        if reason is CloseReason.PEER and self._dispatcher.is_going_away:
            reason = CloseReason.UNACKNOWLEDGED  # this node has asked the peer to close the connection
        self._service.connection_lost(connection, reason)

    def tick(self, now_s: float) -> None:
        """Close connections that at ``now_s`` have been idle, or have had an incomplete frame, for too long."""
        for idler in self.idle.advance(now_s):
            assert isinstance(idler, RemotingConnection)
            if idler.has_sent_something():
                self.idle.add(idler)
            else:
                idler.abort(CloseReason.IDLE)
        for holder in self.held.overdue(now_s):
            holder.close_at_limit("frameTimeout")
        self.metrics.held_bytes = self.held.total

    def _tick(self) -> None:
        self.tick(self.now_s())
        self._ticker = asyncio.get_running_loop().call_later(self.idle.tick_s, self._tick)

    def _new_connection(self) -> RemotingConnection:
        self._next_id += 1
        return RemotingConnection(self, self._next_id)

    def _drain_all(self) -> None:
        for connection in list(self.connections):
            connection.drain(CloseReason.OURS)

    async def _wait_until_gone(self, bound_s: float) -> None:
        if not self.connections:
            return
        self._gone.clear()
        try:
            async with asyncio.timeout(bound_s):
                await self._gone.wait()
        except TimeoutError:
            pass

    def _raise_file_limit(self) -> None:
        """Let the process open as many descriptors as maxConnections needs, as far as the system permits.

        If it permits fewer, accept fewer connections, so that they do not use up the descriptors of files and peers.
        """
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = self.limits.connections + OTHER_FILES
        if soft == resource.RLIM_INFINITY or soft >= wanted:
            return
        allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        if allowed < wanted:
            self.limits = self.limits.at_most(allowed - min(OTHER_FILES, allowed // 4))
            self.sources = Sources(self.limits)
            self.problems.report(
                "files",
                "fewer file descriptors than maxConnections needs; raise the hard limit (ulimit -Hn)",
                allowed=allowed,
                connections=self.limits.connections,
            )

"""``NOTIFY_MIN_BROKER_ID_CHANGE`` (905): notifies brokers that the smallest broker id of their group has changed
(``notifyMinBrokerIdChanged``).

A push is oneway, and is never retried: brokers also poll, so a push only lets them learn of a change sooner. A push fails if
connecting takes longer than 300 ms (with ``useTLS``: ``connectTimeoutMillis``), or if the previous push to this recipient is
still unsent. It is dropped if ``serverOnewaySemaphoreValue`` pushes wait. Failed and dropped pushes are counted.

Each recipient has its own queue and connection. So its pushes arrive in order, and an unreachable recipient delays no other.
(RocketMQ drops the remaining recipients of a notification instead.) Connections are kept while they are used.

A look-up of a host name occupies one of the loop's few threads until the resolver gives up, and every client can register brokers
with names that no server answers. The admin port asks other nodes, which may need look-ups, too. Therefore pushes use one thread
at most."""

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Iterable
from typing import Any

from replicated_namesrv.address_list import is_numeric
from replicated_namesrv.errors import SettingError
from replicated_namesrv.routes.results import Effect, NotifyMinBrokerIdChange
from replicated_namesrv.server.problems import Problems
from replicated_namesrv.server.server_metrics import ServerMetrics
from replicated_namesrv.server.tls import client_context
from replicated_namesrv.settings import Settings, parse_address
from replicated_namesrv.wire.codes import ONEWAY_FLAG, SERVER_VERSION, RequestCode
from replicated_namesrv.wire.header import RemotingHeader, command_frame

SEND_TIMEOUT_S = 0.3


class _Sink(asyncio.Protocol):
    """Drops everything that brokers send: they do not answer oneway requests."""


class _Recipient:
    """Frames that wait for one broker address, and the task that sends them."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.frames: deque[bytes] = deque()
        self.arrived = asyncio.Event()
        self.transport: asyncio.Transport | None = None
        self.task: asyncio.Task[None] | None = None


class Pushes:
    """Performs ``NotifyMinBrokerIdChange`` effects; ignores the others."""

    def __init__(self, settings: Settings, metrics: ServerMetrics, problems: Problems) -> None:
        self._settings = settings
        self._metrics = metrics
        self._problems = problems
        self._recipients: dict[str, _Recipient] = {}
        self._waiting = 0
        self._opaque = 0
        self._context: ssl.SSLContext | None = None
        self._looks_up = asyncio.Lock()
        """Held from the beginning of a look-up until its thread is free again, even if the push has failed meanwhile."""

    def perform(self, effects: Iterable[Effect]) -> None:
        """Queue the pushes among ``effects``. Returns at once."""
        for effect in effects:
            if isinstance(effect, NotifyMinBrokerIdChange):
                self._opaque = (self._opaque + 1) & 0x7FFFFFFF
                frame = notification_frame(effect, self._opaque)
                for address in effect.recipients:
                    self._queue(address, frame)

    async def stop(self) -> None:
        """Drop waiting pushes and close all connections."""
        tasks = [recipient.task for recipient in self._recipients.values() if recipient.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _queue(self, address: str, frame: bytes) -> None:
        if self._waiting >= self._settings.server_oneway_semaphore_value:
            self._count("dropped")
            self._metrics.hit_limit("serverOnewaySemaphoreValue")
            return
        recipient = self._recipients.get(address)
        if recipient is None:
            recipient = self._recipients[address] = _Recipient(address)
            recipient.task = asyncio.get_running_loop().create_task(self._run(recipient))
        self._waiting += 1
        recipient.frames.append(frame)
        recipient.arrived.set()

    async def _run(self, recipient: _Recipient) -> None:
        """Send the pushes of one recipient until none has been queued for ``clientChannelMaxIdleTimeSeconds``."""
        try:
            while True:
                async with asyncio.timeout(self._settings.client_channel_max_idle_time_seconds):
                    await recipient.arrived.wait()
                while recipient.frames:
                    await self._send(recipient, recipient.frames.popleft())
                recipient.arrived.clear()
        except TimeoutError:
            pass
        finally:
            self._waiting -= len(recipient.frames)
            del self._recipients[recipient.address]
            if recipient.transport is not None:
                recipient.transport.abort()

    async def _send(self, recipient: _Recipient, frame: bytes) -> None:
        self._waiting -= 1
        try:
            if recipient.transport is None or recipient.transport.is_closing():
                recipient.transport = await self._connect(recipient.address)
            # the broker has not read the previous push yet, so this push fails
            elif recipient.transport.get_write_buffer_size():
                raise TimeoutError
            recipient.transport.write(frame)
            self._count("sent")
        except (OSError, TimeoutError, SettingError) as error:
            self._count("failed")
            self._problems.report(
                "push",
                "minimum broker id not pushed; the broker learns it at its next poll",
                peer=recipient.address,
                why=repr(error),
            )

    async def _connect(self, address: str) -> asyncio.Transport:
        """Raises OSError, TimeoutError, SettingError."""
        use_tls = self._settings.use_tls
        async with asyncio.timeout(self._settings.connect_timeout_millis / 1000 if use_tls else SEND_TIMEOUT_S):
            if use_tls and self._context is None:
                self._context = client_context(self._settings)
            host, port = parse_address("brokerAddr", address)
            name = host if self._context else None
            for found in await self._addresses(host):
                try:
                    transport, _ = await asyncio.get_running_loop().create_connection(
                        _Sink, found, port, ssl=self._context, server_hostname=name
                    )
                    return transport
                except OSError as cause:
                    error = cause
        raise error

    async def _addresses(self, host: str) -> list[str]:
        """The numeric addresses of ``host``, at least one. Raises OSError."""
        if is_numeric(host):
            return [host]
        await self._looks_up.acquire()
        looked_up = asyncio.ensure_future(asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM))
        looked_up.add_done_callback(self._looked_up)
        return [str(address[4][0]) for address in await asyncio.shield(looked_up)]

    def _looked_up(self, done: "asyncio.Task[Any]") -> None:
        self._looks_up.release()
        if not done.cancelled():
            done.exception()  # nobody else may wait for it, and asyncio logs an exception that is never retrieved

    def _count(self, outcome: str) -> None:
        self._metrics.pushes[outcome] = self._metrics.pushes.get(outcome, 0) + 1


def notification_frame(change: NotifyMinBrokerIdChange, opaque: int) -> bytes:
    """The request frame (``NotifyMinBrokerIdChangeRequestHeader``)."""
    fields = {"minBrokerId": str(change.min_broker_id), "minBrokerAddr": change.min_broker_addr}
    if change.offline_broker_addr is not None:
        fields["offlineBrokerAddr"] = change.offline_broker_addr
    if change.ha_broker_addr is not None:
        fields["haBrokerAddr"] = change.ha_broker_addr
    code = RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE.value
    return command_frame(RemotingHeader(code, ONEWAY_FLAG, opaque=opaque, version=SERVER_VERSION, ext_fields=fields))

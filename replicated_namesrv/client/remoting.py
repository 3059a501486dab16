"""A remoting client on asyncio. Requests go to addresses; answers are matched by opaque (``NettyRemotingClient``).

There is one connection per address. The first request opens it, later requests share it, and answers may come in any order.
Each request that fits into a frame has one of three outcomes:

- An answer came: it is returned, whatever its code. The caller interprets the code.
- The request was certainly not received: UnavailableError. It is raised only if no byte was passed to the socket.
- The outcome is unknown because of a time-out, a lost connection or an invalid frame after sending: OutcomeUnknownError.

After a time-out the connection is closed, as Java does: the peer may hang, and a late answer could be matched to a later
request.
"""

import asyncio
import itertools
import os
import socket
import ssl
from collections.abc import Callable
from typing import NamedTuple, cast

from replicated_namesrv.address_list import is_host
from replicated_namesrv.client.credentials import NO_CREDENTIALS, Credentials
from replicated_namesrv.errors import FrameError, OutcomeUnknownError, SettingError, UnavailableError
from replicated_namesrv.wire.codes import ONEWAY_FLAG, RESPONSE_FLAG, V5_3_3, LanguageCode, SerializeType
from replicated_namesrv.wire.frame import MAX_TOTAL, frame, next_frame
from replicated_namesrv.wire.header import MAX_PLAIN_BYTES, RemotingHeader, decode_header, encode_header

DEFAULT_TIMEOUT_MS = 3000
"""Time-out of a request, including connecting (``MQClientAPIImpl``)."""
CONNECT_TIMEOUT_MS = 3000
"""Time limit for opening a connection (``NettyClientConfig.connectTimeoutMillis``)."""
PENDING_MAX = 65_535
"""Maximum number of unanswered requests on one connection (``clientAsyncSemaphoreValue``)."""
HOST_CHARACTERS_MAX, PORT_CHARACTERS_MAX = 253, 5


class RemotingCommand(NamedTuple):
    """A request or an answer: its header and body (``RemotingCommand.java``)."""

    code: int
    ext_fields: dict[str, str] | None = None
    body: bytes = b""
    flag: int = 0
    remark: str | None = None
    language: int | None = LanguageCode.PYTHON.value
    version: int = V5_3_3
    serialize_type: int = SerializeType.JSON.value
    """Encoding of the header. A server may answer in another encoding."""
    opaque: int = 0
    """Number that matches the answer to the request. The client sets it on sending."""


def encode_command(command: RemotingCommand) -> bytes:
    """One whole frame. Raises FrameError if it would be too long.

    A long header is sent as a binary one. In JSON, it could have more bytes or escapes than a name server accepts. A header with
    an empty field stays JSON, because a binary header cannot carry such a field.
    """
    header = RemotingHeader(
        code=int(command.code),
        flag=command.flag,
        language=command.language,
        opaque=command.opaque,
        version=command.version,
        remark=command.remark,
        ext_fields=command.ext_fields,
        serialize_type=command.serialize_type,
    )
    encoded = encode_header(header)
    if len(encoded) > MAX_PLAIN_BYTES and all((command.ext_fields or {}).values()):
        header = header._replace(serialize_type=SerializeType.ROCKETMQ.value)
        encoded = encode_header(header)
    return frame(encoded, command.body, header.serialize_type)


def cut_commands(buffer: bytearray) -> list[RemotingCommand]:
    """Cut all complete frames from the front of ``buffer``. Raises FrameError if the bytes are not a frame."""
    commands = []
    start, end = 0, len(buffer)
    while (bounds := next_frame(buffer, start, end, MAX_TOTAL)) is not None:
        header = decode_header(bytes(buffer[bounds.header_start : bounds.body_start]), bounds.serialize_type, MAX_TOTAL)
        body = bytes(buffer[bounds.body_start : bounds.end])
        commands.append(
            RemotingCommand(
                code=header.code,
                ext_fields=header.ext_fields,
                body=body,
                flag=header.flag,
                remark=header.remark,
                language=header.language,
                version=header.version,
                serialize_type=bounds.serialize_type,
                opaque=header.opaque,
            )
        )
        start = bounds.end
    del buffer[:start]
    return commands


def parse_address(address: str) -> tuple[str, int]:
    """Split ``host:port``; an IPv6 host may be in brackets. Raises SettingError."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    if len(host) > HOST_CHARACTERS_MAX or not is_host(host) or not port.isascii() or not port.isdigit():
        raise SettingError(f"address {address!r} is not host:port, as in 127.0.0.1:9876")
    if len(port) > PORT_CHARACTERS_MAX or not 0 < int(port) <= 65_535:
        raise SettingError(f"address {address!r} has port {port}: must be 1 to 65535")
    return host, int(port)


def client_tls_context(
    ca_file: str | None = None, certificate_file: str | None = None, key_file: str | None = None
) -> ssl.SSLContext:
    """A TLS context for name servers. Without ``ca_file`` certificates are not verified, as in RocketMQ's default (test mode).

    ``certificate_file``: the client's certificate; its key is in ``key_file``, or in the same file. Raises SettingError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    if certificate_file is not None:
        try:
            context.load_cert_chain(certificate_file, key_file)
        except (OSError, ssl.SSLError) as error:
            raise SettingError(
                f"TLS certificate {certificate_file!r} cannot be used: {error}; give certificate and key in PEM"
            ) from error
    if ca_file is None:
        context.verify_mode = ssl.CERT_NONE
        return context
    try:
        context.load_verify_locations(ca_file)
    except (OSError, ssl.SSLError) as error:
        raise SettingError(f"TLS trust file {ca_file!r} cannot be used: {error}; give a PEM file of CA certificates") from error
    return context


class RemotingClient:
    """Connections to any number of peers, one each. Not shared between event loops."""

    def __init__(
        self,
        *,
        connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
        credentials: Credentials = NO_CREDENTIALS,
        on_disconnect: Callable[[str], None] | None = None,
    ) -> None:
        """``on_disconnect`` is called with the address when an established connection has ended, at either side."""
        self.connect_timeout_ms = connect_timeout_ms
        self._credentials = credentials
        self._on_disconnect = on_disconnect
        self._connections: dict[str, _Connection] = {}
        self._connecting: dict[str, asyncio.Task[_Connection]] = {}
        self._opaque = itertools.count()
        self._closed = False

    def is_connected(self, address: str) -> bool:
        """Whether there is an open connection to ``address`` now."""
        return address in self._connections

    async def connect(self, address: str) -> None:
        """Connect if not connected. Raises UnavailableError."""
        await self._connected(address, self.connect_timeout_ms)

    async def request(self, address: str, command: RemotingCommand, timeout_ms: int = DEFAULT_TIMEOUT_MS) -> RemotingCommand:
        """Connect if necessary, send, and wait for the answer, at most ``timeout_ms`` in all.

        Raises UnavailableError (certainly not received), OutcomeUnknownError, or FrameError for a request that is too large.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        opaque = next(self._opaque) & 0x7FFFFFFF
        frame = encode_command(self._signed(command)._replace(opaque=opaque))
        connection = await self._writable(address, timeout_ms)
        answer = connection.expect(opaque)
        connection.write(frame)
        try:
            async with asyncio.timeout_at(deadline):
                return await answer
        except TimeoutError:
            connection.abort(f"{address} did not answer code {command.code} within {timeout_ms} ms")
            raise OutcomeUnknownError(f"{address} did not answer code {command.code} within {timeout_ms} ms") from None
        finally:
            connection.forget(opaque)

    async def send_oneway(self, address: str, command: RemotingCommand, timeout_ms: int = DEFAULT_TIMEOUT_MS) -> None:
        """Pass the request to the connection. The client never learns whether it arrives.

        Raises UnavailableError if it was not sent, FrameError for a request that is too large.
        """
        opaque = next(self._opaque) & 0x7FFFFFFF
        frame = encode_command(self._signed(command)._replace(opaque=opaque, flag=command.flag | ONEWAY_FLAG))
        connection = await self._writable(address, timeout_ms)
        connection.write(frame)

    def _signed(self, command: RemotingCommand) -> RemotingCommand:
        fields = self._credentials.signed(command.ext_fields, command.body)
        return command if fields is command.ext_fields else command._replace(ext_fields=fields)

    def disconnect(self, address: str) -> None:
        """Close the connection to ``address``, if there is one. Its pending requests fail."""
        if (connection := self._connections.get(address)) is not None:
            connection.abort(f"connection to {address} closed by this side")

    async def close(self) -> None:
        """Close everything; later requests fail with UnavailableError."""
        self._closed = True
        for task in self._connecting.values():
            task.cancel()
        connections = list(self._connections.values())
        for connection in connections:
            connection.close("client closed")
        await asyncio.gather(*(connection.closed for connection in connections))

    async def abort(self) -> None:
        """Drop all connections at once, as the operating system does for a killed process."""
        self._closed = True
        for task in self._connecting.values():
            task.cancel()
        connections = list(self._connections.values())
        for connection in connections:
            connection.abort("client aborted")
        await asyncio.gather(*(connection.closed for connection in connections))

    async def _writable(self, address: str, timeout_ms: int) -> "_Connection":
        """The connection. Waits until most earlier bytes have left, because a peer that does not read must not fill our
        memory."""
        connection = await self._connected(address, timeout_ms)
        if not connection.writable.is_set():
            try:
                async with asyncio.timeout(timeout_ms / 1000):
                    await connection.writable.wait()
            except TimeoutError:
                raise UnavailableError(f"{address} read no bytes for {timeout_ms} ms; the request was not sent") from None
        if self._connections.get(address) is not connection:
            raise UnavailableError(f"connection to {address} was lost before the request was sent")
        return connection

    async def _connected(self, address: str, timeout_ms: int) -> "_Connection":
        if (connection := self._connections.get(address)) is not None:
            return connection
        if self._closed:
            raise UnavailableError(f"not connected to {address}: this client is closed")
        task = self._connecting.get(address)
        if task is None:
            task = self._connecting[address] = asyncio.create_task(self._open(address))
            task.add_done_callback(lambda done: self._opened(address, done))
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await asyncio.shield(task)
        except TimeoutError:
            raise UnavailableError(f"no connection to {address} within {timeout_ms} ms") from None
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            # At the end of an event loop, ``task`` and the caller are both cancelled. The cancellation of the caller must not be
            # replaced by an error: a caller that retries would not end.
            if task.cancelled() and not (caller is not None and caller.cancelling()):
                raise UnavailableError(f"not connected to {address}: this client is closed") from None
            raise

    async def _open(self, address: str) -> "_Connection":
        host, port = parse_address(address)
        connection = _Connection(address, self._lost)
        try:
            async with asyncio.timeout(self.connect_timeout_ms / 1000):
                await asyncio.get_running_loop().create_connection(lambda: connection, host, port, ssl=self._credentials.tls)
        except TimeoutError:
            raise UnavailableError(f"no connection to {address} within {self.connect_timeout_ms} ms") from None
        except OSError as error:
            raise UnavailableError(f"cannot connect to {address}: {_reason(error)}") from error
        if connection.closed.done():
            raise UnavailableError(f"{address} closed the connection at once")
        self._connections[address] = connection
        return connection

    def _opened(self, address: str, task: "asyncio.Task[_Connection]") -> None:
        del self._connecting[address]
        if not task.cancelled():
            # retrieve the exception: if all waiters have given up, asyncio would log it as never retrieved
            task.exception()

    def _lost(self, connection: "_Connection") -> None:
        if self._connections.get(connection.address) is connection:
            del self._connections[connection.address]
            if self._on_disconnect is not None:
                self._on_disconnect(connection.address)


def _reason(error: OSError) -> str:
    """A description of the error. Numbers in errors of TLS and name resolution are not errno values."""
    if isinstance(error, ssl.SSLError | socket.gaierror) or not error.errno:
        return str(error)
    return os.strerror(error.errno)


class _Connection(asyncio.Protocol):
    """One connection: cuts frames and resolves the request with the answer's opaque."""

    def __init__(self, address: str, lost: "Callable[[_Connection], None]") -> None:
        loop = asyncio.get_running_loop()
        self.address = address
        self.closed: asyncio.Future[None] = loop.create_future()
        self.writable = asyncio.Event()
        self._lost = lost
        self._pending: dict[int, asyncio.Future[RemotingCommand]] = {}
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._reason = f"{address} closed the connection"

    def expect(self, opaque: int) -> "asyncio.Future[RemotingCommand]":
        if len(self._pending) >= PENDING_MAX:
            raise UnavailableError(f"{PENDING_MAX} requests already wait for {self.address}; this one was not sent")
        answer: asyncio.Future[RemotingCommand] = asyncio.get_running_loop().create_future()
        self._pending[opaque] = answer
        return answer

    def forget(self, opaque: int) -> None:
        self._pending.pop(opaque, None)

    def write(self, frame: bytes) -> None:
        if self._transport is not None:
            self._transport.write(frame)

    def abort(self, reason: str) -> None:
        """Drop the connection now. Bytes that have not left are lost."""
        self._end(reason)
        if self._transport is not None:
            self._transport.abort()

    def close(self, reason: str) -> None:
        """Close the connection when all written bytes have left."""
        self._end(reason)
        if self._transport is not None:
            self._transport.close()

    def _end(self, reason: str) -> None:
        self._reason = reason
        self._lost(self)
        self._fail_pending()

    def _fail_pending(self) -> None:
        pending, self._pending = self._pending, {}
        for answer in pending.values():
            if not answer.done():
                answer.set_exception(OutcomeUnknownError(f"{self._reason} before it answered"))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's class is not registered as a Transport
        self._transport = transport
        self.writable.set()

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self._reason = f"connection to {self.address} was lost ({exc})"
        self._lost(self)
        self.writable.set()
        self._fail_pending()
        self.closed.set_result(None)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        try:
            answers = cut_commands(self._buffer)
        except FrameError as error:
            self.abort(f"{self.address} sent bytes that are not a remoting frame ({error}), connection dropped")
            return
        for answer in answers:
            waiting = self._pending.get(answer.opaque) if answer.flag & RESPONSE_FLAG else None
            if waiting is not None and not waiting.done():
                waiting.set_result(answer)

"""Name servers that misbehave on purpose, on real sockets: they die, hang, or are not name servers at all."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum, auto

from replicated_namesrv.client.remoting import RemotingCommand, cut_commands, encode_command
from replicated_namesrv.wire.codes import ONEWAY_FLAG, RESPONSE_FLAG, ResponseCode


class Behaviour(Enum):
    """A server's behaviour for a connection or a request."""

    ANSWER = auto()
    CLOSE_AT_ONCE = auto()
    CLOSE_AFTER_REQUEST = auto()
    HANG = auto()
    GARBAGE = auto()


def success(request: RemotingCommand) -> RemotingCommand | None:
    """An answer with code 0, without fields and body."""
    return answer_to(request)


def answer_to(
    request: RemotingCommand,
    code: int = 0,
    *,
    ext_fields: dict[str, str] | None = None,
    body: bytes = b"",
    remark: str | None = None,
) -> RemotingCommand:
    """An answer that fits the request's opaque."""
    return RemotingCommand(
        code, ext_fields, body, RESPONSE_FLAG, remark, opaque=request.opaque, serialize_type=request.serialize_type
    )


def not_found(request: RemotingCommand) -> RemotingCommand | None:
    """An answer with TOPIC_NOT_EXIST (17)."""
    return answer_to(request, ResponseCode.TOPIC_NOT_EXIST.value, remark="no route")


@dataclass
class ScriptedServer:
    """A server whose behaviour a test can change at any time. It records every request that it read."""

    behaviour: Behaviour = Behaviour.ANSWER
    answer: Callable[[RemotingCommand], RemotingCommand | None] = success
    """None: this request stays unanswered."""
    tls: ssl.SSLContext | None = None
    requests: list[RemotingCommand] = field(default_factory=list)
    accepted: int = 0
    port: int = 0
    _server: asyncio.Server | None = None
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def connections(self) -> int:
        """Open connections."""
        return len(self._writers)

    def codes(self) -> list[int]:
        """Codes of the requests read so far."""
        return [request.code for request in self.requests]

    async def listen(self) -> None:
        """Listen, on the same port again after ``refuse``."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def refuse(self) -> None:
        """Stop listening and drop all connections. New connections are refused."""
        assert self._server is not None
        self._server.close()
        self.drop_connections()
        await self._server.wait_closed()
        self._server = None

    def drop_connections(self) -> None:
        """Close what is open; new connections are still accepted."""
        for writer in self._writers:
            writer.transport.abort()

    async def stop(self) -> None:
        if self._server is not None:
            await self.refuse()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self._writers.add(writer)
        buffer = bytearray()
        try:
            while self.behaviour is not Behaviour.CLOSE_AT_ONCE and (data := await reader.read(65536)):
                buffer += data
                for request in cut_commands(buffer):
                    self.requests.append(request)
                    if not self._react(request, writer):
                        return
        except ConnectionError:
            pass
        finally:
            self._writers.discard(writer)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    def _react(self, request: RemotingCommand, writer: asyncio.StreamWriter) -> bool:
        """False: the connection is to be closed."""
        if self.behaviour is Behaviour.CLOSE_AFTER_REQUEST:
            return False
        if self.behaviour is Behaviour.GARBAGE:
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        elif self.behaviour is Behaviour.ANSWER and not request.flag & ONEWAY_FLAG:
            answer = self.answer(request)
            if answer is not None:
                writer.write(encode_command(answer))
        return True


@asynccontextmanager
async def scripted_server(
    behaviour: Behaviour = Behaviour.ANSWER,
    answer: Callable[[RemotingCommand], RemotingCommand | None] = success,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[ScriptedServer]:
    """A listening server, stopped at the end."""
    server = ScriptedServer(behaviour, answer, tls)
    await server.listen()
    try:
        yield server
    finally:
        await server.stop()

"""The listening side of a broker: accepts connections at the address that the broker announces, and reports what name servers
push there."""

import asyncio
from collections.abc import Callable

from replicated_namesrv.client.remoting import RemotingCommand, cut_commands, encode_command, parse_address
from replicated_namesrv.errors import FrameError
from replicated_namesrv.listening import stop_listening
from replicated_namesrv.wire.codes import ONEWAY_FLAG, RESPONSE_FLAG, V5_3_3, LanguageCode, ResponseCode


class PushListener:
    """Listens on one address. Oneway requests are passed on; a two-way request gets an error answer: not supported."""

    def __init__(self, received: Callable[[str, RemotingCommand], None]) -> None:
        """``received`` is given the peer's address and the request."""
        self.received = received
        self._server: asyncio.Server | None = None
        self._peers: set[_Peer] = set()

    async def start(self, address: str) -> None:
        """Listen on ``address`` (host:port). Raises OSError."""
        host, port = parse_address(address)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Peer(self), host, port)

    async def stop(self) -> None:
        """Stop listening and drop all connections."""
        if self._server is not None:
            server, self._server = self._server, None
            stop_listening(server)
            await asyncio.sleep(0)  # releases the port: the socket is closed in the next turn of the loop
            for peer in list(self._peers):
                peer.drop()
            await server.wait_closed()

    def opened(self, peer: "_Peer") -> None:
        self._peers.add(peer)
        if self._server is None:  # the connection was accepted before the listener was closed
            peer.drop()

    def closed(self, peer: "_Peer") -> None:
        self._peers.discard(peer)


class _Peer(asyncio.Protocol):
    def __init__(self, owner: PushListener) -> None:
        self._owner = owner
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._name = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._name = "{}:{}".format(*transport.get_extra_info("peername")[:2])
        self._owner.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._owner.closed(self)

    def drop(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        try:
            commands = cut_commands(self._buffer)
        except FrameError:
            self.drop()
            return
        for command in commands:
            if command.flag & RESPONSE_FLAG:
                continue
            if command.flag & ONEWAY_FLAG:
                self._owner.received(self._name, command)
            elif self._transport is not None:
                self._transport.write(encode_command(_unsupported(command)))


def _unsupported(command: RemotingCommand) -> RemotingCommand:
    """The Java broker's answer to a code that it does not know (``NettyRemotingAbstract.processRequestCommand``)."""
    return RemotingCommand(
        code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED.value,
        remark=f" request type {command.code} not supported",
        flag=RESPONSE_FLAG,
        language=LanguageCode.JAVA.value,
        version=V5_3_3,
        serialize_type=command.serialize_type,
        opaque=command.opaque,
    )

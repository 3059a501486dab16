"""The listening socket: opened with RocketMQ's options, closed while the node is fenced or drained, and then opened again."""

import asyncio
import errno
import socket
from collections.abc import Callable

from replicated_namesrv.errors import SettingError
from replicated_namesrv.host_look_up import HostLookUp
from replicated_namesrv.listening import stop_listening
from replicated_namesrv.settings import Settings


class Listener:
    """Listens on ``Settings.listen_address`` while it is open. Connections stay open when it closes."""

    def __init__(self, settings: Settings, protocol_factory: Callable[[], asyncio.BaseProtocol]) -> None:
        self._settings = settings
        self._protocol_factory = protocol_factory
        self._server: asyncio.AbstractServer | None = None
        self._is_wanted = False
        """Whether the last call was ``open``, not ``close``."""
        self._opening = asyncio.Lock()
        self._host, self._port = settings.listen_address
        self._look_up = HostLookUp()

    @property
    def is_open(self) -> bool:
        """Whether brokers and clients can connect."""
        return self._server is not None

    @property
    def port(self) -> int:
        """The port, known after the socket has been opened. The kernel chooses it if the setting is 0. The socket is opened again
        with the same port."""
        return self._port

    async def open(self) -> None:
        """Listen, unless ``close`` is called meanwhile. Raises SettingError if address or port cannot be used."""
        self._is_wanted = True
        async with self._opening:
            if self._server is None:
                await self._open()

    async def _open(self) -> None:
        await asyncio.sleep(0)  # a listener that was closed in this turn of the loop releases the port only in the next turn
        listening = self._bound_socket(await self._own_address())
        self._port = listening.getsockname()[1]
        loop = asyncio.get_running_loop()
        try:
            server = await loop.create_server(
                self._protocol_factory, sock=listening, backlog=self._settings.server_socket_backlog
            )
        except OSError as error:  # here, too, the port can be in use: two processes can bind it before either listens
            listening.close()
            raise self._explain(error) from None
        if self._is_wanted:
            self._server = server
        else:
            stop_listening(server)

    def close(self) -> None:
        """Stop listening: new connections are refused."""
        self._is_wanted = False
        if self._server is not None:
            stop_listening(self._server)
            self._server = None

    async def _own_address(self) -> str:
        try:
            return (await self._look_up.addresses(self._host, None))[0]
        except OSError as error:
            raise SettingError(
                f"{self._where()}: no address of this machine ({error}); give an IP address, 0.0.0.0 for all"
            ) from None

    def _bound_socket(self, host: str) -> socket.socket:
        settings = self._settings
        flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
        family, kind, protocol, _, address = socket.getaddrinfo(host, self._port, type=socket.SOCK_STREAM, flags=flags)[0]
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if settings.server_socket_snd_buf_size:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, settings.server_socket_snd_buf_size)
            if settings.server_socket_rcv_buf_size:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, settings.server_socket_rcv_buf_size)
            listening.bind(address)
            listening.setblocking(False)
        except OSError as error:
            listening.close()
            raise self._explain(error) from None
        return listening

    def _explain(self, error: OSError) -> SettingError:
        remedies = {
            errno.EADDRINUSE: "the port is in use; stop the process that listens there or choose another with --listen HOST:PORT",
            errno.EADDRNOTAVAIL: "not an address of this machine; choose another with --listen HOST:PORT",
            errno.EACCES: "not allowed; choose a port above 1023 with --listen HOST:PORT",
        }
        return SettingError(f"{self._where()}: {remedies.get(error.errno or 0, str(error))}")

    def _where(self) -> str:
        if self._settings.listen:
            return f"listen={self._host}:{self._port}"
        return f"bindAddress={self._host}, listenPort={self._port}"

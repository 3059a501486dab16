"""How much of an HTTP connection's bytes is parsed in one turn of the event loop."""

import asyncio
from typing import Any

from replicated_namesrv.admin.paced import PIECE_BYTES, PacedProtocol
from replicated_namesrv.server.turn_shares import TurnShares


class Handler(asyncio.Protocol):
    """Keeps what it gets."""

    transport: Any

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.pieces.append(data)


class Socket(asyncio.Transport):
    """A transport without a socket."""

    def __init__(self) -> None:
        super().__init__()
        self.reads, self.is_closed = True, False

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def is_closing(self) -> bool:
        return self.is_closed


def connected() -> tuple[PacedProtocol, Handler, Socket]:
    handler, socket = Handler(), Socket()
    protocol = PacedProtocol(handler, TurnShares(), "127.0.0.2")
    protocol.connection_made(socket)
    return protocol, handler, socket


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_piece_in_each_turn_and_nothing_is_read_meanwhile() -> None:
    protocol, handler, socket = connected()
    data = bytes(range(256)) * (PIECE_BYTES * 3 // 256) + b"end"
    protocol.data_received(data)
    assert [len(piece) for piece in handler.pieces] == [PIECE_BYTES]
    assert not socket.reads
    await turns()
    assert b"".join(handler.pieces) == data
    assert max(map(len, handler.pieces)) == PIECE_BYTES
    assert socket.reads


async def test_the_handler_cannot_resume_reading_while_bytes_wait() -> None:
    protocol, handler, socket = connected()
    protocol.data_received(bytes(PIECE_BYTES + 1))
    handler.transport.resume_reading()
    assert not socket.reads
    handler.transport.pause_reading()
    await turns()
    assert len(handler.pieces) == 2
    assert not socket.reads, "the handler wants no more"
    handler.transport.resume_reading()
    assert socket.reads


async def test_what_waits_is_dropped_when_the_handler_closes_the_connection() -> None:
    protocol, handler, socket = connected()
    protocol.data_received(bytes(PIECE_BYTES * 5))
    socket.is_closed = True
    await turns()
    assert len(handler.pieces) == 1

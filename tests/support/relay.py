"""A TCP relay whose traffic can be stopped: a cut link as TCP sees it.

While it is stopped nothing passes in either direction and neither side notices: connections stay open, and new ones are accepted
but not forwarded. When it is released, the bytes sent meanwhile arrive late, as after a partition of the network.

Between nodes a relay can also be an attacker in the middle, who changes frames (``change``, ``challenge``).
"""

import asyncio
import contextlib
import struct
from collections.abc import Callable

CHUNK_BYTES = 1 << 16
LENGTH = struct.Struct("<I")
Change = Callable[[int, bytes], list[bytes]]
"""A function of the number of a frame in its connection and of the frame with its length. It returns the bytes to pass on."""


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    """The next frame with its length. Raises IncompleteReadError at the end."""
    head = await reader.readexactly(LENGTH.size)
    return head + await reader.readexactly(LENGTH.unpack(head)[0])


class Relay:
    """Accepts on a port of the kernel's choice and passes everything on to ``target``."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self.change: Change | None = None
        """Gets each frame towards the target, of connections that begin from now on."""
        self.challenge: Callable[[bytes], bytes] | None = None
        """Gets the first frame of the target, and returns the bytes to pass on instead."""
        self._open = asyncio.Event()
        self._open.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        """The port on which the relay accepts connections."""
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def address(self) -> str:
        """The address of the relay as host:port."""
        return f"127.0.0.1:{self.port}"

    async def start(self) -> "Relay":
        """Accept connections."""
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        return self

    def hold(self) -> None:
        """Stop all traffic until it is released."""
        self._open.clear()

    def release(self) -> None:
        """Pass on waiting and new bytes."""
        self._open.set()

    def drop(self) -> None:
        """Close all connections."""
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        """Drop all connections and stop accepting."""
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = [writer]
        try:
            await self._open.wait()
            far_reader, far_writer = await asyncio.open_connection(*self._target)
            ends.append(far_writer)
            forth = self._pump(reader, far_writer) if self.change is None else self._pump_frames(reader, far_writer, self.change)
            if self.challenge is not None:
                writer.write(self.challenge(await read_frame(far_reader)))
            pumps = [asyncio.ensure_future(forth), asyncio.ensure_future(self._pump(far_reader, writer))]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        except (OSError, asyncio.IncompleteReadError):
            pass  # no process listens at the other end: the connection ends, as without a relay
        finally:
            for end in ends:
                end.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                await self._open.wait()
                writer.write(data)
                await writer.drain()
            await self._open.wait()

    async def _pump_frames(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, change: Change) -> None:
        number = 0
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                frame = await read_frame(reader)
                await self._open.wait()
                writer.write(b"".join(change(number, frame)))
                await writer.drain()
                number += 1

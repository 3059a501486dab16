"""The hello of a peer, written by hand: in the form of 0.1.0, without MACs of frames."""

import asyncio

from replicated_namesrv.raft.transport import LENGTH, MAGIC, TransportSettings, proof
from tests.support.relay import read_frame


async def raw_hello(settings: TransportSettings) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, bytes]:
    """A connection to the node of these settings, and the acceptor's nonce."""
    reader, writer = await asyncio.open_connection(*settings.listen)
    frame = (await read_frame(reader))[LENGTH.size :]
    assert frame.startswith(MAGIC)
    return reader, writer, frame[len(MAGIC) :]


def hello(settings: TransportSettings, acceptor_nonce: bytes, source: str = "b") -> bytes:
    """The frame that makes the connection one of ``source``."""
    nonce = b"n" * 16
    names = source, settings.node_id, settings.cluster_id
    frame = nonce + proof(settings.secret or b"", b"dial", acceptor_nonce, nonce, *names)
    frame += b"".join(bytes([len(n)]) + n.encode() for n in names)
    return LENGTH.pack(len(frame)) + frame

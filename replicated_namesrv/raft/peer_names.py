"""Asks the node that listens for peers at an address for its name (row H10 of ``transport.py``)."""

import asyncio
import contextlib
import secrets

from replicated_namesrv.address_list import is_member_name
from replicated_namesrv.host_look_up import HostLookUp
from replicated_namesrv.raft.hello_names import pack_names
from replicated_namesrv.raft.peer_tls import Tls
from replicated_namesrv.raft.raft_errors import TransportError
from replicated_namesrv.raft.transport import (
    DIAL_SECONDS,
    HELLO_BYTES_MAX,
    LENGTH,
    MAGIC,
    NAMED,
    NO_NAME,
    NONCE_BYTES,
    TransportSettings,
    proof,
)

NAME_SHOWN = 60
"""Maximum number of bytes of a wrong answer in a message."""


async def _read_frame(reader: asyncio.StreamReader) -> bytes:
    """Raises OSError, or TransportError: it is too long for the hello, or the connection was closed."""
    try:
        (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
        if length > HELLO_BYTES_MAX:
            raise TransportError("it speaks another protocol")
        return await reader.readexactly(length)
    except asyncio.IncompleteReadError:
        raise TransportError("it closed the connection: the secret or clusterId differs (see its log), or it is older") from None


async def name_at(settings: TransportSettings, host: str, port: int, look_up: HostLookUp) -> str:
    """The name of the node that listens for peers at an address. The answer is not proven: a later connection proves it. Raises
    OSError, TransportError, TimeoutError, ValueError."""
    context = Tls(settings.tls).nameless_client() if settings.tls else None
    hosts = await look_up.addresses(host, DIAL_SECONDS)
    async with asyncio.timeout(DIAL_SECONDS):
        for each in hosts[:-1]:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection(each, port, ssl=context)
                break
        else:
            reader, writer = await asyncio.open_connection(hosts[-1], port, ssl=context)
        try:
            challenge = await _read_frame(reader)
            if len(challenge) != len(MAGIC) + NONCE_BYTES or not challenge.startswith(MAGIC):
                raise TransportError("it speaks another protocol or version")
            names, nonce = (settings.node_id, NO_NAME, settings.cluster_id), secrets.token_bytes(NONCE_BYTES)
            proven = proof(settings.secret or b"", b"dial", challenge[len(MAGIC) :], nonce, *names)
            hello = nonce + proven + pack_names(*names)
            writer.write(LENGTH.pack(len(hello)) + hello)
            answer = await _read_frame(reader)
        finally:
            writer.close()
    name = answer.removeprefix(NAMED).decode(errors="replace")
    if not answer.startswith(NAMED) or not is_member_name(name):
        raise TransportError(f"it sent no name, but {answer[:NAME_SHOWN]!a}")
    return name

"""A node tells its name to a peer that knows only its address."""

import asyncio
import ssl
from dataclasses import replace
from pathlib import Path

import pytest

from replicated_namesrv.host_look_up import HostLookUp
from replicated_namesrv.raft.peer_names import name_at
from replicated_namesrv.raft.raft_errors import TransportError
from replicated_namesrv.raft.transport import LENGTH, MAGIC, NONCE_BYTES, TransportSettings
from tests.raft.test_transport import Peer, pair_of_settings, started
from tests.support.authority import Authority


async def name_of(peer: Peer, asking: TransportSettings) -> str:
    return await name_at(asking, "127.0.0.1", peer.transport.port, HostLookUp())


def test_a_node_tells_its_name_only_to_a_peer() -> None:
    async def scenario() -> None:
        good, other = pair_of_settings()
        stranger = replace(other, node_id="z")
        async with started(good) as (a,):
            assert await name_of(a, stranger) == "a"
            assert not a.warnings
            for wrong in (replace(stranger, secret=b"another secret"), replace(stranger, cluster_id="d")):
                with pytest.raises(TransportError, match="secret or clusterId differs"):
                    await name_of(a, wrong)
            assert [("secret" in text, "cluster" in text) for text in a.warnings] == [(True, False), (False, True)]
            assert not a.transport.accepted
            assert not a.transport.unauthenticated

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "answer",
    [
        b"NAMED ",
        b"NAMED " + b"x" * 201,
        b"NAMED a b",
        b"NAMED a=b",
        b"NAMED \x1b[31m",
        b"NAMED \xff\n",
        b"x" * 32,
        b"REFUSED \n\x1b",
    ],
    ids=lambda answer: ascii(answer[:20]),
)
def test_an_answer_that_is_no_name_is_refused(answer: bytes) -> None:
    async def scenario() -> None:
        async def tell(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            challenge = MAGIC + b"n" * NONCE_BYTES
            writer.write(LENGTH.pack(len(challenge)) + challenge)
            await reader.readexactly(LENGTH.size)
            writer.write(LENGTH.pack(len(answer)) + answer)
            writer.close()

        server = await asyncio.start_server(tell, "127.0.0.1", 0)
        settings, _ = pair_of_settings()
        async with server:
            with pytest.raises(TransportError, match="it sent no name") as caught:
                await name_at(settings, "127.0.0.1", server.sockets[0].getsockname()[1], HostLookUp())
        assert str(caught.value).isprintable()

    asyncio.run(scenario())


def test_another_program_at_the_address_is_no_member() -> None:
    async def scenario() -> None:
        for challenge in (LENGTH.pack(5000), LENGTH.pack(4) + b"HTTP", LENGTH.pack(len(MAGIC) + NONCE_BYTES) + b"x" * 21):

            async def speak(_: asyncio.StreamReader, writer: asyncio.StreamWriter, said: bytes = challenge) -> None:
                writer.write(said)
                writer.close()

            server = await asyncio.start_server(speak, "127.0.0.1", 0)
            settings, _ = pair_of_settings()
            async with server:
                with pytest.raises(TransportError, match="another protocol"):
                    await name_at(settings, "127.0.0.1", server.sockets[0].getsockname()[1], HostLookUp())

    asyncio.run(scenario())


def test_a_node_with_tls_tells_its_name_to_a_peer_of_its_authority(tmp_path: Path) -> None:
    async def scenario() -> None:
        ours, theirs = Authority(tmp_path, "ours"), Authority(tmp_path, "theirs")
        good, other = pair_of_settings(secret=None)
        async with started(replace(good, tls=ours.files("a"))) as (a,):
            assert await name_of(a, replace(other, node_id="z", tls=ours.files("z"))) == "a"
            with pytest.raises(ssl.SSLError):
                await name_of(a, replace(other, node_id="y", tls=theirs.files("y")))
            with pytest.raises(TransportError, match="closed the connection"):  # H7 comes first
                await name_of(a, replace(other, node_id="x", tls=ours.files("w")))

    asyncio.run(scenario())

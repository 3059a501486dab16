"""The remoting client on real sockets: matching, time-outs, and the three outcomes of a request."""

import asyncio
import contextlib
import socket
import ssl
import struct
import time
from pathlib import Path

import pytest

from replicated_namesrv.client.credentials import Credentials
from replicated_namesrv.client.remoting import RemotingClient, RemotingCommand, client_tls_context, encode_command, parse_address
from replicated_namesrv.errors import FrameError, NamesrvError, OutcomeUnknownError, SettingError, UnavailableError
from replicated_namesrv.routes.quotas import VALUE_BYTES_MAX
from replicated_namesrv.wire.codes import ONEWAY_FLAG, RequestCode, SerializeType
from tests.support.client_peers import Behaviour, answer_to, scripted_server
from tests.support.remoting_server import live_server
from tests.support.waiting import until

ASK = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
SHORT_MS = 150


def test_answers_are_matched_by_opaque_whatever_their_order() -> None:
    async def scenario() -> None:
        async with scripted_server() as server:
            waiting: list[RemotingCommand] = []

            def last_first(request: RemotingCommand) -> RemotingCommand | None:
                waiting.append(request)
                return None

            server.answer = last_first
            client = RemotingClient()
            asked = [
                asyncio.create_task(client.request(server.address, ASK._replace(ext_fields={"topic": f"T{index}"})))
                for index in range(200)
            ]
            await until(lambda: len(waiting) == 200, "all requests to arrive")
            (writer,) = server._writers
            for request in reversed(waiting):
                writer.write(encode_command(answer_to(request, ext_fields=request.ext_fields)))
            answers = await asyncio.gather(*asked)
            assert [answer.ext_fields for answer in answers] == [{"topic": f"T{index}"} for index in range(200)]
            assert server.accepted == 1
            await client.close()

    asyncio.run(scenario())


def test_a_caller_that_retries_ends_when_its_loop_does() -> None:
    """The loop cancels the caller and the task that connects for it, in any order."""

    async def retry(client: RemotingClient, address: str) -> None:
        for _ in range(1_000):
            with contextlib.suppress(UnavailableError):
                await client.request(address, ASK)
        raise AssertionError("the cancellation was lost")

    async def scenario(connecting_first: bool) -> None:
        async with scripted_server() as server:
            client = RemotingClient()
            caller = asyncio.create_task(retry(client, server.address))
            await asyncio.sleep(0)  # one turn: the caller has asked for a connection
            (connecting,) = client._connecting.values()
            for task in (connecting, caller) if connecting_first else (caller, connecting):
                task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await caller
            await client.close()

    for connecting_first in (True, False):
        asyncio.run(scenario(connecting_first))


@pytest.mark.parametrize("serialize_type", list(SerializeType))
def test_both_header_encodings_are_spoken(serialize_type: SerializeType) -> None:
    async def scenario() -> None:
        async with scripted_server(answer=lambda request: answer_to(request, ext_fields={"k": "v"}, body=b"body")) as server:
            client = RemotingClient()
            answer = await client.request(server.address, ASK._replace(serialize_type=serialize_type))
            assert (answer.ext_fields, answer.body, answer.serialize_type) == ({"k": "v"}, b"body", serialize_type)
            assert server.requests[0].ext_fields == {"topic": "T"}
            await client.close()

    asyncio.run(scenario())


def test_refusal_is_surely_not_received() -> None:
    async def scenario() -> None:
        async with scripted_server() as server:
            await server.refuse()
            client = RemotingClient()
            with pytest.raises(UnavailableError, match=r"cannot connect to .*refused"):
                await client.request(server.address, ASK)
            await client.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("behaviour", "text"),
    [
        (Behaviour.CLOSE_AFTER_REQUEST, "closed the connection before it answered"),
        (Behaviour.GARBAGE, "not a remoting frame"),
        (Behaviour.HANG, f"did not answer code 105 within {SHORT_MS} ms"),
    ],
)
def test_what_was_sent_and_not_answered_is_unknown(behaviour: Behaviour, text: str) -> None:
    async def scenario() -> None:
        async with scripted_server(behaviour) as server:
            client = RemotingClient()
            timeout_ms = SHORT_MS if behaviour is Behaviour.HANG else 10_000
            with pytest.raises(OutcomeUnknownError, match=text) as caught:
                await client.request(server.address, ASK, timeout_ms)
            assert not caught.value.definite
            assert not client.is_connected(server.address), "the connection must not be used again"
            await client.close()

    asyncio.run(scenario())


def test_one_silence_ends_the_connection_for_all_that_wait_on_it() -> None:
    """As in NettyRemotingClient: the time-out of one request closes the channel, which ends the others."""

    async def scenario() -> None:
        async with scripted_server(Behaviour.HANG) as server:
            client = RemotingClient()
            long = asyncio.create_task(client.request(server.address, ASK, 60_000))
            await until(lambda: server.requests, "the request to arrive")
            with pytest.raises(OutcomeUnknownError):
                await client.request(server.address, ASK, SHORT_MS)
            with pytest.raises(OutcomeUnknownError):
                await long
            await client.close()

    asyncio.run(scenario())


def test_a_connection_that_ends_at_once_leaves_nobody_waiting() -> None:
    """A proxy whose name server does not run behaves in this way: it accepts, and closes before the first request is written."""

    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listening:

            def refuse() -> None:
                with contextlib.suppress(OSError):
                    while True:
                        accepted, _ = listening.accept()
                        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                        accepted.close()

            async def busy() -> None:
                while not listening_ended.is_set():
                    time.sleep(0.002)  # noqa: ASYNC251 -- so that the end is there by the next turn of the loop
                    await asyncio.sleep(0)

            listening_ended = asyncio.Event()
            refusing = asyncio.create_task(asyncio.to_thread(refuse))
            other_work = asyncio.create_task(busy())
            client = RemotingClient()
            address = f"127.0.0.1:{listening.getsockname()[1]}"
            async with asyncio.timeout(60):
                for _ in range(100):
                    with pytest.raises((UnavailableError, OutcomeUnknownError)):
                        await client.request(address, ASK, 100_000)
            listening.shutdown(socket.SHUT_RDWR)
            listening_ended.set()
            await asyncio.gather(refusing, other_work)
            await client.close()

    asyncio.run(scenario())


def test_next_request_connects_again_after_a_loss() -> None:
    async def scenario() -> None:
        lost: list[str] = []
        async with scripted_server() as server:
            client = RemotingClient(on_disconnect=lost.append)
            await client.request(server.address, ASK)
            server.drop_connections()
            await until(lambda: not client.is_connected(server.address), "the loss to be noticed")
            await client.request(server.address, ASK)
            assert (server.accepted, lost) == (2, [server.address])
            await client.close()
        assert lost == [server.address] * 2

    asyncio.run(scenario())


def test_simultaneous_first_requests_share_one_connection() -> None:
    async def scenario() -> None:
        async with scripted_server() as server:
            client = RemotingClient()
            await asyncio.gather(*(client.request(server.address, ASK) for _ in range(50)))
            assert (server.accepted, len(server.requests)) == (1, 50)
            await client.close()

    asyncio.run(scenario())


def test_oneway_is_flagged_and_waits_for_nothing() -> None:
    async def scenario() -> None:
        async with scripted_server(Behaviour.HANG) as server:
            client = RemotingClient()
            await client.send_oneway(server.address, ASK)
            await until(lambda: server.requests, "the request to arrive")
            assert server.requests[0].flag == ONEWAY_FLAG
            assert client.is_connected(server.address)
            await client.close()

    asyncio.run(scenario())


def test_a_peer_that_reads_nothing_is_not_fed_for_ever() -> None:
    """Memory stays bounded: beyond the socket's buffers a request is refused as certainly not sent."""

    async def scenario() -> None:
        accepted = asyncio.Event()

        async def read_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            reader._transport.pause_reading()  # type: ignore[attr-defined]  # a private field
            accepted.set()
            await released.wait()
            writer.transport.abort()

        released = asyncio.Event()
        listening = await asyncio.start_server(read_nothing, "127.0.0.1", 0)
        address = f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        client = RemotingClient()
        large = ASK._replace(body=bytes(4 << 20))

        async def send_too_much() -> None:
            for _ in range(20):
                await client.send_oneway(address, large, SHORT_MS)

        with pytest.raises(UnavailableError, match="read no bytes") as caught:
            await send_too_much()
        assert caught.value.definite
        await client.abort()
        released.set()
        listening.close()
        await listening.wait_closed()

    asyncio.run(scenario())


def test_a_request_that_no_frame_holds_is_refused_here() -> None:
    async def scenario() -> None:
        async with scripted_server() as server:
            client = RemotingClient()
            with pytest.raises(FrameError, match="16777212"):
                await client.request(server.address, ASK._replace(body=bytes(1 << 24)))
            assert (await client.request(server.address, ASK)).code == 0
            assert server.codes() == [ASK.code]
            await client.close()

    asyncio.run(scenario())


def test_a_closed_client_sends_nothing() -> None:
    async def scenario() -> None:
        async with scripted_server() as server:
            client = RemotingClient()
            await client.close()
            with pytest.raises(UnavailableError, match="client is closed"):
                await client.request(server.address, ASK)
            assert server.accepted == 0

    asyncio.run(scenario())


def test_closing_while_connecting_leaves_nobody_waiting() -> None:
    async def scenario() -> None:
        client = RemotingClient()
        # TEST-NET-1 (RFC 5737): no host answers there, or there is no route
        asking = asyncio.create_task(client.request("192.0.2.1:9876", ASK, 60_000))
        await asyncio.sleep(0)
        await client.close()
        with pytest.raises(UnavailableError):
            await asking

    asyncio.run(scenario())


@pytest.mark.parametrize("verify", [False, True])
def test_tls(verify: bool, tmp_path: Path) -> None:
    certificate, context = _self_signed(tmp_path)

    async def scenario() -> None:
        async with scripted_server(tls=context) as server:
            client = RemotingClient(credentials=Credentials(client_tls_context(str(certificate) if verify else None)))
            assert (await client.request(server.address, ASK)).code == 0
            await client.close()

    asyncio.run(scenario())


def test_a_certificate_of_somebody_else_is_refused(tmp_path: Path) -> None:
    other, _ = _self_signed(tmp_path)
    (tmp_path / "server").mkdir()
    _, context = _self_signed(tmp_path / "server")

    async def scenario() -> None:
        async with scripted_server(tls=context) as server:
            client = RemotingClient(credentials=Credentials(client_tls_context(str(other))))
            with pytest.raises(UnavailableError, match=r"(?i)certificate"):
                await client.request(server.address, ASK)
            await client.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("text", ["", "host", "host:", ":9876", "host:port", "host:0", "host:65536", "host:-1", "host:\uff19"])
def test_what_is_no_address_is_named(text: str) -> None:
    with pytest.raises(SettingError) as caught:
        parse_address(text)
    assert repr(text) in str(caught.value)


def test_addresses_with_names_and_ipv6() -> None:
    assert parse_address("name-server.example:9876") == ("name-server.example", 9876)
    assert parse_address("[::1]:9876") == ("::1", 9876)


def test_a_missing_trust_file_is_named() -> None:
    with pytest.raises(SettingError, match="no-such-file"):
        client_tls_context("no-such-file")


def test_a_name_that_does_not_resolve_is_unavailable() -> None:
    async def scenario() -> None:
        client = RemotingClient()
        with pytest.raises(NamesrvError) as caught:
            await client.request("no-such-host.invalid:9876", ASK)
        assert caught.value.definite
        await client.close()

    asyncio.run(scenario())


def _self_signed(folder: Path) -> tuple[Path, ssl.SSLContext]:
    """A certificate for 127.0.0.1 and a server context that uses it."""
    import datetime

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "name server")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate_file, key_file = folder / "certificate.pem", folder / "key.pem"
    certificate_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate_file, key_file)
    return certificate_file, context


@pytest.mark.parametrize("character", ["\x01", "\x7f", '"', "\u20ac"])
def test_every_value_that_a_name_server_stores_can_be_written_and_read(tmp_path: Path, character: str) -> None:
    """In JSON, a value of 1 MiB can have 6 MiB and a million escapes: too much for the header of a request."""
    value = character * (VALUE_BYTES_MAX // len(character.encode()))

    async def scenario(address: str) -> None:
        client = RemotingClient()
        entry = {"namespace": "n", "key": "k"}
        assert (await client.request(address, RemotingCommand(100, {**entry, "value": value}))).code == 0
        for kind in SerializeType:
            answer = await client.request(address, RemotingCommand(101, entry, serialize_type=kind.value))
            assert answer.ext_fields == {"value": value}
        await client.close()

    with live_server(tmp_path) as server:
        asyncio.run(scenario(f"127.0.0.1:{server.port}"))

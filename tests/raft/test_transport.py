"""Peer connections over real sockets: which peers are accepted or refused, and bounds on the cost of a bad peer."""

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from replicated_namesrv.raft import transport
from replicated_namesrv.raft.hello_names import pack_names
from replicated_namesrv.raft.peer_tls import TlsFiles
from replicated_namesrv.raft.raft_errors import TransportError
from replicated_namesrv.raft.raft_messages import Append, HigherTerm, Message, encode
from replicated_namesrv.raft.transport import (
    LENGTH,
    MAC_BYTES,
    MAGIC,
    NONCE_BYTES,
    OFFER_MARK,
    PROCESS_MARK,
    SEAL_BYTES,
    SEALING_MARK,
    PeerTransport,
    TransportSettings,
    proof,
)
from tests.support.authority import Authority
from tests.support.peer_hello import hello, raw_hello
from tests.support.ports import free_ports
from tests.support.relay import Change, Relay
from tests.support.waiting import until

SECRET = b"a shared secret"
MESSAGE = HigherTerm(1, 2, 3)


class Peer:
    """A transport and its recorded events."""

    def __init__(self, settings: TransportSettings) -> None:
        self.received: list[tuple[str, Message]] = []
        self.events: list[str] = []
        self.warnings: list[str] = []
        self.transport = PeerTransport(
            settings,
            lambda peer, message: self.received.append((peer, message)),
            lambda peer: self.events.append(f"+{peer}"),
            lambda peer: self.events.append(f"-{peer}"),
            self.warnings.append,
        )

    def send(self, peer: str, message: Message = MESSAGE) -> None:
        self.transport.send(peer, message)
        self.transport.flush()

    def connected(self, peer: str) -> bool:
        return self.transport.peers[peer].connected


def pair_of_settings(**changes: object) -> list[TransportSettings]:
    ports = free_ports(2)
    addresses = {"a": ("127.0.0.1", ports[0]), "b": ("127.0.0.1", ports[1])}
    return [replace(TransportSettings(n, "c", addresses, addresses[n], SECRET), **changes) for n in "ab"]  # type: ignore[arg-type]  # the caller chooses the fields


@asynccontextmanager
async def started(*settings: TransportSettings) -> AsyncIterator[list[Peer]]:
    peers = [Peer(s) for s in settings]
    for peer in peers:
        await peer.transport.start()
    try:
        yield peers
    finally:
        for peer in peers:
            await peer.transport.stop()


async def both_connected(a: Peer, b: Peer) -> None:
    await until(lambda: a.connected("b") and b.connected("a"), "both connections")


def test_messages_pass_in_order_both_ways() -> None:
    async def scenario() -> None:
        async with started(*pair_of_settings()) as (a, b):
            await both_connected(a, b)
            messages = [Append(1, 2, 3, n, 4, 5, 6, 7, b"x" * n * 1000) for n in range(50)]
            for message in messages:
                a.send("b", message)
            b.send("a")
            await until(lambda: len(b.received) == 50 and a.received, "all messages")
            assert b.received == [("a", m) for m in messages]
            assert a.received == [("b", MESSAGE)]

    asyncio.run(scenario())


def test_the_status_can_be_asked_for_before_and_after() -> None:
    async def scenario() -> None:
        settings, _ = pair_of_settings()
        peer = Peer(replace(settings, listen=("127.0.0.1", 0)))
        assert peer.transport.status()["listen"] == "127.0.0.1:0"
        await peer.transport.start()
        listening = f"127.0.0.1:{peer.transport.port}"
        await peer.transport.stop()
        assert peer.transport.status()["listen"] == listening != "127.0.0.1:0"

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"accepted_secrets": (b"new",)}, {}),
        ({"accepted_secrets": (b"new",)}, {"secret": b"new", "accepted_secrets": (SECRET,)}),
        ({"secret": b"new", "accepted_secrets": (SECRET,)}, {"secret": b"new"}),
    ],
    ids=["the new one is accepted", "the new one is used", "the old one is removed"],
)
def test_a_secret_is_replaced_node_by_node(first: dict[str, object], second: dict[str, object]) -> None:
    """Two nodes that are at neighbouring steps connect in both directions, and their frames carry MACs."""

    async def scenario() -> None:
        a, b = pair_of_settings()
        async with started(replace(a, **first), replace(b, **second)) as (one, other):  # type: ignore[arg-type]  # as above
            await both_connected(one, other)
            one.send("b")
            other.send("a")
            await until(lambda: one.received and other.received, "both messages")
            for peer, name in ((one, "b"), (other, "a")):
                assert sealed(peer, name)
            assert not one.warnings + other.warnings

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"secret": b"another"}, "does not know the shared secret"),
        ({"secret": b"another", "accepted_secrets": (b"a third",)}, "does not know the shared secret"),
        ({"secret": None}, "does not know the shared secret"),
        ({"cluster_id": "other"}, "belongs to cluster 'other'"),
    ],
)
def test_a_stranger_is_turned_away_and_told_why(change: dict[str, object], reason: str) -> None:
    async def scenario() -> None:
        good, other = pair_of_settings()
        async with started(good, replace(other, **change)) as (a, b):  # type: ignore[arg-type]  # the caller chooses the fields
            await until(lambda: reason in a.transport.last_refusal or any(reason in w for w in a.warnings), "the refusal")
            assert not a.connected("b")
            assert not b.connected("a")
            assert not a.received

    asyncio.run(scenario())


def test_a_name_outside_the_cluster_is_turned_away() -> None:
    async def scenario() -> None:
        good, other = pair_of_settings()
        addresses = {**other.addresses, "z": other.addresses["b"]}
        async with started(good, replace(other, node_id="z", addresses=addresses)) as (a, _):
            await until(lambda: any("z is not a member" in w for w in a.warnings), "the refusal of z")

    asyncio.run(scenario())


def test_a_node_that_is_dialled_by_another_name_tells_its_own() -> None:
    """As after ``members add n7`` with the address of n6. Only a peer that knows the secret learns the name."""

    async def scenario() -> None:
        good, other = pair_of_settings()
        addresses = {"a": good.addresses["a"], "z": good.addresses["b"]}
        async with started(replace(good, addresses=addresses), other) as (a, b):
            state = a.transport.peers["z"]
            await until(lambda: "the node at the address of z is named 'b'" in state.error, "the name of the other node")
            assert state.refusal == "", "the node is not refused by its cluster"
            assert any("hello from 'a' to 'z': this is 'b'" in warning for warning in b.warnings)
        async with started(replace(good, addresses=addresses, secret=b"another secret"), other) as (a, b):
            state = a.transport.peers["z"]
            await until(lambda: "closed during the hello" in state.error, "the end of the connection")
            assert any("a does not know the shared secret" in warning for warning in b.warnings)

    asyncio.run(scenario())


async def ended(reader: asyncio.StreamReader) -> None:
    async with asyncio.timeout(10):
        try:
            while await reader.read(1000):
                pass
        except ConnectionError:
            pass


GARBAGE = {
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "long hello": LENGTH.pack(5000),
    "huge": b"\xff\xff\xff\xff",
    "short hello": LENGTH.pack(10) + b"x" * 10,
    "empty hello": LENGTH.pack(0),
    "names that end in the middle": LENGTH.pack(60) + b"x" * 48 + b"\xff" * 12,
    "not UTF-8": LENGTH.pack(54) + b"x" * 48 + b"\x01\xff\x01\xff\x01\xff",
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE.keys())
def test_garbage_instead_of_a_hello(garbage: bytes) -> None:
    async def scenario() -> None:
        settings, _ = pair_of_settings()
        async with started(settings) as (a,):
            reader, writer, _ = await raw_hello(settings)
            writer.write(garbage)
            await ended(reader)
            writer.close()
            assert a.transport.refused_count == 1
            assert not a.transport.unauthenticated

    asyncio.run(scenario())


@pytest.mark.parametrize("frame", [b"\x63nonsense", b"", encode(MESSAGE) + b"x", b"\x01" + b"\xff" * 30])
def test_garbage_after_the_hello_closes_the_connection(frame: bytes) -> None:
    async def scenario() -> None:
        settings, _ = pair_of_settings()
        async with started(settings) as (a,):
            reader, writer, nonce = await raw_hello(settings)
            writer.write(hello(settings, nonce) + LENGTH.pack(len(encode(MESSAGE))) + encode(MESSAGE))
            writer.write(LENGTH.pack(len(frame)) + frame)
            await ended(reader)
            writer.close()
            assert a.received == [("b", MESSAGE)]
            assert a.transport.refused_count == 1

    asyncio.run(scenario())


def test_a_recorded_hello_does_not_fit_another_connection() -> None:
    async def scenario() -> None:
        settings, _ = pair_of_settings()
        async with started(settings) as (a,):
            _, first, nonce = await raw_hello(settings)
            recorded = hello(settings, nonce)
            reader, second, _ = await raw_hello(settings)
            second.write(recorded)
            await ended(reader)
            assert "does not know" in a.transport.last_refusal
            first.close()
            second.close()

    asyncio.run(scenario())


def test_a_newer_connection_replaces_the_older() -> None:
    async def scenario() -> None:
        settings, _ = pair_of_settings()
        async with started(settings) as (a,):
            old_reader, old, nonce = await raw_hello(settings)
            old.write(hello(settings, nonce))
            await until(lambda: "b" in a.transport.accepted, "the hello")
            _, new, nonce = await raw_hello(settings)
            new.write(hello(settings, nonce))
            await ended(old_reader)
            new.write(LENGTH.pack(len(encode(MESSAGE))) + encode(MESSAGE))
            await until(lambda: a.received, "a message")
            old.close()
            new.close()

    asyncio.run(scenario())


def test_a_peer_that_does_not_read_costs_bounded_memory() -> None:
    async def scenario() -> None:
        ours, theirs = pair_of_settings(buffer_bytes_max=1 << 20)
        stuck = asyncio.Event()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(LENGTH.pack(len(MAGIC) + 16) + MAGIC + b"a" * 16)
            length = LENGTH.unpack(await reader.readexactly(4))[0]
            nonce = (await reader.readexactly(length))[:16]
            answer = proof(SECRET, b"accept", b"a" * 16, nonce, "a", "b", "c")
            writer.write(LENGTH.pack(len(answer)) + answer)
            await stuck.wait()
            writer.close()

        server = await asyncio.start_server(accept, *theirs.listen, limit=1000)
        async with started(ours) as (a,):
            await until(lambda: a.connected("b"), "the connection")
            big = Append(1, 2, 3, 4, 5, 6, 7, 8, b"x" * 500_000)
            for _ in range(100):
                if "-b" in a.events:
                    break
                a.send("b", big)
            await until(lambda: "-b" in a.events, "the abort")
            assert "does not read" in a.transport.last_refusal
            stuck.set()
        server.close()
        await until(lambda: len(asyncio.all_tasks()) == 1, "the end of the acceptor's connections")

    asyncio.run(scenario())


def test_without_authentication_only_loopback_is_bound() -> None:
    settings = TransportSettings("a", "c", {"a": ("127.0.0.1", 1)}, ("0.0.0.0", 0))
    with pytest.raises(TransportError, match="only a loopback address"):
        Peer(settings)
    Peer(replace(settings, listen=("127.0.0.1", 0)))


# Mutual TLS


def test_mutual_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)

    async def scenario() -> None:
        ours, theirs = pair_of_settings()
        async with started(replace(ours, tls=authority.files("a")), replace(theirs, tls=authority.files("b"))) as (a, b):
            await both_connected(a, b)
            a.send("b")
            await until(lambda: b.received, "the message")

    asyncio.run(scenario())


@pytest.mark.parametrize("fault", ["expired", "other authority", "other name", "no certificate"])
def test_tls_turns_away(tmp_path: Path, fault: str) -> None:
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "stranger")

    async def scenario() -> None:
        ours, theirs = pair_of_settings()
        good = authority.files("a")
        bad: TlsFiles | None = None
        if fault == "expired":
            bad = authority.files("b", days=-1)
        elif fault == "other authority":
            bad = stranger.files("b", trusted=authority.path)
        elif fault == "other name":
            bad = authority.files("x")
        async with started(replace(ours, tls=good), replace(theirs, tls=bad)) as (a, b):
            await until(lambda: a.transport.peers["b"].error and b.transport.peers["a"].error, "errors on both sides")
            a.send("b")
            b.send("a")
            assert not a.connected("b")
            assert not b.connected("a")
            assert not a.received
            assert not b.received

    asyncio.run(scenario())


def test_renewed_certificates_are_used_without_a_restart(tmp_path: Path) -> None:
    """Both sides begin with certificates that have expired; the files are replaced in place."""
    authority = Authority(tmp_path)

    async def scenario() -> None:
        ours, theirs = pair_of_settings()
        files = {n: authority.files(n, days=-1) for n in "ab"}
        async with started(replace(ours, tls=files["a"]), replace(theirs, tls=files["b"])) as (a, b):
            await until(lambda: "certificate" in a.transport.peers["b"].error, "the expired certificate to be refused")
            for n in "ab":
                authority.files(n)
                os.utime(files[n].certificate, ns=(1, 1))
            await both_connected(a, b)

    asyncio.run(scenario())


def test_unusable_tls_files_are_refused(tmp_path: Path) -> None:
    files = TlsFiles(tmp_path / "none.pem", tmp_path / "none.key", tmp_path / "ca.pem")
    ours, _ = pair_of_settings()
    with pytest.raises(TransportError, match=r"none\.pem"):
        Peer(replace(ours, tls=files))
    assert ssl.HAS_TLSv1_3
    assert socket.TCP_USER_TIMEOUT


def test_an_authority_that_was_replaced_is_trusted_no_longer(tmp_path: Path) -> None:
    """Rotation: both sides use the new authority. A peer whose certificate only the old one signed is refused, in both
    directions."""
    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(old.path.read_bytes())

    async def scenario() -> None:
        ours, theirs = pair_of_settings()
        files = old.files("a", trusted=trusted)
        late = old.files("b", trusted=old.path, prefix="late-")
        async with started(replace(ours, tls=files)) as (a,):
            trusted.write_bytes(new.path.read_bytes())
            new.files("a", trusted=trusted)
            os.utime(trusted, ns=(1, 1))
            async with started(replace(theirs, tls=replace(late, authority=trusted))) as (b,):
                await until(lambda: b.transport.peers["a"].error and a.transport.peers["b"].error, "errors on both sides")
                assert not a.connected("b")
                assert not b.connected("a")
            async with started(replace(theirs, tls=new.files("b", trusted=trusted))) as (b,):
                await both_connected(a, b)

    asyncio.run(scenario())


def test_files_half_replaced_leave_the_old_ones_in_use(tmp_path: Path) -> None:
    """The certificate is already new, its key still the old one."""
    authority = Authority(tmp_path)

    async def scenario() -> None:
        ours, theirs = pair_of_settings()
        files = authority.files("a")
        old_key = files.key.read_bytes()
        async with started(replace(ours, tls=files)) as (a,):
            authority.files("a")
            files.key.write_bytes(old_key)
            async with started(replace(theirs, tls=authority.files("b"))) as (b,):
                await both_connected(a, b)
                assert "old certificates stay in use" in a.transport.last_refusal
                assert a.transport.refusals["certificate"] >= 1
                assert a.transport.refusals["connection"] == 0

    asyncio.run(scenario())


def test_a_stranger_cannot_hold_a_tls_handshake_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger that connects and sends no hello is disconnected after the time-out (3 s, shortened here)."""
    monkeypatch.setattr("replicated_namesrv.raft.transport.HELLO_SECONDS", 0.2)
    authority = Authority(tmp_path)

    async def scenario() -> None:
        ours, _ = pair_of_settings()
        async with started(replace(ours, tls=authority.files("a"))) as (a,):
            reader, writer = await asyncio.open_connection("127.0.0.1", a.transport.port)
            async with asyncio.timeout(10):
                with suppress(ConnectionError):
                    assert await reader.read() == b""
            writer.close()

    asyncio.run(scenario())


def test_what_a_stranger_calls_itself_cannot_break_a_line_of_the_log(tmp_path: Path) -> None:
    async def scenario() -> None:
        ours, _ = pair_of_settings()
        async with started(ours) as (a,):
            reader, writer = await asyncio.open_connection("127.0.0.1", a.transport.port)
            await reader.readexactly(LENGTH.size + len(MAGIC) + NONCE_BYTES)
            hello = bytes(NONCE_BYTES + MAC_BYTES) + pack_names("b\nforged: line", "a", "another")
            writer.write(LENGTH.pack(len(hello)) + hello)
            await until(lambda: a.warnings, "a warning")
            assert "\n" not in a.warnings[0]
            writer.close()

    asyncio.run(scenario())


def test_a_second_process_of_a_node_is_turned_away_and_both_sides_say_so() -> None:
    """A copy of a data directory was started elsewhere. When the first process has ended, the second one is accepted."""

    async def scenario() -> None:
        settings_a, settings_b = pair_of_settings()
        async with started(settings_a, settings_b) as (a, b):
            await both_connected(a, b)
            again = replace(settings_b, listen=("127.0.0.1", free_ports(1)[0]))
            async with started(again) as (copy,):
                b.send("a")
                await until(lambda: "another process speaks as b" in copy.transport.peers["a"].error, "the copy learns why")
                assert any("another process speaks as b" in warning for warning in a.warnings)
                assert "another process speaks as b" in copy.transport.peers["a"].refusal
                assert not copy.connected("a")
                before = len(a.received)
                b.send("a")
                await until(lambda: len(a.received) > before, "the first process is still heard")
                await b.transport.stop()
                await until(lambda: copy.connected("a"), "the copy is let in")
                assert copy.transport.peers["a"].refusal == ""

    asyncio.run(scenario())


def test_a_process_that_dials_anew_is_let_in_at_once() -> None:
    """A connection of the same process replaces the older one, whenever that was last used."""

    async def scenario() -> None:
        async with started(*pair_of_settings()) as (a, b):
            await both_connected(a, b)
            b.send("a")
            await until(lambda: a.received, "the first message")
            older = a.transport.accepted["b"]
            connection = await b.transport._dial("a")
            await until(lambda: a.transport.accepted.get("b") not in (None, older), "the newer connection")
            connection.abort()
            assert not a.warnings

    asyncio.run(scenario())


def test_connections_without_a_hello_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replicated_namesrv.raft.transport.UNAUTHENTICATED_MAX", 1)

    async def scenario() -> None:
        settings, _ = pair_of_settings()
        async with started(settings) as (a,):
            reader, first, _ = await raw_hello(settings)
            newest, second = await asyncio.open_connection(*settings.listen)
            await ended(reader)
            assert await newest.read(1), "the newest is served, since a peer says hello at once"
            assert "too many are not authenticated" in a.transport.last_refusal
            first.close()
            second.close()

    asyncio.run(scenario())


def test_a_connection_without_a_hello_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replicated_namesrv.raft.transport.HELLO_SECONDS", 0.1)

    async def scenario() -> None:
        settings, _ = pair_of_settings()
        async with started(settings) as (a,):
            reader, writer, _ = await raw_hello(settings)
            await ended(reader)
            writer.close()
            await until(lambda: not a.transport.unauthenticated, "the end of the connection")

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("challenge", "secret", "more", "reason", "connects"),
    [
        (b"HTTP/1.1 400 ", SECRET, False, "speaks another protocol or version", False),
        (MAGIC + b"a" * NONCE_BYTES, b"another", False, "does not know the shared secret", False),
        (MAGIC + b"a" * NONCE_BYTES, SECRET, False, "", True),
        (MAGIC + b"a" * NONCE_BYTES, SECRET, True, "sends over a connection that it accepted", True),
    ],
    ids=["D1", "D3", "D4", "D5"],
)
def test_the_dialler_judges_the_acceptor(challenge: bytes, secret: bytes, more: bool, reason: str, connects: bool) -> None:
    async def scenario() -> None:
        ours, theirs = pair_of_settings()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(LENGTH.pack(len(challenge)) + challenge)
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                length = LENGTH.unpack(await reader.readexactly(4))[0]
                nonce = (await reader.readexactly(length))[:NONCE_BYTES]
                answer = proof(secret, b"accept", b"a" * NONCE_BYTES, nonce, "a", "b", "c")
                writer.write(LENGTH.pack(len(answer)) + answer)
                await until(lambda: not connects or a.events, "the connection")
                if more:
                    writer.write(LENGTH.pack(1) + b"x")
                await reader.read()
            writer.close()

        server = await asyncio.start_server(accept, *theirs.listen)
        async with started(ours) as (a,):
            await until(lambda: a.events if connects else a.warnings, "the judgement")
            assert ("+b" in a.events) is connects
            assert not sealed(a, "b"), "the acceptor offers no MACs, as those of 0.1.0"
            await until(lambda: not reason or any(reason in warning for warning in a.warnings), "the reason")
        server.close()
        await until(lambda: len(asyncio.all_tasks()) == 1, "the end of the acceptor's connections")

    asyncio.run(scenario())


# MACs of frames


@asynccontextmanager
async def attacker(
    target: tuple[str, int], change: Change | None = None, challenge: Callable[[bytes], bytes] | None = None
) -> AsyncIterator[tuple[str, int]]:
    """Start a relay between a dialler and an acceptor. Yields the address on which the relay listens."""
    relay = await Relay(target).start()
    relay.change, relay.challenge = change, challenge
    try:
        yield ("127.0.0.1", relay.port)
    finally:
        await relay.close()


def flipped(frame: bytes, position: int) -> bytes:
    return frame[:position] + bytes([frame[position] ^ 1]) + frame[position + 1 :]


def tampered(kind: str) -> Change:
    """An attacker's changes to the frames 1, 2 and 3, whose messages are 25 bytes long and have a MAC of 16."""
    kept: list[bytes] = []

    def change(number: int, frame: bytes) -> list[bytes]:
        kept.append(frame)
        if number == 2 and kind == "altered payload":
            return [flipped(frame, 10)]
        if number == 2 and kind == "altered MAC":
            return [flipped(frame, len(frame) - 1)]
        if number == 2 and kind == "altered length":
            return [flipped(frame, 0)]
        if number == 2 and kind == "truncated":
            return [frame[: -SEAL_BYTES - 1]]  # one byte less could be replaced by the first byte of the next frame
        if number == 2 and kind == "shorter than a MAC":
            return [LENGTH.pack(SEAL_BYTES - 1) + bytes(SEAL_BYTES - 1)]
        if number == 2 and kind == "without its MAC":
            return [LENGTH.pack(len(frame) - LENGTH.size - SEAL_BYTES) + frame[LENGTH.size : -SEAL_BYTES]]
        if number == 2 and kind == "left out":
            return []
        if number == 2 and kind == "repeated":
            return [kept[1]]
        if number == 2 and kind == "inserted":
            return [LENGTH.pack(len(encode(MESSAGE))) + encode(MESSAGE), frame]
        if kind == "reordered" and number in (2, 3):
            return [] if number == 2 else [frame, kept[2]]
        return [frame]

    return change


TAMPERINGS = (
    *("altered payload", "altered MAC", "altered length", "truncated", "shorter than a MAC", "without its MAC", "left out"),
    *("repeated", "inserted", "reordered"),
)


@pytest.mark.parametrize("kind", TAMPERINGS)
def test_a_frame_that_was_tampered_with_closes_the_connection_and_is_not_delivered(kind: str) -> None:
    async def scenario() -> None:
        ours, theirs = pair_of_settings()
        async with (
            attacker(theirs.listen, tampered(kind)) as relay,
            started(replace(ours, addresses={**ours.addresses, "b": relay}), theirs) as (a, b),
        ):
            await both_connected(a, b)
            for number in (1, 2, 3):
                a.send("b", HigherTerm(1, 2, number))
            await until(lambda: "-a" not in b.events and "-b" in a.events, "the connection to be closed")
            assert b.received == [("a", HigherTerm(1, 2, 1))], "nothing from the first tampered frame on is delivered"
            assert b.transport.forged_frames == b.transport.status()["forged_frames"] == 1
            assert b.transport.refusals == {"connection": 0, "frame": 1, "certificate": 0}
            assert any("a frame from a has a wrong MAC" in warning for warning in b.warnings)

    asyncio.run(scenario())


def test_a_frame_of_another_connection_is_not_delivered() -> None:
    """The first frame of each connection has the same number, but the nonces differ, and so may the direction."""

    async def scenario() -> None:
        ours, theirs = pair_of_settings()
        frames: dict[str, list[bytes]] = {"a": [], "b": []}

        def spliced(number: int, frame: bytes) -> list[bytes]:
            frames["a"].append(frame)
            return [frames[source][1]] if number == 1 and (source := splice_from) is not None else [frame]

        def recorded(number: int, frame: bytes) -> list[bytes]:
            frames["b"].append(frame)
            return [frame]

        splice_from: str | None = None
        async with (
            attacker(theirs.listen, spliced) as to_b,
            attacker(ours.listen, recorded) as to_a,
            started(
                replace(ours, addresses={**ours.addresses, "b": to_b}),
                replace(theirs, addresses={**theirs.addresses, "a": to_a}),
            ) as (a, b),
        ):
            await both_connected(a, b)
            a.send("b")
            b.send("a")
            await until(lambda: a.received and b.received, "a message in each direction")
            for count, source in enumerate(("a", "b"), 1):
                splice_from = None
                await until(lambda: a.connected("b") and "a" in b.transport.accepted, "a connection")
                before = a.transport.peers["b"].connections
                b.transport.accepted["a"].abort()
                await until(lambda n=before: a.transport.peers["b"].connections > n and a.connected("b"), "another one")  # type: ignore[misc]  # mypy infers no type for a default of a lambda
                splice_from = source
                a.send("b")
                await until(lambda n=count: b.transport.forged_frames == n, "the refusal")  # type: ignore[misc]  # mypy infers no type for a default of a lambda
            assert len(b.received) == 1

    asyncio.run(scenario())


def test_neither_side_can_be_talked_into_frames_without_macs() -> None:
    """A relay removes the offer from the challenge, so that it looks like that of an acceptor of 0.1.0. Then the proofs are
    wrong."""

    async def scenario() -> None:
        ours, theirs = pair_of_settings()

        def old(challenge: bytes) -> bytes:
            offer = LENGTH.size + len(MAGIC)
            assert challenge[offer:].startswith(OFFER_MARK)
            return challenge[:offer] + b"old!" + challenge[offer + len(OFFER_MARK) :]

        hellos: list[bytes] = []

        def passed(number: int, frame: bytes) -> list[bytes]:
            hellos.append(frame)
            return [frame]

        async with (
            attacker(theirs.listen, passed, old) as relay,
            started(replace(ours, addresses={**ours.addresses, "b": relay}), theirs) as (a, b),
        ):
            await until(lambda: any("a does not know the shared secret" in warning for warning in b.warnings), "the refusal")
            assert hellos[0][LENGTH.size :].startswith(PROCESS_MARK), "the dialler took it for an acceptor of 0.1.0"
            assert not a.connected("b")
            assert "a" not in b.transport.accepted

    asyncio.run(scenario())


def test_the_mark_of_a_dialler_cannot_be_removed_on_the_way() -> None:
    async def scenario() -> None:
        ours, theirs = pair_of_settings()

        def old(number: int, frame: bytes) -> list[bytes]:
            if number:
                return [frame]
            assert frame[LENGTH.size :].startswith(SEALING_MARK)
            return [frame[: LENGTH.size] + PROCESS_MARK + frame[LENGTH.size + len(PROCESS_MARK) :]]

        async with (
            attacker(theirs.listen, old) as relay,
            started(replace(ours, addresses={**ours.addresses, "b": relay}), theirs) as (a, b),
        ):
            await until(lambda: any("a does not know the shared secret" in warning for warning in b.warnings), "the refusal")
            assert not a.connected("b")

    asyncio.run(scenario())


def test_the_status_says_whether_frames_carry_macs() -> None:
    async def scenario() -> None:
        async with started(*pair_of_settings()) as (a, b):
            await both_connected(a, b)
            await until(lambda: sealed(a, "b") and sealed(b, "a"), "both directions to have MACs")

            _, writer, nonce = await raw_hello(a.transport.settings)
            writer.write(hello(a.transport.settings, nonce))  # as a node of 0.1.0 says it
            await until(lambda: not sealed(a, "b"), "the connection without MACs")
            writer.write(LENGTH.pack(len(encode(MESSAGE))) + encode(MESSAGE))
            await until(lambda: a.received, "its message")
            writer.close()

    asyncio.run(scenario())


def sealed(peer: Peer, other: str) -> bool:
    peers = peer.transport.status()["peers"]
    assert isinstance(peers, dict)
    return bool(peers[other]["sealed"])


def test_a_refusal_that_repeats_is_logged_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        settings, _ = pair_of_settings()
        peer = Peer(settings)
        for _ in range(100):
            peer.transport.refused("the same")
        assert peer.warnings == ["the same"]
        monkeypatch.setattr(transport, "REFUSAL_REPEAT_SECONDS", 0.0)
        peer.transport.refused("the same")
        assert peer.warnings == ["the same"] * 2
        assert peer.transport.refused_count == 101

    asyncio.run(scenario())


def test_a_frame_that_is_too_long_closes_the_connection() -> None:
    async def scenario() -> None:
        settings, _ = pair_of_settings(frame_bytes_max=1000)
        async with started(settings) as (a,):
            reader, writer, nonce = await raw_hello(settings)
            writer.write(hello(settings, nonce) + LENGTH.pack(1000 + SEAL_BYTES + 1))
            await ended(reader)
            writer.close()
            assert "a frame of 1017 bytes, the limit is 1016" in a.transport.last_refusal

    asyncio.run(scenario())

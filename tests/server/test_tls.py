"""TLS on the plain port: modes, certificates from memory and from files, client certificates, reload, broken streams."""

import contextlib
import os
import shutil
import socket
import ssl
import struct
from pathlib import Path

import pytest

from replicated_namesrv.errors import SettingError
from replicated_namesrv.server import tls
from replicated_namesrv.server.server_metrics import ServerMetrics
from replicated_namesrv.server.tls import TlsContexts, admin_contexts, self_signed_files
from replicated_namesrv.server.turn_shares import TurnShares
from replicated_namesrv.settings_sources import load_settings
from tests.support.authority import Authority
from tests.support.key_updates import KeyUpdater
from tests.support.remoting_server import Peer, ServerThread, broker_fields, live_server, request, topic_table
from tests.support.waiting import wait_until


def trusting_anybody() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def trusting(certificate: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificate))


def new_pair(folder: Path, name: str) -> tuple[Path, Path]:
    """A new self-signed certificate and its key."""
    (folder / name).mkdir()
    return self_signed_files(folder / name)


def file_flags(certificate: Path, key: Path) -> dict[str, str]:
    return {
        "tls__test__mode__enable": "false",
        "tls__server__certPath": str(certificate),
        "tls__server__keyPath": str(key),
    }


def test_permissive_serves_both_out_of_the_box(tmp_path: Path) -> None:
    with live_server(tmp_path) as server:
        with Peer(server.port, trusting_anybody()) as encrypted, Peer(server.port) as plain:
            encrypted.call(103, broker_fields(), topic_table("T", "U"))
            assert plain.call(105, {"topic": "T"}).body == encrypted.call(105, {"topic": "T"}).body
        assert server.metrics.tls_handshakes == 1


def test_large_frames_and_a_pipeline(tmp_path: Path) -> None:
    names = [f"Topic-{n:05}" for n in range(20_000)]
    with live_server(tmp_path) as server, Peer(server.port, trusting_anybody()) as peer:
        assert peer.call(103, broker_fields(), topic_table(*names)).code == 0
        assert len(peer.call(206).body) > 200_000
        peer.send(b"".join(request(105, {"topic": names[n]}, opaque=n) for n in range(1, 2000)))
        assert [answer.header.opaque for answer in peer.answers(1999)] == list(range(1, 2000))


def test_behind_a_proxy(tmp_path: Path) -> None:
    header = b"PROXY TCP4 10.9.8.7 1.1.1.1 4711 9876\r\n"
    with live_server(tmp_path) as server, Peer(server.port, trusting_anybody(), first=header) as peer:
        assert peer.call(206).code == 0


def test_disabled_closes(tmp_path: Path) -> None:
    with live_server(tmp_path, tls__server__mode="disabled") as server:
        with pytest.raises(OSError, match=r"(?i)eof|reset"):
            Peer(server.port, trusting_anybody())
        with Peer(server.port) as plain:
            plain.call(206)


def test_enforcing_closes_plain_connections(tmp_path: Path) -> None:
    with live_server(tmp_path, tls__server__mode="enforcing") as server, Peer(server.port) as plain:
        plain.send(request(206))
        assert plain.is_closed()
        with Peer(server.port, trusting_anybody()) as encrypted:
            encrypted.call(206)


def test_certificate_from_files_and_trust_of_clients(tmp_path: Path) -> None:
    certificate, key = new_pair(tmp_path, "server")
    client_certificate, client_key = new_pair(tmp_path, "client")
    flags = {
        **file_flags(certificate, key),
        "tls__server__need__client__auth": "require",
        "tls__server__authClient": "true",
        "tls__server__trustCertPath": str(client_certificate),
    }
    with live_server(tmp_path, **flags) as server:
        known = trusting(certificate)
        known.load_cert_chain(client_certificate, client_key)
        with Peer(server.port, known) as peer:
            assert peer.call(206).code == 0
        stranger = trusting(certificate)
        assert is_refused(server, stranger)
        wrong = trusting(certificate)
        wrong.load_cert_chain(*new_pair(tmp_path, "wrong"))
        assert is_refused(server, wrong)
        wait_until(lambda: server.metrics.tls_failures == 2, "both failures to be counted")


def is_refused(server: ServerThread, context: ssl.SSLContext) -> bool:
    """In TLS 1.3 a client learns of its refusal only when it reads."""
    try:
        with Peer(server.port, context) as peer:
            peer.send(request(206))
            return peer.is_closed()
    except OSError:
        return True


def test_reload(tmp_path: Path) -> None:
    certificate, key = new_pair(tmp_path, "server")
    next_certificate, next_key = new_pair(tmp_path, "next")
    with live_server(tmp_path, **file_flags(certificate, key)) as server, Peer(server.port, trusting(certificate)) as old:
        trusts_old = trusting(certificate)
        replace(next_certificate, certificate)
        server.do(server.server.tls.poll)
        assert (server.metrics.tls_reloads, server.metrics.tls_reload_failures) == (0, 1)
        assert "the key does not belong to the certificate" in (server.server.tls.problem or "")
        with Peer(server.port, trusts_old) as peer:
            peer.call(206)
        replace(next_key, key)
        wait_until(lambda: server.metrics.tls_reloads == 1, "the reload once both belong together", 5)
        with Peer(server.port, trusting(certificate)) as peer:
            peer.call(206)
        old.call(206)
        certificate.write_text("no certificate")
        wait_until(lambda: server.metrics.tls_reload_failures >= 2, "the bad file to be noticed", 5)
        assert server.server.tls.problem
        with Peer(server.port, trusting(next_certificate)) as peer:
            peer.call(206)


def replace(source: Path, target: Path) -> None:
    shutil.copy(source, f"{target}.new")
    os.replace(f"{target}.new", target)


@pytest.mark.parametrize("port", ["remoting", "admin"])
def test_a_new_certificate_for_the_same_key_is_taken(tmp_path: Path, port: str) -> None:
    authority = Authority(tmp_path)
    files = authority.files("localhost")
    metrics = ServerMetrics()
    if port == "remoting":
        flags = {name.replace("__", "."): value for name, value in file_flags(files.certificate, files.key).items()}
        contexts = TlsContexts(load_settings(None, flags, {}), metrics)
    else:
        flags = {"adminTlsCertPath": str(files.certificate), "adminTlsKeyPath": str(files.key)}
        found = admin_contexts(load_settings(None, flags, {}), metrics)
        assert found is not None
        contexts = found
    first = contexts.context
    contexts.watch_present_files()
    authority.renew(files, days=20)
    contexts.poll()
    contexts.poll()
    assert (metrics.tls_reloads, metrics.tls_reload_failures) == (1, 0)
    assert contexts.context is not first


def test_trust_file_alone_is_taken_at_once_and_deletion_is_ignored(tmp_path: Path) -> None:
    certificate, key = new_pair(tmp_path, "server")
    trusted, _ = new_pair(tmp_path, "trusted")
    flags = {name.replace("__", "."): value for name, value in file_flags(certificate, key).items()}
    more = {"tls.server.need.client.auth": "require", "tls.server.authClient": "true", "tls.server.trustCertPath": str(trusted)}
    metrics = ServerMetrics()
    contexts = TlsContexts(load_settings(None, {**flags, **more}, {}), metrics)
    first = contexts.context
    contexts.watch_present_files()
    contexts.poll()
    assert contexts.context is first
    replace(new_pair(tmp_path, "other")[0], trusted)
    contexts.poll()
    assert metrics.tls_reloads == 1
    assert contexts.context is not first
    trusted.unlink()
    contexts.poll()
    assert (metrics.tls_reloads, metrics.tls_reload_failures) == (1, 0)


def test_a_pair_read_half_way_is_taken_once_the_rest_is_there(tmp_path: Path) -> None:
    certificate, key = new_pair(tmp_path, "server")
    next_certificate, next_key = new_pair(tmp_path, "next")
    flags = {name.replace("__", "."): value for name, value in file_flags(certificate, key).items()}
    metrics = ServerMetrics()
    contexts = TlsContexts(load_settings(None, flags, {}), metrics)
    first = contexts.context
    contexts.watch_present_files()
    certificate.write_bytes(next_certificate.read_bytes()[:200])
    key.write_bytes(next_key.read_bytes())
    contexts.poll()
    contexts.poll()
    assert (metrics.tls_reloads, metrics.tls_reload_failures) == (0, 1), "one try for each change"
    assert contexts.context is first
    assert contexts.problem is not None
    assert "PEM" in contexts.problem
    replace(next_certificate, certificate)
    contexts.poll()
    assert metrics.tls_reloads == 1
    assert contexts.problem is None


def test_enforcing_without_a_usable_certificate_does_not_start(tmp_path: Path) -> None:
    (tmp_path / "c.pem").write_text("no certificate")
    flags = {**file_flags(tmp_path / "c.pem", tmp_path / "missing.pem"), "tls__server__mode": "enforcing"}
    with pytest.raises(SettingError, match=r"tls\.server\.certPath"), live_server(tmp_path, **flags):
        pass


def test_permissive_without_a_usable_certificate_serves_plain(tmp_path: Path) -> None:
    with live_server(tmp_path, **file_flags(tmp_path / "a", tmp_path / "b")) as server, Peer(server.port) as plain:
        plain.call(206)
        with pytest.raises(OSError, match=r"(?i)eof|reset"):
            Peer(server.port, trusting_anybody())


@pytest.mark.parametrize("garbage", [bytes(100), b"\x16\x03\x01\x00\x05hello" + bytes(20), b"\x16" * 40])
def test_garbage_for_a_handshake(tmp_path: Path, garbage: bytes) -> None:
    with live_server(tmp_path, tls__server__mode="enforcing") as server, Peer(server.port) as peer, Peer(server.port) as tail:
        peer.send(garbage)
        received = peer.socket.recv(100)
        assert received == b"" or received[0] == 0x15, "closed, perhaps with an alert"
        tail.send(garbage[:3])
        with Peer(server.port, trusting_anybody()) as good:
            good.call(206)


def test_garbage_after_the_handshake(tmp_path: Path) -> None:
    with live_server(tmp_path) as server, Peer(server.port) as beside:
        with Peer(server.port, trusting_anybody()) as peer:
            peer.call(206)
            with socket.socket(fileno=os.dup(peer.socket.fileno())) as raw:
                raw.sendall(b"this is no record" * 10)
            assert peer.is_closed()
        beside.call(206)
        wait_until(lambda: server.metrics.tls_failures == 1, "the failure to be counted")


def test_malformed_frame_within_tls(tmp_path: Path) -> None:
    with live_server(tmp_path) as server, Peer(server.port, trusting_anybody()) as peer:
        peer.send(struct.pack(">i", -5) + bytes(20))
        assert peer.is_closed()
        assert server.metrics.limits_hit == {"malformed": 1}


def test_close_notify(tmp_path: Path) -> None:
    with live_server(tmp_path) as server, Peer(server.port, trusting_anybody()) as peer:
        peer.call(206)
        assert isinstance(peer.socket, ssl.SSLSocket)
        peer.socket.unwrap()
        wait_until(lambda: server.metrics.connections_closed == {"peer": 1}, "the close")


def test_close_notify_before_the_answer_is_acknowledged(tmp_path: Path) -> None:
    """The peer ends TLS while it has not read its answer, and its socket does not accept all of it."""
    with live_server(tmp_path) as server, Peer(server.port) as registrar, socket.socket() as raw:
        registrar.call(103, broker_fields(), topic_table(*(f"topic-{number}" for number in range(3_000))))
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        raw.connect(("127.0.0.1", server.port))
        with trusting_anybody().wrap_socket(raw, server_hostname="localhost") as peer:
            peer.sendall(request(206))
            wait_until(lambda: server.metrics.request_counts().get((206, 0)) == 1, "the answer")
            peer.settimeout(0)
            with contextlib.suppress(ssl.SSLError, BlockingIOError):
                peer.unwrap()  # sends close_notify, and does not wait for that of the server
            wait_until(lambda: server.metrics.connections_closed, "the end")
            assert server.do(lambda: server.metrics.connections_closed) == {"unacknowledged": 1}


def test_requests_before_close_notify_are_processed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them are decrypted together, and each turn of the loop answers only one. The client reads nothing before the server
    has processed all of them, and its socket does not accept all answers."""
    monkeypatch.setattr(tls, "PIECE_BYTES", 65_536)
    count = 100
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    session = trusting_anybody().wrap_bio(incoming, outgoing)
    with live_server(tmp_path) as server, Peer(server.port) as registrar, socket.socket() as client:
        registrar.call(103, broker_fields(), topic_table(*(f"topic-{number}" for number in range(100))))
        registrar.close()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        client.connect(("127.0.0.1", server.port))
        while True:
            try:
                session.do_handshake()
                break
            except ssl.SSLWantReadError:
                client.sendall(outgoing.read())
                incoming.write(client.recv(65_536))
        wait_until(lambda: server.metrics.connections_open == 1, "the end of the other connection")
        (connection,) = server.do(lambda: list(server.server.connections))
        monkeypatch.setattr(TurnShares, "left_ns", lambda shares, share: 0)
        session.write(b"".join(request(206, opaque=number) for number in range(1, count + 1)))
        with contextlib.suppress(ssl.SSLWantReadError):
            session.unwrap()
        client.sendall(outgoing.read())
        wait_until(lambda: connection.is_closing, "the server has processed close_notify")
        assert server.do(lambda: server.metrics.request_counts()[206, 0]) == count
        while client.recv(65_536):
            pass
        closed = server.do(lambda: server.metrics.connections_closed)
        assert closed == {"peer": 1, "unacknowledged": 1}


def test_records_without_data_take_the_share_of_their_address(tmp_path: Path) -> None:
    """In an earlier version, 10,000 of them in one read of the socket, 270 KB, stopped the event loop for a second."""
    with live_server(tmp_path) as server, Peer(server.port) as honest:
        attacker = KeyUpdater(server.port, "127.0.0.2")
        with attacker.socket:
            honest.call(206)
            attacker.socket.sendall(attacker.records(4_000))
            (connection,) = (each for each in server.server.connections if each.is_encrypted)

            def backlog() -> int:
                return 0 if connection._tls is None else len(connection._tls.backlog)

            wait_until(backlog, "records that wait")
            honest.call(206)
            assert backlog() > 0, "the records were processed before another address was served"
            wait_until(lambda: not backlog(), "the end of the records")
            assert not connection.is_closing

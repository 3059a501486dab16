"""HTTPS on the admin port: real processes, the reload of the certificate, the commands, and silent TLS clients."""

import contextlib
import socket
import ssl
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from replicated_namesrv.admin.app import ADDRESS_CONNECTIONS_MAX, CONNECTIONS_MAX
from replicated_namesrv.errors import SettingError
from replicated_namesrv.server.tls import self_signed_files
from replicated_namesrv.settings_sources import load_settings
from tests.security.attacked import MODES, AttackedNode, attacked
from tests.security.test_one_host import closed, connections
from tests.support.nodes import run_command
from tests.support.ports import free_port
from tests.support.waiting import wait_until

TOKEN = "a-secret-of-some-length"


def certificate(node: AttackedNode) -> str:
    return ssl.get_server_certificate(("localhost", node.admin_port), timeout=60)


def https_status(node: AttackedNode, path: str, ca: Path) -> int:
    context = ssl.create_default_context(cafile=str(ca))
    request = urllib.request.Request(f"https://localhost:{node.admin_port}{path}", headers={"Authorization": f"Bearer {TOKEN}"})
    with urllib.request.urlopen(request, timeout=60, context=context) as answer:
        return int(answer.status)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_the_admin_port_speaks_https_and_takes_a_new_certificate(tmp_path: Path, mode: str) -> None:
    cert, key = self_signed_files(tmp_path)
    token, health = tmp_path / "token", free_port()
    token.write_text(TOKEN)
    tls = (f"adminTlsCertPath={cert}", f"adminTlsKeyPath={key}", f"adminTokenFile={token}", f"healthListen=127.0.0.1:{health}")
    with attacked(tmp_path, mode, *tls) as node:
        assert https_status(node, "/readyz", cert) == 200
        assert https_status(node, "/v1/config", cert) == 200
        with urllib.request.urlopen(f"http://127.0.0.1:{health}/readyz", timeout=60) as answer:
            assert answer.status == 200, "the port for probes stays plain"
        admin = ("-a", f"localhost:{node.admin_port}", "--token-file", str(token))
        done = run_command("status", *admin, "--ca", str(cert))
        assert (done.returncode, mode in done.stdout) == (0, True), done
        assert run_command("status", *admin, environment={"NAMESRV_ADMIN_CA": str(cert)}).returncode == 0
        assert run_command("status", *admin).returncode != 0, "plain HTTP"
        assert run_command("status", *admin, "--ca", "system").returncode != 0, "nobody vouches for the certificate"
        before = certificate(node)
        cert.write_text("no certificate")
        key.write_text("no key")
        wait_until(lambda: "the old certificate stays in use" in node.log, "the log line that the old certificate stays in use")
        assert certificate(node) == before
        self_signed_files(tmp_path)
        wait_until(lambda: certificate(node) == cert.read_text(), "the new certificate")
        assert https_status(node, "/readyz", cert) == 200
        assert 'namesrv_tls_reloads_total{outcome="done"} 1.0' in metrics(node, cert)
        node.stop()


def metrics(node: AttackedNode, ca: Path) -> str:
    context = ssl.create_default_context(cafile=str(ca))
    with urllib.request.urlopen(f"https://localhost:{node.admin_port}/metrics", timeout=60, context=context) as answer:
        return str(answer.read().decode())


@pytest.mark.slow
def test_silent_tls_clients_of_one_host_leave_room(tmp_path: Path) -> None:
    """A connection counts before its handshake, which a hostile client never ends."""
    cert, key = self_signed_files(tmp_path)
    with attacked(tmp_path, "ap", f"adminTlsCertPath={cert}", f"adminTlsKeyPath={key}") as node:
        with connections(node.admin_port, CONNECTIONS_MAX) as held:
            wait_until(lambda: closed(held) >= CONNECTIONS_MAX - ADDRESS_CONNECTIONS_MAX, "all but those of one address")
            assert https_status(node, "/livez", cert) == 200
        with connections(node.admin_port, 50, b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n") as plain:
            wait_until(lambda: closed(plain) + answered(plain) == 50, "plain HTTP is not answered")
            assert answered(plain) == 0
        assert node.log.count("TLS handshake failed") <= 25
        assert "Traceback" not in node.log
        assert https_status(node, "/livez", cert) == 200


def answered(sockets: list[socket.socket]) -> int:
    """The number of sockets that got an HTTP answer."""
    count = 0
    for each in sockets:
        with contextlib.suppress(OSError):
            count += each.recv(8, socket.MSG_PEEK | socket.MSG_DONTWAIT).startswith(b"HTTP")
    return count


def test_certificate_and_key_are_given_together_and_can_be_used(tmp_path: Path) -> None:
    cert, key = self_signed_files(tmp_path)
    for alone in ({"adminTlsCertPath": str(cert)}, {"adminTlsKeyPath": str(key)}):
        with pytest.raises(SettingError, match="give both or neither"):
            load_settings(None, alone, {})
    key.write_text("no key")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "replicated_namesrv", "serve", "--listen", "127.0.0.1:0", "--data-dir", str(tmp_path)),
            *("--set", "adminListen=127.0.0.1:0", "--set", f"adminTlsCertPath={cert}", "--set", f"adminTlsKeyPath={key}"),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    assert f"adminTlsKeyPath={key}" in done.stderr

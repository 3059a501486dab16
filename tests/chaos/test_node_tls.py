"""Certificates of nodes with faults, and which nodes have them."""

import asyncio
import random
import ssl
import time
from pathlib import Path

import pytest

from replicated_namesrv.admin.certificates import expiry_s
from replicated_namesrv.chaos.node_tls import EXPIRING_DAYS, LASTING_DAYS, CertificateFault, NodeTls
from replicated_namesrv.chaos.process_cluster import ProcessCluster
from replicated_namesrv.chaos.scenario import load
from replicated_namesrv.client.queries import topics_request

DAY_S = 86_400


def loaded(tls: NodeTls) -> float:
    """Load the files as a node does, and return the days until the certificate expires."""
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tls.certificate_file, tls.certificate_file.with_name("key.pem"))
    return (expiry_s(tls.certificate_file) - time.time()) / DAY_S


def test_every_certificate_belongs_to_the_key_and_only_the_unusable_one_cannot_be_loaded(tmp_path: Path) -> None:
    tls = NodeTls(tmp_path / "tls")
    assert loaded(tls) == pytest.approx(LASTING_DAYS, abs=0.1)
    tls.begin(CertificateFault.EXPIRES)
    assert loaded(tls) == pytest.approx(EXPIRING_DAYS, abs=0.1)
    tls.begin(CertificateFault.UNUSABLE)
    with pytest.raises(ssl.SSLError):
        loaded(tls)
    tls.end()
    assert loaded(tls) == pytest.approx(LASTING_DAYS, abs=0.1)


async def test_a_node_serves_tls_with_these_files_and_connections_without_tls(tmp_path: Path, rng: random.Random) -> None:
    async with ProcessCluster(tmp_path, 1, "ap", [], [], rng, None, has_tls=True) as cluster:
        await cluster.start()
        node = cluster.nodes["n1"]
        assert node.tls is not None
        host, _, port = node.listen.partition(":")
        found = await asyncio.to_thread(ssl.get_server_certificate, (host, int(port)))
        assert found == node.tls.certificate_file.read_text(encoding="ascii")
        assert await cluster.ask("n1", topics_request(), 5.0) is not None


def test_only_scenarios_with_these_faults_need_the_files() -> None:
    assert load("certificate-expires").has_certificates
    assert not load("no-fault").has_certificates

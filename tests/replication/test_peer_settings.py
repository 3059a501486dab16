"""The settings with which peers authenticate each other: refused values, and their messages."""

import asyncio
import os
import stat
from pathlib import Path

import pytest

from replicated_namesrv.cli.cluster import PEER_SECRET, create_peer_secret, plan_nodes
from replicated_namesrv.errors import SettingError
from replicated_namesrv.process import ServingNode, shared_authority
from replicated_namesrv.raft.peer_tls import Tls, TlsFiles
from replicated_namesrv.raft.transport import TransportSettings
from replicated_namesrv.replication.peer_settings import transport_settings
from replicated_namesrv.settings_sources import load_settings
from tests.support.authority import Authority
from tests.support.nodes import http
from tests.support.operated import Operated, operated, run
from tests.support.ports import free_ports
from tests.support.replicated_processes import ReplicatedProcesses, eventually

PEERS = "n1=127.0.0.1:9896"


def with_settings(folder: Path, **flags: str) -> TransportSettings:
    return transport_settings(load_settings(None, {"mode": "cp", "peers": PEERS, "dataDir": str(folder), **flags}, {}))


def test_certificates_without_a_secret_get_a_warning() -> None:
    tls = dict.fromkeys(("peerTlsKeyPath", "peerTlsCertPath", "peerTlsTrustCertPath"), "file.pem")
    cases: tuple[tuple[dict[str, str], bool], ...] = (({}, False), (tls, True), ({**tls, "peerSecretFile": "secret"}, False))
    for flags, warned in cases:
        settings = load_settings(None, {"mode": "cp", "peers": PEERS, **flags}, {})
        assert any("set peerSecretFile" in warning for warning in shared_authority(settings)) == warned


def test_peer_dial_names_members_and_nodes_that_become_members(tmp_path: Path) -> None:
    dial = {"peerDial": "n1=192.0.2.1:1,n4=192.0.2.4:1"}
    found = with_settings(tmp_path, **dial)
    assert found.addresses == {"n1": ("192.0.2.1", 1), "n4": ("192.0.2.4", 1)}
    assert found.listen == ("127.0.0.1", 9896), "a node does not use the address at which others reach it"
    joining = with_settings(tmp_path, peers="", nodeId="n5", join="n2=192.0.2.2:2", peerListen="127.0.0.1:5", **dial)
    assert joining.addresses == {**found.addresses, "n2": ("192.0.2.2", 2), "n5": ("127.0.0.1", 5)}
    with pytest.raises(SettingError, match=r"^peerDial: 'n4' is not name=host:port; give for example"):
        with_settings(tmp_path, peerDial="n4")


@pytest.mark.parametrize("count", [2, 4, 6, 7])
def test_a_number_of_nodes_that_founds_no_cluster_is_refused_with_the_remedy_for_a_changed_one(
    count: int, tmp_path: Path
) -> None:
    peers = ",".join(f"n{number}=127.0.0.{number}:9896" for number in range(1, count + 1))
    with pytest.raises(SettingError, match=rf"peers has {count} nodes; give 1, 3 or 5 nodes .* replace peers by join"):
        with_settings(tmp_path, peers=peers)


async def test_a_name_in_peer_dial_alone_makes_no_member(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with operated(tmp_path, 1, peerDial="n1=127.0.0.1:1,n2=127.0.0.1:1") as cluster:
        service = cluster.nodes[0].service
        assert [member["nodeId"] for member in service.members()] == ["n1"]
        assert cluster.status(cluster.nodes[0])["raft"]["transport"]["peers"] == {}
    (warning,) = [
        record for record in caplog.records if record.getMessage().startswith("peerDial names nodes that are not members")
    ]
    assert (vars(warning)["nodes"], vars(warning)["members"]) == ("n2", "n1")


@pytest.mark.parametrize("join_at", ["peer address", "dialled address"])
async def test_a_member_is_dialled_at_its_address_in_peer_dial(tmp_path: Path, join_at: str) -> None:
    """n1 listens at an address that only ``peerDial`` of n2 has, as if n1 were behind NAT. No process listens at the peer
    address of n1, which is in the log."""
    listen, joining = (f"127.0.0.1:{port}" for port in free_ports(2))
    async with operated(tmp_path, 1, peerListen=listen) as cluster:
        first = cluster.nodes[0].settings.peers if join_at == "peer address" else f"n1={listen}"
        flags = {"nodeId": "n2", "mode": "cp", "listen": "127.0.0.1:0", "adminListen": "127.0.0.1:0"}
        flags |= {"join": first, "peerDial": f"n1={listen}", "peerListen": joining, "dataDir": str(tmp_path / "n2")}
        node = ServingNode(load_settings(None, flags, {}))
        starting = asyncio.ensure_future(node.start())
        try:
            added = await run("members", "add", "n2", joining, "--observer", "--within", "20", "-a", cluster.admin)
            assert added.code == 0, added
            async with asyncio.timeout(20):
                await starting
            transport = Operated([node]).status(node)["raft"]["transport"]
            assert transport["peers"]["n1"]["connected"], transport
        finally:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            await node.stop()


def secret_file(folder: Path, content: str, mode: int = 0o600) -> str:
    file = folder / "secret"
    file.write_text(content)
    file.chmod(mode)
    return str(file)


@pytest.mark.parametrize(
    ("content", "mode", "reason"),
    [
        ("k3J9sPq-Zr7TxWv0", 0o644, r"secret: every user can read or write it \(mode 0644\); run chmod o-rwx .*secret"),
        ("k3J9sPq-Zr7TxWv0", 0o602, r"every user can read or write it \(mode 0602\)"),
        ("k3J9sPq-Zr7TxWv", 0o600, "15 bytes; give at least 16"),
        ("a" * 16, 0o600, r"easy to guess \(1 different bytes, .*head -c 32 /dev/urandom"),
        ("abcde" + "a" * 20, 0o600, r"easy to guess \(5 different bytes"),
        ("password" * 4, 0o600, r"easy to guess \(7 different bytes, repeated after 8\)"),
    ],
)
def test_a_secret_that_is_none_is_refused(tmp_path: Path, content: str, mode: int, reason: str) -> None:
    with pytest.raises(SettingError, match=f"^peerSecretFile=.*{reason}"):
        with_settings(tmp_path, peerSecretFile=secret_file(tmp_path, content, mode))


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o440, 0o640])
@pytest.mark.parametrize("content", ["the secret that all nodes share", "0123456789abcdef", "k3J9sPq-Zr7TxWv0\n"])
def test_a_secret_is_taken(tmp_path: Path, content: str, mode: int) -> None:
    with_settings(tmp_path, peerSecretFile=secret_file(tmp_path, content, mode))


@pytest.mark.parametrize("name", ["", "c" * 201, "é" * 101])
def test_the_name_of_the_cluster_fits_into_a_hello(name: str, tmp_path: Path) -> None:
    """A longer one failed in the handshake, where no setting is named."""
    with pytest.raises(SettingError, match=f"^clusterId has {len(name.encode())} bytes; give a name of 1 to 200 bytes$"):
        with_settings(tmp_path, clusterId=name)


def test_a_second_secret_is_accepted_beside_the_first(tmp_path: Path) -> None:
    first, second = secret_file(tmp_path, "k3J9sPq-Zr7TxWv0"), tmp_path / "second"
    second.write_text("0123456789abcdef\n")
    second.chmod(0o600)
    found = with_settings(tmp_path, peerSecretFile=first, peerSecretAcceptFile=str(second))
    assert (found.secret, found.accepted_secrets) == (b"k3J9sPq-Zr7TxWv0", (b"0123456789abcdef",))
    with pytest.raises(SettingError, match=r"^peerSecretAcceptFile=.* without peerSecretFile; give"):
        with_settings(tmp_path, peerSecretAcceptFile=str(second))
    second.chmod(0o644)
    with pytest.raises(SettingError, match=r"^peerSecretAcceptFile=.*every user can read"):
        with_settings(tmp_path, peerSecretFile=first, peerSecretAcceptFile=str(second))


def tls(files: TlsFiles, **changes: str) -> dict[str, str]:
    paths = {
        "peerTlsKeyPath": str(files.key),
        "peerTlsCertPath": str(files.certificate),
        "peerTlsTrustCertPath": str(files.authority),
    }
    return paths | changes


def test_certificates_are_checked_at_the_start(tmp_path: Path) -> None:
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "stranger")
    good = authority.files("n1")
    with_settings(tmp_path, **tls(good), peers="n1=192.0.2.1:9896")  # without a secret, not on loopback
    other = authority.files("n2")
    refused = {
        "peerTlsCertPath=.*n2.pem.*certificate is not valid for 'n1'": tls(other),
        "key values mismatch": tls(good, peerTlsKeyPath=str(other.key)),
        "certificate has expired": tls(authority.files("n1", days=-1, prefix="old-")),
        "unable to get local issuer": tls(good, peerTlsTrustCertPath=str(stranger.path)),
        "^peerTlsKeyPath=.*none.key: No such file or directory; give a PEM file": tls(
            good, peerTlsKeyPath=str(tmp_path / "none.key")
        ),
        "^peerTlsKeyPath=.*n1.key, peerTlsCertPath=.*n1.pem without peerTlsTrustCertPath; give all": tls(
            good, peerTlsTrustCertPath=""
        ),
        "^peerTlsKeyPassword is given without": {"peerTlsKeyPassword": "x"},
    }
    for reason, flags in refused.items():
        with pytest.raises(SettingError, match=reason):
            with_settings(tmp_path, **flags)


def test_a_cluster_of_one_command_has_a_secret_of_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    plans = plan_nodes(3, "cp", "127.0.0.1", 9876, folder, ())
    create_peer_secret(plans, folder / PEER_SECRET)
    secret = (folder / PEER_SECRET).read_text()
    assert stat.S_IMODE(os.stat(folder / PEER_SECRET).st_mode) == 0o600
    create_peer_secret(plans, folder / PEER_SECRET)
    assert (folder / PEER_SECRET).read_text() == secret, "a cluster that starts again keeps it"
    for plan in plans:
        flags = dict(setting.split("=", 1) for setting in plan.settings)
        assert transport_settings(load_settings(None, {"mode": "cp", "nodeId": plan.node_id, **flags}, {})).secret


def test_a_cluster_with_a_given_secret_makes_none(tmp_path: Path) -> None:
    for mode, given in (("cp", ("peerSecretFile=/elsewhere",)), ("ap", ())):
        plans = plan_nodes(3, mode, "127.0.0.1", 9876, tmp_path, given)
        create_peer_secret(plans, tmp_path / PEER_SECRET)
        assert not list(tmp_path.iterdir())
        assert not any(str(tmp_path / PEER_SECRET) in setting for plan in plans for setting in plan.settings)


def test_a_new_certificate_for_the_same_key_is_taken(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files = authority.files("a")
    contexts = Tls(files)
    before = contexts.client
    authority.renew(files, days=20)
    contexts.refresh()
    assert contexts.client is not before


@pytest.mark.slow
async def test_three_processes_use_tls_and_renewed_certificates(tmp_path: Path) -> None:
    """The second set of certificates is signed by an authority that the nodes do not know before their files are replaced."""
    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(old.path.read_bytes())
    cluster = ReplicatedProcesses(tmp_path / "nodes", 3)
    cluster.has_secret = False
    cluster.settings_of = lambda name: tuple(f"{k}={v}" for k, v in tls(old.files(name, trusted=trusted)).items())
    try:
        await cluster.start()
        for name in cluster.names:
            transport = (await cluster.status(name))["raft"]["transport"]
            assert transport["authentication"] == "tls"
        await write(cluster)
        trusted.write_bytes(old.path.read_bytes() + new.path.read_bytes())
        for name in cluster.names:
            new.files(name, trusted=trusted)
        for relay in cluster.relays.values():
            relay.drop()
        await write(cluster)
        trusted.write_bytes(new.path.read_bytes())  # from now on only the new certificates are accepted
        for relay in cluster.relays.values():
            relay.drop()
        await write(cluster)
        await cluster.agree()

        async def all_connected() -> bool:
            found = [(await cluster.status(name))["raft"]["transport"]["peers"] for name in cluster.names]
            return all(peer["connected"] for peers in found for peer in peers.values())

        await eventually(all_connected, "all connections")
    finally:
        await cluster.close()


async def write(cluster: ReplicatedProcesses) -> None:
    async def is_written() -> bool:
        port = cluster.nodes[await cluster.leader()].plan.admin[1]
        return (await http(port, "/v1/kv/n/k", "PUT", b"v")).status == 200

    await eventually(is_written, "a write")

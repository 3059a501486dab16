"""``namesrv doctor``: its findings on a machine, each with a remedy."""

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from replicated_namesrv.cli import doctor
from replicated_namesrv.cli.doctor import OF_ONE_NODE, percentile
from replicated_namesrv.histogram import Histogram
from replicated_namesrv.settings import ROWS
from tests.support.authority import Authority
from tests.support.operated import operated, run
from tests.support.ports import free_port, free_ports
from tests.support.waiting import until


async def findings(*arguments: str, code: int) -> dict[str, list[dict[str, Any]]]:
    """Findings by check."""
    done = await run("doctor", *arguments, "--json")
    assert done.code == code, done
    found: dict[str, list[dict[str, Any]]] = {}
    for finding in json.loads(done.out)["findings"]:
        found.setdefault(finding["check"], []).append(finding)
        assert finding["remedy"] or finding["level"] == "ok", finding
    return found


def member(folder: Path, *more: str, peers: str = "") -> list[str]:
    """Options of a node that could be started."""
    listen, peer = free_ports(2)
    own = (f"listen=127.0.0.1:{listen}", "mode=cp", "nodeId=n1", "adminListen=off", f"peers=n1=127.0.0.1:{peer}{peers}", *more)
    return ["--data-dir", str(folder), *(word for setting in own for word in ("--set", setting))]


def levels(found: list[dict[str, Any]]) -> list[str]:
    return [finding["level"] for finding in found]


async def test_a_sound_machine_has_no_problem(tmp_path: Path) -> None:
    found = await findings(*member(tmp_path), code=0)
    assert levels(found["settings"]) == ["ok"]
    assert set(levels(found["ports"])) == {"ok"}
    assert "dns" not in found
    done = await run("doctor", *member(tmp_path))
    assert done.code == 0
    assert "syncs of the disk:" in done.out
    assert not os.listdir(tmp_path), "it left a file"


async def test_a_node_that_only_peer_dial_names_is_told_and_tried(tmp_path: Path) -> None:
    found = await findings(*member(tmp_path, f"peerDial=n4=127.0.0.1:{free_ports(1)[0]}"), code=0)
    text = "peerDial names n4, which peers does not name; an entry is used when its node becomes a member"
    assert text in [f["text"] for f in found["settings"]]
    (tried,) = found["reachability"]
    assert tried["text"].startswith("peer n4: ")


async def test_a_port_of_another_program_is_a_problem(tmp_path: Path) -> None:
    options = member(tmp_path)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        found = await findings(*options, "--set", f"healthListen=127.0.0.1:{other.getsockname()[1]}", code=1)
    (problem,) = [finding for finding in found["ports"] if finding["level"] == "problem"]
    assert problem["text"].startswith("healthListen=")
    assert "Address already in use" in problem["text"]


async def test_peers_that_have_no_name_or_do_not_listen_are_found(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    options = member(tmp_path, peers=f",n2=no-such-host.invalid:9896,n3=127.0.0.1:{port}")
    found = await findings(*options, code=1)
    assert [finding["text"].partition(":")[0] for finding in found["dns"]] == ["no-such-host.invalid"]
    (silent,) = found["reachability"]
    assert (silent["text"], silent["level"]) == (f"peer n3: 127.0.0.1:{port}: Connection refused", "warning")
    assert silent["remedy"].endswith(f"correct the port: nothing listens on {port} there")


async def test_members_whose_names_are_not_given_are_checked(tmp_path: Path) -> None:
    own, port = free_ports(2)
    options = member(
        tmp_path, "peers=", f"join=127.0.0.1:{own},no-such-host.invalid:9896,127.0.0.1:{port}", f"peerListen=127.0.0.1:{own}"
    )
    found = await findings(*options, code=1)
    assert [finding["text"].partition(":")[0] for finding in found["dns"]] == ["no-such-host.invalid"]
    assert [finding["text"] for finding in found["reachability"]] == [f"member: 127.0.0.1:{port}: Connection refused"]


@pytest.mark.parametrize(("days", "level", "code"), [(30, "ok", 0), (5, "warning", 0), (-1, "problem", 1)])
async def test_certificates_are_judged_by_their_expiry(tmp_path: Path, days: int, level: str, code: int) -> None:
    (tmp_path / "tls").mkdir()
    files = Authority(tmp_path / "tls").files("n1", days=days)
    paths = (f"peerTlsKeyPath={files.key}", f"peerTlsCertPath={files.certificate}", f"peerTlsTrustCertPath={files.authority}")
    found = await findings(*member(tmp_path / "data", *paths), code=code)
    assert levels(found["certificates"]) == [level]


async def test_wrong_settings_are_a_finding_and_no_stack_trace(tmp_path: Path) -> None:
    found = await findings("--set", "listenPort=many", code=1)
    assert levels(found["settings"]) == ["problem"]
    assert "listenPort" in found["settings"][0]["text"]
    even = await findings(*member(tmp_path, peers=",n2=127.0.0.1:1"), code=1)
    assert "peers has 2 nodes" in even["settings"][0]["text"]
    assert "give 1, 3 or 5 nodes" in even["settings"][0]["remedy"]
    (tmp_path / "file").write_text("")
    unusable = await findings(*member(tmp_path / "file"), code=1)
    assert levels(unusable["disk"]) == ["problem"]
    assert unusable["disk"][0]["remedy"].startswith("choose another dataDir: ")


WRONG = [
    ("listenPort=many", "give a whole number"),
    ("lstenPort=1", "'namesrv serve --help' names the page that lists them"),
    ("mode=xp", "give one of ap, cp"),
    ("listen=nonsense", "give for example 127.0.0.1:9876"),
    ("adminTokenFile={folder}/missing", "make it readable for this user"),
    ("adminTokenFile={folder}/short", "give 16 to 4096"),
    ("peerSecretFile={folder}/missing", "give a file that this node can read"),
    ("peerSecretFile={folder}/short", "give at least 16"),
    ("join=n2=127.0.0.1:1", "a node that joins needs join only"),
    ("nodeId=n9", "give one of n1"),
    ("nameServerAddresses=nonsense", "give HOST:PORT;HOST:PORT"),
    ("unitNameServerAddresses=nonsense", "give for example u1=10.0.0.1:9876"),
    ("electionTimeoutMs=300 peerHeartbeatMs=200", "raise electionTimeoutMs, or lower peerHeartbeatMs"),
    ("fenceAfterMs=1000 electionTimeoutMs=900", "set fenceAfterMs to 1900 or more"),
    ("accessPolicy=enforce", "name a file, or begin with accessPolicy=observe"),
    ("accessPolicy=enforce accessFile={folder}/short", "correct the file there"),
    ("accessPolicy=observe accessFile={folder}/missing", "give a file that this user can read"),
    ("traceEndpoint=nonsense", "give a URL, such as http://127.0.0.1:4318/v1/traces"),
    ("zoneAwareAddresses=true", "name the zone of this node"),
    ("proxyProtocolFrom=nonsense", "give 10.0.0.0/8,192.0.2.1"),
    ("adminTlsCertPath={folder}/short", "give both or neither"),
]
"""Settings with which a node does not start, and the remedy."""


@pytest.mark.parametrize(("settings", "remedy"), WRONG, ids=[settings for settings, _ in WRONG])
async def test_each_wrong_setting_has_its_own_remedy(
    tmp_path: Path, settings: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "SYNCS_MAX", 1)
    (tmp_path / "short").write_text("short")
    (tmp_path / "short").chmod(0o600)
    found = await findings(*member(tmp_path, *settings.format(folder=tmp_path).split()), code=1)
    (problem,) = found["settings"]
    assert problem["remedy"] == remedy
    assert remedy not in problem["text"]
    name = settings.partition("=")[0]
    assert name in problem["text"] or problem["text"].startswith("access file "), "the setting is named"


async def test_an_address_of_another_machine_is_no_port_in_use(tmp_path: Path) -> None:
    found = await findings(*member(tmp_path), "--set", "healthListen=192.0.2.1:9887", code=1)
    (problem,) = [finding for finding in found["ports"] if finding["level"] == "problem"]
    assert problem["remedy"].startswith("give an address of this machine in healthListen")


async def test_two_settings_with_the_same_port_are_found(tmp_path: Path) -> None:
    """Each port is free, but the node cannot bind both."""
    (port,) = free_ports(1)
    two = ("--set", f"adminListen=0.0.0.0:{port}", "--set", f"healthListen=127.0.0.1:{port}")
    found = await findings(*member(tmp_path), *two, code=1)
    (problem,) = [finding for finding in found["ports"] if finding["level"] == "problem"]
    assert problem["text"] == f"adminListen=0.0.0.0:{port} and healthListen=127.0.0.1:{port} have the same port"
    assert problem["remedy"] == "choose another port with healthListen"


async def test_files_that_do_not_belong_together_are_found(tmp_path: Path) -> None:
    (tmp_path / "tls").mkdir()
    authority = Authority(tmp_path / "tls")
    one, other = authority.files("n1", days=30), authority.files("n2", days=30)
    for key, remedy in ((other.key, "give the key of this certificate"), (tmp_path / "missing", "give PEM files that exist and")):
        for port in ("admin", "remoting"):
            names = ("adminTlsCertPath", "adminTlsKeyPath") if port == "admin" else ("tls.server.certPath", "tls.server.keyPath")
            files = (f"{names[0]}={one.certificate}", f"{names[1]}={key}", "tls.test.mode.enable=false")
            found = await findings(*member(tmp_path / "own", *files), code=1)
            expires, problem = found["certificates"]
            assert (expires["level"], problem["level"]) == ("ok", "problem")
            assert problem["text"].startswith(f"{port}: ")
            assert problem["remedy"].startswith(remedy)


async def test_clocks_versions_and_settings_are_compared_with_the_other_nodes(tmp_path: Path) -> None:
    async with operated(tmp_path / "nodes", maxKvBytes="1000000") as cluster:
        found = await findings(*member(tmp_path / "own", "maxKvBytes=2000000"), "-a", cluster.admin, code=0)
        assert levels(found["clocks"]) == levels(found["versions"]) == ["ok", "ok"], "n1 is this node, under the same name"
        assert all("maxKvBytes is '2000000' here, '1000000' on n" in finding["text"] for finding in found["differences"])
        assert levels(found["differences"]) == ["warning", "warning"]


async def test_another_version_and_clock_few_descriptors_and_a_slow_disk_are_findings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other nodes and this machine are as usual, but the bounds on them are not."""
    monkeypatch.setattr("replicated_namesrv.cli.doctor.__version__", "9.9.9")
    monkeypatch.setattr("replicated_namesrv.cli.doctor.CLOCK_WARNING_S", 0.0)
    monkeypatch.setattr("replicated_namesrv.cli.doctor.SYNC_WARNING_S", 0.0)
    async with operated(tmp_path / "nodes") as cluster:
        # after the start of the nodes, which set the real limit of this process to what they read
        monkeypatch.setattr("resource.getrlimit", lambda which: (1_024, 4_096))
        found = await findings(*member(tmp_path / "own"), "-a", cluster.admin, code=0)
    for check, text in (("versions", "this is 9.9.9"), ("clocks", "the clock of n2 differs by")):
        assert levels(found[check]) == ["warning", "warning"]
        assert text in found[check][0]["text"]
    assert levels(found["descriptors"]) == ["warning"]
    assert found["descriptors"][0]["text"].startswith("at most 4096 file descriptors, but maxConnections=")
    assert "warning" in levels(found["disk"])


async def test_the_folder_of_another_node_or_cluster_is_a_problem(tmp_path: Path) -> None:
    """The node would not start."""
    async with operated(tmp_path, 1) as cluster:
        await cluster.elected()
    settings = {"mode": "cp", "nodeId": "n1", "peers": f"n1=127.0.0.1:{free_port()}", "listen": "127.0.0.1:0"}
    for changed in ({}, {"nodeId": "n2", "peers": f"n2=127.0.0.1:{free_port()}"}, {"clusterId": "other"}):
        flags = [word for key, value in {**settings, **changed}.items() for word in ("--set", f"{key}={value}")]
        done = await run("doctor", "--data-dir", str(tmp_path / "n1"), *flags, "--json")
        found = [
            finding for finding in json.loads(done.out)["findings"] if "belongs to node n1 of cluster namesrv" in finding["text"]
        ]
        assert [finding["level"] for finding in found] == (["problem"] if changed else []), changed


async def test_ports_of_the_running_node_are_its_own(tmp_path: Path) -> None:
    async with operated(tmp_path, 1) as cluster:
        node = cluster.nodes[0]
        own = ("--set", f"listen={node.listen_address}", "--set", f"adminListen=127.0.0.1:{cluster.admin_ports[0]}")
        found = await findings(*member(tmp_path / "own"), *own, code=0)
    assert [finding["text"].partition(" ")[2] for finding in found["ports"][:2]] == ["is in use; node n1 is running"] * 2
    assert "problem" not in levels(found["node"])
    assert found["node"][0]["text"].startswith("n1 is running")


async def test_a_running_node_that_is_fenced_is_a_problem(tmp_path: Path) -> None:
    async with operated(tmp_path, 3) as cluster:
        await cluster.elected()
        for node in cluster.nodes[1:]:
            await node.stop()
        node = cluster.nodes[0]
        await until(lambda: node.service.fenced, "the fence of the last node")
        own = ("--set", f"listen={node.listen_address}", "--set", f"adminListen=127.0.0.1:{cluster.admin_ports[0]}")
        found = await findings(*member(tmp_path / "own"), *own, code=1)
    finding = found["node"][0]
    assert (finding["level"], "n1 is running: It is fenced" in finding["text"]) == ("problem", True)


async def test_ports_of_a_running_node_that_needs_a_token_are_no_problem(tmp_path: Path) -> None:
    """A problem would be reported with the remedy to stop the program that has the port. This program is the node itself."""
    token = tmp_path / "token"
    token.write_text("a-token-that-is-long-enough-for-a-test\n")
    token.chmod(0o600)
    async with operated(tmp_path, 1, adminTokenFile=str(token)) as cluster:
        (port,) = cluster.admin_ports
        own = ("--set", f"listen={cluster.nodes[0].listen_address}", "--set", f"adminListen=127.0.0.1:{port}")
        found = await findings(*member(tmp_path / "own"), *own, code=0)
        assert levels(found["ports"][:2]) == ["warning"] * 2
        assert "perhaps by node n1, which could not be asked: " in found["ports"][0]["text"]
        assert "--token-file" in found["ports"][0]["text"]
        known = await findings(*member(tmp_path / "own"), *own, "--token-file", str(token), code=0)
        assert levels(known["ports"][:2]) == ["ok"] * 2


async def test_a_port_with_tls_names_the_option_that_is_missing(tmp_path: Path) -> None:
    (tmp_path / "tls").mkdir()
    files = Authority(tmp_path / "tls").files("n1", days=30)
    tls = {"adminTlsKeyPath": str(files.key), "adminTlsCertPath": str(files.certificate)}
    async with operated(tmp_path, 1, **tls) as cluster:
        (port,) = cluster.admin_ports
        own = (f"listen={cluster.nodes[0].listen_address}", f"adminListen=127.0.0.1:{port}")
        options = member(tmp_path / "own", *own, *(f"{name}={value}" for name, value in tls.items()))
        found = await findings(*options, code=0)
        assert levels(found["ports"][:2]) == ["warning"] * 2
        assert found["ports"][0]["text"].endswith("this port has TLS; give --ca FILE")


async def test_nodes_that_were_not_compared_are_a_finding(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    peers = ",n2=127.0.0.1:1,n3=127.0.0.1:1"
    found = await findings(*member(tmp_path, peers=peers), code=0)
    assert levels(found["nodes"]) == ["warning"]
    assert "were not compared" in found["nodes"][0]["text"]
    options = member(tmp_path, f"adminListen=127.0.0.1:{port}", peers=peers)
    asked = await findings(*options, "-a", f"127.0.0.1:{port};127.0.0.1:1", code=0)
    assert [finding["text"].split(": ")[0] for finding in asked["nodes"]] == ["127.0.0.1:1"], "this node is not another node"
    assert asked["nodes"][0]["remedy"].startswith("check that the node runs, and that --admin names its admin address")


async def test_admin_ports_are_found_by_the_addresses_of_the_members(tmp_path: Path) -> None:
    async with operated(tmp_path / "other", 1, "ap") as other:
        (peer,), (admin_port,) = free_ports(1), other.admin_ports
        peers = f"peers=own=127.0.0.2:{peer},n1=127.0.0.1:{peer},n3=127.0.0.3:{peer}"
        own = (peers, "nodeId=own", f"peerListen=127.0.0.2:{peer}", f"adminListen=127.0.0.2:{admin_port}")
        found = await findings(*member(tmp_path / "own", *own), code=0)
    assert levels(found["clocks"]) == ["ok"], found


async def test_a_node_that_refuses_names_what_it_needs(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("a-token-that-is-long-enough-for-a-test\n")
    token.chmod(0o600)
    async with operated(tmp_path / "locked", 1, "ap", adminTokenFile=str(token)) as other:
        found = await findings(*member(tmp_path / "own"), "-a", f"{other.admin};{other.namesrv}", code=0)
    locked, no_admin_port = found["nodes"]
    assert locked["remedy"].startswith("give the node's token with --token-file FILE")
    assert "check that --admin names an admin port (adminListen)" in no_admin_port["remedy"]


async def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    found = await findings("-c", str(tmp_path / "missing"), code=1)
    assert found["settings"][0]["text"] == f"{tmp_path}/missing: No such file or directory"


def test_percentile_is_the_bound_within_which_the_share_is() -> None:
    histogram = Histogram((1.0, 2.0, 4.0))
    histogram.observe(0.5, 98)
    histogram.observe(3.0, 2)
    assert (percentile(histogram, 0.98), percentile(histogram, 0.99)) == (1.0, 4.0)
    histogram.observe(9.0, 10)
    assert percentile(histogram, 0.99) == float("inf")


def test_settings_that_may_differ_exist() -> None:
    unknown = OF_ONE_NODE - {row.name for row in ROWS.values()}
    assert not unknown

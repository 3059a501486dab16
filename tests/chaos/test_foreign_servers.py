"""Foreign name servers as modes: the names of the modes, the configuration of a node, and the result of a look by remoting."""

import tomllib
from pathlib import Path

import pytest

from replicated_namesrv import provision
from replicated_namesrv.chaos import foreign_servers
from replicated_namesrv.chaos.checks import judge
from replicated_namesrv.chaos.foreign_servers import JavaServer, RustServer, check_jars, jars_sha256, java_and_jars, rust_program
from replicated_namesrv.chaos.node_looks import registered
from replicated_namesrv.chaos.records import Member
from replicated_namesrv.chaos.run import RunPlan
from replicated_namesrv.chaos.run_modes import ForeignMode, foreign, in_file_name, promises_of
from replicated_namesrv.chaos.scenario import load
from replicated_namesrv.chaos.suite import execute
from replicated_namesrv.client.broker_requests import BrokerVersion
from replicated_namesrv.errors import SettingError
from replicated_namesrv.model import BrokerData, ClusterInfo
from replicated_namesrv.provision import ProvisionError
from replicated_namesrv.verify import Verdict
from tests.chaos.traces import Script
from tests.support.provision import require_rocketmq_jars, require_rocketmq_rust

JAVA = Path("/usr/bin/false")


@pytest.mark.parametrize(
    ("mode", "found"),
    [
        ("ap", None),
        ("cp", None),
        ("java:5.3.3", ForeignMode("java", "5.3.3")),
        ("java:4.0.0-incubating", ForeignMode("java", "4.0.0-incubating")),
        ("rust:1.0.0", ForeignMode("rust", "1.0.0")),
    ],
)
def test_modes(mode: str, found: ForeignMode | None) -> None:
    assert foreign(mode) == found
    assert promises_of(mode) == ("cp" if mode == "cp" else "ap")


@pytest.mark.parametrize("mode", ["", "AP", "java", "java:", "java:5", "java:5.3", "java:5.3.3:1", "java:../5.3.3", "go:1.0.0"])
def test_any_other_mode_is_refused_with_its_name(mode: str) -> None:
    with pytest.raises(SettingError, match=f"--mode {mode}: "):
        foreign(mode)


@pytest.mark.parametrize(("mode", "known"), [("java:4.9.7", False), ("java:5.5.0", True), ("rust:1.0.0", True)])
def test_rocketmq_4_knows_no_acting_master_and_no_zone(mode: str, known: bool) -> None:
    found = foreign(mode)
    assert found is not None
    assert found.has_deputies is known


def test_file_names_have_no_colon() -> None:
    assert in_file_name("java:5.3.3") == "java-5.3.3"
    assert RunPlan(load("no-fault"), "java:5.3.3", 3, 7).name == "7-no-fault-java-5.3.3-3"


def java_server(version: str, tmp_path: Path, *settings: str) -> JavaServer:
    """A server whose only jar is empty."""
    (tmp_path / "one.jar").write_bytes(b"")
    return JavaServer(ForeignMode("java", version), settings, JAVA, tmp_path)


def test_rocketmq_5_gets_the_settings_that_it_has(tmp_path: Path) -> None:
    server = java_server("5.5.0", tmp_path, "scanNotActiveBrokerInterval=500", "fenceAfterMs=2000")
    assert server.settings == ("scanNotActiveBrokerInterval=500",)
    assert server.left_out == ("fenceAfterMs=2000",)
    assert server.brokers is BrokerVersion.V5_3
    launch = server.launch("127.0.0.1:25001", tmp_path / "data", tmp_path / "home")
    properties = (tmp_path / "home" / "namesrv.properties").read_text().splitlines()
    assert "listenPort=25001" in properties
    assert "scanNotActiveBrokerInterval=500" in properties
    assert f"kvConfigPath={tmp_path}/data/kvConfig.json" in properties, "a wipe deletes this folder"
    assert launch.command[-2:] == ["-c", f"{tmp_path}/home/namesrv.properties"]
    assert launch.environment == {"ROCKETMQ_HOME": f"{tmp_path}/home"}


def test_rocketmq_4_has_a_fixed_scan_interval_and_time_out(tmp_path: Path) -> None:
    server = java_server("4.9.7", tmp_path, "scanNotActiveBrokerInterval=500")
    assert server.settings == ("scanNotActiveBrokerInterval=10000",), "in force, whatever the scenario says"
    assert server.left_out == ("scanNotActiveBrokerInterval=500",)
    assert server.brokers is BrokerVersion.V4_9, "these do not send a time-out"
    server.launch("127.0.0.1:25001", tmp_path / "data", tmp_path / "home")
    assert "scanNotActiveBrokerInterval" not in (tmp_path / "home" / "namesrv.properties").read_text()


def test_other_jars_than_the_known_ones_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.jar").write_bytes(b"a")
    known = jars_sha256(tmp_path)
    monkeypatch.setitem(foreign_servers.JARS_SHA256, "5.3.3", known)
    assert check_jars("5.3.3", tmp_path) == known
    (tmp_path / "b.jar").write_bytes(b"b")
    with pytest.raises(ProvisionError, match=r"not the known jars of RocketMQ 5\.3\.3"):
        check_jars("5.3.3", tmp_path)
    assert check_jars("5.3.2", tmp_path) == jars_sha256(tmp_path), "a version without a known digest"


def test_without_java_or_maven_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(provision, "find_java", lambda: JAVA)
    monkeypatch.setattr(provision, "find_maven", lambda: None)
    with pytest.raises(ProvisionError, match="apt-get install maven"):
        java_and_jars("5.3.3", print)
    monkeypatch.setattr(provision, "find_java", lambda: None)
    with pytest.raises(ProvisionError, match="openjdk-17"):
        java_and_jars("5.3.3", print)


def test_rocketmq_rust_gets_the_settings_that_it_has(tmp_path: Path) -> None:
    settings = ("scanNotActiveBrokerInterval=500", "supportActingMaster=true", "serverChannelMaxIdleTimeSeconds=9")
    server = RustServer(settings, JAVA)
    assert server.settings == settings[:2]
    assert server.left_out == settings[2:]
    launch = server.launch("127.0.0.1:25001", tmp_path / "data", tmp_path / "home")
    written = tomllib.loads((tmp_path / "home" / "namesrv.toml").read_text())
    assert written.pop("kvConfigPath") == f"{tmp_path}/data/kvConfig.json", "a wipe deletes this folder"
    assert written["scanNotActiveBrokerInterval"] == 500
    assert written["supportActingMaster"] is True
    assert launch.command[3:7] == ["--listenPort", "25001", "--bindAddress", "127.0.0.1"]


def test_without_rust_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(provision, "find_cargo", lambda: None)
    with pytest.raises(ProvisionError, match=r"no cargo 1\.95 or later .*rustup"):
        rust_program("1.0.0", print)


def test_a_crate_that_cannot_be_built_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cargo = tmp_path / "cargo"
    cargo.write_text("#!/bin/sh\necho 'error: could not find `rocketmq-namesrv` with version `=9.9.9`'\nexit 101\n")
    cargo.chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(provision, "find_cargo", lambda: cargo)
    with pytest.raises(ProvisionError, match=r"exit status 101.*error: could not find .*does this version exist"):
        rust_program("9.9.9", print)
    assert not list((tmp_path / "replicated-namesrv").glob("rocketmq*"))


def test_a_look_by_remoting_gives_each_broker_its_newest_registration() -> None:
    groups = [BrokerData("chaos", name, ((0, "a:1"), (1, "a:2")), None, False) for name in ("g1", "mute")]
    info = ClusterInfo(tuple(groups), (("chaos", ("g1", "mute")),))
    shown = [Member("g1/0", "9"), Member("g1/0", "10"), Member("gone/0", "7")]
    assert registered(info, shown) == [Member("g1/0", "10"), Member("g1/1", "0"), Member("mute/0", "0"), Member("mute/1", "0")]


def test_what_a_foreign_node_does_not_report_is_unknown_with_the_reason() -> None:
    story = Script("java:5.5.0").story
    assert story.mode == "ap"
    (check,) = (one for one in judge(story, "ap").checks if one.name == "live brokers are kept")
    assert check.verdict is Verdict.UNKNOWN
    assert check.findings == ("foreign name servers do not report that they remove a broker",)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mode", ["java:5.3.3", "rust:1.0.0"])
def test_a_run_with_a_foreign_name_server(mode: str, tmp_path: Path) -> None:
    if mode.startswith("rust"):
        require_rocketmq_rust("1.0.0")
    else:
        require_rocketmq_jars("5.3.3")
    done = execute(RunPlan(load("restart-leader"), mode, 3, seed=2, duration_s=3.0), tmp_path, print)
    found = {check.name: check for check in done.judgement.checks}
    broken = [check for check in done.judgement.checks if done.judgement.promised(check) and check.verdict is Verdict.VIOLATED]
    assert not [check for check in broken if check.name not in ("convergence", "availability")], f"see {done.folder}"
    for name in ("each node keeps its KV entries", "each node keeps its live brokers", "nodes keep running"):
        assert found[name].looked_at > 0, f"see {done.folder}"
    assert found["live brokers are kept"].verdict is Verdict.UNKNOWN
    assert done.verdict["mode"] == mode
    assert (done.folder / "timeline.html").stat().st_size > 10_000

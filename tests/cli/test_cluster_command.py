"""``namesrv cluster``: real processes, killed, stopped and orphaned."""

import json
import os
import signal
import socket
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from replicated_namesrv.cli.cluster import default_data_dir, described_log, plan_nodes
from replicated_namesrv.errors import SettingError
from tests.access.files import token_line, write_access_file
from tests.support.authority import Authority
from tests.support.nodes import DEADLINE_S, ask_cluster_info, http, run_command, running_command
from tests.support.ports import free_port
from tests.support.waiting import is_alive


@pytest.fixture
def base_port() -> int:
    """A port such that those of three nodes, their admin sides and peers are free."""
    return free_port(1, 2, 10, 11, 12, 20, 21, 22)


def arguments(base_port: int, data_dir: Path, *more: str) -> tuple[str, ...]:
    """Command line of a small cluster."""
    return ("cluster", "--listen", f"127.0.0.1:{base_port}", "--data-dir", str(data_dir), *more)


def wait_until(condition: Callable[[], bool]) -> None:
    """Check the condition repeatedly, and fail if it does not become true in time."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def wait_dead(pids: list[int]) -> None:
    """Wait until none of the processes runs."""
    wait_until(lambda: not any(map(is_alive, pids)))


@pytest.mark.slow
def test_once_is_a_health_check(base_port: int, tmp_path: Path) -> None:
    done = run_command(*arguments(base_port, tmp_path, "--once"))
    assert done.returncode == 0
    assert f"\nnamesrvAddr=127.0.0.1:{base_port};127.0.0.1:{base_port + 1};127.0.0.1:{base_port + 2}\n" in done.stdout
    admin = ";".join(f"127.0.0.1:{base_port + 10 + i}" for i in range(3))
    assert f" NAMESRV_ADMIN='{admin}'\n" in done.stdout
    for i in range(3):
        assert f"n{i + 1} serves on 127.0.0.1:{base_port + i}" in done.stderr
        assert (tmp_path / f"n{i + 1}" / "node.log").exists()


@pytest.mark.slow
def test_once_fails_if_a_node_does_not_come_up(base_port: int, tmp_path: Path) -> None:
    (tmp_path / "n1").mkdir(parents=True)
    (tmp_path / "n1" / "kvConfig.json").write_text("{")
    done = run_command(*arguments(base_port, tmp_path, "--once", "--mode", "ap", "--nodes", "1"))
    assert done.returncode == 1
    assert "node n1 ended at its start (exit code 255)" in done.stderr
    assert "kvConfig.json" in done.stderr  # the end of the node's log
    done = run_command(*arguments(base_port, tmp_path, "--once", "--mode", "ap", "--nodes", "1", "--json"))
    assert done.returncode == 1
    failed = json.loads(done.stdout)
    assert failed["event"] == "failed"
    assert "node n1 ended at its start" in failed["error"]


def test_a_node_without_a_log_line_has_a_remedy() -> None:
    assert described_log(Path("n1.log"), ["one", "two"]) == "the end of n1.log:\n  one\n  two"
    assert described_log(Path("n1.log"), []).endswith("stop other work, and start the cluster again")


def _succeeds(environment: dict[str, str], *words: str) -> bool:
    """Whether a command succeeds. On a busy machine there may be no leader at this moment."""
    return run_command(*words, environment=environment).returncode == 0


@pytest.mark.slow
async def test_nodes_agree_unless_they_are_told_otherwise(base_port: int, tmp_path: Path) -> None:
    with running_command(*arguments(base_port, tmp_path, "--json"), stderr=tmp_path / "err") as cluster:
        document = json.loads(cluster.wait_line("namesrvAddr"))
        assert (document["mode"], len(document["nodes"])) == ("cp", 3)
        status = (await http(base_port + 11, "/v1/status")).json
        assert (status["mode"], status["replication"]["quorum"]) == ("cp", 2)
        leads = json.loads(cluster.wait_line('"leader"'))
        assert leads["node"] in {"n1", "n2", "n3"}
        one = {"NAMESRV_ADMIN": f"127.0.0.1:{base_port + 12}"}
        wait_until(lambda: run_command("status", environment=one).returncode == 0)
        shown = json.loads(run_command("status", "--json", environment=one).stdout)
        assert {node["nodeId"] for node in shown["nodes"]} == {"n1", "n2", "n3"}, "one was given, and all are asked"
        top = json.loads(run_command("top", "--interval", "1", "--count", "1", "--json", environment=one).stdout)
        assert {node["nodeId"] for node in top["nodes"] if node["rates"]} == {"n1", "n2", "n3"}
        given = [{"NAMESRV_ADMIN": f"127.0.0.1:{base_port + 10 + number}"} for number in range(3)]
        for each in given:  # two of them do not lead
            wait_until(partial(_succeeds, each, "leader"))
        for target in ("n2", "n3"):  # given is n1, which does not lead after the first transfer
            wait_until(partial(_succeeds, given[0], "leader", "transfer", target))
        addresses = ";".join(f"http://127.0.0.1:{base_port + 10 + number}/" for number in range(3))
        wait_until(lambda: run_command("status", "-a", addresses).returncode == 0)
        cluster.process.send_signal(signal.SIGINT)
        assert cluster.process.wait(DEADLINE_S) == 0


async def test_killed_node_is_reported_and_restarted_and_ctrl_c_stops_all(base_port: int, tmp_path: Path) -> None:
    with running_command(
        *arguments(base_port, tmp_path, "--json", "--mode", "ap", "--nodes", "2"), stderr=tmp_path / "err"
    ) as cluster:
        document = json.loads(cluster.wait_line("namesrvAddr"))
        assert document["mode"] == "ap"
        assert document["namesrvAddr"] == f"127.0.0.1:{base_port};127.0.0.1:{base_port + 1}"
        first, second = document["nodes"]
        assert (await http(base_port + 10, "/rocketmq/nsaddr")).text == document["namesrvAddr"] + "\n"
        os.kill(first["pid"], signal.SIGKILL)
        ended = json.loads(cluster.wait_line("node-ended"))
        assert (ended["node"], ended["exit"]) == ("n1", "killed by SIGKILL")
        back = json.loads(cluster.wait_line("node-serves"))
        assert (back["node"], back["restarts"]) == ("n1", 1)
        assert is_alive(second["pid"])
        for port in (base_port, base_port + 1):
            assert await ask_cluster_info(port) == 0
        assert (await http(base_port + 11, "/v1/status")).json["nodeId"] == "n2"
        cluster.process.send_signal(signal.SIGINT)
        assert cluster.process.wait(DEADLINE_S) == 0
        assert not is_alive(back["pid"])
        assert not is_alive(second["pid"])


@pytest.mark.slow
def test_nodes_do_not_outlive_a_killed_parent(base_port: int, tmp_path: Path) -> None:
    with running_command(
        *arguments(base_port, tmp_path, "--json", "--mode", "ap", "--nodes", "2"), stderr=tmp_path / "err"
    ) as cluster:
        pids = [node["pid"] for node in json.loads(cluster.wait_line("namesrvAddr"))["nodes"]]
        assert all(map(is_alive, pids))
        cluster.process.kill()
        cluster.process.wait()
        wait_dead(pids)


@pytest.mark.parametrize(("more", "code"), [((), 0), (("--once",), 2)])
def test_ctrl_c_during_the_start_leaves_nothing(base_port: int, tmp_path: Path, more: tuple[str, ...], code: int) -> None:
    with running_command(*arguments(base_port, tmp_path, *more), stderr=tmp_path / "err") as cluster:
        children = Path(f"/proc/{cluster.process.pid}/task/{cluster.process.pid}/children")
        wait_until(lambda: len(children.read_text().split()) == 3)
        pids = [int(pid) for pid in children.read_text().split()]
        cluster.process.send_signal(signal.SIGINT)
        assert cluster.process.wait(DEADLINE_S) == code
        wait_dead(pids)


def test_ports_in_use_are_all_named_with_the_remedy(base_port: int, tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", base_port + 1)),
        socket.create_server(("127.0.0.1", base_port + 12)),
        socket.create_server(("127.0.0.1", base_port + 20)),
    ):
        done = run_command(*arguments(base_port, tmp_path, "--once"))
        as_json = run_command(*arguments(base_port, tmp_path, "--once", "--json"))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert f"127.0.0.1:{base_port + 1} (RocketMQ address of n2)" in done.stderr
    assert f"127.0.0.1:{base_port + 12} (admin address of n3)" in done.stderr
    assert f"127.0.0.1:{base_port + 20} (peer address of n1)" in done.stderr
    assert "--listen HOST:PORT" in done.stderr
    assert as_json.returncode == 1
    assert json.loads(as_json.stdout) == {"event": "failed", "error": done.stderr.partition("namesrv cluster: ")[2].rstrip("\n")}


@pytest.mark.parametrize(
    ("nodes", "mode", "port", "told"),
    [
        (0, "ap", 9876, "1 to 10"),
        (11, "ap", 9876, "1 to 10"),
        (3, "ap", 0, "port from 1"),
        (3, "ap", 65_530, "port"),
        (4, "cp", 9876, "an even number of nodes tolerates no more failures than 3"),
        (2, "cp", 9876, "tolerates no more failures than 1 "),
        (0, "cp", 9876, "1, 3 or 5"),
        (7, "cp", 9876, "1, 3 or 5"),
    ],
)
def test_impossible_clusters_are_refused(nodes: int, mode: str, port: int, told: str, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=told):
        plan_nodes(nodes, mode, "127.0.0.1", port, tmp_path, ())


def test_ports_are_consecutive_from_their_bases(tmp_path: Path) -> None:
    plans = plan_nodes(3, "ap", "127.0.0.1", 9876, tmp_path, ())
    assert [plan.listen[1] for plan in plans] == [9876, 9877, 9878]
    assert [plan.admin[1] for plan in plans] == [9886, 9887, 9888]


def test_default_data_dir_follows_the_base_directory_specification(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/u")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert default_data_dir("cp", 3, 9876) == Path("/home/u/.local/state/replicated-namesrv/cluster-cp-3")
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert default_data_dir("ap", 3, 9876) == Path("/state/replicated-namesrv/cluster")
    monkeypatch.setenv("XDG_STATE_HOME", "relative/is/invalid")
    assert default_data_dir("cp", 5, 9876) == Path("/home/u/.local/state/replicated-namesrv/cluster-cp-5")


def test_a_cluster_on_other_ports_has_its_own_folder() -> None:
    assert default_data_dir("cp", 3, 9876) != default_data_dir("cp", 3, 19876) != default_data_dir("cp", 3, 29876)


@pytest.mark.slow
def test_a_cluster_that_enforces_roles_over_tls_works_with_our_own_commands(base_port: int, tmp_path: Path) -> None:
    """The command itself with a token, a broker with a certificate, one that signs, one with both, and one with neither."""
    authority = Authority(tmp_path)
    server, broker, other = authority.files("localhost"), authority.files("broker-a"), authority.files("nobody")
    file = write_access_file(
        tmp_path,
        '[identities.broker-a]\nroles = ["broker"]\nbrokers = ["broker-a*"]\ncertificates = ["CN=broker-a"]\n'
        '[identities.broker-b]\nroles = ["broker"]\nbrokers = ["broker-b*"]\naccess_keys = { keyB = ["secret of broker-b"] }\n'
        f'[identities.lab]\nroles = ["read"]\ntokens = ["{token_line("a long token of the lab")}"]\n',
    )
    key, token = tmp_path / "tools.yml", tmp_path / "token"
    key.write_text("accessKey: keyB\nsecretKey: 'secret of broker-b'\n")
    token.write_text("a long token of the lab")
    settings = (
        *("accessPolicy=enforce", f"accessFile={file}", "tls.server.mode=enforcing", "tls.test.mode.enable=false"),
        *(f"tls.server.certPath={server.certificate}", f"tls.server.keyPath={server.key}"),
        *(f"tls.server.trustCertPath={authority.path}", "tls.server.authClient=true", "tls.server.need.client.auth=optional"),
        *(f"adminTlsCertPath={server.certificate}", f"adminTlsKeyPath={server.key}"),
    )
    remoting = ("--tls-ca", str(authority.path))
    with_certificate = (*remoting, "--tls-cert", str(broker.certificate), "--tls-key", str(broker.key))
    with_other = (*remoting, "--tls-cert", str(other.certificate), "--tls-key", str(other.key))
    signing = ("--access-key-file", str(key))
    # The name of the nodes' certificate is localhost, so the command has to use it.
    listen = ("cluster", "--listen", f"localhost:{base_port}", "--data-dir", str(tmp_path / "data"), "--json")
    lines = [part for setting in settings for part in ("--set", setting)]
    admin = ("--ca", str(authority.path), "--token-file", str(token))
    servers = ("-n", ";".join(f"localhost:{base_port + number}" for number in range(3)))

    def broker_of(name: str, *identity: str) -> int:
        found = ("broker", *servers, "--name-prefix", name, "--duration-s", "0.5", "--json", *identity)
        return run_command(*found).returncode

    with running_command(*listen, *lines, *remoting, *admin, stderr=tmp_path / "err") as running:
        running.wait_line('"event": "leader"')
        assert broker_of("broker-a", *with_certificate) == 0
        assert broker_of("broker-b", *remoting, *signing) == 0
        assert broker_of("broker-b", *with_other, *signing) == 0, "no rule names the certificate, so the signature decides"
        assert broker_of("broker-b", *with_certificate, *signing) == 1, "the certificate decides"
        assert broker_of("broker-a", *remoting) == 1
        assert run_command("topics", *servers, *remoting, *signing).returncode == 0
        refused = run_command("topics", *servers, *remoting)
        assert refused.returncode != 0
        assert "no permission" in refused.stderr
        assert run_command("status", "-a", ";".join(f"localhost:{base_port + 10 + n}" for n in range(3)), *admin).returncode == 0


@pytest.mark.parametrize(
    ("text", "problem"),
    [(b"accessKey: a\n", "'secretKey: VALUE'"), (None, "No such file"), (b"\xff", "not UTF-8 text")],
    ids=["half", "missing", "binary"],
)
def test_a_wrong_access_key_file_is_named_with_its_remedy(tmp_path: Path, text: bytes | None, problem: str) -> None:
    file = tmp_path / "tools.yml"
    if text is not None:
        file.write_bytes(text)
    done = run_command("topics", "-n", "127.0.0.1:1", "--access-key-file", str(file))
    assert done.returncode == 2
    assert problem in done.stderr
    assert "conf/tools.yml" in done.stderr

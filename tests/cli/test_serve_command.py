"""``namesrv serve`` and ``mqnamesrv`` as start scripts use them: real processes, exit codes, lines, signals."""

import asyncio
import json
import os
import re
import resource
import signal
import socket
import time
from pathlib import Path

import pytest

from replicated_namesrv.client.remoting import RemotingClient, RemotingCommand
from replicated_namesrv.wire.codes import RequestCode
from tests.support.nodes import DEADLINE_S, ask_cluster_info, clean_environment, command, http, run_command, running_command
from tests.support.ports import free_port
from tests.support.waiting import wait_until

DATA = Path(__file__).parent.parent / "data" / "cli"
BOOT = "The Name Server boot success. serializeType=JSON, address "
BOTH = pytest.mark.parametrize("name", ["serve", "mqnamesrv"])


@BOTH
def test_print_config_items_are_those_of_the_java_server(name: str, tmp_path: Path) -> None:
    """``NamesrvStartup`` of 5.3.3 with -p, recorded with home /home/u."""
    environment = {"HOME": "/home/u", "ROCKETMQ_HOME": "/ROCKETMQ_HOME"}
    done = run_command(name, "-p", environment=environment)
    lines = done.stdout.splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d INFO main - ", line) for line in lines)
    shown = [re.sub(r"^\S+ \S+ INFO", "DATE INFO", line) for line in lines]
    assert shown == (DATA / "print_config_items_5.3.3.txt").read_text().splitlines()
    assert (done.returncode, done.stderr) == (0, "")


@BOTH
def test_print_config_items_shows_what_would_be_in_force(name: str, tmp_path: Path) -> None:
    file = tmp_path / "namesrv.properties"
    file.write_text("listenPort=7001\nclusterTest=false\nscanNotActiveBrokerInterval = 1234 \n")
    done = run_command(name, "-c", str(file), "-p", "-n", "a:1;b:2")
    assert done.stdout.splitlines()[0] == f"load config properties file OK, {file}"
    assert " INFO main - listenPort=7001\n" in done.stdout
    assert " INFO main - scanNotActiveBrokerInterval=1234\n" in done.stdout
    assert f" INFO main - configStorePath={file}\n" in done.stdout


@BOTH
def test_bad_option(name: str) -> None:
    done = run_command(name, "--bad")
    assert done.returncode == 1
    assert done.stderr == "Unrecognized option: --bad\n"
    assert done.stdout.startswith("usage: ")


@BOTH
def test_option_without_its_argument(name: str) -> None:
    done = run_command(name, "-c")
    assert (done.returncode, done.stderr) == (1, "Missing argument for option: c\n")


@BOTH
def test_help(name: str) -> None:
    done = run_command(name, "-h")
    assert (done.returncode, done.stderr) == (0, "")
    for option in ("-c", "--configFile", "-p", "--printConfigItem", "-n", "--namesrvAddr", "--mode", "--set", "--data-dir"):
        assert option in done.stdout


@pytest.mark.parametrize("path", ["/nonexistent", "/"])
def test_unreadable_file(path: str) -> None:
    done = run_command("mqnamesrv", "-c", path)
    assert done.returncode == 255
    assert done.stderr.startswith(f"cannot read the properties file {path}: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--set", "noSuchSetting=1"], ["noSuchSetting=1", "unknown setting"]),
        (["--set", "routeCacheByte=1"], ["did you mean routeCacheBytes?"]),
        (["--set", "routeCacheBytes"], ["KEY=VALUE"]),
        (["--set", "routeCacheBytes=many"], ["routeCacheBytes=many", "whole number"]),
        (["--listen", "9876"], ["listen=9876", "HOST:PORT"]),
        (["--mode", "xp"], ["mode=xp", "ap, cp"]),
        (["--set", "listenPort=1", "--listen", "127.0.0.1:2"], ["listen=127.0.0.1:2", "listenPort=1", "leave one out"]),
        (["--listen", "127.0.0.1:20899", "--admin", "127.0.0.1:20899"], ["adminListen", "listen=", "different ports"]),
        (["--set", "logLevel=loud"], ["logLevel=loud", "debug, info, warning, error"]),
        (["--set", "adminTokenFile=/nonexistent"], ["adminTokenFile=/nonexistent"]),
    ],
)
def test_bad_settings_stop_the_start_with_one_line(arguments: list[str], told: list[str]) -> None:
    done = run_command("serve", *arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    for part in told:
        assert part in done.stderr


def test_replicated_mode_says_what_it_needs() -> None:
    done = run_command("serve", "--mode", "cp")
    assert (done.returncode, done.stdout) == (1, "")
    assert "mode=cp" in done.stderr
    assert "peers=n1=" in done.stderr


@BOTH
def test_life_of_a_server(name: str, tmp_path: Path) -> None:
    file = tmp_path / "namesrv.properties"
    file.write_text(f"listenPort=0\nbindAddress=127.0.0.1\nkvConfigPath={tmp_path}/kv.json\nbrokerSomething=5\n")
    errors = tmp_path / "stderr"
    with running_command(name, "-c", str(file), "--admin", "off", stderr=errors) as server:
        assert server.wait_line("load config") == f"load config properties file OK, {file}"
        line = server.wait_line("boot success")
        assert line.startswith(f"{BOOT}127.0.0.1:")
        assert asyncio.run(ask_cluster_info(int(line.rpartition(":")[2]))) == 0
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(DEADLINE_S) == 0
    log = errors.read_text()
    assert "brokerSomething=5" in log  # a warning about an unknown key of the file
    assert "Traceback" not in log


def test_settings_come_from_flag_then_environment_then_file(tmp_path: Path) -> None:
    file = tmp_path / "namesrv.properties"
    file.write_text("nodeId=fromFile\nwaitSecondsForService=1\nshutdownWaitTimeSeconds=11\nlogLevel=error\n")
    environment = {"NAMESRV_WAIT_SECONDS_FOR_SERVICE": "2", "NAMESRV_NODE_ID": "fromEnvironment", "NAMESRV_ADDR": "x:1"}
    arguments = ("-c", str(file), "--node-id", "fromFlag", "-p")
    printed = run_command("serve", *arguments, environment=environment).stdout
    assert " waitSecondsForService=2\n" in printed
    assert " shutdownWaitTimeSeconds=11\n" in printed
    done = run_command("serve", "-p", environment={"NAMESRV_WAIT_SECONDS_FOR_SERVCE": "2"})
    assert done.returncode == 1
    assert "did you mean NAMESRV_WAIT_SECONDS_FOR_SERVICE?" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_stop_it_in_order(number: signal.Signals, tmp_path: Path) -> None:
    arguments = ("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--data-dir", str(tmp_path))
    with running_command("serve", *arguments, stderr=tmp_path / "stderr") as server:
        port = int(server.wait_line(BOOT).rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as idle:
            server.process.send_signal(number)
            assert idle.recv(1) == b""
        assert server.process.wait(DEADLINE_S) == 0
    assert '"message": "stopped"' in (tmp_path / "stderr").read_text()


@pytest.mark.slow
def test_port_in_use_names_it_and_the_remedy(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        arguments = ("--listen", f"127.0.0.1:{port}", "--admin", "off", "--data-dir", str(tmp_path))
        done = run_command("serve", *arguments)
        assert done.returncode == 255
        told = done.stderr.splitlines()[-1]
        assert str(port) in told
        assert "in use" in told
        assert "--listen" in told or "listenPort" in told
        assert "Traceback" not in done.stderr
        done = run_command("serve", "--listen", "127.0.0.1:0", "--admin", f"127.0.0.1:{port}", "--data-dir", str(tmp_path))
        assert (done.returncode, done.stdout) == (255, "")
        assert "--admin" in done.stderr.splitlines()[-1]
        places = ("--listen", "127.0.0.1:0", "--admin", "off", "--data-dir", str(tmp_path))
        done = run_command("serve", "--mode", "cp", *places, "--node-id", "n1", "--set", f"peers=n1=127.0.0.1:{port}")
        assert (done.returncode, done.stdout) == (255, "")
        told = done.stderr.splitlines()[-1]
        assert f"cannot listen for peers at 127.0.0.1:{port}: Address already in use; correct peerListen" in told


@pytest.mark.slow
def test_the_folder_of_a_running_node_stops_the_start(tmp_path: Path) -> None:
    """Each of two independent nodes wrote its own kvConfig.json, so that keys of the other one were lost. In the default folder
    this is a warning."""
    places, folder = ("--listen", "127.0.0.1:0", "--admin", "off"), tmp_path / "data" / "n1"
    with running_command("serve", *places, "--data-dir", str(folder), stderr=tmp_path / "first") as server:
        server.wait_line(BOOT)
        for mode in (("--mode", "ap"), ("--mode", "cp", "--set", "peers=n1=127.0.0.1:1")):
            done = run_command("serve", *mode, *places, "--data-dir", str(folder))
            assert (done.returncode, done.stdout) == (255, "")
            assert f"{folder} is used by another process; give each node a folder of its own (dataDir)" in done.stderr
    folder, peers = tmp_path / "cp", f"peers=n1=127.0.0.1:{free_port()}"
    replicated = ("serve", "--mode", "cp", *places, "--set", peers, "--data-dir", str(folder))
    with running_command(*replicated, stderr=tmp_path / "first") as server:  # it creates the folder itself
        server.wait_line(BOOT)
        done = run_command("serve", "--mode", "ap", *places, "--data-dir", str(folder))
        assert (done.returncode, f"{folder} is used by another process" in done.stderr) == (255, True)
    home, errors = {"HOME": str(tmp_path)}, tmp_path / "second"
    (tmp_path / "namesrv").mkdir()
    with (
        running_command("serve", *places, environment=home, stderr=tmp_path / "first") as first,
        running_command("serve", *places, environment=home, stderr=errors) as second,
    ):
        first.wait_line(BOOT)
        second.wait_line(BOOT)
        warned = [file.read_text() for file in (tmp_path / "first", errors)]
        assert sum("is used by another process" in text for text in warned) == 1


def test_an_independent_node_joins_no_cluster(tmp_path: Path) -> None:
    """``mode=ap`` is the default, and such a node would serve incomplete routes."""
    done = run_command(
        "serve", "--join", "n1=127.0.0.1:1", "--listen", "127.0.0.1:0", "--admin", "off", "--data-dir", str(tmp_path)
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "--join n1=127.0.0.1:1 with mode=ap: an independent node joins no cluster; give --mode cp" in done.stderr


def test_damaged_kv_file_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "kvConfig.json").write_text('{"configTable": [1')
    done = run_command("serve", "--listen", "127.0.0.1:0", "--admin", "off", "--data-dir", str(tmp_path))
    assert (done.returncode, done.stdout) == (255, "")
    assert "kvConfig.json" in done.stderr.splitlines()[-1]


@pytest.mark.slow
def test_full_disk_refuses_the_change_and_nothing_else(tmp_path: Path) -> None:
    """A limit on the size of files simulates a full disk, because an ordinary user can set and remove it."""

    async def ask(port: int, code: int, fields: dict[str, str]) -> RemotingCommand:
        client = RemotingClient()
        try:
            return await client.request(f"127.0.0.1:{port}", RemotingCommand(code, fields))
        finally:
            await client.close()

    def put(value: str) -> RemotingCommand:
        return asyncio.run(ask(port, RequestCode.PUT_KV_CONFIG, {"namespace": "N", "key": "k", "value": value}))

    arguments = ("--listen", "127.0.0.1:0", "--admin", "off", "--data-dir", str(tmp_path / "data"))
    with running_command("serve", *arguments, stderr=tmp_path / "stderr") as server:
        port = int(server.wait_line(BOOT).rpartition(":")[2])
        assert put("first").code == 0
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (65_536, hard))
        refused = put("x" * 100_000)
        assert (refused.code, "the old content is unchanged" in str(refused.remark)) == (1, True)
        wait_until(lambda: "could not be written to disk" in (tmp_path / "stderr").read_text(), "the line in the log", DEADLINE_S)
        kept = asyncio.run(ask(port, RequestCode.GET_KV_CONFIG, {"namespace": "N", "key": "k"}))
        assert (kept.ext_fields or {})["value"] == "first"
        assert asyncio.run(ask_cluster_info(port)) == 0
        assert json.loads((tmp_path / "data" / "kvConfig.json").read_text()) == {"configTable": {"N": {"k": "first"}}}
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (hard, hard))
        assert put("x" * 100_000).code == 0


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["dataDir", "kvConfigPath"])
def test_folder_that_was_asked_for_and_cannot_be_written_stops_the_start(setting: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    given = f"{setting}={tmp_path}/file/below"
    done = run_command("serve", "--listen", "127.0.0.1:0", "--admin", "off", "--set", given)
    assert (done.returncode, done.stdout) == (255, "")
    assert done.stderr.startswith(f"the name server did not start: {given} (flag): {tmp_path}/file is not a folder")


@pytest.mark.parametrize("place", ["", "raft"])
def test_a_cluster_node_names_the_folder_that_it_cannot_use(tmp_path: Path, place: str) -> None:
    """An earlier version gave the error of the system without a remedy."""
    given = tmp_path / "given"
    (given / place).parent.mkdir(exist_ok=True)
    (given / place).write_text("")
    peers = ("--set", "peers=n1=127.0.0.1:1", "--node-id", "n1")
    done = run_command("serve", "--mode", "cp", *peers, "--listen", "127.0.0.1:0", "--admin", "off", "--data-dir", str(given))
    assert done.returncode == 255
    assert f"did not start: dataDir={given} (flag): {given / place} is not a folder; make it writable or" in done.stderr


@pytest.mark.slow
def test_default_folder_that_cannot_be_written_is_warned_about(tmp_path: Path) -> None:
    """RocketMQ's server starts without a disk too, and routes need none."""
    (tmp_path / "home").touch()
    environment, errors = {"HOME": str(tmp_path / "home")}, tmp_path / "stderr"
    with running_command("serve", "--listen", "127.0.0.1:0", "--admin", "off", environment=environment, stderr=errors) as server:
        server.wait_line("boot success")
        wait_until(lambda: "--data-dir" in errors.read_text(), "the warning", DEADLINE_S)


async def test_logs_are_human_on_a_terminal(tmp_path: Path) -> None:
    main_end, terminal = os.openpty()
    process = await asyncio.create_subprocess_exec(
        *command("serve", "--listen", "127.0.0.1:0", "--data-dir", str(tmp_path)),
        env=clean_environment(),
        stdout=asyncio.subprocess.PIPE,
        stderr=terminal,
    )
    os.close(terminal)
    assert process.stdout is not None
    assert BOOT in (await asyncio.wait_for(process.stdout.readline(), DEADLINE_S)).decode()
    process.terminate()
    assert await asyncio.wait_for(process.wait(), DEADLINE_S) == 0
    text = ""
    while "stopped" not in text:
        text += os.read(main_end, 4096).decode()
    os.close(main_end)
    assert re.search(r"^\d\d:\d\d:\d\d\.\d{3} INFO    process: serving  address=127\.0\.0\.1:\d+  mode=ap", text, re.MULTILINE)


async def test_admin_address_is_in_the_log(tmp_path: Path) -> None:
    arguments = ("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--data-dir", str(tmp_path), "--node-id", "one")
    with running_command("serve", *arguments, stderr=tmp_path / "stderr") as server:
        server.wait_line(BOOT)
        found = re.search(r'admin HTTP listens", "address": "127\.0\.0\.1:(\d+)"', (tmp_path / "stderr").read_text())
        assert found is not None
        assert (await http(int(found.group(1)), "/v1/status")).json["nodeId"] == "one"


@pytest.mark.slow
def test_second_signal_ends_a_stop_that_waits(tmp_path: Path) -> None:
    """A graceful stop waits for connections to go, here for one that stays."""
    arguments = (
        "--listen",
        "127.0.0.1:0",
        "--admin",
        "off",
        "--data-dir",
        str(tmp_path),
        "--set",
        "enableShutdownGracefully=true",
    )
    with running_command("serve", *arguments, stderr=tmp_path / "stderr") as server:
        port = int(server.wait_line(BOOT).rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), DEADLINE_S):
            assert asyncio.run(ask_cluster_info(port)) == 0  # the server has accepted all earlier connections
            server.process.send_signal(signal.SIGTERM)
            deadline = time.monotonic() + DEADLINE_S
            while "stopping" not in (tmp_path / "stderr").read_text():
                assert time.monotonic() < deadline
                time.sleep(0.01)
            assert server.process.poll() is None
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(DEADLINE_S) == -signal.SIGTERM


@pytest.mark.slow
def test_start_goes_on_if_nobody_reads_its_lines(tmp_path: Path) -> None:
    arguments = ("--listen", "127.0.0.1:0", "--admin", "off", "--data-dir", str(tmp_path))
    with running_command("serve", *arguments, stderr=tmp_path / "stderr") as server:
        assert server.process.stdout is not None
        server.process.stdout.close()
        deadline = time.monotonic() + DEADLINE_S
        while not (found := re.search(r'"serving", "address": "127\.0\.0\.1:(\d+)"', (tmp_path / "stderr").read_text())):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert asyncio.run(ask_cluster_info(int(found.group(1)))) == 0

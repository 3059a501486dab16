"""Code 318 and POST /v1/config: no accepted change adds lines to a file, prevents a start or ends the service."""

import json
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from replicated_namesrv.client.queries import route_request
from replicated_namesrv.settings import RUN_TIME_FILE
from tests.security.attacked import MODES, AttackedNode, attacked, started
from tests.support.nodes import run_command
from tests.support.waiting import wait_until

SYSTEM_ERROR, NO_PERMISSION, TOPIC_NOT_EXIST = 1, 16, 17
INJECTED = r"my.own=u=1.1.1.1:1\nadminTokenFile=/proc/version\ntls.server.mode=disabled"


@pytest.fixture(scope="module", params=MODES)
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedNode]:
    """One node for all attacks that must have no effect."""
    with attacked(tmp_path_factory.mktemp(request.param), request.param, "my.own=1", "waitSecondsForService=3600") as running:
        yield running


def run_time_file(node: AttackedNode) -> Path:
    return node.folder / "data" / RUN_TIME_FILE


def test_line_injection_is_refused(node: AttackedNode) -> None:
    given = node.file.read_bytes()
    for attack in (INJECTED, r"my.own=1\nmode\=ap", r"my.own=\u000aadminListen\=off", r"my.own=1\r", r"a\nb=1"):
        assert node.change(attack).code == SYSTEM_ERROR, attack
    assert node.change("adminListen=0.0.0.0:1\nenableTopicList=false").code == NO_PERMISSION
    assert node.file.read_bytes() == given
    assert not run_time_file(node).exists()
    assert node.config()["enableTopicList"] == "true"


def test_http_names_the_setting_with_a_control_character(node: AttackedNode) -> None:
    """In an earlier version, the answer had status 500."""
    for name, value in (
        ("waitSecondsForService", "7\n"),
        ("kvConfigPath", "a\0b"),
        ("unitNameServerAddresses", "u=h:1\r\nmode=cp"),
    ):
        answer = node.http("/v1/config", "POST", json.dumps({name: value}).encode())
        told = f"{name}={value!r}: it has a control character; give a value without one"
        assert (answer.status, answer.json) == (400, {"error": told, "remedy": "correct the request", "outcome": "not done"})
    long = node.http("/v1/config", "POST", json.dumps({"x" * 100_000: "\n"}).encode())
    assert (long.status, len(long.body) < 300) == (400, True)
    assert not run_time_file(node).exists()


def test_addresses_to_which_clients_and_tokens_go_are_refused(node: AttackedNode) -> None:
    """Commands and the console ask the nodes in the list, with the token of an administrator."""
    for change in ("nameServerAddresses=10.6.6.6:9876", "unitNameServerAddresses=u=10.6.6.6:9876"):
        assert node.change(f"{change}\nenableTopicList=false").code == NO_PERMISSION
        name, _, value = change.partition("=")
        assert node.http("/v1/config", "POST", f'{{"{name}": "{value}"}}'.encode()).status == 403
    assert b"10.6.6.6" not in node.http("/rocketmq/nsaddr").body
    assert not run_time_file(node).exists()


def test_start_only_settings_are_refused(node: AttackedNode) -> None:
    """With such a scanNotActiveBrokerInterval, an earlier version treated every scan as a pause of the process. Then no broker
    expired."""
    for change in ("listenPort=1", "bindAddress=192.0.2.1", "maxConnections=1", "scanNotActiveBrokerInterval=500"):
        answer = node.change(f"{change}\nenableTopicList=false")
        assert (answer.code, "read at the start only" in (answer.remark or "")) == (NO_PERMISSION, True), change
    assert node.config()["enableTopicList"] == "true"
    refused = node.http("/v1/config", "POST", b'{"maxConnections": 1}')
    assert (refused.status, refused.json["outcome"]) == (403, "not done")
    assert not run_time_file(node).exists()


def test_what_318_does_not_take_is_logged(node: AttackedNode) -> None:
    """Values that are out of range or malformed must not end the service. The caller gets the same answer as from Java."""
    attacks = (
        *("clientRequestThreadPoolQueueCapacity=-1", "clientRequestThreadPoolQueueCapacity=1", "noSuchKey=1"),
        *("defaultThreadPoolQueueCapacity=0", "unRegisterBrokerQueueCapacity=-5", "waitSecondsForService=99999"),
        *("waitSecondsForService=abc", "orderMessageEnable=maybe", "shutdownWaitTimeSeconds=99999999999999999999"),
        "scanNotActiveBrokerInterval=notanumber",
    )
    before = node.config()
    for attack in attacks:
        assert node.change(attack).code == 0, attack
    assert node.config() == before
    wait_until(lambda: all(attack in node.log for attack in attacks), "a line for each")
    assert node.http("/rocketmq/nsaddr").status == 200
    assert not run_time_file(node).exists()


def test_a_change_does_not_end_route_queries_that_are_served(node: AttackedNode) -> None:
    assert node.ask(route_request("T")).code == TOPIC_NOT_EXIST
    assert node.change("needWaitForService=true\nclientRequestThreadPoolQueueCapacity=-1").code == 0
    assert node.ask(route_request("T")).code == TOPIC_NOT_EXIST


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_only_changes_are_written(tmp_path: Path, mode: str) -> None:
    """A file with listenPort and a secret stays unchanged, including its permissions. The node starts again with the change."""
    lines = ("tls.test.mode.enable=true", "tls.server.keyPassword=hidden", "my.own=1")
    with attacked(tmp_path, mode, *lines) as node:
        node.file.chmod(0o600)
        given = node.file.read_bytes()
        assert node.change("waitSecondsForService=45\n").code == 0  # unchanged: no write needed
        assert not (tmp_path / "data" / RUN_TIME_FILE).exists()
        assert node.change("waitSecondsForService=7\nmy.own=a \\\\ b\n").code == 0
        (tmp_path / "data" / RUN_TIME_FILE).chmod(0o640)
        assert node.change("shutdownWaitTimeSeconds=8\n").code == 0
        assert node.file.read_bytes() == given
        node.stop()
    assert sorted(path.name for path in tmp_path.glob("given*")) == ["given.properties"]
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "data").glob(f"{RUN_TIME_FILE}*")}
    assert modes == {RUN_TIME_FILE: 0o640, f"{RUN_TIME_FILE}.bak": 0o640}
    # an older version may have accepted more, which must not prevent a start
    with (tmp_path / "data" / RUN_TIME_FILE).open("a") as file:
        file.write("mode=none\nneedWaitForService=maybe\nadminListen=off\n")
    written = (tmp_path / "data" / RUN_TIME_FILE).read_text().splitlines()
    assert written == ["my.own=a \\\\ b", "waitSecondsForService=7", "shutdownWaitTimeSeconds=8", *written[3:]]
    with started(tmp_path, node.file, node.port) as again:
        config = again.config()
        assert (config["waitSecondsForService"], config["shutdownWaitTimeSeconds"]) == ("7", "8")
        assert (config["my.own"], config["listenPort"]) == ("a \\ b", str(node.port))
        assert (again.http("/readyz").status, again.log.count(": ignored; ")) == (200, 3)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_a_lone_surrogate_does_not_hide_the_settings(tmp_path: Path, mode: str) -> None:
    """A surrogate without its pair cannot be written as UTF-8. In an earlier version, code 319 and /v1/config failed after this
    change, also after a restart."""
    with attacked(tmp_path, mode, "my.own=1") as node:
        assert node.change(r"my.own=a\ud800b").code == 0
        assert node.config()["my.own"] == "a?b"
        assert node.http("/v1/config").json["my.own"] == "a?b"
        node.stop()
    with started(tmp_path, node.file, node.port) as again:
        assert again.config()["my.own"] == "a?b"


@pytest.mark.slow
def test_the_command_line_and_http_refuse_what_318_passes_over(tmp_path: Path) -> None:
    with attacked(tmp_path, "ap") as node:
        for change, told in (
            ("noSuchKey=1", "unknown setting 'noSuchKey'"),
            ("waitSecondsForService=abc", "give a whole number"),
            ("waitSecondsForService=46", "give 0 to 45"),
            ("orderMessageEnable=maybe", "give true or false"),
        ):
            done = run_command("config", "set", change, "-n", f"127.0.0.1:{node.port}")
            assert (done.returncode, told in done.stderr) == (2, True), done
            name, _, value = change.partition("=")
            answer = node.http("/v1/config", "POST", f'{{"{name}": "{value}"}}'.encode())
            assert (answer.status, told in answer.json["error"]) == (400, True), answer.text
        injected = run_command("config", "set", r"unitNameServerAddresses=u=1.1.1.1:1\nmode=cp", "-n", f"127.0.0.1:{node.port}")
        assert injected.returncode != 0
        assert not (tmp_path / "data" / RUN_TIME_FILE).exists()

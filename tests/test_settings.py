"""Settings: precedence, errors that stop a start, and warnings."""

from pathlib import Path

import pytest

from replicated_namesrv.client.remoting import parse_address as address_of_client
from replicated_namesrv.errors import SettingError
from replicated_namesrv.settings import ROWS, RUN_TIME_FILE, Settings, camel_case, parse_address
from replicated_namesrv.settings_sources import load_settings


def write(path: Path, **lines: str) -> str:
    path.write_text("".join(f"{key.replace('_', '.')}={value}\n" for key, value in lines.items()))
    return str(path)


def test_flag_over_environment_over_file_over_default(tmp_path: Path) -> None:
    file = write(tmp_path / "f", listenPort="1", nodeId="file", logLevel="error")
    settings = load_settings(file, {"nodeId": "flag"}, {"NAMESRV_NODE_ID": "environment", "NAMESRV_LOG_LEVEL": "debug"})
    assert (settings.node_id, settings.log_level, settings.listen_port, settings.mode) == ("flag", "debug", 1, "ap")
    assert settings.origins["node_id"] == "flag"


def test_the_tls_file_goes_over_the_main_file_but_not_over_flags(tmp_path: Path) -> None:
    (tmp_path / "main").write_text(
        "tls.server.keyPath=a\ntls.server.certPath=a\ntls.test.mode.enable=true\ntls.server.mode=enforcing\n"
    )
    (tmp_path / "tls").write_text(
        "tls.server.keyPath=b\ntls.server.certPath=b\ntls.server.mode=disabled\ntls.client.keyPath=x\nlistenPort=5\n"
    )
    flags = {"tls.config.file": str(tmp_path / "tls"), "tls.server.certPath": "c"}
    settings = load_settings(str(tmp_path / "main"), flags, {})
    assert (settings.tls_server_key_path, settings.tls_server_cert_path) == ("b", "c")
    assert settings.tls_server_mode == "enforcing"
    assert settings.listen_port == 9876


def test_what_kubernetes_and_clients_set_is_not_ours() -> None:
    foreign = {"NAMESRV_ADDR": "a:1", "NAMESRV_PORT": "tcp://10.0.0.1:9876", "NAMESRV_SERVICE_HOST": "10.0.0.1"}
    assert load_settings(None, {}, foreign) == load_settings(None, {}, {})


@pytest.mark.parametrize(
    ("flags", "environment", "told"),
    [
        ({"listenPort": "many"}, {}, ["listenPort=many", "flag", "a whole number"]),
        ({"listenPort": "9_876"}, {}, ["listenPort=9_876", "a whole number"]),
        ({"supportActingMaster": "yes"}, {}, ["supportActingMaster=yes", "flag", "true or false"]),
        ({}, {"NAMESRV_CLUSTER_TEST": "1"}, ["clusterTest=1", "NAMESRV_CLUSTER_TEST", "true or false"]),
        ({"listenPrt": "1"}, {}, ["listenPrt=1", "did you mean listenPort?"]),
        ({}, {"NAMESRV_LISTEN_PRT": "1"}, ["NAMESRV_LISTEN_PRT=1", "did you mean NAMESRV_LISTEN_PORT?"]),
        ({"mode": "ca"}, {}, ["mode=ca (flag)", "ap, cp"]),
        (
            {"listenPort": "9886", "adminListen": "127.0.0.1:9886"},
            {},
            ["adminListen=127.0.0.1:9886", "listenPort=9886", "different"],
        ),
        ({"listen": "127.0.0.1:1", "listenPort": "2"}, {}, ["listen=127.0.0.1:1 (flag)", "listenPort=2 (flag)", "leave one out"]),
        ({"maxConnections": "0"}, {}, ["maxConnections=0", "1 or more"]),
        ({"maxStateBytes": "68719476737"}, {}, ["maxStateBytes=68719476737", "65536 to 68719476736"]),
        ({"watchHistoryBytes": "-1"}, {}, ["watchHistoryBytes=-1", "0 or more"]),
        ({"listenPort": "65536"}, {}, ["listenPort=65536", "0 to 65535"]),
        ({"tls.server.authClient": "true"}, {}, ["tls.server.authClient=true", "tls.server.trustCertPath= (default)"]),
        ({"clusterTest": "true"}, {}, ["clusterTest=true", "addressServer= (default)"]),
        ({"zoneAwareAddresses": "true"}, {}, ["zoneAwareAddresses=true", "zone= (default)", "name the zone of this node"]),
        ({"zone": "east 1"}, {}, ["zone=east 1", "give at most 100 letters"]),
        ({"dataDir": "a\0b"}, {}, ["dataDir=a", "(flag): give a text without control characters"]),
        ({}, {"NAMESRV_NODE_ID": "a\nb"}, ["nodeId=a", "(NAMESRV_NODE_ID): give a text without control characters"]),
    ],
)
def test_a_start_is_stopped_with_key_value_and_remedy(
    flags: dict[str, str], environment: dict[str, str], told: list[str]
) -> None:
    with pytest.raises(SettingError) as stopped:
        load_settings(None, flags, environment)
    assert all(part in str(stopped.value) for part in told), str(stopped.value)


def test_files_written_for_the_java_server_are_taken(tmp_path: Path) -> None:
    file = write(
        tmp_path / "f", listenPort="ten", serverWorkerThreads="16", enableElectUncleanMaster="true", orderMessageEnable="TRUE"
    )
    settings = load_settings(file, {}, {})
    assert (settings.listen_port, settings.server_worker_threads, settings.order_message_enable) == (9876, 16, True)
    assert settings.extra == {"enableElectUncleanMaster": "true"}
    assert len(settings.warnings) == 2
    assert settings.config_store_path == file


def test_a_misspelt_setting_of_ours_in_the_file_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"adminListn=.*did you mean adminListen"):
        load_settings(write(tmp_path / "f", adminListn="x:1"), {}, {})


def test_numbers_have_the_range_of_their_type_in_java(tmp_path: Path) -> None:
    """In an earlier version, a larger backlog or buffer ended the start with a traceback."""
    given = {
        "serverSocketBacklog": "2147483648",
        "scanNotActiveBrokerInterval": "2147483648",
        "serverSocketRcvBufSize": "-2147483649",
    }
    settings = load_settings(write(tmp_path / "f", **given), {}, {})
    assert (settings.server_socket_backlog, settings.scan_not_active_broker_interval) == (1024, 2147483648)
    assert settings.server_socket_rcv_buf_size == 0
    assert [warning.partition(" (")[0] for warning in settings.warnings] == [
        "serverSocketBacklog=2147483648",
        "serverSocketRcvBufSize=-2147483649",
    ]
    for given in ({"serverSocketBacklog": "2147483648"}, {"maxHeldBytes": "9223372036854775808"}):
        with pytest.raises(SettingError, match=r"\(flag\): give a whole number of at most [0-9]+$"):
            load_settings(None, given, {})


def test_a_tls_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """An earlier version said "cannot read the properties file None"."""
    file = tmp_path / "tls"
    file.write_text("tls.server.keyPath=\\uZZ\n")
    for path, why in ((file, "malformed"), (tmp_path, "Is a directory")):
        with pytest.raises(SettingError, match=rf"^tls.config.file={path}: {why}.*; make it readable, correct it"):
            load_settings(None, {"tls.config.file": str(path)}, {})
    assert load_settings(None, {"tls.config.file": ""}, {}).tls_config_file == ""


def test_values_that_may_be_secret_are_neither_in_messages_nor_shown(tmp_path: Path) -> None:
    """A misspelt password must not be in the log, or in the answer to code 319, which everyone may ask for."""
    settings = load_settings(write(tmp_path / "f", **{"my.password": "hidden", "my.own": "shown"}), {}, {})
    assert [warning.partition(" (")[0] for warning in settings.warnings] == ["my.password=…", "my.own=shown"]
    assert "my.own=shown" in settings.text().splitlines()
    assert "hidden" not in settings.text()
    for file, flags, environment in (
        (write(tmp_path / "g", **{"tls.server.keyPasword": "hidden"}), {}, {}),
        (None, {"peerSecret": "hidden"}, {}),
        (None, {}, {"NAMESRV_ADMIN_TOKEN": "hidden"}),
    ):
        with pytest.raises(SettingError, match=r"^[A-Za-z._]+=….*: unknown setting"):
            load_settings(file, flags, environment)


def test_every_setting_explains_itself() -> None:
    for name, row in ROWS.items():
        assert row.meaning.endswith("."), name
        assert name == row.name
        assert row.name in (camel_case(row.attribute), row.name if "." in row.name else "", "useTLS"), name
    assert not any("password" in line.lower() for line in Settings(tls_server_key_password="hidden").text().splitlines())


def test_netty_client_settings_are_shown_where_the_file_has_them_and_passwords_never(tmp_path: Path) -> None:
    """Of the settings of NettyClientConfig, ``Configuration`` shows those that are in the file."""
    given = {"tls.server.keyPassword": "hidden", "clientWorkerThreads": "7"}
    shown = load_settings(write(tmp_path / "f", **given), {"connectTimeoutMillis": "5"}, {}).text().splitlines()
    assert "clientWorkerThreads=7" in shown
    assert not [line for line in shown if line.startswith(("connectTimeoutMillis", "tls.server.keyPassword"))]


def test_run_time_changes_go_over_the_file_and_under_flags_and_environment(tmp_path: Path) -> None:
    data = {"dataDir": str(tmp_path)}
    (tmp_path / RUN_TIME_FILE).write_text(
        "waitSecondsForService=1\nshutdownWaitTimeSeconds=2\nneedWaitForService=true\nmy.own=b\n"
    )
    file = write(tmp_path / "f", waitSecondsForService="9", orderMessageEnable="true", **{"my.own": "a"})
    environment = {"NAMESRV_SHUTDOWN_WAIT_TIME_SECONDS": "7"}
    settings = load_settings(file, {"needWaitForService": "false", **data}, environment)
    assert (settings.wait_seconds_for_service, settings.shutdown_wait_time_seconds) == (1, 7)
    assert (settings.need_wait_for_service, settings.order_message_enable) == (False, True)
    assert settings.extra == {"my.own": "b"}
    assert list(settings.run_time) == ["waitSecondsForService", "shutdownWaitTimeSeconds", "needWaitForService", "my.own"]


def test_run_time_changes_that_cannot_be_read_stop_the_start(tmp_path: Path) -> None:
    (tmp_path / RUN_TIME_FILE).write_text("a=\\u12")
    with pytest.raises(SettingError, match=rf"{RUN_TIME_FILE}: malformed.*remove it to undo"):
        load_settings(None, {"dataDir": str(tmp_path)}, {})
    (tmp_path / RUN_TIME_FILE).write_text("waitSecondsForService=1")
    with pytest.raises(SettingError, match="give the settings in another one"):
        load_settings(str(tmp_path / RUN_TIME_FILE), {"dataDir": str(tmp_path)}, {})


@pytest.mark.parametrize(
    ("flags", "expected"), [({}, False), ({"useTLS": "true"}, True), ({"tls.server.mode": "enforcing"}, True)]
)
def test_outgoing_connections_use_tls_by_default_where_incoming_ones_must(flags: dict[str, str], expected: bool) -> None:
    assert load_settings(None, flags, {}).use_tls is expected
    assert load_settings(None, {**flags, "useTLS": "false"}, {}).use_tls is False


def test_a_boolean_that_is_none_counts_as_false_as_in_java_but_is_told(tmp_path: Path) -> None:
    file = write(tmp_path / "f", enableTopicList="yes", supportActingMaster="TRUE")
    settings = load_settings(file, {}, {})
    assert (settings.enable_topic_list, settings.support_acting_master) == (False, True)
    assert settings.warnings == [f"enableTopicList=yes ({file}): neither true nor false; it counts as false"]


ADDRESSES = {"h:1": ("h", 1), "[::1]:9896": ("::1", 9896), "n-1.my_site.example:0": ("n-1.my_site.example", 0), "ä:1": ("ä", 1)}
NO_ADDRESSES = (
    *("", "h", "h:", ":1", "[]:1", "h:65536", "h:-1", "h:+1", "h: 1", "h:\u0663", "h:\u00b2", f"h:{'1' * 5000}"),
    *("a\0b:1", "a\nb:1", "a b:1", "\x1b[2J:1", "a,b:1", "a=b:1", "a..b:1", f"{'x' * 64}:1", "\ud800:1"),
)


def test_an_address_has_a_host_and_a_port_that_sockets_accept() -> None:
    """In an earlier version, ValueError ended the request, or the task that connects to the address."""
    for text, parts in ADDRESSES.items():
        assert parse_address("listen", text) == parts
    for text in NO_ADDRESSES:
        with pytest.raises(SettingError, match=r"(?s)listen=.*not HOST:PORT"):
            parse_address("listen", text)
        with pytest.raises(SettingError, match="address "):
            address_of_client(text)


def test_the_variable_for_operators_is_no_setting() -> None:
    """Operators set it in the environment in which they also start nodes."""
    assert load_settings(environment={"NAMESRV_ADMIN": "127.0.0.1:9886;127.0.0.1:9887"}).mode == "ap"
    with pytest.raises(SettingError, match="NAMESRV_ADMIN_LISTN"):
        load_settings(environment={"NAMESRV_ADMIN_LISTN": "127.0.0.1:9886"})


def test_a_file_that_an_earlier_version_rewrote_can_be_read(tmp_path: Path) -> None:
    """Such a file has every setting, and its listen addresses must not contradict each other."""
    file = write(tmp_path / "f", listen="127.0.0.1:9877", listenPort="9876", bindAddress="0.0.0.0", waitSecondsForService="7")
    again = load_settings(file, environment={})
    assert again.listen_address == ("127.0.0.1", 9877)
    assert again.wait_seconds_for_service == 7

"""IndependentNode: liveness, connection loss, KV file and run-time configuration, on a clock of our own."""

import asyncio
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from replicated_namesrv.compat import IndependentNode
from replicated_namesrv.compat import independent_node as compat_node
from replicated_namesrv.errors import StorageError
from replicated_namesrv.model import DataVersion, QueueData
from replicated_namesrv.routes.commands import DeleteKVConfig, PutKVConfig, RegisterBroker
from replicated_namesrv.routes.results import Result
from replicated_namesrv.service import CloseReason
from replicated_namesrv.settings import Settings
from tests.support.waiting import until


class Clock:
    """Milliseconds that only advance on request."""

    now_ms = 1_000_000.0

    def __call__(self) -> float:
        return self.now_ms


class Wire:
    """A connection as the node sees one, remembering how it was closed."""

    def __init__(self, connection_id: int) -> None:
        self.connection_id = connection_id
        self.peer = f"10.0.0.{connection_id}:40000"
        self.closed: list[CloseReason] = []

    def close(self, reason: CloseReason) -> None:
        self.closed.append(reason)

    def charge(self, work_ns: int) -> None: ...


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make_node(tmp_path: Path, clock: Clock) -> Callable[[], IndependentNode]:
    return lambda: IndependentNode(
        Settings(data_dir=str(tmp_path)), clock, wall_clock_ms=lambda: 1_700_000_000_000, soon=lambda work: work()
    )


@pytest.fixture
def node(make_node: Callable[[], IndependentNode]) -> IndependentNode:
    return make_node()


def registration(name: str = "a", address: str = "a:1", timeout_ms: int | None = None, counter: int = 1) -> RegisterBroker:
    topics = {"T": QueueData(6, 8, 0, 8), "U": QueueData(6, 8, 0, 8)}
    version = DataVersion(counter, 0, 1)
    return RegisterBroker("C", name, address, 0, "ha:1", None, timeout_ms, None, version, topics, {}, None)


def scan_after(node: IndependentNode, clock: Clock, ms: int) -> None:
    """Let time pass as the scan timer does: in steps of its interval."""
    end = clock.now_ms + ms
    while clock.now_ms < end:
        clock.now_ms = min(clock.now_ms + 5000, end)
        node.scan_not_active_broker()


def test_a_silent_broker_is_dropped_and_its_connection_closed(node: IndependentNode, clock: Clock) -> None:
    wire = Wire(1)
    node.register(registration(timeout_ms=10_000), wire)
    scan_after(node, clock, 10_000)
    assert node.state.route("T") is not None
    scan_after(node, clock, 5_000)
    assert node.state.route("T") is None
    assert wire.closed == [CloseReason.OURS]
    assert node.expired_count == 1


def test_all_silent_brokers_go_a_few_at_a_time(clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat_node, "REMOVALS_PER_TURN", 4)
    turns: list[Callable[[], None]] = []
    node = IndependentNode(Settings(data_dir=str(tmp_path)), clock, wall_clock_ms=lambda: 1, soon=turns.append)
    for i in range(10):
        node.register(registration(f"b{i}", f"b{i}:1", timeout_ms=10_000), Wire(i))
    scan_after(node, clock, 10_000)
    clock.now_ms += 5_000
    node.scan_not_active_broker()
    assert len(node.state.registrations()) == 6
    while turns:
        turns.pop(0)()
    assert node.state.registrations() == []


def test_the_default_time_out_is_two_minutes(node: IndependentNode, clock: Clock) -> None:
    node.register(registration(), Wire(1))
    scan_after(node, clock, 120_000)
    assert node.state.route("T") is not None
    scan_after(node, clock, 5_000)
    assert node.state.route("T") is None


@pytest.mark.parametrize("sign", ["904", "322", "renewal"])
def test_every_sign_of_life_counts(node: IndependentNode, clock: Clock, sign: str) -> None:
    wire = Wire(1)
    node.register(registration(timeout_ms=10_000), wire)
    for _ in range(20):
        scan_after(node, clock, 5_000)
        if sign == "904":
            node.heartbeat("C", "a:1", wire)
        elif sign == "322":
            node.query_data_version("C", "a:1", None, wire)
        else:
            assert node.renew_unchanged("C", "a:1", wire) == Result(epoch=node.state.registrations()[0].epoch)
    assert node.state.route("T") is not None


def test_a_pause_of_the_process_is_not_silence(node: IndependentNode, clock: Clock) -> None:
    wire = Wire(1)
    node.register(registration(timeout_ms=10_000), wire)
    scan_after(node, clock, 5_000)
    clock.now_ms += 60_000  # the process was stopped and continued: heartbeats wait unread in the socket
    node.scan_not_active_broker()
    assert node.state.route("T") is not None
    scan_after(node, clock, 5_000)
    assert node.state.route("T") is None


def test_a_connection_shared_by_a_live_broker_stays_open(node: IndependentNode, clock: Clock) -> None:
    wire = Wire(1)
    node.register(registration("a", "a:1", timeout_ms=10_000), wire)
    node.register(registration("b", "b:1"), wire)
    scan_after(node, clock, 15_000)
    assert node.state.registration("C", "a:1") is None
    assert node.state.registration("C", "b:1") is not None
    assert wire.closed == []


def test_every_broker_of_a_lost_connection_goes(node: IndependentNode) -> None:
    wire = Wire(1)
    node.register(registration("a", "a:1"), wire)
    node.register(registration("b", "b:1"), wire)
    node.connection_lost(wire, CloseReason.PEER)
    assert node.state.all_topics() == []
    assert node.lost_count == 2
    assert len(node.live) == 0


def test_brokers_of_a_lost_connection_go_in_several_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Removing 20 brokers with 60,000 topics each in one turn took 1.6 s."""
    later = list[Callable[[], None]]()
    node = IndependentNode(Settings(data_dir=str(tmp_path)), soon=later.append)
    wires = [Wire(number) for number in range(2)]
    for name in "abcdef":
        node.register(registration(name, f"{name}:1"), wires[0])
    topics = node.state.removal_topics("a")
    monkeypatch.setattr(compat_node, "TOPICS_PER_TURN", 2 * topics)
    node.connection_lost(wires[0], CloseReason.PEER)
    assert (node.state.broker_count, node.lost_count) == (4, 2)
    node.register(registration("c", "c:1"), wires[1])
    later.pop(0)()
    assert (node.state.broker_count, node.lost_count) == (2, 4)
    later.pop(0)()
    assert [registration.broker_name for registration in node.state.registrations()] == ["c"]
    assert (node.lost_count, later) == (5, [])


async def test_brokers_of_a_lost_connection_stay_when_the_node_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat_node, "REMOVALS_PER_TURN", 1)
    later = list[Callable[[], None]]()
    node = IndependentNode(Settings(data_dir=str(tmp_path)), soon=later.append)
    wire = Wire(1)
    for name in "ab":
        node.register(registration(name, f"{name}:1"), wire)
    node.connection_lost(wire, CloseReason.PEER)
    await node.stop()
    while later:
        later.pop(0)()
    assert node.state.broker_count == 1


def test_silent_brokers_go_in_several_turns(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    later = list[Callable[[], None]]()
    node = IndependentNode(Settings(data_dir=str(tmp_path)), clock, soon=later.append)
    for name in "abc":
        node.register(registration(name, f"{name}:1", timeout_ms=10_000), Wire(1))
    monkeypatch.setattr(compat_node, "TOPICS_PER_TURN", node.state.removal_topics("a"))
    scan_after(node, clock, 15_000)
    assert node.state.broker_count == 2
    while later:
        later.pop(0)()
    assert (node.state.broker_count, node.expired_count) == (0, 3)


def test_an_older_connection_takes_nothing_with_it(node: IndependentNode) -> None:
    """BrokerHousekeepingService compares channels: registering again moves the broker to the newer one."""
    old, new = Wire(1), Wire(2)
    node.register(registration(), old)
    node.register(registration(), new)
    node.connection_lost(old, CloseReason.PEER)
    assert node.state.route("T") is not None
    node.connection_lost(new, CloseReason.PEER)
    assert node.state.route("T") is None


def test_a_refused_registration_is_not_attached(node: IndependentNode) -> None:
    single = RegisterBroker(
        "C", "x", "x:1", 0, "ha", None, None, None, DataVersion(1, 0, 1), {"T": QueueData(6, 1, 0, 1)}, {}, None
    )
    result = node.register(single, Wire(1))
    assert isinstance(result, Result)
    assert (result.code, result.remark) == (1, "register broker failed")
    assert len(node.live) == 0


async def _await(result: "Result | asyncio.Future[Result]") -> Result:
    return result if isinstance(result, Result) else await result


async def test_kv_config_survives_a_restart(make_node: Callable[[], IndependentNode], tmp_path: Path) -> None:
    node = make_node()
    await node.start()
    await asyncio.gather(*(_await(node.propose(PutKVConfig("N", f"k{i}", f"v{i}é"), None)) for i in range(50)))
    await _await(node.propose(PutKVConfig("N", "null", None), None))
    await _await(node.propose(PutKVConfig("M", "gone", "x"), None))
    await _await(node.propose(DeleteKVConfig("M", "gone"), None))
    await node.stop()
    document = json.loads((tmp_path / "kvConfig.json").read_text())
    assert document == {"configTable": {"N": {f"k{i}": f"v{i}é" for i in range(50)}, "M": {}}}
    assert (tmp_path / "kvConfig.json.bak").exists()

    again = make_node()
    await again.start()
    assert again.state.kv_get("N", "k7") == "v7é"
    assert again.state.kv_view("M") == {}
    assert again.state.kv_view("never") is None
    await again.stop()


async def test_a_write_that_the_disk_refuses_has_not_happened(make_node: Callable[[], IndependentNode], tmp_path: Path) -> None:
    node = make_node()
    await node.start()
    await _await(node.propose(PutKVConfig("N", "k", "first"), None))
    before = (tmp_path / "kvConfig.json").read_bytes()
    (tmp_path / "kvConfig.json.new").mkdir()  # no user can write there, not even root
    with pytest.raises(StorageError, match=r"kvConfig\.json: could not be written"):
        await _await(node.propose(PutKVConfig("N", "k", "second"), None))
    assert node.state.kv_get("N", "k") == "first"
    assert (tmp_path / "kvConfig.json").read_bytes() == before
    (tmp_path / "kvConfig.json.new").rmdir()
    await _await(node.propose(PutKVConfig("N", "k", "third"), None))
    assert node.state.kv_get("N", "k") == "third"
    await node.stop()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full to stand for a full disk")
async def test_a_full_disk_leaves_the_old_file(make_node: Callable[[], IndependentNode], tmp_path: Path) -> None:
    node = make_node()
    await node.start()
    (tmp_path / "kvConfig.json.new").symlink_to("/dev/full")
    with pytest.raises(StorageError, match="no space left on the disk of"):
        await _await(node.propose(PutKVConfig("N", "k", "v"), None))
    assert node.state.kv_table() == {}
    assert not (tmp_path / "kvConfig.json").exists()
    await node.stop()


async def test_kv_config_is_dumped_to_the_log_again_and_again(
    node: IndependentNode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """``KVConfigManager.printAllPeriodically``: first after a minute, then every ten. A value may be a secret, so it is not in
    the log."""
    assert (compat_node.KV_DUMP_FIRST_S, compat_node.KV_DUMP_INTERVAL_S) == (60, 600)
    monkeypatch.setattr(compat_node, "KV_DUMP_FIRST_S", 0.01)
    monkeypatch.setattr(compat_node, "KV_DUMP_INTERVAL_S", 0.01)
    caplog.set_level(logging.INFO)
    await node.start()
    await _await(node.propose(PutKVConfig("N", "k", "hidden"), None))
    await until(lambda: len([line for line in caplog.records if line.message == "configTable"]) > 1, "two dumps", 60)
    facts = next(line.__dict__ for line in caplog.records if line.message == "configTable")
    assert (facts["namespace"], facts["key"]) == ("N", "k")
    assert not [line for line in caplog.records if "hidden" in str(line.__dict__)]
    await node.stop()


async def test_kv_config_is_dumped_in_several_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compat_node, "DUMPED_PER_TURN", 2)
    caplog.set_level(logging.INFO)
    later = list[Callable[[], None]]()
    node = IndependentNode(Settings(data_dir=str(tmp_path)), soon=later.append)
    for key in "abc":
        await _await(node.propose(PutKVConfig("N", key, "v"), None))
    node._dump_kv_config()
    await _await(node.propose(DeleteKVConfig("N", "c"), None))
    assert [line.key for line in caplog.records if line.message == "configTable"] == ["a", "b"]  # type: ignore[attr-defined]  # extra
    while later:
        later.pop(0)()
    assert [line.key for line in caplog.records if line.message == "configTable"] == ["a", "b", "c"]  # type: ignore[attr-defined]  # extra
    await node.stop()


async def test_the_dump_of_the_kv_config_has_a_limit(
    node: IndependentNode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Every client can write KV entries. In an earlier version, a million of them added 200 MB to the log every ten minutes."""
    monkeypatch.setattr(compat_node, "DUMPED_MAX", 2)
    caplog.set_level(logging.INFO)
    for key in "abcde":
        await _await(node.propose(PutKVConfig("N", key, "v"), None))
    node._dump_kv_config()
    await until(lambda: "further entries left out" in caplog.text, "the end of the dump", 60)
    assert [line.key for line in caplog.records if line.message == "configTable"] == ["a", "b"]  # type: ignore[attr-defined]  # extra
    assert [line.left_out for line in caplog.records if "left out" in line.message] == [3]  # type: ignore[attr-defined]  # extra
    await node.stop()


@pytest.mark.parametrize("content", ["{", "[]", '{"other":1}', '{"configTable":[]}', '{"configTable":{"n":1}}'])
async def test_a_corrupt_kv_file_stops_the_start(make_node: Callable[[], IndependentNode], tmp_path: Path, content: str) -> None:
    (tmp_path / "kvConfig.json").write_text(content)
    with pytest.raises(StorageError, match=r"kvConfig\.json.*restore it from its \.bak"):
        await make_node().start()


@pytest.mark.parametrize("content", [None, "", " \n"])
async def test_a_missing_or_empty_kv_file_is_an_empty_config(
    make_node: Callable[[], IndependentNode], tmp_path: Path, content: str | None
) -> None:
    if content is not None:
        (tmp_path / "kvConfig.json").write_text(content)
    node = make_node()
    await node.start()
    assert node.state.kv_table() == {}
    await node.stop()


async def test_configuration_changes_are_persisted_and_take_effect(node: IndependentNode, tmp_path: Path) -> None:
    result = await _await(node.update_config({"orderMessageEnable": "true", "noSuchKey": "1", "waitSecondsForService": "many"}))
    assert result.code == 0
    assert node.state.settings.order_message_enable
    assert (tmp_path / "runtime.properties").read_text() == "orderMessageEnable=true\n"
    assert node.config_text().splitlines() == sorted(node.config_text().splitlines())


@pytest.mark.parametrize(
    "key", ["kvConfigPath", "configStorePath", "configBlackList", "rocketmqHome", "adminTokenFile", "dataDir"]
)
async def test_black_listed_keys_are_refused_whole(node: IndependentNode, key: str) -> None:
    result = await _await(node.update_config({key: "x", "orderMessageEnable": "true"}))
    assert (result.code, result.remark) == (16, "Can not update config in black list.")
    assert not node.state.settings.order_message_enable


async def test_a_configuration_the_disk_refuses_changes_nothing(node: IndependentNode, tmp_path: Path) -> None:
    (tmp_path / "runtime.properties.new").mkdir()
    with pytest.raises(StorageError):
        await _await(node.update_config({"orderMessageEnable": "true"}))
    assert not node.state.settings.order_message_enable
    assert "orderMessageEnable=false" in node.config_text()


def test_brokers_whose_connection_this_node_closed_stay(node: IndependentNode) -> None:
    """As in a drain. Such a close is not evidence that the brokers left. Look-ups are still answered."""
    wire = Wire(1)
    node.register(registration("a", "a:1"), wire)
    node.connection_lost(wire, CloseReason.OURS)
    assert node.state.all_topics() != []
    assert node.lost_count == 0

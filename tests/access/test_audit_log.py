"""The audit log: rotation, lost lines, throttled refusals, and no change recorded twice."""

import json
from functools import partial
from pathlib import Path

import pytest

from replicated_namesrv.access import audit_log
from replicated_namesrv.access.access_control import (
    LINES_PER_ADDRESS,
    LINES_PER_WINDOW,
    REPEAT_S,
    WINDOW_S,
    AccessControl,
    RefusalThrottle,
)
from replicated_namesrv.access.access_file import AccessFileError, parse_access_file
from replicated_namesrv.access.audit_log import OLD_FILES_MAX, AuditLog
from replicated_namesrv.admin.change_records import ChangeRecords, RecordedCluster
from replicated_namesrv.errors import StorageError
from replicated_namesrv.model import ChangeOrigin
from replicated_namesrv.process import _reload
from replicated_namesrv.routes.commands import BrokerRemoval, PutKVConfig, UnregisterBrokers
from replicated_namesrv.service import AppliedChange
from replicated_namesrv.service_manager import ServiceManager
from replicated_namesrv.settings_sources import load_settings
from tests.access.files import token_line, write_access_file
from tests.support.nodes import http, running_node
from tests.support.waiting import until, wait_until

ORIGIN = ChangeOrigin("tools", "10.0.0.9", "n2")
CLUSTER = RecordedCluster("c1", ("n2", "n3"))


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_has_time_node_event_and_facts(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "deep" / "audit.log", "n1", lambda: 0.5)
    log.start()
    log.write("refused", identity="x", why=None, leftOut=3)
    log.write("reloaded")
    log.stop()
    log.stop()
    fixed = {"time": "1970-01-01T00:00:00.500Z", "node": "n1"}
    assert lines(log.refusals_path) == [{**fixed, "event": "refused", "identity": "x", "leftOut": 3}]
    assert lines(log.path) == [{**fixed, "event": "reloaded"}]


def has(path: Path, text: str) -> bool:
    try:
        return text in path.read_text()
    except FileNotFoundError:  # not written yet, or just rotated away
        return False


def has_line(path: Path, number: int) -> bool:
    return has(path, f'"number":{number},')


def test_it_is_rotated_and_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_log, "FILE_BYTES_MAX", 100)
    log = AuditLog(tmp_path / "audit.log", "n1")
    log.start()
    for number in range(OLD_FILES_MAX + 4):
        log.write("event", number=number, text="x" * 200)
        wait_until(partial(has_line, log.path, number), "the line is written")
    log.stop()
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["audit-refusals.log", "audit.log", *(f"audit.log.{number}" for number in range(1, OLD_FILES_MAX + 1))]
    assert lines(tmp_path / f"audit.log.{OLD_FILES_MAX}")[0]["number"] == 3
    assert log.lost == 0


def test_lines_beyond_the_queue_are_lost_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_log, "WAITING_MAX", 2)
    log = AuditLog(tmp_path / "audit.log", "n1")  # not started, so no thread writes the lines
    for _ in range(5):
        log.write("event")
    assert log.lost == 3


def test_a_file_that_cannot_be_written_prevents_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"auditLog=.*; give a file that this user can write, or off"):
        AuditLog(tmp_path / "file" / "audit.log", "n1").start()


def test_changes_that_the_log_has_are_not_recorded_again(tmp_path: Path) -> None:
    """A CP node applies its log again when it starts."""
    path = tmp_path / "audit.log"

    def life(*revisions: int) -> None:
        log = AuditLog(path, "n1")
        log.start()
        records = ChangeRecords(log, lambda: CLUSTER)
        for revision in revisions:
            records.note(AppliedChange(PutKVConfig("n", "k", "secret value"), "", revision, ORIGIN))
        log.stop()

    life(1, 2)
    life(1, 2, 3)
    assert [line["revision"] for line in lines(path)] == [1, 2, 3]
    assert lines(path)[0]["receivedBy"] == "n2"
    assert "secret value" not in path.read_text()


def test_what_a_node_did_not_apply_is_a_gap_in_its_log(tmp_path: Path) -> None:
    """A snapshot on its disk is newer than the audit log, or the leader sent a snapshot. A gap is recorded once, and not again at
    the next start."""
    path = tmp_path / "audit.log"

    def life(opened_at: int, received_at: int, *revisions: int) -> None:
        log, cluster = AuditLog(path, "n1"), list[RecordedCluster]()
        log.start()
        records = ChangeRecords(log, lambda: cluster[0] if cluster else None)
        records.replaced(opened_at)  # the data directory is being opened
        cluster.append(CLUSTER)
        records.started()
        if received_at:
            records.replaced(received_at)
        for revision in revisions:
            records.note(AppliedChange(PutKVConfig("n", "k", "v"), "", revision, ORIGIN))
        log.stop()

    life(0, 0, 1, 2)
    life(2, 0, 3)
    life(10, 0, 11)
    life(10, 0, 11, 12)
    life(12, 20, 21)
    life(20, 0, 21)
    gaps = [(line["fromRevision"], line["toRevision"]) for line in lines(path) if line["event"] == "audit-gap"]
    assert gaps == [(4, 10), (13, 20)]
    assert [line["revision"] for line in lines(path) if line["event"] == "change"] == [1, 2, 3, 11, 12, 21]
    assert all(line["askNodes"] == ["n2", "n3"] for line in lines(path) if line["event"] == "audit-gap")


def test_operations_restores_and_members_are_recorded_once(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    for _ in range(2):
        log = AuditLog(path, "n1")
        log.start()
        records = ChangeRecords(log, lambda: CLUSTER)
        records.requested("POST /v1/drain", "force=true", ORIGIN, 5)
        records.restore("restore-begin", "r", 3, ORIGIN)
        records.restore("restore-finish", "r", 1_000, ORIGIN)
        records.note(AppliedChange(PutKVConfig("n", "k", "v"), "", 1_000, ORIGIN))
        for index, members in ((8, {"n1": "voter"}), (8, {"n1": "voter", "n2": "observer"}), (9, {"n1": "voter"})):
            records.members(index, members)
        log.stop()
    facts = [(line["event"], line.get("request") or line.get("change") or line.get("members")) for line in lines(path)]
    assert facts == [
        *(("requested", "POST /v1/drain"), ("change", "restore-begin"), ("change", "restore-finish")),
        *(("members", {"n1": "voter"}), ("members", {"n1": "voter", "n2": "observer"}), ("members", {"n1": "voter"})),
    ]
    assert all(line["identity"] == "tools" for line in lines(path)[:3])


def test_a_removal_names_its_brokers_and_its_cause(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.log", "n1")
    log.start()
    removal = UnregisterBrokers((BrokerRemoval("c", "10.0.0.1:1", "a", 0, 1),))
    ChangeRecords(log, None).note(AppliedChange(removal, "broker-expired", 7, None))
    log.stop()
    (line,) = lines(log.path)
    assert (line["change"], line["brokers"], line["count"]) == ("broker-expired", ["a:0@10.0.0.1:1"], 1)
    assert "identity" not in line


def test_equal_refusals_get_one_line_a_minute_and_all_together_a_bounded_number() -> None:
    now = [0.0]
    throttle = RefusalThrottle(lambda: now[0])
    assert [throttle.admit(("a",), "x") for _ in range(4)] == [0, None, None, None]
    now[0] = REPEAT_S
    assert throttle.admit(("a",), "x") == 3
    admitted = [throttle.admit((number,), str(number)) for number in range(LINES_PER_WINDOW + 9)]
    assert admitted.count(None) == 10
    now[0] += WINDOW_S
    assert throttle.admit(("b",), "x") == 10


def test_one_address_cannot_use_up_the_lines_of_the_others() -> None:
    throttle = RefusalThrottle(lambda: 0.0)
    assert [throttle.admit((number,), "flooder") for number in range(1_000)].count(0) == LINES_PER_ADDRESS
    assert throttle.admit(("hidden",), "other") is not None


async def test_a_flood_of_refusals_displaces_no_line_about_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An anonymous caller asks for different topics, until the lines about it have been rotated away several times."""
    monkeypatch.setattr(audit_log, "FILE_BYTES_MAX", 500)
    path = write_access_file(tmp_path, f'[identities.x]\nroles = ["operator"]\ntokens = ["{token_line("a token of x")}"]')
    async with running_node(tmp_path, accessPolicy="enforce", accessFile=str(path)) as (node, port):
        headers = {"Authorization": "Bearer a token of x"}
        assert (await http(port, "/v1/kv/n/k", "PUT", b"v", headers)).status == 200
        newest = tmp_path / "audit-refusals.log"
        for number in range(LINES_PER_ADDRESS):
            assert (await http(port, f"/v1/routes/T{number}")).status == 401
            await until(partial(has, newest, f'/v1/routes/T{number}"'), "the line is written")
        assert node.access is not None
        assert sum(node.access.refusals.values()) == LINES_PER_ADDRESS
    assert (tmp_path / f"audit-refusals.log.{OLD_FILES_MAX}").exists()
    assert not any(has(newest.with_name(f"audit-refusals.log{end}"), '/v1/routes/T0"') for end in ("", ".1", ".2", ".3", ".4"))
    assert [line["change"] for line in lines(tmp_path / "audit.log") if line["event"] == "change"] == ["PUT_KV_CONFIG"]


async def test_a_change_of_settings_names_them_without_values_and_its_caller(tmp_path: Path) -> None:
    async with running_node(tmp_path, accessPolicy="observe") as (_, port):
        settings = b'{"waitSecondsForService": 7, "orderMessageEnable": true}'
        assert (await http(port, "/v1/config", "POST", settings)).status == 200
    found = lines(tmp_path / "audit.log")
    assert [line["target"] for line in found if line["event"] == "request"] == ["orderMessageEnable, waitSecondsForService"]
    (change,) = (line for line in found if line["event"] == "change")
    assert (change["change"], change["settings"]) == ("UPDATE_NAMESRV_CONFIG", ["order_message_enable"])
    assert (change["identity"], change["address"]) == ("anonymous", "127.0.0.1")


async def test_reading_the_settings_again_gets_a_line(tmp_path: Path) -> None:
    """SIGHUP makes a node read its settings again."""
    async with running_node(tmp_path, accessPolicy="observe") as (node, _):
        flags = {"dataDir": str(tmp_path), "accessPolicy": "observe", "bindAddress": "127.0.0.1", "listenPort": "0"}
        flags |= {"adminListen": "127.0.0.1:0", "waitSecondsForService": "8", "maxConnections": "900"}
        _reload(node, lambda: load_settings(flags=flags, environment={}), ServiceManager())
        _reload(node, lambda: load_settings(flags={"mode": "none"}, environment={}), ServiceManager())
    found = [line for line in lines(tmp_path / "audit.log") if str(line["event"]).startswith("settings-")]
    assert found[0]["changed"] == ["waitSecondsForService"]
    assert found[0]["inForceAfterRestart"] == ["maxConnections"]
    assert found[1]["event"] == "settings-reload-failed"
    assert "mode" in str(found[1]["why"])


def test_lines_are_written_again_after_the_disk_was_full(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.log", "n1")
    log.start()
    assert log._main._file is not None
    log._main._file.close()
    log._main._file = open("/dev/full", "ab")  # noqa: SIM115 - the log closes it
    log.write("lost")
    wait_until(lambda: log.lost == 1, "the write fails")
    log.write("kept", number=2)
    log.stop()
    assert [(line["event"], line.get("lines")) for line in lines(log.path)] == [("audit-gap", 1), ("kept", None)]


def test_a_half_written_line_does_not_spoil_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    path.write_text('{"event":"whole"}\n{"event":"ha')
    log = AuditLog(path, "n1")
    log.start()
    log.write("next")
    log.stop()
    assert path.read_text().splitlines()[:2] == ['{"event":"whole"}', '{"event":"ha']
    assert json.loads(path.read_text().splitlines()[2])["event"] == "next"


def test_lines_of_an_independent_node_hide_no_changes_of_a_later_cluster(tmp_path: Path) -> None:
    """``namesrv switch`` does not change the audit log. The new cluster counts revisions from 1."""
    path = tmp_path / "audit.log"
    for cluster, revision in (
        (None, 500),
        (CLUSTER, 1),
        (CLUSTER, 7),
        (RecordedCluster("new", ("n2",)), 1),
        (RecordedCluster("new", ("n2",)), 2),
    ):
        log = AuditLog(path, "n1")
        log.start()
        known = None if cluster is None else partial(lambda cluster: cluster, cluster)
        ChangeRecords(log, known).note(AppliedChange(PutKVConfig("n", "k", "v"), "", revision, ORIGIN))
        log.stop()
    assert [(line.get("cluster"), line.get("revision")) for line in lines(path)] == [
        *((None, None), ("c1", 1), ("c1", 7), ("new", 1), ("new", 2)),
    ]


def test_long_names_in_refusals_are_not_kept(caplog: pytest.LogCaptureFixture) -> None:
    control = AccessControl("enforce", "")
    for end in ("b", "c"):
        by = f"certificate CN={'a' * 1_000}{end}"
        control.refused("GET_ROUTEINFO_BY_TOPIC", "t" * (1 << 20), "anonymous", by, "a:1", "why" * 5_000, {})
        assert caplog.records[-1].by == by  # type: ignore[attr-defined]  # a whole subject, for 'access report'
    assert len(control._throttle._next_s) == 2
    assert all(len(str(part)) <= 101 for key in control._throttle._next_s for part in key)
    control.refused("GET_ROUTEINFO_BY_TOPIC", "t", "anonymous", "by" * 5_000, "a:1", "", {})
    assert len(caplog.records[-1].by) <= 1_300  # type: ignore[attr-defined]  # the same


def test_a_file_of_the_audit_log_without_effect_is_mentioned(caplog: pytest.LogCaptureFixture) -> None:
    for name, count in (("off", 0), ("", 0), ("changes.log", 1)):
        assert AccessControl.of(load_settings(None, {"auditLog": name}, {})) is None
        assert len(caplog.records) == count
    assert "auditLog=changes.log has no effect with accessPolicy=open" in caplog.text


async def test_a_file_that_is_still_being_written_is_not_loaded(tmp_path: Path) -> None:
    path = tmp_path / "access.toml"
    path.write_text('[anonymous]\nroles = ["read"]\n')
    control = AccessControl("enforce", str(path))
    path.write_text("")
    await control.poll()
    assert control.reloads == 0
    path.write_text('[anonymous]\nroles = ["read"]\n[identities.tools]\nroles = ["admin"]\n')
    await control.poll()
    await control.poll()
    assert (control.reloads, [identity.name for identity in control.rules.identities]) == (1, ["tools"])


def test_a_token_in_place_of_its_hash_is_not_shown() -> None:
    with pytest.raises(AccessFileError) as error:
        parse_access_file("access.toml", b'[identities.x]\nroles = ["read"]\ntokens = ["my-plain-secret"]\n')
    assert "my-plain-secret" not in str(error.value)
    with pytest.raises(AccessFileError, match="not TOML"):
        parse_access_file("access.toml", b"x = " + b"9" * 5_000)

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
from replicated_namesrv.admin.change_records import ChangeRecords
from replicated_namesrv.errors import StorageError
from replicated_namesrv.model import ChangeOrigin
from replicated_namesrv.routes.commands import BrokerRemoval, PutKVConfig, UnregisterBrokers
from replicated_namesrv.service import AppliedChange
from replicated_namesrv.settings import load_settings
from tests.access.files import token_line, write_access_file
from tests.support.nodes import http, running_node
from tests.support.waiting import until, wait_until

ORIGIN = ChangeOrigin("tools", "10.0.0.9", "n2")


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
    return path.exists() and text in path.read_text()


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
        records = ChangeRecords(log, True)
        for revision in revisions:
            records.note(AppliedChange(PutKVConfig("n", "k", "secret value"), "", revision, ORIGIN))
        log.stop()

    life(1, 2)
    life(1, 2, 3)
    assert [line["revision"] for line in lines(path)] == [1, 2, 3]
    assert lines(path)[0]["receivedBy"] == "n2"
    assert "secret value" not in path.read_text()


def test_a_removal_names_its_brokers_and_its_cause(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.log", "n1")
    log.start()
    removal = UnregisterBrokers((BrokerRemoval("c", "10.0.0.1:1", "a", 0, 1),))
    ChangeRecords(log, False).note(AppliedChange(removal, "broker-expired", 7, None))
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


async def test_a_change_of_settings_over_http_names_them_without_values(tmp_path: Path) -> None:
    async with running_node(tmp_path, accessPolicy="observe") as (_, port):
        settings = b'{"waitSecondsForService": 7, "orderMessageEnable": true}'
        assert (await http(port, "/v1/config", "POST", settings)).status == 200
    targets = [line["target"] for line in lines(tmp_path / "audit.log") if line["event"] == "request"]
    assert targets == ["orderMessageEnable, waitSecondsForService"]


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
    assert [line["event"] for line in lines(log.path)] == ["kept"]


def test_lines_of_an_independent_node_hide_no_changes_of_a_later_cluster(tmp_path: Path) -> None:
    """``namesrv switch`` leaves the audit log, and the cluster counts its revisions from 1."""
    path = tmp_path / "audit.log"
    for revisions_last, revision in ((False, 500), (True, 1)):
        log = AuditLog(path, "n1")
        log.start()
        ChangeRecords(log, revisions_last).note(AppliedChange(PutKVConfig("n", "k", "v"), "", revision, ORIGIN))
        log.stop()
    assert [line.get("revision") for line in lines(path)] == [None, 1]


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
    with pytest.raises(AccessFileError, match="no TOML"):
        parse_access_file("access.toml", b"x = " + b"9" * 5_000)

"""The draft of an access file that is made from audit logs."""

import json
from pathlib import Path

import pytest

from replicated_namesrv.access.access_draft import CALLERS_MAX, AccessDraft
from replicated_namesrv.access.access_file import AccessFileError
from replicated_namesrv.access.roles import Role
from replicated_namesrv.cli.main import run_command
from tests.access.files import rules_of

BROKERS, OPERATORS, READERS = ["admin", "broker"], ["admin", "operator"], ["admin", "broker", "operator", "read"]


def line(by: str, needs: list[str], request: str, **more: object) -> dict[str, object]:
    known = {"event": "observed", "identity": "anonymous", "by": by, "address": "10.0.0.1", "request": request, "needs": needs}
    return {**known, **more}


def draft_of(*lines: dict[str, object]) -> AccessDraft:
    draft = AccessDraft()
    draft.read(json.dumps(each).encode() + b"\n" for each in lines)
    return draft


def test_callers_get_the_least_roles_that_would_have_been_enough() -> None:
    text = draft_of(
        line("certificate CN=broker-a,O=Example", BROKERS, "REGISTER_BROKER", brokerName="broker-a", leftOut=4),
        line("certificate CN=broker-a,O=Example", READERS, "GET_ROUTEINFO_BY_TOPIC"),
        line("anonymous", READERS, "GET_ROUTEINFO_BY_TOPIC"),
        line("certificate CN=tools", OPERATORS, "DELETE_TOPIC_IN_NAMESRV"),
        line("anonymous", ["admin"], "GET /v1/backup", address="10.0.0.2"),
    ).text()
    rules = rules_of(text)
    found = {identity.name: identity for identity in rules.identities}
    assert {name: identity.roles for name, identity in found.items()} == {
        "broker-a": {Role.BROKER},
        "10-0-0-1": {Role.READ},
        "tools": {Role.OPERATOR},
        "10-0-0-2": {Role.ADMIN},
    }
    assert found["broker-a"].owns("broker-a")
    assert not found["broker-a"].owns("broker-b")
    assert (
        rules.by_certificate({"subject": ((("commonName", "broker-a"),), (("organizationName", "Example"),))})
        is found["broker-a"]
    )
    assert rules.by_network("10.0.0.2") is found["10-0-0-2"]
    assert "# GET_ROUTEINFO_BY_TOPIC 1, REGISTER_BROKER 5" in text


def test_an_access_key_needs_its_secret_before_the_draft_is_valid() -> None:
    text = draft_of(line("anonymous, access key toolsKey unknown or wrongly signed", OPERATORS, "PUT_KV_CONFIG")).text()
    with pytest.raises(AccessFileError, match=r"access_keys\.toolsKey: give a list of secrets"):
        rules_of(text)
    rules = rules_of(text.replace("= []", '= ["its secret"]'))
    assert list(rules.identities[0].access_keys) == ["toolsKey"]


def test_a_hostile_caller_cannot_write_the_draft() -> None:
    name = 'b"]\n[anonymous]\nroles = ["admin"]'
    text = draft_of(
        line("anonymous", BROKERS, "REGISTER_BROKER", brokerName=name),
        line("anonymous", BROKERS, "REGISTER_BROKER", brokerName="*"),
        line('certificate CN=x"\n[anonymous]', READERS, "a\n[anonymous]"),
    ).text()
    rules = rules_of(text)
    assert rules.anonymous.roles == frozenset()
    assert not any(identity.owns("broker-b") for identity in rules.identities)
    assert "left out, because it would be a pattern: *" in text


def test_the_number_of_callers_is_bounded() -> None:
    draft = draft_of(*(line("anonymous", READERS, "x", address=f"a{n}") for n in range(CALLERS_MAX + 3)))
    assert (len(draft.callers), draft.left_out) == (CALLERS_MAX, 3)


def test_the_command_prints_the_draft(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "audit.log"
    log.write_text(json.dumps(line("anonymous", READERS, "GET_BROKER_CLUSTER_INFO")) + "\nno json\n")
    assert run_command("access", ["report", str(log)]) == 0
    printed = capsys.readouterr()
    assert 'networks = ["10.0.0.1"]' in printed.out
    assert "1 lines are no JSON objects" in printed.err
    assert run_command("access", ["report", str(tmp_path / "none")]) == 1
    assert "No such file" in capsys.readouterr().err

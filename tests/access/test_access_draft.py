"""The draft of an access file that is made from audit logs."""

import json
import re
from pathlib import Path

import pytest

from replicated_namesrv.access.access_draft import CALLERS_MAX, AccessDraft
from replicated_namesrv.access.roles import Role
from replicated_namesrv.cli.main import run_command
from tests.access.files import rules_of

UNVERIFIED = ("unknown or wrongly signed", "without TLS")
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
    """This holds for a verified key, and for a key that the caller only named."""
    for by in ("access key toolsKey", *(f"anonymous, access key toolsKey {end}" for end in UNVERIFIED)):
        text = draft_of(line(by, OPERATORS, "PUT_KV_CONFIG")).text()
        assert rules_of(text).identities == []
        rules = rules_of(re.sub(r"^# (?=\[|roles|access_keys)", "", text, flags=re.MULTILINE).replace("= []", '= ["its secret"]'))
        assert list(rules.identities[0].access_keys) == ["toolsKey"]


def test_a_verified_certificate_wins_over_an_access_key_that_the_caller_names() -> None:
    by = "certificate CN=broker-a,O=Example\\, Inc., access key theirs unknown or wrongly signed"
    rules = rules_of(draft_of(line(by, OPERATORS, "PUT_KV_CONFIG")).text())
    (identity,) = rules.identities
    assert not identity.access_keys
    assert (
        rules.by_certificate({"subject": ((("commonName", "broker-a"),), (("organizationName", "Example, Inc."),))}) is identity
    )


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
    assert "left out, because it would be a pattern, or is cut off: *" in text


HOSTILE = (
    'a"]',
    "\\",
    "\n[anonymous]\n",
    "\x00",
    "\x7f",
    "\u2028",
    "\ud800",
    "\U0001f600",
    "*",
    "?",
    "é",
    "",
    "…",
    "'",
    "#",
    "=",
    "x" * 2_000,
)


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: ascii(text)[:20])
def test_a_draft_is_valid_whatever_callers_name(text: str) -> None:
    kinds = (
        f"certificate CN={text}",
        f"certificate {text}",
        f"access key {text}",
        f"anonymous, access key {text} without TLS",
        text,
    )
    draft = draft_of(
        *(line(by, BROKERS, text, brokerName=text, identity=text) for by in kinds),
        *(line("anonymous", OPERATORS, text, address=address) for address in (text, "::1", "fe80::1%eth0")),
    ).text()
    rules = rules_of(draft.encode("utf-8").decode())
    assert rules.anonymous.roles == frozenset()
    assert not any(identity.owns("another") for identity in rules.identities)
    assert rules.by_certificate({"subject": ((("commonName", "another"),),)}) is None


def test_callers_whose_names_are_equal_stay_apart() -> None:
    subjects = ("CN=a", "CN=a,O=x", "CN=a-2", "CN=anonymous")
    rules = rules_of(draft_of(*(line(f"certificate {subject}", READERS, "x") for subject in subjects)).text())
    assert [identity.name for identity in rules.identities] == ["a", "a-2", "a-2-2", "anonymous-2"]


def test_what_is_not_certain_is_a_comment() -> None:
    """Examples are a pattern as a subject, a subject that is cut off, and the role broker without a broker name (217)."""
    text = draft_of(
        line("certificate CN=*.x", READERS, "x"),
        line(f"certificate CN={'a' * 1_021}…", READERS, "x"),
        line("certificate CN=topics", BROKERS, "REGISTER_TOPIC_IN_NAMESRV"),
    ).text()
    assert rules_of(text).identities == []
    assert text.count("# Not in force: ") == 3


def test_the_number_of_callers_is_bounded() -> None:
    draft = draft_of(*(line("anonymous", READERS, "x", address=f"a{n}") for n in range(CALLERS_MAX + 3)))
    assert (len(draft.callers), draft.left_out) == (CALLERS_MAX, 3)


def test_the_command_prints_the_draft(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "audit.log"
    log.write_text(json.dumps(line("anonymous", READERS, "GET_BROKER_CLUSTER_INFO")) + "\nno json\n")
    assert run_command("access", ["report", str(log)]) == 0
    printed = capsys.readouterr()
    assert 'networks = ["10.0.0.1"]' in printed.out
    assert "1 lines are not JSON objects" in printed.err
    assert run_command("access", ["report", str(tmp_path / "none")]) == 1
    assert "No such file" in capsys.readouterr().err

"""The access file: every mistake gets one line that names file, place and remedy."""

from pathlib import Path

import pytest

from replicated_namesrv.access.access_file import AccessFileError, read_access_file
from replicated_namesrv.cli.main import run_command
from tests.access.files import rules_of, token_line, write_access_file

BROKER = '[identities.b]\nroles = ["broker"]\n'


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("roles = [\n]]", ("not TOML", "line 2")),
        ("[identity.a]", ("unknown key 'identity'", "anonymous, identities")),
        ("[identities.a]", ("identities.a: roles is missing", "read, broker, operator, admin")),
        ('[identities.a]\nroles = ["reader"]', ('identities.a.roles = "reader"', "unknown role")),
        ('[identities.a]\nroles = "read"', ("identities.a.roles", "give a list")),
        ("[identities.a]\nroles = [1]", ("identities.a.roles", "quotation marks")),
        ('[identities.a]\nroles = ["read"]\nbrokers = ["x"]', ("belong to the role broker",)),
        ('[identities.a]\nroles = ["read"]\ncertificate = "x"', ("unknown key 'certificate'", "certificates")),
        ('[anonymous]\nroles = ["read"]\ntokens = []', ("anonymous: unknown key 'tokens'",)),
        ('[identities.anonymous]\nroles = ["read"]', ("'anonymous' is not allowed as the name of an identity",)),
        (BROKER, ("needs 'brokers'",)),
        (BROKER + 'brokers = ["a*b*c*"]', ("identities.b.brokers", "more than 2 '*'")),
        (BROKER + 'brokers = ["a"]\ncertificates = ["broker-a"]', ("not NAME=VALUE", "CN, O")),
        (BROKER + 'brokers = ["a"]\ncertificates = ["IPv4:10.0.0.1"]', ("is not a kind of alternative name",)),
        (BROKER + 'brokers = ["a"]\nnetworks = ["10.0.0.1/8"]', ("identities.b.networks", "host bits set")),
        (BROKER + 'brokers = ["a"]\naccess_keys = { k = "secret secret" }', ("access_keys.k", "give a list of secrets")),
        (BROKER + 'brokers = ["a"]\naccess_keys = { k = ["short"] }', ("access_keys.k", "at least 8")),
        (BROKER + 'brokers = ["a"]\ntokens = ["plain"]', ("identities.b.tokens", "namesrv access token")),
        (
            '[identities.a]\nroles = ["read"]\naccess_keys = { k = ["secret-1"] }\n'
            '[identities.c]\nroles = ["read"]\naccess_keys = { k = ["secret-2"] }',
            ("identities.c: its access key also belongs to a",),
        ),
    ],
)
def test_a_mistake_is_named_with_its_remedy(text: str, parts: tuple[str, ...]) -> None:
    with pytest.raises(AccessFileError) as found:
        rules_of(text)
    message = str(found.value)
    assert message.startswith("access file access.toml: ")
    assert "\n" not in message
    assert all(part in message for part in parts), message


def test_a_file_with_secrets_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = write_access_file(tmp_path, '[identities.a]\nroles = ["read"]\naccess_keys = { k = ["a secret"] }')
    read_access_file(str(path))
    path.chmod(0o604)
    with pytest.raises(AccessFileError, match=r"every user can read or write it \(mode 0604\); run chmod o-rwx"):
        read_access_file(str(path))


def test_a_missing_or_huge_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AccessFileError, match="No such file"):
        read_access_file(str(tmp_path / "none.toml"))
    with pytest.raises(AccessFileError, match="more than 1048576 bytes"):
        read_access_file(str(write_access_file(tmp_path, "#" * (1 << 20) + "\n")))


def test_check_prints_who_has_which_role(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_access_file(
        tmp_path, BROKER + f'brokers = ["b-*"]\ntokens = ["{token_line("t")}"]\n[identities.idle]\nroles = []'
    )
    assert run_command("access", ["check", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "b: broker (broker names: b-*); by 1 tokens" in printed
    assert "warning: idle is never recognised" in printed
    assert "warning: nobody has the role read" in printed
    path.write_text("x")
    assert run_command("access", ["check", str(path)]) == 1
    assert "not TOML" in capsys.readouterr().err


def test_a_new_token_fits_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command("access", ["token"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    token, line = first.split()[-1], second.partition("tokens = ")[2]
    identity = rules_of(f'[identities.a]\nroles = ["read"]\ntokens = {line}')
    assert identity.by_token(token.encode()) is not None

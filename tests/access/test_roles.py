"""Roles and the requests that they may send; the ways in which a caller is recognised."""

import pytest

from replicated_namesrv.access.identities import CertificateRule, Pattern, PatternError, refusal, subject_of
from replicated_namesrv.access.roles import ADMINS, BROKERS, OPERATORS, READERS, REQUEST_ROLES, Role
from replicated_namesrv.wire.codes import RequestCode
from tests.access.files import rules_of, token_line

FILE = f"""
[anonymous]
roles = ["read"]

[identities.broker-a]
roles = ["broker"]
brokers = ["broker-a", "spare-?"]
certificates = ["CN=broker-a,O=Example", "DNS:*.a.example.org"]

[identities.fixed]
roles = ["broker"]
brokers = ["broker-f"]
addresses = ["10.0.0.7:*"]
networks = ["10.0.0.0/24", "fd00::/8"]

[identities.tools]
roles = ["operator"]
access_keys = {{ toolsKey = ["first secret", "second secret"] }}

[identities.chief]
roles = ["admin"]
tokens = ["{token_line("a token of the chief")}"]
"""
RULES = rules_of(FILE)
IDENTITIES = {identity.name: identity for identity in RULES.identities} | {"anonymous": RULES.anonymous}


def certificate(*subject: tuple[str, str], names: tuple[tuple[str, str], ...] = ()) -> dict[str, object]:
    return {"subject": tuple((pair,) for pair in subject), "subjectAltName": names}


def test_only_known_requests_have_roles_and_a_change_never_needs_read_alone() -> None:
    assert REQUEST_ROLES.keys() == set(RequestCode) - {RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE}
    reads = {RequestCode(code).name for code, roles in REQUEST_ROLES.items() if roles == READERS}
    assert all(name.startswith("GET_") for name in reads)


@pytest.mark.parametrize(
    ("name", "may"),
    [
        ("anonymous", {"readers"}),
        ("broker-a", {"readers", "brokers"}),
        ("tools", {"readers", "operators"}),
        ("chief", {"readers", "brokers", "operators", "admins"}),
    ],
)
def test_roles_include_what_the_table_says(name: str, may: set[str]) -> None:
    groups = {"readers": READERS, "brokers": BROKERS, "operators": OPERATORS, "admins": ADMINS}
    assert {group for group, roles in groups.items() if refusal(IDENTITIES[name], roles) is None} == may


@pytest.mark.parametrize(
    ("identity", "broker", "problem"),
    [
        ("broker-a", ("broker-a", "10.0.0.1:1", None), None),
        ("broker-a", ("broker-a", "10.0.0.1:1", "broker-a"), None),
        ("broker-a", ("spare-1", "10.0.0.1:1", None), None),
        ("broker-a", ("broker-b", "10.0.0.1:1", None), "may not speak for the broker name broker-b"),
        ("broker-a", ("broker-ab", "10.0.0.1:1", None), "may not speak for"),
        ("broker-a", ("broker-a", "10.0.0.2:1", "broker-b"), "belongs to the broker name broker-b"),
        ("broker-a", (None, "10.0.0.2:1", "broker-b"), "belongs to the broker name broker-b"),
        ("fixed", ("broker-f", "10.0.0.8:1", None), "may not announce the address 10.0.0.8:1"),
        ("fixed", ("broker-f", "10.0.0.7:1", "squatter"), None),
        ("chief", ("broker-b", "10.0.0.2:1", "broker-b"), None),
    ],
)
def test_a_broker_speaks_for_its_names_and_addresses_only(
    identity: str, broker: tuple[str | None, str, str | None], problem: str | None
) -> None:
    found = refusal(IDENTITIES[identity], BROKERS, [broker])
    assert (found is None) if problem is None else (found is not None and problem in found)


def test_an_operator_with_the_role_broker_is_limited_only_as_a_broker() -> None:
    both = rules_of('[identities.x]\nroles = ["broker", "operator"]\nbrokers = ["a"]').identities[0]
    assert refusal(both, BROKERS, [("b", None, None)]) is not None
    assert refusal(both, BROKERS | OPERATORS, [("b", None, None)]) is None


def test_certificates_are_recognised_by_subject_and_alternative_name() -> None:
    full = certificate(("commonName", "broker-a"), ("organizationName", "Example"))
    assert RULES.by_certificate(full) is IDENTITIES["broker-a"]
    assert RULES.by_certificate(certificate(("commonName", "broker-a"))) is None
    assert RULES.by_certificate(certificate(("organizationName", "broker-a"), ("commonName", "Example"))) is None
    assert RULES.by_certificate(certificate(names=(("DNS", "x.a.example.org"),))) is IDENTITIES["broker-a"]
    assert RULES.by_certificate(certificate(names=(("URI", "x.a.example.org"),))) is None
    assert RULES.by_certificate({}) is None
    assert RULES.by_certificate(None) is None
    assert subject_of(full) == "CN=broker-a,O=Example"


def test_one_of_several_common_names_is_not_enough() -> None:
    rule, twice = CertificateRule("CN=chief*"), (("commonName", "evil"), ("commonName", "chief"))
    assert not rule.matches(certificate(*twice))
    assert not rule.matches(certificate(*twice[::-1]))
    assert not rule.matches(certificate(("organizationName", "chief")))
    assert rule.matches(certificate(("commonName", "chief"), ("commonName", "chief-2")))
    assert CertificateRule("DC=org").matches(certificate(("domainComponent", "example"), ("domainComponent", "org")))


def test_a_certificate_without_a_subject_is_shown_by_its_alternative_name() -> None:
    names = (("email", "x@example.org"), ("DNS", "a.example.org"), ("DNS", "b.example.org"))
    assert subject_of(certificate(names=names)) == "DNS:a.example.org"
    assert CertificateRule(subject_of(certificate(names=names))).matches(certificate(names=names))
    assert subject_of(certificate(names=(("URI", "x, access key k"),))) == "URI:x? access key k"
    assert subject_of({}) == "without a name"


def test_networks_are_recognised_in_both_families() -> None:
    assert RULES.by_network("10.0.0.9") is IDENTITIES["fixed"]
    assert RULES.by_network("::ffff:10.0.0.9") is IDENTITIES["fixed"]
    assert RULES.by_network("fd00::1%eth0") is IDENTITIES["fixed"]
    assert RULES.by_network("10.0.1.9") is None
    assert RULES.by_network("?") is None


def test_an_identity_has_several_tokens_and_certificates_while_they_are_replaced() -> None:
    rules = rules_of(
        f'[identities.x]\nroles = ["read"]\ntokens = ["{token_line("old token")}", "{token_line("new token")}"]\n'
        'certificates = ["CN=old", "CN=new"]'
    )
    for name in ("old", "new"):
        assert rules.by_token(f"{name} token".encode()) is rules.identities[0]
        assert rules.by_certificate(certificate(("commonName", name))) is rules.identities[0]
    assert rules.by_token(b"other token") is None


def test_tokens_are_recognised_by_their_hash() -> None:
    assert RULES.by_token(b"a token of the chief") is IDENTITIES["chief"]
    assert RULES.by_token(b"a token of the chie") is None


@pytest.mark.parametrize("text", ["", "a*b*c*d", "*" * 3])
def test_patterns_without_bound_are_refused(text: str) -> None:
    with pytest.raises(PatternError):
        Pattern(text)


def test_a_pattern_takes_regular_expressions_literally() -> None:
    assert Pattern("a.b[0]").matches("a.b[0]")
    assert not Pattern("a.b").matches("axb")
    assert Pattern("a*").matches("a\nb")
    assert not Pattern("*").matches("x" * 2000)


def test_a_comma_in_a_value_of_a_subject_is_escaped() -> None:
    rule = CertificateRule("CN=a,O=Example\\, Inc")
    assert rule.matches(certificate(("commonName", "a"), ("organizationName", "Example, Inc")))
    assert CertificateRule(subject_of(certificate(("organizationName", "x, y")))).matches(
        certificate(("organizationName", "x, y"))
    )


def test_several_roles() -> None:
    assert rules_of('[identities.x]\nroles = ["read", "operator"]').identities[0].roles == {Role.READ, Role.OPERATOR}

"""Signatures of RocketMQ's AclClientRPCHook."""

from replicated_namesrv.access.signatures import signature_of, signing_secret
from tests.access.files import rules_of

FIELDS = {"topic": "T", "AccessKey": "rocketmq2", "__ZONE": "z"}
JAVAS = "Sb5+9i+LottEagbohLGcWxP3XpM="
"""The signature by AclClientRPCHook of RocketMQ 5.3.3 for these fields and the body "body" with the secret 12345678."""


def test_a_signature_equals_that_of_rocketmq() -> None:
    assert signature_of(FIELDS, b"body", b"12345678") == JAVAS
    assert signing_secret({**FIELDS, "Signature": JAVAS}, b"body", (b"other", b"12345678")) == b"12345678"


def test_each_of_two_secrets_is_valid_and_no_other() -> None:
    rules = rules_of('[identities.a]\nroles = ["read"]\naccess_keys = { rocketmq2 = ["old secret", "new secret"] }')
    for secret in (b"old secret", b"new secret"):
        signed = {**FIELDS, "Signature": signature_of(FIELDS, b"x", secret)}
        assert rules.by_signature(signed, b"x") == (rules.identities[0], secret)
        assert rules.by_signature(signed, b"y") is None
        assert rules.by_signature({**signed, "topic": "U"}, b"x") is None
        assert rules.by_signature({**signed, "AccessKey": "other"}, b"x") is None
    assert signing_secret({**FIELDS, "Signature": signature_of(FIELDS, b"x", b"wrong secret")}, b"x", (b"old secret",)) is None


def test_a_signature_that_is_no_base64_is_wrong() -> None:
    assert signing_secret({"AccessKey": "k", "Signature": "ü\ud800"}, b"", (b"secret",)) is None
    assert signing_secret({"AccessKey": "k"}, b"", (b"secret",)) is None

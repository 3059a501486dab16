"""Signatures of RocketMQ's AclClientRPCHook."""

from replicated_namesrv.access.signatures import is_signed, signature_of
from tests.access.files import rules_of

FIELDS = {"topic": "T", "AccessKey": "rocketmq2", "__ZONE": "z"}
JAVAS = "Sb5+9i+LottEagbohLGcWxP3XpM="
"""The signature by AclClientRPCHook of RocketMQ 5.3.3 for these fields and the body "body" with the secret 12345678."""


def test_a_signature_equals_that_of_rocketmq() -> None:
    assert signature_of(FIELDS, b"body", b"12345678") == JAVAS
    assert is_signed({**FIELDS, "Signature": JAVAS}, b"body", (b"12345678",))


def test_each_of_two_secrets_is_valid_and_no_other() -> None:
    rules = rules_of('[identities.a]\nroles = ["read"]\naccess_keys = { rocketmq2 = ["old secret", "new secret"] }')
    for secret in (b"old secret", b"new secret"):
        signed = {**FIELDS, "Signature": signature_of(FIELDS, b"x", secret)}
        assert rules.by_signature(signed, b"x") is rules.identities[0]
        assert rules.by_signature(signed, b"y") is None
        assert rules.by_signature({**signed, "topic": "U"}, b"x") is None
        assert rules.by_signature({**signed, "AccessKey": "other"}, b"x") is None
    assert not is_signed({**FIELDS, "Signature": signature_of(FIELDS, b"x", b"wrong secret")}, b"x", (b"old secret",))


def test_a_signature_that_is_no_base64_is_wrong() -> None:
    assert not is_signed({"AccessKey": "k", "Signature": "ü\ud800"}, b"", (b"secret",))
    assert not is_signed({"AccessKey": "k"}, b"", (b"secret",))

"""Signatures of RocketMQ's ``AclClientRPCHook``, by which an access key identifies the sender of a request.

A signature is the HMAC-SHA1 of the values of all extFields, in the order of their names, and of the body. It covers neither the
request code nor the names of the fields, and contains neither a time nor a nonce. So anyone who has seen a signed request can
repeat it, or send the same fields with another code: a signature proves an identity only over a connection that nobody else can
read.
"""

import base64
import hmac
from collections.abc import Iterable, Mapping

ACCESS_KEY, SIGNATURE = "AccessKey", "Signature"


def signature_of(fields: Mapping[str, str], body: bytes, secret: bytes) -> str:
    """The signature of a request with these extFields, which include the access key (``AclUtils.calSignature``)."""
    values = "".join(fields[name] for name in sorted(fields) if name != SIGNATURE)
    return base64.b64encode(hmac.digest(secret, values.encode("utf-8", "replace") + body, "sha1")).decode()


def signing_secret(fields: Mapping[str, str], body: bytes, secrets: Iterable[bytes]) -> bytes | None:
    """The secret, one of ``secrets``, with which the request was signed; None: it was signed with none of them."""
    given = fields.get(SIGNATURE, "").encode("utf-8", "replace")
    signed = (secret for secret in secrets if hmac.compare_digest(signature_of(fields, body, secret).encode(), given))
    return next(signed, None)

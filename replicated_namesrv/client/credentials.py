"""Credentials: the certificate with which a client proves its identity, or the access key with which it signs its requests."""

import re
import ssl
from dataclasses import dataclass
from pathlib import Path

from replicated_namesrv.access.signatures import ACCESS_KEY, SIGNATURE, signature_of
from replicated_namesrv.errors import SettingError

FILE_BYTES_MAX = 65_536
_LINE = re.compile(r"""^(accessKey|secretKey)[ \t]*:[ \t]*(["']?)(.+?)\2[ \t\r]*$""", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Credentials:
    """The credentials of one client."""

    tls: ssl.SSLContext | None = None
    """TLS context of the client, with its certificate if it has one. None: plain text."""
    access_key: str | None = None
    secret: bytes = b""

    def signed(self, fields: dict[str, str] | None, body: bytes) -> dict[str, str] | None:
        """The extFields of a request with the access key and signature of ``AclClientRPCHook``; unchanged without a key."""
        if self.access_key is None:
            return fields
        known = {**(fields or {}), ACCESS_KEY: self.access_key}
        return {**known, SIGNATURE: signature_of(known, body, self.secret)}


NO_CREDENTIALS = Credentials()


def read_access_key(path: str) -> tuple[str, bytes]:
    """(access key, secret) in a file of the form of RocketMQ's ``conf/tools.yml``. Raises SettingError."""
    try:
        with Path(path).expanduser().open("rb") as file:
            found = {name: value for name, _, value in _LINE.findall(file.read(FILE_BYTES_MAX).decode())}
    except (OSError, UnicodeDecodeError) as cause:
        reason = cause.strerror if isinstance(cause, OSError) else "it is not UTF-8 text"
        raise SettingError(f"access key file {path}: {reason}; give a file in the format of mqadmin's conf/tools.yml") from None
    if missing := {"accessKey", "secretKey"} - found.keys():
        name = sorted(missing)[0]
        raise SettingError(f"access key file {path}: there is no line '{name}: VALUE'; write it as in mqadmin's conf/tools.yml")
    return found["accessKey"], found["secretKey"].encode()

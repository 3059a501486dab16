"""Reads the access file: TOML with identities, their roles, and how they are recognised.

Example::

    [anonymous]
    roles = ["read"]

    [identities.broker-a]
    roles = ["broker"]
    brokers = ["broker-a"]
    certificates = ["CN=broker-a,O=Example"]

    [identities.deployment]
    roles = ["operator"]
    access_keys = { rocketmqTools = ["a secret", "the next secret"] }
    tokens = ["sha256:…"]
    networks = ["10.0.9.0/24"]
"""

import hashlib
import stat
import tomllib
from collections.abc import Callable
from ipaddress import ip_network
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from replicated_namesrv.access.identities import AccessRules, CertificateRule, NamedIdentity, Pattern, PatternError
from replicated_namesrv.access.roles import Role
from replicated_namesrv.errors import SettingError

T = TypeVar("T")
FILE_BYTES_MAX = 1 << 20
IDENTITIES_MAX = 10_000
ENTRIES_MAX = 1_000
"""Maximum number of entries in one list."""
SECRET_CHARACTERS_MIN = 8
TOKEN_PREFIX = "sha256:"
ANONYMOUS = "anonymous"
NOBODY = AccessRules(NamedIdentity(ANONYMOUS, frozenset()), ())
"""The rules without a file: nobody has a role."""
_OF_ROLES = {"roles", "brokers", "addresses"}
_OF_CALLERS = {"certificates", "networks", "access_keys", "tokens"}


class AccessFileError(SettingError):
    """The access file cannot be used. The text names file, place, value and remedy."""


def read_access_file(path: str) -> AccessRules:
    """The rules of a file. Raises AccessFileError."""
    file = Path(path).expanduser()
    try:
        with file.open("rb") as source:
            data = source.read(FILE_BYTES_MAX + 1)
        mode = stat.S_IMODE(file.stat().st_mode)
    except OSError as cause:
        raise AccessFileError(f"access file {path}: {cause.strerror}; give a file that this user can read") from None
    rules = parse_access_file(path, data)
    if mode & stat.S_IRWXO and any(identity.access_keys for identity in rules.identities):
        raise AccessFileError(
            f"access file {path}: it contains secrets, and every user can read or write it (mode {mode:04o}); run chmod o-rwx"
        )
    return rules


def parse_access_file(path: str, data: bytes) -> AccessRules:
    """The rules in the content of the file ``path``. Raises AccessFileError."""
    if len(data) > FILE_BYTES_MAX:
        raise AccessFileError(f"access file {path}: it has more than {FILE_BYTES_MAX} bytes; use patterns to shorten it")
    try:
        table = tomllib.loads(data.decode())
    except UnicodeDecodeError as cause:
        raise AccessFileError(f"access file {path}: not UTF-8 at byte {cause.start}; save it as UTF-8") from None
    # not TOMLDecodeError: tomllib raises a plain ValueError for an integer of thousands of digits
    except (ValueError, RecursionError) as cause:
        raise AccessFileError(f"access file {path}: not TOML: {cause}; correct the file there") from None
    return _Reader(path).rules(table, hashlib.sha256(data).hexdigest())


class _Reader:
    def __init__(self, path: str) -> None:
        self._path = path

    def _fail(self, place: str, problem: str) -> NoReturn:
        raise AccessFileError(f"access file {self._path}: {place}: {problem}")

    def rules(self, table: dict[str, Any], digest: str) -> AccessRules:
        self._known("the file", table, {ANONYMOUS, "identities"})
        named = self._table("identities", table.get("identities", {}))
        if len(named) > IDENTITIES_MAX:
            self._fail("identities", f"{len(named)} of them; give at most {IDENTITIES_MAX}")
        anonymous = self._identity(ANONYMOUS, ANONYMOUS, self._table(ANONYMOUS, table.get(ANONYMOUS, {"roles": []})), set())
        identities = [
            self._identity(f"identities.{name}", name, self._table(f"identities.{name}", value), _OF_CALLERS)
            for name, value in named.items()
        ]
        self._check_unique(identities)
        return AccessRules(anonymous, identities, digest)

    def _check_unique(self, identities: list[NamedIdentity]) -> None:
        owners: dict[object, str] = {}
        for identity in identities:
            if identity.name in (ANONYMOUS, ""):
                self._fail("identities", f"'{identity.name}' is not allowed as the name of an identity; choose another")
            for what, one in [*(("access key", key) for key in identity.access_keys), *(("token", t) for t in identity.tokens)]:
                if (what, one) in owners:
                    self._fail(f"identities.{identity.name}", f"its {what} also belongs to {owners[what, one]}; use each once")
                owners[what, one] = identity.name

    def _identity(self, place: str, name: str, table: dict[str, Any], credentials: set[str]) -> NamedIdentity:
        self._known(place, table, _OF_ROLES | credentials)
        if "roles" not in table:
            self._fail(place, f"roles is missing; give a list of {', '.join(Role)}")
        roles = frozenset(self._each(place, table, "roles", self._role))
        brokers = self._each(place, table, "brokers", Pattern)
        addresses = self._each(place, table, "addresses", Pattern)
        if Role.BROKER in roles and not brokers:
            self._fail(place, "the role broker needs 'brokers', the broker names that it may speak for; \"*\" means all")
        if Role.BROKER not in roles and (brokers or addresses):
            self._fail(place, "'brokers' and 'addresses' belong to the role broker; add the role, or remove them")
        return NamedIdentity(
            name,
            roles,
            brokers,
            addresses,
            self._each(place, table, "certificates", CertificateRule),
            self._each(place, table, "networks", ip_network),
            self._access_keys(place, table.get("access_keys", {})),
            frozenset(self._each(place, table, "tokens", _token)),
        )

    def _access_keys(self, place: str, value: object) -> dict[str, tuple[bytes, ...]]:
        place = f"{place}.access_keys"
        found = {}
        for key, secrets in self._table(place, value).items():
            if not isinstance(secrets, list) or not secrets or not all(isinstance(secret, str) for secret in secrets):
                self._fail(f"{place}.{key}", 'give a list of secrets, as in ["a secret"]; all of them are valid')
            if any(len(secret) < SECRET_CHARACTERS_MIN for secret in secrets):
                self._fail(f"{place}.{key}", f"a secret is too short; give at least {SECRET_CHARACTERS_MIN} characters")
            found[key] = tuple(secret.encode() for secret in secrets)
        return found

    def _each(self, place: str, table: dict[str, Any], key: str, parse: Callable[[str], T]) -> tuple[T, ...]:
        values = table.get(key, [])
        if not isinstance(values, list) or len(values) > ENTRIES_MAX:
            self._fail(f"{place}.{key}", f"give a list of at most {ENTRIES_MAX} texts")
        found = []
        for value in values:
            if not isinstance(value, str):
                self._fail(f"{place}.{key}", f"{value!r} is not text; write it in quotation marks")
            try:
                found.append(parse(value))
            except ValueError as cause:
                self._fail(f"{place}.{key}" if key == "tokens" else f'{place}.{key} = "{value}"', str(cause))
        return tuple(found)

    @staticmethod
    def _role(text: str) -> Role:
        if text not in list(Role):
            raise PatternError(f"unknown role; give one of {', '.join(Role)}")
        return Role(text)

    def _table(self, place: str, value: object) -> dict[str, Any]:
        if not isinstance(value, dict):
            self._fail(place, f"it is not a table; write [{place}]")
        return value

    def _known(self, place: str, table: dict[str, Any], known: set[str]) -> None:
        for key in table:
            if key not in known:
                self._fail(place, f"unknown key '{key}'; give {', '.join(sorted(known))}")


def _token(text: str) -> bytes:
    digits = text.removeprefix(TOKEN_PREFIX)
    if digits == text or len(digits) != 64:
        raise PatternError(f"not {TOKEN_PREFIX} and 64 hexadecimal digits; 'namesrv access token' makes one")
    return bytes.fromhex(digits)

"""Identities and their roles, and which identity a caller has.

An identity is found by the caller's certificate, access key, token or address. If several identities match a certificate or an
address, the first one in the file counts.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import Any

from replicated_namesrv.access.roles import Role
from replicated_namesrv.access.signatures import ACCESS_KEY, signing_secret

PeerCertificate = Mapping[str, Any]
"""A verified certificate as ``ssl`` describes it (``getpeercert``)."""
NAME_CHARACTERS_MAX = 1_024
"""Maximum length of a name that is compared with a pattern. A longer name matches no pattern."""
CUT_OFF = "…"
STARS_MAX = 2
"""Maximum number of ``*`` in a pattern, because the time of a match grows with this number."""
ATTRIBUTES = {
    "CN": "commonName",
    "O": "organizationName",
    "OU": "organizationalUnitName",
    "L": "localityName",
    "ST": "stateOrProvinceName",
    "C": "countryName",
    "DC": "domainComponent",
    "EMAIL": "emailAddress",
    "SERIALNUMBER": "serialNumber",
    "UID": "userId",
}
"""Attributes of a subject by their short names."""
ALTERNATIVE_NAMES = {"DNS": "DNS", "URI": "URI", "IP": "IP Address"}
"""Kinds of subject alternative names: the name in a rule, and the name that ``ssl`` gives the kind."""


class PatternError(ValueError):
    """A pattern or a rule is malformed. The text says what to give."""


class Pattern:
    """A name in which ``*`` stands for any text and ``?`` for one character."""

    def __init__(self, text: str) -> None:
        """Raises PatternError."""
        if not text:
            raise PatternError("it is empty; give a name, '*' for all")
        if text.count("*") > STARS_MAX:
            raise PatternError(f"it has more than {STARS_MAX} '*'; give several patterns")
        self.text = text
        parts = ({"*": ".*", "?": "."}.get(character, re.escape(character)) for character in text)
        self._matches = re.compile("".join(parts), re.DOTALL).fullmatch

    def matches(self, name: str) -> bool:
        """Whether the pattern matches the whole name."""
        return len(name) <= NAME_CHARACTERS_MAX and self._matches(name) is not None


class CertificateRule:
    """Matches certificates: ``CN=broker-a,O=Example`` for a subject that has all of these and no other CN;
    ``DNS:broker-a.example.org`` for a subject alternative name. Values are patterns; ``\\,`` is a comma in a value."""

    def __init__(self, text: str) -> None:
        """Raises PatternError."""
        self.text = text
        self._subject: list[tuple[str, Pattern]] = []
        self._alternative: tuple[str, Pattern] | None = None
        kind, colon, value = text.partition(":")
        if colon and "=" not in kind:
            if kind not in ALTERNATIVE_NAMES:
                raise PatternError(f"'{kind}' is not a kind of alternative name; give one of {', '.join(ALTERNATIVE_NAMES)}")
            self._alternative = (ALTERNATIVE_NAMES[kind], Pattern(value))
            return
        for part in re.split(r"(?<!\\),", text):
            name, equals, value = part.strip().partition("=")
            if not equals or name.upper() not in ATTRIBUTES:
                known = ", ".join(ATTRIBUTES)
                raise PatternError(f"'{part.strip()}' is not NAME=VALUE with NAME one of {known}; or give DNS:NAME or URI:NAME")
            self._subject.append((ATTRIBUTES[name.upper()], Pattern(value.replace("\\,", ","))))

    def matches(self, certificate: PeerCertificate) -> bool:
        """Whether the certificate has every name in the rule."""
        if self._alternative is not None:
            kind, pattern = self._alternative
            return any(name == kind and pattern.matches(value) for name, value in certificate.get("subjectAltName", ()))
        values: dict[str, list[str]] = {}
        for name, value in (pair for names in certificate.get("subject", ()) for pair in names):
            values.setdefault(name, []).append(value)
        return all(_fits(name, pattern, values.get(name, [])) for name, pattern in self._subject)


def _fits(name: str, pattern: Pattern, values: Sequence[str]) -> bool:
    """Whether one value of an attribute matches the pattern. If there are several common names, all of them must match, because
    any of them may be the caller's."""
    fitting = [pattern.matches(value) for value in values]
    return all(fitting) and bool(fitting) if name == ATTRIBUTES["CN"] else any(fitting)


def subject_of(certificate: PeerCertificate) -> str:
    """The subject as a rule would name it, for logs; without a subject, the first alternative name. A backslash anywhere and a
    comma in an alternative name are shown as ``?``, because rules cannot contain them."""
    short = {long: name for name, long in ATTRIBUTES.items()}
    pairs = [pair for names in certificate.get("subject", ()) for pair in names]
    parts = (f"{short.get(name, name)}={value}".replace("\\", "?").replace(",", "\\,") for name, value in pairs)
    return shown(",".join(parts) or _alternative_name(certificate), NAME_CHARACTERS_MAX)


def _alternative_name(certificate: PeerCertificate) -> str:
    short = {long: name for name, long in ALTERNATIVE_NAMES.items()}
    known = (f"{short[kind]}:{name}" for kind, name in certificate.get("subjectAltName", ()) if kind in short)
    return next(known, "without a name").replace("\\", "?").replace(",", "?")


@dataclass(frozen=True, slots=True)
class NamedIdentity:
    """A named caller, its roles, and how it is recognised."""

    name: str
    roles: frozenset[Role]
    brokers: tuple[Pattern, ...] = ()
    """Names of the brokers that an identity with the role broker may register."""
    addresses: tuple[Pattern, ...] = ()
    """Addresses that these brokers may announce. Empty: every address that no broker of another name has registered."""
    certificates: tuple[CertificateRule, ...] = ()
    networks: tuple[IPv4Network | IPv6Network, ...] = ()
    access_keys: Mapping[str, tuple[bytes, ...]] = field(default_factory=dict)
    """The secrets of each access key; a signature with any of them is valid."""
    tokens: frozenset[bytes] = frozenset()
    """SHA-256 of each token."""

    def may(self, allowed: frozenset[Role]) -> bool:
        """Whether one of the roles is among ``allowed``."""
        return not self.roles.isdisjoint(allowed)

    def owns(self, broker_name: str) -> bool:
        """Whether the identity may speak for brokers of this name."""
        return Role.ADMIN in self.roles or any(pattern.matches(broker_name) for pattern in self.brokers)

    def announces(self, address: str) -> bool:
        """Whether the file says that the identity's brokers have this address."""
        return any(pattern.matches(address) for pattern in self.addresses)


class AccessRules:
    """The content of an access file."""

    def __init__(self, anonymous: NamedIdentity, identities: Sequence[NamedIdentity], digest: str = "") -> None:
        self.anonymous = anonymous
        """The identity of callers without a known certificate, key, token or address."""
        self.identities = identities
        self.digest = digest
        """Hash of the file; equal on nodes with equal files."""
        self._by_key = {key: (identity, secrets) for identity in identities for key, secrets in identity.access_keys.items()}
        self._by_token = {token: identity for identity in identities for token in identity.tokens}
        self._networks = [(network, identity) for identity in identities for network in identity.networks]
        self._rules = [(rule, identity) for identity in identities for rule in identity.certificates]

    def by_certificate(self, certificate: PeerCertificate | None) -> NamedIdentity | None:
        """The identity of a verified client certificate."""
        if not certificate:
            return None
        return next((identity for rule, identity in self._rules if rule.matches(certificate)), None)

    def by_network(self, host: str) -> NamedIdentity | None:
        """The identity of a source address."""
        if not self._networks:
            return None
        try:
            found = ip_address(host.partition("%")[0])
        except ValueError:
            return None
        plain = getattr(found, "ipv4_mapped", None) or found
        return next((identity for network, identity in self._networks if plain in network), None)

    def by_token(self, token: bytes) -> NamedIdentity | None:
        """The identity of an HTTP token. Only its hash is looked up, so the time of the look-up reveals nothing about the
        token.
        """
        return self._by_token.get(hash_of(token))

    def by_signature(self, fields: Mapping[str, str], body: bytes) -> tuple[NamedIdentity, bytes] | None:
        """The identity of a signed request, and the secret that signed it; None if its key is unknown or the signature is
        wrong."""
        found = self._by_key.get(fields.get(ACCESS_KEY, ""))
        if found is None:
            return None
        identity, secrets = found
        secret = signing_secret(fields, body, secrets)
        return None if secret is None else (identity, secret)

    def by_key(self, key: str, secret: bytes) -> NamedIdentity | None:
        """The identity of an access key, if this is one of its secrets."""
        identity, secrets = self._by_key.get(key, (None, ()))
        return identity if secret in secrets else None

    @property
    def has_access_keys(self) -> bool:
        """Whether any identity can be recognised by a signature."""
        return bool(self._by_key)


def hash_of(token: bytes) -> bytes:
    """The hash that the file contains in place of a token. A token is long and random, so a plain hash cannot be inverted."""
    return hashlib.sha256(token).digest()


def is_limited(identity: NamedIdentity, allowed: frozenset[Role]) -> bool:
    """Whether ``identity`` may send a request only for its own brokers. This holds if broker is the only one of its roles that is
    ``allowed`` for the request. A request that the role ``read`` permits is not limited."""
    return Role.READ not in allowed and identity.roles.isdisjoint(allowed - {Role.BROKER})


def refusal(
    identity: NamedIdentity, allowed: frozenset[Role], brokers: Iterable[tuple[str | None, str | None, str | None]] = ()
) -> str | None:
    """Why ``identity`` may not send a request that ``allowed`` may send; None: it may.

    ``brokers`` has one item for each broker that the request speaks for: the broker name in the request, the broker's address,
    and the name under which this address is registered. None in an item: not given, or not registered."""
    if not identity.may(allowed):
        needed = " or ".join(sorted(allowed))
        return f"it needs the role {needed}, and {identity.name} has {', '.join(sorted(identity.roles)) or 'none'}"
    if not is_limited(identity, allowed):
        return None
    for name, address, holder in brokers:
        if name is not None and not identity.owns(name):
            return f"{identity.name} may not speak for the broker name {shown(name)}"
        if address is None:
            continue
        if identity.addresses and not identity.announces(address):
            return f"{identity.name} may not announce the address {shown(address)}"
        if holder is not None and not identity.owns(holder) and not identity.announces(address):
            return f"the address {shown(address)} belongs to the broker name {shown(holder)}, not to {identity.name}"
    return None


def shown(text: str, characters_max: int = 100) -> str:
    """A name as a message shows it: a long one is cut off and then ends with ``CUT_OFF``."""
    return text if len(text) <= characters_max else text[:characters_max] + CUT_OFF

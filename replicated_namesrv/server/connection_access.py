"""ConnectionAccess: the caller of a connection, as far as certificate and source address identify it."""

from replicated_namesrv.access.identities import AccessRules, NamedIdentity, PeerCertificate, subject_of


class ConnectionAccess:
    """The caller of a connection: its identity, and how it was recognised."""

    __slots__ = ("address", "by", "certificate", "identity", "is_certain", "rules")

    def __init__(self, rules: AccessRules, address: str, certificate: PeerCertificate | None) -> None:
        self.rules = rules
        self.address, self.certificate = address, certificate
        found = rules.by_certificate(certificate)
        self.is_certain = found is not None
        """True if a certificate identifies the caller. Then signatures of requests are ignored."""
        self.by = "anonymous" if not certificate else f"certificate {subject_of(certificate)}"
        """How the caller was recognised. If it has a certificate: the subject, even if no rule names the certificate."""
        if found is None and (found := rules.by_network(address)) is not None:
            self.by = "network" if not certificate else self.by
        self.identity: NamedIdentity = found or rules.anonymous

"""The TLS files of one of our nodes in a scenario with faults of certificates.

Nodes accept connections with and without TLS (``tls.server.mode=permissive``), so the brokers and clients of the run need no
certificates. All certificates of a node have the same key, so a node never sees a certificate whose key is not there yet.
"""

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from replicated_namesrv.files import write_atomically

LASTING_DAYS, EXPIRING_DAYS = 90, 5


class CertificateFault(StrEnum):
    """A fault of a node's certificate that begins and ends while the node runs."""

    EXPIRES = "expires"
    """The certificate expires within days."""
    UNUSABLE = "unusable"
    """The certificate file has no certificate."""


class NodeTls:
    """A key and a certificate in a folder."""

    def __init__(self, folder: Path) -> None:
        """Write both files."""
        folder.mkdir(parents=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.certificate_file, key_file = folder / "certificate.pem", folder / "key.pem"
        key_file.touch(mode=0o600)
        key_file.write_bytes(
            self._key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        )
        self.settings = (
            "tls.test.mode.enable=false",
            f"tls.server.certPath={self.certificate_file}",
            f"tls.server.keyPath={key_file}",
        )
        """Settings of the node."""
        self.end()

    def begin(self, fault: CertificateFault) -> None:
        """Put ``fault`` in force."""
        content = self._certificate(EXPIRING_DAYS) if fault is CertificateFault.EXPIRES else b"not a certificate\n"
        write_atomically(self.certificate_file, content)

    def end(self) -> None:
        """Install a certificate that is valid for long."""
        write_atomically(self.certificate_file, self._certificate(LASTING_DAYS))

    def _certificate(self, days: int) -> bytes:
        name, now = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")]), datetime.now(UTC)
        builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(self._key.public_key())
        builder = builder.serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=days))
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

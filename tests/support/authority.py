"""An authority that signs the certificates of nodes."""

import datetime
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from replicated_namesrv.address_list import is_numeric
from replicated_namesrv.raft.peer_tls import TlsFiles


class Authority:
    """Signs certificates for nodes."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        self.directory = directory
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.certificate = self._sign(self.name, self.key.public_key(), 30, x509.BasicConstraints(True, None))
        self.path = directory / f"{name}.pem"
        self.path.write_bytes(self.certificate.public_bytes(serialization.Encoding.PEM))

    def _sign(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, days: int, *extensions: x509.ExtensionType
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=40))
            .not_valid_after(now + datetime.timedelta(days=days))
        )
        for extension in extensions:
            builder = builder.add_extension(extension, critical=False)
        return builder.sign(self.key, hashes.SHA256())

    def files(
        self, node: str, days: int = 10, trusted: Path | None = None, prefix: str = "", others: Sequence[str] = ()
    ) -> TlsFiles:
        """Write a key and a certificate for ``node`` and ``others`` (names or addresses) to files of the folder. ``days``: how
        long it is valid."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, node)])
        names = [x509.IPAddress(ip_address(name)) if is_numeric(name) else x509.DNSName(name) for name in (node, *others)]
        certificate = self._sign(subject, key.public_key(), days, x509.SubjectAlternativeName(names))
        paths = TlsFiles(self.directory / f"{prefix}{node}.pem", self.directory / f"{prefix}{node}.key", trusted or self.path)
        paths.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        paths.key.write_bytes(
            key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        )
        return paths

    def renew(self, files: TlsFiles, days: int) -> None:
        """Replace the certificate in ``files`` by a new one for the same key."""
        old = x509.load_pem_x509_certificate(files.certificate.read_bytes())
        key = old.public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)
        names = old.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        certificate = self._sign(old.subject, key, days, names)
        files.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

"""Expiry of the certificates that the settings name, read again when a file changes."""

from pathlib import Path
from stat import S_ISREG

from replicated_namesrv.settings import Settings

FILE_BYTES_MAX = 1 << 20
"""Maximum size of a certificate file. A larger file is not a certificate and is not read."""


def expiry_s(path: Path) -> float:
    """When the first of the certificates in a PEM file expires, in seconds since 1970. Raises OSError, ValueError."""
    from cryptography import x509  # imported here, because a node without certificates does not need this large package

    status = path.stat()
    if not S_ISREG(status.st_mode) or status.st_size > FILE_BYTES_MAX:
        raise ValueError(f"{path} is not a file of certificates")
    return min(each.not_valid_after_utc.timestamp() for each in x509.load_pem_x509_certificates(path.read_bytes()))


def certificate_files(settings: Settings) -> dict[str, Path]:
    """The certificate file of each port that has one."""
    remoting = settings.tls_server_mode != "disabled" and not settings.tls_test_mode_enable
    named = {
        "remoting": settings.tls_server_cert_path if remoting else "",
        "admin": settings.admin_tls_cert_path,
        "peer": settings.peer_tls_cert_path,
    }
    return {port: Path(path).expanduser() for port, path in named.items() if path}


class Certificates:
    """The certificate files of one node."""

    def __init__(self, settings: Settings) -> None:
        self._files = certificate_files(settings)
        self._known: dict[str, tuple[tuple[int, int, int], float]] = {}
        """For each port: the version of the file and its expiry."""

    def expiries(self) -> dict[str, float]:
        """Expiry by port, seconds since 1970; 0: the file cannot be read."""
        return {port: self._expiry(port, path) for port, path in self._files.items()}

    def _expiry(self, port: str, path: Path) -> float:
        try:
            status = path.stat()
        except OSError:
            return 0.0
        version = (status.st_mtime_ns, status.st_size, status.st_ino)
        if port not in self._known or self._known[port][0] != version:
            self._known[port] = version, self._read(path)
        return self._known[port][1]

    def _read(self, path: Path) -> float:
        try:
            return expiry_s(path)
        except (OSError, ValueError):
            return 0.0

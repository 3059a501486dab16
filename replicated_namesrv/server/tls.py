"""TLS on the plain port: contexts from files or a self-signed certificate, their reload, and sessions between memory buffers.

``TlsSession`` runs OpenSSL between two memory buffers. So the node can read the first bytes of a connection, and then start TLS
with these bytes. ``TlsContexts`` has the context for new connections and polls its files as RocketMQ's
``FileWatchService`` does: by content hash, and only files that existed at the start. When a file has changed, all are loaded. If
they cannot be loaded, for example because key and certificate do not belong together yet, the old context stays, a metric counts
it and a log line reports it. Open connections keep their context.
"""

import asyncio
import contextlib
import dataclasses
import hashlib
import logging
import ssl
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from replicated_namesrv.access.identities import PeerCertificate
from replicated_namesrv.errors import SettingError
from replicated_namesrv.server.server_metrics import ServerMetrics
from replicated_namesrv.settings import Settings

log = logging.getLogger(__name__)

POLL_S = 0.5
READ_BYTES = 65_536
PIECE_BYTES = 2_048
"""Number of bytes that are processed without a look at the time. They can contain 75 changes of the key (KeyUpdate), which take
some milliseconds. A read of 256 KiB that consists of nothing else took a second."""
CLIENT_AUTH = {"optional": ssl.CERT_OPTIONAL, "require": ssl.CERT_REQUIRED}


class TlsError(Exception):
    """The peer's TLS is invalid or refused, or was cut off."""


class TlsSession:
    """Server side of one TLS connection between memory buffers; ``write`` sends bytes to the peer."""

    __slots__ = ("_handshake_done", "_incoming", "_object", "_outgoing", "_write", "backlog", "ended")

    def __init__(self, context: ssl.SSLContext, write: Callable[[bytes], None], handshake_done: Callable[[], None]) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._write = write
        self._handshake_done: Callable[[], None] | None = handshake_done
        self.ended = False
        """True after the peer has sent close_notify."""
        self.backlog = bytearray()
        """Bytes from the peer that have not been processed yet."""

    @property
    def is_shaking_hands(self) -> bool:
        """Whether the handshake is not complete yet."""
        return self._handshake_done is not None

    def receive(self) -> bytes:
        """Process a piece of ``backlog`` and return the decrypted bytes. Raises TlsError."""
        self._incoming.write(self.backlog[:PIECE_BYTES])
        del self.backlog[:PIECE_BYTES]
        plain: list[bytes] = []
        try:
            if self._handshake_done is not None:
                self._object.do_handshake()
                self._handshake_done()
                self._handshake_done = None
            while True:
                piece = self._object.read(READ_BYTES)
                if not piece:
                    self.ended = True
                    break
                plain.append(piece)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            with contextlib.suppress(OSError):
                self._flush()  # sends the alert
            raise TlsError(error.reason or str(error)) from None
        self._flush()
        return b"".join(plain)

    @property
    def certificate(self) -> PeerCertificate | None:
        """The peer's certificate, if it has one and it was verified."""
        return self._object.getpeercert() or None

    def send(self, data: bytes) -> None:
        """Encrypt data and send it. Raises TlsError."""
        try:
            self._object.write(data)
        except ssl.SSLError as error:
            raise TlsError(error.reason or str(error)) from None
        self._flush()

    def close(self) -> None:
        """Send close_notify. Does not wait for the peer's close_notify."""
        if self._handshake_done is None:
            with contextlib.suppress(ssl.SSLError):
                self._object.unwrap()
            self._flush()

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._write(self._outgoing.read())


def self_signed_files(folder: Path) -> tuple[Path, Path]:
    """Make a self-signed certificate in ``folder``: (certificate file, key file), both PEM."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=3650))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    certificate_file, key_file = folder / "certificate.pem", folder / "key.pem"
    certificate_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_file.touch(mode=0o600)
    key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return certificate_file, key_file


def _bare_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def self_signed_context() -> ssl.SSLContext:
    """Context of test mode (``tls.test.mode.enable``): a fresh certificate, any client."""
    context = _bare_context()
    with tempfile.TemporaryDirectory(prefix="namesrv-tls-") as folder:  # a folder, because ssl loads certificates from files only
        certificate, key = self_signed_files(Path(folder))
        context.load_cert_chain(certificate, key)
    return context


def context_of(settings: Settings) -> ssl.SSLContext:
    """Context from the files in ``settings`` (``TlsHelper.buildSslContext``). Raises OSError, ssl.SSLError, ValueError."""
    context = _bare_context()
    context.load_cert_chain(
        settings.tls_server_cert_path, settings.tls_server_key_path, password=settings.tls_server_key_password
    )
    wanted = CLIENT_AUTH.get(settings.tls_server_need_client_auth.lower(), ssl.CERT_NONE)
    if wanted is not ssl.CERT_NONE and settings.tls_server_auth_client:
        context.load_verify_locations(settings.tls_server_trust_cert_path)
        context.verify_mode = wanted
    return context


def client_context(settings: Settings) -> ssl.SSLContext:
    """Client context for brokers (``TlsHelper.buildSslContext``). Host names are not compared. Raises OSError, ssl.SSLError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    if settings.tls_test_mode_enable or not settings.tls_client_auth_server:
        context.verify_mode = ssl.CERT_NONE
    elif settings.tls_client_trust_cert_path:
        context.load_verify_locations(settings.tls_client_trust_cert_path)
    else:
        context.load_default_certs()
    if settings.tls_client_cert_path and not settings.tls_test_mode_enable:
        context.load_cert_chain(
            settings.tls_client_cert_path, settings.tls_client_key_path or None, password=settings.tls_client_key_password
        )
    return context


def _digest(path: str) -> bytes | None:
    """Content hash of a file; None if it cannot be read."""
    try:
        return hashlib.sha256(Path(path).read_bytes()).digest()
    except OSError:
        return None


class Names(NamedTuple):
    """The names that messages use for settings: the setting that asks for TLS, and the settings that name the files."""

    asked_by: str
    certificate: str
    key: str
    trust: str


REMOTING_NAMES = Names("tls.server.mode=enforcing", "tls.server.certPath", "tls.server.keyPath", "tls.server.trustCertPath")
ADMIN_NAMES = Names("adminTlsCertPath is set", "adminTlsCertPath", "adminTlsKeyPath", "adminTlsTrustCertPath")


def admin_tls_settings(settings: Settings) -> Settings | None:
    """Settings whose fields for the remoting port have the values of the admin port; None: that port speaks plain HTTP."""
    if not settings.admin_tls_cert_path:
        return None
    return dataclasses.replace(
        settings,
        tls_server_mode="enforcing",
        tls_test_mode_enable=False,
        tls_server_cert_path=settings.admin_tls_cert_path,
        tls_server_key_path=settings.admin_tls_key_path,
        tls_server_key_password=settings.admin_tls_key_password,
        tls_server_trust_cert_path=settings.admin_tls_trust_cert_path,
        tls_server_need_client_auth="optional" if settings.admin_tls_trust_cert_path else "none",
        tls_server_auth_client=bool(settings.admin_tls_trust_cert_path),
    )


def admin_contexts(settings: Settings, metrics: ServerMetrics) -> "TlsContexts | None":
    """The TLS contexts of the admin port; None: the port speaks plain HTTP."""
    own = admin_tls_settings(settings)
    return None if own is None else TlsContexts(own, metrics, ADMIN_NAMES)


def admin_client_context(settings: Settings) -> ssl.SSLContext:
    """Client context for the admin ports of the other nodes. Raises OSError, ssl.SSLError.

    A caller's certificate cannot be passed on to another node. Therefore this node presents its own certificate if an authority
    in ``adminTlsTrustCertPath`` signed it. Otherwise other nodes would refuse the handshake, so it presents none.
    """
    context = ssl.create_default_context()
    context.load_verify_locations(settings.admin_tls_cert_path)
    if settings.admin_tls_trust_cert_path and _accepts_itself(settings):
        context.load_verify_locations(settings.admin_tls_trust_cert_path)
        _load_admin_pair(context, settings)
    return context


def _load_admin_pair(context: ssl.SSLContext, settings: Settings) -> None:
    context.load_cert_chain(settings.admin_tls_cert_path, settings.admin_tls_key_path, password=settings.admin_tls_key_password)


def _accepts_itself(settings: Settings) -> bool:
    """Whether an authority in ``adminTlsTrustCertPath`` signed the node's own certificate. Makes a handshake in memory."""
    contexts = [ssl.SSLContext(protocol) for protocol in (ssl.PROTOCOL_TLS_CLIENT, ssl.PROTOCOL_TLS_SERVER)]
    contexts[0].check_hostname = False
    for context in contexts:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(settings.admin_tls_trust_cert_path)
        _load_admin_pair(context, settings)
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    waiting = [contexts[0].wrap_bio(to_client, to_server), contexts[1].wrap_bio(to_server, to_client, server_side=True)]
    try:
        while waiting:
            for end in tuple(waiting):
                with contextlib.suppress(ssl.SSLWantReadError):
                    end.do_handshake()
                    waiting.remove(end)
    except ssl.SSLError:
        return False
    return True


class TlsContexts:
    """The context for new connections, and its files."""

    def __init__(self, settings: Settings, metrics: ServerMetrics, names: Names = REMOTING_NAMES) -> None:
        self._names = names
        self.server_mode = settings.tls_server_mode
        self.problem: str | None = None
        """Why the newest files are not in use; None: they are in use."""
        self._settings = settings
        self._metrics = metrics
        self._context: ssl.SSLContext | None = None
        self._context_built = False
        self._digests: dict[str, bytes] = {}
        self._task: asyncio.Task[None] | None = None

    @property
    def context(self) -> ssl.SSLContext | None:
        """Context for a new connection; None: TLS is not served."""
        if not self._context_built:
            self._build()
        return self._context

    async def start(self) -> None:
        """Build the first context and, with files, begin to watch them. Raises SettingError if the mode is enforcing and the
        files cannot be used.

        A thread makes a self-signed certificate, so that the start does not wait for it. Clients that connect before it is ready
        wait.
        """
        if self.server_mode == "disabled":
            self._context_built = True
        elif self._settings.tls_test_mode_enable:
            self._task = asyncio.create_task(self._make_self_signed())
        else:
            self._build()
            wanted = self._settings.tls_server_need_client_auth
            if wanted.lower() in CLIENT_AUTH and not self._settings.tls_server_auth_client:
                log.warning(
                    "client certificates are not requested: tls.server.authClient=false would accept any",
                    extra={"tls.server.need.client.auth": wanted},
                )
            self.watch_present_files()
            self._task = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        """Stop watching."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def poll(self) -> None:
        """Check once whether the files have changed, and reload them if so."""
        news = {path: digest for path, known in self._digests.items() if (digest := _digest(path)) not in (None, known)}
        self._digests |= news
        if news:
            self._reload()

    def watch_present_files(self) -> None:
        """Let ``poll`` compare with the present content of the files. Files that do not exist now are never checked."""
        settings = self._settings
        named = (settings.tls_server_cert_path, settings.tls_server_key_path, settings.tls_server_trust_cert_path)
        self._digests = {path: digest for path in named if path and (digest := _digest(path)) is not None}

    def _build(self) -> None:
        self._context_built = True
        if self._settings.tls_test_mode_enable:
            self._context = self_signed_context()
            return
        try:
            self._context = context_of(self._settings)
        except (OSError, ValueError) as error:  # includes ssl.SSLError, which is an OSError
            self.problem = _explain(self._settings, self._names, error)
            if self.server_mode == "enforcing":
                raise SettingError(f"{self._names.asked_by}, but no connection could be served: {self.problem}") from None
            log.error("TLS is not served: its files cannot be used", extra={"error": self.problem})

    def _reload(self) -> None:
        """Load the files. If they cannot be loaded, this change is not tried again, but the next one is."""
        try:
            self._context = context_of(self._settings)
        except (OSError, ValueError) as error:
            self.problem = _explain(self._settings, self._names, error)
            self._metrics.tls_reload_failures += 1
            log.error("new TLS files cannot be used; the old certificate stays in use", extra={"error": self.problem})
            return
        self.problem = None
        self._metrics.tls_reloads += 1
        log.info("TLS files reloaded", extra={"certificate": self._settings.tls_server_cert_path})

    async def _make_self_signed(self) -> None:
        context = await asyncio.to_thread(self_signed_context)
        if not self._context_built:
            self._context, self._context_built = context, True

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(POLL_S)
            self.poll()


_CAUSES = {  # OpenSSL's reason: what it means, and what to do
    "PEM lib": (
        "a file is not in PEM format, or the password of the key is missing or wrong",
        "give certificate and key in PEM, and set the password of the key",
    ),
    "KEY_VALUES_MISMATCH": ("the key does not belong to the certificate", "give the key of this certificate"),
}


def _explain(settings: Settings, names: Names, error: Exception) -> str:
    reason = getattr(error, "reason", None) or str(error)
    cause, _ = _CAUSES.get(reason, (reason, ""))
    files = f"{names.certificate}={settings.tls_server_cert_path}, {names.key}={settings.tls_server_key_path}"
    if names.trust and settings.tls_server_trust_cert_path:
        files += f", {names.trust}={settings.tls_server_trust_cert_path}"
    return f"{cause} ({files})"


def tls_problem(settings: Settings, names: Names = REMOTING_NAMES) -> tuple[str, str] | None:
    """Why the files of a port cannot be used, and what to do; None: they can. ``settings``: those of ``admin_tls_settings`` for
    the admin port."""
    try:
        context_of(settings)
    except (OSError, ValueError) as error:  # includes ssl.SSLError, which is an OSError
        default = "", "give PEM files that exist and that the user of the node can read"
        return _explain(settings, names, error), _CAUSES.get(getattr(error, "reason", None) or "", default)[1]
    return None

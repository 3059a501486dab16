"""Validates the settings of a CP cluster: names and addresses of its members, and how they authenticate each other."""

import contextlib
import os
import secrets
import ssl
import stat
from dataclasses import replace
from pathlib import Path

from replicated_namesrv.errors import SettingError
from replicated_namesrv.listening import is_loopback
from replicated_namesrv.raft.peer_tls import Tls, TlsFiles
from replicated_namesrv.raft.raft_errors import TransportError
from replicated_namesrv.raft.transport import TransportSettings
from replicated_namesrv.settings import Settings, parse_address

FOUNDERS_MAX = 5
"""Maximum number of nodes in ``peers``, which found a cluster. Up to ``members.VOTERS_MAX`` can vote after more were added."""
SECRET_BYTES_MIN = 16
SECRET_DISTINCT_MIN = 6
"""Minimum number of different bytes in a secret. Of 30,000 secrets of 16 random hexadecimal digits, one has fewer."""
OTHERS = stat.S_IRWXO
NAME_BYTES_MAX = 200


def parse_peers(key: str, text: str) -> dict[str, tuple[str, int]]:
    """``name=host:port,…`` to addresses by name. Raises SettingError."""
    found: dict[str, tuple[str, int]] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, address = part.partition("=")
        if not equals or not name or len(name.encode()) > NAME_BYTES_MAX:
            raise SettingError(f"{key}: {part!r} is not name=host:port; give for example n1=10.0.0.1:9896,n2=10.0.0.2:9896")
        if name in found:
            raise SettingError(f"{key}: the name {name} is given twice; every node has its own")
        found[name] = parse_address(key, address)
    return found


def parse_join(text: str) -> tuple[dict[str, tuple[str, int]], tuple[tuple[str, int], ...]]:
    """``[name=]host:port,…``: the addresses by name, and those without a name. Raises SettingError."""
    parts = [part.strip() for part in text.split(",")]
    unnamed = dict.fromkeys(parse_address("join", part) for part in parts if part and "=" not in part)
    return parse_peers("join", ",".join(part for part in parts if "=" in part)), tuple(unnamed)


def known_members(settings: Settings) -> dict[str, tuple[str, int]]:
    """The members that the settings name, this node included. Raises SettingError."""
    if not settings.join:
        return parse_peers("peers", settings.peers)
    if settings.peers:
        raise SettingError(f"join={settings.join} and peers={settings.peers} are both given; a node that joins needs join only")
    if not settings.peer_listen:
        raise SettingError("join is given and peerListen is empty; give the HOST:PORT at which the members reach this node")
    known, unnamed = parse_join(settings.join)
    known.pop(settings.node_id, None)
    if not known and not unnamed:
        raise SettingError(f"join={settings.join} has no other node; give some members, for example 10.0.0.1:9896")
    return {**known, settings.node_id: parse_address("peerListen", settings.peer_listen)}


def transport_settings(settings: Settings) -> TransportSettings:
    """The settings of the peers' transport. Its addresses may name nodes that are not members yet (``peerDial``). Raises
    SettingError."""
    peers = known_members(settings)
    if not peers:
        raise SettingError("mode=cp and peers is empty: name all nodes, for example peers=n1=10.0.0.1:9896,n2=…,n3=…")
    if settings.node_id not in peers:
        raise SettingError(f"nodeId={settings.node_id} is not among peers={settings.peers}; give one of {', '.join(peers)}")
    if settings.join:
        pass  # these members are the ones that a joining node contacts first
    elif len(peers) % 2 == 0 or len(peers) > FOUNDERS_MAX:
        raise SettingError(
            f"peers has {len(peers)} nodes; give 1, 3 or {FOUNDERS_MAX} nodes that found a cluster: an even number tolerates no "
            "more failures than one node fewer. If members of the cluster were added or removed, replace peers by join "
            "(docs/members.md)"
        )
    dial = parse_peers("peerDial", settings.peer_dial)
    listen = parse_address("peerListen", settings.peer_listen) if settings.peer_listen else peers[settings.node_id]
    if not 0 < (length := len(settings.cluster_id.encode())) <= NAME_BYTES_MAX:
        raise SettingError(f"clusterId has {length} bytes; give a name of 1 to {NAME_BYTES_MAX} bytes")
    secret, tls = _secret("peerSecretFile", settings.peer_secret_file), _tls(settings)
    other = _secret("peerSecretAcceptFile", settings.peer_secret_accept_file)
    if other is not None and secret is None:
        raise SettingError(
            f"peerSecretAcceptFile={settings.peer_secret_accept_file} without peerSecretFile; give the secret of this node, too"
        )
    if secret is None and tls is None and not is_loopback(listen[0]):
        raise SettingError(
            f"the peer port listens on {listen[0]}, which is not loopback, and peerSecretFile is not set; set it to a file with "
            "the same content on every node, or set certificates (peerTlsKeyPath, peerTlsCertPath, peerTlsTrustCertPath)"
        )
    unnamed = parse_join(settings.join)[1]
    found = TransportSettings(settings.node_id, settings.cluster_id, {**peers, **dial}, listen, secret, tls, unnamed=unnamed)
    return found if other is None else replace(found, accepted_secrets=(other,))


def _secret(name: str, path: str) -> bytes | None:
    if not path:
        return None
    file = Path(path).expanduser()
    try:
        secret = file.read_bytes().strip()
        mode = stat.S_IMODE(file.stat().st_mode)
    except OSError as error:
        raise SettingError(f"{name}={path}: {error.strerror}; give a file that this node can read") from None
    if mode & OTHERS:
        raise SettingError(f"{name}={path}: every user can read or write it (mode {mode:04o}); run chmod o-rwx {path}")
    if len(secret) < SECRET_BYTES_MIN:
        raise SettingError(f"{name}={path}: {len(secret)} bytes; give at least {SECRET_BYTES_MIN}")
    unit = (secret + secret).find(secret, 1)
    if len(set(secret)) < SECRET_DISTINCT_MIN or unit < min(len(secret), SECRET_BYTES_MIN):
        raise SettingError(
            f"{name}={path}: easy to guess ({len(set(secret))} different bytes, repeated after {unit}); make one with "
            "head -c 32 /dev/urandom | base64"
        )
    return secret


def create_secret(file: Path) -> None:
    """Make a file with a new secret that only its owner can read. An existing file is kept. Raises OSError."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as opened:
            opened.write(secrets.token_urlsafe(32) + "\n")


def _tls(settings: Settings) -> TlsFiles | None:
    paths = {
        "peerTlsKeyPath": settings.peer_tls_key_path,
        "peerTlsCertPath": settings.peer_tls_cert_path,
        "peerTlsTrustCertPath": settings.peer_tls_trust_cert_path,
    }
    if not any(paths.values()):
        if settings.peer_tls_key_password:
            raise SettingError("peerTlsKeyPassword is given without peerTlsKeyPath; give the key, or remove the password")
        return None
    if missing := [name for name, path in paths.items() if not path]:
        given = ", ".join(f"{name}={path}" for name, path in paths.items() if path)
        raise SettingError(f"{given} without {', '.join(missing)}; give all three, or none for peers without TLS")
    for name, path in paths.items():
        try:
            Path(path).expanduser().read_bytes()
        except OSError as error:
            raise SettingError(f"{name}={path}: {error.strerror}; give a PEM file that this node can read") from None
    key, certificate, authority = (Path(path).expanduser() for path in paths.values())
    files = TlsFiles(certificate, key, authority, settings.peer_tls_key_password)
    try:
        Tls(files).check(settings.node_id)
    except (TransportError, ssl.SSLError) as error:
        given = ", ".join(f"{name}={path}" for name, path in paths.items())
        reason = getattr(error, "verify_message", "") or getattr(error, "reason", None) or str(error)
        raise SettingError(
            f"{given}: node {settings.node_id} cannot make a handshake with itself: {reason}; the certificate must belong "
            f"to the key, be valid now, have the DNS name {settings.node_id}, and be signed by an authority in "
            "peerTlsTrustCertPath"
        ) from None
    return files

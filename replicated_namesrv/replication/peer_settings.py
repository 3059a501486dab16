"""The settings of a group of nodes, checked: who they are, where they are, and the secret they share."""

from pathlib import Path

from replicated_namesrv.errors import SettingError
from replicated_namesrv.raft.transport import TransportSettings, is_loopback
from replicated_namesrv.settings import Settings, parse_address

MEMBERS_MAX = 5
SECRET_BYTES_MIN = 16
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


def transport_settings(settings: Settings) -> TransportSettings:
    """What the peers' transport needs. Raises SettingError."""
    peers = parse_peers("peers", settings.peers)
    if not peers:
        raise SettingError("mode=cp and peers is empty: name all nodes, for example peers=n1=10.0.0.1:9896,n2=…,n3=…")
    if settings.node_id not in peers:
        raise SettingError(f"nodeId={settings.node_id} is not among peers={settings.peers}; give one of {', '.join(peers)}")
    if len(peers) % 2 == 0:
        raise SettingError(
            f"peers has {len(peers)} nodes: an even number survives no more failures than one node less and needs a larger "
            f"majority; give {len(peers) - 1} or {len(peers) + 1}"
        )
    if len(peers) > MEMBERS_MAX:
        raise SettingError(f"peers has {len(peers)} nodes; give 1, 3 or {MEMBERS_MAX}")
    dial = parse_peers("peerDial", settings.peer_dial)
    if unknown := sorted(dial.keys() - peers.keys()):
        raise SettingError(f"peerDial names {', '.join(unknown)}, which peers does not; give one of {', '.join(peers)}")
    listen = parse_address("peerListen", settings.peer_listen) if settings.peer_listen else peers[settings.node_id]
    secret = _secret(settings.peer_secret_file)
    if secret is None and not is_loopback(listen[0]):
        raise SettingError(f"peers are reached at {listen[0]} without a secret; give peerSecretFile, the same text on every node")
    return TransportSettings(settings.node_id, settings.cluster_id, {**peers, **dial}, listen, secret)


def _secret(path: str) -> bytes | None:
    if not path:
        return None
    try:
        secret = Path(path).expanduser().read_bytes().strip()
    except OSError as error:
        raise SettingError(f"peerSecretFile={path}: {error.strerror}; give a file that this node can read") from None
    if len(secret) < SECRET_BYTES_MIN:
        raise SettingError(f"peerSecretFile={path}: {len(secret)} bytes; give at least {SECRET_BYTES_MIN}")
    return secret

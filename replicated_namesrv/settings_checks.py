"""Bounds of single settings, and rules between settings; ``check`` applies them."""

from replicated_namesrv.address_list import checked_zone
from replicated_namesrv.errors import SettingError
from replicated_namesrv.settings import ROWS, Settings

_CHOICES = {
    "mode": ("ap", "cp"),
    "read_consistency": ("linearizable", "lease", "stale"),
    "no_quorum_policy": ("fence", "serve-stale"),
    "access_policy": ("open", "observe", "enforce"),
    "tls_server_mode": ("disabled", "permissive", "enforcing"),
    "log_level": ("debug", "info", "warning", "error"),
    "log_format": ("human", "json", "auto"),
}
_LISTEN_RIVALS = ("bind_address", "listen_port")
"""Settings whose values are also in ``listen``."""
_AT_LEAST = {
    "trace_one_in": 1,
    "scan_not_active_broker_interval": 1,
    "server_channel_max_idle_time_seconds": 1,
    "server_socket_backlog": 1,
    "fence_after_ms": 700,
    "election_timeout_ms": 300,
    "peer_heartbeat_ms": 10,
    "snapshot_entries": 100,
    "connection_loss_grace_ms": 0,
    "client_request_thread_pool_queue_capacity": 1,
    "default_thread_pool_queue_capacity": 1,
    "un_register_broker_queue_capacity": 1,
    "shutdown_wait_time_seconds": 0,
    "late_copy_ms": 0,
    "watch_history_bytes": 0,
    "route_cache_bytes": 0,
    "max_connections": 1,
    "max_connections_per_address": 0,
    "max_pending_per_connection": 1,
    "max_held_bytes": 33_554_432,
    "frame_timeout_millis": 100,
    "max_inflated_body_bytes": 1024,
    "max_state_bytes": 65_536,
    "max_kv_bytes": 65_536,
    "max_kv_namespace_bytes": 65_536,
    "max_broker_bytes": 65_536,
    "disk_reserve_bytes": 0,
}
AT_MOST = {"max_state_bytes": 1 << 36}  # the state takes about twice as many bytes of memory


def _described(settings: Settings, attribute: str) -> str:
    row = next(row for row in ROWS.values() if row.attribute == attribute)
    return f"{row.name}={row.show(settings.get(row))} ({settings.origins.get(attribute, 'default')})"


def check(settings: Settings) -> None:
    """Check bounds of single settings and rules between settings. Raises SettingError with every value and its source."""
    for attribute, choices in _CHOICES.items():
        if getattr(settings, attribute) not in choices:
            if attribute == "tls_server_mode":  # as in Java's TlsMode.parse, where any unknown mode means permissive
                settings.warnings.append(f"{_described(settings, attribute)}: unknown, permissive is used")
                settings.tls_server_mode = "permissive"
                continue
            raise SettingError(f"{_described(settings, attribute)}: give one of {', '.join(choices)}")
    for attribute, least in _AT_LEAST.items():
        value, most = getattr(settings, attribute), AT_MOST.get(attribute)
        if value < least or (most is not None and value > most):
            raise SettingError(f"{_described(settings, attribute)}: give {least} {f'to {most}' if most else 'or more'}")
    checked_zone(settings.zone)
    if not 0 <= settings.listen_port <= 65535:
        raise SettingError(f"{_described(settings, 'listen_port')}: give a port, 0 to 65535")
    for rival in _LISTEN_RIVALS:
        source = settings.origins.get(rival)
        # A file that was rewritten by an earlier version has all settings. So a setting with its default value does not count as
        # given.
        is_said = settings.listen and getattr(settings, rival) != Settings.__dataclass_fields__[rival].default
        if is_said and source is not None and source == settings.origins.get("listen"):
            both = f"{_described(settings, 'listen')} and {_described(settings, rival)}"
            raise SettingError(f"{both}: both set the address to listen on; leave one out")
    admin, listen = settings.admin_address, settings.listen_address
    _ = settings.health_address, settings.proxies  # both raise SettingError if they are malformed
    if admin and admin[1] and admin[1] == listen[1]:
        port = _described(settings, "listen" if settings.listen else "listen_port")
        raise SettingError(f"{_described(settings, 'admin_listen')} and {port}: give them different ports")
    if settings.tls_server_mode != "disabled" and not settings.tls_test_mode_enable:
        for one, other in (("tls_server_key_path", "tls_server_cert_path"), ("tls_server_cert_path", "tls_server_key_path")):
            if getattr(settings, one) and not getattr(settings, other):
                raise SettingError(f"{_described(settings, one)} and {_described(settings, other)}: give both or neither")
    for one, other in (("admin_tls_key_path", "admin_tls_cert_path"), ("admin_tls_cert_path", "admin_tls_key_path")):
        if getattr(settings, one) and not getattr(settings, other):
            raise SettingError(f"{_described(settings, one)} and {_described(settings, other)}: give both or neither")
    for switch, needed, remedy in (
        ("tls_server_auth_client", "tls_server_trust_cert_path", "name a trust file"),
        ("cluster_test", "address_server", "say where the address list is found"),
        ("zone_aware_addresses", "zone", "name the zone of this node"),
        ("admin_tls_trust_cert_path", "admin_tls_cert_path", "name the certificate of the admin port too"),
    ):
        if getattr(settings, switch) and not getattr(settings, needed):
            raise SettingError(f"{_described(settings, switch)} and {_described(settings, needed)}: {remedy}")
    if settings.access_policy == "enforce" and not settings.access_file:
        raise SettingError(
            f"{_described(settings, 'access_policy')} and {_described(settings, 'access_file')}: every request would be refused; "
            "name a file, or begin with accessPolicy=observe"
        )

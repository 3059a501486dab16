"""Every setting of a node: its name, type, default, bounds, and when a change takes effect.

RocketMQ's settings keep RocketMQ's names, types and defaults (``NamesrvConfig``, ``NettyServerConfig``, ``NettyClientConfig``
of 5.3.3) and are read from the same properties file as ours. The dataclass ``Settings`` is the only place where a setting is
declared; help, the answer of ``GET_NAMESRV_CONFIG`` (319), ``-p`` and the documentation are made from it.

Precedence: flag over environment (``NAMESRV_LISTEN_PORT``) over what was changed at run time (``RUN_TIME_FILE``) over file
over default. A node does not start with an invalid setting: the message names key, value and remedy. Two exceptions keep files
written for the Java server usable: an unknown key in the file only causes a warning unless it looks like a misspelt setting of
ours, and a malformed value of a RocketMQ setting is ignored with a warning, as ``MixAll.properties2Object`` does. A line of
``RUN_TIME_FILE`` that no run-time change can have written is also ignored with a warning, because no accepted change may
prevent a start.
"""

import dataclasses
import difflib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Any

from replicated_namesrv.address_list import check_change, checked_zone
from replicated_namesrv.errors import BodyError, SettingError
from replicated_namesrv.wire.properties import dump_properties, load_properties

NAMESRV, NETTY_SERVER, NETTY_CLIENT, OWN = "NamesrvConfig", "NettyServerConfig", "NettyClientConfig", "own"
Value = str | int | bool
RUN_TIME_FILE = "runtime.properties"
"""File in ``dataDir`` that contains only the run-time changes. The file given with -c is never written."""
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,19}")


def setting(default: Value, group: str, meaning: str, *, name: str = "", live: bool = False, replicated: bool = False) -> Any:
    """Declare a setting. ``live``: a change at run time (``UPDATE_NAMESRV_CONFIG``, 318) takes effect at once.

    ``replicated``: state or answers depend on it, so it is part of the replicated state.
    """
    metadata = {"group": group, "meaning": meaning, "name": name, "live": live or replicated, "replicated": replicated}
    return field(default=default, metadata=metadata)


def camel_case(snake: str) -> str:
    """``listen_port`` to ``listenPort``."""
    head, *tail = snake.split("_")
    return head + "".join(part.capitalize() for part in tail)


NEVER_BY_REMOTING = {
    *("electionTimeoutMs", "peerHeartbeatMs", "leaderPriority"),
    *("clusterId", "peers", "join", "peerListen", "peerDial", "peerSecretFile", "peerSecretAcceptFile"),
    *("fenceAfterMs", "noQuorumPolicy", "readConsistency"),
    *("connectionLossGraceMs", "lateCopyMs", "healthListen", "proxyProtocolFrom", "traceEndpoint", "zoneAwareAddresses"),
    *("adminTlsCertPath", "adminTlsKeyPath", "adminTlsKeyPassword", "adminTlsTrustCertPath"),
    *("accessPolicy", "accessFile", "accessKeysInPlainText", "auditLog"),
    *("peerTlsKeyPath", "peerTlsKeyPassword", "peerTlsCertPath", "peerTlsTrustCertPath"),
    *("mode", "listen", "nodeId", "dataDir", "adminListen", "adminTokenFile", "addressServer", "zone"),
    *("nameServerAddresses", "unitNameServerAddresses"),  # clients, commands and tokens are sent to these addresses
    *("tls.server.mode", "tls.server.keyPath", "tls.server.keyPassword", "tls.server.certPath", "tls.server.trustCertPath"),
    "tls.config.file",
    *("tls.test.mode.enable", "tls.server.need.client.auth", "tls.server.authClient"),
    *("useTLS", "tls.client.keyPath", "tls.client.keyPassword", "tls.client.certPath", "tls.client.authServer"),
    "tls.client.trustCertPath",
}
"""Settings that are always on the black list, because a client on the remoting port must not change access rules, nor what this
node reads or contacts."""


@dataclass(slots=True)
class Settings:
    """The settings of one node. Read an attribute; change only through ``update``."""

    # NamesrvConfig, in Java's order of declaration (-p prints it)
    rocketmq_home: str = setting("", NAMESRV, "Accepted for compatibility; nothing is read from it.", name="rocketmqHome")
    kv_config_path: str = setting("", NAMESRV, "File of the KV config (AP). Empty: kvConfig.json in dataDir.")
    config_store_path: str = setting(
        "", NAMESRV, "Shown for compatibility: the file given with -c. Run-time changes go to runtime.properties in dataDir."
    )
    product_env_name: str = setting(
        "center", NAMESRV, "The environment that clusterTest asks. addressServer gets this name and returns the address list."
    )
    cluster_test: bool = setting(False, NAMESRV, "If a route is not found, ask the environment productEnvName.")
    order_message_enable: bool = setting(False, NAMESRV, "Include orderTopicConf in route answers.", replicated=True)
    return_order_topic_config_to_broker: bool = setting(
        True, NAMESRV, "Answer a registration with the KV namespace ORDER_TOPIC_CONFIG.", replicated=True
    )
    client_request_thread_pool_nums: int = setting(8, NAMESRV, "Accepted, no effect: there is no such thread pool.")
    default_thread_pool_nums: int = setting(16, NAMESRV, "Accepted, no effect: there is no such thread pool.")
    client_request_thread_pool_queue_capacity: int = setting(
        50000, NAMESRV, "Maximum number of waiting route queries; above it the answer is code 2.", live=True
    )
    default_thread_pool_queue_capacity: int = setting(
        10000, NAMESRV, "Maximum number of other waiting requests; above it the answer is code 2.", live=True
    )
    scan_not_active_broker_interval: int = setting(5000, NAMESRV, "Milliseconds between two scans for silent brokers.")
    un_register_broker_queue_capacity: int = setting(
        3000, NAMESRV, "Maximum number of waiting unregistrations; above it the answer is code 1.", live=True
    )
    support_acting_master: bool = setting(
        False, NAMESRV, "While a group has no master, show the slave with the smallest id as master.", replicated=True
    )
    enable_all_topic_list: bool = setting(True, NAMESRV, "Answer GET_ALL_TOPIC_LIST_FROM_NAMESERVER (206).", replicated=True)
    enable_topic_list: bool = setting(True, NAMESRV, "Answer lists of topics by cluster or unit.", replicated=True)
    notify_min_broker_id_changed: bool = setting(
        False, NAMESRV, "Notify brokers (905) of a new smallest id in a group.", replicated=True
    )
    enable_controller_in_namesrv: bool = setting(
        False, NAMESRV, "Accepted with a warning; the HA controller is not part of this product."
    )
    need_wait_for_service: bool = setting(
        False, NAMESRV, "Refuse route queries for waitSecondsForService after the start.", live=True
    )
    wait_seconds_for_service: int = setting(45, NAMESRV, "Seconds for needWaitForService.", live=True)
    delete_topic_with_broker_registration: bool = setting(
        False, NAMESRV, "A registration removes the broker's topics that are not in it.", replicated=True
    )
    config_black_list: str = setting(
        "configBlackList;configStorePath;kvConfigPath", NAMESRV, "Keys that UPDATE_NAMESRV_CONFIG (318) cannot change."
    )

    # NettyServerConfig
    bind_address: str = setting("0.0.0.0", NETTY_SERVER, "Address that brokers and clients connect to.")
    listen_port: int = setting(9876, NETTY_SERVER, "Port that brokers and clients connect to; 0: a free port.")
    server_worker_threads: int = setting(8, NETTY_SERVER, "Accepted, no effect: there is no such thread pool.")
    server_callback_executor_threads: int = setting(0, NETTY_SERVER, "Accepted, no effect: there is no such thread pool.")
    server_selector_threads: int = setting(3, NETTY_SERVER, "Accepted, no effect: there is no such thread pool.")
    server_oneway_semaphore_value: int = setting(256, NETTY_SERVER, "Maximum number of waiting oneway pushes.")
    server_async_semaphore_value: int = setting(
        64, NETTY_SERVER, "Accepted, no effect: the server sends no asynchronous requests."
    )
    server_channel_max_idle_time_seconds: int = setting(
        120, NETTY_SERVER, "Seconds without traffic in either direction after which a connection is closed."
    )
    server_socket_snd_buf_size: int = setting(0, NETTY_SERVER, "SO_SNDBUF in bytes; 0: the default of the kernel.")
    server_socket_rcv_buf_size: int = setting(0, NETTY_SERVER, "SO_RCVBUF in bytes; 0: the default of the kernel.")
    write_buffer_high_water_mark: int = setting(
        0, NETTY_SERVER, "Unsent bytes at which the node stops reading from a connection; 0: 256 KiB."
    )
    write_buffer_low_water_mark: int = setting(
        0, NETTY_SERVER, "Unsent bytes at which the node reads from it again; 0: a quarter of the high mark."
    )
    server_socket_backlog: int = setting(1024, NETTY_SERVER, "Maximum number of connections that wait to be accepted.")
    server_netty_worker_group_enable: bool = setting(True, NETTY_SERVER, "Accepted, no effect: there is no worker group.")
    server_pooled_byte_buf_allocator_enable: bool = setting(
        True, NETTY_SERVER, "Accepted, no effect: there is no allocator to choose."
    )
    enable_shutdown_gracefully: bool = setting(
        False, NETTY_SERVER, "While the node stops, answer clients newer than 5.3.1 with GO_AWAY (1500).", live=True
    )
    shutdown_wait_time_seconds: int = setting(30, NETTY_SERVER, "Longest graceful stop, in seconds.", live=True)
    use_epoll_native_selector: bool = setting(False, NETTY_SERVER, "Accepted, no effect: the event loop chooses.")

    # NettyClientConfig: outgoing connections (code 905)
    client_worker_threads: int = setting(4, NETTY_CLIENT, "Accepted, no effect: there is no such thread pool.")
    client_callback_executor_threads: int = setting(2, NETTY_CLIENT, "Accepted, no effect: there is no such thread pool.")
    client_oneway_semaphore_value: int = setting(65535, NETTY_CLIENT, "Accepted, no effect.")
    client_async_semaphore_value: int = setting(65535, NETTY_CLIENT, "Accepted, no effect.")
    connect_timeout_millis: int = setting(
        3000, NETTY_CLIENT, "Time limit of a push of code 905 over TLS; without TLS it is 300 ms."
    )
    channel_not_active_interval: int = setting(60000, NETTY_CLIENT, "Accepted, no effect.")
    is_scan_available_name_srv: bool = setting(True, NETTY_CLIENT, "Accepted, no effect.")
    client_channel_max_idle_time_seconds: int = setting(
        120, NETTY_CLIENT, "Seconds after which an idle outgoing connection is closed."
    )
    client_socket_snd_buf_size: int = setting(0, NETTY_CLIENT, "Accepted, no effect.")
    client_socket_rcv_buf_size: int = setting(0, NETTY_CLIENT, "Accepted, no effect.")
    client_pooled_byte_buf_allocator_enable: bool = setting(False, NETTY_CLIENT, "Accepted, no effect.")
    client_close_socket_if_timeout: bool = setting(True, NETTY_CLIENT, "Accepted, no effect.")
    use_tls: bool = setting(
        False, NETTY_CLIENT, "Use TLS for pushes of code 905. The default is true if tls.server.mode=enforcing.", name="useTLS"
    )
    socks_proxy_config: str = setting("{}", NETTY_CLIENT, "Accepted, no effect.")
    disable_callback_executor: bool = setting(False, NETTY_CLIENT, "Accepted, no effect.")
    disable_netty_worker_group: bool = setting(False, NETTY_CLIENT, "Accepted, no effect.")
    max_reconnect_interval_time_seconds: int = setting(60, NETTY_CLIENT, "Accepted, no effect.")
    enable_reconnect_for_go_away: bool = setting(True, NETTY_CLIENT, "Accepted, no effect.")

    # settings of TLS, with the names of RocketMQ's system properties
    tls_server_mode: str = setting("permissive", OWN, "disabled, permissive or enforcing.", name="tls.server.mode")
    tls_test_mode_enable: bool = setting(
        True, OWN, "Use a self-signed certificate that is created in memory.", name="tls.test.mode.enable"
    )
    tls_server_need_client_auth: str = setting("none", OWN, "none, optional or require.", name="tls.server.need.client.auth")
    tls_server_key_path: str = setting("", OWN, "Private key, PEM.", name="tls.server.keyPath")
    tls_server_key_password: str = setting("", OWN, "Password of the private key.", name="tls.server.keyPassword")
    tls_server_cert_path: str = setting("", OWN, "Certificate chain, PEM.", name="tls.server.certPath")
    tls_server_auth_client: bool = setting(
        False, OWN, "Verify client certificates against trustCertPath.", name="tls.server.authClient"
    )
    tls_server_trust_cert_path: str = setting("", OWN, "Trusted certificates, PEM.", name="tls.server.trustCertPath")
    tls_client_key_path: str = setting("", OWN, "Private key for pushes (useTLS), PEM.", name="tls.client.keyPath")
    tls_client_key_password: str = setting("", OWN, "Password of tls.client.keyPath.", name="tls.client.keyPassword")
    tls_client_cert_path: str = setting(
        "", OWN, "Certificate chain that pushes present to brokers, PEM.", name="tls.client.certPath"
    )
    tls_client_auth_server: bool = setting(
        False, OWN, "Verify brokers' certificates against tls.client.trustCertPath.", name="tls.client.authServer"
    )
    tls_client_trust_cert_path: str = setting(
        "",
        OWN,
        "Certificates that brokers' certificates are verified against, PEM. Empty: those of the system.",
        name="tls.client.trustCertPath",
    )

    tls_config_file: str = setting(
        "/etc/rocketmq/tls.properties",
        OWN,
        "Optional file with tls.* settings. They override the file of -c, except tls.server.mode, which is ignored here.",
        name="tls.config.file",
    )

    # Ours
    mode: str = setting("ap", OWN, "ap: independent nodes; cp: nodes replicate every change with Raft.")
    cluster_id: str = setting("namesrv", OWN, "Name of the cluster (cp). Nodes of other clusters are refused.")
    peers: str = setting("", OWN, "All nodes of the cluster (cp), also this one: name=host:port,name=host:port,… in any order.")
    join: str = setting("", OWN, "For a new node of a running cluster (cp), instead of peers: name=host:port,… of some members.")
    peer_listen: str = setting("", OWN, "HOST:PORT on which this node listens for its peers (cp); empty: its address in peers.")
    peer_dial: str = setting(
        "", OWN, "name=host:port,… of nodes (also later members): connect to these addresses, not to their peer addresses."
    )
    peer_secret_file: str = setting(
        "",
        OWN,
        "Secret that all nodes share, in a file that other users cannot read; required unless peers are on loopback or use TLS.",
    )
    peer_secret_accept_file: str = setting(
        "", OWN, "File with another secret that peers may use, while the secret is replaced (cp). Read at the start."
    )
    peer_tls_key_path: str = setting("", OWN, "Private key of this node for TLS between peers (cp), PEM.")
    peer_tls_key_password: str = setting("", OWN, "Password of that key.")
    peer_tls_cert_path: str = setting(
        "", OWN, "Certificate chain of that key, PEM; nodeId is one of its DNS names. Changed files are read again."
    )
    peer_tls_trust_cert_path: str = setting("", OWN, "Authorities that signed all nodes' certificates, PEM.")
    election_timeout_ms: int = setting(
        300,
        OWN,
        "A node starts an election if it has had no contact with a leader for one to two times this value (cp). At least five "
        "times peerHeartbeatMs, and longer than a round trip between any two nodes. Set the same value on all nodes.",
    )
    peer_heartbeat_ms: int = setting(50, OWN, "Pause between two heartbeats of the leader to each node (cp).")
    leader_priority: str = setting(
        "",
        OWN,
        "Nodes that should lead, most preferred first: n1,n2 (cp). A leader transfers leadership to the first of them that keeps "
        "up. Set the same value on all nodes. Empty: any node.",
    )
    read_consistency: str = setting("linearizable", OWN, "Default read level (cp): linearizable, lease or stale.")
    fence_after_ms: int = setting(
        1_500,
        OWN,
        "A node that receives no confirmed read index for this time stops serving until it receives one (cp). Must be longer "
        "than an election.",
    )
    no_quorum_policy: str = setting(
        "fence", OWN, "What a node without a majority does (cp). fence: stop serving; serve-stale: answer from its own state."
    )
    connection_loss_grace_ms: int = setting(
        500, OWN, "A broker that has lost all its connections is removed if it opens none within this time (cp)."
    )
    late_copy_ms: int = setting(
        10_000,
        OWN,
        "A registration with an older data version is accepted if it is repeated after this time (cp). The default is the "
        "shortest registration period that RocketMQ's brokers permit.",
    )
    watch_history_bytes: int = setting(
        16_777_216,
        OWN,
        "Bytes of changes that are kept for /v1/watch. A watcher that needs an older change has to read the state again.",
    )
    listen: str = setting("", OWN, "HOST:PORT that brokers and clients connect to; empty: bindAddress and listenPort.")
    node_id: str = setting("n1", OWN, "Name of this node, unique in its cluster.")
    data_dir: str = setting("", OWN, "Folder of all files that this node writes. Empty: ~/namesrv.")
    admin_listen: str = setting("", OWN, "HOST:PORT of the admin port; empty: 127.0.0.1 and listenPort plus ten; 'off': none.")
    admin_token_file: str = setting(
        "",
        OWN,
        "File whose first line is the token of the admin port. If set, reads and changes of the state need it, even on loopback.",
    )
    admin_tls_cert_path: str = setting(
        "", OWN, "Certificate chain of the admin port, PEM. If set, the port speaks only HTTPS. Reloaded when the files change."
    )
    admin_tls_key_path: str = setting("", OWN, "Private key of that certificate, PEM.")
    admin_tls_key_password: str = setting("", OWN, "Password of that key.")
    admin_tls_trust_cert_path: str = setting(
        "",
        OWN,
        "Authorities of client certificates at the admin port, PEM. If set, clients may identify themselves by certificate.",
    )
    access_policy: str = setting(
        "open",
        OWN,
        "open: everyone may do everything, as in RocketMQ; observe: record requests without permission; enforce: refuse them.",
    )
    access_file: str = setting(
        "", OWN, "TOML file with identities and roles, for accessPolicy. Reloaded when it changes. Empty: no caller has a role."
    )
    access_keys_in_plain_text: bool = setting(
        False,
        OWN,
        "Accept signatures of access keys also without TLS. Anyone who reads the traffic can then use them for other requests.",
    )
    audit_log: str = setting(
        "",
        OWN,
        "File of the audit log, relative to dataDir. Empty: audit.log. off: none. There is none with accessPolicy=open.",
    )
    health_listen: str = setting("", OWN, "HOST:PORT that serves only /livez and /readyz, for probes; empty: none.")
    trace_endpoint: str = setting("", OWN, "OTLP/HTTP URL of a collector (http://127.0.0.1:4318/v1/traces); empty: no traces.")
    trace_one_in: int = setting(100, OWN, "One of this number of requests is traced; 1: every request.")
    proxy_protocol_from: str = setting(
        "", OWN, "CIDRs, comma-separated, whose PROXY headers are trusted; 0.0.0.0/0,::/0: all, as in Java; empty: none."
    )
    name_server_addresses: str = setting(
        "", OWN, "Address list host:port;host:port that /rocketmq/nsaddr returns; empty: only this node.", live=True
    )
    unit_name_server_addresses: str = setting(
        "", OWN, "Address lists that /rocketmq/nsaddr-UNIT returns: unit=host:port;host:port, separated by commas.", live=True
    )
    zone: str = setting("", OWN, "Zone of this node, such as its data centre: letters, digits, '.', '_' and '-'. At most 100.")
    zone_aware_addresses: bool = setting(
        False, OWN, "With mode=cp, /rocketmq/nsaddr returns only nodes of this node's zone, unless none of them serves."
    )
    address_server: str = setting("", OWN, "http://HOST[:PORT]/PATH that returns the address list of productEnvName.")
    log_level: str = setting("info", OWN, "debug, info, warning or error.")
    log_format: str = setting("auto", OWN, "human, json or auto (human on a terminal, otherwise JSON).")
    route_cache_bytes: int = setting(
        134_217_728, OWN, "Bytes of encoded route answers kept in memory. The least recently used answers are evicted first."
    )
    max_connections: int = setting(20_000, OWN, "Maximum number of open connections; further ones are closed at once.")
    max_connections_per_address: int = setting(
        0, OWN, "Maximum number of connections from one address that is not in proxyProtocolFrom; 0: maxConnections minus 256."
    )
    max_pending_per_connection: int = setting(
        1024, OWN, "Unanswered requests of one connection at which the node stops reading from it."
    )
    max_held_bytes: int = setting(
        268_435_456,
        OWN,
        "Maximum bytes in memory for incomplete frames and unread answers of all connections. The connection with the "
        "oldest ones is closed first.",
    )
    frame_timeout_millis: int = setting(30_000, OWN, "A connection is closed if a frame takes longer to arrive.")
    max_inflated_body_bytes: int = setting(
        67_108_864, OWN, "A compressed registration is refused if its body inflates to more bytes."
    )
    max_state_bytes: int = setting(
        1_073_741_824, OWN, "Maximum bytes of registered and stored data, up to 64 GiB. Requests that would add more are refused."
    )
    max_kv_bytes: int = setting(268_435_456, OWN, "Maximum bytes of the KV config. A put that would add more is refused.")
    max_kv_namespace_bytes: int = setting(134_217_728, OWN, "Maximum bytes of one namespace of the KV config.")
    disk_reserve_bytes: int = setting(
        67_108_864,
        OWN,
        "Disk space to keep free, in addition to room for one more copy of the state. Below it, requests that add data "
        "are refused (ap: only KV writes).",
    )
    max_broker_bytes: int = setting(
        33_554_432,
        OWN,
        "Maximum bytes of one broker name, including topics of earlier registrations. Registrations above it are refused.",
    )

    black_list: frozenset[str] = field(default=frozenset(), repr=False)
    extra: dict[str, str] = field(default_factory=dict, repr=False)
    """Keys of the -c file that are not settings of ours. ``GET_NAMESRV_CONFIG`` (319) shows them, as Java does."""
    origins: dict[str, str] = field(default_factory=dict, repr=False)
    """Source of each attribute's value: flag, environment or file. An attribute that is absent has its default."""
    run_time: dict[str, str] = field(default_factory=dict, repr=False)
    """Run-time changes by the name in the properties file: the content of ``run_time_file``."""
    warnings: list[str] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        home = Path(self.data_dir).expanduser() if self.data_dir else Path.home() / "namesrv"
        self.kv_config_path = self.kv_config_path or str(home / "kvConfig.json")
        self.config_store_path = self.config_store_path or str(home / "namesrv.properties")
        fixed = {"configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome"} | NEVER_BY_REMOTING
        if "use_tls" not in self.origins:
            self.use_tls = self.tls_server_mode == "enforcing"
        self.black_list = frozenset(fixed | {key for key in self.config_black_list.split(";") if key})

    @property
    def data_path(self) -> Path:
        """Folder of all files that this node writes."""
        return Path(self.data_dir).expanduser() if self.data_dir else Path.home() / "namesrv"

    @property
    def run_time_file(self) -> Path:
        """File that run-time changes are written to and read from at the start."""
        return self.data_path / RUN_TIME_FILE

    @property
    def listen_address(self) -> tuple[str, int]:
        """(host, port) for peers. Port 0: the kernel chooses."""
        return parse_address("listen", self.listen) if self.listen else (self.bind_address, self.listen_port)

    @property
    def admin_address(self) -> tuple[str, int] | None:
        """(host, port) of the admin port; None if it is off."""
        if self.admin_listen == "off":
            return None
        if self.admin_listen:
            return parse_address("adminListen", self.admin_listen)
        port = self.listen_address[1]
        return "127.0.0.1", port + 10 if port else 0

    @property
    def health_address(self) -> tuple[str, int] | None:
        """(host, port) of the health server; None if there is none."""
        return parse_address("healthListen", self.health_listen) if self.health_listen else None

    @property
    def proxies(self) -> "tuple[IPv4Network | IPv6Network, ...]":
        """Networks whose PROXY headers are trusted. Raises SettingError."""
        try:
            return tuple(ip_network(part.strip()) for part in self.proxy_protocol_from.split(",") if part.strip())
        except ValueError as cause:
            raise SettingError(f"proxyProtocolFrom={self.proxy_protocol_from}: {cause}; give 10.0.0.0/8,192.0.2.1") from None

    def get(self, row: "Row") -> Value:
        """Current value of a setting."""
        value: Value = getattr(self, row.attribute)
        return value

    def update(self, values: Mapping[str, str]) -> dict[str, Value]:
        """Apply values as ``Configuration.update`` does: unknown keys and malformed values are ignored.

        Returns the changed attributes with their new values. The caller persists them.
        """
        moved: dict[str, Value] = {}
        for key, text in values.items():
            row = ROWS.get(key)
            if row is None:
                continue
            try:
                value = row.parse(text)
            except ValueError:
                continue
            if value != self.get(row):
                setattr(self, row.attribute, value)
                moved[row.attribute] = value
        return moved

    def change(self, values: Mapping[str, str]) -> dict[str, Value]:
        """``update`` for a change at run time. Values that it changes are also recorded in ``run_time``, the content of
        ``run_time_file``. Unknown keys of the -c file change as well, as in Java.
        """
        for key, text in values.items():
            if self.extra.get(key, text) != text:
                self.extra[key] = self.run_time[key] = text
        moved = self.update(values)
        self.run_time |= {row.name: row.show(moved[row.attribute]) for row in ROWS.values() if row.attribute in moved}
        return moved

    def text(self) -> str:
        """The answer to ``GET_NAMESRV_CONFIG`` (319): sorted ``key=value`` lines of all settings (NettyClientConfig: those in
        the file) and the file's other keys, without passwords.
        """
        return dump_properties(self._shown(row for row in ROWS.values() if not row.secret))

    def _shown(self, rows: "Iterable[Row]") -> dict[str, str]:
        known = {row.name: row.show(self.get(row)) for row in rows if row.group != NETTY_CLIENT or self._is_in_file(row)}
        return dict(sorted({**self.extra, **known}.items()))

    def _is_in_file(self, row: "Row") -> bool:
        return self.origins.get(row.attribute, "").startswith("file ")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table of settings."""

    attribute: str
    name: str
    kind: type
    default: Value
    group: str
    meaning: str
    live: bool
    replicated: bool

    @property
    def secret(self) -> bool:
        """Whether it is a password. Passwords are never shown."""
        return "password" in self.name.lower()

    def parse(self, text: str) -> Value:
        """Value of a properties text. Raises ValueError. Booleans are true only for "true" in any case, as in Java."""
        if self.kind is bool:
            if self.group == OWN and text.lower() not in ("true", "false"):
                raise ValueError("give true or false")
            return text.lower() == "true"
        if self.kind is int:
            if _WHOLE_NUMBER.fullmatch(text.strip()) is None:
                raise ValueError("give a whole number")
            return int(text)
        return text.strip()

    def is_plain(self, text: str) -> bool:
        """False for a boolean text that is neither true nor false: RocketMQ reads it as false, which was hardly intended."""
        return self.kind is not bool or text.lower() in ("true", "false")

    def parse_strictly(self, text: str) -> Value:
        """Like ``parse``, for a text that RocketMQ never reads. Also raises ValueError if ``is_plain`` is false."""
        if not self.is_plain(text):
            raise ValueError("give true or false")
        return self.parse(text)

    def parse_change(self, text: str) -> Value:
        """Value of a run-time change. Raises ValueError if it is malformed or outside of ``_RUN_TIME_RANGES``."""
        value = self.parse_strictly(text)
        least, most = _RUN_TIME_RANGES.get(self.attribute, (-(2**31), 2**31 - 1))
        if isinstance(value, int) and not least <= value <= most:
            raise ValueError(f"give {least} to {most}")
        check_change(self.name, text)
        return value

    def show(self, value: Value) -> str:
        """A value as text, as Java prints it."""
        return str(value).lower() if isinstance(value, bool) else str(value)


def _rows() -> Iterator[Row]:
    for f in dataclasses.fields(Settings):
        m = f.metadata
        if m:
            assert isinstance(f.default, str | int)
            name = m["name"] or camel_case(f.name)
            yield Row(f.name, name, type(f.default), f.default, m["group"], m["meaning"], m["live"], m["replicated"])


ROWS: dict[str, Row] = {row.name: row for row in _rows()}
"""Every setting by its name in the properties file, in the order of declaration."""

ENVIRONMENT_PREFIX = "NAMESRV_"
_FOREIGN_ENVIRONMENT = ("NAMESRV_ADDR", "NAMESRV_PORT", "NAMESRV_SERVICE_")
"""Beginnings of variables that are not settings. The first is RocketMQ's own client variable; Kubernetes sets the others for a
service with the name namesrv."""
_OPERATORS_VARIABLES = ("NAMESRV_ADMIN", "NAMESRV_ADMIN_CA")
"""Variables that only commands read."""


def environment_name(row: Row) -> str:
    """``listenPort`` to ``NAMESRV_LISTEN_PORT``."""
    return ENVIRONMENT_PREFIX + row.attribute.upper()


def parse_address(key: str, text: str) -> tuple[str, int]:
    """HOST:PORT to its parts. Raises SettingError naming the key."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise SettingError(f"{key}={text}: not HOST:PORT; give for example 127.0.0.1:9876")
    return host.strip("[]"), int(port)


def _nearest(key: str) -> str:
    found = difflib.get_close_matches(key, ROWS, n=1, cutoff=0.8)
    return f"; did you mean {found[0]}?" if found else ""


def _parse(row: Row, text: str, source: str) -> Value:
    try:
        return row.parse_strictly(text)
    except ValueError as cause:
        kind = {int: "a whole number", bool: "true or false"}.get(row.kind, str(cause))
        raise SettingError(f"{row.name}={text} ({source}): give {kind}") from None


def _from_file(path: str, taken: dict[str, Value], origins: dict[str, str], warnings: list[str]) -> dict[str, str]:
    extra: dict[str, str] = {}
    for key, text in load_properties(Path(path).read_bytes()).items():
        row = ROWS.get(key)
        if row is None:
            near = difflib.get_close_matches(key, [r.name for r in ROWS.values() if r.group == OWN], n=1, cutoff=0.8)
            if near:
                raise SettingError(f"{key}={text} ({path}): unknown setting; did you mean {near[0]}?")
            warnings.append(f"{key}={text} ({path}): not a setting of this name server; it is shown but has no effect")
            extra[key] = text
            continue
        try:
            taken[row.attribute] = row.parse(text)
            origins[row.attribute] = f"file {path}"
            if not row.is_plain(text):
                warnings.append(f"{key}={text} ({path}): neither true nor false; it counts as false")
        except ValueError:
            if row.group == OWN:
                _parse(row, text, path)
            warnings.append(f"{key}={text} ({path}): malformed; the default {row.show(row.default)} is used")
    return extra


def _from_run_time_file(
    path: Path, extra: dict[str, str], taken: dict[str, Value], origins: dict[str, str], warnings: list[str]
) -> dict[str, str]:
    """The run-time changes; flags and environment override them. Raises SettingError if the file cannot be read."""
    changes: dict[str, str] = {}
    try:
        lines = load_properties(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return changes
    except (OSError, BodyError) as cause:
        reason = cause.strerror if isinstance(cause, OSError) else str(cause)
        raise SettingError(f"{path}: {reason}; correct it, or remove it to undo the changes made at run time") from cause
    for key, text in lines.items():
        row = ROWS.get(key)
        if row is None and key in extra:
            extra[key] = changes[key] = text
            continue
        try:
            if row is None or not row.live:
                raise ValueError("it cannot change at run time")
            value = row.parse_change(text)
        except ValueError as cause:
            warnings.append(f"{key}={text} ({path}): ignored; {cause}")
            continue
        changes[key] = text
        if origins.get(row.attribute, "file ").startswith("file "):
            taken[row.attribute], origins[row.attribute] = value, f"file {path}"
    return changes


def _from_tls_file(taken: dict[str, Value], origins: dict[str, str]) -> None:
    """``TlsHelper.extractTlsConfigFromFile``; flags and environment override it."""
    path = Path(str(taken.get("tls_config_file", Settings.__dataclass_fields__["tls_config_file"].default)))
    if not path.is_file():
        return
    for key, text in load_properties(path.read_bytes()).items():
        row = ROWS.get(key)
        if row is None or not key.startswith("tls.") or row.attribute in ("tls_server_mode", "tls_config_file"):
            continue
        if not origins.get(row.attribute, "file").startswith("file"):
            continue
        taken[row.attribute] = _parse(row, text, str(path))
        origins[row.attribute] = f"file {path}"


def _from_environment(environment: Mapping[str, str], taken: dict[str, Value], origins: dict[str, str]) -> None:
    by_variable = {environment_name(row): row for row in ROWS.values()}
    for variable, text in environment.items():
        if not variable.startswith(ENVIRONMENT_PREFIX):
            continue
        row = by_variable.get(variable)
        if row is None:
            if variable.startswith(_FOREIGN_ENVIRONMENT) or variable in _OPERATORS_VARIABLES:
                continue
            near = difflib.get_close_matches(variable, by_variable, n=1, cutoff=0.8)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise SettingError(f"{variable}={text}: unknown setting in the environment{hint}; unset it")
        taken[row.attribute] = _parse(row, text, variable)
        origins[row.attribute] = f"environment {variable}"


def load_settings(
    file: str | None = None, flags: Mapping[str, str] | None = None, environment: Mapping[str, str] | None = None
) -> Settings:
    """Settings from flags (name in the properties file to text) over environment over run-time changes over the properties
    ``file``.

    Raises SettingError (unknown, malformed or contradictory), OSError (the file cannot be read), BodyError (it is not a
    properties text).
    """
    taken: dict[str, Value] = {}
    origins: dict[str, str] = {}
    warnings: list[str] = []
    extra: dict[str, str] = {}
    if file is not None:
        extra = _from_file(file, taken, origins, warnings)
        taken["config_store_path"] = file
    _from_environment(os.environ if environment is None else environment, taken, origins)
    for key, text in (flags or {}).items():
        row = ROWS.get(key)
        if row is None:
            raise SettingError(
                f"{key}={text}: unknown setting{_nearest(key)}; 'namesrv serve --help' names the page that lists them"
            )
        taken[row.attribute] = _parse(row, text, "flag")
        origins[row.attribute] = "flag"
    _from_tls_file(taken, origins)
    run_time_file = Settings(data_dir=str(taken.get("data_dir", ""))).run_time_file
    if file is not None and Path(file).resolve() == run_time_file.resolve():
        raise SettingError(f"-c {file}: run-time changes are written to this file; give the settings in another one")
    run_time = _from_run_time_file(run_time_file, extra, taken, origins, warnings)
    values: dict[str, Any] = dict(taken)  # values by attribute, already parsed
    result = Settings(**values, extra=extra, origins=origins, run_time=run_time, warnings=warnings)
    check(result)
    return result


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
"""Settings whose values ``listen`` also gives."""
_AT_LEAST = {
    "trace_one_in": 1,
    "scan_not_active_broker_interval": 1,
    "server_channel_max_idle_time_seconds": 1,
    "server_socket_backlog": 1,
    "fence_after_ms": 700,
    "election_timeout_ms": 300,
    "peer_heartbeat_ms": 10,
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

_RUN_TIME_RANGES = {
    "client_request_thread_pool_queue_capacity": (1_000, 1_000_000),
    "default_thread_pool_queue_capacity": (1_000, 1_000_000),
    "un_register_broker_queue_capacity": (100, 1_000_000),
    "wait_seconds_for_service": (0, 45),
    "shutdown_wait_time_seconds": (0, 300),
}
"""Range of a run-time change. It is narrower than the range in a file, because every client on the remoting port can send a
change, and no value may stop the node from serving. The 45 s for waitSecondsForService are RocketMQ's default."""


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

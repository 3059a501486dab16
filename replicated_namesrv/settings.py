"""Every setting of a node: its name, type, default, and when a change takes effect.

RocketMQ's settings keep RocketMQ's names, types and defaults (``NamesrvConfig``, ``NettyServerConfig``, ``NettyClientConfig``
of 5.3.3) and are read from the same properties file as ours. The dataclass ``Settings`` is the only place where a setting is
declared; help, the answer of ``GET_NAMESRV_CONFIG`` (319), ``-p`` and the documentation are made from it.

``settings_sources.py`` reads the settings, and ``settings_checks.py`` has their bounds.
"""

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Any

from replicated_namesrv.address_list import check_change, is_host
from replicated_namesrv.errors import SettingError
from replicated_namesrv.wire.properties import dump_properties

NAMESRV, NETTY_SERVER, NETTY_CLIENT, OWN = "NamesrvConfig", "NettyServerConfig", "NettyClientConfig", "own"
Value = str | int | bool
RUN_TIME_FILE = "runtime.properties"
"""File in ``dataDir`` that contains only the run-time changes. The file given with -c is never written."""
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,19}")
INT_MAX, LONG_MAX = 2**31 - 1, 2**63 - 1
"""Largest values of Java's ``int`` and ``long``."""
_LONGS = {"scan_not_active_broker_interval", "channel_not_active_interval", "max_reconnect_interval_time_seconds"}
"""RocketMQ's numbers that are a ``long``. The others are an ``int``."""
_SECRET = re.compile("pas+[wp]|secret|token|credential", re.IGNORECASE)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_PORT = re.compile(r"[0-9]{1,5}")
_SHOWN_CHARACTERS = 300
"""Number of characters of a malformed address in an error."""


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
    *("electionTimeoutMs", "peerHeartbeatMs", "leaderPriority", "snapshotEntries"),
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
    """The settings of one node. Read an attribute; change only through ``update``, ``change`` or ``reread``."""

    # NamesrvConfig, in Java's order of declaration (-p prints it)
    rocketmq_home: str = setting("", NAMESRV, "Accepted for compatibility; nothing is read from it.", name="rocketmqHome")
    kv_config_path: str = setting("", NAMESRV, "File of the KV config (AP). Empty: kvConfig.json in dataDir.")
    config_store_path: str = setting(
        "", NAMESRV, "Shown for compatibility: the file given with -c. Run-time changes go to runtime.properties in dataDir."
    )
    product_env_name: str = setting(
        "center",
        NAMESRV,
        "Name of the other environment whose name servers clusterTest asks. addressServer returns their addresses.",
    )
    cluster_test: bool = setting(False, NAMESRV, "If a route is not found, ask the name servers of productEnvName.")
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
        False,
        NAMESRV,
        "Send NOTIFY_MIN_BROKER_ID_CHANGE (905) to the brokers of a group whose smallest id changed.",
        replicated=True,
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
    server_oneway_semaphore_value: int = setting(
        256, NETTY_SERVER, "Maximum number of NOTIFY_MIN_BROKER_ID_CHANGE (905) that wait to be sent."
    )
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
        0, NETTY_SERVER, "Unsent bytes at which the node reads from the connection again; 0: a quarter of the high mark."
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

    # NettyClientConfig: outgoing connections, for ``NOTIFY_MIN_BROKER_ID_CHANGE`` (905)
    client_worker_threads: int = setting(4, NETTY_CLIENT, "Accepted, no effect: there is no such thread pool.")
    client_callback_executor_threads: int = setting(2, NETTY_CLIENT, "Accepted, no effect: there is no such thread pool.")
    client_oneway_semaphore_value: int = setting(65535, NETTY_CLIENT, "Accepted, no effect.")
    client_async_semaphore_value: int = setting(65535, NETTY_CLIENT, "Accepted, no effect.")
    connect_timeout_millis: int = setting(
        3000, NETTY_CLIENT, "Time limit for sending NOTIFY_MIN_BROKER_ID_CHANGE (905) over TLS; without TLS it is 300 ms."
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
        False,
        NETTY_CLIENT,
        "Send NOTIFY_MIN_BROKER_ID_CHANGE (905) over TLS. If not set: true with tls.server.mode=enforcing.",
        name="useTLS",
    )
    socks_proxy_config: str = setting("{}", NETTY_CLIENT, "Accepted, no effect.")
    disable_callback_executor: bool = setting(False, NETTY_CLIENT, "Accepted, no effect.")
    disable_netty_worker_group: bool = setting(False, NETTY_CLIENT, "Accepted, no effect.")
    max_reconnect_interval_time_seconds: int = setting(60, NETTY_CLIENT, "Accepted, no effect.")
    enable_reconnect_for_go_away: bool = setting(True, NETTY_CLIENT, "Accepted, no effect.")

    # settings of TLS, with the names of RocketMQ's system properties
    tls_server_mode: str = setting(
        "permissive",
        OWN,
        "TLS of brokers and clients. disabled: TLS is refused; permissive: TLS and plain text are accepted; enforcing: TLS is "
        "required.",
        name="tls.server.mode",
    )
    tls_test_mode_enable: bool = setting(
        True, OWN, "Use a self-signed certificate that is created in memory.", name="tls.test.mode.enable"
    )
    tls_server_need_client_auth: str = setting(
        "none",
        OWN,
        "Whether clients present a certificate: none, optional or require. Needs tls.server.authClient=true.",
        name="tls.server.need.client.auth",
    )
    tls_server_key_path: str = setting("", OWN, "Private key, PEM.", name="tls.server.keyPath")
    tls_server_key_password: str = setting("", OWN, "Password of the private key.", name="tls.server.keyPassword")
    tls_server_cert_path: str = setting("", OWN, "Certificate chain, PEM.", name="tls.server.certPath")
    tls_server_auth_client: bool = setting(
        False, OWN, "Verify client certificates against tls.server.trustCertPath.", name="tls.server.authClient"
    )
    tls_server_trust_cert_path: str = setting("", OWN, "Trusted certificates, PEM.", name="tls.server.trustCertPath")
    tls_client_key_path: str = setting(
        "", OWN, "Private key for connections to brokers (useTLS), PEM.", name="tls.client.keyPath"
    )
    tls_client_key_password: str = setting("", OWN, "Password of tls.client.keyPath.", name="tls.client.keyPassword")
    tls_client_cert_path: str = setting("", OWN, "Certificate chain for connections to brokers, PEM.", name="tls.client.certPath")
    tls_client_auth_server: bool = setting(
        False, OWN, "Verify certificates of brokers against tls.client.trustCertPath.", name="tls.client.authServer"
    )
    tls_client_trust_cert_path: str = setting(
        "",
        OWN,
        "Trusted certificates for tls.client.authServer, PEM. Empty: those of the system.",
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
    peers: str = setting(
        "", OWN, "The nodes that form a new cluster (cp), this one included: name=host:port,name=host:port,… in any order."
    )
    join: str = setting("", OWN, "[name=]host:port,… of some members of a running cluster (cp), instead of peers.")
    peer_listen: str = setting("", OWN, "HOST:PORT on which this node listens for its peers (cp); empty: its address in peers.")
    peer_dial: str = setting(
        "",
        OWN,
        "name=host:port,… for some peers: this node connects to a peer at this address, instead of the peer's own address. Nodes "
        "that are not members yet are allowed.",
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
    peer_tls_key_password: str = setting("", OWN, "Password of peerTlsKeyPath.")
    peer_tls_cert_path: str = setting(
        "", OWN, "Certificate chain of peerTlsKeyPath, PEM. nodeId must be one of its DNS names. Changed files are read again."
    )
    peer_tls_trust_cert_path: str = setting("", OWN, "Authorities that signed all nodes' certificates, PEM.")
    election_timeout_ms: int = setting(
        300,
        OWN,
        "A node starts an election if it has had no contact with a leader for one to two times this value (cp). At least 300, at "
        "least five times peerHeartbeatMs, and longer than a round trip between any two nodes. Set the same value on all nodes.",
    )
    peer_heartbeat_ms: int = setting(50, OWN, "Pause between two heartbeats of the leader to each node (cp).")
    leader_priority: str = setting(
        "",
        OWN,
        "Nodes that should lead, most preferred first: n1,n2 (cp). A leader transfers leadership to the first of them that keeps "
        "up. Set the same value on all nodes. Empty: any node.",
    )
    snapshot_entries: int = setting(
        50_000,
        OWN,
        "Number of log entries after which a node writes a snapshot and drops the log before it (cp). More entries: fewer "
        "snapshots, more memory, and longer starts.",
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
        500, OWN, "A broker that closed all its connections is removed if it opens none within this time (cp)."
    )
    late_copy_ms: int = setting(
        10_000,
        OWN,
        "A registration whose data version is older than the stored one is accepted if it is repeated after this time (cp). The "
        "default is the shortest registration period that RocketMQ's brokers permit.",
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
    admin_tls_key_path: str = setting("", OWN, "Private key of adminTlsCertPath, PEM.")
    admin_tls_key_password: str = setting("", OWN, "Password of adminTlsKeyPath.")
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
    trace_one_in: int = setting(100, OWN, "One request in this many is traced; 1: every request.")
    proxy_protocol_from: str = setting(
        "", OWN, "Proxies whose PROXY headers are trusted: CIDRs, comma-separated; 0.0.0.0/0,::/0: all, as in Java; empty: none."
    )
    name_server_addresses: str = setting(
        "",
        OWN,
        "Address list host:port;host:port that /rocketmq/nsaddr returns; empty: this node (ap), the nodes that serve (cp).",
        live=True,
    )
    unit_name_server_addresses: str = setting(
        "", OWN, "Address lists that /rocketmq/nsaddr-UNIT returns: unit=host:port;host:port, separated by commas.", live=True
    )
    zone: str = setting("", OWN, "Zone of this node, such as its data centre: at most 100 letters, digits, '.', '_' and '-'.")
    zone_aware_addresses: bool = setting(
        False,
        OWN,
        "With mode=cp and no nameServerAddresses, /rocketmq/nsaddr returns only nodes of this node's zone, unless none serves.",
    )
    address_server: str = setting(
        "",
        OWN,
        "http://HOST[:PORT]/PATH for clusterTest. The node appends '-' and productEnvName, and gets an address list from there.",
    )
    log_level: str = setting("info", OWN, "debug, info, warning or error.")
    log_format: str = setting("auto", OWN, "human, json or auto (human on a terminal, otherwise JSON).")
    route_cache_bytes: int = setting(
        134_217_728, OWN, "Bytes of encoded route answers kept in memory. The least recently used answers are evicted first."
    )
    max_connections: int = setting(20_000, OWN, "Maximum number of open connections; further ones are closed at once.")
    max_connections_per_address: int = setting(
        0,
        OWN,
        "Maximum number of connections from one address, unless it is in proxyProtocolFrom. 0: maxConnections minus 256, "
        "or minus an eighth of maxConnections if an eighth is less than 256.",
    )
    max_pending_per_connection: int = setting(
        1024, OWN, "Unanswered requests of one connection at which the node stops reading from it."
    )
    max_held_bytes: int = setting(
        268_435_456,
        OWN,
        "Maximum bytes in memory for incomplete frames and unread answers of all connections. The connection with the "
        "oldest frame or answer is closed first.",
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
        "Maximum bytes of data registered under one broker name, topics of earlier registrations included. Registrations "
        "that exceed it are refused.",
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
        """(host, port) for brokers and clients. Port 0: the kernel chooses."""
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

    def reread(self, run_time: Mapping[str, str]) -> None:
        """``run_time_file`` was read again, and its values of this node's settings are in force. Other keys keep their entries,
        because reading the file again does not change their values."""

        def is_reread(name: str) -> bool:
            row = ROWS.get(name)
            return row is not None and row.live and not row.replicated

        kept = {name: text for name, text in self.run_time.items() if not is_reread(name)}
        self.run_time = kept | {name: text for name, text in run_time.items() if is_reread(name)}

    def text(self) -> str:
        """The answer to ``GET_NAMESRV_CONFIG`` (319): sorted ``key=value`` lines of all settings (NettyClientConfig: those in
        the file) and the file's other keys, without passwords and keys that may be secrets.
        """
        return dump_properties(self._shown(row for row in ROWS.values() if not row.secret))

    def _shown(self, rows: "Iterable[Row]") -> dict[str, str]:
        known = {row.name: row.show(self.get(row)) for row in rows if row.group != NETTY_CLIENT or self._is_in_file(row)}
        others = {key: text for key, text in self.extra.items() if not may_be_secret(key)}
        return dict(sorted({**others, **known}.items()))

    def _is_in_file(self, row: "Row") -> bool:
        return self.origins.get(row.attribute, "").startswith("file ")


_RUN_TIME_RANGES = {
    "client_request_thread_pool_queue_capacity": (1_000, 1_000_000),
    "default_thread_pool_queue_capacity": (1_000, 1_000_000),
    "un_register_broker_queue_capacity": (100, 1_000_000),
    "wait_seconds_for_service": (0, 45),
    "shutdown_wait_time_seconds": (0, 300),
}
"""Range of a run-time change. It is narrower than the range in a file, because every client on the remoting port can send a
change, and no value may stop the node from serving. The 45 s for waitSecondsForService are RocketMQ's default."""


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
        """Value of a properties text. Raises ValueError. As in Java, booleans are true only for "true" in any case, and numbers
        have the range of their type."""
        if self.kind is bool:
            if self.group == OWN and text.lower() not in ("true", "false"):
                raise ValueError("give true or false")
            return text.lower() == "true"
        if self.kind is int:
            if _WHOLE_NUMBER.fullmatch(text.strip()) is None:
                raise ValueError("give a whole number")
            value, most = int(text), LONG_MAX if self.group == OWN or self.attribute in _LONGS else INT_MAX
            if not -most - 1 <= value <= most:
                raise ValueError(f"give a whole number of at most {most}")
            return value
        value_text = text.strip()
        if has_control_character(value_text):  # a NUL in a path would raise ValueError where the path is used
            raise ValueError("give a text without control characters")
        return value_text

    def is_plain(self, text: str) -> bool:
        """False for a boolean text that is neither true nor false. RocketMQ reads it as false, which is probably not intended."""
        return self.kind is not bool or text.lower() in ("true", "false")

    def parse_strictly(self, text: str) -> Value:
        """Like ``parse``, for a text that RocketMQ never reads. Also raises ValueError if ``is_plain`` is false."""
        if not self.is_plain(text):
            raise ValueError("give true or false")
        return self.parse(text)

    def parse_change(self, text: str) -> Value:
        """Value of a run-time change. Raises ValueError if it is malformed or outside of ``_RUN_TIME_RANGES``."""
        value = self.parse_strictly(text)
        least, most = _RUN_TIME_RANGES.get(self.attribute, (-INT_MAX - 1, INT_MAX))
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


def has_control_character(text: str) -> bool:
    """Whether ``text`` could become more than one line of a properties file, or control a terminal."""
    return _CONTROL.search(text) is not None


def may_be_secret(key: str) -> bool:
    """Whether the value of a key that is not a setting may be a secret (a misspelt setting). Such a value is not shown."""
    return _SECRET.search(key) is not None


ROWS: dict[str, Row] = {row.name: row for row in _rows()}
"""Every setting by its name in the properties file, in the order of declaration."""


def parse_address(key: str, text: str) -> tuple[str, int]:
    """HOST:PORT to its parts. Raises SettingError naming the key."""
    host, _, port = text.rpartition(":")
    host = host.strip("[]")
    if not is_host(host) or not _PORT.fullmatch(port) or int(port) > 65535:
        raise SettingError(f"{key}={text[:_SHOWN_CHARACTERS]}: not HOST:PORT; give for example 127.0.0.1:9876")
    return host, int(port)

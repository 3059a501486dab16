"""``namesrv doctor``: checks the machine and the settings of one node, and its connections to the other nodes.

It reads the same options as ``namesrv serve``, so it can run before the first start, or beside the running node. Each check
returns findings; a finding that is not good has a remedy. It changes nothing, except for a file in dataDir that it writes to
measure the disk, and removes.
"""

import argparse
import contextlib
import errno
import itertools
import json
import os
import resource
import socket
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, NamedTuple

from replicated_namesrv import __version__
from replicated_namesrv.access.access_file import read_access_file
from replicated_namesrv.address_list import checked_list, unit_lists
from replicated_namesrv.admin.certificates import certificate_files, expiry_s
from replicated_namesrv.admin.diagnosis import NodeView
from replicated_namesrv.admin.diagnosis import findings as node_problems
from replicated_namesrv.cli.admin import (
    LOOPBACK_OF,
    Admin,
    add_admin_options,
    admin_of,
    ask_all,
    given_addresses,
    own_admin,
    reason_of,
)
from replicated_namesrv.cli.children import host_port
from replicated_namesrv.cli.client import print_json, print_table
from replicated_namesrv.errors import NamesrvError, SettingError
from replicated_namesrv.files import free_bytes
from replicated_namesrv.histogram import Histogram
from replicated_namesrv.raft.identity import IDENTITY
from replicated_namesrv.raft.measurements import FSYNC_BOUNDS_S
from replicated_namesrv.replication.leader_preference import check_elections
from replicated_namesrv.replication.peer_settings import known_members, transport_settings
from replicated_namesrv.server.server import OTHER_FILES
from replicated_namesrv.server.tls import ADMIN_NAMES, REMOTING_NAMES, admin_tls_settings, tls_problem
from replicated_namesrv.settings import ROWS, Settings
from replicated_namesrv.settings_sources import load_settings
from replicated_namesrv.tracing import check_endpoint

HELP = "check this machine, a node's settings, and its connections to its peers; problems have a remedy"

OK, WARNING, PROBLEM = "ok", "warning", "problem"
GOOD, BAD = 0, 1
TIMEOUT_MS = 3_000
SYNCS_MAX, SYNCS_SECONDS, SYNC_BYTES = 200, 5.0, 4_096
SYNC_WARNING_S = 0.025
"""Doctor warns if the 99th percentile of sync times exceeds this. Each write waits for a sync of a majority, and a leader's
heartbeats come every 50 ms."""
CLOCK_WARNING_S = 2.0
"""Minimum clock difference at which doctor warns. The Date header, from which it is computed, has whole seconds."""
EXPIRY_WARNING_DAYS = 14
OF_ONE_NODE = {
    *("nodeId", "listen", "bindAddress", "listenPort", "adminListen", "healthListen", "peerListen", "peerDial", "dataDir"),
    *("kvConfigPath", "configStorePath", "rocketmqHome", "peerSecretFile", "adminTokenFile"),
    *("peerTlsKeyPath", "peerTlsCertPath", "adminTlsKeyPath", "adminTlsCertPath", "tls.server.keyPath", "tls.server.certPath"),
}
"""Settings that may differ between nodes."""

_EXAMPLES = """\
examples:
  namesrv doctor -c /etc/namesrv/namesrv.properties --data-dir /var/lib/namesrv
  namesrv doctor -c namesrv.properties --set peerSecretFile=/etc/namesrv/peer-secret --json

exit codes: 0 no problem (a warning is not one); 1 a problem; 2 usage
"""


class Finding(NamedTuple):
    """The result of one check."""

    check: str
    level: str
    text: str
    remedy: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.epilog = _EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("-c", "--config-file", metavar="FILE", help="properties file of the node")
    parser.add_argument("--data-dir", metavar="DIR", help="folder of the node (dataDir)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="any setting; repeatable")
    add_admin_options(parser, "derived from nameServerAddresses or peers")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.set_defaults(timeout_ms=TIMEOUT_MS)


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Returns its exit code."""
    admin = admin_of(arguments)
    flags = dict(_pair(text) for text in arguments.set)
    if arguments.data_dir:
        flags["dataDir"] = arguments.data_dir
    syncs = Histogram(FSYNC_BOUNDS_S)
    try:
        settings = load_settings(arguments.config_file, flags)
    except NamesrvError as error:
        findings = [_wrong(error)]
    except OSError as cause:
        text = f"{arguments.config_file}: {reason_of(cause)}"
        findings = [Finding("settings", PROBLEM, text, "give the node's properties file with -c, as a user who may read it")]
    else:
        others = given_addresses(arguments, admin) or tuple(_admin_addresses(settings))
        findings = list(_examine(settings, admin, tuple(other for other in others if other != own_admin(settings)), syncs))
    if arguments.json:
        print_json({"findings": [finding._asdict() for finding in findings], "syncs": _histogram(syncs)})
    else:
        _print(findings, syncs)
    return BAD if any(finding.level == PROBLEM for finding in findings) else GOOD


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise SettingError(f"--set {text}: give KEY=VALUE, for example --set mode=cp")
    return name, value


def _admin_addresses(settings: Settings) -> Iterator[str]:
    """Admin addresses of the other nodes. Their hosts are those of ``nameServerAddresses``; if it is empty, those of the members.
    The difference between the two ports is assumed to be the same as here."""
    own, here, listed = settings.admin_address, settings.listen_address, list(_addresses(settings.name_server_addresses))
    if not listed and settings.mode == "cp":
        with contextlib.suppress(SettingError):  # it is a finding of another check
            members = known_members(settings)
            here, listed = members.get(settings.node_id, here), list(members.values())
    for host, port in listed:
        if own is not None and (host, port) != here and 0 < (moved := port + own[1] - here[1]) < 65_536:
            yield host_port((host, moved))


def _addresses(text: str) -> Iterator[tuple[str, int]]:
    for part in filter(None, map(str.strip, text.split(";"))):
        host, _, port = part.rpartition(":")
        if port.isdigit():
            yield host.strip("[]"), int(port)


def _wrong(error: NamesrvError) -> Finding:
    """The finding of a wrong setting. Its remedy is the text after the last semicolon of the message or, if there is none, after
    the last colon."""
    text = str(error)
    problem, _, remedy = text.rpartition("; " if "; " in text else ": ")
    return Finding("settings", PROBLEM, problem or text, remedy if problem else "correct this setting (docs/settings.md)")


def _start_checks(settings: Settings) -> Iterator[Callable[[], object]]:
    """The checks with which a node starts. Each raises SettingError."""
    from replicated_namesrv.admin.access import read_token  # here, because it loads aiohttp, which takes long

    yield lambda: checked_list("nameServerAddresses", settings.name_server_addresses)
    yield lambda: unit_lists(settings.unit_name_server_addresses)
    if settings.mode == "cp":
        yield lambda: check_elections(settings)
    if settings.admin_token_file:
        yield lambda: read_token(settings.admin_token_file)
    if settings.access_policy != "open" and settings.access_file:
        yield lambda: read_access_file(settings.access_file)
    if settings.trace_endpoint:
        yield lambda: check_endpoint(settings.trace_endpoint)


def _settings(settings: Settings) -> Iterator[Finding]:
    for check in _start_checks(settings):
        try:
            check()
        except SettingError as error:
            yield _wrong(error)


def _examine(settings: Settings, admin: Admin, others: Sequence[str], syncs: Histogram) -> Iterator[Finding]:
    peers: dict[str, tuple[str, int]] = {}
    contacts: list[tuple[str, int]] = []
    wrong, transport = list(_settings(settings)), None
    try:
        transport = transport_settings(settings) if settings.mode == "cp" else None
    except SettingError as error:
        wrong.append(_wrong(error))
    yield from wrong or [Finding("settings", OK, f"valid: mode={settings.mode}, node {settings.node_id}")]
    own = {"listen": settings.listen_address, "adminListen": settings.admin_address, "healthListen": settings.health_address}
    if transport is not None:
        own["peerListen"] = transport.listen
        peers = {name: address for name, address in transport.addresses.items() if name != settings.node_id}
        contacts = [address for address in transport.unnamed if address != transport.listen]
        known = known_members(settings)
        if unknown := ", ".join(name for name in sorted(peers) if name not in known):
            text = (
                f"peerDial names {unknown}, which {'join' if settings.join else 'peers'} does not name; an entry is used when "
                "its node becomes a member"
            )
            yield Finding("settings", OK, text)
    yield from _ports(settings, admin, {name: address for name, address in own.items() if address is not None})
    servers = [address for address in _addresses(settings.name_server_addresses) if address != settings.listen_address]
    dns = list(_names(host for host, _ in (*peers.values(), *contacts, *servers)))
    yield from dns
    listed = [(f"peer {name}", *address) for name, address in peers.items()]
    listed += [("member", *address) for address in contacts]
    listed += [("name server", *address) for address in servers]
    nameless = {finding.text.partition(":")[0] for finding in dns if finding.level == PROBLEM}
    yield from _reachable([each for each in listed if each[1] not in nameless], admin.timeout_s)
    yield from _owner(settings)
    yield from _disk(settings, syncs)
    yield _descriptors(settings)
    yield from _certificates(settings)
    yield from _others(settings, admin, others, bool(peers or contacts))


def _ports(settings: Settings, admin: Admin, own: dict[str, tuple[str, int]]) -> Iterator[Finding]:
    """Check that each port is free or used by the running node, and that no two settings have the same port."""
    for (one, (host, port)), (other, (other_host, other_port)) in itertools.combinations(own.items(), 2):
        if port and port == other_port and (host == other_host or {host, other_host} & LOOPBACK_OF.keys()):
            text = f"{one}={host}:{port} and {other}={other_host}:{port} have the same port"
            yield Finding("ports", PROBLEM, text, f"choose another port with {other}")
    failures = {name: _bind_failure(*address) for name, address in own.items()}
    running: dict[str, Any] | None = None
    unknown = ""
    shown = own_admin(settings)
    if shown is not None and _is_in_use(failures["adminListen"]):
        try:
            status = admin.ask(shown, "/v1/status")
            running = status if status["nodeId"] == settings.node_id else None
        except NamesrvError as error:
            needs_ca = settings.admin_tls_cert_path and admin.tls is None
            unknown = f"{shown}: this port has TLS; give --ca FILE" if needs_ca else str(error)
    for name, (host, port) in own.items():
        cause = failures[name]
        remedy = _remedy_of_port(cause, name, port)
        if cause is None:
            yield Finding("ports", OK, f"{name}={host}:{port} is free")
        elif _is_in_use(cause) and running is not None:
            yield Finding("ports", OK, f"{name}={host}:{port} is in use; node {settings.node_id} is running")
        elif _is_in_use(cause) and unknown:
            text = f"{name}={host}:{port} is in use, perhaps by node {settings.node_id}, which could not be asked: {unknown}"
            yield Finding("ports", WARNING, text, f"if it is not this node, {remedy}")
        else:
            yield Finding("ports", PROBLEM, f"{name}={host}:{port} cannot be bound: {reason_of(cause)}", remedy)
    if running is not None:
        yield from _running(settings.node_id, running)


def _running(name: str, status: dict[str, Any]) -> Iterator[Finding]:
    """What the running node reports about itself."""
    problems = node_problems(NodeView(name, "", status))
    for level, text, remedy in problems:
        yield Finding("node", PROBLEM if level == "bad" else WARNING, f"{name} is running: {text}", remedy)
    if not problems:
        yield Finding("node", OK, f"{name} is running and reports no problem")


def _bind_failure(host: str, port: int) -> OSError | None:
    """Why this address cannot be bound; None: it can."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind((host, port))
    except OSError as cause:
        return cause
    return None


def _remedy_of_port(cause: OSError | None, name: str, port: int) -> str:
    if _is_in_use(cause):
        return f"stop the program that has the port (ss -ltnp 'sport = :{port}'), or choose another with {name}"
    if isinstance(cause, PermissionError):
        return f"choose a port above 1023 with {name}, or start the node with the capability CAP_NET_BIND_SERVICE"
    return f"give an address of this machine in {name} (ip -brief address), or 0.0.0.0 for all of them"


def _is_in_use(cause: OSError | None) -> bool:
    return cause is not None and cause.errno == errno.EADDRINUSE


def _names(hosts: Iterable[str]) -> Iterator[Finding]:
    """Check that the host names of the other nodes have addresses."""
    for host in sorted(set(hosts)):
        try:
            found = sorted({str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)})
        except OSError as cause:
            remedy = "add the name to DNS or /etc/hosts, or give an address in its place"
            yield Finding("dns", PROBLEM, f"{host}: {reason_of(cause)}", remedy)
        else:
            if found != [host]:
                yield Finding("dns", OK, f"{host} is {', '.join(found)}")


def _reachable(addresses: Iterable[tuple[str, str, int]], timeout_s: float) -> Iterator[Finding]:
    """Check that the ports of the other nodes accept connections. ``addresses``: the purpose, host and port of each address."""
    for name, host, port in addresses:
        try:
            began = time.monotonic()
            with socket.create_connection((host, port), timeout_s):
                took_ms = (time.monotonic() - began) * 1000
            yield Finding("reachability", OK, f"{name}: {host}:{port} connected in {took_ms:.1f} ms")
        except OSError as cause:
            remedy = (
                f"start the node on {host}; if it runs, correct the port: nothing listens on {port} there"
                if isinstance(cause, ConnectionRefusedError)
                else f"check that {host} is up and is the right address, and permit TCP to port {port} in every firewall between"
            )
            yield Finding("reachability", WARNING, f"{name}: {host}:{port}: {reason_of(cause)}", remedy)


def _owner(settings: Settings) -> Iterator[Finding]:
    """Whether the log in dataDir is of this node and cluster. Otherwise the node does not start."""
    file = settings.data_path / "raft" / IDENTITY
    if settings.mode != "cp" or not os.path.exists(file):
        return
    try:
        known = json.loads(file.read_bytes().partition(b"\n")[0])
        owner, cluster = str(known["node"]), str(known["cluster"])
    except (OSError, ValueError, KeyError, TypeError) as cause:
        remedy = f"run this as the node's user; 'namesrv log inspect {settings.data_path}' shows what is there"
        yield Finding("disk", WARNING, f"{file} cannot be read: {cause}", remedy)
        return
    if (owner, cluster) != (settings.node_id, settings.cluster_id):
        text = (
            f"{settings.data_path} belongs to node {owner} of cluster {cluster}, not to node {settings.node_id} of cluster "
            f"{settings.cluster_id}"
        )
        yield Finding("disk", PROBLEM, text, "correct nodeId, clusterId or dataDir, or give the node an empty folder")


def _disk(settings: Settings, syncs: Histogram) -> Iterator[Finding]:
    """Free space, and how long syncs take."""
    folder = settings.data_path
    while not os.path.exists(folder):  # not Path.exists(), which fails if a folder may not be searched
        folder = folder.parent
    try:
        free = free_bytes(folder)
        _measure(folder, syncs)
    except OSError as cause:
        yield Finding("disk", PROBLEM, f"{folder}: {reason_of(cause)}", _remedy_of_folder(cause, folder))
        return
    reserve = settings.disk_reserve_bytes
    if free < 2 * reserve:
        remedy = "free space on this disk, or choose another dataDir; below diskReserveBytes no data can be added"
        level = PROBLEM if free < reserve else WARNING
        yield Finding("disk", level, f"{folder}: {free >> 20} MiB free, diskReserveBytes is {reserve >> 20} MiB", remedy)
    else:
        yield Finding("disk", OK, f"{folder}: {free >> 20} MiB free")
    p99, count = percentile(syncs, 0.99), sum(syncs.counts)
    text = f"{count} syncs of 4 KiB: 99 % within {p99 * 1000:g} ms, mean {syncs.sum / count * 1000:.1f} ms"
    if p99 <= SYNC_WARNING_S:
        yield Finding("disk", OK, text)
    else:
        remedy = "use a faster disk, or stop other programs that write to it; every change waits for the disks of a majority"
        yield Finding("disk", WARNING, text, remedy)


def _remedy_of_folder(cause: OSError, folder: Path) -> str:
    if isinstance(cause, PermissionError):
        return f"run this as the node's user, and make {folder} writable for that user"
    if cause.errno in (errno.ENOSPC, errno.EDQUOT):
        return "free space on this disk, or raise the quota"
    if cause.errno == errno.EROFS:
        return "mount the file system so that it can be written, or choose another dataDir"
    return f"choose another dataDir: {folder} is not a folder in which files can be created"


def _measure(folder: Path, syncs: Histogram) -> None:
    """Append and sync, as the log does. Raises OSError."""
    with tempfile.NamedTemporaryFile(prefix=".namesrv-doctor-", dir=folder) as file:
        deadline = time.monotonic() + SYNCS_SECONDS
        while sum(syncs.counts) < SYNCS_MAX and time.monotonic() < deadline:
            os.write(file.fileno(), bytes(SYNC_BYTES))
            began = time.monotonic()
            os.fdatasync(file.fileno())
            syncs.observe(time.monotonic() - began)


def percentile(histogram: Histogram, share: float) -> float:
    """The smallest bound that at least this share of the values does not exceed. Infinity: no bound is large enough."""
    wanted, below = share * sum(histogram.counts), 0
    for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
        below += count
        if below >= wanted:
            return bound
    return float("inf")


def _descriptors(settings: Settings) -> Finding:
    """Check the hard limit on descriptors. The node raises its soft limit to this limit."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    wanted = settings.max_connections + OTHER_FILES
    if hard == resource.RLIM_INFINITY or hard >= wanted:
        return Finding("descriptors", OK, f"up to {hard} file descriptors, {wanted} are needed")
    remedy = f"raise it (systemd: LimitNOFILE={wanted}; ulimit -Hn), or lower maxConnections"
    text = f"at most {hard} file descriptors, but maxConnections={settings.max_connections} needs {wanted}"
    return Finding("descriptors", WARNING, text, remedy)


def _certificates(settings: Settings) -> Iterator[Finding]:
    for port, path in certificate_files(settings).items():
        try:
            days = (expiry_s(path) - time.time()) / 86_400
        except (OSError, ValueError) as error:
            text = f"{port}: {path}: {reason_of(error)}"
            yield Finding("certificates", PROBLEM, text, "give a certificate in PEM that this user can read")
            continue
        level = PROBLEM if days < 0 else WARNING if days < EXPIRY_WARNING_DAYS else OK
        text = f"{port}: {path} expires in {days:.1f} days" if days >= 0 else f"{port}: {path} expired {-days:.1f} days ago"
        remedy = "" if level == OK else "replace certificate and key in place; a running node loads them without a restart"
        yield Finding("certificates", level, text, remedy)
        own = {"remoting": (settings, REMOTING_NAMES), "admin": (admin_tls_settings(settings), ADMIN_NAMES)}.get(port)
        if own is not None and own[0] is not None and (problem := tls_problem(own[0], own[1])) is not None:
            yield Finding("certificates", PROBLEM, f"{port}: {problem[0]}", problem[1])


class _Other(NamedTuple):
    """Another node, by its admin port."""

    node: str
    version: str
    clock_ahead_s: float
    settings: dict[str, str] | None


def _others(settings: Settings, admin: Admin, addresses: Sequence[str], has_peers: bool) -> Iterator[Finding]:
    """Clocks, versions and settings of the other nodes, as far as their admin ports answer."""
    if not addresses:
        if has_peers:
            text = "clocks, versions and settings of the other nodes were not compared: their admin addresses are unknown"
            yield Finding("nodes", WARNING, text, "give the addresses with --admin, or set adminListen")
        return
    found: list[_Other] = []
    for answer in ask_all(addresses, lambda address: _ask(admin, address)):
        if isinstance(answer, NamesrvError):
            problem, _, remedy = str(answer).partition("; ")
            yield Finding("nodes", WARNING, problem, remedy or "see the log of that node")
        elif answer.node != settings.node_id:
            found.append(answer)
    for other in found:
        late = abs(other.clock_ahead_s) >= CLOCK_WARNING_S
        text = f"the clock of {other.node} differs by {other.clock_ahead_s:+.1f} s"
        remedy = "synchronise both clocks (chrony, systemd-timesyncd); times in logs, events and certificates depend on it"
        yield Finding("clocks", WARNING if late else OK, text, remedy if late else "")
        same = other.version == __version__
        remedy = "" if same else "finish the upgrade; only two neighbouring versions may run together"
        yield Finding("versions", OK if same else WARNING, f"{other.node} runs {other.version}, this is {__version__}", remedy)
        if other.settings is not None:
            yield from _differences(settings, other.node, other.settings)


def _ask(admin: Admin, address: str) -> _Other:
    began = time.time()
    with admin.open(address, "/livez") as response:
        date = response.getheader("Date")
    ended = time.time()
    there = parsedate_to_datetime(date).timestamp() + 0.5 if date else (began + ended) / 2
    status = admin.ask(address, "/v1/status")
    values: dict[str, str] | None = None
    with contextlib.suppress(NamesrvError):  # NamesrvError: the node may require a token that the command does not have
        values = admin.ask(address, "/v1/config?readConsistency=stale")
    return _Other(str(status["nodeId"]), str(status["version"]), there - (began + ended) / 2, values)


def _differences(settings: Settings, node: str, values: dict[str, str]) -> Iterator[Finding]:
    """Replicated settings are left out: the running cluster has one value of each, even if the files differ."""
    differing: dict[str, str] = {}
    for row in ROWS.values():
        if row.name in OF_ONE_NODE or row.replicated or row.name not in values:
            continue
        if (ours := row.show(settings.get(row))) != values[row.name]:
            secret = "password" in row.name.lower()
            differing[row.name] = row.name if secret else f"{row.name} is {ours!r} here, {values[row.name]!r} on {node}"
    if differing:
        text = f"settings differ from {node}: {'; '.join(differing.values())}"
        yield Finding("differences", WARNING, text, f"set {', '.join(differing)} to the same value on all nodes")
    else:
        yield Finding("differences", OK, f"settings agree with {node}")


def _histogram(syncs: Histogram) -> dict[str, Any]:
    count = sum(syncs.counts)
    bounds = [f"{bound * 1000:g}" for bound in syncs.bounds]
    return {
        "count": count,
        "meanMs": round(syncs.sum / count * 1000, 3) if count else None,
        "withinMs": dict(zip((*bounds, "more"), syncs.counts, strict=True)),
    }


def _print(findings: Sequence[Finding], syncs: Histogram) -> None:
    print_table(("check", "", "finding"), [(f.check, f.level, f.text) for f in findings])
    if count := sum(syncs.counts):
        print("\nsyncs of the disk:")
        lower = 0.0
        for bound, number in zip((*syncs.bounds, float("inf")), syncs.counts, strict=True):
            if number:
                print(f"  {lower * 1000:>7g} to {bound * 1000:g} ms  {number:>4}  {'#' * max(1, 50 * number // count)}")
            lower = bound
    for finding in findings:
        if finding.remedy:
            print(f"\n{finding.level}: {finding.text}\n  remedy: {finding.remedy}")

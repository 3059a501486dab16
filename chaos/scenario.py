"""Scenarios: the definition of a run, read from a small TOML file.

A file defines the cluster, the workload, the faults with their times, and the promises. Only ``title`` and a fault's ``kind``
have no default. An unknown field or value is refused with its name and the accepted ones. The seed determines all random choices.
"""

import dataclasses
import difflib
import math
import re
import tomllib
import types
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import resources
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from replicated_namesrv.errors import SettingError


class FaultKind(StrEnum):
    """Kinds of faults."""

    ISOLATE = "isolate"
    """``target`` is on one side, and all other nodes are on the other side."""
    HALVES = "halves"
    """A majority and a minority, drawn by the seed."""
    ONE_WAY = "one-way"
    """Nothing leaves ``target`` (``direction`` out), or nothing reaches it (in).

    Scope sites: the same for ``target`` together with its brokers and clients. Out: their requests to other sites are lost, and
    so are the answers of ``target`` to other sites. In: messages of other sites to them are lost."""
    ACKS = "acks"
    """Messages from the leader reach its peers, but messages from the peers do not reach the leader."""
    BRIDGE = "bridge"
    """Two groups that are connected only through one node."""
    PARTIAL = "partial"
    """Each pair of nodes is cut or intact, as the seed draws; at least one pair is cut."""
    DEGRADE = "degrade"
    """Links of ``target`` (scope peers: only those between nodes) become slow, trickle or are reset, as ``effect`` says.

    ``direction`` in: only the bytes sent to ``target``; out: only the bytes that ``target`` sends."""
    CUT_BROKERS = "cut-brokers"
    """``brokers`` lose their links to ``nodes``. ``direction`` out: only the requests of the brokers are lost; in: only the
    answers are lost."""
    CUT_CLIENTS = "cut-clients"
    """All clients lose their links to ``nodes``; ``direction`` as for brokers."""
    KILL = "kill"
    """SIGKILL to ``target``, which is restarted when the fault ends."""
    POWER_LOSS = "power-loss"
    """SIGKILL to ``target``, whose disk loses all bytes that were written and not synced. It is restarted when the fault ends. A
    foreign name server, or one of another ``--node-command``, keeps what it has written."""
    DISK_HANGS = "disk-hangs"
    """No sync of ``target``'s disk ends until the fault ends. No effect on a foreign name server, or with another
    ``--node-command``."""
    DISK_FULL = "disk-full"
    """The disk of ``target`` reports no free space until the fault ends. No effect on a foreign name server, or with another
    ``--node-command``."""
    CERTIFICATE_EXPIRES = "certificate-expires"
    """The certificate of ``target`` is replaced by one that expires within days, until the fault ends. No effect on a foreign
    name server."""
    CERTIFICATE_UNUSABLE = "certificate-unusable"
    """The certificate file of ``target`` is replaced by one without a certificate, until the fault ends. No effect on a foreign
    name server."""
    KV_FILLS = "kv-fills"
    """An application puts 62,000 bytes into a KV namespace of its own at ``target``, and deletes them when the fault ends. With
    ``maxKvNamespaceBytes=65536`` the namespace is then nearly full."""
    WRONG_STATE = "wrong-state"
    """SIGTERM to ``target``, whose snapshot is altered (``wrong_state``) before it is restarted. It has to stop by itself. When
    the fault ends, it is restarted empty. In AP it is only restarted."""
    PAUSE = "pause"
    """SIGSTOP to ``target`` until the fault ends."""
    RESTART = "restart"
    """SIGTERM to ``target``, which is restarted at once."""
    ROLLING_RESTART = "rolling-restart"
    """Each node in turn: SIGTERM, start, wait until it is ready."""
    JOIN_EMPTY = "join-empty"
    """``target`` is killed, its data is deleted, and it is restarted empty when the fault ends."""
    HAND_OVER = "hand-over"
    """``target``, if it is the leader, transfers leadership, as operators do before they stop a node. No effect in AP."""
    ADD_NODE = "add-node"
    """The next spare node starts and becomes a voter, or with ``observer`` an observer (``namesrv members add``). In AP it starts
    and enters the address list."""
    REMOVE_NODE = "remove-node"
    """``target`` is removed (``namesrv members remove``); its process continues. In AP it leaves the address list and is
    stopped."""
    REPLACE_NODE = "replace-node"
    """The next spare node takes the place of ``target`` (``namesrv members replace``). In AP it is added, then ``target`` is
    removed."""
    DRAIN = "drain"
    """``target`` is drained (``/v1/drain``), stopped and started again. ``target`` all: each node in turn."""
    RANDOM = "random"
    """Two to four faults of other kinds, with times and targets drawn by the seed."""


ADDING_KINDS = frozenset({FaultKind.ADD_NODE, FaultKind.REPLACE_NODE})
"""Kinds that use a spare node."""
DISK_KINDS = frozenset({FaultKind.POWER_LOSS, FaultKind.DISK_HANGS, FaultKind.DISK_FULL})
"""Kinds that need disks of ``node_disk``."""
CERTIFICATE_KINDS = frozenset({FaultKind.CERTIFICATE_EXPIRES, FaultKind.CERTIFICATE_UNUSABLE})
"""Kinds that need nodes with TLS files (``node_tls``)."""
OPERATOR_KINDS = ADDING_KINDS | {FaultKind.REMOVE_NODE, FaultKind.DRAIN}
"""Changes that an operator makes to the members. Brokers and clients then follow the address list of the nodes."""
ROUND_TRIP_MAX_MS = 1_000
SYNC_MAX_MS = 1_000
SPARES_MAX = 4
"""Enough for an observer, a replaced node and two more voters. With five founders these are seven voters, the maximum."""
PROCESS_KINDS = (
    OPERATOR_KINDS
    | DISK_KINDS
    | CERTIFICATE_KINDS
    | {
        *(FaultKind.KILL, FaultKind.PAUSE, FaultKind.RESTART, FaultKind.ROLLING_RESTART),
        *(FaultKind.JOIN_EMPTY, FaultKind.HAND_OVER, FaultKind.KV_FILLS, FaultKind.WRONG_STATE),
    }
)


@dataclass(frozen=True, slots=True)
class FaultSpec:
    """One fault of a scenario. Times are seconds after the beginning of the phase ``fault``."""

    kind: FaultKind
    target: str = "leader"
    """leader, follower, all, random, spare (the node that was added last), or a node (n1 …). In AP there is no leader, so the
    seed draws a node instead."""
    effect: str = "cut"
    """Effect on links. cut: silent or held, as the variant of the run says. Or one of silent, held, refused, reset, slow,
    trickle."""
    scope: str = "sites"
    """Scope of a partition: peers (links between nodes only) or sites (brokers and clients are on their node's side)."""
    direction: str | None = None
    """in, out or both. None means both, except for one-way, which cannot be both: there it means out."""
    nodes: str = "one"
    """For cut-brokers and cut-clients: one, all-but-one or all nodes."""
    brokers: str = "all"
    """For cut-brokers: one or all."""
    at_s: float = 0.0
    for_s: float | None = None
    """Duration. None: until the phase ends and the operator's commands have ended."""
    flap_s: float | None = None
    """If given, the fault is switched on and off repeatedly, each for this long."""
    observer: bool = False
    """For add-node: the node becomes an observer, a member without a vote."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Length of the phases in seconds."""

    steady_s: float = 2.5
    fault_s: float = 7.0
    heal_s: float = 12.0
    """Maximum length of this phase. It ends when the nodes have agreed for a while, but not before three seconds."""
    final_s: float = 20.0
    """Maximum time for the final reads, which read everything from every node."""


@dataclass(frozen=True, slots=True)
class WorkloadSpec:
    """The users of the cluster and their load."""

    groups: int = 4
    """Number of broker groups of one master each. The groups are assigned to the nodes' sites in turn."""
    pair: bool = True
    """One more group, with a master and a slave that switch roles during the fault."""
    mortal: str = "silent"
    """One more broker that dies during the fault and returns after it: silent (connections stay open), dead, or none."""
    early_deaths: bool = True
    """Two more brokers. They die when the clients begin and return after the faults. One keeps its connections open when it dies,
    the other closes them."""
    heartbeats: bool = True
    """Two more brokers that seldom register. They send heartbeats, by ``BROKER_HEARTBEAT`` (904) and ``QUERY_DATA_VERSION``
    (322)."""
    deputy: bool = True
    """One more group, with a master and a slave that acts as master while the master is away. The master stops for a moment
    before the faults, and dies during them. The nodes run with ``supportActingMaster`` and ``notifyMinBrokerIdChanged``."""
    heirs: int = 0
    """Number of further groups in which another broker takes the place of the master during the faults. The master has just sent
    a registration, and died silently."""
    sample: bool = True
    """One more broker about which everything is known, so that whole answers are judged. It asks for its data version (322)
    before it registers. The nodes run with ``orderMessageEnable``."""
    zones: bool = True
    """Whether the groups of ``groups`` belong to two zones in turn, and a client asks for the routes of one zone."""
    churn: bool = True
    """One more broker that repeatedly stops cleanly and starts again."""
    mqadmin: bool = True
    """mqadmin changes the write permission of one more broker, and deletes the topics that yet another broker creates and
    drops.
    """
    topics: int = 3
    changes_per_s: float = 2.0
    """Number of topic changes per second of all brokers together."""
    register_period_ms: int = 700
    broker_timeout_ms: int = 3_000
    kv_clients: int = 3
    kv_keys: int = 3
    kv_writes: str = "all"
    """all: a write goes to each node in turn, as RocketMQ's clients and mqadmin do. one: a write goes to one node, so that each
    value is written once, and reads can be attributed to writes."""
    kv_per_s: float = 12.0
    """Operations per second of one KV client."""
    lookups_per_s: float = 8.0
    """Route look-ups per second of one client."""
    probes_per_s: float = 4.0
    sends_per_s: float = 10.0
    failover_clients: int = 2
    operation_timeout_ms: int = 1_500
    """Time-out of one attempt at one node."""


@dataclass(frozen=True, slots=True)
class Promises:
    """Limits that the checkers test."""

    converge_s: float = 8.0
    """Maximum time from the end of the last fault until all nodes answer the same."""
    gap_s: float = 6.0
    """Maximum time without a success, for clients that can reach a side with a majority. Each node beyond three adds an
    ``operation_timeout_ms``, because clients try silent nodes in turn."""
    ghost_margin_s: float = 1.0
    """How long a dead broker may be listed beyond the time that the settings give (time-out, scan interval)."""
    operations_min: int = 30
    """Minimum number of successful operations before the fault, and after it. With fewer operations the verdict is unknown."""
    operations_during_min: int = 30
    """Minimum number of successful operations during the fault."""


@dataclass(frozen=True, slots=True)
class ChaosScenario:
    """A whole scenario."""

    name: str
    title: str
    about: str = ""
    complaint: str = ""
    """The bug report, of any project, after which the scenario is named."""
    fault: tuple[FaultSpec, ...] = ()
    settings: tuple[str, ...] = ()
    """Settings of every node, key=value."""
    nodes: int | None = None
    """Number of nodes, unless the command gives one."""
    round_trip_ms: int = 0
    """Round trip between two sites. Each node is a site, with its brokers and clients."""
    sync_ms: int = 0
    """Time added to each sync of a node's disk. No effect on foreign name servers, or with another ``--node-command``."""
    spares: int = 0
    """Number of further nodes, which start when a fault adds them."""
    smoke: bool = False
    """Whether the suite ``smoke`` contains the scenario."""
    smoke_modes: tuple[str, ...] = ("ap", "cp")
    """The modes in which the suite ``smoke`` runs it. A foreign name server counts as ap."""
    timing: Timing = field(default_factory=Timing)
    workload: WorkloadSpec = field(default_factory=WorkloadSpec)
    promises: Promises = field(default_factory=Promises)

    @property
    def has_operator(self) -> bool:
        """Whether a fault is the work of an operator."""
        return any(fault.kind in OPERATOR_KINDS for fault in self.fault)

    @property
    def has_disks(self) -> bool:
        """Whether the nodes run with disks that can fail (``node_disk``)."""
        return self.sync_ms > 0 or any(fault.kind in DISK_KINDS for fault in self.fault)

    @property
    def has_certificates(self) -> bool:
        """Whether the nodes have TLS files (``node_tls``)."""
        return any(fault.kind in CERTIFICATE_KINDS for fault in self.fault)

    def as_json(self) -> dict[str, Any]:
        """The scenario in the form that the manifest contains."""
        return dataclasses.asdict(self)


def available() -> dict[str, Path]:
    """Scenarios of the product, by name."""
    folder = Path(str(resources.files("replicated_namesrv.chaos"))) / "scenarios"
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def load(name: str) -> ChaosScenario:
    """Load a scenario of the product, or the file at a path. Raises SettingError."""
    known = available()
    path = known.get(name, Path(name))
    if name not in known and not name.endswith(".toml"):
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise SettingError(f"no scenario '{name}': {hint}'namesrv chaos list' names them; a file of yours ends in .toml")
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as cause:
        raise SettingError(f"scenario {path}: cannot be read ({cause.strerror})") from cause
    except (ValueError, RecursionError) as cause:
        raise SettingError(f"scenario {path}: not TOML: {cause}") from cause
    try:
        scenario: ChaosScenario = build(ChaosScenario, {"name": path.stem, **content})
        check_scenario(scenario)
    except ValueError as cause:
        raise SettingError(f"scenario {path}: {cause}") from cause
    return scenario


def build(kind: Any, content: dict[str, Any], where: str = "") -> Any:
    """An instance of the dataclass ``kind`` from the content of a TOML file. ``where``: the beginning of the names in messages.

    Raises ValueError for an unknown key, a missing key or a value of a wrong type."""
    hints = get_type_hints(kind)
    for key in content:
        if key not in hints:
            near = difflib.get_close_matches(key, hints, n=1)
            raise ValueError(
                f"{where}{key} is unknown" + (f"; did you mean {near[0]}?" if near else f"; known: {', '.join(hints)}")
            )
    values = {key: _value(hints[key], value, f"{where}{key}") for key, value in content.items()}
    missing = [
        one.name
        for one in dataclasses.fields(kind)
        if one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING and one.name not in values
    ]
    if missing:
        raise ValueError(f"{where}{missing[0]} is missing")
    return kind(**values)


def _value(hint: Any, value: Any, where: str) -> Any:
    if isinstance(hint, types.UnionType):
        hint = get_args(hint)[0]
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, dict):
            raise ValueError(f"{where} = {value!r}: a table is expected, [{where}]")
        return build(hint, value, f"{where}.")
    if get_origin(hint) is tuple:
        return _items(get_args(hint)[0], value, where)
    if get_origin(hint) is dict:
        if not isinstance(value, dict):
            raise ValueError(f"{where} = {value!r}: a table is expected, [{where}]")
        return value
    if hint is FaultKind:
        if value not in list(FaultKind):
            raise ValueError(f"{where} = {value!r}: one of {', '.join(FaultKind)} is expected")
        return FaultKind(value)
    if hint is float and type(value) is int:
        value = float(value)
    if type(value) is not hint:
        raise ValueError(f"{where} = {value!r}: {_TYPES[hint]} is expected")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{where} = {value}: a finite number is expected")
    return value


def _items(kind: Any, value: Any, where: str) -> tuple[Any, ...]:
    """The items of an array of tables, strings or whole numbers."""
    if not dataclasses.is_dataclass(kind):
        if not isinstance(value, list) or not all(type(one) is kind for one in value):
            raise ValueError(f"{where} = {value!r}: an array of {_TYPES_OF_ITEMS[kind]} is expected")
        return tuple(value)
    name = where.rpartition(": ")[2]
    if not isinstance(value, list):
        raise ValueError(f"{where}: tables are expected, [[{name}]]")
    for number, one in enumerate(value, 1):
        if not isinstance(one, dict):
            raise ValueError(f"{where} {number} = {one!r}: a table is expected, [[{name}]]")
    return tuple(build(kind, one, f"{where} {number}: ") for number, one in enumerate(value, 1))


_TYPES_OF_ITEMS = {str: "strings", int: "whole numbers"}
_TYPES = {int: "a whole number", float: "a number", str: "a string", bool: "true or false"}


_CHOICES = {
    "effect": ("cut", "silent", "held", "refused", "reset", "slow", "trickle"),
    "scope": ("peers", "sites"),
    "direction": ("out", "in", "both", None),
    "nodes": ("one", "all-but-one", "all"),
    "brokers": ("one", "all"),
}
_OF_LINKS = frozenset({"effect", "at_s", "for_s", "flap_s"})
_USED = {
    FaultKind.ISOLATE: _OF_LINKS | {"target", "scope"},
    FaultKind.HALVES: _OF_LINKS | {"scope"},
    FaultKind.ONE_WAY: _OF_LINKS | {"target", "scope", "direction"},
    FaultKind.ACKS: _OF_LINKS | {"target"},
    FaultKind.BRIDGE: _OF_LINKS | {"scope"},
    FaultKind.PARTIAL: _OF_LINKS,
    FaultKind.DEGRADE: _OF_LINKS | {"target", "scope", "direction"},
    FaultKind.CUT_BROKERS: _OF_LINKS | {"target", "nodes", "brokers", "direction"},
    FaultKind.CUT_CLIENTS: _OF_LINKS | {"target", "nodes", "direction"},
    FaultKind.KILL: {"target", "at_s", "for_s"},
    FaultKind.POWER_LOSS: {"target", "at_s", "for_s"},
    FaultKind.DISK_HANGS: {"target", "at_s", "for_s"},
    FaultKind.DISK_FULL: {"target", "at_s", "for_s"},
    FaultKind.CERTIFICATE_EXPIRES: {"target", "at_s", "for_s"},
    FaultKind.CERTIFICATE_UNUSABLE: {"target", "at_s", "for_s"},
    FaultKind.KV_FILLS: {"target", "at_s", "for_s"},
    FaultKind.WRONG_STATE: {"target", "at_s", "for_s"},
    FaultKind.PAUSE: {"target", "at_s", "for_s"},
    FaultKind.RESTART: {"target", "at_s"},
    FaultKind.ROLLING_RESTART: {"at_s"},
    FaultKind.JOIN_EMPTY: {"target", "at_s", "for_s"},
    FaultKind.HAND_OVER: {"target", "at_s"},
    FaultKind.ADD_NODE: {"at_s", "observer"},
    FaultKind.REMOVE_NODE: {"target", "at_s"},
    FaultKind.REPLACE_NODE: {"target", "at_s"},
    FaultKind.DRAIN: {"target", "at_s"},
    FaultKind.RANDOM: frozenset[str](),
}
"""The fields that each kind of fault may have. Other fields are refused."""
_SET_HERE = (
    "mode",
    "nodeId",
    "listen",
    "listenPort",
    "adminListen",
    "dataDir",
    "peers",
    "join",
    "peerListen",
    "peerDial",
    "readConsistency",
)
"""Settings that a run sets itself, so a scenario may not give them."""
_RANGES = (
    ("timing", ("steady_s", "fault_s", "heal_s", "final_s"), 0.5, 3600),
    ("workload", ("groups", "topics", "kv_keys"), 1, 200),
    ("workload", ("kv_clients",), 0, 50),
    ("workload", ("failover_clients",), 1, 50),
    ("workload", ("changes_per_s",), 0, 1000),
    ("workload", ("kv_per_s", "lookups_per_s", "probes_per_s", "sends_per_s"), 0.1, 1000),
    ("workload", ("register_period_ms", "broker_timeout_ms", "operation_timeout_ms"), 50, 600_000),
    ("promises", ("converge_s", "gap_s", "ghost_margin_s"), 0, 3600),
    ("promises", ("operations_min", "operations_during_min"), 0, 10**9),
)


_DEFAULT_FAULT = FaultSpec(FaultKind.ISOLATE)


def check_scenario(scenario: ChaosScenario) -> None:
    """Raise ValueError for a value out of range, or for a combination of values that has no meaning."""
    for table, names, least, most in _RANGES:
        for name in names:
            value = getattr(getattr(scenario, table), name)
            if not least <= value <= most:
                raise ValueError(f"{table}.{name} = {value}: {least} to {most} is expected")
    if not 0 <= scenario.round_trip_ms <= ROUND_TRIP_MAX_MS:
        raise ValueError(f"round_trip_ms = {scenario.round_trip_ms}: 0 to {ROUND_TRIP_MAX_MS} is expected")
    if not 0 <= scenario.sync_ms <= SYNC_MAX_MS:
        raise ValueError(f"sync_ms = {scenario.sync_ms}: 0 to {SYNC_MAX_MS} is expected")
    if scenario.nodes is not None and not 1 <= scenario.nodes <= 5:
        raise ValueError(f"nodes = {scenario.nodes}: 1 to 5 is expected")
    if scenario.spares != (added := sum(fault.kind in ADDING_KINDS for fault in scenario.fault)) or added > SPARES_MAX:
        raise ValueError(
            f"spares = {scenario.spares}: one for each fault that adds or replaces a node is expected, here {added}, at most "
            f"{SPARES_MAX}"
        )
    if not re.fullmatch(r"\w[\w.+-]{0,79}", scenario.name):
        raise ValueError(
            f"name = {scenario.name!r}: up to 80 letters, digits, '.', '_', '+' and '-' are expected; it names a folder"
        )
    if scenario.workload.register_period_ms >= scenario.workload.broker_timeout_ms:
        raise ValueError(
            f"workload.register_period_ms = {scenario.workload.register_period_ms}: less than workload.broker_timeout_ms = "
            f"{scenario.workload.broker_timeout_ms} is expected, or every broker would be dropped between two registrations"
        )
    if scenario.workload.mortal not in ("silent", "dead", "none"):
        raise ValueError(f"workload.mortal = {scenario.workload.mortal!r}: silent, dead or none is expected")
    if scenario.workload.kv_writes not in ("all", "one"):
        raise ValueError(f"workload.kv_writes = {scenario.workload.kv_writes!r}: all or one is expected")
    for setting in scenario.settings:
        key, equals, _ = setting.partition("=")
        if not equals:
            raise ValueError(f"settings: {setting!r} is not key=value")
        if key in _SET_HERE:
            raise ValueError(f"settings: {setting!r}: the run sets {key} itself; leave it out")
    for number, fault in enumerate(scenario.fault, 1):
        try:
            _check_fault(fault, scenario.timing.fault_s)
        except ValueError as cause:
            raise ValueError(f"fault {number}: {cause}") from cause


def _check_fault(fault: FaultSpec, longest_s: float) -> None:
    used = _USED.get(fault.kind)
    if used is None:
        raise ValueError(f"kind = {fault.kind.value!r}: FaultKind.{fault.kind.name} is not in _USED of chaos/scenario.py")
    for name in (one.name for one in dataclasses.fields(fault) if one.name not in ("kind", *used)):
        if getattr(fault, name) != getattr(_DEFAULT_FAULT, name):
            known = ", ".join(sorted(used)) or "nothing but its kind"
            raise ValueError(
                f"{name} = {getattr(fault, name)!r}: has no meaning for {fault.kind}, which knows {known}; leave it out"
            )
    for name, choices in _CHOICES.items():
        if getattr(fault, name) not in choices:
            known = ", ".join(choice for choice in choices if choice is not None)
            raise ValueError(f"{name} = {getattr(fault, name)!r}: one of {known} is expected")
    if fault.target == "all" and fault.kind in (FaultKind.REMOVE_NODE, FaultKind.REPLACE_NODE, FaultKind.WRONG_STATE):
        raise ValueError(f"target = 'all': one node is expected for {fault.kind}")
    _check_direction(fault)
    end_s = fault.at_s + (fault.for_s or 0.0)
    if not 0 <= fault.at_s < longest_s or (fault.for_s is not None and fault.for_s <= 0) or end_s > longest_s:
        lasting = "" if fault.for_s is None else f", for_s = {fault.for_s:g}"
        raise ValueError(f"at_s = {fault.at_s:g}{lasting}: both must lie within the {longest_s:g} s of timing.fault_s")
    if fault.flap_s is not None and not 0.1 <= fault.flap_s <= longest_s:
        raise ValueError(f"flap_s = {fault.flap_s:g}: 0.1 to the {longest_s:g} s of timing.fault_s is expected")


def _check_direction(fault: FaultSpec) -> None:
    one_way = fault.kind is FaultKind.ONE_WAY
    if one_way and fault.direction == "both":
        raise ValueError("direction = 'both': in or out is expected of a one-way fault; kind = \"isolate\" cuts both")
    outside = fault.kind in (FaultKind.CUT_BROKERS, FaultKind.CUT_CLIENTS) or fault.scope == "sites"
    if outside and fault.effect in ("refused", "reset") and (one_way or fault.direction in ("in", "out")):
        instead = {
            FaultKind.ONE_WAY: 'silent, held or scope = "peers" is expected, or kind = "isolate"',
            FaultKind.DEGRADE: 'slow, trickle or scope = "peers" is expected, or no direction',
        }.get(fault.kind, "silent or held is expected, or no direction")
        raise ValueError(f"effect = {fault.effect!r}: ends whole connections of brokers and clients, both ways; {instead}")

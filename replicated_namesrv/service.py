"""Types shared by the server, the admin side and the nodes: read levels, connections, measurements, quotas. Also how long a
slow answer takes, and how long a broker waits for one.

A node is an ``IndependentNode`` (AP) or a ``ReplicatedNode`` (CP). Each user of nodes declares its own protocol with the calls
that it makes (``QueryService``, ``AdminService``), and nodes derive from none of them. ``process.NodeService`` is their sum;
mypy checks both nodes against it.

Reads await ``barrier`` and then look at ``state``. Writes are proposed and return a result or an error of ``errors``. A call
may return its value directly, as in AP and on cheap CP paths, so that the hot path does not pay for a coroutine. Otherwise it
returns a Future.
"""

from asyncio import Future
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol, TypeVar

from replicated_namesrv.histogram import Histogram
from replicated_namesrv.model import ChangeOrigin, DataVersion
from replicated_namesrv.routes.commands import Command
from replicated_namesrv.routes.quotas import BROKER, KV, NAMESPACE, STATE, Grant, Quotas
from replicated_namesrv.routes.state import RouteInfoManager


class NodeAddress(NamedTuple):
    """Where brokers and clients reach one node."""

    node_id: str
    address: str
    """host:port; empty if unknown."""
    serves: bool
    """Whether the node is known to accept brokers and clients."""
    drained: bool
    """Whether an operator has drained this node."""
    zone: str = ""
    """Zone of the node (setting ``zone``); empty: none, or not known."""
    admin: str = ""
    """host:port at which other nodes reach its admin port; empty: nowhere, or not known."""


class ReadLevel(StrEnum):
    """How fresh an answer must be, or was."""

    LINEARIZABLE = "linearizable"
    """The answer includes every write that any node acknowledged before the request."""
    LEASE = "lease"
    """The guarantee of LINEARIZABLE, given by a leader with a valid lease. It relies on the declared bound of clock drift."""
    STALE = "stale"
    """The answer comes from the state applied on this node, with its age."""
    LOCAL = "local"
    """The answer of an independent node (AP) for every level: the node's own state, without a guarantee."""


SLOW_MS = 1_000.0
"""If an answer took longer than this, its peer may have closed the connection before the answer arrived. The time in queues of
this node counts. After a stall of this length all answers count as slow."""
PATIENCE_MS = 3_000.0
"""RocketMQ's brokers close a connection if an answer takes longer than the request's time limit. This is the shortest limit by
default, for example that of ``UNREGISTER_BROKER`` (104) in ``BrokerOuterAPI.java``. A broker that closes its connection within
this time after a slow answer may have closed it for lack of this answer."""
ASKABLE_LEVELS = (ReadLevel.LINEARIZABLE, ReadLevel.LEASE, ReadLevel.STALE)
UNKNOWN_AGE = -1


class Freshness(NamedTuple):
    """Freshness of a read: the level that was reached, and the position of the state."""

    level: ReadLevel
    term: int
    """Raft term; 0 on an independent node."""
    leader: str
    """Node id of the leader; empty if there is none or it is unknown."""
    staleness_ms: int
    """The state includes everything that was acknowledged at least this many milliseconds ago; UNKNOWN_AGE if the age is
    unknown."""


class Measurement(NamedTuple):
    """One value of a metric that differs between CP and AP nodes (``admin/exposition.py`` has the catalogue)."""

    name: str
    value: float | Histogram
    labels: tuple[str, ...] = ()


class CloseReason(StrEnum):
    """Why a connection ended."""

    PEER = "peer"
    """The peer closed or reset the connection, and had received the answers to all its requests in time. Or it violated the
    protocol; RocketMQ's name server then removes the broker, too."""
    UNACKNOWLEDGED = "unacknowledged"
    """The peer closed or reset the connection while a request was incomplete or unanswered, or soon after a slow answer, or its
    host had not acknowledged all bytes of the answers."""
    IDLE = "idle"
    """No byte was read or written for serverChannelMaxIdleTimeSeconds."""
    OURS = "ours"
    """This node closed the connection: shutdown, fence or a limit."""


class AppliedChange(NamedTuple):
    """A command that changed the state, for audit logs."""

    command: Command
    removal: str
    """If the command removed brokers: the reason (``routes.history``)."""
    revision: int
    origin: ChangeOrigin | None
    """The caller. None: no request caused the change, or the caller is unknown."""


class LogEvents(Protocol):
    """Events of the log, besides changes, that belong in an audit log."""

    def requested(self, request: str, target: str, origin: ChangeOrigin | None, serial: int) -> None:
        """An operation will be executed by the node that received it. ``serial``: its number among the commands."""

    def restore(self, step: str, restore_id: str, revision: int, origin: ChangeOrigin | None) -> None:
        """A step of a restore was applied. ``revision``: the state's revision after this step."""

    def members(self, index: int, members: Mapping[str, str]) -> None:
        """The entry at ``index`` changed the members. ``members``: kind and address by name."""

    def replaced(self, revision: int) -> None:
        """A snapshot replaced the state, which is now at ``revision``. This node did not apply the commands that led to this
        state."""


class Connection(Protocol):
    """The part of an accepted connection that the service uses."""

    connection_id: int
    """A number that is unique in this process; later connections have higher numbers."""
    peer: str
    """host:port of the other end (after PROXY protocol), for display and logs only."""

    def close(self, reason: CloseReason) -> None:
        """Close after pending bytes have been sent. Idempotent."""

    def charge(self, work_ns: int) -> None:
        """Charge ``work_ns`` of processor time to the address of the other end, because its request takes this time."""


def origin_of(connection: Connection | None) -> ChangeOrigin | None:
    """The sender of the present request of a connection. None: unknown (``accessPolicy=open``)."""
    return getattr(connection, "origin", None)


@dataclass(frozen=True, slots=True)
class DataVersionAnswer:
    """Answer of ``QUERY_DATA_VERSION`` (322): ``changed`` and the stored version, None for an unknown broker."""

    changed: bool
    stored: DataVersion | None


T = TypeVar("T")


def quotas_of(settings: "StateLimits", state: RouteInfoManager) -> Quotas:
    """The limits on the size of ``state``."""
    return Quotas(
        {
            STATE: lambda: settings.max_state_bytes,
            KV: lambda: settings.max_kv_bytes,
            NAMESPACE: lambda: settings.max_kv_namespace_bytes,
            BROKER: lambda: settings.max_broker_bytes,
        },
        state.needs,
    )


def within(quotas: Quotas, command: Command, act: Callable[[Grant], "T | Future[T]"]) -> "T | Future[T]":
    """Check that there is room for ``command``, call ``act``, which applies or proposes it, and return its result.

    If the result is not there at once, the room is held until it is. ``act`` holds it, too, if the command may still be applied
    after that. Raises LimitError without calling ``act``."""
    grant = quotas.check(command)
    outcome = act(grant)
    if isinstance(outcome, Future):
        grant.hold()
        outcome.add_done_callback(lambda future: grant.release())
    return outcome


class StateLimits(Protocol):
    """The settings that limit the state."""

    max_state_bytes: int
    max_kv_bytes: int
    max_kv_namespace_bytes: int
    max_broker_bytes: int


class FreshState(Protocol):
    """The state, and the wait until it is fresh enough for an answer."""

    @property
    def state(self) -> RouteInfoManager:
        """The applied state. Read it in the same loop turn in which ``barrier`` completed, and never write to it."""

    def barrier(self, level: ReadLevel | None, max_staleness_ms: int | None) -> "Freshness | Future[Freshness]":
        """Wait until ``state`` is fresh enough. ``level`` None: the configured default. ``max_staleness_ms`` bounds the age of
        a stale answer. Answers of other levels have no age.

        Raises UnavailableError, or fails the Future with it, if the freshness cannot be confirmed in time. Raises StaleReadError
        if the state is older than allowed. Several callers may share one Future: a caller that can be cancelled shields it.
        """

"""What the server, the admin side and the nodes that keep the state share: read levels, connections, quotas.

A node is an ``IndependentNode`` (AP) or a ``ReplicatedNode`` (CP). Its users do not know which: each declares, next to itself, a
protocol with what it calls (``QueryService``, ``AdminService``). A node derives from none of them.
``process.NodeService`` is their sum, against which mypy checks both nodes.

Reads pass ``barrier`` and then look at ``state``. Writes are proposed and give a result or an error of ``errors``. A call may
complete at once or later: AP and cheap CP paths return the value itself, so that the hot path pays for no coroutine. Everything
else returns a Future.
"""

from asyncio import Future
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol, TypeVar

from replicated_namesrv.model import DataVersion
from replicated_namesrv.routes.commands import Command
from replicated_namesrv.routes.quotas import BROKER, KV, NAMESPACE, STATE, Quotas
from replicated_namesrv.routes.state import RouteInfoManager


class ReadLevel(StrEnum):
    """How fresh an answer must be, or was."""

    LINEARIZABLE = "linearizable"
    """Everything acknowledged before the request came, on whichever node."""
    LEASE = "lease"
    """The same, from a leader that asks nobody as long as clocks run as evenly as declared."""
    STALE = "stale"
    """What this node has applied, with its age."""
    LOCAL = "local"
    """What an independent node (AP) gives, whatever is asked for: all that it knows, and no promise."""


ASKABLE_LEVELS = (ReadLevel.LINEARIZABLE, ReadLevel.LEASE, ReadLevel.STALE)
UNKNOWN_AGE = -1


class Freshness(NamedTuple):
    """What a read may rely on: the level that was reached and where the state stands."""

    level: ReadLevel
    term: int
    """Of Raft; 0 on an independent node."""
    leader: str
    """Node id of the leader; empty where there is none or none is known."""
    staleness_ms: int
    """The state holds everything that was acknowledged this long ago; UNKNOWN_AGE where nobody can tell."""


class CloseReason(StrEnum):
    """Why a connection ended. Only the first two say anything about the peer at its other end."""

    PEER = "peer"
    """The peer closed it, reset it or sent what no peer may send."""
    IDLE = "idle"
    """Nothing was read or written for serverChannelMaxIdleTimeSeconds."""
    OURS = "ours"
    """Shutdown, fence or a limit: our own doing."""


class Connection(Protocol):
    """One accepted connection, as far as the service needs it: its identity, and to be closed."""

    connection_id: int
    """Unique in the life of this process, ascending with acceptance."""
    peer: str
    """host:port of the other end (after PROXY protocol), for people and logs only."""
    opened_revision: int
    """``state.revision`` when it was accepted."""

    def close(self, reason: CloseReason) -> None:
        """Close after what is already written has been sent; at once if nothing is pending. Idempotent."""


@dataclass(frozen=True, slots=True)
class DataVersionAnswer:
    """Answer of code 322: ``changed`` and the stored version, None for an unknown broker."""

    changed: bool
    stored: DataVersion | None


T = TypeVar("T")


def quotas_of(settings: "StateLimits", state: RouteInfoManager) -> Quotas:
    """The bounds on what ``state`` may take."""
    return Quotas(
        {
            STATE: lambda: settings.max_state_bytes,
            KV: lambda: settings.max_kv_bytes,
            NAMESPACE: lambda: settings.max_kv_namespace_bytes,
            BROKER: lambda: settings.max_broker_bytes,
        },
        state.needs,
    )


def within(quotas: Quotas, command: Command, act: Callable[[], "T | Future[T]"]) -> "T | Future[T]":
    """What ``act``, which applies or proposes ``command``, gives. Room for it is taken until then. Raises LimitError, without
    having called ``act``."""
    grant = quotas.grant(command)
    try:
        outcome = act()
    except BaseException:
        grant.release()
        raise
    if isinstance(outcome, Future):
        outcome.add_done_callback(lambda future: grant.release())
    else:
        grant.release()
    return outcome


class StateLimits(Protocol):
    """The settings that bound the state."""

    max_state_bytes: int
    max_kv_bytes: int
    max_kv_namespace_bytes: int
    max_broker_bytes: int


class FreshState(Protocol):
    """The state, and the wait until it is fresh enough to answer from."""

    @property
    def state(self) -> RouteInfoManager:
        """Applied state. Read it in the same loop turn in which ``barrier`` completed, never write to it."""

    def barrier(self, level: ReadLevel | None, max_staleness_ms: int | None) -> "Freshness | Future[Freshness]":
        """Wait until ``state`` is fresh enough. ``level`` None: the configured default. ``max_staleness_ms`` bounds the age of a
        stale answer. An answer of another level has no age.

        Raises or fails the Future with UnavailableError when that cannot be confirmed in time, StaleReadError when the state is
        older than allowed. Many may wait for one Future: a caller that can be cancelled shields it.
        """

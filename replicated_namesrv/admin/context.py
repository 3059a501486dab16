"""The interfaces through which the admin side uses a node."""

from asyncio import Future
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from aiohttp import web

from replicated_namesrv.access.access_control import AccessControl
from replicated_namesrv.admin.health import Layer
from replicated_namesrv.admin.loop_lag import LoopLag
from replicated_namesrv.model import ChangeOrigin
from replicated_namesrv.routes.commands import Command
from replicated_namesrv.routes.history import History
from replicated_namesrv.routes.quotas import Quotas
from replicated_namesrv.routes.results import Result
from replicated_namesrv.server.server_metrics import ServerMetrics
from replicated_namesrv.server.turn_shares import TurnShares
from replicated_namesrv.service import Connection, FreshState, Measurement, NodeAddress
from replicated_namesrv.settings import Settings


class Drained(NamedTuple):
    """The result of a drain."""

    moved: int
    """Number of connections that were closed while they had no unanswered request."""
    cut: int
    """Number of connections that still had unanswered requests when the time was over and they were closed."""


class ChangedService(FreshState, Protocol):
    """The part of the service that HTTP handlers use to change the state."""

    @property
    def quotas(self) -> Quotas:
        """The limits on the state; ``propose`` raises LimitError beyond them."""

    def propose(
        self, command: Command, connection: Connection | None, origin: ChangeOrigin | None = None
    ) -> Result | Future[Result]:
        """Apply ``command``. ``connection`` is None if it did not arrive over a remoting connection. Errors: LimitError,
        UnavailableError (both certainly not applied), OutcomeUnknownError, StorageError."""

    def update_config(self, values: Mapping[str, str], origin: ChangeOrigin | None = None) -> Result | Future[Result]:
        """Write settings to disk, then apply them."""

    def config_text(self) -> str:
        """Settings in force: sorted ``key=value`` lines."""


class OperatedService(Protocol):
    """The part of the service that operates a whole node or cluster."""

    def check_restore(self) -> None:
        """Raise SettingError if this node cannot restore any backup."""

    async def announce(self, request: str, target: str | None, origin: ChangeOrigin | None) -> None:
        """Record an operation of ``origin`` in the audit log of every node of a cluster, before it is executed. Raises
        UnavailableError, OutcomeUnknownError, NoPermissionError."""

    def restore(self, snapshot: Iterable[bytes], origin: ChangeOrigin | None = None) -> "Future[Result]":
        """Replace a fresh cluster's state by the snapshot of a backup. A result code other than 0 means that the restore was
        refused.

        Fails as a proposal does, with the errors of ``snapshot``, and with NoPermissionError."""

    def transfer_leadership(self, to: str | None) -> "Future[None]":
        """Transfer leadership to ``to``, or to the node with the longest log. Raises SettingError if this node is not the leader
        or ``to`` is not another member. Fails with UnavailableError if leadership was not transferred."""


class MembersService(Protocol):
    """The part of the service that lists and changes the nodes."""

    def change_member(self, action: str, name: str, address: tuple[str, int] | None, observer: bool) -> "Future[None]":
        """``add``, ``remove``, ``promote`` or ``move`` a member (CP); ends when the change is committed. Raises or fails with
        SettingError (refused, with the remedy), UnavailableError (certainly not done, may succeed later) or
        OutcomeUnknownError."""

    def on_own_address(self, own: Callable[[], NodeAddress]) -> None:
        """Set the function that returns where brokers and clients reach this node."""

    def node_addresses(self) -> list[NodeAddress]:
        """Where brokers and clients reach the nodes that this one knows, itself included."""

    @property
    def group_id(self) -> str:
        """Identifies the cluster: two clusters of the same name have different ids. Empty while it is unknown, and in AP."""

    def members(self) -> list[dict[str, object]]:
        """The members of the cluster, ready for JSON. Raises SettingError in AP."""


class DrainedNode(Protocol):
    """A node that can be drained."""

    @property
    def is_drained(self) -> bool:
        """Whether the node is drained: brokers and clients were disconnected and cannot connect."""

    def announce_drain(self) -> None:
        """Leave the address lists of all nodes. ``drain`` or ``resume`` has to follow."""

    async def drain(self, within_s: float) -> Drained | None:
        """Close the connections of brokers and clients within ``within_s`` seconds. Refuse new ones until ``resume`` or a
        restart. None: ``resume`` or another drain ended this one."""

    async def resume(self) -> None:
        """Serve again. Raises SettingError if another process has taken the port."""


class WatchedService(Protocol):
    """The part of the service that watchers use."""

    @property
    def history(self) -> History:
        """The latest changes."""

    @property
    def history_id(self) -> str:
        """Identifies the history that numbers the revisions. An independent node has a new id after each start. It is empty if
        the nodes share one history."""

    def on_leader(self, notify: Callable[[str | None, int], None]) -> None:
        """Call ``notify(leader, term)`` at once and at each change of the leader known to this node. No-op in AP."""

    def on_suspected(self, notify: Callable[[tuple[str, str], int | None], None]) -> None:
        """Call ``notify(broker, since_ms)`` when a broker becomes suspected (``suspected_since``), and with None when the broker
        is no longer suspected. No-op in AP."""


class ObservedService(Protocol):
    """The part of the service that status and metrics use."""

    @property
    def expired_count(self) -> int:
        """Number of brokers removed since the start because no heartbeat arrived."""

    @property
    def lost_count(self) -> int:
        """Number of brokers removed since the start because their connection ended."""

    @property
    def fenced(self) -> bool:
        """Whether this node is fenced: it receives no confirmed read index. Always false in AP."""

    @property
    def answers_stale(self) -> bool:
        """Whether requests that name no level get stale answers because there is no majority (noQuorumPolicy=serve-stale)."""

    @property
    def staleness_ms(self) -> int:
        """Every write acknowledged at least this many milliseconds ago is in the state; UNKNOWN_AGE if the age is unknown."""

    @property
    def unsynced_ms(self) -> float:
        """Age of the oldest write to the log that is not on the disk; 0 if there is none."""

    @property
    def disk_warning(self) -> str | None:
        """A warning if free disk space is so low that commands that add to the state are refused; None if there is enough."""

    @property
    def disk_free_bytes(self) -> int | None:
        """Free bytes on the disk, None while unknown."""

    @property
    def peer_refusals(self) -> Mapping[str, int]:
        """Connections and messages of peers that were refused since the start, by the kind of refusal. Empty where there are no
        peers."""

    def heartbeat_age_ms(self, cluster_name: str, broker_addr: str) -> float | None:
        """Milliseconds since the broker's last heartbeat at this node, or at any node if this one is the leader. None if none is
        known."""

    def suspected_since(self) -> Mapping[tuple[str, str], int]:
        """Brokers (cluster, address) that have been silent for a third of their time-out or more, and when this silence was
        recorded, in milliseconds since 1970. Empty in AP."""

    def measurements(self) -> Iterator[Measurement]:
        """Metrics of replication. Empty in AP, and before the node takes part in its cluster."""

    def replication_status(self) -> dict[str, object] | None:
        """Raft status of this node, ready for JSON; None in AP."""

    def contacts(self) -> Mapping[str, object]:
        """The facts that Raft knows about its peers' connections, ready for JSON. Empty in AP, and before the node takes part in
        its cluster."""


class AdminService(ChangedService, OperatedService, WatchedService, ObservedService, MembersService, Protocol):
    """All parts of the service that the admin port uses."""


class ObservedServer(Protocol):
    """The part of the remoting server that the admin side uses."""

    metrics: ServerMetrics
    shares: TurnShares

    @property
    def is_listening(self) -> bool:
        """Whether brokers and clients can connect."""

    @property
    def port(self) -> int:
        """The port to listen on, even while the node does not listen; 0 before the first start if the kernel chooses."""


@dataclass(frozen=True, slots=True)
class AdminContext:
    """Everything that handlers use."""

    settings: Settings
    service: AdminService
    remoting: ObservedServer
    layers: Sequence[Layer]
    """The layers of readiness, the lowest one first."""
    loop_lag: LoopLag
    started_monotonic_s: float
    node: DrainedNode
    access: AccessControl | None = None
    """The access control of the node. None: only the token of adminTokenFile decides."""
    replacing: dict[str, str] = field(default_factory=dict)
    """The new node for each member whose replacement this node has begun and not finished."""


CONTEXT = web.AppKey("context", AdminContext)

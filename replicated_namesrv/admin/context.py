"""What the admin side needs of the rest of a node, said as small interfaces that it owns."""

from asyncio import Future
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from aiohttp import web

from replicated_namesrv.admin.health import Layer
from replicated_namesrv.admin.loop_lag import LoopLag
from replicated_namesrv.routes.commands import Command
from replicated_namesrv.routes.history import History
from replicated_namesrv.routes.quotas import Quotas
from replicated_namesrv.routes.results import Result
from replicated_namesrv.server.server_metrics import ServerMetrics
from replicated_namesrv.service import Connection, FreshState
from replicated_namesrv.settings import Settings


class ChangedService(FreshState, Protocol):
    """What changes over HTTP need."""

    @property
    def quotas(self) -> Quotas:
        """The limits on the state; ``propose`` raises LimitError beyond them."""

    def propose(self, command: Command, connection: Connection | None) -> Result | Future[Result]:
        """Apply ``command``; ``connection`` None: it came over none. Errors: LimitError, UnavailableError (both surely not
        applied), OutcomeUnknownError, StorageError."""

    def update_config(self, values: Mapping[str, str]) -> Result | Future[Result]:
        """Write settings, then put them in force."""

    def config_text(self) -> str:
        """Settings in force: sorted ``key=value`` lines."""


class OperatedService(Protocol):
    """What operations on a whole node or cluster need."""

    def check_restore(self) -> None:
        """Raises SettingError if this node takes no backup, whatever is in it."""

    def restore(self, snapshot: AsyncIterator[bytes]) -> "Future[Result]":
        """Put the snapshot in a backup in the place of a fresh cluster's state; a result with a code other than 0: refused.
        Fails as a proposal does, and with what ``snapshot`` raises."""

    def transfer_leadership(self, to: str | None) -> "Future[None]":
        """Hand over to ``to``, or to the node that is furthest. Raises SettingError (this node does not lead, or there is no
        such other node); fails with UnavailableError: nothing came of it."""


class WatchedService(Protocol):
    """What watchers need."""

    @property
    def history(self) -> History:
        """The latest changes."""

    @property
    def history_id(self) -> str:
        """Which history revisions are counted in: one of its own for each life of an independent node, empty where nodes share
        one."""

    def on_leader(self, notify: Callable[[str | None, int], None]) -> None:
        """``notify(leader, term)`` at once and at each change of the leader that this node knows. Never where nodes elect
        none."""

    def on_suspected(self, notify: Callable[[tuple[str, str], int | None], None]) -> None:
        """``notify(broker, since_ms)`` when a broker begins to be suspected (``suspected_since``), and with None when it ends.
        Never where silence is not recorded."""


class ObservedService(Protocol):
    """What status and metrics need."""

    @property
    def expired_count(self) -> int:
        """Brokers removed because no heartbeat came, since the start."""

    @property
    def lost_count(self) -> int:
        """Brokers removed because their connection ended, since the start."""

    @property
    def fenced(self) -> bool:
        """Whether no majority confirms this node. False where none is needed."""

    @property
    def answers_stale(self) -> bool:
        """Whether requests that ask for nothing get stale answers for lack of a majority (noQuorumPolicy=serve-stale)."""

    @property
    def staleness_ms(self) -> int:
        """The state holds everything acknowledged this long ago; UNKNOWN_AGE where that is unknown."""

    @property
    def unsynced_ms(self) -> float:
        """Age of the oldest write to the log that is not on the disk; 0 if there is none."""

    @property
    def disk_warning(self) -> str | None:
        """That so little of the disk is free that what adds to the state is refused; None: there is room."""

    @property
    def disk_free_bytes(self) -> int | None:
        """Bytes free on the disk, None while that is unknown."""

    @property
    def peer_refusals(self) -> Mapping[str, int]:
        """Connections and messages of peers that were refused since the start, by what was refused. Empty where there are no
        peers."""

    def heartbeat_age_ms(self, cluster_name: str, broker_addr: str) -> float | None:
        """Milliseconds since the broker's last heartbeat on this node, or on any if this one leads; None: none is known here."""

    def suspected_since(self) -> Mapping[tuple[str, str], int]:
        """Brokers (cluster, address) that are known to be silent for a third of their time-out or more, and when that was
        recorded, in milliseconds since 1970. Empty where silence is not recorded."""

    def replication_status(self) -> dict[str, object] | None:
        """How this node stands in its group, JSON-able; None where there is no group."""


class AdminService(ChangedService, OperatedService, WatchedService, ObservedService, Protocol):
    """All of these."""


class ObservedServer(Protocol):
    """The remoting server as the admin side sees it."""

    metrics: ServerMetrics

    @property
    def is_listening(self) -> bool:
        """Whether peers can connect."""

    @property
    def port(self) -> int:
        """Port that is listened on."""


@dataclass(frozen=True, slots=True)
class AdminContext:
    """Everything a handler may look at."""

    settings: Settings
    service: AdminService
    remoting: ObservedServer
    layers: Sequence[Layer]
    """What readiness consists of, from the ground up."""
    loop_lag: LoopLag
    started_monotonic_s: float


CONTEXT = web.AppKey("context", AdminContext)

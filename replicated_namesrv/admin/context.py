"""What the admin side needs of the rest of a node, said as small interfaces that it owns."""

from asyncio import Future
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from aiohttp import web

from replicated_namesrv.admin.health import Layer
from replicated_namesrv.admin.loop_lag import LoopLag
from replicated_namesrv.routes.history import History
from replicated_namesrv.routes.results import Result
from replicated_namesrv.server.metrics import ServerMetrics
from replicated_namesrv.service import NameService
from replicated_namesrv.settings import Settings


class ObservedService(NameService, Protocol):
    """A NameService that also tells what it noticed."""

    @property
    def expired_count(self) -> int:
        """Brokers dropped because they were not heard, since the start."""

    @property
    def lost_count(self) -> int:
        """Brokers dropped because their connection ended, since the start."""

    @property
    def fenced(self) -> bool:
        """Whether no majority confirms this node (CP)."""

    @property
    def answers_stale(self) -> bool:
        """Whether requests that ask for nothing get stale answers for lack of a majority (noQuorumPolicy=serve-stale)."""

    @property
    def staleness_ms(self) -> int:
        """The state holds everything acknowledged this long ago; UNKNOWN_AGE where nobody can tell."""

    @property
    def unsynced_ms(self) -> float:
        """Age of the oldest write to the log that is not on the disk; 0 if there is none (CP)."""

    @property
    def disk_problem(self) -> str | None:
        """What is wrong with the disk of the log: a sync has not ended in time (CP)."""

    def heartbeat_age_ms(self, cluster_name: str, broker_addr: str) -> float | None:
        """Milliseconds since the broker's last sign of life on this node; None: not heard here."""

    def on_serving(self, change: Callable[[bool], None]) -> None:
        """``change(False)``: this node can vouch for nothing and has to serve nobody; ``change(True)``: again."""

    def on_failure(self, stop: Callable[[str], None]) -> None:
        """``stop(reason)``: the service cannot go on, and the process should end."""

    history: History
    """What changed of late, for watchers."""
    history_id: str
    """Which history revisions are counted in: one of its own for each life of an independent node, empty where nodes share
    one."""

    def on_leader(self, tell: Callable[[str | None, int], None]) -> None:
        """``tell(leader, term)`` at each change of the leader this node believes in."""

    def restore(self, snapshot: AsyncIterator[bytes]) -> "Future[Result]":
        """Put the snapshot in a backup in the place of a fresh cluster's state; a result with a code other than 0: refused.
        Raises SettingError on an independent node; fails as a proposal does, and with what ``snapshot`` raises."""

    def transfer_leadership(self, to: str | None) -> "Future[None]":
        """Hand over to ``to``, or to the node that is furthest. Raises SettingError (this node does not lead, or there is no
        such other node); fails with UnavailableError: nothing came of it."""

    def replication_status(self) -> dict[str, object] | None:
        """How this node stands in its group (CP), JSON-able; None on an independent node."""


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
    service: ObservedService
    remoting: ObservedServer
    layers: Sequence[Layer]
    """What readiness consists of, from the ground up."""
    loop_lag: LoopLag
    started_monotonic_s: float


CONTEXT = web.AppKey("context", AdminContext)

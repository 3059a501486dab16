"""Syncs under way: what was requested of the disk, since when, and what follows once it is durable."""

from collections.abc import Callable, Sequence

from replicated_namesrv.raft.interfaces import Environment


class Syncs:
    """The syncs of one node. A sync that fails stops the node, so nothing here is requested twice."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._token = 0
        self._pending: dict[int, tuple[float, Callable[[], None]]] = {}
        """By token, oldest first: since when, and what follows."""

    def __len__(self) -> int:
        return len(self._pending)

    def request(self, names: Sequence[str], directory: bool, then: Callable[[], None]) -> None:
        """Sync the named files and, if ``directory``, the directory; ``then`` follows."""
        self._token += 1
        self._pending[self._token] = self._environment.now(), then
        self._environment.request_sync(self._token, names, directory)

    def completed(self, token: int) -> Callable[[], None] | None:
        """What follows the request of this token, which is durable; None if there is no such request."""
        sync = self._pending.pop(token, None)
        return None if sync is None else sync[1]

    @property
    def oldest_at(self) -> float | None:
        """When the oldest sync under way was requested."""
        return next(iter(self._pending.values()))[0] if self._pending else None

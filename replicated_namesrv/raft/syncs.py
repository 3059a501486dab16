"""Syncs in progress: their requests, start times and follow-up calls."""

from collections.abc import Callable, Sequence

from replicated_namesrv.raft.interfaces import Environment


class Syncs:
    """The syncs of one node. A failed sync stops the node, or its files are given up, so no request is repeated."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._token = 0
        self._pending: dict[int, tuple[float, Callable[[], None], Callable[[OSError], None] | None]] = {}
        """Syncs in progress by token, the oldest first: start time, and the functions to call at the end and on a full disk."""

    def __len__(self) -> int:
        return len(self._pending)

    def request(
        self,
        names: Sequence[str],
        directory: bool,
        then: Callable[[], None],
        if_full: Callable[[OSError], None] | None = None,
    ) -> None:
        """Sync the named files and, if ``directory``, the directory; then call ``then``. ``if_full``: called instead if the disk
        has no room for the files, which the caller then gives up; None: the node stops."""
        self._token += 1
        self._pending[self._token] = self._environment.now(), then, if_full
        self._environment.request_sync(self._token, names, directory)

    def completed(self, token: int) -> Callable[[], None] | None:
        """The follow-up call of this token's request, whose files are durable now. None if there is no such request."""
        sync = self._pending.pop(token, None)
        return None if sync is None else sync[1]

    def failed(self, token: int) -> Callable[[OSError], None] | None:
        """The call of this token's request for a full disk. None: there is none."""
        sync = self._pending.pop(token, None)
        return None if sync is None else sync[2]

    @property
    def oldest_at(self) -> float | None:
        """When the oldest sync in progress was requested."""
        return next(iter(self._pending.values()))[0] if self._pending else None

"""Keeps references to the coroutines of one node until they end or the node stops, and limits their time."""

import asyncio
from asyncio import Future
from collections.abc import Coroutine
from typing import Any, TypeVar

from replicated_namesrv.errors import OutcomeUnknownError, UnavailableError

T = TypeVar("T")


class Tasks:
    """The coroutines in progress on a node."""

    def __init__(self) -> None:
        self._running: set[Future[Any]] = set()

    def keep(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        """Run ``work`` until it ends or this node stops."""
        task = asyncio.ensure_future(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    def stop(self) -> None:
        """Cancel all coroutines."""
        for task in list(self._running):
            task.cancel()


class Budget:
    """``asyncio.timeout`` that ends with an UnavailableError, or with the given error."""

    def __init__(self, seconds: float, error: type[UnavailableError | OutcomeUnknownError] = UnavailableError) -> None:
        self._timeout = asyncio.timeout(seconds)
        self._error, self._reason = error, "the leader did not decide in time"

    def use_up(self, reason: str) -> None:
        """Let the time-out expire now, for ``reason``, if it has not expired yet."""
        self._reason = reason
        if not self._timeout.expired():  # a timeout that ends in this turn of the loop cannot be rescheduled
            self._timeout.reschedule(asyncio.get_running_loop().time())

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(self, *failure: Any) -> None:
        try:
            await self._timeout.__aexit__(*failure)
        except TimeoutError:
            raise self._error(self._reason) from None

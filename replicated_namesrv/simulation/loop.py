"""An asyncio event loop in virtual time, so that the shipped code runs unchanged in the simulator.

The loop runs when its machine has a turn. It does no IO. Callbacks run in the order in which they were scheduled, and timers in
the order of their times, so a run is repeatable.
"""

import asyncio
import heapq
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from typing import Any, TypeVar, TypeVarTuple, Unpack

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
_TURNS_MAX = 10_000


class _Running:
    """The context of ``VirtualLoop.running``. It is a class, because each event enters it, and a generator would cost several
    times as much."""

    __slots__ = ("_before", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def __enter__(self) -> None:
        self._before = events._get_running_loop()
        events._set_running_loop(self._loop)

    def __exit__(self, *_: object) -> None:
        events._set_running_loop(self._before)


class VirtualLoop(asyncio.AbstractEventLoop):
    """The event loop of one process. ``now``: seconds of the machine's clock. ``failed`` gets errors that nothing caught."""

    def __init__(self, now: Callable[[], float], failed: Callable[[BaseException | str], None]) -> None:
        self._now, self._failed = now, failed
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._sequence = 0

    # Driving

    def running(self) -> "_Running":
        """Within this context, this is the running loop."""
        return _Running(self)

    def run(self) -> bool:
        """Run all ready callbacks and those that they schedule. Returns False if there were none. Call it within ``running``."""
        for turn in range(_TURNS_MAX):
            now = self._now()
            while self._timers and self._timers[0][0] <= now:
                self._ready.append(heapq.heappop(self._timers)[2])
            if not self._ready:
                return turn > 0
            for _ in range(len(self._ready)):
                handle = self._ready.popleft()
                if not handle.cancelled():
                    handle._run()
        raise RuntimeError("callbacks follow one another without end")

    def next_time(self) -> float:
        """The latest time at which ``run`` must be called."""
        if self._ready:
            return 0.0
        while self._timers and self._timers[0][2].cancelled():
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else float("inf")

    # Methods that asyncio calls

    def time(self) -> float:
        return self._now()

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_soon(self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_later(
        self, delay: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._sequence += 1
        heapq.heappush(self._timers, (when, self._sequence, timer))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """No-op: a cancelled timer is dropped when its time comes."""

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Generator[Any, None, T] | Coroutine[Any, Any, T], *, name: str | None = None, context: Context | None = None
    ) -> "asyncio.Task[T]":
        return asyncio.Task(coro, loop=self, name=name or "simulated", context=context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self._failed(context.get("exception") or context.get("message", "an asyncio callback failed"))

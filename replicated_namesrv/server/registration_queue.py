"""Registrations that wait for their turn: evaluated in slices, so that none of them holds up other connections.

A registration with a small body is evaluated where it arrives, as far as this turn of the loop has time for it. What is left
over then waits, and a large one always does: forty large frames that become complete in one turn cost that turn forty
receptions and nothing more. There are two queues, so that small ones do not wait for large ones, and only the first of each is
in work: what decoding takes beside the bodies is taken once, not by all that wait.

The connection of a waiting registration is read no further until it is applied: what a broker says after it comes after it.
That its peer leaves meanwhile is learned from the kernel, and a large registration is then dropped at once, together with its
memory: nobody waits for it, and its broker would be removed right after it. What waits is bounded in bytes.
"""

import asyncio
import select
from asyncio import Future
from collections import deque
from collections.abc import Generator
from time import perf_counter_ns
from typing import TYPE_CHECKING

from replicated_namesrv.errors import BodyError, LimitError
from replicated_namesrv.server.request import OVERLOAD, Answer, Deferred, Outcome, Request, settle
from replicated_namesrv.server.server_metrics import ServerMetrics

if TYPE_CHECKING:
    from replicated_namesrv.server.connection import RemotingConnection

TURN_BUDGET_NS = 4_000_000
"""Time for evaluating in one turn of the loop; halved between the queues where both have something."""
QUEUED_BYTES_MAX = 512 << 20
"""Bodies that wait, in all; a registration beyond them is answered with code 2, and its broker tries again."""
SMALL_BYTES = 1 << 20
"""A longer body is a large one."""

Evaluation = Generator[None, None, Outcome]
"""Yields between slices. Raises BodyError."""


class Job:
    """A waiting registration."""

    __slots__ = ("body_bytes", "connection", "done", "evaluation", "is_dropped")

    def __init__(self, connection: "RemotingConnection", evaluation: Evaluation, body_bytes: int) -> None:
        self.connection = connection
        self.evaluation = evaluation
        self.body_bytes = body_bytes
        self.is_dropped = False
        self.done: Future[Answer] = asyncio.get_running_loop().create_future()


class RegistrationQueue:
    """Both queues."""

    def __init__(self, metrics: ServerMetrics) -> None:
        self.queued_bytes = 0
        """Bodies that wait."""
        self._metrics = metrics
        self._small: deque[Job] = deque()
        self._large: deque[Job] = deque()
        self._jobs: dict[RemotingConnection, list[Job]] = {}
        """All that wait, by connection; where renewals must be confirmed a connection may have several."""
        self._departures = select.poll()
        self._watched: dict[int, RemotingConnection] = {}
        """Connections of large registrations, by descriptor."""
        self._descriptors: dict[RemotingConnection, int] = {}
        """The same, the other way: a connection that is lost has no descriptor any more."""
        self._spent_ns = 0
        """Time taken in this turn of the loop."""
        self._turn_scheduled = False

    def evaluate(self, request: Request, evaluation: Evaluation) -> Outcome:
        """The outcome of a registration, now or later. Raises BodyError."""
        body_bytes = request.bounds.end - request.bounds.body_start
        is_small = body_bytes <= SMALL_BYTES
        if is_small and not self._small and self._spent_ns < TURN_BUDGET_NS:
            outcome = self._advance(evaluation, perf_counter_ns() + TURN_BUDGET_NS - self._spent_ns)
            self._schedule_turn()
            if outcome is not None:
                return outcome
        if self.queued_bytes + body_bytes > QUEUED_BYTES_MAX:
            self._metrics.hit_limit("queuedRegistrationBytes")
            return OVERLOAD
        job = Job(request.connection, evaluation, body_bytes)
        (self._small if is_small else self._large).append(job)
        self.queued_bytes += body_bytes
        self._jobs.setdefault(job.connection, []).append(job)
        if not is_small:
            descriptor = job.connection.descriptor
            self._watched[descriptor] = job.connection
            self._descriptors[job.connection] = descriptor
            self._departures.register(descriptor, select.POLLRDHUP)
        self._schedule_turn()
        job.connection.suspend()
        return Deferred(job.done, lambda answer: answer)

    def drop(self, connection: "RemotingConnection") -> None:
        """Forget what waits of a connection that is gone."""
        for job in self._jobs.get(connection, [])[:]:
            self._remove(job)
            job.is_dropped = True
            job.evaluation.close()
            job.done.cancel()

    def stop(self) -> None:
        """Drop everything."""
        for connection in list(self._jobs):
            self.drop(connection)

    def _remove(self, job: Job) -> None:
        self.queued_bytes -= job.body_bytes
        jobs = self._jobs[job.connection]
        jobs.remove(job)
        if not jobs:
            del self._jobs[job.connection]
            descriptor = self._descriptors.pop(job.connection, None)
            if descriptor is not None and self._watched.get(descriptor) is job.connection:  # it may be another's by now
                del self._watched[descriptor]
                self._departures.unregister(descriptor)

    def _schedule_turn(self) -> None:
        if not self._turn_scheduled:
            self._turn_scheduled = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_scheduled = False
        self._spent_ns = 0
        if not self._jobs:
            return
        for descriptor, _ in self._departures.poll(0):
            connection = self._watched[descriptor]
            self.drop(connection)
            connection.resume()  # it reads that its peer has gone
        budget_ns = TURN_BUDGET_NS // 2 if self._small and self._large else TURN_BUDGET_NS
        for queue in (self._small, self._large):
            self._serve(queue, perf_counter_ns() + budget_ns)
        if self._jobs:
            self._schedule_turn()

    def _serve(self, queue: deque[Job], until_ns: int) -> None:
        """Evaluate the oldest of ``queue``."""
        while queue and perf_counter_ns() < until_ns:
            job = queue[0]
            if not job.is_dropped:
                try:
                    outcome = self._advance(job.evaluation, until_ns)
                    if outcome is None:
                        return
                    settle(job.done, outcome)
                except (BodyError, LimitError) as error:  # its traceback would hold the body, in a circle with the future
                    job.done.set_result(Answer(error.response_code, str(error)))
                except Exception as error:
                    job.done.set_exception(error)
                self._remove(job)
                if job.connection not in self._jobs:
                    job.connection.resume()
            queue.popleft()

    def _advance(self, evaluation: Evaluation, until_ns: int) -> Outcome | None:
        """Evaluate until there is an outcome or the time is up (None). Raises BodyError."""
        started_ns = perf_counter_ns()
        try:
            while True:
                next(evaluation)
                if perf_counter_ns() >= until_ns:
                    return None
        except StopIteration as stop:
            outcome: Outcome = stop.value
            return outcome
        finally:
            self._spent_ns += perf_counter_ns() - started_ns

"""LongAnswers: builds answers that may be large in steps, within the share of the event loop's time that an address may use.

One answer can consist of a million names, which takes seconds. In CP, so long a turn of the event loop would cost a leader its
leadership. An answer of a few steps, or one that is built in ``SHARE_NS``, is sent at once. Otherwise its remaining steps run
later, within the share of the address (``turn_shares.py``). Only one answer of an address is begun at a time, which bounds the
memory for incomplete ones. An answer is dropped when its connection closes.
"""

import asyncio
from asyncio import Future
from collections import deque
from functools import partial
from itertools import count
from time import perf_counter_ns

from replicated_namesrv.server.connection import RemotingConnection
from replicated_namesrv.server.request import OVERLOAD, Answer, Deferred, Outcome, Request
from replicated_namesrv.server.turn_shares import SHARE_NS, Share, TurnShares
from replicated_namesrv.steps import Steps

JOBS_MAX = 1_024
"""Maximum number of answers of one address that wait. Further requests are answered with code 2, so that one address cannot use
up defaultThreadPoolQueueCapacity."""


FEW_STEPS = 8
"""This number of steps is done at once, however long they take. Usual answers need no more steps. So they are sent in the order
of their requests, also on a slow machine. A step takes at most some milliseconds."""


class _Job:
    """An answer that is not complete."""

    __slots__ = ("connection", "done", "steps")

    def __init__(self, connection: RemotingConnection, steps: Steps[Answer]) -> None:
        self.connection, self.steps = connection, steps
        self.done: Future[Answer] = asyncio.get_running_loop().create_future()


class LongAnswers:
    """The incomplete answers of a server."""

    def __init__(self, shares: TurnShares) -> None:
        self._shares = shares
        self._jobs: dict[Share, deque[_Job]] = {}
        """Incomplete answers of each address. Only the first one is begun."""

    def build(self, request: Request, steps: Steps[Answer]) -> Outcome:
        """The answer, now or later. Raises the errors of ``steps``."""
        connection = request.connection
        jobs = self._jobs.get(connection.share)
        if jobs is None:
            answer = _advance(steps, FEW_STEPS)
            if answer is not None:
                return answer
            jobs = self._jobs[connection.share] = deque()
            self._shares.later(connection.share, partial(self._work, connection.share))
        elif len(jobs) >= JOBS_MAX:
            return OVERLOAD
        job = _Job(connection, steps)
        jobs.append(job)
        request.lasting_topic = None  # the state may have changed when the answer is complete
        return Deferred(job.done, lambda answer: answer)

    def stop(self) -> None:
        """Drop everything."""
        jobs = [job for waiting in self._jobs.values() for job in waiting]
        self._jobs.clear()
        for job in jobs:
            job.steps.close()
            job.done.cancel()

    def _work(self, share: Share) -> None:
        """Do the next steps for an address."""
        jobs = self._jobs.get(share)
        if jobs is None:  # stopped
            return
        job = jobs[0]
        try:
            if job.connection.is_closing:
                job.steps.close()
                job.done.cancel()
            elif (answer := _advance(job.steps, 1)) is not None:
                job.done.set_result(answer)
        except Exception as error:
            job.done.set_exception(error)
        if job.done.done():
            jobs.popleft()
        if jobs:
            self._shares.later(share, partial(self._work, share))
        else:
            del self._jobs[share]


def _advance(steps: Steps[Answer], steps_min: int) -> Answer | None:
    """Do steps for ``SHARE_NS``, and at least ``steps_min``. None: there are more."""
    until_ns = perf_counter_ns() + SHARE_NS
    for number in count(1):
        try:
            next(steps)
        except StopIteration as stop:
            answer: Answer = stop.value
            return answer
        if number >= steps_min and perf_counter_ns() >= until_ns:
            break
    return None

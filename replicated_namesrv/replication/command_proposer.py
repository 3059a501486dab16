"""CommandProposer: commands on their way through the log."""

import asyncio
from asyncio import Future
from collections.abc import Callable

from replicated_namesrv.errors import OutcomeUnknownError, UnavailableError
from replicated_namesrv.raft.interfaces import Committed, Outcome, Rejected
from replicated_namesrv.replication.command_kinds import version_of
from replicated_namesrv.replication.consensus import Consensus
from replicated_namesrv.replication.read_barrier import NO_MAJORITY
from replicated_namesrv.replication.route_machine import ProposalResult
from replicated_namesrv.replication.tasks import Budget, Tasks

HEAVY_TOPICS = 20_000
"""A command that concerns more topics (some 4 ms) is proposed when the one before it has been applied: many of them in one entry
would hold all nodes for longer than an election takes."""


class CommandProposer:
    """Of one node, on its event loop. Every command goes with the version that its kind needs (``command_kinds.py``)."""

    def __init__(self, consensus: Consensus, tasks: Tasks, budget_ms: int, is_fenced: Callable[[], bool]) -> None:
        """``budget_ms``: what a proposal may take, the wait for heavy ones before it included."""
        self._consensus, self._tasks, self._budget_ms, self._is_fenced = consensus, tasks, budget_ms, is_fenced
        self._waiting: dict[Future[Outcome], None] = {}
        """Proposals without an outcome."""
        self._heavy = asyncio.Lock()
        """Held by the heavy command under way."""

    async def propose(self, data: bytes, timeout_ms: int | None = None, topics: int = 0) -> ProposalResult:
        """Through the log. Raises UnavailableError (surely not applied), OutcomeUnknownError, at the latest when the fence
        comes. ``timeout_ms`` None: that of all requests. ``topics``: so many the command concerns."""
        if topics <= HEAVY_TOPICS:
            return await self._propose(data, timeout_ms)
        async with Budget((timeout_ms or self._budget_ms) / 1000):
            await self._heavy.acquire()
        try:
            return await self._propose(data, timeout_ms)
        finally:
            self._heavy.release()

    async def _propose(self, data: bytes, timeout_ms: int | None) -> ProposalResult:
        if self._is_fenced():
            raise UnavailableError(NO_MAJORITY)
        proposed = self._consensus.propose(data, version_of(data), timeout_ms)
        self._waiting[proposed] = None
        try:
            outcome = await proposed
        finally:
            self._waiting.pop(proposed, None)
        if isinstance(outcome, Committed):
            assert isinstance(outcome.result, ProposalResult), outcome.result
            return outcome.result
        if isinstance(outcome, Rejected):
            raise UnavailableError(outcome.reason)
        raise OutcomeUnknownError(outcome.reason)

    def decide(self, data: bytes) -> "Future[ProposalResult | None]":
        """Propose a command of the leader's own, fenced or not; None: its outcome is not known, or it was not taken."""
        return self._tasks.keep(self._decide(data))

    async def _decide(self, data: bytes) -> ProposalResult | None:
        outcome = await self._consensus.propose(data, version_of(data))
        return outcome.result if isinstance(outcome, Committed) and isinstance(outcome.result, ProposalResult) else None

    def give_up(self, reason: str) -> None:
        """Those who wait for an outcome get OutcomeUnknownError."""
        for proposed in list(self._waiting):
            if not proposed.done():
                proposed.set_exception(OutcomeUnknownError(reason))

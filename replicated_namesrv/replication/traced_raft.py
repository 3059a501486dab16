"""TracedRaft: Raft of one node with spans of proposals. Exists only with ``traceEndpoint``.

The state machine and the driver of Raft are wrapped, so Raft itself knows nothing of spans. When a command is applied, its bytes
identify the proposal. If several equal commands are proposed at once, the first one applied counts as the first one proposed.
"""

import time
from asyncio import Future
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from replicated_namesrv.raft.interfaces import Committed, Observer, Outcome, StateMachine
from replicated_namesrv.raft.raft_config import RaftConfig
from replicated_namesrv.raft.raft_service import RaftService
from replicated_namesrv.raft.transport import TransportSettings
from replicated_namesrv.replication.consensus import RaftFactory
from replicated_namesrv.replication.route_machine import RouteStateMachine
from replicated_namesrv.tracing import REQUEST_SPAN, Tracing

if TYPE_CHECKING:
    from replicated_namesrv.tracing import Span


class Proposed:
    """A traced proposal without an outcome."""

    def __init__(self, span: "Span") -> None:
        self.span, self.began_ns = span, time.time_ns()
        self.apply_ns, self.applied_ns = 0, 0


class ProposalSpans:
    """The traced proposals of one node. Raft bounds how many there are."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing
        self.waiting: dict[bytes, list[Proposed]] = {}

    def proposed(self, parent: "Span", command: bytes, outcome: "Future[Outcome]") -> None:
        """A command was proposed for a traced request."""
        proposed = Proposed(self._tracing.child(parent, "proposal"))
        self.waiting.setdefault(command, []).append(proposed)
        outcome.add_done_callback(partial(self._ended, command, proposed))

    def _ended(self, command: bytes, proposed: Proposed, future: "Future[Outcome]") -> None:
        others = [one for one in self.waiting.pop(command, []) if one is not proposed]
        if others:
            self.waiting[command] = others
        outcome = None if future.cancelled() else future.result()
        span = proposed.span
        span.set_attribute("raft.outcome", type(outcome).__name__.lower())
        if isinstance(outcome, Committed):
            span.set_attributes({"raft.log_index": outcome.log_index, "raft.term": outcome.term})
            if proposed.applied_ns:
                self._tracing.child(span, "commit", proposed.began_ns).end(proposed.apply_ns)
                self._tracing.child(span, "apply", proposed.apply_ns).end(proposed.applied_ns)
        span.end()


class TracedMachine:
    """A state machine that records when it applied traced proposals."""

    def __init__(self, machine: StateMachine, spans: ProposalSpans) -> None:
        self._machine, self._spans = machine, spans
        self.snapshot, self.restore, self.digest = machine.snapshot, machine.restore, machine.digest

    def apply(self, command: bytes) -> object:
        """Apply ``command``."""
        waiting = self._spans.waiting.get(command)
        proposed = next((one for one in waiting if not one.applied_ns), None) if waiting else None
        if proposed is None:
            return self._machine.apply(command)
        proposed.apply_ns = time.time_ns()
        try:
            return self._machine.apply(command)
        finally:
            proposed.applied_ns = time.time_ns()


class TracedRaftService(RaftService):
    """Raft with sockets and files, which makes a span for each proposal of a traced request."""

    spans: ProposalSpans

    def propose(self, command: bytes, timeout_ms: int | None = None, version: int = 0) -> "Future[Outcome]":
        outcome = super().propose(command, timeout_ms, version)
        parent = REQUEST_SPAN.get()
        if parent is not None:
            self.spans.proposed(parent, command, outcome)
        return outcome


def traced_raft(
    transport: TransportSettings,
    folder: Path,
    machine: StateMachine,
    advertised: Mapping[str, tuple[str, int]],
    joins: bool,
    dial: Mapping[str, tuple[str, int]],
    tracing: Tracing,
) -> RaftFactory:
    """Like ``raft_on_sockets``, with spans."""

    def factory(routes: RouteStateMachine, config: RaftConfig, observer: Observer) -> TracedRaftService:
        spans = ProposalSpans(tracing)
        service = TracedRaftService(
            transport, folder, TracedMachine(machine, spans), config, observer, advertised=advertised, joins=joins, dial=dial
        )
        service.spans = spans
        return service

    return factory

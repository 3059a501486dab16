"""One leader of a term, event by event. Tests decide what is committed and when."""

from asyncio import Future
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from random import Random

from replicated_namesrv.raft.interfaces import NEVER, Outcome, ReadOutcome, ReadReady
from replicated_namesrv.replication.liveness.defences import LivenessDefences
from replicated_namesrv.replication.liveness.leader_messages import (
    AGE_MAX,
    ALONE,
    HELD,
    REMOVE,
    Decision,
    Inquiry,
    Message,
    NodeReport,
    ReportAnswer,
    ReportEntry,
    encode_removal,
)
from replicated_namesrv.replication.liveness.leader_role import LeaderRole
from replicated_namesrv.replication.liveness.liveness_context import LivenessContext
from replicated_namesrv.replication.route_machine import (
    ProposalResult,
    RouteStateMachine,
    content_of,
    encode_lead,
    encode_register,
)
from replicated_namesrv.routes.commands import BrokerRemoval
from replicated_namesrv.routes.results import BrokerRemoved
from replicated_namesrv.routes.state import RouteSettings
from replicated_namesrv.simulation.loop import VirtualLoop
from replicated_namesrv.simulation.route_cluster import silenced
from tests.replication.virtual import KEY, TIMEOUT_MS, registration

MEMBERS = ("n1", "n2", "n3")
TERM = 5
TIME_MS = 1_000_000
"""The leader's clock."""


class Group:
    """n1 leads. The test triggers every decision and confirmation."""

    led_term: int | None = TERM
    term = TERM
    leader: str | None = "n1"
    removed: str | None = None
    command_version = 1

    def __init__(self, loop: VirtualLoop, machine: RouteStateMachine) -> None:
        self._loop, self.machine = loop, machine
        self.proposed: list[tuple[bytes, Future[ProposalResult | None]]] = []
        self.reads: list[Future[ReadOutcome]] = []
        self.confirmed_ms = NEVER
        """The time for which heartbeats confirm the state."""

    def tell(self, peer: str, data: bytes) -> None:
        raise AssertionError("the leader answers through what it was given")

    def read_index(self) -> "Future[ReadOutcome]":
        self.reads.append(self._loop.create_future())
        return self.reads[-1]

    def lease_valid(self) -> bool:
        return False

    def propose(self, command: bytes, version: int, timeout_ms: int | None = None) -> "Future[Outcome]":
        raise AssertionError("the leader proposes through what it was given")

    def decide(self, data: bytes) -> "Future[ProposalResult | None]":
        self.proposed.append((data, self._loop.create_future()))
        return self.proposed[-1][1]


class Scene:
    """One leader of TERM, to whom the broker is known as registered in an earlier term."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.now_ms = 0.0
        self.sent: list[tuple[str, Message]] = []
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.is_patient = False
        """Whether time-outs wait for ``run_timers``."""
        self.machine = RouteStateMachine()
        self.machine.apply(encode_lead(RouteSettings(), 0, TERM - 1))
        self.register(1)
        self.group = Group(loop, self.machine)
        self.context = LivenessContext(
            "n1",
            MEMBERS,
            self.machine,
            self.group,
            self.group.decide,
            RouteSettings,
            500,
            lambda: self.now_ms,
            lambda: self.now_ms,
            lambda: TIME_MS,
            Random(1),
            LivenessDefences(),
        )
        self.leading = LeaderRole(TERM, self.context, self._send, self._later)
        self._sequences = dict.fromkeys(MEMBERS, 0)

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        self.timers.append((seconds, act))
        if not self.is_patient:
            self.run_timers()

    def run_timers(self) -> None:
        """Let time pass until the timers are due, and run them."""
        timers, self.timers = self.timers, []
        for seconds, act in timers:
            self.now_ms += seconds * 1000
            act()

    def _send(self, peer: str, message: Message) -> None:
        self.sent.append((peer, message))

    @property
    def epoch(self) -> int:
        held = self.machine.state.registration(*KEY)
        assert held is not None
        return held.epoch

    def register(self, counter: int) -> None:
        command = registration(counter)
        now = self.machine.state.revision
        self.machine.apply(encode_register(command, 0, now, now, content_of(command)))

    def commit(self) -> ProposalResult:
        """Apply the oldest undecided proposal."""
        data, future = self.group.proposed.pop(0)
        applied = self.machine.apply(data)
        for effect in self.machine.effects:
            assert isinstance(effect, BrokerRemoved)
            self.leading.removed((effect.cluster_name, effect.broker_addr), effect.epoch)
        self.machine.effects.clear()
        future.set_result(applied)
        self._loop.run()
        return applied

    def lose(self) -> None:
        """The outcome of the oldest undecided proposal stays unknown."""
        self.group.proposed.pop(0)[1].set_result(None)
        self._loop.run()

    def confirm(self, outcome: ReadOutcome | None = None) -> None:
        self.group.reads.pop(0).set_result(outcome or ReadReady(1, TERM))
        self._loop.run()

    def led(self) -> None:
        """LEAD is applied, and all nodes have sent their lists."""
        self.commit()
        self.leading.lead_applied()
        for member in MEMBERS:
            self.report(member, full=True)
        self.sent.clear()

    def report(self, node: str, *entries: ReportEntry, full: bool = False, part: int = ALONE) -> None:
        self._sequences[node] += 1
        self.leading.on_report(node, NodeReport(1, self._sequences[node], TERM, full, entries, 3_600_000, part))

    def entry(self, renews: bool, opened_ms: int = AGE_MAX, state: int = HELD) -> ReportEntry:
        return ReportEntry(KEY, state, renews, self.epoch, 0, opened_ms)

    def remove(self, node: str, since_ms: int = 0, number: int = 1) -> None:
        content = encode_removal(BrokerRemoval(*KEY, "a", 0, self.epoch))
        self.leading.on_inquiry(node, Inquiry(1, number, TERM, REMOVE, 0, since_ms, KEY, content))

    def silent(self, ms: float) -> None:
        """Time passes without a contact."""
        until = self.now_ms + ms
        while self.now_ms < until:
            self.now_ms = min(until, self.now_ms + 100)
            for member in MEMBERS:
                self.report(member)
            self.leading.tick()
        self.sent.clear()

    @property
    def suspicion(self) -> int:
        known = self.machine.suspected.get(KEY)
        return 0 if known is None else known.share

    def refusals(self) -> list[tuple[tuple[int, int], ...]]:
        """The refusals in the answers since the last call."""
        answers = [message.refusals for _, message in self.sent if isinstance(message, ReportAnswer)]
        self.sent.clear()
        return answers

    def decisions(self) -> list[tuple[str, int]]:
        found = [(peer, message.verdict) for peer, message in self.sent if isinstance(message, Decision)]
        self.sent.clear()
        return found

    def let_it_expire(self) -> None:
        """There is no contact with the broker for its time-out."""
        self.silent(1.1 * TIMEOUT_MS)


def add_brokers(scene: Scene, count: int) -> None:
    """Register brokers of other names."""
    for number in range(count):
        command = replace(registration(1), broker_name=f"other-{number}", broker_addr=f"10.0.{number // 250}.{number % 250}:1")
        scene.machine.apply(encode_register(command, 0, 0, 0, content_of(command)))


def fail(error: BaseException | str) -> None:
    """The loop's callback for exceptions that nobody caught."""
    raise AssertionError(error)


@contextmanager
def leader_scene() -> Iterator[Scene]:
    """A scene on a virtual loop that runs."""
    now = [0.0]
    loop = VirtualLoop(lambda: now[0], fail)  # type: ignore[abstract]  # what belongs to IO is missing
    with silenced(), loop.running():
        yield Scene(loop)

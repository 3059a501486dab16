"""Parts of a replicated node without the node: each works on a consensus that does what a test says."""

import asyncio
import math
from asyncio import Future
from random import Random

import pytest

from replicated_namesrv.errors import OutcomeUnknownError, UnavailableError
from replicated_namesrv.raft.interfaces import Committed, Indeterminate, Outcome, ReadOutcome, ReadReady, Rejected
from replicated_namesrv.replication.broker_calls import BrokerCalls
from replicated_namesrv.replication.command_kinds import BASE_VERSION
from replicated_namesrv.replication.consensus import (
    HEAVY_BYTES,
    HEAVY_TOPICS,
    NS_PER_COMMAND_BYTE,
    NS_PER_TOPIC,
    CommandProposer,
)
from replicated_namesrv.replication.liveness.broker_liveness import BrokerLiveness
from replicated_namesrv.replication.liveness.defences import LivenessDefences
from replicated_namesrv.replication.liveness.liveness_context import LivenessContext
from replicated_namesrv.replication.route_machine import ProposalResult, RouteStateMachine, encode_plain
from replicated_namesrv.replication.tasks import Tasks
from replicated_namesrv.routes.commands import BrokerRemoval, PutKVConfig, UnregisterBrokers
from replicated_namesrv.routes.quotas import Quotas
from replicated_namesrv.routes.results import Result
from replicated_namesrv.routes.state import RouteSettings
from replicated_namesrv.service import CloseReason
from tests.replication.virtual import KEY, registration

COMMAND = encode_plain(PutKVConfig("n", "k", "v"), 0)


class FakeConsensus:
    """n1, alone, leads term 3. A command is applied when the test says so; reads are confirmed at once."""

    command_version = BASE_VERSION
    led_term: int | None = 3
    term = 3
    leader: str | None = "n1"
    removed: str | None = None
    confirmed_ms = -math.inf

    def __init__(self) -> None:
        self.machine = RouteStateMachine()
        self.proposed: list[tuple[bytes, int, Future[Outcome]]] = []

    def propose(self, command: bytes, version: int, timeout_ms: int | None = None) -> Future[Outcome]:
        future: Future[Outcome] = asyncio.get_running_loop().create_future()
        self.proposed.append((command, version, future))
        return future

    def read_index(self) -> Future[ReadOutcome]:
        future: Future[ReadOutcome] = asyncio.get_running_loop().create_future()
        future.set_result(ReadReady(1, self.term))
        return future

    def lease_valid(self) -> bool:
        return False

    def tell(self, peer: str, data: bytes) -> None:
        raise AssertionError("there is no other node")

    async def commit(self) -> None:
        """Apply the oldest proposal."""
        await turns()
        command, _, future = self.proposed.pop(0)
        future.set_result(Committed(self.machine.apply(command), 1, self.term))
        await turns()


class FakeConnection:
    peer = "broker"

    def __init__(self) -> None:
        self.connection_id = 1
        self.closed: CloseReason | None = None
        self.charged_ns = 0

    def charge(self, work_ns: int) -> None:
        self.charged_ns += work_ns

    def close(self, reason: CloseReason) -> None:
        self.closed = reason


async def turns() -> None:
    """Let everything that is due happen."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_connection_is_charged_for_the_work_of_all_nodes() -> None:
    proposer, tasks = CommandProposer(FakeConsensus(), Tasks(), 1_000, lambda: False, Quotas({}, lambda command: ()), 3), Tasks()
    for size, topics in ((10, 0), (1_000, 0), (10, 1_000)):
        data, connection = encode_plain(PutKVConfig("n", "k", "v" * size), 1), FakeConnection()
        tasks.keep(proposer.propose(data, topics=topics, connection=connection))
        await turns()
        assert connection.charged_ns == 3 * (len(data) * NS_PER_COMMAND_BYTE + topics * NS_PER_TOPIC)
    tasks.stop()


async def test_proposals_end_with_the_outcome_in_the_log() -> None:
    consensus = FakeConsensus()
    proposer = CommandProposer(consensus, Tasks(), 1_000, lambda: False, Quotas({}, lambda command: ()))
    endings: list[tuple[Outcome, type[Exception]]] = [
        (Rejected("no leader"), UnavailableError),
        (Indeterminate("leader lost"), OutcomeUnknownError),
    ]
    for outcome, error in endings:
        waiting = asyncio.ensure_future(proposer.propose(COMMAND))
        await turns()
        consensus.proposed.pop()[2].set_result(outcome)
        with pytest.raises(error):
            await waiting
    waiting = asyncio.ensure_future(proposer.propose(COMMAND))
    await consensus.commit()
    assert await waiting == ProposalResult(Result(changed=True))


async def test_a_fenced_node_proposes_nothing_and_gives_up_what_waits() -> None:
    consensus, fenced = FakeConsensus(), False
    proposer = CommandProposer(consensus, Tasks(), 1_000, lambda: fenced, Quotas({}, lambda command: ()))
    waiting = asyncio.ensure_future(proposer.propose(COMMAND))
    await turns()
    fenced = True
    proposer.give_up("no majority")
    with pytest.raises(OutcomeUnknownError, match="no majority"):
        await waiting
    with pytest.raises(UnavailableError):
        await proposer.propose(COMMAND)
    assert len(consensus.proposed) == 1


async def test_a_fence_ends_what_waits_also_if_its_time_ends_in_the_same_turn() -> None:
    """In an earlier version, an exception left the node half fenced, so it kept its connections."""
    consensus = FakeConsensus()
    proposer = CommandProposer(consensus, Tasks(), 20, lambda: False, Quotas({}, lambda command: ()))
    waiting = [asyncio.ensure_future(proposer.propose(LONG)) for _ in range(2)]
    await turns()
    loop = asyncio.get_running_loop()
    fenced = loop.create_future()

    def fence() -> None:
        proposer.give_up("no majority")
        fenced.set_result(None)

    (budget,) = proposer._queued
    budget._timeout.reschedule(loop.time())  # its time ends in the same turn as the fence, just before the fence
    loop.call_soon(fence)
    await fenced
    for each in waiting:
        with pytest.raises((UnavailableError, OutcomeUnknownError), match="no majority"):
            await each


LONG = encode_plain(PutKVConfig("n", "k", "v" * HEAVY_BYTES), 0)


@pytest.mark.parametrize(("command", "topics"), [(COMMAND, HEAVY_TOPICS + 1), (LONG, 0)])
async def test_heavy_commands_are_proposed_one_after_the_other_and_others_beside_them(command: bytes, topics: int) -> None:
    consensus = FakeConsensus()
    proposer = CommandProposer(consensus, Tasks(), 60_000, lambda: False, Quotas({}, lambda command: ()))
    heavy = [asyncio.ensure_future(proposer.propose(command, topics=topics)) for _ in range(2)]
    light = asyncio.ensure_future(proposer.propose(COMMAND))
    await turns()
    assert len(consensus.proposed) == 2
    await consensus.commit()
    assert [each.done() for each in (*heavy, light)] == [True, False, False]
    await consensus.commit()
    await consensus.commit()
    assert all(each.done() for each in (*heavy, light))


async def test_a_heavy_command_keeps_its_turn_until_raft_has_an_outcome() -> None:
    """At a fence the callers get answers at once. Raft still has the command in progress."""
    consensus, fenced = FakeConsensus(), False
    proposer = CommandProposer(consensus, Tasks(), 60_000, lambda: fenced, Quotas({}, lambda command: ()))
    heavy = [asyncio.ensure_future(proposer.propose(LONG)) for _ in range(3)]
    await turns()
    fenced = True
    proposer.give_up("no majority")
    proposer.give_up("no majority")
    await turns()
    for each, error in zip(heavy, (OutcomeUnknownError, UnavailableError, UnavailableError), strict=True):
        with pytest.raises(error, match="no majority"):
            each.result()
    fenced = False
    later = asyncio.ensure_future(proposer.propose(LONG))
    await turns()
    assert len(consensus.proposed) == 1
    await consensus.commit()
    assert len(consensus.proposed) == 1
    later.cancel()
    await turns()
    assert later.cancelled()
    last = asyncio.ensure_future(proposer.propose(LONG))
    await turns()
    assert len(consensus.proposed) == 1, "cancelling the caller does not end the proposal"
    await consensus.commit()
    await consensus.commit()
    assert last.done()
    assert not proposer._heavy.locked()


class Parts:
    """The parts of one node that is its own leader, without ReplicatedNode."""

    def __init__(self, *others: str) -> None:
        """``others``: further names that the configuration has."""
        self.members = ["n1", *others]
        self.now_ms = 0.0
        self.consensus, self.tasks = FakeConsensus(), Tasks()
        machine = self.consensus.machine
        proposer = CommandProposer(self.consensus, self.tasks, 1_000, lambda: False, Quotas({}, lambda command: ()))
        self.liveness = BrokerLiveness(
            LivenessContext(
                "n1",
                self.members,
                machine,
                self.consensus,
                proposer.decide,
                RouteSettings,
                grace_ms=500,
                running_ms=lambda: self.now_ms,
                monotonic_ms=lambda: self.now_ms,
                wall_ms=lambda: 7,
                rng=Random(1),
                defences=LivenessDefences(),
            )
        )
        machine.on_registered = self.liveness.registered
        machine.on_lead = self.liveness.lead_applied
        self.calls = BrokerCalls(
            machine,
            self.liveness.attachments,
            self.liveness.client,
            proposer.propose,
            self.consensus,
            self.tasks,
            lambda: False,
            1.0,
            lambda: self.now_ms,
            10_000,
            LivenessDefences(),
        )

    async def lead(self) -> None:
        self.liveness.leads(3)
        await self.consensus.commit()
        assert self.consensus.machine.led_term == 3
        self.liveness.tick()


async def test_liveness_and_the_calls_of_brokers_need_no_node() -> None:
    """One node that is its own leader. A registration goes through the log. The same registration again is a renewal. A 104
    removes the broker."""
    parts = Parts()
    consensus, liveness, calls, machine = parts.consensus, parts.liveness, parts.calls, parts.consensus.machine
    await parts.lead()

    connection = FakeConnection()
    calls.opened(connection)
    registered = calls.register(registration(), connection)
    assert isinstance(registered, Future)
    await consensus.commit()
    held = machine.state.registration(*KEY)
    assert held is not None
    assert (await registered).epoch == held.epoch
    assert liveness.attachments.brokers_of(1) == [KEY]

    parts.now_ms = 1_000.0
    renewed = calls.renew_unchanged(*KEY, connection)
    assert isinstance(renewed, Future)
    assert (await renewed) is not None
    assert not consensus.proposed, "a renewal writes nothing"
    assert liveness.age_ms(KEY) == 0

    calls.lost(connection, CloseReason.PEER)
    liveness.tick()
    await turns()
    parts.now_ms = 2_000.0
    liveness.tick()
    await consensus.commit()
    assert machine.state.registration(*KEY) is None
    assert (liveness.lost_count, liveness.expired_count) == (1, 0)
    parts.tasks.stop()


async def test_a_name_that_only_the_configuration_has_was_not_removed() -> None:
    """The setting ``join`` may name a node that is no member. When the log is read, this name goes."""
    parts = Parts("n2")
    parts.now_ms = 10.0
    members = parts.members
    for changed, removed_ms in ((members.remove, -math.inf), (members.append, -math.inf), (members.remove, 10.0)):
        changed("n2")
        parts.liveness.members_changed()
        assert parts.liveness._removed_ms == removed_ms


async def test_104_after_a_registration_that_failed() -> None:
    """The first registration of a connection is rejected while a 104 over it waits. This 104 must not remove
    a registration over another connection."""
    parts, connection = Parts(), FakeConnection()
    await parts.lead()
    parts.calls.opened(connection)
    registered = parts.calls.register(registration(), connection)
    assert isinstance(registered, Future)
    await turns()
    removed = parts.calls.unregister(UnregisterBrokers((BrokerRemoval(*KEY, "a", 0, None),)), connection)
    await turns()
    parts.consensus.proposed.pop()[2].set_result(Rejected("no leader"))
    for each in (registered, removed):
        with pytest.raises(UnavailableError):
            await each
    assert connection.closed is CloseReason.OURS
    assert not parts.consensus.proposed
    parts.tasks.stop()


async def test_104_waits_for_all_earlier_registrations_of_its_connection() -> None:
    """The newer of two registrations in progress fails first. A 104 over their connection waits for the older one, too."""
    parts, connection = Parts(), FakeConnection()
    await parts.lead()
    parts.calls.opened(connection)
    older, newer = (parts.calls.register(registration(counter), connection) for counter in (1, 2))
    assert isinstance(newer, Future)
    await turns()
    parts.consensus.proposed.pop()[2].set_result(Rejected("no leader"))
    with pytest.raises(UnavailableError):
        await newer
    removed = parts.calls.unregister(UnregisterBrokers((BrokerRemoval(*KEY, "a", 0, None),)), connection)
    await turns()
    assert not removed.done()
    await parts.consensus.commit()
    assert older.done()
    await turns()
    await parts.consensus.commit()
    assert (await removed).code == 0
    assert parts.consensus.machine.state.registration(*KEY) is None
    assert not parts.calls._pending
    parts.tasks.stop()

"""Reads against clock, fence and leader: every order of events in which an answer could be older than it claims."""

import asyncio
from asyncio import Future
from functools import partial
from typing import Any

import pytest

from replicated_namesrv.errors import StaleReadError, UnavailableError
from replicated_namesrv.raft.interfaces import Outcome, ReadOutcome, ReadReady, Rejected
from replicated_namesrv.replication.reads import COLLECTING_MAX_MS, Reads
from replicated_namesrv.service import UNKNOWN_AGE, Freshness, ReadLevel

LINEARIZABLE, LEASE, STALE = ReadLevel.LINEARIZABLE, ReadLevel.LEASE, ReadLevel.STALE
FENCE_AFTER_MS = 1_500
TICK_MS = 100


class Scene:
    """Reads with a clock and a majority that do what a test says. Also the Consensus that Reads ask."""

    def __init__(self, default: ReadLevel = LINEARIZABLE, *, serves_stale: bool = False, live: bool = True) -> None:
        self.now_ms = 1_000.0
        self.asked: list[Future[ReadOutcome]] = []
        self.leased = False
        self.term, self.leader, self.led_term, self.command_version = 7, "n2", None, 1
        self.changes: list[bool] = []
        self.reads = Reads(self, default, FENCE_AFTER_MS, serves_stale, lambda: self.now_ms, self.changes.append)
        if live:
            self.reads.caught_up(self.now_ms)

    def read_index(self) -> Future[ReadOutcome]:
        self.asked.append(asyncio.get_running_loop().create_future())
        self.asked[-1].add_done_callback(partial(self._heard, self.now_ms))
        return self.asked[-1]

    def propose(self, command: bytes, version: int, timeout_ms: int | None = None) -> Future[Outcome]:
        raise AssertionError("reads propose nothing")

    def tell(self, peer: str, data: bytes) -> None:
        raise AssertionError("reads tell nobody anything")

    def _heard(self, asked_ms: float, answer: Future[ReadOutcome]) -> None:
        """As a node does with every read index that comes."""
        if not answer.cancelled() and isinstance(answer.result(), ReadReady):
            self.reads.confirmed(asked_ms)

    def lease_valid(self) -> bool:
        return self.leased

    async def answer(self, outcome: ReadOutcome | None = None) -> None:
        """A majority answers everything that was asked so far."""
        asked, self.asked = self.asked, []
        for future in asked:
            future.set_result(outcome or ReadReady(5, self.term))
        await turns()

    def run(self, milliseconds: int) -> None:
        """Time passes in which this process runs and nobody answers."""
        for _ in range(milliseconds // TICK_MS):
            self.now_ms += TICK_MS
            self.reads.tick()

    def waiting(self, level: ReadLevel | None = None, bound: int | None = None) -> Future[Freshness]:
        outcome = self.reads.barrier(level, bound)
        assert isinstance(outcome, Future)
        return outcome

    def at_once(self, level: ReadLevel | None = None, bound: int | None = None) -> Freshness:
        outcome = self.reads.barrier(level, bound)
        assert isinstance(outcome, Freshness)
        return outcome


async def turns() -> None:
    """Let everything that is due happen."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_reads_that_come_together_share_a_confirmation_and_later_ones_wait_for_their_own() -> None:
    scene = Scene()
    first, second = scene.waiting(), scene.waiting()
    await turns()
    assert len(scene.asked) == 1
    late = scene.waiting()
    await turns()
    assert len(scene.asked) == 1, "one question at a time"
    await scene.answer()
    assert first.result() == second.result() == Freshness(LINEARIZABLE, 7, "n2", 0)
    assert not late.done(), "its index is asked for after it came"
    assert len(scene.asked) == 1
    await scene.answer()
    assert late.result().level is LINEARIZABLE


async def test_collecting_ends_though_reads_never_cease() -> None:
    scene = Scene()
    scene.waiting()
    for _ in range(20):
        scene.waiting()
        await asyncio.sleep(0)
    assert not scene.asked, "reads come in every turn: they are collected"
    scene.now_ms += COLLECTING_MAX_MS
    scene.waiting()
    await turns()
    assert len(scene.asked) == 1


async def test_a_read_that_is_not_confirmed_in_its_time_fails_alone() -> None:
    scene = Scene()
    waiting = scene.waiting()
    await turns()
    await scene.answer(Rejected("not confirmed by a majority within 2000 ms"))
    with pytest.raises(UnavailableError, match="not confirmed"):
        waiting.result()
    assert not scene.reads.fenced
    again = scene.waiting()
    await turns()
    await scene.answer()
    assert again.result().level is LINEARIZABLE


async def test_lease_only_while_it_holds() -> None:
    scene = Scene(LEASE)
    scene.leased = True
    first, second = scene.waiting(), scene.waiting()
    assert scene.at_once(LEASE) == Freshness(LEASE, 7, "n2", 0)
    await turns()
    assert first.result() == second.result() == Freshness(LEASE, 7, "n2", 0)
    assert not scene.asked, "nobody had to be asked"
    waiting = scene.waiting()
    scene.leased = False
    await turns()
    assert not waiting.done(), "the lease is looked at after the read came"
    await scene.answer()
    assert waiting.result().level is LINEARIZABLE, "the answer says that the lease did not hold"


async def test_who_names_a_level_gets_it_beside_reads_by_lease() -> None:
    scene = Scene(LEASE)
    scene.leased = True
    by_lease, linearizable = scene.waiting(), scene.waiting(LINEARIZABLE)
    await turns()
    assert not by_lease.done()
    assert not linearizable.done()
    await scene.answer()
    assert linearizable.result().level is LINEARIZABLE
    again = scene.waiting()
    await turns()
    assert again.result().level is LEASE


async def test_a_lease_that_holds_again_answers_nobody_who_did_not_ask_for_it() -> None:
    scene = Scene(LINEARIZABLE)
    scene.waiting(LEASE)
    unnamed = scene.waiting()
    scene.leased = True
    await turns()
    assert not unnamed.done()
    await scene.answer()
    assert unnamed.result().level is LINEARIZABLE


async def test_age_counts_from_when_the_confirmed_question_was_asked() -> None:
    scene = Scene()
    scene.run(2 * TICK_MS)
    scene.now_ms += 400
    await scene.answer()
    assert scene.at_once(STALE).staleness_ms == 400, "not from the answer: others may have written meanwhile"
    assert scene.at_once(STALE, 400).level is STALE
    with pytest.raises(StaleReadError, match=r"maxStalenessMs=399: the state here is 400 ms old"):
        scene.at_once(STALE, 399)


async def test_a_pause_ages_the_state_but_is_no_silence_of_the_others() -> None:
    scene = Scene()
    scene.now_ms += 3_600_000  # stopped, or the machine slept
    assert scene.at_once(STALE).staleness_ms == 3_600_000
    with pytest.raises(StaleReadError):
        scene.at_once(STALE, 5_000)
    scene.reads.tick()
    assert not scene.reads.fenced
    assert isinstance(scene.reads.barrier(None, None), Future), "what it knew before it slept answers nobody"
    scene.run(FENCE_AFTER_MS - 500)
    assert not scene.reads.fenced
    scene.run(500)
    assert scene.reads.fenced


async def test_an_answer_that_waited_out_a_pause_makes_nothing_younger() -> None:
    scene = Scene()
    scene.run(2 * TICK_MS)
    scene.now_ms += 60_000
    await scene.answer()
    assert scene.at_once(STALE).staleness_ms == 60_000


async def test_fence_gives_up_what_waits_and_one_confirmation_lifts_it() -> None:
    scene = Scene()
    scene.run(FENCE_AFTER_MS - TICK_MS)
    waiting = scene.waiting()
    await turns()
    scene.run(2 * TICK_MS)
    assert scene.changes == [False]
    with pytest.raises(UnavailableError):
        waiting.result()
    for level in (None, LINEARIZABLE, LEASE):
        with pytest.raises(UnavailableError):
            scene.reads.barrier(level, None)
    assert scene.at_once(STALE).staleness_ms == FENCE_AFTER_MS + TICK_MS, "stale answers have their age"
    scene.run(10_000)
    assert scene.changes == [False], "once"
    await scene.answer()
    assert scene.changes == [False, True]
    assert not scene.reads.fenced
    assert isinstance(scene.reads.barrier(None, None), Future)


async def test_what_was_confirmed_before_the_fence_is_answered() -> None:
    scene = Scene()
    waiting = scene.waiting()
    await turns()
    scene.now_ms += FENCE_AFTER_MS
    scene.asked[0].set_result(ReadReady(5, 7))
    scene.run(FENCE_AFTER_MS)
    await turns()
    assert waiting.result().level is LINEARIZABLE


async def test_an_election_that_ends_in_time_fences_nobody() -> None:
    """Silence counts from the last confirmation, whenever that one was asked for."""
    scene = Scene()
    scene.run(FENCE_AFTER_MS)
    await scene.answer()
    scene.run(FENCE_AFTER_MS)
    assert scene.changes == []


async def test_serve_stale_answers_those_that_ask_for_nothing() -> None:
    scene = Scene(serves_stale=True)
    scene.run(FENCE_AFTER_MS)
    waiting: dict[str, Future[Freshness]] = {
        "nothing": scene.waiting(),
        "named": scene.waiting(LINEARIZABLE),
        "bounded": scene.waiting(None, 100),
        "loosely bounded": scene.waiting(None, 60_000),
    }
    await turns()
    scene.run(TICK_MS)
    await turns()
    assert scene.reads.answers_stale
    for who in ("nothing", "loosely bounded"):
        assert waiting[who].result() == Freshness(STALE, 7, "n2", FENCE_AFTER_MS + TICK_MS)
    refusals: list[tuple[str, type[Exception]]] = [("named", UnavailableError), ("bounded", StaleReadError)]
    for who, error in refusals:
        with pytest.raises(error):
            waiting[who].result()
    assert scene.at_once().level is STALE
    with pytest.raises(StaleReadError):
        scene.at_once(None, 100)
    with pytest.raises(UnavailableError):
        scene.at_once(LINEARIZABLE)
    await scene.answer()
    assert not scene.reads.answers_stale
    assert isinstance(scene.reads.barrier(None, None), Future)


async def test_judged_reads_of_a_healthy_node_are_linearizable() -> None:
    scene = Scene(serves_stale=True)
    named, bounded = scene.waiting(LINEARIZABLE), scene.waiting(None, 0)
    await turns()
    assert len(scene.asked) == 1
    await scene.answer()
    assert named.result() == bounded.result() == Freshness(LINEARIZABLE, 7, "n2", 0)


@pytest.mark.parametrize("serves_stale", [False, True])
async def test_whoever_gives_up_waiting_takes_nobody_along(serves_stale: bool) -> None:
    scene = Scene(serves_stale=serves_stale)
    impatient, patient = scene.waiting(LINEARIZABLE), scene.waiting()
    shield: Any = asyncio.shield(impatient)
    shield.cancel()
    await turns()
    await scene.answer()
    assert patient.result().level is LINEARIZABLE


async def test_before_it_has_caught_up_a_node_vouches_for_nothing() -> None:
    scene = Scene(live=False)
    assert scene.reads.staleness_ms == UNKNOWN_AGE
    for level in (None, LINEARIZABLE, LEASE, STALE):
        with pytest.raises(UnavailableError, match="not caught up"):
            scene.reads.barrier(level, None)
    scene.run(10 * FENCE_AFTER_MS)
    assert not scene.changes
    asked_ms = scene.now_ms
    scene.now_ms += 50
    scene.reads.caught_up(asked_ms)
    assert scene.at_once(STALE).staleness_ms == 50


async def test_a_node_that_is_read_all_the_time_asks_for_nothing_more() -> None:
    scene = Scene()
    for _ in range(50):
        scene.waiting()
        await turns()
        asked = len(scene.asked)
        await scene.answer()
        assert asked == 1
        scene.now_ms += TICK_MS / 4
        scene.reads.tick()
    assert not scene.asked

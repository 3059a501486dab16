"""Reads against clock, fence and leader: every order of events in which an answer could be older than it claims."""

import asyncio
import re
from asyncio import Future
from functools import partial
from math import inf
from typing import Any

import pytest

from replicated_namesrv.errors import StaleReadError, UnavailableError
from replicated_namesrv.raft.interfaces import Outcome, ReadOutcome, ReadReady, Rejected
from replicated_namesrv.raft.read_index import IN_FLIGHT_MAX
from replicated_namesrv.replication import read_barrier
from replicated_namesrv.replication.read_barrier import COLLECTING_MAX_MS, PIPELINE_MS, ReadBarrier
from replicated_namesrv.service import UNKNOWN_AGE, Freshness, ReadLevel
from tests.support.places import assert_same_names
from tests.support.waiting import until

LINEARIZABLE, LEASE, STALE = ReadLevel.LINEARIZABLE, ReadLevel.LEASE, ReadLevel.STALE
FENCE_AFTER_MS = 1_500
TICK_MS = 100


class Scene:
    """Reads with a clock and a majority that a test controls. It is also the Consensus that the reads use."""

    def __init__(self, default: ReadLevel = LINEARIZABLE, *, serves_stale: bool = False, live: bool = True) -> None:
        self.now_ms = 1_000.0
        self.asked: list[Future[ReadOutcome]] = []
        self.leased = False
        self.heartbeats_confirm = False
        """Whether a majority has just answered heartbeats that were sent 60 ms ago."""
        self._confirmed_ms = -inf
        self.removed: str | None = None
        self.term, self.leader, self.led_term, self.command_version = 7, "n2", None, 1
        self.changes: list[bool] = []
        self.reads = ReadBarrier(self, default, FENCE_AFTER_MS, serves_stale, lambda: self.now_ms, self.changes.append)
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
        """Report a confirmed read index to the barrier, as a node does."""
        if not answer.cancelled() and isinstance(answer.result(), ReadReady):
            self.reads.confirmed(asked_ms)

    def lease_valid(self) -> bool:
        return self.leased

    @property
    def confirmed_ms(self) -> float:
        if self.heartbeats_confirm:
            self._confirmed_ms = self.now_ms - 60
        return self._confirmed_ms

    async def answer(self, outcome: ReadOutcome | None = None) -> None:
        """A majority answers everything that was asked so far."""
        asked, self.asked = self.asked, []
        for future in asked:
            future.set_result(outcome or ReadReady(5, self.term))
        await turns()

    def run(self, milliseconds: int) -> None:
        """Let time pass in which this process runs and no peer answers."""
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


# A read arrives


async def test_r1_before_it_has_caught_up_a_node_vouches_for_nothing() -> None:
    scene = Scene(live=False)
    assert scene.reads.staleness_ms == UNKNOWN_AGE
    for level in (None, LINEARIZABLE, LEASE, STALE):
        with pytest.raises(UnavailableError, match="not caught up"):
            scene.reads.barrier(level, None)
    asked_ms = scene.now_ms
    scene.now_ms += 50
    scene.reads.caught_up(asked_ms)
    assert scene.at_once(STALE).staleness_ms == 50


async def test_r2_a_named_lease_is_answered_at_once_where_it_holds() -> None:
    scene = Scene()
    scene.leased = True
    assert scene.at_once(LEASE) == Freshness(LEASE, 7, "n2", 0)
    assert isinstance(scene.reads.barrier(LINEARIZABLE, None), Future)
    scene.leased = False
    waiting = scene.waiting(LEASE)
    await turns()
    await scene.answer()
    assert waiting.result().level is LINEARIZABLE, "the answer says that the lease did not hold"


async def test_r3_age_counts_from_when_the_confirmed_question_was_asked() -> None:
    scene = Scene()
    scene.run(2 * TICK_MS)
    scene.now_ms += 400
    await scene.answer()
    assert scene.at_once(STALE).staleness_ms == 400, "not from the answer: others may have written meanwhile"
    assert scene.at_once(STALE, 400).level is STALE
    with pytest.raises(StaleReadError, match=r"maxStalenessMs=399: the state here is 400 ms old"):
        scene.at_once(STALE, 399)


async def test_r4_stale_by_configuration_unless_a_level_is_named() -> None:
    scene = Scene(STALE)
    scene.now_ms += 400
    assert scene.at_once() == Freshness(STALE, 7, "n2", 400)
    with pytest.raises(StaleReadError):
        scene.at_once(None, 399)
    assert isinstance(scene.reads.barrier(LINEARIZABLE, None), Future)


async def test_r5_serve_stale_answers_reads_that_name_no_level_while_fenced() -> None:
    scene = Scene(serves_stale=True)
    scene.run(FENCE_AFTER_MS + TICK_MS)
    assert scene.reads.answers_stale
    assert scene.at_once() == Freshness(STALE, 7, "n2", FENCE_AFTER_MS + TICK_MS)
    with pytest.raises(StaleReadError):
        scene.at_once(None, 100)


@pytest.mark.parametrize(
    ("serves_stale", "level"), [(True, LINEARIZABLE), (True, LEASE), (False, None), (False, LINEARIZABLE), (False, LEASE)]
)
async def test_r6_a_fenced_node_confirms_nothing(serves_stale: bool, level: ReadLevel | None) -> None:
    scene = Scene(serves_stale=serves_stale)
    scene.run(FENCE_AFTER_MS + TICK_MS)
    with pytest.raises(UnavailableError, match="this node reaches no leader that has a majority"):
        scene.reads.barrier(level, None)
    assert scene.at_once(STALE).staleness_ms == FENCE_AFTER_MS + TICK_MS, "stale answers have their age"


async def test_r7_reads_that_come_together_share_a_question_and_later_ones_wait_for_their_own() -> None:
    scene = Scene()
    first, second = scene.waiting(), scene.waiting()
    await turns()
    assert len(scene.asked) == 1
    late = scene.waiting()
    await turns()
    assert len(scene.asked) == 1, "one question at a time"
    await scene.answer()
    assert first.done()
    assert second.done()
    assert not late.done(), "its index is asked for after it came"
    assert len(scene.asked) == 1
    await scene.answer()
    assert late.result().level is LINEARIZABLE


# A read waits


async def test_w1_reads_by_lease_are_answered_by_one_look_at_it() -> None:
    scene = Scene(LEASE)
    scene.leased = True
    first, second = scene.waiting(), scene.waiting()
    await turns()
    assert first.result() == second.result() == Freshness(LEASE, 7, "n2", 0)
    assert not scene.asked, "nobody had to be asked"
    waiting = scene.waiting()
    scene.leased = False
    await turns()
    assert not waiting.done(), "the lease is looked at after the read came"


async def test_w2_a_confirmed_index_answers_all_that_came_before_it_was_asked_for() -> None:
    scene = Scene(LEASE)
    waiting = [scene.waiting(), scene.waiting(LINEARIZABLE)]
    await turns()
    await scene.answer()
    assert [each.result() for each in waiting] == [Freshness(LINEARIZABLE, 7, "n2", 0)] * 2


async def test_w3_a_read_that_is_not_confirmed_in_its_time_fails_alone() -> None:
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


@pytest.mark.parametrize("level", [None, LINEARIZABLE, LEASE])
async def test_w4_the_fence_gives_up_what_waits(level: ReadLevel | None) -> None:
    scene = Scene()
    scene.run(FENCE_AFTER_MS)
    waiting = scene.waiting(level)
    await turns()
    scene.run(TICK_MS)
    with pytest.raises(UnavailableError, match="this node reaches no leader that has a majority"):
        waiting.result()


async def test_w5_serve_stale_answers_what_waits_and_names_no_level() -> None:
    scene = Scene(serves_stale=True)
    scene.run(FENCE_AFTER_MS)
    plain, bounded, loosely_bounded = scene.waiting(), scene.waiting(None, 100), scene.waiting(None, 60_000)
    await turns()
    scene.run(TICK_MS)
    await turns()
    assert plain.result() == loosely_bounded.result() == Freshness(STALE, 7, "n2", FENCE_AFTER_MS + TICK_MS)
    with pytest.raises(StaleReadError):
        bounded.result()


@pytest.mark.parametrize("level", [LINEARIZABLE, LEASE])
async def test_w6_a_read_that_names_a_level_gets_nothing_less(level: ReadLevel) -> None:
    scene = Scene(serves_stale=True)
    scene.run(FENCE_AFTER_MS)
    waiting = scene.waiting(level)
    await turns()
    scene.run(TICK_MS)
    await turns()
    with pytest.raises(UnavailableError, match="this node reaches no leader that has a majority"):
        waiting.result()


# Ticks and confirmations


async def test_f1_a_node_that_has_not_caught_up_never_fences() -> None:
    scene = Scene(live=False)
    scene.run(10 * FENCE_AFTER_MS)
    assert not scene.changes
    assert not scene.asked


async def test_f2_silence_up_to_the_limit_fences_nobody() -> None:
    scene = Scene()
    scene.run(FENCE_AFTER_MS)
    assert scene.changes == []


async def test_f3_what_was_confirmed_before_the_fence_is_answered() -> None:
    scene = Scene()
    waiting = scene.waiting()
    await turns()
    scene.now_ms += FENCE_AFTER_MS
    scene.asked[0].set_result(ReadReady(5, 7))
    scene.run(FENCE_AFTER_MS)
    assert scene.changes == []
    await turns()
    assert waiting.result().level is LINEARIZABLE


async def test_f4_silence_beyond_the_limit_fences() -> None:
    scene = Scene()
    scene.run(FENCE_AFTER_MS + TICK_MS)
    assert (scene.changes, scene.reads.fenced) == ([False], True)


async def test_f5_a_fenced_node_does_not_fence_again() -> None:
    scene = Scene()
    scene.run(FENCE_AFTER_MS + 10_000)
    assert scene.changes == [False]


@pytest.mark.parametrize("serves_stale", [False, True])
async def test_f6_one_confirmation_lifts_the_fence(serves_stale: bool) -> None:
    scene = Scene(serves_stale=serves_stale)
    scene.run(FENCE_AFTER_MS + TICK_MS)
    await scene.answer()
    assert (scene.changes, scene.reads.fenced, scene.reads.answers_stale) == ([False, True], False, False)
    assert isinstance(scene.reads.barrier(None, None), Future)


@pytest.mark.parametrize("serves_stale", [False, True])
async def test_f6_a_removed_node_does_not_serve_again(serves_stale: bool) -> None:
    """A read index is confirmed, and in the same turn of the loop this node applies its removal."""
    scene = Scene(serves_stale=serves_stale)
    read = scene.waiting()
    await turns()
    scene.asked.pop(0).set_result(ReadReady(5, 7))
    scene.reads.set_removed("removed")
    await turns()
    with pytest.raises(UnavailableError, match="removed"):
        read.result()
    assert (scene.reads.fenced, scene.changes) == (True, [False])
    scene.reads.set_removed(None)
    scene.run(200)
    await scene.answer()
    assert (scene.reads.fenced, scene.changes) == (False, [False, True])


async def test_f7_silence_counts_from_the_last_confirmation_whenever_that_was_asked_for() -> None:
    scene = Scene()
    scene.run(FENCE_AFTER_MS)
    await scene.answer()
    scene.run(FENCE_AFTER_MS)
    assert scene.changes == []
    scene.run(TICK_MS)
    assert scene.changes == [False]


# Combinations of rows


async def test_heartbeats_confirm_the_state_without_a_request() -> None:
    scene = Scene()
    scene.heartbeats_confirm = True
    scene.run(FENCE_AFTER_MS * 2)
    assert not scene.asked
    assert not scene.reads.fenced
    assert scene.reads.staleness_ms == 60


async def test_without_answers_to_heartbeats_a_node_asks_and_then_fences_itself() -> None:
    scene = Scene()
    scene.heartbeats_confirm = True
    scene.run(1_000)
    scene.heartbeats_confirm = False
    scene.run(2 * TICK_MS)
    assert len(scene.asked) == 1
    scene.run(FENCE_AFTER_MS - 3 * TICK_MS)
    assert not scene.reads.fenced
    scene.run(TICK_MS)
    assert scene.reads.fenced
    scene.heartbeats_confirm = True
    scene.run(TICK_MS)
    assert not scene.reads.fenced


async def test_an_old_confirmation_by_heartbeats_is_no_contact() -> None:
    """A confirmation for a time before the fence takes effect late, because applying its index took long."""
    scene = Scene()
    scene.run(FENCE_AFTER_MS + 10_000)
    assert scene.reads.fenced
    age_ms = scene.reads.staleness_ms
    scene._confirmed_ms = 1_050.0
    scene.reads.tick()
    assert scene.reads.fenced
    assert scene.reads.staleness_ms == age_ms - 50


async def test_silence_counts_from_the_time_that_heartbeats_confirm() -> None:
    scene = Scene()
    scene.run(1_000)
    scene._confirmed_ms = scene.now_ms - 600
    scene.run(FENCE_AFTER_MS - 600)
    assert not scene.reads.fenced
    scene.run(2 * TICK_MS)
    assert scene.reads.fenced


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


def test_every_row_of_the_tables_has_a_test_of_its_own() -> None:
    rows = re.findall(r"^    ([RWF]\d)   ", read_barrier.__doc__ or "", re.MULTILINE)
    tested = {row for name in globals() for row in re.findall(r"^test_([rwf]\d)_", name)}
    assert len(rows) == 20
    assert_same_names(map(str.lower, rows), "the tables of read_barrier.py", tested, "the names test_ROW_… of this file")


async def test_a_pause_ages_the_state_but_is_no_silence_of_the_others() -> None:
    scene = Scene()
    scene.now_ms += 3_600_000  # stopped, or the machine slept
    assert scene.at_once(STALE).staleness_ms == 3_600_000
    with pytest.raises(StaleReadError):
        scene.at_once(STALE, 5_000)
    scene.reads.tick()
    assert not scene.reads.fenced
    assert isinstance(scene.reads.barrier(None, None), Future), "after a pause, a read waits for a new confirmation"
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


# Slow links


async def test_on_a_slow_link_reads_do_not_wait_for_the_answer_to_earlier_ones() -> None:
    scene = Scene()
    first = scene.waiting()
    await turns()
    scene.now_ms += 3 * PIPELINE_MS  # the answer takes this long
    await scene.answer()
    assert first.done()
    waiting = []
    for number in range(IN_FLIGHT_MAX + 2):
        waiting.append(scene.waiting())
        await turns()
        assert len(scene.asked) == min(number + 1, IN_FLIGHT_MAX)
        scene.now_ms += PIPELINE_MS
    await scene.answer()
    assert [read.done() for read in waiting] == [True] * IN_FLIGHT_MAX + [False] * 2
    await scene.answer()
    assert all(read.done() for read in waiting), "reads above the limit share the next request"


async def test_on_a_slow_link_reads_within_a_short_time_share_a_request() -> None:
    scene = Scene()
    scene.waiting()
    await turns()
    scene.now_ms += 3 * PIPELINE_MS
    await scene.answer()
    scene.waiting()
    await turns()
    scene.now_ms += PIPELINE_MS / 2
    second = scene.waiting()
    await turns()
    assert scene.waiting() is second
    assert len(scene.asked) == 1
    await until(lambda: len(scene.asked) == 2, "the second request")


async def test_on_a_fast_link_there_is_one_request_at_a_time() -> None:
    scene = Scene()
    scene.waiting()
    await turns()
    scene.now_ms += PIPELINE_MS / 2
    await scene.answer()
    scene.waiting()
    await turns()
    scene.now_ms += PIPELINE_MS
    scene.waiting()
    await turns()
    assert len(scene.asked) == 1

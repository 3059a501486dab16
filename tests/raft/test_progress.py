"""A leader's view of one follower, state by state, without a node."""

from collections.abc import Iterable

import pytest

from replicated_namesrv.raft.interfaces import NEVER
from replicated_namesrv.raft.progress import (
    HEARTBEATS_REMEMBERED_MAX,
    PAUSE_HEARTBEATS_MAX,
    PROBE,
    REPLICATE,
    ROUNDS_MIN,
    SNAPSHOT,
    Backoff,
    Inflight,
    Progress,
    Rounds,
    Transfer,
)
from replicated_namesrv.raft.snapshots import Metadata, Snapshot

SNAPSHOT_FILE = Snapshot("snapshot-1", 1_000, 7, Metadata("c", (9, 1), (10, 1), {}, []))


def test_probe_becomes_replicate_and_replicate_becomes_probe() -> None:
    progress = Progress("n2", 8)
    progress.reset(11, 5)
    assert (progress.state, progress.next, progress.match, progress.floor) == (PROBE, 11, 0, 5)
    progress.matched(10)
    progress.become_replicate(7)
    assert (progress.state, progress.next, progress.match, progress.floor) == (REPLICATE, 11, 10, 7)
    progress.inflight.add(8, 1.0, 100, 20)
    progress.entries_lost(11, 8)
    assert (progress.state, progress.next, len(progress.inflight), progress.floor) == (PROBE, 11, 0, 8)


def test_match_only_rises_and_next_follows() -> None:
    progress = Progress("n2", 8)
    progress.matched(10)
    progress.matched(7)
    assert (progress.match, progress.next) == (10, 11)


def test_a_snapshot_goes_on_over_a_new_connection_but_not_for_another_incarnation() -> None:
    progress = Progress("n2", 8)
    progress.become_snapshot()
    transfer = progress.transfer = Transfer(SNAPSHOT_FILE)
    transfer.chunk_sent(1, 100)
    transfer.answered(1, 100, progress.inflight, progress.backoff)
    transfer.chunk_sent(2, 100)
    progress.reconnected(1, 2)
    assert (progress.state, progress.transfer, progress.snapshot) == (SNAPSHOT, transfer, SNAPSHOT_FILE)
    assert (transfer.acknowledged, transfer.sent, transfer.is_answered) == (100, 100, False)
    progress.reset(1, 2)
    assert progress.state == PROBE
    assert progress.snapshot is None


def test_answers_say_when_the_message_was_sent() -> None:
    progress = Progress("n2", 8)
    progress.become_replicate(0)
    progress.inflight.add(1, 1.0, 0, 0)
    progress.inflight.add(2, 2.0, 50, 11)
    progress.inflight.add(3, 3.0, 0, 0)
    progress.acknowledge(2)
    assert progress.acknowledged_at == 2.0
    progress.acknowledge(1)
    assert progress.acknowledged_at == 2.0
    progress.acknowledge(9)
    assert progress.acknowledged_at == 2.0


def test_an_answer_does_not_open_the_window_but_an_acknowledgement_does() -> None:
    """A follower whose disk hangs answers heartbeats."""
    progress = Progress("n2", 8)
    progress.become_replicate(0)
    progress.inflight.add(1, 1.0, 50, 11)
    progress.inflight.add(2, 1.0, 70, 13)
    progress.inflight.add(3, 2.0, 0, 0)
    progress.acknowledge(3)
    assert (progress.inflight.with_data, progress.inflight_bytes) == (2, 120)
    progress.matched(12)
    assert (progress.inflight.with_data, progress.inflight_bytes) == (1, 70)
    progress.matched(13)
    assert (progress.inflight.with_data, progress.inflight_bytes) == (0, 0)


def test_unanswered_messages_are_bounded_and_the_newest_are_kept() -> None:
    inflight = Inflight(8)
    for sequence in range(1, 10_000):
        inflight.add(sequence, float(sequence), 0, 0)
    assert len(inflight) == 8 + HEARTBEATS_REMEMBERED_MAX
    assert inflight.answered(50) == NEVER
    assert inflight.answered(9_998) == 9_998.0
    assert len(inflight) == 1


def test_pauses_double_up_to_the_longest_and_begin_anew_with_progress() -> None:
    backoff, pauses = Backoff(), []
    for _ in range(40):
        backoff.failed()
        pauses.append(backoff.pause)
    assert pauses[:7] == [0, 1, 2, 4, 8, 16, 16]
    assert set(pauses[5:]) == {PAUSE_HEARTBEATS_MAX}
    for left in range(PAUSE_HEARTBEATS_MAX - 1, -1, -1):
        backoff.heartbeat()
        assert backoff.pause == left
    backoff.heartbeat()
    assert backoff.pause == 0
    backoff.failed()
    backoff.reset()
    assert backoff.pause == 0
    backoff.failed()
    assert backoff.pause == 0


def test_one_chunk_is_in_flight_before_the_first_answer_then_a_window() -> None:
    transfer, inflight, backoff = Transfer(SNAPSHOT_FILE), Inflight(8), Backoff()
    assert transfer.room(250)
    transfer.chunk_sent(1, 100)
    assert not transfer.room(250)
    transfer.answered(1, 100, inflight, backoff)
    for sequence in (2, 3, 4):
        assert transfer.room(250)
        transfer.chunk_sent(sequence, 100)
    assert not transfer.room(250)
    assert (transfer.acknowledged, transfer.sent) == (100, 400)


def test_a_gap_is_seen_once_all_that_was_sent_has_been_answered() -> None:
    transfer, inflight, backoff = Transfer(SNAPSHOT_FILE), Inflight(8), Backoff()
    for sequence in (1, 2, 3):
        transfer.chunk_sent(sequence, 100)
    transfer.answered(1, 100, inflight, backoff)
    transfer.answered(2, 100, inflight, backoff)
    assert (transfer.acknowledged, transfer.sent) == (100, 300), "the third may still bring the rest"
    transfer.answered(3, 100, inflight, backoff)
    assert (transfer.acknowledged, transfer.sent, backoff.pause) == (100, 100, 0)
    transfer.chunk_sent(4, 100)
    transfer.answered(3, 50, inflight, backoff)
    assert (transfer.acknowledged, transfer.sent) == (100, 200), "an answer to what was sent before"
    transfer.chunk_sent(5, 0)
    transfer.answered(5, 100, inflight, backoff)
    assert (transfer.acknowledged, transfer.sent, backoff.pause) == (100, 100, 1), "an empty chunk shows it too"


def test_a_follower_that_starts_over_is_followed_but_less_and_less_often() -> None:
    """The follower may find each time that the received snapshot is damaged."""
    transfer, inflight, backoff = Transfer(SNAPSHOT_FILE), Inflight(8), Backoff()
    sequence, pauses = 0, []
    for _ in range(6):
        while transfer.room(10_000):
            sequence += 1
            transfer.chunk_sent(sequence, 100)
            transfer.answered(sequence, transfer.sent, inflight, backoff)
        assert transfer.acknowledged == 1_000
        transfer.answered(sequence, 0, inflight, backoff)
        assert transfer.sent == 0
        pauses.append(backoff.pause)
    assert pauses == [0, 1, 2, 4, 8, 16]


def rounds_of(steps: Iterable[tuple[float, int, int, float]]) -> list[bool]:
    rounds = Rounds()
    return [rounds.kept_up(now, last, match, answered, 0.3) for now, last, match, answered in steps]


def test_a_learner_keeps_up_after_ten_short_rounds_of_what_the_log_held_at_their_start() -> None:
    """Dissertation, 4.2.1. An answer every 0.1 s, always some entries behind the end of the log."""
    steps = [(at / 10, 10 * at, 10 * at - 10, at / 10) for at in range(40)]
    assert rounds_of(steps).index(True) == ROUNDS_MIN
    assert rounds_of((now, last, match - 5, answered) for now, last, match, answered in steps).index(True) == 2 * ROUNDS_MIN


def test_only_the_last_round_must_be_short() -> None:
    """The first rounds may be long, because they replicate entries that are already in the log."""
    long_rounds = [(at * 5.0, at * 1_000, (at - 1) * 1_000, at * 5.0) for at in range(1, 30)]
    short_round = (29 * 5.0 + 0.2, 29_010, 29_000, 29 * 5.0 + 0.1)
    assert rounds_of([*long_rounds, short_round]) == [False] * 29 + [True]


@pytest.mark.parametrize("step_seconds", [0.001, 0.01, 0.1])
def test_a_learner_that_falls_behind_never_keeps_up(step_seconds: float) -> None:
    """The learner receives half of what is written, so each round is twice as long as the one before."""
    steps = ((at * step_seconds, at * 20, at * 10, at * step_seconds) for at in range(1, 5_000))
    assert not any(rounds_of(steps))


def test_a_round_without_an_answer_never_ends() -> None:
    assert not any(rounds_of((at / 10, 10, 10, -0.1) for at in range(100)))
    assert any(rounds_of((at / 10, 10, 10, at / 10) for at in range(100)))

"""One test for each row of the tables in raft/standing.py."""

from collections.abc import Callable

import pytest

from replicated_namesrv.raft.configuration import Configuration
from replicated_namesrv.raft.raft_messages import Introduction
from replicated_namesrv.raft.standing import INCARNATIONS_MAX, ROWS, IncarnationRecord, Memory, PeerMemories, Standing

US = 7
"""Our process."""
CONTEST_S = 0.6
BLANK_DISK = Memory(0, 0, 0)


class Judge:
    """The record of one incarnation of a peer. We introduce ourselves after each introduction of the peer."""

    def __init__(self) -> None:
        self.record = IncarnationRecord()
        self.sequence = 0
        self.next = 0

    def hears(self, process: int, now: float, boot: int = 1, opened: Memory = BLANK_DISK, fresh: bool = True) -> Standing:
        """The standing of ``process``, which echoes the newest introduction or none."""
        self.sequence += 1
        echo = (US, self.next) if fresh else (0, 0)
        said = Introduction(1, 2, process, boot, self.sequence, *echo, *opened, opened.number, 1, 1, 0, 0, 0, 0)
        self.next += 1
        standing = self.record.judge(said, US, self.next, now, CONTEST_S)
        assert standing is not None
        return standing

    def accepts(self, process: int, now: float, boot: int = 1, opened: Memory = BLANK_DISK) -> None:
        """The process echoes our newest introduction and is accepted."""
        assert self.hears(process, now, boot, opened, fresh=False) is Standing.PENDING
        assert self.hears(process, now, boot, opened) is Standing.ACCEPTED


def row_s1() -> Standing:
    """A copy of an old introduction has no echo of ours."""
    return Judge().hears(5, 0.0, fresh=False)


def row_s2() -> Standing:
    judge = Judge()
    judge.accepts(5, 0.0)
    judge.record.note(Memory(100, 9, 50))
    return judge.hears(5, 0.1)


def row_s3() -> Standing:
    judge = Judge()
    judge.accepts(5, 0.0)
    judge.accepts(6, 0.1, boot=2)
    judge.hears(5, 0.2, fresh=False)
    judge.hears(5, 0.3)
    return judge.hears(6, 0.4, boot=2)


def row_s4() -> Standing:
    judge = Judge()
    judge.accepts(5, 0.0)
    judge.record.note(Memory(100, 9, 50))
    judge.hears(6, 0.1, boot=2, fresh=False)
    return judge.hears(6, 0.2, boot=2)


def row_s5() -> Standing:
    judge = Judge()
    judge.accepts(5, 0.0)
    judge.record.note(Memory(100, 9, 50))
    judge.hears(6, 5.0, boot=2, fresh=False)
    return judge.hears(6, 5.1, boot=2)


def row_s6() -> Standing:
    judge = Judge()
    judge.accepts(5, 0.0)
    judge.record.note(Memory(100, 9, 50))
    judge.hears(6, 0.1, boot=2, fresh=False)
    return judge.hears(6, 0.2, boot=2, opened=Memory(100, 9, 50))


def row_s7() -> Standing:
    judge = Judge()
    judge.accepts(5, 0.0)
    judge.hears(5, 0.1)
    judge.sequence = 0
    return judge.hears(5, 0.2)


def memories(last_contact_at: float) -> PeerMemories:
    """The last contact with incarnation 11 of peer b was at ``last_contact_at``."""
    found, judge = PeerMemories(["b"], Configuration({}, True)), Judge()
    judge.record = found.record("b", 11)
    judge.accepts(5, last_contact_at)
    return found


def row_i1() -> Standing:
    found = memories(0.0)
    assert found.judge_beside("b", 12, 0, 0.1, CONTEST_S) is Standing.ACCEPTED
    return found.judge_beside("b", 11, 11, 0.1, CONTEST_S)


def row_i2() -> Standing:
    return memories(0.0).judge_beside("b", 12, 11, CONTEST_S, CONTEST_S)


def row_i3() -> Standing:
    found = memories(0.0)
    found.judge_beside("b", 12, 11, 0.1, CONTEST_S)
    judge = Judge()
    judge.record, judge.sequence, judge.next = found.record("b", 11), 10, 10
    judge.hears(5, 0.2)
    assert found.judge_beside("b", 11, 11, 0.2, CONTEST_S) is Standing.ACCEPTED, "the known one stays"
    return found.judge_beside("b", 12, 11, 0.3, CONTEST_S)


def row_i4() -> Standing:
    return memories(0.0).judge_beside("b", 12, 11, 0.1, CONTEST_S)


CASES: dict[str, tuple[Callable[[], Standing], Standing]] = {
    "S1": (row_s1, Standing.PENDING),
    "S2": (row_s2, Standing.ACCEPTED),
    "S3": (row_s3, Standing.CONTESTED),
    "S4": (row_s4, Standing.CONTESTED),
    "S5": (row_s5, Standing.REGRESSED),
    "S6": (row_s6, Standing.ACCEPTED),
    "S7": (row_s7, Standing.REGRESSED),
    "I1": (row_i1, Standing.ACCEPTED),
    "I2": (row_i2, Standing.ACCEPTED),
    "I3": (row_i3, Standing.CONTESTED),
    "I4": (row_i4, Standing.PENDING),
}


def test_every_row_has_a_test() -> None:
    assert tuple(CASES) == ROWS


@pytest.mark.parametrize("row", ROWS)
def test_row(row: str) -> None:
    case, expected = CASES[row]
    assert case() is expected


def test_a_new_incarnation_that_was_silent_for_the_contest_time_begins_anew() -> None:
    """The first attempt of the new incarnation was long ago, so a later contact with the known incarnation does not contest
    it."""
    found = memories(0.0)
    found.judge_beside("b", 12, 11, 0.1, CONTEST_S)
    judge = Judge()
    judge.record, judge.sequence, judge.next = found.record("b", 11), 10, 10
    judge.hears(5, 50.0)
    assert found.judge_beside("b", 12, 11, 50.1, CONTEST_S) is Standing.PENDING
    assert found.judge_beside("b", 12, 11, 50.0 + CONTEST_S, CONTEST_S) is Standing.ACCEPTED


def test_a_repeated_boot_is_a_regression_though_nothing_is_missing() -> None:
    judge = Judge()
    judge.accepts(5, 0.0, boot=2)
    judge.hears(6, 5.0, boot=2, fresh=False)
    assert judge.hears(6, 5.1, boot=2) is Standing.REGRESSED


def test_a_late_copy_of_an_introduction_is_dropped() -> None:
    judge = Judge()
    judge.accepts(5, 0.0)
    judge.hears(5, 0.1)
    late = Introduction(1, 2, 5, 1, 1, US, 0, *BLANK_DISK, 0, 1, 1, 0, 0, 0, 0)
    again = Introduction(1, 2, 5, 1, 3, US, judge.next - 1, *BLANK_DISK, 0, 1, 1, 0, 0, 0, 0)
    for said in (late, again):
        assert judge.record.judge(said, US, judge.next, 0.2, CONTEST_S) is None
    assert judge.hears(5, 0.3) is Standing.ACCEPTED


def test_a_process_that_went_back_stays_regressed() -> None:
    """The process soon sends introductions with numbers that were not used before."""
    judge = Judge()
    judge.accepts(5, 0.0)
    judge.sequence = 0
    assert [judge.hears(5, 0.2) for _ in range(5)] == [Standing.REGRESSED] * 5


def test_the_incarnation_that_votes_is_remembered_however_many_others_follow() -> None:
    configuration = Configuration({"b": 11}, True)
    found = PeerMemories(["b"], configuration)
    found.remember("b", 11, Memory(100, 9, 50))
    for incarnation in range(12, 12 + 3 * INCARNATIONS_MAX):
        found.record("b", incarnation)
    assert found.memory("b", 11) == Memory(100, 9, 50)
    configuration.replace({"b": 12 + 3 * INCARNATIONS_MAX})
    for incarnation in range(12, 12 + 3 * INCARNATIONS_MAX):
        found.record("b", incarnation)
    assert found.memory("b", 11) == BLANK_DISK, "forgotten once it does not vote"


def test_a_later_introduction_with_an_older_echo_went_back() -> None:
    """The process was reset, and receives none of our introductions until its numbers are greater than before."""
    record = IncarnationRecord()

    def hears(sequence: int, echo: int) -> Standing | None:
        said = Introduction(1, 2, 5, 1, sequence, US, echo, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0)
        return record.judge(said, US, 20, 0.0, CONTEST_S)

    hears(1, 20)
    assert hears(2, 22) is Standing.ACCEPTED
    assert hears(2, 21) is None
    assert hears(3, 22) is Standing.ACCEPTED
    assert hears(4, 21) is Standing.REGRESSED
    assert hears(5, 23) is Standing.REGRESSED

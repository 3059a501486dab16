"""Every row of the tables in ``liveness/silence.py``."""

from collections.abc import Collection

import pytest

from replicated_namesrv.model import DataVersion
from replicated_namesrv.replication.liveness.silence import LOOKS_PER_TURN, RETRY_MS, SHARES, STALE_MAX, Due, Lease, Silence
from replicated_namesrv.routes.broker_group import Registration
from tests.replication.virtual import KEY

T = 9_000
THIRD = T / SHARES


def unread(leases: Collection[Lease], began_ms: float = 0.0) -> Silence:
    """A leader's watch, which has not read these registrations yet."""
    version = DataVersion(0, 0, 0)
    return Silence(
        {each.key: Registration(*each.key, "b", 0, each.epoch, version, each.timeout_ms, "", (), 0) for each in leases}, began_ms
    )


def watching(leases: Collection[Lease], began_ms: float = 0.0) -> Silence:
    """A leader's watch, which has read these registrations."""
    silence = unread(leases, began_ms)
    by_key = {each.key: each for each in leases}
    while silence._unread:
        assert silence.due(by_key.get, began_ms) == []
    return silence


class Watch:
    """A leader's watch over one broker, whose suspicion the test records."""

    def __init__(self, suspicion: int = 0, began_ms: float = 0.0) -> None:
        self.lease = Lease(KEY, 7, T, suspicion)
        self.silence = watching([self.lease], began_ms)

    def due(self, now_ms: float) -> list[int]:
        """The shares of silence that are due at this time. They are recorded at once. SHARES: the broker's time-out has
        passed."""
        found = []
        for due in self.silence.due(lambda key: self.lease, now_ms):
            found.append(due.share)
            self.lease = self.lease._replace(suspicion=due.share)
        return found + [SHARES for _ in self.silence.silent(lambda key: self.lease, now_ms)]

    def contact(self, now_ms: float) -> None:
        self.lease = self.lease._replace(suspicion=0)
        self.silence.contact(self.lease, now_ms)


def test_contact_ends_silence() -> None:
    watch = Watch()
    watch.due(THIRD)
    watch.contact(THIRD + 10)
    assert watch.silence.age_ms(KEY, THIRD + 30) == 20
    assert watch.due(2 * THIRD + 9) == []
    assert watch.due(2 * THIRD + 10) == [1]


def test_successor_continues() -> None:
    """A leader that finds a suspicion of two thirds removes the broker after the last third."""
    for suspicion in range(SHARES):
        watch = Watch(suspicion, began_ms=100)
        shares = [share for step in range(1, SHARES + 1) for share in watch.due(100 + step * THIRD)]
        assert shares[: SHARES - suspicion] == list(range(suspicion + 1, SHARES + 1))
        assert watch.silence.age_ms(KEY, 100) == suspicion * THIRD


def test_short_silence() -> None:
    assert Watch().due(THIRD - 1) == []


def test_first_third() -> None:
    assert Watch().due(THIRD) == [1]


def test_second_third() -> None:
    assert Watch().due(2 * THIRD) == [2], "at once, if nobody looked before"
    watch = Watch()
    assert [watch.due(THIRD), watch.due(2 * THIRD)] == [[1], [2]]


def test_recorded_silence() -> None:
    watch = Watch()
    watch.due(THIRD)
    assert watch.due(2 * THIRD - 1) == []
    restarted = Watch(suspicion=2, began_ms=0)
    assert restarted.due(THIRD - 1) == []


def test_time_out() -> None:
    watch = Watch()
    for share in (1, 2):
        watch.due(share * THIRD)
    assert watch.due(T - 1) == []
    assert watch.due(T) == [SHARES]
    assert watch.due(T + 1) == [SHARES], "until something happens"
    watch.contact(T + 2)
    assert watch.due(T + 3) == []
    assert watch.due(T + 2 + THIRD) == [1]
    watch.due(2 * T + 2)
    watch.silence.forget(KEY)
    assert watch.due(2 * T + 3) == []


def test_a_silent_broker_that_registered_unnoticed_has_its_whole_time_out() -> None:
    watch = Watch()
    assert watch.due(T) == [SHARES]
    watch.lease = watch.lease._replace(epoch=8)
    assert watch.due(T + 1) == []
    assert watch.due(T + 1 + THIRD) == [1]


def test_what_is_not_done_stays_due() -> None:
    silence = watching([Lease(KEY, 7, T, 0)])
    for step in range(4):
        now = THIRD + step * RETRY_MS
        assert silence.due(lambda key: Lease(KEY, 7, T, 0), now) == [Due(Lease(KEY, 7, T, 0), 1)]
        assert silence.due(lambda key: Lease(KEY, 7, T, 0), now + RETRY_MS / 2) == []


def test_a_registration_with_a_shorter_time_out_counts_from_then() -> None:
    watch = Watch()
    watch.lease = watch.lease._replace(timeout_ms=600)
    watch.silence.contact(watch.lease, 1_000)
    assert watch.due(1_199) == []
    assert watch.due(1_200) == [1]
    assert watch.due(THIRD) == [SHARES]


@pytest.mark.parametrize("checked_ms", [THIRD, T])
def test_a_shorter_time_out_that_registered_unnoticed_counts_from_then(checked_ms: float) -> None:
    """The registration keeps its epoch. The broker was silent for a third of its earlier time-out, or for all of it."""
    watch = Watch()
    watch.due(checked_ms)
    watch.lease = watch.lease._replace(timeout_ms=600, suspicion=0)
    assert watch.due(T) == []
    assert watch.due(T + 199) == []
    assert watch.due(T + 200) == [1]


def test_one_check_at_a_third_that_cannot_be_represented() -> None:
    """A third after this contact, the rounded silence is less than a third."""
    lease, contact_ms, looks = Lease(KEY, 7, 10_000, 0), 117_918.70367106106, 0
    silence = watching([])
    silence.contact(lease, contact_ms)

    def lease_of(key: tuple[str, str]) -> Lease:
        nonlocal looks
        looks += 1
        return lease

    now_ms = contact_ms + lease.third_ms
    assert (silence.due(lease_of, now_ms), looks) == ([], 1)
    assert silence.due(lease_of, now_ms + 1) == [Due(lease, 1)]


def test_brokers_are_checked_on_time_after_the_heap_was_rebuilt() -> None:
    """The broker with the longest time-out is the first one."""
    leases = {lease.key: lease for lease in (Lease(("c", f"b:{n}"), 1, (9 - n) * T, 0) for n in range(9))}
    silence = watching([])
    for lease in leases.values():
        silence.contact(lease, 0)
    gone = Lease(KEY, 1, 1_000 * T, 0)
    for _ in range(STALE_MAX + 20):
        silence.contact(gone, 0)
        silence.forget(KEY)
    assert len(silence._heap) < STALE_MAX, "it was rebuilt"
    for number in range(1, 10):
        due = silence.due(leases.get, number * THIRD)
        assert leases["c", f"b:{9 - number}"] in [each.lease for each in due]


def test_a_registration_that_ended_is_forgotten() -> None:
    watch = Watch()
    watch.silence.forget(KEY)
    assert watch.due(2 * T) == []
    assert watch.silence.age_ms(KEY, T) is None
    gone = watching([Lease(KEY, 7, T, 0)])
    assert gone.due(lambda key: None, T) == []
    assert gone.age_ms(KEY, T) is None


def test_one_that_began_anew_unnoticed_has_its_whole_time_out() -> None:
    watch = Watch()
    watch.lease = watch.lease._replace(epoch=8)
    assert watch.due(T) == []
    assert watch.due(T + THIRD) == [1]


def test_a_thousand_brokers_that_renew_cost_one_look_in_a_third() -> None:
    leases = {("c", f"b:{n}"): Lease(("c", f"b:{n}"), 1, T, 0) for n in range(1_000)}
    silence, looks = watching(leases.values()), 0

    def lease_of(key: tuple[str, str]) -> Lease:
        nonlocal looks
        looks += 1
        return leases[key]

    for now in range(0, 3 * T, 500):
        for lease in leases.values():
            silence.contact(lease, now)
        assert silence.due(lease_of, now) == []
    assert looks <= 1_000 * 3 * (SHARES + 1)
    assert len(silence._heap) == 1_000


def test_a_turn_looks_at_no_more_brokers_than_allowed() -> None:
    leases = {("c", f"b:{n}"): Lease(("c", f"b:{n}"), 1, T, 0) for n in range(3 * LOOKS_PER_TURN // 2)}
    silence = watching(leases.values())
    turns = [silence.due(leases.__getitem__, THIRD + turn) for turn in range(3)]
    assert [len(turn) for turn in turns] == [LOOKS_PER_TURN, LOOKS_PER_TURN // 2, 0]
    assert {due.lease.key for turn in turns for due in turn} == leases.keys()
    silence.due(leases.__getitem__, 2 * T)
    assert len(list(silence.silent(leases.__getitem__, 2 * T))) == LOOKS_PER_TURN


def test_the_heap_does_not_grow_with_registrations() -> None:
    """Each registration with another time-out, and each broker that registers anew, leaves an element behind."""
    silence = watching([])
    for step in range(3 * STALE_MAX):
        silence.contact(Lease(KEY, step, T + step % 2, 0), 0)
        silence.forget(KEY)
        silence.contact(Lease(KEY, step, T + step % 3, 0), 0)
    assert len(silence._heap) <= STALE_MAX + 2
    lease = Lease(KEY, 7, T, 0)
    silence.contact(lease, 0)
    assert silence.due(lambda key: lease, THIRD) == [Due(lease, 1)]


def test_what_cannot_be_recorded_is_looked_at_once_in_a_third() -> None:
    lease, looks = Lease(KEY, 7, T, 0), 0
    silence = watching([lease])

    def lease_of(key: tuple[str, str]) -> Lease:
        nonlocal looks
        looks += 1
        return lease

    for now in range(0, T, 100):
        assert silence.due(lease_of, now, can_record=False) == []
    assert looks == SHARES - 1
    assert silence.due(lease_of, T, can_record=False) == []
    assert list(silence.silent(lease_of, T)) == [lease], "a silent broker is removed"


def test_a_new_leader_reads_registrations_in_turns() -> None:
    """Until a registration is read, its silence is measured since LEAD without the recorded suspicion."""
    leases = {("c", f"b:{n}"): Lease(("c", f"b:{n}"), 1, T, 1) for n in range(2 * LOOKS_PER_TURN + 1)}
    silence = unread(leases.values(), 1_000)
    reads: list[tuple[str, str]] = []

    def lease_of(key: tuple[str, str]) -> Lease:
        reads.append(key)
        return leases[key]

    for count in (LOOKS_PER_TURN, 2 * LOOKS_PER_TURN, 2 * LOOKS_PER_TURN + 1):
        assert all(silence.watches(key) for key in leases)
        assert silence.due(lease_of, 1_500) == []
        assert len(reads) == count
        ages = [silence.age_ms(key, 1_500) for key in leases]
        assert (ages.count(500.0 + THIRD), ages.count(500.0)) == (count, len(leases) - count)
    assert not silence.watches(("c", "other:1"))
    assert silence.age_ms(("c", "other:1"), 1_500) is None


def test_a_registration_that_ended_before_it_was_read() -> None:
    silence = unread([Lease(KEY, 7, T, 0)])
    assert silence.due(lambda key: None, 100) == []
    assert not silence.watches(KEY)
    silence = unread([Lease(KEY, 7, T, 0)])
    silence.forget(KEY)
    assert not silence.watches(KEY)
    assert silence.due(lambda key: Lease(KEY, 7, T, 0), THIRD) == []


def test_contact_before_the_registration_was_read() -> None:
    lease = Lease(KEY, 7, T, 0)
    silence = unread([lease])
    silence.contact(lease, 500)
    assert not silence._unread
    assert silence.due(lambda key: lease, THIRD + 499) == []
    assert silence.due(lambda key: lease, THIRD + 500) == [Due(lease, 1)]


def test_another_registration_before_the_first_was_read_has_its_whole_time_out() -> None:
    """``contact`` has not been called for the second registration yet."""
    silence, lease = unread([Lease(KEY, 7, T, 2)]), Lease(KEY, 8, T, 0)
    assert silence.due(lambda key: lease, 2_000) == []
    assert silence.age_ms(KEY, 2_000) == 0
    assert silence.due(lambda key: lease, 2_000 + THIRD) == [Due(lease, 1)]

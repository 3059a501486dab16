"""Every row of the tables in ``liveness/attachments.py``."""

import pytest

from replicated_namesrv.replication.liveness import attachments as attachments_module
from replicated_namesrv.replication.liveness.attachments import (
    BACKLOG_MS,
    CONNECTIONS_MAX,
    CONTACT_MS,
    REGISTERED_MAX,
    RETURN_MS,
    STALL_MS,
    Attachments,
    Conversations,
)
from replicated_namesrv.replication.liveness.leader_messages import AGE_MAX, HELD, LOST, RELEASED
from replicated_namesrv.service import PATIENCE_MS, SLOW_MS
from tests.replication.virtual import KEY

OTHER = ("c", "b:1")


def state_of(attachments: Attachments) -> int | None:
    entry = attachments.entry(KEY, 0)
    return None if entry is None else entry.state


def attached(*connections: int) -> Attachments:
    attachments = Attachments()
    for connection_id in connections:
        attachments.attach(KEY, 7, connection_id, connection_id * 100.0, 0, registers=True)
    attachments.changed.clear()
    return attachments


def test_open_connection() -> None:
    attachments = attached(1, 2)
    entry = attachments.entry(KEY, 1_000)
    assert entry is not None
    assert (entry.state, entry.opened_ms) == (HELD, 800), "the age of the newest"
    attachments.lose(2, in_peace=True)
    assert state_of(attachments) == HELD
    assert attachments.changed == {}, "the leader knows that"


def test_closed_in_peace() -> None:
    attachments = attached(1)
    attachments.lose(1, in_peace=True)
    assert (state_of(attachments), list(attachments.changed)) == (LOST, [KEY])
    conversations = Conversations(0)
    conversations.opened(1, 10)
    conversations.asked(1)
    conversations.answered(1, 20, 30)
    assert conversations.closed(1, True, 40)


def test_unacknowledged_answer() -> None:
    conversations = Conversations(0)
    conversations.opened(1, 10)
    assert not conversations.closed(1, False, 40)


def test_closed_by_us() -> None:
    attachments = attached(1, 2)
    attachments.lose(2, in_peace=False)
    attachments.lose(1, in_peace=False)
    entry = attachments.entry(KEY, 1_000)
    assert entry is not None
    assert (entry.state, entry.opened_ms) == (RELEASED, 800), "the age of the newest that we closed"


def test_an_older_one_is_closed_last() -> None:
    """The older connection may belong to an earlier process of the broker. Its end is no evidence that the present one left."""
    attachments = attached(1, 2)
    attachments.lose(2, in_peace=False)
    attachments.lose(1, in_peace=True)
    entry = attachments.entry(KEY, 1_000)
    assert entry is not None
    assert (entry.state, entry.opened_ms) == (RELEASED, 800)
    attachments.attach(KEY, 7, 3, 300.0, 0, registers=True)
    attachments.lose(3, in_peace=True)
    assert state_of(attachments) == LOST, "the newest"


def test_a_newer_one_was_closed_by_us() -> None:
    """A connection that is open does not hide a newer one over which the broker may return."""
    attachments = attached(1, 2)
    attachments.lose(2, in_peace=False)
    attachments.attach(KEY, 7, 1, 100.0, 5, registers=False)
    ages = []
    for clock_ms in (1_000, RETURN_MS, RETURN_MS + 1):
        entry = attachments.entry(KEY, clock_ms)
        assert entry is not None
        assert entry.state == HELD
        ages.append(clock_ms - entry.opened_ms)
    assert ages == [200, 200, 100]


def test_never_attached() -> None:
    attachments = Attachments()
    assert attachments.entry(KEY, 0) is None
    assert attachments.known() == []
    assert not attachments.lose(1, in_peace=True)


def test_one_of_several_brokers_leaves_a_connection() -> None:
    attachments = attached(1)
    attachments.attach(OTHER, 8, 1, 0, 0, registers=True)
    attachments.detach(KEY, 1)
    assert state_of(attachments) == LOST
    assert attachments.brokers_of(1) == [OTHER]
    assert attachments.lose(1, in_peace=False)
    assert state_of(attachments) == LOST, "it had left before"


def test_so_many_connections_of_a_broker_are_remembered_and_the_newest() -> None:
    attachments = attached(*range(CONNECTIONS_MAX + 100, 0, -1))
    assert attachments.newest_opened_ms(KEY) == (CONNECTIONS_MAX + 100) * 100.0
    kept = [number for number in range(CONNECTIONS_MAX + 101) if attachments.brokers_of(number)]
    assert kept == list(range(101, CONNECTIONS_MAX + 101))
    for number in range(1, CONNECTIONS_MAX + 101):
        assert state_of(attachments) == HELD
        attachments.lose(number, in_peace=True)
    assert state_of(attachments) == LOST


def test_other_connections_do_not_replace_those_over_which_the_broker_registered() -> None:
    attachments = attached(1)
    for number in range(2, CONNECTIONS_MAX + 100):
        attachments.attach(KEY, 7, number, number * 100.0, 0, registers=False)
    for number in range(2, CONNECTIONS_MAX + 100):
        attachments.lose(number, in_peace=True)
    assert state_of(attachments) == HELD, "its own connection is open"


def test_a_broker_does_not_return_after_two_minutes() -> None:
    attachments = attached(1)
    attachments.lose(1, in_peace=False)
    for clock_ms, opened_ms in ((RETURN_MS, int(RETURN_MS) - 100), (RETURN_MS + 1, AGE_MAX)):
        entry = attachments.entry(KEY, clock_ms)
        assert entry is not None
        assert (entry.state, entry.opened_ms) == (RELEASED, opened_ms)


def test_a_contact_is_old_after_a_while() -> None:
    attachments = attached(1)
    attachments.attach(OTHER, 7, 1, 100.0, 0, registers=True)
    assert attachments.old_contacts(CONTACT_MS) == []
    assert attachments.old_contacts(CONTACT_MS + 1) == [OTHER]
    attachments.lose(1, in_peace=True)
    assert attachments.old_contacts(CONTACT_MS + 1) == [], "that it left is reported whenever it can be"
    attachments.changed[("c", "ended:1")] = None  # as after a report without an answer
    assert attachments.old_contacts(CONTACT_MS + 1) == []


def test_a_newer_registration_forgets_the_connections_of_the_older_one() -> None:
    attachments = attached(1)
    attachments.attach(KEY, 9, 2, 0, 5, registers=False)
    attachments.lose(1, in_peace=True)
    assert state_of(attachments) == HELD
    assert attachments.registered_epoch(KEY, 2) is None, "it has not registered"
    attachments.attach(KEY, 7, 3, 0, 6, registers=True)
    assert attachments.known() == [(KEY, 9)], "what ended before counts for nothing"


def test_what_a_connection_registered_is_known_until_it_closes() -> None:
    attachments = attached(1)
    assert attachments.remove(KEY, 7) == [1]
    attachments.attach(KEY, 8, 1, 0, 0, registers=False)
    assert attachments.registered_epoch(KEY, 1) == 7, "a heartbeat may be of an earlier process"
    attachments.lose(1, in_peace=True)
    assert attachments.registered_epoch(KEY, 1) is None


def test_what_connections_registered_is_bounded_and_gone_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attachments_module, "REGISTERED_TOTAL_MAX", 50)
    attachments = Attachments()
    for number in range(30):
        for connection_id in (1, 2, 3):
            key = (f"C{number}", "address" * 100)
            attachments.attach(key, number + 1, connection_id, 0, 0, registers=True)
            attachments.attach(key, number + 1, connection_id, 0, 0, registers=True)
            assert attachments.registered_epoch(key, connection_id) == number + 1, "the newest has room"
            attachments.remove(key, number + 1)
    registered = attachments._registered
    assert sum(map(len, registered.values())) == attachments._registered_total == 50
    assert all(type(key) is int for keys in registered.values() for key in keys), "not the texts of the request"
    attachments.attach(KEY, 99, 4, 0, 0, registers=True)
    assert attachments.registered_epoch(KEY, 4) == 99, "a connection that has none gets one"
    for connection_id in (1, 2, 3, 4):
        attachments.lose(connection_id, in_peace=True)
    assert (attachments._registered, attachments._registered_total) == ({}, 0)


def test_unanswered_request() -> None:
    conversations = Conversations(0)
    conversations.opened(1, 10)
    conversations.asked(1)
    conversations.asked(1)
    conversations.answered(1, 10, 20)
    assert not conversations.closed(1, True, 30)


def test_slow_answer() -> None:
    for closed_ms, in_peace in ((SLOW_MS + 20 + PATIENCE_MS, False), (SLOW_MS + 21 + PATIENCE_MS, True)):
        conversations = Conversations(0)
        conversations.opened(1, 10)
        conversations.asked(1)
        for now in range(0, int(closed_ms), 100):
            conversations.tick(now)
        conversations.answered(1, 19, SLOW_MS + 20)
        assert conversations.closed(1, True, closed_ms) is in_peace


def test_stalled_process() -> None:
    conversations = Conversations(0)
    conversations.opened(1, 10)
    conversations.opened(2, 10)
    conversations.tick(10 + SLOW_MS + 1)
    assert not conversations.closed(1, True, 20 + SLOW_MS)
    for now in range(int(20 + SLOW_MS), int(20 + SLOW_MS + PATIENCE_MS), 100):
        conversations.tick(now)
    assert conversations.closed(2, True, 20 + SLOW_MS + PATIENCE_MS)


def test_unanswered_queries() -> None:
    for closed_ms, in_peace in ((5_000 + PATIENCE_MS, False), (5_001 + PATIENCE_MS, True)):
        conversations = Conversations(0)
        conversations.opened(1, 10)
        conversations.reads_wait(5_000)
        for now in range(0, int(closed_ms), 100):
            conversations.tick(now)
        assert conversations.closed(1, True, closed_ms) is in_peace


def test_opened_during_a_stall() -> None:
    conversations = Conversations(1_000)
    conversations.tick(1_100)
    conversations.tick(1_100 + 5 * STALL_MS)
    conversations.opened(1, 1_100 + 5 * STALL_MS)
    conversations.tick(1_100 + 7 * STALL_MS)
    conversations.opened(2, 1_110 + 7 * STALL_MS)
    assert [conversations.opened_ms(number) for number in (1, 2)] == [1_100, 1_100], "one stall, twice"
    now = 1_110 + 7 * STALL_MS
    while now < 1_110 + 7 * STALL_MS + BACKLOG_MS:
        now += 100
        conversations.tick(now)
    conversations.opened(3, now)
    assert conversations.opened_ms(3) == now
    assert conversations.opened_ms(4) is None


def test_a_connection_remembers_so_many_registrations_and_the_newest() -> None:
    attachments, others = attached(1), 3 * REGISTERED_MAX
    for number in range(others):
        attachments.attach(("c", f"{number}:1"), 7 + number, 1, 0, 0, registers=True)
        attachments.remove(("c", f"{number}:1"), 7 + number)
        attachments.attach(KEY, 7, 1, 0, 0, registers=True)
    assert len(attachments._registered[1]) == REGISTERED_MAX
    assert attachments.registered_epoch(KEY, 1) == 7
    assert attachments.registered_epoch(("c", f"{others - 1}:1"), 1) == 6 + others
    assert attachments.registered_epoch(("c", "0:1"), 1) is None
    attachments.lose(1, in_peace=True)
    assert attachments._registered == {}


def test_a_contact_with_an_older_epoch_attaches_nothing() -> None:
    attachments = attached(1)
    attachments.attach(KEY, 6, 2, 200.0, 5, registers=True)
    assert (attachments.brokers_of(2), attachments.contact_ms(KEY)) == ([], 0)
    attachments.lose(1, in_peace=True)
    assert state_of(attachments) == LOST


def test_the_last_contact_and_the_newest_connection() -> None:
    attachments = attached(1, 2)
    attachments.attach(KEY, 7, 1, 100.0, 1_234, registers=False)
    assert (attachments.contact_ms(KEY), attachments.newest_opened_ms(KEY)) == (1_234, 200.0)
    assert attachments.old_contacts(1_234 + CONTACT_MS) == []
    assert attachments.old_contacts(1_235 + CONTACT_MS) == [KEY]
    assert (attachments.contact_ms(OTHER), attachments.newest_opened_ms(OTHER)) == (None, None)
    for number in (1, 2):
        attachments.lose(number, in_peace=True)
    assert attachments.newest_opened_ms(KEY) is None


def test_an_ended_registration_is_forgotten() -> None:
    attachments = attached(1, 2)
    attachments.attach(KEY, 7, 2, 200.0, 0, registers=False)
    assert attachments.remove(KEY, 6) == [], "a later registration is in force"
    assert attachments.remove(OTHER, 7) == []
    assert attachments.remove(KEY, 7) == [1, 2]
    assert (attachments.known(), attachments.changed, state_of(attachments)) == ([], {}, None)
    attachments.detach(KEY, 1)


def test_a_cleanly_closed_connection_is_not_the_newest_that_was_released() -> None:
    attachments = attached(1, 2)
    attachments.lose(2, in_peace=True)
    attachments.lose(1, in_peace=False)
    entry = attachments.entry(KEY, 1_000)
    assert entry == (KEY, RELEASED, False, 7, 0, 900)


def test_the_age_of_a_connection() -> None:
    """The age of an open connection does not depend on its last contact, and is at least 0. A lost connection has no age."""
    attachments = attached(1)
    for clock_ms, age_ms in ((3 * RETURN_MS, int(3 * RETURN_MS) - 100), (50.0, 0)):
        entry = attachments.entry(KEY, clock_ms)
        assert entry == (KEY, HELD, False, 7, 0, age_ms)
    attachments.lose(1, in_peace=False)
    attachments.attach(KEY, 7, 2, 200.0, 0, registers=True)
    attachments.lose(2, in_peace=True)
    entry = attachments.entry(KEY, 1_000)
    assert entry == (KEY, LOST, False, 7, 0, AGE_MAX)


def test_a_stall_is_detected_when_a_connection_opens_or_closes() -> None:
    conversations = Conversations(1_000)
    conversations.opened(1, 1_000)
    assert conversations.opened_ms(1) == 1_000
    conversations.tick(1_100)
    conversations.opened(2, 1_100 + 5 * STALL_MS)
    assert conversations.opened_ms(2) == 1_100
    conversations = Conversations(0)
    conversations.opened(1, 10)
    assert not conversations.closed(1, True, 11 + SLOW_MS)


def test_a_short_stall_is_no_reason_to_close() -> None:
    conversations = Conversations(0)
    conversations.opened(1, 10)
    conversations.tick(10 + SLOW_MS)
    assert conversations.closed(1, True, 20 + SLOW_MS)


def test_a_connection_that_is_not_open() -> None:
    conversations = Conversations(0)
    conversations.opened(1, 10)
    conversations.asked(2)
    conversations.answered(2, 10, 20)
    assert (conversations.is_open(1), conversations.is_open(2), conversations.opened_ms(2)) == (True, False, None)
    assert not conversations.closed(2, True, 30)

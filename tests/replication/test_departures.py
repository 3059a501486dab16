"""Every row of the tables in ``liveness/departures.py``."""

import math

import pytest

from replicated_namesrv.replication.liveness.defences import LivenessDefences
from replicated_namesrv.replication.liveness.departures import LOOK_AGAIN_MS, NODE_SILENCE_MS, UNREPORTED_MS, Departures
from replicated_namesrv.replication.liveness.leader_messages import (
    AGE_MAX,
    ALONE,
    HELD,
    KNOWN,
    LAST,
    LOST,
    MORE,
    RELEASED,
    NodeReport,
    ReportEntry,
)
from replicated_namesrv.replication.liveness.silence import LOOKS_PER_TURN, Lease
from tests.replication.virtual import KEY

MEMBERS = ("n1", "n2", "n3")
T, GRACE, OLD = 10_000, 500, 3_600_000
EPOCH = 7


def entry(state: int, epoch: int = EPOCH, opened_ms: int = AGE_MAX) -> ReportEntry:
    return ReportEntry(KEY, state, False, epoch, 0, opened_ms)


class Leader:
    """n1 leads. Nodes report four times a second. The broker was registered before the term of this leader."""

    def __init__(self, removed_ms: float = -math.inf) -> None:
        self.departures = Departures(MEMBERS, "n1", GRACE, 0, LivenessDefences(), removed_ms)
        self.departures.lead_applied(EPOCH)
        self.now_ms = 0.0
        self.paused_ms = 0.0
        self.sequences = dict.fromkeys(MEMBERS, 0)
        self.sessions = dict.fromkeys(MEMBERS, 1)
        self.lease: Lease | None = Lease(KEY, EPOCH, T, 0)

    def report(self, node: str, *entries: ReportEntry, full: bool = False, running_ms: int = OLD, part: int = ALONE) -> bool:
        self.sequences[node] += 1
        report = NodeReport(self.sessions[node], self.sequences[node], 5, full, entries, running_ms, part)
        return self.departures.report(node, report, self.now_ms, self.now_ms + self.paused_ms)

    def lists(self, **entries: tuple[ReportEntry, ...]) -> None:
        for node, listed in entries.items():
            assert self.report(node, *listed, full=True)

    def run(self, ms: float, unheard: tuple[str, ...] = ()) -> None:
        until = self.now_ms + ms
        while self.now_ms < until:
            self.now_ms = min(until, self.now_ms + 250)
            for member in self.sequences:
                if member not in unheard:
                    self.report(member)

    def add(self, node: str) -> None:
        self.departures.set_members((*self.sequences, node), self.now_ms, -math.inf)
        self.sequences[node], self.sessions[node] = 0, 1

    def is_late(self, since_ms: float, epoch: int = EPOCH) -> bool:
        return self.departures.is_late(Lease(KEY, epoch, T, 0), since_ms, self.now_ms)

    def is_gone(self) -> bool:
        return list(self.departures.gone(lambda key: self.lease, self.now_ms)) == [self.lease]


def test_unheard_node() -> None:
    leader = Leader()
    leader.lists(n1=(entry(LOST),), n2=(entry(LOST),), n3=())
    leader.run(T - 250, unheard=("n3",))
    assert not leader.is_gone()
    leader.run(250, unheard=("n3",))
    assert leader.is_gone()


def test_a_node_that_this_leader_never_heard_counts_from_its_beginning() -> None:
    leader = Leader()
    leader.lists(n1=(entry(LOST),), n2=())
    leader.run(T - 250, unheard=("n3",))
    assert not leader.is_gone()
    leader.run(250 + NODE_SILENCE_MS, unheard=("n3",))
    assert leader.is_gone()


def test_attached() -> None:
    leader = Leader()
    leader.lists(n1=(entry(LOST),), n2=(entry(LOST),), n3=(entry(HELD),))
    leader.run(3 * T)
    assert not leader.is_gone()
    leader.report("n3", entry(LOST))
    leader.run(GRACE - 250)
    assert not leader.is_gone()
    leader.run(250)
    assert leader.is_gone()


def test_attached_with_an_earlier_epoch() -> None:
    leader = Leader()
    leader.lists(n1=(entry(LOST),), n2=(entry(LOST),), n3=(entry(HELD, EPOCH - 1),))
    leader.run(3 * T)
    assert not leader.is_gone()
    leader.report("n3", entry(LOST, EPOCH - 1))
    leader.run(250)
    assert leader.is_gone()


def test_closed_by_the_broker() -> None:
    leader = Leader()
    leader.lists(n1=(entry(LOST),), n2=(entry(LOST),), n3=(entry(LOST),))
    leader.run(GRACE - 250)
    assert not leader.is_gone()
    leader.run(250)
    assert leader.is_gone()
    leader.departures.forget(KEY, EPOCH)
    leader.lease = None
    assert list(leader.departures.gone(lambda key: None, leader.now_ms + T)) == []


def test_closed_by_the_broker_in_a_list_of_two_parts() -> None:
    """The first part has the closed connection. The broker is judged between the parts, when no complete list contains it."""
    leader = Leader()
    leader.lists(n1=(), n3=())
    leader.report("n2", entry(LOST), full=True, part=MORE)
    assert not leader.is_gone()
    leader.report("n2", entry(HELD)._replace(key=("c", "b:1")), part=LAST)
    leader.run(GRACE - 250)
    assert not leader.is_gone()
    leader.run(250)
    assert leader.is_gone()


def test_released() -> None:
    leader = Leader()
    leader.lists(n1=(entry(LOST),), n2=(entry(LOST),), n3=(entry(RELEASED),))
    leader.run(T - 250)
    assert not leader.is_gone()
    leader.run(250 + NODE_SILENCE_MS)
    assert leader.is_gone()


def test_nobody_saw_it_leave() -> None:
    """If no node saw the broker leave, ``silence.py`` decides."""
    leader = Leader()
    leader.lists(n1=(), n2=(entry(RELEASED),), n3=(entry(RELEASED),))
    leader.run(3 * T)
    assert not leader.is_gone()


def test_a_lost_connection_of_an_earlier_registration_is_no_evidence() -> None:
    leader = Leader()
    leader.lists(n1=(entry(LOST, EPOCH - 1),), n2=(), n3=())
    leader.run(3 * T)
    assert not leader.is_gone()


def test_a_lost_connection_of_a_node_without_contact_is_no_evidence() -> None:
    leader = Leader()
    leader.lists(n1=(), n2=(), n3=(entry(LOST),))
    leader.run(2 * NODE_SILENCE_MS, unheard=("n3",))
    leader.run(T, unheard=("n3",))
    assert not leader.is_gone()


def test_the_leaders_own_reports_may_be_old() -> None:
    leader = Leader()
    leader.lists(n1=(entry(LOST),), n2=(entry(LOST),), n3=(entry(LOST),))
    leader.run(2 * NODE_SILENCE_MS, unheard=("n1",))
    assert leader.departures.unheard(leader.now_ms) == []
    assert leader.is_gone()


def test_a_registration_that_ended_is_not_gone() -> None:
    leader = Leader()
    leader.lists(n1=(entry(LOST),), n2=(entry(LOST),), n3=(entry(LOST, EPOCH - 1),))
    leader.run(GRACE)
    assert list(leader.departures.gone(lambda key: None, leader.now_ms)) == []
    assert leader.departures._looks == {}


@pytest.mark.parametrize("is_backup", [False, True])
@pytest.mark.parametrize("ran_ms", [1_000, 0])
def test_never_attached(ran_ms: int, is_backup: bool) -> None:
    """Each node's process began ``ran_ms`` before the registration, which is less than T."""
    leader = Leader()
    for node in MEMBERS:
        leader.report(node, full=True, running_ms=0)
    leader.run(ran_ms)
    leader.lease = Lease(KEY, EPOCH + 1, T, 0)
    if is_backup:
        leader.departures.restored(EPOCH + 1, leader.now_ms)
    else:
        leader.departures.registered(KEY, EPOCH + 1, leader.now_ms, leader.now_ms)
    leader.report("n3", entry(HELD, EPOCH + 1))
    leader.report("n3", entry(LOST, EPOCH + 1))
    leader.run(GRACE)
    assert leader.is_gone()


@pytest.mark.parametrize("is_backup", [False, True])
def test_registered_before_this_term(is_backup: bool) -> None:
    """The registration is applied before LEAD, so the processes of the nodes may be younger."""
    leader = Leader()
    for node in MEMBERS:
        leader.report(node, full=True, running_ms=0)
    leader.run(1_000)
    if is_backup:
        leader.departures.restored(EPOCH, leader.now_ms)
    else:
        leader.departures.registered(KEY, EPOCH, leader.now_ms, leader.now_ms)
    leader.report("n1", entry(LOST))
    leader.run(GRACE)
    assert not leader.is_gone()


@pytest.mark.parametrize("epoch", [1, EPOCH])
def test_registered_before_lead_is_applied(epoch: int) -> None:
    departures = Departures(MEMBERS, "n1", GRACE, 0, LivenessDefences())
    departures.registered(KEY, EPOCH, 1, 1)
    assert departures._registered_at_ms(Lease(KEY, epoch, T, 0)) == -math.inf


def test_a_change_of_a_registration_makes_no_node_old() -> None:
    leader = Leader()
    leader.lists(n1=(), n2=(), n3=())
    leader.departures.registered(KEY, EPOCH + 1, 0, 0)
    leader.run(1_000)
    leader.sessions["n3"], leader.sequences["n3"] = 2, 0
    leader.report("n3", full=True, running_ms=0)
    leader.run(1_000)
    leader.departures.registered(KEY, EPOCH + 1, leader.now_ms, leader.now_ms)
    leader.lease = Lease(KEY, EPOCH + 1, T, 0)
    leader.report("n1", entry(LOST, EPOCH + 1))
    leader.run(GRACE)
    assert not leader.is_gone()


def test_the_time_of_another_registration_makes_no_node_old() -> None:
    leader = Leader()
    for node in MEMBERS:
        leader.report(node, full=True, running_ms=0)
    leader.run(1_000)
    leader.departures.registered(KEY, EPOCH + 1, leader.now_ms, leader.now_ms)
    leader.lease = Lease(KEY, EPOCH + 2, T, 0)
    leader.report("n1", entry(LOST, EPOCH + 2))
    leader.run(GRACE)
    assert not leader.is_gone()


def test_a_node_of_0_1_that_has_no_connection_counts_like_no_entry() -> None:
    leader = Leader()
    leader.lists(n1=(entry(LOST),), n2=(entry(KNOWN),), n3=())
    leader.run(GRACE)
    assert leader.is_gone()


@pytest.mark.parametrize("epoch", [EPOCH, EPOCH + 1])
def test_young_process(epoch: int) -> None:
    """The node's process began after the registration, which is of this term or of an earlier one."""
    leader = Leader()
    leader.lease = Lease(KEY, epoch, T, 0)
    leader.lists(n1=(entry(LOST, epoch),), n2=(entry(LOST, epoch),), n3=(entry(HELD, epoch),))
    leader.departures.registered(KEY, epoch, 0, 0)
    leader.run(2_000)
    leader.sessions["n3"], leader.sequences["n3"] = 2, 0
    assert leader.report("n3", full=True, running_ms=500)
    leader.run(T - 750)
    assert not leader.is_gone()
    leader.run(250 + NODE_SILENCE_MS)
    assert leader.is_gone()


def test_a_process_that_began_while_the_leader_was_paused_is_young() -> None:
    """The leader's running time hardly advances in its pause, so by that clock the node's process seems to be older."""
    leader = Leader()
    leader.lease = Lease(KEY, EPOCH + 1, T, 0)
    leader.lists(n1=(entry(LOST, EPOCH + 1),), n2=(entry(LOST, EPOCH + 1),), n3=())
    leader.run(2_000)
    leader.departures.registered(KEY, EPOCH + 1, leader.now_ms, leader.now_ms)
    leader.paused_ms = 9_000
    leader.sessions["n3"], leader.sequences["n3"] = 2, 0
    assert leader.report("n3", full=True, running_ms=5_000)
    leader.run(2_000)
    assert not leader.is_gone()


def test_a_change_of_an_older_registration_makes_no_node_old() -> None:
    leader = Leader()
    leader.lists(n1=(entry(LOST),), n2=(entry(LOST),), n3=())
    leader.run(1_000)
    leader.sessions["n3"], leader.sequences["n3"] = 2, 0
    leader.report("n3", full=True, running_ms=0)
    leader.run(1_000)
    leader.departures.registered(KEY, EPOCH, leader.now_ms, leader.now_ms)
    leader.run(GRACE)
    assert not leader.is_gone()


def test_a_broker_that_comes_back_within_the_grace_period_stays() -> None:
    leader = Leader()
    leader.lists(n1=(entry(LOST),), n2=(), n3=())
    leader.run(250)
    leader.report("n2", entry(HELD))
    leader.run(3 * T)
    assert not leader.is_gone()


def test_a_broker_that_came_back_is_no_longer_checked() -> None:
    leader = Leader()
    leader.lists(n1=(entry(LOST),), n2=(), n3=(entry(HELD),))
    assert not leader.is_gone()
    assert list(leader.departures._looks) == [KEY]
    leader.report("n1", entry(HELD))
    leader.run(LOOK_AGAIN_MS)
    assert not leader.is_gone()
    assert leader.departures._looks == {}


def test_a_node_is_ahead_of_the_leader() -> None:
    """A node reports a broker and its end before the leader has applied the registration."""
    leader = Leader()
    leader.departures.lead_applied(EPOCH - 1)
    leader.lists(n1=(), n2=(), n3=())
    lease, leader.lease = leader.lease, None
    leader.report("n2", entry(HELD))
    leader.report("n2", entry(LOST))
    assert list(leader.departures.gone(lambda key: leader.lease, leader.now_ms)) == []
    leader.run(250)
    leader.lease = lease
    leader.departures.registered(KEY, EPOCH, leader.now_ms, leader.now_ms)
    assert not leader.is_gone()
    leader.run(GRACE)
    assert leader.is_gone()


@pytest.mark.parametrize("is_arriving", [False, True])
def test_a_report_about_the_next_registration_outlives_the_removal(is_arriving: bool) -> None:
    """A broker was removed and registered again, and its node reports this before the leader has applied either."""
    leader = Leader()
    leader.lists(n1=(), n2=(), n3=())
    if is_arriving:
        leader.report("n2", full=True, part=MORE)
    leader.report("n2", entry(HELD, EPOCH + 1, 0))
    leader.departures.forget(KEY, EPOCH)
    leader.report("n1", entry(LOST, EPOCH + 1))
    if is_arriving:
        leader.report("n2", part=LAST)
    leader.lease = Lease(KEY, EPOCH + 1, T, 0)
    leader.departures.registered(KEY, EPOCH + 1, leader.now_ms, leader.now_ms)
    leader.run(T)
    assert not leader.is_gone()
    assert leader.is_late(-1, EPOCH + 1)


def test_released_with_an_earlier_epoch() -> None:
    leader = Leader()
    leader.lists(n1=(entry(LOST),), n2=(entry(RELEASED, EPOCH - 1),), n3=())
    leader.run(T - 250)
    assert not leader.is_gone()
    leader.run(250 + NODE_SILENCE_MS)
    assert leader.is_gone()


def test_a_lost_connection_of_an_earlier_registration_counts_for_nothing() -> None:
    leader = Leader()
    leader.lists(n1=(entry(LOST),), n2=(entry(LOST, EPOCH - 1),), n3=())
    leader.run(GRACE - 250)
    assert not leader.is_gone()
    leader.run(250)
    assert leader.is_gone()


def test_a_gap_in_the_reports_makes_the_whole_list_necessary() -> None:
    leader = Leader()
    leader.lists(n1=(entry(LOST),), n2=(entry(LOST),), n3=(entry(LOST),))
    leader.sequences["n3"] += 1
    assert not leader.report("n3")
    leader.now_ms += GRACE
    assert not leader.is_gone()
    leader.lists(n3=(entry(LOST),))
    leader.run(GRACE)
    assert leader.is_gone()
    leader.sequences["n3"] -= 1
    assert leader.report("n3", entry(HELD)), "a repeated report says nothing"
    assert leader.is_gone()


def test_an_added_node_counts_before_its_first_report() -> None:
    """A broker may have found the node in the list of members and attached to it."""
    leader = Leader()
    leader.lists(n1=(entry(LOST),), n2=(entry(LOST),), n3=(entry(LOST),))
    leader.add("n4")
    leader.run(T - 1, unheard=("n4",))
    assert not leader.is_gone()
    leader.run(GRACE + 2, unheard=("n4",))
    assert leader.is_gone()


def test_an_attachment_to_an_added_node_counts() -> None:
    leader = Leader()
    leader.lists(n1=(entry(LOST),), n2=(entry(LOST),), n3=(entry(LOST),))
    leader.add("n4")
    leader.lists(n4=(entry(HELD),))
    leader.run(2 * T)
    assert not leader.is_gone()


def test_removed_node() -> None:
    leader = Leader()
    leader.lists(n1=(entry(LOST),), n2=(entry(LOST),), n3=(entry(HELD),))
    leader.run(2 * GRACE)
    assert not leader.is_gone()
    leader.departures.set_members(("n1", "n2"), leader.now_ms, leader.now_ms)
    leader.run(T - 250)
    assert not leader.is_gone()
    leader.run(250 + LOOK_AGAIN_MS)
    assert leader.is_gone()


@pytest.mark.parametrize("state", [HELD, RELEASED, LOST, None])
def test_unreported_registration(state: int | None) -> None:
    """All connections of an earlier process have ended. Then a new process has registered, with the same epoch."""
    leader = Leader()
    leader.lists(n1=(entry(LOST),), n2=(entry(LOST),), n3=(entry(LOST),))
    leader.run(2 * GRACE)
    leader.departures.registered(KEY, EPOCH, leader.now_ms, leader.now_ms)
    assert not leader.is_gone()
    if state is not None:
        leader.report("n2", entry(state))
    leader.run(UNREPORTED_MS)
    assert not leader.is_gone()
    leader.run(250 + LOOK_AGAIN_MS)
    assert leader.is_gone() == (state in (LOST, None)), "the node that received it reports nothing"


def test_node_removed_before_this_term() -> None:
    leader = Leader(removed_ms=-T / 2)
    leader.lists(n1=(entry(LOST),), n2=(entry(LOST),), n3=())
    leader.run(T / 2 - 250)
    assert not leader.is_gone()
    leader.run(250 + LOOK_AGAIN_MS)
    assert leader.is_gone()


@pytest.mark.parametrize(("last", "is_gone"), [((), True), ((entry(LOST),), True), ((entry(HELD),), False)])
def test_a_list_in_parts_is_complete_with_its_last_part(last: tuple[ReportEntry, ...], is_gone: bool) -> None:
    """The entry for the broker is in the last of three parts. A change comes between the parts."""
    leader = Leader()
    leader.lists(n1=(entry(LOST),), n2=(entry(LOST),))
    for full, part in ((True, MORE), (False, MORE), (False, ALONE), (False, LAST)):
        assert not leader.departures.can_judge(leader.now_ms)
        assert leader.departures.unheard(leader.now_ms) == ["n3"]
        assert leader.report("n3", *(last if part == LAST else ()), full=full, part=part)
        leader.run(GRACE, unheard=("n3",) if part == MORE else ())
        assert leader.is_gone() == (is_gone and part == LAST)
    assert leader.departures.can_judge(leader.now_ms)


def test_a_part_is_missing() -> None:
    leader = Leader()
    leader.lists(n1=(entry(LOST),), n2=(entry(LOST),))
    assert leader.report("n3", full=True, part=MORE)
    leader.sequences["n3"] += 1
    assert not leader.report("n3", entry(LOST), part=LAST)
    leader.sequences["n3"] = 1
    assert not leader.report("n3", entry(LOST), part=LAST), "the missing part comes late"
    assert not leader.report("n3")
    leader.run(GRACE)
    assert not leader.is_gone()
    assert leader.departures.unheard(leader.now_ms) == ["n3"]


@pytest.mark.parametrize("part", [ALONE, LAST])
def test_a_process_begins_with_its_whole_list(part: int) -> None:
    """The process of a node ends while a part of its list is missing. The next process does not continue the list."""
    leader = Leader()
    assert leader.report("n3", full=True, part=MORE)
    leader.sessions["n3"], leader.sequences["n3"] = 2, 0
    assert not leader.report("n3", part=part)
    assert "n3" in leader.departures.unheard(leader.now_ms)


def test_a_report_of_a_node_that_is_no_member_has_no_effect() -> None:
    leader = Leader()
    leader.sequences["n4"], leader.sessions["n4"] = 0, 1
    assert leader.report("n4", entry(HELD)), "its whole list is not needed"
    assert leader.departures.unheard(leader.now_ms) == list(MEMBERS)


def test_a_part_without_a_beginning_says_nothing() -> None:
    leader = Leader()
    leader.lists(n1=(), n2=(), n3=(entry(HELD),))
    assert not leader.report("n3", part=LAST)
    assert leader.departures.unheard(leader.now_ms) == ["n3"]


def test_until_its_last_part_a_list_does_not_replace_the_earlier_one() -> None:
    leader = Leader()
    leader.lists(n1=(), n2=(), n3=(entry(HELD, opened_ms=0),))
    leader.now_ms += 10
    leader.report("n3", full=True, part=MORE)
    assert leader.is_late(-1)
    leader.report("n3", part=LAST)
    assert not leader.is_late(-1)


def test_a_registration_that_ends_between_the_parts_is_forgotten() -> None:
    leader = Leader()
    leader.lists(n1=(), n2=())
    leader.report("n3", entry(HELD, opened_ms=0), full=True, part=MORE)
    leader.departures.forget(KEY, EPOCH)
    leader.report("n3", part=LAST)
    assert not leader.is_late(-1)


def test_a_registration_that_ended_is_forgotten() -> None:
    leader = Leader()
    leader.departures.registered(KEY, EPOCH + 1, 0, 0)
    leader.lists(n1=(), n2=(), n3=(entry(HELD, opened_ms=0),))
    assert leader.is_late(-1)
    leader.departures.registered(KEY, EPOCH + 1, leader.now_ms, 0)
    assert leader.departures.awaits_report(KEY, leader.now_ms)
    leader.departures.forget(KEY, EPOCH)
    assert not leader.departures.awaits_report(KEY, leader.now_ms)
    assert not leader.is_late(-1)
    assert leader.departures._registered_ms == {}


def test_104_waits_for_lists() -> None:
    leader = Leader()
    assert not leader.departures.can_judge(0)
    leader.lists(n1=(), n2=())
    assert not leader.departures.can_judge(leader.now_ms)
    leader.lists(n3=())
    assert leader.departures.can_judge(leader.now_ms)


@pytest.mark.parametrize("state", [HELD, RELEASED, LOST, None])
def test_104_waits_for_an_unreported_registration(state: int | None) -> None:
    """A report that the broker closed its connection (LOST) is about the earlier process, so it does not end the wait."""
    leader = Leader()
    leader.lists(n1=(), n2=(), n3=())
    assert not leader.departures.awaits_report(KEY, leader.now_ms)
    leader.departures.registered(KEY, EPOCH, leader.now_ms, leader.now_ms)
    assert leader.departures.awaits_report(KEY, leader.now_ms)
    if state is not None:
        leader.report("n2", entry(state))
    leader.run(UNREPORTED_MS)
    assert leader.departures.awaits_report(KEY, leader.now_ms) == (state in (LOST, None))
    leader.run(250)
    assert not leader.departures.awaits_report(KEY, leader.now_ms), "the node that received it may have failed"


def test_104_without_a_node() -> None:
    leader = Leader()
    leader.lists(n1=(), n2=(entry(HELD, opened_ms=0),))
    leader.run(NODE_SILENCE_MS, unheard=("n3",))
    assert not leader.departures.can_judge(leader.now_ms)
    leader.run(250, unheard=("n3",))
    assert leader.departures.can_judge(leader.now_ms)
    assert leader.is_late(-1)


def test_the_leaders_own_list_is_waited_for() -> None:
    leader = Leader()
    leader.lists(n2=(), n3=())
    leader.run(5_000, unheard=("n1",))
    assert not leader.departures.can_judge(leader.now_ms)


def test_late_104() -> None:
    leader = Leader()
    leader.run(5_000)
    leader.lists(n1=(), n2=(entry(HELD, opened_ms=1_000),), n3=(entry(HELD, opened_ms=3_000),))
    assert leader.is_late(3_999)
    leader.run(T)
    assert leader.is_late(3_999), "the connection is still open"


def test_104_after_a_release() -> None:
    """A node closed the connection of the present process. The process may return until its time-out has passed."""
    leader = Leader()
    leader.run(5_000)
    leader.lists(n1=(), n2=(entry(RELEASED, opened_ms=1_000),), n3=(entry(RELEASED, opened_ms=3_000),))
    assert leader.is_late(3_999)
    assert not leader.is_late(4_001), "the request came over the newest connection"
    leader.run(T)
    assert not leader.is_late(3_999)


def test_104() -> None:
    leader = Leader()
    leader.run(5_000)
    leader.lists(n1=(entry(LOST, opened_ms=0),), n2=(entry(HELD, opened_ms=1_000),), n3=(entry(HELD, EPOCH - 1, opened_ms=0),))
    assert not leader.is_late(4_000)
    leader.lists(n2=(entry(HELD),))
    assert not leader.is_late(0), "a connection whose age its node does not report is not newer"


def test_a_node_that_became_unheard_keeps_its_word_on_104() -> None:
    leader = Leader()
    leader.lists(n1=(), n2=(entry(HELD, opened_ms=0),), n3=())
    leader.run(5_000, unheard=("n2",))
    assert leader.departures.can_judge(leader.now_ms)
    assert leader.is_late(-1)


def test_a_turn_looks_at_no_more_brokers_than_allowed() -> None:
    leader = Leader()
    keys = [("c", f"b:{n}") for n in range(3 * LOOKS_PER_TURN // 2)]
    lists = {node: tuple(entry(LOST)._replace(key=key) for key in keys) for node in ("n1", "n2", "n3")}
    leader.lists(**lists)
    leader.run(GRACE)
    leases = {key: Lease(key, EPOCH, 60_000, 0) for key in keys}
    assert len(list(leader.departures.gone(leases.get, leader.now_ms))) == LOOKS_PER_TURN
    for key in keys[:LOOKS_PER_TURN]:
        leader.departures.forget(key, EPOCH)
    assert len(list(leader.departures.gone(leases.get, leader.now_ms))) == LOOKS_PER_TURN // 2

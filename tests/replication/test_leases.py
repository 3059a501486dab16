"""The leader's conclusions, on a virtual clock: one test a rule."""

from typing import NamedTuple

import pytest

from replicated_namesrv.replication.liveness.leader_messages import AGE_MAX, HELD, KNOWN, LOST, RELEASED, NodeReport, ReportEntry
from replicated_namesrv.replication.liveness.leases import Attachments, DueRemoval, Lease, LeaseTable
from replicated_namesrv.replication.running_clock import RunningClock

KEY = ("c", "a:1")
LEASE = Lease(KEY, 7, 10_000)
MEMBERS = ("n1", "n2", "n3")


def entry(state: int, age_ms: int = 0, lost_ms: int = 0, epoch: int = 7) -> ReportEntry:
    return ReportEntry(KEY, state, False, epoch, 0, age_ms, lost_ms, AGE_MAX)


class Leader:
    """n1 leads term 5; every node reports in order, began long ago and was told all ages in term 4 a moment ago."""

    def __init__(self, now_ms: float = 0.0) -> None:
        self.now_ms = now_ms
        self.table = LeaseTable(MEMBERS, "n1", 500, now_ms)
        self.table.succeed(4, 100, now_ms)
        self.sequences = dict.fromkeys(MEMBERS, 0)
        self.sessions = dict.fromkeys(MEMBERS, 1)
        self.told = dict.fromkeys(MEMBERS, (4, 100))
        self.running_ms = dict.fromkeys(MEMBERS, 3_600_000)
        self.confirmed_ms = dict.fromkeys(MEMBERS, 100)

    def report(self, node: str, *entries: ReportEntry, full: bool = False) -> bool:
        self.sequences[node] += 1
        memory = (*self.told[node], self.running_ms[node], self.confirmed_ms[node])
        report = NodeReport(self.sessions[node], self.sequences[node], 5, full, entries, *memory)
        return self.table.report(node, report, self.now_ms)

    def lists(self, **states: tuple[ReportEntry, ...]) -> None:
        for node, entries in states.items():
            assert self.report(node, *entries, full=True)

    def run(self, ms: float, silent: tuple[str, ...] = ()) -> None:
        """Let time pass while all but ``silent`` report that nothing changed."""
        end = self.now_ms + ms
        while self.now_ms < end:
            self.now_ms = min(end, self.now_ms + 250)
            for node in MEMBERS:
                if node not in silent:
                    self.report(node)

    def due(self) -> list[DueRemoval]:
        return self.table.due([LEASE], self.now_ms)


def test_nothing_is_decided_before_a_majority_has_sent_its_lists() -> None:
    leader = Leader()
    leader.lists(n1=(entry(LOST, 60_000, 60_000),))
    assert leader.due() == []
    leader.lists(n2=(entry(KNOWN, 60_000),), n3=())
    assert leader.due() == [DueRemoval(KEY, 7, False)]


def test_a_broker_lost_by_every_node_that_had_it_goes_after_the_grace() -> None:
    leader = Leader()
    leader.lists(n1=(entry(HELD),), n2=(entry(HELD),), n3=())
    leader.report("n1", entry(LOST))
    leader.run(1_000)
    assert leader.due() == [], "n2 holds it"
    leader.report("n2", entry(LOST))
    leader.run(250)
    assert leader.due() == []
    leader.run(250)
    assert leader.due() == [DueRemoval(KEY, 7, True)]


def test_a_close_of_our_own_doing_is_no_loss() -> None:
    leader = Leader()
    leader.lists(n1=(entry(HELD),), n2=(entry(HELD),), n3=())
    leader.report("n1", entry(LOST))
    leader.report("n2", entry(RELEASED))
    leader.run(9_500)
    assert leader.due() == []
    leader.run(1_000)
    assert leader.due() == [DueRemoval(KEY, 7, False)]


def test_a_node_that_cannot_be_heard_holds_for_one_time_out() -> None:
    leader = Leader()
    leader.lists(n1=(entry(HELD),), n2=(entry(HELD),), n3=())
    leader.run(5_000)
    leader.report("n1", entry(LOST, 5_000))
    leader.run(9_500, silent=("n2",))
    assert leader.due() == [], "n2 was heard 9.5 s ago"
    leader.run(750, silent=("n2",))
    assert leader.due() == [DueRemoval(KEY, 7, False)]


def test_nodes_that_fall_silent_one_after_the_other_do_not_keep_a_dead_broker() -> None:
    leader = Leader()
    leader.lists(n1=(), n2=(entry(HELD),), n3=(entry(HELD),))
    leader.run(5_000)
    leader.run(4_000, silent=("n2",))
    leader.run(5_750, silent=("n3",))
    assert leader.due() == [], "n3 was heard 5.75 s ago, the broker 14.75 s ago"
    leader.run(500, silent=("n3",))
    assert leader.due() == [DueRemoval(KEY, 7, False)]


def test_a_node_that_never_held_it_does_not_delay_the_drop_when_it_is_silent() -> None:
    leader = Leader()
    leader.lists(n1=(entry(HELD),), n2=(), n3=())
    leader.report("n1", entry(LOST))
    leader.run(2_000, silent=("n3",))
    assert leader.due() == [DueRemoval(KEY, 7, True)]


def test_the_crash_of_a_node_is_no_loss() -> None:
    leader = Leader()
    leader.lists(n1=(entry(HELD),), n2=(entry(HELD),), n3=())
    leader.report("n1", entry(LOST))
    leader.sequences["n2"], leader.sessions["n2"] = 0, 2
    assert leader.report("n2", full=True)
    leader.run(5_000)
    assert leader.due() == []
    leader.run(5_500)
    assert leader.due() == [DueRemoval(KEY, 7, False)]


def test_a_new_leader_starts_from_the_newest_age_and_grants_a_time_out_to_what_none_knows() -> None:
    leader = Leader()
    leader.lists(n1=(entry(KNOWN, 9_000),), n2=(entry(KNOWN, 4_000),), n3=())
    leader.run(5_750)
    assert leader.due() == []
    leader.run(500)
    assert leader.due() == [DueRemoval(KEY, 7, False)]
    unknown = Leader()
    unknown.lists(n1=(), n2=(), n3=())
    unknown.run(9_750)
    assert unknown.due() == []
    unknown.run(500)
    assert unknown.due() == [DueRemoval(KEY, 7, False)]


def test_changes_of_leader_do_not_keep_a_dead_broker() -> None:
    nodes = {member: Attachments() for member in MEMBERS}
    now, gone_at = 0.0, None
    while gone_at is None and now < 30_000:
        leader = Leader(now)
        leader.lists(**{member: tuple(nodes[member].everything(now)) for member in MEMBERS})
        leader.run(3_000)
        now = leader.now_ms
        for key, age_ms in leader.table.ages([LEASE], now):
            for attachments in nodes.values():
                attachments.learn(key, now - age_ms)
        gone_at = now if leader.due() else None
    assert gone_at is not None
    assert gone_at <= 2 * LEASE.timeout_ms


class Ages(NamedTuple):
    """What n2 was told and since when the processes of n1 and n2 run; whether that tells when other nodes heard a broker."""

    told_term: int
    told_ms: int
    running_ms: tuple[int, int]
    suffice: bool


AGES = {
    "told by the last leader": Ages(4, 1_900, (3_600_000, 3_600_000), True),
    "told since it began": Ages(4, 1_900, (3_600_000, 2_000), True),
    "one began since": Ages(4, 1_900, (1_500, 3_600_000), False),
    "both began since": Ages(4, 1_900, (1_500, 1_500), False),
    "told by the leader before the last": Ages(3, 100, (3_600_000, 3_600_000), False),
    "never told": Ages(0, AGE_MAX, (3_600_000, 3_600_000), False),
}


@pytest.mark.parametrize("ages", AGES.values(), ids=AGES)
def test_ages_told_before_a_process_of_the_majority_began_are_worth_nothing(ages: Ages) -> None:
    """n3 led and is silent now; the broker, which n2 lost long ago, may have been heard by n3 and by n1 before it began anew."""
    leader = Leader()
    leader.told["n1"], leader.told["n2"] = (0, AGE_MAX), (ages.told_term, ages.told_ms)
    leader.running_ms["n1"], leader.running_ms["n2"] = ages.running_ms
    silent_since = ReportEntry(("", "n3"), KNOWN, False, 0, 0, 60_000, 0, AGE_MAX)
    leader.lists(n1=(), n2=(entry(RELEASED, 60_000, 60_000), silent_since))
    leader.run(250, silent=("n3",))
    assert leader.due() == ([DueRemoval(KEY, 7, False)] if ages.suffice else [])
    leader.run(9_500, silent=("n3",))
    assert leader.due() == ([DueRemoval(KEY, 7, False)] if ages.suffice else [])
    leader.run(500, silent=("n3",))
    assert leader.due() == [DueRemoval(KEY, 7, False)]


def test_what_only_processes_that_ended_held_is_not_lost() -> None:
    leader = Leader()
    leader.running_ms["n2"] = leader.running_ms["n3"] = 50
    leader.lists(n1=(entry(LOST, 60_000, 60_000),), n2=())
    leader.lists(n3=())
    leader.run(9_750)
    assert leader.due() == []
    leader.report("n2", entry(HELD))
    leader.report("n3", entry(HELD))
    leader.run(250)
    leader.report("n2", entry(LOST))
    leader.report("n3", entry(LOST))
    leader.run(750)
    assert leader.due() == [DueRemoval(KEY, 7, True)], "every node has had it since"


def test_what_a_process_held_that_ended_since_the_last_leader_told_the_ages_is_not_lost() -> None:
    leader = Leader()
    leader.told["n3"], leader.running_ms["n3"] = (0, AGE_MAX), 50
    leader.lists(n1=(entry(LOST, 600, 600),), n2=(entry(LOST, 700, 700),), n3=())
    leader.run(9_250)
    assert leader.due() == [], "n3 may have held it until a moment ago"
    leader.run(500)
    assert leader.due() == [DueRemoval(KEY, 7, False)], "but nobody has heard it since"


def test_registrations_of_this_term_are_known_from_their_beginning() -> None:
    leader = Leader()
    leader.told = dict.fromkeys(MEMBERS, (0, AGE_MAX))
    leader.table.succeed(4, 6, leader.now_ms)
    leader.lists(n1=(), n2=(), n3=())
    leader.report("n1", entry(HELD))
    leader.report("n1", entry(LOST))
    leader.run(750)
    assert leader.due() == [DueRemoval(KEY, 7, True)]


def test_a_gap_in_the_reports_asks_for_the_whole_list() -> None:
    leader = Leader()
    leader.lists(n1=(), n2=(), n3=())
    leader.sequences["n2"] += 1
    assert not leader.report("n2", entry(HELD))
    assert not leader.report("n2")
    assert leader.report("n2", entry(HELD), full=True)


def test_an_older_life_says_nothing_about_the_present_one() -> None:
    leader = Leader()
    leader.lists(n1=(entry(LOST, 0, 0, epoch=6),), n2=(entry(HELD),), n3=())
    leader.run(2_000)
    assert leader.due() == []


def test_time_in_which_a_process_did_not_run_does_not_count() -> None:
    clock = RunningClock(0)
    assert clock.read(400) == 400
    assert clock.read(60_400) == 1_400


def test_a_connection_carries_brokers_until_it_is_lost() -> None:
    own = Attachments()
    own.attach(KEY, 7, 1, 0)
    own.attach(KEY, 7, 2, 100)
    assert own.lose(1, True, 200) == [KEY]
    found = own.entry(KEY, 200)
    assert found is not None
    assert found.state == HELD
    own.lose(2, True, 300)
    found = own.entry(KEY, 350)
    assert found is not None
    assert (found.state, found.age_ms, found.lost_ms) == (LOST, 250, 50)


@pytest.mark.parametrize("made_before", [(), (entry(LOST, 60_000, 60_000, epoch=6),), (entry(KNOWN, 60_000, epoch=0),)])
def test_a_list_that_was_made_before_a_registration_takes_nothing_from_it(made_before: tuple[ReportEntry, ...]) -> None:
    """Also of the leader itself: a busy one makes its list, applies the registration, and then reads the list."""
    leader = Leader()
    leader.lists(n1=(), n2=(), n3=())
    leader.run(60_000)
    leader.table.heard(KEY, 7, leader.now_ms)
    leader.lists(n1=made_before, n2=made_before)
    leader.run(9_900)
    assert leader.due() == []
    leader.run(200)
    assert leader.due() == [DueRemoval(KEY, 7, False)]


@pytest.mark.parametrize("outage_ms", [20_000, 60_000])
def test_time_in_which_nobody_led_is_no_silence(outage_ms: int) -> None:
    """Two of three nodes were away and have come back: one knows when the last leader served it, the other is a new process."""
    leader = Leader()
    leader.confirmed_ms = {"n1": outage_ms, "n2": outage_ms + 700, "n3": AGE_MAX}
    ages = entry(RELEASED, outage_ms + 4_000)
    leader.lists(n1=(ages,), n2=(ages,), n3=())
    leader.run(5_900)
    assert leader.due() == [], "10 s less the 4 s before the outage"
    leader.run(200)
    assert leader.due() == [DueRemoval(KEY, 7, False)]


def test_an_election_is_no_outage() -> None:
    leader = Leader()
    leader.confirmed_ms = dict.fromkeys(MEMBERS, 1_400)
    leader.lists(n1=(entry(KNOWN, 9_800),), n2=(entry(KNOWN, 9_800),), n3=())
    leader.run(250)
    assert leader.due() == [DueRemoval(KEY, 7, False)]


def test_a_connection_lost_while_nobody_led_says_nothing() -> None:
    """Its broker gave up a node that did not answer, and found no other."""
    leader = Leader()
    leader.confirmed_ms = dict.fromkeys(MEMBERS, 20_000)
    leader.lists(n1=(entry(LOST, 21_000, 15_000),), n2=(entry(LOST, 21_000, 14_000),), n3=())
    leader.run(8_900)
    assert leader.due() == []
    leader.run(200)
    assert leader.due() == [DueRemoval(KEY, 7, False)]


@pytest.mark.parametrize(("after_ms", "counts"), [(250, False), (2_750, False), (3_250, True)])
def test_who_asked_while_nobody_led_may_give_up_a_moment_later(after_ms: int, counts: bool) -> None:
    """It waited three seconds at every node, and says so again in its next round; who gives up later has not asked then."""
    leader = Leader()
    leader.confirmed_ms = dict.fromkeys(MEMBERS, 2_600)
    leader.lists(n1=(entry(HELD, 2_000),), n2=(entry(HELD, 2_000),), n3=())
    leader.run(after_ms)
    leader.report("n1", entry(LOST))
    leader.report("n2", entry(LOST))
    leader.run(600)
    assert leader.due() == ([DueRemoval(KEY, 7, True)] if counts else [])
    leader.run(10_000)
    assert leader.due() != [], "it did not come back"


def test_a_connection_lost_before_nobody_led_counts() -> None:
    leader = Leader()
    leader.confirmed_ms = dict.fromkeys(MEMBERS, 20_000)
    leader.lists(n1=(entry(LOST, 21_000, 20_800),), n2=(), n3=())
    leader.run(250)
    assert leader.due() == [DueRemoval(KEY, 7, True)]


@pytest.mark.parametrize("known", [(), (entry(KNOWN, 60_000, epoch=0),), (entry(HELD, 60_000, epoch=6),)])
def test_a_registration_of_its_time_is_not_silent_before_the_leader_has_taken_note(known: tuple[ReportEntry, ...]) -> None:
    """A report that has it judge all brokers may come between the two."""
    leader = Leader()
    leader.table.succeed(4, 6, leader.now_ms)
    leader.lists(n1=(), n2=known, n3=())
    leader.run(60_000)
    assert leader.due() == []
    leader.run(9_900)
    assert leader.due() == []
    leader.run(200)
    assert leader.due() == [DueRemoval(KEY, 7, False)]

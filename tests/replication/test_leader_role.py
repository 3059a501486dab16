"""The leader's decisions on renewals, silence, removals and copies, event by event. Tests decide what is committed and when."""

import dataclasses
import math
from collections.abc import Iterator

import pytest

from replicated_namesrv.raft.interfaces import Rejected
from replicated_namesrv.replication.command_kinds import EXPIRE
from replicated_namesrv.replication.liveness import removals as removals_module
from replicated_namesrv.replication.liveness import silence as silence_module
from replicated_namesrv.replication.liveness.attachments import Attachments
from replicated_namesrv.replication.liveness.departures import UNREPORTED_MS
from replicated_namesrv.replication.liveness.leader_client import LeaderClient
from replicated_namesrv.replication.liveness.leader_messages import (
    AGE_MAX,
    DIFFERS,
    LAST,
    LATE,
    LOOK_AGAIN,
    LOST,
    MORE,
    REGISTER,
    RELEASED,
    REMOVE,
    REMOVED,
    REMOVING,
    Decision,
    Inquiry,
    Message,
    NodeReport,
    ReportAnswer,
    ReportEntry,
    decode,
    encode,
    encode_removal,
)
from replicated_namesrv.replication.liveness.removals import EXPIRED_BROKERS_MAX
from replicated_namesrv.replication.liveness.renewals import AGE_MAX_MS, MARGIN_MS, WAIT_MS, Reported
from replicated_namesrv.replication.liveness.silence import SHARES
from replicated_namesrv.replication.marks import MarksOfBackup, Suspicion
from replicated_namesrv.replication.route_machine import (
    Suspect,
    content_of,
    encode_register,
    encode_suspect,
)
from replicated_namesrv.routes.commands import BrokerRemoval
from replicated_namesrv.routes.snapshot import SnapshotReader
from tests.replication.leader_scene import MEMBERS, TERM, TIME_MS, Scene, add_brokers, leader_scene
from tests.replication.virtual import KEY, TIMEOUT_MS, registration


@pytest.fixture
def scene() -> Iterator[Scene]:
    with leader_scene() as prepared:
        yield prepared


def test_no_renewal_is_judged_before_this_leaders_first_command_is_applied(scene: Scene) -> None:
    scene.report("n2", scene.entry(True), full=True)
    scene.leading.tick()
    assert (scene.group.reads, scene.refusals()) == ([], [])
    scene.commit()
    scene.leading.lead_applied()
    assert scene.refusals() == [], "and not before a read index that was asked for later"
    scene.confirm()
    assert scene.refusals() == [()]


def test_a_read_index_that_fails_accepts_nothing(scene: Scene) -> None:
    scene.led()
    scene.report("n2", scene.entry(True))
    scene.confirm(Rejected("no majority"))
    assert scene.refusals() == []


def test_a_renewal_that_came_after_the_read_index_was_asked_for_waits_for_the_next(scene: Scene) -> None:
    scene.led()
    scene.report("n2", scene.entry(True))
    scene.report("n3", scene.entry(True))
    scene.confirm()
    assert len(scene.refusals()) == 1
    scene.confirm()
    assert len(scene.refusals()) == 1


def test_heartbeats_confirm_renewals_without_a_read_index(scene: Scene) -> None:
    scene.led()
    scene.is_patient = True
    scene.group.confirmed_ms = scene.now_ms
    for member in MEMBERS:
        scene.report(member, scene.entry(True))
    arrived_ms = scene.now_ms
    scene.group.confirmed_ms = arrived_ms + 2 * MARGIN_MS
    scene.run_timers()
    assert scene.refusals() == [()] * len(MEMBERS)
    assert (scene.group.reads, scene.timers) == ([], [])


def test_a_heartbeat_sent_before_a_renewal_arrived_does_not_confirm_it(scene: Scene) -> None:
    scene.led()
    scene.is_patient = True
    scene.group.confirmed_ms = scene.now_ms
    scene.report("n2", scene.entry(True))
    scene.group.confirmed_ms = scene.now_ms + MARGIN_MS
    scene.run_timers()
    assert (scene.refusals(), len(scene.group.reads)) == ([], 1)
    scene.confirm()
    assert scene.refusals() == [()]


def test_renewals_that_no_heartbeat_has_confirmed_in_time_share_a_read_index(scene: Scene) -> None:
    scene.led()
    scene.is_patient = True
    scene.group.confirmed_ms = began_ms = scene.now_ms
    scene.report("n1", scene.entry(True))
    scene.group.confirmed_ms = scene.now_ms + WAIT_MS / 2
    scene.now_ms += WAIT_MS - 1
    scene.report("n2", scene.entry(True))
    scene.report("n3", scene.entry(True))
    scene.now_ms = began_ms
    scene.run_timers()
    assert (scene.refusals(), len(scene.group.reads)) == ([()], 1), "the first one is confirmed"
    assert scene.now_ms - began_ms == WAIT_MS
    scene.confirm()
    assert (scene.refusals(), scene.timers) == ([()] * 2, [])


@pytest.mark.parametrize("confirms", [True, False])
def test_a_renewal_that_came_during_a_read_index_waits_no_longer_than_others(scene: Scene, confirms: bool) -> None:
    """A heartbeat confirms it before that read index comes, or the next one is requested as soon as this one has come."""
    scene.led()
    scene.is_patient = True
    scene.group.confirmed_ms = scene.now_ms - AGE_MAX_MS
    scene.report("n3", scene.entry(True))
    assert len(scene.group.reads) == 1
    scene.group.confirmed_ms = arrived_ms = scene.now_ms
    scene.report("n2", scene.entry(True))
    if confirms:
        scene.group.confirmed_ms += WAIT_MS / 2
    scene.run_timers()
    assert (scene.now_ms - arrived_ms, len(scene.group.reads)) == (WAIT_MS, 1)
    assert scene.refusals() == [()] * confirms
    scene.confirm()
    assert len(scene.group.reads) == (not confirms)


@pytest.mark.parametrize("confirmed_ago_ms", [math.inf, AGE_MAX_MS])
def test_renewals_get_a_read_index_at_once_if_heartbeats_confirm_nothing(scene: Scene, confirmed_ago_ms: float) -> None:
    """The only voter has no heartbeats, and on slow links the answers take long."""
    scene.led()
    scene.is_patient = True
    scene.now_ms += 1_000
    scene.group.confirmed_ms = scene.now_ms - confirmed_ago_ms
    scene.report("n2", scene.entry(True))
    assert (len(scene.group.reads), scene.timers) == (1, [])
    scene.confirm()
    assert scene.refusals() == [()]


def test_copies_of_a_change_do_not_wait_for_heartbeats(scene: Scene) -> None:
    scene.led()
    scene.is_patient = True
    scene.group.confirmed_ms = scene.now_ms
    scene.report("n3", scene.entry(True))
    assert (len(scene.group.reads), len(scene.timers)) == (0, 1)
    scene.leading.registered(KEY, scene.epoch, "content")
    scene.report("n2", scene.entry(True))
    assert len(scene.group.reads) == 1
    scene.report("n1", scene.entry(True))
    scene.confirm()
    assert len(scene.group.reads) == 1, "one that came while the question was out"
    scene.confirm()
    assert scene.refusals() == [()] * 3
    scene.run_timers()
    assert scene.group.reads == []


def expire_all(scene: Scene) -> list[int]:
    """Let all brokers expire without another tick. Returns the number of brokers removed by each command."""
    counts = []
    while any(data[1:].startswith(b"[%d," % EXPIRE) for data, _ in scene.group.proposed):
        before = len(scene.machine.state.registrations())
        scene.commit()
        counts.append(before - len(scene.machine.state.registrations()))
    return counts


def test_a_thousand_silent_brokers_are_removed_by_a_few_commands_in_one_tick(scene: Scene) -> None:
    add_brokers(scene, 5 * EXPIRED_BROKERS_MAX - 1)
    scene.led()
    scene.now_ms += 1.1 * TIMEOUT_MS
    scene.leading.tick()
    assert len(scene.group.proposed) == 1, "one command at a time: it is applied in one go"
    assert expire_all(scene) == [EXPIRED_BROKERS_MAX] * 5
    assert scene.leading.removals.expired_count == 5 * EXPIRED_BROKERS_MAX


def test_a_thousand_gone_brokers_are_removed_by_a_few_commands_in_one_tick(scene: Scene) -> None:
    add_brokers(scene, 5 * EXPIRED_BROKERS_MAX - 1)
    scene.led()
    brokers = scene.machine.state.registrations()
    lost = [ReportEntry((r.cluster_name, r.broker_addr), LOST, False, r.epoch, 0, AGE_MAX) for r in brokers]
    scene.report("n2", *lost)
    scene.now_ms += 600
    for member in MEMBERS:
        scene.report(member)
    scene.leading.tick()
    assert expire_all(scene) == [EXPIRED_BROKERS_MAX] * 5
    assert scene.leading.removals.lost_count == 5 * EXPIRED_BROKERS_MAX


def test_brokers_that_made_contact_while_others_expired_stay(scene: Scene) -> None:
    add_brokers(scene, EXPIRED_BROKERS_MAX + 9)
    scene.led()
    scene.now_ms += 1.1 * TIMEOUT_MS
    scene.leading.tick()
    scene.report("n2", scene.entry(True))
    scene.confirm()
    assert expire_all(scene) == [EXPIRED_BROKERS_MAX, 9]
    assert [held.broker_addr for held in scene.machine.state.registrations()] == [KEY[1]]


def test_one_expiry_removes_brokers_with_no_more_topics_than_allowed(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    add_brokers(scene, 4)
    monkeypatch.setattr(removals_module, "EXPIRED_TOPICS_MAX", 3 * scene.machine.state.removal_topics("a") - 1)
    scene.led()
    scene.let_it_expire()
    assert expire_all(scene) == [2, 2, 1]


def test_one_broker_with_many_topics_is_unregistered_at_a_time(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removals_module, "LARGE_TOPICS", 1)
    slave = registration(1, address="a:2", broker_id=1)
    scene.machine.apply(encode_register(slave, 0, 0, 0, content_of(slave)))
    held = scene.machine.state.registration("c", "a:2")
    assert held is not None
    scene.led()
    scene.remove("n2")
    content = encode_removal(BrokerRemoval("c", "a:2", "a", 1, held.epoch))
    scene.leading.on_inquiry("n2", Inquiry(1, 2, TERM, REMOVE, 0, 0, ("c", "a:2"), content))
    assert len(scene.group.proposed) == 1
    scene.leading.tick()
    assert len(scene.group.proposed) == 1, "the first is not decided"
    scene.commit()
    scene.leading.tick()
    assert len(scene.group.proposed) == 1
    scene.commit()
    assert scene.decisions() == [("n2", REMOVED), ("n2", REMOVED)]
    assert scene.machine.state.registrations() == []


def test_removal_under_way(scene: Scene) -> None:
    scene.led()
    scene.let_it_expire()
    assert len(scene.group.proposed) == 1
    scene.report("n2", renewal := scene.entry(True))
    scene.confirm()
    assert scene.refusals() == [((0, REMOVING),)]
    scene.lose()
    assert scene.group.proposed == [], "not at once, lest a refusal make it spin"
    scene.leading.tick()
    assert len(scene.group.proposed) == 1, "what is unknown is proposed again until it is known"
    scene.report("n2", scene.entry(True))
    scene.confirm()
    assert scene.refusals() == [((0, REMOVING),)]
    scene.commit()
    scene.report("n2", renewal)
    scene.confirm()
    assert scene.refusals() == [((0, DIFFERS),)], "it has to register"


def test_a_registration_that_overtakes_the_expiry_is_renewed_again_afterwards(scene: Scene) -> None:
    scene.led()
    scene.let_it_expire()
    scene.register(2)
    scene.commit()
    scene.report("n2", scene.entry(True))
    scene.confirm()
    assert scene.refusals() == [()]


def test_a_hurried_report_hurries_no_later_one(scene: Scene) -> None:
    """A hurried report that waits for an earlier read index does not wait for the timer. Later reports share one timer."""
    scene.is_patient = True
    scene.group.confirmed_ms = scene.now_ms
    scene.led()
    reported = Reported("n2", NodeReport(1, 9, TERM, False, (scene.entry(True),), 0), True, scene.now_ms)
    renewals = scene.leading._renewals
    renewals.put(reported, is_hurried=True)
    for is_hurried in (True, False):
        renewals.put(reported, is_hurried)
    for _ in range(2):
        scene.confirm()
    for _ in range(3):
        renewals.put(reported, is_hurried=False)
    assert (scene.group.reads, len(scene.timers)) == ([], 1)
    while not scene.group.reads:
        scene.run_timers()
    assert (len(scene.group.reads), scene.timers) == (1, [])


def test_unknown_epoch(scene: Scene) -> None:
    scene.led()
    scene.report("n2", scene.entry(True)._replace(epoch=scene.epoch + 1))
    scene.confirm()
    assert scene.refusals() == [((0, DIFFERS),)]


def test_a_refusal_names_the_position_in_the_report(scene: Scene) -> None:
    scene.led()
    scene.report("n2", scene.entry(False), scene.entry(True)._replace(epoch=scene.epoch + 1))
    scene.confirm()
    assert scene.refusals() == [((1, DIFFERS),)]


def test_changed_group(scene: Scene) -> None:
    """The node compared the renewal with a state of the group that differs from the leader's."""
    scene.led()
    generation = scene.machine.state.group_generation("a")
    scene.report("n2", scene.entry(True)._replace(generation=generation))
    scene.confirm()
    assert scene.refusals() == [()]
    scene.register(2)
    scene.report("n2", scene.entry(True)._replace(generation=generation))
    scene.confirm()
    assert scene.refusals() == [((0, DIFFERS),)]


def test_an_unregistration_is_the_leaders_own_proposal_and_keeps_renewals_out(scene: Scene) -> None:
    scene.remove("n2")
    assert len(scene.group.proposed) == 1, "it waits for LEAD and for the lists"
    scene.led()
    scene.leading.tick()
    scene.remove("n2")
    assert len(scene.group.proposed) == 1, "asked twice, proposed once"
    scene.report("n3", scene.entry(True))
    scene.confirm()
    assert scene.refusals() == [((0, REMOVING),)]
    scene.commit()
    assert scene.decisions() == [("n2", REMOVED)]
    assert scene.machine.state.registration(*KEY) is None


@pytest.mark.parametrize(
    ("opened_ms", "since_ms", "verdict"), [(500, 2_000, LATE), (2_000, 500, REMOVED), (500, AGE_MAX, REMOVED)]
)
def test_an_unregistration_is_late_if_a_node_has_a_newer_connection(
    scene: Scene, opened_ms: int, since_ms: int, verdict: int
) -> None:
    scene.led()
    scene.report("n3", scene.entry(False, opened_ms))
    scene.remove("n2", since_ms)
    if verdict == REMOVED:
        scene.commit()
    assert ("n2", verdict) in scene.decisions()
    assert (scene.machine.state.registration(*KEY) is None) == (verdict == REMOVED)


@pytest.mark.parametrize("is_reported", [True, False])
def test_a_104_is_not_decided_between_a_registration_and_its_report(scene: Scene, is_reported: bool) -> None:
    """The broker was restarted, and registered at n2. The 104 of its earlier process had to wait for the list of n3."""
    scene.commit()
    scene.leading.lead_applied()
    for member in ("n1", "n2"):
        scene.report(member, full=True)
    scene.remove("n2", 4_000)
    scene.sent.clear()
    scene.leading.registered(KEY, scene.epoch, "content")
    scene.report("n3", full=True)
    scene.leading.tick()
    assert scene.group.proposed == []
    if is_reported:
        scene.report("n2", scene.entry(False, 100))
        assert scene.decisions() == [("n2", LATE)]
    else:
        scene.now_ms += UNREPORTED_MS + 1
        scene.leading.tick()
    assert len(scene.group.proposed) == (not is_reported)


@pytest.mark.parametrize(("opened_ms", "verdict"), [(500, LATE), (5_000, REMOVED)])
def test_an_unregistration_waits_for_the_last_part_of_a_list(scene: Scene, opened_ms: int, verdict: int) -> None:
    scene.commit()
    scene.leading.lead_applied()
    for node in ("n1", "n2"):
        scene.report(node, full=True)
    scene.report("n3", full=True, part=MORE)
    scene.remove("n2", 2_000)
    scene.report("n3", part=MORE)
    for node in MEMBERS:
        scene.report(node)
    scene.leading.tick()
    assert (scene.group.proposed, scene.decisions()) == ([], [])
    scene.report("n3", scene.entry(False, opened_ms), part=LAST)
    scene.leading.tick()
    if verdict == REMOVED:
        scene.commit()
    assert scene.decisions() == [("n2", verdict)]


def test_the_entries_of_no_part_are_contacts(scene: Scene) -> None:
    scene.led()
    assert scene.leading.silence is not None
    scene.now_ms += 100
    for full, part in ((True, MORE), (False, MORE), (False, LAST)):
        scene.report("n3", scene.entry(False), full=full, part=part)
        assert scene.leading.silence.age_ms(KEY, scene.now_ms) == 100
    scene.report("n3", scene.entry(False))
    assert scene.leading.silence.age_ms(KEY, scene.now_ms) == 0


def test_a_list_drops_earlier_renewals_with_its_first_part_only(scene: Scene) -> None:
    """The node repeats them after the first part, so each is answered once."""
    scene.report("n3", scene.entry(True))
    scene.report("n3", full=True, part=MORE)
    scene.report("n3", scene.entry(True), scene.entry(True))
    scene.report("n3", scene.entry(True), part=LAST)
    scene.commit()
    scene.leading.lead_applied()
    scene.confirm()
    assert [message.sequence for _, message in scene.sent if isinstance(message, ReportAnswer)] == [2, 3, 4]


@pytest.mark.parametrize(("asked_ms", "verdict"), [(0, REMOVED), (TIME_MS, REMOVED), (TIME_MS - 2_000, LATE)])
def test_an_unregistration_is_as_old_as_its_way_makes_it(scene: Scene, asked_ms: int, verdict: int) -> None:
    """The connection is a second old. The inquiry contains the leader's clock at the moment of sending; a node of 0.1 sends 0."""
    scene.led()
    scene.report("n3", scene.entry(False, 1_000))
    content = encode_removal(BrokerRemoval(*KEY, "a", 0, scene.epoch))
    scene.leading.on_inquiry("n2", Inquiry(1, 1, TERM, REMOVE, asked_ms, 0, KEY, content))
    if verdict == REMOVED:
        scene.commit()
    assert ("n2", verdict) in scene.decisions()


def test_the_age_of_an_old_connection_is_not_sent_as_unknown(scene: Scene) -> None:
    """A 104 over a connection that is 50 days old, more than AGE_MAX. It waits for the clock of the leader."""
    sent: list[Message] = []
    day_50_ms = 50 * 86_400_000.0
    context = dataclasses.replace(scene.context, monotonic_ms=lambda: day_50_ms + scene.now_ms)
    client = LeaderClient(context, Attachments(), lambda peer, message: sent.append(message))
    with scene._loop.running():
        client.remove(BrokerRemoval(*KEY, "a", 0, scene.epoch), 0.0)
        assert sent == []
        client.on_answer(ReportAnswer(client._session, 1, TERM, False, TIME_MS, ()))
        scene.now_ms += 100
        client.tick()
    (inquiry,) = (decode(encode(message)) for message in sent if isinstance(message, Inquiry))
    assert isinstance(inquiry, Inquiry)
    assert (inquiry.since_ms, inquiry.serial) == (AGE_MAX - 1, TIME_MS + 100)


def test_a_renewal_that_waited_is_sent_with_the_present_connections(scene: Scene) -> None:
    """There is no leader for 5 s. Meanwhile the connection ends, and later the registration."""
    sent: list[Message] = []
    attachments = Attachments()
    attachments.attach(KEY, scene.epoch, 1, 0, 0, registers=True)
    client = LeaderClient(scene.context, attachments, lambda peer, message: sent.append(message))
    scene.group.leader = None
    first = client.renew(KEY, scene.epoch, 3)
    scene._loop.run()
    scene.now_ms += 5_000
    attachments.lose(1, in_peace=False)
    scene.group.leader = "n1"
    client.tick()
    scene._loop.run()
    assert isinstance(sent[-1], NodeReport)
    assert sent[-1].entries[-1] == ReportEntry(KEY, RELEASED, True, scene.epoch, 3, 5_000)
    attachments.remove(KEY, scene.epoch)
    scene.now_ms += 1_000
    client.tick()
    scene._loop.run()
    assert first.result() == DIFFERS


# Silence

THIRD_MS = TIMEOUT_MS / SHARES


@pytest.fixture
def recording(scene: Scene) -> Scene:
    """LEAD is applied, and silence is recorded: the first command, which records nothing, is applied."""
    scene.group.command_version = 2
    scene.led()
    scene.leading.tick()
    scene.commit()
    return scene


def test_silence_is_recorded_in_thirds_and_costs_three_commands(recording: Scene) -> None:
    scene, recorded = recording, []
    for _ in range(SHARES):
        scene.silent(THIRD_MS + 100)
        assert len(scene.group.proposed) == 1
        scene.commit()
        recorded.append(scene.suspicion)
    assert recorded == [1, 2, 0]
    assert scene.machine.state.registration(*KEY) is None
    assert scene.leading.removals.expired_count == 1


def test_one_command_records_no_more_brokers_than_allowed(recording: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence_module, "RECORDED_PER_COMMAND", 3)
    add_brokers(recording, 4)
    recording.leading.lead_applied()
    recording.silent(THIRD_MS + 100)
    for count in (3, 5):
        recording.commit()
        assert len(recording.machine.suspected) == count
    assert recording.group.proposed == []


def test_nothing_is_recorded_before_every_member_knows_the_command(scene: Scene) -> None:
    scene.led()
    scene.silent(0.9 * TIMEOUT_MS)
    assert scene.group.proposed == []
    scene.silent(0.2 * TIMEOUT_MS)
    scene.commit()
    assert scene.machine.state.registration(*KEY) is None, "but a silent broker goes"


def test_unsuspected_broker(recording: Scene) -> None:
    scene = recording
    for _ in range(2 * SHARES):
        scene.silent(THIRD_MS - 200)
        scene.report("n2", scene.entry(True))
        scene.confirm()
        assert scene.refusals() == [()]
    assert scene.group.proposed == [], "a broker that renews within a third writes nothing"


def test_suspected_broker(recording: Scene) -> None:
    """The renewal of a suspected broker is acknowledged when the contact is in the log."""
    scene = recording
    scene.silent(THIRD_MS + 100)
    scene.commit()
    scene.report("n2", scene.entry(True))
    scene.confirm()
    assert (scene.refusals(), len(scene.group.proposed)) == ([], 1)
    scene.commit()
    assert (scene.refusals(), scene.suspicion) == ([()], 0)
    scene.silent(THIRD_MS - 200)
    assert scene.group.proposed == [], "and its silence begins anew"


def test_a_broker_is_suspected_while_the_record_is_under_way_or_its_outcome_unknown(recording: Scene) -> None:
    scene = recording
    scene.silent(THIRD_MS + 100)
    scene.report("n2", scene.entry(True))
    scene.confirm()
    assert scene.refusals() == []
    late, _ = scene.group.proposed[0]
    scene.lose()
    scene.leading.tick()
    scene.commit()
    assert scene.refusals() == [()]
    scene.machine.apply(late)
    assert scene.suspicion == 0, "recorded silence has no effect behind recorded contact"
    scene.silent(100)
    scene.report("n2", scene.entry(True))
    scene.confirm()
    assert scene.refusals() == [()], "from now on without the log"


def test_the_record_of_a_registration_that_ended_concerns_no_later_one(recording: Scene) -> None:
    """One record is in progress and its outcome is unknown, or another one waits."""
    for is_unknown in (True, False):
        recording.silent(2 * THIRD_MS + 100)
        recording.remove("n2", number=2 + is_unknown)
        if is_unknown:
            recording.lose()
        else:
            recording.group.proposed.reverse()
        recording.commit()
        recording.register(1)
        recording.leading.registered(KEY, recording.epoch, "content")
        if not is_unknown:
            recording.commit()
        recording.report("n2", recording.entry(True))
        recording.confirm()
        assert (recording.refusals(), recording.group.proposed) == ([()], [])


def test_a_heartbeat_of_a_suspected_broker_is_recorded(recording: Scene) -> None:
    scene = recording
    scene.silent(THIRD_MS + 100)
    scene.commit()
    scene.report("n2", scene.entry(False))
    scene.commit()
    assert scene.suspicion == 0
    scene.silent(THIRD_MS - 200)
    assert scene.group.proposed == []


def test_a_heartbeat_is_recorded_again(recording: Scene) -> None:
    """The broker does not repeat the heartbeat, and the outcome of its first record is unknown."""
    scene = recording
    scene.silent(THIRD_MS + 100)
    scene.commit()
    scene.report("n2", scene.entry(False))
    scene.lose()
    scene.silent(100)
    scene.commit()
    assert scene.suspicion == 0
    scene.silent(THIRD_MS - 200)
    assert scene.group.proposed == []


def test_a_heartbeat_is_recorded_again_although_more_silence_became_due(recording: Scene) -> None:
    """The second third of the time-out passes while the record of the heartbeat is in progress."""
    recording.silent(THIRD_MS + 100)
    recording.commit()
    recording.report("n2", recording.entry(False))
    recording.silent(THIRD_MS + 100)
    recording.lose()
    recording.silent(100)
    recording.commit()
    assert recording.suspicion == 0


def test_contact_that_is_not_known_to_be_recorded_is_recorded_again(recording: Scene) -> None:
    scene = recording
    scene.silent(THIRD_MS + 100)
    scene.commit()
    scene.report("n2", scene.entry(True))
    scene.confirm()
    scene.lose()
    assert scene.refusals() == []
    scene.leading.tick()
    scene.commit()
    assert scene.refusals() == [()]


def test_recorded_contact_saves_a_broker_from_a_removal_decided_before(recording: Scene) -> None:
    scene = recording
    scene.silent(TIMEOUT_MS + 200)
    assert len(scene.group.proposed) == 2, "silence, and then the removal"
    contact = encode_suspect([Suspect(KEY, scene.epoch, 0)], 0, TERM, 0)
    scene.machine.apply(contact)
    scene.commit()
    scene.commit()
    assert scene.machine.state.registration(*KEY) is not None


def test_removal_waits_for_contact(recording: Scene) -> None:
    """The contact is recorded after the SUSPECT of 2T/3, which is still in progress when T has passed."""
    scene = recording
    scene.silent(2 * THIRD_MS + 100)
    scene.report("n2", scene.entry(True))
    scene.confirm()
    scene.silent(THIRD_MS)
    assert len(scene.group.proposed) == 1, "no removal"
    scene.commit()
    scene.commit()
    assert (scene.refusals(), scene.suspicion) == ([()], 0)
    assert scene.group.proposed == []


def test_records_of_another_term_or_registration_have_no_effect(recording: Scene) -> None:
    scene = recording
    serial = scene.machine.serial
    for term, epoch in ((TERM - 1, scene.epoch), (TERM, scene.epoch + 1)):
        scene.machine.apply(encode_suspect([Suspect(KEY, epoch, 2)], 0, term, serial + 5))
        assert scene.suspicion == 0
    scene.machine.apply(encode_suspect([Suspect(KEY, scene.epoch, 2)], TIME_MS - 2, TERM, serial + 5))
    scene.machine.apply(encode_suspect([Suspect(KEY, scene.epoch, 1)], TIME_MS + 2, TERM, serial + 5))
    assert scene.machine.suspected[KEY] == Suspicion(2, TIME_MS), "it only grows, since the first record"
    scene.register(2)
    assert scene.suspicion == 0, "a registration that is taken clears it"


def test_a_closed_connection_ends_a_broker_after_the_grace_period(recording: Scene) -> None:
    scene = recording
    scene.report("n2", scene.entry(False, state=LOST))
    scene.silent(400)
    assert scene.group.proposed == []
    scene.silent(300)
    scene.commit()
    assert (scene.leading.removals.lost_count, scene.leading.removals.expired_count) == (1, 0)


def test_a_deposed_leader_decides_nothing(scene: Scene) -> None:
    scene.led()
    scene.report("n2", scene.entry(True))
    scene.group.led_term = None
    scene.confirm()
    scene.remove("n2")
    assert (scene.sent, scene.group.proposed) == ([], [])


# Copies


def test_copies_are_compared_with_the_marks_of_a_restored_backup(scene: Scene) -> None:
    reader = SnapshotReader()
    reader.feed(b"".join(scene.machine.state.snapshot()))
    scene.machine.take_over(reader, 1, MarksOfBackup())
    before = scene.machine.serial
    scene.register(2)
    scene.leading.on_inquiry("n2", Inquiry(1, 1, TERM, REGISTER, before, 0, KEY, content_of(registration(2))))
    assert scene.sent[-1] == ("n2", Decision(1, 1, LOOK_AGAIN))

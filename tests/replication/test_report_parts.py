"""Reports that are cut into parts: a client cuts, a leader joins; the test delivers, loses, swaps and repeats the parts."""

import dataclasses
from collections.abc import Iterator
from dataclasses import replace

import pytest

from replicated_namesrv.replication.command_kinds import SUSPICION_VERSION
from replicated_namesrv.replication.liveness import leader_messages
from replicated_namesrv.replication.liveness.attachments import CONTACT_MS, Attachments
from replicated_namesrv.replication.liveness.departures import _Node
from replicated_namesrv.replication.liveness.leader_client import ANSWER_TIMEOUT_MS, LeaderClient
from replicated_namesrv.replication.liveness.leader_messages import (
    ALONE,
    DIFFERS,
    HELD,
    LAST,
    LOST,
    MESSAGE_BYTES_MAX,
    MORE,
    Message,
    NodeReport,
    ReportAnswer,
    ReportEntry,
    Room,
    decode,
    encode,
)
from replicated_namesrv.replication.liveness.renewals import ACCEPTED
from replicated_namesrv.replication.marks import Key
from replicated_namesrv.replication.route_machine import content_of, encode_register
from replicated_namesrv.routes.quotas import NAME_BYTES_MAX
from replicated_namesrv.simulation.loop import VirtualLoop
from replicated_namesrv.simulation.route_cluster import Wire, silenced
from tests.replication.leader_scene import Scene, fail
from tests.replication.test_ghosts import assert_no_ghosts
from tests.replication.virtual import TIMEOUT_MS, Said, registration, virtual_cluster


class Pair:
    """The client of n2, which holds some brokers, and the leader n1. Delivery is up to the test."""

    def __init__(self, loop: VirtualLoop, brokers: int) -> None:
        self.scene, self._loop = Scene(loop), loop
        self.scene.group.command_version = SUSPICION_VERSION
        self.attachments = Attachments()
        self.keys: list[Key] = []
        machine = self.scene.machine
        for number in range(brokers):
            command = registration(address=f"b{number}:1", broker_id=number + 1)
            machine.apply(encode_register(command, 0, machine.state.revision, machine.state.revision, content_of(command)))
            self.keys.append((command.cluster_name, command.broker_addr))
            self.contact(self.keys[-1])
        self.attachments.changed.clear()
        self.scene.led()
        self.sent: list[NodeReport] = []
        """In flight to the leader."""
        self.client = LeaderClient(dataclasses.replace(self.scene.context, node_id="n2"), self.attachments, self._send)

    def epoch(self, key: Key) -> int:
        held = self.scene.machine.state.registration(*key)
        assert held is not None
        return held.epoch

    def contact(self, key: Key) -> None:
        now = self.scene.now_ms
        self.attachments.attach(key, self.epoch(key), 100 + self.keys.index(key), 0.0, now, True)

    def lose(self, key: Key) -> None:
        self.attachments.lose(100 + self.keys.index(key), True)

    def _send(self, peer: str, message: Message) -> None:
        data = encode(message)
        read = decode(data)
        assert (peer, read) == ("n1", message)
        assert len(data) <= leader_messages.MESSAGE_BYTES_MAX
        assert isinstance(read, NodeReport)
        assert len(read.entries) <= leader_messages.PART_ENTRIES_MAX
        self.sent.append(read)

    @property
    def node(self) -> _Node:
        """The leader's knowledge of n2."""
        return self.scene.leading.departures._nodes["n2"]

    def ask(self) -> None:
        self.client.report_soon()
        self._loop.run()

    def take(self, report: NodeReport) -> None:
        """The report arrives, and so do the answers."""
        self.scene.leading.on_report("n2", report)
        self.answer()
        if self.node.session == self.client._session and self.node.is_complete:
            assert set(self.node.words) == set(self.keys), "a list that is not whole counts as complete"

    def answer(self) -> None:
        sent, self.scene.sent = self.scene.sent, []
        for peer, message in sent:
            if peer == "n2" and isinstance(message, ReportAnswer):
                self.client.on_answer(message)
        self._loop.run()

    def deliver(self) -> list[NodeReport]:
        """Deliver, in order, until nothing is in flight. Returns the reports."""
        found = []
        while self.sent:
            found.append(self.sent.pop(0))
            self.take(found[-1])
        return found

    def pass_time(self, ms: float) -> None:
        self.scene.now_ms += ms
        self.client.tick()
        self._loop.run()

    def age_ms(self, key: Key) -> float:
        silence = self.scene.leading.silence
        assert silence is not None
        age_ms = silence.age_ms(key, self.scene.now_ms)
        assert age_ms is not None
        return age_ms


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    loop = VirtualLoop(lambda: 0.0, fail)  # type: ignore[abstract]  # what belongs to IO is missing
    with silenced(), loop.running():
        yield loop


@pytest.fixture
def pair(loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch) -> Pair:
    """Seven brokers: four parts."""
    monkeypatch.setattr(leader_messages, "PART_ENTRIES_MAX", 2)
    return Pair(loop, 7)


PARTS = 4


def test_lists_of_every_length_are_cut_and_joined(loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    for size in (1, 2, 3):
        monkeypatch.setattr(leader_messages, "PART_ENTRIES_MAX", size)
        for brokers in range(3 * size + 2):
            pair = Pair(loop, brokers)
            pair.ask()
            reports = pair.deliver()
            count = max(1, -(-brokers // size))
            assert [report.part for report in reports] == ([ALONE] if count == 1 else [MORE] * (count - 1) + [LAST])
            assert [report.is_full for report in reports] == [True] + [False] * (count - 1)
            assert [report.sequence for report in reports] == list(range(1, count + 1))
            assert [entry.key for report in reports for entry in report.entries] == pair.keys
            assert (pair.node.is_complete, pair.node.arriving) == (True, None)


@pytest.mark.parametrize("character", ["x", "\u00e4", "\U0001f600"])
def test_a_report_is_as_long_as_its_bound_in_bytes(monkeypatch: pytest.MonkeyPatch, character: str) -> None:
    def length(keys: list[Key]) -> int:
        return len(encode(NodeReport(1, 2, 3, True, tuple(ReportEntry(key, HELD, True, 4, 5, 6) for key in keys), 7)))

    keys = [(character * 20, f"{number}{character * 9}") for number in range(9)]
    for count in range(1, 9):
        for spare in (-1, 0, 1):
            monkeypatch.setattr(leader_messages, "MESSAGE_BYTES_MAX", length(keys[:count]) + spare)
            room = Room(may_be_old=False)
            fitting = [key for key in keys if room.take(key)]
            assert fitting == keys[: max(1, count if spare >= 0 else count - 1)], "the first always fits"


def test_the_longest_names_leave_room_for_many_brokers() -> None:
    room, taken = Room(may_be_old=False), 0
    while room.take(("c" * NAME_BYTES_MAX, "a" * NAME_BYTES_MAX)):
        taken += 1
    assert taken == MESSAGE_BYTES_MAX // (2 * NAME_BYTES_MAX + 38)


@pytest.mark.parametrize("losses", [1, 2, 8])
@pytest.mark.parametrize("lost", range(PARTS))
def test_after_a_lost_part_the_node_repeats_the_list(pair: Pair, lost: int, losses: int) -> None:
    """The reports after the part are lost, too. So the node learns of the loss from a refusal or from missing answers."""
    pair.ask()
    for _ in range(lost):
        pair.take(pair.sent.pop(0))
    for _ in range(losses):
        pair.sent.clear()
        assert not pair.node.is_complete or pair.node.session != pair.client._session
        pair.pass_time(100)
    reports: list[NodeReport] = []
    while not (pair.node.is_complete and pair.node.session == pair.client._session):
        reports += pair.deliver()
        pair.pass_time(100)
        assert pair.scene.now_ms < 3 * ANSWER_TIMEOUT_MS
    assert [report.part for report in reports if report.is_listed][-PARTS:] == [MORE] * (PARTS - 1) + [LAST]


@pytest.mark.parametrize("before", range(PARTS))
def test_a_part_that_is_overtaken_is_not_joined(pair: Pair, before: int) -> None:
    """A change overtakes the part. The part comes while the list is repeated."""
    pair.ask()
    for _ in range(before):
        pair.take(pair.sent.pop(0))
    pair.contact(pair.keys[0])
    pair.ask()
    part, change = pair.sent
    assert (part.is_listed, change.is_listed) == (True, False)
    pair.sent.clear()
    pair.take(change)
    assert pair.node.arriving is None
    assert not pair.node.is_complete
    pair.take(part)
    assert not pair.node.is_complete
    reports = pair.deliver()
    assert [report.part for report in reports if report.is_listed] == [MORE] * (PARTS - 1) + [LAST]
    assert pair.node.is_complete


def test_a_repeated_part_counts_once(pair: Pair) -> None:
    pair.ask()
    earlier: list[NodeReport] = []
    while pair.sent:
        report = pair.sent.pop(0)
        earlier.append(report)
        pair.take(report)
        is_complete = pair.node.is_complete
        for each in earlier:
            pair.scene.leading.on_report("n2", each)
            assert pair.node.is_complete == is_complete
        pair.scene.sent.clear()
    assert (len(earlier), pair.node.is_complete) == (PARTS, True)


def test_the_last_part_of_an_earlier_list_does_not_end_a_later_one(pair: Pair) -> None:
    pair.ask()
    for _ in range(PARTS - 1):
        pair.take(pair.sent.pop(0))
    (late,) = pair.sent
    assert late.part == LAST
    pair.sent.clear()
    pair.client._told = None
    pair.ask()
    pair.take(pair.sent.pop(0))
    pair.take(late)
    assert not pair.node.is_complete
    pair.deliver()
    assert pair.node.is_complete


def test_a_list_in_parts_is_no_contact_and_changes_between_its_parts_are(pair: Pair) -> None:
    pair.scene.now_ms += 200
    contact, closed = pair.keys[-1], pair.keys[0]
    pair.ask()
    pair.contact(contact)
    pair.ask()
    pair.take(pair.sent.pop(0))
    pair.lose(closed)
    pair.deliver()
    pair.ask()
    pair.deliver()
    assert {key: word.state for key, word in pair.node.words.items()} == dict.fromkeys(pair.keys, HELD) | {closed: LOST}
    assert [pair.age_ms(key) for key in pair.keys] == [200] * 6 + [0]


def test_an_old_contact_between_the_parts_is_listed_again(pair: Pair) -> None:
    """The link is slow. Before the second part is sent, the contact is too old to be reported as one."""
    pair.client._timeout_ms = 10 * CONTACT_MS
    pair.ask()
    key = pair.keys[0]
    pair.contact(key)
    pair.scene.now_ms += CONTACT_MS + 1
    reports = pair.deliver()
    assert [report.part for report in reports] == [MORE] * (PARTS - 1) + [LAST]
    assert [entry.key for report in reports for entry in report.entries] == [*pair.keys, key]
    assert pair.age_ms(key) == CONTACT_MS + 1
    assert pair.node.is_complete


def test_renewals_are_answered_for_each_part(pair: Pair) -> None:
    pair.ask()
    pair.deliver()
    unregistered, epoch = ("c", "x:1"), pair.scene.machine.state.revision + 1
    pair.keys.append(unregistered)
    pair.attachments.attach(unregistered, epoch, 1, 0.0, 0.0, True)
    epochs = {key: epoch if key == unregistered else pair.epoch(key) for key in pair.keys}
    futures = {key: pair.client.renew(key, epoch, 0) for key, epoch in epochs.items()}
    pair.attachments.changed.clear()
    pair.client._told = None
    pair.ask()
    reports = pair.deliver()
    for report in reports:
        assert len(report.entries) <= 2
    assert [entry.key for report in reports for entry in report.entries if entry.renews] == pair.keys
    while pair.scene.group.reads:
        pair.scene.confirm()
        pair.answer()
    assert {key: future.result() for key, future in futures.items()} == dict.fromkeys(pair.keys, ACCEPTED) | {
        unregistered: DIFFERS
    }


def test_a_leader_of_0_1_gets_its_list_in_one_report(loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(loop, 7)
    pair.scene.group.command_version = SUSPICION_VERSION - 1
    pair.ask()
    monkeypatch.setattr(leader_messages, "PART_ENTRIES_MAX", 2)
    (report,) = pair.deliver()
    assert (report.is_full, report.part, len(report.entries)) == (True, ALONE, 7)


BROKERS = 9


@pytest.mark.slow
def test_brokers_stay_through_a_transfer_that_makes_every_node_repeat_its_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part of a list has two brokers. Afterwards a broker that closes its connections is removed at once, which shows that
    the lists are complete."""
    monkeypatch.setattr(leader_messages, "PART_ENTRIES_MAX", 2)
    with virtual_cluster(connectionLossGraceMs="500") as cluster:
        wires = {(name, number): cluster.wire(name) for name in cluster.machines for number in range(BROKERS)}

        def register(number: int, wire: Wire) -> Said:
            command = replace(registration(address=f"b{number}:1"), broker_name=f"b{number}")
            return cluster.say(wire, lambda server, c: server.node.register(command, c))

        def renew(seconds: float) -> None:
            """Every broker registers with every node each quarter of its time-out."""
            for _ in range(int(4 * seconds * 1000 / TIMEOUT_MS)):
                said = [register(number, wire) for (_, number), wire in wires.items()]
                cluster.run(TIMEOUT_MS / 4000)
                assert all(each.ended and each.result.code == 0 for each in said)

        def shown() -> set[int]:
            return {node.state.broker_count for node in cluster.nodes}

        renew(2)
        assert shown() == {BROKERS}
        for _ in range(2):
            cluster.transfer(cluster.followers()[0])
            renew(2.5 * TIMEOUT_MS / 1000)
            assert shown() == {BROKERS}
            role = cluster.node(cluster.leader()).liveness.role
            assert role is not None
            assert all(node.is_complete and len(node.words) == BROKERS for node in role.departures._nodes.values())
            for node in cluster.nodes:
                client = node.liveness.client
                assert client._last_part - client._whole_list >= BROKERS // 2, "the list was cut"
        assert sum(node.expired_count for node in cluster.nodes) == 0
        for (_, number), wire in wires.items():
            if number == 0:
                wire.hang_up()
        assert cluster.until(lambda: shown() == {BROKERS - 1}, "one is gone") < TIMEOUT_MS / 2000
        assert_no_ghosts(cluster, "at the end")

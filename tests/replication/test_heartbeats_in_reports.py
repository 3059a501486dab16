"""A ``BROKER_HEARTBEAT`` (904) that shares a report with a renewal of the same broker counts at once, as any other."""

from collections.abc import Iterator

import pytest

from replicated_namesrv.replication.command_kinds import EXPIRE
from replicated_namesrv.replication.liveness.attachments import Attachments
from replicated_namesrv.replication.liveness.leader_client import LeaderClient
from replicated_namesrv.replication.liveness.leader_messages import DIFFERS, Message, NodeReport, ReportAnswer, decode, encode
from tests.replication.leader_scene import Scene, leader_scene
from tests.replication.virtual import KEY, TIMEOUT_MS


@pytest.fixture
def scene() -> Iterator[Scene]:
    with leader_scene() as prepared:
        prepared.group.command_version = 2
        yield prepared


class Node:
    """The node n2 with its client; reports arrive at the leader at once."""

    def __init__(self, scene: Scene) -> None:
        self.scene, self.attachments = scene, Attachments()
        self.client = LeaderClient(scene.context, self.attachments, self._send)
        self.attachments.attach(KEY, scene.epoch, 1, 0, scene.now_ms, registers=True)
        self.attachments.changed.clear()
        self.tick()

    def _send(self, peer: str, message: Message) -> None:
        report = decode(encode(message))
        assert isinstance(report, NodeReport)
        self.scene.leading.on_report("n2", report)

    def tick(self) -> None:
        self.client.tick()
        self.scene._loop.run()
        self.answers()

    def answers(self) -> None:
        for peer, message in self.scene.sent:
            if peer == "n2" and isinstance(message, ReportAnswer):
                self.client.on_answer(message)
        self.scene.sent.clear()
        self.scene._loop.run()

    def heartbeat(self) -> None:
        """904."""
        self.attachments.attach(KEY, self.scene.epoch, 1, 0, self.scene.now_ms, registers=False)


def expiries(scene: Scene) -> int:
    return sum(data[1:].startswith(b"[%d," % EXPIRE) for data, _ in scene.group.proposed)


def silent(scene: Scene, ms: float) -> None:
    """Silence, which is recorded."""
    until = scene.now_ms + ms
    while scene.now_ms < until:
        scene.now_ms = min(until, scene.now_ms + 50)
        for member in "n1", "n3":
            scene.report(member)
        scene.leading.tick()
        while scene.group.proposed and not expiries(scene):
            scene.commit()
    scene.sent.clear()


def test_a_904_counts_though_a_renewal_of_the_same_report_is_refused(scene: Scene) -> None:
    """A 904 and a renewal that the group's change makes obsolete (R3) share a report."""
    scene.led()
    node = Node(scene)
    silent(scene, TIMEOUT_MS * 0.8)
    assert scene.suspicion == 2
    node.heartbeat()
    generation = scene.machine.state.group_generation("a") + 7
    future = node.client.renew(KEY, scene.epoch, generation)
    scene._loop.run()
    while scene.group.reads:
        scene.confirm()
    node.answers()
    while scene.group.proposed and not expiries(scene):
        scene.commit()
    node.answers()
    assert future.result() == DIFFERS
    silent(scene, TIMEOUT_MS * 0.25)
    assert expiries(scene) == 0, "removed as silent 0.25 T after a 904"


def test_a_904_counts_at_once_though_a_renewal_of_the_same_report_waits(scene: Scene) -> None:
    """The 904 arrives at the leader 10 ms before the time-out; the renewal beside it waits for a confirmation."""
    scene.led()
    scene.is_patient = True
    node = Node(scene)
    silent(scene, TIMEOUT_MS - 10)
    assert expiries(scene) == 0
    node.heartbeat()
    node.client.renew(KEY, scene.epoch, 0)
    scene._loop.run()
    scene.now_ms += 20
    scene.leading.tick()
    assert expiries(scene) == 0

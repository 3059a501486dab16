"""Removals by the leader (``liveness/removals.py``): several at the same time, bounds, and the caller that they name."""

from collections.abc import Iterator

import pytest

from replicated_namesrv.model import ChangeOrigin
from replicated_namesrv.replication.command_kinds import BASE_VERSION, ORIGIN_VERSION, SUSPICION_VERSION, version_of
from replicated_namesrv.replication.liveness import removals as removals_module
from replicated_namesrv.replication.liveness.leader_messages import REMOVE, REMOVING, Inquiry, encode_removal
from replicated_namesrv.routes.commands import BrokerRemoval
from tests.replication.leader_scene import TERM, Scene, add_brokers, leader_scene
from tests.replication.test_leader_role import expire_all
from tests.replication.virtual import KEY


@pytest.fixture
def scene() -> Iterator[Scene]:
    with leader_scene() as prepared:
        yield prepared


def test_renewals_are_refused_until_every_removal_has_an_outcome(scene: Scene) -> None:
    """A registration overtakes the expiry, which then has no effect. The removal for a 104 is still in progress."""
    scene.led()
    scene.let_it_expire()
    scene.register(2)
    scene.remove("n2")
    assert len(scene.group.proposed) == 2
    scene.commit()
    scene.report("n3", scene.entry(True))
    scene.confirm()
    assert scene.refusals() == [((0, REMOVING),)]
    scene.commit()
    assert scene.machine.state.registration(*KEY) is None
    assert not scene.leading.removals._lives


def test_one_expiry_is_in_progress_at_a_time(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removals_module, "EXPIRED_BROKERS_MAX", 1)
    add_brokers(scene, 2)
    scene.led()
    scene.let_it_expire()
    for left in (2, 1, 0):
        scene.leading.tick()
        assert len(scene.group.proposed) == 1
        scene.commit()
        assert len(scene.machine.state.registrations()) == left
    assert scene.group.proposed == []


def test_a_silent_broker_that_is_being_unregistered_does_not_expire(scene: Scene) -> None:
    scene.led()
    scene.remove("n2")
    scene.let_it_expire()
    assert len(scene.group.proposed) == 1
    scene.commit()
    assert scene.leading.removals.expired_count == 0


def test_a_broker_with_more_topics_than_one_expiry_may_have_expires_alone(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removals_module, "EXPIRED_TOPICS_MAX", 1)
    scene.led()
    scene.let_it_expire()
    scene.commit()
    assert scene.machine.state.registrations() == []


def test_brokers_with_many_topics_expire_a_few_at_a_time(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven brokers of equal cost. One command may remove two of them."""
    add_brokers(scene, 6)
    topics = scene.machine.state.removal_topics("a")
    monkeypatch.setattr(removals_module, "EXPIRED_TOPICS_MAX", 3 * topics - 1)
    scene.led()
    scene.let_it_expire()
    assert expire_all(scene) == [2, 2, 2, 1]


@pytest.mark.parametrize(("known", "proposed"), [(SUSPICION_VERSION, BASE_VERSION), (ORIGIN_VERSION, ORIGIN_VERSION)])
def test_an_unregistration_names_its_caller_if_every_member_knows_such_commands(scene: Scene, known: int, proposed: int) -> None:
    scene.group.command_version = known
    scene.led()
    content = encode_removal(BrokerRemoval(*KEY, "a", 0, scene.epoch), ChangeOrigin("tools", "10.0.0.9", "n2"))
    scene.leading.on_inquiry("n2", Inquiry(1, 1, TERM, REMOVE, 0, 0, KEY, content))
    assert [version_of(data) for data, _ in scene.group.proposed] == [proposed]

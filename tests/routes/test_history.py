"""Changes as watchers receive them."""

import json
import sys
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from replicated_namesrv.model import DataVersion, QueueData
from replicated_namesrv.routes.commands import (
    BrokerRemoval,
    ChangeWritePerm,
    Command,
    DeleteKVConfig,
    DeleteTopic,
    PutKVConfig,
    RegisterBroker,
    RegisterTopic,
    UnregisterBrokers,
    UpdateSettings,
)
from replicated_namesrv.routes.history import EXPIRED, TOPICS_LISTED_MAX, CompactedError, History
from replicated_namesrv.routes.state import RouteInfoManager, RouteSettings
from replicated_namesrv.settings import ROWS

QUEUES = QueueData(6, 4, 0, 8)


def registration(
    topics: dict[str, QueueData], address: str = "10.0.0.1:10911", version: int = 1, broker_id: int = 0
) -> RegisterBroker:
    return RegisterBroker("C", "a", address, broker_id, "", None, None, False, DataVersion(0, version, version), topics, {}, None)


class Watched:
    """A state with its history."""

    def __init__(self, bytes_max: int = 1 << 20) -> None:
        self.state, self.history = RouteInfoManager(RouteSettings()), History(bytes_max)

    def apply(self, command: Command, removal: str = "broker-unregistered") -> dict[str, Any] | None:
        """The change reported for ``command``; None if there is none."""
        before = self.history.newest
        if self.state.apply(command, 7).result.changed:
            self.history.note(self.state, command, 7, removal)
        changes = self.history.after(before, 1 << 20)
        assert len(changes) <= 1
        return None if not changes else json.loads(changes[0].data)


def test_fields_are_equal_before_and_after_the_text_is_made() -> None:
    watched = Watched()
    watched.state.apply(registration({"b": QUEUES, "a": QUEUES}), 7)
    watched.history.note(watched.state, registration({"b": QUEUES, "a": QUEUES}), 7)
    (change,) = watched.history.after(0, 1)
    before = change.fields
    assert before == json.loads(change.data) == change.fields
    assert before["topics"] == ["a", "b"]


@pytest.mark.parametrize("character", ["v", "\x01", "\x7f", '"', "\u00e4", "\u4e2d", "\U0001f600"])
@pytest.mark.parametrize("begin", ["", "\U0001f600"])
def test_the_limit_counts_the_memory_of_all_texts_read_or_not(character: str, begin: str) -> None:
    bytes_max, watched, values = 1 << 18, Watched(1 << 18), list[str]()
    for number in range(60):
        values.append(begin + character * 10_000 + str(number))
        command = PutKVConfig("n", "k", values[-1])
        watched.state.apply(command, 7)
        watched.history.note(watched.state, command, 7)
    kept = watched.history.after(watched.history.oldest, 1 << 30)
    assert 1 <= len(kept) < 60
    assert sum(map(sys.getsizeof, values[-len(kept) :])) <= bytes_max
    assert sum(sys.getsizeof(change.data) for change in kept) <= bytes_max


def test_each_kind_of_change_is_told_once_and_nothing_else() -> None:
    watched = Watched()
    told = [
        watched.apply(command)
        for command in (
            registration({"t1": QUEUES, "t2": QUEUES}),
            registration({"t1": QUEUES, "t2": QUEUES}),
            registration({"t1": QUEUES, "t2": QUEUES._replace(perm=4)}, version=2),
            RegisterTopic("t3", (("a", QUEUES),)),
            ChangeWritePerm("a", False),
            DeleteTopic("t1", None),
            PutKVConfig("n", "k", "v\ud800"),
            DeleteKVConfig("n", "k"),
            DeleteKVConfig("n", "k"),
            UpdateSettings({"order_message_enable": True}),
            UnregisterBrokers((BrokerRemoval("C", "10.0.0.1:10911", "a", 0, None),)),
        )
    ]
    changes = [change for change in told if change is not None]
    assert [(change["revision"], change["kind"]) for change in changes] == list(
        enumerate(
            (
                "broker-registered",
                "broker-changed",
                "topic-registered",
                "write-perm-wiped",
                "topic-deleted",
                "kv-put",
                "kv-deleted",
                "settings-changed",
                "broker-unregistered",
            ),
            1,
        )
    )
    assert changes[0]["topics"] == ["t1", "t2"]
    assert changes[0]["brokers"][0]["epoch"] == 1
    assert changes[1]["topics"] == ["t2"]
    assert changes[3]["topics"] == ["t1", "t3"]
    assert changes[5]["value"] == "v\ud800"
    assert changes[7]["settings"] == {"orderMessageEnable": True}
    assert [broker["brokerAddr"] for broker in changes[8]["brokers"]] == ["10.0.0.1:10911"]
    assert changes[8]["topics"] == ["t2", "t3"]
    assert {change["timeMs"] for change in changes} == {7}


def test_settings_bear_their_outside_names() -> None:
    watched = Watched()
    for row in ROWS.values():
        if row.replicated and (change := watched.apply(UpdateSettings({row.attribute: not row.default}))) is not None:
            assert list(change["settings"]) == [row.name]


def test_an_expiry_is_no_unregistration() -> None:
    watched = Watched()
    watched.apply(registration({"t1": QUEUES, "t2": QUEUES}))
    told = watched.apply(UnregisterBrokers((BrokerRemoval("C", "10.0.0.1:10911", "a", 0, 1),)), EXPIRED)
    assert told is not None
    assert told["kind"] == "broker-expired"


def test_who_was_pushed_out_is_named() -> None:
    watched = Watched()
    watched.apply(registration({"t1": QUEUES, "t2": QUEUES}))
    told = watched.apply(registration({"t1": QUEUES, "t2": QUEUES}, address="10.0.0.2:10911", version=2))
    assert told is not None
    assert told["kind"] == "broker-registered"
    assert [broker["brokerAddr"] for broker in told["replaced"]] == ["10.0.0.1:10911"]


@pytest.mark.parametrize("topics", [{"t1": QUEUES}, {}])
def test_a_registration_that_is_refused_under_another_name_is_no_change_of_the_broker(topics: dict[str, QueueData]) -> None:
    """The address stays registered under the name that it had; the refusal leaves a group without members behind."""
    watched = Watched()
    watched.apply(registration({"t1": QUEUES, "t2": QUEUES}))
    moved = replace(registration(topics, version=2), broker_name="b", topics=topics or None)
    told = watched.apply(moved)
    assert told is not None
    assert (told["kind"], told["brokerName"], "brokers" in told) == ("broker-group-changed", "b", False)


def any_registration(chance: Random) -> RegisterBroker:
    topics = {f"t{number}": QUEUES for number in range(chance.randint(1, 3))}
    command = registration(topics, f"10.0.0.{chance.randint(1, 3)}:10911", chance.randint(1, 3), chance.choice((0, 0, 1)))
    return replace(command, broker_name=chance.choice("ab"), zone_name=chance.choice((None, "z")))


@pytest.mark.parametrize("seed", range(20))
def test_what_is_told_of_brokers_is_what_became_of_them(seed: int) -> None:
    """Applying all events to the earlier state of the brokers gives their present state. Repeat one seed with -k 'became and
    [SEED]'."""
    chance, watched = Random(seed), Watched()
    followed: dict[str, dict[str, Any]] = {}
    for _ in range(200):
        command: Command = any_registration(chance)
        if chance.random() < 0.2:
            command = UnregisterBrokers((BrokerRemoval("C", f"10.0.0.{chance.randint(1, 3)}:10911", "a", 0, None),))
        told = watched.apply(command) or {}
        for gone in told.get("replaced", []) if told.get("kind") != "broker-unregistered" else told["brokers"]:
            followed.pop(gone["brokerAddr"])
        if told.get("kind") in ("broker-registered", "broker-changed"):
            (broker,) = told["brokers"]
            before = followed.get(broker["brokerAddr"])
            assert (told["kind"] == "broker-changed") == (before is not None and before["epoch"] == broker["epoch"])
            followed[broker["brokerAddr"]] = broker
        assert {
            held.broker_addr: (held.broker_name, held.broker_id, held.epoch, held.data_version.state_version)
            for held in watched.state.registrations()
        } == {
            address: (told["brokerName"], told["brokerId"], told["epoch"], told["dataVersion"]["stateVersion"])
            for address, told in followed.items()
        }, f"seed {seed}, {command}"
        if isinstance(command, RegisterBroker) and told.get("brokers"):
            assert (told["brokers"][0]["brokerName"], told["brokers"][0]["brokerId"]) == (command.broker_name, command.broker_id)


def test_very_many_topics_are_not_listed() -> None:
    watched = Watched()
    told = watched.apply(registration({f"t{number}": QUEUES for number in range(TOPICS_LISTED_MAX + 1)}))
    assert told is not None
    assert told["topics"] is None


def test_the_history_is_bounded_in_bytes_and_never_has_a_gap() -> None:
    watched, history = Watched(4_000), None
    history = watched.history
    for number in range(1, 200):
        watched.apply(PutKVConfig("n", "k", str(number)))
        for revision in range(history.oldest, number + 1):
            assert [change.revision for change in history.after(revision, 1 << 20)] == list(range(revision + 1, number + 1))
        for revision in range(max(0, history.oldest - 3), history.oldest):
            with pytest.raises(CompactedError, match=f"only those after {history.oldest}"):
                history.after(revision, 1 << 20)
    assert 0 < 199 - history.oldest < 30
    watched.apply(PutKVConfig("n", "k", "x" * 10_000))
    assert [change.revision for change in history.after(199, 1)] == [200], "the latest stays, however large"


def test_a_part_is_cut_where_it_was_asked_to_be() -> None:
    watched = Watched()
    for number in range(10):
        watched.apply(PutKVConfig("n", "k", str(number)))
    assert len(watched.history.after(0, 1)) == 1
    assert len(watched.history.after(4, 1 << 20)) == 6


def test_a_replaced_state_has_no_past() -> None:
    watched = Watched()
    watched.apply(PutKVConfig("n", "k", "v"))
    watched.history.restart(50)
    assert watched.history.after(50, 1) == []
    with pytest.raises(CompactedError):
        watched.history.after(1, 1)
    (told,) = watched.history.after(watched.history.replaced_at - 1, 1)
    assert (told.kind, told.revision) == ("restored", 50)
    watched.history.restart(0)
    assert (watched.history.oldest, watched.history.after(0, 1)) == (0, [])

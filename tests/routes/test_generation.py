"""Numbers that show whether values computed from an earlier state are still valid.

A group's generation is the same only while the outcome of an unchanged registration is the same, and ``topic_names_changes`` only
while the list of topics is the same."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicated_namesrv.routes.commands import (
    ChangeWritePerm,
    Command,
    DeleteTopic,
    PutKVConfig,
    RegisterBroker,
    RegisterTopic,
    UpdateSettings,
)
from replicated_namesrv.routes.quotas import with_own_mappings
from replicated_namesrv.routes.state import RouteInfoManager
from tests.routes.strategies import commands, registrations
from tests.support.routes import mapping, queues, register, unregister

SLAVE = register("b", 1, "s:1", topics=["V", "W"])
MASTER = register("b", 0, "m:1", topics=["T", "U"])

CONSEQUENTIAL: dict[str, tuple[RegisterBroker, Callable[[], Command]]] = {
    "a topic of it was deleted": (MASTER, lambda: DeleteTopic("T", None)),
    "a topic of it was deleted in its cluster": (MASTER, lambda: DeleteTopic("T", "C")),
    "it was removed": (MASTER, lambda: unregister("b", 0, "m:1")),
    "its address was taken by another id": (MASTER, lambda: register("b", 3, "m:1")),
    "its id was taken by another address": (MASTER, lambda: register("b", 0, "n:1")),
    "its address took another name": (MASTER, lambda: register("a", 0, "m:1")),
    "its address took another cluster": (MASTER, lambda: register("b", 0, "m:1", cluster="D")),
    "it announced something else": (MASTER, lambda: register("b", 0, "m:1", version=2)),
    "its group's zone changed": (MASTER, lambda: register("b", 1, "s:1", zone="z")),
    "its group's flag changed": (MASTER, lambda: register("b", 1, "s:1", acting_master=True)),
    "topics not named are to be deleted": (MASTER, lambda: UpdateSettings({"delete_topic_with_broker_registration": True})),
    "its master went": (SLAVE, lambda: unregister("b", 0, "m:1")),
    "its master moved": (SLAVE, lambda: register("b", 0, "n:1", topics=["T", "U"])),
    "its master has another HA address": (SLAVE, lambda: register("b", 0, "m:1", ha="h:2", topics=["T", "U"])),
}


@pytest.mark.parametrize("what", sorted(CONSEQUENTIAL))
def test_what_changes_the_outcome_moves_the_generation(what: str) -> None:
    registration, change = CONSEQUENTIAL[what]
    state = RouteInfoManager()
    for command in (MASTER, SLAVE, RegisterTopic("kept", (("b", queues()),))):
        state.apply(command, 1)
    unchanged = state.apply(registration, 2).result
    assert not unchanged.changed
    generation = state.group_generation("b")
    state.apply(change(), 3)
    assert state.group_generation("b") != generation
    assert state.apply(registration, 4).result != unchanged


INCONSEQUENTIAL: dict[str, Callable[[], Command]] = {
    "another group registers": lambda: register("z", 0, "z:1"),
    "another group loses a topic": lambda: DeleteTopic("T", "Z"),
    "permissions of another group change": lambda: ChangeWritePerm("a", writable=False),
    "KV config changes": lambda: PutKVConfig("ORDER_TOPIC_CONFIG", "T", "b:4"),
    "it registers again": lambda: MASTER,
}


@pytest.mark.parametrize("what", sorted(INCONSEQUENTIAL))
def test_what_concerns_others_leaves_it(what: str) -> None:
    state = RouteInfoManager()
    for command in (MASTER, register("a", 0, "a:1", cluster="Z")):
        state.apply(command, 1)
    generation = state.group_generation("b")
    state.apply(INCONSEQUENTIAL[what](), 2)
    assert state.group_generation("b") == generation


def test_a_group_made_anew_has_a_generation_of_its_own() -> None:
    state = RouteInfoManager()
    assert state.group_generation("b") == 0
    state.apply(MASTER, 1)
    generation = state.group_generation("b")
    state.apply(unregister("b", 0, "m:1"), 2)
    assert state.group_generation("b") == 0
    state.apply(MASTER, 3)
    assert state.group_generation("b") > generation


def test_a_mapping_of_a_topic_served_by_others_moves_that_topic_when_it_goes() -> None:
    state = RouteInfoManager()
    state.apply(register("a", 0, "a:1", topics=["T", "U"]), 1)
    state.apply(register("b", 0, "m:1", topics=[], mappings={"T": mapping("T", "b")}), 2)
    before = state.topic_revisions["T"]
    state.apply(unregister("b", 0, "m:1"), 3)
    assert state.topic_revisions["T"] > before


@pytest.mark.slow
@settings(max_examples=300)
@given(st.lists(commands, max_size=6), registrations, st.lists(commands, min_size=1, max_size=4))
def test_as_long_as_it_stands_nothing_changes(before: list[Command], registration: RegisterBroker, after: list[Command]) -> None:
    state, registration = RouteInfoManager(), with_own_mappings(registration)  # as each node proposes it
    for command in (*before, registration):
        state.apply(command, 1)
    applied = state.apply(registration, 2)
    assert not applied.result.changed
    generation = state.group_generation(registration.broker_name)
    for command in after:
        state.apply(command, 3)
        if state.group_generation(registration.broker_name) == generation:
            assert state.apply(registration, 4) == applied


@pytest.mark.slow
@settings(max_examples=300)
@given(st.lists(commands, min_size=1, max_size=12))
def test_the_list_of_topics_does_not_change_unnoticed(history: list[Command]) -> None:
    state = RouteInfoManager()
    for command in history:
        names, changes = state.all_topics(), state.topic_names_changes
        state.apply(command, 1)
        assert state.topic_names_changes > changes or state.all_topics() == names
    changes = state.topic_names_changes
    state.restore(state.snapshot())
    assert state.topic_names_changes > changes


def test_other_changes_leave_the_list_of_topics_valid() -> None:
    state = RouteInfoManager()
    state.apply(MASTER, 1)
    changes = state.topic_names_changes
    state.apply(PutKVConfig("n", "k", "v"), 2)
    state.apply(ChangeWritePerm("b", writable=False), 3)
    state.apply(register("b", 1, "s:1", topics=["T"]), 4)
    assert state.topic_names_changes == changes

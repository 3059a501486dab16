"""The digest: equal for equal states, different for different ones, and computed once for each change."""

from collections.abc import Callable
from random import Random

import pytest

from replicated_namesrv.model import QueueData
from replicated_namesrv.routes import digest as digest_module
from replicated_namesrv.routes.commands import (
    ChangeWritePerm,
    Command,
    DeleteKVConfig,
    DeleteTopic,
    PutKVConfig,
    RegisterTopic,
    UpdateSettings,
)
from replicated_namesrv.routes.state import RouteInfoManager
from tests.routes.conftest import NextSettings
from tests.routes.sequences import random_command
from tests.routes.test_snapshot import populated
from tests.support.routes import mapping, queues, register, unregister

DIFFERENCES: dict[str, tuple[Command, Command]] = {
    "perm": (
        register("b", 0, "m:1", topics={"T": queues(6), "U": queues()}),
        register("b", 0, "m:1", topics={"T": queues(4), "U": queues()}),
    ),
    "exchanged": (
        register("b", 0, "m:1", topics={"T": queues(6), "U": queues(4)}),
        register("b", 0, "m:1", topics={"T": queues(4), "U": queues(6)}),
    ),
    "topic": (register("b", 0, "m:1", topics=["T", "U"]), register("b", 0, "m:1", topics=["T", "V"])),
    "fields exchanged": (
        register("b", 0, "m:1", topics={"T": QueueData(6, 4, 0, 8), "U": queues()}),
        register("b", 0, "m:1", topics={"T": QueueData(6, 8, 0, 4), "U": queues()}),
    ),
    "name": (register("a", 0, "m:1"), register("b", 0, "m:1")),
    "id": (register("b", 0, "m:1"), register("b", 1, "m:1")),
    "address": (register("b", 0, "m:1"), register("b", 0, "m:2")),
    "cluster": (register("b", 0, "m:1"), register("b", 0, "m:1", cluster="D")),
    "version": (register("b", 0, "m:1"), register("b", 0, "m:1", version=2)),
    "ha": (register("b", 0, "m:1"), register("b", 0, "m:1", ha="h:2")),
    "zone": (register("b", 0, "m:1"), register("b", 0, "m:1", zone="z")),
    "acting master": (register("b", 0, "m:1"), register("b", 0, "m:1", acting_master=True)),
    "timeout": (register("b", 0, "m:1"), register("b", 0, "m:1", timeout_ms=1)),
    "filters": (register("b", 0, "m:1"), register("b", 0, "m:1", filters=("f:1",))),
    "mappings": (register("b", 0, "m:1"), register("b", 0, "m:1", mappings={"T": mapping("T", "b")})),
    "refused": (register("b", 0, "m:1"), register("b", 0, "m:1", topics=["T"])),
    "value": (PutKVConfig("n", "k", "v"), PutKVConfig("n", "k", None)),
    "key": (PutKVConfig("n", "k", "v"), PutKVConfig("n", "l", "v")),
    "namespace": (PutKVConfig("n", "k", "v"), PutKVConfig("m", "k", "v")),
    "setting": (UpdateSettings({"enable_topic_list": False}), UpdateSettings({"enable_all_topic_list": False})),
}


def digest_after(*commands: Command, time_ms: int = 1) -> bytes:
    """Digest of a new state after some commands."""
    state = RouteInfoManager()
    for command in commands:
        state.apply(command, time_ms)
    return state.digest()


@pytest.mark.parametrize("what", sorted(DIFFERENCES))
def test_a_difference_shows(what: str) -> None:
    one, other = DIFFERENCES[what]
    assert digest_after(one) != digest_after(other)
    assert digest_after(one) == digest_after(one)


def test_a_difference_of_time_shows() -> None:
    assert digest_after(register("b", 0, "m:1"), time_ms=1) != digest_after(register("b", 0, "m:1"), time_ms=2)


def test_a_later_setting_shows_only_while_it_is_not_the_default(later_settings: type[NextSettings]) -> None:
    default = RouteInfoManager().digest()
    assert RouteInfoManager(later_settings()).digest() == default
    changed = [{"first_later": True}, {"second_later": True}, {"first_later": True, "second_later": True}, {"third_later": False}]
    digests = {RouteInfoManager(later_settings(**each)).digest() for each in changed}
    assert len(digests | {default}) == 5


def test_an_emptied_namespace_differs_from_none() -> None:
    one: list[Command] = [PutKVConfig("n", "k", "v"), DeleteKVConfig("n", "k")]
    other: list[Command] = [PutKVConfig("m", "k", "v"), DeleteKVConfig("m", "k")]
    assert digest_after(*one) != digest_after(*other)


def test_the_order_of_a_topic_table_does_not_matter() -> None:
    one = register("b", 0, "m:1", topics=["T", "U", "V"])
    assert digest_after(one) == digest_after(register("b", 0, "m:1", topics=["V", "T", "U"]))


def test_the_way_to_a_state_does_not_matter() -> None:
    digests = set()
    for ids in ((0, 1, 2), (2, 0, 1)):
        for names in (("a", "b"), ("b", "a")):
            state = RouteInfoManager()
            state.apply(RegisterTopic("none", ()), 1)
            for name in names:
                for broker_id in ids:
                    state.apply(register(name, broker_id, f"{name}{broker_id}:1"), 1)
            tables = state._tables
            # values that intentionally differ between the ways are left out of the comparison
            for group in tables.groups.values():
                group.generation = 0
                for member in list(group.members.values()):
                    tables.load_registration(group, member._replace(epoch=0))
            tables.revisions_sum = 0
            digests.add(state.digest())
    assert len(digests) == 1


STEPS: list[Callable[[], Command]] = [
    lambda: register("big", 0, "big:1", topics=[f"t{i}" for i in range(100)]),
    lambda: register("big", 0, "big:1", version=2, topics={"t3": queues(4), "more": queues()}),
    lambda: register("big", 0, "big:1", version=3, topics={"t3": queues()}),
    lambda: DeleteTopic("t7", None),
    lambda: register("big", 0, "big:1", version=3, topics=["t7"]),
    lambda: ChangeWritePerm("big", writable=False),
    lambda: RegisterTopic("t9", (("big", queues(7)), ("b", queues(7)))),
    lambda: unregister("big", 0, "big:1"),
    lambda: register("big", 0, "big:1", topics=["t1", "t2"]),
    lambda: PutKVConfig("n", "k", "w"),
    lambda: register("b", 0, "m:1", version=9, topics=["T"], mappings={"T": mapping("T", "b", epoch=5)}),
]


@pytest.mark.parametrize("every", [1, 2, 3, 100])
def test_how_often_it_is_taken_does_not_matter(every: int) -> None:
    state = populated()
    for number, step in enumerate(STEPS):
        assert state.apply(step(), number).result.changed
        if number % every == 0 or number == len(STEPS) - 1:
            fresh = RouteInfoManager()
            fresh.restore(state.snapshot())
            assert state.digest() == fresh.digest()


@pytest.mark.parametrize("every", [1, 7, 500])
@pytest.mark.parametrize("seed", range(5))
def test_a_state_without_sums_has_the_same_digest(seed: int, every: int) -> None:
    rng, state, summed = Random(seed), RouteInfoManager(keeps_sums=False), RouteInfoManager()
    for number in range(1, 501):
        command = random_command(rng)
        assert state.apply(command, number) == summed.apply(command, number)
        if number % every == 0:
            while not state.advance_digest(2):
                pass
            assert state.digest() == summed.digest(), (seed, number)


def test_a_digest_without_sums_is_made_in_parts() -> None:
    state = RouteInfoManager(keeps_sums=False)
    for number in range(3):
        state.apply(register(f"b{number}", 0, f"m{number}:1", topics=[f"t{i}" for i in range(10)]), 1)
    assert [state.advance_digest(15) for _ in range(2)] == [False, True]
    state.apply(register("b1", 0, "m1:1", version=2, topics={"t1": queues(4)}), 2)
    assert state.advance_digest(1)


def test_the_way_back_gives_the_sum_of_before() -> None:
    state = RouteInfoManager()
    state.apply(register("b", 0, "m:1", topics=[f"t{i}" for i in range(10)]), 1)
    before = sums(state)
    state.apply(RegisterTopic("t3", (("b", queues(4)),)), 2)
    assert sums(state) != before
    state.apply(RegisterTopic("t3", (("b", queues()),)), 3)
    assert sums(state) == before


def sums(state: RouteInfoManager) -> dict[str, int]:
    """Sums over the queue entries of the groups."""
    return {name: group.topics_sum for name, group in state._tables.groups.items()}


def test_digests_of_another_version_are_others(monkeypatch: pytest.MonkeyPatch) -> None:
    before = digest_after(PutKVConfig("n", "k", "v"))
    monkeypatch.setattr(digest_module, "DIGEST_VERSION", digest_module.DIGEST_VERSION + 1)
    assert digest_after(PutKVConfig("n", "k", "v")) != before

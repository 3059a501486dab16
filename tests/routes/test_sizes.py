"""The size of the state is updated by each command and equals a measurement of the whole state."""

from hypothesis import given
from hypothesis import strategies as st

from replicated_namesrv.routes.commands import Command, DeleteKVConfig, DeleteTopic, PutKVConfig
from replicated_namesrv.routes.sizes import ENTRY_BYTES, Sizes, names_bytes, text_bytes
from replicated_namesrv.routes.state import RouteInfoManager
from tests.routes.strategies import commands
from tests.routes.test_determinism import random_history
from tests.support.routes import mapping, measured, register, unregister


@given(st.lists(commands, max_size=30))
def test_sizes_are_those_of_what_is_held(history: list[Command]) -> None:
    state, twin = RouteInfoManager(), RouteInfoManager()
    for time_ms, command in enumerate(history):
        state.apply(command, time_ms)
        assert state.sizes == measured(state._tables)
    twin.restore(state.snapshot())
    assert twin.sizes == state.sizes


def test_long_histories() -> None:
    for seed in range(5):
        state, twin = RouteInfoManager(), RouteInfoManager()
        for time_ms, command in enumerate(random_history(seed, 400)):
            state.apply(command, time_ms)
        assert state.sizes == measured(state._tables), f"seed {seed}"
        twin.restore(state.snapshot())
        assert twin.sizes == state.sizes, f"seed {seed}"


def test_nothing_is_left_of_a_broker_that_is_gone() -> None:
    state = RouteInfoManager()
    mappings = {"T": mapping("T", "b")}
    state.apply(register("b", 0, "m:1", zone="zone", filters=("f:1", "f:2"), mappings=mappings), 1)
    state.apply(register("b", 0, "m:1", version=2, topics=["T", "V", "W"], ha="other:1"), 2)
    assert state.sizes.brokers.keys() == {"b"}
    assert state.sizes.total > 8 * ENTRY_BYTES
    state.apply(unregister("b", 0, "m:1"), 3)
    assert state.sizes == Sizes()


def test_an_entry_counts_with_its_key_and_value_in_utf_8() -> None:
    state = RouteInfoManager()
    state.apply(PutKVConfig("space", "k\u00e4", "\u20ac\ud800"), 1)
    assert state.sizes.namespaces == {"space": ENTRY_BYTES + 5 + ENTRY_BYTES + 3 + 6}
    assert state.sizes.kv == state.sizes.total == state.sizes.namespaces["space"]
    state.apply(PutKVConfig("space", "k\u00e4", None), 2)
    state.apply(DeleteKVConfig("space", "k\u00e4"), 3)
    assert state.sizes.namespaces == {"space": ENTRY_BYTES + 5}


@given(st.lists(st.text(st.characters()), max_size=5))
def test_names_are_counted_one_by_one(names: list[str]) -> None:
    assert names_bytes(names) == sum(ENTRY_BYTES + text_bytes(name) for name in names)


def test_everything_counts_as_the_page_of_limits_says() -> None:
    """Each object counts 64 bytes plus its texts, each queue of a mapping 16 bytes. The test has these numbers itself, and does
    not use the functions that count."""
    state = RouteInfoManager()

    def growth(command: Command) -> int:
        before = state.sizes.total
        state.apply(command, 1)
        return state.sizes.total - before

    group, broker, cluster = 64 + len("b" + "C"), 64 + len("C" + "b:1" + "b" + "h:1"), 64 + len("C") + 64 + len("b")
    assert growth(register("b", 0, "b:1", topics=["T", "U"])) == group + broker + cluster + 2 * (64 + 1)
    assert growth(register("b", 0, "b:1", version=2, filters=("f:1", "f:22"))) == 64 + len("f:1") + 64 + len("f:22")
    assert growth(register("b", 0, "b:1", version=2, filters=("f:1",))) == -(64 + len("f:22"))
    mapped = register("b", 0, "b:1", version=3, filters=("f:1",), mappings={"T": mapping("T", "b")})
    assert growth(mapped) == 64 + len("T" + "b" + "__global__" + "T") + 2 * 16
    assert growth(register("b", 0, "b:1", version=3, filters=("f:1",), zone="zone")) == len("zone")
    assert growth(PutKVConfig("n", "key", "\u20ac")) == 64 + len("n") + 64 + len("key") + 3
    assert growth(DeleteKVConfig("n", "key")) == -(64 + len("key") + 3)
    assert growth(DeleteTopic("U", None)) == -(64 + 1)
    assert growth(unregister("b", 0, "b:1")) < 0
    assert state.sizes.total == 64 + len("n"), "the namespace stays"

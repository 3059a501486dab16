"""Limits that are checked before a proposal: lengths of texts, and bytes."""

from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicated_namesrv.errors import LimitError
from replicated_namesrv.model import TopicQueueMappingInfo
from replicated_namesrv.routes import quotas as quotas_module
from replicated_namesrv.routes.commands import (
    BrokerRemoval,
    ChangeWritePerm,
    Command,
    DeleteKVConfig,
    DeleteTopic,
    PutKVConfig,
    RegisterTopic,
    UnregisterBrokers,
)
from replicated_namesrv.routes.quotas import (
    BROKER,
    KV,
    NAME_BYTES_MAX,
    NAMESPACE,
    ORDER_TOPICS,
    SETTING_CHARACTERS_MAX,
    STATE,
    VALUE_BYTES_MAX,
    Grant,
    Need,
    Quotas,
)
from replicated_namesrv.routes.sizes import ENTRY_BYTES
from replicated_namesrv.routes.state import RouteInfoManager
from tests.routes.strategies import commands
from tests.support.routes import granted, mapping, queues, register, unregister

PLENTY = 1 << 40


def quotas(state: RouteInfoManager, **limits: int) -> Quotas:
    """Quotas of ``state``; those that are not given are very large."""
    given_limits = dict.fromkeys((STATE, KV, NAMESPACE, BROKER), PLENTY) | limits
    return Quotas({bound: partial(int, limit) for bound, limit in given_limits.items()}, state.needs)


BYTES_OF = {"x": 1, "\u00e4": 2, "\u20ac": 3, "\U0001f600": 4, "\ud800": 3}


def with_field(field: str, text: str) -> Command:
    """A command whose field of that name is ``text``."""
    plain = register("b", 0, "m:1")
    match field:
        case "clusterName":
            return replace(plain, cluster_name=text)
        case "brokerName":
            return replace(plain, broker_name=text)
        case "brokerAddr":
            return replace(plain, broker_addr=text)
        case "haServerAddr":
            return replace(plain, ha_server_addr=text)
        case "zoneName":
            return replace(plain, zone_name=text)
        case "filterServerList":
            return replace(plain, filter_servers=("f:1", text))
        case "topic":
            return replace(plain, topics={"T": queues(), text: queues()})
        case "bname":
            return replace(plain, topic_queue_mapping_infos={"T": mapping("T", "b")._replace(bname=text)})
        case "scope":
            return replace(plain, topic_queue_mapping_infos={"T": mapping("T", "b")._replace(scope=text)})
        case "topic of a mapping":
            return replace(plain, topic_queue_mapping_infos={text: mapping("T", "b")})
        case "topic in a mapping":
            return replace(plain, topic_queue_mapping_infos={"T": mapping("T", "b")._replace(topic=text)})
        case "topic of code 217":
            return RegisterTopic(text, (("b", queues()),))
        case "brokerName of code 217":
            return RegisterTopic("T", ((text, queues()),))
        case "namespace":
            return PutKVConfig(text, "k", "v")
        case "key":
            return PutKVConfig("n", text, "v")
        case "value":
            return PutKVConfig("n", "k", text)
        case "namespace of code 102":
            return DeleteKVConfig(text, "k")
        case "key of code 102":
            return DeleteKVConfig("n", text)
        case "topic of code 216":
            return DeleteTopic(text, None)
        case "clusterName of code 216":
            return DeleteTopic("T", text)
        case "brokerName of code 205":
            return ChangeWritePerm(text, False)
        case "clusterName of code 104":
            return UnregisterBrokers((BrokerRemoval(text, "m:1", "b", 0, None),))
        case "brokerAddr of code 104":
            return UnregisterBrokers((BrokerRemoval("C", text, "b", 0, None),))
        case "brokerName of code 104":
            return UnregisterBrokers((BrokerRemoval("C", "m:1", text, 0, None),))
    raise AssertionError(field)


FIELDS = [
    *("clusterName", "brokerName", "brokerAddr", "haServerAddr", "zoneName", "filterServerList", "topic", "bname", "scope"),
    *("topic of a mapping", "topic in a mapping", "topic of code 217", "brokerName of code 217", "namespace", "key", "value"),
    *("namespace of code 102", "key of code 102", "topic of code 216", "clusterName of code 216", "brokerName of code 205"),
    *("clusterName of code 104", "brokerAddr of code 104", "brokerName of code 104"),
]


@pytest.mark.parametrize("character", BYTES_OF)
@pytest.mark.parametrize("field", FIELDS)
def test_texts_are_taken_up_to_their_limit_and_no_further(field: str, character: str) -> None:
    limit = VALUE_BYTES_MAX if field == "value" else NAME_BYTES_MAX
    most = limit // BYTES_OF[character]
    state = RouteInfoManager()
    admission = quotas(state)
    granted(admission, with_field(field, character * most)).release()
    with pytest.raises(LimitError) as refused:
        granted(admission, with_field(field, character * (most + 1)))
    name = field.split(" ")[0]
    assert refused.value.limit == name
    assert str(refused.value).startswith(f"{name} has {(most + 1) * BYTES_OF[character]} bytes, at most {limit} are allowed")
    assert len(str(refused.value)) < 500
    assert refused.value.definite
    assert admission.refused == {name: 1}


def test_every_text_of_a_registration_has_a_limit() -> None:
    """This test fails for a new text without a check."""
    info = TopicQueueMappingInfo("b4", ((0, 0),), False, 1, "scope", "T5", 4)
    command = register("b", 0, "m:1", zone="zone", filters=("f:1",), topics=["T1", "T2"], mappings={"T3": info})
    found = set(texts_of(command))
    assert found == {"C", "b", "m:1", "h:1", "zone", "f:1", "T1", "T2", "T3", "b4", "scope", "T5"}
    for text in found:
        longer = with_other_text(command, text, "\u00b6" * NAME_BYTES_MAX)
        with pytest.raises(LimitError):
            granted(quotas(RouteInfoManager()), longer)


def texts_of(value: Any) -> Iterator[str]:
    """All texts in a command, as deep as they are."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from texts_of((*value.keys(), *value.values()))
    elif isinstance(value, tuple):
        for part in value:
            yield from texts_of(part)
    elif is_dataclass(value):
        yield from texts_of(tuple(getattr(value, field.name) for field in fields(value)))


def with_other_text(value: Any, text: str, other: str) -> Any:
    """``value`` with ``other`` wherever ``text`` stands."""
    if isinstance(value, str):
        return other if value == text else value
    if isinstance(value, dict):
        return {with_other_text(key, text, other): with_other_text(part, text, other) for key, part in value.items()}
    if isinstance(value, tuple):
        parts = [with_other_text(part, text, other) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{field.name: with_other_text(getattr(value, field.name), text, other) for field in fields(value)})
    return value


def test_what_is_there_can_be_removed_however_long_it_is() -> None:
    """An earlier version took texts of any length."""
    long = "x" * 100_000
    state = RouteInfoManager()
    state.apply(PutKVConfig(long, long, long), 1)
    state.apply(register(long, 0, long, cluster=long, topics=["T", long], ha=long), 2)
    admission = quotas(state, maxStateBytes=1, maxKvBytes=1, maxKvNamespaceBytes=1, maxBrokerBytes=1)
    for command in (
        DeleteKVConfig(long, long),
        DeleteTopic(long, long),
        ChangeWritePerm(long, False),
        unregister(long, 0, long, cluster=long),
    ):
        granted(admission, command).release()
        state.apply(command, 3)
    assert not state.registrations()
    assert admission.refused == {}


@given(st.lists(commands, max_size=12), commands)
def test_no_command_adds_more_than_was_granted(history: list[Command], command: Command) -> None:
    state = RouteInfoManager()
    for time_ms, earlier in enumerate(history):
        state.apply(earlier, time_ms)
    check_growth(state, command)


@pytest.mark.parametrize(
    "command",
    [
        register("b", 0, "b:1", version=2, ha="a-longer-address:1"),
        register("b", 0, "b:1", version=2, filters=("f:1",)),
        register("b", 0, "b:1", version=2, zone="a-zone"),
        register("other", 0, "b:1", version=2),
        register("b", 1, "b:1", version=2),
    ],
    ids=["address", "filter-servers", "zone", "name", "id"],
)
def test_a_registered_broker_adds_no_more_than_was_granted(command: Command) -> None:
    state = RouteInfoManager()
    state.apply(register("b", 0, "b:1"), 1)
    check_growth(state, command)


def check_growth(state: RouteInfoManager, command: Command) -> None:
    """Apply ``command``, and compare the growth with the needs before."""
    needs = {(need.bound, need.of): need for need in state.needs(command) if isinstance(need, Need)}
    before = used_by_place(state)
    state.apply(command, 99)
    growth = {place: size - before.get(place, 0) for place, size in used_by_place(state).items()}
    mapped = {info.bname for info in getattr(command, "topic_queue_mapping_infos", {}).values()}
    for place, grown in growth.items():
        if place[0] == BROKER and place[1] in mapped:
            continue  # a mapping counts for its broker name, and is granted to the one that announces it
        assert grown <= (needs[place].more if place in needs else 0), place
    for place, need in needs.items():
        assert need.more > 0
        assert need.used == before.get(place, 0)


def used_by_place(state: RouteInfoManager) -> dict[tuple[str, str], int]:
    """Bytes in use, by bound and by the namespace or broker name that the bound concerns."""
    sizes = state.sizes
    used = {(STATE, ""): sizes.total, (KV, ""): sizes.kv, (ORDER_TOPICS, ""): sizes.order_topics}
    used |= {(NAMESPACE, name): size for name, size in sizes.namespaces.items()}
    return used | {(BROKER, name): size for name, size in sizes.brokers.items()}


def entry_bytes(key: str, value: str) -> int:
    return ENTRY_BYTES + len(key) + len(value)


@pytest.mark.parametrize("bound", [STATE, KV, NAMESPACE])
def test_kv_entries_are_taken_up_to_the_last_byte(bound: str) -> None:
    room = ENTRY_BYTES + len("space") + 3 * entry_bytes("k1", "value")
    state = RouteInfoManager()
    admission = quotas(state, **{bound: room})
    for number in range(3):
        command = PutKVConfig("space", f"k{number}", "value")
        granted(admission, command).release()
        state.apply(command, 1)
    assert admission.used(state.sizes)[bound] == room
    granted(admission, PutKVConfig("space", "k1", "other"))
    granted(admission, PutKVConfig("space", "k1", "less"))
    for command in (PutKVConfig("space", "k1", "longer"), PutKVConfig("space", "k3", "")):
        with pytest.raises(LimitError, match=f"{bound} is {room}: {room} bytes.* are in use and this adds") as refused:
            granted(admission, command)
        assert refused.value.limit == bound
    assert admission.refused == {bound: 2}
    state.apply(DeleteKVConfig("space", "k0"), 2)
    granted(admission, PutKVConfig("space", "k3", "value"))


def test_what_is_under_way_counts() -> None:
    state = RouteInfoManager()
    admission = quotas(state, maxKvBytes=ENTRY_BYTES + 1 + 2 * (ENTRY_BYTES + 1 + 100) + ENTRY_BYTES + 1)
    first, second = (granted(admission, PutKVConfig("n", key, "v" * 100)) for key in "ab")
    with pytest.raises(LimitError):
        granted(admission, PutKVConfig("n", "c", "v" * 100))
    second.hold()
    second.release()
    with pytest.raises(LimitError):
        granted(admission, PutKVConfig("n", "c", "v" * 100))
    second.release()
    third = granted(admission, PutKVConfig("n", "c", "v" * 100))
    state.apply(PutKVConfig("n", "a", "v" * 100), 1)
    first.release()
    third.release()
    assert (admission._pending.bytes, admission._pending.objects) == ({}, {})
    granted(admission, PutKVConfig("n", "b", "v" * 100))


SMALL = {
    "KV_NAMESPACES_MAX": 2,
    "KV_KEYS_MAX": 3,
    "CLUSTERS_MAX": 3,
    "CLUSTERS_OF_NAME_MAX": 2,
    "BROKER_NAMES_MAX": 3,
    "BROKERS_MAX": 4,
    "MEMBERS_MAX": 2,
    "QUEUE_SETTINGS_MAX": 3,
    "TOPICS_MAX": 4,
    "ALL_TOPICS_MAX": 6,
    "MAPPINGS_MAX": 3,
}
"""Bounds on numbers of objects that random commands reach."""


@st.composite
def additions(draw: st.DrawFn) -> Command:
    """A command that removes nothing. The cluster determines the broker's id, so no broker replaces another one."""
    if draw(st.booleans()):
        return draw(st.builds(PutKVConfig, st.sampled_from("abcd"), st.sampled_from("jklmno"), st.just("v")))
    topics = draw(st.dictionaries(st.sampled_from("rstuvwxyz"), st.integers(1, 5).map(queues), max_size=5))
    name, cluster = draw(st.sampled_from("bcde")), draw(st.integers(0, 3))
    if draw(st.booleans()) and topics:
        topic, queue_data = topics.popitem()
        return RegisterTopic(topic, ((name, queue_data),))
    infos = {topic: mapping(topic, name) for topic in topics} if draw(st.booleans()) else {}
    version, address = draw(st.integers(0, 99)), f"{name}:{cluster}"
    return register(name, cluster, address, cluster=f"C{cluster}", version=version, topics=topics, mappings=infos)


def check_numbers(state: RouteInfoManager) -> None:
    """Backups may have more keys in a namespace, so ``check_numbers`` of the state does not count these."""
    state.check_numbers()
    assert all(len(entries) <= quotas_module.KV_KEYS_MAX for entries in state.kv_table().values())


@pytest.mark.slow
@given(st.lists(st.tuples(additions(), st.integers(0, 4)), max_size=30))
def test_numbers_stay_within_their_bounds_whatever_is_under_way(run: list[tuple[Command, int]]) -> None:
    """Each command is granted at once, and applied when up to four later ones have been granted."""
    state = RouteInfoManager()
    admission, waiting = quotas(state), list[tuple[Command, Grant]]()
    with ExitStack() as bounds:
        for bound, most in SMALL.items():
            bounds.enter_context(patch.object(quotas_module, bound, most))
        bounds.enter_context(patch.object(quotas_module, "RESTORED_FACTOR", 1))
        for command, later in run:
            with suppress(LimitError):
                waiting.append((command, granted(admission, command)))
            while len(waiting) > later:
                command, grant = waiting.pop(0)
                state.apply(command, 1)
                grant.release()
                check_numbers(state)
        for command, grant in waiting:
            state.apply(command, 2)
            grant.release()
            check_numbers(state)
    assert (admission._pending.bytes, admission._pending.objects) == ({}, {})


def test_topics_of_a_broker_name_that_is_under_way_count() -> None:
    """Code 217 may name a broker whose registration was granted and is not applied yet."""
    state = RouteInfoManager()
    admission = quotas(state, maxBrokerBytes=1_000)
    granted(admission, register("b", 0, "b:1"))
    taken = 0
    with suppress(LimitError):
        for number in range(20):
            granted(admission, RegisterTopic(f"topic-{number}", (("b", queues()), ("c", queues()))))
            taken += 1
    assert 0 < taken < 20
    assert admission.refused == {BROKER: 1}


def test_topics_that_many_brokers_add_at_once_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas_module, "ALL_TOPICS_MAX", 5)
    state = RouteInfoManager()
    admission = quotas(state)
    grants = [granted(admission, register(f"b{number}", 0, f"m:{number}", topics="abcde")) for number in range(9)]
    with pytest.raises(LimitError, match="there would be 6 different topics, at most 5 are allowed"):
        granted(admission, register("c", 0, "c:1", topics="af"))
    state.apply(register("b0", 0, "m:0", topics="abcde"), 1)
    granted(admission, register("c", 0, "c:1", topics="ab")).release()
    for grant in grants:
        grant.release()
    assert admission.refused == {"topics": 1}
    state.apply(DeleteTopic("a", None), 2)
    granted(admission, register("c", 0, "c:1", topics="bf"))


def test_a_broker_name_has_its_own_bound_over_all_registrations() -> None:
    state = RouteInfoManager()
    admission = quotas(state, maxBrokerBytes=30_000)
    for version in range(8):
        command = register("b", 0, "m:1", version=version, topics=[f"topic-{version}-{number}" for number in range(50)])
        granted(admission, command).release()
        state.apply(command, 1)
    with pytest.raises(LimitError, match="bytes of broker 'b' are in use"):
        granted(admission, register("b", 0, "m:1", version=9, topics=[f"topic-9-{number}" for number in range(50)]))
    assert state.sizes.brokers["b"] <= 30_000
    granted(admission, register("c", 0, "m:2")).release()
    unchanged = register("b", 0, "m:1", version=99, topics=["topic-0-0", "topic-1-1"])
    granted(admission, unchanged).release()


def test_a_full_state_keeps_its_brokers_and_takes_no_new_ones() -> None:
    state = RouteInfoManager()
    for number in range(5):
        state.apply(register(f"b{number}", 0, f"m:{number}"), 1)
    admission = quotas(state, maxStateBytes=state.sizes.total - 1)
    for number in range(5):
        granted(admission, register(f"b{number}", 0, f"m:{number}", version=2)).release()
    with pytest.raises(LimitError, match="maxStateBytes"):
        granted(admission, register("b5", 0, "m:5"))
    with pytest.raises(LimitError, match="maxStateBytes"):
        granted(admission, RegisterTopic("new", (("b0", queues()),)))


def test_a_whole_state_is_held_against_every_bound() -> None:
    state = RouteInfoManager()
    state.apply(register("b", 0, "m:1"), 1)
    state.apply(PutKVConfig("n", "k", "v"), 2)
    held = state.sizes
    used = quotas(state).used(held)
    del used[ORDER_TOPICS]  # not checked: a cluster above this limit works
    for bound, size in used.items():
        quotas(state, **{bound: size}).check_whole(held)
        with pytest.raises(LimitError, match=bound):
            quotas(state, **{bound: size - 1}).check_whole(held)


def test_values_of_settings_have_a_limit() -> None:
    admission = quotas(RouteInfoManager())
    admission.check_settings({"nameServerAddresses": "x" * SETTING_CHARACTERS_MAX})
    with pytest.raises(LimitError, match="setting 'nameServerAddresses' has 65537 characters"):
        admission.check_settings({"nameServerAddresses": "x" * (SETTING_CHARACTERS_MAX + 1)})
    assert admission.refused == {"setting": 1}


def test_topics_of_a_slave_count_if_they_may_be_taken() -> None:
    state = RouteInfoManager()
    state.apply(register("b", 0, "b:1"), 1)
    slave = register("b", 1, "b:2", topics=["T", "U", "of the slave alone"])
    state.apply(slave, 2)
    assert not state.apply(slave, 3).result.changed
    full = quotas(state, maxStateBytes=state.sizes.total, maxBrokerBytes=0)
    granted(full, slave).release()
    acting = register("b", 1, "b:2", topics=["T", "U", "of the slave alone"], acting_master=True)
    with pytest.raises(LimitError, match="maxBrokerBytes"):
        granted(full, acting)
    granted(full, register("b", 1, "b:2", topics=["T", "U"], acting_master=True)).release()

"""Limits that are checked before a proposal, and that ``apply`` does not check."""

import pytest

from replicated_namesrv.errors import LimitError
from replicated_namesrv.model import PERM_READ, PERM_WRITE, QueueData, TopicQueueMappingInfo
from replicated_namesrv.replication.route_machine import RouteStateMachine, encode_expire, encode_lead
from replicated_namesrv.routes import quotas
from replicated_namesrv.routes.commands import (
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
from replicated_namesrv.routes.quotas import with_own_mappings
from replicated_namesrv.routes.state import TOPICS_PER_HOLDER, TOPICS_PER_QUEUE_DATA, RouteInfoManager, RouteSettings
from tests.support.log_entries import encoded
from tests.support.routes import granted, mapping, queues, register, unregister

UNLIMITED = dict.fromkeys((quotas.STATE, quotas.KV, quotas.NAMESPACE, quotas.BROKER), lambda: 1 << 40)


def told(state: RouteInfoManager, command: Command) -> str:
    """Why the command is refused; empty: it is accepted."""
    try:
        granted(quotas.Quotas(UNLIMITED, state.needs), command)
    except LimitError as error:
        return str(error)
    return ""


def test_no_more_namespaces_than_allowed_emptied_ones_included(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "KV_NAMESPACES_MAX", 2)
    state = RouteInfoManager()
    for command in (PutKVConfig("a", "k", "v"), PutKVConfig("b", "k", "v"), DeleteKVConfig("b", "k")):
        assert not told(state, command)
        state.apply(command, 1)
    refused = told(state, PutKVConfig("c", "k", "v"))
    assert refused == "there would be 3 KV namespaces, at most 2 are allowed; use one of those that exist"
    assert not told(state, PutKVConfig("b", "k", "v"))
    assert not told(state, DeleteKVConfig("c", "k"))
    assert state.apply(PutKVConfig("c", "k", "v"), 2).result.changed, "what is in the log is applied"


def test_no_more_keys_in_a_namespace_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "KV_KEYS_MAX", 2)
    state = RouteInfoManager()
    for key in "ab":
        assert not told(state, PutKVConfig("n", key, "v"))
        state.apply(PutKVConfig("n", key, "v"), 1)
    refused = told(state, PutKVConfig("n", "c", "v"))
    remedy = "delete those that are not needed, or use another namespace"
    assert refused == f"namespace n would have 3 keys, at most 2 are allowed; {remedy}"
    assert not told(state, PutKVConfig("n", "b", "w"))
    assert not told(state, PutKVConfig("m", "c", "v"))
    assert state.apply(PutKVConfig("n", "c", "v"), 2).result.changed, "what is in the log is applied"
    assert not told(state, PutKVConfig("n", "c", "w"))
    state.check_numbers()  # a backup of it can be restored
    state.apply(DeleteKVConfig("n", "a"), 3)
    state.apply(DeleteKVConfig("n", "b"), 4)
    assert not told(state, PutKVConfig("n", "a", "v"))


def test_no_more_brokers_of_one_name_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "MEMBERS_MAX", 2)
    state = RouteInfoManager()
    for broker_id in range(2):
        state.apply(register("b", broker_id, f"b{broker_id}:1"), 1)
    assert "brokerName b would have 3 brokers, at most 2 are allowed" in told(state, register("b", 2, "b2:1"))
    assert not told(state, register("b", 1, "b1:1", version=2))
    assert not told(state, register("c", 2, "b2:1"))


def test_a_broker_name_is_listed_in_no_more_clusters_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the last broker of the name is removed, the name is removed from all clusters in one step. So clusters count as
    topics."""
    monkeypatch.setattr(quotas, "CLUSTERS_OF_NAME_MAX", 2)
    state = RouteInfoManager()
    for cluster in "CD":
        assert not told(state, register("b", 0, "b:1", cluster=cluster))
        state.apply(register("b", 0, "b:1", cluster=cluster), 1)
    refused = told(state, register("b", 0, "b:1", cluster="E"))
    assert "brokerName b would have 3 clusters, at most 2 are allowed; unregister those that are gone" in refused
    assert not told(state, register("b", 1, "b:2", cluster="C"))
    assert not told(state, register("c", 0, "c:1", cluster="E"))
    assert state.topics_concerned(unregister("b", 0, "b:1")) == state.removal_topics("b") == 2 + 2 * 8
    state.apply(unregister("b", 0, "b:1", cluster="none"), 2)
    assert not told(state, register("b", 0, "b:1", cluster="E"))


def test_no_more_different_queue_settings_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "QUEUE_SETTINGS_MAX", 3)
    state = RouteInfoManager()
    state.apply(register("b", 0, "b:1", topics={f"t{number}": QueueData(6, 8, 0, number) for number in range(2)}), 1)
    assert not told(state, register("b", 0, "b:1", version=2, topics=[f"u{number}" for number in range(9)]))
    three = {f"u{number}": QueueData(6, 8, 0, number) for number in range(1, 4)}
    assert "brokerName b would have 4 different combinations of perm" in told(state, register("b", 0, "b:1", topics=three))
    assert not told(state, register("c", 0, "c:1", topics=three))
    assert not told(state, RegisterTopic("t0", (("b", QueueData(6, 8, 0, 2)),)))
    state.apply(RegisterTopic("t0", (("b", QueueData(6, 8, 0, 2)), ("b", QueueData(6, 8, 0, 3)))), 2)
    state.apply(RegisterTopic("t9", (("b", QueueData(6, 8, 0, 0)),)), 2)
    assert "would have 4 different" in told(state, RegisterTopic("t1", (("b", QueueData(6, 8, 0, 4)),)))


def test_a_broker_with_a_new_name_concerns_the_topics_of_the_earlier_one() -> None:
    state = RouteInfoManager()
    state.apply(register("a", 0, "b:1", topics=[f"T{number}" for number in range(20)]), 1)
    renamed = register("b", 0, "b:1", topics=())
    assert state.topics_concerned(renamed) == state.removal_topics("a") > 20
    state.apply(renamed, 2)
    assert state.topics_concerned(renamed) == 0


def test_changes_of_one_topic_concern_every_name_that_has_it() -> None:
    state = RouteInfoManager()
    for number in range(9):
        state.apply(register(f"b{number}", 0, f"b{number}:1", topics=("T", "V")), 1)
    route = tuple((f"b{number}", QueueData(6, 4, 0, 4)) for number in range(9))
    assert state.topics_concerned(RegisterTopic("new", route)) == 9 * TOPICS_PER_QUEUE_DATA
    assert state.topics_concerned(DeleteTopic("T", None)) == 9 * TOPICS_PER_HOLDER
    assert state.topics_concerned(DeleteTopic("U", None)) == 0


def test_no_more_brokers_in_one_topic_route_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "TOPIC_BROKERS_MAX", 2)
    state = RouteInfoManager()
    route = [(name, QueueData(6, 4, 0, 4)) for name in "abc"]
    assert not told(state, RegisterTopic("T", tuple(route[:2])))
    admission = quotas.Quotas(UNLIMITED, state.needs)
    with pytest.raises(LimitError, match="the route names 3 brokers, at most 2 are allowed"):
        admission.check(RegisterTopic("T", tuple(route)))
    assert admission.refused == {"brokersOfTopic": 1}


@pytest.mark.parametrize("acting_master", [False, True])
def test_topics_of_a_slave_count_before_it_is_the_least_of_its_name(acting_master: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """While registrations of slaves wait, the master may unregister. Then each slave may be the least when it is applied."""
    monkeypatch.setattr(quotas, "TOPICS_MAX", 4)
    state = RouteInfoManager()
    admission = quotas.Quotas(UNLIMITED, state.needs)
    state.apply(register("b", 0, "b:0", topics="TU"), 1)
    slaves = [register("b", number, f"b:{number}", topics=f"{number}x", acting_master=acting_master) for number in (3, 2, 1)]
    granted(admission, slaves[0])
    for slave in slaves[1:]:
        with pytest.raises(LimitError, match="would have 5 topics, at most 4 are allowed"):
            granted(admission, slave)
    assert not told(state, register("b", 9, "b:9", topics="TU", acting_master=acting_master)), "it has its master's topics"
    assert not told(state, register("b", 9, "b:9", topics="vwxyz")), "it can never act as master"


def test_settings_without_write_permission_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slave that acts as master stores its topics without the permission to write."""
    monkeypatch.setattr(quotas, "QUEUE_SETTINGS_MAX", 3)
    state = RouteInfoManager()
    kinds = {f"T{number}": QueueData(PERM_READ | PERM_WRITE, number, 0, number) for number in (1, 2)}
    state.apply(register("b", 0, "b:0", topics=kinds), 1)
    assert not told(state, register("b", 0, "b:0", version=2, topics=kinds))
    assert "would have 4 different combinations" in told(state, register("b", 1, "b:1", topics=kinds, acting_master=True))
    for acting in (False, True):
        own = {f"T{number}": QueueData(PERM_READ | PERM_WRITE, number, 0, number) for number in (1, 2, 3)}
        assert not told(RouteInfoManager(), register("b", 1, "b:1", topics=own, acting_master=acting)), "only one form is stored"


def test_mappings_of_other_names_are_left_out() -> None:
    infos: dict[str, TopicQueueMappingInfo] = {"T": mapping("T", "b"), "U": mapping("U", "other"), "V": mapping("V", "")}
    command = register("b", 0, "b:1", mappings=infos)
    assert with_own_mappings(command).topic_queue_mapping_infos == {"T": mapping("T", "b")}
    plain = register("b", 0, "b:1", mappings={"T": mapping("T", "b")})
    assert with_own_mappings(plain) is plain


@pytest.mark.parametrize(
    ("limit", "other", "why"),
    [
        ("CLUSTERS_MAX", register("b", 0, "b:2", cluster="D"), "there would be 3 clusters, at most 2 are allowed"),
        ("BROKER_NAMES_MAX", register("c", 0, "c:1"), "there would be 3 broker names, at most 2 are allowed"),
        ("BROKERS_MAX", register("b", 1, "b:2"), "there would be 3 brokers, at most 2 are allowed"),
    ],
)
def test_no_more_names_and_brokers_than_allowed(
    monkeypatch: pytest.MonkeyPatch, limit: str, other: RegisterBroker, why: str
) -> None:
    """Names of refused registrations count, too, although they have no registered broker."""
    monkeypatch.setattr(quotas, limit, 2)
    state = RouteInfoManager()
    state.apply(register("b", 0, "b:1"), 1)
    assert not told(state, other)
    second = register("a", 0, "a:1", cluster="A", topics=["T", "U"] if limit == "BROKERS_MAX" else ["T"])
    state.apply(second, 1)
    assert why in told(state, other)
    assert not told(state, register("b", 0, "b:1", version=2))
    assert not told(state, second)
    state.apply(unregister("a", 0, "a:1", cluster="A"), 2)
    assert not told(state, other)


def test_no_more_mappings_in_one_registration_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    state = RouteInfoManager()
    two = register("b", 0, "b:1", mappings={topic: mapping(topic, "b") for topic in "TU"})
    assert not told(state, two)
    monkeypatch.setattr(quotas, "MAPPED_QUEUES_MAX", 3)
    assert "has 2 static topic mappings with 4 queues, at most 10000 with 3 are allowed" in told(state, two)
    monkeypatch.undo()
    monkeypatch.setattr(quotas, "MAPPINGS_MAX", 1)
    assert "has 2 static topic mappings with 4 queues, at most 1 with 100000 are allowed" in told(state, two)


@pytest.mark.parametrize(
    ("bound", "held", "why"),
    [
        ("KV_NAMESPACES_MAX", 2, "2 KV namespaces, at most 1 are allowed"),
        ("CLUSTERS_MAX", 2, "2 clusters, at most 1 are allowed"),
        ("BROKER_NAMES_MAX", 2, "2 broker names, at most 1 are allowed"),
        ("BROKERS_MAX", 4, "4 brokers, at most 3 are allowed"),
        ("CLUSTERS_OF_NAME_MAX", 1, "1 clusters of brokerName b, at most 0 are allowed"),
        ("MEMBERS_MAX", 3, "3 brokers of brokerName b, at most 2 are allowed"),
        ("QUEUE_SETTINGS_MAX", 2, "2 combinations of queue settings of brokerName b, at most 1 are allowed"),
        ("MAPPED_QUEUES_MAX", 2, "2 queues in a static topic mapping of brokerName b, at most 1 are allowed"),
        ("TOPICS_MAX", 2, "2 topics of brokerName b, at most 1 are allowed"),
        ("ALL_TOPICS_MAX", 3, "3 different topics, at most 2 are allowed"),
    ],
)
def test_a_whole_state_has_no_more_of_anything_than_commands_may_add(
    monkeypatch: pytest.MonkeyPatch, bound: str, held: int, why: str
) -> None:
    state = RouteInfoManager()
    for broker_id in range(3):
        topics = {f"t{number}": QueueData(6, 8, 0, number) for number in range(2)}
        state.apply(register("b", broker_id, f"b{broker_id}:1", topics=topics, mappings={"t0": mapping("t0", "b")}), 1)
    state.apply(register("d", 0, "d:1", cluster="D", topics=["t0", "u"]), 1)
    for namespace in "ab":
        state.apply(PutKVConfig(namespace, "k", "v"), 1)
    state.check_numbers()
    monkeypatch.setattr(quotas, "RESTORED_FACTOR", 1)
    monkeypatch.setattr(quotas, bound, held)
    state.check_numbers()
    monkeypatch.setattr(quotas, bound, held - 1)
    with pytest.raises(LimitError, match=why):
        state.check_numbers()


def test_a_broker_name_has_no_more_topics_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "TOPICS_MAX", 3)
    state = RouteInfoManager()
    four = register("b", 0, "b:1", topics="abcd")
    assert "brokerName b would have 4 topics, at most 3 are allowed" in told(state, four)
    assert not told(state, register("b", 0, "b:1", topics="abc"))
    state.apply(register("b", 0, "b:1", topics="abc"), 1)
    assert not told(state, register("b", 0, "b:1", version=2, topics="abc")), "it adds none"
    assert not told(state, register("b", 1, "b:2", topics="abcd")), "topics of a slave are not taken"
    assert "would have 5 topics" in told(state, register("b", 0, "b:1", version=2, topics="de"))
    assert not told(state, RegisterTopic("c", (("b", queues(4)),)))
    assert not told(state, RegisterTopic("d", (("unknown", queues()),)))
    assert "would have 4 topics" in told(state, RegisterTopic("d", (("b", queues()),)))
    assert not told(state, register("c", 0, "c:1", topics="de"))
    state.apply(UpdateSettings({"delete_topic_with_broker_registration": True}), 2)
    assert not told(state, register("b", 0, "b:1", version=2, topics="def")), "they replace the others"
    assert "would have 4 topics" in told(state, register("b", 0, "b:1", version=2, topics="abcd"))
    with_mapping = register("b", 0, "b:1", version=2, topics="def", mappings={"d": mapping("d", "b")})
    assert "would have 6 topics" in told(state, with_mapping), "then none is dropped"
    state.apply(DeleteTopic("a", None), 3)
    assert not told(state, RegisterTopic("d", (("b", queues()),)))


def test_a_broker_name_has_no_more_mappings_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "MAPPINGS_MAX", 3)
    state = RouteInfoManager()

    def announced(topics: str, epoch: int = 1) -> RegisterBroker:
        return register("b", 0, "b:1", version=epoch, topics="ab", mappings={each: mapping(each, "b", epoch) for each in topics})

    assert "the registration has 4 static topic mappings" in told(state, announced("abcd"))
    assert not told(state, announced("abc"))
    state.apply(announced("abc"), 1)
    assert not told(state, announced("abc", 2))
    assert "would have 4 static topic mappings, at most 3 are allowed" in told(state, announced("cd", 2))
    state.apply(unregister("b", 0, "b:1"), 2)
    assert not told(state, announced("def", 3))


def test_all_brokers_have_no_more_different_topics_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "ALL_TOPICS_MAX", 3)
    state = RouteInfoManager()
    state.apply(register("b", 0, "b:1", topics="abc"), 1)
    assert not told(state, register("c", 0, "c:1", topics="abc"))
    assert "there would be 4 different topics, at most 3 are allowed" in told(state, register("c", 0, "c:1", topics="cd"))
    assert "there would be 4 different topics" in told(state, RegisterTopic("d", (("b", queues()),)))
    assert not told(state, RegisterTopic("c", (("b", queues(4)),)))
    state.apply(DeleteTopic("a", None), 2)
    assert not told(state, register("c", 0, "c:1", topics="cd"))


@pytest.mark.parametrize("by", ["broker", "expiry", "topic"])
def test_a_state_beyond_the_bounds_opens_and_can_be_removed(monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    """Versions before took up to 200,000 topics in one registration, and any number under one name."""
    machine = RouteStateMachine()
    machine.apply(encode_lead(RouteSettings(), 1, 1))
    topics = [f"t{number}" for number in range(9)]
    large = register("b", 0, "b:1", topics=topics, mappings={topic: mapping(topic, "b") for topic in topics})
    log = [encoded(machine, large, 1), encoded(machine, ChangeWritePerm("b", False), 2)]
    monkeypatch.setattr(quotas, "TOPICS_MAX", 4)
    monkeypatch.setattr(quotas, "ALL_TOPICS_MAX", 4)
    monkeypatch.setattr(quotas, "MAPPINGS_MAX", 4)
    for entry in log:
        machine.apply(entry)
    opened = RouteStateMachine()
    restoration = opened.restore()
    for chunk in machine.snapshot():
        restoration.feed(chunk)
    restoration.finish()
    assert opened.digest() == machine.digest()
    state = opened.state
    assert len(state.all_topics()) == 9
    assert state.route("t8") is not None
    held = state.registration("C", "b:1")
    assert held is not None
    unchanged = register("b", 0, "b:1", topics=topics)
    assert not told(state, unchanged), "it stays registered"
    assert told(state, register("b", 0, "b:1", version=2, topics=["new", "t1"]))
    removals: list[Command] = [unregister("b", 0, "b:1")]
    if by == "topic":
        removals = [DeleteTopic(topic, None) for topic in topics] + removals
    for removal in removals:
        assert not told(state, removal)
        entry = encoded(opened, removal, 9)
        if by == "expiry":
            assert isinstance(removal, UnregisterBrokers)
            fenced = unregister("b", 0, "b:1", epoch=held.epoch)
            entry = encode_expire(fenced, 9, 1, opened.serial, is_lost=False)
        assert opened.apply(entry).result.changed
    assert not state.all_topics()
    assert not state.registrations()
    assert state.sizes.total == 0

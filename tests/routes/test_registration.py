"""Registration, rule by rule: ``RouteInfoManager.registerBroker`` and ``registerTopic`` of RocketMQ 5.3.3."""

import pytest

from replicated_namesrv.model import QueueData
from replicated_namesrv.routes.commands import ChangeWritePerm, DeleteTopic, RegisterTopic, UpdateSettings
from replicated_namesrv.routes.results import BrokerRemoved, NotifyMinBrokerIdChange
from replicated_namesrv.routes.state import RouteInfoManager, RouteSettings
from tests.support.routes import mapping, queues, register, unregister


def addresses(state: RouteInfoManager, name: str) -> dict[int, str]:
    """Members of a group as cluster info shows them."""
    return dict({group.broker_name: group.broker_addrs for group in state.cluster_info().broker_addr_table}[name])


def stored(state: RouteInfoManager, topic: str) -> QueueData:
    """Queue settings of a topic of broker b."""
    found = state.topic_queues(topic)
    assert found is not None
    return found["b"]


CHANGED = {"T": QueueData(4, 16, 3, 4), "U": queues()}
"""Another content of topic T, and a new topic."""


def perms(state: RouteInfoManager, topic: str) -> dict[str, int]:
    """Permission of a topic by broker name."""
    route = state.route(topic)
    assert route is not None
    return {name: queue_data.perm for name, queue_data in route.queue_datas}


class TestSingleTopicGuard:
    """``!brokerAddrsMap.containsKey(brokerId) && topicConfigTable.size() == 1`` returns null."""

    def test_a_single_topic_before_the_first_full_registration_is_refused(self) -> None:
        state = RouteInfoManager()
        result = state.apply(register("b", 0, "m:1", topics=["T"]), 1).result
        assert (result.code, result.remark, result.epoch) == (1, "register broker failed", None)
        assert state.route("T") is None
        assert state.registration("C", "m:1") is None

    def test_what_was_done_before_the_refusal_stays_visible(self) -> None:
        state = RouteInfoManager()
        assert state.apply(register("b", 0, "m:1", topics=["T"], acting_master=True), 1).result.changed
        info = state.cluster_info()
        assert info.cluster_addr_table == (("C", ("b",)),)
        assert addresses(state, "b") == {}
        assert info.broker_addr_table[0].enable_acting_master
        assert not state.apply(register("b", 0, "m:1", topics=["T"], acting_master=True), 2).result.changed

    def test_none_or_two_topics_pass(self) -> None:
        for topics in ([], ["T", "U"]):
            state = RouteInfoManager()
            assert state.apply(register("b", 0, "m:1", topics=topics), 1).result.code == 0
            assert addresses(state, "b") == {0: "m:1"}
            assert state.all_topics() == topics

    def test_a_table_of_null_registers_nothing_and_is_no_error(self) -> None:
        state = RouteInfoManager()
        result = state.apply(register("b", 0, "m:1", topics=None), 1).result
        assert (result.code, result.epoch) == (0, None)
        assert addresses(state, "b") == {}

    def test_a_refused_switch_of_id_ends_the_old_registration_as_a_whole(self) -> None:
        state = RouteInfoManager()
        epoch = state.apply(register("b", 1, "s:1"), 1).result.epoch
        assert epoch is not None
        applied = state.apply(register("b", 0, "s:1", topics=["T"]), 2)
        assert applied.result.code == 1
        assert addresses(state, "b") == {}
        assert state.registration("C", "s:1") is None
        assert applied.effects == (BrokerRemoved("C", "s:1", "b", epoch),)


class TestTopics:
    """Topics that a registration adds, changes and leaves unchanged (``isTopicConfigChanged``, ``createAndUpdateQueueData``)."""

    def test_an_increment_does_not_delete(self) -> None:
        state = RouteInfoManager()
        state.apply(register("b", 0, "m:1", version=1), 1)
        state.apply(register("b", 0, "m:1", version=2, topics=["V"]), 2)
        assert state.all_topics() == ["T", "U", "V"]

    def test_an_increment_deletes_with_delete_topic_with_broker_registration(self) -> None:
        state = RouteInfoManager(RouteSettings(delete_topic_with_broker_registration=True))
        state.apply(register("b", 0, "m:1", version=1), 1)
        state.apply(register("a", 0, "n:1", topics=["T", "W"]), 1)
        state.apply(register("b", 0, "m:1", version=2, topics=["V"]), 2)
        assert state.all_topics() == ["T", "W", "V"] == list(state.topic_revisions)
        assert perms(state, "T") == {"a": 6}

    def test_static_topics_are_not_deleted(self) -> None:
        state = RouteInfoManager(RouteSettings(delete_topic_with_broker_registration=True))
        state.apply(register("b", 0, "m:1"), 1)
        state.apply(register("b", 0, "m:1", version=2, topics=["V"], mappings={"V": mapping("V", "b")}), 2)
        assert state.all_topics() == ["T", "U", "V"]

    def test_a_deleted_topic_comes_back_with_an_unchanged_data_version(self) -> None:
        state = RouteInfoManager()
        state.apply(register("b", 0, "m:1"), 1)
        state.apply(DeleteTopic("T", None), 2)
        assert state.route("T") is None
        assert state.apply(register("b", 0, "m:1"), 3).result.changed
        assert perms(state, "T") == {"b": 6}

    def test_version_0_1_stored_a_changed_topic_only_with_a_changed_data_version(self) -> None:
        state = RouteInfoManager()
        state.compares_content = False
        state.apply(register("b", 0, "m:1"), 1)
        changed = {"T": QueueData(4, 16, 3, 4), "U": queues()}
        assert not state.apply(register("b", 0, "m:1", topics=changed), 2).result.changed
        state.apply(register("b", 0, "m:1", topics=changed, version=2), 3)
        assert stored(state, "T") == QueueData(4, 16, 3, 4)

    def test_a_slave_of_an_old_broker_adds_no_topics(self) -> None:
        state = RouteInfoManager()
        state.apply(register("b", 0, "m:1"), 1)
        state.apply(register("b", 1, "s:1", topics=["X", "Y"]), 2)
        assert state.all_topics() == ["T", "U"]

    def test_a_lone_slave_by_its_acting_master_flag(self) -> None:
        expected: dict[bool | None, dict[str, int]] = {None: {}, False: {"b": 6}, True: {"b": 4}}
        for flag, routed in expected.items():
            state = RouteInfoManager()
            state.apply(register("b", 1, "s:1", acting_master=flag), 1)
            assert ({} if state.route("T") is None else perms(state, "T")) == routed

    def test_only_the_slave_of_least_id_adds_topics(self) -> None:
        state = RouteInfoManager()
        state.apply(register("b", 1, "s:1", acting_master=False), 1)
        state.apply(register("b", 2, "s:2", acting_master=False, topics=["X", "Y"]), 2)
        assert state.all_topics() == ["T", "U"]

    def test_perm_of_system_topic_under_an_acting_master_keeps_other_bits(self) -> None:
        state = RouteInfoManager()
        state.apply(register("b", 1, "s:1", acting_master=True, topics={"TBW102": queues(7), "T": queues(1)}), 1)
        assert (perms(state, "TBW102"), perms(state, "T")) == ({"b": 5}, {"b": 1})


class TestOneVersion:
    """Every row of the table in registration.py: other content under a new data version, and under the stored one."""

    @pytest.mark.parametrize("broker_id", [0, 1])
    def test_a_new_version_replaces(self, broker_id: int) -> None:
        state = RouteInfoManager()
        state.apply(register("b", broker_id, "m:1", acting_master=False), 1)
        state.apply(ChangeWritePerm("b", False), 2)
        state.apply(register("b", broker_id, "m:1", acting_master=False, topics=CHANGED, version=2), 3)
        assert (stored(state, "T"), stored(state, "U")) == (CHANGED["T"], queues())

    def test_batches_of_one_version(self) -> None:
        state = RouteInfoManager()
        state.apply(register("b", 0, "m:1", topics=["A", "B", "T", "U"]), 1)
        state.apply(register("b", 0, "m:1", topics=["A", "B"], version=2), 2)
        batch = register("b", 0, "m:1", topics=CHANGED, version=2, mappings={"T": mapping("T", "b")})
        assert state.unchanged_result(batch) is None
        assert state.apply(batch, 3).result.changed
        assert stored(state, "T") == CHANGED["T"]
        route = state.route("T")
        assert route is not None
        assert route.topic_queue_mapping_by_broker == (("b", mapping("T", "b")),)
        assert state.unchanged_result(batch) == state.apply(batch, 4).result
        state.apply(register("b", 0, "m:1", topics=["A", "B"], version=2), 5)
        assert stored(state, "T") == CHANGED["T"], "the other topics stay"

    @pytest.mark.parametrize(
        "override",
        [ChangeWritePerm("b", False), RegisterTopic("T", (("b", queues(4)),)), RegisterTopic("T", (("b", queues(5)),))],
    )
    def test_a_wiped_permission_stays(self, override: ChangeWritePerm | RegisterTopic) -> None:
        state = RouteInfoManager()
        state.apply(register("b", 0, "m:1"), 1)
        state.apply(override, 2)
        overridden = stored(state, "T")
        assert not state.apply(register("b", 0, "m:1"), 3).result.changed
        state.apply(register("b", 0, "m:1", topics=["V"], version=2), 4)
        assert not state.apply(register("b", 0, "m:1", version=2), 5).result.changed, "after an increment, too"
        assert stored(state, "T") == overridden
        state.apply(register("b", 0, "m:1", topics=["U", "V"], version=3), 6)
        state.apply(register("b", 0, "m:1", version=3), 7)
        assert stored(state, "T") == queues(), "the second batch of a new version"

    def test_a_permission_added_stays(self) -> None:
        state = RouteInfoManager()
        state.apply(register("b", 0, "m:1", topics={"T": queues(4), "U": queues(4)}), 1)
        state.apply(ChangeWritePerm("b", True), 2)
        state.apply(register("b", 0, "m:1", topics={"T": queues(4), "U": queues(4)}), 3)
        assert stored(state, "T") == queues(6)

    def test_an_acting_slave_adds_only(self) -> None:
        state = RouteInfoManager()
        state.apply(register("b", 1, "s:1", acting_master=True), 1)
        state.apply(register("b", 1, "s:1", acting_master=True, topics={**CHANGED, "V": queues(4)}), 2)
        assert (stored(state, "T"), stored(state, "V")) == (queues(4), queues(4))

    def test_a_new_master_makes_all_batches_writable(self) -> None:
        """The permission that a group loses with its master is not an override."""
        state = RouteInfoManager()
        for broker_id in (0, 1):
            state.apply(register("b", broker_id, f"m:{broker_id}", acting_master=True, topics=["A", "B", "T", "U"]), 1)
        state.apply(unregister("b", 0, "m:0"), 2)
        assert stored(state, "T") == queues(4)
        state.apply(register("b", 0, "m:1", acting_master=True, topics=["A", "B"]), 3)
        state.apply(register("b", 0, "m:1", acting_master=True), 4)
        assert {stored(state, topic) for topic in ("A", "B", "T", "U")} == {queues(6)}

    def test_an_override_is_part_of_digest_and_snapshot(self) -> None:
        state, other = RouteInfoManager(), RouteInfoManager()
        for one in (state, other):
            one.apply(register("b", 0, "m:1"), 1)
        state.apply(ChangeWritePerm("b", False), 2)
        other.apply(register("b", 0, "m:1", topics=dict.fromkeys(["T", "U"], queues(4))), 2)
        assert state.route("T") == other.route("T")
        assert state.digest() != other.digest()
        lines = list(state.snapshot())
        copy = RouteInfoManager()
        copy.restore(lines)
        assert (copy.digest(), list(copy.snapshot())) == (state.digest(), lines)
        assert not copy.apply(register("b", 0, "m:1"), 3).result.changed


class TestAddresses:
    """An address has one id, an id has one address, and there is no registration without both."""

    def test_a_slave_becomes_master_at_its_address(self) -> None:
        state = RouteInfoManager()
        state.apply(register("b", 0, "m:1", ha="hm:1"), 1)
        result = state.apply(register("b", 1, "s:1"), 2).result
        assert (result.master_addr, result.ha_server_addr) == ("m:1", "hm:1")
        applied = state.apply(register("b", 0, "s:1"), 3)
        assert applied.result.master_addr is None
        assert addresses(state, "b") == {0: "s:1"}

    def test_the_replaced_address_is_no_longer_registered(self) -> None:
        state = RouteInfoManager()
        epoch = state.apply(register("b", 0, "m:1"), 1).result.epoch
        assert epoch is not None
        applied = state.apply(register("b", 0, "x:1"), 2)
        assert state.registration("C", "m:1") is None
        assert applied.effects == (BrokerRemoved("C", "m:1", "b", epoch),)

    def test_an_older_state_version_does_not_take_an_id(self) -> None:
        state = RouteInfoManager()
        state.apply(register("b", 0, "m:1", state_version=5), 1)
        refused = state.apply(register("b", 0, "x:1", state_version=4), 2)
        assert (refused.result.code, refused.result.epoch, refused.result.changed) == (0, None, False)
        assert addresses(state, "b") == {0: "m:1"}
        assert state.registration("C", "x:1") is None
        state.apply(register("b", 0, "x:1", state_version=5), 3)
        assert addresses(state, "b") == {0: "x:1"}

    def test_a_fenced_switch_of_id_still_leaves_the_old_id(self) -> None:
        state = RouteInfoManager()
        state.apply(register("b", 0, "m:1", state_version=5), 1)
        state.apply(register("b", 1, "s:1", state_version=4), 2)
        state.apply(register("b", 0, "s:1", state_version=4), 3)
        assert addresses(state, "b") == {0: "m:1"}
        assert state.registration("C", "s:1") is None

    def test_an_address_belongs_to_the_name_it_registered_last(self) -> None:
        state = RouteInfoManager()
        state.apply(register("old", 0, "m:1"), 1)
        applied = state.apply(register("new", 0, "m:1", topics=["V", "W"]), 2)
        info = state.cluster_info()
        assert [group.broker_name for group in info.broker_addr_table] == ["new"]
        assert info.cluster_addr_table == (("C", ("new",)),)
        assert state.all_topics() == ["V", "W"]
        assert applied.effects == ()

    def test_one_name_in_two_clusters_is_one_group_of_the_first(self) -> None:
        state = RouteInfoManager()
        state.apply(register("b", 0, "m:1", cluster="C1"), 1)
        result = state.apply(register("b", 1, "s:1", cluster="C2"), 2).result
        assert result.master_addr is None
        info = state.cluster_info()
        assert info.broker_addr_table[0][:3] == ("C1", "b", ((0, "m:1"), (1, "s:1")))
        assert info.cluster_addr_table == (("C1", ("b",)), ("C2", ("b",)))
        state.apply(unregister("b", 1, "s:1", cluster="C2"), 3)
        assert state.cluster_info().cluster_addr_table == (("C1", ("b",)), ("C2", ("b",)))
        state.apply(unregister("b", 0, "m:1", cluster="C1"), 4)
        assert state.cluster_info() == ((), ())

    def test_a_member_of_another_cluster_can_be_removed(self) -> None:
        state = RouteInfoManager()
        state.apply(register("b", 0, "m:1", cluster="C1"), 1)
        epoch = state.apply(register("b", 1, "s:1", cluster="C2"), 2).result.epoch
        state.apply(unregister("b", 1, "s:1", cluster="C2", epoch=epoch), 3)
        assert addresses(state, "b") == {0: "m:1"}
        assert state.registration("C2", "s:1") is None


class TestLiveEntry:
    """The content of ``brokerLiveTable`` and ``filterServerTable``."""

    def test_defaults_and_replacement(self) -> None:
        state = RouteInfoManager()
        state.apply(register("b", 0, "m:1", filters=("f:1",)), 7)
        first = state.registration("C", "m:1")
        assert first is not None
        assert (first.heartbeat_timeout_ms, first.filter_servers, first.since_ms) == (120_000, ("f:1",), 7)
        state.apply(register("b", 0, "m:1", filters=None, timeout_ms=10_000, ha="h:2", version=2), 8)
        second = state.registration("C", "m:1")
        assert second is not None
        assert (second.heartbeat_timeout_ms, second.filter_servers, second.since_ms) == (10_000, ("f:1",), 7)
        assert (second.ha_server_addr, second.data_version.timestamp, second.epoch) == ("h:2", 2, first.epoch)

    def test_filter_servers_show_in_routes_until_an_empty_list(self) -> None:
        state = RouteInfoManager()
        state.apply(register("b", 0, "m:1", filters=("f:1", "f:2")), 1)
        route = state.route("T")
        assert route is not None
        assert route.filter_server_table == (("m:1", ("f:1", "f:2")),)
        before = state.topic_revisions["T"]
        state.apply(register("b", 0, "m:1", filters=()), 2)
        route = state.route("T")
        assert route is not None
        assert route.filter_server_table == ()
        assert state.topic_revisions["T"] > before


class TestMinBrokerIdPush:
    """``notifyMinBrokerIdChanged`` on registration: the others are notified of a smaller id."""

    def test_a_returning_master_is_told_to_the_others(self) -> None:
        state = RouteInfoManager(RouteSettings(notify_min_broker_id_changed=True))
        assert state.apply(register("b", 2, "s2:1", acting_master=True), 1).effects == ()
        assert state.apply(register("b", 3, "s3:1", acting_master=True), 2).effects == ()
        effects = state.apply(register("b", 0, "m:1", acting_master=True, ha="new:1"), 3).effects
        assert effects == (NotifyMinBrokerIdChange(("s2:1", "s3:1"), 0, "m:1", None, "new:1"),)
        assert state.apply(register("b", 0, "m:1", acting_master=True, ha="new:1"), 4).effects == ()

    def test_a_lone_member_that_takes_a_smaller_id_hears_it_itself(self) -> None:
        state = RouteInfoManager(RouteSettings(notify_min_broker_id_changed=True))
        state.apply(register("b", 3, "s:1"), 1)
        effects = state.apply(register("b", 1, "s:1"), 2).effects
        assert effects == (NotifyMinBrokerIdChange(("s:1",), 1, "s:1", None, "h:1"),)

    def test_off_by_default(self) -> None:
        state = RouteInfoManager()
        state.apply(register("b", 3, "s:1"), 1)
        assert state.apply(register("b", 0, "m:1"), 2).effects == ()


class TestWritePermission:
    """How long changes by 205 and 327 stay in force."""

    def test_until_the_data_version_changes(self) -> None:
        state = RouteInfoManager()
        state.apply(register("b", 0, "m:1"), 1)
        assert state.apply(ChangeWritePerm("b", writable=False), 2).result.count == 2
        assert not state.apply(register("b", 0, "m:1"), 3).result.changed
        assert perms(state, "T") == {"b": 4}
        state.apply(register("b", 0, "m:1", version=2), 4)
        assert perms(state, "T") == {"b": 6}


class TestRegisterTopic:
    """``registerTopic`` (217)."""

    def test_a_new_topic_is_all_or_nothing(self) -> None:
        state = RouteInfoManager()
        state.apply(register("b", 0, "m:1"), 1)
        assert state.apply(RegisterTopic("N", (("b", queues()), ("unknown", queues()))), 2).result.code == 0
        assert state.route("N") is None
        state.apply(RegisterTopic("N", (("b", queues()),)), 3)
        assert perms(state, "N") == {"b": 6}

    def test_a_known_topic_is_taken_up_to_the_first_unknown_broker(self) -> None:
        state = RouteInfoManager()
        for name, addr in (("a", "a:1"), ("b", "b:1"), ("c", "c:1")):
            state.apply(register(name, 0, addr, topics=[f"{name}1", f"{name}2"]), 1)
        state.apply(RegisterTopic("a1", (("b", queues(4)), ("unknown", queues()), ("c", queues()))), 2)
        assert perms(state, "a1") == {"a": 6, "b": 4}

    def test_of_a_broker_named_twice_the_last_counts(self) -> None:
        state = RouteInfoManager()
        state.apply(register("b", 0, "m:1"), 1)
        twice = RegisterTopic("T", (("b", queues(4)), ("b", queues())))
        assert not state.apply(twice, 2).result.changed

    def test_without_queues_nothing_happens(self) -> None:
        state = RouteInfoManager()
        assert not state.apply(RegisterTopic("N", ()), 1).result.changed


def test_settings_change_at_run_time_and_unknown_names_are_ignored() -> None:
    """Flags are read per request in Java (``NamesrvConfig``); code 318 ignores unknown keys."""
    state = RouteInfoManager()
    state.apply(register("b", 0, "m:1"), 1)
    before = state.topic_revisions["T"]
    assert state.apply(UpdateSettings({"order_message_enable": True, "none_such": True}), 2).result.changed
    assert state.settings == RouteSettings(order_message_enable=True)
    assert state.topic_revisions["T"] > before
    assert not state.apply(UpdateSettings({"order_message_enable": True}), 3).result.changed

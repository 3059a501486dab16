"""Removal and its fences: ``unRegisterBroker``, ``deleteTopic`` and the write permission, RocketMQ 5.3.3."""

from replicated_namesrv.routes.commands import BrokerRemoval, ChangeWritePerm, DeleteTopic, UnregisterBrokers
from replicated_namesrv.routes.results import BrokerRemoved, NotifyMinBrokerIdChange
from replicated_namesrv.routes.state import RouteInfoManager, RouteSettings
from tests.routes.test_registration import addresses, perms
from tests.support.routes import mapping, queues, register, unregister


def epoch_of(state: RouteInfoManager, addr: str, cluster: str = "C") -> int:
    """Epoch of a registered broker."""
    registration = state.registration(cluster, addr)
    assert registration is not None
    return registration.epoch


class TestUnregister:
    """Code 104 without a fence is Java's."""

    def test_the_last_member_takes_everything_with_it(self) -> None:
        state = RouteInfoManager()
        state.apply(register("b", 0, "m:1", mappings={"T": mapping("T", "b")}), 1)
        epoch = epoch_of(state, "m:1")
        applied = state.apply(unregister("b", 0, "m:1"), 2)
        assert applied.effects == (BrokerRemoved("C", "m:1", "b", epoch),)
        assert state.cluster_info() == ((), ())
        assert state.all_topics() == [] == list(state.topic_revisions)
        state.apply(register("b", 0, "m:1"), 3)
        route = state.route("T")
        assert route is not None
        assert route.topic_queue_mapping_by_broker is None

    def test_by_address_whatever_the_id(self) -> None:
        state = RouteInfoManager()
        state.apply(register("b", 0, "m:1"), 1)
        state.apply(unregister("b", 7, "m:1"), 2)
        assert state.cluster_info() == ((), ())

    def test_another_address_changes_nothing(self) -> None:
        state = RouteInfoManager()
        state.apply(register("b", 0, "m:1"), 1)
        assert not state.apply(unregister("b", 0, "other:1"), 2).result.changed
        assert addresses(state, "b") == {0: "m:1"}

    def test_a_wrong_cluster_removes_the_broker_and_its_name(self) -> None:
        state = RouteInfoManager()
        state.apply(register("b", 0, "m:1"), 1)
        state.apply(register("b", 1, "s:1", cluster="D"), 1)
        state.apply(unregister("b", 1, "s:1", cluster="WRONG"), 2)
        assert state.cluster_info().cluster_addr_table == (("C", ("b",)), ("D", ("b",)))
        state.apply(unregister("b", 0, "m:1", cluster="WRONG"), 2)
        assert state.cluster_info() == ((), ())

    def test_in_version_0_1_a_wrong_cluster_leaves_the_name_listed(self) -> None:
        state = RouteInfoManager()
        state.compares_content = False
        state.apply(register("b", 0, "m:1"), 1)
        state.apply(unregister("b", 0, "m:1", cluster="WRONG"), 2)
        assert state.cluster_info() == ((), (("C", ("b",)),))
        assert state.registration("C", "m:1") is None
        assert state.topics_by_cluster("C") == []
        assert not state.apply(unregister("b", 0, "m:1"), 3).result.changed
        state.compares_content = True
        assert state.apply(unregister("b", 0, "any:1", cluster="ANY"), 4).result.changed, "it can be removed now"
        assert state.cluster_info() == ((), ())

    def test_a_wrong_name_changes_nothing(self) -> None:
        state = RouteInfoManager()
        state.apply(register("b", 0, "m:1"), 1)
        state.apply(register("a", 0, "n:1"), 1)
        assert not state.apply(unregister("a", 0, "m:1"), 2).result.changed
        assert not state.apply(unregister("unknown", 0, "m:1"), 3).result.changed

    def test_topics_stay_while_a_member_is_left(self) -> None:
        state = RouteInfoManager()
        state.apply(register("b", 0, "m:1"), 1)
        state.apply(register("b", 1, "s:1"), 2)
        state.apply(unregister("b", 0, "m:1"), 3)
        assert perms(state, "T") == {"b": 6}

    def test_a_group_that_a_refused_registration_left_can_be_removed(self) -> None:
        state = RouteInfoManager()
        state.apply(register("b", 0, "m:1", topics=["T"]), 1)
        state.apply(unregister("b", 0, "m:1"), 2)
        assert state.cluster_info() == ((), ())


class TestActingMaster:
    """A group without master is made read-only and shows its least id as master (``cleanTopicByUnRegisterRequests``)."""

    def state(self) -> RouteInfoManager:
        state = RouteInfoManager(RouteSettings(support_acting_master=True, notify_min_broker_id_changed=True))
        topics = {"T": queues(), "rmq_sys_SYNC_BROKER_MEMBER_b": queues()}
        for broker_id, addr in ((0, "m:1"), (2, "s2:1"), (3, "s3:1")):
            state.apply(register("b", broker_id, addr, acting_master=True, topics=topics), 1)
        return state

    def shown(self, state: RouteInfoManager, topic: str) -> dict[int, str]:
        route = state.route(topic)
        assert route is not None
        return dict(route.broker_datas[0].broker_addrs)

    def test_the_master_leaves_and_returns(self) -> None:
        state = self.state()
        epoch = epoch_of(state, "m:1")
        effects = state.apply(unregister("b", 0, "m:1"), 2).effects
        push = NotifyMinBrokerIdChange(("s2:1", "s3:1"), 2, "s2:1", "m:1", None)
        assert effects == (push, BrokerRemoved("C", "m:1", "b", epoch))
        assert self.shown(state, "T") == {0: "s2:1", 3: "s3:1"}
        assert self.shown(state, "rmq_sys_SYNC_BROKER_MEMBER_b") == {2: "s2:1", 3: "s3:1"}
        assert perms(state, "T") == {"b": 4}
        assert addresses(state, "b") == {2: "s2:1", 3: "s3:1"}
        state.apply(register("b", 0, "m:1", acting_master=True), 3)
        assert self.shown(state, "T") == {0: "m:1", 2: "s2:1", 3: "s3:1"}
        assert perms(state, "T") == {"b": 6}

    def test_ids_stay_ascending_under_an_acting_master(self) -> None:
        state = RouteInfoManager(RouteSettings(support_acting_master=True))
        for broker_id, addr in ((-1, "s1:1"), (-2, "s2:1"), (5, "s5:1")):
            state.apply(register("b", broker_id, addr, acting_master=True), 1)
        route = state.route("T")
        assert route is not None
        assert route.broker_datas[0].broker_addrs == ((-1, "s1:1"), (0, "s2:1"), (5, "s5:1"))

    def test_a_writable_topic_has_no_acting_master(self) -> None:
        state = self.state()
        state.apply(unregister("b", 0, "m:1"), 2)
        state.apply(ChangeWritePerm("b", writable=True), 3)
        assert self.shown(state, "T") == {2: "s2:1", 3: "s3:1"}

    def test_a_group_without_master_is_made_read_only_by_any_unfenced_removal(self) -> None:
        state = self.state()
        state.apply(unregister("b", 0, "m:1"), 2)
        state.apply(ChangeWritePerm("b", writable=True), 3)
        assert not state.apply(unregister("b", 0, "unknown:1", epoch=1), 4).result.changed
        assert state.apply(unregister("b", 0, "unknown:1"), 5).effects == ()
        assert perms(state, "T") == {"b": 4}

    def test_a_push_is_for_groups_with_acting_master_and_for_the_least_id(self) -> None:
        state = RouteInfoManager(RouteSettings(notify_min_broker_id_changed=True))
        for broker_id, addr in ((0, "m:1"), (1, "s:1"), (2, "s:2")):
            state.apply(register("b", broker_id, addr), 1)
        assert len(state.apply(unregister("b", 0, "m:1"), 2).effects) == 1
        state = self.state()
        assert len(state.apply(unregister("b", 0, "s3:1"), 2).effects) == 1
        assert len(state.apply(unregister("b", 7, "m:1"), 3).effects) == 2

    def test_a_batch_is_settled_once(self) -> None:
        state = self.state()
        removals = (BrokerRemoval("C", "m:1", "b", 0, None), BrokerRemoval("C", "s2:1", "b", 2, None))
        pushes = [e for e in state.apply(UnregisterBrokers(removals), 2).effects if isinstance(e, NotifyMinBrokerIdChange)]
        assert pushes == [NotifyMinBrokerIdChange(("s3:1",), 3, "s3:1", "s2:1", None)]

    def test_no_push_for_a_group_that_is_gone(self) -> None:
        state = self.state()
        removals = tuple(BrokerRemoval("C", addr, "b", 0, None) for addr in ("m:1", "s2:1", "s3:1"))
        effects = state.apply(UnregisterBrokers(removals), 2).effects
        assert [type(effect) for effect in effects] == [BrokerRemoved] * 3


class TestFence:
    """A removal with an epoch ends only the registration with this epoch."""

    def test_a_notice_of_an_earlier_life_does_nothing(self) -> None:
        state = RouteInfoManager()
        state.apply(register("b", 0, "m:1"), 1)
        earlier = epoch_of(state, "m:1")
        state.apply(unregister("b", 0, "m:1", epoch=earlier), 2)
        state.apply(register("b", 0, "m:1"), 3)
        later = epoch_of(state, "m:1")
        assert later > earlier
        late = state.apply(unregister("b", 0, "m:1", epoch=earlier), 4)
        assert not late.result.changed
        assert late.effects == ()
        assert state.apply(unregister("b", 0, "m:1", epoch=later), 5).result.changed

    def test_a_change_of_id_or_name_begins_a_life(self) -> None:
        state = RouteInfoManager()
        epochs = [
            state.apply(register(name, broker_id, "x:1"), 1).result.epoch for name, broker_id in (("b", 1), ("b", 0), ("a", 0))
        ]
        assert epochs == sorted({epoch for epoch in epochs if epoch is not None})
        for stale in epochs[:-1]:
            assert not state.apply(unregister("b", 0, "x:1", epoch=stale), 2).result.changed

    def test_new_content_is_the_same_life(self) -> None:
        state = RouteInfoManager()
        first = state.apply(register("b", 0, "m:1"), 1).result
        again = state.apply(register("b", 0, "m:1"), 2).result
        other = state.apply(register("b", 0, "m:1", version=2, ha="h:2", timeout_ms=5), 3).result
        assert (first.changed, again.changed, other.changed) == (True, False, True)
        assert first.epoch == again.epoch == other.epoch

    def test_an_epoch_is_of_one_broker(self) -> None:
        state = RouteInfoManager()
        state.apply(register("a", 0, "a:1"), 1)
        state.apply(register("b", 0, "m:1"), 1)
        state.apply(register("b", 1, "s:1"), 2)
        of_another = unregister("b", 0, "m:1", epoch=epoch_of(state, "s:1"))
        under_another_name = unregister("a", 0, "m:1", epoch=epoch_of(state, "m:1"))
        in_another_cluster = unregister("b", 0, "m:1", epoch=epoch_of(state, "m:1"), cluster="D")
        for removal in (of_another, under_another_name, in_another_cluster):
            assert not state.apply(removal, 3).result.changed

    def test_a_refused_registration_has_no_epoch(self) -> None:
        state = RouteInfoManager()
        assert state.apply(register("b", 0, "m:1", topics=["T"]), 1).result.epoch is None


class TestDeleteTopic:
    """Code 216."""

    def state(self) -> RouteInfoManager:
        state = RouteInfoManager()
        state.apply(register("a", 0, "a:1", cluster="C1"), 1)
        state.apply(register("b", 0, "b:1", cluster="C2"), 1)
        return state

    def test_everywhere(self) -> None:
        for cluster in (None, ""):
            state = self.state()
            state.apply(DeleteTopic("T", cluster), 2)
            assert state.all_topics() == ["U"] == list(state.topic_revisions)

    def test_in_one_cluster(self) -> None:
        state = self.state()
        assert not state.apply(DeleteTopic("T", "none"), 2).result.changed
        state.apply(DeleteTopic("T", "C1"), 3)
        assert perms(state, "T") == {"b": 6}
        state.apply(DeleteTopic("T", "C2"), 4)
        assert state.route("T") is None

    def test_a_deleted_static_topic_keeps_its_mapping(self) -> None:
        state = RouteInfoManager()
        static = register("b", 0, "m:1", mappings={"T": mapping("T", "b")})
        state.apply(static, 1)
        state.apply(DeleteTopic("T", None), 2)
        state.apply(static, 3)
        route = state.route("T")
        assert route is not None
        assert route.topic_queue_mapping_by_broker == (("b", mapping("T", "b")),)


class TestChangeWritePerm:
    """Codes 205 and 327."""

    def test_wipe_clears_a_bit_and_add_sets_six(self) -> None:
        state = RouteInfoManager()
        state.apply(register("b", 0, "m:1", topics={"T": queues(7), "U": queues(4)}), 1)
        assert state.apply(ChangeWritePerm("b", writable=False), 2).result.count == 2
        assert (perms(state, "T"), perms(state, "U")) == ({"b": 5}, {"b": 4})
        unchanged = state.apply(ChangeWritePerm("b", writable=False), 3).result
        assert (unchanged.count, unchanged.changed) == (2, False)
        assert state.apply(ChangeWritePerm("b", writable=True), 4).result.count == 2
        assert (perms(state, "T"), perms(state, "U")) == ({"b": 6}, {"b": 6})

    def test_an_unknown_broker_counts_none(self) -> None:
        assert RouteInfoManager().apply(ChangeWritePerm("b", writable=True), 1).result.count == 0

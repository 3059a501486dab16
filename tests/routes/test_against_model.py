"""RouteInfoManager compared with the plain model, command by command: its answers and its other promises."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from replicated_namesrv.model import BrokerData, TopicRouteData
from replicated_namesrv.routes.commands import BrokerRemoval, Command, RegisterBroker, UnregisterBrokers
from replicated_namesrv.routes.encoding import decode_command, encode_command
from replicated_namesrv.routes.results import Result
from replicated_namesrv.routes.state import RouteInfoManager, RouteSettings
from tests.routes.model import PlainModel
from tests.routes.strategies import CLUSTERS, TOPICS, commands, registrations, settings_values


def copy_of(state: RouteInfoManager) -> RouteInfoManager:
    """An equal state that went through a snapshot."""
    twin = RouteInfoManager()
    twin.restore(state.snapshot())
    return twin


def nested(route: TopicRouteData | None) -> dict[str, Any] | None:
    """A route in the model's form."""
    if route is None:
        return None
    mappings = route.topic_queue_mapping_by_broker
    assert mappings is None or mappings
    return {
        "queues": dict(route.queue_datas),
        "groups": {
            b.broker_name: (b.cluster, dict(b.broker_addrs), b.zone_name, b.enable_acting_master) for b in route.broker_datas
        },
        "filters": dict(route.filter_server_table),
        "mappings": dict(mappings or ()),
        "order": route.order_topic_conf,
    }


class AgainstModel(RuleBasedStateMachine):
    """Every command goes to the model and to the real tables. Every answer is compared."""

    @initialize(values=settings_values)
    def start(self, values: dict[str, bool]) -> None:
        self.state = RouteInfoManager(RouteSettings(**values))
        self.model = PlainModel(RouteSettings(**values))
        self.time_ms = 0
        self.last: RegisterBroker | None = None
        self.routes: dict[str, tuple[int, TopicRouteData]] = {}
        self.unchanged: list[tuple[RegisterBroker, int, Result]] = []

    def run(self, command: Command) -> Result:
        self.time_ms += 1
        decoded, time_ms = decode_command(encode_command(command, self.time_ms))
        assert (decoded, time_ms) == (command, self.time_ms)
        before = self.state.revision
        result, effects = self.state.apply(decoded, time_ms)
        expected, expected_effects = self.model.apply(command, self.time_ms)
        assert result == expected
        assert set(effects) == expected_effects
        assert len(effects) == len(set(effects))
        assert self.state.revision == before + result.changed == self.model.revision
        return result

    @rule(command=commands)
    def any_command(self, command: Command) -> None:
        self.run(command)

    @rule(registration=registrations)
    def register(self, registration: RegisterBroker) -> None:
        self.last = registration
        self.run(registration)

    @precondition(lambda self: self.last is not None)
    @rule()
    def register_again(self) -> None:
        assert self.last is not None
        self.run(self.last)
        result = self.run(self.last)
        if not result.changed:
            self.unchanged.append((self.last, self.state.group_generation(self.last.broker_name), result))

    @precondition(lambda self: self.state.registrations())
    @rule(data=st.data(), stale=st.booleans())
    def expire(self, data: st.DataObject, stale: bool) -> None:
        held = data.draw(st.sampled_from(self.state.registrations()))
        removal = BrokerRemoval(held.cluster_name, held.broker_addr, held.broker_name, held.broker_id, held.epoch - stale)
        result = self.run(UnregisterBrokers((removal,)))
        assert result.changed is not stale

    @rule()
    def go_on_from_a_snapshot(self) -> None:
        lines = list(self.state.snapshot())
        text = b"".join(lines)
        twin = RouteInfoManager()
        twin.restore([text[i : i + 7] for i in range(0, len(text), 7)])
        assert b"".join(twin.snapshot()) == text
        assert twin.digest() == self.state.digest()
        assert twin.all_topics() == self.state.all_topics()
        assert twin.registrations() == self.state.registrations()
        assert twin.kv_table() == self.state.kv_table()
        assert twin.topic_revisions == self.state.topic_revisions
        self.state = twin

    @precondition(lambda self: self.unchanged)
    @rule(data=st.data())
    def repeat_with_equal_generation(self, data: st.DataObject) -> None:
        registration, generation, result = data.draw(st.sampled_from(self.unchanged))
        if self.state.group_generation(registration.broker_name) == generation:
            assert copy_of(self.state).apply(registration, self.time_ms) == (result, ())

    @invariant()
    def same_routes(self) -> None:
        topics = set(self.state.all_topics())
        assert topics == self.model.topics() == set(self.state.topic_revisions)
        for topic in TOPICS:
            route = self.state.route(topic)
            assert nested(route) == self.model.route(topic)
            if route is not None:
                revision = self.state.topic_revisions[topic]
                assert revision <= self.state.revision
                known = self.routes.get(topic)
                assert known is None or known[0] < revision or known == (revision, route)
                self.routes[topic] = (revision, route)

    @invariant()
    def same_tables(self) -> None:
        state, model = self.state, self.model.state
        info = state.cluster_info()
        assert {(cluster, name) for cluster, listed in info.cluster_addr_table for name in listed} == model.listed
        for group in info.broker_addr_table:
            assert group == self.group(group.broker_name)
            assert state.member_group(group.broker_name) == group.broker_addrs
        assert {group.broker_name for group in info.broker_addr_table} == set(model.groups)
        plain = {
            (b.cluster, b.addr, b.name, b.broker_id, b.epoch, b.data_version, b.timeout_ms, b.ha, b.filters, b.since_ms)
            for b in model.brokers
        }
        assert {tuple(held) for held in state.registrations()} == plain
        assert len({held.epoch for held in state.registrations()}) == len(plain)
        assert state.kv_table() == model.kv
        assert state.settings == model.settings
        for cluster in {*CLUSTERS, "none"}:
            assert set(state.topics_by_cluster(cluster)) == self.model.topics_by_cluster(cluster)
        flags = {topic: self.model.flagged(topic) for topic in self.model.topics()}
        assert set(state.unit_topics()) == {topic for topic, flag in flags.items() if flag & 1}
        assert set(state.has_unit_sub_topics()) == {topic for topic, flag in flags.items() if flag & 2}
        assert set(state.has_unit_sub_un_unit_topics()) == {topic for topic, flag in flags.items() if flag == 2}

    @invariant()
    def digest_forgets_nothing(self) -> None:
        assert self.state.digest() == copy_of(self.state).digest()

    def group(self, name: str) -> BrokerData:
        group = self.model.state.groups[name]
        addrs = sorted((b.broker_id, b.addr) for b in self.model.state.brokers if b.name == name)
        return BrokerData(group.cluster, name, tuple(addrs), group.zone, group.acting_master)


AgainstModel.TestCase.settings = settings(max_examples=100, stateful_step_count=30, deadline=None, print_blob=True)
TestAgainstModel = pytest.mark.slow(AgainstModel.TestCase)

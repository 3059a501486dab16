"""A deliberately plain model of RouteInfoManager: flat lists, linear scans, a copy of everything to see what changed.

It is written from the description of ``RouteInfoManager.java`` 5.3.3 and of the deviations in routes/DESIGN.md, without the
arrangements that make the real one fast; the two share only the types of commands and results.
"""

import copy
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

from replicated_namesrv.model import DataVersion, QueueData, TopicQueueMappingInfo
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
from replicated_namesrv.routes.results import BrokerRemoved, Effect, NotifyMinBrokerIdChange, Result
from replicated_namesrv.routes.state import RouteSettings


@dataclass
class Broker:
    """One registered broker: its place in a group and its live entry in one."""

    cluster: str
    addr: str
    name: str
    broker_id: int
    epoch: int
    data_version: DataVersion
    timeout_ms: int
    ha: str
    filters: tuple[str, ...]
    since_ms: int


@dataclass
class Group:
    """Data of a broker name besides its brokers."""

    cluster: str
    overridden: bool = False
    zone: str | None = None
    acting_master: bool = False


@dataclass
class State:
    """Everything, flat."""

    settings: RouteSettings
    groups: dict[str, Group] = field(default_factory=dict)
    brokers: list[Broker] = field(default_factory=list)
    listed: set[tuple[str, str]] = field(default_factory=set)
    """(cluster, broker name)."""
    queues: dict[tuple[str, str], QueueData] = field(default_factory=dict)
    """Keys are (topic, broker name)."""
    mappings: dict[tuple[str, str], TopicQueueMappingInfo] = field(default_factory=dict)
    """Keys are (topic, broker name)."""
    kv: dict[str, dict[str, str | None]] = field(default_factory=dict)


class PlainModel:
    """Applies commands to a State, one obvious step after another."""

    def __init__(self, settings: RouteSettings) -> None:
        self.state = State(settings)
        self.revision = 0
        self.effects: list[Effect] = []

    def apply(self, command: Command, time_ms: int) -> tuple[Result, set[Effect]]:
        """Apply a command. Returns its result and its effects, the effects as a set because their order does not matter."""
        before = copy.deepcopy(self.state)
        self.effects = []
        result: Result = getattr(self, "_" + type(command).__name__)(command, time_ms)
        self.state.brokers.sort(key=lambda b: (b.cluster, b.addr))
        changed = self.state != before
        if changed:
            self.revision += 1
        here = {(b.cluster, b.addr) for b in self.state.brokers}
        gone = [b for b in before.brokers if (b.cluster, b.addr) not in here]
        removed = {BrokerRemoved(b.cluster, b.addr, b.name, b.epoch) for b in gone}
        return replace(result, changed=changed), {*self.effects, *removed}

    # -- registration, step by step

    def _RegisterBroker(self, c: RegisterBroker, time_ms: int) -> Result:  # noqa: N802 - found by the class name of a command
        s = self.state
        s.listed.add((c.cluster_name, c.broker_name))
        first = c.broker_name not in s.groups
        group = s.groups.setdefault(c.broker_name, Group(c.cluster_name))
        group.acting_master = c.enable_acting_master is True
        group.zone = c.zone_name
        ids = [b.broker_id for b in s.brokers if b.name == c.broker_name]
        min_changed = c.broker_id < min(ids, default=0)
        known = self._broker(c.cluster_name, c.broker_addr)
        old_version = known.data_version if known else None
        old_filters = known.filters if known else ()

        for b in list(s.brokers):
            if b.name == c.broker_name and b.addr == c.broker_addr and b.broker_id != c.broker_id:
                s.brokers.remove(b)
        holder = self._holder(c.broker_name, c.broker_id)
        rival = holder if holder and holder.addr != c.broker_addr and holder.cluster == c.cluster_name else None
        if rival and rival.data_version.state_version > c.data_version.state_version:
            return Result()
        if holder is None:
            if c.topics is None:
                return Result()
            if len(c.topics) == 1:
                return Result(code=1, remark="register broker failed")
            first = True

        broker = Broker(
            c.cluster_name,
            c.broker_addr,
            c.broker_name,
            c.broker_id,
            self.revision + 1,
            c.data_version,
            120_000 if c.heartbeat_timeout_ms is None else c.heartbeat_timeout_ms,
            c.ha_server_addr,
            old_filters if c.filter_servers is None else c.filter_servers,
            time_ms,
        )
        if holder and (holder.cluster, holder.addr) == (c.cluster_name, c.broker_addr):
            broker.epoch, broker.since_ms = holder.epoch, holder.since_ms
        if holder:
            s.brokers.remove(holder)
        elsewhere = self._broker(c.cluster_name, c.broker_addr)
        if elsewhere:
            s.brokers.remove(elsewhere)
            self._after_departure(elsewhere.name)
        s.brokers.append(broker)

        ids = [b.broker_id for b in s.brokers if b.name == c.broker_name]
        prime_slave = c.enable_acting_master is not None and c.broker_id != 0 and c.broker_id == min(ids)
        if c.topics is not None and (c.broker_id == 0 or prime_slave):
            new = first or old_version != c.data_version
            if new and c.broker_id == 0 and len(c.topics) > 1:
                group.overridden = False
            takes_all = new or (c.broker_id == 0 and not group.overridden)
            self._topics(c, takes_all, prime_slave and group.acting_master)
        if min_changed and s.settings.notify_min_broker_id_changed:
            members = sorted((b.broker_id, b.addr) for b in s.brokers if b.name == c.broker_name)
            told = tuple(addr for _, addr in members[1:]) or (members[0][1],)
            self.effects.append(NotifyMinBrokerIdChange(told, *members[0], None, c.ha_server_addr))
        master = self._holder(c.broker_name, 0)
        if c.broker_id != 0 and master and master.cluster == c.cluster_name:
            return Result(master_addr=master.addr, ha_server_addr=master.ha, epoch=broker.epoch)
        return Result(epoch=broker.epoch)

    def _topics(self, c: RegisterBroker, take_all: bool, wipe: bool) -> None:
        s = self.state
        assert c.topics is not None
        if s.settings.delete_topic_with_broker_registration and not c.topic_queue_mapping_infos:
            for topic, name in list(s.queues):
                if name == c.broker_name and topic not in c.topics:
                    del s.queues[topic, name]
        for topic, queue_data in c.topics.items():
            if take_all or (topic, c.broker_name) not in s.queues:
                perm = queue_data.perm & ~2 if wipe else queue_data.perm
                s.queues[topic, c.broker_name] = queue_data._replace(perm=perm)
        if take_all:
            for topic, info in c.topic_queue_mapping_infos.items():
                s.mappings[topic, info.bname] = info

    def _RegisterTopic(self, c: RegisterTopic, time_ms: int) -> Result:  # noqa: N802 - found by the class name of a command
        s = self.state
        known = any(topic == c.topic for topic, _ in s.queues)
        if not known and any(name not in s.groups for name, _ in c.queue_datas):
            return Result()
        accepted = dict(takewhile(lambda entry: entry[0] in s.groups, c.queue_datas))  # the last entry of a name counts
        for name, queue_data in accepted.items():
            if s.queues.get((c.topic, name), queue_data) != queue_data:
                s.groups[name].overridden = True
            s.queues[c.topic, name] = queue_data
        return Result()

    # -- removal

    def _UnregisterBrokers(self, c: UnregisterBrokers, time_ms: int) -> Result:  # noqa: N802 - found by the class name of a command
        s = self.state
        offline: dict[str, str] = {}
        for r in c.removals:
            if r.broker_name not in s.groups:
                continue
            if r.epoch is None:
                found = [b for b in s.brokers if b.name == r.broker_name and b.addr == r.broker_addr]
            else:
                wanted = (r.cluster_name, r.broker_addr, r.broker_name, r.epoch)
                found = [b for b in s.brokers if (b.cluster, b.addr, b.name, b.epoch) == wanted]
            group_ids = [b.broker_id for b in s.brokers if b.name == r.broker_name]
            for b in found:
                if b.broker_id == min(group_ids):
                    offline[b.name] = b.addr
                s.brokers.remove(b)
                self._after_departure(b.name)
            if not found and r.epoch is None:
                self._after_departure(r.broker_name)
        for name, addr in offline.items():
            if s.settings.notify_min_broker_id_changed and name in s.groups and s.groups[name].acting_master:
                members = sorted((b.broker_id, b.addr) for b in s.brokers if b.name == name)
                self.effects.append(NotifyMinBrokerIdChange(tuple(a for _, a in members), *members[0], addr, None))
        return Result()

    def _after_departure(self, name: str) -> None:
        s = self.state
        ids = [b.broker_id for b in s.brokers if b.name == name]
        if not ids:
            del s.groups[name]
            s.queues = {key: value for key, value in s.queues.items() if key[1] != name}
            s.mappings = {key: value for key, value in s.mappings.items() if key[1] != name}
            s.listed = {(c, n) for c, n in s.listed if n != name}
        elif s.groups[name].acting_master and min(ids) > 0:
            self._perm(name, lambda perm: perm & ~2)

    def _DeleteTopic(self, c: DeleteTopic, time_ms: int) -> Result:  # noqa: N802 - found by the class name of a command
        s = self.state
        for topic, name in list(s.queues):
            if topic == c.topic and (not c.cluster_name or (c.cluster_name, name) in s.listed):
                del s.queues[topic, name]
        return Result()

    def _ChangeWritePerm(self, c: ChangeWritePerm, time_ms: int) -> Result:  # noqa: N802 - found by the class name of a command
        before = dict(self.state.queues)
        self._perm(c.broker_name, lambda perm: 6 if c.writable else perm & ~2)
        if self.state.queues != before:
            self.state.groups[c.broker_name].overridden = True
        return Result(count=sum(name == c.broker_name for _, name in self.state.queues))

    def _perm(self, wanted: str, change: Any) -> None:
        for (topic, name), queue_data in list(self.state.queues.items()):
            if name == wanted:
                self.state.queues[topic, name] = queue_data._replace(perm=change(queue_data.perm))

    # -- the rest

    def _PutKVConfig(self, c: PutKVConfig, time_ms: int) -> Result:  # noqa: N802 - found by the class name of a command
        self.state.kv.setdefault(c.namespace, {})[c.key] = c.value
        return Result()

    def _DeleteKVConfig(self, c: DeleteKVConfig, time_ms: int) -> Result:  # noqa: N802 - found by the class name of a command
        self.state.kv.get(c.namespace, {}).pop(c.key, None)
        return Result()

    def _UpdateSettings(self, c: UpdateSettings, time_ms: int) -> Result:  # noqa: N802 - found by the class name of a command
        self.state.settings = replace(self.state.settings, **c.values)
        return Result()

    def _broker(self, cluster: str, addr: str) -> Broker | None:
        return next((b for b in self.state.brokers if (b.cluster, b.addr) == (cluster, addr)), None)

    def _holder(self, name: str, broker_id: int) -> Broker | None:
        return next((b for b in self.state.brokers if (b.name, b.broker_id) == (name, broker_id)), None)

    # -- queries

    def topics(self) -> set[str]:
        """All topics with a queue entry."""
        return {topic for topic, _ in self.state.queues}

    def route(self, topic: str) -> dict[str, Any] | None:
        """A route as nested dictionaries."""
        s = self.state
        names = sorted(name for t, name in s.queues if t == topic)
        if not names:
            return None
        groups = {}
        for name in names:
            addrs = {b.broker_id: b.addr for b in s.brokers if b.name == name}
            acting = s.settings.support_acting_master and not topic.startswith("rmq_sys_SYNC_BROKER_MEMBER_")
            if acting and s.groups[name].acting_master and addrs and 0 not in addrs and not s.queues[topic, name].perm & 2:
                addrs[0] = addrs.pop(min(addrs))
            groups[name] = (s.groups[name].cluster, addrs, s.groups[name].zone, s.groups[name].acting_master)
        filters = {
            b.addr: b.filters for b in s.brokers if b.name in names and b.filters and b.cluster == s.groups[b.name].cluster
        }
        conf = s.kv.get("ORDER_TOPIC_CONFIG", {}).get(topic) if s.settings.order_message_enable else None
        return {
            "queues": {name: s.queues[topic, name] for name in names},
            "groups": groups,
            "filters": filters,
            "mappings": {name: info for (t, name), info in s.mappings.items() if t == topic},
            "order": conf,
        }

    def topics_by_cluster(self, cluster: str) -> set[str]:
        """Topics of the names listed in a cluster."""
        return {topic for topic, name in self.state.queues if (cluster, name) in self.state.listed}

    def flagged(self, topic: str) -> int:
        """The flags of a topic on which unit lists depend."""
        name = min(name for t, name in self.state.queues if t == topic)
        return self.state.queues[topic, name].topic_sys_flag

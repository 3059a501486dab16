"""Commands: everything that can change the route state machine, as values.

A command carries all that could differ between nodes; applying the same commands in the same order gives the same bytes
everywhere. The time at which a command counts as happened is given to ``RouteInfoManager.apply`` beside it (stamped by the
node in AP, by the leader in CP). Removals are fenced: they name the registration epoch that they saw.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from replicated_namesrv.model import DataVersion, QueueData, TopicQueueMappingInfo


@dataclass(frozen=True, slots=True)
class RegisterBroker:
    """Code 103 (``RouteInfoManager.registerBroker``)."""

    cluster_name: str
    broker_name: str
    broker_addr: str
    broker_id: int
    ha_server_addr: str
    zone_name: str | None
    heartbeat_timeout_ms: int | None
    """None: the default of 120,000."""
    enable_acting_master: bool | None
    """None: a broker older than 5.0, whose slaves never contribute topics."""
    data_version: DataVersion
    topics: Mapping[str, QueueData] | None
    """By ``topicName``. None: the table was JSON null, nothing is registered (answer 0)."""
    topic_queue_mapping_infos: Mapping[str, TopicQueueMappingInfo]
    filter_servers: tuple[str, ...] | None
    """None: leave what is stored; empty: remove."""


@dataclass(frozen=True, slots=True)
class BrokerRemoval:
    """One broker to be removed: by address, whatever its id (``UnRegisterBrokerRequestHeader``)."""

    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: int
    epoch: int | None
    """Fence: removes only the registration with this epoch. None: whatever is registered now."""


@dataclass(frozen=True, slots=True)
class UnregisterBrokers:
    """Code 104, closed connections and expiries, as one batch (``RouteInfoManager.unRegisterBroker(Set)``)."""

    removals: tuple[BrokerRemoval, ...]


@dataclass(frozen=True, slots=True)
class RegisterTopic:
    """Code 217 (``RouteInfoManager.registerTopic``): (brokerName, queues) in the order they were sent."""

    topic: str
    queue_datas: tuple[tuple[str, QueueData], ...]


@dataclass(frozen=True, slots=True)
class DeleteTopic:
    """Code 216; ``cluster_name`` None or empty: the topic goes entirely."""

    topic: str
    cluster_name: str | None


@dataclass(frozen=True, slots=True)
class ChangeWritePerm:
    """Code 205 (``writable`` False: clear the bit) and 327 (True: perm becomes 6)."""

    broker_name: str
    writable: bool


@dataclass(frozen=True, slots=True)
class PutKVConfig:
    """Code 100. A value of None is stored as null: a later read says "not found", and it is not persisted."""

    namespace: str
    key: str
    value: str | None


@dataclass(frozen=True, slots=True)
class DeleteKVConfig:
    """Code 102."""

    namespace: str
    key: str


@dataclass(frozen=True, slots=True)
class UpdateSettings:
    """The part of code 318 that changes what is stored or answered: names of ``RouteSettings`` and new values."""

    values: Mapping[str, bool]


Command = (
    RegisterBroker
    | UnregisterBrokers
    | RegisterTopic
    | DeleteTopic
    | ChangeWritePerm
    | PutKVConfig
    | DeleteKVConfig
    | UpdateSettings
)

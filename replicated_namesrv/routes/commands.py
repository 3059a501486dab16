"""Commands: everything that can change the route state machine, as values.

A command contains everything that could differ between nodes, so applying the same commands in the same order gives the same
bytes everywhere. The time of a command is a separate argument of ``RouteInfoManager.apply`` (from the node in AP, from the
leader in CP). A removal names the epoch of the registration that its sender saw, so it does not end a later registration.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from replicated_namesrv.model import DataVersion, QueueData, TopicQueueMappingInfo


@dataclass(frozen=True, slots=True)
class RegisterBroker:
    """``REGISTER_BROKER`` (103, ``RouteInfoManager.registerBroker``)."""

    cluster_name: str
    broker_name: str
    broker_addr: str
    broker_id: int
    ha_server_addr: str
    zone_name: str | None
    heartbeat_timeout_ms: int | None
    """heartbeatTimeoutMillis. None: the default of 120,000."""
    enable_acting_master: bool | None
    """enableActingMaster. None: the broker is older than 5.0. Such a slave never contributes topics."""
    data_version: DataVersion
    topics: Mapping[str, QueueData] | None
    """Queue settings by ``topicName``. None: the table was JSON null; a broker with a free id is not registered (answer 0)."""
    topic_queue_mapping_infos: Mapping[str, TopicQueueMappingInfo]
    filter_servers: tuple[str, ...] | None
    """Addresses of filter servers. None: keep the stored ones. Empty: remove the stored ones."""


@dataclass(frozen=True, slots=True)
class BrokerRemoval:
    """One broker to be removed, found by its address. Its id does not matter (``UnRegisterBrokerRequestHeader``)."""

    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: int
    epoch: int | None
    """Only a registration with this epoch is removed. None: a registration with any epoch is removed."""


@dataclass(frozen=True, slots=True)
class UnregisterBrokers:
    """``UNREGISTER_BROKER`` (104), closed connections and expiries, as one batch (``RouteInfoManager.unRegisterBroker(Set)``)."""

    removals: tuple[BrokerRemoval, ...]


@dataclass(frozen=True, slots=True)
class RegisterTopic:
    """``REGISTER_TOPIC_IN_NAMESRV`` (217, ``RouteInfoManager.registerTopic``): (brokerName, queues) in the order of the
    request.
    """

    topic: str
    queue_datas: tuple[tuple[str, QueueData], ...]


@dataclass(frozen=True, slots=True)
class DeleteTopic:
    """``DELETE_TOPIC_IN_NAMESRV`` (216). ``cluster_name`` None or empty: the topic is deleted in all clusters."""

    topic: str
    cluster_name: str | None


@dataclass(frozen=True, slots=True)
class ChangeWritePerm:
    """``WIPE_WRITE_PERM_OF_BROKER`` (205; ``writable`` False: clear the bit) and ``ADD_WRITE_PERM_OF_BROKER`` (327; True: perm
    becomes 6).
    """

    broker_name: str
    writable: bool


@dataclass(frozen=True, slots=True)
class PutKVConfig:
    """``PUT_KV_CONFIG`` (100). A value of None is stored as null: later reads return "not found", and it is not persisted."""

    namespace: str
    key: str
    value: str | None


@dataclass(frozen=True, slots=True)
class DeleteKVConfig:
    """``DELETE_KV_CONFIG`` (102)."""

    namespace: str
    key: str


@dataclass(frozen=True, slots=True)
class UpdateSettings:
    """The part of ``UPDATE_NAMESRV_CONFIG`` (318) that changes state or answers: names of ``RouteSettings`` with new values."""

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

"""Requests that brokers of 4.9.8 and 5.3.3 send to name servers.

Header fields have the order of Java's hash map, so a frame equals a recorded frame with the same values byte for byte.
"""

from enum import StrEnum
from typing import NamedTuple
from zlib import crc32

from replicated_namesrv.client.remoting import RemotingCommand
from replicated_namesrv.model import DataVersion
from replicated_namesrv.wire.codes import ONEWAY_FLAG, V4_9_8, V5_3_3, LanguageCode, RequestCode

SYNC_BROKER_MEMBER_GROUP_PREFIX = "rmq_sys_SYNC_BROKER_MEMBER_"


class BrokerVersion(StrEnum):
    """RocketMQ versions of a broker."""

    V4_9 = "4.9"
    V5_3 = "5.3"

    @property
    def remoting_version(self) -> int:
        """Ordinal of ``MQVersion.Version`` in its headers: 4.9.8 or 5.3.3."""
        return V4_9_8 if self is BrokerVersion.V4_9 else V5_3_3

    @property
    def register_timeout_ms(self) -> int:
        """``registerBrokerTimeoutMills``."""
        return 6_000 if self is BrokerVersion.V4_9 else 24_000

    def as_java(self, request: RemotingCommand) -> RemotingCommand:
        """``request`` with the language and version of such a broker."""
        return request._replace(language=LanguageCode.JAVA.value, version=self.remoting_version)


class BrokerIdentity(NamedTuple):
    """Identity of a broker in its requests."""

    cluster_name: str
    broker_name: str
    broker_id: int
    broker_addr: str
    ha_server_addr: str


def register_request(
    identity: BrokerIdentity,
    version: BrokerVersion,
    body: bytes,
    *,
    compressed: bool,
    oneway: bool,
    enable_acting_master: bool,
    heartbeat_timeout_ms: int | None,
    zone_name: str | None,
) -> RemotingCommand:
    """``REGISTER_BROKER`` (103, ``RegisterBrokerRequestHeader``). 4.9 has neither acting master, time-out nor zone."""
    fields = {} if heartbeat_timeout_ms is None else {"heartbeatTimeoutMillis": str(heartbeat_timeout_ms)}
    fields["brokerId"] = str(identity.broker_id)
    fields["bodyCrc32"] = str(crc32(body) & 0x7FFFFFFF)
    fields["clusterName"] = identity.cluster_name
    fields["brokerAddr"] = identity.broker_addr
    if version is BrokerVersion.V5_3:
        fields["enableActingMaster"] = _boolean(enable_acting_master)
    fields["haServerAddr"] = identity.ha_server_addr
    # 5.x always sends false here (BrokerOuterAPI.registerBrokerAll)
    fields["compressed"] = _boolean(compressed and version is BrokerVersion.V4_9)
    fields["brokerName"] = identity.broker_name
    if zone_name is not None:
        fields["__ZONE_NAME"] = zone_name
    request = RemotingCommand(RequestCode.REGISTER_BROKER, fields, body, flag=ONEWAY_FLAG if oneway else 0)
    return version.as_java(request)


def unregister_request(identity: BrokerIdentity, version: BrokerVersion) -> RemotingCommand:
    """``UNREGISTER_BROKER`` (104)."""
    return version.as_java(RemotingCommand(RequestCode.UNREGISTER_BROKER, _who(identity)))


def query_data_version_request(identity: BrokerIdentity, version: BrokerVersion, data_version: DataVersion) -> RemotingCommand:
    """``QUERY_DATA_VERSION`` (322), two-way."""
    body = data_version_json(data_version, version).encode()
    return version.as_java(RemotingCommand(RequestCode.QUERY_DATA_VERSION, _who(identity), body))


def heartbeat_request(identity: BrokerIdentity, version: BrokerVersion, data_version: DataVersion | None) -> RemotingCommand:
    """A oneway heartbeat: ``QUERY_DATA_VERSION`` (322) if there is a data version, else ``BROKER_HEARTBEAT`` (904)."""
    if data_version is not None:
        return query_data_version_request(identity, version, data_version)._replace(flag=ONEWAY_FLAG)
    fields = {
        "clusterName": identity.cluster_name,
        "brokerAddr": identity.broker_addr,
        "brokerName": identity.broker_name,
    }
    return version.as_java(RemotingCommand(RequestCode.BROKER_HEARTBEAT, fields, flag=ONEWAY_FLAG))


def member_group_request(identity: BrokerIdentity) -> RemotingCommand:
    """``GET_BROKER_MEMBER_GROUP`` (901)."""
    fields = {"clusterName": identity.cluster_name, "brokerName": identity.broker_name}
    return RemotingCommand(RequestCode.GET_BROKER_MEMBER_GROUP, fields)


def sync_topic(broker_name: str) -> str:
    """The topic whose route lists the group's members, for name servers without ``GET_BROKER_MEMBER_GROUP`` (901)."""
    return SYNC_BROKER_MEMBER_GROUP_PREFIX + broker_name


def data_version_json(data_version: DataVersion, version: BrokerVersion) -> str:
    """``DataVersion`` as a broker of ``version`` writes it: 4.9 has no stateVersion."""
    state = f'"stateVersion":{data_version.state_version},' if version is BrokerVersion.V5_3 else ""
    return f'{{"counter":{data_version.counter},{state}"timestamp":{data_version.timestamp}}}'


def _who(identity: BrokerIdentity) -> dict[str, str]:
    return {
        "brokerId": str(identity.broker_id),
        "clusterName": identity.cluster_name,
        "brokerAddr": identity.broker_addr,
        "brokerName": identity.broker_name,
    }


def _boolean(value: bool) -> str:
    return "true" if value else "false"

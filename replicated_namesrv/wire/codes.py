"""Numbers of the remoting protocol under RocketMQ's names: ``RequestCode``, ``ResponseCode``, ``LanguageCode``, ``MQVersion``."""

from enum import IntEnum
from typing import Final


class RequestCode(IntEnum):
    """Requests that a name server answers, and the one that it sends (``NOTIFY_MIN_BROKER_ID_CHANGE``, 905)."""

    PUT_KV_CONFIG = 100
    GET_KV_CONFIG = 101
    DELETE_KV_CONFIG = 102
    REGISTER_BROKER = 103
    UNREGISTER_BROKER = 104
    GET_ROUTEINFO_BY_TOPIC = 105
    GET_BROKER_CLUSTER_INFO = 106
    WIPE_WRITE_PERM_OF_BROKER = 205
    GET_ALL_TOPIC_LIST_FROM_NAMESERVER = 206
    DELETE_TOPIC_IN_NAMESRV = 216
    REGISTER_TOPIC_IN_NAMESRV = 217
    GET_KVLIST_BY_NAMESPACE = 219
    GET_TOPICS_BY_CLUSTER = 224
    GET_SYSTEM_TOPIC_LIST_FROM_NS = 304
    GET_UNIT_TOPIC_LIST = 311
    GET_HAS_UNIT_SUB_TOPIC_LIST = 312
    GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST = 313
    UPDATE_NAMESRV_CONFIG = 318
    GET_NAMESRV_CONFIG = 319
    QUERY_DATA_VERSION = 322
    ADD_WRITE_PERM_OF_BROKER = 327
    GET_BROKER_MEMBER_GROUP = 901
    BROKER_HEARTBEAT = 904
    NOTIFY_MIN_BROKER_ID_CHANGE = 905


class ResponseCode(IntEnum):
    """Response codes of a name server."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    REQUEST_CODE_NOT_SUPPORTED = 3
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    QUERY_NOT_FOUND = 22
    GO_AWAY = 1500


class LanguageCode(IntEnum):
    """Language of a peer's program."""

    JAVA = 0
    CPP = 1
    DOTNET = 2
    PYTHON = 3
    DELPHI = 4
    ERLANG = 5
    RUBY = 6
    OTHER = 7
    HTTP = 8
    GO = 9
    PHP = 10
    OMS = 11
    RUST = 12
    NODE_JS = 13


class SerializeType(IntEnum):
    """Encoding of a header; the byte before the header's length."""

    JSON = 0
    ROCKETMQ = 1


RESPONSE_FLAG: Final = 1
"""Bit of ``flag``: this is a response."""
ONEWAY_FLAG: Final = 2
"""Bit of ``flag``: no answer is allowed."""

V3_0_11: Final = 37
"""First version whose registrations carry a RegisterBrokerBody."""
V4_9_4: Final = 401
"""First version whose clients get routes in standard JSON."""
V4_9_7: Final = 407
V4_9_8: Final = 409
V5_0_0: Final = 413
"""First version whose compressed registrations carry topic-queue mappings."""
V5_3_1: Final = 475
"""Last version that does not understand GO_AWAY."""
V5_3_3: Final = 479
HIGHER_VERSION: Final = 612
"""Every greater ordinal is treated as this one (``MQVersion.value2Version``)."""
SERVER_VERSION: Final = V5_3_3
"""The version in our answers."""

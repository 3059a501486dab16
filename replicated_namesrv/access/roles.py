"""Roles, and the roles that may send each request.

role      may send
read      requests that only read
broker    the requests of ``read``, and what brokers send, for the broker names of its patterns only
operator  the requests of ``read``, and changes of KV config, topics, write permissions and settings
admin     everything
"""

from enum import StrEnum

from replicated_namesrv.wire.codes import RequestCode


class Role(StrEnum):
    """A role: the kind of requests that an identity may send."""

    READ = "read"
    BROKER = "broker"
    OPERATOR = "operator"
    ADMIN = "admin"


READERS = frozenset(Role)
BROKERS = frozenset({Role.BROKER, Role.ADMIN})
"""Roles that may send the requests of brokers. The role broker permits them for the identity's own broker names only."""
OPERATORS = frozenset({Role.OPERATOR, Role.ADMIN})
ADMINS = frozenset({Role.ADMIN})

REQUEST_ROLES: dict[int, frozenset[Role]] = {
    RequestCode.GET_KV_CONFIG: READERS,
    RequestCode.GET_ROUTEINFO_BY_TOPIC: READERS,
    RequestCode.GET_BROKER_CLUSTER_INFO: READERS,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: READERS,
    RequestCode.GET_KVLIST_BY_NAMESPACE: READERS,
    RequestCode.GET_TOPICS_BY_CLUSTER: READERS,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: READERS,
    RequestCode.GET_UNIT_TOPIC_LIST: READERS,
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: READERS,
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: READERS,
    RequestCode.GET_NAMESRV_CONFIG: READERS,
    RequestCode.GET_BROKER_MEMBER_GROUP: READERS,
    RequestCode.REGISTER_BROKER: BROKERS,
    RequestCode.UNREGISTER_BROKER: BROKERS,
    RequestCode.QUERY_DATA_VERSION: BROKERS,  # operators may not send this query, because it counts as a heartbeat
    RequestCode.BROKER_HEARTBEAT: BROKERS,
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: BROKERS | OPERATORS,  # brokers send this request with enableSingleTopicRegister
    RequestCode.PUT_KV_CONFIG: OPERATORS,
    RequestCode.DELETE_KV_CONFIG: OPERATORS,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: OPERATORS,
    RequestCode.ADD_WRITE_PERM_OF_BROKER: OPERATORS,
    RequestCode.DELETE_TOPIC_IN_NAMESRV: OPERATORS,
    RequestCode.UPDATE_NAMESRV_CONFIG: OPERATORS,
}
"""The roles that may send each request. A code without a row is refused."""

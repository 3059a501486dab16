"""Requests that only read: routes, cluster info, lists, KV config, data versions.

Each handler except ``data_version`` waits for the read barrier of its level before it reads the state. The level is the
configured one unless the extFields ``readConsistency`` or ``maxStalenessMs`` ask for another. Only an answer to a request with
these extFields has ``readLevel``, ``revision``, ``raftTerm``, ``stalenessMs`` and ``leader``. So every other answer equals that
of an independent node, byte for byte.
"""

import asyncio
from asyncio import Future
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from replicated_namesrv.errors import NamesrvError
from replicated_namesrv.model import MASTER_ID, BrokerData, DataVersion, TopicRouteData
from replicated_namesrv.server.long_answers import LongAnswers
from replicated_namesrv.server.request import (
    Answer,
    AnswerTooLargeError,
    Deferred,
    Outcome,
    Request,
    java_boolean,
    java_long,
    then,
)
from replicated_namesrv.server.route_answers import RouteAnswers
from replicated_namesrv.server.server_metrics import ServerMetrics
from replicated_namesrv.service import ASKABLE_LEVELS, Connection, DataVersionAnswer, Freshness, FreshState, ReadLevel
from replicated_namesrv.settings import Settings
from replicated_namesrv.steps import Steps
from replicated_namesrv.wire import bodies
from replicated_namesrv.wire.codes import V4_9_4, RequestCode, ResponseCode
from replicated_namesrv.wire.frame import MAX_TOTAL

if TYPE_CHECKING:
    from replicated_namesrv.server.cluster_test import ClusterTestRoutes

ERROR = ResponseCode.SYSTEM_ERROR.value
NOT_FOUND = ResponseCode.QUERY_NOT_FOUND.value
FAQ_URL = "https://rocketmq.apache.org/docs/bestPractice/06FAQ"
SHOWN_CHARACTERS = 100
"""Maximum length of an invalid value in an error message."""


class QueryService(FreshState, Protocol):
    """The part of a node that answers queries."""

    def query_data_version(
        self, cluster_name: str, broker_addr: str, data_version: DataVersion | None, connection: Connection
    ) -> DataVersionAnswer | Future[DataVersionAnswer]:
        """``QUERY_DATA_VERSION`` (322): compare the versions and count the query as a heartbeat. ``data_version`` None: the
        request has no body, and the answer is always "changed".
        """

    def config_text(self) -> str:
        """``GET_NAMESRV_CONFIG`` (319): sorted ``key=value`` lines."""


class BadConsistencyError(NamesrvError):
    """``readConsistency`` or ``maxStalenessMs`` of a request is invalid."""


class Queries:
    """Handlers of the requests that ``handlers`` lists."""

    def __init__(
        self,
        settings: Settings,
        service: QueryService,
        answers: RouteAnswers,
        long_answers: LongAnswers,
        metrics: ServerMetrics,
        now_s: Callable[[], float],
        other_environment: "ClusterTestRoutes | None",
    ) -> None:
        self._settings = settings
        self._service = service
        self._state = service.state
        self._answers = answers
        self._long = long_answers
        self._metrics = metrics
        self._now_s = now_s
        self._other = other_environment
        self._started_s = now_s()
        self._is_ready = False
        self._topic_names: tuple[int, bytes] | None = None
        """The answer to ``GET_ALL_TOPIC_LIST_FROM_NAMESERVER`` (206), and the value of ``topic_names_changes`` when it was
        made."""
        self._listing: tuple[int, bytes] | None = None
        """The answer to ``GET_BROKER_CLUSTER_INFO`` (106), which shows all broker groups, and the value of ``listing_changes``
        when its encoding began."""

    def started(self) -> None:
        """The time of needWaitForService begins now."""
        self._started_s = self._now_s()

    def handlers(self) -> dict[int, Callable[[Request], Outcome]]:
        """By request code."""
        state = self._state
        return {
            RequestCode.GET_ROUTEINFO_BY_TOPIC.value: self.route,
            RequestCode.GET_KV_CONFIG.value: self.kv_config,
            RequestCode.GET_KVLIST_BY_NAMESPACE.value: self.kv_list,
            RequestCode.GET_BROKER_CLUSTER_INFO.value: self.cluster_info,
            RequestCode.GET_BROKER_MEMBER_GROUP.value: self.member_group,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER.value: self.all_topics,
            RequestCode.GET_TOPICS_BY_CLUSTER.value: self.topics_by_cluster,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS.value: self.system_topics,
            RequestCode.GET_UNIT_TOPIC_LIST.value: lambda request: self.topic_list(request, state.unit_topics_steps),
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST.value: (
                lambda request: self.topic_list(request, state.has_unit_sub_topics_steps)
            ),
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST.value: (
                lambda request: self.topic_list(request, state.has_unit_sub_un_unit_topics_steps)
            ),
            RequestCode.GET_NAMESRV_CONFIG.value: self.config,
            RequestCode.QUERY_DATA_VERSION.value: self.data_version,
        }

    # -- routes

    def is_ready(self) -> bool:
        """False while route queries are refused (needWaitForService). After it was True, it stays True."""
        settings, waited_s = self._settings, self._now_s() - self._started_s
        self._is_ready = self._is_ready or not settings.need_wait_for_service or waited_s >= settings.wait_seconds_for_service
        return self._is_ready

    def route(self, request: Request) -> Outcome:
        """``GET_ROUTEINFO_BY_TOPIC`` (105)."""
        if not self.is_ready():
            return Answer(ERROR, "name server not ready")
        level, max_staleness_ms = wanted_consistency(request.fields)
        topic = request.fields.get("topic")
        if level is not None or max_staleness_ms is not None or topic is None:
            return self._read_long(request, lambda: self._route_answer(request, topic))
        if self._other is not None and topic not in self._state.topic_revisions:
            other = self._other
            # this node may lag, so the miss is confirmed first
            return then(
                self._service.barrier(None, None),
                lambda _: (
                    self._read_long(request, lambda: self._route_answer(request, topic))
                    if topic in self._state.topic_revisions
                    else self._ask_other_environment(other, request, topic)
                ),
            )
        request.lasting_topic = topic
        return self._read_long(request, lambda: self._route_answer(request, topic))

    def _ask_other_environment(self, other: "ClusterTestRoutes", request: Request, topic: str) -> Outcome:
        """clusterTest: on a miss, the answer of another environment's name servers."""
        asking = asyncio.ensure_future(other.route(topic, request.header.version, wants_standard_json(request)))
        return Deferred(asking, lambda body: no_route(topic) if body is None else Answer(body=body))

    def _route_answer(self, request: Request, topic: str | None) -> Steps[Answer]:
        if topic is None or topic not in self._state.topic_revisions:
            if self._other is not None:
                request.lasting_topic = None  # the next query asks the other environment
            return no_route(topic)
        fields = request.fields
        zone_name = fields.get("__ZONE_NAME", "")
        if not zone_name.strip() or not java_boolean(fields.get("__ZONE_MODE")):
            zone_name = ""
        standard = not zone_name and wants_standard_json(request)
        variant = zone_name.lower() if zone_name else standard
        body = self._answers.find_body(topic, variant)
        if body is None:
            revision, route = self._state.topic_revisions[topic], self._state.route(topic)
            assert route is not None
            if zone_name:
                route = filter_by_zone_name(route, zone_name)
            text = bodies.Text(lambda size: check_length(request.header.code, size))
            yield from bodies.topic_route_data_steps(route, standard, text)
            body = text.encoded()
            self._answers.put_body(topic, variant, revision, body)
        return Answer(body=body)

    # -- other queries

    def kv_config(self, request: Request) -> Outcome:
        """``GET_KV_CONFIG`` (101)."""
        namespace, key = request.fields.get("namespace"), request.fields.get("key")

        def build() -> Answer:
            value = self._state.kv_get(namespace, key) if namespace is not None and key is not None else None
            if value is None:
                return Answer(NOT_FOUND, f"No config item, Namespace: {text(namespace)} Key: {text(key)}", {})
            return Answer(ext_fields={"value": value})

        return self._read(request, build)

    def kv_list(self, request: Request) -> Outcome:
        """``GET_KVLIST_BY_NAMESPACE`` (219)."""
        namespace = request.fields.get("namespace")

        def build() -> Steps[Answer]:
            table = self._state.kv_view(namespace) if namespace is not None else None
            if namespace is None or table is None:
                return Answer(NOT_FOUND, f"No config item, Namespace: {text(namespace)}")
            check_length(request.header.code, self._state.kv_text_bytes(namespace))
            body = bodies.Text(lambda size: check_length(request.header.code, size))
            yield from bodies.kv_table_steps(table, body)
            return Answer(body=body.encoded())

        return self._read_long(request, build)

    def cluster_info(self, request: Request) -> Outcome:
        """``GET_BROKER_CLUSTER_INFO`` (106)."""

        def build() -> Steps[Answer]:
            changes = self._state.listing_changes
            if self._listing is None or self._listing[0] != changes:
                text = bodies.Text(lambda size: check_length(request.header.code, size))
                yield from bodies.cluster_info_steps(self._state.cluster_info(), text)
                body = text.encoded()
                if self._listing is None or self._listing[0] < changes:
                    self._listing = changes, body
                return Answer(body=body)
            return Answer(body=self._listing[1])

        return self._read_long(request, build)

    def member_group(self, request: Request) -> Outcome:
        """``GET_BROKER_MEMBER_GROUP`` (901). Java never sets a response code here, and the default remark of its answer says so.
        We send the same remark."""
        cluster, broker_name = request.fields.get("clusterName"), request.fields.get("brokerName")

        def build() -> Answer:
            addrs = () if broker_name is None else self._state.member_group(broker_name)
            body = bodies.encode_broker_member_group(cluster, broker_name, addrs)
            return Answer(remark="not set any response code", body=body)

        return self._read(request, build)

    def all_topics(self, request: Request) -> Outcome:
        """``GET_ALL_TOPIC_LIST_FROM_NAMESERVER`` (206)."""
        return self._read(
            request,
            lambda: Answer(body=self._all_topics()) if self._state.settings.enable_all_topic_list else Answer(ERROR, "disable"),
        )

    def _all_topics(self) -> bytes:
        """The body of the answer. It is kept, because 100,000 topics take some 10 ms to encode."""
        changes = self._state.topic_names_changes
        if self._topic_names is None or self._topic_names[0] != changes:
            self._topic_names = changes, list_body(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER.value, self._state.all_topics())
        return self._topic_names[1]

    def topics_by_cluster(self, request: Request) -> Outcome:
        """``GET_TOPICS_BY_CLUSTER`` (224)."""
        cluster = request.fields.get("cluster")
        return self.topic_list(request, lambda: self._state.topics_by_cluster_steps("" if cluster is None else cluster))

    def topic_list(self, request: Request, topics: Callable[[], Steps[list[str]]]) -> Outcome:
        """Requests whose answer is a list of topics: 224 and 311 to 313."""

        def build() -> Steps[Answer]:
            if not self._state.settings.enable_topic_list:
                return Answer(ERROR, "disable")
            found = yield from topics()
            return Answer(body=list_body(request.header.code, found))

        return self._read_long(request, build)

    def system_topics(self, request: Request) -> Outcome:
        """``GET_SYSTEM_TOPIC_LIST_FROM_NS`` (304)."""

        def build() -> Answer:
            found = self._state.system_topics()
            return Answer(body=list_body(request.header.code, found.topic_list, found.broker_addr))

        return self._read(request, build)

    def config(self, request: Request) -> Outcome:
        """``GET_NAMESRV_CONFIG`` (319): an ordinary read, because some settings are part of the replicated state."""
        return self._read(request, lambda: Answer(body=self._service.config_text().encode()))

    def data_version(self, request: Request) -> Outcome:
        """``QUERY_DATA_VERSION`` (322), which is also a heartbeat. Raises BodyError."""
        cluster_name, broker_addr = request.fields.get("clusterName"), request.fields.get("brokerAddr")
        if cluster_name is None or broker_addr is None:
            return Answer(ERROR, "clusterName or brokerAddr is missing")
        body = request.body
        version = bodies.decode_data_version(body) if body else None
        return then(self._service.query_data_version(cluster_name, broker_addr, version, request.connection), data_version_answer)

    # -- consistency

    def _read(self, request: Request, build: Callable[[], Answer]) -> Outcome:
        level, max_staleness_ms = wanted_consistency(request.fields)
        if level is None and max_staleness_ms is None:
            return then(self._service.barrier(None, None), lambda freshness: self._counted(build(), freshness))
        return then(self._service.barrier(level, max_staleness_ms), lambda freshness: self._with_freshness(build(), freshness))

    def _read_long(self, request: Request, build: Callable[[], Steps[Answer]]) -> Outcome:
        """Like ``_read``, for an answer that may take long. The answer shows the state at the first step."""
        level, max_staleness_ms = wanted_consistency(request.fields)
        is_asked = level is not None or max_staleness_ms is not None

        def counted(freshness: Freshness) -> Steps[Answer]:
            revision = self._state.revision
            answer = yield from build()
            if is_asked:
                answer = answer._replace(ext_fields={**(answer.ext_fields or {}), **freshness_fields(freshness, revision)})
            return self._counted(answer, freshness)

        barrier = self._service.barrier(level, max_staleness_ms)
        return then(barrier, lambda freshness: self._long.build(request, counted(freshness)))

    def _counted(self, answer: Answer, freshness: Freshness) -> Answer:
        self._metrics.count_reads(freshness.level)
        return answer

    def _with_freshness(self, answer: Answer, freshness: Freshness) -> Answer:
        fields = {**(answer.ext_fields or {}), **freshness_fields(freshness, self._state.revision)}
        return self._counted(answer._replace(ext_fields=fields), freshness)


def check_length(code: int, least: int) -> None:
    """Raise AnswerTooLargeError if the answer has at least ``least`` characters and these do not fit into a frame. To encode such
    an answer would take seconds."""
    if least > MAX_TOTAL:
        raise AnswerTooLargeError(code, f"more than {least}")


def list_body(code: int, topics: Sequence[str], broker_addr: str | None = None) -> bytes:
    """The body of a list of topics. Raises AnswerTooLargeError."""
    check_length(code, sum(map(len, topics)))
    return bodies.encode_topic_list(topics, broker_addr, lambda size: check_length(code, size))


def freshness_fields(freshness: Freshness, revision: int) -> dict[str, str]:
    """The freshness of an answer from the state at ``revision``, as extFields."""
    return {
        "readLevel": freshness.level.value,
        "revision": str(revision),
        "raftTerm": str(freshness.term),
        "stalenessMs": str(freshness.staleness_ms),
        "leader": freshness.leader,
    }


def wanted_consistency(fields: Mapping[str, str]) -> tuple[ReadLevel | None, int | None]:
    """The level and bound in ``readConsistency`` and ``maxStalenessMs``; None: absent. Raises BadConsistencyError."""
    name, bound = fields.get("readConsistency"), fields.get("maxStalenessMs")
    if name is None and bound is None:
        return None, None
    if name is not None and name not in ASKABLE_LEVELS:
        raise BadConsistencyError(f"readConsistency={name[:SHOWN_CHARACTERS]}: give one of {', '.join(ASKABLE_LEVELS)}")
    max_staleness_ms = java_long(bound)
    if bound is not None and (max_staleness_ms is None or max_staleness_ms < 0):
        raise BadConsistencyError(f"maxStalenessMs={bound[:SHOWN_CHARACTERS]}: give milliseconds, 0 or more")
    return None if name is None else ReadLevel(name), max_staleness_ms


def wants_standard_json(request: Request) -> bool:
    """Whether the client reads standard JSON, as clients do since 4.9.4."""
    return request.header.version >= V4_9_4 or java_boolean(request.fields.get("acceptStandardJsonOnly"))


def filter_by_zone_name(route: TopicRouteData, zone_name: str) -> TopicRouteData:
    """The route with only the groups of a zone, and the groups without a master (``ZoneRouteRPCHook``)."""

    def stays(data: BrokerData) -> bool:
        has_master = any(broker_id == MASTER_ID for broker_id, _ in data.broker_addrs)
        return not has_master or (data.zone_name or "").lower() == zone_name.lower()

    removed = [data for data in route.broker_datas if not stays(data)]
    names = {data.broker_name for data in removed}
    addrs = {addr for data in removed for _, addr in data.broker_addrs}
    return route._replace(
        broker_datas=tuple(data for data in route.broker_datas if data.broker_name not in names),
        queue_datas=tuple(pair for pair in route.queue_datas if pair[0] not in names),
        filter_server_table=tuple(pair for pair in route.filter_server_table if pair[0] not in addrs),
    )


def no_route(topic: str | None) -> Answer:
    """The answer ``TOPIC_NOT_EXIST`` (17)."""
    remark = f"No topic route info in name server for the topic: {text(topic)}\nSee {FAQ_URL} for further details."
    return Answer(ResponseCode.TOPIC_NOT_EXIST.value, remark)


def data_version_answer(answer: DataVersionAnswer) -> Answer:
    """Answer to ``QUERY_DATA_VERSION`` (322)."""
    body = b"" if answer.stored is None else bodies.encode_data_version(answer.stored)
    return Answer(ext_fields={"changed": "true" if answer.changed else "false"}, body=body)


def text(value: str | None) -> str:
    """The text as Java's string concatenation shows it: null as "null"."""
    return "null" if value is None else value

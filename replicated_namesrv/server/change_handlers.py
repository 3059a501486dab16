"""Requests that change something, except registrations: KV config, unregistration, permissions, topics, configuration.

If a mandatory field is missing, the answer is the same as Java's. Java does not check header fields, so the answer depends on the
request: mostly "done", sometimes code 1.
"""

from asyncio import Future
from collections.abc import Callable, Mapping
from typing import Protocol

from replicated_namesrv.errors import BodyError
from replicated_namesrv.model import ChangeOrigin
from replicated_namesrv.routes.commands import (
    BrokerRemoval,
    ChangeWritePerm,
    Command,
    DeleteKVConfig,
    DeleteTopic,
    PutKVConfig,
    RegisterTopic,
    UnregisterBrokers,
)
from replicated_namesrv.routes.results import Result
from replicated_namesrv.server.request import Answer, Deferred, Outcome, Request, java_long, then
from replicated_namesrv.service import Connection, origin_of
from replicated_namesrv.settings import Settings
from replicated_namesrv.wire.bodies import decode_queue_datas
from replicated_namesrv.wire.codes import RequestCode, ResponseCode
from replicated_namesrv.wire.properties import MAX_BODY_BYTES, string_to_properties

ERROR = ResponseCode.SYSTEM_ERROR.value


class ChangeService(Protocol):
    """The part of a node that applies changes other than registrations."""

    def propose(self, command: Command, connection: Connection | None) -> Result | Future[Result]:
        """Apply ``command``; the result is Java's answer. Errors: LimitError, UnavailableError (both certainly not applied),
        OutcomeUnknownError, StorageError. ``connection``: the one that the command arrived over; None for our own commands."""

    def update_config(self, values: Mapping[str, str], origin: ChangeOrigin | None = None) -> Result | Future[Result]:
        """``UPDATE_NAMESRV_CONFIG`` (318), sent by ``origin`` and already parsed: write the values, then apply them
        (``config_writer`` decides which are accepted).
        """

    def heartbeat(self, cluster_name: str, broker_addr: str, connection: Connection) -> None:
        """``BROKER_HEARTBEAT`` (904), which is oneway: count a heartbeat. An unknown broker is ignored."""


class Changes:
    """Handlers of the requests that ``handlers`` lists."""

    def __init__(self, settings: Settings, service: ChangeService) -> None:
        self._settings = settings
        self._service = service
        self._pending_unregistrations = 0

    def handlers(self) -> dict[int, Callable[[Request], Outcome]]:
        """By request code."""
        return {
            RequestCode.PUT_KV_CONFIG.value: self.put_kv_config,
            RequestCode.DELETE_KV_CONFIG.value: self.delete_kv_config,
            RequestCode.UNREGISTER_BROKER.value: self.unregister_broker,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER.value: lambda request: self.change_write_perm(request, False, "wipeTopicCount"),
            RequestCode.ADD_WRITE_PERM_OF_BROKER.value: lambda request: self.change_write_perm(request, True, "addTopicCount"),
            RequestCode.DELETE_TOPIC_IN_NAMESRV.value: self.delete_topic,
            RequestCode.REGISTER_TOPIC_IN_NAMESRV.value: self.register_topic,
            RequestCode.UPDATE_NAMESRV_CONFIG.value: self.update_config,
            RequestCode.BROKER_HEARTBEAT.value: self.heartbeat,
        }

    def put_kv_config(self, request: Request) -> Outcome:
        """``PUT_KV_CONFIG`` (100). A missing value is stored as null."""
        namespace, key = request.fields.get("namespace"), request.fields.get("key")
        if namespace is None or key is None:
            return Answer(ERROR, "namespace or key is null")
        command = PutKVConfig(namespace, key, request.fields.get("value"))
        return then(self._service.propose(command, request.connection), plain_answer)

    def delete_kv_config(self, request: Request) -> Outcome:
        """``DELETE_KV_CONFIG`` (102)."""
        namespace, key = request.fields.get("namespace"), request.fields.get("key")
        if namespace is None or key is None:
            return Answer()
        return then(self._service.propose(DeleteKVConfig(namespace, key), request.connection), plain_answer)

    def unregister_broker(self, request: Request) -> Outcome:
        """``UNREGISTER_BROKER`` (104). If a field is missing, the answer is "done" without any effect."""
        get = request.fields.get
        cluster_name, broker_addr, broker_name = get("clusterName"), get("brokerAddr"), get("brokerName")
        broker_id = java_long(get("brokerId"))
        if cluster_name is None or broker_addr is None or broker_name is None or broker_id is None:
            return Answer()
        if self._pending_unregistrations >= self._settings.un_register_broker_queue_capacity:
            return Answer(ERROR)
        removal = BrokerRemoval(cluster_name, broker_addr, broker_name, broker_id, None)
        outcome = then(self._service.propose(UnregisterBrokers((removal,)), request.connection), plain_answer)
        if isinstance(outcome, Deferred):
            self._pending_unregistrations += 1
            outcome.future.add_done_callback(self._unregistered)
        return outcome

    def _unregistered(self, future: Future[Result]) -> None:
        self._pending_unregistrations -= 1

    def change_write_perm(self, request: Request, writable: bool, field: str) -> Outcome:
        """``WIPE_WRITE_PERM_OF_BROKER`` (205) and ``ADD_WRITE_PERM_OF_BROKER`` (327). ``field`` of the answer is the number of
        topics with a queue entry of the broker."""
        broker_name = request.fields.get("brokerName")
        if broker_name is None:
            return Answer(ext_fields={field: "0"})
        return then(
            self._service.propose(ChangeWritePerm(broker_name, writable), request.connection),
            lambda result: Answer(result.code, result.remark, {field: str(result.count or 0)}),
        )

    def delete_topic(self, request: Request) -> Outcome:
        """``DELETE_TOPIC_IN_NAMESRV`` (216)."""
        topic = request.fields.get("topic")
        if topic is None:
            return Answer()
        command = DeleteTopic(topic, request.fields.get("clusterName") or None)
        return then(self._service.propose(command, request.connection), plain_answer)

    def register_topic(self, request: Request) -> Outcome:
        """``REGISTER_TOPIC_IN_NAMESRV`` (217). Raises BodyError."""
        body = request.body
        if not body:
            return Answer()
        queue_datas = decode_queue_datas(body)
        topic = request.fields.get("topic")
        if topic is None or not queue_datas:
            return Answer()
        return then(self._service.propose(RegisterTopic(topic, queue_datas), request.connection), plain_answer)

    def update_config(self, request: Request) -> Outcome:
        """``UPDATE_NAMESRV_CONFIG`` (318)."""
        body = request.body
        if not body:
            return Answer()
        if len(body) > MAX_BODY_BYTES:
            return Answer(ERROR, f"string2Properties error: {len(body)} bytes; send at most {MAX_BODY_BYTES} at once")
        try:
            values = string_to_properties(body)
        except BodyError:
            return Answer(ERROR, "string2Properties error")
        return then(self._service.update_config(values, origin_of(request.connection)), plain_answer)

    def heartbeat(self, request: Request) -> Outcome:
        """``BROKER_HEARTBEAT`` (904)."""
        cluster_name, broker_addr = request.fields.get("clusterName"), request.fields.get("brokerAddr")
        if cluster_name is None or broker_addr is None:
            return Answer(ERROR, "clusterName or brokerAddr is missing")
        self._service.heartbeat(cluster_name, broker_addr, request.connection)
        return Answer()


def plain_answer(result: Result) -> Answer:
    """Code and remark, no response header."""
    return Answer(result.code, result.remark)

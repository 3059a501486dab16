"""Code 103: registrations, recognised without decoding where nothing can have changed, else evaluated in slices.

Brokers send the same registration every 30 s or less. Per (cluster, address) the header fields that matter, a hash of the body
(less the one stamp in it that means nothing), and the group's generation are remembered, but only of a registration that was
fully evaluated, changed nothing, and during whose evaluation the generation did not move. ``RouteInfoManager.group_generation``
proves that the same registration changes nothing and has the same answer as long as that generation stands; so it is only a
sign of life then. The hash has 128 bits and is not cryptographic: whoever forges an equal one makes his own registration go
unnoticed, nobody else's.

The checksum of the body that brokers send along is compared each time. For a body that differs from the remembered one in its
stamp alone it follows from the remembered checksum (``wire.crc32``), so that the body is read once, for the hash.
"""

import asyncio
import time
from asyncio import Future
from collections.abc import Callable, Generator
from functools import partial
from typing import NamedTuple, Protocol
from zlib import crc32

from xxhash import xxh3_128

from replicated_namesrv.model import DataVersion
from replicated_namesrv.routes.commands import RegisterBroker
from replicated_namesrv.routes.results import Result
from replicated_namesrv.routes.state import RouteInfoManager
from replicated_namesrv.server.registration_queue import SMALL_BYTES, Evaluation, RegistrationQueue
from replicated_namesrv.server.request import Answer, Deferred, Outcome, Request, java_boolean, java_int, java_long, settle, then
from replicated_namesrv.server.server_metrics import ServerMetrics
from replicated_namesrv.service import Connection
from replicated_namesrv.settings import Settings
from replicated_namesrv.wire.bodies import encode_kv_table
from replicated_namesrv.wire.codes import ResponseCode
from replicated_namesrv.wire.crc32 import VariedCrc
from replicated_namesrv.wire.fastjson import finish
from replicated_namesrv.wire.registration_body import RegisterBrokerBody, decode_register_body
from replicated_namesrv.wire.registration_canonical import without_meaning

ERROR = ResponseCode.SYSTEM_ERROR.value
ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"
SLICE_BYTES = 1 << 20
"""Bytes of a body that are hashed, or checked, in one slice."""
MEMO_ENTRIES_MAX = 100_000
CRC_MASK = 0x7FFFFFFF
WRONG_CRC = Answer(ERROR, "crc32 not match", {})


class RegistrationService(Protocol):
    """What takes registrations."""

    @property
    def state(self) -> RouteInfoManager:
        """Applied state; never write to it."""

    def register(self, registration: RegisterBroker, connection: Connection) -> Result | Future[Result]:
        """Apply a registration, attach the broker to ``connection`` and count it as a heartbeat. Raises LimitError."""

    def renew_unchanged(
        self, cluster_name: str, broker_addr: str, connection: Connection
    ) -> Result | Future[Result | None] | None:
        """Renew a registration that is provably the stored one: attach the broker to ``connection`` and count a heartbeat. The
        result is the one that registering again would give. None, at once or later: register it (for example an unknown broker).
        """


class Reading(NamedTuple):
    """What a registration is recognised by."""

    fields: tuple[object, ...]
    """Header fields that the outcome depends on, as they were sent."""
    body_hash: bytes
    """Of all of the body that the outcome depends on, and of where the rest stood."""
    crc: VariedCrc | None
    """Of the body, with its stamp as the part that varies; None: the broker sent none to compare it with."""


class Memo(NamedTuple):
    """A registration that changed nothing."""

    reading: Reading
    generation: int


class Registrations:
    """Handler of code 103."""

    def __init__(
        self,
        settings: Settings,
        service: RegistrationService,
        metrics: ServerMetrics,
        wall_clock_ms: Callable[[], int] = lambda: int(time.time() * 1000),
    ) -> None:
        self.queue = RegistrationQueue(metrics)
        self._settings = settings
        self._service = service
        self._metrics = metrics
        self._wall_clock_ms = wall_clock_ms
        self._memos: dict[tuple[str, str], Memo] = {}
        self._order_topics: tuple[int, bytes] | None = None
        """Revision of ORDER_TOPIC_CONFIG, and what is answered of it."""

    def register(self, request: Request) -> Outcome:
        """Code 103. Raises BodyError."""
        get = request.fields.get
        cluster_name, broker_addr, broker_name = get("clusterName"), get("brokerAddr"), get("brokerName")
        if not cluster_name or not broker_addr or not broker_name or java_long(get("brokerId")) is None:
            missing = [name for name in ("clusterName", "brokerName", "brokerAddr") if not get(name)]
            return Answer(
                ERROR, f"{', '.join(missing) or 'brokerId'} is missing; send all of clusterName, brokerName, brokerAddr, brokerId"
            )
        body = memoryview(request.data)[request.bounds.body_start : request.bounds.end]
        if len(body) > SMALL_BYTES:
            return self.queue.evaluate(request, self._evaluate(request, body, None))
        reading = finish(self._read(request, body))
        if reading is None:
            return WRONG_CRC
        known = self._known(request, body, reading)
        if known is not None:
            return known
        return self.queue.evaluate(request, self._evaluate(request, bytes(body), reading))

    def _read(self, request: Request, body: memoryview) -> Generator[None, None, Reading | None]:
        """What the request is recognised by; None: its checksum is wrong."""
        start, end = without_meaning(body)
        digest = xxh3_128(body[:start])
        for position in range(end, len(body), SLICE_BYTES):
            if position > end:
                yield
            digest.update(body[position : position + SLICE_BYTES])
        body_hash = digest.digest() + start.to_bytes(4, "big")
        sent = java_int(request.fields.get("bodyCrc32"))
        crc = None
        if sent:
            memo = self._memos.get(key_of(request))
            crc = memo.reading.crc if memo is not None and memo.reading.body_hash == body_hash else None
            if crc is None:
                crc = yield from read_crc(body, start, end)
            if sent != crc.with_part(body[start:end]) & CRC_MASK:
                return None
        return Reading(memo_fields(request), body_hash, crc)

    def _known(self, request: Request, body: memoryview, reading: Reading) -> Outcome | None:
        """The outcome where the body need not be decoded."""
        cluster_name, broker_addr = key = key_of(request)
        memo = self._memos.get(key)
        if (
            memo is not None
            and memo.reading.body_hash == reading.body_hash
            and memo.reading.fields == reading.fields
            and memo.generation == self._service.state.group_generation(request.fields["brokerName"])
        ):
            outcome = self._service.renew_unchanged(cluster_name, broker_addr, request.connection)
            if isinstance(outcome, Future):
                self._metrics.registration_memo_hits += 1
                done: Future[Answer] = asyncio.get_running_loop().create_future()
                outcome.add_done_callback(partial(self._renewed, request, bytes(body), reading, done))
                return Deferred(done, lambda answer: answer)
            if outcome is not None:
                self._metrics.registration_memo_hits += 1
                return self._answer(outcome)
        self._metrics.registration_memo_misses += 1
        return None

    def _renewed(
        self, request: Request, body: bytes, reading: Reading, done: Future[Answer], outcome: Future[Result | None]
    ) -> None:
        """A renewal was confirmed, or has to become a registration after all."""
        if done.done():
            return
        if request.connection.is_closing:
            done.cancel()
            return
        try:
            result = outcome.result()
            if result is None:
                settle(done, self.queue.evaluate(request, self._evaluate(request, body, reading)))
            else:
                done.set_result(self._answer(result))
        except asyncio.CancelledError:
            done.cancel()
        except Exception as error:
            done.set_exception(error)

    def _evaluate(self, request: Request, body: bytes | memoryview, reading: Reading | None) -> Evaluation:
        """All that is left to do; without ``reading``, that too."""
        if reading is None:
            assert isinstance(body, memoryview)
            reading = yield from self._read(request, body)
            if reading is None:
                return WRONG_CRC
            known = self._known(request, body, reading)
            if known is not None:
                return known
        body = bytes(body)
        yield
        compressed = java_boolean(request.fields.get("compressed"))
        decoded = yield from decode_register_body(
            body, request.header.version, compressed, self._settings.max_inflated_body_bytes
        )
        return self._apply(request, reading, decoded)

    # -- applying ---------------------------------------------------------------------------------------------------------

    def _apply(self, request: Request, reading: Reading, decoded: RegisterBrokerBody) -> Outcome:
        command = registration_of(request, decoded, self._wall_clock_ms())
        generation = self._service.state.group_generation(command.broker_name)
        return then(
            self._service.register(command, request.connection),
            lambda result: self._registered(reading, command, generation, decoded.data_version is not None, result),
        )

    def _registered(
        self, reading: Reading, command: RegisterBroker, generation: int, is_repeatable: bool, result: Result
    ) -> Answer:
        state = self._service.state
        key = (command.cluster_name, command.broker_addr)
        held = state.registration(*key)
        is_held = held is not None and (held.broker_name, held.broker_id) == (command.broker_name, command.broker_id)
        same_generation = generation == state.group_generation(command.broker_name)
        if is_repeatable and is_held and same_generation and result.code == 0 and not result.changed:
            if len(self._memos) >= MEMO_ENTRIES_MAX:
                self._memos.clear()
            self._memos[key] = Memo(reading, generation)
        return self._answer(result)

    def _answer(self, result: Result) -> Answer:
        if result.code:
            return Answer(result.code, result.remark, {})
        fields = {}
        if result.ha_server_addr:
            fields["haServerAddr"] = result.ha_server_addr
        if result.master_addr:
            fields["masterAddr"] = result.master_addr
        is_wanted = self._service.state.settings.return_order_topic_config_to_broker
        return Answer(ext_fields=fields, body=self._order_topic_config() if is_wanted else b"")

    def _order_topic_config(self) -> bytes:
        """The same for all brokers, so it is encoded once for each change of the namespace."""
        state = self._service.state
        revision = state.kv_revision(ORDER_TOPIC_CONFIG)
        if self._order_topics is None or self._order_topics[0] != revision:
            table = state.kv_view(ORDER_TOPIC_CONFIG)
            self._order_topics = (revision, b"" if table is None else encode_kv_table(table))
        return self._order_topics[1]


def key_of(request: Request) -> tuple[str, str]:
    """Cluster name and address of the broker that registers."""
    return request.fields["clusterName"], request.fields["brokerAddr"]


def memo_fields(request: Request) -> tuple[object, ...]:
    """Header fields that the outcome of a registration depends on."""
    get = request.fields.get
    return (
        request.header.version,
        get("brokerName"),
        get("brokerId"),
        get("haServerAddr"),
        get("heartbeatTimeoutMillis"),
        get("enableActingMaster"),
        get("__ZONE_NAME"),
        get("compressed"),
    )


def read_crc(body: memoryview, start: int, end: int) -> Generator[None, None, VariedCrc]:
    """The checksum of a body, by the part from ``start`` to ``end``; in slices."""
    before = crc32(body[:start])
    whole = varied = crc32(body[start:end], before)
    for position in range(end, len(body), SLICE_BYTES):
        if position > end:
            yield
        whole = crc32(body[position : position + SLICE_BYTES], whole)
    return VariedCrc(whole, before, varied, len(body) - end)


def registration_of(request: Request, decoded: RegisterBrokerBody, now_ms: int) -> RegisterBroker:
    """The command of a request whose mandatory fields are there; a body without DataVersion has one of ``now_ms``."""
    get = request.fields.get
    broker_id = java_long(get("brokerId"))
    assert broker_id is not None
    acting = get("enableActingMaster")
    return RegisterBroker(
        cluster_name=request.fields["clusterName"],
        broker_name=request.fields["brokerName"],
        broker_addr=request.fields["brokerAddr"],
        broker_id=broker_id,
        ha_server_addr=get("haServerAddr", ""),
        zone_name=get("__ZONE_NAME"),
        heartbeat_timeout_ms=java_long(get("heartbeatTimeoutMillis")),
        enable_acting_master=None if acting is None else java_boolean(acting),
        data_version=decoded.data_version or DataVersion(0, 0, now_ms),
        topics=decoded.topics,
        topic_queue_mapping_infos=decoded.topic_queue_mapping_infos,
        filter_servers=decoded.filter_servers,
    )

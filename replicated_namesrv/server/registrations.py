"""Code 103: registrations, recognised without decoding where nothing can have changed, decoded in slices where they are large.

**Memo.** Brokers send the same registration every 30 s or less. Per (cluster, address) the header fields that matter, a hash
of the body (less the one stamp in it that means nothing), and the group's generation are remembered, but only of a registration
that was fully evaluated, changed nothing, and during whose evaluation the generation did not move.
``RouteInfoManager.group_generation`` proves that the same registration changes nothing and has the same answer as long as that
generation stands; so it is only a sign of life then. The hash has 128 bits and is not cryptographic: whoever forges an equal one
makes his own registration go unnoticed, nobody else's.

**Slices.** Decoding runs a few milliseconds at a time. What is not done within the first slice is queued; one queue for all
connections and one slice per turn of the loop, so that 300 large registrations at once delay others no more than one does.
The connection of a queued registration is read no further until it is applied: what a broker says after it comes after it.
What is queued is bounded in bytes.
"""

import asyncio
import time
import zlib
from asyncio import Future
from collections import deque
from collections.abc import Callable
from functools import partial
from time import perf_counter_ns
from typing import NamedTuple

from xxhash import xxh3_128

from replicated_namesrv.model import DataVersion
from replicated_namesrv.routes.commands import RegisterBroker
from replicated_namesrv.routes.results import Result
from replicated_namesrv.server.metrics import ServerMetrics
from replicated_namesrv.server.request import (
    OVERLOAD,
    Answer,
    Deferred,
    Outcome,
    Request,
    java_boolean,
    java_int,
    java_long,
    then,
)
from replicated_namesrv.service import NameService
from replicated_namesrv.settings import Settings
from replicated_namesrv.wire.bodies import encode_kv_table
from replicated_namesrv.wire.codes import ResponseCode
from replicated_namesrv.wire.registration import RegisterBrokerBody, Steps, decode_register_body
from replicated_namesrv.wire.registration_canonical import without_meaning

ERROR = ResponseCode.SYSTEM_ERROR.value
ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"
TURN_BUDGET_NS = 4_000_000
"""Decoding time per turn of the loop."""
QUEUED_BYTES_MAX = 512 << 20
"""Bodies that wait to be decoded, in all; a registration beyond them is answered with code 2, and its broker tries again."""
MEMO_ENTRIES_MAX = 100_000
CRC_MASK = 0x7FFFFFFF


class Memo(NamedTuple):
    """A registration that changed nothing."""

    fields: tuple[object, ...]
    """Header fields that the outcome depends on, as they were sent."""
    body_hash: bytes
    generation: int


class Job:
    """A registration being decoded."""

    __slots__ = ("body_bytes", "body_hash", "done", "fields", "request", "steps")

    def __init__(
        self, request: Request, steps: Steps, fields: tuple[object, ...], body_hash: bytes, done: Future[Answer]
    ) -> None:
        self.request = request
        self.body_bytes = request.bounds.end - request.bounds.body_start
        self.steps = steps
        self.fields = fields
        self.body_hash = body_hash
        self.done = done


class Registrations:
    """Handler of code 103."""

    def __init__(
        self,
        settings: Settings,
        service: NameService,
        metrics: ServerMetrics,
        wall_clock_ms: Callable[[], int] = lambda: int(time.time() * 1000),
    ) -> None:
        self._settings = settings
        self._service = service
        self._metrics = metrics
        self._wall_clock_ms = wall_clock_ms
        self._memos: dict[tuple[str, str], Memo] = {}
        self._queue: deque[Job] = deque()
        self._queued_bytes = 0
        self._spent_ns = 0
        """Decoding time in this turn of the loop."""
        self._turn_scheduled = False

    def register(self, request: Request) -> Outcome:
        """Code 103. Raises BodyError."""
        get = request.fields.get
        cluster_name, broker_addr, broker_name = get("clusterName"), get("brokerAddr"), get("brokerName")
        if not cluster_name or not broker_addr or not broker_name or java_long(get("brokerId")) is None:
            missing = [name for name in ("clusterName", "brokerName", "brokerAddr") if not get(name)]
            return Answer(
                ERROR, f"{', '.join(missing) or 'brokerId'} is missing; send all of clusterName, brokerName, brokerAddr, brokerId"
            )
        fields = memo_fields(request)
        body = memoryview(request.data)[request.bounds.body_start : request.bounds.end]
        crc = java_int(get("bodyCrc32"))
        if crc and crc != zlib.crc32(body) & CRC_MASK:
            return Answer(ERROR, "crc32 not match", {})
        body_hash = hash_of_meaning(body)
        memo = Memo(fields, body_hash, self._service.state.group_generation(broker_name))
        if memo == self._memos.get((cluster_name, broker_addr)):
            outcome = self._service.renew_unchanged(cluster_name, broker_addr, request.connection)
            if isinstance(outcome, Future):
                self._metrics.registration_memo_hits += 1
                start, bounds = request.start, request.bounds
                shifted = bounds._replace(
                    header_start=bounds.header_start - start, body_start=bounds.body_start - start, end=bounds.end - start
                )
                frame = Request(request.connection, request.header, request.data[start : bounds.end], 0, shifted)
                done: Future[Answer] = asyncio.get_running_loop().create_future()
                outcome.add_done_callback(partial(self._renewed, frame, fields, body_hash, done))
                return Deferred(done, lambda answer: answer)
            if outcome is not None:
                self._metrics.registration_memo_hits += 1
                return self._answer(outcome)
        self._metrics.registration_memo_misses += 1
        return self._decode(request, fields, body_hash)

    def _renewed(
        self,
        request: Request,
        fields: tuple[object, ...],
        body_hash: bytes,
        done: Future[Answer],
        outcome: Future[Result | None],
    ) -> None:
        """A renewal was confirmed, or has to become a registration after all."""
        if done.done():
            return
        try:
            result = outcome.result()
            settle(done, self._decode(request, fields, body_hash) if result is None else self._answer(result))
        except asyncio.CancelledError:
            done.cancel()
        except Exception as error:
            done.set_exception(error)

    def stop(self) -> None:
        """Drop what is queued."""
        for job in self._queue:
            job.done.cancel()
        self._queue.clear()
        self._queued_bytes = 0

    # -- decoding -------------------------------------------------------------------------------------------------------

    def _decode(self, request: Request, fields: tuple[object, ...], body_hash: bytes) -> Outcome:
        compressed = java_boolean(request.fields.get("compressed"))
        steps = decode_register_body(request.body, request.header.version, compressed, self._settings.max_inflated_body_bytes)
        job = Job(request, steps, fields, body_hash, asyncio.get_running_loop().create_future())
        if not self._queue and self._spent_ns < TURN_BUDGET_NS:
            decoded = self._run(steps)
            if decoded is not None:
                return self._apply(job, decoded)
        if self._queued_bytes + job.body_bytes > QUEUED_BYTES_MAX:
            self._metrics.hit_limit("queuedRegistrationBytes")
            return OVERLOAD
        self._queue.append(job)
        self._queued_bytes += job.body_bytes
        self._schedule_turn()
        request.connection.suspend()
        return Deferred(job.done, lambda answer: answer)

    def _run(self, steps: Steps) -> RegisterBrokerBody | None:
        """Decode until done or until this turn's budget is spent (None). Raises BodyError."""
        started_ns = perf_counter_ns()
        try:
            while self._spent_ns + perf_counter_ns() - started_ns < TURN_BUDGET_NS:
                next(steps)
        except StopIteration as stop:
            decoded: RegisterBrokerBody = stop.value
            return decoded
        finally:
            self._spent_ns += perf_counter_ns() - started_ns
            self._schedule_turn()
        return None

    def _schedule_turn(self) -> None:
        if not self._turn_scheduled:
            self._turn_scheduled = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        """A new turn of the loop: the oldest queued registrations get its budget."""
        self._turn_scheduled = False
        self._spent_ns = 0
        while self._queue and self._spent_ns < TURN_BUDGET_NS:
            job = self._queue[0]
            connection = job.request.connection
            if connection.is_closing:
                self._drop_first()
                job.done.cancel()
                continue
            try:
                decoded = self._run(job.steps)
                if decoded is None:
                    return
                outcome = self._apply(job, decoded)
            except Exception as error:
                job.done.set_exception(error)
            else:
                settle(job.done, outcome)
            self._drop_first()
            connection.resume()

    def _drop_first(self) -> None:
        self._queued_bytes -= self._queue.popleft().body_bytes

    # -- applying ---------------------------------------------------------------------------------------------------------

    def _apply(self, job: Job, decoded: RegisterBrokerBody) -> Outcome:
        started_ns = perf_counter_ns()
        command = registration_of(job.request, decoded, self._wall_clock_ms())
        generation = self._service.state.group_generation(command.broker_name)
        outcome = then(
            self._service.register(command, job.request.connection),
            lambda result: self._registered(job, command, generation, decoded.data_version is not None, result),
        )
        self._spent_ns += perf_counter_ns() - started_ns
        return outcome

    def _registered(self, job: Job, command: RegisterBroker, generation: int, is_repeatable: bool, result: Result) -> Answer:
        state = self._service.state
        key = (command.cluster_name, command.broker_addr)
        held = state.registration(*key)
        is_held = held is not None and (held.broker_name, held.broker_id) == (command.broker_name, command.broker_id)
        same_generation = generation == state.group_generation(command.broker_name)
        if is_repeatable and is_held and same_generation and result.code == 0 and not result.changed:
            if len(self._memos) >= MEMO_ENTRIES_MAX:
                self._memos.clear()
            self._memos[key] = Memo(job.fields, job.body_hash, generation)
        return self._answer(result)

    def _answer(self, result: Result) -> Answer:
        if result.code:
            return Answer(result.code, result.remark, {})
        fields = {}
        if result.ha_server_addr:
            fields["haServerAddr"] = result.ha_server_addr
        if result.master_addr:
            fields["masterAddr"] = result.master_addr
        body = b""
        state = self._service.state
        if state.settings.return_order_topic_config_to_broker:
            table = state.kv_namespace(ORDER_TOPIC_CONFIG)
            body = b"" if table is None else encode_kv_table(table)
        return Answer(ext_fields=fields, body=body)


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


def hash_of_meaning(body: memoryview) -> bytes:
    """Hash of all of a body that a registration's outcome depends on, and of where the rest stood."""
    start, end = without_meaning(body)
    digest = xxh3_128(body[:start])
    digest.update(body[end:])
    return digest.digest() + start.to_bytes(4, "big")


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


def settle(done: Future[Answer], outcome: Outcome) -> None:
    """Complete ``done`` with what ``outcome`` is or becomes."""
    if isinstance(outcome, Answer):
        done.set_result(outcome)
        return

    def settled(future: Future[object]) -> None:
        try:
            done.set_result(outcome.convert(future.result()))
        except asyncio.CancelledError:
            done.cancel()
        except Exception as error:
            done.set_exception(error)

    outcome.future.add_done_callback(settled)

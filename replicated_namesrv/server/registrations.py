"""``REGISTER_BROKER`` (103): registrations, recognised without decoding if nothing can have changed, otherwise evaluated in
slices.

**Recognised.** Brokers send the same registration every 30 s by default. For each registered broker there is a memo of three
values: a hash of the header fields on which the outcome depends, a hash of the body without ``mappingDataVersion``, which is
never used, and the group's generation. The memo is made only if the registration was fully evaluated, changed nothing, and the
generation did not change during the evaluation. It has a fixed size, and the state drops it when the registration ends.
While the generation is the same, the same registration is only a renewal: it changes nothing and has the same answer
(``RouteInfoManager.group_generation`` has the proof). The hashes are 64 and 128 bits long and not cryptographic: a forged
collision only suppresses the forger's own registration.

The checksum of the body that brokers send along is compared each time. If a body differs from the remembered one only in
``mappingDataVersion``, its checksum is derived from the remembered one (``wire.crc32``), so that the body is read only once,
for the hash.

**Evaluated in slices**, so that no registration delays other connections. A small body is evaluated on arrival, if no other one
waits and this turn of the loop has time left. Other small bodies wait, and so does every large one. So if forty large frames
are completed in one turn, that turn only receives them. There are two queues, so that small ones do not wait for large ones.
Only the first body of each queue is decoded at a time, which bounds the memory for decoding. The time is charged to the
broker's address. While the address waits for its share of the loop, none of its registrations begins, and those of others do
not wait for it (``turn_shares.py``).

Reading from a connection stops while one of its registrations waits, which keeps the order of its requests. If the peer closes
the connection meanwhile, the kernel reports this, and a large registration is dropped at once, because its broker would soon be
removed. The waiting bodies are bounded in bytes.
"""

import asyncio
import select
import time
from asyncio import Future
from collections import deque
from collections.abc import Callable, Generator
from functools import partial
from time import perf_counter_ns
from typing import TYPE_CHECKING, NamedTuple, Protocol
from zlib import crc32

from xxhash import xxh3_128

from replicated_namesrv.errors import BodyError, LimitError, NoPermissionError
from replicated_namesrv.model import DataVersion
from replicated_namesrv.routes.commands import RegisterBroker
from replicated_namesrv.routes.results import Result
from replicated_namesrv.routes.state import RouteInfoManager
from replicated_namesrv.server.problems import Problems
from replicated_namesrv.server.request import (
    OVERLOAD,
    Answer,
    Deferred,
    Outcome,
    Request,
    java_boolean,
    java_int,
    java_long,
    settle,
    then,
)
from replicated_namesrv.server.server_metrics import ServerMetrics
from replicated_namesrv.server.turn_shares import TurnShares
from replicated_namesrv.service import Connection
from replicated_namesrv.settings import Settings
from replicated_namesrv.steps import finish
from replicated_namesrv.wire.bodies import encode_kv_table
from replicated_namesrv.wire.codes import ResponseCode
from replicated_namesrv.wire.crc32 import VariedCrc
from replicated_namesrv.wire.frame import MAX_TOTAL
from replicated_namesrv.wire.registration_body import RegisterBrokerBody, decode_register_body, without_meaning

if TYPE_CHECKING:
    from replicated_namesrv.server.connection import RemotingConnection

TURN_BUDGET_NS = 2_000_000
"""Time for evaluation in one turn of the loop, plus at most one slice. If both queues have work, each gets half of this time.
On three replicated nodes, a renewal or write of another host waits for about six turns."""
QUEUED_BYTES_MAX = 512 << 20
"""Maximum total of waiting bodies in bytes. A registration beyond it is answered with code 2, and its broker tries again."""
ORDER_TOPICS_BYTES_MAX = MAX_TOTAL - (64 << 10)
"""Limit on ORDER_TOPIC_CONFIG in an answer, which leaves room for the header."""
SMALL_BYTES = 1 << 20
"""A registration with a longer body goes to the queue of large ones."""

Evaluation = Generator[None, None, Outcome]
"""Evaluates a registration in slices and yields between them. Raises BodyError."""


class Job:
    """A waiting registration."""

    __slots__ = ("body_bytes", "connection", "done", "evaluation", "has_begun", "is_dropped")

    def __init__(self, connection: "RemotingConnection", evaluation: Evaluation, body_bytes: int) -> None:
        self.connection = connection
        self.evaluation = evaluation
        self.body_bytes = body_bytes
        self.has_begun = False
        self.is_dropped = False
        self.done: Future[Answer] = asyncio.get_running_loop().create_future()


class RegistrationQueue:
    """The waiting registrations, in two queues."""

    def __init__(self, metrics: ServerMetrics, shares: TurnShares) -> None:
        self.queued_bytes = 0
        """Total of waiting bodies in bytes."""
        self._metrics, self._shares = metrics, shares
        self._small: deque[Job] = deque()
        self._large: deque[Job] = deque()
        self._jobs: dict[RemotingConnection, list[Job]] = {}
        """Waiting registrations by connection. If renewals must be confirmed, several of one connection may wait."""
        self._departures = select.poll()
        self._watched: dict[int, RemotingConnection] = {}
        """Connections of large registrations, by descriptor."""
        self._descriptors: dict[RemotingConnection, int] = {}
        """The inverse of ``_watched``. It is needed because a lost connection no longer has a descriptor."""
        self._spent_ns = 0
        """Time spent in this turn of the loop."""
        self._turn_scheduled = False

    def evaluate(self, request: Request, evaluation: Evaluation) -> Outcome:
        """The outcome of a registration, now or later. Raises BodyError."""
        body_bytes = request.bounds.end - request.bounds.body_start
        is_small, has_begun = body_bytes <= SMALL_BYTES, False
        if is_small and not self._small and self._spent_ns < TURN_BUDGET_NS:
            has_begun = True
            outcome = self._advance(evaluation, perf_counter_ns() + TURN_BUDGET_NS - self._spent_ns)
            self._schedule_turn()
            if outcome is not None:
                return outcome
        if self.queued_bytes + body_bytes > QUEUED_BYTES_MAX:
            self._metrics.hit_limit("queuedRegistrationBytes")
            return OVERLOAD
        job = Job(request.connection, evaluation, body_bytes)
        job.has_begun = has_begun
        (self._small if is_small else self._large).append(job)
        self.queued_bytes += body_bytes
        self._jobs.setdefault(job.connection, []).append(job)
        if not is_small:
            descriptor = job.connection.descriptor
            self._watched[descriptor] = job.connection
            self._descriptors[job.connection] = descriptor
            self._departures.register(descriptor, select.POLLRDHUP)
        self._schedule_turn()
        job.connection.suspend()
        return Deferred(job.done, lambda answer: answer)

    def drop(self, connection: "RemotingConnection") -> None:
        """Drop the waiting registrations of a connection that has ended."""
        for job in self._jobs.get(connection, [])[:]:
            self._remove(job)
            job.is_dropped = True
            job.evaluation.close()
            job.done.cancel()

    def stop(self) -> None:
        """Drop everything."""
        for connection in list(self._jobs):
            self.drop(connection)

    def _remove(self, job: Job) -> None:
        self.queued_bytes -= job.body_bytes
        jobs = self._jobs[job.connection]
        jobs.remove(job)
        if not jobs:
            del self._jobs[job.connection]
            descriptor = self._descriptors.pop(job.connection, None)
            # the descriptor may belong to another connection by now
            if descriptor is not None and self._watched.get(descriptor) is job.connection:
                del self._watched[descriptor]
                self._departures.unregister(descriptor)

    def _schedule_turn(self) -> None:
        if not self._turn_scheduled:
            self._turn_scheduled = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_scheduled = False
        self._spent_ns = 0
        if not self._jobs:
            return
        for descriptor, _ in self._departures.poll(0):
            connection = self._watched[descriptor]
            self.drop(connection)
            connection.dropped()
            connection.resume()  # reading then reports that the peer has closed the connection
        budget_ns = TURN_BUDGET_NS // 2 if self._small and self._large else TURN_BUDGET_NS
        for queue in (self._small, self._large):
            self._serve(queue, perf_counter_ns() + budget_ns)
        if self._small or self._large:
            self._schedule_turn()

    def _serve(self, queue: deque[Job], until_ns: int) -> None:
        """Evaluate the registrations of ``queue``, the oldest first. If an address has used up its share, its registrations leave
        the queue until its debt is paid (``turn_shares.py``). A registration whose evaluation has begun stays."""
        while queue and perf_counter_ns() < until_ns:
            job = queue[0]
            share = job.connection.share
            if not job.has_begun and not job.is_dropped and share.is_used_up:
                self._shares.wait(share, partial(self._queue_again, queue, queue.popleft()))
                continue
            if not job.is_dropped:
                job.has_begun = True
                started_ns = perf_counter_ns()
                try:
                    try:
                        outcome = self._advance(job.evaluation, until_ns)
                    finally:
                        self._shares.spend(share, perf_counter_ns() - started_ns)
                    if outcome is None:
                        return
                    settle(job.done, outcome)
                except (BodyError, LimitError, NoPermissionError) as error:
                    # set_result, because an exception would keep the body in memory: its traceback refers to the body and is in a
                    # reference cycle with the future
                    job.done.set_result(Answer(error.response_code, str(error)))
                except Exception as error:
                    job.done.set_exception(error)
                self._remove(job)
                if job.connection not in self._jobs:
                    job.connection.resume()
            queue.popleft()

    def _queue_again(self, queue: deque[Job], job: Job) -> bool:
        """Queue a registration again, because its address has paid its debts. Debts that the address makes on other requests
        before this evaluation begins do not delay it again."""
        if job.is_dropped:
            return False
        job.has_begun = True
        queue.append(job)
        self._schedule_turn()
        return True

    def _advance(self, evaluation: Evaluation, until_ns: int) -> Outcome | None:
        """Evaluate until there is an outcome. None: the time is up. Raises BodyError."""
        started_ns = perf_counter_ns()
        try:
            while True:
                next(evaluation)
                if perf_counter_ns() >= until_ns:
                    return None
        except StopIteration as stop:
            outcome: Outcome = stop.value
            return outcome
        finally:
            self._spent_ns += perf_counter_ns() - started_ns


ERROR = ResponseCode.SYSTEM_ERROR.value
ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"
SLICE_BYTES = 1 << 20
"""Bytes of a body that are hashed, or checked, in one slice."""
CRC_MASK = 0x7FFFFFFF
WRONG_CRC = Answer(ERROR, "crc32 not match", {})


class RegistrationService(Protocol):
    """The part of a node that accepts registrations."""

    @property
    def state(self) -> RouteInfoManager:
        """The applied state. Do not write to it, except for memos."""

    def register(
        self, registration: RegisterBroker, connection: Connection, received: int | None = None
    ) -> Result | Future[Result]:
        """Apply a registration, attach the broker to ``connection`` and count it as a heartbeat. The result has no epoch if the
        registration was not stored. ``received``: the revision of the state when the request had arrived; None: the present
        one. Raises LimitError.
        """

    def renew_unchanged(
        self, cluster_name: str, broker_addr: str, connection: Connection
    ) -> Result | Future[Result | int] | None:
        """Renew a registration that is known to equal the stored one: attach the broker to ``connection`` and count a heartbeat.
        The result is the same as that of registering again. It is None, or the revision at which the request was received, if the
        broker has to be registered, for example because it is unknown.
        """


class Reading(NamedTuple):
    """The key by which a repeated registration is recognised. Its size does not depend on the request."""

    fields_hash: int
    """Python's hash of those header fields on which the outcome depends, as they were sent."""
    body_hash: bytes
    """Hash of the part of the body on which the outcome depends, and the position of the rest of the body."""
    crc: VariedCrc | None
    """Checksum of the body. Its variable part is ``mappingDataVersion``. None: the broker sent no checksum."""


class Memo(NamedTuple):
    """A registration that had no effect on the state."""

    reading: Reading
    generation: int


class Registrations:
    """Handler of ``REGISTER_BROKER`` (103)."""

    def __init__(
        self,
        settings: Settings,
        service: RegistrationService,
        metrics: ServerMetrics,
        shares: TurnShares,
        problems: Problems,
        wall_clock_ms: Callable[[], int] = lambda: int(time.time() * 1000),
    ) -> None:
        self.queue = RegistrationQueue(metrics, shares)
        self._settings = settings
        self._service = service
        self._metrics = metrics
        self._problems = problems
        self._wall_clock_ms = wall_clock_ms
        self._order_topics: tuple[int, bytes] | None = None
        """Revision of ORDER_TOPIC_CONFIG, and the body that was made from it."""

    def register(self, request: Request) -> Outcome:
        """``REGISTER_BROKER`` (103). Raises BodyError."""
        get = request.fields.get
        cluster_name, broker_addr, broker_name = get("clusterName"), get("brokerAddr"), get("brokerName")
        if not cluster_name or not broker_addr or not broker_name or java_long(get("brokerId")) is None:
            missing = [name for name in ("clusterName", "brokerName", "brokerAddr") if not get(name)]
            return Answer(
                ERROR, f"{', '.join(missing) or 'brokerId'} is missing; send all of clusterName, brokerName, brokerAddr, brokerId"
            )
        body, received = memoryview(request.data)[request.bounds.body_start : request.bounds.end], self._service.state.revision
        if len(body) > SMALL_BYTES:
            return self.queue.evaluate(request, self._evaluate(request, body, None, received))
        reading = finish(self._read(request, body))
        if reading is None:
            return WRONG_CRC
        known = self._known(request, body, reading, received)
        if known is not None:
            return known
        return self.queue.evaluate(request, self._evaluate(request, bytes(body), reading, received))

    def _read(self, request: Request, body: memoryview) -> Generator[None, None, Reading | None]:
        """The key of the request. None: its checksum is wrong."""
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
            memo = self._memo(request)
            crc = memo.reading.crc if memo is not None and memo.reading.body_hash == body_hash else None
            if crc is None:
                crc = yield from read_crc(body, start, end)
            if sent != crc.with_part(body[start:end]) & CRC_MASK:
                return None
        return Reading(hash_of_fields(request), body_hash, crc)

    def _memo(self, request: Request) -> Memo | None:
        memo = self._service.state.memo(*key_of(request))
        assert memo is None or isinstance(memo, Memo), "only this module keeps memos"
        return memo

    def _known(self, request: Request, body: memoryview, reading: Reading, received: int) -> Outcome | None:
        """The outcome if the body need not be decoded. ``received``: as for ``_evaluate``."""
        memo = self._memo(request)
        if (
            memo is not None
            and memo.reading.body_hash == reading.body_hash
            and memo.reading.fields_hash == reading.fields_hash
            and memo.generation == self._service.state.group_generation(request.fields["brokerName"])
        ):
            outcome = self._service.renew_unchanged(*key_of(request), request.connection)
            if isinstance(outcome, Future):
                self._metrics.registration_memo_hits += 1
                done: Future[Answer] = asyncio.get_running_loop().create_future()
                outcome.add_done_callback(partial(self._renewed, request, bytes(body), reading, received, done))
                return Deferred(done, lambda answer: answer)
            if outcome is not None:
                self._metrics.registration_memo_hits += 1
                return self._answer(outcome)
        self._metrics.registration_memo_misses += 1
        return None

    def _renewed(
        self,
        request: Request,
        body: bytes,
        reading: Reading,
        received: int,
        done: Future[Answer],
        outcome: Future[Result | int],
    ) -> None:
        """A renewal has an outcome: it was confirmed, or the broker has to be registered."""
        if done.done():
            return
        if request.connection.is_closing:
            done.cancel()
            return
        try:
            result = outcome.result()
            if isinstance(result, int):
                settle(done, self.queue.evaluate(request, self._evaluate(request, body, reading, received)))
            else:
                done.set_result(self._answer(result))
        except asyncio.CancelledError:
            done.cancel()
        except Exception as error:
            done.set_exception(error)

    def _evaluate(self, request: Request, body: bytes | memoryview, reading: Reading | None, received: int) -> Evaluation:
        """Evaluate the registration. If ``reading`` is None, the request is read first. ``received``: the revision of the state
        when the request had arrived. The evaluation can wait for seconds, and the broker may have unregistered since."""
        if reading is None:
            assert isinstance(body, memoryview)
            reading = yield from self._read(request, body)
            if reading is None:
                return WRONG_CRC
            known = self._known(request, body, reading, received)
            if known is not None:
                return known
        body = bytes(body)
        yield
        compressed = java_boolean(request.fields.get("compressed"))
        decoded = yield from decode_register_body(
            body, request.header.version, compressed, self._settings.max_inflated_body_bytes
        )
        return self._apply(request, reading, decoded, received)

    # -- applying ---------------------------------------------------------------------------------------------------------

    def _apply(self, request: Request, reading: Reading, decoded: RegisterBrokerBody, received: int) -> Outcome:
        command = registration_of(request, decoded, self._wall_clock_ms())
        generation = self._service.state.group_generation(command.broker_name)
        if request.origin is not None:
            request.origin.check()
        # set again, because a later request of the connection may have been received meanwhile
        request.connection.origin = request.origin
        try:
            outcome = self._service.register(command, request.connection, received)
        finally:
            request.connection.origin = None
        return then(
            outcome,
            lambda result: self._registered(reading, command, generation, decoded.data_version is not None, result),
        )

    def _registered(
        self, reading: Reading, command: RegisterBroker, generation: int, is_repeatable: bool, result: Result
    ) -> Answer:
        state = self._service.state
        held = state.registration(command.cluster_name, command.broker_addr)
        is_same = generation == state.group_generation(command.broker_name) and state.is_registered(command)
        if held is not None and is_same and is_repeatable and result.epoch is not None and not result.changed:
            state.put_memo(held, Memo(reading, generation))
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
        """ORDER_TOPIC_CONFIG as a body. The body is the same for all brokers, so it is encoded once for each change of the
        namespace.
        """
        state = self._service.state
        revision = state.kv_revision(ORDER_TOPIC_CONFIG)
        if self._order_topics is None or self._order_topics[0] != revision:
            table, size = state.kv_view(ORDER_TOPIC_CONFIG), state.kv_text_bytes(ORDER_TOPIC_CONFIG)
            body = b"" if table is None or size > ORDER_TOPICS_BYTES_MAX else encode_kv_table(table)
            size = max(size, len(body))
            # an earlier version accepted so large a value, but brokers could not read the answer
            if size > ORDER_TOPICS_BYTES_MAX:
                told = (
                    "registrations are answered without ORDER_TOPIC_CONFIG, which is too large: delete keys that are not needed"
                )
                self._problems.report("orderTopics", told, bytes=size, bytes_max=ORDER_TOPICS_BYTES_MAX)
                self._metrics.hit_limit("answerBytes")
                body = b""
            self._order_topics = (revision, body)
        return self._order_topics[1]


def key_of(request: Request) -> tuple[str, str]:
    """Cluster name and address of the broker that registers."""
    return request.fields["clusterName"], request.fields["brokerAddr"]


def hash_of_fields(request: Request) -> int:
    """Hash of the header fields on which the outcome of a registration depends."""
    get = request.fields.get
    fields = (
        request.header.version,
        get("brokerName"),
        get("brokerId"),
        get("haServerAddr"),
        get("heartbeatTimeoutMillis"),
        get("enableActingMaster"),
        get("__ZONE_NAME"),
        get("compressed"),
    )
    return hash(fields)


def read_crc(body: memoryview, start: int, end: int) -> Generator[None, None, VariedCrc]:
    """The checksum of a body, for any content of the part from ``start`` to ``end``; computed in slices."""
    before = crc32(body[:start])
    whole = varied = crc32(body[start:end], before)
    for position in range(end, len(body), SLICE_BYTES):
        if position > end:
            yield
        whole = crc32(body[position : position + SLICE_BYTES], whole)
    return VariedCrc(whole, before, varied, len(body) - end)


def registration_of(request: Request, decoded: RegisterBrokerBody, now_ms: int) -> RegisterBroker:
    """The command of a request with all mandatory fields. A body without DataVersion gets one of ``now_ms``."""
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

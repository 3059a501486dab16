"""One accepted connection: bytes in, frames to the dispatcher, answers out, and back-pressure in both directions.

All connections receive into one shared buffer. The loop fills it and passes it on in one step, so it never mixes bytes of two
connections. A connection owns memory only while a frame is incomplete or its peer does not read, so 10,000 silent connections
cost only their sockets and small objects. The first bytes of an incomplete frame are copied into memory of the connection. The
rest is received into the same memory, which grows with the frame. A long frame is passed on from there without a copy.

All complete frames of one read are processed in order, and their answers are sent in one write. Later answers (a Future) are
written when they are ready, in any order, because peers match by opaque.

Reading from a connection stops while unsent bytes are above the high-water mark, while too many of its requests are
unanswered, while one of its registrations is evaluated in slices, or while it waits for its address's share of the next turn.

The first 12 bytes determine the protocol, as in the Java server: PROXY protocol v1 or v2, then TLS by its first byte, then
frames; nothing is decoded before they have arrived.
"""

import asyncio
import fcntl
import socket
import sys
import termios
from collections.abc import Callable
from time import perf_counter_ns
from typing import Protocol, cast

from replicated_namesrv.access.identities import PeerCertificate
from replicated_namesrv.errors import FrameError
from replicated_namesrv.model import ChangeOrigin
from replicated_namesrv.server.connection_access import ConnectionAccess
from replicated_namesrv.server.connection_limits import HeldBytes, Limits, Sources
from replicated_namesrv.server.idle import IdleWheel
from replicated_namesrv.server.problems import Problems
from replicated_namesrv.server.route_answers import LARGE_ANSWER_BYTES, PIECES_PER_WRITE
from replicated_namesrv.server.server_metrics import ServerMetrics
from replicated_namesrv.server.tls import TlsContexts, TlsError, TlsSession
from replicated_namesrv.server.turn_shares import Share, TurnShares
from replicated_namesrv.service import PATIENCE_MS, CloseReason
from replicated_namesrv.wire.frame import FIRST_JUDGED_BYTES, FrameBounds, missing_bytes, next_frame
from replicated_namesrv.wire.proxy_protocol import parse_proxy_header

RECEIVE_BUFFER_BYTES = 262_144
TLS_HANDSHAKE_BYTE = 0x16
FEW_BYTES = 1_024
"""A read with at most this many bytes has few requests. Such a read counts as ``FEW_NS`` of its address's share, because a
measurement would cost as much as a request that is answered from the cache."""
FEW_NS = 10_000
NS_PER_BYTE = 1
"""Estimated time to receive or to send a byte. Most of this time is spent in the kernel, which our measurements do not
include."""
PATIENCE_NS = int(PATIENCE_MS * 1e6)
DEFERRED_NS = 20_000
"""Estimated time to send an answer later. It is counted when the answer is deferred."""
LONG_FRAME_BYTES = 65_536
"""A longer frame that arrives in pieces is not copied: it is processed in the buffer in which it was received."""
ROOM_MIN_BYTES, ROOM_MAX_BYTES = 8192, 1 << 20
"""Minimum and maximum room for the rest of an incomplete frame."""
SAMPLED_HITS = 16
"""Minimum number of fast-path requests that share the latency of one read in the histogram."""


NO_SHARE = Share("")
"""The ``Share`` object of connections that are not admitted (``turn_shares``)."""


Prepared = Callable[["RemotingConnection", bytes, int, list[bytes]], int]
"""Appends answers of frames from a position on. Returns the position of the first frame that was not answered."""


def nothing_prepared(connection: "RemotingConnection", data: bytes, start: int, pieces: list[bytes]) -> int:
    """Answers nothing."""
    return start


class Dispatcher(Protocol):
    """Turns request frames into answer frames."""

    def request(
        self, connection: "RemotingConnection", data: bytes | memoryview, start: int, bounds: FrameBounds
    ) -> bytes | None:
        """Answer of the frame at ``start``. None: there is no answer, or it comes later through ``RemotingConnection.finish``,
        after a call of ``defer``. Raises FrameError."""


class Host(Protocol):
    """The parts that all connections of a server share."""

    limits: Limits
    metrics: ServerMetrics
    held: HeldBytes
    sources: Sources
    shares: TurnShares
    idle: IdleWheel
    problems: Problems
    tls: TlsContexts
    receive_view: memoryview
    now_s: Callable[[], float]

    @property
    def prepared(self) -> "Prepared":
        """Value of ``prepared`` for new connections: ``RouteAnswers.answer`` or ``ConfirmedAnswers.answer``; with access control
        ``nothing_prepared``.
        """

    @property
    def dispatcher(self) -> Dispatcher: ...

    def opened(self, connection: "RemotingConnection") -> bool:
        """Admit ``connection``. False: there are too many."""

    def closed(self, connection: "RemotingConnection", reason: CloseReason) -> None:
        """``connection`` has ended; called once for each that was admitted."""


def unacknowledged_bytes(sock: socket.socket | None) -> int:
    """Number of bytes that were written to a TCP socket and that the other host has not acknowledged (``SIOCOUTQ``). 0 if the
    socket is closed, or if the transport has none."""
    try:
        return 0 if sock is None else int.from_bytes(fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    except (OSError, ValueError):
        return 0


class RemotingConnection(asyncio.BufferedProtocol):
    """Server side of one connection; implements ``service.Connection``."""

    __slots__ = (
        "__weakref__",
        "_awaits_turn",
        "_close_reason",
        "_closing",
        "_decided",
        "_doubtful_until_ns",
        "_ended",
        "_filled",
        "_has_dropped",
        "_host",
        "_is_plain",
        "_needed",
        "_partial",
        "_peer_ended",
        "_proxied",
        "_reading",
        "_running",
        "_suspended",
        "_tls",
        "_transport",
        "_unsent",
        "_unwritable",
        "access",
        "address",
        "connection_id",
        "idle_slot",
        "last_active_tick",
        "origin",
        "peer",
        "pending",
        "prepared",
        "share",
    )

    def __init__(self, host: Host, connection_id: int) -> None:
        self._host = host
        self.connection_id = connection_id
        self.peer = ""
        """host:port, from a PROXY header if that is trusted."""
        self.address = ""
        """Host of the other end of the socket."""
        self.share = NO_SHARE
        """The share of time of this address (``turn_shares``)."""
        self.access: ConnectionAccess | None = None
        """The identity of the caller; None if every request is allowed."""
        self.prepared = host.prepared
        """Answers queries without decoding them. With access control, only while the caller has the permission to read."""
        self.origin: ChangeOrigin | None = None
        """Caller of the change that is being processed; None: unknown."""
        self.pending = 0
        """Number of requests that were received and neither answered nor dropped."""
        self.last_active_tick = 0
        self.idle_slot = 0
        self._transport: asyncio.Transport | None = None
        self._tls: TlsSession | None = None
        self._decided = False
        self._is_plain = False
        """True if the protocol is frames without TLS and the connection is not closing."""
        self._proxied = False
        self._partial: bytearray | None = None
        """Bytes of an incomplete frame or of waiting frames, and free room for more bytes."""
        self._filled = 0
        """Number of bytes received into ``_partial``."""
        self._needed = FIRST_JUDGED_BYTES
        """Number of bytes that must have arrived before the next frame is processed."""
        self._reading = True
        self._unwritable = False
        self._unsent = 0
        self._suspended = False
        self._awaits_turn = False
        self._running = False
        self._ended: CloseReason | None = None
        """Why no further frame is accepted; None: frames are accepted. The connection closes when all earlier frames are
        answered."""
        self._peer_ended: CloseReason | None = None
        """How the peer has ended its side; None: it has not."""
        self._closing = False
        self._close_reason: CloseReason | None = None
        self._doubtful_until_ns = 0
        """Until then, an end by the peer may be caused by an answer that was slow."""
        self._has_dropped = False
        """Whether a request of this connection was dropped without an answer."""

    # -- called by the event loop ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # a cast, because uvloop's class is not registered as a Transport
        self._transport = stream = cast(asyncio.Transport, transport)
        address = stream.get_extra_info("peername")
        self.address = str(address[0]) if address else "?"
        self.peer = f"{address[0]}:{address[1]}" if address else "?"
        if not self._host.opened(self):
            self._transport = None
            stream.abort()
            return
        stream.set_write_buffer_limits(self._host.limits.high_water_bytes, self._host.limits.low_water_bytes)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._partial is None or not self._is_plain:
            return self._host.receive_view
        if self._filled == len(self._partial):
            room = min(max(ROOM_MIN_BYTES, 3 * self._filled), ROOM_MAX_BYTES, self._needed - self._filled)
            self._partial += bytes(room)
        return memoryview(self._partial)[self._filled :]

    def buffer_updated(self, count: int) -> None:
        host = self._host
        metrics = host.metrics
        metrics.bytes_in += count
        self.last_active_tick = host.idle.tick
        if self._is_plain and self._partial is None and not self.share.is_used_up:  # the usual case
            data = host.receive_view[:count].tobytes()
            pieces: list[bytes] = []
            is_sample = metrics.fast_path_hits - metrics.fast_path_observed >= SAMPLED_HITS
            started_ns = perf_counter_ns() if is_sample or count > FEW_BYTES else 0
            position = self.prepared(self, data, 0, pieces)
            spent_ns = FEW_NS if count <= FEW_BYTES else perf_counter_ns() - started_ns + count * NS_PER_BYTE
            if pieces:
                answer = b"".join(pieces)
                answer_bytes = len(answer)
                if answer_bytes > FEW_BYTES:
                    spent_ns += answer_bytes * NS_PER_BYTE
                metrics.bytes_out += answer_bytes
                self._transport.write(answer)  # type: ignore[union-attr]  # there is one until connection_lost
                if is_sample:
                    metrics.observe_fast_path(perf_counter_ns() - started_ns)
            host.shares.spend(self.share, spent_ns)
            if position < count:
                self._take(data, position, is_looked_up=True)
        elif self._is_plain:
            self._receive_more(count)
        elif self._closing:
            return
        elif self._tls is not None:
            self._tls.backlog += host.receive_view[:count]
            self._decrypt()
        else:
            self._append(host.receive_view[:count])
            self._proceed()

    def eof_received(self) -> bool:
        """The peer will send nothing more. Its requests are still answered, then the connection closes."""
        self._peer_ended = self._end_by_peer()
        self._ended = self._ended or self._peer_ended
        self._drop_partial()
        return self.pending > 0

    def pause_writing(self) -> None:
        self._unwritable = True
        self._hold()
        self._set_reading()

    def resume_writing(self) -> None:
        self._unwritable = False
        self._hold()
        self._continue()

    def connection_lost(self, exception: Exception | None) -> None:
        if self._transport is None:
            return
        reason = self._close_reason or self._peer_ended or self._end_by_peer()
        self._transport = None
        self._closing = True
        self._is_plain = False
        self._partial = None
        self._tls = None
        self._host.held.forget(self)
        self._host.idle.discard(self)
        self._host.closed(self, reason)

    def _end_by_peer(self) -> CloseReason:
        """The reason of an end by the peer, at the time of this end."""
        assert self._transport is not None
        is_unanswered = self.pending > 0 or self._has_dropped or self._partial is not None
        is_late = perf_counter_ns() < self._doubtful_until_ns or self._transport.get_write_buffer_size() > 0
        if is_unanswered or is_late or unacknowledged_bytes(self._transport.get_extra_info("socket")):
            return CloseReason.UNACKNOWLEDGED
        return CloseReason.PEER

    def answered_late(self) -> None:
        """An answer took so long that the peer may close the connection for lack of it."""
        self._doubtful_until_ns = perf_counter_ns() + PATIENCE_NS

    def dropped(self) -> None:
        """A request of this connection will not be answered, although the peer waits for its answer."""
        self._has_dropped = True

    # -- called by dispatcher, service and server -----------------------------------------------------------------------

    @property
    def is_closing(self) -> bool:
        """True when the connection is closed or closing, so that no answer is possible."""
        return self._closing

    @property
    def descriptor(self) -> int:
        """File descriptor of the socket, until the connection is lost."""
        assert self._transport is not None
        return int(self._transport.get_extra_info("socket").fileno())

    @property
    def source_host(self) -> str:
        """Host of the other end, from a PROXY header if that is trusted."""
        return self.peer.rpartition(":")[0].strip("[]") or self.peer

    @property
    def is_encrypted(self) -> bool:
        """Whether the connection uses TLS."""
        return self._tls is not None

    @property
    def certificate(self) -> PeerCertificate | None:
        """The verified certificate of the other end; None if there is none."""
        return None if self._tls is None else self._tls.certificate

    def has_sent_something(self) -> bool:
        """Whether unsent bytes were sent or first appeared since the last call: a peer that reads slowly is not idle."""
        unsent = self._transport.get_write_buffer_size() if self._transport is not None else 0
        before, self._unsent = self._unsent, unsent
        return unsent < before or (unsent > 0 and before == 0)

    def defer(self) -> None:
        """One request will be answered later, through ``finish``."""
        self.pending += 1
        self._host.metrics.pending_requests += 1
        self._host.shares.spend(self.share, DEFERRED_NS)
        if self.pending >= self._host.limits.pending_per_connection:
            self._set_reading()

    def finish(self, answer: bytes | None) -> None:
        """Send the answer of a deferred request; None: there is none."""
        host = self._host
        self.pending -= 1
        host.metrics.pending_requests -= 1
        if self._transport is None:
            return
        if answer is not None and self._is_plain and self._reading and self._ended is None:  # the usual case: send at once
            host.metrics.bytes_out += len(answer)
            self._transport.write(answer)
            if len(answer) > FEW_BYTES:
                host.shares.spend(self.share, len(answer) * NS_PER_BYTE)
            self.last_active_tick = host.idle.tick
            if self._unwritable:
                self._hold()
            return
        if answer is not None and not self._closing:
            self._send(answer)
            self.last_active_tick = self._host.idle.tick
            if self._unwritable:
                self._hold()
        if self._ended is not None and not self.pending:
            self.close(self._ended)
        elif not self._reading:
            self._continue()

    def charge(self, work_ns: int) -> None:
        self._host.shares.spend(self.share, work_ns)

    def suspend(self) -> None:
        """Process no further frame of this connection until ``resume``."""
        self._suspended = True
        self._set_reading()

    def resume(self) -> None:
        """End of ``suspend``."""
        self._suspended = False
        self._continue()

    def close(self, reason: CloseReason) -> None:
        if self._closing or self._transport is None:
            return
        self._closing = True
        self._is_plain = False
        self._close_reason = reason
        self._drop_partial()
        if self._tls is not None:
            self._tls.close()
        self._transport.close()

    def give_up(self) -> None:
        """A request cannot be answered here: close, so that the peer uses another server. A connection that is already draining
        first answers what it can."""
        if self._ended is None:
            self.close(CloseReason.OURS)

    def drain(self, reason: CloseReason) -> None:
        """Process no further frame, and close when all earlier ones are answered."""
        self._ended = self._ended or reason
        self._drop_partial()
        if self.pending:
            self._set_reading()
        else:
            self.close(self._ended)

    def abort(self, reason: CloseReason) -> None:
        """Close at once; unsent bytes are lost."""
        if self._transport is None:
            return
        self._closing = True
        self._is_plain = False
        self._close_reason = self._close_reason or reason
        self._transport.abort()

    def close_at_limit(self, name: str) -> None:
        self._host.metrics.hit_limit(name)
        self._host.problems.report(name, "connection closed at a limit", peer=self.peer, limit=name)
        self.abort(CloseReason.OURS)

    # -- receiving ------------------------------------------------------------------------------------------------------

    def _receive_more(self, count: int) -> None:
        """Receive a part of an incomplete frame, or frames that wait for the address's share of a later turn."""
        if self._partial is None:
            self._append(self._host.receive_view[:count])
            self._await_turn()
            return
        self._filled += count
        self._hold()
        self._host.shares.spend(self.share, count * NS_PER_BYTE)
        if self._filled < self._needed and self.share.is_used_up:
            self._await_turn()
        elif self._filled >= ROOM_MAX_BYTES and self._filled < self._needed:
            self._let_others_read()
        self._proceed()

    def _append(self, data: memoryview | bytes) -> None:
        """Keep bytes of an incomplete frame, or frames that wait until there is room for their answers."""
        if self._partial is None:
            self._partial = bytearray(data)
            if self._decided:
                self._needed = 0
            else:
                self._host.held.begin(self, self._host.now_s())
        else:
            self._partial += data
        self._filled = len(self._partial)
        self._hold()

    def _let_others_read(self) -> None:
        """Stop receiving a long frame in this turn; otherwise the loop would continue while there are bytes."""
        if self._reading and self._transport is not None and not self._closing:
            self._transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._read_on)

    def _read_on(self) -> None:
        if self._reading and self._transport is not None and not self._closing:
            self._transport.resume_reading()

    def _drop_partial(self) -> None:
        if self._partial is not None:
            self._partial = None
            self._host.held.end(self)
            self._hold()

    def _proceed(self) -> None:
        """Process the kept bytes, if there are enough of them now."""
        if self._closing or self._partial is None or self._filled < self._needed or not self._reading:
            return
        if self.share.is_used_up:
            self._await_turn()
            return
        received = memoryview(self._partial)[: self._filled]
        if not self._decided:
            self._decide(bytes(received))
        else:
            is_one_long_frame = LONG_FRAME_BYTES < self._filled == self._needed
            self._drop_partial()
            self._take(received.toreadonly() if is_one_long_frame else bytes(received))

    def _decide(self, data: bytes) -> None:
        """Determine the protocol. ``data`` is all that arrived: at least 12 bytes, or what followed a PROXY header."""
        if not self._proxied:
            try:
                header = parse_proxy_header(data, 0, len(data))
            except FrameError as error:
                self._refuse(str(error))
                return
            if header is None:
                self._needed = len(data) + 1
                return
            self._proxied = True
            if header.source and self._host.sources.is_proxy(self.address):
                self.peer = header.source
            data = data[header.size :]
            if not data:
                self._partial = bytearray()
                self._filled = 0
                self._needed = 1
                return
        self._decided = True
        self._drop_partial()
        if data[0] == TLS_HANDSHAKE_BYTE:
            self._start_tls(data)
        elif self._host.tls.server_mode == "enforcing":
            self._refuse("it does not speak TLS, which tls.server.mode=enforcing requires")
        else:
            self._is_plain = True
            self._take(data)

    def _decrypt(self) -> None:
        """Decrypt what has arrived, in pieces within the address's share: records that contain no data cost time, too."""
        tls = self._tls
        if tls is None:
            return
        while tls.backlog and self._reading and not self._closing:
            if self.share.is_used_up:
                self._await_turn()
                break
            started_ns = perf_counter_ns()
            try:
                plain = tls.receive()
            except TlsError as error:
                self._tls_failed(error)
                return
            finally:
                self._host.shares.spend(self.share, perf_counter_ns() - started_ns)
            if plain:
                self._append(plain)
                self._proceed()
        self._hold()
        self._end_tls()

    def _end_tls(self) -> None:
        """If the peer has sent close_notify, drain, unless frames before it wait to be processed."""
        if self._tls is not None and self._tls.ended and self._reading and not self._closing:
            self.drain(self._end_by_peer())

    def _tls_failed(self, error: TlsError) -> None:
        self._host.metrics.tls_failures += 1
        self._host.problems.report("tls", "TLS failed; connection closed", peer=self.peer, why=str(error))
        self.abort(CloseReason.PEER)

    def _start_tls(self, data: bytes) -> None:
        context = self._host.tls.context
        if context is None:
            self._refuse("TLS is not served here")
            return
        assert self._transport is not None
        now_s = self._host.now_s()
        if not self._host.sources.may_handshake(self.address, now_s):
            self.close_at_limit("tlsHandshakes")
            return
        self._host.held.begin(self, now_s)
        self._tls = TlsSession(context, self._transport.write, self._handshake_done)
        self._tls.backlog += data
        self._decrypt()

    def _handshake_done(self) -> None:
        self._host.metrics.tls_handshakes += 1
        self._host.held.end(self)

    def _refuse(self, why: str) -> None:
        """The peer violated the protocol: close without an answer."""
        self._host.problems.report("refused", "connection closed: it does not speak remoting", peer=self.peer, why=why)
        self._host.metrics.hit_limit("malformed")
        self.abort(CloseReason.PEER)

    # -- frames and answers ---------------------------------------------------------------------------------------------

    def _take(self, data: bytes | memoryview, position: int = 0, is_looked_up: bool = False) -> None:
        """Process the frames of ``data`` from ``position`` on in order, and keep what is incomplete or has to wait.

        A view contains one frame. ``is_looked_up``: the first one has no prepared answer.
        """
        if self.share.is_used_up:
            self._keep(memoryview(data)[position:], False)
            self._await_turn()
            return
        started_ns = perf_counter_ns()
        until_ns = started_ns + self._host.shares.left_ns(self.share)
        metrics = self._host.metrics
        answered_before, hits_before = metrics.answered, metrics.fast_path_hits
        incomplete = False
        self._running = True
        try:
            while self._reading and not self._closing and not incomplete and not self.share.is_used_up:
                pieces: list[bytes] = []
                try:
                    if not is_looked_up and isinstance(data, bytes):
                        position = self.prepared(self, data, position, pieces)
                    is_looked_up = True
                    position, incomplete = self._answer(data, position, pieces, until_ns)
                finally:
                    if pieces:
                        self._send(b"".join(pieces))
                if perf_counter_ns() >= until_ns:
                    break
        except FrameError as error:
            self._refuse(str(error))
            return
        finally:
            self._running = False
            self._host.shares.spend(self.share, perf_counter_ns() - started_ns)
        hits = metrics.fast_path_hits - hits_before
        answered = metrics.answered - answered_before + hits
        if answered:
            metrics.latency.observe(perf_counter_ns() - started_ns, answered)
            metrics.fast_path_observed += hits
        if position < len(data) and not self._closing:
            self._keep(memoryview(data)[position:], incomplete)
            if self._reading and not incomplete:
                self._await_turn()

    def _answer(self, data: bytes | memoryview, position: int, pieces: list[bytes], until_ns: int) -> tuple[int, bool]:
        """Answer frames until ``pieces`` are enough for a write. Returns the position, and whether the bytes there are an
        incomplete frame.
        """
        request = self._host.dispatcher.request
        size = len(data)
        while self._reading and not self._closing and len(pieces) < PIECES_PER_WRITE:
            bounds = next_frame(data, position, size)
            if bounds is None:
                return position, True
            answer = request(self, data, position, bounds)
            position = bounds.end
            if answer is not None:
                pieces.append(answer)
                if len(answer) > LARGE_ANSWER_BYTES:
                    break
            if self.share.is_used_up or perf_counter_ns() >= until_ns:
                break
            if position < size and self._reading and isinstance(data, bytes):
                position = self.prepared(self, data, position, pieces)
        return position, position == size

    def _keep(self, rest: memoryview, incomplete: bool) -> None:
        self._needed = len(rest) + missing_bytes(rest, 0, len(rest)) if incomplete else 0
        if incomplete and self._reading:
            self._host.held.begin(self, self._host.now_s())
        self._partial = bytearray(rest)
        self._filled = len(rest)
        self._hold()

    def _send(self, data: bytes) -> None:
        assert self._transport is not None
        self._host.metrics.bytes_out += len(data)
        self._host.shares.spend(self.share, len(data) * NS_PER_BYTE)
        if self._tls is None:
            self._transport.write(data)
            return
        try:
            self._tls.send(data)
        except TlsError as error:
            self._tls_failed(error)

    # -- back-pressure --------------------------------------------------------------------------------------------------

    def _may_read(self) -> bool:
        if self._unwritable or self._suspended or self._awaits_turn or self._ended is not None:
            return False
        return self.pending < self._host.limits.pending_per_connection

    def _set_reading(self) -> None:
        if self._reading and not self._may_read():
            self._reading = False
            # while we do not read, the peer cannot complete a frame, so the time limit of the frame does not apply
            self._host.held.end(self)
            if self._transport is not None and not self._closing:
                self._transport.pause_reading()

    def _await_turn(self) -> None:
        """Process the kept bytes in the address's share of a later turn."""
        if not self._awaits_turn:
            self._awaits_turn = True
            self._set_reading()
            self._host.shares.wait(self.share, self._turn_came)

    def _turn_came(self) -> None:
        self._awaits_turn = False
        self._continue()

    def _continue(self) -> None:
        """A reason not to read has ended: read again if there is no other reason."""
        if self._reading or self._closing or self._transport is None or not self._may_read():
            return
        self._reading = True
        if not self._running:
            self._proceed()
            self._decrypt()
        if self._reading and not self._closing:
            if self._partial is not None or (self._tls is not None and self._tls.is_shaking_hands):
                self._host.held.begin(self, self._host.now_s())
            self._transport.resume_reading()

    def _hold(self) -> None:
        """Report to the accounts how many bytes this connection holds."""
        count = len(self._partial) if self._partial is not None else 0
        if self._tls is not None:
            count += len(self._tls.backlog)
        if self._unwritable and self._transport is not None:
            count += self._transport.get_write_buffer_size()
        self._host.held.hold(self, count)

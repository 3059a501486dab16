"""Connections as state machines: the first bytes at the remoting port, the handshake of peers, and requests of the admin port.

The parts are those of a real node, on an event loop of their own. Only the socket is replaced.
"""

import asyncio
import contextlib
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, cast
from unittest.mock import Mock

from aiohttp import StreamReader, web
from aiohttp.test_utils import make_mocked_request

from replicated_namesrv.admin.watch import parse_position
from replicated_namesrv.errors import BodyError, FrameError
from replicated_namesrv.process import ServingNode
from replicated_namesrv.raft.hello_names import pack_names
from replicated_namesrv.raft.raft_messages import HigherTerm, Message, encode
from replicated_namesrv.raft.transport import (
    LENGTH,
    MAGIC,
    NONCE_BYTES,
    OFFER_MARK,
    SEALING_MARK,
    FrameSeal,
    PeerTransport,
    TransportSettings,
    _Accepted,
    _Dialled,
    proof,
)
from replicated_namesrv.server.connection import RemotingConnection
from replicated_namesrv.settings_sources import load_settings
from replicated_namesrv.wire.proxy_protocol import parse_proxy_header

MODES = ("disabled", "permissive", "enforcing")
PROXY = "127.0.0.3"
TLS_BYTE = 0x16
DECIDED_BYTES = 12


@cache
def loop() -> asyncio.AbstractEventLoop:
    """The loop of all nodes of this process."""
    return asyncio.new_event_loop()


class FakeSocket(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self, host: str) -> None:
        super().__init__({"peername": (host, 4711)})
        self.written = bytearray()
        self.is_closed = self.is_paused = False

    def write(self, data: Any) -> None:
        self.written += data

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.is_closed

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False


_ends = contextlib.ExitStack()


@cache
def node(mode: str) -> ServingNode:
    """A started node with this tls.server.mode."""
    own = {"bindAddress": "127.0.0.1", "listenPort": "0", "adminListen": "127.0.0.1:0", "proxyProtocolFrom": f"{PROXY}/32"}
    folder = tempfile.TemporaryDirectory(prefix="fuzz-")
    settings = load_settings(flags={**own, "tls.server.mode": mode, "dataDir": folder.name}, environment={})
    started = ServingNode(settings)
    loop().run_until_complete(started.start())

    _ends.callback(folder.cleanup)
    _ends.callback(lambda: loop().run_until_complete(started.stop()))
    return started


def stop_nodes() -> None:
    """Stop all nodes that were started. Call it before the process ends."""
    _ends.close()
    node.cache_clear()


# -- the first bytes of a connection


async def feed(server: Any, parts: Iterator[bytes]) -> FakeSocket:
    """A connection that receives these parts; it is still open unless the server closed it."""
    connection: RemotingConnection = server._new_connection()
    socket = FakeSocket(PROXY)
    connection.connection_made(socket)
    try:
        for part in parts:
            while part and not socket.is_closed:
                if socket.is_paused:
                    await asyncio.sleep(0)
                    continue
                view = connection.get_buffer(-1)
                size = min(len(part), len(view))
                view[:size] = part[:size]
                connection.buffer_updated(size)
                part = part[size:]
    finally:
        while socket.is_paused and not socket.is_closed:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0)
        open_before_eof = not socket.is_closed
        connection.eof_received()
        connection.connection_lost(None)
        socket.is_closed = not open_before_eof
    return socket


def header_bytes(data: bytes) -> int:
    """Length of the PROXY header, all bytes if it is incomplete or wrong."""
    try:
        found = parse_proxy_header(data, 0, len(data))
    except FrameError:
        return 0
    return len(data) if found is None else found.size


def first_bytes(data: bytes) -> None:
    """The first byte selects tls.server.mode. The rest arrives in one piece on one connection, and byte by byte on another."""
    if not data:
        return
    mode, data = MODES[data[0] % 3], data[1:]
    server = node(mode).remoting

    async def run() -> None:
        whole = await feed(server, iter([data] if data else []))
        single = await feed(server, (data[at : at + 1] for at in range(len(data))))
        if len(data) - header_bytes(data) >= DECIDED_BYTES:
            # if all bytes arrive together, the node also refuses an incomplete prefix whose first four bytes are wrong
            assert whole.is_closed or not single.is_closed, "bytes that arrive one at a time are refused, and together not"
        if len(data) < DECIDED_BYTES:
            assert not whole.is_closed
            assert not whole.written, "decided too early"
        elif data[0] == TLS_BYTE:
            assert whole.is_closed or mode != "disabled"
        elif not data.startswith((b"PROXY", b"\r\n\r\n\x00\r\nQUIT\n")) and mode == "enforcing":
            assert whole.is_closed, "it speaks no TLS"
        assert not server.connections
        assert server.held.total == 0

    loop().run_until_complete(run())


# -- the handshake of peers

SECRET = b"0123456789abcdef"
CLUSTER = "c"


def ignored(_: str) -> None:
    """Ignores what this node reports about its peers."""


class Conversation:
    """One connection between a node and a peer that the input controls.

    The input is a script. Each step is a byte that selects it and a byte as its argument. The steps include right frames, so
    that everything behind the handshake is reached.
    """

    def __init__(self, dials: bool, has_secret: bool) -> None:
        secret = SECRET if has_secret else None
        settings = TransportSettings("a", CLUSTER, {"a": ("127.0.0.1", 1), "b": ("127.0.0.1", 2)}, ("127.0.0.1", 0), secret)
        self.delivered: list[Message] = []
        self.expected: list[Message] = []
        """Messages that were sent correctly."""
        self.owner = PeerTransport(settings, lambda _, message: self.delivered.append(message), ignored, ignored, ignored)
        self.dials, self.secret = dials, secret or b""
        self.connection = _Dialled(self.owner, "b") if dials else _Accepted(self.owner)
        self.socket = FakeSocket("127.0.0.2")
        self.connection.connection_made(self.socket)
        self.seal: FrameSeal | None = None
        self.has_proved = self.is_ended = False
        """Whether the correct hello or proof was sent, and whether anything wrong was sent."""
        self.own_nonce = OFFER_MARK + bytes(NONCE_BYTES - len(OFFER_MARK)) if dials else SEALING_MARK + bytes(12)
        self.last = b""

    def received(self) -> list[bytes]:
        """The frames that the node has written."""
        found, data = [], bytes(self.socket.written)
        while len(data) >= LENGTH.size:
            (size,) = LENGTH.unpack_from(data)
            found.append(data[LENGTH.size : LENGTH.size + size])
            data = data[LENGTH.size + size :]
        return found

    def send(self, payload: bytes) -> None:
        """Send a frame, in two parts."""
        self.last = LENGTH.pack(len(payload)) + payload
        self.raw(self.last)

    def raw(self, data: bytes) -> None:
        """Send bytes, unless the node has closed the connection."""
        for part in (data[: len(data) // 2], data[len(data) // 2 :]):
            if part and not self.socket.is_closed:
                self.connection.data_received(part)

    def step(self, kind: int, argument: int, rest: bytes) -> None:
        """One step."""
        match kind % 6:
            case 0:
                self.hello(argument)
            case 1:
                self.message(argument)
            case 2 if self.last:
                self.is_ended = True
                spoiled = bytearray(self.last)
                spoiled[-1] ^= argument
                self.raw(bytes(spoiled))
            case 3:
                self.is_ended = True
                self.send(rest[:argument])
            case 4:
                self.is_ended |= bool(rest[:argument])
                self.raw(rest[:argument])
            case 5 if self.dials:
                self.challenge(argument)

    def challenge(self, argument: int) -> None:
        """The acceptor's first frame."""
        right = argument % 3 == 0 and not self.is_ended and not self.received()
        self.is_ended |= not right
        self.send(MAGIC + self.own_nonce + b"x" * (argument % 3))

    def hello(self, argument: int) -> None:
        """Send the proof of the peer; ``argument`` may change a byte of it."""
        frames = self.received()
        if self.dials:
            if not frames:
                return
            nonce = frames[0][:NONCE_BYTES]
            payload = bytearray(proof(self.secret, b"accept", self.own_nonce, nonce, "a", "b", CLUSTER))
        else:
            nonce = frames[0][len(MAGIC) :]
            mac = proof(self.secret, b"dial", nonce, self.own_nonce, "b", "a", CLUSTER)
            payload = bytearray(self.own_nonce + mac + pack_names("b", "a", CLUSTER))
        again = self.has_proved
        if argument:
            payload[argument % len(payload)] ^= argument
        if again or self.is_ended or argument:
            self.is_ended = True
        else:
            self.has_proved = True
            self.seal = None if self.dials else FrameSeal(self.secret, nonce, self.own_nonce, "b", "a", CLUSTER)
        self.send(bytes(payload))

    def message(self, argument: int) -> None:
        """Send a message, with the correct MAC if there is a key."""
        message = HigherTerm(1, 1, argument)
        payload = encode(message)
        if self.seal is not None and self.has_proved and not self.is_ended:
            self.expected.append(message)
            payload += self.seal.of(payload)
        else:
            self.is_ended = True
        self.send(payload)

    def check(self) -> None:
        """Check the conditions that hold after every step."""
        assert self.delivered == self.expected, "something else than the genuine messages was delivered"
        assert not self.connection.authenticated or self.has_proved, "authenticated without a proof"
        if isinstance(self.connection, _Accepted):
            assert (self.owner.accepted.get("b") is self.connection) == self.connection.authenticated
            assert (self.connection in self.owner.unauthenticated) != self.connection.authenticated

    def end(self) -> None:
        """The connection is lost."""
        self.connection.connection_lost(None)
        assert not self.owner.accepted
        assert not self.owner.unauthenticated


def peer_handshake(data: bytes) -> None:
    """The first byte selects who dials, and whether there is a secret; steps follow."""
    if not data:
        return

    async def run() -> None:
        conversation = Conversation(bool(data[0] & 1), bool(data[0] & 2))
        for at in range(1, min(len(data) - 1, 60), 2):
            conversation.step(data[at], data[at + 1], data[at + 2 :])
            conversation.check()
        conversation.end()

    loop().run_until_complete(run())


# -- requests of the admin port

VIEWS = ("/v1/topics", "/v1/brokers", "/v1/kv", "/v1/routes/", "/v1/status", "/v1/config", "/v1/digest")
PAGES = (*VIEWS, "/console/", "/rocketmq/nsaddr-")
STATUSES = {200, 400, 401, 403, 404, 405, 412, 413, 415}
HEADERS = ("Host", "Authorization", "Origin", "readConsistency", "maxStalenessMs", "Content-Encoding", "X-Forwarded-For")


def admin_request(data: bytes) -> None:
    """The first byte selects the path, and whether the request is a ``POST /v1/config``. The first line of the rest is the end of
    the path with its query string, or the body. The other lines are headers."""
    if not data:
        return
    line, *more = data[1:].split(b"\n")
    with contextlib.suppress(BodyError):
        parse_position(line.decode("latin-1"))
    names = HEADERS[data[0] % len(HEADERS) :]
    headers = {"Host": "127.0.0.1"} | {
        name: value.decode("latin-1").translate({13: " ", 0: " "}) for name, value in zip(names, more, strict=False)
    }
    changes = data[0] >= 0xF0
    target = "/v1/config" if changes else PAGES[data[0] % len(PAGES)] + line.decode("latin-1")
    started = node("disabled")

    async def run() -> None:
        assert started.admin is not None
        app = started.admin._listener._runner.app
        body = StreamReader(Mock(), 1 << 16, loop=asyncio.get_running_loop())
        body.feed_data(line)
        body.feed_eof()
        socket = FakeSocket("127.0.0.1")
        request = make_mocked_request("POST" if changes else "GET", target, headers, payload=body, app=app, transport=socket)
        match = await app.router.resolve(request)
        match.add_app(app)
        match.freeze()
        request._match_info = match
        response = await cast(Callable[[web.Request], Any], app._handle)(request)
        assert response.status in STATUSES, (response.status, getattr(response, "text", None))

    loop().run_until_complete(run())

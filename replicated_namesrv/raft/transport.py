"""Peer transport: TCP connections of length-prefixed frames, authenticated both ways before the first message.

- One connection per ordered pair of nodes: the dialler sends, the acceptor only receives. So a fault can affect one direction
  only. If a peer connects again, the new connection replaces the old one, and the old one's remaining bytes are dropped.
- Names are not addresses: ``addresses`` has the address at which this node dials each peer, so a proxy or NAT may be in
  between. The host names in it are looked up in one thread for each peer (``HostLookUp``).
- Hello: the acceptor sends a nonce. The dialler answers with its own nonce, the cluster, both names and an HMAC-SHA256 over all
  of these, keyed with the shared secret. The acceptor then proves in the same way that it knows the secret. A recorded hello fits
  no other nonce, direction, cluster or pair of names.
- After the hello every frame carries a MAC (``FrameSeal``): keyed BLAKE2b under a key that is derived from the secret, both
  nonces, the names and the direction. It covers the frame and the number of frames before it. So if a frame was altered,
  repeated, reordered, left out, or taken from another connection or direction, the connection is closed, and nothing from that
  frame on is delivered.
- Versions are negotiated in the marks that begin both nonces, and each proof covers both nonces. So two nodes that know MACs
  use them. If a mark is removed on the way, both proofs are wrong. A peer of 0.1.0 has no marks; its connections, in both
  directions, have no MACs, and the status says ``sealed: false``.
- The dialler's nonce names its process. While one process of a node is connected and sends messages, a second process under the
  same name (a copy of the data directory, a service started twice) is refused with the reason.
- TLS, if configured, is mutual: each certificate must name its node as a DNS subject alternative name. Files are read again
  when they change; existing connections keep the old ones.
- Without secret and TLS, peers are not authenticated. Then only a loopback address may be bound.
- Limits: bytes of a frame (small before authentication), time for a hello, bytes waiting for a slow reader, connections not
  yet authenticated, also those whose TLS handshake is in progress.

A node that joins a cluster may know addresses of members without their names. It connects to each and names no receiver, to learn
the name (H10, ``peer_names.py``). Then it dials the member by this name, and only that connection proves the name.

The acceptor of a connection decides by the first row that matches. H1 and H3 to H8 increment ``PeerTransport.refused_count``:

| row | the connection                                        | outcome            | reason                                    |
|-----|-------------------------------------------------------|--------------------|-------------------------------------------|
| H1  | has no valid hello yet, and too many others have none | close the oldest   | strangers take bounded memory, and cannot |
|     |                                                       | of the address     | keep out a peer that sends its hello at   |
|     |                                                       | that has most      | once                                      |
| H2  | has sent no valid hello within `HELLO_SECONDS`        | close              | as H1                                     |
| H3  | is not a hello: too long, cut short, not UTF-8        | close              | another program, or a scanner             |
| H4  | names another cluster                                 | close              | configured wrongly                        |
| H6  | has a proof by neither ``secret`` nor one of          | close              | another secret, or a recorded hello       |
|     | ``accepted_secrets``                                  |                    |                                           |
| H7  | has a certificate that does not name the sender       | close              | one node cannot use another one's name    |
| H5  | names another receiver                                | send our name,     | added under a wrong name, or at a wrong   |
|     |                                                       | close              | address                                   |
| H10 | names no receiver                                     | send our name,     | the dialler knows an address only         |
|     |                                                       | close              |                                           |
| H8  | is of a stranger, and strangers are not accepted; or  | refuse, say why    | a removed node; two processes of one name |
|     | of a second process while the first one is connected  |                    |                                           |
| H9  | is anything else                                      | accept             | it replaces the sender's former one       |

The dialler decides by the first row that matches:

| row | the acceptor                                          | outcome            | reason                                    |
|-----|-------------------------------------------------------|--------------------|-------------------------------------------|
| D1  | sends no challenge of this protocol first             | close, dial later  | another program or version                |
| D2  | refuses (H8)                                          | close, dial later  | its reason is shown in the status         |
| D6  | sends its name (H5)                                   | close, dial later  | the name is shown in the status           |
| D3  | has a wrong proof                                     | close, dial later  | it does not know the secret               |
| D4  | has a right proof                                     | ready              |                                           |
| D5  | sends anything after that                             | close, dial later  | an acceptor only receives                 |

After the hello the acceptor decides for each frame by the first row that matches:

| row | the frame                                             | outcome            | reason                                    |
|-----|-------------------------------------------------------|--------------------|-------------------------------------------|
| F1  | is longer than `frame_bytes_max`                      | close              | bounded memory                            |
| F2  | came over a connection that a newer one has replaced  | ignore             | bytes of two connections never mix        |
| F3  | lacks the right MAC, and the dialler sends MACs       | close, count       | altered, or not the next of this          |
|     |                                                       |                    | connection                                |
| F4  | is not a message                                      | close              | another program or version                |
| F5  | is anything else                                      | deliver            |                                           |

The length of a frame is not yet authenticated while the frame arrives. A forged one has two effects: up to `frame_bytes_max`
bytes wait for the rest, and the election time-out is extended (``on_arriving``), within its bound.

The tests of each row: ``HANDSHAKE_ROWS`` in ``tests/raft/test_handshake_rows.py``.
"""

import asyncio
import contextlib
import hmac
import os
import secrets
import socket
import ssl
import struct
from asyncio.sslproto import SSLProtocol
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b, sha256
from random import Random
from typing import NoReturn, cast

from replicated_namesrv.host_look_up import HostLookUp
from replicated_namesrv.listening import is_loopback, stop_listening
from replicated_namesrv.raft.hello_names import pack_names, unpack_names
from replicated_namesrv.raft.peer_tls import Tls, TlsFiles
from replicated_namesrv.raft.raft_errors import MalformedError, PeerRefusalError, TransportError
from replicated_namesrv.raft.raft_messages import Message, decode, encode

LENGTH = struct.Struct("<I")
MAGIC = b"RAFT\x01"
NONCE_BYTES = 16
PROCESS_MARK = b"RNp1"
"""First bytes of a dialler's nonce if the nonce names the dialler's process. Versions without this mark draw the whole nonce at
random."""
SEALING_MARK = b"RNp2"
"""First bytes of a dialler's nonce if the dialler also seals its frames. The mark is only sent to an acceptor that offers to
check seals."""
OFFER_MARK = b"RNs1"
"""First bytes of an acceptor's nonce if the acceptor checks the seals of frames. Versions without this mark draw the whole nonce
at random."""
PROCESS_BYTES = 6
REFUSAL_REPEAT_SECONDS = 10.0
"""Interval in which the same refusal is logged only once."""
REFUSED = b"REFUSED "
"""First bytes of the frame that a refused dialler gets instead of a proof. The reason follows."""
NAMED = b"NAMED "
"""First bytes of the frame with the acceptor's name, for a dialler that named no receiver."""
LIVE_SECONDS = 2.0
"""After each message, a connection counts as in contact for this time (row H8). A node sends an introduction every few
heartbeats."""
MAC_BYTES = 32
SEAL_BYTES = 16
COUNT = struct.Struct("<Q")
# bound to names of this module, because each is used for every frame
_pack_length, _pack_count, _equal = LENGTH.pack, COUNT.pack, hmac.compare_digest
HELLO_BYTES_MAX = 1024
HELLO_SECONDS = 3
DIAL_SECONDS = 2.0
DIAL_PAUSE_MIN_SECONDS, DIAL_PAUSE_MAX_SECONDS = 0.05, 1.0
EAGER_SECONDS = LIVE_SECONDS + 1
"""For this time after the start, the dialler uses the minimum pause, because peers may refuse a process for ``LIVE_SECONDS``
(row H8)."""
UNACKNOWLEDGED_MS_MAX = 3_000
"""TCP closes a connection when sent bytes are unacknowledged for this long. After a cut, a new connection is faster than TCP's
retries."""
UNAUTHENTICATED_MAX = 64
NO_NAME = ""
"""Receiver in a hello that asks for the acceptor's name."""


@dataclass(frozen=True, slots=True)
class TransportSettings:
    node_id: str
    cluster_id: str
    addresses: Mapping[str, tuple[str, int]]
    """Addresses at which this node dials each configured peer."""
    listen: tuple[str, int]
    secret: bytes | None = None
    tls: TlsFiles | None = None
    frame_bytes_max: int = 20 << 20
    """Maximum length of a frame; a longer one closes its connection."""
    buffer_bytes_max: int = 48 << 20
    """Maximum number of bytes that wait for a peer that does not read. At this number the connection is closed."""
    accepted_secrets: tuple[bytes, ...] = ()
    """Other secrets that a dialler may use, while the secret of a cluster is replaced. The connection then uses the secret of the
    dialler."""
    unnamed: tuple[tuple[str, int], ...] = ()
    """Addresses of members that a joining node contacts first, and whose names it does not know."""


def proof(secret: bytes, role: bytes, acceptor_nonce: bytes, dialler_nonce: bytes, *names: str) -> bytes:
    """HMAC over everything that distinguishes this hello from any other; each part has a fixed length or is hashed."""
    parts = [role, acceptor_nonce, dialler_nonce, *(name.encode() for name in names)]
    return hmac.digest(secret, b"".join(sha256(part).digest() for part in parts), "sha256")


class ForgedFrameError(MalformedError):
    """A frame without the right MAC."""


class FrameSeal:
    """The MACs of the frames of one connection, in order; both ends have one.

    BLAKE2b is the fastest MAC of the standard library for short frames: 1.4 µs, where HMAC-SHA256 takes 5.7 µs. A copy of the
    keyed state saves hashing the key for each frame.
    """

    __slots__ = ("_copy", "_count")

    def __init__(self, secret: bytes, acceptor_nonce: bytes, dialler_nonce: bytes, *names: str) -> None:
        """``names``: dialler, acceptor, cluster."""
        key = proof(secret, b"frames of the dialler", acceptor_nonce, dialler_nonce, *names)
        self._copy = blake2b(key=key, digest_size=SEAL_BYTES).copy
        self._count = 0

    def of(self, payload: bytes) -> bytes:
        """The MAC of the next frame."""
        mac = self._copy()
        mac.update(_pack_count(self._count))
        mac.update(payload)
        self._count += 1
        return mac.digest()

    def opened(self, frame: bytes) -> bytes:
        """The payload of the next frame. Raises ForgedFrameError if the MAC is not that of this frame at this position."""
        payload = frame[:-SEAL_BYTES]
        if len(frame) < SEAL_BYTES or not _equal(frame[-SEAL_BYTES:], self.of(payload)):
            raise ForgedFrameError("a frame has a wrong MAC")
        return payload


class _Frames(asyncio.Protocol):
    """Cuts the stream into frames."""

    def __init__(self, owner: "PeerTransport") -> None:
        self.owner = owner
        self._loop_time = asyncio.get_running_loop().time
        self.transport: asyncio.Transport | None = None
        self.authenticated = False
        self.last_received_at = 0.0
        """When the last bytes arrived, on the loop's clock."""
        self._seal: FrameSeal | None = None
        """MACs of the dialler's frames: the acceptor checks them, the dialler computes them. None: the dialler sends no MACs."""
        self._buffer = bytearray()
        self._ended = False
        """True after a frame that closes the connection. Later bytes are not read."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # a cast, because uvloop's class is not derived from asyncio.Transport
        self.transport = cast(asyncio.Transport, transport)

    @property
    def is_sealed(self) -> bool:
        """Whether the frames carry MACs."""
        return self._seal is not None

    def silent_seconds(self) -> float:
        """Time since the last bytes arrived."""
        return self._loop_time() - self.last_received_at

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def send_frame(self, payload: bytes) -> None:
        if self.transport is not None:
            self.transport.write(LENGTH.pack(len(payload)) + payload)

    def data_received(self, data: bytes) -> None:
        if self._ended:
            return
        self.last_received_at = self._loop_time()
        buffer = self._buffer
        try:
            size = len(data) - LENGTH.size
            if not buffer and 0 <= size <= HELLO_BYTES_MAX and data.startswith(_pack_length(size)):
                self.on_frame(data[LENGTH.size :])  # exactly one frame, the usual case, needs no buffer
                return
            buffer += data
            position, end = 0, len(buffer)
            while end - position >= LENGTH.size:
                (length,) = LENGTH.unpack_from(buffer, position)
                limit = self.owner.settings.frame_bytes_max + SEAL_BYTES if self.authenticated else HELLO_BYTES_MAX
                if length > limit:
                    raise MalformedError(f"a frame of {length} bytes, the limit is {limit}")
                stop = position + LENGTH.size + length
                if stop > end:
                    self.on_part(length)
                    break
                with memoryview(buffer) as view:
                    frame = bytes(view[position + LENGTH.size : stop])
                position = stop
                self.on_frame(frame)
        except MalformedError as error:
            if isinstance(error, ForgedFrameError):
                self.owner.forged_frames += 1
            self.owner.refused(f"connection closed: {error}")
            self._ended = True
            buffer.clear()
            self.abort()
            return
        del buffer[:position]

    def on_frame(self, frame: bytes) -> None:
        raise NotImplementedError

    def on_part(self, length: int) -> None:
        """More of a frame of ``length`` bytes has arrived, but not all."""


class _Accepted(_Frames):
    """A connection that a peer dialled: it sends, we receive."""

    def __init__(self, owner: "PeerTransport") -> None:
        super().__init__(owner)
        self.peer: str | None = None
        self.host = ""
        self.process = b""
        """The dialler's process; empty if the hello does not name it."""
        self._nonce = OFFER_MARK + secrets.token_bytes(NONCE_BYTES - len(OFFER_MARK))
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        owner = self.owner
        if not owner.admit(self):
            return
        self._timer = asyncio.get_running_loop().call_later(HELLO_SECONDS, self.abort)  # H2
        self.send_frame(MAGIC + self._nonce)

    def on_frame(self, frame: bytes) -> None:
        owner = self.owner
        if self.peer is None:
            self._on_hello(frame)
        elif owner.accepted.get(self.peer) is self:
            try:
                payload = frame if self._seal is None else self._seal.opened(frame)
            except ForgedFrameError:
                raise ForgedFrameError(
                    f"a frame from {self.peer} has a wrong MAC: it was altered, repeated or moved on its way, or belongs to "
                    f"another connection; check what is between {self.host} and this node"
                ) from None
            owner.on_message(self.peer, decode(payload))

    def on_part(self, length: int) -> None:
        owner = self.owner
        if self.peer is not None and owner.accepted.get(self.peer) is self:
            owner.on_arriving(self.peer, length)

    def _on_hello(self, frame: bytes) -> None:
        settings = self.owner.settings
        nonce, mac = frame[:NONCE_BYTES], frame[NONCE_BYTES : NONCE_BYTES + MAC_BYTES]
        source, target, cluster = unpack_names(frame[NONCE_BYTES + MAC_BYTES :], 3)  # H3
        if cluster != settings.cluster_id:  # H4
            raise MalformedError(f"{source!r} belongs to cluster {cluster!r}, this is {settings.cluster_id!r}")
        names = source, target, cluster
        for secret in (settings.secret or b"", *settings.accepted_secrets):
            if hmac.compare_digest(mac, proof(secret, b"dial", self._nonce, nonce, *names)):
                break
        else:  # H6
            raise MalformedError(f"{source} does not know the shared secret")
        self._check_certificate(source)  # H7
        if target not in (settings.node_id, NO_NAME):  # H5: a proven peer learns the name
            self.owner.refused(f"connection closed: hello from {source!r} to {target!r}: this is {settings.node_id!r}")
            self._answer_and_close(NAMED + settings.node_id.encode())
            return
        if target == NO_NAME:  # H10
            self._answer_and_close(NAMED + settings.node_id.encode())
            return
        if nonce.startswith((PROCESS_MARK, SEALING_MARK)):
            self.process = nonce[len(PROCESS_MARK) :][:PROCESS_BYTES]
        if (reason := self._refusal(source)) is not None:  # H8
            self.owner.refused(f"connection closed: {reason}")
            self._answer_and_close(REFUSED + reason.encode())
            return
        self.send_frame(proof(secret, b"accept", self._nonce, nonce, *names))  # H9
        if self._timer:
            self._timer.cancel()
        self.owner.unauthenticated.pop(self, None)
        if nonce.startswith(SEALING_MARK):
            self._seal = FrameSeal(secret, self._nonce, nonce, *names)
        self.peer, self.authenticated = source, True
        older = self.owner.accepted.get(source)
        self.owner.accepted[source] = self
        if older is not None:
            older.abort()
        if source in self.owner.peers:
            self.owner.peers[source].has_come.set()

    def _answer_and_close(self, frame: bytes) -> None:
        self.send_frame(frame)
        if self.transport is not None:
            self.transport.close()  # ``close``, not ``abort``, so that the frame is sent before the connection ends

    def _refusal(self, source: str) -> str | None:
        """The reason to refuse, if ``source`` is not a member, or another live process speaks for it.

        A stranger has to know the secret. A certificate is not enough, because its authority may have signed certificates of
        clients, too."""
        owner = self.owner
        # with neither a secret nor TLS, only loopback addresses can connect
        is_proven = owner.settings.secret is not None or owner.tls is None
        if source not in owner.peers and not (is_proven and owner.accepts_strangers()):
            return f"{source} is not a member here: it was removed, was not added yet, or its disk or ours is of another cluster"
        older = self.owner.accepted.get(source)
        if older is None or not self.process or not older.process or older.process == self.process:
            return None
        if (silent := older.silent_seconds()) >= LIVE_SECONDS:
            return None
        return f"another process speaks as {source} already, its last message is {silent:.1f} s old; stop one of the two"

    def _check_certificate(self, source: str) -> None:
        """With TLS, the certificate must name the node that the hello names as the sender."""
        if self.owner.tls is None:
            return
        assert self.transport is not None
        certificate = self.transport.get_extra_info("peercert") or {}
        if ("DNS", source) not in certificate.get("subjectAltName", ()):
            raise MalformedError(f"the certificate of {source} does not name it")

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer:
            self._timer.cancel()
        self.owner.unauthenticated.pop(self, None)
        if self.peer is not None and self.owner.accepted.get(self.peer) is self:
            del self.owner.accepted[self.peer]


class _Handshake(asyncio.Protocol):
    """A connection that a peer dialled, until its TLS handshake is done. It counts as not authenticated."""

    def __init__(self, owner: "PeerTransport", tls: Tls) -> None:
        self._owner, self._tls = owner, tls
        self.transport: asyncio.Transport | None = None
        self.host = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin TLS at once, because ``start_tls`` would lose bytes that arrive before it takes effect."""
        self.transport = cast(asyncio.Transport, transport)
        if not self._owner.admit(self):
            return
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        done.add_done_callback(self._done)
        accepted = _Accepted(self._owner)
        protocol = SSLProtocol(loop, accepted, self._tls.server, done, server_side=True, ssl_handshake_timeout=HELLO_SECONDS)
        self.transport.set_protocol(protocol)
        protocol.connection_made(self.transport)

    def _done(self, done: "asyncio.Future[None]") -> None:
        self._owner.unauthenticated.pop(self, None)
        if not done.cancelled():
            done.exception()  # a failed handshake has closed the connection

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()


class _Dialled(_Frames):
    """A connection that we dialled: we send; after the hello nothing may arrive."""

    def __init__(self, owner: "PeerTransport", peer: str) -> None:
        super().__init__(owner)
        self.peer = peer
        self._expected: bytes | None = None
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[None] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()

    def on_frame(self, frame: bytes) -> None:
        settings = self.owner.settings
        if self._expected is None:
            if len(frame) != len(MAGIC) + NONCE_BYTES or not frame.startswith(MAGIC):
                raise MalformedError(f"{self.peer} speaks another protocol or version")  # D1
            names = settings.node_id, self.peer, settings.cluster_id
            secret, nonce = settings.secret or b"", frame[len(MAGIC) :]
            seals = nonce.startswith(OFFER_MARK)
            own = (SEALING_MARK if seals else PROCESS_MARK) + self.owner.process
            own += secrets.token_bytes(NONCE_BYTES - len(own))
            self._expected = proof(secret, b"accept", nonce, own, *names)
            self._seal = FrameSeal(secret, nonce, own, *names) if seals else None
            self.send_frame(own + proof(secret, b"dial", nonce, own, *names) + pack_names(*names))
        elif frame.startswith(REFUSED) and not self.authenticated:  # D2
            self._fail(PeerRefusalError(f"{self.peer} refuses this node: {frame[len(REFUSED) :].decode(errors='replace')}"))
        elif frame.startswith(NAMED) and not self.authenticated:  # D6
            named = frame[len(NAMED) :].decode(errors="replace")
            place = f"the node at the address of {self.peer}"
            self._fail(TransportError(f"{place} is named {named!r}; correct the name or the address of {self.peer}"))
        elif self.authenticated:  # D5
            raise MalformedError(f"{self.peer} sends over a connection that it accepted")
        elif not hmac.compare_digest(frame, self._expected):  # D3
            raise MalformedError(f"{self.peer} does not know the shared secret")
        else:  # D4
            self.authenticated = True
            if not self.ready.done():
                self.ready.set_result(None)

    def _fail(self, error: TransportError) -> NoReturn:
        """End the attempt with ``error``, which the status shows."""
        if not self.ready.done():
            self.ready.set_exception(error)
            self.ready.exception()  # nobody may be waiting for it
        raise MalformedError(str(error))

    def framed(self, payload: bytes) -> tuple[bytes, ...]:
        """The parts of the next frame. Frames must be written in the order of these calls, because the MAC counts them."""
        if self._seal is None:
            return _pack_length(len(payload)), payload
        return _pack_length(len(payload) + SEAL_BYTES), payload, self._seal.of(payload)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ready.done():
            self.ready.set_exception(exc or ConnectionResetError("closed during the hello"))
            self.ready.exception()
        if not self.closed.done():
            self.closed.set_result(None)


@dataclass
class PeerState:
    """Status of the connection that we dial."""

    connected: bool = False
    error: str = ""
    refusal: str = ""
    """Why the peer refused the last connection; empty: it did not."""
    connections: int = 0
    sent_messages: int = 0
    waiting: list[bytes] = field(default_factory=list)
    has_come: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the peer opens a connection to this node."""


class PeerTransport:
    """All connections of one node. ``on_message`` is called for each message, ``on_connected`` and ``on_disconnected`` for each
    connection dialled here. ``refused_count`` is the sum of ``refusals``."""

    def __init__(
        self,
        settings: TransportSettings,
        on_message: Callable[[str, Message], None],
        on_connected: Callable[[str], None],
        on_disconnected: Callable[[str], None],
        warn: Callable[[str], None],
    ) -> None:
        if settings.secret is None and settings.tls is None and not is_loopback(settings.listen[0]):
            raise TransportError(
                f"without a shared secret or TLS, peers are not authenticated, so only a loopback address can be bound, "
                f"not {settings.listen[0]}; give the nodes a secret or certificates"
            )
        self.settings = settings
        self.process = secrets.token_bytes(PROCESS_BYTES)
        self.tls = Tls(settings.tls) if settings.tls else None
        self.on_message = on_message
        self.on_arriving: Callable[[str, int], None] = lambda peer, size: None
        """Called with the size of a message while it arrives in parts."""
        self.accepts_strangers: Callable[[], bool] = lambda: False
        """Whether a node that is not a peer may connect: a member that this node does not know yet. It is not called if only TLS
        protects the connections."""
        self._on_connected, self._on_disconnected = on_connected, on_disconnected
        self._warn = warn
        self.accepted: dict[str, _Accepted] = {}
        self.unauthenticated: dict[_Accepted | _Handshake, None] = {}
        """Connections without a valid hello, in the order in which they were accepted."""
        self.addresses = {peer: address for peer, address in settings.addresses.items() if peer != settings.node_id}
        """Address at which each peer is dialled now."""
        self.peers = {peer: PeerState() for peer in self.addresses}
        self._look_ups: dict[str, HostLookUp] = {}
        self._dialled: dict[str, _Dialled] = {}
        self._server: asyncio.Server | None = None
        self.is_stopped = False
        self._port = settings.listen[1]
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._random = Random()
        self._eager_until = 0.0
        self._dirty: list[str] = []
        self.refused_count = 0
        self.forged_frames = 0
        """Number of frames without the right MAC. Each has closed its connection."""
        self.unusable_files = 0
        """Number of handshakes before which the changed TLS files could not be loaded."""
        self.last_refusal = ""
        self._warned_at = float("-inf")

    async def start(self) -> None:
        """Bind and begin to dial. TransportError if the address cannot be bound."""
        loop = asyncio.get_running_loop()
        host, port = self.settings.listen
        try:
            hosts = await HostLookUp().addresses(host, None)
            self._server = await loop.create_server(self._accept, hosts, port, reuse_address=True)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
            raise TransportError(
                f"cannot listen for peers at {host}:{port}: {reason}; correct peerListen (without it: this node's address in "
                "peers), or stop the process that uses the port"
            ) from None
        self._port = int(self._server.sockets[0].getsockname()[1])
        self._eager_until = loop.time() + EAGER_SECONDS
        self._tasks = {peer: loop.create_task(self._dial_forever(peer)) for peer in self.peers}

    def set_peers(self, addresses: Mapping[str, tuple[str, int]]) -> None:
        """From now on these are the peers. Connections with other nodes are closed. A peer whose address has changed is dialled
        again.
        """
        wanted = {peer: address for peer, address in addresses.items() if peer != self.settings.node_id}
        changed = {peer for peer in self.addresses.keys() | wanted.keys() if self.addresses.get(peer) != wanted.get(peer)}
        for peer in sorted(changed & self.addresses.keys()):
            if peer in self._tasks:
                self._tasks.pop(peer).cancel()
            if peer not in wanted:
                del self.peers[peer]
                if peer in self.accepted:
                    self.accepted[peer].abort()
        self.addresses = wanted
        self._look_ups = {peer: each for peer, each in self._look_ups.items() if peer in wanted or each.is_running}
        for peer in sorted(changed & wanted.keys()):
            self.peers.setdefault(peer, PeerState())
            if self._server is not None and not self.is_stopped:
                self._tasks[peer] = asyncio.get_running_loop().create_task(self._dial_forever(peer))

    @property
    def port(self) -> int:
        """The bound port, even after listening has ended. The kernel chooses it if port 0 was requested."""
        return self._port

    def _accept(self) -> "_Accepted | _Handshake":
        if self.tls is None:
            return _Accepted(self)
        self._refresh_tls()
        return _Handshake(self, self.tls)

    def admit(self, connection: "_Accepted | _Handshake") -> bool:
        """Count a connection that is not authenticated yet. False: it was closed."""
        if self.is_stopped:  # the system accepted the connection before the listener was closed
            connection.abort()
            return False
        assert connection.transport is not None
        name = connection.transport.get_extra_info("peername")
        connection.host = str(name[0]) if name else ""
        if len(self.unauthenticated) >= UNAUTHENTICATED_MAX:  # H1
            self.refused("connection closed: too many are not authenticated yet")
            hosts = Counter(each.host for each in self.unauthenticated)
            oldest = next(each for each in self.unauthenticated if hosts[each.host] == max(hosts.values()))
            del self.unauthenticated[oldest]
            oldest.abort()
        self.unauthenticated[connection] = None
        return True

    def _refresh_tls(self) -> None:
        if self.tls is not None:
            try:
                self.tls.refresh()
            except TransportError as error:
                self.unusable_files += 1
                self.refused(f"the old certificates stay in use: {error}")

    def refused(self, reason: str) -> None:
        self.refused_count += 1
        now = asyncio.get_running_loop().time()
        if reason != self.last_refusal or now - self._warned_at >= REFUSAL_REPEAT_SECONDS:
            self._warn(reason)
            self._warned_at = now
        self.last_refusal = reason

    @property
    def refusals(self) -> dict[str, int]:
        """``frame``: connections closed because of a frame with a wrong MAC; ``connection``: connections closed for another
        reason that lies with the peer, or because there were too many (H1); ``certificate``: handshakes before which this node's
        TLS files could not be loaded."""
        connections = self.refused_count - self.forged_frames - self.unusable_files
        return {"connection": connections, "frame": self.forged_frames, "certificate": self.unusable_files}

    async def stop(self) -> None:
        self.is_stopped = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._server is not None:
            stop_listening(self._server)
            await asyncio.sleep(0)  # releases the port: the sockets are closed in the next turn of the loop
        for connection in [*self._dialled.values(), *self.accepted.values(), *self.unauthenticated]:
            connection.abort()

    async def _dial_forever(self, peer: str) -> None:
        state, pause = self.peers[peer], DIAL_PAUSE_MIN_SECONDS
        while True:
            connection = None
            state.has_come.clear()
            try:
                connection = await self._dial(peer)
                pause = DIAL_PAUSE_MIN_SECONDS
                state.connected, state.error, state.refusal = True, "", ""
                state.connections += 1
                self._dialled[peer] = connection
                self._on_connected(peer)
                await connection.closed
            except TimeoutError:
                state.error, state.refusal = f"TimeoutError: no peer answered at this address within {DIAL_SECONDS:g} s", ""
                state.error += self._stale_address(peer)
            except (OSError, ssl.SSLError, TransportError, ValueError) as error:  # ValueError: a name that cannot be a host
                state.error = f"{type(error).__name__}: {error}{self._stale_address(peer)}"
                state.refusal = str(error) if isinstance(error, PeerRefusalError) else ""
            finally:
                if connection is not None:
                    connection.abort()
                if connection is not None and self._dialled.get(peer) is connection:
                    del self._dialled[peer]
                    state.connected = False
                    state.waiting = []
                    self._on_disconnected(peer)
            await self._pause(state, pause * (0.5 + self._random.random()))
            if asyncio.get_running_loop().time() >= self._eager_until:
                pause = min(pause * 2, DIAL_PAUSE_MAX_SECONDS)

    async def _pause(self, state: PeerState, seconds: float) -> None:
        """Wait before dialling again. If the peer connects meanwhile, it is reachable, so the wait ends after the minimum pause.
        A restarted peer then soon receives the introduction for which it waits."""
        least = min(seconds, DIAL_PAUSE_MIN_SECONDS)
        await asyncio.sleep(least)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds - least):
                await state.has_come.wait()

    async def _dial(self, peer: str) -> _Dialled:
        self._refresh_tls()
        host, port = self.addresses[peer]
        hosts = await self._look_ups.setdefault(peer, HostLookUp()).addresses(host, DIAL_SECONDS)
        async with asyncio.timeout(DIAL_SECONDS):
            connection = await self._connect(peer, hosts, port)
            try:
                await asyncio.shield(connection.ready)
            except BaseException:
                connection.abort()
                raise
        raw = connection.transport.get_extra_info("socket") if connection.transport else None
        if raw is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MS_MAX)
        return connection

    async def _connect(self, peer: str, hosts: list[str], port: int) -> _Dialled:
        """Connect to the first address that accepts a connection. Raises the error of the last one."""
        loop = asyncio.get_running_loop()
        context, name = (self.tls.client, peer) if self.tls else (None, None)
        for host in hosts[:-1]:
            with contextlib.suppress(OSError):
                return (
                    await loop.create_connection(lambda: _Dialled(self, peer), host, port, ssl=context, server_hostname=name)
                )[1]
        return (await loop.create_connection(lambda: _Dialled(self, peer), hosts[-1], port, ssl=context, server_hostname=name))[1]

    def _stale_address(self, peer: str) -> str:
        """The end of an error text if ``peer`` was dialled at its last known address."""
        look_up = self._look_ups.get(peer)
        return f" (at its last known address: {look_up.problem})" if look_up is not None and look_up.problem else ""

    def send(self, peer: str, message: Message) -> None:
        """Queue for the next ``flush``; without a connection the message is lost."""
        connection, state = self._dialled.get(peer), self.peers.get(peer)
        if connection is None or state is None:
            return
        if not state.waiting:
            self._dirty.append(peer)
        state.waiting += connection.framed(encode(message))
        state.sent_messages += 1

    @property
    def has_unsent(self) -> bool:
        """Whether messages wait for the next ``flush``."""
        return bool(self._dirty)

    def flush(self) -> None:
        """One write per peer for all that was queued."""
        if not self._dirty:
            return
        dirty, self._dirty = self._dirty, []
        for peer in dirty:
            state, connection = self.peers.get(peer), self._dialled.get(peer)
            if state is None:
                continue
            waiting, state.waiting = state.waiting, []
            if connection is None or connection.transport is None or connection.transport.is_closing():
                continue
            if connection.transport.get_write_buffer_size() > self.settings.buffer_bytes_max:
                most = self.settings.buffer_bytes_max
                self.refused(f"connection to {peer} closed: the peer does not read, and more than {most} bytes wait")
                connection.abort()
            else:
                connection.transport.write(b"".join(waiting))

    def status(self) -> dict[str, object]:
        return {
            "listen": f"{self.settings.listen[0]}:{self.port}",
            "authentication": "+".join(
                name for name, on in (("secret", self.settings.secret is not None), ("tls", self.tls is not None)) if on
            )
            or "none (loopback only)",
            "refused": self.refused_count,
            "forged_frames": self.forged_frames,
            "last_refusal": self.last_refusal,
            "accepted": sorted(self.accepted),
            "peers": {
                peer: {
                    "connected": s.connected,
                    "sealed": self._is_sealed(peer),
                    "silent_s": self._silent_seconds(peer),
                    "error": s.error,
                    "refusal": s.refusal,
                    "connections": s.connections,
                    "sent": s.sent_messages,
                }
                for peer, s in self.peers.items()
            },
        }

    def _is_sealed(self, peer: str) -> bool:
        """Whether frames carry MACs both to and from ``peer``; False without both connections."""
        dialled, accepted = self._dialled.get(peer), self.accepted.get(peer)
        return dialled is not None and dialled.is_sealed and accepted is not None and accepted.is_sealed

    def _silent_seconds(self, peer: str) -> float | None:
        """Time since the last bytes from ``peer``; None if it has no connection to this node. If a link is cut, connections can
        stay open, and only this time shows the cut."""
        accepted = self.accepted.get(peer)
        return None if accepted is None else round(accepted.silent_seconds(), 3)

"""Restores a backup into a fresh cluster, through the log, while the cluster runs.

A backup may be larger than a command, and reading it may take longer than an election. So it is sent in pieces, each a command
(PIECE), between a command BEGIN and a command FINISH. Every node builds a second state from the pieces. FINISH replaces the
current state, on all nodes at the same log index. The received pieces are part of the replicated state, and so of its snapshots
and digests.

If the restoring node dies, its pieces stay in every state and snapshot. The BEGIN of the next restore replaces them. If that
BEGIN is refused because the cluster is not fresh, its sender proposes ABANDON, which drops the pieces. If no piece arrives for
``IDLE_MS_MAX``, the leader proposes it.

Only a fresh cluster, without brokers, topics and KV entries, accepts a backup, because restoring over data would undo
acknowledged writes. BEGIN and FINISH are refused by a cluster that is not fresh. Revisions continue far above those of the backup
(``REVISIONS_SKIPPED``), so a watcher of the lost cluster gets an error because it missed changes. It does not confuse new changes
with old ones.

``RestorableMachine`` is between Raft and ``RouteStateMachine``. For a restore it uses only ``RouteStateMachine.take_over``.
"""

import contextlib
from collections.abc import Awaitable, Callable, Iterable, Iterator
from hashlib import blake2b
from typing import Any
from uuid import uuid4
from zlib import compress, decompress

from replicated_namesrv.errors import NamesrvError
from replicated_namesrv.model import ChangeOrigin
from replicated_namesrv.raft.interfaces import Restoration
from replicated_namesrv.raft.raft_errors import UnknownCommandError
from replicated_namesrv.replication.command_kinds import ABANDON, BEGIN, COMMAND_KINDS, FINISH, PIECE, RESTORE_MARK
from replicated_namesrv.replication.marks import MarksOfBackup
from replicated_namesrv.replication.route_machine import ProposalResult, RouteStateMachine
from replicated_namesrv.routes.encoding import RouteFormatError, dump, load
from replicated_namesrv.routes.results import NOT_EMPTY, Result
from replicated_namesrv.routes.snapshot import SnapshotReader

VERSION = 1
PIECE_BYTES = 64 << 10
FAST = 1
"""The fastest level of zlib: about a millisecond for a piece."""
REVISIONS_SKIPPED = 1_000_000_000
REFUSED = 1
MARKS_MAX = 2_000
"""Number of marks (``marks.py``) made for each piece, in about 2 ms. No piece has as many registrations."""
IDLE_MS_MAX = 60_000.0
"""The leader abandons a restore after this time without a piece. It is twice the longest pause allowed within the body of a
request."""

Propose = Callable[[bytes], Awaitable[ProposalResult]]


def encode(kind: int, restore_id: str, number: int = 0, piece: bytes = b"", origin: ChangeOrigin | None = None) -> bytes:
    """Encode a command; ``number``: how many pieces came before. ``origin``: only if every node knows OPERATION_VERSION."""
    return bytes((RESTORE_MARK,)) + dump([VERSION, kind, restore_id, number, *(origin or ())]) + b"\n" + piece


def decode(data: bytes) -> tuple[int, str, int, bytes, ChangeOrigin | None]:
    """Inverse of ``encode``. Raises UnknownCommandError."""
    head, _, piece = data[1:].partition(b"\n")
    try:
        version, kind, restore_id, number, *rest = load(head)
        if version != VERSION or kind not in range(4) or not isinstance(restore_id, str) or not isinstance(number, int):
            raise ValueError(f"version {version}, kind {kind}")
        if not all(isinstance(field, str) for field in rest):
            raise ValueError("the fields that name its caller are not texts")
        origin = ChangeOrigin(*rest) if rest else None
    except (ValueError, TypeError) as error:
        raise UnknownCommandError(f"a command of a restore is not known to this version: {error}") from error
    return kind, restore_id, number, piece, origin


async def restore(
    propose: Propose, snapshot: Iterable[bytes], origin: ChangeOrigin | None = None, is_named: bool = False
) -> Result:
    """Send the snapshot of a backup through the log. An error of ``snapshot`` abandons the restore and is raised again.
    ``is_named``: the commands name ``origin``."""
    restore_id, number, named = uuid4().hex, 0, origin if is_named else None
    if origin is not None:
        origin.check()
    begun = await propose(encode(BEGIN, restore_id, origin=named))
    if begun.result.code:
        if begun.leftover is not None:  # an earlier restore was not finished
            await _abandon(propose, begun.leftover)
        return begun.result
    try:
        for piece in _pieces(snapshot):
            result = (await propose(encode(PIECE, restore_id, number, piece))).result
            if result.code:
                return result
            number += 1
        if origin is not None:
            origin.check()
    except Exception:
        await _abandon(propose, restore_id)
        raise
    return (await propose(encode(FINISH, restore_id, number, origin=named))).result


async def _abandon(propose: Propose, restore_id: str) -> None:
    with contextlib.suppress(NamesrvError):  # if this fails, the leader will abandon the restore
        await propose(encode(ABANDON, restore_id))


def _pieces(snapshot: Iterable[bytes]) -> Iterator[bytes]:
    """The snapshot in pieces of PIECE_BYTES, the last one shorter."""
    rest = b""
    for part in snapshot:
        rest += part
        whole = len(rest) - len(rest) % PIECE_BYTES
        for position in range(0, whole, PIECE_BYTES):
            yield rest[position : position + PIECE_BYTES]
        rest = rest[whole:]
    if rest:
        yield rest


class Incoming:
    """A backup that is being received."""

    def __init__(self, restore_id: str, revision: int, is_overridden: bool) -> None:
        """``revision``: the revision of the current state at BEGIN. Each object that is read from the backup gets the revision
        that the restored state will probably have, so that FINISH takes little time. If the revision of the current state grows
        above both ``revision`` and that of the backup before FINISH, then FINISH has to give all objects another revision.
        ``is_overridden``: whether to set ``BrokerGroup.is_overridden`` of each group when it is read. Then ``begin_anew`` need
        not set it."""
        self.restore_id = restore_id
        self.pieces: list[bytes] = []
        """The received pieces. They are compressed here, because JSON may be six times as long as its texts. Snapshots and
        digests contain the pieces as they were sent."""
        self.reader = SnapshotReader(
            anew=lambda revision_of_backup: max(revision, revision_of_backup) + REVISIONS_SKIPPED, is_overridden=is_overridden
        )
        self.marks = MarksOfBackup()
        self._hash = blake2b(restore_id.encode(), digest_size=16)

    def feed(self, piece: bytes) -> None:
        """Read the next piece into the second state. Raises RouteFormatError."""
        self.reader.feed(piece)
        self.pieces.append(compress(piece, FAST))
        self._hash.update(piece)

    def prepare(self, machine: RouteStateMachine) -> None:
        """Make some of the marks that the restored state will have, if no other command comes before FINISH. So FINISH takes
        little time."""
        if self.reader.begun is not None:
            self.marks.advance(self.reader.brokers, machine.mark_of_backup(self.reader.begun), MARKS_MAX)

    def digest(self) -> bytes:
        """16 bytes that represent the received pieces."""
        return self._hash.digest()


class RestorableMachine:
    """``raft.interfaces.StateMachine`` over the routes, and over a backup that is being received to replace them."""

    def __init__(self, machine: RouteStateMachine) -> None:
        self.machine = machine
        self.incoming: Incoming | None = None

    def apply(self, data: bytes) -> ProposalResult:
        """Apply one command of the log, of a restore or of the routes. Raises UnknownCommandError."""
        if not data or data[0] != RESTORE_MARK:
            return self.machine.apply(data)
        kind, restore_id, number, piece, origin = decode(data)
        refusal = self._refusal(kind, restore_id, number)
        if refusal is not None:
            leftover = self.incoming.restore_id if kind == BEGIN and self.incoming is not None else None
            return ProposalResult(Result(code=refusal[0], remark=refusal[1]), leftover=leftover)
        incoming = self.incoming
        if kind == BEGIN:
            self.incoming = Incoming(restore_id, self.machine.state.revision, self.machine.state.compares_content)
        elif kind == ABANDON or incoming is None:
            self.incoming = None
        else:
            try:
                if kind == PIECE:
                    incoming.feed(piece)
                    incoming.prepare(self.machine)
                else:
                    self.incoming = None
                    self.machine.take_over(incoming.reader, REVISIONS_SKIPPED, incoming.marks)
            except RouteFormatError as error:
                self.incoming = None
                return ProposalResult(Result(code=REFUSED, remark=f"the backup cannot be read: {error}"))
        if kind != PIECE:
            self.machine.on_restore(COMMAND_KINDS[RESTORE_MARK, kind].name, restore_id, origin)
        return ProposalResult(Result(changed=kind == FINISH))

    def _refusal(self, kind: int, restore_id: str, number: int) -> tuple[int, str] | None:
        """Code and remark."""
        state, incoming = self.machine.state, self.incoming
        if kind in (BEGIN, FINISH) and (contents := state.contents()):
            if kind == FINISH:
                self.incoming = None
            content = ", ".join(f"{count} {name}" for name, count in contents.items())
            return NOT_EMPTY, f"this cluster is not fresh, it contains {content}: a backup is restored only into an empty one"
        if kind != BEGIN and (incoming is None or incoming.restore_id != restore_id):
            return REFUSED, "this restore was abandoned, or another one has replaced it"
        if kind in (PIECE, FINISH) and incoming is not None and number != len(incoming.pieces):
            return REFUSED, f"piece {number} of the backup came after {len(incoming.pieces)} others"
        return None

    def digest(self) -> bytes:
        """At most 64 bytes: the digest of the routes (``RouteStateMachine.digest``), then that of the backup that is being
        received, if there is one."""
        return self.machine.digest() + (b"" if self.incoming is None else self.incoming.digest())

    def snapshot(self) -> Iterator[bytes]:
        """The received pieces, one chunk each, then the routes."""
        incoming, routes = self.incoming, self.machine.snapshot()
        pieces = [] if incoming is None else list(incoming.pieces)
        head: list[Any] = [VERSION, None if incoming is None else incoming.restore_id, len(pieces)]

        def chunks() -> Iterator[bytes]:
            yield dump(head)
            yield from map(decompress, pieces)
            yield from routes

        return chunks()

    def restore(self) -> Restoration:
        """Begin to build another state."""
        return _Restoring(self)


class Leftovers:
    """Finds an abandoned restore. Every node has one and uses it while it leads."""

    def __init__(self, machine: RestorableMachine, now_ms: Callable[[], float]) -> None:
        self._machine, self._now_ms = machine, now_ms
        self._seen: tuple[str, int] | None = None
        """The restore in progress and its number of pieces, at the last change of either of them."""
        self._since_ms = 0.0

    def tick(self, leads: bool) -> bytes | None:
        """The command that abandons the restore. None: there is no abandoned restore. Call this method regularly."""
        incoming, now_ms = self._machine.incoming, self._now_ms()
        seen = None if incoming is None else (incoming.restore_id, len(incoming.pieces))
        if seen != self._seen:
            self._seen, self._since_ms = seen, now_ms
        elif seen is not None and leads and now_ms - self._since_ms > IDLE_MS_MAX:
            self._since_ms = now_ms  # if this command is lost, try again after the same time
            return encode(ABANDON, seen[0])
        return None


class _Restoring:
    """A state that is being read from a Raft snapshot, in the chunks in which it was yielded."""

    def __init__(self, machine: RestorableMachine) -> None:
        self._machine = machine
        self._routes = machine.machine.restore()
        self._incoming: Incoming | None = None
        self._left: int | None = None
        """Number of pieces still to come. None: the head is still to come."""

    def feed(self, chunk: bytes) -> None:
        """Take the next part of the snapshot."""
        if self._left is None:
            version, restore_id, self._left = load(chunk)
            if version != VERSION:
                raise RouteFormatError(
                    f"snapshot version {version} is not supported here, only {VERSION}: use a release that supports it"
                )
            state = self._machine.machine.state
            self._incoming = None if restore_id is None else Incoming(restore_id, state.revision, state.compares_content)
        elif self._left and self._incoming is not None:
            self._left -= 1
            self._incoming.feed(chunk)
        else:
            self._routes.feed(chunk)

    def finish(self) -> None:
        """Replace the state by the one that was read."""
        self._routes.finish()
        self._machine.incoming = self._incoming

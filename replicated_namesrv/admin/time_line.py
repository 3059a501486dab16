"""TimeLine: the events of the last hour on this node, for operators. ``GET /v1/timeline``.

Its entries are changes of the state (brokers, topics, KV, settings), changes of the leader, suspected brokers, name servers that
were lost and came back, changes of this node's own readiness, and changes that were requested at this node, with the caller. If
an identity of the access file changed the state, the entry names this identity, and the node that received the request.
Everything is bounded: the oldest entries are dropped.

A change without an identity has no caller in the log. Only the node that received it knows the address of the caller. Each node
knows only its own contacts with its peers. Therefore an answer can include the entries of the other nodes about themselves, their
peers and the leader (``?nodes=all``).

In CP, Raft shows whether a peer was lost. An independent node asks the others only while a page or command asks it, so it
notices a loss only then.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import orjson
from aiohttp import web

from replicated_namesrv.admin.context import CONTEXT
from replicated_namesrv.admin.merged_time_line import PEER_BACK, PEER_LOST, REQUESTED, SHARED_KINDS, merged
from replicated_namesrv.admin.other_nodes import OTHER_NODES, TIMEOUT_S, NodeAnswerError, OtherNode, OtherNodes
from replicated_namesrv.admin.paging import ANSWER_BYTES, build_rows, is_number
from replicated_namesrv.admin.peer_contacts import PeerChange, PeerWatch
from replicated_namesrv.admin.responses import json_response
from replicated_namesrv.errors import BodyError
from replicated_namesrv.model import ChangeOrigin
from replicated_namesrv.routes.history import (
    CHANGED,
    EXPIRED,
    LOST,
    REGISTERED,
    RESTORED,
    UNREGISTERED,
    Change,
    CompactedError,
    History,
)
from replicated_namesrv.routes.kv_index import name_of

ENTRIES_MAX = 5_000
SPAN_MS = 3_600_000
TICK_S = 0.5
"""Interval of ticks. A tick that is late by more than this judges no peer."""
STALL_S = 2.0
"""If a tick is late by more than this, this node was paused, or its event loop was blocked."""
OTHERS_MAX = 1_000
"""Maximum number of entries that are requested from each other node."""
BATCH_BYTES = 32 << 10
"""Size of the changes that are read in one turn. They take 0.2 to 0.4 ms."""
BATCH_PAUSE_S = 0.005
"""Pause between two batches, so that requests of clients do not wait for several."""
BATCHES_MAX = 512
"""Maximum number of batches read before an answer, so that a burst of changes does not delay the answer for long."""
NAMES_SHOWN = 5
REMOVALS = (UNREGISTERED, EXPIRED, LOST)
OF_BROKERS = (REGISTERED, CHANGED, *REMOVALS)
"""Changes that brokers cause. Their entries name the broker."""
OF_KV = ("kv-put", "kv-deleted")
FLAPS_MIN = 2
"""A broker that was removed at least this often in the last hour is flapping."""


class TimeLine:
    """The latest entries."""

    def __init__(
        self,
        history: History,
        is_serving: Callable[[], bool],
        is_fenced: Callable[[], bool],
        wall_ms: Callable[[], int],
        peers: Callable[[], Mapping[str, Mapping[str, Any]]] = dict,
    ) -> None:
        """``peers``: the facts that Raft knows about each peer now, from ``peers_of``."""
        self._peers, self._watch, self._due_s = peers, PeerWatch(), 0.0
        self.began_ms = wall_ms()
        """When this time line began, on the wall clock."""
        self._history, self._is_serving, self._is_fenced, self._wall_ms = history, is_serving, is_fenced, wall_ms
        self.entries: deque[dict[str, Any]] = deque(maxlen=ENTRIES_MAX)
        self.removed_ms: dict[tuple[str, str], int] = {}
        """When a broker (cluster, address) was last removed, for brokers that have not registered again."""
        self.kv_changed_ms: dict[str, int] = {}
        """When a KV entry (``name_of``) was last put or deleted, for changes since ``kv_since_ms``."""
        self.kv_since_ms = self.began_ms
        self._causes: dict[int, ChangeOrigin] = {}
        """By revision: the caller who requested the change. It contains only changes that have not been read from the history
        yet."""
        self._position = history.newest
        self._number = 0
        self._standing = (is_serving(), is_fenced())
        self._leader: tuple[str | None, int] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._reader: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to read the history; called on the node's loop."""
        loop = asyncio.get_running_loop()
        self._due_s = loop.time() + TICK_S
        self._timer = loop.call_at(self._due_s, self._tick)

    def stop(self) -> None:
        """Stop reading."""
        for timer in self._timer, self._reader:
            if timer is not None:
                timer.cancel()

    def _read(self) -> None:
        """Read the changes since the last tick, in batches."""
        if self._reader is not None:
            self._reader.cancel()
        self._reader = asyncio.get_running_loop().call_later(BATCH_PAUSE_S, self._read) if self.catch_up() else None

    def _tick(self) -> None:
        late_s = asyncio.get_running_loop().time() - self._due_s
        self.start()
        self._read()
        if late_s > STALL_S:
            self.note("stalled", durationMs=int(1000 * late_s))
        for change in self._watch.look(self._peers(), late_s > TICK_S, self._wall_ms()):
            self.notify_peer(change)
        standing = (self._is_serving(), self._is_fenced())
        if standing != self._standing:
            was_serving, was_fenced = self._standing
            self._standing = standing
            if standing[1] != was_fenced:
                self.note("fenced" if standing[1] else "unfenced")
            elif standing[0] != was_serving:
                self.note("serving" if standing[0] else "not-serving")

    def note(self, kind: str, time_ms: int | None = None, **fields: Any) -> None:
        """Add an entry. Without ``time_ms`` it gets the present time."""
        self._number += 1
        entry = {"number": self._number, "timeMs": self._wall_ms() if time_ms is None else time_ms, "kind": kind, **fields}
        self.entries.append(entry)

    def notify_leader(self, leader: str | None, term: int) -> None:
        """The leader known to this node has changed."""
        if self._leader != (leader, term) and term:
            self.note("leader", leader=leader, term=term)
        self._leader = (leader, term)

    def notify_suspected(self, broker: tuple[str, str], since_ms: int | None) -> None:
        """A broker became suspected. ``since_ms`` None: it is no longer suspected."""
        kind = "broker-cleared" if since_ms is None else "broker-suspected"
        self.note(kind, clusterName=broker[0], brokerAddr=broker[1])

    def notify_peer(self, change: PeerChange) -> None:
        """Another name server was lost or came back."""
        kind = PEER_BACK if change.why is None else PEER_LOST
        self.note(kind, peer=change.peer, sinceMs=change.contact_ms, why=change.why)

    def requested(self, method: str, path: str, caller: str, status: int | None) -> None:
        """A change was requested at this node. ``status``: status of the HTTP answer. None: the request came to the RocketMQ
        port. If it changed the state, the change is another entry."""
        self.note(REQUESTED, method=method, path=path, by=caller, status=status)

    def note_cause(self, revision: int, origin: ChangeOrigin) -> None:
        """An identity of the access file requested the change with this revision, at this node or another one."""
        self._causes[revision] = origin
        if len(self._causes) > ENTRIES_MAX:
            del self._causes[next(iter(self._causes))]

    def catch_up(self) -> bool:
        """Read the next changes from the history. Returns whether there may be more."""
        try:
            changes = self._history.after(self._position, BATCH_BYTES)
        except CompactedError as error:
            if self._position < self._history.replaced_at - 1:  # the next entry says that the whole state was replaced
                self._position = self._history.replaced_at - 1
                return True
            self._position = error.oldest
            self._forget_kv()
            self.note("changes-missed")
            return True
        if not changes:
            self._causes.clear()  # all changes of the history are read, and none has these causes
        if self._position > self._history.newest:  # the state was replaced by one with a shorter history
            self._position = self._history.newest
        for change in changes:
            self._position = change.revision
            cause = self._causes.pop(change.revision, None)
            for fields in _summaries(change):
                self._remember(change.kind, fields)
                self._remember_kv(change.kind, fields)
                if cause is not None and change.kind not in OF_BROKERS:
                    fields |= {"by": cause.identity, "over": cause.node}
                self.note(change.kind, fields.pop("timeMs") or None, revision=change.revision, **fields)
        return bool(changes) and self._position < self._history.newest

    def _remember(self, kind: str, fields: dict[str, Any]) -> None:
        if "brokerAddr" not in fields:
            return
        key = (fields["clusterName"], fields["brokerAddr"])
        if kind in REMOVALS:
            self.removed_ms[key] = fields["timeMs"]
            if len(self.removed_ms) > ENTRIES_MAX:
                del self.removed_ms[next(iter(self.removed_ms))]
        elif kind == REGISTERED:
            self.removed_ms.pop(key, None)

    def _remember_kv(self, kind: str, fields: Mapping[str, Any]) -> None:
        if kind in OF_KV:
            name = name_of(fields["namespace"], fields["key"])
            self.kv_changed_ms.pop(name, None)
            self.kv_changed_ms[name] = fields["timeMs"]
            if len(self.kv_changed_ms) > ENTRIES_MAX:
                self.kv_since_ms = self.kv_changed_ms.pop(next(iter(self.kv_changed_ms)))
        elif kind == RESTORED:
            self._forget_kv()

    def _forget_kv(self) -> None:
        """The times of earlier changes are unknown."""
        self.kv_changed_ms, self.kv_since_ms = {}, self._wall_ms()

    def latest(self) -> list[dict[str, Any]]:
        """Entries of the last hour, newest first."""
        since_ms = self._wall_ms() - SPAN_MS
        return [entry for entry in reversed(self.entries) if entry["timeMs"] >= since_ms]

    def removals(self) -> list[dict[str, Any]]:
        """Brokers that were removed in the last hour, in descending order of their number of removals."""
        found: dict[tuple[str, str], dict[str, Any]] = {}
        for entry in self.latest():
            if entry["kind"] in REMOVALS and "brokerAddr" in entry:
                names = {name: entry[name] for name in ("clusterName", "brokerName", "brokerAddr")}
                key = (names["clusterName"], names["brokerAddr"])
                found.setdefault(key, {**names, "removals": 0, "lastMs": entry["timeMs"]})["removals"] += 1
        return sorted(found.values(), key=lambda row: -row["removals"])

    def flapping(self) -> list[dict[str, Any]]:
        """Those of ``removals`` that were removed several times in the last hour."""
        return [row for row in self.removals() if row["removals"] >= FLAPS_MIN]


def _summaries(change: Change) -> Iterator[dict[str, Any]]:
    """The fields of a change's entries; a change has one entry for each broker."""
    fields = change.fields
    common: dict[str, Any] = {"timeMs": fields["timeMs"]}
    topics = fields.get("topics")
    if topics is not None:
        common["topicCount"], common["topics"] = len(topics), topics[:NAMES_SHOWN]
    for name in ("namespace", "key", "brokerName"):
        if name in fields:
            common[name] = fields[name]
    if "settings" in fields:
        common["settings"] = dict(fields["settings"])
    brokers = fields.get("brokers") or [{}]
    for broker in brokers:
        named = {name: broker[name] for name in ("clusterName", "brokerName", "brokerId", "brokerAddr") if name in broker}
        yield {**common, **named}


TIMELINE = web.AppKey("timeline", TimeLine)
CALLER = web.RequestKey("caller", str)
"""The caller who requests a change. It is set if the access rules permit the request."""


async def time_line(request: web.Request) -> web.Response:
    """``GET /v1/timeline``: the events of the last hour, newest first; ``?q=`` selects entries that contain the text,
    ``?kind=`` those of a kind and can be repeated, ``?limit=`` bounds them. With ``?nodes=all`` the entries of the other nodes
    about themselves, their peers and the leader are merged in, and ``notAsked`` says why a node has none."""
    found = request.app[TIMELINE]
    limit = request.query.get("limit", "1000")
    if not is_number(limit, 1, ENTRIES_MAX):
        raise BodyError(f"limit={limit[:40]}: give 1 to {ENTRIES_MAX}")
    for _ in range(BATCHES_MAX):
        if not found.catch_up():
            break
        await asyncio.sleep(0)
    entries, removals = found.latest(), found.removals()
    missing: dict[str, Any] = {}
    if request.query.get("nodes") == "all":
        others, missing["notAsked"] = await _elsewhere(request, min(int(limit), OTHERS_MAX))
        own = request.app[CONTEXT].settings.node_id
        entries = merged((_seen_by(entry, own) for entry in entries), others)
    if kinds := request.query.getall("kind", []):
        entries = [entry for entry in entries if entry["kind"] in kinds]
    if search := request.query.get("q", "").lower():
        entries = await build_rows(entries, lambda entry: entry if search in orjson.dumps(entry).decode().lower() else None)
        removals = await build_rows(removals, lambda row: row if search in orjson.dumps(row).decode().lower() else None)
    listed, held = list[dict[str, Any]](), 0
    for entry in entries[: int(limit)]:
        held += sum(map(len, entry.get("topics") or ()))
        if held > ANSWER_BYTES:
            break
        listed.append(entry)
    shown = {"entries": listed, "removals": removals[: int(limit)], "beganMs": found.began_ms}
    return json_response({**shown, "total": len(entries), "flapping": found.flapping(), **missing})


def _seen_by(entry: dict[str, Any], node: str) -> dict[str, Any]:
    return {**entry, "seenBy": [node]} if entry["kind"] in (PEER_LOST, PEER_BACK) else entry


async def _elsewhere(request: web.Request, limit: int) -> tuple[dict[str, list[Any]], list[dict[str, str]]]:
    """The entries of each other node that can be merged, and the nodes that gave no answer."""
    others, authorization = request.app[OTHER_NODES], request.headers.get("Authorization")
    await others.look(authorization)
    path = f"/v1/timeline?limit={limit}&{'&'.join(f'kind={kind}' for kind in SHARED_KINDS)}"
    answers = await asyncio.gather(*(_time_line_of(others, node, path, authorization) for node in others.nodes))
    entries, missing = dict[str, list[Any]](), list[dict[str, str]]()
    for node, answer in zip(others.nodes, answers, strict=True):
        if isinstance(answer, NodeAnswerError):
            missing.append({"node": node.shown_name, "why": str(answer)})
        else:
            entries[node.shown_name] = answer
    return entries, missing


async def _time_line_of(others: OtherNodes, node: OtherNode, path: str, authorization: str | None) -> list[Any] | NodeAnswerError:
    try:
        if node.error is not None:
            raise node.error
        entries = (await others.ask(node, path, authorization, TIMEOUT_S)).get("entries")
        return entries if isinstance(entries, list) else []  # any program can listen at the address
    except NodeAnswerError as error:
        return error

"""``GET /v1/watch``: changes as server-sent events, resumable and without gaps.

Each change of the state is one event whose ``id`` is its revision. A watcher continues after it with ``?from=REVISION`` or, as
browsers do automatically, with the header ``Last-Event-ID``. A watcher reads from the service's history at its own pace. The node
stores only the position of the watcher. If the position is no longer in the history, the answer is 410. Within a stream the node
then sends the event ``end``. Both contain the oldest revision from which a watcher may continue. If the whole state is replaced,
an open stream continues with the event ``restored``. A position that is newer than this node's state is refused only after a
majority was asked. Events without an ``id`` report other facts than changes: the leader that this node knows (``leader``),
suspected brokers (``broker-suspected``, ``broker-cleared``; ``/v1/brokers`` has all of them), and why the stream ends (``end``).

Before events, and after each reload of the access file, the stream checks again whether its caller may watch. Except after a
reload, it checks at most once a second, because a check can read the token file.

A change has the same revision on all nodes of a CP cluster, so a watcher may continue at another node. An independent node counts
from the beginning after each start. So its ids also name the history (``REVISION@HISTORY``). An id of an earlier history is
answered with 410. So is a revision without a history, because an earlier process may have counted it. Exception: 0 is the
beginning of each history.
"""

import asyncio
import json
import logging
from typing import Any

from aiohttp import web

from replicated_namesrv.access.roles import READERS
from replicated_namesrv.admin.access import ACCESS, AccessError
from replicated_namesrv.admin.context import CONTEXT, AdminContext
from replicated_namesrv.admin.json_views import event_id, fresh_state, passed
from replicated_namesrv.admin.responses import json_error, json_response
from replicated_namesrv.errors import BodyError
from replicated_namesrv.routes.history import CompactedError, History
from replicated_namesrv.service import ReadLevel

log = logging.getLogger(__name__)

WATCHERS_MAX = 128
"""Maximum number of open streams, half of the admin connections. A further request is answered with 503."""
ADDRESS_WATCHERS_MAX = 64
"""Maximum number of open streams from one address, so that other hosts can still watch."""
KEEP_ALIVE_S = 10.0
"""After this time without an event a comment is sent. So proxies keep the stream open, and the node notices when a watcher has
left."""
WRITE_TIMEOUT_S = 30.0
"""A watcher that reads no byte for this long is disconnected."""
CHECK_EVERY_S = 1.0
"""Minimum time between two checks of a watcher's caller, if the access file is not reloaded."""
BATCH_BYTES = 64 << 10
NOTICES_MAX = 1_000
_STOPPED = "this node stops"
_SLOW = "this watcher reads nothing"


class Watcher:
    """One stream: its position, and the other events to send."""

    def __init__(self, position: int, host: str) -> None:
        self.host = host
        """Address of the client."""
        self.position = position
        """Revision of the last change that was sent."""
        self.notices: list[str] = []
        self.check_at_s = 0.0
        """Time of the event loop at which the caller has to be checked before the next event is sent."""
        self.woken = asyncio.Event()


class Watchers:
    """All streams of one node."""

    def __init__(self) -> None:
        self._open: set[Watcher] = set()
        self.leadership: dict[str, str | int | None] | None = None
        """``leader`` and ``term`` as this node knows them; None in AP."""
        self.stopping = False
        self.too_slow_count = 0
        """Number of streams that ended because the watcher was too slow, since the start."""

    @property
    def count(self) -> int:
        """Number of open streams."""
        return len(self._open)

    def notify_leader(self, leader: str | None, term: int) -> None:
        """Send the leader known to this node to every watcher. Later watchers get it with their first event."""
        self.leadership = {"leader": leader, "term": term}
        self._notify(_event("leader", json.dumps(self.leadership)))

    def notify_suspected(self, broker: tuple[str, str], since_ms: int | None) -> None:
        """Notify every watcher that a broker became suspected. ``since_ms`` None: the broker is no longer suspected."""
        fields = {"clusterName": broker[0], "brokerAddr": broker[1], "suspectedSinceMs": since_ms}
        self._notify(_event("broker-suspected" if since_ms is not None else "broker-cleared", json.dumps(fields)))

    def check_callers(self) -> None:
        """End the streams of callers that no longer have the permission to watch."""
        for watcher in self._open:
            watcher.check_at_s = 0.0
            watcher.woken.set()

    def _notify(self, text: str) -> None:
        for watcher in self._open:
            if len(watcher.notices) < NOTICES_MAX:  # a watcher with more waiting events is too slow already
                watcher.notices.append(text)
            watcher.woken.set()

    async def stop(self, app: web.Application) -> None:
        """End every stream, with the reason."""
        self.stopping = True
        for watcher in self._open:
            watcher.woken.set()

    async def stream(self, request: web.Request, context: AdminContext, position: int) -> web.StreamResponse:
        """Send hello and then the changes after ``position`` until either side ends the stream."""
        watcher, history = Watcher(position, request.remote or ""), context.service.history
        if sum(other.host == watcher.host for other in self._open) >= ADDRESS_WATCHERS_MAX:
            return json_error(503, f"this host has {ADDRESS_WATCHERS_MAX} watchers already", "close one, or watch another node")
        if len(self._open) >= WATCHERS_MAX:
            return json_error(503, f"there are {WATCHERS_MAX} watchers already", "close one, or watch another node")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "X-Accel-Buffering": "no"})
        self._open.add(watcher)
        history.listeners.add(watcher.woken.set)
        try:
            await response.prepare(request)
            await self._send(response, self._hello(context, watcher))
            await self._follow(request, response, context, watcher)
        except ConnectionError:
            pass
        except TimeoutError:
            self.too_slow_count += 1
            log.warning("watcher closed: %s", _SLOW, extra={"peer": request.remote, "revision": watcher.position})
            await self._end_slow(request, response, history)
        finally:
            history.listeners.discard(watcher.woken.set)
            self._open.discard(watcher)
        return response

    def _hello(self, context: AdminContext, watcher: Watcher) -> str:
        history = context.service.history
        fields: dict[str, Any] = {
            "nodeId": context.settings.node_id,
            "mode": context.settings.mode,
            "from": watcher.position,
            "revision": history.newest,
            "oldest": history.oldest,
        }
        if self.leadership is not None:
            fields |= self.leadership
        return _event("hello", json.dumps(fields), event_id(watcher.position, context.service.history_id))

    async def _follow(self, request: web.Request, response: web.StreamResponse, context: AdminContext, watcher: Watcher) -> None:
        """Send events. Raises ConnectionError: the watcher has left. Raises TimeoutError: it reads too slowly."""
        history, history_id = context.service.history, context.service.history_id
        while True:
            # The connection has ended, so its certificate is unknown. A check now would refuse the caller as anonymous.
            if request.transport is None:
                return
            try:
                self._check(request, watcher)
            except AccessError as denied:
                await self._send(response, _end("refused", f"{denied.error}; {denied.remedy}", history))
                return
            watcher.woken.clear()
            try:
                changes = history.after(watcher.position, BATCH_BYTES)
            except CompactedError as error:
                if watcher.position < history.replaced_at - 1:  # the state was replaced while this watcher was connected
                    watcher.position = history.replaced_at - 1
                    continue
                await self._send(response, _end("compacted", str(error), history))
                self.too_slow_count += 1
                return
            events = [_event(change.kind, change.data, event_id(change.revision, history_id)) for change in changes]
            notices, watcher.notices = watcher.notices, []
            if events or notices:
                await self._send(response, "".join(events + notices))
                if changes:
                    watcher.position = changes[-1].revision
                continue
            if self.stopping:
                await self._send(response, _end("stopping", _STOPPED, history))
                return
            try:
                async with asyncio.timeout(KEEP_ALIVE_S):
                    await watcher.woken.wait()
            except TimeoutError:
                await self._send(response, ":\n\n")

    def _check(self, request: web.Request, watcher: Watcher) -> None:
        """Check the caller of a stream from time to time. Raises AccessError: it no longer has the permission to watch."""
        now_s = asyncio.get_running_loop().time()
        if now_s >= watcher.check_at_s:
            watcher.check_at_s = now_s + CHECK_EVERY_S
            access = request.app[ACCESS]
            access.check_again(request, READERS, access.check_secret_view)

    async def _send(self, response: web.StreamResponse, text: str) -> None:
        async with asyncio.timeout(WRITE_TIMEOUT_S):
            await response.write(text.encode())

    async def _end_slow(self, request: web.Request, response: web.StreamResponse, history: History) -> None:
        """Write the reason into the buffer. The connection stays open for at most ``WRITE_TIMEOUT_S``, in which a watcher that
        still reads receives the reason.
        """
        try:
            async with asyncio.timeout(0):
                await response.write(_end("slow", _SLOW, history).encode())
        except (TimeoutError, ConnectionError):
            pass
        transport = request.transport
        if transport is not None:
            transport.close()
            asyncio.get_running_loop().call_later(WRITE_TIMEOUT_S, transport.abort)


WATCHERS = web.AppKey("watchers", Watchers)


async def watch(request: web.Request) -> web.StreamResponse:
    """``GET /v1/watch?from=REVISION``: every change after that revision; without it every change from now on."""
    context = request.app[CONTEXT]
    asked = request.headers.get("Last-Event-ID") or request.query.get("from")
    await fresh_state(context)
    history, history_id = context.service.history, context.service.history_id
    if asked is None:
        return await request.app[WATCHERS].stream(request, context, history.newest)
    revision, of_history = parse_position(asked)
    if of_history != history_id and (of_history or revision):
        problem = "was counted by an earlier process" if of_history else "does not name the process that counted it"
        return _gone(f"revision {revision} {problem} of an independent node", history, history_id)
    if revision > history.newest:  # another node may have sent this revision, while this node lags or gives stale answers
        await passed(context, ReadLevel.LINEARIZABLE, None)
    if revision > history.newest:
        return _gone(f"revision {revision} does not exist here yet: the latest is {history.newest}", history, history_id)
    if revision < history.oldest:
        oldest = event_id(history.oldest, history_id)
        return _gone(f"changes after revision {revision} are no longer kept, only those after {oldest}", history, history_id)
    return await request.app[WATCHERS].stream(request, context, revision)


def parse_position(text: str) -> tuple[int, str]:
    """(revision, history) of an event id. Raises BodyError."""
    number, _, of_history = text.strip().partition("@")
    if not number.isascii() or not number.isdigit() or len(number) > 18:
        raise BodyError(f"'{text[:80]}' is not a revision: give the id of the last event seen, or the revision of another answer")
    return int(number), of_history


def _gone(error: str, history: History, history_id: str) -> web.Response:
    remedy = "read the state again (/v1/topics, /v1/brokers, /v1/kv) and watch from the 'watchFrom' of those answers"
    fields = {"error": error, "remedy": remedy, "outcome": "not done", "oldest": history.oldest, "revision": history.newest}
    return json_response(fields | {"watchFrom": event_id(history.newest, history_id)}, 410)


def _event(kind: str, data: str, event_id: str | None = None) -> str:
    head = "" if event_id is None else f"id: {event_id}\n"
    return f"{head}event: {kind}\ndata: {data}\n\n"


def _end(reason: str, text: str, history: History) -> str:
    return _event("end", json.dumps({"reason": reason, "error": text, "oldest": history.oldest, "revision": history.newest}))

"""Operations on a whole node or cluster: backup, restore, leadership transfer, changes of members, and drain."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from aiohttp import web

from replicated_namesrv import __version__
from replicated_namesrv.access.identities import shown
from replicated_namesrv.address_list import is_member_name
from replicated_namesrv.admin.access import ORIGIN
from replicated_namesrv.admin.context import CONTEXT, AdminContext
from replicated_namesrv.admin.diagnosis import even_size_warning
from replicated_namesrv.admin.json_views import state_for
from replicated_namesrv.admin.paging import is_number
from replicated_namesrv.admin.responses import json_error, json_response
from replicated_namesrv.errors import (
    BodyError,
    NamesrvError,
    OutcomeUnknownError,
    PartlyDoneError,
    SettingError,
    UnavailableError,
)
from replicated_namesrv.routes import backup as backups
from replicated_namesrv.routes.encoding import RouteFormatError
from replicated_namesrv.routes.quotas import Quotas
from replicated_namesrv.routes.results import NOT_EMPTY
from replicated_namesrv.routes.snapshot import SnapshotReader
from replicated_namesrv.routes.state import RouteInfoManager
from replicated_namesrv.service import ReadLevel
from replicated_namesrv.settings import parse_address

READ_TIMEOUT_S = 30.0
DROP_TIMEOUT_S = 10.0
DRAIN_S, DRAIN_S_MAX = 10, 300
PEERS_WAIT_S, PEERS_LOOK_S = 3.0, 0.05
"""How long a drain waits for the first address message of another node. Nodes send one a second, so a node that has just
started knows no other node for about a second."""
REPLACE_WAIT_S = 30.0
"""How long a replacement waits until the new node votes."""
TOLD_S = 0.5
"""How long a drain waits after its announcement. Nodes notify each other of a drain at once. Thus if all nodes are drained at the
same time, each of them learns that no other one serves."""
TARGET_CHARACTERS_MAX = 1_024
"""Maximum number of characters of a request in an audit log."""
BACKUPS_MAX, RESTORES_MAX = 4, 1
"""Maximum number of backups that a node sends at the same time, and of restores that it receives at the same time. Each backup
keeps in memory the state that existed when it began. Each restore builds a second state."""
BACKUPS = web.AppKey("backups", asyncio.Semaphore)
RESTORES = web.AppKey("restores", asyncio.Semaphore)


async def backup(request: web.Request) -> web.StreamResponse:
    """``GET /v1/backup``: the whole state at one revision, while changes continue. A stale backup needs no majority."""
    if request.app[BACKUPS].locked():
        remedy = "repeat the request when one of them has ended, or ask another node"
        return json_error(429, f"this node sends {BACKUPS_MAX} backups at present", remedy)
    async with request.app[BACKUPS]:
        return await _send_backup(request)


async def _send_backup(request: web.Request) -> web.StreamResponse:
    context = request.app[CONTEXT]
    try:
        state, freshness = await state_for(request)
    except UnavailableError as error:
        remedy = "ask another node, or add ?readConsistency=stale (namesrv backup --stale), which needs no majority"
        if request.query.get("readConsistency", request.headers.get("readConsistency")) == ReadLevel.STALE:
            remedy = "start a majority, or stop this node and read its disk with 'namesrv recover'"
        return json_error(503, str(error), remedy)
    settings = context.settings
    origin: dict[str, Any] = {
        "revision": state.revision,
        "mode": context.settings.mode,
        "clusterId": settings.cluster_id,
        **({"groupId": context.service.group_id} if context.service.group_id else {}),
        "nodeId": settings.node_id,
        "timeMs": int(time.time() * 1000),
        "softwareVersion": __version__,
        **{name: freshness[name] for name in ("readLevel", "stalenessMs") if name in freshness},
    }
    parts = backups.encode(origin, state.snapshot())
    response = web.StreamResponse(headers={"Content-Type": "application/octet-stream", **freshness})
    with contextlib.suppress(ConnectionError):  # the client left, or did not read, before it had the whole backup
        await response.prepare(request)
        for part in parts:
            await response.write(part)
            await asyncio.sleep(0)
    return response


async def restore(request: web.Request) -> web.Response:
    """``POST /v1/restore``: the body, a file of ``/v1/backup``, becomes the state of a fresh cluster.

    The whole file is read and checked before anything is proposed. The state is then encoded again, so that lines of an
    earlier version, which have no size limit, do not enter the log. A node receives one backup at a time.
    """
    if request.app[RESTORES].locked():
        await _drop_rest(request)
        return json_error(429, "this node receives another backup at present", "wait until that restore has ended")
    async with request.app[RESTORES]:
        return await _restore(request)


async def _restore(request: web.Request) -> web.Response:
    service = request.app[CONTEXT].service
    try:
        service.check_restore()
        state = await _state_in(request, service.quotas)
        service.quotas.check_whole(state.sizes)
        state.check_numbers()
    except NamesrvError:
        await _drop_rest(request)
        raise
    state.compares_content = service.state.compares_content  # False: the state is written in a form that version 0.1 can read
    result = await service.restore(state.snapshot(), request.get(ORIGIN))
    if result.code == NOT_EMPTY:
        remedy = "form a new cluster with empty data directories, or add KV config and settings: namesrv restore --merge FILE"
        return json_error(409, result.remark or "refused", remedy)
    if result.code:  # for example, because another node received a backup at the same time
        return json_error(503, result.remark or "refused", "repeat the request when no other backup is being restored")
    return json_response({"changed": True, "revision": service.state.revision})


async def _drop_rest(request: web.Request) -> None:
    """Read and drop the rest of the body for a while. If the connection were closed before the rest arrived, it would be reset,
    and the answer would be lost.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DROP_TIMEOUT_S):
            while await request.content.readany():
                pass


async def _state_in(request: web.Request, quotas: Quotas) -> RouteInfoManager:
    """The state that the body contains. Raises BodyError, and LimitError as soon as the state is too large."""
    reader, state = SnapshotReader(), RouteInfoManager()
    try:
        async for part in _snapshot_in(request):
            reader.feed(part)
            quotas.check_part(reader.sizes)
            await asyncio.sleep(0)
        state.adopt(reader)
    except RouteFormatError as error:
        raise BodyError(f"the backup cannot be read: {error}") from None
    return state


async def _snapshot_in(request: web.Request) -> AsyncIterator[bytes]:
    """The parts of the snapshot that the body contains. Its checksum has been checked when the iterator ends. Raises
    BodyError.
    """
    reader, size = backups.BackupReader(), 0
    state_bytes_max = request.app[CONTEXT].settings.max_state_bytes
    most = backups.bytes_max(state_bytes_max)
    try:
        while True:
            async with asyncio.timeout(READ_TIMEOUT_S):
                data = await request.content.readany()
            if not data:
                break
            size += len(data)
            if size > most:
                raise BodyError(
                    f"the backup has more than {most} bytes, the most for maxStateBytes={state_bytes_max}; raise maxStateBytes"
                )
            if ready := reader.feed(data):
                yield ready
        reader.finish()
    except backups.BackupError as error:
        raise BodyError(str(error)) from None
    except TimeoutError:
        raise BodyError(f"no part of the backup arrived for {READ_TIMEOUT_S:g} s") from None


async def transfer_leadership(request: web.Request) -> web.Response:
    """``POST /v1/leader/transfer?to=NODE``: transfer leadership to NODE. Without ``to``, the voter with the longest log becomes
    leader."""
    service = request.app[CONTEXT].service
    await _announce(request)
    await service.transfer_leadership(request.query.get("to") or None)
    return json_response({"changed": True, "replication": service.replication_status()})


async def _announce(request: web.Request) -> None:
    """Record an operation in the audit logs of all nodes, before it is executed. Raises UnavailableError: the operation must not
    be executed.
    """
    name, target = f"{request.method} {request.path}", request.query_string or None
    target = None if target is None else shown(target, TARGET_CHARACTERS_MAX)
    try:
        await request.app[CONTEXT].service.announce(shown(name, TARGET_CHARACTERS_MAX), target, request.get(ORIGIN))
    except OutcomeUnknownError as error:
        raise UnavailableError(f"not executed, because it may not be in the audit logs of the other nodes: {error}") from None


MEMBER_ACTIONS = ("add", "remove", "promote", "move", "replace")
MEMBER_PARAMETERS = ("address", "by", "observer")


async def change_member(request: web.Request) -> web.Response:
    """``POST /v1/members/{node}/{action}``: add (``?address=HOST:PORT``, ``&observer=true``), remove, promote, move
    (``?address=HOST:PORT``) or replace (``?by=NODE&address=HOST:PORT``) a member. The leader decides."""
    context, action, name = request.app[CONTEXT], request.match_info["action"], request.match_info["node"]
    if action not in MEMBER_ACTIONS:
        raise BodyError(f"{action[:40]!r} is not an action; give one of {', '.join(MEMBER_ACTIONS)}")
    for parameter, takers in (("address", ("add", "move", "replace")), ("by", ("replace",))):
        if (parameter in request.query) != (action in takers):
            raise BodyError(f"{action} {'needs' if action in takers else 'takes no'} {parameter}")
    for parameter in request.query.keys() - set(MEMBER_PARAMETERS):
        raise BodyError(f"unknown parameter {parameter[:40]!r}; the parameters are {', '.join(MEMBER_PARAMETERS)}")
    given, new = request.query.get("address"), request.query.get("by")
    added = name if action == "add" else new
    if added is not None and not is_member_name(added):
        raise BodyError(
            f"{added[:40]!r} cannot be in join=NAME=HOST:PORT,… or in a path; give a name of at most 200 characters, without "
            "blanks, control characters, ',' and '='"
        )
    address = None if given is None else parse_address("address", given)
    observer = request.query.get("observer", "false")
    if observer not in ("true", "false") or ("observer" in request.query and action != "add"):
        raise BodyError(f"observer={observer[:40]} with {action}: give true or false, and only with add")
    await _announce(request)
    if new is None or address is None:
        await context.service.change_member(action, name, address, observer == "true")
    try:
        changed = True if new is None or address is None else await _replace(context, name, new, address)
    except _HalfReplacedError as error:
        return json_error(503, str(error), error.remedy, "unknown")
    members = context.service.members()
    warning = even_size_warning(members)
    return json_response({"changed": changed, "members": members, **({"warning": warning} if warning else {})})


def _has_vote(row: Mapping[str, object] | None) -> bool:
    """Whether a member votes and, as far as this node knows, runs. Only the leader knows whether it is connected."""
    return row is not None and row["role"] in ("voter", "leader") and row["connected"] is not False


def _check_new(old: str, new: str, row: Mapping[str, object] | None, is_continued: bool) -> None:
    """Refuse to remove ``old`` in exchange for a node that was no replacement for it. Raises SettingError."""
    role = None if row is None else row["role"]
    if role == "observer":
        raise SettingError(
            f"by={new}: {new} is an observer; promote it with POST /v1/members/{new}/promote. When it votes, remove {old}"
        )
    if role in ("voter", "leader") and not is_continued:
        raise SettingError(
            f"by={new}: {new} is a voter already, so the cluster would only lose {old}; give a node that is no member, or use "
            f"POST /v1/members/{old}/remove"
        )


class _HalfReplacedError(PartlyDoneError):
    """The new node of a replacement was added, and the old one was not removed. ``remedy``: the next step."""

    def __init__(self, text: str, remedy: str) -> None:
        super().__init__(text)
        self.remedy = remedy


async def _replace(context: AdminContext, old: str, new: str, address: tuple[str, int]) -> bool:
    """Add ``new``, wait until it votes, and remove ``old``. Steps that were taken before are skipped, so the request can be
    repeated. Returns False if all steps had been taken before. Raises SettingError, UnavailableError, OutcomeUnknownError,
    _HalfReplacedError. A leader that is replaced only transfers leadership: the next leader has to be asked to remove it."""
    service = context.service

    def rows() -> dict[object, dict[str, object]]:
        return {row["nodeId"]: row for row in service.members()}

    found, shown_address = rows(), "{}:{}".format(f"[{address[0]}]" if ":" in address[0] else address[0], address[1])
    is_added = new in found and found[new]["peerAddress"] == shown_address and found[new]["role"] != "observer"
    if old == new:
        raise SettingError(f"{old} cannot be replaced by a node of the same name; give another name with the parameter 'by'")
    if found.get(old, {}).get("role") == "observer":
        raise SettingError(
            f"{old} is an observer, and 'replace' adds a voter: add {new} with observer=true, and then remove {old}"
        )
    if old not in found and not is_added:
        raise SettingError(f"{old} is not a member; give one of {', '.join(map(str, found))}")
    if old in found:
        _check_new(old, new, found.get(new), context.replacing.get(old) == new)
        for gone in context.replacing.keys() - found.keys():
            del context.replacing[gone]
        context.replacing[old] = new
    if not is_added:
        await service.change_member("add", new, address, False)
    give_up_at = time.monotonic() + REPLACE_WAIT_S
    while not _has_vote(rows().get(new)):
        if time.monotonic() >= give_up_at:
            row = rows().get(new, {"role": "not a member", "lag": None})
            raise _HalfReplacedError(
                f"{new} was added and does not vote yet ({row['role']}, lag {row['lag']}), so {old} was not removed",
                f"start {new} if it does not run, and repeat the request",
            )
        await asyncio.sleep(PEERS_LOOK_S)
    if old in rows():
        try:
            await service.change_member("remove", old, None, False)
        except (SettingError, UnavailableError) as error:
            raise _HalfReplacedError(
                f"{new} was added and votes, and {old} was not removed: {error}",
                f"remove {old} at the present leader with POST /v1/members/{old}/remove",
            ) from None
    context.replacing.pop(old, None)
    return old in found or not is_added


async def drain(request: web.Request) -> web.Response:
    """``POST /v1/drain?withinSeconds=N``: send brokers and clients to the other nodes. ``force=true``: even if no other node is
    known to serve.
    """
    context = request.app[CONTEXT]
    text = request.query.get("withinSeconds", str(DRAIN_S))
    if not is_number(text, 1, DRAIN_S_MAX):
        raise BodyError(f"withinSeconds={text[:40]}: give 1 to {DRAIN_S_MAX}")
    force = request.query.get("force") == "true"
    knows_others = context.service.replication_status() is not None  # an AP node does not know other nodes
    others = await _others_serving(context, PEERS_WAIT_S if knows_others and not force else 0.0)
    if knows_others and not others and not force:
        remedy = "start another node, or give --force (force=true)"
        return json_error(409, "no other node of the cluster serves brokers and clients", remedy)
    with contextlib.suppress(UnavailableError):  # a node can be drained without a majority, too; then nothing is recorded
        await _announce(request)
    if knows_others and not force and not context.node.is_drained:
        context.node.announce_drain()
        await asyncio.sleep(TOLD_S)
        others = _serving(context)
        if not others:
            await context.node.resume()
            return json_error(409, "the other nodes of the cluster are being drained, too", "drain one node after the other")
        if not context.node.is_drained:
            return _ended()
    done = await context.node.drain(float(text))
    if done is None:
        return _ended()
    return json_response({"drained": True, "moved": done.moved, "cut": done.cut, "othersServing": others})


def _ended() -> web.Response:
    remedy = "look at GET /v1/status (drained), and drain the node again if it serves"
    return json_error(409, "this drain was ended by a later drain, or by 'namesrv drain --undo'", remedy)


async def _others_serving(context: AdminContext, within_s: float) -> list[str]:
    """The addresses of the other nodes that serve. If no such node is known, wait for one, unless the cluster has only one
    node.
    """
    give_up_at = time.monotonic() + within_s
    is_alone = len(context.service.node_addresses()) < 2
    while True:
        serving = _serving(context)
        if serving or is_alone or time.monotonic() >= give_up_at:
            return serving
        await asyncio.sleep(PEERS_LOOK_S)


def _serving(context: AdminContext) -> list[str]:
    """The addresses of the other nodes that serve, as far as this node knows."""
    nodes = context.service.node_addresses()
    return [node.address for node in nodes if node.serves and node.node_id != context.settings.node_id]


async def resume(request: web.Request) -> web.Response:
    """``DELETE /v1/drain``: serve again."""
    with contextlib.suppress(UnavailableError):
        await _announce(request)
    await request.app[CONTEXT].node.resume()
    return json_response({"drained": False})

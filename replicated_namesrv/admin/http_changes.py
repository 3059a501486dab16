"""Changes over HTTP. Each change is the same command as over remoting, proposed to the same service.

An answer of 200 means done. Everything else is ``{"error", "remedy", "outcome"}``: "not done", or "unknown" where the
service itself does not know.
"""

import asyncio
import difflib
from asyncio import Future
from collections.abc import Mapping

import orjson
from aiohttp import web

from replicated_namesrv.access.identities import shown
from replicated_namesrv.admin.access import ORIGIN, TARGET
from replicated_namesrv.admin.context import CONTEXT, AdminContext
from replicated_namesrv.admin.responses import json_error, json_response
from replicated_namesrv.errors import BodyError
from replicated_namesrv.routes.commands import ChangeWritePerm, Command, DeleteKVConfig, DeleteTopic, PutKVConfig
from replicated_namesrv.routes.results import Result
from replicated_namesrv.settings import ROWS, has_control_character

BODY_TIMEOUT_S = 10.0
BODY_BYTES_MAX = 1 << 20
"""Maximum size of a KV value. On paths without a body, no body is read: the connection is closed after the answer."""
CONFIG_BYTES_MAX = 1 << 18
"""Maximum size of the body of ``POST /v1/config``: a value of maximum length with its escapes."""
DROPPED_BYTES_MAX = 1 << 20
NAME_CHARACTERS_MAX = 1024
CHARACTERS_SHOWN = 80
"""Number of characters of a refused name or value in an error."""
_STATUS_OF_CODE = {2: 503, 16: 403, 17: 404, 22: 404}


async def put_kv(request: web.Request) -> web.Response:
    """``PUT /v1/kv/{namespace}/{key}``: the body, UTF-8 text, becomes the value."""
    namespace, key = _name(request, "namespace"), _name(request, "key")
    try:
        value = (await _body(request, BODY_BYTES_MAX)).decode()
    except UnicodeDecodeError as cause:
        raise BodyError(f"the value is not UTF-8: {cause.reason} at byte {cause.start}") from cause
    return await _propose(request, PutKVConfig(namespace, key, value))


async def delete_kv(request: web.Request) -> web.Response:
    """``DELETE /v1/kv/{namespace}/{key}``. A missing key is not an error."""
    return await _propose(request, DeleteKVConfig(_name(request, "namespace"), _name(request, "key")))


async def delete_topic(request: web.Request) -> web.Response:
    """``DELETE /v1/topics/{topic}``: delete its route (``DELETE_TOPIC_IN_NAMESRV``, 216). With ``?clusterName=``, only its queues
    in that cluster are deleted.

    Brokers keep the topic, and the next registration that contains it restores the route.
    """
    return await _propose(request, DeleteTopic(_name(request, "topic"), request.query.get("clusterName") or None))


async def change_write_permission(request: web.Request) -> web.Response:
    """``POST /v1/brokers/{brokerName}/write-permission?writable=false``: remove the write permission of all topics of the broker
    name (``WIPE_WRITE_PERM_OF_BROKER``, 205), or ``?writable=true``: restore it (``ADD_WRITE_PERM_OF_BROKER``, 327)."""
    writable = request.query.get("writable")
    if writable not in ("true", "false"):
        raise BodyError("writable is missing, or neither true nor false: give ?writable=true or ?writable=false")
    return await _propose(request, ChangeWritePerm(_name(request, "brokerName"), writable == "true"))


async def update_config(request: web.Request) -> web.Response:
    """``POST /v1/config`` with ``{"name": value, …}``: change settings at run time, as ``UPDATE_NAMESRV_CONFIG`` (318) does."""
    try:
        given = orjson.loads(await _body(request, CONFIG_BYTES_MAX))
    except orjson.JSONDecodeError as cause:
        raise BodyError(f"the body is not JSON: {cause}") from cause
    if not isinstance(given, dict) or not all(isinstance(value, str | bool | int) for value in given.values()):
        raise BodyError('the body is not an object of names and plain values, as in {"orderMessageEnable": true}')
    values = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in given.items()}
    request[TARGET] = shown(", ".join(sorted(values)), NAME_CHARACTERS_MAX)
    context = request.app[CONTEXT]
    context.service.quotas.check_settings(values)
    _check_settings(values)
    return await _answer(context, context.service.update_config(values, request.get(ORIGIN)), inForceAfterRestart=[])


def _check_settings(values: Mapping[str, str]) -> None:
    """Refuse keys and values that ``UPDATE_NAMESRV_CONFIG`` (318) ignores: over HTTP they are probably typing errors. Raises
    BodyError."""
    for name, text in values.items():
        if name not in ROWS:
            near = difflib.get_close_matches(name[:CHARACTERS_SHOWN], ROWS, n=1)
            raise BodyError(f"unknown setting '{name[:CHARACTERS_SHOWN]}'" + (f"; did you mean {near[0]}?" if near else ""))
        if has_control_character(text):
            raise BodyError(f"{name}={text[:CHARACTERS_SHOWN]!r}: it has a control character; give a value without one")
        try:
            row = ROWS[name]
            (row.parse_change if row.live else row.parse_strictly)(text)
        except ValueError as cause:
            raise BodyError(f"{name}={text[:CHARACTERS_SHOWN]}: not a value of this setting; {cause}") from cause


def _name(request: web.Request, field: str) -> str:
    name = request.match_info[field]
    if len(name) > NAME_CHARACTERS_MAX:
        raise BodyError(f"{field} has {len(name)} characters; at most {NAME_CHARACTERS_MAX} are allowed")
    return name


class BodyTooLargeError(Exception):
    """The body is larger than its path allows."""


async def _body(request: web.Request, bytes_max: int) -> bytes:
    """Read the body. Raises BodyTooLargeError, or BodyError if the body did not arrive in time.

    Up to ``DROPPED_BYTES_MAX`` bytes beyond the limit are read and dropped. If the connection were closed before they came, it
    would be reset, and the answer would be lost.
    """
    body, size = bytearray(), 0
    expected = request.content_length or 0
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            while max(expected, size) <= bytes_max + DROPPED_BYTES_MAX and (part := await request.content.readany()):
                size += len(part)
                if size <= bytes_max:
                    body += part
    except TimeoutError as cause:
        raise BodyError(f"the body did not arrive within {BODY_TIMEOUT_S:g} s") from cause
    if max(expected, size) > bytes_max:
        raise BodyTooLargeError(f"the body is larger than {bytes_max} bytes")
    return bytes(body)


async def _propose(request: web.Request, command: Command) -> web.Response:
    context = request.app[CONTEXT]
    return await _answer(context, context.service.propose(command, None, request.get(ORIGIN)))


async def _answer(context: AdminContext, outcome: "Result | Future[Result]", **more: object) -> web.Response:
    result = await outcome if isinstance(outcome, Future) else outcome
    if result.code == 0:
        return json_response({"changed": result.changed, "revision": context.service.state.revision, **more})
    remark = result.remark or f"refused with code {result.code}"
    return json_error(_STATUS_OF_CODE.get(result.code, 500), remark, "correct the request; code " + str(result.code))

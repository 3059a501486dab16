"""JSON answers and errors, the same on every path."""

from collections.abc import Mapping
from typing import Any

import orjson
from aiohttp import web


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """``value`` as JSON, with a newline for terminals."""
    body = orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE)
    return web.Response(body=body, status=status, headers=headers, content_type="application/json")


def json_error(
    status: int, error: str, remedy: str, outcome: str = "not done", headers: Mapping[str, str] | None = None
) -> web.Response:
    """An error as JSON. ``outcome``: "not done", or "unknown" if a change may have happened.

    ``error`` can contain a header of the request. Bytes in it that are not UTF-8 become ``?``."""
    error = error.encode(errors="replace").decode()
    return json_response({"error": error, "remedy": remedy, "outcome": outcome}, status, headers)

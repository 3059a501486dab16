"""Long lists in pages: ``?limit=&after=&q=``.

A page is cut from the sorted keys. ``after`` is the last key of the previous page, so if rows are added or removed between two
pages, no other row is repeated or left out. Building rows yields to the event loop every few milliseconds, because a listing of
10,000 topics of 300 brokers must not delay a route query.
"""

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, NamedTuple

from aiohttp import web

from replicated_namesrv.errors import BodyError

ROWS_DEFAULT, ROWS_MAX = 200, 1000
SLICE_S = 0.003
"""How long rows are built before other tasks run."""


class PageRequest(NamedTuple):
    """The parameters in the query string."""

    limit: int
    after: str
    search: str
    """Lower case. Rows whose key does not contain it are left out."""


class Page(NamedTuple):
    """Keys of one page."""

    keys: Sequence[str]
    next: str | None
    """``after`` of the next page, None on the last."""
    total: int
    """Keys on all pages."""

    @classmethod
    def of(cls, keys: Sequence[str], limit: int, total: int) -> "Page":
        """The first ``limit`` of ``keys``. One more key means that there is another page."""
        chosen = keys[:limit]
        return cls(chosen, chosen[-1] if len(keys) > limit else None, total)


def page_request(request: web.Request) -> PageRequest:
    """Read the query string. Raises BodyError naming a bad ``limit``."""
    text = request.query.get("limit", str(ROWS_DEFAULT))
    if not text.isascii() or not text.isdigit() or len(text) > 9 or not 1 <= int(text) <= ROWS_MAX:
        raise BodyError(f"limit={text[:40]}: give 1 to {ROWS_MAX}, and follow 'next' for more")
    return PageRequest(int(text), request.query.get("after", ""), request.query.get("q", "").lower())


def cut(sorted_keys: Sequence[str], wanted: PageRequest) -> Page:
    """The requested page."""
    keys = [key for key in sorted_keys if wanted.search in key.lower()] if wanted.search else sorted_keys
    first = bisect_right(keys, wanted.after) if wanted.after else 0
    return Page.of(keys[first : first + wanted.limit + 1], wanted.limit, len(keys))


async def build_rows(keys: Sequence[str], row: Callable[[str], Any]) -> list[Any]:
    """``row(key)`` of each key, without those that are None (removed in between)."""
    rows = []
    turn_ends = perf_counter() + SLICE_S
    for key in keys:
        built = row(key)
        if built is not None:
            rows.append(built)
        if perf_counter() > turn_ends:
            await asyncio.sleep(0)
            turn_ends = perf_counter() + SLICE_S
    return rows

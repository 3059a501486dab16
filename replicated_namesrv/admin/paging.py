"""Long lists in pages: ``?limit=&after=&q=&sort=``.

A page is the next keys in order. ``after`` is the last key of the previous page, so if rows are added or removed between two
pages, no other row is repeated or left out. If the rows are sorted by a number, ``after`` is this number and the key. Building
rows yields to the event loop every few milliseconds, because a listing of 10,000 topics of 300 brokers must not delay a route
query.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from heapq import nsmallest
from itertools import chain
from time import perf_counter
from typing import Any, NamedTuple, TypeVar

from aiohttp import web

from replicated_namesrv.errors import BodyError

T = TypeVar("T")

ROWS_DEFAULT, ROWS_MAX = 200, 1000
RANKED_PER_TURN = 1_000
KEYS_PER_TURN = 5_000
"""Number of keys that are compared before other tasks run: some milliseconds of work."""
SLICE_S = 0.003
"""Time for which rows are built before other tasks run."""
ANSWER_BYTES = 4 << 20
"""A page ends after the row with which it reaches this size. This bounds its memory and the time to encode it."""


class PageRequest(NamedTuple):
    """The parameters in the query string."""

    limit: int
    after: str | None
    """The last key of the previous page, or with ``sort`` its number and key. A key may be empty. None: the page is the first
    one."""
    search: str
    """Search text in lower case. Rows whose key does not contain this text are left out."""
    sort: str = ""
    """Name of the number by which the rows are sorted. Empty: they are sorted by key."""
    is_descending: bool = False


class Page(NamedTuple):
    """Keys of one page."""

    keys: Sequence[str]
    next: str | None
    """Value of ``after`` for the next page; None on the last page."""
    total: int
    """Number of keys on all pages."""
    marks: Sequence[str] = ()
    """For each of ``keys``: the value of ``after`` for a page that begins after this key. Empty: the values are the keys."""

    @classmethod
    def of(cls, keys: Sequence[str], limit: int, total: int) -> "Page":
        """The first ``limit`` of ``keys``. If there are more keys, there is another page."""
        chosen = keys[:limit]
        return cls(chosen, chosen[-1] if len(keys) > limit else None, total)


def is_number(text: str, least: int, most: int) -> bool:
    """Whether a parameter is a whole number in these bounds, of at most nine digits."""
    return text.isascii() and text.isdigit() and len(text) <= 9 and least <= int(text) <= most


def page_request(request: web.Request, sorts: Collection[str] = ()) -> PageRequest:
    """Read the query string. ``sorts``: names of the numbers by which rows can be sorted. Raises BodyError naming a bad
    parameter.
    """
    text = request.query.get("limit", str(ROWS_DEFAULT))
    if not is_number(text, 1, ROWS_MAX):
        raise BodyError(f"limit={text[:40]}: give 1 to {ROWS_MAX}, and follow 'next' for more")
    sort = request.query.get("sort", "")
    name = sort.removeprefix("-")
    if name and name not in sorts:
        known = ", ".join(sorts) or "nothing"
        raise BodyError(f"sort={sort[:40]}: these rows can be sorted by {known}; a '-' in front reverses the order")
    return PageRequest(int(text), request.query.get("after"), request.query.get("q", "").lower(), name, sort.startswith("-"))


async def cut(keys: Sequence[str], wanted: PageRequest, rank: Callable[[str], float] | None = None) -> Page:
    """The requested page of ``keys``, which have no order. Only the page is sorted, and other tasks run in between.

    ``rank``: returns the number by which a key is sorted if ``wanted.sort`` is set."""
    if wanted.sort and rank is not None:
        return await _cut_ranked(keys, wanted, rank)
    total, found = 0, list[str]()
    for start in range(0, len(keys), KEYS_PER_TURN):
        if start:
            await asyncio.sleep(0)
        part = keys[start : start + KEYS_PER_TURN]
        if wanted.search:
            part = [key for key in part if wanted.search in key.lower()]
        total += len(part)
        found = nsmallest(wanted.limit + 1, chain(found, (key for key in part if wanted.after is None or key > wanted.after)))
    return Page.of(found, wanted.limit, total)


async def _cut_ranked(keys: Sequence[str], wanted: PageRequest, rank: Callable[[str], float]) -> Page:
    sign = -1 if wanted.is_descending else 1
    number, _, key = (wanted.after or "").partition("|")
    try:
        after = (float(number), key) if wanted.after else None
    except ValueError:
        raise BodyError(f"after={number[:40]}: give the 'next' of a page with the same sort") from None

    def ranked(key: str) -> tuple[float, str] | None:
        return None if wanted.search and wanted.search not in key.lower() else (sign * rank(key), key)

    total, found = 0, list[tuple[float, str]]()
    for start in range(0, len(keys), RANKED_PER_TURN):
        part = await build_rows(keys[start : start + RANKED_PER_TURN], ranked)
        total += len(part)
        found = nsmallest(wanted.limit + 1, chain(found, (each for each in part if after is None or each > after)))
    chosen = found[: wanted.limit]
    marks = [f"{number!r}|{key}" for number, key in chosen]
    return Page([key for _, key in chosen], marks[-1] if len(found) > wanted.limit else None, total, marks)


async def build_rows(keys: Iterable[T], row: Callable[[T], Any]) -> list[Any]:
    """``row(key)`` of each key. Rows that are None are left out: these keys were removed in between."""
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


async def sized_rows(page: Page, row: Callable[[str], Any], size: Callable[[Any], int]) -> tuple[list[Any], str | None]:
    """``row(key)`` of the keys of a page, as in ``build_rows``, until they have ``ANSWER_BYTES``; and ``next``. ``size``: the
    approximate number of bytes of a row."""
    held = 0

    def counted(key: str) -> Any:
        nonlocal held
        if held >= ANSWER_BYTES:
            return None
        built = row(key)
        held += 0 if built is None else size(built)
        return built, key

    done = [(built, key) for built, key in await build_rows(page.keys, counted)]
    rows = [built for built, _ in done if built is not None]
    last = len(done) - 1
    return rows, page.next if len(done) == len(page.keys) else (page.marks or page.keys)[last]

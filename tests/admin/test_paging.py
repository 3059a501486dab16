"""Pages of keys that have no order."""

import asyncio
from random import Random

from replicated_namesrv.admin.paging import KEYS_PER_TURN, Page, PageRequest, cut


def expected(keys: list[str], wanted: PageRequest) -> Page:
    """The page, found by sorting all keys."""
    found = sorted(key for key in keys if wanted.search in key.lower())
    return Page.of([key for key in found if not wanted.after or key > wanted.after], wanted.limit, len(found))


async def test_pages_are_those_of_the_sorted_keys(seed: int) -> None:
    rng = Random(seed)
    keys = ["", *(f"Topic-{rng.randrange(10**9)}" for _ in range(2 * KEYS_PER_TURN + 7))]
    for search in ("", "7", "topic-12", "none"):
        after: str | None = ""
        for _ in range(5):
            wanted = PageRequest(rng.choice((1, 10, 1000)), after or "", search)
            page = await cut(keys, wanted)
            assert page == expected(keys, wanted)
            after = page.next
            if after is None:
                break


async def test_other_tasks_run_while_keys_are_compared() -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.ensure_future(count())
    await cut([str(number) for number in range(10 * KEYS_PER_TURN)], PageRequest(10, "", ""))
    task.cancel()
    assert turns >= 9

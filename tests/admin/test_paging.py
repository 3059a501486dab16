"""Pages of keys that have no order."""

import asyncio
from random import Random

from replicated_namesrv.admin.paging import KEYS_PER_TURN, Page, PageRequest, cut


def expected(keys: list[str], wanted: PageRequest) -> Page:
    """The page, found by sorting all keys."""
    found = sorted(key for key in keys if wanted.search in key.lower())
    return Page.of([key for key in found if wanted.after is None or key > wanted.after], wanted.limit, len(found))


async def test_pages_are_those_of_the_sorted_keys(seed: int) -> None:
    rng = Random(seed)
    keys = ["", *(f"Topic-{rng.randrange(10**9)}" for _ in range(2 * KEYS_PER_TURN + 7))]
    for search in ("", "7", "topic-12", "none"):
        after: str | None = None
        for _ in range(5):
            wanted = PageRequest(rng.choice((1, 10, 1000)), after, search)
            page = await cut(keys, wanted)
            assert page == expected(keys, wanted)
            after = page.next
            if after is None:
                break


async def test_an_empty_key_is_on_one_page_only() -> None:
    after: str | None = None
    seen = list[str]()
    for _ in range(3):
        page = await cut(["b", "", "a"], PageRequest(1, after, ""))
        seen += page.keys
        after = page.next
    assert (seen, after) == (["", "a", "b"], None)


async def test_other_tasks_run_while_keys_are_compared() -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.ensure_future(count())
    await cut([str(number) for number in range(10 * KEYS_PER_TURN)], PageRequest(10, None, ""))
    task.cancel()
    assert turns >= 9

"""The time limit of a cleanup."""

import asyncio

import pytest

from replicated_namesrv.time_limit import ends_within
from tests.support.waiting import until


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_work_is_cut_short_and_the_cleanup_goes_on(is_cancelled: bool) -> None:
    """Also in a task that is being cancelled, in which asyncio.timeout of Python 3.11.2 raises CancelledError."""
    done: list[object] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            done.append("cut short")

    async def cleaned_up() -> None:
        try:
            done.append("began")
            if is_cancelled:
                await asyncio.Event().wait()
        finally:
            done.append(await ends_within(0.01, work()))
            done.append(await ends_within(60, asyncio.sleep(0)))

    task = asyncio.create_task(cleaned_up())
    await until(lambda: bool(done), "the start")
    if is_cancelled:
        task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert (done, task.cancelled()) == (["began", "cut short", False, True], is_cancelled)


async def test_errors_and_cancellations_pass() -> None:
    async def fail() -> None:
        raise ValueError("of the work")

    with pytest.raises(ValueError, match="of the work"):
        await ends_within(60, fail())
    ended: list[str] = []

    async def work() -> None:
        try:
            ended.append("began")
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    waiting = asyncio.create_task(ends_within(60, work()))
    await until(lambda: bool(ended), "the start")
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert waiting.cancelled()
    await until(lambda: ended == ["began", "cancelled"], "the end of the work")

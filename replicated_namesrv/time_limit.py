"""A time limit that also works while a task is being cancelled."""

import asyncio
from collections.abc import Coroutine


async def ends_within(seconds: float, work: Coroutine[object, object, object]) -> bool:
    """Run ``work`` in a task, and cancel it after ``seconds``. Returns whether it ended in time.

    Before Python 3.11.3, ``asyncio.timeout`` raises CancelledError in a task that is being cancelled, and so cuts a cleanup short
    (python/cpython issue 102780). Raises what ``work`` raises.
    """
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait((task,), timeout=seconds)
    except asyncio.CancelledError:
        task.cancel()
        raise
    if done:
        task.result()
        return True
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return False

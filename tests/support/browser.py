"""A page of Debian's Chromium, driven by Playwright, for tests of the console."""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from playwright.async_api import Error, Locator, Page, Route, TimeoutError, async_playwright

from tests.support.replicated_processes import eventually

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
LIMIT_MS = 60_000
"""How long a test waits for a condition on a page, on a busy machine."""
CLICK_MS = 10_000
"""Time limit of a click and of the dialog that it opens. After that the test looks at the nodes again."""


def chromium() -> str:
    """Path of the system's Chromium; the running test is skipped, with the remedy, where there is none."""
    for name in BROWSERS:
        if found := shutil.which(name):
            return found
    pytest.skip("no Chromium; install one (Debian: apt-get install chromium)")


@asynccontextmanager
async def browser_page(**options: Any) -> AsyncIterator[Page]:
    """A new page. The test fails if a script threw an error or the page's content security policy refused something."""
    path, wrong = chromium(), list[str]()
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"])
        try:
            page = await browser.new_page(**options)
            page.set_default_timeout(LIMIT_MS)
            page.on("pageerror", lambda error: wrong.append(f"{error}\n{error.stack}"))
            page.on("dialog", lambda dialog: wrong.append(f"dialog: {dialog.message}"))
            page.on("console", lambda text: wrong.append(text.text) if "Content Security Policy" in text.text else None)
            yield page
        except Exception as error:
            error.add_note(f"errors of the page: {wrong or 'none'}")
            raise
        finally:
            await browser.close()
    assert not wrong, wrong


async def shows(page: Page, text: str, selector: str = "body") -> None:
    """Return when the page contains ``text``. If it does not, the error names the texts that the page contains instead."""
    try:
        await page.locator(selector, has_text=text).first.wait_for()
    except Error as error:
        error.add_note(f"{selector} contains {(await page.locator(selector).all_inner_texts())!r:.1000}")
        raise


async def holds(page: Page, expression: str, argument: object = None) -> None:
    """Return when a JavaScript expression, or a function of ``argument``, is true in the page. ``Page.wait_for_function`` cannot
    be used: it repeats the evaluation in the page's own timers, where the content security policy refuses it."""
    await eventually(lambda: page.evaluate(expression, argument), expression, LIMIT_MS / 1000)


async def opens_dialog(button: Locator) -> bool:
    """Click, and return whether a dialog is open. No dialog opens while the button says why its action cannot be used. On a busy
    machine a node may stop answering, or step down, between a look at the button and the click."""
    dialog = button.page.locator("dialog[open]")
    with contextlib.suppress(TimeoutError):
        if not await dialog.count():
            await button.click(timeout=CLICK_MS)
        await dialog.wait_for(timeout=CLICK_MS)
        return True
    return False


async def give_token(page: Page, token: str, text: str = "", selector: str = "body") -> None:
    """Type the token into the console's form. With ``text``: return when the page shows it, and is live."""
    await page.get_by_label("Token").fill(token)
    await page.get_by_role("button", name="Use").click()
    if text:
        await shows(page, text, selector)
        await shows(page, "live", ".stream")


async def seconds_until(condition: Callable[[], Awaitable[object]]) -> float:
    """The time that ``condition`` took to return."""
    began = asyncio.get_running_loop().time()
    await condition()
    return asyncio.get_running_loop().time() - began


async def answers_come_late(page: Page, path: str, late_s: float) -> list[str]:
    """Delay all answers of ``path``, a pattern. Returns the list of its requests, which grows."""
    asked: list[str] = []

    async def delay(route: Route) -> None:
        asked.append(route.request.url)
        until = asyncio.get_running_loop().time() + late_s
        while asyncio.get_running_loop().time() < until:  # noqa: ASYNC110 - the delay is the subject
            await asyncio.sleep(late_s / 10)
        await route.continue_()

    await page.route(path, delay)
    return asked


async def repeat(work: Callable[[int], None], every_s: float) -> None:
    """Call ``work`` with 0, 1, … until this is cancelled."""
    number = 0
    while True:
        work(number)
        number += 1
        await asyncio.sleep(every_s)

"""What the charts of the console draw, and what they say about nodes without samples. In a real browser."""

import re
import time
from pathlib import Path
from typing import Any

from playwright.async_api import Route

from replicated_namesrv.routes.commands import PutKVConfig
from tests.admin.test_console import console, one_node
from tests.admin.test_http import propose
from tests.support.browser import browser_page, holds, shows

STEP_MS = 2_000
SAMPLES = 1_800
BUSY_AT = 900
"""The only sample of the hour in which there was a request."""
RECORD_TEXTS = """(() => {
    const fillText = CanvasRenderingContext2D.prototype.fillText;
    window.drawn = new Set();
    CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
        window.drawn.add(text);
        return fillText.call(this, text, ...rest);
    };
})()"""
"""``drawn``: the texts that were drawn on canvases."""
COLOURED = """(canvas) => {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    let found = 0;
    for (let at = 0; at < data.length; at += 4) if (data[at + 3] > 128 && data[at + 2] - data[at] > 60) found += 1;
    return found > 0;
}"""
"""Whether a canvas has pixels in the colour of the first node."""


async def test_a_single_value_is_visible_and_hours_have_24(tmp_path: Path) -> None:
    now_ms = int(time.time() * 1000)
    latency: list[float | None] = [None] * SAMPLES
    latency[BUSY_AT] = 0.2
    samples: dict[str, Any] = {
        "timesMs": [now_ms - STEP_MS * (SAMPLES - at) for at in range(SAMPLES)],
        "series": {"latency:0.99": latency, "memory": [1 << 20] * SAMPLES},
    }

    async def answer(route: Route) -> None:
        await route.fulfill(json=samples)

    async with one_node(tmp_path) as (_, port), browser_page(color_scheme="light") as page:
        await page.add_init_script(RECORD_TEXTS)
        await page.route("**/v1/samples?*", answer)
        await page.goto(console(port, "charts"))
        at = time.strftime("%H:%M:%S", time.localtime((now_ms - STEP_MS * (SAMPLES - BUSY_AT)) / 1000))
        await shows(page, f"first 200 ms at {at}", "figcaption")  # half an hour old
        assert " at " not in await page.locator("figcaption", has_text="Memory").inner_text()
        figure = page.locator("figure", has_text="Latency of requests, 99th percentile")
        canvas = await figure.locator("canvas").element_handle()
        await holds(page, COLOURED, canvas)
        texts = await page.evaluate("[...window.drawn]")
        assert any(re.fullmatch(r"\d\d:\d\d", text) for text in texts), texts
        assert not any(re.search(r"[ap]m|/\d\d/", text) for text in texts), texts


async def test_a_node_without_samples_is_named(tmp_path: Path) -> None:
    async with one_node(tmp_path, nameServerAddresses="127.0.0.1:1") as (node, port), browser_page() as page:
        propose(node, PutKVConfig("NAMESPACE", "other", "value"))
        await page.route("**/v1/samples?*", lambda route: route.fulfill(status=503, json={"error": "it is busy"}))
        await page.goto(console(port, "charts"))
        await shows(page, "There are no new samples of first: it is busy.", "main")
        await shows(page, "does not answer, so its values are not the present ones", "main")

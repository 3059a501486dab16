"""The memory of an open console stays steady while brokers and topics change: a short run of ``console_churn``."""

from pathlib import Path

import pytest

from tests.admin.console_churn import Look, grown, measure, slopes


def test_growth_is_named() -> None:
    first = Look(10, 100, 10 << 20, 1_000, 100, 2 << 20, 300 << 20, 60 << 20, 1.0)
    assert grown([first, first._replace(heap_bytes=16 << 20, dom_nodes=1_700, listeners=200)]) == []
    (wrong,) = grown([first, first._replace(heap_bytes=18 << 20)])
    assert "heap of the page" in wrong
    half = [first._replace(second=1_800 * at, heap_bytes=(8 + at) << 20) for at in range(4)]
    assert slopes(half)[:2] == ["heap of the page: +2.00 MiB per hour", "heap of the topics page: +0.00 MiB per hour"]


@pytest.mark.slow
async def test_memory_is_steady_while_brokers_and_topics_change(tmp_path: Path) -> None:
    looks = await measure(changes=400, seconds=6, topics=300, rounds=2, loads=1, folder=tmp_path)
    assert looks[-1].changes >= 50
    assert grown(looks) == []

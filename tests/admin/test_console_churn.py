"""The memory of an open console stays steady while brokers and topics change: a short run of ``console_churn``."""

from pathlib import Path

import pytest

from tests.admin.console_churn import Look, grown, measure


def test_growth_is_named() -> None:
    first = Look(10, 100, 10 << 20, 1_000, 100, 60 << 20)
    assert grown([first, first._replace(heap_bytes=16 << 20, dom_nodes=1_700, listeners=200)]) == []
    (wrong,) = grown([first, first._replace(heap_bytes=18 << 20)])
    assert "heap of the page" in wrong


@pytest.mark.slow
async def test_memory_is_steady_while_brokers_and_topics_change(tmp_path: Path) -> None:
    looks = await measure(changes=400, seconds=6, topics=300, rounds=2, folder=tmp_path)
    assert looks[-1].changes >= 50
    assert grown(looks) == []

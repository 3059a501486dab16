"""More KV config than one block of a snapshot can contain, on real processes: no entry is lost (large_state.py)."""

import argparse
from pathlib import Path

import pytest

from tests.replication import large_state


@pytest.mark.slow
async def test_nothing_is_lost_of_a_namespace_of_seventy_megabytes(tmp_path: Path) -> None:
    """The log that led there is dropped several times; all nodes are killed, and one loses its disk."""
    schedule = argparse.Namespace(
        puts=200, keys=70, value_bytes=1_000_000, old=None, only_old=False, empty_disk=True, settings=[]
    )
    assert await large_state.run(schedule, tmp_path) == 0

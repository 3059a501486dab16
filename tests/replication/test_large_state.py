"""More KV config than one block of a snapshot can contain, on real processes: no entry is lost (large_state.py)."""

import argparse
from pathlib import Path
from typing import Any

import pytest

from tests.replication import large_state
from tests.replication.test_upgrade import VERSION_0_1_0, checkout

BLOCK_BYTES_MAX = 64 << 20
"""The longest block that 0.1.0 reads."""
SCHEDULE: dict[str, Any] = {
    "puts": 200,
    "keys": 70,
    "value_bytes": 1_000_000,
    "snapshot_bytes": BLOCK_BYTES_MAX + 1,
    "old": None,
    "only_old": False,
    "settings": [],
}


@pytest.mark.slow
async def test_nothing_is_lost_of_a_namespace_of_seventy_megabytes(tmp_path: Path) -> None:
    """The log that led there is dropped several times; all nodes are killed, and one loses its disk."""
    assert await large_state.run(argparse.Namespace(**SCHEDULE, empty_disk=True), tmp_path) == 0


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_directories_that_0_1_0_cannot_open_are_opened(tmp_path: Path) -> None:
    """Its snapshots have a line of 70 MB in one block, which it refuses to read itself: the whole state was lost at a restart."""
    old = tmp_path / "0.1.0"
    old.mkdir()
    checkout(VERSION_0_1_0, old)
    schedule = SCHEDULE | {"old": str(old), "puts": 140}
    large_state.OtherVersion.checkout = str(old)
    assert await large_state.run(argparse.Namespace(**schedule, empty_disk=False), tmp_path / "cluster") == 0

"""A cluster of version 0.1.0 is upgraded node by node to this version. The earlier code comes from the repository's history."""

import subprocess
from pathlib import Path

import pytest

from tests.packaging.tree import ROOT
from tests.replication import upgrade

VERSION_0_1_0 = "d49fc33d5ab71d012103fc37279367e3371a2b09"


def checkout(commit: str, folder: Path) -> None:
    """Write the files of a commit into ``folder``. Skips the test if the repository does not have the commit."""
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode:
        pytest.skip(f"needs the code of 0.1.0 from git: {archive.stderr.decode().strip()}")
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("order", ["leader-first", "leader-last"])
async def test_no_registration_is_lost_and_dead_brokers_are_removed(order: str, tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.mkdir()
    checkout(VERSION_0_1_0, old)
    assert await upgrade.run(old, order, tmp_path / "cluster") == []

"""Jars and compiled drivers, once a session; a laboratory a test."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.lab import Lab, compile_driver, laboratory
from tests.support import provision

VERSIONS = ("5.3.3", "4.9.7")


@pytest.fixture(scope="session")
def jars() -> dict[str, Path]:
    """Folder of jars by RocketMQ version."""
    found = {version: provision.rocketmq_jars(version) for version in VERSIONS}
    missing = [version for version, folder in found.items() if folder is None]
    if missing or shutil.which("javac") is None:
        pytest.skip(
            "RocketMQ's jars come through Maven: install a JDK of 17 or newer and Maven (apt-get install maven), then run again"
        )
    return {version: folder for version, folder in found.items() if folder is not None}


@pytest.fixture(scope="session")
def classes(jars: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folder of the compiled driver by RocketMQ version."""
    return {version: compile_driver(folder, tmp_path_factory.mktemp(f"driver-{version}")) for version, folder in jars.items()}


@pytest.fixture
def lab(jars: dict[str, Path], classes: dict[str, Path], tmp_path: Path) -> Iterator[Lab]:
    """A laboratory whose processes end with the test."""
    java = provision.java()
    assert java is not None
    with laboratory(tmp_path, str(java), jars, classes) as it:
        yield it

"""Fixtures: jars and compiled drivers, made once in a session, and a ``Lab`` of RocketMQ processes for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.lab import VERSIONS, Lab, compile_driver, laboratory
from tests.support import provision


@pytest.fixture(scope="session")
def jars() -> dict[str, Path]:
    """Folder of jars by RocketMQ version."""
    return {version: provision.require_rocketmq_jars(version) for version in VERSIONS}


@pytest.fixture(scope="session")
def classes(jars: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folder of the compiled driver by RocketMQ version."""
    return {version: compile_driver(folder, tmp_path_factory.mktemp(f"driver-{version}")) for version, folder in jars.items()}


@pytest.fixture
def mode() -> str:
    """Mode of the name servers that are started together; test_replicated.py has another one."""
    return "ap"


@pytest.fixture
def lab(jars: dict[str, Path], classes: dict[str, Path], tmp_path: Path, mode: str) -> Iterator[Lab]:
    """A set of RocketMQ processes that end with the test."""
    with laboratory(tmp_path, str(provision.java()), jars, classes, mode) as it:
        yield it

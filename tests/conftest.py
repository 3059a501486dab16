"""What holds for every test: one seed for all randomness of a run, hypothesis profiles, progress that capture does not hide."""

import os
import random
import secrets
import sys
from collections.abc import Generator

import hypothesis
import pytest

from tests.support import provision

SEED_KEY = pytest.StashKey[int]()

# No deadline: a busy machine is not a defect. A failure prints the blob that repeats exactly its example.
hypothesis.settings.register_profile("default", deadline=None, print_blob=True)
hypothesis.settings.register_profile("ci", deadline=None, print_blob=True, database=None)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "default")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=None, help="seed of every random choice of this run (default: a new one)")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Settle the seed before hypothesis reads its own option, and send progress past the capture."""
    chosen = config.getoption("--seed")
    config.stash[SEED_KEY] = secrets.randbelow(1_000_000) if chosen is None else chosen
    if config.getoption("hypothesis_seed", None) is None:
        config.option.hypothesis_seed = str(config.stash[SEED_KEY])
    capture = config.pluginmanager.getplugin("capturemanager")

    def print_now(text: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"\n{text}", file=sys.stderr, flush=True)

    provision.say_through(print_now)


def pytest_report_header(config: pytest.Config) -> str:
    return f"seed: {config.stash[SEED_KEY]}"


@pytest.fixture(scope="session")
def seed(pytestconfig: pytest.Config) -> int:
    """The seed of this run (``--seed``). A test that uses it, or ``rng``, is reported with how to repeat it when it fails."""
    return pytestconfig.stash[SEED_KEY]


@pytest.fixture
def rng(seed: int, request: pytest.FixtureRequest) -> random.Random:
    """Randomness of one test: fixed by the run's seed and the test's name, whatever else runs."""
    return random.Random(f"{seed} {request.node.nodeid}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add to a failure the command that repeats it, where randomness took part."""
    report = yield
    names = getattr(item, "fixturenames", ())
    if report.failed and ("seed" in names or hypothesis.is_hypothesis_test(getattr(item, "obj", None))):
        command = f"./namesrv test '{item.nodeid}' --seed {item.config.stash[SEED_KEY]}"
        report.sections.append(("Repeat", command))
    return report

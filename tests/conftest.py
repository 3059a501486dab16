"""Common to all tests: one seed for all randomness of a run, hypothesis profiles, visible progress despite capture."""

import gc
import os
import random
import resource
import secrets
import sys
import time
from collections.abc import Generator, Iterator
from typing import Any

import hypothesis
import pytest

from replicated_namesrv.provision import find_maven
from tests.support import provision
from tests.support.schedule import group_of, in_order

SEED_KEY = pytest.StashKey[int]()

# No deadline: a busy machine is not a defect. A failure prints the blob that repeats exactly its example.
hypothesis.settings.register_profile("default", deadline=None, print_blob=True)
hypothesis.settings.register_profile("ci", deadline=None, print_blob=True, database=None)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "default")

for variable in [name for name in os.environ if name.startswith("NAMESRV_")]:
    del os.environ[variable]  # set by users who follow the tour of README.md, and read by the commands

QUICK_LIMIT_S, ALL_LIMIT_S = 240, 2400
"""How long the quick tests and all of them may take on two cores, in seconds."""


class Totals:
    """The time that a whole run took, and the tests that were skipped because RocketMQ's jars are missing."""

    def __init__(self) -> None:
        self.began_s = time.monotonic()
        self.ran_slow = False
        self.without_jars: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.ran_slow |= "slow" in report.keywords
        if report.skipped and isinstance(report.longrepr, tuple) and provision.SKIP_PREFIX in report.longrepr[2]:
            self.without_jars.append(report.nodeid)

    def jars_could_be_had(self) -> bool:
        """Whether tests were skipped although Maven is here: a defect of the tests, which must never be ignored."""
        return bool(self.without_jars) and find_maven() is not None

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.jars_could_be_had():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        spent_s, limit_s = time.monotonic() - self.began_s, ALL_LIMIT_S if self.ran_slow else QUICK_LIMIT_S
        over = " - OVER THE LIMIT" if spent_s > limit_s else ""
        terminalreporter.write_line(f"{spent_s:.0f} s of at most {limit_s} on two quiet cores{over}")
        if self.jars_could_be_had():
            terminalreporter.write_line("failed: Maven is here, but these were skipped: " + ", ".join(self.without_jars))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=None, help="seed of every random choice of this run (default: a new one)")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Choose the seed before hypothesis reads its own option, and print progress although output is captured."""
    chosen = config.getoption("--seed")
    config.stash[SEED_KEY] = secrets.randbelow(1_000_000) if chosen is None else chosen
    config.option.seed = config.stash[SEED_KEY]  # pytest-xdist copies the options to its workers
    if config.getoption("hypothesis_seed", None) is None:
        config.option.hypothesis_seed = str(config.stash[SEED_KEY])
    capture = config.pluginmanager.getplugin("capturemanager")

    def print_now(text: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"\n{text}", file=sys.stderr, flush=True)

    provision.say_through(print_now)
    if not hasattr(config, "workerinput"):  # a worker of pytest-xdist reports to the process that started it
        config.pluginmanager.register(Totals(), "totals")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort the tests of a whole run. All processes of pytest-xdist have the same order, and ``pytest_xdist_make_scheduler`` keeps
    it."""
    if hasattr(config, "workerinput"):
        by_name = {item.nodeid: item for item in items}
        slow = {name: item.get_closest_marker("slow") is not None for name, item in by_name.items()}
        items[:] = [by_name[name] for name in in_order(slow)]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests without garbage collections, which take a fifth of the time and find nothing: modules and tests stay. Later
    collections do not look at them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Distribute groups of tests, in their order."""
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]  # pytest-xdist declares no types

    class ByGroup(LoadScopeScheduling):  # type: ignore[misc]  # its base is untyped
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    config.option.loadscopereorder = False
    return ByGroup(config, log)


def pytest_report_header(config: pytest.Config) -> str:
    return f"seed: {config.stash[SEED_KEY]}"


@pytest.fixture(scope="session")
def seed(pytestconfig: pytest.Config) -> int:
    """The seed of this run (``--seed``). If a test that uses this fixture or ``rng`` fails, the report contains the command that
    repeats the test."""
    return pytestconfig.stash[SEED_KEY]


@pytest.fixture
def rng(seed: int, request: pytest.FixtureRequest) -> random.Random:
    """Randomness of one test. It depends only on the run's seed and the test's name."""
    return random.Random(f"{seed} {request.node.nodeid}")


@pytest.fixture(autouse=True)
def _descriptors_stay() -> Iterator[None]:
    """No test may change the hard limit on descriptors of this process, because nodes of later tests inherit it."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    yield
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] == before, "the test has changed the hard limit on descriptors"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add to a failure the command that repeats it, where randomness took part."""
    report = yield
    names = getattr(item, "fixturenames", ())
    if report.failed and ("seed" in names or hypothesis.is_hypothesis_test(getattr(item, "obj", None))):
        command = f"./namesrv test '{item.nodeid}' --seed {item.config.stash[SEED_KEY]}"
        report.sections.append(("Repeat", command))
    return report

"""The slowdown of processes by other load."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from replicated_namesrv.chaos import machine_load
from replicated_namesrv.chaos.machine_load import MachineLoad

HERE = os.getpid()
BUSY = "import os\nos.sched_setaffinity(0, {%d})\nos.nice(%d)\nwhile True: pass"


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> dict[int, tuple[int, int]]:
    """The scheduler's statistics of each process: (nanoseconds run, nanoseconds waited)."""
    stats: dict[int, tuple[int, int]] = {HERE: (0, 0)}
    monkeypatch.setattr(machine_load, "_schedstat", stats.get)
    return stats


def test_the_slowdown_is_that_of_all_processes_since_the_last_question(told: dict[int, tuple[int, int]]) -> None:
    told[7] = (1_000, 0)
    load = MachineLoad(lambda: [7])
    told |= {HERE: (100, 100), 7: (1_300, 200)}
    assert load.take() == pytest.approx((1_400 + 300) / 1_400, abs=0.01)
    told |= {HERE: (200, 100), 7: (1_400, 800)}
    assert load.take() == pytest.approx((200 + 600) / 200)
    assert load.take() is None, "nothing has run since"


def test_a_process_that_ended_counts_until_its_last_sample(told: dict[int, tuple[int, int]]) -> None:
    load = MachineLoad(lambda: [7])
    told |= {HERE: (100, 0), 7: (100, 600)}
    load.sample()
    del told[7]
    assert load.take() == pytest.approx(800 / 200)
    told |= {HERE: (200, 0), 7: (100, 0)}  # another process with the same number
    load.sample()
    assert load.take() == pytest.approx(1.0)


def test_a_system_that_tells_nothing_gives_no_slowdown(told: dict[int, tuple[int, int]]) -> None:
    told.clear()
    assert MachineLoad(lambda: [7]).take() is None


@pytest.fixture
def rivals() -> Iterator[list[int]]:
    """Two busy processes on one core. The first process has the lower priority."""
    core = min(os.sched_getaffinity(0))
    started = [subprocess.Popen([sys.executable, "-c", BUSY % (core, nice)]) for nice in (5, 0)]
    yield [process.pid for process in started]
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc/PID/schedstat")
def test_a_process_that_shares_its_core_is_slowed_down(rivals: list[int]) -> None:
    nicer = rivals[0]
    while (found := machine_load._schedstat(nicer)) is None or found[0] < 20_000_000 or found[1] < found[0]:
        assert all(os.path.exists(f"/proc/{pid}") for pid in rivals)
    load = MachineLoad(lambda: [nicer])
    load._last = {HERE: machine_load._schedstat(HERE) or (0, 0)}
    slowdown = load.take()
    assert slowdown is not None
    assert slowdown > 1

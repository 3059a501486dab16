"""Child processes: how they ended if this process did not end them, that a script's program ends with the script, and their
last lines."""

import asyncio
from pathlib import Path

import pytest

from replicated_namesrv.child_process import ChildProcess, UnexpectedExit
from tests.support.waiting import until


@pytest.mark.parametrize(
    ("command", "ended"),
    [
        ("exit 0", UnexpectedExit(False, "exit status 0")),
        ("exit 3", UnexpectedExit(True, "exit status 3")),
        ("kill -SEGV $$", UnexpectedExit(True, "SIGSEGV")),
        ("kill -KILL $$", UnexpectedExit(False, "SIGKILL")),
        ("exit 139", UnexpectedExit(True, "SIGSEGV")),
    ],
)
async def test_a_crash_is_told_from_being_ended(command: str, ended: UnexpectedExit, tmp_path: Path) -> None:
    child = ChildProcess("child", ["sh", "-c", command], tmp_path / "log")
    await child.start()
    await until(lambda: child.ended == ended, f"{command}: {ended}", 60)


async def test_what_is_ended_here_has_not_crashed_and_takes_along_what_it_started(tmp_path: Path) -> None:
    child = ChildProcess("child", ["sh", "-c", "sleep 1000; true"], tmp_path / "log")
    for end in (child.stop, child.kill):
        await child.start()
        child.pause()
        group = child.pid
        assert group is not None
        await end()
        assert (child.ended, child.state) == (None, "dead")
        await gone(group)


async def test_a_task_that_is_cancelled_still_kills_what_ignores_sigterm(tmp_path: Path) -> None:
    child = ChildProcess("child", ["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.1; done"], tmp_path / "log")

    async def run() -> None:
        try:
            await child.start()
            await asyncio.Event().wait()
        finally:
            await child.stop(0.1)

    task = asyncio.create_task(run())
    await until(lambda: child.running and child.last_lines() == ["ready"], "the start of the child", 60)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert not child.running


async def test_the_last_lines_are_those_of_the_latest_process(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("a refused option of an earlier start\n")
    child = ChildProcess("child", ["sh", "-c", "echo started"], log)
    await child.start()
    await child.wait()
    assert child.last_lines() == ["started"]
    await child.start()
    await child.wait()
    assert child.last_lines() == ["started"]


async def gone(group: int) -> None:
    await until(lambda: not members(group), "the end of the whole group", 60)


def members(group: int) -> list[str]:
    """Processes of a group that have not ended (Linux)."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, of_group = entry.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(of_group) == group and state != "Z":
            found.append(entry.parent.name)
    return found

"""Files that are replaced as a whole, through crashes, full disks and several writers."""

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from replicated_namesrv.errors import OutcomeUnknownError, StorageError
from replicated_namesrv.files import FileWriter, why_unwritable, write_atomically

CALLS = ("open", "fsync", "replace")
"""Functions of ``os``: the calls of a write that change the disk, except for writing the bytes."""


class PowerCutError(BaseException):
    """The process ends here: no further code may run, not even a handler of OSError."""


def fail_at(monkeypatch: pytest.MonkeyPatch, number: int, error: Callable[[], BaseException]) -> list[str]:
    """Let the call with this number fail, counted over all calls that touch the disk. Returns the list of the calls made."""
    made: list[str] = []

    def counted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **more: Any) -> Any:
            made.append(name)
            if len(made) == number:
                raise error()
            return call(*arguments, **more)

        return wrapped

    for name in CALLS:
        monkeypatch.setattr(os, name, counted(name, getattr(os, name)))
    opened = Path.open
    monkeypatch.setattr(Path, "open", counted("open", opened))
    return made


def test_a_crash_leaves_the_old_content_or_the_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, number, seen = tmp_path / "made" / "here" / "f", 0, set[bytes]()
    write_atomically(path, b"oldest", backup=True)
    write_atomically(path, b"old", backup=True)
    while True:
        number += 1
        with monkeypatch.context() as patched:
            made = fail_at(patched, number, PowerCutError)
            with contextlib.suppress(PowerCutError):
                write_atomically(path, b"new", backup=True)
        if len(made) < number:
            break
        content = path.read_bytes()
        assert content in (b"old", b"new")
        assert path.with_name("f.bak").read_bytes() in ((b"oldest", b"old") if content == b"old" else (b"old",))
        seen.add(content)
        write_atomically(path, b"oldest", backup=True)
        write_atomically(path, b"old", backup=True)
        assert sorted(each.name for each in path.parent.iterdir()) == ["f", "f.bak"], "nothing is left lying about"
    assert seen == {b"old", b"new"}
    assert made.count("fsync") == 2, "file and folder; the backup is the old file"


def test_an_error_says_whether_the_old_content_is_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, number, errors = tmp_path / "f", 0, set[type]()
    while True:
        number += 1
        write_atomically(path, b"old", backup=True)
        with monkeypatch.context() as patched:
            made = fail_at(patched, number, lambda: OSError(28, "No space left on device"))
            error: Exception | None = None
            try:
                write_atomically(path, b"new", backup=True)
            except (StorageError, OutcomeUnknownError) as found:
                error = found
        if len(made) < number:
            assert error is None
            break
        errors.add(type(error))
        assert path.read_bytes() == (b"old" if isinstance(error, StorageError) else b"new")
        assert ("the old content is unchanged" in str(error)) == isinstance(error, StorageError)
    assert errors == {StorageError, OutcomeUnknownError}


def test_writers_of_one_path_do_not_mix(tmp_path: Path) -> None:
    path, failures = tmp_path / "f", list[BaseException]()
    contents = [bytes([65 + number]) * 200_000 for number in range(8)]

    def write(content: bytes) -> None:
        try:
            write_atomically(path, content, backup=True)
        except BaseException as error:
            failures.append(error)

    for _ in range(5):
        threads = [threading.Thread(target=write, args=(content,)) for content in contents]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert path.read_bytes() in contents
        assert path.with_name("f.bak").read_bytes() in contents


async def test_changes_that_wait_go_out_together_and_in_order() -> None:
    table: list[int] = []
    disk: list[list[int]] = []
    go_on = threading.Event()

    def build(changes: Sequence[int]) -> Callable[[], None]:
        content = [*table, *changes]

        def write() -> None:
            go_on.wait()
            disk.append(content)

        return write

    def apply(change: int) -> int:
        assert change in disk[-1], "on disk first"
        table.append(change)
        return -change

    writer = FileWriter[int, int](build, apply)
    first = writer.submit(1)
    await asyncio.sleep(0)
    others = [writer.submit(number) for number in (2, 3, 4)]
    others[1].cancel()
    go_on.set()
    assert await first == -1
    assert [await others[0], await others[2]] == [-2, -4]
    await writer.drain()
    assert disk == [[1], [1, 2, 3, 4]]
    assert table == [1, 2, 3, 4]


async def test_no_change_fails_because_of_another() -> None:
    table: list[int] = []

    def build(changes: Sequence[int]) -> Callable[[], None]:
        if 3 in changes:
            raise ValueError("3 cannot be written")
        return lambda: None

    writer = FileWriter[int, None](build, table.append)
    answers = await asyncio.gather(*(writer.submit(number) for number in range(6)), return_exceptions=True)
    assert [isinstance(answer, ValueError) for answer in answers] == [number == 3 for number in range(6)]
    assert table == [0, 1, 2, 4, 5]


def test_a_device_or_pipe_is_not_replaced(tmp_path: Path) -> None:
    """In an earlier version, root could replace /dev/null by a file."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(StorageError, match=r"pipe: could not be written \(it is not a regular file\)"):
        write_atomically(pipe, b"content", backup=True)
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]
    assert why_unwritable(pipe) == f"{pipe} is not a regular file"

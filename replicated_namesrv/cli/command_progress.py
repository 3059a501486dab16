"""Progress of a long command on stderr: its lines, and a line with the elapsed time while it prints nothing."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self, TextIO

SILENT_MAX_S = 1.8
"""If a command has printed no line for this long, the elapsed time is printed, so that no command is silent for more than 2 s."""


class CommandProgress:
    """Call it with each line. As a context manager it also prints the elapsed time, from a thread."""

    def __init__(
        self,
        form: Callable[[float, str], str] = lambda seconds, line: line,
        stream: TextIO | None = None,
        silent_max_s: float = SILENT_MAX_S,
        *,
        form_has_seconds: bool = False,
    ) -> None:
        """``form``: how a line is printed, from the seconds since the start and the line. ``stream``: used in place of stderr. If
        nobody reads stderr, its lines are lost. If ``stream`` is closed, the call that prints a line raises an OSError.
        ``form_has_seconds``: ``form`` prints the seconds, so the line of a silent command does not repeat them."""
        self._form, self._stream, self._silent_max_s = form, stream, silent_max_s
        self._form_has_seconds = form_has_seconds
        self._began = self._printed = time.monotonic()
        self._last = "starting"
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._repeat, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()

    def __call__(self, line: str) -> None:
        self._last = line.strip()
        with contextlib.suppress(*([OSError] if self._stream is None else [])):
            self._print(line)

    def _repeat(self) -> None:
        while not self._ended.wait(max(0.01, self._printed + self._silent_max_s - time.monotonic())):
            now = time.monotonic()
            if now - self._printed >= self._silent_max_s:
                with contextlib.suppress(OSError):
                    seconds = "" if self._form_has_seconds else f"{now - self._began:.0f} s, "
                    self._print(f"{seconds}still running: {self._last}")

    def _print(self, line: str) -> None:
        stream = self._stream or sys.stderr
        self._printed = time.monotonic()
        stream.write(self._form(self._printed - self._began, line) + "\n")
        stream.flush()

"""A pytest plugin that prints a line whenever a test run shows nothing for a while: ``./namesrv test`` loads it."""

import os
import sys
import threading
import time

import pytest

SILENT_MAX_S = 1.8


class ProgressLines:
    """Counts the tests that ended, and prints from a thread."""

    def __init__(self) -> None:
        self._stream = os.fdopen(os.dup(sys.stderr.fileno()), "w")  # pytest captures the descriptor 2 while a test runs
        self._began = self._shown = time.monotonic()
        self._ended = 0
        self._running: dict[str, float] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._repeat, daemon=True)
        self._thread.start()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._running[nodeid] = time.monotonic()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._running.pop(nodeid, None)
        self._ended += 1
        self._shown = time.monotonic()  # pytest has printed a character

    def pytest_unconfigure(self) -> None:
        self._over.set()
        self._thread.join()
        self._stream.close()

    def _repeat(self) -> None:
        while not self._over.wait(max(0.01, self._shown + SILENT_MAX_S - time.monotonic())):
            now = time.monotonic()
            if now - self._shown < SILENT_MAX_S:
                continue
            self._shown = now
            running = ", ".join(f"{name} ({now - since:.0f} s)" for name, since in list(self._running.items()))
            doing = f"{self._ended} ended, running: {running}" if running else "collecting tests" if not self._ended else "ending"
            print(f"\n{now - self._began:.0f} s, {doing}", end="", file=self._stream, flush=True)


_LINES = None if "PYTEST_XDIST_WORKER" in os.environ else ProgressLines()
"""Begins when the plugin is loaded, because the tests' modules are imported next. Workers do not print."""


def pytest_configure(config: pytest.Config) -> None:
    """Register the plugin that counts the tests."""
    if _LINES is not None:
        config.pluginmanager.register(_LINES, "progress lines")

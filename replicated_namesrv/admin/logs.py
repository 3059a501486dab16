"""Logs: structured records, written outside the event loop.

A record is a sentence and, through ``extra=``, named facts. On a terminal it is one readable line. Elsewhere it is one JSON
object per line (``time``, ``level``, ``logger``, ``message``, then the facts), so that sentences need not be parsed.

A separate thread writes from a bounded queue, because a terminal stopped with Ctrl-S or a pipe whose reader hangs must not
stop the name server. When the queue is full, records are dropped and counted. The count is written as soon as the output
accepts lines again.

Warnings and errors are throttled by kind and source (``Throttle``), because unauthenticated hosts can cause them and must not
fill the disk.
"""

import atexit
import json
import logging
import queue
import re
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TextIO

from replicated_namesrv.errors import SettingError

QUEUED_LINES_MAX = 10_000
"""Maximum number of lines that wait for a slow output. Further lines are dropped."""
THROTTLE_S, LINES_PER_SOURCE, LINES_PER_KIND, KINDS_MAX, KIND_CHARACTERS = 10.0, 20, 100, 1_000, 60
_NUMBERS = re.compile(r"[0-9]+")
LEVELS = ("debug", "info", "warning", "error")

_STANDARD_ATTRIBUTES = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime"}


def facts_of(record: logging.LogRecord) -> dict[str, object]:
    """The facts in the ``extra=`` of the logging call, in the order given there."""
    return {name: value for name, value in record.__dict__.items() if name not in _STANDARD_ATTRIBUTES}


def short_name(logger_name: str) -> str:
    """Logger name without this package's own name in front."""
    return logger_name.removeprefix("replicated_namesrv.")


class JsonFormatter(logging.Formatter):
    """One JSON object a line; facts of types that JSON does not have are written as their ``str``."""

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line: dict[str, object] = {
            "time": when,
            "level": record.levelname.lower(),
            "logger": short_name(record.name),
            "message": record.getMessage(),
        }
        line.update(facts_of(record))
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


class HumanFormatter(logging.Formatter):
    """Local time, level, logger, the sentence, then the facts as ``name=value``."""

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created).strftime("%H:%M:%S.%f")[:-3]
        facts = "".join(f"  {name}={value}" for name, value in facts_of(record).items())
        line = _printable(f"{when} {record.levelname:<7} {short_name(record.name)}: {record.getMessage()}{facts}")
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def _printable(line: str) -> str:
    """``line`` with control characters escaped, so that text of another host can neither forge lines nor control the terminal."""
    return line if line.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)


class Throttle(logging.Filter):
    """Passes warnings and errors of one kind: within ``THROTTLE_S`` at most ``LINES_PER_SOURCE`` of one source, and at most
    ``LINES_PER_KIND`` of all sources.

    Two records are of one kind if they have the same logger and, without numbers, the same ``KIND_CHARACTERS`` at the beginning
    of the message; the source is the host in the fact ``peer``. The next line of the kind says how many were ``left_out``.
    Memory is bounded by ``KINDS_MAX``: further kinds count as one.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now_s = now_s
        self._period_began_s = -THROTTLE_S
        self._passed: dict[tuple[str, ...], int] = {}
        self._left_out: dict[str, int] = {}
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        with self._lock:
            return self._passes(record)

    def _passes(self, record: logging.LogRecord) -> bool:
        now_s = self._now_s()
        if now_s - self._period_began_s >= THROTTLE_S:
            self._period_began_s = now_s
            self._passed.clear()
        kind = f"{record.name}: {_NUMBERS.sub('0', str(record.msg)[:KIND_CHARACTERS])}"
        if (kind,) not in self._passed and len(self._passed) >= KINDS_MAX:
            kind = "others"
        peer = str(record.__dict__.get("peer", ""))
        source = (kind, peer.rpartition(":")[0] or peer)
        if self._passed.get((kind,), 0) >= LINES_PER_KIND or self._passed.get(source, 0) >= LINES_PER_SOURCE:
            if kind in self._left_out or len(self._left_out) < KINDS_MAX:
                self._left_out[kind] = self._left_out.get(kind, 0) + 1
            return False
        self._passed[(kind,)] = self._passed.get((kind,), 0) + 1
        self._passed[source] = self._passed.get(source, 0) + 1
        if left_out := self._left_out.pop(kind, 0):
            record.__dict__["left_out"] = left_out
        return True


class BackgroundHandler(logging.Handler):
    """Writes formatted records to ``stream`` in a thread; ``dropped`` counts those that found the queue full."""

    def __init__(self, stream: TextIO, queued_lines_max: int = QUEUED_LINES_MAX) -> None:
        super().__init__()
        self.dropped = 0
        self._reported = 0
        self._stream = stream
        self._lines: queue.Queue[str | None] = queue.Queue(queued_lines_max)
        self._thread = threading.Thread(target=self._write_lines, name="log-writer", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._lines.put_nowait(self.format(record))
        except queue.Full:
            self.dropped += 1

    def _write_lines(self) -> None:
        while (line := self._lines.get()) is not None:
            if self.dropped != self._reported:
                lost, self._reported = self.dropped - self._reported, self.dropped
                line += "\n" + self.format(_dropped_record(lost))
            try:
                self._stream.write(line + "\n")
                self._stream.flush()
            except (OSError, ValueError):
                return  # the output is closed; ``emit`` counts the records that are lost from now on

    def close(self) -> None:
        """Write the queued records. Wait at most two seconds for an output that accepts nothing."""
        if self._thread.is_alive():
            try:
                self._lines.put(None, timeout=1)
                self._thread.join(timeout=1)
            except queue.Full:
                pass
        super().close()


def _dropped_record(count: int) -> logging.LogRecord:
    facts = {"name": __name__, "levelno": logging.WARNING, "levelname": "WARNING", "dropped": count}
    return logging.makeLogRecord({**facts, "msg": "the log's output was too slow, records were dropped"})


def configure_logging(level: str, stream: TextIO | None = None, *, as_json: bool | None = None) -> BackgroundHandler:
    """Send all records of at least ``level`` to ``stream`` (default stderr), replacing earlier handlers of the root logger.

    ``as_json`` None: JSON unless the stream is a terminal. SettingError: ``level`` is none of ``LEVELS``.
    """
    if level.lower() not in LEVELS:
        raise SettingError(f"logLevel={level}: no such level; choose one of {', '.join(LEVELS)}")
    stream = stream or sys.stderr
    handler = BackgroundHandler(stream)
    json_wanted = not stream.isatty() if as_json is None else as_json
    handler.addFilter(Throttle())
    handler.setFormatter(JsonFormatter() if json_wanted else HumanFormatter())
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
        old.close()
    root.addHandler(handler)
    root.setLevel(level.upper())
    atexit.register(handler.close)
    return handler

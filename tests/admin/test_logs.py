"""Structured records on slow, broken and ordinary outputs."""

import io
import json
import logging
import threading
from collections.abc import Iterator

import pytest

from replicated_namesrv.admin.logs import (
    KINDS_MAX,
    LINES_PER_KIND,
    LINES_PER_SOURCE,
    THROTTLE_S,
    BackgroundHandler,
    HumanFormatter,
    JsonFormatter,
    Throttle,
    configure_logging,
)
from replicated_namesrv.errors import SettingError


@pytest.fixture(autouse=True)
def _root_logger_restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    for handler in root.handlers:
        if handler not in handlers:
            handler.close()
    root.handlers, root.level = handlers, level


def _record(message: str, *arguments: object, **facts: object) -> logging.LogRecord:
    record = logging.LogRecord("replicated_namesrv.server", logging.WARNING, __file__, 1, message, arguments, None)
    record.__dict__.update(facts)
    return record


def test_json_line_carries_message_and_facts() -> None:
    line = json.loads(JsonFormatter().format(_record("closed %s", "one", peer="10.0.0.1:5", names={"a"})))
    assert line.pop("time").endswith("Z")
    assert line == {"level": "warning", "logger": "server", "message": "closed one", "peer": "10.0.0.1:5", "names": "{'a'}"}


def test_json_line_is_one_line_whatever_a_peer_sent() -> None:
    text = JsonFormatter().format(_record("bad\nname", topic='a\r\n{"level":"forged"}'))
    assert "\n" not in text
    assert "\r" not in text


def test_human_line_is_one_line_whatever_a_peer_sent() -> None:
    text = HumanFormatter().format(_record("name", topic="a\n12:00:00.000 ERROR forged", escape="\x1b[2J"))
    assert "\n" not in text
    assert "\x1b" not in text


def test_exception_is_written() -> None:
    try:
        raise ValueError("why")
    except ValueError as error:
        record = _record("failed")
        record.exc_info = (ValueError, error, error.__traceback__)
    assert "ValueError: why" in json.loads(JsonFormatter().format(record))["exception"]
    assert "ValueError: why" in HumanFormatter().format(record)


def test_lines_arrive_in_order_and_are_complete_after_close() -> None:
    stream = io.StringIO()
    configure_logging("info", stream)
    for i in range(500):
        logging.getLogger("replicated_namesrv.x").info("line", extra={"i": i})
    logging.getLogger("replicated_namesrv.x").debug("not wanted")
    logging.getLogger().handlers[0].close()
    assert [json.loads(line)["i"] for line in stream.getvalue().splitlines()] == list(range(500))


class _StuckStream(io.StringIO):
    """An output that does not take anything until it is released, like a terminal after Ctrl-S."""

    def __init__(self) -> None:
        super().__init__()
        self.released = threading.Event()
        self.reached = threading.Event()

    def write(self, text: str) -> int:
        self.reached.set()
        self.released.wait(20)
        return super().write(text)


def test_stuck_output_drops_and_counts_instead_of_blocking() -> None:
    stream = _StuckStream()
    handler = BackgroundHandler(stream, queued_lines_max=10)
    handler.setFormatter(JsonFormatter())
    handler.emit(_record("first"))
    assert stream.reached.wait(20)
    for _ in range(25):
        handler.emit(_record("more"))
    assert handler.dropped == 15
    stream.released.set()
    handler.close()
    written = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert sum(line["message"] == "more" for line in written) == 10
    assert [line["dropped"] for line in written if "dropped" in line] == [15]


def test_closed_output_is_survived() -> None:
    stream = io.StringIO()
    handler = BackgroundHandler(stream)
    handler.setFormatter(JsonFormatter())
    stream.close()
    handler.emit(_record("lost"))
    handler.close()
    assert not handler._thread.is_alive()


def test_unknown_level_names_the_choices() -> None:
    with pytest.raises(SettingError, match=r"logLevel=loud.*debug, info, warning, error"):
        configure_logging("loud", io.StringIO())


def _warning(message: str, peer: str) -> logging.LogRecord:
    return logging.makeLogRecord({"name": "x", "levelno": logging.WARNING, "msg": message, "peer": peer})


def test_warnings_are_throttled_by_kind_and_source() -> None:
    now_s = [0.0]
    throttle = Throttle(lambda: now_s[0])
    hosts = [f"10.0.0.{number}" for number in range(20)]
    records = [_warning(f"refused {n}", f"{host}:{n}") for host in hosts for n in range(50)]
    passed = [throttle.filter(record) for record in records]
    assert sum(passed[:50]) == LINES_PER_SOURCE
    assert sum(passed) == LINES_PER_KIND
    assert throttle.filter(_warning("something else", "10.0.0.0:1"))
    assert all(throttle.filter(logging.makeLogRecord({"levelno": logging.INFO})) for _ in range(1000))
    now_s[0] = THROTTLE_S
    record = _warning("refused 1", "10.0.0.0:1")
    assert throttle.filter(record)
    assert sum(each.__dict__.get("left_out", 0) for each in [*records, record]) == 1000 - LINES_PER_KIND


def test_messages_of_ever_new_kinds_are_throttled_together() -> None:
    throttle = Throttle(lambda: 0.0)
    words = (f"{chr(97 + n // 676)}{chr(97 + n // 26 % 26)}{chr(97 + n % 26)}" for n in range(10 * KINDS_MAX))
    assert sum(throttle.filter(_warning(word, "")) for word in words) <= KINDS_MAX + LINES_PER_KIND

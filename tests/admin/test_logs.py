"""Structured records on slow, broken and ordinary outputs."""

import io
import json
import logging
import threading
from collections.abc import Iterator

import pytest

from replicated_namesrv.admin.logs import BackgroundHandler, HumanFormatter, JsonFormatter, configure_logging
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

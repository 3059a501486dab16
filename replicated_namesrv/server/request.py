"""A decoded request and its answer, as handlers use them."""

import re
from asyncio import CancelledError, Future
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from replicated_namesrv.errors import NamesrvError
from replicated_namesrv.model import ChangeOrigin
from replicated_namesrv.server.route_answers import REQUEST_MAX_BYTES
from replicated_namesrv.wire.codes import ResponseCode
from replicated_namesrv.wire.frame import MAX_TOTAL, FrameBounds
from replicated_namesrv.wire.header import RemotingHeader

if TYPE_CHECKING:
    from replicated_namesrv.server.connection import RemotingConnection

T = TypeVar("T")

_DECIMAL = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
NO_FIELDS: dict[str, str] = {}
LESS = "read it in pages over the admin port (/v1/topics, /v1/brokers, /v1/kv), or remove what is not needed"


class Answer(NamedTuple):
    """Answer of one request, in Java's terms."""

    code: int = 0
    remark: str | None = None
    ext_fields: dict[str, str] | None = None
    """Fields of the response header. None: the request code has no response header class. Empty: the class has no fields."""
    body: bytes = b""


OVERLOAD = Answer(ResponseCode.SYSTEM_BUSY.value, "[OVERLOAD]system busy, start flow control for a while")
"""The answer if more requests wait than the settings allow."""


class AnswerTooLargeError(NamesrvError):
    """An answer does not fit into a frame."""

    def __init__(self, code: int, size: str) -> None:
        super().__init__(f"the answer to request code {code} has {size} bytes, a frame at most {MAX_TOTAL}; {LESS}")


class Deferred(NamedTuple):
    """A later answer. ``convert`` makes it from the result of ``future``, in the same or a later turn of the loop. ``convert``
    may return another ``Deferred``."""

    future: Future[Any]
    convert: "Callable[[Any], Outcome]"


Outcome = Answer | Deferred


class Request:
    """One request frame: the decoded header, and the body in its buffer."""

    __slots__ = ("bounds", "connection", "data", "fields", "header", "lasting_topic", "origin", "start", "target")

    def __init__(
        self, connection: "RemotingConnection", header: RemotingHeader, data: bytes | memoryview, start: int, bounds: FrameBounds
    ) -> None:
        self.connection = connection
        self.header = header
        self.fields = header.ext_fields if header.ext_fields is not None else NO_FIELDS
        """extFields; a missing map counts as empty."""
        self.data = data
        """The read buffer; the frame is ``data[start:bounds.end]``. It is a view if this frame is long and alone in it."""
        self.start = start
        self.bounds = bounds
        self.origin: ChangeOrigin | None = None
        """The caller, if the request is a change and ``accessPolicy`` is not open. The requests of one connection may have
        different callers."""
        self.target: str | None = None
        """Names of the settings that the request changes, for the audit log. They are kept here because the body is released
        before the answer."""
        self.lasting_topic: str | None = None
        """A topic, or None. A handler sets it if its answer is valid for equal requests as long as the revision of this topic is
        the same."""

    def keep_frame_only(self) -> None:
        """Release the read buffer, because the answer comes later. The frame is kept only if its answer may be cached, so it is
        short."""
        start, body_start, end = self.start, self.bounds.body_start, self.bounds.end
        if not isinstance(self.data, bytes) or end - start > REQUEST_MAX_BYTES:
            self.lasting_topic = None
        self.data = self.data[start:end] if self.lasting_topic is not None else b""
        self.bounds = self.bounds._replace(body_start=body_start - start, end=end - start)
        self.start = 0

    @property
    def body(self) -> bytes:
        """The body; empty where Java has null."""
        return bytes(self.data[self.bounds.body_start : self.bounds.end])


def then(outcome: T | Future[T], convert: Callable[[T], Outcome]) -> Outcome:
    """Convert the result of a service call into an answer. The result may be the value itself or a Future."""
    return Deferred(outcome, convert) if isinstance(outcome, Future) else convert(outcome)


def settle(done: Future[Answer], outcome: Outcome) -> None:
    """Complete ``done`` with ``outcome``; if the outcome is deferred, with its later result."""
    if isinstance(outcome, Answer):
        done.set_result(outcome)
        return

    def settled(future: Future[object]) -> None:
        try:
            settle(done, outcome.convert(future.result()))
        except CancelledError:
            done.cancel()
        except Exception as error:
            done.set_exception(error)

    outcome.future.add_done_callback(settled)


def java_long(text: str | None) -> int | None:
    """``Long.parseLong``; None if Java leaves the field null."""
    return _java_number(text, 63)


def java_int(text: str | None) -> int | None:
    """``Integer.parseInt``; None if Java leaves the field at its default."""
    return _java_number(text, 31)


def java_boolean(text: str | None) -> bool:
    """``Boolean.parseBoolean``: true only for "true" in any case."""
    return text is not None and text.lower() == "true"


def _java_number(text: str | None, bits: int) -> int | None:
    if text is None or _DECIMAL.fullmatch(text) is None:
        return None
    number = int(text)
    return number if -(1 << bits) <= number < 1 << bits else None

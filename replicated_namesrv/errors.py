"""Every error a caller may meet, each telling three things apart: done, surely not done, unknown.

An error carries the RocketMQ response code it is answered with, whether its outcome is ``definite`` (surely not applied) and
whether trying again elsewhere can help (``retriable``). Callers decide by these attributes, never by the text. Broken
invariants are not here: they are assertions and stop the process.
"""

from typing import ClassVar


class NamesrvError(Exception):
    """Base of all operating errors."""

    response_code: ClassVar[int] = 1
    definite: ClassVar[bool] = True
    """True: what was asked for was surely not applied. False: it may or may not have been."""
    retriable: ClassVar[bool] = False


class SettingError(NamesrvError):
    """A setting is unknown, malformed or contradicts another; the text names key, value and remedy."""


class FrameError(NamesrvError):
    """Bytes that are no remoting frame: the connection they came over is closed without an answer."""


class BodyError(NamesrvError):
    """A request body that cannot be decoded; answered with code 1."""


class LimitError(NamesrvError):
    """What a request would store is longer, or more in all, than a limit allows; the text names field or place, size and limit.
    Nothing was applied."""

    def __init__(self, limit: str, text: str) -> None:
        super().__init__(text)
        self.limit = limit
        """Its name in metrics: that of the field or of the setting."""


class UnavailableError(NamesrvError):
    """This node cannot serve at present and the request was surely not applied."""

    response_code: ClassVar[int] = 2
    retriable: ClassVar[bool] = True


class StaleReadError(NamesrvError):
    """A read that bounds its staleness, and the state here is older."""


class OutcomeUnknownError(NamesrvError):
    """The request may or may not have been applied."""

    definite: ClassVar[bool] = False
    retriable: ClassVar[bool] = True


class PartlyDoneError(NamesrvError):
    """One part of the request was done and another was not, or may not have been; the text says which. Repeating the request is
    safe."""

    definite: ClassVar[bool] = False
    retriable: ClassVar[bool] = True


class StorageError(NamesrvError):
    """A file could not be written or read; the text names the file and the cause. Nothing was applied."""

"""Every operating error. Each states whether the request was done, was certainly not done, or has an unknown outcome.

An error has the RocketMQ response code of its answer. ``definite`` means certainly not applied; ``retriable`` means that
another node may succeed. Callers decide by these attributes, never by the text. Broken invariants are assertions.
"""

from typing import ClassVar


class NamesrvError(Exception):
    """Base of all operating errors."""

    response_code: ClassVar[int] = 1
    definite: ClassVar[bool] = True
    """True: the request was certainly not applied. False: it may have been applied."""
    retriable: ClassVar[bool] = False


class SettingError(NamesrvError):
    """A setting is unknown or malformed, or contradicts another. The text names key, value and remedy."""


class FrameError(NamesrvError):
    """Bytes that are not a remoting frame. Their connection is closed without an answer."""


class BodyError(NamesrvError):
    """A request body that cannot be decoded; answered with code 1."""


class LimitError(NamesrvError):
    """A request would store a value that is too long, or more in all than a limit allows. The text names field or place, size
    and limit.

    Nothing was applied."""

    def __init__(self, limit: str, text: str) -> None:
        super().__init__(text)
        self.limit = limit
        """Name of the limit in metrics: the name of the field or of the setting."""


class UnavailableError(NamesrvError):
    """This node cannot serve at present, and the request was certainly not applied."""

    response_code: ClassVar[int] = 2
    retriable: ClassVar[bool] = True


class NoPermissionError(NamesrvError):
    """The sender lost the permission for this request while the request waited. Nothing was applied."""

    response_code: ClassVar[int] = 16


class StaleReadError(NamesrvError):
    """The state here is older than the read's staleness bound."""


class OutcomeUnknownError(NamesrvError):
    """The request may have been applied."""

    definite: ClassVar[bool] = False
    retriable: ClassVar[bool] = True


class PartlyDoneError(NamesrvError):
    """One part of the request was done. Another part was not done, or it is unknown whether it was. The text names the parts.
    Repeating the request is safe."""

    definite: ClassVar[bool] = False
    retriable: ClassVar[bool] = True


class StorageError(NamesrvError):
    """A file could not be written or read. The text names the file and the cause. Nothing was applied."""

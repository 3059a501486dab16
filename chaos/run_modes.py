"""The modes of a run: ``ap`` and ``cp``, and foreign name servers such as ``java:5.5.0``. Pure.

Like AP nodes, foreign name servers do not communicate with each other. So they are judged by AP's promises.
"""

import re
from typing import NamedTuple

from replicated_namesrv.errors import SettingError

OWN = ("ap", "cp")
FOREIGN = {"java": "the name server of Apache RocketMQ", "rust": "the name server of rocketmq-rust"}
_VERSION = re.compile(r"(0|[1-9]\d{0,3})\.(0|[1-9]\d{0,3})\.(0|[1-9]\d{0,3})(-[0-9A-Za-z][0-9A-Za-z.-]{0,30})?")


class ForeignMode(NamedTuple):
    """A foreign name server."""

    product: str
    """Name of the product: java or rust."""
    version: str

    @property
    def major(self) -> int:
        """The major version."""
        return int(self.version.partition(".")[0])

    @property
    def has_deputies(self) -> bool:
        """Whether the server and its brokers know acting masters and zones, as RocketMQ does since version 5."""
        return self.product != "java" or self.major >= 5


def foreign(mode: str) -> ForeignMode | None:
    """The foreign name server of a mode; None for ``ap`` and ``cp``. Raises SettingError for any other mode."""
    if mode in OWN:
        return None
    product, colon, version = mode.partition(":")
    if product not in FOREIGN or not colon:
        raise SettingError(
            f"--mode {mode}: no such mode; give {', '.join(OWN)}, or a foreign name server with its version: "
            f"{', '.join(f'{name}:VERSION' for name in FOREIGN)}, as in java:5.5.0"
        )
    if not _VERSION.fullmatch(version):
        raise SettingError(f"--mode {mode}: '{version}' is not a version; give three numbers, as in {product}:5.5.0")
    return ForeignMode(product, version)


def promises_of(mode: str) -> str:
    """ap or cp: the promises by which the mode is judged."""
    return "cp" if mode == "cp" else "ap"


def in_file_name(mode: str) -> str:
    """The mode as part of a file name: without a colon, which some file systems refuse."""
    return mode.replace(":", "-")


def shown(mode: str) -> str:
    """The mode as a heading."""
    return mode.upper() if mode in OWN else mode

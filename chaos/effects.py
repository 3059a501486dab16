"""Links between processes, and the effects of faults on them.

A link is directed from the process that dials to the one that listens. Between nodes only the dialler sends
(raft/transport.py), so cutting one link is exactly a one-way fault. Brokers and clients send requests and receive answers over
one link, so a fault names the stream that it affects.
"""

from enum import StrEnum
from typing import NamedTuple


class Link(NamedTuple):
    """``source`` dials ``target``, which is a node."""

    source: str
    target: str

    def __str__(self) -> str:
        return f"{self.source}>{self.target}"

    @property
    def proxy(self) -> str:
        """The proxy's name."""
        return f"{self.source}.to.{self.target}".replace("/", "_")


class Stream(StrEnum):
    """The stream of a link that a fault affects, in Toxiproxy's words."""

    UPSTREAM = "upstream"
    """The requests, which ``source`` sends."""
    DOWNSTREAM = "downstream"
    """The answers, which ``target`` sends."""
    BOTH = "both"
    """Both streams. A link between nodes has only the upstream."""


class Effect(StrEnum):
    """The effect on a link, or on one of its streams."""

    SILENT = "silent"
    """Bytes are dropped, and new connections succeed. When the effect ends, the connections are closed."""
    HELD = "held"
    """Bytes wait. When the effect ends, they arrive on the same connection, as after a TCP partition that heals."""
    REFUSED = "refused"
    """Connections are closed and new ones are refused."""
    RESET = "reset"
    """Every connection is reset; new ones are reset as soon as they are established."""
    SLOW = "slow"
    """Bytes are delayed with jitter, in the same order."""
    TRICKLE = "trickle"
    """Only a few KB per second pass."""

    @property
    def breaks(self) -> bool:
        """True if no byte passes."""
        return self in (Effect.SILENT, Effect.HELD, Effect.REFUSED, Effect.RESET)

    @property
    def ends_connections(self) -> bool:
        """Whether the effect ends connections at once. Such an effect changes both streams."""
        return self in (Effect.REFUSED, Effect.RESET)

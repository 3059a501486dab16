"""Links: who talks to whom, and what may happen to that.

A link is directed: from who dials to who listens. Between nodes the dialler alone sends (raft/transport.py), so cutting one
link between nodes is exactly a one-way fault. Brokers and clients ask and are answered over one link, so that a fault says which
of its two streams it bears on.
"""

from enum import StrEnum
from typing import NamedTuple


class Link(NamedTuple):
    """``source`` dials ``target``, a node."""

    source: str
    target: str

    def __str__(self) -> str:
        return f"{self.source}>{self.target}"

    @property
    def proxy(self) -> str:
        """The proxy's name."""
        return f"{self.source}.to.{self.target}".replace("/", "_")


class Stream(StrEnum):
    """What a fault bears on of a link, in Toxiproxy's words."""

    UPSTREAM = "upstream"
    """What ``source`` sends: requests."""
    DOWNSTREAM = "downstream"
    """What ``target`` sends back: answers."""
    BOTH = "both"
    """All that goes over it; between nodes that is upstream alone."""


class Effect(StrEnum):
    """What happens to a link, or to one stream of it."""

    SILENT = "silent"
    """Bytes vanish; dialling still succeeds; when it ends, the connections end."""
    HELD = "held"
    """Bytes wait, and arrive on the same connection when it ends, as after a TCP partition that heals."""
    REFUSED = "refused"
    """Connections end and new ones are refused."""
    RESET = "reset"
    """Every connection is reset, and new ones as soon as they are made."""
    SLOW = "slow"
    """Latency and jitter, in order."""
    TRICKLE = "trickle"
    """A few KB a second."""

    @property
    def breaks(self) -> bool:
        """Whether nothing gets through any more."""
        return self in (Effect.SILENT, Effect.HELD, Effect.REFUSED, Effect.RESET)

    @property
    def ends_connections(self) -> bool:
        """Whether it ends connections at once, and so both streams whichever it is put on."""
        return self in (Effect.REFUSED, Effect.RESET)

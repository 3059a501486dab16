"""LeaderPreference: when a leader transfers leadership to a node that ``leaderPriority`` prefers. The module also checks the
settings of elections (``check_elections``).

The *pause* is the time for which a leader transfers nothing, after its election and after a transfer. It is ``PAUSE_MS`` at
first. Each transfer doubles the pause of this process, up to ``PAUSE_MS_MAX``. So if the nodes have different lists, or a
preferred node fails repeatedly, leadership changes less and less often. The first row that matches decides, at most every
``LOOK_MS``:

    row  this node                        a preferred node                      outcome   reason
    P1   does not lead                    -                                     none      only the leader transfers
    P2   has led for less than the pause  -                                     none      further elections may follow soon
    P3   leads                            none is before this node in the list  none      this node is the most preferred one
    P4   leads                            disconnected, no vote, lags, drained  try next  it could not lead, or not for long
    P5   leads                            keeps up                              transfer
"""

from collections.abc import Container, Mapping, Sequence
from typing import Any

from replicated_namesrv.errors import SettingError
from replicated_namesrv.settings import Settings

LOOK_MS = 1_000.0
PAUSE_MS, PAUSE_MS_MAX = 5_000.0, 600_000.0
LAG_MAX = 64
"""Maximum lag, in entries, of a node that keeps up: the entries of a few round trips. A transfer waits until the node has all
entries."""
LEASE_MS = 270.0
"""Length of a lease, which must end before another node can be elected. It is the same for all settings, because nodes that have
not been restarted yet may still have the shortest election time-out, 300 ms. A tenth of that is left for the drift of the
clocks."""


HEARTBEATS_PER_ELECTION = 5
FENCE_MARGIN_MS = 100


def check_elections(settings: Settings) -> None:
    """Raises SettingError if lost heartbeats would cause elections, or if an election would fence nodes."""
    election_ms, heartbeat_ms = settings.election_timeout_ms, settings.peer_heartbeat_ms
    if election_ms < HEARTBEATS_PER_ELECTION * heartbeat_ms:
        raise SettingError(
            f"electionTimeoutMs={election_ms} and peerHeartbeatMs={heartbeat_ms}: an election time-out has to be at least "
            f"{HEARTBEATS_PER_ELECTION} heartbeats; raise electionTimeoutMs, or lower peerHeartbeatMs"
        )
    least = 2 * election_ms + FENCE_MARGIN_MS
    if settings.fence_after_ms < least:
        raise SettingError(
            f"fenceAfterMs={settings.fence_after_ms} and electionTimeoutMs={election_ms}: a node would stop serving during each "
            f"election; set fenceAfterMs to {least} or more"
        )


def lease_margin(election_timeout_ms: int) -> float:
    """``RaftConfig.clock_drift_max`` with which a lease lasts LEASE_MS."""
    return round((1 - LEASE_MS / election_timeout_ms) / 2, 6)


def preferred_leaders(settings: Settings, members: Sequence[str]) -> list[str]:
    """The nodes that ``leaderPriority`` names, the most preferred first. Raises SettingError if one of them is not a member. A
    node with ``join`` knows only some members before it has their list, so it accepts any name."""
    names = [name.strip() for name in settings.leader_priority.split(",") if name.strip()]
    for name in names:
        if name not in members and not settings.join:
            raise SettingError(
                f"leaderPriority={settings.leader_priority}: {name} is not a node in peers; give {', '.join(members)}. If {name} "
                "was added to the cluster later, replace peers by join (docs/members.md)"
            )
    return names


class LeaderPreference:
    """Decides, on a node that leads, when and to which node to transfer leadership."""

    def __init__(self, node_id: str, preferred: Sequence[str]) -> None:
        self.names = preferred
        self._before_us = list(preferred[: preferred.index(node_id)]) if node_id in preferred else list(preferred)
        self._term: int | None = None
        self._look_at_ms = 0.0
        self._pause_ms = PAUSE_MS

    def is_due(self, term: int | None, now_ms: float) -> bool:
        """Whether to look for a preferred node now. ``term``: the term that this node leads; None: it does not lead."""
        if term is None or not self._before_us:  # P1, P3
            self._term = None
            return False
        if term != self._term:  # P2
            self._term, self._look_at_ms = term, now_ms + self._pause_ms
        if now_ms < self._look_at_ms:
            return False
        self._look_at_ms = now_ms + LOOK_MS
        return True

    def target(self, status: Mapping[str, Any], drained: Container[str] = ()) -> str | None:
        """The node to transfer leadership to, according to ``RaftNode.status``. None: no preferred node keeps up. ``drained``:
        nodes that will be restarted."""
        for name in self._before_us:
            follower = status["followers"].get(name)
            if follower is None or not follower["connected"] or not follower["votes"] or name in drained:  # P4
                continue
            if follower["match_index"] + LAG_MAX < status["last_index"]:  # P4
                continue
            self._pause_ms = min(2 * self._pause_ms, PAUSE_MS_MAX)
            self._look_at_ms += self._pause_ms
            return name  # P5
        return None

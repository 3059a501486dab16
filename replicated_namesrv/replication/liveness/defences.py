"""Defences: one switch per rule, all on in production. The simulator turns one off to show that it is needed."""

from dataclasses import dataclass, fields, replace


@dataclass(frozen=True, slots=True)
class LivenessDefences:
    """The number of each switch is the number of its rule in DESIGN.md."""

    renewals_count: bool = True
    """1. A renewal that the leader accepts ends the silence of its broker."""
    silence_recorded: bool = True
    """2. The leader records silence in the log at one and two thirds of the time-out."""
    contact_recorded: bool = True
    """3. A renewal of a suspected broker clears the suspicion through the log before it is acknowledged."""
    silence_continued: bool = True
    """4. A new leader continues to count silence from the recorded one."""
    silent_removed: bool = True
    """5. A broker that is silent for its time-out is removed."""
    released_nodes: bool = True
    """6. A node that closed the connection itself may be the one to which the broker returns."""
    earlier_epochs: bool = True
    """6. An attached or released connection with an earlier epoch counts, because the broker may have changed its id."""
    unheard_nodes: bool = True
    """6. A node without contact with the leader may be the one to which the broker returns."""
    young_nodes: bool = True
    """6. A node that was restarted may be the one to which the broker returns."""
    removed_nodes: bool = True
    """6. If its node was removed from the cluster, a broker may take some time to use another node."""
    peace: bool = True
    """6. A connection that was closed because of an unanswered request is not evidence that its broker left."""
    acknowledged_answers: bool = True
    """6. A connection over which the broker's host has not acknowledged all answers is not evidence that the broker left."""
    newest_connection: bool = True
    """7. An ``UNREGISTER_BROKER`` (104) over a connection that is older than another attached one only detaches its own
    connection."""
    released_connection: bool = True
    """7. A newer connection that a node closed still counts as attached, for the length of the broker's time-out."""
    reports_awaited: bool = True
    """6, 7. After a registration, a report about an earlier process is not evidence, until a node reports a connection."""
    all_lists: bool = True
    """7. ``UNREGISTER_BROKER`` (104) is decided when the lists of all nodes have arrived."""
    running_time: bool = True
    """8. Only time in which the leader's process ran counts."""
    repeated_versions: bool = True
    """9. A registration with an older data version has no effect until it is repeated."""

    @classmethod
    def names(cls) -> list[str]:
        """All switches."""
        return [f.name for f in fields(cls)]

    @classmethod
    def without(cls, name: str) -> "LivenessDefences":
        """All but ``name``."""
        return replace(cls(), **{name: False})

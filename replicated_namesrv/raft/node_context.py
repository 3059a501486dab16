"""Values that every part of one node uses: the group, the settings, the clock, counters and notes."""

from collections import Counter
from collections.abc import Sequence

from replicated_namesrv.raft.interfaces import Environment
from replicated_namesrv.raft.measurements import Measurements
from replicated_namesrv.raft.raft_config import RaftConfig

NOTES_MAX = 20


class NodeContext:
    """Values that stay the same while the node runs. All parts write ``counters``, ``notes`` and
    ``measurements``."""

    def __init__(
        self, node_id: str, members: Sequence[str], cluster_id: str, environment: Environment, config: RaftConfig
    ) -> None:
        """``members``: all configured nodes, this one included. ValueError if ``node_id`` is not among them, or a name occurs
        twice."""
        self.node_id, self.members, self.cluster_id = node_id, sorted(members), cluster_id
        if node_id not in self.members or len(set(self.members)) != len(self.members):
            raise ValueError(f"node {node_id!r} must be among the members, each once: {', '.join(self.members)}")
        self.peers = [m for m in self.members if m != node_id]
        self.quorum = len(self.members) // 2 + 1
        self.config, self.defences = config, config.defences
        self.heartbeat_seconds = config.heartbeat_ms / 1000
        self.environment, self.now, self.rng = environment, environment.now, environment.rng
        self.counters: Counter[str] = Counter()
        self.measurements = Measurements()
        self.notes: list[str] = []
        """The last few notes for an operator, each once."""

    def note(self, text: str) -> None:
        """Add to ``notes``. An existing note moves to the end."""
        if text in self.notes:
            self.notes.remove(text)
        self.notes.append(text)
        del self.notes[:-NOTES_MAX]

    def new_incarnation(self) -> int:
        """A number for a new data directory."""
        return self.rng.getrandbits(63) | 1

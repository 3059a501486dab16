"""Values that every part of one node uses: the group, the settings, the clock, counters and notes."""

from collections import Counter
from collections.abc import Sequence

from replicated_namesrv.raft.interfaces import Environment
from replicated_namesrv.raft.measurements import Measurements
from replicated_namesrv.raft.raft_config import RaftConfig

NOTES_MAX = 20


class NodeContext:
    """The group, the settings, the clock. All parts write ``counters``, ``notes`` and ``measurements``."""

    def __init__(
        self, node_id: str, members: Sequence[str], cluster_id: str, environment: Environment, config: RaftConfig
    ) -> None:
        """``members``: all configured nodes, this one included. ValueError if ``node_id`` is not among them, or a name occurs
        twice."""
        self.node_id, self.configured, self.cluster_id = node_id, sorted(members), cluster_id
        if node_id not in self.configured or len(set(self.configured)) != len(self.configured):
            raise ValueError(f"node {node_id!r} must be among the members, each once: {', '.join(self.configured)}")
        self.peers = [m for m in self.configured if m != node_id]
        """Nodes with which this node exchanges messages. Each change makes a new list."""
        self.voters: frozenset[str]
        """Nodes with a place in the latest configuration; before the cluster is formed, the configured nodes."""
        self.quorum: int
        """Number of places that are a majority."""
        self.set_voters(frozenset(self.configured))
        self.config, self.defences = config, config.defences
        self.heartbeat_seconds = config.heartbeat_ms / 1000
        self.environment, self.now, self.rng = environment, environment.now, environment.rng
        self.counters: Counter[str] = Counter()
        self.measurements = Measurements()
        self.notes: list[str] = []
        """The last few notes for an operator; no note is repeated."""

    def set_voters(self, voters: frozenset[str]) -> None:
        """The places have changed."""
        self.voters, self.quorum = voters, len(voters) // 2 + 1
        self.voting_peers = sorted(voters - {self.node_id})
        self.is_alone = voters == {self.node_id}
        """Whether this node is the only voter, so that it commits without the others."""

    def note(self, text: str) -> None:
        """Add to ``notes``. An existing note moves to the end."""
        if text in self.notes:
            self.notes.remove(text)
        self.notes.append(text)
        del self.notes[:-NOTES_MAX]

    def new_incarnation(self) -> int:
        """A number for a new data directory."""
        return self.rng.getrandbits(63) | 1

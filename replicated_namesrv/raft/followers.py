"""The progress of all followers of one node: connections, incarnations, terms. ``replication.py`` sends to them."""

from typing import Protocol

from replicated_namesrv.raft.entry_log import Log
from replicated_namesrv.raft.interfaces import RaftState
from replicated_namesrv.raft.progress import Progress
from replicated_namesrv.raft.raft_config import RaftConfig
from replicated_namesrv.raft.standing import NOTHING, Memory, PeerMemories


class MatchCore(RaftState, Protocol):
    """The methods of the consensus core that the followers' progress needs."""

    def forget(self, peer: str) -> None:
        """Forget what ``peer`` has acknowledged."""


class Followers:
    """A node's knowledge of its peers as followers. It is also updated while the node is not the leader."""

    def __init__(self, peers: list[str], core: MatchCore, log: Log, memories: PeerMemories, config: RaftConfig) -> None:
        self._core, self._log, self._memories = core, log, memories
        self._config = config
        self.progress = {peer: Progress(peer, config.inflight_messages_max, config.defences) for peer in peers}
        self.sequence = 0
        """Number of the newest message that needs an answer."""
        self._term_led = 0

    def add(self, peer: str) -> None:
        """There is a new peer."""
        self.progress[peer] = Progress(peer, self._config.inflight_messages_max, self._config.defences)
        self.progress[peer].reset(self._log.last_index + 1, self.sequence)

    def drop(self, peer: str) -> None:
        """A peer was removed."""
        self._remember(self.progress[peer])
        del self.progress[peer]

    def next_sequence(self) -> int:
        self.sequence += 1
        return self.sequence

    @property
    def connected_peers(self) -> list[str]:
        return [p.peer for p in self.progress.values() if p.connected]

    def lead(self) -> None:
        """This node became leader of a new term."""
        for progress in self.progress.values():
            self._remember(progress)
            progress.reset(self._log.last_index + 1, self.sequence)
        self._term_led = self._core.term

    @property
    def term_led(self) -> int:
        """The last term that this node has led since its start; 0: none."""
        return self._term_led

    def is_connected(self, peer: str) -> bool:
        """Whether this node has a connection to ``peer``."""
        return peer in self.progress and self.progress[peer].connected

    def connected(self, peer: str) -> None:
        """Our connection to ``peer`` was established."""
        self.progress[peer].connected = True
        self._restart(self.progress[peer])

    def disconnected(self, peer: str) -> None:
        """Our connection to ``peer`` was lost."""
        self.progress[peer].connected = False
        self._restart(self.progress[peer])

    def _restart(self, progress: Progress) -> None:
        following = progress.match + 1 if progress.match else min(progress.next, self._log.last_index + 1)
        progress.reconnected(following, self.sequence)

    def new_incarnation(self, peer: str, incarnation: int) -> None:
        """Another data directory uses this name: forget everything."""
        self.forget(peer)
        self.progress[peer].incarnation = incarnation

    def forget(self, peer: str) -> None:
        """Forget what ``peer`` has acknowledged: it has another disk, or its disk lost data."""
        progress = self.progress[peer]
        self._remember(progress)
        progress.reset(self._log.last_index + 1, self.sequence)
        self._core.forget(peer)

    def memory_of(self, peer: str, incarnation: int) -> Memory:
        """The entries that this incarnation of ``peer`` has acknowledged to us in our last term as leader."""
        progress = self.progress[peer]
        return Memory(0, self._term_led, progress.match) if progress.match and progress.incarnation == incarnation else NOTHING

    def _remember(self, progress: Progress) -> None:
        self._memories.remember(progress.peer, progress.incarnation, self.memory_of(progress.peer, progress.incarnation))

    def snapshots_in_use(self) -> set[str]:
        """Names of the snapshot files that are being sent."""
        if not self._core.is_leader:
            return set()
        return {p.transfer.snapshot.name for p in self.progress.values() if p.transfer is not None and p.connected}

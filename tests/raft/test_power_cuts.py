"""Power fails at each single operation on the disk: in the middle of founding, of a vote, of a snapshot taken or received.

The simulator cuts between the turns of a node; here the cut comes inside of them.
"""

from collections.abc import Sequence
from random import Random

import pytest

from replicated_namesrv.raft.interfaces import Committed
from replicated_namesrv.raft.raft_config import RaftConfig
from tests.support.raft_world import Disk, Inode, World


class PowerCut(BaseException):
    """No code of the program may run after this error."""


class FailingDisk(Disk):
    """A disk that counts the operations that change it, and cuts the power just before one of them."""

    def __init__(self, cut_at: int, kept: str) -> None:
        super().__init__()
        self.operations = 0
        self.cut_at, self.kept = cut_at, kept

    def _operate(self) -> None:
        self.operations += 1
        if self.operations == self.cut_at:
            raise PowerCut

    def append(self, name: str, data: bytes) -> None:
        self._operate()
        super().append(name, data)

    def rename(self, old: str, new: str) -> None:
        self._operate()
        super().rename(old, new)

    def remove(self, name: str) -> None:
        if name in self.files:
            self._operate()
        super().remove(name)

    def sync(self, names: Sequence[str], directory: bool) -> None:
        self._operate()
        super().sync(names, directory)

    def lose_power(self) -> None:
        if self.kept == "synced":
            super().lose_power()
        elif self.kept == "some":
            rng = Random(self.cut_at)
            kept: dict[str, Inode] = {}
            for name in sorted({*self.files, *self.durable}):
                inode = rng.choice((self.files.get(name), self.durable.get(name)))
                if inode is not None:
                    synced, data = len(inode.synced), bytes(inode.data)
                    whole = data if len(data) >= synced else inode.synced
                    kept[name] = Inode(whole[: rng.randint(min(synced, len(whole)), len(whole))])
            self.files = kept
            self.durable = dict(kept)
        else:
            self.files = {name: Inode(bytes(inode.data)) for name, inode in self.files.items()}
            self.durable = dict(self.files)


class Story:
    """Three nodes are founded, write, take snapshots; the second one falls behind and is sent a snapshot."""

    def __init__(self, cut_at: int, kept: str) -> None:
        config = RaftConfig(
            compact_entries=12, compact_margin_entries=2, entry_bytes_max=1, segment_bytes=600, snapshot_slice_bytes=64
        )
        self.world = World(config=config, seed=3)
        self.host = self.world.hosts["n2"]
        self.disk = self.host.disk = FailingDisk(cut_at, kept)
        self.acknowledged: list[bytes] = []
        self.restored = 0
        self.world.observer.restored = self._restored  # type: ignore[method-assign]  # of this world alone

    def _restored(self, index: int) -> None:
        self.restored += 1

    def step(self) -> None:
        try:
            self.world.step()
        except PowerCut:
            self.boot()

    def boot(self) -> None:
        if self.host.node is not None or self.host.life:
            self.host.crash()
        try:
            self.host.start()
        except PowerCut:
            self.host.crash()
            self.host.start()

    def until_committed(self, command: bytes) -> None:
        """Propose ``command`` to the current leader repeatedly until it is acknowledged."""
        end = self.world.time + 30
        while True:
            leader = self.world.leader
            if leader is not None:
                try:
                    outcome = self.world.propose(leader.node_id, command, 1_000)
                    leader.tick()
                except PowerCut:
                    self.boot()
                    continue
                while not outcome and not leader.stopped and self.world.hosts[leader.node_id].node is leader:
                    self.step()
                if outcome and isinstance(outcome[0], Committed):
                    self.acknowledged.append(command)
                    return
            assert self.world.time < end, f"{command!r} was not committed in time"
            self.step()

    def tell(self) -> None:
        for name in ("n1", "n3"):
            self.world.hosts[name].start()
        self.boot()
        for number in range(15):
            self.until_committed(b"first %d" % number)
        self.world.isolate("n2")
        for number in range(25):
            self.until_committed(b"second %d" % number)
        self.world.heal()
        for number in range(12):
            self.until_committed(b"third %d" % number)
        end = self.world.time + 30
        while not self._equal():
            assert self.world.time < end, "the nodes never became equal"
            self.step()
        for node in self.world.nodes:
            assert node.failed is None
        commands = self.host.machine.commands
        assert all(command in commands for command in self.acknowledged)

    def _equal(self) -> bool:
        nodes = self.world.nodes
        if len(nodes) < 3 or len({n.applied_index for n in nodes}) > 1 or any(n.role == "learner" for n in nodes):
            return False
        return len({tuple(h.machine.commands) for h in self.world.hosts.values()}) == 1


def operations_of_the_whole_story() -> int:
    story = Story(0, "synced")
    story.tell()
    assert story.restored, "no snapshot was received"
    assert story.host.node is not None
    assert story.host.node.taking.taken, "no snapshot was taken"
    return story.disk.operations


@pytest.mark.slow
@pytest.mark.parametrize("kept", ["synced", "some", "all"])
def test_a_power_cut_at_every_operation(kept: str) -> None:
    for cut_at in range(1, operations_of_the_whole_story() + 1):
        try:
            Story(cut_at, kept).tell()
        except BaseException as error:
            raise AssertionError(f"power cut before operation {cut_at} of n2, {kept} kept: {error!r}") from error


@pytest.mark.parametrize("kept", ["synced", "some", "all"])
def test_power_cuts_at_some_operations(kept: str) -> None:
    for cut_at in range(1, operations_of_the_whole_story() + 1, 23):
        Story(cut_at, kept).tell()

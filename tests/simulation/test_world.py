"""The world itself: time, disks and links behave as promised, so their effects on a node are realistic."""

from collections.abc import Callable
from random import Random

import pytest

from replicated_namesrv.raft.transport import DIAL_PAUSE_MAX_SECONDS, LIVE_SECONDS
from replicated_namesrv.simulation.disk import SimulatedDisk
from replicated_namesrv.simulation.network import FLOOD_MESSAGES, FLOOD_NS, Endpoint, Network
from replicated_namesrv.simulation.world import MS, SECOND, World, exponential


def test_events_run_in_order_of_time_then_of_making() -> None:
    world, ran = World(1), list[str]()
    for delay, name in ((5, "b"), (1, "a"), (5, "c")):
        world.after(delay, ran.append, name)
    world.run_until(5)
    assert (ran, world.now_ns) == (["a"], 5)
    world.run_until(6)
    assert ran == ["a", "b", "c"]


def test_streams_depend_on_seed_and_name_alone() -> None:
    assert World(1).random("x").random() == World(1).random("x").random()
    assert len({World(seed).random(name).random() for seed in (1, 2) for name in ("x", "y")}) == 4


def test_exponential_has_its_distribution() -> None:
    rng = Random(1)
    drawn = sorted(exponential(rng) for _ in range(20_000))
    assert sum(drawn) / len(drawn) == pytest.approx(1.0, abs=0.03)
    assert drawn[len(drawn) // 2] == pytest.approx(0.693, abs=0.03)


def after_power_loss(prepare: Callable[[SimulatedDisk], None], name: str) -> set[bytes | None]:
    """Possible contents of the file after a power loss, over many seeds."""
    found: set[bytes | None] = set()
    for seed in range(200):
        disk = SimulatedDisk(Random(seed))
        prepare(disk)
        disk.lose_power()
        found.add(disk.read(name) if name in disk.list_names() else None)
    return found


def test_power_loss_keeps_what_was_synced_and_any_part_of_the_rest() -> None:
    def prepare(disk: SimulatedDisk) -> None:
        disk.append("log", b"synced")
        disk.sync(["log"], True)
        disk.append("log", b"loose")

    found = after_power_loss(prepare, "log")
    assert all(content is not None and content.startswith(b"synced") for content in found)
    assert {b"synced", b"syncedloose"} <= found
    torn = [c for c in found if c and not b"syncedloose".startswith(c)]
    assert torn, "a torn tail is among them"


def test_a_new_name_lasts_only_after_the_directory_was_synced() -> None:
    def without(disk: SimulatedDisk) -> None:
        disk.append("log", b"x")
        disk.sync(["log"], False)

    assert after_power_loss(without, "log") == {None, b"x"}


def test_renamed_without_content_synced_may_be_torn() -> None:
    def prepare(disk: SimulatedDisk) -> None:
        disk.append("snapshot", b"old")
        disk.sync(["snapshot"], True)
        disk.append("new", b"newer")
        disk.rename("new", "snapshot")

    found = after_power_loss(prepare, "snapshot")
    assert {b"old", b"newer", b""} <= found


def fail_a_sync(disk: SimulatedDisk) -> None:
    disk.append("log", b"synced")
    disk.sync(["log"], True)
    disk.append("log", b"failed")
    disk.failing = True
    with pytest.raises(OSError, match="input/output"):
        disk.sync(["log"], False)
    disk.failing = False
    disk.append("log", b"later")
    disk.sync(["log"], False)
    assert disk.read("log") == b"syncedfailedlater", "what the process reads is in memory"


def test_what_a_failed_sync_left_in_memory_is_not_written_by_the_next() -> None:
    found = after_power_loss(fail_a_sync, "log")
    assert all(c is not None and c.startswith(b"synced") and c.endswith(b"later") and len(c) == 17 for c in found)
    assert {b"syncedfailedlater", b"synced" + bytes(6) + b"later"} <= found


def test_what_a_failed_sync_left_in_memory_may_be_gone_for_the_next_process() -> None:
    found = set()
    for seed in range(100):
        disk = SimulatedDisk(Random(seed))
        fail_a_sync(disk)
        disk.drop_pages()
        found.add(disk.read("log"))
    assert {b"syncedfailedlater", b"synced" + bytes(6) + b"later"} <= found


def test_what_failed_to_be_synced_at_the_end_may_be_cut_off() -> None:
    def prepare(disk: SimulatedDisk) -> None:
        fail_a_sync(disk)
        disk.append("log", b"end")
        disk.failing = True
        with pytest.raises(OSError, match="input/output"):
            disk.sync(["log"], False)

    assert {11 + 6, 11 + 6 + 3} <= {len(content or b"") for content in after_power_loss(prepare, "log")}


def test_a_sync_covers_what_was_there_when_it_began() -> None:
    def prepare(disk: SimulatedDisk) -> None:
        disk.append("log", b"ab")
        request = disk.begin_sync(["log"], True)
        disk.append("log", b"cd")
        disk.end_sync(request)

    found = after_power_loss(prepare, "log")
    assert b"ab" in found
    assert all(content is not None and content.startswith(b"ab") for content in found)


def test_a_sync_that_fails_loses_the_file_that_has_the_name_then() -> None:
    """The production driver opens a file by its name when the sync runs."""

    def prepare(disk: SimulatedDisk) -> None:
        disk.append("received", b"old")
        late = disk.begin_sync(["received"], True)
        disk.remove("received")
        disk.append("received", b"new")
        disk.failing = True
        with pytest.raises(OSError, match="input/output"):
            disk.end_sync(late)
        disk.failing = False
        disk.sync(["received"], True)

    assert {b"new", b""} <= set(after_power_loss(prepare, "received"))


def test_full_and_failing_disks_raise() -> None:
    disk = SimulatedDisk(Random(0))
    disk.full = True
    with pytest.raises(OSError, match="no space"):
        disk.append("log", b"x")
    disk.full = False
    with pytest.raises(FileNotFoundError, match="no such file"):
        disk.sync(["log"], False)
    disk.append("log", b"x")
    disk.failing = True
    with pytest.raises(OSError, match="input/output"):
        disk.sync(["log"], False)


class Listener(Endpoint):
    """An endpoint that records what it receives."""

    def __init__(self, name: str) -> None:
        self.name, self.up = name, True
        self.heard: list[object] = []
        self.peers: list[str] = []

    def is_up(self) -> bool:
        return self.up

    def connected(self, peer: str) -> None:
        self.peers.append(peer)

    def disconnected(self, peer: str) -> None:
        self.peers.remove(peer)

    def receive(self, peer: str, message: object) -> None:
        self.heard.append(message)


@pytest.fixture
def pair() -> tuple[World, Network, Listener, Listener]:
    world = World(5)
    a, b = Listener("a"), Listener("b")
    network = Network(world, [a, b], str)
    network.dial_all("a")
    network.dial_all("b")
    world.run_until(10 * MS)
    assert (a.peers, b.peers) == (["b"], ["a"])
    return world, network, a, b


def test_messages_of_a_connection_arrive_in_order(pair: tuple[World, Network, Listener, Listener]) -> None:
    world, network, _, b = pair
    network.slow_ms["a", "b"] = 50
    for number in range(50):
        network.send("a", "b", number)
    world.run_until(world.now_ns + SECOND)
    assert b.heard == list(range(50))


@pytest.mark.parametrize("hold", [True, False])
def test_a_cut_is_one_way_and_holds_or_loses(pair: tuple[World, Network, Listener, Listener], hold: bool) -> None:
    world, network, a, b = pair
    network.cut([("a", "b")], hold)
    network.send("a", "b", "there")
    network.send("b", "a", "back")
    world.run_until(world.now_ns + SECOND)
    assert (a.heard, b.heard) == (["back"], [])
    network.mend([("a", "b")])
    world.run_until(world.now_ns + SECOND)
    assert b.heard == (["there"] if hold else [])


def test_repeats_and_losses(pair: tuple[World, Network, Listener, Listener]) -> None:
    world, network, a, b = pair
    network.repeats["a", "b"] = 1.0
    network.loss["b", "a"] = 1.0
    network.send("a", "b", 1)
    network.send("b", "a", 1)
    world.run_until(world.now_ns + 5 * SECOND)
    assert (a.heard, b.heard) == ([], [1, 1])


def test_a_flood_is_noticed_and_a_burst_is_not(pair: tuple[World, Network, Listener, Listener]) -> None:
    world, network, _, _ = pair
    for _ in range(3):
        for number in range(FLOOD_MESSAGES):
            network.send("a", "b", number)
            network.send("a", "b", str(number))
            network.send("b", "a", number)
        world.run_until(world.now_ns + FLOOD_NS)
    assert network.flood is None
    for number in range(FLOOD_MESSAGES + 1):
        network.send("a", "b", number)
    assert network.flood is not None
    assert network.flood.startswith("a sent ")


def test_a_reset_connection_is_dialled_again(pair: tuple[World, Network, Listener, Listener]) -> None:
    world, network, a, _ = pair
    network.reset(("a", "b"))
    assert a.peers == []
    network.send("a", "b", "lost without a connection")
    world.run_until(world.now_ns + SECOND)
    assert a.peers == ["b"]


def test_pauses_before_connecting_grow_and_end_when_the_peer_connects(pair: tuple[World, Network, Listener, Listener]) -> None:
    world, network, a, b = pair
    network.cut([("a", "b")], hold=False)
    network.reset(("a", "b"))
    world.run_until(world.now_ns + 30 * SECOND)
    assert network._pauses["a", "b"] == DIAL_PAUSE_MAX_SECONDS
    network.mend([("a", "b")])
    b.up = False
    network.reset(("b", "a"))
    b.up, b.peers = True, []
    network.dial_all("b")
    world.run_until(world.now_ns + 60 * MS)
    assert (a.peers, b.peers) == (["b"], ["a"])


@pytest.mark.parametrize("power_loss", [True, False])
def test_after_a_power_loss_peers_refuse_the_new_process_at_first(
    pair: tuple[World, Network, Listener, Listener], power_loss: bool
) -> None:
    world, network, a, b = pair
    network.send("a", "b", "last")
    world.run_until(world.now_ns + 10 * MS)
    a.up = False
    network.drop_all("a", power_loss)
    a.up, a.peers = True, []
    network.dial_all("a")
    world.run_until(world.now_ns + int(LIVE_SECONDS * SECOND) - 50 * MS)
    assert a.peers == ([] if power_loss else ["b"])
    world.run_until(world.now_ns + 150 * MS)
    assert (a.peers, b.peers) == (["b"], ["a"])

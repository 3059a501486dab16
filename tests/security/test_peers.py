"""An attacker between the nodes of a cluster, and one that speaks to a node as its peer."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from replicated_namesrv.raft.message_bounds import KINDS, NUMBER_MAX
from replicated_namesrv.raft.raft_messages import encode
from replicated_namesrv.raft.transport import LENGTH, TransportSettings
from tests.security.attacked import attacked
from tests.support.extreme_messages import OF_LEADERS, Facts, at_bounds, contradicts, plausible
from tests.support.nodes import http
from tests.support.peer_hello import hello, raw_hello
from tests.support.relay import Change
from tests.support.replicated_processes import ReplicatedProcesses, eventually, replicated_processes

pytestmark = pytest.mark.slow
HELLOS = 400
GENUINE, FORGED = b"genuine-value", b"forged!-value"
ATTACKS = ("altered", "repeated", "left out", "reordered", "of another connection", "of another direction")


async def put(cluster: ReplicatedProcesses, key: str) -> None:
    """Write GENUINE at the leader. Repeat this until it succeeds."""

    async def is_written() -> bool:
        port = cluster.nodes[await cluster.leader()].plan.admin[1]
        return (await http(port, f"/v1/kv/n/{key}", "PUT", GENUINE)).status == 200

    await eventually(is_written, f"the write of {key}")


async def values(cluster: ReplicatedProcesses) -> set[str]:
    """The values of all keys on all nodes."""
    await cluster.agree()
    return {row["value"] for name in cluster.names for row in (await cluster.admin(name, "/v1/kv?limit=1000"))["entries"]}


async def refusals(cluster: ReplicatedProcesses, name: str) -> dict[str, int]:
    """The node's counters of refusals, by reason."""
    text = (await http(cluster.nodes[name].plan.admin[1], "/metrics")).text
    found = re.findall(r'^namesrv_peer_refusals_total\{what="(\w+)"\} ([0-9.]+)$', text, flags=re.MULTILINE)
    return {what: int(float(count)) for what, count in found}


class Attack:
    """An attack on one frame: of all frames through the relays that use this attack, the first suitable one is changed."""

    def __init__(self, kind: str, recorded: list[bytes]) -> None:
        self._kind, self._recorded = kind, recorded
        self._held: bytes | None = None
        self.done = False

    def change(self, number: int, frame: bytes) -> list[bytes]:
        kind = self._kind
        if self._held is not None:
            held, self._held = self._held, None
            return [frame, held]
        if self.done or number < 2:
            return [frame]
        if kind == "altered":
            if GENUINE not in frame:
                return [frame]
            frame = frame.replace(GENUINE, FORGED)
        self.done = True
        if kind == "altered":
            return [frame]
        if kind == "repeated":
            return [frame, frame]
        if kind == "left out":
            return []
        if kind == "reordered":
            self._held = frame
            return []
        return [self._recorded[1]]


def recording(frames: list[bytes]) -> Change:
    def change(number: int, frame: bytes) -> list[bytes]:
        if number < 10:
            frames.append(frame)
        return [frame]

    return change


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster")


async def test_frames_that_were_tampered_with_change_nothing(tmp_path: Path) -> None:
    """The attacker sits on every link. d49fc33 took the altered value, and all nodes agreed on it."""
    async with replicated_processes(tmp_path) as cluster:
        for number, kind in enumerate(ATTACKS):
            leader = await cluster.leader()
            follower = cluster.others(leader)[0]
            there, back = cluster.relays[leader, follower], cluster.relays[follower, leader]
            recorded: list[bytes] = []
            recorder = back if kind == "of another direction" else there
            recorder.change = recording(recorded)
            recorder.drop()
            await eventually(lambda: done(len(recorded) > 2), "recorded frames")  # noqa: B023 - awaited at once
            before = (await refusals(cluster, follower))["frame"]
            attack = Attack(kind, recorded)
            there.change = attack.change
            there.drop()
            await put(cluster, f"attack-{number}")

            async def is_refused() -> bool:
                await put(cluster, "more")
                return (await refusals(cluster, follower))["frame"] == before + 1  # noqa: B023 - awaited at once

            await eventually(is_refused, f"the refusal of what was {kind}")
            assert attack.done
            there.change = back.change = None
            there.drop()
            back.drop()
            assert await values(cluster) == {GENUINE.decode()}
            log = cluster.nodes[follower].plan.log_file.read_text()
            assert f"a frame from {leader} has a wrong MAC" in log


async def done(condition: bool) -> bool:
    return condition


@contextlib.asynccontextmanager
async def speaking_as(cluster: ReplicatedProcesses, source: str, target: str) -> AsyncIterator[asyncio.StreamWriter]:
    """A connection to ``target``, opened by a process on this machine that claims to be ``source``."""
    port = cluster.nodes[target].plan.listen[1] + 2
    settings = TransportSettings(target, "namesrv", {}, ("127.0.0.1", port))
    _, writer, nonce = await raw_hello(settings)
    writer.write(hello(settings, nonce, source))
    try:
        yield writer
        with contextlib.suppress(ConnectionError):
            await writer.drain()
    finally:
        writer.close()


async def test_numbers_at_their_bounds_stop_neither_a_node_nor_the_cluster(tmp_path: Path) -> None:
    """Without a secret any process on the machine can speak as a peer. After one HigherTerm of 2^64-2, d49fc33 never elected a
    leader again."""
    async with replicated_processes(tmp_path, has_secret=False) as cluster:
        await put(cluster, "before")
        for kind in KINDS:
            for to_leader in (True, False):
                leader = await cluster.leader()
                first, second = cluster.others(leader)
                target = leader if to_leader else second
                source = leader if kind in OF_LEADERS and not to_leader else first
                if kind in OF_LEADERS and to_leader:
                    continue  # would come from a second leader of this term: not the subject of this test
                raft = (await cluster.status(target))["raft"]
                facts = Facts(
                    raft["voters"][source],
                    raft["incarnation"],
                    raft["term"],
                    raft["last_index"],
                    raft["term"],
                    raft["applied_index"],
                    raft["voters"],
                )
                messages = at_bounds(plausible(kind, facts), facts.term)
                payloads = [encode(message) for message in messages if not contradicts(message, facts)]
                async with speaking_as(cluster, source, target) as writer:
                    writer.write(b"".join(LENGTH.pack(len(payload)) + payload for payload in payloads))
            await put(cluster, "after")
        await cluster.agree()
        counted = [await refusals(cluster, name) for name in cluster.names]
        assert sum(count["term"] for count in counted) > 50
        assert sum(count["message"] for count in counted) > 50
        for name in cluster.names:
            assert cluster.is_running(name)
            status = await cluster.status(name)
            assert status["term"] < NUMBER_MAX / 2**20
            assert "rejoined" not in status["raft"]["counters"], "a false report took its vote"
        logs = "".join(cluster.nodes[name].plan.log_file.read_text() for name in cluster.names)
        assert re.search(r"message of n\d dropped: \w+\.term=18446744073709551614 is beyond what elections can reach", logs)


def test_names_in_hellos_do_not_fill_the_log(tmp_path: Path) -> None:
    """In an earlier version, hellos with different names counted as different kinds of warnings, each with its own throttle."""
    with attacked(tmp_path, "cp") as node:

        async def attack() -> None:
            settings = TransportSettings("n1", "another", {}, ("127.0.0.1", node.port + 2))
            for number in range(HELLOS):
                name = "".join(chr(ord("a") + int(digit)) for digit in str(number))
                reader, writer, nonce = await raw_hello(settings)
                writer.write(hello(settings, nonce, name))
                assert not await reader.read()
                writer.close()

        asyncio.run(attack())
        assert node.http("/readyz").status == 200
        node.stop()
        assert 0 < node.log.count("belongs to cluster 'another'") < HELLOS - 100

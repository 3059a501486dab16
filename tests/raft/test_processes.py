"""Three real processes: killed, stopped, cut off; everything acknowledged is there afterwards.

tests/simulation/test_fail_over.py checks how long the recovery takes. It uses a virtual clock, which does not depend on load.
"""

import os
import random
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from replicated_namesrv.raft.file_storage import LOCK
from replicated_namesrv.raft.raft_errors import IdentityError
from replicated_namesrv.raft.recovery import check_unused
from tests.support.raft_process import Child, Client, cluster
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PAUSE_S = 0.002
"""Pause between two writes of one writer. It leaves the machine to other processes, and a kill still interrupts writes."""
PATIENT = {"election_min_ms": 2_500, "election_max_ms": 4_000}
"""Settings for tests in which an unprovoked election is a failure. A busy machine delays processes for longer than the usual 300
ms."""
READ_TOGETHER = 1_000
"""Keys that one linearizable read looks up."""


@contextmanager
def running(children: list[Child]) -> Iterator[list[Child]]:
    try:
        for child in children:
            child.start()
        yield children
    finally:
        for child in children:
            child.close()


def ask(child: Child, do: str, **fields: object) -> dict[str, Any]:
    with closing(child.client()) as client:
        return client.ask(do, **fields)


def leader_of(children: list[Child]) -> Child:
    def find() -> Child | None:
        for child in children:
            if child.process is not None and ask(child, "status")["status"]["role"] == "leader":
                return child
        return None

    found = wait_until(find, "a leader")
    assert found is not None
    return found


class Writer(threading.Thread):
    """Writes ascending numbers through one node after another and remembers what was acknowledged."""

    def __init__(self, name: str, children: list[Child]) -> None:
        super().__init__(name=name, daemon=True)
        self.children = children
        self.acknowledged: list[tuple[str, str]] = []
        """(key, value), oldest first. This thread appends, and other threads take slices. Both operations are atomic."""
        self.checked = 0
        """The number of writes that have been read back once."""
        self.stopping = threading.Event()

    def run(self) -> None:
        number, client, position = 0, None, 0
        while not self.stopping.wait(PAUSE_S):
            number += 1
            key, value = f"{self.name}-{number}", str(number)
            try:
                if client is None:
                    position += 1
                    client = self.children[position % len(self.children)].client(timeout=8)
                if client.ask("propose", command=f"{key}={value}")["ok"]:
                    self.acknowledged.append((key, value))
                    continue
            except OSError:
                pass
            if client is not None:
                client.close()
                client = None
        if client is not None:
            client.close()


def check(children: list[Child], writes: list[tuple[str, str]]) -> None:
    """Every node answers linearizable reads with all of ``writes``."""
    for child in children:
        with closing(child.client(timeout=30)) as client:
            for start in range(0, len(writes), READ_TOGETHER):
                some = dict(writes[start : start + READ_TOGETHER])
                answer = wait_until(lambda: confirmed(client, list(some)), "a read", 60)  # noqa: B023 - called within this turn of the loop
                lost = {key: (value, found) for (key, value), found in zip(some.items(), answer, strict=True) if value != found}
                assert not lost, f"{child.settings['node']} answers otherwise than was acknowledged: {lost}"


def confirmed(client: Client, keys: list[str]) -> list[str | None]:
    """The values of ``keys``; empty if the node could not confirm the read, for example without a leader."""
    answer = client.ask("read_many", keys=keys)
    values: list[str | None] = answer["values"] if answer["ok"] else []
    return values


@pytest.mark.parametrize("seed", [1, 2])
def test_kill_9_loop(tmp_path: Path, seed: int) -> None:
    """Kill one, two or all three at random moments under load, with segments and snapshots small enough to turn over often.

    After each kill every node is asked for all values that were acknowledged since the last kill. At the end it is asked for all
    values.
    """
    chooser = random.Random(seed)
    children = cluster(tmp_path, segment_bytes=20_000, compact_entries=300, compact_margin_entries=50)
    with running(children):
        writers = [Writer(f"w{i}", children) for i in range(3)]
        for writer in writers:
            writer.start()
        for _ in range(12):
            before = sum(len(w.acknowledged) for w in writers)
            wait_until(lambda: sum(len(w.acknowledged) for w in writers) > before + 100, "100 writes", 60)  # noqa: B023 - called within this turn of the loop
            victims = chooser.sample(children, chooser.choice([1, 1, 2, 3]))
            for victim in victims:
                victim.kill()
            for victim in victims:
                victim.start()
            for writer in writers:
                new = writer.acknowledged[writer.checked :]
                check(children, new)
                writer.checked += len(new)
        for writer in writers:
            writer.stopping.set()
        for writer in writers:
            writer.join()
            check(children, writer.acknowledged)

        def equal() -> bool:
            states = [ask(c, "status") for c in children]
            return len({(s["status"]["applied_index"], s["digest"]) for s in states}) == 1

        wait_until(equal, "equal states", 60)
        assert any(ask(c, "status")["status"]["snapshot_index"] for c in children)


def write_until_committed(children: list[Child], command: str) -> None:
    """Ask one node after another until one acknowledges ``command``."""

    def attempt() -> bool:
        for child in children:
            with closing(child.client(timeout=2)) as client:
                if client.ask("propose", command=command, timeout_ms=1500)["ok"]:
                    return True
        return False

    wait_until(attempt, "a commit", 60)


@pytest.mark.parametrize("how", ["kill -9", "SIGSTOP"])
def test_fail_over(tmp_path: Path, how: str) -> None:
    with running(cluster(tmp_path, **PATIENT)) as children:
        leader = leader_of(children)
        assert leader.process is not None
        if how == "SIGSTOP":
            os.kill(leader.process.pid, signal.SIGSTOP)
        else:
            leader.kill()
        others = [c for c in children if c is not leader]
        write_until_committed(others, "a=1")
        new = leader_of(others)
        if how == "SIGSTOP":
            assert leader.process is not None
            os.kill(leader.process.pid, signal.SIGCONT)
        else:
            leader.start()
        wait_until(lambda: ask(leader, "status")["status"]["leader"] == new.settings["node"], "the old leader to follow")
        term = ask(new, "status")["status"]["term"]
        wait_until(lambda: ask(leader, "read", key="a").get("value") == "1", "the old leader to catch up")
        assert ask(new, "status")["status"]["term"] == term


def test_large_commands_that_take_long_to_apply_cause_no_election(tmp_path: Path) -> None:
    """The commands are as large as a registration of 60,000 topics near the frame limit and take twice its work. They go through
    the leader and through a follower."""
    with running(cluster(tmp_path, **PATIENT)) as children:
        leader = leader_of(children)
        write_until_committed(children, "a=1")
        elections = {c.settings["node"]: held_elections(c) for c in children}
        for number, child in enumerate([leader, next(c for c in children if c is not leader)] * 2):
            with closing(child.client(timeout=60)) as client:
                assert client.ask("propose", command=f"work{number}={'x' * 8_000_000}", timeout_ms=60_000)["ok"]
        write_until_committed(children, "b=2")
        assert {c.settings["node"]: held_elections(c) for c in children} == elections
        for child in children:
            wait_until(lambda: len(ask(child, "read", key="work3").get("value") or "") == 8_000_000, "it everywhere", 60)  # noqa: B023 - called within this turn of the loop


def held_elections(child: Child) -> tuple[int, int]:
    """Term, and the number of elections that the node has started."""
    status = ask(child, "status")["status"]
    return status["term"], status["counters"].get("pre_votes", 0)


class BlackHole:
    """A TCP proxy that can stop passing bytes without closing anything."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.target = target
        self.server = socket.create_server(("127.0.0.1", 0))
        self.address = self.server.getsockname()
        self.open = threading.Event()
        self.open.set()
        self.sockets: list[socket.socket] = []
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            try:
                near, _ = self.server.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self.target, 2)
            except OSError:
                near.close()
                continue
            self.sockets += [near, far]
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self.pump, args=(source, sink), daemon=True).start()

    def pump(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                self.open.wait()
                sink.sendall(data)
        except OSError:
            pass
        finally:
            source.close()
            sink.close()

    def close(self) -> None:
        self.open.set()
        self.server.close()
        for s in self.sockets:
            s.close()


def test_black_holed_leader_steps_down_and_the_heal_causes_no_election(tmp_path: Path) -> None:
    """All connections of one node, both ways, run through proxies that swallow everything."""
    children = cluster(tmp_path, **PATIENT)
    proxies: dict[tuple[str, str], BlackHole] = {}
    for child in children:
        mine = child.settings["node"]
        addresses = dict(child.settings["addresses"])
        for peer, address in child.settings["addresses"].items():
            if peer != mine:
                proxies[mine, peer] = BlackHole(address)
                addresses[peer] = proxies[mine, peer].address
        child.settings["addresses"] = addresses
    try:
        with running(children):
            leader = leader_of(children)
            name = leader.settings["node"]
            others = [c for c in children if c is not leader]
            around = [proxy for pair, proxy in proxies.items() if name in pair]
            for proxy in around:
                proxy.open.clear()
            wait_until(lambda: ask(leader, "status")["status"]["role"] != "leader", "the cut leader to step down")
            write_until_committed(others, "a=1")
            new = leader_of(others)
            term = ask(new, "status")["status"]["term"]
            for proxy in around:
                proxy.open.set()
            wait_until(lambda: ask(leader, "read", key="a").get("value") == "1", "the old leader to catch up")
            status = ask(new, "status")["status"]
            assert (status["role"], status["term"]) == ("leader", term)
    finally:
        for proxy in proxies.values():
            proxy.close()


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_second_process_on_the_same_directory_is_refused(tmp_path: Path, is_deleted: bool) -> None:
    children = cluster(tmp_path, 1)
    with running(children):
        if is_deleted:
            (Path(children[0].settings["directory"]) / LOCK).unlink()
            with pytest.raises(IdentityError, match="is used by a process"):
                check_unused(Path(children[0].settings["directory"]))
        second = Child({**children[0].settings, "port": 0})
        with pytest.raises(AssertionError, match="used by another process"):
            second.start()
        second.close()


def test_start_with_other_members_is_refused(tmp_path: Path) -> None:
    children = cluster(tmp_path, 3)
    with running(children):
        leader_of(children)
    settings = children[0].settings
    addresses = {**settings["addresses"], "n4": ("127.0.0.1", 1)}
    stranger = Child({**settings, "addresses": addresses})
    with closing(stranger), pytest.raises(AssertionError, match=r"to members .*n3.* but the configuration says .*n4"):
        stranger.start()

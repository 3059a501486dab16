"""``namesrv members`` on real processes: grow from three to five nodes, remove the leader, replace a dead node."""

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.nodes import HttpAnswer, http
from tests.support.operated import Output, run
from tests.support.ports import free_port
from tests.support.replicated_processes import eventually
from tests.support.waiting import until

NAMES = [f"n{number}" for number in range(1, 7)]


class Processes:
    """Nodes n1 to n3, which found the cluster, and nodes that join it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        first = free_port(*range(1, 3 * len(NAMES)))
        self.peer, self.listen, self.admin = (
            {name: f"127.0.0.1:{first + part * len(NAMES) + at}" for at, name in enumerate(NAMES)} for part in range(3)
        )
        self.bound: dict[str, str] = {}
        """Where a node that joins listens for its peers, if not at its peer address."""
        self.running: dict[str, asyncio.subprocess.Process] = {}
        self.secret = self.make_secret("secret", "a-Secret-of-7-words")

    def make_secret(self, name: str, text: str) -> Path:
        """The file with a secret."""
        file = self.folder / name
        file.write_text(text)
        file.chmod(0o600)
        return file

    async def start(
        self, name: str, *more: str, joins: bool = False, secret: Path | None = None, contacts: str | None = None
    ) -> None:
        """``more``: settings of this process. ``joins``: whether a founder starts with ``join``. ``secret``: None means that of
        the other nodes. ``contacts``: the value of ``join``; None: the founders."""
        founders = ",".join(f"{founder}={self.peer[founder]}" for founder in NAMES[:3])
        where = (
            ["--set", f"peers={founders}"]
            if name in NAMES[:3] and not joins
            else ["--join", contacts or founders, "--set", f"peerListen={self.bound.get(name, self.peer[name])}"]
        )
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "replicated_namesrv", "serve", "--mode", "cp", "--node-id", name,
                "--listen", self.listen[name], "--admin", self.admin[name], "--data-dir", str(self.folder / name),
                "--set", f"peerSecretFile={secret or self.secret}", "--set", "electionTimeoutMs=1000",
                "--set", "fenceAfterMs=4000", *where,
                *(word for setting in more for word in ("--set", setting)),
                stdout=log, stderr=log, env={**os.environ},
            )  # fmt: skip  # items grouped by line

    async def kill(self, name: str) -> None:
        process = self.running.pop(name)
        process.send_signal(signal.SIGKILL)
        await process.wait()

    async def accepts(self, name: str) -> bool:
        """True: the peer port accepts connections. Raises OSError if not."""
        host, port = self.peer[name].split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.close()
        await writer.wait_closed()
        return True

    async def members(self, *arguments: str) -> Output:
        return await run("members", *arguments, "--admin", ";".join(self.admin[name] for name in self.running))

    async def leader(self) -> str:
        shown = await run("leader", "--admin", ";".join(self.admin[name] for name in self.running))
        return shown.out.split(",")[0].strip()


@asynccontextmanager
async def founded(folder: Path, *more: str) -> AsyncIterator[Processes]:
    """Three nodes that serve, with these settings."""
    processes = Processes(folder)
    try:
        for name in NAMES[:3]:
            await processes.start(name, *more)
        await eventually(processes.leader, "a leader")
        yield processes
    finally:
        for name in list(processes.running):
            await processes.kill(name)


def rows(output: str) -> dict[str, str]:
    """Role of each node in the output of ``members list``."""
    return {line.split()[0]: line.split()[1] for line in output.splitlines()[1:]}


@pytest.mark.slow
async def test_grow_to_five_remove_the_leader_and_replace_a_dead_node(tmp_path: Path) -> None:
    async with founded(tmp_path) as nodes:
        for name in ("n4", "n5"):
            await nodes.start(name)
            as_observer = ("--observer",) if name == "n5" else ()
            added = await nodes.members("add", name, nodes.peer[name], "--json", *as_observer)
            assert added.code == 0, added
        assert rows((await nodes.members("list")).out)["n5"] == "observer"
        promoted = await nodes.members("promote", "n5", "--json")
        assert promoted.code == 0, promoted
        assert '"voters": 5' in promoted.out
        listed = rows((await nodes.members("list")).out)
        assert sorted(listed) == NAMES[:5]
        assert sorted(listed.values()) == ["leader", *["voter"] * 4]

        leader = await nodes.leader()
        removed = await nodes.members("remove", leader)
        assert removed.code == 0, removed
        assert "4 voters tolerate no more failures than 3" in removed.err
        log = tmp_path / f"{leader}.log"
        await until(lambda: "was removed from the cluster by entry" in log.read_text(), "the removed node's log")
        assert leader not in rows((await nodes.members("list")).out)
        port = int(nodes.admin[leader].split(":")[1])
        refused = await http(port, "/v1/kv/N/k", "PUT", b"v")
        assert (refused.status, "was removed from the cluster by entry" in refused.json["error"]) == (503, True), refused.text
        shown = await run("status", "--admin", nodes.admin[leader])
        assert (shown.code, f"problem: {leader}: it was removed from the cluster" in shown.out) == (1, True), shown
        await nodes.kill(leader)
        await nodes.start(leader)

        async def says_so() -> bool:
            with contextlib.suppress(OSError):  # it does not listen yet
                return (
                    "[-] service: starting: this node was removed from the cluster by entry"
                    in (await http(int(nodes.admin[leader].split(":")[1]), "/readyz?verbose")).text
                )
            return False

        await eventually(says_so, "the reason why the removed node does not serve")
        await nodes.kill(leader)

        listed = rows((await nodes.members("list")).out)
        dead = next(name for name in nodes.running if listed.get(name) == "voter")
        await nodes.kill(dead)
        await nodes.start("n6")
        replaced = await nodes.members("replace", dead, "n6", nodes.peer["n6"])
        assert replaced.code == 0, replaced
        assert sorted(rows((await nodes.members("list")).out)) == sorted(nodes.running)

        for repeated in (("add", "n6", nodes.peer["n6"]), ("promote", "n6"), ("replace", dead, "n6", nodes.peer["n6"])):
            again = await nodes.members(*repeated)
            assert (again.code, "n6" in again.err) == (0, True), again
        elsewhere = await nodes.members("add", "n6", nodes.peer[dead])
        assert elsewhere.code == 1
        assert "n6 is a member already" in elsewhere.err


@pytest.mark.slow
async def test_status_says_why_a_node_that_was_removed_while_it_was_down_does_not_serve(tmp_path: Path) -> None:
    async with founded(tmp_path) as nodes:
        leader = await nodes.leader()
        gone = next(name for name in nodes.running if name != leader)
        await nodes.kill(gone)
        removed = await nodes.members("remove", gone)
        assert removed.code == 0, removed
        await nodes.start(gone)

        async def is_explained() -> bool:
            shown = (await run("status", "--admin", nodes.admin[gone])).out
            refused = rf"does not serve: n\d refuses this node: {gone} is not a member here"
            learned = "it was removed from the cluster and does not serve"  # if the leader still kept it as a peer
            return re.search(rf"problem: {gone}: ({refused}|{learned})", shown) is not None and "members add" in shown

        await eventually(is_explained, "the reason why the node does not serve")


@pytest.mark.slow
async def test_a_new_node_that_is_not_started_is_named_with_the_remedy(tmp_path: Path) -> None:
    async with founded(tmp_path) as nodes:
        late = await nodes.members("add", "n4", nodes.peer["n4"], "--within", "5")
        assert late.code == 2, late
        assert "Start it with --join" in late.err
        undone = await nodes.members("remove", "n4")
        assert undone.code == 0, undone


@pytest.mark.slow
async def test_an_add_ends_when_another_command_removes_the_node(tmp_path: Path) -> None:
    async with founded(tmp_path) as nodes:
        adding = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "replicated_namesrv", "members", "add", "n4", nodes.peer["n4"], "--within", "300",
            "--admin", nodes.admin["n1"], stderr=asyncio.subprocess.PIPE, env={**os.environ},
        )  # fmt: skip  # items grouped by line

        async def is_listed() -> bool:
            return "n4" in rows((await nodes.members("list")).out)

        await eventually(is_listed, "n4 is a member")
        removed = await nodes.members("remove", "n4")
        assert removed.code == 0, removed
        _, said = await adding.communicate()
        assert adding.returncode == 2, said
        assert b"n4 was removed by another command meanwhile; see 'namesrv members list'" in said
        assert b"not finished within" not in said


@pytest.mark.slow
async def test_mistakes_change_nothing_and_a_late_replacement_is_continued(tmp_path: Path) -> None:
    async with founded(tmp_path) as nodes:
        await nodes.start("n4", secret=nodes.make_secret("wrong", "words-of-Another-7"))
        await eventually(lambda: nodes.accepts("n4"), "the peer port of n4")
        unknown = await nodes.members("replace", "n9", "n4", nodes.peer["n4"])
        assert unknown.code == 1, unknown
        assert "n9 is not a member; give one of n1, n2, n3" in unknown.err
        same = await nodes.members("replace", "n3", "n3", nodes.peer["n3"])
        assert same.code == 1, same
        taken = await nodes.members("add", "n4", nodes.peer["n2"])
        assert taken.code == 1, taken
        assert "is the address of n2; give another one" in taken.err
        assert sorted(rows((await nodes.members("list")).out)) == NAMES[:3]

        late = await nodes.members("replace", "n3", "n4", nodes.peer["n4"], "--within", "8")
        assert late.code == 2, late
        assert "n4 does not know the shared secret" in late.err
        assert "n3 was not removed; repeat the command to continue" in late.err
        await nodes.kill("n4")
        await nodes.start("n4")
        done = await nodes.members("replace", "n3", "n4", nodes.peer["n4"])
        assert done.code == 0, done
        assert sorted(rows((await nodes.members("list")).out)) == ["n1", "n2", "n4"]
        again = await nodes.members("replace", "n3", "n4", nodes.peer["n4"])
        assert again.code == 0, again
        assert "n3 is not a member (any more)" in again.err
        other = await nodes.members("replace", "n3", "n5", nodes.peer["n5"])
        assert other.code == 1, other
        assert "n3 is not a member; give one of n1, n2, n4" in other.err
        await replaced_over_http(nodes)

        port = int(nodes.admin[await nodes.leader()].split(":")[1])
        if port == int(nodes.admin["n3"].split(":")[1]):
            every = ";".join(nodes.admin[name] for name in nodes.running)
            moved = await run("leader", "transfer", "n1", "--admin", every)
            assert moved.code == 0, moved
            port = int(nodes.admin["n1"].split(":")[1])
        replacing = asyncio.ensure_future(nodes.members("replace", "n3", "n5", nodes.peer["n5"]))

        async def is_removed_by_another_operator() -> bool:
            listed = (await http(port, "/v1/members")).json["members"]
            is_added = any(row["nodeId"] == "n5" for row in listed)
            return is_added and (await http(port, "/v1/members/n3/remove", "POST")).status == 200

        await eventually(is_removed_by_another_operator, "the removal of n3 while n5 is a learner")
        await nodes.start("n5")
        done = await replacing
        assert done.code == 0, done
        assert "n3 was removed by another command" in done.err


@pytest.mark.slow
async def test_a_node_joins_through_addresses_without_names(tmp_path: Path) -> None:
    async with founded(tmp_path) as nodes:
        nobody = f"127.0.0.1:{free_port()}"
        await nodes.start("n4", contacts=nobody)
        port = int(nodes.admin["n4"].split(":")[1])

        async def says_so() -> bool:
            with contextlib.suppress(OSError):  # it does not listen yet
                return f"no node of the cluster told its name ({nobody}: " in (await http(port, "/readyz?verbose")).text
            return False

        await eventually(says_so, "the reason why n4 does not serve")
        shown = await run("status", "--admin", nodes.admin["n4"])
        assert f"n4: not ready: service: starting: no node of the cluster told its name ({nobody}: " in shown.out, shown
        assert not (tmp_path / "n4" / "raft" / "identity").exists(), "it must not take part before it knows a member"
        await nodes.kill("n4")
        await nodes.start("n4", contacts=f"{nobody},{nodes.peer['n2']}")
        added = await nodes.members("add", "n4", nodes.peer["n4"], "--json")
        assert added.code == 0, added

        gone = await nodes.members("remove", "n2")
        assert gone.code == 0, gone
        await nodes.kill("n2")
        await nodes.kill("n4")
        await nodes.start("n4", contacts=f"{nobody},{nodes.peer['n2']}")

        async def is_back() -> bool:
            with contextlib.suppress(OSError):
                return (await http(port, "/readyz")).status == 200
            return False

        await eventually(is_back, "n4 serves although no address in join answers: its log names the members")
        await nodes.start("n5", contacts=nodes.peer["n1"])
        added = await nodes.members("add", "n5", nodes.peer["n5"], "--observer")
        assert added.code == 0, added


async def replaced_over_http(nodes: Processes) -> None:
    """n3, whose disk is empty, replaces n4. Mistakes are refused before, and the same request is done already after."""

    async def post(old: str, query: str) -> HttpAnswer:
        leader = await nodes.leader()
        return await http(int(nodes.admin[leader].split(":")[1]), f"/v1/members/{old}/replace{query}", "POST")

    async def n4_follows() -> bool:
        leader = await nodes.leader()
        if leader == "n4":  # a leader that is replaced only transfers leadership
            await http(int(nodes.admin[leader].split(":")[1]), "/v1/leader/transfer?to=n1", "POST")
        return leader != "n4"

    await eventually(n4_follows, "n4 follows")
    n3, n4 = f"?by=n3&address={nodes.peer['n3']}", f"?by=n4&address={nodes.peer['n4']}"
    for old, query, text in (
        ("n4", "", "replace needs address"),
        ("n4", f"?address={nodes.peer['n3']}", "replace needs by"),
        ("n4", n4, "n4 cannot be replaced by a node of the same name"),
        ("n9", n3, "n9 is not a member; give one of n1, n2, n4"),
        ("n4", f"?by=a%20b&address={nodes.peer['n3']}", "give a name of at most 200 characters, without blanks"),
        (
            "n4",
            f"?by=n2&address={nodes.peer['n2']}",
            "by=n2: n2 is a voter already, so the cluster would only lose n4; give a node",
        ),
        ("n4", f"?by=n2&address={nodes.peer['n6']}", "by=n2: n2 is a voter already"),
    ):
        refused = await post(old, query)
        assert (refused.status, text in refused.json["error"]) == (400, True), refused.text
    await nodes.kill("n3")
    shutil.rmtree(nodes.folder / "n3")
    too_early = await post("n4", n3)
    assert (too_early.status, "n3 was added and does not vote yet" in too_early.json["error"]) == (503, True), too_early.text
    await nodes.start("n3", joins=True)

    async def votes() -> bool:
        return rows((await nodes.members("list")).out)["n3"] == "voter"

    await eventually(votes, "n3 votes")
    continued = await post("n4", n3)
    assert (continued.status, continued.json.get("changed")) == (200, True), continued.text
    assert sorted(rows((await nodes.members("list")).out)) == ["n1", "n2", "n3"]
    again = await post("n4", n3)
    assert (again.status, again.json["changed"]) == (200, False), "a repeated replacement is done already"


@pytest.mark.slow
async def test_addresses_and_zones_of_members_are_in_the_log(tmp_path: Path) -> None:
    """After a restart of all others, they are still known of a member that is down. While it serves, brokers are told of it."""
    async with founded(tmp_path, "zone=west") as nodes:

        async def row(name: str) -> dict[str, Any]:
            shown = json.loads((await nodes.members("list", "--json")).out)["members"]
            return next(each for each in shown if each["nodeId"] == name)

        async def is_listed() -> bool:
            answer = await http(int(nodes.admin["n1"].split(":")[1]), "/rocketmq/nsaddr")
            return nodes.listen["n4"] in answer.text.strip().split(";")

        assert not await is_listed()
        await nodes.start("n4", "zone=east")
        added = await nodes.members("add", "n4", nodes.peer["n4"], "--observer")
        assert (added.code, "warning" in added.err) == (0, False), added
        await eventually(is_listed, "the observer in the address list")
        leader = int(nodes.admin[await nodes.leader()].split(":")[1])

        async def is_written() -> bool:
            raft = (await http(leader, "/v1/status")).json["replication"]["raft"]
            details = {name: text for name, _, _, _, _, text in raft["member_rows"]}
            wanted = {"n4": "east"} | dict.fromkeys(NAMES[:3], "west")
            return details == {n: json.dumps([nodes.listen[n], nodes.admin[n], zone]) for n, zone in wanted.items()}

        await eventually(is_written, "the descriptions in the log")
        for name in NAMES[:4]:
            await nodes.kill(name)
        for name in NAMES[:3]:
            await nodes.start(name, "zone=west")
        await eventually(nodes.leader, "a leader")
        found = await row("n4")
        wanted = {"address": nodes.listen["n4"], "adminAddress": nodes.admin["n4"], "zone": "east", "serves": False}
        assert {name: found[name] for name in wanted} == wanted


@pytest.mark.slow
async def test_a_broker_that_knows_only_an_observer_is_on_all_nodes_until_it_is_gone(tmp_path: Path) -> None:
    """It becomes silent, returns, and dies. All nodes learn this from the observer."""
    async with founded(tmp_path) as nodes:
        await nodes.start("n4")
        added = await nodes.members("add", "n4", nodes.peer["n4"], "--observer")
        assert added.code == 0, added
        broker = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "replicated_namesrv", "broker", "-n", nodes.listen["n4"], "--period-ms", "20000",
            "--heartbeat", "904", "--heartbeat-timeout-ms", "4000", stdout=asyncio.subprocess.DEVNULL,
        )  # fmt: skip  # items grouped by line

        async def lists(name: str) -> bool:
            return "broker-0" in (await run("brokers", "-n", nodes.listen[name])).out

        async def registered() -> tuple[int, int]:
            (row,) = (await http(int(nodes.admin["n1"].split(":")[1]), "/v1/brokers")).json["brokers"]
            return row["epoch"], row["registeredSinceMs"]

        async def is_everywhere() -> bool:
            return all([await lists(name) for name in NAMES[:4]])

        async def is_nowhere() -> bool:
            return not any([await lists(name) for name in NAMES[:4]])

        try:
            await eventually(is_everywhere, "the broker on all nodes")
            for name in NAMES[:4]:
                route = await run("route", "topic-0", "-n", nodes.listen[name])
                assert (route.code, "broker-0" in route.out) == (0, True), route
            epoch, since_ms = await registered()

            async def is_older_than_its_timeout() -> bool:
                now = await registered()
                assert now == (epoch, since_ms), "it was removed although it sends heartbeats to the observer"
                return time.time() * 1000 > since_ms + 10_000

            await eventually(is_older_than_its_timeout, "a registration that lives by heartbeats")
            broker.send_signal(signal.SIGSTOP)
            await eventually(is_nowhere, "the silent broker has expired")
            broker.send_signal(signal.SIGCONT)
            await eventually(is_everywhere, "the broker on all nodes again")
        finally:
            broker.kill()
            await broker.wait()
        await eventually(is_nowhere, "the dead broker was removed")
        assert rows((await nodes.members("list")).out)["n4"] == "observer"


@pytest.mark.slow
async def test_the_leader_is_found_through_any_member(tmp_path: Path) -> None:
    """A node that was added later may lead, and the address list in the settings of the others lacks it."""
    async with founded(tmp_path) as nodes:
        leader = await nodes.leader()
        follower = next(name for name in NAMES[:3] if name != leader)
        add = ("members", "add", "n5", nodes.peer["n5"], "--observer", "--within", "3")
        added = await run(*add, "--admin", nodes.admin[follower])
        assert added.code == 2, added
        assert "n5: observer, not connected; " in added.err, "no process runs there"
        assert rows((await nodes.members("list")).out)["n5"] == "observer"

        async def leader_answers() -> bool:
            """An earlier version asked this node only, and said that the leader did not answer."""
            return "is unknown" not in (await run("members", "list", "--admin", nodes.admin[follower])).out

        await eventually(leader_answers, "the members as the leader knows them")
        others = [name for name in NAMES[:3] if name != follower]
        for name in others:
            nodes.running[name].send_signal(signal.SIGSTOP)
        late = await run("members", "remove", "n5", "--admin", nodes.admin[follower], "--within", "6")
        for name in others:
            nodes.running[name].send_signal(signal.SIGCONT)
        assert late.code == 2, late
        assert f"none of {nodes.admin[follower]}" in late.err


@pytest.mark.slow
async def test_a_node_that_is_added_is_reached_at_its_address_in_peer_dial(tmp_path: Path) -> None:
    """No process listens at the peer address of n4, as if it were behind NAT."""
    reached_at = f"127.0.0.1:{free_port()}"
    async with founded(tmp_path, f"peerDial=n4={reached_at},n9=127.0.0.1:1") as nodes:
        log = tmp_path / "n1.log"
        await until(lambda: "peerDial names nodes that are not members" in log.read_text(), "the warning about n4 and n9")
        nodes.bound["n4"] = reached_at
        await nodes.start("n4")
        added = await nodes.members("add", "n4", nodes.peer["n4"], "--json")
        assert added.code == 0, added
        assert '"voters": 4' in added.out
        leader = await nodes.leader()
        again = next(name for name in NAMES[:3] if name != leader)
        await nodes.kill(again)
        await nodes.start(again, f"peerDial=n4={reached_at}", joins=True)

        async def all_connected() -> bool:
            replication = (await http(int(nodes.admin[again].split(":")[1]), "/v1/status")).json["replication"]
            if replication is None:
                return False  # the node is starting
            peers = replication["raft"]["transport"]["peers"]
            connected = {peer for peer, state in peers.items() if state["connected"]}
            return connected == {*NAMES[:4]} - {again}

        await eventually(all_connected, "connections with n4, and with founders at their peer addresses")

"""``namesrv switch --walk`` on real processes: running nodes go from AP to CP and back, one at a time, while brokers register."""

import asyncio
import contextlib
import json
import os
import random
import shlex
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from replicated_namesrv.child_process import serve_command, start_process
from replicated_namesrv.cli.switch_walk import CLUSTER_FILE
from replicated_namesrv.client.nameservers import NameServers, RequestOutcome
from replicated_namesrv.client.queries import read_route, route_request
from replicated_namesrv.client.remoting import RemotingClient
from replicated_namesrv.errors import NamesrvError
from replicated_namesrv.files import hold_folder
from tests.support.nodes import http
from tests.support.operated import Output
from tests.support.ports import free_ports
from tests.support.replicated_processes import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
COUNT = 3
TOPICS = 5


async def run(*arguments: str) -> Output:
    """``namesrv COMMAND …`` in a process of its own: it runs other programs."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "replicated_namesrv", *arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, err = await process.communicate()
    return Output(process.returncode or 0, out.decode(), err.decode())


class Nodes:
    """Three AP nodes with their plan, and the brokers."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.plan = folder, folder / "plan.json"
        self._first: list[subprocess.Popen[bytes]] = []
        ports = free_ports(3 * COUNT)
        self.addresses = [f"127.0.0.1:{port}" for port in ports[:COUNT]]
        self.admin = [f"127.0.0.1:{port}" for port in ports[COUNT : 2 * COUNT]]
        self.peers = ",".join(f"n{number + 1}=127.0.0.1:{port}" for number, port in enumerate(ports[2 * COUNT :]))
        self.switch_one = shlex.join([sys.executable, str(Path(__file__).with_name("switch_one.py")), str(self.plan)])
        self.script = self.switch_one

    @property
    def names(self) -> str:
        return ";".join(self.addresses)

    def port(self, number: int) -> int:
        """Admin port of a node."""
        return int(self.admin[number].rpartition(":")[2])

    def start(self) -> None:
        """Start all nodes in AP."""
        plan: dict[str, dict[str, Any]] = {}
        for number, (address, admin) in enumerate(zip(self.addresses, self.admin, strict=True)):
            name, data, log = f"n{number + 1}", self.folder / f"n{number + 1}", self.folder / f"n{number + 1}.log"
            own = ["needWaitForService=true", "waitSecondsForService=3", "electionTimeoutMs=1000", "fenceAfterMs=4000"]
            peer = self.peers.split(",")[number].partition("=")[2]
            serve = serve_command(name, address, admin, data, "ap", [*own, f"peerListen={peer}"])
            serve = [word for word in serve if word not in ("--mode", "ap")]
            process = start_process([*serve, "--mode", "ap"], log)
            self._first.append(process)
            plan[address] = {
                "pid": process.pid, "data": str(data), "log": str(log), "serve": serve, "words": ["--mode", "ap"],
            }  # fmt: skip  # items grouped by line
        self.plan.write_text(json.dumps(plan))

    def kill(self) -> None:
        """Kill all nodes. The script has started some of them."""
        for node in json.loads(self.plan.read_text()).values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(node["pid"], signal.SIGKILL)
        for process in self._first:
            process.wait()

    async def walk(self, to: str, *more: str, peers: bool = True) -> Output:
        """``{setting}`` is left out of the command with ``--to ap``, where it is empty."""
        setting = "{setting}" if to == "cp" else "''"
        return await run(
            "switch", "--to", to, "--walk", f"{self.script} {to} {{address}} {setting} {{backups}}", "-n", self.names,
            "--save", str(self.folder / "backups"), "--admin", ";".join(self.admin), "--within", "60",
            *(["--peers", self.peers] if to == "cp" and peers else []), *more,
        )  # fmt: skip  # items grouped by line

    async def value(self, number: int, key: str) -> str | None:
        """The value of a key of namespace N at one node."""
        rows = (await http(self.port(number), "/v1/kv?namespace=N")).json["entries"]
        return {row["key"]: row["value"] for row in rows}.get(key)

    async def modes(self) -> list[str]:
        return [(await http(self.port(number), "/v1/status")).json["mode"] for number in range(COUNT)]


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Nodes]:
    """Nodes and brokers. At the end, all brokers were registered everywhere, or the test fails."""
    nodes = Nodes(folder)
    nodes.start()
    brokers: asyncio.subprocess.Process | None = None
    try:
        await eventually(nodes.modes, "all nodes answer")
        brokers = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "replicated_namesrv", "broker", "--brokers", "2", "--topics", str(TOPICS),
            "--period-ms", "1000", "-n", nodes.names, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip  # items grouped by line

        async def registered() -> bool:
            # in this order: before the first registration, diff would compare no routes, and not notice nodes that are not ready
            return bool((await http(nodes.port(0), "/v1/brokers")).json["brokers"]) and (
                (await run("diff", "-n", nodes.names, "--admin", ";".join(nodes.admin))).code == 0
            )

        await eventually(registered, "the brokers are registered everywhere")
        yield nodes
    finally:
        if brokers is not None:
            brokers.kill()
            await brokers.wait()
        nodes.kill()


class Look:
    """A client that asks all servers at the same time. RocketMQ's clients ask the next server when one closes the connection."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self.looks, self.in_vain, self.ends = 0, list[str](), False

    async def run(self) -> None:
        client = RemotingClient()
        servers = NameServers(self._nodes.addresses, client, rng=random.Random(1), timeout_ms=5_000)
        try:
            while not self.ends:
                outcomes = await servers.ask_all(route_request(f"topic-{self.looks % TOPICS}"))
                problems = [problem for outcome in outcomes if (problem := self._problem(outcome)) is not None]
                if len(problems) == len(outcomes):
                    self.in_vain.append("; ".join(problems))
                self.looks += 1
                await asyncio.sleep(0.1)
        finally:
            await client.close()

    def _problem(self, outcome: RequestOutcome) -> str | None:
        try:
            route = read_route(outcome.answer())
        except NamesrvError as error:
            return f"{outcome.address}: {error}"
        count = 0 if route is None else len(route.broker_datas)
        return None if count == 2 else f"{outcome.address}: {count} brokers"


async def test_running_nodes_are_switched_to_cp_and_back(tmp_path: Path) -> None:
    async with running(tmp_path) as nodes:
        for number in range(COUNT):
            assert (await http(nodes.port(number), "/v1/kv/N/k", "PUT", b"v")).status == 200
        assert (await http(nodes.port(0), "/v1/kv/N/only", "PUT", b"n1")).status == 200
        refused = await nodes.walk("cp")
        assert (refused.code, "the files disagree about key N/only" in refused.err) == (1, True), refused
        usage = await nodes.walk("cp", peers=False)
        assert (usage.code, "--peers has 0 nodes; give one for each address of -n" in usage.err) == (2, True), usage
        planned = await nodes.walk("cp", "--prefer", nodes.addresses[0], "--dry-run", "--json")
        assert (planned.code, json.loads(planned.out)["left"]) == (0, nodes.addresses), planned
        assert not (tmp_path / "backups" / "walk.json").exists()
        assert await nodes.modes() == ["ap"] * COUNT

        look = Look(nodes)
        looking = asyncio.ensure_future(look.run())
        done = await nodes.walk("cp", "--prefer", nodes.addresses[0], "--json")
        assert done.code == 0, done
        found = json.loads(done.out)
        assert ([row["name"] for row in found["switched"]], found["equal"]) == (["n1", "n2", "n3"], True)
        assert [row["key"] for row in found["conflicts"]] == ["only"]
        listed = (await http(nodes.port(1), "/v1/members")).json["members"]
        assert sorted(row["nodeId"] for row in listed if row["role"] in ("voter", "leader")) == ["n1", "n2", "n3"]
        for number in range(COUNT):
            assert await nodes.value(number, "only") == "n1"
        again = await nodes.walk("cp")
        assert (again.code, "equal: " in again.out) == (0, True), again

        back = await nodes.walk("ap")
        assert back.code == 0, back
        assert await nodes.modes() == ["ap"] * COUNT
        assert len([line for line in back.out.splitlines() if "cp -> ap" in line and "the same brokers" in line]) == COUNT
        look.ends = True
        await looking
        for number in range(COUNT):
            assert await nodes.value(number, "only") == "n1"
        assert look.looks > COUNT
        assert not look.in_vain

        # as after a walk that ended before it compared the values, with nodes that read an older file
        folder = nodes.folder / "backups"
        assert not (folder / CLUSTER_FILE).exists()
        for number in range(COUNT):
            assert (await http(nodes.port(number), "/v1/kv/N/k", "PUT", b"old")).status == 200
        (folder / CLUSTER_FILE).write_text(f"{nodes.addresses[0].replace(':', '-')}.cp.backup")
        wrong = await nodes.walk("ap")
        assert (wrong.code, "the files disagree about key N/k" in wrong.err) == (1, True), wrong


async def test_a_node_with_a_newer_value_is_not_switched_and_the_walk_continues_later(tmp_path: Path) -> None:
    """An operator changes a key of n2 alone, after the backups. Its value must not be lost."""
    async with running(tmp_path) as nodes:
        script = nodes.script
        late = tmp_path / "late.sh"
        url = f"http://127.0.0.1:{nodes.port(1)}/v1/kv/N/late"
        put = f"import urllib.request as r; r.urlopen(r.Request('{url}', b'v', method='PUT'))"
        late.write_text(f'#!/bin/sh -e\n{shlex.join([sys.executable, "-c", put])}\nexec {script} "$@"\n')
        late.chmod(0o755)
        nodes.script = str(late)
        prefer = ("--prefer", nodes.addresses[0])
        stopped = await nodes.walk("cp", *prefer)
        assert stopped.code == 1, stopped
        assert "has values that no given file has: N/late" in stopped.err
        assert f"{nodes.addresses[1]}: the command of --walk ended with 1" in stopped.err
        await eventually(nodes.modes, "all nodes answer")
        assert await nodes.modes() == ["cp", "ap", "ap"]
        assert await nodes.value(1, "late") == "v"

        nodes.script = script
        refused = await nodes.walk("cp")
        assert (refused.code, f"or repeat --prefer {nodes.addresses[0]}" in refused.err) == (1, True), refused
        refused = await nodes.walk("cp", *prefer)
        assert (refused.code, "new since the first run: N/late" in refused.err) == (1, True), refused
        for number in (0, 2):
            assert (await http(nodes.port(number), "/v1/kv/N/late", "PUT", b"v")).status == 200
        done = await nodes.walk("cp")
        assert done.code == 0, done
        assert await nodes.modes() == ["cp"] * COUNT
        assert await nodes.value(2, "late") == "v"


def fails_at(nodes: Nodes, address: str, *, before: bool) -> str:
    """The operator's script, which fails at one node: before it does anything, or after it has done everything."""
    file = nodes.folder / f"fails-{before}.sh"
    steps = ["exit 7", f'{nodes.switch_one} "$@"'] if before else [f'{nodes.switch_one} "$@"', "exit 7"]
    file.write_text(f'#!/bin/sh -e\nif [ "$2" = {address} ]; then\n' + "\n".join(steps) + f'\nfi\nexec {nodes.switch_one} "$@"\n')
    file.chmod(0o755)
    return str(file)


async def test_a_walk_to_cp_that_stopped_anywhere_continues_and_loses_no_value(tmp_path: Path) -> None:
    async with running(tmp_path) as nodes:
        for number in range(COUNT):
            assert (await http(nodes.port(number), "/v1/kv/N/k", "PUT", b"v")).status == 200
        assert (await http(nodes.port(1), "/v1/kv/N/only", "PUT", b"n2")).status == 200
        script, prefer = nodes.script, ("--prefer", nodes.addresses[1])
        wrong = await nodes.walk("cp", "--peers", ",".join(reversed(nodes.peers.split(","))), peers=False)
        assert (wrong.code, "has nodeId=n1, and --peers names it n3" in wrong.err) == (1, True), wrong
        swapped = await nodes.walk("cp", "--admin", ";".join(reversed(nodes.admin)))
        assert (swapped.code, "give --peers in the order of -n" in swapped.err) == (1, True), swapped
        unknown = await run("switch", "--to", "cp", "--walk", "x {setting} {backup}", "--save", str(tmp_path), "-n", nodes.names)
        assert (unknown.code, "{backup} is not known" in unknown.err) == (2, True), unknown

        nodes.script = f"env STOP_HALFWAY=1 {script}"
        halfway = await nodes.walk("cp", "--prefer", nodes.addresses[0], "--save", str(tmp_path / "halfway"))
        assert halfway.code == 1, halfway
        await eventually(nodes.modes, "all nodes answer")
        assert (await nodes.modes(), await nodes.value(0, "k")) == (["ap"] * COUNT, None)
        lost = await nodes.walk("cp", "--prefer", nodes.addresses[0], "--save", str(tmp_path / "halfway"))
        assert (lost.code, "does not have values any more" in lost.err) == (1, True), lost
        saved = next((tmp_path / "halfway").glob(f"*{nodes.addresses[0].rpartition(':')[2]}.ap.backup"))
        put_back = await run("restore", "--merge", str(saved), "-a", nodes.admin[0])
        assert (put_back.code, await nodes.value(0, "k")) == (0, "v"), put_back

        nodes.script = fails_at(nodes, nodes.addresses[0], before=False)
        stopped = await nodes.walk("cp", *prefer, "--json")
        assert (stopped.code, json.loads(stopped.out)["left"]) == (1, nodes.addresses), stopped
        assert "ended with 7" in stopped.err

        async def is_founded() -> bool:
            with contextlib.suppress(OSError):
                return (await http(nodes.port(0), "/readyz")).status == 200
            return False

        await eventually(is_founded, "n1 is a cluster of one, without the values")
        assert await nodes.value(0, "k") is None
        nodes.script = script
        refused = await nodes.walk("cp", "--save", str(tmp_path / "elsewhere"), *prefer)
        assert (refused.code, "disagree about key N/k" in refused.err) == (1, True), refused

        nodes.script = fails_at(nodes, nodes.addresses[1], before=False)
        stopped = await nodes.walk("cp", *prefer)
        assert (stopped.code, await nodes.value(0, "only")) == (1, "n2"), stopped
        await eventually(nodes.modes, "all nodes answer")
        assert await nodes.modes() == ["cp", "cp", "ap"], "n2 runs, and was not added"
        nodes.script = script
        done = await nodes.walk("cp", *prefer, "--json")
        assert done.code == 0, done
        assert [row["name"] for row in json.loads(done.out)["switched"]] == ["n2", "n3"]
        listed = (await http(nodes.port(1), "/v1/members")).json["members"]
        assert sorted(row["nodeId"] for row in listed if row["role"] in ("voter", "leader")) == ["n1", "n2", "n3"]
        for key, value in (("k", "v"), ("only", "n2")):
            assert [await nodes.value(number, key) for number in range(COUNT)] == [value] * COUNT


async def test_a_second_walk_with_the_same_folder_is_refused(tmp_path: Path) -> None:
    held = hold_folder(tmp_path, alone=True)
    assert held is not None
    try:
        words = ("--save", str(tmp_path), "-n", "127.0.0.1:1")
        done = await run("switch", "--to", "ap", "--walk", "true {backups}", *words)
    finally:
        os.close(held)
    assert (done.code, os.listdir(tmp_path)) == (1, [])
    assert f"another walk uses {tmp_path}" in done.err


async def test_a_walk_to_ap_that_stopped_at_an_observer_and_at_a_voter_continues(tmp_path: Path) -> None:
    async with running(tmp_path) as nodes:
        assert (await nodes.walk("cp")).code == 0
        assert (await http(nodes.port(0), "/v1/kv/N/k", "PUT", b"v")).status == 200
        script, names = nodes.script, nodes.addresses
        for change in (("remove", "n2"), ("add", "n2", nodes.peers.split(",")[1].partition("=")[2], "--observer")):
            changed = await run("members", *change, "--admin", ";".join(nodes.admin))
            assert changed.code == 0, changed
        nodes.addresses = names[:2]
        some = await nodes.walk("ap", "--admin", ";".join(nodes.admin[:2]))
        nodes.addresses = names
        assert (some.code, "the cluster has members that -n does not name: n3" in some.err) == (1, True), some
        swapped = await nodes.walk("ap", "--admin", ";".join(reversed(nodes.admin)))
        assert (swapped.code, "give --admin in the order of -n" in swapped.err) == (1, True), swapped

        nodes.script = fails_at(nodes, names[1], before=True)
        stopped = await nodes.walk("ap")
        assert (stopped.code, await nodes.modes()) == (1, ["cp"] * COUNT), stopped
        assert "n2" not in [row["nodeId"] for row in (await http(nodes.port(0), "/v1/members")).json["members"]]
        nodes.script = fails_at(nodes, names[0], before=True)
        stopped = await nodes.walk("ap")
        assert (stopped.code, await nodes.modes()) == (1, ["cp", "ap", "cp"]), stopped
        nodes.script = script
        done = await nodes.walk("ap")
        assert done.code == 0, done
        assert await nodes.modes() == ["ap"] * COUNT
        assert [await nodes.value(number, "k") for number in range(COUNT)] == ["v"] * COUNT

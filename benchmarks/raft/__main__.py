"""Speed of the Raft core compared with plain PySyncObj and etcd: groups of three processes on this machine, one after the
other.

    python -m benchmarks.raft [--seconds 4] [--only ours,plain,etcd,failover,idle,restart] [--json]

Latency is that of one client with one operation in flight, throughput is that of many. CPU is that of all nodes together, from
the kernel's accounting, per operation. Our clients run inside the node they ask, so their cost is in our figures. etcd's clients
run in another process, which is not counted. Our core and etcd sync every commit to disk; plain PySyncObj does not sync. etcd is
built from its module (benchmarks/raft/etcd wraps etcdmain) if Go is installed. Latencies on a busy machine are not valid.
"""

import argparse
import contextlib
import hashlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from replicated_namesrv.provision import cached, find_go

ROOT = Path(__file__).parents[2]
TICKS = os.sysconf("SC_CLK_TCK")
PARTS = ("ours", "plain", "etcd", "failover", "idle", "restart")
SETTLE_SECONDS = 1.0


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [int(s.getsockname()[1]) for s in sockets]


def wait_for(condition: Any, what: str, seconds: float = 60) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"no {what} within {seconds} s")
        time.sleep(0.05)
    return value


class Group(Protocol):
    """Three processes of one consensus group."""

    processes: list[subprocess.Popen[bytes]]

    def leader(self) -> int: ...

    def load(self, node: int, kind: str, clients: int, seconds: float) -> dict[str, Any]: ...

    def first_commit(self, nodes: Sequence[int]) -> float: ...

    def start(self, node: int) -> None: ...


class NodeGroup:
    """Our nodes, or plain PySyncObj's. Each is a process that takes requests on standard input."""

    def __init__(self, directory: Path, target: str, config: dict[str, object] | None = None) -> None:
        ports = free_ports(3)
        self.addresses = {f"n{i + 1}": ["127.0.0.1", port] for i, port in enumerate(ports)}
        self.settings = [
            {
                "target": target,
                "node": name,
                "addresses": self.addresses,
                "directory": str(directory / name),
                "config": config or {},
            }
            for name in self.addresses
        ]
        self.processes: list[subprocess.Popen[bytes]] = [None] * 3  # type: ignore[list-item]  # filled by start
        for node in range(3):
            self.start(node)

    def start(self, node: int) -> None:
        command = [sys.executable, "-m", "benchmarks.raft.node", json.dumps(self.settings[node])]
        # plain PySyncObj logs thousands of warnings about truncating applied entries
        plain = self.settings[node]["target"] != "ours"
        self.processes[node] = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL if plain else None, cwd=ROOT
        )
        self.answer(node)

    def answer(self, node: int) -> dict[str, Any]:
        stdout = self.processes[node].stdout
        assert stdout is not None
        line = stdout.readline()
        if not line:
            raise RuntimeError(f"node {node + 1} has ended")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def request(self, node: int, do: str, **fields: object) -> None:
        stdin = self.processes[node].stdin
        assert stdin is not None
        stdin.write(json.dumps({"do": do, **fields}).encode() + b"\n")
        stdin.flush()

    def ask(self, node: int, do: str, **fields: object) -> dict[str, Any]:
        self.request(node, do, **fields)
        return self.answer(node)

    def leader(self) -> int:
        def find() -> list[int]:
            alive = [n for n in range(3) if self.processes[n].poll() is None]
            return [n for n in alive if self.ask(n, "status")["role"] == "leader"]

        return int(wait_for(find, "leader")[0])

    def load(self, node: int, kind: str, clients: int, seconds: float) -> dict[str, Any]:
        return self.ask(node, "load", kind=kind, clients=clients, seconds=seconds)

    def first_commit(self, nodes: Sequence[int]) -> float:
        for node in nodes:
            self.request(node, "first")
        return min(float(self.answer(node)["ms"]) for node in nodes)


class EtcdGroup:
    """Three members of etcd."""

    def __init__(self, directory: Path, program: Path) -> None:
        self.program = program
        ports = free_ports(6)
        self.clients = [f"127.0.0.1:{port}" for port in ports[3:]]
        peers = [f"http://127.0.0.1:{port}" for port in ports[:3]]
        initial = ",".join(f"e{i}={peer}" for i, peer in enumerate(peers))
        self.commands = [
            [
                str(program), "server", "--name", f"e{i}", "--data-dir", str(directory / f"e{i}"), "--log-level", "error",
                "--listen-peer-urls", peers[i], "--initial-advertise-peer-urls", peers[i], "--initial-cluster", initial,
                "--listen-client-urls", f"http://{self.clients[i]}", "--advertise-client-urls", f"http://{self.clients[i]}",
            ]
            for i in range(3)
        ]  # fmt: skip  # items grouped by line
        self.processes: list[subprocess.Popen[bytes]] = [None] * 3  # type: ignore[list-item]  # filled by start
        for node in range(3):
            self.start(node)

    def start(self, node: int) -> None:
        self.processes[node] = subprocess.Popen(self.commands[node], stderr=subprocess.DEVNULL)

    def _run(self, nodes: Sequence[int], *arguments: str) -> str:
        endpoints = ",".join(self.clients[n] for n in nodes)
        command = [str(self.program), "load", "--endpoint", endpoints, *arguments]
        return subprocess.run(command, capture_output=True, check=True, text=True, timeout=120).stdout

    def leader(self) -> int:
        def find() -> list[int]:
            found = []
            for node in range(3):
                with contextlib.suppress(subprocess.CalledProcessError):
                    if self.processes[node].poll() is None and self._run([node], "--kind", "leader").strip() == "true":
                        found.append(node)
            return found

        return int(wait_for(find, "leader")[0])

    def load(self, node: int, kind: str, clients: int, seconds: float) -> dict[str, Any]:
        name = {"commit": "put", "read": "linearizable-get"}[kind]
        text = self._run([node], "--kind", name, "--clients", str(clients), "--seconds", str(seconds))
        result: dict[str, Any] = json.loads(text)
        return result

    def first_commit(self, nodes: Sequence[int]) -> float:
        return float(json.loads(self._run(nodes, "--kind", "first-put"))["max_ms"])


@contextlib.contextmanager
def running(make: Any) -> Iterator[Any]:
    """A group in a temporary directory. Its processes end with the block."""
    with tempfile.TemporaryDirectory(prefix="raft-benchmark-", dir=os.environ.get("BENCHMARK_DIRECTORY")) as directory:
        group = make(Path(directory))
        try:
            yield group
        finally:
            for process in group.processes:
                process.kill()
                process.wait()


def cpu_seconds(group: Group) -> float:
    total = 0.0
    for process in group.processes:
        fields = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        total += (int(fields[11]) + int(fields[12])) / TICKS
    return total


def measure(group: Group, on_leader: bool, kind: str, clients: int, seconds: float) -> dict[str, Any]:
    leader = group.leader()
    node = leader if on_leader else (leader + 1) % 3
    group.load(node, kind, clients, min(1.0, seconds / 3))
    before = cpu_seconds(group)
    result = group.load(node, kind, clients, seconds)
    operations = result["operations"]
    return {
        "per_second": operations / result["seconds"],
        "p50_ms": result["p50_ms"],
        "p99_ms": result["p99_ms"],
        "cpu_us": (cpu_seconds(group) - before) / operations * 1e6 if operations else None,
        "failures": result["failures"],
    }


def show(name: str, row: dict[str, Any]) -> None:
    cells = [f"{row['per_second']:10,.0f}/s", f"p50 {row['p50_ms']:7.3f} ms", f"p99 {row['p99_ms']:7.3f} ms"]
    print(
        f"{name:42}", *cells, f"{row['cpu_us']:8.1f} us CPU", f"{row['failures']} failed" if row["failures"] else "", flush=True
    )


CASES = (
    ("commit, 1 client", True, "commit", 1),
    ("commit, 256 in flight", True, "commit", 256),
    ("read index, 1 client", True, "read", 1),
    ("read index, 64 in flight", True, "read", 64),
    ("read index on a follower, 64 in flight", False, "read", 64),
)


def run_cases(groups: dict[str, Any], seconds: float, results: dict[str, Any]) -> None:
    """Run each case on each group in turn, so that other load affects all groups."""
    for title, on_leader, kind, clients in CASES:
        for name, group in groups.items():
            if kind == "read" and name.startswith("plain"):
                continue
            row = measure(group, on_leader, kind, clients, seconds)
            results[f"{name}: {title}"] = row
            show(f"{name}: {title}", row)


def fail_over(group: Group, rounds: int) -> dict[str, list[float]]:
    """Milliseconds from the loss of the leader, by kill -9 and by SIGSTOP in turn, to the next commit."""
    times: dict[str, list[float]] = {"kill -9": [], "SIGSTOP": []}
    for number in range(rounds):
        leader = group.leader()
        others = [n for n in range(3) if n != leader]
        group.first_commit(others)
        time.sleep(SETTLE_SECONDS)
        how = list(times)[number % 2]
        process = group.processes[leader]
        process.send_signal(signal.SIGKILL if how == "kill -9" else signal.SIGSTOP)
        times[how].append(group.first_commit(others))
        if how == "kill -9":
            process.wait()
            group.start(leader)
        else:
            process.send_signal(signal.SIGCONT)
        time.sleep(SETTLE_SECONDS)
    return times


def show_fail_over(name: str, times: dict[str, list[float]]) -> dict[str, Any]:
    every = [t for some in times.values() for t in some]
    for how, some in times.items():
        text = f"min {min(some):6.0f}  median {statistics.median(some):6.0f}  max {max(some):6.0f} ms"
        print(f"{name}: next commit after {how:8} {text}", flush=True)
    return {"median_ms": statistics.median(every), "max_ms": max(every), **times}


def idle(group: Group, seconds: float) -> float:
    """CPU of one idle node, in percent of one core."""
    group.leader()
    time.sleep(SETTLE_SECONDS)
    before = cpu_seconds(group)
    time.sleep(seconds)
    return (cpu_seconds(group) - before) / 3 / seconds * 100


def restart(directory: Path, entries: int) -> float:
    """Seconds until a node with this many entries since its snapshot has loaded and applied them and commits a new one."""
    group = NodeGroup.__new__(NodeGroup)
    group.addresses = {"n1": ["127.0.0.1", free_ports(1)[0]]}
    config = {"compact_entries": 10 * entries, "compact_bytes": 1 << 40, "entry_bytes_max": 1}
    group.settings = [
        {"target": "ours", "node": "n1", "addresses": group.addresses, "directory": str(directory / "n1"), "config": config}
    ]
    group.processes = [None]  # type: ignore[list-item]  # filled by start
    group.start(0)
    try:
        wait_for(lambda: group.ask(0, "status")["role"] == "leader", "leader")
        group.ask(0, "fill", count=entries)
        group.processes[0].kill()
        group.processes[0].wait()
        started = time.monotonic()
        group.start(0)
        group.first_commit([0])
        took = time.monotonic() - started
        assert group.ask(0, "status")["applied_index"] >= entries
        return took
    finally:
        group.processes[0].kill()
        group.processes[0].wait()


def build_etcd() -> Path | None:
    """The etcd of benchmarks/raft/etcd, built once per version of its sources; None without Go."""
    go = find_go()
    if go is None:
        say("no Go here: without etcd")
        return None
    source = Path(__file__).parent / "etcd"
    version = hashlib.sha256(b"".join((source / n).read_bytes() for n in ("main.go", "go.mod", "go.sum"))).hexdigest()[:12]
    with cached(f"bench-etcd-{version}", say) as (final, folder):
        if folder is not None:
            say("building etcd (once; some minutes)")
            built = folder / "bench-etcd"
            subprocess.run([str(go), "build", "-o", str(built), "."], cwd=source, check=True)
            built.rename(final)
        return final


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.raft", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=4, help="time of each measurement (default 4)")
    parser.add_argument("--only", default=",".join(PARTS), help=f"parts to run, of {','.join(PARTS)}")
    parser.add_argument("--rounds", type=int, default=20, help="leaders lost for the fail-over part (default 20)")
    parser.add_argument("--entries", type=int, default=1_000_000, help="entries for the restart part (default 1000000)")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    options = parser.parse_args(arguments)
    parts = options.only.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    results: dict[str, Any] = {}
    program = build_etcd() if "etcd" in parts else None
    makers: dict[str, Any] = {}
    if "ours" in parts:
        makers["ours"] = lambda d: NodeGroup(d, "ours")
    if program is not None:
        makers["etcd"] = lambda d: EtcdGroup(d, program)
    if "plain" in parts:
        makers["plain"] = lambda d: NodeGroup(d, "plain")
        makers["plain tuned"] = lambda d: NodeGroup(d, "plain tuned")
    with contextlib.ExitStack() as stack:
        groups = {name: stack.enter_context(running(make)) for name, make in makers.items()}
        run_cases(groups, options.seconds, results)
    if "failover" in parts:
        for name in ("ours", "etcd"):
            if name in makers:
                with running(makers[name]) as group:
                    results[f"{name}: fail-over"] = show_fail_over(name, fail_over(group, options.rounds))
    if "idle" in parts:
        with running(lambda d: NodeGroup(d, "ours")) as group:
            results["ours: idle CPU percent"] = idle(group, 10)
            print(f"ours: idle {results['ours: idle CPU percent']:.2f} % of a core a node")
    if "restart" in parts:
        with tempfile.TemporaryDirectory(prefix="raft-benchmark-", dir=os.environ.get("BENCHMARK_DIRECTORY")) as directory:
            results["ours: restart seconds"] = restart(Path(directory), options.entries)
            print(f"ours: restart with {options.entries:,} entries since the snapshot {results['ours: restart seconds']:.1f} s")
    if options.json:
        print(json.dumps(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())

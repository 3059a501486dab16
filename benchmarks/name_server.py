"""Our node beside RocketMQ's own name server: CPU per request, latency, stalls and memory, alternating in one run.

    python -m benchmarks.name_server [--seconds 4] [--rounds 3] [--only route,rate,register,stall,hostile,size,access]

The load comes from a Go program over raw epoll (benchmarks/loadgen), so that the generator is not the bottleneck. CPU is that
of the server process alone, from the kernel's accounting, divided by the answered requests. Both servers get one warm-up round
of each case and then take turns. Without RocketMQ's jars only our node is measured.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from replicated_namesrv.provision import ProvisionError, find_go, find_java
from tests.access.files import write_access_file
from tests.interop.lab import Lab, laboratory
from tests.support import provision
from tests.support.authority import Authority

TICKS = os.sysconf("SC_CLK_TCK")
ROUTE_CASES = {
    "1 connection": ["-connections", "1"],
    "16 connections": ["-connections", "16"],
    "128 connections": ["-connections", "128"],
    "16 connections x 32 in flight": ["-connections", "16", "-in-flight", "32"],
}
ACCESS_CASES = ("16 connections", "16 connections x 32 in flight")
"""Cases that are measured with access control. Over TLS the generator has one request in flight on each connection, so only the
first case is measured there."""
ACCESS_TARGET = 1.1
"""Maximum ratio of the CPU time for a route query with accessPolicy=enforce to that with accessPolicy=open."""
ACCESS_PROCESSES = 3
"""Number of nodes of each kind. There are several, because two processes with equal settings differ by up to 9 %. Their runs
count together."""
ROUTE_TARGETS = {"16 connections": 1 / 4, "128 connections": 1 / 3, "16 connections x 32 in flight": 1 / 6}
REGISTER_TARGETS = {"none": 1 / 10, "one": 1 / 2, "all": 1.0}


@dataclass
class Server:
    """One server under measurement."""

    name: str
    address: str
    pid: int

    def cpu_s(self) -> float:
        """User and system time of the process so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(") ")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def rss_mb(self, name: str = "VmRSS") -> float:
        """Resident memory; ``VmHWM``: its maximum so far."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) / 1024
        raise AssertionError(f"no {name}")


class LoadGenerator:
    """The Go program, built once."""

    def __init__(self, program: Path) -> None:
        self._program = program

    def run(self, mode: str, server: Server, *flags: str) -> dict[str, Any]:
        """The generator's figures, with the server's CPU microseconds per request as ``cpu_us``."""
        before = server.cpu_s()
        done = subprocess.run([self._program, mode, "-addr", server.address, *flags], check=False, stdout=subprocess.PIPE)
        if done.returncode:
            command = f"{mode} {' '.join(flags)}"
            raise SystemExit(f"loadgen {command} ended with code {done.returncode} against {server.name}; its reason is above")
        measured: dict[str, Any] = json.loads(done.stdout)
        measured["cpu_us"] = (server.cpu_s() - before) * 1e6 / max(measured["requests"], 1)
        return measured

    @contextlib.contextmanager
    def staying(self, mode: str, server: Server, *flags: str) -> Iterator[None]:
        """Run ``seed`` or ``idle`` until the block ends."""
        command = [str(self._program), mode, "-addr", server.address, *flags]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            if child.stdout.readline() != b"ready\n":
                raise SystemExit(f"loadgen {mode} failed against {server.name}")
            try:
                yield
            finally:
                child.communicate()


def document_of(child: "subprocess.Popen[bytes]", what: str) -> dict[str, Any]:
    """The output of a load generator at its end."""
    output, _ = child.communicate()
    if child.returncode:
        raise SystemExit(f"loadgen {what} ended with code {child.returncode}; its reason is above")
    measured: dict[str, Any] = json.loads(output)
    return measured


def build_load_generator() -> LoadGenerator:
    """Compile benchmarks/loadgen with the Go that is found."""
    go = find_go()
    if go is None:
        raise SystemExit("the load generator needs Go 1.23 or later: ./namesrv setup go")
    source = Path(__file__).parent / "loadgen"
    program = Path(tempfile.mkdtemp(prefix="loadgen-")) / "loadgen"
    subprocess.run([go, "build", "-o", program, "."], cwd=source, check=True, env={**os.environ, "GOFLAGS": "-buildvcs=false"})
    return LoadGenerator(program)


def say(text: str) -> None:
    """Print progress."""
    print(text, file=sys.stderr, flush=True)


def alternate(
    generator: LoadGenerator, servers: list[Server], rounds: int, mode: str, *flags: str
) -> dict[str, list[dict[str, Any]]]:
    """One warm-up and ``rounds`` counted runs of each server, alternating."""
    results: dict[str, list[dict[str, Any]]] = {server.name: [] for server in servers}  # several servers may have one name
    for turn in range(rounds + 1):
        for server in servers:
            measured = generator.run(mode, server, *flags)
            if measured["errors"]:
                raise SystemExit(f"{server.name}: {measured['errors']} of {measured['requests']} answers were wrong")
            if turn:
                results[server.name].append(measured)
    return results


def median(results: list[dict[str, Any]], key: str) -> float:
    """Median of one figure over the rounds."""
    middle: float = statistics.median(result[key] for result in results)
    return middle


class Report:
    """Prints rows as they are measured, for people or for scripts."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def add(self, case: str, results: dict[str, list[dict[str, Any]]], target: float | None) -> None:
        """One case of both servers: medians and the ratio."""
        row: dict[str, Any] = {"case": case, "target_ratio": target}
        for name, runs in results.items():
            row[name] = {key: round(median(runs, key), 2) for key in ("cpu_us", "p50_us", "p99_us", "max_us")}
            row[name]["per_second"] = round(statistics.median(run["requests"] / run["seconds"] for run in runs))
        if "java" in row:
            row["ratio"] = round(row["ours"]["cpu_us"] / row["java"]["cpu_us"], 3)
        self.rows.append(row)
        text = f"{case:<44}"
        for name in results:
            figures = row[name]
            text += f" | {name}: {figures['cpu_us']:>8.1f} us CPU, {figures['per_second']:>6}/s, p99 {figures['p99_us']:>8.0f} us"
        if "enforce" in row:
            row["ratio"] = round(row["enforce"]["cpu_us"] / row["open"]["cpu_us"], 3)
        if "ratio" in row:
            text += f" | ratio {row['ratio']:.3f}" + (f" (target {target:.3f})" if target else "")
        print(text, flush=True)

    def note(self, case: str, **figures: float) -> None:
        """A figure of our node alone."""
        self.rows.append({"case": case, **figures})
        print(f"{case:<44} | " + ", ".join(f"{key} {value:,.1f}" for key, value in figures.items()), flush=True)


def measure_routes(generator: LoadGenerator, servers: list[Server], arguments: argparse.Namespace, report: Report) -> None:
    """Route queries, 1,000 topics on 8 brokers."""
    with contextlib.ExitStack() as stack:
        for server in servers:
            stack.enter_context(generator.staying("seed", server, "-brokers", "8", "-topics", "1000"))
        seconds = ["-seconds", str(arguments.seconds), "-topics", "1000"]
        if "route" in arguments.only:
            for case, flags in ROUTE_CASES.items():
                results = alternate(generator, servers, arguments.rounds, "route", *flags, *seconds)
                report.add(f"route query, {case}", results, ROUTE_TARGETS.get(case))
        if "rate" in arguments.only:
            for rate in ("2000", "8000"):
                results = alternate(generator, servers, arguments.rounds, "route", "-connections", "16", "-rate", rate, *seconds)
                report.add(f"route query, {rate}/s offered", results, None)


def measure_registrations(generator: LoadGenerator, servers: list[Server], arguments: argparse.Namespace, report: Report) -> None:
    """Registrations of 1,000 topics over one connection."""
    for change, target in REGISTER_TARGETS.items():
        flags = ["-seconds", str(arguments.seconds), "-topics", "1000", "-change", change]
        results = alternate(generator, servers, arguments.rounds, "register", *flags)
        report.add(f"registration of 1,000 topics, {change} changed", results, target)


def measure_stalls(generator: LoadGenerator, server: Server, arguments: argparse.Namespace, report: Report) -> None:
    """The longest wait of a route query while a large registration is processed. All its topics are new or changed each time."""
    with generator.staying("seed", server, "-brokers", "1", "-topics", "100"):
        for topics in ("10000", "60000"):
            big = subprocess.Popen(
                [str(generator._program), "register", "-addr", server.address, "-topics", topics, "-change", "all",
                 "-broker", f"big-{topics}", "-seconds", str(arguments.seconds)],
                stdout=subprocess.PIPE,
            )  # fmt: skip  # items grouped by line
            small = generator.run("route", server, "-rate", "500", "-topics", "100", "-seconds", str(arguments.seconds))
            registered = document_of(big, f"register of {topics} topics")
            figures = {key: small[f"{key}_us"] / 1000 for key in ("p50", "p99", "max")}
            report.note(
                f"route wait beside {topics} topics registering",
                **{f"{key}_ms": value for key, value in figures.items()},
                registrations=registered["requests"],
                registration_p50_ms=registered["p50_us"] / 1000,
            )


def measure_hostile(generator: LoadGenerator, server: Server, arguments: argparse.Namespace, report: Report) -> None:
    """The longest wait of a route query while 40 connections send costly registrations of 16 MB, and the memory used after
    them.
    """
    before = server.rss_mb()
    with generator.staying("seed", server, "-brokers", "1", "-topics", "100"):
        attack = [str(generator._program), "hostile", "-addr", server.address, "-connections", "40"]
        attack += ["-seconds", str(arguments.seconds)]
        with subprocess.Popen(attack, stdout=subprocess.PIPE) as attackers:
            asked = generator.run("route", server, "-rate", "500", "-topics", "100", "-seconds", str(arguments.seconds))
            sent = document_of(attackers, "hostile")
        generator.run("route", server, "-rate", "500", "-topics", "100", "-seconds", "3")
        figures = {f"{key}_ms": asked[f"{key}_us"] / 1000 for key in ("p50", "p99", "max")}
        report.note(
            "route wait beside registrations of 16 MB", **figures, frames=sent["requests"],
            rss_before_mb=before, rss_peak_mb=server.rss_mb("VmHWM"), rss_after_mb=server.rss_mb(),
        )  # fmt: skip  # items grouped by line


def measure_size(generator: LoadGenerator, lab: Lab, arguments: argparse.Namespace, report: Report) -> None:
    """Memory with 300 brokers x 10,000 topics, and with 10,000 idle connections, each on a fresh node."""
    server = ours(lab, "full")
    with generator.staying("seed", server, "-brokers", "300", "-topics", "10000"):
        report.note("300 brokers x 10,000 topics registered", rss_mb=server.rss_mb(), cpu_s=server.cpu_s())
        flags = ["-connections", "16", "-topics", "10000", "-seconds", str(arguments.seconds)]
        generator.run("route", server, *flags)
        loaded = generator.run("route", server, "-rate", "1000", *flags)
        report.note(
            "  route query there, 1,000/s", rss_mb=server.rss_mb(), p50_ms=loaded["p50_us"] / 1e3, p99_ms=loaded["p99_us"] / 1e3
        )
    server = ours(lab, "idle")
    before = server.rss_mb()
    with generator.staying("idle", server, "-connections", "10000"):
        report.note("10,000 idle connections", rss_mb=server.rss_mb(), rss_before_mb=before)


ACCESS_FILE = """
[identities.certified]
roles = ["read"]
certificates = ["CN=certified"]
[identities.signing]
roles = ["read"]
access_keys = { signing = ["a secret of the generator"] }
[identities.generator]
roles = ["broker"]
brokers = ["*"]
networks = ["127.0.0.0/8"]
"""


def measure_access(generator: LoadGenerator, lab: Lab, arguments: argparse.Namespace, report: Report) -> None:
    """Route queries with ``accessPolicy=open`` and ``enforce``: by network, by signature, and by certificate over TLS."""
    path, authority = write_access_file(lab.folder, ACCESS_FILE), Authority(lab.folder)
    own, client = authority.files("localhost"), authority.files("certified")
    tls = {
        "tls.test.mode.enable": "false",
        "tls.server.authClient": "true",
        "tls.server.need.client.auth": "optional",
        "tls.server.certPath": str(own.certificate),
        "tls.server.keyPath": str(own.key),
        "tls.server.trustCertPath": str(authority.path),
    }
    settings = {"accessPolicy": "enforce", "accessFile": str(path), "accessKeysInPlainText": "true"}
    identities = {
        "by network": (),
        "by signature": ("-access-key", "signing", "-secret", "a secret of the generator"),
        "by certificate, TLS": ("-certificate", str(client.certificate), "-key", str(client.key)),
    }
    kinds = {"open": tls, "enforce": {**tls, **settings}}
    servers = [
        replace(ours(lab, f"{kind}-{number}", given), name=kind)
        for number in range(ACCESS_PROCESSES)
        for kind, given in kinds.items()
    ]
    with contextlib.ExitStack() as stack:
        for server in servers:
            stack.enter_context(generator.staying("seed", server, "-brokers", "8", "-topics", "1000"))
        seconds = ["-seconds", str(arguments.seconds), "-topics", "1000"]
        for identity, proof in identities.items():
            for case in ACCESS_CASES[: None if "TLS" not in identity else 1]:
                results = alternate(generator, servers, arguments.rounds, "route", *ROUTE_CASES[case], *seconds, *proof)
                report.add(f"access, route query, {identity}, {case}", results, ACCESS_TARGET)


def ours(lab: Lab, name: str, settings: dict[str, str] | None = None) -> Server:
    """One of our nodes, serving."""
    address, process = lab.namesrv(name, settings)
    return Server("ours", address, process.child.pid)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Command-line options of the benchmark."""
    parser.add_argument("--seconds", type=float, default=4, help="length of one run (default 4)")
    parser.add_argument("--rounds", type=int, default=3, help="counted runs of each case and server (default 3)")
    parser.add_argument(
        "--only", default="route,rate,register,stall,hostile,size,access", help="parts to measure, separated by commas"
    )
    parser.add_argument("--json", metavar="FILE", help="write every figure there as well")


def jars() -> Path | None:
    """The Java server's jars, if they can be provided."""
    if find_java() is None:
        return None
    try:
        return provision.rocketmq_jars("5.3.3")
    except ProvisionError as error:
        say(str(error))
        return None


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    arguments = parser.parse_args()
    generator = build_load_generator()
    folder = Path(tempfile.mkdtemp(prefix="benchmark-"))
    found = jars()
    report = Report()
    with laboratory(folder, str(find_java()), {"5.3.3": found} if found else {}, {"5.3.3": folder}) as lab:
        servers = [ours(lab, "ours")]
        if found:
            address, process = lab.java_namesrv("5.3.3")
            servers.append(Server("java", address, process.child.pid))
        else:
            say("no jars of RocketMQ 5.3.3: measuring our node alone")
        if "route" in arguments.only or "rate" in arguments.only:
            measure_routes(generator, servers, arguments, report)
        if "register" in arguments.only:
            measure_registrations(generator, servers, arguments, report)
        if "stall" in arguments.only:
            measure_stalls(generator, ours(lab, "stall"), arguments, report)
        if "hostile" in arguments.only:
            measure_hostile(generator, ours(lab, "hostile"), arguments, report)
        if "access" in arguments.only:
            measure_access(generator, lab, arguments, report)
        if "size" in arguments.only:
            measure_size(generator, lab, arguments, report)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(report.rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

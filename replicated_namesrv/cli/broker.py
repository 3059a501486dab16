"""``namesrv broker``: runs simulated brokers for trials, load and fault injection."""

import argparse
import asyncio
import json
import math
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from replicated_namesrv.cli.client import (
    ADDRESSES_VARIABLE,
    BAD,
    DEFAULT_ADDRESSES,
    FOUND,
    USAGE,
    add_credentials_arguments,
    addresses_argument,
    chosen_addresses,
    credentials_of,
    positive,
)
from replicated_namesrv.client.broker import BrokerAgent, BrokerEvent, BrokerOptions, EventKind, Heartbeat
from replicated_namesrv.client.broker_requests import BrokerIdentity, BrokerVersion
from replicated_namesrv.client.topics import BrokerTopics, TopicConfig, TopicTable, system_topics
from replicated_namesrv.errors import NamesrvError
from replicated_namesrv.wire.codes import RequestCode

HELP = "run simulated brokers that register as real brokers do"

_EXAMPLES = """\
examples:
  namesrv broker                                       one 5.3 broker with 8 topics; Ctrl-C unregisters it
  namesrv broker --brokers 300 --topics 1000 -n '10.0.0.1:9876;10.0.0.2:9876'
  namesrv broker --replicas 2 --heartbeat 322          master and slave in acting-master mode: a heartbeat a second
  namesrv broker --version 4.9 --compressed --period-ms 10000 --duration-s 60
  namesrv broker --tls-ca ca.pem --tls-cert broker-a.pem --tls-key broker-a.key --name-prefix broker-a
  namesrv broker --json | jq 'select(.event == "refused")'

exit codes: 0 every broker was registered with every name server; 1 some were not; 2 usage, or no name server answered
"""

_PROGRESS_INTERVAL_S = 1.0
_STARTING_AT_ONCE = 32
_PORT_STEP = 4
"""Distance between the ports of two brokers: each broker uses listenPort - 2, listenPort, and listenPort + 1 for HA."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.epilog = _EXAMPLES
    what = parser.add_argument_group("what runs")
    what.add_argument("--brokers", type=positive, default=1, metavar="N", help="broker groups (default 1)")
    what.add_argument("--replicas", type=positive, default=1, metavar="R", help="members of each group, ids 0 to R-1 (default 1)")
    what.add_argument(
        "--topics", type=int, default=8, metavar="T", help="topics of every group besides system topics (default 8)"
    )
    what.add_argument("--queues", type=positive, default=8, metavar="Q", help="read and write queues of a topic (default 8)")
    what.add_argument("--cluster", default="DefaultCluster", metavar="C", help="cluster name (default DefaultCluster)")
    what.add_argument("--name-prefix", default="broker-", metavar="P", help="groups are called P0, P1, … (default broker-)")
    what.add_argument("--topic-prefix", default="topic-", metavar="P", help="topics are called P0, P1, … (default topic-)")
    what.add_argument("--host", default="127.0.0.1", help="address the brokers announce (default 127.0.0.1)")
    what.add_argument(
        "--port", type=positive, default=10911, help="port of the first broker; each further one is 4 higher (default 10911)"
    )
    how = parser.add_argument_group("how it behaves")
    how.add_argument(
        "--version",
        choices=[version.value for version in BrokerVersion],
        default="5.3",
        help="RocketMQ version to imitate (default 5.3)",
    )
    how.add_argument(
        "--period-ms", type=positive, default=30_000, metavar="MS", help="milliseconds between registrations (default 30000)"
    )
    how.add_argument(
        "--heartbeat",
        choices=[kind.value for kind in Heartbeat],
        default="register",
        help="register: registrations only. 322, 904: acting-master mode of 5.3, one oneway heartbeat with this code per second "
        "and a time-out of 10 s. 322 with 4.9: query the data version before each registration",
    )
    how.add_argument(
        "--heartbeat-timeout-ms",
        type=positive,
        metavar="MS",
        help="heartbeat time-out to request from the name servers (5.3; default: 10000 with a heartbeat)",
    )
    how.add_argument("--no-force-register", action="store_true", help="ask for data versions (322), register only if one differs")
    how.add_argument("--compressed", action="store_true", help="deflate registrations")
    how.add_argument("--zone", metavar="Z", help="zone name to register with (5.3)")
    how.add_argument("--listen", action="store_true", help="listen at the announced addresses and report pushes (905)")
    how.add_argument("--seed", type=int, default=0, help="seed of all random choices (default 0)")
    run = parser.add_argument_group("running")
    run.add_argument(
        "-n",
        "--namesrv-addr",
        metavar="ADDRS",
        type=addresses_argument,
        help=f"name servers, 'host:port;host:port' or with commas (default: {ADDRESSES_VARIABLE}, else {DEFAULT_ADDRESSES})",
    )
    run.add_argument("--duration-s", type=float, metavar="S", help="stop after this many seconds (default: run until Ctrl-C)")
    run.add_argument("--json", action="store_true", help="print each event as one JSON object per line")
    add_credentials_arguments(parser.add_argument_group("identity (accessPolicy=enforce)"))
    parser.set_defaults(usage_error=parser.error)


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Returns its exit code."""
    _check(arguments)
    try:
        return asyncio.run(_Run(arguments, chosen_addresses(arguments)).run())
    except NamesrvError as error:
        print(str(error), file=sys.stderr)
        return USAGE


def _check(arguments: argparse.Namespace) -> None:
    refuse = arguments.usage_error
    version = BrokerVersion(arguments.version)
    if version is BrokerVersion.V4_9:
        if arguments.heartbeat == Heartbeat.BROKER_HEARTBEAT:
            refuse("--heartbeat 904: a 4.9 broker does not know this code; use --version 5.3, or --heartbeat register or 322")
        for flag, value in (("--heartbeat-timeout-ms", arguments.heartbeat_timeout_ms), ("--zone", arguments.zone)):
            if value is not None:
                refuse(f"{flag} {value}: 4.9 brokers do not have this option; use --version 5.3")
    if arguments.topics < 0:
        refuse(f"--topics {arguments.topics} is negative")
    if arguments.duration_s is not None and not 0 < arguments.duration_s < math.inf:
        refuse(f"--duration-s {arguments.duration_s} is not a number of seconds above 0")
    last = arguments.port + _PORT_STEP * (arguments.brokers * arguments.replicas - 1) + 1
    if last > 65_535:
        refuse(
            f"--brokers {arguments.brokers} --replicas {arguments.replicas} need ports up to {last}: lower --port, or run fewer"
        )


class _Run:
    """All simulated brokers of one command, their reports, and the progress line."""

    def __init__(self, arguments: argparse.Namespace, name_servers: Sequence[str]) -> None:
        self.arguments = arguments
        self.name_servers = name_servers
        self._credentials = credentials_of(arguments)
        self.counts: Counter[EventKind] = Counter()
        self.renewals = 0
        self.last_error = ""
        self.ever: set[tuple[str, str]] = set()
        """Pairs (broker address, name server) of which at least one registration succeeded."""
        self.agents = self._agents()

    def _agents(self) -> list[BrokerAgent]:
        arguments = self.arguments
        version = BrokerVersion(arguments.version)
        options = BrokerOptions(
            version=version,
            heartbeat=Heartbeat(arguments.heartbeat),
            register_period_ms=arguments.period_ms,
            heartbeat_timeout_ms=arguments.heartbeat_timeout_ms,
            force_register=not arguments.no_force_register,
            compressed=arguments.compressed,
            zone_name=arguments.zone,
            listen=arguments.listen,
        )
        shared = TopicTable(
            TopicConfig(f"{arguments.topic_prefix}{index}", arguments.queues, arguments.queues)
            for index in range(arguments.topics)
        )
        running: dict[str, BrokerAgent] = {}
        agents = []
        for index in range(arguments.brokers * arguments.replicas):
            group, broker_id = divmod(index, arguments.replicas)
            name, port = f"{arguments.name_prefix}{group}", arguments.port + index * _PORT_STEP
            host = arguments.host
            identity = BrokerIdentity(arguments.cluster, name, broker_id, f"{host}:{port}", f"{host}:{port + 1}")
            topics = BrokerTopics(TopicTable(system_topics(arguments.cluster, name, version)), shared)
            agents.append(
                BrokerAgent(
                    identity,
                    topics,
                    self.name_servers,
                    options=options,
                    rng=random.Random(f"{arguments.seed}/{index}"),
                    now_ms=lambda: time.time_ns() // 1_000_000,
                    observe=self._observe,
                    brokers=running,
                    credentials=self._credentials,
                )
            )
        return agents

    def _observe(self, event: BrokerEvent) -> None:
        if event.kind is EventKind.DONE:
            if event.code == RequestCode.REGISTER_BROKER and not event.oneway:
                self.ever.add((event.identity.broker_addr, event.address))
            if event.code != RequestCode.UNREGISTER_BROKER:
                self.renewals += 1
        self.counts[event.kind] += 1
        if event.kind is EventKind.REFUSED:
            self.last_error = f"{event.address} {event.detail}"
        elif event.kind in (EventKind.NOT_SENT, EventKind.UNKNOWN):
            self.last_error = event.detail
        if self.arguments.json:
            print(json.dumps(_as_json(event)), flush=True)
        elif event.kind is EventKind.PUSHED:
            print(f"push {event.code} to {event.identity.broker_name}:{event.identity.broker_id}: {event.detail}", flush=True)

    async def run(self) -> int:
        """Start all brokers, wait for the end, and stop them. Returns the exit code."""
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, ended.set)
        if not self.arguments.json:
            print(f"{len(self.agents)} brokers register with {' '.join(self.name_servers)}; Ctrl-C unregisters them", flush=True)
        progress = asyncio.create_task(self._progress())
        starting = asyncio.create_task(self._start_all())
        waiting = asyncio.create_task(ended.wait())
        try:
            await asyncio.wait((starting, waiting), return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                await starting
                await asyncio.wait((waiting,), timeout=self.arguments.duration_s)
        except OSError as error:
            print(f"cannot listen: {error}; choose other ports with --port, or omit --listen", file=sys.stderr)
            return USAGE
        finally:
            for task in (starting, waiting, progress):
                task.cancel()
            await asyncio.gather(starting, waiting, progress, return_exceptions=True)
            if sys.stderr.isatty():
                print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            await self._stop_all()
        return self._result()

    async def _start_all(self) -> None:
        limit = asyncio.Semaphore(_STARTING_AT_ONCE)

        async def start(agent: BrokerAgent) -> None:
            async with limit:
                await agent.start()

        await asyncio.gather(*(start(agent) for agent in self.agents))

    async def _stop_all(self) -> None:
        await asyncio.gather(*(agent.stop() for agent in self.agents if agent.running))

    def _result(self) -> int:
        expected = len(self.agents) * len(self.name_servers)
        text = f"{len(self.ever)} of {expected} registrations succeeded at least once"
        summary = {
            "event": "end",
            "registered": len(self.ever),
            "expected": expected,
            "counts": {k.value: n for k, n in self.counts.items()},
        }
        print(json.dumps(summary) if self.arguments.json else text, flush=True)
        if not self.ever:
            print(f"no name server of {';'.join(self.name_servers)} accepted a registration: {self.last_error}", file=sys.stderr)
            return USAGE if self.counts[EventKind.REFUSED] == 0 else BAD
        return FOUND if len(self.ever) == expected else BAD

    async def _progress(self) -> None:
        """Print progress each second: in place on a terminal, otherwise only when the text has changed."""
        before, shown = 0, ""
        terminal = sys.stderr.isatty()
        while True:
            await asyncio.sleep(_PROGRESS_INTERVAL_S)
            registered = sum(len(agent.registered) for agent in self.agents)
            rate = (self.renewals - before) / _PROGRESS_INTERVAL_S
            before = self.renewals
            errors = self.counts[EventKind.REFUSED] + self.counts[EventKind.NOT_SENT] + self.counts[EventKind.UNKNOWN]
            state = f"{registered} of {len(self.agents) * len(self.name_servers)} registrations in force, {errors} errors"
            unavailable = [reason for agent in self.agents for reason in agent.unavailable.values()]
            if errors or unavailable:
                state += f", {len(unavailable)} cannot connect (last: {(self.last_error or unavailable[-1])[:200]})"
            if terminal:
                print(f"\r\x1b[K{state}, {rate:.0f} renewals/s", end="", file=sys.stderr, flush=True)
            elif state != shown:
                print(f"{state}, {rate:.0f} renewals/s", file=sys.stderr, flush=True)
            shown = state


def _as_json(event: BrokerEvent) -> dict[str, Any]:
    version = event.data_version
    return {
        "event": event.kind.value,
        "time_ms": time.time_ns() // 1_000_000,
        "sequence": event.sequence,
        "cluster": event.identity.cluster_name,
        "broker": event.identity.broker_name,
        "brokerId": event.identity.broker_id,
        "brokerAddr": event.identity.broker_addr,
        "nameServer": event.address,
        "code": event.code,
        "oneway": event.oneway,
        "dataVersion": None if version is None else version._asdict(),
        "topics": event.topics,
        "detail": event.detail,
    }

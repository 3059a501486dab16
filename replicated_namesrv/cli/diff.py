"""``namesrv diff``: compares the answers of all name servers of a list.

It asks every server at the same time, each over its own connection. It asks for brokers, topics, the route of every topic that
any server has, the KV config, and the settings on which answers depend. Only answers are compared: a server that did not answer
is reported separately and does not count as empty. A setting that a server does not have (RocketMQ 4.9) is not compared there.
Order in lists is ignored. A broker that registers during the comparison can appear as a difference; the next run does not show
it.

RocketMQ's protocol has no request for the names of the KV namespaces. So they come from the admin ports of the servers; each
namespace that any server has is then compared on all of them. ``ORDER_TOPIC_CONFIG`` and those of ``--namespace`` are always
compared. A server whose namespaces are unknown is named. RocketMQ's own name servers have no admin port, so they count as
compared. One of our servers with unknown namespaces counts as compared only with ``--namespace``.
"""

import argparse
import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import quote

from replicated_namesrv.cli.admin import Admin, add_admin_options, admin_of, ask_all, given_addresses
from replicated_namesrv.cli.client import (
    ADDRESSES_VARIABLE,
    BAD,
    FOUND,
    USAGE,
    ProgressLine,
    add_client_arguments,
    perm_text,
    positive,
    print_json,
    run_with_servers,
)
from replicated_namesrv.cli.route import as_json as route_as_json
from replicated_namesrv.cli.route import broker_as_json
from replicated_namesrv.client.nameservers import NameServers
from replicated_namesrv.client.queries import (
    ORDER_TOPIC_CONFIG,
    cluster_info_request,
    config_request,
    list_kv_request,
    read_cluster_info,
    read_config,
    read_kv_table,
    read_route,
    read_topics,
    route_request,
    topics_request,
)
from replicated_namesrv.client.remoting import RemotingCommand
from replicated_namesrv.errors import NamesrvError, SettingError
from replicated_namesrv.model import BrokerData, TopicRouteData
from replicated_namesrv.settings import ROWS

HELP = "show where the answers of several name servers differ"

_EXAMPLES = """\
  namesrv diff -n '10.0.0.1:9876;10.0.0.2:9876;10.0.0.3:9876'
  namesrv diff --json | jq .topics
  namesrv diff --namespace MY_NAMESPACE -n '10.0.0.1:9876;10.0.0.9:9876'    one of them is RocketMQ's own name server
  until namesrv diff >/dev/null; do sleep 1; done      wait until all of them agree
"""

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")

_TOPICS_IN_FLIGHT = 64
_ADMIN_DISTANCE = 10
"""Default distance from the number of a node's RocketMQ port to the number of its admin port."""
_SHARED_SETTINGS = tuple(row.name for row in ROWS.values() if row.replicated)
"""Settings on which answers of name servers depend."""


def add_comparison_arguments(parser: argparse.ArgumentParser) -> None:
    """Options that say what is compared."""
    parser.add_argument(
        "--namespace",
        action="append",
        default=[],
        metavar="NS",
        help="compare this KV namespace even if no admin port lists it; may be given several times",
    )
    add_admin_options(parser, f"the name servers' ports plus {_ADMIN_DISTANCE}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_comparison_arguments(parser)
    parser.add_argument(
        "--limit",
        type=_limit,
        default=20,
        metavar="N",
        help="show at most N differences of each kind; 0 shows all (default 20)",
    )
    codes = "0 all servers answered and agree; 1 answers differ; 2 usage, or no difference was found but not all was compared"
    add_client_arguments(parser, _EXAMPLES, codes)


def _limit(text: str) -> int:
    return 0 if text == "0" else positive(text)


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Returns its exit code."""
    return run_with_servers(arguments, _diff)


class Comparison:
    """Answers that differ, by question and server, and the servers that did not answer, with the reason."""

    def __init__(self, servers: NameServers, progress: ProgressLine) -> None:
        self.unreachable: dict[str, str] = {}
        self.brokers: dict[str, dict[str, BrokerData | None]] = {}
        self.topics: dict[str, dict[str, TopicRouteData | None]] = {}
        self.keys: dict[tuple[str, str], dict[str, str | None]] = {}
        self.settings: dict[str, dict[str, str | None]] = {}
        self.ours: set[str] = set()
        """The servers that are not RocketMQ's."""
        self.independent: set[str] = set()
        """Those of them that run in AP, each with namespaces of its own."""
        self._servers = servers
        self._progress = progress

    async def run(self, namespaces: Sequence[str]) -> None:
        """Ask and compare everything. Memory holds the differences and the lists of topics, but not the routes."""
        infos = await self._ask(cluster_info_request(), read_cluster_info)
        brokers = {address: {data.broker_name: data for data in info.broker_addr_table} for address, info in infos.items()}
        self.brokers = _differences(brokers)
        lists = await self._ask(topics_request(), read_topics)
        await self._compare_topics(sorted({topic for answer in lists.values() for topic in answer.topic_list}))
        for namespace in dict.fromkeys(namespaces):
            tables = await self._ask(list_kv_request(namespace), read_kv_table)
            found = _differences({address: table or {} for address, table in tables.items()})
            self.keys |= {(namespace, key): values for key, values in found.items()}
        configs = await self._ask(config_request(), read_config)
        self.ours = {address for address, config in configs.items() if is_ours(config)}
        self.independent = {address for address in self.ours if configs[address]["mode"] == "ap"}
        for name in _SHARED_SETTINGS:
            answers: dict[str, str | None] = {address: config[name] for address, config in configs.items() if name in config}
            if not _agree(answers):
                self.settings[name] = answers
        self._drop_unreachable()

    @property
    def compared(self) -> list[str]:
        """The servers that answered everything."""
        return [address for address in self._servers.addresses if address not in self.unreachable]

    @property
    def differs(self) -> bool:
        """Whether any two answers differ."""
        return bool(self.brokers or self.topics or self.keys or self.settings)

    async def _ask(self, request: RemotingCommand, read: Callable[[RemotingCommand], T]) -> dict[str, T]:
        """The answers of the servers that answered everything so far. A server that fails is excluded from then on."""
        asked = [address for address in self._servers.addresses if address not in self.unreachable]
        answers: dict[str, T] = {}
        for outcome in await self._servers.ask_all(request, asked):
            try:
                answers[outcome.address] = read(outcome.answer())
            except NamesrvError as error:
                self.unreachable.setdefault(outcome.address, str(error))
        return answers

    async def _compare_topics(self, topics: Sequence[str]) -> None:
        remaining = iter(topics)
        done = 0

        async def worker() -> None:
            nonlocal done
            for topic in remaining:
                routes = await self._ask(route_request(topic), read_route)
                if not _agree(routes):
                    self.topics[topic] = routes
                done += 1
                self._progress.show(f"{done} of {len(topics)} topics compared")

        await asyncio.gather(*(worker() for _ in range(_TOPICS_IN_FLIGHT)))
        self.topics = dict(sorted(self.topics.items()))

    def _drop_unreachable(self) -> None:
        """Exclude a server that failed part-way from all results, because its remaining answers are unknown."""
        tables: tuple[dict[Any, Any], ...] = (self.brokers, self.topics, self.keys, self.settings)
        for table in tables:
            for name, answers in list(table.items()):
                table[name] = {address: answer for address, answer in answers.items() if address not in self.unreachable}
                if _agree(table[name]):
                    del table[name]


def _differences(tables: Mapping[str, Mapping[K, V]]) -> dict[K, dict[str, V | None]]:
    """For each key whose values are not the same in all tables: the value of each table, None where it is missing."""
    keys = {key: None for table in tables.values() for key in table}
    found = {key: {address: table.get(key) for address, table in tables.items()} for key in keys}
    return {key: values for key, values in found.items() if not _agree(values)}


def _agree(answers: Mapping[str, object]) -> bool:
    values = list(answers.values())
    return all(value == values[0] for value in values[1:])


async def _diff(servers: NameServers, arguments: argparse.Namespace) -> int:
    """Compare all servers. Raises SettingError if there are fewer than two."""
    if len(servers.addresses) < 2:
        raise SettingError(
            f"diff compares name servers and was given one, {servers.addresses[0]}: give two or more with "
            f"-n 'host:port;host:port' or in {ADDRESSES_VARIABLE}"
        )
    admin = admin_of(arguments)
    ports = given_addresses(arguments, admin)
    namespaces, unlisted = await known_namespaces(admin, ports, servers.addresses, arguments.namespace)
    comparison = Comparison(servers, ProgressLine())
    await comparison.run(namespaces)
    if ports is not None and not unlisted and len(set(ports)) < len(comparison.independent):
        count = len(comparison.independent)
        unlisted["--admin"] = f"{len(set(ports))} admin ports were given for {count} independent nodes; give all with --admin"
    skipped = not arguments.namespace and _skipped(comparison, unlisted, ports is not None)
    if arguments.json:
        _print_json(comparison, comparison.compared, unlisted, not skipped)
    else:
        print_comparison(comparison, arguments.limit, is_complete=not unlisted)
        for reason in unlisted.values():
            print(f"KV namespaces unknown: {reason}; or give the namespaces with --namespace")
    if comparison.differs:
        return BAD
    return USAGE if comparison.unreachable or skipped else FOUND


def _skipped(comparison: Comparison, unlisted: Mapping[str, str], are_given: bool) -> bool:
    """Whether the KV config of a server of ours was not compared. ``are_given``: the admin ports come from the user, so all of
    them are ports of our servers."""
    return bool(unlisted) if are_given else any(admin_port_of(address) in unlisted for address in comparison.ours)


def is_ours(config: Mapping[str, str]) -> bool:
    """Whether a server with these settings is ours, not RocketMQ's."""
    return "mode" in config and "nodeId" in config


def admin_port_of(address: str) -> str:
    """The admin address of a server, if its ports have the usual distance."""
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) + _ADMIN_DISTANCE}"


async def known_namespaces(
    admin: Admin, ports: Sequence[str] | None, servers: Sequence[str], more: Sequence[str]
) -> tuple[list[str], dict[str, str]]:
    """The namespaces to compare, and for each admin port that did not list its namespaces the reason. ``ports`` None: the admin
    ports are derived from ``servers``.
    """
    listed, unlisted = await asyncio.to_thread(_namespaces, admin, ports or tuple(map(admin_port_of, servers)))
    return list(dict.fromkeys([ORDER_TOPIC_CONFIG, *more, *listed])), unlisted


def _namespaces(admin: Admin, addresses: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """All KV namespaces that the admin ports list, and for each port that did not answer the reason."""
    found: dict[str, None] = {}
    failed: dict[str, str] = {}
    for address, names in zip(addresses, ask_all(addresses, lambda address: _namespaces_of(admin, address)), strict=True):
        if isinstance(names, NamesrvError):
            failed[address] = str(names)
        else:
            found |= dict.fromkeys(names)
    return sorted(found), failed


def _namespaces_of(admin: Admin, address: str) -> list[str]:
    """Raises NamesrvError."""
    names, after = list[str](), ""
    while True:
        page = admin.ask(address, f"/v1/kv-namespaces?limit=1000{after}")
        names += [row["namespace"] for row in page["namespaces"]]
        if page["next"] is None:
            return names
        after = f"&after={quote(page['next'])}"


def _print_json(comparison: Comparison, compared: Sequence[str], unlisted: Mapping[str, str], is_complete: bool) -> None:
    print_json(
        {
            "equal": not comparison.differs and not comparison.unreachable and is_complete,
            "compared": list(compared),
            "unreachable": comparison.unreachable,
            "brokers": {
                name: {address: data and broker_as_json(data) for address, data in answers.items()}
                for name, answers in comparison.brokers.items()
            },
            "topics": {
                topic: {address: route and route_as_json(route) for address, route in answers.items()}
                for topic, answers in comparison.topics.items()
            },
            "keys": [
                {"namespace": namespace, "key": key, "values": values} for (namespace, key), values in comparison.keys.items()
            ],
            "settings": comparison.settings,
            "namespacesUnknown": unlisted,
        }
    )


def print_comparison(comparison: Comparison, limit: int, is_complete: bool = True) -> None:
    """Print the differences, at most ``limit`` of each kind (0: all). ``is_complete``: whether all KV namespaces are known."""
    compared = comparison.compared
    for address, reason in comparison.unreachable.items():
        print(f"not compared: {address}: {reason}")
    keys = {f"{namespace}/{key}": values for (namespace, key), values in comparison.keys.items()}
    _print_differences("broker", comparison.brokers, limit, "not registered", _broker_text)
    _print_differences("topic", comparison.topics, limit, "no route", _route_text)
    _print_differences("key", keys, limit, "no such key", str)
    _print_differences("setting", comparison.settings, limit, "no such setting", str)
    counts = (
        f"{len(comparison.brokers)} brokers, {len(comparison.topics)} topics, {len(comparison.keys)} keys, "
        f"{len(comparison.settings)} settings differ"
    )
    if comparison.differs:
        print(f"{counts} between {' '.join(compared)}")
    elif compared:
        equal = "equal" if is_complete else "equal in everything that was compared"
        print(
            f"{equal}: {' '.join(compared)}" if len(compared) > 1 else f"only {compared[0]} answered: nothing to compare it with"
        )


def _print_differences(
    kind: str, differences: Mapping[str, Mapping[str, V | None]], limit: int, missing: str, text: Callable[[V], str]
) -> None:
    """Print the differences. Servers with equal answers share a line."""
    shown = list(differences.items())[: limit or None]
    for name, answers in shown:
        alike: dict[V | None, list[str]] = {}
        for address, answer in answers.items():
            alike.setdefault(answer, []).append(address)
        print(f"{kind} {name}")
        for answered, addresses in alike.items():
            print(f"  {' '.join(addresses)}: {missing if answered is None else text(answered)}")
    if len(shown) < len(differences):
        print(f"… and {len(differences) - len(shown)} more {kind}s: --limit 0 and --json show all")


def _broker_text(data: BrokerData) -> str:
    members = " ".join(f"{broker_id}={addr}" for broker_id, addr in data.broker_addrs)
    acting = ", acting master" if data.enable_acting_master else ""
    zone = f", zone {data.zone_name}" if data.zone_name else ""
    return f"cluster {data.cluster}, {members or 'no address'}{acting}{zone}"


def _route_text(route: TopicRouteData) -> str:
    members = {
        data.broker_name: " ".join(f"{broker_id}={addr}" for broker_id, addr in data.broker_addrs) for data in route.broker_datas
    }
    parts = [
        f"{name} {perm_text(perm)} read {read} write {write} flag {flag} at {members.get(name, 'nowhere')}"
        for name, (perm, read, flag, write) in route.queue_datas
    ]
    if route.order_topic_conf is not None:
        parts.append(f"order {route.order_topic_conf}")
    mappings = route.topic_queue_mapping_by_broker or ()
    parts += [f"mapping of {name}: {dict(info.curr_id_map)} epoch {info.epoch}" for name, info in mappings]
    parts += [f"filter servers of {addr}: {' '.join(filters)}" for addr, filters in route.filter_server_table]
    return "; ".join(parts)

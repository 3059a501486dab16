"""``namesrv adopt``: replaces RocketMQ's name servers by ours (``mode=ap``) at the same addresses, one at a time.

It can also replace ours by RocketMQ's.

Without ``--swap`` it reports: which servers of the list are RocketMQ's, whether all give the same answers, and which settings
differ from our defaults. ``--save DIR`` writes the files with which a new node begins: KV config and shared settings.

With ``--swap COMMAND`` it replaces the servers of the list one after the other. For each server:

1. It checks that all servers answer and agree. If they do not, it stops, because it could not attribute a later difference to the
   swap.
2. It runs COMMAND, which stops the server at the address and starts the other kind there.
3. It waits until that server is of the other kind, every broker has registered there, and its answers equal those of the others.

So at most one server is incomplete at any time, and clients use the others meanwhile. To go back, run the command with a
COMMAND that does the opposite, and that also replaces the old kvConfig.json of RocketMQ's server (``namesrv kv export``).

RocketMQ's servers do not list their KV namespaces. So only ``ORDER_TOPIC_CONFIG``, those of ``--namespace``, and those that
servers of ours list are compared and saved.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence, Sized
from pathlib import Path
from typing import Any, NamedTuple

from replicated_namesrv.cli.admin import admin_of, given_addresses
from replicated_namesrv.cli.client import (
    BAD,
    FOUND,
    USAGE,
    ProgressLine,
    add_client_arguments,
    print_json,
    print_table,
    run_with_servers,
    seconds,
)
from replicated_namesrv.cli.diff import (
    Comparison,
    add_comparison_arguments,
    admin_port_of,
    is_ours,
    known_namespaces,
    print_comparison,
)
from replicated_namesrv.cli.operator_script import ScriptError, address_values, filled, run_script, words_of
from replicated_namesrv.client.nameservers import NameServers
from replicated_namesrv.client.queries import config_request, list_kv_request, read_config, read_kv_table
from replicated_namesrv.compat.kv_file import KVTable, write_kv_file
from replicated_namesrv.errors import NamesrvError, SettingError
from replicated_namesrv.files import write_atomically
from replicated_namesrv.settings import OWN, ROWS, RUN_TIME_FILE
from replicated_namesrv.wire.properties import store_properties

HELP = "replace RocketMQ's own name servers by ours one at a time, or go back"

WITHIN_S = 180
LOOK_PAUSE_S = 0.5
DIFFERENCES_SHOWN = 10
_NEVER_LISTED = "RocketMQ's name servers do not list their KV namespaces"
_REMEDY = "See the log of the new server. If it serves, repeat the command; else start the old server again"
OURS, JAVA, SILENT = "ours", "rocketmq", "no answer"
_PER_MACHINE = ("rocketmqHome", "kvConfigPath", "configStorePath", "listenPort", "bindAddress")
"""Settings that contain paths or addresses of one machine."""

_EXAMPLES = """\
  namesrv adopt -n '10.0.0.1:9876;10.0.0.2:9876'                  compare the servers
  namesrv adopt -n '10.0.0.1:9876;10.0.0.2:9876' --save start/    files for the dataDir of each new node
  namesrv adopt -n '10.0.0.1:9876;10.0.0.2:9876' --to ours \\
      --swap 'ssh root@{host} systemctl stop mqnamesrv "&&" systemctl start namesrv'
  namesrv adopt -n '10.0.0.1:9876;10.0.0.2:9876' --only 10.0.0.2:9876 --to rocketmq --swap './back.sh {host} {port}'

COMMAND runs on this machine, without a shell. {host}, {port} and {address} stand for the server. COMMAND has to return when the
new server has been started. Start each new server with needWaitForService=true, also if it is RocketMQ's own. Then it answers no
route query for waitSecondsForService seconds, so no client reads an incomplete answer.
"""


class AdoptError(NamesrvError):
    """Nothing was saved, or the replacement stopped before the end of the list."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("--save", type=Path, metavar="DIR", help=f"write kvConfig.json and {RUN_TIME_FILE} for new nodes to DIR")
    parser.add_argument("--swap", metavar="COMMAND", help="replace the servers one after the other; COMMAND replaces one")
    parser.add_argument(
        "--to",
        choices=(OURS, JAVA),
        help="with --swap: what COMMAND starts; servers that are of this kind already are left alone",
    )
    parser.add_argument("--only", metavar="ADDRESS", action="append", default=[], help="swap only this server; may be repeated")
    parser.add_argument(
        "--within", type=seconds, default=WITHIN_S, metavar="SECONDS", help=f"time for each swap (default {WITHIN_S})"
    )
    add_comparison_arguments(parser)
    codes = "0 all servers agree, and were swapped if asked; 1 they differ, or a swap failed; 2 usage, or not all was compared"
    add_client_arguments(parser, _EXAMPLES, codes)


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Returns its exit code."""
    return run_with_servers(arguments, _run)


async def _run(servers: NameServers, arguments: argparse.Namespace) -> int:
    """Raises SettingError, StorageError."""
    try:
        return await _adopt(servers, arguments)
    except (AdoptError, ScriptError) as error:
        print(f"namesrv adopt: {error}", file=sys.stderr)
        return BAD


async def _adopt(servers: NameServers, arguments: argparse.Namespace) -> int:
    """Raises SettingError, AdoptError, StorageError."""
    if len(servers.addresses) < 2:
        raise SettingError("adopt compares each server with the others and was given one: give all with -n 'host:port;host:port'")
    if unknown := [address for address in arguments.only if address not in servers.addresses]:
        raise SettingError(f"--only {unknown[0]}: not in the list of -n ({', '.join(servers.addresses)})")
    if arguments.swap is not None:
        words_of("--swap", arguments.swap)
    if (arguments.swap is None) != (arguments.to is None):
        raise SettingError(f"give --swap COMMAND together with --to {OURS} or --to {JAVA}, which says what COMMAND starts")
    configs = await _configs(servers)
    comparison = await _compare(servers, arguments)
    known = await _known(servers, arguments, configs)
    for reason in known.unlisted.values():
        print(f"KV namespaces unknown: {reason}; or give the namespaces with --namespace", file=sys.stderr)
    is_complete = not known.unlisted or bool(arguments.namespace)
    if arguments.save is not None and not is_complete:
        raise AdoptError("nothing was saved: KV namespaces are unknown")
    if arguments.save is not None:
        await _save(servers, arguments, comparison, configs, known)
    swapped: list[dict[str, Any]] = []
    if arguments.swap:
        for address in arguments.only or servers.addresses:
            row = await _swap(servers, arguments, address)
            if row is not None:
                swapped.append(row)
            elif not arguments.json:
                print(f"{address}: it is {arguments.to} already")
        configs, comparison = await _configs(servers), await _compare(servers, arguments)
        known = await _known(servers, arguments, configs)
    kinds = {address: _kind(configs.get(address)) for address in servers.addresses}
    if arguments.json:
        print_json(
            {
                "servers": kinds,
                "equal": not comparison.differs and not comparison.unreachable and is_complete,
                "namespaces": known.names,
                "namespacesUnknown": {**known.unlisted, **dict.fromkeys(known.unlisting, _NEVER_LISTED)},
                "settings": _notable(configs),
                "swapped": swapped,
                "savedTo": None if arguments.save is None else str(arguments.save),
            }
        )
    else:
        _report(servers, kinds, configs, comparison, known)
    if comparison.differs:
        return BAD
    return FOUND if is_complete and not comparison.unreachable else USAGE


async def _configs(servers: NameServers) -> dict[str, dict[str, str]]:
    """Settings of the servers that answer."""
    found = {}
    for outcome in await servers.ask_all(config_request()):
        try:
            found[outcome.address] = read_config(outcome.answer())
        except NamesrvError:
            continue
    return found


def _kind(config: dict[str, str] | None) -> str:
    if config is None:
        return SILENT
    return OURS if is_ours(config) else JAVA


async def _compare(servers: NameServers, arguments: argparse.Namespace) -> Comparison:
    namespaces, _ = await _namespaces(servers, arguments)
    comparison = Comparison(servers, ProgressLine())
    await comparison.run(namespaces)
    return comparison


async def _namespaces(servers: NameServers, arguments: argparse.Namespace) -> tuple[list[str], dict[str, str]]:
    """The result of ``known_namespaces``."""
    admin = admin_of(arguments)
    return await known_namespaces(admin, given_addresses(arguments, admin), servers.addresses, arguments.namespace)


class _Known(NamedTuple):
    """The KV namespaces that are compared and saved. Others may exist on servers that do not list theirs."""

    names: list[str]
    unlisted: dict[str, str]
    """For each admin port of ours that does not list its namespaces, the reason."""
    unlisting: list[str]
    """RocketMQ's servers, which never list them."""

    @property
    def remark(self) -> str:
        """What was left out, and the remedy. Empty: nothing that is known."""
        return f"{_NEVER_LISTED} ({' '.join(self.unlisting)}): name others with --namespace" if self.unlisting else ""


async def _known(servers: NameServers, arguments: argparse.Namespace, configs: dict[str, dict[str, str]]) -> _Known:
    names, unlisted = await _namespaces(servers, arguments)
    kinds = {address: _kind(configs.get(address)) for address in servers.addresses}
    without = {admin_port_of(address) for address, kind in kinds.items() if kind != OURS}
    reasons = {admin: reason for admin, reason in unlisted.items() if admin not in without}
    return _Known(names, reasons, [address for address, kind in kinds.items() if kind == JAVA])


def _notable(configs: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    """Settings of RocketMQ's servers that have another value than our default, by name and server."""
    found: dict[str, dict[str, str]] = {}
    for address, config in configs.items():
        for name, text in config.items() if _kind(config) == JAVA else ():
            row = ROWS.get(name)
            if row is not None and row.group != OWN and name not in _PER_MACHINE and text != row.show(row.default):
                found.setdefault(name, {})[address] = text
    return found


async def _save(
    servers: NameServers,
    arguments: argparse.Namespace,
    comparison: Comparison,
    configs: dict[str, dict[str, str]],
    known: _Known,
) -> None:
    """Raises AdoptError, SettingError, StorageError."""
    if comparison.keys or comparison.settings or comparison.unreachable:
        raise AdoptError(
            "nothing was saved: the servers differ in KV config or settings, or did not all answer; make them equal first "
            "('namesrv diff' compares them)"
        )
    folder: Path = arguments.save
    if (folder / "kvConfig.json").exists() or (folder / RUN_TIME_FILE).exists():
        raise SettingError(f"--save {folder}: it has a kvConfig.json or a {RUN_TIME_FILE} already; give an empty folder")
    table: KVTable = {}
    for namespace in known.names:
        _, response = await servers.query(list_kv_request(namespace))
        entries = read_kv_table(response)
        if entries:
            table[namespace] = dict(entries)
    config = next(iter(configs.values()))
    shared = {row.name: config[row.name] for row in ROWS.values() if row.replicated and row.name in config}
    write_kv_file(folder / "kvConfig.json", table)
    write_atomically(folder / RUN_TIME_FILE, store_properties(shared))
    if not arguments.json:
        entries_of = f"{sum(map(len, table.values()))} KV entries of the namespaces {', '.join(known.names)}"
        print(f"saved {entries_of}, and {len(shared)} shared settings to {folder}")
        if known.remark:
            print(f"entries of other namespaces were not saved: {known.remark}, and another folder")


async def _swap(servers: NameServers, arguments: argparse.Namespace, address: str) -> dict[str, Any] | None:
    """Swap one server. None: it is of the wanted kind already. Raises AdoptError, ScriptError."""
    if _kind((await _configs(servers)).get(address)) == arguments.to:
        return None
    before = await _compare(servers, arguments)
    if before.differs or before.unreachable:
        if not arguments.json:
            print_comparison(before, DIFFERENCES_SHOWN)
        raise AdoptError(
            f"{address} was not swapped: the servers differ or do not all answer; repeat the command when 'namesrv diff' says "
            "that they are equal"
        )
    kind = _kind((await _configs(servers)).get(address))
    if kind == arguments.to:  # the first answer was lost
        return None
    started = time.monotonic()
    words = filled(words_of("--swap", arguments.swap), address_values(address))
    await run_script("--swap", address, words, arguments.within)
    progress = ProgressLine()
    waits_for, remedy = "the new server to answer", _REMEDY
    while time.monotonic() - started < arguments.within:
        now = _kind((await _configs(servers)).get(address))
        if now == kind:
            waits_for = f"the server to be replaced (it is still {kind})"
        elif now == arguments.to:
            comparison = await _compare(servers, arguments)
            if not comparison.differs and not comparison.unreachable:
                progress.clear()
                took_s = round(time.monotonic() - started, 1)
                if not arguments.json:
                    print(
                        f"{address}: {kind} -> {now} in {took_s} s; all brokers have registered, all answers are equal",
                        flush=True,
                    )
                return {"address": address, "from": kind, "to": now, "seconds": took_s}
            waits_for = _missing(comparison)
            remedy = _kv_remedy(address, servers.addresses) if comparison.keys else _REMEDY
        progress.show(f"{address}: waiting for {waits_for}")
        await asyncio.sleep(LOOK_PAUSE_S)
    progress.clear()
    raise AdoptError(
        f"{address}: after {arguments.within} s still waiting for {waits_for}; the other servers were not touched. {remedy}"
    )


def _kv_remedy(address: str, addresses: Sequence[str]) -> str:
    """What to do if the new server at ``address`` has other KV entries than the others."""
    other = next(each for each in addresses if each != address)
    return (
        "The new server has other KV entries, probably those of an old kvConfig.json: stop it, replace this file by that of "
        f"'namesrv kv export FILE -n {other}', and start it; or change its entries with 'namesrv kv'. Let the command of --swap "
        "replace the file on the other servers, too. When 'namesrv diff' says that the servers are equal, repeat the command"
    )


def _missing(comparison: Comparison) -> str:
    if comparison.unreachable:
        address, reason = next(iter(comparison.unreachable.items()))
        return f"{address} ({reason})"
    parts: dict[str, Sized] = {
        "brokers": comparison.brokers,
        "topics": comparison.topics,
        "keys": comparison.keys,
        "settings": comparison.settings,
    }
    return "equal answers: " + ", ".join(f"{len(table)} {kind} differ" for kind, table in parts.items() if table)


def _report(
    servers: NameServers,
    kinds: dict[str, str],
    configs: dict[str, dict[str, str]],
    comparison: Comparison,
    known: _Known,
) -> None:
    print_table(("name server", "kind"), [(address, kinds[address]) for address in servers.addresses])
    for name, values in sorted(_notable(configs).items()):
        shared = "; --save carries it over" if ROWS[name].replicated else ""
        print(f"setting {name}: {', '.join(sorted(set(values.values())))} at {', '.join(values)}{shared}")
    if _notable(configs):
        print("start the new nodes with the same properties file (-c), so that they have the other settings, too")
    print_comparison(comparison, DIFFERENCES_SHOWN, is_complete=not known.unlisted and not known.unlisting)
    if known.remark:
        print(f"KV namespaces compared: {', '.join(known.names)}. {known.remark}")

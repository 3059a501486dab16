"""``namesrv config``: shows and changes the settings of running name servers."""

import argparse
import difflib
from collections.abc import Mapping

from replicated_namesrv.cli.client import (
    BAD,
    FOUND,
    USAGE,
    add_client_arguments,
    print_json,
    print_table,
    report_writes,
    run_with_servers,
)
from replicated_namesrv.client.nameservers import NameServers
from replicated_namesrv.client.queries import RefusedError, config_request, read_config, read_done, update_config_request
from replicated_namesrv.settings import ROWS
from replicated_namesrv.wire.properties import store_properties

HELP = "show the settings of running name servers, or change them"

_EXAMPLES = """\
  namesrv config get                                   every setting of every server; marks where servers differ
  namesrv config get orderMessageEnable supportActingMaster
  namesrv config set orderMessageEnable=true           at every server of the list
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("action", choices=("get", "set"))
    parser.add_argument("settings", nargs="*", metavar="KEY[=VALUE]", help="get: only these keys; set: what to change")
    add_client_arguments(parser, _EXAMPLES)
    parser.set_defaults(usage_error=parser.error)


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Returns its exit code."""
    if arguments.action == "get":
        for word in arguments.settings:
            if "=" in word:
                arguments.usage_error(f"'config get' takes keys, not {word!r}: did you mean 'config set {word}'?")
        return run_with_servers(arguments, _get)
    if not arguments.settings:
        arguments.usage_error("'config set' needs at least one KEY=VALUE")
    for word in arguments.settings:
        if not word.partition("=")[0] or "=" not in word or "\n" in word:
            arguments.usage_error(f"'config set' needs KEY=VALUE on one line, got {word!r}")
        if (problem := _problem(*word.split("=", 1))) is not None:
            arguments.usage_error(problem)
    return run_with_servers(arguments, _set)


def _problem(key: str, text: str) -> str | None:
    """The reason why a server would silently ignore this change, else None."""
    row = ROWS.get(key)
    if row is None:
        near = difflib.get_close_matches(key, ROWS, n=1)
        return f"unknown setting '{key}'" + (f"; did you mean {near[0]}?" if near else "")
    try:
        (row.parse_change if row.live else row.parse_strictly)(text)
    except ValueError as cause:
        return f"{key}={text}: not a value of this setting; {cause}"
    return None


async def _get(servers: NameServers, arguments: argparse.Namespace) -> int:
    tables: dict[str, Mapping[str, str]] = {}
    failures: dict[str, str] = {}
    for outcome in await servers.ask_all(config_request()):
        if outcome.response is None:
            failures[outcome.address] = str(outcome.error)
            continue
        try:
            tables[outcome.address] = read_config(outcome.response)
        except RefusedError as error:
            failures[outcome.address] = str(error)
    keys = arguments.settings or sorted({key for table in tables.values() for key in table})
    chosen = {address: {key: table[key] for key in keys if key in table} for address, table in tables.items()}
    if arguments.json:
        print_json({"nameServers": chosen, "failed": failures})
    else:
        _print(keys, chosen, failures)
    if not tables:
        return USAGE
    return FOUND if not failures and all(key in table for key in keys for table in chosen.values()) else BAD


def _print(keys: list[str], tables: Mapping[str, Mapping[str, str]], failures: Mapping[str, str]) -> None:
    rows = []
    for key in keys:
        values = {address: table.get(key, "(no such setting)") for address, table in tables.items()}
        if len(set(values.values())) == 1:
            rows.append((key, next(iter(values.values())), "all" if len(values) > 1 else next(iter(values))))
        else:
            rows.extend((key, value, address) for address, value in values.items())
    if rows:
        print_table(("setting", "value", "name server"), rows)
    for address, failure in failures.items():
        print(f"{address}: no answer: {failure}")


async def _set(servers: NameServers, arguments: argparse.Namespace) -> int:
    text = store_properties(dict(word.split("=", 1) for word in arguments.settings)).decode()
    return report_writes(await servers.send_to_all(update_config_request(text)), read_done, arguments)

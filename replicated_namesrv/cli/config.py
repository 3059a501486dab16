"""``namesrv config``: shows and changes the settings of running name servers."""

import argparse
import difflib
import sys
from collections.abc import Mapping
from pathlib import Path

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
from replicated_namesrv.cli.kv_export import STDOUT, refuse_existing
from replicated_namesrv.client.nameservers import NameServers
from replicated_namesrv.client.queries import RefusedError, config_request, read_config, read_done, update_config_request
from replicated_namesrv.errors import BodyError, StorageError
from replicated_namesrv.files import write_atomically
from replicated_namesrv.settings import NEVER_BY_REMOTING, ROWS
from replicated_namesrv.wire.properties import load_properties, store_properties

HELP = "show the settings of running name servers, or change them"

_EXAMPLES = """\
  namesrv config get                                   every setting of every server; marks where servers differ
  namesrv config get orderMessageEnable supportActingMaster
  namesrv config set orderMessageEnable=true           at every server of the list
  namesrv config export namesrv.settings -n 10.0.0.1:9876    the settings of one server that can be changed at run time
  namesrv config import namesrv.settings               set all of them at every server of the list
"""

EXPORTED = tuple(
    row.name
    for row in ROWS.values()
    if row.live and row.name not in NEVER_BY_REMOTING and not row.name.lower().endswith("nameserveraddresses")
)
"""Settings that ``config set`` can change, without addresses, which belong to one deployment."""
FILE_BYTES_MAX = 64 << 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("action", choices=("get", "set", "export", "import"))
    parser.add_argument(
        "settings",
        nargs="*",
        metavar="KEY[=VALUE]|FILE",
        help="get: keys to show; set: KEY=VALUE to change; export: FILE, or '-' for stdout; import: FILE",
    )
    parser.add_argument("--force", action="store_true", help="export: replace FILE if it exists")
    add_client_arguments(parser, _EXAMPLES)
    parser.set_defaults(usage_error=parser.error)


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Returns its exit code."""
    if arguments.force and arguments.action != "export":
        arguments.usage_error("--force is for 'config export': leave it out here")
    if arguments.action == "get":
        for word in arguments.settings:
            if "=" in word:
                arguments.usage_error(f"'config get' takes keys, not {word!r}: did you mean 'config set {word}'?")
        return run_with_servers(arguments, _get)
    if arguments.action in ("export", "import"):
        return _run_with_file(arguments)
    if not arguments.settings:
        arguments.usage_error("'config set' needs at least one KEY=VALUE")
    for word in arguments.settings:
        if not word.partition("=")[0] or "=" not in word or "\n" in word:
            arguments.usage_error(f"'config set' needs KEY=VALUE on one line, got {word!r}")
        if (problem := _problem(*word.split("=", 1))) is not None:
            arguments.usage_error(problem)
    keys = [word.split("=", 1)[0] for word in arguments.settings]
    if twice := next((key for key in keys if keys.count(key) > 1), None):
        arguments.usage_error(f"'config set' got {twice!r} more than once: give each key one value")
    return run_with_servers(arguments, _set)


def _run_with_file(arguments: argparse.Namespace) -> int:
    """Raises SettingError, StorageError."""
    if len(arguments.settings) != 1:
        arguments.usage_error(f"'config {arguments.action}' needs one FILE, got {len(arguments.settings)} words")
    file = Path(arguments.settings[0])
    if arguments.action == "export":
        refuse_existing(file, arguments.force, arguments.json)
        return run_with_servers(arguments, _export)
    arguments.settings = [f"{key}={value}" for key, value in _settings_in(file).items()]
    return run_with_servers(arguments, _set)


def _settings_in(file: Path) -> dict[str, str]:
    """The settings in a properties file. Raises StorageError if one of them could not be set."""
    try:
        with file.open("rb") as source:
            data = source.read(FILE_BYTES_MAX + 1)
    except OSError as cause:
        raise StorageError(f"{file}: {cause.strerror}; give a file of 'namesrv config export'") from None
    if len(data) > FILE_BYTES_MAX:
        raise StorageError(f"{file}: more than {FILE_BYTES_MAX} bytes; give a file of 'namesrv config export'")
    try:
        found = load_properties(data)
    except BodyError as cause:
        raise StorageError(f"{file}: {cause}; correct the line, or export the settings again") from None
    for key, value in found.items():
        problem = _problem(key, value)
        if problem is None and key not in EXPORTED:
            problem = f"'{key}' cannot be changed by 'namesrv config'; change it in the node's own file"
        if problem is not None:
            raise StorageError(f"{file}: {problem}; nothing was changed")
    if not found:
        raise StorageError(f"{file}: there is no setting in it; give a file of 'namesrv config export'")
    return found


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


async def _export(servers: NameServers, arguments: argparse.Namespace) -> int:
    """Raises StorageError, UnavailableError."""
    address, response = await servers.query(config_request())
    config = read_config(response)
    found = {key: config[key] for key in EXPORTED if key in config}
    file = Path(arguments.settings[0])
    if file == STDOUT:
        sys.stdout.write(store_properties(found).decode())
    else:
        write_atomically(file, store_properties(found))
    if arguments.json:
        print_json({"nameServer": address, "file": str(file), "entries": len(found)})
    else:
        name, stream = ("stdout", sys.stderr) if file == STDOUT else (file, sys.stdout)
        print(f"{name} has {len(found)} settings of {address}", file=stream)
    return FOUND


async def _set(servers: NameServers, arguments: argparse.Namespace) -> int:
    text = store_properties(dict(word.split("=", 1) for word in arguments.settings)).decode()
    return report_writes(await servers.send_to_all(update_config_request(text)), read_done, arguments)

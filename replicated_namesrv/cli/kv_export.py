"""``namesrv kv export FILE``: writes the KV config of one name server to a file, which ``namesrv kv import`` reads.

The file is kvConfig.json as RocketMQ and our independent nodes write it, so either can start with it. RocketMQ's protocol cannot
list namespaces. They come from the server's admin port, or from ``--namespace``; an export that may lack some is refused.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from replicated_namesrv.cli.admin import admin_of, given_addresses
from replicated_namesrv.cli.backup import refuse_replacing
from replicated_namesrv.cli.client import BAD, FOUND, print_json, run_with_servers
from replicated_namesrv.cli.diff import admin_port_of, known_namespaces
from replicated_namesrv.client.nameservers import NameServers
from replicated_namesrv.client.queries import config_request, list_kv_request, read_kv_table
from replicated_namesrv.compat.kv_file import KVTable, kv_file_parts, write_kv_file
from replicated_namesrv.errors import SettingError

STDOUT = Path("-")
"""As FILE: the content goes to stdout, and the summary to stderr."""


def refuse_existing(file: Path, force: bool, as_json: bool) -> None:
    """Raise SettingError if the file exists and must not be replaced, or cannot be created because its folder is missing, or if
    the summary and the content would both go to stdout."""
    if file == STDOUT:
        if as_json:
            raise SettingError("an export to stdout has no summary: leave --json out, or give a file")
        return
    refuse_replacing(file, force)
    if not file.parent.is_dir():
        raise SettingError(f"{file}: there is no folder {file.parent}; create it, or choose another name")


def run_export(arguments: argparse.Namespace) -> int:
    """Run the command. Returns its exit code. Raises SettingError, StorageError."""
    refuse_existing(Path(arguments.namespace), arguments.force, arguments.json)
    return run_with_servers(arguments, _export)


async def _export(servers: NameServers, arguments: argparse.Namespace) -> int:
    """Raises SettingError, StorageError, UnavailableError."""
    address, _ = await servers.query(config_request())
    names = arguments.only
    if not names:
        admin = admin_of(arguments)
        given, own = given_addresses(arguments, admin), admin_port_of(address)
        # Only this server has to list its namespaces: the export also works while other nodes of the list are down.
        ports: Sequence[str] = [own] if given is None or own in given else given
        names, unlisted = await known_namespaces(admin, ports, [address], ())
        for reason in unlisted.values():
            raise SettingError(
                f"nothing was saved: the KV namespaces of {address} are unknown ({reason}); give its admin port with --admin, "
                "or the namespaces with --namespace"
            )
    table: KVTable = {}
    for name in names:
        (outcome,) = await servers.ask_all(list_kv_request(name), [address])
        entries = read_kv_table(outcome.answer())
        if entries:
            table[name] = dict(entries)
        elif arguments.only:
            print(f"nothing was saved: {address} has no namespace {name}", file=sys.stderr)
            return BAD
    file = Path(arguments.namespace)
    if file == STDOUT:
        sys.stdout.write(b"".join(kv_file_parts(table)).decode() + "\n")
    else:
        write_kv_file(file, table)
    count = sum(map(len, table.values()))
    if arguments.json:
        print_json({"nameServer": address, "file": str(file), "entries": count})
    else:
        name, stream = ("stdout", sys.stderr) if file == STDOUT else (file, sys.stdout)
        print(f"{name} has the {count} entries of {address}, in {len(table)} namespaces", file=stream)
    return FOUND

"""``namesrv kv import FILE``: imports the KV config of another deployment, entry by entry.

The file is a backup, of which only the KV config is used, or kvConfig.json as RocketMQ and our independent nodes write it. Every
entry is sent to every server of the list, as mqadmin does. In a CP cluster the second and third copy are no-ops. Existing entries
with the same key are overwritten; other entries stay. A server that has not answered for ``SILENT_S`` gets no further entries,
because each would take the whole time-out.
"""

import argparse
import time
from pathlib import Path

from replicated_namesrv.cli.backup import state_in
from replicated_namesrv.cli.client import BAD, FOUND, USAGE, ProgressLine, print_json, print_table, run_with_servers
from replicated_namesrv.client.nameservers import NameServers
from replicated_namesrv.client.queries import RefusedError, put_kv_request, read_done
from replicated_namesrv.compat.kv_file import read_kv_file
from replicated_namesrv.errors import NamesrvError, StorageError, UnavailableError
from replicated_namesrv.routes.backup import FORMAT

SILENT_S = 10.0


def run_import(arguments: argparse.Namespace) -> int:
    """Run the command. Returns its exit code. Raises StorageError."""
    entries = entries_of(Path(arguments.namespace))
    return run_with_servers(arguments, lambda servers, given: import_entries(servers, given, entries))


def entries_of(file: Path) -> list[tuple[str, str, str]]:
    """(namespace, key, value) of all entries in a kvConfig.json or a backup. Raises StorageError."""
    table = state_in(file).kv_table() if is_backup(file) else read_kv_file(file, "give a kvConfig.json or a backup")
    return [
        (namespace, key, value) for namespace, entries in table.items() for key, value in entries.items() if value is not None
    ]


def is_backup(file: Path) -> bool:
    """Whether the beginning of the file is that of a backup. Raises StorageError."""
    try:
        with file.open("rb") as source:
            return FORMAT.encode() in source.read(len(FORMAT) + 64)
    except OSError as cause:
        raise StorageError(f"{file}: {cause.strerror}") from None


async def import_entries(servers: NameServers, arguments: argparse.Namespace, entries: list[tuple[str, str, str]]) -> int:
    """Put every entry on every server. Prints, for each server, the number of entries that it accepted, and the first entry that
    it did not accept. Returns the exit code."""
    done: dict[str, int] = {}
    problems: dict[str, str] = {}
    heard = dict.fromkeys(servers.addresses, time.monotonic())
    progress = ProgressLine()
    for number, (namespace, key, value) in enumerate(entries, 1):
        progress.show(f"{number} of {len(entries)} entries")
        for outcome in await servers.send_to_all(put_kv_request(namespace, key, value), list(heard)):
            if outcome.response is not None:
                heard[outcome.address] = time.monotonic()
            elif time.monotonic() > heard[outcome.address] + SILENT_S:
                del heard[outcome.address]
            try:
                if outcome.response is None:
                    raise outcome.error or UnavailableError("no answer")
                read_done(outcome.response)
                done[outcome.address] = done.get(outcome.address, 0) + 1
            except NamesrvError as error:
                kind = "refused" if isinstance(error, RefusedError) else "not done" if error.definite else "unknown"
                done.setdefault(outcome.address, 0)
                problems.setdefault(outcome.address, f"{namespace}/{key}: {kind}: {error}")
                if outcome.address not in heard and number < len(entries):
                    problems[outcome.address] += f"; it got no further entries after {namespace}/{key}; repeat the command"
    progress.clear()
    rows = [
        {"nameServer": address, "entries": count, "of": len(entries), "problem": problems.get(address)}
        for address, count in done.items()
    ]
    if arguments.json:
        print_json(rows)
    elif not entries:
        print(f"{arguments.namespace} has no entries")
    else:
        print_table(
            ("name server", "accepted", "of", "problem"),
            [[row["nameServer"], row["entries"], row["of"], row["problem"] or ""] for row in rows],
        )
    if entries and not any(done.values()):
        return USAGE
    return BAD if problems else FOUND

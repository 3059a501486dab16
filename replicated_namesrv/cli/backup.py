"""``namesrv backup FILE``: fetches the whole state at one revision from a running node, and checks the file.

The node continues to serve. In CP mode, a majority confirmed the revision when the backup began. With ``--stale`` no majority is
asked, so the state may lack acknowledged changes. The file appears under its name only when it is complete, checked and synced
to disk.
"""

import argparse
import contextlib
import http.client
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from replicated_namesrv.cli.admin import (
    BAD,
    GOOD,
    UNKNOWN,
    Admin,
    AdminError,
    AdminRefusedError,
    add_admin_arguments,
    admin_addresses,
    admin_of,
    reason_of,
)
from replicated_namesrv.cli.client import ProgressLine, print_json
from replicated_namesrv.errors import SettingError, StorageError
from replicated_namesrv.files import sync_folder
from replicated_namesrv.routes.backup import BackupError, BackupReader, Head
from replicated_namesrv.routes.encoding import RouteFormatError
from replicated_namesrv.routes.state import RouteInfoManager

HELP = "save the whole state of a running cluster or node to a file"

READ_BYTES = 256 << 10
STDOUT = "-"
PATH = "/v1/backup"
STALE_PATH = f"{PATH}?readConsistency=stale"

_EXAMPLES = """\
  namesrv backup namesrv.backup
  namesrv backup --check namesrv.backup                   check a file; needs no node
  namesrv backup -a 10.0.0.1:9886 --token-file token "namesrv-$(date +%F).backup"
  namesrv backup --stale -a 10.0.0.1:9886 last.backup     the state of this node, even without a majority
  namesrv backup - | gzip > namesrv.backup.gz             to stdout; use it only if the exit code is 0
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("file", metavar="FILE", type=Path, help="the backup; '-': stdout")
    parser.add_argument("--check", action="store_true", help="check an existing file and print a summary of its contents")
    parser.add_argument(
        "--stale", action="store_true", help="do not ask a majority: the backup may lack the latest acknowledged changes"
    )
    parser.add_argument("--force", action="store_true", help="replace FILE if it exists")
    codes = "0 saved, or the file is whole; 1 refused, damaged, or FILE cannot be written; 2 usage, or no node answered"
    add_admin_arguments(parser, _EXAMPLES, codes)


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Returns its exit code."""
    file: Path = arguments.file
    if arguments.check:
        head = check_file(file)
        _report(arguments.json, {"file": str(file), "bytes": file.stat().st_size, **head.fields}, "is whole: it")
        return GOOD
    refuse_replacing(file, arguments.force)
    to_stdout = str(file) == STDOUT
    if to_stdout and (arguments.json or sys.stdout.isatty()):
        raise SettingError("a backup on stdout is binary: send it to a file or a program, without --json")
    admin = admin_of(arguments)
    failures: list[AdminError | AdminRefusedError] = []
    for address in admin_addresses(arguments, admin):
        try:
            path = STALE_PATH if arguments.stale else PATH
            head = fetch_to_stdout(admin, address, path) if to_stdout else fetch(admin, address, file, path)
        except (AdminError, AdminRefusedError) as error:
            failures.append(error)
            continue
        if to_stdout:
            print(f"saved revision {head.fields['revision']} from node {head.fields.get('nodeId', '?')}", file=sys.stderr)
            return GOOD
        _report(arguments.json, {"file": str(file), "bytes": file.stat().st_size, **head.fields}, "saved: it")
        return GOOD
    for failure in failures:
        print(str(failure), file=sys.stderr)
    return BAD if any(isinstance(failure, AdminRefusedError) for failure in failures) else UNKNOWN


def refuse_replacing(file: Path, force: bool) -> None:
    """Raise SettingError if the file exists and must not be replaced: without --force, or because it is a device or a pipe."""
    if not file.exists():
        return
    if not force:
        raise SettingError(f"{file} exists; choose another name, or replace it with --force")
    if not file.is_file():
        raise SettingError(f"{file} is not a regular file and cannot be replaced; choose another name")


@contextlib.contextmanager
def saving(file: Path) -> Iterator[BinaryIO]:
    """A file for a backup that is being written. It gets its name when the block ends without an error. Raises OSError."""
    aside = file.with_name(file.name + ".partial")
    try:
        with aside.open("wb") as output:
            yield output
            output.flush()
            os.fsync(output.fileno())
        aside.rename(file)
        sync_folder(file.parent)
    finally:
        aside.unlink(missing_ok=True)


def fetch(admin: Admin, address: str, file: Path, path: str = PATH) -> Head:
    """Download a backup from one node and check it. Raises AdminError, AdminRefusedError, StorageError."""
    reader, progress, size = BackupReader(), ProgressLine(), 0
    try:
        with admin.open(address, path) as response, saving(file) as output:
            while data := response.read1(READ_BYTES):
                reader.feed(data)
                output.write(data)
                size += len(data)
                progress.show(f"{size >> 20} MiB from {address}")
            return reader.finish()
    except BackupError as error:
        raise AdminError(f"{address}: {error}; nothing was saved") from None
    except (http.client.HTTPException, ConnectionError, TimeoutError) as cause:
        raise AdminError(f"{address}: the connection broke ({reason_of(cause)}); nothing was saved; try again") from None
    except OSError as cause:
        raise StorageError(f"{file}: {reason_of(cause)}; nothing was saved") from None
    finally:
        progress.clear()


def fetch_to_stdout(admin: Admin, address: str, path: str = PATH) -> Head:
    """Download a backup from one node to stdout and check it.

    Raises AdminError or AdminRefusedError if no download began, StorageError if it broke or the backup is damaged.
    """
    reader = BackupReader()
    with admin.open(address, path) as response:
        try:
            while data := response.read1(READ_BYTES):
                reader.feed(data)
                sys.stdout.buffer.write(data)
            head = reader.finish()
        except (BackupError, http.client.HTTPException, ConnectionResetError, TimeoutError) as cause:
            raise StorageError(f"{address}: {reason_of(cause)}; the output on stdout is not a complete backup") from None
    sys.stdout.buffer.flush()
    return head


def check_file(file: Path) -> Head:
    """Read a whole file and check it. Raises StorageError."""
    reader = BackupReader()
    try:
        with file.open("rb") as source:
            while data := source.read(READ_BYTES):
                reader.feed(data)
        return reader.finish()
    except OSError as cause:
        raise StorageError(f"{file}: {reason_of(cause)}") from None
    except BackupError as error:
        raise StorageError(f"{file}: {error}") from None


def state_in(file: Path) -> RouteInfoManager:
    """The state in a backup. Raises StorageError."""
    try:
        with file.open("rb") as source:
            return _state_of(iter(lambda: source.read(READ_BYTES), b""))
    except OSError as cause:
        raise StorageError(f"{file}: {reason_of(cause)}") from None
    except (BackupError, RouteFormatError) as error:
        raise StorageError(f"{file}: {error}") from None


def state_at(admin: Admin, address: str) -> RouteInfoManager:
    """The state of a running node, confirmed by a majority with ``mode=cp``. Raises AdminError, AdminRefusedError."""
    try:
        with admin.open(address, PATH) as response:
            return _state_of(iter(lambda: response.read1(READ_BYTES), b""))
    except (BackupError, RouteFormatError, http.client.HTTPException, ConnectionError, TimeoutError) as cause:
        raise AdminError(f"{address}: the state could not be read ({reason_of(cause)})") from None


def _state_of(parts: Iterator[bytes]) -> RouteInfoManager:
    """Raises BackupError, RouteFormatError."""
    reader, state = BackupReader(), RouteInfoManager()
    lines = [reader.feed(part) for part in parts]
    reader.finish()
    state.restore(lines)
    return state


def _report(as_json: bool, facts: dict[str, Any], verb: str) -> None:
    if as_json:
        print_json(facts)
    else:
        print(
            f"{facts['file']} {verb} holds revision {facts['revision']} of {facts.get('clusterId', '?')} "
            f"(mode={facts.get('mode', '?')}), from node {facts.get('nodeId', '?')}, {facts['bytes']} bytes{_lacks(facts)}"
        )


def _lacks(facts: dict[str, Any]) -> str:
    if "recoveredFromDisk" in facts:
        return "; recovered from one disk, so it may lack acknowledged changes"
    return "; stale, so it may lack acknowledged changes" if facts.get("readLevel") == "stale" else ""

"""``namesrv restore FILE``: loads a backup into a fresh cluster.

The file is checked before it is sent. The cluster writes the state through its log, so it is on the disks of a majority when
the command succeeds. A cluster that is not empty refuses.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from replicated_namesrv.cli.admin import (
    BAD,
    GOOD,
    UNKNOWN,
    Admin,
    AdminError,
    AdminRefusedError,
    AdminUnknownError,
    add_admin_arguments,
    admin_addresses,
    admin_of,
)
from replicated_namesrv.cli.backup import READ_BYTES, check_file
from replicated_namesrv.cli.client import ProgressLine, print_json

HELP = "load a backup into a fresh cluster"

TIMEOUT_S = 600.0
"""Time-out for the cluster's answer. A large backup has to pass through its log."""

_EXAMPLES = """\
  namesrv restore namesrv.backup
  namesrv restore namesrv.backup -a 10.0.0.1:9886 --token-file token

A cluster that already has brokers, topics or KV entries refuses the restore. Start one with empty data directories, restore, and
only then let brokers reach it. If brokers have already registered, restore only the KV config: namesrv kv import FILE.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("file", metavar="FILE", type=Path)
    codes = "0 restored; 1 refused: the cluster is not fresh, the file is damaged; 2 usage, no answer, or outcome unknown"
    add_admin_arguments(parser, _EXAMPLES, codes)


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Returns its exit code."""
    head = check_file(arguments.file)
    admin = admin_of(arguments)
    failure: Exception | None = None
    for address in admin_addresses(arguments, admin):
        try:
            answer = send(admin, address, arguments.file)
        except AdminError as error:
            failure = failure or error
            continue
        except (AdminRefusedError, AdminUnknownError) as error:
            print(str(error), file=sys.stderr)
            return BAD if error.definite else UNKNOWN
        if arguments.json:
            print_json({"file": str(arguments.file), "backupRevision": head.revision, "revision": answer["revision"]})
        else:
            print(f"restored: revision {head.revision} of the backup is revision {answer['revision']} of this cluster")
        return GOOD
    print(str(failure), file=sys.stderr)
    return UNKNOWN


def send(admin: Admin, address: str, file: Path) -> dict[str, int]:
    """Send ``file`` to one node to restore it. Raises AdminError, AdminRefusedError, AdminUnknownError."""
    progress, size = ProgressLine(), file.stat().st_size

    def parts() -> Iterator[bytes]:
        sent = 0
        with file.open("rb") as source:
            while data := source.read(READ_BYTES):
                yield data
                sent += len(data)
                progress.show(f"{sent >> 20} of {size >> 20} MiB to {address}")

    patient = replace(admin, timeout_s=max(admin.timeout_s, TIMEOUT_S))
    try:
        answer: dict[str, int] = patient.ask(address, "/v1/restore", "POST", parts())
        return answer
    finally:
        progress.clear()

"""``namesrv restore FILE``: loads a backup into a fresh cluster.

The file is checked before it is sent. The cluster writes the state through its log, so it is on the disks of a majority when
the command succeeds. A cluster that is not empty refuses, because restoring over data would undo acknowledged writes.

``--merge`` is for a cluster that is not empty, and for independent nodes (each has its own copy, so all are changed):

    part                 there only  in the backup only  in both, equal  in both, different
    KV entry             stays       added               stays           refused: nothing is changed
    shared setting       -           -                   stays           that of the backup, and it is reported
    broker, topic        stays       left out            stays           stays

A broker that runs registers by itself, with its topics. A broker that does not run must not appear in routes.
"""

import argparse
import contextlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import orjson

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
from replicated_namesrv.cli.backup import READ_BYTES, check_file, state_at, state_in
from replicated_namesrv.cli.client import ProgressLine, print_json
from replicated_namesrv.errors import NamesrvError, SettingError
from replicated_namesrv.routes.backup import Head
from replicated_namesrv.routes.state import RouteInfoManager
from replicated_namesrv.settings import ROWS

HELP = "load a backup into a fresh cluster"

CONFLICT = 409
TIMEOUT_S, TIMEOUT_S_PER_MIB = 600.0, 1.0
"""Time limit for the cluster's answer, and the time that each MiB of the file adds to it. The file passes through the cluster's
log."""

_EXAMPLES = """\
  namesrv restore namesrv.backup
  namesrv restore namesrv.backup -a 10.0.0.1:9886 --token-file token
  namesrv restore --merge namesrv.backup             brokers have already registered: add KV config and shared settings
  namesrv restore --merge -a '10.0.0.1:9886;10.0.0.2:9886' namesrv.backup       the same for independent nodes; name all of them

A cluster that already has brokers, topics or KV entries refuses a restore without --merge. With it, brokers and topics stay as
they are registered, and keys with different values are refused and listed.
"""

_CONFLICTS_SHOWN_MAX = 20


class ConflictError(NamesrvError):
    """A key has different values in the backup and in the cluster."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("file", metavar="FILE", type=Path)
    parser.add_argument("--merge", action="store_true", help="if the cluster is not empty, add KV config and shared settings")
    codes = (
        "0 restored or merged; 1 refused: the cluster is not fresh, or the file damaged; 2 usage, no answer, or outcome unknown"
    )
    add_admin_arguments(parser, _EXAMPLES, codes)


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Returns its exit code."""
    try:
        return _restore(arguments)
    except (AdminError, AdminUnknownError) as error:
        print(str(error), file=sys.stderr)
        return UNKNOWN


def _restore(arguments: argparse.Namespace) -> int:
    """Raises NamesrvError."""
    head = check_file(arguments.file)
    admin = admin_of(arguments)
    addresses = admin_addresses(arguments, admin)
    if arguments.merge and (independent := _independent(admin, addresses)):
        return _merge_and_report(arguments, admin, independent)
    failure: Exception | None = None
    for address in addresses:
        try:
            # the time limit for the answer to a restore is long, so first check that the node answers at all
            with contextlib.suppress(AdminRefusedError):
                admin.ask(address, "/v1/status?waitMs=1")
            answer = send(admin, address, arguments.file)
        except AdminError as error:
            failure = failure or error
            continue
        except (AdminRefusedError, AdminUnknownError) as error:
            if arguments.merge and isinstance(error, AdminRefusedError) and error.status == CONFLICT:
                return _merge_and_report(arguments, admin, (address,))
            print(str(error), file=sys.stderr)
            return BAD if error.definite else UNKNOWN
        _report(arguments, head, answer["revision"])
        return GOOD
    print(str(failure), file=sys.stderr)
    return UNKNOWN


def _report(arguments: argparse.Namespace, head: Head, revision: int) -> None:
    if arguments.json:
        print_json({"file": str(arguments.file), "backupRevision": head.revision, "revision": revision})
    else:
        print(f"restored: revision {head.revision} of the backup is revision {revision} of this cluster")


def _independent(admin: Admin, addresses: tuple[str, ...]) -> tuple[str, ...]:
    """All ``addresses`` if they are independent nodes; an empty tuple if they are nodes of a cluster. Raises
    SettingError if some are independent nodes and some belong to a cluster, AdminError if an independent node does not answer."""
    modes, silent = dict[str, str](), list[AdminError]()
    for address in addresses:
        try:
            modes[address] = str(admin.ask(address, "/v1/status")["mode"])
        except AdminError as error:
            silent.append(error)
    if "ap" in modes.values() and "cp" in modes.values():
        raise SettingError(
            f"nodes run in different modes ({', '.join(f'{a}: {m}' for a, m in modes.items())}); give nodes of one mode"
        )
    if "ap" not in modes.values():
        return ()
    if silent:
        raise AdminError(f"nothing was changed: each independent node gets its own copy, so all of them must answer; {silent[0]}")
    return addresses


class _Merge(NamedTuple):
    """The changes to make at one node."""

    address: str
    entries: list[tuple[str, str, str]]
    settings: dict[str, bool]
    facts: dict[str, Any]


def _merge_and_report(arguments: argparse.Namespace, admin: Admin, addresses: tuple[str, ...]) -> int:
    """Raises the errors of ``merge``."""
    merged = merge(admin, addresses, arguments.file)
    if arguments.json:
        print_json({"file": str(arguments.file), "merged": merged})
    else:
        for facts in merged:
            _print_merged(facts)
    return GOOD


def merge(admin: Admin, addresses: tuple[str, ...], file: Path) -> list[dict[str, Any]]:
    """Add the KV config and the shared settings of a backup to each node. Returns what was added at each. All changes are planned
    before the first one is made. Raises ConflictError before the first change, and the errors of ``ask``."""
    backup = state_in(file)
    plans = [_plan(address, backup, state_at(admin, address)) for address in addresses]
    progress = ProgressLine()
    try:
        for plan in plans:
            for number, (namespace, key, value) in enumerate(plan.entries, 1):
                path = f"/v1/kv/{quote(namespace, safe='')}/{quote(key, safe='')}"
                try:
                    admin.ask(plan.address, path, "PUT", value.encode())
                except NamesrvError:
                    added = f"{number - 1} of {len(plan.entries)} KV entries were added"
                    progress.clear()
                    print(f"{plan.address}: {added}; repeat the command when the cause is removed:", file=sys.stderr)
                    raise
                progress.show(f"{number} of {len(plan.entries)} KV entries to {plan.address}")
            if plan.settings:
                admin.ask(plan.address, "/v1/config", "POST", orjson.dumps(plan.settings))
    finally:
        progress.clear()
    return [plan.facts for plan in plans]


def _plan(address: str, backup: RouteInfoManager, present: RouteInfoManager) -> _Merge:
    """Raises ConflictError."""
    there, entries, conflicts, equal = present.kv_table(), list[tuple[str, str, str]](), list[str](), 0
    for namespace, table in backup.kv_table().items():
        for key, value in table.items():
            if value is None:
                continue
            known = there.get(namespace, {}).get(key)
            if known is None:
                entries.append((namespace, key, value))
            elif known == value:
                equal += 1
            else:
                conflicts.append(f"{namespace}/{key}")
    if conflicts:
        more = f" and {len(conflicts) - _CONFLICTS_SHOWN_MAX} more" if len(conflicts) > _CONFLICTS_SHOWN_MAX else ""
        raise ConflictError(
            f"{address}: nothing was changed: {len(conflicts)} keys have other values there than in the backup: "
            f"{', '.join(conflicts[:_CONFLICTS_SHOWN_MAX])}{more}; delete those that are wrong there (namesrv kv delete), or "
            "overwrite all of them with the backup (namesrv kv import FILE), and repeat the command"
        )
    settings = {
        row.name: bool(getattr(backup.settings, row.attribute))
        for row in ROWS.values()
        if row.replicated and getattr(backup.settings, row.attribute) != getattr(present.settings, row.attribute)
    }
    absent = backup.topic_revisions.keys() - present.topic_revisions.keys()
    facts = {
        "admin": address,
        "kvEntriesAdded": len(entries),
        "kvEntriesEqual": equal,
        "settingsChanged": settings,
        "brokersThere": present.broker_count,
        "topicsThere": len(present.topic_revisions),
        "topicsOnlyInBackup": len(absent),
    }
    return _Merge(address, entries, settings, facts)


def _print_merged(facts: dict[str, Any]) -> None:
    changed = ", ".join(f"{name}={str(value).lower()}" for name, value in facts["settingsChanged"].items()) or "none"
    print(
        f"merged into {facts['admin']}: {facts['kvEntriesAdded']} KV entries added, {facts['kvEntriesEqual']} were there; shared "
        f"settings changed: {changed}; {facts['brokersThere']} brokers and {facts['topicsThere']} topics stay as registered"
    )
    if facts["topicsOnlyInBackup"]:
        print(f"{facts['topicsOnlyInBackup']} topics of the backup are not there; they return when their brokers register")


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

    patient = replace(admin, timeout_s=max(admin.timeout_s, TIMEOUT_S + TIMEOUT_S_PER_MIB * (size >> 20)))
    try:
        answer: dict[str, int] = patient.ask(address, "/v1/restore", "POST", parts())
        return answer
    finally:
        progress.clear()

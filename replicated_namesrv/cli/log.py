"""``namesrv log inspect DIR``: shows and checks a replicated node's log and snapshots, without starting the node or writing
anything.

The checks are the same as when a node starts. Entries are shown as the commands that they contain.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from replicated_namesrv.cli.client import print_json, print_table
from replicated_namesrv.errors import SettingError
from replicated_namesrv.raft.inspection import Inspection, Record, content_of, entries_of, inspect
from replicated_namesrv.raft.raft_errors import UnknownCommandError
from replicated_namesrv.replication import cluster_restore
from replicated_namesrv.replication.command_kinds import COMMAND_KINDS, ENVELOPE_FORMAT, RESTORE_MARK
from replicated_namesrv.routes.encoding import RouteFormatError, decode_command, load

HELP = "show and check a stopped node's log and snapshots; never writes"

GOOD, BAD, USAGE = 0, 1, 2
VALUE_CHARACTERS_MAX = 60
_INDEX_MAX = 1 << 62

_EXAMPLES = """\
examples:
  namesrv log inspect /var/lib/namesrv                     a node's dataDir, or the folder raft in it
  namesrv log inspect /var/lib/namesrv --entries           and every entry, with its commands
  namesrv log inspect /var/lib/namesrv --entries 1200:     entries from index 1200 on
  namesrv log inspect /var/lib/namesrv --json

The node should be stopped. While it runs, nothing is harmed, but the end of the log can be shown incomplete.

exit codes: 0 no damage (a torn tail is not damage); 1 damaged: the lines that begin with 'damage:' say where; 2 usage
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.epilog = _EXAMPLES
    parser.add_argument("action", choices=("inspect",))
    parser.add_argument("directory", metavar="DIR", type=Path, help="a node's dataDir, or the folder raft in it")
    parser.add_argument("--entries", nargs="?", const=":", metavar="FROM:TO", help="show entries, all or from index to index")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Returns its exit code."""
    directory: Path = arguments.directory
    if (directory / "raft").is_dir():
        directory = directory / "raft"
    window = _window(arguments.entries)
    try:
        found = inspect(directory)
        entries = [] if window is None else [_entry(record) for record in entries_of(directory, *window)]
    except OSError as cause:
        reason = cause.strerror or cause
        print(f"{directory}: {reason}; give the dataDir of a node with mode=cp, or the folder raft in it", file=sys.stderr)
        return USAGE
    if arguments.json:
        print_json({"directory": str(directory), **_facts(found), **({} if window is None else {"entries": entries})})
    else:
        _print(found)
        _print_entries(entries)
    return BAD if found.problems else GOOD


def _window(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    first, colon, last = text.partition(":")
    try:
        low = int(first) if first else 0
        return low, (int(last) if last else _INDEX_MAX) if colon else low
    except ValueError:
        raise SettingError(f"--entries {text}: give FROM:TO, FROM:, :TO or one index") from None


def _facts(found: Inspection) -> dict[str, Any]:
    return {
        "identity": found.identity,
        "segments": [_camel(asdict(segment)) for segment in found.segments],
        "snapshots": [
            {
                "name": snapshot.name,
                "bytes": snapshot.size,
                "lastIndex": None if snapshot.metadata is None else snapshot.metadata.last[0],
                "lastTerm": None if snapshot.metadata is None else snapshot.metadata.last[1],
                "problem": snapshot.problem,
            }
            for snapshot in found.snapshots
        ],
        "terms": found.terms,
        "lastIndex": found.last_index,
        "commitIndexAtLeast": found.commit_index,
        "tornTail": found.torn,
        "damage": found.problems,
    }


def _camel(fields: dict[str, Any]) -> dict[str, Any]:
    names = {"size": "bytes", "readable": "readableBytes", "record_counts": "records"}
    camel = {name: names.get(name) or name.partition("_")[0] + name.partition("_")[2].capitalize() for name in fields}
    return {camel[name]: value for name, value in fields.items()}


def _print(found: Inspection) -> None:
    identity = found.identity
    if identity is not None:
        members = ", ".join(identity["members"])
        print(
            f"node {identity['node']} of cluster {identity['cluster']} ({members}), {identity['state']}, "
            f"incarnation {identity['incarnation']}, started {identity['boot']} times\n"
        )
    print_table(
        ("log segment", "bytes", "records", "entries", "indexes"),
        [
            (
                segment.name,
                segment.size,
                sum(segment.record_counts.values()),
                segment.record_counts.get("entry", 0),
                "-" if segment.first_index is None else f"{segment.first_index}..{segment.last_index}",
            )
            for segment in found.segments
        ],
    )
    print()
    if found.snapshots:
        rows = [(s.name, s.size, *(s.metadata.last if s.metadata else ("?", "?")), s.problem or "sound") for s in found.snapshots]
        print_table(("snapshot", "bytes", "index", "term", "state"), rows)
        print()
    if found.terms:
        rows = [(t["term"], t["votedFor"] or "-", t["file"], t["offset"]) for t in found.terms]
        print_table(("term", "voted for", "file", "offset"), rows)
        print()
    print(f"last entry {found.last_index}, committed up to {found.commit_index} or further")
    if found.torn:
        print(f"torn tail: {found.torn}; it was never acknowledged, and the next start cuts it off")
    for problem in found.problems:
        print(f"damage: {problem}")
    if not found.problems:
        print("sound")


def _entry(record: Record) -> dict[str, Any]:
    kind, groups, joins = content_of(record.payload)
    entry: dict[str, Any] = {**record.fields, "file": record.file, "offset": record.offset, "kind": kind}
    if joins is not None:
        entry["joins"] = {"node": joins[0], "incarnation": joins[1]}
    if groups:
        entry["commands"] = [
            {"from": origin.node, "number": number, **described(command)}
            for origin, _, proposals in groups
            for number, command in proposals
        ]
    return entry


def described(data: bytes) -> dict[str, Any]:
    """A command of the log in words: kind, what it does, its time."""
    try:
        if data[:1] == bytes((RESTORE_MARK,)):
            kind, restore_id, number, piece, _ = cluster_restore.decode(data)
            return {"kind": COMMAND_KINDS[RESTORE_MARK, kind].name, "restore": restore_id, "piece": number, "bytes": len(piece)}
        head, _, rest = data[1:].partition(b"\n")
        number, *arguments = load(head)
        command, time_ms = decode_command(rest)
    except (RouteFormatError, ValueError, TypeError, UnknownCommandError) as error:
        return {"kind": "unreadable", "bytes": len(data), "problem": str(error)}
    fields = {name: _short(value) for name, value in asdict(command).items()} if is_dataclass(command) else {}
    row = COMMAND_KINDS.get((ENVELOPE_FORMAT, number))
    kind_name = str(number) if row is None else row.name
    return {"kind": kind_name, "command": type(command).__name__, "timeMs": time_ms, "arguments": arguments, **fields}


def _short(value: Any) -> Any:
    """Replace large values by their size: a registration has thousands of topics."""
    if isinstance(value, dict) and len(value) > 3:
        return f"({len(value)} entries)"
    if isinstance(value, str) and len(value) > VALUE_CHARACTERS_MAX:
        return value[:VALUE_CHARACTERS_MAX] + f"… ({len(value)} characters)"
    return value


def _print_entries(entries: list[dict[str, Any]]) -> None:
    for entry in entries:
        print(f"\nentry {entry['index']} term {entry['term']}: {entry['kind']} ({entry['file']} offset {entry['offset']})")
        for line in _lines(entry):
            print(f"  {line}")


def _lines(entry: dict[str, Any]) -> Iterator[str]:
    if "joins" in entry:
        yield f"{entry['joins']['node']} votes as incarnation {entry['joins']['incarnation']}"
    for command in entry.get("commands", ()):
        rest = {name: value for name, value in command.items() if name not in ("from", "number", "kind", "command")}
        words = json.dumps(rest, ensure_ascii=False, default=str)
        yield f"{command['kind']} {command.get('command', '')} from {command['from']}#{command['number']}: {words}"

"""``namesrv recover DIR FILE``: saves the state on the disk of one stopped node as a backup, when a majority is permanently lost.

It asks no other node. It first says what may be lost. 'namesrv restore' loads the file into a new cluster. With
``--force-new-cluster`` this node becomes the first node of a new cluster (``new_cluster.py``). Otherwise the data directory is
not changed.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from replicated_namesrv import __version__
from replicated_namesrv.cli.backup import refuse_replacing, saving
from replicated_namesrv.cli.client import print_json
from replicated_namesrv.cli.new_cluster import OLD, check_place, make, was_made
from replicated_namesrv.errors import StorageError
from replicated_namesrv.raft.raft_errors import RaftError
from replicated_namesrv.raft.recovery import Recovered, recover
from replicated_namesrv.replication.cluster_restore import RestorableMachine
from replicated_namesrv.replication.route_machine import RouteStateMachine
from replicated_namesrv.routes import backup
from replicated_namesrv.routes.encoding import RouteFormatError
from replicated_namesrv.routes.state import RouteInfoManager

HELP = "save the state on a stopped node's disk when a majority is permanently lost"

GOOD, BAD, USAGE = 0, 1, 2

_EXAMPLES = """\
examples:
  namesrv recover /var/lib/namesrv                         what is on this disk, and what may be lost; writes nothing
  namesrv recover /var/lib/namesrv survivor.backup         and save the state, for 'namesrv restore'
  namesrv recover /var/lib/namesrv --force-new-cluster rescued     this node becomes the first of the cluster 'rescued'

Use it only if a majority of the disks is lost. Otherwise start the nodes: a majority has everything that was acknowledged. If
several disks are left, use the one with the highest term, and of those the one with the highest last entry.

exit codes: 0 done; 1 refused, in use, damaged, or not writable; 2 usage, or no data directory
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.epilog = _EXAMPLES
    parser.add_argument("directory", metavar="DIR", type=Path, help="the dataDir of a stopped node, or the folder raft in it")
    parser.add_argument("file", metavar="FILE", type=Path, nargs="?", help="where to save the backup")
    parser.add_argument("--force", action="store_true", help="replace FILE if it exists")
    parser.add_argument(
        "--force-new-cluster",
        metavar="ID",
        help="make this node the first of a new cluster with the clusterId ID; changes that only other disks have are lost",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Returns its exit code."""
    directory: Path = arguments.directory
    file: Path | None = arguments.file
    new_id: str | None = arguments.force_new_cluster
    if file is not None:
        refuse_replacing(file, arguments.force)
    if (directory / "raft").is_dir():
        directory = directory / "raft"
    elif (directory / OLD).is_dir():
        raise StorageError(
            f"{directory}: {OLD} is there and raft is missing: --force-new-cluster was interrupted. Rename {OLD} to raft, and "
            "repeat the command"
        )
    data_dir = directory.absolute().parent
    machine = RouteStateMachine()
    try:
        found = recover(directory, RestorableMachine(machine))
    except OSError as cause:
        reason = cause.strerror or cause
        print(f"{directory}: {reason}; give the dataDir of a node with mode=cp, or the folder raft in it", file=sys.stderr)
        return USAGE
    except (RaftError, RouteFormatError) as error:
        raise StorageError(f"{error}; 'namesrv log inspect {directory}' shows what is there") from None
    facts = _facts(found, machine.state)
    is_made = new_id is not None and was_made(directory, data_dir, found, new_id)
    if new_id is not None and not is_made:
        check_place(directory, data_dir, found.cluster, new_id)
        if not found.votes:
            raise StorageError(
                f"{directory}: this node had no vote, and may lack much of the state; use another disk, or give FILE in place of "
                "--force-new-cluster"
            )
    if not arguments.json:
        _print(found, facts)
    if file is not None:
        _save(file, found, machine.state)
    if new_id is not None and not is_made:
        make(data_dir, found.node, new_id, machine.state)
    if arguments.json:
        print_json(facts | {"file": None if file is None else str(file), "newCluster": new_id})
    elif new_id is not None:
        print(
            f"\n{found.node} is the only member of the new cluster {new_id}; its old log is {data_dir / OLD}.\n"
            f"Set clusterId={new_id} and peers={found.node}=HOST:PORT, and start it. Start the other nodes with "
            f"clusterId={new_id}, --join and empty disks, and add them with: namesrv members add"
        )
    elif file is None:
        print(f"\nnothing was saved: give a FILE, as in: namesrv recover {arguments.directory} survivor.backup")
    else:
        print(
            f"\nsaved to {file}; start a new cluster with empty data directories (its founders need peers, not join), and load "
            f"it with: namesrv restore {file}"
        )
    return GOOD


def _facts(found: Recovered, state: RouteInfoManager) -> dict[str, Any]:
    return {
        "nodeId": found.node,
        "clusterId": found.cluster,
        "members": list(found.members),
        "lastIndex": found.last_index,
        "lastTerm": found.last_term,
        "commitIndexAtLeast": found.committed_index,
        "votes": found.votes,
        "lastWriteMs": found.written_ns // 1_000_000,
        "revision": state.revision,
        "brokers": state.broker_count,
        "topics": len(state.topic_revisions),
        "kvEntries": sum(map(len, state.kv_table().values())),
        "damage": list(found.damage),
    }


def _print(found: Recovered, facts: dict[str, Any]) -> None:
    written = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(found.written_ns / 1e9))
    print(
        f"node {found.node} of cluster {found.cluster} ({', '.join(found.members)}): last entry {found.last_index} of term "
        f"{found.last_term}, last write {written}\n"
        f"revision {facts['revision']}: {facts['brokers']} brokers, {facts['topics']} topics, {facts['kvEntries']} KV entries\n\n"
        f"lost: every change that the other nodes acknowledged after entry {found.last_index}. Their number is not known here"
    )
    if found.last_index > found.committed_index:
        print(
            f"unconfirmed: entries {found.committed_index + 1} to {found.last_index} are included. Some of them may never have "
            "been acknowledged"
        )
    if not found.votes:
        print(
            "warning: this node had no vote, and may lack much of the state: it was an observer, was removed, or was still "
            "copying the state of the others"
        )
    for problem in found.damage:
        print(f"warning: {problem}")


def _save(file: Path, found: Recovered, state: RouteInfoManager) -> None:
    """Raises StorageError."""
    origin = {
        "revision": state.revision,
        "mode": "cp",
        "clusterId": found.cluster,
        "groupId": found.group,
        "nodeId": found.node,
        "timeMs": time.time_ns() // 1_000_000,
        "softwareVersion": __version__,
        "recoveredFromDisk": {"lastIndex": found.last_index, "lastTerm": found.last_term},
    }
    try:
        with saving(file) as output:
            for part in backup.encode(origin, state.snapshot()):
                output.write(part)
    except OSError as cause:
        raise StorageError(f"{file}: {cause.strerror or cause}; nothing was saved") from None

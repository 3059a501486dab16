"""Reads the replicated state from the disk of one stopped node, without the other nodes and without changing the disk.

The state is what the node would reach if every entry on its disk was committed: the newest readable snapshot, and all entries
after it. Only a majority knows which of the last entries are committed, and this code reads one disk. Therefore:

- The state may lack acknowledged changes that came after the last entry of this disk.
- The state may contain changes whose proposers got an error or no answer. For such changes, both outcomes are correct.

An acknowledged change that is on this disk is in the state, because no committed entry is ever cut.
"""

import fcntl
import os
from pathlib import Path
from typing import NamedTuple

from replicated_namesrv.raft.configuration import Configuration, change_in
from replicated_namesrv.raft.entry_log import ENTRIES_READ_MAX, Log
from replicated_namesrv.raft.file_storage import LOCK
from replicated_namesrv.raft.identity import group_of
from replicated_namesrv.raft.inspection import UntouchedStorage, inspect
from replicated_namesrv.raft.interfaces import StateMachine
from replicated_namesrv.raft.payloads import PROPOSALS, unpack_groups
from replicated_namesrv.raft.proposals import MACHINE_ERRORS
from replicated_namesrv.raft.raft_errors import CorruptionError, IdentityError, MalformedError, UnknownCommandError
from replicated_namesrv.raft.sessions import Sessions
from replicated_namesrv.raft.snapshots import SnapshotStore


class Recovered(NamedTuple):
    """Where the state on a disk ends, and whose disk it is."""

    node: str
    cluster: str
    group: str
    """``group_of`` the founders."""
    members: tuple[str, ...]
    last_index: int
    last_term: int
    """Term of the last entry. Of two disks of one cluster, the disk with the higher last term (if equal, the higher last index)
    has all acknowledged changes that the other disk has."""
    committed_index: int
    """Entries up to this one were known as committed. Later entries may be changes that were never acknowledged."""
    votes: bool
    """Whether this disk had a vote. Otherwise the node was still copying the state, and the disk may lack much of it."""
    written_ns: int
    """Time of the last write to the log, in nanoseconds since 1970."""
    damage: tuple[str, ...]
    """Damage that did not prevent reading: a snapshot that was skipped, a torn tail."""


def recover(directory: Path, machine: StateMachine) -> Recovered:
    """Bring ``machine`` to the state on the disk ``directory``.

    Raises OSError, IdentityError (in use, or never part of a cluster), CorruptionError, UnknownCommandError.
    """
    check_unused(directory)
    found = inspect(directory)
    if found.identity is None:
        raise CorruptionError("; ".join(found.problems))
    identity, voters = found.identity, dict(found.identity["founders"])
    if not voters:
        raise IdentityError(f"{directory} belongs to node {identity['node']}, which never was part of a cluster: it has no state")
    storage, sessions = UntouchedStorage(directory), Sessions()
    log = Log(storage, must_exist=True)
    store = SnapshotStore(storage, identity["cluster"])
    opened = store.open_newest()
    first, members = 1, None
    if opened is not None:
        snapshot, chunks = opened
        log.align(snapshot.metadata.previous, snapshot.metadata.last)
        restoration = machine.restore()
        for chunk in chunks:
            restoration.feed(chunk)
        restoration.finish()
        sessions.load(snapshot.metadata.sessions)
        voters, members, first = dict(snapshot.metadata.voters), snapshot.metadata.members, snapshot.last_index + 1
    elif log.first_number > 1 or (len(log) and log.first_index > 1):
        raise CorruptionError(
            f"{log.name} does not begin with the first entry, and no snapshot has the earlier ones; use the disk of another node"
        )
    configuration = Configuration({}, in_log=True)
    configuration.replace(voters, members)
    for payload, index, _ in log.entries(first, ENTRIES_READ_MAX) if len(log) else ():
        try:
            _apply(machine, sessions, configuration, index, payload)
        except MalformedError as error:
            raise CorruptionError(f"entry {index} cannot be applied: {error}") from None
    return Recovered(
        identity["node"],
        identity["cluster"],
        group_of(identity["founders"]),
        tuple(sorted(configuration.members)),
        log.last_index,
        log.term_at(log.last_index) or 0,
        max(found.commit_index, first - 1),
        identity["node"] in configuration.latest and configuration.applied[identity["node"]] == identity["incarnation"],
        max(((directory / segment.name).stat().st_mtime_ns for segment in found.segments), default=0),
        (*store.skipped, *([found.torn] if found.torn else [])),
    )


def _apply(machine: StateMachine, sessions: Sessions, configuration: Configuration, index: int, payload: bytes) -> None:
    """Apply an entry as ``Proposals.apply`` does on a follower."""
    if (change := change_in(payload)) is not None:
        configuration.apply(index, change)
    elif payload[:2] == PROPOSALS:
        for origin, floor, proposals in unpack_groups(payload, len(PROPOSALS)):
            session = sessions.session(origin, floor, configuration.applied.get(origin.node))
            for number, command in proposals if session is not None else ():
                if session is None or not session.take(number):
                    continue
                try:
                    machine.apply(command)
                except (UnknownCommandError, *MACHINE_ERRORS):
                    raise
                except Exception:  # an exception of a command is its result, on every node
                    continue


def check_unused(directory: Path) -> None:
    """Raise IdentityError if a process runs on this directory."""
    for path in (directory, directory / LOCK):
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # works on NFS, too, where the file is opened for reading
        except BlockingIOError:
            raise IdentityError(
                f"{directory} is used by a process: stop the node first, or run 'namesrv backup --stale'"
            ) from None
        finally:
            os.close(descriptor)

"""The kinds of commands in the log, each with the first command version in which nodes apply it.

A new command gets a new kind and a new version here. A command whose meaning or content changes gets a new kind and a new
version, too. The version keeps the new kind out of the log until all nodes are upgraded (``consensus.py``). A kind that was once
proposed stays, because logs contain it.
"""

from typing import NamedTuple

from replicated_namesrv.routes.encoding import load

ENVELOPE_FORMAT, RESTORE_MARK = 1, ord("R")
"""First byte of a command of the routes (``route_machine.py``) or of a restore (``cluster_restore.py``)."""
PLAIN, REGISTER, UNREGISTER, EXPIRE, LEAD, SUSPECT, ATTRIBUTED, OPERATION = range(8)
BEGIN, PIECE, FINISH, ABANDON = range(4)
RESTORE_FIELDS = 4
"""Number of fields in the head of a restore command that names no caller. Further fields name the caller who caused it."""
BASE_VERSION = 1
"""Version of the commands that every node applies."""
SUSPICION_VERSION = 2
"""Version of the commands that record the silence of brokers."""
ORIGIN_VERSION = 3
"""Version of the commands that name the caller who caused them."""
OPERATION_VERSION = 4
"""Version of the commands that record operations, and of restore commands that name the caller who caused them."""


class CommandKind(NamedTuple):
    """One row of the table."""

    name: str
    since: int
    """Version of the commands in which this kind first exists."""


COMMAND_KINDS = {
    (ENVELOPE_FORMAT, PLAIN): CommandKind("plain", BASE_VERSION),
    (ENVELOPE_FORMAT, REGISTER): CommandKind("register", BASE_VERSION),
    (ENVELOPE_FORMAT, UNREGISTER): CommandKind("unregister", BASE_VERSION),
    (ENVELOPE_FORMAT, EXPIRE): CommandKind("expire", BASE_VERSION),
    (ENVELOPE_FORMAT, LEAD): CommandKind("lead", BASE_VERSION),
    (ENVELOPE_FORMAT, SUSPECT): CommandKind("suspect", SUSPICION_VERSION),
    (ENVELOPE_FORMAT, ATTRIBUTED): CommandKind("attributed", ORIGIN_VERSION),
    (ENVELOPE_FORMAT, OPERATION): CommandKind("operation", OPERATION_VERSION),
    (RESTORE_MARK, BEGIN): CommandKind("restore-begin", BASE_VERSION),
    (RESTORE_MARK, PIECE): CommandKind("restore-piece", BASE_VERSION),
    (RESTORE_MARK, FINISH): CommandKind("restore-finish", BASE_VERSION),
    (RESTORE_MARK, ABANDON): CommandKind("restore-abandon", BASE_VERSION),
}


def newest_version() -> int:
    """The command version that this program applies."""
    return max(kind.since for kind in COMMAND_KINDS.values())


def version_of(command: bytes) -> int:
    """The command version that nodes need to apply ``command``."""
    head = load(command[1 : command.index(b"\n")])
    if command[0] == RESTORE_MARK:
        since = COMMAND_KINDS[RESTORE_MARK, head[1]].since
        return max(since, OPERATION_VERSION) if len(head) > RESTORE_FIELDS else since
    since = COMMAND_KINDS[command[0], head[0]].since
    if head[0] == ATTRIBUTED:
        return max(since, COMMAND_KINDS[ENVELOPE_FORMAT, head[-1][0]].since)
    return since

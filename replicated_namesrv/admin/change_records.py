"""ChangeRecords: a line of the audit log for each change of the routes that this node applied.

Every node of a CP cluster applies every change, so the log of each node names who caused it, and through which node it came.
Every node also records operations that were announced, steps of a restore, and changes of the members. A node that was down, or
that reads its Raft log again at the start, applies the changes late. Facts that the last lines of its audit log about this
cluster contain are not recorded again.

A node that receives a snapshot does not apply the changes before it. Neither does a node whose audit log ends before the snapshot
on its disk. A line ``audit-gap`` says so, and names the nodes whose logs may have these changes.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from replicated_namesrv.access.audit_log import GAP, AuditLog
from replicated_namesrv.model import ChangeOrigin
from replicated_namesrv.routes.commands import (
    ChangeWritePerm,
    Command,
    DeleteKVConfig,
    DeleteTopic,
    PutKVConfig,
    RegisterBroker,
    RegisterTopic,
    UnregisterBrokers,
    UpdateSettings,
)
from replicated_namesrv.service import AppliedChange

BROKERS_MAX = 20
"""Maximum number of brokers that a line about one removal names."""
TAIL_BYTES = 1 << 20
"""Length of the end of a file that is searched for the last lines."""
RECEIVED = "this node received a snapshot in place of the changes"
OPENED = "the audit log ends before the snapshot with which this node started"
"""Reasons for a gap in the audit log."""
CHARACTERS_MAX = 1_000


class RecordedCluster(NamedTuple):
    """The cluster whose log a node applies."""

    cluster_id: str
    """Identifies the cluster. Another cluster with the same name has another id, so that the revisions of the two are not
    confused."""
    others: Sequence[str]
    """Names of the other nodes of the cluster."""


class Recorded(NamedTuple):
    """The facts about one cluster in the audit log."""

    revision: int = 0
    """Revision of the newest recorded change, or the one up to which a gap is recorded."""
    serial: int = 0
    """Serial of the newest requested operation."""
    members_at: int = 0
    """Log index of the newest change of the members."""
    members: Mapping[str, str] | None = None
    """The members after this change."""
    steps: frozenset[tuple[str, str]] = frozenset()
    """Recorded steps of restores: (step, id of the restore)."""


class ChangeRecords:
    """Records the changes that one node applies. Implements ``service.LogEvents``."""

    def __init__(self, audit: AuditLog, cluster: Callable[[], RecordedCluster | None] | None) -> None:
        """``cluster`` returns the cluster, or None while it is unknown. An independent node gives None in place of the function.
        Then lines have no revision: its revisions are valid for one process only, and the data directory may be used in a cluster
        later."""
        self._audit, self._cluster = audit, cluster
        self._recorded: Recorded | None = Recorded() if cluster is None else None
        """The content of the audit log; None while the cluster is unknown."""
        self._cluster_id: str | None = None
        self._skipped = 0
        """Revision of the snapshot that the node read before the cluster was known; 0: none."""

    def note(self, change: AppliedChange) -> None:
        """Record a change, unless the log has it already."""
        if self._cluster is not None:
            recorded = self._known()
            if change.revision <= recorded.revision:
                return
            self._recorded = recorded._replace(revision=change.revision)
        revision = None if self._cluster is None else change.revision
        self._write("change", change.origin, change=kind_of(change), revision=revision, **facts_of(change.command))

    def requested(self, request: str, target: str, origin: ChangeOrigin | None, serial: int) -> None:
        """Record an operation before it is executed."""
        recorded = self._known()
        if serial > recorded.serial:
            self._recorded = recorded._replace(serial=serial)
            self._write("requested", origin, request=request, target=target or None, serial=serial)

    def restore(self, step: str, restore_id: str, revision: int, origin: ChangeOrigin | None) -> None:
        """Record a step of a restore. The last step replaces the state."""
        recorded = self._known()
        if (step, restore_id) not in recorded.steps:
            steps = recorded.steps | {(step, restore_id)}
            self._recorded = recorded._replace(revision=max(recorded.revision, revision), steps=steps)
            self._write("change", origin, change=step, revision=revision, restore=restore_id)

    def members(self, index: int, members: Mapping[str, str]) -> None:
        """Record the members after a change."""
        recorded = self._known()
        if index > recorded.members_at or (index == recorded.members_at and members != recorded.members):
            self._recorded = recorded._replace(members_at=index, members=members)
            if members != recorded.members:  # equal after a change of a description
                self._write("members", None, index=index, members=dict(members))

    def replaced(self, revision: int) -> None:
        """Record that this node did not apply the changes up to a revision one by one."""
        if self._recorded is None and self._find() is None:
            self._skipped = revision  # the node is being opened, and its cluster is still unknown
        else:
            self._gap(revision, RECEIVED)

    def started(self) -> None:
        """The service has started: record what the log lacks."""
        if self._cluster is not None:
            self._known()

    def _known(self) -> Recorded:
        """The facts in the audit log about this cluster. There are none if the cluster is unknown, which is only possible before
        anything is applied."""
        found = self._find() if self._recorded is None else self._recorded
        return found or Recorded()

    def _find(self) -> Recorded | None:
        cluster = None if self._cluster is None else self._cluster()
        if cluster is None:
            return None
        self._cluster_id = cluster.cluster_id
        self._recorded = recorded_of(self._audit.path, cluster.cluster_id)
        if self._skipped > self._recorded.revision:
            self._gap(self._skipped, OPENED)
        return self._recorded

    def _gap(self, revision: int, reason: str) -> None:
        assert self._recorded is not None
        assert self._cluster is not None
        cluster = self._cluster()
        first, self._recorded = (
            self._recorded.revision + 1,
            self._recorded._replace(revision=max(self._recorded.revision, revision)),
        )
        others = None if cluster is None else list(cluster.others)
        self._write(GAP, None, reason=reason, fromRevision=first, toRevision=revision, askNodes=others)

    def _write(self, event: str, origin: ChangeOrigin | None, **facts: object) -> None:
        known = {} if origin is None else {"identity": origin.identity, "address": origin.address, "receivedBy": origin.node}
        self._audit.write(event, **known, **facts, cluster=self._cluster_id)


def kind_of(change: AppliedChange) -> str:
    """The name of the request, or why brokers were removed."""
    match change.command:
        case RegisterBroker():
            return "REGISTER_BROKER"
        case UnregisterBrokers():
            return change.removal
        case RegisterTopic():
            return "REGISTER_TOPIC_IN_NAMESRV"
        case DeleteTopic():
            return "DELETE_TOPIC_IN_NAMESRV"
        case ChangeWritePerm(_, writable):
            return "ADD_WRITE_PERM_OF_BROKER" if writable else "WIPE_WRITE_PERM_OF_BROKER"
        case PutKVConfig():
            return "PUT_KV_CONFIG"
        case DeleteKVConfig():
            return "DELETE_KV_CONFIG"
        case UpdateSettings():
            return "UPDATE_NAMESRV_CONFIG"


def facts_of(command: Command) -> Mapping[str, object]:
    """The names in a command, never its values."""
    match command:
        case RegisterBroker():
            broker = f"{command.broker_name}:{command.broker_id}@{command.broker_addr}"
            return {"clusterName": short(command.cluster_name), "brokers": [short(broker)], "topics": len(command.topics or ())}
        case UnregisterBrokers():
            removals = command.removals
            brokers = [short(f"{r.broker_name}:{r.broker_id}@{r.broker_addr}") for r in removals[:BROKERS_MAX]]
            return {"brokers": brokers, "count": len(removals)}
        case RegisterTopic() | DeleteTopic():
            return {"topic": short(command.topic)}
        case ChangeWritePerm():
            return {"brokerName": short(command.broker_name)}
        case PutKVConfig() | DeleteKVConfig():
            return {"namespace": short(command.namespace), "key": short(command.key)}
        case UpdateSettings():
            return {"settings": sorted(command.values)}


def short(text: str) -> str:
    """A text of bounded length."""
    return text[:CHARACTERS_MAX]


def recorded_of(path: Path, cluster_id: str) -> Recorded:
    """The facts about a cluster at the end of the log."""
    recorded, steps = Recorded(), set()
    for file in (path.with_name(path.name + ".1"), path):
        for line in tail_of(file):
            try:
                found = json.loads(line)
            except ValueError:
                continue
            if not isinstance(found, dict) or found.get("cluster") != cluster_id:
                continue
            match found:
                case {"event": "change", "revision": int(revision)}:
                    recorded = recorded._replace(revision=max(recorded.revision, revision))
                    if isinstance(restore_id := found.get("restore"), str):
                        steps.add((str(found.get("change")), restore_id))
                case {"event": "audit-gap", "toRevision": int(revision)}:
                    recorded = recorded._replace(revision=max(recorded.revision, revision))
                case {"event": "requested", "serial": int(serial)}:
                    recorded = recorded._replace(serial=max(recorded.serial, serial))
                case {"event": "members", "index": int(index), "members": dict(members)}:
                    recorded = recorded._replace(members_at=index, members=members)
    return recorded._replace(steps=frozenset(steps))


def tail_of(file: Path) -> list[bytes]:
    """The last lines of a file. The first of them may be cut off."""
    try:
        with file.open("rb") as source:
            source.seek(max(0, source.seek(0, 2) - TAIL_BYTES))
            return source.read().splitlines()
    except OSError:
        return []

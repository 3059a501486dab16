"""ChangeRecords: a line of the audit log for each change of the routes that this node applied.

Every node of a CP cluster applies every change, so the log of each node names who caused it, and over which node. A node that
reads its log again at the start, or was down, applies changes late. Changes up to the revision of the last line are not recorded
again.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from replicated_namesrv.access.audit_log import AuditLog
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
"""Brokers of one removal that a line names."""
TAIL_BYTES = 1 << 20
"""End of the log in which the last recorded revision is looked for."""
CHARACTERS_MAX = 1_000


class ChangeRecords:
    """Records the changes of one node."""

    def __init__(self, audit: AuditLog, revisions_last: bool) -> None:
        """``revisions_last``: revisions are those of the cluster and continue after a restart of this node. Otherwise lines have
        no revision, because the data directory may be used in a cluster later."""
        self._audit, self._revisions_last = audit, revisions_last
        self._recorded = last_revision(audit.path) if revisions_last else 0

    def note(self, change: AppliedChange) -> None:
        """Record a change, unless the log has it."""
        if change.revision <= self._recorded:
            return
        self._recorded = change.revision
        origin = change.origin
        self._audit.write(
            "change",
            change=kind_of(change),
            revision=change.revision if self._revisions_last else None,
            identity=None if origin is None else origin.identity,
            address=None if origin is None else origin.address,
            receivedBy=None if origin is None else origin.node,
            **facts_of(change.command),
        )


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


def last_revision(path: Path) -> int:
    """The revision in the last line about a change; 0: there is none near the end."""
    for file in (path, path.with_name(path.name + ".1")):
        try:
            with file.open("rb") as source:
                size = source.seek(0, 2)
                source.seek(max(0, size - TAIL_BYTES))
                lines = source.read().splitlines()
        except OSError:
            continue
        for line in reversed(lines):
            try:
                found = json.loads(line)
            except ValueError:
                continue
            if isinstance(found, dict) and found.get("event") == "change" and isinstance(found.get("revision"), int):
                return int(found["revision"])
    return 0

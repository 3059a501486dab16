"""Reads files and messages with the code of an earlier version, and prints their content as JSON.

``python earlier_version.py CHECKOUT FOLDER`` imports that version from its checkout, so this file imports nothing else of the
project. ``FOLDER`` has ``log``, ``snapshots`` with one file, ``backup``, ``kvConfig.json``, and ``raft`` and ``replication`` with
one message in hexadecimal digits per line.
"""

import json
import sys
from collections.abc import Iterable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any


def facts(state: Any) -> dict[str, Any]:
    """The content of a state of the routes."""
    tables = state._tables
    return {
        "revision": state.revision,
        "revisions": dict(state.topic_revisions),
        "topics": {name: dict(group.topics) for name, group in tables.groups.items()},
        "clusters": {cluster: list(names) for cluster, names in tables.cluster_names.items()},
        "live": list(tables.live.values()),
        "mappings": {name: dict(infos) for name, infos in tables.mappings.items()},
        "kv": {namespace: dict(entries) for namespace, entries in tables.kv.items()},
    }


def plain(value: Any) -> Any:
    """A message as JSON values."""
    if isinstance(value, bytes):
        return value.hex()
    return [plain(each) for each in value] if isinstance(value, (tuple, list)) else value


def messages(path: Path) -> Iterable[bytes]:
    return map(bytes.fromhex, path.read_text().split())


def main() -> None:
    checkout, folder = sys.argv[1], Path(sys.argv[2])
    sys.path.insert(0, checkout)

    part = partial(import_module, package="replicated_namesrv")  # mypy knows only the present modules
    files, replication, machine = part(".raft.files"), part(".replication.messages"), part(".replication.machine")
    restorable = part(".replication.restore").RestorableMachine

    log = part(".raft.log").Log(files.FileStorage(folder / "log"))
    replayed = restorable(machine.RouteStateMachine())
    for payload, index, _ in log.entries(log.first_index + 1, log.last_index - log.first_index):
        assert index <= log.last_index
        replayed.apply(payload)

    storage = files.FileStorage(folder / "snapshots")
    (name,) = storage.list_names()
    reader = part(".raft.snapshots").Reader(storage, name)
    loaded = restorable(machine.RouteStateMachine())
    restoration = loaded.restore()
    for chunk in reader.chunks():
        restoration.feed(chunk)
    restoration.finish()

    backup, restored = part(".routes.backup").BackupReader(), part(".routes.state").RouteInfoManager()
    parts = [backup.feed((folder / "backup").read_bytes())]
    head = backup.finish()
    restored.restore(parts)

    raft_messages = [part(".raft.messages").decode(data) for data in messages(folder / "raft")]
    other_messages = [replication.decode(data) for data in messages(folder / "replication")]
    found = {
        "log": facts(replayed.machine.state),
        "term and vote": [log.getCurrentTerm(), log.getVotedForNodeId()],
        "metadata": list(reader.metadata),
        "snapshot": facts(loaded.machine.state),
        "backup": facts(restored),
        "revision of the backup": head.revision,
        "kv file": part(".compat.kv_file").read_kv_file(folder / "kvConfig.json"),
        "raft": [[type(message).__name__, plain(message)] for message in raft_messages],
        "replication": [[type(message).__name__, plain(message)] for message in other_messages],
    }
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()

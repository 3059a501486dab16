"""``namesrv recover DIR --force-new-cluster ID``: makes a surviving node the first member of a new cluster, with its state.

The node founds a new cluster in a folder next to its old log, and restores the state there as 'namesrv restore' does. Then
the two folders are swapped. So the new cluster has a new id and a new history: nodes of the old cluster are refused, and their
logs cannot be mixed. Nothing is deleted.
"""

import asyncio
import re
import secrets
import shutil
from dataclasses import replace
from pathlib import Path

from replicated_namesrv.errors import SettingError, StorageError
from replicated_namesrv.files import give_to_owner, sync_folder
from replicated_namesrv.raft.raft_errors import RaftError
from replicated_namesrv.raft.recovery import Recovered, check_unused
from replicated_namesrv.replication.peer_settings import transport_settings
from replicated_namesrv.replication.replicated_node import ReplicatedNode
from replicated_namesrv.routes.state import RouteInfoManager
from replicated_namesrv.settings_sources import load_settings

RAFT, OLD, NEW = "raft", "raft.before-new-cluster", "new-cluster"
_LOOPBACK = "127.0.0.1"
_ID = re.compile(r"[A-Za-z0-9._-]{1,100}")
"""Ids that a properties file and a command line take unchanged. An empty ``clusterId`` means the default id."""


def check_place(directory: Path, data_dir: Path, old_id: str, new_id: str) -> None:
    """Raise SettingError if the new cluster cannot be made in this data directory. ``directory``: the folder of the log that was
    read."""
    if directory.resolve() != (data_dir / RAFT).resolve():
        raise SettingError(f"{directory}: --force-new-cluster takes the dataDir of the node, or the folder {RAFT} in it")
    if _ID.fullmatch(new_id) is None:
        raise SettingError(f"--force-new-cluster {new_id[:200]!r}: give 1 to 100 letters, digits, '.', '_' and '-'")
    if new_id == old_id:
        raise SettingError(
            f"--force-new-cluster {new_id} is the id of the old cluster; give another one, so that its other nodes are refused"
        )
    if (data_dir / OLD).exists():
        raise SettingError(f"{data_dir / OLD} exists, from an earlier recovery; move it away first")


def was_made(directory: Path, data_dir: Path, found: Recovered, new_id: str) -> bool:
    """Whether a former call has made the new cluster ``new_id`` already, and no member was added since then. Removes what an
    interrupted call left. ``directory``: the folder of the log that was read."""
    if (
        directory.resolve() != (data_dir / RAFT).resolve()
        or found.cluster != new_id
        or found.members != (found.node,)
        or not (data_dir / OLD).is_dir()
    ):
        return False
    shutil.rmtree(data_dir / NEW, ignore_errors=True)
    return True


def make(data_dir: Path, node: str, cluster_id: str, state: RouteInfoManager) -> None:
    """Replace the log in ``data_dir`` by that of a cluster with the only member ``node``. Raises StorageError."""
    aside = data_dir / NEW
    try:
        if aside.exists():  # an earlier attempt was interrupted
            shutil.rmtree(aside)
        aside.mkdir()
        asyncio.run(_found(aside, node, cluster_id, state))
        give_to_owner(data_dir, aside / RAFT, *(aside / RAFT).rglob("*"))
        check_unused(data_dir / RAFT)  # the node may have been started since its log was read
        (data_dir / RAFT).rename(data_dir / OLD)
        (aside / RAFT).rename(data_dir / RAFT)
        sync_folder(data_dir)
        shutil.rmtree(aside)
    except RaftError as error:
        raise StorageError(f"nothing was changed: {error}") from None
    except OSError as cause:
        raise StorageError(
            f"{data_dir}: {cause.strerror or cause}; correct it and repeat the command. If {RAFT} is missing there, first rename "
            f"{OLD} to {RAFT}"
        ) from None


async def _found(folder: Path, node: str, cluster_id: str, state: RouteInfoManager) -> None:
    """Found the cluster in ``folder`` and restore the state. The node listens on a free loopback port, and no peer connects."""
    flags = {"mode": "cp", "nodeId": node, "clusterId": cluster_id, "peers": f"{node}={_LOOPBACK}:1", "dataDir": str(folder)}
    settings = load_settings(flags=flags, environment={})
    transport = replace(transport_settings(settings), listen=(_LOOPBACK, 0), secret=secrets.token_bytes(32))
    service = ReplicatedNode(settings, transport)
    await service.start()
    try:
        state.compares_content = service.state.compares_content
        result = await service.restore(state.snapshot())
        if result.code:
            raise StorageError(f"the state was refused by the new cluster: {result.remark}; nothing was changed")
    finally:
        await service.stop()

"""``namesrv serve`` with faults that a running node can be given: each lasts while a file of its name is in dataDir.

    slow-syncs    each sync of the log waits first, for the milliseconds in the file or until the file is gone
    disk-full     the disk of dataDir reports that no space is free
    wrong-state   once: a command of the log also changes something that it must not change

python -m tests.support.faulty_node DATA_DIR [options of namesrv serve]
"""

import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from replicated_namesrv.cli.children import NodePlan
from replicated_namesrv.cli.main import run_command
from replicated_namesrv.raft.file_storage import FileStorage
from replicated_namesrv.replication.route_machine import ProposalResult, RouteStateMachine
from replicated_namesrv.routes.commands import PutKVConfig

SLOW_SYNCS, DISK_FULL, WRONG_STATE = "slow-syncs", "disk-full", "wrong-state"
LOOK_S = 0.01


class FaultyNode(NodePlan):
    """A node whose process can be given faults."""

    def command(self) -> list[str]:
        """The command line that runs this node."""
        python, _, _, _, *options = super().command()
        return [python, "-m", "tests.support.faulty_node", str(self.data_dir), *options]


def install(folder: Path) -> None:
    """Let the faults depend on the files in ``folder``."""
    sync, apply, statvfs = FileStorage.sync, RouteStateMachine.apply, os.statvfs

    def slow(storage: FileStorage, names: Sequence[str], directory: bool) -> None:
        file = folder / SLOW_SYNCS
        if threading.current_thread().name.startswith("raft-log-sync") and file.exists():
            until = time.monotonic() + int(file.read_text()) / 1000
            while file.exists() and time.monotonic() < until:
                time.sleep(LOOK_S)
        sync(storage, names, directory)

    def wrong(machine: RouteStateMachine, data: bytes) -> ProposalResult:
        if (folder / WRONG_STATE).exists():
            (folder / WRONG_STATE).unlink()
            machine.state.apply(PutKVConfig("fault", "key", "value"), machine.time_ms)
        return apply(machine, data)

    def full(path: Any) -> Any:
        found = statvfs(path)
        if not (folder / DISK_FULL).exists():
            return found
        return SimpleNamespace(f_bavail=0, f_bfree=0, f_frsize=found.f_frsize, f_bsize=found.f_bsize, f_blocks=found.f_blocks)

    cast(Any, FileStorage).sync = slow
    cast(Any, RouteStateMachine).apply = wrong
    cast(Any, os).statvfs = full


if __name__ == "__main__":
    install(Path(sys.argv[1]))
    sys.exit(run_command("serve", sys.argv[2:]))

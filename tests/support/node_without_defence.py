"""``namesrv serve`` with defences of the Raft core switched off, or on a slow disk, or with slow elections.

python -m tests.support.node_without_defence [--off DEFENCE,…] [--sync-ms MS] [--election-ms MS] [options of namesrv serve]
"""

import argparse
import sys
import threading
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, cast

from replicated_namesrv.cli.main import run_command
from replicated_namesrv.raft.file_storage import FileStorage
from replicated_namesrv.raft.raft_config import Defences, RaftConfig


def switch_off(names: Sequence[str]) -> None:
    """Switch these defences off in this process. Raises ValueError if there is no such defence."""
    for name in names:
        Defences.without(name)
    _change_defaults(Defences, dict.fromkeys(names, False))


def slow_down_elections(least_ms: int) -> None:
    """Set the minimum election time, which also determines the length of leases."""
    _change_defaults(RaftConfig, {"election_min_ms": least_ms, "election_max_ms": least_ms * 2})


def _change_defaults(kind: Any, changed: dict[str, Any]) -> None:
    defaults = kind.__init__.__defaults__
    own = dict(zip([field.name for field in fields(kind)], defaults, strict=True))
    kind.__init__.__defaults__ = tuple((own | changed).values())


def slow_down_disk(sync_ms: int) -> None:
    """Make every sync of this process take this much longer."""
    sync, never = FileStorage.sync, threading.Event()

    def slow(storage: FileStorage, names: Sequence[str], directory: bool) -> None:
        never.wait(sync_ms / 1000)
        sync(storage, names, directory)

    cast(Any, FileStorage).sync = slow


def main() -> int:
    """Apply the options, and serve."""
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    parser.add_argument("--off")
    parser.add_argument("--sync-ms", type=int)
    parser.add_argument("--election-ms", type=int)
    changes, rest = parser.parse_known_args()
    if changes.off is not None:
        switch_off(changes.off.split(","))
    if changes.sync_ms is not None:
        slow_down_disk(changes.sync_ms)
    if changes.election_ms is not None:
        slow_down_elections(changes.election_ms)
    return run_command("serve", rest)


if __name__ == "__main__":
    sys.exit(main())

"""``namesrv serve`` with defences of the Raft core switched off, to see that a chaos run notices.

python -m tests.support.node_without_defence DEFENCE[,DEFENCE...] [options of namesrv serve]
"""

import sys
from dataclasses import fields
from typing import Any, cast

from replicated_namesrv.cli.main import run_command
from replicated_namesrv.raft.config import Defences


def switch_off(names: set[str]) -> None:
    """Make these default to False in this process. Raises ValueError if there is no such defence."""
    for name in names:
        Defences.without(name)
    constructor = cast(Any, Defences.__init__)
    constructor.__defaults__ = tuple(field.name not in names for field in fields(Defences))


if __name__ == "__main__":
    switch_off(set(sys.argv[1].split(",")))
    sys.exit(run_command("serve", sys.argv[2:]))

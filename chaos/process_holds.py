"""The faults that keep a node's process dead or paused. Pure.

Faults can overlap. A node is dead while at least one fault keeps it dead. Otherwise it is paused while at least one fault keeps
it paused. So the end of one fault does not start or resume a node that another fault still keeps dead or paused.
"""

from collections import defaultdict
from enum import IntEnum


class Hold(IntEnum):
    """The effect of a fault on a process. The largest hold in force decides."""

    PAUSED = 1
    DEAD = 2


class ProcessHolds:
    """The holds of all faults on all nodes."""

    def __init__(self) -> None:
        self._holds: defaultdict[str, dict[int, Hold]] = defaultdict(dict)

    def add(self, fault: int, node: str, hold: Hold) -> None:
        """Let ``fault`` hold ``node``."""
        self._holds[node][fault] = hold

    def remove(self, fault: int, node: str) -> None:
        """End the hold of ``fault`` on ``node``, if there is one."""
        self._holds[node].pop(fault, None)

    def state(self, node: str) -> str:
        """The state that the holds in force require: running, paused or dead, as ``ChildProcess.state``."""
        strongest = max(self._holds[node].values(), default=None)
        return "running" if strongest is None else strongest.name.lower()

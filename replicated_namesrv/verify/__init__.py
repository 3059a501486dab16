"""What consistency means, defined once for the simulator, for chaos runs and for the analysis of traces.

This module exports the linearizability checker. ``verify.sessions`` defines the session guarantees, ``verify.divergence`` how far
nodes differ, ``verify.attribution`` which write a read saw.
"""

from replicated_namesrv.verify.history import HistoryError, Operation, Outcome, read_history, write_history
from replicated_namesrv.verify.linearizability import HistoryVerdict, KeyVerdict, Limits, Verdict, check_history

__all__ = [
    "HistoryError",
    "HistoryVerdict",
    "KeyVerdict",
    "Limits",
    "Operation",
    "Outcome",
    "Verdict",
    "check_history",
    "read_history",
    "write_history",
]

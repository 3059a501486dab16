"""Definitions of consistency, shared by the simulator, chaos runs and the analysis of traces.

This module exports the linearizability checker. ``session_guarantees`` defines session guarantees. ``divergence``
defines the difference between nodes. ``attribution`` defines which write a read saw.
"""

from replicated_namesrv.verify.linearizability import HistoryVerdict, KeyVerdict, SearchLimits, Verdict, check_history
from replicated_namesrv.verify.operation_history import HistoryError, Operation, Outcome, read_history, write_history

__all__ = [
    "HistoryError",
    "HistoryVerdict",
    "KeyVerdict",
    "Operation",
    "Outcome",
    "SearchLimits",
    "Verdict",
    "check_history",
    "read_history",
    "write_history",
]

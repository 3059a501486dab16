"""What consistency means, defined once for the simulator, for chaos runs and for the analysis of traces.

This module exports the linearizability checker. ``verify.session_guarantees`` defines these, ``verify.divergence`` how far nodes
differ, ``verify.attribution`` which write a read saw.
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

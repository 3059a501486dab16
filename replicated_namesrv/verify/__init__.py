"""The linearizability checker: the only one, used by the simulator, by chaos runs and by trace analysis."""

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

"""RunningClock: counts only time in which this process ran."""

STEP_MAX_MS = 1_000.0


class RunningClock:
    """A clock that stops while the process is stopped: a step longer than STEP_MAX_MS counts as STEP_MAX_MS."""

    def __init__(self, now_ms: float) -> None:
        self._last_ms = now_ms
        self._elapsed_ms = 0.0

    def read(self, now_ms: float) -> float:
        """Milliseconds run so far. Call it at least every STEP_MAX_MS / 2."""
        self._elapsed_ms += min(max(0.0, now_ms - self._last_ms), STEP_MAX_MS)
        self._last_ms = now_ms
        return self._elapsed_ms

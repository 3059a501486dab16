"""Log lines that unauthenticated hosts can cause, limited to one line per kind and interval."""

import logging
import time
from collections.abc import Callable

log = logging.getLogger("replicated_namesrv.server")

INTERVAL_S = 10.0


class Problems:
    """Logs the first problem of a kind at once and then at most one per ``INTERVAL_S``, with the number left out."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._last_s: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def report(self, kind: str, message: str, *, error: BaseException | None = None, **facts: object) -> None:
        """``kind`` is one of a fixed set of words. With ``error`` its traceback is logged."""
        now_s = self._now_s()
        last_s = self._last_s.get(kind)
        if last_s is not None and now_s - last_s < INTERVAL_S:
            self._left_out[kind] = self._left_out.get(kind, 0) + 1
            return
        self._last_s[kind] = now_s
        left_out = self._left_out.pop(kind, 0)
        if left_out:
            facts["left_out"] = left_out
        log.log(logging.ERROR if error else logging.WARNING, message, extra=facts, exc_info=error)

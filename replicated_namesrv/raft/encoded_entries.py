"""Encoded entries, kept for the followers that are in step."""

from replicated_namesrv.raft.entry_log import Log
from replicated_namesrv.raft.payloads import pack_entries

ENCODED_BYTES_MAX = 1 << 20
"""Four messages of usual size; a single longer one is kept too."""


UNDEFENDED_SLICES_MAX = 16


class EncodedEntries:
    """Slices of the log as messages carry them."""

    def __init__(self, log: Log, is_bounded: bool = True) -> None:
        """``is_bounded``: the defence ``encoded_bound``."""
        self._log, self._is_bounded = log, is_bounded
        self._slices: dict[tuple[int, int, int], bytes] = {}
        """By (first index, count, term of the last), oldest first."""
        self.bytes = 0
        self._used = False
        """Since the last heartbeat."""

    def __len__(self) -> int:
        return len(self._slices)

    def encoded(self, index: int, count: int) -> bytes:
        """``count`` entries from ``index`` on; followers in step share one."""
        log, slices = self._log, self._slices
        key = index, count, log.term_at(index + count - 1) or 0
        self._used = True
        found = slices.get(key)
        if found is None:
            found = pack_entries(log.entries(index, count))
            self.bytes += len(found)
            while slices and self._exceeds():
                self.bytes -= len(slices.pop(next(iter(slices))))
            slices[key] = found
        return found

    def _exceeds(self) -> bool:
        return self.bytes > ENCODED_BYTES_MAX if self._is_bounded else len(self._slices) >= UNDEFENDED_SLICES_MAX

    def heartbeat(self) -> None:
        """Drop everything if nothing was used since the last heartbeat."""
        if self._used:
            self._used = False
        elif self._slices and self._is_bounded:
            self.drop()

    def drop(self) -> None:
        """Release everything."""
        self._slices.clear()
        self.bytes, self._used = 0, False

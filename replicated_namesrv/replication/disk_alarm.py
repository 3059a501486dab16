"""DiskAlarm: whether the disks of all nodes have room for more data.

A node whose disk is nearly full notifies the others once a second. Then all of them refuse everything that adds to the state,
because each entry of the log is written to every disk. The alarm ends by itself: on the node when there is room again, on the
others when they have not received the message for ``SILENCE_MS``. A node that cannot be reached raises no alarm. The alarms of
nodes without a vote do not count: commits do not wait for them.
"""

from collections.abc import Callable

from replicated_namesrv.files import DiskReserve

DISK_SHORT = b"\x06"
"""The message. Its only byte is a kind that no message of ``leader_messages.py`` has. Version 0.1 drops it."""
REPEAT_MS, SILENCE_MS = 1_000.0, 5_000.0
ENOUGH_BYTES = 8 << 20
"""Room for the usual requests that add to the state."""


class DiskAlarm:
    """The alarm of one node."""

    def __init__(
        self,
        disk: DiskReserve,
        send: Callable[[bytes], None],
        keep_log_short: Callable[[bool], None],
        now_ms: Callable[[], float],
        votes: Callable[[str], bool],
    ) -> None:
        """``send``: sends a message to all other nodes. ``keep_log_short``: called with True when this node's disk becomes short
        of space, and with False when ``ENOUGH_BYTES`` may be added again. In between, deleted data has to leave the log soon.
        ``votes``: whether a node is a voter."""
        self.disk = disk
        self._send, self._keep_log_short, self._now_ms, self._votes = send, keep_log_short, now_ms, votes
        self._was_short = self._log_is_short = False
        self._send_at_ms = 0.0
        self._heard_ms: dict[str, float] = {}
        """When this message last arrived from each other node."""

    @property
    def _others(self) -> list[str]:
        now_ms = self._now_ms()
        return sorted(peer for peer, heard_ms in self._heard_ms.items() if now_ms - heard_ms < SILENCE_MS and self._votes(peer))

    def room(self) -> int:
        """Bytes that may be added to the state."""
        return 0 if self._others else self.disk.room()

    @property
    def warning(self) -> str | None:
        """A warning for operators; None if there is room."""
        others = self._others
        if self.disk.warning is not None or not others:
            return self.disk.warning
        return f"the disk of {', '.join(others)} is nearly full: requests that add data are refused until there is room"

    def tick(self) -> None:
        """Check this node's disk, and send the message if it is due."""
        room, is_short = self.disk.room(), self.disk.is_short
        if is_short != self._was_short:
            self._was_short = is_short
            self._send_at_ms = 0.0
        log_is_short = is_short or (self._log_is_short and room < ENOUGH_BYTES)
        if log_is_short != self._log_is_short:
            self._log_is_short = log_is_short
            self._keep_log_short(log_is_short)
        if is_short and self._now_ms() >= self._send_at_ms:
            self._send_at_ms = self._now_ms() + REPEAT_MS
            self._send(DISK_SHORT)

    def received(self, peer: str, data: bytes) -> bool:
        """Process ``data`` if it is the message of this alarm. Returns whether it is."""
        if data != DISK_SHORT:
            return False
        self._heard_ms[peer] = self._now_ms()
        return True

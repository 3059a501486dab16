"""Cutting the long lines of a snapshot into short ones, so that no step of reading it takes long.

Earlier versions wrote lines of up to 5,000 entries whatever their size, and backups are kept. Lines whose entries are written one
after the other (kv, mappings, live) are cut between entries, as their bytes come and without decoding them. The others hold
names and numbers only.
"""

import re

LINE_BYTES = 256 << 10
"""A longer line is cut, and its parts get about this size; one entry alone may have more."""
_HEAD = re.compile(rb' ?\["(?:live"|(?:kv|mappings)","[^"\\]*(?:\\.[^"\\]*)*"),\[', re.DOTALL)
"""Of a line that can be cut: all before its first entry."""
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:(?P<closed>")|\\?\Z)|[\[\],\n]', re.DOTALL)
"""What decides where an entry ends: a string, whole or cut off by the end of the bytes, and what stands between values."""
_END = re.compile(rb'\["end",([0-9]+)\]')


class LineCutter:
    """Takes the bytes of a snapshot, cut anywhere, and gives out the same snapshot with short lines.

    Other bytes are passed on, and the reader refuses them.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        """What has not been given out: the beginning of a line, or entries of the line being cut."""
        self._scanned = 0
        """So many bytes of it have been looked at."""
        self._head = b""
        """Of the line being cut; empty: none is."""
        self._depth = 0
        """Brackets open at ``_scanned``, counted from between two entries."""
        self._cuts = 0
        self._given: list[bytes] = []

    def feed(self, data: bytes) -> list[bytes]:
        """Lines that are known now. Costs the bytes of ``data``."""
        self._buffer += data
        while self._cut() if self._head else self._take_line():
            pass
        given, self._given = self._given, []
        return given

    def finish(self) -> bytes:
        """What is left once everything was fed: nothing, unless the snapshot is cut off."""
        return self._head + bytes(self._buffer)

    def _take_line(self) -> bool:
        """Whether there was a line, or the beginning of one to cut."""
        buffer = self._buffer
        end = buffer.find(b"\n", self._scanned)
        self._scanned = len(buffer)
        if (end if end >= 0 else len(buffer)) > LINE_BYTES and (head := _HEAD.match(buffer)) is not None:
            self._head = head.group()
            self._give(b"", head.end())
            return True
        if end >= 0:
            line = bytes(buffer[: end + 1])
            if (last := _END.match(line)) is not None:
                line = b'["end",%d]\n' % (int(last.group(1)) + self._cuts)
            self._give(line, end + 1)
        return end >= 0

    def _cut(self) -> bool:
        """Whether the line being cut came to its end."""
        buffer, start, end = self._buffer, 0, 0
        scanned = len(buffer)
        for token in _TOKEN.finditer(buffer, self._scanned):
            match buffer[token.start()]:
                case 0x5B:  # [
                    self._depth += 1
                case 0x5D:  # ]
                    self._depth -= 1
                case 0x2C if not self._depth and token.start() - start > LINE_BYTES:
                    self._given.append(self._head + bytes(buffer[start : token.start()]) + b"]]\n")
                    self._cuts += 1
                    start = token.end()
                case 0x0A:
                    end = token.end()
                    break
                case 0x22 if token["closed"] is None:
                    scanned = token.start()
        if end:
            head, self._head, self._depth = self._head, b"", 0
            self._give(head + bytes(buffer[start:end]), end)
        else:
            self._scanned = scanned - start
            del buffer[:start]
        return bool(end)

    def _give(self, line: bytes, size: int) -> None:
        """Give out ``line`` in the place of the first ``size`` bytes."""
        if line:
            self._given.append(line)
        del self._buffer[:size]
        self._scanned = 0

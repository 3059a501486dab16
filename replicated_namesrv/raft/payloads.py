"""What an entry holds. The first byte is PySyncObj's command type (0 regular, 1 no-op), the second ours.

A proposals entry is a sequence of groups, each from one origin:
``node length u16, node, incarnation u64, boot u32, floor u64, count u32`` and per proposal ``number u64, length u32, command``.
Decoding checks every length and raises MalformedError on anything else.
"""

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from replicated_namesrv.raft.interfaces import MalformedError
from replicated_namesrv.raft.log import Entry
from replicated_namesrv.raft.sessions import Origin

NO_OP = b"\x01"
PROPOSALS = b"\x00\x00"
JOIN = b"\x00\x01"
GROUP = struct.Struct("<QIQI")
PROPOSAL = struct.Struct("<QI")
WIRE_ENTRY = struct.Struct("<IQ")
JOINING = struct.Struct("<QH")


class Group(NamedTuple):
    origin: Origin
    floor: int
    """No number below this will be proposed again."""
    proposals: list[tuple[int, bytes]]


def pack_group(origin: Origin, floor: int, proposals: Sequence[tuple[int, bytes]]) -> bytes:
    name = origin.node.encode()
    parts = [len(name).to_bytes(2, "little"), name, GROUP.pack(origin.incarnation, origin.boot, floor, len(proposals))]
    pack = PROPOSAL.pack
    for number, command in proposals:
        parts.append(pack(number, len(command)))
        parts.append(command)
    return b"".join(parts)


def unpack_groups(data: bytes, offset: int = 0) -> list[Group]:
    groups = []
    end, unpack, size = len(data), PROPOSAL.unpack_from, PROPOSAL.size
    try:
        while offset < end:
            start = offset + 2
            offset = start + int.from_bytes(data[offset:start], "little")
            name = data[start:offset].decode()
            incarnation, boot, floor, count = GROUP.unpack_from(data, offset)
            offset += GROUP.size
            proposals = []
            for _ in range(count):
                number, length = unpack(data, offset)
                offset += size + length
                proposals.append((number, data[offset - length : offset]))
            groups.append(Group(Origin(name, incarnation, boot), floor, proposals))
    except (struct.error, UnicodeDecodeError):
        raise MalformedError("proposals end in the middle") from None
    if offset != end:
        raise MalformedError("proposals end in the middle")
    return groups


def pack_join(node: str, incarnation: int) -> bytes:
    """Promotion of a node that lost its disk: from this entry on ``incarnation`` votes under the name ``node``."""
    name = node.encode()
    return JOIN + JOINING.pack(incarnation, len(name)) + name


def unpack_join(payload: bytes) -> tuple[str, int]:
    try:
        incarnation, length = JOINING.unpack_from(payload, 2)
    except (struct.error, UnicodeDecodeError):
        raise MalformedError("a join ends in the middle") from None
    name = payload[2 + JOINING.size :]
    if len(name) != length:
        raise MalformedError("a join has the wrong length")
    return name.decode(), incarnation


def pack_entries(entries: Iterable[Entry]) -> bytes:
    """Entries of consecutive indexes as they travel: ``length u32, term u64, payload`` each."""
    parts = []
    for payload, _, term in entries:
        parts.append(WIRE_ENTRY.pack(len(payload), term))
        parts.append(payload)
    return b"".join(parts)


def unpack_entries(data: bytes, first_index: int) -> list[Entry]:
    entries: list[Entry] = []
    offset, end = 0, len(data)
    while offset < end:
        if offset + WIRE_ENTRY.size > end:
            raise MalformedError("entries end in the middle")
        length, term = WIRE_ENTRY.unpack_from(data, offset)
        offset += WIRE_ENTRY.size + length
        payload = data[offset - length : offset]
        if offset > end or not (payload == NO_OP or payload[:2] in (PROPOSALS, JOIN)):
            raise MalformedError(f"entry {first_index + len(entries)} is malformed")
        entries.append((payload, first_index + len(entries), term))
    return entries

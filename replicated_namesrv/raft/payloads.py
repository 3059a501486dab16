"""The content of an entry. The first byte is PySyncObj's command type (0 regular, 1 no-op), the second ours.

A proposals entry is a sequence of groups, each from one origin:
``node length u16, node, incarnation u64, boot u32, floor u64, count u32`` and per proposal ``number u64, length u32, command``.
Decoding checks every length and raises MalformedError on anything else.
"""

import struct
from collections.abc import Iterable, Sequence

from replicated_namesrv.raft.entry_log import Entry
from replicated_namesrv.raft.members import MEMBERS_ENTRY, unpack_members
from replicated_namesrv.raft.raft_errors import MalformedError
from replicated_namesrv.raft.sessions import Origin

NO_OP = b"\x01"
PROPOSALS = b"\x00\x00"
JOIN = b"\x00\x01"
ORIGIN = struct.Struct("<QI")
PROPOSAL = struct.Struct("<QI")
"""(number, length) before a proposal; also (floor, count) before a group."""
WIRE_ENTRY = struct.Struct("<IQ")
JOINING = struct.Struct("<QH")


Group = tuple[Origin, int, list[tuple[int, bytes]]]
"""(origin, floor, proposals). The origin proposes no number below the floor again. A proposal is (number, command)."""


def pack_group(origin: Origin, floor: int, proposals: Sequence[tuple[int, bytes]]) -> bytes:
    name = origin.node.encode()
    head = ORIGIN.pack(origin.incarnation, origin.boot) + PROPOSAL.pack(floor, len(proposals))
    parts = [len(name).to_bytes(2, "little"), name, head]
    pack = PROPOSAL.pack
    for number, command in proposals:
        parts.append(pack(number, len(command)))
        parts.append(command)
    return b"".join(parts)


_origins: dict[bytes, Origin] = {}
"""Cache of origins by their encoding, because the same few origins occur in all entries."""
ORIGINS_CACHED_MAX = 1_000


def _origin(encoded: bytes) -> Origin:
    incarnation, boot = ORIGIN.unpack_from(encoded, len(encoded) - ORIGIN.size)
    if len(_origins) >= ORIGINS_CACHED_MAX:
        _origins.clear()
    origin = _origins[encoded] = Origin(encoded[: -ORIGIN.size].decode(), incarnation, boot)
    return origin


def unpack_groups(data: bytes, offset: int = 0) -> list[Group]:
    groups = []
    end, unpack, size = len(data), PROPOSAL.unpack_from, PROPOSAL.size
    try:
        while offset < end:
            start = offset + 2
            offset = start + int.from_bytes(data[offset:start], "little") + ORIGIN.size
            encoded = data[start:offset]
            origin = _origins.get(encoded) or _origin(encoded)
            floor, count = unpack(data, offset)
            offset += size
            proposals = []
            for _ in range(count):
                number, length = unpack(data, offset)
                offset += size + length
                proposals.append((number, data[offset - length : offset]))
            groups.append((origin, floor, proposals))
    except (struct.error, UnicodeDecodeError):
        raise MalformedError("proposals end in the middle") from None
    if offset != end:
        raise MalformedError("proposals end in the middle")
    return groups


def pack_join(node: str, incarnation: int) -> bytes:
    """Promotion of a node that lost its disk: after this entry ``incarnation`` votes for ``node``."""
    name = node.encode()
    return JOIN + JOINING.pack(incarnation, len(name)) + name


def unpack_join(payload: bytes) -> tuple[str, int]:
    try:
        incarnation, length = JOINING.unpack_from(payload, 2)
        name = payload[2 + JOINING.size :].decode()
    except (struct.error, UnicodeDecodeError):
        raise MalformedError("a join ends in the middle") from None
    if len(name.encode()) != length:
        raise MalformedError("a join has the wrong length")
    return name, incarnation


def pack_entries(entries: Iterable[Entry]) -> bytes:
    """Entries of consecutive indexes as they travel: ``length u32, term u64, payload`` each."""
    parts = []
    for payload, _, term in entries:
        parts.append(WIRE_ENTRY.pack(len(payload), term))
        parts.append(payload)
    return b"".join(parts)


def unpack_entries(data: bytes, first_index: int, least_term: int = 0, greatest_term: int = (1 << 64) - 1) -> list[Entry]:
    """The entries that ``pack_entries`` encoded. Raises MalformedError, also if a term decreases or is out of bounds."""
    entries: list[Entry] = []
    offset, end = 0, len(data)
    while offset < end:
        if offset + WIRE_ENTRY.size > end:
            raise MalformedError("entries end in the middle")
        length, term = WIRE_ENTRY.unpack_from(data, offset)
        offset += WIRE_ENTRY.size + length
        payload = data[offset - length : offset]
        if offset > end or not (payload == NO_OP or payload[:2] in (PROPOSALS, JOIN, MEMBERS_ENTRY)):
            raise MalformedError(f"entry {first_index + len(entries)} is malformed")
        if payload[:2] == MEMBERS_ENTRY:
            unpack_members(payload)
        if not least_term <= term <= greatest_term:
            raise MalformedError(
                f"entry {first_index + len(entries)} has term {term}, after {least_term}, in a message of term {greatest_term}"
            )
        least_term = term
        entries.append((payload, first_index + len(entries), term))
    return entries

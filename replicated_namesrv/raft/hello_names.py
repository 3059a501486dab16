"""The names in the hello of a peer, as bytes."""

from replicated_namesrv.raft.raft_errors import MalformedError


def pack_names(*names: str) -> bytes:
    return b"".join(bytes([len(raw)]) + raw for raw in (name.encode() for name in names))


def unpack_names(data: bytes, count: int) -> list[str]:
    names, offset = [], 0
    for _ in range(count):
        if offset >= len(data):
            raise MalformedError("hello ends in the middle")
        end = offset + 1 + data[offset]
        try:
            names.append(data[offset + 1 : end].decode())
        except UnicodeDecodeError:
            raise MalformedError("hello has a name that is not UTF-8") from None
        offset = end
    if offset != len(data):
        raise MalformedError("hello has the wrong length")
    return names

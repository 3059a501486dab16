"""The parsers that face a socket or a file, each with its oracle.

A target takes any bytes. It returns, or raises one of its documented errors. Anything else is a defect: any other exception, and
an ``AssertionError``, which means that a parsed value was encoded and then read differently.
"""

import struct
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple, cast
from zlib import crc32

from yarl import URL

from replicated_namesrv.admin.paging import ROWS_MAX, page_request
from replicated_namesrv.errors import NamesrvError
from replicated_namesrv.raft import entry_log
from replicated_namesrv.raft.entry_log import Log
from replicated_namesrv.raft.hello_names import unpack_names
from replicated_namesrv.raft.payloads import pack_entries, pack_group, unpack_entries, unpack_groups, unpack_join
from replicated_namesrv.raft.raft_errors import CorruptionError, MalformedError
from replicated_namesrv.raft.raft_messages import decode, encode
from replicated_namesrv.raft.snapshots import BLOCK, HEADER, Reader
from replicated_namesrv.routes.backup import BackupError, BackupReader
from replicated_namesrv.routes.snapshot import SnapshotReader
from replicated_namesrv.steps import finish
from replicated_namesrv.wire.bodies import decode_data_version, decode_queue_datas
from replicated_namesrv.wire.codes import LanguageCode
from replicated_namesrv.wire.frame import missing_bytes, next_frame
from replicated_namesrv.wire.header import decode_binary_header, decode_json_header, encode_binary_header, encode_json_header
from replicated_namesrv.wire.properties import load_properties, store_properties
from replicated_namesrv.wire.proxy_protocol import parse_proxy_header
from replicated_namesrv.wire.registration_body import decode_register_body
from tests.fuzz.connections import admin_request, first_bytes, peer_handshake
from tests.support.raft_world import Disk

INFLATED_BYTES_MAX = 1 << 20
VERSIONS = (0, 401, 479)
"""RocketMQ versions in registrations: before 3.0.11, 4.x, 5.x."""


class Target(NamedTuple):
    """One parser."""

    run: Callable[[bytes], object]
    errors: tuple[type[BaseException], ...]
    """The errors that it may raise."""
    repair: Callable[[bytes], bytes] | None = None
    """Corrects the checksums, so that the code behind their check is reached."""
    cost: int = 1
    """A parser gets this many times as many inputs as this target."""


def json_header(data: bytes) -> None:
    header = decode_json_header(data)
    known = header if header.language is not None else header._replace(language=LanguageCode.JAVA)  # absent: JAVA
    assert decode_json_header(encode_json_header(header)) == known


def binary_header(data: bytes) -> None:
    header = decode_binary_header(data)
    again = decode_binary_header(encode_binary_header(header))
    language = LanguageCode.OTHER if header.language is None else header.language
    assert again == header._replace(language=language, ext_fields=header.ext_fields or None)


def frames(data: bytes) -> None:
    found = next_frame(data, 0, len(data))
    if found is None:
        assert missing_bytes(data, 0, len(data)) > 0
    else:
        assert 8 == found.header_start <= found.body_start <= found.end <= len(data)


def proxy(data: bytes) -> None:
    found = parse_proxy_header(data, 0, len(data))
    assert found is None or 0 <= found.size <= len(data)


def registration(data: bytes) -> None:
    """The first byte selects version and compression, as the header of the request does."""
    if data:
        version, compressed = VERSIONS[data[0] % 3], bool(data[0] & 0x80)
        finish(decode_register_body(data[1:], version, compressed, INFLATED_BYTES_MAX))


def properties(data: bytes) -> None:
    found = load_properties(data)
    assert load_properties(store_properties(found)) == found


def page_parameters(data: bytes) -> None:
    query = URL("/v1/topics?" + data.decode("latin-1"), encoded=True).query
    wanted = page_request(cast(Any, SimpleNamespace(query=query)))
    assert 1 <= wanted.limit <= ROWS_MAX


def peer_message(data: bytes) -> None:
    assert encode(decode(data)) == data


def peer_entries(data: bytes) -> None:
    assert pack_entries(unpack_entries(data, 1)) == data


def peer_groups(data: bytes) -> None:
    assert b"".join(pack_group(*group) for group in unpack_groups(data)) == data


def log_file(data: bytes) -> None:
    disk = Disk()
    disk.append(entry_log.segment_name(1), data)
    disk.sync([entry_log.segment_name(1)], True)
    Log(disk)


def repaired_log(data: bytes) -> bytes:
    """``data`` with correct checksums of the header and the records."""
    fixed = bytearray(data)
    header, record = entry_log.HEADER, entry_log.RECORD
    if len(fixed) >= header.size:
        struct.pack_into("<I", fixed, header.size - 4, crc32(fixed[: header.size - 4]))
    offset = header.size
    while offset + record.size <= len(fixed):
        length = record.unpack_from(fixed, offset)[1]
        stop = offset + record.size + length
        if stop > len(fixed):
            break
        checksum = crc32(bytes(fixed[offset + entry_log.CHECKED_FROM : stop]), length)
        struct.pack_into("<I", fixed, offset + 6, checksum)
        offset = stop
    return bytes(fixed)


def snapshot_file(data: bytes) -> None:
    disk = Disk()
    disk.append("snapshot", data)
    for _ in Reader(disk, "snapshot").chunks():
        pass


def repaired_snapshot(data: bytes) -> bytes:
    """``data`` with correct checksums of the blocks and of the whole file."""
    fixed = bytearray(data)
    offset, block = HEADER.size, BLOCK
    while offset + block.size <= len(fixed):
        length = block.unpack_from(fixed, offset)[0]
        start = offset + block.size
        if length == 0:
            block.pack_into(fixed, offset, 0, crc32(fixed[:offset]))
            break
        if start + length > len(fixed):
            length = max(len(fixed) - start - block.size, 1)
            fixed += bytes(max(0, start + length + block.size - len(fixed)))
        block.pack_into(fixed, offset, length, crc32(fixed[start : start + length]))
        offset = start + length
    return bytes(fixed)


def route_snapshot(data: bytes) -> None:
    reader = SnapshotReader()
    for part in _parts(data):
        reader.feed(part)
    reader.finish()


def backup(data: bytes) -> None:
    reader, state = BackupReader(), SnapshotReader()
    for part in _parts(data):
        state.feed(reader.feed(part))
    reader.finish()


def _parts(data: bytes) -> Iterator[bytes]:
    yield data[: len(data) // 3]
    yield data[len(data) // 3 :]


TARGETS: dict[str, Target] = {
    "json-header": Target(json_header, (NamesrvError,)),
    "binary-header": Target(binary_header, (NamesrvError,)),
    "frame": Target(frames, (NamesrvError,)),
    "proxy": Target(proxy, (NamesrvError,)),
    "registration": Target(registration, (NamesrvError,)),
    "queue-datas": Target(decode_queue_datas, (NamesrvError,)),
    "data-version": Target(decode_data_version, (NamesrvError,)),
    "properties": Target(properties, (NamesrvError,)),
    "page-parameters": Target(page_parameters, (NamesrvError,)),
    "peer-message": Target(peer_message, (MalformedError,)),
    "peer-entries": Target(peer_entries, (MalformedError,)),
    "peer-groups": Target(peer_groups, (MalformedError,)),
    "peer-join": Target(unpack_join, (MalformedError,)),
    "peer-hello": Target(lambda data: unpack_names(data, 3), (MalformedError,)),
    "log": Target(log_file, (CorruptionError,), repaired_log),
    "snapshot-file": Target(snapshot_file, (ValueError,), repaired_snapshot),
    "route-snapshot": Target(route_snapshot, (NamesrvError,)),
    "backup": Target(backup, (BackupError, NamesrvError)),
    "first-bytes": Target(first_bytes, (), cost=8),
    "peer-handshake": Target(peer_handshake, (), cost=8),
    "admin-request": Target(admin_request, (), cost=8),
}
